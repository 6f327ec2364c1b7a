"""What left a site and what it refused: JSON lines, each with the hash of all before it.

A line is on the disk before what it tells of leaves. What a site has spent is counted from here,
also when it is started again.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import hypot
from pathlib import Path
from typing import Any

from localpower.core.errors import DataError, EngineError
from localpower.core.ledger import names, parts

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # not on this system: nothing keeps a second agent away
    flock = None  # type: ignore[assignment]

NAME = "journal.jsonl"
BEGIN = "0" * 64
KINDS = ("opened", "joined", "answered", "failed", "settled", "refused", "closed")
LONGEST = 1 << 20  # bytes of a line
MOST_REFUSED = 1000  # refusals that are listed between two answers


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    `kind` is one of `KINDS`. `question` and `answer` are SHA-256 of frames, `words` numbers that
    left, `columns` what is charged for them. `sigma` is the deviation of the noise that the site
    added, `mu` what that spends of its privacy, squares of which add up, and `epsilon` by how much
    the ε of all together grew.
    """

    kind: str
    run: str = ""
    round: int = 0
    task: str = ""
    question: str = ""
    answer: str = ""
    words: int = 0
    columns: int = 0
    masked: bool = False
    sigma: float = 0.0
    epsilon: float = 0.0
    mu: float = 0.0
    text: str = ""
    time: str = ""


class Journal:
    """The journal of a site; one process at a time has it open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._end = weakref.finalize(self, os.close, self._file)
        try:
            self._lock()
            self._finish()
            self._seen: dict[str, dict[int, Entry]] = {}
            self._lists: dict[str, dict[int, list[str]]] = {}
            self._over: set[str] = set()
            self.columns = self.plain_columns = self.refused = 0
            self.epsilon = self.mu = 0.0  # of all runs together
            self._spent: dict[str, float] = {}
            self._last = BEGIN
            for entry, chain in verified(self.path):
                self._count(entry)
                self._last = chain
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        if flock is not None:
            try:
                flock(self._file, LOCK_EX | LOCK_NB)
            except OSError:
                raise EngineError(
                    f"{self.path} is in use by another agent of this site: end that one first"
                ) from None

    def _finish(self) -> None:
        """Remove a last line that was never finished: nothing left on its account."""
        size = self.path.stat().st_size
        with open(self.path, "rb") as stream:
            start = stream.seek(max(size - LONGEST, 0))
            tail = stream.read()
        if tail and not tail.endswith(b"\n"):
            os.ftruncate(self._file, start + tail.rfind(b"\n") + 1)

    def write(self, entry: Entry) -> None:
        """Add a line; of all but refusals, it is on the disk when this returns."""
        if entry.kind == "refused":
            self.refused += 1
            if self.refused > MOST_REFUSED:
                return
            if self.refused == MOST_REFUSED:
                entry = Entry("refused", text="more refusals follow, and are not listed")
        else:
            self.refused = 0
        told = dict(zip(names(Entry), parts(entry), strict=True))
        told["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        told = {name: value for name, value in told.items() if value or name == "kind"}
        chain = chained(self._last, told)
        self._append(_line(told | {"chain": chain}), entry.kind != "refused")
        self._last = chain
        self._count(entry)

    def _append(self, line: bytes, sync: bool) -> None:
        before = self.path.stat().st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
            if sync:
                os.fdatasync(self._file) if hasattr(os, "fdatasync") else os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def _count(self, entry: Entry) -> None:
        self.columns += entry.columns
        self.plain_columns += 0 if entry.masked else entry.columns
        self.epsilon += entry.epsilon
        self.mu = hypot(self.mu, entry.mu)
        if entry.mu:
            self._spent[entry.run] = hypot(self.spent(entry.run), entry.mu)
        if entry.kind == "opened":
            self._seen[entry.run] = {}
        elif entry.kind in ("answered", "failed"):
            self._seen.setdefault(entry.run, {})[entry.round] = entry
        elif entry.kind == "settled":
            self._lists.setdefault(entry.run, {})[entry.round] = json.loads(entry.text)
        elif entry.kind == "closed":
            self._over.add(entry.run)
            self._seen.pop(entry.run, None)
            self._lists.pop(entry.run, None)

    def is_over(self, run: str) -> bool:
        """Whether a run was opened here once, and is closed."""
        return run in self._over

    def knows(self, run: str) -> bool:
        """Whether a run was ever opened here."""
        return run in self._over or run in self._seen

    def seen(self, run: str, number: int) -> Entry | None:
        """What was answered in a round of an open run."""
        return self._seen.get(run, {}).get(number)

    def rounds(self, run: str) -> int:
        """Number of the last round of an open run that was answered."""
        return max(self._seen.get(run, ()), default=0)

    def asked(self, run: str) -> int:
        """How many questions of an open run were answered."""
        return len(self._seen.get(run, {}))

    def spent(self, run: str) -> float:
        """μ of what was answered of a run, also of what failed."""
        return self._spent.get(run, 0.0)

    def lists(self, run: str) -> dict[int, list[str]]:
        """The sites that sums of an open run were opened for, by round."""
        return self._lists.get(run, {})

    def verify(self) -> int:
        """Check the whole file; returns the number of lines, or raises `DataError`."""
        return sum(1 for _ in verified(self.path))

    def close(self) -> None:
        """Let another process have it."""
        self._end()
        self._file = -1  # its number may be given to another file


def verified(path: str | os.PathLike[str]) -> Iterator[tuple[Entry, str]]:
    """Yield the lines of a journal and the hash after each; `DataError` where one was changed."""
    last = BEGIN
    known = {*names(Entry)}
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):  # never finished: nothing left on its account
                return
            try:
                told = json.loads(line)
                chain = told.pop("chain")
                right = chain == chained(last, told) and _line(told | {"chain": chain}) == line
                entry = Entry(**told) if right and told.keys() <= known else None
            except (AttributeError, KeyError, TypeError, ValueError):
                entry = None
            if entry is None:
                raise DataError(
                    f"{path}, line {number}: the journal was changed after it was written; restore "
                    "it from a copy, or move it away, which starts all budgets anew"
                )
            last = chain
            yield entry, chain


def chained(last: str, told: dict[str, Any]) -> str:
    """Hash of a line and of all before it."""
    return sha256(last.encode() + _line(told)).hexdigest()


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode() + b"\n"
