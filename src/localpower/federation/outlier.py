"""How much of a site's own variance a model explains: less than of all means an unusual site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from localpower.core.linalg import Array
from localpower.data.blocks import Options
from localpower.data.single_pass import TooNarrow, read_once
from localpower.result import Result
from localpower.scores.steps import Step, ToScores
from localpower.worker.shard import Shard


@dataclass(slots=True)
class RowSums:
    """Sums of rows from some shift on, in the units that the model divides by; `Y` are scores."""

    rows: int
    x: Array
    xx: float
    y: Array
    yy: float

    def about(self, shift: Array, mean: Array, V: Array) -> float:
        """Share of the squares about a mean that lies in the span of V."""
        away = mean - shift
        across = away @ V
        total = self.xx - 2 * (self.x @ away) + self.rows * (away @ away)
        inside = self.yy - 2 * (self.y @ across) + self.rows * (across @ across)
        return float(inside / total) if total > 0 else 1.0


def explained_here(
    model: Result,
    data: Any,
    options: Options,
    memory: int | str | None = None,
    keep: Sequence[str] = (),
) -> float:
    """Share of the variance of these rows that a model explains.

    It is about the model's mean, so that the shares of all sites, weighted with their squares, are
    that of the model; about the rows' own mean where the model has none. Columns to `keep` are no
    part of the rows.
    """
    step = ToScores.of(model)
    try:
        with read_once(data, step.options(keep, options), memory, told=True) as opened:
            return _share(step, (block for stretch in opened.stretches
                                 for block in Shard((stretch.piece,), step.width, opened.dtype,
                                                    keep="block").blocks()))  # fmt: skip
    except TooNarrow:
        return explained_here(model, data, replace(options, dtype="float64"), memory, keep)


def _share(step: Step, blocks: Iterator[Any]) -> float:
    d = step.width
    scale = np.ones(d) if step.scale is None else step.scale.astype(float)
    V = step.components.T.astype(float)
    shift = None if step.mean is None else step.mean.astype(float) / scale
    found: RowSums | None = None
    for block in blocks:
        X = block.astype(float)
        X = X / scale if isinstance(X, np.ndarray) else X.multiply(1 / scale).tocsr()
        if found is None:
            dense = isinstance(X, np.ndarray)
            first = X[0] if dense and shift is None and len(X) else shift
            shift = first if dense and first is not None else np.zeros(d)
            found = RowSums(0, np.zeros(d), 0.0, np.zeros(V.shape[1]), 0.0)
        X = X - shift if isinstance(X, np.ndarray) else X
        Y = X @ V
        found.rows += X.shape[0]
        found.x += np.asarray(X.sum(axis=0)).ravel()
        found.xx += float((X**2).sum() if isinstance(X, np.ndarray) else X.multiply(X).sum())
        found.y += Y.sum(axis=0)
        found.yy += float((Y**2).sum())
    if found is None or not found.rows:
        return 1.0
    assert shift is not None
    mean = found.x / found.rows + shift if step.mean is None else step.mean / scale
    return found.about(shift, mean, V)
