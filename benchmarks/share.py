"""Components that explain nine tenths: how many each method finds, and in how many rounds.

    LOCALPOWER_DATA=FOLDER python benchmarks/share.py [--output benchmarks/share.csv]

The paper's data sets, columns divided by their largest magnitude and centred, and five spectra, in
8 shards of shuffled rows. A run is asked for the share, and one with the same seed for the number
that LAPACK finds. `boundary` is how near the share is to that of another number. Cases that the
output has already are not run again.
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

PART, SHARDS, TOL, MOST, PATIENCE = 0.9, 8, 1e-4, 2000, 1.3
METHODS = ("auto", "local_ritz", "block_krylov", "block_krylov:start=random", "block_lanczos",
           "gram", "tsqr", "dpi", "local_power", "local_power:schedule=halving")  # fmt: skip
SPECTRA = {
    "fast polynomial": lambda j: j**-1.5,
    "slow polynomial": lambda j: j**-0.5,
    "exponential 0.95": lambda j: 0.95**j,
    "steps": lambda j: 2.0 ** -((j - 1) // 10),
    "one large, the rest flat": lambda j: np.where(j == 1, 30.0, 1 + 0.01 * j),
}
FIELDS = ("data", "rows", "columns", "method", "part", "true", "boundary", "found", "proven", "p",
          "reason", "rounds", "bytes", "told_reason", "told_rounds", "told_bytes", "seed",
          "version")  # fmt: skip


def with_spectrum(name: str, rows: int = 8000, columns: int = 200) -> np.ndarray:
    """Rows of independent normal numbers, turned, with prescribed standard deviations."""
    rng = np.random.default_rng(0)
    sizes = np.sort(SPECTRA[name](np.arange(1.0, columns + 1)))[::-1]
    mixing = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    return (rng.standard_normal((rows, columns)) * sizes) @ mixing


def cases(data_dir: str | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and rows."""
    for name in SPECTRA:
        yield name, with_spectrum(name)
    for name in registry.DATA_SETS:
        if registry.find(name, data_dir) is not None:
            X = load(name, "uniform", data_dir).X
            yield name, X[np.random.default_rng(0).permutation(len(X))]


def truth(X: np.ndarray, part: float) -> tuple[int, float]:
    """The number of components as scikit-learn counts it, and the distance to the next boundary."""
    sizes = np.linalg.svd(np.linalg.qr(X - X.mean(axis=0), mode="r"), compute_uv=False)
    sums = np.cumsum(sizes**2) / np.sum(sizes**2)
    return int(np.searchsorted(sums, part, side="right")) + 1, float(np.abs(sums - part).min())


def measure(X: np.ndarray, method: str, count: int, part: float, seed: int) -> dict:
    """Run a method with the share and with the number."""
    found = {}
    for prefix, rank in (("", part), ("told_", count)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lp.ConvergenceWarning)
            result = lp.pca(X, rank, method, tol=TOL, max_rounds=MOST, workers=SHARDS, rng=seed)
        iterate = result.ledger.phase("iterate")
        found |= {
            f"{prefix}reason": result.reason,
            f"{prefix}rounds": iterate.rounds,
            f"{prefix}bytes": iterate.bytes_up + iterate.bytes_down,
        }
        if result.reach is not None:
            found |= {"found": len(result.components), "proven": result.reach.proven}
            found |= {"p": result.reach.p}
    return found


def main() -> None:
    """Measure what is missing, and write it as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="benchmarks/share.csv")
    options = parser.parse_args()
    path = Path(options.output)
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    done = {(row["data"], row["method"]) for row in rows}
    with path.open("a", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        for name, X in cases(options.data_dir):
            left = [method for method in METHODS if (name, method) not in done]
            if not left:
                continue
            count, boundary = truth(X, PART)
            same = {"data": name, "rows": X.shape[0], "columns": X.shape[1], "part": PART,
                    "true": count, "boundary": f"{boundary:.1e}", "seed": options.seed,
                    "version": lp.__version__}  # fmt: skip
            for method in left:
                row = same | {"method": method}
                row |= measure(X, method, count, PART, options.seed)
                if row["found"] != count or row["rounds"] > PATIENCE * row["told_rounds"]:
                    print(f"not as it should be: {row}", file=sys.stderr)
                table.writerow(row)
                stream.flush()


if __name__ == "__main__":
    main()
