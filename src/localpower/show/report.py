"""The page of a run: one HTML file, with everything in it and nothing fetched.

Pictures are stretched to the width of the window, so text stands beside them as HTML, at places in
per cent. Whatever comes from data or options is escaped, and the page allows no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.linalg import Array
from localpower.show import summary as overview
from localpower.show.summary import (
    MOST_ROUNDS,
    NEGATIVE,
    POSITIVE,
    SHOWN,
    TIMES,
    UNITS,
    Fitted,
    Rows,
    Scores,
    Unlike,
    evenly,
    quantity,
)

MOST_BARS = 64  # shards that get a bar each
HEAVY = 5  # columns that are named for a component
TOLD = 42  # characters, with blanks to the longest, of names that fit below a picture
LONG, NARROW = 60, 14  # characters of a name that are shown, and that fit a narrow column
FLOOR = 1e-17  # where an error of zero is drawn
AXES = {
    "rounds": ("rounds", None),
    "bytes": ("bytes moved, up and down, since the first round", UNITS),
    "seconds": ("seconds since the first round", TIMES),
}


def write(
    result: Fitted,
    path: str | os.PathLike[str],
    data: Any = None,
    grid: tuple[int, int] | None = None,
) -> Path:
    """Write the page of a run to `path`."""
    target = page_path(path)
    target.write_text(page(result, data, grid), encoding="utf-8")
    return target


def page_path(path: str | os.PathLike[str]) -> Path:
    """Check that a page can be written to `path`."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{target}: a page is written as .html; give such a name")
    if not target.parent.is_dir():
        raise ValueError(f"{target}: there is no folder {target.parent}; make it first")
    return target


def page(result: Fitted, data: Any = None, grid: tuple[int, int] | None = None) -> str:
    """Return the page as HTML."""
    layout = overview.grid_of(result, grid)
    rows = overview.look(result, data)
    style, script = (
        files("localpower").joinpath(name).read_text("utf-8")
        for name in ("report.css", "report.js")
    )
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src"
    policy += f" 'sha256-{allowed}'"
    parts = (
        *(_head(result), _convergence(result), _variance(result), _components(result, layout)),
        f'<div class="pair">{_scores(result, rows)}{_shards(rows.unlike)}</div>',
        *(_timeline(result), _faults(result), _repeat(result)),
    )
    run = result.run
    title = escape(f"{run.get('method')}, rank {run.get('rank')}: a run of localpower")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style></head>\n<body>\n" + "\n".join(parts) + "\n<footer class='soft'>"
        f"localpower {escape(str(run.get('version')))}</footer>\n<script>{script}</script>\n"
        "</body></html>\n"
    )


def _head(result: Fitted) -> str:
    run, ledger = result.run, result.ledger
    found = overview.verdict(result)
    kind = "principal components" if run.get("center") else "singular vectors"
    advice = f"<p><b>What to change:</b> {escape(found.advice)}</p>" if found.advice else ""
    at_once = (run.get("timeline") or {}).get("at_once")
    seconds = sum(record.seconds for record in result.history)
    facts = {
        "Data": (
            f"{_count(run, 'rows')} rows × {_count(run, 'columns')} columns",
            f"{run.get('dtype')}, {'centred' if run.get('center') else 'not centred'}, "
            f"{'scaled by ' + str(run['scale']) if run.get('scale') else 'not scaled'}",
        ),
        "Asked for": (
            f"{run.get('rank')} {kind}",
            f"to a sine of {overview.power(run['tol'])}{_certainty(run)}"
            if run.get("tol")
            else "without a tolerance",
        ),
        "Method": (str(run.get("method")), str(run.get("why"))),
        "Where": (
            f"{_count(run, 'workers')} shards on {run.get('engine')}",
            f"{run.get('partition')}" + (f", {at_once} worked on at once" if at_once else ""),
        ),
        "Rounds": (
            f"{len(result.history):,} of the method",
            f"{ledger.rounds:,} with set-up and factors"
            + (f", and {ledger.exchanges} exchanges" if ledger.exchanges else ""),
        ),
        "Moved": (
            f"{quantity(ledger.bytes_up, UNITS)} up, {quantity(ledger.bytes_down, UNITS)} down",
            f"in {ledger.messages:,} messages, set-up and factors included",
        ),
        "Time": (quantity(seconds, TIMES), "of the method's rounds"),
        "Seed": (str(run.get("seed", "")), "" if run.get("seed") is not None else "not recorded"),
    }
    listed = "".join(
        f"<div><dt>{name}</dt><dd>{_text(value)}<small>{_text(more)}</small></dd></div>"
        for name, (value, more) in facts.items()
    )
    return (
        f"<header><h1>{_count(run, 'rank')} {kind} of {_count(run, 'rows')} rows</h1>"
        f'<p class="soft">A run of localpower, {escape(str(run.get("method")))}</p></header>\n'
        f'<div class="verdict {found.mood}" id="verdict"><strong>{escape(found.title)}</strong>'
        f"<p>{_text(found.text)}</p>{advice}</div>\n"
        f'<dl class="facts">{listed}</dl>'
    )


