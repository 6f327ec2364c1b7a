"""What scikit-learn's estimators promise, beside theirs."""

import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
import sklearn.decomposition
from helpers import with_spectrum
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits, load_iris, make_low_rank_matrix
from sklearn.decomposition._pca import _infer_dimension
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import localpower as lp
from localpower.estimators.dimension import most_probable
from localpower.methods.solvers import SOLVERS

IRIS = load_iris().data
X = with_spectrum(150, 0.6 ** np.arange(10), seed=3) + np.arange(10)
SHAPES = {
    "tall": X,
    "wide": make_low_rank_matrix(12, 30, tail_strength=0.5, random_state=0),
    "digits": load_digits().data[:300],
    "float32": IRIS.astype(np.float32),
}


def both(rows, k, **options):
    ours = lp.PCA(k, random_state=0, **options).fit(rows)
    return ours, sklearn.decomposition.PCA(k, svd_solver="full", **options).fit(rows)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_model_of_the_data_is_that_of_scikit_learn(kind, whiten):
    rows = SHAPES[kind]
    ours, theirs = both(rows, 3, whiten=whiten)
    close = {"rtol": 1e-4, "atol": 1e-5} if rows.dtype == np.float32 else {"rtol": 1e-9}
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=close["rtol"])
    for name in ("get_covariance", "get_precision"):
        found, expected = getattr(ours, name)(), getattr(theirs, name)()
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=close["rtol"] * np.abs(expected).max())
    found = ours.score_samples(rows)
    assert found.dtype == rows.dtype
    np.testing.assert_allclose(found, theirs.score_samples(rows), **close)
    assert ours.score(rows) == pytest.approx(theirs.score(rows), rel=close["rtol"])
    np.testing.assert_allclose(
        ours.transform(rows), theirs.transform(rows), **close | {"atol": 1e-4}
    )
    back = ours.inverse_transform(ours.transform(rows))
    np.testing.assert_allclose(
        back, theirs.inverse_transform(theirs.transform(rows)), **close | {"atol": 1e-4}
    )


@pytest.mark.parametrize("asked", [None, 0, 1, 7, 0.3, 0.9, 0.999, "mle"])
@pytest.mark.parametrize("kind", ["tall", "digits", "float32"])
def test_as_many_components_are_kept_as_scikit_learn_keeps(kind, asked):
    ours, theirs = both(SHAPES[kind], min(asked, 4) if isinstance(asked, int) else asked)
    assert ours.n_components_ == theirs.n_components_ == len(ours.components_)
    assert ours.transform(SHAPES[kind]).shape == (len(SHAPES[kind]), theirs.n_components_)
    assert ours.result_.run["rank"] == theirs.n_components_
    np.testing.assert_allclose(
        ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-4, atol=1e-12
    )
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=1e-4, abs=1e-12)
    assert str(ours.result_)


def test_no_components_leave_the_mean_and_a_round_density():
    ours, theirs = both(X, 0)
    assert np.allclose(ours.score_samples(X), theirs.score_samples(X))
    assert np.allclose(ours.get_precision(), theirs.get_precision())
    assert np.allclose(ours.inverse_transform(ours.transform(X)), X.mean(axis=0))


@pytest.mark.parametrize("seed", range(30))
def test_the_most_probable_dimension_is_that_of_minka(seed):
    rng = np.random.default_rng(seed)
    d, rows = int(rng.integers(2, 25)), int(rng.integers(30, 500))
    signal = rng.standard_normal((rows, d)) * np.sort(rng.exponential(1, d))[::-1]
    signal[:, : int(rng.integers(1, d))] *= rng.integers(1, 9)
    values = np.linalg.svd(signal - signal.mean(axis=0))[1] ** 2 / (rows - 1)
    assert most_probable(values, rows) == _infer_dimension(values, rows)


@pytest.mark.parametrize(
    ("values", "expected"), [([3.0], 1), ([1.0, 0.0, 0.0], 1), ([2.0, 2.0, 2.0, 1e-9], 3)]
)
def test_the_most_probable_dimension_of_a_spectrum_with_ties_or_zeros(values, expected):
    with np.errstate(all="raise"):
        assert most_probable(np.array(values), 100) == expected


