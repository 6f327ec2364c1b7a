"""Rows out of vectors, as clusters hold them: lists, arrays, and the vectors of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError

BATCH = 1024  # rows that are made into one piece


def stack_dense(vectors: Iterable[Any]) -> NDArray[Any]:
    """Rows of vectors that are all as long; plain values stay one column."""
    try:
        return np.stack([np.asarray(vector) for vector in vectors])
    except ValueError as error:
        raise DataError("vectors of different lengths; all need the same columns") from error


def stack_sparse(sizes: Iterable[int], places: Sequence[Any], values: Sequence[Any]) -> Any:
    """CSR rows of vectors with such sizes, which have `values` in some `places`."""
    from scipy.sparse import csr_array

    widths = sorted(set(sizes))
    if len(widths) > 1:
        raise DataError(f"vectors of different lengths, {widths}; all need the same")
    ends = np.cumsum([0, *map(len, values)])
    parts = np.concatenate(values), np.concatenate(places), ends
    return csr_array(parts, shape=(len(values), widths[0]))


def row_batches(elements: Iterable[Any]) -> Iterator[tuple[str, list[Any], Any]]:
    """Yield elements of one kind, ``"block"``, ``"sparse"`` or ``"row"``, and the rows they are.

    A block comes by itself, of others at most `BATCH`. Rows with an index are told by their name.
    """
    for (kind, indexed), alike in groupby(elements, key=_kind):
        while batch := list(islice(alike, 1 if kind == "block" else BATCH)):
            vectors = [element.vector for element in batch] if indexed else batch
            yield kind, batch, _rows(kind, vectors)


def _kind(element: Any) -> tuple[str, bool]:
    indexed = type(element).__name__ == "IndexedRow"
    vector = element.vector if indexed else element
    if type(vector).__name__ == "SparseVector":
        return "sparse", indexed
    is_row = isinstance(vector, list | tuple)  # also one with a column that is called shape
    return "row" if is_row or len(getattr(vector, "shape", ())) != 2 else "block", indexed


def _rows(kind: str, vectors: list[Any]) -> Any:
    if kind == "block":
        return vectors[0]
    if kind == "row":
        return [row.toArray() if hasattr(row, "toArray") else row for row in vectors]
    sizes = (vector.size for vector in vectors)
    return stack_sparse(sizes, *zip(*((v.indices, v.values) for v in vectors), strict=True))
