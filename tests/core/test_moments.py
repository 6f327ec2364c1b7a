"""Column statistics equal the textbook's, however rows are split, and at any scale."""

from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from localpower.core.certificate import TRACED
from localpower.worker import shard as shard_module
from localpower.worker.moments import moments
from localpower.worker.shard import Shard

EPS = np.finfo(float).eps
KINDS = {"dense": np.asarray, "sparse": sparse.csr_array}

shapes = st.tuples(st.integers(1, 12), st.integers(1, 3))
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.just(0.0) | st.floats(-1e3, 1e3) | st.integers(-3, 3).map(float)
matrices = shapes.flatmap(
    lambda s: arrays(float, s, elements=plain) | arrays(float, s, elements=finite)
)


def of(X, kind="dense"):
    dtype = np.dtype(np.float32 if X.dtype == np.float32 else np.float64)
    return moments(Shard((KINDS[kind](X),), X.shape[1], dtype))


def merged(parts, draw):
    """Add parts in a grouping that is drawn."""
    if len(parts) == 1:
        return parts[0]
    cut = draw(st.integers(1, len(parts) - 1))
    return merged(parts[:cut], draw) + merged(parts[cut:], draw)


def split(X, draw):
    cuts = sorted(draw(st.lists(st.integers(0, len(X)), max_size=4)))
    return np.split(X, cuts)


def check(stats, X):
    """Compare with exact rational arithmetic.

    In units where entries are at most 1, a mean of n entries errs by at most δ = 4nε. Squared
    deviations err by their own rounding, 8nε of them, and by what δ does to at most n merges:
    each adds a multiple of delta², off by 2δ√(n·m2) + nδ².
    """
    n = len(X)
    assert (stats.rows, stats.bad) == (n, None)
    np.testing.assert_array_equal(stats.low, X.min(axis=0))
    np.testing.assert_array_equal(stats.high, X.max(axis=0))
    exponents = np.broadcast_to(stats.exponent, X.shape[1])
    assert (np.ldexp(np.abs(X).max(axis=0), -exponents) <= 1).all()
    delta = 4 * n * EPS
    for j, column in enumerate(X.T.tolist()):
        unit = Fraction(2) ** int(exponents[j])
        exact = [Fraction(x) / unit for x in column]
        mean = sum(exact) / n
        m2 = float(sum((x - mean) ** 2 for x in exact))
        assert abs(float(Fraction(stats.mean[j].item()) - mean)) <= delta
        bound = 8 * n * EPS * m2 + n * (2 * delta * np.sqrt(n * m2) + n * delta**2)
        assert abs(stats.m2[j] - m2) <= bound


@pytest.mark.parametrize("kind", KINDS)
@given(X=matrices)
@settings(max_examples=80)
def test_moments_are_those_of_exact_arithmetic(kind, X):
    check(of(X, kind), X)


@pytest.mark.parametrize("kind", KINDS)
@given(X=matrices, data=st.data())
@settings(max_examples=80)
def test_any_split_merged_in_any_grouping_gives_the_same(kind, X, data):
    parts = [of(part, kind) for part in split(X, data.draw)]
    check(merged(parts, data.draw), X)


@given(X=matrices, data=st.data())
@settings(max_examples=60)
def test_dense_and_sparse_pieces_in_one_shard_go_together(X, data):
    pieces = [
        KINDS[data.draw(st.sampled_from(sorted(KINDS)))](part) for part in split(X, data.draw)
    ]
    check(moments(Shard(tuple(pieces), X.shape[1], X.dtype)), X)


