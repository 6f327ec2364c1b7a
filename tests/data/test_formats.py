"""The same rows give the same bits whatever they are read from."""

import bz2
import gzip
import lzma
import warnings
import zipfile
from itertools import pairwise

import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zarr
from helpers import same_bits
from scipy import sparse

import localpower as lp

ROWS, COLUMNS, WORKERS = 600, 12, 3
CUTS = [0, 7, 250, 251, 480, ROWS]  # not where shards are cut
DTYPES = ["float32", "float64"]
NAMES = [f"c{j}" for j in range(COLUMNS)]


def svd(data, workers=WORKERS, **options):
    return lp.svd(data, 3, workers=workers, max_rounds=4, engine="inline", rng=0, **options)


def dense(dtype, rows=ROWS, columns=COLUMNS):
    rng = np.random.default_rng(1)
    return (rng.standard_normal((rows, columns)) * np.arange(1, columns + 1)).astype(dtype)


def csr(dtype, rows=ROWS, columns=40):
    X = sparse.random_array((rows, columns), density=0.2, rng=2, dtype=np.float64, format="csr")
    X = X.tolil()
    X[0, 0] = X[0, columns - 1] = 0.5  # so that text tells where columns begin and end
    X = sparse.csr_array(X.tocsr().astype(dtype))
    assert X.nnz == np.count_nonzero(X.data)
    return X


def pieces(X, cuts=CUTS):
    return [X[a:b] for a, b in pairwise(cuts)]


# Dense


def npy(X, folder):
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def npy_by_columns(X, folder):
    np.save(folder / "x.npy", np.asfortranarray(X))
    return folder / "x.npy"


def npz(X, folder):
    np.savez(folder / "x.npz", X=X)
    return folder / "x.npz"


def npz_compressed(X, folder):
    np.save(folder / "X.npy", X)
    pack = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile(folder / "x.npz", "w", **pack) as archive:
        archive.write(folder / "X.npy", "X.npy")
    (folder / "X.npy").unlink()
    return folder / "x.npz"


def memmap(X, folder):
    mapped = np.memmap(folder / "x.raw", X.dtype, "w+", 64, X.shape)
    mapped[:] = X
    return mapped


def text(X, path, delimiter=",", header=""):
    np.savetxt(path, X, "%.17g", delimiter, header=header, comments="")
    return lp.read(path, dtype=X.dtype.name)


def csv(X, folder):
    return text(X, folder / "x.csv", header=",".join(NAMES))


def csv_without_names(X, folder):
    return text(X, folder / "x.csv")


def csv_gz(X, folder):
    return text(X, folder / "x.csv.gz")


def tsv(X, folder):
    return text(X, folder / "x.tsv", "\t", "\t".join(NAMES))


def table(X):
    return pa.table(dict(zip(NAMES, np.ascontiguousarray(X.T), strict=True)))


def parquet(X, folder):
    pq.write_table(table(X), folder / "x.parquet", row_group_size=101)
    return folder / "x.parquet"


def feather(X, folder):
    pyarrow.feather.write_feather(table(X), folder / "x.feather", chunksize=101)
    return folder / "x.feather"


def arrow_file(X, folder):
    with pa.ipc.new_file(folder / "x.arrow", table(X).schema) as file:
        file.write_table(table(X), max_chunksize=101)
    return folder / "x.arrow"


def arrow_stream(X, folder):
    with pa.ipc.new_stream(folder / "x.arrows", table(X).schema) as stream:
        stream.write_table(table(X), max_chunksize=101)
    return folder / "x.arrows"


def zarr_array(X, folder, version):
    array = zarr.create_array(
        folder / "x.zarr", shape=X.shape, chunks=(101, 5), dtype=X.dtype, zarr_format=version
    )
    array[:] = X
    return folder / "x.zarr"


def zarr_2(X, folder):
    return zarr_array(X, folder, 2)


def zarr_3(X, folder):
    return zarr_array(X, folder, 3)


def hdf5(X, folder, **options):
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("X", data=X, **options)
    return folder / "x.h5"


def hdf5_gzip(X, folder):
    return hdf5(X, folder, chunks=(101, 5), compression="gzip")


def pandas_frame(X, folder):
    return pd.DataFrame(X, columns=NAMES)


def pandas_columns(X, folder):
    return pd.DataFrame({name: X[:, j].copy() for j, name in enumerate(NAMES)})


