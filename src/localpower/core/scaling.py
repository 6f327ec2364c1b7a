"""Centring and scaling from global statistics: one round to collect them, one to hand them out.

The mean is that of all rows, never a shard's own: subtracting those would lose the variance
between shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from localpower.core.engine import Engine
from localpower.core.linalg import Array
from localpower.core.moments import Moments
from localpower.core.tasks import Describe, Prepare


def column_maximum(stats: Moments) -> Array:
    """Largest magnitude of each column, the paper's scaling."""
    return np.maximum(np.abs(stats.low), np.abs(stats.high))


def column_range(stats: Moments) -> Array:
    """Maximum less minimum of each column."""
    return stats.high - stats.low


def standard_deviation(stats: Moments) -> Array:
    """Root of the mean squared deviation of each column; 0 where that is rounding error."""
    deviation = np.sqrt(stats.m2 / max(stats.rows, 1))
    noise = stats.rows * np.finfo(float).eps * np.abs(stats.mean)
    return np.ldexp(np.where(deviation > noise, deviation, 0.0), stats.exponent)


SAFE_EXPONENT = 30  # rows up to 2**±30 are multiplied as they are, also in float32

SCALES: dict[str, Callable[[Moments], Array]] = {
    "max": column_maximum,
    "minmax": column_range,
    "std": standard_deviation,
}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """How rows enter the factorisation: as ``(a - shift) / scale``, times ``2**-exponent``.

    The power of two is exact; it keeps products of huge or tiny data within the number format.
    `mean` (d,) and `squares` describe the rows so transformed: their mean, and the sum of their
    squared deviations from it. Workers multiply rows by ``2**-raw_exponent`` before all else where
    even a row times a vector could leave the format, and by `factor` afterwards.
    """

    shift: Array | None
    scale: Array | None
    exponent: int
    raw_exponent: int
    mean: Array
    squares: float

    def trace(self, rows: int) -> float:
        """Sum of the squares of all entries of the rows so transformed."""
        return self.squares + rows * float(self.mean @ self.mean)

    @property
    def factor(self) -> Array | float:
        """What the columns are multiplied by, after the raw exponent."""
        if self.scale is None:
            return 2.0 ** (self.raw_exponent - self.exponent)
        return 1.0 / np.ldexp(self.scale, -self.raw_exponent)


def columns(stats: Moments, center: bool, scale: str | None, dtype: np.dtype[Any]) -> Columns:
    """Decide shift and scale from the statistics of all rows, worked with as `dtype`."""
    mean = np.ldexp(stats.mean, stats.exponent)
    divisor = None if scale is None else SCALES[scale](stats)
    if divisor is not None:
        divisor[divisor < np.finfo(dtype).tiny] = 1.0  # nothing there that could be scaled up
    shift = mean if center else stats.low if scale == "minmax" else None
    exponent = stats.exponent if scale is None else 0

    def transformed(x: Array) -> Array:  # from units of 2**stats.exponent
        return x if divisor is None else x / np.ldexp(divisor, -stats.exponent)

    offset = 0.0 if shift is None else np.ldexp(shift, -stats.exponent)
    return Columns(
        shift=shift,
        scale=divisor,
        exponent=exponent,
        raw_exponent=stats.exponent if abs(stats.exponent) > SAFE_EXPONENT else 0,
        mean=transformed(stats.mean - offset),
        squares=float(np.square(transformed(np.sqrt(stats.m2))).sum()),
    )


def describe(engine: Engine, scale: str | None) -> Moments:
    """Collect the statistics of all rows, with column extremes where `scale` needs them."""
    return engine.sum(Describe(extremes=scale in ("max", "minmax")))


def prepare(engine: Engine, how: Columns, products: int = 0, width: int = 1) -> Counter[str]:
    """Tell every shard how its rows enter the factorisation; count the kernels they chose."""
    task = Prepare(how.shift, how.factor, how.raw_exponent, products, width)
    return Counter(reply.name for reply in engine.map(task))
