"""Columns that are kept beside scores, so that these can be joined to what they are of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError, DataHint
from localpower.data.blocks import Options
from localpower.data.detect import detect
from localpower.data.readers import csv_layout as layouts
from localpower.data.readers.arrow import record_batches
from localpower.data.readers.csv import below_header, field_offsets
from localpower.data.readers.text import read_chunks
from localpower.scores.tables import check_there

BATCH = 1 << 16  # rows that are read at once


class Beside:
    """Columns of files, in step with the rows that are worked on; `open_file` yields them."""

    def __init__(
        self, names: Sequence[str], open_file: Callable[[str], Iterator[dict[str, Any]]]
    ) -> None:
        self.names, self._open = tuple(names), open_file
        self._table = -1
        self._where = ""
        self._parts: Iterator[dict[str, Any]] = iter(())
        self._held: dict[str, Any] = {}
        self._first = self._last = 0  # rows that are held

    def of(self, path: str, table: int, rows: NDArray[np.intp]) -> dict[str, Any]:
        """The columns of these rows, whose numbers grow, of the file that is `table` in order."""
        if not self.names:
            return {}
        if table != self._table:
            self.end()
            self._table, self._where = table, path
            self._parts = self._open(path)
            self._first = self._last = 0
        found: list[dict[str, Any]] = []
        left = rows
        while len(left):
            while left[0] >= self._last:
                self._next()
            count = int(np.searchsorted(left, self._last))
            here = left[:count] - self._first
            found.append({name: _take(part, here) for name, part in self._held.items()})
            left = left[count:]
        return {name: _joined([part[name] for part in found]) for name in self.names}

    def _next(self) -> None:
        held = next(self._parts, None)
        if held is None:
            raise DataError(
                f"{self._where}: column {self.names[0]!r} has {self._last} rows, fewer than the "
                "rows that scores are of; write the file again"
            )
        self._held, self._first = held, self._last
        self._last += len(held[self.names[0]])

    def end(self) -> None:
        """Let go of the file that was read."""
        close = getattr(self._parts, "close", None)
        if close is not None:
            close()


def columns_of_file(path: Path, names: Sequence[str], options: Options) -> Iterator[dict[str, Any]]:
    """Yield columns of a file, some rows at a time."""
    form = detect(path).name
    if form not in READERS:
        raise DataError(
            f"{path}: keep={list(names)} needs columns with names, as CSV, Parquet and Arrow have "
            "them; leave it out, as scores are in the order of the rows"
        )
    return READERS[form](path, names, options)


def _of_csv(path: Path, names: Sequence[str], options: Options) -> Iterator[dict[str, Any]]:
    """Fields as they are written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataHint)  # the reader of the rows gives it
        layout = layouts.find_layout(path, options)
    check_there(names, layout.names or (), f"{path}: ")
    places = [(layout.names or ()).index(name) for name in names]
    with closing(read_chunks(path)) as chunks:
        for chunk in chunks:
            below = below_header(chunk, layout.header)
            offsets = field_offsets(below.data, layout)
            if offsets is None:
                rows = [fields for *_, fields in layouts.numbered_rows(below, layout)]
                found = [[row[at].strip("\r\n") for row in rows] for at in places]
            else:
                found = [_texts(below.data, offsets, at, layout.count) for at in places]
            yield dict(zip(names, found, strict=True))


def _texts(data: bytes, offsets: NDArray[np.int32], at: int, count: int) -> list[str]:
    starts, stops = (offsets[2 * at + k : -1 : 2 * count].tolist() for k in (0, 1))
    return [layouts.decode(data[a:b]).strip("\r\n") for a, b in zip(starts, stops, strict=True)]


def _of_parquet(path: Path, names: Sequence[str], options: Options) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        check_there(names, file.schema_arrow.names, f"{path}: ")
        for batch in file.iter_batches(BATCH, columns=list(names)):
            yield {name: batch.column(name) for name in names}


def _of_arrow(path: Path, names: Sequence[str], options: Options) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.ipc

    with pa.memory_map(str(path)) as stream:
        opened = pa.ipc.open_file if stream.read(6) == b"ARROW1" else pa.ipc.open_stream
        stream.seek(0)
        with opened(stream) as reader:
            check_there(names, reader.schema.names, f"{path}: ")
            for batch in record_batches(reader):
                yield {name: batch.column(name) for name in names}


READERS = {"csv": _of_csv, "parquet": _of_parquet, "arrow": _of_arrow}


def _take(part: Any, rows: NDArray[np.intp]) -> Any:
    start, stop = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    if stop - start == len(rows):
        return part[start:stop]
    return [part[i] for i in rows] if isinstance(part, list) else part.take(rows)


def _joined(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if not parts or isinstance(parts[0], list):
        return list(chain.from_iterable(parts))
    import pyarrow as pa

    return pa.chunked_array(parts)
