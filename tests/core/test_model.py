"""The merged factor as a model: it bounds what is outside of a space, and corrects residuals."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import localpower as lp
from localpower.engines.inline import Inline
from localpower.methods import local_ritz as forms
from localpower.methods.model import (
    LARGE,
    LEAST,
    corrected,
    enough,
    largest_outside,
    pairs_to_send,
)
from localpower.methods.ritz import SPARED, _allowed, _next_block, local_ritz, merged
from localpower.methods.rounding import WireRounding
from localpower.methods.state import State
from localpower.worker.shard import Shard

EPS = float(np.finfo(float).eps)


def placed(*parts):
    engine = Inline()
    engine.place([Shard((A,), A.shape[1], A.dtype) for A in parts])
    return engine


def orthonormal(d, count, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, count)))[0]


def slow(rows=3000, d=260, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, d)) * np.arange(1, d + 1) ** -0.5) @ orthonormal(d, d)


def outside_of(B, S):
    rest = np.eye(len(B)) - S @ S.T
    return np.linalg.eigvalsh(rest @ B @ rest)[-1]


# The formulas


@pytest.mark.parametrize("seed", range(5))
def test_what_is_outside_of_a_space_is_that_of_the_factor(seed):
    rng = np.random.default_rng(seed)
    F = orthonormal(30, 8, seed) * np.sort(rng.uniform(0.1, 3, 8))[::-1]
    for S in (orthonormal(30, 4, seed + 9), F[:, :3] / np.linalg.norm(F[:, :3], axis=0)):
        np.testing.assert_allclose(largest_outside(F, S), outside_of(F @ F.T, S), rtol=1e-10)
    whole = np.linalg.qr(np.hstack([F, S]))[0]
    assert largest_outside(F, whole) <= 1e-14 * 9
    assert largest_outside(F[:, :0], S) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_a_corrected_residual_solves_the_equation_of_the_model(seed):
    rng = np.random.default_rng(seed)
    F, S = orthonormal(30, 8, seed) * rng.uniform(0.1, 1, 8), orthonormal(30, 4, seed + 9)
    rest = np.eye(30) - S @ S.T
    R, values = rest @ rng.standard_normal((30, 3)), np.array([9.0, 4.0, 2.0])
    found = rest @ corrected(R, values, F, S)
    G = rest @ F
    for j, value in enumerate(values):
        truth = np.linalg.solve(value * np.eye(30) - G @ G.T, R[:, j])
        np.testing.assert_allclose(found[:, j] / value, truth, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(corrected(R, values, F[:, :0], S), R)  # nothing was merged
    assert corrected(R[:, :0], values[:0], F, S).shape == (30, 0)


def test_values_that_meet_those_of_the_model_have_a_distance():
    F, S = np.eye(6)[:, 1:3] * [2.0, 1.0], np.eye(6)[:, :1]
    R = np.eye(6)[:, 1:4]
    found = corrected(R, np.array([4.0, 4.0, 4.0]), F, S)
    np.testing.assert_allclose(np.diagonal(found[1:4]), [1 + 4 / (LEAST * 4.0), 1 + 1 / 3, 1.0])
    np.testing.assert_array_equal(corrected(R, np.zeros(3), F, S), R)
    np.testing.assert_array_equal(corrected(R, np.zeros(3), 0 * F, S), R)


def test_columns_that_are_large_are_multiplied_first():
    squares = np.array([9.0, 4.0, 2.1, 1.9, 1.0, 0.5])
    assert LARGE == 0.5
    assert enough(squares, 2, 2, 6) == 3  # those above a half of the second
    assert enough(squares, 1, 1, 6) == 1
    assert enough(squares, 2, 5, 6) == 5  # as many as the width
    assert enough(squares, 5, 5, 4) == 4  # as many as shards send
    assert enough(squares[:1], 2, 5, 6) == 1  # all that there are


@pytest.mark.parametrize(
    ("columns", "pairs"), [(60, 60), (120, 120), (121, 80), (4000, 80), (6, 6)]
)
def test_all_are_sent_where_four_rounds_would_send_as_much(columns, pairs):
    assert pairs_to_send(80, 5, 10, columns) == pairs
    assert lp.LocalRitz().wide(5, 10, columns) == pairs
    assert lp.LocalRitz(proposal="residual").wide(5, 10, columns) == min(40, columns)
    assert lp.methods.BlockKrylov().wide(5, 10, columns) == min(40, columns)


def test_as_many_pairs_as_the_width_are_sent_at_least():
    assert pairs_to_send(2, 1, 6, 1000) == 6
    assert lp.LocalRitz(start="merged:2").wide(1, 6, 1000) == 6
    assert lp.methods.BlockKrylov(start="merged:2").wide(1, 6, 1000) == 6


# Searches


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 6),
    wide=st.integers(3, 14),
    rank=st.integers(1, 3),
    decay=st.floats(0.3, 1.0),
    wire=st.sampled_from([None, "float32", "bfloat16"]),
    apart=st.booleans(),
)
def test_no_eigenvalue_outside_of_the_space_is_above_the_bound(
    seed, shards, wide, rank, decay, wire, apart
):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((60, 40)) * decay ** np.arange(40)
    if apart:
        A = A[np.argsort(A[:, 0])]
    B = A.T @ A
    rounding = None if wire is None else WireRounding(wire, rank, 1e-8, EPS, shards)
    states = local_ritz(
        placed(*np.array_split(A, shards)), State(orthonormal(40, rank + 1, seed)), rank,
        proposal="model", steps=1, wide=wide, tol=1e-8, rounding=rounding,
    )  # fmt: skip
    slack = 1e-12 * np.linalg.norm(B, 2)
    for state in islice(states, 9):
        F = state.factor
        lack = np.linalg.eigvalsh(B - F @ F.T)
        assert lack[-1] <= state.rest + slack
        if wire is None:
            assert lack[0] >= -slack
        if state.space.shape[1]:
            assert outside_of(B, state.space) <= state.hidden + slack


def test_a_cut_space_has_a_bound_that_is_true():
    A = np.random.default_rng(0).standard_normal((400, 150)) * np.linspace(1.1, 1, 150)
    B = A.T @ A
    states = local_ritz(
        placed(*np.array_split(A, 3)), State(orthonormal(150, 2)), 1, proposal="model", steps=1,
        wide=2,
    )  # fmt: skip
    sizes = []
    for state in islice(states, 30):
        sizes.append(state.space.shape[1])
        if sizes[-1]:
            assert outside_of(B, state.space) <= state.hidden * (1 + 1e-12)
    assert (np.diff(sizes) < 0).any()


def test_the_bound_falls_as_the_space_grows_and_ends_near_what_the_factor_lacks():
    A = slow()
    states = local_ritz(
        placed(*np.array_split(A, 4)), State(orthonormal(260, 8)), 3, proposal="model", steps=1,
        wide=48,
    )  # fmt: skip
    first, second, *others = islice(states, 7)
    assert second.space.shape[1] < 20  # few of the columns that were merged
    assert first.factor.shape[1] > 48  # of which there are more than a shard sends
    assert first.hidden < second.hidden  # outside of the factor, and outside of the space
    bounds = [state.hidden for state in (second, *others)]
    assert (np.diff(bounds) <= 0).all()
    assert bounds[-1] < bounds[0]


def test_a_model_saves_rounds_and_bytes():
    A = slow()
    taken = {}
    for method in ("local_ritz", "block_krylov"):
        result = lp.svd(A, 5, method, tol=1e-8, workers=6, rng=0)
        assert result.reason == "angle"
        truth = np.linalg.svd(A, full_matrices=False)[2][:5].T
        assert lp.subspace_distance(truth, result.components.T) <= 1e-8
        moved = result.ledger.phase("iterate")
        assert moved.hops == moved.rounds
        taken[method] = moved.rounds, moved.bytes_up + moved.bytes_down
    assert taken["local_ritz"][0] < taken["block_krylov"][0]
    assert taken["local_ritz"][1] < taken["block_krylov"][1]


def test_without_a_factor_a_model_is_block_krylov():
    A = slow(600, 60)
    options = {"tol": 1e-6, "workers": 3, "rng": 0}
    model, plain = (
        lp.svd(A, 3, f"local_ritz:start=random,proposal={name}", **options)
        for name in ("model", "residual")
    )
    assert len(model.history) == len(plain.history)
    np.testing.assert_allclose(model.components, plain.components, atol=1e-6)


def test_vectors_within_the_tolerance_are_not_improved_unless_all_are():
    A = slow()
    engine = placed(*np.array_split(A, 4))
    states = local_ritz(engine, State(orthonormal(260, 8)), 3, proposal="model", steps=1, wide=24)
    state = list(islice(states, 4))[-1]
    none = np.zeros((260, 0))

    def sent(tol, proposal="model"):
        return _next_block(engine, state, none, proposal, 1, None, tol).shape[1]

    norms = np.linalg.norm(state.residuals[:, :3], axis=0)
    unit = SPARED * _allowed(state, 1.0)
    np.testing.assert_allclose(_allowed(state, 1.0), (state.values[2] - state.hidden) / np.sqrt(3))
    least, most = norms.min() / unit, norms.max() / unit
    assert sent(0.0) == 3
    assert sent(0.5 * least) == 3
    assert sent(np.sqrt(least * most)) in (1, 2)
    assert sent(2 * most) == 5  # all within: those after them bring the certificate down
    following = np.linalg.norm(state.residuals, axis=0).max() / unit
    assert sent(2 * following) == 8  # or else all
    assert sent(np.sqrt(least * most), "residual") == 3


def test_a_factor_that_is_no_bound_is_no_model():
    class Broken(Inline):
        def sum(self, task):
            return replace(super().sum(task), rest=float("nan"))

    A = slow(200, 60)
    engine = Broken()
    engine.place([Shard((A,), 60, A.dtype)])
    state = merged(engine, orthonormal(60, 4), 2, 16, None, None, model=True)
    assert state.factor.shape[1] == 0
    assert (state.hidden, state.rest) == (np.inf, np.inf)


# Plans


def test_a_plan_sends_fewer_pairs_where_bytes_cost_and_more_where_rounds_do():
    def pairs(latency, bandwidth):
        plan = lp.plan((200_000, 900), 5, workers=20, latency=latency, bandwidth=bandwidth)
        method = lp.methods.method_from(plan["local_ritz"].method)
        return method.wide(5, 10, 900), plan["local_ritz"].rounds

    slow_line, far = pairs(1e-6, 1e6), pairs(10.0, 1e12)
    assert slow_line[0] < 80 <= far[0]  # 16 times the rank where nothing is known
    assert slow_line[1] > far[1]


@pytest.mark.parametrize(("rows", "shards"), [(36, 4), (36, 1), (60, 4), (200, 20)])
def test_few_rows_take_one_round_where_merging_keeps_them_all(rows, shards):
    X = np.random.default_rng(0).standard_normal((rows, 400)) * 0.99 ** np.arange(rows)[:, None]
    plan = lp.plan(X, 5, workers=shards, latency=1.0)
    assert plan["local_ritz"].rounds == 1  # with as many pairs as that takes
    assert (plan["block_krylov"].rounds == 1) == (rows <= 40)  # it keeps no more than one sends
    result = lp.svd(X, 5, plan["local_ritz"].method, workers=shards, tol=1e-8, rng=0)
    assert result.converged
    assert len(result.history) == 1


def test_a_plan_keeps_what_was_asked_for():
    assert lp.LocalRitz(start="merged:30").forms(5) == (lp.LocalRitz(start="merged:30"),)
    assert lp.LocalRitz(proposal="all").forms(5) == (lp.LocalRitz(proposal="all"),)
    assert lp.LocalRitz(start="random").forms(5) == (lp.LocalRitz(start="random"),)
    own, *others = lp.LocalRitz(wire="float32").forms(5)
    assert own == lp.LocalRitz(wire="float32")
    assert [form.start for form in others] == [f"merged:{times * 5}" for times in forms.FORMS]
    assert {form.wire for form in others} == {"float32"}
