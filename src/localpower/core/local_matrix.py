"""One shard as the matrix A_i of the paper: its rows, centred and scaled, ready for products.

With shift μ and factor D the matrix is ``(A - 1μᵀ)D``, and it is never formed. Dense blocks are
shifted while they are in the cache, so that nothing cancels; sparse ones stay sparse and are
multiplied as ``A(DZ) - 1(μᵀDZ)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from localpower.core.linalg import Array, lanczos, leading_eigenpairs
from localpower.core.shard import Shard

GRAM_COLUMNS = 1024  # up to here a worker may form its own d×d matrix


class LocalMatrix:
    """The operator ``A_i``; `prepare` tells it the global shift and factor."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.shape = shard.rows, shard.columns
        self.dtype = shard.dtype
        self.shift: Array | None = None
        self.factor: Array | float = 1.0
        self.exponent = 0

    def prepare(self, shift: Array | None, factor: Array | float, exponent: int = 0) -> None:
        """From now on work with ``(A_i - 1 shiftᵀ) · 2**-exponent · diag(factor)``."""
        self.shift = None if shift is None else np.ldexp(shift, -exponent).astype(self.dtype)
        self.factor = factor
        self.exponent = exponent

    def apply(self, Z: Array) -> Array:
        """``A_i Z``, (rows, r)."""
        DZ = self._scaled(Z, self.dtype)
        T = np.empty((self.shape[0], Z.shape[1]), dtype=self.dtype)
        for rows, block, shift in self._blocks():
            T[rows] = _forward(block, shift, DZ)
        return T

    def adjoint(self, T: Array) -> Array:
        """``A_iᵀ T``, (d, r), summed in float64."""
        Y = np.zeros((self.shape[1], T.shape[1]))
        for rows, block, shift in self._blocks():
            _backward(block, shift, T[rows], Y)
        return self._scaled(Y, self.dtype)

    def product(self, Z: Array) -> Array:
        """``A_iᵀ(A_i Z)``, (d, r), in one pass over the rows, summed in float64."""
        DZ = self._scaled(Z, self.dtype)
        Y = np.zeros((self.shape[1], Z.shape[1]))
        for _, block, shift in self._blocks():
            _backward(block, shift, _forward(block, shift, DZ), Y)
        return self._scaled(Y, self.dtype)

    def gram(self) -> Array:
        """``A_iᵀA_i``, (d, d), in float64."""
        d = self.shape[1]
        G = np.zeros((d, d))
        for _, block, shift in self._blocks():
            block = _times(block, self.factor)
            square = block.T @ block
            G += square if isinstance(square, np.ndarray) else square.toarray()
            if shift is not None:
                Ds = shift * self.factor
                cross = np.outer(block.sum(axis=0), Ds)
                G -= cross + cross.T - block.shape[0] * np.outer(Ds, Ds)
        return G

    def top(self, rank: int) -> tuple[Array, Array]:
        """Leading eigenvectors (d, k') and eigenvalues of ``M_i = A_iᵀA_i/s_i``, k' ≤ rank.

        Directions in which the shard has no rows are left out, so k' may be less than `rank`.
        """
        rows, columns = self.shape
        if columns <= GRAM_COLUMNS or min(rank, rows) >= columns - 1:  # Lanczos cannot find all
            values, vectors = leading_eigenpairs(self.gram(), rank)
        else:
            values, vectors = lanczos(self.product, columns, min(rank, rows))
        floor = values[0] * columns * np.finfo(self.dtype).eps if values.size else 0.0
        kept = values > max(floor, 0.0)
        values, vectors = values[kept] / max(rows, 1), vectors[:, kept]
        return vectors.astype(self.dtype, copy=False), values.astype(self.dtype, copy=False)

    def _scaled(self, Z: Array, dtype: np.dtype[Any]) -> Array:
        factor = self.factor if isinstance(self.factor, float) else self.factor[:, None]
        return (Z * factor).astype(dtype, copy=False)

    def _blocks(self) -> Iterator[tuple[slice, Any, Array | None]]:
        """Yield row range, block, and the shift that is still to be applied to it."""
        start = 0
        for block in self.shard.blocks():
            rows = slice(start, start := start + block.shape[0])
            if self.exponent:
                block = _times(block, 2.0**-self.exponent)
            if self.shift is not None and isinstance(block, np.ndarray):
                yield rows, block - self.shift, None
            else:
                yield rows, block, self.shift


def _forward(block: Any, shift: Array | None, Z: Array) -> Array:
    T: Array = block @ Z
    return T if shift is None else T - shift @ Z


def _backward(block: Any, shift: Array | None, T: Array, Y: Array) -> None:
    Y += block.T @ T
    if shift is not None:
        Y -= np.outer(shift, T.sum(axis=0, dtype=np.float64))


def _times(block: Any, factor: Array | float) -> Any:
    """Multiply the columns of a block, in its own precision but over the range of float64."""
    if isinstance(block, np.ndarray):
        return np.multiply(block, factor, dtype=np.float64).astype(block.dtype, copy=False)
    entries = factor if isinstance(factor, float) else factor[block.indices]
    data = np.multiply(block.data, entries, dtype=np.float64).astype(block.dtype, copy=False)
    return type(block)((data, block.indices, block.indptr), shape=block.shape)
