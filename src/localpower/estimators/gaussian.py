"""The normal distribution that a PCA fits: probabilistic PCA of Tipping and Bishop (1999)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localpower.core.linalg import Array


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """Rows of mean `mean` and covariance ``D (Vᵀ diag(λ - σ²) V + σ² I) D``, where D is `scale`.

    `components` V (k, d) has orthonormal rows, `variances` λ (k,) are those along them, and `noise`
    σ² is that of every other direction. Where that is 0, rows are in the span of the components:
    the density is that within the span, and the precision a generalised inverse.
    """

    components: Array
    variances: Array
    noise: float
    mean: Array
    scale: Array

    def covariance(self) -> Array:
        """The covariance, (d, d)."""
        return self._spread(self.variances - self.noise, self.noise, self.scale)

    def precision(self) -> Array:
        """The inverse of the covariance, (d, d), without inverting a matrix of that size."""
        inverse = 1 / self.noise if self.noise else 0.0
        return self._spread(self._inverse() - inverse, inverse, 1 / self.scale)

    def log_density(self, rows: Array) -> Array:
        """Logarithm of the density at each of some rows, (n,)."""
        X = (rows - self.mean) / self.scale
        T = X @ self.components.T
        inverse = self._inverse()
        used = inverse > 0
        distance = np.square(T) @ inverse
        volume = -np.log(inverse[used]).sum() + 2 * np.log(self.scale).sum()
        dims = int(used.sum())
        if self.noise:
            distance += np.square(X - T @ self.components).sum(axis=1) / self.noise
            volume += (len(self.mean) - dims) * np.log(self.noise)
            dims = len(self.mean)
        density: Array = -(dims * np.log(2 * np.pi) + volume + distance) / 2
        return density

    def _inverse(self) -> Array:
        """``1/λ``, and 0 where a variance is rounding error."""
        eps = 0.0 if self.noise else np.finfo(self.variances.dtype).eps
        used = self.variances > eps * self.variances.max(initial=0.0)
        return np.divide(1.0, self.variances, out=np.zeros_like(self.variances), where=used)

    def _spread(self, along: Array, everywhere: float, units: Array) -> Array:
        whole: Array = (self.components.T * along) @ self.components
        whole[np.diag_indices_from(whole)] += everywhere
        whole *= units[:, None] * units
        return whole
