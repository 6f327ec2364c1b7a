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
        self.centred, self.origin = centred, np.zeros(columns)
        self._less: Array | None = None
        self._total: GramSum | None = None
        self._sum: Array | None = None

    def add(self, block: Array) -> None:
        """Add a block; entries that are not finite, or too large, are for others to find."""
        with np.errstate(all="ignore"):
            if self._total is None:
                self._total = GramSum(block.shape[1], block.dtype)
                if self.centred:
                    self._choose(block)
            self._total.add(block, self._less)

    def _choose(self, block: Array) -> None:
        mean = block.mean(axis=0, dtype=np.float64)
        square = np.einsum("ij,ij->j", block, block, dtype=np.float64) / len(block)
        if (mean**2 / (square - mean**2)).sum() <= 1:
            return
        self._less = mean.astype(block.dtype)
        self.origin = self._less.astype(np.float64)

    def done(self) -> EarlyGram:
        """Keep the sum alone, and none of what it was made with."""
        if self._total is not None:
            self._sum, self._total = self._total.result(), None
        return self

    def result(self) -> Array:
        """Return the sum, (d, d)."""
        G, d = self.done()._sum, len(self.origin)
        return np.zeros((d, d)) if G is None else G
