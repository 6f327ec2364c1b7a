"""Exact methods are exact, in one round of packed triangles."""

import numpy as np
import pytest
from helpers import EPS, LAPACK_SHAPES, LAPACK_TYPES, lapack_matrix, lapack_ratios
from scipy import sparse

import localpower as lp
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Shard


@pytest.mark.parametrize("shape", LAPACK_SHAPES)
@pytest.mark.parametrize("name", LAPACK_TYPES)
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tsqr_at_full_rank_has_lapacks_ratios(shape, name, shards, dtype):
    A = lapack_matrix(name, shape, dtype)
    found = lp.svd(A, min(shape), method="tsqr", workers=shards, return_u=True, rng=0)
    assert max(lapack_ratios(A, found).values()) < 50
    assert (np.diff(found.singular_values) <= 0).all()


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


@pytest.mark.parametrize("offset", [0.0, 10.0])
@pytest.mark.parametrize("method", ["auto", "tsqr"])
def test_all_components_are_exact_where_a_column_is_the_sum_of_others(offset, method):
    A = np.random.default_rng(0).standard_normal((500, 6)) + offset
    A = np.column_stack([A, A[:, 0] + A[:, 1]])
    result = lp.pca(A, 7, method, tol=1e-8, rng=0)  # and there is no warning
    assert (result.converged, result.reason) == (True, "exact")
    exact = np.linalg.svd(A - A.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(result.singular_values, exact, rtol=1e-12, atol=1e-12 * exact[0])


@pytest.mark.parametrize("offset", [0.0, 0.5, 2.0, 30.0, 1e6])
@pytest.mark.parametrize("factor", [1.0, 1e-3, np.linspace(0.1, 5, 20)], ids=["1", "less", "each"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_near_or_far_costs_a_shifted_gram_matrix_no_digits(offset, factor, dtype):
    rng = np.random.default_rng(0)
    away = offset * rng.standard_normal(20) / np.sqrt(20)
    A = (rng.standard_normal((3000, 20)) * 0.8 ** np.arange(20) + away).astype(dtype)
    matrix = LocalMatrix(Shard((A,), 20, A.dtype))
    shift = (A.mean(axis=0, dtype=float) + 0.01).astype(dtype)  # all rows have another mean
    matrix.prepare(shift, factor)
    B = (A.astype(np.longdouble) - shift) * factor
    exact = B.T @ B
    noise = np.sqrt(len(A)) * np.finfo(dtype).eps * exact.max()
    assert np.abs(matrix.gram() - exact).max() <= noise


@pytest.mark.parametrize("center", [False, True])
def test_gram_certifies_float32_where_only_rounding_to_it_is_left(center):
    rng = np.random.default_rng(1)
    sizes = np.array([300.0, 1.1, 1.0, 0.5, 0.4, 0.3])  # squares differ by less than eps of float32
    A = (rng.standard_normal((4000, 6)) * sizes + 0.3).astype(np.float32)
    result = lp.svd(A, 3, tol=1e-4, center=center, rng=0)
    wide = A.astype(float)
    exact = np.linalg.svd(wide - wide.mean(axis=0) * center)[2][:3].T
    error = lp.subspace_distance(exact, result.components.T.astype(float))
    assert (result.run["method"], result.converged) == ("gram", True)
    assert error <= result.certificate.angle <= 1e-4
