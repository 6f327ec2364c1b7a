"""What missing values cost: one CSV file with gaps against the same file without, beside pandas.

    python benchmarks/gaps.py

Both libraries read each file in turn, several times; the least processor time counts, which other
programs disturb less. Ratios are to the file without gaps, of the same run. The table is written
to `benchmarks/gaps.csv`.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

import localpower as lp

SEED, ROWS, COLUMNS = 0, 20_000, 50
OUTPUT = Path(__file__).with_suffix(".csv")
SHARE = ROWS * COLUMNS // 20  # five in a hundred
GAPS = [(0, ""), (1, ""), (10, ""), (1000, ""), (SHARE, "")]
GAPS += [(SHARE, word) for word in ("NA", "NaN", "null", "?", "-", '""', " ")]
FIELDS = ["gaps", "word", "missing", "seconds", "ratio", "pandas_seconds", "pandas_ratio"]
FIELDS += ["rows", "columns", "seed", "version", "pandas_version"]


def write(path: Path, gaps: int, word: str) -> None:
    rng = np.random.default_rng(SEED)
    fields = [repr(value) for value in rng.standard_normal(ROWS * COLUMNS).tolist()]
    for at in rng.choice(len(fields), gaps, replace=False):
        fields[at] = word
    names = ",".join(f"c{j}" for j in range(COLUMNS))
    lines = (",".join(fields[i : i + COLUMNS]) for i in range(0, len(fields), COLUMNS))
    path.write_text("\n".join([names, *lines, ""]))


def seconds(read: Callable[[], object]) -> float:
    start = time.process_time()
    read()
    return time.process_time() - start


def with_pandas(path: Path, missing: str) -> object:
    frame = pd.read_csv(path, na_values=["?", "-", " "])
    frame = frame.dropna() if missing == "drop" else frame.fillna(frame.mean())
    return np.ascontiguousarray(frame.to_numpy())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the table is written")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", lp.DataHint)
    found = []
    print(f"{'gaps':>6} {'as':<6}{'missing':<8}{'ours':>8}{'ratio':>7}{'pandas':>9}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.csv") for number in range(len(GAPS))]
        for path, gap in zip(paths, GAPS, strict=True):
            write(path, *gap)
        cases = [(path, how) for how in ("mean", "drop") for path in paths]
        times: dict[tuple[Path, str], list[list[float]]] = {case: [[], []] for case in cases}
        for _ in range(options.repeats):  # in turn, so that all meet the same noise
            for path, how in cases:
                ours, other = times[path, how]
                ours.append(seconds(lambda path=path, how=how: lp.read(path, missing=how)))
                other.append(seconds(lambda path=path, how=how: with_pandas(path, how)))
        for path, how in cases:
            gaps, word = GAPS[paths.index(path)]
            best = [min(each) for each in times[path, how]]
            base = [min(each) for each in times[paths[0], how]]
            ratios = [round(a / b, 2) for a, b in zip(best, base, strict=True)]
            shown = [round(t, 4) for t in best]
            row = [gaps, word, how, shown[0], ratios[0], shown[1], ratios[1]]
            row += [ROWS, COLUMNS, SEED, lp.__version__, version("pandas")]
            found.append(dict(zip(FIELDS, row, strict=True)))
            print(f"{gaps:>6} {word!r:<6}{how:<8}{shown[0]:>8.3f}{ratios[0]:>7.2f}"
                  f"{shown[1]:>9.3f}{ratios[1]:>7.2f}")  # fmt: skip
    with open(options.output, "w", encoding="utf-8", newline="") as stream:
        out = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        out.writeheader()
        out.writerows(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
