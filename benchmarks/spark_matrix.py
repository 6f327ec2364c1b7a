"""SVD of cached Spark rows: ours beside `RowMatrix.computeSVD`, at the same true accuracy.

    python benchmarks/spark_matrix.py                   # prints a table
    python benchmarks/spark_matrix.py --columns 400 --output benchmarks/spark_matrix.csv

Both get the same rows, Gaussian with a slowly decaying spectrum, cached in the same session: ours
from an RDD of blocks, Spark's from an RDD of vectors that its Java side has cached too (without
that it takes several times as long). Spark's goes first, and ours is asked for the accuracy that
it reached. Accuracy is the sine of the largest angle to the components of LAPACK; seconds are the
least of the repeats; jobs are counted by Spark. From 100 columns on Spark switches from the Gram
matrix to ARPACK, which takes a job a product.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
from pyspark import StorageLevel
from pyspark.mllib.linalg import DenseVector
from pyspark.mllib.linalg.distributed import RowMatrix
from pyspark.sql import SparkSession

import localpower as lp

warnings.filterwarnings("ignore", module="pyspark")
CORES = 2
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
FORMAT = "{:>6} {:>7}  {:<30} {:>6} {:>6} {:>9} {:>8}"
FIELDS = ("rows", "columns", "what", "rounds", "jobs", "seconds", "sine")


def main() -> None:
    """Measure both on every width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--columns", type=int, nargs="+", default=[100, 80])
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", help="CSV file to write")
    options = parser.parse_args()
    builder = SparkSession.builder.master(f"local[{CORES},4]")
    session = builder.config(map=SETTINGS).getOrCreate()
    print(FORMAT.format(*FIELDS))
    found: list[tuple[Any, ...]] = []
    try:
        for columns in options.columns:
            found += compare(session, options, columns)
    finally:
        session.stop()
    if options.output:
        with open(options.output, "w", newline="", encoding="utf-8") as stream:
            table = csv.writer(stream)
            table.writerow([*FIELDS, "seed", "version"])
            table.writerows([*row, options.seed, lp.__version__] for row in found)


def compare(session: Any, options: argparse.Namespace, columns: int) -> list[tuple[Any, ...]]:
    """Run both on one matrix; print a line for each and their ratio, and return the lines."""
    lines: list[tuple[Any, ...]] = []
    context, rank = session.sparkContext, options.rank
    rng = np.random.default_rng(options.seed)
    X = rng.standard_normal((options.rows, columns)) * 0.97 ** np.arange(columns)
    truth = np.linalg.svd(np.linalg.qr(X, mode="r"))[2][:rank].T
    jobs = context._jsc.sc().dagScheduler().numTotalJobs

    def timed(run: Callable[[], Any], basis: Callable[[Any], Any]) -> tuple[Any, int, float, float]:
        least = np.inf
        for _ in range(options.repeat):
            before, start = jobs(), time.perf_counter()
            found = run()
            V = basis(found)
            least = min(least, time.perf_counter() - start)
        return found, jobs() - before, least, lp.subspace_distance(truth, V)

    def line(name: str, rounds: Any, count: int, seconds: float, error: float) -> None:
        values = options.rows, columns, name, rounds, count, f"{seconds:.2f}", f"{error:.0e}"
        print(FORMAT.format(*values), flush=True)
        lines.append(values)

    vectors = context.parallelize([DenseVector(row) for row in X], CORES).cache()
    matrix = RowMatrix(vectors)
    held = matrix._java_matrix_wrapper._java_model.rows().cache()
    matrix.numRows()
    held.count()
    _, count, theirs, error = timed(
        lambda: matrix.computeSVD(rank), lambda found: found.V.toArray()
    )
    line("RowMatrix.computeSVD", "", count, theirs, error)
    held.unpersist(False)

    blocks = context.parallelize(np.array_split(X, CORES), CORES)
    blocks = blocks.persist(StorageLevel.MEMORY_AND_DISK)
    blocks.count()
    tol = min(max(error, 1e-12), 1e-3)
    for method in ("auto", "local_ritz"):
        found, count, ours, error = timed(
            lambda method=method: lp.svd(blocks, rank, method=method, tol=tol, max_rounds=100,
                                         engine=session, rng=0),
            lambda found: found.components.T,
        )  # fmt: skip
        name = f"localpower, {found.run['method']}" + (" (auto)" if method == "auto" else "")
        line(name, found.ledger.rounds, count, ours, error)
        print(f"{'':>14} computeSVD takes {theirs / ours:.2f} times as long", flush=True)
    blocks.unpersist()
    vectors.unpersist()
    return lines


if __name__ == "__main__":
    main()
