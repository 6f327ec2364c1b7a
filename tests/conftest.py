"""Settings for all tests: BLAS at one thread, and where the paper's data sets are."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import browser
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

import localpower as lp

settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a script runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
