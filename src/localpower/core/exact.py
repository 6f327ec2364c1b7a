"""Exact in one round (an extension of the paper): what iterations have to beat.

Both send d(d+1)/2 words per shard, which an engine may add up on the way. ``gram`` adds
``A_iᵀA_i``; it loses half the digits of small singular values. ``tsqr`` merges R factors, and
loses none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from localpower.core.engine import Engine
from localpower.core.linalg import leading_eigenpairs, widen
from localpower.core.local_power import State
from localpower.core.tasks import GramTriangle, LocalTriangle, unpacked


def gram(engine: Engine, rank: int) -> Iterator[State]:
    """Leading eigenvectors of ``Σ A_iᵀA_i``; one more than asked for tells the gap."""
    G = unpacked(engine.sum(GramTriangle()).packed, engine.columns)
    G += np.triu(G, 1).T
    X = widen(leading_eigenpairs(G, min(rank + 1, len(G)))[1], min(rank + 1, len(G)))
    basis = X[:, :rank].astype(engine.dtype, copy=False)
    yield State(np.ascontiguousarray(basis), round=1, steps=1, exact=(X, G @ X))


def tsqr(engine: Engine, rank: int) -> Iterator[State]:
    """Right singular vectors of the R factor of all rows."""
    R = unpacked(engine.sum(LocalTriangle()).packed, engine.columns)
    V = np.linalg.svd(R)[2][:rank].T
    yield State(np.ascontiguousarray(V).astype(engine.dtype, copy=False), round=1, steps=1)
