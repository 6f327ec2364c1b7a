"""What is known of a share that was asked for, in words."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from localpower.core.text import counted

if TYPE_CHECKING:
    from localpower.result import Result

MOST_DIGITS = 12  # of a percentage


def asked_share(run: Mapping[str, Any]) -> str:
    """The share that a run was asked for, and of what; nothing if it was asked for a number."""
    known = run.get("reach") or {}
    return f"{percent(known['part'])} of {whole_of(run)}" if known else ""


def whole_of(run: Mapping[str, Any]) -> str:
    """What a share is of."""
    return "the variance" if run.get("center") else "the sum of squares"


def reach_text(result: Result) -> str:
    """Say how many components reach the share, and whether fewer would; nothing without a share."""
    found, run = result.reach, result.run
    if found is None:
        return ""
    k, asked, what = len(result.singular_values), percent(found.part), whole_of(run)
    all_k = counted(k, "component")
    if not result.singular_values.any():
        return f"there is nothing to explain: {what} is zero"
    if found.reached <= found.part and not found.settled:
        reached = percent(found.reached, found.part, up=False)
        return f"{all_k} {_reach(k)} {reached} of {what} (proven), and not {asked}"
    text = f"{asked} of {what} is reached by {all_k} (proven)"
    if found.reached <= found.part:  # all of it is explained, but for rounding
        text = f"{all_k} {_reach(k)} {asked} of {what}, up to rounding"
    wanted = run.get("certainty")
    enough = wanted if isinstance(wanted, int | float) else 0.0
    if k == 1:
        return text
    fewer = percent(found.fewer, found.part, up=True)
    if found.least(enough):
        sure = "proven" if found.proven else f"tested, p = {found.p:.0e}"
        return f"{text}; {k - 1} {_reach(k - 1)} at most {fewer} ({sure})"
    if found.fewer <= found.part:
        return f"{text}; {k - 1} {_reach(k - 1)} at most {fewer} if nothing was missed"
    why = "rounding hides whether they do" if found.settled else "that is not certain"
    return f"{text}; {k - 1} may do as well: {why}"


def _reach(count: int) -> str:
    return "reach" if count != 1 else "reaches"


def percent(value: float, limit: float | None = None, up: bool = False) -> str:
    """A share in percent; a bound is rounded to its safe side, and stays on its side of the limit.

    Examples
    --------
    >>> percent(0.95), percent(0.9432, 0.95, up=True), percent(0.94999981, 0.95, up=True)
    ('95 %', '94.4 %', '94.99999 %')
    """
    if limit is None:
        return f"{100 * value:.{MOST_DIGITS}g} %"
    for digits in range(1, MOST_DIGITS):
        scale = 10.0**digits
        shown = (ceil if up else floor)(100 * value * scale) / scale
        if (shown < 100 * limit) == (value < limit) and shown != 100 * limit:
            break
    return f"{shown:.{digits}f} %"
