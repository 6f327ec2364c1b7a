"""The command, run as a program."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from helpers import LONG, ended, with_spectrum

import localpower as lp
from localpower.cli import main
from localpower.methods import REGISTRY
from localpower.show import summary as overview

A = with_spectrum(120, 0.6 ** np.arange(8), seed=3)
FOUR = "local_power:steps=4"


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "localpower", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def status(*arguments):
    """The same without a process of its own: the exit status alone."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


@pytest.fixture
def here(capsys):
    """The same with what it prints."""

    def run(*arguments):
        code = status(*arguments)
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=printed.out, stderr=printed.err)

    return run


@pytest.fixture
def rows(tmp_path):
    np.save(tmp_path / "rows.npy", A)
    return tmp_path / "rows.npy"


def test_fit_inspect_transform(rows, tmp_path):
    model = tmp_path / "model"
    options = ["-k", 3, "--workers", 4, "--engine", "processes:2", "--seed", 0, "--center"]
    options += ["--method", "local_power:steps=2", "--max-rounds", 9]
    out = command("fit", rows, *options, "-o", model)
    assert out.returncode == 0, out.stderr
    assert len(re.findall(r"^ +\d+ +2 +\d", out.stdout, re.MULTILINE)) == 9
    expected = lp.svd(
        A, 3, workers=4, method="local_power:steps=2", center=True, rng=0, max_rounds=9
    )
    result = lp.Result.load(model)
    assert np.array_equal(result.components, expected.components)

    shown = command("inspect", model)
    assert shown.returncode == 0
    assert f"{result.singular_values[0]:.8g}" in shown.stdout

    for name in ("scores.npy", "scores.csv"):
        assert status("transform", model, rows, "-o", tmp_path / name) == 0
    assert np.array_equal(np.load(tmp_path / "scores.npy"), expected.transform(A))
    lines = (tmp_path / "scores.csv").read_text().splitlines()
    assert lines[0] == "pc1,pc2,pc3"
    csv = np.loadtxt(lines[1:], delimiter=",")
    assert np.array_equal(csv, expected.transform(A))


def test_json_is_all_that_programs_get(rows):
    out = command("fit", rows, "-k", 2, "--method", FOUR, "--json", "--seed", 1)
    content = json.loads(out.stdout)
    assert out.stderr == ""
    assert content["run"]["seed"] == 1
    assert len(content["history"]) == 30
    assert len(content["singular_values"]) == 2
    assert content["ledger"]["bytes_up"] > 0


def test_several_files_are_the_shards(tmp_path, here):
    np.save(tmp_path / "a.npy", A[:50])
    np.save(tmp_path / "b.npy", A[50:])
    out = here("fit", tmp_path / "a.npy", tmp_path / "b.npy", "-k", 2, "--json")
    assert json.loads(out.stdout)["run"]["workers"] == 2


def test_explicit_times(rows, here):
    times = "local_power:schedule={0,4,6,7}"
    out = here("fit", rows, "-k", 2, "--method", times, "--json")
    assert [r["steps"] for r in json.loads(out.stdout)["history"]] == [4, 2, 1]


def write_truncated(path):
    np.save(path, A)
    path.write_bytes(path.read_bytes()[:1000])


def write_bad_line(path):
    path.write_text("1 1:0.5\n-1 2:0.5 oops\n")


def write_nan(path):
    np.save(path, np.where(np.arange(8) == 5, np.nan, A))


def write_objects(path):
    np.save(path, np.array([[1, "a"]], dtype=object), allow_pickle=True)


