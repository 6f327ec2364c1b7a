"""Whatever a user may give becomes pieces of rows, without a copy or a change where none is due."""

import io
import os
from pathlib import Path

import numpy as np
import numpy.lib.recfunctions
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from localpower.core.errors import DataError, DataHint
from localpower.data.reading import read
from localpower.data.source import open_source
from localpower.worker.shard import is_stored

X = np.arange(12.0).reshape(4, 3) - 5


def dense(piece):
    piece = piece.read() if is_stored(piece) else piece
    return piece if isinstance(piece, np.ndarray) else piece.toarray()


def stacked(source):
    return np.concatenate([dense(piece) for piece in source.pieces])


def text(path, content):
    path.write_text(content)
    return path


def test_an_array_is_taken_as_it_is():
    source = open_source(X)
    assert source.pieces[0] is X
    assert not source.separate
    assert (source.rows, source.columns, source.dtype) == (4, 3, np.float64)


def test_a_source_is_passed_on():
    source = open_source(X)
    assert open_source(source) is source


@pytest.mark.parametrize("rows", [X.tolist(), tuple(map(tuple, X)), list(X)])
def test_a_list_of_rows_is_one_matrix(rows):
    source = open_source(rows)
    assert not source.separate
    np.testing.assert_array_equal(stacked(source), X)


@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_array, sparse.coo_matrix])
def test_a_list_of_matrices_is_taken_as_shards(wrap):
    source = open_source([wrap(X[:1]), wrap(X[1:])])
    assert source.separate
    assert [piece.shape[0] for piece in source.pieces] == [1, 3]
    np.testing.assert_array_equal(stacked(source), X)


def test_a_list_may_mix_arrays_lists_sparse_matrices_and_paths(tmp_path):
    np.save(tmp_path / "x.npy", X[:1])
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_array(X[1:2]))
    blocks = [tmp_path / "x.npy", str(tmp_path / "x.npz"), X[2:3], X[3:4].tolist()]
    source = open_source(blocks)
    assert len(source.pieces) == 4
    np.testing.assert_array_equal(stacked(source), X)


@pytest.mark.parametrize("kind", ["f2", "f4", ">f4"])
def test_narrow_floats_are_worked_with_as_float32(kind):
    assert open_source(X.astype(kind)).dtype == np.float32


@pytest.mark.parametrize("kind", ["?", "i1", "u8", "f8", ">f8", "g"])
def test_everything_else_is_worked_with_as_float64(kind):
    assert open_source(X.astype(kind)).dtype == np.float64
    assert open_source([X.astype(kind), X.astype("f4")]).dtype == np.float64
    if kind != ">f8":
        assert open_source(sparse.csr_array(X.astype(kind))).dtype == np.float64


def test_extended_precision_beyond_float64_becomes_infinity_without_a_warning():
    huge = np.full((2, 2), np.longdouble("1e4000"))
    assert np.isinf(open_source(huge).pieces[0]).all()
    assert np.isinf(open_source(sparse.csr_array(huge)).pieces[0].data).all()


def test_text_files_of_different_widths_are_widened(tmp_path):
    paths = [
        text(tmp_path / "a", "1 1:1\n0 2:2\n"),
        text(tmp_path / "b", "1 4:4\n"),
        text(tmp_path / "c", "1\n"),
    ]
    source = open_source(paths)
    assert source.separate
    np.testing.assert_array_equal(
        stacked(source), [[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 4], [0, 0, 0, 0]]
    )


