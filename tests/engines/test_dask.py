"""Real Dask clusters: rows that stay on workers, workers that are killed, and what is left."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from helpers import LONG, busy, ended, same_bits, until, with_spectrum

import localpower as lp
from localpower.core.errors import EngineError
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.worker.tasks import PowerSteps, Prepare

pytest.importorskip("distributed", reason="the extra 'dask' is not installed")

import dask
import dask.array as da
import dask.dataframe as dd
import pandas as pd
from distributed import Client, LocalCluster

A = with_spectrum(301, 0.7 ** np.arange(12), seed=1) * 10
CUTS = [30] * 10 + [1]  # eleven shards, one of them with a single row
BLOCKS = np.split(A, np.cumsum(CUTS)[:-1])
METHODS = ["local_power", "local_ritz", "block_lanczos", "tsqr", "uda"]
OPTIONS = {"max_rounds": 2, "center": True, "return_u": True, "rng": 5}
Z = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 3)))[0]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """What a user has open: two processes."""
    folder = str(tmp_path_factory.mktemp("dask"))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(host="127.0.0.1", local_directory=folder, silence_logs=40, **options) as mine,
        Client(mine, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def own(folder):
    """An engine with processes of its own, which leaves nothing when it is closed."""
    with lp.connect("dask:2") as engine:
        yield engine
        workers = [psutil.Process(n.pid) for n in engine._cluster.workers.values() if n.pid]
    assert ended(workers)
    assert not list(folder.iterdir())


def children():
    return set(psutil.Process().children(recursive=True))


def workers_of(engine):
    """Processes of the workers that are there."""
    return [psutil.Process(pid) for pid in engine.client.run(os.getpid).values()]


def place(engine, data, workers):
    engine.place(contiguous(open_source(data), workers).shards)
    list(engine.map(Prepare(None, 0.5)))


def total(engine):
    return engine.sum(PowerSteps(Z, 2)).product.tobytes()


def totals(engine):
    for _ in range(3):  # Dask may not have noticed a lost worker at once
        total(engine)


@pytest.mark.parametrize("method", METHODS)
def test_blocks_of_a_dask_array_give_the_bits_of_the_reference(client, method):
    reference = lp.svd(BLOCKS, 4, engine="inline", method=method, **OPTIONS)
    data = da.from_array(A, chunks=(tuple(CUTS), -1))
    result = lp.svd(data, 4, engine=client, method=method, **OPTIONS)
    assert same_bits(reference, result)
    assert reference.ledger == result.ledger


def sparse(block):
    return sp.csr_array(np.where(np.abs(block) > 0.5, block, 0.0))


def without_sizes(array):
    return array[da.ones(array.shape[0], chunks=array.chunks[0]) > 0]


ARRAY = da.from_array(A, chunks=(100, -1))
PARTS = [A[:100], A[100:200], A[200:300], A[300:]]
FRAME = pd.DataFrame(A, columns=list("abcdefghijkl"))
NATIVE = {
    "chunks of columns": (da.from_array(A, chunks=(100, 5)), PARTS),
    "float32": (ARRAY.astype("f4"), [part.astype("f4") for part in PARTS]),
    "integers": ((ARRAY * 1000).astype("i4"), [(part * 1000).astype("i4") for part in PARTS]),
    "sparse": (ARRAY.map_blocks(sparse), [sparse(part) for part in PARTS]),
    "sparse, chunks of columns": (
        da.from_array(A, chunks=(100, 5)).map_blocks(sparse),
        [sparse(part) for part in PARTS],
    ),
    "unknown sizes": (without_sizes(ARRAY), PARTS),
    "persisted": (ARRAY, PARTS),
    "an empty block": (da.from_array(A, chunks=((100, 0, 201), -1)), [A[:100], A[:0], A[100:]]),
    "frame": (dd.from_pandas(FRAME, npartitions=3), None),
    "delayed blocks": ([dask.delayed(part) for part in PARTS], PARTS),
    "one delayed block": (dask.delayed(A), [A]),
    "futures": (PARTS, PARTS),
}


@pytest.mark.parametrize(
    ("name", "kept"), [*((name, True) for name in NATIVE), ("frame", False), ("sparse", False)]
)
def test_native_data_give_the_bits_of_the_reference(client, name, kept):
    data, parts = NATIVE[name]
    if name == "persisted":
        data = client.persist(data)
    elif name == "futures":
        data = client.scatter(parts)
    elif name == "frame":
        parts = [part.compute(scheduler="sync").to_numpy() for part in data.partitions]
    method = "dpi" if kept else "block_krylov"  # a Gram matrix is not made for a single task
    reference = lp.svd(parts, 3, engine="inline", method=method, **OPTIONS)
    with lp.connect(client) as engine:
        engine.memory = None if kept else 0
        result = lp.svd(data, 3, engine=engine, method=method, **OPTIONS)
    assert result.run["workers"] == len(parts)
    assert same_bits(reference, result)


def counted(block, folder, block_info=None):
    number = block_info[0]["chunk-location"][0]
    with open(os.path.join(folder, str(number)), "a") as stream:
        stream.write("x")
    return block


def made(folder):
    return sum(path.stat().st_size for path in Path(folder).iterdir())


@pytest.mark.parametrize("memory", [None, 0, 100 * 12 * 8])
def test_blocks_are_made_once_or_if_memory_is_short_once_per_task(client, tmp_path, memory):
    data = da.from_array(A, chunks=(100, -1))
    data = data.map_blocks(counted, folder=str(tmp_path), meta=np.empty((0, 0)))
    with lp.connect(client) as engine:
        engine.memory = memory
        result = lp.svd(data, 3, engine=engine, method="dpi", max_rounds=5, rng=0)
    tasks = result.ledger.rounds - 1  # `Prepare` does not look at rows
    kept = {None: 4, 0: 0, 100 * 12 * 8: 1}[memory]
    assert made(tmp_path) == kept + (4 - kept) * tasks


def test_few_passes_are_taken_where_blocks_are_made_again(client, tmp_path):
    rows = da.random.default_rng(0).standard_normal((40_000, 60), chunks=(10_000, 60))
    data = rows * 0.9 ** np.arange(60)  # 19 MB, more than may be kept
    data = data.map_blocks(counted, folder=str(tmp_path), meta=np.empty((0, 0)))
    result = lp.svd(data, 3, engine=client, memory="16MiB", rng=0)
    assert result.converged
    assert result.run["method"] == "gram"
    assert made(tmp_path) < 4 * 4


def test_rows_do_not_travel(client):
    def sent():
        return sum(
            client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values()
        )

    data = da.random.default_rng(0).standard_normal((20_000, 100), chunks=(2500, -1))
    before = sent()
    lp.svd(data, 3, engine=client, method="dpi", max_rounds=4, rng=0)
    assert sent() - before < data.nbytes / 4


def test_rows_are_aligned_when_they_are_placed_not_for_every_product(client):
    def regular(state):
        pieces = state[0]._matrices[0].shard.pieces
        return all(p.flags.aligned and p.flags.c_contiguous for p in pieces)

    with lp.connect(client) as engine:
        rows = np.random.default_rng(0).standard_normal((5000, 101))
        engine.place(contiguous(open_source([rows, rows[:-1], rows[1:]]), 3).shards)
        assert all(client.gather(client.map(regular, list(engine._states.values()), pure=False)))


def test_the_users_client_is_left_open_without_our_data(client):
    lp.svd(BLOCKS, 3, engine=client, rng=0)
    lp.svd(ARRAY, 3, engine=client, rng=0)
    wait_until_empty(client)
    assert client.submit(abs, -1).result() == 1


def wait_until_empty(client):
    def is_empty():  # Dask lets go when Python does, and in its own time
        gc.collect()
        return not sum(client.run(lambda dask_worker: len(dask_worker.data)).values())

    until(is_empty)


@pytest.mark.parametrize("scheme", ["dask://", "tcp://"])
def test_a_cluster_is_found_by_its_address_and_left_running(client, scheme):
    address = client.scheduler.address.replace("tcp://", scheme)
    with lp.connect(address) as engine:
        assert engine.size == 2
        result = lp.svd(BLOCKS, 3, engine=engine, method="dpi", **OPTIONS)
    assert same_bits(result, lp.svd(BLOCKS, 3, engine="inline", method="dpi", **OPTIONS))
    assert client.submit(abs, -2).result() == 2


def test_an_address_where_nobody_answers_is_an_engine_error():
    quick = dask.config.set({"distributed.comm.timeouts.connect": "500ms"})
    with quick, pytest.raises(EngineError, match=r"no Dask scheduler answers at tcp://127\.0"):
        lp.svd(A, 2, engine="dask://127.0.0.1:9")


@pytest.mark.parametrize("rest", ["", "host", "127.0.0.1:", "host:http", "host:123456", ":8786"])
def test_an_address_without_host_and_port_is_refused_with_an_example(rest):
    with pytest.raises(
        ValueError, match=rf"engine='dask://{rest}' is not .*host and port.*'dask://host:8786'"
    ):
        lp.connect(f"dask://{rest}")


def test_an_asynchronous_client_is_refused_with_the_remedy(client):
    async def given():
        async with Client(client.scheduler.address, asynchronous=True) as mine:
            lp.connect(mine)

    with pytest.raises(ValueError, match=r"engine=<Client.*asynchronous: give a Client.*without"):
        asyncio.run(given())


ELSEWHERE = """
import sys, distributed
with distributed.LocalCluster(
    1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address="127.0.0.1:0"
) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


