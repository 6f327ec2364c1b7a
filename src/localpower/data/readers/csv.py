"""CSV, TSV and other text with a row a line, in dense blocks; values are those of `float`.

Most text is read by a fast path over whole chunks. A chunk with anything unusual in it goes line by
line, which also finds the line that an error is reported for.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError, DataHint, warn
from localpower.data.blocks import Block, Options, choose, refuse_twins
from localpower.data.readers.text import (
    Chunk,
    arrow,
    parse_in_order,
    read_chunks,
    show,
)
from localpower.worker.kernels import fields

DELIMITERS = ",\t;| "  # a blank stands for any run of blanks and tabs
SAMPLE, SAMPLE_SIZE = 50, 1 << 16  # lines and characters from which the layout is told
MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none", "?", "-"}
NO_ROW = re.compile(rb"(?m)^(?:#.*)?\n")

LONGEST = max(map(len, MISSING))
WORD = ~np.isin(np.arange(256), list(b"0123456789.+-"))  # bytes that no number starts with
SURELY = 1e38  # what is below is finite in float32, too

Parsed = tuple[NDArray[Any], NDArray[Any] | None, int]  # rows, labels, and how many are left out


@dataclass(frozen=True, slots=True)
class Layout:
    """What holds for all lines of a file."""

    path: Path
    delimiter: str
    names: tuple[str, ...] | None
    header: int  # the line of names, 0 if there is none
    count: int  # fields of a line
    chosen: list[int]
    label: int | None
    dtype: np.dtype[Any]
    gaps: bool  # whether rows with missing values are left out

    def called(self, number: int) -> str | int:
        """What a user calls the column."""
        return number if self.names is None else self.names[number]


def read_csv(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of a file as dense blocks.

    Labels are numbers in blocks where all are or are missing (nan), else text;
    `text.join_labels` joins both.
    """
    layout = _layout(path, options)
    taken = layout.names and tuple(layout.names[number] for number in layout.chosen)
    rows = left = 0
    for block, labels, gaps in parse_in_order(partial(_parse, layout=layout), read_chunks(path)):
        rows, left = rows + len(block), left + gaps
        if len(block):
            yield Block(block, labels, taken)
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


# The layout


def _layout(path: Path, options: Options) -> Layout:
    lines = _sample(path)
    if not lines:
        raise DataError(f"{path}: the file is empty; give one with at least one row")
    delimiter = _delimiter([text for _, text in lines], options)
    sample = [(number, _split(text, delimiter, path, number)) for number, text in lines]
    number, first = sample[0]
    has_names = _has_names([fields for _, fields in sample], options, path)
    names = tuple(name.strip() for name in first) if has_names else None
    chosen, label = choose(names, len(first), options, path)
    if names is not None:
        refuse_twins(names, chosen, path)
    if not chosen:
        raise DataError(f"{path}: no column is left of {len(first)}; drop fewer, or take others")
    dtype = options.work_type()
    header = number if has_names else 0
    gaps = options.missing == "drop"
    layout = Layout(path, delimiter, names, header, len(first), chosen, label, dtype, gaps)
    _refuse_text(layout, sample[1:] if has_names else sample)
    return layout


def _sample(path: Path) -> list[tuple[int, str]]:
    """Take some lines: two, and more as long as they are not much text."""
    lines: list[tuple[int, str]] = []
    size = 0
    with closing(_records(path)) as records:
        for number, line in islice(records, SAMPLE):
            lines.append((number, line))
            size += len(line)
            if len(lines) > 1 and size > SAMPLE_SIZE:
                break
    return lines


