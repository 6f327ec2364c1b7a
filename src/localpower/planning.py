"""What a run will cost, before it is run: the plan, and the problem that it is made for.

Where there are data, rounds follow from how fast the spectrum of the rows decays, or of a sample of
them; else a typical one is assumed (`methods.costs.DECAY`), and the plan says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, sqrt
from numbers import Number
from typing import Any

import numpy as np

from localpower.core.checks import count_or_share, one_of, real, sine, whole
from localpower.core.linalg import Array
from localpower.core.machine import cores
from localpower.core.share import Share
from localpower.core.text import counted, duration, frame, html_table, size, table
from localpower.data.memory import budget
from localpower.data.reading import open_part, sampled
from localpower.data.source import Source
from localpower.engines.base import Engine
from localpower.engines.calibration import recalled, told
from localpower.engines.inline import Inline
from localpower.engines.registry import DEFAULT, connect
from localpower.methods import leading_values
from localpower.methods.base import EXTRA
from localpower.methods.costs import SMALL, TYPICAL, Cost, Problem, completed, costs, explain
from localpower.methods.growing import guessed
from localpower.methods.scaling import SCALES, columns, describe, prepare
from localpower.options import hinting
from localpower.worker.replies import unpacked
from localpower.worker.shard import EngineBlock, Shard
from localpower.worker.tasks import GramTriangle

NETWORKS = {  # seconds of a hop, bytes a second
    "one machine": (1e-4, 5e9),
    "rack": (1e-4, 1.25e9),
    "data centre": (5e-4, 1.25e9),
    "wide area": (5e-2, 1.25e7),
}
FLOPS = 8e10  # a second, of one worker
TOLERANCE = 1e-8
TINY = 1e-14  # tolerance that is planned for where all rounds are to be done
SAMPLE_FLOPS = 1e11  # that a plan may spend on looking at the data
MANY = 1 << 40  # rows or columns, where it is not known how many there are
HEAD = ("method", "rounds", "hops", "up", "down", "flops", "seconds", "note")


@dataclass(frozen=True, slots=True)
class Plan:
    """The costs of all methods, cheapest first. Prints as a table, and has `to_frame`.

    Attributes
    ----------
    rows : tuple of Cost
        One for each method, those that miss the tolerance last; ``plan["dpi"]`` is one of them.
    basis : str
        What the rounds are predicted from.
    question : str
        What you asked for.
    speeds : str
        What seconds are predicted from, if you named an engine.
    """

    rows: tuple[Cost, ...]
    basis: str
    question: str
    speeds: str = ""

    @property
    def choice(self) -> Cost:
        """The cheapest that reaches the tolerance."""
        return self.rows[0]

    def __getitem__(self, method: str) -> Cost:
        for row in self.rows:
            if method in (row.method, row.method.partition(":")[0]):
                return row
        known = ", ".join(repr(row.method) for row in self.rows)
        raise KeyError(f"no method {method!r} in this plan: take one of {known}")

    def __iter__(self) -> Iterator[Cost]:
        return iter(self.rows)

    @property
    def why(self) -> str:
        """The reason for the choice, in a sentence."""
        return explain(self.rows, self.basis)

    def __repr__(self) -> str:
        return f"<Plan: {self.why}>"

    def __str__(self) -> str:
        return "\n".join([*self._about(), table(HEAD, map(_cells, self.rows))])

    def _repr_html_(self) -> str:
        return html_table(self._about(), HEAD, map(_cells, self.rows))

    def to_frame(self) -> Any:
        """The same as a pandas data frame, one line for each method."""
        return frame("Plan.to_frame", Cost, self.rows, without=["ledger"])

    def _about(self) -> list[str]:
        return [self.question, f"rounds are {self.basis}", *[self.speeds] * bool(self.speeds)]


def _cells(row: Cost) -> tuple[str, ...]:
    return (
        row.method,
        str(row.rounds),
        str(row.hops),
        size(row.bytes_up),
        size(row.bytes_down),
        f"{row.flops:.1e}",
        duration(row.seconds),
        row.note,
    )


@hinting
def plan(
    data: Any,
    rank: float,
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
    engine: Any = None,
    measure: bool = False,
) -> Plan:
    """Predict what every method would cost, without running any.

    Parameters
    ----------
    data
        The shape ``(n, d)``, or what `svd` takes. The plan looks at a part of the data to see how
        fast the spectrum decays.
    rank : int or float
        The number of singular triplets, k; or a share such as 0.95, which is counted in that part
        of the data.
    workers : int, optional
        The number of shards; one per core by default, or your own shards.
    tol : float, optional
        The sine of the angle to reach; 1e-8 by default, 3e-4 for float32.
    width : int, optional
        The number of columns to iterate, ``rank + 5`` by default.
    latency : float or str
        Seconds per hop; or ``"one machine"``, ``"rack"``, ``"data centre"``, ``"wide area"``,
        which stand for a latency and a bandwidth.
    bandwidth : float, optional
        Bytes per second that the coordinator's link carries.
    flops : float
        Operations per second of one worker.
    center, scale, dtype, memory
        As in `svd`; `dtype` only if `data` is a shape, ``"float64"`` by default.
    engine
        Plan for this engine, as `svd` takes it, instead of `latency`, `bandwidth` and `flops`: with
        the figures measured on it, or else typical ones. By default it has as many
        shards as it works on at once.
    measure : bool
        Measure the engine, by default ``"threads"``, if that was not done before.

    Returns
    -------
    Plan

    Examples
    --------
    >>> import localpower as lp
    >>> plan = lp.plan((1_000_000, 5000), 10, workers=100, tol=1e-6, latency="wide area")
    >>> plan.choice.method, plan["gram"].bytes_up
    ('local_ritz:start=merged:40', 100101320.0)
    """
    place = Place(0, *_network(latency, bandwidth), flops)
    if engine is not None or measure:
        given = {"latency": latency, "bandwidth": bandwidth, "flops": flops}
        place = Place.of(DEFAULT if engine is None else engine, measure, given)
    wanted = count_or_share("rank", rank)
    workers = None if workers is None else whole("workers", workers)
    width = None if width is None else whole("width", width)
    if not 0 < real("flops", flops) < inf:
        raise ValueError(f"flops={flops!r} must be above 0: operations a second of one worker")
    if scale is not None:
        one_of("scale", scale, SCALES)
    tol = None if tol is None else sine(tol, zero=False)
    about = KnownData.of(data, wanted, workers, center, scale, dtype, memory, place)
    (n, d), rank = about.shape, about.rank
    if not 1 <= rank <= min(n, d):
        raise ValueError(f"rank={rank!r}: take 1 to {min(n, d)} for data of {n} x {d}")
    if width is not None and not rank <= width <= d:
        raise ValueError(f"width={width}: take {rank} (the rank) to {d} (the columns)")
    problem = Problem(
        sizes=about.sizes,
        columns=d,
        entries=about.entries,
        itemsize=about.dtype.itemsize,
        rank=rank,
        width=min(rank + EXTRA, d) if width is None else width,
        tol=tolerance(about.dtype) if tol is None else tol,
        memory=about.memory,
        center=bool(center),
        scale=scale,
        latency=place.latency,
        bandwidth=place.bandwidth,
        flops=place.flops,
        stored=about.stored,
        only_sums=place.only_sums,
        at_once=place.size,
    )
    question = (
        f"rank {rank} of {n} x {d} in {counted(len(problem.sizes), 'shard')} to {problem.tol:.0e}; "
        "bytes are per worker, with set-up and factors"
    )
    rows = tuple(cost for _, cost in costs(problem, about.values))
    return Plan(rows, about.basis, question, place.text)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is planned to be: shards at once (0 for all), and what is known of its speed."""

    size: int
    latency: float
    bandwidth: float
    flops: float
    only_sums: bool = False
    text: str = ""

    @classmethod
    def of(cls, address: Any, measure: bool, given: dict[str, Any]) -> Place:
        """Ask an engine; one that is opened for this is closed again."""
        usual = {"latency": "data centre", "bandwidth": None, "flops": FLOPS}
        for name, value in given.items():
            if value != usual[name]:
                raise ValueError(
                    f"{name}={value!r} is what engine= and measure= stand for: leave one of them "
                    "out"
                )
        engine = connect(address)
        try:
            known = engine.measure() if measure else recalled(engine.address)
            name = engine.address or type(engine).__name__.lower()
            how = f"measured on {known.measured}" if known else "as is usual; not measured"
            engine.reckon_with(known)
            speeds = engine.latency, engine.bandwidth, engine.flops
            text = f"on {name} {told(*speeds)}, {how}"
            return cls(engine.size, *speeds, engine.only_sums, text)
        finally:
            if engine is not address:
                engine.close()


