"""What there is to see in a run: the numbers that `report` and `pictures` show, computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import frexp, isqrt, log10, sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localpower.core.ledger import Ledger
from localpower.core.linalg import Array, fold
from localpower.data.partition import Partition, partition
from localpower.data.source import Source, open_source
from localpower.diagnostics.heterogeneity import spectral_norm
from localpower.engines.blas import one_blas_thread
from localpower.methods.scaling import dividing
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import cut, is_stored

MOST_POINTS = 2000  # of a scatter
MOST_ROUNDS = 400  # of a curve
SHOWN = 10  # components
POSITIVE, NEGATIVE = (31, 131, 196), (224, 103, 27)  # colours of weights, on light and on dark
IMAGES = 64  # columns, from which a square number of them may be pixels
EXACT_WORK, EXACT_COLUMNS = 5e9, 512  # operations and columns up to which shards' matrices are made
LANCZOS_STEPS = 20
SAFE_EXPONENT = 30
STANDS_OUT = 2.0  # times the median of the others
HOLDS_UP, WAITED = 1.5, 0.1  # times the mean of the shards; share of the time of its rounds
SPARED = 0.05  # of a power of ten that values may be above the axis
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
TIMES = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}


class Entry(Protocol):
    """A record of the history."""

    @property
    def round(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def bytes_up(self) -> int: ...
    @property
    def bytes_down(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def angle(self) -> float | None: ...
    @property
    def residual(self) -> float | None: ...
    @property
    def proven(self) -> bool | None: ...
    @property
    def p(self) -> float | None: ...


class Fitted(Protocol):
    """What is read of a `Result`."""

    @property
    def components(self) -> Array: ...
    @property
    def singular_values(self) -> Array: ...
    @property
    def U(self) -> Array | None: ...
    @property
    def mean(self) -> Array | None: ...
    @property
    def scale(self) -> Array | None: ...
    @property
    def explained_variance_ratio(self) -> Array: ...
    @property
    def history(self) -> Sequence[Entry]: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def run(self) -> Mapping[str, Any]: ...
    @property
    def residuals(self) -> Array | None: ...
    @property
    def converged(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    def transform(self, data: Any) -> Array:
        """Scores of rows."""
        ...


@dataclass(frozen=True, slots=True)
class Point:
    """A round on the curve: what was spent when it was over, and what was known then."""

    rounds: int
    bytes: int
    seconds: float
    steps: int
    angle: float | None
    residual: float | None
    sure: str


def convergence(result: Fitted) -> list[Point]:
    """One point for each round of the method; evenly chosen ones where there are too many."""
    moved = accumulate(record.bytes_up + record.bytes_down for record in result.history)
    spent = accumulate(record.seconds for record in result.history)
    points = [
        Point(record.round, b, s, record.steps, record.angle, record.residual, in_short(record))
        for record, b, s in zip(result.history, moved, spent, strict=True)
    ]
    return [points[i] for i in evenly(len(points), MOST_ROUNDS)]


def evenly(count: int, most: int) -> list[int]:
    """At most so many of ``range(count)``, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(i) for i in np.linspace(0, count - 1, most)]


def grid_of(result: Fitted, grid: tuple[int, int] | None) -> tuple[int, int] | None:
    """How columns are laid out as images: as told, or as a square where nothing speaks against it.

    Names of columns speak against it, unless they are of pixels.
    """
    d = result.components.shape[1]
    if grid is not None:
        rows, columns = grid
        if rows < 1 or columns < 1 or rows * columns != d:
            raise ValueError(
                f"grid={rows}x{columns} has {rows * columns} places, and there are {d} columns; "
                "give rows and columns whose product is that"
            )
        return rows, columns
    names = result.run.get("names")
    pixels = names is None or all(str(name).lower().startswith(("pix", "px")) for name in names)
    side = isqrt(d)
    return (side, side) if side * side == d and d >= IMAGES and pixels else None


def column_names(result: Fitted) -> list[str]:
    """Names of the columns, or their numbers from 0."""
    names, d = result.run.get("names"), result.components.shape[1]
    if names is not None and len(names) == d:
        return [str(name) for name in names]
    return [f"column {number}" for number in range(d)]


@dataclass(frozen=True, slots=True)
class Bar:
    """A round in the timeline, and how its seconds are explained.

    `compute` is the work of all shards, spread evenly over what works at once; `wait` is for the
    slowest shard beyond that; `rest` is for messages, and all else. `slowest` are pairs of seconds
    and shard, `mean` is what a shard took on average.
    """

    phase: str
    task: str
    seconds: float
    compute: float
    wait: float
    rest: float
    mean: float
    timed: int
    replies: int
    slowest: tuple[tuple[float, int], ...]


