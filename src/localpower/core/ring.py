"""Sums in whole numbers modulo 2**64: free of order, so that masks can cancel in them.

A number x up to ``2**exponent`` becomes ``round(x · 2**(bits - exponent))`` modulo 2**64. A sum of
such words is exact; only the first rounding is lost, and `Grid.rounding` says how much that can be.

Where nobody knows yet how large the numbers are, a `wide` word has 512 bits in eight limbs, lowest
first: numbers from about 1e-76 to 1e73, in steps of 2**-256.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.linalg import Array

Words = NDArray[np.uint64]
BITS = 60  # of the fraction, by default
MOST_BITS = 62  # one is for the sign, and one for the rounding of many parts
LIMBS = 8
LIMB_BITS = 64
UNIT_BITS = LIMBS * LIMB_BITS // 2  # a wide word counts steps of 2**-UNIT_BITS
WIDE_EXPONENT = UNIT_BITS - 12  # numbers up to 2**WIDE_EXPONENT, and sums of a thousand of them


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers up to ``2**exponent``, in steps of ``2**(exponent - bits)``, as words.

    A sum is right as long as it is itself no larger than ``2**exponent``: parts and partial sums
    may be anything.

    Examples
    --------
    >>> grid = Grid(exponent=3)
    >>> words = grid.encode([1.5, -8.0]) + grid.encode([-2.25, 7.0])
    >>> grid.decode(words)
    array([-0.75, -1.  ])
    """

    exponent: int
    bits: int = BITS

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"bits={self.bits} must be between 1 and {MOST_BITS}")

    @property
    def step(self) -> float:
        """Distance of two neighbours."""
        return float(np.ldexp(1.0, self.exponent - self.bits))

    def encode(self, x: Any) -> Words:
        """Round to the grid; raises `OverflowError` where a number is too large, or not one."""
        x = np.asarray(x, np.float64)
        scaled = np.ldexp(x, self.bits - self.exponent)
        if not (np.abs(scaled) <= 2.0**self.bits).all():
            raise OverflowError(
                f"numbers up to {np.abs(x).max():.3g}, or not finite, where sums are "
                f"at most 2**{self.exponent}"
            )
        words: Words = np.rint(scaled).astype(np.int64).view(np.uint64)
        return words

    def decode(self, words: Words) -> Array:
        """Numbers that words stand for, each the nearest float64."""
        return np.ldexp(words.view(np.int64).astype(np.float64), self.exponent - self.bits)

    def rounding(self, count: int) -> float:
        """How far a sum of `count` numbers can be from the true one, but for its last digit."""
        return count / 2 * self.step


def wide_encode(x: Any) -> Words:
    """Write numbers (n,) as words (8, n), exactly but for what is below 2**-256."""
    x = np.asarray(x, np.float64).ravel()
    if not (np.abs(x) <= 2.0**WIDE_EXPONENT).all():
        raise OverflowError(
            f"numbers up to {np.abs(x).max():.3g}, or not finite: columns must be below "
            f"{2.0 ** (WIDE_EXPONENT / 2):.0e}; divide them by a number that all agree on"
        )
    words = np.empty((LIMBS, x.size), np.uint64)
    rest = np.abs(x)
    for limb in reversed(range(LIMBS)):
        power = limb * LIMB_BITS - UNIT_BITS
        whole = np.floor(np.ldexp(rest, -power))
        words[limb] = whole.astype(np.uint64)
        rest = rest - np.ldexp(whole, power)
    return np.where(x < 0, wide_negative(words), words)


def wide_add(a: Words, b: Words) -> Words:
    """Add words limb by limb, with carries, modulo 2**512."""
    total = np.empty_like(a)
    carry = np.zeros(a.shape[1], np.uint64)
    for limb in range(LIMBS):
        part = a[limb] + b[limb]
        total[limb] = part + carry
        carry = ((part < a[limb]) | (total[limb] < part)).astype(np.uint64)
    return total


def wide_negative(words: Words) -> Words:
    """Return what adds up to zero with the words."""
    one = np.zeros_like(words)
    one[0] = 1
    return wide_add(~words, one)


def wide_decode(words: Words) -> Array:
    """Numbers that words stand for, each the nearest float64."""
    raw = np.ascontiguousarray(words.T).astype("<u8").tobytes()
    size = LIMBS * LIMB_BITS // 8
    scale = 1 << UNIT_BITS
    return np.array(
        [
            int.from_bytes(raw[at : at + size], "little", signed=True) / scale
            for at in range(0, len(raw), size)
        ],
        np.float64,
    )
