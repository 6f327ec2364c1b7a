"""What this process may use of its machine: cores and memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROWS_SHARE = 0.75  # of a budget of memory; the rest is for blocks and the d×r work
UNKNOWN = 4 << 30  # bytes that are assumed free where the system does not tell
UNLIMITED = 1 << 60  # bytes; where a group of version 1 has no limit, it names one beyond this
SYSTEM = Path("/")  # tests put another in its place


def cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_folder() -> Path:
    """Where the user's files are kept: ``$XDG_CACHE_HOME/localpower``, or ``~/.cache/localpower``.

    Downloads, and what was measured of engines.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "localpower"


def available() -> int:
    """Bytes that this process can still take, under the limits that it runs with."""
    left = [_free(), *_control_groups(), _address_space()]
    return min((size for size in left if size is not None), default=UNKNOWN)


def _free() -> int | None:
    found = re.search(r"MemAvailable:\s+(\d+) kB", _text("proc/meminfo"))
    return None if found is None else int(found[1]) << 10


def _control_groups() -> Iterator[int | None]:
    """What a container has left: its own group and those around it, of versions 1 and 2."""
    for line in _text("proc/self/cgroup").splitlines() or ["0::/"]:
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if not kinds:
            files = ("memory.max", "memory.current")
        folder = f"sys/fs/cgroup/{kinds}".rstrip("/")
        yield _left_in_group(folder, *files)
        for part in place.strip("/").split("/") if place.strip("/") else ():
            folder = f"{folder}/{part}"
            yield _left_in_group(folder, *files)


def _left_in_group(folder: str, limit: str, used: str) -> int | None:
    """Limit less use; pages of files count as use, but the system takes them back when needed."""
    most = _text(f"{folder}/{limit}").strip()
    if not most.isdecimal() or int(most) >= UNLIMITED:  # the rest takes the kernel a while
        return None
    now = _text(f"{folder}/{used}").strip()
    pages = re.search(r"^(?:total_)?inactive_file (\d+)", _text(f"{folder}/memory.stat"), re.M)
    if not now.isdecimal():
        return None
    return max(int(most) - int(now) + (int(pages[1]) if pages else 0), 0)


def _address_space() -> int | None:
    """What is left of ``ulimit -v``."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(_text("proc/self/statm").split()[0])
        return max(limit - pages * os.sysconf("SC_PAGESIZE"), 0)
    except (ImportError, IndexError, OSError, ValueError):
        return None


def _text(path: str) -> str:
    try:
        with open(os.path.join(SYSTEM, path), encoding="ascii") as stream:
            return stream.read()
    except (OSError, UnicodeError):
        return ""
