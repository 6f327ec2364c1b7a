"""Centring and scaling from global statistics: one round to collect them, one to hand them out.

The mean is that of all rows, never a shard's own: subtracting those would lose the variance
between shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.core.linalg import EPS, Array
from localpower.core.ring import UNIT_BITS
from localpower.engines.base import Engine
from localpower.worker.moments import SMALLEST, Exponents, Moments
from localpower.worker.sum_tasks import Spread, Sums
from localpower.worker.tasks import Describe, Prepare


def column_maximum(stats: Moments) -> Array:
    """Largest magnitude of each column, the paper's scaling."""
    return np.ldexp(np.maximum(np.abs(stats.low), np.abs(stats.high)), -stats.exponent)


def column_range(stats: Moments) -> Array:
    """Maximum less minimum of each column."""
    return np.ldexp(stats.high, -stats.exponent) - np.ldexp(stats.low, -stats.exponent)


def standard_deviation(stats: Moments) -> Array:
    """Root of the mean squared deviation of each column; 0 where that is rounding error."""
    deviation = np.sqrt(stats.m2 / max(stats.rows, 1))
    return np.where(deviation > CONSTANT * EPS * np.abs(stats.mean), deviation, 0.0)


SAFE_EXPONENT = 30  # rows up to 2**±30 are multiplied as they are, also in float32
LOSS = 1e-2  # deviations, of all squares, from which on their rounding in float32 is seen
CONSTANT = 3.0  # units of rounding of the mean: a column that varies by less has one value
SUMS = 4.0  # units of rounding: equal rows round all sums of float64 one way, by up to 20 units
IMPLICIT = 4.0  # deviations of the largest column: up to here sparse rows are shifted implicitly
EXPLICIT = 4.0  # deviations: a larger mean needs a column with an entry in nine rows of ten

SCALES: dict[str, Callable[[Moments], Array]] = {  # in units of 2**stats.exponent
    "max": column_maximum,
    "minmax": column_range,
    "std": standard_deviation,
}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """How rows enter the factorisation: as ``(a - shift) / scale``, times ``2**-exponent``.

    The power of two is exact; it keeps products of huge or tiny data within the number format.
    `mean` (d,) and `squares` describe the rows so transformed: their mean, and the sum of their
    squared deviations from it. Workers multiply rows by ``2**-raw_exponent``, which may be one for
    each column, before all else where even a row times a vector could leave the format, and by
    `factor` afterwards; that is 0 for columns that have one value and are shifted by it.

    `noise` bounds what the rounding of the mean may do to ``AᵀA`` of these rows, in the spectral
    norm: little, but R factors tell values that are smaller. `far` tells whether means are so
    large that sparse rows have to be shifted entry by entry where columns are nearly full, and
    `loss` what a sparse row adds to the noise as other columns are not. `parts` (d,) are the
    squared deviations of each column.
    """

    shift: Array | None
    scale: Array | None
    exponent: int
    raw_exponent: int | Exponents
    factor: Array | float
    mean: Array
    squares: float
    noise: float = 0.0
    far: bool = False
    loss: float = 0.0
    parts: Array = field(default_factory=lambda: np.zeros(0))

    def diagonal(self, rows: int) -> Array:
        """Sums of the squares of each column of the rows so transformed."""
        squares: Array = self.parts + rows * np.square(self.mean)
        return squares

    def trace(self, rows: int) -> float:
        """Sum of the squares of all entries of the rows so transformed."""
        return self.squares + rows * float(self.mean @ self.mean)

    def eps_of_sums(self, dtype: np.dtype[Any]) -> float:
        """Rounding of ``AᵀA`` summed in float64; that of `dtype` where rows are rounded to it."""
        kept = self.shift is None or (
            not self.far and bool((self.shift.astype(dtype) == self.shift).all())
        )
        return SUMS * EPS if kept else float(np.finfo(dtype).eps)

    def is_far(self, rows: int) -> bool:
        """Whether deviations from the mean are so small that they have lost digits in float32."""
        return self.squares <= LOSS * self.trace(rows)


