"""LocalRitz with more or fewer vectors than before: what becomes of its start and of its space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from localpower.core.linalg import Array
from localpower.methods.model import enough as large
from localpower.methods.search import outside

if TYPE_CHECKING:
    from localpower.methods.ritz import RitzState

COMPLETE = 1e-9  # of the largest value: where no more is hidden, the start may be the answer


def start_grown(state: RitzState, width: int, enough: int, rng: np.random.Generator) -> RitzState:
    """Before the first product: `enough` columns of a merged start, or random ones besides."""
    modelled = state.factor.shape[1]
    if state.probes is None and state.start.shape[1] < modelled:  # the others are at the server
        squares = state.values[:modelled]
        columns = state.factor[:, : large(squares, state.rank, width, modelled)]
        some = columns / np.sqrt(squares[: columns.shape[1]])
        state = replace(state, start=some.astype(state.start.dtype, copy=False))
    complete = state.hidden <= COMPLETE * state.values[:1].sum()
    if state.probes is None and not complete and enough < state.start.shape[1] == len(state.values):
        hidden = state.hidden + float(state.values[enough])  # what is dropped may hide besides
        start, values = state.start[:, :enough], state.values[:enough]
        state = replace(state, start=start, values=values, hidden=hidden)
    random = _random(state.start.astype(np.float64), width, rng)
    start = np.ascontiguousarray(np.hstack([state.start, random.astype(state.start.dtype)]))
    count = max(len(state.values), start.shape[1]) if state.values.size else 0
    return replace(
        state,
        basis=np.ascontiguousarray(start[:, :width]),
        start=start,
        values=np.pad(state.values, (0, count - len(state.values))),
        residuals=np.zeros((1, min(width, count))),
        gram=np.zeros((count, count)),
    )


def space_grown(
    state: RitzState,
    width: int,
    rng: np.random.Generator,
    settled: Callable[[RitzState, Array, Array, Array, Array], RitzState],
) -> RitzState:
    """Take so many Ritz vectors of the space; random columns join it if it has too few."""
    S, kind = state.space, state.basis.dtype
    random = _random(S, width, rng)
    state = replace(state, basis=np.zeros((len(S), min(width, S.shape[1])), kind))
    after = settled(state, S, state.outer, state.projected, state.noises)
    if not random.shape[1]:
        return after
    basis = np.ascontiguousarray(np.hstack([after.basis, random.astype(kind)]))
    return replace(after, basis=basis, exact=None, proposed=random)


def _random(S: Array, width: int, rng: np.random.Generator) -> Array:
    """Random columns that an orthonormal S lacks of a width, orthonormal and outside of it."""
    return outside(rng.standard_normal((len(S), max(0, width - S.shape[1]))), S, 0.0)
