"""Numbers rounded for the wire, and whether all of them are numbers."""

import numpy as np
import pytest

from localpower.core.precision import UNITS, finite, narrowed, widened


@pytest.mark.parametrize("name", sorted(UNITS))
def test_rounding_is_to_nearest(name):
    A = np.random.default_rng(0).standard_normal((50, 3)) * np.geomspace(1e-9, 1e9, 50)[:, None]
    error = np.abs(widened(narrowed(A, name)) - A)
    most = UNITS[name] * np.abs(A)
    assert (error <= most * (1 + 2.0**-15)).all()  # bfloat16 is rounded twice
    assert (error > most / 2).any() or name == "float64"


@pytest.mark.parametrize("name", sorted(UNITS))
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (16, 3), (32, 6)])
def test_one_that_is_no_number_is_found_wherever_it_is(name, wrong, at):
    A = np.random.default_rng(0).standard_normal((33, 7))
    assert finite(narrowed(A, name))
    A[at] = wrong
    assert not finite(narrowed(A, name))
    assert not finite(narrowed(A, name).T)
    A[0, 1] = -wrong  # the sum of both infinities is no number either
    assert not finite(narrowed(A, name))


@pytest.mark.parametrize(
    ("name", "largest"), [("float64", 1.7e308), ("float32", 3.4e38), ("bfloat16", 3e38)]
)
def test_numbers_whose_sum_is_too_large_are_finite_all_the_same(name, largest):
    A = np.full((40, 5), largest)
    assert finite(narrowed(A, name))
    A[1::2] *= -1
    assert finite(narrowed(A, name))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (), (1,)])
def test_arrays_of_any_shape_are_looked_at(shape):
    assert finite(np.zeros(shape))
    assert finite(np.zeros(shape, np.int64))