def test_a_cluster_that_ended_is_told_with_the_remedy():
    command, pipe = [sys.executable, "-c", ELSEWHERE], subprocess.PIPE
    quick = dask.config.set({"distributed.comm.timeouts.connect": "2s"})
    with quick, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as run:
        with Client(run.stdout.readline().strip(), set_as_default=False) as mine:
            engine = lp.connect(mine)
            place(engine, A, 2)
            run.kill()
            run.wait()
            for ask in (total, lambda e: e.heal([0, 1]), lambda e: lp.svd(A, 2, engine=mine)):
                with pytest.raises(EngineError, match=r"gone: start the cluster.*another Client"):
                    ask(engine)
        with pytest.raises(EngineError, match="the Client of this engine is closed"):
            lp.svd(A, 2, engine=mine)


NOBODY = """
import os, signal, threading, dask, localpower as lp
dask.config.set({"distributed.comm.timeouts.connect": "1h"})
engine = lp.connect("dask://127.0.0.1:9")
interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
interrupt.start()
engine.client
"""


def test_a_coordinator_interrupted_while_it_connects_ends_at_once():
    command = [sys.executable, "-c", NOBODY]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=LONG)
    assert run.returncode == -signal.SIGINT
    assert "__del__" not in run.stderr


def test_a_cluster_without_workers_is_told_as_such_and_used_once_it_has_some(monkeypatch, tmp_path):
    monkeypatch.setattr("localpower.engines.dask_cluster.PATIENCE", 0.2)
    options = {"n_workers": 0, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(
            host="127.0.0.1", local_directory=str(tmp_path), silence_logs=40, **options
        ) as bare,
        Client(bare, set_as_default=False) as client,
    ):
        for data in (A, ARRAY, without_sizes(ARRAY)):
            with pytest.raises(EngineError, match=r"the cluster has no workers: start some"):
                lp.svd(data, 2, engine=client, memory="1GB")
        monkeypatch.undo()
        less = lp.Faults(deadline=1.0)  # than the usual patience
        with pytest.raises(EngineError, match="the cluster has no workers"):
            lp.svd(A, 2, engine=client, faults=less)
        later = threading.Timer(0.2, bare.scale, (1,))
        later.start()
        assert lp.svd(A, 2, engine=client, rng=0).converged
        later.join()


