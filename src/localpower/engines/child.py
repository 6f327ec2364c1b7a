"""The program of a worker process: messages from standard input to a `ShardHost`, and replies.

Started by `localpower.engines.processes`. It ends when its input does, which is also what happens
when the coordinator dies.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any, BinaryIO

from localpower.engines.arena import Arena
from localpower.worker import wire
from localpower.worker.host import MAX_BYTES, ShardHost
from localpower.worker.shard import Shard
from localpower.worker.tasks import Task

READY = b"\n<localpower worker>\n"  # comes after whatever was printed while Python started
PIPED, SHARED = b"\0", b"\1"  # a frame follows, or is in the arena


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Hold this shard, and repeat on it the task that persists; replied to by `Done`."""

    number: int
    shard: Shard
    persisting: Task[Any] | None


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Forget:
    """Hold nothing any more; there is no reply."""


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class RunTask:
    """Run a task on those of these shards that are here, in this order; one reply each."""

    task: Task[Any]
    numbers: tuple[int, ...]


def piped(message: Any) -> Iterator[bytes | memoryview]:
    """What goes through a pipe for a message: that its frame follows, and the frame."""
    yield PIPED
    yield from wire.encode(message)


def shared(message: Any, arena: Arena) -> Sequence[bytes | memoryview]:
    """The same where the frame goes into the arena, if that takes it."""
    frame = list(wire.encode(message))
    return (SHARED,) if arena.put(frame) else (PIPED, *frame)


def serve(incoming: BinaryIO, outgoing: BinaryIO, question: Arena, answer: Arena) -> None:
    """Answer messages until the input ends."""
    host = ShardHost("on a worker process")

    def reply(content: Any) -> None:
        for part in shared(content, answer):
            outgoing.write(part)
        outgoing.flush()

    def obey(message: Any) -> None:
        if isinstance(message, Forget):
            host.forget()
        elif isinstance(message, Place):
            reply(host.hold(message.number, message.shard, persisting=message.persisting))
        else:
            for number in filter(host.numbers().__contains__, message.numbers):
                reply(host.run(number, message.task))

    while where := incoming.read(1):
        try:  # the message is nobody's after that: the next may be long in coming
            if where == SHARED:
                obey(wire.read(wire.reading(MAX_BYTES, files=True), question.reader()))
            else:
                obey(wire.receive(incoming, MAX_BYTES, files=True))
        except EOFError:
            return


def _leave_with_parent(parent: int) -> None:
    """End the process, also in the middle of a task, when the coordinator has gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def main(question: int, answer: int) -> None:
    """Serve on the standard streams, which are kept clear of prints and of Ctrl-C.

    Frames with arrays pass through arenas, whose files these are.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2 if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY), 1)
    try:
        outgoing.write(READY)
        outgoing.flush()
        serve(incoming, outgoing, Arena(question), Arena(answer))
    except BrokenPipeError:  # the coordinator is gone
        os._exit(0)
