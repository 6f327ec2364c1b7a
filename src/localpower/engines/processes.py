"""Shards in operating-system processes of their own, on this machine.

Workers are fresh interpreters that speak `worker.wire` over their standard streams: scripts need no
``if __name__ == "__main__"``, nothing is pickled, rows are sent once (those in files not at all),
and a worker ends by itself when the coordinator does. Arrays of moderate size go through memory
that is shared (`arena.py`): a basis is written once, however many workers there are.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from localpower.core.errors import EngineError, WireError, WorkerLate, WorkerLost
from localpower.core.machine import cores
from localpower.engines.arena import Arena
from localpower.engines.base import Engine
from localpower.engines.blas import BLAS_THREADS, one_blas_thread
from localpower.engines.child import READY, SHARED, Forget, Place, RunTask, piped, shared
from localpower.engines.cluster import ClusterEngine
from localpower.worker import wire
from localpower.worker.host import MAX_BYTES, result_of
from localpower.worker.tasks import Task

COMMAND = """
import sys
sys.path[:] = sys.argv[3:]
from localpower.engines.child import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""
PACKAGE = os.path.join(os.path.dirname(__file__), "..", "..")  # where this package is imported from
AHEAD = 2  # replies of a worker that wait to be taken
MOST_PARTS = 512  # of a frame that are written at once; systems have a limit
PATIENCE = 30.0  # seconds that a worker may take to start, whatever the deadline
MONTH = 2e6  # seconds, or nearly: systems have a limit