def write_empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("rows.npy", write_truncated, r"rows\.npy: not a complete \.npy file"),
        ("rows.svm", write_bad_line, r"rows\.svm, line 2: 'oops' is not index:value"),
        ("rows.npy", write_nan, r"NaN or infinity in .*rows\.npy, row 0, column 5"),
        ("rows.npy", write_objects, r"rows\.npy"),
        ("rows.svm", write_empty, r"rows\.svm: .*empty"),
        ("rows.npy", write_empty, r"rows\.npy"),
        ("gone.npy", lambda path: None, r"gone\.npy: No such file"),
        ("rows.csv", write_empty, r"rows\.csv.*empty"),
        ("rows.parquet", write_bad_line, r"rows\.parquet: not a \.parquet file, it starts with"),
    ],
)
def test_bad_files_fail_with_one_line(tmp_path, name, write, message, capsys):
    write(tmp_path / name)
    assert status("fit", tmp_path / name, "-k", 1) == 1
    errors = capsys.readouterr().err
    assert re.search(message, errors)
    assert errors.startswith("localpower: ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fit"],
        ["fit", "{rows}"],
        ["fit", "{rows}", "-k", "0"],
        ["fit", "{rows}", "-k", "99"],
        ["fit", "{rows}", "-k", "x"],
        ["fit", "{rows}", "-k", "1.0"],
        ["fit", "{rows}", "-k", "nan"],
        ["fit", "{rows}", "-k", "2.5"],
        ["fit", "{rows}", "-k", "0.9", "--method", "uda"],
        ["fit", "{rows}", "-k", "0.9", "--method", "dpi:width=2"],
        ["plan", "100x10", "-k", "0.9"],
        ["fit", "{rows}", "-k", "3", "--method", "dpi:width=2"],
        ["fit", "{rows}", "-k", "3", "--method", "foo"],
        ["fit", "{rows}", "-k", "3", "--method", "local_power:schedule=foo"],
        ["fit", "{rows}", "-k", "3", "--method", "local_power:schedule={{0,x}}"],
        ["fit", "{rows}", "-k", "3", "--method", "dpi:steps=4"],
        ["fit", "{rows}", "-k", "3", "--budget", "5"],
        ["fit", "{rows}", "-k", "3", "--budget", "bytes=0"],
        ["fit", "{rows}", "-k", "3", "--budget", "pounds=3"],
        ["fit", "{rows}", "-k", "3", "--faults", "retries=x"],
        ["fit", "{rows}", "-k", "3", "--faults", "on_loss=cry"],
        ["fit", "{rows}", "-k", "3", "--partition", "foo"],
        ["fit", "{rows}", "-k", "3", "--resume"],
        ["fit", "{rows}", "-k", "3", "--engine", "cloud"],
        ["fit", "{rows}", "-k", "3", "--scale", "foo"],
        ["transform", "{rows}"],
        ["transform", "{rows}", "{rows}", "-o", "scores.txt"],
        ["dance"],
    ],
)
def test_bad_usage_exits_with_two(rows, arguments, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["localpower"])
    assert status(*[argument.format(rows=rows) for argument in arguments]) == 2
    assert capsys.readouterr().err


def test_a_share_is_a_number_of_components(rows, tmp_path, capsys):
    count = len(lp.svd(A, 0.9, "local_ritz", workers=3, rng=0, center=True).components)
    fit = ["fit", rows, "-k", "0.9", "--method", "local_ritz", "--workers", 3, "--seed", 0]
    assert status(*fit, "--center", "-o", tmp_path / "model") == 0
    result = lp.Result.load(tmp_path / "model")
    assert len(result.components) == count > 1
    assert f"90 % of the variance is reached by {count} components (proven)" in str(result)
    assert f"90 % of the variance is reached by {count} components" in capsys.readouterr().out
    assert status("inspect", tmp_path / "model") == 0
    assert f"90 % of the variance is reached by {count} components" in capsys.readouterr().out
    assert status("plan", rows, "-k", "0.9", "--center") == 0
    assert f"rank {count} of" in capsys.readouterr().out
    assert status("compare", rows, "-k", "0.9", "--center", "--methods", "tsqr,dpi") == 0
    assert f"rank {count} of" in capsys.readouterr().out


