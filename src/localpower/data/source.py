"""What a user may give as data, and what all of it becomes: tables of rows."""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError, DataHint, warn
from localpower.data.arrow import read_arrow, read_parquet
from localpower.data.blocks import Block, Options, choose
from localpower.data.csv import read_csv
from localpower.data.foreign import FILES, refuse_file, refuse_object, unknown
from localpower.data.frames import frame_blocks, is_frame, label_hint
from localpower.data.hdf5 import open_hdf5
from localpower.data.memory import budget
from localpower.data.npy import MAGIC, open_npy, open_npz, stored_memmap
from localpower.data.spool import RowStorage, Table, cached, keep
from localpower.data.svmlight import read_svmlight
from localpower.data.text import read_chunks
from localpower.data.zarr import read_zarr
from localpower.worker.shard import (
    EngineBlock,
    LoadedBlock,
    Shard,
    Stored,
    StoredCSR,
    check_compressed,
    cut,
    is_stored,
    once,
    stamp,
    unmasked,
)

ROWS_SHARE = 0.75  # of the budget; the rest is for blocks and the d×r work
PACKED = {".gz", ".bz2", ".xz"}
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
MAGICS = {
    MAGIC: "npy", b"PK\x03\x04": "npz", b"PK\x05\x06": "npz", b"PAR1": "parquet",
    b"ARROW1": "arrow", HDF5_MAGIC: "hdf5",
}  # fmt: skip
SUFFIXES = {
    ".npy": "npy", ".npz": "npz", ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow",
    ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow", ".h5": "hdf5", ".hdf5": "hdf5",
    ".h5ad": "hdf5", ".zarr": "zarr", ".csv": "csv", ".tsv": "csv", ".svm": "svmlight",
    ".svmlight": "svmlight", ".libsvm": "svmlight",
}  # fmt: skip
STREAMED: dict[str, Callable[[Path, Options], Iterator[Block]]] = {
    "csv": read_csv, "svmlight": read_svmlight, "parquet": read_parquet, "arrow": read_arrow,
}  # fmt: skip
MODEL = {"model.npz", "run.json"}  # a folder with these is what a fit wrote, and no rows
SAMPLE = 20  # lines that tell what a text is
SAMPLE_ROWS, MOST_LABELS = 1000, 20  # rows that are looked at for a label without a name
SAMPLE_ENTRIES, FEW_ROWS = 1 << 20, 20  # at most, and rows from which counting is no accident
CLUSTERS = {
    "dask": "dask",
    "dask_expr": "dask",
    "distributed": "dask",
    "ray": "ray",
    "pyspark": "spark",
}  # packages whose data an engine can work on where they are
REMEDIES = {
    "c": "take the real part or stack real and imaginary columns",
    "O": "if all are numbers, give X.astype(float); else leave out or encode what is none",
    "U": "if all are numbers, give X.astype(float); else leave out or encode what is none",
    "S": "if all are numbers, give X.astype(float); else leave out or encode what is none",
    "M": "count time from some day on, as (X - X.min()) / numpy.timedelta64(1, 's')",
    "m": "count time in some unit, as X / numpy.timedelta64(1, 's')",
    "V": "give the fields side by side, as numpy.lib.recfunctions.structured_to_unstructured(X)",
}  # by the kind of a type that is not one of real numbers
HERE = "which brings rows here; or change them where they are"
SVMLIGHT = re.compile(rb"^(\S+\s+)?(qid:\d+\s+)?\d+:\S")


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Rows as they were given, in tables with the same columns; what `localpower.read` returns.

    `separate` says that the tables are the user's own shards; otherwise rows may be cut anywhere.
    `memory` is what rows may take, in bytes. Close it, or use it in a ``with`` statement, to remove
    temporary files before it is garbage.
    """

    tables: tuple[Table, ...]
    names: tuple[str, ...]
    separate: bool
    dtype: np.dtype[Any]
    memory: int
    room: RowStorage

    @property
    def pieces(self) -> tuple[Any, ...]:
        """All rows in order, in pieces as they are held."""
        return tuple(piece for table in self.tables for piece in table.pieces)

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(_rows(table) for table in self.tables)

    @property
    def columns(self) -> int:
        """Columns, the same in all tables."""
        return self.tables[0].columns

    @property
    def labels(self) -> NDArray[Any] | None:
        """The label of each row, where every table has labels."""
        labels = [table.labels for table in self.tables]
        known = [label for label in labels if label is not None]
        return np.concatenate(known) if len(known) == len(labels) else None

    @property
    def stored(self) -> int:
        """Bytes of the rows that are in files."""
        return sum(piece.nbytes for piece in self.pieces if is_stored(piece))

    def where(self, row: int) -> str:
        """Say which row this is, and of what."""
        for name, table in zip(self.names, self.tables, strict=True):
            if row < _rows(table):
                return f"{name}, row {row}"
            row -= _rows(table)
        raise IndexError(f"there are {self.rows} rows")

    def close(self) -> None:
        """Remove temporary files."""
        self.room.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read(
    data: Any,
    *,
    columns: Sequence[str | int] | None = None,
    drop: Sequence[str | int] | None = None,
    label: str | int | None = None,
    labels: Any = None,
    header: bool | None = None,
    delimiter: str | None = None,
    dtype: str | None = None,
    key: str | None = None,
    zero_based: bool | None = None,
    missing: str | None = None,
    n_features: int = 0,
    memory: int | str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Source:
    r"""Open data with options that `svd` has no arguments for; give `svd` what it returns.

    Parameters
    ----------
    data
        Whatever `svd` takes.
    columns, drop : sequence of str or int, optional
        Names or numbers (from 0) of the columns to take, in this order, or to leave out.
    label : str or int, optional
        A column that is no feature but a label, for ``partition="label"``.
    labels : (n,) array_like, optional
        The labels themselves, where the data do not hold them.
    header : bool, optional
        Whether CSV has a line of names; found out by default.
    delimiter : str, optional
        What separates the fields of CSV; found out by default.
    dtype : {"float32", "float64"}, optional
        What rows are worked with; by default float32 where all data are, else float64.
    key : str, optional
        Which array of an HDF5, Zarr or ``.npz`` file.
    zero_based : bool, optional
        Whether svmlight indices count from 0; by default if a 0 occurs in any of the files.
    missing : {"drop"}, optional
        Leave out the rows of CSV in which a value is missing. By default that is an error.
    n_features : int
        Columns at least, for svmlight text that does not name the last ones.
    memory : int or str, optional
        What rows may take in memory, such as ``"2GB"``; half of what is free by default.
    cache : path, optional
        Folder that keeps what was parsed, for the next time. By default it is temporary.

    Returns
    -------
    Source
        The rows, for `svd`, `plan`, `compare` and `Result.transform`, as often as wanted.

    Examples
    --------
    >>> import localpower as lp, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "rows.csv")
    ...     _ = path.write_text("name,height,weight\nann,1.7,60\nbob,1.8,80\neve,1.6,50\n")
    ...     with lp.read(path, drop=["name"]) as rows:
    ...         lp.svd(rows, 1, method="dpi", rng=0).singular_values.round(2)
    array([111.84])
    """
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype={dtype!r} is not known: take 'float32' or 'float64'")
    if missing not in (None, "drop"):
        raise ValueError(f"missing={missing!r} is not known: take 'drop', or leave it out")
    options = Options(columns, drop, label, header, delimiter, dtype, key, zero_based, missing)
    return open_source(data, n_features, options, memory, cache, labels=labels)


def open_source(
    data: Any,
    columns: int = 0,
    options: Options | None = None,
    memory: int | str | None = None,
    cache: str | os.PathLike[str] | None = None,
    shards: int | None = None,
    labels: Any = None,
    like: Sequence[str] | None = None,
) -> Source:
    """Take whatever holds rows; a list of such, a directory or a glob are the user's own shards.

    svmlight text does not tell its width: it gets that of the widest table, `columns` at least.
    `shards` is how often a function is called. `like` are the names of a model's columns: where the
    data have names, too, these are taken, in the order of the model.
    """
    if isinstance(data, Source):
        return data if like is None else _like(data, like)
    told, options = options is not None, replace(options or Options(), like=like)
    size = budget(memory)
    room = RowStorage(int(ROWS_SHARE * size), cache)
    try:
        named, separate = _named(data, shards)
        found = [(name, _table(part, name, options, room)) for name, part in named]
        names, tables = tuple(name for name, _ in found), [table for _, table in found]
        tables = _settle(tables, columns, options)
        _check_widths(names, tables)
        if (hint := _hint(tables[0])) is not None:
            warn(hint + _whose_options(hint), DataHint)
        if labels is not None:
            tables = _labelled(tables, labels)
    except DataError as error:
        room.close()
        if told or not (whose := _whose_options(str(error))):
            raise
        raise DataError(f"{error}{whose}") from error
    except BaseException:
        room.close()
        raise
    source = Source(tuple(tables), names, separate, _work_type(tables, options), size, room)
    if not source.rows and is_stream(data):
        raise DataError(
            "data yields no rows; a generator that was read before yields nothing more: make it "
            "anew, or give a list"
        )
    if not source.rows or not source.columns:
        name = names[0] if is_path(data) else "data"
        raise DataError(
            f"{name} is empty: 0 sample(s) or columns, shape={source.rows, source.columns}; "
            "give at least one"
        )
    return source


def _like(source: Source, names: Sequence[str]) -> Source:
    """Bring the columns of an open source into the order of a model, in a copy if they are not."""
    options = Options(like=names)
    orders = [
        None if table.names is None else choose(table.names, table.columns, options, name)[0]
        for name, table in zip(source.names, source.tables, strict=True)
    ]
    if all(order in (None, [*range(source.columns)]) for order in orders):
        return source
    room = RowStorage(source.room.left)
    tables = []
    for name, table, order in zip(source.names, source.tables, orders, strict=True):
        if order is not None:
            blocks = Shard(table.pieces, table.columns, source.dtype).blocks()
            found = keep(_stream(blocks, name, Options(order)), room, name)
            table = replace(
                found,
                columns=len(order),  # also where there are no rows
                labels=table.labels,
                names=tuple(names),
                text=table.text,
            )
        tables.append(table)
    return replace(source, tables=tuple(tables), room=room)


def load_block(block: Any) -> LoadedBlock:
    """Rows of one block, as pieces of a shard; it may be without rows."""
    with _in_place():
        table = _table(block, "a block", Options(), RowStorage(1 << 62))
    return LoadedBlock(table.pieces, table.names)


def held(parts: Sequence[EngineBlock], name: str, memory: int | str | None) -> Source:
    """Rows that an engine holds, one shard for each part."""
    widths = {part.shape[1] for part in parts}
    if len(widths) != 1 or 0 in widths or not sum(part.shape[0] for part in parts):
        shapes = ", ".join(str(part.shape) for part in parts[:5]) or "nothing"
        raise DataError(
            f"{name}: blocks of {shapes} are no rows of one matrix; give some rows, all with the "
            "same columns"
        )
    tables = tuple(Table((part,), part.shape[1], names=part.names) for part in parts)
    names = tuple(f"{name}, shard {number}" for number in range(len(parts)))
    with _in_place():
        _check_widths(names, tables)
    size = budget(memory)
    return Source(tables, names, True, _work_type(list(tables), Options()), size, RowStorage(size))


@contextmanager
def _in_place() -> Iterator[None]:
    """Say what to do instead where an error names options, and rows stay where they are."""
    try:
        yield
    except DataError as error:
        if not (whose := _whose_options(str(error), HERE)):
            raise
        raise DataError(f"{error}{whose}") from error


def is_list_of_blocks(data: Any) -> bool:
    """Tell a list of matrices or paths from a matrix written as a list of rows."""
    return isinstance(data, list | tuple) and any(
        is_path(block) or is_frame(block) or getattr(block, "ndim", 0) == 2 for block in data
    )


def is_path(data: Any) -> bool:
    """Tell a path from data."""
    return isinstance(data, str | os.PathLike)


def is_stream(data: Any) -> bool:
    """Tell a generator or another iterable of blocks from a matrix."""
    known = isinstance(data, list | tuple | np.ndarray | Mapping | bytes) or is_path(data)
    array = any(hasattr(data, name) for name in ("__array__", "tocsr", "__array_interface__"))
    return not known and not array and not is_frame(data) and isinstance(data, Iterable)


def is_function(data: Any) -> bool:
    """Tell a function that returns the rows of a shard."""
    array = any(hasattr(data, name) for name in ("__array__", "tocsr", "shape"))
    return callable(data) and not array


def is_ours(data: Any) -> bool:
    """Tell what only this package takes from arrays and frames that others check, too."""
    tests = _is_remote, is_path, is_list_of_blocks, is_stream, is_function
    return isinstance(data, Source) or any(test(data) for test in tests)


def _is_remote(data: Any) -> bool:
    """Tell what belongs to a cluster, or a list that begins with such."""
    parts = data[:1] if isinstance(data, list | tuple) else [data]
    return any(_package(part) in CLUSTERS for part in parts)


def _package(part: Any) -> str:
    return type(part).__module__.partition(".")[0]


def _refuse_remote(data: Any) -> None:
    """Refuse what cannot be read here, but where it is."""
    for part in data if isinstance(data, list | tuple) else [data]:
        if (package := _package(part)) in CLUSTERS and not is_frame(part):
            raise DataError(
                f"data has a {type(part).__name__} of {package}, which is read where it is: give "
                f"engine={CLUSTERS[package]!r} or what it belongs to, and in a list all of one kind"
            )


def _rows(table: Table) -> int:
    return sum(piece.shape[0] for piece in table.pieces)


def _named(data: Any, shards: int | None) -> tuple[Iterable[tuple[str, Any]], bool]:
    """Split data into parts with names; say whether those are shards of the user's."""
    _refuse_remote(data)
    refuse_object(data, "data")
    for number, part in enumerate(data if is_list_of_blocks(data) else ()):
        refuse_object(part, f"data[{number}]")
    if is_path(data) and (paths := files(os.fspath(data))) is not None:
        _look_ahead(paths)
        return [(str(path), path) for path in paths], True
    if is_list_of_blocks(data):
        parts: list[tuple[str, Any]] = []
        seen = {os.path.realpath(part) for part in data if is_path(part)}
        for number, part in enumerate(data):
            several = files(os.fspath(part)) if is_path(part) else None
            if several is None:
                parts.append((os.fspath(part) if is_path(part) else f"data[{number}]", part))
                continue
            for path in several:
                if (place := os.path.realpath(path)) not in seen:
                    seen.add(place)
                    parts.append((str(path), path))
        _look_ahead(Path(part) for _, part in parts if is_path(part))
        return parts, True
    if is_function(data):
        if shards is None:
            raise ValueError("data is a function: say with workers= how many shards it is for")
        return ((f"data({number})", data(number)) for number in range(shards)), True
    return [(os.fspath(data) if is_path(data) else "data", data)], False