@dataclass(frozen=True, slots=True, eq=False)
class KnownData:
    """What is known of the data of a plan: their shape, or the data themselves."""

    shape: tuple[int, int]
    rank: int
    entries: int
    dtype: np.dtype[Any]
    memory: float
    sizes: tuple[int, ...]
    stored: float = 0.0
    values: Array | None = None
    basis: str = TYPICAL

    @classmethod
    def of(
        cls,
        data: Any,
        rank: float,
        workers: int | None,
        center: bool,
        scale: str | None,
        dtype: str | None,
        memory: int | str | None,
        place: Place,
    ) -> KnownData:
        """Take the shape, or open the data and look at a part of them."""
        shape, at_once = _shape(data), place.size or cores()
        if shape is not None:
            n, d = shape
            if isinstance(rank, float):
                raise ValueError(
                    f"rank={rank!r} is a share, and a shape does not tell how many components "
                    "explain it: give data, or a whole number"
                )
            sizes = _sizes(n, workers or at_once)
            return cls(shape, int(rank), n * d, _kind(dtype), budget(memory), sizes)
        if dtype is not None:
            raise ValueError(
                f"dtype={dtype!r} is for a shape, and data have their own; leave it out, or give "
                "what localpower.read(data, dtype=…) returns"
            )
        least = 4 * (guessed(rank, MANY, MANY) + EXTRA)
        source, rows = open_part(data, least, memory, workers)
        try:
            shape = rows, source.columns
            entries = Shard(source.pieces, source.columns, source.dtype).entries
            entries = entries * rows // source.rows
            most = guessed(rank, *shape)
            values, basis, trace = spectrum(source, most, center, scale, rows)
            count = _counted(rank, values, trace) if isinstance(rank, float) else most
            sizes, stored = shard_sizes(source, workers, at_once, rows), bytes_per_pass(source)
            if rows > source.rows and entries * source.dtype.itemsize > source.memory:
                stored = float(entries * source.dtype.itemsize)
            kept, values = (source.dtype, source.memory), completed(values, trace, min(shape))
            return cls(shape, count, entries, *kept, sizes, stored, values, basis)
        finally:
            if source is not data:
                source.close()


