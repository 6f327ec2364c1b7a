"""What a question asks of a site: whether it can be understood, and how much it would tell.

The tables list every task that a policy can allow. `LeftVectors` is not among them: it tells of
single rows, and scores stay at the site.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from localpower.core.alignment import ALIGNMENTS
from localpower.core.errors import SiteRefused
from localpower.core.gaussian import MOST_SIGMA
from localpower.core.ledger import names, parts
from localpower.core.rounding import UNITS, finite
from localpower.federation.messages import MOST_SITES
from localpower.worker.private_tasks import NoisedGram, NoisedProduct, NoisedSteps
from localpower.worker.sum_tasks import SmallGram, Spread, Sums
from localpower.worker.sums import word_shape
from localpower.worker.tasks import (
    Describe,
    GramTriangle,
    LeadingFactor,
    LocalTriangle,
    PowerSteps,
    Prepare,
    ProjectRows,
    Refine,
    Task,
    TopVectors,
    Triangle,
)

Check = Callable[[Any, int], bool]
MOST_STEPS = 1000  # local steps of one question
MOST_EXPONENT = 2200  # of a power of two that columns are multiplied by


def _is_flag(value: Any, d: int) -> bool:
    return type(value) is bool


def _is_false(value: Any, d: int) -> bool:
    return value is False


def _is_number(value: Any, d: int) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_vector(value: Any, d: int) -> bool:
    return _is_array(value) and value.dtype.kind == "f" and value.shape == (d,) and finite(value)


def _is_matrix(value: Any, d: int) -> bool:
    known = _is_array(value) and (value.dtype.kind == "f" or value.dtype == np.uint16)
    return known and value.ndim == 2 and value.shape[0] == d >= value.shape[1] and finite(value)


def _is_basis(value: Any, d: int) -> bool:
    return _is_matrix(value, d) and value.shape[1] > 0


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.itemsize <= 8


def _are_exponents(value: Any, d: int) -> bool:
    if type(value) is int:
        return abs(value) <= MOST_EXPONENT
    known = _is_array(value) and value.dtype == np.int64 and value.shape == (d,)
    return known and bool((np.abs(value) <= MOST_EXPONENT).all())


def _within(low: int, high: int) -> Check:
    return lambda value, d: type(value) is int and low <= value <= high


def _maybe(check: Check) -> Check:
    return lambda value, d: value is None or check(value, d)


def _either(first: Check, second: Check) -> Check:
    return lambda value, d: first(value, d) or second(value, d)


def _one_of(*known: str) -> Check:
    return lambda value, d: isinstance(value, str) and value in known


def _is_longer_basis(value: Any, d: int) -> bool:
    """A basis, of rows that may have an entry more."""
    return _is_array(value) and value.ndim == 2 and d <= len(value) <= d + 1 and _unit(value)


def _is_unit_basis(value: Any, d: int) -> bool:
    return _is_longer_basis(value, d) and len(value) == d


def _unit(value: Any) -> bool:
    known = value.dtype.kind == "f" and 0 < value.shape[1] <= len(value)
    return known and bool((np.abs(value) <= 1).all())


def _is_positive(value: Any, d: int) -> bool:
    return _is_number(value, d) and value > 0


_of_rows = _one_of("", "plain", "centred")
_count, _steps, _wire = _within(0, 1 << 53), _within(1, MOST_STEPS), _one_of("", *UNITS)
_width: Check = lambda value, d: type(value) is int and 1 <= value <= d  # noqa: E731
_noised = _is_positive, _within(1, MOST_SIGMA), _within(1, MOST_SITES), _is_flag
FIELDS: dict[type, tuple[Check, ...]] = {  # in the order of the fields
    Sums: (),
    Spread: (_is_vector,),
    Prepare: (
        *(_maybe(_is_vector), _either(_is_number, _is_vector), _are_exponents),
        *(_count, _within(1, 1 << 53), _is_flag, _is_number),
    ),
    PowerSteps: (
        *(_is_basis, _steps, _one_of("none", *ALIGNMENTS), _is_flag, _is_flag, _wire),
        *(_maybe(_is_matrix), _is_number),
    ),
    SmallGram: (_is_basis,),
    GramTriangle: (),
    Refine: (
        *(_is_matrix, _is_basis, _is_basis, _within(0, MOST_STEPS), _within(1, 1 << 53)),
        *(_is_number, _wire, _maybe(_is_matrix)),
    ),
    NoisedGram: _noised,
    NoisedProduct: (*_noised, _is_longer_basis),
    NoisedSteps: (*_noised[:2], _within(1, 1), _is_false, _is_unit_basis, _steps),
    Describe: (_is_flag, _is_false, _of_rows),  # a checksum would confirm guesses
    Triangle: (_is_basis, _is_flag, _is_flag, _is_flag),
    LocalTriangle: (),
    TopVectors: (_width, _is_flag),
    LeadingFactor: (_width, _width, _is_number, _is_number, _within(1, 1 << 53)),
    ProjectRows: (_is_basis, lambda value, d: _is_array(value) and value.ndim == 2),
}
SUMS = (Sums, Spread, Prepare, PowerSteps, SmallGram, GramTriangle, Refine, NoisedGram,
        NoisedProduct)  # fmt: skip
NAMES = {kind.__name__: kind for kind in FIELDS}


def _of(A: Any) -> int:
    return 0 if A is None else int(A.shape[1])


COLUMNS: dict[type, Callable[[Any, int], int]] = {
    Sums: lambda task, d: 1,
    Spread: lambda task, d: 2,
    Prepare: lambda task, d: 0,
    PowerSteps: lambda task, d: (1 + task.send_first) * _of(task.basis) + _of(task.probes),
    SmallGram: lambda task, d: _of(task.basis),
    GramTriangle: lambda task, d: d,
    Refine: lambda task, d: _of(task.block) + _of(task.basis) + 1 + _of(task.probes),
    NoisedGram: lambda task, d: 0,  # privacy has a budget of its own
    NoisedProduct: lambda task, d: 0,
    NoisedSteps: lambda task, d: 0,
    Describe: lambda task, d: 2 + 2 * task.extremes,
    Triangle: lambda task, d: _of(task.basis) + task.variance,
    LocalTriangle: lambda task, d: d,
    TopVectors: lambda task, d: task.rank,
    LeadingFactor: lambda task, d: task.width,
    ProjectRows: lambda task, d: _of(task.basis) + _of(task.rotation),
}


def columns_of(task: Task[Any], d: int) -> int:
    """How many columns of products a reply has, at most: what it tells of the rows."""
    return COLUMNS[type(task)](task, d)


def check_understood(task: Task[Any], d: int) -> None:
    """Refuse a task whose values no coordinator of ours sends."""
    checks = FIELDS.get(type(task))
    if checks is None:
        raise SiteRefused(f"{type(task).__name__} is not a question that a site answers")
    kind: type = type(task)
    for name, check, value in zip(names(kind), checks, parts(task), strict=True):
        if not check(value, d):
            raise SiteRefused(
                f"{type(task).__name__} has a value of {name!r} that cannot be for {d} columns"
            )
    if isinstance(task, Refine) and not task.basis.shape == task.image.shape:
        raise SiteRefused("Refine has an image that is not of its basis")


def reply_size(task: Task[Any], d: int, plain: bool) -> int:
    """Bytes of a reply, at most."""
    if isinstance(task, Prepare):
        return 0
    if not plain:
        return 8 * math.prod(word_shape(task, d))
    most = columns_of(task, d)
    shapes = task.shapes(most, d).values()
    return 8 * sum(math.prod(most if n is None else n for n in shape) for shape in shapes)
