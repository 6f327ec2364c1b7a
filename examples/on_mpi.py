"""PCA on an MPI job: ``mpiexec -n 4 python -m mpi4py examples/on_mpi.py``."""

import time

import numpy as np
from mpi4py import MPI

import localpower as lp

COMM, COLUMNS = MPI.COMM_WORLD, 200


def load(rank):
    """The rows of one rank; here they are made up, elsewhere they are read from its own disk."""
    rng = np.random.default_rng(rank)
    mixing = np.random.default_rng(99).standard_normal((COLUMNS, COLUMNS))
    return (rng.standard_normal((20_000, COLUMNS)) * 0.9 ** np.arange(COLUMNS)) @ mixing


def main():
    """Fit together, then compare with what rank 0 finds in the rows of all."""
    started = time.perf_counter()
    result = lp.pca(load, 5, method="local_ritz", tol=1e-8, engine=COMM, rng=0)
    seconds = time.perf_counter() - started
    scores = result.transform(load(COMM.rank))  # each rank projects its own rows
    spread = COMM.gather(scores[:, 0].var())
    if COMM.rank:
        return
    print(f"{result.run['rows']} rows on {COMM.size} ranks, {len(result.history)} rounds")
    print(f"{seconds:.2f} s with making the rows; {result.ledger.bytes_up / 1e3:.0f} kB came up")
    print("singular values ", result.singular_values.round(2))
    rows = np.concatenate([load(rank) for rank in range(COMM.size)])
    exact = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:5]
    print(f"off by at most   {np.abs(result.singular_values / exact - 1).max():.1e}")
    print("variance of the first score on each rank", np.round(spread, 1))


if __name__ == "__main__":
    main()