def nested():
    lp.svd(A, 2, engine="dask:2")


def test_a_cluster_of_our_own_inside_a_task_is_refused_with_the_reason(client):
    with pytest.raises(EngineError, match=r"not allowed in a daemonic one.*get_client\(\)"):
        client.submit(nested, pure=False).result()


def broken(block):
    raise KeyError("mine")


def test_errors_tell_what_is_wrong_with_the_data(client):
    bad = ARRAY.map_blocks(broken, meta=np.empty((0, 0)))
    with pytest.raises(lp.WorkerFailed, match=r"in broken(.|\n)*KeyError: 'mine'"):
        lp.svd(bad, 2, engine=client)
    lie = da.from_delayed(dask.delayed(A[:7]), shape=(9, 12), dtype=A.dtype)
    with pytest.raises(lp.DataError, match=r"\(7, 12\) where \(9, 12\) is declared"):
        lp.svd(lie, 2, engine=client)
    with pytest.raises(lp.DataError, match="real numbers"):
        lp.svd(ARRAY * 1j, 2, engine=client)
    with pytest.raises(lp.DataError, match="NaN or infinity in data, shard 1, row 50"):
        lp.svd(da.where(A[150, 3] == ARRAY, np.nan, ARRAY), 2, engine=client)
    with pytest.raises(lp.DataError, match="'i'; remove such rows"):
        lp.svd(dd.from_pandas(FRAME.assign(i=np.nan), npartitions=2), 2, engine=client)
    with pytest.raises(lp.DataError, match=r"drop=\['i'\].*or change the data where they are"):
        lp.svd([dask.delayed(FRAME.assign(i="x"))], 2, engine=client)
    with pytest.raises(ValueError, match="stay where they are"):
        lp.svd(ARRAY, 2, engine=client, workers=2)
    wait_until_empty(client)


