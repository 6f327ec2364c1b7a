"""How many components to keep, from all eigenvalues of the covariance."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from localpower.core.linalg import EPS, Array


def most_probable(variances: Array, rows: int) -> int:
    """The dimension of largest evidence, by Minka's approximation (NIPS 2000).

    `variances` (d,) are all eigenvalues of the covariance of `rows` rows, in descending order. For
    k components the rest counts as noise of their mean v; ``m = dk - k(k+1)/2`` are the degrees
    of freedom of a k-dimensional basis:

        log p(k) = log p(U) - n/2 Σ_{i≤k} log λ_i - n(d-k)/2 log v + (m+k)/2 log 2π
                   - 1/2 log |A| - k/2 log n,
        |A| = Π_{i≤k} Π_{j>i} n (1/λ̂_j - 1/λ̂_i)(λ_i - λ_j),   λ̂_j = λ_j up to k, then v.
    """
    size = np.maximum(variances.astype(np.float64), 0.0)
    d = len(size)
    floor = d * EPS * size[0]
    rank = int((size > floor).sum())
    if d == 1 or rank <= 1:
        return 1
    k = np.arange(1, min(rank, d - 1) + 1)
    logs = np.log(np.maximum(size, floor))
    noise = np.maximum((size.sum() - np.cumsum(size)[k - 1]) / (d - k), floor)
    dims = d - k + 1
    prior = np.cumsum(gammaln(dims / 2) - dims / 2 * np.log(np.pi)) - k * np.log(2)
    free = d * k - k * (k + 1) / 2
    apart = np.triu(np.log(np.maximum(size[:, None] - size, floor)), 1)  # log(λ_i - λ_j), i < j
    within = np.triu(apart - logs[:, None] - logs, 1)  # log(1/λ_j - 1/λ_i)
    rest = [
        (d - count) * np.log(np.maximum(1 / v - 1 / size[:count], EPS / v)).sum()
        for count, v in zip(k, noise, strict=True)
    ]
    squares = np.cumsum(apart.sum(axis=1))[k - 1] + np.cumsum(within.sum(axis=0))[k - 1]
    hessian = squares + np.array(rest) + free * np.log(rows)
    evidence = prior - rows / 2 * (np.cumsum(logs)[k - 1] + (d - k) * np.log(noise))
    evidence += (free + k) / 2 * np.log(2 * np.pi) - hessian / 2 - k / 2 * np.log(rows)
    return int(k[np.argmax(evidence)])
