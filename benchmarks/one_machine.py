"""One machine, rows in memory: ours against scikit-learn and scipy at the same true accuracy.

    LOCALPOWER_DATA=FOLDER python benchmarks/one_machine.py [--output benchmarks/one_machine.csv]

Rank 10 of five shapes; centred, against `PCA`, and as they are, against `TruncatedSVD` and `svds`.
The goal is the sine of the largest angle to the true subspace. The truth is ARPACK's at machine
precision, with a bound of its own error from residuals and the gap. A solver with a knob is taken
with the first, cheapest, setting of a ladder that reaches the goal. Time is all that a user waits
for, from rows to components and singular values, as the best of several in turns: of more where it
is short, of one above 20 seconds. All have all cores: others as BLAS threads, ours as shards. Cases
that the output has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, svds
from sklearn.decomposition import PCA, TruncatedSVD

import localpower as lp
from localpower.engines.threads import Threads
from localpower.paper import datasets as registry
from localpower.paper.problems import load
from localpower.worker.tasks import Measure, Task

CORES = len(os.sched_getaffinity(0))
RANK = 10
PAUSE = 0.1  # seconds; OpenBLAS's threads keep a core busy for a while after their work
SLOW = 20.0  # seconds from which one measurement is enough
QUICK, OFTEN = 3.0, 4  # seconds below which there are so many times more measurements
PATIENCE = 30.0  # seconds after which no further setting of a ladder is tried
NOISE = 0.005  # of each entry, where the first column of the signal is 1
WIDEST = 10_000  # columns up to which others are let form a covariance matrix
POWERS = (3, 5, 7, 9, 12, 16, 21, 28, 37, 49, 65)
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 0.0)
RESIDUALS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6)  # of LOBPCG's, of the norm of all rows
METHODS = ("gram", "tsqr", "block_lanczos", "block_krylov", "local_ritz:start=random", "local_ritz")


# Rows


def dense(rows: int, columns: int) -> np.ndarray:
    """Gaussian rows about a mean, with deviations that fall as 1/j plus noise, mixed."""
    rng = np.random.default_rng(0)
    deviations = np.hypot(1 / np.arange(1, columns + 1), NOISE)
    mirror = rng.standard_normal(columns)
    mirror /= np.linalg.norm(mirror)
    mean = rng.standard_normal(columns) / np.sqrt(columns)
    X = np.empty((rows, columns))
    for part in np.array_split(X, max(1, X.nbytes >> 26)):
        rng.standard_normal(out=part)
        part *= deviations
        part -= np.outer(part @ mirror, 2 * mirror)
        part += mean
    return X


def scattered(rows: int, columns: int, density: float) -> sparse.csr_array:
    """Sparse rows whose columns shrink as j^(-3/4)."""
    X = sparse.random_array((rows, columns), density=density, format="csr", rng=0)
    X.data /= (1.0 + X.indices) ** 0.75
    return X


def mnist() -> np.ndarray:
    """The digits, columns divided by their largest magnitude."""
    return load("mnist", "uniform").X


SHAPES: dict[str, Callable[[], Any]] = {
    "tall": partial(dense, 1_000_000, 100),
    "square": partial(dense, 5000, 5000),
    "wide": partial(dense, 2000, 50_000),
    "sparse": partial(scattered, 200_000, 50_000, 0.001),
    "mnist": mnist,
}


# Solvers

Fit = Callable[[Any], np.ndarray]  # from rows to components, (k, d)
Ladder = Iterable[tuple[str, Fit]]


def fit_pca(X: Any, **options: Any) -> np.ndarray:
    """Principal components by scikit-learn."""
    return PCA(RANK, random_state=0, **options).fit(X).components_


def fit_truncated(X: Any, **options: Any) -> np.ndarray:
    """Right singular vectors by scikit-learn."""
    return TruncatedSVD(RANK, random_state=0, **options).fit(X).components_


def fit_svds(X: Any, **options: Any) -> np.ndarray:
    """Right singular vectors by scipy."""
    return svds(X, RANK, return_singular_vectors="vh", rng=0, **options)[2]


def ladder(fit: Callable[..., np.ndarray], knob: str, values: Iterable[Any], **options: Any) -> Any:
    """All settings of a knob, the cheapest first."""
    for value in values:
        yield f"{knob}={value}", partial(fit, **options, **{knob: value})


def others(X: Any, centred: bool) -> Iterator[tuple[str, Ladder]]:
    """Yield all other solvers that apply."""
    if centred:
        yield "PCA full", [("", partial(fit_pca, svd_solver="full"))]
        if X.shape[1] <= WIDEST:
            yield "PCA covariance_eigh", [("", partial(fit_pca, svd_solver="covariance_eigh"))]
        else:
            print(f"  PCA covariance_eigh is left out: {8 * X.shape[1] ** 2 / 1e9:.0f} GB")
        yield "PCA arpack", ladder(fit_pca, "tol", TOLERANCES, svd_solver="arpack")
        yield "PCA randomized", ladder(fit_pca, "iterated_power", POWERS, svd_solver="randomized")
        return
    yield "TruncatedSVD arpack", ladder(fit_truncated, "tol", TOLERANCES, algorithm="arpack")
    yield "TruncatedSVD randomized", ladder(fit_truncated, "n_iter", POWERS)
    yield "svds arpack", ladder(fit_svds, "tol", TOLERANCES, solver="arpack")
    yield "svds propack", ladder(fit_svds, "tol", TOLERANCES, solver="propack")
    norm = sparse.linalg.norm(X) if sparse.issparse(X) else np.linalg.norm(X)  # tol is absolute
    lobpcg = partial(fit_svds, solver="lobpcg", maxiter=300)
    yield "svds lobpcg", ((f"tol={x}‖X‖", partial(lobpcg, tol=x * norm)) for x in RESIDUALS)


def fit_ours(X: Any, goal: float, centred: bool, kept: list[lp.Result], **how: Any) -> np.ndarray:
    """Components by this package; the whole result is `kept`."""
    result = (lp.pca if centred else lp.svd)(X, RANK, tol=goal, rng=0, **how)
    kept.append(result)
    return result.components


class Timed(Threads):
    """The default engine, which keeps the time that each kind of task takes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()

    def map(self, task: Task[Any], order: Iterable[int] | None = None) -> Iterator[Any]:
        start = time.perf_counter()
        for reply in super().map(task, order):
            self.seconds[type(task.task if isinstance(task, Measure) else task).__name__] += (
                time.perf_counter() - start
            )
            yield reply
            start = time.perf_counter()


