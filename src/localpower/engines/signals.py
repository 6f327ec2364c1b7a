"""Signals: processes that engines start have to end, whatever this one is told meanwhile."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

R = TypeVar("R")


def on_termination(handler: Any) -> None:
    """Say what SIGTERM does, where that can be said."""
    if _in_main_thread():
        signal.signal(signal.SIGTERM, handler)


def leave_interrupts() -> None:
    """Ignore Ctrl-C, which a terminal sends to all: whoever started this process ends it."""
    if _in_main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold signals back until the end, such as a second one while the first is heeded."""
    came = set[int]()
    signs = (signal.SIGINT, signal.SIGTERM) if _in_main_thread() else ()
    usual = {sign: signal.signal(sign, lambda number, _: came.add(number)) for sign in signs}
    try:
        yield
    finally:
        for sign, handler in usual.items():
            signal.signal(sign, handler)
        for number in came:
            signal.raise_signal(number)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit` meanwhile, so that whatever was started or written is ended.

    Only in the main thread, and where nobody else has said what is to happen.
    """
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave(number: int, frame: Any) -> NoReturn:
    """End the process as a shell expects it of a signal, by way of all that is to be ended."""
    raise SystemExit(128 + number)


def to_its_end(function: Callable[[], R]) -> R:
    """Call a function in a thread, and hold signals back until it has ended, however many come."""
    with undisturbed(), ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def end(process: Any, patience: float = 0.0) -> None:
    """See that a process ends: by itself if it does so in time, else by force."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
