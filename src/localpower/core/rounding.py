"""Numbers in fewer bytes, for messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from localpower.core.linalg import Array

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
    sent = to_wire(A, name)
    if sent.dtype == A.dtype:
        return sent, None
    return sent, np.linalg.norm(A.astype(np.float64, copy=False) - from_wire(sent), axis=0)


def from_wire(A: Any, dtype: DTypeLike = np.float64) -> Array:
    """Undo `to_wire`, without the digits that it took."""
    if A.dtype == np.uint16:
        A = (A.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(A, dtype)


def finite(A: Any) -> bool:
    """Whether all numbers are, also of what is `to_wire`; only a sum that is not needs a look."""
    if A.dtype == np.uint16:
        A = from_wire(A)
    return math.isfinite(np.einsum("i->", A.reshape(-1))) or bool(np.isfinite(A).all())
