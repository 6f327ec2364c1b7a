"""What a user may give as data, and what all of it becomes: pieces of rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.core.shard import check_compressed
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
    names: tuple[str, ...]

    def where(self, row: int) -> str:
        """Say which row this is, and of what."""
        for name, piece in zip(self.names, self.pieces, strict=True):
            if row < piece.shape[0]:
                return f"{name}, row {row}"
            row -= piece.shape[0]
        raise IndexError(f"there are {self.rows} rows")

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
        narrow = all(piece.dtype.kind == "f" and piece.dtype.itemsize < 8 for piece in self.pieces)
        return np.dtype(np.float32 if narrow else np.float64)


def open_source(data: Any, columns: int = 0) -> Source:
    """Take an array, a sparse matrix or a path; or a list of those, as the user's own shards.

    Text does not tell its width: it gets that of the widest piece, and `columns` at least.
    """
    if isinstance(data, Source):
        return data
    separate = is_list_of_blocks(data)
    named = {f"data[{i}]": block for i, block in enumerate(data)} if separate else {"data": data}
    names = {key: os.fspath(b) if is_path(b) else key for key, b in named.items()}
    texts = _read_texts(named)
    pieces = tuple(_piece(block, name) for name, block in {**named, **texts}.items())
    widest = max(columns, *(piece.shape[1] for piece in pieces))
    for name, piece in zip(named, pieces, strict=True):
        if name in texts:
            piece.resize((piece.shape[0], widest))
    widths = [piece.shape[1] for piece in pieces]
    for name, width in zip(named, widths, strict=True):
        if width != widths[0]:
            raise DataError(
                f"{names[name]} has {width} columns where {names['data[0]']} has {widths[0]}; all "
                "shards need the same columns in the same order"
            )
    source = Source(pieces, separate, tuple(names.values()))
    if not source.rows or not source.columns:
        name, shape = (data if is_path(data) else "data"), (source.rows, source.columns)
        raise DataError(
            f"{name} is empty: 0 sample(s) or columns, shape={shape}; give at least one"
        )
    return source


def is_list_of_blocks(data: Any) -> bool:
    """Tell a list of matrices or paths from a matrix written as a list of rows."""
    return isinstance(data, list | tuple) and any(
        is_path(block) or getattr(block, "ndim", 0) == 2 for block in data
    )


def is_path(data: Any) -> bool:
    """Tell a path from data."""
    return isinstance(data, str | os.PathLike)


def _read_texts(named: dict[str, Any]) -> dict[str, Any]:
    """Read those blocks that are paths to text, all at once: only together they tell their base."""
    paths = {name: Path(block) for name, block in named.items() if is_path(block)}
    texts = {name: path for name, path in paths.items() if _format(path) == "text"}
    return dict(zip(texts, read_svmlight(*texts.values()), strict=True))


def _piece(data: Any, name: str) -> Any:
    """Bring one block into a form that kernels work on: C-ordered dense, or canonical CSR."""
    if is_path(data):
        name = os.fspath(data)
        data = read_npy(Path(data)) if _format(Path(data)) == "npy" else read_npz(Path(data))
    if hasattr(data, "tocsr"):
        _check(data, name)
        return _csr(data)
    try:
        array = np.asanyarray(data)
    except ValueError as error:
        raise DataError(
            f"{name} has rows of different lengths; all need the same columns"
        ) from error
    _check(array, name)
    if np.ma.is_masked(array):
        raise DataError(f"{name} has masked entries: fill in values, or leave out their rows")
    if array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # what is too large is found as infinity later
            array = array.astype(np.float64)
    if array.flags.c_contiguous or isinstance(array, np.memmap):
        return array  # a mapped file is never read whole, whatever its layout
    return np.ascontiguousarray(array)


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

    if hasattr(matrix, "indptr"):
        check_compressed(matrix)
    with np.errstate(over="ignore"):
        wide = matrix.dtype not in (np.float32, np.float64)
        csr = csr_array(matrix.astype(np.float64) if wide else matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def _format(path: Path) -> str:
    """Tell what a file is by what it starts with, not by its name."""
    if path.is_dir():
        raise DataError(f"{path} is a directory; give a list of the files in it")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; write its content to one first")
    if path.suffix.lower() in NOT_YET:
        raise DataError(
            f"{path}: {path.suffix} files are not read; convert to .npy, .npz or svmlight text"
        )
    with open(path, "rb") as stream:
        magic = stream.read(6)
    if magic == b"\x93NUMPY":
        return "npy"
    if magic[:4] == b"PK\x03\x04" or path.suffix == ".npz":
        return "npz"
    if path.suffix == ".npy":
        raise DataError(f"{path}: not a .npy file, it starts with {magic!r}; write it again")
    return "text"
