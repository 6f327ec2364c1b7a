"""What is certified of Ritz pairs whose truth is known: formulas, and the truth on both sides."""

import warnings

import numpy as np
import pytest
from helpers import EPS, with_spectrum
from scipy import sparse

import localpower as lp
from localpower.core.certificate import (
    ROUNDING,
    SHARES,
    SLACK,
    Bound,
    Certificate,
    Known,
    Ritz,
    certify,
    certify_factor,
    ritz_turn,
)
from localpower.core.linalg import EIGH_COLUMNS
from localpower.core.rounding import from_wire, to_bytes
from localpower.engines.inline import Inline
from localpower.methods import exact
from localpower.methods.state import turned_noises
from localpower.worker import local_matrix
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.replies import LowRank
from localpower.worker.shard import Shard
from localpower.worker.tasks import LeadingFactor

VALUES = np.array([5.0, 4.0, 2.0, 1.0])
RANK = 2
PLENTY = 1e6  # a trace that proves nothing
SURE = 1e-6


def residuals(scale=0.05, count=4, seed=0):
    return scale * np.random.default_rng(seed).standard_normal((6, count))


def ritz(values=VALUES, R=None, width=None):
    R = residuals(count=len(values)) if R is None else np.asarray(R, float)
    return Ritz(np.asarray(values, float), R[:, : width or len(values)], R.T @ R)


def judged(found, rank=RANK, tol=1e-8, certainty=SURE, trace=PLENTY, eps=EPS, columns=10, **known):
    return certify(found, rank, Known(columns, trace, eps, **known), tol, certainty)


def couplings(values, R, rank, at):
    """κ, τ and the least distance, written out."""
    D = at - values[rank:]
    if not len(D):
        return 0.0, 0.0, np.inf
    R = R[:, rank:]
    return np.linalg.norm(R / np.sqrt(D), 2) ** 2, np.linalg.norm(R / D, 2), D.min()


def bound(values, R, rank, h, floor=0.0):
    """The bound of the sine in the module's text, with what rounding adds."""
    kappa, tau, distance = couplings(values, R, rank, values[rank - 1])
    room = values[rank - 1] - kappa - h
    angle = np.linalg.norm(R[:, :rank]) * np.sqrt(1 + tau**2) / room
    return angle + floor * (1 / distance + (1 + tau**2) / room)


def claims(values, R, rank, mean):
    """The h that are asked for in turn."""
    room = values[rank - 1] - couplings(values, R, rank, values[rank - 1])[0]
    return [room - share * (room - mean) for share in SHARES]


class Asked:
    """A chance that keeps what it was asked for, and answers a list or a number."""

    def __init__(self, answer):
        self.answer, self.values = answer, []

    def __call__(self, value):
        self.values.append(value)
        return self.answer if np.isscalar(self.answer) else self.answer[len(self.values) - 1]


# What is outside of the search space.


def test_a_bound_of_what_is_hidden_proves_the_angle_of_the_formula():
    eps, noise, passing = 1e-6, 2e-4, 3e-4
    found = judged(ritz(), eps=eps, noise=noise, passing=passing, hidden=0.7)
    floor = ROUNDING * eps * 5 + noise + passing
    np.testing.assert_allclose(
        found.angle, bound(VALUES, residuals(), RANK, 0.7 + floor, floor), rtol=1e-9
    )
    assert (found.proven, found.p, found.vanishing) == (True, 0.0, False)


def test_the_trace_proves_the_angle_of_the_formula():
    eps, noise, passing = 1e-5, 2e-4, 3e-3
    trace = VALUES.sum() + 0.4
    found = judged(ritz(), trace=trace, eps=eps, noise=noise, passing=passing)
    floor = ROUNDING * eps * 5 + noise + passing
    h = 0.4 + ROUNDING * eps * trace + noise
    np.testing.assert_allclose(found.angle, bound(VALUES, residuals(), RANK, h, floor), rtol=1e-9)
    assert found.proven


@pytest.mark.parametrize(("left", "proven"), [(0.0, True), (0.5, False)])
def test_a_trace_is_not_known_to_its_last_digits(left, proven):
    """Sums of squares of rows with a mean are right to 64 units of rounding."""
    values = np.array([1.0, 96 * EPS])
    trace = 1.0 + (96 + 64 * left) * EPS
    found = judged(ritz(values, np.zeros((6, 2))), rank=2, trace=trace, tol=0.5)
    assert found.proven == proven


def test_the_better_of_trace_and_bound_counts():
    both = judged(ritz(), trace=VALUES.sum() + 0.4, hidden=0.7)
    assert both.angle == judged(ritz(), trace=VALUES.sum() + 0.4).angle
    both = judged(ritz(), trace=VALUES.sum() + 1.2, hidden=0.7)
    np.testing.assert_allclose(both.angle, judged(ritz(), hidden=0.7).angle, rtol=1e-12)


def test_a_trace_below_the_values_leaves_nothing_but_its_rounding():
    trace = VALUES.sum() - 0.5
    found = judged(ritz(), trace=trace, eps=1e-5)
    floor = ROUNDING * 1e-5 * 5
    h = ROUNDING * 1e-5 * trace
    np.testing.assert_allclose(found.angle, bound(VALUES, residuals(), RANK, h, floor), rtol=1e-9)


def test_nothing_is_hidden_from_a_space_that_is_all():
    found = judged(ritz(), columns=4, trace=PLENTY, eps=1e-4)
    floor = ROUNDING * 1e-4 * 5
    expected = bound(VALUES, residuals(), RANK, 0.0, floor)
    np.testing.assert_allclose(found.angle, expected, rtol=1e-9)
    assert found.proven
    assert found.rounded
    assert not judged(ritz(), columns=5, trace=PLENTY).proven


def test_what_leaves_no_room_proves_nothing():
    kappa = couplings(VALUES, residuals(), RANK, 4.0)[0]
    for hidden in (4 - kappa / 2, 4.0, 9.0):
        found = judged(ritz(), hidden=hidden)
        assert not found.proven
        assert found.p == 1.0


def test_a_large_residual_makes_the_angle_one_at_the_most():
    R = np.zeros((6, 4))
    R[0, 0] = 30.0
    found = judged(ritz(R=R), hidden=0.5)
    assert not found.proven
    assert found.angle == 1.0


