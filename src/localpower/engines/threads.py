"""The default engine: shards in this process, worked on by as many threads as there are cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

from localpower.core.ahead import ahead
from localpower.core.machine import cores
from localpower.engines.base import Engine
from localpower.engines.blas import one_blas_thread
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Shard
from localpower.worker.tasks import R, Task

SMALL = 1 << 17  # entries of all shards up to which a task takes less than to hand it to a thread


class Threads(Engine):
    """Runs tasks on a pool of threads, small ones itself; BLAS is kept at one thread meanwhile."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size or cores()
        self._open = ExitStack()

    @property
    def size(self) -> int:
        return self._size

    def place(self, shards: Sequence[Shard]) -> None:
        self.close()
        super().place(shards)
        self._matrices = [LocalMatrix(shard) for shard in shards]
        self._open.enter_context(one_blas_thread())
        self._pool: ThreadPoolExecutor | None = None
        if sum(shard.entries for shard in shards) > SMALL:
            self._pool = self._open.enter_context(ThreadPoolExecutor(self._size, "localpower"))

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        if self._pool is None:
            yield from (task.for_shard(n)(self._matrices[n]) for n in self.numbers(order))
            return
        begin = self._pool.submit
        calls = (begin(task.for_shard(n), self._matrices[n]) for n in self.numbers(order))
        for future in ahead(calls, self._size, Future.cancel):
            yield future.result()

    def close(self) -> None:
        self._open.close()
        self._matrices = []
        super().close()
