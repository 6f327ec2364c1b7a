"""Charts drawn for a page, without any library.

Pictures are stretched to the width of the window, so text stands beside them as HTML, at places in
per cent. Colours are classes of the page's style sheet, which has them for light and for dark.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from html import escape

import numpy as np

from localpower.core.linalg import Array
from localpower.show.chart import MOST_BARS, Axis, Chart, Mark, Series
from localpower.show.summary import NEGATIVE, POSITIVE

BAR = 0.72  # of the room between two bars
END = 8  # characters of a name that are shown wherever there is room for them


def text(content: str) -> str:
    """Escape, and write minus signs, at which lines do not break."""
    return re.sub(r"(?<![^\s(])-(?=\d)|(?<=\de)-(?=\d)", "−", escape(content))


def draw(chart: Chart, kind: str = "", style: str = "") -> str:
    """A chart with its ticks and marks; `kind` is a class for its height."""
    x, y = chart.x, chart.y
    inside = "".join(_series(chart, one) for one in chart.series)
    if chart.image is not None:
        inside = (
            f'<image href="{png(chart.image)}" width="100" height="100" '
            'preserveAspectRatio="none"/>'
        )
    else:
        inside = (
            "".join(_across("axis" if v == y.low else "grid", y, v) for v, _ in y.ticks) + inside
        )
    names = [f'<span class="y" style="top:{_down(y, v)}%">{text(t)}</span>' for v, t in y.ticks]
    names += [f'<span class="x" style="left:{x.at(v)}%">{text(t)}</span>' for v, t in x.ticks]
    names += [_beside(chart, name) for name in chart.names]
    spots = [_spot(chart, mark, number) for number, mark in enumerate(chart.marks)]
    return (
        f'<div class="chart" role="group" aria-label="{escape(chart.title)}">'
        f'<div class="up">{escape(y.title)}</div><div class="area {kind}" style="{style}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{inside}'
        f"</svg>{''.join(names)}{''.join(spots)}</div>"
        f'<div class="across">{escape(x.title)}</div></div>'
    )


def key(chart: Chart) -> str:
    """The legend: colour, kind of mark, and what it stands for."""
    listed = ""
    for one in chart.series:
        kind = "box" if one.kind in ("bars", "cloud") else "dashed" if one.dash != "-" else ""
        if one.label:
            listed += f'<li><b class="{one.colour} {kind}"></b>{escape(one.label)}</li>'
    return f'<ul class="key">{listed}</ul>' if listed else ""


def _down(axis: Axis, value: float) -> float:
    """Place of a value on a vertical axis, in per cent from above."""
    return round(100 - axis.at(value), 3)


def _across(look: str, y: Axis, value: float) -> str:
    level = _down(y, value)
    return f'<line class="{look}" x1="0" x2="100" y1="{level}" y2="{level}"/>'


def _beside(chart: Chart, name: Mark) -> str:
    """A name beside its place: away from the middle, and not out of the picture."""
    across, down = chart.x.at(name.x), _down(chart.y, name.y or 0.0)
    left = name.x < 0
    side = f"right:{round(100 - across, 3)}%" if left else f"left:{across}%"
    room = f"max-width:{across}%" if left else f"max-width:calc({round(100 - across, 3)}% + 1.4rem)"
    place = f'style="top:{down}%;{side};{room}" title="{escape(name.tip)}"'
    cut = name.tip.find("…") + 1 or max(0, len(name.tip) - END)  # without room, what is before goes
    ends = f"<b>{escape(name.tip[:cut])}</b><b>{escape(name.tip[cut:])}</b>"
    return f'<span class="name" {place}>{ends}</span>'


def _spot(chart: Chart, mark: Mark, number: int) -> str:
    """A place for pointer and keyboard, which tells values."""
    place = f'style="left:{chart.x.at(mark.x)}%"'
    if mark.y is None:
        place = f'class="tall" {place}'
    else:
        place = f'{place[:-1]};top:{_down(chart.y, mark.y)}%"'
    tip = escape(mark.tip)
    return (
        f'<i role="img" tabindex="{-1 if number else 0}" {place} aria-label="{tip}" '
        f'data-tip="{tip}"></i>'
    )


def _series(chart: Chart, one: Series) -> str:
    x, y, dash = chart.x, chart.y, " dash" * (one.dash != "-")
    if one.kind == "level":
        return _across(f"line {one.colour}{dash}", y, one.y)
    if one.kind == "bars":
        bases = np.broadcast_to(one.base, np.shape(one.y))
        bars = zip(np.asarray(one.x).tolist(), bases.tolist(), one.y.tolist(), strict=True)
        return "".join(_bar(x, y, *bar, one.colour) for bar in bars)
    pairs = zip(np.asarray(one.x).tolist(), np.asarray(one.y).tolist(), strict=True)
    places = [f"{x.at(a)} {_down(y, b)}" for a, b in pairs]
    if not places:
        return ""
    if one.tips:
        told = zip(places, one.tips, strict=True)
        return "".join(
            f'<path class="cloud {one.colour}" d="M{place}h0"><title>{escape(tip)}</title></path>'
            for place, tip in told
        )
    if one.kind == "arrows":
        middle = f"{x.at(0)} {_down(y, 0)}"
        lines = "".join(f"M{middle}L{place}" for place in places)
        heads = "".join(f"M{place}h0" for place in places)
        return f'<path class="line ink" d="{lines}"/><path class="dots ink" d="{heads}"/>'
    dots = "".join(f"M{place}h0" for place in places)
    if one.kind != "line":
        look = "cloud" if one.kind == "cloud" else "dots"
        return f'<path class="{look} {one.colour}" d="{dots}"/>'
    drawn = f'<path class="line {one.colour}{dash}" d="M{"L".join(places)}"/>'
    return drawn + (
        f'<path class="dots {one.colour}" d="{dots}"/>' if len(places) <= MOST_BARS else ""
    )


def _bar(x: Axis, y: Axis, at: float, low: float, high: float, colour: str) -> str:
    width, top, bottom = x.at(x.low + BAR), y.at(high), y.at(low)
    return (
        f'<rect class="{colour}" x="{round(x.at(at) - width / 2, 3)}" y="{round(100 - top, 3)}" '
        f'width="{width}" height="{round(top - bottom, 3)}"/>'
    )


def png(weights: Array) -> str:
    """Weights from -1 to 1 as an image, in an address of its own; small ones show through."""
    height, width = weights.shape
    pixels = np.empty((height, width, 4), np.uint8)
    pixels[..., :3] = np.where(weights[..., None] >= 0, POSITIVE, NEGATIVE)
    pixels[..., 3] = np.round(255 * np.abs(weights))
    lines = np.hstack([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)])

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
    encoded = base64.b64encode(b"\x89PNG\r\n\x1a\n" + data + chunk(b"IEND", b"")).decode()
    return f"data:image/png;base64,{encoded}"
