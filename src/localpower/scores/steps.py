"""From rows to scores and back, for some rows at a time; small enough to travel to workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from localpower.core.errors import DataError
from localpower.core.linalg import Array
from localpower.data.blocks import Options
from localpower.data.source import load_block
from localpower.methods.scaling import dividing
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Piece, Shard, work_type

if TYPE_CHECKING:
    from localpower.result import Result

SHIFTED = 1 << 23  # bytes of rows that are shifted at once
LARGE = 2.0**1000  # a scale whose multiples may leave the number format


@dataclass(frozen=True, eq=False, repr=False)
class Step(ABC):
    """What is done to rows, wherever they are: called with pieces of them, it returns an array.

    `components`, `mean`, `scale` and `columns`, the names of the columns, are those of a model.
    """

    components: Array
    mean: Array | None
    scale: Array | None
    columns: tuple[str, ...] | None

    @classmethod
    def of(cls, result: Result) -> Step:
        """Take what is needed of a model."""
        names = result.run.get("names")
        columns = None if names is None else tuple(map(str, names))
        spread = float(np.sqrt(result.explained_variance.sum()))
        return cls(result.components, result.mean, result.scale, columns, spread)

    spread: float = 0.0  # how far rows are from their mean, in units of the scale
    taken: str = "rows"  # what it takes, and what it makes
    made: str = "scores"
    prefix: str = "pc"  # of the names of scores

    @property
    @abstractmethod
    def width(self) -> int:
        """How many columns it takes."""

    @property
    @abstractmethod
    def like(self) -> tuple[str, ...] | None:
        """Names of the columns that it takes."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""

    @abstractmethod
    def __call__(self, pieces: Sequence[Piece], dtype: np.dtype[Any]) -> Array:
        """Work on rows in the precision `dtype`."""

    def _numbered(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{i}" for i in range(1, len(self.components) + 1))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes to travel."""
        arrays = self.components, self.mean, self.scale
        return sum(array.nbytes for array in arrays if array is not None)

    def options(self, keep: Sequence[str] = (), told: Options | None = None) -> Options:
        """How rows are read for it; columns to `keep` beside are no surprise.

        What the user has `told` stays, and gaps are filled with the means of the model.
        """
        beside = [name for name in keep if name not in (self.like or ())]
        drop = [*((told and told.drop) or ()), *beside] or None
        means = None if told is None else self.mean
        known = told or Options()
        return replace(known, drop=drop, like=self.like, width=self.width, means=means)

    def of_block(self, block: Any, where: str = "a block") -> Array:
        """Work on a block that holds rows: an array, a sparse matrix or a data frame."""
        found = load_block(block, self.options())
        dtype = work_type(piece.dtype for piece in found.pieces)
        if not found.pieces:
            return np.empty((0, len(self.names)), dtype)
        self.check_width(found.pieces[0].shape[1], where)
        return self.checked(self(found.pieces, dtype), where)

    def checked(self, values: Array, where: str, numbers: Any = None) -> Array:
        """Refuse what cannot be; `numbers` are those of the rows, in `where`."""
        return values

    def check_width(self, columns: int, where: str) -> None:
        """Refuse rows with other columns than those of the model."""
        if columns != self.width:
            raise DataError(
                f"{where} has {columns} columns where the model has {self.width}; give those that "
                "it was fitted on, with columns= or drop="
            )


class ToScores(Step):
    """Project rows on the components: ``(A - 1 meanᵀ) diag(1/scale) componentsᵀ``."""

    @property
    def width(self) -> int:
        """Columns of the data."""
        return int(self.components.shape[1])

    @property
    def like(self) -> tuple[str, ...] | None:
        """Names of the columns that were fitted."""
        return self.columns

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of scores, ``pc1`` and so on."""
        return self._numbered()

    def __call__(self, pieces: Sequence[Piece], dtype: np.dtype[Any]) -> Array:
        """Project some rows; once more where terms leave their type, as sums may be inside."""
        with np.errstate(invalid="ignore", over="ignore"):
            found = self._projected(pieces, dtype)
            if dtype != np.float64 and not np.isfinite(found).all():
                found = self._projected(pieces, np.dtype(np.float64)).astype(dtype)
        return found

    def _projected(self, pieces: Sequence[Piece], dtype: np.dtype[Any]) -> Array:
        matrix = LocalMatrix(Shard(tuple(pieces), self.width, dtype, keep="block"))
        matrix.prepare(self.mean, *dividing(self.scale))
        return _projected(matrix, self.components.T)

    def checked(self, values: Array, where: str, numbers: Any = None) -> Array:
        """Refuse rows that are not finite."""
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
            row = bad if numbers is None else int(numbers[bad])
            raise DataError(
                f"NaN or infinity in {where}, row {row}, or scores too large for their type; "
                "remove such rows or fill in values; where NaN means missing, missing='drop' or "
                "missing='mean' does so (pass localpower.read(data, missing=…) as data)"
            )
        return values


@dataclass(frozen=True, eq=False, repr=False)
class ToRows(Step):
    """Bring scores back to rows in the units of the data."""

    taken: str = "scores"
    made: str = "rows"

    @property
    def width(self) -> int:
        """Components of the model."""
        return len(self.components)

    @property
    def like(self) -> tuple[str, ...] | None:
        """Names of scores, ``pc1`` and so on."""
        return self._numbered()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that were fitted; numbers where there are none."""
        return self.columns or tuple(map(str, range(self.components.shape[1])))

    def __call__(self, pieces: Sequence[Piece], dtype: np.dtype[Any]) -> Array:
        """Bring some scores back."""
        blocks = Shard(tuple(pieces), self.width, dtype, keep="block").blocks()
        scores = [block if isinstance(block, np.ndarray) else block.toarray() for block in blocks]
        return self.rows_of(np.concatenate([np.empty((0, self.width), dtype), *scores]))

    def rows_of(self, scores: Array) -> Array:
        """Bring an array of scores back."""
        rows: Array = scores @ self.components
        if self.scale is None and self.mean is None:
            return rows
        scale = np.ones(1) if self.scale is None else self.scale.astype(np.float64)
        mean = np.zeros(1) if self.mean is None else self.mean.astype(np.float64)
        half = np.where(scale > LARGE, 2.0, 1.0)  # out of range, maybe, until the mean is there
        whole: Array = rows * (scale / half) + mean / half
        with np.errstate(over="ignore"):
            return (half * whole).astype(rows.dtype, copy=False)


def _projected(matrix: LocalMatrix, V: Array) -> Array:
    """``A_i V``, in steps of `SHIFTED` bytes of rows.

    Threads that do a little each in turn wait for each other on a busy machine, so steps are not as
    small as those of `LocalMatrix.apply`; and a shifted copy of a whole block would take longer to
    get from the system than to compute.
    """
    DV = matrix._scaled(V, matrix.dtype)
    out = np.empty((matrix.shape[0], V.shape[1]), matrix.dtype)
    start = 0
    for block, shift in matrix._blocks():
        here = out[start : (start := start + block.shape[0])]
        if not isinstance(block, np.ndarray):
            here[:] = block @ DV
            if shift is not None:
                here -= shift @ DV
        elif shift is None:
            np.matmul(block, DV, out=here)
        else:
            rows = max(1, SHIFTED // max(1, block[:1].nbytes))
            shifted = np.empty_like(block[:rows])
            for first in range(0, len(block), rows):
                part = block[first : first + rows]
                centred = np.subtract(part, shift, out=shifted[: len(part)])
                np.matmul(centred, DV, out=here[first : first + rows])
    return out
