"""What a run will cost, before it is run: rounds, hops, bytes, work, and seconds from these.

Bytes are exact for given rounds, and so are the rounds of methods that do not iterate to a
tolerance. The rounds of the others follow from how fast the spectrum decays: that of the rows, or
of a sample of them, where there are data; else one is assumed (`DECAY`), and the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf, log, sqrt
from numbers import Number
from typing import Any

import numpy as np

from localpower.core.ledger import Ledger, Round
from localpower.core.ledger import size as size
from localpower.core.linalg import Array, random_basis
from localpower.core.machine import cores
from localpower.data.memory import budget
from localpower.data.source import Source, open_source
from localpower.engines.inline import Inline
from localpower.methods.block_lanczos import BLOCK, LanczosState
from localpower.methods.local_power import State
from localpower.methods.local_ritz import MERGED, RESTART, local_ritz
from localpower.methods.scaling import SCALES, columns, describe, prepare
from localpower.result import html_table
from localpower.worker.local_matrix import GRAM_COLUMNS
from localpower.worker.shard import EngineBlock, Shard, cut
from localpower.worker.tasks import GramTriangle, unpacked

NETWORKS = {  # seconds of a hop, bytes a second
    "one machine": (1e-4, 5e9),
    "rack": (1e-4, 1.25e9),
    "data centre": (5e-4, 1.25e9),
    "wide area": (5e-2, 1.25e7),
}
FLOPS = 3e10  # a second, of one worker
READING = 1e9  # bytes a second that files are read with
DECAY = 0.88  # of eigenvalues from one to the next, where nothing is known of them
TOLERANCE = 1e-8
EXTRA = 5  # columns beyond the rank, for the gap and for faster convergence
STEPS = 4  # local steps of a round
SAMPLE_FLOPS = 1e11  # that a plan may spend on looking at the data
SMALL = 2000  # columns up to which all eigenvalues are taken
READ = 40  # operations in the time in which an entry is brought from memory
ONE_ROUND = ("gram", "tsqr")
MOST_ROUNDS = 100_000
START = 0.5  # size of each unwanted part in a random start, against the wanted ones
MERGED_ERROR = 0.03  # sine that a merged start leaves, times (σ_{w+1}/σ_k)^1.5
LARGEST_LOSS = 1e-14  # tolerance below which a Gram matrix has lost too many digits


@dataclass(frozen=True, slots=True)
class Cost:
    """What one method takes.

    Attributes
    ----------
    method, options
        As `svd` takes them.
    rounds, hops : int
        Of the method itself; set-up and factors take three rounds more, as in every run.
    bytes_up, bytes_down : float
        Per worker, in all phases.
    flops : float
        Of the worker with the most rows, and of the coordinator.
    seconds : float
        ``hops · latency + bytes of all workers / bandwidth + flops / rate``, in all phases; and the
        passes over files that are larger than memory.
    feasible : bool
        Whether it reaches the tolerance within memory; `note` says more.
    ledger : Ledger
        The account of a run with so many rounds.
    """

    method: str
    options: dict[str, Any]
    rounds: int
    hops: int
    bytes_up: float
    bytes_down: float
    flops: float
    seconds: float
    feasible: bool
    note: str
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Plan:
    """The costs of all methods, cheapest first. Prints as a table.

    Attributes
    ----------
    rows : tuple of Cost
        Those that miss the tolerance last; also ``plan["dpi"]``.
    basis : str
        What the rounds are predicted from.
    question : str
        What was asked.
    """

    rows: tuple[Cost, ...]
    basis: str
    question: str

    @property
    def choice(self) -> Cost:
        """The cheapest that reaches the tolerance."""
        return self.rows[0]

    def __getitem__(self, method: str) -> Cost:
        for row in self.rows:
            if row.method == method:
                return row
        known = ", ".join(repr(row.method) for row in self.rows)
        raise KeyError(f"no method {method!r} in this plan: take one of {known}")

    def __iter__(self) -> Iterator[Cost]:
        return iter(self.rows)

    @property
    def why(self) -> str:
        """The reason for the choice, in a sentence."""
        first, rest = self.rows[0], [row for row in self.rows[1:] if row.feasible]
        others = f"; next is {rest[0].method} with {_time(rest[0].seconds)}" if rest else ""
        rounds = f"{first.rounds} round{'s' * (first.rounds != 1)}"
        return f"{first.method}: {rounds}, about {_time(first.seconds)} ({self.basis}){others}"

    def __str__(self) -> str:
        lines = [self.question, f"rounds are {self.basis}", " ".join(_HEAD)]
        lines += [" ".join(_fields(row)).rstrip() for row in self.rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        about = [self.question, f"rounds are {self.basis}"]
        return html_table(about, _HEAD, [_fields(row) for row in self.rows])


_HEAD = (f"{'method':<17}", f"{'rounds':>7}", f"{'hops':>7}", f"{'up':>10}", f"{'down':>10}",
         f"{'flops':>8}", f"{'seconds':>9}", "note")  # fmt: skip


def _fields(row: Cost) -> tuple[str, ...]:
    return (
        f"{row.method:<17}",
        f"{row.rounds:>7}",
        f"{row.hops:>7}",
        f"{size(row.bytes_up):>10}",
        f"{size(row.bytes_down):>10}",
        f"{row.flops:>8.1e}",
        f"{_time(row.seconds):>9}",
        row.note,
    )


def _time(seconds: float) -> str:
    if seconds >= 90:
        return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"
    if seconds >= 1:
        return f"{seconds:.2g} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.2g} ms"


def plan(
    data: Any,
    rank: int,
    *,
    workers: int | None = None,
    tol: float | None = None,
    width: int | None = None,
    latency: float | str = "data centre",
    bandwidth: float | None = None,
    flops: float = FLOPS,
    center: bool = False,
    scale: str | None = None,
    dtype: str | None = None,
    memory: int | str | None = None,
) -> Plan:
    """Predict what every method would cost, without running any.

    Parameters
    ----------
    data
        The shape ``(n, d)``, or what `svd` takes; of the latter a part is looked at, to tell how
        fast the spectrum decays.
    rank : int
        How many singular triplets, k.
    workers : int, optional
        In how many shards the rows are; one per core by default, or the user's own.
    tol : float, optional
        The sine of the angle to reach; 1e-8 by default, 3e-4 for float32.
    width : int, optional
        Columns that are iterated, ``rank + 5`` by default.
    latency : float or str
        Seconds that a hop takes; or ``"one machine"``, ``"rack"``, ``"data centre"``,
        ``"wide area"``, which stand for a latency and a bandwidth.
    bandwidth : float, optional
        Bytes a second that the coordinator's link carries.
    flops : float
        Operations a second of one worker.
    center, scale, dtype, memory
        As in `svd`; `dtype` where `data` is a shape, ``"float64"`` by default.

    Returns
    -------
    Plan

    Examples
    --------
    >>> import localpower as lp
    >>> plan = lp.plan((1_000_000, 5000), 10, workers=100, tol=1e-6, latency="wide area")
    >>> plan.choice.method, plan["gram"].bytes_up
    ('block_lanczos', 100101320.0)
    """
    alpha, beta = _network(latency, bandwidth)
    rank, workers = whole("rank", rank), None if workers is None else whole("workers", workers)
    width = None if width is None else whole("width", width)
    _check(tol, flops, scale)
    shape = _shape(data)
    if shape is not None:
        n, d = shape
        entries, kind, found, limit = n * d, _kind(dtype), None, budget(memory)
        stored = 0.0
        sizes = _sizes(n, workers or cores())
    else:
        if dtype is not None:
            raise ValueError(
                f"dtype={dtype!r} is for a shape, and data have their own; leave it out, or give "
                "what localpower.read(data, dtype=…) returns"
            )
        source = open_source(data, memory=memory, shards=workers)
        try:
            n, d, kind, limit = source.rows, source.columns, source.dtype, source.memory
            sizes = shard_sizes(source, workers, cores())
            entries, stored = Shard(source.pieces, d, kind).entries, bytes_per_pass(source)
            found = spectrum(source, rank, center, scale)
        finally:
            if source is not data:
                source.close()
    if not 1 <= rank <= min(n, d):
        raise ValueError(f"rank={rank!r}: take 1 to {min(n, d)} for data of {n} x {d}")
    if width is not None and not rank <= width <= d:
        raise ValueError(f"width={width}: take {rank} (the rank) to {d} (the columns)")
    task = Problem(
        sizes=sizes,
        columns=d,
        entries=entries,
        itemsize=kind.itemsize,
        rank=rank,
        width=min(rank + EXTRA, d) if width is None else width,
        tol=tolerance(kind) if tol is None else tol,
        memory=limit,
        center=bool(center),
        scale=scale,
        latency=alpha,
        bandwidth=beta,
        flops=flops,
        stored=stored,
    )
    return costs(task, found)


def bytes_per_pass(source: Source) -> float:
    """Bytes that are read from files or made again in every round, as they do not fit in memory."""
    size = Shard(source.pieces, source.columns, source.dtype).stored
    parts = [piece for piece in source.pieces if isinstance(piece, EngineBlock) and not piece.kept]
    made = sum(part.nnz * part.dtype.itemsize for part in parts)
    return float(made + (size if size > source.memory else 0))


def tolerance(kind: np.dtype[Any]) -> float:
    """What is aimed at where nothing is asked for: half of the digits."""
    return TOLERANCE if kind.itemsize == 8 else sqrt(float(np.finfo(kind).eps))


def _network(latency: float | str, bandwidth: float | None) -> tuple[float, float]:
    if isinstance(latency, str):
        if latency not in NETWORKS:
            known = ", ".join(map(repr, NETWORKS))
            raise ValueError(f"latency={latency!r} is not known: give seconds, or one of {known}")
        seconds, usual = NETWORKS[latency]
    else:
        seconds, usual = _number("latency", latency), NETWORKS["data centre"][1]
    rate = usual if bandwidth is None else _number("bandwidth", bandwidth)
    if not (0 <= seconds < inf and rate > 0):
        raise ValueError(f"latency={latency!r}, bandwidth={bandwidth!r}: both must be above 0")
    return seconds, rate


def _shape(data: Any) -> tuple[int, int] | None:
    """Rows and columns if that is what was given; None if it is data."""
    if not isinstance(data, tuple) or not data or not all(isinstance(x, Number) for x in data):
        return None
    counts = [x for x in data if isinstance(x, int | np.integer) and not isinstance(x, bool)]
    if len(data) != 2 or len(counts) != 2 or min(counts) < 1:
        raise ValueError(
            f"data={data!r}: a shape is two whole numbers, (rows, columns), each 1 or more"
        )
    return int(data[0]), int(data[1])


def _kind(dtype: Any) -> np.dtype[Any]:
    known = {name: np.dtype(name) for name in ("float32", "float64")}
    name = getattr(dtype, "__name__", str(dtype or "float64"))
    if name not in known:
        raise ValueError(f"dtype={dtype!r} is not known: take 'float32' or 'float64'")
    return known[name]


def _check(tol: Any, flops: Any, scale: Any) -> None:
    if tol is not None and not 0 < _number("tol", tol) < 1:
        raise ValueError(f"tol={tol!r} is the sine of an angle: take 0 < tol < 1")
    if not 0 < _number("flops", flops) < inf:
        raise ValueError(f"flops={flops!r} must be above 0: operations a second of one worker")
    if scale is not None and (not isinstance(scale, str) or scale not in SCALES):
        raise ValueError(f"scale={scale!r} is not known: take one of {', '.join(SCALES)}, or None")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name}={value!r} must be a number")
    return float(value)


def whole(name: str, value: Any) -> int:
    """A whole number, 1 or more; `name` is the argument that it was given as."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} must be a whole number")
    if value < 1:
        raise ValueError(f"{name}={value!r} must be 1 or more")
    return int(value)


