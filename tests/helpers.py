"""Matrices and oracles that several tests share."""

from __future__ import annotations

import numpy as np

ENGINES = ["inline", "threads:3", "processes:2"]
METHODS = ["local_power", "dpi", "one_shot", "uda", "wda", "aligned_average", "dr_svd"]
METHODS += ["local_ritz", "block_krylov", "gram", "tsqr"]
EPS = np.finfo(float).eps


def with_spectrum(rows, singular_values, seed=0):
    """A dense matrix with the given singular values and random singular vectors."""
    rng = np.random.default_rng(seed)
    k = len(singular_values)
    U = np.linalg.qr(rng.standard_normal((rows, k)))[0]
    V = np.linalg.qr(rng.standard_normal((k, k)))[0]
    return (U * singular_values) @ V.T


def orthogonal_iteration(A, start, rounds):
    """Centralised power iteration in one process: what p = 1 has to equal."""
    Z = start
    for _ in range(rounds):
        Z = np.linalg.qr(A.T @ (A @ Z))[0]
    return Z


def projector_gap(Z, W):
    """Spectral norm of the difference of two projectors."""
    return np.linalg.norm(Z @ Z.T - W @ W.T, 2)


def random_start(columns, width, seed):
    """The documented start of a run with an integer seed."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((columns, width)))[0]


def same_bits(a, b):
    """Equality of the numbers in two results, to the last bit."""
    pairs = [(a.components, b.components), (a.singular_values, b.singular_values)]
    pairs += [(a.basis, b.basis), (a.explained_variance, b.explained_variance)]
    pairs += [] if a.U is None else [(a.U, b.U)]
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs)
