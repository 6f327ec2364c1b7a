"""Noise in whole numbers has exactly the distribution that it claims."""

from decimal import Decimal, localcontext
from fractions import Fraction
from math import exp, pi, sqrt

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from localpower.core import gaussian
from localpower.core.gaussian import discrete_gaussian, halved, spread


def stream(seed=0):
    return np.random.default_rng(seed).bytes


def chances(sigma, most):
    """P(y) for y from -most to most."""
    weights = np.exp(-np.square(np.arange(-most, most + 1)) / (2.0 * sigma**2))
    far = np.arange(most + 1, most + 60 * sigma)
    return weights / (weights.sum() + 2 * np.exp(-np.square(far) / (2.0 * sigma**2)).sum())


def surprise(y, sigma):
    """The chance of a chi-square that is as large, over all values that are not rare."""
    most = 4 * sigma
    expected = len(y) * chances(sigma, most)
    seen = np.bincount(np.clip(y, -most - 1, most + 1) + most + 1, minlength=2 * most + 3)
    outside = len(y) - expected.sum()
    both = np.array([*seen[1:-1], seen[0] + seen[-1]]), np.array([*expected, outside])
    keep = both[1] > 5
    found = float((np.square(both[0] - both[1]) / both[1])[keep].sum())
    return chi2.sf(found, keep.sum() - 1)


@pytest.mark.parametrize("sigma", [1, 2, 3, 7, 40])
def test_samples_have_the_exact_distribution(sigma):
    y = discrete_gaussian(sigma, 300_000, stream(sigma))
    assert surprise(y, sigma) > 1e-3
    wrong = np.where(np.arange(len(y)) % 50 == 0, 0, y)  # one zero in fifty too many
    assert surprise(wrong, sigma) < 1e-12


def test_samples_have_the_exact_distribution_where_every_tie_is_broken_by_more_digits(monkeypatch):
    monkeypatch.setattr(gaussian, "TIE", 2.0)
    assert surprise(discrete_gaussian(3, 1000, stream()), 3) > 1e-3


@pytest.mark.parametrize("sigma", [1 << 24, (1 << 34) + 12345, 1 << 50])
def test_large_deviations_look_like_a_normal_distribution(sigma):
    y = discrete_gaussian(sigma, 200_000, stream(5)) / sigma
    assert kstest(y, "norm").pvalue > 1e-3
    assert abs(y.mean()) < 4 / sqrt(len(y))
    assert abs(y.var() - 1) < 4 * sqrt(2 / len(y))
    assert abs((y**4).mean() - 3) < 4 * sqrt(96 / len(y))


@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(1), Fraction(1, 3), Fraction(40)])
def test_ties_are_decided_by_the_digits_that_follow(gamma):
    with localcontext() as context:
        context.prec = 200
        limit = (-Decimal(gamma.numerator) / gamma.denominator).exp() * (1 << 128)
    first, rest = divmod(int(limit), 1 << 64)
    if gamma == 0:
        assert gaussian._is_below_exp((1 << 64) - 1, gamma, stream())
        return
    for digits, wanted in ((rest - 1, True), (rest + 1, False)):
        told = (digits % (1 << 64)).to_bytes(8, "little")
        word = first + digits // (1 << 64)
        assert gaussian._is_below_exp(word, gamma, lambda count, told=told: told) is wanted


@pytest.mark.parametrize(("digits", "wanted"), [(bytes(8), True), (b"\xff" * 8, False)])
def test_what_the_first_digits_leave_open_is_decided_by_more_of_them(digits, wanted):
    with localcontext() as context:
        context.prec = 200
        limit = int(Decimal(-1).exp() * (1 << 128))
    first, rest = divmod(limit, 1 << 64)
    told = iter([first.to_bytes(8, "little"), rest.to_bytes(8, "little"), digits])
    found = gaussian._bernoulli_exp(np.ones(1), lambda at: Fraction(1), lambda count: next(told))
    assert found.tolist() == [wanted]
    assert next(told, None) is None


def test_the_same_stream_gives_the_same_noise_and_another_one_other_noise():
    a, b, c = (discrete_gaussian(1 << 30, 50, stream(seed)) for seed in (1, 1, 2))
    assert (a == b).all()
    assert not (a == c).any()
    assert not (discrete_gaussian(1 << 30, 50) == discrete_gaussian(1 << 30, 50)).any()


def test_numbers_below_a_limit_are_equally_frequent_where_words_do_not_divide():
    limit = 3 << 61  # of two words that are left over, one would come twice as often
    u = gaussian._below(limit, 40_000, stream(3)).astype(np.uint64)
    assert abs(float((u < (limit // 2)).mean()) - 0.5) < 4 / sqrt(4 * len(u))


@pytest.mark.parametrize(("sigma", "parts"), [(1, 2), (2, 2), (2, 10), (4, 3)])
def test_a_sum_of_noise_is_the_noise_of_the_sum(sigma, parts):
    one = chances(sigma, 30 * sigma)
    total = one
    for _ in range(parts - 1):
        total = np.convolve(total, one)
    most = len(total) // 2
    x = np.arange(-most, most + 1)
    near = np.abs(x) <= 6 * sigma * sqrt(parts)
    whole = np.exp(-np.square(x[near]) / (2.0 * parts * sigma**2)) / (sigma * sqrt(2 * pi * parts))
    error = np.abs(total[near] / whole - 1).max()
    assert error < max(20 * parts * exp(-(pi**2) * sigma**2), 1e-11)
    assert error > 1e-6 or sigma > 1  # of coarse noise it is not so


def test_bad_deviations_are_refused():
    for sigma in (0, -1, (1 << 50) + 1):
        with pytest.raises(ValueError, match="must be a whole number from 1"):
            discrete_gaussian(sigma, 1)
    assert discrete_gaussian(5, 0).shape == (0,)


@pytest.mark.parametrize("sigma", [1, 2, 10, 4242424242, (1 << 50) - 1])
def test_off_the_diagonal_noise_is_never_less_than_asked_for(sigma):
    assert 2 * halved(sigma) ** 2 >= sigma**2
    assert 2 * (halved(sigma) - 2) ** 2 < sigma**2 or sigma < 4


def test_the_norm_of_noise_is_within_its_bound_in_99_of_100_cases():
    rng = np.random.default_rng(0)
    for d in (1, 3, 40):
        above = 0
        for _ in range(400):
            N = rng.standard_normal((d, d))
            above += np.abs(np.linalg.eigvalsh((N + N.T) / 2)).max() > spread(d)
        assert above <= 4
