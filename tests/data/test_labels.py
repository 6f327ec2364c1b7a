"""Labels: set aside at the fit, kept beside rows, and not needed by new rows of a model."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

import localpower as lp
from localpower.cli.commands import main
from localpower.data.hints import units_hint

X = np.random.default_rng(1).standard_normal((40, 4)) * np.array([4, 3, 2, 1])
KINDS = np.arange(40) % 3
FRAME = pd.DataFrame(X, columns=list("abcd"))


def write(frame, path, header):
    if path.suffix == ".npy":
        np.save(path, frame.to_numpy())
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, header=header)


CASES = {
    "csv, name": (".csv", "target", True),
    "csv, number": (".csv", "4", True),
    "csv, from the end": (".csv", "-1", True),
    "csv without names": (".csv", "4", False),
    "parquet": (".parquet", "target", True),
    "npy": (".npy", "4", True),
    "npy, from the end": (".npy", "-1", True),
}


@pytest.mark.filterwarnings("error::localpower.DataHint")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_new_rows_need_no_label(tmp_path, case, first):
    suffix, label, header = CASES[case]
    frame = FRAME.assign(target=KINDS)
    if first:
        frame = frame[["target", *"abcd"]]
        label = {"4": "0", "-1": "-5"}.get(label, label)
    old, new = tmp_path / f"old{suffix}", tmp_path / f"new{suffix}"
    write(frame, old, header)
    write(FRAME, new, header)
    how = ["-k", "2", "--center", "--seed", "0", f"--label={label}", "-o", str(tmp_path / "model")]
    assert main(["fit", str(old), *how]) == 0
    scores = []
    for path in (old, new):
        out = tmp_path / f"{path.stem}.scores.npy"
        assert main(["transform", str(tmp_path / "model"), str(path), "-o", str(out)]) == 0
        scores.append(np.load(out))
    np.testing.assert_array_equal(*scores)
    np.testing.assert_allclose(scores[0], lp.pca(X, 2, rng=0).transform(X), atol=1e-8)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_a_model_of_rows_with_labels_takes_frames_with_and_without(make):
    frame = make({**FRAME, "target": KINDS})
    rows = lp.read(frame, label="target")
    model = lp.pca(rows, 2, rng=0)
    without = model.transform(make({**FRAME}))
    with pytest.warns(lp.DataHint, match="left out: 'target'"):
        np.testing.assert_array_equal(model.transform(frame), without)
    np.testing.assert_array_equal(model.transform(rows), without)
    np.testing.assert_array_equal(rows.labels, KINDS)


@pytest.mark.filterwarnings("ignore::localpower.DataHint")
def test_a_model_of_20000_named_columns_knows_their_names():
    genes = [f"gene {number}" for number in range(20_000)]
    rows = np.random.default_rng(0).standard_normal((30, len(genes)), np.float32)
    frame = pd.concat(
        [pd.DataFrame(rows, columns=genes), pd.Series(KINDS[:30], name="kind")], axis=1
    )
    model = lp.pca(lp.read(frame, label="kind"), 2, rng=0)
    np.testing.assert_array_equal(model.transform(frame), model.transform(rows))
    page = model.report(data=frame, color="kind").html
    assert genes[np.abs(model.components[0]).argmax()] in page
    assert "Coloured by kind." in page


@pytest.mark.filterwarnings("ignore::localpower.DataHint")
def test_a_page_takes_rows_as_transform_does_and_refuses_a_label_that_is_not_there(
    tmp_path, capsys
):
    FRAME.assign(id=KINDS, target=KINDS).to_csv(tmp_path / "old.csv", index=False)
    np.save(tmp_path / "new.npy", X)
    old, new, model = str(tmp_path / "old.csv"), str(tmp_path / "new.npy"), str(tmp_path / "model")
    main(["fit", old, "-k", "2", "--center", "--label=target", "--drop=id", "-o", model])
    page = ["report", model, "-o", f"{model}.html", "--data"]
    assert main([*page, new]) == 0
    assert main([*page, old, "--label=id"]) == 0
    assert main([*page, old, "--label=kind"]) == 2
    assert "--label kind: DATA has no such column" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::localpower.DataHint")
def test_gaps_are_filled_with_the_same_means_with_and_without_a_cache(tmp_path):
    FRAME.to_csv(tmp_path / "old.csv", index=False)
    FRAME.assign(a=np.where(KINDS == 1, np.nan, X[:, 0])).to_csv(tmp_path / "new.csv", index=False)
    model = str(tmp_path / "model")
    main(["fit", str(tmp_path / "old.csv"), "-k", "2", "--center", "-o", model])
    scores = []
    for more in ([], ["--cache", str(tmp_path / "cache")]):
        out = str(tmp_path / "s.npy")
        how = [str(tmp_path / "new.csv"), "-o", out, "--missing=mean", *more]
        assert main(["transform", model, *how]) == 0
        scores.append(np.load(out))
    np.testing.assert_array_equal(*scores)


@pytest.mark.filterwarnings("ignore::localpower.DataHint")
def test_new_rows_are_read_as_the_fitted_ones_in_what_is_not_asked_for(tmp_path, capsys):
    old, new, model = str(tmp_path / "old.csv"), str(tmp_path / "new.csv"), str(tmp_path / "model")
    rows = FRAME.assign(kind="x")[["kind", *"abcd"]]
    rows.to_csv(old, index=False, header=False, sep=";")
    rows.mask(rows == rows.loc[3, "b"]).to_csv(new, index=False, header=False, sep=";")
    read = ["--drop=0", "--delimiter=;", "--no-header"]
    assert main(["fit", old, *read, "-k", "2", "--center", "--seed", "0", "-o", model]) == 0
    out = str(tmp_path / "scores.csv")
    assert main(["transform", model, new, "-o", out, "--missing=drop"]) == 0
    scores = pd.read_csv(out)
    assert scores.row.tolist() == [row for row in range(40) if row != 3]
    expected = lp.pca(X, 2, rng=0).transform(X)[scores.row]
    np.testing.assert_allclose(scores[["pc1", "pc2"]], expected, atol=1e-8)
    page = ["report", model, "-o", f"{model}.html", "--data", new]
    assert main([*page, "--missing=mean"]) == 0
    assert main(["transform", model, new, "-o", out, "--columns=1,2,3,4"]) == 1  # and not --drop
    assert "line 4, column 2: the value is missing" in capsys.readouterr().err


def test_rows_of_the_wrong_width_are_still_refused(tmp_path, capsys):
    np.save(tmp_path / "old.npy", np.column_stack([X, KINDS]))
    np.save(tmp_path / "new.npy", X[:, :3])
    model = str(tmp_path / "model")
    main(["fit", str(tmp_path / "old.npy"), "-k", "2", "--label=4", "-o", model])
    assert main(["transform", model, str(tmp_path / "new.npy"), "-o", f"{model}.npy"]) == 1
    assert "no column '4' among its 3" in capsys.readouterr().err


def test_a_source_says_in_one_line_what_it_is(tmp_path):
    FRAME.assign(target=KINDS, b=np.where(KINDS == 1, np.nan, X[:, 1])).to_csv(
        tmp_path / "x.csv", index=False
    )
    path = tmp_path / "x.csv"
    with pytest.warns(lp.DataHint):
        rows = lp.read(path, label="target", missing="drop")
    assert repr(rows) == (
        f"<Source of {path}: 27 rows × 4 columns of float64, label='target', missing='drop'; 13 "
        "rows were left out, as values were missing>"
    )
    assert repr(lp.read(X)) == "<Source of data: 40 rows × 4 columns of float64>"
    several = lp.read([sparse.csr_array(X.astype(np.float32))] * 3)
    assert repr(several) == "<Source of data[0] and 2 more: 120 rows × 4 columns of float32>"


def test_columns_of_very_different_size_are_told_with_the_remedy():
    units = FRAME * np.array([1e-5, 1, 1e4, 1e4])
    with pytest.warns(lp.DataHint, match=r"of 'a' to .* of 'c', .* give scale='std'"):
        lp.pca(units, 2, rng=0)
    for seed in range(9):  # eight orders, whatever these few rows make of them
        rows = np.random.default_rng(seed).standard_normal((60, 5)) * [1e-4, 1e-4, 1, 1e4, 1e4]
        with pytest.warns(lp.DataHint, match="deviations of columns differ very much"):
            lp.pca(pd.DataFrame(rows, columns=list("abcde")), 2, rng=0)
    large = FRAME * np.array([1, 1, 1, 1e9])
    with pytest.warns(lp.DataHint, match="first component is column 'd'"):
        lp.pca(large, 2, rng=0)


@pytest.mark.filterwarnings("error::localpower.DataHint")
def test_no_hint_about_units_without_cause():
    lp.pca(FRAME * np.array([1e-3, 1, 1e4, 1e4]), 2, rng=0)
    lp.pca(FRAME * np.array([1e-5, 1, 1e4, 1e4]), 2, scale="std", rng=0)
    lp.pca(X * np.array([1e-5, 1, 1e4, 1e4]), 2, rng=0)  # without names, units are not known
    lp.pca(FRAME.assign(constant=7.0), 2, rng=0)
    assert units_hint(("a", "b"), np.array([0.0, 3.0])) is None
    assert units_hint(("a", "b"), np.array([1.0, 0.49e8])) is None
    assert units_hint(("a", "b"), np.array([1.0, 0.51e8])) is not None


def test_errors_name_the_call_that_takes_their_options(tmp_path):
    path = tmp_path / "x.csv"
    FRAME.assign(name="x").to_csv(path, index=False)
    with pytest.raises(
        lp.DataError, match=r"drop=\['name'\].* \(pass localpower.read\(data, drop=…"
    ):
        lp.pca(path, 2)
    with pytest.raises(lp.DataError) as error:
        lp.read(path)
    assert "localpower.read" not in str(error.value)
    with pytest.raises(lp.DataError, match="or missing='mean'") as error:
        lp.pca(X, 2, rng=0).transform(np.where(X > 2, np.nan, X))
    assert str(error.value).count("localpower.read(") == 1
    with pytest.raises(ValueError, match="memory='much' is not a size: give bytes, or text"):
        lp.read(X, memory="much")
    with pytest.raises(ValueError, match="memory=nan is not a size: give bytes, or text"):
        lp.read(X, memory=float("nan"))
    assert lp.read(X, memory=2e9).memory == 2_000_000_000


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"header": "no"}, TypeError, "header='no' must be True or False"),
        ({"header": 0}, TypeError, "header=0 must be True or False"),
        ({"zero_based": 1}, TypeError, "zero_based=1 must be True or False"),
        ({"n_features": -1}, ValueError, "n_features=-1 must be 0 or more"),
        ({"n_features": "4"}, TypeError, "n_features='4' must be a whole number"),
        ({"columns": [True, False, True, True]}, TypeError, "columns= has True, which is no name"),
        ({"columns": np.array([True] * 4)}, TypeError, r"numpy\.flatnonzero\(mask\) for a mask"),
        ({"drop": True}, TypeError, "drop= has True, which is no name or number"),
        ({"drop": slice(2)}, TypeError, r"drop= has slice.* a list such as \['id', 0\]"),
    ],
)
def test_what_is_no_option_of_reading_is_refused_and_not_guessed_at(options, error, message):
    with pytest.raises(error, match=message):
        lp.read(X, **options)


def test_a_mask_of_columns_is_given_as_their_numbers():
    mask = np.array([True, False, True, False])
    with lp.read(FRAME, columns=np.flatnonzero(mask)) as rows:
        assert rows.tables[0].names == tuple(FRAME.columns[mask])