def polars_frame(X, folder):
    return pl.DataFrame(dict(zip(NAMES, X.T, strict=True)))


def arrow_table(X, folder):
    return table(X)


def dask_array(X, folder):
    return da.from_array(X, chunks=(101, 5))


def dask_frame(X, folder):
    return dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=5)


def generator(X, folder):
    return (block for block in pieces(X))


def blocks_cut_again(X, folder):
    return pieces(X)


def rows_as_they_are(X, folder):
    return X


DENSE = [
    npy, npy_by_columns, npz, npz_compressed, memmap, csv, csv_without_names, csv_gz, tsv, parquet,
    feather, arrow_file, arrow_stream, zarr_2, zarr_3, hdf5, hdf5_gzip, pandas_frame,
    pandas_columns, polars_frame, arrow_table, dask_array, dask_frame, generator, blocks_cut_again,
]  # fmt: skip


@pytest.fixture(scope="module")
def dense_results():
    return {dtype: svd(dense(dtype)) for dtype in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", DENSE, ids=lambda form: form.__name__)
def test_dense_rows_give_the_same_bits_from_every_format(form, dtype, tmp_path, dense_results):
    result = svd(form(dense(dtype), tmp_path))
    assert result.run["dtype"] == dtype
    assert same_bits(result, dense_results[dtype])


# Sparse


def npz_csr(X, folder):
    sparse.save_npz(folder / "x.npz", X, compressed=False)
    return folder / "x.npz"


def npz_csr_compressed(X, folder):
    sparse.save_npz(folder / "x.npz", X)
    return folder / "x.npz"


def npz_csc(X, folder):
    sparse.save_npz(folder / "x.npz", X.tocsc())
    return folder / "x.npz"


def svmlight_text(X, first, labels=True):
    lines = []
    for number, (a, b) in enumerate(pairwise(X.indptr)):
        words = [f"{number % 3}"] if labels else []
        entries = zip(X.indices[a:b].tolist(), X.data[a:b].tolist(), strict=True)
        words += [f"{index + first}:{value!r}" for index, value in entries]
        lines.append(" ".join(words) + "\n")
    return "".join(lines).encode()


def svmlight(X, folder):
    (folder / "x.svm").write_bytes(svmlight_text(X, 1))
    return lp.read(folder / "x.svm", dtype=X.dtype.name)


def svmlight_from_0(X, folder):
    (folder / "x.svm").write_bytes(svmlight_text(X, 0))
    return lp.read(folder / "x.svm", dtype=X.dtype.name)


def svmlight_without_labels(X, folder):
    (folder / "x.svm").write_bytes(svmlight_text(X, 1, labels=False))
    return lp.read(folder / "x.svm", dtype=X.dtype.name)


def svmlight_without_suffix(X, folder):
    (folder / "rows").write_bytes(svmlight_text(X, 1))
    return lp.read(folder / "rows", dtype=X.dtype.name)


def svmlight_gz(X, folder):
    (folder / "x.svm.gz").write_bytes(gzip.compress(svmlight_text(X, 1)))
    return lp.read(folder / "x.svm.gz", dtype=X.dtype.name)


def svmlight_bz2(X, folder):
    (folder / "x.bz2").write_bytes(bz2.compress(svmlight_text(X, 1)))
    return lp.read(folder / "x.bz2", dtype=X.dtype.name)


def svmlight_xz(X, folder):
    (folder / "x.svm.xz").write_bytes(lzma.compress(svmlight_text(X, 0, labels=False)))
    return lp.read(folder / "x.svm.xz", dtype=X.dtype.name)


def hdf5_csr(X, folder):
    with h5py.File(folder / "x.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": X.shape})
        for part in ("data", "indices", "indptr"):
            group.create_dataset(part, data=getattr(X, part), compression="gzip")
    return folder / "x.h5ad"


def coo(X, folder):
    return X.tocoo()


def pandas_sparse(X, folder):
    return pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(X))


def dask_csr(X, folder):
    chunk = da.from_array(np.arange(ROWS).reshape(-1, 1), chunks=(101, 1))
    return chunk.map_blocks(
        lambda rows: sparse.csr_matrix(X[rows.ravel()]),
        chunks=(chunk.chunks[0], (X.shape[1],)),
        dtype=X.dtype,
        meta=np.empty((0, 0), X.dtype),
    )


