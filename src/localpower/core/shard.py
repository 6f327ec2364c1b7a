"""A shard: the rows that one worker holds, as pieces that are read block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Piece: TypeAlias = NDArray[Any] | csr_array[Any]

BLOCK_BYTES = 1 << 20  # rows that are multiplied together: about what a core's cache holds
MIN_BLOCK_ROWS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Consecutive rows of the data in `pieces`, each a (rows, d) array or CSR matrix.

    Pieces may be views of the user's array or of a mapped file; nothing is copied here.
    `dtype` is what the rows are worked with: float32 stays, everything else becomes float64.
    """

    pieces: tuple[Piece, ...]
    columns: int
    dtype: np.dtype[Any]

    @property
    def rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.shape[0] for piece in self.pieces)

    def blocks(self) -> Iterator[Piece]:
        """Yield the rows in order: dense blocks of a cache's size, sparse pieces whole."""
        step = max(MIN_BLOCK_ROWS, BLOCK_BYTES // (max(1, self.columns) * self.dtype.itemsize))
        for piece in self.pieces:
            if not isinstance(piece, np.ndarray):
                if piece.shape[0]:
                    yield piece
                continue
            for start in range(0, piece.shape[0], step):
                yield np.ascontiguousarray(piece[start : start + step], dtype=self.dtype)


def check_compressed(matrix: Any) -> None:
    """Refuse a CSR or CSC matrix that leads kernels outside of its arrays.

    scipy's own check does not look at the inner pointers of a matrix whose last pointer is 0.
    """
    matrix.check_format(full_check=True)
    if (matrix.indptr[1:] < matrix.indptr[:-1]).any():
        raise ValueError("index pointers decrease")
