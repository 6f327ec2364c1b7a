"""Numbers rounded for the wire, and whether all of them are numbers."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import with_spectrum

import localpower as lp
from localpower.core.ledger import weigh
from localpower.core.rounding import (
    UNITS,
    finite,
    from_wire,
    rounded,
    rounded_to,
    shape_of,
    to_bytes,
    to_wire,
)
from localpower.engines.inline import Inline
from localpower.engines.retrying import sound
from localpower.methods import Start, method_from
from localpower.methods.rounding import (
    BLURRED,
    COARSE,
    SAFETY,
    SHARP,
    WHOLE,
    Standing,
    WireRounding,
)
from localpower.worker.replies import Product
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


def test_what_rounding_spoils_is_multiplied_again():
    narrow = WireRounding("float32", 2, 1e-3, 1e-9)
    assert narrow.again(None, 9) == narrow.again(Standing(0.2, 1.0), 9) == 0
    assert narrow.again(Standing(0.2, 1.0, 0.1), 9) == 2
    good = 1e-3 * 0.2  # the residual that the tolerance allows, with this gap
    assert narrow.again(Standing(good, 0.2, 0.0, 0.2 / BLURRED), 9) == 0
    for noise in (0.0, good):
        assert narrow.again(Standing(good, 0.2, noise, 0.201 / BLURRED), 9) == 9
    assert (
        narrow.again(Standing(1.1 * good, 0.2, 0.0, 0.2), 9) == 0
    )  # further rounds are due anyway


def test_a_gap_that_was_thought_to_be_larger_is_found(monkeypatch):
    """All that was rounded too much is multiplied again, once."""
    A = with_spectrum(400, np.r_[1.0, 0.9, 0.8, 0.79, np.full(26, 0.5)])
    truth = np.linalg.svd(A)[2][:3].T
    options = {"tol": 1e-4, "workers": 4, "rng": 0, "max_rounds": 12}
    method = "local_ritz:start=random,proposal=residual,wire=bfloat16"

    def too_much(self, found):
        return 0.0 if found is None else 0.02 / self.shards

    monkeypatch.setattr(WireRounding, "for_block", too_much)
    result = lp.svd(A, 3, method, **options)
    assert result.converged
    assert lp.subspace_distance(truth, result.components.T) <= 1e-4
    monkeypatch.setattr("localpower.methods.rounding.BLURRED", 0)
    with pytest.warns(lp.ConvergenceWarning):
        assert not lp.svd(A, 3, method, **options).converged


@pytest.mark.parametrize(
    ("residual", "gap", "wanted"),
    [
        (1.0, 0.5, 2.5e-4),  # half of what the tolerance allows
        (1e-2, 0.5, 50 * 2.5e-4),  # a fiftieth of the answer is in the block
        (5e-2, 0.1, 2 * 5e-5),  # a half of it, where the gap is small
        (9.0, 0.5, 2.5e-4),  # a vector is in the block no more than once
        (1.0, 0.0, 4e-12),  # rounding of the products themselves is there anyway
        (1e-3, 1e-12, 4e-12),
    ],
)
def test_a_block_may_lose_what_does_no_harm(residual, gap, wanted):
    found, narrow = Standing(residual, gap), WireRounding("float32", 2, 1e-3, 1e-12)
    np.testing.assert_allclose(narrow.wanted(found), wanted)
    limit = min(wanted, SHARP * gap)  # the bound of the angle needs a part of the gap
    np.testing.assert_allclose(narrow.for_block(found), limit / np.sqrt(8))
    many = replace(narrow, shards=900, rank=8)  # of which each takes its part
    np.testing.assert_allclose(many.for_block(found), limit / np.sqrt(32) / 900)
    for name, coarse in COARSE.items():
        proposal = replace(narrow, name=name).for_proposal(found)
        np.testing.assert_allclose(proposal, max(coarse, wanted / SAFETY**2))


def test_a_block_whose_image_counts_for_nothing_is_not_sent_for_nothing():
    found = Standing(1e-9, 0.5)
    assert WireRounding("float32", 2, 1e-3, 1e-12).wanted(found) > 1e3
    assert WireRounding("float32", 2, 1e-3, 1e-12).for_proposal(found) == 1 / SAFETY**2


def test_the_first_block_is_sent_in_full_where_nothing_is_known():
    for name, coarse in COARSE.items():
        narrow = WireRounding(name, 2, 1e-8, 1e-16)
        assert narrow.for_block(None) == narrow.for_basis(None) == 0.0
        assert narrow.for_proposal(None) == narrow.for_start(whole=False) == coarse
        assert narrow.for_start(whole=True) == WHOLE * 1e-8 / 2
        assert replace(narrow, tol=0.0).for_start(whole=True) == 1e-16 / 2
        assert narrow.for_basis(Standing(1e-4, 0.5)) == 1e-4 / SAFETY**3


def columns(d=50):
    """Columns of many sizes, and one of zeros."""
    return np.random.default_rng(1).standard_normal((d, 7)) * [1e-30, 0, 1e-9, 1e-3, 1, 7, 1e12]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [1e-10, 1e-6, 1e-3, 0.5, np.inf])
def test_columns_take_as_few_bytes_as_lose_no_more_than_they_may(loss, dtype):
    A = columns().astype(dtype)
    norms = np.linalg.norm(A.astype(float), axis=0)
    limits = np.where(norms > 0, loss, 1.0) * np.maximum(norms, 1e-99)
    sent, lost = rounded_to(A, limits)
    if dtype == np.float32 and loss < 1e-6:
        assert sent.tobytes() == A.tobytes()  # it has no more digits
        assert lost is None
        return
    assert sent.dtype == np.uint8
    assert shape_of(sent) == A.shape
    B = from_wire(sent)
    np.testing.assert_allclose(lost, np.linalg.norm(A - B, axis=0))
    widths = sent[8:15]
    assert (lost <= limits)[widths > 1].all()
    assert (np.abs(A - B) <= np.abs(A).max(axis=0) / 127).all()  # a byte is the least
    assert sent.size == 8 + 7 * 3 + 50 * widths.sum()
    fewer = np.abs(A).max(axis=0) * 2.0 ** (9 - 8.0 * widths) * np.sqrt(50) / 2  # with a byte less
    assert (fewer > limits)[widths > 1].all()
    assert not B[:, 1].any()


def test_small_columns_take_fewer_bytes_of_the_same_loss():
    widths = to_bytes(columns()[:, 1:6], 1e-5)[8:13]
    assert list(widths) == sorted(widths)
    assert widths[0] == widths[1] == 1
    assert widths[-1] == 4


def test_the_largest_numbers_of_all_widths_come_back():
    for width in range(1, 8):
        top = 1 - 2.0**-50  # rounded, it is the next power of two, for which there is no room
        A = np.array([[1.0, -1.0, top, -top], [0.5, 0.25, -0.5, 0.125]])
        sent = to_bytes(A, 2.0 ** (1 - 8 * width) * np.sqrt(2))
        assert set(sent[8:12]) == {width} or sent.dtype == A.dtype
        assert np.abs(from_wire(sent) - A).max() <= 2.0 ** (2 - 8 * width)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_sent_as_it_is(wrong):
    A = columns()
    A[3, 4] = wrong
    sent, lost = rounded_to(A, 1e-3)
    assert lost is None
    assert not finite(sent)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_small_matrices_are_sent_as_they_are(shape):
    assert to_bytes(np.ones(shape), 1e-3).shape == shape
    assert to_bytes(np.ones((40, 3)), 0.0).dtype == np.float64
    assert to_bytes(np.ones((40, 3)), 1e-17).dtype == np.float64  # it would take 8 bytes


def test_bytes_that_mean_nothing_are_not_taken_for_columns():
    A = columns()[:, 2:]
    sent = to_bytes(A, 1e-3)
    assert finite(sent)
    wrong = [sent[:-1], np.append(sent, sent[:1]), sent[:5], sent[:0]]
    wrong += [sent.reshape(1, -1), sent.reshape(-1, 1)]
    for width in (0, 8):  # lengths fit, but there are no such numbers
        head = np.array([50, 1, 0], "<u4").view(np.uint8)[:11].copy()
        head[8] = width
        wrong.append(np.append(head, np.zeros(50 * width, np.uint8)))
    for at, width in ((8, 0), (8, 8), (12, 255), (0, 51), (4, 6), (7, 255)):
        wrong.append(sent.copy())
        wrong[-1][at] = width
    for other in wrong:
        assert shape_of(other) == ()
        assert not sound(Product(other), {"product": A.shape})
        with pytest.raises(ValueError, match="bytes that are not the columns"):
            from_wire(other)
    assert sound(Product(sent), {"product": A.shape})
    assert not sound(Product(sent), {"product": (50, 4)})
    huge = sent.copy()
    huge[13:15] = 255, 127  # an exponent with which no number is finite
    assert not sound(Product(huge), {"product": A.shape})


def test_columns_of_different_widths_are_added_and_counted_as_numbers():
    A, B = columns(), np.flip(columns(), axis=1)
    sent = [Product(*pair) for pair in ((to_bytes(A, 1e-9),), (to_bytes(B, 1e-3),))]
    assert sent[0].product.size != sent[1].product.size
    np.testing.assert_allclose((sent[0] + sent[1]).product, A + B, atol=2e-3)
    assert weigh(sent[1]) == (A.size, sent[1].product.nbytes)
    with pytest.raises(ValueError, match="arrays of"):
        sent[0] + Product(to_bytes(A[1:], 1e-3))


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
