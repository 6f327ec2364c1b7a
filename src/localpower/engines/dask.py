"""Shards on the workers of a Dask cluster.

A shard is the result of a Dask task, and stays where that ran. Dask makes it again when its worker
is lost, if it knows how: from the graph of a Dask collection, or from files. Rows that came from
this process are placed again by `heal`.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import dask.config
import distributed
import numpy as np
from dask.array import blockwise
from dask.base import is_dask_collection
from dask.delayed import Delayed, delayed
from dask.sizeof import sizeof
from distributed import Client, Future, KilledWorker

from localpower.core.errors import DataError, LocalPowerError, WorkerFailed, WorkerLate, WorkerLost
from localpower.core.ledger import regular
from localpower.core.linalg import FAN_IN
from localpower.engines import dask_cluster
from localpower.engines.blas import one_thread_in_worker
from localpower.engines.cluster import grouped
from localpower.engines.dask_cluster import DaskWorkers, gone, resource
from localpower.worker.host import Failure, ShardHost, describe, nbytes, result_of, work_type
from localpower.worker.shard import (
    EngineBlock,
    LoadedBlock,
    OpenBlock,
    Shard,
    is_stored,
    join_columns,
)
from localpower.worker.tasks import Task

SHARE = 0.5  # of the workers' memory, that adopted rows may take
WHERE = "on a Dask worker"
State = tuple[ShardHost, Any]  # the host of one shard, and its last reply to a task that persists
_dask: Any = distributed  # most of it has no types
_sizeof: Any = sizeof
_blockwise: Any = blockwise


@dataclass(slots=True, eq=False)
class Block:
    """One block of a Dask collection: how its rows are opened, and those if they are."""

    recipe: Delayed
    kept: bool = True
    rows: Future[Any] | None = None


# What runs on workers.


def _hold(rows: LoadedBlock, shard: Shard, persisting: Task[Any] | None) -> State:
    """Take rows in, aligned once: those that come over the network are not, nor may others be."""
    host, whole = ShardHost(WHERE), replace(shard, pieces=regular(rows.pieces))
    with one_thread_in_worker():
        return host, result_of(host.hold(0, whole, persisting=regular(persisting)))


def _run(state: State, task: Task[Any]) -> Any:
    with one_thread_in_worker():
        return state[0].run(0, regular(task))


def _change(state: State, task: Task[Any]) -> State:
    host = state[0].copy()  # rows are shared; Dask may need the old state once more
    return host, _run((host, None), task)


def _reply(state: State) -> Any:
    return state[1]


def _same(reply: Any) -> Any:
    return reply


def _pass(rows: LoadedBlock, shard: Shard, task: Task[Any], persisting: Task[Any] | None) -> Any:
    """Run a task on rows that are not kept."""
    host = ShardHost(WHERE, kept=False)
    held = host.hold(0, replace(shard, pieces=rows.pieces), persisting=regular(persisting))
    return held if isinstance(held, Failure) else _run((host, None), task)


def _added(replies: list[Any]) -> Any:
    with one_thread_in_worker():
        return ShardHost(WHERE).add(replies)


def _opened(
    parts: list[Any], open_block: OpenBlock, declared: tuple[int, int] | None = None
) -> LoadedBlock:
    """Open a block, whose columns may be in several parts."""
    rows = open_block(parts[0] if len(parts) == 1 else join_columns(parts))
    if declared is not None and describe(rows).shape != declared:
        raise DataError(
            f"a chunk of data has shape {describe(rows).shape} where {declared} is declared; "
            "declare what it has, or call .compute_chunk_sizes()"
        )
    return rows


def _measure(rows: LoadedBlock) -> tuple[EngineBlock, int]:
    """Tell what a block is, and how many bytes it takes."""
    return describe(rows), nbytes(rows.pieces)


_sizeof.register(ShardHost, lambda host: host.nbytes)
_sizeof.register(LoadedBlock, lambda rows: nbytes(rows.pieces))


class Dask(DaskWorkers):
    """Runs tasks on a Dask cluster: the user's, or one of `size` processes on this machine.

    Blocks of Dask arrays and frames become shards where Dask makes them. As many as take no more
    than `memory` bytes together (by default half of what the workers have) are kept; the others are
    made again for every task, from their graph.
    """

    latency = 3e-2
    bandwidth = 3e8

    def __init__(self, address: str | Client | None = None, size: int | None = None) -> None:
        super().__init__(address, size)
        self._release()

    def takes(self, data: Any) -> bool:
        if isinstance(data, list | tuple | Future | Delayed):
            parts = _listed(data)
            return bool(parts) and all(isinstance(part, Future | Delayed) for part in parts)
        of_dask = type(data).__module__.partition(".")[0] in ("dask", "dask_expr")
        return of_dask and is_dask_collection(data) and getattr(data, "ndim", 0) == 2

    def _release(self) -> None:
        super()._release()
        self._states: dict[int, Future[Any]] = {}
        self._sent: dict[int, Future[Any]] = {}  # the last task
        self._lasting: dict[int, Future[Any]] = {}  # the last one that persists

    def _gather(self, count: int, adopted: bool) -> None:
        self._await_workers()

    def _open(self, data: Any, open_block: OpenBlock) -> Iterator[tuple[Any, Any]]:
        """Open blocks, unless it is declared what they are; keep as many as there is room for."""
        self._await_workers()
        recipes, known = _recipes(data, open_block)
        blocks = [Block(recipe) for recipe in recipes]
        limits = [worker["memory_limit"] or math.inf for worker in self._workers().values()]
        room = SHARE * sum(limits) if self.memory is None else self.memory
        for block, (found, size) in zip(blocks, known or self._measured(blocks), strict=True):
            room -= size
            if room < 0:
                block.kept, block.rows = False, None
            yield block, replace(found, kept=block.kept)

    def _measured(self, blocks: Sequence[Block]) -> Iterator[tuple[EngineBlock, int]]:
        """Make the blocks, and tell what they are."""
        for block, rows in zip(blocks, self._compute([b.recipe for b in blocks]), strict=True):
            block.rows = rows
        facts = self.client.map(_measure, [block.rows for block in blocks], pure=False)
        for group in grouped(facts):
            yield from self._taken(group)

    def _hold(self, numbers: Sequence[int]) -> None:
        kept = [number for number in numbers if self._kept(number)]
        shards = {n: replace(self._shards[n], pieces=()) for n in kept}
        again = {n: self._lasting.get(n) for n in kept}
        try:
            workers = self._workers()
            homes = sorted(workers, key=lambda address: str(workers[address]["name"]).zfill(9))
            rows = self._rows(kept, homes)
            self._states |= self._each(_hold, rows, shards, again, homes=homes)
            self._finish([self._states[n] for n in kept])
        except WorkerLate:
            if self._ours:  # whoever tries again finds others in their place
                self._end(self._unresponsive())
            raise

    def _exchange(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Any]:
        replies, step = self._ask(task, numbers), max(self.size, FAN_IN)
        while replies:
            batch, replies = replies[:step], replies[step:]
            yield from self._taken(batch)

    def _partial_sums(self, task: Task[Any]) -> list[Any]:
        level = self._ask(task, self.numbers())
        while len(level) > FAN_IN:
            level = self.client.map(_added, grouped(level), pure=False)
        return self._taken(level)

    def _lost(self, numbers: Sequence[int]) -> set[int]:
        """Tell which shards do not reply; of ours, end workers that are silent or busy."""
        self._await_workers()
        lost = {n for n in numbers if self._kept(n)} - self._responsive(numbers)
        if lost and self._ours:
            there = {n: future for n, future in self._states.items() if not _ended(future)}
            keys = [future.key for future in there.values()]
            held = self._call(partial(self.client.scheduler.who_has, keys=keys))
            homes = {n: set(held.get(future.key, ())) for n, future in there.items()}
            silent = self._unresponsive().union(*(homes[n] for n in lost & homes.keys()))
            lost |= {n for n, home in homes.items() if home & silent}
            self._end(silent)
        return lost

    def _responsive(self, numbers: Iterable[int]) -> set[int]:
        """Shards that reply."""
        asked = {n: f for n in numbers if (f := self._states.get(n)) and not _ended(f)}
        replies = self._each(_reply, asked)
        end = monotonic() + dask_cluster.ANSWER
        while monotonic() < end:
            waiting = [f for f in replies.values() if not _ended(f) and f.status != "finished"]
            if not waiting:
                break
            self._any(waiting, 0.1)
        return {n for n, future in replies.items() if future.status == "finished"}

    def _kept(self, number: int) -> bool:
        block = self._handle(number)
        return block is None or block.kept

    def _compute(self, recipes: list[Delayed]) -> list[Future[Any]]:
        futures: list[Future[Any]] = self.client.compute(recipes) if recipes else []
        return futures

    def _rows(self, numbers: Sequence[int], homes: Sequence[str]) -> dict[int, Any]:
        """Rows of shards: sent to their homes, named if they are files, made if they are Dask's.

        Dask holds them for as long as the shards need them.
        """
        blocks = {n: block for n in numbers if (block := self._handle(n)) is not None}
        unmade = [n for n, block in blocks.items() if block.rows is None]
        made = self._compute([blocks[n].recipe for n in unmade])
        rows: dict[int, Any] = dict(zip(unmade, made, strict=True))
        for n, block in blocks.items():
            rows[n], block.rows = block.rows or rows[n], None
        opened = {n: LoadedBlock(self._shards[n].pieces) for n in numbers if n not in blocks}
        rows |= {n: block for n, block in opened.items() if all(map(is_stored, block.pieces))}
        for i, home in enumerate(homes):
            if mine := [n for n in opened if n not in rows and n % len(homes) == i]:
                whole = [opened[n] for n in mine]
                send = partial(self.client.scatter, whole, workers=[home], hash=False)
                sent = self._call(partial(send, asynchronous=True), home)
                rows |= zip(mine, sent, strict=True)
        return rows

    def _each(
        self, function: Callable[..., Any], *columns: dict[int, Any], homes: Sequence[str] = ()
    ) -> dict[int, Future[Any]]:
        """Call a function for every shard: pinned to a worker of ours, else where its rows are.

        On the user's cluster rows from here are dealt to `homes`, but may move.
        """
        ways: list[dict[str, Any]] = [{"workers": [h], "allow_other_workers": True} for h in homes]
        if self._ours:
            ways = [{"resources": resource(i)} for i in range(self._wanted)]
        groups: dict[int, list[int]] = {}
        for n in sorted(columns[0]):
            pinned = ways and self._handle(n) is None
            groups.setdefault(n % len(ways) if pinned else -1, []).append(n)
        found: dict[int, Future[Any]] = {}
        for i, mine in groups.items():
            values = [[column[n] for n in mine] for column in columns]
            way = ways[i] if i >= 0 else {}
            futures = self.client.map(function, *values, pure=False, **way)
            found |= dict(zip(mine, futures, strict=True))
        return found

    def _send(self, tasks: dict[int, Task[Any]]) -> dict[int, Future[Any]]:
        """Send tasks to workers; one that is the same for several shards goes out once.

        They are results of Dask tasks, too, which workers hand on to each other: what is scattered
        cannot be made again, and waits for workers that are gone.
        """
        unlike = {id(task): task for task in tasks.values()}
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            sent = self.client.map(_same, [*unlike.values()], pure=False)
        found = dict(zip(unlike, sent, strict=True))
        return {n: found[id(task)] for n, task in tasks.items()}

    def _ask(self, task: Task[Any], numbers: Sequence[int]) -> list[Future[Any]]:
        """Send a task to shards, and return the futures of their replies."""
        if absent := [n for n in numbers if n not in self._states and self._kept(n)]:
            raise WorkerLost(f"shards {absent} are not on the workers: place them again")
        tasks = {n: task.for_shard(n) for n in numbers}
        self._sent = messages = self._send(tasks)
        replies = self._passed({n: tasks[n] for n in numbers if not self._kept(n)})
        states = {n: self._states[n] for n in numbers if n not in replies}
        if task.persists:  # messages stay, should Dask have to make states again
            self._lasting |= messages
            states = self._each(_change, states, messages)
            self._states |= states
            replies |= self._each(_reply, states)
        else:
            replies |= self._each(_run, states, messages)
        return [replies[n] for n in numbers]

    def _passed(self, tasks: dict[int, Task[Any]]) -> dict[int, Future[Any]]:
        """Ask shards whose rows are not kept; these are made again, if the task looks at them."""
        replies, recipes = {}, {}
        for n, task in tasks.items():
            host, shard = ShardHost(WHERE, kept=False), self._shards[n]
            host.hold(0, shard)  # of which the rows are not here
            reply = host.run(0, task) if task.persists else Failure("")
            if not isinstance(reply, Failure):
                replies[n] = self.client.submit(_same, reply, pure=False)
                continue
            parts = replace(shard, pieces=()), self._sent[n], self._lasting.get(n)
            recipes[n] = delayed(_pass, pure=False)(self._handle(n).recipe, *parts)
        return replies | dict(zip(recipes, self._compute([*recipes.values()]), strict=True))

    def _taken(self, futures: Sequence[Future[Any]]) -> list[Any]:
        """Wait for results and bring them here."""
        self._finish(futures)
        bring = partial(self.client.gather, list(futures), asynchronous=True)
        return [regular(result) for result in self._call(bring)]

    def _finish(self, futures: Sequence[Future[Any]]) -> None:
        """Wait until all are done; raise if one has failed, is late, or cannot come."""
        progress = complete = monotonic()
        left, patience = len(futures), dask_cluster.PATIENCE
        while True:
            for future in futures:
                if _ended(future):
                    raise _why(future)
            waiting = [future for future in futures if future.status != "finished"]
            if not waiting:
                return
            now = monotonic()
            progress, left = now if len(waiting) < left else progress, len(waiting)
            if self.deadline is not None and now - progress > self.deadline:
                late = f"no reply from Dask workers within {self.deadline:g} s"
                raise WorkerLate(f"{late}; {dask_cluster.LATE}")
            if now - complete > patience:
                raise gone(f"for more than {patience:g} s")
            tick = dask_cluster.TICK
            if self._any(waiting, min(tick, self.deadline or tick)) or not self._missing():
                complete = monotonic()

    def _any(self, futures: Sequence[Future[Any]], seconds: float) -> bool:
        """Wait for one of the futures, and say whether it came."""
        with suppress(TimeoutError, CancelledError), self.client.as_current():
            _dask.wait(futures, timeout=seconds, return_when="FIRST_COMPLETED")
            return True
        return False


def _recipes(
    data: Any, open_block: OpenBlock
) -> tuple[list[Delayed], list[tuple[EngineBlock, int]] | None]:
    """How blocks are opened; and what they are, where that is declared."""
    make = delayed(_opened, pure=False)
    listed = isinstance(data, list | tuple | Future | Delayed)
    if listed or not hasattr(data, "chunks"):
        parts = _listed(data) if listed else data.to_delayed()
        return [make([part], open_block) for part in parts], None
    name = f"localpower-{uuid4().hex}"  # Dask is confused if keys of the user's mean two things
    joined = _blockwise(
        _same, "i", data, "ij", concatenate=False, name=name, dtype=object,
        meta=np.empty(0, object),
    )  # fmt: skip
    chunks = list(joined.to_delayed())
    if not isinstance(data._meta, np.ndarray) or any(map(math.isnan, data.shape)):
        return [make(chunk, open_block) for chunk in chunks], None
    shapes = [(int(rows), int(data.shape[1])) for rows in data.chunks[0]]
    pairs = zip(chunks, shapes, strict=True)
    kind, itemsize = work_type([data.dtype]), data.dtype.itemsize
    known = [EngineBlock(None, shape, kind, math.prod(shape)) for shape in shapes]
    recipes = [make(chunk, open_block, shape) for chunk, shape in pairs]
    return recipes, [(block, block.nnz * itemsize) for block in known]


def _listed(data: Any) -> list[Any]:
    return list(data) if isinstance(data, list | tuple) else [data]


def _ended(future: Future[Any]) -> bool:
    return future.status in ("error", "cancelled")


def _why(future: Any) -> Exception:
    """Say why there is no result."""
    if future.status == "cancelled":
        return gone("what it held cannot be made again by Dask")
    error = future.exception()
    if isinstance(error, KilledWorker):
        return gone(error)
    if isinstance(error, LocalPowerError):  # not itself: Dask has it, and it would have our frames
        return type(error)(str(error))
    lines = traceback.format_exception(type(error), error, future.traceback())
    return WorkerFailed(f"a task failed {WHERE}:\n{''.join(lines)}")
