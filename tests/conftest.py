"""Settings for all tests: BLAS at one thread, clusters that files share, where data sets are."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import browser
import pytest
from helpers import cluster
from hypothesis import settings
from threadpoolctl import threadpool_limits

import localpower as lp

settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a script runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Java processes live for seconds here: they compile quickly rather than well.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Files that share what is slow to start; they run one after another, in one process.
TOGETHER = {
    "clusters": """contract/test_engine_contract adversary/test_engines data/test_lazy_clusters
        scores/test_spark_scores scores/test_ray_scores scores/test_dask_scores""",
    "sites": "federation/test_sites federation/test_commands federation/test_participation_faults",
}
GROUPS = {f"tests/{file}.py": name for name, files in TOGETHER.items() for file in files.split()}
# What takes longest begins, so that processes which share the files end at the same time.
FIRST = [
    "clusters",
    "tests/engines/test_dask.py",
    "tests/engines/test_ray.py",
    "tests/engines/test_spark.py",
    "tests/test_docs.py",
    "tests/engines/test_mpi.py",
    "tests/faults/test_faults.py",
    "sites",
    "tests/peers/test_scikit_learn.py",
    "tests/federation/test_flare.py",
    "tests/engines/test_processes.py",
    "tests/test_pages.py",
    "tests/test_examples.py",
    "tests/core/test_shard.py",
    "tests/adversary/test_certificates_do_not_lie.py",
]
CLUSTERS = ExitStack()


def group(nodeid):
    """What runs in one process: a file, or files that go together."""
    file = nodeid.partition("::")[0]
    return GROUPS.get(file, file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Bring files that go together to one place, and what takes longest to the beginning."""
    places = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(group(item.nodeid), len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group(nodeid)

    config.option.loadscopereorder = False  # the order is that of the hook above
    return Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End the clusters after the last test of the files that share them."""
    if group(item.nodeid) == "clusters" and not (nextitem and group(nextitem.nodeid) == "clusters"):
        CLUSTERS.close()


@pytest.fixture(scope="session")
def clusters():
    """Clusters, each started when it is first asked for, and kept for all files that share them."""
    found = {}

    def start(name):
        if name not in found:
            found[name] = CLUSTERS.enter_context(cluster(name))
        return found[name]

    CLUSTERS.callback(found.clear)
    return start


@pytest.fixture(scope="session", autouse=True)
def _one_blas_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_measured(tmp_path_factory):
    """Choices are as on a machine that has measured no engine."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr("localpower.engines.calibration.cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests of pages."""
    with browser.browser() as found:
        yield found


@pytest.fixture(scope="session")
def data_set():
    """Path of one of the paper's data sets; skips where there is none."""

    def find(name):
        folder = os.environ.get("LOCALPOWER_DATA")
        if folder is None:
            pytest.skip("LOCALPOWER_DATA is not set: the paper's data sets are not at hand")
        path = Path(folder) / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"{path} is missing")
        return path

    return find


@pytest.fixture(scope="module")
def _engines():
    with ExitStack() as stack:
        found = {}

        def connected(name):
            if name not in found:
                found[name] = stack.enter_context(lp.connect(name))
            return found[name]

        yield connected


@pytest.fixture
def engine(request, _engines):
    """The engine of this name; a module's tests share its processes."""
    return _engines(request.param)
