"""Shards in operating-system processes of their own, on this machine.

Workers are fresh interpreters that speak `core.wire` over their standard streams: scripts need no
``if __name__ == "__main__"``, nothing is pickled, rows are sent once (those in files not at all),
and a worker ends by itself when the coordinator does.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

from localpower.core import wire
from localpower.core.engine import Engine
from localpower.core.errors import DataError, EngineError, WorkerFailed, WorkerLate, WorkerLost
from localpower.core.shard import Shard
from localpower.core.tasks import Task
from localpower.engines.threads import cores
from localpower.engines.worker import MAX_BYTES, READY, Failure, Forget, Place, Run

R = TypeVar("R")
COMMAND = """
import sys
sys.path[:] = sys.argv[1:]
from localpower.engines.worker import main
main()
"""
PACKAGE = os.path.join(os.path.dirname(__file__), "..", "..")  # where this package is imported from
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Channel:
    """One worker process, and a thread that talks to it.

    Messages are put in `inbox` with the number of replies they get. At most two replies wait to be
    taken, so a fast worker cannot fill the coordinator's memory.
    """

    def __init__(self) -> None:
        search = [os.path.abspath(path) for path in [*sys.path, PACKAGE]]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", COMMAND, *search],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **dict.fromkeys(BLAS_THREADS, "1")},
            pipesize=1 << 20,
            start_new_session=True,  # Ctrl-C is for the coordinator to handle
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin, self.process.stdout
        self._folder = os.stat(".")  # that paths are relative to
        self.shards: list[int] = []
        self.waiting = 0  # replies that were asked for and not taken
        self.late = False
        self.error: Exception | None = None
        self._started = False
        self.inbox: SimpleQueue[tuple[Any, int] | None] = SimpleQueue()
        self._replies: Queue[Any] = Queue(maxsize=2)
        self._closed = Event()
        self._thread = Thread(target=self._talk, name="localpower", daemon=True)
        self._thread.start()

    def ask(self, message: Any, replies: int) -> None:
        """Send a message that gets so many replies."""
        self.waiting += replies
        self.inbox.put((message, replies))

    def take(self, others: Iterable[Channel], until: float) -> Any:
        """Return the next reply; raise if there is none to come, here or from the `others`."""
        while True:
            with suppress(Empty):
                reply = self._replies.get(timeout=max(0.0, min(0.2, until - time.monotonic())))
                self.waiting -= 1
                if isinstance(reply, Failure) and reply.complaint:
                    raise DataError(reply.complaint)
                if isinstance(reply, Failure):
                    raise WorkerFailed(f"a task failed on a worker process:\n{reply.traceback}")
                return reply
            for channel in (self, *others):
                channel.check()
            if time.monotonic() > until:
                self.late = True
                raise WorkerLate(
                    f"worker process {self.process.pid}, which holds shards {self.shards}, has not "
                    "replied in time; raise deadline=, or look for what it waits for"
                )

    def idle(self) -> bool:
        """Whether the worker can take other shards: it is here, and has nothing left to say."""
        ended = self.process.poll() is not None or self.error is not None
        here = os.path.samestat(self._folder, os.stat("."))
        return here and not (ended or self.late or self.waiting)

    def drained(self, until: float) -> bool:
        """Take and forget what is still to come; tell whether the worker can be used again."""
        try:
            while self.waiting and not self.late:
                with suppress(DataError, WorkerFailed):
                    self.take((), until)
            self.check()
        except EngineError:
            return False
        return not self.late

    def check(self) -> None:
        """Raise if the conversation has broken off."""
        if isinstance(self.error, EOFError | OSError):
            raise WorkerLost(self._obituary()) from self.error
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """End the process and the thread, whatever they are doing."""
        self._closed.set()
        self.inbox.put(None)
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for stream in (self._to, self._from):
            with suppress(OSError):
                stream.close()

    def _talk(self) -> None:
        try:
            self._await_start()
            while (message := self.inbox.get()) is not None:
                wire.send(message[0], self._to)
                for _ in range(message[1]):
                    self._put(wire.receive(self._from, MAX_BYTES))
        except Exception as error:
            self.error = error

    def _await_start(self) -> None:
        """Skip what was printed while Python started; the worker says when it is ready."""
        seen = b""
        while not seen.endswith(READY):
            byte = self._from.read(1)
            if not byte:
                raise EOFError("the worker did not start")
            seen = seen[-len(READY) :] + byte
        self._started = True

    def _put(self, reply: Any) -> None:
        while not self._closed.is_set():
            try:
                self._replies.put(reply, timeout=0.1)
            except Full:
                continue
            return

    def _obituary(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        code = self.process.returncode
        how = "closed its connection" if code is None else f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        if not self._started:
            return f"worker process {self.process.pid} could not start: it {how}"
        return (
            f"worker process {self.process.pid}, which held shards {self.shards}, {how}; "
            "if memory ran out, use fewer processes or smaller data, else run again"
        )


class Processes(Engine):
    """Runs tasks in `size` worker processes; shard i lives in process i modulo `size`."""

    latency = 5e-4
    bandwidth = 1e9

    def __init__(self, size: int | None = None) -> None:
        self._size = size or cores()
        self._channels: list[Channel] = []
        self._shards: list[Shard] = []
        self._lasting: Task[Any] | None = None
        weakref.finalize(self, _kill, self._channels)

    @property
    def size(self) -> int:
        return self._size

    def place(self, shards: Sequence[Shard]) -> None:
        super().place(shards)
        self._shards, self._lasting = list(shards), None
        count = min(self._size, len(shards))
        idle = [channel for channel in self._channels if channel.idle()][:count]
        _kill([channel for channel in self._channels if channel not in idle])
        self._channels[:] = idle
        for channel in idle:
            channel.shards = []
            channel.ask(Forget(), 0)
        while len(self._channels) < count:
            self._channels.append(Channel())
        for number in range(len(shards)):
            self._channel(number).shards.append(number)
        placements = [(number, Place(number, shard)) for number, shard in enumerate(shards)]
        for _ in self._converse(((n, place, 1) for n, place in placements), range(len(shards))):
            pass

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        numbers = self.numbers(order)
        if task.lasts:
            self._lasting = task
        return self._converse(self._messages(task, numbers), numbers)

    def heal(self, numbers: Sequence[int]) -> None:
        """Start those workers again that are gone, late, or in the middle of something."""
        until = self._until()
        for at, channel in enumerate(self._channels):
            if channel.drained(until):
                continue
            channel.kill()
            again = self._channels[at] = Channel()
            again.shards = channel.shards
            for number in again.shards:
                again.ask(Place(number, self._shards[number]), 1)
                if self._lasting is not None:
                    again.ask(Run(self._lasting.for_shard(number), (number,)), 1)
            for _ in range(again.waiting):
                again.take((), until)

    def _until(self) -> float:
        return math.inf if self.deadline is None else time.monotonic() + self.deadline

    def close(self) -> None:
        _kill(self._channels)
        self._shards = []
        super().close()

    def _channel(self, number: int) -> Channel:
        return self._channels[number % len(self._channels)]

    def _messages(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[tuple[int, Any, int]]:
        """One message per worker; where a task is scattered, one per shard."""
        count = len(self._channels)
        for worker in range(count):
            mine = [(n, task.for_shard(n)) for n in numbers if n % count == worker]
            for _, run in groupby(mine, key=lambda pair: id(pair[1])):
                group = list(run)
                held = tuple(number for number, _ in group)
                yield held[0], Run(group[0][1], held), len(held)

    def _converse(
        self, messages: Iterable[tuple[int, Any, int]], numbers: Sequence[int]
    ) -> Iterator[Any]:
        """Send messages, each to where a shard lives; yield replies in the order of `numbers`.

        Replies that nobody took, of a round that broke off, are thrown away before the next.
        """
        if not self._channels:
            raise EngineError("this engine holds no shards: place them first")
        until = self._until()
        if any(channel.waiting for channel in self._channels):
            self.heal(range(len(self.rows)))
        for number, message, replies in messages:
            self._channel(number).ask(message, replies)
        for number in numbers:
            yield self._channel(number).take(self._channels, until)


def _kill(channels: list[Channel]) -> None:
    while channels:
        channels.pop().kill()
