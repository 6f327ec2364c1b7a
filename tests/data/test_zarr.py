"""Zarr: the same bits come back through every codec allowed, and no other is run."""

import json
import pickle
import sys
import zipfile

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec

from localpower.core.errors import DataError, MissingExtra
from localpower.data import blocks
from localpower.data.blocks import Options
from localpower.data.detect import FORMATS
from localpower.data.readers.zarr import read_zarr

X = np.random.default_rng(0).standard_normal((103, 7)) * 50


def whole(blocks):
    blocks = list(blocks)
    assert len({(b.rows.dtype, b.rows.shape[1]) for b in blocks}) == 1
    assert all(b.rows.flags.c_contiguous for b in blocks)
    return np.concatenate([b.rows for b in blocks])


def write(path, values=X, **options):
    options = {"chunks": (10, 3), "zarr_format": 3, **options}
    array = zarr.create_array(path, shape=values.shape, dtype=values.dtype, **options)
    array[:] = values
    return path


def numcodec(name, **options):
    from numcodecs.registry import get_codec

    return get_codec({"id": name, **options})


WRITTEN = {
    "version 3": {},
    "gzip": {"compressors": GzipCodec()},
    "zstd": {"compressors": ZstdCodec()},
    "blosc": {"compressors": BloscCodec()},
    "none": {"compressors": None},
    "big endian": {"serializer": BytesCodec(endian="big")},
    "transposed": {"filters": [TransposeCodec(order=(1, 0))]},
    "sharded": {"shards": (40, 6)},
    "one chunk": {"chunks": (103, 7)},
    "large chunks": {"chunks": (1000, 1000)},
    "version 2": {"zarr_format": 2},
    "version 2, Fortran": {"zarr_format": 2, "order": "F"},
    "version 2, none": {"zarr_format": 2, "compressors": None},
    **{
        f"version 2, {name}": {"zarr_format": 2, "compressors": numcodec(name)}
        for name in ("blosc", "zlib", "gzip", "bz2", "lzma", "lz4", "zstd")
    },
    "version 2, shuffle": {"zarr_format": 2, "filters": [numcodec("shuffle", elementsize=8)]},
}


