"""Messages in fewer bytes: numbers rounded on the wire, sums in float64, and no digit lost at last.

Rounding is harmless where it stays below what is still wrong with the answer. What is broadcast may
always be rounded, as the server goes on with what it sent. What is summed is rounded as long as

- in power iteration, that is less than a tenth of the residual. Beyond that, a basis Z is sent as
  the difference ``D`` from one whose exact product is known: ``AᵀA Z = AᵀA Z_r + AᵀA D``, where
  only the small second part is rounded.
- in LocalRitz, the part that the new block has in the answer, times the rounding, is less than
  half of what the tolerance allows: early blocks are sent in full, late ones need few digits. Where
  rounding is what is left in the residual, the answer itself is multiplied once more, in full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from localpower.core.certificate import ROUNDING, Ritz
from localpower.core.linalg import Array
from localpower.core.rounding import UNITS

SAFETY = 10  # times that rounding is below what is still wrong


@dataclass(frozen=True, slots=True)
class WireRounding:
    """Decides what is rounded to the type `name` and what is not.

    `rank` and `tol` are what is asked for, `eps` is the rounding of the products themselves, and
    `shards` is how many of those are added.
    """

    name: str
    rank: int
    tol: float
    eps: float
    shards: int = 1

    def standing(self, exact: tuple[Array, Array] | None, noise: float) -> Standing | None:
        """How good a basis is known to be, from its image, in which there is some `noise`."""
        if exact is None:
            return None
        found = Ritz.of(*exact)
        values, R = found.values, found.residuals[:, : self.rank]
        top = float(values[0]) or 1.0
        floor = max(ROUNDING * self.eps, noise / top)
        least = float(values[self.rank]) if len(values) > self.rank else 0.0
        gap = (float(values[self.rank - 1]) + float(np.linalg.norm(R, 2)) - least) / top
        largest = float(np.linalg.norm(R, axis=0).max()) / top
        return Standing(max(largest, floor), gap, noise / top)

    @property
    def spread(self) -> float:
        """How many times the rounding of one column of one product that may be, in k of them.

        Shards round before they add, and their products may cancel in the sum: ``Σ‖B_i q‖ ≤
        (m Σ‖B_i q‖²)^½ ≤ (m λ_1 Σ qᵀB_i q)^½ ≤ m^½ λ_1``.
        """
        return math.sqrt(self.shards * self.rank)

    def tolerable(self, found: Standing | None) -> float:
        """Rounding of a product of power iteration, relative, that does not matter now."""
        if found is None:
            return 1.0
        return max(found.residual / SAFETY, self.tol * found.gap / (2 * self.spread))

    def limits(self, found: Standing | None) -> bool:
        """Whether rounding so far is what keeps the residual from being smaller."""
        return found is not None and found.noise > 0 and found.residual <= 2 * found.noise

    def for_block(self, found: Standing | None) -> str:
        """The type with the fewest bytes in which products of LocalRitz's next block may come."""
        part = 1.0 if found is None or not found.gap else min(1.0, found.residual / found.gap)
        gap = 0.0 if found is None else found.gap
        goal = max(self.tol * gap, ROUNDING * self.eps) / 2
        known = [(name, unit) for name, unit in UNITS.items() if unit <= UNITS[self.name]]
        fits = [name for name, unit in known if unit * self.spread * part <= goal]
        return fits[-1] if fits else "float64"


@dataclass(frozen=True, slots=True)
class Standing:
    """Largest residual of the vectors asked for, the gap after them, and what rounding did to them.

    All are relative to the largest value.
    """

    residual: float
    gap: float
    noise: float = 0.0
