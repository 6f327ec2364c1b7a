"""What a method will cost: rounds, hops, bytes, work, and seconds from these.

Bytes are exact for given rounds, and so are the rounds of methods that do not iterate to a
tolerance. The rounds of the others follow from how fast the spectrum decays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Any

import numpy as np

from localpower.core.ledger import Ledger, Round
from localpower.core.linalg import Array
from localpower.core.text import counted, duration, size
from localpower.data.partition import KEPT_SHARE
from localpower.engines.calibration import operations
from localpower.methods.base import REGISTRY, Method
from localpower.methods.work import ROUND, in_cache, orthonormal, sparse_product
from localpower.worker.local_matrix import GRAM_COLUMNS, rows_of_gram

READING = 1e9  # bytes a second that files are read with
DECAY = 0.88  # of eigenvalues from one to the next, where nothing is known of them
SMALL = 2000  # columns up to which all eigenvalues are taken
MOST_ROUNDS = 100_000
START = 0.5  # size of each unwanted part in a random start, against the wanted ones
TYPICAL = "typical: nothing is known of the spectrum"
NARROW = 8  # columns up to which a product of dense rows takes as long as their way from memory
FIRST_TIME = 1.12  # times as long as again and again, as engines are measured
LEAN = 1 << 30  # bytes of workspace from which it should not be many times what the rows take


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be computed, where: rows of each shard, and entries of all that are not zero.

    `stored` is how many bytes are read from files in every round, where they do not fit in memory;
    `only_sums` tells that nothing but sums of replies may be seen, `most_columns` how many columns
    of a product may be asked for at once. So many shards are worked on `at_once`; all, if it is 0.
    """

    sizes: tuple[int, ...]
    columns: int
    entries: int
    itemsize: int
    rank: int
    width: int
    tol: float
    memory: float
    center: bool
    scale: str | None
    latency: float
    bandwidth: float
    flops: float
    stored: float = 0.0
    only_sums: bool = False
    most_columns: float = inf
    at_once: int = 0

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(self.sizes)

    @property
    def share(self) -> float:
        """Entries of the largest shard, or of those that a worker has one after the other."""
        return self.turns * self.entries * max(self.sizes) / max(self.rows, 1)

    @property
    def turns(self) -> int:
        """How many shards a worker has."""
        return -(-len(self.sizes) // (self.at_once or len(self.sizes)))

    @property
    def sparse(self) -> bool:
        """Whether rows have entries that are left out."""
        return self.entries < self.rows * self.columns

    @property
    def keeps_gram(self) -> bool:
        """Whether shards keep ``A_iᵀA_i`` once they have formed it, for the factors."""
        d = self.columns
        return d <= GRAM_COLUMNS and 4 * d <= max(self.sizes) and self.itemsize == 8

    def statistics(self) -> float:
        """Operations in the time of the statistics of columns."""
        if self.sparse:
            return 1000 * self.share
        return self.itemsize / 8 * (90 if self.columns <= GRAM_COLUMNS else 180) * self.share

    def product(self, width: float) -> float:
        """The same of a local product with so many columns; few are not faster than memory."""
        if self.sparse:
            return self.share * sparse_product(width, self.columns)
        part = self.itemsize / 8 * max(width, NARROW)
        return operations(self.share, part) * in_cache(self.columns)

    def gram(self) -> float:
        """The same of ``A_iᵀA_i``, in float64; sparse rows are multiplied entry by entry."""
        d, sums = self.columns, 2.0
        each = 0.72 * d + 65
        if self.sparse:
            each, sums = 400 * self.entries / self.rows, 2 - (-max(self.sizes) // rows_of_gram(d))
        return self.share * each + self.turns * 850 * sums * d**2

    def factors(self, width: int) -> float:
        """The same of singular values within a basis: of ``A_i Z``, and of its triangle."""
        each = 5 * width + 80 + 100 * self.center if not self.sparse else 32 * width + 130
        rows = self.turns * max(self.sizes) * width * (48 * width + 780)
        return self.share * each * (1 if self.sparse else self.itemsize / 8) + rows

    def round(
        self,
        task: str,
        down: float,
        up: float,
        *,
        bytes_each: int | None = None,
        only: int | None = None,
        phase: str = "iterate",
    ) -> Round:
        """The record of a round: words down and up per shard; `only` some shards are asked."""
        shards = len(self.sizes) if only is None else only
        item = bytes_each or self.itemsize
        words = int(shards * down), int(shards * up)
        return Round(
            phase=phase,
            task=task,
            messages=2 * shards,
            words_up=words[1],
            words_down=words[0],
            bytes_up=item * words[1],
            bytes_down=item * words[0],
            exchange=only is not None and only < len(self.sizes),
        )

    def exceeds_rows(self, method: Method) -> bool:
        """Whether a method would hold far more than the rows themselves take, and that is much."""
        need = method.workspace(self.columns, self.width)
        return need > max(LEAN, 3 * 12 * self.entries + 5 * 8 * self.columns * self.width)


@dataclass(frozen=True, slots=True)
class Decay:
    """Eigenvalues, in descending order, and how many rounds they make of a tolerance.

    There are as many that are not zero as `columns`, of which the leading ones are known.
    """

    values: Array
    columns: int
    rank: int
    width: int
    tol: float

    def power(self) -> int:
        """Power iteration: the part outside falls by ``λ_j/λ_k`` for each j beyond the width."""
        tail = self.values[self.width :] / (self.values[self.rank - 1] or 1.0)
        if self.width >= self.columns:
            return 1
        low, high = 1, MOST_ROUNDS
        while low < high:
            t = (low + high) // 2
            if START * sqrt(float((tail ** (2.0 * t)).sum())) <= self.tol:
                high = t
            else:
                low = t + 1
        return low

    def gap(self, beyond: int) -> float:
        """How far, of the value at number `beyond`, the last that is asked for is above it."""
        value = self.values[min(beyond, len(self.values) - 1)] or np.finfo(float).tiny
        return float(max(self.values[self.rank - 1] / value - 1, 1e-12))

    def degree(self, start: float) -> float:
        """Degree of the Chebyshev polynomial that brings the error from `start` to `tol`."""
        if self.width >= self.columns:
            return 1.0
        gap = self.gap(self.width)
        return float(np.arccosh(max(start / self.tol, 1.0)) / np.arccosh(1 + 2 * gap))


def completed(values: Array, trace: float, count: int) -> Array:
    """Leading eigenvalues, and the next ones of `count`, as if those fell by a power law.

    It begins at the last one that is known, and all of them add up to the trace.
    """
    known, last = len(values), float(values[-1])
    left = (trace - float(values.sum())) / (known * last or 1.0)
    low, high = 0.0, 50.0
    for _ in range(50):
        p = (low + high) / 2
        area = (1 - (count / known) ** (1 - p)) / (p - 1) if p != 1 else log(count / known)
        low, high = (p, high) if area > left else (low, p)
    numbers = np.arange(known + 1, min(count, SMALL) + 1)
    return np.append(values, last * (known / numbers) ** low)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a method says of itself: its rounds, its work, and whether it reaches the tolerance."""

    records: list[Round]
    flops: float
    note: str = ""
    reaches: bool = True


@dataclass(frozen=True, slots=True)
class Cost:
    """What one method takes.

    Attributes
    ----------
    method : str
        As `svd` takes it, with its options.
    rounds, hops : int
        Of the method itself; set-up and factors take three rounds more, as in every run.
    passes : int
        How often all rows are gone over, in all phases: read, if they are in files.
    bytes_up, bytes_down : float
        Per worker, in all phases.
    flops : float
        Of the worker with the most rows, and of the coordinator.
    seconds : float
        ``hops · latency + bytes of all workers / bandwidth + 1.12 flops / rate``, in all phases,
        and the passes over files that are larger than memory.
    feasible : bool
        Whether it reaches the tolerance within memory; `note` says more.
    ledger : Ledger
        The account of a run with so many rounds.
    """

    method: str
    rounds: int
    hops: int
    passes: int
    bytes_up: float
    bytes_down: float
    flops: float
    seconds: float
    feasible: bool
    note: str
    ledger: Ledger


def costs(
    problem: Problem, values: Array | None = None, methods: Iterable[Method] | None = None
) -> list[tuple[Method, Cost]]:
    """Predict methods, by default all, cheapest first; those that miss the tolerance last.

    Where no eigenvalues are known, typical ones are assumed.
    """
    d = problem.columns
    known = DECAY ** np.arange(min(d, SMALL)) if values is None else values
    most = min(d, max(problem.rows, problem.width))
    decay = Decay(known, most, problem.rank, problem.width, problem.tol)
    if methods is None:
        methods = (form.build(**form.kind.planned) for form in REGISTRY.values())
    if problem.only_sums:
        methods = [summing for each in methods if (summing := each.for_sums()) is not None]
    found = [min(forms, key=_merit) for each in methods if (forms := _forms(problem, decay, each))]
    return sorted(found, key=_merit)


def _forms(problem: Problem, decay: Decay, method: Method) -> list[tuple[Method, Cost]]:
    """What each form of a method takes that may be the cheapest one."""
    return [
        (form, _cost(problem, form, estimate))
        for form in method.forms(problem.rank)
        if (estimate := form.estimate(problem, decay)) is not None
    ]


def _merit(pair: tuple[Method, Cost]) -> tuple[bool, float]:
    return not pair[1].feasible, pair[1].seconds


def _cost(problem: Problem, method: Method, estimate: Estimate) -> Cost:
    iterate = Ledger(tuple(estimate.records))
    ledger = Ledger((*_setup(problem), *estimate.records, *_factors(problem, method)))
    need, reaches, note = method.workspace(problem.columns, problem.width), estimate.reaches, ""
    if need > problem.memory:
        reaches, note = False, f"takes {size(need)} of memory, {size(problem.memory)} are there"
    if method.widest(problem.columns, problem.rank, problem.width) > problem.most_columns:
        reaches, note = False, "asks for more columns at once than shards answer"
    passes = _passes(problem, method, ledger)
    seconds = (
        ledger.hops * problem.latency
        + (ledger.bytes_up + ledger.bytes_down) / problem.bandwidth
        + FIRST_TIME * (estimate.flops + _more_flops(problem, method)) / problem.flops
        + passes * problem.stored / READING
    )
    m = len(problem.sizes)
    return Cost(
        method=str(method),
        rounds=iterate.rounds,
        hops=iterate.hops,
        passes=passes,
        bytes_up=ledger.bytes_up / m,
        bytes_down=ledger.bytes_down / m,
        flops=estimate.flops,
        seconds=seconds,
        feasible=reaches,
        note=note or estimate.note,
        ledger=ledger,
    )


def _passes(problem: Problem, method: Method, ledger: Ledger) -> int:
    """Count passes over the rows: one a round, but for `Prepare`, and for what needs none.

    A Gram matrix of dense rows is formed with the statistics, and `squares` has factors made of it.
    """
    room = KEPT_SHARE * problem.memory if problem.stored else inf
    d, shards = problem.columns, problem.sizes
    kept = d <= GRAM_COLUMNS and 4 * d <= max(shards) and len(shards) * 8 * d**2 <= room
    early = method.forms_grams and not problem.sparse
    return ledger.rounds - 1 - kept * (early + method.squares)


def _more_flops(problem: Problem, method: Method) -> float:
    """Work of setup and factors: statistics, and a random start; a product and its triangle."""
    d, r = problem.columns, problem.width if method.has_width else problem.rank
    work = ROUND / 2 + problem.statistics()
    if method.iterates:
        work += orthonormal(d, r)
    if method.squares and problem.keeps_gram:
        return work + problem.turns * 4 * d**2 * r
    return work + problem.factors(r)


def _setup(problem: Problem) -> list[Round]:
    d = problem.columns
    extremes = problem.scale in ("max", "minmax")
    shifts = problem.center or problem.scale == "minmax"
    down = d * (shifts + (problem.scale is not None))
    how: dict[str, Any] = {"bytes_each": 8, "phase": "setup"}
    return [
        problem.round("Describe", 0, (4 if extremes else 2) * d, **how),
        problem.round("Prepare", down, 0, **how),
    ]


def _factors(problem: Problem, method: Method) -> list[Round]:
    r = problem.width if method.has_width else problem.rank
    up = sum(min(s, r) * r for s in problem.sizes) / len(problem.sizes)
    up += 0 if problem.center else r + r * (r + 1) // 2  # what variances are made of
    return [problem.round("Triangle", problem.columns * r, up, phase="factors")]


def explain(rows: Sequence[Cost], basis: str = TYPICAL) -> str:
    """Say why the first is the choice, in a sentence."""
    first, rest = rows[0], [row for row in rows[1:] if row.feasible]
    others = f"; next is {rest[0].method} with {duration(rest[0].seconds)}" if rest else ""
    rounds = counted(first.rounds, "round")
    return f"{first.method}: {rounds}, about {duration(first.seconds)} ({basis}){others}"