def whole_matrix(values, R, H):
    c = len(values)
    B = np.zeros((c + len(H), c + len(H)))
    B[:c, :c] = np.diag(values)
    B[c:, :c], B[:c, c:], B[c:, c:] = R, R.T, H
    return B


def true_sine(B, rank):
    U = np.linalg.eigh(B)[1][:, ::-1][:, :rank]
    return np.linalg.norm(U[rank:], 2)


@pytest.mark.parametrize("seed", range(300))
def test_the_true_sine_is_never_above_the_bound_for_any_matrix_with_these_pairs(seed):
    rng = np.random.default_rng(seed)
    c, m = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    rank = int(rng.integers(1, c + 1))
    values = np.sort(rng.random(c))[::-1] + 0.5 * rng.random()
    h = values[rank - 1] * rng.random()
    R = rng.standard_normal((m, c)) * 10.0 ** rng.uniform(-3, -0.5) * rng.random(c)
    Q = np.linalg.qr(rng.standard_normal((m, m)))[0]
    H = (Q * np.r_[h, h * rng.uniform(-1, 1, m - 1)]) @ Q.T
    B = whole_matrix(values, R, H)
    turn = np.linalg.qr(rng.standard_normal((c, c)))[0]
    for X in (np.eye(c + m, c), np.eye(c + m, c) @ turn):
        found = judged(Ritz.of(X, B @ X), rank, columns=c + m, hidden=h)
        assert true_sine(B, rank) <= found.angle + 1e-12


def test_an_image_is_that_of_a_symmetric_matrix_as_near_as_its_noises_say():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        c, m = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        noises = 10.0 ** rng.uniform(-4, 0, c)
        E = rng.standard_normal((c + m, c)) * (rng.random((c + m, c)) < 0.5)
        E *= noises / np.maximum(np.linalg.norm(E, axis=0), 1e-300)
        near = np.zeros((c + m, c + m))
        near[:c, :c] = np.tril(E[:c]) + np.tril(E[:c], -1).T  # the lower half counts
        near[c:, :c], near[:c, c:] = E[c:], E[c:].T
        assert np.linalg.norm(near, 2) <= np.sqrt(2) * np.linalg.norm(noises) + 1e-12
        turn = np.linalg.qr(rng.standard_normal((c, c)))[0]
        wrong = np.linalg.norm(near[:, :c] @ turn, axis=0)
        assert (wrong <= turned_noises(noises, turn) + 1e-12).all()


@pytest.mark.parametrize("seed", range(400))
def test_the_true_sine_is_never_above_the_bound_where_the_image_is_not_exact(seed):
    rng = np.random.default_rng(seed)
    c, m = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    rank = int(rng.integers(1, c + 1))
    values = np.sort(rng.random(c))[::-1] + 0.5 * rng.random()
    h = values[rank - 1] * rng.random()
    R = rng.standard_normal((m, c)) * 10.0 ** rng.uniform(-4, -0.5) * rng.random(c)
    Q = np.linalg.qr(rng.standard_normal((m, m)))[0]
    B = whole_matrix(values, R, (Q * np.r_[h, h * rng.uniform(-1, 1, m - 1)]) @ Q.T)
    S = np.eye(c + m, c)
    noises = 10.0 ** (rng.uniform(-6, -0.5) + rng.uniform(0, 2, c) * (np.arange(c) >= rank))
    worst = np.linalg.eigh(B)[1][:, rng.integers(0, c + m, c)]  # away from one true vector
    E = worst if seed % 2 else rng.standard_normal((c + m, c))
    E = E * noises / np.linalg.norm(E, axis=0)
    G = B @ S + E
    turn = ritz_turn(S.T @ G)[1]
    lead = float(np.linalg.norm(turned_noises(noises, turn[:, :rank])))
    blur = float(np.sqrt(2) * np.linalg.norm(noises))
    trace = float(np.trace(B)) if rng.random() < 0.5 and m == 1 else PLENTY
    hidden = h if trace == PLENTY else np.inf
    how = {"passing": lead, "blur": blur, "hidden": hidden, "trace": trace}
    found = judged(Ritz.of(S, G), rank, columns=c + m, **how)
    X = S @ turn[:, :rank]
    U = np.linalg.eigh(B)[1][:, ::-1][:, :rank]
    if found.proven and found.gap > 1e-8:
        assert np.linalg.norm(U - X @ (X.T @ U), 2) <= found.angle + 1e-12


def test_an_image_that_is_not_exact_makes_the_bound_larger():
    found, how = ritz(), {"hidden": 0.5}
    kappa, tau, distance = couplings(VALUES, residuals(), RANK, 4.0)
    inverse = 1 / distance + (1 + tau**2) / (4 - kappa - 0.5)
    sharp = judged(found, **how).angle
    np.testing.assert_allclose(
        judged(found, blur=0.1, **how).angle, sharp / (1 - 0.1 * inverse), rtol=1e-9
    )
    assert judged(found, blur=1.0001 / inverse, **how).angle == 1.0
    assert judged(found, blur=2 / inverse, **how).angle == 1.0
    assert Bound(2.0, 0.1, 0.0, 0.5, 0.0, 1.0, 0.5).at(0.5) == 1.0  # exactly no room: 1/1 + 1/1


