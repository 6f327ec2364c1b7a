"""Everything a data holder can ever be asked, and what it replies.

A task is data: it is called on a `LocalMatrix` and returns a reply. Replies that an engine may add
up define ``+``. Nothing else crosses between the coordinator and a worker. Arrays in them are
contiguous: some engines would make them so, others not, and products have other last bits then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar

import numpy as np

from localpower.core.alignment import ALIGNMENTS
from localpower.core.ledger import weigh
from localpower.core.linalg import Array, orth, orth_step, qr, triangular
from localpower.core.rounding import from_wire, rounded, rounded_to, shape_of, to_bytes, to_wire
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.moments import Exponents, Moments
from localpower.worker.replies import (
    ROUNDING,
    Eigenvectors,
    Factor,
    Kernel,
    LowRank,
    MeasuredReply,
    PackedSum,
    PackedTriangle,
    Product,
    Proposal,
    Rows,
    packed,
)

R = TypeVar("R")
Shapes = Mapping[str, tuple[int | None, ...]]
TINY = 1e-9  # of the largest column of a factor: one that is smaller may be lost
LOSS = 1e-3  # of squares: deviations from a mean down to which these are good enough
GRADED = 1e-4  # smallest eigenvalue, of the largest, down to which squares of values are


class Task(Generic[R]):
    """What is sent to the shards.

    One that `persists` changes the shard for all tasks to come; it is repeated where a shard has
    to be placed again.
    """

    __slots__ = ()

    @property
    def persists(self) -> bool:
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
class Measure(Task[MeasuredReply[R]]):
    """A task whose replies are weighed where they are made; `key` names the round and attempt."""

    task: Task[R]
    key: str = ""

    @property
    def persists(self) -> bool:
        return self.task.persists

    def for_shard(self, number: int) -> Task[MeasuredReply[R]]:
        mine = self.task.for_shard(number)
        return self if mine is self.task else Measure(mine, self.key)

    def __call__(self, matrix: LocalMatrix) -> MeasuredReply[R]:
        before, start = matrix.bytes_read, perf_counter()
        content = self.task(matrix)
        seconds, read = perf_counter() - start, matrix.bytes_read - before
        size = weigh(content)
        return MeasuredReply(content, *size, read, 1, self.key, matrix.number, seconds, 1)


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
    """Statistics of the raw columns; their extremes too if `extremes`.

    With `checksum`, also that of the rows: it says whether they are those of an earlier run. If a
    Gram matrix comes next, `ahead` says of which rows, ``"centred"`` or ``"plain"``: a shard forms
    it in the same pass over its files.
    """

    extremes: bool
    checksum: bool = False
    ahead: str = ""

    def shapes(self, rows: int, columns: int) -> Shapes:
        extremes = (columns if self.extremes else 0,)
        each = dict.fromkeys(("exponent", "mean", "m2", "rest"), (columns,))
        return {**each, "low": extremes, "high": extremes}

    def __call__(self, matrix: LocalMatrix) -> Moments:
        stats = matrix.moments(self.checksum, self.ahead)
        return stats if self.extremes else stats.without_extremes()


@dataclass(frozen=True, slots=True, eq=False)
class Prepare(Task[Kernel]):
    """From now on work with ``(A_i - 1 shiftᵀ) · 2**-exponent · diag(factor)``.

    About `products` products with (d, `width`) matrices are to come; the shard chooses how. `far`
    says that some columns have a large mean: where they are sparse, they are shifted entry by
    entry. `loss` is what a sparse row adds to the noise.
    """

    shift: Array | None
    factor: Array | float
    exponent: int | Exponents = 0
    products: int = 0
    width: int = 1
    far: bool = True
    loss: float = 0.0

    @property
    def persists(self) -> bool:
        return True

    def __call__(self, matrix: LocalMatrix) -> Kernel:
        how = self.shift, self.factor, self.exponent, self.products, self.width, self.far
        matrix.prepare(*how)
        return Kernel(matrix.kernel, self.loss * matrix.sparse_rows())


@dataclass(frozen=True, slots=True, eq=False)
class PowerSteps(Task[Product]):
    """`steps` local power iterations from the common basis ``Z``.

    The reply is ``A_iᵀA_i Z_i``, where ``Z_i`` is the basis that the last product is taken from.
    `align` names how the worker itself turns it towards ``Z``; `send_basis` sends ``Z_i`` along
    instead, for the server to align. `send_first` sends ``A_iᵀA_i Z`` too, from which the server
    can tell how good Z was. `reply` is the type that products are rounded to, if to any; or each
    column may lose as much as `loss`, in its norm. The basis may be rounded, too. `probes` are
    multiplied once, and answered in their own type.
    """

    basis: Array
    steps: int
    align: str = "none"
    send_basis: bool = False
    send_first: bool = False
    reply: str = ""
    probes: Array | None = None
    loss: float = 0.0

    def shapes(self, rows: int, columns: int) -> Shapes:
        shapes: dict[str, tuple[int | None, ...]]
        shape = shape_of(self.basis)
        shapes = dict.fromkeys(("product", "basis", "first"), shape)
        shapes["lost"] = shape[1:]
        return shapes if self.probes is None else shapes | {"probes": self.probes.shape}

    def __call__(self, matrix: LocalMatrix) -> Product:
        start = Z = from_wire(self.basis, matrix.dtype)
        first = None
        with matrix.rows_loaded(self.steps):
            Y, probed = _with_probes(matrix, Z, self.probes)
            if self.send_first:
                first = Y.copy()
            for _ in range(self.steps - 1):
                Z = orth_step(Y, Z)
                Y = matrix.product(Z)
        if self.align != "none":
            Y = Y @ ALIGNMENTS[self.align](Z, start)
        lost = None
        if self.loss:
            Y, lost = rounded_to(Y, self.loss)
        if self.reply:
            (Y, lost), Z = rounded(Y, self.reply), to_wire(Z, self.reply)
            if first is not None:
                first, lost = rounded(first, self.reply)
        return Product(Y, Z if self.send_basis else None, first, probed, lost)


def _with_probes(matrix: LocalMatrix, Z: Array, probes: Array | None) -> tuple[Array, Array | None]:
    """Products of a basis and of probes, in one pass over the rows."""
    if probes is None:
        return matrix.product(Z), None
    both = matrix.product(np.hstack([Z, probes.astype(matrix.dtype, copy=False)]))
    r = Z.shape[1]
    return np.ascontiguousarray(both[:, :r]), np.ascontiguousarray(both[:, r:], probes.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Refine(Task[Proposal]):
    """``A_iᵀA_i Q`` for the block Q, and drift-corrected local power steps from the basis X.

    With ``M_a = (n/s_i) A_iᵀA_i`` and the exact image ``G = AᵀA X``, a step is
    ``Z ← orth(M_a Z + (G - M_a X)(XᵀZ))``: the true subspace is a fixed point of it, so many steps
    are safe. What is proposed is Z, turned towards X, times the shard's part ``s_i/n`` of the rows.
    Each column of the product may lose as much as `loss`, in its norm. `proposal` is the type that
    what is proposed is rounded to, if to any; then only the part outside of X is sent. `probes` are
    multiplied once, and answered in their own type.
    """

    block: Array
    basis: Array
    image: Array
    steps: int
    rows: int
    loss: float = 0.0
    proposal: str = ""
    probes: Array | None = None

    def shapes(self, rows: int, columns: int) -> Shapes:
        shapes: dict[str, tuple[int | None, ...]]
        block = shape_of(self.block)
        shapes = {"product": block, "proposal": shape_of(self.basis), "lost": block[1:]}
        return shapes if self.probes is None else shapes | {"probes": self.probes.shape}

    def __call__(self, matrix: LocalMatrix) -> Proposal:
        block, X, image = (from_wire(A, matrix.dtype) for A in (self.block, self.basis, self.image))
        part = matrix.shape[0] / self.rows
        with matrix.rows_loaded(self.steps + 2):
            product, probed = block, None
            if block.size or self.probes is not None:
                product, probed = _with_probes(matrix, block, self.probes)
            product, lost = rounded_to(product, self.loss)
            if not part:
                return Proposal(product, to_wire(np.zeros_like(X), self.proposal), probed, lost)
            drift = image - matrix.product(X) / part
            Z = X
            for _ in range(self.steps):
                Z = orth(matrix.product(Z) / part + drift @ (X.T @ Z), overwrite=True)
                Z = Z.astype(matrix.dtype, copy=False)
        aligned = Z @ ALIGNMENTS["procrustes"](Z, X)
        if self.proposal:  # what is new of it: rounding is relative to that
            aligned = aligned - X @ (X.T @ aligned)
        proposal = (part * aligned).astype(matrix.dtype, copy=False)
        return Proposal(product, to_wire(proposal, self.proposal), probed, lost)


@dataclass(frozen=True, slots=True, eq=False)
class Triangle(Task[Factor]):
    """The R factor of ``A_i Z``, with a positive diagonal; `LeftVectors` takes the Q to it.

    With `gram` it is the Cholesky factor of ``Zᵀ(A_iᵀA_i)Z``, if the shard may keep
    ``A_iᵀA_i`` and no more than four digits are lost: that takes no pass over the rows. With
    `variance`, mean and scatter of ``A_i Z`` are sent along; `far` says that the mean is large.
    """

    basis: Array
    gram: bool = False
    variance: bool = False
    far: bool = False

    def shapes(self, rows: int, columns: int) -> Shapes:
        width = self.basis.shape[1]
        scatter = (width * (width + 1) // 2,)
        return {"R": (min(rows, width), width), "mean": (width,), "scatter": scatter}

    def __call__(self, matrix: LocalMatrix) -> Factor:
        rows, R, spread = matrix.shape[0], None, None
        if self.gram and matrix.gram_is_small():
            H = self.basis.T @ matrix.kept_gram() @ self.basis
            R = _cholesky(H)
            spread = _less_mean(H, rows, matrix.mean() @ self.basis) if self.variance else None
        if R is None or (self.variance and spread is None):
            T = matrix.apply(self.basis).astype(np.float64, copy=False)
            R = triangular(T)
            R = R * signs(R)[:, None]
            spread = _spread(T) if self.variance else None
        kind, R = matrix.dtype, np.ascontiguousarray(R, matrix.dtype)
        if spread is None:
            return Factor(R)
        if self.far and kind == np.float32:  # deviations from a large mean need more digits
            kind = np.dtype(np.float64)
            spread = _spread(matrix.apply(self.basis, kind))
        mean, scatter = (A.astype(kind, copy=False) for A in spread)
        return Factor(R, rows, mean, packed(scatter))


def signs(R: Array) -> Array:
    """What makes the diagonal positive."""
    return np.where(np.diagonal(R) < 0, -1.0, 1.0)


def _spread(T: Array) -> tuple[Array, Array]:
    """Mean of the rows of T, and the sum of products of their deviations, which T becomes."""
    mean = T.sum(axis=0) / max(len(T), 1)
    T -= mean
    drift = T.sum(axis=0) / max(len(T), 1)  # of a mean that is large against the deviations
    return mean + drift, T.T @ T - len(T) * np.outer(drift, drift)


def _less_mean(H: Array, rows: int, mean: Array) -> tuple[Array, Array] | None:
    """The same from sums of products of T itself, if no more than three digits are lost."""
    scatter = H - rows * np.outer(mean, mean)
    return (mean, scatter) if np.trace(scatter) > LOSS * np.trace(H) else None


def _cholesky(H: Array) -> Array | None:
    """Upper Cholesky factor of a matrix that is far from singular; else None."""
    least, most = np.linalg.eigvalsh(H)[[0, -1]]
    return np.linalg.cholesky(H).T if least > GRADED * most else None


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
        with matrix.rows_loaded(2):
            return Product(matrix.adjoint(LeftVectors(self.basis, self.rotation)(matrix).rows))


@dataclass(frozen=True, slots=True, eq=False)
class LeadingFactor(Task[LowRank]):
    """The shard's own leading `width` eigenpairs, ``V_i Λ_i^{1/2}``, and a bound of what is left.

    Sums keep `most` columns. Rounding may change each pair by the part `loss` of the largest
    eigenvalue; the bound has what it does to all. Of a `part` of the shard's squares, `times` as
    many pairs are enough as explain that.
    """

    width: int
    most: int
    loss: float = 0.0
    part: float = 1.0
    times: int = 1

    def shapes(self, rows: int, columns: int) -> Shapes:
        return {"factor": (columns, None)}

    def __call__(self, matrix: LocalMatrix) -> LowRank:
        factor, rest = matrix.leading_factor(self.width)
        if self.part < 1:
            squares = np.square(factor, dtype=np.float64).sum(axis=0)
            enough = np.searchsorted(np.cumsum(squares), self.part * matrix.trace(), "right") + 1
            rest += float(squares[self.times * enough :][:1].sum())
            factor = np.ascontiguousarray(factor[:, : self.times * enough])
        sent, changed = factor, 0.0
        if self.loss and factor.size:
            wide = factor.astype(np.float64, copy=False)
            sizes = np.linalg.norm(wide, axis=0)
            top = float(sizes.max())
            sent = to_bytes(factor, self.loss * top**2 / np.maximum(sizes, TINY * top or 1.0))
            changed = _changed(wide, from_wire(sent) - wide)
        return LowRank(np.ascontiguousarray(sent), rest + changed, self.most, changed)


def _changed(F: Array, E: Array) -> float:
    """``‖(F + E)(F + E)ᵀ - FFᵀ‖``, in terms of the R factor of both."""
    R = triangular(np.hstack([F, E]))
    R, D = np.split(R, 2, axis=1)
    half = R @ D.T
    ends = np.linalg.eigvalsh(half + half.T + D @ D.T)[[0, -1]]
    rounding = ROUNDING * float(np.finfo(np.float64).eps) * float(np.linalg.norm(F)) ** 2
    return float(np.abs(ends).max()) + rounding


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
