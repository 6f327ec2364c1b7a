"""Tasks, replies and shards as bytes: the only serialisation there is.

A frame is ``b"LPW2"``, the length of a header, the header, and the raw bytes of its arrays. The
header is JSON: a tree of scalars and lists, in which a message stands as ``{name: fields}`` and an
array as ``{"array": number}``, and the types and shapes of the arrays. Defaults are left out.
Message types come from one closed list and array types from another, and sizes are checked
before anything is allocated. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import IO, Any, Literal

import numpy as np

from localpower.core import tasks
from localpower.core.errors import WireError
from localpower.core.ledger import Ledger, Round, entries
from localpower.core.moments import Moments
from localpower.core.shard import Shard, Stored, StoredCSR, check_compressed

MAGIC = b"LPW2"
PREFIX = struct.Struct("<4sI")
MAX_HEADER = 1 << 24
SCALARS = frozenset({type(None), bool, int, float, str})
_to_json = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_from_json = json.JSONDecoder().raw_decode


def _types(order: Literal["<", ">"]) -> dict[str, np.dtype[Any]]:
    """Types of numbers in this byte order, by their names."""
    names = [np.dtype(kind).newbyteorder(order).str for kind in "efdbhiqBHIQ?"]
    return {name: np.dtype(name) for name in names}


ARRAY_TYPES = _types("<")
FILE_TYPES = ARRAY_TYPES | _types(">")
ARRAY_NAMES = {dtype: name for name, dtype in ARRAY_TYPES.items()}

MESSAGES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(tasks.Describe, tasks.Prepare, tasks.PowerSteps, tasks.Triangle, tasks.LeftVectors),
        *(tasks.ProjectRows, tasks.TopVectors, tasks.Refine),
        *(tasks.GramTriangle, tasks.LocalTriangle, tasks.Weigh, tasks.Weighed),
        *(Moments, tasks.Done, tasks.Kernel, tasks.Product, tasks.Factor, tasks.Rows),
        *(tasks.Eigenvectors, tasks.Proposal, tasks.PackedSum, tasks.PackedTriangle),
        *(Shard, Stored, StoredCSR, Ledger, Round),
    )
}
FILES = ("Stored", "StoredCSR")  # messages that make the receiver read files


Fill = Callable[[memoryview], None]  # puts bytes where they belong
Reading = Generator[memoryview, None, Any]


def register(kind: type) -> type:
    """Add a message type to the closed list; for those that are defined above the core."""
    MESSAGES[kind.__name__] = kind
    return kind


def encode(message: Any) -> Iterator[bytes | memoryview]:
    """Yield a message's frame piece by piece, without copying its arrays."""
    arrays: list[np.ndarray[Any, Any]] = []
    tree = _to_tree(message, arrays)
    header = _to_json([tree, [(ARRAY_NAMES[A.dtype], A.shape) for A in arrays]]).encode()
    yield PREFIX.pack(MAGIC, len(header)) + header
    for array in arrays:
        if array.size:
            yield array.data.cast("B")


def send(message: Any, stream: IO[bytes]) -> None:
    """Write a message's frame to a binary stream."""
    for part in encode(message):
        stream.write(part)
    stream.flush()


def reading(max_bytes: int, files: bool = False, fill: Fill | None = None) -> Reading:
    """Yield, one after the other, where the bytes of a frame belong; return its message.

    Its arrays have at most `max_bytes`; if they come in another way, that is what `fill` does.
    `files` allows rows that the receiver is to read from files; set it only towards a process of
    the same user.
    """
    prefix = bytearray(PREFIX.size)
    yield memoryview(prefix)
    header = bytearray(_length(prefix))
    yield memoryview(header)
    message = _message(header, max_bytes, files)
    return (yield from message) if fill is None else _read(message, fill)


def receive(
    stream: IO[bytes], max_bytes: int, files: bool = False, fill: Fill | None = None
) -> Any:
    """Read one message from a binary stream, as `reading`; `EOFError` tells that it has ended."""
    return _read(reading(max_bytes, files, fill), lambda view: _fill(stream, view))


def decode(head: bytearray, fill: Fill, max_bytes: int, files: bool = False) -> Any:
    """Make a message of the first piece of its frame; `fill` reads what belongs in an array."""
    header = head[PREFIX.size :]
    if len(head) < PREFIX.size or _length(head) != len(header):
        raise WireError("a frame whose header is not as long as it says")
    return _read(_message(header, max_bytes, files), fill)