@pytest.mark.parametrize("blur", [0.0, 0.1])
def test_what_is_wrong_inside_may_be_missing_from_the_trace(blur):
    R, h = residuals(), 0.5 + 2 * blur  # four columns: twice
    kappa, tau, distance = couplings(VALUES, R, RANK, 4.0)
    inverse = 1 / distance + (1 + tau**2) / (4 - kappa - h)
    found = judged(ritz(R=R), trace=12.5, blur=blur)
    assert found.proven
    np.testing.assert_allclose(
        found.angle, bound(VALUES, R, RANK, h) / (1 - blur * inverse), rtol=1e-9
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rank", [1, 2])
def test_the_bound_is_not_twice_the_true_sine_where_couplings_are_weak(rank, seed):
    rng = np.random.default_rng(seed)
    values = np.array([3.0, 2.0, 1.0])
    R = np.zeros((2, 3))
    R[0, rank - 1], R[:, 2] = 1e-4, 1e-3 * rng.random(2)  # it is h that the vector is coupled to
    h = 2 * rng.random()
    H = np.diag([h, h / 2])
    found = judged(ritz(values, R), rank, columns=5, hidden=h)
    sine = true_sine(whole_matrix(values, R, H), rank)
    assert sine <= found.angle <= 2 * sine


def test_the_others_may_pass_on_what_is_hidden():
    """What couples further Ritz vectors to the outside counts twice: as κ and as τ."""
    values, strong = np.array([2.0, 1.0]), 0.7
    R = np.array([[1e-6, strong]])
    found = judged(ritz(values, R), 1, columns=3, hidden=1.0)
    np.testing.assert_allclose(found.angle, 1e-6 * np.sqrt(1 + strong**2) / (1 - strong**2))
    sine = true_sine(whole_matrix(values, R, np.diag([1.0])), 1)
    assert found.angle / 2 <= sine <= found.angle
    two = ritz([2.0, 1.0, 0.5], [[1e-6, 0.6, 0.0], [0, 0, 0.9]])
    kappa = max(0.6**2 / 1, 0.9**2 / 1.5)
    tau = max(0.6 / 1, 0.9 / 1.5)
    found = judged(two, 1, hidden=0.5)
    np.testing.assert_allclose(found.angle, 1e-6 * np.sqrt(1 + tau**2) / (2 - kappa - 0.5))


# What random probes say.


def test_claims_are_asked_in_turn_until_one_is_as_probable_as_wanted():
    eps, lacking = 1e-5, 0.02
    asked = Asked([0.3, 1e-2, SURE, 0.0, 0.0])
    found = judged(
        ritz(), trace=VALUES.sum() + 6.0, eps=eps, chance=asked, covered=((4, lacking),)
    )  # six values outside have the mean 1
    floor = ROUNDING * eps * 5
    expected = np.array(claims(VALUES, residuals(), RANK, 1.0)[:3])
    np.testing.assert_allclose(asked.values, expected - floor - lacking)
    np.testing.assert_allclose(found.angle, bound(VALUES, residuals(), RANK, expected[2], floor))
    assert (found.proven, found.p) == (False, SURE)


def test_nothing_is_asked_where_the_mean_outside_is_larger_than_the_last_value():
    asked = Asked(0.0)
    found = judged(ritz(), trace=VALUES.sum() + 6 * 9.0, chance=asked, covered=((4, 0.0),))
    assert not asked.values
    assert (found.angle, found.p) == (1.0, 1.0)


def test_a_part_of_the_vectors_may_cover_the_base_with_smaller_couplings():
    R = residuals(1e-3)
    R[:, 3] = [0, 0, 0, 1.5, 0, 0]  # so that the last one leaves less room
    asked = Asked([1.0] * len(SHARES) + [0.0])
    found = judged(ritz(R=R), trace=VALUES.sum() + 6.0, chance=asked, covered=((4, 0.0), (3, 0.1)))
    first = claims(VALUES, R, RANK, 1.0)
    second = claims(VALUES[:3], R[:, :3], RANK, 1.0)[0]
    np.testing.assert_allclose(asked.values, [*first, second - 0.1], atol=1e-12)
    np.testing.assert_allclose(found.angle, bound(VALUES[:3], R[:, :3], RANK, second))


def test_the_chance_of_what_is_seen_is_told_where_none_is_small_enough():
    asked = Asked([0.5, 0.2, 0.1, 0.4, 0.9, 0.9, 0.9])
    found = judged(ritz(), trace=VALUES.sum() + 6.0, chance=asked, covered=((4, 0.0),))
    assert len(asked.values) == 6  # three would leave the angle at one
    assert not found.sharper
    assert (found.proven, found.p) == (False, 0.5)  # 0.1 is that of another claim
    seen = bound(VALUES, residuals(), RANK, claims(VALUES, residuals(), RANK, 1.0)[0])
    np.testing.assert_allclose(found.angle, seen, rtol=1e-9)


@pytest.mark.parametrize(
    ("ps", "sharper"),
    [([0.0], False), ([1.0, 0.0], False), ([0.9, 0.0], True), ([1.0, 0.9, 1.0, 0.0], True)],
)
def test_more_evidence_helps_where_a_better_claim_is_not_ruled_out(ps, sharper):
    how = {"trace": VALUES.sum() + 6.0, "covered": ((4, 0.0),)}
    found = judged(ritz(), chance=Asked(ps), **how)
    assert (found.p, found.sharper) == (0.0, sharper)
    assert not judged(ritz(), hidden=0.0, chance=Asked(ps), **how).sharper
    assert not judged(ritz(R=residuals() * 0), tol=0.9, chance=Asked(ps * 9), **how).sharper


def test_what_is_probable_is_blurred_by_an_image_that_is_not_exact():
    how = {"trace": VALUES.sum() + 6.0, "covered": ((4, 0.0),)}
    found = judged(ritz(), chance=Asked([0.0]), blur=0.1, **how)
    h = claims(VALUES, residuals(), RANK, 1.0)[0]
    kappa, tau, distance = couplings(VALUES, residuals(), RANK, 4.0)
    inverse = 1 / distance + (1 + tau**2) / (4 - kappa - h)
    expected = bound(VALUES, residuals(), RANK, h) / (1 - 0.1 * inverse)
    np.testing.assert_allclose(found.angle, expected, rtol=1e-9)


def test_claims_that_would_leave_the_angle_at_one_are_not_asked():
    R = 8 * residuals()
    asked = Asked(0.0)
    found = judged(ritz(R=R), trace=VALUES.sum() + 6.0, chance=asked, covered=((4, 0.0),))
    good = [h for h in claims(VALUES, R, RANK, 1.0) if bound(VALUES, R, RANK, h) < 1]
    assert len(good) < len(SHARES)
    assert len(asked.values) == min(len(good), 1)
    assert found.p == (0.0 if good else 1.0)


def test_what_is_probable_is_taken_where_the_proof_is_far_worse():
    R = residuals(1e-4)
    kappa = couplings(VALUES, R, RANK, 4.0)[0]
    hidden = 4 - kappa - 1e-3  # it proves something, but little
    poor = bound(VALUES, R, RANK, hidden)
    asked = Asked(0.0)
    told = {"trace": VALUES.sum() + 6.0, "hidden": hidden}
    better = judged(ritz(R=R), chance=asked, covered=((4, 0.0),), **told)
    assert not better.proven
    np.testing.assert_allclose(
        better.angle, bound(VALUES, R, RANK, claims(VALUES, R, RANK, 1.0)[0]), rtol=1e-6
    )
    alone = judged(ritz(R=R), **told)
    assert (alone.proven, alone.p) == (True, 0.0)
    np.testing.assert_allclose(alone.angle, poor, rtol=1e-6)
    vain = judged(ritz(R=R), chance=Asked(0.5), covered=((4, 0.0),), **told)
    assert vain.proven
    enough = judged(ritz(R=R), tol=1.1 * poor, chance=asked, covered=((4, 0.0),), **told)
    assert (enough.proven, enough.angle) == (True, alone.angle)


def test_a_proof_at_most_ten_times_worse_than_what_is_seen_is_taken():
    R = residuals(1e-4)
    kappa = couplings(VALUES, R, RANK, 4.0)[0]
    room = 0.5 * (4 - kappa - 1.0)  # of what is seen
    for times, proven in ((0.9 * SLACK, True), (1.1 * SLACK, False)):
        found = judged(
            ritz(R=R), trace=VALUES.sum() + 6.0, hidden=4 - kappa - room / times,
            chance=Asked(0.0), covered=((4, 0.0),),
        )  # fmt: skip
        assert found.proven == proven


def test_what_is_seen_is_no_guess_where_the_next_vector_is_far_from_the_truth():
    def seen(following):
        R = np.zeros((6, 4))
        R[0, 0] = R[1, 1] = 1e-3
        R[2, 2] = following
        return judged(ritz(R=R), trace=VALUES.sum() + 6.0).angle

    assert seen(0.19) < 1
    assert seen(0.2) == 1.0  # 4 - 2 is ten times that
    assert seen(0.21) == 1.0
    R = np.zeros((6, 2))
    R[0, 0] = 1.0
    assert judged(ritz(VALUES[:2], R), trace=9 + 8.0).angle < 1  # there is no next one


def test_equal_values_with_residuals_that_hide_a_gap_tell_no_angle():
    found = judged(ritz([5.0, 2.0, 2.0], residuals(count=3)), hidden=0.1)
    assert found.gap > 1e-8
    assert (found.angle, found.proven, found.p) == (1.0, False, 1.0)


# Ties: no gap after the vectors asked for.


TIED = np.array([5.0, 4.0, 4.0, 1.0])
TIED_R = np.zeros((6, 4))
TIED_R[0, 3] = 0.5


def tied(tol=1e-3, **known):
    return judged(ritz(TIED, TIED_R), tol=tol, **known)


def test_a_tie_is_proven_up_to_ten_times_the_tolerance_less_the_couplings():
    limit = 4 * (1 + SLACK * 1e-3)
    kappa = 0.5**2 / (limit - 1)
    floor = ROUNDING * EPS * 5
    most = limit - kappa - floor
    assert tied(hidden=most - 1e-12).proven
    assert not tied(hidden=most + 1e-12).proven
    assert tied(hidden=most - 1e-12).angle == 1.0
    assert (tied(hidden=most + 1e-12).p, tied(hidden=most - 1e-12).p) == (1.0, 0.0)
    blurred = limit - 0.01 - 0.5**2 / (limit - 0.01 - 1) - floor
    assert tied(hidden=blurred - 1e-12, blur=0.01).proven
    assert not tied(hidden=blurred + 1e-12, blur=0.01).proven


def test_what_is_hidden_may_be_exactly_as_large_as_the_limit_of_a_tie():
    values, R = np.array([2.0, 1.0, 0.5]), np.zeros((6, 3))

    def proven(hidden):
        known = Known(10, PLENTY, 0.0, noise=0.25, hidden=hidden - 0.25)
        return certify(Ritz(values, R, R.T @ R), 2, known, 0.5, SURE).proven

    limit = 1.0 * (1 + SLACK * 0.5)
    assert proven(limit)
    assert not proven(limit + 2.0**-10)


def test_a_gap_as_large_as_the_tolerance_is_a_tie():
    values, R = [2.0, 1.0, 0.5], np.zeros((6, 3))
    assert judged(ritz(values, R), tol=0.5, hidden=0.1).angle == 1.0
    assert judged(ritz(values, R), tol=0.499, hidden=0.1).angle < 1e-10


def test_probes_of_a_tie_are_asked_for_the_limit_less_what_may_hide_elsewhere():
    limit = 4 * (1 + SLACK * 1e-3)
    kappa = 0.5**2 / (limit - 1)
    asked = Asked(1e-9)
    found = tied(eps=1e-6, chance=asked, covered=((4, 0.01), (3, 0.3), (3, 0.02)))
    floor = ROUNDING * 1e-6 * 5
    np.testing.assert_allclose(asked.values, [limit - 0.02 - floor])
    assert limit - 0.02 > limit - kappa - 0.01
    assert (found.proven, found.p, found.angle) == (False, 1e-9, 1.0)
    asked = Asked(1e-9)
    tied(eps=1e-6, chance=asked, covered=((4, 0.01),))
    np.testing.assert_allclose(asked.values, [limit - kappa - 0.01 - floor])
    asked = Asked(1.0)
    assert tied(eps=1e-6, chance=asked).p == 1.0
    np.testing.assert_allclose(asked.values, [-floor])  # nothing covers the base


def test_the_gap_is_what_it_is_at_most():
    R = residuals()
    expected = (4 + np.linalg.norm(R[:, :2], 2) - 2) / 4
    np.testing.assert_allclose(judged(ritz(), hidden=0.1).gap, expected, rtol=1e-14)
    alone = judged(ritz(VALUES[:2], R[:, :2]), hidden=0.1)
    np.testing.assert_allclose(alone.gap, (4 + np.linalg.norm(R[:, :2], 2)) / 4, rtol=1e-14)


# Values that vanish.


def test_a_value_no_larger_than_rounding_vanishes():
    def of(noise, passing=0.0):
        R = np.zeros((6, 3))
        values = np.array([2.0, 1.0, 0.25])
        return certify(
            Ritz(values, R, R.T @ R), 2, Known(10, PLENTY, 0.0, noise, passing), 1e-8, SURE
        )

    assert of(1.0).vanishing
    assert of(1.0).gap == 0.0
    np.testing.assert_array_equal(of(1.0).residuals, [0.5, 0.5])  # relative to the largest
    assert not of(0.999).vanishing
    assert of(1.5, 0.5).vanishing
    assert not of(1.5, 0.51).vanishing  # further rounds may tell it from zero
    open_ = of(0.5, 0.5)
    assert (open_.vanishing, open_.gap) == (False, 1.0)
    np.testing.assert_array_equal(open_.residuals, [0.5, 1.0])  # all of it may be rounding
    np.testing.assert_array_equal(of(0.5, 0.75).residuals, [1.25 / 2, 1.0])
    assert of(0.5, 0.49).gap == 0.75
    np.testing.assert_array_equal(of(2.0, 0.5).residuals, [2.5 / 2.5, 2.5 / 2])


def test_of_vanishing_values_all_hidden_ones_up_to_ten_times_rounding_may_be_taken():
    values, R = [2.0, 1e-12, 1e-13], np.zeros((6, 3))
    eps, noise, trace = 1e-6, 1e-4, 50.0
    floor = ROUNDING * eps * 2 + noise
    limit = SLACK * (floor + eps * trace)
    told = {"eps": eps, "noise": noise, "trace": trace}
    assert judged(ritz(values, R), hidden=limit - floor - 1e-9, **told).proven
    assert not judged(ritz(values, R), hidden=limit - floor + 1e-9, **told).proven
    small = {"eps": EPS, "trace": trace, "noise": 0.0}  # of such a trace more digits are unknown
    zeros = [2.0, 1e-30, 1e-30]
    assert judged(ritz(zeros, R), hidden=127 * EPS * trace, **small).proven
    assert not judged(ritz(zeros, R), hidden=129 * EPS * trace, **small).proven
    larger = judged(ritz([2.0, 1e-4], R[:, :2]), tol=0.99, noise=1e-4, hidden=0.00105, eps=EPS)
    assert larger.vanishing
    assert not larger.proven  # 10.9 times the value is not less than 10 times the noise and this
    assert judged(ritz([2.0, 1e-4], R[:, :2]), tol=0.99, noise=1e-4, hidden=0.00098).proven


def test_rows_of_zeros_are_proven_to_have_nothing_hidden():
    found = judged(ritz(np.zeros(3), np.zeros((6, 3))), trace=0.0)
    assert found.vanishing
    assert found.proven
    assert found.residual < 1


# Residuals and rounding.


def test_residuals_are_relative_to_their_own_value_or_to_the_largest_if_it_vanishes():
    R = np.zeros((6, 4))
    R[0, 0], R[1, 1], R[2, 2] = 0.5, 0.04, 0.003
    values = np.array([4.0, 2.0, 1e-3, 1e-4])
    found = judged(ritz(values, R), rank=3, noise=1e-3)
    np.testing.assert_allclose(found.residuals, [0.5 / 4, 0.04 / 2, 0.003 / 4], rtol=1e-3)
    assert found.residual == found.residuals.max()
    above = judged(ritz(values, R), rank=3, noise=0.9e-3)
    np.testing.assert_allclose(above.residuals[2], 3, rtol=1e-3)
    assert Certificate(1.0, np.zeros(0), True, 0.0, 1.0, True).residual == 0.0


def test_a_residual_is_never_below_rounding():
    R = np.zeros((6, 2))
    floor = ROUNDING * 1e-6 * 4 + 1e-5 + 2e-5
    found = judged(ritz([4.0, 2.0], R), 2, eps=1e-6, noise=1e-5, passing=2e-5, hidden=0.1)
    np.testing.assert_allclose(found.residuals, [floor / 4, floor / 2])


def test_of_values_that_rounding_may_confuse_the_larger_residual_counts():
    R = np.zeros((6, 3))
    R[0, 0], R[1, 1], R[2, 2] = 1e-3, 0.2, 0.4
    noise = 0.01
    values = np.array([4.0, 4.0 - noise, 4.0 - 5 * noise])  # one and five times rounding apart
    found = judged(ritz(values, R), 1, eps=1e-12, noise=noise)
    np.testing.assert_allclose(found.residuals, [0.2 / 4], rtol=1e-6)
    R[1, 1] = 1e-4
    found = judged(ritz(values, R), 1, eps=1e-12, noise=noise)
    np.testing.assert_allclose(found.residuals, [0.4 / 5 / 4], rtol=1e-6)


def test_residuals_as_small_as_rounding_are_told():
    R = np.zeros((6, 4))
    noise = 1e-3

    def rounded(first, second, passing=0.0):
        R[0, 0], R[1, 1] = first, second
        return judged(ritz(R=R), noise=noise, passing=passing, hidden=0.1).rounded

    assert rounded(0.0, 1.99e-3)
    assert not rounded(0.0, 2.01e-3)
    assert not rounded(0.0, 2.5e-3, passing=1.0)  # further rounds may put that right
    assert not rounded(0.0, 2.5e-3, passing=noise)
    assert rounded(0.0, 1.99e-3, passing=noise)
    R[0, 0] = R[1, 1] = 2.0
    known = Known(10, PLENTY, 0.0, noise=1.0)
    assert certify(ritz([9.0, 8.0, 2.0, 1.0], R), 2, known, 1e-8, SURE).rounded  # just as much


def test_rounding_is_blamed_only_if_a_third_of_the_tolerance_is_out_of_its_reach():
    R, noise = np.zeros((6, 4)), 1e-3
    R[0, 2], R[1, 0] = 0.3, 1.9 * noise  # a coupling of the next one; what is not all rounding
    kappa, tau, distance = couplings(VALUES, R, RANK, 4.0)
    best = noise * (1 / distance + (1 + tau**2) / (4 - kappa - 1.0))  # 1 is the mean outside
    told = {"trace": VALUES.sum() + 6.0, "eps": 0.0, "noise": noise}
    assert judged(ritz(R=R), tol=2.999 * best, **told).rounded
    assert not judged(ritz(R=R), tol=3.001 * best, **told).rounded  # it is a proof that lacks
    passing = judged(ritz(R=R), tol=2.999 * best, passing=noise, **told)
    assert passing.rounded  # what further rounds put right is not held against it
    assert not judged(ritz(R=R), tol=3.001 * best, passing=noise, **told).rounded


def test_rounding_is_not_blamed_while_further_rounds_may_put_as_much_right():
    R, noise = np.zeros((6, 4)), 2.0**-10
    for columns in (4, 10):
        told = {"eps": 0.0, "noise": noise, "columns": columns}
        assert judged(ritz(R=R), passing=noise, **told).rounded
        assert not judged(ritz(R=R), passing=1.01 * noise, **told).rounded


def test_rounding_is_blamed_where_it_hides_a_gap_but_not_of_a_tie():
    R = np.zeros((6, 4))
    R[0, 0] = 1.5e-3
    same = judged(ritz([5.0, 4.0, 4.0, 1.0], R), noise=1e-3)
    assert same.gap > 1e-8
    assert same.rounded
    assert not judged(ritz([5.0, 4.0, 4.0, 1.0], R), tol=1e-3, noise=1e-3).rounded


def test_ritz_pairs_are_those_of_the_space():
    rng = np.random.default_rng(0)
    B = rng.standard_normal((9, 9))
    B = B @ B.T
    X = np.linalg.qr(rng.standard_normal((9, 4)))[0]
    found = Ritz.of(X, B @ X)
    values, turn = np.linalg.eigh(X.T @ B @ X)
    X = X @ turn[:, ::-1]
    R = B @ X - X * values[::-1]
    np.testing.assert_allclose(found.values, values[::-1])
    np.testing.assert_allclose(found.gram, R.T @ R, atol=1e-10)
    np.testing.assert_allclose(found.coupling(), np.linalg.norm(R, 2))
    first = found.leading(2)
    np.testing.assert_allclose(first.gram, R[:, :2].T @ R[:, :2], atol=1e-10)
    assert (len(first.values), first.residuals.shape) == (2, (9, 2))


def test_certainty_is_a_proof_or_a_small_chance():
    def sure(proven, p, certainty):
        return Certificate(0.0, np.zeros(1), proven, p, 1.0, False).sure(certainty)

    assert sure(True, 1.0, 0.0)
    assert sure(False, 1e-6, 1e-6)
    assert not sure(False, 1.1e-6, 1e-6)
    assert not sure(False, 1e-300, 0.0)


def test_a_bound_without_room_is_one():
    at = Bound(2.0, 0.1, 0.0, 0.5, 0.0, 1.0).at
    assert at(1.5) == at(1.6) == 1.0
    np.testing.assert_allclose(at(0.5), 0.1)
    assert Bound(2.0, 9.0, 0.0, 0.5, 0.0, 1.0).at(0.5) == 1.0  # no sine is larger


# Triangular factors.


def test_singular_vectors_of_a_factor_are_judged_by_the_gap_of_its_values():
    sizes, eps = np.array([8.0, 4.0, 2.0, 1.0]), 1e-3
    error = ROUNDING * eps * 8
    found = certify_factor(sizes, 2, eps)
    np.testing.assert_allclose(found.angle, error / 2)
    np.testing.assert_allclose(found.residuals, [2 * error / 8, 2 * error / 4])
    np.testing.assert_allclose(found.gap, 1 - 1 / 4)
    assert (found.proven, found.p, found.rounded, found.vanishing) == (True, 0.0, True, False)
    whole = certify_factor(sizes, 4, eps)
    assert (whole.angle, whole.gap, whole.rounded) == (0.0, 1.0, False)
    tied = certify_factor(np.array([8.0, 4.0, 4.0]), 2, eps)
    assert (tied.angle, tied.gap, tied.rounded) == (1.0, 0.0, True)
    near = certify_factor(np.array([8.0, 4.0, 3.99]), 2, eps)
    assert near.angle == 1.0


def test_small_singular_values_of_a_factor_vanish_up_to_rounding():
    error = ROUNDING * 2.0**-10 * 1.0
    at = certify_factor(np.array([1.0, error, 0.0]), 2, 2.0**-10)
    assert at.vanishing
    assert at.gap == 0.0
    np.testing.assert_allclose(at.residuals, [2 * error, 2 * error])
    above = certify_factor(np.array([1.0, 1.01 * error, 0.0]), 2, 2.0**-10)
    assert not above.vanishing
    np.testing.assert_allclose(above.residuals[1], 2 / 1.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nothing = certify_factor(np.zeros(3), 2, EPS)
    assert nothing.vanishing
    assert (nothing.angle, nothing.residual) == (1.0, 0.0)


def test_a_truth_beyond_rounding_of_a_factor_is_within_its_angle():
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    sizes = np.array([1.0, 0.5, 0.4999, 0.1, 1e-3, 1e-4])
    eps = 1e-6
    for _ in range(20):
        R = (np.linalg.qr(rng.standard_normal((6, 6)))[0] * sizes) @ V.T
        noise = rng.standard_normal((6, 6))
        found = np.linalg.svd(R + eps * noise / np.linalg.norm(noise, 2))[2]
        for rank in (1, 2, 3):
            sine = np.linalg.norm(V[:, rank:].T @ found[:rank].T, 2)
            assert sine <= certify_factor(sizes, rank, eps).angle


def test_warnings_are_not_made_of_values_that_are_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = judged(ritz([1.0, 1.0, 1.0], np.zeros((6, 3))), tol=0.0, hidden=0.5, eps=1e-18)
    assert (found.angle, found.proven, found.p) == (1.0, False, 1.0)


def test_a_tie_is_proven_up_to_ten_times_rounding_where_that_is_more_than_the_tolerance():
    noise, passing = 1e-4, 2e-4
    floor = ROUNDING * EPS * 5 + noise + passing
    limit = 4 + SLACK * floor
    kappa = 0.5**2 / (limit - 1)
    told = {"tol": 1e-6, "noise": noise, "passing": passing}
    most = limit - kappa - floor
    assert tied(hidden=most - 1e-9, **told).proven
    assert not tied(hidden=most + 1e-9, **told).proven


# Bounds that methods know of what is outside: merged factors, and exact matrices.


def below(A, B, slack=1e-12):
    """Whether B - A has no negative eigenvalue but rounding."""
    return np.linalg.eigvalsh(B - A)[0] >= -slack * np.linalg.norm(B, 2)


def part(rows, d, seed, decay=0.7):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, d)) * decay ** np.arange(d)


