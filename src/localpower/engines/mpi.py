"""Shards on the ranks of an MPI job, which rank 0 leads.

All ranks call `svd`, each with rows of its own, and get the same result. Or the others are in
`Mpi.serve`, and rank 0 alone calls `svd` with rows that it spreads over all ranks. Which of the two
it is, rank 0 learns from what the others say when it first needs them (`Mpi._collect_greetings`).

Messages are frames of `worker.wire` on a duplicate of the user's communicator: a head, sent to each
rank that it is for, then the arrays, which are broadcast where all ranks get them. Rounds are
numbered: what comes of one that was given up is received and forgotten. Whoever waits does so
politely: it soon sleeps between looks.
"""

from __future__ import annotations

import json
import os
import struct
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from operator import iadd
from typing import Any, TypeVar

import numpy as np

from localpower.core.errors import (
    DataError,
    EngineError,
    WorkerFailed,
    WorkerLate,
    WorkerLost,
)
from localpower.core.ledger import arrays
from localpower.core.linalg import FAN_IN, Array, combined
from localpower.core.rounding import from_wire
from localpower.engines.base import Engine
from localpower.engines.blas import one_blas_thread
from localpower.engines.worker import MAX_BYTES, Failure
from localpower.worker import wire
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import EngineBlock, LoadedBlock, OpenBlock, Shard
from localpower.worker.tasks import (
    Done,
    GramTriangle,
    Measure,
    MeasuredReply,
    PowerSteps,
    ProjectRows,
    Refine,
    Task,
)

try:
    from mpi4py import MPI
except RuntimeError as error:  # it is there, but has nothing to talk to
    raise EngineError(
        f"{error}; install an MPI (pip install mpich, or a module of your cluster)"
    ) from error

R = TypeVar("R")
HEAD = struct.Struct("<qq")  # before a frame: whose message it is, and how its arrays travel
ORDERS = ("fixed", "native")
ALONE, ALL = range(2)  # sent to one rank, or broadcast
COMMAND, REPLY, PARTIAL, GREETING, ALARM = range(1, 6)  # tags; arrays have one of their own
ARRAYS = 10
CHUNK = 1 << 30  # bytes of an array that are sent at once: counts of 32 bits are enough
LOOKS = 16  # at what one waits for, before others get the processor
SPIN, NAP = 5e-3, 2e-3  # seconds that one looks without a pause, and sleeps at most
GRACE = 5.0  # seconds in which ranks that are at hand must have been heard of
LINGER = 0.3  # seconds that a rank stays after a failure for what is under way to it
AHEAD = 2  # messages that a rank has under way before it works on
ROWS_SHARE = 0.75  # of memory that is for rows in files
MOST = 3  # arrays that a reply can have


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A rank has opened rows of its own; `stored` bytes of them are in files."""

    rows: int
    columns: int
    dtype: np.dtype[Any]
    nnz: int
    stored: int
    memory: int
    host: str
    names: tuple[str, ...] | None = None


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """A rank waits for whatever rank 0 sends."""


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """A rank has closed its engine without using it."""


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Hold these of all `count` shards and no others; with the rank's `own` rows, if said so."""

    run: int
    count: int
    shards: tuple[Shard, ...]
    own: bool


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Run tasks on the shards of these `numbers`: one task for all of them, or one for each.

    `how` is ``"map"``, one reply each; ``"sum"``, in the order of `fold`; or ``"native"``.
    """

    run: int
    tasks: tuple[Task[Any], ...]
    numbers: tuple[int, ...]
    how: str


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A result, whose `run` is JSON."""

    result: Any
    run: str


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Over:
    """Rank 0 is done: with an `Outcome`, a `Failure`, or nothing to say."""

    content: Any


class GivenUp(Exception):
    """Rank 0 has gone on to something else."""


