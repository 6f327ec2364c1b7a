"""Rows that come block by block, kept: in memory as long as there is room, then in raw files.

With a folder given as cache, what was read of a file is kept there for the next time, under a key
of the file's path, size, time of change and the options of the read. What is found there is checked
against its checksums, and made anew where it does not fit. Else files are temporary.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.checksum import file_checksum
from localpower.core.errors import DataError, warn
from localpower.core.files import abandoned, lock, locked, part_of, unfinished
from localpower.data.blocks import BLOCK_BYTES, Block, Options
from localpower.data.readers.text import join_labels
from localpower.version import __version__
from localpower.worker.shard import nbytes
from localpower.worker.stored import Stored, StoredCSR, stamp

FORMAT = 2
DESCRIPTION = "table.json"
SPARE_DISK = 1 << 28  # left free on a disk that is written to


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
    `text` says that it is a table of text, where columns may be labels.
    """

    pieces: tuple[Any, ...]
    columns: int
    labels: NDArray[Any] | None = None
    names: tuple[str, ...] | None = None
    lowest: int | None = None
    text: bool = False

    def settled(self, base: int, columns: int) -> Table:
        """Count columns of svmlight text from `base`, and make them `columns` many."""
        pieces = tuple(_settled(piece, base, columns) for piece in self.pieces)
        return replace(self, pieces=pieces, columns=columns, lowest=None)


def keep(blocks: Iterable[Block], room: RowStorage, name: str, raw_indices: bool = False) -> Table:
    """Take all blocks in and return them as a table; temporary files where memory is full."""
    return Spool(room, raw=raw_indices).filled(blocks, name).table()


def cached(
    path: Path, options: Options, blocks: Iterable[Block], room: RowStorage, raw: bool
) -> Table:
    """Like `keep`, but in the user's cache; or what is there from an earlier time."""
    if room.cache is None:
        return keep(blocks, room, str(path), raw)
    identity = repr((FORMAT, str(path.resolve()), stamp(path), astuple(options)))
    folder = room.cache / hashlib.sha256(identity.encode()).hexdigest()[:32]
    found = _found(folder)
    if isinstance(found, Table):
        return found
    if found:
        warn(f"{folder}: a cache that cannot be used ({found}); it is made anew", RuntimeWarning)
    room.cache.mkdir(parents=True, exist_ok=True)
    with _unfinished_folder(folder) as part:
        table = Spool(RowStorage(0), part, raw).filled(blocks, str(path)).table()
        if not table.pieces:
            return table
        _write_description(part, table)
        return _published(part, folder)


@contextmanager
def _unfinished_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that is to become `folder`; it is removed if it does not.

    What processes left behind that were killed over it is removed.
    """
    for left in unfinished(folder):
        with suppress(OSError), abandoned(left):
            shutil.rmtree(left)
    part, file = _locked_folder(folder)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(file)


def _locked_folder(folder: Path) -> tuple[Path, int]:
    while True:
        part = part_of(folder)
        part.mkdir()
        with suppress(FileNotFoundError):
            file = os.open(part, os.O_RDONLY)
            lock(file)
            if part.exists():  # else it was removed before it was locked
                return part, file
            os.close(file)


def _published(part: Path, folder: Path) -> Table:
    """Put a finished folder in place, unless another process was faster, and read it."""
    with locked(folder.parent):
        found = _found(folder)
        if isinstance(found, Table):  # which that process is using
            return found
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
        return _read_description(folder, check=False)


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

    With a `folder`, all goes to files there. `raw` says that column numbers are those of svmlight
    text: their least and largest are known at the end only.
    """

    def __init__(self, room: RowStorage, folder: Path | None = None, raw: bool = False) -> None:
        self.room, self.folder, self.raw = room, folder, raw
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
        return Table(pieces, self.columns, labels, self.names, lowest if self.raw else None)

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


def _write_description(folder: Path, table: Table) -> None:
    piece = table.pieces[0]
    if table.labels is not None:
        np.save(folder / "labels.npy", table.labels, allow_pickle=False)
    shape = [*piece.shape, piece.nnz if isinstance(piece, StoredCSR) else None]
    content = {"shape": shape, "dtype": piece.dtype.str, "names": table.names}
    content |= {"lowest": table.lowest, "version": __version__}
    content["files"] = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    content["sha256"] = _seal(content)
    (folder / DESCRIPTION).write_text(json.dumps(content), encoding="utf-8")


def _checksum(path: Path) -> str:
    with open(path, "rb") as stream:
        return file_checksum(stream)


def _seal(content: dict[str, Any]) -> str:
    """Tell a description from one that was changed."""
    rest = {name: part for name, part in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _found(folder: Path) -> Table | str:
    """Read what is in the cache; or say why it cannot be used, nothing if there is none."""
    if not (folder / DESCRIPTION).exists():
        return ""
    try:
        return _read_description(folder)
    except DataError as error:
        return str(error)


def _check_files(folder: Path, content: dict[str, Any]) -> None:
    """Refuse what was written by another version, or changed since it was written."""
    if content.get("sha256") != _seal(content):
        raise ValueError(f"{DESCRIPTION} has changed since it was written")
    if content["version"] != __version__:
        raise ValueError(f"of version {content['version']}, and this is {__version__}")
    for name, known in content["files"].items():
        if _checksum(folder / name) != known:
            raise ValueError(f"{name} has changed since it was written")


def _read_description(folder: Path, check: bool = True) -> Table:
    try:
        content = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if check:
            _check_files(folder, content)
        rows, columns, entries = content["shape"]
        kind = np.dtype(content["dtype"])
        if kind not in (np.float32, np.float64):
            raise ValueError(f"dtype {kind}")
        if entries is None:
            piece: Any = _raw(folder, "data", kind, (rows, columns))
        else:
            parts = (
                _raw(folder, "data", kind, (entries,)),
                _raw(folder, "indices", np.dtype(np.int32), (entries,)),
                _raw(folder, "indptr", np.dtype(np.int64), (rows + 1,)),
            )
            piece = StoredCSR(*parts, columns, 0, entries)
        labels = folder / "labels.npy"
        found = np.load(labels, allow_pickle=False) if labels.exists() else None
        names, lowest = content["names"] and tuple(content["names"]), content["lowest"]
        if found is not None and found.shape != (rows,):
            raise ValueError(f"labels of shape {found.shape}")
        if lowest is not None and type(lowest) is not int:
            raise ValueError(f"lowest is {lowest!r}")
        return Table((piece,), columns, found, names, lowest)
    except (AttributeError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(str(error)) from error


def _raw(folder: Path, name: str, kind: np.dtype[Any], shape: tuple[int, ...]) -> Stored:
    path = folder / f"{name}.raw"
    stored = Stored(str(path), 0, kind, shape, stamp(path))
    if stored.nbytes != stored.stamp[0]:
        raise ValueError(f"{name}.raw has {stored.stamp[0]} bytes, not {stored.nbytes}")
    return stored
