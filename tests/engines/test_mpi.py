"""MPI jobs: what ranks do is in mpi_cases.py, and here the jobs are started."""

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers import LONG, ended, same_bits, started, with_spectrum

import localpower as lp
from localpower.cli import main

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MPIR_CVAR_ENABLE_YIELD": "1"}
SECONDS = 2 * LONG

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is missing"),
    pytest.mark.skipif(not MPIEXEC.exists(), reason=f"there is no {MPIEXEC}: pip install mpich"),
]


SHARED = Path("/dev/shm")


def shared():
    """Memory that was left behind: no process has it, so it is not of a job that others run now."""
    there = set(SHARED.glob("mpich_*"))
    maps = ""
    for process in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended, or is another user's
            maps += process.read_text()
    return {path for path in there if str(path) not in maps}


@pytest.fixture(autouse=True)
def _nothing_is_left(request):
    """No process is; MPICH leaves its shared memory, but only where a job was aborted."""
    before = shared()
    yield
    assert ended(started())
    left = shared() - before
    for path in left:
        path.unlink()
    assert not left or "killed" in request.node.name or "interrupted" in request.node.name


def job(ranks, *command, **options):
    """Run an MPI job; return what it printed. One that takes too long is ended, with its ranks."""
    whole = [MPIEXEC, "-n", str(ranks), sys.executable, *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(whole, env=ENVIRONMENT, **pipes, **options) as run:
        try:
            printed = run.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            for process in (*psutil.Process(run.pid).children(recursive=True), run):
                process.kill()
            pytest.fail(f"{command} took longer than {SECONDS} s: {run.communicate()}")
    return subprocess.CompletedProcess(whole, run.returncode, *printed)


def well(ranks, *names):
    """Run cases on so many ranks; all of them must be well on all ranks."""
    done = job(ranks, "-W", "ignore", "-m", "mpi4py", str(HERE / "mpi_cases.py"), *names)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.split("\n") == [*(f"{name}: well" for name in names), ""]


def test_the_contract_holds_for_rows_that_rank_0_spreads_over_four_ranks():
    chosen = "larger or float64 or not bits"
    done = job(4, str(HERE / "mpi_contract.py"), "-k", chosen, cwd=HERE.parent.parent)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert " passed" in done.stdout


OF_THREE = [
    *("native_data", "led", "own_communicator", "adversary"),
    *("errors", "wrong_on_one_rank", "estimators", "resumed"),
    *("late", "left_alone", "forgotten", "mixed", "polite", "degraded", "example"),
]


def test_three_ranks_get_the_bits_of_one_process_fail_together_and_never_wait():
    """One job runs all of these, so each of them also leaves the ranks fit for the next.

    Results and certificates are those of one process; an exception on any rank ends all of them;
    only ranks that do not reply are given up; the example of the documentation runs.
    """
    well(3, *OF_THREE)


def test_more_ranks_than_are_added_at_once_get_the_bits_of_one_process():
    well(9, "bits", "large")


def test_one_rank_is_enough():
    well(1, "alone", "room")


def test_a_killed_rank_ends_the_job():
    done = job(3, str(HERE / "mpi_cases.py"), "killed")
    assert done.returncode != 0
    assert "well" not in done.stdout


def test_a_job_that_is_interrupted_ends():
    endless = [MPIEXEC, "-n", "3", sys.executable, str(HERE / "mpi_cases.py"), "endless"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    signs = (signal.SIGINT, signal.SIGTERM)
    runs = [subprocess.Popen(endless, env=ENVIRONMENT, **pipes) for _ in signs]
    for run, sign in zip(runs, signs, strict=True):
        assert run.stdout.readline() == "running\n"
        ranks = psutil.Process(run.pid).children(recursive=True)
        assert len(ranks) >= 3
        run.send_signal(sign)
        run.communicate(timeout=LONG)
        assert run.returncode != 0
        assert ended(ranks)


@pytest.fixture
def folder(tmp_path):
    rows = with_spectrum(120, 0.7 ** np.arange(9))
    for rank, part in enumerate(np.array_split(rows, 2)):
        np.save(tmp_path / f"rows-{rank}.npy", part)
    np.save(tmp_path / "all.npy", rows)
    return tmp_path


@pytest.mark.parametrize("data", ["rows-{rank}.npy", "all.npy"])
def test_the_command_fits_files_of_ranks_or_one_of_rank_0(folder, data):
    options = ["-k", "2", "--method", "local_ritz", "--seed", "0", "-o", "model"]
    options += [] if "{" in data else ["--engine", "mpi", "-m", "2"]
    done = job(2, "-m", "localpower", "fit", data, *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("component") == done.stdout.count("-> model") == 1
    assert not done.stderr
    parts = [folder / f"rows-{rank}.npy" for rank in range(2)]
    asked = {"method": "local_ritz", "rng": 0, "engine": "inline"}
    assert same_bits(lp.Result.load(folder / "model"), lp.svd(parts, 2, **asked))


def test_the_command_says_once_that_ranks_do_not_work_together(folder):
    done = job(2, "-m", "localpower", "fit", "all.npy", "-k", "2", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("add --engine mpi") == 1


def test_the_command_says_once_what_is_wrong_and_on_which_rank(folder, capsys):
    (folder / "rows-1.npy").unlink()
    done = job(2, "-m", "localpower", "fit", "rows-{rank}.npy", "-k", "2", "-o", "m", cwd=folder)
    assert done.returncode != 0
    assert done.stderr.count("localpower:") == 1
    assert "rank 1: FileNotFoundError" in done.stderr
    assert not (folder / "m").exists()
    alone = ["fit", str(folder / "rows-{rank}.npy"), "-k", "2"]
    assert main(alone) == 2
    assert "mpiexec" in capsys.readouterr().err
