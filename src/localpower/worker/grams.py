"""``BᵀB`` over blocks of dense rows, in float64: less a shift, or before that is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from localpower.core.linalg import Array, short_product
from localpower.worker import kernels
from localpower.worker.kernels import C_NAMES, STRETCH, WIDE, lines, shifted


class GramSum:
    """Sums ``(B - 1 shiftᵀ)ᵀ(B - 1 shiftᵀ)`` over the dense blocks that are added, in float64.

    So products of float32 are exact, and only their sums are rounded.
    """

    def __init__(self, columns: int, dtype: np.dtype[Any]) -> None:
        self.sum, self._part = np.zeros((2, columns, columns))
        self._multiply: Any = None
        library = kernels.LIBRARY
        if library is not None and library.bytes_each == WIDE:  # BLAS is as fast on others
            self._multiply = getattr(library, f"gram_{C_NAMES[dtype]}")
            self._work = lines(1, library.gram_scratch(columns))

    def add(self, block: Array, shift: Array | None) -> None:
        """Add a block, in C order; its shift has its type, too."""
        if self._multiply is None:
            for rows in shifted(block, shift, np.dtype(np.float64)):
                self.sum += short_product(rows, rows)
            return
        less = None if shift is None else shift.ctypes.data
        places = less, self._part.ctypes.data, self._work.ctypes.data
        for start in range(0, len(block), STRETCH):
            rows = block[start : start + STRETCH]
            self._multiply(rows.ctypes.data, *rows.shape, *places)
            self.sum += self._part
            self._part.fill(0)

    def result(self) -> Array:
        """Return the sum, (d, d)."""
        if self._multiply is None:
            return self.sum
        return np.triu(self.sum) + np.triu(self.sum, 1).T  # of the kernel, the upper half counts


class EarlyGram:
    """Sums ``(B - 1 originᵀ)ᵀ(B - 1 originᵀ)`` over dense blocks of rows whose shift is not known.

    The origin is near the mean of rows that are to be `centred`: that of the first block, or zero.
    """

    def __init__(self, columns: int, dtype: np.dtype[Any], centred: bool) -> None:
        self._total = GramSum(columns, dtype)
        self._origin = np.zeros(columns, dtype) if centred else None
        self._begun = False

    def add(self, block: Array) -> None:
        """Add a block; entries that are not finite, or too large, are for others to find."""
        with np.errstate(all="ignore"):
            if not self._begun and self._origin is not None:
                self._origin = _origin(block)
            self._begun = True
            near = self._origin is None or not self._origin.any()
            self._total.add(block, None if near else self._origin)

    def result(self) -> tuple[Array | None, Array]:
        """Return the origin, (d,), of rows that are to be centred, and the sum, (d, d)."""
        return self._origin, self._total.result().copy()


def _origin(block: Array) -> Array:
    """The mean of a block; or zero, which saves the subtraction, if that is near enough."""
    mean = block.mean(axis=0, dtype=np.float64)
    square = np.einsum("ij,ij->j", block, block, dtype=np.float64) / len(block)
    variance = np.maximum(square - mean**2, 0.0)
    near = (mean**2 / variance).sum() <= 1  # false where a column has one value: nan or infinity
    return np.zeros_like(block[0]) if near else mean.astype(block.dtype)
