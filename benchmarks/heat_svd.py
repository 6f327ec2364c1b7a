"""On MPI: ours beside Heat's hierarchical and randomised SVD, on the same rows in the same job.

    pip install torch mpi4py mpich; pip install --no-deps heat
    mpiexec -n 2 python benchmarks/heat_svd.py

Every rank has its rows. Times are the best of several, in turns, with one BLAS thread a rank; the
sine is of the angle between what was found and the right singular vectors that numpy finds.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_limits

import localpower as lp

VISION = ("torchvision", "torchvision.datasets", "torchvision.transforms")
FIELDS = ("rows", "columns", "ranks", "what", "seconds", "sine", "ratio_to_ours", "seed", "version")


def heat() -> Any:
    """Import Heat; its part for images is not used, so that torchvision need not be there."""
    parts = {name: types.ModuleType(name) for name in VISION}
    parts["torchvision"].__path__ = []
    for name, attribute in (("datasets", "MNIST"), ("transforms", "Compose")):
        setattr(parts["torchvision"], name, parts[f"torchvision.{name}"])
        setattr(parts[f"torchvision.{name}"], attribute, object)
    sys.modules.update(parts)
    import heat
    import torch

    torch.set_num_threads(1)
    return heat


def rows_of(rank: int, rows: int, columns: int, seed: int) -> np.ndarray:
    """Rows of a rank: a spectrum that falls like 1/j, and noise."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((columns, columns)))[0]
    g = np.random.default_rng([seed, rank]).standard_normal((rows, columns))
    return g / np.arange(1, columns + 1) @ basis


def right_vectors(found: Any) -> np.ndarray:
    """V of what Heat returns, as (d, k); some of its functions return the transpose."""
    V = found[2].resplit(None).numpy()
    return V if V.shape[0] > V.shape[1] else V.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=50_000, help="of a rank")
    parser.add_argument("--columns", type=int, default=500)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", help="CSV file to write")
    o = parser.parse_args()
    comm, ht = MPI.COMM_WORLD, heat()
    mine = rows_of(comm.rank, o.rows, o.columns, o.seed)
    whole = ht.array(mine, is_split=0)
    gram = comm.allreduce(mine.T @ mine)
    truth = np.linalg.eigh(gram)[1][:, ::-1][:, : o.rank]

    def ours(**options: Any) -> np.ndarray:
        result = lp.svd(mine, o.rank, engine=comm, rng=o.seed, progress=False, **options)
        return result.components.T

    def hierarchical() -> np.ndarray:
        found = ht.linalg.hsvd_rank(whole, o.rank, compute_sv=True, safetyshift=10)
        return right_vectors(found)

    def randomised() -> np.ndarray:
        found = ht.linalg.rsvd(whole, o.rank, n_oversamples=10, power_iter=0)
        return right_vectors(found)

    runs: dict[str, Callable[[], np.ndarray]] = {
        "localpower, auto to 1e-8": ours,
        "localpower, local_ritz to 1e-8": lambda: ours(method="local_ritz", tol=1e-8),
        "heat hsvd_rank": hierarchical,
        "heat rsvd": randomised,
    }
    best, sines = dict.fromkeys(runs, np.inf), {}
    with threadpool_limits(1):
        for _ in range(o.repeat):
            for name, run in runs.items():
                comm.Barrier()
                start = time.perf_counter()
                V = run()
                comm.Barrier()
                best[name] = min(best[name], time.perf_counter() - start)
                sines[name] = lp.subspace_distance(truth, np.linalg.qr(V)[0])
    if comm.rank:
        return
    first = next(iter(best.values()))
    found = []
    for name, seconds in best.items():
        print(f"{name:<32} {seconds:8.3f} s  sine {sines[name]:.1e}  {seconds / first:6.2f} x ours")
        found.append({
            "rows": o.rows * comm.size, "columns": o.columns, "ranks": comm.size, "what": name,
            "seconds": round(seconds, 4), "sine": f"{sines[name]:.1e}",
            "ratio_to_ours": round(seconds / first, 2), "seed": o.seed,
            "version": lp.__version__,
        })  # fmt: skip
    if o.output:
        with open(o.output, "w", newline="", encoding="utf-8") as stream:
            table = csv.DictWriter(stream, FIELDS)
            table.writeheader()
            table.writerows(found)


if __name__ == "__main__":
    main()
