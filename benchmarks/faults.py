"""Random kills: every run must end in time, with the fault-free bits or a clear error.

    python benchmarks/faults.py [--count 1000] [--engine processes:2] [--keep] [--output FILE]

A schedule is drawn from its number: a method, shards, a few moments from placement to the last
round, and for each a signal to one or all worker processes. A run that takes longer than its limit
is a hang; one whose bits differ from those of a run without kills, and that does not say so, is
wrong. Each run starts an engine, which on Dask is when most of the kills come; with `--keep` one
engine is there for all of them. Schedules that the output has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import localpower as lp
from localpower.engines import processes
from localpower.engines.base import Engine
from localpower.engines.blas import one_blas_thread

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP)
METHODS = ("local_power", "dpi", "local_ritz", "block_lanczos", "tsqr", "gram", "uda", "dr_svd")
DEADLINE, LIMIT = 2.0, 120.0  # seconds of a round, and of a run
processes.PATIENCE = 5.0  # seconds that a process may take to start, which some do not survive
RETRIES = 4
ROWS, COLUMNS, RANK = 600, 600, 4  # a basis has 19 kB: it goes through shared memory


@dataclass(frozen=True, slots=True)
class Row:
    """One schedule and how it ended: same bits, error, degraded, wrong, crash, or hang."""

    number: int
    engine: str
    method: str
    shards: int
    columns: int
    kills: str
    ended: str
    faults: int
    seconds: float
    message: str
    version: str = lp.__version__


def rows() -> np.ndarray:
    """The same rows for all."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((ROWS, COLUMNS)) * 0.85 ** (np.arange(COLUMNS) / 15)


@cache
def undisturbed(method: str, shards: int) -> lp.Result:
    """What comes out without kills."""
    return fit("inline", method, shards)


def fit(engine: str | Engine, method: str, shards: int, callback: Any = None) -> lp.Result:
    """One run."""
    return lp.svd(rows(), RANK, method=method, workers=shards, engine=engine, max_rounds=6, rng=0,
                  faults=lp.Faults(DEADLINE, RETRIES), callback=callback)  # fmt: skip


def workers() -> list[psutil.Process]:
    """Processes that hold shards."""
    found = psutil.Process().children(recursive=True)
    return [
        p for p in found if any("localpower" in part or "spawn_main" in part for part in _of(p))
    ]


def _of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(sign: int, everyone: bool, rng: np.random.Generator) -> None:
    """Send a signal to one worker, or to all."""
    there = workers()
    for victim in there if everyone else there[:1] and [there[rng.integers(len(there))]]:
        try:
            os.kill(victim.pid, sign)
        except ProcessLookupError:
            continue


def examine(number: int, name: str, engine: str | Engine) -> Row:
    """Run one schedule."""
    rng = np.random.default_rng(number)
    method, shards = str(rng.choice(METHODS)), int(rng.integers(1, 12))
    expected = undisturbed(method, shards)
    plan = [(float(rng.exponential(0.3)), int(rng.choice(SIGNALS)), bool(rng.random() < 0.15))
            for _ in range(rng.integers(1, 4))]  # fmt: skip
    stop, found = threading.Event(), dict[str, Any]()

    def murder() -> None:
        while not workers() and not stop.wait(0.01):
            pass
        for pause, sign, everyone in plan:
            if stop.wait(pause):
                return
            kill(sign, everyone, rng)

    def run() -> None:
        try:
            found["result"] = fit(engine, method, shards, lambda *_: time.sleep(0.05))
        except lp.LocalPowerError as error:
            found["error"] = error
        except Exception as error:  # not one that a user is to see
            found["crash"] = found["error"] = error

    threads = [threading.Thread(target=each, daemon=True) for each in (murder, run)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    threads[1].join(LIMIT)
    seconds, hangs = time.monotonic() - start, threads[1].is_alive()
    stop.set()
    threads[0].join()
    result = found.get("result")
    ended = "hang" if hangs else "crash" if "crash" in found else "error"
    ended = ended if result is None else judged(expected, result)
    text = "; ".join(f"{signal.Signals(s).name}{' to all' * e} after {p:.2f} s" for p, s, e in plan)
    return Row(number, name, method, shards, COLUMNS, text, ended,
               0 if result is None else len(result.run["faults"]), round(seconds, 2),
               str(found.get("error", "")).split("\n")[0][:200])  # fmt: skip


def judged(expected: lp.Result, result: lp.Result) -> str:
    """Compare bits."""
    if result.reason == "degraded":
        return "degraded"
    pairs = zip((expected.components, expected.singular_values),
                (result.components, result.singular_values), strict=True)  # fmt: skip
    return "same bits" if all(a.tobytes() == b.tobytes() for a, b in pairs) else "wrong"


def campaign(count: int, name: str, keep: bool, output: Path) -> Iterator[Row]:
    """Run the schedules that the output does not list, and list them."""
    engine: str | Engine = name
    if keep:
        name, engine = f"{name}, kept", lp.connect(name)
        fit(engine, "dpi", 2)  # now it is there
    known = listed(output)
    done = {int(row["number"]) for row in known if row["engine"] == name}
    with open(output, "a", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [field.name for field in fields(Row)])
        if not stream.tell():
            table.writeheader()
        for number in range(count):
            if number not in done:
                row = examine(number, name, engine)
                table.writerow(asdict(row))
                stream.flush()
                yield row


def listed(output: Path) -> list[dict[str, str]]:
    """Rows of this version."""
    if not output.exists():
        return []
    with open(output, encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["version"] == lp.__version__]


def main() -> int:
    """Run the campaign; the exit code is 1 if a result was wrong, or a run crashed or hung."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--engine", default="processes:2")
    parser.add_argument("--keep", action="store_true", help="one engine for all runs")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", lp.DegradedWarning)
    with one_blas_thread():  # else the reference has other bits
        for row in campaign(options.count, options.engine, options.keep, options.output):
            if sys.stderr.isatty():
                print(f"\r{row.number + 1}/{options.count}  ", end="", file=sys.stderr, flush=True)
    ends = Counter(row["ended"] for row in listed(options.output))
    print(", ".join(f"{name}: {number}" for name, number in sorted(ends.items())))
    return 1 if ends["wrong"] or ends["crash"] or ends["hang"] else 0


if __name__ == "__main__":
    sys.exit(main())
