"""The library compiled from `kernels.c`, and column statistics and pieces of text taken with it.

It is there if it was compiled when the package was built and the machine has what it needs; else
numpy and scipy do its work, block by block.
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

Array = NDArray[np.floating[Any]]

INTERFACE = 4  # of `kernels.c`
NARROW, WIDE = 32, 64  # bytes of the vectors that there are kernels for
PARALLEL_BYTES = 1 << 21
CACHED = 1 << 18  # bytes of rows that are shifted or widened at once
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
        entries = getattr(library, f"entries_{name}")
        entries.argtypes, entries.restype = [size, *[pointer] * 3], number
        deviations = getattr(library, f"deviations_{name}")
        deviations.argtypes, deviations.restype = [size, *[pointer] * 3], None
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


def entries(column: NDArray[Any], value: Array, d: int) -> tuple[Array, ...] | None:
    """Least and largest of the entries in each of d columns, how many, and their sums.

    None if one is not finite. Of a column without entries, the extremes are infinite.
    """
    out = np.tile([np.inf, -np.inf, 0.0, 0.0], (d, 1))
    if LIBRARY is None or column.dtype != np.int32 or value.dtype not in C_NAMES:
        if not np.isfinite(value).all():
            return None
        np.minimum.at(out[:, 0], column, value)
        np.maximum.at(out[:, 1], column, value)
        with np.errstate(over="ignore", invalid="ignore"):
            out[:, 2], out[:, 3] = np.bincount(column, minlength=d), np.bincount(column, value, d)
        return tuple(out.T)
    take = getattr(LIBRARY, f"entries_{C_NAMES[value.dtype]}")
    held = np.ascontiguousarray(column), np.ascontiguousarray(value), out
    return tuple(out.T) if take(len(value), *(array.ctypes.data for array in held)) else None


def deviations(column: NDArray[Any], value: Array, mean: Array) -> Array:
    """Sums of the squared deviations of entries from the mean of their column."""
    if LIBRARY is None or column.dtype != np.int32 or value.dtype not in C_NAMES:
        squares = np.square(value - mean[column])
        return np.asarray(np.bincount(column, squares, len(mean)), np.float64)
    both = np.column_stack([mean, np.zeros_like(mean)])
    take = getattr(LIBRARY, f"deviations_{C_NAMES[value.dtype]}")
    held = np.ascontiguousarray(column), np.ascontiguousarray(value), both
    take(len(value), *(array.ctypes.data for array in held))
    return both[:, 1]


def shifted(block: Array, shift: Array | None, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield the rows of a block less the shift in some type, as many as stay in the cache."""
    step = STRETCH
    if shift is not None or block.dtype != dtype:
        step = min(step, max(16, CACHED // max(1, block.nbytes // max(1, len(block)))))
    for start in range(0, len(block), step):
        rows = block[start : start + step].astype(dtype, copy=False)
        yield rows if shift is None else rows - shift


def lines(rows: int, columns: int) -> Array:
    """Zeros, of which rows start where lines of the cache do."""
    spare = LINE // 8
    flat = np.zeros(rows * columns + spare)
    first = -(flat.ctypes.data // 8) % spare
    return flat[first : first + rows * columns].reshape(rows, columns)
