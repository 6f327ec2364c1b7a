"""How fast an engine is: what a hop takes, what its links carry, how fast its workers multiply.

Real tasks are timed, small ones and such with a megabyte in each message. Workers time themselves,
and what is left is the way there and back. What was found is kept for the engine's address, in this
process and in a folder of the user's cache, in one small JSON file for each.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from localpower.core.files import replacing
from localpower.core.linalg import Array
from localpower.core.machine import cache_folder, cores
from localpower.core.text import duration, size
from localpower.version import __version__
from localpower.worker.shard import Shard
from localpower.worker.tasks import Measure, PowerSteps

if TYPE_CHECKING:
    from localpower.engines.base import Engine

FORMAT = 1
READ = 30  # operations in the time in which an entry is brought from memory
COLUMNS = 256
MANY, FEW = 1 << 23, 3 << 16  # entries of all shards: more than a cache holds, and few
FEWEST = 64  # rows of a shard at least
NARROW, USUAL, WIDE = 1, 32, 512  # columns of the products that are timed; the last is a megabyte
SECONDS, MOST = 0.3, 40  # for each of these products, and how often it is timed at most
FASTEST = 2e10  # bytes a second of memory: what is sent is read and added, if not copied

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Speeds:
    """What was measured on an engine.

    Attributes
    ----------
    latency : float
        Seconds of a hop: a small message to all shards, and their replies.
    bandwidth : float
        Bytes a second, of all messages in both directions.
    flops : float
        Operations a second of one worker, in products with its rows.
    measured : str
        When: the date and time, in UTC.
    """

    latency: float
    bandwidth: float
    flops: float
    measured: str

    def __str__(self) -> str:
        return f"{told(self.latency, self.bandwidth, self.flops)}, measured on {self.measured}"


def told(latency: float, bandwidth: float, flops: float) -> str:
    """Speeds in words."""
    hop, rate = duration(latency), size(bandwidth)
    return f"a hop takes {hop}, links carry {rate}/s, a worker does {flops:.1e} operations/s"


def operations(entries: float, width: float) -> float:
    """Operations of a product of rows with so many columns: few are not faster than memory."""
    return entries * (4 * width + READ)


def time_products(engine: Engine, clock: Clock = perf_counter) -> Speeds:
    """Time products of several widths on rows of our own, which take the place of those it has."""
    shards = max(1, engine.size)
    block = np.random.default_rng(0).standard_normal((shards * _rows(MANY, shards), COLUMNS))
    _place(engine, block, shards)
    waits, works = np.median(_timed(engine, USUAL, clock), axis=0)
    _place(engine, block[: shards * _rows(FEW, shards)], shards)  # they are left behind
    short = [seconds - work for seconds, work in _timed(engine, NARROW, clock)]
    long = [seconds - work for seconds, work in _timed(engine, WIDE, clock)]
    column = 2 * shards * COLUMNS * block.itemsize
    each = max(min(long) - min(short), 0.0) / (WIDE - NARROW)  # seconds of a column
    latency = max(float(np.median(short)) - NARROW * each, 1e-9)
    work = max(waits - latency - USUAL * each, works)  # not all may work at once
    return Speeds(
        latency=latency,
        bandwidth=column / max(each, column / FASTEST),
        flops=operations(block.size / shards, USUAL) / max(float(work), 1e-9),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _rows(entries: int, shards: int) -> int:
    return max(FEWEST, entries // COLUMNS // shards)


def _place(engine: Engine, block: Array, shards: int) -> None:
    parts = enumerate(np.split(block, shards))
    engine.place([Shard((part,), COLUMNS, part.dtype, number=i) for i, part in parts])


def _timed(engine: Engine, width: int, clock: Clock) -> list[tuple[float, float]]:
    """Seconds that products of this width take, and that the slowest worker of each is at it."""
    Z = np.random.default_rng(width).standard_normal((COLUMNS, width)) / math.sqrt(COLUMNS)
    found: list[tuple[float, float]] = []
    begin = clock()
    while len(found) < 2 or (len(found) <= MOST and clock() - begin < SECONDS):
        start = clock()
        reply = engine.sum(Measure(PowerSteps(Z, 1)))
        work = max(seconds for seconds, _ in reply.times())
        found.append((clock() - start, work))
    return found[1:]  # the first is slow everywhere


# What is kept

_known: dict[str, Speeds | None] = {}


def recalled(address: str) -> Speeds | None:
    """What was measured at an address, in this process or in an earlier one like it."""
    if not address:
        return None
    identity = _identity(address)
    if identity not in _known:
        _known[identity] = None
        with suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):
            found = json.loads(kept_at(address).read_text(encoding="utf-8"))
            if found["format"] == FORMAT and found["identity"] == identity:
                _known[identity] = _checked(found["speeds"])
    return _known[identity]


def remember(address: str, speeds: Speeds) -> None:
    """Keep it; in this process only, where the user's cache cannot be written to."""
    if not address:
        return
    _known[_identity(address)] = speeds
    content = {"format": FORMAT, "identity": _identity(address), "speeds": asdict(speeds)}
    with suppress(OSError, RuntimeError):  # the latter where the user has no folder
        path = kept_at(address)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            stream.write(json.dumps(content, indent=1).encode())


def kept_at(address: str) -> Path:
    """The file for an address."""
    name = re.match(r"[a-z0-9_]*", address.lower())
    assert name is not None
    return cache_folder() / "speeds" / f"{name[0][:32]}-{_identity(address)[:16]}.json"


def _identity(address: str) -> str:
    """A digest of the address, and of what else its speed depends on."""
    return hashlib.sha256(json.dumps([address, *_here(), cores()]).encode()).hexdigest()


@cache
def _here() -> tuple[str, ...]:
    return platform.node(), platform.python_version(), np.__version__, __version__


def _checked(speeds: dict[str, object]) -> Speeds:
    """What a file says, if it can be: else `ValueError`, `KeyError` or `TypeError`."""
    numbers = [speeds[name] for name in ("latency", "bandwidth", "flops")]
    for number in numbers:
        if not isinstance(number, float) or not 0 < number < math.inf:
            raise ValueError(number)
    if not isinstance(speeds["measured"], str):
        raise TypeError(speeds["measured"])
    return Speeds(**speeds)  # type: ignore[arg-type]
