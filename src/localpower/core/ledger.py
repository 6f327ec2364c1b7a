"""The account of what was communicated: every round, exact.

A message is what passes between the coordinator and one shard in one direction, as if every shard
were a machine of its own. Words are entries of its arrays, bytes what those take. The name of the
message, shapes and a few scalars (under 500 bytes on our own wire) are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from localpower.core.rounding import shape_of
from localpower.core.text import counted, few, frame, html_table, size, table

HEAD = ("phase", "task", "messages", "up", "down")


@dataclass(frozen=True, slots=True)
class Round:
    """One round: a broadcast or scatter of a task, and the replies.

    Attributes
    ----------
    phase : str
        ``"setup"`` (statistics of the columns), ``"iterate"`` (the method itself) or ``"factors"``
        (from the basis to singular values and vectors).
    task : str
        What shards were asked, by the name of its class.
    messages : int
        Messages to and from shards, together.
    words_up, words_down, bytes_up, bytes_down : int
        Words and bytes from all shards, and to all shards.
    bytes_read : int
        Bytes that workers read from files (not communication), if rows are not kept in memory.
    exchange : bool
        Whether it was with some shards only; a round is with all of them.
    """

    phase: str
    task: str
    messages: int = 0
    words_up: int = 0
    words_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_read: int = 0
    exchange: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """All rounds of a run in order, and their totals. Prints as a table.

    Examples
    --------
    >>> ledger = Ledger((Round("setup", "Describe", 4, words_up=6, bytes_up=48),
    ...                  Round("iterate", "PowerSteps", 4, 20, 20, 160, 160)))
    >>> ledger.rounds, ledger.messages, ledger.bytes_up, ledger.phase("iterate").bytes_up
    (2, 8, 208, 160)
    """

    records: tuple[Round, ...] = ()

    def __repr__(self) -> str:
        return f"<Ledger of {self._about()}>"

    def __str__(self) -> str:
        return "\n".join([self._about(), table(HEAD, self._lines())])

    def _repr_html_(self) -> str:
        return html_table([self._about()], HEAD, self._lines())

    def _about(self) -> str:
        what = counted(self.rounds, "round")
        if self.exchanges:
            what += f" and {counted(self.exchanges, 'exchange')} with some shards"
        return f"{what}: {size(self.bytes_up)} up and {size(self.bytes_down)} down"

    def _lines(self) -> list[Sequence[str]]:
        records = [
            (r.phase, r.task, f"{r.messages:,}", size(r.bytes_up), size(r.bytes_down))
            for r in self.records
        ]
        return few(records, "rounds")

    def to_frame(self) -> Any:
        """The same as a pandas data frame, one line for each round."""
        return frame("Ledger.to_frame", Round, self.records)

    def phase(self, name: str) -> Ledger:
        """Return the account of one phase alone."""
        return Ledger(tuple(record for record in self.records if record.phase == name))

    @property
    def rounds(self) -> int:
        """Rounds in all: with every shard."""
        return sum(not record.exchange for record in self.records)

    @property
    def exchanges(self) -> int:
        """Exchanges with single shards, besides the rounds."""
        return sum(record.exchange for record in self.records)

    @property
    def hops(self) -> int:
        """The longest chain of rounds and exchanges, each of which waits for the one before."""
        return len(self.records)

    @property
    def messages(self) -> int:
        """Messages in all, both directions."""
        return sum(record.messages for record in self.records)

    @property
    def words_up(self) -> int:
        """Words from the shards to the coordinator."""
        return sum(record.words_up for record in self.records)

    @property
    def words_down(self) -> int:
        """Words from the coordinator to the shards."""
        return sum(record.words_down for record in self.records)

    @property
    def bytes_up(self) -> int:
        """Bytes from the shards to the coordinator."""
        return sum(record.bytes_up for record in self.records)

    @property
    def bytes_down(self) -> int:
        """Bytes from the coordinator to the shards."""
        return sum(record.bytes_down for record in self.records)

    @property
    def bytes_read(self) -> int:
        """Bytes that workers read from files."""
        return sum(record.bytes_read for record in self.records)


@cache
def names(kind: type) -> tuple[str, ...]:
    """Names of the fields of a task or reply."""
    return tuple([entry.name for entry in fields(kind)])


@cache
def _getter(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    some = names(kind)
    if len(some) > 1:
        return attrgetter(*some)
    return lambda message: tuple([getattr(message, name) for name in some])


def parts(message: Any) -> tuple[Any, ...]:
    """What is in the fields of a task or reply."""
    return _getter(message.__class__)(message)


def arrays(message: Any) -> list[tuple[str, Any]]:
    """Those fields of a task or reply that are arrays."""
    pairs = zip(names(message.__class__), parts(message), strict=True)
    return [pair for pair in pairs if isinstance(pair[1], np.ndarray)]


def regular(message: Any) -> Any:
    """The same, with arrays that are contiguous and aligned, however they have come.

    BLAS has other routines for other arrays, which give other last bits.
    """
    if isinstance(message, np.ndarray):
        return np.require(message, requirements=["C", "ALIGNED"])
    if isinstance(message, tuple):
        return tuple(map(regular, message))
    if not is_dataclass(message):
        return message
    return message.__class__(*map(regular, parts(message)))


def weigh(message: Any) -> tuple[int, int]:
    """Words and bytes of one task or reply."""
    found = arrays(message)
    words = [A.size if A.dtype != np.uint8 else prod(shape_of(A)) for _, A in found]
    return sum(words), sum([A.nbytes for _, A in found])


@dataclass(frozen=True, slots=True)
class Record:
    """One round of the method.

    Attributes
    ----------
    round, steps : int
        The number of the round, from 1, and the local steps of a shard in it.
    bytes_up, bytes_down : int
        Bytes that all shards sent, and bytes that were sent to them.
    seconds : float
        How long it took.
    bytes_read : int
        Bytes that workers read from files, if rows are not kept in memory.
    angle : float or None
        Certified bound on the sine of the angle to the answer; None if there is none.
    residual : float or None
        The largest residual of a component, relative to its own eigenvalue.
    proven : bool or None
        Whether the bound on the angle is proven: nothing can be hidden.
    p : float or None
        The chance that the probes look as they did if something large enough to matter were
        hidden; 0 if the bound is proven, 1 if nothing is known.
    """

    round: int
    steps: int
    bytes_up: int
    bytes_down: int
    seconds: float
    bytes_read: int = 0
    angle: float | None = None
    residual: float | None = None
    proven: bool | None = None
    p: float | None = None
