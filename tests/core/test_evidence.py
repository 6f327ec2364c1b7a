"""Random probes: what they say of hidden eigenvalues, beside dense linear algebra."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from helpers import EPS
from scipy import stats

import localpower as lp
from localpower.core import certificate, evidence
from localpower.core.certificate import Certificate, Known, Ritz, certify, ritz_turn
from localpower.core.evidence import (
    ROUNDING,
    Probes,
    chi_square,
    draw,
    smallest_norm,
)
from localpower.core.rounding import UNITS, from_wire, to_bytes, to_wire
from localpower.engines.inline import Inline
from localpower.methods import local_power
from localpower.methods.local_power import APART, _joined, rounded_step
from localpower.methods.ritz import (
    MERGED,
    RitzState,
    _as_sent,
    _measured_again,
    _next_block,
    _orthonormal,
    _settled,
    _turned,
    local_ritz,
    merged,
)
from localpower.methods.rounding import Standing, WireRounding
from localpower.methods.schedule import constant
from localpower.methods.state import LONG, MOST_DRAWS, Doubt, State, turned_noises
from localpower.worker.shard import Shard
from localpower.worker.tasks import PowerSteps, Refine


def hidden_part(d=30, c=4, seed=0):
    """A matrix, an orthonormal base, and what of the matrix is outside of it."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, d)))[0]
    B = (V * np.linspace(0.1, 2.0, d) ** 2) @ V.T
    Z = np.linalg.qr(rng.standard_normal((d, c)))[0]
    outside = np.eye(d) - Z @ Z.T
    return B, Z, outside @ B @ outside


def multiplied(B, Z, rounds, seed=(7, 1), **how):
    probes = draw(Z, seed, how.pop("draws", 1), how.pop("eps", EPS), **how)
    for _ in range(rounds):
        probes = probes.learn(probes.following, B @ probes.following)
    return probes


def brute_force(points, weights, value, degree):
    """Least norm of a polynomial that is 1 at `value`: least squares over its coefficients."""
    scale = np.abs(points - value).max()
    powers = ((points - value) / scale)[:, None] ** np.arange(1, degree + 1)
    root = np.sqrt(weights)
    A, b = root[:, None] * powers, -root
    x = np.linalg.lstsq(A, b, rcond=None)[0] if degree else np.zeros(0)
    return np.linalg.norm(A @ x - b)


@pytest.mark.parametrize("degree", range(5))
@pytest.mark.parametrize("seed", range(5))
def test_the_smallest_norm_is_that_of_least_squares(degree, seed):
    rng = np.random.default_rng(seed)
    points, weights = rng.random(9), rng.random(9) ** 2
    for value in (1.01, 1.5, 4.0):
        expected = brute_force(points, weights, value, degree)
        found = smallest_norm(points, weights, value, degree)
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_points_without_weight_do_not_count():
    points, weights = np.array([0.0, 1.0, 9.0]), np.array([1.0, 2.0, 0.0])
    alone = smallest_norm(points[:2], weights[:2], 3.0, 1)
    assert smallest_norm(points, weights, 3.0, 1) == alone
    assert smallest_norm(points, 0 * weights, 3.0, 1) == 0.0


def test_nothing_is_said_of_values_that_are_not_above_all_points():
    points, weights = np.array([0.0, 1.0]), np.ones(2)
    assert smallest_norm(points, weights, 1.0, 1) == np.inf
    assert smallest_norm(points, weights, 0.5, 5) == np.inf
    assert smallest_norm(points, weights, 1.0 + 1e-9, 1) < np.inf


def test_a_degree_as_large_as_the_number_of_points_leaves_nothing():
    points, weights = np.array([0.0, 0.5, 1.0]), np.ones(3)
    assert smallest_norm(points, weights, 2.0, 3) == 0.0
    assert smallest_norm(points, weights, 2.0, 2) > 0.0
    assert smallest_norm(points, weights, 1e200, 2) == 0.0  # too small for a number


@pytest.mark.parametrize("q", [1, 2, 3, 5])
def test_chances_are_those_of_chi_square(q):
    for x in (0.0, 1e-12, 1e-3, 0.5, 2.0, 40.0):
        np.testing.assert_allclose(chi_square(x, q), stats.chi2.cdf(x, q), rtol=1e-12)


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_space_is_the_krylov_space_of_what_is_outside(rounds, count):
    B, Z, E = hidden_part()
    probes = multiplied(B, Z, rounds, count=count)
    Omega = np.random.default_rng((7, 1)).standard_normal((30, count))
    Omega -= Z @ (Z.T @ Omega)
    powers = [Omega]
    for _ in range(rounds):
        powers.append(E @ powers[-1])
    krylov = np.linalg.qr(np.hstack(powers[:rounds]))[0]
    P = probes.space
    assert P.shape == (30, rounds * count)
    np.testing.assert_allclose(P.T @ P, np.eye(P.shape[1]), atol=1e-13)
    np.testing.assert_allclose(Z.T @ P, 0, atol=1e-13)
    np.testing.assert_allclose(P @ (P.T @ krylov), krylov, atol=1e-9)
    np.testing.assert_allclose(probes.projected, P.T @ B @ P, atol=1e-12)
    np.testing.assert_allclose(probes.projected, probes.projected.T, atol=1e-12)
    np.testing.assert_allclose(probes.weights, P.T @ Omega, atol=1e-12)
    assert probes.degree == rounds - 1
    F = probes.following
    assert F.shape == (30, count)
    np.testing.assert_allclose(F.T @ F, np.eye(count), atol=1e-13)
    np.testing.assert_allclose(F.T @ np.hstack([Z, P]), 0, atol=1e-13)
    for degree in range(rounds):  # polynomials of this degree live in the space
        small = np.linalg.matrix_power(probes.projected, degree) @ probes.weights
        np.testing.assert_allclose(P @ small, powers[degree], atol=1e-10)


@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_the_chance_is_that_of_the_best_polynomial(rounds):
    B, Z, E = hidden_part()
    probes = multiplied(B, Z, rounds)
    Omega = np.random.default_rng((7, 1)).standard_normal((30, State.PROBES))
    theta, V = np.linalg.eigh(E)
    weights = np.square(V.T @ (Omega - Z @ (Z.T @ Omega))).sum(axis=1)
    top = theta[-1]
    for value in (1.05 * top, 2 * top, 5 * top):
        least = brute_force(theta, weights, value, rounds - 1)
        expected = min(1.0, 2 * stats.chi2.cdf(least**2, State.PROBES))  # the first has a half
        np.testing.assert_allclose(probes.chance(value), expected, rtol=1e-6)


def test_before_the_first_product_nothing_is_known():
    B, Z, _ = hidden_part()
    assert draw(Z, (7, 1), 1, EPS).chance(1e9) == 1.0
    small = multiplied(B, Z, 1)
    small = replace(small, weights=0.1 * small.weights)
    size = np.square(small.weights).sum()
    np.testing.assert_allclose(small.chance(1e9), 2 * stats.chi2.cdf(size, State.PROBES))
    assert small.chance(1e9) < 0.5


def test_every_draw_is_one_more_chance_to_be_misled():
    B, Z, E = hidden_part()
    value = 2 * np.linalg.eigvalsh(E)[-1]
    chances = [multiplied(B, Z, 4, draws=n).chance(value) for n in range(1, 7)]
    assert 0 < chances[0] < 0.01
    shares = chances[0] / 2 / np.array(chances)
    np.testing.assert_allclose(shares, 1 / np.array([2, 6, 12, 20, 30, 42]))  # all make up one
    assert multiplied(B, Z, 1, draws=10**9).chance(value) == 1.0


