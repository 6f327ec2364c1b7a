"""Large means, tiny spreads and huge scales: right numbers, or a noise that owns up to the error.

The oracle is the definition in extended precision, relative to the first row: deviations of numbers
that are near each other are exact.
"""

from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import TruncatedSVD

import localpower as lp
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.engines.inline import Inline
from localpower.methods.scaling import columns, describe, prepare
from localpower.worker import kernels
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.replies import unpacked
from localpower.worker.shard import Shard
from localpower.worker.tasks import GramTriangle, LocalTriangle, PowerSteps

SCALES = [None, "max", "minmax", "std"]
LONG, EPS = np.longdouble, np.finfo(float).eps
needs_long = pytest.mark.skipif(
    np.finfo(LONG).eps > 1e-18, reason="this machine has no extended precision: no oracle"
)


@contextmanager
def using(kernel):
    """Have the compiled kernels, or numpy in their place."""
    if kernel == "compiled" and kernels.LIBRARY is None:
        pytest.skip("the kernels were not compiled")
    with pytest.MonkeyPatch.context() as patch:
        if kernel == "numpy":
            patch.setattr(kernels, "LIBRARY", None)
        yield


def exact_rows(X, center, scale, constant=False):
    """Rows as they should enter, in extended precision; `constant` columns are not divided."""
    X = X.astype(LONG)
    rest = X - X[0]
    mean = rest.mean(axis=0)
    rows = rest - mean if center else X
    if scale == "minmax" and not center:
        rows = X - X.min(axis=0)
    divisor = {
        None: lambda: np.ones(X.shape[1], LONG),
        "max": lambda: np.abs(X).max(axis=0),
        "minmax": lambda: np.ptp(X, axis=0),
        "std": lambda: np.sqrt(np.square(rest - mean).mean(axis=0)),
    }[scale]()
    return rows / np.where((divisor > 0) & ~np.asarray(constant), divisor, 1)


def placed(X, kind, folder=None):
    """Shards of the rows in the way that is named."""
    half = len(X) // 2
    if kind == "dense":
        data = [X[:half], X[half:]]
    elif kind == "csr":
        data = [sp.csr_array(X[:half]), sp.csr_array(X[half:])]
    elif kind == "mixed":
        pieces = X[:half], sp.csr_array(X[half:])
        return [Shard(pieces, X.shape[1], X.dtype)]
    else:
        path = folder / f"rows.{kind}"
        np.save(path, X) if kind == "npy" else sp.save_npz(path, sp.csr_array(X), compressed=False)
        shards = contiguous(open_source(str(path)), 2).shards
        return [Shard(s.pieces, s.columns, s.dtype, keep="block", number=s.number) for s in shards]
    return [Shard((rows,), X.shape[1], X.dtype, number=i) for i, rows in enumerate(data)]


def grams(shards, center, scale):
    """Yield ``AᵀA`` by all that workers can be asked for, with exponent, noise and what is left."""
    d = shards[0].columns
    with Inline() as engine:
        engine.place(shards)
        how = columns(describe(engine, scale), center, scale, engine.dtype)
        noise = prepare(engine, how).noise
        eye = np.eye(d, dtype=engine.dtype)
        G = unpacked(engine.sum(GramTriangle()).packed, d)
        R = unpacked(engine.sum(LocalTriangle()).packed, d)
        P = engine.sum(PowerSteps(eye, 1)).product.astype(float)
    for name, found in (("gram", G + np.triu(G, 1).T), ("triangle", R.T @ R), ("product", P)):
        yield name, found, how, noise


def check(X, kind, center, scale, folder=None):
    """Errors of all products are at most the noise and a few roundings; return the largest part."""
    eps, worst = float(np.finfo(X.dtype).eps), 0.0
    for name, found, how, noise in grams(placed(X, kind, folder), center, scale):
        left = np.ones(X.shape[1]) if scale is None else how.factor > 0
        constant = (how.scale == 1) if scale == "std" else False  # up to rounding
        rows = np.ldexp(exact_rows(X, center, scale, constant) * left, -how.exponent)
        G = rows.T @ rows
        norm = np.linalg.norm(G.astype(float), 2)
        error = np.linalg.norm((found - G).astype(float), 2)
        assert error <= noise + max(30, len(X) / 4) * eps * norm, (name, error / norm, noise / norm)
        worst = max(worst, error / (norm or 1.0))
    return worst, noise / norm if norm else 0.0


