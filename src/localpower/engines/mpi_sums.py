"""Replies as plain arrays, for the reduction of an MPI library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from localpower.core.ledger import arrays
from localpower.core.linalg import Array
from localpower.core.rounding import from_wire
from localpower.worker import tasks
from localpower.worker.replies import MeasuredReply
from localpower.worker.tasks import Task

WEIGHTS = ("words", "size", "read", "count")


def adds_up(task: Task[Any]) -> bool:
    """Whether the replies are arrays of which nothing but the sum is wanted."""
    inner = task.task if isinstance(task, tasks.Measure) else task
    inner = inner.for_shard(0)
    plain = isinstance(
        inner, tasks.PowerSteps | tasks.ProjectRows | tasks.Refine | tasks.GramTriangle
    )
    return plain and not getattr(inner, "send_basis", False)


def wide(reply: Any) -> tuple[dict[str, Array], Any]:
    """Arrays of a reply in float64, to be added in place, and what it weighs."""
    content = getattr(reply, "content", reply)
    found = [] if reply is None else arrays(content)
    floats = {name: np.require(from_wire(A), requirements="W") for name, A in found}
    return floats, np.array([getattr(reply, name, 0) for name in WEIGHTS], np.int64)


def summed(reply: Any, task: Any, sums: dict[str, Array], counts: Any) -> Any:
    """Put sums in the place of what a reply to a task has."""
    if not isinstance(reply, MeasuredReply):
        return replace(reply, **sums)
    weights = dict(zip(WEIGHTS, counts.tolist(), strict=True))
    return replace(reply, content=replace(reply.content, **sums), key=task.key, **weights)
