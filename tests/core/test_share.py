"""A share instead of a number: as many components as explain it, and claims that hold."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from helpers import ENGINES, same_bits, with_spectrum

import localpower as lp
from localpower.core.certificate import Known, Ritz
from localpower.core.share import Reach, Share, ceiling
from localpower.engines.inline import Inline
from localpower.methods import BlockLanczos, block_lanczos
from localpower.methods.base import Method
from localpower.methods.block_lanczos import LanczosState
from localpower.methods.growing import Growth
from localpower.methods.ritz import RitzState
from localpower.show.shares import percent, reach_text
from localpower.worker.shard import Shard
from localpower.worker.tasks import LeadingFactor

GROWING = ["auto", "local_ritz", "block_krylov", "block_krylov:start=random", "block_lanczos"]
GROWING += ["gram", "tsqr", "dpi", "local_power:schedule=halving"]
J = np.arange(1.0, 61)
SPECTRA = {
    "polynomial": J**-0.8,
    "exponential": 0.85**J,
    "steps": 2.0 ** -(J // 7),
    "flat": 1 + 0.002 * J[::-1],
    "one large": np.where(J == 1, 5.0, 0.9**J),
    "six large": np.where(J <= 6, 10.0, 1.0),  # of which all eigenpairs are more than are merged
}


def counted(X, part):
    """The number of LAPACK, by scikit-learn's rule, and the distance from a boundary."""
    sizes = np.linalg.svd(X, compute_uv=False)
    sums = np.cumsum(sizes**2) / np.sum(sizes**2)
    return int(np.searchsorted(sums, part, side="right")) + 1, np.abs(sums - part).min()


