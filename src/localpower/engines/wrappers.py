"""Wrappers that add something to any engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from localpower.core.engine import Engine
from localpower.core.ledger import Ledger, Round, weigh
from localpower.core.shard import Shard
from localpower.core.tasks import Done, Scatter, Task, Weigh, Weighed

R = TypeVar("R")


class Metered(Engine):
    """Keeps the account of every round that passes through; `phase` names what rounds are for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.latency, self.bandwidth, self.flops = engine.latency, engine.bandwidth, engine.flops
        self._rounds: list[Round] = []
        self.phase = "setup"

    def restore(self, records: Iterable[Round]) -> None:
        """Put rounds of an earlier process into the account."""
        self._rounds.extend(records)

    @property
    def ledger(self) -> Ledger:
        """The account so far."""
        return Ledger(tuple(self._rounds))

    @property
    def size(self) -> int:
        return self._engine.size

    def place(self, shards: Sequence[Shard]) -> None:
        super().place(shards)
        self._engine.place(shards)

    def takes(self, data: Any) -> bool:
        return self._engine.takes(data)

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        numbers = self.numbers(order)
        account = Weighed(Done(), 0, 0, 0, 0, "")
        for reply in self._engine.map(Weigh(task), numbers):
            account += Weighed(Done(), reply.words, reply.size, reply.read, reply.count, "")
            yield reply.content
        self._enter(task, numbers, account)

    def sum(self, task: Task[R]) -> R:
        total = self._engine.sum(Weigh(task))
        self._enter(task, self.numbers(), total)
        return total.content

    def close(self) -> None:
        self._engine.close()
        super().close()

    def _enter(self, task: Task[Any], numbers: Sequence[int], replies: Weighed[Any]) -> None:
        sent = [weigh(task.for_shard(number)) for number in numbers]
        name = type(task.for_shard(numbers[0]) if isinstance(task, Scatter) else task).__name__
        self._rounds.append(
            Round(
                phase=self.phase,
                task=name,
                messages=len(sent) + replies.count,
                words_up=replies.words,
                words_down=sum(words for words, _ in sent),
                bytes_up=replies.size,
                bytes_down=sum(size for _, size in sent),
                bytes_read=replies.read,
                exchange=len(numbers) < len(self.rows),
            )
        )
