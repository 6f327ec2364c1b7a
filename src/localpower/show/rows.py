"""What only the rows can tell of a run: scores, and how much shards differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.linalg import Array
from localpower.data.partition import Partition, partition
from localpower.data.source import Source
from localpower.diagnostics.heterogeneity import estimated_etas, etas
from localpower.engines.blas import one_blas_thread
from localpower.methods.scaling import SAFE_EXPONENT, dividing
from localpower.show.sample import Sample, is_name, one_each, opened
from localpower.show.summary import evenly, is_private, shortened
from localpower.worker.local_matrix import LocalMatrix

if TYPE_CHECKING:
    from localpower.result import Result

MOST_POINTS = 2000  # of a scatter
EXACT_WORK, EXACT_COLUMNS = 5e9, 512  # operations and columns up to which shards' matrices are made
STANDS_OUT = 2.0  # times the median of the others


@dataclass(frozen=True, slots=True, eq=False)
class Unlike:
    """How unlike the whole each shard is, η_i; nan for one without rows.

    `error` is 0, or what estimates may be off by; `names` are those of files, one for a shard.
    """

    etas: Array
    names: tuple[str, ...]
    error: float

    @property
    def farthest(self) -> int:
        """The shard that differs most."""
        return int(np.nanargmax(self.etas))

    @property
    def median(self) -> float:
        """Median of the others."""
        others = np.delete(self.etas, self.farthest)
        return float(np.nanmedian(others)) if np.isfinite(others).any() else 0.0

    def name(self, number: int) -> str:
        """The number of a shard, and the file that it is of."""
        name = f"shard {number}"
        return f"{name} ({shortened(self.names[number])})" if self.names else name

    @property
    def stands_out(self) -> bool:
        """Whether that shard is far from the others, too."""
        return len(self.etas) > 2 and self.etas[self.farthest] > STANDS_OUT * self.median


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Points of the first two components, and which are of the shard that stands out.

    `ids` say which rows they are; `groups` is what they are coloured by, and `by` its name.
    """

    points: Array
    of: int
    marked: NDArray[np.bool_]
    ids: Sequence[str] = ()
    groups: NDArray[Any] | None = None
    by: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What only the rows can tell; a text in the place of each says why it is not known."""

    scores: Scores | str
    unlike: Unlike | str


NO_DATA = "to see this; from a shell, localpower report MODEL --data DATA"
NO_SCORES = f"give data=, or run with return_u=True, {NO_DATA}"
NO_LEFT = f"give data=, where the rows are, {NO_DATA}"
NO_SHARDS = f"give the rows, data=data, {NO_DATA}"


def look(
    result: Result,
    data: Any = None,
    shards: bool = True,
    scores: bool = True,
    color: Any = None,
    ids: Any = None,
) -> Rows:
    """Look at the rows, if they are given: scores of some, differences of shards.

    `color` and `ids` are values, one for each row, or the name of a column that has them.
    """
    if data is None:
        why = NO_LEFT if is_private(result) or result.run.get("federation") else NO_SCORES
        return Rows(_from_left(result, color, ids) or why, NO_SHARDS)
    with opened(result, data, quiet=is_name(color) or is_name(ids)) as source:
        if source.columns != result.components.shape[1]:
            raise ValueError(
                f"data has {source.columns} columns where the model has "
                f"{result.components.shape[1]}; give the rows that were fitted"
            )
        shown = _cut_again(result, source) if shards else ""
        with one_blas_thread():
            unlike = shown if isinstance(shown, str) else _unlike(result, source, shown)
        if not scores:
            return Rows("", unlike)
        some = evenly(source.rows, MOST_POINTS)
        marked = np.zeros(len(some), bool)
        if isinstance(unlike, Unlike) and isinstance(shown, Partition) and unlike.stands_out:
            marked = _rows_of(shown, unlike.farthest)[some]
        return Rows(_scores(Sample(result, data, source, some), marked, color, ids), unlike)


def _from_left(result: Result, color: Any, ids: Any) -> Scores | None:
    """Scores of the rows that were fitted, from their left singular vectors."""
    for name, given in (("color", color), ("ids", ids)):
        if is_name(given) or (given is not None and result.U is None):
            raise ValueError(f"{name}={given!r} tells of rows, which are not known: give data=")
    if not isinstance(result.U, np.ndarray):  # nor if it is where the rows are
        return None
    n = len(result.U)
    some = evenly(n, MOST_POINTS)
    points = result.U[some][:, :2].astype(np.float64) * result.singular_values[:2]
    called = [f"row {i}" for i in some] if ids is None else one_each(ids, "ids", n)[some]
    groups = None if color is None else one_each(color, "color", n)[some]
    return Scores(_flat(points, some), n, np.zeros(len(some), bool), [*map(str, called)], groups)


def _scores(sample: Sample, marked: NDArray[np.bool_], color: Any, ids: Any) -> Scores:
    points = np.asarray(sample.result.transform(sample.pieces()))[:, :2].astype(np.float64)
    by, groups = str(color) if is_name(color) else "", sample.values(color, "color")
    if color is None and (known := sample.source.labels) is not None:
        by, groups = "label", known[sample.some]
    flat = _flat(points, sample.some)
    return Scores(flat, sample.source.rows, marked, sample.ids(ids), groups, by)


def _flat(points: Array, rows: Sequence[int]) -> Array:
    """Two columns: with one component only, the number of the row and the score."""
    if points.shape[1] == 2:
        return points
    return np.column_stack([np.asarray(rows, dtype=np.float64), points])


def _cut_again(result: Result, source: Source) -> Partition | str:
    """Cut the rows as the run did, or say why that cannot be."""
    run = result.run
    how, workers, seed = str(run["partition"]), int(run["workers"]), run["seed"]
    if "rows" not in run:
        return "a private run does not tell how many rows it had"
    if source.rows != run["rows"]:
        return (
            f"the data given have {source.rows} rows and the run had {run['rows']}: they cannot be "
            "cut into the same shards"
        )
    if run.get("held") and not (source.separate and len(source.tables) == workers):
        return (
            "the engine held the rows in blocks of its own: give those as a list of arrays to see "
            "how they differ"
        )
    if how != "contiguous" and seed is None:
        return (
            f"rows were cut {how} by a generator whose state is not recorded; give rng= a number "
            "to see how shards differ"
        )
    rng = np.random.default_rng(seed)
    return partition(source, workers, how, rng if how == "contiguous" else rng.spawn(1)[0], 1)


def _rows_of(shards: Partition, number: int) -> NDArray[np.bool_]:
    """Which rows, in their original order, are of a shard."""
    sizes = [shard.rows for shard in shards.shards]
    mine = np.repeat(np.arange(len(sizes)) == number, sizes)
    return shards.in_original_order(mine)


def _unlike(result: Result, source: Source, shards: Partition) -> Unlike:
    """``η_i = ‖M_i - M‖/‖M‖`` of the rows as they entered the factorisation."""
    n, d = source.rows, source.columns
    exponent = frexp(float(result.singular_values[0]) / sqrt(n))[1]
    if result.scale is not None or abs(exponent) <= SAFE_EXPONENT:
        exponent = 0
    matrices = [LocalMatrix(shard) for shard in shards.shards]
    for matrix in matrices:
        factor, power = dividing(result.scale)
        matrix.prepare(result.mean, factor, power if result.scale is not None else exponent)
    own = source.separate and len(source.names) == len(matrices)
    names = source.names if own and not source.names[0].startswith("data") else ()
    if d <= EXACT_COLUMNS and len(matrices) * d**3 <= EXACT_WORK:
        return Unlike(etas(matrices), names, 0.0)
    values = np.square(np.ldexp(result.singular_values.astype(np.float64), -exponent)) / n
    found = estimated_etas(matrices, result.components.T, values)
    ratio = result.explained_variance_ratio.astype(np.float64)
    left = max(1.0 - float(ratio.sum()), 0.0) / max(float(ratio[0]), 1e-300)
    error = float(values[-1] / (values[0] or 1.0))
    return Unlike(found, names, min(error, left) if result.run.get("center") else error)