class Link:
    """A communicator of our own beside the user's, kept with that for the next time.

    Requests and what they read or write are kept until they are done.
    """

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
        self._many = 16
        self.comm, request = comm.Idup()
        self.wait(request.Test)

    @classmethod
    def to(cls, comm: MPI.Intracomm) -> Link:
        """The link of a communicator; the first time, all its ranks must come here."""
        link = comm.Get_attr(KEY)
        if link is None:
            link = cls(comm)
            comm.Set_attr(KEY, link)
        assert isinstance(link, Link)
        return link

    def wait(
        self,
        ready: Callable[[], Any],
        deadline: float | None = None,
        watch: Callable[[], None] = lambda: None,
    ) -> Any:
        """Return the first true value of `ready`; `watch` may raise meanwhile."""
        if found := ready():
            return found
        started, waited, looks = time.monotonic(), 0.0, 0
        while not (found := ready()):
            looks += 1
            if looks % LOOKS and waited < SPIN:
                continue
            watch()
            waited = time.monotonic() - started
            if deadline is not None and waited > deadline:
                raise WorkerLate(
                    f"no reply from a rank within {deadline:g} s; raise engine.deadline, or end "
                    "the job (comm.Abort()) if that rank is stuck"
                )
            if waited < SPIN:
                _step_aside()
            else:
                time.sleep(min(waited / 16, NAP))
        return found

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
            self._put(HEAD.pack(stamp, ALL) + bytes(head), rank, COMMAND)
        for part in _chunks(parts):
            self._complete(self.comm.Ibcast([part, MPI.BYTE], 0), part, deadline, self.alarm)

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

        def read(deadline: float | None = None, watch: Callable[[], None] = lambda: None) -> Any:
            broken: list[BaseException] = []

            def fetch(view: memoryview) -> None:
                for part in _chunks([view]):
                    if kind == ALL:
                        request = self.comm.Ibcast([part, MPI.BYTE], 0)
                    else:
                        request = self.comm.Irecv([part, MPI.BYTE], sender, tag + ARRAYS)
                    try:
                        self._complete(request, part, deadline, watch, not broken)
                    except BaseException as error:  # what is to come is received, and forgotten
                        broken.append(error)

            try:
                return wire.decode(head[HEAD.size :], fetch, MAX_BYTES, files=True)
            finally:
                if broken:
                    raise broken[0]

        return sender, stamp, read

    def idle(self) -> bool:
        """Whether what was sent has arrived, or nearly all of it."""
        self._done()
        return len(self._sent) < AHEAD

    def called(self) -> bool:
        """Whether rank 0 has something to say."""
        return self.comm.Iprobe(0, COMMAND)

    def give_up(self) -> None:
        """Raise if rank 0 has gone on."""
        if self.called():
            raise GivenUp

    def alarm(self) -> None:
        """Raise if a rank has failed in this round."""
        found = self.look(MPI.ANY_SOURCE, ALARM)
        if found is None:
            return
        sender, stamp, read = found
        failure = read()
        if sender in self.greetings and stamp == -self.greetings[sender][0]:
            self.broken = f"{failure.traceback or failure.complaint}: that rank has left"
            raise WorkerLost(self.broken)
        if stamp == self.runs:
            raise _error(failure, WorkerFailed)

    def partial(self, rank: int, run: int, deadline: float | None) -> Any:
        """Receive what another rank has for the sum of this round."""
        watch = self.give_up if self.rank else self.alarm
        while True:
            _, stamp, read = self.wait(lambda: self.look(rank, PARTIAL), deadline, watch)
            content = read(deadline)
            if stamp == run:
                return content

    def finish(self, deadline: float | None) -> None:
        """See that what was sent has arrived; give up on ranks that are not at hand."""
        with suppress(WorkerLate):
            self.wait(self._done, deadline)

    def clear(self) -> None:
        """Receive what others have sent for rounds that were given up, so that they can go."""
        with suppress(WorkerLate):
            self.wait(self._drop, LINGER)
        self.finish(GRACE)

    def all_reduce(self, numbers: Any, operation: MPI.Op, deadline: float | None) -> None:
        """Combine arrays of all ranks in place."""
        request = self.comm.Iallreduce(MPI.IN_PLACE, numbers, operation)
        self._complete(request, numbers, deadline)

    def reduce(self, numbers: Any, deadline: float | None) -> None:
        """Add arrays of all ranks, in place at rank 0."""
        both = (numbers, None) if self.rank else (MPI.IN_PLACE, numbers)
        self._complete(self.comm.Ireduce(*both), numbers, deadline)

    def _complete(
        self,
        request: MPI.Request,
        buffer: Any,
        deadline: float | None,
        watch: Callable[[], None] = lambda: None,
        wanted: bool = True,
    ) -> None:
        if self._given_up:
            self._given_up = [pair for pair in self._given_up if not pair[0].Test()]
        try:
            if wanted:
                self.wait(request.Test, deadline, watch)
        finally:
            if request:
                self._given_up.append((request, buffer))

    def _put(self, part: Any, rank: int, tag: int) -> None:
        self._keep(self.comm.Isend([part, MPI.BYTE], rank, tag), part)

    def _keep(self, request: MPI.Request, buffer: Any) -> None:
        if len(self._sent) > self._many:
            self._done()
            self._many = 2 * len(self._sent) + 16
        self._sent.append((request, buffer))

    def _drop(self) -> None:
        for tag in (REPLY, PARTIAL):
            if (found := self.look(MPI.ANY_SOURCE, tag)) is not None:
                found[2](LINGER)

    def _done(self) -> bool:
        self._sent = [pair for pair in self._sent if not pair[0].Test()]
        return not self._sent


