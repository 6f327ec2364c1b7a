"""`localpower.read`: data with the options of reading, here or where they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from typing import Any

import numpy as np

from localpower.core.checks import whole
from localpower.core.errors import DataHint, warn
from localpower.data.blocks import Options
from localpower.data.memory import budget
from localpower.data.missing import told
from localpower.data.readers.clusters import in_place, is_lazy, width
from localpower.data.readers.foreign import engine_of
from localpower.data.readers.frames import is_lazy_frame, some_chunks
from localpower.data.source import Source, open_source
from localpower.worker.shard import cut


class LazySource(Source):
    """Rows that a cluster makes when they are needed, and the options of reading them.

    An engine of that cluster takes what `in_place` returns. Everything else that is asked of it,
    such as `rows` or `labels`, reads the rows into this process.
    """

    __setattr__ = object.__setattr__  # what it knows comes with the first question

    def __init__(self, data: Any, columns: int, options: Options, *how: Any) -> None:
        self.data, self._how = data, (columns, options, *how)
        self._options = options
        self._here: Source | None = None
        self._there: tuple[Any, dict[str, int]] | None = None

    def here(self) -> Source:
        """Read the rows into this process, once."""
        self._here = self._here or open_source(self.data, *self._how)
        return self._here

    def in_place(self, client: Any = None) -> tuple[Any, dict[str, int]]:
        """The same kind of data with the columns that are wanted, and what was done about gaps.

        Nothing is computed but means and numbers of missing values, if ``missing=`` needs them, by
        the cluster of the `client`.
        """
        if self._there is None:
            with nullcontext() if client is None else client.as_current():
                self._there = in_place(self.data, self._options)
            for name, count in self._there[1].items():
                warn(f"data: {told(name, count)}", DataHint)
        return self._there

    @property
    def columns(self) -> int:
        """Columns that are wanted, which are known before rows are."""
        count = None if self._here else width(self.data, self._options)
        return self.here().columns if count is None else count

    def close(self) -> None:
        """Remove temporary files."""
        if self._here is not None:
            self._here.close()

    def __repr__(self) -> str:
        owner, kind = str(engine_of(self.data)).title(), type(self.data).__name__
        shape, how = getattr(self.data, "shape", None), self._options.told()
        if isinstance(shape, tuple):
            rows, columns = shape
            kind += f": {rows if isinstance(rows, int) else '?'} rows × {columns} columns"
        return f"<Source of a {owner} {kind}{how}, not read yet>"


def _read_here(name: str) -> property:
    return property(lambda source: getattr(source.here(), name))


for entry in fields(Source):
    setattr(LazySource, entry.name, _read_here(entry.name))
LazySource.memory = property(lambda source: budget(source._how[2]))  # type: ignore[assignment]


def open_part(
    data: Any, rows: int, memory: int | str | None, shards: int | None
) -> tuple[Source, int]:
    """Open data to look at them, and tell how many rows there are in all.

    Of arrays and frames of Dask, a few chunks of at least so many `rows` together are read, unless
    all of them were read before. Then the rows in all may be an estimate.
    """
    lazy = data if isinstance(data, LazySource) and data._here is None else None
    whole = data if lazy is None else lazy.data
    if not is_lazy_frame(whole):
        source = open_source(data, memory=memory, shards=shards)
        return source, source.rows
    part, times = some_chunks(whole, rows)
    options, size = (None, memory) if lazy is None else (lazy._options, lazy.memory)
    source = open_source(part, options=options, memory=size)
    return source, round(times * source.rows)


def sampled(source: Source, rows: int) -> tuple[Any, ...]:
    """All rows, or stretches of about so many `rows` from all over the data."""
    if source.rows <= rows:
        return tuple(source.pieces)
    parts, step = [], max(1, source.rows // rows)
    for piece in source.pieces:
        length = piece.shape[0]
        stretch = max(1, min(256, length // step))
        parts += [
            cut(piece, start, min(start + stretch, length))
            for start in range(0, length, stretch * step)
        ]
    return tuple(parts)


def read(
    data: Any,
    *,
    columns: str | int | Sequence[str | int] | None = None,
    drop: str | int | Sequence[str | int] | None = None,
    label: str | int | None = None,
    labels: Any = None,
    header: bool | None = None,
    delimiter: str | None = None,
    dtype: str | None = None,
    key: str | None = None,
    zero_based: bool | None = None,
    missing: str | None = None,
    n_features: int = 0,
    memory: int | str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Source:
    r"""Open data with options for reading, and pass the `Source` that it returns to `svd`.

    Parameters
    ----------
    data
        Whatever `svd` takes.
    columns, drop : str, int or sequence of these, optional
        Names or numbers (from 0) of the columns to use, in this order, or to leave out.
    label : str or int, optional
        The column of labels. It is kept apart from the features, as `Source.labels`, for pictures
        and for ``partition="label"``. Rows for `Result.transform` need not have it.
    labels : (n,) array_like, optional
        The labels themselves, if the data do not hold them.
    header : bool, optional
        Whether CSV has a line of names; detected by default.
    delimiter : str, optional
        The character between the fields of CSV; detected by default.
    dtype : {"float32", "float64"}, optional
        The type to work in; by default float32 if all data are, else float64.
    key : str, optional
        Which array of an HDF5, Zarr or ``.npz`` file.
    zero_based : bool, optional
        Whether svmlight indices count from 0; by default they do if a 0 occurs in any file.
    missing : {"drop", "mean", "error"}, optional
        What to do about missing values: empty fields and words such as NA in CSV, null, masked
        entries, and nan in all data. ``"drop"`` leaves out the rows that have one. ``"mean"`` fills
        in the mean of the column, over all files. By default a missing value is an error. The
        result says how many there were.
    n_features : int
        The least number of columns, for svmlight text that does not name the last ones.
    memory : int or str, optional
        How much memory rows may use, such as ``"2GB"``; half of the free memory by default.
    cache : path, optional
        Folder that keeps parsed files for the next run. By default it is temporary.

    Returns
    -------
    Source
        The rows, for any number of calls of `svd`, `plan`, `compare` and `Result.transform`.

    Examples
    --------
    >>> import localpower as lp, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "rows.csv")
    ...     _ = path.write_text("name,height,weight\nann,1.7,60\nbob,1.8,80\neve,1.6,50\n")
    ...     with lp.read(path, drop=["name"]) as rows:
    ...         lp.svd(rows, 1, method="dpi", rng=0).singular_values.round(2)
    array([111.84])
    """
    columns, drop = _listed("columns", columns), _listed("drop", drop)
    options = Options(columns, drop, label, header, delimiter, dtype, key, zero_based, missing)
    how = whole("n_features", n_features, 0), options, memory, cache, None, labels
    return LazySource(data, *how) if is_lazy(data) else open_source(data, *how)


def _listed(argument: str, given: Any) -> list[str | int] | None:
    """Names or numbers of columns, one alone or several; a mask would be taken for 0 and 1."""
    if given is None:
        return None
    try:
        found = [given] if isinstance(given, str | int) else list(given)
    except TypeError:
        found = [given]
    for each in found:
        if isinstance(each, bool | np.bool_) or not isinstance(each, str | int | np.integer):
            remedy = "give numpy.flatnonzero(mask) for a mask, or a list such as ['id', 0]"
            raise TypeError(f"{argument}= has {each!r}, which is no name or number: {remedy}")
    return found
