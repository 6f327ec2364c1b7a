"""Block Lanczos (an extension of the paper): block Krylov in as little work as possible.

Where a round costs little and work is what is paid for, on one machine, a block narrower than the
columns that are asked for finds them with fewer products in all, if in more rounds. S is the space
so far, orthonormal, Q the next block. A round multiplies Q and takes S and Q out of the product,
``AᵀA Q = [S Q] H_Q + Q' L``: what is left is the next block. So ``AᵀA S = S H + Q' L E``, where E
picks the last block, and a Ritz pair ``(θ, S t)`` has the residual ``Q' L t_last``. Its size is
that of a column of a small matrix: neither the image of S nor Ritz vectors are formed until then.

A block of b columns sees at most b of the vectors of a value that is there more often. Where b
values are as good as the same, the rest of the start joins it. Once the answer is near, random
probes tell whether anything was missed (`evidence`); what they find joins the block, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import ClassVar

import numpy as np

from localpower.core.certificate import ROUNDING, Ritz, ritz_turn
from localpower.core.checks import whole
from localpower.core.linalg import Array, svd
from localpower.engines.base import Engine
from localpower.methods.base import Method, Start, option, width_option
from localpower.methods.costs import Decay, Estimate, Problem
from localpower.methods.search import (
    MISSED,
    PROBED,
    RESTART,
    VANISHED,
    GrowingMatrix,
    SearchState,
    outside,
)
from localpower.methods.state import Doubt, State, widened
from localpower.methods.work import ROUND
from localpower.worker.tasks import PowerSteps

BLOCK, WIDER = 4, 8  # columns; where memory limits products, more take hardly longer
SAME = 0.01  # of a value: how near others are that count as the same
RIPE = 0.5  # of a value: the residual from which it counts as one


@dataclass(frozen=True, slots=True, eq=False)
class LanczosState(SearchState):
    """A state of block Lanczos; `basis` is the random start, and `answer` has the Ritz vectors.

    `projected` is ``SᵀAᵀA S``, of which the upper half counts; `following` is the next block and
    `joint` the L that joins it to the last columns of S. `block` is how many columns of the start
    were the first block, and `whole` whether the others have joined it.
    """

    block: int = BLOCK
    whole: bool = False
    projected: Array = field(default_factory=lambda: np.zeros((0, 0)))
    following: Array = field(default_factory=lambda: np.zeros((0, 0)))
    joint: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def turn(self) -> tuple[Array, Array]:
        """All Ritz values, and what turns the space to the Ritz vectors."""
        return ritz_turn(self.projected.T)

    def ritz(self) -> Ritz | None:
        """Ritz values, and residuals as coordinates in the next block, once there are enough."""
        return None if self.space.shape[1] < self.basis.shape[1] else self.seen()

    def seen(self) -> Ritz | None:
        """The same of as many as there are."""
        if not self.space.shape[1]:
            return None
        values, turn = ritz_turn(self.projected.T)
        R = self.joint @ turn[-self.joint.shape[1] :]
        return Ritz(values, R[:, : self.basis.shape[1]], R.T @ R)

    def grown(self, rank: int, width: int, rng: np.random.Generator) -> LanczosState:
        """More columns of the start, or fewer.

        They join the blocks where values repeat, or where the blocks can see no more.
        """
        have = self.basis.shape[1]
        if width <= have:
            fewest = max(width, self.block)
            return replace(self, rank=rank, basis=np.ascontiguousarray(self.basis[:, :fewest]))
        basis = widened(self.basis, width - have, rng)
        wider = replace(self, rank=rank, basis=basis)
        if self.following.shape[1] and not self.whole:
            return wider
        more = np.hstack([self.following, basis[:, have if self.whole else self.block :]])
        eps = float(np.finfo(basis.dtype).eps)
        return replace(wider, following=outside(more, self.space, VANISHED * eps), whole=True)

    def answer(self) -> State:
        """The Ritz vectors, filled up from the start as long as there are too few."""
        width = self.basis.shape[1]
        X = self.space @ ritz_turn(self.projected.T)[1][:, :width]
        if X.shape[1] < width:
            X = np.hstack([X, outside(self.basis, X, 0.0)])[:, :width]
        basis = X.astype(self.basis.dtype, copy=False)
        return State(basis, self.round, self.steps, rank=self.rank)


@dataclass(frozen=True, slots=True)
class BlockLanczos(Method):
    """Block Lanczos with narrow blocks: less work and fewer bytes, in more rounds.

    Parameters
    ----------
    width : int, optional
        Columns of the random start, of which the first block has some; by default 5 more than the
        rank.
    block : int, optional
        How many; by default 4, or 8 where a plan finds that to be faster.
    """

    width: int | None = width_option()
    block: int | None = option(
        None,
        "columns of the first block (4, or what a plan chooses)",
        lambda n, v: v if v is None else whole(n, v),
        int,
    )

    about: ClassVar[str] = "narrow blocks: less work in more rounds"
    iterates: ClassVar[bool] = True
    certifies: ClassVar[bool] = True
    sends_probes: ClassVar[bool] = True
    automatic: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    state_type: ClassVar[type[State]] = LanczosState

    @property
    def only_sums(self) -> bool:
        """Products are added."""
        return True

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        block = self._block(start.width) if start.state is None else start.width
        return block_lanczos(engine, start.begin(engine), start.rank, block, start.doubt)

    def forms(self, rank: int) -> tuple[Method, ...]:
        """Wider blocks take fewer rounds, narrow ones less work."""
        return (self,) if self.block else (self, replace(self, block=WIDER))

    def first_rank(self, columns: int, limit: int) -> int:
        return self._block(limit)

    def workspace(self, columns: int, width: int) -> float:
        return (6 + RESTART + 1) * columns * width * 8

    def widest(self, columns: int, rank: int, width: int) -> int:
        """A block and probes, or the answer; blocks are wider only where values repeat."""
        return max(width, self._block(width) + self.state_type.PROBES)

    def estimate(self, problem: Problem, decay: Decay) -> Estimate:
        """Narrow blocks take more rounds, the more of them the more is asked for; then probes."""
        wide = self._block(problem.width)
        more = (10 + 2 * decay.rank) * (1 / wide - 1 / decay.width)
        count = 0.5 + 0.55 * decay.degree(sqrt(decay.columns * decay.rank)) + more
        rounds = min(ceil(count), ceil(decay.columns / wide))
        block = problem.columns * wide
        probes = problem.columns * min(LanczosState.PROBES, problem.columns - wide)
        plain = problem.round("PowerSteps", block, block)
        probed = problem.round("PowerSteps", block + probes, block + probes)
        early = min(rounds, max(2, rounds // 3))
        records = [plain] * early + [probed] * (rounds - early)
        space = min(rounds * wide, RESTART * problem.width) / 2
        own = ROUND + (2.6e6 + 1200.0 * problem.columns) * space
        work = problem.product(wide + probes / problem.columns / 2) + own
        return Estimate(records, rounds * work)

    def _block(self, most: int) -> int:
        return min(self.block or BLOCK, most)


def block_lanczos(
    engine: Engine, state: State, rank: int, block: int = BLOCK, doubt: Doubt | None = None
) -> Iterator[LanczosState]:
    """Run block Lanczos from `state`, for `rank` vectors, and yield the state after every round.

    The basis of `state`, (d, r), is the random start, whose first `block` columns are the first
    block; or it is a `LanczosState` to go on from. `doubt` says when to send probes.
    """
    start = state.basis
    d, width = start.shape
    eps = float(np.finfo(engine.dtype).eps)
    if not isinstance(state, LanczosState):
        nothing, first = np.zeros((d, 0)), start[:, :block]
        state = LanczosState(start, block=block, rank=rank, space=nothing, following=first)
    space = GrowingMatrix(state.space, (RESTART + 1) * width)
    while True:
        state = _doubted(state, doubt, rank, eps)
        Q = np.ascontiguousarray(state.following, engine.dtype)
        probes = state.probe_block
        if not Q.shape[1] and probes is None:
            return
        probes = None if probes is None else probes.astype(engine.dtype, copy=False)
        answer = engine.sum(PowerSteps(Q, 1, probes=probes))
        learnt = state.learnt(probes, answer.probes)
        if not Q.shape[1]:  # all is found that the block can see
            state = replace(state, round=state.round + 1, steps=state.steps + 1, probes=learnt)
            yield state
            continue
        W = answer.product.astype(np.float64)
        S = space.append(Q)
        c, b = S.shape[1], Q.shape[1]
        H = np.zeros((c, c))
        H[: c - b, : c - b] = state.projected
        for _ in range(2):
            inside = S.T @ W
            W -= S @ inside
            H[:, c - b :] += inside
        values, turn = ritz_turn(H.T)
        left, joint = _next_block(W, S, ROUNDING * eps * float(values[0]), eps)
        state = replace(
            state,
            round=state.round + 1,
            steps=state.steps + 1,
            probes=learnt,
            space=S,
            projected=H,
            following=left,
            joint=joint,
        )
        ended = not left.shape[1] and c < width
        if not state.whole and state.block < width and (ended or _repeated(state, rank, eps)):
            rest = outside(np.hstack([left, start[:, state.block :]]), S, VANISHED * eps)
            state = replace(state, following=rest, whole=True)
        most = RESTART * width * (1 if state.probes is None else PROBED)
        if c + state.following.shape[1] > most:
            state = _restarted(state, turn[:, : RESTART * width // 2])
            space = GrowingMatrix(state.space, (RESTART + 1) * width)
        yield state


def _doubted(state: LanczosState, doubt: Doubt | None, rank: int, eps: float) -> LanczosState:
    """Draw probes where that is worth it; what they have found joins the next block."""
    missed = outside(state.missed(rank + 1), state.space, MISSED)
    if missed.shape[1]:
        wider = outside(np.hstack([state.following, missed]), state.space, VANISHED * eps)
        state = replace(state, following=wider, probes=None)
    return state.searched(doubt, rank, eps)


def _next_block(W: Array, S: Array, floor: float, eps: float) -> tuple[Array, Array]:
    """Factor what is left of a product, ``W = Q'L``, with Q' orthogonal to S to all digits."""
    U, sizes, Vt = svd(W)
    count = min(int((sizes > floor).sum()), S.shape[0] - S.shape[1])
    small = int((sizes[:count] > sizes[0] / 4).sum())  # from here on, rounding of W is in U
    U[:, small:count] -= S @ (S.T @ U[:, small:count])
    if count and sizes[count - 1] < np.sqrt(eps) * sizes[0]:
        return outside(U[:, :count], S, VANISHED * eps), sizes[:, None] * Vt
    return U[:, :count], sizes[:, None] * Vt


def _repeated(state: LanczosState, rank: int, eps: float) -> bool:
    """Whether as many values as a block has columns are about the same, of those asked for."""
    values, turn = ritz_turn(state.projected.T)
    R = state.joint @ turn[-state.joint.shape[1] :]
    values, R = values[: state.basis.shape[1]], R[:, : state.basis.shape[1]]
    apart = state.block - 1
    ripe = np.linalg.norm(R, axis=0) <= RIPE * values
    first, last = values[: len(values) - apart][:rank], values[apart:][:rank]
    same = (last >= (1 - SAME) * first) & (first > ROUNDING * eps * values[0])
    return bool((same & ripe[apart:][:rank]).any())


def _restarted(state: LanczosState, turn: Array) -> LanczosState:
    """Keep the leading Ritz vectors alone; each is joined to the next block by its residual."""
    values = ritz_turn(state.projected.T)[0]
    found, kept = state.ritz(), turn.shape[1]
    if found is not None and len(values) > kept:
        coupling = np.sqrt(max(float(np.linalg.eigvalsh(found.gram[kept:, kept:])[-1]), 0.0))
        state = state.giving_up(float(values[kept]), float(coupling))
    values = values[:kept]
    return replace(
        state,
        inside=turn[: len(state.inside)].T @ state.inside,
        space=state.space @ turn,
        projected=np.diag(values),
        joint=state.joint @ turn[-state.joint.shape[1] :],
    )
