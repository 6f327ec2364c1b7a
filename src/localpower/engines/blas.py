"""BLAS threads: one per worker, so that workers do not fight over the cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import scipy.linalg  # noqa: F401 (it has a BLAS of its own, which is limited if it is loaded)
from threadpoolctl import OpenBLASController, ThreadpoolController

from localpower.worker.host import ShardHost

BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_lock = threading.Lock()
_users = 0
_limit: Any = None
_known: tuple[int, ThreadpoolController] | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS at one thread in this process; overlapping uses restore the setting once."""
    global _users, _limit
    with _lock:
        if _users == 0:
            _free_control()
            _limit = _libraries().limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _limit is not None:
                _free_control()
                _limit.restore_original_limits()
                _limit = None
                _free_control()


def _free_control() -> None:
    """Let whichever thread comes next set the number of threads of OpenBLAS.

    From 3.8 on, threadpoolctl does nothing for any thread but the first that set it.
    """
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


def _libraries() -> ThreadpoolController:
    """BLAS libraries of this process: looked for again where modules were imported since.

    To look takes a millisecond, as long as a small problem.
    """
    global _known
    modules = len(sys.modules)
    if _known is None or _known[0] != modules:
        _known = modules, ThreadpoolController()
    return _known[1]


def one_thread_in_worker() -> AbstractContextManager[None]:
    """Do the same for one task; most workers are started so, and asking BLAS takes time."""
    started_so = all(os.environ.get(name) == "1" for name in BLAS_THREADS)
    return nullcontext() if started_so else one_blas_thread()


class OneThreadHost(ShardHost):
    """A host on a worker that others have started: BLAS has one thread while it works."""

    def attempt(self, work: Callable[[], Any]) -> Any:
        """Do some work; what it raises is the reply."""
        with one_thread_in_worker():
            return super().attempt(work)
