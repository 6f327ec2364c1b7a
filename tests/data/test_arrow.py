"""Parquet, Arrow and Feather: the same bits come back, and what is damaged is refused."""

import decimal
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from localpower.core.errors import DataError, MissingExtra
from localpower.data import blocks as readers
from localpower.data.blocks import Options
from localpower.data.detect import FORMATS
from localpower.data.readers import arrow
from localpower.data.readers.arrow import arrow_blocks, column_blocks, read_arrow, read_parquet

ROWS = 1000


def table(dtype="float64", rows=ROWS, width=5):
    values = np.random.default_rng(0).integers(0, 100, (rows, width)).astype(dtype)
    if values.dtype.kind == "f":
        values += np.random.default_rng(1).standard_normal((rows, width)).astype(dtype)
    return pa.table({f"c{j}": values[:, j].copy() for j in range(width)}), values


def write_stream(content, path, **options):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as writer:
        writer.write_table(content, **options)


WRITERS = {
    "parquet": (lambda t, p: pq.write_table(t, p), read_parquet),
    "parquet, row groups": (lambda t, p: pq.write_table(t, p, row_group_size=77), read_parquet),
    "parquet, zstd": (lambda t, p: pq.write_table(t, p, compression="zstd"), read_parquet),
    "parquet, plain": (
        lambda t, p: pq.write_table(t, p, compression="none", use_dictionary=False),
        read_parquet,
    ),
    "parquet, split": (
        lambda t, p: pq.write_table(
            t, p, use_dictionary=False, use_byte_stream_split=True, row_group_size=400
        ),
        read_parquet,
    ),
    "feather": (lambda t, p: feather.write_feather(t, p), read_arrow),
    "feather, chunks": (lambda t, p: feather.write_feather(t, p, chunksize=93), read_arrow),
    "feather, plain": (lambda t, p: feather.write_feather(t, p, "uncompressed"), read_arrow),
    "stream": (write_stream, read_arrow),
    "stream, chunks": (lambda t, p: write_stream(t, p, max_chunksize=1), read_arrow),
}


def whole(blocks):
    blocks = list(blocks)
    assert len({(b.rows.dtype, b.rows.shape[1], b.names) for b in blocks}) == 1
    assert all(b.rows.flags.c_contiguous for b in blocks)
    return np.concatenate([b.rows for b in blocks])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 4000)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8", "uint16", "bool"])
@pytest.mark.parametrize("name", WRITERS)
def test_the_same_bits_come_back(tmp_path, name, dtype):
    if name == "parquet, split" and dtype == "bool":
        pytest.skip("Parquet does not split these")
    content, values = table(dtype)
    write, read = WRITERS[name]
    write(content, tmp_path / "x")
    found = whole(read(tmp_path / "x", Options()))
    assert found.dtype == (np.float32 if dtype == "float32" else np.float64)
    assert np.array_equal(found, values)


def test_a_row_group_too_large_to_decode_whole_is_read_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow, "BATCH_BYTES", 5 * 8 * 64)
    content, values = table()
    pq.write_table(content, tmp_path / "x", row_group_size=300)
    sizes = []
    monkeypatch.setattr(
        arrow,
        "_view",
        lambda *args, view=arrow._view: sizes.append(len(args[1])) or view(*args),
    )
    assert np.array_equal(whole(read_parquet(tmp_path / "x", Options())), values)
    assert max(sizes) == 64


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", WRITERS)
def test_blocks_are_neither_large_nor_many_whatever_the_chunks_of_the_file(tmp_path, name):
    write, read = WRITERS[name]
    write(table()[0], tmp_path / "x")
    sizes = [len(block.rows) for block in read(tmp_path / "x", Options())]
    assert sum(sizes) == 1000
    assert max(sizes) <= 100
    assert len(sizes) <= 20


def test_half_precision_is_read_as_single_and_decimals_as_double(tmp_path):
    values = [decimal.Decimal("1.25"), decimal.Decimal("-3.50")]
    pq.write_table(pa.table({"h": np.array([1.5, 2], np.float16)}), tmp_path / "h")
    pq.write_table(pa.table({"d": pa.array(values, pa.decimal128(9, 2))}), tmp_path / "d")
    half, dec = (whole(read_parquet(tmp_path / name, Options())) for name in "hd")
    assert half.dtype == np.float32
    assert half.ravel().tolist() == [1.5, 2]
    assert dec.dtype == np.float64
    assert dec.ravel().tolist() == [1.25, -3.5]


