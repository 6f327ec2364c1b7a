"""Data frames in memory: pandas, polars and Arrow in, the same kind out, with names of columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.core.linalg import Array
from localpower.data.blocks import listed
from localpower.data.readers.frames import frame_blocks, frame_names, is_frame
from localpower.scores.steps import Step


def is_table(data: Any) -> bool:
    """Tell a data frame in memory, which has a maker here."""
    return is_frame(data) and _package(data) in MAKERS


def table_of(step: Step, table: Any, keep: Sequence[str] = (), where: str = "data") -> Any:
    """Scores of a data frame as a data frame, after the columns to keep."""
    names = frame_names(table) or ()
    check_kept(step, keep, names)
    blocks = frame_blocks(table, step.options(keep), where)
    parts, row = [], 0
    for block in blocks or ():
        step.check_width(block.rows.shape[1], where)
        values = step((block.rows,), block.rows.dtype)
        numbers = np.arange(row, row := row + len(values))
        parts.append(step.checked(values, where, numbers))
    places = [names.index(name) for name in keep]
    return MAKERS[_package(table)](np.concatenate(parts), step.names, table, places)


def block_of(step: Step, block: Any, where: str = "a block") -> Any:
    """Scores of what a worker holds: of a data frame such a frame, of all else an array."""
    return table_of(step, block, (), where) if is_table(block) else step.of_block(block, where)


def column_of(table: Any, name: str) -> Any:
    """One column, as a list or an array that is saved without being changed."""
    names = frame_names(table) or ()
    check_there([name], names)
    place = names.index(name)
    if _package(table) == "pyarrow":
        return table.column(place)
    column = table.iloc[:, place] if hasattr(table, "iloc") else table[:, place]
    with suppress(ImportError, ValueError, TypeError, NotImplementedError):  # of several types
        return as_arrow(column)
    missing = column.isna() if hasattr(column, "isna") else column.is_null()
    return [None if gap else value for value, gap in zip(column, missing, strict=True)]


def as_arrow(column: Any) -> Any:
    """A column of pandas or polars as Arrow has it, with its type."""
    pa = import_module("pyarrow")
    return column.to_arrow() if hasattr(column, "to_arrow") else pa.array(column, from_pandas=True)


def check_kept(step: Step, keep: Sequence[str], names: Sequence[str]) -> None:
    """Refuse to keep what is not there, or would be there twice."""
    check_there(keep, names)
    check_twins(step, keep)


def check_there(keep: Sequence[str], names: Sequence[str], where: str = "") -> None:
    """Refuse to keep columns that are not among these names."""
    if missing := [name for name in keep if name not in names]:
        raise DataError(
            f"{where}keep= names columns that are not there: {listed(missing)}; the data have "
            f"{listed(list(names))}"
        )


def refuse_kept(keep: Sequence[str] | None) -> None:
    """Refuse to keep columns of what has none."""
    if keep:
        raise ValueError(
            f"keep={list(keep)}: an array has no place for other columns; give out= with files, as "
            "'scores.parquet', or a data frame"
        )


def check_twins(step: Step, keep: Sequence[str]) -> None:
    """Refuse to keep columns that are called as others in what is made."""
    made = [*step.names, "row"]
    if twins := [name for name in keep if name in made or list(keep).count(name) > 1]:
        raise ValueError(
            f"keep={list(keep)}: {listed(twins)} would be there twice; rename it in the data"
        )


def _pandas(values: Array, names: Sequence[str], table: Any, places: Sequence[int]) -> Any:
    pd = sys.modules["pandas"]
    frame = pd.DataFrame(values, index=table.index, columns=list(names))
    if not places:
        return frame
    return pd.concat([table.iloc[:, list(places)], frame], axis=1)


def _polars(values: Array, names: Sequence[str], table: Any, places: Sequence[int]) -> Any:
    pl = sys.modules["polars"]
    beside = [table[:, place] for place in places]
    return pl.DataFrame([*beside, *(pl.Series(n, v) for n, v in zip(names, values.T, strict=True))])


def _arrow(values: Array, names: Sequence[str], table: Any, places: Sequence[int]) -> Any:
    pa = sys.modules["pyarrow"]
    beside = {table.schema.names[place]: table.column(place) for place in places}
    columns = dict(zip(names, map(pa.array, values.T), strict=True))
    make = pa.RecordBatch.from_pydict if isinstance(table, pa.RecordBatch) else pa.table
    return make(beside | columns)


MAKERS: dict[str, Callable[..., Any]] = {"pandas": _pandas, "polars": _polars, "pyarrow": _arrow}


def _package(data: Any) -> str:
    packages = (kind.__module__.partition(".")[0] for kind in type(data).__mro__)
    return next((package for package in packages if package in MAKERS), "")
