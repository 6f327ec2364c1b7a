"""What a fit takes of memory and of the disk, for data that do not fit in memory.

    python benchmarks/larger_than_memory.py                 # 12 GB dense, then the wide sparse one
    python benchmarks/larger_than_memory.py --rows 150000   # smaller
    python benchmarks/larger_than_memory.py --cases "p = 1" --folder /data --output table.csv

The dense matrix is written by this script, in a temporary directory, and deleted afterwards; with
`--folder` it stays there for the next run. Its rows are drawn alike, so that shards resemble each
other. Every fit is a process of its own, whose peak memory is that of the whole process, Python
included. `--output` gets the cases that were measured in the place of those that it has of them.

A dense fit is compared with bare reading of the file, as often as the fit went over it: the same
bytes at a time, into buffers that are used again, by one thread for each core, in the quicker of
two ways. `warm` files are in the system's cache, and reading them is copying memory on the cores
that compute, so that both add up. Of `cold` ones, another process has the system drop what it
cached of them, four times a second, for fit and reading alike. `computing` is what the fit itself
took of the cores, outside of the system, in seconds of all cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import Process
from pathlib import Path

import numpy as np

import localpower as lp

COLUMNS, RANK, RATIO, PLANTED, GOAL = 1000, 10, 0.78, 40, 1e-2
SPARSE = 100_000, 1_000_000, 20  # rows, columns, entries in a row
CERTIFIED = {"auto": None, "block_lanczos": 1e-8}  # dense fits, and their tolerances
METHODS = {**dict.fromkeys(CERTIFIED, 0), "p = 1": 1, "p = 8": 8}  # all, with their local steps
CASES = (*METHODS, "sparse")
BLOCK = 1 << 22  # bytes that are read at once, as fits do
FIELDS = ("case", "method", "cache", "rounds", "sine", "bytes_read", "passes", "peak_bytes",
          "limit_bytes", "seconds", "reading", "times_reading", "computing", "times_larger", "seed",
          "version")  # fmt: skip


def write_rows(path: Path, rows: int, seed: int) -> np.ndarray:
    """Write the dense matrix chunk by chunk; return its true leading right singular vectors."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((COLUMNS, PLANTED)))[0]
    scaled = (basis * np.sqrt(RATIO) ** np.arange(PLANTED)).T
    noise = 1e-4 * rng.standard_normal((4096, COLUMNS))
    header = {"descr": "<f8", "fortran_order": False, "shape": (rows, COLUMNS)}
    gram = np.zeros((COLUMNS, COLUMNS))
    with open(path, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for start in range(0, rows, len(noise)):
            count = min(len(noise), rows - start)
            chunk = rng.standard_normal((count, PLANTED)) @ scaled
            chunk += rng.standard_normal() * noise[:count]
            gram += chunk.T @ chunk
            stream.write(chunk.data)
            show(f"writing {path}: {start / rows:.0%}")
    return np.linalg.eigh(gram)[1][:, ::-1][:, :RANK]


def fit_dense(path: str, truth: str, name: str, memory: str) -> dict[str, object]:
    """Fit until the goal is reached, or what is certified by default; in a process of its own."""
    target, steps = np.load(truth), METHODS[name]
    sine = 1.0

    def near(record: lp.Record, state: object) -> bool:
        nonlocal sine
        sine = lp.subspace_distance(target, state.basis)  # type: ignore[attr-defined]
        show(f"{name}, round {record.round}: sine {sine:.2e}")
        return sine <= GOAL

    how = {"memory": memory, "rng": 0}
    if not steps:
        result = lp.svd(path, RANK, name, tol=CERTIFIED[name], **how)
        sine = lp.subspace_distance(target, result.components.T)
    else:
        method = lp.LocalPower(steps=steps)
        result = lp.svd(path, RANK, method, max_rounds=200, callback=near, **how)
    read = result.ledger.bytes_read
    return {
        "rounds": len(result.history),
        "sine": sine,
        "bytes_read": read,
        "passes": read / os.path.getsize(path),
        "method": f"{name}: {result.run['method']}",
    }


def read_bare(path: str, passes: float) -> dict[str, object]:
    """Read the file so often, in the quicker of two ways; in a process of its own."""
    size, threads = os.path.getsize(path), len(os.sched_getaffinity(0))
    ways = {"readinto": _readinto, "preadv": _preadv}
    ends = np.linspace(0, size, threads + 1).astype(int).tolist()

    def once(way: str, part: float) -> float:
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            calls = [
                pool.submit(ways[way], path, start, start + int(part * (stop - start)))
                for start, stop in pairwise(ends)
            ]
            assert sum(call.result() for call in calls) >= part * size - threads
        return time.perf_counter() - begin

    taken = {way: once(way, 1.0) for way in ways}
    best = min(taken, key=taken.__getitem__)
    whole = int(passes)
    parts = [1.0] * whole + ([passes - whole] if passes - whole > 1e-6 else [])
    return {"reading": sum(once(best, part) for part in parts), "way": best}


def _readinto(path: str, start: int, stop: int) -> int:
    buffer, done = memoryview(bytearray(BLOCK)), 0
    with open(path, "rb", buffering=0) as stream:
        stream.seek(start)
        while done < stop - start:
            done += stream.readinto(buffer[: stop - start - done])
    return done


def _preadv(path: str, start: int, stop: int) -> int:
    buffer, done = memoryview(bytearray(BLOCK)), 0
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, start, stop - start, os.POSIX_FADV_SEQUENTIAL)
        while done < stop - start:
            done += os.preadv(file, [buffer[: stop - start - done]], start + done)
    finally:
        os.close(file)
    return done


