"""LocalRitz (an extension of the paper): exact block products in a search space with a good start.

The server keeps a search space S, (d, c) and orthonormal, and what of its exact image ``AᵀA S`` is
outside of it. A round sends a block Q, aggregates ``AᵀA Q``, adds both to the space, and takes the
Ritz vectors X of all of it. The first block is

- ``"merged"``: every shard sends its own leading eigenpairs, many of them, once; the server merges
  these (`tasks.LowRank`). It then knows good directions far beyond the rank, so that narrow blocks
  are enough from then on; and it knows how large an eigenvalue outside can be at most.
- ``"random"``: Gaussian columns, as wide as all blocks are.

The next block is what is proposed, less what is in S already:

- ``"model"``: residuals ``R = AᵀA X - XΘ``, corrected by what was merged (`model`). The first block
  has only those merged columns that are large; the others are known well enough without.
- ``"residual"``: R itself. This is block Krylov, which local work has to beat. The first block has
  all columns that were merged.
- ``"anchor"``: drift-corrected local power steps (`tasks.Refine`) on the anchor shard alone, in an
  exchange with it after the round.
- ``"all"``: the same on every shard, in the round that they are in already, aligned and averaged;
  after the first round, when they have nothing to start from yet, on the anchor.
- ``"anchor+residual"``, ``"all+residual"``: both, twice as wide.

Where nothing proves that the space has all that is large, rounds carry random probes along
(`evidence`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from localpower.core.certificate import ROUNDING, Ritz, ritz_turn
from localpower.core.linalg import Array, svd
from localpower.core.rounding import from_wire, to_bytes
from localpower.engines.base import Engine
from localpower.methods.local_power import orthonormal, to_send
from localpower.methods.model import corrected, enough, largest_outside
from localpower.methods.proposing import exchange, refine
from localpower.methods.ritz_grown import space_grown, start_grown
from localpower.methods.rounding import Standing, WireRounding
from localpower.methods.search import (
    MISSED,
    PROBED,
    RESTART,
    VANISHED,
    GrowingMatrix,
    SearchState,
    outside,
)
from localpower.methods.state import Doubt, State, turned_noises
from localpower.worker.replies import Product, Proposal
from localpower.worker.tasks import LeadingFactor, PowerSteps

PROPOSALS = ("model", "residual", "anchor", "all", "anchor+residual", "all+residual")
STARTS = ("merged", "random")
MERGED = 8  # times the rank: eigenpairs that a shard sends for a merged start
MODELLED = 16  # the same where most of them are not multiplied
SPARED = 0.1  # of the residual that the tolerance allows: columns with less are not improved


@dataclass(frozen=True, slots=True, eq=False)
class RitzState(SearchState):
    """A state of LocalRitz: the search space, its image, and what shards proposed.

    `outer` is ``(I - SSᵀ)AᵀA S`` and `projected` is ``SᵀAᵀA S``, of which the lower half counts.
    `values` (c,) are all Ritz values, `residuals` (d, r) those of the leading vectors and `gram`
    (c, c) the inner products of all. `noises` is of the columns of `space`. Blocks
    have `block` columns, and `rank` vectors are asked for. Before the first product only `basis`
    is known; `start` is the first block. `factor` is what was merged, F, and `rest` is Δ:
    ``FFᵀ - over·I ⪯ AᵀA ⪯ FFᵀ + Δ·I``.
    """

    start: Array = field(default_factory=lambda: np.zeros((0, 0)))
    block: int = 0
    values: Array = field(default_factory=lambda: np.zeros(0))
    residuals: Array = field(default_factory=lambda: np.zeros((0, 0)))
    gram: Array = field(default_factory=lambda: np.zeros((0, 0)))
    outer: Array = field(default_factory=lambda: np.zeros((0, 0)))
    projected: Array = field(default_factory=lambda: np.zeros((0, 0)))
    proposed: Array | None = None
    factor: Array = field(default_factory=lambda: np.zeros((0, 0)))
    rest: float = float("inf")
    over: float = 0.0
    ordered: ClassVar[bool] = True

    def turn(self) -> tuple[Array, Array]:
        """All Ritz values, and what turns the space to the Ritz vectors."""
        return ritz_turn(self.projected)

    def rounding_errors(self, rank: int) -> tuple[float, float]:
        """The same for the space; of a merged factor, all that it may lack is wrong."""
        if not self.space.shape[1]:
            return self.hidden, self.over * float(np.sqrt(len(self.values)))
        return SearchState.rounding_errors(self, rank)

    def standing(self, rounding: WireRounding) -> Standing | None:
        """How good the answer is known to be; nothing without a further value, which may be near.

        After a merged start, only the gap is known.
        """
        if len(self.values) <= self.rank:
            return None
        last, following = self.values[self.rank - 1 : self.rank + 1]
        gap = float(last - following) / (float(self.values[0]) or 1.0)
        found = rounding.standing(self.exact, self.rounding_errors(self.rank)[0])
        blur = self.rounding_errors(self.rank)[1] / (float(self.values[0]) or 1.0)
        return Standing(1.0, gap) if found is None else replace(found, gap=gap, blur=blur)

    def ritz(self) -> Ritz | None:
        """All Ritz values, and residuals of the leading vectors.

        After a merged start, those of ``FFᵀ``: what it lacks is in `rounding_errors`.
        """
        return Ritz(self.values, self.residuals, self.gram) if self.values.size else None

    def grown(self, rank: int, width: int, rng: np.random.Generator) -> RitzState:
        """Take more or fewer Ritz vectors; random columns join a space that has too few."""
        state = replace(self, rank=rank, block=max(1, self.block + rank - self.rank))
        if not self.space.shape[1]:
            return start_grown(state, width, max(width, MERGED * rank), rng)
        return space_grown(state, width, rng, _settled)


def local_ritz(
    engine: Engine,
    state: State,
    rank: int,
    *,
    proposal: str,
    steps: int,
    start: str = "merged",
    wide: int = 0,
    tol: float = 0.0,
    doubt: Doubt | None = None,
    rounding: WireRounding | None = None,
    part: float = 1.0,
) -> Iterator[RitzState]:
    """Run LocalRitz from `state` for `rank` vectors and yield the state after every round.

    Parameters
    ----------
    engine : Engine
        Holds the shards.
    state : State
        Its basis, (d, r), is the random start; or a `RitzState` to go on from.
    rank : int
        How many vectors are asked for.
    proposal : str
        One of `PROPOSALS`.
    steps : int
        Local steps of a proposal.
    start : {"merged", "random"}
        The first block: what shards find alone, merged; or the basis of `state`.
    wide : int
        Eigenpairs that a shard sends for a merged start; by default 8 times the rank.
    tol : float
        The sine of the angle that is wanted.
    doubt : Doubt, optional
        When to send probes; by default never.
    rounding : WireRounding, optional
        How messages are rounded.
    part : float
        Below 1, the share of its squares for which a shard sends eigenpairs, if those are fewer.
    """
    if not isinstance(state, RitzState):
        if start == "merged":
            wide, model = wide or MERGED * rank, proposal == "model"
            state = merged(engine, state.basis, rank, wide, doubt, rounding, model, part)
            yield state
        else:
            nothing = np.zeros((engine.columns, 0))
            state = RitzState(
                state.basis,
                start=state.basis,
                rank=rank,
                block=state.basis.shape[1],
                space=nothing,
                outer=nothing,
            )
    width = state.basis.shape[1]
    most = max(RESTART * width, state.start.shape[1] + 4 * width)
    space = GrowingMatrix(state.space, most + 2 * width)
    while True:
        standing = None if rounding is None else state.standing(rounding)
        if rounding is not None and (count := rounding.again(standing, state.space.shape[1])):
            state = _measured_again(engine, state, count)
            space = GrowingMatrix(state.space, most + 2 * width)
            yield state
            continue
        missed = outside(state.missed(rank + 1), state.space, MISSED)
        Q = _next_block(engine, state, missed, proposal, steps, rounding, tol)
        if missed.shape[1]:  # they are searched from now on; what else may be hidden is asked anew
            state = replace(state, probes=None)
        state = state.searched(doubt, rank, float(np.finfo(engine.dtype).eps))
        if not Q.shape[1] and state.probe_block is None:
            return
        state = _round(engine, state, Q, space, proposal, steps, rounding)
        if state.space.shape[1] > (most if state.probes is None else PROBED * most):
            state = _turned(state, most // 2)
            space = GrowingMatrix(state.space, most + 2 * width)
        yield state


def merged(
    engine: Engine,
    random: Array,
    rank: int,
    wide: int,
    doubt: Doubt | None,
    rounding: WireRounding | None,
    model: bool = False,
    part: float = 1.0,
) -> RitzState:
    """Merge what shards find alone; fill up with random columns where that is too little.

    For a `model`, only the large columns are multiplied first.
    """
    d, width = random.shape
    wide = min(max(wide, width), d)
    loss = 0.0 if rounding is None else rounding.for_start(wide == d)
    part = 1.0 if wide == d else part  # all of them are the answer
    task = LeadingFactor(wide, 2 * wide, loss, part, MODELLED if model else MERGED)
    total = engine.sum(task) if model else engine.sum(task).cut(wide)
    U, sizes, _ = svd(from_wire(total.factor))
    kept = int((sizes > VANISHED * float(np.finfo(engine.dtype).eps) * sizes[:1].sum()).sum())
    F, hidden = U[:, :kept], total.rest + float(np.square(sizes[kept:]).max(initial=0.0))
    squares, hidden = np.square(sizes[:kept]), hidden if 0 <= hidden < np.inf else float("inf")
    factor = F * sizes[:kept] if hidden < np.inf else F[:, :0]  # what is no bound proves nothing
    missing = max(0, width - F.shape[1])
    if missing:
        F = np.hstack([F, outside(random.astype(np.float64)[:, :missing], F, 0.0)])
    nothing, count = np.zeros((d, 0)), F.shape[1] * (hidden < np.inf)
    values = np.pad(squares, (0, missing))[:count]
    F = F[:, : enough(squares, rank, width, wide)] if model and not missing else F
    F = np.ascontiguousarray(F).astype(engine.dtype, copy=False)
    state = RitzState(
        np.ascontiguousarray(F[:, :width]),
        round=1,
        steps=1,
        hidden=hidden,
        values=values,
        residuals=np.zeros((1, min(width, count))),
        gram=np.zeros((count, count)),
        start=F,
        rank=rank,
        block=rank,
        space=nothing,
        outer=nothing,
        factor=factor,
        rest=hidden,
        over=total.over,
    )
    kth = float(sizes[rank - 1] ** 2) if len(sizes) >= rank else 0.0
    if doubt is not None and hidden > kth / 2 and F.shape[1] < d:  # it may not prove enough
        state = state.probed(doubt, F, float(np.finfo(engine.dtype).eps))
        return replace(state, inside=np.eye(F.shape[1]))
    return state


def _measured_again(engine: Engine, state: RitzState, rank: int) -> RitzState:
    """Multiply so many vectors once more, in full, where rounding is what is left to mend."""
    state = _turned(state, state.space.shape[1])  # the answer is in the first columns then
    S, outer, noises = state.space, state.outer.copy(), state.noises.copy()
    X = np.ascontiguousarray(S[:, :rank]).astype(engine.dtype, copy=False)
    G = engine.sum(PowerSteps(X, 1)).product.astype(np.float64)
    H, noises[:rank] = state.projected.copy(), 0.0
    inside = S.T @ G
    H[:, :rank], H[:rank] = inside, inside.T
    outer[:, :rank] = G - S @ inside
    return _turned(_settled(state, S, outer, H, noises), S.shape[1])


def _next_block(
    engine: Engine,
    state: RitzState,
    missed: Array,
    proposal: str,
    steps: int,
    rounding: WireRounding | None,
    tol: float = 0.0,
) -> Array:
    """Put together what is proposed, less what is in the space already."""
    if not state.space.shape[1]:
        return state.start
    proposed = state.proposed
    if proposed is None and proposal not in ("residual", "model") and not engine.only_sums:
        proposed = exchange(engine, state, steps, rounding)
    eps = float(np.finfo(engine.dtype).eps)
    norms, spared = np.linalg.norm(state.residuals, axis=0), SPARED * _allowed(state, tol)
    more = (norms[: state.block] > spared).any()  # else the vectors after them show the gap
    R = state.residuals[:, : state.block] if more else state.residuals
    norms = norms[: R.shape[1]]
    noises = np.sqrt(np.square(ritz_turn(state.projected)[1]).T @ np.square(state.noises))
    floor = np.maximum(ROUNDING * eps * state.values[0], noises[: R.shape[1]])
    new = norms > np.maximum(floor, spared)
    new, R = new[norms > floor], R[:, norms > floor]  # not what has converged
    parts = [missed] if proposed is None else [missed, proposed]
    if rounding is not None and proposed is not None:  # only what is new was sent
        parts = [missed, proposed[:, np.linalg.norm(proposed, axis=0) > VANISHED * eps]]
    if "residual" in proposal:
        parts.append(R)
    if proposal == "model":
        values = state.values[: len(norms)][norms > floor][new]
        parts.append(corrected(R[:, new], values, state.factor, state.space))
    Q = outside(np.hstack(parts), state.space, VANISHED * eps)
    if not Q.shape[1]:  # nothing new was proposed
        Q = outside(R, state.space, VANISHED * eps)
    return Q.astype(engine.dtype, copy=False)


def _allowed(state: RitzState, tol: float) -> float:
    """Residual of a vector with which the angle is within the tolerance, if all have no more."""
    values, k = state.values, state.rank
    if len(values) < k:  # a rank that has just grown
        return 0.0
    following = float(values[k]) if len(values) > k else 0.0
    gap = float(values[k - 1]) - (state.hidden if state.hidden < values[k - 1] else following)
    return tol * max(gap, 0.0) / float(np.sqrt(k))


def _round(
    engine: Engine,
    state: RitzState,
    Q: Array,
    space: GrowingMatrix,
    proposal: str,
    steps: int,
    rounding: WireRounding | None,
) -> RitzState:
    """Multiply the block and the probes; let all shards propose in the same round if wanted."""
    sent, loss = Q, 0.0
    if rounding is not None:
        standing = state.standing(rounding)
        loss = rounding.for_block(standing) * float(state.values[:1].sum())
        sent = to_bytes(Q, rounding.for_proposal(standing))
    proposed, block = None, state.probe_block
    probes = None if block is None else to_send(block, engine.dtype, rounding)
    answer: Product | Proposal
    if not proposal.startswith("all") or state.exact is None:
        answer = engine.sum(PowerSteps(sent, 1, probes=probes, loss=loss))
    else:
        task = refine(engine, state, sent, steps, loss, rounding)
        answer = engine.sum(replace(task, probes=probes))
        proposed = from_wire(answer.proposal)
    product = from_wire(answer.product)
    noises: Array = np.zeros(Q.shape[1])
    if rounding is not None:
        Q = from_wire(sent)
        noises = noises if answer.lost is None else answer.lost
        Q, product, noises = _orthonormal(Q, product, noises, state)
        state = state if state.space.shape[1] else _as_sent(state, Q)
    Q = Q.astype(np.float64, copy=False)
    learnt = state.learnt(probes, answer.probes)
    S = space.append(Q) if Q.shape[1] else state.space
    inside = Q.T @ state.outer
    H = np.block([[state.projected, inside.T], [inside, Q.T @ product]])
    outer = product - S @ (S.T @ product)
    outer -= S @ (S.T @ outer)
    outer = np.hstack([state.outer - Q @ inside, outer])
    state = replace(
        state, round=state.round + 1, steps=state.steps + 1, probes=learnt, proposed=proposed
    )
    return _settled(state, S, outer, H, np.append(state.noises, noises))


def _as_sent(state: RitzState, Q: Array) -> RitzState:
    """Probes are of what is outside of the first block; in the space it is as it was rounded."""
    inside = Q.T @ state.start if state.inside.size else state.inside
    return replace(state, inside=inside)


def _settled(
    state: RitzState, S: Array, outer: Array, projected: Array, noises: Array
) -> RitzState:
    """Take the Ritz vectors of a space, and what is known of its outside."""
    width = state.basis.shape[1]
    values, turn = ritz_turn(projected)
    lead = turn[:, :width]
    X, R = S @ lead, outer @ lead
    before = state.hidden if state.space.shape[1] else float("inf")
    return replace(
        state,
        hidden=min(before, state.rest + largest_outside(state.factor, S)),
        basis=X.astype(state.basis.dtype, copy=False),
        exact=(X, X * values[:width] + R),
        values=values,
        residuals=R,
        gram=turn.T @ (outer.T @ outer) @ turn,
        noises=noises,
        space=S,
        outer=outer,
        projected=projected,
    )


def _turned(state: RitzState, most: int) -> RitzState:
    """Turn the space to its leading Ritz vectors, `most` at the most.

    Those that are dropped are outside from then on; what is known of the outside grows by them.
    """
    values, turn = ritz_turn(state.projected)
    noises, blur = turned_noises(state.noises, turn), state.rounding_errors(0)[1]
    if len(values) > most:
        outer = np.sqrt(max(float(np.linalg.eigvalsh(state.gram[most:, most:])[-1]), 0.0))
        state = state.giving_up(float(values[most]) + blur, float(outer) + blur)
    turn = turn[:, :most]
    inside = turn[: len(state.inside)].T @ state.inside
    return replace(
        state,
        space=state.space @ turn,
        outer=state.outer @ turn,
        projected=np.diag(values[:most]),
        values=values[:most],
        gram=state.gram[:most, :most],
        noises=noises[:most],
        inside=inside,
    )


def _orthonormal(
    Q: Array, product: Array, noises: Array, state: RitzState
) -> tuple[Array, Array, Array]:
    """Take from a block that was rounded what is in the space, and make it orthonormal again.

    What may be wrong with its product, and with that of the space, is changed with it.
    """
    if state.space.size:
        inside = state.space.T @ Q
        Q = Q - state.space @ inside
        product = product - state.space @ (state.projected @ inside) - state.outer @ inside
        noises = noises + turned_noises(state.noises, inside)
    Q, product, turn = orthonormal(Q, product)
    return Q, product, noises @ np.abs(turn)