@st.composite
def far_data(draw, dtype):
    """Columns whose means are up to 1e17 times their spread, some constant, some with zeros."""
    n, d = draw(st.integers(2, 120)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    each = st.lists(st.floats(0, 17), min_size=d, max_size=d)
    ratio, spread = 10.0 ** np.array(draw(each)), 10.0 ** (np.array(draw(each)) / 4 - 2)
    sizes = spread * draw(st.sampled_from([np.zeros(d), np.ones(d), rng.random(d) < 0.7]))
    X = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) * sizes
    X = (X + ratio * spread * rng.choice([-1, 1, 1], d)).astype(dtype)
    X[rng.random(X.shape) < draw(st.sampled_from([0.0, 0.01, 0.5]))] = 0
    return X


@needs_long
@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@pytest.mark.parametrize("kind", ["dense", "csr", "mixed", "npy", "npz"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data())
@settings(max_examples=25)
def test_products_err_by_no_more_than_the_noise(tmp_path_factory, dtype, kind, kernel, data):
    X = data.draw(far_data(dtype))
    how = data.draw(st.booleans()), data.draw(st.sampled_from(SCALES))
    with using(kernel):
        check(X, kind, *how, tmp_path_factory.mktemp("rows"))


@needs_long
@pytest.mark.parametrize("kind", ["dense", "csr", "mixed", "npy", "npz"])
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("ratio", [1e3, 1e6, 1e9, 1e11, 1e13, 1e15])
def test_the_noise_is_of_the_size_of_the_error(tmp_path, kind, scale, ratio):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 5)) * [3, 2, 1, 0.5, 0.2] + ratio
    error, noise = check(X, kind, True, scale, tmp_path)
    assert noise <= 100 * max(error, ratio * EPS if scale == "std" and ratio < 1e5 else EPS)
    if ratio == 1e15:
        assert noise > 1e-4


@needs_long
def test_many_sparse_columns_with_means_of_a_few_deviations_make_a_little_noise():
    rng = np.random.default_rng(0)
    X = (3 + rng.standard_normal((400, 300))) * (rng.random((400, 300)) < 0.97)
    error, noise = check(X, "csr", True, None)
    assert 0 < noise <= 1e-11
    assert error <= 1e-13


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", SCALES)
def test_ordinary_data_have_hardly_any_noise_and_nothing_is_made_explicit(kind, dtype, scale):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 20)) * (rng.random((500, 20)) < 0.2) + (kind == "dense")
    with Inline() as engine:
        engine.place(placed(X.astype(dtype), kind))
        for center in (False, True):
            how = columns(describe(engine, scale), center, scale, engine.dtype)
            least = np.finfo(dtype).eps * how.parts.max(initial=0)  # other rounding is more
            assert prepare(engine, how).noise <= least
            assert not (how.far and kind == "csr")


def test_files_that_are_streamed_have_the_bits_of_rows_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 8)) + np.array([1e6, 1e4, 0, 0, 30, 0, 1e9, 0])
    X[rng.random(X.shape) < 0.001] = 0
    X[:, 2] *= rng.random(5000) < 0.1
    Z = np.linalg.qr(rng.standard_normal((8, 3)))[0]
    found = []
    for shard in (placed(X, "npz", tmp_path)[0], placed(X, "csr")[0]):
        matrix = LocalMatrix(shard)
        matrix.prepare(X.mean(axis=0), 1.0)
        found.append([matrix.product(Z), matrix.apply(Z), matrix.gram(), matrix.product(Z)])
    for streamed, kept in zip(*found, strict=True):
        assert streamed.tobytes() == kept.tobytes()


CASES = {
    "sparse": sp.csr_array(
        1e6 + np.random.default_rng(0).standard_normal((200, 5)) * [3, 2, 1, 0.5, 0.2]
    ),
    "float32": (
        1e7 + np.random.default_rng(1).standard_normal((4000, 5)) * [10, 5, 2, 1, 0.5]
    ).astype(np.float32),
}
CASES["sparse float32"] = sp.csr_array(CASES["float32"])


def truth(data):
    """Rows less their exact mean, to the last digit of the deviations."""
    X = plain(data) - plain(data)[0]
    return X - X.mean(axis=0)


