"""What is given as a schedule is read once, and not before its time."""

from itertools import count

import numpy as np
import pytest
from helpers import same_bits, with_spectrum

import localpower as lp
from localpower.methods.schedule import MOST_TIMES, parse, read, settled

A = with_spectrum(200, 0.7 ** np.arange(12), seed=1)


def fit(schedule, **options):
    return lp.svd(A, 3, method=lp.LocalPower(schedule=schedule), workers=3, rng=0, **options)


def steps(result):
    return [record.steps for record in result.history]


@pytest.mark.parametrize(
    "times",
    [lambda: iter([0, 4, 6, 7]), lambda: (t for t in (4, 6, 7)), lambda: map(int, "467")],
    ids=["iterator", "generator", "map"],
)
def test_times_that_can_be_read_once_are_read_once(times):
    result = fit(times())
    assert steps(result) == [4, 2, 1]
    assert same_bits(result, fit({0, 4, 6, 7}))
    assert "schedule={0,4,6,7}" in result.run["call"]


def test_times_without_an_end_are_refused():
    with pytest.raises(ValueError, match=rf"schedule=count.* more than {MOST_TIMES} times: give"):
        fit(count(0, 4))


def test_a_function_is_called_once_for_each_round_when_it_begins():
    asked, done = [], []

    def schedule(t):
        asked.append((t, len(done)))
        return 2

    fit(schedule, max_rounds=20, callback=lambda record, state: done.append(1) or len(done) == 5)
    assert asked == [(t, t) for t in range(5)]


def test_a_function_with_a_state_of_its_own_gives_the_steps_that_it_says():
    left = iter([5, 3, 1, 0])
    result = fit(lambda t: next(left), max_rounds=30)
    assert steps(result) == [5, 3, 1]
    assert result.reason == "end"


def test_what_a_function_gave_is_remembered_and_shown_where_it_is_wrong():
    given = []
    schedule = parse(settled(lambda t: given.append(t) or t + 1), steps=4)
    assert [schedule(0), schedule(0), schedule(1), schedule(0)] == [1, 1, 2, 1]
    assert given == [0, 1]
    wrong = iter(["first", "second"])
    with pytest.raises(TypeError, match=r"schedule\(0\) gave 'first'"):
        parse(settled(lambda t: next(wrong)), steps=4)(0)
    assert next(wrong) == "second"


def test_what_is_settled_stays_as_it_is():
    assert settled("halving:3") == "halving:3"
    for given in ({0, 4, 8}, [8, 0, 4], range(0, 9, 4), iter([0, 4, 8]), (4, 8)):
        assert settled(given) == (0, 4, 8)
    function = settled(len)
    assert settled(function) is function
    assert repr(function) == repr(len)


@pytest.mark.parametrize("given", [None, 3, 1.5])
def test_what_is_no_schedule_is_refused(given):
    with pytest.raises(TypeError, match="must be a name, a set of communication times or a func"):
        settled(given)


def test_times_are_written_in_braces():
    assert read("{0, 4,8}") == {0, 4, 8}
    assert read(" halving:3 ") == "halving:3"
    with pytest.raises(ValueError, match="invalid literal"):
        read("{0,x}")
