"""CSV, TSV and other text with a row a line, in dense blocks; values are those of `float`.

Most text is read by a fast path over whole chunks. A chunk with anything unusual in it goes line by
line, which also finds the line that an error is reported for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError, DataHint, warn
from localpower.data.blocks import Block, Options
from localpower.data.readers import csv_layout as layouts
from localpower.data.readers.csv_layout import Layout, is_missing
from localpower.data.readers.text import Chunk, arrow, parse_in_order, read_chunks, show
from localpower.worker.kernels import fields

NO_ROW = re.compile(rb"(?m)^(?:#.*)?\n")

LONGEST = max(map(len, layouts.MISSING))
WORD = ~np.isin(np.arange(256), list(b"0123456789.+-"))  # bytes that no number starts with
SURELY = 1e38  # what is below is finite in float32, too

Parsed = tuple[NDArray[Any], NDArray[Any] | None, NDArray[np.intp], int]
# rows, labels, which rows of the chunk these are, and how many it has


def read_csv(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of a file as dense blocks.

    Labels are numbers in blocks where all are or are missing (nan), else text;
    `text.join_labels` joins both.
    """
    layout = layouts.find_layout(path, options)
    taken = layout.names and tuple(layout.names[number] for number in layout.chosen)
    rows = read = 0
    for block, labels, kept, count in parse_in_order(
        partial(_parse, layout=layout), read_chunks(path)
    ):
        rows, read = rows + len(block), read + count
        if layout.gaps and count:
            yield Block(block, labels, taken, kept + (read - count), read)
        elif len(block):
            yield Block(block, labels, taken)
    left = read - rows
    if left and not rows:
        raise DataError(
            f"{path}: a value is missing in each of its {left} rows; leave out columns in which "
            "values are missing with drop=[…]"
        )
    if left:
        warn(f"{path}: {left} of {left + rows} rows are left out, as values are missing", DataHint)
    if not rows:
        raise DataError(
            f"{path}: there is no row below the header, line {layout.header}; say header=False if "
            "that line is a row"
        )


def _parse(chunk: Chunk, layout: Layout) -> Parsed:
    """Return the rows of a chunk, their labels, which of its rows they are, and how many it has."""
    chunk = _below(chunk, layout.header)
    pa = arrow()
    fast = None if pa is None else _parse_fast(chunk.data, layout, pa)
    return _parse_lines(chunk, layout) if fast is None else fast


def _below(chunk: Chunk, header: int) -> Chunk:
    """Leave out the lines up to the header."""
    skip = header + 1 - chunk.line
    if skip <= 0:
        return chunk
    return Chunk(header + 1, b"".join(chunk.data.split(b"\n", skip)[skip:]))


def _parse_fast(data: bytes, layout: Layout, pa: Any) -> Parsed | None:
    """Parse lines at once; None if any needs a closer look."""
    offsets = _fields(data, layout)
    if offsets is None:
        data = _plain(data, layout)
        offsets = _fields(data, layout)
    if offsets is None:
        return None
    gaps = _gaps(data, offsets, layout)
    if gaps.any():
        if not layout.gaps:
            return None
        data = _filled(data, offsets, gaps)
        offsets = _fields(data, layout)
        assert offsets is not None
    values = _values(data, offsets, layout, pa)
    if values is None:
        return None
    with np.errstate(over="ignore"):
        rows = values.astype(layout.dtype, copy=False)
    if not np.array_equal(~np.isfinite(rows), gaps[:, layout.chosen]):
        return None
    full = ~gaps.any(axis=1)
    labels = None
    if layout.label is not None:
        starts, stops = (
            offsets[2 * layout.label + k : -1 : 2 * layout.count][full] for k in (0, 1)
        )
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        labels = _labels([layouts.decode(data[a:b]) for a, b in pairs])
    return rows if full.all() else rows[full], labels, np.flatnonzero(full), len(rows)


def _plain(data: bytes, layout: Layout) -> bytes:
    """Take off what numbers do not need: comments, empty lines, quotes, and blanks around them.

    A delimiter in quotes becomes a letter, so that what was quoted is no number; but not where
    labels are wanted as they are.
    """
    mark = re.escape(layout.delimiter.encode())
    if b"#" in data or b"\n\n" in data or data.startswith(b"\n"):
        data = NO_ROW.sub(b"", data)
    if layout.delimiter == " ":
        data = data.replace(b"\t", b" ")
    if b'"' in data:
        inside = rb'[^"\n]*' if layout.label is None else rb'[^"\n%s]*' % mark
        quoted = re.compile(rb'(?m)(^|%s) *"(%s)"(?=%s|$)' % (mark, inside, mark))
        cut = layout.delimiter.encode()
        data = quoted.sub(lambda found: found[1] + found[2].replace(cut, b"x"), data)
    for end in (layout.delimiter.encode(), b"\n"):
        for blank in (b" " + end, end + b" "):
            while blank in data:
                data = data.replace(blank, end)
    return data.lstrip(b" ")


def _fields(data: bytes, layout: Layout) -> NDArray[np.int32] | None:
    """Where fields start and end; None if lines are not plain, or not all of one length."""
    if b'"' in data or (b"#" in data and (data.startswith(b"#") or b"\n#" in data)):
        return None
    if layout.count == 1 and (data.startswith(b"\n") or b"\n\n" in data):
        return None  # an empty line is no row
    return fields(data, ord(layout.delimiter), layout.count)


