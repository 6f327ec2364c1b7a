"""How far a basis is from the answer, told without knowing it (an extension of the paper).

From an orthonormal X, (d, r), and the exact ``G = BX`` with ``B = AᵀA``, Rayleigh-Ritz gives values
``θ_1 ≥ … ≥ θ_r``, vectors X and residuals ``R = G - XΘ``. Every pair is exact for a matrix within
``‖r_j‖`` of B; and by Davis and Kahan the sine of the angle between the leading k vectors and the
true ones is at most ``‖R_k‖/(θ_k - σ_{k+1})``. Across these k vectors, B is Θ' on the others of X,
H outside of X, and R' joins the two. So ``σ_{k+1}`` is at most the largest eigenvalue of
``[[θ_{k+1}, ‖R'‖], [‖R'‖, h]]``, where h, the largest of H, is at most what X leaves of the trace.
That proves something where it is little. Else h is taken to be the mean of H, and ``σ_{k+1}`` to be
``θ_{k+1} + 10‖r_{k+1}‖`` or more: less than a hundredth of that vector is then in true ones with
values above ``θ_k``, and a random start does not leave so little of them for long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localpower.core.linalg import Array

SLACK = 10.0  # a reported error is never below the true one by more
ROUNDING = 8.0  # units of eps·θ_1 that a residual cannot be told from zero below


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """What is known of the leading k vectors of a basis.

    Attributes
    ----------
    residuals : (k,) ndarray
        ``‖r_j‖/θ_1``: each pair is exact for a matrix this near, relative to the largest. Of
        vectors with a value so near that rounding may take one for the other, the largest.
    angle : float
        Bound of the sine of the angle to the true subspace; 1 where the gap is not seen.
    gap : float
        What ``(σ_k - σ_{k+1})/σ_1`` is at most: ``(θ_k + ‖R_k‖ - θ_{k+1})/θ_1``.
    rigorous : bool
        Whether the trace proves that nothing large is hidden. Else the bound holds as far as exact
        products from a random start have seen; local steps may lose what shards do not share.
    """

    residuals: Array
    angle: float
    gap: float
    rigorous: bool

    @property
    def residual(self) -> float:
        """The largest residual."""
        return float(self.residuals.max(initial=0.0))


def rayleigh_ritz(X: Array, G: Array) -> tuple[Array, Array, Array]:
    """Ritz values, descending, with X and G turned to the Ritz vectors."""
    values, turn = ritz_turn(X.T @ G)
    return values, X @ turn, G @ turn


def ritz_turn(H: Array) -> tuple[Array, Array]:
    """Ritz values, descending, and what turns X to the Ritz vectors, from ``H = XᵀG``.

    The lower half of H counts: it comes from the first columns of G, which are not rounded as much
    as those that were added later.
    """
    values, turn = np.linalg.eigh(H, "L")
    return values[::-1], turn[:, ::-1]


def certify(values: Array, R: Array, d: int, rank: int, trace: float, eps: float) -> Certificate:
    """Judge the leading `rank` of the Ritz vectors whose `values` and residuals R are given.

    B is (d, d), `trace` is its trace, and `eps` the rounding of its products. Instead of R any
    matrix with the same inner products will do. With d vectors the next value is zero. With none
    beyond `rank` it is at most what the trace leaves, and may be zero.
    """
    r = R.shape[1]
    top = max(float(values[0]), np.finfo(float).tiny)
    floor = ROUNDING * eps * top
    norms = np.sqrt(np.square(R).sum(axis=0))
    block = max(float(np.linalg.norm(R[:, :rank], 2)), floor)
    hidden = max(float(trace) - float(values.sum()), 0.0) if r < d else 0.0
    least, following, most = 0.0, hidden, hidden
    if r > rank:
        least, rest = float(values[rank]), float(np.linalg.norm(R[:, rank:], 2))
        most = _joint(least, hidden, rest)
        seen = max(least + SLACK * float(norms[rank]), _joint(least, hidden / max(d - r, 1), rest))
        following = min(seen, most)
    gap = float(values[rank - 1]) - following
    proven = float(values[rank - 1]) - most
    angle = min(1.0, block / gap) if gap > 0 else 1.0
    distances = np.abs(values[:rank, None] - values)
    turned = norms * (floor / np.maximum(distances, floor))  # rounding turns vectors by so much
    return Certificate(
        residuals=np.maximum(turned.max(axis=1), floor) / top,
        angle=angle,
        gap=(float(values[rank - 1]) + block - least) / top,
        rigorous=proven > 0 and proven >= gap / SLACK,
    )


def _joint(a: float, b: float, coupling: float) -> float:
    """Largest value of two parts of a matrix, by those of the parts and what joins them."""
    return (a + b) / 2 + float(np.hypot((a - b) / 2, coupling))
