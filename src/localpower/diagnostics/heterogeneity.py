"""How much shards differ from the whole, Definition 2 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from localpower.core.alignment import procrustes
from localpower.core.errors import DataError
from localpower.core.linalg import EIGH_COLUMNS, Array, fold, lanczos
from localpower.worker.local_matrix import GRAM_COLUMNS, LocalMatrix
from localpower.worker.moments import moments
from localpower.worker.shard import Shard


def eta(shards: Sequence[Any]) -> float:
    """``η = max_i ‖M_i - M‖₂ / ‖M‖₂`` with ``M_i = A_iᵀA_i/s_i`` and ``M = AᵀA/n``.

    Near 0 all shards look like the whole and many local steps are safe; towards 1 and beyond some
    shard shares little with the rest. Norms are taken by Lanczos iteration where d is large,
    without a d×d matrix. Shards without rows do not count.

    Parameters
    ----------
    shards : sequence of (s_i, d) arrays or sparse matrices

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> lp.eta([np.eye(2), np.eye(2)]), lp.eta([np.eye(2)[:1], np.eye(2)[1:]])
    (0.0, 1.0)
    """
    matrices = [matrix for matrix in map(_matrix, shards) if matrix.shape[0]]
    widths = sorted({matrix.shape[1] for matrix in matrices})
    if len(widths) != 1:
        raise ValueError(f"shards need some rows and the same columns, got widths {widths}")
    stats = [moments(matrix.shard) for matrix in matrices]
    if any(each.bad is not None for each in stats):
        raise DataError("shards have NaN or infinity; remove such rows or fill in values")
    exponent = max(int(np.max(each.exponent)) for each in stats)
    for matrix in matrices:
        matrix.prepare(None, 1.0, exponent)  # exact; huge and tiny data stay in range
    return (_dense if widths[0] <= GRAM_COLUMNS else _matrix_free)(matrices)


def _dense(matrices: list[LocalMatrix]) -> float:
    n = sum(matrix.shape[0] for matrix in matrices)
    M = fold((matrix.gram() for matrix in matrices), len(matrices)) / n
    farthest = max(spectral_norm(matrix.gram() / matrix.shape[0] - M) for matrix in matrices)
    return farthest / (spectral_norm(M) or 1.0)


def spectral_norm(symmetric: Array) -> float:
    """Largest magnitude of an eigenvalue of a symmetric matrix."""
    d = symmetric.shape[0]
    if d > EIGH_COLUMNS:
        return _lanczos_norm(lambda x: symmetric @ x, d)
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
    values, _ = lanczos(multiply, d, 1, which="LM")
    return float(np.abs(values).max(initial=0.0))


def _matrix(rows: Any) -> LocalMatrix:
    sparse = hasattr(rows, "tocsr")
    piece = rows.tocsr().astype(np.float64) if sparse else np.asarray(rows, dtype=np.float64)
    if piece.ndim != 2:
        raise ValueError(f"shards must be a sequence of matrices, got one of shape {piece.shape}")
    return LocalMatrix(Shard((piece,), piece.shape[1], np.dtype(np.float64)))


def rho(bases: Sequence[Array], anchor: int = 0, aligned: bool = True) -> float:
    """Residual error ``ρ_t`` between shards' bases, Definition 3.

    ``max_i min_O ‖Z_i O - Z_anchor‖₂`` over orthogonal O, or with ``O = I`` if not `aligned`. The
    Procrustes rotation attains the minimum in every unitarily invariant norm.

    Examples
    --------
    >>> Z = np.eye(3)[:, :2]
    >>> rho([Z, Z[:, ::-1]]), round(rho([Z, Z[:, ::-1]], aligned=False), 6)
    (0.0, 2.0)
    """
    Z = bases[anchor]
    rotated = (W @ procrustes(W, Z) if aligned else W for W in bases)
    return max(float(np.linalg.norm(W - Z, 2)) for W in rotated)


def kappa(sigma: Sequence[float] | Array) -> float:
    """Condition number ``‖M‖‖M†‖`` from the spectrum of M; values at rounding level count as 0."""
    sigma = np.asarray(sigma, dtype=np.float64)
    kept = sigma[sigma > sigma.max(initial=0.0) * sigma.size * np.finfo(np.float64).eps]
    return float(kept.max() / kept.min()) if kept.size else 1.0


def coherence(A: Array) -> float:
    """Row coherence ``μ = n/ρ · max_j ‖u_j‖²`` with u_j the rows of an orthonormal column basis.

    ρ is the rank; the paper writes d, which is the same for a matrix of full column rank.

    Examples
    --------
    >>> round(coherence(np.ones((4, 1))), 6), coherence(np.eye(4)[:, :2])
    (1.0, 2.0)
    """
    U, S, _ = np.linalg.svd(A, full_matrices=False)
    U = U[:, S[0] * max(A.shape) * np.finfo(np.float64).eps < S]
    return float(A.shape[0] / U.shape[1] * np.square(U).sum(axis=1).max())