@pytest.mark.parametrize("method", ["auto", "dpi", "local_ritz"])
@pytest.mark.parametrize("share", [0.5, 0.9, np.float32(0.99)])
def test_a_share_is_certified_by_the_method_that_is_asked_for(method, share):
    far = with_spectrum(200, 0.6 ** np.arange(8), seed=1)
    model = lp.PCA(share, method=method, random_state=0, max_rounds=200).fit(far)
    assert model.n_components_ == sklearn.decomposition.PCA(float(share)).fit(far).n_components_
    assert model.result_.reach.least(1e-6)
    assert model.result_.reach.reached > share


def test_what_is_certified_of_counted_components_is_about_these():
    asked = "mle"
    far = with_spectrum(200, 0.3 ** np.arange(8), seed=1)
    for rows in (far, (far + 1000).astype(np.float32)):
        result = lp.PCA(asked, random_state=0).fit(rows).result_
        expected = lp.pca(rows, result.run["rank"], SOLVERS["full"], rng=0)
        assert result.certificate.angle == pytest.approx(expected.certificate.angle, rel=1e-3)
        assert result.certificate.gap == pytest.approx(expected.certificate.gap, rel=1e-3)
        assert len(result.residuals) == result.run["rank"]
        assert result.history[-1].angle == result.certificate.angle
        assert result.run["why"] == f"n_components={asked!r} needs all eigenvalues"
        again = eval(result.run["call"], {"localpower": lp, "data": rows})
        np.testing.assert_array_equal(again.components, expected.components)
        assert str(result).splitlines()[2:4] == str(expected).splitlines()[2:4]
    with pytest.raises(ValueError, match=r"needs all eigenvalues.*leave out method=dpi"):
        lp.PCA(asked, method="dpi").fit(far)
    assert lp.PCA(0, method="dpi").fit(far).n_components_ == 0


def test_shares_are_exceeded_as_in_scikit_learn():
    ratios = lp.PCA().fit(IRIS).explained_variance_ratio_
    model = lp.PCA(float(ratios[:2].sum())).fit(IRIS)
    assert model.explained_variance_ratio_.sum() > ratios[:2].sum()
    assert model.n_components_ == 3


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_of_scikit_learn_is_a_method_and_the_result_says_which(solver):
    expected = sklearn.decomposition.PCA(3, svd_solver="full").fit(X)
    model = lp.PCA(3, svd_solver=solver, random_state=0).fit(X)
    assert model.solver_ == model.result_.run["method"] == SOLVERS[solver].name
    assert model.result_.run["why"] == f"svd_solver={solver!r}"
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-7)
    other = lp.TruncatedSVD(3, algorithm=solver, random_state=0).fit(X)
    assert other.result_.run["why"] == f"algorithm={solver!r}"
    assert other.solver_ == SOLVERS[solver].name


def test_arpack_is_certified_and_randomized_does_as_many_rounds_as_it_is_told():
    rng = np.random.default_rng(0)
    flat = rng.standard_normal((400, 120))
    assert lp.PCA(3, svd_solver="arpack", random_state=0).fit(flat).result_.run["tol"] == 1e-8
    fine = lp.PCA(3, svd_solver="arpack", tol=1e-3, random_state=0).fit(flat)
    assert fine.result_.run["tol"] == 1e-3
    assert fine.converged_
    narrow = lp.PCA(3, svd_solver="arpack").fit(flat.astype(np.float32))
    assert narrow.result_.run["tol"] > 1e-4
    for powers, rounds in (("auto", 8), (0, 1), (2, 3)):
        model = lp.PCA(3, svd_solver="randomized", iterated_power=powers, random_state=0).fit(flat)
        assert model.n_rounds_ == rounds
        assert model.result_.run["width"] == 13
    model = lp.TruncatedSVD(3, algorithm="randomized", n_iter=3, n_oversamples=20).fit(flat)
    assert (model.n_rounds_, model.result_.run["width"]) == (4, 23)
    assert lp.PCA(3, svd_solver="randomized").fit(IRIS).result_.run["width"] == 4