def test_rounding_makes_probes_less_certain():
    B, Z, E = hidden_part()
    top = np.linalg.eigvalsh(E)[-1]
    coarse, fine = (multiplied(B, Z, 6, eps=eps) for eps in (1e-4, 0.0))
    theta, Y = np.linalg.eigh(coarse.projected)
    weights = np.square(Y.T @ coarse.weights).sum(axis=1)
    value = 3 * top
    nearer = value - ROUNDING * 1e-4 * theta[-1]
    least = smallest_norm(theta, weights, nearer, 5) + 1e-4 * np.sqrt(weights.sum())
    np.testing.assert_allclose(coarse.chance(value), 2 * stats.chi2.cdf(least**2, 2))
    assert coarse.chance(value) > 2 * fine.chance(value)


def test_probes_that_were_sent_with_fewer_digits_are_less_certain():
    B, Z, _ = hidden_part()
    probes = draw(Z, (7, 1), 1, EPS)
    sent = probes.following.astype(np.float32)
    after = probes.learn(sent, (B @ sent).astype(np.float32))
    assert after.error == np.finfo(np.float32).eps
    assert after.learn(after.following, B @ after.following).error == after.error
    assert probes.learn(probes.following, B @ probes.following).error == EPS


def test_products_are_as_inexact_as_they_are_large_not_as_what_is_outside_is():
    c, s = np.cos(1e-3), np.sin(1e-3)
    v = np.array([c, 0.0, s, 0.0])  # most of it is in the base
    B, h = np.outer(v, v), s**2
    probes = draw(np.eye(4, 2), (7, 1), 1, EPS)
    sent = probes.following
    W = B @ sent
    rounded = W - 4 * EPS * np.linalg.norm(W, 2) * sent  # as a product in floating point may be
    assert np.linalg.eigvalsh(sent.T @ rounded)[-1] < h
    assert probes.learn(sent, rounded).chance(h) == 1.0
    B, Z, _ = hidden_part()
    large = replace(draw(Z, (7, 1), 1, EPS), reach=1e3)  # what was in an earlier product stays
    after = large.learn(large.following, B @ large.following)
    assert after.reach == 1e3
    plain = replace(large, reach=0.0).learn(large.following, B @ large.following)
    np.testing.assert_allclose(plain.reach, np.linalg.norm(B @ large.following, 2))


def test_a_hidden_value_is_never_improbable_more_often_than_told():
    """Of many seeds, a share α at most has p ≤ α for a value that is there."""
    d, c = 12, 2
    Z = np.eye(d)[:, :c]
    B = np.diag(np.r_[5.0, 4.0, 3.0, np.full(d - 3, 0.1)])
    chances = [multiplied(B, Z, 3, seed=(seed, 1)).chance(3.0) for seed in range(150)]
    for alpha in (0.01, 0.1, 0.3):
        spread = 4 * np.sqrt(alpha * (1 - alpha) / 150)
        assert np.mean(np.array(chances) <= alpha) <= alpha + spread
    far = [multiplied(B, Z, 3, seed=(seed, 1)).chance(12.0) for seed in range(50)]
    assert np.median(far) < 1e-3


def test_what_is_in_the_base_is_not_found_and_what_is_outside_is():
    Z = np.eye(20)[:, :2]
    B = np.diag(np.r_[9.0, 8.0, 7.0, 3.0, np.linspace(1, 0.1, 16)])
    probes = multiplied(B, Z, 6)
    found = probes.above(5.0)
    assert found.shape == (20, 1)
    np.testing.assert_allclose(np.abs(found[2]), 1, atol=1e-3)
    assert probes.above(2.0).shape[1] == 2
    assert probes.above(7.5).shape[1] == 0
    assert draw(Z, (7, 1), 1, EPS).above(0.0).shape == (20, 0)


def test_a_space_that_is_all_there_is_knows_all():
    B, Z, E = hidden_part(d=9, c=4)
    probes = multiplied(B, Z, 2)
    assert probes.following.shape == (9, 1)
    probes = probes.learn(probes.following, B @ probes.following)
    assert probes.following.shape == (9, 0)
    assert probes.space.shape == (9, 5)
    top = np.linalg.eigvalsh(E)[-1]
    assert probes.chance(1.001 * top) < 1e-15
    assert probes.chance(0.999 * top) == 1.0


def test_a_space_that_no_product_leaves_knows_all():
    B = np.diag(np.r_[3.0, np.ones(9)])
    Z = np.eye(10)[:, :1]
    probes = multiplied(B, Z, 1)
    assert probes.following.shape[1] == 0
    assert probes.degree == 2
    assert probes.chance(1.01) < 1e-15
    assert multiplied(0 * B, Z, 1).chance(1e-30) < 1e-15


def test_probes_of_what_is_nearly_all_are_as_few_as_there_are_directions():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((9, 9)))[0]
    for c in (8, 9):  # what rounding leaves of more is none
        assert draw(Q[:, :c], (7, 1), 1, EPS).following.shape == (9, 9 - c)


def test_the_space_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(evidence, "MOST_BLOCKS", 3)
    B, Z, _ = hidden_part()
    probes = multiplied(B, Z, 3)
    assert probes.space.shape[1] == 3 * State.PROBES
    assert probes.following.shape[1] == 0
    assert probes.degree == 2  # of a space with an end that is not its own


def test_a_base_of_float32_is_projected_out_in_float64():
    _, Z, _ = hidden_part()
    probes = draw(Z.astype(np.float32), (7, 1), 1, EPS)
    assert probes.base.dtype == np.float64
    np.testing.assert_allclose(Z.T @ probes.following, 0, atol=1e-6)
    assert isinstance(probes, Probes)


# States: when probes are drawn, what they have missed, and what their base lacks.


class Told:
    """A certificate as it is wanted, for every state."""

    def __init__(self, proven=False, p=1.0, sharper=False):
        self.found = Certificate(0.1, np.zeros(1), proven, p, 0.5, False, sharper=sharper)

    def __call__(self, state):
        return self.found


def doubt(proven=False, p=1.0, certainty=1e-3, sharper=False):
    return Doubt(7, certainty, Told(proven, p, sharper))


def coupled(residual, values=(10.0, 1.0), d=8):
    """A state whose second vector has that residual, and its matrix."""
    B = np.diag(np.r_[values, np.full(d - len(values), 0.1)])
    B[d - 1, 1] = B[1, d - 1] = residual
    X = np.eye(d, len(values))
    return State(X, exact=(X, B @ X)), B


def probes_of(columns, degree=0, following=2, d=8):
    Z = np.eye(d, columns)
    return replace(draw(Z, (7, 1), 1, EPS), degree=degree, following=np.eye(d, following))


def test_probes_are_drawn_once_the_last_vector_asked_for_is_ripe():
    for residual, drawn in ((0.099, True), (0.101, False), (0.5, False), (0.0, True)):
        state, _ = coupled(residual)
        after = state.doubted(doubt(), 2, state.basis, EPS)
        assert (after.draws, after.probes is not None) == (drawn, drawn)
    state, _ = coupled(0.5)
    assert state.doubted(doubt(), 1, state.basis, EPS).draws == 1
    assert state.doubted(None, 1, state.basis, EPS) is state
    state, _ = coupled(0.0)
    assert state.doubted(doubt(), 2, np.eye(8), EPS).draws == 0  # nothing is outside