def plain(data):
    return (data.toarray() if sp.issparse(data) else data).astype(float)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["auto", "dpi", "local_ritz", "block_lanczos", "gram", "tsqr"])
def test_a_large_mean_costs_sparse_and_float32_data_no_digits(name, method):
    X, A = CASES[name], truth(CASES[name])
    result = lp.pca(X, 2, method=method, max_rounds=100, workers=3, rng=0, return_u=True)
    _, S, Vt = np.linalg.svd(A, full_matrices=False)
    eps = float(np.finfo(X.dtype).eps)
    sine = lp.subspace_distance(result.components.T.astype(float), Vt[:2].T)
    assert sine <= 100 * eps
    assert sine <= (result.history[-1].angle or 1.0)
    assert np.abs(result.singular_values / S[:2] - 1).max() <= 20 * eps
    scores = (plain(X) - result.mean) @ result.components.T.astype(float)
    assert np.abs(result.transform(X) - scores).max() <= 20 * eps * np.abs(A).max()
    assert np.abs(scores - A @ result.components.T).max() <= np.spacing(plain(X).max())
    back = result.inverse_transform(result.transform(X)).astype(float)
    ulp = np.spacing(np.abs(result.mean).max().astype(X.dtype))
    expected = scores @ result.components.astype(float) + result.mean
    assert np.abs(back - expected).max() <= 2 * ulp
    assert np.abs(result.U * result.singular_values - scores).max() <= 100 * eps * S[0]


@pytest.mark.parametrize("name", CASES)
def test_shards_own_vectors_see_no_cancellation_either(name):
    X, A = CASES[name], truth(CASES[name])
    result = lp.pca(X, 2, method="uda", workers=1, rng=0)
    exact = np.linalg.svd(A)[2][:2]
    found = result.components.T.astype(float)
    assert lp.subspace_distance(found, exact.T) <= 100 * np.finfo(X.dtype).eps


@pytest.mark.parametrize("engine", ["threads:3", "processes:2"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_engines_agree_to_the_last_bit_on_large_means(name, engine):
    options = {"method": "dpi", "max_rounds": 5, "workers": 4, "rng": 0, "return_u": True}
    one, other = (lp.pca(CASES[name], 2, engine=where, **options) for where in ("inline", engine))
    assert same_bits(one, other)


def test_a_sparse_model_transforms_rows_with_other_zeros():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4)) * [3, 2, 1, 1] + [1e8, 0, 50, 0]
    model = lp.pca(sp.csr_array(X), 2, rng=0)
    new = X[:50] * (rng.random((50, 4)) < 0.5)
    new[:48, 0] = X[:48, 0]
    expected = (new - model.mean) @ model.components.T
    found = model.transform(sp.csr_array(new))
    assert np.abs(found - expected).max() <= 1e-15 * 1e8
    assert np.abs(found[:48] - expected[:48]).max() <= 1e-12


def test_uncentred_variance_of_constant_rows_is_zero():
    result = lp.svd(np.full((200, 2), 3.7), 1, rng=0)
    assert not result.explained_variance_ratio.any()
    assert not result.explained_variance.any()


@pytest.mark.parametrize("method", ["auto", "gram", "tsqr", "dpi", "local_ritz"])
@pytest.mark.parametrize("seed", range(3))
def test_uncentred_variance_does_not_cancel(method, seed):
    X = 1e8 + np.random.default_rng(seed).standard_normal((300, 5)) * [3, 2, 1, 1, 1]
    result = lp.svd(X, 1, method=method, workers=3, max_rounds=50, rng=0)
    reference = TruncatedSVD(1, algorithm="arpack").fit(X)
    ratio, variance = reference.explained_variance_ratio_, reference.explained_variance_
    np.testing.assert_allclose(result.explained_variance_ratio, ratio, rtol=1e-5)
    np.testing.assert_allclose(result.explained_variance, variance, rtol=1e-5)


@given(
    n=st.integers(1, 60),
    d=st.integers(1, 6),
    mean=st.floats(-1e9, 1e9),
    workers=st.integers(1, 5),
    method=st.sampled_from(["gram", "tsqr", "dpi"]),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=80)
