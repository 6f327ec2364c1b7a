"""Where a long job stands: one line on a terminal or below a cell, with the time left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from math import inf, log
from threading import Event, Lock, Thread
from typing import Any, TextIO
from uuid import uuid4

import numpy as np

from localpower.core.ledger import Record
from localpower.core.text import duration, size

PATIENCE = 1.0  # seconds of work before anything is shown
PERIOD, PLAIN_PERIOD = 0.1, 1.0  # seconds between two looks, on a terminal and elsewhere
LATELY = 8  # rounds that the estimate rests on
WIDE = 80  # columns of what does not tell
STUCK = 0.5  # seconds after which a terminal that takes nothing is left alone
NAME = "localpower progress"  # of the thread

_screen = Lock()  # of several runs at once, one is shown


@dataclass(frozen=True, slots=True)
class Goal:
    """What ends a run."""

    tol: float = 0.0
    max_rounds: float = inf
    max_bytes: float = inf
    max_seconds: float = inf


def time_left(history: Sequence[Record], goal: Goal) -> tuple[float, bool]:
    """Seconds to come after the last round, and whether that is expected or only a limit.

    The certified angle falls by about the same factor in every round: a straight line through its
    logarithm tells how many rounds are left. Without one, all that are allowed may come.
    """
    if not history:
        return inf, False
    recent = history[-LATELY:]
    spent = sum(record.bytes_up + record.bytes_down for record in history)
    rounds = min(
        goal.max_rounds - len(history),
        (goal.max_bytes - spent) * len(history) / (spent or 1),
    )
    known = {r.round: log(r.angle) for r in recent if r.angle is not None and 0 < r.angle < 1}
    x, y = [*known], [*known.values()]
    expected = False
    if goal.tol and len(known) > 1 and (slope := float(np.polyfit(x, y, 1)[0])) < 0:
        needed = max(1.0, (log(goal.tol) - y[-1]) / slope)
        expected = needed <= rounds
        rounds = min(rounds, needed)
    usual = recent[1:] or recent  # the first round of a run may be of another kind
    each = sum(record.seconds for record in usual) / len(usual)
    allowed = goal.max_seconds - sum(record.seconds for record in history)
    return max(0.0, min(rounds * each, allowed)), expected


class Courteous:
    """A stream of others: the line is gone before anything is written to it."""

    def __init__(self, stream: Any, make_room: Callable[[], None]) -> None:
        self._stream, self._make_room = stream, make_room

    def write(self, text: str) -> Any:
        """Write below no line of ours."""
        self._make_room()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Line:
    """One line that is written over on a terminal; elsewhere a line each."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = is_terminal(stream)
        self.open = False  # whether there is something to write over

    def show(self, text: str) -> None:
        """Show where a long job stands; what is left out or written stays on the screen."""
        lasting = text.startswith(("left out", "->")) or not self.live
        text = text if lasting else text[: width(self.stream)]
        start, end = "\r\x1b[K" if self.live else "", "\n" if lasting else "\r"
        print(f"{start}{text}", end=end, file=self.stream, flush=True)
        self.open = not lasting and bool(text)

    def erase(self) -> None:
        """Leave the line empty for what others write."""
        if self.open:
            self.show("")


class NotebookLine(Line):
    """One line below a cell of a notebook; it is empty at the end."""

    def __init__(self, shell: Any) -> None:
        super().__init__(sys.stderr)
        self.live = True
        self._publish = shell.display_pub.publish
        self._where: dict[str, Any] = {"transient": {"display_id": f"localpower-{uuid4().hex}"}}

    def show(self, text: str) -> None:
        """Write over what was shown before."""
        shown = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>" if text else ""}
        self._publish(shown, **self._where)
        self._where["update"] = True
        self.open = bool(text)


