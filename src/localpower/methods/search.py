"""Search spaces: what methods that keep one have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from localpower.core.certificate import Ritz
from localpower.core.linalg import Array, orth, svd
from localpower.methods.state import Doubt, State

RESTART = 8  # times the width: columns of the search space at most, or somewhat more than the start
MISSED = 0.5  # sine to the search space from which on what probes find counts as new
PROBED = 4  # times as many columns as long as probes have theirs as a base
LACKING = 0.1  # of the last value: where so much may hide in what the space lacks, probes are lost
TIGHT, GOOD = 0.25, 0.01  # couplings of a space, and residuals of vectors, of their values: where
# the first are larger, probes are of what is outside of the vectors with smaller residuals alone
VANISHED = 100  # units of eps that are left of a unit vector that was in the space already


@dataclass(frozen=True, slots=True, eq=False)
class SearchState(State):
    """A state with a search space S, (d, c); `inside` (c, ·) is ``SᵀZ`` for the base Z of probes.

    `spread` is the norm of the residuals of the base.
    """

    space: Array = field(default_factory=lambda: np.zeros((0, 0)))
    inside: Array = field(default_factory=lambda: np.zeros((0, 0)))
    spread: float = 0.0
    PROBES: ClassVar[int] = 4

    def covered(self, found: Ritz) -> Iterator[tuple[int, float]]:
        """How many leading Ritz vectors cover the base of the probes, but for how much."""
        c, count = self.space.shape[1], self.inside.shape[1]
        if not c:
            yield len(found.values), 0.0
            return
        coordinates = self.turn()[1][: len(self.inside)].T @ self.inside
        for most in sorted({c, min(count, c), min(2 * count, c)}, reverse=True):
            least = (
                np.linalg.svd(coordinates[:most], compute_uv=False)[-1] if most >= count else 0.0
            )
            less = float(np.sqrt(max(1 - min(least, 1.0) ** 2, 0.0))) if least < 1 - 1e-12 else 0.0
            yield most, 2 * self.spread * less + float(found.values[0]) * less**2

    def searched(self, doubt: Doubt | None, rank: int, eps: float) -> Self:
        """Draw probes if that is worth it: of what is outside of the space, or of its good part.

        Vectors with large residuals say little where eigenvalues outside are nearly as large.
        """
        found = self.ritz()
        if doubt is None or found is None or not rank <= self.space.shape[1]:
            return self
        values, turn = self.turn()
        last, count = float(found.values[rank - 1]), len(values)
        if self.probes is not None and min(x for _, x in self.covered(found)) > LACKING * last:
            self = replace(self, probes=None)
        rest = found.values[rank:]
        near = last - rest
        tight = not len(rest) or (
            near.min() > 0 and np.diagonal(found.gram)[rank:] @ (1 / near) <= TIGHT * last
        )
        if not tight:
            sizes = np.sqrt(np.maximum(np.diagonal(found.gram), 0.0))
            small = sizes <= GOOD * found.values
            count = max(rank, int(np.argmin(small)) if not small.all() else count)
        leading = None if tight else turn[:, :count]
        after = self.doubted(doubt, rank, self.space, eps, leading)
        if after.draws == self.draws:
            return after
        inside = np.eye(len(values)) if leading is None else leading
        return replace(after, inside=inside, spread=found.leading(count).coupling())


class GrowingMatrix:
    """A matrix that grows by columns: without a copy up to `most`, then by half at a time."""

    def __init__(self, start: Array, most: int) -> None:
        self.start, self.most, self.count = start, most, start.shape[1]
        self.room: Array | None = None

    def append(self, block: Array) -> Array:
        """Put a block behind, and return all; what was returned before stays as it is."""
        count = self.count + block.shape[1]
        if self.room is None or count > self.room.shape[1]:
            held = self.start if self.room is None else self.room[:, : self.count]
            self.room = np.empty((len(block), max(self.most, count + count // 2)), order="F")
            if self.count:
                self.room[:, : self.count] = held
        self.room[:, self.count : count] = block
        self.count = count
        return self.room[:, :count]


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
    U, sizes, _ = svd(P)
    Q = U[:, sizes > smallest][:, : S.shape[0] - S.shape[1]]
    return orth(Q - S @ (S.T @ Q)) if Q.size else Q
