"""How far a basis is from the answer, told without knowing it (an extension of the paper).

A method has an orthonormal search space S, (d, c), and the exact image ``BS`` of ``B = AᵀA``. Its
Ritz pairs are ``(θ_i, x_i)``, with residuals ``r_i = Bx_i - θ_i x_i``, which are orthogonal to S.
In the basis of the leading k Ritz vectors, the others, and all outside of S, the matrix is

    ``[[Θ_k, 0, R_kᵀ], [0, Θ', R'ᵀ], [R_k, R', H]]``,   ``λ_max(H) ≤ h``.

Every pair is exact for a matrix within ``‖r_i‖`` of B. And the true leading k vectors U, whose
values are at least θ_k, solve ``(λ - M)e = (0, R_k X_kᵀu)`` for their part e outside of X_k, with M
the lower right 2×2 block. With ``D = θ_k - Θ'``, ``κ = ‖R'D^-½‖²`` and ``τ = ‖R'D⁻¹‖``,

    ``sin θ ≤ ‖R_k‖_F (1 + τ²)^½/(θ_k - κ - h)``   if that is positive, and ``Θ' < θ_k``.

Where the computed image is that of a matrix ``B + E``, ``‖E‖ ≤ ε``, the second factor grows by
``1/(1 - ε‖(θ_k - M)⁻¹‖)``.

So all depends on h, the largest eigenvalue outside of the search space. It is *proven* to be small
where the trace leaves little, or where a method knows a bound. Else it is *probable*: `evidence`
tells the chance p that it is as large as would matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from localpower.core.linalg import Array, eigen, largest_eigenvalue

TINY = 1e-250  # rows are scaled: what is smaller is zero, and eps of it is a number yet
SLACK = 10.0  # a reported error is never below the true one by more
ROUNDING = 8.0  # units of eps·θ_1 that a residual cannot be told from zero below
TRACED = 64 * 2.0**-52  # of a trace: its rounding, where means are up to 64 deviations
# of the room that h has: what is claimed to be free of hidden values
SHARES = (0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.01)


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """What is known about the leading k vectors, and how sure that is.

    Attributes
    ----------
    angle : float
        Bound on the sine of the angle to the true subspace; 1 if no gap is seen.
    residuals : (k,) ndarray
        ``‖r_j‖/θ_j``: each pair is exact for a matrix this near, relative to its own value (or to
        the largest value if its own is zero up to rounding). Vectors with values so near that
        rounding may exchange them all get the largest of their residuals.
    proven : bool
        Whether nothing can be hidden: the bound holds for every matrix.
    p : float
        The chance that random probes look as they did if something large enough to matter were
        hidden. For every matrix, a wrong answer gets a p ≤ α with a chance of at most α. It is 0
        if the bound is proven, and 1 if nothing is known.
    gap : float
        Upper bound on ``(σ_k - σ_{k+1})/σ_k``, up to rounding of the θ:
        ``(θ_k + ‖R_k‖ - θ_{k+1})/θ_k``.
    rounded : bool
        Whether residuals are as small as rounding allows, and that is not small enough.
    vanishing : bool
        Whether the last value is zero, up to rounding.
    sharper : bool
        Whether more evidence may make a smaller angle just as probable.
    """

    angle: float
    residuals: Array
    proven: bool
    p: float
    gap: float
    rounded: bool
    vanishing: bool = False
    sharper: bool = False

    @property
    def residual(self) -> float:
        """The largest residual."""
        return float(self.residuals.max(initial=0.0))

    def sure(self, certainty: float) -> bool:
        """Whether it is proven, or as probable as wanted."""
        return self.proven or self.p <= certainty


@dataclass(frozen=True, slots=True, eq=False)
class Ritz:
    """Ritz values (c,), descending; residuals (·, r) of the leading ones; ``RᵀR`` (c, c) of all.

    Instead of residuals any matrix with the same inner products will do.
    """

    values: Array
    residuals: Array
    gram: Array

    def leading(self, count: int) -> Ritz:
        """The first of them alone."""
        return Ritz(self.values[:count], self.residuals[:, :count], self.gram[:count, :count])

    def coupling(self) -> float:
        """The spectral norm of all residuals."""
        return float(np.sqrt(max(float(np.linalg.eigvalsh(self.gram)[-1]), 0.0)))

    @classmethod
    def of(cls, X: Array, G: Array) -> Ritz:
        """From an orthonormal basis and its image."""
        wide = (A.astype(np.float64, copy=False) for A in (X, G))
        values, X, G = rayleigh_ritz(*wide)
        R = G - X * values
        return cls(values, R, R.T @ R)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of B apart from Ritz pairs.

    `columns` is its size and `trace` its trace; `hidden` bounds its largest eigenvalue outside of
    the search space. `chance` tells the p of there being one of at least some value outside of the
    base of probes, and `covered` how many leading Ritz vectors cover that base, but for so much as
    may hide in what they lack. `eps` is the relative rounding of products, `noise` what else may be
    wrong with them, and `passing` what further rounds may put right of those of the leading
    vectors. The image of the whole search space is that of a matrix within `blur` of B. Where rows
    enter ``AᵀA`` as they are, `eps_of_sums` is the relative rounding of their sums alone.
    """

    columns: int
    trace: float
    eps: float
    noise: float = 0.0
    passing: float = 0.0
    blur: float = 0.0
    hidden: float = float("inf")
    chance: Callable[[float], float] | None = None
    covered: tuple[tuple[int, float], ...] = ()
    eps_of_sums: float = float("inf")


