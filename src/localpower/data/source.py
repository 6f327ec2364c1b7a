"""What a user may give as data, and what all of it becomes: tables of rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError, DataHint, warn
from localpower.core.machine import ROWS_SHARE
from localpower.data.blocks import Block, Options, choose, other_names
from localpower.data.cache import cached
from localpower.data.detect import detect, suffix_of
from localpower.data.hints import table_hint
from localpower.data.memory import budget
from localpower.data.missing import fill, has_gaps, left_out, told
from localpower.data.paths import files as files
from localpower.data.readers.foreign import (
    FILES,
    is_list_of_blocks,
    is_path,
    is_remote,
    is_stream,
    refuse_object,
    refuse_remote,
)
from localpower.data.readers.frames import frame_blocks, is_frame
from localpower.data.readers.matrix import as_matrix
from localpower.data.readers.stream import stream_blocks
from localpower.data.spool import RowStorage, Table, keep
from localpower.worker.shard import EngineBlock, LoadedBlock, Shard, is_function, is_stored, nbytes

IN_PLACE = ", or change the data where they are"


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Rows as they were given, in tables with the same columns; what `localpower.read` returns.

    `separate` says that the tables are the user's own shards; otherwise rows may be cut anywhere.
    `memory` is what rows may take, in bytes; `missing` counts what was done about missing values.
    Close it, or use it in a ``with`` statement, to remove temporary files before it is garbage.
    """

    tables: tuple[Table, ...]
    names: tuple[str, ...]
    separate: bool
    dtype: np.dtype[Any]
    memory: int
    room: RowStorage
    missing: Mapping[str, int] = field(default_factory=dict)
    options: Options = field(default_factory=Options)

    def __repr__(self) -> str:
        """Say in one line what it is."""
        of = self.names[0] + f" and {len(self.names) - 1} more" * (len(self.names) > 1)
        done = "".join(f"; {told(name, count)}" for name, count in self.missing.items())
        shape = f"{self.rows} rows × {self.columns} columns of {self.dtype}"
        return f"<Source of {of}: {shape}{self.options.told()}{done}>"

    def here(self) -> Source:
        """The same, with its rows in this process."""
        return self

    @property
    def left_out(self) -> NDArray[np.intp]:
        """Numbers, in the data as given, of the rows that ``missing="drop"`` left out."""
        rows = [_rows(table) + len(table.left_out) for table in self.tables]
        firsts = np.cumsum([0, *rows])
        pairs = zip(firsts, self.tables, strict=False)
        return np.concatenate([first + table.left_out for first, table in pairs])

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
        """The label of each row, (n,), where every table has labels; held in memory."""
        labels = [table.labels for table in self.tables]
        known = [label for label in labels if label is not None]
        return np.concatenate(known) if len(known) == len(labels) else None

    @property
    def stored(self) -> int:
        """Bytes of the rows that are in files."""
        return sum(nbytes(piece) for piece in self.pieces if is_stored(piece))

    def where(self, row: int) -> str:
        """Say which row this is, and of what."""
        for name, table in zip(self.names, self.tables, strict=True):
            if row < _rows(table):
                earlier = table.left_out - np.arange(len(table.left_out))
                return f"{name}, row {row + np.searchsorted(earlier, row, 'right')}"
            row -= _rows(table)
        raise IndexError(f"there are {self.rows} rows")

    def close(self) -> None:
        """Remove temporary files."""
        self.room.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
        return data if like is None else _like(data.here(), like)
    told, options = options is not None, replace(options or Options(), like=like)
    size = budget(memory)
    room = RowStorage(int(ROWS_SHARE * size), cache)
    try:
        with naming_options(told):
            named, separate = named_parts(data, shards)
            found = [(name, _table(part, name, options, room)) for name, part in named]
            names, tables = tuple(name for name, _ in found), [table for _, table in found]
            tables = _settle(tables, columns, options)
            _check_widths(names, tables)
            missing = left_out(tables, names)
            tables, missing["values_filled"] = fill(tables, names, options.means, options.width > 0)
            if (hint := table_hint(tables[0])) is not None:
                warn(hint + _whose_options(hint), DataHint)
            if labels is not None:
                tables = _labelled(tables, labels)
    except BaseException:
        room.close()
        raise
    source = Source(tuple(tables), names, separate, _work_type(tables, options), size, room)
    done = {name: count for name, count in missing.items() if count}
    source = replace(source, missing=done, options=options)
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
            found = keep(stream_blocks(blocks, name, Options(order)), room, name)
            table = replace(table, pieces=found.pieces, columns=len(order), names=tuple(names))
        tables.append(table)
    return replace(source, tables=tuple(tables), room=room)


def load_block(block: Any, options: Options | None = None) -> LoadedBlock:
    """Rows of one block, as pieces of a shard; it may be without rows."""
    with naming_options(instead=IN_PLACE):
        table = _table(block, "a block", options or Options(), RowStorage(1 << 62))
    return LoadedBlock(table.pieces, table.names)


