"""The reproduction as one self-contained page, made from the CSV files and the figures."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from html import escape
from pathlib import Path
from statistics import median

from localpower.paper import datasets as registry
from localpower.paper.claims import Verdict, judge, theorem_2
from localpower.paper.problems import MODES
from localpower.paper.results import Results, Summary, paper_table
from localpower.paper.runner import Item, items
from localpower.paper.trials import ALIGNMENTS, ONE_SHOT, TITLES
from localpower.version import __version__

ORDER = {  # as in the paper; items that are not named here follow
    name: place
    for place, name in enumerate(
        (
            *("table-final", "table-decay", "table-eta", "table-datasets"),
            *("figure-2a", "figure-2b", "figure-3a", "figure-3b", "figure-3c", "figure-box"),
        )
    )
}

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #9da7b1; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid var(--line);
  padding-top: 1rem; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: 1rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
table.claims :is(td, th) { white-space: normal; text-align: left; vertical-align: top; }
img { max-width: 100%; background: #fff; border: 1px solid var(--line); }
.good, .fair, .poor { color: #1b1f24; border-radius: .25rem; padding: 0 .3rem; }
.good { background: #aceebb; } .fair { background: #fae17d; } .poor { background: #ffc1bc; }
"""

INTRODUCTION = """
<p>Every table and figure of <cite>Communication-Efficient Distributed SVD via Local Power
Iterations</cite> (Li, Wang, Chen, Zhang, ICML 2021), computed anew with this library, beside the
paper's own numbers where it prints them.</p>
<h2>Two ways of measuring</h2>
<p><b>As published</b> does what the authors' code does. It scales columns by min-max, takes
m = ⌈n/1000⌉ shards, scores LocalPower by the spectral norm of
(I&nbsp;−&nbsp;U<sub>5</sub>U<sub>5</sub><sup>T</sup>)Z<sub>:,1:4</sub>, four columns against a
target of five, and the one-shot methods by the Frobenius norm on five columns. These are the
numbers to set beside the paper's.</p>
<p><b>Uniform</b> does what the paper's text says, to all methods alike: columns divided by their
maximum, m = max(⌊n/1000⌋, 3), and sin θ<sub>5</sub> of all five columns.</p>
<p><b>What this changes.</b> The published score is kinder to LocalPower twice over: leaving out
the fifth column drops the direction that converges last, and the Frobenius norm adds up what the
spectral norm takes the largest of, so one and the same answer of a one-shot method scores up to
√5 times higher. Under the uniform score LocalPower's errors are larger, and its lead over the
one-shot methods is smaller. Min-max scaling also makes some sets (poker, ijcnn1) a different
problem from column-maximum scaling.</p>
"""


def build(chosen: Iterable[Item], results: Results, figures: dict[str, list[Path]]) -> str:
    """Return the page as HTML."""
    chosen = sorted(chosen, key=lambda item: (ORDER.get(item.name, len(ORDER)), item.name))
    parts = [INTRODUCTION, _lead(results), _claims([*judge(results), theorem_2(results)])]
    parts += [_table(item, results) for item in chosen if item.name.startswith("table")]
    parts.append("<h2>Figures</h2>")
    parts += [_figure(item, figures.get(item.name, [])) for item in chosen]
    title = "LocalPower, reproduced"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        + "\n".join(parts)
        + f'\n<p class="soft">localpower {__version__}; the CSV files beside this page hold every '
        "trial with its seed and the checksum of its data.</p></body></html>\n"
    )


def _lead(results: Results) -> str:
    """Say how far LocalPower is ahead of the one-shot methods in each way of measuring."""
    leads = {}
    for mode in MODES:
        table = results.table(items()["table-final"], mode)
        names = [name for name in registry.DATA_SETS if all((name, m) in table for m in TITLES)]
        ratios = [
            min(table[name, method].mean for method in ONE_SHOT)
            / min(table[name, method].mean for method in ALIGNMENTS)
            for name in names
        ]
        if ratios:
            leads[mode] = f"{median(ratios):.1f} times ({mode})"
    if not leads:
        return ""
    return (
        "<p>In the median over the sets run here, the best one-shot method's error is "
        f"{' and '.join(leads.values())} that of the best LocalPower variant.</p>"
    )


def _claims(verdicts: list[Verdict]) -> str:
    colours = {"supported": "good", "supported in part": "fair", "not supported": "poor"}
    rows = [
        [
            escape(v.claim),
            "<br>".join(f"<b>{escape(k)}:</b> {escape(text)}" for k, text in v.evidence.items()),
            f'<span class="{colours.get(v.verdict, "soft")}">{v.verdict}</span>',
        ]
        for v in verdicts
    ]
    note = (
        "<p>A claim counts as supported if it holds on at least 80 % of the data sets in both ways "
        "of measuring, and in part if on at least half.</p>"
    )
    head = ["claim", "evidence", "verdict"]
    return f"<h2>The paper's claims</h2>{note}{_html_table(head, rows, 'claims')}"


