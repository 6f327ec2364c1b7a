"""Rows that are needed once, in order: files are read by stretches, and nothing of them is kept."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError
from localpower.core.machine import ROWS_SHARE
from localpower.data.blocks import Block, Options, other_names
from localpower.data.detect import detect
from localpower.data.memory import budget
from localpower.data.missing import filled
from localpower.data.readers.foreign import is_list_of_blocks, is_path
from localpower.data.readers.matrix import as_matrix
from localpower.data.readers.stream import stream_blocks
from localpower.data.source import Source, named_parts, naming_options, open_source
from localpower.data.spool import RowStorage, complete, gaps_in
from localpower.worker.shard import Piece, Shard, cut, is_stored, nbytes, work_type

STRETCH = 1 << 25  # bytes of rows in memory or in a file of raw numbers that are taken at once
SPOOLED = "svmlight"  # which tells its columns when all of it is read


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Consecutive rows: a piece, or one that is still in a file, of what is called `where`.

    `table` counts the files, `first` is the number of the first row in its own. Where rows are left
    out, `numbers` are those of all, and `end` is how many rows the file has up to here.
    """

    piece: Piece
    where: str
    first: int
    table: int = 0
    numbers: NDArray[np.intp] | None = None
    end: int = 0
    names: tuple[str, ...] | None = None

    @property
    def rows(self) -> NDArray[np.intp]:
        """Numbers of its rows."""
        if self.numbers is not None:
            return self.numbers
        return np.arange(self.first, self.first + self.piece.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """Stretches of rows that come once, and the precision in which they are worked on.

    `missing` is what is done about missing values, as `localpower.read` has it.
    """

    stretches: Iterator[Stretch]
    dtype: np.dtype[Any]
    missing: str | None = None


class TooNarrow(Exception):
    """Rows of float64 come after rows of float32: all are to be read again as float64."""


@contextmanager
def read_once(
    data: Any, options: Options, memory: int | str | None = None, told: bool = False
) -> Iterator[Opened]:
    """Open rows that are on this machine. `told` says that `options` are the user's own."""
    size = budget(memory)
    step = max(1, min(STRETCH, size // 16))
    unknown = options.missing == "mean" and options.means is None  # until all rows are read
    paths = None if unknown or isinstance(data, Source) else _paths(data)
    if paths is None:
        with naming_options(told), _source(data, options, memory) as source:
            yield Opened(_of_source(source, step), source.dtype, source.options.missing)
        return
    room = RowStorage(int(ROWS_SHARE * size))
    try:
        with naming_options(told), closing(_of_files(paths, options, room, step)) as stretches:
            yield _typed(paths, options, stretches)
    finally:
        room.close()


def _paths(data: Any) -> list[tuple[str, Path]] | None:
    """Files, if the data are such and can be read a stretch at a time."""
    parts: Sequence[Any] = data if is_list_of_blocks(data) else [data]
    if not all(is_path(part) for part in parts):
        return None
    named, _ = named_parts(data, None)
    paths = [(name, Path(path)) for name, path in named]
    return None if any(detect(path).name == SPOOLED for _, path in paths) else paths


def paths_of(data: Any) -> list[Path]:
    """All files that data name: none if they are no paths."""
    if isinstance(data, Source) or not (is_path(data) or is_list_of_blocks(data)):
        return []
    named, _ = named_parts(data, None)
    return [Path(path) for _, path in named if is_path(path)]


@contextmanager
def _source(data: Any, options: Options, memory: int | str | None) -> Iterator[Source]:
    source = open_source(data, options.width, options, memory, like=options.like)
    try:
        yield source
    finally:
        if source is not data:
            source.close()


def _of_source(source: Source, step: int) -> Iterator[Stretch]:
    pairs = zip(source.names, source.tables, strict=True)
    for number, (name, table) in enumerate(pairs):
        first = 0
        rows = sum(piece.shape[0] for piece in table.pieces) + len(table.left_out)
        kept = np.delete(np.arange(rows), table.left_out) if len(table.left_out) else None
        for piece in table.pieces:
            for part in _cut_up(piece, source.dtype, step):
                last = first + part.shape[0]
                numbers = None if kept is None else kept[first:last]
                end = 0 if kept is None else rows if last == len(kept) else int(kept[last])
                yield Stretch(part, name, first, number, numbers, end, table.names)
                first = last


def _of_files(
    paths: Iterable[tuple[str, Path]], options: Options, room: RowStorage, step: int
) -> Generator[Stretch, None, None]:
    known: tuple[str, tuple[str, ...]] | None = None
    for number, (name, path) in enumerate(paths):
        first = 0
        for block in _blocks(path, options, room, step):
            if known is None and block.names is not None:
                known = name, block.names
            if known is not None and block.names not in (None, known[1]):
                raise other_names(name, known[0])
            rows, numbers = _without_gaps(block.rows, options)
            end = first + block.rows.shape[0]
            numbers = None if numbers is None else first + numbers
            yield Stretch(rows, name, first, number, numbers, end, block.names)
            first = end


def _without_gaps(rows: Any, options: Options) -> tuple[Any, NDArray[np.intp] | None]:
    """Leave out rows with gaps, and tell which are left; or fill gaps with means."""
    if not options.gaps:
        return rows, None
    rows = rows.read() if is_stored(rows) else rows
    holes = gaps_in(rows)
    if not holes.any():
        return rows, None
    if options.missing == "mean":
        return filled(rows.copy(), options.means), None
    full = complete(rows, holes)
    return rows[full], np.flatnonzero(full)


def _blocks(path: Path, options: Options, room: RowStorage, step: int) -> Iterator[Block]:
    form = detect(path)
    found = form.open(path, options, room)
    if isinstance(found, Iterator):
        yield from found
        return
    piece = as_matrix(found, str(path), room)
    parts = _cut_up(piece, work_type([piece.dtype]), step)
    whole = piece.shape[1] == options.width and options.columns is None
    if whole or (options.columns is None and options.drop is None and options.label is None):
        yield from map(Block, parts)
        return
    for part in parts:
        rows = part.read() if is_stored(part) else part
        yield from stream_blocks([rows], str(path), options)


def _cut_up(piece: Piece, dtype: np.dtype[Any], step: int) -> Iterator[Piece]:
    """Cut a piece into stretches of so many bytes, where products cut it anyway."""
    rows = piece.shape[0]
    grid = Shard((piece,), piece.shape[1], dtype)._dense_step()
    wanted = max(1, step * rows // max(1, nbytes(piece)))
    count = max(grid, wanted // grid * grid)
    for start in range(0, rows, count):
        yield cut(piece, start, min(start + count, rows))


def _typed(paths: Sequence[Any], options: Options, stretches: Iterator[Stretch]) -> Opened:
    """Decide the precision: that of the first rows."""
    first = next(stretches, None)
    if first is None or not first.piece.shape[1]:
        raise DataError(f"{paths[0][0]} is empty: 0 sample(s) or columns; give at least one")
    dtype = options.work_type([first.piece.dtype])
    return Opened(_checked(first, stretches, options, dtype), dtype, options.missing)


def _checked(
    first: Stretch, others: Iterator[Stretch], options: Options, dtype: np.dtype[Any]
) -> Iterator[Stretch]:
    yield first
    for stretch in others:
        if options.work_type([stretch.piece.dtype, dtype]) != dtype:
            raise TooNarrow(f"{stretch.where} has {stretch.piece.dtype} after {dtype}")
        yield stretch
