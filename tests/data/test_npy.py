"""``.npy`` and ``.npz``: every number type is read, every damage refused, nothing unpickled."""

import io
import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from localpower.core.errors import DataError
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.worker.stored import Stored, StoredCSR

X = np.arange(12).reshape(4, 3) - 5
NUMBERS = ["f2", "f4", "f8", ">f4", ">f8", "g", "i1", "i2", "i4", "i8", ">i4", "u2", "u8", "?"]


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("npy")


def header(shape, descr="'<f8'", order=False):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}".encode()
    return with_header(text)


def with_header(text):
    text = text.ljust(118)
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def as_npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def rows(source):
    """All rows, as products see them."""
    [shard] = contiguous(source, 1).shards
    blocks = [b if isinstance(b, np.ndarray) else b.toarray() for b in shard.blocks()]
    return np.concatenate(blocks)


def refused(path, take=open_source):
    """The message with which a file is refused."""
    with pytest.raises(DataError) as caught:
        take(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 500
    return str(caught.value)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_every_number_type_is_read(tmp_path, kind, order, suffix):
    array = np.asarray(X % 5, dtype=kind, order=order)
    path = tmp_path / f"x{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, X=array)
    source = open_source(path)
    np.testing.assert_array_equal(rows(source), array)
    assert all(block.flags.c_contiguous for block in contiguous(source, 1).shards[0].blocks())
    assert source.dtype == (np.float32 if kind in ("f2", "f4", ">f4") else np.float64)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f8", "i4", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_file_is_described_where_it_stands_and_not_read(tmp_path, kind, order, suffix):
    path, array = tmp_path / f"x{suffix}", np.asarray(X, dtype=kind, order=order)
    np.save(path, array) if suffix == ".npy" else np.savez(path, X=array)
    [piece] = open_source(path).pieces
    assert isinstance(piece, Stored)
    assert (piece.path, piece.dtype, piece.shape) == (str(path), array.dtype, X.shape)
    assert piece.height == (4 if order == "F" else 0)
    np.testing.assert_array_equal(piece.cut(1, 3).read(), array[1:3])


def test_a_packed_array_is_unpacked_into_a_temporary_file(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", X=X)
    with open_source(tmp_path / "x.npz") as source:
        [piece] = source.pieces
        assert tmp_path not in Path(piece.path).parents
        np.testing.assert_array_equal(piece.read(), X)
    assert not os.path.exists(piece.path)


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("offset", [0, 24, 4096 * 5 + 3])
@pytest.mark.parametrize(
    "part",
    [np.s_[:], np.s_[7:2900], np.s_[5:6], np.s_[:, 1:3], np.s_[3:9, :1], np.s_[::2]],
    ids=str,
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_mapped_array_is_read_from_its_file_or_taken_as_it_is(
    tmp_path, mode, offset, part, order
):
    """Never are other rows taken than those of the view that was given."""
    A = np.arange(9000.0).reshape((3000, 3), order=order)
    (tmp_path / "x.bin").write_bytes(bytes(offset) + A.tobytes("A"))
    view = np.memmap(tmp_path / "x.bin", float, mode, offset, A.shape, order)[part]
    [piece] = open_source(view).pieces
    if view.flags.c_contiguous or (order == "F" and view.strides[0] == 8):
        assert isinstance(piece, Stored)
    np.testing.assert_array_equal(rows(open_source(view)), A[part])


def test_what_was_written_through_a_map_is_read(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(float))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    mapped[1] = 77.0
    np.testing.assert_array_equal(rows(open_source(mapped)), mapped)


def test_mapped_rows_that_are_not_in_the_file_are_taken_from_memory(tmp_path):
    A = np.arange(12.0).reshape(4, 3)
    A.tofile(tmp_path / "x.bin")
    private = np.memmap(tmp_path / "x.bin", float, "c", 0, (4, 3))
    private[0, 0] = 99.0
    kept = np.memmap(tmp_path / "x.bin", float, "r", 0, (4, 3))
    for array in (private, private + 1, kept[::-1], kept[:, ::2], kept * 2):
        [piece] = open_source(array).pieces
        assert isinstance(piece, np.ndarray)
        np.testing.assert_array_equal(piece, array)
    (tmp_path / "x.bin").unlink()
    np.testing.assert_array_equal(rows(open_source(kept)), A)


def test_a_mapped_file_that_has_shrunk_is_refused_and_not_touched(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5000, 3)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    os.truncate(tmp_path / "x.npy", 1000)
    with pytest.raises(DataError, match=r"x\.npy ends before its rows do"):
        open_source(mapped)


def test_mapped_extended_precision_becomes_float64(tmp_path):
    X.astype("g").tofile(tmp_path / "x.bin")
    [piece] = open_source(np.memmap(tmp_path / "x.bin", "g", "r", 0, X.shape)).pieces
    assert piece.dtype == np.float64
    np.testing.assert_array_equal(piece, X)


def test_numpy_files_are_told_by_content_not_by_name(tmp_path):
    (tmp_path / "x.dat").write_bytes(as_npy(X))
    zipped(tmp_path / "z.dat", X=as_npy(X))
    for name in ("x.dat", "z.dat"):
        np.testing.assert_array_equal(rows(open_source(tmp_path / name)), X)


def test_a_header_that_python_2_wrote_is_read_without_a_warning(tmp_path):
    (tmp_path / "x.npy").write_bytes(header("(1L, 2L)") + np.array([1.0, 2.0]).tobytes())
    np.testing.assert_array_equal(rows(open_source(tmp_path / "x.npy")), [[1, 2]])


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
def test_every_matrix_that_scipy_saves_is_read(tmp_path, form, kind):
    sparse.save_npz(tmp_path / "x.npz", kind(X).asformat(form))
    source = open_source(tmp_path / "x.npz")
    assert isinstance(source.pieces[0], StoredCSR) if form == "csr" else source.stored == 0
    assert source.dtype == np.float64
    assert all(block.format == "csr" for block in contiguous(source, 1).shards[0].blocks())
    np.testing.assert_array_equal(rows(source), X)


def test_a_sparse_float32_file_stays_float32(tmp_path):
    sparse.save_npz(tmp_path / "x.npz", sparse.csc_array(X.astype(np.float32)))
    assert open_source(tmp_path / "x.npz").dtype == np.float32


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_objects_are_refused_and_never_unpickled(tmp_path, suffix):
    path, trace = tmp_path / f"x{suffix}", tmp_path / "trace"
    array = np.array([[Bomb(trace)]], dtype=object)
    np.save(path, array, allow_pickle=True) if suffix == ".npy" else np.savez(path, X=array)
    refused(path)
    assert not trace.exists()
    loaded = np.load(path, allow_pickle=True)  # the trap is a real one
    assert suffix == ".npy" or loaded["X"].shape == (1, 1)
    if suffix == ".npz":
        loaded.close()
    assert trace.exists()


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.pkl", "x"])
def test_a_pickle_is_refused_and_never_unpickled(tmp_path, name):
    trace = tmp_path / "trace"
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(trace)))
    refused(tmp_path / name)
    assert not trace.exists()


def test_objects_inside_a_sparse_file_are_never_unpickled(tmp_path):
    path, trace = tmp_path / "x.npz", tmp_path / "trace"
    bomb = np.array([Bomb(trace)], dtype=object)
    np.savez(path, format=bomb, data=bomb, indices=bomb, indptr=bomb, shape=bomb)
    refused(path)
    assert not trace.exists()


@pytest.mark.parametrize("size", [6, 7, 10, 60, 127, 128, 129, 200, -1])
def test_a_truncated_npy_file_is_refused(tmp_path, size):
    path = tmp_path / "x.npy"
    path.write_bytes(as_npy(X.astype(float))[:size])
    assert "not a complete .npy file" in refused(path)


SHAPES = [
    "(10000000000000, 1)",
    "(10000000000000, 10000000000000)",
    "(4294967296, 4294967296)",
    "(9223372036854775807, 2)",
    "(10000000000000000000000, 1)",
    "(0, 10000000000000000000000)",
    "(-1, 3)",
    "(-1, -3)",
    "(True, 3)",
    "(1.0, 3)",
    "3",
    "None",
    "(3,)",
    "()",
    "(1, 1, 1)",
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_shape_that_the_file_does_not_hold_is_refused(tmp_path, shape, suffix):
    path, content = tmp_path / f"x{suffix}", header(shape)
    path.write_bytes(content) if suffix == ".npy" else zipped(path, X=content)
    refused(path)


HEADERS = {
    "not closed": b"((((",
    "indented": b"  x\n y",
    "no string end": b"'abc",
    "not a dict": b"7",
    "keys of two kinds": b"{1: 2, 'a': 3}",
    "an expression": b"1if 2 else 3",
    "deep": b"-" * 5000 + b"1",
    "not latin": b"\xff\xfe\x00",
    "empty": b"",
    "descr empty": b"{'descr': (), 'fortran_order': False, 'shape': (1, 2)}",
    "descr a dict": b"{'descr': {}, 'fortran_order': False, 'shape': (1, 2)}",
    "descr unknown": b"{'descr': 'zz', 'fortran_order': False, 'shape': (1, 2)}",
    "descr void": b"{'descr': 'V', 'fortran_order': False, 'shape': (1, 2)}",
    "order a number": b"{'descr': '<f8', 'fortran_order': 3, 'shape': (1, 2)}",
}


@pytest.mark.parametrize("text", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_header_that_makes_no_sense_is_refused(tmp_path, text, suffix):
    path, content = tmp_path / f"x{suffix}", with_header(text)
    path.write_bytes(content) if suffix == ".npy" else zipped(path, X=content)
    refused(path)


@given(data=st.data())
@settings(max_examples=300)
def test_a_mutated_file_is_read_or_refused(folder, data):
    suffix = data.draw(st.sampled_from([".npy", ".npz", ".sparse.npz"]))
    path = folder / f"x{suffix}"
    if suffix == ".sparse.npz":
        sparse.save_npz(path, sparse.csr_array(X), compressed=data.draw(st.booleans()))
    else:
        np.save(path, X) if suffix == ".npy" else np.savez(path, X=X)
    content = bytearray(path.read_bytes())
    positions = st.integers(0, min(len(content), 160 if suffix == ".npy" else 1 << 20) - 1)
    for position, byte in data.draw(
        st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=4)
    ):
        content[position] = byte
    path.write_bytes(content)
    with suppress(DataError):
        rows(open_source(path))


@given(content=st.binary(max_size=200))
@settings(max_examples=100)
@pytest.mark.parametrize("prefix", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x20\x00", b"PK\x03\x04"])
@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_random_bytes_are_refused(folder, name, prefix, content):
    (folder / name).write_bytes(prefix + content)
    refused(folder / name)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.svm"])
def test_an_empty_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    refused(tmp_path / name)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, dtype=[("a", float), ("b", int)]),
        np.zeros((2, 2), dtype=[("a", float)]),
        np.ones(3),
        np.ones(()),
        np.ones((2, 2, 2)),
        np.ones((0, 3)),
        np.ones((3, 0)),
        np.ones((2, 2), dtype=complex),
        np.array([["a", "b"]]),
        np.array([[b"a", b"b"]]),
        np.array([["2020-01-01"]], dtype="M8[D]"),
        np.array([[3]], dtype="m8[s]"),
    ],
    ids=lambda array: f"{array.dtype.kind}{array.shape}",
)
def test_what_is_not_a_matrix_of_numbers_is_refused(tmp_path, array, suffix):
    path = tmp_path / f"x{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, X=array)
    refused(path)


