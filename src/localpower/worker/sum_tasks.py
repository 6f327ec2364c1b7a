"""What shards can be asked where only sums over all of them may be seen.

`Sums` and then `Spread` take the place of `Describe`, `SmallGram` that of `Triangle`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localpower.core.errors import DataError
from localpower.core.linalg import Addend, Array
from localpower.core.ring import UNIT_BITS
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.moments import Moments
from localpower.worker.replies import added
from localpower.worker.tasks import Shapes, Task

LEAST_SPREAD = 2.0 ** (10 - UNIT_BITS // 2)  # whose square has 20 binary digits in a word


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSums(Addend):
    """The number of rows, and two numbers for each column: sums of entries, or of deviations."""

    rows: float
    first: Array
    second: Array

    def plus(self, other: ColumnSums, own: bool) -> ColumnSums:
        first, second = (
            added(a, b, own) for a, b in ((self.first, other.first), (self.second, other.second))
        )
        return ColumnSums(self.rows + other.rows, first, second)


@dataclass(frozen=True, slots=True, eq=False)
class SmallSum(Addend):
    """``Zᵀ(A_iᵀA_i)Z``, (r, r)."""

    small: Array

    def plus(self, other: SmallSum, own: bool) -> SmallSum:
        return SmallSum(added(self.small, other.small, own))


@dataclass(frozen=True, slots=True, eq=False)
class Sums(Task[ColumnSums]):
    """Sums of the raw columns; `second` is empty."""

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"first": (columns,), "second": (0,)}

    def __call__(self, matrix: LocalMatrix) -> ColumnSums:
        stats = _finite(matrix)
        mean = np.ldexp(stats.mean + stats.rest, stats.exponent)
        return ColumnSums(stats.rows, stats.rows * mean, np.empty(0))


@dataclass(frozen=True, slots=True, eq=False)
class Spread(Task[ColumnSums]):
    """Sums of deviations of the raw columns from the `mean` of all rows, and of their squares."""

    mean: Array

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"first": (columns,), "second": (columns,)}

    def __call__(self, matrix: LocalMatrix) -> ColumnSums:
        stats = _finite(matrix)
        mean = np.ldexp(stats.mean, stats.exponent)
        own = mean - self.mean
        delta = own + np.ldexp(stats.rest, stats.exponent)
        _check_spread(stats, mean, delta)
        squares = np.ldexp(np.ldexp(stats.m2, stats.exponent), stats.exponent)
        return ColumnSums(stats.rows, stats.rows * delta, squares + stats.rows * np.square(delta))


@dataclass(frozen=True, slots=True, eq=False)
class SmallGram(Task[SmallSum]):
    """``Zᵀ(A_iᵀA_i)Z`` for a basis Z, (d, r)."""

    basis: Array

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"small": (self.basis.shape[1],) * 2}

    def __call__(self, matrix: LocalMatrix) -> SmallSum:
        if matrix.dtype == np.float64 and matrix.gram_is_small():
            return SmallSum(self.basis.T @ matrix.kept_gram() @ self.basis)
        T = matrix.apply(self.basis).astype(np.float64, copy=False)
        return SmallSum(T.T @ T)


def _check_spread(stats: Moments, mean: Array, delta: Array) -> None:
    """Raise where squares of deviations are lost in words: what is certified rests on them.

    Deviations that are no more than the rounding of the mean may be lost.
    """
    some = np.sqrt(stats.rows)
    sizes = np.hypot(np.ldexp(np.sqrt(stats.m2), stats.exponent), some * np.abs(delta))
    rounding = 8 * np.finfo(float).eps * some * np.abs(mean)
    if ((sizes > rounding) & (sizes < LEAST_SPREAD)).any():
        raise OverflowError(
            f"a column varies by less than {LEAST_SPREAD:.0e}, which is too small for the sum: "
            "multiply columns by a number that all agree on"
        )


def _finite(matrix: LocalMatrix) -> Moments:
    """Statistics of a shard's raw columns; raises where an entry is not a finite number."""
    stats = matrix.moments()
    if stats.bad is not None:
        row, column = stats.bad
        raise DataError(
            f"NaN or infinity in row {row}, column {column} of shard {matrix.number}, counted from "
            "0; remove such rows or fill in values before the fit"
        )
    return stats
