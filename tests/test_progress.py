"""Where a long run stands: shown on terminals only, gone at the end, and never in the way."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, suppress
from math import inf
from threading import Event, Thread
from threading import enumerate as enumerate_threads

import numpy as np
import pytest
from helpers import until, with_spectrum

import localpower as lp
from localpower import progress
from localpower.progress import Goal, Progress, time_left
from localpower.result import Record

A = with_spectrum(120, 0.9 ** np.arange(12), seed=3)
MARK = b"\0"
FRAME = re.compile(r"\r\x1b\[K([^\r]*)")


def record(number, seconds=1.0, angle=None):
    return Record(number, 1, 100, 100, seconds, angle=angle)


@contextmanager
def terminal(columns=80):
    """A pseudo-terminal: a stream to write to, and a function that tells what was written."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.set_blocking(leader, False)
    text, done = [], Event()

    def follow():
        while not done.wait(0.005):
            with suppress(BlockingIOError, OSError):
                text.append(os.read(leader, 65536))

    def shown():
        os.write(follower, MARK)  # comes out after all that was written before
        until(lambda: any(MARK in part for part in text))
        found = text[:]
        del text[: len(found)]
        return b"".join(found).replace(MARK, b"").decode()

    reader = Thread(target=follow)
    reader.start()
    with os.fdopen(follower, "w") as stream:
        yield stream, shown
    done.set()
    reader.join()
    os.close(leader)


def slow(seconds, silent=False):
    """A callback that takes its time; what is `silent` writes nothing, so the line stays."""

    def callback(record, state):
        time.sleep(seconds)

    callback.silent = silent
    return callback


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setattr(progress, "PERIOD", 0.01)


def test_time_left_follows_the_line_of_the_logarithm_of_the_angle():
    history = [record(t, 2.0, 10.0**-t) for t in range(1, 5)]
    assert time_left(history, Goal(tol=1e-8, max_rounds=30)) == (pytest.approx(4 * 2.0), True)
    assert time_left(history, Goal(tol=1e-8, max_rounds=6)) == (2 * 2.0, False)
    assert time_left(history, Goal(tol=1e-8, max_rounds=30, max_seconds=9)) == (1.0, True)


def test_time_left_without_an_angle_is_what_the_limits_allow():
    history = [record(t) for t in range(1, 5)]
    assert time_left(history, Goal(max_rounds=30)) == (26, False)
    assert time_left(history, Goal(max_rounds=30, max_bytes=1200)) == (2, False)
    assert time_left(history, Goal()) == (inf, False)
    assert time_left([], Goal(max_rounds=30)) == (inf, False)
    flat = [record(t, angle=0.5) for t in range(1, 5)]
    assert time_left(flat, Goal(tol=1e-8, max_rounds=30)) == (26, False)
    odd = [record(1, angle=0.0), record(2, angle=1.0), record(3, 0.0, angle=None)]
    assert time_left(odd, Goal(tol=1e-8, max_rounds=4))[0] >= 0


@pytest.mark.usefixtures("quick")
def test_a_run_is_shown_on_a_terminal_and_erased_at_its_end(monkeypatch):
    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        how = {"method": "dpi:width=3", "tol": 1e-8, "max_rounds": 300, "rng": 0}
        assert lp.svd(A, 2, callback=slow(0.005), **how).converged
        text = shown()
    frames = FRAME.findall(text)
    assert any(
        re.fullmatch(
            r"dpi, round \d+, angle \de-\d\d \(to 1e-08\), about \d s left, \d s, "
            r"[\d.]+ k?B moved",
            frame,
        )
        for frame in frames
    ), frames
    assert text.endswith("\r\x1b[K\r")
    assert "\n" not in text


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("columns", [1, 12, 30, 60])
def test_a_narrow_terminal_gets_less_and_never_wraps(monkeypatch, columns):
    with terminal(columns) as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        lp.svd(A, 2, method="dpi", max_rounds=4, callback=slow(0.05, silent=True))
        frames = FRAME.findall(shown())
    assert any(frames) == (columns > 1)
    assert frames[-1] == ""
    assert max(map(len, frames)) < columns


def test_by_default_a_short_run_shows_nothing_and_a_long_one_after_a_second(monkeypatch):
    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        lp.svd(A, 2, method="dpi", max_rounds=3)
        assert shown() == ""
        lp.svd(A, 2, method="dpi", max_rounds=120, callback=slow(0.01))
        frames = FRAME.findall(shown())
    assert re.match(r"dpi, round \d+ of 120, at most \d+ s left, [1-9]\d* s", frames[0])


