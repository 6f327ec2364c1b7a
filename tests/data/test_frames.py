"""Tables of pandas, polars, pyarrow and Dask give their rows, lazily where they are lazy."""

from decimal import Decimal

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from localpower.core.errors import DataError
from localpower.data import blocks as readers
from localpower.data.blocks import Options
from localpower.data.hints import label_hint
from localpower.data.readers.frames import frame_blocks, frame_names, is_frame

X = np.random.default_rng(0).standard_normal((103, 4)) * 50
NAMES = ["a", "b", "c", "d"]


MAKERS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "table": pa.table,
    "batch": pa.record_batch,
    "dask": lambda columns: dd.from_pandas(pd.DataFrame(columns), npartitions=3),
}


def columns(values):
    return {name: values[:, j].copy() for j, name in enumerate(NAMES)}


def whole(blocks):
    blocks = list(blocks)
    assert len({(b.rows.dtype, b.rows.shape[1], b.names) for b in blocks}) == 1
    if hasattr(blocks[0].rows, "tocsr"):
        assert all(b.rows.has_canonical_format for b in blocks)
        return sparse.vstack([b.rows for b in blocks]).toarray()
    assert all(b.rows.flags.c_contiguous for b in blocks)
    return np.concatenate([b.rows for b in blocks])


def labels(blocks):
    return np.concatenate([block.labels for block in blocks]).tolist()


@pytest.mark.parametrize("block_bytes", [1 << 23, 500])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i8", "u4", "bool"])
@pytest.mark.parametrize("maker", MAKERS)
def test_the_same_bits_come_out_of_every_table(monkeypatch, maker, dtype, block_bytes):
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    frame = MAKERS[maker](columns(X.astype(dtype)))
    assert is_frame(frame)
    assert frame_names(frame) == tuple(NAMES)
    blocks = list(frame_blocks(frame, Options()))
    found = whole(blocks)
    assert found.dtype == (np.float32 if dtype == "f4" else np.float64)
    assert np.array_equal(found, X.astype(dtype))
    assert blocks[0].names == tuple(NAMES)


@pytest.mark.parametrize("maker", MAKERS)
def test_columns_labels_and_precision_are_chosen(maker):
    text = [f"row {i}" for i in range(len(X))]
    frame = MAKERS[maker]({**columns(X), "who": text, "no": np.arange(len(X))})
    options = Options(columns=["c", 0], label="who", dtype="float32")
    blocks = list(frame_blocks(frame, options))
    assert np.array_equal(whole(blocks), X[:, [2, 0]].astype("f4"))
    assert labels(blocks) == text
    assert all(block.labels.dtype.kind == "U" for block in blocks)
    blocks = list(frame_blocks(frame, Options(drop=["who"], label="no")))
    assert np.array_equal(whole(blocks), X)
    assert labels(blocks) == list(range(len(X)))


@pytest.mark.parametrize("maker", MAKERS)
def test_columns_that_are_not_numbers_are_named_at_once(maker):
    days = np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "M8[us]")
    frame = MAKERS[maker]({"x": [1.0, 2, 3], "text": ["a", "b", "c"], "day": days})
    with pytest.raises(DataError, match=r"'text' \(.*'day' \(.*drop=\['text', 'day'\]"):
        list(frame_blocks(frame, Options()))
    assert whole(frame_blocks(frame, Options(drop=["text", "day"]))).tolist() == [[1], [2], [3]]
    with pytest.raises(DataError, match=r"'day'.*cannot be a label"):
        list(frame_blocks(frame, Options(columns=["x"], label="day")))
    with pytest.raises(DataError, match="no column is left"):
        list(frame_blocks(frame, Options(columns=["x"], drop=["x"])))


NULLABLE = {
    "polars": lambda values: pl.DataFrame({"a": [1.0] * len(values), "b": values}),
    "table": lambda values: pa.table({"a": [1.0] * len(values), "b": values}),
    "Int64": lambda values: pd.DataFrame({"a": 1.0, "b": pd.array(values, "Int64")}),
    "Float32": lambda values: pd.DataFrame({"a": 1.0, "b": pd.array(values, "Float32")}),
    "boolean": lambda values: pd.DataFrame(
        {"a": 1.0, "b": pd.array([v if v is None else v > 4 for v in values], "boolean")}
    ),
    "pyarrow": lambda values: pd.DataFrame({"a": 1.0, "b": pd.array(values, "int64[pyarrow]")}),
    "dask": lambda values: dd.from_pandas(
        pd.DataFrame({"a": 1.0, "b": pd.array(values, "Int64")}), npartitions=3
    ),
}


