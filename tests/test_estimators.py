"""The scikit-learn front."""

import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.decomposition
from helpers import with_spectrum
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import localpower as lp
from localpower.engines.inline import Inline

X = with_spectrum(150, 0.6 ** np.arange(10), seed=3) + np.arange(10)
EXACT = {"method": "dpi", "max_rounds": 2000, "random_state": 0}

CHECK = """
import sys, warnings
import localpower as lp
from sklearn.utils.estimator_checks import check_estimator
for estimator in (lp.PCA(), lp.TruncatedSVD(), lp.PCA(engine="inline", workers=3)):
    results = check_estimator(estimator, on_fail="raise", on_skip=None)
    bad = [r["check_name"] for r in results if r["status"] != "passed"]
    assert not bad and len(results) > 40, bad
    assert not any(r["expected_to_fail"] for r in results)
"""


def test_check_estimator_passes_with_nothing_skipped_and_no_expected_failures():
    environment = os.environ | {"SCIPY_ARRAY_API": "1"}  # else one check skips itself
    subprocess.run([sys.executable, "-W", "error", "-c", CHECK], env=environment, check=True)


def test_they_show_what_they_do_only_if_verbose(capsys):
    lp.PCA(2, method="dpi").fit(X)
    assert capsys.readouterr().err == ""
    lp.PCA(2, method="dpi", verbose=True).fit(X)
    assert capsys.readouterr().err


@pytest.mark.parametrize("shape", [(60, 12), (12, 40)])
@pytest.mark.parametrize("deficient", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_pca_agrees_with_scikit_learn_at_convergence(shape, deficient, seed):
    rng = np.random.default_rng(seed)
    width = min(shape)
    sigma = 0.5 ** np.arange(width)
    sigma[width // 2 if deficient else width :] = 0
    U = np.linalg.qr(rng.standard_normal((shape[0], width)))[0]
    V = np.linalg.qr(rng.standard_normal((shape[1], width)))[0]
    A = (U * sigma) @ V.T * 10 + rng.standard_normal(shape[1])
    ours = lp.PCA(4, workers=3, **(EXACT | {"max_rounds": 100, "random_state": seed})).fit(A)
    theirs = sklearn.decomposition.PCA(4, svd_solver="full").fit(A)
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    kept = theirs.explained_variance_ > 1e-12
    assert np.allclose(ours.components_[kept], (theirs.components_.T * signs).T[kept], atol=1e-10)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), atol=1e-10, rtol=1e-12)
    assert np.allclose(
        ours.transform(A)[:, kept], (theirs.transform(A) * signs)[:, kept], atol=1e-10
    )


def test_truncated_svd_agrees_with_scikit_learn_on_sparse_data():
    A = sp.random_array((200, 30), density=0.2, rng=np.random.default_rng(0), format="csr")
    ours = lp.TruncatedSVD(3, workers=4, **EXACT).fit(A)
    theirs = sklearn.decomposition.TruncatedSVD(3, algorithm="arpack", random_state=0).fit(A)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8)
    distance = lp.subspace_distance(ours.components_.T, theirs.components_.T)
    assert distance < 1e-7


@pytest.mark.parametrize("kind", [lp.PCA, lp.TruncatedSVD])
def test_fit_transform_equals_fit_then_transform_and_inverts(kind):
    model = kind(10, **EXACT)
    scores = model.fit_transform(X)
    assert np.array_equal(scores, model.fit(X).transform(X))
    assert np.allclose(model.inverse_transform(scores), X, atol=1e-12)


def test_paths_and_lists_of_shards_can_be_fitted(tmp_path):
    np.save(tmp_path / "a.npy", X[:70])
    np.save(tmp_path / "b.npy", X[70:])
    paths = [str(tmp_path / "a.npy"), tmp_path / "b.npy"]
    model = lp.PCA(2, random_state=0).fit(paths)
    same = lp.PCA(2, random_state=0).fit([X[:70], X[70:]])
    assert np.array_equal(model.components_, same.components_)
    assert model.transform(paths).shape == (150, 2)
    assert model.n_features_in_ == 10
    assert model.n_samples_ == 150


