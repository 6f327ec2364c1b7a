"""``mpiexec -n 4 python -m mpi4py tests/engines/mpi_cases.py NAME``: what all ranks do in a test.

A rank that finds something wrong raises, which ends the job with a status that is not 0.
"""

import gc
import io
import os
import re
import runpy
import signal
import sys
import tempfile
import time
import warnings
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "adversary"))

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import same_bits, with_spectrum
from mpi4py import MPI
from threadpoolctl import threadpool_limits

import localpower as lp
from localpower.engines import mpi_link
from localpower.engines.mpi_link import Link
from localpower.worker import tasks

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
METHODS = ["local_power", "local_ritz", "block_lanczos", "tsqr", "uda", "wda", "dr_svd"]
DENSE = with_spectrum(300, 0.7 ** np.arange(17), seed=1) * 10
OPTIONS = {"max_rounds": 3, "center": True, "return_u": True, "rng": 5}
EXAMPLE = Path(__file__).parents[2] / "examples" / "on_mpi.py"
Link.GRACE = 3600.0  # a job that needs any of it is ended by its time limit


def blocks(rows=DENSE):
    """One block per rank, of unequal lengths."""
    cuts = np.linspace(0, 1, SIZE + 1) ** 1.5 * rows.shape[0]
    return [rows[int(a) : int(b)] for a, b in pairwise(cuts)]


def check(mine, all_rows, **options):
    """All ranks get the bits that one process gets with the rows of all."""
    result = lp.svd(mine, 4, engine=COMM, **OPTIONS | options)
    arrays = result.components, result.basis, result.U, result.explained_variance
    told = result.run, result.history, result.ledger, [array.tobytes() for array in arrays]
    shared = COMM.gather(told)
    if RANK:
        return
    assert shared == shared[:1] * SIZE
    assert (result.run["engine"], result.run["workers"]) == ("mpi", SIZE)
    reference = lp.svd(all_rows, 4, engine="inline", **OPTIONS | options)
    assert same_bits(reference, result)
    moved = [[replace(r, bytes_read=0) for r in run.ledger.records] for run in (reference, result)]
    assert moved[0] == moved[1]
    assert [r.steps for r in reference.history] == [r.steps for r in result.history]


def bits():
    for method in METHODS:
        check(blocks()[RANK], blocks(), method=method)


def native_data():
    import pandas as pd

    sparse = sp.csr_array(np.where(DENSE > 1, DENSE, 0))
    narrow = [part.astype(np.float32) for part in blocks()]
    whole = [np.rint(part * 100).astype(np.int32) for part in blocks()]
    empty = blocks()
    empty[1] = empty[1][:0]
    mixed = [p if i % 2 else p.astype(np.float32) for i, p in enumerate(blocks())]
    for parts in (blocks(sparse), narrow, whole, empty, mixed, list(map(pd.DataFrame, blocks()))):
        check(parts[RANK], parts, method="local_power")
    with tempfile.TemporaryDirectory() as own:
        path = Path(COMM.bcast(own)) / f"rows-{RANK}.npy"
        paths = [path.with_name(f"rows-{rank}.npy") for rank in range(SIZE)]
        np.save(path, blocks()[RANK])
        COMM.barrier()
        mapped = np.load(path, mmap_mode="r")
        for mine in (path, str(path), mapped, lambda rank: np.load(paths[rank]), lp.read(path)):
            check(mine, paths, method="local_ritz")
        check(lambda rank: lp.read(paths[rank], memory="1GB"), paths, method="local_power")
        COMM.barrier()


def led():
    """Rank 0 has the rows and spreads them, more shards than ranks; the others serve."""
    with lp.connect(COMM) as engine:
        if RANK:
            engine.serve()
            return
        for method in METHODS:
            reference = lp.svd(DENSE, 4, engine="inline", workers=21, method=method, **OPTIONS)
            result = lp.svd(DENSE, 4, engine=engine, workers=21, method=method, **OPTIONS)
            assert same_bits(reference, result)
            assert reference.ledger == result.ledger
        held = [len(part) for part in np.array_split(DENSE, 21)]
        engine.place(shards(DENSE, 21))
        assert [reply.rows for reply in engine.map(tasks.Describe(extremes=False))] == held
        abandoned = engine.map(tasks.Describe(extremes=True))
        next(abandoned)
        assert engine.sum(tasks.Describe(extremes=True)).rows == 300
        with pytest.raises(lp.EngineError, match="another task"):
            next(abandoned)


