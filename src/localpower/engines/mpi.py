"""Shards on the ranks of an MPI job, which rank 0 leads.

All ranks call `svd`, each with rows of its own, and get the same result. Or the others are in
`Mpi.serve`, and rank 0 alone calls `svd` with rows that it spreads over all ranks. Which of the two
it is, rank 0 learns from what the others say when it first needs them (`Mpi._collect_greetings`).
"""

from __future__ import annotations

import json
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from typing import Any, cast

from localpower.core.errors import DataError, EngineError, WorkerLate
from localpower.core.machine import ROWS_SHARE, available
from localpower.engines.blas import one_blas_thread
from localpower.engines.cluster import ClusterEngine, grouped
from localpower.engines.mpi_link import MPI, GivenUp, Hold, Idle, Link, RunTasks
from localpower.worker.host import Failure, ShardHost, describe, result_of
from localpower.worker.replies import Done
from localpower.worker.shard import EngineBlock, LoadedBlock, OpenBlock, is_function, is_stored
from localpower.worker.tasks import R, Task


class Mpi(ClusterEngine):
    """Runs tasks on the ranks of a communicator; shard i lives on rank i modulo their number."""

    shared = True
    latency = 5e-4
    bandwidth = 5e8

    def __init__(self, address: Any = None, size: int | None = None) -> None:
        super().__init__()
        if isinstance(address, str):
            raise ValueError(
                f"engine={address!r}: an MPI job has no address; start it with mpiexec, and give "
                "'mpi' or a communicator"
            )
        comm = MPI.COMM_WORLD if address is None else address
        if comm == MPI.COMM_NULL or comm.Is_inter():
            raise ValueError(
                f"engine={comm}: give an intracommunicator that this process is in, not COMM_NULL"
            )
        if size not in (None, comm.Get_size()):
            raise ValueError(
                f"'mpi:{size}' in a job of {comm.Get_size()} ranks: start it with mpiexec -n {size}"
            )
        self._link = link = Link.to(comm)
        self.rank, self._size = link.rank, link.size  # which of them this process is
        self._used = False
        self._block: Callable[[], LoadedBlock] | None = None  # rows of this rank
        self._kept: Sequence[str] = ()
        self._host = ShardHost(f"on rank {link.rank}")
        self._end = weakref.finalize(self, _leave, link, self._host)

    def serve(self) -> None:
        """On all ranks but 0: work for rank 0, until that closes its engine."""
        if self.rank == 0:
            raise EngineError("rank 0 leads: call serve() on all other ranks")
        result_of(self._obey(Idle()))

    def run_on_coordinator(self, run: Callable[[], R], data: Any, open_block: OpenBlock) -> R:
        if self.rank:
            return cast(R, self._join(data, open_block))
        self._collect_greetings()
        if not self._together():
            return run()
        try:
            result: Any = run()
            self._link.send_all(replace(result, run=json.dumps(dict(result.run))))  # as when saved
        except BaseException as error:
            self._link.dismiss(_told(error, self.rank))
            raise
        finally:
            self._let_go()
        self._link.finish(None)
        self._link.greetings.clear()
        return cast(R, result)

    def takes(self, data: Any) -> bool:
        return self._together() or (self.size == 1 and is_function(data))

    def close(self) -> None:
        self._let_go()
        unused, self._used = not self._used, True
        if unused and self.rank:
            self._greet(Idle(left=True))
        elif unused and not self._link.greetings:
            self._link.user = self._host
            with suppress(WorkerLate):  # they wait for rank 0, unless they failed
                for rank in range(1, self.size):
                    self._hear(rank, Link.GRACE)
        self._end()

    def _let_go(self) -> None:
        self._host.forget()
        self._block = None
        super().close()

    # What rank 0 does: the hooks of the driver, and the other ranks' greetings.

    def _gather(self, count: int, adopted: bool) -> None:
        self._collect_greetings()
        if not self._host.numbers():
            self._stack.enter_context(one_blas_thread())

    def _open(self, data: Any, open_block: OpenBlock) -> Iterator[tuple[Any, Any]]:
        mine: Any = self._joined(data, open_block)
        parts = [mine, *(self._link.greetings[rank][1] for rank in range(1, self.size))]
        for rank, part in enumerate(map(result_of, parts)):
            columns, wanted = part.shape[1], mine.shape[1]
            if columns != wanted:
                raise DataError(
                    f"rank {rank} has {columns} columns where rank 0 has {wanted}; all ranks need "
                    "the same columns in the same order"
                )
        self._kept = _keep([part.handle for part in parts])
        return enumerate(parts)

    def _hold(self, numbers: Sequence[int]) -> None:
        shards, own = self._shards, self._handle(0) is not None
        if own:
            shards = [replace(self._frame(n), keep=keep) for n, keep in enumerate(self._kept)]
        run, link = self._link.begin(), self._link
        parts = [tuple(shards[rank :: self.size]) for rank in range(self.size)]
        for rank, (stamp, _) in link.greetings.items():
            link.send(Hold(run, parts[rank], own), rank, Link.COMMAND, stamp)
        result_of(self._take_in(Hold(run, parts[0], own)))
        for rank in link.greetings:
            result_of(link.take(rank, Link.REPLY, run, self.deadline))

    def _exchange(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Any]:
        run, link = self._ask(task, numbers, added=False), self._link
        own = (self._host.run(n, task.for_shard(n)) for n in numbers if n % self.size == 0)
        ahead: list[Any] = []
        late: dict[int, WorkerLate] = {}
        for number in numbers:
            rank = number % self.size
            if link.runs != run:
                raise EngineError("another task was sent before all replies to this were taken")
            ahead += islice(own, 1 - len(ahead))
            if rank in late:
                continue
            patience = Link.LINGER if late else self.deadline  # others had their time, too
            try:
                yield link.take(rank, Link.REPLY, run, patience) if rank else ahead.pop()
            except WorkerLate as error:
                late[rank] = error
        if late:
            raise next(iter(late.values()))
        link.settled = run == link.runs

    def _partial_sums(self, task: Task[Any]) -> Iterator[Any]:
        run = self._ask(task, self.numbers(), added=True)
        yield self._added(run, len(self.rows), task.for_shard)
        self._link.settled = True

    def _together(self) -> bool:
        """Whether the other ranks have brought rows of their own."""
        return not all(isinstance(said, Idle) for _, said in self._link.greetings.values())

    def _hear(self, rank: int, deadline: float | None) -> None:
        """Wait for the greeting of a rank, once."""
        link = self._link
        if rank not in link.greetings:
            _, stamp, read = link.wait(lambda: link.look(rank, Link.GREETING), deadline)
            link.greetings[rank] = stamp, read()
            link.broken = ""

    def _collect_greetings(self) -> None:
        """Learn what the other ranks are about; they stay at it until they are dismissed."""
        if self.rank:
            raise EngineError("rank 0 leads: other ranks call svd with it, or serve()")
        self._used, self._link.user = True, self._host
        for rank in range(1, self.size):
            self._hear(rank, None)
        idle = [said.left for _, said in self._link.greetings.values() if isinstance(said, Idle)]
        if any(idle) or 0 < len(idle) < self.size - 1:
            problem = "some ranks serve, and others have brought rows or closed the engine"
            self._link.dismiss(Failure(problem, "EngineError"))
            raise EngineError(f"{problem}: all must do the same")

    def _ask(self, task: Task[Any], numbers: Sequence[int], added: bool) -> int:
        """Send a task to the ranks that have a part in it; return the number of the round."""
        link = self._link
        run = link.begin()
        same = not numbers or task.for_shard(numbers[0]) is task
        ranks = set(link.greetings) if added else {number % self.size for number in numbers}
        if same and ranks.issuperset(link.greetings):
            link.send_all(RunTasks(run, (task,), tuple(numbers), added), self.deadline)
            return run
        for rank in sorted(ranks - {0}):
            held = (number for number in numbers if number % self.size == rank)
            each = (task,) if same else tuple(map(task.for_shard, held))
            ask = RunTasks(run, each, tuple(numbers), added)
            link.send(ask, rank, Link.COMMAND, link.greetings[rank][0])
        return run

    # What the other ranks do.

    def _join(self, data: Any, open_block: OpenBlock) -> Any:
        """Serve the rows of this rank; return what rank 0 returns, or raise what it says."""
        try:
            greeting = self._joined(data, open_block)
        except BaseException as error:  # an interrupt: the others are told, and not waited for
            self._greet(_told(error, self.rank))
            self._link.finish(Link.GRACE)
            raise
        try:
            result = result_of(self._obey(greeting))
        finally:
            self._let_go()
        if isinstance(result, Done):
            raise EngineError("rank 0 closed the engine before it used it")
        return replace(result, run=json.loads(result.run))

    def _greet(self, greeting: Any) -> None:
        self._used = True
        self._link.calls += 1
        self._link.send(greeting, 0, Link.GREETING, self._link.calls)

    def _obey(self, greeting: Any) -> Any:
        """Do what rank 0 sends until that is over; return the last it has to say."""
        self._greet(greeting)
        last: Any = Failure("")
        try:
            with one_blas_thread():
                last = self._serve()
        except BaseException as error:
            self._link.send(_told(error, self.rank), 0, Link.ALARM, self._link.calls)
            raise
        finally:
            self._host.forget()
            self._link.clear() if isinstance(last, Failure) else self._link.finish(Link.GRACE)
        return last

    def _serve(self) -> Any:
        link = self._link
        work: deque[tuple[int, int, Task[Any]]] = deque()
        while True:
            found = link.wait(lambda: (link.idle() and bool(work)) or link.look(0, Link.COMMAND))
            if found is True:
                run, number, task = work.popleft()
                reply = self._host.run(number, task)
                work.clear() if link.called() else link.send(reply, 0, Link.REPLY, run)
                continue
            _, stamp, read = found
            message = read()
            if stamp != link.calls:  # of a call that this rank has left
                continue
            work.clear()
            if not isinstance(message, Hold | RunTasks):
                return message
            with suppress(GivenUp):
                work.extend(self._begin(message))
            del message  # it has arrays, and the next may be long in coming

    def _begin(self, message: Hold | RunTasks) -> Iterator[tuple[int, int, Task[Any]]]:
        """Do what rank 0 asks at once; yield what can be done bit by bit."""
        if isinstance(message, Hold):
            self._link.send(self._take_in(message), 0, Link.REPLY, message.run)
            return
        mine = [n for n in message.numbers if n % self.size == self.rank]
        each = message.tasks if len(message.tasks) > 1 else message.tasks * len(mine)
        tasks = dict(zip(mine, each, strict=True))
        if message.added:
            self._added(message.run, len(message.numbers), tasks.__getitem__)
        else:
            yield from ((message.run, *pair) for pair in tasks.items())

    # What all ranks do.

    def _joined(self, data: Any, open_block: OpenBlock) -> EngineBlock | Failure:
        """Open the rows of this rank, and tell what rank 0 must know of them.

        The handle has their bytes in files, the memory for these, and the name of the machine.
        """
        try:
            given = data(self.rank) if is_function(data) else data
            if given is not data and hasattr(given, "close"):
                self._stack.callback(given.close)
            known = hasattr(given, "pieces")  # it was opened before, by `localpower.read`
            read = LoadedBlock(tuple(given.pieces), given.tables[0].names) if known else None
            rows = read or open_block(given)
        except DataError as error:
            return Failure(f"rank {self.rank}: {error}", "DataError")
        except Exception as error:
            return _told(error, self.rank)
        self._block, block = lambda: rows, describe(rows)
        stored = sum(piece.nbytes for piece in rows.pieces if is_stored(piece))
        memory = given.memory if known else available() // 2
        handle = stored, memory, MPI.Get_processor_name()
        return replace(block, handle=handle, dtype=given.dtype if known else block.dtype)

    def _take_in(self, message: Hold) -> Any:
        """Hold shards; reply that it is done, or what has failed."""
        self._host.forget()
        block = self._block if message.own else None
        pairs = zip(count(self.rank, self.size), message.shards, strict=False)
        replies = [self._host.hold(number, shard, block) for number, shard in pairs]
        return next((reply for reply in replies if isinstance(reply, Failure)), Done())

    def _added(self, run: int, shards: int, task: Callable[[int], Task[Any]]) -> Any:
        """Add the replies of all shards on the ranks, in the order of `fold`; rank 0 has the sum.

        A group of eight is added by one of the ranks that have a part of it, the last by rank 0.
        """
        deadline = None if self.rank else self.deadline
        homes = [number % self.size for number in range(shards)]
        sums: dict[int, Any] = {}

        def part(n: int) -> Any:
            return sums.pop(n) if sums else self._host.run(n, task(n))

        while True:
            groups = grouped(range(len(homes)))
            owners = [homes[group[i % len(group)]] for i, group in enumerate(groups)]
            owners = owners if len(groups) > 1 else [0]
            above: dict[int, Any] = {}
            for i, (group, owner) in enumerate(zip(groups, owners, strict=True)):
                mine = {n: part(n) for n in group if homes[n] == self.rank}
                if owner == self.rank:
                    for n in group:
                        if n not in mine:
                            mine[n] = self._link.take(homes[n], Link.PARTIAL, run, deadline)
                    above[i] = self._host.add([mine.pop(n) for n in group])
                for content in mine.values():
                    self._link.send(content, owner, Link.PARTIAL, run)
            if len(groups) == 1:
                return above.get(0)
            sums, homes = above, owners


def _leave(link: Link, engine: object) -> None:
    """Let the other ranks go, if they are with rank 0 for this engine and not for a later one."""
    if link.user is engine:
        link.dismiss(Done())


def _told(error: BaseException, rank: int) -> Failure:
    if isinstance(error, DataError | EngineError):
        return Failure.of(error, "")
    name = f"rank {rank}: {type(error).__name__}: {error}".removesuffix(": ")
    return Failure(name, "EngineError")


def _keep(handles: Sequence[tuple[int, int, str]]) -> list[str]:
    """How long ranks keep rows of files: for the run, if those of all on their machine fit."""
    fits = {}
    for machine in {machine for _, _, machine in handles}:
        together = [(stored, memory) for stored, memory, host in handles if host == machine]
        sizes, rooms = zip(*together, strict=True)
        fits[machine] = sum(sizes) <= ROWS_SHARE * min(rooms)
    return ["run" if fits[machine] else "block" for _, _, machine in handles]