def test_uncentred_variance_is_that_of_the_scores(n, d, mean, workers, method, dtype, seed):
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((n, d)) + mean * rng.integers(0, 2, d)).astype(dtype)
    k = min(n, d)
    result = lp.svd(X, k, method=method, workers=workers, engine="inline", rng=0)
    A, V = X.astype(float), result.components.T.astype(float)
    scores = (A - A[0]) @ V  # another origin, the same variance
    size = float(np.finfo(dtype).eps) * (np.abs(A).max() + 1) * 10
    spread = np.sqrt(scores.var(axis=0))
    error = np.abs(np.sqrt(result.explained_variance.astype(float)) - spread)
    assert (error <= size * np.sqrt(d)).all()
    assert (result.explained_variance_ratio >= 0).all()
    assert (result.explained_variance_ratio <= 1).all()


UNITS = [(330, -330, 0, 100), (530, -530, 0, 1), (1015, -1015, 500, -500), (265, -265, 0, 0)]


def by_hand(X, center, scale):
    Y = X / {"max": np.abs(X).max(axis=0), "std": X.std(axis=0), "minmax": np.ptp(X, axis=0)}[scale]
    Y = Y - Y.min(axis=0) if scale == "minmax" else Y
    return Y - Y.mean(axis=0) if center else Y


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", SCALES[1:])
@pytest.mark.parametrize("units", [*UNITS, (100, -100, 0, 50)])
def test_columns_of_any_size_are_scaled_as_by_hand(units, scale, center, sparse):
    dtype = np.float64 if units in UNITS else np.float32
    rng = np.random.default_rng(0)
    A = (rng.standard_normal((90, 4)) @ rng.standard_normal((4, 4)) + [0, 1, 2, 3]).astype(dtype)
    X = np.ldexp(A, units)
    Y = by_hand(A.astype(float), center, scale)
    rows, eps = sp.csr_array(X) if sparse else X, float(np.finfo(dtype).eps)
    for method in ("dpi", "tsqr", "gram", "auto"):
        options = {"method": method, "max_rounds": 400, "workers": 3, "engine": "inline", "rng": 0}
        result = lp.svd(rows, 2, center=center, scale=scale, **options)
        S, Vt = np.linalg.svd(Y, full_matrices=False)[1:]
        assert np.abs(result.singular_values / S[:2] - 1).max() <= 100 * eps
        V = result.components.T.astype(float)
        assert lp.subspace_distance(V, Vt[:2].T) <= 1e3 * eps * S[0] / (S[1] - S[2])
        assert np.abs(result.transform(rows) - Y @ V).max() <= 100 * eps * np.abs(Y).max()
        variance = (Y @ V).var(axis=0, ddof=int(center))
        assert np.abs(result.explained_variance / variance - 1).max() <= 1e3 * eps
    full = lp.svd(rows, 4, center=center, scale=scale, method="tsqr", rng=0)
    back = full.inverse_transform(full.transform(rows)).astype(float)
    assert np.abs(np.ldexp(back, np.negative(units)) - A).max() <= 1e3 * eps
    if center:
        mean = np.ldexp(full.mean.astype(float), np.negative(units))
        np.testing.assert_allclose(mean, A.mean(axis=0, dtype=float), rtol=100 * eps)
    divisor = np.ldexp(full.scale.astype(float), np.negative(units))
    wanted = {"max": np.abs(A).max(axis=0), "std": A.std(axis=0), "minmax": np.ptp(A, axis=0)}
    np.testing.assert_allclose(divisor, wanted[scale], rtol=100 * eps)


@pytest.mark.parametrize("sparse", [False, True])
def test_means_are_those_of_the_columns_however_small_beside_others(sparse):
    A = np.random.default_rng(0).standard_normal((90, 3)) + 2
    X = A * [1e300, 1e-300, 1]
    result = lp.pca(sp.csr_array(X) if sparse else X, 1, workers=3, rng=0)
    np.testing.assert_allclose(result.mean, A.mean(axis=0) * [1e300, 1e-300, 1], rtol=1e-14)
    assert result.singular_values[0] == pytest.approx(A[:, 0].std() * np.sqrt(90) * 1e300)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scale", SCALES[1:])
@given(data=st.data())
@settings(max_examples=25)
def test_units_of_columns_change_no_bit_of_scaled_components(sparse, scale, data):
    powers = data.draw(st.lists(st.integers(-960, 960), min_size=3, max_size=3))
    center = data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    A = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 3)) + data.draw(st.floats(-9, 9))
    found = []
    for X in (A, np.ldexp(A, powers)):
        rows = sp.csr_array(X) if sparse else X
        options = {"method": "dpi", "max_rounds": 4, "workers": 2, "rng": 0, "engine": "inline"}
        found.append(lp.svd(rows, 2, center=center, scale=scale, return_u=True, **options))
    assert same_bits(*found)
    assert (np.ldexp(found[0].scale, powers) == found[1].scale).all()