def quiet(X, part, method, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        return lp.svd(X, part, method, **({"workers": 4, "rng": 0} | options))


@pytest.mark.parametrize("method", GROWING)
@pytest.mark.parametrize("name", SPECTRA)
def test_every_method_finds_the_number_of_lapack_in_no_more_rounds(name, method):
    X = with_spectrum(400, SPECTRA[name], seed=1)
    for part in (0.3, 0.9):
        count, boundary = counted(X, part)
        assert boundary > 1e-8
        options = {"tol": 1e-4, "max_rounds": 300}
        found = quiet(X, part, method, **options)
        told = quiet(X, count, method, **options)
        assert len(found.components) == found.run["rank"] == count
        assert len(found.history) <= 1.3 * len(told.history)
        assert found.converged or not told.converged
        assert found.reach.least(1e-6)
        sums = np.cumsum(np.linalg.svd(X, compute_uv=False) ** 2) / np.sum(X**2)
        assert part < found.reach.reached <= sums[count - 1] + 1e-14
        if count > 1:
            assert sums[count - 2] - 1e-14 <= found.reach.fewer <= part


def test_narrow_blocks_count_before_they_have_as_many_columns_as_a_guess():
    four = LanczosState(
        np.eye(40, 12),
        rank=7,
        space=np.eye(40, 4),
        projected=np.diag([8.0, 4.0, 0.5, 0.4]),
        following=np.eye(40, 8)[:, 4:],
        joint=1e-3 * np.eye(4),
    )
    assert four.ritz() is None  # less than 12: no certificate yet
    growth = Growth(Share(0.9, 13.0, 40), np.random.default_rng(0))
    assert growth.grown(BlockLanczos(), four, 7).rank == 2
    nothing = LanczosState(np.eye(40, 12), rank=7, space=np.eye(40, 0))
    assert growth.grown(BlockLanczos(), nothing, 7) is nothing


@pytest.mark.parametrize("hidden", [1e-6, 1e-12])
def test_what_is_dropped_of_a_start_may_hide_besides_unless_the_start_may_be_the_answer(hidden):
    values = 0.9 ** np.arange(60)
    every = RitzState(np.eye(60, 20), start=np.eye(60), values=values, hidden=hidden, rank=15)
    after = every.grown(2, 7, np.random.default_rng(0))
    if hidden < 1e-9:
        assert after.hidden == hidden
        assert len(after.values) == after.start.shape[1] == 60
    else:
        kept = after.start.shape[1]
        assert kept < 60
        assert after.hidden == hidden + values[kept]


@pytest.mark.parametrize("name", ["housing", "splice"])
@pytest.mark.parametrize("method", ["auto", "local_ritz", "block_lanczos", "gram", "tsqr", "dpi"])
def test_data_sets_have_the_number_of_lapack(data_set, name, method):
    rows = np.load(data_set(name))["X"].astype(float)
    rows = rows / np.abs(rows).max(axis=0)
    count, boundary = counted(rows - rows.mean(axis=0), 0.9)
    assert boundary > 1e-8
    options = {"tol": 1e-4, "max_rounds": 2000, "center": True}
    found = quiet(rows, 0.9, method, **options)
    assert len(found.components) == count
    assert len(found.history) <= 1.3 * len(quiet(rows, count, method, **options).history)


@pytest.mark.parametrize("part", [0.05, 0.5, 0.77, 0.95, 0.999])
def test_the_rule_is_that_of_scikit_learn(part):
    decomposition = pytest.importorskip("sklearn.decomposition")
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((40, 12)) * rng.exponential(size=12) ** 2 + 3
        theirs = decomposition.PCA(part, svd_solver="full").fit(X)
        ours = lp.pca(X, part, "tsqr", rng=0)
        assert len(ours.components) == theirs.n_components_
        np.testing.assert_allclose(ours.singular_values, theirs.singular_values_)


def starting_with(monkeypatch, count):
    for kind in (Method, block_lanczos.BlockLanczos):
        monkeypatch.setattr(kind, "first_rank", lambda self, columns, limit: min(count, limit))


RESTLESS = ["local_ritz", "local_ritz:proposal=all+residual", "local_ritz:proposal=anchor"]
RESTLESS += ["local_ritz:wire=float32", "block_krylov:start=random", "block_lanczos", "dpi"]
RESTLESS += ["dpi:wire=float32", "local_power:schedule=adaptive"]


@pytest.mark.parametrize("method", RESTLESS)
def test_a_run_that_begins_with_too_few_grows_and_does_not_start_again(monkeypatch, method):
    starting_with(monkeypatch, 1)
    X = with_spectrum(500, 0.9 ** np.arange(80), seed=2)
    count, _ = counted(X, 0.97)
    seen = []

    def watch(record, state):
        seen.append((record.round, state.rank))

    found = quiet(X, 0.97, method, tol=1e-5, max_rounds=300, callback=watch)
    assert found.converged
    assert len(found.components) == count == seen[-1][1]
    assert found.reach.least(1e-6)
    assert found.run["width"] >= count
    assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
    tasks = [record.task for record in found.ledger.phase("iterate").records]
    assert tasks.count("LeadingFactor") == ("start=random" not in method and "ritz" in method)
    V = np.linalg.svd(X)[2][:count].T
    assert lp.subspace_distance(V, found.components.T) <= 1e-4


def test_a_merged_start_that_is_too_narrow_gets_random_columns(monkeypatch):
    starting_with(monkeypatch, 1)
    X = with_spectrum(300, SPECTRA["flat"], seed=3)
    count, _ = counted(X, 0.9)
    assert count > 8 * 1 + 5  # more than the first block can have
    found = quiet(X, 0.9, "local_ritz", tol=1e-6, max_rounds=100)
    assert len(found.components) == count
    assert found.converged


@pytest.mark.parametrize("method", ["auto", "local_ritz", "block_lanczos", "dpi"])
@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_engines_give_the_same_bits(engine, method):
    X = with_spectrum(200, 0.8 ** np.arange(30), seed=4)
    options = {"tol": 1e-6, "max_rounds": 100}
    here = quiet(X, 0.9, method, engine="inline", **options)
    method = here.run["method"]
    assert same_bits(quiet(X, 0.9, method, engine=engine, **options),
                     quiet(X, 0.9, method, engine="inline", **options))  # fmt: skip


@pytest.mark.parametrize(
    "method", ["local_ritz:start=merged:6", "block_krylov:start=random", "block_lanczos", "dpi"]
)
def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits(monkeypatch, tmp_path, method):
    starting_with(monkeypatch, 2)
    X = with_spectrum(300, 0.9 ** np.arange(80), seed=5)  # more than shards send all of at once
    whole = quiet(X, 0.95, method, tol=1e-7, max_rounds=200)
    for after in range(1, len(whole.history)):
        place = tmp_path / f"{after}.ckpt"
        options = {"tol": 1e-7, "checkpoint": lp.Checkpoint(place, resume=True)}
        quiet(X, 0.95, method, max_rounds=after, **options)
        again = quiet(X, 0.95, method, max_rounds=200, **options)
        assert same_bits(whole, again)
        assert again.reach == whole.reach
    with pytest.raises(lp.DataError, match="share"):
        quiet(X, 0.9, method, max_rounds=200, **options)


def test_a_warm_start_may_have_another_number():
    X = with_spectrum(300, 0.9 ** np.arange(40), seed=5)
    earlier = lp.svd(X, 3, "tsqr")
    count, _ = counted(X, 0.9)
    for method in ("dpi", "local_ritz", "block_lanczos"):
        found = quiet(X, 0.9, method, tol=1e-6, max_rounds=200, warm_start=earlier)
        assert len(found.components) == count
        assert found.converged


# What is claimed ---------------------------------------------------------------------------------


def a_space(B, columns, seed, steps):
    """Ritz pairs of a Krylov space, and the largest eigenvalue outside of it."""
    rng = np.random.default_rng(seed)
    Z = np.linalg.qr(rng.standard_normal((len(B), columns)))[0]
    for _ in range(steps):
        Z = np.linalg.qr(B @ Z)[0]
    rest = np.eye(len(B)) - Z @ Z.T
    return Ritz.of(Z, B @ Z), float(np.linalg.eigvalsh(rest @ B @ rest)[-1])


@pytest.mark.parametrize("name", SPECTRA)
def test_bounds_of_sums_hold_whatever_the_space(name):
    rng = np.random.default_rng(6)
    V = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    values = SPECTRA[name] ** 2
    B = (V * values) @ V.T
    sums = np.cumsum(np.sort(values)[::-1])
    tight = 0
    for seed in range(40):
        columns, steps = int(rng.integers(2, 59)), int(rng.integers(0, 30))
        found, hidden = a_space(B, columns, seed, steps)
        for count in range(1, columns):
            for level in (
                found.values[count - 1],
                found.values[count],
                1.1 * found.values[count - 1],
            ):
                bound = ceiling(found, count, float(level), hidden, 1e-15)
                assert bound >= sums[count - 1] * (1 - 1e-12)
                tight += bound <= sums[count - 1] * (1 + 1e-3)
    assert tight > 100  # and they say something


def test_what_is_judged_is_true_of_every_space():
    rng = np.random.default_rng(7)
    decided = wrong = 0
    for trial in range(150):
        values = np.sort(rng.exponential(size=25) ** rng.choice([1.0, 3.0, 6.0]))[::-1]
        if trial % 5 == 0:
            values[5:9] = values[5]
        V = np.linalg.qr(rng.standard_normal((25, 25)))[0]
        B, trace = (V * values) @ V.T, float(values.sum())
        found, hidden = a_space(B, int(rng.integers(4, 25)), trial, int(rng.integers(0, 40)))
        part = float(rng.uniform(0.2, 0.99))
        share = Share(part, trace, 25)
        rank = share.count(found.values)
        if rank is None:
            continue
        known = Known(25, trace, 2e-16, hidden=hidden if trial % 2 else float("inf"))
        reach = share.judge(found, rank, known, 1e-6)
        sums = np.cumsum(values) / trace
        assert part < reach.reached <= sums[rank - 1] + 1e-13
        true = int(np.searchsorted(sums, part, side="right")) + 1
        if reach.proven:
            assert rank == 1 or reach.fewer >= sums[rank - 2] - 1e-13
        if reach.least(1e-6):
            decided += 1
            wrong += rank != true
    assert decided > 40
    assert wrong == 0


def test_nothing_is_claimed_of_fewer_where_something_may_be_hidden():
    values = np.array([4.0, 3.0, 2.0, 1.0])
    nothing = np.zeros((4, 4))
    share = Share(0.6, 20.0, 9)
    for hidden, sure in ((0.5, True), (4.5, False), (float("inf"), False)):
        reach = Share(0.4, 20.0, 9).judge(
            Ritz(values, nothing, nothing), 3, Known(9, 20.0, 2e-16, hidden=hidden), 0.0
        )
        assert (reach.proven and reach.fewer <= 0.4) == sure
    assert share.count(values) is None
    guess = Share(0.4, 20.0, 9).judge(
        Ritz(values, nothing, nothing), 3, Known(9, 20.0, 2e-16), 1e-6
    )
    assert not guess.proven
    assert guess.p == 1
    assert not guess.least(1e-6)
    assert not guess.settled


@pytest.mark.parametrize("method", ["local_ritz", "block_lanczos", "dpi", "tsqr", "gram", "auto"])
def test_a_heavy_direction_that_one_shard_has_alone_is_counted(method):
    rng = np.random.default_rng(8)
    X = rng.standard_normal((800, 40)) * 0.8 ** np.arange(40)
    X[-1] = 0
    X[-1, 39] = 60.0  # one row, in the last shard, in a direction that no other has
    count, _ = counted(X, 0.9)
    without, _ = counted(np.delete(X, -1, axis=0), 0.9)
    assert count != without
    found = quiet(X, 0.9, method, tol=1e-6, max_rounds=300)
    assert len(found.components) == count
    assert np.abs(found.components[:, 39]).max() > 0.99


def test_what_further_rounds_can_put_right_does_not_settle_a_number():
    nothing, known = np.zeros((4, 4)), Known(4, 10.0, 2e-16, hidden=1e-20)
    values = np.array([5.0, 3.0, 1.5, 0.5])
    for part, rank in ((0.5 + 1e-4, 1), (0.8 - 1e-4, 3), (0.95 + 1e-4, 3)):
        reaches = [
            Share(part, 10.0, 4).judge(Ritz(values, nothing, nothing), rank, now, 0.0)
            for now in (replace(known, passing=0.1), replace(known, blur=0.1))
        ]
        assert not any(reach.settled for reach in reaches)
    exact = Share(0.8, 10.0, 4).judge(Ritz(values, nothing, nothing), 3, known, 0.0)
    assert exact.settled  # its boundary is within rounding, which no round puts right
    assert exact.fewer > 0.8


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_rounding_for_the_wire_does_not_pass_for_the_last_digit_of_a_number(wire):
    for seed in range(4):
        X = with_spectrum(200, np.sort(np.random.default_rng(seed).random(40))[::-1], seed=seed)
        sums = np.cumsum(np.linalg.svd(X, compute_uv=False) ** 2) / np.sum(X**2)
        for part in (sums[5] - 1e-9, sums[5] + 1e-9):
            count, _ = counted(X, part)
            found = quiet(X, float(part), f"local_ritz:wire={wire}", tol=1e-2)
            assert not found.converged or len(found.components) == count
            assert not found.converged or found.reach.least(1e-6)


@pytest.mark.parametrize("method", GROWING)
def test_at_a_boundary_one_more_is_taken_and_rounding_is_owned_up_to(method):
    X = np.kron(np.eye(4), np.ones((8, 1)))  # four equal values: two are half, and not more
    for part, count in ((0.5, 3), (0.5 - 1e-6, 2), (0.5 + 1e-6, 3), (0.75, 4), (0.25 - 1e-9, 1)):
        found = quiet(X, part, method, tol=1e-8)
        assert len(found.components) == count
        assert found.reach.settled
        assert found.reach.least(1e-6) == (part not in (0.5, 0.75))
    assert "rounding hides whether they do" in str(quiet(X, 0.5, method, tol=1e-8))


@pytest.mark.parametrize("method", GROWING)
def test_equal_values_on_both_sides_of_the_number_do_no_harm(method):
    X = with_spectrum(200, np.array([3.0, 2, 2, 2, 2, 2, 1, 1, 1, 0.5]), seed=9)
    found = quiet(X, 0.7, method, tol=1e-6, max_rounds=100)
    assert len(found.components) == counted(X, 0.7)[0] == 5
    assert found.reach.least(1e-6)


@pytest.mark.parametrize("method", ["auto", "block_lanczos"])
@pytest.mark.parametrize("kind", ["one value", "a tail", "steps"])
def test_more_equal_values_than_a_block_has_columns_are_counted(method, kind):
    values = {
        "one value": np.ones(50),
        "a tail": np.r_[5.0, 4.0, 3.0, np.full(47, 0.3)],
        "steps": np.repeat([4.0, 2.0, 1.0, 0.5], [3, 5, 10, 32]),
    }
    X = with_spectrum(120, values[kind], seed=5)
    for part in (0.55, 0.929, 0.95, 0.999):
        count, boundary = counted(X, part)
        assert boundary > 1e-4
        found = quiet(X, part, method, tol=1e-8)
        assert len(found.components) == count
        assert found.reach.reached > part
        assert found.converged


@pytest.mark.parametrize("method", ["auto", "local_ritz", "block_lanczos", "tsqr", "dpi"])
def test_rows_of_all_sizes_and_ranks(method):
    rng = np.random.default_rng(10)
    low = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 12))
    giant = rng.standard_normal((60, 12))
    giant[:, 5] *= 1e8
    wide = rng.standard_normal((6, 30))
    huge = rng.standard_normal((60, 12)) * 0.7 ** np.arange(12)
    for X, part in ((low, 0.999999), (low, 0.5), (giant, 0.9), (giant, 0.5), (wide, 0.8),
                    (huge * 1e150, 0.9), (huge * 1e-150, 0.9), (rng.standard_normal((1, 5)), 0.9),
                    (rng.standard_normal((5, 1)), 0.9)):  # fmt: skip
        unit = X / np.abs(X).max()
        found = quiet(X, part, method, tol=1e-6, max_rounds=100, workers=2 if len(X) > 1 else 1)
        assert len(found.components) == counted(unit, part)[0]
        assert found.reach.reached > part


