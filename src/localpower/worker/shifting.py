"""Less a shift: rows, sparse ones too, and Gram matrices, so that few digits cancel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.linalg import Array

NEAR = 4.0  # times the largest eigenvalue: what may be taken from a Gram matrix; a few bits cancel
FULL = 0.9  # part of the rows that have an entry in a column: a mean of 3 deviations needs more


def held(shift: Array, dtype: np.dtype[Any]) -> Array:
    """The same as `dtype` if that can hold it, but for what is less than its least number."""
    with np.errstate(over="ignore"):
        narrow: Array = shift.astype(dtype)
    least = np.finfo(dtype).smallest_subnormal
    return narrow if (np.abs(narrow - shift) <= least).all() else shift


def times(block: Any, factor: Array | float) -> Any:
    """Multiply the columns of a block, in its own precision but over the range of float64."""
    if isinstance(block, np.ndarray):
        return np.multiply(block, factor, dtype=np.float64).astype(block.dtype, copy=False)
    entries = factor if isinstance(factor, float) else factor[block.indices]
    data = np.multiply(block.data, entries, dtype=np.float64).astype(block.dtype, copy=False)
    return type(block)((data, block.indices, block.indptr), shape=block.shape)


def difference(entries: Array, shift: Array) -> Array:
    """Subtract in float64, and round what comes of it to the type of the entries."""
    return np.subtract(entries, shift, dtype=np.float64).astype(entries.dtype, copy=False)


def explicit(block: Any, shift: Array) -> tuple[Any, Array]:
    """Shift the columns of a sparse block that are nearly full; return the shift that is left."""
    rows, d = block.shape
    if not block.has_canonical_format:
        block = block.copy()
        block.sum_duplicates()
    full = (np.bincount(block.indices, minlength=d) >= FULL * rows) & (shift != 0)
    if not full.any():
        return block, shift
    now = np.where(full, shift, 0.0)
    data = difference(block.data, now[block.indices])
    shifted = type(block)((data, block.indices, block.indptr), shape=block.shape)
    missing = _missing(block, full, -now)
    return shifted + missing if missing.nnz else shifted, np.where(full, 0.0, shift)


def _missing(block: Any, full: NDArray[np.bool_], value: Array) -> Any:
    """Give the entries that a sparse block lacks in its full columns their column's value."""
    at, column = np.full(full.size, -1), np.flatnonzero(full)
    at[column] = np.arange(column.size)
    lacks = np.ones((block.shape[0], column.size), dtype=bool)
    row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    taken = full[block.indices]
    lacks[row[taken], at[block.indices[taken]]] = False
    starts = np.concatenate([[0], np.cumsum(np.count_nonzero(lacks, axis=1))])
    indices = column[np.nonzero(lacks)[1]]
    kind, places = block.indices.dtype, block.indptr.dtype
    data = value[indices].astype(block.dtype)
    parts = data, indices.astype(kind), starts.astype(places)
    return type(block)(parts, shape=block.shape)


def shift_gram(G: Array, rows: int, mean: Array, shift: Array) -> None:
    """Make the Gram matrix of rows, whose mean is known, that of the rows less the shift."""
    cross = rows * np.outer(mean - shift / 2, shift)
    G -= cross + cross.T


def keeps_digits(G: Array, rows: int, mean: Array, shift: Array, factor: Array | float) -> bool:
    """Whether little cancelled where a Gram matrix was shifted, with columns times `factor`.

    Its largest eigenvalue is at least any diagonal entry, and the Rayleigh quotient of any vector:
    of what the mean was, and of what it is now.
    """
    taken = rows * max(np.linalg.norm(mean * factor), np.linalg.norm(shift * factor)) ** 2
    least = float((np.diagonal(G) * np.square(factor)).max(initial=0.0))
    for vector in (mean * factor, (mean - shift) * factor):
        size = float(np.linalg.norm(vector))
        if size:
            u = vector / size * factor
            least = max(least, float(u @ G @ u))
    return bool(taken <= NEAR * least)
