"""Feed damaged svmlight and npy files to the readers: each must be taken, or refused properly.

    python benchmarks/mutations.py --count 1000000

Small valid files are mutated and read to the end. What is not read must be refused with an error of
the package or a ``ValueError``; anything else (also a warning, or to ask for too much memory) is a
failure, and its input is saved beside the output. Batches that the output lists are not run again,
so a run can be stopped and started at any time. If the process itself ends, the next start saves
the input it was reading.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

import localpower as lp
from localpower.worker.shard import Shard

BATCH = 10_000
ADDRESS_SPACE = 1 << 30  # more than the process has when it starts
MEMORY = "64MiB"
HERE = Path(__file__).parent

TEXTS = [
    b"1 1:0.5 2:1e-3 7:-2\n0 3:4\n1 1:1 2:2 3:3\n",
    b"-1 0:0.25 4:1\n+1 2:3.5 # a comment\n-1 1:1e5\n",
    b"1:2 3:4\n2:0.125\n1:-1 9:7\n",
    b"3 qid:1 1:1 2:2\n2 qid:1 1:0.1\n1 qid:2 2:0.5\n",
    b"1,3 1:1\n2 2:2\n 5:1 6:1\r\n1\n",
    b"# only\n\n1 1:1\n1 1000000:2\n",
]
NUMBERS = [
    b"0", b"-1", b"-0", b"1", b"2", b"3", b"255", b"65536", b"2147483646", b"2147483647",
    b"2147483648", b"4294967295", b"9223372036854775807", b"18446744073709551616", b"1000000000000",
    b"1e5", b"1e308", b"1e309", b"-1e309", b"1e-400", b"nan", b"inf", b"-inf", b"NaN", b"0x10",
    b"1_0", b"1.5", b".", b"", b"True", b"None", b"1L", b"9" * 400, b"9" * 5000, b"0" * 50,
]  # fmt: skip
TOKENS = [
    *NUMBERS, b":", b"::", b" ", b"\n", b"\r", b"\r\n", b"\t", b"\v", b"\f", b",", b";", b"|", b"#",
    b"qid:", b"qid:1 ", b"1:1", b"0:0", b" 2147483646:1", b" 2147483647:1", b'"', b"'", b"\x00",
    b"\xff", b"\xc3\xa9", b"\xd9\xa1", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x1a",
    b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"PK\x03\x04", b"PAR1", b"ARROW1", b"\x93NUMPY",
    b"\x89HDF\r\n\x1a\n", b"(", b")", b"{", b"}", b"[", b"]",
    b"(" * 300, b"[" * 150, b"-" * 3000, b"{" * 90,
    b"\\x00",
]  # fmt: skip
TYPES = [
    b"'<f8'", b"'>f8'", b"'<f4'", b"'<f2'", b"'<f16'", b"'|b1'", b"'<i8'", b"'|u1'", b"'<c16'",
    b"'|O'", b"'<U5'", b"'|S3'", b"'|V8'", b"'<M8[s]'", b"'<m8'", b"'(2,3)<f8'", b"'f8,f8'",
    b"[('a', '<f8'), ('b', '|O')]", b"('<f8', (2,))", b"('<f8', (1000000000,))", b"'<f99'", b"''",
    b"8", b"None", b"'|S9999999999'", b"'|V0'", b"[]", b"'='",
]  # fmt: skip


def _npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


ARRAYS = [
    _npy(np.arange(6.0).reshape(2, 3)),
    _npy(np.arange(12, dtype=np.float32).reshape(4, 3)),
    _npy(np.asfortranarray(np.arange(6.0).reshape(3, 2))),
    _npy(np.arange(8, dtype=np.int8).reshape(4, 2), (2, 0)),
    _npy(np.arange(4, dtype=">i2").reshape(2, 2)),
    _npy(np.ones((2, 2), np.float16)),
    _npy(np.ones((3, 3), bool)),
]


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
    return data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at + rng.randint(0, 4) :]


def _insert(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TOKENS) + data[at:]


def _cut(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randint(1, 20) :]


def _truncate(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _duplicate(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    stop = min(len(data), start + rng.randint(1, 40))
    return data[:stop] + data[start:stop] * rng.choice((1, 1, 1, 2, 50)) + data[stop:]


def _splice(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def _number(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    found = list(re.finditer(rb"[0-9.]+", data[:200]))
    if not found:
        return data
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]


def _header(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    """Change what an npy header says, with a length that is right."""
    header, rest = data[10:128].rstrip(b" \n"), data[128:]
    match rng.randrange(4):
        case 0:
            header = re.sub(rb"'descr': *[^,]*", lambda _: b"'descr': " + rng.choice(TYPES), header)
        case 1:
            sizes = [rng.choice(NUMBERS[:20]) for _ in range(rng.choice((0, 1, 2, 2, 2, 2, 3)))]
            shape = b"(" + b", ".join(sizes) + b")"
            header = re.sub(rb"\([^)]*\)", lambda _: shape, header)
        case 2:
            header = (
                header.replace(b"True", b"?").replace(b"False", b"True").replace(b"?", b"False")
            )
        case 3:
            header = _insert(header, rng, seeds)
    header += b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")[:2] + header + rest


ANY: list[Mutation] = [_flip, _replace, _insert, _cut, _truncate, _duplicate, _splice, _number]
KINDS: dict[str, tuple[list[bytes], list[Mutation]]] = {
    "svmlight": (TEXTS, ANY),
    "npy": (ARRAYS, [*ANY, _number, _header, _header, _header]),
}


def mutated(kind: str, rng: random.Random) -> bytes:
    """Return a valid file with one to four mutations."""
    seeds, mutations = KINDS[kind]
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        data = rng.choice(mutations)(data, rng, seeds)
    return data


# Reading


def accepted(path: Path) -> bool:
    """Read a file to its end; False if it is refused. Raises what is no proper refusal."""
    try:
        with lp.read(path, memory=MEMORY) as source:
            rows = 0
            for block in Shard(source.pieces, source.columns, source.dtype).blocks():
                rows += block.shape[0]
        if rows != source.rows:
            raise AssertionError(f"{rows} rows of {source.rows} came")
    except (lp.LocalPowerError, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one batch."""

    seed: int
    batch: int
    kind: str
    inputs: int
    accepted: int
    refused: int
    failures: int
    seconds: float
    slowest: float
    version: str


