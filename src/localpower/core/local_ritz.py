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

from localpower.core.certificate import ROUNDING, ritz_turn
from localpower.core.engine import Engine
from localpower.core.linalg import Array, orth, qr
from localpower.core.local_power import State
from localpower.core.precision import UNITS, Narrow, narrowed, widened
from localpower.core.tasks import PowerSteps, Refine

PROPOSALS = ("residual", "anchor", "all", "anchor+residual", "all+residual")
RESTART = 8  # times the width: columns of the search space at most
VANISHED = 100  # units of eps that are left of a unit vector that was in the space already
WARM_STEPS = 32


@dataclass(frozen=True, slots=True, eq=False)
class RitzState(State):
    """A state of LocalRitz: Ritz values, search space with its image, and what shards proposed.

    `projected` is ``SᵀAᵀA S``, of which the lower half counts. `noises` is what rounding for the
    wire may have done to the columns of the image. Before the first product only `basis` is known;
    it is the first block.
    """

    values: Array = field(default_factory=lambda: np.zeros(0))
    noises: Array = field(default_factory=lambda: np.zeros(0))
    space: Array = field(default_factory=lambda: np.zeros((0, 0)))
    image: Array = field(default_factory=lambda: np.zeros((0, 0)))
    projected: Array = field(default_factory=lambda: np.zeros((0, 0)))
    proposed: Array | None = None