def low_rank(A, width, most):
    """The leading part of rows, and the largest value that it leaves."""
    sizes, Vt = np.linalg.svd(A)[1:]
    return LowRank(Vt[:width].T * sizes[:width], float(sizes[width] ** 2), most)


@pytest.mark.parametrize("most", [5, 6, 7, 9])
def test_a_sum_of_factors_bounds_the_sum_of_matrices(most):
    one, other = part(12, 8, 0), part(12, 8, 1)
    a, b = low_rank(one, 3, most), low_rank(other, 4, most)
    total = a + b
    B = one.T @ one + other.T @ other
    F = total.factor
    assert F.shape == (8, min(most, 7))
    assert total.width == most
    assert below(F @ F.T, B)
    assert below(B, F @ F.T + total.rest * np.eye(8))
    sizes = np.linalg.svd(np.hstack([a.factor, b.factor]), compute_uv=False)
    dropped = sizes[most] ** 2 if most < 7 else 0.0
    np.testing.assert_allclose(total.rest, a.rest + b.rest + dropped, rtol=1e-9)
    if most >= 7:
        np.testing.assert_array_equal(F, np.hstack([a.factor, b.factor]))
        assert total.rest == a.rest + b.rest


def test_a_cut_adds_what_it_drops_and_its_rounding_to_the_rest():
    F = part(8, 5, 0)
    sizes = np.linalg.svd(F, compute_uv=False)
    lost = ROUNDING * EPS * sizes[0] ** 2
    np.testing.assert_allclose(LowRank(F, 0.0, 5).cut(5).rest, lost, rtol=1e-6)
    for width in (1, 3, 4):
        kept = LowRank(F, 0.25, 5).cut(width)
        np.testing.assert_allclose(kept.rest, 0.25 + sizes[width] ** 2 + lost, rtol=1e-12)
        G = kept.factor
        np.testing.assert_allclose(np.linalg.svd(G, compute_uv=False), sizes[:width])
        assert below(G @ G.T, F @ F.T)
        assert below(F @ F.T, G @ G.T + kept.rest * np.eye(8))


