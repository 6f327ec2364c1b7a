"""The passes over rows that take the time: column statistics, the local product, and ``BᵀB``.

The product is ``Y = Σ Bᵀ(B - 1sᵀ)Z`` over blocks B of rows, each read from memory once. `kernels.c`
does it where it was compiled when the package was built and the machine has what it needs; else
numpy and scipy do, block by block. Blocks are summed in float64.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.linalg import short_product

Array = NDArray[np.floating[Any]]

INTERFACE = 3  # of `kernels.c`
NARROW, WIDE = 32, 64  # bytes of the vectors that there are kernels for
PANEL = 3  # vectors of Z that the compiled kernel works on at once
MANY_ROWS = 128  # from here on it pays to bring Z into the order that the compiled kernel needs
PARALLEL_BYTES = 1 << 21
CACHED = 1 << 18  # bytes of rows that are shifted or widened at once
EIGHT = 8  # columns of Z that a sparse product takes at once: a line of the cache
LINE = 64  # bytes of a line of the cache
STRETCH = 1 << 13  # rows that are summed by themselves: equal rows would round a long sum one way
C_NAMES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


def _library() -> Any:
    """Open the compiled kernels; None where there are none that this machine can run."""
    if os.environ.get("LOCALPOWER_KERNELS") == "numpy":
        return None
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("libkernels.so")))
    except OSError:
        return None
    version = library.kernel_interface() if hasattr(library, "kernel_interface") else 1
    if version != INTERFACE:
        warnings.warn(
            f"{library._name} was compiled from other sources, so numpy does its work: install "
            "localpower again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    bytes_each = library.vector_bytes()
    if not bytes_each:
        return None
    library.bytes_each = bytes_each  # type: ignore[attr-defined]
    size, number, pointer = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
    library.occurrences.argtypes = [pointer, size, ctypes.c_uint8]
    library.occurrences.restype = size
    library.fields.argtypes = [pointer, size, ctypes.c_uint8, size, pointer]
    for room in (library.scratch, library.gram_scratch):
        room.argtypes, room.restype = [size], size
    for name in C_NAMES.values():
        for each in (NARROW, WIDE):
            dense = getattr(library, f"dense_{name}_{each}")
            dense.argtypes = [pointer, size, size, pointer, number, *[pointer] * 4]
            dense.restype = None
            csr = getattr(library, f"csr_{name}_{each}")
            csr.argtypes = [size, *[pointer] * 3, number, number, *[pointer] * 4]
            csr.restype = None
        statistics = getattr(library, f"statistics_{name}")
        statistics.argtypes = [pointer, size, size, ctypes.c_double, *[pointer] * 5]
        statistics.restype = number
        extremes = getattr(library, f"extremes_{name}")
        extremes.argtypes, extremes.restype = [size, *[pointer] * 5], None
        gram = getattr(library, f"gram_{name}")
        gram.argtypes, gram.restype = [pointer, size, size, *[pointer] * 3], None
        interleave = getattr(library, f"interleave_{name}")
        interleave.argtypes, interleave.restype = [pointer, size, size, pointer], None
    return library


LIBRARY = _library()

# glibc hands freed blocks back to the system at once, and every round faults its arrays in anew,
# which may take longer than to fill them. Up to the largest block that it has seen freed, 32 MiB at
# most, it keeps them instead: so let it see one, that is never touched.
np.empty((1 << 25) - (1 << 14), np.uint8)

BLOCK_BYTES = (4 if LIBRARY else 1) << 20  # rows that are multiplied and summed together


def occurrences(text: bytes, byte: int) -> int:
    """How often a byte occurs; `bytes.count` takes ten times as long."""
    numbers = np.frombuffer(text, np.uint8)
    if LIBRARY is None:
        return int(np.count_nonzero(numbers == byte))
    return int(LIBRARY.occurrences(numbers.ctypes.data, len(numbers), byte))


def fields(text: bytes, delimiter: int, count: int) -> NDArray[np.int32] | None:
    """Where fields and what ends them start in lines of `count` fields, in turn, and the end.

    None if a line has another number of fields, or if a blank stands first or last in one.
    """
    total = count * occurrences(text, ord("\n"))
    if not 0 < total <= len(text) or not text.endswith(b"\n"):
        return None
    numbers = np.frombuffer(text, np.uint8)
    offsets = np.zeros(2 * total + 1, np.int32)
    if LIBRARY is not None:
        places = numbers.ctypes.data, len(numbers), delimiter, count, offsets.ctypes.data
        return offsets if LIBRARY.fields(*places) else None
    ends = np.flatnonzero((numbers == delimiter) | (numbers == ord("\n")))
    if len(ends) != total or (numbers[ends[count - 1 :: count]] != ord("\n")).any():
        return None
    if numbers[0] == 32 or (numbers[ends - 1] == 32).any() or (numbers[ends[:-1] + 1] == 32).any():
        return None
    offsets[1::2], offsets[2::2] = ends, ends + 1
    return offsets


def interleave(columns: Sequence[Array], out: Array, other: Executor | None = None) -> None:
    """Write columns, contiguous and of its type, into the rows of `out`, (n, d) in C order.

    If there is an `other` thread, it does half of what is large.
    """
    if LIBRARY is None:
        step = max(1, (1 << 17) // out.itemsize // max(len(columns), 1))
        for start in range(0, len(out), step):
            for j, column in enumerate(columns):
                out[start : start + step, j] = column[start : start + step]
        return
    move = getattr(LIBRARY, f"interleave_{C_NAMES[out.dtype]}")
    places = np.array([c.__array_interface__["data"][0] for c in columns], np.uintp)
    half = len(out) // 2

    def part(start: int, stop: int) -> None:
        starts = places + np.uintp(start * out.itemsize)
        move(starts.ctypes.data, stop - start, len(columns), out[start:].ctypes.data)

    if other is None or out.nbytes < PARALLEL_BYTES:
        part(0, len(out))
        return
    rest = other.submit(part, half, len(out))
    part(0, half)
    rest.result()


def statistics(block: Array, unit: float) -> tuple[Array, Array, Array, Array] | None:
    """Column minima and maxima of a dense block; None if an entry is not finite.

    Also the means of the block times `unit`, and sums of squared deviations from them.
    """
    low, high = np.empty((2, block.shape[1]), block.dtype)
    mean, m2, *work = np.empty((6, block.shape[1]))
    if LIBRARY is None:
        with np.errstate(over="ignore", invalid="ignore"):
            block.min(axis=0, out=low), block.max(axis=0, out=high)
            scaled = np.multiply(block, unit, dtype=np.float64)
            scaled -= scaled.mean(axis=0, out=mean)
            np.square(scaled, out=scaled).sum(axis=0, out=m2)
        return (low, high, mean, m2) if np.isfinite([low, high]).all() else None
    take = getattr(LIBRARY, f"statistics_{C_NAMES[block.dtype]}")
    out = (a.ctypes.data for a in (low, high, mean, m2, work[0]))
    return (low, high, mean, m2) if take(block.ctypes.data, *block.shape, unit, *out) else None


def extremes(block: Any) -> tuple[Array, Array, NDArray[np.int64]]:
    """Least and largest entry of each column of a CSR block, and how many entries it has.

    Of a column without entries, they are infinite.
    """
    d = block.shape[1]
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    if LIBRARY is None or block.indices.dtype != np.int32 or block.data.dtype not in C_NAMES:
        np.minimum.at(low, block.indices, block.data)
        np.maximum.at(high, block.indices, block.data)
        return low, high, np.bincount(block.indices, minlength=d)
    count = np.zeros(d, np.int64)
    take = getattr(LIBRARY, f"extremes_{C_NAMES[block.data.dtype]}")
    column, value = np.ascontiguousarray(block.indices), np.ascontiguousarray(block.data)
    places = (array.ctypes.data for array in (column, value, low, high, count))
    take(len(value), *places)
    return low, high, count


class GramSum:
    """Sums ``(B - 1 shiftᵀ)ᵀ(B - 1 shiftᵀ)`` over the dense blocks that are added, in float64.

    So products of float32 are exact, and only their sums are rounded.
    """

    def __init__(self, columns: int, dtype: np.dtype[Any]) -> None:
        self.sum, self._part = np.zeros((2, columns, columns))
        self._multiply: Any = None
        if LIBRARY is not None and LIBRARY.bytes_each == WIDE:  # BLAS is as fast on others
            self._multiply = getattr(LIBRARY, f"gram_{C_NAMES[dtype]}")
            self._work = _lines(1, LIBRARY.gram_scratch(columns))

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


def shifted(block: Array, shift: Array | None, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield the rows of a block less the shift in some type, as many as stay in the cache."""
    step = STRETCH
    if shift is not None or block.dtype != dtype:
        step = min(step, max(16, CACHED // max(1, block.nbytes // max(1, len(block)))))
    for start in range(0, len(block), step):
        rows = block[start : start + step].astype(dtype, copy=False)
        yield rows if shift is None else rows - shift


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
        if isinstance(block, np.ndarray) and (LIBRARY is None or len(block) < MANY_ROWS):
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
            self._sparse = [_SparsePanel(self._Z[:, a:b]) for a, b in _panels(self._Z.shape[1])]
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


def _panels(r: int) -> Iterator[tuple[int, int]]:
    """Cut columns for sparse products: eight at a time, and up to four that are left with them."""
    start = 0
    while start < r or not r:
        stop = min(start + EIGHT, r)
        if r - stop <= EIGHT // 2:
            stop = r
        yield start, stop
        if stop == r:
            return
        start = stop


class _SparsePanel:
    """Some columns of Z, up to 12, and their sum, both in float64 and side by side.

    Entries of a sparse row fetch rows of Z from all over: a row of eight is a line of the cache.
    """

    def __init__(self, Z: Array) -> None:
        d, r = Z.shape
        self.Z, self.eight = Z, EIGHT if r > EIGHT else 0
        left = max(r - self.eight, 1)
        self.width = 1 << (left - 1).bit_length()
        self.near, self.tail = _lines(d, 2 * self.eight), _lines(d, 2 * self.width)
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
            self.offset[:r] = 0.0 if shift is None else shift @ self.Z
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
        if LIBRARY is not None and block.indptr.dtype == block.indices.dtype == np.int32:
            arrays = block.indptr[start:], block.indices, block.data
            held = [np.ascontiguousarray(array) for array in arrays]
            name = f"csr_{C_NAMES[held[2].dtype]}_{LIBRARY.bytes_each}"
            places = [array.ctypes.data for array in held]
            more = self.offset, self.near, self.tail, total
            sums = [array.ctypes.data for array in more]
            getattr(LIBRARY, name)(stop - start, *places, self.eight, self.width, *sums)
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


def _lines(rows: int, columns: int) -> Array:
    """Zeros, of which rows start where lines of the cache do."""
    spare = LINE // 8
    flat = np.zeros(rows * columns + spare)
    first = -(flat.ctypes.data // 8) % spare
    return flat[first : first + rows * columns].reshape(rows, columns)


class _DensePanels:
    """Z and the sum for the compiled kernel: panels of up to three vectors, one after the other."""

    def __init__(self, Z: Array) -> None:
        d, r = Z.shape
        size = NARROW if r * Z.itemsize <= NARROW else LIBRARY.bytes_each
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
        self.work = np.empty(LIBRARY.scratch(d), Z.dtype)
        self.multiply = getattr(LIBRARY, f"dense_{C_NAMES[Z.dtype]}_{size}")

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
