"""Missing values of every kind of data: left out, filled with means of columns, or refused."""

import sys

import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest
import zarr
from scipy import sparse

import localpower as lp
from localpower.cli.commands import main
from localpower.data import source as sources
from localpower.data import spool
from localpower.data.source import open_source
from localpower.worker.shard import Shard

RNG = np.random.default_rng(3)
FULL = RNG.standard_normal((60, 4)) + np.array([0, 10, 1e3, -5])
HOLES = RNG.random(FULL.shape) < 0.1
HOLES[[0, -1], [1, 2]] = True
X = np.where(HOLES, np.nan, FULL)
KEPT = ~HOLES.any(axis=1)
MEANS = np.nanmean(X, axis=0)
FILLED = np.where(HOLES, MEANS, FULL)
FRAME = pd.DataFrame(X, columns=list("abcd"))


def written(suffix, write):
    def make(folder):
        path = folder / f"rows{suffix}"
        write(path)
        return path

    return make


def write_hdf5(path, **how):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, **how)


def write_svmlight(path):
    lines = (" ".join(f"{j + 1}:{value!r}" for j, value in enumerate(map(float, row))) for row in X)
    path.write_text("".join(f"1 {line}\n" for line in lines))


def nullable(values=X):
    return [[None if value != value else float(value) for value in column] for column in values.T]


def arrow():
    return pa.table(dict(zip("abcd", map(pa.array, nullable()), strict=True)))


def memmap(folder):
    np.save(folder / "mapped.npy", X)
    return np.load(folder / "mapped.npy", mmap_mode="r")


KINDS = {
    "array": lambda _: X,
    "columns first": lambda _: np.asfortranarray(X),
    "masked": lambda _: np.ma.masked_array(FULL, HOLES),
    "list of arrays": lambda _: [X[:20], X[20:]],
    "function": lambda _: [X[:20], X[20:]].__getitem__,
    "generator": lambda _: (X[i : i + 7] for i in range(0, 60, 7)),
    "memmap": memmap,
    "sparse": lambda _: sparse.csr_array(X),
    "sparse, by columns": lambda _: sparse.csc_array(X),
    "pandas": lambda _: FRAME,
    "pandas, nullable": lambda _: FRAME.astype("Float64"),
    "pandas, arrow": lambda _: FRAME.astype("float64[pyarrow]"),
    "polars": lambda _: pl.DataFrame(dict(zip("abcd", nullable(), strict=True))),
    "polars, nan": lambda _: pl.DataFrame(dict(zip("abcd", X.T, strict=True))),
    "arrow": lambda _: arrow(),
    "dask array": lambda _: da.from_array(X, (17, 3)),
    "dask frame": lambda _: dd.from_pandas(FRAME, npartitions=3),
    "csv": written(".csv", lambda path: FRAME.to_csv(path, index=False)),
    "csv, words": written(".csv", lambda path: FRAME.to_csv(path, index=False, na_rep="NA")),
    "npy": written(".npy", lambda path: np.save(path, X)),
    "npz": written(".npz", lambda path: np.savez_compressed(path, X=X)),
    "npz, sparse": written(".npz", lambda path: sparse.save_npz(path, sparse.csr_array(X))),
    "svmlight": written(".svm", write_svmlight),
    "parquet": written(".parquet", FRAME.to_parquet),
    "feather": written(".feather", lambda path: pa.feather.write_feather(arrow(), path)),
    "hdf5": written(".h5", write_hdf5),
    "hdf5, gzip": written(".h5", lambda path: write_hdf5(path, chunks=(9, 4), compression="gzip")),
    "zarr": written(".zarr", lambda path: zarr.save_array(path, X)),
}


def rows_of(source):
    blocks = Shard(source.pieces, source.columns, source.dtype).blocks()
    return np.vstack([b if isinstance(b, np.ndarray) else b.toarray() for b in blocks])


