"""The few building blocks that the methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial, reduce
from itertools import islice
from operator import add, iadd
from typing import Any, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import LocalPowerError, WorkerFailed

Array = NDArray[np.floating[Any]]
T = TypeVar("T")
EPS = float(np.finfo(np.float64).eps)

FAN_IN = 8
TALL = 1 << 16  # rows from which columns are orthonormalised by blocks of rows
STEP = TALL // 8
NARROW, SHORT = 32, 128  # columns up to which QR takes blocks of so few rows
TURN = 1e-2  # of vectors that are put right: more is not small
EIGH_COLUMNS = 200  # beyond, a few leading eigenpairs are found faster by Lanczos iteration


def svd(A: Array) -> tuple[Array, Array, Array]:
    """Singular value decomposition, (m, k), (k,) and (k, n) where k is the smaller of m and n.

    Divide and conquer fails for some matrices with some builds of LAPACK, which say so; QR
    iteration does not.
    """
    try:
        U, sizes, Vt = np.linalg.svd(A, full_matrices=False)
    except np.linalg.LinAlgError:
        if not np.isfinite(A).all():
            raise
        from scipy.linalg import svd as with_driver

        U, sizes, Vt = with_driver(A, full_matrices=False, lapack_driver="gesvd")
    return U, sizes, Vt


def accurate_svd(A: Array) -> tuple[Array, Array, Array]:
    """The same, with vectors right to rounding: LAPACK takes up to 50 units of it for nothing.

    What ``UᵀAV`` has beside its diagonal is put right by turning both, to first order, but for
    values so near each other that the turn would be large.
    """
    U, sizes, Vt = svd(A)
    rest, squares = U.T @ A @ Vt.T, np.square(sizes)
    apart = squares - squares[:, None]
    both = rest * sizes + rest.T * sizes[:, None], rest.T * sizes + rest * sizes[:, None]
    small = np.maximum(*np.abs(both)) < TURN * np.abs(apart)
    for vectors, off in zip((U.T, Vt), both, strict=True):
        turn = np.divide(off, apart, out=np.zeros_like(off), where=small)
        Q, R = qr(vectors.T + vectors.T @ turn)
        vectors[:] = (Q * np.sign(np.diagonal(R))).T
    return U, sizes, Vt


def eigen(H: Array) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and eigenvectors of a small symmetric matrix; its lower half counts.

    The last ones are remembered, as a state is asked for the same ones again and again: so they
    are not to be changed.
    """
    return _eigen(np.asarray(H, np.float64).tobytes(), len(H))


@lru_cache(maxsize=4)
def _eigen(numbers: bytes, size: int) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(np.frombuffer(numbers).reshape(size, size), "L")
    values.setflags(write=False)
    vectors.setflags(write=False)
    return values, vectors


def largest_eigenvalue(H: Array) -> float:
    """The same of the largest eigenvalue alone, which is as often asked for."""
    return _largest(np.asarray(H, np.float64).tobytes(), len(H))


@lru_cache(maxsize=8)
def _largest(numbers: bytes, size: int) -> float:
    return float(np.linalg.eigvalsh(np.frombuffer(numbers).reshape(size, size))[-1])


def orth(Y: Array, overwrite: bool = False) -> Array:
    """Orthonormal basis of the columns of `Y`, by Householder QR; of a tall `Y`, by Cholesky.

    The result has as many columns as `Y` even when those are dependent or zero: the missing
    directions are filled with orthonormal ones, so a poor shard never yields a NaN. It may take the
    place of `Y` if that is not needed any more.
    """
    if len(Y) >= TALL:
        out = Y if overwrite else Y.copy()
        if _cholesky_orth(out):
            return out
    return qr(Y)[0]


def _cholesky_orth(Y: Array) -> bool:
    """Orthonormalise columns in place, by the Cholesky factor of ``YᵀY``, and once more.

    Twice is as good as Householder for columns that are far from dependent; others are left
    untouched and refused.
    """
    G = _gram(Y)
    norms = np.sqrt(np.diagonal(G))
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        return False
    least = np.linalg.eigvalsh(G / np.outer(norms, norms))[0]
    if least < max(1e-10, 4 * float(np.finfo(Y.dtype).eps)):
        return False
    for _ in range(2):
        inverse = np.linalg.inv(np.linalg.cholesky(G)).T
        for at in range(0, len(Y), STEP):
            Y[at : at + STEP] = Y[at : at + STEP] @ inverse
        G = _gram(Y)
    return True


def _gram(Y: Array) -> Array:
    G = np.zeros((Y.shape[1], Y.shape[1]))
    for at in range(0, len(Y), STEP):
        part = Y[at : at + STEP].astype(np.float64, copy=False)
        G += part.T @ part
    return G