KEY = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, link: link.comm.Free())
_step_aside: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class Mpi(Engine):
    """Runs tasks on the ranks of a communicator; shard i lives on rank i modulo their number.

    All ranks make one. ``order="native"`` lets the library add products in an order of its own; the
    last digits then depend on the machine.
    """

    shared = True
    latency = 5e-4
    bandwidth = 5e8

    def __init__(
        self, address: MPI.Intracomm | str | None = None, size: int | None = None, *,
        order: str = "fixed",
    ) -> None:  # fmt: skip
        if order not in ORDERS:
            raise ValueError(f"order={order!r} is not known: take one of {', '.join(ORDERS)}")
        if isinstance(address, str):
            raise ValueError(
                f"engine={address!r}: an MPI job has no address; start it with mpiexec, and give "
                "'mpi' or a communicator"
            )
        comm = MPI.COMM_WORLD if address is None else address
        if comm == MPI.COMM_NULL:
            raise ValueError("engine= is MPI.COMM_NULL: this process is not in the communicator")
        if comm.Is_inter():
            raise ValueError("an intercommunicator has two groups of ranks: merge them before")
        if size not in (None, comm.Get_size()):
            raise ValueError(
                f"'mpi:{size}' in a job of {comm.Get_size()} ranks: start it with mpiexec -n {size}"
            )
        self.order = order
        self._link = link = Link.to(comm)
        self._me = object()
        self._used = False
        self._own: Shard | None = None
        self._kept: Sequence[str] = ()
        self._matrices: dict[int, LocalMatrix] = {}
        self._count = 0
        self._open = ExitStack()
        self._end = weakref.finalize(self, _leave, link, self._me)

    @property
    def rank(self) -> int:
        """The number of this process in the communicator."""
        return self._link.rank

    @property
    def size(self) -> int:
        return self._link.size

    def serve(self) -> None:
        """On all ranks but 0: work for rank 0, until that closes its engine."""
        if self.rank == 0:
            raise EngineError("rank 0 leads: call serve() on all other ranks")
        content = self._obey(Serving())
        if isinstance(content, Failure):
            raise _error(content, EngineError)

    def run_on_coordinator(self, run: Callable[[], R], data: Any, open_block: OpenBlock) -> R:
        if self.rank:
            joined: R = self._join(data, open_block)
            return joined
        self._collect_greetings()
        if not self._together():
            return run()
        try:
            result = run()
            self._link.send_all(Over(_packed(result)))
        except BaseException as error:
            _dismiss(self._link, _translated_errors(error, self.rank))
            raise
        finally:
            self._release()
        self._link.finish(None)
        self._link.greetings.clear()
        return result

    def takes(self, data: Any) -> bool:
        return self._together() or (self.size == 1 and _is_function(data))

    def adopt(self, data: Any, open_block: OpenBlock) -> Sequence[EngineBlock]:
        self._own, mine = _open_rows(data, self.rank, open_block, self._open)
        parts = [mine, *(self._link.greetings[rank][1] for rank in range(1, self.size))]
        for rank, part in enumerate(parts):
            if isinstance(part, Failure):
                raise _error(part, EngineError)
            if part.columns != mine.columns:
                raise DataError(
                    f"rank {rank} has {part.columns} columns where rank 0 has {mine.columns}; all "
                    "ranks need the same columns in the same order"
                )
        self._kept = [_keep(part, parts) for part in parts]
        return [
            EngineBlock(rank, (part.rows, part.columns), part.dtype, part.nnz, names=part.names)
            for rank, part in enumerate(parts)
        ]

    def place(self, shards: Sequence[Shard]) -> None:
        self._collect_greetings()
        self._check()
        if not self._matrices:
            self._open.enter_context(one_blas_thread())
        super().place(shards)
        own = any(isinstance(piece, EngineBlock) for shard in shards for piece in shard.pieces)
        if own:
            bare = [replace(shard, pieces=()) for shard in shards]
            shards = [replace(s, keep=keep) for s, keep in zip(bare, self._kept, strict=True)]
        self._link.runs += 1
        for rank in range(self.size):
            hold = Hold(self._link.runs, len(shards), tuple(shards[rank :: self.size]), own)
            if rank:
                self._link.send(hold, rank, COMMAND, self._link.greetings[rank][0])
            else:
                self._hold(hold)
        for rank in range(1, self.size):
            self._reply(rank, self.deadline)

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        numbers = self.numbers(order)
        run = self._ask(task, numbers, "map")
        mine = deque(number for number in numbers if number % self.size == 0)
        ahead: list[R] = []
        late: dict[int, WorkerLate] = {}
        for number in numbers:
            rank = number % self.size
            if self._link.runs != run:
                raise EngineError("another task was sent before all replies to this were taken")
            if mine and not ahead:
                ahead.append(self._run(task.for_shard(mine[0]), mine.popleft()))
            if rank in late:
                continue
            try:
                yield self._reply(rank, LINGER if late else self.deadline) if rank else ahead.pop()
            except WorkerLate as error:  # others have had their time, too, and may be done
                late[rank] = error
        for problem in late.values():
            raise problem
        self._link.settled = run == self._link.runs

    def sum(self, task: Task[R]) -> R:
        native = self.order == "native" and _adds_up(task)
        if self.size == 1 or (len(self.rows) <= FAN_IN and not native):
            return super().sum(task)
        run = self._ask(task, self.numbers(), "native" if native else "sum")
        total: R = (self._reduced if native else self._added)(run, task.for_shard)
        self._link.settled = True
        return total

    def close(self) -> None:
        self._release()
        unused, self._used = not self._used, True
        if unused and self.rank:
            self._greet(Left())
        elif unused and not self._link.greetings:
            self._link.user, limit = self._me, GRACE
            for rank in range(1, self.size):  # they wait for rank 0, unless they failed
                try:
                    self._hear(rank, limit)
                except WorkerLate:
                    limit = 0.0
        self._end()

    def _release(self) -> None:
        self._matrices, self._own = {}, None
        self._open.close()
        super().close()

    # What rank 0 does.

    def _together(self) -> bool:
        """Whether the other ranks have brought rows of their own."""
        return any(isinstance(said, Joined | Failure) for _, said in self._link.greetings.values())

    def _hear(self, rank: int, deadline: float | None) -> None:
        """Wait for the greeting of a rank, once."""
        link = self._link
        if rank not in link.greetings:
            _, stamp, read = link.wait(lambda: link.look(rank, GREETING), deadline)
            link.greetings[rank] = stamp, read()
            link.broken = ""

    def _collect_greetings(self) -> None:
        """Learn what the other ranks are about; they stay at it until they are dismissed."""
        if self.rank:
            raise EngineError("rank 0 leads: other ranks call svd with it, or serve()")
        self._used, self._link.user = True, self._me
        for rank in range(1, self.size):
            self._hear(rank, None)
        kinds = {type(said) for _, said in self._link.greetings.values()}
        if Left in kinds or (Serving in kinds and len(kinds) > 1):
            problem = "some ranks serve, and others have brought rows or closed the engine"
            _dismiss(self._link, Failure(problem))
            raise EngineError(f"{problem}: all must do the same")

    def _check(self) -> None:
        if self._link.broken:
            raise EngineError(self._link.broken)

    def _ask(self, task: Task[Any], numbers: Sequence[int], how: str) -> int:
        """Send a task to the ranks that have a part in it; return the number of the round."""
        self._check()
        if not self.rows:
            raise EngineError("this engine holds no shards: place them first")
        link = self._link
        link.runs += 1
        if self.size == 1:
            return link.runs
        link.settled = False
        same = not numbers or task.for_shard(numbers[0]) is task
        ranks = {number % self.size for number in numbers} if how == "map" else set(link.greetings)
        if same and ranks.issuperset(link.greetings):
            link.send_all(Ask(link.runs, (task,), tuple(numbers), how), self.deadline)
            return link.runs
        for rank in sorted(ranks - {0}):
            held = tuple(number for number in numbers if number % self.size == rank)
            each = (task,) if same else tuple(task.for_shard(number) for number in held)
            ask = Ask(link.runs, each, held, how)
            link.send(ask, rank, COMMAND, link.greetings[rank][0])
        return link.runs

    def _reply(self, rank: int, deadline: float | None) -> Any:
        """Take the next reply of a rank in this round; skip those that nobody took before."""
        link = self._link
        while True:
            _, stamp, read = link.wait(lambda: link.look(rank, REPLY), deadline, link.alarm)
            reply = read(deadline, link.alarm)
            if stamp == link.runs:
                return reply

    # What the other ranks do.

    def _join(self, data: Any, open_block: OpenBlock) -> Any:
        """Serve the rows of this rank; return what rank 0 returns, or raise what it says."""
        greeting: Joined | Failure
        try:
            self._own, greeting = _open_rows(data, self.rank, open_block, self._open)
        except (DataError, EngineError) as error:
            greeting = _translated_errors(error, self.rank)
        except BaseException as error:  # an interrupt: the others are told, and not waited for
            self._greet(_translated_errors(error, self.rank))
            self._link.finish(GRACE)
            raise
        try:
            content = self._obey(greeting)
        finally:
            self._release()
        if isinstance(content, Failure):
            raise _error(content, EngineError)
        if not isinstance(content, Outcome):
            raise EngineError("rank 0 closed the engine before it used it")
        return _unpacked(content)

    def _greet(self, greeting: Any) -> None:
        self._used = True
        self._link.calls += 1
        self._link.send(greeting, 0, GREETING, self._link.calls)

    def _obey(self, greeting: Any) -> Any:
        """Do what rank 0 sends until that is over; return the last it has to say."""
        self._greet(greeting)
        content: Any = Failure("")
        try:
            with one_blas_thread():
                content = self._serve()
        except BaseException as error:
            self._alarm(error, -self._link.calls)
            raise
        finally:
            self._matrices = {}
            self._link.clear() if isinstance(content, Failure) else self._link.finish(GRACE)
        return content

    def _serve(self) -> Any:
        link = self._link
        work: deque[tuple[int, int, Task[Any]]] = deque()
        while True:
            found = link.wait(lambda: (link.idle() and bool(work)) or link.look(0, COMMAND))
            if found is True:
                self._answer(work)
                continue
            _, stamp, read = found
            message = read()
            if stamp != link.calls:  # of a call that this rank has left
                continue
            work.clear()
            if isinstance(message, Over):
                return message.content
            try:
                work.extend(self._begin(message))
            except (DataError, EngineError) as error:
                self._alarm(error, message.run)
            except GivenUp:
                pass
            del message  # it has arrays, and the next may be long in coming

    def _answer(self, work: deque[tuple[int, int, Task[Any]]]) -> None:
        """Do what is next and reply, unless it has been given up."""
        run, number, task = work.popleft()
        try:
            reply = self._run(task, number)
            if self._link.called():
                work.clear()
            else:
                self._link.send(reply, 0, REPLY, run)
        except (DataError, EngineError) as error:
            self._alarm(error, run)
            work.clear()

    def _begin(self, message: Hold | Ask) -> Iterator[tuple[int, int, Task[Any]]]:
        """Do what rank 0 asks at once; yield what can be done bit by bit."""
        if isinstance(message, Hold):
            self._hold(message)
            self._link.send(Done(), 0, REPLY, message.run)
            return
        mine = [n for n in message.numbers if n % self.size == self.rank]
        each = message.tasks if len(message.tasks) > 1 else message.tasks * len(mine)
        if message.how == "map":
            yield from ((message.run, *pair) for pair in zip(mine, each, strict=True))
            return
        tasks = dict(zip(mine, each, strict=True))
        how = self._added if message.how == "sum" else self._reduced
        how(message.run, tasks.__getitem__)

    def _alarm(self, error: BaseException, run: int) -> None:
        self._link.send(_translated_errors(error, self.rank), 0, ALARM, run)

    # What all ranks do.

    def _hold(self, message: Hold) -> None:
        shards = message.shards
        if message.own:
            assert self._own is not None
            shards = tuple(replace(shard, pieces=self._own.pieces) for shard in shards)
        numbers = range(self.rank, message.count, self.size)
        self._matrices = dict(zip(numbers, map(LocalMatrix, shards), strict=True))
        self._count = message.count

    def _run(self, task: Task[R], number: int) -> R:
        try:
            return task(self._matrices[number])
        except DataError:
            raise
        except Exception as error:
            trace = traceback.format_exc()
            raise WorkerFailed(f"a task failed on rank {self.rank}:\n{trace}") from error

    def _added(self, run: int, task: Callable[[int], Task[Any]]) -> Any:
        """Add the replies of all shards on the ranks, in the order of `fold`; rank 0 has the sum.

        A group of eight is added by one of the ranks that have a part of it, the last by rank 0.
        """
        link = self._link
        deadline = None if self.rank else self.deadline
        homes = [number % self.size for number in range(self._count)]
        sums: dict[int, Any] = {}

        def part(number: int) -> Any:
            return sums.pop(number) if sums else self._run(task(number), number)

        while True:
            groups = [range(len(homes))[at : at + FAN_IN] for at in range(0, len(homes), FAN_IN)]
            owners = [homes[group[i % len(group)]] for i, group in enumerate(groups)]
            owners = owners if len(groups) > 1 else [0]
            above: dict[int, Any] = {}
            for i, (group, owner) in enumerate(zip(groups, owners, strict=True)):
                mine = {n: part(n) for n in group if homes[n] == self.rank}
                if owner == self.rank:
                    parts = (
                        mine.pop(n) if n in mine else link.partial(homes[n], run, deadline)
                        for n in group
                    )
                    above[i] = combined(iadd, parts)
                for content in mine.values():
                    link.send(content, owner, PARTIAL, run)
            if len(groups) == 1:
                return above.get(0)
            sums, homes = above, owners

    def _reduced(self, run: int, task: Callable[[int], Task[Any]]) -> Any:
        """Add replies that are plain sums with the library's own reduction."""
        deadline = None if self.rank else self.deadline
        link, reply, error = self._link, None, None
        try:
            if self._matrices:
                replies = (self._run(task(n), n) for n in self._matrices)
                reply = combined(iadd, replies)
        except (DataError, EngineError) as caught:
            error, reply = caught, None
        sums, counts = _wide(reply)
        sizes = [A.size for A in sums.values()]
        state = np.array([error is not None, *sizes, *(MOST - len(sizes)) * [0]], np.int64)
        link.broken = "a sum was given up while ranks were adding; start the job again"
        link.all_reduce(state, MPI.MAX, deadline)
        if not state[0]:
            for A in sums.values() if sums else map(np.zeros, state[1:]):
                if A.size:
                    link.reduce(A, deadline)
            link.reduce(counts, deadline)
        link.broken = ""
        if error is not None:
            raise error
        if state[0] and not self.rank:
            link.wait(lambda: False, deadline, link.alarm)
        return None if self.rank else _summed(reply, task(0), sums, counts)