class Channel:
    """One worker process, and what passes between us; only `begin` and `take` wait.

    At most two replies are read before they are taken, so a fast worker cannot fill the
    coordinator's memory. `peers` are the channels of the same engine: while one is waited for, the
    others go on.
    """

    def __init__(self, peers: Sequence[Channel], question: Arena) -> None:
        search = [os.path.abspath(path) for path in [*sys.path, PACKAGE]]
        self._answer = Arena()
        files = [arena.file for arena in (question, self._answer)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", COMMAND, *map(str, files), *search],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what waits in a buffer of ours, `poll` does not see
            env={**os.environ, **dict.fromkeys(BLAS_THREADS, "1")},
            pipesize=1 << 20,
            pass_fds=[file for file in files if file >= 0],
            start_new_session=True,  # Ctrl-C is for the coordinator to handle
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin, self.process.stdout
        for stream in (self._to, self._from):
            os.set_blocking(stream.fileno(), False)
        self._peers = peers
        self._folder = os.stat(".")  # that paths are relative to
        self.shards: list[int] = []
        self.waiting = 0  # replies that were asked for and not taken
        self.broken = False  # whether something was left in its middle
        self._started = False
        self._frames: deque[Iterable[bytes | memoryview]] = deque()
        self._unsent: list[memoryview] = []
        self._replies: deque[Any] = deque()
        self._incoming = self._listen()
        self._unread = next(self._incoming)

    def begin(self) -> None:
        """Wait until the worker has started."""
        until = time.monotonic() + PATIENCE
        while not self._started:
            self._exchange(until)

    def ask(self, frame: Iterable[bytes | memoryview], replies: int) -> None:
        """Send a message that gets so many replies."""
        self.waiting += replies
        self._frames.append(frame)
        self._send()

    def take(self, until: float) -> Any:
        """Return the next reply; raise if there is none to come, here or from a peer."""
        if not self.waiting:
            raise EngineError("another task was sent before all replies to this were taken")
        if not self._replies and not self.broken:
            self._receive()  # it may be there already
        while not self._replies:
            self._exchange(until)
        self.waiting -= 1
        return self._replies.popleft()

    def fit(self) -> bool:
        """Whether the worker can be used again."""
        return self._started and not self.broken and self.process.poll() is None

    def idle(self) -> bool:
        """Whether the worker can take other shards: it is here, and has nothing left to say."""
        here = os.path.samestat(self._folder, os.stat("."))
        return here and not self.waiting and self.fit()

    def drained(self, until: float) -> bool:
        """Take and forget what is still to come; tell whether the worker can be used again."""
        while self.waiting and self.fit():
            with suppress(EngineError, WireError):  # of a peer, perhaps
                self.take(until)
        return self.fit()

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for stream in (self._to, self._from, self._answer):
            stream.close()

    def _exchange(self, until: float) -> None:
        """Send and receive what can be, here and with the peers; wait if that is nothing."""
        if self.broken:
            raise WorkerLost(self._obituary())
        peers = [peer for peer in self._peers if not peer.broken]
        poll = select.poll()
        for peer in peers:
            if peer._unsent:
                poll.register(peer._to, select.POLLOUT)
            if len(peer._replies) < AHEAD:
                poll.register(peer._from, select.POLLIN)
        left = until - time.monotonic()
        ready = dict(poll.poll(None if left == math.inf else 1e3 * min(max(left, 0.0), MONTH)))
        for peer in peers:
            if peer._to.fileno() in ready:
                peer._send()
            if peer._from.fileno() in ready:
                peer._receive()
        if not ready and time.monotonic() >= until:
            self.broken = True
            name = f"worker process {self.process.pid}"
            raise WorkerLate(
                f"{name}, which holds shards {self.shards}, has not replied in time; raise "
                "deadline=, or look for what it waits for"
                if self._started
                else f"{name} has not started within {PATIENCE:g} s; look for what it waits for"
            )

    def _send(self) -> None:
        """Write as much as the worker takes."""
        self.broken = True  # unless we come to the end
        try:
            while self._unsent or self._frames:
                parts = self._unsent or [memoryview(part) for part in self._frames.popleft()]
                self._unsent = parts
                self._unsent = _after(parts, os.writev(self._to.fileno(), parts[:MOST_PARTS]))
        except BlockingIOError:
            pass
        except OSError as error:
            raise WorkerLost(self._obituary()) from error
        self.broken = False

    def _receive(self) -> None:
        """Read as much as there is, up to two replies."""
        self.broken = True  # unless we come to the end
        while len(self._replies) < AHEAD:
            count = self._from.readinto(self._unread)  # type: ignore[attr-defined]
            if count is None:
                break
            if not count:
                raise WorkerLost(self._obituary())
            self._unread = self._unread[count:]
            while not self._unread:
                self._unread = next(self._incoming)
        self.broken = False

    def _listen(self) -> Iterator[memoryview]:
        """Yield where the next bytes belong; keep replies that are complete."""
        seen, byte = b"", bytearray(1)
        while not seen.endswith(READY):  # skip what was printed while Python started
            yield memoryview(byte)
            seen = seen[-len(READY) :] + byte
        self._started = True
        while True:
            yield memoryview(byte)
            frame = wire.reading(MAX_BYTES)
            if byte == SHARED:
                self._replies.append(wire.read(frame, self._answer.reader()))
                self._answer.empty()
            else:
                self._replies.append((yield from frame))

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


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """What is left of a frame when so many bytes have been sent."""
    for at, part in enumerate(parts):
        if count < len(part):
            return [part[count:], *parts[at + 1 :]]
        count -= len(part)
    return []


class Processes(ClusterEngine):
    """Runs tasks in `size` worker processes; shard i lives in process i modulo `size`."""

    latency = 5e-4
    bandwidth = 1e9
    sum = Engine.sum  # replies come one by one: nothing is added on the way

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self._size = size or cores()
        self._channels: list[Channel] = []
        self._question = Arena()
        weakref.finalize(self, _kill, self._channels)

    def close(self) -> None:
        _kill(self._channels)
        self._question = Arena()
        super().close()

    def _gather(self, count: int, adopted: bool) -> None:
        """Use workers that are idle again, and start those that are missing."""
        workers = min(self._size, count)
        idle = [channel for channel in self._channels if channel.idle()][:workers]
        _kill([channel for channel in self._channels if channel not in idle])
        self._channels[:] = idle
        for channel in idle:
            channel.ask(piped(Forget()), 0)
        if not idle:  # threads of BLAS that wait for work here take the cores from the workers
            self._stack.enter_context(one_blas_thread())
        while len(self._channels) < workers:
            self._channels.append(Channel(self._channels, self._question))
        for at, channel in enumerate(self._channels):
            channel.shards = list(range(at, count, workers))
        for channel in self._channels:
            channel.begin()

    def _hold(self, numbers: Sequence[int]) -> None:
        places = (
            (n, piped(Place(n, self._shards[n], self._persisting.get(n))), 1) for n in numbers
        )
        for reply in self._converse(places, numbers):
            result_of(reply)

    def _exchange(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Any]:
        return self._converse(self._questions(task, numbers), numbers)

    def _lost(self, numbers: Sequence[int]) -> list[int]:
        """Start those workers again that are gone, late, or in the middle of something."""
        until = self._until()
        unfit = [channel for channel in self._channels if not channel.drained(until)]
        again = [self._replaced(channel) for channel in unfit]
        for channel in again:
            channel.begin()
        return [number for channel in again for number in channel.shards]

    def _replaced(self, channel: Channel) -> Channel:
        """Start another worker in place of this."""
        channel.kill()
        again = Channel(self._channels, self._question)
        self._channels[self._channels.index(channel)] = again
        again.shards = channel.shards
        return again

    def _until(self) -> float:
        return math.inf if self.deadline is None else time.monotonic() + self.deadline

    def _channel(self, number: int) -> Channel:
        return self._channels[number % len(self._channels)]

    def _questions(
        self, task: Task[Any], numbers: Sequence[int]
    ) -> Iterator[tuple[int, Iterable[bytes | memoryview], int]]:
        """One message for all workers; where a task is scattered, one for each shard."""
        if numbers and task.for_shard(numbers[0]) is task:
            self._question.empty()  # all have replied to what was there
            frame = shared(RunTask(task, tuple(numbers)), self._question)
            for worker, count in Counter(n % len(self._channels) for n in numbers).items():
                yield worker, frame, count
            return
        for number in numbers:
            yield number, piped(RunTask(task.for_shard(number), (number,))), 1

    def _converse(
        self,
        messages: Iterable[tuple[int, Iterable[bytes | memoryview], int]],
        numbers: Sequence[int],
    ) -> Iterator[Any]:
        """Send messages, each to where a shard lives; yield replies in the order of `numbers`.

        Replies that nobody took, of a round that broke off, are thrown away before the next.
        """
        until = self._until()
        if any(channel.waiting or channel.broken for channel in self._channels):
            self.heal(range(len(self.rows)))
        for number, frame, replies in messages:
            self._channel(number).ask(frame, replies)
        for number in numbers:
            yield self._channel(number).take(until)


def _kill(channels: list[Channel]) -> None:
    while channels:
        channels.pop().kill()
