"""The local product Z ↦ Aᵀ(AZ): ours, numpy's or scipy's plain expression, and the machine's limit.

    python benchmarks/kernel.py [--output kernel.csv]

All are measured in turns in one run, the best of several counts. Ours is what a fit does: as many
shards as cores, each with BLAS at one thread, on the default engine's pool; the plain expression
has all BLAS threads. The limit is the larger of the bytes over the measured read bandwidth and the
operations over the measured rate of matrix multiplication, on all cores; BLAS may have narrower
vectors than ours, so a share may be above 1. Of sparse rows it is also what a loop takes that does
nothing but fetch the row of Z and the row of Y that each entry names, and write the latter: a few
lines of C, where there is a compiler.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

import localpower as lp
from localpower.worker import kernels
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Shard

CORES = len(os.sched_getaffinity(0))
PAUSE = 0.1  # seconds; OpenBLAS's threads keep a core busy for a while after their work
CASES = [
    ("dense", 500_000, 100, 10, "float64", None),
    ("dense", 500_000, 100, 10, "float32", None),
    ("dense, centred", 500_000, 100, 10, "float64", "center"),
    ("dense", 500_000, 100, 32, "float64", None),
    ("dense", 50_000, 1000, 10, "float64", None),
    ("dense", 50_000, 1000, 32, "float64", None),
    ("dense", 20_000, 5000, 10, "float64", None),
    ("dense", 20_000, 5000, 32, "float64", None),
    ("CSR 0.5 %", 200_000, 5000, 10, "float64", 0.005),
    ("CSR 0.5 %", 200_000, 5000, 10, "float32", 0.005),
    ("CSR 0.5 %", 200_000, 5000, 32, "float64", 0.005),
]


GATHERS = """
#include <stddef.h>
#include <stdint.h>
enum { r = WIDTH }; /* known, so that the sums are kept in registers, as ours are */
void touch(ptrdiff_t n, const int32_t *column, const double *Z, double *Y) {
  double sums[r] = {0};
  for (ptrdiff_t k = 0; k < n; k++) {
    const double *z = Z + column[k] * r;
    double *y = Y + column[k] * r;
    for (ptrdiff_t c = 0; c < r; c++) sums[c] += z[c], y[c] += 1;
  }
  for (ptrdiff_t c = 0; c < r; c++) Y[c] += sums[c];
}
"""


def best(calls: dict[Callable[[], object], int], repeats: int) -> list[float]:
    """Seconds of each call with so many BLAS threads, taken in turns; the best of `repeats`."""
    times = {call: [] for call in calls}
    for _ in range(repeats):
        for call, threads in calls.items():
            with threadpool_limits(threads, "blas"):
                time.sleep(PAUSE)
                start = time.perf_counter()
                call()
                times[call].append(time.perf_counter() - start)
    return [min(taken) for taken in times.values()]


def gemm_rate(dtype: str, repeats: int) -> float:
    """Operations a second of one large matrix product per core, all cores at once."""
    size = 1500
    A = np.ones((size, size), dtype)
    with ThreadPoolExecutor(CORES) as pool:
        (seconds,) = best({lambda: list(pool.map(lambda _: A @ A, range(CORES))): 1}, repeats)
    return CORES * 2 * size**3 / seconds


def bandwidth(repeats: int) -> float:
    """Bytes a second that all cores read from memory."""
    A = np.ones(CORES << 25)
    parts = np.split(A, CORES)
    with ThreadPoolExecutor(CORES) as pool:
        (seconds,) = best({lambda: list(pool.map(np.max, parts)): 1}, repeats)
    return A.nbytes / seconds


def gather_seconds(X: object, r: int, repeats: int) -> float:
    """Seconds that fetching rows of Z and of Y takes, for all entries, on all cores at once."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sparse.issparse(X):
        return 0.0
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "touch.c"), Path(folder, "touch.so")
        source.write_text(GATHERS.replace("WIDTH", str(r)), encoding="utf-8")
        flags = ["-O3", "-march=native", "-fPIC", "-shared"]
        subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
        touch = ctypes.CDLL(str(library)).touch
    touch.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 3]
    parts = [np.ascontiguousarray(part) for part in np.array_split(X.indices, CORES)]
    places = [(np.zeros((X.shape[1], r)), np.zeros((X.shape[1], r))) for _ in parts]

    def one(part: np.ndarray, Z: np.ndarray, Y: np.ndarray) -> None:
        touch(len(part), part.ctypes.data, Z.ctypes.data, Y.ctypes.data)

    with ThreadPoolExecutor(CORES) as pool:
        calls = {lambda: list(pool.map(lambda job: one(job[0], *job[1]),
                                       zip(parts, places, strict=True))): 1}  # fmt: skip
        return best(calls, repeats)[0]


