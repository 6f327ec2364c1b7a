"""Scores of Dask's arrays, frames, delayed blocks and futures: the same kind, and lazy.

A score needs one row and the model, so a block of scores is one task on one block of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import Delayed, delayed

from localpower.core.errors import DataError
from localpower.core.linalg import Array
from localpower.data.readers.foreign import refuse_object
from localpower.data.readers.frames import dask_columns
from localpower.engines.blas import one_thread_in_worker
from localpower.scores.steps import Step
from localpower.scores.tables import block_of, refuse_kept, table_of
from localpower.worker.shard import join_columns, work_type

LAZY = (
    "scores of Dask's data stay with Dask; leave it out, and have what is returned written, as "
    "with .to_zarr or .to_parquet"
)
LARGE = 1 << 20  # bytes of a model from which on it is a task of its own, and goes out once
_da: Any = da  # most of it has no types


def mapped(step: Step, data: Any, keep: Sequence[str] | None = None) -> Any:
    """Scores of whatever is Dask's; nothing is computed."""
    if isinstance(data, Delayed):  # which has whatever attribute it is asked for
        refuse_kept(keep)
        return _one(step, data)
    refuse_object(data, "data")
    if not hasattr(data, "map_partitions"):
        refuse_kept(keep)
    if isinstance(data, list | tuple):
        return type(data)([_one(step, part) for part in data])
    if hasattr(data, "chunks"):
        return _array(step, data)
    if hasattr(data, "map_partitions"):
        return _frame(step, data, tuple(keep or ()))
    return _one(step, data)


def _held(step: Step) -> Any:
    return step if step.nbytes < LARGE else delayed(step, pure=True)


def _array(step: Step, array: Any) -> Any:
    step.check_width(dask_columns(array, "data"), "data")
    dtype = work_type([array.dtype])
    return _da.blockwise(
        chunk_scores, "ik", array, "ij", step=_held(step), dtype=dtype, concatenate=False,
        new_axes={"k": len(step.names)}, meta=np.empty((0, 0), dtype), align_arrays=False,
    )  # fmt: skip


def chunk_scores(parts: list[Any], step: Step) -> Array:
    """Scores of one chunk, whose columns may be in several parts."""
    with one_thread_in_worker():
        return step.of_block(join_columns(parts), "a chunk of data")


def _frame(step: Step, frame: Any, keep: tuple[str, ...]) -> Any:
    """Scores of the frame, under its index."""
    meta = table_of(step, frame._meta, keep)  # refuses columns that do not fit, and tells others
    names = list(map(str, frame.columns))
    wanted = [*keep, *(name for name in step.like or () if name not in keep)]
    if step.like is not None and set(step.like) <= set(names) and len(set(names)) == len(names):
        places = [names.index(name) for name in wanted]
        frame = frame[[frame.columns[place] for place in places]]  # others are not read
    return frame.map_partitions(_partition, _held(step), keep, meta=meta)


def _partition(part: Any, step: Step, keep: tuple[str, ...]) -> Any:
    with one_thread_in_worker():
        return table_of(step, part, keep, "a partition of data")


def _one(step: Step, part: Any) -> Any:
    if isinstance(part, Delayed):
        return delayed(_block, pure=True)(part, _held(step))
    if hasattr(part, "client"):
        return part.client.submit(_block, part, step, pure=False)
    raise DataError(
        f"a list of Dask's data has a {type(part).__name__}; give delayed blocks or futures, all "
        "of one kind"
    )


def _block(block: Any, step: Step) -> Any:
    with one_thread_in_worker():
        return block_of(step, block)