def local(A):
    return LocalMatrix(Shard((A,), A.shape[1], A.dtype))


@pytest.fixture(params=["gram", "dual", "iterated"])
def way(request, monkeypatch):
    """Each of the ways to the leading eigenpairs of a shard."""
    if request.param != "gram":
        monkeypatch.setattr(local_matrix, "GRAM_COLUMNS", 12)
    if request.param == "iterated":
        monkeypatch.setattr(local_matrix, "DUAL_ENTRIES", 0)
        monkeypatch.setattr(local_matrix, "PASSES", 1)  # so that residuals are large
        monkeypatch.setattr(local_matrix, "OVERSAMPLED", 0)
    return request.param


@pytest.mark.parametrize("shape", [(12, 30), (3, 30), (10, 13)])
@pytest.mark.parametrize("width", [1, 4, 11])
def test_a_shard_bounds_what_its_leading_eigenpairs_leave(way, shape, width):
    A = part(*shape, 0, decay=0.9)
    B = A.T @ A
    F, bound = local(A).leading_factor(width)
    count = min(width, *shape)
    top = np.linalg.norm(B, 2)
    assert F.shape == (shape[1], count)
    assert below(B, F @ F.T + bound * np.eye(shape[1]), slack=0.0)
    assert below(F @ F.T, B)
    rounding = ROUNDING * EPS * top
    if way != "iterated":
        rest = np.linalg.eigvalsh(B)[::-1][count] if count < min(shape) else 0.0
        np.testing.assert_allclose(bound, rest + rounding, rtol=1e-9, atol=rounding / 2)
        np.testing.assert_allclose(F.T @ F, np.diag(np.linalg.eigvalsh(B)[::-1][:count]), atol=1e-9)
    else:
        start = np.random.default_rng(0).standard_normal((shape[1], count))
        Z = np.linalg.qr(B @ start)[0]
        factor = B @ Z @ np.linalg.solve(Z.T @ B @ Z, Z.T @ B)
        np.testing.assert_allclose(F @ F.T, factor, atol=1e-9 * top)
        lost = ROUNDING * EPS * np.linalg.eigvalsh(Z.T @ B @ Z)[-1]
        left = max(np.trace(B) - np.square(F).sum(), 0.0)
        np.testing.assert_allclose(bound, left + lost, rtol=1e-9, atol=4 * EPS * np.trace(B))
        assert bound >= lost * (1 - 1e-6)


