"""A Dask array larger than memory: passes over it, against Dask's own randomised SVD.

    python benchmarks/dask_array.py                      # 20 GB, within 8 GB of memory
    python benchmarks/dask_array.py --gigabytes 0.5      # smaller

Nothing is stored: a block is made on a worker from its number, whenever it is asked for, and the
workers count how often. Rows are ``g S Vᵀ`` with random g, so the true right singular vectors
follow from the small matrix ``S (Σ g gᵀ) S``. Both sides have to come as near to them as ``--tol``;
of `svd_compressed` that run is reported whose ``n_power_iter`` is the first to do so.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dask
import dask.array as da
import numpy as np
import psutil
from distributed import Client, LocalCluster, get_worker

import localpower as lp

COLUMNS, RANK, PLANTED, RATIO = 1000, 10, 200, 0.9
FIELDS = ("gigabytes", "blocks", "what", "iterations", "passes", "seconds", "sine", "peak_bytes",
          "limit_bytes", "seed", "version")  # fmt: skip


def weights(number: int, rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, number]).standard_normal((rows, PLANTED))


def block(scaled: np.ndarray, rows: int, seed: int, block_id: tuple[int, int]) -> np.ndarray:
    """Make a block, and count that."""
    worker = get_worker()
    worker.made = getattr(worker, "made", 0) + 1
    return weights(block_id[0], rows, seed) @ scaled


def moments(number: int, rows: int, seed: int) -> np.ndarray:
    G = weights(number, rows, seed)
    return G.T @ G


def problem(client: Client, size: float, rows: int, seed: int) -> tuple[da.Array, np.ndarray]:
    """Return the array and its true leading right singular vectors, (d, k)."""
    V = np.linalg.qr(np.random.default_rng(seed).standard_normal((COLUMNS, PLANTED)))[0]
    S = RATIO ** np.arange(PLANTED)
    count = max(1, round(size / (rows * COLUMNS * 8)))
    data = da.map_blocks(
        block, (V * S).T, rows, seed, chunks=((rows,) * count, (COLUMNS,)), dtype=float,
        meta=np.empty((0, 0)),
    )  # fmt: skip
    small = client.map(moments, range(count), rows=rows, seed=seed)
    gram = S[:, None] * client.submit(sum, small).result() * S
    return data, V @ np.linalg.eigh(gram)[1][:, ::-1][:, :RANK]


def made(client: Client) -> int:
    return sum(client.run(lambda dask_worker: getattr(dask_worker, "made", 0)).values())


@contextmanager
def peak() -> Iterator[list[int]]:
    """Watch the memory of this process and all that it started."""
    most, done, me = [0], threading.Event(), psutil.Process()

    def resident(process: psutil.Process) -> int:
        try:
            return process.memory_info().rss
        except psutil.NoSuchProcess:
            return 0

    def watch() -> None:
        while not done.wait(0.1):
            most[0] = max(most[0], sum(map(resident, [me, *me.children(recursive=True)])))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def measure(
    client: Client, data: da.Array, truth: np.ndarray, fit: Callable[[], tuple[int, np.ndarray]]
) -> dict[str, object]:
    """Run a fit, which returns its iterations and right vectors; tell what it took."""
    before, start = made(client), time.perf_counter()
    with peak() as most:
        iterations, vectors = fit()
    seconds = time.perf_counter() - start
    passes = (made(client) - before) / data.numblocks[0]
    return {"iterations": iterations, "passes": round(passes, 2), "seconds": round(seconds, 1),
            "sine": lp.subspace_distance(truth, vectors), "peak_bytes": most[0]}  # fmt: skip


def ours(client: Client, data: da.Array, o: argparse.Namespace, method: str):
    def fit() -> tuple[int, np.ndarray]:
        options = {"tol": o.tol, "memory": int(o.keep * 1e9), "rng": o.seed}
        result = lp.svd(data, RANK, method=method, engine=client, **options)
        return len(result.history), result.components.T

    return fit


def theirs(client: Client, data: da.Array, o: argparse.Namespace, power: int):
    def fit() -> tuple[int, np.ndarray]:
        with client.as_current():
            options = {"iterator": o.iterator, "n_power_iter": power, "seed": o.seed}
            _, _, v = da.linalg.svd_compressed(data, RANK, compute=True, **options)
            return power, np.asarray(client.compute(v).result()).T

    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--limit", type=float, default=8.0, help="of memory, in gigabytes")
    parser.add_argument("--keep", type=float, default=0.02, help="of the rows, in gigabytes")
    parser.add_argument("--rows", type=int, default=8000, help="of a block")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--iterator", default="QR", choices=["QR", "power"])
    parser.add_argument("--first", type=int, default=4, help="n_power_iter that is tried first")
    parser.add_argument("--methods", nargs="+", default=["auto", "local_ritz"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", help="CSV file to write, such as benchmarks/dask_array.csv")
    o = parser.parse_args()
    same = {"gigabytes": o.gigabytes, "limit_bytes": int(o.limit * 1e9), "seed": o.seed,
            "version": lp.__version__}  # fmt: skip
    found: list[dict[str, object]] = []
    with (
        tempfile.TemporaryDirectory(prefix="localpower-") as folder,
        LocalCluster(
            n_workers=o.workers, threads_per_worker=1, host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=int(0.9 * o.limit * 1e9 / o.workers), local_directory=folder,
        ) as cluster,
        Client(cluster) as client,
        dask.config.set({"array.chunk-size": "1GiB"}),
    ):  # fmt: skip
        data, truth = problem(client, o.gigabytes * 1e9, o.rows, o.seed)
        print(f"{data.nbytes / 1e9:.2f} GB in {data.numblocks[0]} blocks, made anew in every pass")
        for method in o.methods:
            row = measure(client, data, truth, ours(client, data, o, method))
            found.append({"what": f"localpower, {method}"} | row)
            tell(found[-1])
        power = o.first
        while True:
            row = measure(client, data, truth, theirs(client, data, o, power))
            tell({"what": f"svd_compressed, {o.iterator}"} | row)
            if row["sine"] <= o.tol or power >= 40:
                break
            power += 1
        found.append({"what": f"svd_compressed, {o.iterator}"} | row)
        blocks = data.numblocks[0]
    last = found[-1]
    for row in found[:-1]:
        print(f"{last['what']} over {row['what']}: {last['passes'] / row['passes']:.1f} x the "
              f"passes, {last['seconds'] / row['seconds']:.1f} x the seconds")  # fmt: skip
    if o.output:
        with open(o.output, "w", newline="", encoding="utf-8") as stream:
            table = csv.DictWriter(stream, FIELDS)
            table.writeheader()
            table.writerows(same | {"blocks": blocks} | row for row in found)


def tell(row: dict[str, object]) -> None:
    print(f"{row['what']}: {row['iterations']} iterations, {row['passes']} passes, "
          f"{row['seconds']} s, sine {row['sine']:.1e}, peak {row['peak_bytes'] / 1e9:.2f} GB",
          flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