def problem_of(
    source: Source,
    engine: Engine,
    workers: int | None,
    rank: int,
    width: int,
    tol: float,
    center: bool,
    scale: str | None,
) -> Problem:
    """What a run on an engine is about, for the automatic choice."""
    return Problem(
        sizes=shard_sizes(source, workers, engine.size),
        columns=source.columns,
        entries=Shard(source.pieces, source.columns, source.dtype).entries,
        itemsize=source.dtype.itemsize,
        rank=rank,
        width=width,
        tol=tol or TINY,
        memory=source.memory,
        center=center,
        scale=scale,
        latency=engine.latency,
        bandwidth=engine.bandwidth,
        flops=engine.flops,
        stored=bytes_per_pass(source),
        only_sums=engine.only_sums,
        most_columns=engine.most_columns,
        at_once=engine.size,
    )


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
        seconds, usual = real("latency", latency), NETWORKS["data centre"][1]
    rate = usual if bandwidth is None else real("bandwidth", bandwidth)
    if not (0 <= seconds < inf and rate > 0):
        raise ValueError(f"latency={latency!r} may be 0, and bandwidth={bandwidth!r} must be above")
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


def shard_sizes(
    source: Source, workers: int | None, at_once: int, rows: int | None = None
) -> tuple[int, ...]:
    """Rows of each shard, as far as that is known before they are cut; `rows` are those of all."""
    if workers is None and source.separate:
        return tuple(sum(piece.shape[0] for piece in table.pieces) for table in source.tables)
    return _sizes(rows or source.rows, workers or at_once)


def _sizes(rows: int, shards: int) -> tuple[int, ...]:
    return tuple(rows // shards + (i < rows % shards) for i in range(shards))


def spectrum(
    source: Source, rank: int, center: bool, scale: str | None, of: int
) -> tuple[Array, str, float]:
    """Leading eigenvalues of the rows or of a sample of them, what they are from, and their sum.

    The source may be a part of all rows, `of` which there are so many.
    """
    d = source.columns
    rows = int(SAMPLE_FLOPS // max(1, min(d, SMALL) * d))
    sample = sampled(source, max(rows, 4 * (rank + EXTRA)))
    taken = sum(piece.shape[0] for piece in sample)
    what = "predicted from all rows"
    if taken < of:
        what = f"predicted from a sample of {taken} rows"
    with Inline() as engine:
        engine.place([Shard(sample, d, source.dtype)])
        how = columns(describe(engine, scale), center, scale, engine.dtype)
        trace = how.trace(taken)
        prepare(engine, how)
        if d <= SMALL:
            upper = unpacked(engine.sum(GramTriangle()).packed, d)
            return np.maximum(np.linalg.eigvalsh(upper, "U")[::-1], 0.0), what, trace
        return leading_values(engine, rank, min(3 * (rank + EXTRA), taken, d)), what, trace


def _counted(part: float, values: Array, trace: float) -> int:
    """How many components explain a share, as far as it can be told."""
    count = Share(part, trace, len(values) + 1).count(values)
    if count is None:
        raise ValueError(
            f"rank={part!r} is a share for which the {len(values)} components that a plan looks at "
            "are too few: give a whole number"
        )
    return min(count, len(values))
