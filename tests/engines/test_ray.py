"""Ray: actors that are killed or late, data that live in its object store, what is left behind."""

import gc
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import scipy.sparse as sp
from helpers import LONG, ended, same_bits, until, with_spectrum
from test_examples import EXAMPLES

import localpower as lp
from localpower.data.partition import contiguous
from localpower.data.source import load_block, open_source
from localpower.worker.replies import Done
from localpower.worker.tasks import Describe, PowerSteps, Prepare, Task

ray = pytest.importorskip("ray", reason="Ray is not installed")

DENSE = with_spectrum(403, 0.7 ** np.arange(12), seed=1) * 10
SPARSE = sp.random_array((403, 12), density=0.2, rng=np.random.default_rng(2), format="csr")
METHODS = ["local_power", "local_ritz", "block_lanczos", "tsqr", "uda", "wda", "dr_svd"]
BASIS = np.linalg.qr(np.random.default_rng(3).standard_normal((12, 3)))[0]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class Pid(Task[Answer]):
    def __call__(self, matrix):
        return Answer(os.getpid())


@dataclass(frozen=True, slots=True, eq=False)
class Sleep(Task[Done]):
    seconds: float

    def __call__(self, matrix):
        time.sleep(self.seconds)
        return Done()


@dataclass(frozen=True, slots=True, eq=False)
class DieOnce(Task[Done]):
    """Kills the worker that holds `rows` rows, if the file is not there yet."""

    path: str
    rows: int

    def __call__(self, matrix):
        if matrix.shape[0] == self.rows:
            die_once(self.path)
        return Done()


def die_once(path, rows=None):
    if not os.path.exists(path):
        open(path, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return rows


class Trap(np.ndarray):
    """Rows that kill the first worker they come to."""

    path = ""

    def __reduce__(self):
        return die_once, (self.path, np.array(self))


@pytest.fixture(scope="module")
def cluster():
    """The user's own Ray, which has to survive all of these tests."""
    folder = tempfile.mkdtemp(prefix="lp-test-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
        )
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find it
        yield ray.get_runtime_context().get_node_id()
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        assert ray.is_initialized()
        ray.shutdown()
        signal.signal(signal.SIGTERM, handler)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def engine(cluster):
    with lp.connect("ray:2") as engine:
        yield engine
    assert ray.get_runtime_context().get_node_id() == cluster


@pytest.fixture
def dataset(cluster):
    """`ray.data`, which neither logs nor draws bars."""
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    from ray import data

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`use_.*` is deprecated", DeprecationWarning)
        data.DataContext.get_current().enable_progress_bars = False  # sets all of its options
    return data


def place(engine, data, workers):
    engine.place(contiguous(open_source(data), workers).shards)
    return engine


def product(engine):
    return engine.sum(PowerSteps(BASIS, steps=2)).product.tobytes()


def pids(engine):
    return [answer.value for answer in engine.map(Pid())]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(pid))


def references():
    gc.collect()
    return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())


@pytest.mark.parametrize("workers", [3, 20])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_bits_of_the_reference(engine, method, workers):
    options = {"method": method, "max_rounds": 3, "center": True, "return_u": True, "rng": 5}
    reference = lp.svd(DENSE, 4, engine="inline", workers=workers, **options)
    result = lp.svd(DENSE, 4, engine=engine, workers=workers, **options)
    assert same_bits(reference, result)
    assert reference.ledger == result.ledger
    assert result.run["engine"] == "ray"


