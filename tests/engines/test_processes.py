"""Real processes: killed, interrupted, orphaned."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import psutil
import pytest
from helpers import LONG, busy, ended, same_bits, until

import localpower as lp
from localpower.engines.processes import COMMAND
from localpower.worker.shard import Shard
from localpower.worker.tasks import TopVectors

A = np.random.default_rng(0).standard_normal((4000, 60))


BEFORE = set()  # what other tests of this interpreter started


def children():
    return [c for c in psutil.Process().children(recursive=True) if c not in BEFORE]


@pytest.fixture(autouse=True)
def _no_process_is_left():
    BEFORE.clear()
    BEFORE.update(children())
    yield
    assert ended(children())


def test_rows_are_placed_once_and_never_sent_again():
    """A worker reads its rows when they are placed; afterwards it receives bases only."""
    with lp.connect("processes:2") as engine:
        read = []

        def callback(record, state):
            read.append(sum(c.io_counters().read_chars for c in children()))

        lp.svd(A, 3, method="dpi", engine=engine, workers=2, max_rounds=6, rng=0, callback=callback)
        per_round = np.diff(read)
        basis = 60 * 3 * 8 * 2
        assert (per_round >= basis).all()
        assert (per_round < basis + 4000).all()
        assert A.nbytes > 20 * per_round.max()


def test_idle_workers_take_the_next_shards_and_forget_the_last(tmp_path, monkeypatch):
    reference = lp.svd(A, 3, engine="inline", workers=3, rng=0)
    with lp.connect("processes:3") as engine:
        lp.svd(np.ones((300_000, 60)), 1, engine=engine, rng=0)
        first = children()
        before = sum(process.memory_info().rss for process in first)
        assert same_bits(reference, lp.svd(A, 3, engine=engine, workers=3, rng=0))
        assert children() == first
        assert sum(process.memory_info().rss for process in first) < before - 100e6
        lp.svd(A, 3, engine=engine, workers=2, rng=0)
        assert children() == first[:2]  # one of them has nothing to do
        first[0].kill()
        assert same_bits(reference, lp.svd(A, 3, engine=engine, workers=3, rng=0))
        monkeypatch.chdir(tmp_path)  # relative paths are those of the coordinator
        np.save("rows.npy", A)
        assert same_bits(reference, lp.svd("rows.npy", 3, engine=engine, workers=3, rng=0))


@pytest.mark.parametrize("moment", [0, 1, 5])
def test_a_killed_worker_raises_worker_lost_and_nothing_is_left(moment):
    killed = []

    def callback(record, state):
        if record.round == moment + 1:
            victim = children()[-1]
            victim.send_signal(signal.SIGKILL)
            killed.append(victim.pid)

    with pytest.raises(lp.WorkerLost, match=r"held shards .*killed by SIGKILL") as caught:
        lp.svd(
            A,
            3,
            method="local_power:steps=4",
            engine="processes:3",
            workers=6,
            rng=0,
            callback=callback,
            faults=lp.Faults(retries=0),
        )
    assert str(killed[0]) in str(caught.value)


def test_a_worker_killed_while_it_computes_raises_worker_lost():
    def kill():
        until(children)
        busy(children(), 1.0)
        children()[0].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(lp.WorkerLost):
        lp.svd(
            A,
            3,
            engine="processes:2",
            method="local_power:steps=1000000",
            max_rounds=5,
            rng=0,
            faults=lp.Faults(retries=0),
        )
    thread.join()


def test_a_lost_worker_leaves_a_brought_engine_usable():
    with lp.connect("processes:2") as engine:
        with pytest.raises(lp.WorkerLost):
            lp.svd(
                A,
                3,
                method="local_power:steps=4",
                engine=engine,
                rng=0,
                faults=lp.Faults(retries=0),
                callback=lambda *_: children()[0].kill(),
            )
        again = lp.svd(A, 3, engine=engine, max_rounds=2, rng=0)
    assert np.isfinite(again.singular_values).all()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_only_the_worker_that_was_lost_is_started_again(at):
    seen = []

    def callback(record, state):
        seen.append([child.pid for child in children()])
        if record.round == 2:
            psutil.Process(seen[0][at]).kill()

    lp.svd(
        A,
        3,
        method="local_power:steps=4",
        engine="processes:3",
        workers=7,
        max_rounds=5,
        rng=0,
        callback=callback,
    )
    assert set(seen[0]) - set(seen[-1]) == {seen[0][at]}
    assert len(seen[-1]) == 3


def test_a_round_that_another_has_cut_off_is_an_error_and_not_a_wait():
    with lp.connect("processes:2") as engine:
        engine.place([Shard((A[i::3],), 60, A.dtype, number=i) for i in range(3)])
        first, second = (engine.map(TopVectors(1)) for _ in range(2))
        vectors = next(first).vectors
        np.testing.assert_array_equal(vectors, next(iter(list(second))).vectors)
        with pytest.raises(lp.EngineError, match="another task was sent before"):
            next(first)


def test_an_exception_in_the_callback_leaves_no_process():
    def callback(record, state):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lp.svd(A, 3, method="local_power:steps=4", engine="processes:2", rng=0, callback=callback)
    assert not children()


def test_an_engine_that_is_forgotten_ends_its_processes():
    engine = lp.connect("processes:2")
    lp.svd(A, 2, engine=engine, max_rounds=1, rng=0)
    started = children()
    assert started
    del engine
    assert ended(started)


SCRIPT = """
import numpy as np, psutil, sys
import localpower as lp
from localpower.worker.shard import Shard
from localpower.worker.tasks import TopVectors
from localpower.engines.processes import COMMAND
def callback(record, state):
    if record.round == 3:
        print(*[c.pid for c in psutil.Process().children()], flush=True)
