"""Tables and lazy arrays: pandas, polars, pyarrow and Dask, known by the names of their types."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError
from localpower.data.blocks import (
    Block,
    Options,
    block_rows,
    check_columns,
    choose,
    missing_value,
    no_label,
    refuse_empty,
    refuse_twins,
    text_labels,
)
from localpower.data.readers.arrow import arrow_blocks, column_blocks
from localpower.data.readers.matrix import MatrixColumns, columns_of, matrix_blocks, without_masks
from localpower.worker.shard import join_columns

KINDS = {
    ("pandas", "DataFrame"): "pandas",
    ("polars", "DataFrame"): "polars",
    ("polars", "LazyFrame"): "lazy",
    ("pyarrow", "Table"): "arrow",
    ("pyarrow", "RecordBatch"): "arrow",
    ("dask.array", "Array"): "dask array",
    ("dask.dataframe", "DataFrame"): "dask frame",
    ("dask_expr", "DataFrame"): "dask frame",
}
FEW, SEEN = 4, 1 << 27  # chunks, and bytes of dense rows, that are enough to look at


def is_frame(data: Any) -> bool:
    """Tell whether `frame_blocks` takes this."""
    return _kind(data) is not None


def frame_blocks(data: Any, options: Options, where: str = "data") -> Iterator[Block] | None:
    """Yield the rows of a table or Dask array; None if it is neither.

    A Dask array or frame is computed one row of chunks or one partition at a time, each once.
    """
    match _kind(data):
        case "pandas":
            return _pandas(data, options, where)
        case "polars":
            return _polars(data, options, where)
        case "arrow":
            return arrow_blocks(data, options, where)
        case "dask array":
            return _dask_array(data, options, where)
        case "dask frame":
            return _dask_frame(data, options, where)
        case "lazy":
            raise DataError(f"{where} is a polars LazyFrame; call .collect() and give its result")
    return None


def is_lazy_frame(data: Any) -> bool:
    """Tell an array or a frame of Dask."""
    return (_kind(data) or "").startswith("dask")


def some_chunks(data: Any, rows: int) -> tuple[Any, float]:
    """A few chunks from all over a Dask array or frame, of so many rows together or more.

    Also returns how many times as many rows there are in all. Where chunks do not tell their
    lengths, the first is computed, and the others are taken to be alike.
    """
    if data.ndim != 2 or not float(data.shape[1]).is_integer():
        return data, 1.0  # which is refused when it is opened
    frame = _kind(data) == "dask frame"
    known = not frame and float(data.shape[0]).is_integer()
    total = data.npartitions if frame else data.numblocks[0]
    sizes = np.array(data.chunks[0] if known else [_first_length(data)] * total)
    wanted = max(rows, SEEN // (8 * max(1, int(data.shape[1]))))
    count = max(FEW, -(-wanted * total // max(1, int(sizes.sum()))))
    if count >= total:
        return data, 1.0
    taken = np.linspace(0, total - 1, count).round().astype(int).tolist()
    part = data.partitions[taken] if frame else data.blocks[taken]
    return part, float(sizes.sum() / max(1, sizes[taken].sum()))


def _first_length(data: Any) -> int:
    """Rows of the first chunk, counted where it is made."""
    first = np.ravel(data.to_delayed())[0]
    return int(sys.modules["dask"].delayed(np.shape)(first).compute()[0])


def frame_names(data: Any) -> tuple[str, ...] | None:
    """Names of a table's columns; None for what has none."""
    kind = _kind(data)
    if kind in ("pandas", "polars", "dask frame"):
        return tuple(map(str, data.columns))
    return tuple(data.schema.names) if kind == "arrow" else None


def _kind(data: Any) -> str | None:
    for base in type(data).__mro__:
        module = base.__module__
        for (package, name), kind in KINDS.items():
            if base.__name__ == name and (module + ".").startswith(package + "."):
                return kind
    return None


