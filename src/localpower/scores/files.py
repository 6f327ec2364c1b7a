"""Scores that are written to a file while rows are read, with what tells whose they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError, DataHint, warn
from localpower.core.linalg import Array
from localpower.core.text import counted
from localpower.data.readers.foreign import is_path
from localpower.data.single_pass import Stretch, TooNarrow, paths_of, read_once
from localpower.data.source import Source
from localpower.scores.kept import Beside, columns_of_file
from localpower.scores.passes import Pass, as_float64, in_order
from localpower.scores.steps import Step
from localpower.scores.tables import check_twins, column_of, is_table
from localpower.scores.writers import Writer, kind_of, written

ROW = "row"  # the column with the numbers of rows, where some may be left out


@dataclass(frozen=True, slots=True)
class Written:
    """A file of scores: where it is, how many rows were read, and how many of them left out."""

    path: Path
    rows: int
    left_out: int

    def told(self, components: int) -> str:
        """Say so in a line."""
        left = f" ({self.left_out} of them left out)" if self.left_out else ""
        made = f"{counted(self.rows, 'row')}{left} on {counted(components, 'component')}"
        return f"{made} -> {self.path}"


def write(step: Step, rows: Pass, out: str | os.PathLike[str], keep: Sequence[str]) -> Written:
    """Write the scores of all rows, a stretch at a time."""
    target = Path(out)
    if keep and not kind_of(target).table:
        raise ValueError(
            f"keep={list(keep)}: {target.suffix} holds numbers only; write a table, as .csv or "
            ".parquet"
        )
    check_twins(step, keep)
    _refuse_data(target, rows.data)
    beside = _beside(rows, keep)
    try:
        with (
            read_once(rows.data, rows.options, rows.memory, rows.told) as opened,
            written(target, step.names, opened.dtype) as writer,
        ):
            filler = Filler(writer, beside, opened.missing == "drop")
            for stretch, values in in_order(step, opened):
                filler.add(stretch, values)
            if not filler.rows:
                raise DataError(f"there are no rows to write to {target}; give at least one")
            if filler.left_out == filler.rows:
                raise DataError(
                    f"a value is missing in each of the {filler.rows} rows, so there are no scores "
                    "to write; fill values in with missing='mean'"
                )
    except TooNarrow:
        return write(step, as_float64(rows), out, keep)
    finally:
        beside.end()
    if filler.left_out:
        left, are = filler.left_out, "is" if filler.left_out == 1 else "are"
        told = f"{left} of {filler.rows} rows {are} left out, as values are missing"
        if not writer.table:
            told = f"the scores of {counted(left, 'row')} that {are} left out are NaN"
        warn(f"{target}: {told}", DataHint)
    return Written(target, filler.rows, filler.left_out)


class Filler:
    """Hands scores to a writer so that each can be told which row it is of.

    Arrays have one row for every row that was read: where rows are left out, theirs are NaN. Tables
    have the rows' numbers in a column then.
    """

    def __init__(self, writer: Writer, beside: Beside, numbered: bool) -> None:
        self.writer, self.beside, self.numbered = writer, beside, numbered
        self.rows = self.left_out = 0
        self._table = self._before = 0  # the file, and the rows of those before it

    def add(self, stretch: Stretch, values: Array) -> None:
        """Take the scores of the next rows."""
        if stretch.table != self._table:
            self._table, self._before = stretch.table, self.rows
        start = self.rows - self._before
        end = start + len(values) if stretch.numbers is None else stretch.end
        self.rows = self._before + end
        self.left_out += end - start - len(values)
        if not self.writer.table:
            self.writer.write(_spread(values, stretch, start, end), {})
        elif len(values):
            numbers = start + np.arange(len(values)) if stretch.numbers is None else stretch.numbers
            columns = {ROW: self._before + numbers} if self.numbered else {}
            columns |= self.beside.of(stretch.where, stretch.table, numbers)
            self.writer.write(values, columns)


def _spread(values: Array, stretch: Stretch, start: int, end: int) -> Array:
    """Scores in the places of their rows, from `start` to `end` of the file."""
    if len(values) == end - start:
        return values
    out = np.full((end - start, values.shape[1]), np.nan, values.dtype)
    assert stretch.numbers is not None
    out[stretch.numbers - start] = values
    return out


def _beside(rows: Pass, keep: Sequence[str]) -> Beside:
    data = rows.data
    if is_table(data):
        return Beside(keep, lambda _: iter([{name: column_of(data, name) for name in keep}]))
    options = rows.options
    if keep and isinstance(data, Source):
        files = [Path(name) for name in data.names if Path(name).suffix]  # others are objects
        options, data = data.options, files if len(files) == len(data.names) else None
    if keep and not (is_path(data) or (isinstance(data, list | tuple) and all(map(is_path, data)))):
        raise DataError(
            f"keep={list(keep)} needs columns with names; give a data frame, or the paths of files"
        )
    return Beside(keep, lambda path: columns_of_file(Path(path), keep, options))


def _refuse_data(target: Path, data: Any) -> None:
    """Refuse to write over what is read."""
    for path in paths_of(data) if target.exists() else ():
        if path.exists() and target.samefile(path):
            raise ValueError(f"out={str(target)!r} is also data; give another name")