@pytest.mark.parametrize("name", ["parquet", "parquet, row groups", "feather", "stream"])
def test_columns_are_taken_in_the_order_asked_for_and_labels_go_along(tmp_path, name):
    content, values = table("float32")
    text = [f"name {i}" for i in range(ROWS)]
    content = content.append_column("who", [text]).append_column("no", [list(range(ROWS))])
    write, read = WRITERS[name]
    write(content, tmp_path / "x")
    blocks = list(read(tmp_path / "x", Options(columns=["c3", 0], label="who")))
    assert blocks[0].names == ("c3", "c0")
    assert np.array_equal(whole(blocks), values[:, [3, 0]])
    assert np.concatenate([b.labels for b in blocks]).tolist() == text
    (block,) = read(tmp_path / "x", Options(drop=["who", "c1"], label="no", dtype="float64"))
    assert block.names == ("c0", "c2", "c3", "c4")
    assert block.rows.dtype == np.float64
    assert block.labels.tolist() == list(range(ROWS))


def test_labels_may_be_categories(tmp_path):
    content = pa.table({"x": [1.0, 2.0], "kind": pa.array(["a", "b"]).dictionary_encode()})
    feather.write_feather(content, tmp_path / "x")
    (block,) = read_arrow(tmp_path / "x", Options(label="kind"))
    assert block.labels.tolist() == ["a", "b"]
    assert block.labels.dtype.kind == "U"


def test_a_flat_column_is_told_from_a_field_of_the_same_name(tmp_path):
    content = pa.table({"a": [{"b": 1.0}], "a.b": [7.0]})
    pq.write_table(content, tmp_path / "x")
    assert whole(read_parquet(tmp_path / "x", Options(drop=["a"]))).tolist() == [[7.0]]


@pytest.mark.parametrize("name", ["parquet", "feather", "stream"])
def test_a_file_without_rows_tells_its_width(tmp_path, name):
    write, read = WRITERS[name]
    write(table(rows=0)[0], tmp_path / "x")
    (block,) = read(tmp_path / "x", Options())
    assert block.rows.shape == (0, 5)


@pytest.mark.parametrize("name", ["parquet, row groups", "feather, chunks", "stream, chunks"])
def test_a_null_is_refused_with_its_row_in_the_file(tmp_path, name):
    values = [1.0] * 500
    values[300] = None
    write, read = WRITERS[name]
    write(pa.table({"a": [2] * 500, "b": values}), tmp_path / "x")
    with pytest.raises(
        DataError, match=r"x, row 300, column 'b': the value is missing .* drop=\['b'\]"
    ):
        list(read(tmp_path / "x", Options()))
    assert len(whole(read(tmp_path / "x", Options(drop=["b"])))) == 500
    labels = np.concatenate([b.labels for b in read(tmp_path / "x", Options(label="b"))])
    assert np.flatnonzero(np.isnan(labels)).tolist() == [300]


NOT_NUMBERS = {
    "text": pa.array(["a"]),
    "date": pa.array([0], pa.date32()),
    "time": pa.array([0], pa.timestamp("us")),
    "list": pa.array([[1.0]]),
    "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"a": 1.0}]),
    "category": pa.array(["a"]).dictionary_encode(),
    "bytes": pa.array([b"a"]),
    "nothing": pa.nulls(1),
}


@pytest.mark.parametrize("name", ["parquet", "feather", "stream"])
def test_all_columns_that_are_not_numbers_are_named_at_once(tmp_path, name):
    write, read = WRITERS[name]
    write(pa.table({"x": [1.0], **NOT_NUMBERS}), tmp_path / "x")
    with pytest.raises(DataError, match="not numbers") as caught:
        list(read(tmp_path / "x", Options()))
    assert all(f"{key!r} (" in str(caught.value) for key in NOT_NUMBERS)
    assert f"drop={list(NOT_NUMBERS)}" in str(caught.value)
    assert whole(read(tmp_path / "x", Options(drop=list(NOT_NUMBERS)))).tolist() == [[1.0]]


