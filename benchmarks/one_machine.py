"""One machine, rows in memory: ours against scikit-learn and scipy at the same true accuracy.

    LOCALPOWER_DATA=FOLDER python benchmarks/one_machine.py [--output benchmarks/one_machine.csv]

Rank 10, or 50, of many shapes; centred, against `PCA`, and as they are, against `TruncatedSVD`,
`svds`, a plain Gram matrix and, where they are installed, fbpca, PRIMME, torch and
scikit-learn-intelex. Solvers that are not installed, or would take hours, are named and left out.
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
import importlib.util
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
MOST_WORK = 4e12  # operations up to which others are let compute all vectors
SEED = 0  # of all rows
POWERS = (3, 5, 7, 9, 12, 16, 21, 28, 37, 49, 65)
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 0.0)
RESIDUALS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6)  # of LOBPCG's, of the norm of all rows
METHODS = ("gram", "tsqr", "block_lanczos", "block_krylov", "local_ritz:start=random", "local_ritz")


# Rows


def dense(rows: int, columns: int, decay: float = 1.0, dtype: str = "float64") -> np.ndarray:
    """Gaussian rows about a mean, with deviations that fall as j^-decay plus noise, mixed."""
    rng = np.random.default_rng(SEED)
    deviations = np.hypot(np.arange(1, columns + 1) ** -decay, NOISE)
    mirror = rng.standard_normal(columns)
    mirror /= np.linalg.norm(mirror)
    mean = rng.standard_normal(columns) / np.sqrt(columns)
    X = np.empty((rows, columns))
    for part in np.array_split(X, max(1, X.nbytes >> 26)):
        rng.standard_normal(out=part)
        part *= deviations
        part -= np.outer(part @ mirror, 2 * mirror)
        part += mean
    return X.astype(dtype, copy=False)


def scattered(rows: int, columns: int, density: float) -> sparse.csr_array:
    """Sparse rows whose columns shrink as j^(-3/4)."""
    X = sparse.random_array((rows, columns), density=density, format="csr", rng=SEED)
    X.data /= (1.0 + X.indices) ** 0.75
    return X


def mnist() -> np.ndarray:
    """The digits, columns divided by their largest magnitude."""
    return load("mnist", "uniform").X


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows are made, how many components are asked for, and whether also centred ones."""

    make: Callable[[], Any]
    rank: int = RANK
    centred: bool = True
    goal: float | None = None  # where it is another than that of all


SHAPES: dict[str, Shape] = {
    "tall": Shape(partial(dense, 1_000_000, 100)),
    "square": Shape(partial(dense, 5000, 5000)),
    "wide": Shape(partial(dense, 2000, 50_000)),
    "sparse": Shape(partial(scattered, 200_000, 50_000, 0.001), centred=False),
    "mnist": Shape(mnist),
    "small": Shape(partial(dense, 1000, 50)),
    "slow": Shape(partial(dense, 4000, 3000, 0.5), centred=False),
    "few rows": Shape(partial(dense, 1500, 20_000), centred=False),
    "rank 50": Shape(partial(dense, 60_000, 800), 50, centred=False),
    "tall, rank 50": Shape(partial(dense, 100_000, 1000), 50, centred=False),
    "float32": Shape(partial(dense, 400_000, 200, 1.0, "float32"), centred=False, goal=3e-4),
    "flat": Shape(partial(dense, 10_000, 10_000, 0.1), centred=False),
    "sparse, 40 a row": Shape(partial(scattered, 60_000, 15_000, 40 / 15_000), centred=False),
    "sparse, large": Shape(partial(scattered, 1_000_000, 100_000, 2e-4), centred=False),
}


# Solvers

Fit = Callable[[Any], np.ndarray]  # from rows to components, (k, d)
Ladder = Iterable[tuple[str, Fit]]


def fit_pca(X: Any, rank: int, **options: Any) -> np.ndarray:
    """Principal components by scikit-learn."""
    return PCA(rank, random_state=0, **options).fit(X).components_


def fit_intel(X: Any, rank: int, **options: Any) -> np.ndarray:
    """Principal components by scikit-learn-intelex."""
    from sklearnex import decomposition

    return decomposition.PCA(rank, random_state=0, **options).fit(X).components_


