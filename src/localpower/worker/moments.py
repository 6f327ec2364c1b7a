"""Column statistics of a shard in one pass, mergeable without loss, at any scale.

Values are kept in units of a power of two just above the largest entry, so that data near the
limits of the number format neither overflow nor vanish; columns of very different size have a unit
each. Counts, means and squared deviations are merged by Chan's formula, so that a large mean does
not drown the deviations. Columns with a very large mean are taken relative to their first entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.checksum import NOTHING, checksum, joined
from localpower.core.linalg import Array
from localpower.worker.kernels import deviations, entries, statistics
from localpower.worker.shard import Shard

SMALLEST = -1000  # exponent of a shard without a nonzero entry
SAFE = 30  # exponents up to which squares can be added as they are, those of small entries too
ALIKE = 300  # exponents that columns may differ by and have one unit: squares of the small are safe
VANISHING = 2.0**-900  # means and squares below would leave the number format soon
FAR = 2.0**6  # deviations: of a larger mean, sums of entries lose too many digits, as does itself

Exponents = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Statistics of `rows` rows.

    `mean` and `m2`, the sums of squared deviations from it, are in units of ``2**exponent`` and
    its square; `exponent` is one for all columns, or (d,) where they differ very much. `low` and
    `high`, in plain units, are the column extremes; they are dropped before sending where nobody
    needs them. `bad` is where the first entry that is not finite stands. `rest` is what the mean
    is beyond its last digit: 0, or (d,) where some column has a very large mean. `checksum` is that
    of the rows, where it was asked for.
    """

    rows: int
    exponent: int | Exponents
    mean: Array
    m2: Array
    low: Array
    high: Array
    bad: tuple[int, int] | None = None
    checksum: tuple[int, int] | None = None
    rest: Array | float = 0.0

    def __add__(self, other: Moments) -> Moments:
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"statistics of {self.mean.size} and {other.mean.size} columns")
        rows = self.rows + other.rows
        if self.bad is not None:
            return replace(self, rows=rows)
        if other.bad is not None:
            return replace(other, rows=rows, bad=(self.rows + other.bad[0], other.bad[1]))
        if not self.rows:  # a sum that starts from zero would keep one number of a mean in two
            return replace(other, checksum=joined(self.checksum, other.checksum, other.rows))
        a, b = _alike(self, other)
        share, delta = other.rows / max(rows, 1), b.mean - a.mean + (b.rest - a.rest)
        step = share * delta + a.rest
        mean = a.mean + step
        m2 = a.m2 + b.m2 + self.rows * share * delta**2
        return Moments(
            rows=rows,
            exponent=a.exponent,
            mean=mean,
            m2=m2,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
            checksum=joined(self.checksum, other.checksum, other.rows),
            rest=step - (mean - a.mean) if _is_split(mean, m2, rows) else 0.0,
        )

    def in_units(self, exponent: int | Exponents) -> Moments:
        """Return the same in other units."""
        down = self.exponent - exponent
        mean, m2 = np.ldexp(self.mean, down), np.ldexp(self.m2, 2 * down)
        rest = np.ldexp(self.rest, down) if np.ndim(self.rest) else 0.0
        return replace(self, exponent=exponent, mean=mean, m2=m2, rest=rest)

    def in_own_units(self) -> Moments:
        """Return the same with an exponent for each column."""
        size = np.maximum(np.abs(self.mean), np.sqrt(self.m2))
        own = self.exponent + np.frexp(size)[1] + 1  # entries are up to twice as large
        return self.in_units(np.where(size > 0, np.maximum(own, SMALLEST), SMALLEST))

    def without_extremes(self) -> Moments:
        """Leave out `low` and `high`."""
        return replace(self, low=np.empty(0), high=np.empty(0))


