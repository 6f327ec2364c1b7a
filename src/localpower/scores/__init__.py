"""Scores of rows, made where the rows are: one file for each kind of data that others hold."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from localpower.core.errors import DataError
from localpower.data.blocks import Options
from localpower.data.readers.foreign import engine_of, is_remote
from localpower.data.readers.frames import is_lazy_frame
from localpower.data.reading import LazySource
from localpower.scores.files import Written, write
from localpower.scores.passes import Pass, stacked
from localpower.scores.steps import Step, ToRows, ToScores
from localpower.scores.tables import is_table, refuse_kept, table_of
from localpower.worker.shard import is_function

if TYPE_CHECKING:
    from localpower.result import Result

KINDS = {
    "dask": "localpower.scores.dask_scores",
    "spark": "localpower.scores.spark_scores",
    "ray": "localpower.scores.ray_scores",
}  # by the engine that works on such data where they are; imported when asked for

__all__ = [
    "ToRows",
    "ToScores",
    "Written",
    "left_vectors",
    "mapped",
    "write_scores",
]


def left_vectors(result: Result, data: Any) -> Any:
    """Left singular vectors of the rows that were fitted: scores by singular values, in place.

    What belongs to a singular value of zero is zero.
    """
    S = result.singular_values.astype(np.float64)
    inverse = np.divide(1.0, S, out=np.zeros_like(S), where=S > 0)
    components = (result.components * inverse[:, None]).astype(result.components.dtype)
    step = replace(ToScores.of(result), components=components, made="U", prefix="u")
    return mapped(step, data, None, None, result.run.get("memory"))


def write_scores(
    result: Result,
    data: Any,
    out: str | os.PathLike[str],
    options: Options,
    *,
    keep: Sequence[str] = (),
    memory: int | str | None = None,
) -> Written:
    """Write the scores of rows that are read with options of the user's own."""
    step = ToScores.of(result)
    return write(step, Pass(data, step.options(keep, options), memory, told=True), out, keep)


def mapped(
    step: Step,
    data: Any,
    out: str | os.PathLike[str] | None,
    keep: Sequence[str] | None,
    memory: int | str | None,
) -> Any:
    """What a step makes of rows of any kind, as `Result.transform` documents it."""
    keep = None if keep is None else tuple([keep] if isinstance(keep, str) else keep)
    if isinstance(data, LazySource) and (out is None or not is_lazy_frame(data.data)):
        data, _ = data.in_place()
    engine = engine_of(data)
    if engine is None and isinstance(data, list | tuple) and any(map(is_remote, data)):
        raise DataError("data has blocks of a cluster among others; give all of one kind")
    if engine is not None:
        module = import_module(KINDS[engine])
        if out is not None:
            raise ValueError(f"out={os.fspath(out)!r}: {module.LAZY}")
        return module.mapped(step, data, keep)
    if is_function(data):
        data = import_module("localpower.scores.mpi_scores").own_rows(data)
    if out is not None:
        options = step.options(keep or ())
        return write(step, Pass(data, options, memory), Path(out), keep or ()).path
    if is_table(data):
        return table_of(step, data, keep or ())
    refuse_kept(keep)
    if isinstance(step, ToRows) and isinstance(data, np.ndarray | list | tuple):
        return _rows_of(step, data)
    return stacked(step, Pass(data, step.options(), memory))


def _rows_of(step: ToRows, scores: Any) -> Any:
    scores = np.asarray(scores)
    if scores.ndim != 2 or scores.shape[1] != step.width:
        raise ValueError(f"scores must be (n, {step.width}), got shape {scores.shape}")
    return step.rows_of(scores)