def _look_ahead(paths: Iterable[Path]) -> None:
    """Refuse what cannot be read before the files that stand before it are."""
    for path in paths:
        if _suffix(path) in FILES:
            _format(path)


def files(path: str) -> list[Path] | None:
    """List the files that a directory or a glob stands for, each once; None if it is a file."""
    if os.path.isdir(path) and not _is_zarr(Path(path)):
        walk = [(folder, names) for folder, _, names in os.walk(path) if not {*names} >= MODEL]
        found = [Path(folder, name) for folder, names in walk for name in names]
        known = [p for p in found if p.name[0] not in "._" and _suffix(p) in SUFFIXES]
        if not known:
            raise DataError(
                f"{path}: no file in this directory has a known suffix "
                f"({', '.join(SUFFIXES)}); give a list of files, or a glob"
            )
        return _once(known)
    if glob.has_magic(path) and not os.path.exists(path):
        found = [Path(name) for name in _matches(path)]
        if not found:
            raise DataError(f"{path}: no file matches; check the folder and the pattern")
        return _once(found)
    return None


def _once(paths: Iterable[Path]) -> list[Path]:
    """Sort paths, and leave out links to what is there already.

    Hard links are kept: what stores the files may have joined those of the same content.
    """
    found: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (path.is_symlink(), len(path.parts), path)):
        found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _matches(pattern: str) -> Iterator[str]:
    """What a glob stands for. Unlike in `glob`, ``**`` goes into a folder once, so loops end."""
    parts = pattern.replace(os.altsep or os.sep, os.sep).split(os.sep)
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    at = parts.index("**")
    head, tail = os.sep.join(parts[:at]), os.sep.join(parts[at + 1 :])
    for folder in _folders(sorted(glob.glob(head or os.sep)) if at else [os.curdir]):
        inside = glob.escape(folder) if at else glob.escape(folder)[2:]  # without ./
        found = _matches(os.path.join(inside, tail or "*"))
        yield from found if tail else filter(os.path.isfile, found)


