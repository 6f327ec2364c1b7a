"""Send damaged frames to a site: each must be answered or refused, with little memory.

    python benchmarks/frames.py --count 1000000 --jobs 2

Frames of a real run are mutated, byte by byte and in what they say, and given to a site's agent. It
must reply with a message of its own each time; an exception, or more memory than twice the
policy's cap, is a failure, and its frame is saved beside the output. Batches that the output lists
are not run again, so a run can be stopped and started at any time.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import struct
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import localpower as lp
from localpower.core.linalg import orth
from localpower.federation.agent import SiteAgent
from localpower.federation.journal import Journal
from localpower.federation.masks import SiteKeys
from localpower.federation.messages import (
    Answer,
    Ask,
    CloseRun,
    Offer,
    OpenRun,
    Refusal,
    Reveal,
    Roster,
    Settle,
    Settled,
    Shares,
    digest_of,
    from_frame,
    to_frame,
)
from localpower.federation.policy import Policy
from localpower.worker import wire
from localpower.worker.host import Failure
from localpower.worker.replies import Done
from localpower.worker.sum_tasks import SmallGram, Spread, Sums
from localpower.worker.tasks import GramTriangle, PowerSteps, Prepare, Refine, TopVectors

BATCH = 5_000
CAP = 1 << 20  # bytes of a message
ROWS, COLUMNS = 200, 6
NAMES = ("north", "south", "west")
RUN = "0123456789abcdef" * 2
KNOWN = (Offer, Done, Answer, Settled, Shares, Refusal, Failure)
HERE = Path(__file__).parent
ODD = [
    None, True, -1, 0, 1, 2, 3, 7, 1 << 31, 1 << 53, 1 << 63, 1 << 64, -(1 << 63), 1e300, -1e-300,
    float("nan"), float("inf"), "", "x", "strict", "off", "recovery", "none", "procrustes",
    "../../../etc/passwd", "\x00", "\ud800", "a" * 5000, [], [[]], [0] * 50, {"a": 1}, RUN,
    "f" * 32,
]  # fmt: skip
SIZES = [0, 1, 2, 5, 6, 7, 64, 1 << 20, 1 << 31, 1 << 40, 1 << 62, -1, 1.5, "6", None]
WORDS = [
    "array", "tuple", "csr", "dtype", "Ask", "OpenRun", "Roster", "CloseRun", "Offer", "Answer",
    "Settle", "Reveal", "Settled", "Shares",
    "Sums", "Prepare", "PowerSteps", "Describe", "LeftVectors", "Shard", "Stored", "StoredCSR",
    "Measure", "Moments", "Ledger", "Refusal", "Failure", "<f8", ">f8", "<u8", "|O", "",
]  # fmt: skip


def sites(folder: Path) -> list[SiteAgent]:
    """Three sites with small files."""
    keys = {name: SiteKeys(sha256(name.encode()).digest()) for name in NAMES}
    agents = []
    for number, name in enumerate(NAMES):
        place = folder / name
        place.mkdir(parents=True)
        rng = np.random.default_rng(number)
        np.save(place / "rows.npy", rng.standard_normal((ROWS, COLUMNS)))
        peers = {other: key.fingerprint for other, key in keys.items() if other != name}
        how = {"max_bytes": CAP, "max_columns": 1 << 40, "max_rounds": 1 << 40}
        policy = Policy(name, "rows.npy", peers=peers, folder=place, **how)
        agents.append(SiteAgent(policy, Journal(place / "journal.jsonl"), keys[name]))
    return agents


def real_frames(agents: list[SiteAgent], run: str = RUN, secure: str = "strict") -> list[bytes]:
    """Frames of a run, in order; the first agent has answered all but that which ends it.

    The others answer only what there is no run without.
    """
    first = to_frame(OpenRun(run, "1", NAMES, secure, 60, "a run"))
    offers = [from_frame(agent.answer(first), CAP) for agent in agents]
    roster = to_frame(Roster(run, tuple(replace(offer, names=None) for offer in offers)))
    basis = orth(np.random.default_rng(0).standard_normal((COLUMNS, 2)))
    prepare = to_frame(
        Ask(run, 3, 12, 60, "", Prepare(np.zeros(COLUMNS), 1.0, 0, 3, 2, False, 0.0))
    )
    tasks = [
        PowerSteps(basis, 1, probes=np.ones((COLUMNS, 1))),
        PowerSteps(basis, 3, "procrustes", send_first=True),
        Refine(basis, basis, basis, 2, 3 * ROWS),
        SmallGram(basis),
        GramTriangle(),
        TopVectors(2),
    ]
    asked = [
        to_frame(Ask(run, 4 + n, 12, 60, digest_of(prepare), task)) for n, task in enumerate(tasks)
    ]
    early = [
        to_frame(Ask(run, n, 12, 60, "", task))
        for n, task in ((1, Sums()), (2, Spread(np.zeros(COLUMNS))))
    ]
    frames = [first, roster, *early, prepare, *asked]
    replies = [agents[0].answer(frame) for frame in frames[1:]]
    assert isinstance(from_frame(replies[5], CAP), Answer)
    if secure == "recovery":
        for agent in agents[1:]:
            agent.answer(roster), agent.answer(prepare)
        frames += opening_frames(agents, run, frames[-2])
    return [*frames, to_frame(CloseRun(run, "{}")), *replies[:6]]


def opening_frames(agents: list[SiteAgent], run: str, asked: bytes) -> list[bytes]:
    """Frames that open a sum, and what a site says to them."""
    answers = [from_frame(agent.answer(asked), CAP) for agent in agents]
    about = run, answers[0].round, digest_of(asked), NAMES
    sealed = np.stack([answer.sealed for answer in answers])
    frames = [
        to_frame(Settle(*about)),
        to_frame(Reveal(*about, np.zeros((len(NAMES), 64), np.uint8), sealed)),
    ]
    return frames + [agents[0].answer(frame) for frame in frames]


# Mutations

Mutation = Callable[[bytes, random.Random, list[bytes]], bytes]


def _flip(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _replace(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(0, 9)) + data[at + rng.randint(0, 9) :]


def _truncate(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _duplicate(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.randint(1, 60)]
    return data[:start] + part * rng.choice((2, 2, 3, 1000)) + data[start:]


def _splice(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def _lengths(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    sizes = [rng.choice((0, 1, 100, len(data), 1 << 20, (1 << 32) - 1)) for _ in range(2)]
    return wire.PREFIX.pack(wire.MAGIC, *sizes) + data[wire.PREFIX.size :]


def _said(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    """Change what a frame says, with lengths that are right."""
    try:
        _magic, form, content = wire.PREFIX.unpack_from(data)
        start = wire.PREFIX.size
        tree = json.loads(data[start : start + form])
        values = json.loads(data[start + form : start + form + content])
        rest = data[start + form + content :]
        if rng.randrange(2) and values:
            values[rng.randrange(len(values))] = rng.choice(ODD)
        else:
            _change_form(tree, rng)
        head, tail = json.dumps(tree).encode(), json.dumps(values).encode()
    except (ValueError, TypeError, IndexError, KeyError, RecursionError, struct.error):
        return data
    if rng.randrange(8) == 0:
        rest = rng.randbytes(rng.choice((0, 8, 96, 4000)))
    return wire.PREFIX.pack(wire.MAGIC, len(head), len(tail)) + head + tail + rest


def _change_form(node: list, rng: random.Random) -> None:
    """Change one place of a form: a size, a name, or a part that comes twice or not at all."""
    inner = [part for part in node if isinstance(part, list)]
    if inner and rng.randrange(3):
        return _change_form(rng.choice(inner), rng)
    at = rng.randrange(len(node))
    match rng.randrange(4):
        case 0:
            node[at] = rng.choice(SIZES if at else WORDS)
        case 1:
            node.insert(at, rng.choice([0, ["array", "<f8", 6], ["tuple"], ["Sums"]]))
        case 2:
            del node[at]
        case 3:
            nest = node[at]
            for _ in range(rng.choice((1, 10, 300, 900))):
                nest = ["tuple", nest]
            node[at] = nest
    return None


def _bomb(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    """Little text that means much: brackets, numbers and lists without end."""
    text = rng.choice([b"[" * 9999, b"[[]," * 7000, b"[" + b"0," * 15000 + b"0]", b"9" * 5000])
    head = rng.choice([text, b'["tuple",' * 3000, data[12:200]])
    return wire.PREFIX.pack(wire.MAGIC, len(head), len(text)) + head + text


MUTATIONS: list[Mutation] = [
    *(_flip, _replace, _truncate, _duplicate, _splice, _lengths, _bomb),
    *(_said, _said, _said, _said, _said),
]


def mutated(seeds: list[bytes], rng: random.Random) -> bytes:
    """Return a real frame with one to three mutations, or none."""
    data = rng.choice(seeds)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        data = rng.choice(MUTATIONS)(data, rng, seeds)
    return data


# The campaign


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one batch; `peak` is the most memory that a frame took, in bytes."""

    seed: int
    batch: int
    inputs: int
    answered: int
    refused: int
    failures: int
    peak: int
    cap: int
    seconds: float
    version: str


