"""Rounds of NVFLARE on one machine: the same bytes to every site and back, in a job of its own.

    python benchmarks/flare_rounds.py [--sites 3] [--repeats 7]

Server and sites are the kits that ``localpower federation flare`` makes, on loopback; the job names
`Timer` and `Echo` of this file instead of the library's classes, and frames go through `FlareLink`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import psutil
from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable

from localpower.federation import flare_session
from localpower.federation.flare import FRAME, FlareLink
from localpower.federation.flare_calls import OUTCOME
from localpower.federation.flare_kits import FOLDER, command_of, make_kits

SIZES = (80_000, 2_400_000, 16_000_000)
PATIENCE = 120.0  # seconds for sites to connect, and for a round


class Echo(Executor):
    """Sends back whatever comes."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return Shareable({FRAME: shareable[FRAME]})


class Timer(Controller):
    """Times rounds; `asked` is JSON: sizes, and how often."""

    def __init__(self, asked: str) -> None:
        super().__init__()
        self._sizes, self._repeats = json.loads(asked)

    def start_controller(self, fl_ctx):
        pass

    def stop_controller(self, fl_ctx):
        pass

    def control_flow(self, abort_signal, fl_ctx):
        link = FlareLink(self, fl_ctx, abort_signal)
        found = {}
        for size in self._sizes:
            frame, times = os.urandom(size), []
            for _ in range(self._repeats + 1):
                start = time.perf_counter()
                got = dict(link.ask(frame, link.names, PATIENCE))
                times.append(time.perf_counter() - start)
                assert got == dict.fromkeys(link.names, frame)
            found[size] = times[1:]  # sites are still starting in the first
        folder = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()), FOLDER)
        folder.mkdir()
        (folder / OUTCOME).write_text(json.dumps(found))


def rounds(count: int, sizes: Sequence[int] = SIZES, repeats: int = 7) -> dict[int, float]:
    """Median seconds of a round with so many sites, for every size."""
    names = [f"site-{number}" for number in range(count)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "federation"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        kits = make_kits(folder, names, port=port)
        for who in ("server", *names):
            allow(kits[who] / "local" / "resources.json")
            stack.enter_context(running(command_of(kits[who]), folder / f"{who}.log"))
            while who == "server" and not reachable(port):
                time.sleep(0.1)
        asked = {"kit": str(kits["lead"]), "scratch": str(folder), "sites": names,
                 "patience": PATIENCE, "lead": json.dumps([sizes, repeats])}  # fmt: skip
        done = subprocess.run(
            [sys.executable, __file__, "--session"],
            input=json.dumps(asked).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        told = json.loads([line for line in done.stdout.splitlines() if line][-1])
        if "error" in told:
            raise RuntimeError(told["error"])
        found = json.loads(Path(told["folder"], OUTCOME).read_text())
    return {int(size): median(times) for size, times in found.items()}


def allow(path: Path) -> None:
    """Let a kit run the classes of this file."""
    resources = json.loads(path.read_text())
    resources["class_allow_list"] = [f"{Path(__file__).stem}."]
    path.write_text(json.dumps(resources))


def reachable(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    """A process of NVFLARE that finds this file; its jobs end with it."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), environment.get("PYTHONPATH")])
    )
    with (
        open(log, "wb") as stream,
        psutil.Popen(command, env=environment, stdout=stream, stderr=stream) as process,
    ):
        try:
            yield
        finally:
            for each in [*process.children(recursive=True), process]:
                each.kill()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--session", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.session:
        name = Path(__file__).stem
        flare_session.SERVER_CLASS, flare_session.SITE_CLASS = f"{name}.Timer", f"{name}.Echo"
        flare_session.main()
        return
    print(f"{options.sites} sites, load {os.getloadavg()[0]:.1f}; seconds of a round of NVFLARE")
    for size, seconds in rounds(options.sites, SIZES, options.repeats).items():
        print(f"{size:>10} {seconds:.3f}")


if __name__ == "__main__":
    main()
