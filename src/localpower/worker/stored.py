"""Rows that stand in files in raw form, read by stretches."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError

Stamp: TypeAlias = tuple[int, int, int, int]  # what `stamp` returns
MOST = 1 << 62  # bytes, rows or columns: more is nonsense, and would overflow


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
            raise DataError(f"{self.path!r:.200} is not the path of a file")
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

    def read(self, stream: IO[bytes] | None = None) -> NDArray[Any]:
        """Read all of it, from a file that is open already if there is one."""
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        if stream is None:
            with self._open() as stream:  # which tells that there is so much to read
                return self.read(stream)
        self._check(stream.fileno())
        if not self.height:
            out = np.empty(self.shape, self.dtype)
            self._fill(stream, self.offset, out)
            return out
        out = np.empty(self.shape[::-1], self.dtype)
        for j, column in enumerate(out):
            self._fill(stream, self.offset + j * self.height * self.dtype.itemsize, column)
        return out.T

    @contextmanager
    def opened(self) -> Iterator[IO[bytes] | None]:
        """The file for reading parts in their order: while it is open, the system reads ahead."""
        if not self.nbytes:
            yield None
            return
        with self._open() as stream:
            if hasattr(os, "posix_fadvise") and not self.height:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            yield stream

    def _open(self) -> IO[bytes]:
        try:
            self._check(self.path)  # before it is opened: a pipe would wait for a writer
            return open(self.path, "rb", buffering=0)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{self.path}: {reason}; leave files where they are") from error

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

    @contextmanager
    def opened(self) -> Iterator[tuple[IO[bytes] | None, ...]]:
        """The files for reading parts in their order."""
        with ExitStack() as stack:
            parts = self.data, self.indices, self.indptr
            yield tuple(stack.enter_context(part.opened()) for part in parts)

    def read(self, streams: tuple[IO[bytes] | None, ...] = (None, None, None)) -> Any:
        """Read all of it, and refuse what is no CSR matrix."""
        from scipy.sparse import csr_array

        entries, places, starts = streams
        indptr = self.indptr.read(starts).astype(np.int64) - self.first
        small = max(self.columns, self.nnz) < np.iinfo(np.int32).max
        kind = np.dtype(np.int32 if small else np.int64)
        try:
            indices = _narrowed(self.indices.cut(self.first, self.last).read(places), kind)
            if self.base:
                np.subtract(indices, self.base, out=indices)
            values = self.data.cut(self.first, self.last).read(entries)
            parts = values, indices, _narrowed(indptr, kind)
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


def _narrowed(numbers: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    narrow = numbers.astype(kind, copy=False)
    if narrow is not numbers and (narrow != numbers).any():
        raise ValueError("an index beyond the columns or entries")
    return narrow


class Window:
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


def check_compressed(matrix: Any) -> None:
    """Refuse a CSR or CSC matrix that leads kernels outside of its arrays.

    scipy's own check does not look at the inner pointers of a matrix whose last pointer is 0.
    """
    matrix.check_format(full_check=True)
    if (matrix.indptr[1:] < matrix.indptr[:-1]).any():
        raise ValueError("index pointers decrease")
