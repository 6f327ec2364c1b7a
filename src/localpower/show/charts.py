"""The charts of a run, each described once; `svg` draws them for the page, `figures` elsewhere.

In place of a chart there may be a text that says why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from localpower.core.ledger import Record
from localpower.core.linalg import EPS, Array
from localpower.core.text import BYTES, SHORT, counted, duration, power, size
from localpower.show import summary
from localpower.show.chart import (
    MOST_BARS,
    Axis,
    Chart,
    Mark,
    Series,
    counts,
    linear,
    logarithmic,
    looks,
    numbered,
)
from localpower.show.rows import Rows, Unlike
from localpower.show.scatter import biplot, scores
from localpower.show.summary import MOST_DRAWN, SHOWN, Point, distinct, evenly

if TYPE_CHECKING:
    from localpower.result import Result

TOLD = 42  # characters, with blanks to the longest, of names that fit below a picture
CELLS = 120  # columns of a picture of weights, which are seen on a small screen
FLAT = 0.1  # share of the height below which bars are not seen
LEAST = 1e-6  # share of the largest, where smaller ones are drawn
FLOOR = 1e-17  # where an error of zero is drawn
AGAINST = {
    "rounds": ("rounds", None),
    "bytes": ("bytes moved, up and down, since the first round", BYTES),
    "seconds": ("seconds since the first round", SHORT),
}


def convergence(result: Result, rows: Rows | None = None, against: str = "rounds") -> Chart | str:
    """The certified error after every round that measured it."""
    points = [p for p in summary.convergence(result) if _error(p.record) is not None]
    if not points and summary.is_private(result):
        return "a private run measures no error: its label says what is known"
    if not points:
        return "the run measured no error after its rounds; give tol, as tol=1e-8"
    title, units = AGAINST[against]

    def known(name: str) -> tuple[Array, Array]:
        some = [(getattr(p, against), getattr(p.record, name)) for p in points]
        x, y = np.array([pair for pair in some if pair[1] is not None]).reshape(-1, 2).T
        return x, np.maximum(y, FLOOR)

    start = points[0].rounds if against == "rounds" else 0.0
    x = linear(start, getattr(points[-1], against), title, units, whole=against == "rounds")
    series = [
        Series("line", *known("angle"), "blue", "bound of the sine of the angle"),
        Series("line", *known("residual"), "orange", "largest residual of a component", "--"),
    ]
    if tol := float(result.run.get("tol") or 0.0):
        series.append(Series("level", (), tol, "grey", f"asked for: {power(tol)}", "--"))
    values = np.concatenate([np.atleast_1d(one.y) for one in series])
    marks = [
        Mark(getattr(p, against), max(_error(p.record) or 0.0, FLOOR), _round_told(p))
        for p in points
    ]
    y = logarithmic(values, "sine of the angle, and residual")
    return Chart(f"Convergence against {against}", x, y, series, marks)


def _error(record: Record) -> float | None:
    return record.residual if record.angle is None else record.angle


def _error_told(record: Record) -> list[str]:
    """What is known of the error after a round, and how surely."""
    angle = "not known" if record.angle is None else f"at most {record.angle:.2e}"
    residual = "not known" if record.residual is None else f"{record.residual:.2e}"
    sure = summary.in_short(record) or "not certain"
    sure = f" ({sure})" if (record.angle or 1.0) < 1 else ""
    return [f"sine of the angle {angle}{sure}", f"residual {residual}"]


def _round_told(point: Point) -> str:
    first = f"round {point.rounds}, {counted(point.record.steps, 'local step')}"
    spent = f"{size(point.bytes)} moved, {duration(point.seconds)}"
    return "\n".join([first, *_error_told(point.record), spent])


def variance(result: Result, rows: Rows | None = None) -> Chart | str:
    """The share of each component in the variance of the data."""
    if summary.is_private(result) and np.isnan(result.explained_variance_ratio).any():
        return "noised products do not tell which share a component explains; a noised matrix does"
    share, total = (100 * part for part in summary.shares(result))
    shown = np.array(evenly(len(share), MOST_DRAWN))
    marks = [
        Mark(i + 1, None, f"component {i + 1}\n{share[i]:.3g}% of the variance, {total[i]:.3g}% "
             "so far")
        for i in shown.tolist()
    ]  # fmt: skip
    x, marked = numbered(1, len(share), "component"), evenly(len(shown), 9)
    if share.max() >= FLAT * total[-1]:
        one = Series("bars", shown + 1, share[shown], "blue", "of one component")
        y = linear(0.0, 1.05 * float(total[-1]), "share of the variance, %")
    else:
        seen = np.maximum(share[shown], LEAST * share.max())
        one = Series("line", shown + 1, seen, "blue", "of one component", every=marked)
        title = "share of the variance, %, logarithmic"
        y = logarithmic([*seen, total[-1]], title, lambda value: f"{value:g}")
    line = Series("line", shown + 1, total[shown], "orange", "of all so far", "--", every=marked)
    return Chart("Variance", x, y, [one, line], marks)


def components(result: Result, rows: Rows | None = None) -> Chart:
    """Weights by columns; of many columns, the heaviest of some side by side."""
    V = np.asarray(result.components[:SHOWN], dtype=np.float64)
    names = distinct(summary.column_names(result))
    k, d = V.shape
    parts = np.array_split(np.arange(d), min(d, CELLS))
    heaviest = np.array([[part[np.abs(v[part]).argmax()] for part in parts] for v in V])
    shown = np.take_along_axis(V, heaviest, axis=1)
    many = f", the heaviest of each {len(parts[0])} side by side" if d > len(parts) else ""
    places = [(t * len(parts) / d, f"{t:,}") for t in counts(0, d - 1)]
    if d * (max(map(len, names)) + 1) <= TOLD:
        places = list(enumerate(names))
    marks = [
        Mark(
            j,
            None,
            (names[part[0]] if len(part) == 1 else f"{names[part[0]]} to {names[part[-1]]}")
            + "".join(f"\ncomponent {i + 1}: {summary.weight(shown[i, j])}" for i in range(k)),
        )
        for j, part in enumerate(parts)
    ]
    x = Axis(-0.5, len(parts) - 0.5, places, f"column{many}")
    y = Axis(-k, 0, [(-i - 0.5, str(i + 1)) for i in range(k)], "component")
    weights = np.array([summary.relative(row) for row in shown])
    return Chart("Components", x, y, marks=marks, image=weights)


def shards(result: Result, rows: Rows) -> Chart | str:
    """η of each shard, in another colour of one that stands out."""
    unlike = rows.unlike
    if not isinstance(unlike, Unlike):
        return unlike
    etas, m, most = unlike.etas, len(unlike.etas), unlike.farthest
    if m == 1:
        return "there is one shard, which is the whole"
    shown = np.array([i for i in sorted({*evenly(m, MOST_DRAWN), most}) if np.isfinite(etas[i])])
    kind = "bars" if m <= MOST_BARS else "points"
    out = (shown == most) & unlike.stands_out
    series = [Series(kind, shown[~out], etas[shown[~out]], "blue")]
    series += [Series(kind, shown[out], etas[shown[out]], "orange")] if out.any() else []
    marks = [Mark(i, None, f"{unlike.name(i)}\nη = {etas[i]:.3g}") for i in shown.tolist()]
    verb, about = "stands out" if out.any() else "differs most", "≈ " if unlike.error else ""
    y = linear(0.0, 1.05 * max(float(np.nanmax(etas)), 1e-12), "η: 0 is like the whole")
    title = f"Shard {most} {verb}: η {about}{etas[most]:.2g}"
    return Chart(title, numbered(0, m - 1, "shard"), y, series, marks)


def timeline(result: Result, rows: Rows | None = None) -> Chart | str:
    """The time of each round, and how it is explained."""
    bars = summary.timeline(result)
    if not bars and summary.is_private(result):
        return "a private run tells no times"
    if not bars:
        return "the run did not note the times of its rounds; fit again to see them"
    shown, whole = evenly(len(bars), MOST_DRAWN), sum(bar.seconds for bar in bars) or 1.0
    base, series = np.zeros(len(shown)), []
    for name, colour, label in (
        ("compute", "blue", "computing"),
        ("wait", "orange", "waiting for the slowest"),
        ("rest", "grey", "messages and the rest"),
    ):
        share = sum(getattr(bar, name) for bar in bars) / whole
        top = base + [getattr(bars[i], name) for i in shown]
        label = f"{label}: {share:.0%}"
        series.append(Series("bars", np.array(shown) + 1, top, colour, label, base=base))
        base = top
    marks = [Mark(i + 1, None, _bar_told(i + 1, bars[i])) for i in shown]
    x = numbered(1, len(bars), "round, set-up and factors included")
    y = linear(0.0, 1.05 * max(bar.seconds for bar in bars), "time of a round", SHORT)
    return Chart("Where the time went", x, y, series, marks)


def _bar_told(number: int, bar: summary.Bar) -> str:
    slow = ", ".join(f"shard {shard} {duration(time)}" for time, shard in bar.slowest)
    return (
        f"round {number}, {bar.phase}: {bar.task}, {duration(bar.seconds)}\n"
        f"computing {duration(bar.compute)}, waiting {duration(bar.wait)}, rest "
        f"{duration(bar.rest)}\n"
        f"a shard took {duration(bar.mean)} on average; slowest: {slow or 'not known'}"
    )


def comparison(runs: Sequence[Any], across: str, tol: float, reference: str) -> Chart:
    """The true angle of methods against rounds or bytes; one mark for a method that is done."""
    series = []
    for number, run in enumerate(sorted(runs, key=lambda run: run.method)):
        known = [(getattr(p, across), p.angle) for p in run.points if p.angle is not None]
        single = len(known) == 1 or not run.result.run["iterates"]
        x, y = np.array(known[-1 if single else 0 :], dtype=np.float64).T
        every = [*range(len(x) - 1, -1, -max(len(x) // 8, 1))]
        dash = "none" if single else "-"
        series.append(Series("line", x, np.maximum(y, EPS), label=run.method, dash=dash,
                             every=every, **looks(number)))  # fmt: skip
    if tol:
        series.append(Series("level", (), tol, "grey", "tolerance", "--"))
    angles = np.concatenate([[1.0], *(np.atleast_1d(one.y) for one in series)])
    y = logarithmic(angles, f"sine of the angle to the answer of {reference}", most=9)
    spent = [getattr(p, across) for run in runs for p in run.points] or [1]
    x = linear(0, max(spent), "rounds", whole=True)
    if across == "bytes":
        x = logarithmic(spent, "bytes moved, up and down", size, tight=True)
    return Chart("", x, y, series)


CHARTS: dict[str, Callable[[Result, Rows], Chart | str]] = {
    "convergence": convergence,
    "variance": variance,
    "components": components,
    "scores": scores,
    "biplot": biplot,
    "shards": shards,
    "timeline": timeline,
}
