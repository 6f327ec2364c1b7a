"""Rounds of a federation on one machine, beside bare gRPC rounds of the same bytes.

    python benchmarks/federation.py [--output benchmarks/federation.csv] [--repeats 15]

One process for each site, mutual TLS on loopback. `bare` is one message to every site and the same
bytes back, on a stream of gRPC without anything of ours. `ours` is the same through the link that
`sites:` uses: pieces, names, deadlines. `masked` is a whole question: a basis of so many bytes, to
sites that check their policies, multiply it with 200 sparse rows, write words, mask them for all
others, sign and journal them, and a coordinator that checks and adds them. All are up at once and
take turns, so that whatever else the machine does meets all. Seconds are medians; `ratio` is ours
by bare, and `best` that of the quickest rounds. `flare` is NVFLARE's round of the same bytes, which
comes before all others (`flare_rounds.py`).
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from threading import Thread

import numpy as np
from flare_rounds import rounds as flare_rounds
from scipy import sparse

import localpower as lp
from localpower.federation.engine import Federation
from localpower.federation.grpc_link import DaemonThreads, GrpcLink
from localpower.federation.identity import FederationFile, make_federation
from localpower.federation.join import credentials_of, serve
from localpower.federation.stream import METHOD, SERVICE, grpc
from localpower.worker.tasks import PowerSteps

SIZES, SITES = (80_000, 2_400_000, 16_000_000), (3, 10)
ENDLESS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
WIDTHS = {80_000: 10, 2_400_000: 10, 16_000_000: 20}  # columns of a basis of so many bytes
ROWS = 200
FIELDS = ("bytes", "sites", "bare", "ours", "ratio", "best", "masked", "flare", "load", "cores",
          "grpc", "version")  # fmt: skip
START = 60.0  # seconds for sites to connect


class BareLink:
    """A gRPC server that sends one message to each stream and waits for one from each."""

    def __init__(self, file: FederationFile, count: int) -> None:
        folder = file.path.parent
        key, chain, ca = (
            (folder / name).read_bytes()
            for name in ("coordinator.key", "coordinator.pem", "ca.pem")
        )
        self.count, self.replies = count, SimpleQueue()
        self.outboxes: list[SimpleQueue] = []
        self.server = grpc.server(DaemonThreads(), options=ENDLESS)
        handler = grpc.stream_stream_rpc_method_handler(self.stream)
        handlers = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
        self.server.add_generic_rpc_handlers((handlers,))
        credentials = grpc.ssl_server_credentials([(key, chain)], ca, True)
        self.port = self.server.add_secure_port("127.0.0.1:0", credentials)
        self.server.start()

    def stream(self, requests, context):
        outbox: SimpleQueue = SimpleQueue()
        context.add_callback(lambda: outbox.put(None))
        self.outboxes.append(outbox)
        Thread(target=self.receive, args=(requests,), daemon=True).start()
        return iter(outbox.get, None)

    def receive(self, requests) -> None:
        try:
            for message in requests:
                self.replies.put(message)
        except Exception:
            return

    def round(self, frame: bytes) -> list[bytes]:
        for outbox in self.outboxes:
            outbox.put(frame)
        return [self.replies.get(timeout=START) for _ in range(self.count)]

    def close(self) -> None:
        self.server.stop(0).wait(START)


def echo(kind: str, address: str, name: str, keys: str) -> None:
    """Be a site: send back whatever comes."""
    if kind == "ours":
        credentials = credentials_of(name, Path(keys))
        serve(address, credentials, lambda frame: frame, 1 << 30, lambda text: None)
    outbox: SimpleQueue = SimpleQueue()
    with grpc.secure_channel(address, credentials_of(name, Path(keys)), ENDLESS) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outbox.get, None))
        for message in call:
            outbox.put(message)


@contextmanager
def processes(commands: Iterable[Sequence[str]]) -> Iterator[None]:
    """Sites, one process each."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    found = [subprocess.Popen([sys.executable, *command], **quiet) for command in commands]
    try:
        yield
    finally:
        for process in found:
            process.kill()
            process.wait()


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + START
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("the sites did not connect")
        time.sleep(0.05)


