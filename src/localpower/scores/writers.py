"""Files of scores, written a block at a time: arrays that keep the place of each row, or tables."""

from __future__ import annotations

import csv
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError, MissingExtra
from localpower.core.files import part_of, remove_unfinished, synchronise
from localpower.core.linalg import Array

TOGETHER = 1 << 23  # bytes of scores that are written at once
ZARR = ("zarr.json", ".zarray", ".zgroup")  # a folder with one of these may be replaced


class Writer(ABC):
    """Takes blocks of values in order, with columns to keep beside them if it is a `table`."""

    table = False

    def __init__(self, path: Path, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        self.path, self.names, self.dtype = path, list(names), dtype
        self.rows = 0

    @abstractmethod
    def write(self, values: Array, beside: dict[str, Any]) -> None:
        """Add rows."""

    @abstractmethod
    def close(self) -> None:
        """Finish the file."""


class Npy(Writer):
    """``.npy``; the header is written again when the number of rows is known."""

    def __init__(self, path: Path, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        super().__init__(path, names, dtype)
        self.stream = open(path, "wb")  # noqa: SIM115 (`close` closes it)
        self._header()

    def _header(self) -> None:
        shape = (self.rows, len(self.names))
        what = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.stream, what)

    def write(self, values: Array, beside: dict[str, Any]) -> None:
        """Add rows."""
        self.stream.write(np.ascontiguousarray(values, self.dtype).data)
        self.rows += len(values)

    def close(self) -> None:
        """Write the header again, which has room for any number of rows."""
        self.stream.seek(0)
        self._header()
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()


class Hdf5(Writer):
    """``.h5``: one array, called X, as other programs have it."""

    key = "X"

    def __init__(self, path: Path, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        super().__init__(path, names, dtype)
        width = len(self.names)
        self.file = import_module("h5py").File(path, "w")
        self.array = self.file.create_dataset(
            self.key, (0, width), dtype, maxshape=(None, width), chunks=(chunk_rows(width), width)
        )

    def write(self, values: Array, beside: dict[str, Any]) -> None:
        """Add rows."""
        self.array.resize(self.rows + len(values), axis=0)
        self.array[self.rows :] = values
        self.rows += len(values)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Zarr(Writer):
    """``.zarr``: a folder that is one array; rows are added by whole chunks but for the last."""

    def __init__(self, path: Path, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        super().__init__(path, names, dtype)
        width = len(self.names)
        self.step = chunk_rows(width)
        self.array = import_module("zarr").create_array(
            str(path), shape=(0, width), chunks=(self.step, width), dtype=dtype
        )
        self.held: list[Array] = []

    def write(self, values: Array, beside: dict[str, Any]) -> None:
        """Add rows."""
        self.held.append(values)
        self.rows += len(values)
        if sum(map(len, self.held)) >= self.step:
            whole = np.concatenate(self.held)
            stop = len(whole) // self.step * self.step
            self._append(whole[:stop])
            self.held = [whole[stop:]]

    def _append(self, values: Array) -> None:
        if len(values):
            self.array.append(values)

    def close(self) -> None:
        """Write what is left."""
        if self.held:
            self._append(np.concatenate(self.held))


class Csv(Writer):
    """``.csv`` with a header; numbers are as short as reads back the same."""

    table = True

    def __init__(self, path: Path, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        super().__init__(path, names, dtype)
        self.stream = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115

    def write(self, values: Array, beside: dict[str, Any]) -> None:
        """Add rows."""
        if not self.rows:
            _lines(self.stream, [[*beside, *self.names]])
        if beside:
            heads = zip(*map(_values, beside.values()), strict=True)
            pairs = zip(heads, values.tolist(), strict=True)
            _lines(self.stream, ([*head, *map(repr, row)] for head, row in pairs))
        else:
            self.stream.writelines(",".join(map(repr, row)) + "\n" for row in values.tolist())
        self.rows += len(values)

    def close(self) -> None:
        """Close the file."""
        self.stream.close()


class Parquet(Writer):
    """``.parquet``, a group of rows at a time."""

    table = True

    def __init__(self, path: Path, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        super().__init__(path, names, dtype)
        self.pa = import_module("pyarrow")
        self.file: Any = None
        self.held: list[Any] = []

    def write(self, values: Array, beside: dict[str, Any]) -> None:
        """Add rows."""
        with self._one_type():
            columns = {name: self._column(column) for name, column in beside.items()}
        columns |= dict(zip(self.names, map(self.pa.array, values.T), strict=True))
        self.held.append(self.pa.table(columns))
        self.rows += len(values)
        if sum(table.nbytes for table in self.held) >= TOGETHER:
            self._flush()

    def _column(self, column: Any) -> Any:
        arrow = isinstance(column, self.pa.Array | self.pa.ChunkedArray)
        return column if arrow else self.pa.array(column)

    @contextmanager
    def _one_type(self) -> Iterator[None]:
        try:
            yield
        except (self.pa.ArrowInvalid, self.pa.ArrowTypeError) as error:
            told = str(error).partition("\n")[0]
            raise DataError(
                f"keep= names a column whose values are of several types ({told}); make them of "
                "one type, in all files, or write .csv"
            ) from error

    def _flush(self) -> None:
        held, self.held = self.held, []
        with self._one_type():
            whole = self.pa.concat_tables(held, promote_options="permissive")
            whole = whole if self.file is None else whole.cast(self.file.schema)
        if self.file is None:
            self.file = import_module("pyarrow.parquet").ParquetWriter(self.path, whole.schema)
        self.file.write_table(whole)

    def close(self) -> None:
        """Write what is left."""
        if self.held:
            self._flush()
        if self.file is not None:
            self.file.close()


@dataclass(frozen=True, slots=True)
class Kind:
    """A writer, the library that it needs, and what installs that."""

    writer: type[Writer]
    library: str = "numpy"
    extra: str = ""

    @property
    def table(self) -> bool:
        """Whether it holds columns with names and types of their own."""
        return self.writer.table


KINDS = {
    ".npy": Kind(Npy),
    ".csv": Kind(Csv),
    ".parquet": Kind(Parquet, "pyarrow.parquet", "parquet"),
    ".zarr": Kind(Zarr, "zarr", "zarr"),
    ".h5": Kind(Hdf5, "h5py", "hdf5"),
}


def kind_of(path: Path) -> Kind:
    """Tell by its name what is written; refuse what cannot be."""
    known = ", ".join(KINDS)
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"out={str(path)!r}: scores are written as {known}; give such a name")
    try:
        import_module(kind.library)
    except ImportError as error:
        raise MissingExtra(f"writing {path.suffix}", kind.extra) from error
    if path.is_dir() and not any((path / name).exists() for name in ZARR):
        raise ValueError(f"out={str(path)!r} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"out={str(path)!r}: the folder {path.parent} does not exist; make it first"
        )
    return kind


@contextmanager
def written(path: Path, names: Sequence[str], dtype: np.dtype[Any]) -> Iterator[Writer]:
    """Write beside `path`, and put it in place when it is complete; else it is removed."""
    kind, target = kind_of(path), Path(os.path.realpath(path))
    if not target.is_dir():
        remove_unfinished(target)
    part = part_of(target)
    try:
        writer = kind.writer(part, names, dtype)
        try:
            yield writer
        finally:
            writer.close()
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(part, target)
        synchronise(target.parent)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)


def chunk_rows(width: int) -> int:
    """Rows of a chunk of about a megabyte."""
    return max(1, (1 << 20) // (8 * max(1, width)))


def _lines(stream: Any, rows: Any) -> None:
    csv.writer(stream, lineterminator="\n").writerows(rows)


def _values(column: Any) -> Any:
    return column.to_pylist() if hasattr(column, "to_pylist") else column
