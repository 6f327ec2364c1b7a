"""What a fit takes of memory and of the disk, for data that do not fit in memory.

    python benchmarks/larger_than_memory.py                 # 12 GB dense, then the wide sparse one
    python benchmarks/larger_than_memory.py --rows 150000   # smaller

The dense matrix is written by this script, in a temporary directory, and deleted afterwards. Its
rows are drawn alike, so that shards resemble each other. Every fit is a process of its own, whose
peak memory is that of the whole process, Python included.
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
from pathlib import Path

import numpy as np

import localpower as lp

COLUMNS, RANK, RATIO, PLANTED, GOAL = 1000, 10, 0.78, 40, 1e-2
SPARSE = 100_000, 1_000_000, 20  # rows, columns, entries in a row
FIELDS = ("case", "p", "rounds", "sine", "bytes_read", "passes", "peak_bytes", "limit_bytes",
          "seconds", "seed", "version")  # fmt: skip


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


def fit_dense(path: str, truth: str, steps: int, memory: str) -> dict[str, object]:
    """Fit until the goal is reached; in a process of its own."""
    target = np.load(truth)
    sine = 1.0

    def near(record: lp.Record, state: object) -> bool:
        nonlocal sine
        sine = lp.subspace_distance(target, state.basis)  # type: ignore[attr-defined]
        show(f"p = {steps}, round {record.round}: sine {sine:.2e}")
        return sine <= GOAL

    method = lp.LocalPower(steps=steps)
    result = lp.svd(path, RANK, method, memory=memory, max_rounds=200, rng=0, callback=near)
    read = result.ledger.phase("iterate").bytes_read
    return {"rounds": len(result.history), "sine": sine, "bytes_read": read,
            "passes": read / os.path.getsize(path)}  # fmt: skip


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
    """Do one fit and print what it took."""
    start = time.perf_counter()
    if arguments[0] == "dense":
        found = fit_dense(arguments[1], arguments[2], int(arguments[3]), arguments[4])
    else:
        found = fit_sparse(int(arguments[1]), int(arguments[2]))
    found["seconds"] = round(time.perf_counter() - start, 1)
    found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
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


def report(rows: list[dict[str, object]], output: str | None) -> None:
    """Print the table, and write it if asked to."""
    show("")
    for row in rows:
        limit = f" (limit {row['limit_bytes'] / 1e6:.0f} MB)"
        reads = f", {row['passes']:.1f} passes, sine {row['sine']:.1e}" if "passes" in row else ""
        print(f"{row['case']}, p = {row['p']}: {row['rounds']} rounds{reads}, "
              f"peak {row['peak_bytes'] / 1e6:.0f} MB{limit}, {row['seconds']} s")  # fmt: skip
    if output is not None:
        with open(output, "w", newline="", encoding="utf-8") as stream:
            table = csv.DictWriter(stream, FIELDS)
            table.writeheader()
            table.writerows(rows)


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_500_000, help="of the dense matrix")
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--limit", type=float, default=1.6e9, help="of memory, in bytes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", help="CSV file to write")
    options = parser.parse_args()
    same = {"seed": options.seed, "version": lp.__version__}
    rows = []
    with tempfile.TemporaryDirectory(prefix="localpower-") as folder:
        path, truth = Path(folder, "rows.npy"), Path(folder, "truth.npy")
        np.save(truth, write_rows(path, options.rows, options.seed))
        for steps in (1, 8):
            found = measure("dense", path, truth, steps, options.memory)
            case = f"dense {options.rows} x {COLUMNS}, memory={options.memory}"
            rows.append({"case": case, "p": steps, "limit_bytes": options.limit} | found | same)
    for steps in (1, 4):
        found = measure("sparse", options.seed, steps)
        rows.append({"case": "sparse 100000 x 1000000", "p": steps} | found | same)
    report(rows, options.output)
    saved = rows[0]["bytes_read"] / rows[1]["bytes_read"]
    print(f"bytes read from files, p = 1 over p = 8: {saved:.1f}")


if __name__ == "__main__":
    child(sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main()