def test_randomized_takes_files_whose_width_is_not_known_before(tmp_path):
    np.save(tmp_path / "rows.npy", X)
    for options, width in (({}, 8), ({"n_oversamples": 4}, 7)):
        model = lp.PCA(3, svd_solver="randomized", **options).fit(tmp_path / "rows.npy")
        assert model.result_.run["width"] == width
    assert lp.PCA(svd_solver="randomized").fit(tmp_path / "rows.npy").n_components_ == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"svd_solver": "full"}, "svd_solver='full' means nothing beside method=dpi: leave one"),
        ({"iterated_power": 3}, "iterated_power=3 means nothing.*give max_rounds="),
        ({"n_oversamples": 3}, "n_oversamples=3 means nothing.*width"),
    ],
)
def test_options_of_solvers_are_refused_beside_a_method(options, message):
    with pytest.raises(ValueError, match=message):
        lp.PCA(2, method="dpi", **options).fit(X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"svd_solver": "lapack"}, "svd_solver='lapack' is not known: take one of auto, full"),
        ({"power_iteration_normalizer": "qr"}, "power_iteration_normalizer='qr' is not known"),
        ({"n_oversamples": 0}, "n_oversamples=0 must be 1 or more"),
        ({"iterated_power": -1}, "iterated_power=-1 must be 0 or more"),
        ({"n_components": "ml"}, "n_components='ml' cannot be a string"),
        ({"n_components": 1.5}, "n_components=1.5 must be between 0 and .*not a whole number"),
        ({"n_components": True}, "n_components=True must be between"),
        ({"n_components": -1}, "n_components=-1 must be between 0 and"),
        ({"n_components": 0.5, "svd_solver": "arpack"}, "n_components=0.5 must be between 1 and"),
        ({"n_components": 10, "svd_solver": "arpack"}, "strictly less than .*another solver finds"),
        ({"n_components": "mle"}, r"n_samples >= n_features.*n_samples=5 and n_features=10"),
    ],
)
def test_values_that_cannot_be_are_refused_with_the_remedy(options, message):
    rows = X[:5] if options == {"n_components": "mle"} else X
    with pytest.raises(ValueError, match=message):
        lp.PCA(**options).fit(rows)


def test_a_keyword_that_there_is_not_names_the_estimator():
    for kind in (lp.PCA, lp.TruncatedSVD):
        with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__init__\(\) got an unexpected"):
            kind(rank=3)


@pytest.mark.parametrize("kind", ["PCA", "TruncatedSVD"])
def test_every_parameter_and_public_name_of_theirs_is_there(kind):
    ours, theirs = getattr(lp, kind), getattr(sklearn.decomposition, kind)
    first, second = (inspect.signature(each).parameters for each in (ours, theirs))
    assert second.keys() <= first.keys()
    fitted = [each(2).fit(X) for each in (ours, theirs)]
    public = [{name for name in dir(model) if not name.startswith("_")} for model in fitted]
    assert public[1] <= public[0]


def test_rows_are_never_changed():
    for solver in ("auto", *SOLVERS):
        rows = X.copy()
        lp.PCA(3, copy=False, svd_solver=solver).fit_transform(rows)
        assert np.array_equal(rows, X)


def test_the_model_of_scaled_columns_is_in_the_units_of_the_data():
    rows = X * 2.0 ** np.arange(10)
    model = lp.PCA(scale="std").fit(rows)
    np.testing.assert_allclose(model.get_covariance(), np.cov(rows.T), rtol=1e-6, atol=1e-9)
    normal = multivariate_normal(rows.mean(axis=0), np.cov(rows.T))
    np.testing.assert_allclose(model.score_samples(rows), normal.logpdf(rows), rtol=1e-6)
    part = lp.PCA(4, scale="std").fit(rows)
    product = part.get_covariance() @ part.get_precision()
    units = rows.std(axis=0)
    np.testing.assert_allclose(product / units[:, None] * units, np.eye(10), atol=1e-9)


def test_where_nothing_is_left_of_the_variance_the_density_is_that_within_the_span():
    rng = np.random.default_rng(1)
    flat = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 8)) + 2
    for model in (lp.PCA(3).fit(flat), lp.PCA(8, svd_solver="full").fit(flat)):
        assert model.noise_variance_ == 0
        normal = multivariate_normal(flat.mean(axis=0), np.cov(flat.T), allow_singular=True)
        np.testing.assert_allclose(model.score_samples(flat), normal.logpdf(flat), rtol=1e-6)
        np.testing.assert_allclose(model.get_precision(), np.linalg.pinv(np.cov(flat.T)), atol=1e-6)


