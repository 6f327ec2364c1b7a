"""Everything a data holder can ever be asked, and what it replies.

A task is data: it is called on a `LocalMatrix` and returns a reply. Replies that an engine may add
up define ``+``. Nothing else crosses between the coordinator and a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from localpower.core.alignment import ALIGNMENTS
from localpower.core.linalg import Array, orth_step, qr
from localpower.core.local_matrix import LocalMatrix
from localpower.core.moments import Moments, moments

R = TypeVar("R")


class Task(Generic[R]):
    """What is sent to the shards."""

    __slots__ = ()

    def __call__(self, matrix: LocalMatrix) -> R:
        """Do the work on one shard."""
        raise NotImplementedError

    def for_shard(self, number: int) -> Task[R]:
        """Return what shard `number` receives: the task itself, unless it is scattered."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Scatter(Task[R]):
    """One task per shard, each of which receives its own only."""

    tasks: Sequence[Task[R]]

    def for_shard(self, number: int) -> Task[R]:
        """Return the task of shard `number`."""
        return self.tasks[number]


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A reply without content."""

    def __add__(self, other: Done) -> Done:
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """How a shard will multiply: with its rows (``"products"``) or with ``"gram"``, ``A_iᵀA_i``."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A (d, r) matrix to be summed over shards, and the basis it was taken from if asked for."""

    product: Array
    basis: Array | None = None

    def pair(self) -> tuple[Array, Array]:
        """Product and basis, where the basis was asked for."""
        assert self.basis is not None
        return self.product, self.basis

    def __add__(self, other: Product) -> Product:
        return Product(np.add(self.product, other.product, dtype=np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """The triangular factor ``R_i``, (min(s_i, r), r), of a shard."""

    R: Array


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One row per row of the shard; only `LeftVectors` replies so, when the user asks for U."""

    rows: Array


@dataclass(frozen=True, slots=True, eq=False)
class Eigenvectors:
    """Leading eigenvectors (d, k') and eigenvalues of ``M_i``."""

    vectors: Array
    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class Describe(Task[Moments]):
    """Statistics of the raw columns; their extremes too if `extremes`."""

    extremes: bool

    def __call__(self, matrix: LocalMatrix) -> Moments:
        stats = moments(matrix.shard, matrix.count)
        return stats if self.extremes else stats.without_extremes()


@dataclass(frozen=True, slots=True, eq=False)
class Prepare(Task[Kernel]):
    """From now on work with ``(A_i - 1 shiftᵀ) · 2**-exponent · diag(factor)``.

    About `products` products with (d, `width`) matrices are to come; the shard chooses how.
    """

    shift: Array | None
    factor: Array | float
    exponent: int = 0
    products: int = 0
    width: int = 1

    def __call__(self, matrix: LocalMatrix) -> Kernel:
        matrix.prepare(self.shift, self.factor, self.exponent, self.products, self.width)
        return Kernel(matrix.kernel)


@dataclass(frozen=True, slots=True, eq=False)
class PowerSteps(Task[Product]):
    """`steps` local power iterations from the common basis ``Z``.

    The reply is ``A_iᵀA_i Z_i``, where ``Z_i`` is the basis that the last product is taken from.
    `align` names how the worker itself turns it towards ``Z``; `send_basis` sends ``Z_i`` along
    instead, for the server to align.
    """

    basis: Array
    steps: int
    align: str = "none"
    send_basis: bool = False

    def __call__(self, matrix: LocalMatrix) -> Product:
        Z = self.basis
        with matrix.several_times(self.steps):
            for _ in range(self.steps - 1):
                Z = orth_step(matrix.product(Z), Z)
            Y = matrix.product(Z)
        if self.align != "none":
            Y = Y @ ALIGNMENTS[self.align](Z, self.basis)
        return Product(Y, Z if self.send_basis else None)


@dataclass(frozen=True, slots=True, eq=False)
class Triangle(Task[Factor]):
    """The R factor of ``A_i Z``: of the very factorisation whose Q `LeftVectors` takes."""

    basis: Array

    def __call__(self, matrix: LocalMatrix) -> Factor:
        R = qr(matrix.apply(self.basis).astype(np.float64, copy=False))[1]
        return Factor(R.astype(matrix.dtype, copy=False))


@dataclass(frozen=True, slots=True, eq=False)
class LeftVectors(Task[Rows]):
    """``Q_i P_i``, where ``Q_i`` is the orthonormal factor of ``A_i Z`` and ``P_i`` is given."""

    basis: Array
    rotation: Array

    def __call__(self, matrix: LocalMatrix) -> Rows:
        T = matrix.apply(self.basis).astype(np.float64, copy=False)
        return Rows((qr(T)[0] @ self.rotation).astype(matrix.dtype, copy=False))


@dataclass(frozen=True, slots=True, eq=False)
class ProjectRows(Task[Product]):
    """``A_iᵀ(Q_i P_i)``: like `LeftVectors`, but the vectors stay and their product is sent."""

    basis: Array
    rotation: Array

    def __call__(self, matrix: LocalMatrix) -> Product:
        with matrix.several_times(2):
            return Product(matrix.adjoint(LeftVectors(self.basis, self.rotation)(matrix).rows))


@dataclass(frozen=True, slots=True, eq=False)
class TopVectors(Task[Eigenvectors]):
    """The shard's own `rank` leading eigenvectors, and its eigenvalues if `values`."""

    rank: int
    values: bool = False

    def __call__(self, matrix: LocalMatrix) -> Eigenvectors:
        vectors, values = matrix.top(self.rank)
        return Eigenvectors(vectors, values if self.values else values[:0])