def test_workers_do_not_log_what_is_wrong_with_the_data_as_a_crash(client):
    lie = da.from_delayed(dask.delayed(A[:7]), shape=(9, 12), dtype=A.dtype)
    for data in (lie, ARRAY * 1j, [dask.delayed(FRAME.assign(i="x"))]):
        with pytest.raises(lp.DataError):
            lp.svd(data, 2, engine=client)
    assert "DataError" not in str(client.get_worker_logs())


@pytest.mark.parametrize("columns", [12, 5])
def test_masked_entries_are_refused(client, columns):
    masked = da.ma.masked_greater(da.from_array(A, chunks=(100, columns)), A.max() / 2)
    for engine in (client, "inline"):
        with pytest.raises(lp.DataError, match="masked entries"):
            lp.svd(masked, 2, engine=engine)


def test_frames_with_columns_in_another_order_are_refused(client):
    parts = [dask.delayed(FRAME[:200]), dask.delayed(FRAME[200:][FRAME.columns[::-1]])]
    with pytest.raises(lp.DataError, match="shard 1 and data, shard 0 have columns of other names"):
        lp.svd(parts, 2, engine=client)


@pytest.mark.parametrize("kind", ["array", "frame", "delayed", "futures"])
def test_estimators_leave_rows_where_they_are(client, kind):
    data = {"array": ARRAY, "frame": dd.from_pandas(FRAME, npartitions=3)}.get(kind)
    if data is None:
        data = client.scatter(PARTS) if kind == "futures" else [dask.delayed(p) for p in PARTS]
    model = lp.PCA(3, engine=client, random_state=0).fit(data)
    assert model.result_.run["held"]
    assert (model.n_samples_, model.n_features_in_) == A.shape
    assert model.result_.run["names"] == (list(FRAME.columns) if kind == "frame" else None)
    same = lp.pca(data, 3, engine=client, rng=0)
    assert np.array_equal(model.components_, same.components)
    assert lp.PCA(engine=client).fit(data).n_components_ == 12


def spawned(processes):
    """Those that Dask has started for its workers."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it ended while it was looked at
            found += [process] if "spawn_main" in str(process.cmdline()) else []
    return found


def listening(processes):
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found |= {c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"}
    return found


def test_own_clusters_listen_on_loopback_and_leave_nothing(own, folder, monkeypatch):
    """The engine is closed, and used again by the tests that follow, which close it once more."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    own.close()
    before, others = children(), listening([psutil.Process()])
    for last in (False, True):
        lp.svd(A, 2, engine=own, method="dpi", max_rounds=2, rng=0)
        started = spawned(children() - before)
        assert len(started) == 2
        assert listening(started) == {"127.0.0.1"}
        assert listening([psutil.Process()]) <= {"127.0.0.1"} | others
        assert list(folder.iterdir())
        if not last:
            own.close()
            own.close()
            assert ended(started)
            assert not list(folder.iterdir())


