"""What a certificate reports is never much better than the truth, on any spectrum and scale."""

import importlib.util
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import EPS, random_start, with_spectrum

import localpower as lp
from localpower.core.certificate import Known, Ritz, certify, rayleigh_ritz

FILE = Path(__file__).parents[2] / "benchmarks" / "certificates.py"
ITERATIVE = ["local_ritz", "block_krylov", "block_lanczos", "dpi", "local_power"]


@pytest.fixture(scope="module")
def certificates():
    spec = importlib.util.spec_from_file_location("certificates", FILE)
    module = sys.modules["certificates"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["certificates"]


def judged(X, G, rank, trace, tol=1e-8, **known):
    """What is certified of an orthonormal basis and its image."""
    return certify(Ritz.of(X, G), rank, Known(len(X), float(trace), EPS, **known), tol, 1e-6)


def true_sine(A, V):
    """Sine of the angle to the leading right singular vectors, from a QR-based SVD."""
    target = np.linalg.svd(A.astype(float), full_matrices=False)[2][: V.shape[1]].T
    return lp.subspace_distance(target, V)


def test_two_hundred_matrices_of_all_kinds_are_judged_fairly(certificates):
    rows = [certificates.examine(number) for number in range(200)]
    assert not [row for row in rows if any(getattr(row, name) for name in certificates.VERDICTS)]
    assert {row.kind for row in rows} == set(certificates.KINDS)
    assert {row.reason for row in rows} >= {
        "angle",
        "residual",
        "max_rounds",
        "stalled",
        "rounding",
    }


def test_a_hundred_matrices_that_hide_something_mislead_nobody(certificates):
    first = certificates.ADVERSARIAL
    rows = [certificates.examine(number) for number in range(first, first + 100)]
    verdicts = certificates.VERDICTS[1:]
    assert not [row for row in rows if any(getattr(row, name) for name in verdicts)]
    assert {row.kind for row in rows} == set(certificates.HIDDEN)
    assert not [row for row in rows if row.angle_too_small and row.p <= row.certainty]


def test_what_is_unfair_is_found(certificates):
    A = with_spectrum(40, [3, 2, 1, 0.5])
    good = lp.svd(A, 2, method="local_ritz", tol=1e-8, workers=2, rng=0)
    turn = np.linalg.qr(np.eye(4) + 1e-3)[0]
    bad = replace(good, components=good.components @ turn)
    verdicts = certificates.VERDICTS[:4]
    assert not any(certificates.judged(A, good, 1e-8)[name] for name in verdicts)
    assert all(certificates.judged(A, bad, 1e-8)[name] for name in verdicts)


def test_the_campaign_goes_on_where_it_stopped(certificates, tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "BATCH", 2)
    path = tmp_path / "rows.csv"
    rows = certificates.run(6, path)
    first = [next(rows) for _ in range(3)]  # and the fourth, which is of the same batch
    rows.close()
    again = list(certificates.run(6, path))
    assert [row.seed for row in first + again] == [0, 1, 2, 4, 5]
    assert not list(certificates.run(6, path))
    assert [row["seed"] for row in certificates.listed(path)] == list("012345")


def test_the_reported_angle_is_never_below_the_true_one_by_more_than_ten(certificates):
    for number in range(300):
        rng = np.random.default_rng(number)
        d = int(rng.integers(2, 13))
        rank = int(rng.integers(1, min(d, 5)))
        values = certificates.spectrum(rng, str(rng.choice(certificates.KINDS)), d, rank)
        A = with_spectrum(40, values, number)
        X = np.linalg.qr(rng.standard_normal((d, int(rng.integers(rank + 1, d + 1)))))[0]
        for _ in range(int(rng.integers(1, 31))):
            X = np.linalg.qr(A.T @ (A @ X))[0]
        X, G = rayleigh_ritz(X, A.T @ (A @ X))[1:]
        found = judged(X, G, rank, np.square(A).sum())
        gap = (values[rank - 1] ** 2 - values[rank] ** 2) / max(values[0] ** 2, 1e-300)
        if found.proven or gap > 1e-6:
            sine = true_sine(A, X[:, :rank])
            assert sine <= 10 * found.angle + 10 * EPS / max(gap, EPS), number


@pytest.mark.parametrize("method", ITERATIVE)
@pytest.mark.parametrize("seed", range(5))
def test_a_gap_just_above_the_tolerance_is_not_taken_for_a_tie(method, seed):
    tol = 1e-4
    A = with_spectrum(60, np.sqrt([1, 0.9, 0.8, 0.8 - 1.5 * tol, *0.75 * 0.97 ** np.arange(16)]))
    method += ":schedule=halving" * (method == "local_power")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        options = {"method": method, "tol": tol, "max_rounds": 300, "workers": 3}
        result = lp.svd(A, 3, rng=seed, **options)
    if result.converged:
        assert true_sine(A, result.components.T) <= 10 * tol


def test_the_gap_is_never_said_to_be_below_the_true_one():
    s, t, gap = 1e-4, 2e-3, 1e-3
    B = np.diag([1, 1 - gap, 0, 0])
    X = np.array([[np.sqrt(1 - s**2), 0], [0, np.sqrt(1 - t**2)], [s, 0], [0, t]])
    X, G = rayleigh_ritz(X, B @ X)[1:]
    assert judged(X, G, 1, np.trace(B)).gap >= gap
    alone = judged(X[:, :1], G[:, :1], 1, np.trace(B))
    assert alone.gap >= gap  # nothing is known of what follows


@pytest.mark.parametrize("low", [1, 2, 4])
def test_a_start_that_meets_a_part_of_a_cluster_is_not_taken_for_the_answer(low):
    rank, d = 3, low + 7
    values = np.r_[1 - 1e-6 * np.arange(7), 0.3 * np.ones(low)]
    for seed in range(100):  # of 7 nearly equal values, 3 are in any span of rank + low columns
        X = random_start(d, rank + low, seed)
        X, G = rayleigh_ritz(X, values[:, None] * X)[1:]
        found = judged(X, G, rank, values.sum())
        assert lp.subspace_distance(np.eye(d)[:, :rank], X[:, :rank]) <= 10 * found.angle


def test_residuals_in_a_tie_are_those_of_any_vector_that_may_be_taken():
    spread = 1e-5
    B = np.diag([1 + spread, 1, 1 - spread - 8 * EPS, 0.5])
    X = np.array([[0, 1, 0, 0], [np.sqrt(0.5), 0, np.sqrt(0.5), 0]]).T
    theta, X, G = rayleigh_ritz(X, B @ X)
    assert 1 - 8 * EPS < theta[1] < theta[0] < 1 + EPS
    assert judged(X, G, 1, np.trace(B)).residual >= spread / 2


def test_a_tie_at_the_rank_converges_on_residuals():
    A = with_spectrum(60, [5, 2, 2, 2, 1, 0.5])
    result = lp.svd(A, 2, method="local_ritz", tol=1e-8, workers=3, rng=0)
    assert result.reason == "residual"
    assert result.history[-1].residual <= 1e-8
    S = np.linalg.svd(A, compute_uv=False)[:2]
    np.testing.assert_allclose(result.singular_values, S, rtol=1e-8)


def test_the_trace_proves_what_it_can():
    proven = lp.svd(with_spectrum(50, [9, 8, 1, 0.1, 0.1]), 2, method="dpi", tol=1e-6, rng=0)
    assert proven.certificate.proven
    assert proven.history[-1].proven
    wide = np.random.default_rng(0).standard_normal((200, 100))
    options = {"tol": 1e-6, "max_rounds": 100, "workers": 8, "rng": 0}
    probable = lp.svd(wide, 2, method="block_lanczos", **options).certificate
    assert not probable.proven
    assert 0 < probable.p <= 1e-6


def test_local_steps_that_stall_end_with_a_warning_that_says_what_to_do():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((300, 30)) * 0.9 ** np.arange(30)
    with pytest.warns(lp.ConvergenceWarning, match=r"stalled.*schedule='halving'.*'local_ritz'"):
        result = lp.svd(
            A, 3, method="local_power:steps=8", tol=1e-8, max_rounds=200, workers=6, rng=0
        )
    assert (result.converged, result.reason) == (False, "stalled")
    assert len(result.history) < 60


def test_budgets_stop_a_run_and_say_so():
    A = np.random.default_rng(0).standard_normal((300, 30))
    with pytest.warns(lp.ConvergenceWarning, match="raise the bytes or seconds of the budget"):
        result = lp.svd(
            A, 3, method="dpi", tol=1e-12, budget=lp.Budget(bytes=50_000), workers=3, rng=0
        )
    assert result.reason == "budget"
    spent = [record.bytes_up + record.bytes_down for record in result.history]
    assert sum(spent[:-1]) <= 50_000 < sum(spent)
    with pytest.raises(ValueError, match="Budget seconds=0 must be a number above 0"):
        lp.svd(A, 3, budget=lp.Budget(seconds=0))


def test_the_check_of_local_steps_costs_one_product_more_in_the_upload():
    A = np.random.default_rng(0).standard_normal((300, 20))
    plain = lp.svd(A, 3, method="local_power:steps=4,width=8", max_rounds=1, workers=3, rng=0)
    with pytest.warns(lp.ConvergenceWarning):
        checked = lp.svd(
            A, 3, method="local_power:steps=4,width=8", max_rounds=1, workers=3, rng=0, tol=1e-12
        )
    words = [r.ledger.phase("iterate").words_up for r in (plain, checked)]
    assert words == [3 * 2 * 20 * 8, 3 * 3 * 20 * 8]
    np.testing.assert_array_equal(plain.basis, checked.basis)
