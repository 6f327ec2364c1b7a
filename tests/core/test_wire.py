"""Messages come back as they were sent; whatever else arrives is refused, and nothing is run."""

import io
import json
import os
import tracemalloc
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import sparse

import localpower  # noqa: F401  registers the engines' messages
from localpower.core.errors import DataError, WireError
from localpower.data.readers.npy import place_npy
from localpower.data.source import open_source
from localpower.worker import wire
from localpower.worker.moments import Moments
from localpower.worker.replies import Done, Factor, Rows
from localpower.worker.shard import Shard
from localpower.worker.stored import Stored, StoredCSR, stamp
from localpower.worker.tasks import PowerSteps

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
    scalars | dense | csr | st.sampled_from([np.dtype("f4"), np.dtype(">f8")]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


FILE_TYPES = tuple(sorted(wire.FILE_TYPES))
counts = st.integers(0, 99)


@st.composite
def stored(draw, kinds=FILE_TYPES, shape=None):
    """Any place that some file could have."""
    shape = draw(st.lists(counts, max_size=2)) if shape is None else shape
    height = (
        draw(st.integers(max(shape[0], 1), 200)) if len(shape) == 2 and draw(st.booleans()) else 0
    )
    size = 2**40 + draw(counts)
    path = draw(st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=9))
    dtype = np.dtype(draw(st.sampled_from(kinds)))
    return Stored(
        path,
        draw(counts),
        dtype,
        tuple(shape),
        (size, *draw(st.tuples(counts, counts, counts))),
        height,
        path[1:],
    )


@st.composite
def stored_csrs(draw):
    """Any place that a sparse matrix could have."""
    first, own, after, rows = (draw(counts) for _ in range(4))
    entries, last = first + own + after, first + own
    data = draw(stored(shape=(entries,)))
    indices, indptr = draw(stored(("<i4",), (entries,))), draw(stored((">i8",), (rows + 1,)))
    return StoredCSR(data, indices, indptr, draw(counts), first, last, draw(st.integers(0, 1)))


PLACES = {"Stored": stored(), "StoredCSR": stored_csrs()}
FEDERATION = "localpower.federation"
SENDABLE = sorted(  # those of a federation check what they hold, and have tests of their own
    name for name, kind in wire.MESSAGES.items() if not kind.__module__.startswith(FEDERATION)
)


def messages(name, inner=values):
    if name in PLACES:
        return PLACES[name]
    kind = wire.MESSAGES[name]
    return st.fixed_dictionaries({f.name: inner for f in fields(kind)}).map(lambda c: kind(**c))


def sent(message):
    return b"".join(wire.encode(message))


def received(content, max_bytes=ENOUGH, files=False):
    return wire.receive(io.BytesIO(content), max_bytes, files)


def frame(form, values=(), body=b""):
    """Any frame; form and values may also be text."""
    form, values = (x if isinstance(x, bytes) else json.dumps(x).encode() for x in (form, values))
    return wire.PREFIX.pack(wire.MAGIC, len(form), len(values)) + form + values + body


def header_of(content):
    """The form and the values of a frame."""
    _, *lengths = wire.PREFIX.unpack(content[:HEADER])
    rest = io.BytesIO(content[HEADER:])
    return [json.loads(rest.read(length)) for length in lengths]


@dataclass
class Value:
    content: object


def tree_of(message):
    """The form of a message, with the values in their places."""
    form, values = header_of(sent(message))
    rest = iter(values)

    def opened(node):
        if node == 0:
            return Value(next(rest))
        return node if node[0] == "array" else [node[0], *map(opened, node[1:])]

    return opened(form)


def put(tree, change, kind=Stored):
    """Change fields of a message in a tree, by name: to a value, or to another form."""
    for name, content in change.items():
        tree[1 + [f.name for f in fields(kind)].index(name)] = (
            content if is_form(content) else Value(content)
        )


def is_form(content):
    return isinstance(content, list) and content[:1] in (["array"], ["dtype"])