def matrix(rows: int, columns: int, dtype: str, density: float | str | None) -> object:
    """Make the rows."""
    rng = np.random.default_rng(0)
    if isinstance(density, float):
        return sparse.random_array((rows, columns), density=density, format="csr", rng=rng).astype(
            dtype
        )
    return rng.standard_normal((rows, columns), dtype=dtype)


def in_shards(X: object, centred: bool) -> list[LocalMatrix]:
    """One shard per core, as a fit places them."""
    ends = np.linspace(0, X.shape[0], CORES + 1).astype(int)
    shards = [X[a:b] for a, b in pairwise(ends)]
    matrices = [LocalMatrix(Shard((rows,), X.shape[1], X.dtype)) for rows in shards]
    for each in matrices:
        each.prepare(np.full(X.shape[1], 0.5) if centred else None, 1.0)
    return matrices


def measure(case: tuple, repeats: int) -> dict[str, object]:
    """Compare the ways on one case."""
    name, rows, columns, r, dtype, kind = case
    X = matrix(rows, columns, dtype, kind)
    Z = np.linalg.qr(np.random.default_rng(1).standard_normal((columns, r)))[0].astype(dtype)
    size = X.nbytes if isinstance(X, np.ndarray) else X.data.nbytes + X.indices.nbytes
    entries = X.size if isinstance(X, np.ndarray) else X.nnz
    shift = np.full(columns, 0.5, dtype)
    with ThreadPoolExecutor(CORES) as pool:
        shards = in_shards(X, kind == "center")

        def ours() -> object:
            return sum(pool.map(lambda shard: shard.product(Z), shards))

        def plain() -> object:
            if kind == "center":
                return (X - shift).T @ ((X - shift) @ Z)
            return X.T @ (X @ Z)

        error = np.abs(ours() - plain()).max() / np.abs(plain()).max()
        mine, theirs = best({ours: 1, plain: CORES}, repeats)
    gathers = gather_seconds(X, r, repeats)
    limit = max(size / bandwidth(3), 4 * entries * r / gemm_rate(dtype, 3), gathers)
    return {
        "case": name, "rows": rows, "columns": columns, "r": r, "dtype": dtype,
        "plain_ms": round(1e3 * theirs, 1), "ours_ms": round(1e3 * mine, 1),
        "limit_ms": round(1e3 * limit, 1),
        "gathers_ms": round(1e3 * gathers, 1), "speedup": round(theirs / mine, 2),
        "share_of_limit": round(limit / mine, 2), "difference": f"{error:.0e}",
        "kernels": "compiled" if kernels.LIBRARY else "numpy", "cores": CORES,
        "version": lp.__version__,
    }  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", help="CSV file to write")
    options = parser.parse_args()
    print(f"{'case':<15} {'rows':>7} {'columns':>7} {'r':>3} {'dtype':<8} {'plain':>8} {'ours':>8} "
          f"{'limit':>8} {'speedup':>8} {'of limit':>8}")  # fmt: skip
    rows = []
    for case in CASES:
        row = measure(case, options.repeats)
        rows.append(row)
        print(f"{row['case']:<15} {row['rows']:>7} {row['columns']:>7} {row['r']:>3} "
              f"{row['dtype']:<8} {row['plain_ms']:>5} ms {row['ours_ms']:>5} ms "
              f"{row['limit_ms']:>5} ms {row['speedup']:>8} {row['share_of_limit']:>8.0%}",
              flush=True)  # fmt: skip
    if options.output is not None:
        with open(options.output, "w", newline="", encoding="utf-8") as stream:
            table = csv.DictWriter(stream, list(rows[0]))
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
