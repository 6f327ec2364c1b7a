"""Scores of Ray's datasets and object references: the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

from localpower.core.errors import DataError
from localpower.core.linalg import Array
from localpower.data.blocks import check_columns, choose
from localpower.engines.blas import one_thread_in_worker
from localpower.engines.ray import without_table
from localpower.scores.steps import Step
from localpower.scores.tables import block_of, check_kept, refuse_kept
from localpower.worker.shard import work_type
from localpower.worker.vectors import stack_dense

LAZY = (
    "scores of Ray's data stay with Ray; leave it out, and have the dataset that is returned "
    "written, as with .write_parquet"
)
LARGE = 1 << 20  # bytes of a model from which on it is put in the object store once


def mapped(step: Step, data: Any, keep: Sequence[str] | None = None) -> Any:
    """Scores of whatever is Ray's: of a dataset, nothing is computed."""
    if isinstance(data, ray.ObjectRef | list | tuple):
        refuse_kept(keep)
    if isinstance(data, ray.ObjectRef):
        return TASK.remote(data, _held(step))
    if isinstance(data, list | tuple):
        if not all(isinstance(part, ray.ObjectRef) for part in data):
            raise DataError("a list of Ray's data has others; give object references only")
        held = _held(step)
        return type(data)([TASK.remote(part, held) for part in data])
    return _dataset(step, data, tuple(keep or ()))


def _held(step: Step) -> Any:
    return step if step.nbytes < LARGE else ray.put(step)


def block_scores(block: Any, step: Step) -> Any:
    """Scores of one block; this runs on a worker."""
    with one_thread_in_worker():
        return block_of(step, without_table(block))


TASK: Any = ray.remote(block_scores)


def _dataset(step: Step, dataset: Any, keep: tuple[str, ...]) -> Any:
    """A dataset of scores: with columns as those of the rows, or one of vectors."""
    schema = dataset.schema(fetch_if_missing=False)
    if schema is not None and len(schema.names) > 1:  # else it is known when it is read
        names = list(schema.names)
        check_kept(step, keep, names)
        choose(names, len(names), step.options(keep), "data")
    arguments = {"step": _held(step), "keep": keep}
    return dataset.map_batches(batch_scores, batch_format="numpy", fn_kwargs=arguments)


def batch_scores(batch: dict[str, Any], step: Any, keep: tuple[str, ...]) -> dict[str, Any]:
    """Columns of scores, after those that are kept; this runs on a worker."""
    if isinstance(step, ray.ObjectRef):
        step = ray.get(step)
    check_kept(step, keep, list(batch))
    beside = {name: batch[name] for name in keep}
    vectors = [name for name in batch if name not in keep and _is_vector(batch[name])]
    with one_thread_in_worker():
        if vectors and not (step.like and set(step.like) <= set(batch)):
            if len(vectors) > 1:
                raise DataError(f"several columns of vectors, {vectors}; select the one meant")
            column = batch[vectors[0]]
            rows = column if column.ndim == 2 else stack_dense(column)
            values = step.of_block(rows, "a batch of data")
            return beside | {step.made: values}
        values = step.of_block(_side_by_side(step, batch, keep), "a batch of data")
    return beside | dict(zip(step.names, values.T, strict=True))


def _is_vector(column: Any) -> bool:
    lists = column.dtype == object and len(column) > 0 and np.ndim(column[0]) == 1
    return bool(column.ndim == 2 or lists)


def _side_by_side(step: Step, batch: dict[str, Any], keep: tuple[str, ...]) -> Array:
    names = list(batch)
    taken, _ = choose(names, len(names), step.options(keep), "data")
    columns = [batch[names[i]] for i in taken]
    pairs = [(names[i], batch[names[i]].dtype) for i in taken]
    check_columns(
        [(n, str(kind)) for n, kind in pairs if kind.kind not in "fiub"], len(taken), "data"
    )
    dtype = work_type(kind for _, kind in pairs)
    return np.stack([column.astype(dtype, copy=False) for column in columns], axis=1)
