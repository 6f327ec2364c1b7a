"""A worker process: reads messages from standard input, holds shards, writes replies.

Started by `localpower.engines.processes`. It ends when its input does, which is also what happens
when the coordinator dies.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from threading import Thread
from typing import Any, BinaryIO

from localpower.core import wire
from localpower.core.errors import DataError
from localpower.core.local_matrix import LocalMatrix
from localpower.core.shard import Shard
from localpower.core.tasks import Done, Task

READY = b"\n<localpower worker>\n"  # comes after whatever was printed while Python started
MAX_BYTES = 1 << 44  # the coordinator is our own parent: only nonsense is refused


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Hold this shard; replied to by `Done`."""

    number: int
    shard: Shard


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Forget:
    """Hold nothing any more; there is no reply."""


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Run a task on these shards in this order; one reply each."""

    task: Task[Any]
    numbers: tuple[int, ...]


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """What a worker replies when a task raised; `complaint` if it was about the data."""

    traceback: str
    complaint: str = ""


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer messages until the input ends."""
    matrices: dict[int, LocalMatrix] = {}
    while True:
        try:
            message = wire.receive(incoming, MAX_BYTES, files=True)
        except EOFError:
            return
        if isinstance(message, Forget):
            matrices.clear()
            continue
        if isinstance(message, Place):
            matrices[message.number] = LocalMatrix(message.shard)
            wire.send(Done(), outgoing)
            continue
        for number in message.numbers:
            try:
                reply = message.task(matrices[number])
            except DataError as error:
                reply = Failure(traceback.format_exc(), str(error))
            except Exception:
                reply = Failure(traceback.format_exc())
            wire.send(reply, outgoing)


def _leave_with_parent(parent: int) -> None:
    """End the process, also in the middle of a task, when the coordinator has gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def main() -> None:
    """Serve on the standard streams, which are kept clear of prints and of Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2 if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY), 1)
    try:
        outgoing.write(READY)
        outgoing.flush()
        serve(incoming, outgoing)
    except BrokenPipeError:  # the coordinator is gone
        os._exit(0)
