"""svmlight and LIBSVM text: ``label index:value index:value …`` a line; labels are ignored.

Most text is read by a fast path over whole chunks. A chunk with anything unusual in it goes line by
line, which also finds the line that an error is reported for.
"""

from __future__ import annotations

import bz2
import gzip
import io
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError

CHUNK = 1 << 23
MAX_INDEX = 2**31 - 2  # indices are kept as int32

Entries = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def read_svmlight(*paths: Path) -> list[Any]:
    """Read the features of files, plain or compressed, as CSR matrices.

    Indices count from one, or from zero if a zero occurs in any of the files. A matrix has as many
    columns as its largest index needs.
    """
    read = [_entries(path) for path in paths]
    first = 1 if all(index.all() for _, index, _ in read) else 0
    return [_matrix(entries, first) for entries in read]


def _matrix(entries: Entries, first: int) -> Any:
    from scipy.sparse import csr_array

    counts, index, value = entries
    indptr = np.concatenate([[0], np.cumsum(counts)])
    shape = len(counts), max(int(index.max(initial=0)) + 1 - first, 0)
    matrix = csr_array((value, (index - first).astype(np.int32), indptr), shape=shape)
    matrix.sort_indices()
    return matrix


def _entries(path: Path) -> Entries:
    """Parse a file: how many entries each row has, and their indices and values."""
    parts: list[Entries] = []
    lines = 0
    for chunk in _chunks(path):
        parts.append(_parse_fast(chunk) or _parse_lines(chunk, path, lines))
        lines += chunk.count(b"\n")
    if not parts:
        raise DataError(f"{path}: the file is empty; expected lines of 'label index:value …'")
    counts, index, value = (np.concatenate(part) for part in zip(*parts, strict=True))
    return counts, index, value


def _open(path: Path) -> BinaryIO:
    with open(path, "rb") as stream:
        magic = stream.read(3)
    if magic[:2] == b"\x1f\x8b":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if magic == b"BZh":
        return bz2.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield whole lines of the file, a few megabytes at a time."""
    rest = b""
    try:
        with _open(path) as stream:
            while block := stream.read(CHUNK):
                head, newline, tail = block.rpartition(b"\n")
                if newline:
                    yield rest + head + newline
                    rest = tail
                else:
                    rest += block
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); get the file again") from error
    if rest.strip():
        yield rest + b"\n"


def _parse_fast(chunk: bytes) -> Entries | None:
    """Parse a chunk of plain lines at once; None if any line needs a closer look."""
    if b"#" in chunk or b"qid" in chunk:
        return None
    text = np.frombuffer(chunk, np.uint8)
    blank = (text == 32) | ((text >= 9) & (text <= 13))
    starts = ~blank & np.concatenate([[True], blank[:-1]])  # where a word begins
    line = np.cumsum(text == 10)
    first = np.flatnonzero(starts)
    word_line = line[first]
    labels = np.concatenate([[True], word_line[1:] != word_line[:-1]])[: first.size]
    colon_word = np.cumsum(starts)[text == 58] - 1
    if not np.array_equal(colon_word, np.flatnonzero(~labels)):
        return None  # not one colon in every word but the first of its line
    other = np.flatnonzero(~blank & ((text < 48) | (text > 57)))
    before = np.concatenate([[-1], other])[:-1][text[other] == 58]
    if not (before < first[~labels]).all():
        return None  # not only digits before a colon
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            numbers = np.fromstring(chunk.replace(b":", b" ").decode("ascii"), sep=" ")
    except (ValueError, DeprecationWarning):
        return None
    if numbers.size != first.size + colon_word.size or not np.isfinite(numbers).all():
        return None
    position = np.arange(first.size) + np.concatenate([[0], np.cumsum(~labels)[:-1]])[: first.size]
    pairs = position[~labels]
    index, value = numbers[pairs], numbers[pairs + 1]
    rows = np.cumsum(labels) - 1
    rising = (np.diff(index) > 0) | (np.diff(rows[~labels]) > 0)
    if not (rising.all() and (index <= MAX_INDEX).all()):
        return None
    counts = np.bincount(rows[~labels], minlength=int(labels.sum()))
    return counts, index.astype(np.int64), value


def _parse_lines(chunk: bytes, path: Path, before: int) -> Entries:
    counts: list[int] = []
    entries: list[tuple[int, float]] = []
    for number, line in enumerate(io.BytesIO(chunk), start=before + 1):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        try:
            _check_label(words[0])
            row = [_entry(word) for word in words[1:] if not word.startswith(b"qid:")]
            if len({index for index, _ in row}) < len(row):
                raise ValueError("an index occurs twice")
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: {error}; expected 'label index:value index:value …'"
            ) from None
        counts.append(len(row))
        entries.extend(row)
    index = np.array([index for index, _ in entries], dtype=np.int64)
    return np.array(counts, dtype=np.int64), index, np.array([v for _, v in entries], dtype=float)


def _check_label(word: bytes) -> None:
    """Refuse a first word that is not a number, or several with commas between."""
    try:
        for label in word.split(b","):
            float(label)
    except ValueError:
        raise ValueError(f"{_show(word)} stands where the label should") from None


def _entry(word: bytes) -> tuple[int, float]:
    index, colon, value = word.partition(b":")
    try:
        pair = int(index), float(value)
    except ValueError:
        raise ValueError(f"{_show(word)} is not index:value") from None
    if not colon or b"_" in word:
        raise ValueError(f"{_show(word)} is not index:value")
    if not 0 <= pair[0] <= MAX_INDEX:
        raise ValueError(f"index {pair[0]} is not between 0 and {MAX_INDEX}")
    if not np.isfinite(pair[1]):
        raise ValueError(f"{_show(word)} is not finite")
    return pair


def _show(word: bytes) -> str:
    return repr(word[:40])[1:]