def shard_sizes(source: Source, workers: int | None, at_once: int) -> tuple[int, ...]:
    """Rows of each shard, as far as that is known before they are cut."""
    if workers is None and source.separate:
        return tuple(sum(piece.shape[0] for piece in table.pieces) for table in source.tables)
    return _sizes(source.rows, workers or at_once)


def _sizes(rows: int, shards: int) -> tuple[int, ...]:
    return tuple(rows // shards + (i < rows % shards) for i in range(shards))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be computed, where: rows of each shard, and entries of all that are not zero.

    `stored` is how many bytes are read from files in every round, where they do not fit in memory.
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

    @property
    def share(self) -> float:
        """Entries of the largest shard."""
        return self.entries * max(self.sizes) / max(sum(self.sizes), 1)

    def product(self, width: float) -> float:
        """Operations of a local product with so many columns; few are not faster than memory."""
        return self.share * max(4 * width, READ)


def spectrum(source: Source, rank: int, center: bool, scale: str | None) -> tuple[Array, str]:
    """Leading eigenvalues of the rows, or of a sample of them, and what they are from."""
    d = source.columns
    rows = int(SAMPLE_FLOPS // max(1, min(d, SMALL) * d))
    sample = _sample(source, max(rows, 4 * (rank + EXTRA)))
    taken = sum(piece.shape[0] for piece in sample)
    what = "predicted from all rows"
    if taken < source.rows:
        what = f"predicted from a sample of {taken} rows"
    with Inline() as engine:
        engine.place([Shard(sample, d, source.dtype)])
        prepare(engine, columns(describe(engine, scale), center, scale, engine.dtype))
        if d <= SMALL:
            upper = unpacked(engine.sum(GramTriangle()).packed, d)
            return np.maximum(np.linalg.eigvalsh(upper, "U")[::-1], 0.0), what
        width = min(3 * (rank + EXTRA), taken, d)
        start = random_basis(d, width, np.random.default_rng(0)).astype(engine.dtype)
        states = local_ritz(
            engine, State(start), min(rank, width), proposal="residual", steps=1, start="random"
        )
        values = [state.values[:width] for state, _ in zip(states, range(5), strict=False)]
        return np.maximum(values[-1], 0.0), what


def _sample(source: Source, rows: int) -> tuple[Any, ...]:
    """All rows, or stretches of them from all over the data."""
    if source.rows <= rows:
        return tuple(source.pieces)
    parts, step = [], max(1, source.rows // rows)
    for piece in source.pieces:
        length = piece.shape[0]
        stretch = max(1, min(256, length // step))
        parts += [
            cut(piece, start, min(start + stretch, length))
            for start in range(0, length, stretch * step)
        ]
    return tuple(parts)


def costs(
    task: Problem, found: tuple[Array, str] | None, methods: Sequence[str] | None = None
) -> Plan:
    """Compare methods, by default all, on a problem whose eigenvalues are known or not."""
    d, k, r = task.columns, task.rank, task.width
    typical = DECAY ** np.arange(min(d, SMALL))
    values, basis = found or (typical, "typical: nothing is known of the spectrum")
    rows = [
        _cost(task, name, *of(task, Decay(values, d, k, r, task.tol)))
        for name, of in COST_MODELS.items()
        if methods is None or name in methods
    ]
    order = sorted(rows, key=lambda row: (not row.feasible, row.seconds))
    question = (
        f"rank {k} of {sum(task.sizes)} x {d} in {len(task.sizes)} shards to {task.tol:.0e}; "
        f"bytes are per worker, with set-up and factors"
    )
    return Plan(tuple(order), basis, question)


@dataclass(frozen=True, slots=True)
class Decay:
    """How many rounds a spectrum makes of a tolerance."""

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

    def degree(self, start: float) -> float:
        """Degree of the Chebyshev polynomial that brings the error from `start` to `tol`."""
        if self.width >= len(self.values):
            return 1.0
        beyond = self.values[self.width] or np.finfo(float).tiny
        gap = max(self.values[self.rank - 1] / beyond - 1, 1e-12)
        return float(np.arccosh(max(start / self.tol, 1.0)) / np.arccosh(1 + 2 * gap))

    def merged(self) -> int:
        """After a merged start the space has all but what is beyond that; narrow blocks follow."""
        start = min(MERGED * self.rank, self.columns)
        if start >= self.columns or start >= len(self.values):
            return 1
        beyond = self.values[start] or np.finfo(float).tiny
        gap = max(self.values[self.rank - 1] / beyond - 1, 1e-12)
        error = MERGED_ERROR / (1 + gap) ** 1.5
        degree = max(0.0, log(error / 2 / self.tol) / float(np.arccosh(1 + 2 * gap)))
        return min(2 + ceil(degree), 2 + ceil((self.columns - start) / self.rank))

    def lanczos(self, block: int) -> int:
        """Narrow blocks from a random start: about 2.5 columns more for each that is asked for."""
        rounds = 1 + 0.7 * self.degree(sqrt(self.columns * self.rank))
        more = 2.5 * self.rank * (1 / block - 1 / self.width)
        return min(ceil(rounds + more), ceil(self.columns / block))


Estimate = tuple[dict[str, Any], list[Round], float, str, bool]


def _cost(
    task: Problem, name: str, options: dict[str, Any], records: list[Round], flops: float,
    note: str, reaches: bool,
) -> Cost:  # fmt: skip
    method = options["method"]
    iterate = Ledger(tuple(records))
    ledger = Ledger((*_setup(task), *records, *_factors(task, method)))
    need = workspace_bytes(method, task.columns, task.width)
    if need > task.memory:
        reaches, note = False, f"takes {size(need)} of memory, {size(task.memory)} are there"
    seconds = (
        ledger.hops * task.latency
        + (ledger.bytes_up + ledger.bytes_down) / task.bandwidth
        + (flops + task.product(2 * task.width)) / task.flops
        + ledger.rounds * task.stored / READING
    )
    m = len(task.sizes)
    return Cost(name, options, iterate.rounds, iterate.hops, ledger.bytes_up / m,
                ledger.bytes_down / m, flops, seconds, reaches, note, ledger)  # fmt: skip


def workspace_bytes(method: str, columns: int, width: int) -> float:
    """Bytes that a method holds besides the rows, at the coordinator and one worker."""
    if method in ONE_ROUND:
        return 4 * columns**2 * 8
    spaces = {"local_ritz": 2 * RESTART, "block_krylov": 2 * RESTART, "block_lanczos": RESTART + 1}
    return (6 + spaces.get(method, 0)) * columns * width * 8


def _round(task: Problem, name: str, down: float, up: float, bytes_each: int | None = None,
           only: int | None = None, phase: str = "iterate") -> Round:  # fmt: skip
    """Make the record of a round: words down and up per shard; `only` some shards are asked."""
    shards = len(task.sizes) if only is None else only
    item = bytes_each or task.itemsize
    words = int(shards * down), int(shards * up)
    return Round(
        phase=phase,
        task=name,
        messages=2 * shards,
        words_up=words[1],
        words_down=words[0],
        bytes_up=item * words[1],
        bytes_down=item * words[0],
        exchange=only is not None and only < len(task.sizes),
    )


def _setup(task: Problem) -> list[Round]:
    d = task.columns
    extremes = task.scale in ("max", "minmax")
    shifts = task.center or task.scale == "minmax"
    down = d * (shifts + (task.scale is not None))
    return [
        _round(task, "Describe", 0, (4 if extremes else 2) * d, 8, phase="setup"),
        _round(task, "Prepare", down, 0, 8, phase="setup"),
    ]


def _factors(task: Problem, method: str) -> list[Round]:
    r = task.rank if method in RANK_ONLY else task.width
    m = len(task.sizes)
    up = sum(min(s, r) * r for s in task.sizes) / m
    up += 0 if task.center else r + r * (r + 1) // 2  # what variances are made of
    return [_round(task, "Triangle", task.columns * r, up, phase="factors")]


RANK_ONLY = ("gram", "tsqr", "uda", "wda", "aligned_average", "dr_svd")


def _dpi(task: Problem, decay: Decay) -> Estimate:
    rounds, block = decay.power(), task.columns * task.width
    records = [_round(task, "PowerSteps", block, block)] * rounds
    return {"method": "dpi"}, records, rounds * task.product(task.width), "", rounds < MOST_ROUNDS


def _halving(task: Problem, decay: Decay) -> Estimate:
    power, block = decay.power(), task.columns * task.width
    rounds = max(power - STEPS, ceil(power / 2))
    many = min(2, rounds)  # rounds of 4 and 2 steps send the basis and the exact product, too
    records = [_round(task, "PowerSteps", block, 3 * block)] * many
    records += [_round(task, "PowerSteps", block, block)] * (rounds - many)
    flops = (rounds + STEPS) * task.product(task.width)
    return ({"method": "local_power", "steps": STEPS, "schedule": "halving"}, records, flops,
            "with schedule halving", rounds < MOST_ROUNDS)  # fmt: skip


def _ritz_round(task: Problem) -> float:
    """Operations of the coordinator in a round."""
    return 8.0 * task.columns * RESTART * task.width**2


def _merged(method: str) -> Callable[[Problem, Decay], Estimate]:
    def way(task: Problem, decay: Decay) -> Estimate:
        d, k, rounds = task.columns, task.rank, decay.merged()
        wide = min(max(MERGED * k, task.width), d)
        found = sum(min(s, wide) for s in task.sizes)
        start = _round(task, "LeadingFactor", 0, d * found / len(task.sizes))
        first = d * min(max(found, task.width), wide)
        records = [start, *[_round(task, "PowerSteps", first, first)] * min(1, rounds - 1)]
        records += [_round(task, "PowerSteps", d * k, d * k)] * (rounds - 2)
        alone = d * task.share + 9.0 * d**3 if d <= GRAM_COLUMNS else 5 * task.product(wide)
        merges = len(task.sizes) * 24.0 * d * wide**2
        flops = alone + merges + task.product(wide) + (rounds - 2) * task.product(k)
        return {"method": method}, records, flops + rounds * _ritz_round(task), "", True

    return way


def _lanczos(task: Problem, decay: Decay) -> Estimate:
    wide = min(BLOCK, task.width)
    rounds, block = decay.lanczos(wide), task.columns * wide
    more = task.columns * min(LanczosState.PROBES, task.columns - wide)  # once the answer is near
    plain = _round(task, "PowerSteps", block, block)
    probed = _round(task, "PowerSteps", block + more, block + more)
    early = min(rounds, max(2, rounds // 3))
    records = [plain] * early + [probed] * (rounds - early)
    flops = rounds * (task.product(wide) + wide / task.width * _ritz_round(task))
    return {"method": "block_lanczos"}, records, flops, "", True


def _exact(method: str) -> Callable[[Problem, Decay], Estimate]:
    def way(task: Problem, decay: Decay) -> Estimate:
        d = task.columns
        up = d * (d + 1) / 2
        name = "GramTriangle" if method == "gram" else "LocalTriangle"
        local = d * task.share * (1 if method == "gram" else 2)
        merges = (len(task.sizes) - 1) * (10 / 3 if method == "tsqr" else 1 / d) * d**3
        note = "" if method == "tsqr" else "half the digits of small singular values"
        return ({"method": method}, [_round(task, name, 0, up, 8)], local + merges + 9.0 * d**3,
                note, method == "tsqr" or task.tol >= LARGEST_LOSS)  # fmt: skip

    return way


def _average(method: str) -> Callable[[Problem, Decay], Estimate]:
    def way(task: Problem, decay: Decay) -> Estimate:
        vectors = sum(min(s, task.rank) for s in task.sizes)
        up = vectors * (task.columns + (method == "wda")) / len(task.sizes)
        records = [_round(task, "TopVectors", 0, up)]
        flops = 20 * task.product(task.rank)
        return {"method": method}, records, flops, "does not reach a tolerance", False

    return way


def _dr_svd(task: Problem, decay: Decay) -> Estimate:
    d, m = task.columns, len(task.sizes)
    wide = task.rank + (d - task.rank) // 4
    triangle = sum(min(s, wide) * wide for s in task.sizes) / m
    records = [
        _round(task, "PowerSteps", d * wide, d * wide),
        _round(task, "Triangle", d * wide, triangle),
        _round(task, "ProjectRows", d * wide + triangle, d * wide),
    ]
    return (
        {"method": "dr_svd"},
        records,
        3 * task.product(wide),
        "does not reach a tolerance",
        False,
    )


COST_MODELS: dict[str, Callable[[Problem, Decay], Estimate]] = {
    "local_ritz": _merged("local_ritz"),
    "block_krylov": _merged("block_krylov"),
    "block_lanczos": _lanczos,
    "gram": _exact("gram"),
    "tsqr": _exact("tsqr"),
    "dpi": _dpi,
    "local_power": _halving,
    "uda": _average("uda"),
    "wda": _average("wda"),
    "aligned_average": _average("aligned_average"),
    "dr_svd": _dr_svd,
}
AUTOMATIC = ("local_ritz", "block_krylov", "block_lanczos", "gram", "tsqr")
LEAN = 1 << 30  # bytes of work from which it should not be many times what the rows take


def exceeds_rows(method: str, columns: int, width: int, entries: int) -> bool:
    """Whether a method would hold far more than the rows themselves take, and that is much."""
    need = workspace_bytes(method, columns, width)
    return need > max(LEAN, 3 * 12 * entries + 5 * 8 * columns * width)