def test_frames_keep_their_names():
    pytest.importorskip("sklearn")
    model = lp.PCA(2, random_state=0).fit(X)
    assert list(model.get_feature_names_out()) == ["pca0", "pca1"]
    assert list(lp.TruncatedSVD(2).fit(X).get_feature_names_out()) == [
        "truncatedsvd0",
        "truncatedsvd1",
    ]


def test_defaults_clone_pickle_and_pipelines():
    assert lp.PCA().fit(X).n_components_ == 10
    assert lp.TruncatedSVD().fit(X).n_components_ == 2
    model = lp.PCA(3, method="local_power:align=signs", random_state=0).fit(X)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.transform(X), model.transform(X))
    assert clone(model).get_params() == model.get_params()
    pipeline = make_pipeline(StandardScaler(), lp.PCA(2, random_state=0))
    assert pipeline.fit_transform(X).shape == (150, 2)


@pytest.mark.parametrize(
    ("name", "saved"), [("threads:2", "threads"), ("processes:2", "processes"), (None, "threads")]
)
def test_a_model_is_saved_without_what_is_open(name, saved):
    class Own(Inline):
        """An engine of the user's."""

    with lp.connect(name) if name else Own() as engine:
        model = lp.PCA(2, engine=engine, random_state=0).fit(X)
        again = pickle.loads(pickle.dumps(model))
        assert model.engine is engine
    assert again.engine == saved
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_allclose(again.fit(X).components_, model.components_, atol=1e-10)


def test_clones_share_what_is_open():
    with lp.connect("threads:2") as engine:
        model = lp.PCA(2, engine=engine, random_state=np.random.RandomState(3)).fit(X)
        again = clone(model.set_output(transform="default"))
        assert again.engine is engine
        assert not hasattr(again, "components_")
        assert again.random_state is not model.random_state
        search = GridSearchCV(make_pipeline(lp.PCA(engine=engine), Ridge()), {"pca__tol": [1e-3]})
        assert search.fit(X, X[:, 0]).best_params_ == {"pca__tol": 1e-3}


def test_random_states_of_every_kind_are_taken():
    for state in (None, 3, np.random.RandomState(3), np.random.default_rng(3)):
        assert lp.PCA(2, random_state=state).fit(X).components_.shape == (2, 10)


def test_the_account_is_exposed():
    model = lp.PCA(2, method="dpi", max_rounds=7, workers=3, random_state=0).fit(X)
    assert model.n_rounds_ == len(model.history_) == 7
    assert model.communication_.phase("iterate").rounds == 7


def test_digits():
    digits = load_digits().data
    model = lp.PCA(
        5, method="local_power:schedule=halving", max_rounds=60, workers=8, random_state=0
    ).fit(digits)
    theirs = sklearn.decomposition.PCA(5, svd_solver="full").fit(digits)
    assert lp.subspace_distance(model.components_.T, theirs.components_.T) < 1e-2
    assert np.allclose(model.explained_variance_, theirs.explained_variance_, rtol=1e-3)


def test_too_many_components_name_the_shape():
    with pytest.raises(ValueError, match=r"11.*n_features=10"):
        lp.PCA(11).fit(X)


def test_columns_are_found_by_name_whether_files_or_frames_were_fitted(tmp_path):
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(10)])
    mixed = frame.iloc[:, ::-1]
    frame.to_csv(tmp_path / "rows.csv", index=False)
    mixed.to_csv(tmp_path / "mixed.csv", index=False)
    expected = lp.PCA(2, **EXACT).fit(X).transform(X)
    for rows in (tmp_path / "rows.csv", frame):
        model = lp.PCA(2, **EXACT).fit(rows)
        for data in (tmp_path / "mixed.csv", tmp_path / "rows.csv", frame, X):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of scikit-learn, where an array has no names
                assert np.allclose(model.transform(data), expected)
    assert np.allclose(lp.PCA(2, **EXACT).fit(tmp_path / "rows.csv").transform(mixed), expected)
    with pytest.raises(ValueError, match="feature names should match"):
        lp.PCA(2, **EXACT).fit(frame).transform(mixed)  # as all estimators of scikit-learn do