BLOCKS = {
    "dense": np.array_split(DENSE, 11),
    "narrow": np.array_split(DENSE.astype(np.float32), 3),
    "unequal": [DENSE[:300], DENSE[:0], DENSE[300:301], DENSE[301:]],
    "sparse": [SPARSE[:100], SPARSE[100:350], SPARSE[350:]],
    "frames": [pd.DataFrame(DENSE[:200]), pd.DataFrame(DENSE[200:])],
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("method", ["local_ritz", "tsqr"])
def test_objects_in_the_store_are_shards(engine, name, method):
    options = {"method": method, "max_rounds": 3, "center": True, "return_u": True, "rng": 5}
    reference = lp.svd(BLOCKS[name], 4, engine="inline", **options)
    refs = [ray.put(block) for block in BLOCKS[name]]
    result = lp.svd(refs, 4, engine=engine, **options)
    assert same_bits(reference, result)
    assert result.run["workers"] == len(refs)


def test_frames_with_columns_in_another_order_are_refused(engine, dataset):
    frame = pd.DataFrame(DENSE, columns=[f"c{i}" for i in range(12)])
    parts = [frame[:200], frame[200:][frame.columns[::-1]]]
    for data in ([ray.put(part) for part in parts], dataset.from_pandas(parts)):
        with pytest.raises(lp.DataError, match="columns of other names or in another order"):
            lp.svd(data, 2, engine=engine)


@pytest.mark.parametrize("kind", ["refs", "dataset"])
def test_estimators_leave_rows_where_they_are(engine, dataset, kind):
    frame = pd.DataFrame(DENSE, columns=[f"c{i}" for i in range(12)])
    data = dataset.from_pandas(frame) if kind == "dataset" else [ray.put(frame)]
    model = lp.PCA(3, engine=engine, random_state=0).fit(data)
    assert model.result_.run["held"]
    assert model.result_.run["names"] == list(frame.columns)
    assert (model.n_samples_, model.n_features_in_) == DENSE.shape


def tables(data):
    frame = pd.DataFrame(DENSE, columns=[f"c{i}" for i in range(12)])
    vectors = [{"v": row.tolist()} for row in DENSE]
    return {
        "tensors": data.from_numpy(np.array_split(DENSE, 9)),
        "narrow tensors": data.from_numpy(np.array_split(DENSE.astype(np.float32), 3)),
        "frame": data.from_pandas([frame[:100], frame[100:]]),
        "lists": data.from_items(vectors, override_num_blocks=3),
        "pandas blocks": data.from_pandas(frame).map_batches(lambda x: x, batch_format="pandas"),
    }


@pytest.mark.parametrize("name", ["tensors", "narrow tensors", "frame", "lists", "pandas blocks"])
def test_blocks_of_a_dataset_are_shards(engine, dataset, name):
    data = tables(dataset)[name].materialize()
    count = data.num_blocks()
    bundles = data.iter_internal_ref_bundles()
    sizes = [block.num_rows for bundle in bundles for block in bundle.metadata]
    rows = DENSE.astype(np.float32) if name == "narrow tensors" else DENSE
    blocks = np.split(rows, np.cumsum(sizes)[:-1])
    options = {"method": "local_power", "max_rounds": 3, "center": True, "rng": 5}
    result = lp.svd(data, 4, engine=engine, **options)
    assert same_bits(lp.svd(blocks, 4, engine="inline", **options), result)
    assert result.run["workers"] == count


def slow_first(batch):
    if batch["data"][0, 0] == DENSE[0, 0]:
        time.sleep(1.0)
    return batch


def test_a_lazy_dataset_keeps_the_order_of_its_blocks(engine, dataset):
    data = dataset.from_numpy(np.array_split(DENSE, 3)).map_batches(slow_first, batch_size=None)
    result = lp.svd(data, 4, engine=engine, return_u=True, method="tsqr")
    reference = lp.svd(np.array_split(DENSE, 3), 4, engine="inline", return_u=True, method="tsqr")
    assert same_bits(reference, result)
    assert not data.context.execution_options.preserve_order


@pytest.mark.parametrize("lists", [False, True])
def test_a_dataset_may_have_blocks_that_a_filter_left_empty(engine, dataset, lists):
    first = DENSE[:150].astype(np.float32)
    data = dataset.from_numpy(np.array_split(DENSE.astype(np.float32), 3))
    if lists:
        vectors = [{"data": row.tolist()} for row in DENSE.astype(np.float32)]
        data = dataset.from_items(vectors, override_num_blocks=3)
    with pytest.warns(UserWarning, match="expr"):
        data = data.filter(lambda row: row["data"][0] in first[:, 0])
    result = lp.svd(data, 4, engine=engine, method="tsqr")
    expected = np.linalg.svd(first, compute_uv=False)[:4]
    assert np.allclose(result.singular_values, expected, rtol=1e-5)
    assert result.components.dtype == (np.float64 if lists else np.float32)


def test_rows_in_the_store_never_come_to_the_coordinator(engine, monkeypatch):
    refs = [ray.put(block) for block in np.array_split(np.tile(DENSE, (20, 1)), 10)]
    fetched, get = [], ray.get

    def spy(ref, **options):
        value = get(ref, **options)
        fetched.append(len(ray.cloudpickle.dumps(value)))
        return value

    monkeypatch.setattr(ray, "get", spy)
    lp.svd(refs, 4, engine=engine, method="local_power", max_rounds=2, rng=0)
    assert max(fetched) < 5000 < DENSE.nbytes


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([np.eye(3), np.eye(4)], "do not form one matrix"),
        ([pd.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]})], "columns that are not numbers: 'a'"),
        ([pd.DataFrame({"a": [[1.0, 2.0], [3.0]]})], "different lengths"),
        ([pd.DataFrame({"a": ["x", "y"]})], "columns that are not numbers: 'a'"),
        ([np.zeros((3, 3, 3))], "3 dimension"),
    ],
)
def test_objects_that_are_no_rows_are_refused(engine, blocks, message):
    with pytest.raises(lp.DataError, match=message):
        lp.svd([ray.put(block) for block in blocks], 1, engine=engine)


