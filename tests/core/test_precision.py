"""Numbers rounded for the wire, and whether all of them are numbers."""

from dataclasses import replace

import numpy as np
import pytest

import localpower as lp
from localpower.core.rounding import UNITS, finite, from_wire, rounded, to_wire
from localpower.engines.inline import Inline
from localpower.methods import Start, method_from
from localpower.methods.rounding import SAFETY, Standing, WireRounding
from localpower.worker.shard import Shard


@pytest.mark.parametrize("name", sorted(UNITS))
def test_rounding_is_to_nearest(name):
    A = np.random.default_rng(0).standard_normal((50, 3)) * np.geomspace(1e-9, 1e9, 50)[:, None]
    error = np.abs(from_wire(to_wire(A, name)) - A)
    most = UNITS[name] * np.abs(A)
    assert (error <= most * (1 + 2.0**-15)).all()  # bfloat16 is rounded twice
    assert (error > most / 2).any() or name == "float64"


@pytest.mark.parametrize("name", sorted(UNITS))
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (16, 3), (32, 6)])
def test_one_that_is_no_number_is_found_wherever_it_is(name, wrong, at):
    A = np.random.default_rng(0).standard_normal((33, 7))
    assert finite(to_wire(A, name))
    A[at] = wrong
    assert not finite(to_wire(A, name))
    assert not finite(to_wire(A, name).T)
    A[0, 1] = -wrong  # the sum of both infinities is no number either
    assert not finite(to_wire(A, name))


@pytest.mark.parametrize(
    ("name", "largest"), [("float64", 1.7e308), ("float32", 3.4e38), ("bfloat16", 3e38)]
)
def test_numbers_whose_sum_is_too_large_are_finite_all_the_same(name, largest):
    A = np.full((40, 5), largest)
    assert finite(to_wire(A, name))
    A[1::2] *= -1
    assert finite(to_wire(A, name))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (), (1,)])
def test_arrays_of_any_shape_are_looked_at(shape):
    assert finite(np.zeros(shape))
    assert finite(np.zeros(shape, np.int64))


def test_a_tie_of_rounding_goes_to_the_even_neighbour():
    halves = np.float32(1) + np.array([0.5, 1.5, 2.5]) * 2.0**-7  # between two of bfloat16
    expected = 1 + np.array([0.0, 2.0, 2.0]) * 2.0**-7
    np.testing.assert_array_equal(from_wire(to_wire(halves, "bfloat16")), expected)


def test_what_rounding_takes_from_columns_is_measured_where_it_takes_anything():
    A = np.random.default_rng(0).standard_normal((9, 3))
    for name in ("float32", "bfloat16"):
        sent, lost = rounded(A, name)
        np.testing.assert_array_equal(sent, to_wire(A, name))
        np.testing.assert_allclose(lost, np.linalg.norm(A - from_wire(sent), axis=0))
        assert (lost > 0).all()
    for same, name in ((A, ""), (A, "float64"), (A.astype(np.float32), "float32")):
        sent, lost = rounded(same, name)
        assert lost is None
        assert sent.dtype == same.dtype


def test_where_a_basis_stands_is_told_by_residuals_of_the_vectors_asked_for():
    values, eps = np.array([8.0, 4.0, 2.0]), 1e-9
    B = np.diag(np.r_[values, 0, 0, 0])
    for n, size in enumerate((0.1, 0.2, 0.9)):
        B[n, 3 + n] = B[3 + n, n] = size
    X = np.eye(6, 3)
    found = WireRounding("float32", 2, 1e-6, eps).standing((X, B @ X), 0.0)
    np.testing.assert_allclose(found.residual, 0.2 / 8)
    np.testing.assert_allclose(found.gap, (4 + 0.2 - 2) / 8)
    alone = WireRounding("float32", 3, 1e-6, eps).standing((X, B @ X), 0.0)
    np.testing.assert_allclose(alone.gap, (2 + 0.9) / 8)
    noisy = WireRounding("float32", 2, 1e-6, eps).standing((X, B @ X), 4.0)
    np.testing.assert_allclose([noisy.residual, noisy.noise], 4.0 / 8, rtol=1e-2)  # of the largest
    still = WireRounding("float32", 2, 1e-6, eps).standing((X, np.diag(np.diag(B)) @ X), 1e-12)
    assert still.residual == 8 * eps
    assert WireRounding("float32", 2, 1e-6, eps).standing(None, 0.0) is None


def test_rounding_of_power_iteration_is_a_tenth_of_what_is_still_wrong():
    narrow = WireRounding("float32", 2, 1e-3, 1e-9)
    assert narrow.tolerable(None) == 1.0
    assert narrow.tolerable(Standing(0.5, 0.2)) == 0.5 / SAFETY
    near = Standing(1e-9, 0.2)  # half of what the tolerance allows, in all columns and shards
    np.testing.assert_allclose(narrow.tolerable(near), 2e-4 / np.sqrt(2) / 2)
    many = WireRounding("float32", 2, 1e-3, 1e-9, shards=50)
    np.testing.assert_allclose(many.tolerable(near), 2e-4 / 10 / 2)


def test_rounding_limits_a_residual_that_is_no_more_than_twice_as_large():
    narrow = WireRounding("float32", 2, 1e-3, 1e-9)
    assert narrow.limits(Standing(0.2, 1.0, 0.1))
    assert not narrow.limits(Standing(0.21, 1.0, 0.1))
    assert not narrow.limits(Standing(0.0, 1.0))
    assert not narrow.limits(None)