def fit_truncated(X: Any, rank: int, **options: Any) -> np.ndarray:
    """Right singular vectors by scikit-learn."""
    return TruncatedSVD(rank, random_state=0, **options).fit(X).components_


def fit_svds(X: Any, rank: int, **options: Any) -> np.ndarray:
    """Right singular vectors by scipy."""
    return svds(X, rank, return_singular_vectors="vh", rng=0, **options)[2]


def fit_gram(X: Any, rank: int) -> np.ndarray:
    """Right singular vectors as a user would write it down with numpy."""
    return np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :rank].T


def fit_fbpca(X: Any, rank: int, **options: Any) -> np.ndarray:
    """Right singular vectors by fbpca."""
    import fbpca

    np.random.seed(0)  # noqa: NPY002 (it has no other way)
    return fbpca.pca(X, rank, raw=True, **options)[2]


def fit_primme(X: Any, rank: int, **options: Any) -> np.ndarray:
    """Right singular vectors by PRIMME."""
    import primme

    return primme.svds(X, rank, **options)[2]


def fit_torch(X: Any, rank: int, **options: Any) -> np.ndarray:
    """Right singular vectors by torch."""
    import torch

    torch.manual_seed(0)
    return torch.pca_lowrank(torch.from_numpy(X), rank, center=False, **options)[2].numpy().T


def ladder(fit: Callable[..., np.ndarray], knob: str, values: Iterable[Any], **options: Any) -> Any:
    """All settings of a knob, the cheapest first."""
    for value in values:
        yield f"{knob}={value}", partial(fit, **options, **{knob: value})


def is_there(name: str, module: str) -> bool:
    """Whether a solver is installed; says so if not."""
    there = importlib.util.find_spec(module) is not None
    if not there:
        print(f"  {name} is left out: {module} is not installed")
    return there


def is_feasible(name: str, X: Any, squares: bool = True) -> bool:
    """Whether a solver that computes all vectors ends today; says so if not."""
    small, large = sorted(X.shape)
    d = X.shape[1]
    work = (2 * X.shape[0] * d**2 + 9 * d**3) if squares else 14 * large * small**2
    if sparse.issparse(X) or work > MOST_WORK or (squares and d > WIDEST):
        print(f"  {name} is left out: it would compute all vectors of {X.shape}")
        return False
    return True


def others(X: Any, rank: int, centred: bool) -> Iterator[tuple[str, Ladder]]:
    """Yield all other solvers that apply."""
    pca, truncated = partial(fit_pca, rank=rank), partial(fit_truncated, rank=rank)
    scipys = partial(fit_svds, rank=rank)
    if centred:
        if is_feasible("PCA full", X, squares=False):
            yield "PCA full", [("", partial(pca, svd_solver="full"))]
        if is_feasible("PCA covariance_eigh", X):
            yield "PCA covariance_eigh", [("", partial(pca, svd_solver="covariance_eigh"))]
            if is_there("intelex PCA", "sklearnex"):
                intel = partial(fit_intel, rank=rank, svd_solver="covariance_eigh")
                yield "intelex PCA", [("", intel)]
        yield "PCA arpack", ladder(pca, "tol", TOLERANCES, svd_solver="arpack")
        yield "PCA randomized", ladder(pca, "iterated_power", POWERS, svd_solver="randomized")
        return
    if is_feasible("numpy Gram and eigh", X):
        yield "numpy Gram and eigh", [("", partial(fit_gram, rank=rank))]
    yield "TruncatedSVD arpack", ladder(truncated, "tol", TOLERANCES, algorithm="arpack")
    yield "TruncatedSVD randomized", ladder(truncated, "n_iter", POWERS)
    yield "svds arpack", ladder(scipys, "tol", TOLERANCES, solver="arpack")
    yield "svds propack", ladder(scipys, "tol", TOLERANCES, solver="propack")
    norm = sparse.linalg.norm(X) if sparse.issparse(X) else np.linalg.norm(X)  # tol is absolute
    lobpcg = partial(scipys, solver="lobpcg", maxiter=300)
    yield "svds lobpcg", ((f"tol={x}‖X‖", partial(lobpcg, tol=x * norm)) for x in RESIDUALS)
    if is_there("fbpca", "fbpca"):
        yield "fbpca", ladder(partial(fit_fbpca, rank=rank), "n_iter", POWERS)
    if is_there("PRIMME", "primme"):
        yield "PRIMME", ladder(partial(fit_primme, rank=rank), "tol", TOLERANCES[:-1])
    if is_there("torch pca_lowrank", "torch") and not sparse.issparse(X):
        yield "torch pca_lowrank", ladder(partial(fit_torch, rank=rank), "niter", POWERS)