def _folders(starts: list[str]) -> Iterator[str]:
    """Folders and all below them that are not hidden; then those behind links, if not seen yet."""
    seen: set[str] = set()
    for top in starts:
        for folder, below, _ in os.walk(top):
            place = os.path.realpath(folder)
            if place in seen:
                below.clear()
                continue
            seen.add(place)
            below[:] = sorted(name for name in below if not name.startswith("."))
            inside = [os.path.join(folder, name) for name in below]
            starts += filter(os.path.islink, inside)
            yield folder


def _is_zarr(path: Path) -> bool:
    return any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))


def _table(data: Any, name: str, options: Options, room: RowStorage) -> Table:
    """Take one file or object in."""
    refuse_object(data, name)
    if options.missing is not None and not (is_path(data) and _format(Path(data)) == "csv"):
        raise DataError(
            f"{name}: missing={options.missing!r} is for CSV and other text; leave out such rows "
            "before, as with dropna() of a data frame"
        )
    if is_path(data):
        return _file(Path(data), options, room)
    if is_frame(data):
        blocks = frame_blocks(data, options, name)
        assert blocks is not None
        return keep(blocks, room, name)
    if is_stream(data):
        return keep(_stream(data, name, options), room, name)
    return _chosen(_matrix(data, name, room), name, options, room)