def frame_of(tree, body=b""):
    """The frame of a tree."""
    values = []

    def closed(node):
        if isinstance(node, Value):
            values.append(node.content)
            return 0
        return [closed(part) for part in node] if isinstance(node, list) else node

    return frame(closed(tree), values, body)


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


@pytest.mark.parametrize("name", SENDABLE)
@given(data=st.data())
@settings(max_examples=25)
def test_every_message_comes_back_as_it_was_sent(name, data):
    message = data.draw(messages(name))
    assert same(received(sent(message), files=name in wire.FILES), message)


@given(data=st.data(), names=st.lists(st.sampled_from(SENDABLE), max_size=4))
@settings(max_examples=40)
def test_messages_inside_messages_and_one_after_another_keep_apart(data, names):
    several = [data.draw(messages(name, values | messages("Product") | stored())) for name in names]
    stream = io.BytesIO(b"".join(sent(message) for message in several))
    assert all(same(wire.receive(stream, ENOUGH, files=True), message) for message in several)
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
    ids=lambda content: type(content).__name__,
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
        received(frame(["Stranger", 0], [1]))


def test_sending_does_not_copy_arrays():
    array = np.arange(1000.0)
    parts = list(wire.encode(Rows(array)))
    assert np.shares_memory(np.frombuffer(parts[1], np.uint8), array)


# Files


@pytest.fixture
def file(tmp_path):
    """An array that starts at an odd byte of its file."""
    X = np.random.default_rng(0).standard_normal((3000, 3))
    path, offset = tmp_path / "x.bin", 5 * 4096 + 3
    path.write_bytes(bytes(offset) + X.tobytes())
    return X, Stored(str(path), offset, X.dtype, X.shape, stamp(path))


@pytest.mark.parametrize("ends", [(0, 3000), (1, 2), (7, 2900), (2999, 3000), (5, 5)])
def test_rows_in_a_file_are_sent_as_their_place(file, ends):
    X, stored = file
    content = sent(Shard((stored.cut(*ends),), 3, np.dtype(float)))
    assert "array" not in str(header_of(content)[0])
    [there] = received(content, max_bytes=0, files=True).pieces
    np.testing.assert_array_equal(there.read(), X[slice(*ends)])


@pytest.mark.parametrize("kind", sorted(wire.FILE_TYPES))
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_of_any_number_type_and_order_arrive(tmp_path, kind, order):
    X = np.asarray(np.arange(60).reshape(20, 3) % 7, dtype=kind, order=order)
    np.save(tmp_path / "x.npy", X)
    stored = place_npy(tmp_path / "x.npy").cut(3, 9)
    [there] = received(sent(Shard((stored,), 3, np.dtype(float))), files=True).pieces
    assert there.dtype == X.dtype
    np.testing.assert_array_equal(there.read(), X[3:9])


def test_a_place_in_a_file_may_itself_be_sent_on(file):
    X, stored = file
    first = received(sent(Rows(stored.cut(5, 3000))), files=True).rows
    second = received(sent(Rows(first.cut(2, 2995))), files=True).rows
    np.testing.assert_array_equal(second.read(), X[7:])


def test_a_shard_of_dense_sparse_and_stored_pieces_arrives(file, tmp_path):
    X, stored = file
    matrix = sparse.csr_array(np.eye(3))
    packed = stored_csr(tmp_path)
    pieces = stored.cut(0, 4), matrix, np.ones((1, 3)), packed
    there = received(sent(Shard(pieces, 3, stored.dtype, "task", 1 << 20)), files=True)
    assert (there.rows, there.columns, there.dtype) == (10, 3, np.float64)
    assert (there.keep, there.limit) == ("task", 1 << 20)
    np.testing.assert_array_equal(there.pieces[0].read(), X[:4])
    assert same(there.pieces[1], matrix)
    np.testing.assert_array_equal(there.pieces[2], np.ones((1, 3)))
    np.testing.assert_array_equal(there.pieces[3].read().toarray(), [[1, 0, 0], [0, 0, 2]])