def test_only_objects_lists_of_them_and_datasets_are_taken(engine, dataset):
    ref = ray.put(DENSE)
    assert engine.takes(ref)
    assert lp.svd(ref, 2, engine=engine, rng=0).run["workers"] == 1
    assert engine.takes([ref])
    assert engine.takes((ref, ref))
    assert engine.takes(dataset.range(3))
    for other in ([], [DENSE], [ref, DENSE], DENSE, "rows.npy"):
        assert not engine.takes(other)


def test_a_large_task_is_put_once_and_a_small_one_not_at_all(engine, monkeypatch):
    place(engine, DENSE, 20)
    put, seen = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value: seen.append(value) or put(value))
    list(engine.map(PowerSteps(BASIS, steps=1)))
    assert not seen
    large = PowerSteps(np.ones((12, 2000)), steps=1)
    list(engine.map(large))
    assert seen == [large]


@pytest.mark.parametrize("shards", [9, 64, 75])
def test_sums_over_many_shards_are_made_by_the_actors(engine, monkeypatch, shards):
    place(engine, DENSE, shards)
    with lp.connect("inline") as inline:
        expected = product(place(inline, DENSE, shards))
    fetched, get = [], ray.get

    def spy(ref, **options):
        fetched.append(get(ref, **options))
        return fetched[-1]

    monkeypatch.setattr(ray, "get", spy)
    assert product(engine) == expected
    assert sum(not isinstance(value, list) for value in fetched) <= 8


@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.parametrize("shards", [3, 10])
def test_a_killed_actor_is_reported_and_healed(engine, adopted, shards):
    blocks = np.array_split(DENSE, shards)
    shift = Prepare(DENSE.mean(axis=0), 1.0)
    with lp.connect("inline") as inline:
        place(inline, blocks, shards)
        list(inline.map(shift))
        expected = product(inline)
    if adopted:
        from localpower.data.source import held

        parts = engine.adopt([ray.put(block) for block in blocks], load_block)
        engine.place(contiguous(held(parts, "data", None), shards).shards)
    else:
        place(engine, blocks, shards)
    list(engine.map(shift))
    workers = pids(engine)
    kill(workers[1])
    with pytest.raises(lp.WorkerLost, match=r"shard \d+ is lost.*run again"):
        product(engine)
    engine.heal(range(shards))
    assert product(engine) == expected
    after = pids(engine)
    assert after[0] == workers[0]
    assert after[1] != workers[1]


def test_an_actor_killed_in_mid_task_is_reported_and_healed(engine, tmp_path):
    place(engine, np.array_split(DENSE, [100, 250]), 3)
    expected = product(engine)
    engine.deadline = LONG
    task = DieOnce(str(tmp_path / "died"), 150)
    with pytest.raises(lp.WorkerLost, match="shard 1 is lost"):
        list(engine.map(task))
    engine.heal([1])
    assert len(list(engine.map(task))) == 3
    assert product(engine) == expected
    engine.deadline = None


def test_an_actor_killed_while_shards_are_placed_is_reported_and_healed(engine, tmp_path):
    shards = contiguous(open_source(np.array_split(DENSE, 3)), 3).shards
    engine.place(shards)
    expected = product(engine)
    rows = shards[1].pieces[0].view(Trap)
    rows.path = str(tmp_path / "died")
    trapped = type(shards[1])((rows,), shards[1].columns, shards[1].dtype)
    with pytest.raises(lp.WorkerLost, match=r"shard \d is lost"):
        engine.place([shards[0], trapped, shards[2]])
    engine.heal(range(3))
    assert product(engine) == expected


def test_a_run_goes_on_with_the_same_bits_when_an_actor_is_killed(engine):
    options = {
        "method": "local_power:steps=2",
        "max_rounds": 4,
        "center": True,
        "workers": 10,
        "rng": 0,
    }
    reference = lp.svd(DENSE, 3, engine="inline", **options)

    def callback(record, state):
        if record.round == 2:
            kill(pids(engine)[1])

    result = lp.svd(DENSE, 3, engine=engine, callback=callback, **options)
    assert same_bits(reference, result)


