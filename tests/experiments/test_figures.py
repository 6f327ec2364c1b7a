"""Figures: every kind is drawn, readable as XML, the same each time, and robust to odd numbers."""

import csv
import re
import sys
from dataclasses import replace
from itertools import product
from xml.etree import ElementTree

import pytest

from localpower.core.errors import MissingExtra
from localpower.paper import theory
from localpower.paper.figures import draw
from localpower.paper.results import Results
from localpower.paper.runner import TRIALS, Item, items

pytest.importorskip("matplotlib")

SETS = ("a9a", "covtype")
ORIGIN = {"n": 1000, "d": 10, "seed": 1, "version": "0", "sha256": "0"}
METHODS = ("procrustes", "signs", "none")


def item(kind, **settings):
    values = {"methods": ("procrustes",), "steps": (4,), "datasets": SETS}
    return Item(name="it", title="Title", paper="", kind=kind, **values | settings)


ITEMS = {
    "curves of p": item("curves", lines="steps", panels="dataset", steps=(1, 4)),
    "curves of m": item(
        "curves", lines="shards", panels="method", shards=(20, 40), datasets=SETS[:1]
    ),
    "stability": item(
        "stability",
        methods=METHODS,
        schedules=("constant", "halving"),
        repeats=3,
        datasets=SETS[:1],
    ),
    "grid": item("grid", steps=(1, 2, 8), shards=(20, 40)),
    "box": item("box", methods=(*METHODS, "dr_svd", "uda", "wda"), repeats=4),
    "rate": item("rate", shards=(5, 20, 80), repeats=2),
    "rho": item("rho", steps=(1, 2, 12)),
}
TEXTS = {
    "curves of p": ["communications", "sin θ(Z_t, U_5)", "p = 1", "p = 4", "A9a", "Covtype"],
    "curves of m": ["communications", "sin θ(Z_t, U_5)", "m = 20", "m = 40", "OPT"],
    "stability": ["OPT", "sign-fixing", "vanilla", "p = 4, constant", "p = 4, halved every round"],
    "grid": ["local steps p", "final error", "m = 20", "m = 40", "A9a", "Covtype", "8"],
    "box": ["final error", "Orth", "Sign", "Iden", "DR-SVD", "UDA", "WDA", "A9a", "Covtype"],
    "rate": ["√(m/n)", "final error", "A9a: slope 1.00", "Covtype: slope 1.00", "slope 1"],
    "rho": [
        "local steps p",
        "with OPT, measured",
        "without alignment, bound of Theorem 2",
        "η ≤ min(1/3κ, 1/p) holds for all p",
        "η ≤ min(1/3κ, 1/p) holds for p ≤ 2",
        "η ≤ min(1/3κ, 1/p) does not hold",
        "▲ beyond the axis:",
        "1e+30 at p = 12",
    ],
}


def falling(trial):
    level = (
        1e-15 if trial.steps == 1 else 0.01 * (1 + trial.repeat / 10) * (trial.shards or 9) ** 0.5
    )
    return [max(0.1**t, level) for t in range(trial.rounds + 1)] if trial.rounds else [0.1]


def write(folder, errors=falling):
    trials = {trial for it in ITEMS.values() for trial in it.trials(SETS)}
    with open(folder / "trials.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, TRIALS)
        writer.writeheader()
        for trial in trials:
            row = {name: getattr(trial, name) for name in TRIALS if hasattr(trial, name)}
            writer.writerow({**row, **ORIGIN, "errors": " ".join(map(str, errors(trial)))})
    with open(folder / "rho.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(theory.COLUMNS)
        for (case, last), p in product([("easy", 99), ("middle", 2), ("hard", 0)], (12, 1, 2)):
            row = [case, p, p <= last, 0.03, 4.0, 0.01, 0.1, 0.02, 10.0 ** (2.5 * p)]
            writer.writerow([*row, 1, "0"])
    return Results(folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write(tmp_path_factory.mktemp("results"))


def texts(path):
    root = ElementTree.parse(path).getroot()
    return [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]


def assert_sound(path):
    ElementTree.parse(path)
    assert not re.search(r"\b(nan|inf)\b", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ITEMS)
def test_every_kind_is_drawn_with_its_labels(results, name, tmp_path):
    paths = draw(ITEMS[name], results, tmp_path / "new" / "folder")

    stems = ["it"] if name == "rho" else ["it-as-published", "it-uniform"]
    assert [path.name for path in paths] == [f"{stem}.svg" for stem in stems]
    for path in paths:
        assert_sound(path)
        assert set(TEXTS[name]) <= set(texts(path))


def test_panels_are_in_the_order_of_the_registry(results, tmp_path):
    for path in draw(ITEMS["box"], results, tmp_path):
        assert [text for text in texts(path) if text in ("A9a", "Covtype")] == ["A9a", "Covtype"]


@pytest.mark.parametrize("name", [name for name in ITEMS if name != "rho"])
def test_errors_that_have_no_logarithm_are_no_obstacle(name, tmp_path):
    def errors(trial):  # in one mode there is nothing else, in the other some trials end so
        good = falling(trial)
        if trial.mode == "uniform":
            return ["nan"] * len(good)
        last = {0: "0", 1: "nan", 2: "inf"}.get((trial.repeat + trial.shards // 20) % 4, good[-1])
        return [*good[:-1], last]

    one_panel = replace(ITEMS[name], datasets=SETS[:1])
    for path in draw(one_panel, write(tmp_path, errors), tmp_path):
        assert_sound(path)


@pytest.mark.parametrize("name", ["rate", "curves of m"])
def test_the_same_results_give_the_same_bytes_whatever_the_users_settings(results, name, tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.fonttype": "path"}):
        first = draw(ITEMS[name], results, tmp_path / "a")
    second = draw(ITEMS[name], results, tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert dict(matplotlib.rcParams) == before


def test_an_error_at_the_rounding_level_stays_in_view(results, tmp_path):
    for path in draw(replace(ITEMS["grid"], datasets=SETS[:1]), results, tmp_path):
        assert {"1e-14", "1e-15"} & set(texts(path))


def test_ticks_of_a_short_axis_are_labelled_between_powers_of_ten(tmp_path):
    def errors(trial):
        return [0.6, *[0.15] * trial.rounds]

    path = draw(ITEMS["curves of m"], write(tmp_path, errors), tmp_path)[0]
    assert {"2e-1", "5e-1"} <= set(texts(path))


def test_what_has_no_results_or_is_no_figure_is_not_drawn(results, tmp_path):
    empty = Results(tmp_path / "nothing")

    assert [draw(it, empty, tmp_path) for it in items().values()] == [[]] * len(items())
    assert [draw(item(kind), results, tmp_path) for kind in ("final", "eta", "datasets")] == [
        []
    ] * 3
    assert list(tmp_path.iterdir()) == []


def test_a_mode_without_results_is_left_out(tmp_path):
    results = write(tmp_path)
    results.outcomes = [o for o in results.outcomes if o.trial.mode == "uniform"]

    names = [path.name for path in draw(ITEMS["grid"], results, tmp_path)]
    assert names == ["it-uniform.svg"]


def test_without_matplotlib_the_message_names_the_extra(results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(MissingExtra, match=r"localpower reproduce .*localpower\[plot\]"):
        draw(ITEMS["rho"], results, tmp_path)
