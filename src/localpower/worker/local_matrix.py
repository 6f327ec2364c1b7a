"""One shard as the matrix A_i of the paper: its rows, centred and scaled, ready for products.

With shift μ and factor D the matrix is ``(A - 1μᵀ)D``, and it is never formed. Dense blocks are
shifted while they are in the cache, so that nothing cancels; sparse ones stay sparse and are
multiplied as ``A(DZ) - 1(μᵀDZ)``. A mean that is large against the deviations needs a column with
hardly a zero: such columns are shifted entry by entry, zeros included. The Gram matrix is shifted
itself, where little can cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from localpower.core.linalg import Array, lanczos, leading_eigenpairs, orth, svd, triangular
from localpower.worker.grams import EarlyGram, GramSum
from localpower.worker.kernels import STRETCH, shifted
from localpower.worker.moments import Exponents, Moments, moments
from localpower.worker.products import GramProduct, sweeps
from localpower.worker.shard import Shard, cut, is_sparse
from localpower.worker.shifting import difference, explicit, held, keeps_digits, shift_gram, times

GRAM_COLUMNS = 1024  # up to here a worker may form its own d×d matrix for its eigenvectors
DUAL_ENTRIES = 1 << 25  # entries of a shard up to which it may be made dense for its few rows
OVERSAMPLED, PASSES = 8, 4  # columns more, and steps, of a block iteration for eigenpairs
ROUNDING = 8.0  # units of the largest eigenvalue's rounding that a bound allows for


class LocalMatrix:
    """The operator ``A_i``; `prepare` tells it the global shift and factor.

    `bytes_read` counts what was read from files.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._at_hand: Shard | None = None
        self._gram: Array | None = None
        self._moments: Moments | None = None
        self._ahead: tuple[Array | None, Array] | None = None
        self._explicit: list[tuple[Any, Array | None]] | None = None
        self.shape = shard.rows, shard.columns
        self.number = shard.number
        self.dtype = shard.dtype
        self.bytes_read = 0
        self.kernel = "products"
        self.shift: Array | None = None
        self.factor: Array | float = 1.0
        self.exponent: int | Exponents = 0
        self.far = False

    @property
    def shard(self) -> Shard:
        """The rows: as placed, or in memory if they are kept there."""
        if self._at_hand is None and self._shard.stored and self._shard.keep == "run":
            self._at_hand = self._shard.loaded(self.count)
        return self._at_hand or self._shard

    @contextmanager
    def rows_loaded(self, times: int) -> Iterator[None]:
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
        exponent: int | Exponents = 0,
        products: int = 0,
        width: int = 1,
        far: bool = True,
    ) -> None:
        """From now on work with ``(A_i - 1 shiftᵀ) · 2**-exponent · diag(factor)``.

        `products` with (d, width) matrices are to come: what the choice of the kernel is made for.
        `far` is false where no column of sparse rows has a large mean.
        """
        self.shift = None if shift is None else held(np.ldexp(shift, -exponent), self.dtype)
        self.factor = factor
        self.exponent = exponent
        self.far = far and self.shift is not None and self._has_sparse()
        self._gram = self._explicit = None
        self.kernel = "gram" if self._gram_pays(products, width) else "products"

    def _gram_pays(self, products: int, width: int) -> bool:
        """Whether ``A_iᵀA_i``, formed once, is cheaper than the products to come.

        Costs in operations: 4sdr a product with the rows; sd² once (as the matrix is symmetric),
        and 2d²r a product with it, which also must not take more memory than the rows. Files that
        are not kept in memory are streamed: what saves passes over them is p.
        """
        rows, columns = self.shape
        if self._has_sparse() or self._streamed or columns > rows:
            return False
        saved = products * (4 * rows * columns - 2 * columns**2) * width
        return saved > rows * columns**2

    def _has_sparse(self) -> bool:
        return any(is_sparse(piece) for piece in self._shard.pieces)

    def sparse_rows(self) -> int:
        """How many of the rows are sparse."""
        return sum(piece.shape[0] for piece in self._shard.pieces if is_sparse(piece))

    @property
    def _streamed(self) -> bool:
        return self._shard.stored > 0 and self._shard.keep != "run"

    @property
    def _gram_wanted(self) -> bool:
        return self.kernel == "gram"

    def apply(self, Z: Array, dtype: np.dtype[Any] | None = None) -> Array:
        """``A_i Z``, (rows, r), in the type of the rows or in another."""
        DZ = self._scaled(Z, dtype or self.dtype)
        T = np.empty((self.shape[0], Z.shape[1]), dtype=dtype or self.dtype)
        start = 0
        for block, shift in self._blocks():
            T[start : (start := start + block.shape[0])] = _forward(block, shift, DZ)
        return T

    def adjoint(self, T: Array) -> Array:
        """``A_iᵀ T``, (d, r), summed in float64."""
        Y = np.zeros((self.shape[1], T.shape[1]))
        start = 0
        for block, shift in self._blocks():
            _backward(block, shift, T[start : (start := start + block.shape[0])], Y)
        return self._scaled(Y, self.dtype)

    def product(self, Z: Array) -> Array:
        """``A_iᵀ(A_i Z)``, (d, r), in one pass over the rows, summed in float64."""
        if self._gram_wanted:
            return (self.kept_gram() @ Z).astype(self.dtype, copy=False)
        uniform = isinstance(self.factor, float)
        DZ = Z.astype(self.dtype, copy=False) if uniform else self._scaled(Z, self.dtype)
        sparse = self.sparse_rows() == self.shape[0] and not self._streamed
        parts = []
        for start, stop in sweeps(*DZ.shape[::-1]) if sparse else [(0, DZ.shape[1])]:
            kernel = GramProduct(DZ[:, start:stop])
            for block, shift in self._blocks():
                kernel.add(block, shift)
            parts.append(kernel.result())
        Y = parts[0] if len(parts) == 1 else np.hstack(parts)
        if not uniform or self.factor != 1.0:
            Y *= self.factor**2 if uniform else np.reshape(self.factor, (-1, 1))
        return Y.astype(self.dtype, copy=False)

    def gram(self) -> Array:
        """``A_iᵀA_i``, (d, d), in float64: exact but for what that rounds, also of float32."""
        ahead, self._ahead = self._ahead, None
        G = self._gram_shifted_later(ahead) if self._shifts_later else None
        G = self._gram_of_blocks() if G is None else G
        if isinstance(self.factor, float):
            return np.multiply(G, self.factor**2, out=G)
        G *= self.factor
        return np.multiply(G, self.factor[:, None], out=G)

    def _gram_of_blocks(self) -> Array:
        """``A_iᵀA_i`` before the factor, of rows that are shifted as they are multiplied."""
        total = GramSum(self.shape[1], self.dtype)
        for block, shift in self._blocks():
            if isinstance(block, np.ndarray):
                total.add(block, shift)
                continue
            step = rows_of_gram(self.shape[1])
            for start in range(0, block.shape[0], step):
                wide = cut(block, start, min(start + step, block.shape[0])).astype(np.float64)
                total.sum += (wide.T @ wide).toarray()
                if shift is not None:
                    rows = wide.shape[0]  # scipy's mean of float32 is no better than that
                    shift_gram(total.sum, rows, np.ravel(wide.sum(axis=0)) / rows, shift)
        return total.result()

    @property
    def _shifts_later(self) -> bool:
        """Whether the Gram matrix can be that of rows about another origin, shifted itself."""
        return self.shape[1] <= GRAM_COLUMNS and not self._has_sparse()

    def _gram_shifted_later(self, ahead: tuple[Array | None, Array] | None) -> Array | None:
        """That of rows whose shift need not be known before, if little cancels.

        Where it was not formed ahead it is formed likewise, and has the same bits.
        """
        if ahead is None or np.any(self.exponent) or (ahead[0] is None) != (self.shift is None):
            early = EarlyGram(self.shape[1], self.dtype, self.shift is not None)
            for block in self._unshifted():
                early.add(block)
            ahead = early.result()
        origin, G = ahead[0], ahead[1].copy()  # copies of this object have the same one
        if self.shift is None or origin is None:
            return G
        found = self.moments()
        power = found.exponent - self.exponent
        rest = np.ldexp(found.rest, power) if np.ndim(found.rest) else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.subtract(np.ldexp(found.mean, power), origin, dtype=np.float64) + rest
            shift = np.subtract(self.shift, origin, dtype=np.float64)
            shift_gram(G, self.shape[0], mean, shift)
            return G if keeps_digits(G, self.shape[0], mean, shift, self.factor) else None

    def moments(self, checksum: bool = False, ahead: str = "") -> Moments:
        """Statistics of the raw columns; of few columns, they are kept.

        The Gram matrix is formed in the same pass over files where `ahead` says of which rows,
        ``"centred"`` or ``"plain"`` ones.
        """
        found = self._moments
        if found is None or (checksum and found.checksum is None):
            early = None
            if ahead and self._streamed and self._shifts_later and self._may_keep_gram:
                early = EarlyGram(self.shape[1], self.dtype, ahead == "centred")
            also = None if early is None else early.add
            found = moments(self.shard, self.count, checksum, also)
            self._ahead = None if early is None else early.result()
        self._moments = found if self.shape[1] <= GRAM_COLUMNS else None
        return found

    def mean(self) -> Array:
        """Mean of the rows, centred and scaled, (d,) in float64."""
        found = self.moments()
        mean = np.ldexp(found.mean, found.exponent - self.exponent)
        return (mean if self.shift is None else mean - self.shift) * self.factor

    def kept_gram(self) -> Array:
        """``A_iᵀA_i``, formed once if it may be kept."""
        G = self.gram() if self._gram is None else self._gram
        self._gram = G if self._gram_wanted or self._may_keep_gram else None
        return G

    def gram_is_small(self) -> bool:
        """Whether ``A_iᵀA_i`` takes little against the rows."""
        rows, d = self.shape
        return d <= GRAM_COLUMNS and 4 * d <= rows

    @property
    def _may_keep_gram(self) -> bool:
        """Whether it is also within what this shard may keep of the memory of all."""
        return self.gram_is_small() and 8 * self.shape[1] ** 2 <= self._shard.spare

    def triangle(self) -> Array:
        """The R factor of ``A_i``, (d, d), in float64: of blocks below that of those before."""
        d = self.shape[1]
        R: Array = np.zeros((d, d))
        held: list[Array] = []
        for block, shift in self._blocks():
            for start in range(0, block.shape[0], STRETCH):
                rows = cut(block, start, min(start + STRETCH, block.shape[0]))
                rows = rows if isinstance(rows, np.ndarray) else rows.toarray()
                rows = rows.astype(np.float64) - (0.0 if shift is None else shift)
                held.append(rows * self.factor)
                if sum(map(len, held)) >= 4 * d:
                    R, held = triangular(np.vstack([R, triangular(np.vstack(held))])), []
        return triangular(np.vstack([R, *held])) if held else R

    def top(self, rank: int) -> tuple[Array, Array]:
        """Leading eigenvectors (d, k') and eigenvalues of ``M_i = A_iᵀA_i/s_i``, k' ≤ rank.

        Directions in which the shard has no rows are left out, so k' may be less than `rank`.
        """
        rows, columns = self.shape
        if columns <= GRAM_COLUMNS or min(rank, rows) >= columns - 1:  # Lanczos cannot find all
            values, vectors = leading_eigenpairs(self.gram(), rank)
        else:
            with self.rows_loaded(columns):
                values, vectors = lanczos(self.product, columns, min(rank, rows))
        floor = values[0] * columns * np.finfo(self.dtype).eps if values.size else 0.0
        kept = values > max(floor, 0.0)
        values, vectors = values[kept] / max(rows, 1), vectors[:, kept]
        return np.ascontiguousarray(vectors, self.dtype), values.astype(self.dtype, copy=False)

    def leading_factor(self, width: int) -> tuple[Array, float]:
        """``F = V Λ^{1/2}``, (d, c) with c ≤ width, and a bound b: ``A_iᵀA_i ⪯ FFᵀ + b·I``.

        Exact eigenpairs where a small square matrix has them. Else, with the Z of a block iteration
        and ``B = A_iᵀA_i``, those of ``BZ(ZᵀBZ)⁻¹ZᵀB ⪯ B``; what they leave of the trace bounds b.
        """
        rows, d = self.shape
        count = min(width, rows, d)
        if d <= GRAM_COLUMNS:
            B = self.kept_gram() if self.gram_is_small() else self.gram()
            values, vectors = _descending(*np.linalg.eigh(B))
        elif rows <= GRAM_COLUMNS and rows * d <= DUAL_ENTRIES:
            A = self._dense()
            values, left = _descending(*np.linalg.eigh(A @ A.T))
            sizes = np.sqrt(np.maximum(values, np.finfo(float).tiny))
            vectors = A.T @ (left[:, :count] / sizes[:count])
        else:
            return self._iterated_factor(count)
        top = float(values[:1].sum())
        rounding = ROUNDING * self.rounding * top
        kept = values[:count] > rounding
        rest = float(values[count:][:1].sum()) if kept.all() else rounding
        F = vectors[:, :count][:, kept] * np.sqrt(values[:count][kept])
        return np.ascontiguousarray(F, self.dtype), max(rest, 0.0) + rounding

    def _iterated_factor(self, count: int) -> tuple[Array, float]:
        d = self.shape[1]
        start = np.random.default_rng(0).standard_normal((d, min(count + OVERSAMPLED, d)))
        Z = orth(start, overwrite=True).astype(self.dtype, copy=False)
        with self.rows_loaded(PASSES + 1):
            for _ in range(PASSES):
                Z = orth(self.product(Z), overwrite=True).astype(self.dtype, copy=False)
            image = self.product(Z).astype(np.float64, copy=False)
        values, turn = _descending(*np.linalg.eigh(_symmetric(Z.T @ image)))
        rounding = ROUNDING * self.rounding * float(values[:1].sum())
        kept = values > rounding
        P, sizes, _ = svd(image @ (turn[:, kept] / np.sqrt(values[kept])))
        F = P[:, :count] * sizes[:count]
        left = max(self.trace() - float(np.square(sizes[:count]).sum()), 0.0)
        return np.ascontiguousarray(F, self.dtype), left + rounding

    def _dense(self) -> Array:
        """The rows, centred and scaled, as one array of float64; for few of them."""
        parts = [np.zeros((0, self.shape[1]))]
        for block, shift in self._blocks():
            rows = block if isinstance(block, np.ndarray) else block.toarray()
            parts.append(rows.astype(np.float64) - (0.0 if shift is None else shift))
        return np.vstack(parts) * self.factor

    @property
    def rounding(self) -> float:
        """The relative rounding of products."""
        return float(np.finfo(self.dtype).eps)

    def trace(self) -> float:
        """Sum of the squares of all entries, centred and scaled."""
        if self.gram_is_small():
            return float(np.trace(self.kept_gram()))
        squares = np.zeros(self.shape[1])
        for block, shift in self._blocks():
            if isinstance(block, np.ndarray):
                for rows in shifted(block, shift, self.dtype):
                    squares += np.einsum("ij,ij->j", rows, rows, dtype=np.float64)
                continue
            data = block.data.astype(np.float64, copy=False)
            squares += np.bincount(block.indices, np.square(data), self.shape[1])
            if shift is not None:
                sums = np.bincount(block.indices, data, self.shape[1])
                squares += shift * (block.shape[0] * shift - 2 * sums)
        return float((squares * np.square(self.factor)).sum())

    def _scaled(self, Z: Array, dtype: np.dtype[Any]) -> Array:
        factor = self.factor if isinstance(self.factor, float) else self.factor[:, None]
        if isinstance(factor, float) and factor == 1.0:
            return Z.astype(dtype, copy=False)
        return (Z * factor).astype(dtype, copy=False)

    def _blocks(self) -> Iterator[tuple[Any, Array | None]]:
        """Yield blocks of rows, each with the shift that is still to be applied to it."""
        kept = self.far and not self._streamed and self.sparse_rows() == self.shape[0]
        if kept and self._explicit is None:  # dense blocks may be copies, and are not kept
            self._explicit = list(self._read())
        yield from self._read() if self._explicit is None else self._explicit

    def _unshifted(self) -> Iterator[Any]:
        for block in self.shard.blocks(self.count):
            if np.any(self.exponent):
                block = times(block, np.ldexp(1.0, -self.exponent))
            yield block

    def _read(self) -> Iterator[tuple[Any, Array | None]]:
        for block in self._unshifted():
            if self.shift is None:
                yield block, None
            elif is_sparse(block):
                yield explicit(block, self.shift) if self.far else (block, self.shift)
            elif self.shift.dtype == self.dtype:
                yield block, self.shift
            else:  # which the type of the rows cannot hold
                yield difference(block, self.shift), None

    def count(self, size: int) -> None:
        """Take note of what was read from files."""
        self.bytes_read += size


def _descending(values: Array, vectors: Array) -> tuple[Array, Array]:
    return values[::-1], vectors[:, ::-1]


def _symmetric(H: Array) -> Array:
    return (H + H.T) / 2


def rows_of_gram(columns: int) -> int:
    """How many sparse rows are multiplied with themselves at a time: the product is dense."""
    return max(STRETCH // 4, 4 * columns)


def _forward(block: Any, shift: Array | None, Z: Array) -> Array:
    if shift is not None and isinstance(block, np.ndarray):
        return np.concatenate([rows @ Z for rows in shifted(block, shift, block.dtype)])
    T: Array = block @ Z
    return T if shift is None else T - shift @ Z


def _backward(block: Any, shift: Array | None, T: Array, Y: Array) -> None:
    if shift is not None and isinstance(block, np.ndarray):
        block, shift = block - shift, None
    Y += block.T @ T
    if shift is not None:
        Y -= np.outer(shift, T.sum(axis=0, dtype=np.float64))
