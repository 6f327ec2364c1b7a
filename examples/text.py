"""What Python's standard library is about: the SVD of its words, from a sparse matrix.

python examples/text.py [picture]
"""

import sys
import sysconfig
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.feature_extraction.text import TfidfVectorizer

import localpower as lp

RANK, WORDS = 6, 8
LEFT_OUT = {"site-packages", "test", "tests", "encodings", "lib2to3", "idlelib"}


def main(path):
    """Read the sources, find what goes together, draw the words of each component."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(f for f in folder.rglob("*.py") if not LEFT_OUT & set(f.parts))
    texts = [file.read_text(encoding="utf-8", errors="ignore") for file in files]
    words = TfidfVectorizer(min_df=5, max_df=0.4, sublinear_tf=True, token_pattern="[a-z]{3,}")
    X = words.fit_transform(texts)  # stays sparse
    names = words.get_feature_names_out()
    print(f"{X.shape[0]} files, {X.shape[1]} words, {X.nnz / np.prod(X.shape):.1%} not zero")

    result = lp.svd(X, RANK, method="local_ritz", tol=1e-8, workers=4, rng=0)
    print(result)

    figure = Figure(figsize=(11, 6), layout="constrained")
    for number, axes in enumerate(figure.subplots(2, 3).flat):
        component = result.components[number]
        top = np.argsort(np.abs(component))[-WORDS:]
        print(f"{number + 1}: {' '.join(names[top[::-1]])}")
        colours = np.where(component[top] > 0, "#0072B2", "#D55E00")
        axes.barh(names[top], component[top], color=colours)
        axes.set_title(f"component {number + 1}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"-> {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/text.png"))
