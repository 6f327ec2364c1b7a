"""Distances between subspaces, section "Preliminary" and Definition 1 of the paper."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from localpower.core.linalg import Array


def principal_angles(U: ArrayLike, V: ArrayLike) -> Array:
    """Principal angles between the column spaces of `U` and `V`, ascending, in radians.

    Small angles are computed from their sines, as cosines lose half the digits there.

    Parameters
    ----------
    U, V : (d, k) and (d, r) array_like
        Bases; columns need not be orthonormal. A (k, d) array of components is given as ``X.T``.

    Returns
    -------
    (min(k, r),) ndarray

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> t = 1e-9
    >>> lp.principal_angles([[1.0], [0.0]], [[np.cos(t)], [np.sin(t)]])
    array([1.e-09])
    """
    U, V = _bases(U, V)
    if U.shape[1] < V.shape[1]:
        U, V = V, U
    cosines = np.linalg.svd(U.T @ V, compute_uv=False)
    sines = np.linalg.svd(V - U @ (U.T @ V), compute_uv=False)[::-1]
    cosines, sines = np.clip(cosines, 0, 1), np.clip(sines, 0, 1)
    angles: Array = np.where(sines < np.sqrt(0.5), np.arcsin(sines), np.arccos(cosines))
    return angles


def subspace_distance(U: ArrayLike, V: ArrayLike) -> float:
    """``dist(U, V) = ‖(I - V Vᵀ) U‖₂``: the sine of the largest principal angle.

    For bases of equal width it is ``‖UUᵀ - VVᵀ‖₂``, the paper's projection distance. If one basis
    is wider, it tells how much of the narrower one lies outside the wider one's span.

    Parameters
    ----------
    U, V : (d, k) and (d, r) array_like
        Bases; columns need not be orthonormal.

    Examples
    --------
    >>> import localpower as lp
    >>> lp.subspace_distance([[1.0], [0.0]], [[3.0], [4.0]])
    0.8
    """
    U, V = _bases(U, V)
    if U.shape[1] > V.shape[1]:
        U, V = V, U
    return min(1.0, float(np.linalg.norm(U - V @ (V.T @ U), ord=2)))


def _bases(U: ArrayLike, V: ArrayLike) -> tuple[Array, Array]:
    bases: list[Any] = [np.asarray(basis, dtype=np.float64) for basis in (U, V)]
    shapes = [basis.shape for basis in bases]
    if any(basis.ndim != 2 for basis in bases) or shapes[0][0] != shapes[1][0]:
        raise ValueError(
            f"U and V must be matrices with as many rows as there are columns in the data, got "
            f"shapes {shapes[0]} and {shapes[1]}; components of shape (k, d) are given as X.T"
        )
    for name, basis in zip("UV", bases, strict=True):
        if basis.shape[1] > basis.shape[0]:
            raise ValueError(
                f"{name} has shape {basis.shape}, more vectors than dimensions: give columns, X.T"
            )
        if not np.isfinite(basis).all():
            raise ValueError(f"{name} has entries that are NaN or infinite; give finite ones")
    return tuple(np.linalg.qr(basis)[0] for basis in bases)  # type: ignore[return-value]