def test_constant_rows_have_no_noise_and_no_variance():
    model = lp.PCA(2).fit(np.ones((20, 5)))
    assert model.noise_variance_ == 0
    assert np.isfinite(model.transform(np.ones((3, 5)))).all()
    assert np.isfinite(lp.PCA(2, whiten=True).fit_transform(np.ones((20, 5)))).all()


def test_files_and_sparse_rows_have_the_likelihood_of_arrays(tmp_path):
    np.save(tmp_path / "a.npy", X[:70])
    np.save(tmp_path / "b.npy", X[70:])
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    model = lp.PCA(3, random_state=0).fit(files)
    expected = sklearn.decomposition.PCA(3).fit(X).score_samples(X)
    for rows in (files, X, sp.csr_array(X), lp.read(files)):
        np.testing.assert_allclose(model.score_samples(rows), expected, rtol=1e-9)
    np.save(tmp_path / "bad.npy", np.where(np.arange(10) == 3, np.nan, X[:70]))
    with pytest.raises(lp.DataError, match=r"NaN or infinity in .*bad\.npy, row 0"):
        model.score_samples(tmp_path / "bad.npy")
    np.save(tmp_path / "bad.npy", X[:, :4])
    with pytest.raises(lp.DataError, match="X has 4 columns where the model has 10"):
        model.score_samples(tmp_path / "bad.npy")


def test_the_total_variance_is_on_record():
    for rows in (X, X.astype(np.float32)):
        run = lp.PCA(2).fit(rows).result_.run
        assert run["variance"] == pytest.approx(np.cov(rows.T).trace(), rel=1e-6)
    assert lp.svd(X, 2).run["variance"] == pytest.approx(X.var(axis=0).sum())


def test_options_of_a_method_are_parameters():
    model = lp.PCA(2, method=lp.LocalPower(steps=4), random_state=0)
    assert model.get_params()["method__steps"] == 4
    assert "method__steps" not in model.get_params(deep=False)
    assert "method__steps" not in lp.PCA(method="local_power").get_params()
    before = model.method
    model.set_params(method__steps=2, n_components=3)
    assert (model.method, model.n_components) == (lp.LocalPower(steps=2), 3)
    assert before == lp.LocalPower(steps=4)
    model.set_params(method__steps=3, method="local_power:schedule=halving")
    assert model.method == lp.LocalPower(steps=3, schedule="halving")
    assert clone(model).method == model.method
    with pytest.raises(ValueError, match=r"'step' is not an option of method=local_power.*steps"):
        model.set_params(method__step=3)
    with pytest.raises(ValueError, match="steps=0 must be 1 or more"):
        model.set_params(method__steps=0)
    assert model.method == lp.LocalPower(steps=3, schedule="halving")


def test_a_grid_search_goes_over_methods_and_their_options_in_processes():
    labels = load_iris().target
    pipeline = Pipeline(
        [
            ("scale", StandardScaler()),
            ("pca", lp.PCA(2, engine="inline", random_state=0)),
            ("tell", LogisticRegression()),
        ]
    )
    grid = [
        {"pca__method": ["gram", lp.LocalRitz()], "pca__n_components": [1, 2]},
        {"pca__method": [lp.LocalPower()], "pca__method__steps": [1, 4]},
    ]
    search = GridSearchCV(pipeline, grid, cv=3, n_jobs=2, error_score="raise")
    search.fit(IRIS, labels)
    assert len(search.cv_results_["params"]) == 6
    assert search.best_score_ > 0.9
    tried = [params.get("pca__method__steps") for params in search.cv_results_["params"]]
    assert tried == [None] * 4 + [1, 4]
    by_likelihood = GridSearchCV(lp.PCA(engine="inline"), {"n_components": [0, 1, 2, 3]}, cv=3)
    theirs = GridSearchCV(sklearn.decomposition.PCA(), {"n_components": [0, 1, 2, 3]}, cv=3)
    assert by_likelihood.fit(X).best_params_ == theirs.fit(X).best_params_
    scores = [each.cv_results_["mean_test_score"] for each in (by_likelihood, theirs)]
    np.testing.assert_allclose(*scores, rtol=1e-9)
    assert cross_val_score(lp.PCA(2), X, cv=3).shape == (3,)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_go_in_and_come_out_with_names(library):
    frames = pytest.importorskip(library)
    frame = frames.DataFrame({f"c{j}": X[:, j] for j in range(10)})
    model = lp.PCA(2, random_state=0).set_output(transform=library).fit(frame)
    assert list(model.feature_names_in_) == list(frame.columns)
    scores = model.transform(frame)
    assert isinstance(scores, frames.DataFrame)
    assert list(scores.columns) == list(model.get_feature_names_out()) == ["pca0", "pca1"]
    np.testing.assert_allclose(
        scores.to_numpy(), sklearn.decomposition.PCA(2).fit_transform(X), atol=1e-9
    )
    back = model.inverse_transform(scores)
    np.testing.assert_array_equal(back, model.inverse_transform(scores.to_numpy()))
    assert model.score(frame) == pytest.approx(sklearn.decomposition.PCA(2).fit(X).score(X))
    assert clone(model).fit_transform(frame).shape == (150, 2)


