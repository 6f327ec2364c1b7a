"""Real Spark: data of its own kind, the user's session, processes killed, jobs that hang."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from helpers import LONG, busy, ended, look, same_bits, started, until, with_spectrum

import localpower as lp
from localpower.data.partition import contiguous
from localpower.data.source import held, load_block, open_source
from localpower.worker.replies import Done
from localpower.worker.shard import LoadedBlock, Shard
from localpower.worker.tasks import Describe, PowerSteps, Prepare, Task

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("there is no Java, which Spark needs", allow_module_level=True)

module = import_module("localpower.engines.spark")

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

A = with_spectrum(300, 0.8 ** np.arange(12), seed=1) * 10
S = sp.random_array((300, 12), density=0.2, rng=np.random.default_rng(2), format="csr")
BASIS = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 3)))[0]
STEP = PowerSteps(BASIS, steps=2)
CENTRED = Prepare(A.mean(axis=0), 0.5)


@pytest.fixture(scope="module")
def engine():
    with lp.connect("spark:2") as engine:
        yield engine
    assert not started()


@pytest.fixture(scope="module")
def session(engine):
    """What a user may have open: here, on the context that the engine has started."""
    import warnings

    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SparkSession.builder.getOrCreate()


@pytest.fixture
def context(session):
    yield session.sparkContext
    assert session.sparkContext.parallelize([1, 2]).sum() == 3


def place(engine, data=A, workers=2):
    engine.place(contiguous(open_source(data), workers).shards)
    return engine


def expected(workers=2):
    with lp.connect("inline") as engine:
        place(engine, workers=workers)
        list(engine.map(CENTRED))
        return engine.sum(STEP).product


def workers():
    """Python processes of Spark: children of its daemon."""
    every = [p for p in started() if look(p, "name") not in (None, "java")]
    every = [p for p in every if look(p, "status") != psutil.STATUS_ZOMBIE]
    pids = {p.pid for p in every}
    return [p for p in every if look(p, "ppid") in pids]


def jobs(engine):
    return engine._context._jsc.sc().dagScheduler().numTotalJobs()


def test_nine_shards_give_the_bits_of_the_reference(engine):
    """With a method that the engine contract does not ask for of Spark."""
    options = {"method": "block_lanczos", "max_rounds": 1, "workers": 9, "center": True, "rng": 5}
    reference = lp.svd(A, 3, engine="inline", **options)
    result = lp.svd(A, 3, engine=engine, **options)
    assert same_bits(reference, result)
    assert reference.ledger == result.ledger


def test_what_listens_hears_this_machine_only(engine):
    place(engine)
    list(engine.map(CENTRED))  # Python of the executors is there as well
    found = [c for p in started() for c in look(p, "net_connections") or ()]
    hosts = [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN]
    assert hosts
    assert all(host.endswith("127.0.0.1") for host in hosts)


def test_a_round_is_one_job_and_a_sum_comes_in_few_parts(engine):
    place(engine, workers=9)
    list(engine.map(CENTRED))
    before, collected = jobs(engine), []
    original = engine._collected
    engine._collected = lambda *args: collected.append(args[1]) or original(*args)
    try:
        total = engine.sum(STEP).product
        list(engine.map(Describe(extremes=False), [3, 1]))
    finally:
        del engine._collected
    assert jobs(engine) == before + 2
    assert collected == [range(2), [3, 1]]
    assert total.tobytes() == expected(9).tobytes()


def test_large_tasks_and_rows_in_many_elements_change_no_bit(engine, monkeypatch):
    monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(module, "CHUNK", 1000)
    place(engine)
    list(engine.map(CENTRED))
    assert engine.sum(STEP).product.tobytes() == expected().tobytes()


def vectors(kind):
    from pyspark.ml import linalg as ml
    from pyspark.mllib import linalg as mllib

    dense = {"rows": list, "ml": ml.DenseVector, "mllib": mllib.DenseVector, "numpy": np.array}
    if kind in dense:
        return [dense[kind](row) for row in A]
    make = ml.SparseVector if kind == "ml sparse" else mllib.SparseVector
    starts = zip(S.indptr[:-1], S.indptr[1:], strict=True)
    return [make(12, S.indices[a:b].tolist(), S.data[a:b].tolist()) for a, b in starts]


KINDS = ["rows", "numpy", "float32", "ml", "mllib sparse", "blocks", "sparse blocks", "frames"]
KINDS += ["RowMatrix", "IndexedRowMatrix", "DataFrame", "DataFrame of vectors"]


def native(kind, session):
    """Data of Spark's own kind in two partitions, and the same as a list of blocks."""
    context = session.sparkContext
    cuts = [slice(0, 150), slice(150, 300)]
    dense, sparse = [A[c] for c in cuts], [S[c] for c in cuts]
    if kind == "float32":
        narrow = A.astype(np.float32)
        return context.parallelize(list(narrow), 2), [narrow[c] for c in cuts]
    if kind == "blocks":
        return context.parallelize(dense, 2), dense
    if kind == "sparse blocks":
        return context.parallelize(sparse, 2), sparse
    if kind == "frames":
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        return context.parallelize([pandas.DataFrame(block) for block in dense], 2), dense
    if kind in ("RowMatrix", "IndexedRowMatrix"):
        from pyspark.mllib.linalg import distributed

        rows = vectors("mllib sparse")
        rows = rows if kind == "RowMatrix" else list(enumerate(rows))
        return getattr(distributed, kind)(context.parallelize(rows, 2)), sparse
    if kind == "DataFrame":
        rows = context.parallelize(A.tolist(), 2)
        return session.createDataFrame(
            rows, ["rows", "shape", *(f"c{j}" for j in range(10))]
        ), dense
    if kind == "DataFrame of vectors":
        rows = context.parallelize([(vector,) for vector in vectors("ml sparse")], 2)
        return session.createDataFrame(rows, ["features"]), sparse
    blocks = sparse if kind.endswith("sparse") else dense
    return context.parallelize(vectors(kind), 2), blocks


