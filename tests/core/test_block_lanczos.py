"""Block Lanczos: narrow blocks reach what wide ones do, and see values that are there often."""

from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sparse
from helpers import EPS, same_bits, with_spectrum

import localpower as lp
from localpower.core.certificate import Certificate
from localpower.core.evidence import draw
from localpower.core.linalg import random_basis
from localpower.engines.inline import Inline
from localpower.methods.block_lanczos import (
    BLOCK,
    LanczosState,
    _doubted,
    _repeated,
    _restarted,
    block_lanczos,
)
from localpower.methods.state import Doubt, State
from localpower.worker.shard import Shard
from localpower.worker.tasks import PowerSteps


def sine(A, result):
    target = np.linalg.svd(A, full_matrices=False)[2][: result.run["rank"]].T
    return lp.subspace_distance(target, result.components.T)


def fit(A, rank, **options):
    options = {"method": "block_lanczos", "tol": 1e-8, "workers": 3, "rng": 0} | options
    return lp.svd(A, rank, **options)


@pytest.mark.parametrize("rank", [1, 2, 5, 10])
def test_it_reaches_the_tolerance_in_fewer_bytes_than_wide_blocks(rank):
    A = with_spectrum(300, np.arange(1, 201) ** -1.0)
    narrow, wide = fit(A, rank), fit(A, rank, method="block_krylov:start=random")
    assert narrow.reason == wide.reason == "angle"
    assert sine(A, narrow) <= 1e-8
    assert narrow.ledger.phase("iterate").bytes_up < wide.ledger.phase("iterate").bytes_up
    plain, probed = (3 * 200 * columns * 8 for columns in (BLOCK, BLOCK + LanczosState.PROBES))
    assert {record.bytes_up for record in narrow.history} <= {plain, probed}


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


@pytest.mark.parametrize("center", [False, True])
def test_wider_blocks_take_fewer_rounds(center):
    A = with_spectrum(300, np.arange(1, 201) ** -0.6) + 0.1 * center
    target = A - center * A.mean(axis=0)
    runs = [fit(A, 5, method=f"block_lanczos:block={b}", center=center) for b in (2, 4, 8)]
    assert all(run.converged and sine(target, run) <= 1e-8 for run in runs)
    assert runs[0].ledger.rounds > runs[1].ledger.rounds > runs[2].ledger.rounds
    assert same_bits(fit(A, 5, center=center), runs[1])
    wide = fit(A, 5, method="block_lanczos:block=99", center=center)  # all of the start
    assert wide.converged
    assert wide.ledger.rounds <= runs[2].ledger.rounds
    assert lp.methods.BlockLanczos(block=99).widest(200, 5, 10) == 10 + LanczosState.PROBES
    with pytest.raises(ValueError, match="block=0 must be"):
        lp.methods.BlockLanczos(block=0)


def test_a_plan_takes_wider_blocks_where_they_cost_little():
    """Rows from memory, or a network of many hops; not where every column is fetched from afar."""
    assert lp.plan((5000, 5000), 10)["block_lanczos"].method == "block_lanczos:block=8"
    A = sparse.random_array((4000, 60_000), density=5e-3, rng=0, format="csr")
    near, far = (lp.plan(A, 10, tol=1e-6, latency=latency) for latency in (1e-6, 1.0))
    assert near["block_lanczos"].method == "block_lanczos"
    assert far["block_lanczos"].method == "block_lanczos:block=8"


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
            X = state.answer().basis
            true = engine.sum(PowerSteps(X, 1)).product - X * found.values[:8]
            R = found.residuals
            np.testing.assert_allclose(R.T @ R, true.T @ true, atol=1e-14)
            np.testing.assert_allclose(found.gram[:8, :8], true.T @ true, atol=1e-14)


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_run_goes_on_from_its_checkpoint(stop, tmp_path):
    A = with_spectrum(300, np.r_[np.full(6, 2.0), np.arange(1, 100) ** -0.5])
    options = {"rank": 8, "max_rounds": 60}
    whole = fit(A, **options)
    path = tmp_path / "run"
    fit(A, **options, checkpoint=path, callback=lambda record, state: record.round == stop)
    again = fit(A, **options, checkpoint=lp.Checkpoint(path, resume=True))
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


