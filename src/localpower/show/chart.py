"""What a chart is, without pixels: axes with ticks, series of one colour, marks with values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

import numpy as np

from localpower.core.linalg import Array
from localpower.core.text import unit_of

# Okabe and Ito's colours, which colour-blind readers tell apart; marks and dashes say it again.
COLOURS = {
    **{"blue": "#0072B2", "orange": "#D55E00", "green": "#009E73", "pink": "#CC79A7"},
    **{"yellow": "#E69F00", "ink": "#000000", "sky": "#56B4E9", "grey": "#767676"},
    **{"brown": "#8C510A", "purple": "#7B3FA0", "lime": "#8DB600"},  # where seven are too few
}
MARKERS = "os^DvPX*<>ph"
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), ":", (0, (8, 2)))
MOST_BARS = 64  # shards that get a bar each, and points of a line that get a dot each
MOST_TICKS, MOST_COUNTS = 5, 12  # labels of an axis; whole numbers of which each has one
SPARED = 0.05  # of a power of ten that values may be above the axis


@dataclass(frozen=True, slots=True)
class Axis:
    """Limits of an axis, its ticks with their labels, and what it is called."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str
    log: bool = False

    def at(self, value: float) -> float:
        """Place of a value, in per cent."""
        low, high, value = map(log10, (self.low, self.high, value)) if self.log else (
            self.low, self.high, value)  # fmt: skip
        share = (value - low) / ((high - low) or 1.0)
        return round(100 * min(max(share, 0.0), 1.0), 3)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Points in one colour: `kind` is line, bars, points, cloud, arrows, box, or level.

    A level is a line across, arrows begin at zero. `base` is where bars begin; dashes and markers
    are matplotlib's, `every` says which points of a line have a marker. Of a cloud, `tips` say what
    each point is.
    """

    kind: str
    x: Any
    y: Any
    colour: str = "blue"
    label: str = ""
    dash: Any = "-"
    marker: str = "o"
    base: Any = 0.0
    every: Any = None
    width: float = 1.5
    tips: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A place that tells its values; without `y` it is as tall as the chart."""

    x: float
    y: float | None
    tip: str


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """What to draw; `image` are weights from -1 to 1, and `notes` are colours and texts.

    `names` stand beside their places, away from the middle.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series] = ()
    marks: Sequence[Mark] = ()
    image: Array | None = None
    notes: Sequence[tuple[str, str]] = ()
    names: Sequence[Mark] = ()


def looks(number: int) -> dict[str, Any]:
    """Colour and marker of one series among many."""
    colours = [name for name in COLOURS if name != "grey"]
    return {"colour": colours[number % len(colours)], "marker": MARKERS[number % len(MARKERS)]}


def linear(
    low: float,
    high: float,
    title: str,
    units: Mapping[str, float] | None = None,
    whole: bool = False,
) -> Axis:
    """An axis with round numbers, in the unit that fits."""
    high = high if high > low else low + 1.0
    unit, factor = ("", 1.0) if units is None else unit_of(high, units)
    places: Iterable[float] = _ticks(low / factor, high / factor)
    if whole:
        places = counts(round(low), round(high))
    ends = [(t * factor, f"{t:,.6g}" + (f" {unit}" if unit and t else "")) for t in places]
    return Axis(low, high, ends, title)


def numbered(first: int, last: int, title: str) -> Axis:
    """An axis of things with numbers, half of one to spare at the ends."""
    places = [(float(t), f"{t:,}") for t in counts(first, last)]
    return Axis(first - 0.5, last + 0.5, places, title)


def short(value: float) -> str:
    """A round number on a logarithmic axis: 2e-3."""
    exponent = floor(log10(value) + 1e-9)
    digit = f"{value / 10.0**exponent:.3g}"
    return f"{digit}e{exponent}" if exponent else digit


def logarithmic(
    values: Iterable[float],
    title: str,
    label: Callable[[float], str] = short,
    most: int = 6,
    tight: bool = False,
) -> Axis:
    """An axis from one power of ten to another; or, of few powers or `tight`, from 1, 2 or 5."""
    known = [value for value in values if value > 0 and np.isfinite(value)] or [0.1, 1.0]
    seen = max(known) / (1 if tight else 10**SPARED)
    low, high = floor(log10(min(known)) + 1e-9), ceil(log10(seen))
    stride = -(-(high - low) // (most - 1))
    places = [10.0**p for p in range(high, low - max(stride, 1), -max(stride, 1))][::-1]
    if tight or high - low < 2:
        steps = [d * 10.0**p for p in range(low, high + 2) for d in (1, 2, 5)]
        first = max(step for step in steps if step <= min(known) * (1 + 1e-9))
        last = min(step for step in steps if step >= seen and step > first)
        inside = [place for place in places if first <= place <= last]
        few = [step for step in steps if first <= step <= last]
        ends, places = (first, last), inside if len(inside) > 2 else few
    else:
        ends = places[0], places[-1]
    return Axis(*ends, [(place, label(place)) for place in places], title, log=True)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers within limits, a few of them."""
    span = (high - low) or abs(high) or 1.0
    unit = 10.0 ** floor(log10(span / MOST_TICKS))
    step = next(unit * n for n in (1, 2, 5, 10) if span / (unit * n) <= MOST_TICKS)
    return [i * step for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def counts(first: int, last: int) -> list[int]:
    """Whole numbers to label on an axis: all of them if they are few."""
    if last - first < MOST_COUNTS:
        return list(range(first, last + 1))
    return [int(t) for t in _ticks(first, last) if t == round(t) and t >= first]
