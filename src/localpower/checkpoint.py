"""A run's state on disk, so that it can go on after the process has ended.

One file: a magic word, the SHA-256 of the rest, and an ``.npz`` of arrays with a JSON description.
It is written beside, synchronised and renamed, so a file is either the old or the new one. Nothing
is pickled. A file tells which run it is of: its options, its start, and a checksum of its rows.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.core.evidence import Probes
from localpower.core.files import replacing, try_to_write
from localpower.core.ledger import Record, Round
from localpower.core.linalg import Array
from localpower.methods import Method
from localpower.methods.state import State
from localpower.options import Checkpoint
from localpower.stopping import REASONS

MAGIC = b"LPCK0002"
REMEDIES = {
    errno.ENOENT: "create the folder {}, or ",
    errno.EACCES: "make {} a folder that you may write to, or ",
    errno.EPERM: "make {} a folder that you may write to, or ",
    errno.EROFS: "make {} a folder that you may write to, or ",
    errno.ENOSPC: "free some space in {}, or ",
    errno.EDQUOT: "free some space in {}, or ",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f), or ",
}


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Where a run stands: its state, what it did so far, and why it ended if it did.

    `leg` is the number of its method, where several follow each other. Those before took so many
    rounds and steps, `before`, which are among those of the state. It may be `over`, so that the
    next method is to follow.
    """

    state: State
    history: tuple[Record, ...]
    records: tuple[Round, ...]
    reason: str | None
    leg: int = 0
    before: tuple[int, int] = (0, 0)
    over: bool = False


def digest(*parts: Any) -> str:
    """A short text that stands for arrays, and for whatever its ``repr`` tells."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(repr((part.dtype.str, part.shape)).encode())
            found.update(np.ascontiguousarray(part).data)
        else:
            found.update(repr(part).encode())
    return found.hexdigest()


def generator_digest(generator: np.random.Generator) -> str:
    """The same for a generator: what it draws next, and what it spawns."""
    bits = generator.bit_generator
    seeds = [getattr(bits.seed_seq, n, None) for n in ("entropy", "spawn_key")]
    spawned = getattr(bits.seed_seq, "n_children_spawned", None)
    state = json.dumps(bits.state, sort_keys=True, default=lambda part: np.asarray(part).tolist())
    return digest(state, *map(repr, seeds), spawned)


def check_place(path: str | os.PathLike[str], size: int = 1) -> None:
    """Refuse a place where no file of `size` bytes can be written, before any work is done."""
    with _explained(path):
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "it is not a file")
        try_to_write(target, size)


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of an error of the system which argument it is about, and what to do."""
    try:
        yield
    except OSError as error:
        folder = os.path.dirname(os.path.realpath(path))
        remedy = REMEDIES.get(error.errno or 0, "").format(folder)
        raise DataError(
            f"checkpoint={os.fspath(path)!r} cannot be used: {error.strerror or error}; {remedy}"
            "name another file"
        ) from error


def save(path: str | os.PathLike[str], point: Snapshot, identity: Mapping[str, Any]) -> None:
    """Write a checkpoint in place of the one before."""
    arrays: dict[str, Array] = {}
    numbers: dict[str, float] = {}
    _flatten(point.state, "", arrays, numbers)
    description = {
        "numbers": numbers,
        "identity": dict(identity),
        "history": [asdict(record) for record in point.history],
        "records": [asdict(record) for record in point.records],
        "reason": point.reason,
        "leg": point.leg,
        "before": point.before,
        "over": point.over,
    }
    content = io.BytesIO()
    text = np.frombuffer(json.dumps(description).encode(), np.uint8)
    np.savez(content, description=text, **arrays)  # type: ignore[arg-type]
    body = content.getvalue()
    with _explained(path), replacing(Path(path)) as stream:
        stream.write(MAGIC + hashlib.sha256(body).digest())
        stream.write(body)