def _gaps(data: bytes, offsets: NDArray[np.int32], layout: Layout) -> NDArray[np.bool_]:
    """Which fields, of the columns wanted, hold no value: those with nothing or a word for it."""
    wanted = np.isin(np.arange(layout.count), layout.chosen)
    starts, lengths = offsets[:-1:2], np.diff(offsets)[::2]
    text = np.frombuffer(data, np.uint8)
    first = text[starts]
    gaps: NDArray[np.bool_] = (lengths == 0) | ((lengths == 1) & (first == ord("-")))
    at = np.flatnonzero((lengths <= LONGEST) & ~gaps & WORD[first])
    if len(at):
        place = np.minimum(starts[at, None] + np.arange(LONGEST), len(text) - 1)
        letters = np.where(np.arange(LONGEST) < lengths[at, None], text[place], 0)
        words, which = np.unique(letters.view(f"S{LONGEST}").ravel(), return_inverse=True)
        gaps[at] = np.array([is_missing(word.decode("latin-1")) for word in words])[which]
    return gaps.reshape(-1, layout.count) & wanted


def _filled(data: bytes, offsets: NDArray[np.int32], gaps: NDArray[np.bool_]) -> bytes:
    """Write nan into the gaps."""
    at = np.flatnonzero(gaps)
    starts, stops = offsets[2 * at].tolist(), offsets[2 * at + 1].tolist()
    return b"nan".join(data[a:b] for a, b in zip([0, *stops], [*starts, len(data)], strict=True))


def _values(
    data: bytes, offsets: NDArray[np.int32], layout: Layout, pa: Any
) -> NDArray[np.float64] | None:
    """Cast fields to numbers where they stand.

    Fields and delimiters in turn are the strings of an array in which all are null but the fields
    wanted. That takes half the time of parsing the text once more.
    """
    wanted = np.zeros((layout.count, 2), np.bool_)
    wanted[layout.chosen, 0] = True
    rows = len(offsets) // (2 * layout.count)
    valid = np.packbits(np.tile(wanted.ravel(), rows), bitorder="little")
    buffers = [pa.py_buffer(part) for part in (valid, offsets, data)]
    strings = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    try:
        cast = strings.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    values = np.frombuffer(cast.buffers()[1], np.float64, len(offsets) - 1)
    values = values.reshape(rows, layout.count, 2)[:, :, 0]
    every = layout.chosen == list(range(layout.count))
    return values.copy() if every else values[:, layout.chosen]


def _labels(fields: list[str]) -> NDArray[Any]:
    numbers = [np.nan if is_missing(field) else layouts.number_in(field) for field in fields]
    if None in numbers:
        return np.array([field.strip() for field in fields], dtype=np.str_)
    return np.array(numbers, dtype=np.float64)


def _parse_lines(chunk: Chunk, layout: Layout) -> Parsed:
    values: list[list[float]] = []
    labels: list[str] = []
    kept: list[int] = []
    count = 0
    for number, line in layouts.numbered_rows(chunk):
        fields = layouts.split(line, layout.delimiter, layout.path, number)
        if len(fields) != layout.count:
            raise DataError(
                f"{layout.path}, line {number}: found {len(fields)} fields, expected "
                f"{layout.count} as in the first line; fill in or quote what is missing, or say "
                f"delimiter=… if fields are not cut at {layout.delimiter!r}"
            )
        count += 1
        if layout.gaps and any(is_missing(fields[j]) for j in layout.chosen):
            continue
        kept.append(count - 1)
        values.append(_row(fields, line, number, layout))
        if layout.label is not None:
            labels.append(fields[layout.label])
    rows = np.array(values, dtype=layout.dtype).reshape(-1, len(layout.chosen))
    tags = None if layout.label is None else _labels(labels)
    return rows, tags, np.array(kept, np.intp), count


def _row(fields: list[str], line: str, number: int, layout: Layout) -> list[float]:
    """Numbers of a line: at once if they are as usual, else with a closer look at each."""
    if line.isascii() and "_" not in line:
        with suppress(ValueError):
            values = [float(fields[j]) for j in layout.chosen]
            if sum(map(abs, values)) < SURELY:  # not so where one is nan
                return values
    return [_value(fields[j], j, number, layout) for j in layout.chosen]


def _value(field: str, column: int, line: int, layout: Layout) -> float:
    value = layouts.number_in(field)
    with np.errstate(over="ignore"):
        if value is not None and np.isfinite(layout.dtype.type(value)):
            return value
    called = layout.called(column)
    where = f"{layout.path}, line {line}, column {called!r}"
    if is_missing(field):
        raise DataError(
            f"{where}: the value is missing ({show(field)}); leave out such rows with "
            f"missing='drop', or the column with drop=[{called!r}], or fill it in"
        )
    if value is not None:
        raise DataError(
            f"{where}: {show(field)} is not finite as {layout.dtype}; fill in a number, or remove "
            f"the row or, with drop=[{called!r}], the column"
        )
    raise DataError(
        f"{where}: {show(field)} is not a number; {layouts.remedy(field, repr(called))}"
    )
