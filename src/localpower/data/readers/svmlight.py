"""svmlight and LIBSVM text: ``label index:value index:value …`` a line, or the same without labels.

Most text is read by a fast path over whole chunks. A chunk with anything unusual in it goes line by
line, which also finds the line that an error is reported for.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError
from localpower.data.blocks import Block, Options
from localpower.data.readers.text import (
    Chunk,
    arrow,
    count_lines,
    parse_in_order,
    read_chunks,
    show,
)

MAX_INDEX = 2**31 - 2  # indices are kept as int32
WORD_A_LINE = bytes.maketrans(b" \t\v\f", b"\n\n\n\n")
FORMS = {True: "'label index:value index:value …'", False: "'index:value index:value …'"}


class Entries(NamedTuple):
    """Some rows: how many entries each has, their indices and values, and the labels."""

    counts: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[Any]
    labels: NDArray[Any]


class Numbers(NamedTuple):
    """What values may be: finite as `dtype`, or nan if there may be `gaps`."""

    dtype: np.dtype[Any]
    gaps: bool

    def cast(self, values: Any) -> NDArray[Any] | None:
        """Values of the type, if they may be so; else None."""
        with np.errstate(over="ignore"):
            found = np.asarray(values, np.float64).astype(self.dtype, copy=False)
        bad = np.isinf(found) if self.gaps else ~np.isfinite(found)
        return None if bad.any() else found


def read_svmlight(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of a file as CSR blocks, with indices as written: from 0 or from 1.

    A block is as wide as its largest index needs. Labels are numbers, or text in blocks where a row
    has none or several with commas between; `text.join_labels` joins both.
    """
    labelled, numbers = _has_labels(path), Numbers(options.work_type(), options.gaps)
    parse = partial(_parse, labelled=labelled, numbers=numbers, path=path)
    for entries in parse_in_order(parse, read_chunks(path)):
        if len(entries.counts):
            yield _block(entries, labelled)


def _has_labels(path: Path) -> bool:
    """Tell from the first line. One that starts with a blank may lack a label that others have."""
    rows = False
    for chunk in read_chunks(path):
        for line in io.BytesIO(chunk.data):
            words = line.partition(b"#")[0].split(None, 1)
            if words and (b":" not in words[0] or words[0].startswith(b"qid:")):
                return True
            if words and not line[:1].isspace():
                return False
            rows = rows or bool(words)
    if not rows:
        raise DataError(f"{path}: the file is empty; expected lines of {FORMS[True]}")
    return False


def _block(entries: Entries, labelled: bool) -> Block:
    from scipy.sparse import csr_array

    counts, index, value, labels = entries
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    width = int(index.max(initial=-1)) + 1
    rows = csr_array((value, index, indptr), shape=(len(counts), width))
    rows.has_canonical_format = True
    return Block(rows, labels if labelled else None)


def _parse(chunk: Chunk, labelled: bool, numbers: Numbers, path: Path) -> Entries:
    return (
        _parse_fast(chunk.data, labelled, numbers, arrow())
        or _parse_words(chunk.data, labelled, numbers)
        or _parse_lines(chunk, labelled, numbers, path)
    )


def _parse_fast(data: bytes, labelled: bool, numbers: Numbers, pa: Any) -> Entries | None:
    """Parse plain lines at once; None if any needs a closer look.

    Each word goes to a line of its own, labels as ``:label``: these two columns are what pyarrow
    parses fastest. Every line has one such label at least, so if there are as many as lines, no
    entry lacks its index.
    """
    start = b"\n:" if labelled else b"\n:0\n"
    words = (start + data[:-1].replace(b"\n", start)).translate(WORD_A_LINE)
    if pa is None or any(map(words.__contains__, (b"x", b"X", b"("))):  # as 0x1 and nan(a)
        return None
    types = {"index": pa.int32(), "value": pa.float64()}
    read = pa.csv.ReadOptions(
        use_threads=False, block_size=len(words) + 1, column_names=list(types)
    )
    parse = pa.csv.ParseOptions(delimiter=":", quote_char=False)
    convert = pa.csv.ConvertOptions(column_types=types, null_values=[""])
    try:
        table = pa.csv.read_csv(pa.BufferReader(words), read, parse, convert)
    except pa.ArrowInvalid:
        return None
    indices, values = (column.combine_chunks() for column in table.columns)
    is_label = indices.is_null().to_numpy(zero_copy_only=False)
    at = np.flatnonzero(is_label)
    if values.null_count or len(at) != count_lines(data):
        return None
    index, value = indices.fill_null(0).to_numpy(), values.to_numpy()
    counts = np.diff(at, append=len(index)) - 1
    if numbers.cast(value) is None or not (labelled or counts.all()):  # an empty line is no row
        return None
    return _entries(counts, index[~is_label], value[~is_label], value[at], numbers)