def test_an_extension_type_is_refused(tmp_path):
    content = pa.table({"u": pa.array([b"0" * 16], pa.uuid())})
    feather.write_feather(content, tmp_path / "x")
    with pytest.raises(DataError, match="'u'"):
        list(read_arrow(tmp_path / "x", Options()))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (Options(drop=["a", "b", "when"]), "no column is left"),
        (Options(columns=["z"]), "no column 'z'"),
        (Options(label="b", columns=["b"]), "no column is left"),
        (Options(label="when"), "'when' .* cannot be a label"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(tmp_path, options, part):
    content = pa.table({"a": [1.0], "b": [1.0], "when": NOT_NUMBERS["time"]})
    pq.write_table(content, tmp_path / "x")
    with pytest.raises(DataError, match=part):
        list(read_parquet(tmp_path / "x", options))


INDEXES = {
    "dropna": lambda frame: frame.dropna(),
    "named": lambda frame: frame.set_index(frame["a"].rank().rename("row")),
    "two levels": lambda frame: frame.set_index([[1, 1, 2, 2], [3.0, 4.0, 3.0, 4.0]]),
    "a range": lambda frame: frame.reset_index(drop=True),
    "text": lambda frame: frame.set_index([["p", "q", "r", "s"]]),
}
FILES = {
    "parquet": (lambda frame, path: frame.to_parquet(path), read_parquet),
    "feather": (
        lambda frame, path: feather.write_feather(pa.Table.from_pandas(frame), path),
        read_arrow,
    ),
    "stream": (lambda frame, path: write_stream(pa.Table.from_pandas(frame), path), read_arrow),
    "memory": (None, arrow_blocks),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("index", INDEXES)
def test_the_index_that_pandas_stored_is_no_feature(tmp_path, kind, index):
    pd = pytest.importorskip("pandas")
    values = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0], [7.0, 8.0]])
    if index != "dropna":
        values[1, 1] = 4.0
    frame = INDEXES[index](pd.DataFrame(values, columns=["a", "b"]))
    write, read = FILES[kind]
    content = tmp_path / "x" if write else pa.Table.from_pandas(frame)
    if write:
        write(frame, content)
    args = (content, Options()) if write else (content, Options(), "data")
    blocks = list(read(*args))
    assert blocks[0].names == ("a", "b")
    assert whole(blocks).tolist() == values[~np.isnan(values[:, 1])].tolist()


def test_an_index_can_be_asked_for_by_name_or_number_and_be_a_label(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=pd.Index([7.0, 9.0], name="time"))
    frame.to_parquet(tmp_path / "x")
    for column in ("time", 1):
        found = read_parquet(tmp_path / "x", Options(columns=["a", column]))
        assert whole(found).tolist() == [[1.0, 7.0], [2.0, 9.0]]
    (block,) = read_parquet(tmp_path / "x", Options(label="time"))
    assert (block.rows.tolist(), block.labels.tolist()) == ([[1.0], [2.0]], [7.0, 9.0])
    frame[[]].to_parquet(tmp_path / "y")
    with pytest.raises(DataError, match=r"all its columns are the index .* columns=\['time'\]"):
        list(read_parquet(tmp_path / "y", Options()))
    assert whole(read_parquet(tmp_path / "y", Options(columns=["time"]))).tolist() == [[7.0], [9.0]]


@pytest.mark.parametrize(
    "noted", [b"", b"not json", b"[]", b"{}", b'{"index_columns": 3}', b"\xff"]
)
def test_notes_of_pandas_that_make_no_sense_are_passed_over(tmp_path, noted):
    content, values = table(width=2)
    pq.write_table(content.replace_schema_metadata({b"pandas": noted}), tmp_path / "x")
    assert np.array_equal(whole(read_parquet(tmp_path / "x", Options())), values)


def test_two_columns_of_one_name_are_refused_unless_left_out(tmp_path):
    content = pa.table([[1.0], [2.0], [3.0]], names=["a", "a", "b"])
    feather.write_feather(content.rename_columns(["a", "b", "c"]), tmp_path / "x")
    write_stream(content, tmp_path / "y")
    with pytest.raises(DataError, match=r"2 columns are named 'a'.*drop=\[0, 1\]"):
        list(read_arrow(tmp_path / "y", Options()))
    assert whole(read_arrow(tmp_path / "y", Options(drop=[0, 1]))).tolist() == [[3.0]]


def test_an_unknown_precision_is_a_bad_argument(tmp_path):
    pq.write_table(table()[0], tmp_path / "x")
    with pytest.raises(ValueError, match=r"^dtype='float16' is not known: take 'float32'"):
        list(read_parquet(tmp_path / "x", Options(dtype="float16")))


def test_numbers_too_large_for_single_precision_become_infinite(tmp_path):
    pq.write_table(pa.table({"a": [1e300, 1.0]}), tmp_path / "x")
    found = whole(read_parquet(tmp_path / "x", Options(dtype="float32")))
    assert found.ravel().tolist() == [np.inf, 1.0]