@pytest.mark.parametrize("kind", NULLABLE)
def test_a_null_is_refused_with_its_row_and_column(monkeypatch, kind):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 16)
    values = list(range(9))
    found = whole(frame_blocks(NULLABLE[kind](values), Options()))
    assert found[:, 1].tolist() == ([v > 4 for v in values] if kind == "boolean" else values)
    values[7] = None
    with pytest.raises(DataError, match=r"row 7, column 'b': the value is missing .*drop=\['b'\]"):
        list(frame_blocks(NULLABLE[kind](values), Options()))
    blocks = list(frame_blocks(NULLABLE[kind](values), Options(label="b")))
    labels = np.concatenate([block.labels for block in blocks])
    assert np.flatnonzero(np.isnan(labels)).tolist() == [7]
    assert len(whole(frame_blocks(NULLABLE[kind](values), Options(drop=["b"])))) == 9


def test_floats_that_are_nullable_and_single_stay_single():
    frame = pd.DataFrame({"a": pd.array([1.5, 2], "Float32"), "b": np.array([3, 4], "f4")})
    assert whole(frame_blocks(frame, Options())).dtype == np.float32


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"a": [Decimal("1.25"), Decimal("2.5")]}),
        pa.table({"a": [Decimal("1.25"), Decimal("2.5")]}),
        pd.DataFrame(
            {"a": pd.array([Decimal("1.25"), Decimal("2.5")], pd.ArrowDtype(pa.decimal128(9, 2)))}
        ),
    ],
    ids=["polars", "pyarrow", "pandas"],
)
def test_decimals_are_numbers(frame):
    assert whole(frame_blocks(frame, Options())).ravel().tolist() == [1.25, 2.5]


def test_polars_integers_of_128_bits_are_numbers():
    frame = pl.DataFrame({"a": pl.Series([1, 2**70], dtype=pl.Int128)})
    assert whole(frame_blocks(frame, Options())).ravel().tolist() == [1, 2.0**70]


@pytest.mark.parametrize(
    "values",
    [pd.Categorical(["u", "v", "u"]), pd.Series(["u", "v", "u"], dtype=object)],
    ids=["category", "object"],
)
def test_pandas_text_of_any_type_may_be_a_label_but_no_feature(values):
    frame = pd.DataFrame({"x": [1.0, 2, 3], "t": values})
    assert labels(list(frame_blocks(frame, Options(label="t")))) == ["u", "v", "u"]
    with pytest.raises(DataError, match=r"'t' \((category|object)\)"):
        list(frame_blocks(frame, Options()))


def test_a_polars_category_may_be_a_label():
    frame = pl.DataFrame({"x": [1.0, 2], "t": pl.Series(["u", "v"], dtype=pl.Categorical)})
    assert labels(list(frame_blocks(frame, Options(label="t")))) == ["u", "v"]


def test_a_row_ordered_frame_is_not_copied():
    frame = pd.DataFrame(X, columns=NAMES, copy=False)
    assert all(np.shares_memory(b.rows, X) for b in frame_blocks(frame, Options()))


def test_a_column_ordered_frame_is_transposed_block_by_block(monkeypatch):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 320)
    frame = pd.DataFrame(np.asfortranarray(X), columns=NAMES)
    blocks = list(frame_blocks(frame, Options()))
    assert [len(block.rows) for block in blocks] == [10] * 10 + [3]
    assert np.array_equal(whole(blocks), X)


def test_names_may_be_numbers():
    found = frame_blocks(pd.DataFrame(X), Options(columns=[2, 1]))
    assert np.array_equal(whole(found), X[:, [2, 1]])


@pytest.mark.parametrize("kind", ["pandas", "dask"])
def test_columns_of_the_same_name_are_refused_and_can_be_left_out(kind):
    frame = pd.DataFrame(X, columns=["a", "a", "b", "b"])
    twice = frame if kind == "pandas" else dd.from_pandas(frame, npartitions=2)
    for drop, message in (
        ([], r"named 'a', 2 columns are named 'b'; rename them, .* with drop=\[1, 3\]"),
        ([0], r"named 'b'; .* with drop=\[3\]"),
    ):
        with pytest.raises(DataError, match=f"2 columns are {message}"):
            whole(frame_blocks(twice, Options(drop=drop)))
    for name in ("drop", "columns", "label"):
        asked = "a" if name == "label" else ["a"]
        with pytest.raises(DataError, match=r"2 columns are named 'a'; say which by number"):
            whole(frame_blocks(twice, Options(**{name: asked})))
    found = frame_blocks(twice, Options(drop=[1, 2], label=2))
    assert np.array_equal(whole(found), X[:, [0, 3]])


