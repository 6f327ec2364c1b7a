"""Some rows for a picture, and what is told of each: a colour and an id, given or read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataHint
from localpower.data.blocks import Options
from localpower.data.source import Source, open_source
from localpower.worker.shard import cut, is_stored

if TYPE_CHECKING:
    from localpower.result import Result


def is_name(given: Any) -> bool:
    """Tell the name or number of a column from values."""
    return isinstance(given, str | int | np.integer)


def one_each(given: Any, argument: str, rows: int) -> NDArray[Any]:
    """Values that were given, one for each row."""
    values = np.asarray(given)
    if values.shape != (rows,):
        raise ValueError(
            f"{argument} has shape {values.shape} where there are {rows} rows; give one value for "
            "each row, or the name of a column"
        )
    return values


@contextmanager
def opened(result: Result, data: Any, label: Any = None, quiet: bool = False) -> Iterator[Source]:
    """The rows, as the model knows them; `label` is a column beside them, if there is one."""
    names, d = result.run.get("names"), result.components.shape[1]
    how = None if label is None else Options(label=label)
    with warnings.catch_warnings():
        if quiet:  # other columns are told of, and need no hint
            warnings.simplefilter("ignore", DataHint)
        source = open_source(data, d, how, like=names)
    try:
        yield source
    finally:
        if source is not data:
            source.close()


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The rows with the numbers `some`, of all that `source` has."""

    result: Result
    data: Any
    source: Source
    some: Sequence[int]

    def pieces(self) -> list[Any]:
        """The rows themselves."""
        pieces, first = [], 0
        for piece in self.source.pieces:
            mine = [i - first for i in self.some if first <= i < first + piece.shape[0]]
            first += piece.shape[0]
            if is_stored(piece):
                pieces += [cut(piece, i, i + 1).read() for i in mine]
            elif mine:
                pieces.append(piece[mine])
        return pieces

    def values(self, given: Any, argument: str) -> NDArray[Any] | None:
        """What is told of these rows: as given, or a column of the data."""
        if given is None:
            return None
        if not is_name(given):
            return one_each(given, argument, self.source.rows)[self.some]
        if (number := column_number(self.result, given)) is not None:
            parts = [piece[:, [number]] for piece in self.pieces()]
            return np.concatenate(
                [
                    np.ravel(part if isinstance(part, np.ndarray) else part.toarray())
                    for part in parts
                ]
            )
        if isinstance(self.data, Source):
            if given == self.source.options.label and self.source.labels is not None:
                return self.source.labels[self.some]
            raise ValueError(
                f"{argument}={given!r}: rows that localpower.read opened hold no other columns; "
                "give one value for each row, or the data that were read"
            )
        with opened(self.result, self.data, given, quiet=True) as beside:
            if beside.labels is None:
                raise ValueError(f"{argument}={given!r}: the data have no such column")
            return beside.labels[self.some]

    def ids(self, given: Any) -> list[str]:
        """What each row is called: as given, by the index of a frame, or by its number."""
        values = self.values(given, "ids")
        index: Any = getattr(self.data, "index", None)
        if values is None and hasattr(index, "to_numpy") and type(index).__name__ != "RangeIndex":
            values = index.to_numpy()[self.some]
        if values is not None:
            return [as_text(value) for value in values]
        return [self.source.where(i).removeprefix("data, ") for i in self.some]


def as_text(value: Any) -> str:
    """What a row is told with: a whole number, as files hold ids and years, without a point."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value) if whole else value)


def column_number(result: Result, given: Any) -> int | None:
    """The number of a column that was fitted; None where it is another."""
    names, d = result.run.get("names"), result.components.shape[1]
    if isinstance(given, str):
        return names.index(given) if names is not None and given in names else None
    return int(given) if 0 <= given < d else None
