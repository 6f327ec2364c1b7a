"""Charts drawn with matplotlib, an extra; the page has the same ones without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import ceil
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from localpower.core.errors import MissingExtra
from localpower.core.files import replacing
from localpower.show import summary
from localpower.show.chart import COLOURS, Chart, Series
from localpower.show.charts import CHARTS, comparison
from localpower.show.rows import look
from localpower.show.summary import NEGATIVE, POSITIVE, SHOWN

if TYPE_CHECKING:
    from localpower.result import Result

STYLE = {
    **{"font.size": 11, "axes.titlesize": 11, "xtick.labelsize": 10, "ytick.labelsize": 10},
    **{"legend.edgecolor": "none", "legend.fontsize": 9, "legend.handlelength": 2.6},
    **{"lines.markersize": 5, "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True},
    **{"svg.fonttype": "none", "svg.hashsalt": "localpower"},  # text stays text, bytes repeat
}
HALO = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}  # of names on points
PANEL = 5.2, 3.6  # inches
WIDE, HANDLE = 72, 8  # characters of a legend's line, and what takes the room of such


@contextmanager
def canvas(what: str, width: float, height: float) -> Iterator[Any]:
    """An empty figure in our style, whatever the user's own settings are; `what` needs it."""
    try:
        from matplotlib import style

        from localpower.show.picture import Picture
    except ImportError as error:
        raise MissingExtra(what, "plot") from error
    with style.context(["default", STYLE]):
        yield Picture(figsize=(width, height), layout="constrained", facecolor="white")


def picture_path(path: str | PathLike[str]) -> Path:
    """Check that a picture can be drawn and written to `path`."""
    target = summary.output_path(path, "a picture", (".png", ".svg"))
    if find_spec("matplotlib") is None:
        raise MissingExtra("the picture of a comparison", "plot")
    return target


def save(figure: Any, path: Path, title: str) -> Path:
    """Write a picture: the same figure gives the same bytes."""
    kind = path.suffix[1:].lower()
    about = {"Title": title} | ({"Date": None} if kind == "svg" else {})
    with replacing(path) as stream:
        figure.savefig(stream, format=kind, dpi=150, metadata=about)
    return path


def plot(
    result: Result,
    kind: str | None = None,
    data: Any = None,
    grid: tuple[int, int] | None = None,
    color: Any = None,
    ids: Any = None,
) -> Any:
    """Draw one kind of chart, or all for which there is something to draw."""
    if kind is not None and not (isinstance(kind, str) and kind in CHARTS):
        given = f"={kind!r}" if isinstance(kind, str) else f" of type {type(kind).__name__}"
        raise ValueError(
            f"kind{given} is not known: take one of {', '.join(CHARTS)}, or None; rows are data="
        )
    layout = summary.grid_of(result, grid)
    wanted = [kind] if kind else list(CHARTS)
    points = "scores" in wanted or "biplot" in wanted
    rows = look(result, data, points or "shards" in wanted, points, color, ids)
    found = {name: CHARTS[name](result, rows) for name in wanted}
    drawn = {name: chart for name, chart in found.items() if isinstance(chart, Chart)}
    if kind is None and "convergence" in drawn and len(drawn["convergence"].marks) == 1:
        drawn.pop("convergence")  # one point says nothing of how a run converged
    if not drawn:
        raise ValueError(f"kind={kind!r}: {found[wanted[0]]}")
    columns = min(len(drawn), 2)
    lines = ceil(len(drawn) / columns)
    with canvas("Result.plot", columns * PANEL[0], lines * PANEL[1]) as figure:
        parts = np.ravel(figure.subfigures(lines, columns, squeeze=False))
        for (name, chart), part in zip(drawn.items(), parts, strict=False):
            if name == "components" and layout is not None:
                _images(part, result, layout)
            else:
                axes = part.subplots()
                draw(axes, chart)
                axes.set(title=chart.title, xlabel=chart.x.title, ylabel=chart.y.title)
                _, labels = axes.get_legend_handles_labels()
                if labels:  # below the picture, where it lies on nothing
                    fitting = WIDE // (max(map(len, labels)) + HANDLE)
                    part.legend(loc="outside lower center", ncols=min(max(fitting, 1), 4))
    return figure


def compare(runs: Sequence[Any], path: str | PathLike[str] | None, about: str, tol: float,
            reference: str) -> Any:  # fmt: skip
    """Draw methods side by side, against rounds and against bytes; write that to a path."""
    target = None if path is None else picture_path(path)
    with canvas("the picture of a comparison", 11.5, 4.6) as figure:
        for axes, across in zip(figure.subplots(1, 2), ("rounds", "bytes"), strict=True):
            chart = comparison(runs, across, tol, reference)
            draw(axes, chart)
            axes.set(xlabel=chart.x.title, ylabel=chart.y.title if across == "rounds" else "")
        figure.suptitle(about, fontsize=11, x=0.01, ha="left")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
        return figure if target is None else save(figure, target, f"Methods compared: {about}")


