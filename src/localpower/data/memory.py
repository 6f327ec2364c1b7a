"""How much memory the rows may take."""

from __future__ import annotations

import re
from math import isfinite

from localpower.core.machine import available

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
SMALLEST = 1 << 24  # less is not worth the trouble: numpy alone takes more


def budget(memory: float | str | None) -> int:
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
        raise ValueError(f"memory={memory!r} is not a size: give bytes, or text such as '2GB'")
    if size < SMALLEST:
        raise ValueError(f"memory={memory!r} is too little to work with; take 16 MiB or more")
    return size


def _parse(memory: float | str) -> int | None:
    if isinstance(memory, int | float) and not isinstance(memory, bool):
        return int(memory) if isfinite(memory) else None
    text = memory.strip().lower() if isinstance(memory, str) else ""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text)
    if match is None or match[2] not in UNITS | BINARY:
        return None
    return int(float(match[1]) * (UNITS | BINARY)[match[2]])