class Progress:
    """Shows a run while it is entered: after a second on a terminal or in a notebook.

    ``True`` shows at once, and plain lines elsewhere; ``False`` never. A thread does so, as a round
    may take long; what the run itself spends on it is an assignment.
    """

    def __init__(self, shown: bool | None = None, stream: TextIO | None = None) -> None:
        shell = notebook() if stream is None else None
        self._line = Line(stream or sys.stderr) if shell is None else NotebookLine(shell)
        self._shown = self._line.live if shown is None else shown
        self._patience = PATIENCE if shown is None else 0.0
        self._lock, self._done = Lock(), Event()
        self._thread: Thread | None = None
        self._depth = 0
        self._start = self._changed = time.perf_counter()
        self._quiet = 0.0  # when others have had the terminal for long enough
        self._stage, self._goal = "starting", Goal()
        self._history: Sequence[Record] = ()
        self._drawn = ""
        self.label = ""  # of one run among several

    @classmethod
    def of(cls, progress: bool | Progress | None) -> Progress:
        """Take what a user gives as ``progress=``."""
        if isinstance(progress, Progress):
            return progress
        if progress is not None and not isinstance(progress, bool):
            raise TypeError(
                f"progress={progress!r} must be True, False, or None, which shows it on terminals "
                "and in notebooks after a second"
            )
        return cls(progress)

    def stage(self, text: str, goal: Goal | None = None) -> None:
        """Say what is done now, and what ends it if it goes by rounds."""
        self._history, self._goal, self._stage = (), goal or Goal(), text
        self._changed = time.perf_counter()

    def round(self, history: Sequence[Record]) -> None:
        """Take note of the rounds so far."""
        self._history, self._changed = history, time.perf_counter()

    @contextmanager
    def hidden(self, again: bool = False) -> Iterator[None]:
        """Leave the terminal to others meanwhile; and show at once what was there before."""
        if self._thread is None or self._done.is_set():
            yield
            return
        if not self._lock.acquire(timeout=STUCK):
            self._done.set()  # the terminal takes nothing: leave it alone from now on
            yield
            return
        was = self._line.open
        try:
            self._quietly(self._line.erase)
            yield
            if again and was:
                self._quietly(self._draw)
        finally:
            self._lock.release()

    @contextmanager
    def courteous(self) -> Iterator[None]:
        """Stay while others work, but give way as soon as they print something."""
        if self._thread is None or isinstance(self._line, NotebookLine):
            yield
            return
        if not self._line.live:
            with self.hidden():
                yield
            return
        with self.hidden():  # for what is printed at once, by whatever way
            pass
        before = sys.stdout, sys.stderr
        mine = [Courteous(stream, self._make_room) for stream in before]
        sys.stdout, sys.stderr = mine
        try:
            yield
        finally:
            for name, own, stream in zip(("stdout", "stderr"), mine, before, strict=True):
                if getattr(sys, name) is own:
                    setattr(sys, name, stream)

    def _make_room(self) -> None:
        """Erase the line, and show none for a while."""
        with self.hidden():
            self._quiet = time.perf_counter() + PATIENCE

    def __enter__(self) -> Progress:
        self._depth += 1
        if self._depth == 1 and self._shown and _screen.acquire(blocking=False):
            self._start = self._changed = time.perf_counter()
            self._thread = Thread(target=self._watch, name=NAME, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth or self._thread is None:
            return
        self._done.set()
        self._thread.join(STUCK)
        if not self._thread.is_alive():
            self._quietly(self._line.erase if self._line.live else self._draw)
        self._thread = None
        _screen.release()

    def text(self, wide: int = WIDE) -> str:
        """What is shown: as much as has room, the most telling first."""
        history, now = list(self._history), time.perf_counter()
        parts = [self.label or self._stage]
        if history:
            last = history[-1]
            many = "" if self._goal.tol or self._goal.max_rounds == inf else (
                f" of {self._goal.max_rounds}")  # fmt: skip
            parts.append(f"round {last.round}{many}")
            if last.angle is not None:
                goal = f" (to {self._goal.tol:.0e})" if self._goal.tol else ""
                parts.append(f"angle {last.angle:.0e}{goal}")
            seconds, expected = time_left(history, self._goal)
            if seconds < inf:
                left = max(0.0, seconds - (now - self._changed))
                parts.append(f"{'about' if expected else 'at most'} {duration(round(left))} left")
        elif self.label:
            parts.append(self._stage)
        parts.append(duration(round(now - self._start)))
        if history:
            moved = sum(record.bytes_up + record.bytes_down for record in history)
            parts.append(f"{size(moved)} moved")
        text = parts[0]
        for part in parts[1:]:
            text += f", {part}" if len(text) + 2 + len(part) <= wide else ""
        return text[:wide]

    def _watch(self) -> None:
        wait, period = self._patience, PERIOD if self._line.live else PLAIN_PERIOD
        while not self._done.wait(wait):
            wait = period
            with self._lock:
                if time.perf_counter() >= self._quiet:
                    self._quietly(self._draw)

    def _draw(self) -> None:
        """Show what has changed; where lines stay, only what rounds and stages change."""
        text = self.text(width(self._line.stream))
        mark = text if self._line.live else f"{self.label}{self._stage}{len(self._history)}"
        if mark != self._drawn or (self._line.live and not self._line.open):
            self._line.show(text)
            self._drawn = mark

    def _quietly(self, show: Any) -> None:
        """Whatever is wrong with the terminal, the run goes on."""
        with suppress(Exception):
            show()


def notebook() -> Any:
    """The shell of the notebook that this runs in; None elsewhere."""
    known = sys.modules.get("IPython")
    shell = None if known is None else known.get_ipython()
    return shell if hasattr(shell, "kernel") else None


def is_terminal(stream: Any) -> bool:
    """Tell a terminal on which a line can be written over."""
    with suppress(Exception):
        return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
    return False


def width(stream: Any) -> int:
    """Characters that fit on a line without wrapping."""
    with suppress(Exception):
        return (os.get_terminal_size(stream.fileno()).columns or WIDE) - 1
    return WIDE - 1
