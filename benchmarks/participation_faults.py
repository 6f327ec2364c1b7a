"""Random faults at the sites of federations: every run ends right, labelled or with a clear error.

    python benchmarks/participation_faults.py [--count 1000] [--seed 0] [--output FILE]

A schedule is drawn from the seed and its number: masks, a method, what follows a loss, 3 to 7
sites, and one to four faults. A fault kills a site, delays, doubles or damages messages, in one of
five phases, once, a few times or for good. The bits of a run must be those of one without faults,
unless it says what it is without, or stops with an error that names a site; the next run of the
same sites, without faults, must be right. Sites are in this process, and late messages come with
later questions; every 50th schedule has three processes over gRPC, which get signals. Schedules
that the output has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

import localpower as lp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "federation"))

from faulty import (
    PHASES,
    TASKS,
    VARIANTS,
    Fault,
    FaultyLink,
    damaged,
    fitted,
    judged,
    phase_of,
    stopped,
)
from federated import rows, sites
from real_sites import PATIENCE, change, free_port, localpower

from localpower.engines.blas import one_blas_thread
from localpower.federation.agent import SiteAgent
from localpower.federation.engine import Federation
from localpower.federation.identity import make_federation
from localpower.federation.link import DirectLink
from localpower.federation.messages import from_frame

MODES = {"strict": ("stop",), "recovery": ("stop",), "off": ("stop", "degrade", "reuse")}
METHODS = {"strict": ("dpi", "block_krylov", "local_ritz:proposal=all"),
           "recovery": ("dpi", "block_krylov", "local_ritz:proposal=all"),
           "off": ("dpi", "block_krylov:start=random")}  # fmt: skip
COLUMNS, ROUNDS = 300, 3
EVERY = 50
DEADLINE, WAIT, LIMIT = 2.0, 4, 180  # seconds of a question, until a site is lost, and of a run
GOOD = ("right", "labelled", "stopped")


class Hang(BaseException):
    """A run has taken longer than its limit."""


@dataclass(frozen=True, slots=True)
class Row:
    """One schedule and how it ended: right, labelled, stopped; or wrong, unlabelled, crash, hang.

    `happened` counts messages that a fault was done to, `after` is how the next run ended.
    """

    seed: int
    number: int
    link: str
    secure: str
    on_loss: str
    method: str
    sites: int
    faults: str
    happened: int
    ended: str
    label: str
    after: str
    seconds: float
    message: str
    version: str = lp.__version__


def parts(count: int) -> list[np.ndarray]:
    """Rows of so many sites."""
    return [rows(320 + 10 * i, d=COLUMNS, seed=i) for i in range(count)]


def names(count: int) -> list[str]:
    """What they are called."""
    return [f"site-{i}" for i in range(count)]


def agents(folder: Path, count: int) -> list[SiteAgent]:
    """Sites in this process, that answer with and without masks."""
    return sites(folder, parts(count), names(count), secure_sum="optional", tasks=TASKS)


@cache
def undisturbed(count: int, secure: str, method: str, on_loss: str) -> lp.Result:
    """What comes out without faults."""
    with tempfile.TemporaryDirectory() as folder:
        there = agents(Path(folder) / "sites", count)
        result = fitted(Federation(DirectLink(there), secure=secure), method, on_loss, ROUNDS)
        for agent in there:
            agent.close()
    return result


def drawn(rng: np.random.Generator, secure: str, among: list[str]) -> list[Fault]:
    """Some faults."""
    found = []
    for _ in range(rng.integers(1, 5)):
        kind, phase = str(rng.choice(list(VARIANTS))), str(rng.choice(PHASES))
        early = phase in ("opening", "roster")  # of one message, unless it is asked again
        found.append(
            Fault(
                *(kind, str(rng.choice(VARIANTS[kind])), phase, str(rng.choice(among))),
                skip=0 if early else int(rng.integers(3)),
                times=float(rng.choice([1, 1, 2, 3, inf, inf])),
                hop=secure == "recovery" and not early and bool(rng.random() < 0.3),
            )
        )
    return found


@contextmanager
def limited() -> Iterator[None]:
    """Raise `Hang` in what takes too long."""

    def hangs(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ended(run: Any, usual: lp.Result, faulty: set[str]) -> tuple[str, str, str]:
    """How a run ends, its label, and the message of its error; only `faulty` sites are blamed."""
    try:
        with limited():
            found = run()
    except Hang:
        return "hang", "", ""
    except Exception as error:
        text = f"{type(error).__name__}: {error}".split("\n")[0]
        return stopped(error, faulty), "stopped", text
    return judged(usual, found, faulty), found.run["federation"]["participation"], ""


def examine(seed: int, number: int) -> Row:
    """Run one schedule, and then the same sites without faults."""
    rng = np.random.default_rng([seed, number])
    real = (number + 1) % EVERY == 0
    secure = str(rng.choice(list(MODES)))
    on_loss, method = str(rng.choice(MODES[secure])), str(rng.choice(METHODS[secure]))
    method = "dpi" if on_loss == "reuse" else method
    count = int(rng.integers(3, 5 if real else 8))
    usual = undisturbed(count, secure, method, on_loss)
    faults = drawn(rng, secure, names(count))
    how = secure, method, on_loss, usual, faults
    told, start = "; ".join(map(str, faults)), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = in_processes if real else in_this_process
        (end, label, text), after = run(Path(folder) / "sites", count, *how, rng)
    return Row(seed, number, "gRPC" if real else "direct", secure, on_loss, method, count, told,
               sum(fault.done for fault in faults), end, label, after,
               round(time.monotonic() - start, 2), text.replace(folder, "…"))  # fmt: skip


def in_this_process(
    folder: Path, count: int, secure: str, method: str, on_loss: str, usual: lp.Result,
    faults: list[Fault], rng: np.random.Generator,
) -> tuple[tuple[str, str, str], str]:  # fmt: skip
    """How the run ends with its faults, and the next one without."""
    link = FaultyLink(agents(folder, count), faults, rng)
    faulty = {fault.site for fault in faults}
    ends = []
    for each, left_out in ((link, faulty), (None, set[str]())):
        engine = Federation(each or DirectLink(link.agents.values()), secure=secure)
        run = partial(fitted, engine, method, on_loss, ROUNDS)
        ends.append(ended(run, usual, left_out))
    for agent in link.agents.values():
        agent.journal.verify()
        agent.close()
    return ends[0], ends[1][0]


class Processes:
    """Sites in processes of their own, and what a schedule does to them."""

    def __init__(self, folder: Path, count: int, secure: str, faults: list[Fault], rng: Any):
        self.folder, self.faults, self.rng = folder, faults, rng
        file = make_federation(folder, names(count), port=free_port())
        change(file, 'secure_sum = "strict"', f'secure_sum = "{secure}"')
        change(file, "wait = 120", f"wait = {WAIT}")
        for name, part in zip(names(count), parts(count), strict=True):
            np.save(folder / name / "rows.npy", part)
            policy = folder / name / "policy.toml"
            change(policy, 'data = ""', 'data = "rows.npy"')
            change(policy, 'secure_sum = "required"', 'secure_sum = "optional"')
            change(policy, "GramTriangle", 'Describe", "Triangle", "GramTriangle')
        self.processes: dict[str, Any] = {}
        self.engine: Any = lp.connect(f"sites:{file}")
        self.phase, self.doubled = "opening", set[str]()
        self.start()

    def start(self) -> None:
        """Have all sites there."""
        for name in self.engine.link.names:
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                with (self.folder / f"{name}.log").open("a") as log:
                    policy = self.folder / name / "policy.toml"
                    self.processes[name] = localpower(
                        "site", "join", policy, stdout=log, stderr=log
                    )
            self.processes[name].send_signal(signal.SIGCONT)
        self.engine.link.await_sites(PATIENCE, lambda missing: None)

    def disturb(self) -> None:
        """Have what is sent from now on meet the faults."""
        link = self.engine.link
        ask, send = link.ask, link._send

        def asking(frame: bytes, sites: list[str], deadline: float | None = None) -> Iterator[Any]:
            message = from_frame(frame, len(frame))
            self.phase = phase_of(message, self.phase)
            met = {f.site: f for f in self.faults for site in sites
                   if f.meets(self.phase, site, message)}  # fmt: skip
            self.doubled = {site for site, fault in met.items() if fault.kind == "duplicate"}
            for site, fault in met.items():
                self.hurt(site, fault)
            for site, raw in ask(frame, sites, deadline):
                kind = met[site].kind if site in met else ""
                yield site, damaged(raw, self.rng) if kind == "corrupt" else raw
                if kind == "duplicate":
                    yield site, raw

        def sending(stream: Any, question: Any) -> None:
            send(stream, question)
            if any(link._streams.get(site) is stream for site in self.doubled):
                send(stream, question)

        link.ask, link._send = asking, sending

    def hurt(self, site: str, fault: Fault) -> None:
        """Kill a site, or stop it for a while; for good, if the fault is."""
        process, ever = self.processes[site], fault.times == inf
        if process.poll() is not None or fault.kind not in ("kill", "delay"):
            return
        process.send_signal(signal.SIGSTOP)  # it has the question, and does not answer
        if fault.kind == "delay":
            if not ever:
                threading.Timer(0.3, process.send_signal, (signal.SIGCONT,)).start()
            return
        process.kill()
        process.wait()
        if not ever:
            self.processes.pop(site)
            policy = self.folder / site / "policy.toml"
            with (self.folder / f"{site}.log").open("a") as log:
                self.processes[site] = localpower("site", "join", policy, stdout=log, stderr=log)

    def close(self) -> None:
        """End all."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.engine.close()