def columns(stats: Moments, center: bool, scale: str | None, dtype: np.dtype[Any]) -> Columns:
    """Decide shift and scale from the statistics of all rows, worked with as `dtype`."""
    if stats.bad is not None:
        raise DataError(
            f"NaN or infinity in column {stats.bad[1]} (counted from 0); remove such rows or fill "
            "in values before"
        )
    plain = np.ldexp(stats.mean, stats.exponent)
    if scale is None:  # what is tiny beside the largest column may vanish
        stats = stats.in_units(_common(stats, center, dtype))
        divisor, exponent, units = None, int(stats.exponent), np.ones_like(stats.mean)
    else:
        divisor, exponent, units = _divisor(stats, center, scale)
    shift = stats.low if scale == "minmax" else None
    if center:
        shift = _shift(plain, stats, units, dtype)
    offset = 0.0 if shift is None else np.ldexp(shift, -stats.exponent)
    mean = (stats.mean - offset + stats.rest) * units
    squares = np.square(np.sqrt(stats.m2) * units)
    raw, factor = _in_range(stats, divisor, exponent, units)
    eps, rows = float(np.finfo(dtype).eps), max(stats.rows, 1)
    merged = (np.ndim(stats.rest) == 0) & (stats.m2 > 0)  # a mean of one value is exact
    off = np.abs(mean) + 2 * EPS * np.where(merged, np.abs(stats.mean) * units, 0.0)
    noise = 2 * rows * float(np.square(off).sum()) if center else 0.0
    far, loss = False, 0.0
    if shift is not None:
        size, spread = np.abs(offset * units), np.sqrt(squares / rows + np.square(mean))
        top = float(spread.max(initial=0.0))
        largest = float(size.max(initial=0.0))  # whose square may overflow
        far = bool(largest > IMPLICIT * top or np.linalg.norm(size) > IMPLICIT * top)
        left = float(np.linalg.norm(size[size <= EXPLICIT * spread] if far else size))
        if left > 1.5 * np.linalg.norm(spread):  # of products, and of Gram matrices
            loss = 4 * eps * left * top + 8 * EPS * left**2
    return Columns(
        shift=shift,
        scale=divisor,
        exponent=exponent,
        raw_exponent=raw,
        factor=factor,
        mean=mean,
        squares=float(squares.sum()),
        noise=noise,
        far=far,
        loss=loss,
        parts=squares,
    )


def _common(stats: Moments, center: bool, dtype: np.dtype[Any]) -> int:
    """Exponent of all columns: of entries; where those are far larger, of what is left of them."""
    most = int(np.max(stats.exponent, initial=SMALLEST))
    if not center or not stats.m2.any():
        return most
    each = np.frexp(np.sqrt(stats.m2))[1] + stats.exponent
    own = max(int(each[stats.m2 > 0].max()), SMALLEST)
    if own >= most - SAFE_EXPONENT:
        return most
    return max(own, most - np.finfo(dtype).maxexp + 8)  # entries must not overflow before


def _divisor(stats: Moments, center: bool, scale: str) -> tuple[Array, int, Array]:
    """What columns are divided by; the exponent of what comes of it; and 1 in these units.

    The last is 0 where nothing is left of a column: it has one value, and is shifted by it.
    """
    limits = np.finfo(np.float64)
    found = SCALES[scale](stats)
    exponent = 0
    with np.errstate(over="ignore"):  # a range may be twice the largest number
        plain = np.clip(np.ldexp(found, stats.exponent), limits.smallest_subnormal, limits.max)
        divisor = np.where(found > 0, plain, 1.0)
        if center or scale == "minmax":
            units = 1.0 / np.ldexp(divisor, -stats.exponent)
            return divisor, exponent, np.where(found > 0, units, 0.0)
        size = np.abs(stats.mean) + np.sqrt(stats.m2 / max(stats.rows, 1))
        powers = np.frexp(size)[1] + stats.exponent - np.frexp(divisor)[1] + 1
        most = int(powers[size > 0].max()) if size.any() else 0
        exponent = most if abs(most) > SAFE_EXPONENT else 0
        return divisor, exponent, 1.0 / np.ldexp(divisor, exponent - stats.exponent)


