"""Memory that two processes share, for messages with arrays.

A pipe takes an array in small pieces, each of which is copied twice while the other side waits. An
arena is written and read at the speed of memory, and one is read by all workers that are sent the
same. It has no name that could be left behind: it is a file of the kernel's that ends with those
who have it open. Where a system has no such files, everything goes through pipes.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Sequence

SMALL, LARGE = 1 << 14, 1 << 25  # bytes of a message that are worth it, and that are kept at most
START = 64  # bytes before a frame; the first of them tells whether the arena is taken


class Arena:
    """The frame of one message, put by one process and copied by others.

    Only a byte, through a pipe, says that it is there: so that is sent after.
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = file = _nameless() if file is None else file
        self._memory: mmap.mmap | None = None
        self._close = weakref.finalize(self, os.close, file) if file >= 0 else lambda: None

    def put(self, parts: Sequence[bytes | memoryview]) -> bool:
        """Take in a frame; or refuse: too few bytes, too many, or the last is still here."""
        size = sum(map(len, parts))
        if self.file < 0 or not SMALL <= size <= LARGE or (self._memory and self._memory[0]):
            return False
        try:
            if not self._memory or len(self._memory) < START + size:
                os.ftruncate(self.file, START + size)
            memory = self._mapped(START + size)
        except OSError:  # a limit of this process
            return False
        memory[0] = 1
        at = START
        for part in parts:
            memory[at : at + len(part)] = part
            at += len(part)
        return True

    def reader(self) -> Callable[[memoryview], None]:
        """What copies the parts of a frame, one after the other."""
        at = START

        def fill(view: memoryview) -> None:
            nonlocal at
            end = at + len(view)
            view[:] = memoryview(self._mapped(end))[at:end]
            at = end

        return fill

    def empty(self) -> None:
        """Make room for the next."""
        if self._memory:
            self._memory[0] = 0

    def close(self) -> None:
        """Let go of it."""
        self._memory = None
        self._close()

    def _mapped(self, size: int) -> mmap.mmap:
        if self._memory is None or len(self._memory) < size:
            self._memory = mmap.mmap(self.file, 0)
        return self._memory


def _nameless() -> int:
    """A file of the kernel's, or -1 where there are none."""
    try:
        return os.memfd_create("localpower")
    except (AttributeError, OSError):
        return -1