def adversary():
    """Matrices that are made to mislead get the certificates of one process, and no lies."""
    with lp.connect(COMM) as engine:
        if RANK:
            engine.serve()
            return
        from test_engines import CASES, all_complaints

        for number, name in enumerate(CASES):
            assert not (wrong := all_complaints(engine, number, every=2)), (name, wrong)


def shards(rows, count):
    from localpower.data.partition import contiguous
    from localpower.data.source import open_source

    return contiguous(open_source(rows), count).shards


def fails(kind, match, data=None, **options):
    """All ranks raise, with the message; the next call is as if nothing had been."""
    with pytest.raises(kind, match=match):
        lp.svd(blocks()[RANK] if data is None else data, 4, engine=COMM, **OPTIONS | options)
    check(blocks()[RANK], blocks(), method="dpi")


def errors():
    mine = blocks()[RANK]
    wrong = SIZE - 1
    narrower = mine[:, :-1] if wrong == RANK else mine
    fails(lp.DataError, f"rank {wrong} has 16 columns where rank 0 has 17", narrower)
    fails(lp.DataError, f"rank {wrong}: a block has 1 dim", mine[0] if wrong == RANK else mine)
    hole = mine.copy()
    hole[3, 2] = np.nan if wrong == RANK else 1.0
    fails(lp.DataError, f"NaN or infinity in data, shard {wrong}, row 3, column 2", hole)
    fails(lp.EngineError, "FileNotFoundError.*nowhere.npy", "nowhere.npy" if RANK == 1 else mine)
    kind = lp.EngineError if RANK else ValueError
    fails(kind, "workers= and partition=", workers=3)
    fails(kind, "rank=4 is more than data with n_samples=.* and n_features=3", np.eye(3)[:1])

    def raises(record, state):
        raise KeyError("mine")

    fails(lp.EngineError if RANK else KeyError, "mine", callback=raises, method="dpi")

    def poor(self, matrix):
        raise ZeroDivisionError("in a task")

    describe = tasks.Describe.__call__
    for number in (0, wrong):  # of the rank whose task fails
        for method in ("dpi", "local_power"):
            tasks.Describe.__call__ = poor if number == RANK else describe
            with pytest.raises(lp.EngineError, match=rf"(?s)on rank {number}:.*in a task"):
                lp.svd(mine, 4, engine=COMM, method=method)
    tasks.Describe.__call__ = describe
    check(mine, blocks(), method="tsqr")


def wrong_on_one_rank():
    """What is wrong with the call of one rank, before it has brought its rows, is told to all."""
    import pandas as pd

    mine, wrong = blocks()[RANK], SIZE - 1
    for number in (0, wrong):
        here = number == RANK
        kind = ValueError if here else lp.EngineError
        with pytest.raises(kind, match=r"method='foo' is not known"):
            lp.svd(mine, 4, engine=COMM, method="foo" if here else "dpi")
        with pytest.raises(kind, match=r"memory='x' is not a size"):
            lp.svd(mine, 4, engine=COMM, memory="x" if here else None)

    def load(rank):
        if rank == wrong:
            raise SystemExit("mine")
        return mine

    with pytest.raises(SystemExit if wrong == RANK else lp.EngineError, match="mine"):
        lp.svd(load, 4, engine=COMM)
    frame = pd.DataFrame(mine, columns=list("abcdefghijklmnopq"))
    frame = frame[frame.columns[::-1]] if wrong == RANK else frame
    fails(lp.DataError, "columns of other names or in another order", frame)
    with pytest.raises(ValueError, match="COMM_NULL"):
        lp.connect(MPI.COMM_NULL)
    check(mine, blocks(), method="tsqr")