def test_groups_of_options_reach_the_run_and_a_checkpoint_goes_on(rows, tmp_path, capsys):
    fit = ["fit", rows, "-k", 2, "--method", "dpi", "--workers", 3, "--seed", 0, "--json"]

    def run(*more):
        assert status(*fit, *more) == 0
        return json.loads(capsys.readouterr().out)

    whole = run("--max-rounds", 7)
    assert run("--budget", "bytes=1,seconds=9")["reason"] == "budget"
    kept = ["--checkpoint", tmp_path / "run.ck", "--every", 2]
    assert run(*kept, "--max-rounds", 4)["reason"] == "max_rounds"
    again = run(*kept, "--max-rounds", 7, "--resume")
    assert again["singular_values"] == whole["singular_values"]
    assert [r["round"] for r in again["history"]] == list(range(1, 8))
    assert run("--faults", "deadline=60,retries=0,on_loss=degrade", "--max-rounds", 2)
    assert status(*fit, "--resume") == 2
    assert "--resume needs --checkpoint" in capsys.readouterr().err
    for option, value, message in (
        ("--budget", "pounds=3", "'pounds=3': give some of bytes=..., seconds=..."),
        ("--budget", "bytes=much", "'bytes=much' needs a number"),
        ("--faults", "on_loss=cry", "on_loss='cry' is not known: take one of stop, degrade"),
        ("--method", "local_power:steps=0", "steps=0 must be 1 or more"),
        ("--method", "dpi:steps=4", "'steps=4' is not an option of it: take some of width, wire"),
    ):
        assert status(*fit, option, value) == 2
        assert message in capsys.readouterr().err


def test_every_method_and_option_is_in_the_help(capsys):
    assert status("fit", "--help-all") == 0
    text = capsys.readouterr().out
    for name, form in REGISTRY.items():
        assert re.search(rf"^  {name} +\w", text, re.M)
        for option in form.options():
            assert f"      {option}=" in text


def test_inspecting_what_is_no_model_fails(tmp_path, here):
    out = here("inspect", tmp_path)
    assert out.returncode == 1
    assert "is not a model" in out.stderr


def test_a_live_table_on_a_terminal(rows):
    leader, follower = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "localpower", "fit", str(rows), "-k", "2", "--method", FOUR],
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert run.wait() == 0
    assert re.search(rb"\x1b\[\d+A", shown)  # redrawn in place
    assert b"    30     4 " in shown


def test_output_into_a_closed_pipe_is_no_error_and_the_model_is_written(rows, tmp_path):
    fit = f"'{sys.executable}' -m localpower fit '{rows}' -k 2 --method {FOUR} --max-rounds 2000"
    shell = f"{fit} -o '{tmp_path / 'model'}' | head -n 1; exit ${{PIPESTATUS[0]}}"
    out = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert out.stderr == ""
    assert len(lp.Result.load(tmp_path / "model").history) == 2000


def test_rows_from_a_pipe_are_refused_not_half_read(tmp_path, here):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    out = here("fit", fifo, "-k", 1)
    assert out.returncode == 1
    assert "is not a regular file" in out.stderr


def test_several_files_are_named_in_errors(rows, tmp_path, here):
    np.save(tmp_path / "nan.npy", np.where(np.arange(8) == 5, np.nan, A))
    np.save(tmp_path / "narrow.npy", A[:, :4])
    out = here("fit", rows, tmp_path / "nan.npy", "-k", 1)
    assert re.search(r"NaN or infinity in .*nan\.npy, row 0, column 5", out.stderr)
    out = here("fit", rows, tmp_path / "narrow.npy", "-k", 1)
    assert re.search(r"narrow\.npy has 4 columns where .*rows\.npy has 8", out.stderr)


def test_outputs_are_checked_before_the_work(rows, tmp_path, here):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", ""):
        out = here("fit", rows, "-k", 2, "-o", path, "--max-rounds", 10**9)
        assert out.returncode == 2
        assert "a model is written into a folder" in out.stderr
    for out in (["-o", tmp_path / "file" / "model"], ["--report", tmp_path / "gone" / "run.html"]):
        refused = here("fit", tmp_path / "never.npy", "-k", 2, *out)
        assert refused.returncode
        assert str(out[1]) in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "rows.npy"]
    assert here("fit", rows, "-k", 2, "-o", tmp_path / "model").returncode == 0
    out = here("transform", tmp_path / "model", rows, "-o", rows)
    assert out.returncode == 2
    assert "is also DATA" in out.stderr
    assert np.array_equal(np.load(rows), A)


