"""Everything a data holder can ever be asked, and what it replies.

A task is data: it is called on a `LocalMatrix` and returns a reply. Replies that an engine may add
up define ``+``. Nothing else crosses between the coordinator and a worker. Arrays in them are
contiguous: some engines would make them so, others not, and products have other last bits then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add, iadd
from time import perf_counter
from typing import Generic, TypeVar

import numpy as np

from localpower.core.alignment import ALIGNMENTS
from localpower.core.ledger import weigh
from localpower.core.linalg import Addend, Array, orth, orth_step, qr, triangular
from localpower.core.local_matrix import LocalMatrix
from localpower.core.moments import Moments
from localpower.core.precision import narrowed, widened

R = TypeVar("R")
Shapes = Mapping[str, tuple[int | None, ...]]
MIXED = "mixed"  # the key of a sum of replies that do not belong together
SLOWEST = 4  # times of single shards that a sum of replies keeps
LOSS = 1e-3  # smallest eigenvalue, of the largest, down to which squares of values are good enough


class Task(Generic[R]):
    """What is sent to the shards.

    One that `lasts` changes the shard for all tasks to come; it is repeated where a shard has to be
    placed again.
    """

    __slots__ = ()

    @property
    def lasts(self) -> bool:
        """Whether the shard is another afterwards."""
        return False

    def __call__(self, matrix: LocalMatrix) -> R:
        """Do the work on one shard."""
        raise NotImplementedError

    def shapes(self, rows: int, columns: int) -> Shapes:
        """Shapes of arrays in the reply of a shard with so many rows; None is any number."""
        return {}

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
class Weighed(Addend, Generic[R]):
    """A reply, or a sum of `count` of them: their words and bytes, what was read from files.

    `key` is that of the task and `number` that of the shard (of a sum, the first), so that a reply
    to another question, or of another shard, is not taken for it. In the one fixed order, shards
    that are added follow each other: the key of any other sum says that it is none. `seconds` is
    what the work took where it was done, of `timed` replies; of a sum, `slowest` has the longest
    with their shards.
    """

    content: R
    words: int
    size: int
    read: int
    count: int
    key: str
    number: int
    seconds: float = 0.0
    timed: int = 0
    slowest: tuple[tuple[float, int], ...] = ()

    def times(self) -> tuple[tuple[float, int], ...]:
        """The longest times, with the numbers of their shards."""
        return self.slowest or ((self.seconds, self.number),) * (self.timed == 1)

    def plus(self, other: Weighed[R], own: bool) -> Weighed[R]:
        add_to: Callable[[R, R], R] = iadd if own else add
        fits = self.key == other.key and self.number + self.count == other.number
        return Weighed(
            add_to(self.content, other.content),
            self.words + other.words,
            self.size + other.size,
            self.read + other.read,
            self.count + other.count,
            self.key if fits else MIXED,
            self.number,
            self.seconds + other.seconds,
            self.timed + other.timed,
            tuple(sorted((*self.times(), *other.times()), reverse=True)[:SLOWEST]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Weigh(Task[Weighed[R]]):
    """A task whose replies are weighed where they are made; `key` names the round and attempt."""

    task: Task[R]
    key: str = ""

    @property
    def lasts(self) -> bool:
        return self.task.lasts

    def for_shard(self, number: int) -> Task[Weighed[R]]:
        mine = self.task.for_shard(number)
        return self if mine is self.task else Weigh(mine, self.key)

    def __call__(self, matrix: LocalMatrix) -> Weighed[R]:
        before, start = matrix.bytes_read, perf_counter()
        content = self.task(matrix)
        seconds, read = perf_counter() - start, matrix.bytes_read - before
        size = weigh(content)
        return Weighed(content, *size, read, 1, self.key, matrix.number, seconds, 1)


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
class Product(Addend):
    """A (d, r) matrix to be summed over shards, and the basis it was taken from if asked for.

    `first` is the product of the broadcast basis, if asked for: its sum is exact.
    """

    product: Array
    basis: Array | None = None
    first: Array | None = None

    def pair(self) -> tuple[Array, Array]:
        """Product and basis, where the basis was asked for."""
        assert self.basis is not None
        if self.product.dtype == np.uint16:
            return widened(self.product), widened(self.basis)
        return self.product, self.basis

    def plus(self, other: Product, own: bool) -> Product:
        first = None
        if self.first is not None and other.first is not None:
            first = added(self.first, other.first, own)
        return Product(added(self.product, other.product, own), first=first)


def added(A: Array, B: Array, own: bool = False) -> Array:
    """Sum in float64, of what may have been rounded for the wire; A becomes it if we `own` that."""
    if A.shape != B.shape:
        raise ValueError(f"arrays of {A.shape} and {B.shape}")
    if np.uint16 in (A.dtype, B.dtype):
        A, B = widened(A), widened(B)
    own = own and A.dtype == np.float64 and A.flags.writeable
    return np.add(A, B, out=A if own else None, dtype=np.float64)


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
class PackedSum(Addend):
    """The upper triangle of a symmetric (d, d) matrix, row after row; the matrices are added."""

    packed: Array

    def plus(self, other: PackedSum, own: bool) -> PackedSum:
        return PackedSum(added(self.packed, other.packed, own))


@dataclass(frozen=True, slots=True, eq=False)
class PackedTriangle:
    """The R factor, (d, d), of some rows, row after row; the sum is that of all rows."""

    packed: Array
    columns: int

    def __add__(self, other: PackedTriangle) -> PackedTriangle:
        both = np.vstack([unpacked(R.packed, self.columns) for R in (self, other)])
        return PackedTriangle(packed(triangular(both)), self.columns)


def packed(R: Array) -> Array:
    """Upper triangle of a (d, d) matrix, row after row."""
    return np.ascontiguousarray(R[np.triu_indices(R.shape[1])])


def unpacked(triangle: Array, columns: int) -> Array:
    """Undo `packed`; zeros below."""
    R = np.zeros((columns, columns), triangle.dtype)
    R[np.triu_indices(columns)] = triangle
    return R


@dataclass(frozen=True, slots=True, eq=False)
class GramTriangle(Task[PackedSum]):
    """``A_iᵀA_i``, in float64."""

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"packed": (columns * (columns + 1) // 2,)}

    def __call__(self, matrix: LocalMatrix) -> PackedSum:
        return PackedSum(packed(matrix.kept_gram() if matrix.gram_is_small() else matrix.gram()))


@dataclass(frozen=True, slots=True, eq=False)
class LocalTriangle(Task[PackedTriangle]):
    """The R factor of ``A_i``, in float64."""

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"packed": (columns * (columns + 1) // 2,)}

    def __call__(self, matrix: LocalMatrix) -> PackedTriangle:
        return PackedTriangle(packed(matrix.triangle()), matrix.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Describe(Task[Moments]):
    """Statistics of the raw columns; their extremes too if `extremes`."""

    extremes: bool

    def shapes(self, rows: int, columns: int) -> Shapes:
        extremes = (columns if self.extremes else 0,)
        return {"mean": (columns,), "m2": (columns,), "low": extremes, "high": extremes}

    def __call__(self, matrix: LocalMatrix) -> Moments:
        stats = matrix.moments()
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

    @property
    def lasts(self) -> bool:
        return True

    def __call__(self, matrix: LocalMatrix) -> Kernel:
        matrix.prepare(self.shift, self.factor, self.exponent, self.products, self.width)
        return Kernel(matrix.kernel)


@dataclass(frozen=True, slots=True, eq=False)
class PowerSteps(Task[Product]):
    """`steps` local power iterations from the common basis ``Z``.

    The reply is ``A_iᵀA_i Z_i``, where ``Z_i`` is the basis that the last product is taken from.
    `align` names how the worker itself turns it towards ``Z``; `send_basis` sends ``Z_i`` along
    instead, for the server to align. `send_first` sends ``A_iᵀA_i Z`` too, from which the server
    can tell how good Z was. `reply` is the type that products are rounded to, if to any; the basis
    may be in such a type, too.
    """

    basis: Array
    steps: int
    align: str = "none"
    send_basis: bool = False
    send_first: bool = False
    reply: str = ""

    def shapes(self, rows: int, columns: int) -> Shapes:
        return dict.fromkeys(("product", "basis", "first"), self.basis.shape)

    def __call__(self, matrix: LocalMatrix) -> Product:
        start = Z = widened(self.basis, matrix.dtype)
        first = None
        with matrix.several_times(self.steps):
            Y = matrix.product(Z)
            if self.send_first:
                first = Y.copy()
            for _ in range(self.steps - 1):
                Z = orth_step(Y, Z)
                Y = matrix.product(Z)
        if self.align != "none":
            Y = Y @ ALIGNMENTS[self.align](Z, start)
        if self.reply:
            Y, Z = narrowed(Y, self.reply), narrowed(Z, self.reply)
            first = None if first is None else narrowed(first, self.reply)
        return Product(Y, Z if self.send_basis else None, first)


@dataclass(frozen=True, slots=True, eq=False)
class Proposal(Addend):
    """An exact product (d, b), and what the shard proposes (d, r); both are summed over shards."""

    product: Array
    proposal: Array

    def plus(self, other: Proposal, own: bool) -> Proposal:
        product = added(self.product, other.product, own)
        return Proposal(product, added(self.proposal, other.proposal, own))


@dataclass(frozen=True, slots=True, eq=False)
class Refine(Task[Proposal]):
    """``A_iᵀA_i Q`` for the block Q, and drift-corrected local power steps from the basis X.

    With ``M_a = (n/s_i) A_iᵀA_i`` and the exact image ``G = AᵀA X``, a step is
    ``Z ← orth(M_a Z + (G - M_a X)(XᵀZ))``: the true subspace is a fixed point of it, so many steps
    are safe. What is proposed is Z, turned towards X, times the shard's part ``s_i/n`` of the rows.
    `reply` and `proposal` are the types that both are rounded to, if to any; of a proposal that is
    rounded, only the part outside of X is sent.
    """

    block: Array
    basis: Array
    image: Array
    steps: int
    rows: int
    reply: str = ""
    proposal: str = ""

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"product": self.block.shape, "proposal": self.basis.shape}

    def __call__(self, matrix: LocalMatrix) -> Proposal:
        block, X, image = (widened(A, matrix.dtype) for A in (self.block, self.basis, self.image))
        part = matrix.shape[0] / self.rows
        with matrix.several_times(self.steps + 2):
            product = narrowed(matrix.product(block) if block.size else block, self.reply)
            if not part:
                return Proposal(product, narrowed(np.zeros_like(X), self.proposal))
            drift = image - matrix.product(X) / part
            Z = X
            for _ in range(self.steps):
                Z = orth(matrix.product(Z) / part + drift @ (X.T @ Z), overwrite=True)
                Z = Z.astype(matrix.dtype, copy=False)
        aligned = Z @ ALIGNMENTS["procrustes"](Z, X)
        if self.proposal:  # what is new of it: rounding is relative to that
            aligned = aligned - X @ (X.T @ aligned)
        proposal = (part * aligned).astype(matrix.dtype, copy=False)
        return Proposal(product, narrowed(proposal, self.proposal))


@dataclass(frozen=True, slots=True, eq=False)
class Triangle(Task[Factor]):
    """The R factor of ``A_i Z``, with a positive diagonal; `LeftVectors` takes the Q to it.

    With `gram`, in float64, it is the Cholesky factor of ``Zᵀ(A_iᵀA_i)Z``, if the shard may keep
    ``A_iᵀA_i`` and no more than three digits are lost: that takes no pass over the rows.
    """

    basis: Array
    gram: bool = False

    def shapes(self, rows: int, columns: int) -> Shapes:
        width = self.basis.shape[1]
        return {"R": (min(rows, width), width)}

    def __call__(self, matrix: LocalMatrix) -> Factor:
        R = None
        if self.gram and matrix.dtype == np.float64 and matrix.gram_is_small():
            R = _cholesky(self.basis.T @ matrix.kept_gram() @ self.basis)
        if R is None:
            R = triangular(matrix.apply(self.basis).astype(np.float64, copy=False))
            R = R * signs(R)[:, None]
        return Factor(np.ascontiguousarray(R, matrix.dtype))


def signs(R: Array) -> Array:
    """What makes the diagonal positive."""
    return np.where(np.diagonal(R) < 0, -1.0, 1.0)


def _cholesky(H: Array) -> Array | None:
    """Upper Cholesky factor of a matrix that is far from singular; else None."""
    least, most = np.linalg.eigvalsh(H)[[0, -1]]
    return np.linalg.cholesky(H).T if least > LOSS * most else None


@dataclass(frozen=True, slots=True, eq=False)
class LeftVectors(Task[Rows]):
    """``Q_i P_i``, where ``Q_i`` is the orthonormal factor of ``A_i Z`` and ``P_i`` is given."""

    basis: Array
    rotation: Array

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"rows": (rows, self.rotation.shape[1])}

    def __call__(self, matrix: LocalMatrix) -> Rows:
        T = matrix.apply(self.basis).astype(np.float64, copy=False)
        Q, R = qr(T)
        return Rows((Q * signs(R) @ self.rotation).astype(matrix.dtype, copy=False))


@dataclass(frozen=True, slots=True, eq=False)
class ProjectRows(Task[Product]):
    """``A_iᵀ(Q_i P_i)``: like `LeftVectors`, but the vectors stay and their product is sent."""

    basis: Array
    rotation: Array

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"product": (columns, self.rotation.shape[1])}

    def __call__(self, matrix: LocalMatrix) -> Product:
        with matrix.several_times(2):
            return Product(matrix.adjoint(LeftVectors(self.basis, self.rotation)(matrix).rows))


@dataclass(frozen=True, slots=True, eq=False)
class TopVectors(Task[Eigenvectors]):
    """The shard's own `rank` leading eigenvectors, and its eigenvalues if `values`."""

    rank: int
    values: bool = False

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"vectors": (columns, None), "values": (None,)}

    def __call__(self, matrix: LocalMatrix) -> Eigenvectors:
        vectors, values = matrix.top(self.rank)
        return Eigenvectors(vectors, values if self.values else values[:0])
