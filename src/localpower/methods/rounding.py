"""Messages in fewer bytes: numbers rounded on the wire, sums in float64, and no digit lost at last.

Rounding is harmless where it stays below what is still wrong with the answer. What is broadcast may
always be rounded, as the server goes on with what it sent. What is summed is rounded as long as

- in power iteration, that is less than a tenth of the residual. Beyond that, a basis Z is sent as
  the difference ``D`` from one whose exact product is known: ``AᵀA Z = AᵀA Z_r + AᵀA D``, where
  only the small second part is rounded.
- in LocalRitz, the part that the new block has in the answer, times the rounding, is less than
  half of what the tolerance allows. Shards are told how much a column may lose, and take as many
  bytes as that needs (`to_bytes`): five or six at first, one or two at last. Where rounding is what
  is left in the residual, the answer itself is multiplied once more, in full.

What LocalRitz only proposes, its merged start and its blocks, loses what `COARSE` allows, or more
where a block need not be better than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from localpower.core.certificate import ROUNDING, Ritz
from localpower.core.linalg import Array

SAFETY = 10  # times that rounding is below what is still wrong
SHARP = 0.01  # of the gap: what may be lost of the image of any block, as the bound needs that
BLURRED = 3  # times what was lost of all images: a gap that is no larger is not seen
WHOLE = 1e-4  # of the tolerance: what rounding may do where all pairs are sent, whatever the gap
COARSE = {"float32": 2.0**-20, "bfloat16": 2.0**-12}  # what a proposal may lose, of its norm


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

    def again(self, found: Standing | None, columns: int) -> int:
        """How many vectors of LocalRitz's space to multiply again, in full: some, or all `columns`.

        All, where only what rounding did to the whole space keeps a bound from being good: a gap
        was thought to be larger. Those asked for, where rounding is what is left in their residual.
        """
        if found is None:
            return 0
        if found.residual <= self.tol * found.gap and BLURRED * found.blur > found.gap:
            return columns
        return self.rank if self.limits(found) else 0

    def wanted(self, found: Standing) -> float:
        """What may be wrong with the image of LocalRitz's next block, of the largest value."""
        return max(self.tol * found.gap, ROUNDING * self.eps) / (2 * found.part)

    def for_block(self, found: Standing | None) -> float:
        """What a shard may take from a column of that image, of the largest value.

        All shards add to what is wrong, and it is in a row of the projected matrix as in a column.
        """
        if found is None:
            return 0.0
        most = min(self.wanted(found), SHARP * found.gap)
        return most / (2 * math.sqrt(self.rank) * self.shards)

    def for_start(self, whole: bool) -> float:
        """What rounding may do to a pair of a merged start; the `whole` of them is the answer."""
        return max(WHOLE * self.tol, self.eps) / 2 if whole else COARSE[self.name]

    def for_proposal(self, found: Standing | None) -> float:
        """What a column of the block itself may lose: it need not be better than its image."""
        coarse = COARSE[self.name]
        return coarse if found is None else max(coarse, min(self.wanted(found), 1.0) / SAFETY**2)

    def for_basis(self, found: Standing | None) -> float:
        """What a vector may lose from which shards go on alone; its image, of the largest value."""
        return 0.0 if found is None else found.residual / SAFETY**3


@dataclass(frozen=True, slots=True)
class Standing:
    """Largest residual of the vectors asked for, the gap after them, and what rounding did to them.

    `blur` is what it did to the whole search space. All are relative to the largest value.
    """

    residual: float
    gap: float
    noise: float = 0.0
    blur: float = 0.0

    @property
    def part(self) -> float:
        """The part that a new block has in the answer."""
        return min(1.0, self.residual / self.gap) if self.gap else 1.0
