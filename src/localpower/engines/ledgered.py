"""A wrapper that keeps the account of every round."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, cast

from localpower.core.ledger import Ledger, Round, weigh
from localpower.engines.base import Engine
from localpower.worker.replies import Done, MeasuredReply
from localpower.worker.shard import Shard
from localpower.worker.tasks import Measure, R, Scatter, Task

KEPT = 200  # rounds at the start of a run, and at its end, whose times are kept


class Ledgered(Engine):
    """Keeps the account of every round that passes through; `phase` names what rounds are for.

    Questions to some shards only are exchanges, besides the rounds; unless shards are `sampled`,
    and a round asks some.
    """

    sampled = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.latency, self.bandwidth, self.flops = engine.latency, engine.bandwidth, engine.flops
        self.only_sums = engine.only_sums
        self._rounds: list[Round] = []
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._timed, self._began = 0, perf_counter()
        self.phase = "setup"

    def restore(self, records: Iterable[Round]) -> None:
        """Put rounds of an earlier process into the account."""
        self._rounds.extend(records)

    @property
    def ledger(self) -> Ledger:
        """The account so far."""
        return self.since(0)

    @property
    def hops(self) -> int:
        """How many rounds are in the account."""
        return len(self._rounds)

    def since(self, hops: int) -> Ledger:
        """The account without its first `hops` rounds; takes no longer the more those are."""
        return Ledger(tuple(self._rounds[hops:]))

    @property
    def timeline(self) -> dict[str, Any]:
        """What rounds took, as plain JSON; of very many, the first and last.

        Of each, when it began and the `seconds` that replies were waited for, how many replies came
        and were `timed` where they were made, the sum of their times, `work`, and the `slowest`, as
        pairs of seconds and shard.
        """
        rounds = [
            entry
            | {name: round(entry[name], 6) for name in ("start", "seconds", "work")}
            | {"slowest": [[round(time, 6), shard] for time, shard in entry["slowest"]]}
            for entry in (*self._first, *self._last)
        ]
        return {"at_once": self.size, "left_out": self._timed - len(rounds), "rounds": rounds}

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
        account = MeasuredReply(Done(), 0, 0, 0, 0, "", 0)
        began = start = perf_counter()
        waited = 0.0
        for reply in self._engine.map(Measure(task), numbers):
            account += replace(cast(MeasuredReply[Any], reply), content=Done())
            waited += perf_counter() - start
            yield reply.content
            start = perf_counter()
        self._enter(task, numbers, account, began, waited + perf_counter() - start)

    def sum(self, task: Task[R]) -> R:
        began = perf_counter()
        total = self._engine.sum(Measure(task))
        self._enter(task, self.numbers(), total, began, perf_counter() - began)
        return total.content

    def close(self) -> None:
        self._engine.close()
        super().close()

    def _enter(
        self,
        task: Task[Any],
        numbers: Sequence[int],
        replies: MeasuredReply[Any],
        began: float,
        seconds: float,
    ) -> None:
        count = len(numbers)
        if isinstance(task, Scatter):
            tasks = [task.for_shard(number) for number in numbers]
            task, sent = tasks[0], [sum(each) for each in zip(*map(weigh, tasks), strict=True)]
        else:
            sent = [count * each for each in weigh(task)]
        name = type(task).__name__
        self._rounds.append(
            Round(
                phase=self.phase,
                task=name,
                messages=count + replies.count,
                words_up=replies.words,
                words_down=sent[0],
                bytes_up=replies.size,
                bytes_down=sent[1],
                bytes_read=replies.read,
                exchange=count < len(self.rows) and not self.sampled,
            )
        )
        self._timed += 1
        (self._first if self._timed <= KEPT else self._last).append(
            {
                "phase": self.phase,
                "task": name,
                "start": began - self._began,
                "seconds": seconds,
                "replies": replies.count,
                "timed": replies.timed,
                "work": replies.seconds,
                "slowest": replies.times(),
            }
        )
