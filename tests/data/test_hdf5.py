"""HDF5: plain datasets are told by their place, others read; nothing outside is opened."""

import sys

import h5py
import numpy as np
import pytest
from scipy import sparse

from localpower.core.errors import DataError, MissingExtra
from localpower.data import blocks as readers
from localpower.data.blocks import Options
from localpower.data.detect import FORMATS
from localpower.data.spool import RowStorage
from localpower.worker.stored import Stored

X = np.random.default_rng(0).standard_normal((103, 7)) * 50


def open_hdf5(path, options):
    return FORMATS["hdf5"].open(path, options, RowStorage(0))


def whole(blocks):
    assert not isinstance(blocks, Stored)
    blocks = list(blocks)
    assert len({(b.rows.dtype, b.rows.shape[1]) for b in blocks}) == 1
    if hasattr(blocks[0].rows, "tocsr"):
        assert all(b.rows.has_canonical_format for b in blocks)
        return sparse.vstack([b.rows for b in blocks]).toarray()
    assert all(b.rows.flags.c_contiguous for b in blocks)
    return np.concatenate([b.rows for b in blocks])


def write(path, values=X, name="X", **options):
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=values, **options)
    return path


def mapped(path, raw):
    return np.fromfile(path, raw.dtype, raw.shape[0] * raw.shape[1], offset=raw.offset).reshape(
        raw.shape
    )


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("userblock", [0, 512])
def test_a_plain_dataset_is_told_by_its_place_in_the_file(tmp_path, dtype, libver, userblock):
    with h5py.File(tmp_path / "x", "w", libver=libver, userblock_size=userblock) as file:
        file["first"] = np.zeros(5)
        file["a/b/X"] = X.astype(dtype)
    raw = open_hdf5(tmp_path / "x", Options())
    assert isinstance(raw, Stored)
    assert raw.shape == X.shape
    assert raw.dtype == dtype
    assert np.array_equal(mapped(tmp_path / "x", raw), X.astype(dtype))


@pytest.mark.parametrize(
    "options",
    [Options(columns=[1, 0]), Options(drop=[0]), Options(label=0), Options(dtype="float32")],
)
def test_a_plain_dataset_is_read_if_not_all_of_it_is_wanted_as_it_is(tmp_path, options):
    found = whole(open_hdf5(write(tmp_path / "x"), options))
    wanted = X[:, options.columns or slice(1 if options.dtype is None else 0, None)]
    assert np.array_equal(found, wanted.astype(options.dtype or "float64"))


STORED = {
    "chunked": {"chunks": (10, 3)},
    "gzip": {"chunks": (10, 3), "compression": "gzip"},
    "lzf, shuffle": {"chunks": (10, 7), "compression": "lzf", "shuffle": True},
    "fletcher32": {"chunks": (33, 2), "fletcher32": True},
    "extensible": {"maxshape": (None, 7)},
}


@pytest.mark.parametrize("block_bytes", [1 << 23, 1000, 8])
@pytest.mark.parametrize("name", STORED)
def test_the_same_bits_come_back_from_chunks(tmp_path, monkeypatch, name, block_bytes):
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    for dtype in ("f4", "f8"):
        path = write(tmp_path / dtype, X.astype(dtype), **STORED[name])
        found = whole(open_hdf5(path, Options()))
        assert found.dtype == dtype
        assert np.array_equal(found, X.astype(dtype))


@pytest.mark.parametrize("dtype", ["f2", ">f4", ">f8", "i1", "i4", ">i8", "u8", "bool"])
def test_every_other_number_type_is_read(tmp_path, dtype):
    found = whole(open_hdf5(write(tmp_path / "x", X.astype(dtype)), Options()))
    assert found.dtype == (np.float32 if dtype in ("f2", ">f4") else np.float64)
    assert found.dtype.isnative
    assert np.array_equal(found, X.astype(dtype))


def test_floats_of_another_layout_are_not_taken_for_plain_ones(tmp_path):
    kind = h5py.h5t.IEEE_F64LE.copy()
    kind.set_ebias(1000)
    with h5py.File(tmp_path / "x", "w") as file:
        space = h5py.h5s.create_simple((2, 2))
        identifier = h5py.h5d.create(file.id, b"X", kind, space)
        identifier.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert whole(open_hdf5(tmp_path / "x", Options())).tolist() == [[1, 2], [3, 4]]


