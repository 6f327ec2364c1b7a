"""Rounds of a federation on one machine, beside bare gRPC rounds of the same bytes.

    python benchmarks/federation.py [--output benchmarks/federation.csv] [--repeats 15]

One process for each site, mutual TLS on loopback. `bare` is one message to every site and the same
bytes back, on a stream of gRPC without anything of ours; `ours` is the same through the link that
`sites:` uses: pieces, names, deadlines. Both are up at once and take turns, so that whatever else
the machine does meets both. Seconds are medians, `ratio` is that of the medians, and `best` that of
the quickest rounds. `flare` is NVFLARE's round of the same bytes (`flare_rounds.py`), before them.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from threading import Thread

from flare_rounds import rounds as flare_rounds

import localpower as lp
from localpower.federation.grpc_link import DaemonThreads, GrpcLink
from localpower.federation.identity import FederationFile, make_federation
from localpower.federation.join import credentials_of, serve
from localpower.federation.stream import METHOD, SERVICE, grpc

SIZES, SITES = (80_000, 2_400_000, 16_000_000), (3, 10)
ENDLESS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
FIELDS = ("bytes", "sites", "bare", "ours", "ratio", "best", "flare", "load", "cores", "grpc",
          "version")  # fmt: skip
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
def processes(kind: str, address: str, folder: Path, names: tuple[str, ...]) -> Iterator[None]:
    """Sites that echo, one process each."""
    command = [sys.executable, __file__, "--site", kind, address]
    found = [
        subprocess.Popen([*command, name, str(folder / name / "keys")], stderr=subprocess.DEVNULL)
        for name in names
    ]
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


def measure(count: int, repeats: int) -> Iterator[dict[str, object]]:
    """Rounds with so many sites."""
    names = tuple(f"site-{number}" for number in range(count))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "federation"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file = FederationFile.read(make_federation(folder, names, port=port))
        ours, bare = GrpcLink(file), BareLink(file, count)
        stack.callback(ours.close)
        stack.callback(bare.close)
        stack.enter_context(processes("ours", f"127.0.0.1:{port}", folder, names))
        stack.enter_context(processes("bare", f"127.0.0.1:{bare.port}", folder, names))
        until(lambda: len(ours.connected) == len(bare.outboxes) == count)
        for size in SIZES:
            frame = os.urandom(size)
            times: dict[str, list[float]] = {"bare": [], "ours": []}
            rounds = {"bare": bare.round, "ours": lambda f: list(ours.ask(f, names, START))}
            for turn in range(repeats + 1):
                for kind, run in rounds.items():
                    start = time.perf_counter()
                    got = run(frame)
                    times[kind] += [time.perf_counter() - start] * (turn > 0)
                    assert len(got) == count
            yield {"bytes": size, "sites": count, **summary(times)}


def summary(times: dict[str, list[float]]) -> dict[str, str]:
    bare, ours = median(times["bare"]), median(times["ours"])
    best = min(times["ours"]) / min(times["bare"])
    load = f"{os.getloadavg()[0]:.1f}"
    return {"bare": f"{bare:.2g}", "ours": f"{ours:.2g}", "ratio": f"{ours / bare:.2f}",
            "best": f"{best:.2f}", "load": load}  # fmt: skip


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
        heads = "bytes", "sites", "bare", "ours", "ratio", "best", "flare"
        print("{:>10} {:>5} {:>8} {:>8} {:>6} {:>6} {:>6}".format(*heads))
        for count in SITES:
            flare = flare_rounds(count, SIZES, min(options.repeats, 7))
            for row in measure(count, options.repeats):
                row["flare"] = f"{flare[row['bytes']]:.2g}"
                print("{bytes:>10} {sites:>5} {bare:>8} {ours:>8} {ratio:>6} {best:>6} "
                      "{flare:>6}".format(**row), flush=True)  # fmt: skip
                table.writerow(row | about)


if __name__ == "__main__":
    main()
