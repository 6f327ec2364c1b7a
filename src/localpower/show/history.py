"""The rounds of a method, one record each, as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localpower.core.ledger import Record
from localpower.core.text import counted, duration, few, frame, html_table, size, table
from localpower.show.summary import in_short

HEAD = ("round", "local steps", "up", "down", "time", "angle at most", "residual", "how sure")


class History(tuple[Record, ...]):
    """The rounds of a run: a tuple of `Record` that prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<History of {counted(len(self), 'round')}>"

    def __str__(self) -> str:
        return table(HEAD, self._lines())

    def _repr_html_(self) -> str:
        return html_table((), HEAD, self._lines())

    def to_frame(self) -> Any:
        """The same as a pandas data frame, one line for each round."""
        return frame("History.to_frame", Record, self)

    def _lines(self) -> list[Sequence[str]]:
        return few([_cells(record) for record in self], "rounds")


def _cells(record: Record) -> tuple[str, ...]:
    return (
        str(record.round),
        str(record.steps),
        size(record.bytes_up),
        size(record.bytes_down),
        duration(record.seconds),
        "" if record.angle is None else f"{record.angle:.1e}",
        "" if record.residual is None else f"{record.residual:.1e}",
        in_short(record),
    )
