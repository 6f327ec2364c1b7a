"""Figures of experiments as SVG: text stays text, the same results give the same bytes.

Every kind of figure is a sheet of panels, and a panel is a title and its series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.linalg import EPS, Array
from localpower.paper import datasets as registry
from localpower.paper.bounds import final_error_rate
from localpower.paper.problems import MODES
from localpower.paper.results import Outcome, Results
from localpower.paper.runner import Item
from localpower.paper.trials import TITLES
from localpower.show import figures
from localpower.show.chart import DASHES, Axis, Chart, Series, linear, logarithmic, looks

Panels = dict[str, list[Series]]

SIZES = {1: (5.2, 3.4), 2: (4.2, 2.9), 3: (3.4, 2.5)}  # of a panel in so many columns, in inches
RHO_LIMITS = 1e-3, 1e2
ERROR, FINAL = "sin θ(Z_t, U_5)", "final error"

PLURAL = {"dataset": "datasets", "method": "methods", "schedule": "schedules"}
SHORT = {"procrustes": "Orth", "signs": "Sign", "none": "Iden", "dr_svd": "DR-SVD"}
SHORT |= {"uda": "UDA", "wda": "WDA"}
SCHEDULES = {"constant": "constant", "halving": "halved every round"}
RHO_LINES = {
    "rho_aligned": "with OPT, measured",
    "bound_aligned": "with OPT, bound of Theorem 2",
    "rho_vanilla": "without alignment, measured",
    "bound_vanilla": "without alignment, bound of Theorem 2",
}


def draw(item: Item, results: Results, folder: Path) -> list[Path]:
    """Draw an item, one file for each mode; nothing if it is no figure or has no results."""
    if item.kind == "rho":
        sheets = {item.name: _rho(item, results.rho)}
    elif item.kind in KINDS:
        sheets = {f"{item.name}-{mode}": _sheet(item, results.of(item, mode)) for mode in MODES}
    else:
        sheets = {}
    return [_save(folder / f"{name}.svg", item, sheet) for name, sheet in sheets.items() if sheet]


def _sheet(item: Item, outcomes: list[Outcome]) -> list[Chart]:
    """Charts of the panels; errors of methods are on the same axis."""
    panels, across, up = KINDS[item.kind]
    found: Panels = panels(item, outcomes)

    def heights(some: Iterable[Series]) -> Axis:
        return logarithmic(np.concatenate([one.y for one in some]), up, most=9, tight=True)

    comparable = item.kind == "stability" or item.panels == "method"
    every = [one for series in found.values() for one in series]
    return [
        Chart(title, across(item, series), heights(every if comparable else series), series)
        for title, series in found.items()
    ]


def _save(path: Path, item: Item, charts: Sequence[Chart]) -> Path:
    columns = min(len(SIZES), len(charts))
    rows = math.ceil(len(charts) / columns)
    width, height = columns * SIZES[columns][0], rows * SIZES[columns][1]
    with figures.canvas("localpower reproduce", width, height + 0.8) as figure:
        for place, chart in enumerate(charts, start=1):
            axes = figure.add_subplot(rows, columns, place, title=chart.title)
            figures.draw(axes, chart)
        figure.supxlabel(charts[0].x.title, fontsize=11)
        figure.supylabel(charts[0].y.title, fontsize=11)
        _legend(figure, width)
        path.parent.mkdir(parents=True, exist_ok=True)
        return figures.save(figure, path, f"{item.title} ({path.stem})")


def _legend(figure: Any, width: float) -> None:
    """One legend for all panels, above them, in even rows that fit."""
    known: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    if known:
        fit = max(int(width / (0.085 * max(map(len, known)) + 1.0)), 1)
        even = math.ceil(len(known) / math.ceil(len(known) / fit))
        figure.legend(known.values(), known, loc="outside upper center", ncols=even, fontsize=11)


def _line(place: int, x: Any, errors: Iterable[float], label: str, **options: Any) -> Series:
    """A line with the colour, marker and dashes of its place."""
    look = looks(place) | {"dash": DASHES[place % len(DASHES)]} | options
    return Series("line", x, _drawable(errors), label=label, **look)


def _curve(place: int, errors: Any, label: str, **options: Any) -> Series:
    """Errors after every round, with about eight marks, not at the same places as others'."""
    every = max(len(errors) // 8, 1)
    options |= {"every": (place * every // 4 % every, every)}
    return _line(place, np.arange(len(errors)), errors, label, **options)


def _curves(item: Item, outcomes: list[Outcome]) -> Panels:
    def curve(value: Any, group: list[Outcome]) -> Series:
        place = _order(item, item.lines).index(value)
        return _curve(place, group[0].errors, _name(item.lines, value))

    return _panels(item, outcomes, item.lines, curve)


def _stability(item: Item, outcomes: list[Outcome]) -> Panels:
    panels: Panels = {}
    for p, group in _grouped(item, "steps", outcomes):
        for schedule, both in _grouped(item, "schedule", group):
            series = panels.setdefault(f"p = {p}, {SCHEDULES[schedule]}", [])
            for method, some in _grouped(item, "method", both):
                place = item.methods.index(method)
                repeats = [_drawable(outcome.errors) for outcome in some]
                thin = {"width": 0.7, "dash": "-", "marker": ""}
                series += [_curve(place, errors, "", **thin) for errors in repeats]
                middle = np.median(repeats, axis=0)
                series.append(_curve(place, middle, TITLES[method], width=2.5))
    return panels


def _grid(item: Item, outcomes: list[Outcome]) -> Panels:
    def line(m: int, group: list[Outcome]) -> Series:
        pairs = sorted((outcome.trial.steps, outcome.final) for outcome in group)
        steps, errors = zip(*pairs, strict=True)
        return _line(item.shards.index(m), steps, errors, _name("shards", m))

    return _panels(item, outcomes, "shards", line)


def _box(item: Item, outcomes: list[Outcome]) -> Panels:
    def box(method: str, group: list[Outcome]) -> Series:
        place = item.methods.index(method)
        finals = _drawable(outcome.final for outcome in group)
        return Series("box", place, finals[np.isfinite(finals)], looks(place)["colour"])

    return _panels(item, outcomes, "method", box)


def _rate(item: Item, outcomes: list[Outcome]) -> Panels:
    lines, guides = [], []
    for name, group in _grouped(item, "dataset", outcomes):
        some = [(m, found[0].n, _mean(found)) for m, found in _grouped(item, "shards", group)]
        x = np.array([final_error_rate(m, n) for m, n, _ in some])
        y = _drawable(error for _, _, error in some)
        label, good = _name("dataset", name), np.isfinite(y)
        if good.sum() > 1:
            log_x, log_y = np.log(x[good]), np.log(y[good])
            label += f": slope {np.polyfit(log_x, log_y, 1)[0]:.2f}"
            guide = x * np.exp(np.mean(log_y - log_x))
            guides.append(Series("line", x, guide, "grey", "slope 1", "--", "", width=1.0))
        lines.append(_line(item.datasets.index(name), x, y, label, dash="-"))
    return {"": lines + guides} if lines else {}


def _rho(item: Item, rows: list[dict[str, str]]) -> list[Chart]:
    wanted = [row for row in rows if int(row["steps"]) in item.steps]
    wanted.sort(key=lambda row: int(row["steps"]))
    cases = {row["case"]: [r for r in wanted if r["case"] == row["case"]] for row in wanted}
    return [_rho_chart(item, name, some) for name, some in cases.items()]


def _rho_chart(item: Item, name: str, rows: list[dict[str, str]]) -> Chart:
    """Measured residual errors and their bounds; what is beyond the axis is a mark and a note."""
    low, high = RHO_LIMITS
    steps = np.array([int(row["steps"]) for row in rows])
    series, notes = [], []
    for place, (column, label) in enumerate(RHO_LINES.items()):
        values = np.array([float(row[column]) for row in rows])
        dotted = {"dash": ":", "marker": ""} if place % 2 else {}
        series.append(_line(place // 2, steps, values, label, **dotted))
        low = min([low, *values[values > 0] / 2])
        above = np.flatnonzero(values > high)
        if len(above):
            colour, top = series[-1].colour, np.full(len(above), high)
            series.append(Series("line", steps[above], top, colour, "", "none", "^"))
            last = above[-1]
            notes.append((colour, f"▲ beyond the axis:\n{values[last]:.0e} at p = {steps[last]}"))
    y = logarithmic([low, high], "residual error ρ")
    return Chart(_case(name, rows), _steps_axis(item, series), y, series, notes=notes[::-1])


def _case(name: str, rows: list[dict[str, str]]) -> str:
    good = [int(row["steps"]) for row in rows if row["applies"] == "True"]
    holds = f"holds for p ≤ {max(good)}" if good else "does not hold"
    if len(good) == len(rows):
        holds = "holds for all p"
    values = f"κ = {float(rows[0]['kappa']):.3g}, η = {float(rows[0]['eta']):.2g}"
    return f"{name}: {values}\nη ≤ min(1/3κ, 1/p) {holds}"


def _panels(
    item: Item, outcomes: list[Outcome], lines: str, draw: Callable[[Any, list[Outcome]], Series]
) -> Panels:
    """A panel for each value of a field, and in it a series for each of another."""
    field = item.panels or "dataset"
    return {
        _name(field, value): [draw(*some) for some in _grouped(item, lines, group)]
        for value, group in _grouped(item, field, outcomes)
    }


def _order(item: Item, field: str) -> tuple[Any, ...]:
    order: tuple[Any, ...] = getattr(item, PLURAL.get(field, field))
    return order


def _grouped(
    item: Item, field: str, outcomes: list[Outcome]
) -> Iterable[tuple[Any, list[Outcome]]]:
    """Outcomes by a field of their trials, in the item's order, which is the registry's."""
    for value in _order(item, field):
        if group := [o for o in outcomes if getattr(o.trial, field) == value]:
            yield value, group


def _name(field: str, value: Any) -> str:
    if field == "dataset":
        known = registry.DATA_SETS.get(value)
        return known.title if known else str(value)
    return TITLES[value] if field == "method" else f"{'p' if field == 'steps' else 'm'} = {value}"


def _drawable(errors: Iterable[float]) -> Array:
    """Errors for a logarithmic axis: zero is at the rounding level, what is no number a gap."""
    values = np.array(list(errors), dtype=np.float64)
    values[values == 0] = EPS
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _mean(outcomes: list[Outcome]) -> float:
    return float(np.mean([outcome.final for outcome in outcomes]))


def _rounds_axis(item: Item, series: list[Series]) -> Axis:
    return linear(0, max(len(one.y) for one in series) - 1, "communications", whole=True)


def _steps_axis(item: Item, series: list[Series]) -> Axis:
    ticks = [(float(p), str(p)) for p in item.steps]
    return Axis(min(item.steps) / 1.1, max(item.steps) * 1.1, ticks, "local steps p", log=True)


def _methods_axis(item: Item, series: list[Series]) -> Axis:
    ticks = [(float(place), SHORT[method]) for place, method in enumerate(item.methods)]
    return Axis(-0.6, len(ticks) - 0.4, ticks, "method")


def _rate_axis(item: Item, series: list[Series]) -> Axis:
    return logarithmic(
        np.concatenate([one.x for one in series]), "√(m/n)", "{:g}".format, tight=True
    )


KINDS: dict[str, tuple[Any, Callable[[Item, list[Series]], Axis], str]] = {
    "curves": (_curves, _rounds_axis, ERROR),
    "stability": (_stability, _rounds_axis, ERROR),
    "grid": (_grid, _steps_axis, FINAL),
    "box": (_box, _methods_axis, FINAL),
    "rate": (_rate, _rate_axis, FINAL),
}