def moments(
    shard: Shard,
    read: Callable[[int], None] = lambda count: None,
    with_checksum: bool = False,
    also: Callable[[Any], None] | None = None,
) -> Moments:
    """Take the statistics of a shard's raw rows; `read` is told what was read from files.

    Their checksum is taken in the same pass if it is asked for, and `also` is given every block.

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
    take = _block_moments
    if with_checksum:
        nothing, take = replace(nothing, checksum=NOTHING), _with_checksum
    blocks = shard.blocks(read)
    return _merged(map(take, blocks if also is None else _shown(blocks, also)), nothing)


def _shown(blocks: Iterable[Any], also: Callable[[Any], None]) -> Iterator[Any]:
    for block in blocks:
        also(block)
        yield block


def _with_checksum(block: Any) -> Moments:
    return replace(_block_moments(block), checksum=checksum(block))


def _merged(parts: Iterable[Moments], nothing: Moments) -> Moments:
    """Add neighbours, then their sums likewise, so that rounding errors do not pile up."""
    sums: list[Moments] = []
    for count, part in enumerate(parts, start=1):
        sums.append(part)
        while count % 2 == 0:
            last = sums.pop()
            sums[-1] += last
            count //= 2
    return reduce(lambda later, earlier: earlier + later, reversed(sums), nothing)


def _alike(one: Moments, other: Moments) -> tuple[Moments, Moments]:
    """Bring both to the same units, in which no column vanishes."""
    if isinstance(one.exponent, int) and np.all(one.exponent == other.exponent):
        return one, other
    exponent = np.maximum(one.exponent, other.exponent)
    common = int(exponent) if np.ndim(exponent) == 0 else exponent
    both = one.in_units(common), other.in_units(common)
    shared = isinstance(one.exponent, int) or isinstance(other.exponent, int)
    if shared and (_vanishes(both[0], one) or _vanishes(both[1], other)):
        return _alike(one.in_own_units(), other.in_own_units())
    return both


def _vanishes(new: Moments, old: Moments) -> bool:
    small = (np.abs(new.mean) < VANISHING) & (old.mean != 0)
    return bool((small | ((new.m2 < VANISHING) & (old.m2 > 0))).any())


def _block_moments(block: Any) -> Moments:
    return _of_dense(block) if isinstance(block, np.ndarray) else _of_sparse(block)


def _of_dense(block: Array) -> Moments:
    found = statistics(block, 1.0)
    if found is None:
        row, column = np.argwhere(~np.isfinite(block))[0]
        return _unusable(block.shape, int(row), int(column))
    low, high = (extreme.astype(float) for extreme in found[:2])
    exponent = _exponent(np.maximum(-low, high))
    if isinstance(exponent, int) and abs(exponent) <= SAFE:
        mean, m2 = np.ldexp(found[2], -exponent), np.ldexp(found[3], -2 * exponent)
    else:  # squares would leave the number format: once more, in other units
        if isinstance(exponent, int):
            found = statistics(block, 2.0**-exponent)
        else:
            found = statistics(np.multiply(block, np.ldexp(1.0, -exponent), dtype=float), 1.0)
        assert found is not None
        mean, m2 = found[2:]
    return _refined(block, Moments(len(block), exponent, mean, m2, low, high))


def _of_sparse(block: Any) -> Moments:
    rows, d = block.shape
    column, data = block.indices, block.data
    found = entries(column, data, d)
    if found is None:
        first = int(np.argmax(~np.isfinite(data)))
        row = int(np.searchsorted(block.indptr, first, side="right")) - 1
        return _unusable(block.shape, row, int(column[first]))
    low, high, count, total = found
    zeros = rows - count
    low, high = np.where(zeros, np.minimum(low, 0), low), np.where(zeros, np.maximum(high, 0), high)
    exponent = _exponent(np.maximum(-low, high))
    unit = isinstance(exponent, int) and abs(exponent) <= SAFE
    if not unit:  # sums and squares would leave the number format: once more, in other units
        units = 2.0**-exponent if isinstance(exponent, int) else np.ldexp(1.0, -exponent)[column]
        data = np.multiply(data, units, dtype=np.float64)
        total = np.asarray(np.bincount(column, data, d), np.float64)
    mean = total / rows
    m2 = deviations(column, data, mean) + zeros * mean**2
    if unit:
        mean, m2 = np.ldexp(mean, -exponent), np.ldexp(m2, -2 * exponent)
    return _refined(block, Moments(rows, exponent, mean, m2, low, high))


def _refined(block: Any, found: Moments) -> Moments:
    """Take columns with a very large mean, or of one value only, relative to their first entry."""
    with np.errstate(invalid="ignore"):
        far = np.flatnonzero(FAR * np.sqrt(found.m2 / found.rows) < np.abs(found.mean))
    if not far.size:
        return found
    exponent = found.exponent if isinstance(found.exponent, int) else found.exponent[far]
    rows = block[:, far] if isinstance(block, np.ndarray) else block[:, far].toarray()
    deviations = np.multiply(rows, np.ldexp(1.0, -exponent), dtype=np.float64)
    first = deviations[0].copy()
    deviations -= first
    drift = deviations.mean(axis=0)
    mean, m2, rest = found.mean.copy(), found.m2.copy(), np.zeros_like(found.mean)
    mean[far], m2[far] = first + drift, np.square(deviations - drift).sum(axis=0)
    rest[far] = drift - (mean[far] - first)
    return replace(found, mean=mean, m2=m2, rest=rest if _is_split(mean, m2, found.rows) else 0.0)


def _is_split(mean: Array, m2: Array, rows: int) -> bool:
    """Whether a mean is so large that its last digit counts; not that of a single value."""
    spread = np.sqrt(m2 / max(rows, 1))
    return bool(((FAR * spread < np.abs(mean)) & (spread > 0)).any())


def _exponent(peak: Array) -> int | Exponents:
    """Exponent of the power of two just above the peaks of columns, or one for each if need be.

    It is bounded so that its inverse is finite.
    """
    each = np.where(peak > 0, np.maximum(np.frexp(peak)[1], SMALLEST), SMALLEST)
    most = int(each.max(initial=SMALLEST))
    return most if (each[peak > 0] >= most - ALIKE).all() else each


def _unusable(shape: tuple[int, int], row: int, column: int) -> Moments:
    rows, d = shape
    zero = np.zeros(d)
    return Moments(rows, 0, zero, zero, zero, zero, bad=(row, column))
