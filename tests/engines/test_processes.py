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
from helpers import LONG, busy, ended, same_bits, started, until

import localpower as lp
from localpower.engines.processes import COMMAND
from localpower.worker.shard import Shard
from localpower.worker.tasks import TopVectors

A = np.random.default_rng(0).standard_normal((4000, 60))


BEFORE = set()  # what other tests of this interpreter started


def children():
    return [process for process in started() if process not in BEFORE]


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


def test_a_killed_worker_raises_worker_lost_and_leaves_a_brought_engine_usable():
    options = {"method": "local_power:steps=4", "workers": 6, "faults": lp.Faults(retries=0)}
    with lp.connect("processes:3") as engine:
        for moment in (0, 1, 5):
            killed = []

            def callback(record, state, moment=moment, killed=killed):
                if record.round == moment + 1:
                    victim = children()[-1]
                    victim.send_signal(signal.SIGKILL)
                    killed.append(victim.pid)

            with pytest.raises(lp.WorkerLost, match=r"held shards .*killed by SIGKILL") as caught:
                lp.svd(A, 3, engine=engine, rng=0, callback=callback, **options)
            assert str(killed[0]) in str(caught.value)
        again = lp.svd(A, 3, engine=engine, max_rounds=2, rng=0)
    assert np.isfinite(again.singular_values).all()


def test_only_the_worker_that_was_lost_is_started_again():
    seen, killed = [], []

    def callback(record, state):
        seen.append([child.pid for child in children()])
        if record.round in (2, 4, 6):  # one after the other of those that were there at first
            killed.append(seen[0][len(killed)])
            psutil.Process(killed[-1]).kill()

    method = "local_power:steps=4"
    options = {"workers": 7, "max_rounds": 7, "rng": 0, "callback": callback}
    lp.svd(A, 3, method=method, engine="processes:3", **options)
    for number, pid in enumerate(killed):
        before, after = (set(seen[2 * number + there]) for there in (1, 2))
        assert before - after == {pid}
        assert len(after) == 3
    assert len(killed) == 3


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
lp.svd(A, 3, method, engine="processes:2", workers=4, max_rounds=10**6, rng=0, callback=callback)
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
    assert len(workers) == 2
    os.killpg(run.pid, sign) if sign == signal.SIGINT else run.send_signal(sign)
    _, errors = run.communicate(timeout=LONG)
    assert ended(workers)
    if sign == signal.SIGINT:
        assert "KeyboardInterrupt" in errors


def test_the_engine_works_inside_a_spawned_process(tmp_path):
    path = tmp_path / "nested.py"
    path.write_text(
        textwrap.dedent("""
        import multiprocessing
        def work(seed):
            import numpy as np, localpower as lp
            A = np.random.default_rng(seed).standard_normal((50, 5))
            return lp.svd(A, 2, engine="processes:2", rng=0).singular_values.shape
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1]))
        """)
    )
    out = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[(2,)]"


def test_a_worker_killed_while_it_computes_is_noticed_while_the_others_compute():
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
    assert len(workers) == 2
    busy(workers)
    run.kill()
    run.communicate()
    assert ended(workers)


@pytest.mark.parametrize("situation", ["noisy start, package in the cwd", "no standard error"])
def test_workers_start_in_odd_surroundings(situation, tmp_path):
    code = "import numpy as np, localpower as lp; lp.svd(np.eye(6), 2, engine='processes:2')"
    command, environment, folder = f"'{sys.executable}' -c \"{code}\"", dict(os.environ), tmp_path
    if "noisy start" in situation:
        (tmp_path / "sitecustomize.py").write_text("print('hello, world')")
        search = (str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]))
        environment["PYTHONPATH"] = os.pathsep.join(search)
        folder = os.path.dirname(os.path.dirname(lp.__file__))
    else:
        command += " 2>&-"
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