def test_a_lost_actor_leaves_the_engine_usable(engine):
    first = lp.svd(DENSE, 3, engine=engine, workers=4, rng=0)
    kill(pids(engine)[0])
    with pytest.raises(lp.WorkerLost):
        list(engine.map(Describe(extremes=False)))
    assert same_bits(first, lp.svd(DENSE, 3, engine=engine, workers=4, rng=0))


def test_a_reply_that_does_not_come_is_late_and_its_actor_is_replaced(engine, monkeypatch):
    place(engine, DENSE, 3)
    expected = product(engine)
    engine.deadline = 0.5
    with pytest.raises(lp.WorkerLate, match=r"shard 0: no reply within 0\.5 s"):
        list(engine.map(Sleep(60.0)))
    engine.deadline = None
    monkeypatch.setattr("localpower.engines.ray.PATIENCE", 2.0)  # the actor is asleep for longer
    engine.heal([0, 1, 2])
    assert product(engine) == expected


def test_an_exception_carries_the_traceback_of_the_actor(engine):
    place(engine, DENSE, 10)
    for run in (engine.sum, lambda task: list(engine.map(task))):
        with pytest.raises(
            lp.WorkerFailed, match=r"(?s)a task failed.*local_matrix.py.*float64 \(41,"
        ):
            run(PowerSteps(np.eye(3), steps=1))
    assert engine.sum(Describe(extremes=False)).rows == 403


def test_an_engine_without_shards_says_so(cluster):
    with lp.connect("ray") as engine:
        assert engine.size == 2
        with pytest.raises(lp.EngineError, match="place them first"):
            list(engine.map(Describe(extremes=False)))
        with pytest.raises(lp.EngineError, match="place them first"):
            engine.heal([0])


def test_the_users_ray_is_left_running_without_anything_of_ours(cluster):
    before = references()
    engine = lp.connect("ray:1")
    for _ in range(2):
        lp.svd(DENSE, 3, engine=engine, workers=10, rng=0)
        engine.place(contiguous(open_source(DENSE), 3).shards)
        worker = psutil.Process(pids(engine)[0])
        engine.close()
        engine.close()
        assert ended([worker])
    until(lambda: references() <= before)
    assert ray.get_runtime_context().get_node_id() == cluster


def test_another_cluster_cannot_be_reached_from_a_connected_process(cluster):
    with pytest.raises(lp.EngineError, match="connected to a Ray cluster already"):
        lp.connect("ray://127.0.0.1:10001")


SCRIPT = """
import os, signal, sys, tempfile
import numpy as np, psutil
import localpower as lp

def children():
    return psutil.Process().children(recursive=True)

def of_each(process, look):
    try:
        return look(process)
    except psutil.NoSuchProcess:  # it ended while it was looked at
        return ()

A = np.random.default_rng(0).standard_normal((600, 20))
METHOD = "local_power:steps=2"
"""

LIFE = """
import runpy, warnings
import ray, sklearn  # set variables of their own
from localpower import engines
import localpower.engines.ray
environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
files = os.listdir(tempfile.gettempdir())
how = {"method": "local_power:steps=2", "max_rounds": 4, "workers": 4, "rng": 0}
reference = lp.svd(A, 3, engine="inline", **how)
every, killed = {}, 0

def started():
    new = {process.pid: process for process in children()}
    every.update(new)
    return new.values()

def mark(event):
    for stream in (sys.stdout, sys.stderr):
        print(event, file=stream, flush=True)

def named(word):
    return [p for p in started() if word in of_each(p, psutil.Process.name)]

def kills(record, state):  # the node goes with this process
    global killed
    if record.round == moment:
        for process in named("DashboardAgent"):
            of_each(process, psutil.Process.kill)
        psutil.wait_procs(named("raylet"), timeout=60)
        killed += 1

def runs(**more):
    result = lp.svd(A, 3, engine=engine, **more, **how)
    assert result.components.tobytes() == reference.components.tobytes()

engines.ray.LOOK = 0.3
engine = lp.connect("ray:2")
with lp.connect("ray") as other:  # shares the cluster, and leaves it to the first
    assert other.size == engine.size == 2
runs()
processes = psutil.Process(), *started()
sockets = [s for p in processes for s in of_each(p, psutil.Process.net_connections)]
print({s.laddr.ip.removeprefix("::ffff:") for s in sockets if s.status == "LISTEN"})
assert len(every) > 3
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own
    runpy.run_path(sys.argv[1], run_name="__main__")
mark("dies")
for moment in (2, 4):  # with rounds to come, or none: the next run finds out
    first = ray.get_runtime_context().get_node_id()
    runs(faults=lp.Faults(deadline=60), callback=kills)
    runs(faults=lp.Faults(deadline=60))
    assert ray.get_runtime_context().get_node_id() != first
assert killed == 2
started()
mark("closes")
engine.close()
engine.close()
_, alive = psutil.wait_procs(list(every.values()), timeout=25)
assert not alive, alive
assert os.listdir(tempfile.gettempdir()) == files
changed = set(os.environ.items()) ^ set(environment.items())
assert not changed, sorted(name for name, _ in changed)
assert signal.getsignal(signal.SIGTERM) == handler
"""

