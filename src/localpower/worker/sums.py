"""Replies as words of a ring, and sums of such words as replies.

Each array of a reply has a bound that follows from what was asked, and from the trace of ``AᵀA``,
which all know: no partial sum of ``A_iᵀA_i q`` has an entry above ``trace · ‖q‖``. Column sums come
before the trace is known; they travel as wide words. What has noise in it is in words already.
"""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np

from localpower.core.linalg import Array
from localpower.core.ring import BITS, LIMBS, Grid, Words, wide_add, wide_decode, wide_encode
from localpower.core.rounding import from_wire
from localpower.worker.private_tasks import Noised, NoisedSum
from localpower.worker.replies import PackedSum, Product, Proposal
from localpower.worker.sum_tasks import ColumnSums, SmallGram, SmallSum, Spread, Sums
from localpower.worker.tasks import GramTriangle, PowerSteps, Refine, Task

MARGIN = 1.0 + 2.0**-20  # products are rounded, and may be a little above their bound
WIDE = (Sums, Spread)


def exponent_of(trace: float) -> int:
    """Exponent of a power of two that is no less than the trace."""
    return frexp(MARGIN * trace)[1]


def is_summable(task: Task[Any]) -> bool:
    """Whether a sum of the replies is all that anybody needs of them."""
    if isinstance(task, PowerSteps):
        aligned = task.steps == 1 or task.align != "none" or not task.send_basis
        return aligned and not task.send_basis and not task.reply and not task.loss
    if isinstance(task, Refine):
        return not task.loss and not task.proposal
    return isinstance(task, GramTriangle | SmallGram | Sums | Spread | Noised)


def grids(task: Task[Any], exponent: int, bits: int = BITS) -> dict[str, Grid]:
    """The grid of each array of a reply, by name, in the order in which words have them."""

    def grid(bound: float) -> Grid:
        return Grid(exponent + frexp(MARGIN * max(bound, 1.0))[1], bits)

    if isinstance(task, GramTriangle):
        return {"packed": Grid(exponent, bits)}
    if isinstance(task, SmallGram):
        return {"small": grid(_norm(task.basis) ** 2)}
    probed = {} if task.probes is None else {"probes": grid(_norm(task.probes))}  # type: ignore[attr-defined]
    if isinstance(task, Refine):
        own = {"product": grid(_norm(task.block)), "proposal": Grid(1, bits)}
    else:
        assert isinstance(task, PowerSteps)
        own = {"product": grid(_norm(task.basis))}
        own |= {"first": own["product"]} if task.send_first else {}
    return own | probed


def _norm(A: Array) -> float:
    """The largest norm of a column."""
    return float(np.linalg.norm(from_wire(A), axis=0).max(initial=0.0))


def to_words(task: Task[Any], reply: Any, exponent: int, bits: int = BITS) -> Words:
    """Write a reply as words, (count,) or of column sums (8, count), which can be added."""
    if isinstance(task, WIDE):
        return wide_encode(np.concatenate([[reply.rows], reply.first, reply.second]))
    if isinstance(task, Noised):
        words: Words = reply.words
        return words
    parts = [
        grid.encode(getattr(reply, name)).ravel()
        for name, grid in grids(task, exponent, bits).items()
    ]
    return np.concatenate(parts)


def sum_words(task: Task[Any], a: Words, b: Words) -> Words:
    """Add words of two replies."""
    return wide_add(a, b) if isinstance(task, WIDE) else a + b


def word_shape(task: Task[Any], columns: int) -> tuple[int, ...]:
    """Shape of the words of a reply."""
    shapes = task.shapes(0, columns)
    if isinstance(task, Noised):
        return (_size(shapes["words"]),)
    if isinstance(task, WIDE):
        return LIMBS, 1 + sum(int(shape[0] or 0) for shape in shapes.values())
    return (sum(_size(shapes[name]) for name in grids(task, 0)),)


def _size(shape: tuple[int | None, ...]) -> int:
    return int(np.prod([n or 0 for n in shape]))


def from_words(task: Task[Any], words: Words, columns: int, exponent: int, bits: int = BITS) -> Any:
    """Read a sum of replies."""
    if isinstance(task, Noised):
        return NoisedSum(words)
    shapes = task.shapes(0, columns)
    if isinstance(task, WIDE):
        numbers = wide_decode(words)
        return ColumnSums(float(numbers[0]), *np.split(numbers[1:], [columns]))
    found: dict[str, Array] = {}
    at = 0
    for name, grid in grids(task, exponent, bits).items():
        shape = tuple(int(n or 0) for n in shapes[name])
        part = words[at : (at := at + _size(shape))]
        found[name] = grid.decode(np.ascontiguousarray(part)).reshape(shape)
    if isinstance(task, GramTriangle):
        return PackedSum(found["packed"])
    if isinstance(task, SmallGram):
        return SmallSum(found["small"])
    if isinstance(task, Refine):
        return Proposal(**found)
    return Product(found["product"], first=found.get("first"), probes=found.get("probes"))