def test_columns_of_a_frame_are_transformed_one_group_at_a_time():
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(10)])
    parts = make_column_transformer(
        (lp.PCA(2, random_state=0), ["c0", "c1", "c2"]),
        (lp.TruncatedSVD(1, random_state=0), ["c3", "c4"]),
        remainder="passthrough",
    ).set_output(transform="pandas")
    found = parts.fit_transform(frame)
    assert list(found.columns[:4]) == ["pca__pca0", "pca__pca1", "truncatedsvd__truncatedsvd0",
                                       "remainder__c5"]  # fmt: skip
    assert list(found.index) == list(frame.index)


def test_metadata_is_routed_past_them():
    with sklearn.config_context(enable_metadata_routing=True):
        last = Ridge().set_fit_request(sample_weight=True)
        pipeline = make_pipeline(lp.PCA(3, random_state=0), last)
        weights = np.linspace(0, 1, len(X))
        pipeline.fit(X, X[:, 0], sample_weight=weights)
        expected = Ridge().fit(pipeline[0].transform(X), X[:, 0], sample_weight=weights)
        np.testing.assert_allclose(pipeline[-1].coef_, expected.coef_)


def test_whitened_models_are_saved_and_cloned():
    model = lp.PCA(0.9, whiten=True, svd_solver="covariance_eigh", random_state=0).fit(X)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.transform(X), model.transform(X))
    assert again.noise_variance_ == model.noise_variance_
    assert again.score(X) == model.score(X)
    assert clone(again).get_params() == model.get_params()
    assert not hasattr(clone(again), "noise_variance_")


def test_rows_of_a_cluster_stay_there_whatever_is_asked_for():
    arrays, distributed = pytest.importorskip("dask.array"), pytest.importorskip("distributed")
    rows = arrays.from_array(X, chunks=(50, 10))
    settings = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.Client(processes=False, **settings) as client:
        for options in (
            {"whiten": True},
            {"svd_solver": "randomized"},
            {"svd_solver": "arpack"},
            {"n_components": "mle"},
            {"n_components": 0.9},
        ):
            model = lp.PCA(**{"n_components": 3} | options, engine=client, random_state=0).fit(rows)
            same = lp.PCA(**{"n_components": 3} | options, random_state=0).fit(X)
            assert model.result_.run["held"]
            assert not same.result_.run["held"]
            assert model.noise_variance_ == pytest.approx(same.noise_variance_)
            np.testing.assert_allclose(model.components_, same.components_, atol=1e-7)
            np.testing.assert_allclose(model.transform(X), same.transform(X), atol=1e-6)
        model = lp.PCA(3, engine=client, random_state=0).set_output(transform="pandas")
        scores = [model.fit_transform(rows), model.transform(rows)]
        assert [type(each) for each in scores] == [arrays.Array] * 2
        frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(10)])
        tables = pytest.importorskip("dask.dataframe")
        read = lp.read(tables.from_pandas(frame.assign(y=0), npartitions=2), label="y")
        assert type(model.fit_transform(read)).__module__.startswith("dask.")
        assert isinstance(model.transform(X), pd.DataFrame)