def test_scaled_columns_are_counted_as_they_are_scaled():
    rng = np.random.default_rng(11)
    X = rng.standard_normal((300, 10)) * 10.0 ** np.arange(10)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    assert counted(X - X.mean(axis=0), 0.9)[0] != counted(scaled, 0.9)[0]
    for method in ("auto", "local_ritz", "dpi"):
        found = quiet(X, 0.9, method, tol=1e-6, max_rounds=300, center=True, scale="std")
        assert len(found.components) == counted(scaled, 0.9)[0]


@pytest.mark.parametrize("method", GROWING)
def test_rows_without_variance_have_one_component(method):
    found = quiet(np.full((30, 4), 7.0), 0.9, method, center=True, tol=1e-6)
    assert len(found.components) == 1
    assert found.singular_values[0] == 0
    assert "nothing to explain: the variance is zero" in str(found)


def test_nearly_all_of_the_variance_of_rows_of_low_rank():
    X = with_spectrum(50, np.array([3.0, 2.0, 1.0, 0, 0, 0]), seed=12)
    for method in ("tsqr", "local_ritz", "block_lanczos"):
        found = quiet(X, 1 - 1e-16, method, tol=1e-6)
        assert len(found.components) == 3
        assert found.reach.settled
        assert "up to rounding" in reach_text(found)