def test_files_are_refused_unless_allowed(file, tmp_path):
    _, stored = file
    for content in (stored, stored_csr(tmp_path), (1, (stored,))):
        assert received(sent(Rows(content)), files=True)
        with pytest.raises(WireError, match="files are not read for others"):
            received(sent(Rows(content)), files=False)
        with pytest.raises(WireError, match="files are not read for others"):
            received(sent(Rows(content)))


def test_a_file_that_is_gone_changed_or_shorter_is_a_data_error_when_read(file):
    _, stored = file
    content = sent(Rows(stored))
    path = Path(stored.path)
    path.write_bytes(bytes(100))
    with pytest.raises(DataError, match=r"x\.bin was changed while it was in use"):
        received(content, files=True).rows.read()
    path.unlink()
    with pytest.raises(DataError, match=r"x\.bin: No such file"):
        received(content, files=True).rows.read()
    os.mkfifo(path)  # nobody writes: to open it would wait for ever
    with pytest.raises(DataError, match=r"x\.bin was changed"):
        received(content, files=True).rows.read()


def test_types_that_no_data_have_cannot_be_sent(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 2), complex))
    for content in (np.dtype(object), np.dtype("g"), place_npy(tmp_path / "x.npy")):
        with pytest.raises(TypeError, match="cannot be sent"):
            sent(Rows(content))


def outcome(content):
    """Read what arrived; return the error, and how much memory it took."""
    tracemalloc.start()
    try:
        received(content, files=True).rows.read()
        return None, tracemalloc.get_traced_memory()[1]
    except (WireError, DataError) as error:
        return error, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


NONSENSE = [
    *({"shape": shape} for shape in (
        [2**40, 2**40], [2**32, 2**32], [2**61], [0, 10**30], [2**62, 0], [3, 3], [-1, 3], [-2, -3],
        [1.5], [2, 3.0], [True, 3], [None], ["2", "3"], [[2], [3]], [1] * 100 + [2**40],
    )),
    *({"shape": shape} for shape in (3, None, "23", ["dtype", Value("<f8")], ["array", "<f8", 0])),
    *({"offset": offset} for offset in (-1, 1, 2**70, 0.0, True, "x", None, [])),
    *({"height": height} for height in (-1, 1, 3, 2**40, 2**70, 2.0, True, "x", None)),
    *({"dtype": ["dtype", Value(kind)]} for kind in (
        "|O", "O", "<f16", "<c16", "|V8", "<U9", None,
    )),
    *({"dtype": kind} for kind in ("<f8", None, 8, [])),
    *({"path": path} for path in (
        "/nowhere/at/all", "/", "", "nul\0", -7, 0, 10**30, None, True, ["x"],
        "/dev/zero", "/dev/stdin", "x" * 5000, "\ud800",
    )),
    *({"stamp": stamp} for stamp in (
        [], [48], [47, 0, 0, 0], [48, 0, 0, 0], [49, 0, 0, 0], [2**60, 0, 0, 0], [10**30, 0, 0, 0],
        [48.0, 0, 0, 0], [48, "x", 0, 0], [48, 0, 0, 0.0], [None] * 4, [48, 0], [48, 0, 0, 0, 0],
    )),
    *({"stamp": stamp} for stamp in (None, 48, "48")),
    {"origin": None}, {"origin": 3},
    {"stamp": [2**61, 0, 0, 0], "shape": [2**40, 2**10]},
    {"stamp": [2**61, 0, 0, 0], "shape": [2**40, 2**10], "height": 2**41},
    {"path": "/dev/zero", "stamp": [2**61, 0, 0, 0], "shape": [2**40, 2]},
]  # fmt: skip


@pytest.mark.parametrize("change", NONSENSE, ids=lambda change: str(change)[:70])
def test_a_place_that_makes_no_sense_is_an_error_and_takes_no_memory(tmp_path, change):
    path = tmp_path / "x.bin"
    np.arange(6.0).tofile(path)
    tree = tree_of(Rows(Stored(str(path), 0, np.dtype(float), (2, 3), stamp(path))))
    assert outcome(frame_of(tree))[0] is None
    put(tree[1], change)
    error, size = outcome(frame_of(tree))
    assert error is not None
    assert size < ENOUGH // 4
    assert len(str(error)) < 6000


