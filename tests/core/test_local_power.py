"""Algorithm 1: what must fall out of it, exactly."""

from itertools import pairwise

import numpy as np
import pytest
from helpers import orthogonal_iteration, projector_gap, random_start, with_spectrum
from hypothesis import given
from hypothesis import strategies as st

import localpower as lp
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.engines.inline import Inline
from localpower.methods.local_power import local_power
from localpower.methods.schedule import constant, halving
from localpower.methods.state import State

A = with_spectrum(300, 0.8 ** np.arange(12), seed=1)


def placed(blocks):
    engine = Inline()
    source = open_source(blocks)
    engine.place(contiguous(source, len(source.pieces)).shards)
    return engine


def run(blocks, start, rounds, **options):
    options = {"schedule": constant(4), "align": "procrustes"} | options
    states = local_power(placed(blocks), State(start), **options)
    return [next(states) for _ in range(rounds)][-1]


def equal_blocks(A, count):
    return np.array_split(A, count)


@given(
    cuts=st.lists(st.integers(0, 300), max_size=6),
    width=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    rounds=st.integers(1, 6),
)
def test_one_step_a_round_is_orthogonal_iteration_for_any_partition(cuts, width, seed, rounds):
    start = random_start(12, width, seed)
    Z = run(np.split(A, sorted(cuts)), start, rounds, schedule=constant(1)).basis
    assert projector_gap(Z, orthogonal_iteration(A, start, rounds)) < 1e-12


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_dpi_of_the_public_function_is_orthogonal_iteration_from_the_documented_start(workers):
    result = lp.svd(A, 4, method="dpi", max_rounds=7, workers=workers, rng=11)
    Z = orthogonal_iteration(A, random_start(12, 4, 11), 7)
    assert projector_gap(result.basis, Z) < 1e-12


@pytest.mark.parametrize("align_at", ["server", "worker"])
def test_one_shard_makes_every_alignment_equal_to_orthogonal_iteration(align_at):
    start = random_start(12, 4, 3)
    expected = orthogonal_iteration(A, start, 3 * 4)
    for align in ("procrustes", "signs", "none"):
        Z = run([A], start, 3, align=align, align_at=align_at).basis
        assert projector_gap(Z, expected) < 1e-12


@pytest.mark.parametrize("align_at", ["server", "worker"])
def test_width_one_makes_signs_equal_procrustes(align_at):
    start, blocks = random_start(12, 1, 5), equal_blocks(A, 5)
    a = run(blocks, start, 4, align="signs", align_at=align_at).basis
    b = run(blocks, start, 4, align="procrustes", align_at=align_at).basis
    assert projector_gap(a, b) < 1e-14


@pytest.mark.parametrize("align_at", ["server", "worker"])
def test_rotating_the_start_leaves_the_subspace_unchanged_with_procrustes_only(align_at):
    start, blocks = random_start(12, 4, 7), equal_blocks(A, 6)
    turned = start @ random_start(4, 4, 8)
    gap = {
        align: projector_gap(
            run(blocks, start, 3, align=align, align_at=align_at).basis,
            run(blocks, turned, 3, align=align, align_at=align_at).basis,
        )
        for align in ("procrustes", "none")
    }
    assert gap["procrustes"] < 1e-12
    assert gap["none"] > 1e-6


@pytest.mark.parametrize("cuts", [[10, 150, 152], [1, 2, 150], [2, 4, 6, 8], [0, 0, 3]])
@pytest.mark.parametrize("align_at", ["server", "worker"])
def test_shards_with_fewer_rows_than_columns_leave_nothing_to_chance(cuts, align_at):
    """Directions that a shard has no rows for are left as they were, not made up from rounding."""
    B = np.random.default_rng(0).standard_normal((300, 20)) * np.linspace(3, 1, 20)
    blocks, start = np.split(B, cuts), random_start(20, 4, 1)
    Z = run(blocks, start, 6, align_at=align_at).basis
    turned = run(blocks, start @ random_start(4, 4, 2), 6, align_at=align_at).basis
    nudged = run(blocks, start * (1 + 1e-15), 6, align_at=align_at).basis
    assert projector_gap(Z, turned) < 1e-13
    assert projector_gap(Z, nudged) < 1e-13


