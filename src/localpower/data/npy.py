"""numpy's own files: ``.npy``, mapped and not read, and ``.npz``. Never unpickled."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError


def read_npy(path: Path) -> np.ndarray[Any, Any]:
    """Map the array in a ``.npy`` file."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (ValueError, EOFError) as error:
        raise DataError(
            f"{path}: not a complete .npy file of numbers ({error}); write it again with numpy.save"
        ) from error


def read_npz(path: Path) -> Any:
    """Read ``X`` from a ``.npz`` file, or the sparse matrix that scipy saved there."""
    try:
        with np.load(path, allow_pickle=False) as content:
            if "X" in content:
                return content["X"]
            if "indptr" not in content:
                raise DataError(
                    f"{path}: holds {', '.join(content) or 'nothing'}; expected a dense matrix "
                    "under the key X, or a matrix saved by scipy.sparse.save_npz"
                )
        from scipy.sparse import load_npz

        return load_npz(path)
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path}: not a complete .npz file of numbers ({error}); write it again with "
            "numpy.savez or scipy.sparse.save_npz"
        ) from error