def stored_csr(folder):
    """The sparse matrix [[1, 0, 0], [0, 0, 2]] in a file."""
    matrix = sparse.csr_array(np.array([[1.0, 0, 0], [0, 0, 2.0]]))
    sparse.save_npz(folder / "s.npz", matrix, compressed=False)
    [piece] = open_source(folder / "s.npz").pieces
    return piece


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in ("columns", "first", "last", "base")
          for value in (-1, 2**62, 10**30, 1.0, True, "1", None)),
        *({name: value} for name in ("first", "last", "base") for value in (1, 3, 2**31)),
        {"columns": 0}, {"columns": 2},
        *({name: value} for name in ("data", "indices", "indptr")
          for value in (None, 3, ["array", "<f8", 2], [])),
    ],
    ids=str,
)  # fmt: skip
def test_a_stored_csr_matrix_that_makes_no_sense_is_an_error(tmp_path, change):
    tree = tree_of(Rows(stored_csr(tmp_path)))
    assert outcome(frame_of(tree))[0] is None
    put(tree[1], change, StoredCSR)
    error, size = outcome(frame_of(tree, bytes(16)))
    assert error is not None
    assert size < ENOUGH // 4


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
@pytest.mark.parametrize(
    "change", [c for c in NONSENSE if c != {"offset": 1}], ids=lambda change: str(change)[:70]
)
def test_nonsense_in_a_part_of_a_stored_csr_matrix_is_an_error(tmp_path, part, change):
    tree = tree_of(Rows(stored_csr(tmp_path)))
    put(tree[1][1 + ["data", "indices", "indptr"].index(part)], change)
    error, size = outcome(frame_of(tree))
    assert error is not None
    assert size < ENOUGH // 4


# Hostile frames


def test_frames_of_another_kind_are_refused():
    for content in (b"LPW2" + bytes(8), bytes(12), b"GET / HTTP/1", sent(Done())[1:] + b"x"):
        with pytest.raises(WireError, match="not a frame of this version"):
            received(content)


def test_a_head_without_a_stream_is_read_like_one_with():
    message = Rows(np.arange(6.0).reshape(2, 3))
    head, body = (bytearray(part) for part in wire.encode(message))

    def fill(view):
        view[:] = body

    assert same(wire.decode(head, fill, ENOUGH), message)
    with pytest.raises(WireError, match="where at most"):
        wire.decode(head, fill, 47)
    for wrong in (head[:-1], head + b" ", head[:7], head[:0]):
        with pytest.raises(WireError, match="not as long as it says"):
            wire.decode(wrong, fill, ENOUGH)
    with pytest.raises(WireError, match="not a frame of this version"):
        wire.decode(head[1:], fill, ENOUGH)


@pytest.mark.parametrize(
    "lengths", [(wire.MAX_HEADER + 1, 0), (0, wire.MAX_HEADER + 1), (2**23, 2**23 + 1)]
)
def test_a_huge_header_is_refused_before_it_is_read(lengths):
    stream = io.BytesIO(wire.PREFIX.pack(wire.MAGIC, *lengths) + bytes(100))
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
    with pytest.raises(WireError):
        received(frame(["Rows", ["array", kind, 1]], body=bytes(64)))
    content = frame(["Rows", ["dtype", 0]], [kind])
    if kind in wire.FILE_TYPES:  # files may be of the other byte order, arrays on the wire not
        assert received(content).rows == np.dtype(kind)
        return
    with pytest.raises(WireError):
        received(content)


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
        [[1]],
    ],
    ids=str,
)
def test_shapes_that_no_array_has_are_refused(shape):
    with pytest.raises(WireError):
        received(frame(["Rows", ["array", "<f8", *shape]], body=bytes(64)))