def test_a_page_that_cannot_be_made_costs_no_model(rows, tmp_path, capsys):
    out = ["-o", str(tmp_path / "model"), "--report", str(tmp_path / "run.html")]
    assert main(["fit", str(rows), "-k", "2", "--grid", "7x7", *out]) == 2
    assert "grid=7x7 has 49 places" in capsys.readouterr().err
    assert lp.Result.load(tmp_path / "model").run["rank"] == 2


@pytest.fixture
def folder(tmp_path):
    """Rows in two files of a folder."""
    (tmp_path / "data").mkdir()
    for number in range(2):
        np.save(tmp_path / "data" / f"r{number}.npy", A[60 * number : 60 * (number + 1)])
    return tmp_path / "data"


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_transform_of_a_glob_can_be_repeated(folder, tmp_path, capsys, suffix):
    assert status("fit", folder, "-k", 2, "-o", tmp_path / "model") == 0
    scores = tmp_path / f"scores{suffix}"
    for data in (folder / "r*.npy", folder):
        for _ in range(2):
            assert status("transform", tmp_path / "model", data, "-o", scores) == 0
            written = (
                np.load(scores)
                if suffix == ".npy"
                else np.loadtxt(scores, delimiter=",", skiprows=1)
            )
            assert np.array_equal(written, lp.Result.load(tmp_path / "model").transform(A))


@pytest.mark.parametrize("data", ["data/r*.npy", "data", "data/**"])
def test_scores_that_are_also_data_are_neither_read_nor_written_over(
    folder, tmp_path, capsys, monkeypatch, data
):
    monkeypatch.chdir(tmp_path)
    assert status("fit", data, "-k", 2, "-o", "model") == 0
    scores = folder / "r-scores.npy"
    assert status("transform", "model", data, "-o", "data/r-scores.npy") == 0
    before = scores.read_bytes()
    assert status("transform", "model", data, "-o", "data/r-scores.npy") == 2
    said = capsys.readouterr().err
    assert f"-o data/r-scores.npy exists already, and {data} includes it as DATA; delete it" in said
    assert scores.read_bytes() == before
    assert status("transform", "model", data, "-o", "data/r0.npy") == 2  # rows, perhaps
    scores.unlink()  # as told
    assert status("transform", "model", data, "-o", "data/r-scores.npy") == 0
    assert scores.read_bytes() == before


def test_a_model_in_the_folder_of_its_rows_is_not_taken_for_rows(folder, capsys):
    for _ in range(2):
        assert status("fit", folder, "-k", 2, "-o", folder / "model") == 0
    assert status("transform", folder / "model", folder, "-o", folder.parent / "scores.npy") == 0
    assert len(np.load(folder.parent / "scores.npy")) == len(A)
    assert status("fit", folder / "**" / "*.npz", "-k", 2, "-o", folder / "model") == 2
    assert "model.npz exists already, and " in capsys.readouterr().err


def test_other_outputs_are_not_written_over_rows_either(folder, tmp_path, capsys):
    (folder / "page.html").write_text("1,2\n3,4\n")
    data = folder / "*.html"
    assert status("fit", data, "-k", 1, "--report", folder / "page.html") == 2
    assert "--report " in capsys.readouterr().err
    assert status("fit", data, "-k", 1, "--checkpoint", folder / "page.html") == 2
    assert "--checkpoint " in capsys.readouterr().err
    (folder / "page.png").write_text("1,2\n3,4\n")
    assert status("compare", folder / "*.png", "-k", 1, "-o", folder / "page.png") == 2
    assert "exists already" in capsys.readouterr().err


