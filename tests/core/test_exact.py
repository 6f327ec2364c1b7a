"""Exact methods are exact, in one round of packed triangles."""

import numpy as np
import pytest
from helpers import EPS, with_spectrum
from scipy import sparse

import localpower as lp

KINDS = {
    "zero": np.zeros((30, 6)),
    "identity": np.eye(8),
    "one row": np.arange(1.0, 6.0)[None],
    "one column": np.arange(1.0, 6.0)[:, None],
    "wide": np.random.default_rng(0).standard_normal((4, 9)),
    "clustered": with_spectrum(50, [1, 1, 1, 1e-8, 1e-8]),
    "graded": with_spectrum(50, 10.0 ** -np.arange(0, 16, 2)),
    "huge": 1e300 * with_spectrum(20, [3, 2, 1]),
    "tiny": 1e-300 * with_spectrum(20, [3, 2, 1]),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tsqr_at_full_rank_has_lapacks_ratios(name, shards, dtype):
    A = KINDS[name]
    if dtype is np.float32 and name in ("huge", "tiny"):
        A = np.ldexp(A, -900 if name == "huge" else 900)
    A = A.astype(dtype)
    k = min(A.shape)
    found = lp.svd(A, k, method="tsqr", workers=shards, return_u=True, rng=0)
    U, S, Vt = found.U.astype(float), found.singular_values.astype(float), found.components
    unit = float(np.finfo(dtype).eps) * max(A.shape)
    size = np.ldexp(1.0, int(np.frexp(np.abs(A.astype(float)).max() or 1.0)[1]))
    norm = np.linalg.norm(A.astype(float) / size, 2) or 1.0
    residual = np.linalg.norm(A.astype(float) / size - (U * (S / size)) @ Vt.astype(float), 2)
    assert residual <= 50 * unit * norm
    assert np.linalg.norm(Vt @ Vt.T - np.eye(k), 2) <= 50 * unit
    assert (np.diff(S) <= 0).all()


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_laeuchlis_matrix_is_right_with_tsqr(shards):
    small = 1e-9  # its square is below the rounding of 1
    A = np.vstack([np.ones((1, 4)), small * np.eye(4)])
    S = lp.svd(A, 4, method="tsqr", workers=shards, rng=0).singular_values
    np.testing.assert_allclose(S, [np.sqrt(4 + small**2), small, small, small], rtol=1e-6)


@pytest.mark.parametrize("method", ["gram", "tsqr"])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("center", [False, True])
def test_exact_methods_find_the_truth_in_one_round_of_packed_triangles(method, make, center):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((200, 12)) * 0.7 ** np.arange(12) * (rng.random((200, 12)) < 0.5) + 0
    result = lp.svd(make(A), 3, method=method, center=center, workers=5, rng=0)
    exact = np.linalg.svd(A - A.mean(axis=0) * center)
    np.testing.assert_allclose(result.singular_values, exact[1][:3], rtol=1e-12)
    assert lp.subspace_distance(exact[2][:3].T, result.components.T) <= 1e3 * EPS
    iterate = result.ledger.phase("iterate")
    assert (iterate.rounds, iterate.words_up) == (1, 5 * 12 * 13 // 2)
    assert (result.converged, result.reason) == (True, "exact")