def estimators():
    """They work with the rows of all ranks, however few one of them has."""
    for few in (0, 2):
        parts = [part[:few] if rank == 1 else part for rank, part in enumerate(blocks())]
        model = lp.PCA(engine=COMM, random_state=0).fit(parts[RANK])
        rows = sum(map(len, parts))
        assert (model.n_components_, model.n_samples_, model.n_features_in_) == (17, rows, 17)
        same = lp.pca(parts[RANK], 17, engine=COMM, rng=0)
        assert np.array_equal(model.components_, same.components)
    hole = blocks()[RANK].copy()
    hole[3, 2] = np.nan if RANK == 1 else 1.0
    with pytest.raises(lp.DataError, match="NaN or infinity in data, shard 1, row 3"):
        lp.PCA(2, engine=COMM).fit(hole)


def forgotten():
    """An engine that nobody closed leaves a later call on its communicator alone."""
    engine = lp.connect(COMM)
    engine.circle = [engine]  # so that it is not collected at once
    lp.svd(blocks()[RANK], 2, engine=engine, method="dpi", rng=0)
    gc.disable()
    del engine

    def collect(record, state):
        gc.collect()

    options = {"method": "dpi", "max_rounds": 4, "rng": 0}
    result = lp.svd(blocks()[RANK], 2, engine=COMM, callback=collect, **options)
    gc.enable()
    assert same_bits(result, lp.svd(blocks(), 2, engine="inline", **options))


def degraded():
    """Only the rank that is stuck is given up; the others have replied and are taken."""
    steps, calls = tasks.PowerSteps.__call__, []

    def stuck(self, matrix):
        calls.append(1)
        if len(calls) == 2:
            assert COMM.recv(source=0) == "given up"
        return steps(self, matrix)

    def callback(record, state):
        if record.round == 2:
            COMM.send("given up", 1)

    if RANK == 1:
        tasks.PowerSteps.__call__ = stuck
    how = {"faults": lp.Faults(deadline=2, retries=1, on_loss="degrade"), "callback": callback}
    result = lp.svd(blocks()[RANK], 2, "dpi", engine=COMM, rng=0, **how)
    tasks.PowerSteps.__call__ = steps
    assert [lost["shard"] for lost in result.run["degraded"]] == [1]


def resumed():
    """A run that broke off goes on from its checkpoint, which is rank 0's."""
    mine, options = blocks()[RANK], OPTIONS | {"method": "dpi", "max_rounds": 6}

    def stops(record, state):
        if record.round == 3:
            raise KeyError("enough")

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run"
        how = options | {"checkpoint": path, "callback": stops}
        fails(lp.EngineError if RANK else KeyError, "enough", **how)
        again = lp.Checkpoint(path, resume=True)
        result = lp.svd(mine, 4, engine=COMM, checkpoint=again, **options)
    assert same_bits(lp.svd(blocks(), 4, engine="inline", **options), result)


def late():
    """One rank is stuck in a round until the others have ended at the deadline, and then ends."""
    describe = tasks.Describe.__call__

    def stuck(self, matrix):
        assert [COMM.recv(source=rank) for rank in range(SIZE) if rank != 1] == ["ended"] * 2
        return describe(self, matrix)

    if RANK == 1:
        tasks.Describe.__call__ = stuck
    with pytest.raises(lp.EngineError if RANK else lp.WorkerLate, match=r"within 0.5 s"):
        lp.svd(blocks()[RANK], 4, engine=COMM, faults=lp.Faults(deadline=0.5, retries=0))
    if RANK != 1:
        COMM.send("ended", 1)
    tasks.Describe.__call__ = describe
    check(blocks()[RANK], blocks(), method="dpi")


def left_alone():
    """Rank 0 fails before it has used the engine, or forgets to close it."""
    with pytest.raises(KeyError) if RANK == 0 else lp.connect(COMM) as engine:
        if RANK:
            engine.serve()
        else:
            with lp.connect(COMM):
                raise KeyError("before anything was asked")
    with lp.connect(COMM):
        pass
    engine = lp.connect(COMM)
    if RANK:
        engine.serve()
    else:
        lp.svd(DENSE, 2, engine=engine)
        del engine


def mixed():
    """Some ranks bring rows, others serve: all are told."""
    engine = lp.connect(COMM)
    with pytest.raises(lp.EngineError, match="some ranks serve"):
        lp.svd(DENSE, 2, engine=engine) if RANK != 1 else engine.serve()


