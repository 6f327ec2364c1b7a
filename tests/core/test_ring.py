"""Sums in whole numbers: exact, free of order, and wrong by no more than is said."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpower.core.ring import (
    LIMBS,
    MOST_BITS,
    WIDE_EXPONENT,
    Grid,
    wide_add,
    wide_decode,
    wide_encode,
    wide_negative,
)
from localpower.worker.replies import PackedSum, Product
from localpower.worker.sum_tasks import SmallGram, Spread, Sums
from localpower.worker.sums import exponent_of, from_words, is_summable, to_words, word_shape
from localpower.worker.tasks import (
    Describe,
    GramTriangle,
    LeadingFactor,
    LeftVectors,
    LocalTriangle,
    PowerSteps,
    Refine,
    Triangle,
)

numbers = st.floats(-8, 8)


@given(st.lists(numbers, min_size=1, max_size=9), st.integers(1, MOST_BITS), st.randoms())
def test_a_sum_is_that_of_the_rounded_numbers_in_any_order(parts, bits, random):
    grid = Grid(6 + 1, bits)
    step = Fraction(2) ** (grid.exponent - bits)
    exact = sum(round(Fraction(x) / step) for x in parts) * step
    words = [grid.encode([x]) for x in parts]
    random.shuffle(words)
    with np.errstate(over="ignore"):
        total = sum(words[1:], words[0])
    assert grid.decode(total)[0] == float(exact)
    assert abs(exact - sum(map(Fraction, parts))) <= Fraction(grid.rounding(len(parts)))


def test_the_bound_of_rounding_is_reached():
    grid = Grid(0, 10)
    halves = np.full(6, 0.5 * grid.step)
    lost = abs(grid.decode(np.sum(grid.encode(halves))[None])[0] - halves.sum())
    assert lost == grid.rounding(6)


def test_parts_may_leave_the_range_where_their_sum_does_not():
    grid = Grid(0, 62)
    words = [grid.encode([x]) for x in (1.0, 1.0, 1.0, -1.0, -1.0)]
    assert grid.decode(np.sum(words, axis=0, dtype=np.uint64))[0] == 1.0


@pytest.mark.parametrize("bad", [8.0000001, -9.0, np.nan, np.inf])
def test_numbers_above_the_bound_or_not_finite_are_refused(bad):
    with pytest.raises(OverflowError):
        Grid(3).encode([1.0, bad])


@pytest.mark.parametrize("bits", [0, 63])
def test_bits_that_leave_no_room_are_refused(bits):
    with pytest.raises(ValueError, match=f"bits={bits} must be between 1 and 62"):
        Grid(0, bits)


wide = st.floats(-(2.0**200), 2.0**200).filter(lambda x: x == 0 or abs(x) > 2.0**-200)


@given(st.lists(wide, min_size=1, max_size=9))
def test_wide_sums_are_exact_and_correctly_rounded(parts):
    total = wide_encode(np.zeros(1))
    for x in parts:
        total = wide_add(total, wide_encode([x]))
    exact = sum(map(Fraction, parts))
    assert wide_decode(total)[0] == float(exact)


@given(st.binary(min_size=8 * LIMBS, max_size=8 * LIMBS), wide)
def test_wide_masks_cancel(mask, x):
    word = np.frombuffer(mask, "<u8").reshape(LIMBS, 1).astype(np.uint64)
    hidden = wide_add(wide_encode([x]), word)
    assert wide_decode(wide_add(hidden, wide_negative(word)))[0] == x


@pytest.mark.parametrize("bad", [2.0 ** (WIDE_EXPONENT + 1), np.nan, -np.inf])
def test_wide_numbers_that_do_not_fit_are_refused(bad):
    with pytest.raises(OverflowError, match="divide them by a number that all agree on"):
        wide_encode([bad])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_wide_numbers_of_a_thousand_sites_add_up(sign):
    largest = wide_encode([sign * 2.0**WIDE_EXPONENT])
    total = wide_encode([0.0])
    for _ in range(1000):
        total = wide_add(total, largest)
    assert wide_decode(total)[0] == sign * 1000 * 2.0**WIDE_EXPONENT


@given(st.floats(2.0**-900, 2.0**900))
def test_the_exponent_of_a_trace_is_above_it_and_not_far(trace):
    assert trace < 2.0 ** exponent_of(trace) <= 2.1 * trace


Z = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]


def test_only_tasks_whose_sum_is_enough_can_be_asked():
    sums = [Sums(), Spread(np.zeros(6)), SmallGram(Z), GramTriangle(), PowerSteps(Z, 1)]
    sums += [PowerSteps(Z, 4, align="procrustes", send_first=True, probes=Z)]
    assert all(map(is_summable, sums))
    single = [Describe(False), Triangle(Z), LeftVectors(Z, Z), LocalTriangle(), LeadingFactor(3, 6)]
    single += [PowerSteps(Z, 4, send_basis=True), PowerSteps(Z, 1, reply="float32")]
    single += [PowerSteps(Z, 1, loss=1e-3), Refine(Z, Z, Z, 2, 6, 1e-3)]
    assert not any(map(is_summable, single))


def test_replies_come_back_from_words():
    task = PowerSteps(Z, 4, align="procrustes", send_first=True, probes=3 * Z)
    reply = Product(Z, first=-Z, probes=7 * Z)
    words = to_words(task, reply, 2)
    assert words.shape == word_shape(task, 6) == (36,)
    found = from_words(task, words, 6, 2)
    for name in ("product", "first", "probes"):
        np.testing.assert_allclose(getattr(found, name), getattr(reply, name), atol=1e-16)
    packed = np.arange(21.0)
    found = from_words(GramTriangle(), to_words(GramTriangle(), PackedSum(packed), 5), 6, 5)
    np.testing.assert_array_equal(found.packed, packed)
    assert word_shape(Spread(np.zeros(6)), 6) == (LIMBS, 13)
