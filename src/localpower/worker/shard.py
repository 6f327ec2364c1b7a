"""A shard: the rows that one worker holds, in memory or in files, read block by block."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from localpower.core.errors import DataError
from localpower.worker.kernels import BLOCK_BYTES

Rows: TypeAlias = Any  # an array or a CSR matrix, in memory
Piece: TypeAlias = Any  # rows in memory, or `Stored` or `StoredCSR`
Stamp: TypeAlias = tuple[int, int, int, int]  # what `stamp` returns

MIN_BLOCK_ROWS, LONG_BLOCK_ROWS, LONG_BLOCK_BYTES = 32, 128, 1 << 26
BLOCK_ENTRIES = 1 << 18  # of a sparse block; more where columns are many
MOST = 1 << 62  # bytes, rows or columns: more is nonsense, and would overflow
STRETCH = 16  # blocks that are read at once from a file with columns one after the other


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An array that stands in a file in raw form, and is read by stretches of its first axis.

    It is read and not mapped: a mapped file that shrinks kills the process, and what was read of it
    counts as memory of the process. `stamp` tells which file it was when it was opened. `height` is
    0, or how many rows the file has if its columns stand one after the other. `origin` is the file
    that it was unpacked from, if it was.
    """

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stamp: Stamp
    height: int = 0
    origin: str = ""

    def __post_init__(self) -> None:
        """Refuse what no file holds, so that nothing is allocated for it."""
        text = isinstance(self.path, str) and isinstance(self.origin, str)
        if not text or not self.path or "\0" in self.path:
            raise DataError(f"{self.path!r:.200} is no path of a file")
        lengths = self.shape if isinstance(self.shape, tuple) else (None,)
        stamped = isinstance(self.stamp, tuple) and len(self.stamp) == 4
        size, *rest = self.stamp if stamped else (None,)
        numbers = (self.offset, self.height, *lengths, size)
        if (
            not all(type(number) is int for number in rest)
            or not all(type(number) is int and 0 <= number < MOST for number in numbers)
            or not isinstance(self.dtype, np.dtype)
            or self.dtype.kind not in "fiubc"
            or math.prod(max(length, 1) for length in self.shape) * self.dtype.itemsize >= MOST
            or (self.height and (len(self.shape) != 2 or self.shape[0] > self.height))
        ):
            raise DataError(f"{self.name}: no file holds {self.shape!r:.200} of {self.dtype!s:.50}")
        if self._end() > self.stamp[0]:
            raise DataError(f"{self.name} ends before its rows do; write it again")

    def _end(self) -> int:
        """Place in the file after the last entry."""
        if not self.nbytes or not self.height:
            return self.offset + self.nbytes
        rows, columns = self.shape
        return self.offset + ((columns - 1) * self.height + rows) * self.dtype.itemsize

    @property
    def name(self) -> str:
        """What the user knows it by."""
        return self.origin or self.path

    @property
    def nbytes(self) -> int:
        """What reading all of it takes."""
        return self.dtype.itemsize * math.prod(self.shape)

    def cut(self, start: int, stop: int) -> Stored:
        """Return the part from `start` to `stop`; nothing is read."""
        width = 1 if self.height else math.prod(self.shape[1:])
        offset = self.offset + start * width * self.dtype.itemsize
        return replace(self, offset=offset, shape=(stop - start, *self.shape[1:]))

    def read(self) -> NDArray[Any]:
        """Read all of it."""
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        with self._open() as stream:  # which tells that there is so much to read
            if not self.height:
                out = np.empty(self.shape, self.dtype)
                self._fill(stream, self.offset, out)
                return out
            out = np.empty(self.shape[::-1], self.dtype)
            for j, column in enumerate(out):
                self._fill(stream, self.offset + j * self.height * self.dtype.itemsize, column)
            return out.T

    def _open(self) -> IO[bytes]:
        try:
            self._check(self.path)  # before it is opened: a pipe would wait for a writer
            stream = open(self.path, "rb", buffering=0)  # noqa: SIM115 (the caller closes it)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{self.path}: {reason}; leave files where they are") from error
        try:
            self._check(stream.fileno())
        except DataError:
            stream.close()
            raise
        return stream

    def _check(self, file: int | str) -> None:
        found = stamp(file)
        if found[:3] == self.stamp[:3] and found != self.stamp:
            raise DataError(
                f"{self.path} was changed while it was in use, or its inode number is {found[3]} "
                f"here and was {self.stamp[3]} where it was opened; leave it, or copy it to a file "
                "system with the same numbers on all machines, and run again"
            )
        if found != self.stamp:
            raise DataError(f"{self.path} was changed while it was in use; leave it, and run again")

    def _fill(self, stream: IO[bytes], offset: int, out: NDArray[Any]) -> None:
        stream.seek(offset)
        view = out.reshape(-1).view(np.uint8).data
        while len(view):
            count = stream.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise DataError(f"{self.name} ends before its rows do; write it again")
            view = view[count:]


