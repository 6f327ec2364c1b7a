"""What a coordinator sees: an engine that takes down products, and populations to attack."""

from __future__ import annotations

import numpy as np
from inference import auc, member_score

from localpower.engines.inline import Inline
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
