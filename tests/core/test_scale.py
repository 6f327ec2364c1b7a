"""The coordinator's memory does not grow with the number of shards."""

import tracemalloc

import numpy as np
import pytest

from localpower.core.linalg import random_basis
from localpower.engines.base import Engine
from localpower.engines.ledgered import Ledgered
from localpower.engines.retrying import Retrying
from localpower.methods.local_power import local_power
from localpower.methods.ritz import local_ritz
from localpower.methods.schedule import constant
from localpower.methods.state import State
from localpower.worker.replies import LowRank, MeasuredReply, Product
from localpower.worker.tasks import LeadingFactor

D, R = 20_000, 15


class Simulated(Engine):
    """Shards that multiply by a number of their own, and hold nothing."""

    def __init__(self, shards):
        self.rows, self.columns = [1 + (n == 0) for n in range(shards)], D

    @property
    def size(self):
        return 1

    def map(self, task, order=None):
        steps = task.task
        for number in self.numbers(order):
            if isinstance(steps, LeadingFactor):
                reply = LowRank(np.eye(D, 2, -number), 0.0, steps.most)
            else:
                Y = np.roll(steps.basis, 1, axis=0) / (1 + number)
                reply = Product(Y, steps.basis.copy() if steps.send_basis else None)
            yield MeasuredReply(reply, 0, 0, 0, 1, task.key, number)


def peak(shards, method):
    """Bytes at most that one round takes."""
    engine = Ledgered(Retrying(Simulated(shards)))
    engine.rows, engine.columns = engine._engine._engine.rows, D
    engine._engine.rows, engine._engine.columns = engine.rows, D
    start = State(random_basis(D, R, np.random.default_rng(0)))
    states = method(engine, start)
    tracemalloc.start()
    next(states)
    next(states)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert engine.ledger.messages == 2 * 2 * shards
    return most


METHODS = {
    "dpi": lambda e, s: local_power(e, s, schedule=constant(1), align="none"),
    "aligned": lambda e, s: local_power(e, s, schedule=constant(2), align="procrustes"),
    "block Krylov": lambda e, s: local_ritz(e, s, R, proposal="residual", steps=4, start="random"),
    "merged start": lambda e, s: local_ritz(e, s, 1, proposal="residual", steps=4),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_thousand_shards_take_no_more_memory_than_ten(name):
    few, many = (peak(shards, METHODS[name]) for shards in (10, 1000))
    assert many - few <= 4 * D * R * 8
