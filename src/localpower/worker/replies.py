"""What shards reply, and how replies are added.

Replies that an engine may add up define ``+``, or `plus` where the first may become the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, iadd
from typing import Generic, TypeVar

import numpy as np

from localpower.core.linalg import Addend, Array, triangular
from localpower.core.rounding import from_wire

R = TypeVar("R")
MIXED = "mixed"  # the key of a sum of replies that do not belong together
SLOWEST = 4  # times of single shards that a sum of replies keeps
ROUNDING = 8.0  # units of eps that rounding may do to a sum of squares


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredReply(Addend, Generic[R]):
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

    def plus(self, other: MeasuredReply[R], own: bool) -> MeasuredReply[R]:
        add_to: Callable[[R, R], R] = iadd if own else add
        fits = self.key == other.key and self.number + self.count == other.number
        return MeasuredReply(
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
class Done:
    """A reply without content."""

    def __add__(self, other: Done) -> Done:
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """How a shard will multiply: with its rows (``"products"``) or with ``"gram"``, ``A_iᵀA_i``.

    `noise` bounds, in the spectral norm, what cancels in its products beyond ordinary rounding.
    """

    name: str
    noise: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Product(Addend):
    """A (d, r) matrix to be summed over shards, and the basis it was taken from if asked for.

    `first` is the product of the broadcast basis, if asked for: its sum is exact. `probes` is that
    of probes, if there are any. `lost` (r,) has the norms of what rounding for the wire took from
    the columns of the product of the broadcast basis. A `stale` product, or a sum with one, rests
    on what a shard replied to an earlier question: nothing can be certified with it.
    """

    product: Array
    basis: Array | None = None
    first: Array | None = None
    probes: Array | None = None
    lost: Array | None = None
    stale: bool = False

    def pair(self) -> tuple[Array, Array]:
        """Product and basis, where the basis was asked for."""
        assert self.basis is not None
        if self.product.dtype == np.uint16:
            return from_wire(self.product), from_wire(self.basis)
        return self.product, self.basis

    def plus(self, other: Product, own: bool) -> Product:
        return Product(
            added(self.product, other.product, own),
            first=_both(self.first, other.first, own),
            probes=_both(self.probes, other.probes, own),
            lost=_both(self.lost, other.lost, own),
            stale=self.stale or other.stale,
        )


def _both(A: Array | None, B: Array | None, own: bool) -> Array | None:
    return None if A is None or B is None else added(A, B, own)


def added(A: Array, B: Array, own: bool = False) -> Array:
    """Sum in float64, of what may have been rounded for the wire; A becomes it if we `own` that."""
    A, B = (from_wire(C) if C.dtype in (np.uint8, np.uint16) else C for C in (A, B))
    if A.shape != B.shape:
        raise ValueError(f"arrays of {A.shape} and {B.shape}")
    own = own and A.dtype == np.float64 and A.flags.writeable
    return np.add(A, B, out=A if own else None, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """The triangular factor ``R_i``, (min(s_i, r), r), of a shard.

    If asked for, with the number of rows of ``A_i Z``, their `mean` (r,) and `scatter`: the upper
    triangle of the sum of products of their deviations from it.
    """

    R: Array
    rows: int = 0
    mean: Array | None = None
    scatter: Array | None = None


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
class LowRank:
    """A factor F, (d, c), of some rows A: ``FFᵀ - over·I ⪯ AᵀA ⪯ FFᵀ + rest·I``.

    Without rounding for the wire, `over` is 0. The sum is of all rows. It keeps `width` columns,
    the leading ones; what it drops is added to `rest`.
    """

    factor: Array
    rest: float
    width: int
    over: float = 0.0

    def __add__(self, other: LowRank) -> LowRank:
        factors = [F if F.dtype != np.uint8 else from_wire(F) for F in (self.factor, other.factor)]
        rest, over = self.rest + other.rest, self.over + other.over
        both = LowRank(np.hstack(factors), rest, self.width, over)
        return both if both.factor.shape[1] <= self.width else both.cut(self.width)

    def cut(self, width: int) -> LowRank:
        """Keep the leading `width` columns: ``FV``, with the leading eigenvectors V of ``FᵀF``."""
        F = from_wire(self.factor)
        squares, V = np.linalg.eigh(F.T @ F)
        left = F.shape[1] - width
        dropped = max(float(squares[left - 1]), 0.0) if left > 0 else 0.0
        lost = ROUNDING * np.finfo(np.float64).eps * float(squares[-1:].sum())
        kept = np.ascontiguousarray(F @ V[:, ::-1][:, :width])
        return LowRank(kept, self.rest + dropped + lost, self.width, self.over)


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
    return np.concatenate([row[i:] for i, row in enumerate(R)] or [np.empty(0, R.dtype)])


def unpacked(triangle: Array, columns: int) -> Array:
    """Undo `packed`; zeros below."""
    R = np.zeros((columns, columns), triangle.dtype)
    at = 0
    for i in range(columns):
        R[i, i:] = triangle[at : (at := at + columns - i)]
    return R


@dataclass(frozen=True, slots=True, eq=False)
class Proposal(Addend):
    """An exact product (d, b), and what the shard proposes (d, r); both are summed over shards.

    `probes` is the product of probes, if there are any. `lost` (b,) has the norms of what rounding
    for the wire took from the columns of the product.
    """

    product: Array
    proposal: Array
    probes: Array | None = None
    lost: Array | None = None

    def plus(self, other: Proposal, own: bool) -> Proposal:
        return Proposal(
            added(self.product, other.product, own),
            added(self.proposal, other.proposal, own),
            _both(self.probes, other.probes, own),
            _both(self.lost, other.lost, own),
        )
