"""The driver of all engines whose shards live on hosts, in other processes or on other machines.

What is the same everywhere is here: placing, asking, adding in one fixed order, adopting, healing.
An adapter says how calls reach its hosts (`worker.host.ShardHost`) and what "dead" means there.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import iadd
from typing import Any, TypeVar

from localpower.core.errors import EngineError, WorkerLate, WorkerLost
from localpower.core.ledger import weigh
from localpower.core.linalg import FAN_IN, combined
from localpower.engines.base import Engine
from localpower.worker.host import result_of
from localpower.worker.shard import EngineBlock, OpenBlock, Shard, share_names
from localpower.worker.tasks import Measure, R, Task

T = TypeVar("T")


class ClusterEngine(Engine):
    """Drives hosts through the hooks of an adapter, in the order in which they stand here.

    Replies of hosts may be `Failure`s; the driver raises them. `_shards` are those that were
    placed, `_persisting` is the task by number that a shard which is held again has to repeat.
    `_stack` ends what the engine has begun, when it is closed or nobody has it any more. `_size` is
    how many hosts there are.
    """

    _size = 1
    _shards: Sequence[Shard]
    _persisting: dict[int, Task[Any]]

    def __init__(self) -> None:
        self._release()
        self._stack = ExitStack()
        weakref.finalize(self, self._stack.close)

    @property
    def size(self) -> int:
        return self._size

    @abstractmethod
    def _gather(self, count: int, adopted: bool) -> None:
        """Have hosts for so many shards; they hold nothing but what was just `adopted`."""

    def _open(self, data: Any, open_block: OpenBlock) -> Iterable[tuple[Any, Any]]:
        """Open blocks where they are: a handle of each, and what its host says of it."""
        raise NotImplementedError

    @abstractmethod
    def _hold(self, numbers: Sequence[int]) -> None:
        """Have hosts hold these of `_shards`, prepared by `_persisting`, and wait for them."""

    @abstractmethod
    def _exchange(self, task: Task[Any], numbers: Sequence[int]) -> Iterable[Any]:
        """Bring a task to these shards; yield their replies in this order."""

    def _partial_sums(self, task: Task[Any]) -> Iterable[Any]:
        """Yield sums over all shards, at most eight, made of groups of eight in shard order."""
        raise NotImplementedError

    def _lost(self, numbers: Sequence[int]) -> Iterable[int]:
        """Have all hosts of these shards answer, new ones if need be; tell which to hold again."""
        return ()

    def place(self, shards: Sequence[Shard]) -> None:
        self._release()
        adopted = any(isinstance(piece, EngineBlock) for shard in shards for piece in shard.pieces)
        self._gather(len(shards), adopted)
        super().place(shards)
        self._shards = list(shards)
        self._hold(range(len(shards)))

    def adopt(self, data: Any, open_block: OpenBlock) -> Sequence[EngineBlock]:
        self._release()
        found = [(handle, result_of(block)) for handle, block in self._open(data, open_block)]
        columns = max((block.shape[1] for _, block in found), default=0)
        parts = (  # nothing tells how many columns a block without rows would have
            replace(block, handle=handle, shape=block.shape if any(block.shape) else (0, columns))
            for handle, block in found
        )
        return list(share_names(parts))

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        numbers = self.numbers(order)
        self._note(task, numbers)
        for reply in self._exchange(task, numbers):
            yield result_of(reply)

    def sum(self, task: Task[R]) -> R:
        if len(self.rows) <= FAN_IN:
            return super().sum(task)
        self._note(task, self.numbers())
        total: R = combined(iadd, map(result_of, self._partial_sums(task)))
        return total

    def heal(self, numbers: Sequence[int]) -> None:
        self._check(numbers)
        if lost := sorted(self._lost(numbers)):
            self._hold(lost)

    def close(self) -> None:
        self._release()
        self._stack.close()
        super().close()

    def _note(self, task: Task[Any], numbers: Sequence[int]) -> None:
        """Remember what persists, for shards that have to be held again."""
        self._check(numbers)
        if task.persists:
            self._persisting |= {number: task.for_shard(number) for number in numbers}

    def _check(self, numbers: Sequence[int]) -> None:
        if not self._shards or not all(0 <= number < len(self._shards) for number in numbers):
            raise EngineError("this engine does not hold these shards: place them first")

    def _release(self) -> None:
        """Let go of the shards that were placed."""
        self._shards, self._persisting = (), {}

    def _frame(self, number: int) -> Shard:
        """Return a shard without its rows, to be sent where those are."""
        return replace(self._shards[number], pieces=())

    def _handle(self, number: int) -> Any:
        """Return the handle of an adopted shard; None of one whose rows came from here."""
        first = next(iter(self._shards[number].pieces), None)
        return first.handle if isinstance(first, EngineBlock) else None


def nbytes_of(task: Task[Any]) -> int:
    """Bytes of the arrays in a task."""
    return weigh(task.task if isinstance(task, Measure) else task)[1]


def grouped(parts: Sequence[T], size: int = FAN_IN) -> list[Sequence[T]]:
    """Cut a sequence into groups: of eight, those whose replies are added, as in `linalg.fold`."""
    return [parts[at : at + size] for at in range(0, len(parts), size)]


def items_of(data: Any, kinds: Any) -> list[Any]:
    """Return what a list of these kinds has, or one of them by itself; nothing of other data."""
    parts = list(data) if isinstance(data, list | tuple) else [data]
    return parts if all(isinstance(part, kinds) for part in parts) else []


def late(who: str, seconds: float | None) -> WorkerLate:
    """Return the error for a reply that does not come in time."""
    return WorkerLate(
        f"{who}: no reply within {seconds:g} s; set the engine's deadline higher if tasks take so "
        "long, or use smaller shards"
    )


def lost(what: str, why: object) -> WorkerLost:
    """Return the error for a worker that is gone."""
    return WorkerLost(
        f"{what}; if memory ran out, use smaller shards or more workers, else run again: {why}"
    )
