"""The automatic choice: the method that is predicted to be cheapest, and what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor, frexp, ldexp
from typing import ClassVar

from localpower.core.text import size
from localpower.engines.base import Engine
from localpower.methods.base import REGISTRY, Form, Method, Start, width_option, wire_option
from localpower.methods.costs import Problem, costs, explain
from localpower.methods.exact import TSQR
from localpower.methods.local_power import LocalPower
from localpower.methods.local_ritz import LocalRitz
from localpower.methods.state import State
from localpower.worker.local_matrix import GRAM_COLUMNS


@dataclass(frozen=True, slots=True)
class Choice:
    """The method that is taken, why, its predicted rounds, and what follows if it is too slow.

    It is `worth` so many rounds, by the time that they take, to be spared one that is exact.
    """

    method: Method
    why: str
    rounds: int
    others: tuple[Method, ...] = ()
    worth: int = 0


@dataclass(frozen=True, slots=True)
class Auto(Method):
    """Takes the cheapest method that reaches the tolerance, and another one if that is too slow.

    Parameters
    ----------
    width, wire
        As in `LocalRitz`. With rounded messages, only methods that can round them are considered.
    """

    width: int | None = width_option()
    wire: str = wire_option()

    about: ClassVar[str] = "the one that is predicted to be cheapest"
    grows: ClassVar[bool] = True

    @property
    def only_sums(self) -> bool:
        """It takes a method that works there."""
        return True

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        raise NotImplementedError("choose a method first")

    def candidates(self, only_sums: bool = False) -> list[Method]:
        """Methods that are considered, with the options of this one that they have."""
        rounds = self.wire != "float64"
        own = {"width": self.width, "wire": self.wire}
        kinds = [form for form in REGISTRY.values() if form.kind.automatic]
        own_forms = [
            form.build(**{name: own[name] for name in form.options() if name in own})
            for form in kinds
            if not rounds or "wire" in form.options()
        ]
        if not only_sums:
            return own_forms
        return [summing for form in own_forms if (summing := form.for_sums()) is not None]

    def choose(self, problem: Problem) -> Choice:
        """Take the cheapest way to the tolerance, and say what follows it."""
        mantissa, exponent = frexp(problem.memory)  # what is free is never twice the same
        memory = ldexp(floor(64 * mantissa) / 64, exponent)
        return self._chosen(replace(problem, memory=memory), tuple(REGISTRY.values()))

    @lru_cache(64)  # noqa: B019 (there are few methods, and all that are equal share it)
    def _chosen(self, problem: Problem, known: tuple[Form, ...]) -> Choice:
        """The choice among methods that are `known`: it may take longer than a small run."""
        candidates = self.candidates(problem.only_sums)
        ranked = costs(problem, None, candidates)
        method, cost = ranked[0]
        why = explain([cost for _, cost in ranked])
        if problem.exceeds_rows(method):
            need = size(method.workspace(problem.columns, problem.width))
            fallback = LocalPower(width=self.width, wire=self.wire)
            if problem.only_sums:
                fallback = replace(fallback, align_at="worker")
            why = f"{fallback.name}: {method.name} would hold {need} besides the rows"
            return Choice(fallback, why, 0)
        if isinstance(method, TSQR):
            return Choice(method, why, cost.rounds)
        feasible = {type(other) for other, cost in ranked if cost.feasible}
        possible = {type(own): own for own in candidates if type(own) in feasible}
        others = [
            possible[kind]
            for kind in ((TSQR,) if method.exact else (LocalRitz, TSQR))
            if kind in possible and kind is not type(method)
            and not problem.exceeds_rows(possible[kind])
        ]  # fmt: skip
        few = problem.rows <= min(GRAM_COLUMNS, problem.columns)
        if few and not method.exact and not problem.only_sums:  # all their pairs can be merged
            merged = LocalRitz(start=f"merged:{problem.rows}", width=self.width, wire=self.wire)
            others = [merged]
        each = cost.seconds / max(cost.rounds, 1)
        exact = [other.seconds / each for way, other in ranked if way.exact and way in others]
        return Choice(method, why, cost.rounds, tuple(others), int(max(exact, default=0)))
