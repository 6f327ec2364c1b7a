"""Pictures of a run with matplotlib, an extra; the page has the same ones without it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log10
from typing import Any

import numpy as np

from localpower.core.errors import MissingExtra
from localpower.show import summary as overview
from localpower.show.summary import (
    NEGATIVE,
    POSITIVE,
    SHOWN,
    TIMES,
    Fitted,
    Rows,
    Scores,
    Unlike,
)

STYLE = {
    "font.size": 11,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
}
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8c959f"  # of Okabe and Ito
MOST_BARS = 64
PANEL = 5.2, 3.4  # inches


def plot(
    result: Fitted,
    kind: str | None = None,
    data: Any = None,
    grid: tuple[int, int] | None = None,
) -> Any:
    """Draw one kind of picture, or all for which there is something to draw."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("Result.plot", "plot") from error
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not known: take one of {', '.join(KINDS)}, or None")
    layout = overview.grid_of(result, grid)
    wanted = [kind] if kind else list(KINDS)
    rows = overview.look(result, data, "shards" in wanted or "scores" in wanted, "scores" in wanted)
    missing = {name: why for name in wanted if (why := _missing(result, name, rows))}
    if kind in missing:
        raise ValueError(f"kind={kind!r}: {missing[kind]}")
    drawn = [name for name in wanted if name not in missing]
    columns = min(len(drawn), 2)
    lines = ceil(len(drawn) / columns)
    with style.context(["default", STYLE]):  # whatever the user's own settings are
        figure = Figure(
            figsize=(columns * PANEL[0], lines * PANEL[1]), layout="constrained", facecolor="white"
        )
        parts = np.ravel(figure.subfigures(lines, columns, squeeze=False))
        for name, part in zip(drawn, parts, strict=False):
            if name == "components" and layout is not None:
                _images(part, result, layout)
                continue
            axes = part.subplots()
            KINDS[name](axes, result, rows)
    return figure


def _missing(result: Fitted, kind: str, rows: Rows) -> str:
    """Say why there is nothing to draw."""
    if kind == "convergence" and not any(p.angle is not None for p in overview.convergence(result)):
        return "the run measured no error after its rounds; give tol, as tol=1e-8"
    if kind == "scores" and not isinstance(rows.scores, Scores):
        return "give data=, or run with return_u=True"
    if kind == "shards" and not isinstance(rows.unlike, Unlike):
        return rows.unlike.replace("result.report(path, data=data)", "result.plot(data=data)")
    if kind == "timeline" and not overview.timeline(result):
        return "the run did not note the times of its rounds; fit again"
    return ""


def _convergence(axes: Any, result: Fitted, rows: Rows) -> None:
    points = overview.convergence(result)
    for name, colour, line, label in (
        ("residual", ORANGE, "--", "largest residual"),
        ("angle", BLUE, "-", "bound of the sine of the angle"),
    ):
        known = [(p.rounds, getattr(p, name)) for p in points if getattr(p, name) is not None]
        axes.plot(*zip(*known, strict=True), line, color=colour, marker="o", label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(
        lambda value, _: f"1e{round(log10(value))}" if value != 1 else "1"
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    if tol := result.run.get("tol"):
        axes.axhline(tol, color=GREY, linestyle=":", label=f"asked for: {tol:g}")
    axes.set(title="Convergence", xlabel="rounds", ylabel="certified error")
    axes.legend()


def _variance(axes: Any, result: Fitted, rows: Rows) -> None:
    share = 100 * result.explained_variance_ratio.astype(np.float64)
    numbers = np.arange(1, len(share) + 1)
    axes.bar(numbers, share, color=BLUE, label="of one component")
    axes.plot(numbers, np.cumsum(share), "--", color=ORANGE, marker="o", label="of all so far")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title="Variance", xlabel="component", ylabel="share of the variance, %")
    axes.legend()


def _components(axes: Any, result: Fitted, rows: Rows) -> None:
    V = result.components[:SHOWN]
    most = np.abs(V).max(axis=1, keepdims=True)
    k, d = V.shape
    shown = axes.imshow(
        V / np.where(most > 0, most, 1.0),
        aspect="auto",
        cmap=_colours(),
        vmin=-1,
        vmax=1,
        interpolation="nearest",
        extent=(-0.5, d - 0.5, k + 0.5, 0.5),
    )
    axes.figure.colorbar(shown, ax=axes, label="weight, of the largest")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False)
    axes.set(title="Components", xlabel="column", ylabel="component")


