"""Edge cases are cases: right numbers, no warning that is not meant, no NaN."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import ENGINES, EPS, ITERATED, METHODS, with_options, with_spectrum
from hypothesis import given, settings
from hypothesis import strategies as st

import localpower as lp


def check(data, result, *, exact=True, tolerance=None):
    """Finite, orthonormal, ordered; and, for methods that converge, the right values."""
    A = np.vstack([b.toarray() if sp.issparse(b) else b for b in data]).astype(float)
    k = len(result.singular_values)
    V, S = result.components.T.astype(float), result.singular_values.astype(float)
    eps = np.finfo(result.components.dtype).eps
    for value in (V, S, result.explained_variance, result.explained_variance_ratio):
        assert np.isfinite(value).all()
    assert np.abs(V.T @ V - np.eye(k)).max() < 50 * eps
    assert (S >= 0).all()
    assert (np.diff(S) <= 0).all()
    if exact:
        expected = np.linalg.svd(A, compute_uv=False)[:k]
        tolerance = tolerance or 200 * eps * max(expected[0], 1e-300)
        assert np.abs(S - expected).max() <= tolerance


@pytest.mark.parametrize("engine", ENGINES[:1])  # others give its bits: tests/contract
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "shards",
    [
        pytest.param([(0, 6), (30, 6), (0, 6)], id="empty shards"),
        pytest.param([(1, 6), (30, 6), (1, 6)], id="one-row shards"),
        pytest.param([(2, 6)] * 9, id="shards smaller than the width"),
    ],
)
def test_small_shards(engine, method, shards):
    rng = np.random.default_rng(0)
    blocks = [rng.standard_normal(shape) * [9, 6, 4, 1, 0.1, 0.1] for shape in shards]
    r = lp.svd(blocks, 3, method=method, max_rounds=200, engine=engine, rng=0, return_u=True)
    check(blocks, r, exact=method == "dpi", tolerance=1e-8)
    assert np.abs(r.U.T @ r.U - np.eye(3)).max() < 100 * EPS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_shard_of_zeros_and_columns_of_zeros(method, sparse):
    A = with_spectrum(60, [8.0, 5, 3, 1, 0.5])
    A = np.insert(A, [0, 2, 5], 0.0, axis=1)
    blocks = [A[:30], np.zeros((10, 8)), A[30:]]
    blocks = [sp.csr_array(block) for block in blocks] if sparse else blocks
    result = lp.svd(blocks, 3, method=method, max_rounds=300, center=True, scale="max", rng=0)
    check([np.zeros((1, 8))], result, exact=False)
    if method == "dpi":
        raw = lp.svd(blocks, 3, method=method, max_rounds=300, rng=0)
        check(blocks, raw)
        assert (np.abs(raw.components[:, [0, 3, 7]]) < 1e-14).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("width", [None, 6])
def test_rank_deficient_matrices_have_zero_singular_values(method, width):
    A = with_spectrum(50, [4.0, 2, 0, 0, 0, 0])
    blocks = np.array_split(A, 3)
    if width is not None and method in ITERATED:
        method = with_options(method, width=width)
    result = lp.svd(blocks, 4, method=method, max_rounds=100, rng=0, return_u=True)
    check(blocks, result, tolerance=1e-13)
    assert np.abs(result.U.T @ result.U - np.eye(4)).max() < 100 * EPS


@pytest.mark.parametrize("method", METHODS)
def test_the_zero_matrix(method):
    blocks = [np.zeros((5, 4)), np.zeros((3, 4))]
    result = lp.svd(blocks, 2, method=method, rng=0, center=True, return_u=True)
    check(blocks, result)
    assert not result.explained_variance_ratio.any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (3, 3), (4, 9), (9, 4)])
def test_as_many_components_as_there_are(method, shape):
    A = np.random.default_rng(1).standard_normal(shape)
    k = min(shape)
    r = lp.svd(A, k, method=method, workers=2, rng=0, return_u=True)
    exact = method not in ("uda", "wda", "aligned_average", "one_shot")
    check([A], r, exact=exact or k == shape[1], tolerance=1e-13)
    if exact:
        assert np.abs(r.U * r.singular_values @ r.components - A).max() < 1e-13


def test_a_tie_at_the_cut_gives_a_valid_subspace():
    A = with_spectrum(80, [3.0, 2, 2, 2, 1])
    result = lp.svd(A, 2, method="dpi", workers=4, max_rounds=200, rng=0)
    check([A], result)
    residual = A.T @ (A @ result.components.T) - result.components.T * result.singular_values**2
    assert np.linalg.norm(residual, 2) < 1e-12


def test_sixty_four_shards_over_four_processes():
    A = with_spectrum(640, 0.5 ** np.arange(10), seed=3)
    r = lp.svd(A, 4, method="dpi", workers=64, engine="processes:4", max_rounds=40, rng=0)
    check([A], r)
    assert r.run["workers"] == 64


@pytest.mark.parametrize("method", ["dpi", "local_power:schedule=halving"])
def test_shards_of_very_unequal_weight(method):
    rng = np.random.default_rng(0)
    big = rng.standard_normal((1_000_000, 4)).astype(np.float32) * [4, 3, 2, 1]
    small = rng.standard_normal((1, 4)) * 2
    blocks = [small, big.astype(np.float64)]
    result = lp.svd(blocks, 2, method, max_rounds=60, rng=0)
    check(blocks, result, tolerance=1e-9)


@pytest.mark.parametrize("align", ["procrustes", "signs", "none"])
@pytest.mark.parametrize("align_at", ["server", "worker"])
def test_orthogonal_shards_never_give_nan(align, align_at):
    blocks = [np.eye(8)[:4] * 3, np.eye(8)[4:] * 2]
    r = lp.svd(
        blocks,
        4,
        method=f"local_power:steps=3,align={align},align_at={align_at}",
        max_rounds=20,
        rng=0,
    )
    check(blocks, r, exact=False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("power", [-500, 500, -990, 990])
def test_scaling_by_a_power_of_two_changes_nothing_but_the_exponent(method, power):
    A = with_spectrum(70, 0.6 ** np.arange(7), seed=9)
    options = {"method": method, "workers": 3, "rng": 1, "return_u": True, "max_rounds": 5}
    one = lp.svd(A, 3, **options)
    scaled = lp.svd(np.ldexp(A, power), 3, **options)
    assert one.components.tobytes() == scaled.components.tobytes()
    assert one.U.tobytes() == scaled.U.tobytes()
    assert (np.ldexp(one.singular_values, power) == scaled.singular_values).all()
    assert (one.explained_variance_ratio == scaled.explained_variance_ratio).all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("center", [False, True])
def test_float32_stays_float32_at_any_scale(scale, center):
    A = (with_spectrum(200, 0.7 ** np.arange(8), seed=2) * scale).astype(np.float32)
    r = lp.svd(A, 3, method="dpi", workers=3, max_rounds=100, center=center, return_u=True, rng=0)
    for value in (r.components, r.singular_values, r.U, r.basis, r.explained_variance):
        assert value.dtype == np.float32
    B = A.astype(float)
    B -= B.mean(axis=0) if center else 0
    expected = np.linalg.svd(B, compute_uv=False)[:3]
    assert np.abs(r.singular_values / expected - 1).max() < 20 * np.finfo(np.float32).eps


@pytest.mark.parametrize("scale", [None, "max", "minmax", "std"])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(
    ("dtype", "power"),
    [
        ("f4", 118),
        ("f4", -120),
        ("f4", -140),
        ("f8", 1014),
        ("f8", -1000),
        ("f8", -1040),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_data_at_the_limits_of_the_number_format(dtype, power, scale, center, sparse):
    rng = np.random.default_rng(0)
    A = np.ldexp(rng.uniform(-1, 1, (3000, 4)) * [1, 0.5, 0.25, 0.125], power).astype(dtype)
    data = sp.csr_array(A) if sparse else A
    r = lp.svd(data, 2, method="dpi", workers=3, center=center, scale=scale, rng=0)
    assert np.isfinite(r.components).all()
    assert np.isfinite(r.singular_values).all()
    V = r.components.astype(float)
    assert np.abs(V @ V.T - np.eye(2)).max() < 50 * np.finfo(dtype).eps
    if scale is None and not center and power > -1000:
        S = np.linalg.svd(np.ldexp(A.astype(float), -power), compute_uv=False)[:2]
        found = np.ldexp(r.singular_values.astype(float), -power)
        assert np.allclose(found, S, rtol=1e-4 if power > -130 or dtype == "f8" else 1e-1)


def test_float32_sums_over_many_rows_are_accumulated_safely():
    rows = np.full((1_000_000, 2), 0.1, dtype=np.float32)
    rows[::2, 1] = -0.1
    result = lp.svd(rows, 2, workers=3, rng=0)
    expected = np.linalg.svd(rows.astype(float).T @ rows.astype(float), compute_uv=False) ** 0.5
    assert np.abs(result.singular_values / expected - 1).max() < 4 * np.finfo(np.float32).eps


@settings(max_examples=60)
@given(st.data())
def test_any_small_matrix_and_any_cut(data):
    n, d = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 7))
    rank = data.draw(st.integers(0, min(n, d)))
    seed = data.draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    A = rng.integers(-3, 4, (n, rank)) @ rng.integers(-3, 4, (rank, d)) * 1.0
    k = data.draw(st.integers(1, min(n, d)))
    width = data.draw(st.integers(k, d))
    blocks = np.split(A, sorted(data.draw(st.lists(st.integers(0, n), max_size=4))))
    method = data.draw(st.sampled_from(METHODS))
    center = data.draw(st.booleans())
    scale = data.draw(st.sampled_from([None, "max", "minmax", "std"]))
    options = {"center": center, "scale": scale, "engine": "inline"}
    if method in ITERATED:
        method = with_options(method, width=width)
    r = lp.svd(blocks, k, method=method, rng=seed, max_rounds=8, return_u=True, **options)
    check(blocks, r, exact=False)
    assert np.isfinite(r.U).all()
    assert np.abs(r.U.T @ r.U - np.eye(k)).max() < 100 * EPS


@pytest.mark.parametrize(
    ("method", "columns"),
    [("gram", 3000), ("tsqr", 3000), ("local_ritz", 60_000), ("dpi", 200_000)],
)
def test_work_that_does_not_fit_in_memory_is_refused_before_it_is_begun(method, columns):
    X = sp.csr_array(([1.0, 2.0], ([0, 1], [0, columns - 1])), shape=(4, columns))
    with pytest.raises(lp.DataError, match=f"{columns} columns.*{method}.*raise memory="):
        lp.svd(X, 2, method=method, memory="16MiB")


@pytest.mark.parametrize("method", ["auto", "tsqr", "gram", "local_ritz", "block_lanczos"])
def test_more_components_than_columns_that_differ_converge_to_zeros(method):
    different = np.random.default_rng(1).standard_normal((300, 5))
    result = lp.pca(np.repeat(different, 4, axis=1), 8, method, tol=1e-8, workers=2, rng=0)
    assert result.converged
    values = 2 * np.linalg.svd(different - different.mean(axis=0), compute_uv=False)
    assert np.abs(result.singular_values[:5] - values).max() < 100 * EPS * values[0]
    assert result.singular_values[5:].max() < 100 * EPS * values[0]
    assert result.certificate.vanishing
