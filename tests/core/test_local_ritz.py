"""LocalRitz: certified in a few rounds, with an exact account of rounds, exchanges and hops."""

import numpy as np
import pytest
from helpers import LAPACK_SHAPES, LAPACK_TYPES, lapack_matrix, lapack_ratios, with_spectrum

import localpower as lp
from localpower.methods.ritz import PROPOSALS
from localpower.methods.search import outside


def slow(rows=4000, columns=120, seed=0):
    """Rows whose spectrum falls slowly: plain iteration takes hundreds of rounds."""
    rng = np.random.default_rng(seed)
    mixing = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    return (rng.standard_normal((rows, columns)) * np.arange(1, columns + 1) ** -0.5) @ mixing


def sine(A, result):
    target = np.linalg.svd(A, full_matrices=False)[2][: result.run["rank"]].T
    return lp.subspace_distance(target, result.components.T)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("sort", [False, True], ids=["shards alike", "shards sorted"])
def test_every_proposal_reaches_the_tolerance(proposal, sort):
    A = slow()
    if sort:
        A = A[np.argsort(A[:, 0])]
    options = {"tol": 1e-8, "workers": 8, "max_rounds": 100, "rng": 0}
    result = lp.svd(A, 5, f"local_ritz:proposal={proposal}", **options)
    assert result.reason == "angle"
    assert sine(A, result) <= 1e-8


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("proposal", ["anchor+residual", "all+residual"])
def test_local_work_saves_rounds_against_block_krylov_and_plain_iteration(proposal, seed):
    A = slow(seed=seed)

    def rounds(method):
        result = lp.svd(A, 5, method, tol=1e-8, workers=8, max_rounds=2000, rng=seed)
        assert result.converged
        return len(result.history)

    ritz = rounds(f"local_ritz:proposal={proposal}")
    assert ritz < rounds("block_krylov")
    target = np.linalg.svd(A, full_matrices=False)[2][:5].T

    def near(record, state):
        return lp.subspace_distance(target, state.basis) <= 1e-8

    plain = lp.svd(A, 5, method="dpi", workers=8, max_rounds=2000, rng=seed, callback=near)
    assert len(plain.history) >= min(10 * ritz, 80)


def test_rounds_exchanges_and_hops_are_counted_apart():
    A = slow()
    anchor = lp.svd(A, 5, method="local_ritz:proposal=anchor", tol=1e-8, workers=4, rng=0)
    iterate = anchor.ledger.phase("iterate")
    assert iterate.rounds == len(anchor.history)
    assert iterate.exchanges == iterate.rounds - 2  # none after the warm start, none after the end
    assert iterate.hops == iterate.rounds + iterate.exchanges
    everyone = lp.svd(A, 5, method="local_ritz:proposal=all", tol=1e-8, workers=4, rng=0)
    assert everyone.ledger.phase("iterate").exchanges == 1
    krylov = lp.svd(A, 5, method="block_krylov", tol=1e-8, workers=4, rng=0)
    assert krylov.ledger.exchanges == 0
    d, k, w, m = 120, 5, 40, 4
    up = [record.bytes_up for record in krylov.history]
    assert up == [m * d * width * 8 for width in (w, w, *[k] * (len(up) - 2))]
    assert krylov.history[0].bytes_down == 0  # shards send what they find alone


def test_the_whole_space_ends_the_iteration_by_itself():
    A = with_spectrum(40, [4, 3, 2, 1])
    result = lp.svd(A, 4, method="local_ritz", workers=3, max_rounds=50, rng=0)
    assert len(result.history) == 2
    np.testing.assert_allclose(result.singular_values, [4, 3, 2, 1], rtol=1e-13)


@pytest.mark.parametrize("rank", [1, 3])
def test_rows_of_lower_rank_than_asked_for_end_well(rank):
    A = with_spectrum(60, [3.0, 1.0] + [0.0] * 10)
    result = lp.svd(A, rank, method="local_ritz", tol=1e-8, workers=3, rng=0)
    np.testing.assert_allclose(result.singular_values, [3, 1, 0][:rank], atol=1e-14)


@pytest.mark.parametrize("shape", LAPACK_SHAPES)
@pytest.mark.parametrize("name", LAPACK_TYPES)
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_full_rank_has_lapacks_ratios(shape, name, shards, dtype):
    A = lapack_matrix(name, shape, dtype)
    options = {"method": f"local_ritz:width={shape[1]}", "workers": shards, "rng": 0}
    found = lp.svd(A, min(shape), return_u=True, **options)
    assert max(lapack_ratios(A, found).values()) < 50
    assert (np.diff(found.singular_values) <= 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(0, 1), (0, 5), (5, 0)])
def test_no_rows_or_columns_are_refused(shape, shards, dtype):
    with pytest.raises(lp.DataError, match=r"data is empty: 0 sample.*give at least one"):
        lp.svd(np.empty(shape, dtype), 1, method="local_ritz", workers=shards, rng=0)


def test_what_is_in_the_space_already_is_left_out():
    rng = np.random.default_rng(0)
    S = np.linalg.qr(rng.standard_normal((30, 4)))[0]
    new = rng.standard_normal((30, 2))
    Q = outside(np.hstack([S[:, :2], new, 0 * new]), S, 1e-13)
    assert Q.shape == (30, 2)
    np.testing.assert_allclose(Q.T @ Q, np.eye(2), atol=1e-14)
    np.testing.assert_allclose(S.T @ Q, 0, atol=1e-14)
    assert outside(S @ rng.standard_normal((4, 3)), S, 1e-13).shape[1] == 0