SPARSE = [
    npz_csr, npz_csr_compressed, npz_csc, svmlight, svmlight_from_0, svmlight_without_labels,
    svmlight_without_suffix, svmlight_gz, svmlight_bz2, svmlight_xz, hdf5_csr, coo, pandas_sparse,
    dask_csr, generator, blocks_cut_again,
]  # fmt: skip


@pytest.fixture(scope="module")
def sparse_results():
    return {dtype: svd(csr(dtype)) for dtype in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", SPARSE, ids=lambda form: form.__name__)
def test_sparse_rows_give_the_same_bits_from_every_format(form, dtype, tmp_path, sparse_results):
    result = svd(form(csr(dtype), tmp_path))
    assert result.run["dtype"] == dtype
    assert same_bits(result, sparse_results[dtype])


# The user's own shards


def list_of_files(X, folder):
    for number, block in enumerate(pieces(X)):
        np.save(folder / f"{number}.npy", block)
    return sorted(folder.glob("*.npy"))


def glob_of_files(X, folder):
    list_of_files(X, folder)
    return str(folder / "*.npy")


def directory(X, folder):
    list_of_files(X, folder)
    (folder / "README").write_text("not rows")
    return folder


def list_of_formats(X, folder):
    for name in "abcd":
        (folder / name).mkdir()
    forms = [rows_as_they_are, npy, parquet, hdf5_gzip, npz_compressed]
    folders = [folder, *(folder / name for name in "abcd")]
    return [form(X, f) for form, X, f in zip(forms, pieces(X), folders, strict=True)]


def function(X, folder):
    return lambda number: pieces(X)[number]


def function_of_csr(X, folder):
    return lambda number: pieces(X)[number]


def directory_of_svmlight(X, folder):
    for number, block in enumerate(pieces(X)):
        (folder / f"{number}.svm").write_bytes(svmlight_text(block, 0))
    return lp.read(folder, dtype=X.dtype.name)


OWN = [
    (list_of_files, dense), (glob_of_files, dense), (directory, dense), (list_of_formats, dense),
    (function, dense), (function_of_csr, csr), (directory_of_svmlight, csr),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("form", "rows"), OWN, ids=lambda part: part.__name__)
def test_files_and_functions_give_the_bits_of_a_list_of_blocks(form, rows, dtype, tmp_path):
    X = rows(dtype)
    known = svd(pieces(X), workers=None)
    result = svd(form(X, tmp_path), workers=len(pieces(X)))
    assert known.run["workers"] == result.run["workers"] == len(pieces(X))
    assert same_bits(result, known)


@pytest.mark.parametrize("form", [list_of_files, directory, list_of_formats])
def test_files_cut_again_give_the_bits_of_the_array(form, tmp_path, dense_results):
    assert same_bits(svd(form(dense("float64"), tmp_path)), dense_results["float64"])


# More rows than memory

LITTLE = "16MiB"


@pytest.fixture(scope="module")
def many_rows():
    return np.round(dense("float64", 100_000, 50), 3)  # 40 MB


def svd_in_little_memory(data):
    """So few products that none of the ways to work forms a Gram matrix, as files never do."""
    result = lp.svd(
        data, 3, workers=WORKERS, method="dpi", max_rounds=2, engine="inline", rng=0, memory=LITTLE
    )
    assert set(result.run["kernels"]) == {"products"}
    return result


@pytest.fixture(scope="module")
def many_rows_result(many_rows):
    return svd_in_little_memory(many_rows)


def csv_fast(X, folder):
    columns = {f"c{j}": np.ascontiguousarray(column) for j, column in enumerate(X.T)}
    pyarrow.csv.write_csv(pa.table(columns), folder / "x.csv")
    return folder / "x.csv"


def parquet_many(X, folder):
    columns = {f"c{j}": np.ascontiguousarray(column) for j, column in enumerate(X.T)}
    pq.write_table(pa.table(columns), folder / "x.parquet", row_group_size=30_011)
    return folder / "x.parquet"


def hdf5_chunks(X, folder):
    return hdf5(X, folder, chunks=(3001, 17), compression="lzf")


def generator_many(X, folder):
    return (block for block in np.array_split(X, 11))


FORMS_OF_MANY = [npy, npy_by_columns, npz_compressed, csv_fast, parquet_many, hdf5_chunks]


@pytest.mark.parametrize("form", [*FORMS_OF_MANY, generator_many], ids=lambda form: form.__name__)
def test_rows_that_go_through_files_give_the_same_bits(form, tmp_path, many_rows, many_rows_result):
    result = svd_in_little_memory(form(many_rows, tmp_path))
    assert result.run["kept"] != "run"
    assert same_bits(result, many_rows_result)


@pytest.mark.parametrize("form", [npy, csv_fast, parquet_many, generator_many])
def test_rows_of_many_blocks_in_memory_give_the_same_bits(form, tmp_path, many_rows):
    result = svd(form(many_rows, tmp_path))
    assert result.run["kept"] == "run"
    assert same_bits(result, svd(many_rows))


def test_sparse_rows_that_go_through_files_give_the_same_bits(tmp_path):
    X = sparse.random_array((40_000, 300), density=0.15, rng=3, format="csr")
    X.data[:] = np.round(X.data, 2) + 1
    known = svd_in_little_memory(X)
    for form in (npz_csr_compressed, generator_of_csr, svmlight_many):
        result = svd_in_little_memory(form(X, tmp_path))
        assert result.run["kept"] != "run"
        assert same_bits(result, known)


def generator_of_csr(X, folder):
    return (block for block in pieces(X, [0, 999, 10_000, 39_999, 40_000]))


def svmlight_many(X, folder):
    (folder / "x.svm").write_bytes(svmlight_text(X, 1))
    return folder / "x.svm"


# Hints and mistakes


@pytest.mark.parametrize("name", ["label", "target", "class", "y", "id", "Label", "ID"])
@pytest.mark.parametrize("form", ["csv", "parquet", "pandas", "polars"])
def test_a_column_that_looks_like_a_label_gives_a_hint(name, form, tmp_path):
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5], "b": [0.5, 0.25, 2.0], name: [0, 1, 1]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    pq.write_table(pa.table(frame), tmp_path / "x.parquet")
    data = {
        "csv": tmp_path / "x.csv",
        "parquet": tmp_path / "x.parquet",
        "pandas": frame,
        "polars": pl.from_pandas(frame),
    }[form]
    with pytest.warns(lp.DataHint, match=f"(?s)column '{name}'.*drop=.*label=") as seen:
        lp.svd(data, 1, rng=0)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for remedy in ({"drop": [name]}, {"label": name}):
            assert lp.svd(lp.read(data, **remedy), 1, rng=0).run["columns"] == 2


