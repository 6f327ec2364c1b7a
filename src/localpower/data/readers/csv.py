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

from localpower.core.errors import DataError
from localpower.data.blocks import Block, Options
from localpower.data.readers import csv_layout as layouts
from localpower.data.readers.csv_layout import Layout, is_missing
from localpower.data.readers.text import Chunk, arrow, parse_in_order, read_chunks, show
from localpower.worker.kernels import fields

NO_ROW = re.compile(rb"(?m)^(?:%s.*)?\n" % layouts.COMMENT.pattern)
EMPTY = re.compile(rb"(?m)^\n")
SHORT = max(map(len, layouts.WORDS))
LETTER = ~np.isin(np.arange(256), list(b"0123456789.+-"))  # bytes that no number starts with
SURELY = 1e38  # what is below is finite in float32, too

Parsed = tuple[NDArray[Any], NDArray[Any] | None]  # rows, and labels


def read_csv(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of a file as dense blocks; if gaps are allowed, they are nan.

    Labels are numbers in blocks where all are or are missing (nan), else text;
    `text.join_labels` joins both.
    """
    layout = layouts.find_layout(path, options)
    taken = layout.names and tuple(layout.names[number] for number in layout.chosen)
    rows = 0
    for block, labels in parse_in_order(partial(_parse, layout=layout), read_chunks(path)):
        rows += len(block)
        if len(block):
            yield Block(block, labels, taken)
    if not rows:
        raise DataError(
            f"{path}: there is no row below the header, line {layout.header}; say header=False if "
            "that line is a row"
        )


def _parse(chunk: Chunk, layout: Layout) -> Parsed:
    """Return the rows of a chunk, and their labels."""
    chunk = below_header(chunk, layout.header)
    pa = arrow()
    fast = None if pa is None else _parse_fast(chunk.data, layout, pa)
    return _parse_lines(chunk, layout) if fast is None else fast


def below_header(chunk: Chunk, header: int) -> Chunk:
    """Leave out the lines up to the header."""
    skip = header + 1 - chunk.line
    if skip <= 0:
        return chunk
    return Chunk(header + 1, b"".join(chunk.data.split(b"\n", skip)[skip:]))


def _parse_fast(data: bytes, layout: Layout, pa: Any) -> Parsed | None:
    """Parse lines at once; None if any needs a closer look."""
    offsets = field_offsets(data, layout)
    if offsets is None:
        data = _plain(data, layout)
        offsets = field_offsets(data, layout)
    if offsets is None:
        return None
    words, meant = _words(data, offsets, layout)
    gaps = np.isnan(meant)
    if gaps.any() and not layout.gaps:
        return None
    values = _values(data, offsets, layout, pa, words, meant)
    if values is None:
        return None
    with np.errstate(over="ignore"):
        rows = values.astype(layout.dtype, copy=False)
    times = np.bincount(layout.chosen, minlength=layout.count)  # a column may be taken twice
    if np.count_nonzero(~np.isfinite(rows)) != times[words[gaps] % layout.count].sum():
        return None
    labels = None
    if layout.label is not None:
        starts, stops = (offsets[2 * layout.label + k : -1 : 2 * layout.count] for k in (0, 1))
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        labels = _labels([layouts.decode(data[a:b]) for a, b in pairs])
    return rows, labels


def _plain(data: bytes, layout: Layout) -> bytes:
    """Take off what numbers do not need: comments, empty lines, quotes, and blanks around them.

    A delimiter in quotes becomes a letter, so that what was quoted is no number; but not where
    labels are wanted as they are.
    """
    mark = re.escape(layout.delimiter.encode())
    if (layout.comments and b"#" in data) or b"\n\n" in data or data.startswith(b"\n"):
        data = (NO_ROW if layout.comments else EMPTY).sub(b"", data)
    if layout.delimiter == " ":
        data = data.replace(b"\t", b" ")
    cut = layout.delimiter.encode()
    if b'"' in data:
        inside = rb'[^"\n]*' if layout.label is None else rb'[^"\n%s]*' % mark
        quoted = re.compile(rb'(?m)(^|%s) *"(%s)"(?=%s|$)' % (mark, inside, mark))
        data = quoted.sub(lambda found: found[1] + found[2].replace(cut, b"x"), data)
    if b" " not in data:
        return data
    before, after, _ = _runs(data, " ", layout.delimiter)
    if (before | after).all():  # no blank is inside of a field
        return data.translate(None, b" ")
    for end in (cut, b"\n"):
        for blank in (b" " + end, end + b" "):
            while blank in data:
                data = data.replace(blank, end)
    return data.lstrip(b" ")


def _runs(data: bytes, mark: str, delimiter: str) -> tuple[NDArray[Any], ...]:
    """Of runs of a byte: whether a field starts before them, and ends after, and their lengths."""
    text = np.frombuffer(data, np.uint8)  # which ends with a newline, also before its first byte
    at = np.flatnonzero(text == ord(mark))
    breaks = np.flatnonzero(np.diff(at) > 1)
    starts, stops = at[np.r_[0, breaks + 1]], at[np.r_[breaks, len(at) - 1]]
    ends = list(f"{delimiter}\n".encode())
    return np.isin(text[starts - 1], ends), np.isin(text[stops + 1], ends), stops - starts + 1


def field_offsets(data: bytes, layout: Layout) -> NDArray[np.int32] | None:
    """Where fields start and end; None if lines are not plain, or not all of one length."""
    if b'"' in data:
        before, after, lengths = _runs(data, '"', layout.delimiter)
        if layout.label is not None or not (before & after & (lengths == 2)).all():
            return None  # quotes around nothing are a word
    if layout.comments and b"#" in data and re.search(rb"(?m)^%s" % layouts.COMMENT.pattern, data):
        return None
    if layout.count == 1 and (data.startswith(b"\n") or b"\n\n" in data):
        return None  # an empty line is no row
    return fields(data, ord(layout.delimiter), layout.count)


def _words(
    data: bytes, offsets: NDArray[np.int32], layout: Layout
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Which fields, of the columns wanted, are words with a meaning, and what each means."""
    starts = offsets[:-1:2]
    lengths = offsets[1::2] - starts
    at = np.flatnonzero(lengths <= SHORT)
    text = np.frombuffer(data, np.uint8)
    first, length = text[starts[at]], lengths[at]
    at = at[LETTER[first] | (length == 0) | ((length == 1) & (first == ord("-")))]
    if len(layout.chosen) < layout.count:
        at = at[np.isin(at % layout.count, layout.chosen)]
    if not len(at):
        return at, np.empty(0)
    letters = np.zeros((len(at), 8), np.uint8)
    for place in range(SHORT):
        here = lengths[at] > place
        letters[here, place] = text[starts[at[here]] + place]
    codes, which = np.unique(letters.view(np.uint64).ravel(), return_inverse=True)
    kinds = codes.view("S8").tolist()
    found = [layouts.meaning(kind.decode("latin-1")) for kind in kinds]
    known = np.array([value is not None for value in found])[which]
    return at[known], np.array(found, dtype=np.float64)[which][known]


def _values(
    data: bytes,
    offsets: NDArray[np.int32],
    layout: Layout,
    pa: Any,
    words: NDArray[np.intp],
    meant: NDArray[np.float64],
) -> NDArray[np.float64] | None:
    """Cast fields to numbers where they stand, but for words, which are known.

    Fields and delimiters in turn are the strings of an array in which all are null but the fields
    wanted. That takes half the time of parsing the text once more.
    """
    wanted = np.zeros((layout.count, 2), np.bool_)
    wanted[layout.chosen, 0] = True
    rows = len(offsets) // (2 * layout.count)
    valid = np.tile(wanted.ravel(), rows)
    valid[2 * words] = False
    bits = np.packbits(valid, bitorder="little")
    buffers = [pa.py_buffer(part) for part in (bits, offsets, data)]
    strings = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    try:
        cast = strings.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    values = np.frombuffer(cast.buffers()[1], np.float64, len(offsets) - 1)
    values = values.reshape(rows, layout.count, 2)[:, :, 0]
    if layout.chosen == list(range(layout.count)):
        values = values.copy()
        values.flat[words] = meant
        return values
    values = values[:, layout.chosen]
    for place, column in enumerate(layout.chosen if len(words) else ()):
        mine = words % layout.count == column
        values[words[mine] // layout.count, place] = meant[mine]
    return values


def _labels(fields: list[str]) -> NDArray[Any]:
    numbers = [np.nan if is_missing(field) else layouts.number_in(field) for field in fields]
    if None in numbers:
        return np.array([field.strip() for field in fields], dtype=np.str_)
    return np.array(numbers, dtype=np.float64)


def _parse_lines(chunk: Chunk, layout: Layout) -> Parsed:
    values: list[list[float]] = []
    labels: list[str] = []
    for number, line, found in layouts.numbered_rows(chunk, layout):
        if len(found) != layout.count:
            raise DataError(
                f"{layout.path}, line {number}: found {len(found)} fields, expected "
                f"{layout.count} as in the first line; fill in or quote what is missing, or say "
                f"delimiter=… if fields are not cut at {layout.delimiter!r}"
            )
        values.append(_row(found, line, number, layout))
        if layout.label is not None:
            labels.append(found[layout.label])
    rows = np.array(values, dtype=layout.dtype).reshape(-1, len(layout.chosen))
    return rows, None if layout.label is None else _labels(labels)


def _row(fields: list[str], line: str, number: int, layout: Layout) -> list[float]:
    """Numbers of a line: at once if they are as usual, else with a closer look at each."""
    if line.isascii() and "_" not in line:
        with suppress(ValueError):
            values = [float(fields[j]) for j in layout.chosen]
            if sum(map(abs, values)) < SURELY:  # not so where one is nan
                return values
    return [_value(fields[j], j, number, layout) for j in layout.chosen]


def _value(field: str, column: int, line: int, layout: Layout) -> float:
    value, word = layouts.number_in(field), layouts.meaning(field)
    if word is not None and (layout.gaps or word == word):
        return word
    with np.errstate(over="ignore"):
        if value is not None and np.isfinite(layout.dtype.type(value)):
            return value
    called = layout.called(column)
    where = f"{layout.path}, line {line}, column {called!r}"
    if is_missing(field):
        raise DataError(
            f"{where}: the value is missing ({show(field)}); leave out such rows with "
            f"missing='drop', fill it in with missing='mean', or fit without the column, with "
            f"drop=[{called!r}]"
        )
    if value is not None:
        raise DataError(
            f"{where}: {show(field)} is not finite as {layout.dtype}; fill in a number, or remove "
            f"the row or, with drop=[{called!r}], the column"
        )
    raise DataError(
        f"{where}: {show(field)} is not a number; {layouts.remedy(field, repr(called))}"
    )
