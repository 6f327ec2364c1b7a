"""One-shot baselines: each shard's own eigenvectors, combined in one round.

Appendix "One-shot Baseline Algorithms" of the paper, and the Procrustes average of
Charisopoulos, Benson and Damle (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from localpower.core.alignment import to_first
from localpower.core.linalg import Array, fold, pad_basis, svd
from localpower.engines.base import Engine
from localpower.methods.base import Method, Start, choice
from localpower.methods.costs import Decay, Estimate, Problem
from localpower.methods.state import State
from localpower.worker.replies import Product
from localpower.worker.tasks import TopVectors


def uda(engine: Engine, rank: int) -> Iterator[State]:
    """Unweighted distributed averaging: top eigenvectors of ``Σ V_i V_iᵀ / m``."""
    replies = engine.map(TopVectors(rank))
    yield _state(_leading((reply.vectors for reply in replies), engine, rank), engine)


def wda(engine: Engine, rank: int) -> Iterator[State]:
    """Weighted distributed averaging: top eigenvectors of ``Σ V_i Λ_i V_iᵀ / m``."""
    replies = engine.map(TopVectors(rank, values=True))
    weighted = (reply.vectors * np.sqrt(reply.values) for reply in replies)
    yield _state(_leading(weighted, engine, rank), engine)


def aligned_average(engine: Engine, rank: int) -> Iterator[State]:
    """Average of the ``V_i``, each aligned by Procrustes to the shard with the most rows."""
    replies = engine.map(TopVectors(rank), engine.anchor_first())
    padded = (_padded(reply.vectors, rank) for reply in replies)
    aligned = to_first(((V, V) for V in padded), "procrustes")
    Y = fold(map(Product, aligned), len(engine.rows)).product
    yield _state(pad_basis(Y, rank), engine)


def _state(basis: Array, engine: Engine) -> State:
    return State(basis.astype(engine.dtype, copy=False), round=1)


def _leading(factors: Iterable[Array], engine: Engine, rank: int) -> Array:
    """Top eigenvectors of ``Σ F_i F_iᵀ``; d×d is formed only where the factors are wider yet."""
    d, m = engine.columns, len(engine.rows)
    if m * rank < d:
        vectors = svd(np.hstack(list(factors)))[0]
    else:
        total = fold((Product(F @ F.T) for F in factors), m).product
        vectors = np.linalg.eigh(total)[1][:, ::-1]
    return pad_basis(vectors[:, :rank], rank)


def _padded(V: Array, rank: int) -> Array:
    return np.pad(V, ((0, 0), (0, rank - V.shape[1])))


KINDS: dict[str, Callable[[Engine, int], Iterator[State]]] = {
    "uda": uda,
    "wda": wda,
    "aligned": aligned_average,
}


@dataclass(frozen=True, slots=True)
class Averaging(Method):
    """Averages of the shards' own eigenvectors, in one round.

    Parameters
    ----------
    kind : {"uda", "wda", "aligned"}
        Unweighted or weighted distributed averaging, or the average of aligned vectors.
    """

    kind: str = choice("uda", KINDS, "which average")

    about: ClassVar[str] = "each shard's own eigenvectors, averaged in one round"
    compared: ClassVar[tuple[dict[str, object], ...]] = ({},)

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        return KINDS[self.kind](engine, start.rank)

    def estimate(self, problem: Problem, decay: Decay) -> Estimate:
        """One round of vectors, and their values if they are weighted."""
        vectors = sum(min(s, problem.rank) for s in problem.sizes)
        up = vectors * (problem.columns + (self.kind == "wda")) / len(problem.sizes)
        records = [problem.round("TopVectors", 0, up)]
        flops = 20 * problem.product(problem.rank)
        return Estimate(records, flops, "does not reach a tolerance", False)
