"""The reference for secure sums: shards in this process, replies added as whole numbers.

Whoever adds the same words elsewhere, masked or not, gets the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, cast

from localpower.core.errors import EngineError
from localpower.core.ring import BITS, Grid
from localpower.engines.base import Engine
from localpower.engines.inline import Inline
from localpower.worker.replies import MeasuredReply
from localpower.worker.shard import Shard
from localpower.worker.sums import exponent_of, from_words, is_summable, sum_words, to_words
from localpower.worker.tasks import Measure, Prepare, R, Task


class SumsOnly(Engine):
    """What engines have in common that show sums of replies only, added as whole numbers."""

    only_sums = True
    bits = BITS

    @property
    def exponent(self) -> int:
        """Exponent of the power of two that the words are parts of."""
        return exponent_of(self.trace)

    @property
    def rounding(self) -> float:
        """How far, in the spectral norm, products may be from those of a symmetric matrix.

        All products of an orthonormal basis together have at most d columns, and each entry is
        wrong by half a step for each shard; keeping one half of a symmetric part doubles that.
        """
        grid = Grid(self.exponent + 1, self.bits)  # of a basis, whose columns have norm 1
        return 2 * self.columns * grid.rounding(len(self.rows))

    def check_summable(self, task: Task[Any]) -> None:
        """Refuse what is more than a sum."""
        if not is_summable(task):
            raise EngineError(
                f"{type(task).__name__} would show more than a sum over all shards, which is all "
                "that this engine shows: take a method that works with sums, as method='auto' does"
            )

    def measured(self, replies: Sequence[MeasuredReply[Any]], content: Any) -> MeasuredReply[Any]:
        """A sum with the account of the replies that it was made of."""
        first = replies[0]
        return MeasuredReply(
            content,
            sum(reply.words for reply in replies),
            sum(reply.size for reply in replies),
            sum(reply.read for reply in replies),
            len(replies),
            first.key,
            first.number,
            sum(reply.seconds for reply in replies),
            sum(reply.timed for reply in replies),
            tuple(sorted(((r.seconds, r.number) for r in replies), reverse=True)[:4]),
        )


class InlineRing(SumsOnly):
    """Runs every task where it is called, and adds replies in words with so many `bits`."""

    def __init__(self, bits: int = BITS) -> None:
        Grid(0, bits)
        self.bits = bits
        self._inline = Inline()

    @property
    def size(self) -> int:
        return 1

    def place(self, shards: Sequence[Shard]) -> None:
        super().place(shards)
        self._inline.place(shards)

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        inner = task.task if isinstance(task, Measure) else task
        if not isinstance(inner, Prepare):
            self.check_summable(inner)
        return self._inline.map(task, order)

    def sum(self, task: Task[R]) -> R:
        measured = task if isinstance(task, Measure) else Measure(task)
        question: Task[Any] = measured.task
        self.check_summable(question)
        replies = list(self._inline.map(measured))
        words = [to_words(question, each.content, self.exponent, self.bits) for each in replies]
        total = reduce(lambda a, b: sum_words(question, a, b), words)
        content: R = from_words(question, total, self.columns, self.exponent, self.bits)
        if measured is not task:
            return content
        sizes = [(part.size, part.nbytes) for part in words]
        weighed = [replace(r, words=w, size=s) for r, (w, s) in zip(replies, sizes, strict=True)]
        return cast(R, self.measured(weighed, content))

    def close(self) -> None:
        self._inline.close()
        super().close()
