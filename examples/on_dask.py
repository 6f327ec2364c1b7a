"""PCA of a Dask array whose blocks never leave the workers.

python examples/on_dask.py [picture]
"""

import sys
from pathlib import Path

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from matplotlib.figure import Figure

import localpower as lp

ROWS, COLUMNS, CHUNK = 200_000, 100, 25_000


def main(path):
    """Fit on a cluster that the user has open, and compare with numpy."""
    rng = da.random.default_rng(0)
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((COLUMNS, COLUMNS)))[0]
    spread = 0.9 ** np.arange(COLUMNS)
    X = (rng.standard_normal((ROWS, COLUMNS), chunks=(CHUNK, -1)) * spread) @ turn.T + 3.0
    X = X.rechunk({1: -1})

    local = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1"}
    with (
        LocalCluster(dashboard_address="127.0.0.1:0", **local) as cluster,
        Client(cluster) as client,
    ):
        result = lp.pca(X, 5, method="local_ritz", tol=1e-6, engine=client, rng=0)
        C = ((X - X.mean(axis=0)).T @ (X - X.mean(axis=0))).compute()

    moved = result.ledger.bytes_up + result.ledger.bytes_down
    exact = np.linalg.eigh(C)[1][:, ::-1][:, :5]
    print(f"{X.nbytes / 1e6:.0f} MB in {X.numblocks[0]} blocks, a shard each, on two workers")
    print(f"rounds: {result.ledger.rounds}, ended by: {result.run['reason']}")
    print(f"moved to and from all shards: {moved / 1e6:.2f} MB")
    print(f"sine of the angle to numpy's: {lp.subspace_distance(exact, result.components.T):.1e}")
    print(f"explained variance: {result.explained_variance_ratio.round(3)}")
    draw(result, path)
    print(f"-> {path}")


def draw(result, path):
    """How much of the variance each component has, and what it took to know."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    share = 100 * result.explained_variance_ratio
    axes.bar(range(1, len(share) + 1), share, color="#0072B2")
    axes.set(xlabel="component", ylabel="variance, %", xticks=range(1, len(share) + 1))
    moved = (result.ledger.bytes_up + result.ledger.bytes_down) / 1e6
    last = result.history[-1]
    about = f"{last.round} rounds, {moved:.2f} MB moved, certified to {last.angle:.0e}"
    axes.set_title(f"A Dask array of {8 * ROWS * COLUMNS / 1e6:.0f} MB: {about}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":  # Dask starts processes that import this file
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/on_dask.png"))
