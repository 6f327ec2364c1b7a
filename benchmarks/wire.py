"""Bytes against error: what rounded messages save on the way to a certified angle of 1e-8.

    python benchmarks/wire.py [--data-dir FOLDER] [--output benchmarks/wire.csv]

The matrices of `benchmarks/rounds.py` in 8 shards, width k + 5; `saved` is how many times fewer
bytes the iterations moved than with float64. Cases that the output has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np

import localpower as lp

RANK, TOL, SHARDS, MOST = 5, 1e-8, 8, 400
FIELDS = ("data", "rows", "columns", "shards", "alike", "method", "wire", "rounds", "bytes",
          "saved", "certified", "true", "reason", "seed", "version")  # fmt: skip


def main() -> None:
    """Measure what is missing, and write it as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/wire.csv"))
    options = parser.parse_args()
    rounds = runpy.run_path(str(Path(__file__).with_name("rounds.py")))
    path = options.output
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    done = {(row["data"], row["alike"]) for row in rows}
    with path.open("a", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        for name, X, shards, alike in rounds["cases"](options.data_dir):
            if shards != SHARDS or (name, str(alike)) in done:
                continue
            if sys.stderr.isatty():
                print(f"\r\x1b[K{name}", end="", file=sys.stderr)
            for found in measure(X, options.seed):
                table.writerow({"data": name, "rows": X.shape[0], "columns": X.shape[1],
                                "shards": shards, "alike": alike, "seed": options.seed,
                                "version": lp.__version__} | found)  # fmt: skip
            stream.flush()


def measure(X: np.ndarray, seed: int) -> list[dict[str, object]]:
    """Run the methods with every type of message."""
    truth = np.linalg.svd(np.linalg.qr(X, mode="r"))[2][:RANK].T
    found = []
    for method in ("local_ritz", "block_krylov", "dpi"):
        most = 0
        for wire in ("float64", "float32", "bfloat16"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lp.ConvergenceWarning)
                result = lp.svd(X, RANK, f"{method}:wire={wire}", tol=TOL, workers=SHARDS,
                                max_rounds=MOST, rng=seed)  # fmt: skip
            moved = result.ledger.phase("iterate")
            total = moved.bytes_up + moved.bytes_down
            most = most or total
            found.append({
                "method": method, "wire": wire, "rounds": len(result.history), "bytes": total,
                "saved": round(most / total, 3), "certified": f"{result.history[-1].angle:.1e}",
                "true": f"{lp.subspace_distance(truth, result.components.T):.1e}",
                "reason": result.reason,
            })  # fmt: skip
    return found


if __name__ == "__main__":
    main()
