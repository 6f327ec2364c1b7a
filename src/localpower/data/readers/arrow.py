"""Parquet, Arrow IPC and Feather files, a row group or batch at a time, numbers only."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError, MissingExtra
from localpower.data.blocks import (
    Block,
    Options,
    block_rows,
    check_columns,
    choose,
    missing_value,
    no_label,
    refusing_damage,
    text_labels,
)
from localpower.worker.kernels import interleave

BATCH_BYTES = 1 << 27  # decoded at once: fewer and larger are faster
OLDEST = 15  # pyarrow before 14.0.1 runs code from files, CVE-2023-47248
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read_parquet(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of a Parquet file; only the columns taken are read."""
    pa = _pyarrow()
    import pyarrow.parquet as pq

    with (
        refusing_damage(path, "Parquet", "pyarrow.parquet.write_table"),
        pq.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        plan = plan_of(pa, file.schema_arrow, options, path)
        yield from batch_blocks(pa, _row_groups(file, plan), plan)


def read_arrow(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of an Arrow IPC file, which Feather is too, or of an IPC stream."""
    pa = _pyarrow()
    with (
        refusing_damage(path, "Arrow", "pyarrow.feather.write_feather or pyarrow.ipc"),
        pa.memory_map(os.fspath(path)) as stream,
    ):
        magic = stream.read(6)
        stream.seek(0)
        if magic == b"ARROW1":
            opened = pa.ipc.open_file
        elif magic[:4] == b"\xff\xff\xff\xff":
            opened = pa.ipc.open_stream
            _check_end(path)
        else:
            raise ValueError(f"it starts with {magic!r}")
        with opened(stream) as reader:
            plan = plan_of(pa, reader.schema, options, path)
            wanted = plan.read if len(plan.read) < len(reader.schema) else []  # all, faster
        stream.seek(0)
        with opened(stream, options=pa.ipc.IpcReadOptions(included_fields=wanted)) as reader:
            yield from batch_blocks(pa, record_batches(reader), plan)


def arrow_blocks(table: Any, options: Options, where: Path | str) -> Iterator[Block]:
    """Yield the rows of a table or record batch in memory."""
    import pyarrow as pa

    plan = plan_of(pa, table.schema, options, where)
    chosen = table.select(plan.read)
    batches = [chosen] if isinstance(chosen, pa.RecordBatch) else chosen.to_batches()
    yield from batch_blocks(pa, batches, plan)


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """Which columns become rows, in this order, which one labels, and the rows' precision.

    `read` are the numbers of the columns that are needed; `where` names the data in messages.
    """

    where: Path | str
    names: tuple[str, ...]
    label: str | None
    read: list[int]
    dtype: np.dtype[Any]
    gaps: bool


def plan_of(pa: ModuleType, schema: Any, options: Options, where: Path | str) -> ReadingPlan:
    """Choose columns of an Arrow schema; refuse those that are not numbers, all at once."""
    names, types = list(schema.names), schema.types  # both are made anew each time
    index = _index_columns(schema)
    taken, label = choose(names, len(names), options, where, index)
    if index and not taken and options.drop is None and label is None:
        raise DataError(
            f"{where}: all its columns are the index that pandas stored; name those that are "
            f"data with columns={_at(names, sorted(index))}"
        )
    check_columns(
        [(names[i], str(types[i])) for i in taken if not _is_number(pa, types[i])],
        len(taken),
        where,
    )
    if label is not None and not _is_label(pa, types[label]):
        raise no_label(where, names[label], types[label])
    read = sorted({*taken} | ({label} if label is not None else set()))
    counts = Counter(names)
    for name in {names[i] for i in read}:
        if counts[name] > 1:  # columns are read by name
            raise DataError(
                f"{where}: {counts[name]} columns are named {name!r}; rename them, or leave "
                f"them out with drop={[i for i, n in enumerate(names) if n == name]}"
            )
    narrow = all(pa.types.is_float32(t) or pa.types.is_float16(t) for t in _at(types, taken))
    return ReadingPlan(
        where,
        tuple(_at(names, taken)),
        None if label is None else names[label],
        read,
        options.work_type([np.float32 if narrow else np.float64]),
        options.gaps,
    )


def _index_columns(schema: Any) -> set[int]:
    """Columns that hold the index of a data frame, as pandas notes it in the schema.

    A range is noted by its ends, and is no column.
    """
    try:
        noted = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        names = {name for name in noted if isinstance(name, str)}
    except (KeyError, TypeError, ValueError):
        return set()
    return {number for number, name in enumerate(schema.names) if name in names}


def batch_blocks(pa: ModuleType, batches: Iterable[Any], plan: ReadingPlan) -> Iterator[Block]:
    """Turn record batches of any size into blocks."""

    def parts() -> Iterator[tuple[list[NDArray[Any]], NDArray[Any] | None]]:
        row = 0
        for batch in batches:
            batch.validate()  # numpy would read past buffers that are too short
            labels = None
            if plan.label is not None:
                labels = _labels(pa, batch.column(plan.label), plan)
            columns = [_view(pa, batch.column(name), name, plan, row) for name in plan.names]
            row += batch.num_rows
            del batch  # or two would be in memory when the next one is read
            yield columns, labels
            columns.clear()

    yield from column_blocks(parts(), plan.names, plan.dtype)


def column_blocks(
    parts: Iterable[tuple[Sequence[Any], NDArray[Any] | None]],
    names: tuple[str, ...],
    dtype: np.dtype[Any],
) -> Iterator[Block]:
    """Turn columns into rows: each part is some rows' columns, and their labels.

    Yields blocks of `block_rows`, or less where a part ends, but not many small ones, and at least
    one, if without rows.
    """
    step = block_rows(len(names) * dtype.itemsize)
    empty = np.empty((0, len(names)), dtype)
    out, filled, yielded = empty, 0, False
    tags: list[NDArray[Any]] = []
    with ThreadPoolExecutor(1) as other:
        for columns, labels in parts:
            rows, start = len(columns[0]), 0
            while start < rows:
                if not filled:
                    few = rows - start < step // 8
                    out = _room(step if few else min(step, rows - start), len(names), dtype)
                stop = min(start + len(out) - filled, rows)
                part = _parts(columns, start, stop, dtype)
                interleave(part, out[filled : filled + stop - start], other)
                if labels is not None:
                    tags.append(labels[start:stop])
                filled, start = filled + stop - start, stop
                if filled == len(out):
                    yield Block(out, _joined(tags), names)
                    out, filled, yielded, tags = empty, 0, True, []
    if filled or not yielded:
        rest = out[:filled] if 2 * filled > step else out[:filled].copy()
        yield Block(rest, _joined(tags), names)


def _room(rows: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Make an array, with Arrow's allocator if it is there: it reuses memory, which is faster."""
    pa = sys.modules.get("pyarrow")
    if pa is None:
        return np.empty((rows, width), dtype)
    buffer = pa.allocate_buffer(rows * width * dtype.itemsize)
    return np.frombuffer(buffer, dtype).reshape(rows, width)


def _pyarrow() -> ModuleType:
    import pyarrow as pa
    import pyarrow.ipc

    if int(pa.__version__.split(".")[0]) < OLDEST:
        found = f"pyarrow {pa.__version__} is installed, {OLDEST} is the oldest without known holes"
        raise MissingExtra(f"reading files ({found})", "parquet")
    return pa  # type: ignore[no-any-return]


def _check_end(path: Path) -> None:
    """A stream that is cut between two batches looks whole but for its end mark."""
    with open(path, "rb") as stream:
        stream.seek(-len(END_OF_STREAM), os.SEEK_END)
        if stream.read() != END_OF_STREAM:
            raise ValueError("the stream has no end mark")


def _row_groups(file: Any, plan: ReadingPlan) -> Iterator[Any]:
    """Yield row groups: small ones several at once, which is faster, large ones in batches.

    Metadata of single columns are not looked at: pyarrow aborts the process if they are damaged.
    """
    names = [*plan.names, *([] if plan.label is None else [plan.label])]
    most = max(1, BATCH_BYTES // (8 * len(names)))
    declared = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    for group in _together(declared, most):
        expected, found = sum(declared[i] for i in group), 0
        if 0 <= expected <= most:
            batches = file.read_row_groups(group, columns=names).to_batches()
        else:
            batches = file.iter_batches(most, row_groups=group, columns=names)
        for batch in batches:
            found += batch.num_rows
            yield batch
            del batch
        del batches
        if found != expected:
            raise ValueError(f"row groups {group} have {found} rows, not {expected}")


def _together(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield consecutive numbers whose sizes add up to at most so much, or single ones."""
    group: list[int] = []
    for number, size in enumerate(sizes):
        if group and sum(sizes[i] for i in group) + size > most:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def record_batches(reader: Any) -> Iterator[Any]:
    """The batches of an Arrow file, or of a stream."""
    if hasattr(reader, "num_record_batches"):
        return map(reader.get_batch, range(reader.num_record_batches))
    return iter(reader)


def _is_number(pa: ModuleType, kind: Any) -> bool:
    t = pa.types
    return bool(
        t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_decimal(kind)
    )


def _is_text(pa: ModuleType, kind: Any) -> bool:
    views = getattr(pa.types, "is_string_view", lambda _: False)  # from pyarrow 16
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or views(kind))


def _is_label(pa: ModuleType, kind: Any) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return _is_text(pa, value) or _is_number(pa, value)


def _view(pa: ModuleType, column: Any, name: str, plan: ReadingPlan, row: int) -> NDArray[Any]:
    """A column's numbers, without a copy if they are of a type that numpy has."""
    if column.null_count and not plan.gaps:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        raise missing_value(plan.where, row + int(np.argmax(nulls)), name)
    return _numbers(pa, column)


def _numbers(pa: ModuleType, column: Any) -> NDArray[Any]:
    if pa.types.is_decimal(column.type) or (
        column.null_count and not pa.types.is_floating(column.type)
    ):
        column = column.cast(pa.float64(), safe=False)
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _labels(pa: ModuleType, column: Any, plan: ReadingPlan) -> NDArray[Any]:
    assert plan.label is not None
    column.validate(full=True)  # offsets and indices into text are not looked at otherwise
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(pa, column.type):
        return _numbers(pa, column)  # one that is missing is nan
    values = column.to_pylist()
    return text_labels([value or "" for value in values], plan.where)


def _parts(columns: Sequence[Any], start: int, stop: int, dtype: np.dtype[Any]) -> list[Any]:
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is found by a later check
        return [np.ascontiguousarray(column[start:stop], dtype) for column in columns]


def _joined(labels: list[NDArray[Any]]) -> NDArray[Any] | None:
    return np.concatenate(labels) if labels else None


def _at(values: Sequence[Any], numbers: Iterable[int]) -> list[Any]:
    return [values[i] for i in numbers]
