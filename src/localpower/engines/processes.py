"""Shards in operating-system processes of their own, on this machine.

Workers are fresh interpreters that speak `core.wire` over their standard streams: scripts need no
``if __name__ == "__main__"``, nothing is pickled, rows are sent once (mapped files not at all), and
a worker ends by itself when the coordinator does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from queue import Empty, Queue
from typing import Any, TypeVar

from localpower.core import wire
from localpower.core.engine import Engine
from localpower.core.errors import EngineError, WorkerFailed, WorkerLost
from localpower.core.shard import Shard
from localpower.core.tasks import Task
from localpower.engines.threads import cores
from localpower.engines.worker import MAX_BYTES, Failure, Place, Run

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Channel:
    """One worker process, and the replies it gave that were not taken yet."""

    process: subprocess.Popen[bytes]
    shards: list[int] = field(default_factory=list)
    replies: Queue[Any] = field(default_factory=lambda: Queue(maxsize=2))

    def converse(self, messages: Iterable[tuple[Any, int]]) -> None:
        """Send each message and queue its replies; a lost worker is queued as an exception."""
        try:
            for message, replies in messages:
                wire.send(message, self.process.stdin)  # type: ignore[arg-type]
                for _ in range(replies):
                    self.replies.put(wire.receive(self.process.stdout, MAX_BYTES))  # type: ignore[arg-type]
        except Exception as error:
            self.replies.put(error)

    def take(self) -> Any:
        """Return the next reply, or raise what stands in its place."""
        reply = self.replies.get()
        if isinstance(reply, Failure):
            raise WorkerFailed(f"a task failed on a worker process:\n{reply.traceback}")
        if isinstance(reply, EOFError | OSError):
            raise WorkerLost(self._obituary()) from reply
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _obituary(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        code = self.process.returncode
        how = "closed its connection" if code is None else f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return (
            f"worker process {self.process.pid}, which held shards {self.shards}, {how}; "
            "if memory ran out, use fewer processes or smaller data, else run again"
        )


class Processes(Engine):
    """Runs tasks in `size` worker processes; shard i lives in process i modulo `size`."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size or cores()
        self._channels: list[Channel] = []
        self._stop: Any = None

    @property
    def size(self) -> int:
        return self._size

    def place(self, shards: Sequence[Shard]) -> None:
        self.close()
        super().place(shards)
        self._start(min(self._size, len(shards)))
        for number in range(len(shards)):
            self._channel(number).shards.append(number)
        jobs = [
            [(Place(number, shards[number]), 1) for number in channel.shards]
            for channel in self._channels
        ]
        for _ in self._converse(jobs, range(len(shards))):
            pass

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        numbers = self.numbers(order)
        jobs = [
            _messages(task, [number for number in numbers if number in set(channel.shards)])
            for channel in self._channels
        ]
        return self._converse(jobs, numbers)

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
        self._channels = []
        super().close()

    def _channel(self, number: int) -> Channel:
        return self._channels[number % len(self._channels)]

    def _start(self, count: int) -> None:
        command = "from localpower.engines.worker import main; main()"
        variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        search = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, **dict.fromkeys(variables, "1"), "PYTHONPATH": search}
        processes: list[subprocess.Popen[bytes]] = []
        self._stop = weakref.finalize(self, _kill, processes)
        processes.extend(
            subprocess.Popen(
                [sys.executable, "-P", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the coordinator to handle
            )
            for _ in range(count)
        )
        self._channels = [Channel(process) for process in processes]

    def _converse(
        self, jobs: Sequence[Iterable[tuple[Any, int]]], numbers: Sequence[int]
    ) -> Iterator[Any]:
        """Talk to all workers at once; yield replies in the order of `numbers`.

        Whatever goes wrong in between leaves messages under way, so the workers are ended.
        """
        if not self._channels:
            raise EngineError("this engine holds no shards: place them first")
        pool = ThreadPoolExecutor(len(self._channels))
        talks = [
            pool.submit(channel.converse, job)
            for channel, job in zip(self._channels, jobs, strict=True)
        ]
        try:
            for number in numbers:
                yield self._channel(number).take()
        except BaseException:
            channels = self._channels
            self.close()
            _drain(channels, talks)
            raise
        finally:
            pool.shutdown()


def _messages(task: Task[Any], numbers: list[int]) -> list[tuple[Run, int]]:
    """One message for a run of shards that get the same task, one each where it is scattered."""
    groups = groupby(((task.for_shard(i), i) for i in numbers), key=lambda pair: id(pair[0]))
    runs = [list(group) for _, group in groups]
    return [(Run(run[0][0], tuple(i for _, i in run)), len(run)) for run in runs]


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
    processes.clear()


def _drain(channels: list[Channel], talks: list[Future[None]]) -> None:
    """Let threads that wait for room in a queue come to their end."""
    while not all(talk.done() for talk in talks):
        for channel in channels:
            with suppress(Empty):
                channel.replies.get(timeout=0.01)
