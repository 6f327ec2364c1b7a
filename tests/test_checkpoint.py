"""A run that was killed goes on with the bits of one that was not."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers import same_bits

import localpower as lp
from localpower import checkpoint

RUNS = {
    "local_ritz": {"method": "local_ritz", "tol": 1e-9},
    "all": {"method": "local_ritz", "proposal": "all+residual", "tol": 1e-9},
    "local_power": {"steps": 4, "schedule": "halving", "max_rounds": 7},
    "adaptive": {"steps": 4, "schedule": "adaptive", "max_rounds": 9},
    "certified local_power": {"steps": 3, "schedule": "halving", "max_rounds": 9, "tol": 1e-3},
}


def rows(dtype=float):
    rng = np.random.default_rng(0)
    return (rng.standard_normal((400, 25)) * 0.8 ** np.arange(25)).astype(dtype)


def fit(path, X=None, **options):
    return lp.svd(rows() if X is None else X, 3, workers=4, rng=0, checkpoint=path, **options)


def same_run(a, b):
    """The same numbers, rounds and bytes; only seconds may differ."""
    histories = [[replace(record, seconds=0.0) for record in r.history] for r in (a, b)]
    return same_bits(a, b) and histories[0] == histories[1] and a.ledger == b.ledger


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_ended_after_any_round_goes_on_with_the_same_bits(name, tmp_path):
    whole = fit(None, **RUNS[name])
    for end in range(1, len(whole.history) + 1):
        path = tmp_path / f"{end}"
        fit(path, **RUNS[name], callback=lambda record, state, end=end: record.round == end)
        assert same_run(fit(path, resume=True, **RUNS[name]), whole)


CHILD = """
import os, signal, sys
import numpy as np
import localpower as lp
from localpower import result
path, rounds, inside = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "inside"
rng = np.random.default_rng(0)
X = rng.standard_normal((400, 25)) * 0.8 ** np.arange(25)
replace = os.replace
count = 0

def counted(a, b):
    global count
    count += 1
    if inside and count > rounds:  # the new file is written, but not in place
        os.kill(os.getpid(), signal.SIGKILL)
    replace(a, b)

os.replace = counted

def kill(record, state):
    if not inside and record.round > rounds:
        os.kill(os.getpid(), signal.SIGKILL)

lp.svd(X, 3, workers=4, rng=0, checkpoint=path, callback=kill, method="local_ritz", tol=1e-9)
"""


@pytest.mark.parametrize("where", ["between", "inside"])
@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_a_killed_process_leaves_a_checkpoint_to_go_on_from(tmp_path, rounds, where):
    path = tmp_path / "run.ck"
    killed = subprocess.run([sys.executable, "-c", CHILD, str(path), str(rounds), where])
    assert killed.returncode == -signal.SIGKILL
    assert path.exists() == (rounds > 0)
    again = fit(path, resume=True, method="local_ritz", tol=1e-9)
    assert same_run(again, fit(None, method="local_ritz", tol=1e-9))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"X": rows() + 1}, "data"),
        ({"X": rows()[:399]}, "shards, data"),
        ({"X": rows(np.float32)}, "dtype"),
        ({"tol": 1e-5}, "tol"),
        ({"width": 7}, "width"),
        ({"center": True}, "center"),
        ({"method": "block_krylov"}, "method"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_of_another_run_is_refused_with_the_reason(tmp_path, change, named):
    path = tmp_path / "run.ck"
    options = {"method": "local_ritz", "tol": 1e-9}
    fit(path, **options)
    with pytest.raises(lp.DataError, match=named):
        fit(path, resume=True, **options | change)


def test_torn_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "run.ck"
    fit(path, **RUNS["local_ritz"])
    content = path.read_bytes()
    for torn in (content[:-1], content[: len(content) // 2], content[:50] + b"x" + content[51:]):
        path.write_bytes(torn)
        with pytest.raises(lp.DataError, match="torn or damaged checkpoint"):
            fit(path, resume=True, **RUNS["local_ritz"])
    for foreign in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        path.write_bytes(foreign)
        with pytest.raises(lp.DataError, match="no checkpoint of this version"):
            fit(path, resume=True, **RUNS["local_ritz"])


def test_a_missing_checkpoint_starts_anew_and_every_says_how_often_it_is_written(
    tmp_path, monkeypatch
):
    written = []
    save = checkpoint.save

    def noting(path, point, identity):
        written.append(point.state.round)
        save(path, point, identity)

    monkeypatch.setattr("localpower.api.save", noting)
    fit(tmp_path / "run.ck", resume=True, every=3, method="dpi", max_rounds=8)
    assert written == [3, 6]
    assert os.listdir(tmp_path) == ["run.ck"]
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        lp.svd(rows(), 3, resume=True)


def test_a_warm_start_saves_rounds():
    cold = lp.svd(rows(), 3, method="dpi", tol=1e-8, max_rounds=200, rng=0)
    near = rows() + 1e-6
    again = lp.svd(near, 3, method="dpi", tol=1e-8, max_rounds=200, rng=1)
    warm = lp.svd(near, 3, method="dpi", tol=1e-8, max_rounds=200, rng=1, warm_start=cold)
    assert len(warm.history) < len(again.history)
    with pytest.raises(ValueError, match="warm_start has 25 columns where the data have 24"):
        lp.svd(rows()[:, :24], 3, warm_start=cold)