def test_a_worker_that_dies_before_or_while_rows_are_placed(own):
    place(own, A, 4)
    before = total(own)
    for delay in (0.0, 0.05):
        killer = threading.Timer(delay, workers_of(own)[0].kill)
        killer.start()
        own.deadline = LONG
        try:
            place(own, A, 4)
        except lp.WorkerLost:
            place(own, A, 4)
        killer.join()
        try:
            assert total(own) == before
        except lp.WorkerLost:
            own.heal(range(4))
            assert total(own) == before
        own.deadline = None


@pytest.mark.parametrize("kept", [True, False])
def test_dask_makes_lost_blocks_again_by_itself(own, kept):
    reference = lp.svd(BLOCKS, 3, engine="inline", method="dpi", max_rounds=4, rng=0)
    own.memory = None if kept else 0

    def callback(record, state):
        if record.round == 2:
            workers_of(own)[0].kill()

    data = da.from_array(A, chunks=(tuple(CUTS), -1))
    options = {"method": "dpi", "max_rounds": 4, "rng": 0, "callback": callback}
    try:
        result = lp.svd(data, 3, engine=own, **options)
    finally:
        own.memory = None
    assert np.allclose(reference.singular_values, result.singular_values, rtol=1e-12)
    assert kept is False or same_bits(reference, result)


def test_files_are_read_again_by_the_worker_that_comes_after(own, tmp_path):
    np.save(tmp_path / "rows.npy", A)
    place(own, tmp_path / "rows.npy", 4)
    before = total(own)
    workers_of(own)[0].kill()
    assert total(own) == before


@pytest.fixture
def _short_answer(monkeypatch):
    """Seconds in which a worker that is well does a small task; those here hang or are busy."""
    monkeypatch.setattr("localpower.engines.dask_cluster.ANSWER", 2.0)


@pytest.mark.usefixtures("_short_answer")
def test_a_task_that_is_late_or_whose_worker_is_killed_is_told_and_heal_ends_it(own):
    place(own, A, 3)
    before, workers = total(own), workers_of(own)
    own.deadline = 1.0
    with pytest.raises(lp.WorkerLate, match="within 1 s; set the engine's deadline higher"):
        list(own.map(PowerSteps(Z, 10**9), [1]))
    own.deadline = LONG

    def kill():
        busy(workers[:1])
        workers[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(lp.WorkerLost):
        own.sum(PowerSteps(Z, 10**9))
    killer.join()
    own.heal(range(3))  # the other one is still busy: its worker is started anew
    assert ended(workers)
    assert total(own) == before
    place(own, A, 3)
    assert total(own) == before
    own.deadline = None


@pytest.mark.usefixtures("_short_answer")
def test_a_worker_that_hangs_before_placement_is_replaced(own):
    place(own, A, 3)
    before, stopped = total(own), workers_of(own)[0]
    stopped.suspend()
    own.deadline = 1.0
    try:
        with pytest.raises(lp.WorkerLate):
            place(own, A, 3)
    finally:
        own.deadline = None
    place(own, A, 3)
    assert total(own) == before
    assert ended([stopped])


def test_a_lost_worker_raises_and_heal_brings_back_the_bits_though_dask_looks_for_it(own):
    """Dask looks for a lost worker once more after 15 s; here at once, when it cannot be back."""
    place(own, A, 11)
    before = total(own)
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "0s"}):
        for asked in (True, False):
            nanny = own._cluster.workers[0]
            os.kill(nanny.pid, signal.SIGKILL)
            if asked:
                with pytest.raises(lp.WorkerLost, match="run again"):
                    totals(own)
            own.heal(range(11))
            assert total(own) == before
            assert own._cluster.workers[0] is nanny


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_cluster_whose_process_dies_or_hangs_at_its_start_is_started_again(sign, monkeypatch):
    """The first time has little patience, as it cannot succeed."""
    monkeypatch.setattr("localpower.engines.dask_cluster.PATIENCE", 8.0)
    before, hit = children(), []

    def strike():
        hit.append(until(lambda: spawned(children() - before))[0])
        hit[0].send_signal(sign)
        monkeypatch.setattr("localpower.engines.dask_cluster.PATIENCE", float(LONG))

    thread = threading.Thread(target=strike)
    thread.start()
    result = lp.svd(A, 2, workers=3, engine="dask:2", method="dpi", max_rounds=3, rng=0)
    thread.join()
    assert [fault["then"] for fault in result.run["faults"]] == ["placed again"]
    assert "could not be started" in result.run["faults"][0]["what"]
    reference = lp.svd(A, 2, workers=3, engine="inline", method="dpi", max_rounds=3, rng=0)
    assert same_bits(reference, result)
    assert ended(hit)