def test_all_that_seem_no_features_are_named_at_once():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 5)), columns=[*"abcde"])
    frame["b"] = np.arange(1, 31)  # counts
    frame.columns = ["customer_id", "b", "grid", "userID", "x"]
    with pytest.warns(lp.DataHint, match=r"columns 'customer_id', 'b', 'userID' look like"):
        lp.svd(frame, 1, rng=0)


def test_a_first_component_that_is_one_column_gives_a_hint_about_units():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=["a", "pay", "c"])
    frame["pay"] *= 1000
    with pytest.warns(lp.DataHint, match=r"first component is column 'pay'.*give scale='std'"):
        lp.pca(frame, 1, rng=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lp.pca(frame, 1, scale="std", rng=0)
        lp.pca(frame.to_numpy(), 1, rng=0)  # without names, nobody knows of units


@pytest.mark.parametrize("form", ["csv", "parquet", "pandas", "polars", "arrow"])
def test_all_text_columns_are_named_with_the_remedy(form, tmp_path):
    frame = pd.DataFrame({"name": ["ann", "bob"], "a": [1.5, 2.5], "town": ["x", "y"], "b": [1, 5]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    pq.write_table(pa.table(frame), tmp_path / "x.parquet")
    data = {
        "csv": tmp_path / "x.csv",
        "parquet": tmp_path / "x.parquet",
        "pandas": frame,
        "polars": pl.from_pandas(frame),
        "arrow": pa.table(frame),
    }[form]
    with pytest.raises(lp.DataError, match=r"(?s)'name'.*'town'.*drop=\['name', 'town'\]"):
        lp.svd(data, 1)
    assert lp.svd(lp.read(data, drop=["name", "town"]), 1, rng=0).run["columns"] == 2


def test_a_dense_matrix_that_seems_transposed_gives_a_hint_and_a_result():
    X = dense("float64", 20, 2000)
    with pytest.warns(lp.DataHint, match="20 rows of 2000 columns: .*give the transpose") as seen:
        result = lp.svd(X, 2, rng=0)
    assert seen[0].filename == __file__
    assert result.components.shape == (2, 2000)


def test_a_wide_sparse_matrix_gives_no_hint():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lp.svd(csr("float64", 20, 2000), 2, rng=0)
