"""Ranks of an MPI job have the scores of their own rows, in Python and on the command line."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import with_spectrum

import localpower as lp

MPIEXEC = Path(sys.executable).with_name("mpiexec")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MPIR_CVAR_ENABLE_YIELD": "1"}

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is missing"),
    pytest.mark.skipif(not MPIEXEC.exists(), reason=f"there is no {MPIEXEC}: pip install mpich"),
]

A = with_spectrum(300, 0.7 ** np.arange(6), seed=1) * 10 + 50
PROGRAM = """
import sys
import numpy as np
import localpower as lp
from mpi4py import MPI
rows = lambda rank: np.load(f"rows-{rank}.npy")
result = lp.pca(rows, 3, engine="mpi", rng=0, return_u="engine")
rank = MPI.COMM_WORLD.Get_rank()
np.save(f"mine-{rank}.npy", result.transform(rows))
np.save(f"own-{rank}.npy", result.transform(rows(rank)))
np.save(f"left-{rank}.npy", result.U)
if not rank:
    result.save("model")
"""


def job(folder, *arguments):
    return subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, *map(str, arguments)], cwd=folder, env=ENVIRONMENT,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "rows-0.npy", A[:100])
    np.save(tmp_path / "rows-1.npy", A[100:])
    lp.pca(A, 3, rng=0).save(tmp_path / "here")
    return tmp_path


def both(folder, name):
    return np.vstack([np.load(folder / f"{name}-{rank}.npy") for rank in range(2)])


def test_each_rank_has_the_scores_of_its_own_rows(folder):
    (folder / "program.py").write_text(PROGRAM)
    done = job(folder, "program.py")
    assert done.returncode == 0, done.stderr
    wanted = lp.Result.load(folder / "model").transform(A)
    assert np.abs(both(folder, "mine") - wanted).max() <= 1e-12
    assert np.abs(both(folder, "own") - wanted).max() <= 1e-12
    U = both(folder, "left")
    assert np.abs(U.T @ U - np.eye(3)).max() <= 1e-10


def test_the_command_knows_ranks_in_paths(folder):
    command = ["-m", "localpower", "transform", "here"]
    done = job(folder, *command, "rows-{rank}.npy", "-o", "s-{rank}.npy")
    assert done.returncode == 0, done.stderr
    wanted = lp.Result.load(folder / "here").transform(A)
    assert np.abs(both(folder, "s") - wanted).max() <= 1e-12
    refused = job(folder, *command, "rows-{rank}.npy", "-o", "s.npy")
    assert refused.returncode != 0
    assert "all ranks would write to it" in refused.stderr
    told = job(folder, *command, "rows-0.npy", "-o", "one.npy")
    assert told.returncode == 0, told.stderr
    assert told.stderr.count("rank 0 of this MPI job projects all rows") == 1
    assert told.stdout.count("100 rows on 3 components") == 1
    assert np.abs(np.load(folder / "one.npy") - wanted[:100]).max() <= 1e-12


@pytest.mark.parametrize(
    "command",
    [["report", "here", "-o", "one.html"], ["compare", "rows-0.npy", "-k", "2", "-o", "one.png"]],
)
def test_what_writes_one_file_is_done_by_one_rank(folder, command):
    done = job(folder, "-m", "localpower", *command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("rank 0 of this MPI job does this alone") == 1
    assert done.stdout.count(f"-> {command[-1]}") == 1
    assert (folder / command[-1]).stat().st_size > 1000


def test_ranks_in_paths_need_a_job(folder, capsys):
    from localpower.cli import main

    assert main(["transform", str(folder / "here"), "rows-{rank}.npy", "-o", "s-{rank}.npy"]) == 2
    assert "start it as mpiexec -n 4 localpower transform" in capsys.readouterr().err
