"""DR-SVD: randomised SVD with its rows on many shards, an appendix algorithm of the paper."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from localpower.core.linalg import orth, pad_basis
from localpower.engines.base import Engine
from localpower.methods.factors import split_rows, triangles
from localpower.methods.local_power import State
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
    width = rank + (d - rank) // 4 if width is None else width
    Omega = rng.standard_normal((d, width)).astype(engine.dtype)
    W = engine.sum(PowerSteps(Omega, steps=1)).product
    W = (W / (np.abs(W).max() or 1.0)).astype(engine.dtype)
    first = pad_basis(W[:, :rank], rank)  # what one power step gives, until there is better
    yield State(first, round=1, steps=1)
    R = triangles(engine, W)
    blocks = split_rows(orth(np.vstack(R)), R)
    yield State(first, round=2, steps=1)
    Bt = engine.sum(Scatter([ProjectRows(W, block) for block in blocks])).product
    V = np.linalg.svd(Bt, full_matrices=False)[0][:, :rank]
    yield State(pad_basis(V, rank).astype(engine.dtype, copy=False), round=3, steps=2)