@pytest.mark.parametrize("way", ["iterated"], indirect=True)
def test_what_a_shard_iterates_beyond_what_it_sends_is_left(way, monkeypatch):
    monkeypatch.setattr(local_matrix, "OVERSAMPLED", 3)
    A = part(12, 30, 0, decay=0.9)
    F, bound = local(A).leading_factor(2)
    assert F.shape == (30, 2)
    assert below(A.T @ A, F @ F.T + bound * np.eye(30), slack=0.0)
    np.testing.assert_allclose(bound, np.square(A).sum() - np.square(F).sum(), rtol=1e-9)


@pytest.mark.parametrize("way", ["iterated"], indirect=True)
def test_a_shard_whose_trace_rounding_made_smaller_leaves_no_less_than_rounding(way, monkeypatch):
    A = part(3, 30, 0, decay=0.9)
    trace = np.square(A).sum()
    monkeypatch.setattr(LocalMatrix, "trace", lambda self: trace * (1 - 1e-13))
    bound = local(A).leading_factor(3)[1]
    np.testing.assert_allclose(bound, ROUNDING * EPS * np.linalg.norm(A, 2) ** 2, rtol=1e-6)


def test_a_shard_without_so_many_directions_sends_fewer(way):
    A = np.vstack([part(2, 30, 0)] * 3)  # of rank 2
    F, bound = local(A).leading_factor(4)
    B = A.T @ A
    assert below(B, F @ F.T + bound * np.eye(30), slack=0.0)
    assert bound <= 1e-12
    assert F.shape[1] == 2 or way == "iterated"