@pytest.mark.parametrize("shapes", [[[10**9]], [[10**30]], [[2**40, 2**40]], [[3000, 10]] * 9])
def test_sizes_above_the_limit_are_refused_before_anything_is_allocated(shapes):
    content = frame(["Rows", ["tuple", *(["array", "<f8", *shape] for shape in shapes)]])
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
    content = frame(["Rows", ["array", "<f8", 2**55]])
    with pytest.raises(WireError):
        received(content, max_bytes=1 << 60)


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"\xff\xfe\xfd",
        b"{",
        b"[" * 200_000,
        b'["tuple",' * 100_000,
        b'["Rows",' + b'["tuple",' * 5000 + b"0" + b"]" * 5001,
        b"9" * 5000,
        b'["Done"] ',
        b'["Done"][]',
        b"null",
        b"[]",
        b'"Done"',
        b"{}",
        *(0, 1, 0.5, None, True, "Done", {"Done": []}, [["Done"]], [0], [None], [{}], ["Unknown"]),
        *(["object"], ["tuple", ["Done"]], ["csr", 0], ["dtype", 0], ["array", "<f8", 0]),
        *(["Done", 0], ["Rows"], ["Rows", 0, 0], ["Rows", 1], ["Rows", None], ["Rows", "x"]),
        *(["Rows", []], ["Rows", ["what", 0]], ["Rows", {"array": 0}], ["Rows", [["Done"]]]),
        *(["Rows", ["array"]], ["Rows", ["array", 0]], ["Rows", ["array", ["<f8"]]]),
        *(["Rows", ["dtype"]], ["Rows", ["dtype", 0, 0]], ["Rows", ["csr"]]),
    ],
    ids=lambda form: str(form)[:60],
)
@pytest.mark.parametrize("values", [[], [0], ["<f8"], [0, 0]], ids=str)
def test_forms_that_make_no_sense_are_a_wire_error(form, values):
    if (form, values) == (["Rows", ["dtype", 0]], ["<f8"]):
        return
    with pytest.raises(WireError):
        received(frame(form, values))


@pytest.mark.parametrize(
    "values",
    [b"", b"\xff\xfe", b"[", b"[" * 200_000, b"[1] ", b"[1][]", b"[" + b"9" * 5000 + b"]", b"null",
     b"1", *({}, {"0": 1}, [], [1, 2], [{}], [[{}]], [[[1, {"a": 2}]]])],
    ids=lambda values: str(values)[:60],
)  # fmt: skip
def test_values_that_make_no_sense_are_a_wire_error(values):
    assert received(frame(["Rows", 0], [[1, [2, None]]])).rows == (1, (2, None))
    with pytest.raises(WireError):
        received(frame(["Rows", 0], values))


def test_forms_are_worked_out_once_unless_they_are_long():
    wire._plan.cache_clear()
    wire._written.cache_clear()
    for count in range(3):
        assert received(sent(Rows(np.full(2, count)))).rows[0] == count
    assert (wire._plan.cache_info().misses, wire._plan.cache_info().hits) == (1, 2)
    pieces = tuple(np.full(1, float(number)) for number in range(1000))
    assert same(received(sent(Rows(pieces))).rows, pieces)
    assert wire._plan.cache_info().misses == wire._written.cache_info().misses == 1


def test_what_is_allowed_is_asked_of_every_frame_and_not_of_its_form():
    content = sent(Rows(np.zeros(10)))
    for limit in (80, 79, 80):
        with pytest.raises(WireError) if limit < 80 else nullcontext():
            received(content, max_bytes=limit)
    for files in (True, False, True):
        with nullcontext() if files else pytest.raises(WireError):
            received(sent(Rows(PLACE)), files=files)


def sparse_frame(shape=(2, 3), data=(1.0, 2.0), indices=(0, 2), indptr=(0, 1, 2), kind="<i4"):
    parts = [np.array(data, "<f8"), np.array(indices, kind), np.array(indptr, kind)]
    form = ["Rows", ["csr", *(["array", part.dtype.str, *part.shape] for part in parts), 0]]
    return frame(form, [shape], b"".join(part.tobytes() for part in parts))


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


