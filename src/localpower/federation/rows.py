"""The rows of a site: its own file, read as its policy says."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataHint
from localpower.data.partition import contiguous
from localpower.data.paths import files
from localpower.data.source import Source, open_source
from localpower.federation.policy import Policy
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Shard


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What others may know of a site's rows."""

    rows: int
    columns: int
    dtype: str
    entries: int
    names: tuple[str, ...] | None


class SiteRows:
    """Opens the data of a policy when they are asked for, and again when they have changed."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._source: Source | None = None
        self._stamp: list[list[Any]] = []

    def stamp(self) -> list[list[Any]]:
        """Names, sizes and times of the files, as plain JSON; raises where one is missing."""
        several = files(self._policy.path)
        known = [Path(self._policy.path)] if several is None else several
        found = [part for path in known for part in _inside(path)]
        return [[str(path), (at := path.stat()).st_size, at.st_mtime_ns] for path in found]

    def open(self) -> Source:
        """Read the rows, unless that was done and nothing has changed since."""
        stamp = self.stamp()
        if self._source is None or stamp != self._stamp:
            self.close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataHint)  # `localpower site check` shows hints
                policy = self._policy
                self._source = open_source(policy.path, policy.n_features, policy.options())
            self._stamp = stamp
        return self._source

    def shape(self) -> Shape:
        """What others may know."""
        source = self.open()
        names = source.tables[0].names
        told = None if names is None else tuple(map(str, names))
        entries = _whole(source).entries
        return Shape(source.rows, source.columns, source.dtype.name, entries, told)

    def matrix(self, dtype: str, number: int) -> LocalMatrix:
        """The rows as a shard with this number, worked with as `dtype`."""
        return LocalMatrix(replace(_whole(self.open()), dtype=np.dtype(dtype), number=number))

    def close(self) -> None:
        """Let go of the rows."""
        if self._source is not None:
            self._source.close()
        self._source = None


def _whole(source: Source) -> Shard:
    """All rows as one shard."""
    (shard,) = contiguous(source, 1).shards
    return shard


def _inside(path: Path) -> list[Path]:
    """A file itself; of a folder that is one table, all files in it."""
    if not path.is_dir():
        return [path]
    return sorted(Path(top, name) for top, _, names in os.walk(path) for name in names)
