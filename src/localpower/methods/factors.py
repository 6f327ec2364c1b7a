"""From a basis to singular values and vectors, by one small round of R factors.

Every shard factors ``A_i Z = Q_i R_i`` and sends ``R_i``. With ``[R_1; …; R_m] = P S Wᵀ`` the
singular values are S, the right vectors ``Z W``, the left ones ``Q_i P_i``, which stay with their
shards until somebody asks. Eigenvalues of ``ZᵀMZ`` would lose half the digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localpower.core.certificate import ROUNDING
from localpower.core.linalg import Array, accurate_svd
from localpower.engines.base import Engine
from localpower.methods.scaling import Columns
from localpower.worker.replies import Factor, Rows, unpacked
from localpower.worker.sum_tasks import SmallGram
from localpower.worker.tasks import LeftVectors, Scatter, Triangle

ZERO = 32  # units of eps·√n of the largest singular value, up to which one is zero


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """Singular values (k,), right vectors (d, k), and the task that makes the left ones.

    `variance` (k,) is that of the rows along the right vectors, if asked for.
    """

    singular_values: Array
    V: Array
    left: Scatter[Rows]
    variance: Array | None = None

    def left_vectors(self, engine: Engine) -> Array:
        """Fetch the left vectors, (n, k), rows in shard order."""
        return np.vstack([reply.rows for reply in engine.map(self.left)])


def factors(
    engine: Engine,
    basis: Array,
    rank: int,
    gram: bool = False,
    variance: bool = False,
    far: bool = False,
) -> Factors:
    """Leading `rank` singular triplets of the data within the span of `basis`, (d, r).

    Each right vector's entry of largest magnitude is positive. `gram` says that shards have formed
    ``A_iᵀA_i`` and may use it. `variance` asks for that along the right vectors: where the rows are
    not centred, it does not follow from the singular values; `far` says that their mean is large.
    """
    basis = np.ascontiguousarray(basis)
    replies = list(engine.map(Triangle(basis, gram, variance, far)))
    R = [reply.R for reply in replies]
    P, S, Wt = accurate_svd(np.vstack(R))
    V = basis @ Wt[:rank].T
    signs = largest_positive(V)
    V *= signs
    blocks = split_rows(P[:, :rank] * signs, R)
    return Factors(
        singular_values=S[:rank],
        V=V,
        left=Scatter([LeftVectors(basis, block) for block in blocks]),
        variance=_variance(replies, Wt[:rank].T) if variance else None,
    )


def summed_factors(
    engine: Engine, basis: Array, rank: int, how: Columns, rows: int, variance: bool = False
) -> Factors:
    """The same from ``Zᵀ(AᵀA)Z``, where only sums may be seen: values have half of the digits."""
    basis = np.ascontiguousarray(basis)
    H = engine.sum(SmallGram(basis)).small
    squares, W = np.linalg.eigh((H + H.T) / 2)
    squares, W = np.maximum(squares[::-1][:rank], 0.0), W[:, ::-1][:, :rank]
    V = basis @ W
    V *= largest_positive(V)
    own = squares / max(rows, 1) - np.square(how.mean @ V)
    none: Scatter[Rows] = Scatter(())
    return Factors(np.sqrt(squares), V, none, np.maximum(own, 0.0) if variance else None)


def largest_positive(V: Array) -> Array:
    """Signs that make the entry of largest magnitude of each column positive."""
    return np.array([np.where(v[np.abs(v).argmax()] < 0, -1, 1) for v in V.T], V.dtype)


def _variance(replies: Sequence[Factor], W: Array) -> Array:
    """Variance of the rows along the columns of ``Z W``: within shards, and between their means."""
    total, mean, scatter = 0, np.zeros(W.shape[1]), np.zeros(W.shape[1])
    for reply in replies:
        assert reply.mean is not None
        assert reply.scatter is not None
        own = unpacked(reply.scatter.astype(np.float64), len(W))
        total += reply.rows
        delta = reply.mean @ W - mean
        share = reply.rows / max(total, 1)
        mean = mean + share * delta
        between = (total - reply.rows) * share * np.square(delta)
        scatter += _quadratic(own, W) + between
    return np.maximum(scatter, 0.0) / max(total, 1)


def _quadratic(upper: Array, W: Array) -> Array:
    """``wᵀCw`` for the columns w of W, where C is symmetric and given by its upper triangle."""
    C = upper + np.triu(upper, 1).T
    values: Array = (W * (C @ W)).sum(axis=0)
    return values


def triangles(engine: Engine, basis: Array) -> list[Array]:
    """R factors of ``A_i Z`` of all shards, in order."""
    return [reply.R for reply in engine.map(Triangle(basis))]


def split_rows(stacked: Array, like: Sequence[Array]) -> list[Array]:
    """Cut a stack into blocks with the row counts of `like`."""
    return np.split(stacked, np.cumsum([len(block) for block in like])[:-1])


def is_graded(S: Array, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
    """Whether a singular value is not zero, although its square cannot tell it from that."""
    eps = float(np.finfo(dtype).eps)
    zero = ZERO * np.sqrt(max(shape)) * eps
    return bool(((zero * S[0] < S) & (2 * np.sqrt(ROUNDING * eps) * S[0] >= S)).any())


def explained(found: Factors, how: Columns, rows: int, center: bool) -> tuple[Array, Array]:
    """Share of the total variance along each component, and the variance itself."""
    freedom = max(rows - 1, 1) if center else rows
    total = how.squares / freedom
    if found.variance is None:
        variance = np.square(found.singular_values.astype(np.float64)) / freedom
    else:  # no direction has more than all of it
        variance = np.minimum(found.variance, total)
    with np.errstate(over="ignore"):
        ratio = variance / total if total else np.zeros_like(variance)
        return ratio, np.ldexp(variance, 2 * how.exponent)
