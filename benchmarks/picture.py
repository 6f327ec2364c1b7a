"""The picture in the README: error against rounds on MNIST, in eight shards.

    python benchmarks/picture.py                        # draws docs/rounds.svg from picture.csv
    python benchmarks/picture.py --measure [FOLDER]     # measures picture.csv again, then draws

Rows are shuffled, columns divided by their largest magnitude, as in `rounds.py`. The picture is
plain SVG of a few kilobytes in colours that are read on white and on black.
"""

import csv
import sys
from html import escape
from itertools import groupby
from math import log10
from pathlib import Path

import numpy as np

import localpower as lp
from localpower.paper.problems import load

HERE = Path(__file__).parent
NUMBERS, PICTURE = HERE / "picture.csv", HERE.parent / "docs" / "rounds.svg"
RANK, SHARDS, ROUNDS, LOWEST = 5, 8, 80, 1e-8
METHODS = {
    "LocalRitz": ("local_ritz", "#2f81f7"),
    "block Krylov": ("block_krylov:start=random", "#1a9e5c"),
    "DPI": ("dpi", "#d9691c"),
    "LocalPower, p = 4": ("local_power:steps=4", "#c45bb0"),
}
LEFT, TOP, WIDE, HIGH = 56, 34, 560, 240  # of the plot, in pixels
GREY = "#7d8590"


def measure(folder):
    """Run each method until it is as exact as is shown; the truth is numpy's."""
    X = load("mnist", "uniform", folder).X
    X = X[np.random.default_rng(0).permutation(len(X))]
    target = np.linalg.eigh(X.T @ X)[1][:, : -RANK - 1 : -1]
    with NUMBERS.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["method", "round", "error"])
        for name, (method, _) in METHODS.items():

            def note(record, state, name=name):
                error = lp.subspace_distance(target, state.basis[:, :RANK])
                table.writerow([name, record.round, f"{error:.3e}"])
                return error <= LOWEST

            how = {"workers": SHARDS, "max_rounds": ROUNDS, "rng": 0, "callback": note}
            lp.svd(X, RANK, method, **how)


def place(number, error):
    """Pixels of a point."""
    down = log10(max(error, LOWEST)) / log10(LOWEST)
    return LEFT + WIDE * (number - 1) / (ROUNDS - 1), TOP + HIGH * min(max(down, 0), 1)


def text(x, y, words, anchor="middle", colour=GREY):
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(words)}</text>"
    )


def svg(rows):
    """Draw axes, a line for each method, and its name at the end of it."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 330" width="760" height="330" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>Error against rounds of communication on MNIST in eight shards</title>",
    ]
    for power in range(0, 9, 2):
        x, y = place(1, 10.0**-power)
        parts.append(f'<path d="M{x:.0f} {y:.0f}h{WIDE}" stroke="{GREY}" stroke-opacity=".3"/>')
        parts.append(text(x - 8, y + 4, f"1e-{power}" if power else "1", "end"))
    ticks = (1, *range(10, ROUNDS + 1, 10))
    parts += [text(place(number, 1)[0], TOP + HIGH + 20, str(number)) for number in ticks]
    parts.append(text(LEFT + WIDE / 2, TOP + HIGH + 42, "rounds of communication"))
    title = f"MNIST, {RANK} components, {SHARDS} shards: sine of the angle to the exact ones"
    parts.append(text(LEFT, 18, title, "start"))
    for name, found in groupby(rows, key=lambda row: row["method"]):
        colour = METHODS[name][1]
        points = [place(int(row["round"]), float(row["error"])) for row in found]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        look = f'fill="none" stroke="{colour}" stroke-width="2.2" stroke-linejoin="round"'
        parts.append(f'<polyline points="{line}" {look}/>')
        x, y = points[-1]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        right, down = {"LocalRitz": (26, -26), "block Krylov": (12, -8)}.get(name, (9, 4))
        parts.append(text(x + right, y + down, name, "start", colour))
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measure(next(iter(sys.argv[2:]), None))
    with NUMBERS.open(encoding="utf-8") as stream:
        PICTURE.write_text(svg(csv.DictReader(stream)), encoding="utf-8")
    print(f"-> {PICTURE}")