def qr(Y: Array) -> tuple[Array, Array]:
    """Householder QR, ``Y = QR``.

    A matrix with very many rows is factored block by block, then the triangles of the blocks: one
    array of its size is made, where LAPACK through numpy makes three. Narrow ones are cut to short
    blocks, as rows that are alike would round a long sum the same way again and again.
    """
    rows, r = Y.shape
    if rows < 2 * SHORT or (rows < TALL and r > NARROW) or r > STEP // 4:
        Q, R = np.linalg.qr(Y)
        return Q, R
    Q, starts = np.empty_like(Y), range(0, rows, STEP)
    triangles = []
    for at in starts:
        Q[at : at + STEP], R = _short_qr(Y[at : at + STEP])
        triangles.append(R)
    P, R = qr(np.vstack(triangles))
    used = 0
    for at, own in zip(starts, triangles, strict=True):
        part, turn = Q[at : at + STEP], P[used : (used := used + len(own))]
        short = SHORT if r <= NARROW else len(part)
        for number in range(len(own) // r):
            some = slice(number * short, (number + 1) * short)
            part[some] = part[some] @ turn[number * r : (number + 1) * r]
    return Q, R


def triangular(Y: Array) -> Array:
    """The R factor alone, the same as that of `qr`."""
    rows, r = Y.shape
    if rows < 2 * SHORT or (rows < TALL and r > NARROW) or r > STEP // 4:
        R: Array = np.linalg.qr(Y, mode="r")  # type: ignore[assignment]
        return R
    return triangular(
        np.vstack([_short_triangles(Y[at : at + STEP]) for at in range(0, rows, STEP)])
    )


def _short_qr(Y: Array) -> tuple[Array, Array]:
    """QR of every `SHORT` rows of narrow columns, or of all: Q in the place of Y, all R stacked."""
    rows, r = Y.shape
    if r > NARROW:
        return _padded_qr(Y)
    whole = rows // SHORT * SHORT
    Q, R = np.linalg.qr(Y[:whole].reshape(-1, SHORT, r))
    Q, R = Q.reshape(-1, r), R.reshape(-1, r)
    if whole == rows:
        return Q, R
    last = _padded_qr(Y[whole:])
    return np.vstack([Q, last[0]]), np.vstack([R, last[1]])


def _short_triangles(Y: Array) -> Array:
    """The R of the same."""
    rows, r = Y.shape
    whole = 0 if r > NARROW else rows // SHORT * SHORT
    many: Array = np.linalg.qr(Y[:whole].reshape(-1, SHORT, r), mode="r")  # type: ignore[assignment]
    R = many.reshape(-1, r)
    if whole == rows:
        return R
    last: Array = np.linalg.qr(Y[whole:], mode="r")  # type: ignore[assignment]
    return np.vstack([R, np.pad(last, ((0, r - len(last)), (0, 0)))])


def short_product(A: Array, B: Array) -> Array:
    """``AᵀB`` of some rows of both; where that is small, sums are short, as those of `qr`.

    BLAS cuts long sums of larger products only, and not on every machine those of small ones.
    """
    d, r = A.shape[1], B.shape[1]
    if d * r > NARROW**2:
        return A.T @ B
    whole = len(A) // SHORT * SHORT
    parts = A[:whole].reshape(-1, SHORT, d).transpose(0, 2, 1), B[:whole].reshape(-1, SHORT, r)
    total: Array = (parts[0] @ parts[1]).sum(axis=0, dtype=np.float64)
    return total + A[whole:].T @ B[whole:]


def _padded_qr(Y: Array) -> tuple[Array, Array]:
    """QR with a square R also where Y has fewer rows than columns; what is missing is zero."""
    Q, R = np.linalg.qr(Y)
    r = Y.shape[1]
    missing = r - Q.shape[1]
    return np.pad(Q, ((0, 0), (0, missing))), np.pad(R, ((0, missing), (0, 0)))


def orth_step(Y: Array, Z: Array) -> Array:
    """Orthonormal basis after the power step ``Y = M Z``.

    It is ``orth(Y)`` where Y has full rank. A shard with fewer rows than Z has columns says nothing
    about some directions in the span of Z; those are left as they were. (Householder QR would make
    them up from rounding errors, and the alignment, and with it the result, a matter of chance.)
    The result may take the place of Y.
    """
    if len(Y) >= TALL and _cholesky_orth(Y):
        return Y
    Q, R = qr(Y)
    norms = np.linalg.norm(R, axis=0)
    share = np.abs(np.diagonal(R)) / np.where(norms > 0, norms, 1)
    if (share < np.sqrt(np.finfo(Y.dtype).eps)).any():
        _leave_rest(Q, Y, Z, share)
    return Q


def _leave_rest(Q: Array, Y: Array, Z: Array, share: Array) -> None:
    """Where Y lacks rank, fill Q up with what of Z's span is orthogonal to the range of Y."""
    noise = Y.shape[0] * np.finfo(Y.dtype).eps
    squares = np.abs((Z * Y).sum(axis=0))  # ‖A z_j‖²: (eps‖A‖)² and nothing more if A z_j = 0
    live = Y[:, squares > noise**2 * squares.max()]
    live = live / np.abs(live).max(axis=0)  # squares of what is tiny may vanish
    span, sizes, _ = svd(live / np.linalg.norm(live, axis=0))
    span = span[:, sizes > noise * sizes.max(initial=0.0)]
    rank = span.shape[1]
    if rank < Q.shape[1]:
        found = np.sort(np.argsort(-share, kind="stable")[:rank])
        rest = np.delete(np.arange(Q.shape[1]), found)
        Q[:, found] = span @ orth(span.T @ Q[:, found])
        Q[:, rest] = orth(Z @ np.linalg.svd(span.T @ Z)[2][rank:].T)


def pad_basis(Z: Array, width: int) -> Array:
    """Orthonormal basis of `width` columns that starts with the span of `Z`."""
    missing = np.zeros((Z.shape[0], max(0, width - Z.shape[1])), dtype=Z.dtype)
    return orth(np.hstack([Z, missing]))[:, :width]


def random_basis(columns: int, width: int, rng: np.random.Generator) -> Array:
    """Draw the common start: a Gaussian (columns, width) matrix, orthonormalised."""
    return orth(rng.standard_normal((columns, width)), overwrite=True)


def leading_eigenpairs(G: Array, rank: int) -> tuple[Array, Array]:
    """Largest `rank` eigenvalues of a symmetric matrix, descending, and vectors (d, rank)."""
    if G.shape[0] > EIGH_COLUMNS and 4 * rank < G.shape[0]:
        return lanczos(lambda x: G @ x, G.shape[0], rank)
    values, vectors = np.linalg.eigh(G)
    return values[::-1][:rank], vectors[:, ::-1][:, :rank]


def lanczos(
    multiply: Callable[[Array], Array],
    d: int,
    rank: int,
    which: Literal["LA", "LM"] = "LA",
    tol: float = 0.0,
) -> tuple[Array, Array]:
    """Eigenpairs of a symmetric operator on (d, r) matrices, largest first, from a fixed start.

    `which` is ``"LA"`` for the largest values, ``"LM"`` for the largest magnitudes; `tol` is their
    relative error, rounding if 0.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    start = np.random.default_rng(0).standard_normal(d)
    if rank == 0 or not multiply(start[:, None]).any():
        return np.zeros(0), np.zeros((d, 0))

    def matvec(x: Array) -> Array:
        return multiply(x.reshape(d, 1)).astype(np.float64, copy=False)

    operator = LinearOperator((d, d), matvec=matvec, dtype=np.float64)
    values, vectors = eigsh(operator, k=rank, v0=start, which=which, tol=tol)
    return values[::-1], vectors[:, ::-1]


class Addend:
    """What is summed over shards: into a new one, or into the first where nobody else holds it."""

    __slots__ = ()

    def plus(self, other: Any, own: bool) -> Any:
        """Return the sum; arrays of this may become it if we `own` them."""
        raise NotImplementedError

    def __add__(self, other: Self) -> Self:
        return cast(Self, self.plus(other, own=False))

    def __iadd__(self, other: Self) -> Self:
        return cast(Self, self.plus(other, own=True))


def fold(items: Iterable[T], count: int, own: bool = False) -> T:
    """Add `count` items in one fixed order: in groups of eight, then the groups likewise.

    The order depends on `count` alone, so every engine returns the same bits; groups can be added
    on different workers; and one partial sum per level is all that is held. With `own`, nobody
    else holds the items, and the first of a group may become its sum.
    """
    while count > FAN_IN:
        items, count, own = _groups(items, own), -(-count // FAN_IN), True
    (total,) = _groups(items, own)
    return total


def combined(plus: Callable[[T, T], T], items: Iterable[T]) -> T:
    """Add replies one after the other, with `add` or `iadd`."""
    return reduce(partial(_sum, plus), items)


def _sum(plus: Callable[[T, T], T], one: T, other: T) -> T:
    """Add two replies; what keeps them from being added is wrong with one of them."""
    try:
        return plus(one, other)
    except LocalPowerError:
        raise
    except Exception as error:
        raise WorkerFailed(f"replies could not be added: {error}") from error


def _groups(items: Iterable[T], own: bool) -> Iterator[T]:
    """Add groups; nothing but the sum of the group is held while the next item is made."""
    items = iter(items)
    for total in items:
        plus: Callable[[T, T], T] = iadd if own else add
        for item in islice(items, FAN_IN - 1):
            total, plus = _sum(plus, total, item), iadd
            del item
        yield total
        del total
