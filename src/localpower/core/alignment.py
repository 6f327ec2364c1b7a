"""Alignments: how a shard's basis is turned towards the anchor's before products are averaged.

An alignment maps ``(Z_i, Z_anchor)``, both (d, r) and orthonormal, to the (r, r) matrix ``O_i``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from localpower.core.linalg import Array, svd

Alignment = Callable[[Array, Array], Array]


def procrustes(Z: Array, anchor: Array) -> Array:
    """Orthogonal Procrustes: ``argmin_O ‖Z O - anchor‖_F``, equation (opt:o) of the paper.

    ``O = W1 W2ᵀ`` where ``W1 Σ W2ᵀ`` is the SVD of ``Zᵀ anchor``.

    Examples
    --------
    >>> Z = np.eye(4)[:, :2]
    >>> procrustes(Z[:, ::-1], Z)
    array([[0., 1.],
           [1., 0.]])
    """
    W1, _, W2t = svd(Z.T @ anchor)
    O: Array = W1 @ W2t
    return O


def signs(Z: Array, anchor: Array) -> Array:
    """Sign-fixing: the diagonal ±1 matrix nearest to `procrustes`, equation (opt:d).

    Orthogonal columns count as +1: a zero would erase the column.
    """
    inner = np.einsum("ij,ij->j", Z, anchor)
    return np.diag(np.where(inner < 0, -1, 1).astype(Z.dtype))


def none(Z: Array, anchor: Array) -> Array:
    """No alignment, the vanilla method."""
    return np.eye(Z.shape[1], dtype=Z.dtype)


ALIGNMENTS: dict[str, Alignment] = {"procrustes": procrustes, "signs": signs, "none": none}


def to_first(pairs: Iterable[tuple[Array, Array]], align: str) -> Iterator[Array]:
    """Yield ``Y_i O_i`` for pairs ``(Y_i, Z_i)``, aligned to the basis of the first pair."""
    pairs = iter(pairs)
    Y, anchor = next(pairs)
    yield Y
    for Y, Z in pairs:
        yield Y @ ALIGNMENTS[align](Z, anchor)