def _stream(blocks: Iterable[Any], name: str, options: Options) -> Iterator[Block]:
    for number, block in enumerate(blocks):
        part = f"block {number} of {name}"
        if is_frame(block):
            yield from frame_blocks(block, options) or ()
            continue
        refuse_object(block, part)
        rows = _matrix(block, part, RowStorage(0))
        if is_stored(rows):
            rows = rows.read()
        narrow = rows.dtype.kind == "f" and rows.dtype.itemsize < 8
        kind = options.dtype or ("float32" if narrow else "float64")
        chosen, label = choose(None, rows.shape[1], options, part)
        every = chosen == list(range(rows.shape[1]))
        taken = rows if every else rows[:, chosen]
        labels = None if label is None else _dense(rows[:, [label]])
        with np.errstate(over="ignore", invalid="ignore"):
            yield Block(taken.astype(kind, copy=False), labels)


def _dense(column: Any) -> NDArray[Any]:
    return np.asarray(column if isinstance(column, np.ndarray) else column.toarray()).reshape(-1)


def _file(path: Path, options: Options, room: RowStorage) -> Table:
    kind = _format(path)
    if kind in STREAMED:
        table = cached(path, options, STREAMED[kind](path, options), room, kind == "svmlight")
        return replace(table, text=kind == "csv")
    if kind == "zarr":  # a folder's own time of change says nothing about its chunks: not cached
        return keep(read_zarr(path, options), room, str(path))
    if kind == "hdf5":
        found = open_hdf5(path, options)
        if not isinstance(found, tuple):
            return cached(path, options, found, room, False)
        offset, dtype, shape = found
        lengths = tuple(int(length) for length in shape)
        piece: Any = Stored(str(path), int(offset), dtype, lengths, stamp(path))
    elif kind == "npz" and _suffix(path) == ".zarr":
        return cached(path, options, read_zarr(path, options), room, False)
    else:
        piece = open_npy(path) if kind == "npy" else open_npz(path, options, room)
    return _chosen(_matrix(piece, str(path), room), str(path), options, room)


