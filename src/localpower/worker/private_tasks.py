"""Sums with noise in them, which may be told to anybody: differential privacy at the shard.

Rows become whole numbers, and are shortened to a norm of at most `LONGEST` of them, before anything
is added. All that follows is exact, so one row more or less changes a sum by at most ``LONGEST²``,
in the Frobenius norm, and nothing about it is rounded. Every shard adds noise in whole numbers to
its own sum, modulo 2**64, before it leaves.

Where rows are to be centred, each has one more entry, the same for all: its products with the
others tell the number of rows and their sum, in the same release.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.alignment import procrustes
from localpower.core.errors import DataError
from localpower.core.gaussian import Integers, Stream, discrete_gaussian, halved
from localpower.core.linalg import Addend, Array, orth
from localpower.core.ring import Words
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.replies import unpacked
from localpower.worker.shard import cut, is_sparse
from localpower.worker.tasks import Shapes, Task

LONGEST = 1 << 16  # norm of a row
SENSITIVITY = LONGEST**2  # of a sum: what one row may add to it
CONSTANT = isqrt(SENSITIVITY // 5)  # the entry that all rows share: half of what is left for them
EXACT_ROWS = 1 << 20  # of which sums of products are whole numbers below 2**53
MOST_ROWS = 1 << 30  # of all shards: sums are below 2**62
BASIS_BITS = 24  # of a basis in whole numbers


@dataclass(frozen=True, slots=True, eq=False)
class NoisedSum(Addend):
    """Words of sums over rows with noise in them; they are added modulo 2**64."""

    words: Words

    def plus(self, other: NoisedSum, own: bool) -> NoisedSum:
        return NoisedSum(self.words + other.words)


@dataclass(frozen=True, slots=True, eq=False)
class Noised(Task[NoisedSum]):
    """A sum over rows that are shortened to the norm `clip`, with noise.

    `sigma` is the deviation of this shard's noise, in whole numbers; `honest` shards at least add
    such noise, so the sum has √honest times that. With `center`, rows have an entry more.
    """

    clip: float
    sigma: int
    honest: int
    center: bool

    @property
    def mu(self) -> float:
        """Sensitivity over the deviation of the noise in the sum."""
        return SENSITIVITY / (self.sigma * sqrt(self.honest))

    def noised(self, matrix: LocalMatrix, stream: Stream) -> NoisedSum:
        """Make the sum, with noise from a stream of random bytes."""
        exact = self.exact(matrix)
        noise = self.noise(matrix.shape[1], stream)[0]
        return NoisedSum(exact.view(np.uint64) + noise.view(np.uint64))

    def __call__(self, matrix: LocalMatrix) -> NoisedSum:
        return self.noised(matrix, os.urandom)

    def exact(self, matrix: LocalMatrix) -> Integers:
        """The sum without noise, which must not leave."""
        raise NotImplementedError

    def noise(self, columns: int, stream: Stream, times: int = 1) -> Integers:
        """The noise of so many releases, (times, words)."""
        raise NotImplementedError

    def rows_of(self, matrix: LocalMatrix) -> Iterator[Any]:
        """Blocks of rows in whole numbers, dense or sparse, not longer than `longest`."""
        if matrix.shape[0] * self.honest > MOST_ROWS or matrix.shape[1] > EXACT_ROWS:
            raise DataError(
                f"a private sum is of {MOST_ROWS} rows and {EXACT_ROWS} columns at most: take fewer"
            )
        for block in matrix.shard.blocks(matrix.count):
            for start in range(0, block.shape[0], EXACT_ROWS):
                part = cut(block, start, min(start + EXACT_ROWS, block.shape[0]))
                yield whole(part, self.clip, longest(self.center))


@dataclass(frozen=True, slots=True, eq=False)
class NoisedGram(Noised):
    """The upper triangle of ``AᵀA``: σ on the diagonal and σ/√2 elsewhere.

    In coordinates ``(G_jj, √2·G_jk)``, whose norm is that of the matrix, all noise is alike.
    """

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"words": (_entries(columns + self.center),)}

    def exact(self, matrix: LocalMatrix) -> Integers:
        d, width = matrix.shape[1], matrix.shape[1] + self.center
        total = np.zeros((width, width), np.int64)
        part, rows = np.zeros((width, width)), 0
        for q in self.rows_of(matrix):
            if rows + q.shape[0] > EXACT_ROWS:
                total += part.astype(np.int64)
                part[:], rows = 0.0, 0
            product = q.T @ q
            part[:d, :d] += product.toarray() if is_sparse(product) else product
            if self.center:
                part[:d, d] += CONSTANT * np.asarray(q.sum(axis=0)).ravel()
                part[d, d] += CONSTANT**2 * q.shape[0]
            rows += q.shape[0]
        total += part.astype(np.int64)
        return total[np.triu_indices(width)]

    def noise(self, columns: int, stream: Stream, times: int = 1) -> Integers:
        diagonal = on_diagonal(columns + self.center)
        y = np.empty((times, diagonal.size), np.int64)
        for which, sigma in ((diagonal, self.sigma), (~diagonal, halved(self.sigma))):
            count = int(which.sum())
            y[:, which] = discrete_gaussian(sigma, times * count, stream).reshape(times, count)
        return y


@dataclass(frozen=True, slots=True, eq=False)
class NoisedProduct(Noised):
    """``AᵀAZ`` for a basis Z, (d, r), or (d + 1, r) with `center`.

    Rows of AZ are whole numbers and shortened, too: whatever Z is, a row adds no more to the sum.
    """

    basis: Array

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"words": (self.basis.size,)}

    def exact(self, matrix: LocalMatrix) -> Integers:
        d, r = matrix.shape[1], self.basis.shape[1]
        if self.basis.shape[0] != d + self.center or not (np.abs(self.basis) <= 1).all():
            raise ValueError("basis must have a row for each column, and entries up to 1")
        Z = np.rint(np.ldexp(self.basis.astype(np.float64), BASIS_BITS))
        total = np.zeros((d + self.center, r), np.int64)
        for q in self.rows_of(matrix):
            T = q @ Z[:d] + (CONSTANT * Z[d] if self.center else 0.0)
            T = whole(np.ldexp(T, -BASIS_BITS), LONGEST, LONGEST)
            total[:d] += (q.T @ T).astype(np.int64)
            if self.center:
                total[d] += (CONSTANT * T.sum(axis=0)).astype(np.int64)
        return total.ravel()

    def noise(self, columns: int, stream: Stream, times: int = 1) -> Integers:
        y = discrete_gaussian(self.sigma, times * self.basis.size, stream)
        return y.reshape(times, self.basis.size)


@dataclass(frozen=True, slots=True, eq=False)
class NoisedSteps(NoisedProduct):
    """`steps` local power iterations from a basis Z, (d, r), with noise in the product of each.

    A shard goes on from what it has noised. Each product is a release of its own, and needs all of
    its noise at once: that of other shards comes too late, so `honest` does not count. The reply is
    the last product, turned towards Z.
    """

    steps: int

    @property
    def mu(self) -> float:
        """That of all products of this shard together."""
        return sqrt(self.steps) * SENSITIVITY / self.sigma

    def releases(self, matrix: LocalMatrix, noise: Integers) -> Iterator[tuple[Array, Integers]]:
        """Each basis, and its product with a row of the noise: all that is learned from rows."""
        Z, Y = self.basis, None
        for each in noise:
            Z = Z if Y is None else np.clip(orth(Y.astype(np.float64)), -1.0, 1.0)
            Y = (replace(self, basis=Z).exact(matrix) + each).reshape(Z.shape)
            yield Z, Y

    def noised(self, matrix: LocalMatrix, stream: Stream) -> NoisedSum:
        noise = self.noise(matrix.shape[1], stream, self.steps)
        Z, Y = deque(self.releases(matrix, noise), maxlen=1).pop()
        turned = np.rint(Y @ procrustes(Z, self.basis)).astype(np.int64)
        return NoisedSum(turned.ravel().view(np.uint64))


def longest(center: bool) -> int:
    """Norm that is left for the entries of the data."""
    return isqrt(SENSITIVITY - CONSTANT**2) if center else LONGEST


def whole(block: Any, clip: float, most: int) -> Any:
    """Rows in whole numbers of ``clip/most``, shortened to a norm of at most `most` of them.

    What becomes of a row does not depend on other rows, in no digit: sums are of whole numbers,
    and everything else is done entry by entry.
    """
    if is_sparse(block):
        from scipy.sparse import csr_array

        block = csr_array(block, dtype=np.float64, copy=True)
        block.sum_duplicates()
        _check_finite(block.data)
        row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
        largest = np.zeros(block.shape[0])
        np.maximum.at(largest, row, np.abs(block.data))
        x = _rounded(block.data, largest, row, clip, most)
        squares = np.bincount(row, x * x, block.shape[0])
        block.data = _shortened(x, squares, row, most)
        return block
    block = np.asarray(block, np.float64)
    _check_finite(block)
    row = np.arange(len(block))[:, None]
    x = _rounded(block, np.abs(block).max(axis=1, initial=0.0), row, clip, most)
    return _shortened(x, np.square(x).sum(axis=1), row, most)


def _check_finite(entries: Array) -> None:
    if not np.isfinite(entries).all():
        raise DataError("a row has NaN or infinity; remove such rows or fill in values before")


def _rounded(x: Array, largest: Array, row: NDArray[np.intp], clip: float, most: int) -> Array:
    """Whole numbers; of rows with an entry above the clip, in parts of the largest entry."""
    return np.rint(x / np.maximum(largest, clip)[row] * most)


def _shortened(x: Array, squares: NDArray[Any], row: NDArray[np.intp], most: int) -> Array:
    factor = np.where(squares > most**2, most / np.sqrt(np.maximum(squares, 1.0)), 1.0)[row]
    return np.where(factor < 1, np.trunc(x * factor), x)


def _entries(columns: int) -> int:
    return columns * (columns + 1) // 2


def on_diagonal(columns: int) -> NDArray[np.bool_]:
    """Which entries of an upper triangle, row after row, are on the diagonal."""
    found = np.zeros(_entries(columns), bool)
    found[np.cumsum([0, *range(columns, 1, -1)])] = True
    return found


def matrix_of(words: Words, columns: int) -> Array:
    """The symmetric matrix, (d, d), of a `NoisedGram`, in whole numbers."""
    upper = unpacked(words.view(np.int64).astype(np.float64), columns)
    return upper + np.triu(upper, 1).T
