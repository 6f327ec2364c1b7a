"""Shards in actors of a Ray cluster: the user's own, or a local one that is started and stopped.

An actor holds shards for as long as they are placed. Rows that come from the coordinator, and
blocks of a Ray dataset, are in the object store of its node and used from there. Actors take no
CPUs from other work of the cluster. Ray does not restart an actor that was lost, as it would come
back empty: `heal` does.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import ray
from ray import exceptions

from localpower.core.ahead import ahead
from localpower.core.errors import EngineError, WorkerFailed, WorkerLate, WorkerLost
from localpower.core.linalg import FAN_IN
from localpower.core.machine import cores
from localpower.engines.blas import OneThreadHost
from localpower.engines.cluster import ClusterEngine, grouped, items_of, late, lost, nbytes_of
from localpower.engines.ray_cluster import alive, at_hand, connected, node
from localpower.worker.host import result_of
from localpower.worker.shard import LoadedBlock, OpenBlock
from localpower.worker.tasks import Task
from localpower.worker.vectors import stack_dense

Call = tuple[Any, int]  # an object that is to come, and the number of the shard that it is about

INLINE = 1 << 20  # bytes of a task that go along with all calls of a round; else it is put once
START, LOOK = 120.0, 2.0  # seconds that actors may take to start, and between looks meanwhile
PATIENCE = 10.0  # seconds for a sign of life, if there is no deadline
LOST = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.ObjectLostError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
)


class Holder(OneThreadHost):
    """An actor."""

    def __init__(self) -> None:
        super().__init__("in an actor")

    def total(self, *replies: Any) -> Any:
        """Add replies, which come from the actors that have made them."""
        return self.add(replies)


class Ray(ClusterEngine):
    """Runs tasks in `size` actors; shard i lives in actor i modulo `size`.

    `address` is that of a cluster, as ``ray.init`` takes it. Without one, the cluster is that which
    this process is connected to, and left alone in the end; or else a local one of our own.
    """

    latency = 4e-3
    bandwidth = 4e8

    def __init__(self, address: str | None = None, size: int | None = None) -> None:
        super().__init__()
        self._address, self._asked = address, size
        self._actors: list[Any] = []
        self._node = ""
        self._connect()

    def takes(self, data: Any) -> bool:
        datasets = sys.modules.get("ray.data")
        known = datasets is not None and isinstance(data, datasets.Dataset)
        return known or bool(items_of(data, ray.ObjectRef))

    def heal(self, numbers: Sequence[int]) -> None:
        try:
            super().heal(numbers)
        except WorkerLost:
            if not ray.is_initialized() or alive():
                raise
            self._gather(len(self._shards), adopted=True)
            self._hold(range(len(self._shards)))

    def close(self) -> None:
        super().close()
        self._node = ""

    def _connect(self) -> None:
        """Be part of a cluster; again, if this process has left it since, or if it has died."""
        if self._node and self._node == node() and alive():
            return
        self._stack.close()
        own = at_hand(self._asked or cores())
        self._stack.enter_context(own if self._address is None else connected(self._address))
        self._stack.callback(_dismiss, self._actors)
        self._node = node()
        resources: Any = ray.cluster_resources
        self._size = self._asked or max(1, int(resources().get("CPU", 1)))

    def _check(self, numbers: Sequence[int]) -> None:
        super()._check(numbers)
        if not ray.is_initialized():  # Ray would start a cluster of its own accord
            raise WorkerLost("this process has left the Ray cluster; place the shards again")

    def _gather(self, count: int, adopted: bool) -> None:
        self._connect()
        self._answers("forget", range(len(self._actors)), not adopted)
        missing = range(len(self._actors), min(self._size, count))
        self._actors += [ACTOR.remote() for _ in missing]
        for at in missing:
            self._await(at)

    def _open(self, data: Any, open_block: OpenBlock) -> Iterator[tuple[Any, Any]]:
        refs = items_of(data, ray.ObjectRef) or _refs(data)
        blocks = [partial(_rows, ref, open_block) for ref in refs]
        self._gather(len(blocks), adopted=False)
        calls = [(self._actor(n).open.remote(n, block), n) for n, block in enumerate(blocks)]
        return zip(blocks, self._replies(calls, len(calls)), strict=True)

    def _hold(self, numbers: Sequence[int]) -> None:
        for reply in self._replies(map(self._held, numbers), len(numbers)):
            result_of(reply)

    def _held(self, number: int) -> Call:
        block, persisting = self._handle(number), self._persisting.get(number)
        shard = self._shards[number] if block is None else self._frame(number)
        return self._actor(number).hold.remote(number, shard, block, persisting), number

    def _exchange(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Any]:
        return self._replies(self._calls(task, numbers), self._size)

    def _partial_sums(self, task: Task[Any]) -> Iterator[Any]:
        calls, waiting = self._calls(task, self.numbers()), deque[Call]()
        level: list[Any] = []
        while group := list(islice(calls, FAN_IN)):
            waiting += group
            level.append(self._actor(len(level)).total.remote(*(ref for ref, _ in group)))
        step = FAN_IN
        while len(level) > FAN_IN:
            groups, step = enumerate(grouped(level)), step * FAN_IN
            level = [self._actor(at).total.remote(*group) for at, group in groups]
        while waiting:  # each reply has its time, and is nobody's when it was added
            ref, number = waiting.popleft()
            if not ray.wait([ref], timeout=self.deadline, fetch_local=False)[0]:
                raise late(f"shard {number}", self.deadline)
        return self._replies(((ref, at * step) for at, ref in enumerate(level)), FAN_IN)

    def _lost(self, numbers: Sequence[int]) -> set[int]:
        """Have the actors of these shards answer; they need all shards that are theirs."""
        count, missing = len(self._actors), set[int]()
        concerned = sorted({number % count for number in numbers})
        for at, there in zip(concerned, self._answers("numbers", concerned), strict=True):
            missing |= set(range(at, len(self._shards), count)).difference(there)
        return missing

    def _await(self, at: int) -> None:
        """Wait until an actor has started: the deadline is for those that have."""
        call, until = self._actors[at].numbers.remote(), time.monotonic() + START
        while not ray.wait([call], timeout=LOOK)[0]:
            if not alive():
                raise WorkerLost("no node of the Ray cluster is alive: start the cluster again")
            if time.monotonic() > until:
                raise WorkerLate(
                    f"an actor did not start within {START:.0f} s; see that a node of the cluster "
                    "has a free CPU"
                )
        try:
            ray.get(call)
        except exceptions.RayError as error:
            raise WorkerLost(
                f"an actor did not start; all nodes need localpower in the same version:\n{error}"
            ) from error

    def _answers(self, method: str, places: Sequence[int], *arguments: Any) -> list[Any]:
        """What some actors say to a method of theirs; new ones, in the place of others, nothing."""
        calls = [getattr(self._actors[at], method).remote(*arguments) for at in places]
        answers: list[Any] = []
        limit = time.monotonic() + (self.deadline or PATIENCE)
        for at, call in zip(places, calls, strict=True):
            try:
                answers.append(ray.get(call, timeout=max(0.0, limit - time.monotonic())))
            except exceptions.RayError:
                _dismiss([self._actors[at]])
                self._actors[at] = ACTOR.remote()
                answers.append(())
        for at in places:
            self._await(at)
        return answers

    def _actor(self, number: int) -> Any:
        return self._actors[number % len(self._actors)]

    def _calls(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Call]:
        """Have each shard's actor run the task; a large one is sent out once."""
        large = nbytes_of(task) * len(numbers) > INLINE
        shared = ray.put(task) if large else task
        for number in numbers:
            mine = task.for_shard(number)
            argument = shared if mine is task else mine
            yield self._actor(number).run.remote(number, argument), number

    def _replies(self, calls: Iterable[Call], count: int) -> Iterator[Any]:
        """Yield what calls return; at most `count` of them are under way or not yet taken."""
        return (self._reply(*call) for call in ahead(calls, count))

    def _reply(self, ref: Any, number: int) -> Any:
        try:
            return ray.get(ref, timeout=self.deadline)
        except exceptions.GetTimeoutError as error:
            raise late(f"shard {number}", self.deadline) from error
        except exceptions.RayError as error:
            _raise(error, f"shard {number}")