def draw(axes: Any, chart: Chart) -> None:
    """Draw a chart: all of it but its titles and its legend."""
    for which, axis in (("x", chart.x), ("y", chart.y)):
        if axis.log:
            axes.set(**{f"{which}scale": "log"})
        axes.set(**{f"{which}lim": (axis.low, axis.high)})
        values, labels = zip(*axis.ticks, strict=True) if axis.ticks else ((), ())
        getattr(axes, f"set_{which}ticks")(values, labels)
        getattr(axes, f"set_{which}ticks")([], minor=True)
    for one in chart.series:
        _draw_series(axes, chart, one)
    if chart.image is not None:
        edges = (chart.x.low, chart.x.high, chart.y.low, chart.y.high)
        shown = _weights(axes, chart.image, aspect="auto", extent=edges)
        axes.figure.colorbar(shown, ax=axes, label="weight, of the largest")
        axes.grid(visible=False)
    if any(one.kind == "box" for one in chart.series):
        axes.grid(visible=False, axis="x")
        for name in axes.get_xticklabels():
            name.set(rotation=40, ha="right", rotation_mode="anchor")
    for name in chart.names:
        side = "right" if name.x < 0 else "left"
        axes.text(name.x, name.y, f" {name.tip} ", ha=side, va="center", fontsize=8, bbox=HALO)
    for number, (colour, text) in enumerate(chart.notes):
        place = {"x": 0.97, "y": 0.93 - 0.24 * number, "transform": axes.transAxes}
        axes.text(**place, s=text, ha="right", va="top", color=COLOURS[colour])


def _draw_series(axes: Any, chart: Chart, one: Series) -> None:
    look: dict[str, Any] = {"color": COLOURS[one.colour], "label": one.label or None}
    if one.kind == "bars":
        axes.bar(one.x, one.y - one.base, bottom=one.base, width=0.72, **look)
    elif one.kind in ("points", "cloud"):
        faint = {"alpha": 0.6, "s": 12} if one.kind == "cloud" else {"s": 8}
        axes.scatter(one.x, one.y, linewidths=0, marker=one.marker, **faint, **look)
    elif one.kind == "arrows":
        for x, y in zip(one.x, one.y, strict=True):
            axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": "black"})
    elif one.kind == "level":
        axes.axhline(one.y, linestyle=one.dash, linewidth=1, **look)
    elif one.kind == "box":
        box = axes.boxplot(
            [one.y],
            positions=[one.x],
            widths=0.6,
            patch_artist=True,
            manage_ticks=False,
            medianprops={"color": "black", "linewidth": 1.5},
            flierprops={"marker": ".", "markersize": 5},
        )
        box["boxes"][0].set_facecolor(COLOURS[one.colour] + "80")
    else:
        y = np.asarray(one.y, dtype=np.float64)
        beyond = bool((y > chart.y.high).any())
        dots = {"marker": one.marker, "markevery": one.every, "clip_on": beyond}
        dots |= {"markersize": 9} if one.dash == "none" else {}
        look |= {"alpha": 0.5} if one.width < 1 else {}
        axes.plot(one.x, y, linestyle=one.dash, linewidth=one.width, **dots, **look)


def _weights(axes: Any, weights: Any, **options: Any) -> Any:
    """An image of weights: orange for negative ones, blue for positive ones."""
    from matplotlib.colors import LinearSegmentedColormap

    ends = [[part / 255 for part in colour] for colour in (NEGATIVE, (255, 255, 255), POSITIVE)]
    colours = LinearSegmentedColormap.from_list("weights", ends)
    return axes.imshow(weights, cmap=colours, vmin=-1, vmax=1, interpolation="nearest", **options)


def _images(part: Any, result: Result, layout: tuple[int, int]) -> None:
    """Components whose columns are pixels."""
    V = result.components[:SHOWN]
    columns = min(len(V), 5)
    part.suptitle(f"Components as images of {layout[0]} × {layout[1]}", fontsize=11)
    places = np.ravel(part.subplots(ceil(len(V) / columns), columns, squeeze=False))
    for number, axes in enumerate(places):
        axes.set_axis_off()
        if number < len(V):
            _weights(axes, summary.relative(V[number].reshape(layout)))
            axes.set_title(number + 1, fontsize=9)
