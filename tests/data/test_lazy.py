"""`read` of Dask data with an engine: columns, labels and gaps are seen to where the rows are."""

import os
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import localpower as lp
from localpower.data import reading
from localpower.data.reading import LazySource

RNG = np.random.default_rng(5)
FULL = RNG.standard_normal((90, 5)) * np.array([5, 4, 3, 2, 1.0]) + 10
HOLES = RNG.random(FULL.shape) < 0.05
HOLES[3, 2] = True
X = np.where(HOLES, np.nan, FULL)
KEPT = ~HOLES.any(axis=1)
FILLED = np.where(HOLES, np.nanmean(X, axis=0), FULL)


def frame_of(rows, **more):
    return pd.DataFrame(rows, columns=list("abcde")).assign(**more)


def lazily(rows):
    return dd.from_pandas(frame_of(rows, kind=np.arange(len(rows)) % 3, name="x"), npartitions=4)


KINDS = {
    "frame": lazily,
    "nullable": lambda rows: lazily(rows).astype(dict.fromkeys("abcde", "Float64")),
    "array": lambda rows: da.from_array(np.column_stack([rows, np.ones((len(rows), 2))]), (25, 4)),
}
HOW = {"label": -2, "drop": [-1]}


@pytest.fixture(scope="module")
def engine():
    with lp.connect("dask:2") as engine:
        yield engine


@pytest.fixture
def _not_here(monkeypatch):
    """Reading rows into this process is an error."""

    def refuse(*_, **__):
        raise AssertionError("rows were read here")

    monkeypatch.setattr(reading, "open_source", refuse)


@pytest.mark.parametrize("read", [lambda data: data, lp.read])
def test_a_gap_that_a_cluster_meets_is_answered_by_the_remedy(engine, read):
    with pytest.raises(lp.DataError, match=r"column '\w'.*missing='drop' leaves out rows with NaN"):
        lp.pca(read(dd.from_pandas(frame_of(X), npartitions=4)), 2, engine=engine)
    with pytest.raises(lp.DataError, match=r"values before the fit$"):  # whose gaps none can close
        lp.pca([dask.delayed(X)], 2, engine=engine)


@pytest.mark.usefixtures("_not_here")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [None, "drop", "mean"])
def test_columns_labels_and_gaps_are_seen_to_on_the_cluster(engine, kind, missing):
    rows = lp.read(KINDS[kind](X if missing else FULL), **HOW, missing=missing)
    assert isinstance(rows, LazySource)
    if missing is None:
        found = lp.pca(rows, 2, method="gram", engine=engine, rng=0)
        assert "missing" not in found.run
    else:
        with pytest.warns(lp.DataHint, match="missing"):
            found = lp.pca(rows, 2, method="gram", engine=engine, rng=0)
        counts = {"rows_left_out": int((~KEPT).sum())}, {"values_filled": int(HOLES.sum())}
        assert found.run["missing"] == counts[missing == "mean"]
    expected = {None: FULL, "drop": FULL[KEPT], "mean": FILLED}[missing]
    assert found.run["held"]
    assert found.run["rows"] == len(expected)
    assert found.run["names"] == (None if kind == "array" else list("abcde"))
    values = np.linalg.svd(expected - expected.mean(axis=0))[1]
    np.testing.assert_allclose(found.singular_values, values[:2], rtol=1e-12)


def refuse_process(part, process):
    if os.getpid() == process:
        raise AssertionError("a partition was made in this process")
    return part


