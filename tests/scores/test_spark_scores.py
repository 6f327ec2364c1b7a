"""Scores of Spark's data stay with Spark: one map or projection in the plan, RDDs, row matrices."""

import os
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import with_spectrum

import localpower as lp

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("there is no Java, which Spark needs", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

NAMES = list("abcdef")
A = with_spectrum(300, 0.7 ** np.arange(6), seed=1) * 10 + 50
FRAME = pd.DataFrame(A, columns=NAMES)
MODEL = lp.pca(FRAME, 3, scale="std", rng=0)
PLAIN = lp.pca(A, 3, scale="std", rng=0)
WANTED = MODEL.transform(A)


@pytest.fixture(scope="module")
def session(clusters):
    from pyspark.sql import SparkSession

    clusters("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield SparkSession.builder.getOrCreate()


@pytest.fixture(scope="module")
def table(session):
    rows = [(n, *map(float, row[::-1]), f"s{n % 3}") for n, row in enumerate(A)]
    return session.createDataFrame(rows, ["id", *NAMES[::-1], "site"])


def gathered(frame, name="scores"):
    rows = sorted(frame.collect(), key=lambda row: row["id"])
    return np.array([row[name].toArray() for row in rows])


def plan_of(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


def test_a_frame_gets_a_column_of_vectors_by_one_map_and_no_collect(table, monkeypatch):
    for name in ("collect", "toPandas", "toArrow", "take", "first"):
        monkeypatch.setattr(type(table), name, None)
    scores = MODEL.transform(table)  # with all columns: there is no hint
    monkeypatch.undo()
    assert scores.columns == [*table.columns, "scores"]
    plan = plan_of(scores)
    assert plan.count("MapInArrow") == 1
    assert "Exchange" not in plan
    assert np.abs(gathered(scores) - WANTED).max() <= 1e-12


def test_columns_are_kept_and_scores_come_back(table):
    with pytest.warns(lp.DataHint, match="left out: 'site'"):
        scores = MODEL.transform(table, keep=["id"])
    assert scores.columns == ["id", "scores"]
    back = MODEL.inverse_transform(scores)
    assert back.columns == ["id", "scores", "rows"]
    assert np.abs(gathered(back, "rows") - MODEL.inverse_transform(WANTED)).max() <= 1e-12


@pytest.mark.parametrize("kind", ["dense", "sparse", "mixed", "array"])
def test_a_column_of_vectors_is_taken(session, kind):
    from pyspark.ml.linalg import Vectors

    def vector(number, row):
        if kind == "array":
            return row.tolist()
        sparse = kind == "sparse" or (kind == "mixed" and number % 2)
        return Vectors.sparse(6, range(6), row) if sparse else Vectors.dense(row)

    rows = [(n, vector(n, row)) for n, row in enumerate(A)]
    scores = PLAIN.transform(session.createDataFrame(rows, ["id", "features"]))
    assert np.abs(gathered(scores) - WANTED).max() <= 1e-12


@pytest.mark.parametrize(("far", "models"), [(0.0, 1), (50.0, 2), (1e6, 2)])
def test_vectors_are_projected_in_the_jvm_without_cancellation(session, far, models):
    from pyspark.ml.linalg import Vectors

    rows = A - 50 + far
    model = lp.pca(rows, 3, rng=0) if far else lp.svd(rows, 3, rng=0)
    listed = [(n, Vectors.dense(row)) for n, row in enumerate(rows)]
    scores = model.transform(session.createDataFrame(listed, ["id", "a.b`c"]))
    assert scores.columns == ["id", "a.b`c", "scores"]
    plan = plan_of(scores)
    assert not any(word in plan for word in ("Python", "Arrow", "Exchange"))
    assert plan.count("UDF(") == models  # of Spark: one that multiplies, one that subtracts
    wanted = model.transform(rows)
    assert np.abs(gathered(scores) - wanted).max() <= 1e-12


def test_vectors_that_cannot_be_projected_are_named(session):
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import StructField, StructType

    cases = [
        (None, "'v' has rows without a vector of 6 numbers"),
        (Vectors.dense([1.0] * 7), "'v' has rows without a vector of 6 numbers"),
        (Vectors.sparse(5, {1: 1.0}), "'v' has rows without a vector of 6 numbers"),
        (Vectors.dense([1.0] * 5 + [np.nan]), "NaN or infinity in column 'v'"),
        (Vectors.dense([1.0] * 5 + [-np.inf]), "NaN or infinity in column 'v'"),
    ]
    schema = StructType([StructField("v", VectorUDT())])
    for vector, match in cases:
        rows = session.createDataFrame([(Vectors.dense(A[0]),), (vector,)], schema)
        with pytest.raises(Exception, match=match):
            PLAIN.transform(rows).collect()


def test_rdds_and_row_matrices_give_the_same(session):
    from pyspark.mllib.linalg import Vectors
    from pyspark.mllib.linalg.distributed import IndexedRow, IndexedRowMatrix, RowMatrix

    context = session.sparkContext
    rows = PLAIN.transform(context.parallelize(list(A), 3)).collect()
    assert np.abs(np.array([row.toArray() for row in rows]) - WANTED).max() <= 1e-12
    blocks = PLAIN.transform(context.parallelize([A[:100], A[100:]], 2)).collect()
    assert np.abs(np.vstack(blocks) - WANTED).max() <= 1e-12
    matrix = PLAIN.transform(RowMatrix(context.parallelize([Vectors.dense(r) for r in A], 2)))
    assert isinstance(matrix, RowMatrix)
    found = np.array([row.toArray() for row in matrix.rows.collect()])
    assert np.abs(found - WANTED).max() <= 1e-12
    indexed = [IndexedRow(7 * n, Vectors.dense(row)) for n, row in enumerate(A)]
    numbered = PLAIN.transform(IndexedRowMatrix(context.parallelize(indexed, 2)))
    assert isinstance(numbered, IndexedRowMatrix)
    pairs = sorted(numbered.rows.collect(), key=lambda row: row.index)
    assert [row.index for row in pairs] == [7 * n for n in range(300)]
    assert np.abs(np.array([row.vector.toArray() for row in pairs]) - WANTED).max() <= 1e-12


def test_what_cannot_be_is_refused_without_advice_about_an_engine(session, table):
    vectors = session.createDataFrame([([1.0], [2.0])], ["x", "y"])
    cases = [
        (table.drop("a"), "columns of the model are missing: 'a'"),
        (vectors, "several columns of vectors"),
        ([table], "give one RDD"),
        (table.withColumnRenamed("site", "scores"), "has a column 'scores' already"),
    ]
    for data, match in cases:
        with pytest.raises(lp.DataError, match=match) as refused:
            MODEL.transform(data)
        assert "engine=" not in str(refused.value)
    with pytest.raises(ValueError, match="stay with Spark; leave it out"):
        MODEL.transform(table, out="scores.parquet")


def test_left_vectors_are_in_the_frame_and_no_engine_is_needed(table):
    rows = table.drop("site")
    with pytest.warns(lp.DataHint):
        result = lp.pca(rows, 3, rng=0, return_u="engine")
    assert result.run["engine"] == "spark"
    U = gathered(result.U, "U")
    assert np.abs(U.T @ U - np.eye(3)).max() <= 1e-10
