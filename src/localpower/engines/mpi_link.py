"""Messages between the ranks of an MPI job.

They are frames of `worker.wire` on a duplicate of the user's communicator: a head, sent to each
rank that it is for, then the arrays, which are broadcast where all ranks get them. Rounds are
numbered: what comes of one that was given up is received and forgotten. Whoever waits does so
politely: it soon sleeps between looks.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from localpower.core.errors import EngineError, WorkerLate, WorkerLost
from localpower.engines.cluster import late
from localpower.worker import wire
from localpower.worker.host import MAX_BYTES
from localpower.worker.shard import EngineBlock, Shard
from localpower.worker.tasks import Task

try:
    from mpi4py import MPI as MPI
except RuntimeError as error:  # it is there, but has nothing to talk to
    raise EngineError(
        f"{error}; install an MPI (pip install mpich, or a module of your cluster)"
    ) from error

HEAD = struct.Struct("<qq")  # before a frame: whose message it is, and how its arrays travel
ALONE, ALL = range(2)  # sent to one rank, or broadcast
ARRAYS = 10  # added to the tag of a message, for its arrays
CHUNK = 1 << 30  # bytes of an array that are sent at once: counts of 32 bits are enough
LOOKS = 16  # at what one waits for, before others get the processor
SPIN, NAP = 5e-3, 2e-3  # seconds that one looks without a pause, and sleeps at most
Watch = Callable[[], None] | None  # raises where there is nothing more to wait for
AHEAD = 2  # messages that a rank has under way before it works on
wire.register(EngineBlock)


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """A rank has no rows of its own: it serves rank 0, or has `left`, its engine closed unused."""

    left: bool = False


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Hold these shards and no others; with the rank's `own` rows, if said so."""

    run: int
    shards: tuple[Shard, ...]
    own: bool


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class RunTasks:
    """Run tasks on those of the shards of these `numbers` that are here: one for all, or each one.

    They are replied to one by one, or added by the ranks if `added`: all shards are asked then.
    """

    run: int
    tasks: tuple[Task[Any], ...]
    numbers: tuple[int, ...]
    added: bool


class GivenUp(Exception):
    """Rank 0 has gone on to something else."""


