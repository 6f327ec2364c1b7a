"""numpy's own files: ``.npy``, mapped and not read, and ``.npz``. Never unpickled."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from localpower.core.errors import DataError
from localpower.core.shard import check_compressed


def read_npy(path: Path) -> np.ndarray[Any, Any]:
    """Map the array in a ``.npy`` file."""
    with _refusing_damage(path, ".npy", "numpy.save"):
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def read_npz(path: Path) -> Any:
    """Read ``X`` from a ``.npz`` file, or the sparse matrix that scipy saved there."""
    with (
        _refusing_damage(path, ".npz", "numpy.savez or scipy.sparse.save_npz"),
        open(path, "rb") as stream,  # numpy leaves what it opens itself open if it fails
        np.load(stream, allow_pickle=False) as content,
    ):
        if "X" in content:
            return content["X"]
        if "format" in content:
            return _read_sparse(stream)
        raise DataError(
            f"{path}: holds {', '.join(content) or 'nothing'}; expected a dense matrix "
            "under the key X, or a matrix saved by scipy.sparse.save_npz"
        )


def _read_sparse(stream: BinaryIO) -> Any:
    from scipy.sparse import load_npz

    stream.seek(0)
    matrix: Any = load_npz(stream)
    if hasattr(matrix, "indptr"):
        check_compressed(matrix)
    return matrix.tocsr()


@contextmanager
def _refusing_damage(path: Path, kind: str, writer: str) -> Iterator[None]:
    """Turn whatever numpy, scipy and zipfile raise on a damaged file into one error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is only warned of is harmless, or raises after
            yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{path}: not a complete {kind} file of numbers ({error!s:.200}); "
            f"write it again with {writer}"
        ) from error
