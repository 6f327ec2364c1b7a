"""Real Spark: data of its own kind, the user's session, processes killed, jobs that hang."""

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
from helpers import END, LONG, busy, ended, look, same_bits, started, until, with_spectrum

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


@pytest.mark.parametrize("method", ["local_power", "block_lanczos", "tsqr", "wda"])
def test_nine_shards_give_the_bits_of_the_reference(engine, method):
    options = {"method": method, "max_rounds": 1, "workers": 9, "center": True, "rng": 5}
    reference = lp.svd(A, 3, engine="inline", **options)
    result = lp.svd(A, 3, engine=engine, **options)
    assert same_bits(reference, result)
    assert reference.ledger == result.ledger


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
    """Data of Spark's own kind in three partitions, and the same as a list of blocks."""
    context = session.sparkContext
    cuts = [slice(0, 100), slice(100, 200), slice(200, 300)]
    dense, sparse = [A[c] for c in cuts], [S[c] for c in cuts]
    if kind == "float32":
        narrow = A.astype(np.float32)
        return context.parallelize(list(narrow), 3), [narrow[c] for c in cuts]
    if kind == "blocks":
        return context.parallelize(dense, 3), dense
    if kind == "sparse blocks":
        return context.parallelize(sparse, 3), sparse
    if kind == "frames":
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        return context.parallelize([pandas.DataFrame(block) for block in dense], 3), dense
    if kind in ("RowMatrix", "IndexedRowMatrix"):
        from pyspark.mllib.linalg import distributed

        rows = vectors("mllib sparse")
        rows = rows if kind == "RowMatrix" else list(enumerate(rows))
        return getattr(distributed, kind)(context.parallelize(rows, 3)), sparse
    if kind == "DataFrame":
        rows = context.parallelize(A.tolist(), 3)
        return session.createDataFrame(
            rows, ["rows", "shape", *(f"c{j}" for j in range(10))]
        ), dense
    if kind == "DataFrame of vectors":
        rows = context.parallelize([(vector,) for vector in vectors("ml sparse")], 3)
        return session.createDataFrame(rows, ["features"]), sparse
    blocks = sparse if kind.endswith("sparse") else dense
    return context.parallelize(vectors(kind), 3), blocks


@pytest.mark.parametrize("kind", KINDS)
def test_native_data_give_the_bits_of_their_blocks(engine, session, kind):
    data, blocks = native(kind, session)
    assert engine.takes(data)
    own = held(engine.adopt(data, load_block), "data", None)
    engine.place(contiguous(own, 3).shards)
    found = engine.sum(STEP).product
    with lp.connect("inline") as reference:
        reference.place(contiguous(open_source(blocks), 3).shards)
        assert reference.dtype == engine.dtype
        assert reference.sum(STEP).product.tobytes() == found.tobytes()


def test_empty_partitions_are_fine(engine, context):
    data = context.parallelize([A[:200], A[200:]], 4)
    reference = lp.svd([A[:0], A[:200], A[:0], A[200:]], 3, method="tsqr", engine="inline", rng=0)
    assert same_bits(reference, lp.svd(data, 3, method="tsqr", engine=engine, rng=0))


def test_sparse_vectors_stay_sparse(engine, context):
    parts = engine.adopt(context.parallelize(vectors("ml sparse"), 3), load_block)
    assert sum(part.nnz for part in parts) == S.nnz
    assert [part.shape for part in parts] == [(100, 12)] * 3


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
    model = lp.PCA(3, engine=engine, random_state=0).fit(data)
    assert model.result_.run["held"]
    assert model.result_.run["names"] == data.columns
    assert (model.n_samples_, model.n_features_in_) == A.shape
    assert lp.PCA(3, engine=engine).fit(data.rdd.map(list)).n_samples_ == len(A)


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


SCRIPT = """
import sys, numpy as np, psutil
import localpower as lp
from localpower.engines import spark
A = np.random.default_rng(0).standard_normal((200, 8))
def look(process, method, *args):
    try:
        return getattr(process, method)(*args)
    except psutil.NoSuchProcess:  # it ended while it was looked at
        return ()
def java():
    return next(p for p in psutil.Process().children() if look(p, "name") == "java")
def same(a, b):
    return a.basis.tobytes() == b.basis.tobytes()
def callback(record, state):
    if record.round == 2 and sys.argv[1] == "deadly":
        java().kill()
options = dict(method="local_power:steps=2", workers=2, max_rounds=3, center=True, rng=0)
reference = lp.svd(A, 2, engine="inline", **options)
with lp.connect("spark:2") as engine:
    ports = [c.laddr.ip for p in psutil.Process().children(recursive=True)
             for c in look(p, "net_connections", "inet") if c.status == "LISTEN"]
    assert ports and all(ip.endswith("127.0.0.1") for ip in ports), ports
    result = lp.svd(A, 2, engine=engine, callback=callback, **options)
    assert same(reference, result)
    print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
    lp.svd(A, 2, lp.LocalPower(steps=10**9), engine=engine, workers=2, rng=0)
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_death_of_java_is_made_good_and_a_stop_leaves_nothing(sign, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run = subprocess.Popen(
        [sys.executable, "-W", "error", str(path), "deadly" if sign == signal.SIGINT else ""],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    pids = run.stdout.readline().split()
    assert pids, run.communicate()[1]
    started = [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]
    busy(p for p in psutil.Process(run.pid).children(recursive=True) if look(p, "name") != "java")
    os.killpg(run.pid, sign) if sign == signal.SIGINT else run.send_signal(sign)
    _, errors = run.communicate(timeout=LONG)
    assert ("KeyboardInterrupt" in errors) == (sign == signal.SIGINT)
    assert "\tat " not in errors
    assert ended(started)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_java_starts_leaves_nothing(sign, tmp_path):
    script = "import localpower as lp; lp.svd([[1.0, 0.0], [0.0, 2.0]], 1, engine='spark:2')"
    run = subprocess.Popen(
        [sys.executable, "-c", script],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )

    def java():  # it has the folder in its command line, as has the shell that starts it
        every = psutil.process_iter(["name", "cmdline"])
        lines = [(p, " ".join(p.info["cmdline"] or ())) for p in every]
        return [p for p, line in lines if str(tmp_path) in line and "launcher.Main" not in line]

    until(lambda: any(p.info["name"] == "java" for p in java()) or run.poll() is not None)
    run.send_signal(sign)
    _, errors = run.communicate(timeout=LONG)
    left = psutil.wait_procs(java(), timeout=END)[1]
    for process in left:
        process.kill()
    assert run.returncode == (-sign if sign == signal.SIGINT else 128 + sign), errors
    assert not left
    assert not list(tmp_path.iterdir())


def output_of(script, *args, **environment):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + script, *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


HEAD = """
import os, signal, socket, sys, threading, time
import psutil
import localpower as lp
rows = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]
def java():
    return next(p for p in psutil.Process().children() if p.name() == "java")