def run_batch(seed: int, batch: int, inputs: int, folder: Path, failures: Path) -> Row:
    """Make so many inputs and read each; save those that fail."""
    kind = list(KINDS)[batch % len(KINDS)]
    rng = random.Random(f"{seed} {batch}")
    good = bad = 0
    slowest, start = 0.0, time.perf_counter()
    for number in range(inputs):
        data = mutated(kind, rng)
        suffix = "" if rng.randrange(4) == 0 else {"svmlight": ".svm", "npy": ".npy"}[kind]
        path = folder / f"input{suffix}"
        path.write_bytes(data)
        before = time.perf_counter()
        try:
            good += accepted(path)
        except Exception:
            bad += 1
            _save(failures, f"{kind}-{seed}-{batch}-{number}{suffix}", data, traceback.format_exc())
        slowest = max(slowest, time.perf_counter() - before)
        path.unlink()
    seconds = round(time.perf_counter() - start, 2)
    refused = inputs - good - bad
    return Row(
        seed, batch, kind, inputs, good, refused, bad, seconds, round(slowest, 3), lp.__version__
    )


def _save(folder: Path, name: str, data: bytes, why: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    (folder / f"{name}.txt").write_text(why, encoding="utf-8")


# The campaign


def run(seed: int, count: int, output: Path, failures: Path, folder: Path) -> Iterator[Row]:
    """Run the batches that the output does not list, and list them."""
    done = {row["batch"] for row in _listed(output, seed)}
    with open(output, "a", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [field.name for field in fields(Row)])
        if not stream.tell():
            table.writeheader()
        for batch in range(-(-count // BATCH)):
            if str(batch) in done:
                continue
            row = run_batch(seed, batch, min(BATCH, count - batch * BATCH), folder, failures)
            table.writerow(asdict(row))
            stream.flush()
            yield row


def _listed(output: Path, seed: int) -> list[dict[str, str]]:
    if not output.exists():
        return []
    with open(output, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [row for row in rows if (row["seed"], row["version"]) == (str(seed), lp.__version__)]


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    size = pages * os.sysconf("SC_PAGESIZE") + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def _save_leftover(folder: Path, failures: Path) -> None:
    """Keep the input that was being read when the process ended, if it did."""
    for path in folder.glob("input*"):
        name = f"interrupted-{time.time_ns()}{path.suffix}"
        _save(failures, name, path.read_bytes(), "the process ended while it read this input\n")
        print(f"the last run ended while it read {failures / name}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; the exit code is 1 if any input of it failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=HERE / "mutations.csv")
    options = parser.parse_args(arguments)

    failures = options.output.with_name(f"{options.output.stem}-failures")
    shared = Path("/dev/shm")
    root = shared if shared.is_dir() else Path(tempfile.gettempdir())
    folder = root / f"localpower-mutations-{os.getuid()}-{options.seed}"
    folder.mkdir(mode=0o700, exist_ok=True)
    _save_leftover(folder, failures)
    accepted(_warm_up(folder))
    _limit_memory()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", lp.DataHint)
        for row in run(options.seed, options.count, options.output, failures, folder):
            if sys.stderr.isatty():
                inputs = row.batch * BATCH + row.inputs
                rate = row.inputs / row.seconds
                line = f"\r{inputs}/{options.count} inputs, {rate:.0f} a second  "
                print(line, end="", file=sys.stderr, flush=True)
    shutil.rmtree(folder)
    rows = _listed(options.output, options.seed)
    inputs, bad = (sum(int(row[name]) for row in rows) for name in ("inputs", "failures"))
    print(f"{inputs} inputs, {bad} failures" + (f": see {failures}" if bad else ""))
    return 1 if bad else 0


def _warm_up(folder: Path) -> Path:
    """Have libraries imported before memory is limited."""
    path = folder / "valid.svm"
    path.write_bytes(TEXTS[0])
    return path


if __name__ == "__main__":
    sys.exit(main())
