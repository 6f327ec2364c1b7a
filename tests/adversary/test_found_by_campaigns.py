"""What random campaigns found: certificates that were about something else, or left noise out."""

import warnings

import numpy as np
import pytest
from constructions import cut, orthonormal, with_values
from helpers import spelled

import localpower as lp
from localpower.worker.moments import moments
from localpower.worker.shard import Shard

EPS = np.finfo(float).eps


def sine_to(A, result):
    """Of the components to the true ones of the rows A, which are float64 or longer."""
    k = len(result.components)
    P, V = np.linalg.svd(A.astype(float))[2][:k].T, result.components.T.astype(float)
    return np.linalg.norm(V - P @ (P.T @ V), 2)


def quietly(data, rank, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        return lp.svd(data, rank, engine="inline", **spelled(options))


def centred(A, scale):
    """The rows as they enter, by numbers with more digits."""
    A = A.astype(np.longdouble)
    A = A - A.mean(axis=0)
    A = A - A.mean(axis=0)
    return A if scale is None else A / np.sqrt(np.square(A).mean(axis=0))


@pytest.mark.skipif(np.finfo(np.longdouble).eps >= EPS, reason="no longer numbers here")
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("method", ["tsqr", "gram", "block_krylov"])
def test_a_mean_that_no_number_holds_is_in_the_certificate_of_every_method(method, scale):
    rng = np.random.default_rng(0)
    A = 1e12 * np.r_[1, 1, 1, 0, 0] + rng.standard_normal((200, 5)) * (3, 2.8, 1, 0.5, 0.2)
    result = quietly(cut(A, 4), 1, method=method, tol=1e-6, center=True, scale=scale, rng=0)
    sine = sine_to(centred(A, scale), result)
    assert sine > 1e-10  # rounding of the mean is seen
    assert sine <= result.certificate.angle


@pytest.mark.parametrize("empty", [0, 1, 3])
def test_empty_shards_lose_no_digit_of_a_mean(empty):
    rng = np.random.default_rng(1)
    A = 3e7 + rng.standard_normal((11, 3))

    def stats(rows):
        return moments(Shard((rows,), 3, np.dtype(float)))

    one, total = stats(A), stats(A[:0])
    for _ in range(empty):
        total = total + stats(A[:0])
    total = total + one + stats(A[:0])
    assert np.any(one.rest)
    np.testing.assert_array_equal(total.rest, one.rest)
    np.testing.assert_array_equal(total.mean, one.mean)
    np.testing.assert_array_equal(total.m2, one.m2)


def test_empty_shards_change_no_bit_of_standard_deviations():
    rng = np.random.default_rng(1)
    A = 3e7 + rng.standard_normal((40, 3))
    parts = cut(A, 5)
    plain = quietly(parts, 1, method="tsqr", center=True, scale="std")
    for places in [(0,), (0, 0), (1, 4)]:
        more = parts.copy()
        for place in places:
            more.insert(place, A[:0])
        found = quietly(more, 1, method="tsqr", center=True, scale="std")
        np.testing.assert_allclose(found.scale, plain.scale, rtol=4 * EPS)


@pytest.mark.parametrize("wire", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("schedule", ["adaptive", "halving", "constant"])
def test_a_proof_is_of_what_is_returned_where_all_rounds_are_done(schedule, wire):
    values = np.r_[1.0, 0.3 ** np.arange(2, 9)]
    for seed in range(8):
        A = with_values(np.random.default_rng(seed), 24, values)
        given = {"align": "none"} if wire == "float32" else {}
        result = quietly(
            cut(A, 8), 1, method="local_power", schedule=schedule, tol=0.0, max_rounds=2,
            width=4, wire=wire, rng=seed, **given,
        )  # fmt: skip
        found = result.certificate
        assert found is None or not found.proven or sine_to(A, result) <= found.angle + 1e-12


def cancelling(rng):
    """Products of shards are far larger than their sum: what is rounded of them stays."""
    d = 8
    values = np.r_[1e3, 1.0, 0.8, 0.5 * rng.random(5)]
    a = np.sqrt(values) * orthonormal(rng, d, d)
    signs = rng.choice([-1, 1], d - 1)
    first, others = a[:, 0], (a[:, 1:] * signs).sum(axis=1)
    return [np.array([first + others]), np.array([first - others])] * 2 + [a.T.copy()]


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_what_is_rounded_before_it_cancels_in_a_sum_is_in_the_certificate(wire):
    for seed in range(60):
        parts = cancelling(np.random.default_rng(seed))
        for tol, start in [(1e-2, "merged:1"), (1e-3, "merged:1"), (1e-3, "random")]:
            options = {"start": start, "wire": wire, "tol": tol, "width": 3, "rng": seed}
            result = quietly(parts, 3, method="block_krylov", **options)
            found = result.certificate
            assert result.converged
            assert not found.proven or sine_to(np.vstack(parts), result) <= found.angle + 1e-12


@pytest.mark.parametrize("method", ["gram", "block_lanczos", "local_ritz", "auto"])
@pytest.mark.parametrize("values", [(1.0, 1e-15, 0.0), (1.0, 1e-15, 9e-16), (1.0, 1e-17, 1e-29)])
def test_values_between_zero_and_their_square_root_are_not_said_to_be_right(method, values):
    A = with_values(np.random.default_rng(3), 40, np.r_[values], columns=12)
    true = np.linalg.svd(A)[1][:3]
    for rounds in (1, 20):
        result = quietly(cut(A, 3), 3, method=method, tol=1e-8, max_rounds=rounds, rng=0)
        right = np.abs(result.singular_values - true) <= 1e-7 * true + 64 * EPS * 8
        assert right.all() or not result.converged


@pytest.mark.parametrize("method", ["block_krylov", "dpi", "block_lanczos", "auto"])
def test_generators_that_cannot_spawn_will_do(method):
    A = np.random.default_rng(0).standard_normal((60, 8)) * np.arange(9, 1, -1) ** 2
    runs = [
        quietly(A, 2, method=method, tol=1e-6, partition="shuffled", rng=np.random.RandomState(5))
        for _ in range(2)
    ]
    assert all(result.converged for result in runs)
    np.testing.assert_array_equal(runs[0].components, runs[1].components)


@pytest.mark.parametrize("method", ["tsqr", "gram", "block_lanczos", "block_krylov"])
def test_shares_are_of_the_true_sum_where_the_mean_has_more_digits_than_a_number(method):
    rng = np.random.default_rng(2)
    A = 1e12 * rng.standard_normal(4) + rng.standard_normal((60, 4)) * (2e-3, 1e-3, 5e-3, 0.3)
    rows = (A - A.min(axis=0)) / np.ptp(A, axis=0)  # exact but for the last digit
    sums = np.cumsum(np.linalg.svd(rows)[1] ** 2) / np.square(rows).sum()
    result = quietly(cut(A, 3), 0.9, method=method, tol=1e-8, scale="minmax", rng=0)
    k, reach = len(result.components), result.reach
    assert sums[k - 2] < 0.9 < sums[k - 1] if k > 1 else sums[0] > 0.9
    assert sums[k - 1] - 1e-9 <= reach.reached <= sums[k - 1] + 64 * EPS
    assert k == 1 or not reach.proven or reach.fewer >= sums[k - 2] - 64 * EPS


@pytest.mark.parametrize("method", ["tsqr", "gram", "dpi", "block_krylov", "block_lanczos"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_many_equal_rows_keep_the_answer_within_twice_its_bound(method, dtype):
    """A hundred thousand additions of the same number lose the same digits each time."""
    rng = np.random.default_rng(3)
    Q = orthonormal(rng, 4, 4)
    rows = np.array([Q[:, 0], 0.02 * Q[:, 0] + Q[:, 1]]).astype(dtype)
    exact = rows.astype(np.longdouble).astype(float)
    for A in (np.repeat(rows, 50_000, axis=0), np.tile(rows, (50_000, 1))):
        found = quietly(A, 1, method=method, tol=1e-6, workers=1, rng=0)
        assert found.certificate.proven
        assert sine_to(exact, found) <= 2 * found.certificate.angle


@pytest.mark.parametrize("method", ["tsqr", "auto"])
def test_what_rounding_of_the_mean_makes_of_zero_is_no_component(method):
    """Two centred rows have rank 1; a mean of 1e3 leaves 1e-10 of a second value."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A = 1e3 * rng.standard_normal(5) + 1e-3 * rng.standard_normal((2, 5))
        found = quietly(A, 2, method=method, center=True, workers=1, rng=seed).certificate
        assert found.angle == 1 or found.vanishing


@pytest.mark.parametrize("method", ["gram", "auto"])
def test_a_column_that_nearly_vanishes_beside_others_costs_float32_no_digit(method):
    """Its mean, in units of the largest column, is one that float32 holds in a few bits only."""
    rng = np.random.default_rng(1)
    U = rng.standard_normal((400, 4))
    A = np.linalg.qr(U - U.mean(axis=0))[0] * (1, 1 - 1e-5, 0.5, 0.3) + 0.02
    tiny = 1e-10 * (0.3 + 1e-3 * rng.standard_normal(400))
    A = np.column_stack([1e30 * A, tiny]).astype(np.float32)
    result = quietly(cut(A, 2), 1, method=method, tol=1e-6, center=True, rng=0)
    assert result.converged
    assert sine_to(centred(A, None) / 1e30, result) <= result.certificate.angle <= 1e-6


@pytest.mark.parametrize("method", ["tsqr", "dpi"])
def test_vectors_are_as_near_as_is_proven_also_where_lapack_takes_a_little_for_zero(method):
    """Its singular vectors of such rows are off by up to 40 units of rounding."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        d, mean = int(rng.integers(3, 7)), rng.choice([1.0, 30.0, 100.0])
        A = rng.standard_normal((50, d)) + mean * rng.standard_normal(d)
        result = quietly(A, 1, method=method, tol=1e-6, workers=1, rng=0)
        P, V = np.linalg.eigh(A.T @ A)[1][:, :-1], result.components.T
        assert result.certificate.proven
        assert np.linalg.norm(P.T @ V) <= result.certificate.angle + 3 * EPS


def hidden_beside_a_mean(seed, ratio=3e4, part=1e-13, shards=6, rows=40):
    """Shards with a direction of their own; one that all share is larger, and weak in each.

    Nearly all squares are those of a sorted column, which has a large mean.
    """
    rng, count = np.random.default_rng(seed), shards * rows
    line = np.sort(rng.standard_normal(count))
    whole = np.square(line - line.mean()).sum()
    each = rng.standard_normal((2, shards, rows))
    each -= each.mean(axis=2, keepdims=True)
    each /= np.linalg.norm(each, axis=2, keepdims=True)
    A = np.zeros((count, shards + 22))
    A[:, 0] = line + ratio * line.std()
    for i, values in enumerate(each[0]):
        size = np.sqrt((2.0 if i == 0 else 1.2) * part * whole)
        A[i * rows : (i + 1) * rows, 1 + i] = size * values
    A[:, 1 + shards] = np.sqrt(4 * part * whole / shards) * each[1].ravel()
    A[:, 2 + shards :] = np.sqrt(1e-3 * part * whole / count) * rng.standard_normal((count, 20))
    return cut(A, shards)


@pytest.mark.skipif(np.finfo(np.longdouble).eps >= EPS, reason="no longer numbers here")
def test_what_a_trace_has_lost_hides_no_direction():
    method = "local_ritz:start=merged:2,width=2"
    for seed in range(40):
        parts = hidden_beside_a_mean(seed)
        result = quietly(
            parts, 2, method=method, tol=3e-2, center=True, certainty="proven", max_rounds=2, rng=0
        )
        sine = sine_to(centred(np.vstack(parts), None), result)
        assert not result.certificate.proven or sine <= result.certificate.angle