def told(ask):
    try:
        ask()
    except (lp.EngineError, ValueError) as error:
        print(type(error).__name__, ascii(str(error)), flush=True)
"""
SESSION = """
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
session = builder.config("spark.log.level", "OFF").getOrCreate()
"""


@pytest.fixture(scope="module")
def users_session(tmp_path_factory):
    """What a script prints whose session gets signals, and whose Java is killed in the end."""
    script = """
def wait(row):
    open(path, "w").close()
    time.sleep(1000)
def send(number):
    while not os.path.exists(path):
        time.sleep(0.05)
    os.kill(os.getpid(), number)
for number in (signal.SIGTERM, signal.SIGINT):
    path = f"{sys.argv[1]}-{number}"
    threading.Thread(target=send, args=(number,)).start()
    try:
        lp.svd(session.sparkContext.parallelize(rows, 2).map(wait), 1, engine=session)
    except (SystemExit, KeyboardInterrupt) as error:
        print(type(error).__name__, error)
    print(session.range(5).count(), session.sparkContext.parallelize(rows, 2).count())
    print(lp.svd(rows, 1, engine=session, method="tsqr").run["rows"])
"""
    script += """
java().kill()
for engine in (session, "spark", "spark:2"):
    told(lambda: lp.svd(rows, 1, engine=engine))
"""
    return output_of(SESSION + script, tmp_path_factory.mktemp("spark") / "working")


def test_a_signal_in_a_users_session_ends_the_job_and_leaves_the_session_usable(users_session):
    assert users_session[:3] == ["SystemExit 143", "5 3", "3"]
    assert users_session[3:6] == ["KeyboardInterrupt ", "5 3", "3"]


def test_the_death_of_a_users_java_is_told_with_the_remedy(users_session):
    found = users_session[6:]
    assert len(found) == 3
    for line in found:
        assert line.startswith("WorkerLost ")
        assert "open another session" in line


def test_a_master_that_cannot_be_reached_is_told_before_java_is_started():
    script = """
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
for place in sys.argv[1:]:
    told(lambda: lp.svd(rows, 1, engine="spark://" + place.format(port=port)))
assert not psutil.Process().children()
"""
    formless = ["", "foo", "127.0.0.1", "h:7077/", "127.0.0.1:{port},foo"]
    *wrong, closed, unknown = output_of(
        script, *formless, "127.0.0.1:{port}", "no.such.host.invalid:1,127.0.0.1:{port}"
    )
    assert len(wrong) == len(formless)
    for line in wrong:
        assert line.startswith("ValueError \"engine='spark://")
        assert "has no host and port: write it as in 'spark://host:7077'" in line
    for line in (closed, unknown):
        assert line.startswith("EngineError \"engine='spark://")
        assert "cannot be reached" in line
        assert "start a master there" in line


def test_what_keeps_spark_from_starting_is_told_also_when_it_is_started_anew():
    script = """
os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.executor.memory=1k pyspark-shell"
told(lambda: lp.connect("spark:2"))
del os.environ["PYSPARK_SUBMIT_ARGS"]
def callback(record, state):
    os.environ["JAVA_HOME"] = "/nowhere"
    java().kill()
told(lambda: lp.svd(rows, 1, engine="spark:2", method="dpi", rng=0, callback=callback))
"""
    first, anew = output_of(script)
    assert "Spark did not start" in first
    assert "executor memory" in first
    assert "\\tat " not in first
    assert "Spark did not start" in anew
    assert "Java 17" in anew


def test_executors_whose_python_lacks_localpower_are_told_with_the_remedy(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without what is installed
    python.chmod(0o700)
    script = """
told(lambda: lp.svd(rows, 1, engine=session))
told(lambda: lp.svd(session.sparkContext.parallelize(rows, 2), 1, engine=session))
"""
    found = output_of(SESSION + script, PYSPARK_PYTHON=str(python))
    assert len(found) == 2
    for line in found:
        assert "cannot import localpower (No module named" in line
        assert f"version {lp.__version__} there, and set PYSPARK_PYTHON" in line
        assert "Traceback" not in line