def test_a_worker_that_dask_gives_up_is_replaced(own):
    place(own, A, 3)
    before = total(own)
    nanny = own._cluster.workers[0]
    own._cluster.sync(nanny.close)  # as after a start that failed
    own.heal(range(3))
    assert total(own) == before
    assert own._cluster.workers[0] is not nanny


def test_shards_of_the_users_worker_that_is_killed_are_placed_elsewhere(client):
    with lp.connect(client) as engine:
        place(engine, A, 11)
        before = total(engine)
        workers_of(engine)[0].kill()
        with pytest.raises(lp.WorkerLost):
            totals(engine)
        engine.heal(range(11))
        assert total(engine) == before


@pytest.mark.parametrize("placed", [False, True])
def test_a_worker_of_the_users_that_hangs_is_avoided(client, placed):
    with lp.connect(client) as engine:
        place(engine, A, 11)
        before, stopped = total(engine), workers_of(engine)[0]
        stopped.suspend()
        engine.deadline = 1.0
        try:
            with pytest.raises(lp.WorkerLate):
                total(engine) if placed else place(engine, A, 11)
            engine.deadline = LONG
            engine.heal(range(11)) if placed else place(engine, A, 11)
            assert total(engine) == before
        finally:
            stopped.resume()


SCRIPT = """
import os, sys, numpy as np, localpower as lp
def callback(record, state):
    if record.round == 2:
        print(*engine.client.run(os.getpid).values(), flush=True)
if __name__ == "__main__":
    engine = lp.connect("dask:2")
    A = np.random.default_rng(0).standard_normal((2000, 50))
    lp.svd(A, 3, "local_power:steps=4", engine=engine, max_rounds=10**6, rng=0, callback=callback)
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_a_coordinator_that_is_stopped(sign, tmp_path):
    path = tmp_path / "script.py"
    size = 2 if sign == signal.SIGINT else 1
    path.write_text(SCRIPT.replace("dask:2", f"dask:{size}"))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, str(path)]
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as run:
        workers = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
        assert len(workers) == size
        os.killpg(run.pid, sign) if sign == signal.SIGINT else run.send_signal(sign)
        _, errors = run.communicate(timeout=LONG)
    assert ended(workers)
    if sign != signal.SIGKILL:
        assert errors.count("\nKeyboardInterrupt") == (sign == signal.SIGINT)  # not of workers
        assert [child.name for child in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_coordinator_that_is_stopped_while_workers_start_leaves_nothing(sign, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace('lp.connect("dask:2")', '"dask:1"'))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(path)], env=environment, **pipes) as run:
        started = until(lambda: spawned(psutil.Process(run.pid).children()))
        time.sleep(0.3)  # they take longer than that
        run.send_signal(sign)
        _, errors = run.communicate(timeout=LONG)
    assert ended(started)
    assert [child.name for child in tmp_path.iterdir()] == ["script.py"]
    assert (
        errors.count("Traceback") == errors.count("\nKeyboardInterrupt") == (sign == signal.SIGINT)
    )
