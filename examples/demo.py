"""What localpower is for, on one screen: PCA of digits whose rows live on eight shards."""

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # the picture goes to a file; no screen is needed

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import localpower as lp

RANK, WIDTH, SHARDS, ROUNDS = 5, 8, 8, 12
HOW = {"align_at": "worker", "width": WIDTH}
METHODS = {
    "LocalPower, p = 4, halving": lp.LocalPower(steps=4, schedule="halving:3", **HOW),
    "LocalPower, p = 4": lp.LocalPower(steps=4, **HOW),
    "power iteration (DPI), p = 1": lp.methods.PowerIteration(width=WIDTH),
    "one-shot averaging, p = 48": lp.methods.OneShot(steps=48, **HOW),
}


def main(folder):
    """Run every method, compare with numpy, write a model and a picture."""
    X = load_digits().data
    _, S, Vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    print(
        f"PCA of {X.shape[0]} digits of {X.shape[1]} pixels, the rows spread over {SHARDS} shards."
    )
    print("No row ever leaves its shard: a round sends a 64 x 8 matrix to each and gets one back.")
    print("The error is the sine of the largest angle to the components of numpy.linalg.svd.\n")

    curves, results = {}, {}
    for name, method in METHODS.items():
        if not curves:
            print(f"{name}:\n{'round':>7} {'steps':>5} {'moved':>9}    error")
        curves[name] = []
        results[name] = lp.pca(
            X,
            RANK,
            method,
            workers=SHARDS,
            partition="shuffled",
            max_rounds=ROUNDS,
            rng=0,
            callback=follow(curves[name], Vt[:RANK].T, live=len(curves) == 1),
        )
    print(
        f"\n{'':<30} {'to 2e-2':>9} {'rounds':>8} {'moved':>9} {'error':>9} {'values off by':>14}"
    )
    for name, result in results.items():
        moved, error = curves[name][-1]
        quick = next(
            (str(t) for t, (_, e) in enumerate(curves[name], start=1) if e < 2e-2), "never"
        )
        off = np.abs(result.singular_values / S[:RANK] - 1).max()
        rounds = len(result.history)
        print(f"{name:<30} {quick:>9} {rounds:>8} {moved:>6.0f} kB {error:>9.1e} {off:>14.1e}")

    print("\nLocal steps reach two digits in fewer rounds; halving p then goes on past the stall.")

    first = next(iter(results))
    results[first].save(folder / "model")
    draw(curves, folder / "convergence.png")
    print(f"model -> {folder / 'model'}   picture -> {folder / 'convergence.png'}")


def follow(curve, target, live):
    """Return a callback that notes kilobytes moved and error, and prints them if `live`."""

    def callback(record, state):
        before = curve[-1][0] if curve else 0.0
        moved = before + (record.bytes_up + record.bytes_down) / 1000
        error = lp.subspace_distance(target, state.basis)
        curve.append((moved, error))
        if live:
            bar = "#" * round(5 * (5 + np.log10(error)))
            print(f"{record.round:>7} {record.steps:>5} {moved:>6.0f} kB  {error:.1e} {bar}")

    return callback


def draw(curves, path):
    """Error against rounds and against kilobytes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for name, curve in curves.items():
        moved, error = zip(*curve, strict=True)
        left.semilogy(range(1, len(error) + 1), error, "o-", markersize=4, label=name)
        right.semilogy(moved, error, "o-", markersize=4)
    left.set(xlabel="rounds of communication", ylabel="error, sin θ")
    right.set(xlabel="moved, kB")
    left.legend()
    figure.suptitle(f"Digits, {RANK} components, {SHARDS} shards")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo"))
