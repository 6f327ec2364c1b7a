"""How the documentation is built; ``make docs`` writes it to ``build/docs``.

Pages work from disk, without a server and without a network: formulas become MathML while they are
built, with a font that comes with ziamath, so that nothing has to be fetched; and the search needs
no second request.
"""

import argparse
import csv
import os
from collections import Counter
from pathlib import Path
from typing import Any

import ziamath
from docutils import nodes
from latex2mathml.converter import convert
from sklearn.datasets import load_digits
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

import localpower
from localpower.cli.commands import make_parser

os.environ["COLUMNS"] = "72"  # of usage lines

project = "localpower"
author = "The localpower developers"
version = release = localpower.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx_copybutton",
]
exclude_patterns = ["reproduction"]
nitpicky = True
default_role = "py:obj"  # single backquotes in docstrings; see `_name`
autodoc_typehints = "none"  # the sections of parameters tell the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
myst_enable_extensions = ["dollarmath", "deflist", "substitution"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"
html_title = f"localpower {version}"
html_static_path = ["static", str(Path(ziamath.__file__).with_name("fonts"))]
html_css_files = ["localpower.css"]
html_extra_path = ["reproduction/reproduction.html"]
html_show_search_summary = False  # would fetch pages, which a browser refuses on disk
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}