VECTOR = ["array", "<f8", 2]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [VECTOR],
        [Value([10**7, 3])],
        [VECTOR] * 2,
        [VECTOR] * 4,
        [Value(1), Value(2), Value(3)],
        [Value([1, 2, 3])],
        [Value("abc")] * 3,
    ],
    ids=str,
)
def test_a_sparse_matrix_is_made_of_three_vectors_only(parts):
    tree = ["Rows", ["csr", *parts, Value([10**7, 3])]]
    with pytest.raises(WireError):
        received(frame_of(tree, bytes(64)))


PLACE = Stored("/dev/zero", 4, np.dtype(">f4"), (5, 3), (1000, 0, 0, 0), 7, "x")
PARTS = [Stored("x", 0, np.dtype(kind), (3,), (1000, 0, 0, 0)) for kind in ("<f8", "<i4", "<i8")]
STORED = Shard((PLACE, StoredCSR(*PARTS, 3, 0, 2)), 3, np.dtype("f4"))
WHOLE = [sent(message) for message in (SHARD, STEPS, Done(), Factor(np.eye(2)), STORED)]


@given(data=st.data(), content=st.sampled_from(WHOLE))
@settings(max_examples=250)
def test_a_mutated_frame_gives_a_message_or_a_wire_error_or_the_end(data, content):
    content = bytearray(content)
    places = st.integers(0, len(content) - 1)
    for place, byte in data.draw(
        st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=5)
    ):
        content[place] = byte
    with suppress(WireError, EOFError):
        assert type(received(bytes(content), files=True)) in wire.MESSAGES.values()


NAMES = st.sampled_from(sorted({"array", "dtype", "csr", "tuple", "object"} | set(wire.MESSAGES)))
WORDS = st.sampled_from(["<f8", "<i4", "|O", "/", "rows", "task", "Done"])
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 10**30, 2**31, 2**63, 0.5, float("nan"), float("inf")])
LEAVES = st.none() | st.booleans() | NUMBERS | WORDS
SOME = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)
)
FORMS = st.recursive(
    st.just(0)
    | SOME
    | st.just(["dtype", 0])
    | st.tuples(st.just("array"), st.sampled_from(["<f8", "<i4", "|O"]), st.integers(0, 3)),
    lambda inner: (
        st.tuples(NAMES, st.lists(inner, max_size=8)).map(lambda pair: [pair[0], *pair[1]])
        | st.tuples(inner, inner, inner, inner).map(lambda parts: ["csr", *parts])
        | st.tuples(*7 * [inner]).map(lambda parts: ["Stored", *parts])
    ),
    max_leaves=12,
)


def places(form):
    """How many values a form has place for, as far as it is one."""
    return 1 if form == 0 else sum(map(places, form)) if isinstance(form, list | tuple) else 0


@given(form=FORMS, data=st.data())
@example(["Done"], None)
@settings(max_examples=300)
def test_any_header_gives_a_message_or_a_wire_error_or_the_end(form, data):
    count = places(form)
    fits = st.lists(SOME, min_size=count, max_size=count)
    content = frame(form, data.draw(fits | SOME) if data else [], bytes(64))
    with suppress(WireError, EOFError):
        assert type(received(content, files=True)) in wire.MESSAGES.values()


@given(
    content=st.binary(max_size=100),
    start=st.sampled_from([b"", wire.MAGIC, b"LPW3\x10\0\0\0\0\0\0\0"]),
)
@settings(max_examples=200)
def test_random_bytes_give_a_wire_error_or_the_end(content, start):
    with pytest.raises((WireError, EOFError)):
        received(start + content)


def test_two_messages_cannot_have_one_name():
    with pytest.raises(ValueError, match="another message is called Rows"):
        wire.register(type("Rows", (), {}))
    assert wire.register(Rows) is wire.MESSAGES["Rows"] is Rows
