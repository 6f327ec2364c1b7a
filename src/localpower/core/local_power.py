"""LocalPower, Algorithm 1 of the paper, and what it contains: DPI and one-shot averaging.

Start reading here. A round broadcasts the basis ``Z``; shard i does p power steps of its own,
``Z_i ← orth(M_i Z_i)``, and sends its last product ``Y_i = M_i Z_i``; the server turns the products
towards each other and averages, ``Y = Σ p_i Y_i O_i``; the next basis is ``orth(Y)``.

Since ``p_i M_i = (s_i/n)(A_iᵀA_i/s_i) = A_iᵀA_i/n``, shards send ``A_iᵀA_i Z_i`` and the server
only adds: the common 1/n does not change ``orth``, and a shard without rows counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from localpower.core.alignment import ALIGNMENTS, to_first
from localpower.core.certificate import (
    ROUNDING,
    Certificate,
    Known,
    Ritz,
    certify,
    rayleigh_ritz,
)
from localpower.core.engine import Engine
from localpower.core.evidence import Probes, draw
from localpower.core.linalg import Array, fold, orth, qr
from localpower.core.precision import Narrow, narrowed, widened
from localpower.core.schedule import Adaptive, Schedule
from localpower.core.tasks import PowerSteps, Product

RIPE = 0.1  # residual of the last vector, of its value, from which on probes are drawn
BETTER, LONG = 3, 1  # how much larger a base is better, where probes of this degree told nothing
MOST_DRAWS = 8  # probes that follow others which told nothing, as their base was poor
RESTING = 0.5  # of the chance that is allowed: with so little, probes need not be sent
LARGER = 1e-3  # how much larger than what is known a direction is that was missed
APART = 1e-2  # sine from which on a direction of the probes' base counts as one of its own


@dataclass(frozen=True, slots=True)
class Doubt:
    """When probes are drawn, and from which seed: where a state does not prove what it claims.

    They rest as long as a state's certificate is more certain than `certainty`. `before` is how
    many draws another method may have made.
    """

    seed: int
    certainty: float
    certificate: Callable[[State], Certificate | None]
    before: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a method stands: its basis after so many rounds and power steps.

    `exact` is a basis X, this one or the one before, and its exact image ``AᵀA X``, where the
    method has both: what a certificate is made from. `pace` is how many steps the next round takes,
    where that is adapted to what the rounds before achieved. `noise` is what rounding for the wire
    may have done to the image, relative to the largest eigenvalue, and `reference` a basis with an
    image that was not rounded.

    `hidden` bounds the eigenvalues outside of the search space. `probes` tell the chance of there
    being a large one outside of their `base`, a basis and its image. `joined` is `exact` with that:
    it has all of the base but for a little, in which as much as `lacking` may hide. `draws` counts
    probes; while they are `resting` they are not sent.
    """

    basis: Array
    round: int = 0
    steps: int = 0
    exact: tuple[Array, Array] | None = None
    pace: int = 0
    noise: float = 0.0
    reference: tuple[Array, Array] | None = None
    hidden: float = float("inf")
    probes: Probes | None = None
    base: tuple[Array, Array] | None = None
    joined: tuple[Array, Array] | None = None
    lacking: float = 0.0
    draws: int = 0
    resting: bool = False
    PROBES: ClassVar[int] = 2  # columns: few, where there are many rounds

    def ritz(self) -> Ritz | None:
        """Ritz pairs, where they are known."""
        return None if self.told is None else Ritz.of(*self.told)

    @property
    def told(self) -> tuple[Array, Array] | None:
        """What a certificate is about: an orthonormal basis and its exact image."""
        return self.joined or self.exact

    def certificate(
        self, rank: int, known: Known, tol: float, certainty: float
    ) -> Certificate | None:
        """What is known of the leading vectors, for one who wants `tol` with that `certainty`."""
        found = self.ritz()
        if found is None:
            return None
        passing = self.noise * float(found.values[0])
        chance = None if self.probes is None else self.chance
        more = replace(
            known,
            passing=passing,
            hidden=self.hidden,
            chance=chance,
            covered=() if chance is None else tuple(self.covered(found)),
        )
        return certify(found, rank, more, tol, certainty)

    def chance(self, value: float) -> float:
        """The p of an eigenvalue of this `value` or more outside of the search space."""
        return 1.0 if self.probes is None else self.probes.chance(value)

    def covered(self, found: Ritz) -> Iterator[tuple[int, float]]:
        """How many leading Ritz vectors cover the base of the probes, but for how much."""
        yield len(found.values), self.lacking

    @property
    def probe_block(self) -> Array | None:
        """What probes want to have multiplied next."""
        if self.probes is None or self.resting or not self.probes.following.shape[1]:
            return None
        return self.probes.following

    def learnt(self, sent: Array | None, product: Array | None) -> Probes | None:
        """The probes after a round; without a reply to all of them there are none."""
        if sent is None or self.probes is None:
            return self.probes
        return None if product is None else self.probes.learn(sent, product)

    def doubted(self, doubt: Doubt | None, rank: int, base: Array, eps: float) -> Self:
        """Draw probes of what is outside of `base` if that is worth it; drop them if not needed."""
        found, known = self.ritz(), None if doubt is None else doubt.certificate(self)
        if doubt is None or found is None or known is None:
            return self
        if known.proven:
            return replace(self, probes=None)
        if self.probes is not None:
            ended = not self.probes.following.shape[1] and not known.sure(doubt.certainty)
            poor = base.shape[1] >= BETTER * self.probes.base.shape[1]
            ended |= poor and known.p >= 1 and self.probes.degree >= LONG
            if not ended or self.draws >= MOST_DRAWS:
                return replace(self, resting=known.p <= RESTING * doubt.certainty)
        ripe = np.linalg.norm(found.residuals[:, rank - 1]) <= RIPE * found.values[rank - 1]
        ripe = ripe and base.shape[1] < len(base)
        return self.probed(doubt, base, eps) if ripe else self

    def missed(self, rank: int) -> Array:
        """Directions that probes have found to be larger than vector number `rank` of the space."""
        found = self.ritz()
        if self.probes is None or found is None:
            return self.basis[:, :0]
        value = float(found.values[min(rank, len(found.values)) - 1])
        return self.probes.above((1 + LARGER) * value)

    def probed(self, doubt: Doubt, base: Array, eps: float) -> Self:
        """Draw probes of what is outside of `base`."""
        draws = self.draws + 1
        number = doubt.before + draws
        probes = draw(base, (doubt.seed, number), number, eps, self.PROBES)
        return replace(self, probes=probes, draws=draws, resting=False)

    def giving_up(self, value: float, coupling: float) -> Self:
        """Drop vectors from the search space: their largest Ritz value, and their residual."""
        hidden = self.hidden
        if hidden < np.inf:
            hidden = (value + hidden) / 2 + float(np.hypot((value - hidden) / 2, coupling))
        return replace(self, hidden=hidden)

    def answer(self) -> State:
        """The state as those outside of the method see it: its basis is what was found so far."""
        return self


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
    narrow: Narrow | None = None,
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
    narrow : Narrow, optional
        How messages are rounded; needs `exact`.
    """
    rank = rank or state.basis.shape[1]
    while (p := state.pace or schedule(state.round)) > 0:
        if exact:
            state = _doubted(state, doubt, rank, engine)
        block = state.probe_block
        probes = None if block is None else to_send(block, engine.dtype, narrow)
        if narrow is not None and p == 1:
            state = narrow_step(engine, state, narrow, probes)
            yield state
            continue
        Z, rotate = state.basis, align if p > 1 else "none"  # for p = 1 all Z_i are Z
        reply = "" if narrow is None else narrow.name
        task = PowerSteps(
            narrowed(Z, reply), p, send_first=exact and p > 1, reply=reply, probes=probes
        )
        if rotate == "none" or align_at == "worker":
            total = engine.sum(replace(task, align=rotate))
        else:
            replies = engine.map(replace(task, send_basis=True), engine.anchor_first())
            total = fold(aligned(replies, rotate), len(engine.rows))
        Y, first = total.product, total.first if p > 1 else total.product
        known = None
        if narrow is not None:
            Y, Z = widened(Y), widened(task.basis)
            first = None if first is None else widened(first)
        if exact and first is not None:
            known = (Z, first) if narrow is None else orthonormal(Z, first)
        basis = orth(Y, overwrite=not exact).astype(engine.dtype, copy=False)
        pace = 0
        if isinstance(schedule, Adaptive) and known is not None:
            before = residual(*state.exact) if state.exact is not None else np.inf
            pace = schedule.pace(p, residual(*known), before)
        noise = 0.0 if narrow is None or known is None else narrow.unit
        state = replace(
            state,
            basis=basis,
            round=state.round + 1,
            steps=state.steps + p,
            exact=known,
            pace=pace,
            noise=noise,
            probes=state.learnt(probes, total.probes),
        )
        state = _joined(state)
        yield state


def to_send(block: Array, dtype: np.dtype[Any], narrow: Narrow | None) -> Array:
    """Probes as they are sent: half the digits are enough, as what counts is their size."""
    return np.ascontiguousarray(block, dtype if narrow is None else np.float32)


def _doubted(state: State, doubt: Doubt | None, rank: int, engine: Engine) -> State:
    """Draw probes of what is outside of the basis whose image is known, once that is worth it."""
    exact = state.exact
    if exact is None or (state.noise and state.probes is None):  # an exact image is needed
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
    U, sizes, Vt = np.linalg.svd(Z - X @ inside, full_matrices=False)
    apart = min(int((sizes > APART).sum()), len(X) - X.shape[1])
    more = (image - G @ inside) @ (Vt[:apart].T / sizes[:apart])
    values, X, G = rayleigh_ritz(np.hstack([X, U[:, :apart]]), np.hstack([G, more]))
    less = float(sizes[apart:].max(initial=0.0))
    coupling = float(np.linalg.norm(image - Z @ (Z.T @ image), 2))
    lacking = 2 * coupling * less + float(values[0]) * less**2
    eps = float(np.finfo(state.basis.dtype).eps)
    noise = max(state.noise, ROUNDING * eps / float(sizes[:apart].min(initial=1.0)))
    return replace(state, joined=(X, G), lacking=lacking, noise=noise)


def orthonormal(X: Array, image: Array) -> tuple[Array, Array]:
    """Make a basis that was rounded orthonormal again, and change its image with it."""
    Q, R = qr(X)
    return Q, np.ascontiguousarray(np.linalg.solve(R.T, image.T).T)


def narrow_step(engine: Engine, state: State, narrow: Narrow, probes: Array | None = None) -> State:
    """One power step in as few bytes as do no harm: rounded, as a difference, or in full."""
    Z, reference, k = state.basis.astype(np.float64), state.reference, narrow.rank
    tolerable, name = narrow.tolerable(narrow.standing(state.exact, state.noise)), narrow.name
    start: Array | float = 0.0
    image: Array | float = 0.0
    noise = narrow.unit
    if noise > tolerable and reference is not None:
        start, image = reference
        for columns in (slice(0, k), slice(k, None)):  # the leading ones move less and less
            turn = ALIGNMENTS["procrustes"](Z[:, columns], start[:, columns])
            Z[:, columns] = Z[:, columns] @ turn - start[:, columns]
        noise *= float(np.linalg.norm(Z[:, :k], 2))
    if noise > tolerable:
        Z, start, image, name, noise = Z + start, 0.0, 0.0, "", 0.0
    sent = narrowed(Z.astype(engine.dtype, copy=False), name)
    answer = engine.sum(PowerSteps(sent, 1, reply=name, probes=probes))
    X, Y = orthonormal(widened(sent) + start, widened(answer.product) + image)
    _, X, Y = rayleigh_ritz(X, Y)
    return _joined(
        replace(
            state,
            basis=orth(Y).astype(engine.dtype, copy=False),
            round=state.round + 1,
            steps=state.steps + 1,
            exact=(X, Y),
            noise=noise,
            reference=reference if name else (X, Y),
            probes=state.learnt(probes, answer.probes),
        )
    )


def residual(X: Array, image: Array) -> float:
    """What of the image of an orthonormal X is outside of its span, as a share."""
    R = image - X @ (X.T @ image)
    return float(np.linalg.norm(R) / (np.linalg.norm(image) or 1.0))


def aligned(replies: Iterable[Product], rotate: str) -> Iterator[Product]:
    """Turn products towards that of the first reply, by the bases they were taken from."""
    exact: list[tuple[Array | None, Array | None]] = []

    def pairs() -> Iterator[tuple[Array, Array]]:
        for reply in replies:
            exact.append((reply.first, reply.probes))
            yield reply.pair()

    for product in to_first(pairs(), rotate):
        first, probes = exact.pop(0)
        yield Product(product, first=first, probes=probes)