def load(
    path: str | os.PathLike[str], identity: Mapping[str, Any], methods: Sequence[Method]
) -> Snapshot:
    """Read a checkpoint of the very same run, which has a state of one of these methods.

    Refuse a torn, foreign or other one.
    """
    with _explained(path), open(path, "rb") as stream:
        start, body = stream.read(len(MAGIC) + 32), stream.read()
    if not start.startswith(MAGIC):
        raise DataError(
            f"{path} is not a checkpoint of this version; delete it, or name another file"
        )
    if hashlib.sha256(body).digest() != start[len(MAGIC) :]:
        raise DataError(f"{path}: a torn or damaged checkpoint; delete it and start again")
    with np.load(io.BytesIO(body), allow_pickle=False) as content:
        arrays = {name: content[name] for name in content}
    description = json.loads(bytes(arrays.pop("description")))
    known = json.loads(json.dumps(dict(identity)))
    other = [k for k in known if known[k] != description["identity"].get(k)]
    if other:
        seed = description["identity"].get("seed")
        hint = f" (rng={seed})" if "seed" in other and seed is not None else ""
        raise DataError(
            f"{path}: a checkpoint of another run, with other {', '.join(other)}; give the same "
            f"data and options{hint}, or name another file"
        )
    parts = {name: a for name, a in arrays.items() if "." not in name}
    numbers = {name: x for name, x in description["numbers"].items() if "." not in name}
    for name in sorted({name.partition(".")[0] for name in arrays if "." in name}):
        inner = {
            key.partition(".")[2]: a for key, a in arrays.items() if key.startswith(name + ".")
        }
        if name == "probes":
            inner |= {key.partition(".")[2]: x for key, x in description["numbers"].items()
                      if key.startswith("probes.")}  # fmt: skip
        parts[name] = Probes(**inner) if name == "probes" else tuple(map(inner.get, sorted(inner)))
    leg = description.get("leg", 0)
    return Snapshot(
        state=methods[leg].state_type(**parts, **numbers),
        history=tuple(Record(**record) for record in description["history"]),
        records=tuple(Round(**record) for record in description["records"]),
        reason=description["reason"],
        leg=leg,
        before=tuple(description.get("before", (0, 0))),
        over=description.get("over", False),
    )


def _flatten(part: Any, prefix: str, arrays: dict[str, Array], numbers: dict[str, float]) -> None:
    """Collect the arrays and numbers of a state, by name."""
    for entry in fields(part):
        name, value = prefix + entry.name, getattr(part, entry.name)
        if isinstance(value, int | float):
            numbers[name] = value
        elif isinstance(value, tuple):
            arrays |= {f"{name}.{i}": each for i, each in enumerate(value)}
        elif isinstance(value, Probes):
            _flatten(value, f"{name}.", arrays, numbers)
        elif value is not None:
            arrays[name] = value


@dataclass(frozen=True, slots=True)
class CheckpointWriter:
    """Writes a checkpoint after every so many rounds, and finds the last one.

    Nothing is written from when shards are `missing`: what a state says of all rows would not be
    true of it, and a later run, which may have them all, would go on from that.
    """

    where: Checkpoint | None
    identity: Mapping[str, Any]
    missing: Collection[int] = ()

    def check(self, size: int) -> None:
        """Refuse a place that has no room for a state of `size` bytes."""
        if self.where is not None:
            check_place(self.where.path, size)

    def found(self, methods: Sequence[Method]) -> Snapshot | None:
        """Read the checkpoint, if there is one and it is wanted."""
        if self.where is None or not self.where.resume or not os.path.exists(self.where.path):
            return None
        return load(self.where.path, self.identity, methods)

    def due(self, state: State, ends: bool) -> bool:
        """Whether to write the state: it is time, or the run ends."""
        if self.where is None or self.missing:
            return False
        return state.round % self.where.every == 0 or ends

    def keep(self, point: Snapshot) -> None:
        """Write a checkpoint that is due; a run that may go on has no reason to end."""
        assert self.where is not None
        final = point.reason is not None and REASONS[point.reason].final
        save(
            self.where.path,
            replace(point, reason=point.reason if final else None),
            self.identity,
        )
