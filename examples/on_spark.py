"""PCA of digits in a Spark DataFrame: rows stay on the executors, and a round is one job."""

import os
import sys
import time

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors take the same Python

import numpy as np
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

import localpower as lp

LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main():
    X = load_digits().data
    session = SparkSession.builder.master("local[2,4]").config(map=LOCAL).getOrCreate()
    rows = session.sparkContext.parallelize(X.tolist(), 4)
    frame = session.createDataFrame(rows, [f"pixel{j}" for j in range(64)])
    start = time.perf_counter()
    result = lp.pca(frame, 5, engine=session, rng=0)
    seconds, run, moved = time.perf_counter() - start, result.run, result.ledger.bytes_up / 1e3

    exact = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:5]
    print(f"{run['rows']} digits in {run['workers']} partitions, method {run['method']}:")
    print(f"{result.ledger.rounds} rounds, {moved:.0f} kB from the executors, {seconds:.1f} s")
    print(f"differs from numpy by {np.abs(result.singular_values / exact - 1).max():.0e}")
    session.stop()


main()
