"""What is shown of a run: its numbers, and what its certificate means in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from localpower.core.ledger import Record
from localpower.core.linalg import Array
from localpower.core.text import counted, power
from localpower.stopping import REASONS, remedy_of

if TYPE_CHECKING:
    from localpower.result import Result

MOST_DRAWN = 400  # rounds, components or shards
SHOWN = 10  # components
LONG = 60  # characters of a name
POSITIVE, NEGATIVE = (31, 131, 196), (224, 103, 27)  # colours of weights, on light and on dark
IMAGES = 64  # columns, from which a square number of them may be pixels
HOLDS_UP, WAITED = 1.5, 0.1  # times the mean of the shards; share of the time of its rounds


class Point(NamedTuple):
    """A round on the curve: its record, and what was spent when it was over."""

    record: Record
    rounds: int
    bytes: int
    seconds: float


def convergence(result: Result) -> list[Point]:
    """One point for each round of the method; evenly chosen ones where there are too many."""
    history = result.history
    moved = accumulate(record.bytes_up + record.bytes_down for record in history)
    spent = accumulate(record.seconds for record in history)
    points = list(map(Point, history, (record.round for record in history), moved, spent))
    return [points[i] for i in evenly(len(points), MOST_DRAWN)]


def output_path(path: str | PathLike[str], what: str, suffixes: tuple[str, ...]) -> Path:
    """Check that a file of one of these kinds can be written to `path`."""
    target = Path(path)
    if target.suffix.lower() not in suffixes or target.is_dir():
        raise ValueError(
            f"{target}: {what} is written as {' or '.join(suffixes)}; give such a name"
        )
    if not target.parent.is_dir():
        raise ValueError(f"{target}: the folder {target.parent} does not exist; make it first")
    return target


def evenly(count: int, most: int) -> list[int]:
    """At most so many of ``range(count)``, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(i) for i in np.linspace(0, count - 1, most)]


def grid_of(result: Result, grid: tuple[int, int] | None) -> tuple[int, int] | None:
    """How columns are laid out as images: as told, or as a square where nothing speaks against it.

    Names of columns speak against it, unless they are of pixels.
    """
    d = result.components.shape[1]
    if grid is not None:
        try:
            rows, columns = map(index, grid)
        except (TypeError, ValueError):
            raise TypeError(f"grid={grid!r} must be two whole numbers, as (8, 8)") from None
        if rows < 1 or columns < 1 or rows * columns != d:
            raise ValueError(
                f"grid={rows}x{columns} has {rows * columns} places, and there are {d} columns; "
                "give rows and columns whose product is that"
            )
        return rows, columns
    names, side = result.run.get("names"), isqrt(d)
    pixels = names is None or all(str(name).lower().startswith(("pix", "px")) for name in names)
    return (side, side) if side * side == d and d >= IMAGES and pixels else None


def column_names(result: Result) -> list[str]:
    """Names of the columns in full, or their numbers from 0."""
    names, d = result.run.get("names"), result.components.shape[1]
    if names is not None and len(names) == d:
        return [str(name) for name in names]
    return [f"column {number}" for number in range(d)]


def shortened(name: str, most: int = LONG) -> str:
    """Both ends of a name that is too long.

    Examples
    --------
    >>> shortened("temperature of the inner wall", 15)
    'tempera…er wall'
    """
    tail = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[len(name) - tail :]}"


def distinct(names: Sequence[str], most: int = LONG) -> list[str]:
    """Names that are short enough, and still differ: by their ends, else by what is between.

    Examples
    --------
    >>> distinct(["temperature of wall 1 at noon", "temperature of wall 2 at noon"], 16)
    ['tempera…1…t noon', 'tempera…2…t noon']
    """
    short = [shortened(name, most) for name in names]
    counts = Counter(short)
    same: dict[str, list[int]] = {}
    for number, ends in enumerate(short):
        if counts[ends] > 1 and len(names[number]) > most:
            same.setdefault(ends, []).append(number)
    for numbers in same.values():
        alike = [names[number] for number in numbers]
        first = _in_common(alike)
        last = _in_common([name[first:][::-1] for name in alike])
        for number in numbers:
            name = names[number]
            middle = f"…{name[first : len(name) - last]}…"
            if len(middle) > most // 2:  # too long to be shown: the number of the column will do
                middle = f"…[{number}]…"
            short[number] = shortened(name, most - len(middle) + 1).replace("…", middle, 1)
    return short


