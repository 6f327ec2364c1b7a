"""The rounds of a run: a method, and the next one, until there is a reason to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import numpy as np

from localpower.checkpoint import CheckpointWriter, Snapshot
from localpower.core.certificate import Certificate
from localpower.core.errors import ConvergenceWarning, warn
from localpower.core.ledger import Record
from localpower.core.linalg import Array
from localpower.core.share import Reach, Share
from localpower.engines.base import Engine
from localpower.engines.ledgered import Ledgered
from localpower.engines.participation import LastProducts, Sampled
from localpower.methods import Choice, Start
from localpower.methods.growing import Growth
from localpower.methods.state import Doubt, State
from localpower.progress import Progress
from localpower.stopping import (
    REASONS,
    Outcome,
    StoppingRule,
    on_course,
    returns_certified_basis,
)

Callback = Callable[[Record, State], Any]
ROUNDS = 30  # of a method that is asked for, at most by default
PATIENCE = 3  # times the predicted rounds after which `auto` takes another method


def doubt_of(rule: StoppingRule, rng: np.random.Generator) -> Doubt | None:
    """When probes are sent; never where only a proof counts."""
    if not rule.learns:
        return None
    seed = int(rng.spawn(1)[0].integers(1 << 63))
    return Doubt(seed, rule.certainty, rule.certificate)


class Relay:
    """The states of a method, and of the next one where the first does not get there.

    A leg is a method, its states, and after how many rounds it is `late`; None is never. Methods
    that ran earlier, `leg` of them, took so many rounds and steps, `before`. The method has taken
    `own` rounds; to be spared the last one is `worth` so many.
    """

    def __init__(
        self,
        legs: Sequence[tuple[Any, Iterator[State], int | None]],
        before: tuple[int, int] = (0, 0),
        leg: int = 0,
        worth: int = 0,
    ) -> None:
        self._legs = list(legs)
        self._last = leg + len(legs) - 1
        self.over = False  # whether the next method follows the last state
        self.late, self.own, self.worth = False, 0, worth
        self.method: Any = legs[0][0]
        self.before = before

    def __iter__(self) -> Iterator[State]:
        done = self.before
        while self._legs:
            self.method, states, rounds = self._legs.pop(0)
            self.over = False
            self.before = before = done
            for state in states:
                self.own, self.late = state.round, rounds is not None and state.round >= rounds
                done = before[0] + state.round, before[1] + state.steps
                yield replace(state, round=done[0], steps=done[1]) if before[0] else state
                if self.over:
                    break

    @property
    def leg(self) -> int:
        """The number of the method that runs."""
        return self._last - len(self._legs)

    def skip(self) -> bool:
        """Go on with the next method, if there is one."""
        self.over = bool(self._legs)
        return self.over


def relay_of(
    choice: Choice,
    engine: Engine,
    start: Start,
    growth: Growth | None = None,
    past: Snapshot | None = None,
) -> Relay:
    """The method that was chosen, and what follows where it is too slow or not exact enough.

    From a `past` on, the method whose state it has goes on.
    """
    patience = max(ROUNDS, PATIENCE * choice.rounds)
    methods = (choice.method, *choice.others)
    begins = [start]
    begins += [replace(start, state=None, rng=rng) for rng in start.rng.spawn(len(choice.others))]
    if (doubt := start.doubt) is not None:  # all share one chance to be misled
        doubts = (replace(doubt, first=1 + n, every=len(methods)) for n in range(len(methods)))
        begins = [replace(begin, doubt=own) for begin, own in zip(begins, doubts, strict=True)]
    legs = [(method, begin, patience) for method, begin in zip(methods, begins, strict=True)]
    before = (0, 0)
    if past is not None:
        del legs[: past.leg]
        before, (method, begin, _) = past.before, legs[0]
        own = past.state.round - before[0], past.state.steps - before[1]
        if growth is not None:
            growth.rank = past.state.rank
        if (past.over or not method.iterates) and len(legs) > 1:
            before = past.state.round, past.state.steps
            del legs[0]
        else:
            state = replace(past.state, round=own[0], steps=own[1])
            legs[0] = method, replace(begin, state=state), patience

    def run(method: Any, begin: Start) -> Iterator[State]:  # draws its start when its turn comes
        if growth is None:
            yield from method.states(engine, begin)
        else:
            yield from growth.states(method, engine, begin)

    first = 1 + len(choice.others) - len(legs)
    legs_of_states = [(m, run(m, begin), n) for m, begin, n in legs]
    relay = Relay(legs_of_states, before, first, choice.worth)
    if past is not None:
        relay.method = method  # until there is a round of the next one
    return relay


def follow(
    states: Relay,
    engine: Ledgered,
    rule: StoppingRule,
    callback: Callback | None,
    writer: CheckpointWriter,
    past: Snapshot | None,
    display: Progress,
) -> Outcome:
    """Run a method until there is a reason to stop, after what it did in the `past`."""
    state = None if past is None else past.state
    found = None if state is None else rule.certificate(state)
    history = [] if past is None else list(past.history)
    reason = None if past is None else past.reason
    if past is not None:
        engine.restore(past.records)
    left = 0 if reason is not None else max(0, rule.max_rounds - len(history))
    account = Account(engine, history, 0 if state is None else state.steps)
    for state in islice(states, left):
        found = rule.certificate(state)
        record = account.enter(state, found)
        reason = rule.verdict(state, found, history, account.spent, account.seconds)
        tie = reason == "residual" and found is not None and found.vanishing
        if reason is not None and (tie or REASONS[reason].given_up) and states.skip():
            reason = None
        own = history[-states.own :]
        if reason is None and states.late and not on_course(own, found, rule.tol, states.worth):
            states.skip()
        display.round(history)
        ended = False
        if callback is not None:
            with nullcontext() if getattr(callback, "silent", False) else display.courteous():
                ended = bool(callback(record, state.answer()))
        if writer.due(state, ended or reason is not None):
            records = engine.ledger.phase("iterate").records
            done = state, tuple(history), records, reason
            writer.keep(Snapshot(*done, states.leg, states.before, states.over))
        if ended or reason is not None:
            reason = "callback" if ended else reason
            break
    if state is None:
        raise ValueError(
            "schedule ends before the first round: its first number of steps is 0; give 1 or more"
        )
    reason = reason or ("max_rounds" if len(history) >= rule.max_rounds else "end")
    return Outcome(state, tuple(history), reason, found)


def present(
    engine: Engine, rate: float, rng: np.random.Generator, last: LastProducts | None
) -> Engine:
    """The shards that take part in a round of a method."""
    return engine if rate == 1 else Sampled(engine, rate, rng.spawn(1)[0], last)


def growth_of(share: Share | None, rng: np.random.Generator) -> Growth | None:
    """What makes a method follow a share, if one is asked for."""
    return None if share is None else Growth(share, rng.spawn(1)[0])


def reach_of(rule: StoppingRule, state: State, sizes: Array) -> dict[str, Any] | None:
    """What is known of the share that was asked for, of the components that are returned.

    Their singular values are of these very components, whatever the state knows of others.
    """
    if rule.share is None:
        return None
    found, share = rule.reach(state), rule.share
    squares = np.square(sizes.astype(np.float64))
    lost = len(sizes) * share.error(float(squares[0])) + share.slack
    reached = max(float(squares.sum()) - lost, 0.0) / (share.trace or 1.0)
    if found is None:
        found = Reach(share.part, reached, 1.0, False, 1.0, False)
    found = replace(found, reached=reached)
    if reached <= share.part and len(sizes) < share.limit and not found.settled:
        warn(
            f"rank={share.part:g} was not reached: {len(sizes)} components explain {reached:.3%}; "
            "raise max_rounds or the budget",
            ConvergenceWarning,
        )
    return asdict(found)


class Account:
    """Makes a record of each round from what the ledger and the clock say since the last."""

    def __init__(self, engine: Ledgered, history: list[Record], steps: int) -> None:
        self.engine, self.history, self.steps = engine, history, steps
        self.spent = sum(record.bytes_up + record.bytes_down for record in history)
        self.seconds = sum(record.seconds for record in history)
        self.seen, self.before = engine.hops, time.perf_counter()

    def enter(self, state: State, found: Certificate | None) -> Record:
        """Put a round into the history."""
        traffic, now = self.engine.since(self.seen), time.perf_counter()
        record = Record(
            round=state.round,
            steps=state.steps - self.steps,
            bytes_up=traffic.bytes_up,
            bytes_down=traffic.bytes_down,
            seconds=now - self.before,
            bytes_read=traffic.bytes_read,
            angle=None if found is None else found.angle,
            residual=None if found is None else found.residual,
            proven=None if found is None else found.proven,
            p=None if found is None else found.p,
        )
        self.steps, self.seen, self.before = state.steps, self.seen + traffic.hops, now
        self.history.append(record)
        self.spent += record.bytes_up + record.bytes_down
        self.seconds += record.seconds
        return record


def answer_of(
    outcome: Outcome, reason: str, tol: float, dtype: np.dtype[Any]
) -> tuple[Array, bool]:
    """The basis that is returned, and whether it is the one that the certificate is about."""
    basis, known = outcome.state.answer().basis, outcome.state.told
    certified = outcome.state.joined is not None or returns_certified_basis(outcome.history[-1])
    if known is not None and (REASONS[reason].final or (tol > 0 and certified)):
        return np.ascontiguousarray(known[0][:, : basis.shape[1]], dtype=dtype), True
    return basis, False


def plain(found: Certificate | None) -> dict[str, Any] | None:
    """A certificate as it is kept in the record of a run."""
    return None if found is None else asdict(found) | {"residuals": found.residuals.tolist()}
