"""What this process may use of the machine: cores and memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

UNKNOWN = 4 << 30  # bytes that are assumed free where the system does not tell


def cores() -> int:
    """Count the cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


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
