"""Rows as points: scores coloured by what is told of them, and the biplot."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localpower.core.linalg import Array
from localpower.show import summary
from localpower.show.chart import Chart, Mark, Series, linear, looks
from localpower.show.rows import Rows, Scores, Unlike
from localpower.show.sample import as_text

if TYPE_CHECKING:
    from localpower.result import Result

MOST_GROUPS, LONGEST = 10, 42  # labels that have a colour of their own, and their characters
NO_LABEL = ("", "nan", "None")  # as text
RANGES = ("blue", "sky", "green", "yellow", "orange")  # from low numbers to high ones
ARROWS, NAMED = 8, 18  # columns in a biplot, and characters of their names
CORNER = 8.0  # per cent of an axis where its labels would lie on those of the other
MOVES = 200  # of names that are too near each other
ARROW, APART = 0.5, 0.066  # length of the longest arrow, and room for a name, of a picture


class Group(NamedTuple):
    """Rows of one colour, and what they have in common."""

    rows: NDArray[np.bool_]
    label: str
    colour: str


def scores(result: Result, rows: Rows) -> Chart | str:
    """Rows on the first two components, coloured by label, or by the shard that stands out."""
    found = rows.scores
    if not isinstance(found, Scores):
        return found
    single = len(result.components) == 1
    titles = ("row", "score on component 1") if single else ("component 1", "component 2")
    limits = [_limits(values) for values in found.points[_finite(found)].T]
    x, y = (linear(*ends, title) for ends, title in zip(limits, titles, strict=True))
    some = "" if len(found.points) == found.of else f", {len(found.points):,} of {found.of:,} rows"
    by = f", coloured by {summary.shortened(found.by, NAMED)}" if found.by else ""
    return Chart(f"Scores{some}{by}", x, y, _clouds(rows, found, tips=True))


def _finite(found: Scores) -> NDArray[np.bool_]:
    finite: NDArray[np.bool_] = np.logical_and(*np.isfinite(found.points).T)
    return finite


def _clouds(rows: Rows, found: Scores, tips: bool) -> list[Series]:
    """The points of each colour; `tips` say which rows they are."""
    clouds = []
    for number, group in enumerate(_grouped(rows, found)):
        mine = np.flatnonzero(group.rows & _finite(found)).tolist()
        x, y = found.points[mine].T
        told = [_row_told(found, i) for i in mine] if tips else ()
        marker = looks(number)["marker"]
        clouds.append(Series("cloud", x, y, group.colour, group.label, marker=marker, tips=told))
    return clouds


def _row_told(found: Scores, i: int) -> str:
    told = (
        []
        if found.groups is None
        else [f"{found.by}: {as_text(found.groups[i])}".removeprefix(": ")]
    )
    return "\n".join([found.ids[i], *told])


def _grouped(rows: Rows, found: Scores) -> list[Group]:
    if found.groups is not None:
        return groups(found.groups)
    labels = ("", "")
    if found.marked.any() and isinstance(rows.unlike, Unlike):
        labels = "the others", f"{rows.unlike.name(rows.unlike.farthest)}, which differs most"
    return [Group(~found.marked, labels[0], "blue"), Group(found.marked, labels[1], "orange")]


def groups(values: NDArray[Any]) -> list[Group]:
    """Rows by their labels, or by ranges of numbers; the rarest of many labels together."""
    number = values.dtype.kind in "fiu"
    values = values if number else values.astype(str)
    known = values[np.isfinite(values)] if number else values[~np.isin(values, NO_LABEL)]
    every, counts = np.unique(known, return_counts=True)
    left = 0
    if number and len(every) > MOST_GROUPS:
        edges = np.unique(np.quantile(known, np.linspace(0, 1, len(RANGES) + 1))).tolist()
        tops = [*edges[1:-1], inf]
        found = [
            Group((values >= low) & (values < top), f"{low:.3g} to {high:.3g}", colour)
            for low, high, top, colour in zip(edges, edges[1:], tops, RANGES, strict=False)
        ]
    else:
        often = np.sort(np.argsort(-counts, kind="stable")[:MOST_GROUPS])
        left = len(every) - len(often)
        found = [
            Group(values == every[i], summary.shortened(str(every[i]), LONGEST), looks(n)["colour"])
            for n, i in enumerate(often)
        ]
    rest = np.ones(len(values), bool)
    for group in found:
        rest &= ~group.rows
    if rest.any():
        found.append(Group(rest, f"{left} other labels" if left else "no label", "grey"))
    return found


def biplot(result: Result, rows: Rows) -> Chart | str:
    """Rows on the first two components, and how the heaviest columns enter them, as arrows."""
    if len(result.components) < 2:
        return "a biplot has two components, and the run has one; fit with rank=2"
    found, room = rows.scores, 1.0
    clouds: list[Series] = []
    if isinstance(found, Scores):
        room = float(np.abs(found.points[_finite(found)]).max(initial=0.0)) or 1.0
        clouds = _clouds(rows, found, tips=False)
    weights = result.components[:2].T * np.sqrt(result.explained_variance[:2])
    lengths = np.hypot(*weights.T)
    heaviest = np.argsort(-lengths, kind="stable")[:ARROWS]
    ends = weights[heaviest] * (ARROW * room / (float(lengths.max()) or 1.0))
    names, heights = summary.distinct(summary.column_names(result), NAMED), _apart(ends, room)
    x, y = (linear(-1.1 * room, 1.1 * room, f"component {i}") for i in (1, 2))
    x = replace(x, ticks=[tick for tick in x.ticks if x.at(tick[0]) > CORNER])
    placed = zip(ends[:, 0].tolist(), heights, heaviest, strict=True)
    some = f", the {ARROWS} heaviest of {len(names):,} columns" if len(names) > ARROWS else ""
    arrows = Series("arrows", ends[:, 0], ends[:, 1], "ink")
    marks = [Mark(across, high, names[j]) for across, high, j in placed]
    return Chart(f"Biplot{some}", x, y, [*clouds, arrows], names=marks)


def _apart(ends: Array, room: float) -> list[float]:
    """Heights of names: those of arrows, moved up and down where names would be on each other."""
    heights: list[float] = ends[:, 1].tolist()
    least = 2.2 * room * APART
    for side in (ends[:, 0] < 0, ends[:, 0] >= 0):
        order = sorted(np.flatnonzero(side).tolist(), key=lambda i: -heights[i])
        for _ in range(MOVES):
            for above, below in pairwise(order):
                near = max(least - (heights[above] - heights[below]), 0.0)
                heights[above], heights[below] = (
                    heights[above] + near / 2,
                    heights[below] - near / 2,
                )
    return heights


def _limits(values: Array) -> tuple[float, float]:
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room