def _records(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield the lines that are rows or names, with their numbers."""
    with closing(read_chunks(path)) as chunks:
        for chunk in chunks:
            yield from _rows(chunk)


def _rows(chunk: Chunk) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(io.BytesIO(chunk.data), start=chunk.line):
        if line.strip() and not line.startswith(b"#"):
            yield number, _decode(line[:-1])


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _split(line: str, delimiter: str, path: Path, number: int) -> list[str]:
    if delimiter == " ":
        line = " ".join(line.split())
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {number}: the quotes are not as expected ({error}); a field ends in the "
            "line where it starts, and quotes inside are doubled"
        ) from None


def _split_loosely(line: str, delimiter: str) -> list[str]:
    try:
        return _split(line, delimiter, Path(), 0)
    except DataError:
        return line.split(delimiter)


def _delimiter(lines: list[str], options: Options) -> str:
    if options.delimiter is not None:
        given = options.delimiter
        if len(given) != 1 or given in '"\r\n#.+-' or given.isalnum() or not given.isascii():
            raise ValueError(f"delimiter={given!r} cannot be: give one character, as ',' or '\\t'")
        return given
    return max(DELIMITERS, key=lambda delimiter: _fit(lines, delimiter))


def _fit(lines: list[str], delimiter: str) -> tuple[bool, bool, float, int]:
    """How well a delimiter explains lines: several fields, as many in each, and numbers in them."""
    rows = [_split_loosely(line, delimiter) for line in lines]
    below = [field for row in rows[1:] or rows for field in row]
    numbers = sum(_is_number_like(field) or _has_comma(field) for field in below)
    several = len(rows[0]) > 1
    even = len({len(row) for row in rows}) == 1
    return several, even, several * numbers / len(below), several * numbers


def _has_names(sample: list[list[str]], options: Options, path: Path) -> bool:
    """Tell whether the first line holds names: words where there are numbers below."""
    if options.header is not None:
        return options.header
    first, below = sample[0], [row for row in sample[1:] if len(row) == len(sample[0])]
    asked = {*(options.columns or ()), *(options.drop or ()), *(options.like or ()), options.label}
    if any(isinstance(name, str) and name in first and not _is_number_like(name) for name in asked):
        return True
    if not below:
        return False
    numeric = [j for j, column in enumerate(zip(*below, strict=True)) if _are_numbers(column)]
    words = [first[j].strip() for j in numeric if not _is_number_like(first[j])]
    if len(words) == len(numeric) > 1 or any(word[0] not in "+-.0123456789" for word in words):
        return True  # one word with digits first may be a number with a slip
    return _has_counted_names(first, below, path)


def _has_counted_names(first: list[str], below: list[list[str]], path: Path) -> bool:
    """Tell whether 0, 1, 2, … are names, as data frames without any are written."""
    if len(first) < 2 or first != [str(j) for j in range(len(first))]:
        return False
    if any(not field.strip().lstrip("+-").isdigit() for row in below for field in row):
        return True
    if len(first) < 5:
        return False
    raise DataError(
        f"{path}: the first line is 0, 1, 2, …; say header=True if those are names, "
        "header=False if it is a row"
    )


def _are_numbers(column: Sequence[str]) -> bool:
    return not all(map(_is_missing, column)) and all(
        _is_number_like(field) or _has_comma(field) for field in column
    )


def _has_comma(field: str) -> bool:
    """Tell a number with a decimal comma."""
    return field.count(",") == 1 and _number(field.replace(",", ".")) is not None


def _is_number_like(field: str) -> bool:
    return _number(field) is not None or _is_missing(field)


def _is_missing(field: str) -> bool:
    return field.strip().lower() in MISSING


def _number(field: str) -> float | None:
    if "_" in field or not field.isascii():
        return None
    try:
        return float(field)
    except ValueError:
        return None


def _refuse_text(layout: Layout, sample: list[tuple[int, list[str]]]) -> None:
    """Name all chosen columns that hold no number in any line of the sample."""
    rows = [(number, row) for number, row in sample if len(row) == layout.count]
    text = [j for j in layout.chosen if _is_text([row[j] for _, row in rows])]
    if not text:
        return
    number, row = next((number, row) for number, row in rows if not _is_missing(row[text[0]]))
    named = ", ".join(repr(layout.called(j)) for j in text[:20]) + ", …" * (len(text) > 20)
    field = row[text[0]]
    what = f"{layout.path}: no numbers in column {named}, as {show(field)} in line {number}"
    if len(text) == len(layout.chosen) and not _has_comma(field):
        raise DataError(
            f"{what}, when fields are cut at {layout.delimiter!r}; say delimiter=… if that is "
            "wrong, or header=True if the first line is names"
        )
    raise DataError(f"{what}; {_remedy(field, named)}")


def _is_text(column: list[str]) -> bool:
    return not all(map(_is_missing, column)) and all(_number(field) is None for field in column)


def _remedy(field: str, columns: str) -> str:
    if _has_comma(field):
        return "write decimals with a point"
    return f"leave out what is not a number with drop=[{columns}] or columns=[…]"


# The rows


def _parse(chunk: Chunk, layout: Layout) -> Parsed:
    """Return the rows of a chunk, their labels, and how many rows were left out."""
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
        labels = _labels([_decode(data[a:b]) for a, b in pairs])
    return rows if full.all() else rows[full], labels, len(rows) - int(full.sum())


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
        gaps[at] = np.array([_is_missing(word.decode("latin-1")) for word in words])[which]
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
    numbers = [np.nan if _is_missing(field) else _number(field) for field in fields]
    if None in numbers:
        return np.array([field.strip() for field in fields], dtype=np.str_)
    return np.array(numbers, dtype=np.float64)


def _parse_lines(chunk: Chunk, layout: Layout) -> Parsed:
    values: list[list[float]] = []
    labels: list[str] = []
    left = 0
    for number, line in _rows(chunk):
        fields = _split(line, layout.delimiter, layout.path, number)
        if len(fields) != layout.count:
            raise DataError(
                f"{layout.path}, line {number}: found {len(fields)} fields, expected "
                f"{layout.count} as in the first line; fill in or quote what is missing, or say "
                f"delimiter=… if fields are not cut at {layout.delimiter!r}"
            )
        if layout.gaps and any(_is_missing(fields[j]) for j in layout.chosen):
            left += 1
            continue
        values.append(_row(fields, line, number, layout))
        if layout.label is not None:
            labels.append(fields[layout.label])
    rows = np.array(values, dtype=layout.dtype).reshape(-1, len(layout.chosen))
    return rows, None if layout.label is None else _labels(labels), left


def _row(fields: list[str], line: str, number: int, layout: Layout) -> list[float]:
    """Numbers of a line: at once if they are as usual, else with a closer look at each."""
    if line.isascii() and "_" not in line:
        with suppress(ValueError):
            values = [float(fields[j]) for j in layout.chosen]
            if all(-SURELY < value < SURELY for value in values):
                return values
    return [_value(fields[j], j, number, layout) for j in layout.chosen]


def _value(field: str, column: int, line: int, layout: Layout) -> float:
    value = _number(field)
    with np.errstate(over="ignore"):
        if value is not None and np.isfinite(layout.dtype.type(value)):
            return value
    called = layout.called(column)
    where = f"{layout.path}, line {line}, column {called!r}"
    if _is_missing(field):
        raise DataError(
            f"{where}: the value is missing ({show(field)}); leave out such rows with "
            f"missing='drop', or the column with drop=[{called!r}], or fill it in"
        )
    if value is not None:
        raise DataError(
            f"{where}: {show(field)} is not finite as {layout.dtype}; fill in a number, or remove "
            f"the row or, with drop=[{called!r}], the column"
        )
    raise DataError(f"{where}: {show(field)} is not a number; {_remedy(field, repr(called))}")