def test_drawing_is_throttled(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        begun = time.monotonic()
        lp.svd(A, 2, method="dpi", max_rounds=2000)
        periods = (time.monotonic() - begun) / progress.PERIOD
        frames = FRAME.findall(shown())
    assert 2 <= len(frames) <= periods + 3 < 1000


@pytest.mark.usefixtures("quick")
def test_what_a_callback_prints_stands_on_lines_of_its_own(monkeypatch):
    def tell(record, state):
        time.sleep(0.05)
        print(f"mine {record.round}", file=sys.stderr)
        time.sleep(0.05)

    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        lp.svd(A, 2, method="dpi", max_rounds=5, callback=tell)
        text = shown()
    assert re.findall(r"(?:^|\n|\x1b\[K\r)mine \d\r\n", text)
    assert len(re.findall(r"\w[^\r\n]*mine", text)) == 0


@pytest.mark.usefixtures("quick")
def test_progress_is_seen_while_a_callback_takes_most_of_the_time(monkeypatch):
    def long(record, state):
        shown()
        seen, end = "", time.monotonic() + 60
        while f"dpi, round {record.round}" not in seen and time.monotonic() < end:
            seen += shown()
        during.append(seen)

    during = []
    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        lp.svd(A, 2, method="dpi", max_rounds=3, callback=long, progress=True)
        assert sys.stderr is stream
    assert [f"dpi, round {n}" in seen for n, seen in enumerate(during, start=1)] == [True] * 3


def test_a_terminal_that_takes_nothing_does_not_hold_a_run_up(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "PERIOD", 0.001)
    monkeypatch.setattr(progress, "STUCK", 0.05)
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        done = lp.svd(A, 2, method="dpi", max_rounds=300, callback=slow(0.001), progress=True)
        assert len(done.history) == 300
        os.set_blocking(leader, False)
        while any(thread.name == progress.NAME for thread in enumerate_threads()):
            with suppress(BlockingIOError):  # take it all, so that the thread can end
                os.read(leader, 65536)
    os.close(leader)


def test_pipes_get_nothing_unless_asked_and_then_plain_lines(capsys, quick):
    how = {"method": "dpi", "max_rounds": 3, "callback": slow(0.03)}
    lp.svd(A, 2, **how)
    lp.svd(A, 2, **how, progress=False)
    assert capsys.readouterr().err == ""
    lp.svd(A, 2, **how, progress=True)
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.endswith("moved\n") or text.endswith("s\n")


@pytest.mark.usefixtures("quick")
def test_a_dumb_terminal_is_none(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        lp.svd(A, 2, method="dpi", max_rounds=3, callback=slow(0.05))
        assert shown() == ""


class Broken(io.StringIO):
    def isatty(self):
        return True

    def write(self, text):
        raise OSError("the terminal went away")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stream", [None, Broken(), object()])
def test_a_bad_stream_does_not_disturb_a_run(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    for shown in (None, True):
        run = lp.svd(A, 2, method="dpi", max_rounds=3, callback=slow(0.03), progress=shown, rng=0)
        assert len(run.history) == 3


@pytest.mark.usefixtures("quick")
def test_of_several_runs_at_once_one_is_shown_and_errors_erase_too(monkeypatch):
    def inner(record, state):
        lp.svd(A, 2, method="uda", callback=slow(0.03))
        if record.round == 3:
            raise KeyboardInterrupt

    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(KeyboardInterrupt):
            lp.svd(A, 2, method="dpi", max_rounds=5, callback=inner)
        text = shown()
    assert "uda" not in text
    assert not FRAME.findall(text) or text.endswith("\r\x1b[K\r")
    with Progress(True, io.StringIO()) as again:  # the screen is free again
        assert again._thread is not None


@pytest.mark.usefixtures("quick")
def test_a_comparison_says_which_method_it_is_at(monkeypatch):
    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        lp.compare(A, 2, methods="dpi:width=3", tol=0, max_rounds=3000)
        text = shown()
    assert re.search(r"1 of 1: dpi:width=3, round \d+ of 3000, at most", text)
    assert text.endswith("\r\x1b[K\r")


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="progress=1 must be True, False, or None"):
        lp.svd(A, 2, progress=1)


def test_the_command_shows_its_table_and_below_it_the_time_left(tmp_path):
    np.save(tmp_path / "rows.npy", A)
    leader, follower = pty.openpty()
    run = [sys.executable, "-m", "localpower", "fit", "rows.npy", "-k", "2", "--method", "dpi"]
    run += ["--max-rounds", "100000000", "--budget", "seconds=1.6"]
    done = subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    assert done.wait(timeout=60) == 0
    text = os.read(leader, 65536).decode()
    os.close(leader)
    assert re.search(r"dpi, round \d+ of 100000000, at most \d s left", text)
    assert text.endswith("\r\x1b[K\r")
