"""Column statistics of a shard in one pass, mergeable without loss, at any scale.

Values are kept in units of a power of two just above the largest entry, so that data near the
limits of the number format neither overflow nor vanish. Counts, means and squared deviations are
merged by Chan's formula, so that a large mean does not drown the deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from localpower.core.kernels import statistics
from localpower.core.linalg import Array
from localpower.core.shard import Shard

SMALLEST = -1000  # exponent of a shard without a nonzero entry
SAFE = 30  # exponents up to which squares can be added as they are, those of small entries too


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Statistics of `rows` rows.

    `mean` and `m2`, the sums of squared deviations from it, are in units of ``2**exponent`` and
    its square. `low` and `high`, in plain units, are the column extremes; they are dropped before
    sending where nobody needs them. `bad` is where the first entry that is not finite stands.
    """

    rows: int
    exponent: int
    mean: Array
    m2: Array
    low: Array
    high: Array
    bad: tuple[int, int] | None = None

    def __add__(self, other: Moments) -> Moments:
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"statistics of {self.mean.size} and {other.mean.size} columns")
        rows = self.rows + other.rows
        if self.bad is not None:
            return replace(self, rows=rows)
        if other.bad is not None:
            return replace(other, rows=rows, bad=(self.rows + other.bad[0], other.bad[1]))
        exponent = max(self.exponent, other.exponent)
        a, b = self._in_units(exponent), other._in_units(exponent)
        share, delta = other.rows / max(rows, 1), b.mean - a.mean
        return Moments(
            rows=rows,
            exponent=exponent,
            mean=a.mean + share * delta,
            m2=a.m2 + b.m2 + self.rows * share * delta**2,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
        )

    def _in_units(self, exponent: int) -> Moments:
        down = self.exponent - exponent
        return replace(self, mean=np.ldexp(self.mean, down), m2=np.ldexp(self.m2, 2 * down))

    def without_extremes(self) -> Moments:
        """Leave out `low` and `high`."""
        return replace(self, low=np.empty(0), high=np.empty(0))


def moments(shard: Shard, read: Callable[[int], None] = lambda count: None) -> Moments:
    """Take the statistics of a shard's raw rows; `read` is told what was read from files.

    Examples
    --------
    >>> shard = Shard((np.array([[1.0, 2.0], [3.0, 2.0]]),), 2, np.dtype(float))
    >>> stats = moments(shard)
    >>> np.ldexp(stats.mean, stats.exponent), np.ldexp(stats.m2, 2 * stats.exponent)
    (array([2., 2.]), array([2., 0.]))
    """
    d = shard.columns
    zero, infinity = np.zeros(d), np.full(d, np.inf)
    nothing = Moments(0, SMALLEST, zero, zero, infinity, -infinity)
    return reduce(add, (_block_moments(block) for block in shard.blocks(read)), nothing)


def _block_moments(block: Any) -> Moments:
    return _of_dense(block) if isinstance(block, np.ndarray) else _of_sparse(block)


def _of_dense(block: Array) -> Moments:
    found = statistics(block, 1.0)
    if found is None:
        row, column = np.argwhere(~np.isfinite(block))[0]
        return _unusable(block.shape, int(row), int(column))
    low, high = (extreme.astype(float) for extreme in found[:2])
    exponent = _exponent(max(-low.min(), high.max()))
    if abs(exponent) > SAFE:  # squares would leave the number format: once more, in other units
        found = statistics(block, 2.0**-exponent)
        assert found is not None
        return Moments(len(block), exponent, found[2], found[3], low, high)
    mean, m2 = np.ldexp(found[2], -exponent), np.ldexp(found[3], -2 * exponent)
    return Moments(len(block), exponent, mean, m2, low, high)


def _of_sparse(block: Any) -> Moments:
    rows, d = block.shape
    column, data = block.indices, block.data.astype(float)
    if not np.isfinite(data).all():
        first = int(np.argmax(~np.isfinite(data)))
        row = int(np.searchsorted(block.indptr, first, side="right")) - 1
        return _unusable(block.shape, row, int(column[first]))
    exponent = _exponent(np.abs(data).max(initial=0.0))
    zeros = rows - np.bincount(column, minlength=d)
    low, high = np.where(zeros, 0.0, np.inf), np.where(zeros, 0.0, -np.inf)
    np.minimum.at(low, column, data)
    np.maximum.at(high, column, data)
    data *= 2.0**-exponent
    mean = np.bincount(column, data, d) / rows
    m2 = np.bincount(column, np.square(data - mean[column]), d) + zeros * mean**2
    return Moments(rows, exponent, mean, m2, low, high)


def _exponent(peak: float) -> int:
    """Exponent of the power of two just above `peak`, bounded so that its inverse is finite."""
    return max(int(np.frexp(peak)[1]), SMALLEST) if peak else SMALLEST


def _unusable(shape: tuple[int, int], row: int, column: int) -> Moments:
    rows, d = shape
    zero = np.zeros(d)
    return Moments(rows, 0, zero, zero, zero, zero, bad=(row, column))
