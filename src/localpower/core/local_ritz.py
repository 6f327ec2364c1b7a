"""LocalRitz (an extension of the paper): exact block products, and local work for the next block.

The server keeps a search space S, (d, c) and orthonormal, and the exact ``AᵀA S``. A round sends a
block Q, aggregates ``AᵀA Q``, adds both to the space, and takes the Ritz vectors X of all of it.
The next block is what is proposed, less what is in S already:

- ``"residual"``: ``R = AᵀA X - XΘ``. This is block Krylov, which local work has to beat.
- ``"anchor"``: drift-corrected local power steps (`tasks.Refine`) on the anchor shard alone, in an
  exchange with it after the round.
- ``"all"``: the same on every shard, in the round that they are in already, aligned and averaged;
  after the first round, when they have nothing to start from yet, on the anchor.
- ``"anchor+residual"``, ``"all+residual"``: both, twice as wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from localpower.core.certificate import ROUNDING, rayleigh_ritz
from localpower.core.engine import Engine
from localpower.core.linalg import Array, orth
from localpower.core.local_power import State
from localpower.core.tasks import PowerSteps, Refine

PROPOSALS = ("residual", "anchor", "all", "anchor+residual", "all+residual")
RESTART = 8  # times the width: columns of the search space at most
VANISHED = 100  # units of eps that are left of a unit vector that was in the space already
WARM_STEPS = 32


@dataclass(frozen=True, slots=True, eq=False)
class RitzState(State):
    """A state of LocalRitz: Ritz values, search space with its image, and what shards proposed.

    Before the first product only `basis` is known; it is the first block.
    """

    values: Array = field(default_factory=lambda: np.zeros(0))
    space: Array = field(default_factory=lambda: np.zeros((0, 0)))
    image: Array = field(default_factory=lambda: np.zeros((0, 0)))
    proposed: Array | None = None


def local_ritz(
    engine: Engine, state: State, *, proposal: str, steps: int, warm: bool = True
) -> Iterator[RitzState]:
    """Run LocalRitz from `state` and yield the state after every round.

    Parameters
    ----------
    engine : Engine
        Holds the shards.
    state : State
        Its basis, (d, r), is the random start; or a `RitzState` to go on from.
    proposal : str
        One of `PROPOSALS`.
    steps : int
        Local steps of a proposal.
    warm : bool
        Begin with one LocalPower round of many steps, aligned to the start.
    """
    if not isinstance(state, RitzState):
        state = _warmed(engine, state) if warm else RitzState(state.basis)
        if warm:
            yield state
    width = state.basis.shape[1]
    while (Q := _next_block(engine, state, proposal, steps)).shape[1]:
        product, proposed = _round(engine, state, Q, proposal, steps)
        S = np.hstack([state.space, Q]) if state.space.size else Q
        G = np.hstack([state.image, product]) if state.image.size else product
        values, S, G = (A[..., : RESTART * width] for A in rayleigh_ritz(S, G))
        X, image = S[:, :width], G[:, :width]
        state = RitzState(
            basis=X.astype(engine.dtype, copy=False),
            round=state.round + 1,
            steps=state.steps + 1,
            exact=(X, image),
            values=values[:width],
            space=S,
            image=G,
            proposed=proposed,
        )
        yield state


def _warmed(engine: Engine, state: State) -> RitzState:
    Y = engine.sum(PowerSteps(state.basis, WARM_STEPS, align="procrustes")).product
    Q = orth(Y, overwrite=True).astype(engine.dtype, copy=False)
    return RitzState(Q, round=1, steps=WARM_STEPS)


def _next_block(engine: Engine, state: RitzState, proposal: str, steps: int) -> Array:
    """Put together what is proposed, less what is in the space already."""
    if state.exact is None:
        return state.basis
    X, image = state.exact
    proposed = state.proposed
    if proposed is None and proposal != "residual":
        proposed = _exchange(engine, X, image, steps)
    eps = float(np.finfo(engine.dtype).eps)
    R = image - X * state.values
    R = R[:, np.linalg.norm(R, axis=0) > ROUNDING * eps * state.values[0]]  # not what has converged
    parts = [] if proposed is None else [proposed]
    if "residual" in proposal:
        parts.append(R)
    Q = outside(np.hstack(parts), state.space, VANISHED * eps)
    if not Q.shape[1]:  # nothing new was proposed
        Q = outside(R, state.space, VANISHED * eps)
    return Q.astype(engine.dtype, copy=False)


def _round(
    engine: Engine, state: RitzState, Q: Array, proposal: str, steps: int
) -> tuple[Array, Array | None]:
    """Multiply the block; let all shards propose in the same round if they are to."""
    if not proposal.startswith("all") or state.exact is None:
        return engine.sum(PowerSteps(Q, 1)).product, None
    reply = engine.sum(_refine(engine, Q, *state.exact, steps))
    return reply.product, reply.proposal


def _exchange(engine: Engine, X: Array, image: Array, steps: int) -> Array:
    """Let the anchor shard propose."""
    task = _refine(engine, X[:, :0], X, image, steps)
    (reply,) = engine.map(task, engine.anchor_first()[:1])
    return reply.proposal


def _refine(engine: Engine, block: Array, X: Array, image: Array, steps: int) -> Refine:
    def narrow(A: Array) -> Array:
        return np.ascontiguousarray(A.astype(engine.dtype, copy=False))

    return Refine(narrow(block), narrow(X), narrow(image), steps, sum(engine.rows))


def outside(P: Array, S: Array, smallest: float) -> Array:
    """Orthonormal basis of what of the columns of P is orthogonal to the orthonormal S.

    Directions of which no more than `smallest` is left, of unit columns, are left out.
    """
    norms = np.linalg.norm(P, axis=0)
    P = P[:, norms > 0] / norms[norms > 0]
    for _ in range(2):
        P = P - S @ (S.T @ P)
    if not P.size:
        return P
    U, sizes, _ = np.linalg.svd(P, full_matrices=False)
    Q = U[:, sizes > smallest][:, : S.shape[0] - S.shape[1]]
    return orth(Q - S @ (S.T @ Q)) if Q.size else Q