def test_probes_that_are_not_needed_are_dropped():
    state, _ = coupled(0.0)
    state = replace(state, probes=probes_of(2), draws=1)
    after = state.doubted(doubt(proven=True, p=0.0), 2, state.basis, EPS)
    assert (after.probes, after.draws) == (None, 1)


def test_probes_rest_while_the_chance_is_half_of_what_is_allowed():
    state, _ = coupled(0.0)
    state = replace(state, probes=probes_of(2), draws=1)
    for p, resting in ((0.4e-3, True), (0.6e-3, False), (1.0, False)):
        after = state.doubted(doubt(p=p), 2, state.basis, EPS)
        assert (after.resting, after.probes) == (resting, state.probes)
        assert (after.probe_block is None) == resting
    assert not state.doubted(doubt(p=0.4e-3, sharper=True), 2, state.basis, EPS).resting
    assert replace(state, resting=True).probed(doubt(), np.eye(8, 2), EPS).resting is False


def test_probes_that_can_learn_no_more_are_drawn_anew_if_that_is_needed():
    state, _ = coupled(0.0)
    ended = replace(state, probes=probes_of(2, degree=5, following=0), draws=1)
    assert ended.probe_block is None
    assert ended.doubted(doubt(p=0.5), 2, state.basis, EPS).draws == 2
    assert ended.doubted(doubt(p=1e-3), 2, state.basis, EPS).draws == 1
    for draws, after in ((MOST_DRAWS - 1, MOST_DRAWS), (MOST_DRAWS, MOST_DRAWS)):
        last = replace(ended, draws=draws)
        assert last.doubted(doubt(p=0.5), 2, state.basis, EPS).draws == after


@pytest.mark.parametrize(
    ("columns", "p", "degree", "drawn"),
    [
        (6, 1.0, LONG, True),
        (5, 1.0, LONG, False),
        (6, 0.9, LONG, False),
        (6, 1.0, LONG - 1, False),
    ],
)
def test_probes_of_a_poor_base_are_drawn_anew_where_they_told_nothing(columns, p, degree, drawn):
    state, _ = coupled(0.0)
    state = replace(state, probes=probes_of(2, degree), draws=1)
    assert state.doubted(doubt(p=p), 2, np.eye(8, columns), EPS).draws == 1 + drawn


def test_each_draw_has_its_own_numbers_and_counts():
    state, _ = coupled(0.0)
    one = state.probed(doubt(), state.basis, EPS)
    two = one.probed(doubt(), state.basis, EPS)
    assert (one.draws, one.probes.draws, two.draws, two.probes.draws) == (1, 1, 2, 2)
    assert np.linalg.norm(one.probes.following.T @ two.probes.following, 2) < 0.999
    assert one.probes.following.shape[1] == State.PROBES


def test_draws_of_several_methods_have_numbers_of_their_own():
    state, _ = coupled(0.0)
    one = state.probed(doubt(), state.basis, EPS)
    later = state.probed(replace(doubt(), first=2, every=2), state.basis, EPS)
    last = later.probed(replace(doubt(), first=2, every=2), state.basis, EPS)
    assert (later.draws, later.probes.draws) == (1, 2)
    assert (last.draws, last.probes.draws) == (2, 4)
    assert np.linalg.norm(one.probes.following.T @ later.probes.following, 2) < 0.999
    fourth = replace(state, draws=3).probed(doubt(), state.basis, EPS)
    np.testing.assert_array_equal(last.probes.following, fourth.probes.following)


def test_what_was_missed_is_larger_than_the_vector_by_a_thousandth():
    d = 8
    Z = np.eye(d, 2)
    for value, missed in ((1.0, 0), (1.0005, 0), (1.002, 1), (5.0, 1)):
        B = np.diag(np.r_[10.0, 1.0, value, np.full(d - 3, 0.1)])
        probes = multiplied(B, Z, 4)
        state = State(Z, exact=(Z, B @ Z), probes=probes)
        assert state.missed(2).shape[1] == missed
        assert state.missed(3).shape[1] == missed  # there are two: the last one counts
        assert state.missed(1).shape[1] == 0
        assert replace(state, probes=None).missed(2).shape[1] == 0


def test_a_round_without_a_reply_to_probes_leaves_none():
    state, B = coupled(0.0)
    state = state.probed(doubt(), state.basis, EPS)
    Q = state.probe_block
    assert state.learnt(Q, None) is None
    assert state.learnt(None, None) is state.probes
    assert state.learnt(Q, B @ Q).space.shape == (8, 2)
    assert state.chance(1e9) == 1.0


def test_what_is_given_up_may_hide_as_much_as_the_block_of_both():
    state = State(np.eye(3, 1), hidden=2.0)
    for value, coupling in ((3.0, 0.5), (1.0, 0.0), (2.0, 1.0)):
        top = np.linalg.eigvalsh([[value, coupling], [coupling, 2.0]])[-1]
        np.testing.assert_allclose(state.giving_up(value, coupling).hidden, top)
    assert State(np.eye(3, 1)).giving_up(3.0, 0.5).hidden == np.inf


def test_a_certificate_has_what_the_state_knows():
    state, B = coupled(0.05, d=8)
    noises = np.array([4e-3, 3e-3])
    state = replace(state, noises=noises, hidden=0.2)
    known = Known(8, 1e6, EPS)
    found = state.certificate(2, known, 1e-8, 1e-6)
    lead, blur = state.rounding_errors(2)
    np.testing.assert_allclose([lead, blur], [np.hypot(4e-3, 3e-3 + 4e-3), np.sqrt(2) * 5e-3])
    passing = replace(known, passing=lead, blur=blur, hidden=0.2)
    expected = certify(Ritz.of(*state.exact), 2, passing, 1e-8, 1e-6)
    assert (found.angle, found.proven) == (expected.angle, True)
    assert State(np.eye(8, 2)).certificate(2, known, 1e-8, 1e-6) is None
    probes = multiplied(B, state.basis, 6)
    probed = replace(state, hidden=np.inf, noises=0 * noises, probes=probes, lacking=0.05)
    calm = replace(known, trace=float(np.trace(B)) + 0.9, chance=probes.chance)
    found = probed.certificate(2, calm, 1e-8, 1e-6)
    expected = certify(Ritz.of(*state.exact), 2, replace(calm, covered=((2, 0.05),)), 1e-8, 1e-6)
    assert (found.angle, found.proven, found.p) == (expected.angle, expected.proven, expected.p)
    assert 0 < found.p < 1


