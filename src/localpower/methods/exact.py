"""Exact in one round (an extension of the paper): what iterations have to beat.

Both send d(d+1)/2 words per shard, which an engine may add up on the way. ``gram`` adds
``A_iᵀA_i``; it loses half the digits of small singular values. ``tsqr`` merges R factors, and
loses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from localpower.core.certificate import ROUNDING, Certificate, Known, Ritz, certify_factor
from localpower.core.linalg import EIGH_COLUMNS, Array, accurate_svd, lanczos, pad_basis
from localpower.core.share import Reach, Share
from localpower.engines.base import Engine
from localpower.methods.base import FIRST, Method, Start
from localpower.methods.costs import Decay, Estimate, Problem
from localpower.methods.state import State
from localpower.methods.work import ROUND, leading_eigenvectors, singular_vectors, triangle
from localpower.worker.replies import unpacked
from localpower.worker.tasks import GramTriangle, LocalTriangle

LARGEST_LOSS = 1e-14  # tolerance below which a Gram matrix has lost too many digits
NEARLY = 1e-6  # how much above the last eigenvalue found the others are proven to be at most


@dataclass(frozen=True, slots=True, eq=False)
class FactoredState(State):
    """The right singular vectors of all rows, with all singular values."""

    sizes: Array = field(default_factory=lambda: np.zeros(0))

    def certificate(
        self, rank: int, known: Known, tol: float, certainty: float
    ) -> Certificate | None:
        """What rounding leaves, and what is wrong with ``AᵀA`` already; nothing is hidden."""
        found, noise = certify_factor(self.sizes, rank, known.eps), known.noise
        if not noise:
            return found
        squares = np.square(self.sizes)
        last = float(squares[rank - 1])
        apart = last - float(squares[rank]) if rank < len(squares) else float("inf")
        rounding = ROUNDING * known.eps * self.sizes[0]
        zeros = (squares[:rank] <= noise) | (self.sizes[:rank] <= rounding)
        units = np.where(zeros, max(float(squares[0]), noise), squares[:rank])
        errors = np.where(zeros, found.residuals[0], found.residuals)
        return replace(
            found,
            angle=min(1.0, found.angle + noise / apart) if apart > 0 else 1.0,
            residuals=errors + noise / units,
            gap=0.0 if zeros[-1] else found.gap,
            vanishing=bool(zeros[-1]),
        )

    def reach(self, share: Share, rank: int, known: Known, certainty: float) -> Reach | None:
        """Nothing is hidden: all eigenvalues are known."""
        values, count = self.sizes**2, len(self.sizes)
        nothing = np.zeros((count, count))
        return share.judge(Ritz(values, nothing, nothing), rank, known, certainty)


class _Exact(Method):
    """What both have in common: one round of a triangle."""

    __slots__ = ()
    grows: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    automatic: ClassVar[bool] = True
    compared: ClassVar[tuple[dict[str, object], ...]] = ({},)

    def first_rank(self, columns: int, limit: int) -> int:
        """All eigenvalues of a small matrix are computed anyway."""
        return limit if columns <= EIGH_COLUMNS else min(limit, FIRST)

    def workspace(self, columns: int, width: int) -> float:
        return 4.0 * columns**2 * 8

    def largest(self, columns: int, rank: int) -> int:
        return columns**2

    def widest(self, columns: int, rank: int, width: int) -> int:
        return columns


@dataclass(frozen=True, slots=True)
class Gram(_Exact):
    """The sum of all ``A_iᵀA_i``: exact in one round, with half of the digits."""

    about: ClassVar[str] = "one round of d(d+1)/2 words; half the digits"
    squares: ClassVar[bool] = True

    @property
    def only_sums(self) -> bool:
        """Triangles are added."""
        return True

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        return gram(engine, start.rank, start.share)

    def estimate(self, problem: Problem, decay: Decay) -> Estimate:
        """One round of triangles, and the eigenvectors."""
        d = problem.columns
        flops = ROUND / 2 + problem.gram() + leading_eigenvectors(d, problem.rank)
        records = [problem.round("GramTriangle", 0, d * (d + 1) / 2, bytes_each=8)]
        note = "half the digits of small singular values"
        return Estimate(records, flops, note, problem.tol >= LARGEST_LOSS)


@dataclass(frozen=True, slots=True)
class TSQR(_Exact):
    """Merged R factors of all shards: exact in one round, with all digits."""

    about: ClassVar[str] = "one round of d(d+1)/2 words; all digits"
    state_type: ClassVar[type[State]] = FactoredState

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        return tsqr(engine, start.rank, start.share)

    def estimate(self, problem: Problem, decay: Decay) -> Estimate:
        """One round of triangles, merged pair by pair."""
        d, rows = problem.columns, problem.turns * max(problem.sizes)
        merges = (len(problem.sizes) - 1) * triangle(d, d)
        records = [problem.round("LocalTriangle", 0, d * (d + 1) / 2, bytes_each=8)]
        dense = problem.sparse * (problem.turns * 1e6 + 20 * rows * d)  # rows are written out first
        flops = ROUND / 2 + dense + triangle(rows, d) + merges + singular_vectors(d, d)
        return Estimate(records, flops)


def gram(engine: Engine, rank: int, share: Share | None = None) -> Iterator[State]:
    """Leading eigenvectors of ``Σ A_iᵀA_i``; one more than asked for tells the gap.

    Where a share is asked for, `rank` is a guess.
    """
    G = unpacked(engine.sum(GramTriangle()).packed, engine.columns)
    G += np.triu(G, 1).T
    count = min(rank + 1, len(G))
    X, hidden = _all_but_rest(G, count)
    if share is not None:
        while (found := share.count((X * (G @ X)).sum(axis=0))) is None:  # so many are too few
            count = min(4 * count, len(G))
            X, hidden = _all_but_rest(G, count)
        rank = found
        X, hidden = _all_but_rest(G, min(rank + 1, len(G)))
    basis = np.ascontiguousarray(X[:, :rank].astype(engine.dtype, copy=False))
    yield State(basis, round=1, steps=1, rank=rank, exact=(X, G @ X), hidden=hidden, summed=True)


def tsqr(engine: Engine, rank: int, share: Share | None = None) -> Iterator[State]:
    """Right singular vectors of the R factor of all rows."""
    R = unpacked(engine.sum(LocalTriangle()).packed, engine.columns)
    _, sizes, Vt = accurate_svd(R)
    rank = rank if share is None else share.count(np.square(sizes)) or len(sizes)
    basis = np.ascontiguousarray(Vt[:rank].T).astype(engine.dtype, copy=False)
    yield FactoredState(basis, round=1, steps=1, sizes=sizes, rank=rank)


def _all_but_rest(G: Array, count: int) -> tuple[Array, float]:
    """Leading eigenvectors of a matrix, and what all its other eigenvalues are at most.

    Of a large one a few are found by iteration; that these are the leading ones is proven by a
    Cholesky factorisation, or else all are computed.
    """
    if len(G) > EIGH_COLUMNS and 4 * count < len(G):
        values, X = lanczos(lambda x: G @ x, len(G), count)
        X = pad_basis(X, count)
        least = float(values[-1]) if len(values) == count else 0.0
        rounding = ROUNDING * np.finfo(float).eps * float(values[:1].sum())
        limit = (1 + NEARLY) * least + rounding
        image = G @ X
        E = (image - X @ (X.T @ image) / 2) @ X.T
        E += E.T - G  # what is outside of X, with the other sign
        E[np.diag_indices_from(E)] += limit
        with suppress(np.linalg.LinAlgError):
            np.linalg.cholesky(E)
            return X, limit + rounding
    values, vectors = np.linalg.eigh(G)
    X = pad_basis(vectors[:, ::-1][:, :count], count)
    return X, float(values[::-1][count]) if count < len(G) else 0.0
