"""Figures of experiments as SVG: text stays text, the same results give the same bytes.

Every kind of figure is a set of panels, and a panel is a title and a function that paints it.
Matplotlib is an extra, imported only when something is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import MissingExtra
from localpower.core.linalg import Array
from localpower.paper import datasets as registry
from localpower.paper.bounds import final_error_rate
from localpower.paper.problems import MODES
from localpower.paper.results import Outcome, Results
from localpower.paper.runner import Item

Panels = dict[str, Callable[[Any], None]]

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "localpower",
    "font.size": 11,
    "axes.titlesize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
}
# Okabe and Ito's colours, which colour-blind readers tell apart; shape and dash say the same again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), ":", (0, (8, 2)))
GREY = "#767676"

SIZES = {1: (5.2, 3.4), 2: (4.2, 2.9), 3: (3.4, 2.5)}  # of a panel in so many columns, in inches
ROUNDING = float(np.finfo(np.float64).eps)  # where an error of exactly zero is drawn
RHO_LIMITS = 1e-3, 1e2

PLURAL = {"dataset": "datasets", "method": "methods", "schedule": "schedules"}
METHODS = {"procrustes": "OPT", "signs": "sign-fixing", "none": "vanilla"}
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
    if item.kind not in KINDS:
        return []
    panels, *labels = KINDS[item.kind]
    if item.kind == "rho":
        sheets = {item.name: panels(item, results.rho)}
    else:
        sheets = {f"{item.name}-{mode}": panels(item, results.of(item, mode)) for mode in MODES}
    sheets = {name: sheet for name, sheet in sheets.items() if sheet}
    return [_save(folder / f"{name}.svg", item, sheet, *labels) for name, sheet in sheets.items()]


def _save(path: Path, item: Item, panels: Panels, across: str, up: str) -> Path:
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("localpower reproduce", "plot") from error
    columns = min(len(SIZES), len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = columns * SIZES[columns][0], rows * SIZES[columns][1]
    comparable = item.kind == "stability" or item.panels == "method"
    with style.context(["default", STYLE]):  # whatever the user's own settings are
        figure = Figure(figsize=(width, height + 0.8), layout="constrained", facecolor="white")
        for place, (title, paint) in enumerate(panels.items(), start=1):
            first = figure.axes[0] if comparable and figure.axes else None
            axes = figure.add_subplot(rows, columns, place, yscale="log", sharey=first)
            axes.set_title(title)
            paint(axes)
            _label_ticks(axes.yaxis)
        figure.supxlabel(across, fontsize=STYLE["font.size"])
        figure.supylabel(up, fontsize=STYLE["font.size"])
        _legend(figure, width)
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"Date": None, "Title": f"{item.title} ({path.stem})"}
        figure.savefig(path, format="svg", metadata=about)
    return path


def _legend(figure: Any, width: float) -> None:
    """One legend for all panels, above them, in even rows that fit."""
    known: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    if known:
        fit = max(int(width / (0.085 * max(map(len, known)) + 1.0)), 1)
        even = math.ceil(len(known) / math.ceil(len(known) / fit))
        figure.legend(known.values(), known, loc="outside upper center", ncols=even)


def _label_ticks(axis: Any) -> None:
    """Label ticks as 1e-3, which is as large as other text and has no raised, small exponent.

    Ticks between powers of ten get a label only where fewer than two powers are in view: the
    coarsest digits of which two are.
    """

    def between(value: float, _: int | None) -> str:
        low, high = axis.get_view_interval()
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1,), (1, 2, 5), (1, 2, 3, 4, 6)):
            if sum(low <= d * 10.0**e <= high for d in digits for e in exponents) > 1:
                return _short(value) if _split(value)[0] in digits[1:] else ""
        return _short(value)

    axis.set_major_formatter(lambda value, _: _short(value))
    axis.set_minor_formatter(between)


def _split(value: float) -> tuple[float, int]:
    power = math.floor(math.log10(value) + 1e-9)
    return round(value / 10.0**power, 6), power


def _short(value: float) -> str:
    digit, power = _split(value)
    return f"{digit:.3g}e{power}" if power else f"{digit:.3g}"


def _panels(paint: Callable[..., None], item: Item, outcomes: list[Outcome]) -> Panels:
    field = item.panels or "dataset"
    groups = _grouped(item, field, outcomes)
    return {_name(field, value): partial(paint, item, group) for value, group in groups}


def _paint_curves(item: Item, outcomes: list[Outcome], axes: Any) -> None:
    for value, group in _grouped(item, item.lines, outcomes):
        look = _order(item, item.lines).index(value)
        _curve(axes, _drawable(group[0].errors), look, label=_name(item.lines, value))


def _curve(axes: Any, errors: Array, look: int, **options: Any) -> None:
    """Errors against communications, with about eight marks, not at the same places as others'."""
    every = max(len(errors) // 8, 1)
    axes.plot(errors, markevery=(look * every // 4 % every, every), **_look(look), **options)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _stability(item: Item, outcomes: list[Outcome]) -> Panels:
    return {
        f"p = {p}, {SCHEDULES[schedule]}": partial(_paint_stability, item, both)
        for p, group in _grouped(item, "steps", outcomes)
        for schedule, both in _grouped(item, "schedule", group)
    }


def _paint_stability(item: Item, outcomes: list[Outcome], axes: Any) -> None:
    for method, group in _grouped(item, "method", outcomes):
        look = item.methods.index(method)
        repeats = np.array([_drawable(outcome.errors) for outcome in group])
        for errors in repeats:
            axes.plot(errors, color=COLOURS[look], linewidth=0.7, alpha=0.5)
        _curve(axes, np.median(repeats, axis=0), look, label=METHODS[method], linewidth=2.5)


def _paint_grid(item: Item, outcomes: list[Outcome], axes: Any) -> None:
    for m, group in _grouped(item, "shards", outcomes):
        pairs = sorted((outcome.trial.steps, outcome.final) for outcome in group)
        steps, errors = zip(*pairs, strict=True)
        look = item.shards.index(m)
        axes.plot(steps, _drawable(errors), **_look(look), label=_name("shards", m))
    _ticks_at(axes, item.steps)


def _paint_box(item: Item, outcomes: list[Outcome], axes: Any) -> None:
    for place, method in enumerate(item.methods):
        finals = _drawable(o.final for o in outcomes if o.trial.method == method)
        box = axes.boxplot(
            [finals[np.isfinite(finals)]],
            positions=[place],
            widths=0.6,
            patch_artist=True,
            medianprops={"color": "black", "linewidth": 1.5},
            flierprops={"marker": ".", "markersize": 5},
        )
        box["boxes"][0].set_facecolor(COLOURS[place] + "80")
    names = [SHORT[method] for method in item.methods]
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="x")


def _rate(item: Item, outcomes: list[Outcome]) -> Panels:
    return {"": partial(_paint_rate, item, outcomes)} if outcomes else {}


def _paint_rate(item: Item, outcomes: list[Outcome], axes: Any) -> None:
    guides = []
    for name, group in _grouped(item, "dataset", outcomes):
        rows = [(m, some[0].n, _mean(some)) for m, some in _grouped(item, "shards", group)]
        x = np.array([final_error_rate(m, n) for m, n, _ in rows])
        y = _drawable(error for _, _, error in rows)
        label, good = _name("dataset", name), np.isfinite(y)
        if good.sum() > 1:
            log_x, log_y = np.log(x[good]), np.log(y[good])
            label += f": slope {np.polyfit(log_x, log_y, 1)[0]:.2f}"
            guides.append((x, x * np.exp(np.mean(log_y - log_x))))
        axes.plot(x, y, **_look(item.datasets.index(name)) | {"linestyle": "-"}, label=label)
    for x, y in guides:
        axes.plot(x, y, "--", color=GREY, linewidth=1, label="slope 1")
    axes.set_xscale("log")
    axes.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xticks([], minor=True)


def _rho(item: Item, rows: list[dict[str, str]]) -> Panels:
    wanted = sorted(
        (row for row in rows if int(row["steps"]) in item.steps), key=lambda row: int(row["steps"])
    )
    cases = {row["case"]: [r for r in wanted if r["case"] == row["case"]] for row in wanted}
    return {_case(name, rows): partial(_paint_rho, rows) for name, rows in cases.items()}


def _case(name: str, rows: list[dict[str, str]]) -> str:
    good = [int(row["steps"]) for row in rows if row["applies"] == "True"]
    holds = f"holds for p ≤ {max(good)}" if good else "does not hold"
    if len(good) == len(rows):
        holds = "holds for all p"
    values = f"κ = {float(rows[0]['kappa']):.3g}, η = {float(rows[0]['eta']):.2g}"
    return f"{name}: {values}\nη ≤ min(1/3κ, 1/p) {holds}"


def _paint_rho(rows: list[dict[str, str]], axes: Any) -> None:
    low, high = RHO_LIMITS
    steps = np.array([int(row["steps"]) for row in rows])
    for place, (column, label) in enumerate(RHO_LINES.items()):
        values = np.array([float(row[column]) for row in rows])
        look = _look(place // 2) | ({"linestyle": ":", "marker": "None"} if place % 2 else {})
        axes.plot(steps, _drawable(values), **look, label=label)
        low = min([low, *values[values > 0] / 2])
        above = np.flatnonzero(values > high)
        if len(above):
            axes.plot(steps[above], [high] * len(above), "^", color=look["color"], clip_on=False)
            note = f"▲ beyond the axis:\n{values[above[-1]]:.0e} at p = {steps[above[-1]]}"
            where = {"x": 0.97, "y": 0.93 - 0.12 * (3 - place), "transform": axes.transAxes}
            axes.text(**where, s=note, ha="right", va="top", color=look["color"])
    axes.set_ylim(low, high)
    _ticks_at(axes, steps)


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
    return METHODS[value] if field == "method" else f"{'p' if field == 'steps' else 'm'} = {value}"


def _look(place: int) -> dict[str, Any]:
    looks = [COLOURS, MARKERS, DASHES]
    color, marker, dashes = (values[place % len(values)] for values in looks)
    return {"color": color, "marker": marker, "linestyle": dashes}


def _drawable(errors: Iterable[float]) -> Array:
    """Errors for a logarithmic axis: zero is at the rounding level, what is no number a gap."""
    values = np.array(list(errors), dtype=np.float64)
    values[values == 0] = ROUNDING
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _mean(outcomes: list[Outcome]) -> float:
    return float(np.mean([outcome.final for outcome in outcomes]))


def _ticks_at(axes: Any, steps: Iterable[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(steps), [str(p) for p in steps])
    axes.set_xticks([], minor=True)


ERROR, FINAL = "sin θ(Z_t, U_5)", "final error"
KINDS: dict[str, tuple[Any, str, str]] = {  # panels, label of x, label of y
    "curves": (partial(_panels, _paint_curves), "communications", ERROR),
    "stability": (_stability, "communications", ERROR),
    "grid": (partial(_panels, _paint_grid), "local steps p", FINAL),
    "box": (partial(_panels, _paint_box), "method", FINAL),
    "rate": (_rate, "√(m/n)", FINAL),
    "rho": (_rho, "local steps p", "residual error ρ"),
}
