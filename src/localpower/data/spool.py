"""Rows that come block by block, kept: in memory as long as there is room, then in raw files.

These are temporary, unless they are in a folder that `cache.py` keeps.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError
from localpower.data.blocks import BLOCK_BYTES, Block
from localpower.data.readers.text import join_labels
from localpower.worker.shard import nbytes
from localpower.worker.stored import Stored, StoredCSR, stamp

SPARE_DISK = 1 << 28  # left free on a disk that is written to
NONE = np.empty(0, np.intp)


class RowStorage:
    """Where rows go that are not in a file of raw numbers already.

    `limit` bytes of them stay in memory; `cache` is a folder of the user's, or None.
    """

    def __init__(self, limit: int, cache: str | os.PathLike[str] | None = None) -> None:
        self.limit = limit
        self.left = limit
        self.cache = None if cache is None else Path(cache)
        self._folder: Path | None = None
        self._files = 0
        self._inner: weakref.WeakSet[RowStorage] = weakref.WeakSet()

    def files_within(self) -> RowStorage:
        """Return a room for files only, which is closed with this one or when it is garbage."""
        inner = RowStorage(0)
        self._inner.add(inner)
        return inner

    def file(self, size: int) -> Path:
        """Name a new temporary file, for `size` bytes."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="localpower-"))
            self._end = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._files += 1
        path = self._folder / f"{self._files}.raw"
        check_disk(path, size)
        return path

    def close(self) -> None:
        """Remove the temporary files."""
        for inner in self._inner:
            inner.close()
        if self._folder is not None:
            self._end()
            self._folder = None


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """All rows of one file or object: `pieces` of `columns` columns.

    `labels` (rows,) and `names` of the columns where there are such. `lowest` is the least column
    number of svmlight text, which is counted from there or from one; None for everything else.
    `text` says that it is a table of text, where columns may be labels. `left_out` are numbers of
    the rows that were left out, as values are missing; `gaps` says that some are missing still.
    """

    pieces: tuple[Any, ...]
    columns: int
    labels: NDArray[Any] | None = None
    names: tuple[str, ...] | None = None
    lowest: int | None = None
    text: bool = False
    left_out: NDArray[np.intp] = field(default_factory=lambda: NONE)
    gaps: bool = False

    def settled(self, base: int, columns: int) -> Table:
        """Count columns of svmlight text from `base`, and make them `columns` many."""
        pieces = tuple(_settled(piece, base, columns) for piece in self.pieces)
        return replace(self, pieces=pieces, columns=columns, lowest=None)


def keep(
    blocks: Iterable[Block],
    room: RowStorage,
    name: str,
    missing: str | None = None,
    raw: bool = False,
) -> Table:
    """Take all blocks in and return them as a table; temporary files where memory is full."""
    return Spool(room, missing=missing, raw=raw).filled(blocks, name).table()


def check_disk(path: Path, size: int) -> None:
    """Refuse to fill a disk up."""
    free = shutil.disk_usage(path.parent).free
    if size + SPARE_DISK > free:
        raise DataError(
            f"{path.parent} has {free >> 20} MiB left, too little for {size >> 20} MiB of rows; "
            "free some, set TMPDIR or cache= to a folder on a larger disk, or raise memory="
        )


