"""How much shards differ from the whole, Definition 2 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.core.linalg import EIGH_COLUMNS, Array, fold, lanczos
from localpower.worker.local_matrix import GRAM_COLUMNS, LocalMatrix
from localpower.worker.moments import moments
from localpower.worker.shard import Shard

LANCZOS_STEPS = 20  # that an estimate takes, or a few more
ESTIMATE = 0.01  # relative error of an estimate


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
    return float(np.nanmax(etas(matrices)))


def etas(matrices: Sequence[LocalMatrix]) -> Array:
    """``η_i = ‖M_i - M‖₂ / ‖M‖₂`` of every shard, prepared as in the run; nan without rows."""
    rows, d = [matrix.shape[0] for matrix in matrices], matrices[0].shape[1]
    if d <= GRAM_COLUMNS:
        return etas_of_grams(lambda: (matrix.gram() for matrix in matrices), rows)

    def M(x: Array) -> Array:
        return fold((matrix.product(x) for matrix in matrices), len(matrices)) / sum(rows)

    return np.array([_eta(matrix, M, 0.0) for matrix in matrices]) / (_norm(M, d) or 1.0)


def etas_of_grams(grams: Callable[[], Iterable[Array]], rows: Sequence[int]) -> Array:
    """The same from ``A_iᵀA_i`` of every shard, which are asked for twice."""
    M = fold(iter(grams()), len(rows)) / sum(rows)
    norm = spectral_norm(M) or 1.0
    pairs = zip(grams(), rows, strict=True)
    return np.array([spectral_norm(G / s - M) / norm if s else np.nan for G, s in pairs])


def estimated_etas(matrices: Sequence[LocalMatrix], V: Array, values: Array) -> Array:
    """The same, nearly, with ``V diag(values) Vᵀ`` in the place of M: no pass over all rows."""

    def M(x: Array) -> Array:
        product: Array = V @ (values[:, None] * (V.T @ x))
        return product

    found = []
    for matrix in matrices:
        with matrix.rows_loaded(LANCZOS_STEPS):
            found.append(_eta(matrix, M, ESTIMATE))
    return np.array(found) / (float(values[0]) or 1.0)


def _eta(matrix: LocalMatrix, M: Callable[[Array], Array], tol: float) -> float:
    """``‖M_i - M‖₂`` of one shard."""
    rows, d = matrix.shape
    return _norm(lambda x: matrix.product(x) / rows - M(x), d, tol) if rows else float("nan")


def spectral_norm(symmetric: Array) -> float:
    """Largest magnitude of an eigenvalue of a symmetric matrix."""
    d = symmetric.shape[0]
    if d > EIGH_COLUMNS:
        return _norm(lambda x: symmetric @ x, d)
    return float(np.abs(np.linalg.eigvalsh(symmetric)).max())


def _norm(multiply: Callable[[Array], Array], d: int, tol: float = 0.0) -> float:
    values, _ = lanczos(multiply, d, 1, which="LM", tol=tol)
    return float(np.abs(values).max(initial=0.0))


def _matrix(rows: Any) -> LocalMatrix:
    sparse = hasattr(rows, "tocsr")
    piece = rows.tocsr().astype(np.float64) if sparse else np.asarray(rows, dtype=np.float64)
    if piece.ndim != 2:
        raise ValueError(f"shards must be a sequence of matrices, got one of shape {piece.shape}")
    return LocalMatrix(Shard((piece,), piece.shape[1], np.dtype(np.float64)))