@dataclass(frozen=True, slots=True, eq=False)
class StoredCSR:
    """A CSR matrix in files: rows as places in `indptr`, of `indices` and `data`.

    Entries `first` to `last` are its own; column numbers count from `base`.
    """

    data: Stored
    indices: Stored
    indptr: Stored
    columns: int
    first: int
    last: int
    base: int = 0

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        parts = self.data, self.indices, self.indptr
        numbers = self.columns, self.first, self.last, self.base
        if not all(isinstance(part, Stored) and len(part.shape) == 1 for part in parts):
            raise DataError("a CSR matrix that is not made of three vectors")
        if (
            not all(type(number) is int and 0 <= number < MOST for number in numbers)
            or not self.first <= self.last <= self.data.shape[0]
            or self.data.shape != self.indices.shape
            or not self.indptr.shape[0]
            or {self.indices.dtype.kind, self.indptr.dtype.kind} != {"i"}
        ):
            raise DataError(
                f"{self.indptr.name}: index pointers outside of the entries; write it again"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.indptr.shape[0] - 1, self.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """Entries that are stored."""
        return self.last - self.first

    @property
    def nbytes(self) -> int:
        """What reading all of it takes."""
        entry = self.data.dtype.itemsize + self.indices.dtype.itemsize
        return self.nnz * entry + self.indptr.nbytes

    def cut(self, start: int, stop: int) -> StoredCSR:
        """Return rows `start` to `stop`; at most two places are read."""
        ends = {0: self.first, self.shape[0]: self.last}
        first, last = (
            ends[i] if i in ends else int(self.indptr.cut(i, i + 1).read()[0])
            for i in (start, stop)
        )
        return replace(self, indptr=self.indptr.cut(start, stop + 1), first=first, last=last)

    def read(self) -> Any:
        """Read all of it, and refuse what is no CSR matrix."""
        from scipy.sparse import csr_array

        indptr = self.indptr.read().astype(np.int64) - self.first
        small = max(self.columns, self.nnz) < np.iinfo(np.int32).max
        kind = np.dtype(np.int32 if small else np.int64)
        try:
            indices = _narrowed(self.indices.cut(self.first, self.last).read(), kind)
            if self.base:
                np.subtract(indices, self.base, out=indices)
            parts = self.data.cut(self.first, self.last).read(), indices, _narrowed(indptr, kind)
            matrix = csr_array(parts, shape=self.shape)
            check_compressed(matrix)
        except DataError:
            raise
        except (OverflowError, ValueError) as error:
            raise DataError(
                f"{self.indices.name}: not a CSR matrix ({error}); write it again"
            ) from error
        if not matrix.has_canonical_format:
            if matrix.dtype.kind in "iu":  # a sum may be beyond the type of the entries
                matrix = matrix.astype(np.float64)
            matrix.sum_duplicates()
        return matrix


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
        raise DataError(f"{name} has masked entries: fill in values, or leave out their rows")
    return np.asarray(array)


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Consecutive rows of the data in `pieces`: arrays, CSR matrices, or files of either.

    `dtype` is what the rows are worked with: float32 stays, everything else becomes float64.
    `keep` says how long rows that were read from files stay in memory: for the ``"run"``, for a
    ``"task"`` that needs them several times, or for a ``"block"``. `limit` is what a block may take
    at most, in bytes. `number` is its place among the shards.
    """

    pieces: tuple[Piece, ...]
    columns: int
    dtype: np.dtype[Any]
    keep: str = "run"
    limit: int = 1 << 40
    number: int = 0

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
            for start in range(0, piece.shape[0], step):
                yield _load(piece.cut(start, min(start + step, piece.shape[0])), read)

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


def is_stored(piece: Any) -> bool:
    """Tell rows in files from rows in memory."""
    return isinstance(piece, Stored | StoredCSR)


def is_sparse(piece: Any) -> bool:
    """Tell sparse rows from dense ones, in memory or not."""
    return not isinstance(piece, np.ndarray | Stored)


def _narrowed(numbers: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    narrow = numbers.astype(kind, copy=False)
    if narrow is not numbers and (narrow != numbers).any():
        raise ValueError("an index beyond the columns or entries")
    return narrow


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


def stamp(file: int | str | os.PathLike[str]) -> Stamp:
    """What tells that a file is still the same: size, times of change and inode number.

    Programs that copy or unpack set the time of change of the content (mtime) back; that of the
    inode (ctime) they cannot set, and a file put in the place of another has an inode of its own.
    Machines that share a file system see the same numbers. The device is left out: each machine
    numbers what it mounts itself.
    """
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


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


def check_compressed(matrix: Any) -> None:
    """Refuse a CSR or CSC matrix that leads kernels outside of its arrays.

    scipy's own check does not look at the inner pointers of a matrix whose last pointer is 0.
    """
    matrix.check_format(full_check=True)
    if (matrix.indptr[1:] < matrix.indptr[:-1]).any():
        raise ValueError("index pointers decrease")