NAMED = "who,a,b,c\nann,1,2,9\nbob,4,5,7\neve,7,1,3\nmax,2,8,4\n"


@pytest.mark.filterwarnings("default::localpower.DataHint")
def test_the_command_finds_columns_by_name(tmp_path, capsys):
    rows, other, model = tmp_path / "rows.csv", tmp_path / "other.csv", tmp_path / "model"
    rows.write_text(NAMED)
    table = [line.split(",") for line in NAMED.splitlines()]
    other.write_text("".join(f"{c},{b},{a}\n" for _, a, b, c in table))  # and nobody's name
    for drop in ("who", "0"):
        assert status("fit", rows, "-k", 2, "--drop", drop, "--center", "-o", model) == 0
        for data in (rows, other):
            assert status("transform", model, data, "-o", tmp_path / f"{data.stem}.npy") == 0
        same, mixed = (np.load(tmp_path / f"{name}.npy") for name in ("rows", "other"))
        assert np.allclose(same, mixed)
        assert "left out" not in capsys.readouterr().err
    other.write_text(NAMED.replace("b", "x"))
    assert status("transform", model, other, "-o", tmp_path / "x.npy") == 1
    assert "columns of the model are missing: 'b'" in capsys.readouterr().err
    other.write_text("".join(f"{who},{a},{b},{who},{c}\n" for who, a, b, c in table))
    other.write_text(other.read_text().replace("who", "name", 1).replace("who", "more"))
    assert status("transform", model, other, "-o", tmp_path / "x.npy") == 0
    assert "does not have are left out: 'more'" in capsys.readouterr().err
    assert np.allclose(np.load(tmp_path / "x.npy"), same)
    for option, value in (("--drop", "b,who"), ("--columns", "a,c")):
        assert status("transform", model, rows, option, value, "-o", tmp_path / "x.npy") == 1
        said = capsys.readouterr().err
        assert "needs columns that are left out: 'b'; take them off --drop" in said


def test_a_column_without_a_name_is_left_out_as_the_note_says(tmp_path, capsys):
    rows, model = tmp_path / "rows.csv", tmp_path / "model"
    lines = [f"{n},{np.sin(n)},{np.cos(5 * n)}\n" for n in range(40)]
    rows.write_text(",a,b\n" + "".join(lines))
    with warnings.catch_warnings():
        warnings.simplefilter("always", lp.DataHint)
        assert status("fit", rows, "-k", 1, "-o", model) == 0
    assert "leave it out with --drop ''" in capsys.readouterr().err
    assert status("fit", rows, "-k", 1, "--drop", "", "-o", model) == 0
    assert lp.Result.load(model).run["names"] == ["a", "b"]


def test_arguments_that_a_command_does_not_know_are_refused_with_its_own_usage(capsys):
    assert status("report", "model", "rows.csv", "-o", "page.html") == 2
    said = capsys.readouterr().err
    assert "[--data DATA" in said
    assert "unrecognized arguments: rows.csv; see localpower report --help" in said


def test_names_with_commas_are_quoted_in_what_a_command_advises(tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    rows.write_text('"town, old",a,b\n' + "x,1,2\ny,2,1\nz,3,5\n")
    assert status("fit", rows, "-k", 1, "-o", tmp_path / "model") == 1
    assert """with --drop '"town, old"' or""" in capsys.readouterr().err
    assert status("fit", rows, "-k", 1, "--drop", '"town, old"', "-o", tmp_path / "model") == 0


def test_ctrl_c_says_so_and_leaves_nothing(rows, tmp_path):
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "localpower", "fit", str(rows), "-k", "2", "-m", "2"),
            *("--method", FOUR, "--max-rounds", "10000000"),
            *("--engine", "processes:2", "-o", str(tmp_path / "model")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run.stdout.readline()
    run.stdout.readline()
    workers = psutil.Process(run.pid).children()
    assert len(workers) == 2
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=LONG)
    assert run.returncode == 130
    assert errors == "localpower: interrupted\n"
    assert ended(workers)
    assert not (tmp_path / "model").exists()


