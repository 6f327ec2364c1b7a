"""The layout of CSV: what separates fields, whether there are names, which columns are taken."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.data.blocks import Options, choose, refuse_twins
from localpower.data.readers.text import Chunk, read_chunks, show

DELIMITERS = ",\t;| "  # a blank stands for any run of blanks and tabs
SAMPLE, SAMPLE_SIZE = 50, 1 << 16  # lines and characters from which the layout is told
COMMENT = re.compile(rb"#(?![nN]/[aA])")  # what a line that may be no row starts with
MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none", "?", "-"}
Record = tuple[int, list[str]]  # the number of a line, and its fields
WORDS = {"true": 1.0, "false": 0.0} | dict.fromkeys([*MISSING, '""'], float("nan"))


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
    gaps: bool  # whether values may be missing

    @property
    def comments(self) -> bool:
        """Whether a line that starts with # can be no row, as its first field must be a number."""
        return 0 in self.chosen or self.count == 1

    def called(self, number: int) -> str | int:
        """What a user calls the column."""
        return number if self.names is None else self.names[number]


def find_layout(path: Path, options: Options) -> Layout:
    """Tell how a file is laid out, from its first lines and what was asked for."""
    lines, hashed = _sample(path)
    if not lines:
        raise DataError(f"{path}: the file is empty; give one with at least one row")
    delimiter = _delimiter([text for _, text in lines], options)
    sample = [(number, split(text, delimiter, path, number)) for number, text in lines]
    others = [(number, _split_loosely(text, delimiter)) for number, text in hashed]
    sample = _with_hashed(sample, others, options, path)
    number, first = sample[0]
    has_names = _has_names([fields for _, fields in sample], options, path)
    names = tuple(name.strip() for name in first) if has_names else None
    chosen, label = choose(names, len(first), options, path)
    if names is not None:
        refuse_twins(names, chosen, path)
    if not chosen:
        raise DataError(f"{path}: none of the {len(first)} columns is left; drop fewer")
    dtype = options.work_type()
    header = number if has_names else 0
    layout = Layout(path, delimiter, names, header, len(first), chosen, label, dtype, options.gaps)
    _refuse_text(layout, sample[1:] if has_names else sample)
    return layout


def _sample(path: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Take some lines: two, and more as long as they are not much text.

    Lines that start with # are apart: the last one before all others, and those between them.
    """
    lines: list[tuple[int, str]] = []
    hashed: list[tuple[int, str]] = []
    size = 0
    with closing(_records(path)) as records:
        for number, line in records:
            if is_hashed(line):
                hashed = [*(hashed if lines else ()), (number, line)]
            else:
                lines.append((number, line))
                size += len(line)
            enough = len(lines) > 1 and size > SAMPLE_SIZE
            if enough or max(len(lines), len(hashed)) == SAMPLE:
                break
    return lines, hashed


def _with_hashed(
    sample: list[Record], hashed: list[Record], options: Options, path: Path
) -> list[Record]:
    """Add lines that start with # and are no comments: names as ``#id,a,b``, and ids as ``#17``.

    Those are taken for names that have no blank after # and are above rows. Others may be rows if
    nothing else can be.
    """
    number, first = sample[0]
    alike = [(n, fields) for n, fields in hashed if len(fields) == len(first) > 1]
    above = [(n, fields) for n, fields in alike if n < number and fields[0][1:2].strip()]
    wanted = above and options.header is not False
    guess = replace(options, header=None)
    if wanted and not _has_names([fields for _, fields in sample], guess, path):
        return [*above, *sample]
    return sample if len(sample) > 1 else [*sample, *(pair for pair in alike if pair[0] > number)]


def _records(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield the lines that are not empty, with their numbers."""
    with closing(read_chunks(path)) as chunks:
        for chunk in chunks:
            yield from numbered_lines(chunk)


def numbered_lines(chunk: Chunk) -> Iterator[tuple[int, str]]:
    """Yield the lines of a chunk that are not empty, with their numbers."""
    for number, line in enumerate(io.BytesIO(chunk.data), start=chunk.line):
        if line.strip():
            yield number, decode(line[:-1])


def numbered_rows(chunk: Chunk, layout: Layout) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the lines of a chunk that are no comments: number, text and fields of each."""
    for number, line in numbered_lines(chunk):
        hashed = is_hashed(line)
        if hashed and layout.comments:
            continue
        fields = split(line, layout.delimiter, layout.path, number)
        if not hashed or len(fields) == layout.count:
            yield number, line, fields


def is_hashed(line: str) -> bool:
    """Tell a line that may be a comment."""
    return line.startswith("#") and COMMENT.match(line.encode()) is not None


def decode(line: bytes) -> str:
    """Read text in UTF-8, or else in Latin-1."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def split(line: str, delimiter: str, path: Path, number: int) -> list[str]:
    """Cut a line into fields, without the quotes around them."""
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
        return split(line, delimiter, Path(), 0)
    except DataError:
        return line.split(delimiter)


def _delimiter(lines: list[str], options: Options) -> str:
    if options.delimiter is not None:
        given = options.delimiter
        if len(given) != 1 or given in '"\r\n#.+-' or given.isalnum() or not given.isascii():
            raise ValueError(
                f"delimiter={given!r} cannot separate fields: give one character, as ',' or '\\t'"
            )
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
    return not all(map(is_missing, column)) and all(
        _is_number_like(field) or _has_comma(field) for field in column
    )


def _has_comma(field: str) -> bool:
    """Tell a number with a decimal comma."""
    return field.count(",") == 1 and number_in(field.replace(",", ".")) is not None


def _is_number_like(field: str) -> bool:
    return number_in(field) is not None or meaning(field) is not None


def meaning(field: str) -> float | None:
    """What a word means: nan if it says that there is no value; None if it means nothing."""
    return WORDS.get(field.strip().lower())


def is_missing(field: str) -> bool:
    """Tell a field without a value."""
    return field.strip().lower() in MISSING


def number_in(field: str) -> float | None:
    """Read a number as `float` does, but only in plain digits; None if it is none."""
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
    text = [j for j in text if any(_has_comma(row[j]) for _, row in rows)] or text
    number, row = next((number, row) for number, row in rows if not is_missing(row[text[0]]))
    named = ", ".join(repr(layout.called(j)) for j in text[:20]) + ", …" * (len(text) > 20)
    field = row[text[0]]
    what = f"{layout.path}: no numbers in column {named}, as {show(field)} in line {number}"
    if len(text) == len(layout.chosen) and not _has_comma(field):
        raise DataError(
            f"{what}, when fields are cut at {layout.delimiter!r}; say delimiter=… if that is "
            "wrong, or header=True if the first line is names"
        )
    raise DataError(f"{what}; {remedy(field, named)}")


def _is_text(column: list[str]) -> bool:
    return not all(map(is_missing, column)) and not any(map(_is_value, column))


def _is_value(field: str) -> bool:
    return _is_number_like(field) and not is_missing(field)


def remedy(field: str, columns: str) -> str:
    """Say what to do about a field that is no number."""
    if _has_comma(field):
        return (
            "write decimals with a point, or give the frame that pandas.read_csv(…, sep=…, "
            "decimal=',') reads"
        )
    return f"leave out what is not a number with drop=[{columns}] or columns=[…]"