def local_ritz(
    engine: Engine,
    state: State,
    *,
    proposal: str,
    steps: int,
    warm: bool = True,
    narrow: Narrow | None = None,
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
    narrow : Narrow, optional
        How messages are rounded.
    """
    if not isinstance(state, RitzState):
        state = _warmed(engine, state, narrow) if warm else RitzState(state.basis)
        if warm:
            yield state
    width = state.basis.shape[1]
    space, image = (Columns(A, (RESTART + 2) * width) for A in (state.space, state.image))
    while True:
        if narrow is not None and narrow.limits(state.exact, state.noise):
            S, G, noises = _measured_again(engine, state, narrow.rank)
            H, proposed = S.T @ G, state.proposed
        else:
            Q = _next_block(engine, state, proposal, steps, narrow)
            if not Q.shape[1]:
                return
            Q, product, proposed, added = _round(engine, state, Q, proposal, steps, narrow)
            S, G = space.append(Q), image.append(product)
            noises = np.append(state.noises, added)
            H = np.zeros((S.shape[1], S.shape[1]))
            H[: -Q.shape[1], : -Q.shape[1]] = state.projected
            H[-Q.shape[1] :] = Q.T @ G
        values, turn = ritz_turn(H)
        if S.shape[1] > RESTART * width or narrow is not None:
            turn = turn[:, : RESTART * width]
            S, G, H = S @ turn, G @ turn, np.diag(values[: RESTART * width])
            space, image = (Columns(A, (RESTART + 2) * width) for A in (S, G))
            noises = np.sqrt(np.square(turn).T @ np.square(noises))
            X, AtAX = S[:, :width], G[:, :width]
        else:  # turning all of the space would take most of the coordinator's time
            X, AtAX = S @ turn[:, :width], G @ turn[:, :width]
        state = RitzState(
            basis=X.astype(engine.dtype, copy=False),
            round=state.round + 1,
            steps=state.steps + 1,
            exact=(X, AtAX),
            noise=float(noises[: narrow.rank].max() / (values[0] or 1.0)) if narrow else 0.0,
            values=values[:width],
            noises=noises,
            space=S,
            image=G,
            projected=H,
            proposed=proposed,
        )
        yield state


class Columns:
    """A matrix that grows by columns, without a copy as long as there is room for `most`."""

    def __init__(self, start: Array, most: int) -> None:
        self.start, self.most, self.count = start, most, start.shape[1]
        self.room: Array | None = None

    def append(self, block: Array) -> Array:
        """Put a block behind, and return all; what was returned before stays as it is."""
        count = self.count + block.shape[1]
        if self.room is None or count > self.room.shape[1]:
            held = self.start if self.room is None else self.room[:, : self.count]
            self.room = np.empty((len(block), max(self.most, count)), order="F")
            if self.count:
                self.room[:, : self.count] = held
        self.room[:, self.count : count] = block
        self.count = count
        return self.room[:, :count]


def _measured_again(engine: Engine, state: RitzState, rank: int) -> tuple[Array, Array, Array]:
    """Multiply the answer once more, in full, where rounding is what is left of its residual."""
    S, G, noises = state.space.copy(), state.image.copy(), state.noises.copy()
    X = np.ascontiguousarray(S[:, :rank]).astype(engine.dtype, copy=False)
    G[:, :rank] = engine.sum(PowerSteps(X, 1)).product
    noises[:rank] = 0.0
    return S, G, noises


def _warmed(engine: Engine, state: State, narrow: Narrow | None) -> RitzState:
    start, name = state.basis, "" if narrow is None else narrow.name
    task = PowerSteps(narrowed(start, name), WARM_STEPS, align="procrustes", reply=name)
    Q = orth(widened(engine.sum(task).product), overwrite=True)
    return RitzState(Q.astype(engine.dtype, copy=False), round=1, steps=WARM_STEPS)


def _next_block(
    engine: Engine, state: RitzState, proposal: str, steps: int, narrow: Narrow | None
) -> Array:
    """Put together what is proposed, less what is in the space already."""
    if state.exact is None:
        return state.basis
    X, image = state.exact
    proposed = state.proposed
    if proposed is None and proposal != "residual":
        proposed = _exchange(engine, X, image, steps, narrow)
    eps = float(np.finfo(engine.dtype).eps)
    R = image - X * state.values
    floor = np.maximum(ROUNDING * eps * state.values[0], state.noises[: R.shape[1]])
    R = R[:, np.linalg.norm(R, axis=0) > floor]  # not what has converged
    parts = [] if proposed is None else [proposed]
    if narrow is not None and proposed is not None:  # only what is new was sent
        parts = [proposed[:, np.linalg.norm(proposed, axis=0) > VANISHED * eps]]
    if "residual" in proposal:
        parts.append(R)
    Q = outside(np.hstack(parts), state.space, VANISHED * eps)
    if not Q.shape[1]:  # nothing new was proposed
        Q = outside(R, state.space, VANISHED * eps)
    return Q.astype(engine.dtype, copy=False)


def _round(
    engine: Engine,
    state: RitzState,
    Q: Array,
    proposal: str,
    steps: int,
    narrow: Narrow | None,
) -> tuple[Array, Array, Array | None, Array]:
    """Multiply the block; let all shards propose in the same round if they are to.

    Returns the block as it was sent, its product, what is proposed, and the noise of the product.
    """
    sent, reply, name = Q, "", ""
    if narrow is not None:
        name, reply = narrow.name, narrow.for_block(narrow.standing(state.exact, state.noise))
        sent = narrowed(Q, name)
    proposed = None
    if not proposal.startswith("all") or state.exact is None:
        product = engine.sum(PowerSteps(sent, 1, reply=reply)).product
    else:
        answer = engine.sum(_refine(engine, sent, *state.exact, steps, reply, name))
        product, proposed = answer.product, widened(answer.proposal)
    if narrow is None:
        return Q, product, proposed, np.zeros(Q.shape[1])
    Q, product = _orthonormal(widened(sent), widened(product), state)
    return Q, product, proposed, UNITS[reply] * np.linalg.norm(product, axis=0)


def _orthonormal(Q: Array, product: Array, state: RitzState) -> tuple[Array, Array]:
    """Take from a block that was rounded what is in the space, and make it orthonormal again."""
    if state.space.size:
        inside = state.space.T @ Q
        Q, product = Q - state.space @ inside, product - state.image @ inside
    Q, R = qr(Q)
    return Q, np.ascontiguousarray(np.linalg.solve(R.T, product.T).T)


def _exchange(engine: Engine, X: Array, image: Array, steps: int, narrow: Narrow | None) -> Array:
    """Let the anchor shard propose."""
    name = "" if narrow is None else narrow.name
    task = _refine(engine, X[:, :0], X, image, steps, name, name)
    (reply,) = engine.map(task, engine.anchor_first()[:1])
    return widened(reply.proposal)


def _refine(
    engine: Engine, block: Array, X: Array, image: Array, steps: int, reply: str, name: str
) -> Refine:
    def message(A: Array) -> Array:
        return np.ascontiguousarray(A.astype(engine.dtype, copy=False))

    block = block if name else message(block)
    return Refine(block, message(X), message(image), steps, sum(engine.rows), reply, name)


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