def test_version_and_help(here):
    assert here("--version").stdout.strip() == f"localpower {lp.__version__}"
    for arguments in (
        ["--help"],
        ["fit", "--help"],
        ["transform", "--help"],
        ["inspect", "--help"],
        ["plan", "--help"],
        ["compare", "--help"],
    ):
        out = here(*arguments)
        assert out.returncode == 0
        assert "example: localpower" in out.stdout
        assert len(out.stdout.splitlines()) < 50


def test_the_plan_of_a_shape_has_its_type_and_memory(capsys):
    assert status("plan", "20000x4000", "-k", 3) == 0
    wide = capsys.readouterr().out
    assert status("plan", "20000x4000", "-k", 3, "--dtype", "float32") == 0
    narrow = capsys.readouterr().out
    assert "to 1e-08" in wide
    assert "to 3e-04" in narrow  # what is aimed at in single precision
    assert status("plan", "20000x4000", "-k", 3, "--memory", "100MB") == 0
    assert "memory" in capsys.readouterr().out
    assert "memory" not in wide
    assert status("plan", "20000x4000", "-k", 3, "--memory", "much") == 2
    assert "--memory much is not a size" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["drop", "columns", "label", "key", "delimiter", "cache"])
def test_a_shape_has_nothing_to_read(option, capsys):
    assert status("plan", "100x20", "-k", 3, f"--{option}", "a") == 2
    assert f"--{option} is for reading files, but 100x20 is a shape" in capsys.readouterr().err


def test_a_latency_that_is_not_known_is_answered_with_those_that_are(capsys):
    assert status("plan", "100x20", "-k", 3, "--latency", "fast") == 2
    said = capsys.readouterr().err
    assert "--latency: 'fast': give seconds, or one of 'one machine', 'rack'" in said


def test_the_plan_is_printed_for_a_shape_and_for_data(rows, here):
    for what in ("100000x50", rows):
        out = here("plan", what, "-k", 2, "-m", 4, "--latency", "wide area")
        assert out.returncode == 0, out.stderr
        assert "gram" in out.stdout
        assert "local_ritz" in out.stdout
    assert here("plan", "100000x50", "-k", 2, "--latency", "slow").returncode == 2


def test_a_fit_says_what_was_chosen_and_why(rows, here):
    out = here("fit", rows, "-k", 2, "--seed", 1)
    assert "chosen: gram: 1 round" in out.stdout
    assert "converged: the sine of the angle" in out.stdout
    assert overview.PROVEN in out.stdout.splitlines()


def test_rounds_tell_their_steps_and_how_sure_they_are(tmp_path, capsys, here):
    tail = with_spectrum(400, np.r_[3, 2.5, 2.2, np.linspace(1, 0.8, 97)], seed=5)
    np.save(tmp_path / "rows.npy", tail)
    asked = ["fit", tmp_path / "rows.npy", "-k", 3, "--tol", 1e-6, "--seed", 0]
    tested = here(*asked, "--method", "block_lanczos").stdout.splitlines()
    assert tested[0].split() == ["round", "steps", "up", "down", "seconds", "angle", "sure"]
    last = next(line for line in tested if line.startswith("block_lanczos"))
    assert re.search(r"e-\d\d +p = \de-\d\d$", tested[tested.index(last) - 1])
    merged = here(*asked, "--method", "local_ritz:start=merged").stdout
    assert re.search(r"\de-\d\d +proven$", merged, re.M)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert status(*asked, "--method", "dpi", "--certainty", "proven") == 0
    doubted = capsys.readouterr()
    assert "\nnot converged (unsure): if nothing was missed, " in doubted.out
    assert "take --method local_ritz:start=random, or a larger start, as " in doubted.err
    assert " --method local_ritz:start=merged:200; a larger certainty" in doubted.err
    assert status(*asked, "--certainty", "2") == 2
    assert status(*asked, "--certainty", "sure") == 2
