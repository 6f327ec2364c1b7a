"""Schedules: how many local steps each round takes.

A schedule maps the number of the round, from 0, to its steps p; 0 ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from operator import index
from typing import Any

Schedule = Callable[[int], int]
MOST_TIMES = 1_000_000  # that an iterator may give


def constant(steps: int) -> Schedule:
    """Take `steps` in every round: ``I_T = {0, p, 2p, …}``."""
    return lambda _: steps


def halving(steps: int, every: int = 1) -> Schedule:
    """Halve the steps every `every` rounds, down to one: the paper's decay.

    Examples
    --------
    >>> [halving(8, every=2)(t) for t in range(7)]
    [8, 8, 4, 4, 2, 2, 1]
    """
    return lambda t: max(1, steps >> (t // every))


def linear(steps: int, every: int = 1) -> Schedule:
    """Take one step less every `every` rounds, down to one."""
    return lambda t: max(1, steps - t // every)


class At:
    """Communicate exactly at the given times, the paper's set ``I_T``.

    Examples
    --------
    >>> schedule = At({0, 4, 6, 7})
    >>> [schedule(t) for t in range(4)]
    [4, 2, 1, 0]
    """

    def __init__(self, times: Iterable[int]) -> None:
        self.times = sorted({0, *(index(time) for time in times)})
        if self.times[0] < 0 or len(self.times) < 2:
            raise ValueError(
                f"schedule={self.times} needs at least one communication time after 0, and none "
                "below it: give a set such as {0, 4, 8}"
            )
        self._steps = [later - earlier for earlier, later in pairwise(self.times)]

    def __call__(self, t: int) -> int:
        """Return the steps of a round, 0 after the last time."""
        return self._steps[t] if t < len(self._steps) else 0


class Adaptive:
    """Take `steps` in every round, halved whenever the residual does not fall to `FALL` of it.

    At one step a round it is DPI, which cannot stall. How many steps are left is in the state.
    """

    FALL = 0.5

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, t: int) -> int:
        """Return the steps of a round in which nothing has stalled yet."""
        return self.steps

    def pace(self, steps: int, residual: float, before: float) -> int:
        """Steps of the next round, after one of `steps` that changed the residual so."""
        return steps if residual <= self.FALL * before else max(1, steps // 2)


class Function:
    """A user's function, which is called once for every round, when the round begins."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function = function
        self._known: dict[int, int] = {}

    def __repr__(self) -> str:
        return repr(self._function)

    def __call__(self, t: int) -> int:
        """Return the steps of a round; refuse what is no whole number."""
        if t not in self._known:
            steps = self._function(t)
            try:
                self._known[t] = index(steps)
            except TypeError:
                raise TypeError(
                    f"schedule({t}) gave {steps!r}: it must give a whole number, 0 to end"
                ) from None
        return self._known[t]


def settled(schedule: Any) -> Any:
    """What a user gives as ``schedule=``, checked, in a form that can be read more than once.

    Names stay; functions are called once for every round; times become a tuple.
    """
    if isinstance(schedule, str | Function):
        parse(schedule, 1)
        return schedule
    if callable(schedule):
        return Function(schedule)
    times = islice(schedule, MOST_TIMES + 1) if isinstance(schedule, Iterator) else schedule
    found = tuple(_at(times).times)
    if len(found) > MOST_TIMES:
        raise ValueError(
            f"schedule={schedule!r} gives more than {MOST_TIMES} times: give a set that ends "
            "earlier, or a function from the round to its steps"
        )
    return found


def read(text: str) -> str | set[int]:
    """What a text stands for: a name, or times in braces, as ``{0,4,8}``."""
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        return {int(time) for time in inner[1:-1].split(",")}
    return inner


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "halving": halving,
    "linear": linear,
    "adaptive": Adaptive,
}


def parse(schedule: str | Iterable[int] | Schedule, steps: int) -> Schedule:
    """Turn what `settled` returns into a schedule."""
    if callable(schedule):
        return schedule
    if not isinstance(schedule, str):
        return _at(schedule)
    name, _, every = schedule.partition(":")
    if name not in SCHEDULES or (
        every and (name in ("constant", "adaptive") or not every.isdecimal())
    ):
        raise ValueError(
            f"schedule={schedule!r} is not known: take one of {', '.join(SCHEDULES)}, "
            "'halving:3' to halve every third round, a set of communication times, or a "
            "function from the round to its steps"
        )
    if every and int(every) == 0:
        raise ValueError(f"schedule={schedule!r}: decay every 1 or more rounds, not every 0")
    return SCHEDULES[name](steps, int(every)) if every else SCHEDULES[name](steps)


def _at(times: Any) -> At:
    try:
        return At(times)
    except TypeError:
        raise TypeError(
            f"schedule={times!r} must be a name, a set of communication times or a function"
        ) from None
