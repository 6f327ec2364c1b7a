"""svmlight and LIBSVM text: ``label index:value index:value …`` a line, or the same without labels.

Most text is read by a fast path over whole chunks. A chunk with anything unusual in it goes line by
line, which also finds the line that an error is reported for.
"""

from __future__ import annotations

import io
import warnings
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
MARK = MAX_INDEX + 1  # stands for the index before a label
WORD_A_LINE = bytes.maketrans(b" \t\v\f", b"\n\n\n\n")
FORMS = {True: "'label index:value index:value …'", False: "'index:value index:value …'"}


class Entries(NamedTuple):
    """Some rows: how many entries each has, their indices and values, and the labels."""

    counts: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[Any]
    labels: NDArray[Any]


def read_svmlight(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of a file as CSR blocks, with indices as written: from 0 or from 1.

    A block is as wide as its largest index needs. Labels are numbers, or text in blocks where a row
    has none or several with commas between; `text.join_labels` joins both.
    """
    dtype = options.work_type()
    labelled = _has_labels(path)
    parse = partial(_parse, labelled=labelled, dtype=dtype, path=path)
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


def _parse(chunk: Chunk, labelled: bool, dtype: np.dtype[Any], path: Path) -> Entries:
    return (
        _parse_fast(chunk.data, labelled, dtype)
        or _parse_tidied(chunk.data, labelled, dtype)
        or _parse_lines(chunk, labelled, dtype, path)
    )


def _parse_fast(data: bytes, labelled: bool, dtype: np.dtype[Any]) -> Entries | None:
    """Parse plain lines at once; None if any needs a closer look."""
    entries = _parse_words(data, b"\n:" if labelled else b"\n:0\n", dtype)
    if entries is not None and not labelled and not entries.counts.all():
        return None  # an empty line is no row
    return entries


def _parse_words(data: bytes, start: bytes, dtype: np.dtype[Any]) -> Entries | None:
    """Parse lines once `start` stands for each newline.

    Each word goes to a line of its own, labels as ``:label``: these two columns are what libraries
    parse fastest. Every line has one such label at least, so if there are as many as lines, no
    entry lacks its index.
    """
    words = (start + data[:-1].replace(b"\n", start)).translate(WORD_A_LINE)
    columns = _columns(words)
    if columns is None:
        return None
    index, value, is_label = columns
    at = np.flatnonzero(is_label)
    if len(at) != count_lines(data) or not np.isfinite(value).all():
        return None
    counts = np.diff(at, append=len(index)) - 1
    return _entries(counts, index[~is_label], value[~is_label], value[at], dtype)


Columns = tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.bool_]]


def _columns(words: bytes) -> Columns | None:
    """Parse lines of ``index:value``; where the index is empty, the value is a label."""
    pa = arrow()
    return _columns_numpy(words) if pa is None else _columns_arrow(words, pa)


def _columns_arrow(words: bytes, pa: Any) -> Columns | None:
    if b"x" in words or b"X" in words:
        return None  # hexadecimal indices would be taken
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
    index, value = (column.combine_chunks() for column in table.columns)
    if value.null_count:
        return None
    is_label = index.is_null().to_numpy(zero_copy_only=False)
    return index.fill_null(0).to_numpy(), value.to_numpy(), is_label


def _columns_numpy(words: bytes) -> Columns | None:
    marked = words.replace(b"\n:", b"\n%d:" % MARK)
    text = np.frombuffer(marked + b"\n", np.uint8)
    ends = text == 10
    first = np.flatnonzero(~ends[1:] & ends[:-1]) + 1
    colon = np.flatnonzero(text == 58)
    if len(first) != len(colon) or ends[colon + 1].any():
        return None
    other = np.flatnonzero((text < 48) | (text > 57))
    before = other[np.searchsorted(other, colon) - 1]  # what is no digit, last before the colon
    if not np.array_equal(before, first - 1):
        return None  # not one colon in every word, with digits before it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            numbers = np.fromstring(marked.replace(b":", b" ").decode("ascii"), sep=" ")
    except (ValueError, DeprecationWarning):
        return None
    # Each word holds two numbers or more, so none holds more if there are two a word.
    if numbers.size != 2 * len(first) or not (numbers[::2] <= MARK).all():
        return None
    index = numbers[::2].astype(np.int32)
    return index, numbers[1::2], index == MARK


def _entries(
    counts: NDArray[np.int64],
    index: NDArray[np.int32],
    value: NDArray[np.float64],
    labels: NDArray[Any],
    dtype: np.dtype[Any],
) -> Entries | None:
    """Put the entries of each row in order; None if they break a rule."""
    with np.errstate(over="ignore"):
        value = value.astype(dtype, copy=False)
    if index.min(initial=0) < 0 or index.max(initial=0) > MAX_INDEX:
        return None
    if not np.isfinite(value).all():
        return None
    if not _rising(counts, index):
        order = np.lexsort((index, np.repeat(np.arange(len(counts)), counts)))
        index, value = index[order], value[order]
        if not _rising(counts, index):
            return None
    return Entries(counts, index, value, labels)


def _rising(counts: NDArray[np.int64], index: NDArray[np.int32]) -> bool:
    rising = np.concatenate([[True], index[1:] > index[:-1], [True]])
    rising[np.cumsum(counts)] = True  # where a row starts
    return bool(rising.all())


def _parse_tidied(data: bytes, labelled: bool, dtype: np.dtype[Any]) -> Entries | None:
    """Take labels, comments and query ids off the lines, then parse the entries at once."""
    try:
        rows = [row for line in data.split(b"\n") if (row := _split(line, labelled)) is not None]
    except ValueError:
        return None
    labels = _labels([label for label, _ in rows])
    if not rows:
        return Entries(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, dtype), labels)
    text = b"\n".join([rest for _, rest in rows]) + b"\n"
    entries = _parse_words(text, b"\n:0\n", dtype)
    return None if entries is None else entries._replace(labels=labels)


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


def _parse_lines(chunk: Chunk, labelled: bool, dtype: np.dtype[Any], path: Path) -> Entries:
    rows: list[list[tuple[int, float]]] = []
    labels: list[bytes] = []
    for number, line in enumerate(io.BytesIO(chunk.data), start=chunk.line):
        try:
            split = _split(line, labelled)
            if split is None:
                continue
            rows.append(_row(split[1], dtype))
            labels.append(split[0])
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}; expected {FORMS[labelled]}") from None
    return Entries(
        np.array([len(row) for row in rows], dtype=np.int64),
        np.array([index for row in rows for index, _ in row], dtype=np.int32),
        np.array([value for row in rows for _, value in row], dtype=dtype),
        _labels(labels),
    )


def _row(text: bytes, dtype: np.dtype[Any]) -> list[tuple[int, float]]:
    row = sorted(_entry(word, dtype) for word in text.split())
    for (index, _), (following, _) in pairwise(row):
        if index == following:
            raise ValueError(f"index {index} occurs twice")
    return row


def _entry(word: bytes, dtype: np.dtype[Any]) -> tuple[int, float]:
    index, colon, value = word.partition(b":")
    try:
        pair = int(index), float(value)
    except ValueError:
        raise ValueError(f"{show(word)} is not index:value") from None
    if not colon or b"_" in word:
        raise ValueError(f"{show(word)} is not index:value")
    if not 0 <= pair[0] <= MAX_INDEX:
        raise ValueError(f"index {pair[0]} is not between 0 and {MAX_INDEX}")
    with np.errstate(over="ignore"):
        finite = np.isfinite(dtype.type(pair[1]))
    if not finite:
        raise ValueError(f"{show(word)} is not finite as {dtype}")
    return pair
