"""BLAS threads: one per worker, so that workers do not fight over the cores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import scipy.linalg  # noqa: F401 (it has a BLAS of its own, which is limited if it is loaded)
from threadpoolctl import threadpool_limits

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
