"""LocalPower, Algorithm 1 of the paper, and what it contains: DPI and one-shot averaging.

Start reading here. A round broadcasts the basis ``Z``; shard i does p power steps of its own,
``Z_i ← orth(M_i Z_i)``, and sends its last product ``Y_i = M_i Z_i``; the server turns the products
towards each other and averages, ``Y = Σ p_i Y_i O_i``; the next basis is ``orth(Y)``.

Since ``p_i M_i = (s_i/n)(A_iᵀA_i/s_i) = A_iᵀA_i/n``, shards send ``A_iᵀA_i Z_i`` and the server
only adds: the common 1/n does not change ``orth``, and a shard without rows counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from localpower.core.alignment import to_first
from localpower.core.engine import Engine
from localpower.core.linalg import Array, fold, orth
from localpower.core.schedule import Schedule
from localpower.core.tasks import PowerSteps, Product


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a method stands: its basis after so many rounds and power steps."""

    basis: Array
    round: int = 0
    steps: int = 0


def local_power(
    engine: Engine, state: State, *, schedule: Schedule, align: str, align_at: str = "server"
) -> Iterator[State]:
    """Run LocalPower from `state` and yield the state after every round.

    Parameters
    ----------
    engine : Engine
        Holds the shards.
    state : State
        Its basis, (d, r), is the common start ``Z_0``.
    schedule : callable
        Maps the number of the round to its steps p, 0 to stop. DPI is ``constant(1)``.
    align : {"procrustes", "signs", "none"}
        How bases are turned towards the anchor, the shard with the most rows.
    align_at : {"server", "worker"}
        ``"worker"`` aligns to the broadcast basis instead of the anchor's, so that only a sum
        travels: half the upload, and the engine may add on the way.
    """
    while (p := schedule(state.round)) > 0:
        Z, rotate = state.basis, align if p > 1 else "none"  # for p = 1 all Z_i are Z
        if rotate == "none" or align_at == "worker":
            Y = engine.sum(PowerSteps(Z, p, align=rotate)).product
        else:
            replies = engine.map(PowerSteps(Z, p, send_basis=True), engine.anchor_first())
            aligned = to_first((reply.pair() for reply in replies), rotate)
            Y = fold(map(Product, aligned), len(engine.rows)).product
        basis = orth(Y, overwrite=True).astype(Z.dtype, copy=False)
        state = State(basis, state.round + 1, state.steps + p)
        yield state