@pytest.fixture(params=["memory", "files"])
def room(request, monkeypatch):
    """Blocks are held in memory, or all go to files."""
    if request.param == "files":
        monkeypatch.setattr(sources, "ROWS_SHARE", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_gaps_are_left_out(tmp_path, room, kind):
    data = KINDS[kind](tmp_path)
    with pytest.warns(lp.DataHint, match=f"{(~KEPT).sum()} of 60 rows are left out"):
        source = open_source(data, options=lp.data.blocks.Options(missing="drop"), shards=2)
    np.testing.assert_array_equal(rows_of(source), FULL[KEPT])
    np.testing.assert_array_equal(source.left_out, np.flatnonzero(~KEPT))
    assert "values_filled" not in source.missing


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_are_filled_with_the_mean_of_all_values_of_the_column(tmp_path, room, kind):
    data = KINDS[kind](tmp_path)
    with pytest.warns(lp.DataHint, match=f"{HOLES.sum()} missing values were filled with means"):
        source = open_source(data, options=lp.data.blocks.Options(missing="mean"), shards=2)
    np.testing.assert_allclose(rows_of(source), FILLED, rtol=1e-13)
    np.testing.assert_array_equal(rows_of(source)[~HOLES], FULL[~HOLES])
    assert source.missing == {"values_filled": HOLES.sum()}
    assert not len(source.left_out)
    np.testing.assert_array_equal(np.isnan(X), HOLES)  # the user's own are not changed
    np.testing.assert_array_equal(FRAME.isna(), HOLES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [None, "error"])
def test_gaps_are_refused_by_default(tmp_path, kind, how):
    data = KINDS[kind](tmp_path)
    with pytest.raises(lp.DataError, match=r"(?i)missing|nan|masked"):
        lp.svd(lp.read(data, missing=how) if kind != "function" else data, 1, workers=2)


@pytest.mark.parametrize("how", ["drop", "mean", "error"])
@pytest.mark.parametrize("kind", ["array", "csv", "npy", "sparse", "parquet"])
def test_data_without_gaps_are_as_they_were(tmp_path, kind, how, recwarn):
    parts = {"csv": ("to_csv", {"index": False}), "parquet": ("to_parquet", {})}
    whole = pd.DataFrame(FULL, columns=list("abcd"))
    data = {"array": FULL, "sparse": sparse.csr_array(FULL)}.get(kind, tmp_path / f"x.{kind}")
    if kind in parts:
        getattr(whole, parts[kind][0])(data, **parts[kind][1])
    elif kind == "npy":
        np.save(data, FULL)
    source = lp.read(data, missing=how)
    np.testing.assert_array_equal(rows_of(source), FULL)
    assert "values_filled" not in source.missing
    assert not len(source.left_out)
    assert not len(recwarn)
    if kind == "array":
        assert np.shares_memory(source.pieces[0], FULL)


@pytest.mark.parametrize("engine", ["inline", "threads", "processes:2"])
@pytest.mark.parametrize("how", ["drop", "mean"])
def test_a_fit_is_that_of_rows_prepared_by_hand_and_says_what_was_done(engine, how):
    with pytest.warns(lp.DataHint):
        rows = lp.read([X[:25], X[25:]], missing=how)
    found = lp.pca(rows, 2, method="gram", engine=engine, rng=0)
    ours = FILLED if how == "mean" else FULL[KEPT]
    centred = ours - ours.mean(axis=0)
    _, values, V = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(found.singular_values, values[:2], rtol=1e-12)
    np.testing.assert_allclose(np.abs(found.components @ V[:2].T), np.eye(2), atol=1e-9)
    counts = {"rows_left_out": int((~KEPT).sum())}, {"values_filled": int(HOLES.sum())}
    assert found.run["missing"] == counts[how == "mean"]
    assert {"drop": "rows were left out", "mean": "missing values were filled"}[how] in str(found)
    assert "missing" not in lp.pca(FULL, 2, rng=0).run


def test_means_are_of_all_files_and_the_cache_keeps_gaps(tmp_path):
    first, second = FRAME[:30], FRAME[30:]
    first.to_csv(tmp_path / "1.csv", index=False)
    second.to_csv(tmp_path / "2.csv", index=False)
    how = {"missing": "mean", "cache": tmp_path / "cache"}
    for _ in range(2):
        with pytest.warns(lp.DataHint, match="data: .* were filled"):
            both = lp.read([tmp_path / "1.csv", tmp_path / "2.csv"], **how)
        np.testing.assert_allclose(rows_of(both), FILLED, rtol=1e-13)
        with pytest.warns(lp.DataHint, match=r"1\.csv: .* were filled"):
            one = lp.read(tmp_path / "1.csv", **how)  # from the same cache
        alone = np.where(HOLES[:30], np.nanmean(X[:30], axis=0), FULL[:30])
        np.testing.assert_allclose(rows_of(one), alone, rtol=1e-13)


def test_a_cache_tells_again_what_was_left_out(tmp_path):
    FRAME.to_csv(tmp_path / "1.csv", index=False)
    for _ in range(2):
        with pytest.warns(lp.DataHint, match="of 60 rows are left out"):
            source = lp.read(tmp_path / "1.csv", missing="drop", cache=tmp_path / "cache")
        np.testing.assert_array_equal(source.left_out, np.flatnonzero(~KEPT))


def test_a_column_without_any_value_has_no_mean():
    frame = FRAME.assign(empty=np.nan)
    with pytest.raises(lp.DataError, match=r"column 'empty' has no value .* drop=\['empty'\]"):
        lp.read(frame, missing="mean")
    with pytest.raises(lp.DataError, match="missing in each of its 60 rows"):
        lp.read(frame, missing="drop")
    with pytest.warns(lp.DataHint, match="filled"):
        lp.read(frame, drop=["empty"], missing="mean")


def test_rows_are_named_by_their_place_before_some_were_left_out():
    rows = FULL.copy()
    rows[[2, 5], 1] = np.nan
    rows[7, 3] = np.inf  # not missing: refused, and told where it is
    with pytest.warns(lp.DataHint, match="2 of 120"):
        source = lp.read([FULL, rows], missing="drop")
    assert source.where(61) == "data[1], row 1"
    assert source.where(62) == "data[1], row 3"
    np.testing.assert_array_equal(source.left_out, [62, 65])
    with pytest.raises(lp.DataError, match=r"infinity in data\[1\], row 7, column 3"):
        lp.pca(source, 1, rng=0)


def test_only_the_columns_taken_count_and_labels_stay_beside_their_rows(tmp_path):
    frame = FRAME.assign(kind=np.where(np.arange(60) % 2, "odd", "even"))
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    kept = ~HOLES[:, :2].any(axis=1)
    for data in (frame, pl.from_pandas(frame), tmp_path / "x.csv", tmp_path / "x.parquet"):
        with pytest.warns(lp.DataHint, match=f"{(~kept).sum()} of 60"):
            source = lp.read(data, drop=["c", "d"], label="kind", missing="drop")
        np.testing.assert_array_equal(rows_of(source), FULL[kept][:, :2])
        np.testing.assert_array_equal(source.labels, frame["kind"][kept])


LABELS = {"number": [1, None, 3], "text": ["p", None, "r"]}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, "csv", "parquet"])
@pytest.mark.parametrize("missing", [None, "drop"])
def test_a_missing_label_does_not_cost_the_row(tmp_path, make, kind, missing):
    columns = {"a": [1.0, 2.0, 3.0], "y": LABELS[kind]}
    if isinstance(make, str):
        data = tmp_path / f"x.{make}"
        save = "to_csv" if make == "csv" else "to_parquet"
        getattr(pd.DataFrame(columns), save)(data, index=False)
    else:
        data = make(columns)
    source = lp.read(data, label="y", missing=missing)
    assert source.rows == 3
    expected = ["p", "", "r"] if kind == "text" else [1, np.nan, 3]
    np.testing.assert_array_equal(source.labels, expected)


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table])
def test_whole_numbers_and_truth_values_may_be_missing(make):
    data = make({"a": [1, None, 4], "b": [True, False, None]})
    with pytest.warns(lp.DataHint, match="2 missing values"):
        source = lp.read(data, missing="mean")
    np.testing.assert_array_equal(rows_of(source), [[1, 1], [2.5, 0], [4, 0.5]])


