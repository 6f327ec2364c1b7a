"""What a certificate reports is never much better than the truth, on any spectrum and scale."""

import warnings

import numpy as np
import pytest
from helpers import EPS, with_spectrum
from hypothesis import given, settings
from hypothesis import strategies as st

import localpower as lp
from localpower.core.certificate import certify, rayleigh_ritz

ITERATIVE = ["local_ritz", "block_krylov", "dpi", "local_power"]


def spectra(d):
    """Singular values with ties, clusters, gaps and zeros."""
    falling = st.floats(0.3, 1.0).map(lambda q: q ** np.arange(d))
    cluster = st.integers(1, d).map(lambda k: np.r_[np.ones(k), 1e-3 * np.ones(d - k)])
    rank = st.integers(1, d).map(lambda k: np.r_[2.0 ** -np.arange(k), np.zeros(d - k)])
    free = st.lists(st.floats(0, 1), min_size=d, max_size=d).map(lambda v: np.sort(v)[::-1])
    return st.one_of(falling, cluster, rank, free.filter(lambda v: v[0] > 1e-3))


def true_sine(A, V):
    """Sine of the angle to the leading right singular vectors, from a QR-based SVD."""
    target = np.linalg.svd(A.astype(float), full_matrices=False)[2][: V.shape[1]].T
    return lp.subspace_distance(target, V)


@settings(max_examples=300)
@given(data=st.data(), rank=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_the_reported_angle_is_never_below_the_true_one_by_more_than_ten(data, rank, seed):
    d = data.draw(st.integers(rank + 1, 12))
    values = data.draw(spectra(d))
    A = with_spectrum(40, values, seed % 1000)
    width = data.draw(st.integers(rank + 1, d))
    rng = np.random.default_rng(seed)
    X = np.linalg.qr(rng.standard_normal((d, width)))[0]
    for _ in range(data.draw(st.integers(1, 30))):
        X = np.linalg.qr(A.T @ (A @ X))[0]
    theta, X, G = rayleigh_ritz(X, A.T @ (A @ X))
    found = certify(theta, X, G, rank, float(np.square(A).sum()), EPS)
    gap = (values[rank - 1] ** 2 - values[rank] ** 2) / max(values[0] ** 2, 1e-300)
    if found.rigorous or gap > 1e-6:
        assert true_sine(A, X[:, :rank]) <= 10 * found.angle + 10 * EPS / max(gap, EPS)


@pytest.mark.parametrize("method", ITERATIVE)
@settings(max_examples=60)
@given(
    data=st.data(),
    rank=st.integers(1, 3),
    seed=st.integers(0, 999),
    exponent=st.sampled_from([-330, -100, 0, 100, 330]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_converged_is_never_far_from_the_truth(method, data, rank, seed, exponent, dtype):
    d = data.draw(st.integers(rank + 1, 10))
    values = data.draw(spectra(d))
    A = with_spectrum(30, values, seed).astype(dtype)
    A = np.ldexp(A, exponent if dtype is np.float64 else exponent // 5)
    tol = 1e-3 if dtype is np.float32 else 1e-7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        result = lp.svd(A, rank, method=method, tol=tol, max_rounds=60, workers=3, rng=seed)
    exact = np.linalg.svd(np.ldexp(A.astype(float), -exponent), compute_uv=False)
    gap = (exact[rank - 1] ** 2 - exact[rank] ** 2) / exact[0] ** 2
    if result.converged and gap > tol:
        assert true_sine(A, result.components.T) <= 10 * tol


def test_a_tie_at_the_rank_converges_on_residuals():
    A = with_spectrum(60, [5, 2, 2, 2, 1, 0.5])
    result = lp.svd(A, 2, method="local_ritz", tol=1e-8, workers=3, rng=0)
    assert result.reason == "residual"
    assert result.history[-1].residual <= 1e-8
    S = np.linalg.svd(A, compute_uv=False)[:2]
    np.testing.assert_allclose(result.singular_values, S, rtol=1e-8)


def test_the_trace_proves_what_it_can():
    proven = lp.svd(with_spectrum(50, [9, 8, 1, 0.1, 0.1]), 2, method="dpi", tol=1e-6, rng=0)
    assert proven.history[-1].rigorous
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((200, 100))
    assert not lp.svd(wide, 2, method="local_ritz", tol=1e-6, rng=0).history[-1].rigorous


def test_local_steps_that_stall_end_with_a_warning_that_says_what_to_do():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((300, 30)) * 0.9 ** np.arange(30)
    with pytest.warns(lp.ConvergenceWarning, match=r"stalled.*schedule='halving'.*'local_ritz'"):
        result = lp.svd(A, 3, steps=8, tol=1e-8, max_rounds=200, workers=6, rng=0)
    assert (result.converged, result.reason) == (False, "stalled")
    assert len(result.history) < 60


def test_budgets_stop_a_run_and_say_so():
    A = np.random.default_rng(0).standard_normal((300, 30))
    with pytest.warns(lp.ConvergenceWarning, match="raise max_bytes or max_seconds"):
        result = lp.svd(A, 3, method="dpi", tol=1e-12, max_bytes=50_000, workers=3, rng=0)
    assert result.reason == "budget"
    spent = [record.bytes_up + record.bytes_down for record in result.history]
    assert sum(spent[:-1]) <= 50_000 < sum(spent)
    with pytest.raises(ValueError, match="max_seconds=0 must be a number above 0"):
        lp.svd(A, 3, max_seconds=0)


def test_the_check_of_local_steps_costs_one_product_more_in_the_upload():
    A = np.random.default_rng(0).standard_normal((300, 20))
    plain = lp.svd(A, 3, steps=4, width=8, max_rounds=1, workers=3, rng=0)
    with pytest.warns(lp.ConvergenceWarning):
        checked = lp.svd(A, 3, steps=4, width=8, max_rounds=1, workers=3, rng=0, tol=1e-12)
    words = [r.ledger.phase("iterate").words_up for r in (plain, checked)]
    assert words == [3 * 2 * 20 * 8, 3 * 3 * 20 * 8]
    np.testing.assert_array_equal(plain.basis, checked.basis)
