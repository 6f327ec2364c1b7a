"""How LocalRitz asks shards for proposals: local steps from the answer so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localpower.core.linalg import Array
from localpower.core.rounding import from_wire, to_bytes
from localpower.engines.base import Engine
from localpower.methods.rounding import WireRounding
from localpower.worker.tasks import Refine

if TYPE_CHECKING:
    from localpower.methods.ritz import RitzState


def exchange(engine: Engine, state: RitzState, steps: int, rounding: WireRounding | None) -> Array:
    """Let the anchor shard propose."""
    task = refine(engine, state, state.basis[:, :0], steps, 0.0, rounding)
    (reply,) = engine.map(task, engine.anchor_first()[:1])
    return from_wire(reply.proposal)


def refine(
    engine: Engine,
    state: RitzState,
    block: Array,
    steps: int,
    loss: float,
    rounding: WireRounding | None,
) -> Refine:
    """Ask for the product of a block, as it is sent, and for local steps from the answer so far."""
    assert state.exact is not None
    X, image = (A.astype(engine.dtype, copy=False) for A in state.exact)
    name, spare = "", 0.0
    if rounding is not None:
        name, spare = rounding.name, rounding.for_basis(state.standing(rounding))
    X, image = to_bytes(X, spare), to_bytes(image, spare * float(state.values[0]))
    return Refine(np.ascontiguousarray(block), X, image, steps, sum(engine.rows), loss, name)