def timeline(result: Fitted) -> list[Bar]:
    """What rounds took; empty if that is not known."""
    known = result.run.get("timeline") or {}
    at_once = max(int(known.get("at_once", 1)), 1)
    bars = []
    for entry in known.get("rounds", ()):
        timed, seconds = int(entry["timed"]), float(entry["seconds"])
        slowest = tuple((float(time), int(shard)) for time, shard in entry["slowest"])
        even = min(float(entry["work"]) / max(min(at_once, timed), 1), seconds)
        longest = min(max((time for time, _ in slowest), default=0.0), seconds)
        wait = max(longest - even, 0.0)
        bars.append(
            Bar(entry["phase"], entry["task"], seconds, even, wait, seconds - even - wait,
                float(entry["work"]) / max(timed, 1), timed, int(entry["replies"]), slowest)
        )  # fmt: skip
    return bars


@dataclass(frozen=True, slots=True)
class Straggler:
    """A shard that was slowest in `rounds` of `of` rounds, taking `ratio` times the mean.

    `waited` is the share of the time of those rounds that went by in waiting for it.
    """

    shard: int
    rounds: int
    of: int
    ratio: float
    waited: float

    @property
    def holds_up(self) -> bool:
        """Whether the others wait for it again and again."""
        return 2 * self.rounds > self.of and self.ratio >= HOLDS_UP and self.waited >= WAITED


def stragglers(bars: Sequence[Bar]) -> list[Straggler]:
    """Shards by how often they were the slowest, of rounds with several shards."""
    whole = [bar for bar in bars if bar.timed > 1 and bar.slowest and bar.mean > 0]
    shards = {bar.slowest[0][1] for bar in whole}

    def of(shard: int) -> Straggler:
        own = [bar for bar in whole if bar.slowest[0][1] == shard]
        ratio = sum(b.slowest[0][0] for b in own) / sum(b.mean for b in own)
        waited = sum(b.wait for b in own) / (sum(b.seconds for b in own) or 1.0)
        return Straggler(shard, len(own), len(whole), ratio, waited)

    found = [of(shard) for shard in shards]
    return sorted(found, key=lambda s: (-s.rounds, -s.ratio, s.shard))


@dataclass(frozen=True, slots=True, eq=False)
class Unlike:
    """How unlike the whole each shard is, η_i; nan for one without rows.

    `error` is 0, or what estimates may be off by; `names` are those of files, one for a shard.
    """

    etas: Array
    names: tuple[str, ...]
    error: float

    @property
    def farthest(self) -> int:
        """The shard that differs most."""
        return int(np.nanargmax(self.etas))

    @property
    def median(self) -> float:
        """Median of the others."""
        others = np.delete(self.etas, self.farthest)
        return float(np.nanmedian(others)) if np.isfinite(others).any() else 0.0

    @property
    def stands_out(self) -> bool:
        """Whether that shard is far from the others, too."""
        return len(self.etas) > 2 and self.etas[self.farthest] > STANDS_OUT * self.median


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Points of the first two components, and which are of the shard that stands out."""

    points: Array
    of: int
    marked: NDArray[np.bool_]
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What only the rows can tell; a text in the place of each says why it is not known."""

    scores: Scores | str
    unlike: Unlike | str


NO_DATA = "Give the data to see this: {call}, or localpower report MODEL --data DATA."


def look(result: Fitted, data: Any = None, shards: bool = True, scores: bool = True) -> Rows:
    """Look at the rows, if they are given: scores of some, differences of shards."""
    hint = NO_DATA.format(call="result.report(path, data=data)")
    if data is None:
        return Rows(_from_left(result) or hint, hint)
    names = result.run.get("names")
    source = open_source(data, columns=result.components.shape[1], like=names)
    try:
        if source.columns != result.components.shape[1]:
            raise ValueError(
                f"data has {source.columns} columns where the model has "
                f"{result.components.shape[1]}; give the rows that were fitted"
            )
        shown = _cut_again(result, source) if shards else ""
        with one_blas_thread():
            unlike = shown if isinstance(shown, str) else _unlike(result, source, shown)
        if not scores:
            return Rows("", unlike)
        mark = None
        if isinstance(unlike, Unlike) and isinstance(shown, Partition) and unlike.stands_out:
            mark = _rows_of(shown, unlike.farthest)
        return Rows(_scores(result, source, mark), unlike)
    finally:
        if source is not data:
            source.close()


