"""`read` of Spark and Ray data: columns, labels and gaps are seen to where the rows are."""

import warnings

import numpy as np
import pandas as pd
import pytest

import localpower as lp

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

RNG = np.random.default_rng(6)
NAMES = ["a", "b.c", "d`e", "f"]
FULL = RNG.standard_normal((60, 4)) * np.array([4, 3, 2, 1.0]) + 5
HOLES = RNG.random(FULL.shape) < 0.05
HOLES[7, 1] = True
X = np.where(HOLES, np.nan, FULL)
KEPT = ~HOLES.any(axis=1)
ROWS = {"drop": FULL[KEPT], "mean": np.where(HOLES, np.nanmean(X, axis=0), FULL)}
TOLD = {"drop": {"rows_left_out": int((~KEPT).sum())}, "mean": {"values_filled": int(HOLES.sum())}}
HOW = {"label": "kind", "drop": ["name"]}


def table(values):
    frame = pd.DataFrame(values, columns=NAMES)
    return frame.assign(kind=np.arange(len(values)) % 3, name="x")


def spark_data(values):
    from pyspark.sql import SparkSession

    found = table(values)
    rows = [tuple(None if v != v else v for v in row) for row in found.itertuples(index=False)]
    rows[1:] = [tuple(row) for row in found.iloc[1:].itertuples(index=False)]  # nan, and null
    return SparkSession.builder.getOrCreate().createDataFrame(rows, list(found.columns))


def ray_data(values):
    import ray

    whole = table(values)
    return ray.data.from_pandas([whole[:20], whole[20:40], whole[40:]])


@pytest.fixture(scope="module", params=["spark", "ray"])
def cluster(request, clusters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with lp.connect(clusters(request.param)) as engine:
            if request.param == "ray":
                import ray

                ray.data.DataContext.get_current().enable_progress_bars = False
            yield engine, {"spark": spark_data, "ray": ray_data}[request.param]


@pytest.mark.parametrize("missing", ["drop", "mean"])
def test_options_are_seen_to_on_the_cluster(cluster, missing):
    engine, made = cluster
    rows = lp.read(made(X), **HOW, missing=missing)
    assert "label='kind'" in repr(rows)
    assert rows.columns == 4
    with pytest.warns(lp.DataHint, match="missing"):
        found = lp.pca(rows, 2, method="gram", engine=engine, rng=0)
    assert found.run["held"]
    assert found.run["missing"] == TOLD[missing]
    assert found.run["rows"] == len(ROWS[missing])
    assert found.run["names"] == NAMES
    wanted = ROWS[missing] - ROWS[missing].mean(axis=0)
    np.testing.assert_allclose(found.singular_values, np.linalg.svd(wanted)[1][:2], rtol=1e-12)
    scores = found.transform(rows)
    assert type(scores).__module__.partition(".")[0] in ("pyspark", "ray")


def test_methods_are_compared_and_mistakes_are_said(cluster):
    engine, made = cluster
    full = made(FULL)
    rows = lp.read(full, **HOW, dtype="float32")
    found = lp.compare(rows, 2, methods=["gram"], engine=engine)
    assert not found.missing
    assert found.run["dtype"] == "float32"
    with pytest.raises(lp.DataError, match=r"columns that are not numbers: 'name' .*drop="):
        lp.read(full, label="kind").in_place()
    with pytest.raises(lp.DataError, match="nothing"):
        lp.read(full, drop=["nothing"]).in_place()
    empty = np.where(np.arange(4) == 0, np.nan, FULL)
    with pytest.raises(lp.DataError, match=r"column 'a' has no value .* drop=\['a'\]"):
        lp.read(made(empty), **HOW, missing="mean").in_place()
    with pytest.raises(ValueError, match="stay with"):
        found["gram"].result.transform(rows, out="scores.npy")


def test_what_has_no_columns_names_a_remedy():
    pyspark = pytest.importorskip("pyspark")
    bare = pyspark.RDD.__new__(pyspark.RDD)
    assert lp.read(bare).in_place() == (bare, {})
    with pytest.raises(lp.DataError, match="data is RDD, whose columns are not known: choose"):
        lp.read(bare, label=0).in_place()