def _chosen(piece: Any, name: str, options: Options, room: RowStorage) -> Table:
    """Leave out the columns that are not wanted."""
    if options.columns is None and options.drop is None and options.label is None:
        return Table((piece,), piece.shape[1])
    if not is_stored(piece):
        return keep(_stream([piece], name, options), room, name)
    shard = Shard((piece,), piece.shape[1], piece.dtype)
    return keep(_stream(shard.blocks(), name, options), room, name)


def _matrix(data: Any, name: str, room: RowStorage) -> Any:
    """Bring one matrix into a form that kernels work on: dense, canonical CSR, or in a file."""
    if isinstance(data, Stored | StoredCSR):
        _check(data.shape, data.dtype, name)
        if data.dtype.itemsize > 8:
            return _matrix(data.read(), name, room)
        return data
    if hasattr(data, "tocsr"):
        _check(data.shape, data.dtype, name)
        return _csr(data)
    try:
        array = np.asanyarray(data)
    except ValueError as error:
        raise DataError(
            f"{name} has rows of different lengths; all need the same columns"
        ) from error
    if (reason := unknown(data, array)) is not None:
        raise DataError(f"{name} {reason}")
    _check(array.shape, array.dtype, name)
    if isinstance(array, np.memmap) and (stored := stored_memmap(array)) is not None:
        return _matrix(stored, name, room)
    array = unmasked(array, name)
    if array.dtype.itemsize > 8:
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what is too large is found as infinity later
            array = array.astype(np.float64)
    if not array.flags.c_contiguous and array.nbytes <= room.left:
        room.left -= array.nbytes
        array = np.ascontiguousarray(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    if len(shape) != 2 and dtype.kind != "V":
        remedy = "a single sample is X.reshape(1, -1), a single column X.reshape(-1, 1)"
        if len(shape) > 2:
            remedy = "samples of several dimensions, as images, are X.reshape(len(X), -1)"
        raise DataError(
            f"{name} has {len(shape)} dimension(s), not 2: give one row per sample; {remedy}"
        )
    if dtype.kind not in "fiub":
        remedy = REMEDIES.get(dtype.kind, "leave out or encode the columns that are not numbers")
        raise DataError(f"{name} has dtype {dtype}, not real numbers: {remedy}")


def _csr(matrix: Any) -> Any:
    from scipy.sparse import csr_array

    if hasattr(matrix, "indptr"):
        check_compressed(matrix)
    with np.errstate(over="ignore", invalid="ignore"):
        if matrix.dtype.kind == "b":
            matrix = once(matrix)
        wide = matrix.dtype not in (np.float32, np.float64)
        csr = csr_array(matrix.astype(np.float64) if wide else matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if csr.indptr.dtype != np.int32 and max(csr.nnz, *csr.shape) < np.iinfo(np.int32).max:
        parts = csr.data, csr.indices.astype(np.int32), csr.indptr.astype(np.int32)
        csr = csr_array(parts, shape=csr.shape)
    return csr


def _settle(tables: list[Table], columns: int, options: Options) -> list[Table]:
    """Decide where svmlight text counts columns from, and how many there are, over all files."""
    texts = [table for table in tables if table.lowest is not None]
    if not texts:
        return tables
    lowest = min(table.lowest for table in texts if table.lowest is not None)
    if options.zero_based is None:
        base = 1 if lowest > 0 else 0
    else:
        base = 0 if options.zero_based else 1
    if lowest < base:
        raise DataError(
            "an index 0 occurs in svmlight text with zero_based=False; leave that out, or say True"
        )
    widest = max(int(columns), *(table.columns - (base if table.lowest is not None else 0)
                            for table in tables))  # fmt: skip
    return [table if table.lowest is None else table.settled(base, widest) for table in tables]


def _check_widths(names: Sequence[str], tables: Sequence[Table]) -> None:
    first = tables[0].columns
    like, called = next(((t, n) for t, n in zip(tables, names, strict=True) if t.names), (None, ""))
    for name, table in zip(names, tables, strict=True):
        if table.columns != first:
            raise DataError(
                f"{name} has {table.columns} columns where {names[0]} has {first}; all shards need "
                "the same columns in the same order"
            )
        if like is not None and table.names not in (None, like.names):
            raise DataError(
                f"{name} and {called} have columns of other names or in another order; give them "
                "the same, or choose with columns=[…]"
            )


def _whose_options(text: str, how: str = "and what it returns as data") -> str:
    """Say where the options are given that a message names."""
    named = re.findall(r"\b(columns|drop|label|header|delimiter|key|missing)=", text)
    options = " and ".join(f"{name}=" for name in dict.fromkeys(named))
    return f" (give {options} to localpower.read, {how})" if named else ""


def _hint(table: Table) -> str | None:
    """Say what looks as if it were no feature: by its name, or by its values if it has none."""
    if not table.pieces or (table.names is None and not table.text):
        return None
    piece = table.pieces[0]
    most = min(SAMPLE_ROWS, SAMPLE_ENTRIES // max(table.columns, 1))
    sample = cut(piece, 0, min(most, piece.shape[0]))
    rows = sample.read() if is_stored(sample) else sample
    if table.names is not None:
        dense = isinstance(rows, np.ndarray) and len(rows) >= FEW_ROWS
        with np.errstate(invalid="ignore", over="ignore"):
            counting = (np.diff(rows, axis=0) == 1).all(axis=0) if dense else np.empty(0)
        return label_hint(table.names, np.flatnonzero(counting).tolist())
    whole = (rows == np.round(rows)).all(axis=0)
    for number in (0, rows.shape[1] - 1):
        kinds = len(np.unique(rows[:, number]))
        if whole[number] and not whole.all() and 1 < kinds <= min(MOST_LABELS, len(rows) // 4):
            return (
                f"column {number} holds {kinds} different whole numbers where others have "
                f"fractions, like a label; if it is none of the features, leave it out with "
                f"drop=[{number}]"
            )
    return None


def _labelled(tables: list[Table], labels: Any) -> list[Table]:
    labels = np.asarray(labels).reshape(-1)
    counts = [_rows(table) for table in tables]
    if len(labels) != sum(counts):
        raise DataError(f"labels has {len(labels)} entries for {sum(counts)} rows; give one each")
    parts = np.split(labels, np.cumsum(counts)[:-1])
    return [replace(table, labels=part) for table, part in zip(tables, parts, strict=True)]


def _work_type(tables: Sequence[Table], options: Options) -> np.dtype[Any]:
    """What rows are worked with: float32 if none is wider, else float64."""
    kinds = [piece.dtype for table in tables for piece in table.pieces]
    narrow = all(kind.kind == "f" and kind.itemsize < 8 for kind in kinds)
    return np.dtype(options.dtype or (np.float32 if narrow else np.float64))


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


def _format(path: Path) -> str:
    """Tell what a file is by what it starts with; only text also by its name."""
    if path.is_dir():
        return "zarr"
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, _why_not_there(path), str(path))
    if not path.is_file():
        raise DataError(f"{path} is not a regular file; write its content to one first")
    with open(path, "rb") as stream:
        start = stream.read(4096)
    for magic, kind in MAGICS.items():
        if start.startswith(magic):
            if kind == "npz":  # so do spreadsheets start
                refuse_file(path, _suffix(path), start)
            return kind
    refuse_file(path, _suffix(path), start)
    named = SUFFIXES.get(_suffix(path))
    if named == "arrow" and start:
        return named
    if named not in (None, "csv", "svmlight"):
        raise DataError(
            f"{path}: not a {_suffix(path)} file, it starts with {start[:8]!r}; write it again, or "
            "give text another suffix"
        )
    return named or _kind_of_text(path)


def _why_not_there(path: Path) -> str:
    reason = os.strerror(errno.ENOENT)
    if path.parts[:1] and path.parts[0].startswith("~"):
        return f"{reason}; write out what ~ stands for, as with os.path.expanduser"
    start = "" if path.is_absolute() else f", which starts from {os.getcwd()}"
    return f"{reason}; check the path{start}"


def _kind_of_text(path: Path) -> str:
    """Tell svmlight text, which has colons or nothing but a label, from tables."""
    with closing(read_chunks(path)) as chunks:
        lines = next(chunks).data.split(b"\n", SAMPLE)[:SAMPLE]
    lines = [line for line in lines if line.strip() and not line.startswith(b"#")]
    if any(SVMLIGHT.match(line) for line in lines):
        return "svmlight"
    return (
        "csv"
        if any(len(re.split(rb"[\s,;|]+", line.strip())) > 1 for line in lines)
        else "svmlight"
    )