def fit_ours(
    X: Any, rank: int, goal: float, centred: bool, kept: list[lp.Result], **how: Any
) -> np.ndarray:
    """Components by this package; the whole result is `kept`."""
    result = (lp.pca if centred else lp.svd)(X, rank, tol=goal, rng=0, **how)
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
    seed: int = SEED
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
    """Rows less their mean, without a copy; of float32, in float64."""
    X = X.astype(np.float64, copy=False)
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


def truth(X: Any, rank: int, centred: bool) -> tuple[np.ndarray, str]:
    """True subspace, (d, k), and a sentence about its own error and the gap."""
    A = operator(X, X.mean(axis=0, dtype=np.float64) if centred else None)
    _, S, Vt = svds(A, rank + 1, tol=0, rng=1)
    S, V = S[::-1], Vt[::-1].T
    R = A.rmatmat(A.matmat(V)) - V * S**2
    bound = np.linalg.norm(R[:, :rank], 2) / (S[rank - 1] ** 2 - S[rank] ** 2)
    part = [S[k] / S[0] for k in (1, rank - 1, rank)]
    values = f"σ/σ_1 of 2, {rank} and {rank + 1}: {part[0]:.3f}, {part[1]:.4f}, {part[2]:.4f}"
    return V[:, :rank], f"truth: residuals bound its angle by {bound:.0e}; {values}"


def compare(
    case: str, X: Any, shape: Shape, centred: bool, options: argparse.Namespace
) -> list[Row]:
    """Measure all solvers on one matrix, in turns, and print what comes out."""
    rank, goal = shape.rank, shape.goal or options.goal
    print(f"\n{case}: {X.shape[0]} x {X.shape[1]}, rank {rank}", flush=True)
    target, about = truth(X, rank, centred)
    print(f"  {about}")
    results: dict[str, list[lp.Result]] = {}
    runners = []
    for method in ("auto", *(METHODS if options.ways else ())):
        name = "ours" if method == "auto" else f"ours {method}"
        fit = partial(fit_ours, rank=rank, goal=goal, centred=centred,
                      kept=results.setdefault(name, []), method=method)  # fmt: skip
        runners.append(climb(name, [("", fit)], X, target, goal))
    for name, settings in others(X, rank, centred):
        runners.append(climb(name, settings, X, target, goal))
    found = [runner for runner in runners if runner is not None]
    for turn in range(1, OFTEN * options.repeats):
        for runner in found:
            if runner.best < (SLOW if turn < options.repeats else QUICK):
                runner.seconds.append(take_time(runner.fit, X)[0])
    ours = found[0]
    ours.setting = str(results[ours.name][-1].run["why"])
    rows = [
        Row(case, each.name, each.setting, round(each.best, 5), float(f"{each.angle:.1e}"),
            each.angle <= goal, round(each.best / ours.best, 2))
        for each in found
    ]  # fmt: skip
    report(rows, results)
    where(X, rank, centred, goal)
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


def where(X: Any, rank: int, centred: bool, goal: float) -> None:
    """Print where the time of ours goes, in one run more."""
    kept: list[lp.Result] = []
    with Timed() as engine:
        fit = partial(fit_ours, rank=rank, goal=goal, centred=centred, kept=kept, engine=engine)
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
                seed=int(row.get("seed") or 0),
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
        about = SHAPES[shape]
        cases = {f"{shape}, centred": True, shape: False} if about.centred else {shape: False}
        cases = {name: how for name, how in cases.items() if all(r.shape != name for r in table)}
        X = about.make() if cases else None
        for case, centred in cases.items():
            table += compare(case, X, about, centred, options)
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
