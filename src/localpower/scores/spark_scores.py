"""Scores of Spark's frames, RDDs and row matrices: the same kind, and lazy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from pyspark import RDD

from localpower.core.errors import DataError
from localpower.core.linalg import Array
from localpower.data.blocks import choose, listed
from localpower.data.readers.clusters import quoted
from localpower.engines.blas import one_thread_in_worker
from localpower.scores.spark_vectors import fits, projected
from localpower.scores.steps import Step
from localpower.scores.tables import block_of, check_kept, refuse_kept
from localpower.worker.vectors import row_batches, stack_sparse

LAZY = (
    "scores of Spark's data stay with Spark; leave it out, and have the frame that is returned "
    "written, as with .write.parquet"
)
VECTORS = ("VectorUDT", "ArrayType")
DENSE = 1  # of the kinds of vectors in Spark


def mapped(step: Step, data: Any, keep: Sequence[str] | None = None) -> Any:
    """Scores of whatever is Spark's; nothing is computed."""
    if isinstance(data, list | tuple):
        raise DataError("data is a list of Spark's data; give one RDD, or frames joined by union")
    if isinstance(data, RDD) or type(data).__name__.endswith("RowMatrix"):
        refuse_kept(keep)
    if isinstance(data, RDD):
        return data.mapPartitions(partial(_elements, step))
    if type(data).__name__.endswith("RowMatrix"):
        rows = data.rows.mapPartitions(partial(_elements, step))
        return type(data)(rows, numCols=len(step.names))
    if type(data).__module__.startswith("pyspark.pandas"):
        raise DataError("data is a frame of pandas on Spark; give the frame of Spark, .to_spark()")
    return _frame(step, data, keep)


# Frames.


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """Where rows are in a frame: in one column of vectors, or in several of numbers."""

    names: tuple[str, ...]
    vector: bool
    kept: tuple[str, ...]

    @property
    def needed(self) -> tuple[str, ...]:
        """What batches hold, in this order, whatever they call it."""
        return tuple(dict.fromkeys([*self.kept, *self.names]))


