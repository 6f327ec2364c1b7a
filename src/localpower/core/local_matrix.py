"""One shard as the matrix A_i of the paper: its rows, centred and scaled, ready for products.

With shift μ and factor D the matrix is ``(A - 1μᵀ)D``, and it is never formed. Dense blocks are
shifted while they are in the cache, so that nothing cancels; sparse ones stay sparse and are
multiplied as ``A(DZ) - 1(μᵀDZ)``. The Gram matrix is shifted itself, where little can cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from localpower.core.kernels import GramProduct
from localpower.core.linalg import Array, lanczos, leading_eigenpairs, triangular
from localpower.core.moments import Moments, moments
from localpower.core.shard import Shard, is_sparse

GRAM_COLUMNS = 1024  # up to here a worker may form its own d×d matrix for its eigenvectors
NEAR_ZERO = 2.0  # largest deviations of a column: a mean up to here cancels a few bits at most
CACHED = 1 << 18  # bytes of rows that are shifted at once


class LocalMatrix:
    """The operator ``A_i``; `prepare` tells it the global shift and factor.

    `bytes_read` counts what was read from files.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._at_hand: Shard | None = None
        self._gram: Array | None = None
        self._moments: Moments | None = None
        self.shape = shard.rows, shard.columns
        self.number = shard.number
        self.dtype = shard.dtype
        self.bytes_read = 0
        self.kernel = "products"
        self.shift: Array | None = None
        self.factor: Array | float = 1.0
        self.exponent = 0

    @property
    def shard(self) -> Shard:
        """The rows: as placed, or in memory if they are kept there."""
        if self._at_hand is None and self._shard.stored and self._shard.keep == "run":
            self._at_hand = self._shard.loaded(self.count)
        return self._at_hand or self._shard

    @contextmanager
    def several_times(self, times: int) -> Iterator[None]:
        """Read the rows once for a task that goes over them so many times, if they may be kept."""
        if times < 2 or not self.shard.stored or self._shard.keep != "task" or self._gram_wanted:
            yield
            return
        self._at_hand = self._shard.loaded(self.count)
        try:
            yield
        finally:
            self._at_hand = None

    def prepare(
        self,
        shift: Array | None,
        factor: Array | float,
        exponent: int = 0,
        products: int = 0,
        width: int = 1,
    ) -> None:
        """From now on work with ``(A_i - 1 shiftᵀ) · 2**-exponent · diag(factor)``.

        `products` with (d, width) matrices are to come: what the choice of the kernel is made for.
        """
        self.shift = None if shift is None else np.ldexp(shift, -exponent).astype(self.dtype)
        self.factor = factor
        self.exponent = exponent
        self._gram = None
        self.kernel = "gram" if self._gram_pays(products, width) else "products"

    def _gram_pays(self, products: int, width: int) -> bool:
        """Whether ``A_iᵀA_i``, formed once, is cheaper than the products to come.

        Costs in operations: 4sdr a product with the rows; sd² once (as the matrix is symmetric),
        and 2d²r a product with it, which also must not take more memory than the rows. Files that
        are not kept in memory are streamed: what saves passes over them is p.
        """
        rows, columns = self.shape
        streamed = self._shard.stored and self._shard.keep != "run"
        if self._has_sparse() or streamed or columns > rows:
            return False
        saved = products * (4 * rows * columns - 2 * columns**2) * width
        return saved > rows * columns**2

    def _has_sparse(self) -> bool:
        return any(is_sparse(piece) for piece in self._shard.pieces)

    @property
    def _gram_wanted(self) -> bool:
        return self.kernel == "gram"

    def apply(self, Z: Array) -> Array:
        """``A_i Z``, (rows, r)."""
        DZ = self._scaled(Z)
        T = np.empty((self.shape[0], Z.shape[1]), dtype=self.dtype)
        start = 0
        for block in self._blocks():
            T[start : (start := start + block.shape[0])] = _forward(block, self.shift, DZ)
        return T

    def adjoint(self, T: Array) -> Array:
        """``A_iᵀ T``, (d, r), summed in float64."""
        Y = np.zeros((self.shape[1], T.shape[1]))
        start = 0
        for block in self._blocks():
            _backward(block, self.shift, T[start : (start := start + block.shape[0])], Y)
        return self._scaled(Y)

    def product(self, Z: Array) -> Array:
        """``A_iᵀ(A_i Z)``, (d, r), in one pass over the rows, summed in float64."""
        if self._gram_wanted:
            return (self.kept_gram() @ Z).astype(self.dtype, copy=False)
        uniform = isinstance(self.factor, float)
        DZ = Z.astype(self.dtype, copy=False) if uniform else self._scaled(Z)
        kernel = GramProduct(DZ, self.shift)
        for block in self._blocks():
            kernel.add(block)
        Y = kernel.result()
        if not uniform or self.factor != 1.0:
            Y *= self.factor**2 if uniform else np.reshape(self.factor, (-1, 1))
        return Y.astype(self.dtype, copy=False)

    def gram(self) -> Array:
        """``A_iᵀA_i``, (d, d), in float64."""
        d = self.shape[1]
        G = np.zeros((d, d))
        mean = self._mean_near_zero()
        shift = self.shift if mean is None else None
        for block in self._blocks():
            if isinstance(block, np.ndarray):
                for rows in _shifted(block, shift):
                    G += rows.T @ rows
                continue
            G += (block.T @ block).toarray()
            if self.shift is not None:
                _shift_gram(G, block.shape[0], block.mean(axis=0, dtype=np.float64), self.shift)
        if mean is not None and self.shift is not None:
            _shift_gram(G, self.shape[0], mean, self.shift)
        if isinstance(self.factor, float):
            return np.multiply(G, self.factor**2, out=G)
        G *= self.factor
        return np.multiply(G, self.factor[:, None], out=G)

    def _mean_near_zero(self) -> Array | None:
        """The mean of the rows, if it is so small that the Gram matrix can be shifted itself."""
        rows, d = self.shape
        if self.shift is None or self.exponent or d > GRAM_COLUMNS or self._has_sparse():
            return None
        found = self.moments()
        mean, m2 = np.ldexp(found.mean, found.exponent), np.ldexp(found.m2, 2 * found.exponent)
        far = np.linalg.norm(np.maximum(np.abs(mean), np.abs(self.shift)) * self.factor)
        spread = np.sqrt(m2 / max(rows, 1) + np.square(mean - self.shift)) * self.factor
        return mean if far <= NEAR_ZERO * spread.max() else None

    def moments(self) -> Moments:
        """Statistics of the raw columns; of few columns, they are kept."""
        found = self._moments or moments(self.shard, self.count)
        self._moments = found if self.shape[1] <= GRAM_COLUMNS else None
        return found

    def kept_gram(self) -> Array:
        """The same, formed once."""
        if self._gram is None:
            self._gram = self.gram()
        return self._gram

    def gram_is_small(self) -> bool:
        """Whether ``A_iᵀA_i`` takes little against the rows."""
        rows, d = self.shape
        return d <= GRAM_COLUMNS and 4 * d <= rows

    def triangle(self) -> Array:
        """The R factor of ``A_i``, (d, d), in float64: of blocks below that of those before."""
        d = self.shape[1]
        R: Array = np.zeros((d, d))
        held: list[Array] = []
        for block in self._blocks():
            rows = block if isinstance(block, np.ndarray) else block.toarray()
            rows = rows.astype(np.float64) - (0.0 if self.shift is None else self.shift)
            held.append(rows * self.factor)
            if sum(map(len, held)) >= 2 * d:
                R, held = triangular(np.vstack([R, *held])), []
        return triangular(np.vstack([R, *held])) if held else R

    def top(self, rank: int) -> tuple[Array, Array]:
        """Leading eigenvectors (d, k') and eigenvalues of ``M_i = A_iᵀA_i/s_i``, k' ≤ rank.

        Directions in which the shard has no rows are left out, so k' may be less than `rank`.
        """
        rows, columns = self.shape
        if columns <= GRAM_COLUMNS or min(rank, rows) >= columns - 1:  # Lanczos cannot find all
            values, vectors = leading_eigenpairs(self.gram(), rank)
        else:
            with self.several_times(columns):
                values, vectors = lanczos(self.product, columns, min(rank, rows))
        floor = values[0] * columns * np.finfo(self.dtype).eps if values.size else 0.0
        kept = values > max(floor, 0.0)
        values, vectors = values[kept] / max(rows, 1), vectors[:, kept]
        return np.ascontiguousarray(vectors, self.dtype), values.astype(self.dtype, copy=False)

    def _scaled(self, Z: Array) -> Array:
        factor = self.factor if isinstance(self.factor, float) else self.factor[:, None]
        if isinstance(factor, float) and factor == 1.0:
            return Z.astype(self.dtype, copy=False)
        return (Z * factor).astype(self.dtype, copy=False)

    def _blocks(self) -> Iterator[Any]:
        """Yield blocks of rows, to which the shift is still to be applied."""
        for block in self.shard.blocks(self.count):
            yield _times(block, 2.0**-self.exponent) if self.exponent else block

    def count(self, size: int) -> None:
        """Take note of what was read from files."""
        self.bytes_read += size


def _shifted(block: Array, shift: Array | None) -> Iterator[Array]:
    """Yield the rows of a block less the shift, as many as stay in the cache meanwhile."""
    if shift is None:
        yield block
        return
    step = max(16, CACHED // max(1, block.nbytes // max(1, len(block))))
    for start in range(0, len(block), step):
        yield block[start : start + step] - shift


def _shift_gram(G: Array, rows: int, mean: Array, shift: Array) -> None:
    """Make the Gram matrix of rows, whose mean is known, that of the rows less the shift."""
    cross = rows * np.outer(mean - shift / 2, shift)
    G -= cross + cross.T


def _forward(block: Any, shift: Array | None, Z: Array) -> Array:
    if shift is not None and isinstance(block, np.ndarray):
        return np.concatenate([rows @ Z for rows in _shifted(block, shift)])
    T: Array = block @ Z
    return T if shift is None else T - shift @ Z


def _backward(block: Any, shift: Array | None, T: Array, Y: Array) -> None:
    if shift is not None and isinstance(block, np.ndarray):
        block, shift = block - shift, None
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