def test_float32_rows():
    X = with_spectrum(400, 0.8 ** np.arange(30), seed=13)
    for method in ("auto", "local_ritz", "tsqr", "dpi"):
        found = quiet(X.astype(np.float32), 0.9, method, tol=1e-3, max_rounds=200)
        assert found.components.dtype == np.float32
        assert len(found.components) == counted(X, 0.9)[0]
        assert found.reach.least(1e-6)


def test_a_share_is_of_the_variance_or_of_the_squares():
    X = with_spectrum(100, 0.7 ** np.arange(10), seed=14) + 5
    assert len(lp.pca(X, 0.9, rng=0).components) == counted(X - X.mean(axis=0), 0.9)[0] > 1
    found = lp.svd(X, 0.9, rng=0)
    assert len(found.components) == counted(X, 0.9)[0] == 1
    assert "90 % of the sum of squares is reached by 1 component (proven)" in str(found)


# How it is asked for, and what is told ----------------------------------------------------------


@pytest.mark.parametrize("value", [np.float64(0.9), np.float32(0.9), lambda n, d: 0.9])
def test_numbers_of_numpy_and_functions_are_shares(value):
    X = with_spectrum(100, 0.7 ** np.arange(10), seed=15)
    found = lp.svd(X, value, rng=0)
    assert len(found.components) == counted(X, 0.9)[0]
    assert found.reach.part == pytest.approx(0.9)
    assert f"localpower.svd(data, {found.reach.part!r}" in found.run["call"]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (float("nan"), ValueError, r"rank=nan is a share.*above 0 and below 1"),
        (0.0, ValueError, r"rank=0\.0 is a share"),
        (1.0, ValueError, r"rank=1\.0 is a share.*whole number of components, such as 1"),
        (-0.5, ValueError, r"rank=-0\.5 is a share"),
        (float("-inf"), ValueError, r"rank=-inf"),
        (1.5, TypeError, r"rank=1\.5 must be a whole number of components, or a share"),
        (float("inf"), TypeError, r"rank=inf"),
        (True, TypeError, r"rank=True must be a whole number"),
        (np.True_, TypeError, r"rank=.*must be a whole number"),
        ("0.9", TypeError, r"rank='0.9'"),
        (None, TypeError, r"rank=None"),
    ],
)
def test_what_is_no_share_is_refused(value, error, message):
    for given in (value, lambda n, d: value):
        with pytest.raises(error, match=message):
            lp.pca(np.eye(5), given)


