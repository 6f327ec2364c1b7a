"""What a curious coordinator learns, without protection and with it.

    python benchmarks/attacks.py [--trials 2000] [--output benchmarks/attacks.csv]

The attacks are those of `tests/attacks`. Errors are relative; of what is masked, the best scale is
forgiven. AUC is the chance to tell a row of a site from a stranger's: 0.5 is a guess. Cases that
the output has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import localpower as lp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "attacks"))

from curious import Curious, basis, membership, membership_in_releases, population
from inference import error, gram_of_few, gram_of_rounds, row_of

FIELDS = "attack", "protection", "rows", "measure", "value", "trials", "seed", "version"
SIZES = 1, 5, 20, 100, 1000
ROUNDS = 1, 3, 5, 8


def masked(Y: np.ndarray) -> np.ndarray:
    """Words of the same shape from a cipher's stream: what a mask makes of a product."""
    words = np.frombuffer(np.random.default_rng(9).bytes(8 * Y.size), np.int64)
    return words.reshape(Y.shape) * 2.0**-60


def scaled_error(found: np.ndarray, true: np.ndarray) -> float:
    """The error at the best scale."""
    return error(found * (found * true).sum() / (found * found).sum(), true)


def rows_and_grams(seed: int) -> Iterator[tuple[str, str, int, str, float]]:
    """Attacks on one message."""
    draw, Z = population(seed)[1], basis(seed=seed)
    for rows in (1, 5, 10, 11, 20):
        A = draw(rows)
        Y, true = A.T @ (A @ Z), A.T @ A
        if rows == 1:
            found = row_of(Z, Y)
            yield "the row", "none", 1, "error", error(found * np.sign(found @ A[0]), A[0])
        yield "Gram matrix, one message", "none", rows, "error", error(gram_of_few(Z, Y), true)
        hidden = gram_of_few(Z, masked(Y))
        yield "Gram matrix, one message", "secure sum", rows, "error", scaled_error(hidden, true)


def runs(seed: int) -> Iterator[tuple[str, str, int, str, float]]:
    """The attack on all messages of a run."""
    draw = population(seed, columns=123, decay=0.96)[1]
    parts = [draw(500) * scale for scale in (1.0, 0.5, 2.0)]
    engine = Curious()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lp.svd(parts, 5, "block_krylov:start=random,width=10", tol=1e-14, max_rounds=max(ROUNDS),
               certainty=1, engine=engine, rng=seed)  # fmt: skip
    true = parts[0].T @ parts[0]
    for rounds in ROUNDS:
        pairs, attack = engine.seen[0][:rounds], f"Gram matrix, {rounds} rounds"
        yield attack, "none", 500, "error", error(gram_of_rounds(pairs), true)
        hidden = gram_of_rounds([(Z, masked(Y)) for Z, Y in pairs])
        yield attack, "secure sum", 500, "error", scaled_error(hidden, true)


def members(seed: int, trials: int) -> Iterator[tuple[str, str, int, str, float]]:
    """Is this row among them?"""
    for rows in SIZES:
        yield "membership", "none", rows, "AUC", membership(rows, trials, seed)
        found = membership(rows, trials, seed, sites=10)
        yield "membership", "secure sum of ten such sites", rows, "AUC", found
    for epsilon in (8.0, 1.0):
        found = membership_in_releases(epsilon, 1e-6, 5 * trials, seed=seed)
        yield "membership, all others known", f"epsilon {epsilon:g}", 5, "AUC", found


def main() -> None:
    """Measure what is missing, and write it as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/attacks.csv"))
    options = parser.parse_args()
    rows = []
    if options.output.exists():
        with options.output.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
    parts: dict[str, Callable[[], Iterator[tuple[str, str, int, str, float]]]] = {
        "the row": lambda: rows_and_grams(options.seed),
        "Gram matrix, 1 rounds": lambda: runs(options.seed),
        "membership": lambda: members(options.seed, options.trials),
    }
    done = {row["attack"] for row in rows}
    with options.output.open("a", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, FIELDS)
        if not rows:
            table.writeheader()
        for name, part in parts.items():
            for attack, protection, size, measure, value in part() if name not in done else ():
                print(f"{attack:<30} {protection:<30} {size:>5} rows  {measure} {value:.3g}")
                table.writerow(
                    dict(zip(FIELDS, (attack, protection, size, measure, f"{value:.3g}",
                                      options.trials, options.seed, lp.__version__), strict=True))
                )  # fmt: skip
                stream.flush()


if __name__ == "__main__":
    main()
