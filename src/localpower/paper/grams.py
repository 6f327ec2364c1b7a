"""An engine for studies: all shards' Gram matrices in one stack, a task run on all at once.

Where d is small, ``A_iᵀA_i Z`` from a stored Gram matrix costs less than from the rows, and numpy
multiplies and factors a whole stack in one call. Methods do not notice: they see an engine. Several
runs in step (`in_step`) also share each pass over the stack, which is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from localpower.core.linalg import Array, leading_eigenpairs, orth_step
from localpower.diagnostics.heterogeneity import etas_of_grams
from localpower.engines.base import Engine
from localpower.worker.replies import Eigenvectors, Product
from localpower.worker.tasks import PowerSteps, R, Task, TopVectors

T = TypeVar("T")


class Grams:
    """``A_iᵀA_i`` of every shard, (m, d, d)."""

    def __init__(self, X: Array, shards: Sequence[NDArray[np.intp]]) -> None:
        self.rows = [len(shard) for shard in shards]
        self._top: dict[tuple[int, int], tuple[Array, Array]] = {}
        self.stack = np.empty((len(shards), X.shape[1], X.shape[1]))
        for gram, shard in zip(self.stack, shards, strict=True):
            rows = X[shard]
            np.matmul(rows.T, rows, out=gram)

    def product(self, Z: Array) -> Array:
        """Multiply every matrix with bases (variants, 1 or m, d, r) in one pass over the stack."""
        m, d, _ = self.stack.shape
        beside = np.broadcast_to(Z.transpose(1, 2, 0, 3), (m, d, len(Z), Z.shape[-1]))
        Y = self.stack @ beside.reshape(m, d, -1)
        return Y.reshape(m, d, len(Z), -1).transpose(2, 0, 1, 3)

    def power_steps(self, tasks: Sequence[PowerSteps]) -> list[list[Product]]:
        """Run tasks of equally many steps; per task the replies of all shards."""
        Z = np.stack([task.basis for task in tasks])[:, None]
        Y = self.product(Z)
        for _ in range(tasks[0].steps - 1):
            Z = _orth_steps(Y, np.broadcast_to(Z, Y.shape))
            Y = self.product(Z)
        Z = np.broadcast_to(Z, Y.shape)
        return [
            [Product(y, z if task.send_basis else None) for y, z in zip(Y[v], Z[v], strict=True)]
            for v, task in enumerate(tasks)
        ]

    def top(self, number: int, rank: int) -> tuple[Array, Array]:
        """Leading eigenvalues and eigenvectors of one shard's matrix, kept for who asks next."""
        if (number, rank) not in self._top:
            self._top[number, rank] = leading_eigenpairs(self.stack[number], rank)
        return self._top[number, rank]

    def eta(self) -> float:
        """Heterogeneity of the shards, Definition 2."""
        return float(etas_of_grams(lambda: self.stack, self.rows).max())


def _orth_steps(Y: Array, Z: Array) -> Array:
    """`orth_step` on the last two axes; all matrices of full rank are factored in one call."""
    Q, R = np.linalg.qr(Y)
    sizes, norms = np.abs(np.diagonal(R, axis1=-2, axis2=-1)), np.linalg.norm(R, axis=-2)
    poor = (sizes <= np.sqrt(np.finfo(Y.dtype).eps) * norms).any(axis=-1)
    for at in map(tuple, np.argwhere(poor)):
        Q[at] = orth_step(Y[at], Z[at])
    return Q


class GramEngine(Engine):
    """Lets a method run on `Grams`; knows `PowerSteps` and `TopVectors`."""

    def __init__(
        self, grams: Grams, power_steps: Callable[[PowerSteps], list[Product]] | None = None
    ) -> None:
        self.rows = grams.rows
        self.columns = grams.stack.shape[1]
        self._grams = grams
        self._power_steps = power_steps or (lambda task: grams.power_steps([task])[0])

    @property
    def size(self) -> int:
        return 1

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        if isinstance(task, PowerSteps):
            replies: Any = self._power_steps(task)
        else:
            replies = [self._eigenvectors(cast(TopVectors, task), i) for i in self.numbers()]
        return (replies[number] for number in self.numbers(order))

    def _eigenvectors(self, task: TopVectors, i: int) -> Eigenvectors:
        values, vectors = self._grams.top(i, task.rank)
        return Eigenvectors(vectors, values / self.rows[i] if task.values else values[:0])


def in_step(grams: Grams, runs: Sequence[Callable[[Engine], T]]) -> list[T]:
    """Run several methods at once, each in a thread; they must take the same steps in each round.

    All wait for each other's task, and one pass over the stack answers them together.
    """
    tasks: list[PowerSteps] = [cast(PowerSteps, None)] * len(runs)
    answers: list[list[Product]] = []

    def answer() -> None:
        answers[:] = grams.power_steps(tasks)

    asked, answered = Barrier(len(runs), action=answer), Barrier(len(runs))

    def run(number: int) -> T:
        def exchange(task: PowerSteps) -> list[Product]:
            tasks[number] = task
            asked.wait()
            mine = answers[number]
            answered.wait()  # nobody asks again before all have taken their answer
            return mine

        try:
            return runs[number](GramEngine(grams, exchange))
        except BaseException:
            asked.abort()
            answered.abort()
            raise

    with ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(run, range(len(runs))))
