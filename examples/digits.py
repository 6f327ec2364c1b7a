"""PCA of handwritten digits: a map of them, and what it is drawn from.

python examples/digits.py [picture]
"""

import sys
from pathlib import Path

from matplotlib import colormaps
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import localpower as lp

RANK, SHARDS = 10, 8


def main(path):
    """Fit, print what was found, draw it."""
    X, digit = load_digits(return_X_y=True)
    result = lp.pca(X, RANK, workers=SHARDS, rng=0)
    print(result)
    scores = result.transform(X)
    again = result.inverse_transform(scores)

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.5))
    axes = left.subplots()
    for d in range(10):
        mine = digit == d
        axes.scatter(*scores[mine, :2].T, s=6, color=colormaps["tab10"](d), label=d)
    axes.set(xlabel="component 1", ylabel="component 2", title="A map of 1797 digits")
    axes.legend(ncols=2, markerscale=2, fontsize=8)
    rows = {"components": result.components, "digits": X, f"from {RANK} numbers": again}
    for line, (name, images) in zip(right.subplots(3, 8), rows.items(), strict=True):
        for axes, image in zip(line, images, strict=False):
            axes.imshow(image.reshape(8, 8), cmap="gray_r")
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"-> {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/digits.png"))