@pytest.mark.parametrize("missing", [None, "drop", "mean"])
def test_no_partition_is_made_in_this_process(engine, missing):
    frame = dd.from_pandas(frame_of(X if missing else FULL), npartitions=4)
    frame = frame.map_partitions(refuse_process, os.getpid(), meta=frame._meta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.DataHint)
        found = lp.pca(lp.read(frame, label="e", missing=missing), 2, engine=engine, rng=0)
    assert found.components.shape == (2, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", ["drop", "mean"])
def test_what_is_left_is_the_same_here_and_there(kind, missing):
    rows = lp.read(KINDS[kind](X), **HOW, missing=missing)
    with pytest.warns(lp.DataHint):
        there, counts = rows.in_place()
    (there,) = dask.compute(there)
    with pytest.warns(lp.DataHint):
        here = np.concatenate(rows.pieces)
    np.testing.assert_allclose(np.asarray(there, float), here, rtol=1e-13)
    assert counts == rows.missing
    assert rows.labels is not None


@pytest.mark.usefixtures("_not_here")
def test_nothing_is_computed_where_nothing_is_asked_of_gaps():
    def never(part):
        raise AssertionError("a partition was made")

    frame = lazily(FULL).map_partitions(never, meta=lazily(FULL)._meta)
    rows = lp.read(frame, label="kind", drop=["name"])
    assert list(rows.in_place()[0].columns) == list("abcde")
    assert repr(rows) == (
        "<Source of a Dask DataFrame: ? rows × 7 columns, label='kind', not read yet>"
    )


def test_data_without_gaps_stay_as_they_are():
    array = da.from_array(FULL, (30, 5))
    for missing in ("drop", "mean"):
        rows, counts = lp.read(array, missing=missing).in_place()
        assert rows is array
        assert counts == {}
    whole = da.from_array(np.arange(12).reshape(6, 2), (3, 2))
    assert lp.read(whole, missing="mean").in_place() == (whole, {})


def test_single_precision_stays_single_on_the_cluster():
    array = da.from_array(X.astype(np.float32), (30, 5))
    with pytest.warns(lp.DataHint):
        rows = lp.read(array, missing="mean").in_place()[0]
    assert rows.dtype == np.float32
    assert lp.read(array, dtype="float64").in_place()[0].dtype == np.float64


def test_what_cannot_be_done_in_place_is_said():
    with pytest.raises(lp.DataError, match=r"column 'a' has no value .* drop=\['a'\]"):
        lp.read(lazily(FULL).assign(a=np.nan), drop=["name"], missing="mean").in_place()
    with pytest.raises(lp.DataError, match=r"columns that are not numbers: 'name'"):
        lp.read(lazily(FULL)).in_place()
    chunks = da.from_array(FULL, (30, 5)).map_blocks(sparse.csr_array)
    with pytest.raises(lp.DataError, match="missing= is not for sparse chunks"):
        lp.read(chunks, missing="drop").in_place()


def test_without_an_engine_that_takes_them_rows_are_read_here_once():
    with lp.read(lazily(FULL), label="kind", drop=["name"]) as rows:
        found = lp.pca(rows, 2, engine="inline", rng=0)
        assert not found.run["held"]
        np.testing.assert_array_equal(rows.labels, np.arange(90) % 3)
        assert rows.tables is rows.tables
        assert found.transform(rows).compute().shape == (90, 2)


@pytest.mark.usefixtures("_not_here")
@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_left_vectors_of_a_lazy_source_stay_with_dask(engine, kind):
    rows = lp.read(KINDS[kind](X), **HOW, missing="drop")
    with pytest.warns(lp.DataHint, match="left out"):
        found = lp.pca(rows, 2, engine=engine, rng=0, return_u="engine")
    wanted = (X[KEPT] - X[KEPT].mean(axis=0)) @ found.components.T
    scores = found.transform(rows)
    assert dask.is_dask_collection(scores)
    assert dask.is_dask_collection(found.U)
    np.testing.assert_allclose(scores.compute(), wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.U.compute() * found.singular_values, wanted, atol=1e-12)
    if kind != "array":  # scores can be joined by the index
        assert scores.compute().index.tolist() == np.flatnonzero(KEPT).tolist()


@pytest.mark.usefixtures("_not_here")
@pytest.mark.parametrize("how", ["read", "as it is"])
def test_methods_are_compared_where_the_rows_are(engine, how):
    rows = lp.read(lazily(FULL), label="kind", drop=["name"])
    if how == "as it is":
        rows = lazily(FULL)[list("abcde")]
    found = lp.compare(rows, 2, methods={"mine": "dpi", "other": "gram"}, engine=engine, rng=0)
    assert not found.missing
    assert found.run["workers"] == 4


def test_an_open_client_works_on_a_lazy_source_where_no_engine_is_named(engine):
    rows = lp.read(lazily(FULL), label="kind", drop=["name"])
    with engine.client.as_current(), pytest.warns(lp.DataHint, match="data belong to dask"):
        assert lp.pca(rows, 2, rng=0).run["held"]


# A plan looks at some chunks.

COUNT, LENGTH = 40, 25


def counted(kind, monkeypatch):
    """Rows in chunks that tell when they are made, and the list of those that were."""
    monkeypatch.setattr("localpower.data.readers.frames.SEEN", 6 * LENGTH * 5 * 8)
    made = []

    def chunk(number):
        made.append(number)
        rng = np.random.default_rng(number)
        return rng.standard_normal((LENGTH, 5)) * 0.5 ** np.arange(5) + 1

    if kind == "frame":
        meta = frame_of(np.ones((1, 5)))
        return dd.from_map(lambda i: frame_of(chunk(i)), range(COUNT), meta=meta), made
    numbers = da.arange(COUNT, chunks=1)
    sizes = (np.nan if kind == "of unknown length" else LENGTH,) * COUNT
    return numbers.map_blocks(
        lambda part: chunk(int(part[0])), new_axis=1, chunks=(sizes, 5), dtype=float,
        meta=np.empty((0, 0)),
    ), made  # fmt: skip


@pytest.mark.parametrize("kind", ["array", "of unknown length", "frame"])
@pytest.mark.parametrize("options", [None, {"columns": [0, 1, 2, 4]}])
def test_a_plan_makes_a_few_chunks_from_all_over_and_counts_all_rows(kind, options, monkeypatch):
    data, made = counted(kind, monkeypatch)
    given = data if options is None else lp.read(data, **options)
    plan = lp.plan(given, 2, workers=4)
    assert set(made) == {0, 8, 16, 23, 31, 39}
    assert plan.basis == f"predicted from a sample of {6 * LENGTH} rows"
    columns = 5 if options is None else 4
    assert plan.question.startswith(f"rank 2 of {COUNT * LENGTH} x {columns} in 4 shards")
    whole = data.compute(scheduler="sync")
    whole = np.asarray(whole)[:, [0, 1, 2, 4]] if options else np.asarray(whole)
    same = lp.plan(whole, 2, workers=4)
    assert [(row.method, row.bytes_up) for row in plan] == [
        (row.method, row.bytes_up) for row in same
    ]


def test_a_plan_for_rows_that_were_read_already_is_of_all(monkeypatch):
    data, made = counted("array", monkeypatch)
    with lp.read(data) as rows:
        assert rows.rows == COUNT * LENGTH
        made.clear()
        assert lp.plan(rows, 2).basis == "predicted from all rows"
    assert not made
