"""The one-shot baselines against their definitions, formed plainly."""

import numpy as np
import pytest
from helpers import with_spectrum

import localpower as lp

SIZES = [100, 60, 80]


def blocks_of(d):
    rng = np.random.default_rng(d)
    A = with_spectrum(sum(SIZES), 0.7 ** np.arange(d), seed=d)[rng.permutation(sum(SIZES))]
    return np.split(A, np.cumsum(SIZES)[:-1])


def local_eigen(B, k):
    values, vectors = np.linalg.eigh(B.T @ B / len(B))
    return values[::-1][:k], vectors[:, ::-1][:, :k]


@pytest.mark.parametrize("d", [8, 40])  # m·k above and below d: both ways of the server
@pytest.mark.parametrize("weighted", [False, True])
def test_distributed_averaging_is_its_definition(d, weighted):
    blocks, k = blocks_of(d), 4
    total = np.zeros((d, d))
    for block in blocks:
        values, V = local_eigen(block, k)
        total += V * (values if weighted else 1.0) @ V.T / len(blocks)
    expected = np.linalg.eigh(total)[1][:, ::-1][:, :k]
    result = lp.svd(blocks, k, method="wda" if weighted else "uda", rng=0)
    assert lp.subspace_distance(result.components.T, expected) < 1e-12


def test_aligned_average_is_its_definition():
    blocks, k = blocks_of(12), 3
    bases = [local_eigen(block, k)[1] for block in blocks]
    total = np.zeros((12, k))
    for V in bases:
        W1, _, W2t = np.linalg.svd(V.T @ bases[0])
        total += V @ W1 @ W2t
    result = lp.svd(blocks, k, method="aligned_average", rng=0)
    assert lp.subspace_distance(result.components.T, np.linalg.qr(total)[0]) < 1e-12


def test_randomised_svd_is_its_definition():
    blocks, k, d = blocks_of(20), 4, 20
    A = np.vstack(blocks)
    Omega = np.random.default_rng(7).standard_normal((d, k + (d - k) // 4))
    Q = np.linalg.qr(A @ (A.T @ (A @ Omega)))[0]
    expected = np.linalg.svd(Q.T @ A)[2][:k].T
    result = lp.svd(blocks, k, method="dr_svd", rng=7)
    assert lp.subspace_distance(result.components.T, expected) < 1e-10


@pytest.mark.parametrize("method", ["uda", "wda", "aligned_average"])
def test_wide_shards_agree_with_narrow_arithmetic(method, monkeypatch):
    """Lanczos iteration on a shard gives what the eigenvectors of its Gram matrix give."""
    blocks = blocks_of(60)
    narrow = lp.svd(blocks, 3, method=method, rng=0)
    monkeypatch.setattr("localpower.worker.local_matrix.GRAM_COLUMNS", 10)
    wide = lp.svd(blocks, 3, method=method, rng=0, engine="inline")
    assert lp.subspace_distance(narrow.components.T, wide.components.T) < 1e-10


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_wide_shards_with_few_rows(rows, monkeypatch):
    monkeypatch.setattr("localpower.worker.local_matrix.GRAM_COLUMNS", 10)
    rng = np.random.default_rng(1)
    blocks = [rng.standard_normal((rows, 30)), rng.standard_normal((9, 30)), np.zeros((4, 30))]
    for method in ("uda", "wda", "aligned_average"):
        result = lp.svd(blocks, 3, method=method, engine="inline", rng=0)
        V = result.components
        assert np.abs(V @ V.T - np.eye(3)).max() < 1e-12
