"""Files that are replaced at once, and locks that end with the process that holds them."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IMODE
from typing import BinaryIO

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # not on this system: unfinished files of killed processes stay
    flock = None  # type: ignore[assignment]

PART = ".part"  # how the names of unfinished files and folders end
CHUNK = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside `path` and put it in place when it is complete and on the disk.

    It has a name of its own, so several processes may do so at once: the last one counts. A link
    stays, and what it points to is replaced. The permissions are those of the file before, or
    those of any new file. What processes left behind that were killed over it is removed.
    """
    path = Path(os.path.realpath(path))
    remove_unfinished(path)
    stream = _locked_part(path)
    try:
        with stream:
            yield stream
            stream.flush()
            with suppress(OSError):  # there is none before, or the disk knows no permissions
                os.fchmod(stream.fileno(), S_IMODE(path.stat().st_mode))
            os.fsync(stream.fileno())
            os.replace(stream.name, path)
        synchronise(path.parent)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # the disk is full, for example
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        Path(stream.name).unlink(missing_ok=True)


def remove_unfinished(path: Path) -> None:
    """Remove unfinished files of `path` whose writers have ended without removing them."""
    for part in unfinished(path):
        with suppress(OSError), abandoned(part):  # else it is gone, or in use
            part.unlink()


def unfinished(path: Path) -> list[Path]:
    """Unfinished files or folders that are to become `path`."""
    ours = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}" + re.escape(PART))
    with suppress(OSError):
        return [path.with_name(name) for name in os.listdir(path.parent) if ours.fullmatch(name)]
    return []


def part_of(path: Path) -> Path:
    """A new name for what is to become `path`."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")


def _locked_part(path: Path) -> BinaryIO:
    """Open an unfinished file that nobody removes as long as it is open."""
    while True:
        part = part_of(path)
        stream = open(part, "xb")  # noqa: SIM115 (the caller closes it)
        lock(stream.fileno())
        if flock is None or part.exists():  # else it was removed before it was locked
            return stream
        stream.close()


def lock(file: int) -> None:
    """Wait for a lock on an open file or folder, where there are locks; closing it ends that."""
    if flock is not None:
        with suppress(OSError):
            flock(file, LOCK_EX)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others that do the same out of a folder meanwhile, where there are locks."""
    file = None
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        lock(file)
    try:
        yield
    finally:
        if file is not None:
            os.close(file)


@contextmanager
def abandoned(path: Path) -> Iterator[None]:
    """Lock an unfinished file or folder whose writer has ended; `OSError` if it has not."""
    if flock is None:
        raise BlockingIOError("there are no locks to tell by")
    file = os.open(path, os.O_RDONLY)
    try:
        flock(file, LOCK_EX | LOCK_NB)
        yield
    finally:
        os.close(file)


def synchronise(folder: Path) -> None:
    """Have the names in a folder on the disk, where that can be asked for."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def check_writable(path: Path, given: str) -> None:
    """Refuse a place for a file, before the work that would be lost; `given` is what users gave."""
    try:
        folder = path.parent
        while not folder.exists():  # it is made when the file is
            folder = folder.parent
        try_to_write(folder / path.name, 1)
    except OSError as error:
        told = f"{error.strerror}; name a place that you may write to"
        raise OSError(error.errno, told, given) from error


def try_to_write(path: Path, size: int) -> None:
    """Write an unfinished file of so many zeros, and remove it; raises what is in the way."""
    stream = _locked_part(path)
    try:
        with stream:
            for start in range(0, size, CHUNK):
                stream.write(bytes(min(CHUNK, size - start)))
            stream.flush()
            os.fsync(stream.fileno())
    finally:
        Path(stream.name).unlink(missing_ok=True)
