"""The merged factor as a model of all rows: what it says of what nobody has multiplied yet.

After a merged start the server has a factor F with ``FFᵀ ⪯ AᵀA ⪯ FFᵀ + Δ·I``. A search space S need
not hold all of its columns, which would all have to be multiplied. It is enough to know them:

- With ``G = (I - SSᵀ)F`` and ``N = GᵀG``, ``(I - SSᵀ)AᵀA(I - SSᵀ) ⪯ (λ_max(N) + Δ)·I``, as ``GGᵀ``
  has the same largest eigenvalue.
- A residual r of the Ritz value θ is orthogonal to S. The vector lacks ``(θI - AᵀA)⁻¹r`` there, to
  first order. With ``GGᵀ`` in place of AᵀA that is ``(r + G(θI - N)⁻¹Fᵀr)/θ``: Davidson's
  correction with a preconditioner that costs no message.
"""

from __future__ import annotations

import numpy as np

from localpower.core.linalg import Array

LARGE = 0.5  # of the last value asked for: what is larger in the model is multiplied at once
LEAST = 0.05  # of a Ritz value: its distance from those of the model at least, where they meet


def pairs_to_send(wide: int, rank: int, width: int, columns: int) -> int:
    """Eigenpairs of a shard: `wide`, or all where four rounds would send no fewer columns.

    All of them, if they are not rounded, are the answer.
    """
    return columns if columns <= wide + 2 * width + 4 * rank else max(wide, width)


def enough(squares: Array, rank: int, width: int, most: int) -> int:
    """How many leading columns of a factor are multiplied first.

    Those that are nearly as large as the last vector asked for: corrections are poor there.
    """
    large = int((squares > LARGE * squares[rank - 1]).sum()) if len(squares) >= rank else width
    return min(max(large, width), most, len(squares))


def largest_outside(factor: Array, space: Array) -> float:
    """``‖(I - SSᵀ)F‖²``."""
    return max(float(np.linalg.eigvalsh(_outside(factor, space))[-1]), 0.0) if factor.size else 0.0


def corrected(residuals: Array, values: Array, factor: Array, space: Array) -> Array:
    """What Ritz vectors of these values lack outside of the space, by the model."""
    if not residuals.size or not factor.size:
        return residuals
    squares, V = np.linalg.eigh(_outside(factor, space))
    apart = np.maximum(values - squares[:, None], LEAST * values)
    apart[apart <= 0] = np.inf  # of a value of zero, nothing is known
    inside = V @ ((V.T @ (factor.T @ residuals)) / apart)
    found: Array = residuals + factor @ inside  # less what is in the space, in which it is not new
    return found


def _outside(factor: Array, space: Array) -> Array:
    """``Fᵀ(I - SSᵀ)F`` for a factor with orthogonal columns."""
    inside = space.T @ factor
    found: Array = np.diag(np.square(factor).sum(axis=0)) - inside.T @ inside
    return found