def test_text_files_are_widened_to_the_columns_of_other_files(tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = open_source([text(tmp_path / "a", "1 1:1\n"), tmp_path / "x.npy"])
    np.testing.assert_array_equal(stacked(source), [[1, 0, 0], *X])


def test_a_zero_index_in_one_text_file_tells_the_base_of_all(tmp_path):
    paths = [text(tmp_path / "a", "1 0:1 1:2\n"), text(tmp_path / "b", "1 1:3 2:4\n")]
    np.testing.assert_array_equal(stacked(open_source(paths)), [[1, 2, 0], [0, 3, 4]])
    np.testing.assert_array_equal(stacked(open_source(paths[1])), [[3, 4]])


def test_sparse_files_tell_their_width_and_are_not_widened(tmp_path):
    for name, columns in (("a.npz", 3), ("b.npz", 4)):
        sparse.save_npz(tmp_path / name, sparse.eye_array(2, columns))
    with pytest.raises(DataError, match=r"b\.npz has 4 columns where .*a\.npz has 3"):
        open_source([tmp_path / "a.npz", tmp_path / "b.npz"])


@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_array])
def test_shards_of_different_columns_are_refused_by_number(wrap):
    with pytest.raises(DataError, match=r"data\[2\] has 2 columns where data\[0\] has 3"):
        open_source([wrap(X), wrap(X), wrap(X[:, :2])])


def test_text_wider_than_a_matrix_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a has 9 columns where data\[0\] has 3"):
        open_source([X, text(tmp_path / "a", "1 9:1\n")])


def test_an_unusable_shard_is_told_by_its_name(tmp_path):
    np.save(tmp_path / "x.npy", X[0])
    with pytest.raises(DataError, match=r"x\.npy has 1 dimension"):
        open_source([X, tmp_path / "x.npy"])
    with pytest.raises(DataError, match=r"data\[1\] has dtype complex128"):
        open_source([X, X * 1j])


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
def test_every_sparse_format_becomes_csr(form, kind):
    source = open_source(kind(X).asformat(form))
    assert source.pieces[0].format == "csr"
    assert source.pieces[0].has_canonical_format
    np.testing.assert_array_equal(stacked(source), X)


def test_a_canonical_csr_matrix_is_not_copied():
    matrix = sparse.csr_array(X)
    [piece] = open_source(matrix).pieces
    assert np.shares_memory(piece.data, matrix.data)
    assert np.shares_memory(piece.indices, matrix.indices)


entries = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-9, 9)), min_size=1, max_size=20
)


@given(entries=entries)
@settings(max_examples=50)
def test_duplicate_and_unsorted_entries_are_summed_in_a_copy(entries):
    row, column, value = np.array(sorted(entries, key=lambda entry: entry[0])).T
    indptr = np.searchsorted(row, np.arange(5))
    given = sparse.csr_array((value.astype(float), column, indptr), shape=(4, 3))
    before = [part.copy() for part in (given.data, given.indices, given.indptr)]
    expected = np.zeros((4, 3))
    np.add.at(expected, (row, column), value)
    source = open_source(given)
    assert source.pieces[0].has_canonical_format
    np.testing.assert_array_equal(stacked(source), expected)
    for part, old in zip((given.data, given.indices, given.indptr), before, strict=True):
        np.testing.assert_array_equal(part, old)


