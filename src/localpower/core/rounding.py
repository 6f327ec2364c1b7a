"""Numbers in fewer bytes, for messages.

There are two ways. All numbers become those of a narrower type, `to_wire`. Or each column becomes
whole numbers of as many bytes as it needs, times a power of two of its own, `to_bytes`: what may be
lost is said, and a column that is small takes fewer bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from localpower.core.linalg import Array

HEAD = np.dtype("<u4")  # rows and columns, ahead of the widths and the exponents of columns
EXPONENT = np.dtype("<i2")
WIDEST = 7  # bytes of a whole number
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}  # largest relative rounding


def to_wire(A: Array, name: str) -> Any:
    """Round to nearest; bfloat16 as the upper halves of float32, in 16-bit integers."""
    if name != "bfloat16":
        return np.ascontiguousarray(A, np.float32 if name == "float32" else A.dtype)
    bits = np.ascontiguousarray(A, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(A: Array, name: str) -> tuple[Any, Array | None]:
    """A as `to_wire` makes it, and the norms of what its columns lose; None if they lose nothing.

    Norms of shards are added: that bounds what is lost in the sum of all, for every matrix.
    """
    return _with_loss(A, to_wire(A, name))


def _with_loss(A: Array, sent: Any) -> tuple[Any, Array | None]:
    if sent.dtype == A.dtype:
        return sent, None
    return sent, np.linalg.norm(A.astype(np.float64, copy=False) - from_wire(sent), axis=0)


def to_bytes(A: Array, loss: Array | float) -> Any:
    """Columns as whole numbers in as few bytes as lose no more than `loss`, in the norm of each.

    The reply is one array of bytes; or A itself, where that is no longer, or no loss is allowed.
    """
    if not np.any(loss):
        return np.ascontiguousarray(A)
    (d, r), wide = A.shape, A.astype(np.float64, copy=False)
    most = np.abs(wide).max(axis=0, initial=0.0)
    unit = 2 * np.minimum(np.broadcast_to(loss, r), most) / math.sqrt(max(d, 1))
    high, low = np.frexp(most)[1], np.frexp(unit)[1] - 1  # most < 2**high, 2**low <= unit
    widths = np.where(most > 0, np.maximum(-(-(high - low + 1) // 8), 1), 1)
    size = 2 * HEAD.itemsize + r * (1 + EXPONENT.itemsize) + d * int(widths.sum())
    fits = np.isfinite(most).all() and (unit[most > 0] > 0).all() and (widths <= WIDEST).all()
    if not fits or size >= A.nbytes:
        return np.ascontiguousarray(A)
    exponents = high - (8 * widths - 1)
    whole = np.rint(np.ldexp(wide, -exponents)).astype("<i8", order="C")
    digits = np.minimum(whole, (np.int64(1) << (8 * widths - 1)) - 1).view(np.uint8)
    columns = [
        digits.reshape(d, r, 8)[:, widths == width, :width] for width in range(1, WIDEST + 1)
    ]
    head = np.array([d, r], HEAD), widths.astype(np.uint8), exponents.astype(EXPONENT)
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in (*head, *columns)])


def rounded_to(A: Array, loss: Array | float) -> tuple[Any, Array | None]:
    """A as `to_bytes` makes it, and the norms of what its columns lose, as `rounded`."""
    return _with_loss(A, to_bytes(A, loss))


def shape_of(A: Any) -> tuple[int, ...]:
    """Shape of a matrix as it was sent; none, if it is made of bytes that mean nothing."""
    if A.dtype != np.uint8:
        shape: tuple[int, ...] = A.shape
        return shape
    if A.ndim != 1 or len(A) < 2 * HEAD.itemsize:
        return ()
    d, r = A[: 2 * HEAD.itemsize].view(HEAD).tolist()
    start = 2 * HEAD.itemsize + r * (1 + EXPONENT.itemsize)
    widths = A[2 * HEAD.itemsize :][:r]
    known = ((widths > 0) & (widths <= WIDEST)).all()
    return (d, r) if known and len(A) == start + d * int(widths.sum(dtype=np.int64)) else ()


def _from_bytes(A: Any) -> Array:
    """Undo `to_bytes`."""
    if not shape_of(A):
        raise ValueError(f"{A.size} bytes that are not the columns of a matrix")
    d, r = shape_of(A)
    widths, at = A[2 * HEAD.itemsize :][:r], 2 * HEAD.itemsize + r
    exponents = A[at : (at := at + r * EXPONENT.itemsize)].view(EXPONENT)
    whole = np.empty((d, r), "<i8")
    for width in np.unique(widths).tolist():
        mine = np.flatnonzero(widths == width)
        digits = np.zeros((d, len(mine), 8), np.uint8)
        part = A[at : (at := at + d * len(mine) * width)]
        digits[:, :, 8 - width :] = part.reshape(d, len(mine), width)
        whole[:, mine] = digits.view("<i8")[:, :, 0] >> (64 - 8 * width)  # with their signs
    with np.errstate(over="ignore"):  # what is too large is found not to be finite
        found: Array = np.ldexp(whole.astype(np.float64), exponents)
    return found


def from_wire(A: Any, dtype: DTypeLike = np.float64) -> Array:
    """Undo `to_wire` or `to_bytes`, without the digits that they took."""
    if A.dtype == np.uint8:
        A = _from_bytes(A)
    if A.dtype == np.uint16:
        A = (A.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(A, dtype)


def finite(A: Any) -> bool:
    """Whether all numbers are, as they are sent; only a sum that is not needs a look."""
    if A.dtype in (np.uint8, np.uint16):
        A = from_wire(A)
    return math.isfinite(np.einsum("i->", A.reshape(-1))) or bool(np.isfinite(A).all())
