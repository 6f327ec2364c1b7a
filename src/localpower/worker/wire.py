"""Tasks, replies and shards as bytes: the only serialisation there is.

A frame is ``b"LPW3"``, two lengths, the form of a message, its values, and the raw bytes of its
arrays. The form is JSON: ``[name, part, ...]`` stands for a message with all its fields,
``["array", type, size, ...]`` for an array, and 0 for the next of the values, which are a list of
JSON's own. Forms are the same from round to round: what one means is worked out once.

Message types come from one closed list and array types from another, and sizes are checked
before anything is allocated. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from localpower.core.errors import WireError
from localpower.core.ledger import Ledger, Round, parts
from localpower.worker import private_tasks, replies, sum_tasks, tasks
from localpower.worker.moments import Moments
from localpower.worker.shard import Shard
from localpower.worker.stored import Stored, StoredCSR, check_compressed

MAGIC = b"LPW3"
PREFIX = struct.Struct("<4sII")
MAX_HEADER = 1 << 24
FEW, SHORT = 64, 1 << 12  # parts and bytes of a form that is remembered
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
        *(tasks.GramTriangle, tasks.LocalTriangle, tasks.Measure, replies.MeasuredReply),
        *(Moments, replies.Done, replies.Kernel, replies.Product, replies.Factor, replies.Rows),
        *(replies.Eigenvectors, replies.Proposal, replies.PackedSum, replies.PackedTriangle),
        *(tasks.LeadingFactor, replies.LowRank),
        *(sum_tasks.Sums, sum_tasks.Spread, sum_tasks.SmallGram),
        *(sum_tasks.ColumnSums, sum_tasks.SmallSum),
        *(private_tasks.NoisedGram, private_tasks.NoisedProduct, private_tasks.NoisedSteps),
        private_tasks.NoisedSum,
        *(Shard, Stored, StoredCSR, Ledger, Round),
    )
}
FILES = ("Stored", "StoredCSR")  # messages that make the receiver read files


Fill = Callable[[memoryview], None]  # puts bytes where they belong
Reading = Generator[memoryview, None, Any]


class DecodingPlan(NamedTuple):
    """What a form means.

    The values and the arrays come first; every step of the `program` picks some of what there is
    and makes one more of them, the last of which is the message.
    """

    values: int
    arrays: list[tuple[np.dtype[Any], tuple[int, ...]]]
    size: int
    files: bool
    program: list[tuple[Callable[..., Any], Callable[[list[Any]], Sequence[Any]]]]


def register(kind: type) -> type:
    """Add a message type to the closed list; for those that are defined above the core."""
    if MESSAGES.get(kind.__name__, kind) is not kind:
        raise ValueError(f"another message is called {kind.__name__}: take another name")
    MESSAGES[kind.__name__] = kind
    return kind


def encode(message: Any) -> Iterator[bytes | memoryview]:
    """Yield a message's frame piece by piece, without copying its arrays."""
    values: list[Any] = []
    arrays: list[np.ndarray[Any, Any]] = []
    form = _form(message, values, arrays)
    form = (_written if len(values) + len(arrays) <= FEW else _written.__wrapped__)(form)
    content = _to_json(values).encode()
    yield PREFIX.pack(MAGIC, len(form), len(content)) + form + content
    for array in arrays:
        if array.size:
            yield array.data.cast("B")


def reading(max_bytes: int, files: bool = False) -> Reading:
    """Yield, one after the other, where the bytes of a frame belong; return its message.

    Its arrays have at most `max_bytes`. `files` allows rows that the receiver is to read from
    files; set it only towards a process of the same user.
    """
    prefix = bytearray(PREFIX.size)
    yield memoryview(prefix)
    form, content = _lengths(prefix)
    header = bytearray(form + content)
    yield memoryview(header)
    return (yield from _message(header, form, max_bytes, files))


def receive(stream: IO[bytes], max_bytes: int, files: bool = False) -> Any:
    """Read one message from a binary stream, as `reading`; `EOFError` tells that it has ended."""
    return read(reading(max_bytes, files), lambda view: _fill(stream, view))


def decode(head: bytearray, fill: Fill, max_bytes: int, files: bool = False) -> Any:
    """Make a message of the first piece of its frame; `fill` reads what belongs in an array."""
    form, content = _lengths(head) if len(head) >= PREFIX.size else (0, 0)
    if PREFIX.size + form + content != len(head):
        raise WireError("a frame whose header is not as long as it says")
    return read(_message(head[PREFIX.size :], form, max_bytes, files), fill)


def read(frame: Reading, fill: Fill) -> Any:
    """Read what can be had at once; `fill` puts bytes where they belong."""
    while True:
        try:
            view = next(frame)
        except StopIteration as end:
            return end.value
        fill(view)


def _lengths(head: bytearray) -> tuple[int, int]:
    magic, form, content = PREFIX.unpack_from(head)
    if magic != MAGIC or form + content > MAX_HEADER:
        raise WireError(
            f"not a frame of this version: it starts with {magic!r}, {form + content} bytes"
        )
    return form, content


