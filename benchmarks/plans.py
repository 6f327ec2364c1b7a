"""Plans against runs: seconds that `plan` predicts on an engine that was measured, and those taken.

    python benchmarks/plans.py [--engines threads,processes,dask,mpi] [--output FILE.csv]

Eighteen problems, two workers. `predicted` and `measured` are seconds from the first message to the
last reply, the latter the median of three runs; `whole` is the call with opening and placing the
rows. `against_best` is what the method that the plan chose took, over the fastest method measured.
The engine is measured anew before each problem, as machines that others use are now slow, now fast;
what is measured goes to a cache of the benchmark's own. Problems that the output has are not run
again. MPI runs with `mpiexec -n 2`.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import localpower as lp
from localpower.cli.ranks import JOBS
from localpower.planning import tolerance

WORKERS, TIMES = 2, 3
SLOW, LEAST = 5, 0.2  # times the seconds of the choice from which a method is not run; or seconds
METHODS = ("gram", "tsqr", "local_ritz", "block_krylov", "block_lanczos")
FIELDS = ("engine", "problem", "shards", "rank", "method", "predicted", "measured", "whole",
          "ratio", "rounds_predicted", "rounds", "chosen", "against_best", "latency", "bandwidth",
          "flops", "seed", "version")  # fmt: skip


def decaying(rows: int, columns: int, values: Any, rng: Any, dtype: Any = np.float64) -> Any:
    """Gaussian rows with these standard deviations, turned."""
    turn = np.linalg.qr(rng.standard_normal((columns, columns)))[0] * values
    return (rng.standard_normal((rows, columns)) @ turn.T).astype(dtype)


def problems(seed: int) -> Any:
    """Name, rows, rank and further options."""
    rng = np.random.default_rng(seed)

    def power(d: int, exponent: float) -> Any:
        return np.arange(1.0, d + 1) ** -exponent

    yield "20000x50 fast", lambda: decaying(20_000, 50, 0.8 ** np.arange(50), rng), 5, {}
    yield "20000x200", lambda: decaying(20_000, 200, 0.95 ** np.arange(200), rng), 10, {}
    yield "100000x100", lambda: decaying(100_000, 100, power(100, 0.6), rng), 5, {}
    yield "20000x784", lambda: decaying(20_000, 784, power(784, 0.7), rng), 10, {}
    yield "5000x2000", lambda: decaying(5000, 2000, power(2000, 0.5), rng), 5, {}
    yield "2000x5000", lambda: rng.standard_normal((2000, 5000)) * power(5000, 0.5), 5, {}
    yield "sparse 60000x5000", lambda: sp.random_array((60_000, 5000), density=0.004, rng=rng,
        format="csr") @ sp.diags_array(power(5000, 0.5)), 5, {}  # fmt: skip
    yield "float32 100000x200", lambda: decaying(100_000, 200, power(200, 0.8), rng,
        np.float32), 5, {}  # fmt: skip
    yield (
        "centred 50000x120",
        lambda: 1 + decaying(50_000, 120, power(120, 0.6), rng),
        5,
        {"center": True},
    )
    yield "40000x300 in 8", lambda: decaying(40_000, 300, power(300, 0.6), rng), 5, {"workers": 8}
    yield "3000x80", lambda: decaying(3000, 80, power(80, 0.5), rng), 4, {}
    yield "150000x64 k=12", lambda: decaying(150_000, 64, 0.9 ** np.arange(64), rng), 12, {}
    yield "12000x1500 k=15", lambda: decaying(12_000, 1500, power(1500, 0.6), rng), 15, {}
    yield "900x9000 k=8", lambda: rng.standard_normal((900, 9000)) * power(9000, 0.6), 8, {}
    yield "sparse 80000x700 k=6", lambda: sp.random_array((80_000, 700), density=0.02, rng=rng,
        format="csr") @ sp.diags_array(power(700, 0.6)), 6, {}  # fmt: skip
    yield "float32 30000x500 k=8", lambda: decaying(30_000, 500, power(500, 0.7), rng,
        np.float32), 8, {}  # fmt: skip
    yield "standardised 40000x250", lambda: 3 + decaying(40_000, 250, power(250, 0.5), rng), 6, {
        "center": True, "scale": "std"}  # fmt: skip
    yield "25000x500 in 5 k=20", lambda: decaying(25_000, 500, power(500, 0.8), rng), 20, {
        "workers": 5}  # fmt: skip


def run(engine: lp.engines.base.Engine, X: Any, rank: int, how: dict[str, Any], seed: int) -> Any:
    """Predicted and measured seconds of every method that the plan has."""
    engine.measure(again=True)
    plan = lp.plan(X, rank, engine=engine, **how)
    found = {}
    for name in dict.fromkeys((plan.choice.method, *METHODS)):
        row = plan[name]
        slow = row.seconds > max(SLOW * plan.choice.seconds, LEAST)
        if not row.feasible or row.method in found or slow:
            continue
        taken, whole = [], []
        for _ in range(TIMES):
            begin = perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = lp.svd(X, rank, row.method, tol=tolerance(X.dtype), engine=engine,
                                rng=seed, **how)  # fmt: skip
            whole.append(perf_counter() - begin)
            rounds = result.run["timeline"]["rounds"]
            taken.append(rounds[-1]["start"] + rounds[-1]["seconds"] - rounds[0]["start"])
        iterate = result.ledger.phase("iterate").rounds
        found[row.method] = row, median(taken), median(whole), iterate
    best = min(seconds for _, seconds, _, _ in found.values())
    for method, (row, seconds, whole_seconds, count) in found.items():
        chosen = row is plan.choice
        yield {
            "rank": rank, "method": method, "shards": how.get("workers", WORKERS),
            "predicted": f"{row.seconds:.4g}", "measured": f"{seconds:.4g}",
            "whole": f"{whole_seconds:.4g}", "ratio": f"{row.seconds / seconds:.2f}",
            "rounds_predicted": row.rounds, "rounds": count, "chosen": chosen,
            "against_best": f"{seconds / best:.2f}" if chosen else "",
            "latency": f"{engine.latency:.3g}", "bandwidth": f"{engine.bandwidth:.3g}",
            "flops": f"{engine.flops:.3g}",
        }  # fmt: skip


def measure(address: str, path: Path, seed: int) -> None:
    """Run what the output does not have of one engine."""
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    done = {(row["engine"], row["problem"]) for row in rows}
    engine = lp.connect(address if address == "mpi" else f"{address}:{WORKERS}")
    with engine, path.open("a", newline="", encoding="utf-8") as stream:
        if getattr(engine, "rank", 0):
            engine.serve()
            return
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        for name, make, rank, how in problems(seed):
            X = make()  # also of what is skipped, so that random numbers are the same
            if (address, name) in done:
                continue
            print(f"{address}: {name}", file=sys.stderr)
            for found in run(engine, X, rank, how, seed):
                about = {"engine": address, "problem": name, "seed": seed}
                table.writerow(about | {"version": lp.__version__} | found)
            stream.flush()


def main() -> None:
    """Measure what is missing, and write it as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default="threads,processes,dask,mpi")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/plans.csv"))
    options = parser.parse_args()
    if any(rank in os.environ for rank, _ in JOBS):
        measure("mpi", options.output, options.seed)
        return
    for address in options.engines.split(","):
        if address != "mpi":
            measure(address, options.output, options.seed)
            continue
        how = ["--engines", "mpi", "--seed", str(options.seed), "--output", str(options.output)]
        beside = Path(sys.executable).with_name("mpiexec")
        job = [
            str(beside) if beside.exists() else "mpiexec",
            "-n",
            str(WORKERS),
            sys.executable,
            __file__,
            *how,
        ]
        subprocess.run(job, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        main()
