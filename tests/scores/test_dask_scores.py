"""Scores of Dask's data stay with Dask: lazy, one layer of tasks, and an open client is used."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import with_spectrum

import localpower as lp

dask = pytest.importorskip("dask", reason="dask is not installed")
pytest.importorskip("distributed", reason="distributed is not installed")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
Delayed = pytest.importorskip("dask.delayed").Delayed

NAMES = list("abcdef")
A = with_spectrum(400, 0.7 ** np.arange(6), seed=1) * 10 + 50
FRAME = pd.DataFrame(A, columns=NAMES)
MODEL = lp.pca(FRAME, 3, scale="std", rng=0)
WANTED = MODEL.transform(A)
PC = ["pc1", "pc2", "pc3"]


@pytest.fixture(scope="module")
def client(clusters):
    return clusters("dask")


@pytest.fixture(autouse=True)
def _nothing_is_computed_elsewhere():
    with dask.config.set(scheduler="sync"):
        yield


def refuses(*_, **__):
    raise AssertionError("a chunk was computed")


@pytest.mark.parametrize("chunks", [(100, 6), (130, 4), (400, 1)])
def test_the_graph_of_an_array_gets_one_layer_of_blockwise_tasks(chunks):
    rows = da.from_array(A, chunks=chunks)
    scores = MODEL.transform(rows.map_blocks(refuses, dtype=float, meta=np.empty((0, 0))))
    before = set(rows.map_blocks(refuses, dtype=float, meta=np.empty((0, 0))).dask.layers)
    new = [layer for name, layer in scores.dask.layers.items() if name not in before]
    assert [type(layer).__name__ for layer in new] == ["Blockwise"]
    assert scores.chunks == (rows.chunks[0], (3,))
    found = MODEL.transform(rows)
    assert found.dtype == found.compute().dtype == np.float64
    assert np.abs(found.compute() - WANTED).max() <= 1e-12
    back = MODEL.inverse_transform(found)
    assert back.chunks == (rows.chunks[0], (6,))
    assert np.abs(back.compute() - MODEL.inverse_transform(WANTED)).max() <= 1e-12


def test_float32_sparse_chunks_and_unknown_lengths_are_taken():
    narrow = MODEL.transform(da.from_array(A.astype("f4"), chunks=(100, 6)))
    assert narrow.dtype == narrow.compute().dtype == np.float32
    sparse = da.from_array(A, chunks=(100, 4)).map_blocks(sp.csr_array, meta=sp.csr_array((0, 0)))
    assert np.abs(MODEL.transform(sparse).compute() - WANTED).max() <= 1e-12
    rows = da.from_array(A, chunks=(100, 6))
    some = MODEL.transform(rows[rows[:, 0] > 50])
    assert np.abs(some.compute() - WANTED[A[:, 0] > 50]).max() <= 1e-12


def test_a_large_model_is_one_task_that_others_depend_on(monkeypatch):
    monkeypatch.setattr("localpower.scores.dask_scores.LARGE", 1)
    scores = MODEL.transform(da.from_array(A, chunks=(100, 6)))
    assert np.abs(scores.compute() - WANTED).max() <= 1e-12
    assert len(scores.dask.layers) == 3


def test_a_frame_gives_a_frame_under_its_index_with_columns_by_name():
    frame = FRAME.assign(id=np.arange(400))[["f", "id", *"edcba"]]
    frame.index = frame.index * 2
    rows = dd.from_pandas(frame, npartitions=3)
    scores = MODEL.transform(rows, keep=["id"])
    assert list(scores.columns) == ["id", *PC]
    assert scores.divisions == rows.divisions
    found = scores.compute()
    assert found.index.tolist() == frame.index.tolist()
    assert found["id"].tolist() == list(range(400))
    assert np.abs(found[PC].to_numpy() - WANTED).max() <= 1e-12
    with pytest.warns(lp.DataHint, match="left out: 'id'"):
        assert list(MODEL.transform(rows).columns) == PC
    with pytest.raises(lp.DataError, match="columns of the model are missing: 'a'"):
        MODEL.transform(rows.drop(columns="a"))
    with pytest.raises(lp.DataError, match="not there: 'site'"):
        MODEL.transform(rows, keep=["site"])


def test_delayed_blocks_give_delayed_blocks_of_the_same_kind():
    blocks = [dask.delayed(A[:150]), dask.delayed(FRAME[150:])]
    first, second = dask.compute(*MODEL.transform(blocks))
    assert isinstance(first, np.ndarray)
    assert list(second.columns) == PC
    assert np.abs(np.vstack([first, second]) - WANTED).max() <= 1e-12
    assert isinstance(MODEL.transform(blocks[0]), Delayed)


def test_what_cannot_be_is_refused_without_advice_about_an_engine():
    rows = da.from_array(A, chunks=(100, 6))
    cases = [(rows[:, :4], "has 4 columns where the model has 6"), (rows[:, 0], "not 2"),
             ([A, dask.delayed(A)], "all of one kind"), ([dask.delayed(A), A], "all of one kind"),
             (dd.from_pandas(FRAME, npartitions=1)["a"], "single column")]  # fmt: skip
    for data, match in cases:
        with pytest.raises(lp.DataError, match=match) as refused:
            MODEL.transform(data)
        assert "engine=" not in str(refused.value)
    with pytest.raises(ValueError, match="stay with Dask; leave it out"):
        MODEL.transform(rows, out="scores.zarr")
    for data in (rows, dask.delayed(A), [dask.delayed(A)]):
        with pytest.raises(ValueError, match=r"keep=\['id'\]: an array has no place"):
            MODEL.transform(data, keep="id")
    bad = A.copy()
    bad[250, 0] = np.inf
    with pytest.raises(lp.DataError, match="NaN or infinity in a chunk of data, row 50"):
        MODEL.transform(da.from_array(bad, chunks=(100, 6))).compute()


def test_futures_give_futures_on_the_workers(client):
    futures = client.scatter([A[:150], A[150:]])
    scores = MODEL.transform(futures)
    assert [type(score) for score in scores] == [type(future) for future in futures]
    assert np.abs(np.vstack(client.gather(scores)) - WANTED).max() <= 1e-12


def test_an_open_client_works_on_dask_data_where_no_engine_is_asked_for(client):
    rows = da.from_array(A, chunks=(100, 6))
    with client.as_current():
        with pytest.warns(lp.DataHint, match="data belong to dask: its cluster that is open"):
            result = lp.pca(rows, 3, scale="std", rng=0, return_u="engine")
        assert result.run["engine"] == "dask"
        assert lp.pca(rows, 3, engine="inline", rng=0).run["engine"] == "inline"
        assert lp.pca(A, 3, rng=0).run["engine"] == "threads"
    assert lp.pca(rows, 3, rng=0).run["engine"] == "threads"
    assert isinstance(result.U, da.Array)
    here = lp.pca(A, 3, "gram", scale="std", return_u=True).U
    assert np.abs(np.abs(result.U.compute()) - np.abs(here)).max() <= 1e-6


def test_the_estimator_returns_lazy_scores(client):
    pytest.importorskip("sklearn")
    rows = da.from_array(A, chunks=(100, 6))
    model = lp.PCA(3, scale="std", engine=client, random_state=0)
    scores = model.fit_transform(rows)
    assert isinstance(scores, da.Array)
    assert np.abs(scores.compute() - model.transform(A)).max() <= 1e-12
    assert isinstance(model.inverse_transform(scores), da.Array)