def forget(path: Path) -> None:
    """Have the system drop what it cached of a file, again and again."""
    file = os.open(path, os.O_RDONLY)
    while True:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        time.sleep(0.25)


@contextmanager
def cached(path: Path, cache: str) -> Iterator[None]:
    """Keep a file in the system's cache, or out of it."""
    if cache == "warm":
        _readinto(str(path), 0, os.path.getsize(path))
        yield
        return
    other = Process(target=forget, args=(path,), daemon=True)
    other.start()
    try:
        time.sleep(1)
        yield
    finally:
        other.kill()
        other.join()


def fit_sparse(seed: int, steps: int) -> dict[str, object]:
    """Fit the wide sparse matrix, held in memory."""
    from scipy.sparse import csr_array

    n, d, q = SPARSE
    rng = np.random.default_rng(seed)
    columns = np.sort(rng.integers(0, d, (n, q), dtype=np.int32), axis=1)
    starts = np.arange(0, n * q + 1, q, dtype=np.int32)
    X = csr_array((rng.standard_normal(n * q), columns.ravel(), starts), shape=(n, d))
    X.sum_duplicates()
    size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    result = lp.svd(X, RANK, lp.LocalPower(steps=steps), max_rounds=3, rng=0)
    return {"rounds": len(result.history), "limit_bytes": 3 * size + 5 * d * RANK * 8}


def child(arguments: list[str]) -> None:
    """Do one fit, or read, and print what it took."""
    start, case = time.perf_counter(), arguments[0]
    if case == "dense":
        found = fit_dense(*arguments[1:])
    elif case == "bare":
        found = read_bare(arguments[1], float(arguments[2]))
    else:
        found = fit_sparse(int(arguments[1]), int(arguments[2]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    found["seconds"] = round(time.perf_counter() - start, 1)
    found["computing"] = round(used.ru_utime / len(os.sched_getaffinity(0)), 1)
    found["peak_bytes"] = used.ru_maxrss << 10
    print(json.dumps(found))


def measure(case: str, *arguments: object) -> dict[str, object]:
    """Run a fit in a new process and return what it printed."""
    command = [sys.executable, __file__, "--child", case, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def show(text: str) -> None:
    """Show progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def dense(path: Path, name: str, cache: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure a dense fit beside bare reading."""
    with cached(path, cache):
        found = measure("dense", path, path.with_name("truth.npy"), name, options.memory)
        bare = measure("bare", path, found["passes"])
    seconds, reading = found["seconds"], bare["reading"]
    larger = max(reading, found["computing"])
    case = f"dense {options.rows} x {COLUMNS}, memory={options.memory}"
    return {"case": case, "cache": cache, "limit_bytes": options.limit} | found | {
        "reading": round(reading, 1), "times_reading": round(seconds / reading, 2),
        "times_larger": round(seconds / larger, 2),
    }  # fmt: skip


def report(row: dict[str, object]) -> None:
    """Print what was measured."""
    show("")
    limit = f" (limit {row['limit_bytes'] / 1e6:.0f} MB)"
    reads = ""
    if "passes" in row:
        reads = f", {row['cache']}, {row['passes']:.1f} passes, sine {row['sine']:.1e}"
    print(f"{row['case']}, {row['method']}: {row['rounds']} rounds{reads}, "
          f"peak {row['peak_bytes'] / 1e6:.0f} MB{limit}, {row['seconds']} s")  # fmt: skip
    if reads:
        print(f"    bare reading {row['reading']} s, so {row['times_reading']} times as long; "
              f"computing {row['computing']} s, {row['times_larger']} times the larger of both",
              flush=True)  # fmt: skip


def enter(output: str | None, row: dict[str, object]) -> None:
    """Write a row in the place of what the file had of it."""
    if output is None:
        return
    kept, same = [], ("case", "method", "cache")
    if Path(output).exists():
        with open(output, newline="", encoding="utf-8") as stream:
            kept = list(csv.DictReader(stream))
    new = {name: str(row.get(name, "")) for name in FIELDS}
    others = [old for old in kept if any(old[name] != new[name] for name in same)]
    with open(output, "w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        table.writeheader()
        table.writerows([*others, new])


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_500_000, help="of the dense matrix")
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--limit", type=float, default=1.6e9, help="of memory, in bytes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", default=",".join(CASES), help="'none' only writes the matrix")
    parser.add_argument("--caches", default="warm,cold")
    parser.add_argument("--folder", help="where the matrix is, or is written and stays")
    parser.add_argument("--output", help="CSV file to write")
    options = parser.parse_args()
    same = {"seed": options.seed, "version": lp.__version__}
    cases = options.cases.split(",")
    with tempfile.TemporaryDirectory(prefix="localpower-") as temporary:
        path = Path(options.folder or temporary, "rows.npy")
        if cases != ["sparse"] and not path.with_name("truth.npy").exists():
            np.save(path.with_name("truth.npy"), write_rows(path, options.rows, options.seed))
        for name in (name for name in METHODS if name in cases):
            for cache in options.caches.split(","):
                row = dense(path, name, cache, options) | same
                report(row)
                enter(options.output, row)
    for steps in (1, 4) if "sparse" in cases else ():
        row = {"case": "sparse 100000 x 1000000", "method": f"p = {steps}"} | same
        row |= measure("sparse", options.seed, steps)
        report(row)
        enter(options.output, row)


if __name__ == "__main__":
    child(sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main()
