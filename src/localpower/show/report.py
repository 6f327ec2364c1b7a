"""The page of a run: one HTML file, with everything in it and nothing fetched.

Whatever comes from data or options is escaped, and the page allows no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from localpower.core.files import replacing
from localpower.core.text import counted, duration, html_table, power, size
from localpower.show import charts, scatter, shares, summary, svg
from localpower.show.chart import Chart
from localpower.show.rows import Rows, Scores, Unlike, look
from localpower.show.summary import SHOWN, weight
from localpower.show.svg import text as _text

if TYPE_CHECKING:
    from localpower.result import Result

HEAVY = 5  # columns that are named for a component
NARROW = 14  # characters of a name that fit a narrow column
MOST_FAULTS = 64
MOST_TOLD = 400  # characters of an option
LISTED_ELSEWHERE = (
    *("timeline", "faults", "names", "command", "call", "residuals", "degraded"),
    "federation",
)


def write(
    result: Result,
    path: str | os.PathLike[str] | None,
    data: Any = None,
    grid: tuple[int, int] | None = None,
    color: Any = None,
    ids: Any = None,
) -> Path | Page:
    """Write the page of a run to `path`; without one, return the page."""
    if path is None:
        return Page(page(result, data, grid, color, ids))
    target = page_path(path)
    text = page(result, data, grid, color, ids)
    with replacing(target) as stream:
        stream.write(text.encode())
    return target


@dataclass(frozen=True, slots=True, repr=False)
class Page:
    """The page of a run as HTML, which notebooks show below a cell."""

    html: str

    def __repr__(self) -> str:
        return f"<page of a run, {size(len(self.html))}; report('run.html') writes it to a file>"

    def _repr_html_(self) -> str:
        return FRAME.format(escape(self.html))


FRAME = (
    '<iframe srcdoc="{}" sandbox="allow-scripts" title="the page of a run" '
    'style="width: 100%; height: 40rem; border: 1px solid #8888"></iframe>'
)


def page_path(path: str | os.PathLike[str]) -> Path:
    """Check that a page can be written to `path`."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is of type {type(path).__name__}: give a name; rows are data=")
    return summary.output_path(path, "a page", (".html", ".htm"))


