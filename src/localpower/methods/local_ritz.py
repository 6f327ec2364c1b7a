"""LocalRitz and block Krylov as methods: their options, and what they will cost.

How they work is in `ritz`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, log, sqrt
from typing import Any, ClassVar

import numpy as np

from localpower.core.checks import whole
from localpower.core.linalg import FAN_IN, Array
from localpower.engines.base import Engine
from localpower.methods.base import (
    Method,
    Start,
    choice,
    option,
    width_option,
    wire_option,
)
from localpower.methods.costs import Decay, Estimate, Problem
from localpower.methods.model import enough, pairs_to_send
from localpower.methods.ritz import MERGED, MODELLED, PROPOSALS, STARTS, RitzState, local_ritz
from localpower.methods.search import RESTART
from localpower.methods.state import State
from localpower.methods.work import ROUND, eigenvectors, orthonormal, singular_vectors
from localpower.worker.local_matrix import DUAL_ENTRIES, GRAM_COLUMNS, OVERSAMPLED, PASSES

FORMS = (4, 8, 32)  # times the rank: other numbers of eigenpairs that a plan may choose
LOOKED = 5  # rounds that are done to look at leading eigenvalues
MERGED_ERROR = 0.03  # sine that a merged start leaves, times (σ_{w+1}/σ_k)^1.5


def _start_option() -> Any:
    def check(name: str, value: Any) -> str:
        start_of(value)
        return str(value)

    return option("merged", "the first block: merged, merged:200 (of each shard), random", check)


def start_of(start: Any) -> tuple[str, int]:
    """Read ``"merged"``, ``"merged:200"`` or ``"random"``."""
    name, colon, count = start.partition(":") if isinstance(start, str) else (start, "", "")
    if name not in STARTS or (colon and (name != "merged" or not count.isdecimal())):
        raise ValueError(
            f"start={start!r} is not known: take one of {', '.join(STARTS)}, or 'merged:200' for "
            "so many eigenvectors of every shard"
        )
    return name, int(count or 0)


class _Ritz(Method):
    """What LocalRitz and block Krylov have in common."""

    __slots__ = ()
    start: str
    wire: str
    iterates: ClassVar[bool] = True
    certifies: ClassVar[bool] = True
    sends_probes: ClassVar[bool] = True
    automatic: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    state_type: ClassVar[type[State]] = RitzState
    compared: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    @property
    def forms_grams(self) -> bool:
        """For eigenpairs of a merged start."""
        return start_of(self.start)[0] == "merged"

    def workspace(self, columns: int, width: int) -> float:
        return (6 + 2 * RESTART + 2 * (MODELLED if self.models else MERGED)) * columns * width * 8

    def estimate(self, problem: Problem, decay: Decay) -> Estimate:
        """A merged start, a wide product, and narrow ones; or a random start."""
        if start_of(self.start)[0] == "random":
            return self._estimate_random(problem, decay)
        d, k, m = problem.columns, problem.rank, len(problem.sizes)
        wide = self.wide(k, problem.width, d)
        found = sum(min(s, wide) for s in problem.sizes)
        kept = 2 * wide if self.models else wide
        whole = found == problem.rows <= kept  # shards send all that they have, and it is kept
        rounds = 1 if whole else rounds_after_merging(decay, wide)
        first = min(max(found, problem.width), wide)
        if self.models:
            first = min(first, enough(decay.values, k, problem.width, wide))
        start = problem.round("LeadingFactor", 0, d * found / m)
        records = [start, *[problem.round("PowerSteps", d * first, d * first)] * min(1, rounds - 1)]
        records += [problem.round("PowerSteps", d * k, d * k)] * (rounds - 2)
        flops = leading_flops(problem, wide) + self._merging(problem, wide, found)
        if rounds > 1:
            flops += problem.product(first) + (rounds - 2) * problem.product(k)
            space, factor = first + k * (rounds - 2) // 2, min(found, kept) * self.models
            flops += (rounds - 1) * round_flops(problem, space, factor)
        return Estimate(records, flops)

    def _merging(self, problem: Problem, wide: int, found: int) -> float:
        """Operations in the time of merging what shards have found, `wide` columns of each."""
        d, most = problem.columns, min(found, 2 * wide)
        cut = eigenvectors(min(3 * wide, found)) + 39.0 * d * wide**2
        m = len(problem.sizes)
        cuts = max(0, m - 1 - ceil(m / FAN_IN))  # the first two of a group have room
        if not self.models:
            most, cuts = min(most, wide), cuts + 1
        return ROUND + cuts * cut + singular_vectors(max(d, most), min(d, most))

    def _estimate_random(self, problem: Problem, decay: Decay) -> Estimate:
        """Blocks of the full width, from Gaussian columns."""
        degree = decay.degree(sqrt(decay.columns * decay.rank))
        rounds = min(1 + ceil(degree), ceil(decay.columns / problem.width))
        block, (blocks, steps) = problem.columns * problem.width, self.parts
        down, up = (blocks + 2 * (steps > 0)) * block, (blocks + (steps > 0)) * block
        later = problem.round("Refine" if steps else "PowerSteps", down, up)
        records = [problem.round("PowerSteps", block, block)]
        if steps and not problem.only_sums:  # what the anchor proposes at first
            records.append(problem.round("Refine", 2 * block, block, only=1))
        records += [later] * (rounds - 1)
        space = min(rounds, RESTART) * blocks * problem.width // 2
        work = problem.product(blocks * problem.width) + steps * problem.product(problem.width)
        return Estimate(records, rounds * (work + round_flops(problem, space)))

    @property
    def models(self) -> bool:
        """Whether what was merged is a model at the server, of which little is multiplied."""
        return False

    @property
    def parts(self) -> tuple[int, int]:
        """Blocks of the width that are multiplied in a later round, and local steps of all."""
        return 1, 0

    def widest(self, columns: int, rank: int, width: int) -> int:
        (blocks, steps), merged = self.parts, start_of(self.start)[0] == "merged"
        first = self.wide(rank, width, columns) if merged else width
        later = blocks * width + (steps > 0) * (width + 1)
        return super().widest(columns, rank, max(first, later))

    def wide(self, rank: int, width: int, columns: int) -> int:
        """Eigenpairs that a shard sends for a merged start."""
        wide = start_of(self.start)[1] or (MODELLED if self.models else MERGED) * rank
        if self.models:
            return pairs_to_send(wide, rank, width, columns)
        return min(max(wide, width), columns)

    def _iterate(self, engine: Engine, start: Start, proposal: str, steps: int) -> Iterator[State]:
        return local_ritz(
            engine,
            start.begin(engine),
            start.rank,
            proposal=proposal,
            steps=steps,
            start=start_of(self.start)[0] if start.state is None else "random",
            wide=self.wide(start.rank, start.width, engine.columns),
            tol=start.tol,
            doubt=start.doubt,
            rounding=start.rounding(self.wire, engine),
            part=1.0 if start.share is None else start.share.part,
        )


@dataclass(frozen=True, slots=True)
class LocalRitz(_Ritz):
    """LocalRitz: a certified tolerance in a handful of rounds; beyond the paper.

    Parameters
    ----------
    proposal : str
        How the next block is made. ``"model"``: from residuals, corrected with the merged factors.
        ``"residual"``: from residuals alone. ``"anchor"`` or ``"all"``: from local work of one
        shard or all, also together with residuals, as in ``"anchor+residual"``.
    steps : int
        Local steps of a proposal.
    start : {"merged", "random"}
        ``"merged"`` begins with the leading eigenvectors of all shards, which saves rounds and
        often proves that nothing is missed. ``"merged:200"`` takes 200 of each shard instead of 16
        times the rank. More of them save rounds and prove more; fewer save bytes. With so few
        columns that four rounds would send as much, shards send all they have.
    width : int, optional
        Number of columns to iterate, r, at least the rank; by default 5 more.
    wire : {"float64", "float32", "bfloat16"}
        How to round messages, wherever that does not limit the result. Each column takes as many
        bytes as it needs; ``"float32"`` mostly costs no round, ``"bfloat16"`` one.
    """

    proposal: str = choice("model", PROPOSALS, "what the next block is made from")
    steps: int = option(8, "local steps of a proposal", whole, int)
    start: str = _start_option()
    width: int | None = width_option()
    wire: str = wire_option()

    about: ClassVar[str] = "certified in a handful of rounds"

    @property
    def only_sums(self) -> bool:
        """Neither a merged start nor an exchange with one shard."""
        return self.start == "random" and "anchor" not in self.proposal

    @property
    def models(self) -> bool:
        """Whether what was merged is a model at the server, of which little is multiplied."""
        return self.proposal == "model"

    def for_sums(self) -> Method | None:
        """A random start; and proposals of all shards, as factors cannot be merged."""
        if ":" in self.start:
            return None
        proposal = "all+residual" if self.models else self.proposal
        return super(LocalRitz, replace(self, start="random", proposal=proposal)).for_sums()

    @property
    def parts(self) -> tuple[int, int]:
        """Two where residuals join what is proposed; and steps, if all shards propose."""
        return 1 + ("+" in self.proposal), self.steps * self.proposal.startswith("all")

    def forms(self, rank: int) -> tuple[Method, ...]:
        """More eigenpairs of each shard save rounds, fewer save bytes."""
        if self.start != "merged" or not self.models:
            return (self,)
        return (self, *(replace(self, start=f"merged:{times * rank}") for times in FORMS))

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        return self._iterate(engine, start, self.proposal, self.steps)


@dataclass(frozen=True, slots=True)
class BlockKrylov(_Ritz):
    """Block Krylov: `LocalRitz` with blocks of plain residuals; its options mean the same."""

    start: str = _start_option()
    width: int | None = width_option()
    wire: str = wire_option()

    about: ClassVar[str] = "block Krylov: the same with blocks of plain residuals"

    @property
    def only_sums(self) -> bool:
        """Not with a merged start."""
        return self.start == "random"

    def for_sums(self) -> Method | None:
        """A random start."""
        if ":" in self.start:
            return None
        return super(BlockKrylov, replace(self, start="random")).for_sums()

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        return self._iterate(engine, start, "residual", 1)


def rounds_after_merging(decay: Decay, wide: int) -> int:
    """After a merged start all is known but what is beyond that; narrow blocks follow."""
    start = min(wide, decay.columns)
    if start >= decay.columns:
        return 1
    gap = decay.gap(start)
    error = MERGED_ERROR / (1 + gap) ** 1.5
    degree = max(0.0, log(error / 2 / decay.tol) / float(np.arccosh(1 + 2 * gap)))
    return min(2 + ceil(degree), 2 + ceil((decay.columns - start) / decay.rank))


def round_flops(problem: Problem, space: float, factor: int = 0) -> float:
    """Operations in the time of what the coordinator does in a round.

    Its search space has so many columns, and the `factor` by which residuals are corrected.
    """
    both = 32.0 * space**2 + 800.0 * space + (20.0 * space + 500.0) * factor
    return ROUND + problem.columns * both + 1.2 * eigenvectors(factor)


def leading_flops(problem: Problem, wide: int) -> float:
    """Operations in the time of a shard's leading eigenpairs: of AᵀA, AAᵀ, or by iteration."""
    d, rows = problem.columns, max(problem.sizes)
    if d <= GRAM_COLUMNS:
        return problem.gram() + problem.turns * eigenvectors(d)
    if rows <= GRAM_COLUMNS and rows * d <= DUAL_ENTRIES:
        return problem.turns * (rows * d * (2.6 * (rows + wide) + 500) + eigenvectors(rows))
    more = min(wide + OVERSAMPLED, d)
    bases = (PASSES + 2) * problem.turns * orthonormal(d, more)
    return (PASSES + 1) * problem.product(more) + bases


def leading_values(engine: Engine, rank: int, width: int) -> Array:
    """Approximate leading eigenvalues, (width,), from a few rounds of a random start."""
    start = Start(min(rank, width), width, np.random.default_rng(0))
    states = BlockKrylov(start="random").states(engine, start)
    *_, last = (state for state in islice(states, LOOKED) if isinstance(state, RitzState))
    return np.maximum(last.values[:width], 0.0)