def _certainty(run: Mapping[str, Any]) -> str:
    """How sure the answer was asked to be; runs of old versions do not tell."""
    wanted = run.get("certainty")
    if not wanted:
        return ""
    return ", proven" if wanted == "proven" else f", proven or with p ≤ {overview.power(wanted)}"


@dataclass(frozen=True, slots=True)
class Axis:
    """Limits of an axis, its ticks with their labels, and what it is called."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str

    def at(self, value: float) -> float:
        """Place of a value, in per cent."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(100 * min(max(share, 0.0), 1.0), 3)


def linear(
    low: float,
    high: float,
    title: str,
    units: Mapping[str, float] | None = None,
    whole: bool = False,
) -> Axis:
    """An axis with round numbers, in the unit that fits."""
    high = high if high > low else low + 1.0
    unit, factor = ("", 1.0) if units is None else overview.unit_of(high, units)
    places: Iterable[float] = overview.ticks(low / factor, high / factor)
    if whole:
        places = overview.counts(round(low), round(high))
    ends = [(t * factor, _number(t) + (f" {unit}" if unit and t else "")) for t in places]
    return Axis(low, high, ends, title)


def numbered(first: int, last: int, title: str) -> Axis:
    """An axis of things with numbers, half of one to spare at the ends."""
    places = [(float(t), f"{t:,}") for t in overview.counts(first, last)]
    return Axis(first - 0.5, last + 0.5, places, title)


def _number(value: float) -> str:
    return f"{value:,.6g}".replace("-", "−")