@pytest.mark.parametrize("block_bytes", [1 << 23, 1000, 8])
@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_bits_come_back(tmp_path, monkeypatch, name, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    found = whole(read_zarr(write(tmp_path / "x.zarr", **WRITTEN[name]), Options()))
    assert found.dtype == np.float64
    assert np.array_equal(found, X)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u4", "bool"])
def test_every_number_type_is_read(tmp_path, dtype, version):
    values = X.astype(dtype)
    found = whole(read_zarr(write(tmp_path / "x", values, zarr_format=version), Options()))
    assert found.dtype == (np.float32 if dtype in ("f2", "f4") else np.float64)
    assert np.array_equal(found, values)


@pytest.mark.parametrize("version", [2, 3])
def test_a_zip_file_is_read_too(tmp_path, version):
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        write(store, zarr_format=version)
    assert np.array_equal(whole(read_zarr(tmp_path / "x.zip", Options())), X)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_the_one_matrix_of_a_group_is_found_and_others_by_key(tmp_path, version, consolidated):
    group = zarr.create_group(tmp_path / "g", zarr_format=version)
    group.create_array("a/X", shape=X.shape, dtype="f8", chunks=(9, 9))[:] = X
    group.create_array("one", shape=(3,), dtype="f8", chunks=(3,))
    if consolidated:
        zarr.consolidate_metadata(tmp_path / "g")
    assert np.array_equal(whole(read_zarr(tmp_path / "g", Options())), X)
    group.create_array("b", shape=(2, 2), dtype="f8", chunks=(2, 2))[:] = 4
    with pytest.raises(DataError, match=r"'a/X' \[103, 7\], 'b' \[2, 2\]; say which with key="):
        list(read_zarr(tmp_path / "g", Options()))
    assert whole(read_zarr(tmp_path / "g", Options(key="b"))).tolist() == [[4, 4], [4, 4]]
    assert np.array_equal(whole(read_zarr(tmp_path / "g", Options(key="/a/X"))), X)
    for key, part in {"one": "1 dimension", "z": "no array 'z'", "../g/b": "no array"}.items():
        with pytest.raises(DataError, match=part):
            list(read_zarr(tmp_path / "g", Options(key=key)))


def test_columns_labels_and_precision_are_chosen(tmp_path):
    path = write(tmp_path / "x")
    blocks = list(read_zarr(path, Options(columns=[4, 1], label=2, dtype="float32")))
    assert np.array_equal(whole(blocks), X[:, [4, 1]].astype(np.float32))
    assert np.array_equal(np.concatenate([b.labels for b in blocks]), X[:, 2])
    with pytest.raises(DataError, match="no column 'a'"):
        list(read_zarr(path, Options(drop=["a"])))


def test_an_array_without_rows_tells_its_width(tmp_path):
    (block,) = read_zarr(write(tmp_path / "x", X[:0]), Options())
    assert block.rows.shape == (0, 7)


def test_chunks_that_were_not_written_hold_the_fill_value(tmp_path):
    array = zarr.create_array(tmp_path / "x", shape=(20, 2), chunks=(5, 2), dtype="f8")
    array[5:10] = 1
    found = whole(read_zarr(tmp_path / "x", Options()))
    assert found.sum() == 10
    assert found.shape == (20, 2)


def change(path, edit):
    """Edit the metadata of an array that is fine otherwise."""
    file = path / ("zarr.json" if (path / "zarr.json").exists() else ".zarray")
    metadata = json.loads(file.read_text())
    edit(metadata)
    file.write_text(json.dumps(metadata))
    return path


def inner(metadata, key):
    return metadata["codecs"][0]["configuration"][key]


REFUSED = "write it again"  # in words of zarr, which vary
PICKLE = {"id": "pickle", "protocol": 4}
BAD = {
    "object": (2, lambda m: m.update(dtype="|O", filters=[PICKLE]), "pickle|type"),
    "object without filter": (2, lambda m: m.update(dtype="|O", filters=None), REFUSED),
    "pickle filter": (2, lambda m: m.update(filters=[PICKLE]), "'pickle'.*write it again"),
    "pickle compressor": (2, lambda m: m.update(compressor=PICKLE), "'pickle'.*write it again"),
    "last filter": (
        2,
        lambda m: m.update(filters=[{"id": "shuffle", "elementsize": 8}, PICKLE]),
        "'pickle'.*write it again",
    ),
    "json2": (2, lambda m: m.update(filters=[{"id": "json2"}]), "'json2'.*write it again"),
    "vlen": (2, lambda m: m.update(filters=[{"id": "vlen-utf8"}]), "'vlen-utf8'.*write it again"),
    "filter of objects": (
        2,
        lambda m: m.update(filters=[{"id": "delta", "dtype": "|O"}]),
        REFUSED,
    ),
    "records": (2, lambda m: m.update(dtype=[["a", "<f8"]]), REFUSED),
    "text": (2, lambda m: m.update(dtype="<U9"), REFUSED),
    "complex": (2, lambda m: m.update(dtype="<c16"), REFUSED),
    "codec by name only": (2, lambda m: m.update(compressor="pickle"), REFUSED),
    "version": (2, lambda m: m.update(zarr_format=9), REFUSED),
    "codec": (3, lambda m: m["codecs"].append({"name": "numcodecs.pickle"}), "numcodecs.pickle"),
    "codec vlen": (3, lambda m: m["codecs"].insert(0, {"name": "vlen-bytes"}), REFUSED),
    "type": (3, lambda m: m.update(data_type="string"), REFUSED),
    "type extension": (3, lambda m: m.update(data_type={"name": "float64"}), REFUSED),
    "grid": (3, lambda m: m["chunk_grid"].update(name="rectangular"), REFUSED),
    "transformers": (3, lambda m: m.update(storage_transformers=[{"name": "x"}]), REFUSED),
    "inner codec": (4, lambda m: inner(m, "codecs").append({"name": "pickle"}), "'pickle'"),
    "index codec": (4, lambda m: inner(m, "index_codecs").append({"name": "pickle"}), "'pickle'"),
    "large chunk": (3, lambda m: grid(m, [1 << 20, 1 << 10]), "over 1 GB"),
    "large row of chunks": (
        3,
        lambda m: (grid(m, [1 << 20, 100]), m.update(shape=[1 << 20, 1 << 20])),
        "over 8 GB side by side",
    ),
    "negative": (3, lambda m: m.update(shape=[-1, 7]), REFUSED),
    "chunks of nothing": (3, lambda m: grid(m, [0, 7]), REFUSED),
    "no codecs": (3, lambda m: m.pop("codecs"), "write it again"),
    "many dimensions": (3, lambda m: m.update(shape=[3, 3, 3]), REFUSED),
}


def grid(metadata, chunks):
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = chunks


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_allowed_is_refused_before_zarr_reads_a_chunk(tmp_path, monkeypatch, name):
    kind, edit, part = BAD[name]
    shards = {"shards": (40, 6)} if kind == 4 else {}
    path = write(tmp_path / "x", zarr_format=min(kind, 3), **shards)
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda *_: pytest.fail("a chunk was read"))
    with pytest.raises(DataError, match=part):
        list(read_zarr(change(path, edit), Options()))


