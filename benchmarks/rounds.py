"""Rounds, hops and bytes that each method takes to a true angle of 1e-4 and of 1e-8.

    python benchmarks/rounds.py [--data-dir FOLDER] [--output benchmarks/rounds.csv]
    python benchmarks/rounds.py --seeds 1 2 --methods block_krylov local_ritz "local_ritz w=20"

The paper's data sets at k = 5, columns divided by their largest magnitude, rows shuffled, in
max(n // 1000, 3) and in 8 shards; and synthetic spectra, with shards alike and sorted. The truth is
a singular value decomposition of all rows. "auto, wide area" is what `plan` chooses for that one.
Cases that the output has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import localpower as lp
from localpower.paper import datasets as registry
from localpower.paper.problems import load

RANK, GOALS, MOST = 5, (1e-4, 1e-8), 1000
PATIENCE = 50  # rounds without progress after which a method is given up
METHODS = {
    "dpi": f"dpi:width={RANK}",
    "local_power p=4": lp.LocalPower(steps=4, width=RANK),
    "local_power halving": lp.LocalPower(steps=4, schedule="halving", width=RANK),
    "local_power adaptive": lp.LocalPower(steps=4, schedule="adaptive", width=RANK),
    "gram": "gram",
    "tsqr": "tsqr",
    "block_krylov": "block_krylov",
    "block_krylov random": "block_krylov:start=random",
    "block_lanczos": "block_lanczos",
    "local_ritz": "local_ritz",
    "local_ritz w=20": "local_ritz:start=merged:20",
    "local_ritz w=40": "local_ritz:start=merged:40",
    "local_ritz all+residual": lp.LocalRitz(proposal="all+residual"),
    "auto, wide area": "auto",
}
FIELDS = ("data", "rows", "columns", "shards", "alike", "eta", "method", "goal", "rounds", "hops",
          "bytes", "reached", "seed", "version")  # fmt: skip


def synthetic(name: str, rows: int = 20_000, columns: int = 200) -> np.ndarray:
    """Rows with a prescribed spectrum."""
    j = np.arange(1, columns + 1)
    spectra = {
        "fast polynomial": j**-1.5,
        "slow polynomial": j**-0.5,
        "exponential 0.95": 0.95**j,
        "exponential 0.99": 0.99**j,
        "cluster at k": np.where(np.abs(j - RANK) < 3, 1 - 1e-3 * (j - RANK), 0.5**j + 0.1),
    }
    rng = np.random.default_rng(0)
    mixing = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    return (rng.standard_normal((rows, columns)) * np.sort(spectra[name])[::-1]) @ mixing


def cases(data_dir: str | None) -> Iterator[tuple[str, np.ndarray, int, bool]]:
    """Yield name, rows, number of shards, and whether shards are alike."""
    for name in registry.DATA_SETS:
        if registry.find(name, data_dir) is None:
            continue
        X = load(name, "uniform", data_dir).X
        for shards in (8, max(len(X) // 1000, 3)):
            yield name, X[np.random.default_rng(0).permutation(len(X))], shards, True
    for name in ("fast polynomial", "slow polynomial", "exponential 0.95", "exponential 0.99",
                 "cluster at k"):  # fmt: skip
        X = synthetic(name)
        yield name, X, 8, True
        yield name, X[np.argsort(X @ X[0])], 8, False


def measure(
    X: np.ndarray, target: np.ndarray, shards: int, method: str | lp.methods.Method, seed: int
) -> Iterator[dict]:
    """Run a method until it reaches the last goal; tell what each goal took."""
    reached: list[tuple[float, int]] = []

    def near(record: lp.Record, state: object) -> bool:
        sine = lp.subspace_distance(target, state.basis[:, :RANK])  # type: ignore[attr-defined]
        reached.append((sine, record.round))
        before, lately = reached[:-PATIENCE], reached[-PATIENCE:]
        stalled = bool(before) and min(lately)[0] > 0.99 * min(before)[0]
        return sine <= GOALS[-1] or stalled

    if method == "auto":
        method = lp.plan(X, RANK, workers=shards, latency="wide area").choice.method
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        result = lp.svd(X, RANK, method, workers=shards, max_rounds=MOST, rng=seed, callback=near)
    iterate = result.ledger.phase("iterate")
    for goal in GOALS:
        first = next((number for sine, number in reached if sine <= goal), None)
        records = iterate.records[: _hops(iterate, first)] if first else iterate.records
        used = lp.Ledger(records)
        yield {"goal": goal, "rounds": used.rounds, "hops": used.hops, "reached": first is not None,
               "bytes": used.bytes_up + used.bytes_down}  # fmt: skip


def _hops(ledger: lp.Ledger, rounds: int) -> int:
    """How many records the first so many rounds take, exchanges among them."""
    for number in range(1, ledger.hops + 1):
        if lp.Ledger(ledger.records[:number]).rounds == rounds:
            return number
    return ledger.hops


def main() -> None:
    """Measure what is missing, and write it as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--output", default="benchmarks/rounds.csv")
    options = parser.parse_args()
    path = Path(options.output)
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    keys = "data", "shards", "alike", "method", "seed"
    done = {tuple(row[key] for key in keys) for row in rows}
    with path.open("a", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        for name, X, shards, alike in cases(options.data_dir):
            left = [
                (method, seed) for seed in options.seeds for method in options.methods
                if (name, str(shards), str(alike), method, str(seed)) not in done
            ]  # fmt: skip
            if not left:
                continue
            target = np.linalg.svd(np.linalg.qr(X, mode="r"))[2][:RANK].T
            eta = lp.eta(np.array_split(X, shards)) if X.shape[1] <= 300 and shards < 100 else ""
            same = {"data": name, "rows": X.shape[0], "columns": X.shape[1], "shards": shards,
                    "alike": alike, "eta": eta, "version": lp.__version__}  # fmt: skip
            for method, seed in left:
                if sys.stderr.isatty():
                    print(f"\r\x1b[K{name}, {shards} shards, {method}", end="", file=sys.stderr)
                for found in measure(X, target, shards, METHODS[method], seed):
                    table.writerow(same | {"method": method, "seed": seed} | found)
                stream.flush()


if __name__ == "__main__":
    main()