STOPPED = """
def callback(record, state):
    if record.round == 2:
        print(*[child.pid for child in children()], flush=True)

lp.svd(A, 3, "local_power:steps=4", engine="ray:1", max_rounds=10**6, rng=0, callback=callback)
"""

STARTING = """
try:
    lp.svd(A, 3, engine="ray:1")
finally:
    print(psutil.wait_procs(children(), timeout=25)[1])
"""


def start(code, folder, *arguments, **more):
    """Run a script with a home and a folder for temporary files of its own."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(SCRIPT + code))
    names = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(path), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**names, "HOME": str(folder), "TMPDIR": str(folder), **more},
        start_new_session=True,
    )


@contextmanager
def short_folder():
    """Short, as paths of sockets are limited; in the end nothing but the script is in it."""
    with tempfile.TemporaryDirectory(prefix="lp-") as name:
        yield Path(name)
        assert os.listdir(name) == ["script.py"]


# Ray looks as soon and as often whether a node is alive.
SOON = {"RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "300"}


def test_a_cluster_of_our_own_is_on_loopback_outlives_its_node_and_leaves_nothing_behind():
    """The example runs on it, as it stands."""
    with short_folder() as folder:
        run = start(LIFE, folder, EXAMPLES / "on_ray.py", **SOON)
        out, errors = run.communicate(timeout=2 * LONG)
        assert run.returncode == 0, errors
        for told in (out, errors):  # only that a node died is told by Ray
            assert told.endswith("closes\n")
        assert errors.startswith("dies\n")
        loopback, *said = out.partition("dies\n")[0].splitlines()
        assert loopback == "{'127.0.0.1'}"
        assert len(said) == 3
        assert re.match(r"differs from numpy by \d\S*e-1[0-9]$", said[2]), out
        assert ended(processes(folder))


def send(run, sign, group):
    os.killpg(run.pid, sign) if group else run.send_signal(sign)


def processes(folder):
    """Those that a script in this folder has started, and itself."""
    found = [(p, p.info["environ"] or {}) for p in psutil.process_iter(["name", "environ"])]
    return [process for process, names in found if names.get("TMPDIR") == str(folder)]


def is_stopped(sign, group):
    with short_folder() as folder:
        run = start(STOPPED, folder)
        workers = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
        assert len(workers) > 3
        send(run, sign, group)
        _, errors = run.communicate(timeout=LONG)
        assert ended(workers)
    if sign == signal.SIGTERM:
        assert (run.returncode, errors) == (128 + sign, "")
    else:
        assert "KeyboardInterrupt" in errors


def is_interrupted(sign, group):
    with short_folder() as folder:
        run = start(STARTING, folder)
        until(lambda: any(process.info["name"] == "raylet" for process in processes(folder)))
        send(run, sign, group)
        out, errors = run.communicate(timeout=LONG)
        assert out == "[]\n"
        assert ("KeyboardInterrupt" in errors) == (sign == signal.SIGINT)
        assert ended(processes(folder))


@pytest.mark.parametrize(
    ("check", "ways"),
    [
        (is_stopped, [(signal.SIGINT, True), (signal.SIGTERM, False)]),
        (is_interrupted, [(signal.SIGINT, False), (signal.SIGTERM, True)]),
    ],
)
def test_a_cluster_of_our_own_ends_when_the_coordinator_is_stopped_even_as_it_starts(check, ways):
    with ThreadPoolExecutor(2) as pool:  # both ways at once
        for told in [pool.submit(check, *way) for way in ways]:
            told.result()
