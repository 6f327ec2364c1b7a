"""Scores of a column of vectors by functions of Spark's own: no row leaves the JVM.

For rows of 1000 numbers to come to Python takes two to three times as long as to project them in
the JVM, whatever Python does with them. So models of Spark are made from ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from localpower.core.linalg import Array
from localpower.data.readers.clusters import quoted
from localpower.methods.scaling import dividing
from localpower.scores.steps import Step, ToScores

NEAR = 64.0  # deviations of the rows: up to here the mean is subtracted from scores, for 6 bits
WIDEST = 4096  # columns: beyond that mean it is subtracted from rows, and sparse ones become dense
COLUMNS = "localpower_rows", "localpower_between", "localpower_scores"


def fits(step: Step, frame: Any) -> bool:
    """Whether the JVM can do it: where it is at hand, and for numbers that need no care."""
    return (
        isinstance(step, ToScores)
        and hasattr(frame, "_jdf")  # frames of a remote session have none
        and (_near(step) or step.width <= WIDEST)
        and not np.any(dividing(step.scale)[1])
    )


def projected(step: Step, frame: Any, vectors: str, kept: Sequence[str]) -> Any:
    """The columns to keep, and a column of scores; nothing is computed."""
    from pyspark.sql import functions

    def checked(wanted: Any, column: Any, refused: str) -> Any:
        return functions.when(wanted, column).otherwise(
            functions.raise_error(functions.lit(refused))
        )

    rows, scores = functions.col(quoted(vectors)), functions.col(COLUMNS[2])
    inside, made = functions.unwrap_udt(rows), functions.unwrap_udt(scores)["values"]
    wide = functions.coalesce(inside["size"], functions.size(inside["values"])) == step.width
    short = (
        f"column {vectors!r} has rows without a vector of {step.width} numbers, as many as the "
        "model has columns; filter them or fill them in"
    )
    finite = (functions.array_max(made) < np.inf) & (functions.array_min(made) > -np.inf)
    nan = f"NaN or infinity in column {vectors!r}; remove such rows or fill in values"
    names = [quoted(name) for name in kept]
    frame = frame.select(*names, checked(wide, rows, short).alias(COLUMNS[0]))
    for model in _models(step):
        frame = model.transform(frame)
    return frame.select(*names, checked(finite, scores, nan).alias(step.made))


def _near(step: Step) -> bool:
    """Whether scores lose next to nothing if the mean is subtracted from them, not from rows."""
    if step.mean is None:
        return True
    return bool(np.linalg.norm(step.mean * dividing(step.scale)[0]) <= NEAR * step.spread)


def _models(step: Step) -> list[Any]:
    """Models of Spark, each of which takes the column that the one before it makes."""
    from pyspark.ml.feature import PCAModel, StandardScalerModel
    from pyspark.ml.linalg import DenseMatrix, DenseVector

    def made(kind: Any, *values: Any) -> Any:
        return kind(kind._new_java_obj(f"org.apache.spark.ml.feature.{kind.__name__}", *values))

    def centring(mean: Array) -> Any:
        same = DenseVector(np.ones(len(mean)))
        model = made(StandardScalerModel, "localpower_centring", same, DenseVector(mean))
        return model._set(withMean=True, withStd=False)

    V: Array = (step.components.astype(np.float64) * dividing(step.scale)[0]).T
    matrix, unknown = (
        DenseMatrix(len(V), V.shape[1], V.ravel("F")),
        DenseVector(np.ones(V.shape[1])),
    )
    projection = made(PCAModel, "localpower_projection", matrix, unknown)._set(k=V.shape[1])
    if step.mean is None:
        models = [projection]
    elif _near(step):
        models = [projection, centring(step.mean @ V)]
    else:
        models = [centring(step.mean), projection]
    places = [COLUMNS[0], *COLUMNS[1 : len(models)], COLUMNS[2]]
    return [
        model._set(inputCol=taken, outputCol=given)
        for model, taken, given in zip(models, places, places[1:], strict=False)
    ]
