"""Rounds that methods take to a true angle of 1e-4 and of 1e-8 if a round asks some shards only.

    python benchmarks/participation.py [--data-dir FOLDER] [--output benchmarks/participation.csv]

Three of the paper's data sets at k = 5, columns divided by their largest magnitude, rows shuffled,
in 20 shards, each of which is asked with the chance `rate` in a round. Power methods reuse the last
products of all others; the control leaves these out. Other methods collect. A round is a question
to some shards; `blocks` are those of the method. The angle is that of the leading five Ritz
vectors; `best` is the smallest that was seen. Cases that the output has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import numpy as np

import localpower as lp
from localpower.engines.participation import LastProducts
from localpower.paper import datasets as registry
from localpower.paper.problems import load

RANK, SHARDS, GOALS, MOST = 5, 20, (1e-4, 1e-8), 600
PATIENCE = 60  # blocks without progress after which a method is given up
DATA = ("a9a", "covtype", "w8a")
RATES = (1.0, 0.5, 0.2)
METHODS = {
    "dpi": "dpi:width=10",
    "dpi skipping": "dpi:width=10",
    "local_power halving": "local_power:schedule=halving,width=10",
    "block_krylov random": "block_krylov:start=random",
    "block_krylov": "block_krylov",
    "local_ritz": "local_ritz",
}
FIELDS = ("data", "rows", "columns", "shards", "method", "rate", "seed", "goal", "reached",
          "rounds", "blocks", "messages", "bytes", "best", "version")  # fmt: skip
turned = LastProducts.turned


def skipped(self: LastProducts, question: object, number: int) -> object:
    """What stands in for a shard in the control: nothing."""
    found = turned(self, question, number)  # type: ignore[arg-type]
    return replace(found, product=0 * found.product)


def measure(
    X: np.ndarray, gram: np.ndarray, target: np.ndarray, method: str, rate: float, seed: int
) -> Iterator[dict]:
    """Run a method until it reaches the last goal; tell what each goal took."""
    seen: list[float] = []

    def near(record: lp.Record, state: object) -> bool:
        Z = state.basis  # type: ignore[attr-defined]
        ritz = np.linalg.eigh(Z.T @ gram @ Z)[1][:, ::-1][:, :RANK]
        seen.append(lp.subspace_distance(target, Z @ ritz))
        before, lately = seen[:-PATIENCE], seen[-PATIENCE:]
        return seen[-1] <= GOALS[-1] or (bool(before) and min(lately) > 0.99 * min(before))

    skips = patch.object(LastProducts, "turned", skipped) if "skip" in method else nullcontext()
    with warnings.catch_warnings(), skips:
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        result = lp.svd(
            X, RANK, METHODS[method], workers=SHARDS, max_rounds=MOST, rng=seed, callback=near,
            faults=lp.Faults(participation=rate),
        )  # fmt: skip
    spent = list(accumulate(record.bytes_up + record.bytes_down for record in result.history))
    rounds = result.ledger.phase("iterate").records
    moved = list(accumulate(record.bytes_up + record.bytes_down for record in rounds))
    for goal in GOALS:
        first = next((n for n, sine in enumerate(seen) if sine <= goal), None)
        last = len(seen) - 1 if first is None else first
        count = moved.index(spent[last]) + 1
        yield {"goal": goal, "reached": first is not None, "rounds": count, "blocks": last + 1,
               "messages": sum(record.messages for record in rounds[:count]),
               "bytes": spent[last], "best": f"{min(seen):.1e}"}  # fmt: skip


def main() -> None:
    """Measure what is missing, and write it as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", default="benchmarks/participation.csv")
    options = parser.parse_args()
    path = Path(options.output)
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    done = {tuple(row[key] for key in ("data", "method", "rate", "seed")) for row in rows}
    with path.open("a", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        for name in DATA:
            left = [
                (method, rate, seed)
                for seed in options.seeds for rate in RATES for method in METHODS
                if (name, method, str(rate), str(seed)) not in done
                and (rate < 1 or "skip" not in method)
            ]  # fmt: skip
            if not left or registry.find(name, options.data_dir) is None:
                continue
            X = load(name, "uniform", options.data_dir).X
            X = X[np.random.default_rng(0).permutation(len(X))]
            gram = X.T @ X
            target = np.linalg.svd(np.linalg.qr(X, mode="r"))[2][:RANK].T
            same = {"data": name, "rows": X.shape[0], "columns": X.shape[1], "shards": SHARDS,
                    "version": lp.__version__}  # fmt: skip
            for method, rate, seed in left:
                if sys.stderr.isatty():
                    print(f"\r\x1b[K{name}, {method}, {rate}", end="", file=sys.stderr)
                for found in measure(X, gram, target, method, rate, seed):
                    case = {"method": method, "rate": rate, "seed": seed}
                    table.writerow(same | case | found)
                stream.flush()


if __name__ == "__main__":
    main()
