"""Scores of Ray's data stay with Ray: datasets by `map_batches`, references of references."""

import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import with_spectrum

import localpower as lp

ray = pytest.importorskip("ray", reason="Ray is not installed")

NAMES = list("abcdef")
A = with_spectrum(400, 0.7 ** np.arange(6), seed=1) * 10 + 50
FRAME = pd.DataFrame(A, columns=NAMES)
MODEL = lp.pca(FRAME, 3, scale="std", rng=0)
PLAIN = lp.pca(A, 3, scale="std", rng=0)
WANTED = MODEL.transform(A)
PC = ["pc1", "pc2", "pc3"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def data(clusters):
    clusters("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray.data


def stacked(dataset, name):
    return np.concatenate([batch[name] for batch in dataset.iter_batches(batch_format="numpy")])


def test_a_table_gives_columns_of_scores_and_is_not_computed_before(data, monkeypatch):
    frame = FRAME.assign(id=np.arange(400), site="x")[["f", "id", "site", *"edcba"]]
    rows = data.from_pandas(frame)
    for name in ("take", "take_all", "materialize", "iter_internal_ref_bundles"):
        monkeypatch.setattr(data.Dataset, name, None)
    with pytest.warns(lp.DataHint, match="left out: 'site'"):
        scores = MODEL.transform(rows, keep=["id"])
    monkeypatch.undo()
    assert "MapBatches(batch_scores)" in repr(scores)
    found = scores.to_pandas().sort_values("id")
    assert list(found.columns) == ["id", *PC]
    assert np.abs(found[PC].to_numpy() - WANTED).max() <= 1e-12
    with pytest.raises(lp.DataError, match="columns of the model are missing: 'a'"):
        MODEL.transform(data.from_pandas(frame.drop(columns="a")))


def test_vectors_give_vectors_and_come_back(data):
    scores = PLAIN.transform(data.from_numpy(A))
    assert np.abs(stacked(scores, "scores") - WANTED).max() <= 1e-12
    back = PLAIN.inverse_transform(scores)
    assert np.abs(stacked(back, "rows") - PLAIN.inverse_transform(WANTED)).max() <= 1e-12


def test_references_give_references_of_the_same_kind(data, monkeypatch):
    refs = [ray.put(A[:150]), ray.put(FRAME[150:])]
    for limit in (1 << 20, 1):  # a large model is put once
        monkeypatch.setattr("localpower.scores.ray_scores.LARGE", limit)
        scores = MODEL.transform(refs)
        assert all(isinstance(ref, ray.ObjectRef) for ref in scores)
        first, second = ray.get(scores)
        assert list(second.columns) == PC
        assert np.abs(np.vstack([first, second]) - WANTED).max() <= 1e-12
    assert isinstance(MODEL.transform(refs[0]), ray.ObjectRef)


def test_an_engine_is_neither_needed_nor_advised(data):
    with pytest.warns(lp.DataHint, match="data belong to ray"):
        result = lp.pca(data.from_numpy(A), 3, scale="std", rng=0, return_u="engine")
    assert result.run["engine"] == "ray"
    assert isinstance(result.U, data.Dataset)
    with pytest.raises(lp.DataError, match="object references only") as refused:
        MODEL.transform([ray.put(A), A])
    assert "engine=" not in str(refused.value)
    with pytest.raises(ValueError, match="stay with Ray; leave it out"):
        MODEL.transform(data.from_numpy(A), out="scores.npy")