def _frame(step: Step, frame: Any, keep: Sequence[str] | None) -> Any:
    """The frame, or the columns of it that are kept, and a column of vectors."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import StructField, StructType

    columns = _columns(step, frame, keep)
    vectors = columns.names[0]
    if (
        columns.vector
        and isinstance(frame.schema[vectors].dataType, VectorUDT)
        and fits(step, frame)
    ):
        return projected(step, frame, vectors, columns.kept)
    fields = [frame.schema[name] for name in columns.kept]
    schema = StructType([*fields, StructField(step.made, VectorUDT(), False)])
    needed = [quoted(name) for name in columns.needed]
    plain = frame.select(*needed).toDF(*(f"c{i}" for i in range(len(needed))))  # Spark quotes none
    return plain.mapInArrow(partial(_batches, step, columns), schema)


def _columns(step: Step, frame: Any, keep: Sequence[str] | None) -> FrameColumns:
    from pyspark.sql.types import BooleanType, NumericType

    names = list(frame.columns)
    check_kept(step, keep or (), names)
    kept = tuple(names if keep is None else keep)
    if step.made in kept:
        raise DataError(
            f"data has a column {step.made!r} already; rename or drop it, or name the columns to "
            "keep with keep="
        )
    if len(set(names)) < len(names):
        raise DataError(f"columns of the same name, of {listed(names)}; rename them")
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    vectors = [name for name, kind in kinds.items() if type(kind).__name__ in VECTORS]
    numbers = [n for n, kind in kinds.items() if isinstance(kind, NumericType | BooleanType)]
    by_name = step.like is not None and set(step.like) <= set(names)
    if vectors and not by_name:
        if len(vectors) > 1 and step.taken in vectors:
            vectors = [step.taken]
        if len(vectors) > 1:
            raise DataError(
                f"several columns of vectors, {listed(vectors)}; select the one that is meant"
            )
        return FrameColumns(tuple(vectors), True, kept)
    options = step.options(kept if by_name else keep or ())  # what is kept is not left out
    taken, _ = choose(names, len(names), options, "data")
    if words := [names[i] for i in taken if names[i] not in numbers]:
        raise DataError(
            f"column(s) {listed(words)} of the frame hold no numbers: select those that do, or "
            "one column of vectors"
        )
    step.check_width(len(taken), "data")
    return FrameColumns(tuple(names[i] for i in taken), False, kept)


def _batches(step: Step, columns: FrameColumns, batches: Iterable[Any]) -> Iterator[Any]:
    """Record batches with a column of scores; this runs on executors."""
    import pyarrow as pa

    for batch in batches:
        batch = pa.RecordBatch.from_arrays(batch.columns, list(columns.needed))
        with one_thread_in_worker():
            rows = _vectors(batch, columns) if columns.vector else _numbers(batch, columns)
            values = step.of_block(rows, "a batch of data") if len(batch) else None
        scores = _as_vectors(pa, values, len(step.names))
        kept = [batch.column(name) for name in columns.kept]
        yield pa.RecordBatch.from_arrays([*kept, scores], [*columns.kept, step.made])


def _numbers(batch: Any, columns: FrameColumns) -> Array:
    parts = [batch.column(name) for name in columns.names]
    kinds = {str(part.type) for part in parts}
    dtype = np.float32 if kinds == {"float"} else np.float64
    out = np.empty((len(batch), len(parts)), dtype)
    for number, part in enumerate(parts):
        if str(part.type).startswith("decimal"):
            part = part.cast("float64")
        out[:, number] = part.to_numpy(zero_copy_only=False)  # what is missing becomes NaN
    return out


def _vectors(batch: Any, columns: FrameColumns) -> Any:
    """Rows of a column of vectors, dense, sparse or both, or of arrays."""
    column = batch.column(columns.names[0])
    if column.null_count:
        raise DataError(
            f"column {columns.names[0]!r} has no vector in some rows; fill in or filter"
        )
    if not hasattr(column.type, "num_fields") or str(column.type).startswith("list"):
        return _even(column)
    dense = column.field("type").to_numpy(zero_copy_only=False) == DENSE
    if dense.all():
        return _even(column.field("values"))
    fields = (column.field(name).to_pylist() for name in ("size", "indices", "values"))
    rows = list(zip(*fields, strict=True))
    sizes = [len(v) if size is None else size for size, _, v in rows]
    places = [np.asarray(range(len(v)) if at is None else at, np.int32) for _, at, v in rows]
    return stack_sparse(sizes, places, [np.asarray(v, float) for _, _, v in rows])


def _even(column: Any) -> Array:
    """Lists of the same length as one array."""
    lengths = np.unique(np.diff(column.offsets.to_numpy()))
    if len(lengths) != 1:
        raise DataError(f"vectors of different lengths, {lengths.tolist()}; all need the same")
    flat = column.flatten()
    whole: Array = flat.to_numpy(zero_copy_only=False).reshape(-1, int(lengths[0]))
    return whole


def _as_vectors(pa: Any, values: Array | None, width: int) -> Any:
    """Dense vectors as Spark holds them: kind, size, places, numbers."""
    rows = 0 if values is None else len(values)
    flat = np.empty(0) if values is None else values.astype(np.float64).ravel()
    ends = pa.array(np.arange(rows + 1) * width, pa.int32())
    lists = pa.ListArray.from_arrays(ends, pa.array(flat))
    kinds = pa.array(np.full(rows, DENSE), pa.int8())
    nulls = pa.nulls(rows, pa.int32()), pa.nulls(rows, pa.list_(pa.int32()))
    return pa.StructArray.from_arrays([kinds, *nulls, lists], ["type", "size", "indices", "values"])


# RDDs.


def _elements(step: Step, elements: Iterable[Any]) -> Iterator[Any]:
    """Scores of elements: of a block an array, of each row or vector a vector."""
    from pyspark.mllib.linalg import DenseVector
    from pyspark.mllib.linalg.distributed import IndexedRow

    for kind, batch, rows in row_batches(elements):
        with one_thread_in_worker():
            values = block_of(step, rows, "an element of data")
        if kind == "block":
            yield values
        elif isinstance(batch[0], IndexedRow):
            pairs = zip(batch, values, strict=True)
            yield from (IndexedRow(row.index, DenseVector(value)) for row, value in pairs)
        else:
            yield from map(DenseVector, values)