@pytest.mark.parametrize("method", ["one_shot", "uda", "wda", "aligned_average", "dr_svd"])
def test_methods_that_cannot_grow_say_so(method):
    with pytest.raises(ValueError, match=rf"rank=0\.9 is a share.*'{method}'.*take method='auto'"):
        lp.svd(np.eye(5), 0.9, method)


def test_a_width_and_a_share_contradict_each_other():
    with pytest.raises(ValueError, match=r"rank=0\.9 is a share.*width=4 sets.*leave width out"):
        lp.svd(np.eye(5), 0.9, "dpi:width=4")


def test_what_is_known_is_printed_shown_and_kept(tmp_path):
    X = with_spectrum(100, 0.7 ** np.arange(10), seed=16)
    found = lp.pca(X, 0.9, "local_ritz", tol=1e-6, workers=3, rng=0)
    line = reach_text(found)
    assert line in str(found)
    assert line.startswith(f"90 % of the variance is reached by {len(found.components)} components")
    fewer = len(found.components) - 1
    assert f"; {fewer} reach at most {percent(found.reach.fewer, 0.9, up=True)} (proven)" in line
    page = found.report(tmp_path / "run.html").read_text(encoding="utf-8")
    assert f'<p id="share">{line}.</p>' in page
    assert "principal components that explain 90 % of the variance" in page
    found.save(tmp_path / "model")
    again = lp.Result.load(tmp_path / "model")
    assert again.reach == found.reach
    assert reach_text(again) == line
    told = lp.pca(X, len(found.components), "local_ritz", tol=1e-6, workers=3, rng=0)
    told.save(tmp_path / "told")
    assert lp.Result.load(tmp_path / "told").reach is None


