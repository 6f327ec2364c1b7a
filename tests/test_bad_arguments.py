"""Mistakes get one clear error that names the argument, its value, and what to do."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import ENGINES

import localpower as lp

A = np.random.default_rng(0).standard_normal((20, 6))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rank": 0}, ValueError, r"rank=0 must be 1 or more"),
        ({"rank": -3}, ValueError, r"rank=-3"),
        ({"rank": lambda rows, columns: 7}, ValueError, r"rank=7 is more than"),
        ({"rank": lambda rows, columns: 2.5}, TypeError, r"rank=2\.5 must be a whole number"),
        ({"rank": 7}, ValueError, r"rank=7 is more than.*n_features=6.*take 1 to 6"),
        ({"rank": 2.5}, TypeError, r"rank=2\.5 must be a whole number"),
        ({"rank": "3"}, TypeError, r"rank='3'"),
        ({"rank": True}, TypeError, r"rank=True must be a whole number"),
        ({"method": "foo"}, ValueError, r"method='foo' is not known: take one of .*local_power"),
        ({"max_rounds": 0}, ValueError, r"max_rounds=0"),
        ({"tol": -1}, ValueError, r"tol=-1"),
        ({"tol": float("nan")}, ValueError, r"tol=nan"),
        ({"tol": "a"}, ValueError, r"tol='a'"),
        ({"tol": "small"}, ValueError, r"tol='small'"),
        ({"rng": -1}, ValueError, r"rng=-1 must be a non-negative whole number"),
        ({"rng": "a"}, ValueError, r"rng='a'"),
        ({"method": []}, TypeError, r"method=\[\] must be a name such as 'auto', or a method"),
        (
            {"method": lp.LocalPower},
            TypeError,
            r"method=<class .* must be .* localpower\.LocalPower",
        ),
        ({"partition": "alphabetic"}, ValueError, r"partition='alphabetic' is not known: take one"),
        ({"budget": 5}, TypeError, r"budget=5 must be localpower\.Budget\(\.\.\.\), or None"),
        ({"faults": {}}, TypeError, r"faults=\{\} must be localpower\.Faults\(\.\.\.\), or None"),
        ({"checkpoint": 5}, TypeError, r"checkpoint=5 must be the path of a file"),
        ({"scale": []}, ValueError, r"scale=\[\] is not known"),
        ({"callback": 5}, TypeError, r"callback=5 must be a function"),
        ({"center": "no"}, TypeError, r"center='no' must be True or False"),
        ({"workers": 0}, ValueError, r"workers=0"),
        ({"scale": "unit"}, ValueError, r"scale='unit'.*max, minmax, std"),
        ({"engine": "cloud"}, ValueError, r"engine='cloud' is not known.*threads"),
        ({"engine": "threads:0"}, ValueError, r"engine='threads:0'"),
        ({"engine": 3}, ValueError, r"engine=3"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        lp.svd(A, **({"rank": 3} | options))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"width": 2}, ValueError, r"width=2 is below rank=3"),
        ({"width": 7}, ValueError, r"width=7 is more than n_features=6"),
        ({"width": 2.5}, TypeError, r"width=2\.5 must be a whole number"),
        ({"steps": 0}, ValueError, r"steps=0"),
        ({"steps": 1.5}, TypeError, r"steps=1\.5"),
        ({"schedule": "sometimes"}, ValueError, r"schedule='sometimes' is not known"),
        ({"schedule": "halving:0"}, ValueError, r"schedule='halving:0'"),
        ({"schedule": "halving:x"}, ValueError, r"schedule='halving:x'"),
        ({"schedule": set()}, ValueError, r"schedule=\[0\] needs"),
        ({"schedule": {-1, 4}}, ValueError, r"schedule=\[-1, 0, 4\]"),
        ({"schedule": {0, 2.5}}, TypeError, r"schedule=.*must be"),
        ({"schedule": 5}, TypeError, r"schedule=5 must be"),
        ({"schedule": lambda t: 0}, ValueError, r"schedule ends before the first round"),
        ({"schedule": lambda t: 2.5}, TypeError, r"schedule\(0\) gave 2\.5"),
        ({"schedule": lambda t: None}, TypeError, r"schedule\(0\) gave None"),
        ({"align": "left"}, ValueError, r"align='left' is not known.*procrustes, signs, none"),
        ({"align": ["signs"]}, ValueError, r"align=\['signs'\] is not known"),
        ({"align_at": "home"}, ValueError, r"align_at='home'.*server, worker"),
        ({"wire": "float16"}, ValueError, r"wire='float16' is not known.*bfloat16"),
    ],
)
def test_bad_options_of_a_method(options, error, message):
    with pytest.raises(error, match=message):
        lp.svd(A, 3, lp.LocalPower(**options))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("local_power:steps=0", r"steps=0 must be 1 or more"),
        ("local_power:steps=1.5", r"'steps=1\.5' must be a whole number"),
        ("local_power:steps=", r"'steps=' must be a whole number"),
        ("local_power:steps", r"'steps' is not an option of it: take some of steps, schedule"),
        ("local_power:speed=3", r"'speed=3' is not an option of it: take some of steps, schedule"),
        ("local_power:schedule=sometimes", r"schedule='sometimes' is not known: take one of"),
        ("local_power:schedule={0,x}", r"'schedule=\{0,x\}' cannot be read.*\{0,4,8\}"),
        ("local_power:schedule={}", r"'schedule=\{\}' cannot be read.*\{0,4,8\}"),
        ("local_power:schedule={-1,4}", r"schedule=\[-1, 0, 4\]"),
        ("local_power:align=left", r"align='left' is not known: take one of procrustes"),
        ("local_ritz:proposal=best", r"proposal='best' is not known: take one of"),
        ("local_ritz:wire=float16", r"wire='float16' is not known: take one of float64, float32"),
        ("local power", r"is not known: take one of .*local_power"),
        (":steps=3", r"is not known: take one of .*local_power"),
    ],
)
def test_texts_of_methods_that_cannot_be_read_are_quoted_with_the_remedy(method, message):
    with pytest.raises(ValueError, match=message) as caught:
        lp.svd(A, 3, method)
    assert f"method={method!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (lp.Budget, {"bytes": 0}, ValueError, r"Budget bytes=0 must be a number above 0, or None"),
        (lp.Budget, {"seconds": -1}, ValueError, r"Budget seconds=-1 must be a number above 0"),
        (lp.Budget, {"seconds": "1"}, ValueError, r"Budget seconds='1' must be a number above 0"),
        (lp.Faults, {"deadline": 0}, ValueError, r"Faults deadline=0 must be a number above 0"),
        (lp.Faults, {"retries": -1}, ValueError, r"Faults retries=-1 must be 0 or more"),
        (lp.Faults, {"retries": 1.5}, TypeError, r"Faults retries=1\.5 must be a whole number"),
        (lp.Faults, {"on_loss": "cry"}, ValueError, r"Faults on_loss='cry' .*: take one of stop"),
        (lp.Checkpoint, {"path": "a", "every": 0}, ValueError, r"Checkpoint every=0 must be 1 or"),
        (lp.Checkpoint, {"path": None}, TypeError, r"checkpoint=None must be the path of a file"),
    ],
)
def test_options_that_travel_together_are_checked_where_they_are_made(
    kind, options, error, message
):
    with pytest.raises(error, match=message):
        kind(**options)


def bad(value, row=7, column=2):
    X = A.copy()
    X[row, column] = value
    return X


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("partition", ["contiguous", "shuffled"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csc_matrix, np.float32])
def test_values_that_are_not_finite_are_found_where_they_stand(engine, value, partition, form):
    with pytest.raises(lp.DataError, match=r"NaN or infinity in data, row 7, column 2"):
        lp.svd(form(bad(value)), 2, workers=3, partition=partition, engine=engine, rng=0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([A[:3], A[3:, :5]], r"data\[1\] has 5 columns where data\[0\] has 6"),
        (np.empty((0, 3)), "empty"),
        (np.empty((3, 0)), "empty"),
        ([], "dimension"),
        (A[0], r"data has 1 dimension\(s\), not 2"),
        (A.reshape(2, 10, 6), "3 dimension"),
        (A.astype(object), "dtype object"),
        (A.astype(complex), "dtype complex128"),
        (np.array([["a", "b"], ["c", "d"]]), "not real numbers"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "not real numbers"),
        ([[1.0, 2.0], [3.0]], "rows of different lengths"),
        (5.0, "0 dimension"),
        (None, "data is None, not rows; give an array"),
    ],
)
def test_bad_data(data, message):
    with pytest.raises(ValueError, match=message):
        lp.svd(data, 1)


def test_options_are_checked_before_data_are_read():
    with pytest.raises(ValueError, match="method="):
        lp.svd("/nowhere/at/all.npy", 3, method="foo")


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nowhere"):
        lp.svd("/nowhere/at/all.npy", 3)


def test_an_unknown_option_of_pca_is_refused():
    with pytest.raises(TypeError, match="ranks"):
        lp.pca(A, 2, ranks=3)


def test_the_users_arrays_are_left_alone():
    X, S = A.copy(), sp.csr_array(A)
    before = S.copy()
    for data in (X, S):
        lp.pca(data, 2, scale="std", partition="shuffled", workers=3, rng=0)
    assert (X == A).all()
    assert (S.toarray() == before.toarray()).all()