def held(
    parts: Sequence[EngineBlock],
    name: str,
    memory: int | str | None,
    missing: Mapping[str, int] | None = None,
) -> Source:
    """Rows that an engine holds, one shard for each part; `missing` were left out or filled in."""
    widths = {part.shape[1] for part in parts}
    if len(widths) != 1 or 0 in widths or not sum(part.shape[0] for part in parts):
        shapes = ", ".join(str(part.shape) for part in parts[:5]) or "nothing"
        raise DataError(
            f"{name}: blocks of shapes {shapes} do not form one matrix; give at least one row, and "
            "blocks with the same columns"
        )
    tables = tuple(Table((part,), part.shape[1], names=part.names) for part in parts)
    names = tuple(f"{name}, shard {number}" for number in range(len(parts)))
    with naming_options(instead=IN_PLACE):
        _check_widths(names, tables)
    size = budget(memory)
    kind = _work_type(tables, Options())
    return Source(tables, names, True, kind, size, RowStorage(size), missing or {})


@contextmanager
def naming_options(told: bool = False, instead: str = "") -> Iterator[None]:
    """Have errors say where the options are given that they name; a user who has `told` some knows.

    Where rows stay where they are, there is something to do `instead`.
    """
    try:
        yield
    except DataError as error:
        whose = "" if told else _whose_options(str(error), instead)
        if not whose or whose in str(error):
            raise
        raise DataError(f"{error}{whose}") from error


def is_ours(data: Any) -> bool:
    """Tell what only this package takes from arrays and frames that others check, too."""
    tests = is_remote, is_path, is_list_of_blocks, is_stream, is_function
    return isinstance(data, Source) or any(test(data) for test in tests)


def _rows(table: Table) -> int:
    return sum(piece.shape[0] for piece in table.pieces)


def named_parts(data: Any, shards: int | None) -> tuple[Iterable[tuple[str, Any]], bool]:
    """Split data into parts with names; say whether those are shards of the user's."""
    refuse_remote(data)
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
        if suffix_of(path) in FILES:
            detect(path)


def _table(data: Any, name: str, options: Options, room: RowStorage) -> Table:
    """Take one file or object in."""
    refuse_object(data, name)
    if is_path(data):
        return _file(Path(data), options, room)
    if is_frame(data):
        return keep(frame_blocks(data, options, name) or (), room, name, options.missing)
    if is_stream(data):
        return keep(stream_blocks(data, name, options), room, name, options.missing)
    return _chosen(as_matrix(data, name, room, options.gaps), name, options, room)


def _file(path: Path, options: Options, room: RowStorage) -> Table:
    form = detect(path)
    found = form.open(path, options, room)
    if not isinstance(found, Iterator):
        return _chosen(as_matrix(found, str(path), room), str(path), options, room)
    if path.is_dir():  # its own time of change says nothing about what is inside: not cached
        return keep(found, room, str(path), options.missing)
    table = cached(path, options, found, room, form.name == "svmlight")
    if table.gaps and room.cache is not None:  # what is filled in depends on other files, too
        blocks = Shard(table.pieces, table.columns, table.pieces[0].dtype).blocks()
        table = replace(table, pieces=keep(map(Block, blocks), room, "", "mean").pieces)
    return replace(table, text=form.name == "csv")


def _chosen(piece: Any, name: str, options: Options, room: RowStorage) -> Table:
    """Leave out the columns that are not wanted, and rows with gaps."""
    whole = options.columns is None and options.drop is None and options.label is None
    if whole and not (options.gaps and has_gaps(piece)):
        return Table((piece,), piece.shape[1])
    parts: Iterable[Any] = [piece]
    if is_stored(piece):
        parts = Shard((piece,), piece.shape[1], piece.dtype).blocks()
    return keep(stream_blocks(parts, name, options), room, name, options.missing)


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
            raise other_names(name, called)


def _whose_options(text: str, instead: str = "") -> str:
    """Say where the options are given that a message names."""
    if "localpower.read(" in text:
        return ""
    named = re.findall(r"\b(columns|drop|label|header|delimiter|key|missing)=", text)
    options = ", ".join(f"{name}=…" for name in dict.fromkeys(named))
    return f" (pass localpower.read(data, {options}) as data{instead})" if named else ""


def _labelled(tables: list[Table], labels: Any) -> list[Table]:
    labels = np.asarray(labels).reshape(-1)
    whole = [_rows(table) + len(table.left_out) for table in tables]
    if len(labels) == sum(whole):  # also of the rows that are left out
        parts = np.split(labels, np.cumsum(whole)[:-1])
        pairs = zip(parts, tables, strict=True)
        labels = np.concatenate([np.delete(part, table.left_out) for part, table in pairs])
    counts = [_rows(table) for table in tables]
    if len(labels) != sum(counts):
        raise DataError(
            f"labels has {len(labels)} entries for {sum(counts)} rows; give one for each row"
        )
    parts = np.split(labels, np.cumsum(counts)[:-1])
    return [replace(table, labels=part) for table, part in zip(tables, parts, strict=True)]


def _work_type(tables: Iterable[Table], options: Options) -> np.dtype[Any]:
    return options.work_type(piece.dtype for table in tables for piece in table.pieces)