def _chunks(arrays: Iterable[Any]) -> Iterator[Any]:
    for array in arrays:
        for at in range(0, len(array), CHUNK):
            yield array[at : at + CHUNK]


def _leave(link: Link, engine: object) -> None:
    """Let the other ranks go, if they are with rank 0 for this engine and not for a later one."""
    if link.user is engine:
        _dismiss(link, Done())


def _dismiss(link: Link, content: Any) -> None:
    """Let the other ranks go, if they are with rank 0."""
    for rank, (stamp, said) in link.greetings.items():
        if not isinstance(said, Left):
            link.send(Over(content), rank, COMMAND, stamp)
    if link.greetings:
        link.greetings.clear()
        link.finish(GRACE) if link.settled else link.clear()
        link.settled = True


def _translated_errors(error: BaseException, rank: int) -> Failure:
    """What other ranks are told of an exception."""
    if isinstance(error, DataError):
        return Failure("", str(error))
    return Failure(str(error) if isinstance(error, EngineError) else _named(error, rank))


def _named(error: BaseException, rank: int) -> str:
    return f"rank {rank}: {type(error).__name__}: {error}".removesuffix(": ")


def _error(failure: Failure, kind: type[EngineError]) -> DataError | EngineError:
    return DataError(failure.complaint) if failure.complaint else kind(failure.traceback)