def _pandas(frame: Any, options: Options, where: str) -> Iterator[Block]:
    names = [str(name) for name in frame.columns]
    plan = _plan(names, list(frame.dtypes), options, where)
    return _pandas_rows(frame, plan, 0)


@dataclass(frozen=True, slots=True)
class _FramePlan:
    where: str
    names: tuple[str, ...]
    taken: list[int]
    label: int | None
    label_name: str
    dtype: np.dtype[Any]
    sparse: bool
    gaps: bool


def _plan(names: list[str], dtypes: list[Any], options: Options, where: str) -> _FramePlan:
    taken, label = choose(names, len(names), options, where)
    refuse_twins(names, taken, where)
    kinds = {i: _number_type(dtypes[i]) for i in taken}
    bad = [(names[i], str(dtypes[i])) for i in taken if kinds[i] is None]
    check_columns(bad, len(taken), where)
    return _FramePlan(
        where,
        tuple(names[i] for i in taken),
        taken,
        label,
        "" if label is None else names[label],
        options.work_type(kind for kind in kinds.values() if kind is not None),
        all(_is_sparse(dtypes[i]) for i in taken),
        options.gaps,
    )


def _number_type(dtype: Any) -> np.dtype[Any] | None:
    """What numpy calls a pandas type; None if it is not one of numbers."""
    if isinstance(dtype, np.dtype):
        return np.dtype(dtype) if dtype.kind in "fiub" else None
    if type(dtype).__name__ == "SparseDtype":
        return _number_type(dtype.subtype)
    if str(dtype).startswith("decimal"):
        return np.dtype(np.float64)
    if getattr(dtype, "kind", "O") in "fiub" and hasattr(dtype, "numpy_dtype"):
        kind: np.dtype[Any] = np.dtype(dtype.numpy_dtype)
        return kind
    return None


def _is_sparse(dtype: Any) -> bool:
    return type(dtype).__name__ == "SparseDtype" and bool(dtype.fill_value == 0)


def _pandas_rows(frame: Any, plan: _FramePlan, row: int) -> Iterator[Block]:
    """Rows of a frame; `row` is the number of its first in messages."""
    labels = None if plan.label is None else _pandas_label(frame.iloc[:, plan.label], plan)
    if plan.sparse:
        yield from _pandas_sparse(frame, plan, labels)
        return
    whole = _whole(frame, plan)
    if whole is not None:
        step = block_rows(len(plan.taken) * plan.dtype.itemsize)
        for start in range(0, max(1, len(whole)), step):
            tags = None if labels is None else labels[start : start + step]
            yield Block(whole[start : start + step], tags, plan.names)
        return
    columns = [_pandas_column(frame.iloc[:, i], plan, row) for i in plan.taken]
    yield from column_blocks([(columns, labels)], plan.names, plan.dtype)


def _whole(frame: Any, plan: _FramePlan) -> NDArray[Any] | None:
    """The frame's own array, if it is one and its rows are in order in memory."""
    if any(dtype != plan.dtype for dtype in frame.dtypes) or plan.taken != [*range(frame.shape[1])]:
        return None
    array: NDArray[Any] = frame.to_numpy()
    return array if array.flags.c_contiguous and array.dtype == plan.dtype else None