@pytest.mark.parametrize("kind", KINDS)
def test_native_data_give_the_bits_of_their_blocks(engine, session, kind):
    data, blocks = native(kind, session)
    assert engine.takes(data)
    parts = list(engine.adopt(data, load_block))
    assert [part.shape for part in parts] == [(150, 12)] * 2
    if isinstance(blocks[0], sp.csr_array):  # they stay sparse
        assert sum(part.nnz for part in parts) == S.nnz
    engine.place(contiguous(held(parts, "data", None), 2).shards)
    found = engine.sum(STEP).product
    with lp.connect("inline") as reference:
        reference.place(contiguous(open_source(blocks), 2).shards)
        assert reference.dtype == engine.dtype
        assert reference.sum(STEP).product.tobytes() == found.tobytes()


def test_empty_partitions_are_fine(engine, context):
    data = context.parallelize([A[:200], A[200:]], 4)
    reference = lp.svd([A[:0], A[:200], A[:0], A[200:]], 3, method="tsqr", engine="inline", rng=0)
    assert same_bits(reference, lp.svd(data, 3, method="tsqr", engine=engine, rng=0))


def test_the_users_session_is_left_running_and_clean(engine, session):
    before = set(session.sparkContext._jsc.getPersistentRDDs())  # Spark itself may drop some
    rows = session.sparkContext.parallelize([A[:150], A[150:]], 2).cache()
    for mine in (session, session.sparkContext, "spark"):
        reference = lp.svd([A[:150], A[150:]], 2, method="gram", engine="inline", rng=0)
        assert same_bits(reference, lp.svd(rows, 2, method="gram", engine=mine, rng=0))
    assert rows.count() == 2
    assert set(session.sparkContext._jsc.getPersistentRDDs()) - before == {rows.id()}
    rows.unpersist()


def test_data_that_are_adopted_take_the_place_of_the_last(engine, context):
    with lp.connect("spark") as other:
        before = set(context._jsc.getPersistentRDDs())
        for _ in range(2):
            other.adopt(context.parallelize([A], 1), load_block)
        assert len(set(context._jsc.getPersistentRDDs()) - before) == 1


def test_rows_that_cannot_be_used_are_data_errors(engine, session):
    context = session.sparkContext
    words = session.createDataFrame([(1.0, "a")], ["x", "name"])
    with pytest.raises(lp.DataError, match=r"column\(s\) name of the DataFrame hold no numbers"):
        lp.svd(words, 1, engine=engine)
    missing = session.createDataFrame([(1.0, 2.0), (3.0, None)], ["x", "y"])
    with pytest.raises(
        lp.DataError, match=r"NaN or infinity in data, shard \d, row \d, column 'y'"
    ):
        lp.svd(missing, 1, engine=engine)
    with pytest.raises(lp.DataError, match="different lengths"):
        lp.svd(context.parallelize([[1.0, 2.0], [3.0]], 1), 1, engine=engine)
    blocks = [np.eye(3), np.eye(3), np.eye(4)]
    with pytest.raises(lp.DataError, match=r"partition 1 of the data has rows of \[3, 4\] columns"):
        lp.svd(context.parallelize(blocks, 2), 1, engine=engine)