def _dismiss(actors: list[Any]) -> None:
    while actors:
        actor = actors.pop()
        if ray.is_initialized():  # else they are gone, and Ray would start a cluster to look
            with suppress(Exception):
                ray.kill(actor)


def _refs(dataset: Any) -> list[Any]:
    """Have a dataset computed and kept by the cluster; its blocks, in order."""
    options = dataset.context.execution_options
    usual, options.preserve_order = options.preserve_order, True
    try:
        bundles = dataset.materialize().iter_internal_ref_bundles()
        return [ref for bundle in bundles for ref in bundle.block_refs]
    except exceptions.RayError as error:
        _raise(error, "the dataset")
    finally:
        options.preserve_order = usual


def _rows(ref: Any, open_block: OpenBlock) -> LoadedBlock:
    """Open a block of the user's in the object store, in the process that calls."""
    rows = without_table(ray.get(ref))
    return LoadedBlock(()) if getattr(rows, "shape", None) == (0, 0) else open_block(rows)


def without_table(block: Any) -> Any:
    """Make an array of a table with one column of vectors; other blocks stay what they are."""
    kind = type(block).__module__.partition(".")[0]
    if kind not in ("pandas", "pyarrow") or len(block.columns) != 1:
        return block
    from ray.data.block import BlockAccessor

    table: Any = BlockAccessor.for_block(block)
    (column,) = table.to_numpy(table.column_names()).values()
    if column.dtype != object:
        return block if column.ndim == 1 else column
    if not len(column):
        return np.empty((0, 0))  # nothing tells how long vectors would be
    rows = stack_dense(column)
    return rows if rows.ndim > 1 else block


def _raise(error: Any, what: str) -> NoReturn:
    """Say in our own words what Ray has raised."""
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
    if isinstance(cause, LOST):
        raise lost(f"{what} is lost, as its worker was killed or crashed", cause) from error
    if cause is not error:
        raise WorkerFailed(f"{what}: a task failed on a Ray worker:\n{error}") from error
    raise EngineError(f"{what}: {error}") from error


ACTOR: Any = ray.remote(max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Holder)
