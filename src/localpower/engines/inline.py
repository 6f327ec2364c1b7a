"""The reference engine: one shard after the other, in the calling thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from localpower.engines.base import Engine
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Shard
from localpower.worker.tasks import R, Task


class Inline(Engine):
    """Runs every task where it is called."""

    @property
    def size(self) -> int:
        return 1

    def place(self, shards: Sequence[Shard]) -> None:
        super().place(shards)
        self._matrices = [LocalMatrix(shard) for shard in shards]

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        for number in self.numbers(order):
            yield task.for_shard(number)(self._matrices[number])

    def close(self) -> None:
        self._matrices = []
        super().close()