def test_workers_lost_while_partitions_are_read_are_no_end(engine, context, tmp_path):
    def die(number, rows):
        if number == 1 and len(os.listdir(tmp_path)) < 4:  # as often as Spark tries by itself
            (tmp_path / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    blocks = np.array_split(A, 3)
    data = context.parallelize(blocks, 3).mapPartitionsWithIndex(die)
    result = lp.svd(data, 3, engine=engine, method="tsqr", rng=0)
    assert len(os.listdir(tmp_path)) == 4
    assert same_bits(result, lp.svd(blocks, 3, engine="inline", method="tsqr", rng=0))


@pytest.mark.parametrize("partitions", [1, 2])
def test_frames_with_columns_in_another_order_are_refused(engine, context, partitions):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(A)
    parts = [frame[:200], frame[200:][frame.columns[::-1]]]
    with pytest.raises(lp.DataError, match="columns of other names or in another order"):
        lp.svd(context.parallelize(parts, partitions), 2, engine=engine)


def test_estimators_take_data_of_spark_and_know_the_names_of_columns(engine, session):
    data, _ = native("DataFrame", session)
    model = lp.PCA(3, method="gram", engine=engine).fit(data)
    assert model.result_.run["held"]
    assert model.result_.run["names"] == data.columns
    assert (model.n_samples_, model.n_features_in_) == A.shape
    assert lp.PCA(3, method="gram", engine=engine).fit(data.rdd.map(list)).n_samples_ == len(A)


def test_what_raises_on_an_executor_is_told_without_java(engine, context):
    def read(number):
        raise FileNotFoundError(f"there is no part {number}")

    with pytest.raises(lp.WorkerFailed, match="no part 1") as caught:
        lp.svd(context.parallelize([1], 1).map(read), 1, engine=engine)
    assert "Traceback" in str(caught.value)
    assert "\tat " not in str(caught.value)
    place(engine)
    with pytest.raises(lp.WorkerFailed, match="a block of float64"):
        list(engine.map(PowerSteps(np.eye(3), steps=1)))
    assert engine.sum(Describe(extremes=False)).rows == 300


@dataclass(frozen=True, eq=False)
class Die(Task):
    """Kill the process that works on the shard: each time, or once if there is a `path`."""

    path: str = ""

    def __call__(self, matrix):
        if not self.path or not Path(self.path).exists():
            if self.path:
                Path(self.path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Done()


@dataclass(frozen=True, eq=False)
class Sleep(Task):
    """Take very long."""

    def __call__(self, matrix):
        time.sleep(1000)
        return Done()


def test_a_killed_process_is_made_good_by_spark(engine, tmp_path):
    place(engine)
    list(engine.map(CENTRED))
    for process in workers():
        look(process, "kill")
    assert engine.sum(STEP).product.tobytes() == expected().tobytes()
    list(engine.map(Die(str(tmp_path / "dead")), [1]))  # in the middle of a task
    assert (tmp_path / "dead").exists()
    assert engine.sum(STEP).product.tobytes() == expected().tobytes()


def test_a_process_that_dies_each_time_is_lost_and_healing_gives_the_same_bits(engine):
    place(engine)
    list(engine.map(CENTRED))
    with pytest.raises(lp.WorkerLost, match="tried again") as caught:
        list(engine.map(Die(), [0]))
    assert "\tat " not in str(caught.value)
    engine.heal([0])
    assert engine.sum(STEP).product.tobytes() == expected().tobytes()


def test_a_reply_that_does_not_come_is_late(engine):
    place(engine)
    list(engine.map(CENTRED))
    engine.deadline = 1.0
    try:
        with pytest.raises(
            lp.WorkerLate, match="cancelled: no reply within 1 s; set the engine's deadline"
        ):
            list(engine.map(Sleep()))
    finally:
        engine.deadline = None
    engine.heal([0, 1])
    assert engine.sum(STEP).product.tobytes() == expected().tobytes()


def test_a_python_process_keeps_matrices_up_to_a_limit_and_takes_all_it_is_sent(monkeypatch):
    """The function that Spark calls on its executors, called here."""
    monkeypatch.setattr(module, "_holder", module.Holder())
    frames = [module.PICKLE.dumps(LoadedBlock((rows,))) for rows in (A[:150], A[150:])]
    empty = Shard((), 12, A.dtype)

    def ask(run, number, task, mark=0, persisting=None):
        sent = iter(frames)
        job = module.Job(run, {number: (empty, task, persisting)}, mark)
        [(place, reply)] = module._answered(job, number, sent)
        assert place == number
        assert not list(sent)
        return reply

    ask("first", 0, CENTRED, 1)
    kept = module._holder._matrices[0]
    reply = ask("first", 0, STEP, 1, CENTRED)
    assert module._holder._matrices[0] is kept
    other = ask("first", 1, STEP, 1, CENTRED)  # made here, and prepared as the other was
    assert np.array_equal(reply.product, other.product)
    monkeypatch.setattr(module, "KEPT", 2 * A.nbytes)
    ask("first", 2, STEP, 1, CENTRED)
    assert module._holder.numbers() == {0, 1}
    failure = ask("first", 0, PowerSteps(np.eye(3), steps=1), 1, CENTRED)
    assert "a block of float64" in failure.text
    ask("second", 0, STEP)
    assert (module._holder.name, module._holder.numbers()) == ("second", {0})


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # PySpark's, of no Java
def test_the_death_of_java_is_made_good_and_what_keeps_it_from_starting_is_told(
    engine, monkeypatch
):
    """The last that uses the engine, as Java is dead at its end."""

    def die(record, state):
        if record.round == 2:
            [java] = [p for p in started("java") if look(p, "name") == "java"]
            java.kill()

    def die_for_good(record, state):
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
        die(record, state)

    options = {"method": "local_power:steps=2", "workers": 2, "max_rounds": 3, "center": True}
    reference = lp.svd(A, 3, engine="inline", rng=0, **options)
    assert same_bits(reference, lp.svd(A, 3, engine=engine, callback=die, rng=0, **options))
    with pytest.raises(lp.EngineError, match=r"Spark did not start .*Java 17"):
        lp.svd(A, 3, engine=engine, callback=die_for_good, rng=0, **options)
    gc.collect()


STOPPED = """
import numpy as np, psutil
import localpower as lp
A = np.random.default_rng(0).standard_normal((200, 8))
def start():
    print("starts", flush=True)
    lp.svd(A, 2, engine="spark:2")
def run():
    with lp.connect("spark:2") as engine:
        lp.svd(A, 2, engine=engine, workers=2, method="tsqr")
        print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
        lp.svd(A, 2, lp.LocalPower(steps=10**9), engine=engine, workers=2, rng=0)
for number, stage in enumerate((start, start, run, run)):
    input()  # when the other side has looked at what the last has left
    try:
        stage()
    except (KeyboardInterrupt, SystemExit) as error:
        print(repr(error), len(psutil.Process().children()), flush=True)
        if number == 3:
            raise
"""


def test_a_stop_leaves_nothing_also_while_java_starts(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    run = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", STOPPED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )

    def said():
        line = run.stdout.readline()
        assert line, run.communicate()[1]
        return line.strip()

    def java():  # it has the folder in its command line, as has the shell that starts it
        every = psutil.process_iter(["name", "cmdline"])
        lines = [(p, " ".join(p.info["cmdline"] or ())) for p in every]
        return [p for p, line in lines if str(folder) in line and "launcher.Main" not in line]

    def stopped_by(sign, everyone, left):
        os.killpg(run.pid, sign) if everyone else run.send_signal(sign)
        word = "KeyboardInterrupt()" if sign == signal.SIGINT else "SystemExit(143)"
        assert said() == f"{word} 0"  # children
        assert ended(left())
        assert not list(folder.iterdir())

    def go():
        print(file=run.stdin, flush=True)
        return said()

    with run:
        try:
            for sign in (signal.SIGINT, signal.SIGTERM):
                assert go() == "starts"
                until(lambda: any(p.info["name"] == "java" for p in java()))
                stopped_by(sign, False, java)
            for sign in (signal.SIGINT, signal.SIGTERM):
                working = [psutil.Process(int(pid)) for pid in go().split()]
                busy(p for p in working if look(p, "name") != "java")
                stopped_by(sign, sign == signal.SIGINT, working.copy)
            _, errors = run.communicate(timeout=LONG)
        finally:
            run.kill()
    assert run.returncode == 128 + signal.SIGTERM, errors
    assert "\tat " not in errors


SCRIPT = """
import os, signal, socket, sys, threading, time
import psutil
import localpower as lp
folder, python = sys.argv[1:]
rows = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]
def told(ask):
    try:
        ask()
    except (lp.EngineError, ValueError) as error:
        print(type(error).__name__, ascii(str(error)), flush=True)

print("MASTERS")
with socket.create_server(("127.0.0.1", 0)) as server:
    closed = f"127.0.0.1:{server.getsockname()[1]}"
formless = ["", "foo", "127.0.0.1", "h:7077/", f"{closed},foo"]
for place in (*formless, closed, f"no.such.host.invalid:1,{closed}"):
    told(lambda: lp.svd(rows, 1, engine="spark://" + place))
assert not psutil.Process().children()

print("START")
os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.executor.memory=1k pyspark-shell"
told(lambda: lp.connect("spark:2"))
del os.environ["PYSPARK_SUBMIT_ARGS"]

print("PYTHON")
from pyspark.sql import SparkSession
os.environ["PYSPARK_PYTHON"] = python
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
session = builder.config("spark.log.level", "OFF").getOrCreate()
context = session.sparkContext
told(lambda: lp.svd(rows, 1, engine=session))
told(lambda: lp.svd(context.parallelize(rows, 2), 1, engine=session))

print("SIGNALS")
context.pythonExec = sys.executable
def wait(row):
    open(path, "w").close()
    time.sleep(1000)
def send(number):
    while not os.path.exists(path):
        time.sleep(0.05)
    os.kill(os.getpid(), number)
for number in (signal.SIGTERM, signal.SIGINT):
    path = os.path.join(folder, str(number))
    threading.Thread(target=send, args=(number,)).start()
    try:
        lp.svd(context.parallelize(rows, 2).map(wait), 1, engine=session)
    except (SystemExit, KeyboardInterrupt) as error:
        print(type(error).__name__, error)
    print(session.range(5).count(), context.parallelize(rows, 2).count())
    print(lp.svd(rows, 1, engine=session, method="tsqr").run["rows"])

print("DEATH")
next(p for p in psutil.Process().children() if p.name() == "java").kill()
for engine in (session, "spark", "spark:2"):
    told(lambda: lp.svd(rows, 1, engine=engine))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a script is told: before it opens a session of its own, in it, and when Java is dead."""
    folder = tmp_path_factory.mktemp("spark")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without what is installed
    python.chmod(0o700)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder), str(python)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    parts = {}
    for line in run.stdout.splitlines():
        if line.isupper():
            lines = parts[line] = []
        else:
            lines.append(line)
    return parts


def test_a_master_that_cannot_be_reached_is_told_before_java_is_started(told):
    *wrong, closed, unknown = told["MASTERS"]
    assert len(wrong) == 5
    for line in wrong:
        assert line.startswith("ValueError \"engine='spark://")
        assert "has no host and port: write it as in 'spark://host:7077'" in line
    for line in (closed, unknown):
        assert line.startswith("EngineError \"engine='spark://")
        assert "cannot be reached" in line
        assert "start a master there" in line


def test_what_keeps_spark_from_starting_is_told(told):
    [line] = told["START"]
    assert "Spark did not start" in line
    assert "executor memory" in line
    assert "\\tat " not in line


def test_executors_whose_python_lacks_localpower_are_told_with_the_remedy(told):
    assert len(told["PYTHON"]) == 2
    for line in told["PYTHON"]:
        assert "cannot import localpower (No module named" in line
        assert f"version {lp.__version__} there, and set PYSPARK_PYTHON" in line
        assert "Traceback" not in line


def test_a_signal_in_a_users_session_ends_the_job_and_leaves_the_session_usable(told):
    assert told["SIGNALS"][:3] == ["SystemExit 143", "5 3", "3"]
    assert told["SIGNALS"][3:] == ["KeyboardInterrupt ", "5 3", "3"]


def test_the_death_of_a_users_java_is_told_with_the_remedy(told):
    assert len(told["DEATH"]) == 3
    for line in told["DEATH"]:
        assert line.startswith("WorkerLost ")
        assert "open another session" in line