def turned(Z, sine, seed=0):
    """A basis whose columns have these sines to Z's."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal(Z.shape)
    W = np.linalg.qr(W - Z @ (Z.T @ W))[0]
    sine = np.asarray(sine)
    return Z * np.sqrt(1 - sine**2) + W * sine


@pytest.mark.parametrize("sines", [(0.3, 0.5), (0.3, 1e-3), (1e-3, 2e-3)])
def test_a_basis_is_joined_by_what_the_base_of_probes_has_of_its_own(sines):
    B, Z, _ = hidden_part(c=2)
    X = turned(Z, sines)
    probes = multiplied(B, Z, 2)
    state = _joined(State(X, exact=(X, B @ X), base=(Z, B @ Z), probes=probes))
    apart = [s for s in sines if s > APART]
    J, G = state.told
    assert J.shape[1] == 2 + len(apart)
    np.testing.assert_allclose(J.T @ J, np.eye(J.shape[1]), atol=1e-10)
    np.testing.assert_allclose(G, B @ J, atol=1e-9)
    np.testing.assert_allclose(J @ (J.T @ X), X, atol=1e-10)
    less = np.linalg.svd(Z - J @ (J.T @ Z), compute_uv=False)[0]
    top = Ritz.of(J, G).values[0]
    coupling = np.linalg.norm(B @ Z - Z @ (Z.T @ B @ Z), 2)
    np.testing.assert_allclose(
        state.lacking, 2 * coupling * less + top * less**2, rtol=1e-6, atol=1e-12
    )
    turn = ritz_turn(J.T @ G)[1]
    inside = X.T @ Z
    U, sizes, Vt = np.linalg.svd(Z - X @ inside, full_matrices=False)
    more = Vt[: len(apart)].T / sizes[: len(apart)]
    space = np.hstack([X, U[:, : len(apart)]])
    mixed = np.abs(space.T @ J)  # what J is made of
    own = certificate.ROUNDING * EPS * top / sizes[: len(apart)]
    np.testing.assert_allclose(state.joined[2], np.r_[0, 0, own] @ mixed, rtol=1e-6, atol=1e-25)
    assert list(state.covered(Ritz.of(J, G))) == [(J.shape[1], state.lacking)]
    noisy = _joined(replace(state, noises=np.array([0.5, 0.25])))
    added = np.array([0.5, 0.25]) @ np.abs(inside @ more)
    expected = np.r_[0.5, 0.25, added] @ mixed
    np.testing.assert_allclose(noisy.joined[2], expected, rtol=1e-6)
    lead, whole = noisy.rounding_errors(1)
    np.testing.assert_allclose(lead, turned_noises(expected, turn)[0], rtol=1e-6)
    np.testing.assert_allclose(whole, np.sqrt(2) * np.linalg.norm(expected), rtol=1e-6)
    assert (noisy.noises == [0.5, 0.25]).all()
    alone = _joined(replace(state, probes=None))
    assert (alone.joined, alone.base, alone.lacking) == (None, None, 0.0)


def rows_of(B):
    values, V = np.linalg.eigh(B)
    return np.sqrt(np.maximum(values, 0))[:, None] * V.T


def placed(*parts):
    engine = Inline()
    engine.place([Shard((A,), A.shape[1], A.dtype, n) for n, A in enumerate(parts)])
    return engine


def test_power_iteration_draws_probes_of_an_exact_basis_and_anew_of_what_was_missed():
    B = np.diag(np.r_[10.0, 1.0, 5.0, np.full(5, 0.1)])
    X = np.eye(8, 2)
    engine = placed(rows_of(B))
    state = State(X, exact=(X, B @ X))
    drawn = local_power._doubted(state, doubt(), 2, engine)
    assert drawn.draws == 1
    assert drawn.base is state.exact
    noisy = replace(state, noises=np.array([0.0, 1e-3]))
    assert local_power._doubted(noisy, doubt(), 2, engine) is noisy
    assert local_power._doubted(State(X), doubt(), 2, engine).draws == 0
    found = replace(drawn, probes=multiplied(B, X, 4))
    anew = local_power._doubted(found, doubt(p=1e-9), 2, engine)  # 5 is larger than 1
    assert anew.draws == 2
    kept = local_power._doubted(
        replace(found, probes=multiplied(0 * B, X, 1)), doubt(p=1e-9), 2, engine
    )
    assert kept.draws == 1


def test_a_basis_that_was_rounded_is_made_orthonormal_with_its_image():
    B, Z, _ = hidden_part(c=3)
    X = Z @ np.array([[1, 0.3, 0.1], [0, 0.9, 0.2], [0.1, 0, 1.1]])
    Q, G, turn = local_power.orthonormal(X, B @ X)
    np.testing.assert_allclose(X @ turn, Q, atol=1e-12)
    np.testing.assert_allclose(Q.T @ Q, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(G, B @ Q, atol=1e-12)
    assert lp.subspace_distance(Z, Q) < 1e-12


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_rounded_step_tells_what_rounding_may_have_done(name):
    B = hidden_part()[0]
    V = np.linalg.eigh(B)[1][:, ::-1]
    top = np.linalg.norm(B, 2)
    engine = placed(rows_of(B))
    narrow = WireRounding(name, 2, 1e-10, EPS)

    def wrong(state):
        X, G = state.exact
        np.testing.assert_allclose(X.T @ X, np.eye(X.shape[1]), atol=1e-12)
        return np.linalg.norm((G - B @ X)[:, :2])

    def noise(state):
        return state.rounding_errors(2)[0]

    first = rounded_step(engine, State(turned(V[:, :3], [0.3] * 3)), narrow)
    assert UNITS[name] * top / 10 <= noise(first) <= UNITS[name] * top * 4
    assert 0 < wrong(first) <= noise(first)
    X, G = first.exact
    assert (np.linalg.norm(G - B @ X, axis=0) <= first.noises + 1e-15 * top).all()
    assert first.reference is None
    near = turned(V[:, :3], [1e-7] * 3)
    full = rounded_step(engine, State(near, exact=(near, B @ near)), narrow)
    assert noise(full) == 0.0
    assert wrong(full) <= 1e-14 * top
    assert full.reference[0] is full.exact[0]
    onward = turned(V[:, :3], [2e-7] * 3, seed=1)
    moved = replace(full, basis=onward, exact=(near, B @ near))
    step = rounded_step(engine, moved, narrow)
    assert step.reference is full.reference
    assert UNITS[name] * top * 1e-9 < noise(step) < UNITS[name] * top * 1e-5
    assert wrong(step) <= noise(step) + 1e-14 * top
    rough = replace(moved, basis=turned(V[:, :3], [0.3] * 3), exact=None)
    assert noise(rounded_step(engine, rough, narrow)) >= UNITS[name] * top / 10  # still unknown
    far = replace(moved, basis=turned(V[:, :3], [0.9] * 3, seed=2))
    assert noise(rounded_step(engine, far, narrow)) == 0.0  # too large to be rounded


def test_a_rounded_step_counts_every_column_that_a_vector_is_made_of():
    B = hidden_part()[0]
    values, V = np.linalg.eigh(B)
    values, V = values[::-1], V[:, ::-1]
    mixed = np.eye(3) - 2 / 3  # of a vector, columns have a third, two thirds and two thirds
    engine, unit = placed(rows_of(B)), UNITS["float32"]
    step = rounded_step(engine, State(V[:, :3] @ mixed), WireRounding("float32", 2, 1e-3, EPS))
    sent = to_wire(V[:, :3] @ mixed, "float32")
    lost = engine.sum(PowerSteps(sent, 1, reply="float32")).lost
    np.testing.assert_allclose(step.noises, lost @ np.abs(mixed), rtol=1e-4)
    np.testing.assert_allclose(
        step.rounding_errors(2)[1], np.sqrt(2) * np.linalg.norm(step.noises), rtol=1e-12
    )
    known = State(V[:, :3], exact=(V[:, :3], B @ V[:, :3]))
    gap = (values[1] - values[2]) / values[0]
    for shards in (1, 4):  # half of what the tolerance allows has to have room for all of them
        spread = np.sqrt(2 * shards)
        for factor, rounded in ((0.9, False), (1.1, True)):
            wire = WireRounding("float32", 2, factor * unit * 2 * spread / gap, EPS, shards)
            assert rounded_step(engine, known, wire).noises.any() == rounded


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_rounded_local_steps_know_the_image_of_an_orthonormal_basis(wire):
    B = hidden_part()[0]
    narrow = WireRounding(wire, 2, 1e-3, EPS)
    states = local_power.local_power(
        placed(rows_of(B)), State(np.eye(30, 4)), schedule=constant(3), align="none", exact=True,
        rounding=narrow,
    )  # fmt: skip
    for state, _ in zip(states, range(3), strict=False):
        X, G = state.exact
        np.testing.assert_allclose(X.T @ X, np.eye(4), atol=1e-12)
        wrong = np.linalg.norm(G - B @ X, axis=0)
        assert (wrong <= state.noises * (1 + 1e-6) + 1e-15).all()
        assert (state.noises <= 1.5 * wrong + 1e-15).all()  # measured, of one shard


@pytest.mark.parametrize("align_at", ["server", "worker"])
def test_rounded_local_steps_of_many_shards_tell_what_rounding_took(align_at):
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((9, 12)) * 0.8 ** np.arange(12) for _ in range(4)]
    B = sum(A.T @ A for A in parts)
    states = local_power.local_power(
        placed(*parts), State(np.eye(12, 3)), schedule=constant(2), align="procrustes",
        align_at=align_at, exact=True, rounding=WireRounding("bfloat16", 2, 1e-3, EPS, 4),
    )  # fmt: skip
    for state in islice(states, 3):
        X, G = state.exact
        assert (np.linalg.norm(G - B @ X, axis=0) <= state.noises).all()
        assert (state.noises > 0).all()


# Search spaces: what covers the base of probes, what is given up, what a merged start knows.


def searching(B, S, rank=2, width=3, **other):
    """A state of LocalRitz with this space."""
    S = np.linalg.qr(S)[0]
    state = RitzState(S[:, :width], start=S, rank=rank, block=width, space=S, **other)
    image = B @ S
    return _settled(state, S, image - S @ (S.T @ image), S.T @ image, np.zeros(S.shape[1]))


def largest_outside(B, S):
    P = np.eye(len(S)) - S @ S.T
    return np.linalg.eigvalsh(P @ B @ P)[-1]


def consistent(state, B):
    """Whether all that a state keeps of its space is true."""
    S, (X, G) = state.space, state.exact
    H, outer = S.T @ B @ S, B @ S - S @ (S.T @ B @ S)
    top = np.linalg.norm(B, 2)
    np.testing.assert_allclose(S.T @ S, np.eye(S.shape[1]), atol=1e-12)
    np.testing.assert_allclose(np.tril(state.projected), np.tril(H), atol=1e-11 * top)
    np.testing.assert_allclose(state.outer, outer, atol=1e-11 * top)
    np.testing.assert_allclose(G, B @ X, atol=1e-11 * top)
    np.testing.assert_allclose(X @ (X.T @ state.basis), state.basis, atol=1e-11)
    values, turn = state.turn()
    R = B @ S @ turn - S @ turn * values
    np.testing.assert_allclose(state.values, values, atol=1e-11 * top)
    np.testing.assert_allclose(state.gram, R.T @ R, atol=1e-11 * top**2)
    if state.inside.size and state.probes is not None:
        np.testing.assert_allclose(state.inside, S.T[: len(state.inside)] @ state.probes.base,
                                   atol=1e-10)  # fmt: skip
    assert state.hidden >= largest_outside(B, S) * (1 - 1e-9)


def test_leading_vectors_cover_the_base_but_for_their_least_sine():
    rng = np.random.default_rng(0)
    B = hidden_part(seed=3)[0]
    state = searching(B, rng.standard_normal((30, 8)))
    values, turn = state.turn()
    inside = np.linalg.qr(turn[:, :3] + 0.1 * rng.standard_normal((8, 3)))[0]
    state = replace(state, inside=inside, spread=0.3)
    Z = state.space @ inside
    found = dict(state.covered(state.ritz()))
    assert list(found) == [8, 6, 3]
    for count, lacking in found.items():
        X = state.space @ turn[:, :count]
        sine = np.linalg.norm(Z - X @ (X.T @ Z), 2)
        np.testing.assert_allclose(
            lacking, 2 * 0.3 * sine + values[0] * sine**2, rtol=1e-6, atol=1e-5
        )
    assert found[8] == 0.0
    assert 0 < found[6] < found[3]
    wide = replace(state, inside=np.eye(8)[:, :8])
    assert list(wide.covered(state.ritz())) == [(8, 0.0)]
    less = replace(searching(B, state.space[:, :3]), inside=np.eye(3, 5), spread=0.3)
    top = less.values[0]
    np.testing.assert_allclose([x for _, x in less.covered(less.ritz())], 0.6 + top)
    older = replace(state, inside=inside[:2])  # the space has grown since: two rows are known
    assert min(x for _, x in older.covered(state.ritz())) >= 0.3


def diagonal_search(couplings, values=(10.0, 5.0, 3.0, 1.0), d=12):
    """A space whose Ritz vectors have these residuals."""
    c = len(values)
    B = np.diag(np.r_[values, np.full(d - c, 0.1)])
    for n, size in enumerate(couplings):
        B[n, c + n] = B[c + n, n] = size
    return searching(B, np.eye(d)[:, :c]), B


def test_probes_are_of_what_is_outside_of_the_whole_space_where_couplings_are_small():
    state, _ = diagonal_search([0, 0, 0.1, 0.1])
    after = state.searched(doubt(), 2, EPS)
    assert after.draws == 1
    assert after.probes.base.shape[1] == 4
    assert after.probes.following.shape[1] == RitzState.PROBES == 4
    np.testing.assert_allclose(np.abs(after.inside), np.eye(4), atol=1e-12)
    np.testing.assert_allclose(after.spread, 0.1)
    assert state.searched(None, 2, EPS) is state
    assert after.searched(doubt(p=0.5), 2, EPS).draws == 1


def test_probes_are_of_what_is_outside_of_good_vectors_where_couplings_are_large():
    # of 5, a quarter is 1.25: 1² / 2 + 2² / 4 is more
    state, _ = diagonal_search([0, 0, 1.0, 2.0])
    after = state.searched(doubt(), 2, EPS)
    assert after.probes.base.shape[1] == 2
    np.testing.assert_allclose(after.space @ after.inside, after.probes.base, atol=1e-12)
    np.testing.assert_allclose(after.spread, 0.0, atol=1e-9)
    state, _ = diagonal_search([0.01, 0.01, 0.02, 2.9])
    after = state.searched(doubt(), 2, EPS)
    assert after.probes.base.shape[1] == 3  # 0.02 is below a hundredth of 3
    np.testing.assert_allclose(after.spread, 0.02, rtol=1e-3)
    small, _ = diagonal_search([0, 0, 1.0, 1.0])  # 1 / 2 + 1 / 4 is less
    assert small.searched(doubt(), 2, EPS).probes.base.shape[1] == 4
    tied, _ = diagonal_search([0, 0, 0, 0], (10.0, 5.0, 5.0, 1.0))
    assert tied.searched(doubt(), 2, EPS).probes.base.shape[1] == 4
    poor, _ = diagonal_search([0.2, 0.04, 1.0, 2.9])  # the first is not good, two are asked for
    assert poor.searched(doubt(), 2, EPS).probes.base.shape[1] == 2


def test_probes_are_lost_where_the_space_lacks_their_base():
    state, _ = diagonal_search([0, 0, 0.1, 0.1])
    state = state.searched(doubt(), 2, EPS)
    away = np.sqrt(0.9)
    lost = replace(state, inside=np.diag([1, 1, 1, away]))  # 10 times 0.1 may hide: more than 0.5
    assert lost.searched(doubt(p=0.5), 2, EPS).draws == 2
    near = replace(state, inside=np.diag([1, 1, 1, np.sqrt(0.99)]))
    kept = near.searched(doubt(p=0.5), 2, EPS)
    assert kept.draws == 1
    assert kept.probes is state.probes


def test_a_space_that_is_cut_keeps_its_leading_vectors_and_bounds_what_it_gives_up():
    rng = np.random.default_rng(0)
    B = hidden_part(seed=3)[0]
    state = searching(B, rng.standard_normal((30, 8)))
    state = replace(state, hidden=largest_outside(B, state.space))
    Z = state.space @ np.linalg.qr(rng.standard_normal((8, 3)))[0]
    state = replace(state, inside=state.space.T @ Z)
    for most in (8, 5, 3):
        after = _turned(state, most)
        assert after.space.shape[1] == most
        values, turn = state.turn()
        np.testing.assert_allclose(
            np.abs(after.space.T @ (state.space @ turn[:, :most])), np.eye(most), atol=1e-10
        )
        np.testing.assert_allclose(after.inside, after.space.T @ Z, atol=1e-12)
        consistent(after, B)
        gone = np.linalg.norm((state.outer @ turn)[:, most:], 2) if most < 8 else 0.0
        value = values[most] if most < 8 else -np.inf
        top = state.hidden
        if most < 8:
            top = np.linalg.eigvalsh([[value, gone], [gone, state.hidden]])[-1]
        np.testing.assert_allclose(after.hidden, top)


@pytest.mark.parametrize("start", ["merged", "random"])
@pytest.mark.parametrize("rounds", [12])
def test_all_that_a_search_knows_of_its_space_is_true(start, rounds):
    d, rank = 60, 1
    A = np.random.default_rng(0).standard_normal((90, d)) * np.linspace(1.2, 1, d)
    B = A.T @ A
    begin = State(np.linalg.qr(np.random.default_rng(1).standard_normal((d, 3)))[0])
    states = local_ritz(
        placed(*np.array_split(A, 3)), begin, rank, proposal="residual", steps=1, start=start,
        doubt=doubt(p=0.5),
    )  # fmt: skip
    sizes = []
    for state, _ in zip(states, range(rounds), strict=False):
        if state.exact is not None:
            consistent(state, B)
            sizes.append(state.space.shape[1])
    assert state.draws >= 1
    assert len(sizes) >= rounds - 1


def test_a_space_without_probes_is_cut_when_it_is_full_and_stays_true():
    d = 60
    A = np.random.default_rng(0).standard_normal((90, d)) * np.linspace(1.2, 1, d)
    begin = State(np.linalg.qr(np.random.default_rng(1).standard_normal((d, 2)))[0])
    states = local_ritz(placed(A), begin, 1, proposal="residual", steps=1, start="random")
    sizes = []
    for state, _ in zip(states, range(14), strict=False):
        consistent(state, A.T @ A)
        sizes.append(state.space.shape[1])
    assert max(sizes) == 16  # eight times the width
    assert sizes[sizes.index(16) + 1] == 8  # a half of it
    calm = local_ritz(placed(A), begin, 1, proposal="residual", steps=1, start="random",
                      doubt=Doubt(7, 1e-3, Told(p=0.5)))  # fmt: skip
    sizes = [state.space.shape[1] for state, _ in zip(calm, range(14), strict=False)]
    assert max(sizes) > 16  # probes have the space as their base


def test_a_merged_start_knows_what_is_hidden_at_most():
    A = np.random.default_rng(0).standard_normal((200, 30)) * 0.8 ** np.arange(30)
    parts = np.array_split(A, 4)
    B = A.T @ A
    random = np.linalg.qr(np.random.default_rng(1).standard_normal((30, 4)))[0]
    state = merged(placed(*parts), random, 1, MERGED, None, None)
    assert state.start.shape == (30, MERGED)
    assert state.basis.shape == (30, 4)
    assert largest_outside(B, state.start) <= state.hidden < 10 * largest_outside(B, state.start)
    assert state.probes is None
    assert (state.block, state.round, state.steps) == (1, 1, 1)
    wide = merged(
        placed(*parts),
        np.linalg.qr(np.random.default_rng(1).standard_normal((30, 12)))[0],
        1,
        MERGED,
        None,
        None,
    )
    assert wide.start.shape == (30, 12)
    less, four = (merged(placed(*parts), random, 1, n, None, None) for n in (2, 4))
    np.testing.assert_array_equal(less.start, four.start)  # as many as the width at least
    assert less.hidden == four.hidden
    more = merged(placed(*parts), random, 1, 20, None, None)
    assert more.start.shape == (30, 20)
    assert more.hidden < state.hidden / 10
    assert merged(placed(*parts), random, 1, 99, None, None).start.shape == (30, 30)


def test_a_merged_start_has_ritz_values_that_lack_no_more_than_its_bound():
    A = np.random.default_rng(0).standard_normal((200, 30)) * 0.8 ** np.arange(30)
    B = A.T @ A
    random = np.linalg.qr(np.random.default_rng(1).standard_normal((30, 4)))[0]
    state = merged(placed(*np.array_split(A, 4)), random, 2, 8, None, None)
    found = state.ritz()
    truth = np.linalg.eigvalsh(B)[::-1][:8]
    assert found.values.shape == (8,)
    assert (found.values <= truth * (1 + 1e-12)).all()
    assert (truth <= found.values + state.hidden).all()
    assert state.rounding_errors(2) == (state.hidden, 0.0)
    X = state.basis
    R = B @ X - X * found.values[:4]
    assert np.linalg.norm(R, 2) <= state.hidden
    assert (found.residuals.shape[1], found.gram.shape) == (4, (8, 8))
    assert not found.residuals.any()
    assert not found.gram.any()
    covered = replace(state, inside=np.eye(8)).covered(found)
    assert list(covered) == [(8, 0.0)]
    known = Known(30, float(np.trace(B)), EPS)
    told = state.certificate(2, known, 0.5, 1e-6)
    sine = np.linalg.norm(np.linalg.eigh(B)[1][:, :-2].T @ X[:, :2], 2)
    assert sine <= told.angle
    assert not told.rounded  # a product may put that right


def test_a_search_merges_eight_times_the_rank_or_as_many_as_it_is_told():
    A = np.random.default_rng(0).standard_normal((200, 30)) * 0.8 ** np.arange(30)
    begin = State(np.eye(30, 3))
    for wide, width in ((0, 2 * MERGED), (20, 20)):
        states = local_ritz(placed(A), begin, 2, proposal="residual", steps=1, wide=wide)
        first = next(states)
        assert (first.start.shape[1], first.round, first.exact) == (width, 1, None)
        assert next(states).space.shape[1] == width


def test_a_merged_start_of_few_rows_is_filled_up_at_random():
    A = np.random.default_rng(0).standard_normal((2, 30))
    random = np.linalg.qr(np.random.default_rng(1).standard_normal((30, 4)))[0]
    state = merged(placed(A, A), random, 3, 24, None, None)
    assert state.start.shape == (30, 4)
    np.testing.assert_allclose(state.start.T @ state.start, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(state.start @ (state.start.T @ A.T), A.T, atol=1e-12)
    assert state.hidden <= 1e-11
    np.testing.assert_allclose(state.values[2:], 0.0, atol=1e-12)
    assert len(state.values) == 4
    narrow = merged(placed(A, A), random[:, :3], 3, 24, None, None)
    assert narrow.start.shape == (30, 3)  # two of their own, and one at random
    nothing = merged(placed(0 * A), random, 3, 24, doubt(), None)
    assert nothing.start.shape == (30, 4)


def test_a_merged_start_draws_probes_where_it_may_not_prove_enough():
    rng = np.random.default_rng(0)
    random = np.linalg.qr(rng.standard_normal((30, 3)))[0]
    flat, steep = (
        rng.standard_normal((200, 30)),
        rng.standard_normal((200, 30)) * 0.3 ** np.arange(30),
    )
    drawn = merged(placed(*np.array_split(flat, 3)), random, 2, 16, doubt(), None)
    assert drawn.draws == 1
    np.testing.assert_array_equal(drawn.inside, np.eye(drawn.start.shape[1]))
    np.testing.assert_allclose(drawn.probes.base, drawn.start)
    assert merged(placed(steep), random, 2, 16, doubt(), None).draws == 0
    assert merged(placed(flat), random, 2, 16, None, None).draws == 0
    mixed = flat.copy()
    mixed[:, 0] *= 100  # the first value is far above what is hidden, the second is not
    assert merged(placed(*np.array_split(mixed, 3)), random, 2, 16, doubt(), None).draws == 1
    full = merged(placed(flat[:, :12]), random[:12], 2, 16, doubt(), None)
    assert (full.start.shape, full.draws) == ((12, 12), 0)


def test_a_rest_that_is_no_number_proves_nothing():
    class Broken(Inline):
        def sum(self, task):
            return replace(super().sum(task), rest=float("nan"))

    A = np.random.default_rng(0).standard_normal((40, 20))
    engine = Broken()
    engine.place([Shard((A,), 20, A.dtype)])
    state = merged(engine, np.eye(20, 3), 2, 16, None, None)
    assert state.hidden == np.inf
    assert state.ritz() is None


def test_a_search_that_nothing_new_is_proposed_to_ends_after_its_probes():
    B = np.diag(np.r_[4.0, 3.0, np.linspace(2, 1, 18)])
    V = np.eye(20, 3)
    states = local_ritz(placed(rows_of(B)), State(V), 2, proposal="residual", steps=1,
                        start="random", doubt=doubt(p=0.5))  # fmt: skip
    seen = [(state.space.shape[1], state.draws) for state in islice(states, 30)]
    assert seen[0] == (3, 0)
    assert seen[1] == (3, 1)  # the space is invariant: probes go on alone
    assert len(seen) > 2
    assert not list(islice(local_ritz(placed(rows_of(B)), State(V), 2, proposal="residual",
                                      steps=1, start="random"), 1, 30))  # fmt: skip


def test_what_probes_find_is_searched_from_then_on():
    B = np.diag(np.r_[4.0, 1.0, 3.0, np.linspace(0.5, 0.1, 57)])  # 3 is not in the start
    states = local_ritz(placed(rows_of(B)), State(np.eye(60, 2)), 2, proposal="residual", steps=1,
                        start="random", doubt=doubt(p=0.5))  # fmt: skip
    state = list(islice(states, 12))[-1]
    np.testing.assert_allclose(state.values[:2], [4.0, 3.0], rtol=1e-6)
    assert state.draws >= 2  # what else is hidden was asked anew
    consistent(state, B)


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_a_rounded_search_tells_what_rounding_may_have_done(wire):
    A = np.random.default_rng(0).standard_normal((90, 40)) * 0.9 ** np.arange(40)
    B = A.T @ A
    begin = State(np.linalg.qr(np.random.default_rng(1).standard_normal((40, 5)))[0])
    narrow = WireRounding(wire, 2, 1e-6, EPS)
    states = local_ritz(placed(A), begin, 2, proposal="residual", steps=1, start="random",
                        rounding=narrow)  # fmt: skip
    noises = []
    for state in islice(states, 14):
        X, G = state.exact
        np.testing.assert_allclose(X.T @ X, np.eye(5), atol=1e-11)
        wrong, (lead, whole) = B @ state.space, state.rounding_errors(2)
        wrong -= state.outer + state.space @ state.projected
        assert np.linalg.norm((G - B @ X)[:, :2]) <= lead + 1e-13 * state.values[0]
        assert np.linalg.norm(wrong) <= whole + 1e-13 * state.values[0]
        noises.append(lead)
    assert max(noises) > 0


def test_where_a_search_stands_is_told_with_what_rounding_did():
    state, _ = diagonal_search([0, 0, 0.1, 0.1])
    noisy = replace(state, noises=np.array([0.5, 0.0, 0.0, 0.0]))
    found = noisy.standing(WireRounding("float32", 2, 1e-3, EPS))
    np.testing.assert_allclose(found.noise, noisy.rounding_errors(2)[0] / 10)
    np.testing.assert_allclose(found.residual, found.noise)


def test_a_search_that_rounding_limits_multiplies_its_answer_once_more():
    state, B = diagonal_search([0, 0, 0.1, 0.1])
    state = replace(state, noises=np.full(4, 0.5))
    after = _measured_again(placed(rows_of(B)), _turned(state, 4), 2)
    assert after.rounding_errors(2)[0] < 1e-8
    consistent(after, B)


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("proposal", ["power steps", "residual", "all"])
def test_shards_tell_what_rounding_took_though_their_products_cancel_in_the_sum(wire, proposal):
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((5, 12)) * 3.0 ** rng.integers(-2, 3, 12) for _ in range(6)]
    engine, B = placed(*parts), sum(A.T @ A for A in parts)
    Q, X = (np.linalg.qr(rng.standard_normal((12, 4)))[0] for _ in range(2))
    each, loss = [A.T @ (A @ Q) for A in parts], UNITS[wire]
    task, sent = PowerSteps(Q, 1, reply=wire), [to_wire(G, wire) for G in each]
    if proposal != "power steps":
        task, sent = PowerSteps(Q, 1, loss=loss), [to_bytes(G, loss) for G in each]
    if proposal == "all":
        task = Refine(Q, X, B @ X, 2, 30, loss, wire)
    lost = [np.linalg.norm(G - from_wire(A), axis=0) for G, A in zip(each, sent, strict=True)]
    answer = engine.sum(task)
    np.testing.assert_allclose(answer.lost, sum(lost), rtol=1e-6)
    assert (np.linalg.norm(from_wire(answer.product) - B @ Q, axis=0) <= answer.lost).all()
    exact = [{"loss": 0.0}] if proposal != "power steps" else [{"reply": "float64"}, {"reply": ""}]
    for other in exact:
        assert engine.sum(replace(task, **other)).lost is None


def test_a_space_is_given_up_with_what_rounding_may_have_done_to_it():
    state, _ = diagonal_search([0, 0, 0.1, 0.1])
    state = replace(state, hidden=0.01)
    clear, noisy = _turned(state, 2), _turned(replace(state, noises=np.full(4, 0.5)), 2)
    value, blur = float(state.turn()[0][2]), np.sqrt(2) * 1.0
    assert clear.hidden < noisy.hidden
    coupling = np.sqrt(np.linalg.eigvalsh(state.gram[2:, 2:])[-1])
    expected = state.giving_up(value + blur, coupling + blur).hidden
    np.testing.assert_allclose(noisy.hidden, expected)


def test_a_merged_start_that_is_rounded_knows_what_it_lacks_and_what_it_has_too_much():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((40, 30)) * 0.7 ** np.arange(30) for _ in range(3)]
    B, engine = sum(A.T @ A for A in parts), placed(*parts)
    random = np.linalg.qr(rng.standard_normal((30, 4)))[0]
    exact = merged(engine, random, 2, 8, None, None)
    assert exact.over == exact.rounding_errors(2)[1] == 0.0
    narrow = WireRounding("bfloat16", 2, 1e-3, EPS, 3)
    state = merged(engine, random, 2, 8, None, narrow)
    D = np.linalg.eigvalsh(B - state.factor @ state.factor.T)
    assert 0 < state.over < 0.1 * exact.rest < state.rest
    assert -state.over <= D[0] <= D[-1] <= state.rest == state.hidden
    expected = state.hidden, state.over * np.sqrt(len(state.values))
    np.testing.assert_allclose(state.rounding_errors(2), expected, rtol=1e-15)
    gap = (state.values[1] - state.values[2]) / state.values[0]
    assert state.standing(narrow) == Standing(1.0, gap)
    assert replace(state, values=state.values[:2]).standing(narrow) is None


def test_where_a_rounded_search_stands_is_told_by_the_next_value():
    state, _ = diagonal_search([0.1, 0.2, 0.1, 0.1])
    narrow = WireRounding("float32", 2, 1e-3, EPS)
    noisy = replace(state, rank=2, noises=np.full(4, 0.25))
    found, values = noisy.standing(narrow), noisy.values
    np.testing.assert_allclose(found.gap, (values[1] - values[2]) / values[0])
    np.testing.assert_allclose(found.noise, noisy.rounding_errors(2)[0] / values[0])
    np.testing.assert_allclose(found.blur, np.sqrt(2) * 0.5 / values[0])
    assert replace(noisy, rank=4).standing(narrow) is None


def test_shards_are_told_what_products_may_lose_when_they_are_rounded():
    class Listening(Inline):
        def sum(self, task):
            asked.append(task)
            return super().sum(task)

    asked, rng = [], np.random.default_rng(0)
    A = 100 * rng.standard_normal((200, 30)) * 0.8 ** np.arange(30)
    engine = Listening()
    engine.place([Shard((part,), 30, part.dtype, n) for n, part in enumerate(np.split(A, 4))])
    narrow = WireRounding("bfloat16", 2, 1e-3, EPS, 4)
    start = State(np.linalg.qr(rng.standard_normal((30, 4)))[0])
    run = local_ritz(engine, start, 2, proposal="model", steps=1, wide=8, tol=1e-3, rounding=narrow)
    state = next(run)
    for _ in range(2):
        loss = narrow.for_block(state.standing(narrow)) * state.values[0]
        state = next(run)
        assert loss > 0
        assert asked[-1].loss == loss
        assert asked[-1].basis.dtype == np.uint8


def test_what_a_first_block_lacks_of_the_merged_factor_as_it_is_rounded_may_be_hidden():
    rng = np.random.default_rng(0)
    start, values = np.linalg.qr(rng.standard_normal((12, 4)))[0], np.array([9.0, 4.0, 1.0])
    nothing = np.zeros((12, 0))
    state = RitzState(start[:, :2], start=start, values=values, hidden=0.5, space=nothing,
                      factor=start[:, :3] * np.sqrt(values), rest=0.5)  # fmt: skip
    Q = np.linalg.qr(start + 0.05 * rng.standard_normal(start.shape))[0]
    F = start[:, :3] * np.sqrt(values)  # the fourth column was added at random
    B = F @ F.T
    after = _settled(_as_sent(state, Q), Q, B @ Q - Q @ (Q.T @ B @ Q), Q.T @ B @ Q, np.zeros(4))
    outside = np.eye(12) - Q @ Q.T
    lost = np.linalg.eigvalsh(outside @ B @ outside)[-1]
    np.testing.assert_allclose(after.hidden, 0.5 + lost)
    assert lost > 1e-3
    assert not after.inside.size
    probed = _as_sent(replace(state, inside=np.eye(4)), Q)
    np.testing.assert_allclose(probed.inside, Q.T @ start)
    unknown = replace(state, factor=nothing, rest=np.inf, hidden=np.inf)
    assert _settled(unknown, Q, B @ Q, Q.T @ B @ Q, np.zeros(4)).hidden == np.inf


def test_rounding_of_products_adds_up_in_every_vector_made_of_them():
    rng = np.random.default_rng(0)
    B = hidden_part(seed=3)[0]
    state = searching(B, rng.standard_normal((30, 6)))
    noises = np.array([0.1, 0.2, 0.0, 0.3, 0.05, 0.4])
    image = B @ state.space
    noisy = _settled(state, state.space, image - state.space @ (state.space.T @ image),
                     state.space.T @ image, noises)  # fmt: skip
    turn = noisy.turn()[1]
    assert (turn < 0).any()
    earlier = np.array([np.square(noises[:j]).sum() for j in range(6)])
    lead = np.abs(turn).T @ noises + np.sqrt(earlier @ np.square(turn))
    np.testing.assert_allclose(turned_noises(noises, turn), lead)
    np.testing.assert_allclose(noisy.rounding_errors(2)[0], np.linalg.norm(lead[:2]))
    np.testing.assert_allclose(_turned(noisy, 4).noises, lead[:4])
    Q = rng.standard_normal((30, 2))
    own = np.array([0.01, 0.02])
    inside = state.space.T @ Q
    R = np.linalg.qr(Q - state.space @ inside)[1]
    Z, product, found = _orthonormal(Q, B @ Q, own, noisy)
    np.testing.assert_allclose(state.space.T @ Z, 0, atol=1e-13)
    np.testing.assert_allclose(product, B @ Z, atol=1e-12)
    expected = (own + turned_noises(noises, inside)) @ np.abs(np.linalg.inv(R))
    np.testing.assert_allclose(found, expected)


def test_a_residual_that_may_be_rounding_alone_is_not_sent_again():
    state, B = diagonal_search([0.2, 0.3, 0, 0])
    engine = placed(rows_of(B))

    def sent(noises):
        block = _next_block(engine, replace(state, noises=np.array(noises)), np.zeros((12, 0)),
                            "residual", 1, None)  # fmt: skip
        return block.shape[1]

    assert sent([0.0, 0.0, 0.0, 0.0]) == 2
    assert sent([0.25, 0.25, 0.0, 0.0]) == 1
    assert sent([0.4, 0.4, 0.0, 0.0]) == 0


def test_a_bound_of_what_is_hidden_stays_where_later_blocks_are_rounded():
    A = np.random.default_rng(0).standard_normal((90, 40)) * 0.8 ** np.arange(40)
    begin = State(np.linalg.qr(np.random.default_rng(1).standard_normal((40, 5)))[0])
    states = local_ritz(placed(A), begin, 2, proposal="residual", steps=1, wide=8,
                        rounding=WireRounding("bfloat16", 2, 1e-6, EPS))  # fmt: skip
    first, second, third, fourth = islice(states, 4)
    assert first.hidden < second.hidden < 2 * first.hidden  # the first block was rounded
    assert fourth.hidden <= third.hidden <= second.hidden
    for state in (second, third, fourth):
        assert largest_outside(A.T @ A, state.space) <= state.hidden
