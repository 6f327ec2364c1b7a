"""Shards that are unlike each other: where local steps stop helping, and what helps then.

python examples/unlike_shards.py [picture]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import localpower as lp

RANK, SHARDS, ROUNDS = 5, 5, 60
RUNS = {
    f"LocalPower, p = {p}": {"method": lp.LocalPower(steps=p), "max_rounds": ROUNDS}
    for p in (1, 2, 4, 8)
}
RUNS["LocalRitz"] = {"method": "local_ritz", "tol": 1e-8}


def cuts(X, digit):
    """Yield names of cuts and their shards, more and more unlike."""
    rng = np.random.default_rng(0)
    yield "shuffled", np.array_split(rng.permutation(X), SHARDS)
    shares = rng.dirichlet([0.3] * SHARDS, size=10)  # of each digit
    home = np.array([rng.choice(SHARDS, p=shares[d]) for d in digit])
    yield "Dirichlet(0.3)", [X[home == i] for i in range(SHARDS)]
    yield "two digits each", [X[digit // 2 == i] for i in range(SHARDS)]


def main(path):
    """Cut the digits in three ways; run LocalPower with several p, and LocalRitz."""
    X, digit = load_digits(return_X_y=True)
    X -= X.mean(axis=0)
    target = np.linalg.svd(X, full_matrices=False)[2][:RANK].T
    whole = X.T @ X / len(X)

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (cut, shards) in zip(panels, cuts(X, digit), strict=True):
        far = [np.linalg.norm(A.T @ A / len(A) - whole, 2) for A in shards]
        print(f"{cut}: eta of each shard {np.round(far / np.linalg.norm(whole, 2), 2)}")
        for name, options in RUNS.items():
            errors = []

            def note(record, state, errors=errors):
                errors.append(lp.subspace_distance(target, state.basis[:, :RANK]))

            result = lp.svd(shards, RANK, rng=0, callback=note, **options)
            axes.semilogy(range(1, len(errors) + 1), errors, ".-", label=name)
            print(f"  {name:<18} {len(errors):>3} rounds to {errors[-1]:.0e}, {result.reason}")
        axes.set_title(f"{cut}, η = {lp.eta(shards):.2f}", fontsize=10)
        axes.set_xlabel("rounds")
    panels[0].set_ylabel("sine of the angle to numpy's components")
    panels[0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"-> {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/unlike_shards.png"))
