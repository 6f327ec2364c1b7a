"""What a coordinator sees: an engine that takes down products, and populations to attack."""

from __future__ import annotations

from math import ceil

import numpy as np
from inference import auc, member_score, released_score

from localpower.core.gaussian import sigma_of
from localpower.engines.inline import Inline
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.private_tasks import SENSITIVITY, NoisedGram, matrix_of
from localpower.worker.shard import Shard
from localpower.worker.tasks import Measure, PowerSteps, Prepare

COLUMNS = 40


class Curious(Inline):
    """Runs tasks as usual, and keeps the basis and the product of every shard."""

    def __init__(self):
        super().__init__()
        self.seen, self.unit = {}, 1.0

    def map(self, task, order=None):
        question = task.task if isinstance(task, Measure) else task
        if isinstance(question, Prepare):  # rows are divided by a power of two
            self.unit = question.factor * 2.0**-question.exponent
        for reply in super().map(task, order):
            if isinstance(question, PowerSteps) and question.steps == 1:
                pair = question.basis, reply.content.product / self.unit**2
                self.seen.setdefault(reply.number, []).append(pair)
            yield reply


def population(seed=0, columns=COLUMNS, decay=0.9):
    """A covariance, and a function that draws rows of it."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    root = turn * decay ** np.arange(columns) @ turn.T
    return root @ root, lambda rows: rng.standard_normal((rows, columns)) @ root


def basis(columns=COLUMNS, width=10, seed=1):
    rng = np.random.default_rng(seed)
    return np.linalg.qr(rng.standard_normal((columns, width)))[0]


def membership(rows, trials, seed=0, sites=1):
    """AUC of telling a member of a site of so many rows, of the product of `sites` such sites."""
    covariance, draw = population(seed)
    Z = basis(seed=seed + 1)
    members, strangers = [], []
    for _ in range(trials):
        A = draw(rows * sites)
        Y = A.T @ (A @ Z)
        for row, scores in ((A[0], members), (draw(1)[0], strangers)):
            scores.append(member_score(row, Z, Y, rows * sites, covariance))
    return auc(np.array(members), np.array(strangers))


def membership_in_releases(epsilon, delta, trials, rows=5, columns=6, seed=0):
    """AUC of telling a row from a noised matrix, for whoever knows all other rows of the site."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows + 1, columns))
    A /= np.linalg.norm(A, axis=1, keepdims=True)  # as long as the clip
    task = NoisedGram(1.0, ceil(sigma_of(epsilon, delta) * SENSITIVITY), 1, False)

    def exact(part):
        return task.exact(LocalMatrix(Shard((part,), columns, part.dtype)))

    others, all_rows = exact(A[1:]), exact(A)

    def scores(words):
        noised = words + task.noise(columns, rng.bytes, trials)
        matrices = [matrix_of(each.view(np.uint64), columns) for each in noised]
        known = matrix_of(others.view(np.uint64), columns)
        return np.array([released_score(A[0], matrix, known) for matrix in matrices])

    return auc(scores(all_rows), scores(others))
