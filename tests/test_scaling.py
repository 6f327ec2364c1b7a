"""Centring and scaling: implicit, global, and equal to doing it by hand."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import with_spectrum
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import localpower as lp

RNG = np.random.default_rng(0)
A = with_spectrum(240, 0.6 ** np.arange(8), seed=1) * [1, 5, 0.1, 3, 1, 2, 7, 1] + RNG.normal(
    size=8
)
SPARSE = np.where(RNG.random(A.shape) < 0.3, A, 0.0)


def by_hand(X, center, scale):
    if scale == "max":
        X = X / np.abs(X).max(axis=0)
    elif scale == "minmax":
        X = MinMaxScaler().fit_transform(X)
    elif scale == "std":
        X = StandardScaler(with_mean=False).fit_transform(X)
    return X - X.mean(axis=0) if center else X


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [None, "max", "minmax", "std"])
def test_scaling_is_what_it_would_be_by_hand(center, scale, sparse):
    X = SPARSE if sparse else A
    rows = sp.csr_array(X) if sparse else X
    options = {"method": "dpi", "max_rounds": 500, "workers": 5, "rng": 0}
    result = lp.svd(rows, 3, center=center, scale=scale, **options)
    Y = by_hand(X, center, scale)
    _, S, Vt = np.linalg.svd(Y, full_matrices=False)
    assert np.allclose(result.singular_values, S[:3], rtol=1e-10)
    assert lp.subspace_distance(result.components.T, Vt[:3].T) < 1e-7
    scores = Y @ result.components.T
    assert np.allclose(result.transform(rows), scores, atol=1e-10)
    ratio = scores.var(axis=0, ddof=int(center)) / Y.var(axis=0, ddof=int(center)).sum()
    assert np.allclose(result.explained_variance_ratio, ratio, atol=1e-12)
    assert np.allclose(result.explained_variance, scores.var(axis=0, ddof=int(center)))
    back = result.inverse_transform(result.transform(rows))
    full = lp.svd(rows, 8, center=center, scale=scale, rng=0)
    assert back.shape == X.shape
    assert np.allclose(full.inverse_transform(full.transform(rows)), X, atol=1e-10)


def test_the_mean_is_that_of_all_rows_not_of_each_shard():
    blocks = [RNG.normal(size=(50, 4)) + 10, RNG.normal(size=(70, 4)) - 10]
    result = lp.pca(blocks, 1, method="dpi", max_rounds=100, rng=0)
    X = np.vstack(blocks)
    assert np.allclose(result.mean, X.mean(axis=0))
    assert result.explained_variance_ratio[0] > 0.95  # the difference between the shards


def test_a_large_mean_costs_no_digits():
    X = with_spectrum(300, [3.0, 2, 1, 0.5], seed=3)
    shifted = X + 2.0**40  # exact: nothing of X's leading digits is lost but 2**-12 grid
    grid = shifted - 2.0**40
    result = lp.pca(shifted, 2, method="dpi", max_rounds=400, workers=4, rng=0)
    S = np.linalg.svd(grid - grid.mean(axis=0), compute_uv=False)[:2]
    assert np.allclose(result.singular_values, S, rtol=1e-6)


def test_sparse_data_are_never_made_dense():
    X = sp.random_array((400, 200_000), density=1e-4, rng=RNG, format="csr")  # dense: 640 MB
    for scale in (None, "max", "std"):
        result = lp.pca(
            X, 2, method="local_power:steps=4", scale=scale, workers=3, max_rounds=3, rng=0
        )
        assert result.transform(X).shape == (400, 2)


@pytest.mark.parametrize("method", ["uda", "wda", "aligned_average"])
def test_one_shot_baselines_need_no_square_matrix_when_wide(method):
    X = sp.random_array((300, 50_000), density=1e-3, rng=RNG, format="csr")  # d x d: 20 GB
    result = lp.svd(X, 2, method=method, workers=3, rng=0)
    assert np.isfinite(result.singular_values).all()


def test_constant_columns_are_left_alone_by_every_scale():
    X = np.hstack([A, np.full((240, 1), 0.1), np.zeros((240, 1))])
    for scale in ("max", "minmax", "std"):
        result = lp.pca(X, 3, scale=scale, workers=4, rng=0)
        assert np.isfinite(result.components).all()
        assert (np.abs(result.components[:, 8:]) < 1e-12).all()
