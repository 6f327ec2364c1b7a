"""PCA of digits in a Ray dataset: blocks stay in the object store, and bases go to the actors."""

import logging
import time

import numpy as np
import ray.data
from sklearn.datasets import load_digits

import localpower as lp


def main():
    X = load_digits().data
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with lp.connect("ray:2") as engine:  # starts Ray on this machine, and stops it at the end
        ray.data.DataContext.get_current().enable_progress_bars = False
        data = ray.data.from_numpy(np.array_split(X, 4))

        start = time.perf_counter()
        result = lp.pca(data, 5, engine=engine, rng=0)
        seconds, run, moved = time.perf_counter() - start, result.run, result.ledger.bytes_up / 1e3

    exact = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:5]
    print(f"{run['rows']} digits in {run['workers']} blocks, method {run['method']}:")
    print(f"{result.ledger.rounds} rounds, {moved:.0f} kB from the actors, {seconds:.1f} s")
    print(f"differs from numpy by {np.abs(result.singular_values / exact - 1).max():.0e}")


main()