def _read(frame: Reading, fill: Fill) -> Any:
    while True:
        try:
            view = next(frame)
        except StopIteration as end:
            return end.value
        fill(view)


def _length(head: bytearray) -> int:
    magic, length = PREFIX.unpack_from(head)
    if magic != MAGIC or length > MAX_HEADER:
        raise WireError(f"not a frame of this version: it starts with {magic!r}, {length} bytes")
    return int(length)


def _message(header: bytearray, max_bytes: int, files: bool) -> Reading:
    try:
        text = header.decode()
        (tree, kinds), end = _from_json(text)
        if end != len(text):
            raise ValueError(f"more after the header: {text[end:][:20]!r}")
        described = [(_known(kind), shape) for kind, shape in kinds]
        size = sum([dtype.itemsize * _count(shape) for dtype, shape in described])
        if size > max_bytes:
            raise WireError(f"a message of {size} bytes where at most {max_bytes} are expected")
        arrays = [np.empty(shape, dtype) for dtype, shape in described]
        for array in arrays:
            if array.size:
                yield array.data.cast("B")
        message = _from_tree(tree, arrays, files)
        if not isinstance(tree, dict) or tree.keys().isdisjoint(MESSAGES):
            raise WireError(f"{type(message).__name__} is not a message")
        return message
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise WireError(f"malformed message: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise WireError(f"a message too large to take in: {error}") from error


def _to_tree(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    kind: type = value.__class__
    if kind in SCALARS:
        return value
    if MESSAGES.get(kind.__name__) is kind:
        content = {}
        for name, default in entries(kind):
            part = getattr(value, name)
            if part is not default:
                content[name] = part if part.__class__ in SCALARS else _to_tree(part, arrays)
        return {kind.__name__: content}
    if isinstance(value, np.ndarray):
        little = value.dtype if value.dtype in ARRAY_NAMES else value.dtype.newbyteorder("<")
        if little not in ARRAY_NAMES:
            raise TypeError(f"an array of {value.dtype} cannot be sent")
        arrays.append(np.ascontiguousarray(value, dtype=little))
        return {"array": len(arrays) - 1}
    if kind is tuple or kind is list:
        return [part if part.__class__ in SCALARS else _to_tree(part, arrays) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype):
        if value.str not in FILE_TYPES:
            raise TypeError(f"{value} cannot be sent")
        return {"dtype": value.str}
    if hasattr(value, "indptr"):
        parts = [_to_tree(part, arrays) for part in (value.data, value.indices, value.indptr)]
        return {"csr": [*parts, value.shape]}
    raise TypeError(f"{kind.__name__} cannot be sent")


def _from_tree(tree: Any, arrays: list[np.ndarray[Any, Any]], files: bool) -> Any:
    if tree.__class__ in SCALARS:
        return tree
    if isinstance(tree, list):
        return tuple([_from_tree(item, arrays, files) for item in tree])
    ((kind, content),) = tree.items()
    if kind == "array":
        return arrays[content]
    if kind in MESSAGES:
        if kind in FILES and not files:
            raise ValueError("files are not read for others")
        for name, part in content.items():
            if part.__class__ not in SCALARS:
                content[name] = _from_tree(part, arrays, files)
        return MESSAGES[kind](**content)
    if kind == "dtype":
        return _known(content, FILE_TYPES)
    if kind == "csr":
        data, indices, indptr, shape = (_from_tree(part, arrays, files) for part in content)
        return _csr(data, indices, indptr, shape)
    raise ValueError(f"unknown entry {kind!r}")


def _csr(data: Any, indices: Any, indptr: Any, shape: tuple[int, ...]) -> Any:
    from scipy.sparse import csr_array

    parts = data, indices, indptr
    if not all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts):
        raise ValueError("a sparse matrix that is not made of three vectors")
    if indices.dtype.kind != "i" or indptr.dtype.kind != "i" or len(shape) != 2:
        raise ValueError("a sparse matrix with indices or a shape of another kind")
    _count(shape)
    matrix = csr_array(parts, shape=shape)
    check_compressed(matrix)
    return matrix


def _known(kind: Any, known: dict[str, np.dtype[Any]] = ARRAY_TYPES) -> np.dtype[Any]:
    if kind not in known:
        raise ValueError(f"array type {kind!r}")
    return known[kind]


def _count(shape: Sequence[int]) -> int:
    if len(shape) > 2 or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"array shape {shape!r}")
    return math.prod(shape)


def _fill(stream: IO[bytes], view: memoryview) -> None:
    while len(view):
        count = stream.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the stream ended")
        view = view[count:]