@pytest.mark.parametrize("value", [1e300, -1e300, 1e308, 1e-300, 5e-324, 0.1])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scale", SCALES[1:])
def test_constant_columns_of_any_size_add_nothing_when_centred(value, sparse, scale):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((90, 4)) @ rng.standard_normal((4, 4))
    X = np.insert(A, 2, value, axis=1)
    rows = sp.csr_array(X) if sparse else X
    S = np.linalg.svd(by_hand(A, True, scale), compute_uv=False)[:2]
    for method in ("auto", "tsqr", "gram", "dpi"):
        options = {"scale": scale, "method": method, "max_rounds": 300, "workers": 3}
        options |= {"engine": "inline", "rng": 0}
        result = lp.pca(rows, 2, **options)
        np.testing.assert_allclose(result.singular_values, S, rtol=1e-12)
        assert np.abs(result.components[:, 2]).max() <= 1e-14
        assert result.mean[2] == value
        assert result.scale[2] == (abs(value) if scale == "max" else 1)
        assert np.isfinite(result.transform(rows)).all()
        plain = lp.svd(rows, 2, **options)
        assert np.isfinite(plain.components).all()
        if abs(value) >= 1e300 and scale == "std":
            assert plain.components[0, 2] == pytest.approx(1)
            if abs(value) == 1e300:
                assert plain.singular_values[0] == pytest.approx(1e300 * np.sqrt(90))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("value", "dtype"), [(1e300, "f8"), (1e200, "f8"), (5e19, "f4"), (1e38, "f4")]
)
def test_a_huge_constant_column_that_is_not_scaled_adds_nothing_when_centred(value, dtype, sparse):
    A = np.random.default_rng(0).standard_normal((90, 4)).astype(dtype)
    X = np.insert(A, 2, value, axis=1)
    S = np.linalg.svd(truth(A), compute_uv=False)[:2]
    for method in ("auto", "tsqr", "gram", "dpi"):
        options = {"method": method, "max_rounds": 300, "workers": 3, "rng": 0}
        result = lp.pca(sp.csr_array(X) if sparse else X, 2, **options)
        np.testing.assert_allclose(result.singular_values, S, rtol=20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("center", [False, True])
def test_a_range_beyond_the_largest_number_counts_as_that(center):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (80, 3)) * [1.7e308, 1, 1e-308]
    result = lp.svd(X, 2, center=center, scale="minmax", rng=0)
    largest = np.finfo(float).max
    Y = X / [largest, np.ptp(X[:, 1]), np.ptp(X[:, 2])]
    Y -= Y.mean(axis=0) if center else Y.min(axis=0)
    S = np.linalg.svd(Y, compute_uv=False)[:2]
    np.testing.assert_allclose(result.singular_values, S, rtol=1e-12)
    assert result.scale[0] == largest
    np.testing.assert_allclose(result.transform(X), Y @ result.components.T, atol=1e-13)
    full = lp.svd(X, 3, center=center, scale="minmax", method="tsqr", rng=0)
    np.testing.assert_allclose(full.inverse_transform(full.transform(X)), X, rtol=1e-9)


@pytest.mark.parametrize("method", ["tsqr", "dpi", "local_ritz"])
@pytest.mark.parametrize("mean", [1e4, 1e6, 1e7])
def test_uncentred_variance_of_float32_has_the_digits_that_the_rows_have(method, mean):
    rng = np.random.default_rng(0)
    X = (mean + rng.standard_normal((400, 5)) * [40, 30, 20, 10, 5]).astype(np.float32)
    result = lp.svd(X, 2, method=method, workers=3, max_rounds=50, rng=0)
    A, V = X.astype(float), result.components.T.astype(float)
    variance = ((A - A.mean(axis=0)) @ V).var(axis=0)
    np.testing.assert_allclose(result.explained_variance, variance, rtol=2e-3)
    ratio = variance / A.var(axis=0).sum()
    np.testing.assert_allclose(result.explained_variance_ratio, ratio, rtol=2e-3)
