"""The local product ``Y = Σ Bᵀ(B - 1sᵀ)Z`` over blocks B of rows, each read from memory once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from localpower.core.linalg import Array, short_product
from localpower.worker import kernels
from localpower.worker.kernels import C_NAMES, NARROW, STRETCH, lines, shifted

PANEL = 3  # vectors of Z that the compiled kernel works on at once
MANY_ROWS = 128  # from here on it pays to bring Z into the order that the compiled kernel needs
EIGHT = 8  # columns of Z that a sparse product takes at once: a line of the cache
CACHE = 8 << 20  # bytes that a core may count on in the cache that it shares with others
STAYING = 5 << 20  # bytes that stay there while blocks of rows go by


class GramProduct:
    """Sums ``(B - 1 shiftᵀ)ᵀ(B - 1 shiftᵀ)Z`` over the blocks that are added."""

    def __init__(self, Z: Array) -> None:
        self._Z = np.ascontiguousarray(Z)
        self._plain: Array | None = None
        self._dense: _DensePanels | None = None
        self._sparse: list[_SparsePanel] = []

    def add(self, block: Any, shift: Array | None) -> None:
        """Add a dense block of Z's type, in C order, or a CSR block of that type.

        The shift of a dense block has that type, too.
        """
        if block.dtype != self._Z.dtype or block.shape[1] != len(self._Z):
            raise TypeError(f"a block of {block.dtype} {block.shape} for Z of {self._Z.dtype}")
        if isinstance(block, np.ndarray) and (kernels.LIBRARY is None or len(block) < MANY_ROWS):
            for rows in shifted(block, shift, self._Z.dtype):
                part = np.asarray(short_product(rows, rows @ self._Z), np.float64)
                self._plain = part if self._plain is None else np.add(self._plain, part, out=part)
            return
        if isinstance(block, np.ndarray):
            if self._dense is None:
                self._dense = _DensePanels(self._Z)
            self._dense.add(block, shift)
            return
        if not self._sparse:
            self._sparse = [_SparsePanel(self._Z[:, a:b]) for a, b in panels(*self._Z.shape[::-1])]
        for panel in self._sparse:
            panel.add(block, shift)

    def result(self) -> Array:
        """Return the sum, (d, r) in float64."""
        parts: list[Array] = [panel.sum for panel in self._sparse]
        if len(parts) > 1:
            parts = [np.hstack(parts)]
        if self._plain is not None:
            parts.append(self._plain)
        if self._dense is not None:
            parts.append(self._dense.result())
        return sum(parts[1:], parts[0]) if parts else np.zeros(self._Z.shape)


def panels(r: int, columns: int) -> list[tuple[int, int]]:
    """Cut the r columns of Z for sparse products, whose entries fetch its rows from all over.

    Eight columns of a row share a line of the cache, and up to four that are left are taken with
    them. Panels are narrower where their columns, and as many of the sum, do not fit the cache.
    """
    half, most = EIGHT // 2, CACHE / (16 * max(columns, 1))
    step, more = EIGHT if most >= EIGHT else half, half if most >= EIGHT + half else 0
    return list(pairwise([0, *range(step, r - more, step), r]))


def sweeps(r: int, columns: int) -> list[tuple[int, int]]:
    """Cut them for passes over sparse rows in memory: a pass a panel if caches cannot hold all."""
    return panels(r, columns) if 16 * columns * r > STAYING else [(0, r)]


class _SparsePanel:
    """Some columns of Z, up to 12, and their sum, both in float64 and side by side.

    Entries of a sparse row fetch rows of Z from all over: a row of eight is a line of the cache.
    """

    def __init__(self, Z: Array) -> None:
        d, r = Z.shape
        self.Z, self.eight = Z, EIGHT if r > EIGHT else 0
        left = max(r - self.eight, 1)
        self.width = 1 << (left - 1).bit_length()
        self.near, self.tail = lines(d, 2 * self.eight), lines(d, 2 * self.width)
        self.near[:, : self.eight] = Z[:, : self.eight]
        self.tail[:, : r - self.eight] = Z[:, self.eight :]
        self.shift: Array | None = None
        self.offset = np.zeros(self.eight + self.width)
        self.before: tuple[Array, Array] | None = None
        self.filled = False

    def add(self, block: Any, shift: Array | None) -> None:
        r = self.Z.shape[1]
        if shift is not self.shift:
            self.shift = shift
            self.offset[:r] = 0.0
            if shift is not None:  # one at a time: else bits depend on how many there are
                self.offset[:r] = [shift @ column for column in np.ascontiguousarray(self.Z.T)]
        rows, d = block.shape
        step = max(STRETCH // 2, 4 * d * rows // max(block.nnz, 1))
        for start in range(0, rows, step):
            self.settle()
            self.filled, total = True, np.zeros(self.eight + self.width)
            self.multiply(block, start, min(start + step, rows), total)
            if shift is not None:
                for column in range(r):  # one at a time: the sum may be large
                    self.column(column)[:] -= shift * total[column]

    def multiply(self, block: Any, start: int, stop: int, total: Array) -> None:
        """Add the product of some rows, and the sums of ``B Z`` over them to `total`."""
        r = self.Z.shape[1]
        if kernels.LIBRARY is not None and block.indptr.dtype == block.indices.dtype == np.int32:
            arrays = block.indptr[start:], block.indices, block.data
            held = [np.ascontiguousarray(array) for array in arrays]
            name = f"csr_{C_NAMES[held[2].dtype]}_{kernels.LIBRARY.bytes_each}"
            places = [array.ctypes.data for array in held]
            more = self.offset, self.near, self.tail, total
            sums = [array.ctypes.data for array in more]
            getattr(kernels.LIBRARY, name)(stop - start, *places, self.eight, self.width, *sums)
            return
        some = block[start:stop]
        T = some @ self.Z - self.offset[:r].astype(self.Z.dtype, copy=False)
        Y = some.T @ T.astype(np.float64, copy=False)
        self.near[:, self.eight :] += Y[:, : self.eight]
        self.tail[:, self.width :][:, : r - self.eight] += Y[:, self.eight :]
        total[:r] = T.sum(axis=0, dtype=np.float64)

    def settle(self) -> None:
        """Put the sum of the rows before aside, and begin with zero."""
        if not self.filled:
            return
        own = self.near[:, self.eight :], self.tail[:, self.width :]
        if self.before is None:
            self.before = own[0].copy(), own[1].copy()
        else:
            for total, part in zip(self.before, own, strict=True):
                np.add(total, part, out=total)
        for part in own:
            part[:] = 0.0

    def column(self, number: int) -> Array:
        """A column of the sum."""
        if number < self.eight:
            return self.near[:, self.eight + number]
        return self.tail[:, self.width + number - self.eight]

    @property
    def sum(self) -> Array:
        r = self.Z.shape[1]
        parts = [self.near[:, self.eight :], self.tail[:, self.width :]]
        if self.before is not None:
            parts = [part + before for part, before in zip(parts, self.before, strict=True)]
        return np.hstack([parts[0], parts[1][:, : r - self.eight]])


class _DensePanels:
    """Z and the sum for the compiled kernel: panels of up to three vectors, one after the other."""

    def __init__(self, Z: Array) -> None:
        d, r = Z.shape
        size = NARROW if r * Z.itemsize <= NARROW else kernels.LIBRARY.bytes_each
        lanes = size // Z.itemsize
        self.vectors = -(-r // lanes)
        self.shape, self.width = (d, r), self.vectors * lanes
        padded = np.zeros((d, self.width), Z.dtype)
        padded[:, :r] = Z
        cuts = range(PANEL * lanes, self.width, PANEL * lanes)
        self.panels = np.concatenate([part.ravel() for part in np.split(padded, cuts, axis=1)])
        self.cuts = [d * cut for cut in cuts]
        self.sum, self.part = np.zeros((2, d * self.width))
        self.span = np.zeros(d * self.width, Z.dtype)
        self.work = np.empty(kernels.LIBRARY.scratch(d), Z.dtype)
        self.multiply = getattr(kernels.LIBRARY, f"dense_{C_NAMES[Z.dtype]}_{size}")

    def add(self, block: Array, shift: Array | None) -> None:
        less = None if shift is None else shift.ctypes.data
        places = [array.ctypes.data for array in (self.panels, self.span, self.part, self.work)]
        for start in range(0, len(block), STRETCH):
            rows = block[start : start + STRETCH]
            self.multiply(rows.ctypes.data, *rows.shape, less, self.vectors, *places)
            self.sum += self.part
            self.part.fill(0)

    def result(self) -> Array:
        d, r = self.shape
        panels = [part.reshape(d, -1) for part in np.split(self.sum, self.cuts)]
        return np.ascontiguousarray(np.hstack(panels)[:, :r])