def test_single_precision_stays_single(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    with pytest.warns(lp.DataHint):
        source = lp.read(tmp_path / "x.npy", missing="mean")
    assert source.dtype == np.float32
    np.testing.assert_allclose(rows_of(source), FILLED, rtol=1e-6)


def test_sparse_zeros_are_values():
    A = sparse.csr_array(np.array([[0, 4.0], [np.nan, 0], [3, 5], [0, 0]]))
    with pytest.warns(lp.DataHint, match="1 missing value was filled with the mean of its column"):
        source = lp.read(A, missing="mean")
    np.testing.assert_array_equal(rows_of(source), [[0, 4], [1, 0], [3, 5], [0, 0]])
    with pytest.warns(lp.DataHint, match="1 of 4 rows is left out"):
        source = lp.read(A, missing="drop")
    np.testing.assert_array_equal(rows_of(source), [[0, 4], [3, 5], [0, 0]])


def test_small_blocks_of_which_some_have_gaps_are_joined_and_filled(monkeypatch):
    monkeypatch.setattr(spool, "BLOCK_BYTES", 2048)
    with pytest.warns(lp.DataHint):
        source = lp.read((X[i : i + 1] for i in range(60)), missing="mean")
    np.testing.assert_allclose(rows_of(source), FILLED, rtol=1e-13)


def test_gaps_are_found_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    FRAME.to_csv(tmp_path / "x.csv", index=False)
    with pytest.warns(lp.DataHint):
        source = lp.read(tmp_path / "x.csv", missing="mean")
    np.testing.assert_allclose(rows_of(source), FILLED, rtol=1e-13)


def test_other_ways_are_refused():
    with pytest.raises(ValueError, match="missing='zero' is not known: take 'drop', 'mean' or"):
        lp.read(X, missing="zero")


@pytest.mark.filterwarnings("default::localpower.DataHint")
def test_new_rows_of_a_model_are_filled_with_its_means(tmp_path):
    FRAME.to_csv(tmp_path / "old.csv", index=False)
    FRAME[["d", "a", "c", "b"]][:1].to_csv(tmp_path / "new.csv", index=False)  # one row, a gap
    model, out = str(tmp_path / "model"), tmp_path / "scores.npy"
    how = ["-k", "2", "--center", "--missing", "mean", "--seed", "0", "-o", model]
    assert main(["fit", str(tmp_path / "old.csv"), *how]) == 0
    assert main(["transform", model, str(tmp_path / "new.csv"), "-o", str(out)]) == 0
    expected = lp.pca(FILLED, 2, rng=0).transform(FILLED[:1])
    np.testing.assert_allclose(np.load(out), expected, atol=1e-7)


def test_a_fit_of_rows_with_nan_names_the_option_that_leaves_them_out():
    with pytest.raises(
        lp.DataError, match=r"row 1, column 0 .*missing='drop' leaves out rows with"
    ):
        lp.pca(np.array([[1.0, 2.0], [np.nan, 3.0], [4.0, 4.0]]), 1)