def made(folder: Path, names: Sequence[str]) -> FederationFile:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return FederationFile.read(make_federation(folder, names, port=port))


@contextmanager
def masked(folder: Path, names: Sequence[str], size: int) -> Iterator[Callable[[bytes], object]]:
    """Real sites, and a function that asks them one question of so many bytes."""
    file, width, rng = made(folder, names), WIDTHS[size], np.random.default_rng(0)
    d = size // 8 // width
    for name in names:
        rows = sparse.random_array((ROWS, d), density=20 / d, rng=rng, format="csr")
        sparse.save_npz(folder / name / "rows.npz", rows)
        policy = folder / name / "policy.toml"
        text = policy.read_text(encoding="utf-8").replace('data = ""', 'data = "rows.npz"')
        text = text.replace("max_columns = 1000 ", "max_columns = 1000000 ")
        policy.write_text(text, encoding="utf-8")
    with ExitStack() as stack:
        link = GrpcLink(file)
        engine = stack.enter_context(closing(Federation(link)))
        commands = [("-m", "localpower", "site", "join", str(folder / name)) for name in names]
        stack.enter_context(processes(commands))
        until(lambda: link.connected == link.names)
        engine.adopt("sites", None)
        engine.rows, engine.columns, engine.trace = [ROWS] * len(names), d, float(ROWS * 20)
        basis = np.linalg.qr(rng.standard_normal((d, width)))[0]
        yield lambda _: engine.sum(PowerSteps(basis.copy(), 1)).product


def measure(count: int, size: int, repeats: int) -> dict[str, object]:
    """Rounds with so many sites, of so many bytes each way."""
    names = tuple(f"site-{number}" for number in range(count))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = made(folder / "echo", names)
        ours, bare = GrpcLink(file), BareLink(file, count)
        stack.callback(ours.close)
        stack.callback(bare.close)
        for kind, port in (("ours", file.port), ("bare", bare.port)):
            how = __file__, "--site", kind, f"127.0.0.1:{port}"
            keys = [(name, str(folder / "echo" / name / "keys")) for name in names]
            stack.enter_context(processes([(*how, *own) for own in keys]))
        until(lambda: len(ours.connected) == len(bare.outboxes) == count)
        rounds = {
            "bare": bare.round,
            "ours": lambda frame: list(ours.ask(frame, names, START)),
            "masked": stack.enter_context(masked(folder / "masked", names, size)),
        }
        times: dict[str, list[float]] = {kind: [] for kind in rounds}
        frame = os.urandom(size)
        for turn in range(repeats + 1):
            for kind, run in rounds.items():
                start = time.perf_counter()
                run(frame)
                times[kind] += [time.perf_counter() - start] * (turn > 0)
        return {"bytes": size, "sites": count, **summary(times)}


def summary(times: dict[str, list[float]]) -> dict[str, str]:
    bare, ours = median(times["bare"]), median(times["ours"])
    best = min(times["ours"]) / min(times["bare"])
    load = f"{os.getloadavg()[0]:.1f}"
    return {"bare": f"{bare:.2g}", "ours": f"{ours:.2g}", "ratio": f"{ours / bare:.2f}",
            "best": f"{best:.2f}", "masked": f"{median(times['masked']):.2g}",
            "load": load}  # fmt: skip


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("benchmarks/federation.csv"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--site", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.site:
        echo(*options.site)
        return
    about = {"cores": os.cpu_count(), "grpc": grpc.__version__, "version": lp.__version__}
    with options.output.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        table.writeheader()
        print(f"{platform.machine()}, {os.cpu_count()} cores; seconds of a round")
        shown = FIELDS[:8]
        print(" ".join(f"{name:>9}" for name in shown))
        flare = {count: flare_rounds(count, SIZES) for count in SITES}
        for count, size in product(SITES, SIZES):
            row = measure(count, size, options.repeats)
            row["flare"] = f"{flare[count][size]:.2g}"
            print(" ".join(f"{row[name]:>9}" for name in shown), flush=True)
            table.writerow(row | about)


if __name__ == "__main__":
    main()