def _pandas_sparse(frame: Any, plan: _FramePlan, labels: NDArray[Any] | None) -> Iterator[Block]:
    csr = frame.iloc[:, plan.taken].sparse.to_coo().tocsr()
    columns = MatrixColumns(len(plan.taken), [*range(len(plan.taken))], None, plan.dtype)
    start = 0
    for block in matrix_blocks(csr, columns):
        stop = start + block.rows.shape[0]
        yield Block(block.rows, None if labels is None else labels[start:stop], plan.names)
        start = stop
    if not start:
        yield Block(columns.empty().rows, None, plan.names)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that is converted a slice at a time, by `convert`."""

    series: Any
    convert: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self.convert(self.series[rows]))


def _pandas_column(series: Any, plan: _FramePlan, row: int) -> Any:
    """A column of plain numbers as it is; nullable or sparse ones are converted."""
    if isinstance(series.dtype, np.dtype):
        return series.to_numpy()
    kind = _number_type(series.dtype)
    if type(series.dtype).__name__ == "SparseDtype" or not series.hasnans:
        return _Column(series.array, lambda part: part.to_numpy(dtype=kind))
    if not plan.gaps:
        first = int(np.argmax(series.isna().to_numpy()))
        raise missing_value(plan.where, row + first, str(series.name))
    return _Column(series.array, lambda part: part.to_numpy(np.float64, na_value=np.nan))


def _pandas_label(series: Any, plan: _FramePlan) -> NDArray[Any]:
    """Labels; one that is missing is nan, or no text."""
    missing = series.isna().to_numpy()
    kind = _number_type(series.dtype)
    if kind is not None and missing.any():
        return np.asarray(series.to_numpy(np.float64, na_value=np.nan))
    if kind is not None:
        return np.asarray(series.to_numpy(dtype=kind))
    values = ["" if gap else value for value, gap in zip(series.tolist(), missing, strict=True)]
    if all(isinstance(value, str) for value in values):
        return text_labels(values, plan.where)
    labels = np.array(values)
    if labels.dtype.kind not in "fiub":
        raise no_label(plan.where, plan.label_name, series.dtype)
    return labels


def _polars(frame: Any, options: Options, where: str) -> Iterator[Block]:
    pl = sys.modules["polars"]
    names, dtypes = list(frame.columns), list(frame.dtypes)
    taken, label = choose(names, len(names), options, where)
    number = [bool(dtype.is_numeric() or dtype == pl.Boolean) for dtype in dtypes]
    check_columns([(names[i], str(dtypes[i])) for i in taken if not number[i]], len(taken), where)
    if label is not None and not number[label] and not _polars_text(pl, dtypes[label]):
        raise no_label(where, names[label], dtypes[label])
    for i in taken:
        if frame[:, i].null_count() and not options.gaps:
            raise missing_value(where, int(frame[:, i].is_null().arg_max()), names[i])
    narrow = all(str(dtypes[i]) in ("Float16", "Float32") for i in taken)
    dtype = options.work_type([np.float32 if narrow else np.float64])
    columns = [_Column(frame[:, i], _polars_numbers) for i in taken]
    labels = None
    if label is not None:
        series = frame[:, label]
        texts = [] if number[label] else [text or "" for text in series.to_list()]
        labels = _polars_numbers(series) if number[label] else text_labels(texts, where)
    return column_blocks([(columns, labels)], tuple(names[i] for i in taken), dtype)


def _polars_text(pl: Any, dtype: Any) -> bool:
    return any(dtype == kind for kind in (pl.String, pl.Categorical, pl.Enum))


def _polars_numbers(part: Any) -> Any:
    if part.dtype.is_decimal() or "128" in str(part.dtype) or part.null_count():
        part = part.cast(sys.modules["polars"].Float64)
    return part.to_numpy()


def dask_columns(array: Any, where: str) -> int:
    """How many columns a Dask array has."""
    if array.ndim != 2:
        raise DataError(f"{where} has {array.ndim} dimension(s), not 2: give one row per sample")
    if not float(array.shape[1]).is_integer():
        raise DataError(f"{where} does not know its columns; call .compute_chunk_sizes() before")
    return int(array.shape[1])


def _dask_array(array: Any, options: Options, where: str) -> Iterator[Block]:
    columns = columns_of(dask_columns(array, where), array.dtype, options, where)
    return _dask_rows(array, columns, where, options.gaps)


def _dask_rows(array: Any, columns: MatrixColumns, where: str, gaps: bool) -> Iterator[Block]:
    yielded = False
    for i in range(array.numblocks[0]):
        row = [array.blocks[i, j] for j in range(array.numblocks[1])]
        parts = sys.modules["dask"].compute(*row)
        chunk = join_columns([*map(without_masks, parts)] if gaps else parts)
        if chunk.ndim != 2 or chunk.shape[1] != columns.count:
            raise DataError(
                f"{where}: chunks in row {i} have shape {chunk.shape} together, not "
                f"{columns.count} columns as declared"
            )
        for block in matrix_blocks(chunk, columns):
            yielded = True
            yield block
    if not yielded:
        yield columns.empty()


def _dask_frame(frame: Any, options: Options, where: str) -> Iterator[Block]:
    names = [str(name) for name in frame.columns]
    plan = _plan(names, list(frame.dtypes), options, where)
    return _dask_partitions(frame, names, plan)


def _dask_partitions(frame: Any, names: list[str], plan: _FramePlan) -> Iterator[Block]:
    needed = sorted({*plan.taken, *([] if plan.label is None else [plan.label])})
    if len(set(names)) < len(names):  # columns cannot be told by name
        needed = list(range(len(names)))
    declared = [names[j] for j in needed]
    label = None if plan.label is None else needed.index(plan.label)
    wanted = Options([needed.index(i) for i in plan.taken], label=label, dtype=plan.dtype.name,
                     missing="drop" if plan.gaps else None)  # fmt: skip
    row = 0
    for i in range(frame.npartitions):
        where = f"{plan.where}, partition {i}"
        part = frame.partitions[i]
        if len(needed) < len(names):  # what is not needed need not be read
            part = part[[frame.columns[j] for j in needed]]
        try:
            part = part.compute()
        except KeyError as error:
            if not any(name in str(error) for name in declared):
                raise
            raise _other_columns(where, names) from error
        if [str(name) for name in part.columns] != declared:
            raise _other_columns(where, names)
        actual = _plan(declared, list(part.dtypes), wanted, where)  # dask does not enforce types
        yield from _pandas_rows(part, actual, row)
        row += len(part)


def _other_columns(where: str, names: list[str]) -> DataError:
    return DataError(f"{where}: has other columns than declared: {', '.join(names[:20])}")


def rows_in_place(data: Any, options: Options) -> tuple[Any, dict[str, int]]:
    """The columns wanted of a Dask array or frame, lazily, without gaps if that is asked for.

    Also returns how many rows are left out or values are filled in, which Dask counts.
    """
    if _kind(data) == "dask frame":
        names = [str(name) for name in data.columns]
        plan = _plan(names, list(data.dtypes), options, "data")
        rows = data[[data.columns[i] for i in plan.taken]]
        if options.gaps:  # nullable types do not take means
            nullable = [n for n, kind in rows.dtypes.items() if not isinstance(kind, np.dtype)]
            rows = rows.astype(dict.fromkeys(nullable, np.float64))
    else:
        columns = columns_of(int(data.shape[1]), data.dtype, options, "data")
        rows = data if len(columns.taken) == columns.count else data[:, columns.taken]
    if options.dtype is not None:
        rows = rows.astype(options.dtype)
    return (rows, {}) if not options.gaps else _complete(rows, options.missing == "drop")


def _complete(rows: Any, drop: bool) -> tuple[Any, dict[str, int]]:
    dask, is_frame = sys.modules["dask"], hasattr(rows, "isna")
    if not is_frame and not isinstance(rows._meta, np.ndarray):
        raise DataError("data: missing= is not for sparse chunks; fill in values in the chunks")
    holes = rows.isna() if is_frame else dask.array.isnan(rows)
    if drop:
        gaps = holes.any(axis=1)
        left = int(dask.compute(gaps.sum())[0])
        return (rows[~gaps], {"rows_left_out": left}) if left else (rows, {})
    known = rows.fillna(0) if is_frame else dask.array.where(holes, 0, rows)
    sums, present, missing = dask.compute(
        known.sum(axis=0), (~holes).sum(axis=0), holes.sum(axis=0)
    )
    filled = int(np.sum(missing))
    if not filled:
        return rows, {}
    refuse_empty(np.asarray(present), frame_names(rows))
    means = sums / present
    if is_frame:
        return rows.fillna(means), {"values_filled": filled}
    return dask.array.where(holes, means.astype(rows.dtype), rows), {"values_filled": filled}
