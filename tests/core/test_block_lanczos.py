"""Block Lanczos: narrow blocks reach what wide ones do, and see values that are there often."""

import numpy as np
import pytest
from helpers import same_bits, with_spectrum

import localpower as lp
from localpower.core.block_lanczos import BLOCK, block_lanczos
from localpower.core.linalg import random_basis
from localpower.core.local_power import State
from localpower.core.shard import Shard
from localpower.core.tasks import PowerSteps
from localpower.engines.inline import Inline


def sine(A, result):
    target = np.linalg.svd(A, full_matrices=False)[2][: result.run["rank"]].T
    return lp.subspace_distance(target, result.components.T)


def fit(A, rank, **options):
    options = {"method": "block_lanczos", "tol": 1e-8, "workers": 3, "rng": 0} | options
    return lp.svd(A, rank, **options)


@pytest.mark.parametrize("rank", [1, 2, 5, 10])
def test_it_reaches_the_tolerance_in_fewer_bytes_than_wide_blocks(rank):
    A = with_spectrum(300, np.arange(1, 201) ** -1.0)
    narrow, wide = (fit(A, rank, method=name) for name in ("block_lanczos", "block_krylov"))
    assert narrow.reason == wide.reason == "angle"
    assert sine(A, narrow) <= 1e-8
    assert narrow.ledger.phase("iterate").bytes_up < wide.ledger.phase("iterate").bytes_up
    assert all(record.bytes_up == 3 * 200 * BLOCK * 8 for record in narrow.history)


@pytest.mark.parametrize("often", [3, 4, 5, 6, 9])
@pytest.mark.parametrize("before", [0, 2, 7])
@pytest.mark.parametrize("apart", [0.0, 1e-12, 1e-5])
def test_all_vectors_of_a_value_that_is_there_often_are_found(often, before, apart):
    values = np.r_[5 - 0.2 * np.arange(before), np.full(often, 3.0), 0.8 ** np.arange(1, 90)]
    values[before : before + often] += apart * np.arange(often)[::-1]
    A = with_spectrum(200, values)
    result = fit(A, before + often, max_rounds=100)
    assert result.reason == "angle"
    assert sine(A, result) <= 1e-7
    rough = fit(A, before + often, tol=0.1, max_rounds=100)
    assert rough.converged
    assert sine(A, rough) <= 0.1


def test_a_full_space_restarts_and_still_converges():
    A = with_spectrum(600, 1 - 0.001 * np.arange(500))
    result = fit(A, 2, tol=1e-6, max_rounds=200)
    assert len(result.history) * BLOCK > 8 * 7
    assert result.reason == "angle"
    assert sine(A, result) <= 1e-6


def test_residuals_are_those_of_the_vectors():
    A = with_spectrum(100, 0.9 ** np.arange(60))
    with Inline() as engine:
        engine.place([Shard((A,), 60, A.dtype)])
        start = State(random_basis(60, 8, np.random.default_rng(0)))
        states = block_lanczos(engine, start, 3)
        for state, _ in zip(states, range(20), strict=False):
            found = state.ritz()
            if found is None:
                continue
            values, R = found
            X = state.answer().basis
            true = engine.sum(PowerSteps(X, 1)).product - X * values
            np.testing.assert_allclose(R.T @ R, true.T @ true, atol=1e-14)


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_run_goes_on_from_its_checkpoint(stop, tmp_path):
    A = with_spectrum(300, np.r_[np.full(6, 2.0), np.arange(1, 100) ** -0.5])
    options = {"rank": 8, "max_rounds": 60}
    whole = fit(A, **options)
    path = tmp_path / "run"
    fit(A, **options, checkpoint=path, callback=lambda record, state: record.round == stop)
    again = fit(A, **options, checkpoint=path, resume=True)
    assert same_bits(whole, again)
    assert len(again.history) == len(whole.history) > 6


def test_callbacks_see_vectors_and_a_warm_start_saves_rounds():
    A = with_spectrum(200, 0.9 ** np.arange(80))
    target = np.linalg.svd(A)[2][:3].T
    seen = []
    cold = fit(A, 3, callback=lambda record, state: seen.append(state.basis[:, :3].copy()))
    assert lp.subspace_distance(target, seen[-1]) <= 1e-8
    warm = fit(A + 1e-6, 3, warm_start=cold)
    assert len(warm.history) < len(cold.history)


def test_small_and_degenerate_rows():
    for A in (
        np.eye(30),
        np.zeros((5, 7)),
        np.ones((9, 20)),
        np.diag([3.0, 2, 1]),
        np.ones((1, 1)),
    ):
        k = min(A.shape)
        result = lp.svd(A, min(k, 12), method="block_lanczos", tol=1e-8, rng=0)
        values = np.linalg.svd(A)[1][: min(k, 12)]
        np.testing.assert_allclose(result.singular_values, values, atol=1e-12)
