"""Methods side by side on the same rows: what each takes, and how near it comes to the answer."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from textwrap import wrap
from typing import Any

import numpy as np

from localpower.api import svd
from localpower.core.certificate import rayleigh_ritz
from localpower.core.checks import sine, whole
from localpower.core.errors import ConvergenceWarning, DataHint, LocalPowerError
from localpower.core.ledger import Record
from localpower.core.linalg import Array
from localpower.core.text import WIDE, counted, duration, frame, html_table, size, table
from localpower.data.readers.clusters import is_lazy
from localpower.data.reading import read
from localpower.data.source import Source, open_source
from localpower.diagnostics.distance import subspace_distance
from localpower.engines.base import Engine
from localpower.methods import CERTIFIED, EXACT, REGISTRY, Method, methods_from
from localpower.methods.costs import SMALL
from localpower.methods.state import State
from localpower.options import hinting
from localpower.progress import Progress
from localpower.result import Result
from localpower.show import figures
from localpower.stopping import returns_certified_basis

FAILURES = (LocalPowerError, ValueError, MemoryError)
LARGEST = 4e8 / 8  # entries of a matrix that a method may form unless it is named
REFERENCE_TOL, REFERENCE_ROUNDS = 1e-12, 200
KEPT = ("version", "rank", "rows", "columns", "dtype", "workers", "partition", "engine", "center",
        "scale", "seed")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """The progress of a run after a round: rounds, bytes and seconds so far, and the true angle.

    The angle is that of the components `svd` would return if it ended there; None if the state
    does not show it.
    """

    rounds: int
    bytes: int
    seconds: float
    angle: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """What one method took.

    Attributes
    ----------
    method : str
        As you named it, with its options.
    rounds, hops : int
        Rounds and hops of the iterations; a hop is a round or an exchange with some shards.
    bytes, bytes_in_all : int
        Bytes up and down, over all shards: of the iterations, and with set-up and factors.
    seconds, seconds_in_all : float
        Seconds of the iterations and of the whole call, without the time to measure angles.
    angle : float
        Sine of the angle between the components and those of the reference.
    bound : float or None
        The upper bound that the method itself certifies for that sine.
    reason : str
        Why the run ended, as ``Result.reason``.
    points : tuple of Point
        One for every round.
    result : Result
        What `svd` returned.
    """

    method: str
    rounds: int
    hops: int
    bytes: int
    bytes_in_all: int
    seconds: float
    seconds_in_all: float
    angle: float
    bound: float | None
    reason: str
    points: tuple[Point, ...]
    result: Result


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """Methods side by side, fastest first. It prints as a table, and `plot` draws it.

    Attributes
    ----------
    rows : tuple of Row
        The methods that ran; ``comparison["dpi"]`` is one of them.
    missing : dict
        Why the other methods did not run, by name.
    reference : str
        The method whose answer the angles are measured to.
    run : dict
        What you asked for and what it ran on: tolerance, seed, shape.
    """

    rows: tuple[Row, ...]
    missing: Mapping[str, str]
    reference: str
    run: Mapping[str, Any]

    def __getitem__(self, method: str) -> Row:
        for row in self.rows:
            if row.method == method:
                return row
        if method in self.missing:
            raise KeyError(f"{method!r} did not run: {self.missing[method]}")
        known = ", ".join(repr(row.method) for row in self.rows) or "none"
        raise KeyError(f"no method {method!r} in this comparison: the methods that ran are {known}")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join([row.method for row in self.rows] + [*self.missing])}>"

    def __str__(self) -> str:
        lines = [part for line in self._about() for part in wrap(line, WIDE)]
        return "\n".join([*lines, table(_HEAD, self._cells())])

    def _repr_html_(self) -> str:
        return html_table(self._about(), _HEAD, self._cells())

    def _cells(self) -> list[tuple[str, ...]]:
        return [*map(_cells, self.rows), *self.missing.items()]

    def _about(self) -> list[str]:
        run = self.run
        return [
            f"rank {run['rank']} of {run['rows']} x {run['columns']} {run['dtype']} in "
            f"{counted(run['workers'], 'shard')}, seed {run['seed']}: to {run['tol']:g} in at most "
            f"{counted(run['max_rounds'], 'round')}",
            f"angle: the sine of the angle to the answer of {self.reference}; bound: as certified",
            "moved and time: of the iterations, then in all, with set-up and factors",
        ]

    def to_frame(self) -> Any:
        """A pandas data frame with one line for each method that ran; `missing` has the others."""
        return frame("Comparison.to_frame", Row, self.rows, without=["points", "result"])

    def as_dict(self) -> dict[str, Any]:
        """Everything but the results, ready for JSON."""
        return {
            "run": dict(self.run),
            "reference": self.reference,
            "rows": [_plain(row) for row in self.rows],
            "missing": dict(self.missing),
        }

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the true angle against rounds and against bytes.

        Methods that do not iterate are single marks; the dashed line is the tolerance. With a
        `path`, it writes a ``.png`` or ``.svg`` file and returns the path. Without one, it returns
        the matplotlib ``Figure``, which notebooks show.
        """
        tol, reference = self.run["tol"], self.reference.split(",")[0]
        return figures.compare(self.rows, path, self._about()[0], tol, reference)


