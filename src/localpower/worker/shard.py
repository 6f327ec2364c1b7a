"""A shard: the rows that one worker holds, in memory or in files, read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from localpower.core.errors import DataError
from localpower.worker.kernels import BLOCK_BYTES
from localpower.worker.stored import (
    Stored,
    StoredCSR,
    Window,
)

Rows: TypeAlias = Any  # an array or a CSR matrix, in memory
Piece: TypeAlias = Any  # rows in memory, or `Stored` or `StoredCSR`

MIN_BLOCK_ROWS, LONG_BLOCK_ROWS, LONG_BLOCK_BYTES = 32, 128, 1 << 26
BLOCK_ENTRIES = 1 << 18  # of a sparse block; more where columns are many
STRETCH = 16  # blocks that are read at once from a file with columns one after the other


@dataclass(frozen=True, slots=True, eq=False)
class EngineBlock:
    """Rows that an engine holds already, and that it alone can reach, by their `handle`.

    `nnz` is how many numbers a product touches; `kept` is false where they are made again for it.
    """

    handle: Any
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    nnz: int
    kept: bool = True
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBlock:
    """A block of rows that was opened where it is, and the names of its columns if it has any."""

    pieces: tuple[Piece, ...]
    names: tuple[str, ...] | None = None


OpenBlock = Callable[[Any], LoadedBlock]


def share_names(parts: Iterable[EngineBlock]) -> Iterator[EngineBlock]:
    """Yield the same, but names of columns that all have are held once."""
    names = None
    for part in parts:
        names = part.names if names is None else names
        yield replace(part, names=names) if part.names == names else part


def join_columns(parts: Sequence[Any]) -> Any:
    """Join parts of the same rows, each of which has some of the columns."""
    if any(hasattr(part, "tocsr") for part in parts):
        from scipy.sparse import csr_array, hstack

        csr = [csr_array(part) for part in parts]
        return csr[0] if len(csr) == 1 else hstack(csr, format="csr")
    arrays = [unmasked(part, "a chunk of data") for part in parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def unmasked(array: Any, name: str) -> NDArray[Any]:
    """A plain array, if nothing in it is masked."""
    if np.ma.is_masked(array):
        row, *_, column = np.argwhere(np.ma.getmaskarray(array))[0]
        raise DataError(
            f"{name} has masked entries, the first in row {row}, column {column}; leave out such "
            "rows with missing='drop', or fill them in with missing='mean'"
        )
    return np.asarray(array)


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Consecutive rows of the data in `pieces`: arrays, CSR matrices, or files of either.

    `dtype` is what the rows are worked with: float32 stays, everything else becomes float64.
    `keep` says how long rows that were read from files stay in memory: for the ``"run"``, for a
    ``"task"`` that needs them several times, or for a ``"block"``. `limit` is what a block may take
    at most, in bytes, and `spare` what may be kept of all that is computed from rows in files.
    `number` is its place among the shards.
    """

    pieces: tuple[Piece, ...]
    columns: int
    dtype: np.dtype[Any]
    keep: str = "run"
    limit: int = 1 << 40
    number: int = 0
    spare: int = 1 << 40

    @property
    def rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.shape[0] for piece in self.pieces)

    @property
    def entries(self) -> int:
        """Numbers that a product touches: all of a dense piece, the nonzeros of a sparse one."""
        return sum(
            piece.nnz if is_sparse(piece) else piece.shape[0] * self.columns
            for piece in self.pieces
        )

    @property
    def stored(self) -> int:
        """Bytes of it that are in files."""
        return sum(piece.nbytes for piece in self.pieces if is_stored(piece))

    def loaded(self, read: Callable[[int], None]) -> Shard:
        """Return the shard with all of its rows in memory; `read` is told how much was read."""
        return replace(self, pieces=tuple(_load(piece, read) for piece in self.pieces))

    def blocks(self, read: Callable[[int], None] = lambda count: None) -> Iterator[Rows]:
        """Yield the rows in order, in blocks that do not depend on how they are cut into pieces.

        Dense blocks are contiguous, aligned (else products have other bits) and of the shard's
        type. `read` is told how many bytes were read from files.
        """
        steps = {False: self._dense_step(), True: self._sparse_step()}
        held: list[Rows] = []
        count = 0
        for part in self._stretches(steps, read):
            sparse = is_sparse(part)
            if held and is_sparse(held[0]) != sparse:
                yield self._joined(held)
                held, count = [], 0
            at = 0
            while at < part.shape[0]:
                stop = min(at + steps[sparse] - count, part.shape[0])
                held.append(cut(part, at, stop))
                count, at = count + stop - at, stop
                if count == steps[sparse]:
                    yield self._joined(held)
                    held, count = [], 0
        if held:
            yield self._joined(held)

    def _dense_step(self) -> int:
        size = max(1, self.columns) * self.dtype.itemsize
        long = min(LONG_BLOCK_ROWS, LONG_BLOCK_BYTES // size)  # sums are as long as rows
        return max(1, min(max(MIN_BLOCK_ROWS, long, BLOCK_BYTES // size), self.limit // size))

    def _sparse_step(self) -> int:
        matrices = [piece for piece in self.pieces if is_sparse(piece)]
        rows: int = sum(piece.shape[0] for piece in matrices)
        entries: int = sum(piece.nnz for piece in matrices)
        wanted = max(BLOCK_ENTRIES, 4 * self.columns)
        return max(1, wanted * rows // max(entries, 1))

    def _stretches(self, steps: dict[bool, int], read: Callable[[int], None]) -> Iterator[Rows]:
        for piece in self.pieces:
            if not is_stored(piece):
                yield piece
                continue
            step = steps[is_sparse(piece)] * (STRETCH if getattr(piece, "height", 0) else 1)
            with piece.opened() as files:
                for start in range(0, piece.shape[0], step):
                    part = piece.cut(start, min(start + step, piece.shape[0]))
                    read(part.nbytes)
                    yield part.read(files)

    def _joined(self, parts: list[Rows]) -> Rows:
        if is_sparse(parts[0]):
            from scipy.sparse import csr_array, vstack

            whole: Any = parts[0] if len(parts) == 1 else csr_array(vstack(parts, format="csr"))
            with np.errstate(over="ignore", invalid="ignore"):
                return whole.astype(self.dtype, copy=False)
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is found by a later check
            return np.require(whole, self.dtype, ["C", "ALIGNED"])


def work_type(kinds: Iterable[DTypeLike]) -> np.dtype[Any]:
    """Type that rows of these types are worked with: float32 if none is wider, else float64."""
    known = [np.dtype(kind) for kind in kinds]
    narrow = all(kind.kind == "f" and kind.itemsize <= 4 for kind in known)
    return np.dtype(np.float32 if narrow else np.float64)


def nbytes(piece: Piece) -> int:
    """Bytes that rows take, in memory or in files."""
    if isinstance(piece, np.ndarray) or is_stored(piece):
        return int(piece.nbytes)
    return int(piece.data.nbytes + piece.indices.nbytes + piece.indptr.nbytes)


def is_function(data: Any) -> bool:
    """Tell a function that returns the rows of a shard."""
    array = any(hasattr(data, name) for name in ("__array__", "tocsr", "shape"))
    return callable(data) and not array


def is_stored(piece: Any) -> bool:
    """Tell rows in files from rows in memory."""
    return isinstance(piece, Stored | StoredCSR)


def is_sparse(piece: Any) -> bool:
    """Tell sparse rows from dense ones, in memory or not."""
    return not isinstance(piece, np.ndarray | Stored)


def _load(piece: Any, read: Callable[[int], None]) -> Any:
    if not is_stored(piece):
        return piece
    rows = piece.read()
    read(piece.nbytes)
    return rows


def cut(piece: Any, start: int, stop: int) -> Any:
    """Return rows `start` to `stop`, without a copy."""
    if (start, stop) == (0, piece.shape[0]):
        return piece
    if isinstance(piece, np.ndarray):
        return piece[start:stop]
    if is_stored(piece):
        return piece.cut(start, stop)
    a, b = piece.indptr[start], piece.indptr[stop]
    data, indices = Window(piece.data[a:b]), Window(piece.indices[a:b])
    parts = np.asarray(data), np.asarray(indices), piece.indptr[start : stop + 1] - a
    return type(piece)(parts, shape=(stop - start, piece.shape[1]))


def once(matrix: Any) -> Any:
    """A boolean sparse matrix as CSR, with each entry once, and not changed itself.

    Entries that occur twice add up, and in booleans ``True + True`` is True, as in scipy. So they
    are put together before they become floats, of which the sum would be 2.
    """
    from scipy.sparse import csr_array

    csr = csr_array(matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr
