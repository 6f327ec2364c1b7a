"""What a notebook shows: pictures, tables and pages below a cell, and progress meanwhile."""

import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import with_spectrum

import localpower as lp
from localpower.core.text import MOST_LINES
from localpower.show.history import History

A = with_spectrum(300, 0.8 ** np.arange(12), seed=3)
START = """
import sys
import time
import numpy as np
import localpower as lp
X = np.random.default_rng(0).standard_normal((400, 12)) * 0.8 ** np.arange(12)
result = lp.pca(X, 3, "dpi", tol=1e-6, max_rounds=300, workers=4, rng=0)
"""
SLOW = """
def wait(record, state):
    time.sleep(0.3)
lp.pca(X, 3, "dpi", max_rounds=6, workers=4, rng=0, callback=wait).reason
"""


@pytest.fixture(scope="module")
def result():
    return lp.pca(A, 3, "dpi:width=3", tol=1e-8, max_rounds=300, workers=4, rng=0)


@pytest.fixture(scope="module")
def run_cells():
    """Run cells in a kernel of their own; returns what each of them shows."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    from nbformat.v4 import new_code_cell, new_notebook

    def run(*sources):
        cells = [new_code_cell(source) for source in (START, *sources)]
        nbclient.NotebookClient(new_notebook(cells=cells), timeout=120).execute()
        return [cell["outputs"] for cell in cells[1:]]

    return run


def test_a_real_notebook_shows_pictures_tables_and_pages(run_cells):
    shown = run_cells(
        "result.plot('variance')",
        "%matplotlib inline\nresult.plot('scores', X, color=np.arange(400) % 3)",
        "result.report()",
        "result.ledger",
        "result.history",
        "lp.plan(X, 3)",
        "lp.compare(X, 3, methods='gram', workers=2)",
        "lp.compare(X, 3, methods='gram', workers=2).plot()",
        "result.history.to_frame()",
        "result",
    )
    kinds = ["image/png", "image/png", *5 * ["text/html"], "image/png", *2 * ["text/html"]]
    for outputs, kind in zip(shown, kinds, strict=True):
        assert [output["output_type"] for output in outputs] == ["execute_result"]
        assert kind in outputs[0]["data"]
    assert "<iframe" in shown[2][0]["data"]["text/html"]


def test_a_real_notebook_shows_progress_of_a_long_run_and_nothing_of_a_short_one(run_cells):
    show = "import IPython\nshell = IPython.get_ipython()\nsaid = []\n"
    show += "publish = shell.display_pub.publish\n"
    show += (
        "shell.display_pub.publish = lambda data, **k: (said.append(data), publish(data, **k))\n"
    )
    quick, slow, said, never = run_cells(
        "lp.pca(X, 3, workers=4, rng=0).reason",
        show + SLOW,
        "print('\\n'.join(data['text/plain'] for data in said))",
        "said.clear()\n" + SLOW.replace("rng=0", "rng=0, progress=False") + "\nlen(said)",
    )
    assert [output["output_type"] for output in quick] == ["execute_result"]
    assert [output["output_type"] for output in slow] == ["display_data", "execute_result"]
    assert slow[0]["data"]["text/plain"] == ""  # gone at the end
    assert re.search(r"round [3-6] of 6", said[0]["text"])
    assert never[0]["data"]["text/plain"] == "0"


def test_a_picture_is_a_figure_that_shows_itself(result, tmp_path):
    from matplotlib.figure import Figure

    figure = result.plot("variance")
    assert isinstance(figure, Figure)
    image, about = figure._repr_png_()
    assert image.startswith(b"\x89PNG")
    width, height = (int.from_bytes(image[at : at + 4], "big") for at in (16, 20))
    assert abs(width - 2 * about["width"]) <= 1
    assert abs(height - 2 * about["height"]) <= 1
    assert len(pickle.loads(pickle.dumps(figure)).axes) == len(figure.axes)
    figure.savefig(tmp_path / "it.svg")


def test_a_page_without_a_path_is_shown_and_not_written(result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = result.report(data=A)
    assert not [*tmp_path.iterdir()]
    shown = page._repr_html_()
    assert shown.count("<iframe") == shown.count('"allow-scripts"') == 1
    assert "<!doctype" not in shown  # nothing of the page is markup of the notebook
    assert "run.html" in repr(page)
    assert result.report("run.html", A).read_text("utf-8") == page.html


def test_histories_and_ledgers_are_tables_and_frames(result):
    history, ledger = result.history, result.ledger
    frame = history.to_frame()
    assert frame["angle"].tolist() == [record.angle for record in history]
    assert list(frame["round"]) == list(range(1, len(history) + 1))
    account = ledger.to_frame()
    assert account["bytes_up"].sum() == ledger.bytes_up
    assert len(account) == ledger.hops
    assert len(history) > MOST_LINES
    for one, name in ((history, "rounds"), (ledger, "rounds")):
        lines, left = str(one).splitlines(), len(one.to_frame()) - MOST_LINES
        assert f"and {left} more {name}" in str(one)
        assert MOST_LINES + 2 <= len(lines) <= MOST_LINES + 3
        assert one._repr_html_().count("<tr>") == MOST_LINES + 2
    assert str(history[-1].round) in str(history).splitlines()[-1]
    assert isinstance(replace(result, history=tuple(history)).history, History)
    assert isinstance(history, tuple)
    assert history == tuple(history)


def test_plans_and_comparisons_are_frames():
    plan = lp.plan((1000, 20), 3, workers=4)
    frame = plan.to_frame()
    assert frame["method"].tolist() == [row.method for row in plan]
    assert "ledger" not in frame
    found = lp.compare(A, 3, methods="gram,tsqr", workers=2)
    assert found.to_frame()["angle"].tolist() == [row.angle for row in found]
    assert {"points", "result"}.isdisjoint(found.to_frame().columns)


def test_without_pandas_a_frame_names_the_extra(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(lp.MissingExtra, match=r"Ledger\.to_frame needs .*'localpower\[pandas\]'"):
        result.ledger.to_frame()


# What rows are coloured by, and called


@pytest.fixture(scope="module")
def named():
    frame = pd.DataFrame(A, columns=[f"x{j}" for j in range(12)])
    frame["kind"] = np.array(["oak", "elm", "ash"])[np.arange(300) % 3]
    frame["tag"] = [f"tree-{i}" for i in range(300)]
    return lp.pca(frame[[f"x{j}" for j in range(12)]], 3, workers=4, rng=0), frame


def test_labels_that_read_set_aside_are_the_colours_of_scores(named, tmp_path):
    _, frame = named
    frame.drop(columns="tag").to_csv(tmp_path / "trees.csv", index=False)
    with lp.read(tmp_path / "trees.csv", label="kind") as rows:
        result = lp.pca(rows, 2, rng=0)
        page, figure = result.report(data=rows).html, result.plot("scores", rows)
    (legend,) = figure.subfigs[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["ash", "elm", "oak"]
    assert page.count("\nlabel: oak</title>") == 100
    assert "trees.csv, row 299\nlabel: ash</title>" in page


def test_on_the_command_line_a_label_colours_the_page(named, tmp_path, monkeypatch):
    from localpower.cli.commands import main

    monkeypatch.chdir(tmp_path)
    named[1].to_csv("trees.csv", index=False)
    assert main(["fit", "trees.csv", "-k", "2", "--drop", "tag", "--label", "kind", "-o", "m"]) == 0
    assert main(["report", "m", "--data", "trees.csv", "-o", "a.html"]) == 0
    assert main(["fit", "trees.csv", "-k", "2", "--drop", "tag,kind", "-o", "m"]) == 0
    how = ["--label", "kind", "--drop", "tag"]
    assert main(["report", "m", "--data", "trees.csv", *how, "-o", "b.html"]) == 0
    for name in ("a.html", "b.html"):
        assert Path(name).read_text("utf-8").count("\nlabel: oak</title>") == 100


@pytest.mark.parametrize("kind", ["frame", "file"])
def test_columns_of_the_data_name_colours_and_ids(named, kind, tmp_path):
    result, data = named
    if kind == "file":
        data.to_parquet(tmp_path / "trees.parquet")
        data = tmp_path / "trees.parquet"
    page = result.report(data=data, color="kind", ids="tag").html
    assert "<title>tree-7\nkind: elm</title>" in page
    assert "Coloured by kind." in page
    by_feature = result.report(data=data, color="x3").html
    assert f"x3: {A[7, 3]}</title>" in by_feature
    with pytest.raises(ValueError, match="color='sort': the data have no such column"):
        result.plot("scores", data, color="sort")


def test_values_name_colours_and_ids_and_a_frame_its_own(named):
    result, frame = named
    x = frame[[f"x{j}" for j in range(12)]]
    indexed = x.set_index(frame["tag"])
    assert "<title>tree-7</title>" in result.report(data=indexed).html
    assert "<title>row 7</title>" in result.report(data=x.to_numpy()).html
    page = result.report(data=x, color=frame["kind"], ids=frame["tag"].tolist()).html
    assert "<title>tree-7\nelm</title>" in page
    left = lp.pca(x, 2, rng=0, return_u=True)
    assert "<title>row 7\nelm</title>" in left.report(color=frame["kind"]).html
    with pytest.raises(ValueError, match=r"color has shape \(5,\) where there are 300 rows"):
        result.plot("scores", x, color=range(5))
    with pytest.raises(ValueError, match=r"color='kind' tells of rows.*give data="):
        result.plot("scores", color="kind")
    with pytest.raises(ValueError, match="hold no other columns; give one value for each row"):
        result.plot("scores", lp.read(x), color="kind")


@pytest.mark.parametrize("kind", ["frame", "file"])
def test_labels_that_read_set_aside_answer_to_the_name_of_their_column(named, kind, tmp_path):
    result, data = named
    if kind == "file":
        data.to_csv(tmp_path / "trees.csv", index=False)
        data = tmp_path / "trees.csv"
    rows = lp.read(data, drop="tag", label="kind")
    page = result.report(data=rows, color="kind").html
    assert "\nkind: elm</title>" in page
    assert "Coloured by kind." in page
    with pytest.raises(ValueError, match=r"color='tag': rows that .* opened hold no"):
        result.plot("scores", rows, color="tag")


def test_numbers_of_rows_and_years_from_a_file_are_told_without_a_point(named, tmp_path):
    result, data = named
    more = data.drop(columns="tag").assign(number=range(1000, 1300), year=2011)
    more.to_csv(tmp_path / "trees.csv", index=False)
    page = result.report(data=tmp_path / "trees.csv", color="year", ids="number").html
    assert "<title>1007\nyear: 2011</title>" in page


def test_at_a_prompt_long_objects_are_one_short_line(result):
    shown = repr(result.ledger), repr(result.history), repr(lp.plan((1000, 20), 3))
    assert shown[0] == f"<Ledger of {str(result.ledger).splitlines()[0]}>"
    assert shown[1] == f"<History of {len(result.history)} rounds>"
    assert shown[2].startswith("<Plan: gram: 1 round, about ")
    with lp.connect("threads") as engine:
        assert repr(engine) == "<Threads engine>"
    assert all(len(text) < 150 and "\n" not in text for text in shown)
