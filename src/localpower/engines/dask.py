"""Shards on the workers of a Dask cluster.

A shard is the result of a Dask task, and stays where that ran. Dask makes it again when its worker
is lost, if it knows how: from the graph of a Dask collection, or from files. Rows that came from
this process are placed again by `heal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import dask.config
import numpy as np
from dask.array import blockwise
from dask.base import is_dask_collection
from dask.delayed import Delayed, delayed
from dask.sizeof import sizeof
from distributed import Future

from localpower.core.errors import DataError, WorkerLate, WorkerLost
from localpower.core.ledger import regular
from localpower.core.linalg import FAN_IN
from localpower.engines.blas import OneThreadHost
from localpower.engines.cluster import grouped, items_of
from localpower.engines.dask_cluster import FAILED, DaskWorkers, resource
from localpower.engines.signals import leave_interrupts
from localpower.worker.host import Failure, ShardHost, describe, result_of
from localpower.worker.shard import (
    EngineBlock,
    LoadedBlock,
    OpenBlock,
    Shard,
    is_stored,
    join_columns,
    nbytes,
    work_type,
)
from localpower.worker.tasks import Task

SHARE = 0.5  # of the workers' memory, that adopted rows may take
WHERE = "on a Dask worker"
State = tuple[ShardHost, Any]  # the host of one shard, and what it said when it was last changed
_sizeof: Any = sizeof  # much of Dask has no types
_blockwise: Any = blockwise


@dataclass(slots=True, eq=False)
class DaskBlock:
    """One block of a Dask collection: how its rows are opened, and those if they are."""

    recipe: Delayed
    rows: Future[Any] | None = None


def dask_setup(worker: Any) -> None:
    """Prepare a worker process of our own; Dask calls it, as it preloads this module there."""
    leave_interrupts()


# What runs on workers. It returns failures: what is raised, Dask logs.


def _hold(rows: Any, shard: Shard, persisting: Task[Any] | None, kept: bool = True) -> State:
    """Take rows in, aligned once: those that come over the network are not, nor may others be."""
    host = OneThreadHost(WHERE, kept)
    if isinstance(rows, Failure):
        return host, rows
    whole = replace(shard, pieces=regular(rows.pieces))
    return host, host.hold(0, whole, persisting=regular(persisting))


def _run(state: State, task: Task[Any]) -> Any:
    host, held = state
    return host.run(0, regular(task)) if host.numbers() else held


def _change(state: State, task: Task[Any]) -> State:
    host = state[0].copy()  # rows are shared; Dask may need the old state once more
    return host, _run((host, state[1]), task)


def _pass(rows: Any, shard: Shard, task: Task[Any], persisting: Task[Any] | None) -> Any:
    """Run a task on rows that are not kept."""
    return _run(_hold(rows, shard, persisting, kept=False), task)


def _reply(state: State) -> Any:
    return state[1]


def _same(reply: Any) -> Any:
    return reply


def _added(replies: list[Any]) -> Any:
    return OneThreadHost(WHERE).add(replies)


def _opened(parts: list[Any], open_block: OpenBlock, declared: Any = None) -> Any:
    """Open a block, whose columns may be in several parts, and whose shape may be declared."""

    def work() -> LoadedBlock:
        rows = open_block(parts[0] if len(parts) == 1 else join_columns(parts))
        if declared is not None and describe(rows).shape != declared:
            raise DataError(
                f"a chunk of data has shape {describe(rows).shape} where {declared} is declared; "
                "declare what it has, or call .compute_chunk_sizes()"
            )
        return rows

    return OneThreadHost(WHERE).attempt(work)


def _measure(rows: Any) -> Any:
    """Tell what a block is, and how many bytes it takes."""
    return rows if isinstance(rows, Failure) else (describe(rows), sum(map(nbytes, rows.pieces)))


_sizeof.register(ShardHost, lambda host: host.nbytes)
_sizeof.register(LoadedBlock, lambda rows: sum(map(nbytes, rows.pieces)))


class Dask(DaskWorkers):
    """Runs tasks on a Dask cluster: the user's, or one of `size` processes on this machine.

    Blocks of Dask arrays and frames become shards where Dask makes them. As many as take no more
    than `memory` bytes together (by default half of what the workers have) are kept; the others are
    made again for every task, from their graph.
    """

    latency = 3e-2
    bandwidth = 3e8

    def takes(self, data: Any) -> bool:
        if items_of(data, Future | Delayed):
            return True
        of_dask = type(data).__module__.partition(".")[0] in ("dask", "dask_expr")
        return of_dask and is_dask_collection(data) and getattr(data, "ndim", 0) == 2

    def _release(self) -> None:
        super()._release()
        self._states: dict[int, Future[Any]] = {}
        self._lasting: dict[int, Future[Any]] = {}  # the last task that persists

    def _gather(self, count: int, adopted: bool) -> None:
        self._await_workers()

    def _open(self, data: Any, open_block: OpenBlock) -> Iterator[tuple[Any, Any]]:
        """Open blocks, unless it is declared what they are; keep as many as there is room for."""
        self._await_workers()
        recipes, known = _recipes(data, open_block)
        blocks = [DaskBlock(recipe) for recipe in recipes]
        limits = [worker["memory_limit"] or math.inf for worker in self._workers().values()]
        room = SHARE * sum(limits) if self.memory is None else self.memory
        for block, (found, size) in zip(blocks, known or self._measured(blocks), strict=True):
            room -= size
            block.rows = block.rows if room >= 0 else None
            yield block, replace(found, kept=room >= 0)

    def _measured(self, blocks: Sequence[DaskBlock]) -> Iterator[Any]:
        self._make(blocks)
        for group in grouped(self._map(_measure, [block.rows for block in blocks])):
            yield from map(result_of, self._taken(group))

    def _make(self, blocks: Sequence[DaskBlock]) -> None:
        """Have blocks opened that are not."""
        new = [block for block in blocks if block.rows is None]
        for block, rows in zip(new, self._compute([block.recipe for block in new]), strict=True):
            block.rows = rows

    def _hold(self, numbers: Sequence[int]) -> None:
        kept = [number for number in numbers if self._kept(number)]
        frames = {n: self._frame(n) for n in kept}
        try:
            self._lasting |= self._send({n: t for n, t in self._persisting.items() if n in frames})
            again = {n: self._lasting.get(n) for n in kept}
            homes = self._homes()
            states = self._each(_hold, self._rows(kept, homes), frames, again, homes=homes)
            self._states |= states
            for held in self._taken([*self._each(_reply, states).values()]):
                result_of(held)
        except WorkerLate:  # whoever tries again finds others in the place of those that hang
            self._set_aside(self._unresponsive())
            raise

    def _exchange(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Any]:
        replies, step = self._ask(task, numbers), max(self.size, FAN_IN)
        while replies:
            batch, replies = replies[:step], replies[step:]
            yield from self._taken(batch)

    def _partial_sums(self, task: Task[Any]) -> list[Any]:
        level = self._ask(task, self.numbers())
        while len(level) > FAN_IN:
            level = self._map(_added, grouped(level))
        return self._taken(level)

    def _lost(self, numbers: Sequence[int]) -> set[int]:
        """Tell which shards no worker has; those that hang, or are busy with them, are left."""
        self._await_workers()
        silent = self._unresponsive()
        there = {n: future for n, future in self._states.items() if future.status not in FAILED}
        keys = [future.key for future in there.values()]
        held = self._call(partial(self.client.scheduler.who_has, keys=keys))
        homes = {n: set(held.get(future.key, ())) for n, future in there.items()}
        self._set_aside(silent)
        gone = {n for n in numbers if self._kept(n) and not homes.get(n)}
        return gone | {n for n, home in homes.items() if home & silent}

    def _kept(self, number: int) -> bool:
        return all(getattr(piece, "kept", True) for piece in self._shards[number].pieces)

    def _map(self, function: Callable[..., Any], *columns: Any, **way: Any) -> Any:
        return self.client.map(function, *columns, pure=False, **(way or self._elsewhere()))

    def _compute(self, recipes: list[Delayed]) -> Any:
        return self.client.compute(recipes, **self._elsewhere())

    def _rows(self, numbers: Sequence[int], homes: Sequence[str]) -> dict[int, Any]:
        """Rows of shards: sent to their homes, named if they are files, made if they are Dask's.

        Dask holds them for as long as the shards need them.
        """
        rows: dict[int, Any] = {}
        blocks = {n: block for n in numbers if (block := self._handle(n)) is not None}
        self._make([*blocks.values()])
        for n, block in blocks.items():
            rows[n], block.rows = block.rows, None
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
            values = ([column[n] for n in mine] for column in columns)
            futures = self._map(function, *values, **(ways[i] if i >= 0 else {}))
            found |= dict(zip(mine, futures, strict=True))
        return found

    def _send(self, tasks: dict[int, Task[Any]]) -> dict[int, Future[Any]]:
        """Send tasks to workers; one that is the same for several shards goes out once.

        They are results of Dask tasks, too, which workers hand on to each other: what is scattered
        cannot be made again, and waits for workers that are gone.
        """
        unlike = {id(task): task for task in tasks.values()}
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            found = dict(zip(unlike, self._map(_same, [*unlike.values()]), strict=True))
        return {n: found[id(task)] for n, task in tasks.items()}

    def _ask(self, task: Task[Any], numbers: Sequence[int]) -> list[Future[Any]]:
        """Send a task to shards, and return the futures of their replies."""
        if absent := [n for n in numbers if n not in self._states and self._kept(n)]:
            raise WorkerLost(f"shards {absent} are not on the workers: place them again")
        tasks = {n: task.for_shard(n) for n in numbers}
        messages = self._send(tasks)
        states = {n: self._states[n] for n in numbers if self._kept(n)}
        if task.persists:  # messages stay, should Dask have to make states again
            self._lasting |= messages
            states = self._each(_change, states, messages)
            self._states |= states
            replies = self._each(_reply, states)
        else:
            replies = self._each(_run, states, messages)
        recipes, unread = {}, ShardHost(WHERE, kept=False)
        for n in (n for n in numbers if n not in states):
            parts = self._frame(n), messages[n], self._lasting.get(n)
            recipes[n] = delayed(_pass, pure=False)(self._handle(n).recipe, *parts)
            if task.persists:  # which does not look at rows
                unread.hold(n, self._shards[n])
                recipes[n] = delayed(_same, pure=False)(unread.run(n, tasks[n]))
        replies |= zip(recipes, self._compute([*recipes.values()]), strict=True)
        return [replies[n] for n in numbers]

    def _taken(self, futures: Sequence[Future[Any]]) -> list[Any]:
        bring = partial(self.client.gather, list(futures), asynchronous=True)
        return [regular(result) for result in self._call(bring, futures=futures)]


def _recipes(
    data: Any, open_block: OpenBlock
) -> tuple[list[Delayed], list[tuple[EngineBlock, int]] | None]:
    """How blocks are opened; and what they are, where that is declared."""
    make = delayed(_opened, pure=False)
    parts = items_of(data, Future | Delayed)
    if parts or not hasattr(data, "chunks"):
        return [make([part], open_block) for part in parts or data.to_delayed()], None
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
    recipes = [make(chunk, open_block, shape) for chunk, shape in pairs]
    kind, itemsize = work_type([data.dtype]), data.dtype.itemsize
    known = [EngineBlock(None, shape, kind, math.prod(shape)) for shape in shapes]
    return recipes, [(block, block.nnz * itemsize) for block in known]