def test_duplicate_coo_entries_are_summed():
    matrix = sparse.coo_array((np.array([1.0, 2.0, 4.0]), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    np.testing.assert_array_equal(stacked(open_source(matrix)), [[0, 3], [4, 0]])


TWICE = {"row": [0, 0, 1, 3], "column": [1, 1, 0, 2]}  # an entry twice, and two once


def with_an_entry_twice(form, value):
    """A matrix that holds an entry twice, in the form of `form`, where that can."""
    data, indices = np.array([value] * 4), np.array(TWICE["column"])
    if form is sparse.csr_array:
        return form((data, indices, [0, 2, 3, 3, 4]), shape=(4, 3))
    if form is sparse.csc_array:
        return form((data[[2, 0, 1, 3]], [1, 0, 0, 3], [0, 1, 3, 4]), shape=(4, 3))
    return form((data, (TWICE["row"], indices)), shape=(4, 3))


def in_hdf5(path, matrix):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", matrix.shape
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(matrix, name)
    return path


FORMS = [sparse.csr_array, sparse.csc_array, sparse.coo_array]
PLACES = [(place, form) for place in ("memory", "stream", "npz") for form in FORMS]


@pytest.mark.parametrize(("place", "form"), [*PLACES, ("hdf5", sparse.csr_array)])
@pytest.mark.parametrize(
    ("value", "total"), [(np.bool_(True), 1.0), (np.int8(100), 200.0), (np.float32(1.5), 3.0)]
)
def test_an_entry_twice_is_true_once_and_else_the_sum(tmp_path, place, form, value, total):
    matrix = with_an_entry_twice(form, value)
    if place == "npz":
        sparse.save_npz(tmp_path / "x.npz", matrix)
    data = {
        "memory": lambda: matrix,
        "stream": lambda: iter([matrix]),
        "npz": lambda: tmp_path / "x.npz",
        "hdf5": lambda: in_hdf5(tmp_path / "x.h5", matrix),
    }[place]()
    expected = np.zeros((4, 3))
    expected[TWICE["row"], TWICE["column"]] = value
    expected[0, 1] = total
    np.testing.assert_array_equal(stacked(open_source(data)), expected)
    assert matrix.nnz == 4  # what was given is not changed


def test_widening_leaves_a_matrix_given_beside_the_text_alone(tmp_path):
    matrix = sparse.csr_array(X)
    open_source([matrix, text(tmp_path / "a", "1 1:1\n")])
    assert matrix.shape == (4, 3)


def test_read_only_arrays_are_accepted():
    locked = X.copy()
    locked.flags.writeable = False
    assert open_source(locked).pieces[0] is locked


@pytest.mark.parametrize("cut", [slice(None, None, 2), slice(None, None, -1)])
def test_arrays_of_another_order_are_copied_and_left_alone(cut):
    for view in (X[cut], X[:, cut], np.asfortranarray(X)):
        before = view.copy()
        [piece] = open_source(view).pieces
        assert piece.flags.c_contiguous
        np.testing.assert_array_equal(piece, before)
        np.testing.assert_array_equal(view, before)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_stream_of_frames_with_columns_in_another_order_is_refused(kind):
    module = pytest.importorskip(kind, reason=f"{kind} is not installed")
    first = module.DataFrame({"a": [1.0, 2.0], "b": [3.0, 5.0]})
    with pytest.raises(DataError, match="other names or in another order"):
        open_source(iter([first, first[["b", "a"]]]))
    assert open_source(iter([first, first])).rows == 4


def test_what_only_a_cluster_can_read_names_the_engine():
    dask = pytest.importorskip("dask", reason="dask is not installed")
    block = dask.delayed(X)
    for data in (block, [block], [X, block], (block, X)):
        with pytest.raises(
            DataError, match="of dask, which is read where it is: give engine='dask"
        ):
            open_source(data)


def test_masked_entries_are_refused_and_an_empty_mask_is_not():
    masked = np.ma.masked_equal(X, 3.0)
    row, column = np.argwhere(X == 3.0)[0]
    first = f"data has masked entries, the first in row {row}, column {column}; .* missing='drop'"
    with pytest.raises(DataError, match=first):
        open_source(masked)
    with pytest.warns(DataHint, match="1 of 4 rows is left out"):
        assert read(masked, missing="drop").rows == 3
    (piece,) = open_source(np.ma.array(X)).pieces
    assert type(piece) is np.ndarray
    np.testing.assert_array_equal(piece, X)


@pytest.mark.parametrize(
    "data",
    [
        X.astype(object),
        X * 1j,
        X.astype(str),
        X.astype("S3"),
        X.astype("M8[D]"),
        X.astype("m8[s]"),
        np.zeros((2, 2), dtype=[("a", float)]),
        sparse.csr_array(X * 1j),
        [["a", "b"]],
        [[None, 1.0]],
        [[10**30, 1]],
    ],
    ids=lambda data: str(getattr(data, "dtype", data)),
)
def test_what_is_not_real_numbers_is_refused(data):
    with pytest.raises(DataError, match=r"data has dtype .*, not real numbers"):
        open_source(data)


@pytest.mark.parametrize(
    "data",
    [[], (), 3.0, X[0], X[None], [X[None]], [1.0, 2.0], sparse.coo_array(X[0])],
)
def test_what_has_not_two_dimensions_is_refused(data):
    with pytest.raises(DataError, match=r"data has \d dimension\(s\), not 2"):
        open_source(data)


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="data has rows of different lengths"):
        open_source([[1.0, 2.0], [3.0]])
    with pytest.raises(DataError, match=r"data\[1\] has rows of different lengths"):
        open_source([X, [[1.0, 2.0], [3.0]]])


@pytest.mark.parametrize(
    "data",
    [
        X[:0],
        X[:, :0],
        [[]],
        [X[:0], X[:0]],
        [X[:, :0]],
        sparse.csr_array((0, 3)),
        sparse.csr_array((3, 0)),
    ],
)
def test_no_rows_or_no_columns_are_refused(data):
    with pytest.raises(DataError, match=r"data is empty: 0 sample\(s\)"):
        open_source(data)


def test_a_shard_without_rows_is_fine_beside_others():
    assert open_source([X[:0], X]).rows == 4


@pytest.mark.parametrize("suffix", [".npy", ".NPZ", ".parquet", ".pq", ".H5", ".h5ad", ".zarr"])
def test_a_file_that_is_not_what_its_name_says_is_refused_with_a_remedy(tmp_path, suffix):
    message = rf"x{suffix}: not a {suffix.lower()} file, it starts with b'1,2.*; write it again"
    with pytest.raises(DataError, match=message):
        open_source(text(tmp_path / f"x{suffix}", "1,2\n"))


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.xz", "x.txt", "x"])
def test_text_is_told_by_its_content(tmp_path, name):
    source = open_source(text(tmp_path / name, "1,2\n3,4\n"))
    np.testing.assert_array_equal(stacked(source), [[1, 2], [3, 4]])


def test_a_directory_or_a_glob_is_the_users_shards_by_name(tmp_path):
    for name, part in (("b.npy", X[1:3]), ("a.npy", X[:1]), ("c/a.npy", X[3:])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, part)
    text(tmp_path / "notes.md", "not rows")
    text(tmp_path / ".hidden.npy", "not rows")
    for data in (tmp_path, str(tmp_path / "**" / "[abc].npy")):
        source = open_source(data)
        assert source.separate
        assert [name[-5:] for name in source.names] == ["a.npy", "b.npy", "a.npy"]
        np.testing.assert_array_equal(stacked(source), X)
    assert open_source([tmp_path / "c", X]).names == (str(tmp_path / "c" / "a.npy"), "data[1]")


def names_of(data):
    with open_source(data) as source:
        return [Path(name).name for name in source.names]


@pytest.fixture
def loops(tmp_path):
    """Two folders with a file each, which lead into each other and into themselves by links."""
    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
        np.save(tmp_path / name / "deep" / f"{name}.npy", X)
        for other in ("a", "b", "."):
            link = tmp_path / name / "deep" / f"to {other}"
            link.symlink_to(tmp_path / other, target_is_directory=True)
    return tmp_path


@pytest.mark.parametrize(
    "pattern", ["**/*.npy", "**/**/*.npy", "*/**/*.npy", "**/deep/*.npy", "**"]
)
def test_stars_go_into_a_folder_once_also_where_links_lead_back(loops, pattern, monkeypatch):
    assert names_of(loops / pattern) == ["a.npy", "b.npy"]
    monkeypatch.chdir(loops)
    assert names_of(pattern) == ["a.npy", "b.npy"]
    with open_source(pattern) as source:
        assert source.names == ("a/deep/a.npy", "b/deep/b.npy")


def test_stars_follow_links_that_lead_elsewhere_and_pass_over_hidden_folders(loops):
    rows = loops / "a" / "only"
    rows.mkdir()
    (rows / "far").symlink_to(loops / "b", target_is_directory=True)
    (rows / ".hidden").mkdir()
    np.save(rows / ".hidden" / "c.npy", X)
    assert sorted(names_of(rows / "**" / "*.npy")) == ["a.npy", "b.npy"]


def test_a_file_that_a_glob_or_folder_reaches_twice_is_read_once(tmp_path):
    np.save(tmp_path / "rows.npy", X)
    (tmp_path / "again.npy").symlink_to(tmp_path / "rows.npy")
    for data in (tmp_path, tmp_path / "*.npy", [tmp_path, str(tmp_path / "r*.npy")]):
        assert names_of(data) == ["rows.npy"]
    assert names_of([tmp_path / "*.npy", tmp_path / "rows.npy"]) == ["rows.npy"]
    twice = [tmp_path / "rows.npy", tmp_path / "rows.npy"]
    assert names_of(twice) == ["rows.npy"] * 2  # as asked for


def test_directories_without_data_and_missing_files_are_refused(tmp_path):
    text(tmp_path / "notes.md", "not rows")
    with pytest.raises(DataError, match=r"no file in this directory .* give a list of files"):
        open_source(tmp_path)
    with pytest.raises(DataError, match="no file matches; check the folder and the pattern"):
        open_source(tmp_path / "*.npy")
    with pytest.raises(FileNotFoundError):
        open_source(tmp_path / "missing.npy")


STRANGERS = {
    "None": (None, r"data is None, not rows; give an array, a data frame, the path of a file"),
    "dict": ({"a": [1.0], "b": [2.0]}, r"is a dict of 'a', 'b', .* pandas\.DataFrame\(data\)"),
    "empty dict": ({}, r"is a dict of nothing, not rows"),
    "dict of shards": ({"a": X}, r"list\(data\.values\(\)\) if it holds shards"),
    "dicts": ([{"a": 1}, {"a": 2}], r"is a list of dict; give pandas\.DataFrame\(data\)"),
    "bytes": (b"1,2", r"is bytes, not rows; write them to a file"),
    "bytearray": (bytearray(b"1,2"), r"is bytearray, not rows"),
    "set": ({1.0, 2.0}, r"is a set, which has no order; give a list"),
    "text": ("1,2\n3,4\n", r"is text of several lines, not a path; write it to a file"),
    "no text": ("", r"is an empty text, not a path"),
    "address": ("https://example.org/x.csv", r"is an address, https://.*; download it first"),
    "open file": (io.StringIO("1,2\n"), r"is an open file \(StringIO\); give its path"),
    "object": (object(), r"is of type object, of which no rows can be made; give an array"),
    "series": (pd.Series([1.0, 2.0]), r"is a single column \(Series\); give data\.to_frame\(\)"),
    "nothing": (iter([]), r"data yields no rows; a generator that was read before"),
    "images": (np.zeros((2, 3, 3)), r"data has 3 dimension.*X\.reshape\(len\(X\), -1\)"),
    "vector": (X[0], r"data has 1 dimension.*X\.reshape\(1, -1\), .* X\.reshape\(-1, 1\)"),
    "objects": (X.astype(object), r"dtype object, .*if all are numbers, give X\.astype\(float\)"),
    "words": (X.astype(str), r"dtype <U.*if all are numbers, give X\.astype\(float\)"),
    "times": (X.astype("M8[D]"), r"\(X - X\.min\(\)\) / numpy\.timedelta64\(1, 's'\)"),
    "spans": (X.astype("m8[s]"), r"X / numpy\.timedelta64\(1, 's'\)"),
    "complex": (X * 1j, r"take the real part"),
    "fields": (np.zeros(2, [("a", float), ("b", float)]), r"structured_to_unstructured\(X\)"),
    "a time in a frame": (pd.DataFrame({"t": pd.to_datetime(["2020"]), "x": 1.0}), r"'t' \(datet"),
    "a part": ([X, None], r"data\[1\] is None, not rows"),
    "a block": (iter([X, {"a": X}]), r"block 1 of data is a dict of 'a'"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_is_no_data_is_told_what_it_is_and_what_to_do(kind):
    data, message = STRANGERS[kind]
    with pytest.raises(DataError, match=message):
        open_source(data)


def test_what_is_told_to_do_works():
    table = {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    images = np.arange(18.0).reshape(2, 3, 3)
    times = np.array([["2020-01-01", "2020-01-03"]], "M8[D]")
    fields = np.array([(1.0, 2.0)], [("a", float), ("b", float)])
    for data, shape in (
        (pd.DataFrame(table), (2, 2)),
        (list({"a": X, "b": X}.values()), (8, 3)),
        (images.reshape(len(images), -1), (2, 9)),
        (X.astype(object).astype(float), (4, 3)),
        ((times - times.min()) / np.timedelta64(1, "s"), (1, 2)),
        (np.lib.recfunctions.structured_to_unstructured(fields), (1, 2)),
        (pd.Series([1.0, 2.0]).to_frame(), (2, 1)),
    ):
        source = open_source(data)
        assert (source.rows, source.columns) == shape


def test_a_file_of_arrays_that_is_open_is_told_to_give_one(tmp_path):
    np.savez(tmp_path / "x.npz", a=X, b=X)
    with (
        np.load(tmp_path / "x.npz") as arrays,
        pytest.raises(DataError, match="is a NpzFile with 'a', 'b'; give one array of it"),
    ):
        open_source(arrays)


OTHERS = {
    "x.xlsx": (b"PK\x03\x04\x14\x00", r"a spreadsheet.*pandas\.read_excel, and give the frame"),
    "x.XLS": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", r"a spreadsheet.*pandas\.read_excel"),
    "x.ods": (b"PK\x03\x04\x14\x00", r"a spreadsheet.*pandas\.read_excel"),
    "x.json": (b'[{"a": 1}]', r"JSON.*pandas\.read_json"),
    "x.jsonl": (b'{"a": 1}\n{"a": 2}\n', r"JSON.*read_json\(…, lines=True\)"),
    "x.sqlite": (b"SQLite format 3\0", r"a data base.*pandas\.read_sql"),
    "x.pkl": (b"\x80\x04\x95", r"a pickle.*it can run code when it is opened"),
    "x.pickle": (b"cnumpy\narray\n", r"a pickle"),
    "x.mat": (b"MATLAB 5.0 MAT-file\0", r"MATLAB.*scipy\.io\.loadmat"),
    "x.dta": (b"<stata_dta>", r"Stata.*pandas\.read_stata"),
    "x.mtx": (b"%%MatrixMarket matrix array real general\n1 1\n5\n", r"scipy\.io\.mmread"),
    "x.html": (b"<html></html>", r"HTML.*pandas\.read_html"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_that_others_read_are_told_by_their_kind_before_anything_is_read(tmp_path, name):
    content, message = OTHERS[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} is .*{message}"):
        open_source(path)
    text(tmp_path / "a.csv", "torn,\n1")
    with pytest.raises(DataError, match=f"{name} is "):
        open_source([tmp_path / "a.csv", path])
    with pytest.raises(DataError, match=f"{name} is "):
        open_source(tmp_path / "*.*")


def test_text_under_the_name_of_a_spreadsheet_is_read_as_text(tmp_path):
    source = open_source(text(tmp_path / "export.xls", "a\tb\n1\t2\n3\t4\n"))
    np.testing.assert_array_equal(stacked(source), [[1, 2], [3, 4]])


def test_a_path_that_is_not_there_is_told_where_it_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"check the path, which starts from {tmp_path}"):
        open_source("rows.npy")
    with pytest.raises(FileNotFoundError, match="No such file or directory; check the path: '/"):
        open_source(tmp_path / "rows.npy")
    with pytest.raises(FileNotFoundError, match=r"what ~ stands for.*os\.path\.expanduser"):
        open_source("~/rows.npy")


def test_the_cache_does_not_answer_for_another_file_of_the_same_size_and_time(tmp_path):
    path, other = text(tmp_path / "x.csv", "1,2\n3,4\n"), text(tmp_path / "y.csv", "1,2\n3,9\n")
    os.utime(path, ns=(1, 1))
    with read(path, cache=tmp_path / "cache") as source:
        np.testing.assert_array_equal(stacked(source), [[1, 2], [3, 4]])
    os.utime(other, ns=(1, 1))
    os.replace(other, path)
    with read(path, cache=tmp_path / "cache") as source:
        np.testing.assert_array_equal(stacked(source), [[1, 2], [3, 9]])
