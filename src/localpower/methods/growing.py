"""As many components as explain a share: states of a method whose rank follows from what it finds.

Nothing starts again. A state knows how to go on with more components or fewer (`State.grown`): a
search space stays as it is, a basis gets random columns besides its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from localpower.core.share import Share
from localpower.engines.base import Engine
from localpower.methods.base import FIRST, Method, Start
from localpower.methods.scaling import Columns
from localpower.methods.state import State

MOST_FIRST = 50  # components that the choice of a method looks ahead to, of wide data


def guessed(wanted: float, rows: int, columns: int) -> int:
    """How many components to plan for, where a share may be `wanted` and nothing is known yet."""
    if not isinstance(wanted, float):
        return int(wanted)
    return min(rows, columns, max(FIRST, min(columns // 8, MOST_FIRST)))


def share_of(wanted: float, how: Columns, rows: int, eps: float, noise: float) -> Share | None:
    """The goal of a run, where a share is `wanted` and not a number.

    The columns with the largest sums of squares that reach it are no fewer than eigenvectors that
    do, because no set of directions has a larger sum than as many of these (Schur and Horn).
    """
    if not isinstance(wanted, float):
        return None
    trace, parts = how.trace(rows), how.diagonal(rows)
    most = min(rows, len(parts)) if trace > 0 else 1
    whole = Share(wanted, trace, most, eps, noise)
    return replace(whole, limit=whole.count(np.sort(parts)[::-1]) or most)


class Growth:
    """Runs methods for a share, one after the other; a later one begins with what is known."""

    def __init__(self, share: Share, rng: np.random.Generator) -> None:
        self.share, self.seed, self.rank = share, int(rng.integers(1 << 63)), 0

    def states(self, method: Method, engine: Engine, start: Start) -> Iterator[State]:
        """Yield the state after every round, with the rank that is asked for from then on."""
        begun = 0 if start.state is None else start.state.rank
        rank = begun or self.rank or start.rank
        width = method.columns(rank, engine.columns, True)
        start = replace(start, rank=rank, width=width, share=self.share)
        while True:
            for before in method.states(engine, start):
                state = before if method.exact else self.grown(method, before, rank)
                self.rank = state.rank or rank
                yield state
                if state is not before:
                    break
            else:
                return
            rank = state.rank
            start = replace(start, rank=rank, width=state.basis.shape[1], state=state)

    def grown(self, method: Method, state: State, rank: int) -> State:
        """The state with the rank that its Ritz values ask for; the same one if that is its own."""
        found = state.seen()
        wanted = rank if found is None else self.share.following(found, rank)
        if wanted == (state.rank or rank):
            return state
        width = method.columns(wanted, len(state.basis), True)
        rng = np.random.default_rng((self.seed, state.round, wanted))
        return state.grown(wanted, width, rng)
