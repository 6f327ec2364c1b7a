"""Methods side by side: the rows are those of single runs, and the angles are true."""

import json
import os
import re
import subprocess
import sys
import time
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers import same_bits, with_spectrum

import localpower as lp
from localpower import comparison
from localpower.cli import main
from localpower.comparison import shown

A = with_spectrum(240, 0.7 ** np.arange(12), seed=3)
K = 3
TRUTH = np.linalg.svd(A)[2][:K].T
SAME = {"workers": 4, "rng": 5, "tol": 1e-6, "max_rounds": 40}
SHOWN = shown()
ITERATING = [name for name, method in SHOWN.items() if method.iterates]
ASKED = {name: {"method": name} for name in SHOWN} | {
    "local_power": {"method": lp.LocalPower(steps=4)},
    "local_power:schedule=halving": {"method": lp.LocalPower(schedule="halving")},
}


@pytest.fixture(scope="module")
def found():
    return lp.compare(A, K, **SAME)


@pytest.fixture
def rows(tmp_path):
    np.save(tmp_path / "rows.npy", A)
    return tmp_path / "rows.npy"


def single(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        return lp.svd(A, K, **SAME | options)


@pytest.mark.parametrize("name", SHOWN)
def test_a_row_is_what_a_single_run_takes(found, name):
    row, alone = found[name], single(**ASKED[name])
    assert np.array_equal(row.result.components, alone.components)
    iterate = alone.ledger.phase("iterate")
    assert (row.rounds, row.hops) == (iterate.rounds, iterate.hops)
    assert row.bytes == iterate.bytes_up + iterate.bytes_down
    assert row.bytes_in_all == alone.ledger.bytes_up + alone.ledger.bytes_down
    assert (row.reason, row.bound) == (alone.reason, alone.history[-1].angle)
    last = row.points[-1]
    assert (last.rounds, last.bytes, last.angle) == (row.rounds, row.bytes, row.angle)
    assert last.seconds == row.seconds <= row.seconds_in_all


@pytest.mark.parametrize("name", SHOWN)
def test_angles_are_to_the_true_components(found, name):
    row = found[name]
    expected = lp.subspace_distance(TRUTH, row.result.components.T)
    assert row.angle == pytest.approx(expected, rel=1e-6, abs=1e-13)
    if row.bound is not None and row.reason != "stalled":
        assert row.angle <= row.bound


@pytest.mark.parametrize("name", ITERATING)
def test_every_point_is_what_a_run_that_ends_there_returns(found, name):
    for number, point in enumerate(found[name].points[:6], start=1):
        result = single(**ASKED[name] | {"max_rounds": number})
        expected = lp.subspace_distance(TRUTH, result.components.T)
        assert point.angle == pytest.approx(expected, rel=1e-5, abs=1e-13)
        up_and_down = [record.bytes_up + record.bytes_down for record in result.history]
        assert (point.rounds, point.bytes) == (number, sum(up_and_down))


def test_the_shards_and_the_seed_are_the_same_for_all_also_by_default():
    found = lp.compare(A[:14], K, rng=None, partition="shuffled", methods="dpi,tsqr,dpi:width=12")
    assert len({row.result.run["workers"] for row in found}) == 1
    assert {row.result.run["seed"] for row in found} == {found.run["seed"]}


def test_measuring_is_not_counted(monkeypatch):
    true = comparison.subspace_distance
    monkeypatch.setattr(
        comparison, "subspace_distance", lambda *bases: (time.sleep(0.05), true(*bases))[1]
    )
    row = lp.compare(A, K, methods="dpi", tol=0, max_rounds=30, engine="inline")["dpi"]
    assert row.seconds < 1 < 30 * 0.05
    assert row.seconds_in_all < 1


def test_the_table_fits_and_is_sorted_by_seconds(found):
    text = str(found)
    assert max(map(len, text.splitlines())) <= 100
    assert [row.seconds for row in found] == sorted(row.seconds for row in found)
    assert "to the answer of tsqr" in text
    places = [text.index(f"\n{row.method} ") for row in found]
    assert places == sorted(places)
    assert text.count("\n") == 3 + len(SHOWN)
    assert ">local_ritz</td>" in found._repr_html_()
    assert "local_ritz" in repr(found)
    with pytest.raises(KeyError):
        found["auto"]


def test_a_long_name_has_a_line_of_its_own():
    name = "local_power:steps=8,schedule=halving:2,align=signs"
    found = lp.compare(A, K, methods=[name, "dpi"], max_rounds=5)
    lines = str(found).splitlines()
    assert name in lines
    assert max(map(len, lines)) <= 100
    assert found[name].result.run["options"]["schedule"] == "halving:2"


def test_what_does_not_fit_is_left_out_and_what_fails_is_said_and_others_run():
    X = np.random.default_rng(0).standard_normal((200, 900)) * 0.9 ** np.arange(900)
    found = lp.compare(X, 2, memory="16MiB", max_rounds=30)
    text = str(found)
    assert set(found.missing) == {"gram", "tsqr"}
    assert re.search(r"gram +left out: takes 25.9 MB, and memory is 16.8 MB", text)
    assert "to the answer of local_ritz, certified to " in text
    assert found["dpi"].angle < 1e-6

    found = lp.compare(A, K, methods="dpi:width=2,tsqr", max_rounds=5)
    assert found.missing == {
        "dpi:width=2": "failed: width=2 is below rank=3; iterate at least that many columns"
    }
    assert "failed: width=2" in str(found)
    assert "failed: width=2" in found._repr_html_()
    assert found["tsqr"].angle < 1e-14


def test_large_matrices_are_formed_only_if_named(monkeypatch):
    monkeypatch.setattr(comparison, "LARGEST", 100)
    found = lp.compare(A, K, max_rounds=5)
    assert found.missing["gram"] == "left out: forms a matrix of 1.15 kB; name it to run it"
    assert not lp.compare(A, K, methods="gram", max_rounds=5).missing


def test_mistakes_are_said_before_anything_runs():
    for methods, message in (
        ("foo", "methods='foo' is not known: take one of"),
        ("dpi:steps", "methods='dpi:steps': 'steps' is not an option of it"),
        ("dpi:speed=3", "'speed=3' is not an option of it: take some of width, wire"),
        ("dpi:steps=x", "'steps=x' is not an option of it: take some of width, wire"),
        ("uda,local_power:steps=x", "methods='local_power:steps=x': 'steps=x' must be a whole"),
        ("uda,local_power:steps=0", "methods='local_power:steps=0': steps=0 must be 1 or more"),
        ("", "methods is empty: name at least one method"),
        ([], "methods is empty: name at least one method"),
    ):
        with pytest.raises(ValueError, match=message):
            lp.compare(A, K, methods=methods)
    for options in ({"tol": 2}, {"max_rounds": 0}, {"workers": 0}, {"engine": "cloud"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}="):
            lp.compare(A, K, **options)
    with pytest.raises(lp.DataError, match="NaN"):
        lp.compare(np.where(A > 0.1, np.nan, A), K)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tol": None}, ValueError, "tol=None must be the sine of an angle: take 0 <= tol < 1"),
        ({"tol": "small"}, ValueError, "tol='small' must be the sine"),
        ({"max_rounds": None}, TypeError, "max_rounds=None must be a whole number"),
        ({"max_rounds": "9"}, TypeError, "max_rounds='9' must be a whole number"),
        ({"methods": 3}, TypeError, r"methods=3 must be names, as 'auto,\w+', or a list"),
        ({"methods": [3]}, TypeError, "methods=3 must be a name such as 'auto', or a method such"),
    ],
)
def test_arguments_of_another_type_are_named(options, error, message):
    with pytest.raises(error, match=message):
        lp.compare(A, K, **options)