def polite():
    """Ranks that wait leave the cores to others: they come to sleep after every look."""
    naps, looks, look = [], [], Link.look

    def nap(seconds):
        naps.append(len(looks))
        assert 0 < seconds <= mpi_link.NAP
        if np.array_equal(np.diff(naps[-20:]), np.ones(19)) and not told:
            told.append(COMM.send("sleeps", 0))
        time.sleep(seconds)

    def counted(link, rank, tag):
        looks.append(tag)
        return look(link, rank, tag)

    def rest(record, state):  # until they do
        assert [COMM.recv(source=rank) for rank in range(1, SIZE)] == ["sleeps"] * (SIZE - 1)

    told = []
    if RANK:
        mpi_link.time = SimpleNamespace(sleep=nap, monotonic=time.monotonic)
        Link.look = counted
    lp.svd(blocks()[RANK], 2, engine=COMM, method="dpi", max_rounds=1, callback=rest, rng=0)
    mpi_link.time, Link.look = time, look


def own_communicator():
    """The user's communicator is as it was: open, and its messages are left alone."""
    half = COMM.Split(RANK % 2)
    sent = half.isend("mine", (half.rank + 1) % half.size, tag=1)
    parts = np.array_split(DENSE, half.size)
    for _ in range(3):
        result = lp.svd(parts[half.rank], 3, engine=half, method="dpi", rng=0)
    assert same_bits(result, lp.svd(parts, 3, engine="inline", method="dpi", rng=0))
    assert half.recv() == "mine"
    sent.wait()
    assert half.allreduce(1) == half.size
    half.Free()
    assert COMM.allreduce(1) == SIZE


def alone():
    """Without mpiexec there is one rank, which is enough."""
    for method in METHODS:
        with lp.connect("mpi") as engine:
            result = lp.svd(DENSE, 4, engine=engine, workers=9, method=method, **OPTIONS)
        reference = lp.svd(DENSE, 4, engine="inline", workers=9, method=method, **OPTIONS)
        assert same_bits(reference, result)
    result = lp.svd(lambda rank: DENSE, 4, engine=COMM, method="dpi", **OPTIONS)
    assert same_bits(result, lp.svd([DENSE], 4, engine="inline", method="dpi", **OPTIONS))
    with pytest.raises(ValueError, match="start it with mpiexec -n 4"):
        lp.connect("mpi:4")
    with pytest.raises(ValueError, match="no address"):
        lp.connect("mpi://node:1")


def example():
    """The script that the documentation shows, as it stands."""
    printed = io.StringIO()
    with redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    right = re.search(r"off by at most +\d\S*e-1[0-9]", printed.getvalue())
    assert right if RANK == 0 else not printed.getvalue()


def room():
    """Rows in files stay in memory if those of all ranks of a machine fit."""
    from localpower.engines.mpi import _keep

    parts = [(60, 100, "a"), (60, 200, "a"), (60, 100, "b")]  # bytes in files, memory, machine
    assert _keep(parts) == ["block", "block", "run"]


def large():
    """What is under way for a sum of large products when a task fails does not hold anybody up."""
    rows = np.random.default_rng(RANK).standard_normal((20, 20_000))
    steps = tasks.PowerSteps.__call__

    def poor(self, matrix):
        raise ZeroDivisionError("in a task")

    tasks.PowerSteps.__call__ = poor if RANK == 3 else steps
    with pytest.raises(lp.EngineError, match="on rank 3"):
        lp.svd(rows, 5, engine=COMM, method="dpi", max_rounds=2, rng=0)
    tasks.PowerSteps.__call__ = steps
    lp.svd(rows, 5, engine=COMM, method="dpi", max_rounds=2, rng=0)


def killed():
    def kill(record, state):
        if record.round == 2:
            os.kill(victim, signal.SIGKILL)

    victim = COMM.bcast(os.getpid(), 1)
    lp.svd(blocks()[RANK], 2, engine=COMM, method="dpi", max_rounds=10**6, callback=kill)


def endless():
    def started(record, state):
        if record.round == 3:
            print("running", flush=True)

    lp.svd(blocks()[RANK], 2, engine=COMM, method="dpi", max_rounds=10**9, callback=started)


if __name__ == "__main__":
    with threadpool_limits(1, user_api="blas"):
        for name in sys.argv[1:]:
            globals()[name]()
            COMM.barrier()
            if RANK == 0:
                print(f"{name}: well", flush=True)