def _colours() -> Any:
    """Orange for negative weights, blue for positive ones."""
    from matplotlib.colors import LinearSegmentedColormap

    ends = [[part / 255 for part in colour] for colour in (NEGATIVE, (255, 255, 255), POSITIVE)]
    return LinearSegmentedColormap.from_list("weights", ends)


def _images(part: Any, result: Fitted, layout: tuple[int, int]) -> None:
    """Components whose columns are pixels."""
    V = result.components[:SHOWN]
    columns = min(len(V), 5)
    lines = ceil(len(V) / columns)
    part.suptitle(f"Components as images of {layout[0]} × {layout[1]}", fontsize=11)
    for number, axes in enumerate(np.ravel(part.subplots(lines, columns, squeeze=False))):
        axes.set_axis_off()
        if number < len(V):
            v = V[number].reshape(layout)
            most = float(np.abs(v).max()) or 1.0
            axes.imshow(v, cmap=_colours(), vmin=-most, vmax=most, interpolation="nearest")
            axes.set_title(number + 1, fontsize=9)


def _scores(axes: Any, result: Fitted, rows: Rows) -> None:
    found = rows.scores
    assert isinstance(found, Scores)
    for marked, colour, label in ((False, BLUE, None), (True, ORANGE, "the shard that stands out")):
        x, y = found.points[found.marked == marked].T
        axes.scatter(x, y, s=8, color=colour, alpha=0.6, linewidths=0, label=label)
    if found.marked.any():
        axes.legend()
    single = len(result.components) == 1
    names = ("row", "score on component 1") if single else ("component 1", "component 2")
    some = "" if len(found.points) == found.of else f", {len(found.points)} of {found.of} rows"
    axes.set(title=f"Scores{some}", xlabel=names[0], ylabel=names[1])


def _shards(axes: Any, result: Fitted, rows: Rows) -> None:
    unlike = rows.unlike
    assert isinstance(unlike, Unlike)
    numbers, most = np.arange(len(unlike.etas)), unlike.farthest
    colours = [ORANGE if number == most and unlike.stands_out else BLUE for number in numbers]
    if len(numbers) <= MOST_BARS:
        axes.bar(numbers, unlike.etas, color=colours)
    else:
        axes.scatter(numbers, unlike.etas, s=8, color=colours)
    axes.xaxis.get_major_locator().set_params(integer=True)
    about = "≈ " if unlike.error else ""
    verb = "stands out" if unlike.stands_out else "differs most"
    axes.set(title=f"Shard {most} {verb}: η {about}{unlike.etas[most]:.2g}", xlabel="shard",
             ylabel="η: 0 is like the whole")  # fmt: skip


def _timeline(axes: Any, result: Fitted, rows: Rows) -> None:
    bars = overview.timeline(result)
    unit, factor = overview.unit_of(max(bar.seconds for bar in bars), TIMES)
    numbers = np.arange(1, len(bars) + 1)
    level = np.zeros(len(bars))
    for name, colour, label in (
        ("compute", BLUE, "computing"),
        ("wait", ORANGE, "waiting for the slowest"),
        ("rest", GREY, "messages and the rest"),
    ):
        part = np.array([getattr(bar, name) for bar in bars]) / factor
        axes.bar(numbers, part, bottom=level, color=colour, label=label)
        level += part
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title="Where the time went", xlabel="round, set-up and factors included",
             ylabel=f"time of a round, {unit}")  # fmt: skip
    axes.legend()


KINDS: dict[str, Callable[[Any, Fitted, Rows], None]] = {
    "convergence": _convergence,
    "variance": _variance,
    "components": _components,
    "scores": _scores,
    "shards": _shards,
    "timeline": _timeline,
}