def test_a_run_that_ends_too_early_says_what_was_reached(monkeypatch):
    X = with_spectrum(300, SPECTRA["flat"], seed=17)
    starting_with(monkeypatch, 2)
    with pytest.warns(lp.ConvergenceWarning, match=r"rank=0\.9 was not reached.*raise max_rounds"):
        found = lp.svd(X, 0.9, "dpi", max_rounds=1, workers=3, rng=0)
    assert found.reach.reached < 0.9
    assert not found.reach.least(1)
    assert "and not 90 %" in str(found)


def test_without_a_tolerance_all_rounds_are_done_and_the_number_is_found():
    X = with_spectrum(200, 0.7 ** np.arange(12), seed=18)
    for method in ("dpi", "local_power", "local_power:schedule=halving"):
        found = lp.svd(X, 0.9, method, workers=3, rng=0)
        assert (len(found.history), found.reason) == (30, "max_rounds")
        assert len(found.components) == counted(X, 0.9)[0]
        assert found.reach.reached > 0.9


def test_words():
    def told(**known):
        known = {"part": 0.9, "reached": 0.93, "fewer": 0.8812, "proven": True, "p": 0.0} | known
        run = {"reach": known, "center": True, "certainty": 1e-6}
        return reach_text(
            lp.Result(*[np.ones((3, 4)), np.ones(3)] + [None] * 6, (), lp.Ledger(), run)
        )

    start = "90 % of the variance is reached by 3 components (proven); 2 "
    assert told() == start + "reach at most 88.2 % (proven)"
    assert told(proven=False, p=3e-8) == start + "reach at most 88.2 % (tested, p = 3e-08)"
    assert told(proven=False, p=0.3) == start + "reach at most 88.2 % if nothing was missed"
    assert told(fewer=0.95, settled=False) == start + "may do as well: that is not certain"
    assert told(fewer=0.95) == start + "may do as well: rounding hides whether they do"
    assert told(fewer=0.899999999) == start + "reach at most 89.9999999 % (proven)"
    lost = told(reached=0.85999, settled=False)
    assert lost == "3 components reach 85.9 % of the variance (proven), and not 90 %"


