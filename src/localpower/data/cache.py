"""A folder of the user's that keeps what was read of files, for the next time.

It is found by the file's path, size, time of change and the options of the read. It is checked
against its checksums, and made anew where it does not fit.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.checksum import file_checksum
from localpower.core.errors import DataError, warn
from localpower.core.files import abandoned, lock, locked, part_of, unfinished
from localpower.data.blocks import Block, Options
from localpower.data.spool import RowStorage, Spool, Table, keep
from localpower.version import __version__
from localpower.worker.stored import Stored, StoredCSR, stamp

FORMAT = 3
DESCRIPTION = "table.json"


def cached(
    path: Path, options: Options, blocks: Iterable[Block], room: RowStorage, raw: bool
) -> Table:
    """Like `keep`, but in the user's cache; or what is there from an earlier time."""
    if room.cache is None:
        return keep(blocks, room, str(path), options.missing, raw)
    identity = repr((FORMAT, str(path.resolve()), stamp(path), astuple(options)))
    folder = room.cache / hashlib.sha256(identity.encode()).hexdigest()[:32]
    found = _found(folder)
    if isinstance(found, Table):
        return found
    if found:
        warn(f"{folder}: this cache cannot be used ({found}) and is written again", RuntimeWarning)
    room.cache.mkdir(parents=True, exist_ok=True)
    with _unfinished_folder(folder) as part:
        table = Spool(RowStorage(0), part, options.missing, raw).filled(blocks, str(path)).table()
        if not table.pieces:
            return table
        _write_description(part, table)
        return _published(part, folder)


@contextmanager
def _unfinished_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that is to become `folder`; it is removed if it does not.

    What processes left behind that were killed over it is removed.
    """
    for left in unfinished(folder):
        with suppress(OSError), abandoned(left):
            shutil.rmtree(left)
    part, file = _locked_folder(folder)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(file)


def _locked_folder(folder: Path) -> tuple[Path, int]:
    while True:
        part = part_of(folder)
        part.mkdir()
        with suppress(FileNotFoundError):
            file = os.open(part, os.O_RDONLY)
            lock(file)
            if part.exists():  # else it was removed before it was locked
                return part, file
            os.close(file)


def _published(part: Path, folder: Path) -> Table:
    """Put a finished folder in place, unless another process was faster, and read it."""
    with locked(folder.parent):
        found = _found(folder)
        if isinstance(found, Table):  # which that process is using
            return found
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
        return _read_description(folder, check=False)


def _write_description(folder: Path, table: Table) -> None:
    piece = table.pieces[0]
    for name in ("labels", "left_out"):
        if (saved := getattr(table, name)) is not None:
            np.save(folder / f"{name}.npy", saved, allow_pickle=False)
    shape = [*piece.shape, piece.nnz if isinstance(piece, StoredCSR) else None]
    content = {"shape": shape, "dtype": piece.dtype.str, "names": table.names}
    content |= {"lowest": table.lowest, "gaps": table.gaps, "version": __version__}
    content["files"] = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    content["sha256"] = _seal(content)
    (folder / DESCRIPTION).write_text(json.dumps(content), encoding="utf-8")


def _checksum(path: Path) -> str:
    with open(path, "rb") as stream:
        return file_checksum(stream)


def _seal(content: dict[str, Any]) -> str:
    """Tell a description from one that was changed."""
    rest = {name: part for name, part in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _found(folder: Path) -> Table | str:
    """Read what is in the cache; or say why it cannot be used, nothing if there is none."""
    if not (folder / DESCRIPTION).exists():
        return ""
    try:
        return _read_description(folder)
    except DataError as error:
        return str(error)


def _check_files(folder: Path, content: dict[str, Any]) -> None:
    """Refuse what was written by another version, or changed since it was written."""
    if content.get("sha256") != _seal(content):
        raise ValueError(f"{DESCRIPTION} has changed since it was written")
    if content["version"] != __version__:
        raise ValueError(f"of version {content['version']}, and this is {__version__}")
    for name, known in content["files"].items():
        if _checksum(folder / name) != known:
            raise ValueError(f"{name} has changed since it was written")


def _read_description(folder: Path, check: bool = True) -> Table:
    try:
        content = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if check:
            _check_files(folder, content)
        rows, columns, entries = content["shape"]
        kind = np.dtype(content["dtype"])
        if kind not in (np.float32, np.float64):
            raise ValueError(f"dtype {kind}")
        if entries is None:
            piece: Any = _raw(folder, "data", kind, (rows, columns))
        else:
            parts = (
                _raw(folder, "data", kind, (entries,)),
                _raw(folder, "indices", np.dtype(np.int32), (entries,)),
                _raw(folder, "indptr", np.dtype(np.int64), (rows + 1,)),
            )
            piece = StoredCSR(*parts, columns, 0, entries)
        labels = folder / "labels.npy"
        found = np.load(labels, allow_pickle=False) if labels.exists() else None
        names, lowest = content["names"] and tuple(content["names"]), content["lowest"]
        if found is not None and found.shape != (rows,):
            raise ValueError(f"labels of shape {found.shape}")
        if lowest is not None and type(lowest) is not int:
            raise ValueError(f"lowest is {lowest!r}")
        left_out = np.load(folder / "left_out.npy", allow_pickle=False)
        gaps = content["gaps"]
        if left_out.ndim != 1 or left_out.dtype.kind != "i" or type(gaps) is not bool:
            raise ValueError(f"rows left out of shape {left_out.shape}, gaps {gaps!r}")
        return Table((piece,), columns, found, names, lowest, left_out=left_out, gaps=gaps)
    except (AttributeError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(str(error)) from error


def _raw(folder: Path, name: str, kind: np.dtype[Any], shape: tuple[int, ...]) -> Stored:
    path = folder / f"{name}.raw"
    stored = Stored(str(path), 0, kind, shape, stamp(path))
    if stored.nbytes != stored.stamp[0]:
        raise ValueError(f"{name}.raw has {stored.stamp[0]} bytes, not {stored.nbytes}")
    return stored
