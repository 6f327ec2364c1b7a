"""A data set as an experiment sees it: scaled, shuffled, cut into shards, with its true answer.

Two ways of measuring, both always reported:

``as-published``
    what the authors' code does: min-max scaling; ⌈n/1000⌉ shards of ⌈n/m⌉ rows; LocalPower scored
    by the spectral norm of ``(I - U_5U_5ᵀ)Z[:, :4]``, one-shot methods by the Frobenius norm of
    ``(I - U_5U_5ᵀ)V_5``; DR-SVD with the width of rank 4.
``uniform``
    what the paper's text says, and the same for every method: column-maximum scaling;
    max(⌊n/1000⌋, 3) nearly equal shards; ``sin θ_5`` of all five columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from localpower.core.linalg import Array
from localpower.data.source import open_source
from localpower.methods.scaling import columns
from localpower.paper import datasets as registry
from localpower.worker.moments import moments
from localpower.worker.shard import Shard

MODES = ("as-published", "uniform")
RANK = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """Scaled rows (n, d), the true leading right singular vectors (d, 5), where they came from."""

    X: Array
    target: Array
    mode: str
    sha256: str

    def default_shards(self) -> int:
        """How many shards the mode takes for this many rows."""
        n = len(self.X)
        return max(math.ceil(n / 1000) if self.mode == "as-published" else n // 1000, 3)

    def cut(self, order: NDArray[np.intp], shards: int) -> list[NDArray[np.intp]]:
        """Cut shuffled row numbers into shards as the mode does; none is empty."""
        if self.mode == "uniform":
            parts = np.array_split(order, shards)
        else:
            size = math.ceil(len(order) / shards)
            parts = [order[start : start + size] for start in range(0, len(order), size)]
        return [part for part in parts if len(part)]

    def score_basis(self, Z: Array) -> float:
        """Error of a LocalPower basis."""
        return self._outside(Z[:, : RANK - 1] if self.mode == "as-published" else Z, 2)

    def score_one_shot(self, V: Array) -> float:
        """Error of a one-shot method's vectors."""
        return self._outside(V, "fro" if self.mode == "as-published" else 2)

    def _outside(self, Z: Array, norm: object) -> float:
        outside = Z - self.target @ (self.target.T @ Z)
        return float(np.linalg.norm(outside, norm))  # type: ignore[call-overload]


@lru_cache(maxsize=4)
def load(name: str, mode: str, data_dir: str | None = None) -> Problem:
    """Read a data set, or make the synthetic one, and scale it as the mode says."""
    if name == SYNTHETIC:
        X, digest = wide_rows(), "synthetic"
    else:
        path = registry.find(name, data_dir)
        if path is None:
            raise FileNotFoundError(registry.how_to_get(name))
        with open_source(registry.verify(path)) as source:
            shard = Shard(source.pieces, source.columns, np.dtype(np.float64))
            blocks = [b if isinstance(b, np.ndarray) else b.toarray() for b in shard.blocks()]
            X = np.concatenate(blocks)
        digest = registry.sha256(path)
    X = scaled(X, "minmax" if mode == "as-published" else "max")
    triangle = np.linalg.qr(X, mode="r")
    target = np.linalg.svd(triangle)[2][:RANK].T
    return Problem(X, np.ascontiguousarray(target), mode, digest)


def scaled(X: Array, scale: str) -> Array:
    """Scale columns from the statistics of all rows, explicitly."""
    how = columns(moments(Shard((X,), X.shape[1], X.dtype)), False, scale, X.dtype)
    assert how.scale is not None
    return (X if how.shift is None else X - how.shift) / how.scale


SYNTHETIC = "n-near-d"


def wide_rows() -> Array:
    """Synthetic rows in the regime n ≈ d: a spectrum that falls as 1/j, plus noise."""
    rng = np.random.default_rng(2021)
    rows, cols = 600, 500
    factors = rng.standard_normal((rows, cols)) / np.arange(1, cols + 1)
    mixing = np.linalg.qr(rng.standard_normal((cols, cols)))[0]
    rows_of_rank_d: Array = factors @ mixing
    return rows_of_rank_d + 0.001 * rng.standard_normal((rows, cols))