def test_a_method_that_is_not_there_is_answered_with_those_that_are_or_why_not():
    found = lp.compare(A, K, methods="uda,local_power:width=2", max_rounds=2)
    with pytest.raises(KeyError, match=r"no method 'wda' in this comparison.*'uda'"):
        found["wda"]
    with pytest.raises(KeyError, match="'local_power:width=2' did not run: failed: width=2"):
        found["local_power:width=2"]


def test_objects_and_texts_and_sets_of_times_are_compared_alike():
    texts = "dpi:width=4,local_power:steps=2,schedule={0,4,8},uda"
    objects = [
        lp.methods.PowerIteration(width=4),
        lp.LocalPower(steps=2, schedule={0, 4, 8}),
        "uda",
    ]
    by_text, by_object = (lp.compare(A, K, methods=each, **SAME) for each in (texts, objects))
    names = {"dpi:width=4", "local_power:steps=2,schedule={0,4,8}", "uda"}
    assert {row.method for row in by_text} == {row.method for row in by_object} == names
    for name in names:
        assert same_bits(by_text[name].result, by_object[name].result)


def test_it_tells_what_is_next_and_warns_of_nothing():
    told = []
    lp.compare(A, K, methods="uda,dpi", tol=1e-9, max_rounds=2, progress=told.append)
    assert told == ["the answer to measure angles to", "1 of 2: uda", "2 of 2: dpi"]