def logarithmic(values: Sequence[float], title: str) -> Axis:
    """An axis of powers of ten; places are those of logarithms."""
    powers = overview.decades(values)
    return Axis(
        powers[0], powers[-1], [(p, f"1e{_number(p)}" if p else "1") for p in powers], title
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """A place that tells its values; without `y` it is as tall as the picture."""

    x: float
    y: float | None
    tip: str

    def place(self, x: Axis, y: Axis) -> str:
        """Where it is, as attributes."""
        left = f"left:{x.at(self.x)}%"
        if self.y is None:
            return f'class="tall" style="{left}"'
        return f'style="{left};top:{round(100 - y.at(self.y), 3)}%"'


def _chart(
    x: Axis,
    y: Axis,
    inside: str,
    marks: Iterable[Mark] = (),
    label: str = "",
    kind: str = "",
    style: str = "",
) -> str:
    """A picture with ticks and marks; `inside` is drawn on a square of 100 by 100."""
    grid = (
        ""
        if kind == "low"
        else "".join(
            f'<line class="{"axis" if value == y.low else "grid"}" x1="0" x2="100" '
            f'y1="{100 - y.at(value)}" y2="{100 - y.at(value)}"/>'
            for value, _ in y.ticks
        )
    )
    names = "".join(f'<span class="y" style="top:{100 - y.at(v)}%">{t}</span>' for v, t in y.ticks)
    names += "".join(f'<span class="x" style="left:{x.at(v)}%">{t}</span>' for v, t in x.ticks)
    spots = "".join(
        f'<i role="img" tabindex="{-1 if number else 0}" {mark.place(x, y)} '
        f'aria-label="{escape(mark.tip)}" data-tip="{escape(mark.tip)}"></i>'
        for number, mark in enumerate(marks)
    )
    return (
        f'<div class="chart" role="group" aria-label="{escape(label)}">'
        f'<div class="up">{escape(y.title)}</div><div class="area {kind}" style="{style}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{grid}{inside}'
        f'</svg>{names}{spots}</div><div class="across">{escape(x.title)}</div></div>'
    )


def _line(x: Axis, y: Axis, points: Sequence[tuple[float, float]], look: str) -> str:
    """A line through points, and a dot on each if they are few."""
    places = [f"{x.at(a)} {100 - y.at(b)}" for a, b in points]
    if not places:
        return ""
    dots = "".join(f"M{place}h0" for place in places)
    drawn = f'<path class="line {look}" d="M{"L".join(places)}"/>'
    few = len(places) <= MOST_BARS
    return drawn + (f'<path class="dots {look.split()[0]}" d="{dots}"/>' if few else "")


def _cloud(x: Axis, y: Axis, points: Array, look: str, kind: str = "cloud") -> str:
    dots = "".join(f"M{x.at(a)} {round(100 - y.at(b), 3)}h0" for a, b in points.tolist())
    return f'<path class="{kind} {look}" d="{dots}"/>' if dots else ""


def _column(x: Axis, y: Axis, at: float, low: float, high: float, look: str) -> str:
    """A bar around `at` on the x axis, from `low` to `high`."""
    width = x.at(x.low + 0.72)
    top, bottom = y.at(high), y.at(low)
    return (
        f'<rect class="{look}" x="{round(x.at(at) - width / 2, 3)}" y="{round(100 - top, 3)}" '
        f'width="{width}" height="{round(top - bottom, 3)}"/>'
    )


def _key(entries: Iterable[tuple[str, str, str]]) -> str:
    """The legend: colour, kind of mark, and what it stands for."""
    listed = "".join(
        f'<li><b class="{colour} {kind}"></b>{escape(text)}</li>' for colour, kind, text in entries
    )
    return f'<ul class="key">{listed}</ul>'


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>'


def _soft(text: str) -> str:
    return f'<p class="soft">{_text(text)}</p>'


def _text(text: str) -> str:
    """Escape, and do not break lines within numbers."""
    return re.sub(r"(\de)-(\d)", r"\1−\2", escape(text))


def _count(run: Mapping[str, Any], name: str) -> str:
    return f"{run[name]:,}" if isinstance(run.get(name), int) else "?"


def _convergence(result: Fitted) -> str:
    points = overview.convergence(result)
    known = [p for p in points if p.angle is not None or p.residual is not None]
    tol = float(result.run.get("tol") or 0.0)
    if not known:
        text = (
            "This run measured nothing of its error after a round, so there is no curve. Methods "
            "that iterate tell it if tol is given, as tol=1e-8."
        )
        return _section("convergence", "Convergence", _soft(text))
    if len(known) == 1:
        only = known[0]
        text = f"One round told of its error: {', '.join(_told(only))}."
        return _section("convergence", "Convergence", _soft(text))
    values = [max(v, FLOOR) for p in known for v in (p.angle, p.residual) if v is not None]
    y = logarithmic([*values, *([tol] if tol else [])], "sine of the angle, and residual")
    panels = "".join(
        f'<div class="panel {name}">{_curve(known, name, y, tol)}</div>' for name in AXES
    )
    buttons = "".join(
        f'<input type="radio" name="against" id="by-{name}"{" checked" * (name == "rounds")}>'
        f'<label for="by-{name}">{name}</label>'
        for name in AXES
    )
    legend = [
        ("blue", "", "bound of the sine of the angle to the answer"),
        ("orange", "dashed", "largest residual of a component"),
    ]
    key = _key(
        [*legend, *([("grey", "dashed", f"asked for: {overview.power(tol)}")] if tol else [])]
    )
    few = "" if len(points) == len(result.history) else f" {len(points)} rounds, evenly chosen."
    note = _soft(
        "What is known after each round; points tell how sure it is. A bound of 1 says nothing "
        "yet. Residuals are relative "
        f"to the component's own eigenvalue.{few}"
    )
    switch = f'<fieldset class="switch"><legend>against</legend>{buttons}{panels}</fieldset>'
    return _section("convergence", "Convergence", note + key + switch)


def _told(point: overview.Point) -> list[str]:
    angle = "not known" if point.angle is None else f"at most {point.angle:.2e}"
    residual = "not known" if point.residual is None else f"{point.residual:.2e}"
    sure = f" ({point.sure or 'not certain'})" if (point.angle or 1.0) < 1 else ""
    return [f"sine of the angle {angle}{sure}", f"residual {residual}"]


def _curve(points: Sequence[overview.Point], name: str, y: Axis, tol: float) -> str:
    title, units = AXES[name]

    def across(point: overview.Point) -> float:
        return float(getattr(point, name))

    start = points[0].rounds if name == "rounds" else 0.0
    x = linear(start, across(points[-1]), title, units, whole=name == "rounds")

    def log(value: float) -> float:
        return float(np.log10(max(value, FLOOR)))

    angles = [(across(p), log(p.angle)) for p in points if p.angle is not None]
    residuals = [(across(p), log(p.residual)) for p in points if p.residual is not None]
    inside = _line(x, y, residuals, "orange dash") + _line(x, y, angles, "blue")
    if tol:
        level = 100 - y.at(log(tol))
        inside += f'<line class="line grey dash" x1="0" x2="100" y1="{level}" y2="{level}"/>'
    marks = [
        Mark(
            across(p),
            log(p.angle if p.angle is not None else p.residual or FLOOR),
            "\n".join(
                [
                    f"round {p.rounds}, {p.steps} local step{'s' * (p.steps != 1)}",
                    *_told(p),
                    f"{quantity(p.bytes, UNITS)} moved, {quantity(p.seconds, TIMES)}",
                ]
            ),
        )
        for p in points
    ]
    return _chart(x, y, inside, marks, f"certified error against {name}")


def _variance(result: Fitted) -> str:
    share = np.nan_to_num(result.explained_variance_ratio.astype(np.float64), posinf=0.0)
    total = np.cumsum(share)
    k = len(share)
    numbers = evenly(k, MOST_ROUNDS)
    x = numbered(1, k, "component")
    y = linear(0.0, 100 * float(total[-1]) * 1.05, "share of the variance, %")
    inside = "".join(_column(x, y, i + 1, 0.0, 100 * share[i], "blue") for i in numbers)
    inside += _line(x, y, [(i + 1.0, 100 * total[i]) for i in numbers], "orange dash")
    marks = [
        Mark(
            i + 1,
            None,
            f"component {i + 1}\n{_share(share[i])} of the variance, {_share(total[i])} so far",
        )
        for i in numbers
    ]
    key = _key([("blue", "box", "of one component"), ("orange", "dashed", "of all so far")])
    many = f"The {k} components explain" if k > 1 else "The component explains"
    note = _soft(f"{many} {_share(total[-1])} of the variance of the data.")
    chart = _chart(x, y, inside, marks, "share of the variance of each component")
    return _section(
        "variance",
        "Variance",
        f'{note}<div class="pair"><div>{key}{chart}</div>'
        f"<div>{_values(result, share, total)}</div></div>",
    )


def _share(value: float) -> str:
    return f"{100 * value:.3g}%"


def _values(result: Fitted, share: Array, total: Array) -> str:
    """Singular values and residuals of the leading components, as a table."""
    k = min(len(share), 2 * SHOWN)
    residuals = result.residuals
    heads = ["component", "singular value", "share", "so far"]
    heads += [] if residuals is None else ["residual"]
    rows = [
        [f"{i + 1}", f"{result.singular_values[i]:.6g}", _share(share[i]), _share(total[i])]
        + ([] if residuals is None else [f"{residuals[i]:.1e}" if i < len(residuals) else ""])
        for i in range(k)
    ]
    more = _soft(f"The first {k} of {len(share)}.") if k < len(share) else ""
    return _table(heads, rows) + more


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[int] = ()) -> str:
    """A table; columns whose numbers are in `text` are set left."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="text"' if i in text else "" for i in range(len(cells))]
        return "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )

    body = "".join(f"<tr>{line(cells, 'td')}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{line(heads, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _components(result: Fitted, layout: tuple[int, int] | None) -> str:
    V = np.asarray(result.components[:SHOWN], dtype=np.float64)
    k, d = V.shape
    names = [_short(name) for name in overview.column_names(result)]
    every = len(result.components)
    shown = f"the first {k} of {every} components" if k < every else f"all {k} components"
    note = (
        f"Weights of the columns in {shown if every > 1 else 'the component'}: blue is positive, "
        "orange negative, and full colour is the largest of a component."
    )
    return _section(
        "components",
        "Components",
        _soft(note) + _images(V, layout) + _heat(V, names) + _heavy(V, names, d),
    )


def _images(V: Array, layout: tuple[int, int] | None) -> str:
    if layout is None:
        return ""
    rows, columns = layout
    pictures = "".join(
        f'<li><figure><img src="{_png(_coloured(v.reshape(layout)))}" '
        f'alt="component {number} as an image"><figcaption>component {number}</figcaption>'
        "</figure></li>"
        for number, v in enumerate(V, start=1)
    )
    note = _soft(
        f"As images of {rows} × {columns} pixels, row after row. If columns are no pixels, look at "
        "the map below; another layout is given by grid=(rows, columns) or --grid."
    )
    return f'<ul class="images">{pictures}</ul>{note}'


def _heat(V: Array, names: Sequence[str]) -> str:
    """Components by columns; of many columns, the heaviest of some side by side."""
    k, d = V.shape
    parts = np.array_split(np.arange(d), min(d, MOST_ROUNDS))
    heaviest = np.array([[part[np.abs(v[part]).argmax()] for part in parts] for v in V])
    shown = np.take_along_axis(V, heaviest, axis=1)
    many = f", the heaviest of each {len(parts[0])} side by side" if d > len(parts) else ""
    places = [(t * len(parts) / d, f"{t:,}") for t in overview.counts(0, d - 1)]
    if d * max(map(len, names)) <= TOLD:
        places = list(enumerate(names))
    x = Axis(-0.5, len(parts) - 0.5, places, f"column{many}")
    y = Axis(-k, 0, [(-i - 0.5, str(i + 1)) for i in range(k)], "component")
    image = (
        f'<image href="{_png(_coloured(shown, each=True))}" width="100" height="100" '
        'preserveAspectRatio="none"/>'
    )
    marks = [
        Mark(
            j,
            None,
            (names[part[0]] if len(part) == 1 else f"{names[part[0]]} to {names[part[-1]]}")
            + "".join(f"\ncomponent {i + 1}: {_weight(shown[i, j])}" for i in range(k)),
        )
        for j, part in enumerate(parts)
    ]
    return _chart(x, y, image, marks, "weights of the columns", "low", f"--rows:{k}")


def _heavy(V: Array, names: Sequence[str], d: int) -> str:
    """Name the columns of each component that have the largest weights."""
    listed = []
    for number, v in enumerate(V, start=1):
        first = np.argsort(-np.abs(v), kind="stable")[:HEAVY]
        lines = "".join(f"<span>{escape(names[j])}<b>{_weight(v[j])}</b></span>" for j in first)
        listed.append(f"<li><strong>component {number}</strong>{lines}</li>")
    title = "<h3>Heaviest columns</h3>" if d > HEAVY else "<h3>Weights</h3>"
    long = " long" * (max(map(len, names)) > NARROW)
    return f'{title}<ul class="heavy{long}">{"".join(listed)}</ul>'


def _weight(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _short(name: str) -> str:
    return name if len(name) <= LONG else f"{name[: LONG - 1]}…"


def _coloured(weights: Array, each: bool = False) -> Array:
    """Pixels (h, w, 4) of weights, which show through where those are small."""
    size = np.abs(weights)
    most = size.max(axis=1, keepdims=True) if each else size.max(initial=0.0)
    pixels = np.empty((*weights.shape, 4), np.uint8)
    pixels[..., :3] = np.where(weights[..., None] >= 0, POSITIVE, NEGATIVE)
    pixels[..., 3] = np.round(255 * size / np.where(most > 0, most, 1.0))
    return pixels


def _png(pixels: Array) -> str:
    """An image as the address of its own data."""
    height, width, _ = pixels.shape
    lines = np.hstack([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)])

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
    encoded = base64.b64encode(b"\x89PNG\r\n\x1a\n" + data + chunk(b"IEND", b"")).decode()
    return f"data:image/png;base64,{encoded}"


def _scores(result: Fitted, rows: Rows) -> str:
    found = rows.scores
    if not isinstance(found, Scores):
        text = f"{found} Or run with return_u=True." if found else ""
        return _section("scores", "Scores", _soft(text))
    points = found.points[np.isfinite(found.points).all(axis=1)]
    marked = found.marked[np.isfinite(found.points).all(axis=1)]
    single = len(result.components) == 1
    titles = ("row", "score on component 1") if single else ("component 1", "component 2")
    x, y = (linear(*_limits(values), title) for values, title in zip(points.T, titles, strict=True))
    inside = _cloud(x, y, points[~marked], "blue") + _cloud(x, y, points[marked], "orange")
    drawn = "all" if len(points) == found.of else f"{len(points):,}, evenly drawn, of"
    text = f"Rows on the first components: {drawn} {found.of:,} rows."
    key = ""
    if marked.any() and isinstance(rows.unlike, Unlike):
        name = _named(rows.unlike, rows.unlike.farthest)
        key = _key(
            [("orange", "box", f"{name}, which differs most"), ("blue", "box", "the others")]
        )
    chart = _chart(x, y, inside, (), "scatter of the first two scores", "square")
    return _section("scores", "Scores", _soft(text) + key + chart)


def _limits(values: Array) -> tuple[float, float]:
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room


def _named(unlike: Unlike, number: int) -> str:
    name = f"shard {number}"
    return f"{name} ({_short(unlike.names[number])})" if unlike.names else name


def _shards(unlike: Unlike | str) -> str:
    title = "How much shards differ"
    if isinstance(unlike, str):
        return _section("shards", title, _soft(unlike))
    etas, m, most = unlike.etas, len(unlike.etas), unlike.farthest
    if m == 1:
        return _section("shards", title, _soft("There is one shard, which is the whole."))
    x = numbered(0, m - 1, "shard")
    y = linear(0.0, max(float(np.nanmax(etas)), 1e-12) * 1.05, "η: 0 is like the whole")
    shown = sorted({*evenly(m, MOST_ROUNDS), most})
    shown = [i for i in shown if np.isfinite(etas[i])]
    colours = {i: "orange" if i == most and unlike.stands_out else "blue" for i in shown}
    if m <= MOST_BARS:
        inside = "".join(_column(x, y, i, 0.0, etas[i], colours[i]) for i in shown)
    else:
        places = np.array([(i, etas[i]) for i in shown])
        inside = _cloud(x, y, places, "blue", "dots")
        inside += _cloud(x, y, places[[colours[i] == "orange" for i in shown]], "orange", "dots")
    marks = [Mark(i, None, f"{_named(unlike, i)}\nη = {etas[i]:.3g}") for i in shown]
    name = _named(unlike, most)
    text = f"No shard stands out: η is at most {etas[most]:.3g}, that of {name}."
    if unlike.stands_out:
        text = f"{name[0].upper()}{name[1:]} stands out: its η is {etas[most]:.3g}, and the median "
        text += f"of the others {unlike.median:.3g}."
    how = (
        "η of a shard is ‖M′ − M‖/‖M‖, where M is the mean of outer products of all rows, as they "
        "entered the factorisation, and M′ that of the shard's. With many local steps the error "
        "stays at a level that grows with it."
    )
    if unlike.error:
        how += (
            " Estimated by Lanczos steps, with the components found in the place of M: it may be "
            f"off by {unlike.error:.2g}."
        )
    some = f" {len(shown)} of {m} shards are drawn." if len(shown) < m else ""
    chart = _chart(x, y, inside, marks, "η of each shard")
    return _section("shards", title, f"<p>{escape(text)}</p>{chart}{_soft(how + some)}")


def _timeline(result: Fitted) -> str:
    bars = overview.timeline(result)
    title = "Where the time went"
    if not bars:
        text = "This run did not note the times of its rounds; fit again to see them."
        return _section("timeline", title, _soft(text))
    shown = evenly(len(bars), MOST_ROUNDS)
    x = numbered(1, len(bars), "round, set-up and factors included")
    y = linear(0.0, max(bar.seconds for bar in bars) * 1.05, "time of a round", TIMES)
    inside, marks = "", []
    for i in shown:
        bar = bars[i]
        level = 0.0
        for part, look in ((bar.compute, "blue"), (bar.wait, "orange"), (bar.rest, "grey")):
            inside += _column(x, y, i + 1, level, level + part, look) if part > 0 else ""
            level += part
        marks.append(Mark(i + 1, None, _bar_told(i + 1, bar)))
    whole = sum(bar.seconds for bar in bars) or 1.0
    shares = [sum(getattr(b, name) for b in bars) / whole for name in ("compute", "wait", "rest")]
    key = _key(
        (look, "box", f"{text}: {share:.0%}")
        for look, share, text in zip(
            ("blue", "orange", "grey"),
            shares,
            ("computing", "waiting for the slowest", "messages and the rest"),
            strict=True,
        )
    )
    known = result.run["timeline"]
    notes = [
        "Computing is the work of all shards, spread evenly over what works at once; waiting is "
        "what the slowest shard takes beyond that."
    ]
    if known.get("left_out"):
        notes.append(f"{known['left_out']:,} rounds in the middle are left out.")
    if any(bar.timed < bar.replies for bar in bars):
        notes.append("Some shards were added up on the way, and their times are not known.")
    chart = _chart(x, y, inside, marks, "time of each round")
    return _section("timeline", title, _slowest(bars) + key + chart + _soft(" ".join(notes)))


def _bar_told(number: int, bar: overview.Bar) -> str:
    slow = ", ".join(f"shard {shard} {quantity(time, TIMES)}" for time, shard in bar.slowest)
    return (
        f"round {number}, {bar.phase}: {bar.task}, {quantity(bar.seconds, TIMES)}\n"
        f"computing {quantity(bar.compute, TIMES)}, waiting {quantity(bar.wait, TIMES)}, rest "
        f"{quantity(bar.rest, TIMES)}\n"
        f"a shard took {quantity(bar.mean, TIMES)} on average; slowest: {slow or 'not known'}"
    )


def _slowest(bars: Sequence[overview.Bar]) -> str:
    found = overview.stragglers(bars)
    if not found:
        return ""
    worst = found[0]
    text = (
        f"Shard {worst.shard} holds the others up: it was the slowest in {worst.rounds} of "
        f"{worst.of} rounds, and took {worst.ratio:.1f} times the mean of all in those."
        if worst.holds_up
        else f"No shard holds the others up. Shard {worst.shard} was the slowest most often, in "
        f"{worst.rounds} of {worst.of} rounds."
    )
    return f"<p>{escape(text)}</p>"


def _faults(result: Fitted) -> str:
    faults = result.run.get("faults") or ()
    if not faults:
        text = "Every reply came, in time and in order; nothing had to be asked for again."
        return _section("faults", "Faults", _soft(text))
    rows = [
        [
            str(fault["round"]),
            ", ".join(map(str, fault["shards"][:12])) + (" …" if len(fault["shards"]) > 12 else ""),
            str(fault["what"]),
            str(fault["then"]) or "given up",
        ]
        for fault in faults[:MOST_BARS]
    ]
    left = len(faults) - len(rows)
    note = _soft(f"{left} more are in run.json.") if left else ""
    table = _table(["round", "shards", "what happened", "then"], rows, (1, 2, 3))
    return _section("faults", "Faults", table + note)


def _repeat(result: Fitted) -> str:
    run = result.run
    parts = []
    if run.get("command"):
        parts.append(f"<pre>{escape(shlex.join(map(str, run['command'])))}</pre>")
    if run.get("call"):
        parts.append(f"<pre>{escape(str(run['call']))}</pre>")
    if run.get("seed") is None:
        text = "The random numbers came from a generator that was given; its state is not recorded."
        parts.append(_soft(text))
    options = [
        [name, str(value)]
        for name, value in run.items()
        if name not in ("timeline", "faults", "names", "command", "call", "residuals", "degraded")
    ]
    listed = _table(["option", "value"], options, (0, 1))
    parts.append(f"<details><summary>All that is recorded of the run</summary>{listed}</details>")
    return _section("repeat", "Do it again", "".join(parts))
