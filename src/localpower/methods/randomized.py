"""DR-SVD: randomised SVD with its rows on many shards, an appendix algorithm of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from localpower.core.linalg import orth, pad_basis, svd
from localpower.engines.base import Engine
from localpower.methods.base import Method, Start
from localpower.methods.costs import Decay, Estimate, Problem
from localpower.methods.factors import split_rows, triangles
from localpower.methods.state import State
from localpower.worker.tasks import PowerSteps, ProjectRows, Scatter


def dr_svd(
    engine: Engine, rank: int, rng: np.random.Generator, width: int | None = None
) -> Iterator[State]:
    """``Y = A AᵀA Ω``, ``Q = orth(Y)``, ``B = QᵀA``; the top right singular vectors of ``B``.

    The rows of ``Q`` stay with their shards: each factors its own ``A_i W``, where ``W = AᵀAΩ``,
    sends the triangle, and receives its block of the orthonormal factor of all triangles. ``W``
    is sent again with the block, so that no worker has to remember anything between rounds.
    The width of Ω is ``k + ⌊(d - k)/4⌋`` unless given.
    """
    d = engine.columns
    width = sketch_width(d, rank) if width is None else width
    Omega = rng.standard_normal((d, width)).astype(engine.dtype)
    W = engine.sum(PowerSteps(Omega, steps=1)).product
    W = (W / (np.abs(W).max() or 1.0)).astype(engine.dtype)
    first = pad_basis(W[:, :rank], rank)  # what one power step gives, until there is better
    yield State(first, round=1, steps=1)
    R = triangles(engine, W)
    blocks = split_rows(orth(np.vstack(R)), R)
    yield State(first, round=2, steps=1)
    Bt = engine.sum(Scatter([ProjectRows(W, block) for block in blocks])).product
    V = svd(Bt)[0][:, :rank]
    yield State(pad_basis(V, rank).astype(engine.dtype, copy=False), round=3, steps=2)


def sketch_width(columns: int, rank: int) -> int:
    """The paper's ``k + ⌊(d - k)/4⌋``."""
    return rank + (columns - rank) // 4


@dataclass(frozen=True, slots=True)
class RandomizedSVD(Method):
    """DR-SVD, the distributed randomised SVD of the paper's appendix: three rounds."""

    about: ClassVar[str] = "distributed randomised SVD, three rounds"
    compared: ClassVar[tuple[dict[str, object], ...]] = ({},)

    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        return dr_svd(engine, start.rank, start.rng)

    def largest(self, columns: int, rank: int) -> int:
        return columns * sketch_width(columns, rank)

    def widest(self, columns: int, rank: int, width: int) -> int:
        return 2 * sketch_width(columns, rank)

    def estimate(self, problem: Problem, decay: Decay) -> Estimate:
        """A product, triangles, and a projection."""
        d, wide = problem.columns, sketch_width(problem.columns, problem.rank)
        triangle = sum(min(s, wide) * wide for s in problem.sizes) / len(problem.sizes)
        records = [
            problem.round("PowerSteps", d * wide, d * wide),
            problem.round("Triangle", d * wide, triangle),
            problem.round("ProjectRows", d * wide + triangle, d * wide),
        ]
        flops = 3 * problem.product(wide)
        return Estimate(records, flops, "does not reach a tolerance", False)