def test_several_datasets_are_listed_and_chosen_by_key(tmp_path):
    write(tmp_path / "x", name="a/X", chunks=True)
    write(tmp_path / "x", np.ones((2, 2), int), name="b")
    write(tmp_path / "x", np.ones(3), name="line")
    with h5py.File(tmp_path / "x", "a") as file:
        file["soft"] = h5py.SoftLink("/a/X")
        file["a/near"] = h5py.SoftLink("X")
        file["hard"] = file["a/X"]
        file["loop"] = h5py.SoftLink("/loop")
        file["a/self"] = file["a"]
        file["text"] = np.array([[b"a"]])
    with pytest.raises(DataError, match=r"'/b' \(2, 2\), '/hard' \(103, 7\); say .* key="):
        open_hdf5(tmp_path / "x", Options())
    for key in ("a/X", "/a/X", "soft", "a/near", "hard", "a/self/self/X"):
        assert np.array_equal(whole(open_hdf5(tmp_path / "x", Options(key=key))), X)
    for key, part in {
        "line": r"1 dimension\(s\), not 2",
        "z": r"holds no 'z', but .*/b",
        "b/c": "holds no 'b/c'",
        "a": "is not a dataset",
        "loop": "link to itself",
        "text": "not one of numbers",
        "../x": "holds no",
    }.items():
        with pytest.raises(DataError, match=part):
            open_hdf5(tmp_path / "x", Options(key=key))


def external_link(path):
    write(path.with_name("other"))
    with h5py.File(path, "w") as file:
        file["X"] = h5py.ExternalLink("other", "/X")


def soft_link_out(path):
    write(path.with_name("other"), name="g/X")
    with h5py.File(path, "w") as file:
        file["out"] = h5py.ExternalLink("other", "/g")
        file["X"] = h5py.SoftLink("/out/X")


def external_storage(path):
    (path.with_name("raw")).write_bytes(X.tobytes())
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "X", X.shape, "f8", external=[(str(path.with_name("raw")), 0, X.nbytes)]
        )


def virtual(path):
    write(path.with_name("other"))
    layout = h5py.VirtualLayout(shape=X.shape, dtype="f8")
    layout[:] = h5py.VirtualSource(path.with_name("other"), "X", shape=X.shape)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("X", layout)


def unknown_filter(path):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((10, 7))
    properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(X.shape)
        h5py.h5d.create(file.id, b"X", h5py.h5t.IEEE_F64LE, space, properties)


def dataset(*args, **options):
    def make(path):
        with h5py.File(path, "w") as file:
            file.create_dataset("X", *args, **options)

    return make


