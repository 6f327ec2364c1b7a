"""A wrapper that asks again where a reply is lost, late or wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from localpower.core.errors import (
    DegradedWarning,
    EngineError,
    WireError,
    WorkerFailed,
    WorkerLost,
    warn,
)
from localpower.core.ledger import arrays
from localpower.core.rounding import finite, shape_of
from localpower.engines.base import Engine
from localpower.engines.participation import LastProducts
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.replies import MeasuredReply, Rows
from localpower.worker.shard import Shard
from localpower.worker.tasks import LeftVectors, Measure, R, Shapes, Task

Label = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong in a round, and what was done about it."""

    round: int
    shards: tuple[int, ...]
    what: str
    then: str


class Retrying(Engine):
    """Asks again where a reply is missing, late, wrong or of another round.

    Every question has a key, and replies carry it with the number of their shard: a reply that came
    twice, too late, or in another's place is not taken for one that is missing. After `retries` the
    last error is raised; or, with ``on_loss="degrade"``, the round goes on without those shards:
    with what their last product says of this one where that is known, else with nothing. With
    ``on_loss="reuse"`` that is done for one round: in the next they are asked again, but once. It
    takes a last product of theirs; without that, the error is raised.

    `faults` tells all that happened, `missing` which shards are gone on without, and `answered` how
    often each replied. `last` has products where they may have to stand in for later ones, as for
    shards that are not asked if `keep` says so.
    """

    def __init__(
        self, engine: Engine, retries: int = 2, on_loss: str = "stop", keep: bool = False
    ) -> None:
        self._engine = engine
        self.latency, self.bandwidth, self.flops = engine.latency, engine.bandwidth, engine.flops
        self.only_sums = engine.only_sums
        self._retries, self._on_loss = retries, on_loss
        self._round = 0
        self.last = LastProducts() if keep or on_loss != "stop" else None
        self.faults: list[Fault] = []
        self.missing: set[int] = set()
        self.answered: Counter[int] = Counter()

    @property
    def size(self) -> int:
        return self._engine.size

    def place(self, shards: Sequence[Shard]) -> None:
        super().place(shards)
        for attempt in range(self._retries + 1):
            try:
                self._engine.place(shards)
                return
            except (EngineError, WireError) as error:
                last = attempt == self._retries
                self._note((), f"{type(error).__name__}: {error}", "" if last else "placed again")
                if last:
                    raise

    def close(self) -> None:
        self._engine.close()
        super().close()

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        numbers = self.numbers(order)
        early: dict[int, Any] = {}
        done = 0
        self._round += 1
        gone = frozenset() if self._on_loss == "reuse" else self.missing
        left = sorted((n for n in numbers if n not in gone), key=self.missing.__contains__)
        for attempt in range(self._retries + 1):
            wanted = set(left)
            fault: Exception | None = None
            question = _keyed(task, f"{self._round}.{attempt}")
            try:
                for reply in self._engine.map(question, left):
                    if not self._answers(reply, question, wanted):
                        self._note((), "a reply to another question", "not taken")
                        continue
                    wanted.remove(reply.number)
                    early[reply.number] = reply
                    while done < len(numbers) and ((n := numbers[done]) in early or n in gone):
                        ready = n in early
                        yield self._seen(task, early.pop(n)) if ready else self._instead(task, n)
                        done += 1
            except (EngineError, WireError) as error:
                fault = error
            left = [n for n in left if n in wanted - self._engine.absent]
            if not left:
                break
            fault = fault or WorkerLost(f"no reply came from shards {left}")
            if not self._again(left, fault, attempt, task):
                break
            left = left[1:] + left[:1]  # the first may be why nothing came from the others
        for number in numbers[done:]:
            ready = number in early
            yield self._seen(task, early.pop(number)) if ready else self._instead(task, number)

    def sum(self, task: Task[R]) -> R:
        """Let the engine add; where that fails or shards may be missing, add here."""
        if self.last is not None or type(self._engine).sum is Engine.sum:
            return super().sum(task)
        self._round += 1
        for attempt in range(self._retries + 1):
            question = _keyed(task, f"{self._round}.{attempt}")
            try:
                total: Any = self._engine.sum(question)
                named = total.key, total.number, total.count
                count = len(self.rows) - len(self._engine.absent)
                if named == (question.key, 0, count) and self._sound(total, question):
                    self._do_without(self._engine.absent)
                    return cast(R, total)
                fault: Exception = WorkerFailed(f"a sum of {total.count} replies that is not right")
            except (EngineError, WireError) as error:
                fault = error
            self._again(range(len(self.rows)), fault, attempt, task)
        raise fault

    def _do_without(self, absent: Set[int]) -> None:
        """Take down that the engine goes on without some shards."""
        for number in sorted(absent - self.missing):
            self._miss(number, "left out")

    def _miss(self, number: int, then: str) -> None:
        """Take down that a shard is lost; if none with rows is left, that cannot be made good."""
        self._note((number,), "lost", then)
        self.missing.add(number)
        left = any(rows for n, rows in enumerate(self.rows) if n not in self.missing)
        if not left and self._on_loss == "degrade":
            raise WorkerLost("all shards that have rows are lost; run it again when they are back")

    def _answers(self, reply: Any, question: Any, wanted: Set[int]) -> bool:
        """Whether this is a reply that was asked for; raises if it is one that cannot be right."""
        if reply.key != question.key or reply.number not in wanted:
            return False
        if not self._sound(reply, question):
            raise WorkerFailed(
                f"shard {reply.number} sent arrays of another shape, or numbers that are not finite"
            )
        return True

    def _sound(self, reply: Any, question: Any) -> bool:
        asked = question.task.for_shard(reply.number)
        return sound(reply.content, asked.shapes(self.rows[reply.number], self.columns))

    def _again(self, shards: Sequence[int], fault: Exception, attempt: int, task: Any) -> bool:
        """Prepare for another attempt, and tell whether there is one left."""
        reuse = self._on_loss == "reuse" and self._covered(task, shards)
        known = reuse and self.missing.issuperset(shards)  # since the round before
        last = attempt == self._retries or known
        if not known:
            then = ("asked in the next round" if reuse else "") if last else "asked again"
            self._note(tuple(sorted(shards)), f"{type(fault).__name__}: {fault}", then)
        if last and not reuse and self._on_loss != "degrade":
            raise fault
        if not last or reuse:
            with suppress(EngineError):  # the next attempt will tell
                self._engine.heal(shards)
        return not last

    def lost_rows(self) -> list[dict[str, Any]]:
        """Name the rows that a result does not rest on, and warn."""
        starts = np.cumsum([0, *self.rows])
        lost = [
            {"shard": n, "first_row": int(starts[n]), "rows": int(self.rows[n])}
            for n in sorted(self.missing)
        ]
        count = sum(part["rows"] for part in lost)
        warn(
            f"{count} of {starts[-1]} rows are not in this result: shards {sorted(self.missing)} "
            'were lost; run["degraded"] names them, run["faults"] tells why',
            DegradedWarning,
        )
        return lost

    @property
    def reused(self) -> int:
        """How often an earlier product stood in for one that did not come."""
        return 0 if self.last is None else self.last.used

    def participation(self, rate: float, rounds: int, answered: Mapping[int, int]) -> Label:
        """Who took part, as plain JSON: a label, and what belongs to it.

        `answered` is how often shards replied in so many `rounds`, with the chance `rate` in each.
        """
        lost = [fault for fault in self.faults if fault.what == "lost"]
        again = {number for fault in self.faults for number in fault.shards}
        each = [answered[n] for n in range(len(self.rows))]
        counts = {"rounds": rounds, "answered": each, "reused": self.reused}
        sampled = {"rate": rate, **counts} if rate < 1 else {}
        if self.missing:
            first = min(fault.round for fault in lost)
            lacking = {"shards": sorted(self.missing), "from_round": first}
            return {"label": "without", **lacking, **sampled}
        if sampled:
            return {"label": "sampled", **sampled}
        if lost:
            return {"label": "reused", **counts}
        return {"label": "waited", "shards": sorted(again)} if again else {"label": "complete"}

    def _note(self, shards: tuple[int, ...], what: str, then: str) -> None:
        self.faults.append(Fault(self._round, shards, what.splitlines()[0], then))

    def _seen(self, task: Any, reply: Any) -> Any:
        """Count a reply, and keep products where they may have to stand in for later ones."""
        number = reply.number
        self.answered[number] += 1
        if self.last is not None:
            self.last.keep(task.task.for_shard(number), number, reply.content)
        if number in self.missing:
            self._note((number,), "back again", "its own products are used")
            self.missing.remove(number)
        return reply

    def _covered(self, task: Any, shards: Sequence[int]) -> bool:
        return self.last is not None and self.last.covers(task.task, shards)

    def _instead(self, task: Any, number: int) -> Any:
        """Stand in for a shard that is lost, by its last product where that is known."""
        question, then = task.task.for_shard(number), "its last product was used"
        content: Any
        if self.last is not None and self._covered(task, [number]):
            stand_in = self.last.turned(question, number)
            content = replace(stand_in, stale=self._on_loss == "reuse")
        else:
            content, then = self._of_no_rows(question, number), "left out"
        if number not in self.missing:
            self._miss(number, then)
        return MeasuredReply(content, 0, 0, 0, 0, "", number)

    def _of_no_rows(self, question: Task[Any], number: int) -> Any:
        """What a shard without rows would reply; left vectors of the lost rows are not numbers."""
        if isinstance(question, LeftVectors):
            shape = self.rows[number], question.rotation.shape[1]
            return Rows(np.full(shape, np.nan, self.dtype))
        nothing = np.empty((0, self.columns), self.dtype)
        try:
            return question(LocalMatrix(Shard((nothing,), self.columns, self.dtype, number=number)))
        except Exception as error:
            raise WorkerLost(
                f"shard {number} is lost, and the run cannot go on without it"
            ) from error


def _keyed(task: Any, key: str) -> Any:
    return Measure(task.task, key)


def sound(reply: Any, shapes: Shapes) -> bool:
    """Whether the arrays of a reply can be used: they have these shapes, and all is finite."""
    return all(
        ((shape := shape_of(A)) == shapes[name] or _like(shape, shapes[name]))
        and (name in EXTREMES or finite(A))
        for name, A in arrays(reply)
    )


def _like(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    same = len(shape) == len(wanted)
    return same and all(n in (None, m) for n, m in zip(wanted, shape, strict=True))


EXTREMES = ("low", "high")  # of no rows, these are infinite