def rayleigh_ritz(X: Array, G: Array) -> tuple[Array, Array, Array]:
    """Ritz values, descending, with X and G turned to the Ritz vectors."""
    values, turn = ritz_turn(X.T @ G)
    return values, X @ turn, G @ turn


def ritz_turn(H: Array) -> tuple[Array, Array]:
    """Ritz values, descending, and what turns X to the Ritz vectors, from ``H = XᵀG``.

    The lower half of H counts: it comes from the first columns of G, which are not rounded as much
    as those that were added later.
    """
    values, turn = eigen(H)
    return values[::-1], turn[:, ::-1]


def certify(found: Ritz, rank: int, known: Known, tol: float, certainty: float) -> Certificate:
    """Judge the leading `rank` Ritz vectors, for one who wants `tol` with that `certainty`."""
    values, R = found.values, found.residuals
    top = max(float(values[0]), TINY)
    last = float(values[rank - 1])
    least_floor = ROUNDING * known.eps * top + known.noise
    floor = least_floor + known.passing
    norms = np.sqrt(np.square(R).sum(axis=0))
    zero = last + known.passing <= least_floor
    least = float(values[rank]) if len(values) > rank else 0.0
    left = max(known.trace - float(values.sum()), 0.0)
    wrong = max(ROUNDING * known.eps, TRACED) * known.trace + known.noise
    zeros = 2 * wrong  # of a trace, which tells no more
    wrong += float(np.sqrt(len(values))) * known.blur  # the trace of what is wrong inside
    hidden = min(known.hidden + floor, left + wrong)
    if len(values) >= known.columns:
        hidden = left = 0.0
    gap = 0.0 if zero else 1.0  # of a value that further rounds may tell from zero
    if last > floor:
        gap = (last + float(np.linalg.norm(R[:, :rank], 2)) - least) / last
    if gap <= tol:  # no gap: is anything hidden that is larger than the last value?
        limit = max(last * (1 + SLACK * tol), last + SLACK * floor)
        if zero:
            limit = max(limit, zeros, SLACK * (floor + known.eps * known.trace), TINY)
        angle, proven, p = 1.0, *_sure(found, rank, limit, hidden, floor, known)
        hopeless = sharper = False
    else:
        error = float(np.linalg.norm(norms[:rank]))
        outside = left / max(known.columns - len(values), 1)
        errors = error, float(norms[rank : rank + 1].sum()), floor
        outsides = hidden, outside
        angle, proven, p, sharper = _angle(found, rank, errors, outsides, known, tol, certainty)
        best = (
            Bound(last, 0.0, least_floor, *_couplings(found, rank, last)) if least < last else None
        )
        hopeless = best is None or 3 * best.at(outside) > tol
    settled = len(values) >= known.columns or bool((norms[:rank] <= 2 * least_floor).all())
    settled = settled and known.passing <= least_floor
    units = np.where(values[:rank] + known.passing > least_floor, floor, top)
    units = np.where(values[:rank] > floor, values[:rank], units)
    distances = np.abs(values[:rank, None] - values[: len(norms)])
    turned = norms * (floor / np.maximum(distances, floor))  # rounding turns vectors by so much
    return Certificate(
        angle=float(angle),
        residuals=np.maximum(turned.max(axis=1), floor) / units,
        proven=proven,
        p=p,
        gap=gap,
        rounded=settled and hopeless,
        vanishing=zero,
        sharper=sharper,
    )