def test_an_npz_without_a_matrix_tells_what_it_holds(tmp_path):
    np.savez(tmp_path / "x.npz", a=X, b=X)
    assert "holds a, b; expected a dense matrix under the key X" in refused(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz")
    assert "holds nothing" in refused(tmp_path / "y.npz")


def test_a_truncated_npz_file_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, X=X)
    content = path.read_bytes()
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        refused(path)


def test_an_npz_with_damaged_content_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, X=np.random.default_rng(0).standard_normal((9, 9)))
    content = bytearray(path.read_bytes())
    content[200:210] = bytes(10)
    path.write_bytes(content)
    assert "not a complete .npz file" in refused(path)


SPARSE = {
    "format": np.array("csr"),
    "shape": np.array([2, 3]),
    "data": np.array([1.0, 2.0]),
    "indices": np.array([0, 2], dtype=np.int32),
    "indptr": np.array([0, 1, 2], dtype=np.int32),
}
BROKEN = {
    "column too large": {"indices": np.array([0, 3])},
    "column negative": {"indices": np.array([0, -1])},
    "column beyond 32 bits": {"indices": np.array([0, 2**32 + 1])},
    "pointers beyond 32 bits": {"indptr": np.array([0, 2**32 + 1, 2])},
    "pointers of floats": {"indptr": np.array([0.0, 1.0, 2.0])},
    "pointers decrease": {"indptr": np.array([0, 2, 1])},
    "pointers too large, none at the end": {"indptr": np.array([0, 1_000_000, 0])},
    "pointers negative": {"indptr": np.array([0, -5, 0])},
    "pointers end late": {"indptr": np.array([0, 1, 9])},
    "pointers too few": {"indptr": np.array([0, 2])},
    "shape huge": {"shape": np.array([10**15, 3])},
    "shape negative": {"shape": np.array([-2, 3])},
    "shape of one number": {"shape": np.array([6])},
    "data of two dimensions": {"data": np.ones((2, 2))},
    "data of strings": {"data": np.array(["a", "b"])},
    "format unknown": {"format": np.array("zzz")},
    "format a number": {"format": np.array(3)},
    "format without its parts": {"format": np.array("coo")},
    "csc, column pointers out of range": {
        "format": np.array("csc"),
        "indptr": np.array([0, 1_000_000, -7, 0]),
    },
    "csc, rows without number": {
        "format": np.array("csc"),
        "shape": np.array([10**15, 2]),
    },
    "coo, row too large": {
        "format": np.array("coo"),
        "row": np.array([0, 5]),
        "col": np.array([0, 1]),
    },
    "coo, rows without number": {
        "format": np.array("coo"),
        "row": np.array([0, 5]),
        "col": np.array([0, 1]),
        "shape": np.array([10**15, 2]),
    },
}


def read_all(path):
    rows(open_source(path))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_sparse_file_that_contradicts_itself_is_refused(tmp_path, change, save):
    np.savez(tmp_path / "good.npz", **SPARSE)
    np.testing.assert_array_equal(rows(open_source(tmp_path / "good.npz")), [[1, 0, 0], [0, 0, 2]])
    save(tmp_path / "bad.npz", **{**SPARSE, **change})
    refused(tmp_path / "bad.npz", read_all)