def _from_left(result: Fitted) -> Scores | None:
    """Scores of the rows that were fitted, from their left singular vectors."""
    if result.U is None:
        return None
    some = evenly(len(result.U), MOST_POINTS)
    points = result.U[some][:, :2].astype(np.float64) * result.singular_values[:2]
    return Scores(_flat(points, some), len(result.U), np.zeros(len(some), bool), "U")


def _scores(result: Fitted, source: Source, mark: NDArray[np.bool_] | None) -> Scores:
    some = evenly(source.rows, MOST_POINTS)
    pieces, first = [], 0
    for piece in source.pieces:
        mine = [i - first for i in some if first <= i < first + piece.shape[0]]
        first += piece.shape[0]
        if is_stored(piece):
            pieces += [cut(piece, i, i + 1).read() for i in mine]
        elif mine:
            pieces.append(piece[mine])
    points = result.transform(pieces)[:, :2].astype(np.float64)
    marked = np.zeros(len(some), bool) if mark is None else mark[some]
    return Scores(_flat(points, some), source.rows, marked, "data")


def _flat(points: Array, rows: Sequence[int]) -> Array:
    """Two columns: with one component only, the number of the row and the score."""
    if points.shape[1] == 2:
        return points
    return np.column_stack([np.asarray(rows, dtype=np.float64), points])


def _cut_again(result: Fitted, source: Source) -> Partition | str:
    """Cut the rows as the run did, or say why that cannot be."""
    run = result.run
    how, workers, seed = str(run["partition"]), int(run["workers"]), run["seed"]
    if source.rows != run["rows"]:
        return (
            f"The data given have {source.rows} rows and the run had {run['rows']}: they cannot be "
            "cut into the same shards."
        )
    if run.get("held") and not (source.separate and len(source.tables) == workers):
        return (
            "The engine held the rows in blocks of its own. Give those as a list of arrays to see "
            "how they differ."
        )
    if how != "contiguous" and seed is None:
        return (
            f"Rows were cut {how} by a generator whose state is not recorded; give rng= a number "
            "to see how shards differ."
        )
    rng = np.random.default_rng(seed)
    return partition(source, workers, how, rng if how == "contiguous" else rng.spawn(1)[0], 1)


def _rows_of(shards: Partition, number: int) -> NDArray[np.bool_]:
    """Which rows, in their original order, are of a shard."""
    sizes = [shard.rows for shard in shards.shards]
    mine = np.repeat(np.arange(len(sizes)) == number, sizes)
    return shards.in_original_order(mine)


def _unlike(result: Fitted, source: Source, shards: Partition) -> Unlike:
    """``η_i = ‖M_i - M‖/‖M‖`` of the rows as they entered the factorisation."""
    n, d = source.rows, source.columns
    exponent = frexp(float(result.singular_values[0]) / sqrt(n))[1]
    if result.scale is not None or abs(exponent) <= SAFE_EXPONENT:
        exponent = 0
    matrices = [LocalMatrix(shard) for shard in shards.shards]
    for matrix in matrices:
        factor, power = dividing(result.scale)
        matrix.prepare(result.mean, factor, power if result.scale is not None else exponent)
    own = source.separate and len(source.names) == len(matrices)
    names = source.names if own and not source.names[0].startswith("data") else ()
    if d <= EXACT_COLUMNS and len(matrices) * d**3 <= EXACT_WORK:
        return Unlike(_exact(matrices, n), names, 0.0)
    values = np.square(np.ldexp(result.singular_values.astype(np.float64), -exponent)) / n
    etas = [_estimated(matrix, result.components.T, values) for matrix in matrices]
    ratio = result.explained_variance_ratio.astype(np.float64)
    left = max(1.0 - float(ratio.sum()), 0.0) / max(float(ratio[0]), 1e-300)
    error = float(values[-1] / (values[0] or 1.0))
    return Unlike(np.array(etas), names, min(error, left) if result.run.get("center") else error)


def _exact(matrices: Sequence[LocalMatrix], n: int) -> Array:
    grams = [matrix.gram() for matrix in matrices]
    M = fold(iter(grams), len(grams)) / n
    norm = spectral_norm(M) or 1.0
    return np.array(
        [
            spectral_norm(G / matrix.shape[0] - M) / norm if matrix.shape[0] else np.nan
            for G, matrix in zip(grams, matrices, strict=True)
        ]
    )


def _estimated(matrix: LocalMatrix, V: Array, values: Array) -> float:
    """The same with what the components tell of M, ``V diag(values) Vᵀ``: no pass over all rows."""
    rows, d = matrix.shape
    if not rows:
        return float("nan")

    def difference(x: Array) -> Array:
        return matrix.product(x) / rows - V @ (values[:, None] * (V.T @ x))

    with matrix.rows_loaded(LANCZOS_STEPS):
        return _norm(difference, d) / (float(values[0]) or 1.0)


