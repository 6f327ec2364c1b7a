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

import numpy as np

from localpower.core.alignment import ALIGNMENTS, to_first
from localpower.core.certificate import rayleigh_ritz
from localpower.core.engine import Engine
from localpower.core.linalg import Array, fold, orth, qr
from localpower.core.precision import Narrow, narrowed, widened
from localpower.core.schedule import Adaptive, Schedule
from localpower.core.tasks import PowerSteps, Product


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a method stands: its basis after so many rounds and power steps.

    `exact` is a basis X, this one or the one before, and its exact image ``AᵀA X``, where the
    method has both: what a certificate is made from. `pace` is how many steps the next round takes,
    where that is adapted to what the rounds before achieved. `noise` is what rounding for the wire
    may have done to the image, relative to the largest eigenvalue, and `reference` a basis with an
    image that was not rounded.
    """

    basis: Array
    round: int = 0
    steps: int = 0
    exact: tuple[Array, Array] | None = None
    pace: int = 0
    noise: float = 0.0
    reference: tuple[Array, Array] | None = None

    def ritz(self) -> tuple[Array, Array] | None:
        """Ritz values and residuals, or a matrix with the same inner products, where known."""
        if self.exact is None:
            return None
        values, X, G = rayleigh_ritz(*self.exact)
        return values, G - X * values

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
    narrow : Narrow, optional
        How messages are rounded; needs `exact`.
    """
    while (p := state.pace or schedule(state.round)) > 0:
        if narrow is not None and p == 1:
            state = narrow_step(engine, state, narrow)
            yield state
            continue
        Z, rotate = state.basis, align if p > 1 else "none"  # for p = 1 all Z_i are Z
        reply = "" if narrow is None else narrow.name
        task = PowerSteps(narrowed(Z, reply), p, send_first=exact and p > 1, reply=reply)
        if rotate == "none" or align_at == "worker":
            total = engine.sum(replace(task, align=rotate))
        else:
            replies = engine.map(replace(task, send_basis=True), engine.anchor_first())
            total = fold(aligned(replies, rotate), len(engine.rows))
        Y, first = total.product, total.first if p > 1 else total.product
        if narrow is not None:
            Y, Z = widened(Y), widened(task.basis)
            first = None if first is None else widened(first)
        basis = orth(Y, overwrite=not exact).astype(engine.dtype, copy=False)
        known = (Z, first) if exact and first is not None else None
        pace = 0
        if isinstance(schedule, Adaptive) and known is not None:
            before = residual(*state.exact) if state.exact is not None else np.inf
            pace = schedule.pace(p, residual(*known), before)
        state = State(basis, state.round + 1, state.steps + p, known, pace)
        yield state


def narrow_step(engine: Engine, state: State, narrow: Narrow) -> State:
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
    product = widened(engine.sum(PowerSteps(sent, 1, reply=name)).product)
    X, R = qr(widened(sent) + start)
    Y = np.ascontiguousarray(np.linalg.solve(R.T, (product + image).T).T)
    _, X, Y = rayleigh_ritz(X, Y)
    return State(
        basis=orth(Y).astype(engine.dtype, copy=False),
        round=state.round + 1,
        steps=state.steps + 1,
        exact=(X, Y),
        noise=noise,
        reference=reference if name else (X, Y),
    )


def residual(X: Array, image: Array) -> float:
    """What of the image of an orthonormal X is outside of its span, as a share."""
    R = image - X @ (X.T @ image)
    return float(np.linalg.norm(R) / (np.linalg.norm(image) or 1.0))


def aligned(replies: Iterable[Product], rotate: str) -> Iterator[Product]:
    """Turn products towards that of the first reply, by the bases they were taken from."""
    firsts: list[Array | None] = []

    def pairs() -> Iterator[tuple[Array, Array]]:
        for reply in replies:
            firsts.append(reply.first)
            yield reply.pair()

    for product in to_first(pairs(), rotate):
        yield Product(product, first=firsts.pop(0))