def run_batch(seed: int, batch: int, inputs: int, failures: Path) -> Row:
    """Make so many frames and send each; save those that fail."""
    rng = random.Random(f"{seed} {batch}")
    counts: Counter[str] = Counter()
    most, start = 0, time.perf_counter()
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        agents, run_name, seeds = sites(Path(folder)), "none", []
        for number in range(inputs):
            if agents[0].run != run_name:  # a frame has ended it
                run_name = rng.randbytes(16).hex()
                seeds = real_frames(agents, run_name, ("strict", "recovery")[batch % 2])
            frame = mutated(seeds, rng)
            tracemalloc.start()  # anew for each frame: to trace what makes frames takes long
            try:
                kind = type(from_frame(agents[0].answer(frame), 2 * CAP))
                peak = tracemalloc.get_traced_memory()[1]
                most = max(most, peak)
                if kind not in KNOWN or peak > 2 * CAP:
                    raise AssertionError(f"{kind}, {peak} bytes")
                counts["refused" if kind is Refusal else "answered"] += 1
            except Exception:
                counts["failed"] += 1
                _save(failures, f"{seed}-{batch}-{number}", frame, traceback.format_exc())
            finally:
                tracemalloc.stop()
        agents[0].journal.verify()
        for agent in agents:
            agent.close()
    seconds = round(time.perf_counter() - start, 2)
    told = counts["answered"], counts["refused"], counts["failed"]
    return Row(seed, batch, inputs, *told, most, CAP, seconds, lp.__version__)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _save(folder: Path, name: str, data: bytes, why: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    (folder / f"{name}.txt").write_text(why, encoding="utf-8")


def run(seed: int, count: int, output: Path, failures: Path, jobs: int = 1) -> Iterator[Row]:
    """Run the batches that the output does not list, and list them as they end."""
    done = {row["batch"] for row in _listed(output, seed)}
    left = [
        (seed, batch, min(BATCH, count - batch * BATCH), failures)
        for batch in range(-(-count // BATCH))
        if str(batch) not in done
    ]
    with ExitStack() as stack:
        if jobs > 1:
            how = {"initializer": warnings.simplefilter, "initargs": ("error",)}
            pool = stack.enter_context(get_context("spawn").Pool(jobs, **how))
            rows = pool.imap_unordered(_run_batch, left)
        else:
            rows = map(_run_batch, left)
        stream = stack.enter_context(open(output, "a", encoding="utf-8", newline=""))
        table = csv.DictWriter(stream, [field.name for field in fields(Row)])
        if not stream.tell():
            table.writeheader()
        for row in rows:
            table.writerow(asdict(row))
            stream.flush()
            yield row


def _run_batch(asked: tuple[int, int, int, Path]) -> Row:
    return run_batch(*asked)


def _listed(output: Path, seed: int) -> list[dict[str, str]]:
    if not output.exists():
        return []
    with open(output, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [row for row in rows if (row["seed"], row["version"]) == (str(seed), lp.__version__)]


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; the exit code is 1 if any frame of it failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=HERE / "frames.csv")
    options = parser.parse_args(arguments)
    failures = options.output.with_name(f"{options.output.stem}-failures")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        how = options.seed, options.count, options.output, failures, options.jobs
        for number, row in enumerate(run(*how), start=1):
            if sys.stderr.isatty():
                line = f"\r{number * row.inputs} more of {options.count} frames  "
                print(line, end="", file=sys.stderr, flush=True)
    rows = _listed(options.output, options.seed)
    inputs, bad = (sum(int(row[name]) for row in rows) for name in ("inputs", "failures"))
    peak = max(int(row["peak"]) for row in rows)
    print(f"{inputs} frames, {bad} failures, at most {peak} bytes of {2 * CAP}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
