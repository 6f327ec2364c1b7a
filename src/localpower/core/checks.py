"""Checks of arguments: errors name the argument, its value and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number, `least` or more; `name` is the argument that it was given as."""
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} must be a whole number") from None
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} must be a whole number")
    if number < least:
        raise ValueError(f"{name}={value!r} must be {least} or more")
    return number


def flag(name: str, value: Any) -> bool:
    """True or False, as such: a text such as "no" would count as true, and 0 may be a place."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} must be True or False")
    return bool(value)


def count_or_share(name: str, value: Any) -> int | float:
    """A whole number, 1 or more; or a share of the whole, a float between 0 and 1."""
    if not isinstance(value, float | np.floating):
        return whole(name, value)
    if 0 < value < 1:
        return float(value)
    if value > 1:
        raise TypeError(
            f"{name}={value!r} must be a whole number of components, or a share between 0 and 1"
        )
    raise ValueError(
        f"{name}={value!r} is a share, which must be above 0 and below 1: give such a number, or a "
        "whole number of components, such as 1"
    )


def is_number(value: Any) -> bool:
    """Tell a number from anything else, also from True and False."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def real(name: str, value: Any) -> float:
    """A number."""
    if not is_number(value):
        raise TypeError(f"{name}={value!r} must be a number")
    return float(value)


def positive(name: str, value: Any) -> float:
    """A number above 0; None stands for no limit."""
    if value is None:
        return float("inf")
    if not is_number(value) or not value > 0:
        raise ValueError(f"{name}={value!r} must be a number above 0, or None")
    return float(value)


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """One of the names that are `known`."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={value!r} is not known: take one of {', '.join(known)}")
    return value


def sine(value: Any, *, zero: bool = True) -> float:
    """A tolerance: the sine of an angle."""
    if not is_number(value) or not 0 <= value < 1 or (not zero and not value):
        raise ValueError(
            f"tol={value!r} must be the sine of an angle: take 0 {'<=' if zero else '<'} tol < 1"
        )
    return float(value)
