"""Pictures of the documentation, from runs: ``python docs/pictures.py [NAME ...]`` draws them.

They are text, with no time and no random number in them but in that of the cluster.
"""

import sys
from pathlib import Path

import matplotlib as mpl
from sklearn.datasets import load_digits, load_iris, load_wine

import localpower as lp
from localpower.show.figures import STYLE

FOLDER = Path(__file__).parent / "pictures"


def wine():
    """Scores and biplot of the tutorial."""
    table = load_wine(as_frame=True).frame
    rows = lp.read(table, label="target")
    return lp.pca(rows, 3, scale="std", workers=2, rng=0).plot("biplot", rows)


def iris():
    """Rows coloured by a column that was not fitted."""
    table = load_iris(as_frame=True).frame
    table["species"] = load_iris().target_names[table.pop("target")]
    result = lp.pca(table.drop(columns="species"), 2, workers=2, rng=0)
    return result.plot("scores", table, color="species")


def convergence():
    """How a run of the page about pages converged."""
    digits = load_digits().data
    return lp.pca(digits, 6, "block_lanczos", tol=1e-8, workers=4, rng=0).plot("convergence")


def methods():
    """Methods side by side."""
    named = {
        "LocalRitz": "local_ritz:start=random",
        "block Lanczos": "block_lanczos",
        "DPI": "dpi",
        "LocalPower, p = 4": "local_power:steps=4",
        "Gram": "gram",
    }
    digits = load_digits().data
    return lp.compare(digits, 5, methods=named, workers=6, center=True, tol=1e-8).plot()


def cluster():
    """Where the time of a run on two Dask workers went."""
    digits = load_digits().data
    with lp.connect("dask:2") as engine:
        lp.pca(digits, 5, "block_lanczos", tol=1e-8, workers=4, engine=engine, rng=0)  # to warm up
        result = lp.pca(digits, 5, "block_lanczos", tol=1e-8, workers=4, engine=engine, rng=0)
    return result.plot("timeline")


PICTURES = {made.__name__: made for made in (wine, iris, convergence, methods, cluster)}


def draw(name, folder=FOLDER):
    """Draw one picture; the same run gives the same bytes."""
    path = folder / f"{name}.svg"
    with mpl.rc_context(STYLE):  # text stays text
        PICTURES[name]().savefig(path, metadata={"Date": None, "Title": PICTURES[name].__doc__})
    return path


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        print(draw(name))
