"""The paper's measures ρ, κ and μ, and the right-hand sides of its lemmas and theorems.

``sigma`` is always the descending spectrum of ``M = AᵀA/n``. Constants are as the paper states
them; where it writes Ω or O without one, the functions take it to be one: they give rates, not
guarantees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from localpower.core.alignment import procrustes
from localpower.core.linalg import Array

Spectrum = Sequence[float] | Array


def rho(bases: Sequence[Array], anchor: int = 0, aligned: bool = True) -> float:
    """Residual error ``ρ_t`` between shards' bases, Definition 3.

    ``max_i min_O ‖Z_i O - Z_anchor‖₂`` over orthogonal O, or with ``O = I`` if not `aligned`. The
    Procrustes rotation attains the minimum in every unitarily invariant norm.

    Examples
    --------
    >>> Z = np.eye(3)[:, :2]
    >>> rho([Z, Z[:, ::-1]]), round(rho([Z, Z[:, ::-1]], aligned=False), 6)
    (0.0, 2.0)
    """
    Z = bases[anchor]
    rotated = (W @ procrustes(W, Z) if aligned else W for W in bases)
    return max(float(np.linalg.norm(W - Z, 2)) for W in rotated)


def kappa(sigma: Spectrum) -> float:
    """Condition number ``‖M‖‖M†‖`` from the spectrum of M; values at rounding level count as 0."""
    sigma = np.asarray(sigma, dtype=np.float64)
    kept = sigma[sigma > sigma.max(initial=0.0) * sigma.size * np.finfo(np.float64).eps]
    return float(kept.max() / kept.min()) if kept.size else 1.0


def coherence(A: Array) -> float:
    """Row coherence ``μ = n/ρ · max_j ‖u_j‖²`` with u_j the rows of an orthonormal column basis.

    ρ is the rank; the paper writes d, which is the same for a matrix of full column rank.

    Examples
    --------
    >>> round(coherence(np.ones((4, 1))), 6), coherence(np.eye(4)[:, :2])
    (1.0, 2.0)
    """
    U, S, _ = np.linalg.svd(A, full_matrices=False)
    U = U[:, S[0] * max(A.shape) * np.finfo(np.float64).eps < S]
    return float(A.shape[0] / U.shape[1] * np.square(U).sum(axis=1).max())


def dpi_rounds(sigma: Spectrum, rank: int, error: float) -> float:
    """Rounds of distributed power iteration, Lemma 1: ``σ_k/(σ_k - σ_{k+1}) · log(d/ε)``.

    Examples
    --------
    >>> round(dpi_rounds([4.0, 2.0, 1.0], rank=1, error=0.01), 1)
    11.4
    """
    return steps_with_intermediate_gap(sigma, rank, rank, error)


def steps_with_intermediate_gap(
    sigma: Spectrum, rank: int, q: int, error: float, tau: float = 1.0
) -> float:
    """Power steps T with an intermediate rank k ≤ q ≤ r, theorem of appendix "Dependence on …".

    ``T = σ_k/(σ_k - σ_{q+1}) · log(τd/ε)``. Theorem 1 is the case q = k.
    """
    gap = sigma[rank - 1] - sigma[q]
    return sigma[rank - 1] / gap * math.log(tau * len(sigma) / error) if gap > 0 else math.inf


def residual_allowance(
    sigma: Spectrum, rank: int, width: int, error: float, tau: float = 1.0
) -> float:
    """``ε_0`` of Assumption 1, which the residual errors of every step must stay below.

    ``ε_0 = (σ_k - σ_{k+1})/(σ_1 κ) · min{(√r - √(k-1))/(τ√d), ε}``.
    """
    kappa = sigma[0] / min(value for value in sigma if value > 0)
    spread = (math.sqrt(width) - math.sqrt(rank - 1)) / (tau * math.sqrt(len(sigma)))
    return (sigma[rank - 1] - sigma[rank]) / (sigma[0] * kappa) * min(spread, error)


def residual_allowance_with_intermediate_gap(
    sigma: Spectrum, rank: int, q: int, width: int, error: float, tau: float = 1.0
) -> float:
    """``ε_0`` of the theorem with an intermediate rank q.

    ``ε_0 = (√r - √(q-1))/(τ√d) · min{(σ_k - σ_{q+1})/σ_1 · ε, σ_q/σ_1}``.
    """
    spread = (math.sqrt(width) - math.sqrt(q - 1)) / (tau * math.sqrt(len(sigma)))
    weakest = min((sigma[rank - 1] - sigma[q]) * error, sigma[q - 1])
    return float(spread * weakest / sigma[0])


def assumption_left_side(
    eta: float, rho: float, rho_before: float, largest_share: float, communicates: bool
) -> float:
    """Left side of Assumption 1: ``η·1 + (1 - p_max)(ρ_t + ρ_{t-1}·1)``, 1 = no communication."""
    between = 0.0 if communicates else 1.0
    return eta * between + (1.0 - largest_share) * (rho + rho_before * between)


def rho_bound_aligned(
    kappa: float, steps: int, eta: float, sigma_1: float, delta_k: float, gamma_k: float, C: float
) -> float:
    """Theorem 2 with orthogonal Procrustes: ``min{2e²κ^p p η, ησ_1/δ_k + 2γ_k^{p/4} C_t}``.

    Its second branch has a limit as p grows: the residual saturates.
    """
    return min(
        2 * math.exp(2) * _power(kappa, steps) * steps * eta,
        eta * sigma_1 / delta_k + 2 * _power(gamma_k, steps / 4) * C,
    )


def rho_bound_vanilla(kappa: float, steps: int, eta: float, rank: int) -> float:
    """Theorem 2 without alignment: ``4e√k p κ^p η``, exponential in p."""
    return 4 * math.e * math.sqrt(rank) * steps * _power(kappa, steps) * eta


def theorem_2_applies(kappa: float, steps: int, eta: float) -> bool:
    """Tell whether ``η ≤ min(1/(3κ), 1/p)``, which Theorem 2 assumes."""
    return eta <= min(1 / (3 * kappa), 1 / steps)


def rows_for_eta(error: float, rank: int, coherence: float, shards: int, failure: float) -> float:
    """Rows that each shard needs for η ≤ ε under uniform sampling, Lemma 2.

    ``s_i ≥ 3μρ/ε² · log(ρm/δ)`` with ρ = rank(A), with probability 1 - δ.
    """
    return 3 * coherence * rank / error**2 * math.log(rank * shards / failure)


def final_error_rate(shards: int, rows: int) -> float:
    """``√(m/n)``, which the final error with p > 1 is proportional to at most (Corollary 1)."""
    return math.sqrt(shards / rows)


def statistical_error(
    squared_norm: float, delta_k: float, columns: int, rows: int, failure: float
) -> float:
    """Distance of the empirical from the population subspace: ``(4b/δ_k)·√(ln(d/δ)/n)``.

    b bounds the squared norm of a row; with probability 1 - δ (appendix "Statistical Error").
    """
    return 4 * squared_norm / delta_k * math.sqrt(math.log(columns / failure) / rows)


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf
