"""Rounds in which some shards take part: what stands in for the others, or who is asked until when.

Leaving out the shards that are absent would change the matrix from round to round. There are two
ways that do not. Power methods `reuse`: the last product of a shard, ``Y_old = A_iᵀA_i Z_old``, is
turned to the new basis, ``Y_old (Z_oldᵀ Z)``. All others `collect`: a sum stays open, and shards
that still owe their part are asked in further rounds, until it is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from localpower.core.linalg import Array
from localpower.core.rounding import from_wire
from localpower.engines.base import Engine
from localpower.worker.replies import Product
from localpower.worker.tasks import PowerSteps, R, Task


class LastProducts:
    """The last product of every shard, with the basis that it is of; `used` counts stand-ins."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Array, Array]] = {}
        self.used = 0

    def keep(self, question: Task[Any], number: int, reply: Any) -> None:
        """Remember what a shard replied, if that is a product."""
        if isinstance(question, PowerSteps):
            Z = from_wire(question.basis if reply.basis is None else reply.basis)
            self._pairs[number] = Z, np.array(from_wire(reply.product))  # it may become the sum

    def covers(self, question: Task[Any], numbers: Iterable[int]) -> bool:
        """Whether something can stand in for what each of these shards would reply."""
        return isinstance(question, PowerSteps) and self._pairs.keys() >= set(numbers)

    def turned(self, question: PowerSteps, number: int) -> Product:
        """Stand in for a shard: ``Y_old (Z_oldᵀ Z)``, as if it had stayed at the basis Z."""
        (Z_old, Y_old), Z = self._pairs[number], from_wire(question.basis)
        self.used += 1
        return Product(Y_old @ (Z_old.T @ Z), Z if question.send_basis else None, stale=True)


class Sampled(Engine):
    """Asks each shard with the chance `rate` in a round, and at least one.

    From when all have answered once, their `last` products stand in for those that are not asked.
    Without such, more rounds follow until all have answered, and sums have the bits that they have
    where everybody is asked at once.
    """

    def __init__(
        self, engine: Engine, rate: float, rng: np.random.Generator, last: LastProducts | None
    ) -> None:
        self._engine, self._rate, self._rng, self._last = engine, rate, rng, last
        self.latency, self.bandwidth, self.flops = engine.latency, engine.bandwidth, engine.flops
        self.rows, self.columns, self.dtype = engine.rows, engine.columns, engine.dtype

    @property
    def size(self) -> int:
        return self._engine.size

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        numbers = self.numbers(order)
        replies: dict[int, Any] = {}
        owing = list(numbers)
        while owing:
            asked = self._drawn(owing)
            replies |= zip(asked, self._engine.map(task, asked), strict=True)
            owing = [n for n in owing if n not in replies]
            if self._last is not None and self._last.covers(task, owing):
                break
        for number in numbers:
            yield replies.pop(number) if number in replies else self._instead(task, number)

    def _drawn(self, numbers: Sequence[int]) -> list[int]:
        """Some of these shards, at least one."""
        drawn = self._rng.random(len(numbers)) < self._rate
        drawn[self._rng.integers(len(numbers))] |= not drawn.any()
        return [number for number, asked in zip(numbers, drawn, strict=True) if asked]

    def _instead(self, task: Any, number: int) -> Any:
        assert self._last is not None
        return self._last.turned(task, number)
