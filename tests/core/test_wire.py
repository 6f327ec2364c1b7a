"""Messages come back as they were sent; whatever else arrives is refused, and nothing is run."""

import io
import json
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import sparse

import localpower  # noqa: F401  registers the engines' messages
from localpower.core import wire
from localpower.core.errors import WireError
from localpower.core.moments import Moments
from localpower.core.shard import Shard
from localpower.core.tasks import Done, Factor, PowerSteps, Rows

ENOUGH = 1 << 20
HEADER = wire.PREFIX.size

dtypes = st.sampled_from(sorted(wire.ARRAY_TYPES)).map(np.dtype)
dense = st.tuples(dtypes, array_shapes(max_dims=2, min_side=0, max_side=4)).flatmap(
    lambda kind: arrays(*kind)
)
csr = st.tuples(
    st.sampled_from([np.float32, np.float64, np.int8, np.bool_]),
    st.tuples(st.integers(0, 5), st.integers(1, 5)),
).flatmap(lambda kind: arrays(*kind).map(sparse.csr_array))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars | dense | csr | st.sampled_from([np.dtype("f4"), np.dtype("f8")]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


def messages(name, inner=values):
    kind = wire.MESSAGES[name]
    return st.fixed_dictionaries({f.name: inner for f in fields(kind)}).map(lambda c: kind(**c))


def sent(message):
    stream = io.BytesIO()
    wire.send(message, stream)
    return stream.getvalue()


def received(content, max_bytes=ENOUGH, files=False):
    return wire.receive(io.BytesIO(content), max_bytes, files)


def frame(header, body=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return wire.PREFIX.pack(wire.MAGIC, len(header)) + header + body


def header_of(content):
    _, length = wire.PREFIX.unpack(content[:HEADER])
    return json.loads(content[HEADER : HEADER + length])


def same(a, b):
    """Equality to the last bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if sparse.issparse(a):
        parts = ("data", "indices", "indptr")
        return a.shape == b.shape and all(same(getattr(a, p), getattr(b, p)) for p in parts)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return a == b or a != a  # NaN


SHARD = Shard(
    (np.arange(6.0).reshape(2, 3), sparse.csr_array(np.eye(3)), np.empty((0, 3), np.float32)),
    3,
    np.dtype(float),
)
STEPS = PowerSteps(np.eye(3)[:, :2], 4, "procrustes", send_basis=True)


@pytest.mark.parametrize("name", sorted(wire.MESSAGES))
@given(data=st.data())
@settings(max_examples=25)
def test_every_message_comes_back_as_it_was_sent(name, data):
    message = data.draw(messages(name))
    assert same(received(sent(message)), message)


@given(data=st.data(), names=st.lists(st.sampled_from(sorted(wire.MESSAGES)), max_size=4))
@settings(max_examples=40)
def test_messages_inside_messages_and_one_after_another_keep_apart(data, names):
    several = [data.draw(messages(name, values | messages("Product"))) for name in names]
    stream = io.BytesIO(b"".join(sent(message) for message in several))
    assert all(same(wire.receive(stream, ENOUGH), message) for message in several)
    with pytest.raises(EOFError):
        wire.receive(stream, ENOUGH)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12.0).reshape(3, 4)[::-1, ::2],
        np.arange(6, dtype=">f8").reshape(2, 3),
        np.arange(6, dtype=">i2"),
        np.ma.array([1.0, 2.0]),
        np.broadcast_to(1.5, (2, 2)),
    ],
)
def test_arrays_of_any_layout_arrive_plain(array):
    there = received(sent(Rows(array))).rows
    assert type(there) is np.ndarray
    assert there.dtype.isnative
    np.testing.assert_array_equal(there, array)


def test_numpy_scalars_arrive_as_plain_numbers():
    there = received(sent(Moments(np.int64(3), np.int32(-2), 0.5, np.float32(0.5), np.True_, None)))
    assert (there.rows, there.exponent, there.m2, there.low) == (3, -2, 0.5, True)


@pytest.mark.parametrize(
    "content",
    [
        np.array([{}], dtype=object),
        np.zeros(2, dtype=complex),
        np.zeros(2, dtype=np.longdouble),
        np.array(["a"]),
        np.zeros(2, dtype="M8[s]"),
        np.zeros(2, dtype=[("a", float)]),
        {"a": 1},
        {1, 2},
        b"bytes",
        object(),
        print,
    ],
    ids=repr,
)
def test_what_the_format_does_not_know_cannot_be_sent(content):
    with pytest.raises(TypeError, match="cannot be sent"):
        sent(Rows(content))


@dataclass
class Stranger:
    x: int = 1


def test_types_outside_the_closed_list_cannot_be_sent_nor_received():
    with pytest.raises(TypeError, match="Stranger cannot be sent"):
        sent(Stranger())
    with pytest.raises(WireError):
        received(frame({"message": {"type": "Stranger", "fields": {}}, "arrays": []}))


def test_sending_does_not_copy_arrays():
    array = np.arange(1000.0)
    parts = list(wire.encode(Rows(array)))
    assert np.shares_memory(np.frombuffer(parts[1], np.uint8), array)


# Mapped files


@pytest.fixture
def mapped(tmp_path):
    """A mapped array that starts at an odd byte, beyond the first pages of its file."""
    X = np.random.default_rng(0).standard_normal((3000, 3))
    path, offset = tmp_path / "x.bin", 5 * 4096 + 3
    path.write_bytes(bytes(offset) + X.tobytes())
    return np.memmap(path, np.float64, "r", offset, X.shape)


@pytest.mark.parametrize("cut", [slice(None), slice(1, 2), slice(7, 2900), slice(2999, 3000)])
def test_a_slice_of_a_mapped_file_is_sent_as_a_reference(mapped, cut):
    content = sent(Shard((mapped[cut],), 3, np.dtype(float)))
    assert header_of(content)["arrays"] == []
    [there] = received(content, max_bytes=0, files=True).pieces
    assert isinstance(there, np.memmap)
    assert not there.flags.writeable
    np.testing.assert_array_equal(there, mapped[cut])


def test_a_mapped_npy_file_arrives_equal(tmp_path):
    X = np.arange(60, dtype=np.int16).reshape(20, 3)
    np.save(tmp_path / "x.npy", X)
    loaded = np.load(tmp_path / "x.npy", mmap_mode="r")
    [there] = received(sent(Shard((loaded[3:9],), 3, np.dtype(float))), files=True).pieces
    np.testing.assert_array_equal(there, X[3:9])


def test_a_reference_may_itself_be_sent_on(mapped):
    first = received(sent(Rows(mapped[5:])), files=True).rows
    second = received(sent(Rows(first[2:])), files=True).rows
    np.testing.assert_array_equal(second, mapped[7:])


def test_a_shard_of_dense_sparse_and_mapped_pieces_arrives(mapped):
    matrix = sparse.csr_array(np.eye(3))
    there = received(
        sent(Shard((mapped[:4], matrix, np.ones((1, 3))), 3, mapped.dtype)), files=True
    )
    assert (there.rows, there.columns, there.dtype) == (8, 3, np.float64)
    np.testing.assert_array_equal(there.pieces[0], mapped[:4])
    assert same(there.pieces[1], matrix)
    np.testing.assert_array_equal(there.pieces[2], np.ones((1, 3)))


def test_references_to_files_are_refused_unless_allowed(mapped):
    with pytest.raises(WireError):
        received(sent(Rows(mapped)), files=False)


def test_a_file_that_is_gone_or_shorter_is_a_wire_error(mapped, tmp_path):
    content = sent(Rows(mapped))
    (tmp_path / "x.bin").write_bytes(bytes(100))
    with pytest.raises(WireError, match="shorter"):
        received(content, files=True)
    (tmp_path / "x.bin").unlink()
    with pytest.raises(WireError, match="cannot be mapped"):
        received(content, files=True)


def test_mapped_rows_that_no_other_process_can_map_are_sent_whole(tmp_path):
    X = np.arange(12.0).reshape(4, 3)
    X.tofile(tmp_path / "x.bin")
    private = np.memmap(tmp_path / "x.bin", float, "c", 0, (4, 3))
    private[0, 0] = 99.0
    foreign = np.memmap(tmp_path / "x.bin", ">f8", "r", 0, (4, 3))
    strided = np.memmap(tmp_path / "x.bin", float, "r", 0, (4, 3))[:, ::2]
    for array in (private, foreign, strided, strided[:0], private + 1, np.flip(strided)):
        there = received(sent(Rows(array)), files=False).rows
        np.testing.assert_array_equal(there, array)
    kept = np.memmap(tmp_path / "x.bin", float, "r", 0, (4, 3))
    (tmp_path / "x.bin").unlink()
    np.testing.assert_array_equal(received(sent(Rows(kept))).rows, X)


REFERENCE = {"file": "", "offset": 0, "kind": "<f8", "shape": [2, 3]}


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2**40, 2**40]},
        {"shape": [2**32, 2**32]},
        {"shape": [-1, 3]},
        {"shape": [1, 1, 1]},
        {"shape": 3},
        {"shape": None},
        {"shape": [1.5]},
        {"offset": -1},
        {"offset": 2**70},
        {"offset": 1},
        {"offset": "x"},
        {"offset": None},
        {"kind": "|O"},
        {"kind": ["<f8"]},
        {"file": "/nowhere/at/all"},
        {"file": "/"},
        {"file": "nul\0"},
        {"file": -7},
        {"file": 10**30},
        {"file": None},
    ],
    ids=str,
)
def test_a_reference_that_makes_no_sense_is_a_wire_error(tmp_path, change):
    path = tmp_path / "x.bin"
    np.arange(6.0).tofile(path)
    good = {**REFERENCE, "file": str(path)}
    message = {"type": "Rows", "fields": {"rows": good}}
    assert received(frame({"message": message, "arrays": []}), files=True).rows.shape == (2, 3)
    message = {"type": "Rows", "fields": {"rows": {**good, **change}}}
    with pytest.raises(WireError):
        received(frame({"message": message, "arrays": []}), files=True)


# Hostile frames


def test_frames_of_another_kind_are_refused():
    for content in (b"LPW2" + bytes(4), bytes(8), b"GET / HT", sent(Done())[1:] + b"x"):
        with pytest.raises(WireError, match="not a frame of this version"):
            received(content)


def test_a_huge_header_is_refused_before_it_is_read():
    stream = io.BytesIO(wire.PREFIX.pack(wire.MAGIC, wire.MAX_HEADER + 1) + bytes(100))
    with pytest.raises(WireError):
        wire.receive(stream, ENOUGH)
    assert stream.tell() == HEADER


@pytest.mark.parametrize("message", [SHARD, STEPS, Done()], ids=["Shard", "PowerSteps", "Done"])
def test_a_stream_that_ends_anywhere_is_an_eof_error(message):
    content = sent(message)
    for size in range(len(content)):
        with pytest.raises(EOFError):
            received(content[:size])


class Broken(io.RawIOBase):
    def readinto(self, buffer):
        raise ConnectionResetError("gone")


def test_a_broken_stream_keeps_its_own_error():
    with pytest.raises(ConnectionResetError):
        wire.receive(Broken(), ENOUGH)


class Dripping(io.RawIOBase):
    """A pipe that gives one byte at a time."""

    def __init__(self, content):
        self.rest = io.BytesIO(content)

    def readinto(self, buffer):
        return self.rest.readinto(memoryview(buffer)[:1])


def test_a_stream_that_gives_little_at_a_time_is_read_to_the_end():
    assert same(wire.receive(Dripping(sent(SHARD)), ENOUGH), SHARD)


@pytest.mark.parametrize(
    "kind", ["|O", "O", "object", "<f16", "<c16", "<U4", "|S4", "|V8", "<M8[s]", ">f8", "", None, 3]
)
def test_array_types_outside_the_closed_list_are_refused(kind):
    message = {"type": "Rows", "fields": {"rows": {"array": 0}}}
    with pytest.raises(WireError):
        received(frame({"message": message, "arrays": [[kind, [1]]]}, bytes(64)))
    message = {"type": "Rows", "fields": {"rows": {"dtype": kind}}}
    with pytest.raises(WireError):
        received(frame({"message": message, "arrays": []}))


@pytest.mark.parametrize(
    "shape",
    [
        [-1],
        [-1, -1],
        [1, 1, 1],
        [0, 10**30],
        [0, 2**62],
        [1.0],
        [True],
        ["1"],
        [None],
        1,
        None,
        "1",
    ],
    ids=str,
)
def test_shapes_that_no_array_has_are_refused(shape):
    message = {"type": "Rows", "fields": {"rows": {"array": 0}}}
    with pytest.raises(WireError):
        received(frame({"message": message, "arrays": [["<f8", shape]]}, bytes(64)))


@pytest.mark.parametrize("shapes", [[[10**9]], [[10**30]], [[2**40, 2**40]], [[3000, 10]] * 9])
def test_sizes_above_the_limit_are_refused_before_anything_is_allocated(shapes):
    message = {"type": "Done", "fields": {}}
    content = frame({"message": message, "arrays": [["<f8", shape] for shape in shapes]})
    stream = io.BytesIO(content + bytes(10))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="where at most"):
            wire.receive(stream, ENOUGH)
        assert tracemalloc.get_traced_memory()[1] < ENOUGH // 4
    finally:
        tracemalloc.stop()
    assert stream.tell() == len(content)


def test_the_limit_is_exact():
    content = sent(Rows(np.zeros(10)))
    assert received(content, max_bytes=80).rows.shape == (10,)
    with pytest.raises(WireError):
        received(content, max_bytes=79)


def test_a_size_within_the_limit_that_memory_does_not_hold_is_a_wire_error():
    content = frame({"message": {"type": "Done", "fields": {}}, "arrays": [["<f8", [2**55]]]})
    with pytest.raises(WireError):
        received(content, max_bytes=1 << 60)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff\xfe\xfd",
        b"{",
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        {"arrays": []},
        {"message": None},
        {"message": None, "arrays": []},
        {"message": 5, "arrays": []},
        {"message": "Done", "arrays": []},
        {"message": [], "arrays": []},
        {"message": {}, "arrays": []},
        {"message": {"list": []}, "arrays": []},
        {"message": {"list": 3}, "arrays": []},
        {"message": {"array": 0}, "arrays": [["<f8", [0]]]},
        {"message": {"type": "Done"}, "arrays": []},
        {"message": {"type": "Done", "fields": []}, "arrays": []},
        {"message": {"type": "Done", "fields": None}, "arrays": []},
        {"message": {"type": "Done", "fields": {"x": 1}}, "arrays": []},
        {"message": {"type": "Rows", "fields": {}}, "arrays": []},
        {"message": {"type": "Unknown", "fields": {}}, "arrays": []},
        {"message": {"type": "object", "fields": {}}, "arrays": []},
        {"message": {"type": ["Done"], "fields": {}}, "arrays": []},
        {"message": {"type": "Rows", "fields": {"rows": {"array": 1}}}, "arrays": []},
        {"message": {"type": "Rows", "fields": {"rows": {"array": "0"}}}, "arrays": []},
        {"message": {"type": "Rows", "fields": {"rows": {"array": 10**30}}}, "arrays": []},
        {"message": {"type": "Rows", "fields": {"rows": {"what": 1}}}, "arrays": []},
        {"message": {"type": "Done", "fields": {}}, "arrays": None},
        {"message": {"type": "Done", "fields": {}}, "arrays": [["<f8"]]},
        {"message": {"type": "Done", "fields": {}}, "arrays": [3]},
        {"message": {"type": "Done", "fields": {}}, "arrays": {"<f8": [1]}},
    ],
    ids=lambda header: str(header)[:60],
)
def test_headers_that_make_no_sense_are_a_wire_error(header):
    with pytest.raises(WireError):
        received(frame(header))


def sparse_frame(shape=(2, 3), data=(1.0, 2.0), indices=(0, 2), indptr=(0, 1, 2), kind="<i4"):
    parts = [np.array(data, "<f8"), np.array(indices, kind), np.array(indptr, kind)]
    matrix = {"csr": [{"array": i} for i in range(3)], "shape": shape}
    kinds = [[part.dtype.str, list(part.shape)] for part in parts]
    header = {"message": {"type": "Rows", "fields": {"rows": matrix}}, "arrays": kinds}
    return frame(header, b"".join(part.tobytes() for part in parts))


@pytest.mark.parametrize("kind", ["<i4", "<i8"])
def test_a_sparse_matrix_in_order_is_taken(kind):
    there = received(sparse_frame(kind=kind)).rows
    np.testing.assert_array_equal(there.toarray(), [[1, 0, 0], [0, 0, 2]])


@pytest.mark.parametrize(
    "parts",
    [
        {"indices": (0, 3)},
        {"indices": (0, -1)},
        {"indices": (0,)},
        {"indices": ((0, 2),)},
        {"indptr": (0, 2, 1)},
        {"indptr": (1, 1, 2)},
        {"indptr": (0, 1, 9)},
        {"indptr": (0, 2)},
        {"indptr": ()},
        {"indptr": (0, 1_000_000, 0)},
        {"indptr": (0, -5, 0)},
        {"indptr": (0, 2**31 - 1, -(2**31), 2), "shape": (3, 3)},
        {"kind": "<f8"},
        {"kind": "|u1"},
        {"kind": "|b1"},
        {"data": (1.0,)},
        {"data": ((1.0, 2.0), (3.0, 4.0))},
        {"shape": (2, 2)},
        {"shape": (10**12, 3)},
        {"shape": (10**30, 3)},
        {"shape": (-2, 3)},
        {"shape": (2, 3.0)},
        {"shape": (6,)},
        {"shape": ()},
        {"shape": (2, 3, 1)},
        {"shape": None},
        {"shape": ("2", "3")},
    ],
    ids=str,
)
def test_a_sparse_matrix_that_leads_outside_of_its_arrays_is_refused(parts):
    with pytest.raises(WireError):
        received(sparse_frame(**parts))


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [{"array": 0}],
        [10**7, 3],
        [{"array": 0}] * 2,
        [{"array": 0}] * 4,
        [1, 2, 3],
        None,
        "abc",
    ],
    ids=str,
)
def test_a_sparse_matrix_is_made_of_three_vectors_only(parts):
    message = {"type": "Rows", "fields": {"rows": {"csr": parts, "shape": [10**7, 3]}}}
    with pytest.raises(WireError):
        received(frame({"message": message, "arrays": [["<f8", [2]]]}, bytes(16)))


WHOLE = [sent(message) for message in (SHARD, STEPS, Done(), Factor(np.eye(2)))]


@given(data=st.data(), content=st.sampled_from(WHOLE))
@settings(max_examples=400)
def test_a_mutated_frame_gives_a_message_or_a_wire_error_or_the_end(data, content):
    content = bytearray(content)
    places = st.integers(0, len(content) - 1)
    for place, byte in data.draw(
        st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=5)
    ):
        content[place] = byte
    with suppress(WireError, EOFError):
        assert type(received(bytes(content), files=True)) in wire.MESSAGES.values()


KEYS = {"array", "list", "dtype", "type", "fields", "csr", "shape", "file", "kind", "offset"}
OTHER = {"<f8", "<i4", "|O", "/", "rows", "pieces", "columns", "number"}
words = st.sampled_from(sorted(KEYS | OTHER | set(wire.MESSAGES)))
numbers = st.sampled_from([0, 1, 2, 3, -1, 10**30, 2**31, 2**63, 0.5, float("nan"), float("inf")])
trees = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words, inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": words, "fields": st.dictionaries(words, inner, max_size=3)}
        )
        | st.fixed_dictionaries({"csr": st.lists(inner, max_size=3), "shape": inner})
        | st.fixed_dictionaries({"file": inner, "kind": words, "offset": inner, "shape": inner})
        | st.fixed_dictionaries({"array": inner})
    ),
    max_leaves=12,
)


@given(message=trees, arrays=trees | st.just([["<f8", [2]], ["<i4", [2]], ["<i4", [1, 2]]]))
@example({"type": "Done", "fields": {}}, [])
@settings(max_examples=600)
def test_any_header_gives_a_message_or_a_wire_error_or_the_end(message, arrays):
    content = frame({"message": message, "arrays": arrays}, bytes(64))
    with suppress(WireError, EOFError):
        assert type(received(content, files=True)) in wire.MESSAGES.values()


@given(content=st.binary(max_size=100), start=st.sampled_from([b"", wire.MAGIC, b"LPW1\x10\0\0\0"]))
@settings(max_examples=200)
def test_random_bytes_give_a_wire_error_or_the_end(content, start):
    with pytest.raises((WireError, EOFError)):
        received(start + content)
