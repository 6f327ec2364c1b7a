"""From a basis to singular values and vectors."""

import numpy as np
import pytest
from helpers import EPS, METHODS, with_spectrum

import localpower as lp
from localpower.methods.factors import Factors, explained
from localpower.methods.scaling import Columns


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("size", [8, 11, 40])
def test_graded_singular_values_are_right_to_the_last_digits(size, workers):
    sigma = np.logspace(0, -10, size)
    A = with_spectrum(500, sigma, seed=size)
    result = lp.svd(A, size, workers=workers, rng=0)
    exact = np.linalg.svd(A, compute_uv=False)
    assert np.abs(result.singular_values - sigma).max() < 1e-14
    assert np.abs(result.singular_values - exact).max() < 1e-14


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("partition", ["contiguous", "shuffled"])
def test_left_vectors_are_orthonormal_in_the_order_of_the_rows(method, partition):
    A = with_spectrum(90, 0.5 ** np.arange(9), seed=2)
    options = {"method": method, "workers": 5, "partition": partition, "rng": 3}
    r = lp.svd(A, 4, return_u=True, max_rounds=40, **options)
    assert np.abs(r.U.T @ r.U - np.eye(4)).max() < 40 * EPS
    residual = A @ r.components.T - r.U * r.singular_values
    assert np.linalg.norm(residual, 2) < 40 * EPS


def test_left_vectors_are_not_fetched_unless_asked_for():
    result = lp.svd(np.eye(6), 2, workers=2, rng=0)
    assert result.U is None
    assert "LeftVectors" not in {record.task for record in result.ledger.records}


def test_left_vectors_of_tiny_singular_values_stay_orthonormal():
    A = with_spectrum(60, np.logspace(0, -12, 8), seed=4)
    U = lp.svd(A, 8, workers=3, return_u=True, rng=0).U
    assert np.abs(U.T @ U - np.eye(8)).max() < 60 * EPS


def test_signs_depend_on_the_right_vectors_alone():
    A = with_spectrum(80, [5.0, 4, 3, 2, 1], seed=5)
    for workers in (1, 2, 7):
        V = lp.svd(A, 5, method="dpi", workers=workers, max_rounds=200, rng=workers).components
        largest = np.take_along_axis(V, np.abs(V).argmax(axis=1)[:, None], axis=1)
        assert (largest > 0).all()


def test_the_same_signs_and_order_for_every_partition_and_start():
    A = with_spectrum(120, [9.0, 7, 5, 3, 1, 0.5], seed=6)
    exact = np.linalg.svd(A)[2][:4]
    exact *= np.sign(np.take_along_axis(exact, np.abs(exact).argmax(axis=1)[:, None], axis=1))
    for seed in range(20):
        V = lp.svd(A, 4, method="dpi", workers=1 + seed % 6, max_rounds=300, rng=seed).components
        assert np.abs(V - exact).max() < 1e-10


@pytest.mark.parametrize("center", [True, False])
def test_the_variance_is_that_of_the_rows_along_each_component(center):
    rng = np.random.default_rng(7)
    parts = [rng.standard_normal((n, 4)) * [4, 3, 2, 1] + mean for n, mean in ((3, 5), (9, -2))]
    result = lp.svd(parts, 3, center=center, rng=0)
    along = np.vstack(parts) @ result.components.T
    np.testing.assert_allclose(result.explained_variance, along.var(axis=0, ddof=int(center)))
    total = np.vstack(parts).var(axis=0, ddof=int(center)).sum()
    share = result.explained_variance / total
    np.testing.assert_allclose(result.explained_variance_ratio, share)


def test_no_component_has_more_than_all_of_the_variance():
    how = Columns(None, None, 0, 0, 1.0, np.zeros(2), squares=12.0)
    rounded = Factors(np.ones(2), np.eye(2), None, variance=np.array([3.0 + 1e-9, 1.0]))
    ratio, variance = explained(rounded, how, 4, center=False)
    assert (ratio.tolist(), variance.tolist()) == ([1.0, 1 / 3], [3.0, 1.0])
