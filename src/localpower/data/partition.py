"""From rows to shards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.shard import Shard
from localpower.data.source import Source


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Shards, and the original number of each of their rows if they were shuffled."""

    shards: tuple[Shard, ...]
    order: NDArray[np.intp] | None = None

    def original_row(self, number: int) -> int:
        """Return the number, in the data as given, of a row counted in shard order."""
        return number if self.order is None else int(self.order[number])

    def in_original_order(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Undo the shuffle for one row per sample."""
        if self.order is None:
            return rows
        out = np.empty_like(rows)
        out[self.order] = rows
        return out


def partition(
    source: Source, workers: int, shuffle: np.random.Generator | None = None
) -> Partition:
    """Cut rows into `workers` nearly equal contiguous shards, shuffled before if asked to.

    The user's own shards are kept unless another number of them is asked for or they are shuffled.
    """
    if shuffle is not None:
        order = shuffle.permutation(source.rows)
        whole = _stacked(source)
        return _of([(whole[part],) for part in np.array_split(order, workers)], source, order)
    if source.separate and workers == len(source.pieces):
        return _of([(piece,) for piece in source.pieces], source)
    size, longer = divmod(source.rows, workers)
    cuts = [number * size + min(number, longer) for number in range(workers + 1)]
    return _of([_rows(source, start, stop) for start, stop in pairwise(cuts)], source)


def _of(
    shards: list[tuple[Any, ...]], source: Source, order: NDArray[np.intp] | None = None
) -> Partition:
    columns, dtype = source.columns, source.dtype
    return Partition(tuple(Shard(pieces, columns, dtype) for pieces in shards), order)


def _rows(source: Source, start: int, stop: int) -> tuple[Any, ...]:
    """Views of the rows from `start` to `stop`, one for each piece that has some."""
    views, first = [], 0
    for piece in source.pieces:
        low, high = max(start - first, 0), min(stop - first, piece.shape[0])
        if low < high:
            views.append(_view(piece, low, high))
        first += piece.shape[0]
    return tuple(views)


def _view(piece: Any, start: int, stop: int) -> Any:
    if isinstance(piece, np.ndarray):
        return piece[start:stop]
    a, b = piece.indptr[start], piece.indptr[stop]
    data, indices = _Window(piece.data[a:b]), _Window(piece.indices[a:b])
    parts = np.asarray(data), np.asarray(indices), piece.indptr[start : stop + 1] - a
    return type(piece)(parts, shape=(stop - start, piece.shape[1]))


class _Window:
    """A stretch of an array, as the base of a view that is as large as its base.

    scipy copies views of much larger arrays, and would do so again for every transpose.
    """

    def __init__(self, stretch: NDArray[Any]) -> None:
        self.stretch, self.size = stretch, stretch.size
        self.__array_interface__ = stretch.__array_interface__


def _stacked(source: Source) -> Any:
    if len(source.pieces) == 1:
        return source.pieces[0]
    if all(isinstance(piece, np.ndarray) for piece in source.pieces):
        return np.concatenate(source.pieces)
    from scipy.sparse import csr_array, vstack

    known = [piece.astype(source.dtype, copy=False) for piece in source.pieces]
    return csr_array(vstack([csr_array(piece) for piece in known]))
