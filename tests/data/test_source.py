"""Whatever a user may give becomes pieces of rows, without a copy or a change where none is due."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from localpower.core.errors import DataError
from localpower.core.shard import is_stored
from localpower.data.source import open_source

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
    with pytest.raises(DataError, match="data has masked entries"):
        open_source(masked)
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
    [[], (), None, 3.0, b"x", X[0], X[None], [X[None]], [1.0, 2.0], sparse.coo_array(X[0]), {}],
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


def test_directories_without_data_and_missing_files_are_refused(tmp_path):
    text(tmp_path / "notes.md", "not rows")
    with pytest.raises(DataError, match=r"no file in this directory .* give a list of files"):
        open_source(tmp_path)
    with pytest.raises(DataError, match="no file matches; check the folder and the pattern"):
        open_source(tmp_path / "*.npy")
    with pytest.raises(FileNotFoundError):
        open_source(tmp_path / "missing.npy")


def test_a_mapping_is_no_stream_of_blocks():
    with pytest.raises(DataError, match="data has 0 dimension"):
        open_source({"a": X})
