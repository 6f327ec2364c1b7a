"""LocalPower, Algorithm 1 of the paper, and what it contains: DPI and one-shot averaging.

Start reading here. A round broadcasts the basis ``Z``; shard i does p power steps of its own,
``Z_i ← orth(M_i Z_i)``, and sends its last product ``Y_i = M_i Z_i``; the server turns the products
towards each other and averages, ``Y = Σ p_i Y_i O_i``; the next basis is ``orth(Y)``.

Since ``p_i M_i = (s_i/n)(A_iᵀA_i/s_i) = A_iᵀA_i/n``, shards send ``A_iᵀA_i Z_i`` and the server
only adds: the common 1/n does not change ``orth``, and a shard without rows counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar

import numpy as np

from localpower.core.alignment import ALIGNMENTS, to_first
from localpower.core.certificate import ROUNDING, ritz_turn
from localpower.core.checks import whole
from localpower.core.linalg import Array, fold, orth, qr, svd
from localpower.core.rounding import UNITS, from_wire, to_wire
from localpower.engines.base import Engine
from localpower.methods import work
from localpower.methods.base import (
    Method,
    Start,
    choice,
    option,
    width_option,
    wire_option,
)
from localpower.methods.costs import MOST_ROUNDS, Decay, Estimate, Problem
from localpower.methods.rounding import WireRounding
from localpower.methods.schedule import Adaptive, Function, Schedule, constant, parse, read, settled
from localpower.methods.state import Doubt, State
from localpower.worker.replies import Product
from localpower.worker.tasks import PowerSteps

STEPS = 4  # local steps of a round
FORESEEN = 10_000  # rounds that the choice of the kernel looks ahead
PLACES = ("server", "worker")
APART = 1e-2  # sine from which on a direction of the probes' base counts as one of its own


def _steps() -> Any:
    return option(STEPS, "local power iterations per round, p", whole, int)


def _schedule() -> Any:
    help = "how p changes: constant, halving, linear, adaptive, halving:3, or times: {0,4,8}"
    return option("constant", help, lambda _, value: settled(value), read)


def _align() -> Any:
    return choice("procrustes", ALIGNMENTS, "how local bases are aligned before averaging")


def _align_at() -> Any:
    return choice("server", PLACES, "where they are aligned")


@dataclass(frozen=True, slots=True)
class LocalPower(Method):
    """LocalPower, Algorithm 1 of the paper: several local power steps in every round.

    Parameters
    ----------
    steps : int
        Local power iterations per round, p.
    schedule : str, set of int, or callable
        How p changes: ``"constant"``, ``"halving"``, ``"linear"`` (these two also as
        ``"halving:3"``, to decay every third round), ``"adaptive"`` (halved when a round achieves
        little; takes dr words more in uploads), the set of communication times, or a function
        from the number of the round to its steps, which is called when the round begins.
    align : {"procrustes", "signs", "none"}
        How local bases are aligned before averaging.
    align_at : {"server", "worker"}
        ``"server"`` aligns to the largest shard's basis, as in the paper; ``"worker"`` to the
        broadcast basis, which halves the upload and lets the engine add on the way.
    width : int, optional
        Number of columns to iterate, r, at least the rank. By default the rank, or 5 more with a
        tolerance.
    wire : {"float64", "float32", "bfloat16"}
        The type that messages are rounded to, wherever that does not limit the result.

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 20)) * np.arange(20, 0, -1)
    >>> result = lp.svd(X, 3, lp.LocalPower(steps=4, schedule="halving"), workers=4, rng=0)
    >>> result.run["method"], len(result.history)
    ('local_power', 30)
    """

    steps: int = _steps()
    schedule: str | tuple[int, ...] | Schedule = _schedule()
    align: str = _align()
    align_at: str = _align_at()
    width: int | None = width_option()
    wire: str = wire_option()

    about: ClassVar[str] = "the paper's Algorithm 1: local power steps between averages"
    iterates: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    sends_probes: ClassVar[bool] = True
    planned: ClassVar[dict[str, Any]] = {"schedule": "halving"}
    compared: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"schedule": "halving"})

    @property
    def only_sums(self) -> bool:
        """Only where workers align: the server would need each product."""
        return self.align_at == "worker" or self.align == "none"

    @property
    def repeatable(self) -> bool:
        """Nobody can compare functions of two processes."""
        return not callable(self.schedule)

    @property
    def reuses(self) -> bool:
        """Not where images decide how many steps there are, or how messages are rounded."""
        return self.wire == "float64" and self.schedule != "adaptive"

    def for_sums(self) -> Method | None:
        """Workers align."""
        return super(LocalPower, replace(self, align_at="worker")).for_sums()

    def widest(self, columns: int, rank: int, width: int) -> int:
        return super(LocalPower, self).widest(columns, rank, width) + width  # first step, too

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        schedule = parse(self.schedule, self.steps)
        return _iterate(engine, start, schedule, self.align, self.align_at, self.wire)

    def products(self, rounds: int) -> int:
        schedule, rounds = parse(self.schedule, self.steps), min(rounds, FORESEEN)
        if isinstance(schedule, Function):
            return self.steps * rounds
        return sum(schedule(t) for t in range(rounds))

    def estimate(self, problem: Problem, decay: Decay) -> Estimate:
        """Rounds with 4 and 2 steps first, which send the basis and the exact product, too."""
        power, block = decay.power(), problem.columns * problem.width
        rounds = max(power - STEPS, ceil(power / 2))
        many = min(2, rounds)
        records = [problem.round("PowerSteps", block, 3 * block)] * many
        records += [problem.round("PowerSteps", block, block)] * (rounds - many)
        flops = (rounds + STEPS) * problem.product(problem.width) + rounds * _round_flops(problem)
        return Estimate(records, flops, reaches=rounds < MOST_ROUNDS)


@dataclass(frozen=True, slots=True)
class PowerIteration(Method):
    """Distributed power iteration, DPI: LocalPower with one step a round."""

    width: int | None = width_option()
    wire: str = wire_option()

    about: ClassVar[str] = "distributed power iteration: one step a round"
    iterates: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    sends_probes: ClassVar[bool] = True
    compared: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    @property
    def only_sums(self) -> bool:
        """Products are added."""
        return True

    @property
    def reuses(self) -> bool:
        """Not where images decide how messages are rounded."""
        return self.wire == "float64"

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        return _iterate(engine, start, constant(1), "none", "server", self.wire)

    def products(self, rounds: int) -> int:
        return rounds

    def estimate(self, problem: Problem, decay: Decay) -> Estimate:
        """Rounds of one product."""
        rounds, block = decay.power(), problem.columns * problem.width
        records = [problem.round("PowerSteps", block, block)] * rounds
        flops = rounds * (problem.product(problem.width) + _round_flops(problem))
        return Estimate(records, flops, reaches=rounds < MOST_ROUNDS)


@dataclass(frozen=True, slots=True)
class OneShot(Method):
    """One-shot averaging of the paper: one round of LocalPower with many steps."""

    steps: int = _steps()
    align: str = _align()
    align_at: str = _align_at()
    width: int | None = width_option()

    about: ClassVar[str] = "one-shot averaging: a single round of LocalPower"

    @property
    def only_sums(self) -> bool:
        """Only where workers align."""
        return self.align_at == "worker" or self.align == "none"

    def for_sums(self) -> Method | None:
        """Workers align."""
        return super(OneShot, replace(self, align_at="worker")).for_sums()

    def widest(self, columns: int, rank: int, width: int) -> int:
        return 2 * width  # first step, too

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        schedule = {0: self.steps}
        return _iterate(
            engine, start, lambda t: schedule.get(t, 0), self.align, self.align_at, "float64"
        )

    def products(self, rounds: int) -> int:
        return self.steps


def _iterate(
    engine: Engine, start: Start, schedule: Schedule, align: str, align_at: str, wire: str
) -> Iterator[State]:
    """Run LocalPower as a run wants it; states tell images where somebody looks at them."""
    rounding = start.rounding(wire, engine)
    return local_power(
        engine,
        start.begin(engine),
        schedule=schedule,
        align=align,
        align_at=align_at,
        exact=start.watched or isinstance(schedule, Adaptive) or rounding is not None,
        rank=start.rank,
        doubt=start.doubt,
        rounding=rounding,
    )


def local_power(
    engine: Engine,
    state: State,
    *,
    schedule: Schedule,
    align: str,
    align_at: str = "server",
    exact: bool = False,
    rank: int = 0,
    doubt: Doubt | None = None,
    rounding: WireRounding | None = None,
) -> Iterator[State]:
    """Run LocalPower from `state` and yield the state after every round.

    Parameters
    ----------
    engine : Engine
        Holds the shards.
    state : State
        Its basis, (d, r), is the common start ``Z_0``.
    schedule : callable
        Maps the number of the round to its steps p, 0 to stop. DPI is ``constant(1)``.
    align : {"procrustes", "signs", "none"}
        How bases are turned towards the anchor, the shard with the most rows.
    align_at : {"server", "worker"}
        ``"worker"`` aligns to the broadcast basis instead of the anchor's, so that only a sum
        travels: half the upload, and the engine may add on the way.
    exact : bool
        Have states tell the exact image of the basis before; with p > 1 that is dr words more in
        each upload.
    rank : int
        How many of the columns are asked for; all by default.
    doubt : Doubt, optional
        When to send probes; needs `exact`. By default never.
    rounding : WireRounding, optional
        How messages are rounded; needs `exact`.
    """
    rank = rank or state.basis.shape[1]
    while (p := state.pace or schedule(state.round)) > 0:
        if exact:
            state = _doubted(state, doubt, rank, engine)
        block = state.probe_block
        probes = None if block is None else to_send(block, engine.dtype, rounding)
        if rounding is not None and p == 1:
            state = rounded_step(engine, state, rounding, probes)
            yield state
            continue
        Z, rotate = state.basis, align if p > 1 else "none"  # for p = 1 all Z_i are Z
        reply = "" if rounding is None else rounding.name
        task = PowerSteps(
            to_wire(Z, reply), p, send_first=exact and p > 1, reply=reply, probes=probes
        )
        if rotate == "none" or align_at == "worker":
            total = engine.sum(replace(task, align=rotate))
        else:
            replies = engine.map(replace(task, send_basis=True), engine.anchor_first())
            total = fold(aligned(replies, rotate), len(engine.rows))
        Y, first = total.product, image_of(total, p)
        known = None
        if rounding is not None:
            Y, Z = from_wire(Y), from_wire(task.basis)
            first = None if first is None else from_wire(first)
        noises: Array = np.zeros(0)
        if exact and first is not None:
            known = Z, first
            if rounding is not None:
                Q, image, turn = orthonormal(Z, first)
                known, noises = (Q, image), lost_of(total, turn)
        basis = orth(Y, overwrite=not exact).astype(engine.dtype, copy=False)
        pace = 0
        if isinstance(schedule, Adaptive) and known is not None:
            before = residual(*state.exact) if state.exact is not None else np.inf
            pace = schedule.pace(p, residual(*known), before)
        state = replace(
            state,
            basis=basis,
            round=state.round + 1,
            steps=state.steps + p,
            exact=known,
            pace=pace,
            noises=noises,
            probes=None if total.stale else state.learnt(probes, total.probes),
        )
        state = _joined(state)
        yield state


def image_of(total: Product, steps: int) -> Array | None:
    """The exact image of the basis that was sent; none where earlier products were reused."""
    if total.stale:
        return None
    return total.first if steps > 1 else total.product


def to_send(block: Array, dtype: np.dtype[Any], rounding: WireRounding | None) -> Array:
    """Probes as they are sent: half the digits are enough, as what counts is their size."""
    return np.ascontiguousarray(block, dtype if rounding is None else np.float32)


def _doubted(state: State, doubt: Doubt | None, rank: int, engine: Engine) -> State:
    """Draw probes of what is outside of the basis whose image is known, once that is worth it."""
    exact = state.exact
    if exact is None or (state.noises.any() and state.probes is None):  # an exact image is needed
        return state
    if state.missed(rank).shape[1]:  # it will come into the basis: ask anew what else is hidden
        state = replace(state, probes=None, base=None, joined=None)
    after = state.doubted(doubt, rank, exact[0], float(np.finfo(engine.dtype).eps))
    return replace(after, base=exact) if after.draws > state.draws else after


def _joined(state: State) -> State:
    """Join the base of the probes to the basis whose image is known: both are searched."""
    if state.probes is None or state.base is None or state.exact is None:
        return replace(state, base=None, joined=None, lacking=0.0)
    (X, G), (Z, image) = state.exact, state.base
    inside = X.T @ Z
    U, sizes, Vt = svd(Z - X @ inside)
    apart = min(int((sizes > APART).sum()), len(X) - X.shape[1])
    more = Vt[:apart].T / sizes[:apart]
    X, G = np.hstack([X, U[:, :apart]]), np.hstack([G, (image - G @ inside) @ more])
    values, turn = ritz_turn(X.T @ G)
    less = float(sizes[apart:].max(initial=0.0))
    coupling = float(np.linalg.norm(image - Z @ (Z.T @ image), 2))
    lacking = 2 * coupling * less + float(values[0]) * less**2
    eps = float(np.finfo(state.basis.dtype).eps)
    noises = state.noises if state.noises.size else np.zeros(len(inside))
    added = noises @ np.abs(inside @ more)
    added += ROUNDING * eps * float(values[0]) / sizes[:apart]
    noises = np.append(noises, added) @ np.abs(turn)
    return replace(state, joined=(X @ turn, G @ turn, noises), lacking=lacking)


def orthonormal(X: Array, image: Array) -> tuple[Array, Array, Array]:
    """Make a basis that was rounded orthonormal again, and change its image with it.

    Also returns the matrix that both are multiplied by.
    """
    Q, R = qr(X)
    return Q, np.ascontiguousarray(np.linalg.solve(R.T, image.T).T), np.linalg.inv(R)


def rounded_step(
    engine: Engine, state: State, rounding: WireRounding, probes: Array | None = None
) -> State:
    """One power step in as few bytes as do no harm: rounded, as a difference, or in full."""
    Z, reference, k = state.basis.astype(np.float64), state.reference, rounding.rank
    standing = rounding.standing(state.exact, state.rounding_errors(k)[0])
    tolerable, name = rounding.tolerable(standing), rounding.name
    start: Array | float = 0.0
    image: Array | float = 0.0
    noise = UNITS[name]
    if noise > tolerable and reference is not None:
        start, image = reference
        for columns in (slice(0, k), slice(k, None)):  # the leading ones move less and less
            turn = ALIGNMENTS["procrustes"](Z[:, columns], start[:, columns])
            Z[:, columns] = Z[:, columns] @ turn - start[:, columns]
        noise *= float(np.linalg.norm(Z[:, :k], 2))
    if noise > tolerable:
        Z, start, image, name = Z + start, 0.0, 0.0, ""
    sent = to_wire(Z.astype(engine.dtype, copy=False), name)
    answer = engine.sum(PowerSteps(sent, 1, reply=name, probes=probes))
    Q, Y, turn = orthonormal(from_wire(sent) + start, from_wire(answer.product) + image)
    ritz = ritz_turn(Q.T @ Y)[1]
    X, Y = Q @ ritz, Y @ ritz
    return _joined(
        replace(
            state,
            basis=orth(Y).astype(engine.dtype, copy=False),
            round=state.round + 1,
            steps=state.steps + 1,
            exact=(X, Y),
            noises=lost_of(answer, turn @ ritz),
            reference=reference if name else (X, Y),
            probes=state.learnt(probes, answer.probes),
        )
    )


def lost_of(answer: Product, turn: Array) -> Array:
    """Bound what rounding took from the columns of a product that is turned; empty if nothing."""
    return np.zeros(0) if answer.lost is None else answer.lost @ np.abs(turn)


def residual(X: Array, image: Array) -> float:
    """What of the image of an orthonormal X is outside of its span, as a share."""
    R = image - X @ (X.T @ image)
    return float(np.linalg.norm(R) / (np.linalg.norm(image) or 1.0))


def aligned(replies: Iterable[Product], rotate: str) -> Iterator[Product]:
    """Turn products towards that of the first reply, by the bases they were taken from."""
    exact: list[Product] = []

    def pairs() -> Iterator[tuple[Array, Array]]:
        for reply in replies:
            exact.append(reply)
            yield reply.pair()

    for product in to_first(pairs(), rotate):
        reply = exact.pop(0)
        yield replace(reply, product=product, basis=None)


def _round_flops(problem: Problem) -> float:
    """Operations of the coordinator in a round: two bases."""
    return work.ROUND + 2 * work.orthonormal(problem.columns, problem.width)