@pytest.mark.parametrize("zeros", [0, 7])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_the_trace_is_that_of_the_rows_shifted_and_scaled(make, zeros):
    A = part(9, 5, 0)
    A[:zeros] *= np.eye(zeros, 5)
    shift, factor = A.mean(axis=0) + 0.5, np.linspace(0.5, 2, 5)
    matrix = LocalMatrix(Shard((make(A),), 5, A.dtype))
    np.testing.assert_allclose(matrix.trace(), np.square(A).sum())
    matrix.prepare(shift, factor)
    np.testing.assert_allclose(matrix.trace(), np.square((A - shift) * factor).sum())


@pytest.mark.parametrize("loss", [1e-10, 1e-6, 1e-3, 1e-1])
@pytest.mark.parametrize(("d", "width"), [(40, 3), (40, 30)])
def test_rounding_of_a_factor_for_the_wire_is_in_its_bound(loss, d, width):
    A = part(90, d, 0) * 0.8 ** np.arange(d)
    full, rounded = (LeadingFactor(width, 99, x)(local(A)) for x in (0.0, loss))
    assert full.width == rounded.width == 99
    F, G = full.factor, from_wire(rounded.factor)
    assert rounded.factor.nbytes < F.nbytes
    sizes = np.linalg.norm(F, axis=0)
    widths = rounded.factor[8 : 8 + len(sizes)]
    assert widths[0] > widths[-1] or width == 3 or loss == 0.1  # of a small value few digits count
    if width == 30 and loss < 1e-3:  # more may be lost of a small pair than of a large one
        assert rounded.factor.nbytes < to_bytes(F, loss * sizes.max()).nbytes
    changes = np.linalg.norm(F - G, axis=0) * sizes
    assert (changes <= loss * sizes.max() ** 2)[widths > 1].all()
    changed = np.linalg.norm(G @ G.T - F @ F.T, 2)
    assert changed <= rounded.over <= changed + 1e-14 * np.square(F).sum()
    np.testing.assert_allclose(rounded.rest, full.rest + rounded.over, rtol=1e-12)
    assert full.over == 0.0
    both = rounded + rounded
    assert both.over == both.cut(2).over == 2 * rounded.over
    np.testing.assert_allclose(both.factor, np.hstack([G, G]))
    for total, times in ((rounded, 1), (both, 2), (both.cut(width), 2)):
        H = from_wire(total.factor)
        assert below(times * A.T @ A, H @ H.T + total.rest * np.eye(d))
    assert below(G @ G.T - rounded.over * np.eye(d), A.T @ A)