UNSURE = Certificate(0.1, np.zeros(1), False, 0.5, 0.5, False)
DOUBT = Doubt(7, 1e-3, lambda state: UNSURE)


def placed(A):
    engine = Inline()
    engine.place([Shard((A,), A.shape[1], A.dtype)])
    return engine


def true_to(state, B):
    """Whether what a state keeps of its space is true, and its residuals are."""
    S = state.space
    H, top = S.T @ B @ S, np.linalg.norm(B, 2)
    np.testing.assert_allclose(S.T @ S, np.eye(S.shape[1]), atol=1e-11)
    np.testing.assert_allclose(np.triu(state.projected), np.triu(H), atol=1e-10 * top)
    found = state.ritz()
    if found is not None:
        values, turn = state.turn()
        R = B @ S @ turn - S @ turn * values
        np.testing.assert_allclose(found.gram, R.T @ R, atol=1e-10 * top**2)
        width = state.basis.shape[1]
        np.testing.assert_allclose(found.residuals.T @ found.residuals,
                                   (R.T @ R)[:width, :width], atol=1e-10 * top**2)  # fmt: skip
    F = state.following
    np.testing.assert_allclose(F.T @ np.hstack([S, F]), np.eye(F.shape[1], S.shape[1] + F.shape[1],
                               S.shape[1]), atol=1e-11)  # fmt: skip
    if state.probes is not None:
        base, inside = state.probes.base, state.inside
        np.testing.assert_allclose(inside, (S.T @ base)[: len(inside)], atol=1e-10)


@pytest.mark.parametrize("doubt", [None, DOUBT], ids=["alone", "with probes"])
@pytest.mark.parametrize("width", [2, 6])
def test_all_that_a_state_knows_of_its_space_is_true_through_restarts(doubt, width):
    d = 150
    A = with_spectrum(160, np.linspace(1.5, 1.0, d))
    start = State(random_basis(d, width, np.random.default_rng(0)))
    sizes = []
    for state in islice(block_lanczos(placed(A), start, 1, min(BLOCK, width), doubt), 30):
        true_to(state, A.T @ A)
        sizes.append(state.space.shape[1])
    cut = [after for before, after in pairwise(sizes) if after < before]
    if doubt is None:
        assert set(cut) == {4 * width}
        assert max(sizes) <= 8 * width
    else:
        assert state.draws >= 1
        assert max(sizes) > 8 * width  # probes have the space as their base


def spread_out(values, couplings):
    """A state of a diagonal matrix: residuals of its Ritz vectors are the couplings."""
    c = len(values)
    return LanczosState(
        np.eye(2 * c, 3), block=2, space=np.eye(2 * c, c), projected=np.diag(values),
        joint=np.diag(couplings), following=np.eye(2 * c)[:, c:],
    )  # fmt: skip