def test_metadata_consolidated_in_the_group_are_not_believed(tmp_path):
    """A group's copy says pickle where the array's own metadata say nothing of it."""

    class Bomb:
        def __reduce__(self):
            return (tmp_path / "exploded").mkdir, ()

    group = zarr.create_group(tmp_path / "g", zarr_format=2)
    group.create_array("X", shape=(1, 1), dtype="f8", chunks=(1, 1), compressors=None)[:] = 3
    zarr.consolidate_metadata(tmp_path / "g")
    file = tmp_path / "g" / ".zmetadata"
    metadata = json.loads(file.read_text())
    metadata["metadata"]["X/.zarray"].update(dtype="|O", filters=[PICKLE], fill_value=None)
    file.write_text(json.dumps(metadata))
    assert whole(read_zarr(tmp_path / "g", Options())).tolist() == [[3]]
    (tmp_path / "g" / "X" / "0.0").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError):
        list(read_zarr(tmp_path / "g", Options()))
    assert not (tmp_path / "exploded").exists()


def test_huge_metadata_are_refused(tmp_path):
    path = write(tmp_path / "x")
    (path / "zarr.json").write_text(json.dumps({"a": "b" * (1 << 20)}))
    with pytest.raises(DataError, match="write it again"):
        list(read_zarr(path, Options()))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"array"', b"\xff\xfe", b"[" * 100_000])
def test_metadata_that_are_no_object_are_refused(tmp_path, content):
    path = write(tmp_path / "x")
    (path / "zarr.json").write_bytes(content)
    with pytest.raises(DataError, match=r"x.*write it again"):
        list(read_zarr(path, Options()))


@pytest.mark.parametrize("name", ["gzip", "zstd", "blosc", "none", "sharded", "version 2, lzma"])
def test_a_damaged_chunk_is_refused(tmp_path, name):
    path = write(tmp_path / "x", **WRITTEN[name])
    chunk = max(
        (file for file in path.rglob("*") if file.is_file()), key=lambda f: f.stat().st_size
    )
    content = chunk.read_bytes()
    for cut in (0, 1, len(content) // 2, len(content) - 1):
        chunk.write_bytes(content[:cut])
        with pytest.raises(DataError, match=r"x.*write it again"):
            list(read_zarr(path, Options()))


def test_a_cut_or_other_zip_file_is_refused(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        write(store)
    content = (tmp_path / "x.zip").read_bytes()
    for cut in np.linspace(0, len(content) - 1, 40).astype(int):
        (tmp_path / "cut.zip").write_bytes(content[:cut])
        with pytest.raises(DataError, match="cut"):
            list(read_zarr(tmp_path / "cut.zip", Options()))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "nothing")
    with pytest.raises(DataError, match="holds no array"):
        list(read_zarr(tmp_path / "other.zip", Options()))


def test_an_empty_folder_holds_no_array(tmp_path):
    with pytest.raises(DataError, match="holds no array; expected one with 2 dimensions"):
        list(read_zarr(tmp_path, Options()))


def test_a_missing_store_is_the_systems_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_zarr(tmp_path / "x", Options()))


def test_without_zarr_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "x")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(MissingExtra, match=r"localpower\[zarr\]"):
        FORMATS["zarr"].open(path, Options(), None)
