"""Privacy as it is claimed: an audit of the whole path, and what noise costs.

    python benchmarks/privacy.py [--data-dir FOLDER] [--trials N] [--output benchmarks/privacy.csv]

The audit plays the attacker who knows all rows but one, and asks whether that one is there. The
sum of ten shards, noise and rounding as in a run, is multiplied with what the row would add; how
often the larger half is right bounds ε from below, with 95 % confidence (Clopper and Pearson).
`share` is that bound over the ε that is claimed. Broken variants must exceed 1. Of local steps
(fedpower), the attacker sees all noised products of the row's own shard, and weighs each by what
the row would add to it, given the products before.

The other half runs mnist, 60000 × 780, in ten shards with clip 10: `captured` is what the
components found explain of the best ones, those of the clipped rows, and `sine` that of the angle
to these. Cases that the output has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from itertools import chain
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta, norm

import localpower as lp
from localpower.core.gaussian import epsilon_of, sigma_of
from localpower.paper.problems import load
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.private_tasks import (
    LONGEST,
    SENSITIVITY,
    Noised,
    NoisedGram,
    NoisedProduct,
    NoisedSteps,
    on_diagonal,
    whole,
)
from localpower.worker.shard import Shard

EPSILON, DELTA, SHARDS, COLUMNS, STEPS = 1.0, 1e-6, 10, 3, 2
AT_ONCE, CLIP = 50_000, 10.0
FIELDS = ("part", "case", "epsilon", "trials", "low", "share", "captured", "sine", "expected",
          "version")  # fmt: skip
AXIS, SPREAD = np.array([1.0, 0.0, 0.0]), np.full(COLUMNS, COLUMNS**-0.5)
TABLE = {  # captured share and sine of a first measurement; of products, with the best choices; of
    # local steps, of the same noise in floating point
    "matrix, k=5": {0.1: (0.959, 0.52), 0.5: (0.998, 0.11), 1: (0.9995, 0.061), 4: (1.0, 0.017)},
    "matrix, k=5, noise of each shard alone": {
        0.1: (0.757, 1.0), 0.5: (0.980, 0.35), 1: (0.9945, 0.18), 4: (0.9996, 0.05)},
    "products, k=5": {0.1: (0.746, 0.99), 0.5: (0.982, 0.41), 1: (0.9957, 0.20), 4: (0.9995, 0.06)},
    "fedpower, k=5, steps=1": {
        0.1: (0.66, 1.0), 0.5: (0.78, 1.0), 1: (0.934, 0.75), 4: (0.9955, 0.17)},
    "fedpower, k=5, steps=2": {
        0.1: (0.02, 1.0), 0.5: (0.725, 1.0), 1: (0.736, 1.0), 4: (0.989, 0.26)},
    "matrix, k=10": {0.1: (0.881, 0.99), 0.5: (0.994, 0.24), 1: (0.998, 0.13), 4: (0.9999, 0.039)},
    "matrix, k=10, centred": {
        0.1: (0.34, 1.0), 0.5: (0.93, 0.62), 1: (0.982, 0.28), 4: (0.9985, 0.08)},
}  # fmt: skip


class HalfNoise(NoisedGram):
    """Broken: half of the noise off the diagonal."""

    def noise(self, columns: int, stream: Any, times: int = 1) -> Any:
        y = super().noise(columns, stream, times)
        y[:, ~on_diagonal(columns)] //= 2
        return y


class Unclipped(NoisedGram):
    """Broken: rows are as long as they are."""

    def rows_of(self, matrix: LocalMatrix) -> Any:
        for block in matrix.shard.blocks():
            yield np.rint(block / self.clip * LONGEST)


class QuietSteps(NoisedSteps):
    """Broken: noise in the message alone, and not in what the shard goes on from."""

    def exact(self, matrix: LocalMatrix) -> Any:
        steps = NoisedSteps(self.clip, self.sigma, 1, False, self.basis, self.steps)
        *_, (_, Y) = steps.releases(matrix, np.zeros((self.steps, self.basis.size), np.int64))
        return Y.ravel()


@dataclass(frozen=True)
class Case:
    """A row that is there or not, a task, and how many shards add no noise.

    Other rows of a shard are `count`, and shorter by `slope` from one column to the next.
    """

    row: np.ndarray
    kind: type[Noised] = NoisedGram
    factor: float = 1.0
    silent: int = 0
    center: bool = False
    broken: bool = False
    count: int = 20
    slope: float = 1.0


CASES = {
    "axis row": Case(AXIS),
    "spread row": Case(SPREAD),
    "row of three times the clip": Case(3 * SPREAD),
    "spread row, centred": Case(SPREAD, center=True),
    "axis row, products": Case(AXIS, NoisedProduct),
    "spread row, products, centred": Case(SPREAD, NoisedProduct, center=True),
    "axis row, fedpower": Case(AXIS, NoisedSteps),
    "spread row, fedpower": Case(SPREAD, NoisedSteps),
    "broken: fedpower, noise in messages alone": Case(
        SPREAD, QuietSteps, broken=True, count=200, slope=0.01
    ),
    "broken: fedpower, a share of the noise": Case(SPREAD, NoisedSteps, SHARDS**-0.5, broken=True),
    "broken: 0.9 of the noise": Case(SPREAD, factor=0.9, broken=True),
    "broken: half of it off the diagonal, spread row": Case(SPREAD, HalfNoise, broken=True),
    "broken: half of it off the diagonal, axis row": Case(AXIS, HalfNoise),
    "broken: 2 of 10 shards without": Case(SPREAD, silent=2, broken=True),
    "broken: rows are not clipped": Case(1.2 * SPREAD, Unclipped, broken=True),
}


def task_of(case: Case, epsilon: float) -> Noised:
    """The question that shards are asked, with the noise that a run would ask for."""
    if issubclass(case.kind, NoisedSteps):
        sigma = ceil(case.factor * sigma_of(epsilon, DELTA, STEPS) * SENSITIVITY)
        basis = np.eye(COLUMNS)  # has all of the row, as have all that follow
        if case.kind is QuietSteps:  # what the shard goes on from is what the row says
            basis = basis[:, 1:2]
        return case.kind(1.0, sigma, 1, False, basis, STEPS)
    sigma = sigma_of(epsilon, DELTA) * SENSITIVITY / sqrt(SHARDS)
    how = 1.0, ceil(case.factor * sigma), SHARDS, case.center
    if case.kind is not NoisedProduct:
        return case.kind(*how)
    row = np.append(2 * case.row, 1.0) if case.center else case.row  # as it enters the sum
    basis = np.linalg.qr(np.column_stack([row, np.arange(len(row))]))[0]  # has all of it
    return NoisedProduct(*how, basis)


def audit(case: Case, trials: int, stream: Any, epsilon: float = EPSILON) -> float:
    """The ε that an attacker shows, at least, with 95 % confidence."""
    task, rng = task_of(case, epsilon), np.random.default_rng(0)
    shards = 1 if isinstance(task, NoisedSteps) else SHARDS
    lengths = 0.3 * case.slope ** np.arange(COLUMNS)
    others = [lengths * rng.standard_normal((case.count, COLUMNS)) for _ in range(shards)]
    scores = _scores_of_steps if type(task) is NoisedSteps else _scores_of_sum
    right = [0, 0]
    for start in range(0, trials, AT_ONCE):
        count = min(AT_ONCE, trials - start)
        for which, found in enumerate(scores(task, case, others, count, stream)):
            right[which] += int((found > 0).sum())
    low, high = (
        beta.ppf(0.025, right[1], trials - right[1] + 1),
        beta.ppf(0.975, right[0] + 1, trials - right[0]),
    )
    return epsilon_of(max(norm.ppf(low) - norm.ppf(high), 1e-9), DELTA)


def _scores_of_sum(task: Noised, case: Case, others: Any, count: int, stream: Any) -> Any:
    """How much sums speak for the row: of some without it, then of some with it."""
    without = [task.exact(_local(rows)) for rows in others]
    there = [task.exact(_local(np.vstack([others[0], case.row]))), *without[1:]]
    added = (there[0] - without[0]).astype(np.float64)
    weights = np.ones_like(added)
    if isinstance(task, NoisedGram):  # of (G_jj, √2 G_jk)
        weights[~on_diagonal(COLUMNS + case.center)] = 2.0
    for parts in (without, there):
        words = np.zeros((count, added.size), np.uint64)
        for number, part in enumerate(parts):
            words += part.view(np.uint64)
            if number >= case.silent:
                words += task.noise(COLUMNS, stream, count).view(np.uint64)
        yield (words.view(np.int64) - sum(without) - added / 2) @ (weights * added)


def _scores_of_steps(task: NoisedSteps, case: Case, others: Any, count: int, stream: Any) -> Any:
    """The same of all products of one shard, each given those before it."""
    rows, row = (whole(each, 1.0, LONGEST) for each in (others[0], case.row[None]))
    for part in (others[0], np.vstack([others[0], case.row])):
        local, noise = _local(part), task.noise(COLUMNS, stream, count * STEPS)
        seen = [[*task.releases(local, each)] for each in noise.reshape(count, STEPS, -1)]
        Z, Y = (np.array([[step[of] for step in run] for run in seen]) for of in (0, 1))
        added = row.T @ row @ Z
        yield ((Y - rows.T @ rows @ Z - added / 2) * added).sum(axis=(1, 2, 3))


def _local(rows: np.ndarray) -> LocalMatrix:
    return LocalMatrix(Shard((rows,), rows.shape[1], rows.dtype))


def audits(done: set[str], trials: int) -> Any:
    """Audit what is missing."""
    for name, case in CASES.items():
        if name not in done:
            found = audit(case, trials, np.random.default_rng(1).bytes)  # the same for anybody
            yield {"part": "audit", "case": name, "epsilon": EPSILON, "trials": trials,
                   "low": f"{found:.3f}", "share": f"{found / EPSILON:.3f}",
                   "expected": "above 1" if case.broken else "0.9 to 1"}  # fmt: skip


def utilities(done: set[str], folder: str | None, repeats: int = 3) -> Any:
    """Run mnist where that is missing; the median of some runs."""
    X = load("mnist", "uniform", folder).X
    X = X.toarray() if hasattr(X, "toarray") else X
    X = X * np.minimum(1.0, CLIP / np.linalg.norm(X, axis=1))[:, None]  # noise is what is measured
    G, mean = X.T @ X, X.mean(axis=0)
    for case, expected in TABLE.items():
        rank, center = 10 if "k=10" in case else 5, "centred" in case
        M = G - len(X) * np.outer(mean, mean) * center
        values, V = np.linalg.eigh(M)
        best, V = values[::-1][:rank].sum(), V[:, ::-1][:, :rank]
        for epsilon, wanted in expected.items():
            if f"{case}, ε={epsilon}" in done:
                continue
            how = {"release": case.partition(",")[0], "honest": 1 if "alone" in case else None,
                   "steps": int(case[-1]) if "steps" in case else None}  # fmt: skip
            privacy = lp.Privacy(epsilon, DELTA, CLIP, **how)
            found = []
            for seed in range(repeats):
                result = lp.svd(X, rank, center=center, privacy=privacy, engine="ring",
                                workers=SHARDS, rng=seed)  # fmt: skip
                C = result.components
                found.append((np.trace(C @ M @ C.T) / best, lp.subspace_distance(C.T, V)))
            captured, sine = np.median(found, axis=0)
            yield {"part": "mnist", "case": f"{case}, ε={epsilon}", "epsilon": epsilon,
                   "trials": repeats, "captured": f"{captured:.4f}", "sine": f"{sine:.3f}",
                   "expected": "{}/{}".format(*wanted)}  # fmt: skip


def main() -> None:
    """Measure what is missing, and write it as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--trials", type=int, default=400_000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/privacy.csv"))
    options = parser.parse_args()
    path = options.output
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    done = {row["case"] for row in rows}
    with path.open("a", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        measured = audits(done, options.trials), utilities(done, options.data_dir)
        for found in chain.from_iterable(measured):
            table.writerow(found | {"version": lp.__version__})
            stream.flush()


if __name__ == "__main__":
    main()
