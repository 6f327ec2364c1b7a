"""How many components explain a share of the whole, and what is known of that number.

The whole is the trace T of ``B = AᵀA``: the total variance of centred rows, else the sum of their
squares. A share asks for the least k whose leading eigenvalues have a sum above ``part·T``, as
scikit-learn counts. Ritz values are at most the eigenvalues, so their sum *proves* that k vectors
reach the share. That q = k - 1 do not takes an upper bound of the sum of the leading q eigenvalues.

In the basis of `certificate`, split the Ritz values at some v: those below it, Θ', may rise to v at
the price ``κ = ‖R'(v - Θ')^-½‖²``; the others by ``d_j`` each, at ``Σ ‖r_j‖²/d_j``. Because
``[[0, Rᵀ], [R, 0]] ⪯ diag(D, R D⁻¹ Rᵀ)`` for every ``D > 0``, nothing outside of the space is then
above v if ``h + κ + Σ ‖r_j‖²/d_j ≤ v``. The best such ``d_j`` add up to ``E²/(v - κ - h)``, where
``E = Σ ‖r_j‖`` over the values that are not below v. So, by Ky Fan's theorem,

    ``λ_1 + … + λ_q ≤ Σ_{j≤q} max(θ_j, v) + E²/(v - κ - h)``   if ``h + κ < v``.

As for the angle, all depends on h, which is proven to be small or tested by random probes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from localpower.core.certificate import ROUNDING, SHARES, TINY, TRACED, Known, Ritz
from localpower.core.linalg import EPS, Array

RAISED = (0.0, 0.01, 0.1, 0.5)  # of the room that the sum has: how far above its last value v is


@dataclass(frozen=True, slots=True)
class Reach:
    """What is known about the number of components that explain a share.

    Attributes
    ----------
    part : float
        The share that the user asked for.
    reached : float
        A lower bound on what the components explain; always proven.
    fewer : float
        An upper bound on what any set with one component fewer explains.
    proven : bool
        Whether `fewer` holds for every matrix.
    p : float
        The chance that random probes look as they did if `fewer` did not hold: 0 if it is proven,
        1 if nothing is known.
    settled : bool
        Whether this is all that can be known: the number is certain, or rounding hides it.
    """

    part: float
    reached: float
    fewer: float
    proven: bool
    p: float
    settled: bool = True

    def least(self, certainty: float) -> bool:
        """Whether no smaller number of components reaches the share, as certain as wanted."""
        return self.fewer <= self.part and (self.proven or self.p <= certainty)


@dataclass(frozen=True, slots=True)
class Share:
    """A share that is asked for, of a matrix of this `trace`; `limit` components reach it surely.

    `eps` is the rounding of products, and `noise` what else may be wrong with them.
    """

    part: float
    trace: float
    limit: int
    eps: float = EPS
    noise: float = 0.0

    def error(self, top: float, passing: float = 0.0) -> float:
        """How much rounding may change a Ritz value, where the largest is `top`."""
        return ROUNDING * self.eps * max(top, TINY) + self.noise + passing

    @property
    def slack(self) -> float:
        """How much rounding may change a sum of squares of all rows."""
        return TRACED * self.trace

    def count(self, values: Array) -> int | None:
        """How many of these values it takes, in descending order; None where all are too few.

        Where rounding hides whether a sum is above the share, one more is taken.
        """
        sums, error = np.cumsum(np.maximum(values, 0.0)), self.error(float(values[:1].sum()))
        errors = error * np.arange(1, len(values) + 1) + self.slack
        enough = (sums - errors > self.part * self.trace) | (self.trace - sums <= errors)
        first = int(np.argmax(enough)) + 1
        if enough.any():
            return min(first, self.limit)
        return self.limit if len(values) >= self.limit else None

    def following(self, found: Ritz, rank: int) -> int:
        """How many components to search for next, after `rank`.

        Where the values found are too few, they may rise yet: ``‖Bx_j‖`` is what a power step would
        make of them. If that is not enough either, the sum is extrapolated, to twice as many.
        """
        reached = self.count(found.values)
        if reached is not None:
            return reached
        sizes = np.hypot(found.values, np.sqrt(np.maximum(np.diagonal(found.gram), 0.0)))
        sizes = np.sort(sizes)[::-1]
        optimistic = self.count(sizes)
        if optimistic is not None:
            return max(rank, optimistic)
        missing = self.part * self.trace - float(sizes.sum())
        more = missing / max(float(sizes[-1]), missing / len(sizes), TINY)
        return min(self.limit, max(rank, len(sizes) + ceil(more)))

    def judge(self, found: Ritz, rank: int, known: Known, certainty: float) -> Reach:
        """What is known of the leading `rank` Ritz vectors, for one who wants that certainty."""
        values, q = found.values, rank - 1
        floor = self.error(float(values[0]), known.passing + known.blur)
        slack, whole = self.slack, self.trace or 1.0
        lead, lost = float(values[:rank].sum()), rank * floor + slack
        reached = max(lead - lost, 0.0) / whole
        least = self.error(float(values[0]))  # what no further round can put right
        final = reached > self.part or rank >= self.limit
        final = bool(final or self.trace - lead + lost <= 2 * (rank * least + slack))
        if rank == 1:
            return Reach(self.part, reached, 0.0, True, 0.0, final)
        before = float(values[:q].sum())
        error = q * floor + slack
        room = self.part * self.trace - before - error
        most = before + max(room, error)
        levels = [float(values[q - 1]) + share * max(room, 0.0) / q for share in RAISED]
        levels.append(float(values[rank - 1]))
        left = max(known.trace - float(values.sum()), 0.0)
        left += float(np.sqrt(len(values))) * known.blur
        hidden = min(known.hidden + floor, left + slack + known.noise)
        if len(values) >= known.columns:
            hidden = left = 0.0
        full = before + left  # no eigenvalue is below its Ritz value
        bound = min([full, *(ceiling(found, q, v, hidden, floor) for v in levels)])
        sure, p = True, 0.0
        if bound > most:
            mean = left / max(known.columns - len(values), 1)
            likely, chance = _likely(found, q, levels, known, (floor, mean, most), certainty)
            if likely < bound:
                bound, sure, p = likely, False, chance
        fewer = float(min((bound + error) / whole, 1.0))
        told = Reach(self.part, reached, fewer, sure, p)
        close = bound - before + error <= 2 * (q * least + slack)
        settled = told.least(certainty) or (close and (sure or p <= certainty))
        return replace(told, settled=bool(final and settled))


def ceiling(found: Ritz, count: int, level: float, hidden: float, floor: float) -> float:
    """Bound the sum of the leading `count` eigenvalues, from a level and what is hidden at most."""
    values, low = found.values, found.values < level
    room = level - _kappa(found, level, floor) - hidden
    if room <= 0:
        return float("inf")
    norms = np.sqrt(np.maximum(np.diagonal(found.gram)[~low], 0.0)) + floor
    return float(np.maximum(values[:count], level).sum()) + float(norms.sum()) ** 2 / room


def _kappa(found: Ritz, level: float, floor: float) -> float:
    """What the Ritz values below the level take to rise to it; residuals are rounded."""
    low = found.values < level
    if not low.any():
        return 0.0
    roots = np.sqrt(level - found.values[low])
    K = found.gram[np.ix_(low, low)] + np.diag(np.full(int(low.sum()), floor**2))
    return max(float(np.linalg.eigvalsh(K / roots / roots[:, None])[-1]), 0.0)


def _likely(
    found: Ritz,
    count: int,
    levels: list[float],
    known: Known,
    limits: tuple[float, float, float],
    certainty: float,
) -> tuple[float, float]:
    """The first bound within the limit that probes make as certain as wanted, or else the best p.

    `limits` are rounding, the mean of what is outside, and what the sum may be at most. Without
    probes, what is seen is no more than a guess.
    """
    floor, mean, most = limits
    best = float("inf"), 1.0
    covered = known.covered if known.chance is not None else ((len(found.values), 0.0),)
    for level in levels:
        for columns, lacking in covered:
            part = found.leading(columns)
            top = level - _kappa(part, level, floor)
            for share in SHARES:
                h = top - share * (top - mean)
                bound = ceiling(part, count, level, h, floor)
                if bound > most:
                    continue
                p = 1.0 if known.chance is None else known.chance(h - floor - lacking)
                if p <= certainty:
                    return bound, p
                best = min(best, (bound, p), key=lambda pair: pair[::-1])
    return best
