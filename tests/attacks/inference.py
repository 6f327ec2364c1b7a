"""What a curious coordinator can compute from what it sees; each attack is a few lines of algebra.

A site with rows A answers a basis Z (d, r) with the product ``Y = AᵀA Z``.
"""

from __future__ import annotations

import numpy as np


def row_of(Z, Y):
    """The only row of a site, but for its sign: with ``u = Zᵀa``, the product is ``a uᵀ``."""
    squares, vectors = np.linalg.eigh(symmetric(Z.T @ Y))
    u = vectors[:, -1] * np.sqrt(squares[-1])
    return Y @ u / (u @ u)


def gram_of_few(Z, Y):
    """The Gram matrix of a site with no more rows than columns were asked, from one product."""
    return Y @ np.linalg.pinv(symmetric(Z.T @ Y), rcond=1e-12, hermitian=True) @ Y.T


def gram_of_rounds(pairs):
    """The Gram matrix that fits all products of a run, and has no larger rank than they show."""
    Z, Y = (np.hstack(blocks) for blocks in zip(*pairs, strict=True))
    Q, R = np.linalg.qr(Z)
    return gram_of_few(Q, np.linalg.solve(R.T, Y.T).T)


def member_score(row, Z, Y, rows, covariance):
    """How much likelier a product is with this row among the `rows` than without it.

    Other rows are known as a population with this covariance.
    """
    within = Z.T @ covariance @ Z
    left, right = np.linalg.solve(covariance, row), Z @ np.linalg.solve(within, Z.T @ row)
    found = left @ (Y - rows * covariance @ Z) @ np.linalg.solve(within, Z.T @ row)
    return found - (row @ left) * (row @ right) / 2


def released_score(row, release, others):
    """The same for a release of ``AᵀA`` with noise, where all other rows are known."""
    return row @ (release - others) @ row


def auc(members, strangers):
    """The chance that a member has a higher score than a stranger."""
    order = np.argsort(np.concatenate([strangers, members]), kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    own = ranks[len(strangers) :].sum() - len(members) * (len(members) + 1) / 2
    return own / (len(members) * len(strangers))


def error(found, true):
    """Distance of two matrices, of the norm of the true one."""
    return np.linalg.norm(found - true) / np.linalg.norm(true)


def symmetric(A):
    return (A + A.T) / 2