def _message(header: bytearray, form: int, max_bytes: int, files: bool) -> Reading:
    try:
        plan = (_plan if form <= SHORT else _plan.__wrapped__)(bytes(header[:form]))
        if plan.files and not files:
            raise ValueError("files are not read for others")
        if plan.size > max_bytes:
            raise WireError(
                f"a message of {plan.size} bytes where at most {max_bytes} are expected"
            )
        values = _parsed(header[form:])
        if not isinstance(values, list) or len(values) != plan.values:
            raise ValueError(f"not the {plan.values} values that belong in the form")
        made = [value if value.__class__ in SCALARS else _plain(value) for value in values]
        arrays = [np.empty(shape, dtype) for dtype, shape in plan.arrays]
        for array in arrays:
            if array.size:
                yield array.data.cast("B")
        made += arrays
        for make, pick in plan.program:
            made.append(make(*pick(made)))
        return made[-1]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise WireError(f"malformed message: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise WireError(f"a message too large to take in: {error}") from error


def _form(value: Any, values: list[Any], arrays: list[np.ndarray[Any, Any]]) -> Any:
    """The form of a message; what belongs in it goes into the lists."""
    kind: type = value.__class__
    if kind in SCALARS:
        values.append(value)
        return 0
    if MESSAGES.get(kind.__name__) is kind:
        return (kind.__name__, *_forms(parts(value), values, arrays))
    if isinstance(value, np.ndarray):
        little = value.dtype if value.dtype in ARRAY_NAMES else value.dtype.newbyteorder("<")
        if little not in ARRAY_NAMES:
            raise TypeError(f"an array of {value.dtype} cannot be sent")
        arrays.append(np.ascontiguousarray(value, dtype=little))
        return ("array", ARRAY_NAMES[little], *value.shape)
    if isinstance(value, tuple | list):
        before = len(values)
        inner = _forms(value, values, arrays)
        if any(inner):
            return ("tuple", *inner)
        values[before:] = [values[before:]]
        return 0
    if isinstance(value, np.generic):
        return _form(value.item(), values, arrays)
    if isinstance(value, np.dtype):
        if value.str not in FILE_TYPES:
            raise TypeError(f"{value} cannot be sent")
        return ("dtype", _form(value.str, values, arrays))
    if hasattr(value, "indptr"):
        whole = value.data, value.indices, value.indptr, value.shape
        return ("csr", *_forms(whole, values, arrays))
    raise TypeError(f"{kind.__name__} cannot be sent")


def _forms(several: Iterable[Any], values: list[Any], arrays: list[np.ndarray[Any, Any]]) -> Any:
    inner = []
    for value in several:
        if value.__class__ in SCALARS:  # as in `_form`, but most are
            values.append(value)
            inner.append(0)
        else:
            inner.append(_form(value, values, arrays))
    return inner


@lru_cache
def _written(form: Any) -> bytes:
    """A form as text."""
    return _to_json(form).encode()


@lru_cache
def _plan(form: bytes) -> DecodingPlan:
    """Work out what a form means."""
    tree = _parsed(form)
    count = size = 0
    arrays: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    steps: list[tuple[str, list[tuple[int, int]]]] = []

    def visit(node: Any) -> tuple[int, int]:
        """Where something will be found: among the values, the arrays or what is made."""
        nonlocal count, size
        if node == 0:
            count += 1
            return 0, count - 1
        name, *inner = node
        if name == "array":
            dtype, *shape = inner
            arrays.append((_known(dtype), tuple(shape)))
            size += arrays[-1][0].itemsize * _count(shape)
            return 1, len(arrays) - 1
        if name not in MAKERS and name not in MESSAGES:
            raise ValueError(f"unknown entry {name!r}")
        steps.append((name, [visit(part) for part in inner]))
        return 2, len(steps) - 1

    visit(tree)
    if tree[0] not in MESSAGES:
        raise WireError(f"{tree[0]} is not a message")
    start = 0, count, count + len(arrays)
    program = [
        (MAKERS.get(name) or MESSAGES[name], _picker([start[kind] + at for kind, at in inner]))
        for name, inner in steps
    ]
    return DecodingPlan(count, arrays, size, any(name in FILES for name, _ in steps), program)


def _picker(places: list[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """What picks these of a list; as a sequence, also if that is one or none."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def _parsed(text: bytes | bytearray) -> Any:
    """JSON and nothing after it."""
    whole = text.decode()
    found, end = _from_json(whole)
    if end != len(whole):
        raise ValueError(f"more after what was said: {whole[end:][:20]!r}")
    return found


def _plain(value: Any) -> Any:
    """A value with tuples for lists."""
    if value.__class__ in SCALARS:
        return value
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.20} among values")
    return tuple([_plain(item) for item in value])


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


MAKERS: dict[str, Callable[..., Any]] = {
    "tuple": lambda *parts: parts,
    "dtype": lambda name: _known(name, FILE_TYPES),
    "csr": _csr,
}


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
