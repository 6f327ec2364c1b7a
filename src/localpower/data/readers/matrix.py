"""Arrays and sparse matrices in memory: brought into the form that kernels work on, and cut."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.data.blocks import Block, Options, block_rows, check_columns, choose, refuse_twins
from localpower.data.spool import RowStorage
from localpower.worker.shard import once, unmasked
from localpower.worker.stored import Stored, StoredCSR, check_compressed, stamp

REMEDIES = {
    "c": "take the real part or stack real and imaginary columns",
    **dict.fromkeys(
        "OUS", "if all are numbers, give X.astype(float); else leave out or encode the others"
    ),
    "M": "count time from some day on, as (X - X.min()) / numpy.timedelta64(1, 's')",
    "m": "count time in some unit, as X / numpy.timedelta64(1, 's')",
    "V": "give the fields side by side, as numpy.lib.recfunctions.structured_to_unstructured(X)",
}  # by the kind of a type that is not one of real numbers


def as_matrix(data: Any, name: str, room: RowStorage, gaps: bool = False) -> Any:
    """Bring one matrix into a form that kernels work on: dense, canonical CSR, or in a file.

    What is masked becomes nan if there may be `gaps`.
    """
    if isinstance(data, Stored | StoredCSR):
        _check(data.shape, data.dtype, name)
        if data.dtype.itemsize > 8:
            return as_matrix(data.read(), name, room)
        return data
    if hasattr(data, "tocsr"):
        _check(data.shape, data.dtype, name)
        return canonical(data)
    try:
        array = np.asanyarray(data)
    except ValueError as error:
        raise DataError(
            f"{name} has rows of different lengths; all need the same columns"
        ) from error
    if not array.ndim and array.dtype == np.object_:
        raise DataError(
            f"{name} is of type {type(data).__name__}, of which no rows can be made; give an "
            "array, a data frame, the path of a file, or a list of such"
        )
    _check(array.shape, array.dtype, name)
    if isinstance(array, np.memmap) and (stored := stored_memmap(array)) is not None:
        return as_matrix(stored, name, room)
    array = without_masks(array) if gaps else unmasked(array, name)
    if array.dtype.itemsize > 8:
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what is too large is found as infinity later
            array = array.astype(np.float64)
    if not array.flags.c_contiguous and array.nbytes <= room.left:
        room.left -= array.nbytes
        array = np.ascontiguousarray(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def without_masks(array: Any) -> Any:
    """Write nan where an array is masked."""
    if not np.ma.is_masked(array):
        return array if hasattr(array, "tocsr") else np.asarray(array)
    return np.ma.filled(array if array.dtype.kind == "f" else array.astype(np.float64), np.nan)


def _check(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    if len(shape) != 2 and dtype.kind != "V":
        remedy = "a single sample is X.reshape(1, -1), a single column X.reshape(-1, 1)"
        if len(shape) > 2:
            remedy = "samples of several dimensions, as images, are X.reshape(len(X), -1)"
        raise DataError(
            f"{name} has {len(shape)} dimension(s), not 2: give one row per sample; {remedy}"
        )
    if dtype.kind not in "fiub":
        remedy = REMEDIES.get(dtype.kind, "leave out or encode the columns that are not numbers")
        raise DataError(f"{name} has dtype {dtype}, not real numbers: {remedy}")


def canonical(matrix: Any) -> Any:
    """CSR of floats with sorted and unique indices, which are int32 if they fit."""
    from scipy.sparse import csr_array

    if hasattr(matrix, "indptr"):
        check_compressed(matrix)
    with np.errstate(over="ignore", invalid="ignore"):
        if matrix.dtype.kind == "b":
            matrix = once(matrix)
        wide = matrix.dtype not in (np.float32, np.float64)
        csr = csr_array(matrix.astype(np.float64) if wide else matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if csr.indptr.dtype != np.int32 and max(csr.nnz, *csr.shape) < np.iinfo(np.int32).max:
        parts = csr.data, csr.indices.astype(np.int32), csr.indptr.astype(np.int32)
        csr = csr_array(parts, shape=csr.shape)
    return csr


def stored_memmap(array: np.memmap[Any, Any]) -> Stored | None:
    """Say where in which file the entries of a mapped array stand; None if they do not."""
    item = array.dtype.itemsize
    rows = array.ndim == 2 and array.flags.c_contiguous
    columns = array.ndim == 2 and array.strides[0] == item and array.strides[1] % item == 0
    columns = columns and array.strides[1] >= item * array.shape[0]
    usable = array.mode != "c" and array.filename and os.path.exists(array.filename)
    if not usable or not array.size or not (rows or columns) or array.dtype.kind not in "fiub":
        return None
    if array.mode != "r":
        array._mmap.flush()  # type: ignore[attr-defined]
    start = np.frombuffer(array._mmap, np.uint8).ctypes.data  # type: ignore[attr-defined]
    offset = int(array.offset) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    offset += array.ctypes.data - start
    height = 0 if rows else array.strides[1] // item
    path = str(array.filename)
    return Stored(path, offset, array.dtype, array.shape, stamp(path), height)


def matrix_blocks(matrix: Any, columns: MatrixColumns) -> Iterator[Block]:
    """Cut rows in memory, dense or scipy sparse, into blocks; dense ones are views if they can."""
    if hasattr(matrix, "tocsr"):
        yield from _sparse_blocks(matrix, columns)
        return
    step = block_rows(len(columns.taken) * columns.dtype.itemsize)
    for start in range(0, matrix.shape[0], step):
        part = matrix[start : start + step]
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is found by a later check
            rows = np.ascontiguousarray(columns.of(part), dtype=columns.dtype)
        yield Block(rows, None if columns.label is None else part[:, columns.label].copy())


@dataclass(frozen=True, slots=True)
class MatrixColumns:
    """Which of a matrix's `count` columns are taken, which one labels, and the rows' precision."""

    count: int
    taken: list[int]
    label: int | None
    dtype: np.dtype[Any]
    names: tuple[str, ...] | None = None

    def of(self, rows: Any) -> Any:
        """The columns taken."""
        return rows if self.taken == list(range(self.count)) else rows[:, self.taken]

    def empty(self) -> Block:
        """A block without rows."""
        return Block(np.empty((0, len(self.taken)), self.dtype), None, self.names)


def columns_of(
    count: int, dtype: Any, options: Options, where: Any, names: Sequence[str] | None = None
) -> MatrixColumns:
    """Choose columns of a matrix by number, or by name where there are such."""
    if np.dtype(dtype).kind not in "fiub":
        raise DataError(
            f"{where} has dtype {dtype}, not real numbers: leave out such columns, or encode them "
            "as numbers"
        )
    taken, label = choose(names, count, options, where)
    check_columns([], len(taken), where)
    if names is None:
        return MatrixColumns(count, taken, label, options.work_type([dtype]))
    refuse_twins(names, taken, where)
    called = tuple(names[number] for number in taken)
    return MatrixColumns(count, taken, label, options.work_type([dtype]), called)


def _sparse_blocks(matrix: Any, columns: MatrixColumns) -> Iterator[Block]:
    from scipy.sparse import csr_array

    if hasattr(matrix, "indptr"):
        check_compressed(matrix)
    csr = once(matrix) if matrix.dtype.kind == "b" else csr_array(matrix)
    step = block_rows(csr.nnz * (csr.dtype.itemsize + 4) // max(1, csr.shape[0]))
    for start in range(0, csr.shape[0], step):
        part = csr[start : start + step]
        labels = None if columns.label is None else part[:, [columns.label]].toarray().ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            rows = columns.of(part).astype(columns.dtype)
        yield Block(canonical(rows), labels)