def _table(item: Item, results: Results) -> str:
    makers = {"final": _final_tables, "eta": _eta_tables, "datasets": _data_sets}
    title = (
        f'<h2 id="{item.name}">{escape(item.title)}</h2><p class="soft">{escape(item.paper)}</p>'
    )
    return title + makers[item.kind](item, results)


def _final_tables(item: Item, results: Results) -> str:
    paper = paper_table(item.name)
    heads = ["data set", *(TITLES[method] for method in item.methods)]
    published = results.table(item, "as-published")
    uniform = results.table(item, "uniform")
    names = [name for name in registry.DATA_SETS if any(key[0] == name for key in published)]

    def row(name: str, table: dict[tuple[str, str], Summary], compare: bool) -> list[str]:
        cells = [registry.DATA_SETS[name].title]
        for method in item.methods:
            ours = table.get((name, method))
            if ours is None:
                cells.append("not run")
                continue
            text = f"{ours.mean:.1e} ± {ours.deviation:.0e}"
            if compare:
                text = f"{_ratio(ours.mean, paper[name, method].mean)}<br>{text}"
                text += f'<br><span class="soft">paper {paper[name, method].mean:.1e}</span>'
            cells.append(text)
        return cells

    return (
        "<h3>As published, beside the paper</h3><p>Ratio of our mean to the paper's (green within "
        "a factor 2, yellow within 5), our mean ± standard deviation, the paper's mean.</p>"
        + _html_table(heads, [row(name, published, True) for name in names])
        + "<h3>Uniform</h3>"
        + _html_table(heads, [row(name, uniform, False) for name in names])
        + _missing(names)
    )


def _eta_tables(item: Item, results: Results) -> str:
    paper = paper_table(item.name)
    heads = ["data set", *(f"m = {m}" for m in item.shards)]
    names = [n for n in registry.DATA_SETS if ("as-published", n, "20") in results.eta]
    text = ""
    for mode in MODES:
        rows = []
        for name in names:
            cells = [registry.DATA_SETS[name].title]
            for m in item.shards:
                theirs = paper[name, str(m)].mean
                ours = results.eta.get((mode, name, str(m)), math.nan)
                both = f"{_ratio(ours, theirs, 1.3, 2)} {ours:.4f}"
                cells.append(
                    f'{both} <span class="soft">({theirs:.4f})</span>'
                    if mode == "as-published"
                    else f"{ours:.4f}"
                )
            rows.append(cells)
        note = "Ratio, ours, and the paper's in brackets; green within 30 %, yellow within 2."
        text += f"<h3>{mode.capitalize()}</h3>"
        text += f"<p>{note}</p>" if mode == "as-published" else ""
        text += _html_table(heads, rows)
    return text + _missing(names)


def _data_sets(item: Item, results: Results) -> str:
    shapes = {o.trial.dataset: (o.n, o.d) for o in results.outcomes}
    rows = []
    for name, known in registry.DATA_SETS.items():
        ours = "{} × {}".format(*shapes[name]) if name in shapes else "not at hand"
        rows.append([known.title, f"{known.rows} × {known.columns}", ours, escape(known.note)])
    return _html_table(["data set", "paper, n × d", "here, n × d", "note"], rows)


def _figure(item: Item, paths: list[Path]) -> str:
    if not paths:
        return ""
    pictures = "".join(
        f'<figure><img alt="{escape(item.title)}: {escape(path.stem)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}">'
        f'<figcaption class="soft">{escape(path.stem)}</figcaption></figure>'
        for path in paths
    )
    title = (
        f'<h3 id="{item.name}">{escape(item.title)}</h3><p class="soft">{escape(item.paper)}</p>'
    )
    return title + pictures


def _missing(names: list[str]) -> str:
    missing = [known.title for name, known in registry.DATA_SETS.items() if name not in names]
    other = [registry.DATA_SETS[name].title for name in names if registry.DATA_SETS[name].note]
    text = f"Not at hand: {', '.join(missing)}. " if missing else ""
    if other:
        text += f"Not the paper's own version (see Data sets): {', '.join(other)}."
    return f"<p>{text}</p>"


def _ratio(ours: float, theirs: float, good: float = 2.0, fair: float = 5.0) -> str:
    distance = math.exp(abs(math.log(max(ours, 1e-300) / max(theirs, 1e-300))))
    colour = "good" if distance <= good else "fair" if distance <= fair else "poor"
    return f'<span class="{colour}">{ours / theirs:.2g}×</span>'


def _html_table(head: list[str], rows: list[list[str]], kind: str = "") -> str:
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
