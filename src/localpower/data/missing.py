"""Missing values: nan in rows. Rows that have some are left out, or means of columns fill them in.

Readers write nan where a value is missing, if `Options.gaps` allows that. What is left out or
filled in is decided here, so it is the same for all kinds of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError, DataHint, warn
from localpower.core.text import counted
from localpower.data.blocks import block_rows, refuse_empty
from localpower.data.spool import Table, gaps_in
from localpower.worker.shard import Shard, is_stored
from localpower.worker.stored import StoredCSR, stamp


def told(what: str, count: int) -> str:
    """Say what was done about missing values, as the record of a run has it."""
    was, whose = "were", "means of their columns"
    if count == 1:
        was, whose = "was", "the mean of its column"
    if what == "rows_left_out":
        return f"{counted(count, 'row')} {was} left out, as values were missing"
    return f"{counted(count, 'missing value')} {was} filled with {whose}"


def has_gaps(piece: Any) -> bool:
    """Tell whether a value is missing in rows, in memory or in files."""
    if piece.dtype.kind != "f":
        return False
    blocks = Shard((piece,), piece.shape[1], piece.dtype).blocks() if is_stored(piece) else [piece]
    return any(gaps_in(block).any() for block in blocks)


def fill(
    tables: Sequence[Table], names: Sequence[str], means: Any = None, fitted: bool = False
) -> tuple[list[Table], int]:
    """Fill gaps with the mean of all values of their column; also return how many there were.

    New rows of a `fitted` model are filled with its `means`, if it is centred. Tables that have
    gaps are changed in place: `Spool` took care that these are copies.
    """
    if not any(table.gaps for table in tables):
        return list(tables), 0
    sums, present, gaps = _sums(tables)
    if means is None:
        refuse_empty(present, tables[0].names, fitted)
        means = sums / present
    whole = [
        replace(table, pieces=tuple(filled(piece, means) for piece in table.pieces))
        if table.gaps
        else table
        for table in tables
    ]
    warn(f"{_called(names)}: {told('values_filled', gaps)}", DataHint)
    return whole, gaps


def left_out(tables: Sequence[Table], names: Sequence[str]) -> dict[str, int]:
    """Say and return how many rows were left out; refuse to leave out all."""
    left = sum(len(table.left_out) for table in tables)
    rows = sum(piece.shape[0] for table in tables for piece in table.pieces)
    if left and not rows:
        raise DataError(
            f"{_called(names)}: a value is missing in each of its {left} rows; leave out columns "
            "in which values are missing with drop=[…], or fill them in with missing='mean'"
        )
    if left:
        are = "is" if left == 1 else "are"
        warn(
            f"{_called(names)}: {left} of {left + rows} rows {are} left out because of missing "
            "values",
            DataHint,
        )
    return {"rows_left_out": left}


def _called(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else "data"


def _sums(tables: Sequence[Table]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Sums of the values that are there, over all rows, how many these are, and how many not."""
    d = tables[0].columns
    sums, gaps, rows = np.zeros(d), np.zeros(d), 0
    pieces = [piece for table in tables for piece in table.pieces]
    for block in Shard(tuple(pieces), d, np.dtype(np.float64)).blocks():
        rows += block.shape[0]
        dense = isinstance(block, np.ndarray)
        values = block if dense else block.data
        holes = np.isnan(values)
        known = np.where(holes, 0.0, values) if holes.any() else values
        if dense:
            sums += known.sum(axis=0)
            gaps += np.bincount(np.flatnonzero(holes) % d, minlength=d)
        else:
            sums += np.bincount(block.indices, known, d)
            gaps += np.bincount(block.indices[holes], minlength=d)
    return sums, rows - gaps, int(gaps.sum())


def filled(piece: Any, means: NDArray[np.float64]) -> Any:
    """Fill the gaps of a piece, and return it."""
    if isinstance(piece, np.ndarray):
        at = np.flatnonzero(np.isnan(piece))
        piece.reshape(-1)[at] = means[at % len(means)]
        return piece
    if not is_stored(piece):
        _fill_entries(piece.data, piece.indices, means)
        return piece
    sparse = isinstance(piece, StoredCSR)
    changed = piece.data if sparse else piece
    whole = np.memmap(changed.path, changed.dtype, "r+", shape=changed.shape)
    step = block_rows(whole.nbytes // max(len(whole), 1))
    for start in range(0, len(whole), step):
        part = slice(start, min(start + step, len(whole)))
        if sparse:
            numbers = piece.indices.cut(part.start, part.stop).read() - piece.base
            _fill_entries(whole[part], numbers, means)
        else:
            filled(whole[part], means)
    whole.flush()
    changed = replace(changed, stamp=stamp(changed.path))
    return replace(piece, data=changed) if sparse else changed


def _fill_entries(data: NDArray[Any], indices: NDArray[Any], means: NDArray[np.float64]) -> None:
    holes = np.isnan(data)
    data[holes] = means[indices[holes]]
