"""How much memory there is, and how much of it the rows may take."""

from __future__ import annotations

import os
import re
from pathlib import Path

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
SMALLEST = 1 << 24  # less is not worth the trouble: numpy alone takes more
UNKNOWN = 4 << 30  # what is assumed free where the system does not tell


def budget(memory: int | str | None) -> int:
    """Bytes that rows may take: as told, or half of what is free.

    Examples
    --------
    >>> budget("2GB"), budget("512 MiB"), budget(10**9)
    (2000000000, 536870912, 1000000000)
    """
    if memory is None:
        return max(available() // 2, SMALLEST)
    size = _parse(memory)
    if size is None:
        raise ValueError(f"memory={memory!r} is no size: take bytes, or text such as '2GB'")
    if size < SMALLEST:
        raise ValueError(f"memory={memory!r} is too little to work with; take 16 MiB or more")
    return size


def _parse(memory: int | str) -> int | None:
    if isinstance(memory, int) and not isinstance(memory, bool):
        return memory
    text = memory.strip().lower() if isinstance(memory, str) else ""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text)
    if match is None or match[2] not in UNITS | BINARY:
        return None
    return int(float(match[1]) * (UNITS | BINARY)[match[2]])


def available() -> int:
    """Bytes that this process can still take, under the limits that it runs with."""
    left = [_free(), _control_group(), _address_space()]
    return min((size for size in left if size is not None), default=UNKNOWN)


def _free() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(re.search(r"MemAvailable:\s+(\d+) kB", text)[1]) << 10  # type: ignore[index]
    except (OSError, TypeError, ValueError):
        return None


def _control_group() -> int | None:
    """What a container has left (control groups, version 2)."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii")
        return None if limit == "max" else max(int(limit) - int(used), 0)
    except (OSError, ValueError):
        return None


def _address_space() -> int | None:
    """What is left of ``ulimit -v``."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return max(limit - pages * os.sysconf("SC_PAGESIZE"), 0)
    except (ImportError, OSError, ValueError):
        return None