def _open_rows(
    data: Any, rank: int, open_block: OpenBlock, stack: ExitStack
) -> tuple[Shard, Joined]:
    """Rows of a rank as a shard, and what rank 0 must know of them; errors name the rank."""
    try:
        rows = data(rank) if _is_function(data) else data
        if rows is not data and hasattr(rows, "close"):
            stack.callback(rows.close)
        known = hasattr(rows, "pieces")  # it was opened before, by `localpower.read`
        opened = LoadedBlock(rows.pieces, rows.tables[0].names) if known else open_block(rows)
        pieces = opened.pieces
        narrow = all(piece.dtype.kind == "f" and piece.dtype.itemsize < 8 for piece in pieces)
        dtype = rows.dtype if known else np.dtype(np.float32 if narrow else np.float64)
        shard = Shard(tuple(pieces), pieces[0].shape[1], dtype)
    except DataError as error:
        raise DataError(f"rank {rank}: {error}") from error
    except Exception as error:
        raise EngineError(_named(error, rank)) from error
    memory = rows.memory if known else _free() // 2
    host = MPI.Get_processor_name()
    told = Joined(
        shard.rows, shard.columns, dtype, shard.entries, shard.stored, memory, host, opened.names
    )
    return shard, told


def _is_function(data: Any) -> bool:
    return callable(data) and not any(hasattr(data, n) for n in ("__array__", "tocsr", "shape"))