@hinting
def compare(
    data: Any,
    rank: float,
    *,
    methods: str | Method | Sequence[str | Method] | Mapping[str, Any] | None = None,
    tol: float = 1e-6,
    max_rounds: int = 100,
    workers: int | None = None,
    center: bool = False,
    scale: str | None = None,
    partition: str = "contiguous",
    memory: int | str | None = None,
    engine: str | Engine = "threads",
    rng: Any = 0,
    progress: bool | Progress | Callable[[str], Any] | None = None,
) -> Comparison:
    """Run methods on the same shards with the same seed, and measure what each takes.

    Every method runs as ``svd(data, rank, method=…, tol=tol, max_rounds=max_rounds)``, and the true
    angle is measured after every round; the time for that is not counted. The reference answer is
    that of ``"tsqr"`` up to 2000 columns, and of ``"local_ritz"`` to 1e-12 beyond.

    Parameters
    ----------
    data
        What `svd` takes.
    rank : int or float
        The number of singular triplets, k; or a share such as 0.95, for which the reference answer
        gives the number.
    methods : str, Method, sequence of these, or dict, optional
        Names, optionally with options: ``"local_power:steps=8,schedule=halving"``; or one text with
        several, separated by commas. A dict gives them names of your own:
        ``{"p = 2": "local_power:steps=2"}``. By default, methods that would form a matrix of more
        than 400 MB, or one too large for `memory`, are left out; the table says so.
    tol, max_rounds
        As in `svd`: a method that can certify the angle stops at `tol`.
    workers, center, scale, partition, memory, engine
        As in `svd`.
    rng : int, numpy.random.Generator or None
        Seed of the random start and of the shuffle, the same for all.
    progress : bool or callable, optional
        As in `svd`; or a function that is called with a text before each method.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 20)) * np.arange(20, 0, -1)
    >>> found = lp.compare(X, 3, methods="local_ritz,dpi,uda", workers=4)
    >>> found["local_ritz"].rounds < found["dpi"].rounds
    True
    >>> found["local_ritz"].angle < 1e-6 < found["uda"].angle
    True
    """
    asked = shown() if methods is None else methods_from(methods)
    sine(tol)
    whole("max_rounds", max_rounds)
    display = Progress.of(False if callable(progress) else progress)
    if rng is None or isinstance(rng, np.random.Generator):
        rng = int(np.random.default_rng(rng).integers(2**63))

    def tell(text: str) -> None:
        display.label = text
        if callable(progress):
            progress(text)

    same = {"center": center, "scale": scale, "partition": partition, "engine": engine, "rng": rng}
    same |= {"progress": display}
    with ExitStack() as stack:
        stack.enter_context(display)
        display.stage("reading data")
        source = _opened(data, memory, workers)
        if source is not data:
            stack.callback(source.close)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", ConvergenceWarning)  # the table says what happened
        tell("the answer to measure angles to")
        answer, reference = _reference(source, rank, same | {"workers": workers})
        rank = int(answer.run["rank"])  # of a share, as many as the answer has
        warnings.simplefilter("ignore", DataHint)  # which was given once
        if not answer.run["held"]:
            same |= {"workers": workers or answer.run["workers"]}
        same |= {"tol": tol, "max_rounds": max_rounds}
        rows, missing = [], {}
        for number, (name, method) in enumerate(asked.items(), start=1):
            tell(f"{number} of {len(asked)}: {name}")
            if methods is None and (why := _too_large(method, source, rank)):
                missing[name] = why
                continue
            try:
                how = same | {"method": method}
                rows.append(_measure(name, source, rank, how, answer.components.T))
            except FAILURES as error:
                missing[name] = f"failed: {_said(error)}"
    run = {name: answer.run[name] for name in KEPT} | {"tol": tol, "max_rounds": max_rounds}
    order = sorted(rows, key=lambda row: row.seconds)
    return Comparison(tuple(order), missing, reference, run)


def _opened(data: Any, memory: int | str | None, workers: int | None) -> Source:
    """Rows to compare on; what is lazy stays where it is, if the engine can work there."""
    if is_lazy(data):
        return read(data, memory=memory)
    return open_source(data, memory=memory, shards=workers)


def shown() -> dict[str, Method]:
    """The methods that are compared where none is named."""
    forms = REGISTRY.values()
    every = [form.build(**options) for form in forms for options in form.kind.compared]
    return {str(method): method for method in every}