def test_very_long_texts_are_no_labels():
    with pytest.raises(DataError, match="characters"):
        readers.text_labels(["x" * 1_000_000] + ["y"] * 1000, "data")


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_cut_anywhere_is_refused(tmp_path, name):
    write, read = WRITERS[name]
    write(table(rows=200)[0], tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    for cut in sorted({*range(1, 40), *np.linspace(40, len(content) - 1, 60).astype(int)}):
        (tmp_path / "cut").write_bytes(content[:cut])
        with pytest.raises(DataError, match="cut"):
            list(read(tmp_path / "cut", Options()))


def test_a_stream_cut_between_batches_is_refused(tmp_path):
    write_stream(table(rows=200)[0], tmp_path / "x", max_chunksize=20)
    content = (tmp_path / "x").read_bytes()
    assert content.endswith(arrow.END_OF_STREAM)
    (tmp_path / "x").write_bytes(content[:-8])
    with pytest.raises(DataError, match="no end mark"):
        list(read_arrow(tmp_path / "x", Options()))


@pytest.mark.parametrize("read", [read_parquet, read_arrow])
@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "write it again"),
        (b"PK\x03\x04" + bytes(100), "write it again"),
        (b"FEA1" + bytes(100) + b"FEA1", "write it again"),
        (b"PAR1PAR1", "write it again"),
        (b"PAR1\xff\xff\xff\x7fPAR1", "write it again"),
        (b"ARROW1\0\0" + bytes(50) + b"ARROW1", "write it again"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f" + arrow.END_OF_STREAM, "write it again"),
        (b"1,2,3\n4,5,6\n", "write it again"),
    ],
)
def test_other_content_is_refused(tmp_path, read, content, part):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(DataError, match=f"bad.*{part}"):
        list(read(tmp_path / "bad", Options()))


@pytest.mark.parametrize(
    "name", ["parquet", "parquet, plain", "feather", "feather, plain", "stream"]
)
def test_changed_bytes_are_refused_or_read_but_never_crash(tmp_path, name):
    write, read = WRITERS[name]
    content, values = table(rows=50)
    write(content, tmp_path / "x")
    good = (tmp_path / "x").read_bytes()
    rng = np.random.default_rng(2)
    for _ in range(300):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad), 3):
            bad[at] = rng.integers(256)
        (tmp_path / "bad").write_bytes(bad)
        try:
            found = whole(read(tmp_path / "bad", Options()))
        except DataError:
            continue
        assert found.shape[1] <= values.shape[1]


def test_a_missing_file_is_the_systems_own_error(tmp_path):
    for read in (read_parquet, read_arrow):
        with pytest.raises(FileNotFoundError):
            list(read(tmp_path / "x", Options()))


def test_an_old_pyarrow_is_refused(tmp_path, monkeypatch):
    pq.write_table(table()[0], tmp_path / "x")
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    with pytest.raises(MissingExtra, match=r"pyarrow 14.0.0 .*localpower\[parquet\]"):
        list(read_parquet(tmp_path / "x", Options()))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    pq.write_table(table()[0], tmp_path / "x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("parquet", "arrow"):
        with pytest.raises(MissingExtra, match=r"localpower\[parquet\]"):
            FORMATS[name].open(tmp_path / "x", Options(), None)


def test_importing_the_readers_imports_none_of_their_libraries():
    code = (
        "import sys, localpower, localpower.data.readers.arrow, localpower.data.readers.zarr, "
        "localpower.data.readers.hdf5, localpower.data.readers.frames, localpower.data.readers.csv"
        "\n"
        "found = {'pyarrow', 'zarr', 'h5py', 'pandas', 'polars', 'dask'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_columns_become_rows_across_parts_of_any_size(monkeypatch):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 64 * 2 * 8)
    values = np.arange(600.0).reshape(300, 2)
    cuts = [0, 0, 1, 5, 5, 140, 143, 180, 181, 299, 300]
    parts = [([values[a:b, 0], values[a:b, 1]], np.arange(a, b)) for a, b in pairwise(cuts)]
    blocks = list(column_blocks(parts, ("a", "b"), np.dtype(float)))
    assert [len(b.rows) for b in blocks] == [64, 64, 12, 64, 64, 31, 1]
    assert np.array_equal(whole(blocks), values)
    assert np.concatenate([b.labels for b in blocks]).tolist() == list(range(300))