def certify_factor(sizes: Array, rank: int, eps: float) -> Certificate:
    """Judge singular vectors of a triangular factor of all rows, by its singular values."""
    top, last = float(sizes[0]), float(sizes[rank - 1])
    error = ROUNDING * eps * top
    following = float(sizes[rank]) if rank < len(sizes) else 0.0
    apart = last - following if rank < len(sizes) else float("inf")
    zero = last <= error
    return Certificate(
        angle=min(1.0, error / apart) if apart > 0 else 1.0,
        residuals=2 * error / np.where(sizes[:rank] > error, sizes[:rank], max(top, error, TINY)),
        proven=True,
        p=0.0,
        gap=0.0 if zero else 1 - (following / last) ** 2,
        rounded=apart <= 0 or error / apart > 0,
        vanishing=zero,
    )


def _couplings(found: Ritz, rank: int, value: float) -> tuple[float, float, float]:
    """κ, τ and the least of D, at a value that is above all further Ritz values."""
    rest = found.values[rank:]
    if not len(rest):
        return 0.0, 0.0, float("inf")
    D = value - rest
    K = found.gram[rank:, rank:]
    kappa = largest_eigenvalue(K / np.sqrt(D) / np.sqrt(D)[:, None])
    tau = largest_eigenvalue(K / D / D[:, None])
    return max(kappa, 0.0), float(np.sqrt(max(tau, 0.0))), float(D.min())


def _sure(
    found: Ritz, rank: int, limit: float, hidden: float, floor: float, known: Known
) -> tuple[bool, float]:
    """Whether it is proven that no further eigenvalue is above the limit, and the p of one."""
    limit -= known.blur
    if len(found.values) > rank and limit <= found.values[rank]:
        return False, 1.0
    if hidden <= limit - _couplings(found, rank, limit)[0]:
        return True, 0.0
    if known.chance is None:
        return False, 1.0
    rooms = [
        limit - _couplings(found.leading(count), rank, limit)[0] - lacking
        for count, lacking in known.covered
    ]
    return False, known.chance(max(rooms, default=0.0) - floor)


def _angle(
    found: Ritz,
    rank: int,
    errors: tuple[float, float, float],
    outside: tuple[float, float],
    known: Known,
    tol: float,
    certainty: float,
) -> tuple[float, bool, float, bool]:
    """The best bound of the angle that is proven, or else as probable as wanted, or else seen.

    Also tells whether a smaller one is not ruled out, but not as probable as that yet.

    `errors` are the residual of all vectors asked for, that of the next one, and rounding;
    `outside` is what eigenvalues outside of the search space are at most, and their mean. What is
    only seen is no more than a guess: the next vector must be far nearer to the truth than to the
    last one asked for.
    """
    error, following, floor = errors
    last, (hidden, mean) = float(found.values[rank - 1]), outside
    if len(found.values) > rank and found.values[rank] >= last:
        return 1.0, False, 1.0, False
    whole = Bound(last, error, floor, *_couplings(found, rank, last), known.blur)
    proven, seen = whole.at(hidden), whole.at(whole.claim(SHARES[0], mean))
    if proven < 1 and (proven <= tol or proven <= SLACK * seen):
        return proven, True, 0.0, False
    ps: list[float] = []  # the first is that of what is seen
    for count, lacking in known.covered:
        assert known.chance is not None
        couplings = _couplings(found.leading(count), rank, last)
        part = Bound(last, error, floor, *couplings, known.blur)
        for share in SHARES:
            h = part.claim(share, mean)
            if part.at(h) < 1:
                ps.append(known.chance(h - floor - lacking))
                if ps[-1] <= certainty:
                    return part.at(h), False, ps[-1], min(ps[:-1], default=1.0) < 1
    if proven < 1:
        return proven, True, 0.0, False
    doubtful = len(found.values) > rank and last - found.values[rank] <= SLACK * following
    return 1.0 if doubtful else seen, False, ps[0] if ps else 1.0, False


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of the angle as a function of h, the largest eigenvalue outside."""

    last: float
    error: float
    floor: float
    kappa: float
    tau: float
    distance: float
    blur: float = 0.0

    def at(self, h: float) -> float:
        """Bound the sine of the angle."""
        room = self.last - self.kappa - h
        if room <= 0:
            return 1.0
        spread = (1 + self.tau**2) / room
        inverse = 1 / self.distance + spread
        sharp = 1 - self.blur * inverse
        if sharp <= 0:
            return 1.0
        bound = self.error * float(np.sqrt(spread / room)) + self.floor * inverse
        return min(1.0, bound / sharp)

    def claim(self, share: float, least: float) -> float:
        """The h that leaves a share of the room that there is above the `least` one."""
        return self.last - self.kappa - share * (self.last - self.kappa - least)
