"""PCA of a file that is larger than the memory it may use: local steps save passes over the disk.

python examples/larger_than_memory.py [picture]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import localpower as lp

ROWS, BLOCK, RANK, MEMORY = 400_000, 10_000, 5, "32MB"
METHODS = {
    "power iteration, p = 1": "dpi",
    "LocalPower, p = 8, halving": lp.LocalPower(steps=8, schedule="halving"),
    "LocalRitz": "local_ritz",
}


def write(path):
    """Write many digits, each in its own shade and with noise, block by block."""
    digits, rng = load_digits().data, np.random.default_rng(0)
    header = {"descr": "<f8", "fortran_order": False, "shape": (ROWS, digits.shape[1])}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(0, ROWS, BLOCK):
            block = digits[rng.integers(len(digits), size=BLOCK)]
            block *= rng.uniform(0.5, 1.5, (BLOCK, 1))
            block += rng.normal(size=block.shape)
            file.write(block.astype("<f8").tobytes())


def main(picture):
    """Fit the file in every way, and draw the error against what was read."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.npy")
        write(path)
        size = path.stat().st_size
        print(f"a file of {size / 1e6:.0f} MB, and {MEMORY} for its rows")
        for name, method in METHODS.items():
            result = lp.pca(path, RANK, method, tol=1e-4, max_rounds=100, memory=MEMORY, rng=0)
            read = np.cumsum([record.bytes_read for record in result.history]) / size
            angles = [record.angle for record in result.history]
            axes.semilogy(read, angles, "o-", markersize=4, label=name)
            print(
                f"{name:<28} {read[-1]:>4.0f} passes, {result.ledger.bytes_read / 1e9:>5.2f} GB "
                f"read in all, certified to {angles[-1]:.0e}"
            )
    axes.set(xlabel="passes over the file", ylabel="certified angle", ylim=(1e-6, 2))
    axes.set_title(f"{size / 1e6:.0f} MB of digits with {MEMORY} of memory", fontsize=10)
    axes.legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    print(f"-> {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/larger_than_memory.png"))