def _measured(name: str) -> list[dict[str, str]]:
    """Rows of a table of our benchmarks, as it was committed."""
    path = Path(__file__).parents[1] / "benchmarks" / name
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _one_machine(centred: bool) -> str:
    """Seconds of every solver, the shortest in bold, in brackets where it missed the goal."""
    rows = [row for row in _measured("one_machine.csv") if centred == ("centred" in row["shape"])]
    shapes, solvers = (list(dict.fromkeys(row[key] for row in rows)) for key in ("shape", "solver"))
    known = {(row["shape"], row["solver"]): row for row in rows}
    lines = [["", *solvers], ["---"] * (len(solvers) + 1)]
    for shape in shapes:
        found = [known.get((shape, solver)) for solver in solvers]
        times = [float(row["seconds"]) for row in found if row and row["reached"] == "True"]
        cells = [_seconds(row, min(times, default=0.0)) for row in found]
        lines.append([shape.removesuffix(", centred"), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _seconds(row: dict[str, str] | None, best: float) -> str:
    if row is None:
        return "–"
    text = f"{float(row['seconds']):.3g}"
    if row["reached"] != "True":
        return f"({text})"
    return f"**{text}**" if float(row["seconds"]) == best else text


def _rounds(key: str, unit: float) -> str:
    """What methods take to 1e-8 on the larger data sets, in the paper's number of shards."""
    reached = [row for row in _measured("rounds.csv") if row["goal"] == "1e-08"]
    shards = {row["data"]: row["shards"] for row in reached if row["shards"] != "8"}
    names = "a9a", "connect-4", "covtype", "ijcnn1", "mnist", "w8a"
    known = {
        (row["method"], row["data"]): f"{float(row[key]) / unit:.3g}"
        for row in reached
        if row["reached"] == "True" and row["shards"] == shards.get(row["data"])
    }
    lines = [["", *(f"{name}, m = {shards[name]}" for name in names)], ["---"] * (len(names) + 1)]
    lines += [
        [f"`{method}`", *(known.get((method, name), "–") for name in names)] for method in METHODS
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


METHODS = ("dpi", "local_power p=4", "local_power halving", "local_power adaptive",
           "block_lanczos", "block_krylov", "local_ritz", "gram")  # fmt: skip


def _clusters() -> str:
    """Ours beside what comes with an engine: how often it went over the data, seconds, and sine."""
    lines = ["| | | passes or jobs | seconds | sine |", "|---|---|---|---|---|"]
    for engine, often in (("dask_array", "passes"), ("spark_matrix", "jobs"), ("heat_svd", "")):
        for row in _measured(f"{engine}.csv"):
            count = f"{float(row[often]):.3g}" if often else ""
            took, sine = f"{float(row['seconds']):.3g}", f"{float(row['sine']):.0e}"
            cells = row["what"], count, took, sine
            lines.append(f"| {TITLES[engine].format(**row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


TITLES = {
    "dask_array": "Dask, {gigabytes} GB, {blocks} blocks",
    "spark_matrix": "Spark, {rows} × {columns}",
    "heat_svd": "MPI, {rows} × {columns}",
}


def _engines() -> str:
    """What a round costs on each engine, against a bare one."""
    head = ["", "message", "rows", "ours, ms", "work, ms", "bare, ms", "added, ms", "ratio"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in _measured("engines.csv"):
        if row["ratio"]:
            size = int(row["d"]) * int(row["r"]) * 8 / 1e6
            numbers = " | ".join(f"{float(row[key]):.3g}" for key in TIMES)
            name = f"`{row['engine']}:{row['workers']}`"
            rows = f"{int(row['rows']):,}"
            lines.append(f"| {name} | {size:.2g} MB | {rows} | {numbers} | {row['ratio']} |")
    return "\n".join(lines)


TIMES = "ours_ms", "work_ms", "bare_ms", "added_ms"


def _certificates() -> str:
    """How often certificates said too little."""
    rows = _measured("certificates.csv")
    sure = [r for r in rows if r["proven"] == "True" or float(r["p"]) <= float(r["certainty"])]
    questions = {
        "said to have converged, and had not": (rows, "falsely_converged"),
        "proven, and not true": (rows, "proven_wrong"),
        "as sure as asked for, with an angle below a tenth of the true sine": (
            sure,
            "angle_too_small",
        ),
        "residual below a tenth of the true backward error": (rows, "residual_too_small"),
    }
    lines = [f"| of {len(rows)} runs | |", "|---|---|"]
    for what, (asked, key) in questions.items():
        lines.append(f"| {what} | {sum(row[key] == 'True' for row in asked)} |")
    return "\n".join(lines)


def _kills() -> str:
    """How runs ended whose workers were killed."""
    rows = _measured("faults.csv")
    ends = list(dict.fromkeys(["same bits", "error", "hang", "wrong", *(r["ended"] for r in rows)]))
    counts = Counter((row["engine"].partition(":")[0], row["ended"]) for row in rows)
    lines = [["", *ends], ["---"] * (len(ends) + 1)]
    lines += [
        [engine, *(str(counts[engine, end]) for end in ends)]
        for engine in sorted({engine for engine, _ in counts})
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _privacy(part: str, keys: str) -> str:
    """What an audit of privacy showed, or what noise costs."""
    titles = {"low": "ε at least", "captured": "explained", "sine": "sine"}
    shown = keys.split()
    head = ["", *(titles[key] for key in shown)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    rows = [row for row in _measured("privacy.csv") if row["part"] == part]
    lines += [f"| {row['case']} | {' | '.join(row[key] for key in shown)} |" for row in rows]
    return "\n".join(lines)


def _participation() -> str:
    """Mean rounds to both goals where a round asks some shards; of the control, the best angle."""
    rows = _measured("participation.csv")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [["", "chance", *(f"`{method}`" for method in methods)]]
    lines.append(["---"] * len(lines[0]))
    for data, rate in dict.fromkeys((row["data"], row["rate"]) for row in rows):
        cells = []
        for method in methods:
            case = {"data": data, "rate": rate, "method": method}
            found = [row for row in rows if case.items() <= row.items()]
            counts: dict[str, list[float]] = {}
            for row in found:
                counts.setdefault(row["goal"], []).append(float(row["rounds"]))
            text = " / ".join(f"{sum(each) / len(each):.0f}" for each in counts.values())
            if any(row["reached"] != "True" for row in found):
                text = f"({min(float(row['best']) for row in found):.0e})"
            cells.append(text or "–")
        lines.append([data, rate, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


myst_substitutions = {
    "privacy_audit": _privacy("audit", "low"),
    "privacy_cost": _privacy("mnist", "captured sine"),
    "centred": _one_machine(True),
    "plain": _one_machine(False),
    "rounds": _rounds("rounds", 1),
    "moved": _rounds("bytes", 1e6),
    "certificates": _certificates(),
    "kills": _kills(),
    "participation": _participation(),
    "clusters": _clusters(),
    "engines": _engines(),
}


def setup(app: Sphinx) -> None:
    """Register formulas and the page of commands."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("source-read", _commands)
    app.connect("missing-reference", _name)
    app.connect("build-finished", _run_page)


def _run_page(app: Sphinx, error: Exception | None) -> None:
    """Make the page of a run, which the page about it shows."""
    if error is None and app.builder.format == "html":
        digits = load_digits()
        rows = localpower.read(digits.data, labels=digits.target)
        result = localpower.pca(rows, 6, "block_lanczos", tol=1e-8, workers=4, rng=0)
        result.report(Path(app.outdir, "run.html"), rows)


def _inline(visitor: Any, node: nodes.math) -> None:
    visitor.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(visitor: Any, node: nodes.math_block) -> None:
    visitor.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def _name(app: Sphinx, env: Any, node: Any, content: nodes.Element) -> nodes.Element | None:
    """Link a name in single backquotes to the public one; leave arguments and the like alone."""
    if node.get("reftype") != "obj":
        return None
    public = f"localpower.{node['reftarget'].rpartition('.')[2]}"
    known = env.domains.python_domain.objects.get(public)
    if known is None:
        return content
    return make_refnode(app.builder, node["refdoc"], known.docname, known.node_id, content, public)


def _commands(app: Sphinx, page: str, source: list[str]) -> None:
    """Write every command with its options, from the parser itself, below the text of the page."""
    if page == "reference/commands":
        source[0] += "\n".join(_below("localpower", make_parser()))


def _below(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """Sections of the commands of a parser."""
    lines = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            what = {choice.dest: choice.help for choice in action._choices_actions}
            for word, inner in action.choices.items():
                about = f"{what[word][0].upper()}{what[word][1:]}."
                lines += [f"## {name} {word}", "", about, "", *_described(inner)]
                lines += _below(f"{name} {word}", inner)
    return lines


def _described(parser: argparse.ArgumentParser) -> list[str]:
    """Usage, examples and options of one command."""
    lines = ["```text", parser.format_usage().strip(), "", str(parser.description), "```", ""]
    for group in parser._action_groups:
        options = [action for action in group._group_actions if "help" not in action.dest]
        options = [o for o in options if not isinstance(o, argparse._SubParsersAction)]
        if options and group.title not in ("positional arguments", "options"):
            lines += [f"**{group.title}**", ""]
        for option in options:
            lines += [_term(option), f": {parser._get_formatter()._expand_help(option)}", ""]
    return lines


def _term(action: argparse.Action) -> str:
    taken = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    names = [f"`{option}{taken}`" for option in action.option_strings]
    return ", ".join(names) or f"`{action.metavar}`"