def test_a_restart_bounds_what_it_gives_up():
    values, couplings = np.array([5.0, 4.0, 3.0, 2.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    state = replace(spread_out(values, couplings), hidden=1.5, inside=np.eye(5)[:, :2])
    after = _restarted(state, state.turn()[1][:, :3])
    bound = np.linalg.eigvalsh([[2.0, 0.5], [0.5, 1.5]])[-1]
    np.testing.assert_allclose(after.hidden, bound)
    np.testing.assert_allclose(np.diag(after.projected), values[:3])
    assert after.space.shape == (10, 3)
    np.testing.assert_allclose(np.abs(after.inside), np.eye(3)[:, :2], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(after.joint, axis=0), couplings[:3])
    kept = _restarted(state, state.turn()[1])
    assert kept.hidden == 1.5


def test_values_that_are_about_the_same_are_seen_once_they_are_ripe():
    def repeated(values, couplings=(0, 0, 0), rank=3):
        state = spread_out(np.array(values, float), np.array(couplings, float))
        return _repeated(state, rank, EPS)

    assert repeated([3.0, 2.0, 1.99])
    assert repeated([3.0, 2.0, 1.981])
    assert not repeated([3.0, 2.0, 1.97])
    assert not repeated([3.0, 2.0, 1.0])
    assert repeated([3.0, 3.0, 1.0], rank=1)
    assert not repeated([3.0, 2.0, 2.0], rank=1)
    assert repeated([3.0, 2.0, 1.99], (0, 0, 0.9))
    assert not repeated([3.0, 2.0, 1.99], (0, 0, 1.1))
    assert not repeated([3.0, 1e-16, 1e-16])


def test_what_probes_have_missed_joins_the_block_and_they_are_drawn_anew():
    d = 20
    B = np.diag(np.r_[9.0, 5.0, 4.0, 8.0, np.linspace(1, 0.1, 16)])
    S = np.eye(d, 3)
    probes = draw(S, (7, 1), 1, EPS)
    for _ in range(5):
        probes = probes.learn(probes.following, B @ probes.following)
    following = np.eye(d)[:, 10:11]
    state = LanczosState(
        np.eye(d, 3), block=1, space=S, projected=B[:3, :3], joint=np.zeros((1, 1)),
        following=following, probes=probes, draws=1, inside=np.eye(3),
    )  # fmt: skip
    after = _doubted(state, DOUBT, 2, EPS)
    F = after.following
    assert F.shape == (d, 2)
    assert np.linalg.norm(F[3]) > 0.99
    np.testing.assert_allclose(F @ (F.T @ following), following, atol=1e-12)
    assert after.draws == 2
    calm = replace(state, probes=replace(probes, projected=0 * probes.projected))
    assert _doubted(calm, DOUBT, 2, EPS).draws == 1


def test_a_block_that_sees_no_more_lets_the_rest_of_the_start_join():
    A = np.diag(np.arange(8.0, 0.0, -1.0))
    states = list(islice(block_lanczos(placed(A), State(np.eye(8, 4)), 2, 2), 9))
    assert [(state.space.shape[1], state.whole) for state in states] == [(2, True), (4, True)]


def test_probes_go_on_after_the_space_is_all_that_the_start_sees():
    B = np.diag(np.r_[4.0, 3.0, 2.5, np.linspace(2, 1, 57)])
    states = list(islice(block_lanczos(placed(np.sqrt(B)), State(np.eye(60, 3)), 2, 3, DOUBT), 9))
    assert states[0].space.shape[1] == states[-1].space.shape[1] == 3
    assert states[-1].probes.degree >= 5
    assert [state.round for state in states] == list(range(1, 10))
    alone = block_lanczos(placed(np.sqrt(B)), State(np.eye(60, 3)), 2, 3)
    assert len(list(islice(alone, 9))) == 1


def test_a_block_sees_that_a_value_is_there_more_often_than_it_has_columns():
    A = with_spectrum(80, np.r_[np.full(5, 3.0), 0.8 ** np.arange(1, 56)])
    start = State(random_basis(60, 6, np.random.default_rng(0)))
    states = list(islice(block_lanczos(placed(A), start, 5, 2), 12))
    assert states[-1].whole
    np.testing.assert_allclose(states[-1].turn()[0][:5], 9.0, rtol=1e-6)


@pytest.mark.parametrize("method", ["block_lanczos", "block_krylov"])
def test_slow_spectra_take_hardly_a_round_more_for_being_sure(method):
    rng = np.random.default_rng(0)
    mixing = np.linalg.qr(rng.standard_normal((400, 400)))[0]
    A = (rng.standard_normal((2000, 400)) * np.arange(1.0, 401) ** -0.3) @ mixing
    truth = np.linalg.svd(A, full_matrices=False)[2][:5].T
    method += ":start=random" * (method == "block_krylov")
    for seed in range(4):
        likely, sure = (
            lp.svd(A, 5, method=method, tol=1e-8, certainty=p, workers=8, rng=seed)
            for p in (1, 1e-6)
        )
        assert sure.converged
        assert lp.subspace_distance(truth, sure.components.T) <= sure.certificate.angle
        assert len(sure.history) <= len(likely.history) + 1, seed
