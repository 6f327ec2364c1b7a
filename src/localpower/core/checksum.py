"""A checksum of rows, made as they pass by, that tells whether they are the same rows.

It is that of the numbers and their places: every bit of every number counts, and the order of rows
and columns does. How rows are cut into blocks does not, nor whether they are dense or sparse: zeros
count for nothing, stored or not, and -0.0 is one. Entries of a CSR matrix at the same place must
have been added before, as readers of data do. It is no protection against somebody who wants two
matrices to have the same.

A row is the sum of its numbers' bits times odd factors, one for each column, modulo 2**64; rows are
mixed and joined as a polynomial, ``h_1 gⁿ⁻¹ + … + h_n``, so those of consecutive rows can be joined
in any grouping. There are two, with factors of their own.
"""

from __future__ import annotations

from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Checksum: TypeAlias = tuple[int, int]
Words: TypeAlias = NDArray[np.uint64]

NOTHING: Checksum = (0, 0)  # of no rows
BASES = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5
MODULUS = 1 << 64
CACHED = 1 << 18  # bytes that are worked on at once
LINE = 512  # words of a file that count as a row


def checksum(block: Any) -> Checksum:
    """Take the checksum of dense rows, contiguous and in floating point, or of CSR rows.

    Examples
    --------
    >>> rows = np.arange(6.0).reshape(3, 2)
    >>> whole = checksum(rows)
    >>> whole == joined(checksum(rows[:1]), checksum(rows[1:]), 2)
    True
    >>> whole == checksum(rows[:, ::-1].copy())
    False
    """
    factors = _factors(block.shape[1])
    if not isinstance(block, np.ndarray):
        words = _spread(block.data)
        indices, indptr = block.indices, block.indptr
        return _polynomials([_row_sums(words * column[indices], indptr) for column in factors])
    step = max(1, CACHED // (8 * max(block.shape[1], 1)))
    parts = (block[at : at + step] for at in range(0, len(block), step))
    sums = [np.einsum("ij,kj->ki", _spread(part), factors) for part in parts]
    return _polynomials(np.hstack(sums)) if sums else NOTHING


def joined(first: Checksum | None, second: Checksum | None, rows: int) -> Checksum | None:
    """Take that of some rows and the `rows` rows after them; None if one is not known."""
    if first is None or second is None:
        return None
    a, b = (
        (x * pow(base, rows, MODULUS) + y) % MODULUS
        for x, y, base in zip(first, second, BASES, strict=True)
    )
    return a, b


def file_checksum(stream: IO[bytes]) -> str:
    """Take the checksum of all bytes of a file, as text; a last line is filled up with zeros."""
    factors = _factors(LINE)
    total: Checksum | None = NOTHING
    while content := stream.read(CACHED):
        words = np.zeros(-(-len(content) // (8 * LINE)) * LINE, "<u8")
        words.view(np.uint8)[: len(content)] = np.frombuffer(content, np.uint8)
        lines = _mixed(words.astype(np.uint64, copy=False).reshape(-1, LINE))
        sums = np.einsum("ij,kj->ki", lines, factors)
        total = joined(total, _polynomials(sums), len(lines))
    assert total is not None
    return "{:016x}{:016x}".format(*total)


def _spread(numbers: NDArray[Any]) -> Words:
    """The bits of numbers as words, with the high half in the low half too; 0 for 0.

    High bits alone would be lost in a sum of two of them.
    """
    with np.errstate(invalid="ignore"):  # what is not finite is refused elsewhere
        numbers = numbers + numbers.dtype.type(0)  # 0.0 for -0.0
    if numbers.itemsize == 8:
        return _mixed(numbers.view(np.uint64))
    words: Words = numbers.view(np.uint32).astype(np.uint64)
    words |= words << np.uint64(32)
    return words


def _mixed(words: Words) -> Words:
    mixed: Words = words >> np.uint64(32)
    mixed ^= words
    return mixed


def _row_sums(words: Words, indptr: NDArray[Any]) -> Words:
    ends = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words, out=ends[1:])
    sums: Words = ends[indptr[1:]] - ends[indptr[:-1]]
    return sums


def _polynomials(sums: Any) -> Checksum:
    """Join rows: a value for each of the two bases."""
    found = []
    for rows, base in zip(sums, BASES, strict=True):
        powers = np.full(len(rows), base, np.uint64)
        powers[:1] = 1
        np.multiply.accumulate(powers, out=powers)
        found.append(int((_shuffled(rows) * powers[::-1]).sum(dtype=np.uint64)))
    return found[0], found[1]


def _factors(columns: int) -> Words:
    """Odd factors of the columns, (2, columns)."""
    numbers = np.arange(columns, dtype=np.uint64)
    return np.stack([_shuffled(numbers + np.uint64(start)) for start in BASES]) | np.uint64(1)


def _shuffled(words: Words) -> Words:
    """Mix the bits of every word, so that near ones give far ones (splitmix64)."""
    z = (words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
