"""Rounds and hops until a certified angle of 1e-8, and how sure the certificate is.

    python benchmarks/certified.py [--data-dir FOLDER] [--output benchmarks/certified.csv]

The matrices and shards of `rounds.py`. A run ends when it says that it has converged: the angle is
at most 1e-8, and it is proven, or the chance that something is hidden is at most 1e-6. `sine` is
the true error. Cases that the output has are not run again. Rows whose label is ``before`` were
measured with LocalRitz before it had a merged start; `proven` was called rigorous then.
"""

from __future__ import annotations

import argparse
import csv
import runpy
import sys
import warnings
from pathlib import Path
from statistics import median

import numpy as np

import localpower as lp

HERE = Path(__file__).parent
RANK, TOL, MOST = 5, 1e-8, 300
METHODS = ("local_ritz", "local_ritz:start=merged:20", "block_krylov", "block_lanczos")
FIELDS = ("label", "data", "rows", "columns", "shards", "alike", "method", "rounds", "hops",
          "words", "reason", "angle", "proven", "p", "sine", "seed", "version")  # fmt: skip


def measure(X: np.ndarray, target: np.ndarray, shards: int, method: str, seed: int) -> dict:
    """Run a method until it says that it has converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        result = lp.svd(X, RANK, method=method, workers=shards, tol=TOL, max_rounds=MOST, rng=seed)
    iterate, last = result.ledger.phase("iterate"), result.history[-1]
    proven = getattr(last, "proven", getattr(last, "rigorous", None))
    return {"rounds": iterate.rounds, "hops": iterate.hops,
            "words": iterate.words_up + iterate.words_down, "reason": result.reason,
            "angle": f"{last.angle:.2g}", "proven": proven, "p": getattr(last, "p", ""),
            "sine": f"{lp.subspace_distance(target, result.components.T):.2g}"}  # fmt: skip


def summary(rows: list[dict]) -> str:
    """Compare LocalRitz with what it was before, case by case."""
    key = ("data", "shards", "alike")
    hops = {
        label: {tuple(row[k] for k in key): int(row["hops"]) for row in rows
                if row["label"] == label and row["method"] == "local_ritz"}
        for label in ("before", "now")
    }  # fmt: skip
    both = hops["before"].keys() & hops["now"].keys()
    saved = [1 - hops["now"][case] / hops["before"][case] for case in both]
    lines = [f"LocalRitz in {len(both)} cases: hops fell by {median(saved):.0%} in the median, by "
             f"{min(saved):.0%} at least"] if both else []  # fmt: skip
    for label in ("before", "now"):
        for method in METHODS:
            mine = [row for row in rows if (row["label"], row["method"]) == (label, method)]
            if mine:
                proven = sum(row["proven"] == "True" for row in mine)
                others = [float(row["p"]) for row in mine if row["proven"] != "True" and row["p"]]
                p = f"; median p of the others {median(others):.1g}" if others else ""
                lines.append(f"{label}, {method}: {proven} of {len(mine)} proven{p}")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, write it as it comes, and sum it up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", default="now")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--output", type=Path, default=HERE / "certified.csv")
    options = parser.parse_args()
    path = options.output
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    done = {tuple(row[k] for k in ("label", "data", "shards", "alike", "method")) for row in rows}
    cases = runpy.run_path(str(HERE / "rounds.py"))["cases"]
    with path.open("a", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        for name, X, shards, alike in cases(options.data_dir):
            target = None
            for method in options.methods:
                if (options.label, name, str(shards), str(alike), method) in done:
                    continue
                if target is None:
                    target = np.linalg.svd(np.linalg.qr(X, mode="r"))[2][:RANK].T
                if sys.stderr.isatty():
                    print(f"\r\x1b[K{name}, {shards} shards, {method}", end="", file=sys.stderr)
                found = measure(X, target, shards, method, options.seed)
                table.writerow({"label": options.label, "data": name, "rows": X.shape[0],
                                "columns": X.shape[1], "shards": shards, "alike": alike,
                                "method": method, "seed": options.seed,
                                "version": lp.__version__} | found)  # fmt: skip
                stream.flush()
    print(summary(list(csv.DictReader(path.open(encoding="utf-8")))))


if __name__ == "__main__":
    main()