def _reference(source: Source, rank: float, same: dict[str, Any]) -> tuple[Result, str]:
    """Find the answer, and say whose it is."""
    d = source.columns
    if d <= SMALL and EXACT.workspace(d, d) <= source.memory:
        return svd(source, rank, EXACT, **same), EXACT.name
    same |= {"tol": REFERENCE_TOL, "max_rounds": REFERENCE_ROUNDS}
    answer = svd(source, rank, CERTIFIED, **same)
    angle = answer.history[-1].angle
    return answer, CERTIFIED.name + ("" if angle is None else f", certified to {angle:.0e}")


def _too_large(method: Method, source: Source, rank: int) -> str:
    """Why a method is left out: what it forms is too large."""
    entries = method.largest(source.columns, rank)
    need = 4 * 8 * entries
    if need > source.memory:
        return f"left out: takes {size(need)}, and memory is {size(source.memory)}"
    if entries > LARGEST:
        return f"left out: forms a matrix of {size(8 * entries)}; name it to run it"
    return ""


def _said(error: Exception) -> str:
    """The message in one line: of a traceback, what it is of and its end."""
    lines = str(error).split("\n") if str(error) else [type(error).__name__]
    last = [line for line in lines[1:] if line.strip()][-1:]
    return " ".join([lines[0], *last])


class Watch:
    """Measures the true angle after every round, and how long that takes; a callback of `svd`.

    Columns are in order if there are no more than the rank, and those of LocalRitz. Those of others
    are turned by Rayleigh-Ritz when the next state tells their image.
    """

    silent = True  # prints nothing that progress would be in the way of

    def __init__(self, answer: Array, certifies: bool) -> None:
        self.answer = answer
        self.certifies = certifies  # a run that ends early returns what is certified
        self.angles: list[float | None] = []
        self.spent: list[float] = []

    def __call__(self, record: Record, state: State) -> None:
        """Look at a state."""
        start = time.perf_counter()
        if self.angles and self.angles[-1] is None and state.exact is not None:
            self.angles[-1] = self._angle(rayleigh_ritz(*state.exact)[1])
        basis: Array | None = state.basis
        told = state.joined is not None or returns_certified_basis(record)
        if self.certifies and told and state.told is not None:
            basis = rayleigh_ritz(*state.told)[1]
        elif not (state.ordered and state.exact is not None):
            basis = basis if state.basis.shape[1] == self.answer.shape[1] else None
        self.angles.append(None if basis is None else self._angle(basis))
        self.spent.append(time.perf_counter() - start)

    def _angle(self, basis: Array) -> float:
        return subspace_distance(self.answer, basis[:, : self.answer.shape[1]])


def _measure(name: str, source: Source, rank: int, options: dict[str, Any], answer: Array) -> Row:
    """Run a method, watched."""
    watch, start = Watch(answer, options["tol"] > 0), time.perf_counter()
    result = svd(source, rank, callback=watch, **options)
    whole = time.perf_counter() - start - sum(watch.spent)
    iterate, ledger = result.ledger.phase("iterate"), result.ledger
    angle = subspace_distance(answer, result.components.T)
    points = _points(result.history, [*watch.angles[:-1], angle], watch.spent, iterate.rounds)
    return Row(
        method=name,
        rounds=iterate.rounds,
        hops=iterate.hops,
        bytes=iterate.bytes_up + iterate.bytes_down,
        bytes_in_all=ledger.bytes_up + ledger.bytes_down,
        seconds=points[-1].seconds,
        seconds_in_all=whole,
        angle=angle,
        bound=result.history[-1].angle,
        reason=result.reason,
        points=points,
        result=result,
    )


def _points(
    history: Sequence[Record], angles: list[float | None], spent: list[float], rounds: int
) -> tuple[Point, ...]:
    """Add up; the time for a measurement is in the seconds of the round after it."""
    moved = np.cumsum([record.bytes_up + record.bytes_down for record in history]).tolist()
    seconds = np.cumsum([record.seconds for record in history]) - np.cumsum([0.0, *spent[:-1]])
    numbers = [*(record.round for record in history[:-1]), rounds]  # one record may be of several
    return tuple(map(Point, numbers, moved, seconds.tolist(), angles))


_HEAD = ("method", "rounds", "hops", "moved", "in all", "time", "in all", "angle", "bound",
         "outcome")  # fmt: skip
# Reasons that would be riddles in a table; the others speak for themselves.
OUTCOMES = {"angle": "certified", "residual": "certified", "callback": "stopped", "end": "done"}


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.method,
        str(row.rounds),
        str(row.hops),
        size(row.bytes),
        size(row.bytes_in_all),
        duration(row.seconds),
        duration(row.seconds_in_all),
        f"{row.angle:.1e}",
        "" if row.bound is None else f"{row.bound:.1e}",
        OUTCOMES.get(row.reason, row.reason),
    )


def _plain(row: Row) -> dict[str, Any]:
    plain = {entry.name: getattr(row, entry.name) for entry in fields(row)[:-2]}
    return plain | {"points": [asdict(point) for point in row.points]}