class Spool:
    """Collects the blocks of one table: in memory while the room has some, then in files.

    With a `folder`, all goes to files there. `missing` says what is done about nan: ``"drop"``
    leaves out rows, ``"mean"`` copies them, so that it can be filled in. `raw` says that column
    numbers are those of svmlight text: their least and largest are known at the end only.
    """

    def __init__(
        self,
        room: RowStorage,
        folder: Path | None = None,
        missing: str | None = None,
        raw: bool = False,
    ) -> None:
        self.room, self.folder, self.missing, self.raw = room, folder, missing, raw
        self.seen, self.gaps = 0, False
        self.left_out: list[NDArray[np.intp]] = []
        self.held: list[Any] = []
        self.loose = 0  # how many of the last ones held are small
        self.written: list[Any] = []
        self.labels: list[NDArray[Any]] = []
        self.files: list[IO[bytes]] = []
        self.rows = self.entries = self.columns = 0
        self.lowest: int | None = None
        self.sparse: bool | None = None
        self.dtype: np.dtype[Any] | None = None
        self.names: tuple[str, ...] | None = None

    def filled(self, blocks: Iterable[Block], name: str) -> Spool:
        """Take all blocks in; close the files if one cannot be had."""
        try:
            for block in blocks:
                self.add(block, name)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the files; what they hold stays."""
        for stream in self.files:
            stream.close()

    def add(self, block: Block, name: str) -> None:
        """Take a block in; `name` is for complaints."""
        if self.missing in ("drop", "mean"):
            block = self._without_gaps(block)
        rows = block.rows
        sparse = not isinstance(rows, np.ndarray)
        if self.dtype is None:
            self.sparse, self.dtype, self.names = sparse, rows.dtype, block.names
            self.columns = rows.shape[1]
        if sparse != self.sparse:
            raise DataError(f"{name}: has dense and sparse blocks; give all in one form")
        if not self.raw and rows.shape[1] != self.columns:
            raise DataError(
                f"{name}: a block of {rows.shape[1]} columns after {self.columns} in the first; "
                "all need the same"
            )
        self.names = self.names or block.names
        if block.names and block.names != self.names:
            raise DataError(
                f"{name}: a block with columns of other names or in another order than the first; "
                "give all the same"
            )
        if block.labels is not None:
            self.labels.append(block.labels)
        self.columns = max(self.columns, rows.shape[1])
        if sparse and rows.nnz:
            least = int(rows.indices.min())
            self.lowest = least if self.lowest is None else min(self.lowest, least)
        kind = np.promote_types(rows.dtype, self.dtype)
        if self.files and kind != self.dtype:
            if self.folder is not None:
                raise DataError(
                    f"{name}: blocks of {kind} after {self.dtype}; give all in one type"
                )
            self._finish()
        self.dtype = kind
        self._take(rows)

    def _without_gaps(self, block: Block) -> Block:
        rows = block.rows
        first, self.seen = self.seen, self.seen + rows.shape[0]
        holes = gaps_in(rows)
        if not holes.any():
            return block
        if self.missing == "mean":
            self.gaps = True
            return replace(block, rows=rows.copy())
        if isinstance(rows, np.ndarray):
            full = ~holes.any(axis=1)
        else:
            full = np.bincount(rows.indptr.searchsorted(np.flatnonzero(holes), "right") - 1,
                               minlength=rows.shape[0]) == 0  # fmt: skip
        self.left_out.append(first + np.flatnonzero(~full))
        return Block(rows[full], None if block.labels is None else block.labels[full], block.names)

    def _take(self, rows: Any) -> None:
        size = _taken_by(rows)
        beyond = self.written or self.folder is not None or size > self.room.left
        if not self.files and beyond:
            self._open()
        if self.files:
            self._write(rows)
            return
        self.room.left -= size
        self.held.append(rows)
        self.loose = self.loose + 1 if 0 < size < BLOCK_BYTES // 8 else 0
        if self.loose and sum(map(nbytes, self.held[-self.loose :])) >= BLOCK_BYTES:
            self._join()

    def _join(self) -> None:
        """Make one of the small blocks held last: a pass over many would join them every time."""
        if self.loose > 1:
            self.held[-self.loose :] = [_joined(self.held[-self.loose :])]
        self.loose = 0

    def _open(self) -> None:
        """Go on in files, with what is held in memory first."""
        names = ("data", "indices", "indptr") if self.sparse else ("data",)
        for name in names:
            target = self.room.file(0) if self.folder is None else self.folder / f"{name}.raw"
            self.files.append(open(target, "wb"))  # noqa: SIM115 (`table` closes it)
        if self.sparse:
            self.files[2].write(np.zeros(1, np.int64).data)
        held, self.held, self.loose = self.held, [], 0
        while held:
            rows = held.pop(0)
            self.room.left += _taken_by(rows)
            self._write(rows)

    def _write(self, rows: Any) -> None:
        rows = rows.astype(self.dtype, copy=False)
        if self.sparse:
            places = rows.indptr[1:] + np.int64(self.entries)
            if self.columns > np.iinfo(np.int32).max:
                raise DataError(
                    f"{self.columns} columns are more than can be kept in files; raise memory="
                )
            parts = [rows.data, rows.indices.astype(np.int32), places]
            self.entries += rows.nnz
        else:
            parts = [np.ascontiguousarray(rows)]
        for stream, part in zip(self.files, parts, strict=True):
            check_disk(Path(stream.name), part.nbytes)
            stream.write(part.data)
        self.rows += rows.shape[0]

    def _finish(self) -> None:
        """Close the files and describe them; rows of another type go to others."""
        self.close()
        self.written.append(self._stored())
        self.files, self.rows, self.entries = [], 0, 0

    def table(self) -> Table:
        """Return all that was taken in."""
        labels = join_labels(self.labels) if self.labels else None
        if self.files:
            self._finish()
        self._join()
        lowest = 1 if self.lowest is None else self.lowest  # without entries, either count will do
        pieces = tuple(self.written or self.held)
        return Table(
            pieces,
            self.columns,
            labels,
            self.names,
            lowest if self.raw else None,
            left_out=np.concatenate([NONE, *self.left_out]),
            gaps=self.gaps,
        )

    def _stored(self) -> Any:
        """Describe what was written."""
        assert self.dtype is not None
        paths = [stream.name for stream in self.files]
        if not self.sparse:
            shape = self.rows, self.columns
            return Stored(paths[0], 0, self.dtype, shape, stamp(paths[0]))
        data = Stored(paths[0], 0, self.dtype, (self.entries,), stamp(paths[0]))
        indices = Stored(paths[1], 0, np.dtype(np.int32), (self.entries,), stamp(paths[1]))
        indptr = Stored(paths[2], 0, np.dtype(np.int64), (self.rows + 1,), stamp(paths[2]))
        return StoredCSR(data, indices, indptr, self.columns, 0, self.entries)


def gaps_in(rows: Any) -> NDArray[np.bool_]:
    """Which values of rows, or which entries of sparse ones, are missing."""
    return np.isnan(rows if isinstance(rows, np.ndarray) else rows.data)


def _taken_by(rows: Any) -> int:
    """Bytes of memory that holding rows takes: none for a view of what is the user's own."""
    dense = isinstance(rows, np.ndarray)
    borrowed = dense and not (rows.flags.owndata or rows.flags.writeable)
    return 0 if borrowed else nbytes(rows)


def _joined(parts: Sequence[Any]) -> Any:
    """One array, or one CSR matrix as wide as the widest, of several."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    ends = np.cumsum([0, *(part.nnz for part in parts)])
    starts = [part.indptr[:-1] + end for part, end in zip(parts, ends, strict=False)]
    indptr = np.concatenate([*starts, ends[-1:]]).astype(parts[0].indptr.dtype)
    data, indices = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices")
    )
    shape = len(indptr) - 1, max(part.shape[1] for part in parts)
    return type(parts[0])((data, indices, indptr), shape=shape)


def _settled(piece: Any, base: int, columns: int) -> Any:
    if isinstance(piece, StoredCSR):
        return replace(piece, base=base, columns=columns)
    if base:
        piece.indices -= base
    return type(piece)((piece.data, piece.indices, piece.indptr), shape=(piece.shape[0], columns))
