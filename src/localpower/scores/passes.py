"""Rows on this machine: one pass over them, a stretch for each core at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from localpower.core.ahead import ahead
from localpower.core.linalg import Array
from localpower.core.machine import cores
from localpower.data.blocks import Options
from localpower.data.single_pass import Opened, Stretch, TooNarrow, read_once
from localpower.engines.blas import one_blas_thread
from localpower.scores.steps import Step


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What to read, and how; `told` says that the options are the user's own."""

    data: Any
    options: Options
    memory: int | str | None = None
    told: bool = False


def stacked(step: Step, rows: Pass) -> Array:
    """All scores as one array, (n, k)."""
    try:
        with read_once(rows.data, rows.options, rows.memory, rows.told) as opened:
            parts = [values for _, values in in_order(step, opened)]
    except TooNarrow:
        return stacked(step, as_float64(rows))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def as_float64(rows: Pass) -> Pass:
    """The same rows, read as float64."""
    return replace(rows, options=replace(rows.options, dtype="float64"))


def in_order(step: Step, opened: Opened) -> Iterator[tuple[Stretch, Array]]:
    """Yield every stretch with its scores; a few are worked on or waiting at a time."""

    def work(stretch: Stretch) -> Array:
        step.check_width(stretch.piece.shape[1], stretch.where)
        values = step((stretch.piece,), opened.dtype)
        return step.checked(values, stretch.where, stretch.rows)

    stretches, workers = opened.stretches, cores()
    some = list(islice(stretches, 2))
    if len(some) < 2 or workers < 2:
        for stretch in chain(some, stretches):
            yield stretch, work(stretch)
        return
    with ExitStack() as around:
        around.enter_context(one_blas_thread())
        pool = ThreadPoolExecutor(workers)
        around.callback(pool.shutdown, cancel_futures=True)
        calls = ((stretch, pool.submit(work, stretch)) for stretch in chain(some, stretches))
        for stretch, values in ahead(calls, workers):
            yield stretch, values.result()