def page(
    result: Result,
    data: Any = None,
    grid: tuple[int, int] | None = None,
    color: Any = None,
    ids: Any = None,
) -> str:
    """Return the page as HTML."""
    layout = summary.grid_of(result, grid)
    rows = look(result, data, color=color, ids=ids)
    style, script = (
        files("localpower.show").joinpath(name).read_text("utf-8")
        for name in ("report.css", "report.js")
    )
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src"
    policy += f" 'sha256-{allowed}'"
    parts = (
        *(_head(result), _convergence(result), _variance(result), _components(result, layout)),
        f'<div class="pair">{_scores(result, rows)}{_biplot(result, rows)}</div>',
        *(_shards(result, rows), _timeline(result), _faults(result), _federation(result)),
        _repeat(result),
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


def _head(result: Result) -> str:
    run, ledger = result.run, result.ledger
    found = summary.verdict(result)
    kind = "principal component" if run.get("center") else "singular vector"
    asked = counted(run.get("rank", "?"), kind)
    advice = f"<p><b>What to change:</b> {escape(found.advice)}</p>" if found.advice else ""
    share_wanted, text = shares.asked_share(run), shares.reach_text(result)
    share = f'<p id="share">{escape(text[:1].upper() + text[1:])}.</p>' if text else ""
    at_once = (run.get("timeline") or {}).get("at_once")
    seconds = sum(record.seconds for record in result.history)
    facts = {
        "Data": (
            f"{_count(run, 'row')} × {_count(run, 'column')}",
            f"{run.get('dtype')}, {'centred' if run.get('center') else 'not centred'}, "
            f"{'scaled by ' + str(run['scale']) if run.get('scale') else 'not scaled'}",
        ),
        "Asked for": (
            f"{kind}s that explain {share_wanted}" if share_wanted else asked,
            f"to a sine of {power(run['tol'])}{_certainty(run)}"
            if run.get("tol")
            else "without a tolerance",
        ),
        "Method": (str(run.get("method")), str(run.get("why"))),
        "Where": (
            f"{counted(run.get('workers', '?'), 'shard')} on {run.get('engine')}",
            f"{run.get('partition')}" + (f", {at_once} worked on at once" if at_once else ""),
        ),
        "Rounds": (
            f"{len(result.history):,} of the method",
            f"{ledger.rounds:,} with set-up and factors"
            + (f", and {counted(ledger.exchanges, 'exchange')}" if ledger.exchanges else ""),
        ),
        "Moved": (
            f"{size(ledger.bytes_up)} up, {size(ledger.bytes_down)} down",
            f"in {ledger.messages:,} messages, set-up and factors included",
        ),
        "Time": ("not told", "as it may tell of rows")
        if summary.is_private(result)
        else (duration(seconds), "of the method's rounds"),
        "Seed": (str(run.get("seed", "")), "" if run.get("seed") is not None else "not recorded"),
    }
    listed = "".join(
        f"<div><dt>{name}</dt><dd>{_text(value)}<small>{_text(more)}</small></dd></div>"
        for name, (value, more) in facts.items()
    )
    return (
        f"<header><h1>{_text(asked)} of {_text(_count(run, 'row'))}</h1>"
        f'<p class="soft">A run of localpower, {escape(str(run.get("method")))}</p></header>\n'
        f'<div class="verdict {found.mood}" id="verdict"><strong>{escape(found.title)}</strong>'
        f"<p>{_text(found.text)}</p>{share}{advice}</div>\n"
        f'<dl class="facts">{listed}</dl>'
    )


def _certainty(run: Mapping[str, Any]) -> str:
    """How sure the answer was asked to be; runs of old versions do not tell."""
    wanted = run.get("certainty")
    if not wanted:
        return ""
    return ", proven" if wanted == "proven" else f", proven or with p ≤ {power(wanted)}"


def _count(run: Mapping[str, Any], name: str) -> str:
    return counted(run.get(f"{name}s", "?"), name)


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>'


def _soft(text: str) -> str:
    return f'<p class="soft">{_text(text)}</p>'


def _missing(name: str, title: str, why: str) -> str:
    """A section that says why there is no chart in it."""
    return _section(name, title, _soft(f"{why[:1].upper()}{why[1:]}."))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f'<div class="scroll">{html_table((), head, rows)}</div>'


def _convergence(result: Result) -> str:
    found = {name: charts.convergence(result, against=name) for name in charts.AGAINST}
    drawn = {name: chart for name, chart in found.items() if isinstance(chart, Chart)}
    points = summary.convergence(result)
    if not drawn:
        return _missing("convergence", "Convergence", str(found["rounds"]))
    if len(drawn["rounds"].marks) == 1:
        told = drawn["rounds"].marks[0].tip.split("\n")[1:3]
        text = f"One round told of its error: {', '.join(told)}."
        return _section("convergence", "Convergence", _soft(text))
    panels = "".join(
        f'<div class="panel {name}">{svg.draw(chart)}</div>' for name, chart in drawn.items()
    )
    buttons = "".join(
        f'<input type="radio" name="against" id="by-{name}"{" checked" * (name == "rounds")}>'
        f'<label for="by-{name}">{name}</label>'
        for name in drawn
    )
    few = "" if len(points) == len(result.history) else f" {len(points)} rounds, evenly chosen."
    note = _soft(
        "What is known after each round; points tell how sure it is. A bound of 1 says nothing "
        f"yet. Residuals are relative to the component's own eigenvalue.{few}"
    )
    switch = f'<fieldset class="switch"><legend>against</legend>{buttons}{panels}</fieldset>'
    return _section("convergence", "Convergence", note + svg.key(drawn["rounds"]) + switch)


def _variance(result: Result) -> str:
    share, total = summary.shares(result)
    many = f"The {len(share)} components explain" if len(share) > 1 else "The component explains"
    told = ", as far as noised sums tell" * summary.is_private(result)
    note = _soft(f"{many} {_share(total[-1])} of the variance of the data{told}.")
    chart = charts.variance(result)
    if isinstance(chart, str):
        return _missing("variance", "Variance", chart)
    k, residuals = min(len(share), 2 * SHOWN), result.residuals
    heads = ["component", "singular value", "share", "so far"]
    heads += [] if residuals is None else ["residual"]
    rows = [
        [f"{i + 1}", f"{result.singular_values[i]:.6g}", _share(share[i]), _share(total[i])]
        + ([] if residuals is None else [f"{residuals[i]:.1e}" if i < len(residuals) else ""])
        for i in range(k)
    ]
    values = _table(heads, rows)
    values += _soft(f"and {counted(len(share) - k, 'more component')}") if k < len(share) else ""
    pair = f"<div>{svg.key(chart)}{svg.draw(chart)}</div><div>{values}</div>"
    return _section("variance", "Variance", f'{note}<div class="pair">{pair}</div>')


def _share(value: float) -> str:
    return f"{100 * value:.3g}%"


def _components(result: Result, layout: tuple[int, int] | None) -> str:
    k, every = min(len(result.components), SHOWN), len(result.components)
    shown = f"the first {k} of {every} components" if k < every else f"all {k} components"
    note = (
        f"Weights of the columns in {shown if every > 1 else 'the component'}: blue is positive, "
        "orange negative, and full colour is the largest of a component."
    )
    heat = svg.draw(charts.components(result), "low", f"--rows:{k}")
    images = "" if layout is None else _images(result, layout)
    return _section("components", "Components", _soft(note) + images + heat + _heavy(result))


def _images(result: Result, layout: tuple[int, int]) -> str:
    pictures = "".join(
        f'<li><figure><img src="{svg.png(summary.relative(v.reshape(layout)))}" '
        f'alt="component {number} as an image"><figcaption>component {number}</figcaption>'
        "</figure></li>"
        for number, v in enumerate(result.components[:SHOWN], start=1)
    )
    note = _soft(
        f"As images of {layout[0]} × {layout[1]} pixels, row after row. If columns are not pixels, "
        "look at the map below. grid=(rows, columns) or --grid sets another layout."
    )
    return f'<ul class="images">{pictures}</ul>{note}'


def _heavy(result: Result) -> str:
    """Name the columns of each component that have the largest weights."""
    full, listed = summary.column_names(result), ""
    names = summary.distinct(full)
    for number, v in enumerate(result.components[:SHOWN], start=1):
        first = np.argsort(-np.abs(v), kind="stable")[:HEAVY]
        lines = "".join(
            f'<span title="{escape(full[j])}">{escape(names[j])}<b>{weight(v[j])}</b></span>'
            for j in first
        )
        listed += f"<li><strong>component {number}</strong>{lines}</li>"
    title = "Heaviest columns" if len(names) > HEAVY else "Weights"
    long = " long" * (max(map(len, names)) > NARROW)
    return f'<h3>{title}</h3><ul class="heavy{long}">{listed}</ul>'


def _scores(result: Result, rows: Rows) -> str:
    found, chart = rows.scores, scatter.scores(result, rows)
    if isinstance(chart, str) or not isinstance(found, Scores):
        return _missing("scores", "Scores", str(chart))
    drawn = "all" if len(found.points) == found.of else f"{len(found.points):,}, evenly drawn, of"
    text = f"Rows on the first components: {drawn} {found.of:,} rows. "
    if found.groups is not None:
        text += f"Coloured by {found.by or 'the values given'}. "
    text += "Point at a row to see which it is."
    return _section("scores", "Scores", _soft(text) + svg.key(chart) + svg.draw(chart, "square"))


def _biplot(result: Result, rows: Rows) -> str:
    chart = scatter.biplot(result, rows)
    if isinstance(chart, str):
        return _missing("biplot", "Biplot", chart)
    d = result.components.shape[1]
    many = (
        f"the {len(chart.names)} heaviest of {d:,} columns" if d > len(chart.names) else "columns"
    )
    text = (
        f"Arrows are {many}. Columns that point the same way rise and fall together; rows that lie "
        "that way have much of them. Arrows are scaled to fit the picture."
    )
    return _section("biplot", "Biplot", _soft(text) + svg.key(chart) + svg.draw(chart, "square"))


def _shards(result: Result, rows: Rows) -> str:
    title, unlike, chart = "How much shards differ", rows.unlike, charts.shards(result, rows)
    if isinstance(chart, str) or not isinstance(unlike, Unlike):
        return _missing("shards", title, str(chart))
    eta, name = unlike.etas[unlike.farthest], unlike.name(unlike.farthest)
    text = f"No shard stands out: η is at most {eta:.3g}, that of {name}."
    if unlike.stands_out:
        text = f"{name[0].upper()}{name[1:]} stands out: its η is {eta:.3g}, and the median "
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
    drawn, m = len(chart.marks), len(unlike.etas)
    how += f" {drawn} of {m} shards are drawn." if drawn < m else ""
    return _section("shards", title, f"<p>{escape(text)}</p>{svg.draw(chart)}{_soft(how)}")


def _timeline(result: Result) -> str:
    title, chart, bars = "Where the time went", charts.timeline(result), summary.timeline(result)
    if isinstance(chart, str):
        return _missing("timeline", title, chart)
    known = result.run["timeline"]
    notes = [
        "Computing is the work of all shards, spread evenly over what works at once; waiting is "
        "what the slowest shard takes beyond that."
    ]
    if known.get("left_out"):
        notes.append(f"{known['left_out']:,} rounds in the middle are left out.")
    if any(bar.timed < bar.replies for bar in bars):
        notes.append("Some shards were added up on the way, and their times are not known.")
    content = _slowest(bars) + svg.key(chart) + svg.draw(chart) + _soft(" ".join(notes))
    return _section("timeline", title, content)


def _slowest(bars: Sequence[summary.Bar]) -> str:
    found = summary.stragglers(bars)
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


def _faults(result: Result) -> str:
    faults = result.run.get("faults") or ()
    who = summary.participation(result.run)
    told = f"<p>{escape(who[:1].upper() + who[1:])}.</p>" if who else ""
    if not faults:
        text = "Every reply came, in time and in order; nothing had to be asked for again."
        return _section("faults", "Faults", told + _soft(text))
    rows = [
        [
            str(fault["round"]),
            ", ".join(map(str, fault["shards"][:12])) + (" …" if len(fault["shards"]) > 12 else ""),
            str(fault["what"]),
            str(fault["then"]) or "given up",
        ]
        for fault in faults[:MOST_FAULTS]
    ]
    left = len(faults) - len(rows)
    note = _soft(f"{left} more are in run.json.") if left else ""
    table = _table(["round", "shards", "what happened", "then"], rows)
    return _section("faults", "Faults", told + table + note)


def _federation(result: Result) -> str:
    """The model card of a federated run."""
    card = result.run.get("federation")
    if not card:
        return ""
    heads = ["site", "rows", "key"]
    sites = [[str(site[name]) for name in ("name", "rows", "key")] for site in card["sites"]]
    told = [
        [str(name).replace("_", " "), summary.shortened(_in_words(value), MOST_TOLD)]
        for name, value in card.items()
        if name != "sites"
    ]
    tables = _table(heads, sites) + _table(["model card", ""], told)
    return _section("federation", "Federation", _soft(summary.federation(result.run)) + tables)


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return "none" if value is None else str(value)


def _repeat(result: Result) -> str:
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
        [name, summary.shortened(str(value), MOST_TOLD)]
        for name, value in run.items()
        if name not in LISTED_ELSEWHERE
    ]
    listed = _table(["option", "value"], options)
    parts.append(f"<details><summary>All that is recorded of the run</summary>{listed}</details>")
    return _section("repeat", "Do it again", "".join(parts))
