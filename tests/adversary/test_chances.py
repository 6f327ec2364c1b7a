"""The p of a certificate is what it is said to be: a wrong answer rarely gets a small one."""

from dataclasses import replace

import numpy as np
import pytest
from constructions import Case, cut, orthonormal, shared_weak
from helpers import random_start
from scipy.stats import chi2
from test_certificates_do_not_lie import factored, spectrum

import localpower as lp
from localpower.core.evidence import draw

EPS = np.finfo(float).eps
LEVELS = (0.5, 0.1, 0.01)
SPECTRA = {
    "one stands out": lambda rng, d: np.r_[1.0, 0.3 + 1e-3 * rng.random(d - 1)],
    "falling": lambda rng, d: 0.7 ** np.arange(d),
    "tie": lambda rng, d: np.r_[1.0, 1.0, 0.2 * rng.random(d - 2)],
    "near tie": lambda rng, d: np.r_[1.0, 0.999, 0.5 * rng.random(d - 2)],
    "nothing else": lambda rng, d: np.r_[1.0, np.zeros(d - 1)],
}


def hidden_problem(number):
    """A matrix, a base, and the largest eigenvalue outside of the base with its vector."""
    rng = np.random.default_rng(10_000 + number)
    d, c = int(rng.integers(4, 14)), int(rng.integers(0, 3))
    values = list(SPECTRA.values())[number % len(SPECTRA)](rng, d)
    V = orthonormal(rng, d, d)
    E = (V * values) @ V.T
    base = orthonormal(rng, d, d)[:, :c]  # not of eigenvectors, which is harder
    outside = np.eye(d) - base @ base.T
    h, U = np.linalg.eigh(outside @ E @ outside)
    least = float(h[-1]) - 8 * EPS * values[0]  # as computed, h may be above the true one
    return E, base, least, U[:, -1], int(rng.integers(1, 4)), int(rng.integers(1, 5))


def smallest_p(E, base, h, seed, draws, count, rounds):
    """The smallest p, of all rounds, of there being h: what the one who stops early would see."""
    probes = draw(base, seed, draws, EPS, count)
    found = [1.0]
    for _ in range(rounds):
        block = probes.following
        if not block.shape[1]:
            break
        probes = probes.learn(block, E @ block)
        found.append(probes.chance(h))
    return min(found)


def allowed(alpha, count):
    return alpha + 3 * np.sqrt(alpha / count)


@pytest.fixture(scope="module")
def drawn():
    """Of 2,100 problems: the smallest p, and what the part of the probes along the vector says."""
    rows = []
    for number in range(2100):
        E, base, h, u, q, rounds = hidden_problem(number)
        p = smallest_p(E, base, h, (number, 1), 1, q, rounds)
        Omega = np.random.default_rng((number, 1)).standard_normal((len(E), q))
        rows.append((p, chi2.cdf(np.sum((u @ Omega) ** 2), q)))
    return np.array(rows)


def test_p_is_never_below_the_chance_of_what_the_probes_have_along_the_hidden_vector(drawn):
    p, least = drawn.T
    assert (p >= np.minimum(1.0, least) * (1 - 1e-6) - 1e-12).all()


@pytest.mark.parametrize("alpha", LEVELS)
def test_a_p_below_alpha_is_no_more_frequent_than_alpha(alpha, drawn):
    assert (drawn[:, 0] <= alpha).mean() <= allowed(alpha, len(drawn))
    assert (drawn[:, 0] < 0.9).any()  # there is something to count


def test_a_p_below_alpha_is_no_more_frequent_if_probes_are_drawn_again_and_again():
    E, base = np.diag([1.0, 0.3, 0.3 + 1e-3, 0.3 - 1e-3, 0.3 + 2e-3]), np.zeros((5, 0))
    found = np.array([
        min(smallest_p(E, base, 1.0, (number, draws), draws, 2, 2) for draws in range(1, 7))
        for number in range(400)
    ])  # fmt: skip
    for alpha in LEVELS:
        assert (found <= alpha).mean() <= allowed(alpha, len(found))


# Whole runs


def blind(rng, seed, rank):
    """The random start lies in an invariant subspace, and larger values are outside of it."""
    d = 16
    Z = random_start(d, rank, seed)
    V = np.linalg.qr(np.hstack([Z, rng.standard_normal((d, d - rank))]))[0]
    values = np.r_[np.linspace(2, 1.5, rank), 1.0, np.full(d - rank - 1, 0.9)]
    values[rank] = 2 * 1.05 ** rng.integers(1, 8)
    A = (orthonormal(rng, 32, d) * np.sqrt(values)) @ V.T
    return Case("blind", cut(A, 3), rank, {"start": "random", "width": rank})


def lost(rng, seed, rank):
    """Merging loses a direction that is weak in every shard."""
    parts, _ = shared_weak(rng, shards=10, own=8, rows=9)
    parts[0] *= 0.5  # what is shared leads by far, or little
    return Case("lost", parts, 1, {"start": "merged"})


@pytest.mark.parametrize("make", [blind, lost])
def test_wrong_results_are_no_more_frequent_than_the_certainty_allows(make):
    levels, tol = (0.3, 0.1, 0.01), 1e-3
    counts = dict.fromkeys(levels, 0)
    runs = 50 if make is blind else 12
    for number in range(runs * len(levels)):
        certainty = levels[number % len(levels)]
        case = make(np.random.default_rng(20_000 + number), number, 2)
        options = {"method": "block_krylov", "tol": tol, "certainty": certainty}
        result = factored(case, seed=number, max_rounds=12, **options)
        V = spectrum(case.rows)[2][: case.rank].T
        sine = lp.subspace_distance(V, result.components.T)
        counts[certainty] += result.converged and sine > 10 * tol
    for certainty, wrong in counts.items():
        assert wrong / runs <= allowed(certainty, runs)


def test_a_certificate_without_probes_is_proven_or_knows_nothing():
    A = np.random.default_rng(0).standard_normal((60, 20))
    case = Case("plain", cut(A, 3), 2)
    found = factored(case, method="block_krylov", tol=1e-6, certainty="proven").certificate
    assert found.p in (0.0, 1.0)
    assert found.proven == (found.p == 0)
    assert not replace(found, proven=False, p=0.5).sure(0.4)
