"""How much shards differ from the whole, Definition 2 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from localpower.core.linalg import Array, fold
from localpower.core.local_matrix import GRAM_COLUMNS, LocalMatrix
from localpower.core.moments import moments
from localpower.core.shard import Shard


def eta(shards: Sequence[Any]) -> float:
    """``η = max_i ‖M_i - M‖₂ / ‖M‖₂`` with ``M_i = A_iᵀA_i/s_i`` and ``M = AᵀA/n``.

    Near 0 all shards look like the whole and many local steps are safe; near 1 some shard shares
    little with the rest. Norms are taken by Lanczos iteration where d is large, without a d×d
    matrix. Shards without rows do not count.

    Parameters
    ----------
    shards : sequence of (s_i, d) arrays or sparse matrices

    Examples
    --------
    >>> eta([np.eye(2), np.eye(2)]), eta([np.eye(2)[:1], np.eye(2)[1:]])
    (0.0, 1.0)
    """
    matrices = [matrix for matrix in map(_matrix, shards) if matrix.shape[0]]
    widths = sorted({matrix.shape[1] for matrix in matrices})
    if len(widths) != 1:
        raise ValueError(f"shards need some rows and the same columns, got widths {widths}")
    exponent = max(moments(matrix.shard).exponent for matrix in matrices)
    for matrix in matrices:
        matrix.prepare(None, 2.0**-exponent)  # exact; huge and tiny data stay in range
    return (_dense if widths[0] <= GRAM_COLUMNS else _matrix_free)(matrices)


def _dense(matrices: list[LocalMatrix]) -> float:
    n = sum(matrix.shape[0] for matrix in matrices)
    M = fold((matrix.gram() for matrix in matrices), len(matrices)) / n
    farthest = max(_norm(matrix.gram() / matrix.shape[0] - M) for matrix in matrices)
    return farthest / (_norm(M) or 1.0)


def _norm(symmetric: Array) -> float:
    return float(np.abs(np.linalg.eigvalsh(symmetric)).max())


def _matrix_free(matrices: list[LocalMatrix]) -> float:
    n, d = sum(matrix.shape[0] for matrix in matrices), matrices[0].shape[1]

    def M(x: Array) -> Array:
        return fold((matrix.product(x) for matrix in matrices), len(matrices)) / n

    def difference(matrix: LocalMatrix) -> Callable[[Array], Array]:
        return lambda x: matrix.product(x) / matrix.shape[0] - M(x)

    farthest = max(_lanczos_norm(difference(matrix), d) for matrix in matrices)
    return farthest / (_lanczos_norm(M, d) or 1.0)


def _lanczos_norm(multiply: Callable[[Array], Array], d: int) -> float:
    from scipy.sparse.linalg import LinearOperator, eigsh

    start = np.random.default_rng(0).standard_normal(d)
    if not multiply(start[:, None]).any():
        return 0.0
    operator = LinearOperator((d, d), matvec=lambda x: multiply(x.reshape(d, 1)), dtype=float)
    values = eigsh(operator, 1, v0=start, which="LM", tol=1e-6, return_eigenvectors=False)
    return float(abs(values[0]))


def _matrix(rows: Any) -> LocalMatrix:
    sparse = hasattr(rows, "tocsr")
    piece = rows.tocsr().astype(np.float64) if sparse else np.asarray(rows, dtype=np.float64)
    if piece.ndim != 2:
        raise ValueError(f"shards must be a sequence of matrices, got one of shape {piece.shape}")
    return LocalMatrix(Shard((piece,), piece.shape[1], np.dtype(np.float64)))