class Link:
    """A communicator of our own beside the user's, kept with that for the next time.

    Requests and what they read or write are kept until they are done.
    """

    COMMAND, REPLY, PARTIAL, GREETING, ALARM = range(1, 6)  # tags
    GRACE = 5.0  # seconds in which ranks that are at hand must have been heard of
    LINGER = 0.3  # seconds that a rank stays after a failure for what is under way to it

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.greetings: dict[int, tuple[int, Any]] = {}
        self.calls = 0
        self.runs = 0
        self.broken = ""
        self.settled = True
        self.user: object = None  # whose the greetings are: several engines may have this link
        self._sent: list[tuple[MPI.Request, Any]] = []
        self._given_up: list[tuple[MPI.Request, Any]] = []
        self.comm, request = comm.Idup()
        self.wait(request.Test)

    @classmethod
    def to(cls, comm: MPI.Intracomm) -> Link:
        """The link of a communicator; the first time, all its ranks must come here."""
        link = comm.Get_attr(KEY)
        if not isinstance(link, Link):
            link = cls(comm)
            comm.Set_attr(KEY, link)
        return link

    def wait(
        self, ready: Callable[[], Any], deadline: float | None = None, watch: Watch = None
    ) -> Any:
        """Return the first true value of `ready`; `watch` may raise meanwhile."""
        started, waited = time.monotonic(), 0.0
        while True:
            for _ in range(LOOKS if waited < SPIN else 1):
                if found := ready():
                    return found
            if watch is not None:
                watch()
            waited = time.monotonic() - started
            if deadline is not None and waited > deadline:
                raise late("a rank", deadline)
            os.sched_yield() if waited < SPIN else time.sleep(min(waited / 16, NAP))

    def begin(self) -> int:
        """Begin a round, and return its number."""
        if self.broken:
            raise EngineError(self.broken)
        self._done()  # forgets what has arrived
        self.runs, self.settled = self.runs + 1, self.size == 1
        return self.runs

    def send(self, message: Any, rank: int, tag: int, stamp: int) -> None:
        """Send a message to one rank."""
        head, *parts = wire.encode(message)
        self._put(HEAD.pack(stamp, ALONE) + bytes(head), rank, tag)
        for part in _chunks(parts):
            self._put(part, rank, tag + ARRAYS)

    def send_all(self, message: Any, deadline: float | None = None) -> None:
        """Send a message from rank 0 to all others.

        Arrays are seen through: nothing moves while this rank is at work of its own.
        """
        head, *parts = wire.encode(message)
        for rank, (stamp, _) in self.greetings.items():
            self._put(HEAD.pack(stamp, ALL) + bytes(head), rank, self.COMMAND)
        for part in _chunks(parts):
            self.complete(self.comm.Ibcast([part, MPI.BYTE], 0), part, deadline, self.alarm)

    def look(self, rank: int, tag: int) -> tuple[int, int, Callable[..., Any]] | None:
        """Take the head of the next message: sender, stamp, and what reads the rest."""
        status = MPI.Status()
        found = self.comm.Improbe(rank, tag, status)
        if found is None:
            return None
        head = bytearray(status.Get_count(MPI.BYTE))
        found.Recv([head, MPI.BYTE])
        sender = status.Get_source()
        stamp, kind = HEAD.unpack_from(head)

        def read(deadline: float | None = None, watch: Watch = None) -> Any:
            broken: list[BaseException] = []

            def fetch(view: memoryview) -> None:
                for part in _chunks([view]):
                    if kind == ALL:
                        request = self.comm.Ibcast([part, MPI.BYTE], 0)
                    else:
                        request = self.comm.Irecv([part, MPI.BYTE], sender, tag + ARRAYS)
                    try:
                        self.complete(request, part, deadline, watch, not broken)
                    except BaseException as error:  # what is to come is received, and forgotten
                        broken.append(error)

            try:
                return wire.decode(head[HEAD.size :], fetch, MAX_BYTES, files=True)
            finally:
                if broken:
                    raise broken[0]

        return sender, stamp, read

    def take(self, rank: int, tag: int, run: int, deadline: float | None) -> Any:
        """Receive the next message of this run from a rank; those of earlier runs are dropped."""
        watch = self.give_up if self.rank else self.alarm
        while True:
            _, stamp, read = self.wait(lambda: self.look(rank, tag), deadline, watch)
            content = read(deadline, watch)
            if stamp == run:
                return content

    def idle(self) -> bool:
        """Whether what was sent has arrived, or nearly all of it."""
        self._done()
        return len(self._sent) < AHEAD

    def called(self) -> bool:
        """Whether rank 0 has something to say."""
        return self.comm.Iprobe(0, self.COMMAND)

    def give_up(self) -> None:
        """Raise if rank 0 has gone on."""
        if self.called():
            raise GivenUp

    def alarm(self) -> None:
        """Raise if a rank has left."""
        found = self.look(MPI.ANY_SOURCE, self.ALARM)
        if found is not None:
            sender, stamp, read = found
            failure = read()
            if sender in self.greetings and stamp == self.greetings[sender][0]:
                self.broken = f"{failure.text}: that rank has left"
                raise WorkerLost(self.broken)

    def finish(self, deadline: float | None) -> None:
        """See that what was sent has arrived; give up on ranks that are not at hand."""
        with suppress(WorkerLate):
            self.wait(self._done, deadline)

    def clear(self) -> None:
        """Receive what others have sent for rounds that were given up, so that they can go."""
        with suppress(WorkerLate):
            self.wait(self._drop, self.LINGER)
        self.finish(self.GRACE)

    def dismiss(self, content: Any) -> None:
        """Let the other ranks go, if they are with rank 0."""
        for rank, (stamp, said) in self.greetings.items():
            if not getattr(said, "left", False):
                self.send(content, rank, self.COMMAND, stamp)
        if self.greetings:
            self.greetings.clear()
            self.finish(self.GRACE) if self.settled else self.clear()
            self.settled = True

    def complete(
        self, request: Any, buffer: Any, deadline: float | None, watch: Watch, wanted: bool = True
    ) -> None:
        """Wait for a request, if it is still wanted; what is given up is kept until it is done."""
        if self._given_up:
            self._given_up = [pair for pair in self._given_up if not pair[0].Test()]
        try:
            if wanted:
                self.wait(request.Test, deadline, watch)
        finally:
            if request:
                self._given_up.append((request, buffer))

    def _put(self, part: Any, rank: int, tag: int) -> None:
        self._sent.append((self.comm.Isend([part, MPI.BYTE], rank, tag), part))

    def _drop(self) -> None:
        for tag in (self.REPLY, self.PARTIAL):
            if (found := self.look(MPI.ANY_SOURCE, tag)) is not None:
                found[2](self.LINGER)

    def _done(self) -> bool:
        self._sent = [pair for pair in self._sent if not pair[0].Test()]
        return not self._sent


KEY = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, link: link.comm.Free())


def _chunks(arrays: Iterable[Any]) -> Iterator[Any]:
    for array in arrays:
        for at in range(0, len(array), CHUNK):
            yield array[at : at + CHUNK]
