"""BLAS threads: one per worker, so that workers do not fight over the cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import scipy.linalg  # noqa: F401 (it has a BLAS of its own, which is limited if it is loaded)
from threadpoolctl import threadpool_limits

BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_lock = threading.Lock()
_users = 0
_limit: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS at one thread in this process; overlapping uses restore the setting once."""
    global _users, _limit
    with _lock:
        if _users == 0:
            _limit = threadpool_limits(1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _limit is not None:
                _limit.restore_original_limits()
                _limit = None


def one_thread_in_worker() -> AbstractContextManager[None]:
    """Do the same for one task; most workers are started so, and asking BLAS takes time."""
    started_so = all(os.environ.get(name) == "1" for name in BLAS_THREADS)
    return nullcontext() if started_so else one_blas_thread()