# Measurements


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ratio_to_ours` is its time over that of ours."""

    shape: str
    solver: str
    setting: str
    seconds: float
    angle: float
    reached: bool
    ratio_to_ours: float
    cores: int = CORES
    version: str = lp.__version__


@dataclass(slots=True)
class Runner:
    """A solver with the setting that was taken, and what it was measured at."""

    name: str
    setting: str
    fit: Fit
    angle: float
    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.seconds)


def take_time(fit: Fit, X: Any) -> tuple[float, np.ndarray]:
    """Seconds of a fit, and its components."""
    gc.collect()
    time.sleep(PAUSE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        components = fit(X)
        return time.perf_counter() - start, components


def climb(name: str, settings: Ladder, X: Any, target: np.ndarray, goal: float) -> Runner | None:
    """Take the first setting that reaches the goal, or else the nearest to it; None if it fails."""
    nearest, spent = None, 0.0
    for setting, fit in settings:
        try:
            seconds, components = take_time(fit, X)
        except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
            print(f"  {name} {setting} fails: {str(error).splitlines()[0]:.90}", flush=True)
            continue
        spent += seconds
        angle = lp.subspace_distance(target, components.T) if np.isfinite(components).all() else 1.0
        if nearest is None or angle < nearest.angle:
            nearest = Runner(name, setting, fit, angle, [seconds])
        if nearest.angle <= goal or spent > PATIENCE:
            break
    return nearest


def operator(X: Any, mean: np.ndarray | None) -> LinearOperator:
    """Rows less their mean, without a copy."""
    if mean is None:
        return sparse.linalg.aslinearoperator(X)
    one = np.ones(X.shape[0])
    return LinearOperator(
        X.shape,
        dtype=X.dtype,
        matvec=lambda x: X @ x - one * (mean @ x),
        matmat=lambda Z: X @ Z - np.outer(one, mean @ Z),
        rmatvec=lambda y: X.T @ y - mean * y.sum(),
        rmatmat=lambda Y: X.T @ Y - np.outer(mean, Y.sum(axis=0)),
    )


def truth(X: Any, centred: bool) -> tuple[np.ndarray, str]:
    """True subspace, (d, k), and a sentence about its own error and the gap."""
    A = operator(X, X.mean(axis=0) if centred else None)
    _, S, Vt = svds(A, RANK + 1, tol=0, rng=1)
    S, V = S[::-1], Vt[::-1].T
    R = A.rmatmat(A.matmat(V)) - V * S**2
    bound = np.linalg.norm(R[:, :RANK], 2) / (S[RANK - 1] ** 2 - S[RANK] ** 2)
    values = f"σ/σ_1 of 2, 10 and 11: {S[1] / S[0]:.3f}, {S[9] / S[0]:.4f}, {S[10] / S[0]:.4f}"
    return V[:, :RANK], f"truth: residuals bound its angle by {bound:.0e}; {values}"


def compare(case: str, X: Any, centred: bool, options: argparse.Namespace) -> list[Row]:
    """Measure all solvers on one matrix, in turns, and print what comes out."""
    print(f"\n{case}: {X.shape[0]} x {X.shape[1]}", flush=True)
    target, about = truth(X, centred)
    print(f"  {about}")
    results: dict[str, list[lp.Result]] = {}
    runners = []
    for method in ("auto", *(METHODS if options.ways else ())):
        name = "ours" if method == "auto" else f"ours {method}"
        fit = partial(fit_ours, goal=options.goal, centred=centred,
                      kept=results.setdefault(name, []), method=method)  # fmt: skip
        runners.append(climb(name, [("", fit)], X, target, options.goal))
    for name, settings in others(X, centred):
        runners.append(climb(name, settings, X, target, options.goal))
    found = [runner for runner in runners if runner is not None]
    for turn in range(1, OFTEN * options.repeats):
        for runner in found:
            if runner.best < (SLOW if turn < options.repeats else QUICK):
                runner.seconds.append(take_time(runner.fit, X)[0])
    ours = found[0]
    ours.setting = str(results[ours.name][-1].run["why"])
    rows = [
        Row(case, each.name, each.setting, round(each.best, 3), float(f"{each.angle:.1e}"),
            each.angle <= options.goal, round(each.best / ours.best, 2))
        for each in found
    ]  # fmt: skip
    report(rows, results)
    where(X, centred, options.goal)
    return rows


def report(rows: list[Row], results: dict[str, list[lp.Result]]) -> None:
    """Print a table, and how ours came to its time."""
    print(f"  {'solver':<36} {'setting':<18} {'seconds':>8} {'angle':>8}  times ours")
    for row in rows:
        setting = row.setting if row.solver not in results else ""
        missed = "" if row.reached else "  does not reach the goal"
        print(f"  {row.solver:<36} {setting:<18} {row.seconds:>8.3f} {row.angle:>8.0e} "
              f"{row.ratio_to_ours:>8.2f}{missed}")  # fmt: skip
    for name, kept in results.items():
        if kept:
            last = kept[-1]
            rounds = sum(record.seconds for record in last.history)
            print(f"  {name}: {last.run['method']}, {len(last.history)} rounds in {rounds:.3f} s, "
                  f"{last.reason}; {last.run['why']}")  # fmt: skip
    if (ratio := against_others(rows)) is not None:
        print(f"  best of others / ours: {ratio:.2f}", flush=True)


def against_others(rows: list[Row]) -> float | None:
    """Time of the best other solver that reaches the goal over that of ours, if ours does."""
    times = [r.ratio_to_ours for r in rows if r.reached and not r.solver.startswith("ours")]
    return min(times) if times and rows[0].reached else None


def where(X: Any, centred: bool, goal: float) -> None:
    """Print where the time of ours goes, in one run more."""
    kept: list[lp.Result] = []
    with Timed() as engine:
        fit = partial(fit_ours, goal=goal, centred=centred, kept=kept, engine=engine)
        total, _ = take_time(fit, X)
        parts = dict(engine.seconds)
    rounds = sum(record.seconds for record in kept[0].history)
    text = ", ".join(f"{name} {seconds:.3f}" for name, seconds in parts.items())
    print(f"  ours in parts: {text}, at the coordinator {total - sum(parts.values()):.3f}; "
          f"in all {total:.3f} s, of which rounds {rounds:.3f}", flush=True)  # fmt: skip


def write(table: list[Row], path: Path) -> None:
    """Write all rows that there are."""
    with open(path, "w", encoding="utf-8", newline="") as stream:
        out = csv.DictWriter(stream, [each.name for each in fields(Row)])
        out.writeheader()
        out.writerows(asdict(row) for row in table)


def known_rows(path: Path | None) -> list[Row]:
    """Rows of an earlier run."""
    if path is None or not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as stream:
        return [
            Row(
                shape=row["shape"],
                solver=row["solver"],
                setting=row["setting"],
                seconds=float(row["seconds"]),
                angle=float(row["angle"]),
                reached=row["reached"] == "True",
                ratio_to_ours=float(row["ratio_to_ours"]),
                cores=int(row["cores"]),
                version=row["version"],
            )
            for row in csv.DictReader(stream)
        ]


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--goal", type=float, default=1e-6, help="sine of the largest angle")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=SHAPES, action="append", help="some shapes only")
    parser.add_argument("--ways", action="store_true", help="also each method of ours by name")
    parser.add_argument("--output", type=Path, help="also write the table to this CSV file")
    options = parser.parse_args(arguments)

    table = known_rows(options.output)
    for shape in options.only or SHAPES:
        if shape == "mnist" and registry.find("mnist") is None:
            print(f"\nmnist is left out: {registry.how_to_get('mnist')}")
            continue
        cases = {shape: False} if shape == "sparse" else {f"{shape}, centred": True, shape: False}
        cases = {name: how for name, how in cases.items() if all(r.shape != name for r in table)}
        X = SHAPES[shape]() if cases else None
        for case, centred in cases.items():
            table += compare(case, X, centred, options)
            if options.output:
                write(table, options.output)
        del X
        load.cache_clear()
    print("\nbest of others / ours")
    ratios = {case: against_others([row for row in table if row.shape == case])
              for case in dict.fromkeys(row.shape for row in table)}  # fmt: skip
    for case, ratio in ratios.items():
        print(f"  {case:<17} {'goal not reached' if ratio is None else f'{ratio:.2f}'}")
    known = [ratio for ratio in ratios.values() if ratio is not None]
    print(f"  median            {median(known):.2f}" if known else "  no ratio")
    return 0


if __name__ == "__main__":
    sys.exit(main())
