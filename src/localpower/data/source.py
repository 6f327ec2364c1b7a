"""What a user may give as data, and what all of it becomes: pieces of rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.data.npy import read_npy, read_npz
from localpower.data.svmlight import read_svmlight

NOT_YET = {".csv", ".tsv", ".parquet", ".feather", ".arrow", ".h5", ".hdf5", ".zarr", ".xz"}


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Rows as they were given: `pieces` of (rows, columns) each, dense or CSR.

    `separate` says that the pieces are the user's own shards; otherwise rows may be cut anywhere.
    """

    pieces: tuple[Any, ...]
    separate: bool

    @property
    def rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.shape[0] for piece in self.pieces)

    @property
    def columns(self) -> int:
        """Columns, the same in all pieces."""
        return int(self.pieces[0].shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """What rows are worked with: float32 if none is wider, else float64."""
        narrow = all(piece.dtype in (np.float32, np.float16) for piece in self.pieces)
        return np.dtype(np.float32 if narrow else np.float64)


def open_source(data: Any) -> Source:
    """Take an array, a sparse matrix or a path; or a list of those, as the user's own shards."""
    if isinstance(data, Source):
        return data
    separate = is_list_of_blocks(data)
    named = {f"data[{i}]": block for i, block in enumerate(data)} if separate else {"data": data}
    pieces = tuple(_piece(block, name) for name, block in named.items())
    if separate and all(is_path(block) for block in named.values()):
        pieces = _as_wide_as_the_widest(pieces)
    widths = [piece.shape[1] for piece in pieces]
    for name, width in zip(named, widths, strict=True):
        if width != widths[0]:
            raise DataError(
                f"{name} has {width} columns where data[0] has {widths[0]}; all shards need the "
                "same columns in the same order"
            )
    source = Source(pieces, separate)
    if not source.rows or not source.columns:
        shape = source.rows, source.columns
        raise DataError(f"data is empty: 0 sample(s) or columns, shape={shape}; give at least one")
    return source


def is_list_of_blocks(data: Any) -> bool:
    """Tell a list of matrices or paths from a matrix written as a list of rows."""
    return isinstance(data, list | tuple) and any(
        is_path(block) or getattr(block, "ndim", 0) == 2 for block in data
    )


def is_path(data: Any) -> bool:
    """Tell a path from data."""
    return isinstance(data, str | os.PathLike)


def _piece(data: Any, name: str) -> Any:
    """Bring one block into a form that kernels work on: C-ordered dense, or canonical CSR."""
    if is_path(data):
        name = os.fspath(data)
        data = _read(Path(data))
    if hasattr(data, "tocsr"):
        _check(data, name)
        return _csr(data)
    array = np.asanyarray(data)
    _check(array, name)
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _check(matrix: Any, name: str) -> None:
    if matrix.ndim != 2:
        raise DataError(
            f"{name} has {matrix.ndim} dimension(s), not 2: give one row per sample; a single "
            "sample is X.reshape(1, -1), a single column X.reshape(-1, 1)"
        )
    if matrix.dtype.kind not in "fiub":
        remedy = "take the real part or stack real and imaginary columns"
        if matrix.dtype.kind != "c":
            remedy = "leave out or encode the columns that are not numbers"
        raise DataError(f"{name} has dtype {matrix.dtype}, not real numbers: {remedy}")


def _csr(matrix: Any) -> Any:
    from scipy.sparse import csr_array

    wide = matrix.dtype not in (np.float32, np.float64)
    csr = csr_array(matrix.astype(np.float64) if wide else matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def _read(path: Path) -> Any:
    """Read a file by what it starts with, not by its name."""
    if path.is_dir():
        raise DataError(f"{path} is a directory; give a list of the files in it")
    if path.suffix.lower() in NOT_YET:
        raise DataError(
            f"{path}: {path.suffix} files are not read; convert to .npy, .npz or svmlight text"
        )
    with open(path, "rb") as stream:
        magic = stream.read(6)
    if magic == b"\x93NUMPY":
        return read_npy(path)
    if magic[:4] == b"PK\x03\x04" or path.suffix == ".npz":
        return read_npz(path)
    if path.suffix == ".npy":
        raise DataError(f"{path}: not a .npy file, it starts with {magic!r}; write it again")
    return read_svmlight(path)


def _as_wide_as_the_widest(pieces: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give sparse pieces from files the columns of the widest: text does not tell its width."""
    if any(isinstance(piece, np.ndarray) for piece in pieces):
        return pieces
    columns = max(piece.shape[1] for piece in pieces)
    for piece in pieces:
        piece.resize((piece.shape[0], columns))
    return pieces
