"""A run's state on disk, so that it can go on after the process has ended.

One file: a magic word, the SHA-256 of the rest, and an ``.npz`` of arrays with a JSON description.
It is written beside, synchronised and renamed, so a file is either the old or the new one. Nothing
is pickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.block_lanczos import LanczosState
from localpower.core.errors import DataError
from localpower.core.ledger import Round
from localpower.core.linalg import Array
from localpower.core.local_power import State
from localpower.core.local_ritz import RitzState
from localpower.result import Record, replacing

MAGIC = b"LPCK0001"
STATES: dict[str, type[State]] = {kind.__name__: kind for kind in (State, RitzState, LanczosState)}


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Where a run stands: its state, what it did so far, and why it ended if it did."""

    state: State
    history: tuple[Record, ...]
    records: tuple[Round, ...]
    reason: str | None


def fingerprint(identity: Mapping[str, Any], *arrays: Array) -> dict[str, Any]:
    """Describe a run so that only the same one goes on: options, and a digest of the data."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, np.float64).tobytes())
    return {**identity, "data": digest.hexdigest()}


def save(path: str | os.PathLike[str], point: Checkpoint, identity: Mapping[str, Any]) -> None:
    """Write a checkpoint in place of the one before."""
    arrays: dict[str, Array] = {}
    numbers: dict[str, float] = {}
    for entry in fields(point.state):
        value = getattr(point.state, entry.name)
        if isinstance(value, int | float):
            numbers[entry.name] = value
        elif isinstance(value, tuple):
            arrays |= {f"{entry.name}.{i}": part for i, part in enumerate(value)}
        elif value is not None:
            arrays[entry.name] = value
    description = {
        "kind": type(point.state).__name__,
        "numbers": numbers,
        "identity": dict(identity),
        "history": [asdict(record) for record in point.history],
        "records": [asdict(record) for record in point.records],
        "reason": point.reason,
    }
    content = io.BytesIO()
    text = np.frombuffer(json.dumps(description).encode(), np.uint8)
    np.savez(content, description=text, **arrays)  # type: ignore[arg-type]
    body = content.getvalue()
    with replacing(Path(path)) as stream:
        stream.write(MAGIC + hashlib.sha256(body).digest())
        stream.write(body)


def load(path: str | os.PathLike[str], identity: Mapping[str, Any]) -> Checkpoint:
    """Read a checkpoint of the very same run; refuse a torn, foreign or other one."""
    with open(path, "rb") as stream:
        start, body = stream.read(len(MAGIC) + 32), stream.read()
    if not start.startswith(MAGIC):
        raise DataError(f"{path} is no checkpoint of this version; delete it, or name another")
    if hashlib.sha256(body).digest() != start[len(MAGIC) :]:
        raise DataError(f"{path}: a torn or damaged checkpoint; delete it and start again")
    with np.load(io.BytesIO(body), allow_pickle=False) as content:
        arrays = {name: content[name] for name in content}
    description = json.loads(bytes(arrays.pop("description")))
    known = json.loads(json.dumps(dict(identity)))
    other = [k for k in known if known[k] != description["identity"].get(k)]
    if other:
        raise DataError(
            f"{path}: a checkpoint of another run, with other {', '.join(other)}; give the same "
            "data and options, or name another file"
        )
    parts: dict[str, Any] = {name: a for name, a in arrays.items() if "." not in name}
    for pair in ("exact", "reference"):
        if f"{pair}.0" in arrays:
            parts[pair] = arrays[f"{pair}.0"], arrays[f"{pair}.1"]
    return Checkpoint(
        state=STATES[description["kind"]](**parts, **description["numbers"]),
        history=tuple(Record(**record) for record in description["history"]),
        records=tuple(Round(**record) for record in description["records"]),
        reason=description["reason"],
    )