def _in_common(texts: Sequence[str]) -> int:
    """Characters that all texts begin with."""
    low, high = min(texts), max(texts)
    differ = (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    return next(differ, min(len(low), len(high)))


def shares(result: Result) -> tuple[Array, Array]:
    """Shares of the components in the variance, and their sums."""
    share = np.nan_to_num(result.explained_variance_ratio.astype(np.float64), posinf=0.0)
    return share, np.cumsum(share)


def is_private(result: Result) -> bool:
    """Whether all that is known of the rows has noise in it."""
    return result.reason == "private"


def relative(weights: Array) -> Array:
    """Weights as parts of the largest."""
    most = np.abs(weights).max(initial=0.0)
    parts: Array = weights.astype(np.float64) / (most or 1.0)
    return parts


def weight(value: float) -> str:
    """A weight with its sign."""
    return f"{value:+.3f}".replace("-", "−")


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


def timeline(result: Result) -> list[Bar]:
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
RESIDUAL = (
    "The last component and the next one explain so nearly the same that no one could tell them "
    "apart. Every component found is exact for data that differ from these by at most {:.1e} of "
    "what it explains, but another set would be as good. "
)


def advice_of(reason: str, run: Mapping[str, Any]) -> str:
    """What to change where a run ended too early, as a sentence."""
    remedy = remedy_of(reason, run["method"], run.get("only_sums", False))
    return f"{remedy[:1].upper()}{remedy[1:]}." if remedy else ""


def how_sure(last: Record, run: Mapping[str, Any]) -> str:
    """Say how sure what a round claims is."""
    if last.proven:
        return PROVEN
    if last.p is None or last.p >= 1:
        return UNTESTED
    return (TESTED if is_sure(last, run) else DOUBTED).format(odds(last.p))


def is_sure(last: Record, run: Mapping[str, Any]) -> bool:
    """Whether what a round claims is proven, or as certain as the run was asked to be."""
    wanted = run.get("certainty")
    enough = wanted if isinstance(wanted, int | float) else 0.0
    return bool(last.proven) or (last.p is not None and last.p <= enough)


def in_short(record: Record) -> str:
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


def privacy_lines(label: Mapping[str, Any]) -> list[str]:
    """The label of a private result: what is promised of rows, how, and what is known of it."""
    told = "a noised matrix was told once"
    if label["releases"] > 1:
        told = f"noised {label['release']} were told {label['releases']} times"
    shares = f"noise of {label['honest']} of {counted(label['sites'], 'shard')}"
    means = f"{told}, with a deviation of {label['sigma']:.3g} by the {shares}."
    if "baseline" in label:
        means = (
            f"each of {counted(label['sites'], 'shard')} added noise with a deviation of "
            f"{label['sigma']:.3g} to each of its own {counted(label['releases'], 'product')}: ε "
            "and δ also hold for whoever sees the messages of single shards. This is "
            f"{label['baseline']}; release='matrix' needs less noise."
        )
    bound = "No bound of the angle to the true components is known: noise may hide them."
    if label["angle"] is not None:
        bound = (
            f"In 99 of 100 runs the sine of the angle to the true components is at most "
            f"{label['angle']:.2g}."
        )
    return [
        f"private: ε = {label['epsilon']:g}, δ = {label['delta']:g} for {label['neighbours']}",
        f"Rows have norm {label['clip']:g} at most; {means}",
        bound,
    ]


def participation(run: Mapping[str, Any]) -> str:
    """Who took part in the rounds of a run; nothing where all did, or nobody knows.

    Examples
    --------
    >>> participation({"participation": {"label": "without", "shards": [3], "from_round": 4}})
    'without shards [3] from round 4 of the run'
    >>> waited = {"label": "waited", "shards": [0, 2]}
    >>> participation({"participation": waited})
    'waited: shards [0, 2] were asked again, and answered'
    """
    known = run.get("participation") or {"label": "complete"}
    label = known["label"]
    if label == "waited":
        return f"waited: shards {known['shards']} were asked again, and answered"
    if label == "without":
        return f"without shards {known['shards']} from round {known['from_round']} of the run"
    if label not in ("sampled", "reused"):
        return ""
    few, many = min(known["answered"]), max(known["answered"])
    often = f"{few}" if few == many else f"{few} to {many}"
    chance = f", asked with chance {known['rate']:g}" if "rate" in known else ""
    then = f"{counted(known['reused'], 'earlier product')} were reused"
    then = then if known["reused"] else "every sum is of all shards"
    rounds = counted(known["rounds"], "round")
    return f"{label}: shards answered {often} times in {rounds}{chance}; {then}"


def verdict(result: Result) -> Verdict:
    """Say what the certificate means, for readers who are no specialists."""
    run, reason = result.run, result.reason
    if reason == "degraded":
        return _degraded(run)
    if reason == "private":
        first, *more = privacy_lines(run["privacy"])
        return Verdict("fair", f"{first[:1].upper()}{first[1:]}", " ".join(more))
    if not result.history:
        return Verdict("fair", "Nothing is certified", "The rounds of the run are not recorded.")
    last = result.history[-1]
    sure = how_sure(last, run)
    known = result.certificate is not None and last.angle is not None and last.angle < 1
    bound = last.angle if known else None
    if reason == "exact":
        text = "The method does not iterate: it computes the answer at once. "
        text += "Small singular values have half the digits. " * bool(run.get("squares"))
        text += NO_GAP if bound is None else ANGLE.format(bound) + sure
        return Verdict("good", "Exact, up to rounding", text)
    if reason == "angle" and bound is not None:
        return Verdict("good", "Certified", ANGLE.format(bound) + sure)
    if reason == "residual":
        return Verdict("good", "Certified by residuals", RESIDUAL.format(last.residual) + sure)
    return _ended(run, reason, last, bound)


def _ended(run: Mapping[str, Any], reason: str, last: Record, bound: float | None) -> Verdict:
    """What is known where nothing was certified that was asked for."""
    meaning, remedy = REASONS[reason].meaning, advice_of(reason, run)
    tol, ended = float(run.get("tol") or 0.0), f"The run ended as {meaning}. "
    claim = "No angle is certified."
    if bound is not None:
        claim = (ANGLE if is_sure(last, run) else GUESS).format(bound) + how_sure(last, run)
    if tol:
        asked = f"A sine of {power(tol)} was asked for and is not certified: {meaning}. "
        return Verdict("poor", "Not converged", asked + claim, remedy)
    if bound is not None and is_sure(last, run):
        return Verdict("fair", "Ended with a known bound", claim)
    if bound is not None:
        return Verdict("fair", "Ended without certainty", ended + claim, remedy)
    if not run.get("iterates"):
        text = (
            "This method makes one estimate and tells nothing of its error, which may be large "
            "where shards differ."
        )
        return Verdict("fair", "Nothing is certified", text, advice_of("end", run))
    if last.angle is not None and run.get("certificate") is not None:
        text = (
            "The bound of the angle is still 1, which says nothing; the largest residual is "
            f"{last.residual:.1e}."
        )
        return Verdict("fair", "Nothing is certified yet", ended + text, remedy)
    text = "How far the components are from the true ones was not measured."
    advice = remedy if run.get("certifies") else "Give tol=1e-8 for a certificate."
    return Verdict("fair", "Nothing is certified", ended + text, advice)


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


def federation(run: Mapping[str, Any]) -> str:
    """One line about who took part in a federated run; nothing of other runs."""
    card = run.get("federation")
    if not card:
        return ""
    sites = [str(site["name"]) for site in card["sites"]]
    named = ", ".join(sites[:SHOWN]) + (" and others" if len(sites) > SHOWN else "")
    on, private = (str(card[name]).partition(":")[0] for name in ("secure_sum", "privacy"))
    return (
        f"federation of {len(sites)} sites ({named}): participation {card['participation']}, "
        f"secure sum {on}, privacy {private}"
    )