A = np.random.default_rng(0).standard_normal((2000, 50))
method = "local_power:steps=4"
lp.svd(A, 3, method, engine="processes:3", workers=6, max_rounds=10**6, rng=0, callback=callback)
"""  # no `if __name__ == "__main__"`: workers do not import the script


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_when_the_coordinator_is_stopped(sign, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    run = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
    assert len(workers) == 3
    os.killpg(run.pid, sign) if sign == signal.SIGINT else run.send_signal(sign)
    _, errors = run.communicate(timeout=LONG)
    assert ended(workers)
    if sign == signal.SIGINT:
        assert "KeyboardInterrupt" in errors


def test_the_engine_works_inside_a_spawned_process(tmp_path):
    path = tmp_path / "nested.py"
    path.write_text(
        textwrap.dedent("""
        import multiprocessing, numpy as np, localpower as lp
        def work(seed):
            A = np.random.default_rng(seed).standard_normal((50, 5))
            return lp.svd(A, 2, engine="processes:2", rng=0).singular_values.shape
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1]))
        """)
    )
    out = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[(2,)]"


def test_a_lost_worker_is_noticed_while_the_others_compute():
    """Only the second worker is killed; the first, whose reply is due before, is still busy."""

    def kill():
        until(lambda: len(children()) == 2)
        second = max(children(), key=lambda child: child.create_time())
        busy([second], 1.0)  # more than its start takes
        second.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(lp.WorkerLost, match=r"killed by SIGKILL"):
        lp.svd(
            A,
            3,
            engine="processes:2",
            workers=2,
            method="local_power:steps=1000000",
            max_rounds=1,
            rng=0,
            faults=lp.Faults(retries=0),
        )
    thread.join()


def test_workers_leave_with_a_coordinator_that_is_killed_in_mid_task(tmp_path):
    path = tmp_path / "script.py"
    long_second_round = "lp.LocalPower(schedule=lambda t: 4 if t < 1 else 10**7)"
    script = SCRIPT.replace('"local_power:steps=4"', long_second_round)
    path.write_text(script.replace("== 3", "== 1"))
    run = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    workers = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
    assert len(workers) == 3
    busy(workers)
    run.kill()
    run.communicate()
    assert ended(workers)


@pytest.mark.parametrize("situation", ["noisy start", "no standard error", "package in the cwd"])
def test_workers_start_in_odd_surroundings(situation, tmp_path):
    code = "import numpy as np, localpower as lp; lp.svd(np.eye(6), 2, engine='processes:2')"
    command, environment, folder = f"'{sys.executable}' -c \"{code}\"", dict(os.environ), tmp_path
    if situation == "noisy start":
        (tmp_path / "sitecustomize.py").write_text("print('hello, world')")
        search = (str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]))
        environment["PYTHONPATH"] = os.pathsep.join(search)
    elif situation == "no standard error":
        command += " 2>&-"
    else:
        folder = os.path.dirname(os.path.dirname(lp.__file__))
    subprocess.run(["bash", "-c", command], env=environment, cwd=folder, check=True)


def test_a_worker_that_cannot_start_says_so(monkeypatch):
    monkeypatch.setattr("localpower.engines.processes.COMMAND", "raise SystemExit(3)")
    with pytest.raises(lp.WorkerLost, match="could not start: it ended with status 3"):
        lp.svd(A, 2, engine="processes:2", rng=0)


def test_a_worker_that_never_starts_is_given_up(monkeypatch):
    monkeypatch.setattr("localpower.engines.processes.COMMAND", "import time; time.sleep(1000)")
    monkeypatch.setattr("localpower.engines.processes.PATIENCE", 0.5)
    with pytest.raises(lp.WorkerLate, match=r"has not started within 0\.5 s"):
        lp.svd(A, 2, engine="processes:2", rng=0, faults=lp.Faults(retries=1))


def test_the_deadline_begins_when_workers_have_started(monkeypatch):
    """They take longer than that to start, at first and when one is started again."""
    slow = "import time; time.sleep(3.2)" + COMMAND
    monkeypatch.setattr("localpower.engines.processes.COMMAND", slow)

    def callback(record, state):
        if record.round == 2:
            children()[0].kill()

    result = lp.svd(
        A,
        3,
        method="local_power:steps=2",
        engine="processes:2",
        workers=3,
        max_rounds=4,
        rng=0,
        faults=lp.Faults(deadline=3),
        callback=callback,
    )
    assert len(result.run["faults"]) == 1
    assert "killed by SIGKILL" in result.run["faults"][0]["what"]