@pytest.mark.parametrize("block_bytes", [1 << 23, 200])
def test_sparse_pandas_columns_stay_sparse(monkeypatch, block_bytes):
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    matrix = sparse.random_array((90, 6), density=0.2, rng=np.random.default_rng(1), format="csr")
    frame = pd.DataFrame.sparse.from_spmatrix(matrix)
    blocks = list(frame_blocks(frame, Options()))
    assert all(hasattr(block.rows, "tocsr") for block in blocks)
    assert np.array_equal(whole(blocks), matrix.toarray())
    frame["t"] = [str(i) for i in range(90)]
    blocks = list(frame_blocks(frame, Options(label="t", drop=[0])))
    assert np.array_equal(whole(blocks), matrix.toarray()[:, 1:])
    assert labels(blocks) == [str(i) for i in range(90)]


def test_sparse_columns_beside_others_or_not_filled_with_zeros_become_dense():
    mixed = pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 2.0], fill_value=0), "b": [1.0, 2, 3]})
    assert whole(frame_blocks(mixed, Options())).tolist() == [[0, 1], [0, 2], [2, 3]]
    ones = pd.DataFrame({"a": pd.arrays.SparseArray([1, 1, 2.0], fill_value=1)})
    assert whole(frame_blocks(ones, Options())).tolist() == [[1], [1], [2]]


@pytest.mark.parametrize("maker", ["pandas", "polars", "table", "batch"])
def test_a_table_without_rows_tells_its_width(maker):
    (block,) = frame_blocks(MAKERS[maker](columns(X[:0])), Options())
    assert block.rows.shape == (0, 4)
    assert block.names == tuple(NAMES)


def test_tables_in_many_chunks_are_read_whole(monkeypatch):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 640)
    halves = columns(X[:50]), columns(X[50:])
    for frame in (
        pl.concat([pl.DataFrame(half) for half in halves], rechunk=False),
        pa.concat_tables([pa.table(half) for half in halves]),
    ):
        assert np.array_equal(whole(frame_blocks(frame, Options())), X)


def test_a_lazy_polars_frame_says_what_to_call():
    with pytest.raises(DataError, match=r"LazyFrame; call \.collect\(\)"):
        frame_blocks(pl.LazyFrame({"a": [1.0]}), Options())


@pytest.mark.parametrize(
    "data", [X, sparse.csr_array(X), [[1.0]], "a.csv", pd.Series([1.0]), pl.Series([1.0]), None]
)
def test_other_data_are_left_to_the_caller(data):
    assert frame_blocks(data, Options()) is None
    assert not is_frame(data)
    assert frame_names(data) is None


def test_a_subclass_of_a_frame_is_one():
    class Mine(pd.DataFrame):
        pass

    assert np.array_equal(whole(frame_blocks(Mine(X), Options())), X)


@pytest.mark.parametrize("chunks", [(10, 4), (40, 3), (103, 1), ((0, 50, 0, 53, 0), (2, 2))])
def test_a_dask_array_is_read_whatever_its_chunks(chunks):
    found = whole(frame_blocks(da.from_array(X, chunks=chunks), Options()))
    assert np.array_equal(found, X)
    blocks = list(frame_blocks(da.from_array(X, chunks=chunks), Options(columns=[3, 0], label=1)))
    assert np.array_equal(whole(blocks), X[:, [3, 0]])
    assert np.array_equal(labels(blocks), X[:, 1])


@pytest.mark.parametrize(("dtype", "wanted"), [("f4", "f4"), ("i8", "f8"), ("bool", "f8")])
def test_a_dask_array_keeps_its_precision(dtype, wanted):
    found = whole(frame_blocks(da.from_array(X.astype(dtype), chunks=(9, 2)), Options()))
    assert found.dtype == wanted
    assert np.array_equal(found, X.astype(dtype))


def test_each_row_of_dask_chunks_is_computed_once_in_order_and_no_sooner():
    calls = []

    def make(block_info=None):
        place = block_info[None]["chunk-location"]
        calls.append(place)
        return np.full((5, 2), float(place[0]))

    lazy = da.map_blocks(make, chunks=((5,) * 4, (2, 2)), dtype="f8", meta=np.empty((0, 0)))
    with dask.config.set(scheduler="synchronous"):
        blocks = frame_blocks(lazy, Options())
        assert calls == []
        for i, block in enumerate(blocks):
            assert sorted(calls) == [(row, j) for row in range(i + 1) for j in range(2)]
            assert (block.rows == i).all()
    assert len(calls) == 8


