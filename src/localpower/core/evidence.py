"""What random probes say of eigenvalues that nobody has found (an extension of the paper).

A method has a search space, the *base* Z, and asks how large the largest eigenvalue h of
``E = (I - ZZᵀ)B(I - ZZᵀ)`` can be: of all that is outside of what it searches. Draw a Gaussian Ω,
(d, q), after the base is fixed, and multiply it by E again and again. Let u be h's eigenvector.
For every polynomial φ, ``φ(E)Ω`` has the part ``φ(h)·uᵀΩ`` along u, so

    ``‖uᵀΩ‖ ≤ ‖φ(E)Ω‖_F/|φ(h)|``,  always.

Here u depends on B and the base alone, so ``‖uᵀΩ‖²`` is χ² with q degrees of freedom, whatever B
is: to be small is unlikely. So if h were at least some λ, an event has happened whose chance is
``P(χ²_q ≤ min_φ ‖φ(E)Ω‖²_F/φ(λ)²)``: from that follows the p that is reported. It does not matter
which φ is taken, or after which round, because the inequality holds for all of them. But where
probes are drawn anew, each draw is one more chance to be misled; so draw number j has a share of
``1/j(j+1)`` of what is allowed, and p is what it says over that. Then, for every matrix, the chance
that a p ≤ α is ever reported for a λ that h exceeds is at most α.

With an orthonormal basis P of the Krylov space, ``H = PᵀBP`` and its eigenpairs (θ_i, y_i),
``‖φ(E)Ω‖² = Σ φ(θ_i)² w_i``, ``w_i = ‖y_iᵀPᵀΩ‖²``. The smallest value under ``φ(λ) = 1`` is one
over the sum of the squares, at λ, of the polynomials that are orthonormal with these weights. Those
have their zeros among the θ_i: above them they grow, so that the best φ for λ is at least as good
for all that is larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from localpower.core.linalg import Array, eigen, qr, svd

ROUNDING = 8.0  # units of the rounding of what is sent by which eigenvalues may move
MOST_BLOCKS = 64  # that the Krylov space has at most
VANISHED = 1e-14  # of a product: what is left of it is rounding


@dataclass(frozen=True, slots=True, eq=False)
class Probes:
    """Probes of what is outside of a base, as far as they were multiplied.

    Attributes
    ----------
    base : (d, c) ndarray
        Orthonormal; drawn probes know nothing of it, and it nothing of them.
    space : (d, j) ndarray
        Orthonormal basis P of the Krylov space, outside of the base.
    projected : (j, j) ndarray
        ``PᵀBP``.
    weights : (j, q) ndarray
        ``PᵀΩ``; before the first product, that of the next block.
    following : (d, b) ndarray
        The next block to be multiplied; empty where the space has an end.
    degree : int
        Of polynomials that the space has, ``φ(E)Ω = P φ(H) PᵀΩ``; -1 before the first product.
    draws : int
        How many Ω this run has drawn: each is one more chance to be misled.
    error : float
        How much rounding changes Ω on its way, relatively.
    reach : float
        The largest norm of a product. It has what is inside of the base, too, which may be far
        larger than anything outside, and so may its rounding.
    """

    base: Array
    space: Array
    projected: Array
    weights: Array
    following: Array
    degree: int
    draws: int
    error: float
    reach: float = 0.0

    def learn(self, sent: Array, product: Array) -> Probes:
        """Take in the product of the next block, as it was `sent`."""
        error = max(self.error, float(np.finfo(sent.dtype).eps))
        Q, W = sent.astype(np.float64, copy=False), product.astype(np.float64, copy=False)
        space = np.hstack([self.space, Q])
        c, b = space.shape[1], Q.shape[1]
        H = np.zeros((c, c))
        H[: c - b, : c - b] = self.projected
        H[c - b :] = W.T @ space
        H[: c - b, c - b :] = H[c - b :, : c - b].T
        size = float(np.linalg.norm(W, 2))
        left = _outside(W, (self.base, space), VANISHED * size)
        room = len(W) - self.base.shape[1] - c
        following = left[:, : min(room, MOST_BLOCKS * self.weights.shape[1] - c)]
        return replace(
            self,
            error=error,
            reach=max(self.reach, size),
            space=space,
            projected=H,
            weights=np.pad(self.weights, ((0, c - len(self.weights)), (0, 0))),
            following=following,
            degree=self.degree + 1 if left.shape[1] and room else c,
        )

    def chance(self, value: float) -> float:
        """The p of there being an eigenvalue of `value` or more outside of the base."""
        if self.degree < 0:
            return 1.0
        theta, Y = eigen(self.projected)
        weights = np.square(Y.T @ self.weights).sum(axis=1)
        value -= ROUNDING * self.error * max(self.reach, float(np.abs(theta).max()))
        least = smallest_norm(theta, weights, value, self.degree)
        size = least + self.error * float(np.sqrt(weights.sum()))
        share = 1 / (self.draws * (self.draws + 1))  # of all chances to be misled: they add up to 1
        return min(1.0, chi_square(size**2, self.weights.shape[1]) / share)

    def above(self, value: float) -> Array:
        """Directions outside of the base in which the matrix is larger than `value`."""
        if not self.projected.size:
            return self.space
        theta, Y = eigen(self.projected)
        larger: Array = self.space @ Y[:, theta > value]
        return larger


def draw(base: Array, seed: tuple[int, ...], draws: int, eps: float, count: int = 2) -> Probes:
    """Draw probes of what is outside of an orthonormal `base`, (d, c), which they do not affect.

    `eps` is the rounding of what is sent.
    """
    base = base.astype(np.float64, copy=False)
    d, c = base.shape
    Omega = np.random.default_rng(seed).standard_normal((d, count))
    Omega -= base @ (base.T @ Omega)
    Q = _outside(Omega, (base,), 0.0)[:, : d - c]
    nothing = np.zeros((d, 0))
    return Probes(base, nothing, np.zeros((0, 0)), Q.T @ Omega, Q, -1, draws, eps)


def _outside(W: Array, spaces: tuple[Array, ...], floor: float) -> Array:
    """Orthonormal basis of what of W is outside of orthonormal spaces, and above the floor."""
    for _ in range(2):
        for S in spaces:
            W = W - S @ (S.T @ W)
    U, sizes, _ = svd(W)
    Q = U[:, sizes > floor]
    for S in spaces:
        Q = Q - S @ (S.T @ Q)
    return qr(Q)[0] if Q.size else Q


def smallest_norm(points: Array, weights: Array, value: float, degree: int) -> float:
    """Least ``(Σ w_i φ(x_i)²)^½`` of all polynomials with ``φ(value) = 1`` up to a degree.

    Infinite where the value is not above all points. The recurrence of orthonormal polynomials
    is Lanczos iteration with the points as a diagonal matrix; at the value, all terms are positive.

    Examples
    --------
    >>> round(smallest_norm(np.array([0.0, 1.0]), np.ones(2), 3.0, 1), 6)  # (π_0(3)² + π_1(3)²)^-½
    0.27735
    >>> smallest_norm(np.array([0.0, 1.0]), np.ones(2), 3.0, 2)  # zero at both points
    0.0
    """
    points, weights = points[weights > 0], weights[weights > 0]
    if not len(points):
        return 0.0
    if not value > points.max():
        return float("inf")
    total = float(np.sqrt(weights.sum()))
    basis = [np.sqrt(weights) / total]
    before, now, beta, squares = 0.0, 1.0, 0.0, 1.0
    for _ in range(degree):
        v = basis[-1]
        alpha = float(v @ (points * v))
        u = (points - alpha) * v
        for _ in range(2):
            for other in basis:
                u = u - other * (other @ u)
        size = float(np.linalg.norm(u))
        before, now = now, (value - alpha) * now - beta * before
        if size <= 0 or abs(now) >= 1e150 * size or len(basis) == len(points):
            return 0.0
        before, now, beta = before, now / size, size
        squares += now**2
        basis.append(u / size)
    return total / float(np.sqrt(squares))


def chi_square(x: float, q: int) -> float:
    """``P(χ²_q ≤ x)``."""
    if q == 2:
        return float(-np.expm1(-x / 2))
    from scipy.special import gammainc

    return float(gammainc(q / 2, x / 2))
