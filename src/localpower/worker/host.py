"""The code that runs where rows are, the same on every engine.

A `ShardHost` holds shards, runs tasks on them and adds replies. It never raises: what goes wrong
is a `Failure`, which travels like a reply and becomes an exception on the coordinator.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from localpower.core.errors import (
    DataError,
    EngineError,
    LocalPowerError,
    WorkerFailed,
    WorkerLate,
    WorkerLost,
)
from localpower.core.linalg import fold
from localpower.worker import wire
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.replies import Done
from localpower.worker.shard import EngineBlock, LoadedBlock, Shard, nbytes, work_type
from localpower.worker.tasks import Task

MAX_BYTES = 1 << 44  # of a message between processes of one user: only nonsense is refused
KINDS = {
    kind.__name__: kind for kind in (DataError, EngineError, WorkerFailed, WorkerLate, WorkerLost)
}


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """What a host replies instead of a result; `kind` names the exception that it becomes.

    An `EngineError` is asked again, a `DataError` is not. A host that may refuse has a subclass of
    its own, whose `error` is no `EngineError`.
    """

    text: str
    kind: str = "WorkerFailed"

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """Take down an exception; one that is not our own with its traceback."""
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS)
        if isinstance(error, LocalPowerError) and (kind := next(kinds, "")):
            return cls(str(error), kind)
        trace = "".join(traceback.format_exception(error))
        return cls(f"a task failed {where}:\n{trace}")

    def error(self) -> LocalPowerError:
        """Return the exception that the coordinator raises."""
        return KINDS.get(self.kind, EngineError)(self.text)


def result_of(reply: Any) -> Any:
    """Return a reply, or raise what it says instead."""
    if isinstance(reply, Failure):
        raise reply.error()
    return reply


class UncachedMatrix(LocalMatrix):
    """A matrix that lives for one task, too short for a Gram matrix to pay."""

    def _gram_pays(self, products: int, width: int) -> bool:
        return False

    def gram_is_small(self) -> bool:
        """Whether a Gram matrix may be formed for one task."""
        return False


class ShardHost:
    """Holds shards by their numbers: for good, or for one task if they are not `kept`.

    `where` is for messages.
    """

    def __init__(self, where: str = "", kept: bool = True) -> None:
        self._where, self._kept = where, kept
        self._opened: dict[int, LoadedBlock] = {}
        self._matrices: dict[int, LocalMatrix] = {}

    def numbers(self) -> set[int]:
        """Tell which shards are here."""
        return set(self._matrices)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are here."""
        return sum(nbytes(p) for matrix in self._matrices.values() for p in matrix._shard.pieces)

    def open(self, number: int, block: Callable[[], LoadedBlock]) -> Any:
        """Open a block that shall become a shard, and tell what it is."""

        def work() -> EngineBlock:
            rows = self._opened[number] = block()
            return describe(rows)

        return self.attempt(work)

    def hold(
        self,
        number: int,
        shard: Shard,
        block: Callable[[], LoadedBlock] | None = None,
        persisting: Task[Any] | None = None,
    ) -> Any:
        """Take a shard in, with the rows of a `block` if one is given; reply `Done`.

        The last task that persists is repeated on it.
        """

        def work() -> Done:
            pieces = shard.pieces
            if block is not None:
                pieces = (self._opened.pop(number, None) or block()).pieces
            kind = LocalMatrix if self._kept else UncachedMatrix
            matrix = kind(replace(shard, pieces=pieces))
            if persisting is not None:
                persisting.for_shard(number)(matrix)
            self._matrices[number] = matrix
            return Done()

        return self.attempt(work)

    def run(self, number: int, task: Task[Any]) -> Any:
        """Run a task on a shard."""
        return self.attempt(lambda: task(self._matrices[number]))

    def add(self, replies: Sequence[Any]) -> Any:
        """Add a group of replies; a failure among them is the sum."""
        failures = (reply for reply in replies if isinstance(reply, Failure))
        return next(failures, None) or self.attempt(lambda: fold(replies, len(replies)))

    def forget(self, opened: bool = True) -> None:
        """Hold nothing any more; nor blocks that were only opened."""
        self._matrices.clear()
        if opened:
            self._opened.clear()

    def drop(self, number: int) -> None:
        """Hold this shard no more."""
        del self._matrices[number]

    def copy(self) -> ShardHost:
        """Return a host with the same rows, for tasks that change what is done with them."""
        other = type(self)(self._where, self._kept)
        other._matrices = {number: copy(matrix) for number, matrix in self._matrices.items()}
        return other

    def attempt(self, work: Callable[[], Any]) -> Any:
        """Do some work; what it raises is the reply."""
        try:
            return work()
        except Exception as error:
            return Failure.of(error, self._where)


def describe(rows: LoadedBlock) -> EngineBlock:
    """Tell what a block of rows is."""
    columns = int(rows.pieces[0].shape[1]) if rows.pieces else 0
    shard = Shard(rows.pieces, columns, work_type(piece.dtype for piece in rows.pieces))
    return EngineBlock(None, (shard.rows, columns), shard.dtype, shard.entries, names=rows.names)
