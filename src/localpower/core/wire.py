"""Tasks, replies and shards as bytes: the only serialisation there is.

A frame is ``b"LPW1"``, the length of a header, the header, and the raw bytes of its arrays. The
header is JSON: a tree of scalars in which an array stands as ``{"array": number}``. Message types
come from one closed list and array types from another, and sizes are checked before anything is
allocated. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import IO, Any

import numpy as np

from localpower.core import tasks
from localpower.core.errors import WireError
from localpower.core.ledger import Ledger, Round
from localpower.core.moments import Moments
from localpower.core.shard import Shard, Stored, StoredCSR, check_compressed

MAGIC = b"LPW1"
PREFIX = struct.Struct("<4sI")
MAX_HEADER = 1 << 24
PLAIN = (type(None), bool, int, float, str)
_json = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
ARRAY_TYPES = {np.dtype(kind).newbyteorder("<").str for kind in "efdbhiqBHIQ?"}
FILE_TYPES = ARRAY_TYPES | {np.dtype(kind).newbyteorder(">").str for kind in ARRAY_TYPES}

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


def register(kind: type) -> type:
    """Add a message type to the closed list; for those that are defined above the core."""
    MESSAGES[kind.__name__] = kind
    return kind


def encode(message: Any) -> Iterator[bytes | memoryview]:
    """Yield a message's frame piece by piece, without copying its arrays."""
    arrays: list[np.ndarray[Any, Any]] = []
    tree = _to_tree(message, arrays)
    kinds = [[array.dtype.str, list(array.shape)] for array in arrays]
    header = _json({"message": tree, "arrays": kinds}).encode()
    yield PREFIX.pack(MAGIC, len(header)) + header
    for array in arrays:
        if array.size:
            yield memoryview(array.data).cast("B")


def send(message: Any, stream: IO[bytes]) -> None:
    """Write a message's frame to a binary stream."""
    for part in encode(message):
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes], max_bytes: int, files: bool = False) -> Any:
    """Read one message, of at most `max_bytes` of arrays, from a binary stream.

    Raises `EOFError` where the stream ends. `files` allows rows that the receiver is to read from
    files; set it only towards a process of the same user.
    """
    magic, length = PREFIX.unpack(_read(stream, bytearray(PREFIX.size)))
    if magic != MAGIC or length > MAX_HEADER:
        raise WireError(f"not a frame of this version: it starts with {magic!r}, {length} bytes")
    try:
        header = json.loads(bytes(_read(stream, bytearray(length))))
        kinds = [(np.dtype(_known_type(kind)), tuple(shape)) for kind, shape in header["arrays"]]
        size = sum(dtype.itemsize * _count(shape) for dtype, shape in kinds)
        if size > max_bytes:
            raise WireError(f"a message of {size} bytes where at most {max_bytes} are expected")
        arrays = [_read_array(stream, dtype, shape) for dtype, shape in kinds]
        message = _from_tree(header["message"], arrays, files)
        if type(message) not in MESSAGES.values():
            raise WireError(f"{type(message).__name__} is not a message")
        return message
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise WireError(f"malformed message: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise WireError(f"a message too large to take in: {error}") from error


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Names of what a message consists of; None if it is no message."""
    known = is_dataclass(kind) and kind.__name__ in MESSAGES
    return tuple(f.name for f in fields(kind)) if known else None


def _to_tree(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, PLAIN):
        return value
    if (names := _names(value.__class__)) is not None:
        content = {name: _to_tree(getattr(value, name), arrays) for name in names}
        return {"type": type(value).__name__, "fields": content}
    if isinstance(value, np.ndarray):
        little = value.dtype.newbyteorder("<")
        if little.str not in ARRAY_TYPES:
            raise TypeError(f"an array of {value.dtype} cannot be sent")
        arrays.append(np.ascontiguousarray(value, dtype=little))
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype):
        if value.str not in FILE_TYPES:
            raise TypeError(f"{value} cannot be sent")
        return {"dtype": value.str}
    if isinstance(value, tuple | list):
        return {"list": [_to_tree(item, arrays) for item in value]}
    if hasattr(value, "indptr"):
        parts = [_to_tree(part, arrays) for part in (value.data, value.indices, value.indptr)]
        return {"csr": parts, "shape": list(value.shape)}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _from_tree(tree: Any, arrays: list[np.ndarray[Any, Any]], files: bool) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return arrays[tree["array"]]
    if "list" in tree:
        return tuple(_from_tree(item, arrays, files) for item in tree["list"])
    if "dtype" in tree:
        return np.dtype(_known_type(tree["dtype"], FILE_TYPES))
    if "type" in tree:
        if tree["type"] in FILES and not files:
            raise ValueError("files are not read for others")
        content = {k: _from_tree(v, arrays, files) for k, v in tree["fields"].items()}
        return MESSAGES[tree["type"]](**content)
    if "csr" in tree:
        data, indices, indptr = (_from_tree(part, arrays, files) for part in tree["csr"])
        return _csr(data, indices, indptr, tuple(tree["shape"]))
    raise ValueError(f"unknown entry {sorted(tree)}")


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


def _known_type(kind: Any, known: set[str] = ARRAY_TYPES) -> str:
    if kind not in known:
        raise ValueError(f"array type {kind!r}")
    return str(kind)


def _count(shape: tuple[int, ...]) -> int:
    if len(shape) > 2 or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"array shape {shape!r}")
    return math.prod(shape)


def _read(stream: IO[bytes], buffer: bytearray) -> bytearray:
    _fill(stream, memoryview(buffer))
    return buffer


def _read_array(
    stream: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    array = np.empty(shape, dtype)
    if array.size:
        _fill(stream, memoryview(array.data).cast("B"))
    return array


def _fill(stream: IO[bytes], view: memoryview) -> None:
    while len(view):
        count = stream.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the stream ended")
        view = view[count:]
