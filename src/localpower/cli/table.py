"""The table of rounds that `localpower fit` prints as they come."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from contextlib import nullcontext
from math import inf
from typing import Any, TextIO

from localpower.core.ledger import Record
from localpower.core.text import size
from localpower.progress import PERIOD, Progress, is_terminal, width
from localpower.show.summary import in_short


class Table:
    """The rounds of a run, as they come: in place on a terminal, a line each elsewhere."""

    COLUMNS = (
        f"{'round':>6} {'steps':>5} {'up':>10} {'down':>10} {'seconds':>8} {'angle':>8} {'sure':>9}"
    )
    WINDOW = 12
    silent = True  # hides the line of progress itself, and only where it draws

    def __init__(self, stream: TextIO, quiet: bool, progress: Progress) -> None:
        self.stream = stream
        self.seen = is_terminal(stream)
        self.live = self.seen and width(stream) >= len(self.COLUMNS)
        self.quiet = quiet and not self.live
        self.progress = progress
        self.rows: deque[str] = deque([self.COLUMNS], 1 + self.WINDOW)
        self.new = len(self.rows)
        self.drawn = 0
        self.last = -inf

    def __call__(self, record: Record, state: Any = None) -> None:
        """Add a round; the callback of `svd`."""
        self.rows.append(
            f"{record.round:>6} {record.steps:>5} {size(record.bytes_up):>10} "
            f"{size(record.bytes_down):>10} {record.seconds:>8.3f} {angle_text(record):>8} "
            f"{in_short(record) if record.angle is not None else '':>9}".rstrip()
        )
        self.new += 1
        if not self.live or time.monotonic() - self.last > PERIOD:
            self.show()

    def show(self) -> None:
        """Print what is new; on a terminal, the last rows in the place of those before."""
        if self.quiet or not self.new:
            return
        try:
            with self.progress.hidden(again=self.live) if self.seen else nullcontext():
                self._print()
        except BrokenPipeError:  # nobody looks any more; the fit goes on
            self.quiet = True
            discard_output()
        self.new, self.last = 0, time.monotonic()

    def _print(self) -> None:
        rows = list(self.rows)
        if not self.live:
            print("\n".join(rows[-self.new :]), file=self.stream, flush=True)
            return
        rows[0] = self.COLUMNS
        up = f"\x1b[{self.drawn}A" if self.drawn else ""
        print(up + "\n".join(f"\x1b[K{row}" for row in rows), file=self.stream, flush=True)
        self.drawn = len(rows)


def angle_text(record: Record) -> str:
    """The certified angle, if there is one."""
    return "" if record.angle is None else f"{record.angle:.1e}"


def discard_output() -> None:
    """Write nowhere from now on: nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