def _parse_words(data: bytes, labelled: bool, numbers: Numbers) -> Entries | None:
    """Parse lines that may have comments or query ids; None if any needs a closer look."""
    try:
        rows = [row for line in data.split(b"\n") if (row := _split(line, labelled)) is not None]
        words = [rest.split() for _, rest in rows]
        pairs = [word.partition(b":") for row in words for word in row]
        index = np.array([int(i) for i, _, _ in pairs], dtype=np.int32)
        value = np.array([float(x) for _, _, x in pairs], dtype=np.float64)
    except (OverflowError, ValueError):
        return None
    if any(b"_" in rest for _, rest in rows):  # which Python takes in numbers
        return None
    counts = np.array([len(row) for row in words], dtype=np.int64)
    return _entries(counts, index, value, _labels([label for label, _ in rows]), numbers)


def _entries(
    counts: NDArray[np.int64],
    index: NDArray[np.int32],
    value: NDArray[np.float64],
    labels: NDArray[Any],
    numbers: Numbers,
) -> Entries | None:
    """Put the entries of each row in order; None if they break a rule."""
    cast = numbers.cast(value)
    if cast is None or index.min(initial=0) < 0 or index.max(initial=0) > MAX_INDEX:
        return None
    if not _rising(counts, index):
        order = np.lexsort((index, np.repeat(np.arange(len(counts)), counts)))
        index, cast = index[order], cast[order]
        if not _rising(counts, index):
            return None
    return Entries(counts, index, cast, labels)


def _rising(counts: NDArray[np.int64], index: NDArray[np.int32]) -> bool:
    rising = np.concatenate([[True], index[1:] > index[:-1], [True]])
    rising[np.cumsum(counts)] = True  # where a row starts
    return bool(rising.all())


def _split(line: bytes, labelled: bool) -> tuple[bytes, bytes] | None:
    """Label and entries of a line; None if there is nothing but a comment."""
    text = line.partition(b"#")[0]
    words = text.split(None, 1)
    if not words:
        return None
    label = b""
    if labelled and not (b":" in words[0] and text[:1].isspace()):
        label, text = words[0], b"".join(words[1:])
        _check_label(label)
    if labelled and text.lstrip().startswith(b"qid:"):
        text = b"".join(text.split(None, 1)[1:])
    return label, text


def _check_label(label: bytes) -> None:
    """Refuse a first word that is not a number, or several with commas between."""
    try:
        for part in label.replace(b"_", b"?").split(b","):
            float(part)
    except ValueError:
        raise ValueError(f"{show(label)} stands where the label should") from None


def _labels(labels: list[bytes]) -> NDArray[Any]:
    try:
        return np.array([float(label) for label in labels])
    except ValueError:
        return np.array([label.decode() for label in labels])


def _parse_lines(chunk: Chunk, labelled: bool, numbers: Numbers, path: Path) -> Entries:
    rows: list[list[tuple[int, float]]] = []
    labels: list[bytes] = []
    for number, line in enumerate(io.BytesIO(chunk.data), start=chunk.line):
        try:
            split = _split(line, labelled)
            if split is None:
                continue
            rows.append(_row(split[1], numbers))
            labels.append(split[0])
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}; expected {FORMS[labelled]}") from None
    return Entries(
        np.array([len(row) for row in rows], dtype=np.int64),
        np.array([index for row in rows for index, _ in row], dtype=np.int32),
        np.array([value for row in rows for _, value in row], dtype=numbers.dtype),
        _labels(labels),
    )


def _row(text: bytes, numbers: Numbers) -> list[tuple[int, float]]:
    row = sorted(_entry(word, numbers) for word in text.split())
    for (index, _), (following, _) in pairwise(row):
        if index == following:
            raise ValueError(f"index {index} occurs twice")
    return row


def _entry(word: bytes, numbers: Numbers) -> tuple[int, float]:
    index, colon, value = word.partition(b":")
    try:
        pair = int(index), float(value)
    except ValueError:
        raise ValueError(f"{show(word)} is not index:value") from None
    if not colon or b"_" in word:
        raise ValueError(f"{show(word)} is not index:value")
    if not 0 <= pair[0] <= MAX_INDEX:
        raise ValueError(f"index {pair[0]} is not between 0 and {MAX_INDEX}")
    if numbers.cast(pair[1]) is None:
        raise ValueError(f"{show(word)} is not finite as {numbers.dtype}")
    return pair