def test_plans_and_comparisons_count_a_share():
    X = with_spectrum(200, 0.7 ** np.arange(12), seed=19)
    count, _ = counted(X, 0.9)
    assert lp.plan(X, 0.9, workers=3).question.startswith(f"rank {count} of")
    with pytest.raises(ValueError, match=r"rank=0\.9 is a share, and a shape does not tell"):
        lp.plan((200, 12), 0.9)
    found = lp.compare(X, 0.9, methods="tsqr,dpi,uda", workers=3)
    assert found.run["rank"] == count
    assert {len(row.result.components) for row in found.rows} == {count}


def test_a_plan_of_many_columns_counts_as_far_as_it_looks(monkeypatch):
    monkeypatch.setattr("localpower.planning.SMALL", 10)
    X = with_spectrum(200, 0.7 ** np.arange(30), seed=20)
    assert lp.plan(X, 0.9).question.startswith(f"rank {counted(X, 0.9)[0]} of")
    flat = with_spectrum(300, np.ones(200), seed=20)
    with pytest.raises(ValueError, match=r"rank=0\.9 is a share for which the \d+ components that"):
        lp.plan(flat, 0.9)


def test_a_shard_sends_no_more_than_its_share_takes_and_the_bound_holds():
    A = with_spectrum(90, 0.8 ** np.arange(20), seed=21)
    with Inline() as engine:
        engine.place([Shard((A,), 20, A.dtype)])
        whole = engine.sum(LeadingFactor(20, 40))
        part = engine.sum(LeadingFactor(20, 40, part=0.9, times=2))
    assert whole.factor.shape[1] == 20
    assert part.factor.shape[1] == 2 * counted(A, 0.9)[0] < 20
    left = A.T @ A - part.factor @ part.factor.T
    assert np.linalg.eigvalsh(left)[0] > -1e-12
    assert np.linalg.eigvalsh(left)[-1] <= part.rest <= 1.1 * np.linalg.eigvalsh(left)[-1]


def test_reach_tells_what_is_least():
    assert Reach(0.9, 0.95, 0.9, True, 0.0).least(0.0)
    assert not Reach(0.9, 0.95, 0.9001, True, 0.0).least(1.0)
    assert Reach(0.9, 0.95, 0.85, False, 1e-6).least(1e-6)
    assert not Reach(0.9, 0.95, 0.85, False, 1e-5).least(1e-6)