def _norm(multiply: Callable[[Array], Array], d: int) -> float:
    """Largest magnitude of an eigenvalue, by a few Lanczos steps; a little less than the truth."""
    x = np.random.default_rng(0).standard_normal((d, 1))
    Q = x / np.linalg.norm(x)
    images = np.zeros((d, 0))
    for _ in range(min(LANCZOS_STEPS, d)):
        y = multiply(Q[:, -1:]).astype(np.float64)
        images = np.hstack([images, y])
        for _ in range(2):
            y = y - Q @ (Q.T @ y)
        size = float(np.linalg.norm(y))
        if size <= 1e-12 * float(np.linalg.norm(images[:, -1])):
            break
        Q = np.hstack([Q, y / size])
    H = Q[:, : images.shape[1]].T @ images
    return float(np.abs(np.linalg.eigvalsh((H + H.T) / 2)).max())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of the answer: `mood` is good, fair or poor; `advice` what to change."""

    mood: str
    title: str
    text: str
    advice: str = ""


ANGLE = "The subspace found differs from the true one by an angle whose sine is at most {:.1e}. "
GUESS = "If nothing was missed, the sine of the angle to the true subspace is at most {:.1e}. "
PROVEN = "Proven, for every matrix: nothing large enough to change the answer was missed."
TESTED = "Tested by random probes, not proven: a wrong answer passes {}."
DOUBTED = "Not certain enough: a wrong answer passes the test by random probes {}."
NO_GAP = "No gap is seen after the last component: another set may be as good."
UNTESTED = "Neither proven nor tested: something larger may have been missed."
ENDS = {
    "max_rounds": ("max_rounds was reached", "Raise max_rounds, or take method='local_ritz'."),
    "budget": ("the budget was used up", "Raise max_bytes or max_seconds."),
    "stalled": (
        "rounds no longer helped: with several local steps, shards that differ keep the error up",
        "Take schedule='halving', or method='local_ritz'.",
    ),
    "unsure": (
        "the components are exact to the tolerance, but it is not certain that they are the "
        "largest",
        "Take method='local_ritz', start='random', a larger certainty, or method='tsqr'.",
    ),
    "rounding": (
        "the last components are too small, compared with the first, for the precision of numbers",
        "Give scale='std' if columns have different units, or take method='tsqr'.",
    ),
    "callback": ("the callback asked for it", "Let it run on."),
    "end": ("the method does no more rounds", "Take a method that iterates, as 'local_ritz'."),
}
CERTIFYING = ("local_ritz", "block_krylov", "block_lanczos")  # also without a tolerance
ONE_SHOT = ("uda", "wda", "aligned_average", "dr_svd", "one_shot")


def how_sure(last: Entry, run: Mapping[str, Any]) -> str:
    """Say how sure what a round claims is."""
    if last.proven:
        return PROVEN
    if last.p is None or last.p >= 1:
        return UNTESTED
    return (TESTED if is_sure(last, run) else DOUBTED).format(odds(last.p))


def is_sure(last: Entry, run: Mapping[str, Any]) -> bool:
    """Whether what a round claims is proven, or as certain as the run was asked to be."""
    wanted = run.get("certainty")
    enough = wanted if isinstance(wanted, int | float) else 0.0
    return bool(last.proven) or (last.p is not None and last.p <= enough)


def in_short(record: Entry) -> str:
    """How sure a round is, in a word: proven, p, or nothing where nothing is known."""
    if record.proven:
        return "proven"
    return "" if record.p is None or record.p >= 1 else f"p = {record.p:.0e}"


def odds(p: float) -> str:
    """Say how often something of that chance happens at most.

    Examples
    --------
    >>> odds(8.2e-7), odds(0.03), odds(1e-30)
    ('at most once in 1,200,000 runs', 'at most once in 33 runs', 'less than once in 1e+12 runs')
    """
    if p < 1e-12:
        return "less than once in 1e+12 runs"
    digits = max(0, int(np.log10(1 / p)) - 1)
    return f"at most once in {int(1 / p / 10**digits) * 10**digits:,} runs"


def verdict(result: Fitted) -> Verdict:
    """Say what the certificate means, for readers who are no specialists."""
    run, reason = result.run, result.reason
    tol = float(run.get("tol") or 0.0)
    if reason == "degraded":
        return _degraded(run)
    if not result.history:
        return Verdict("fair", "Nothing is certified", "The rounds of the run are not recorded.")
    last = result.history[-1]
    sure = how_sure(last, run)
    bound = last.angle if last.angle is not None and last.angle < 1 else None
    if reason == "exact":
        how = (
            "from the matrix of inner products of the columns: small singular values have half the "
            "digits"
            if run.get("method") == "gram"
            else "from triangular factors of the shards, with all digits"
        )
        text = f"The method does not iterate. It computes the answer at once, {how}. "
        text += NO_GAP if bound is None else ANGLE.format(bound) + sure
        return Verdict("good", "Exact, up to rounding", text)
    if reason == "angle" and bound is not None:
        return Verdict("good", "Certified", ANGLE.format(bound) + sure)
    if reason == "residual":
        return Verdict(
            "good",
            "Certified by residuals",
            "The last component and the next one explain so nearly the same that no one could tell "
            "them apart. Every component found is exact for data that differ from these by at most "
            f"{last.residual:.1e} of what it explains, but another set would be as good. " + sure,
        )
    why, advice = ENDS.get(reason, (reason, "Give tol=1e-8."))
    if tol:
        claim = (ANGLE if is_sure(last, run) else GUESS).format(bound or 0.0)
        known = claim + sure if bound is not None else "No angle is certified."
        text = f"A sine of {power(tol)} was asked for and is not certified: {why}. {known}"
        return Verdict("poor", "Not converged", text, advice)
    if bound is not None:
        if is_sure(last, run):
            return Verdict("fair", "Ended with a known bound", ANGLE.format(bound) + sure)
        text = f"The run ended as {why}. " + GUESS.format(bound) + sure
        return Verdict("fair", "Ended without certainty", text, advice)
    if run.get("method") in ONE_SHOT:
        text = (
            "This method makes one estimate and tells nothing of its error, which may be large "
            "where shards differ."
        )
        return Verdict("fair", "Nothing is certified", text, ENDS["end"][1])
    if last.angle is not None:
        text = (
            f"The run ended as {why}. The bound of the angle is still 1, which says nothing; the "
            f"largest residual is {last.residual:.1e}."
        )
        return Verdict("fair", "Nothing is certified yet", text, advice)
    text = (
        f"The run ended as {why}. How far the components are from the true ones was not measured."
    )
    if run.get("method") not in CERTIFYING:
        advice = "Give tol=1e-8 for a certificate."
    return Verdict("fair", "Nothing is certified", text, advice)


def _degraded(run: Mapping[str, Any]) -> Verdict:
    lost = run.get("degraded") or ()
    rows = sum(int(part["rows"]) for part in lost)
    named = [
        f"shard {part['shard']} (rows {part['first_row']} to "
        f"{int(part['first_row']) + int(part['rows']) - 1} as they were cut)"
        for part in lost[:8]
    ]
    more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
    return Verdict(
        "poor",
        f"Without {rows} of {run.get('rows')} rows",
        f"Lost for good: {', '.join(named)}{more}. The result tells of the other rows only, and "
        "does not count as converged.",
        "Run again when these workers are back, or with more retries.",
    )


def power(value: float) -> str:
    """A number such as a tolerance, as people write it: 1e-8."""
    return f"{value:g}".replace("e-0", "e-")


def quantity(value: float, units: Mapping[str, float]) -> str:
    """A number with three digits and its unit."""
    for unit, factor in reversed(list(units.items())):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    unit, factor = next(iter(units.items()))
    return f"{value / factor:.3g} {unit}" if value else f"0 {unit}"


def unit_of(most: float, units: Mapping[str, float]) -> tuple[str, float]:
    """The unit in which the largest of some values is best told, and its factor."""
    fitting = [(unit, factor) for unit, factor in units.items() if most >= factor]
    return fitting[-1] if fitting else next(iter(units.items()))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within limits, at most so many."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** np.floor(log10(span / most))
    step = next(power * n for n in (1, 2, 5, 10) if span / (power * n) <= most)
    first = int(np.ceil(low / step - 1e-9))
    return [i * step for i in range(first, int(np.floor(high / step + 1e-9)) + 1)]


def counts(first: int, last: int, most: int = 12) -> list[int]:
    """Whole numbers to label on an axis: all of them if they are few."""
    if last - first < most:
        return list(range(first, last + 1))
    return [int(t) for t in ticks(first, last) if t == round(t) and t >= first]


def decades(values: Sequence[float], most: int = 6) -> list[int]:
    """Powers of ten around positive values, at most so many, the first and last at the ends."""
    low, high = int(np.floor(log10(min(values)))), int(np.ceil(log10(max(values)) - SPARED))
    high = max(high, low + 1)
    step = -(-(high - low) // (most - 1))
    return list(range(high, low - step, -step))[::-1]