BAD = {
    "external link": (external_link, "external link", {"key": "X"}),
    "external link, search": (external_link, r"no 2-D .* not followed: /X\)", {}),
    "soft link out": (soft_link_out, "external link", {"key": "X"}),
    "external storage": (external_storage, "in other files", {}),
    "virtual": (virtual, "in other files", {}),
    "plugin": (unknown_filter, "filter 32015 .* needs a plugin", {}),
    "records": (dataset((2, 2), [("a", "f8")]), "no 2-D dataset of numbers", {}),
    "text": (dataset((2, 2), h5py.string_dtype()), "not one of numbers", {"key": "X"}),
    "references": (dataset((2, 2), h5py.ref_dtype), "not one of numbers", {"key": "X"}),
    "complex": (dataset((2, 2), "c16"), "not one of numbers", {"key": "X"}),
    "large chunks": (dataset((1 << 15, 1 << 15), "f8", chunks=(1 << 14, 1 << 14)), "1 GB", {}),
    "large row of chunks": (
        dataset((1 << 20, 1 << 20), "f4", chunks=(1 << 20, 1 << 5)),
        "8 GB side by side",
        {},
    ),
    "not written": (dataset((1 << 40, 10), "f8"), "never written", {}),
    "not written, chunks": (dataset((1 << 40, 10), "f8", chunks=(10, 10)), "never written", {}),
    "nothing": (lambda path: h5py.File(path, "w").close(), "no 2-D dataset", {}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_elsewhere_or_no_number_is_refused(tmp_path, name):
    make, part, options = BAD[name]
    make(tmp_path / "x")
    with pytest.raises(DataError, match=part):
        open_hdf5(tmp_path / "x", Options(**options))


def write_csr(path, matrix, group="X", style="anndata", dtype=None, **options):
    kind = f"{matrix.format}_matrix"
    with h5py.File(path, "a") as file:
        place = file.create_group(group)
        place.create_dataset("data", data=matrix.data, dtype=dtype, **options)
        place.create_dataset("indices", data=matrix.indices, **options)
        place.create_dataset("indptr", data=matrix.indptr, **options)
        if style == "anndata":
            place.attrs.update({"encoding-type": kind, "shape": matrix.shape})
        elif style == "h5sparse":
            place.attrs.update({"h5sparse_format": b"csr", "h5sparse_shape": matrix.shape})
        else:
            place["shape"] = np.array(matrix.shape)
    return path


SPARSE = sparse.random_array((500, 40), density=0.1, rng=np.random.default_rng(0), format="csr")
SPARSE.sort_indices()


@pytest.mark.parametrize("block_bytes", [1 << 23, 2000, 16])
@pytest.mark.parametrize("style", ["anndata", "h5sparse", "dataset"])
def test_sparse_groups_stay_sparse(tmp_path, monkeypatch, style, block_bytes):
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    path = write_csr(tmp_path / "x", SPARSE, style=style, compression="gzip", chunks=(64,))
    assert np.array_equal(whole(open_hdf5(path, Options())), SPARSE.toarray())
    blocks = list(open_hdf5(path, Options(key="X", columns=[5, 3], label=0)))
    assert np.array_equal(whole(iter(blocks)), SPARSE.toarray()[:, [5, 3]])
    labels = np.concatenate([b.labels for b in blocks])
    assert np.array_equal(labels, SPARSE.toarray()[:, 0])


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i4"])
def test_sparse_entries_may_be_of_every_number_type(tmp_path, dtype):
    matrix = (SPARSE * 10).tocsr()
    matrix.data = np.round(matrix.data)
    found = whole(open_hdf5(write_csr(tmp_path / "x", matrix, dtype=dtype), Options()))
    assert found.dtype == (np.float32 if dtype in ("f2", "f4") else np.float64)
    assert np.array_equal(found, matrix.toarray())


def test_a_matrix_by_columns_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"csc_matrix .* write it as CSR"):
        list(open_hdf5(write_csr(tmp_path / "x", SPARSE.tocsc()), Options()))


@pytest.mark.parametrize(
    ("part", "at", "value"),
    [
        ("indices", 3, 40),
        ("indices", 3, -1),
        ("indptr", 0, 1),
        ("indptr", 7, 10_000),
        ("indptr", -1, 10),
        ("indptr", 9, -5),
    ],
)
def test_sparse_indices_that_lead_outside_are_refused(tmp_path, part, at, value):
    write_csr(tmp_path / "x", SPARSE)
    with h5py.File(tmp_path / "x", "a") as file:
        file["X"][part][at] = value
    with pytest.raises(DataError, match=r"x.*write it again"):
        list(open_hdf5(tmp_path / "x", Options()))


def test_a_dataset_without_rows_tells_its_width(tmp_path):
    (block,) = open_hdf5(write(tmp_path / "x", X[:0], chunks=(1, 7), maxshape=(None, 7)), Options())
    assert block.rows.shape == (0, 7)


@pytest.mark.parametrize("stored", [{}, {"chunks": (10, 7), "compression": "gzip"}])
def test_a_file_cut_anywhere_is_refused(tmp_path, stored):
    content = write(tmp_path / "x", **stored).read_bytes()
    for cut in sorted({*range(0, 100, 7), *np.linspace(100, len(content) - 1, 50).astype(int)}):
        (tmp_path / "cut").write_bytes(content[:cut])
        with pytest.raises(DataError, match="cut"):
            list(open_hdf5(tmp_path / "cut", Options()))


def test_a_damaged_chunk_is_refused(tmp_path):
    path = write(tmp_path / "x", chunks=(10, 7), compression="gzip", fletcher32=True)
    with h5py.File(path) as file:
        info = file["X"].id.get_chunk_info(4)
    content = bytearray(path.read_bytes())
    content[info.byte_offset + 30] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x: not a complete HDF5 file.*write it again"):
        list(open_hdf5(path, Options()))


def test_a_missing_file_is_the_systems_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_hdf5(tmp_path / "x", Options())


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "x")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"localpower\[hdf5\]"):
        open_hdf5(path, Options())