def _shift(mean: Array, stats: Moments, units: Array, dtype: np.dtype[Any]) -> Array:
    """The mean, as a number that `dtype` can hold if that does no harm."""
    rounding = mean.astype(dtype).astype(np.float64)
    moved = (np.ldexp(rounding, -stats.exponent) - stats.mean) * units
    largest = np.square(np.sqrt(stats.m2) * units).max(initial=0.0)
    harm = stats.rows * np.square(moved).sum()
    return rounding if harm <= np.finfo(dtype).eps / 4 * largest else mean


def _in_range(
    stats: Moments, divisor: Array | None, exponent: int, units: Array
) -> tuple[int | Exponents, Array | float]:
    """Find the powers of two that bring columns to about 1, and the factor that is left to do."""
    if divisor is None:
        raw = exponent if abs(exponent) > SAFE_EXPONENT else 0
        return raw, 2.0 ** (raw - exponent)
    power = np.maximum(np.frexp(divisor)[1] + exponent, SMALLEST)
    power = np.where(units > 0, power, stats.exponent)[(stats.mean != 0) | (stats.m2 > 0)]
    least, most = (int(f(power)) if power.size else 0 for f in (np.min, np.max))
    if max(-least, most) <= SAFE_EXPONENT:
        common: int | Exponents = 0
    elif most - least <= 2 * SAFE_EXPONENT:
        common = (least + most) // 2
    else:
        common = np.zeros(stats.mean.size, np.int64)
        common[(stats.mean != 0) | (stats.m2 > 0)] = power
    with np.errstate(divide="ignore", over="ignore"):
        factor = 1.0 / np.ldexp(divisor, exponent - common)
    return common, np.where(units > 0, factor, 0.0)


def dividing(scale: Array | None) -> tuple[Array | float, int | Exponents]:
    """Factor and exponent by which `LocalMatrix.prepare` divides columns, however large `scale`."""
    if scale is None:
        return 1.0, 0
    scale = np.asarray(scale, dtype=np.float64)
    power = np.maximum(np.frexp(scale)[1], SMALLEST)
    if (np.abs(power) <= SAFE_EXPONENT).all():
        return 1.0 / scale, 0
    return 1.0 / np.ldexp(scale, -power), power


def describe(
    engine: Engine, scale: str | None, checksum: bool = False, center: bool | None = None
) -> Moments:
    """Collect the statistics of all rows, with column extremes where `scale` needs them.

    If a Gram matrix comes next, `center` is whether of centred rows.
    """
    if engine.only_sums:
        return summed(engine)
    shifts = "centred" if center or scale == "minmax" else "plain"
    ahead = "" if center is None else shifts
    return engine.sum(Describe(scale in ("max", "minmax"), checksum, ahead))


def summed(engine: Engine) -> Moments:
    """The same from sums over all shards: of entries, then of deviations from their mean."""
    sums = engine.sum(Sums())
    rows = round(sums.rows)
    mean = sums.first / max(rows, 1)
    spread = engine.sum(Spread(mean))
    rest = spread.first / max(rows, 1)
    m2 = np.maximum(spread.second - rows * np.square(rest), 0.0)
    m2 += np.where(m2 > 0, 2.0**-UNIT_BITS * len(engine.rows), 0.0)  # at most that was cut off
    nothing = np.empty(0)
    stats = Moments(rows, 0, mean, m2, nothing, nothing, rest=rest).in_own_units()
    return stats.in_units(int(np.max(stats.exponent, initial=SMALLEST)))


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What shards said when they were prepared.

    `kernels` counts the ways in which they multiply. `noise` is how far, in the spectral norm,
    ``AᵀA`` may be from that of the exact mean and scale because of what cancels, beyond the
    ordinary rounding of products.
    """

    kernels: Counter[str]
    noise: float


def prepare(engine: Engine, how: Columns, products: int = 0, width: int = 1) -> Prepared:
    """Tell every shard how its rows enter the factorisation."""
    task = Prepare(how.shift, how.factor, how.raw_exponent, products, width, how.far, how.loss)
    kernels, noise = Counter[str](), how.noise
    for reply in engine.map(task):
        kernels[reply.name] += 1
        noise += reply.noise
    return Prepared(kernels, noise)