def test_dask_chunks_of_unknown_size_are_taken_as_they_come():
    lazy = da.from_array(X, chunks=(20, 4))
    lazy = lazy[lazy[:, 0] > 0]
    assert np.isnan(lazy.shape[0])
    assert np.array_equal(whole(frame_blocks(lazy, Options())), X[X[:, 0] > 0])


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix, sparse.csc_array])
@pytest.mark.parametrize("widths", [(6,), (2, 4)])
def test_sparse_dask_chunks_stay_sparse(kind, widths):
    matrix = sparse.random_array((90, 6), density=0.2, rng=np.random.default_rng(1), format="csr")
    lazy = da.from_array(matrix.toarray(), chunks=((40, 50), widths)).map_blocks(
        kind, dtype="f8", meta=np.empty((0, 0))
    )
    blocks = list(frame_blocks(lazy, Options()))
    assert all(hasattr(block.rows, "tocsr") for block in blocks)
    assert np.array_equal(whole(blocks), matrix.toarray())


@pytest.mark.parametrize(
    ("lazy", "part"),
    [
        (da.ones(5), "1 dimension"),
        (da.ones((2, 2), dtype="c16"), "dtype complex128"),
        (da.from_array(np.array([["a"]])), "not real numbers"),
    ],
)
def test_dask_arrays_that_are_no_matrix_are_refused(lazy, part):
    with pytest.raises(DataError, match=part):
        frame_blocks(lazy, Options())


def test_a_dask_chunk_that_is_not_as_declared_is_refused():
    lazy = da.ones((6, 2), chunks=(3, 2)).map_blocks(lambda x: x[:, :1], dtype="f8")
    with pytest.raises(DataError, match="shape"):
        list(frame_blocks(lazy, Options()))


def test_dask_partitions_are_computed_once_in_order_and_may_be_empty():
    calls = []

    def make(i):
        calls.append(i)
        return pd.DataFrame(columns(X[:0] if i == 1 else X[i * 10 : i * 10 + 10]))

    lazy = dd.from_map(make, range(4), meta=pd.DataFrame(columns(X[:0])))
    with dask.config.set(scheduler="synchronous"):
        blocks = frame_blocks(lazy, Options())
        assert calls == []
        first = next(blocks)
        assert calls == [0]
        found = whole([first, *blocks])
    assert calls == [0, 1, 2, 3]
    assert np.array_equal(found, np.concatenate([X[:10], X[20:40]]))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (pd.DataFrame({"a": [1.0]}), "partition 0: has other columns"),
        (pd.DataFrame({"a": [1.0], "b": ["text"]}), r"partition 0: .*'b'"),
    ],
)
def test_dask_partitions_that_are_not_as_declared_are_refused(part, message):
    meta = pd.DataFrame({"a": [1.0], "b": [1.0]})
    lazy = dd.from_map(lambda _: part, [0], meta=meta)
    with pytest.raises(DataError, match=message):
        list(frame_blocks(lazy, Options()))


@pytest.mark.parametrize("name", ["label", "Target", " CLASS ", "y", "ID", "Unnamed: 0", "index"])
def test_a_column_that_looks_like_a_label_gives_a_hint(name):
    hint = label_hint(["x1", "x2", "width", name])
    assert f"column {name!r} looks like" in hint
    assert f"drop=[{name!r}]" in hint


def test_ordinary_names_give_no_hint():
    assert label_hint(["label_count", "yy", "idx", "classes"]) is None
    assert label_hint(None) is None


def test_the_index_of_a_frame_does_not_matter_to_nullable_columns(monkeypatch):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 32)
    columns = {
        "a": pd.array([1, 2, 3, 4, 5], dtype="Int64"),
        "b": pd.array([1.5, 2.5, 3.5, 4.5, 5.5], dtype="Float32"),
        "c": pd.arrays.SparseArray([0, 0, 7, 0, 0.0]),
    }
    expected = [[1, 1.5, 0], [2, 2.5, 0], [3, 3.5, 7], [4, 4.5, 0], [5, 5.5, 0]]
    for index in (None, [4.0, 3.0, 2.0, 1.0, 0.0], list("edcba")):
        frame = pd.DataFrame(columns, index=index)
        assert whole(frame_blocks(frame, Options())).tolist() == expected