@given(X=matrices, rows=st.integers(1, 5))
@settings(max_examples=60)
def test_the_size_of_blocks_does_not_matter(X, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_module, "BLOCK_BYTES", 1)
        patch.setattr(shard_module, "MIN_BLOCK_ROWS", rows)
        patch.setattr(shard_module, "LONG_BLOCK_ROWS", 1)
        check(of(X), X)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_rows_agree_with_numpy(kind, dtype):
    X = np.random.default_rng(0).standard_normal((30000, 12)) * np.geomspace(1e-3, 1e3, 12) + 1
    X = np.where(X > 1, X, 0).astype(dtype)
    stats, wide = of(X, kind), X.astype(float)
    mean, m2 = np.ldexp(stats.mean, stats.exponent), np.ldexp(stats.m2, 2 * stats.exponent)
    assert stats.mean.dtype == stats.m2.dtype == np.float64
    np.testing.assert_allclose(mean, wide.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(m2 / len(X), wide.var(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(stats.low, wide.min(axis=0))
    np.testing.assert_array_equal(stats.high, wide.max(axis=0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 2, 9])
def test_a_large_mean_does_not_drown_a_small_variance(kind, shards):
    deviations = np.random.default_rng(0).integers(-100, 100, (5000, 3)) / 64
    X = 1e8 + deviations  # exact, so the deviations are known to the last digit
    stats = merged([of(part, kind) for part in np.array_split(X, shards)], lambda _: 1)
    m2 = np.ldexp(stats.m2, 2 * stats.exponent)
    np.testing.assert_allclose(m2 / len(X), deviations.var(axis=0), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [-990, -300, 300, 990])
def test_a_power_of_two_changes_the_exponent_and_not_a_bit_else(kind, power):
    X = np.random.default_rng(0).standard_normal((200, 3))
    here, there = of(X, kind), of(np.ldexp(X, power), kind)
    assert there.exponent == here.exponent + power
    np.testing.assert_array_equal(there.mean, here.mean)
    np.testing.assert_array_equal(there.m2, here.m2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-300, 1e300, 5e-324, 1.7e308, 1e-310])
def test_data_at_the_limits_of_float64_keep_their_moments(kind, scale):
    X = np.array([[1.0, 0.0], [-1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]) * scale
    check(of(X, kind), X)
    check(of(X[:2], kind) + of(X[2:] * 0, kind), np.concatenate([X[:2], X[2:] * 0]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-42, 1e-38, 1e-30, 1e30, 3.4e38])
def test_float32_at_its_limits_has_the_moments_of_float64(kind, scale):
    X = (np.array([[1.0, 0.0], [-1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]) * scale).astype(np.float32)
    check(of(X, kind), X.astype(float))


def test_shards_of_very_different_scales_merge():
    parts = [np.full((2, 1), 1e-300), np.full((3, 1), 1e300), np.zeros((2, 1)), np.ones((1, 1))]
    check(merged([of(part) for part in parts], lambda _: 1), np.vstack(parts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 2, 9])
@pytest.mark.parametrize("sizes", [(1e100, 1e-100), (1e160, 1e-160), (1e300, 5e-324), (1e-300, 1)])
def test_columns_of_very_different_size_keep_their_digits(kind, shards, sizes):
    A = np.random.default_rng(0).integers(-9, 10, (60, 2))
    stats = merged([of(part, kind) for part in np.array_split(A * sizes, shards)], lambda _: 1)
    exponent = np.broadcast_to(stats.exponent, 2)
    mean = np.ldexp(stats.mean.astype(np.longdouble), exponent) / sizes
    m2 = np.ldexp(np.sqrt(stats.m2).astype(np.longdouble), exponent) / sizes
    np.testing.assert_allclose(mean.astype(float), A.mean(axis=0), atol=50 * EPS)
    np.testing.assert_allclose(m2.astype(float), np.sqrt(60 * A.var(axis=0)), rtol=50 * EPS)


def test_a_column_that_is_zero_in_the_shard_with_large_ones_keeps_its_digits():
    parts = [
        np.array([[1.0, 1.0], [3.0, 5.0]]) * 1e-100,
        np.array([[1.0, 0.0], [2.0, 0.0]]) * 1e100,
    ]
    for some in (parts, parts[::-1]):
        stats = of(some[0]) + of(some[1])
        deviation = np.ldexp(np.sqrt(stats.m2[1] / 4), stats.exponent[1])
        np.testing.assert_allclose(deviation, np.std([1, 5, 0, 0]) * 1e-100)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.1, -3.7, 1e30, 1e-30])
def test_a_column_of_one_value_has_exactly_that_mean_and_no_deviations(kind, dtype, value):
    X = np.full((1000, 2), value, dtype)
    X[:, 1] = np.arange(1000)
    stats = merged([of(part, kind) for part in np.array_split(X, 7)], lambda _: 1)
    assert np.ldexp(stats.mean, stats.exponent)[0] == X[0, 0]
    assert stats.m2[0] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [1e3, 1e6, 1e9, 1e12, 1e15])
def test_means_and_deviations_are_right_to_the_last_digits_of_the_deviations(kind, ratio):
    deviations = np.random.default_rng(0).standard_normal((4000, 3)) * [1, 2, 3]
    X = ratio + deviations
    parts = [of(part, kind) for part in np.array_split(X, 9)]
    stats = merged(parts, lambda _: 1)
    exact = X.astype(np.longdouble) - X[0]
    spread = np.square(exact - exact.mean(axis=0)).sum(axis=0)
    allowed = 20 * EPS * min(ratio, 2.0**16)  # from there on, the mean has more digits
    np.testing.assert_allclose(
        np.ldexp(stats.m2, 2 * stats.exponent), spread.astype(float), rtol=allowed
    )
    mean = np.ldexp(stats.mean, stats.exponent) - X[0] + np.ldexp(stats.rest, stats.exponent)
    np.testing.assert_allclose(mean, exact.mean(axis=0).astype(float), atol=allowed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data(), X=shapes.flatmap(lambda s: arrays(float, s, elements=plain)))
@example(data=None, X=np.array([[np.nan, np.inf]]))
@settings(max_examples=80)
def test_the_first_entry_that_is_not_finite_is_found_in_any_split(kind, dtype, data, X):
    if data is None:
        assert of(X.astype(dtype), kind).bad == (0, 0)
        return
    X = X.astype(dtype)
    places = st.tuples(*(st.integers(0, n - 1) for n in X.shape))
    unusable = st.sampled_from([np.nan, np.inf, -np.inf])
    chosen = data.draw(st.dictionaries(places, unusable, min_size=1, max_size=4))
    for place, value in chosen.items():
        X[place] = value
    stats = merged([of(part, kind) for part in split(X, data.draw)], data.draw)
    assert stats.rows == len(X)
    assert stats.bad == min(chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_entry_is_found_beyond_the_first_block(kind, monkeypatch):
    monkeypatch.setattr(shard_module, "BLOCK_BYTES", 1)
    monkeypatch.setattr(shard_module, "MIN_BLOCK_ROWS", 4)
    monkeypatch.setattr(shard_module, "LONG_BLOCK_ROWS", 1)
    X = np.ones((50, 3))
    X[37, 2] = X[41, 0] = np.nan
    assert of(X, kind).bad == (37, 2)


@pytest.mark.parametrize("pieces", [(), (np.empty((0, 3)),), (sparse.csr_array((0, 3)),)])
def test_an_empty_shard_changes_nothing(pieces):
    nothing = moments(Shard(pieces, 3, np.dtype(float)))
    assert (nothing.rows, nothing.bad) == (0, None)
    assert not nothing.mean.any()
    assert not nothing.m2.any()
    some = of(np.random.default_rng(0).standard_normal((5, 3)))
    for both in (nothing + some, some + nothing, nothing + some + nothing):
        assert (both.rows, both.exponent) == (some.rows, some.exponent)
        for name in ("mean", "m2", "low", "high"):
            np.testing.assert_array_equal(getattr(both, name), getattr(some, name))
    assert (nothing + nothing).rows == 0


def test_an_empty_shard_keeps_a_mean_in_two_numbers_and_the_checksum():
    X = 1e9 + np.random.default_rng(0).standard_normal((7, 2))
    nothing, some = (
        moments(Shard(pieces, 2, np.dtype(float)), with_checksum=True) for pieces in ((), (X,))
    )
    assert np.ndim(some.rest)
    for both in (nothing + some, some + nothing, nothing + some + nothing):
        np.testing.assert_array_equal(both.mean, some.mean)
        np.testing.assert_array_equal(both.rest, some.rest)
        assert both.checksum == some.checksum != nothing.checksum


def test_a_bad_entry_after_empty_shards_keeps_its_row():
    nothing = moments(Shard((), 2, np.dtype(float)))
    bad = of(np.array([[1.0, 2.0], [3.0, np.nan]]))
    assert (nothing + bad + nothing).bad == (1, 1)
    assert (of(np.ones((3, 2))) + nothing + bad + of(np.ones((2, 2)))).bad == (4, 1)


def test_extremes_are_left_out_and_merging_goes_on():
    X = np.random.default_rng(0).standard_normal((6, 3))
    a, b = of(X[:2]).without_extremes(), of(X[2:]).without_extremes()
    whole = of(X[:2]) + of(X[2:])
    assert (a + b).low.size == (a + b).high.size == 0
    np.testing.assert_array_equal((a + b).m2, whole.m2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_themselves_are_not_changed(kind):
    X = KINDS[kind](np.arange(6.0).reshape(3, 2))
    before = X.copy()
    moments(Shard((X,), 2, np.dtype(float)))
    assert abs(X - before).max() == 0


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("ratio", [0.0, 1.0, 8.0, 30.0, 60.0, 1e3, 1e4, 6e4, 1e8])
def test_squares_are_as_near_as_a_trace_is_said_to_be(shards, ratio):
    """Of sorted rows, means of neighbours differ most, and so does what their rounding makes."""
    for count in (12, 2000, 300_000):
        rng = np.random.default_rng(count)
        X = np.sort(rng.standard_normal((count, 1)), axis=0) + 1.2345 * ratio
        parts = [moments(Shard((part,), 1, X.dtype)) for part in np.array_split(X, shards)]
        found = reduce(add, parts)
        rest = X.astype(np.longdouble) - X[0]
        exact = np.square(rest - rest.mean(axis=0)).sum()
        squares = np.ldexp(found.m2.astype(np.longdouble), 2 * found.exponent)
        assert abs(squares - exact) <= TRACED * exact
