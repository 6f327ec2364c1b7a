"""What readers of file formats share: the options of a read, and the blocks of rows they yield."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError

BLOCK_BYTES = 1 << 26  # rows that a reader yields at once


@dataclass(frozen=True, slots=True)
class Options:
    """How data are read; a format takes what applies to it.

    Attributes
    ----------
    columns, drop : sequence of str or int, optional
        Names or numbers (from 0) of the columns to take, in this order, or to leave out.
    label : str or int, optional
        The column that is a label: not a feature, but `Block.labels`.
    header : bool, optional
        Whether text has a line of names; found out by default.
    delimiter : str, optional
        What separates the fields of text; found out by default.
    dtype : str, optional
        ``"float32"`` or ``"float64"`` for formats that do not tell, and to convert others.
    key : str, optional
        Which array of a file that holds several.
    zero_based : bool, optional
        Whether svmlight indices count from 0; found out by default.
    missing : str, optional
        ``"drop"`` leaves out the rows of text in which a value is missing.
    """

    columns: Sequence[str | int] | None = None
    drop: Sequence[str | int] | None = None
    label: str | int | None = None
    header: bool | None = None
    delimiter: str | None = None
    dtype: str | None = None
    key: str | None = None
    zero_based: bool | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some consecutive rows: a (rows, d) array, or CSR with sorted and unique indices.

    `labels`, (rows,), where the format or `Options.label` tells one. Readers yield float32 or
    float64, all blocks of a file the same; `names` are the columns' where the format has them.
    """

    rows: Any
    labels: NDArray[Any] | None = None
    names: tuple[str, ...] | None = None


def choose(
    names: Sequence[str] | None, count: int, options: Options, where: Path | str
) -> tuple[list[int], int | None]:
    """Numbers of the columns to take, in order, and of the label column."""
    label = None if options.label is None else _number(options.label, names, count, where)
    if options.columns is not None:
        chosen = [_number(column, names, count, where) for column in options.columns]
        if not chosen:
            raise DataError(f"{where}: columns=[] takes no column; name at least one")
    else:
        chosen = list(range(count))
    dropped = {_number(column, names, count, where) for column in options.drop or ()}
    if label is not None:
        dropped.add(label)
    return [number for number in chosen if number not in dropped], label


def _number(column: str | int, names: Sequence[str] | None, count: int, where: Path | str) -> int:
    if isinstance(column, str) and names is not None and column in names:
        return list(names).index(column)
    number: Any = column
    if isinstance(column, str) and column.lstrip("-").isdecimal():
        number = int(column)
    if isinstance(number, int | np.integer) and -count <= number < count:
        return int(number) % count
    known = "" if names is None else f": {', '.join(names[:20])}{', …' if count > 20 else ''}"
    raise DataError(f"{where}: there is no column {column!r} among its {count} columns{known}")