def open_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    return [] if pyplot is None else pyplot.get_fignums()


def test_pictures(found, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    before = open_figures()
    png, svg = found.plot(tmp_path / "a.png"), found.plot(str(tmp_path / "a.svg"))
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    image = imread(png)
    assert image.shape[1] > 1000
    assert image[..., :3].std() > 0.05
    texts = {e.text for e in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {*SHOWN, "rounds", "bytes moved, up and down", "tolerance"} <= texts
    again = lp.compare(A, K, methods="tsqr,dpi:width=5", tol=0, max_rounds=5)
    again.plot(tmp_path / "b.svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.svg"]
    assert open_figures() == before


def test_pictures_are_checked_first(found, rows, tmp_path, monkeypatch, capsys):
    for path, message in (("a.pdf", ".png or .svg"), ("gone/a.png", "does not exist")):
        with pytest.raises(ValueError, match=message):
            found.plot(tmp_path / path)
        run = ["compare", str(rows), "-k", "2", "-o", str(tmp_path / path)]
        assert main([*run, "--max-rounds", "1000000000", "--tol", "0"]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(lp.MissingExtra, match=r"localpower\[plot\]"):
        found.plot(tmp_path / "a.png")


def test_without_a_method_that_ran_there_is_still_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    found = lp.compare(A, K, methods="dpi:width=2")
    assert found.rows == ()
    assert found.plot(tmp_path / "a.png").exists()


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "localpower", "compare", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"COLUMNS": "80"},
    )


def test_the_command_prints_the_table_and_draws(rows, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "angles.png"
    methods = "local_ritz,local_power:steps=2,schedule=halving,uda"
    out = command(rows, "-k", K, "-m", 4, "--methods", methods, "--center", "-o", picture)
    assert (out.returncode, out.stderr) == (0, "")
    assert re.search(r"^local_ritz +\d+ +\d+ .* certified$", out.stdout, re.MULTILINE)
    assert re.search(r"^local_power:steps=2,schedule=halving$", out.stdout, re.MULTILINE)
    assert out.stdout.endswith(f"-> {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_commands_json_has_every_point(rows, capsys):
    run = ["compare", str(rows), "-k", "3", "-m", "4", "--methods", "dpi,dpi:width=1", "--json"]
    assert main([*run, "--seed", "5", "--max-rounds", "40"]) == 0
    out = capsys.readouterr()
    assert out.err == ""
    content = json.loads(out.out)
    row = content["rows"][0]
    expected = lp.compare(A, K, **SAME, methods="dpi")["dpi"]
    assert (row["bytes"], row["rounds"]) == (expected.bytes, expected.rounds)
    assert [point["angle"] for point in row["points"]] == [p.angle for p in expected.points]
    assert "width=1" in content["missing"]["dpi:width=1"]
    assert (content["run"]["seed"], content["reference"]) == (5, "tsqr")
    assert main(["compare", str(rows), "-k", "99"]) == 2
    assert main(["compare", str(rows), "-k", "3", "--methods", "foo"]) == 2


def test_the_commands_help_fits_a_screen():
    out = command("--help").stdout.splitlines()
    assert len(out) <= 40
    assert max(map(len, out)) <= 80
    assert out[2].startswith("example: localpower compare")


def test_the_command_does_not_let_every_rank_read_the_same_rows(capsys):
    assert main(["compare", "rows.npy", "-k", "2", "--engine", "mpi"]) == 2
    assert "--engine mpi" in capsys.readouterr().err