def in_processes(
    folder: Path, count: int, secure: str, method: str, on_loss: str, usual: lp.Result,
    faults: list[Fault], rng: np.random.Generator,
) -> tuple[tuple[str, str, str], str]:  # fmt: skip
    """The same with processes over gRPC."""
    there = Processes(folder, count, secure, faults, rng)
    try:
        link = there.engine.link
        usually = link.ask, link._send
        there.disturb()
        run = partial(fitted, there.engine, method, on_loss, ROUNDS)
        first = ended(partial(run, DEADLINE), usual, {fault.site for fault in faults})
        link.ask, link._send = usually
        there.start()
        after = ended(run, usual, set())[0]
        return first, after
    finally:
        there.close()


def campaign(count: int, seed: int, output: Path) -> Iterator[Row]:
    """Run the schedules that the output does not list, and list them."""
    done = {int(row["number"]) for row in listed(output, seed)}
    with open(output, "a", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [field.name for field in fields(Row)])
        if not stream.tell():
            table.writeheader()
        for number in range(count):
            if number not in done:
                row = examine(seed, number)
                table.writerow(asdict(row))
                stream.flush()
                yield row


def listed(output: Path, seed: int) -> list[dict[str, str]]:
    """Rows of this version and seed."""
    if not output.exists():
        return []
    with open(output, encoding="utf-8", newline="") as stream:
        every = list(csv.DictReader(stream))
    return [row for row in every if (row["version"], row["seed"]) == (lp.__version__, str(seed))]


def main() -> int:
    """Run the campaign; the exit code is 1 if a run did not end as it must."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", lp.DegradedWarning)
    warnings.simplefilter("ignore", lp.ConvergenceWarning)
    with one_blas_thread():  # else the reference has other bits
        for row in campaign(options.count, options.seed, options.output):
            if sys.stderr.isatty():
                print(f"\r{row.number + 1}/{options.count}  ", end="", file=sys.stderr, flush=True)
    every = listed(options.output, options.seed)
    for secure in MODES:
        ends = Counter(row["ended"] for row in every if row["secure"] == secure)
        print(f"{secure}:", ", ".join(f"{name} {number}" for name, number in sorted(ends.items())))
    bad = [row for row in every if row["ended"] not in GOOD or row["after"] != "right"]
    print(f"{len(every)} schedules, {len(bad)} that did not end as they must")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