def _free() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 4 << 30


def _keep(part: Joined, parts: Sequence[Joined]) -> str:
    """How long a rank keeps rows of files: for the run, if those of all on its machine fit."""
    together = [other for other in parts if other.host == part.host]
    room = ROWS_SHARE * min(other.memory for other in together)
    return "run" if sum(other.stored for other in together) <= room else "block"


def _adds_up(task: Task[Any]) -> bool:
    """Whether the replies are arrays of which nothing but the sum is wanted."""
    inner = task.task if isinstance(task, Measure) else task
    inner = inner.for_shard(0)
    plain = isinstance(inner, PowerSteps | ProjectRows | Refine | GramTriangle)
    return plain and not getattr(inner, "send_basis", False)


def _wide(reply: Any) -> tuple[dict[str, Array], Any]:
    """Arrays of a reply in float64, to be added in place, and what it weighs."""
    if reply is None:
        return {}, np.zeros(4, np.int64)
    content = reply.content if isinstance(reply, MeasuredReply) else reply
    wide = {name: np.require(from_wire(A), requirements="W") for name, A in arrays(content)}
    weight = (
        (reply.words, reply.size, reply.read, reply.count) if content is not reply else 4 * (0,)
    )
    return wide, np.array(weight, np.int64)


def _summed(reply: Any, task: Any, sums: dict[str, Array], counts: Any) -> Any:
    """Put sums in the place of what a reply to a task has."""
    if not isinstance(reply, MeasuredReply):
        return replace(reply, **sums)
    names = ("words", "size", "read", "count")
    total = replace(reply.content, **sums)
    weight = dict(zip(names, counts.tolist(), strict=True))
    return replace(reply, content=total, key=task.key, **weight)


def _packed(result: Any) -> Outcome:
    """A result as a message; what a run was asked is JSON, as in a saved model."""
    return Outcome(replace(result, run=None), json.dumps(dict(result.run)))


def _unpacked(outcome: Outcome) -> Any:
    return replace(outcome.result, run=json.loads(outcome.run))