@pytest.mark.parametrize(
    ("residual", "gap", "tol", "name"),
    [
        (1.0, 0.5, 1e-3, "float32"),  # 2^-8 is more than 1e-3 times 0.5 / 2
        (1e-2, 0.5, 1e-3, "bfloat16"),  # a fiftieth of that is less
        (1e-1, 0.5, 1e-3, "float32"),
        (5e-2, 0.1, 1e-2, "float32"),  # a half of it is in the block, where the gap is small
        (9.0, 0.5, 1.3e-1, "bfloat16"),  # a vector is in the block no more than once
        (9.0, 0.5, 1.5e-2, "float32"),  # 2^-8 is more than a half of 0.0075
        (1e-3, 0.5, 1e-10, "float64"),
        (1e-12, 0.5, 1e-10, "bfloat16"),
        (1e-5, 0.5, 0.0, "float32"),  # rounding of the products themselves is there anyway
        (1.0, 0.0, 1e-3, "float64"),
    ],
)
def test_a_block_is_rounded_to_the_fewest_bytes_that_do_no_harm(residual, gap, tol, name):
    eps = 1e-12 if tol else 1e-11
    found = WireRounding("bfloat16", 2, tol, eps).for_block(Standing(residual, gap))
    assert found == name
    at_most = WireRounding("float32", 2, tol, eps).for_block(Standing(residual, gap))
    assert at_most == ("float32" if name == "bfloat16" else name)


def test_the_first_block_is_sent_in_full_where_digits_are_wanted():
    assert WireRounding("bfloat16", 2, 1e-8, 1e-16).for_block(None) == "float64"
    assert WireRounding("bfloat16", 2, 1e-8, 1e-6).for_block(None) == "float32"


def test_shards_that_round_before_they_add_are_as_wrong_as_the_root_of_their_number():
    many = WireRounding("bfloat16", 2, 1e-3, 1e-12, shards=900)
    for residual, name in ((1e-2, "float32"), (1e-3, "float32"), (5e-4, "bfloat16")):
        assert many.for_block(Standing(residual, 0.5)) == name
    assert replace(many, shards=1).for_block(Standing(1e-2, 0.5)) == "bfloat16"
    assert replace(many, name="float32").for_block(Standing(5e-4, 0.5)) == "float32"
    countless = replace(many, name="float32", shards=2**40)  # no digits are left, but a few bytes
    assert countless.for_block(Standing(1e-14, 0.5)) == "float32"
    edge = WireRounding("bfloat16", 4, 2.0**-3, 1e-12, shards=4)  # 2^-8 times 4 is a half of 2^-5
    assert edge.for_block(Standing(1.0, 0.25)) == "bfloat16"
    assert replace(edge, rank=5).for_block(Standing(1.0, 0.25)) == "float32"
    assert replace(edge, shards=5).for_block(Standing(1.0, 0.25)) == "float32"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_messages_are_rounded_where_the_data_have_more_digits(dtype):
    engine, eps = Inline(), float(np.finfo(dtype).eps)
    rows = [np.ones((4, 3), dtype), np.ones((2, 3), dtype)]
    engine.place([Shard((part,), 3, part.dtype) for part in rows])
    start = Start(2, 3, np.random.default_rng(0), 1e-3)
    for wire in ("float64", "float32", "bfloat16"):
        expected = WireRounding(wire, 2, 1e-3, eps, 2) if UNITS[wire] > eps / 2 else None
        assert start.rounding(wire, engine) == expected
    assert start.rounding("float32", engine) is None or dtype == np.float64


def test_more_columns_than_asked_for_are_iterated_where_they_are_certified():
    assert method_from("local_ritz").columns(3, 20, certified=False) == 8
    assert method_from("dpi").columns(3, 20, certified=False) == 3
    assert method_from("dpi").columns(3, 20, certified=True) == 8
    assert method_from("dpi").columns(3, 6, certified=True) == 6
    assert method_from("dpi:width=4").columns(3, 6, certified=True) == 4


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("start", ["merged", "random"])
def test_what_rounding_did_to_an_image_is_never_more_than_a_state_says(wire, start):
    rng = np.random.default_rng(4)
    C = rng.standard_normal((300, 12)) * 0.8 ** np.arange(12)
    common = np.ones((300, 1)) @ rng.standard_normal((1, 12))
    A = np.vstack([C + 30 * common, C - 30 * common]) / 128  # large in each shard
    B, parts = A.T @ A, np.array_split(A, 40)
    method = lp.methods.BlockKrylov(start=start, wire=wire, width=4)

    def look(record, state):
        if state.exact is not None:
            X, G = state.exact
            lead, whole = state.rounding_errors(3)
            top = np.linalg.norm(B, 2)
            assert np.linalg.norm((G - B @ X)[:, :3]) <= lead + 1e-13 * top
            wrong = state.outer + state.space @ state.projected - B @ state.space
            assert np.linalg.norm(wrong) <= whole + 1e-13 * top
        if state.hidden < np.inf and state.space.shape[1]:
            outside = np.eye(12) - state.space @ state.space.T
            assert np.linalg.eigvalsh(outside @ B @ outside)[-1] <= state.hidden * (1 + 1e-9) + 1e-9

    result = lp.svd(parts, 3, method, tol=1e-9, engine="inline", rng=0, callback=look)
    truth = np.linalg.svd(A, full_matrices=False)[2][:3].T
    assert result.converged
    assert lp.subspace_distance(truth, result.components.T) <= 1e-9