def test_one_shot_is_one_round_of_all_steps():
    one_shot = lp.svd(A, 3, method="one_shot:steps=25", workers=4, rng=0)
    single = lp.svd(A, 3, method="local_power:steps=25", max_rounds=1, workers=4, rng=0)
    times = lp.svd(A, 3, method=lp.LocalPower(schedule={0, 25}), workers=4, rng=0)
    assert one_shot.basis.tobytes() == single.basis.tobytes() == times.basis.tobytes()
    assert [record.steps for record in one_shot.history] == [25]


def test_explicit_communication_times_set_the_steps_and_the_end():
    result = lp.svd(A, 3, method=lp.LocalPower(schedule={0, 8, 12, 14, 15}), workers=4, rng=0)
    assert [record.steps for record in result.history] == [8, 4, 2, 1]


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        ("constant", [6, 6, 6, 6, 6, 6]),
        ("halving", [6, 3, 1, 1, 1, 1]),
        ("halving:2", [6, 6, 3, 3, 1, 1]),
        ("linear", [6, 5, 4, 3, 2, 1]),
        (lambda t: 2 + t, [2, 3, 4, 5, 6, 7]),
        (halving(4, every=3), [4, 4, 4, 2, 2, 2]),
    ],
)
def test_every_schedule_takes_the_steps_it_says(schedule, steps):
    result = lp.svd(
        A, 3, method=lp.LocalPower(steps=6, schedule=schedule), max_rounds=6, workers=2, rng=0
    )
    assert [record.steps for record in result.history] == steps


def test_many_local_steps_stall_and_decay_goes_on():
    blocks = equal_blocks(A[np.random.default_rng(0).permutation(300)], 6)
    V = np.linalg.svd(A)[2][:3].T
    errors = {
        schedule: lp.subspace_distance(
            lp.svd(
                blocks, 3, method=lp.LocalPower(steps=4, schedule=schedule), max_rounds=120, rng=0
            ).components.T,
            V,
        )
        for schedule in ("constant", "halving")
    }
    assert errors["constant"] > 1e-4
    assert errors["halving"] < 1e-13


def test_a_shard_that_sees_nothing_of_a_column_does_not_erase_it():
    """A zero inner product counts as +1 in sign-fixing; sign(0) = 0 would erase the column."""
    blocks = [np.diag([3.0, 0.0, 2.0, 0.0]), np.diag([0.0, 3.0, 0.0, 2.0])]
    for align in ("signs", "procrustes"):
        Z = run(blocks, np.eye(4)[:, :2], 5, align=align).basis
        assert np.isfinite(Z).all()
        assert np.allclose(Z.T @ Z, np.eye(2))


def test_the_anchor_is_the_largest_shard_and_the_lowest_among_equals():
    engine = placed([A[:10], A[10:110], A[110:200], A[200:300]])
    assert engine.anchor_first() == [1, 0, 2, 3]


def test_states_can_be_saved_and_continued():
    start, blocks = random_start(12, 4, 2), equal_blocks(A, 5)
    options = {"schedule": halving(8, every=2), "align": "procrustes"}
    straight = run(blocks, start, 6, **options)
    half = run(blocks, start, 3, **options)
    states = local_power(placed(blocks), half, **options)
    resumed = [next(states) for _ in range(3)][-1]
    assert resumed.basis.tobytes() == straight.basis.tobytes()
    assert (resumed.round, resumed.steps) == (straight.round, straight.steps)


def test_the_adaptive_schedule_goes_on_where_constant_steps_stall():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((600, 30)) * 0.85 ** np.arange(30)
    target = np.linalg.svd(A)[2][:3].T

    def run(schedule):
        result = lp.svd(
            A, 3, method=lp.LocalPower(steps=8, schedule=schedule), workers=6, max_rounds=200, rng=0
        )
        return lp.subspace_distance(target, result.components.T), result.history

    stalled, _ = run("constant")
    reached, history = run("adaptive")
    assert reached <= 1e-12 < 1e-4 < stalled
    steps = [record.steps for record in history]
    assert steps[0] == 8
    assert steps[-1] == 1
    assert all(after in (before, before // 2) for before, after in pairwise(steps))