def placed(*parts):
    engine = Inline()
    engine.place([Shard((A,), A.shape[1], A.dtype, n) for n, A in enumerate(parts)])
    return engine


@pytest.mark.parametrize("d", [20, 230])
def test_a_gram_matrix_tells_what_all_others_are_at_most(d):
    A = with_spectrum(d + 10, np.linspace(3, 1, d))
    (state,) = exact.gram(placed(A), 2)
    values = np.linalg.svd(A, compute_uv=False) ** 2
    X, G = state.exact
    assert X.shape == (d, 3)
    np.testing.assert_allclose(G, A.T @ (A @ X), atol=1e-10)
    assert lp.subspace_distance(np.linalg.svd(A)[2][:3].T, X) < 1e-9
    if d <= EIGH_COLUMNS:
        np.testing.assert_allclose(state.hidden, values[3], rtol=1e-12)
    else:
        np.testing.assert_allclose(state.hidden, (1 + exact.NEARLY) * values[2], rtol=1e-9)
    assert state.hidden >= values[3] * (1 - 1e-12)
    (whole,) = exact.gram(placed(A[:, :4]), 4)
    assert whole.hidden == 0.0


def test_vectors_that_are_not_the_leading_ones_are_not_believed(monkeypatch):
    A = with_spectrum(240, np.linspace(3, 1, 230))
    V = np.linalg.svd(A)[2].T
    values = np.linalg.svd(A, compute_uv=False) ** 2
    monkeypatch.setattr(exact, "lanczos", lambda *_: (values[1:4], V[:, 1:4]))
    (state,) = exact.gram(placed(A), 2)
    assert lp.subspace_distance(V[:, :2], state.basis) < 1e-9
    np.testing.assert_allclose(state.hidden, values[3], rtol=1e-9)


def test_a_factored_state_is_judged_with_the_rounding_of_the_data():
    A = with_spectrum(30, [4.0, 2.0, 1.0])
    (state,) = exact.tsqr(placed(A), 2)
    found = state.certificate(2, Known(3, 21.0, 1e-3), 1e-8, SURE)
    np.testing.assert_allclose(found.angle, ROUNDING * 1e-3 * 4)


def test_a_factored_state_knows_what_the_noise_of_a_mean_may_have_done():
    def judged(noise, sizes=(4.0, 2.0, 1.0), rank=2, eps=1e-6):
        state = exact.FactoredState(np.eye(3, rank), sizes=np.array(sizes))
        return state.certificate(rank, Known(3, 21.0, eps, noise), 1e-8, SURE)

    plain, noisy = judged(0.0), judged(0.3)
    np.testing.assert_allclose(noisy.angle, plain.angle + 0.3 / (4 - 1))
    np.testing.assert_allclose(noisy.residuals, plain.residuals + 0.3 / np.array([16.0, 4.0]))
    assert (noisy.gap, noisy.vanishing, noisy.proven) == (plain.gap, False, True)
    assert judged(9.0).angle == 1.0
    assert judged(0.3, sizes=(4.0, 2.0, 2.0)).angle == 1.0
    assert judged(0.3, rank=3).angle == 0.0  # there is nothing besides
    above, zero = judged(0.999, rank=3), judged(1.0, rank=3)
    assert (above.vanishing, zero.vanishing, zero.gap) == (False, True, 0.0)
    assert above.gap == 1.0
    np.testing.assert_allclose(above.residuals[2], 1.0, rtol=0.01)
    np.testing.assert_allclose(zero.residuals[2], 1 / 16, rtol=0.01)  # of the largest value
    np.testing.assert_allclose(judged(20.0).residuals, 1.0, rtol=0.01)  # all of it is noise
    small = judged(1e-30, sizes=(4.0, 2.0, 1e-9), rank=3)  # that rounding hides anyway
    assert (small.vanishing, small.gap) == (True, 0.0)


def test_what_is_zero_for_one_reason_or_another_has_a_residual_of_the_largest_value():
    def judged(last, noise, eps=2.0**-20):
        state = exact.FactoredState(np.eye(3), sizes=np.array([4.0, 2.0, last]))
        return state.certificate(3, Known(3, 21.0, eps, noise), 1e-8, SURE)

    error = ROUNDING * 2.0**-20 * 4
    lost, drowned = judged(error, 1e-12), judged(2 * error, 4 * error**2)
    assert (lost.vanishing, drowned.vanishing) == (True, True)
    np.testing.assert_allclose(lost.residuals[2], 2 * error / 4 + 1e-12 / 16)
    np.testing.assert_allclose(drowned.residuals[2], 2 * error / 4 + 4 * error**2 / 16)
    above = judged(1.01 * error, error**2)
    assert not above.vanishing
    np.testing.assert_allclose(above.residuals[2], 2 / 1.01 + 1 / 1.01**2)
