"""How fast each format is read, against the plain call of a library on the same file.

    python benchmarks/formats.py

Both go over all rows of the same file, in turn, several times; the best time counts. What a library
returns is put in the order of rows, as readers here do and as products with rows need. The table is
written to `benchmarks/formats.csv`: a reader of our own stays where its ratio is below 1, or where
it works without a library.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import localpower as lp
from localpower.worker.shard import Shard

SEED = 0
OUTPUT = Path(__file__).with_suffix(".csv")
Write = Callable[[Path], tuple[int, int]]
Read = Callable[[Path], Any]


def dense(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(SEED).standard_normal((rows, columns))


def table(X: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.table({f"c{j}": column.copy() for j, column in enumerate(X.T)})


def write_csv(path: Path) -> tuple[int, int]:
    import pyarrow.csv

    X = dense(20_000, 50)
    pyarrow.csv.write_csv(table(X), path)
    return X.shape


def write_gaps(path: Path) -> tuple[int, int]:
    """One field in ten rows is empty."""
    shape = write_csv(path)
    lines = path.read_text().splitlines()
    for number in range(1, len(lines), len(lines) // 10):
        lines[number] = "," + lines[number].partition(",")[2]
    path.write_text("\n".join(lines))
    return shape


def write_svmlight(path: Path) -> tuple[int, int]:
    X = sparse.random_array((20_000, 1000), density=0.05, rng=SEED, format="csr")
    words = [
        f" {i}:{x:.12g}" for i, x in zip((X.indices + 1).tolist(), X.data.tolist(), strict=True)
    ]
    with open(path, "w", encoding="ascii") as stream:
        for a, b in zip(X.indptr, X.indptr[1:], strict=False):
            stream.write("1" + "".join(words[a:b]) + "\n")
    return X.shape


def write_parquet(path: Path) -> tuple[int, int]:
    import pyarrow.parquet as pq

    X = dense(50_000, 100)
    pq.write_table(table(X), path)
    return X.shape


def write_feather(path: Path) -> tuple[int, int]:
    import pyarrow.feather

    X = dense(50_000, 100)
    pyarrow.feather.write_feather(table(X), path)
    return X.shape


def write_npy(path: Path) -> tuple[int, int]:
    X = dense(50_000, 100)
    np.save(path, X)
    return X.shape


def write_npz(path: Path) -> tuple[int, int]:
    X = sparse.random_array((50_000, 1000), density=0.06, rng=SEED, format="csr")
    sparse.save_npz(path, X)
    return X.shape


def write_hdf5(path: Path, **options: Any) -> tuple[int, int]:
    import h5py

    X = np.round(dense(50_000, 100), 2)
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, **options)
    return X.shape


def write_hdf5_gzip(path: Path) -> tuple[int, int]:
    return write_hdf5(path, chunks=(1000, 100), compression="gzip", compression_opts=1)


def write_zarr(path: Path) -> tuple[int, int]:
    import zarr

    X = dense(50_000, 100)
    zarr.create_array(path, shape=X.shape, chunks=(5000, 100), dtype=X.dtype)[:] = X
    return X.shape


def read_pandas(path: Path) -> Any:
    import pandas as pd

    return np.ascontiguousarray(pd.read_csv(path).to_numpy())


def read_pandas_exactly(path: Path) -> Any:
    import pandas as pd

    return np.ascontiguousarray(pd.read_csv(path, float_precision="round_trip").to_numpy())


def read_pandas_without_gaps(path: Path) -> Any:
    import pandas as pd

    return np.ascontiguousarray(pd.read_csv(path).dropna().to_numpy())


def read_pyarrow_csv(path: Path) -> Any:
    import pyarrow.csv

    return np.column_stack([column.to_numpy() for column in pyarrow.csv.read_csv(path).columns])


def read_loadtxt(path: Path) -> Any:
    return np.loadtxt(path, delimiter=",", skiprows=1)


def read_sklearn(path: Path) -> Any:
    from sklearn.datasets import load_svmlight_file

    return load_svmlight_file(str(path))


def read_pyarrow_parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    return np.ascontiguousarray(pq.read_table(path).to_pandas().to_numpy())


def read_pyarrow_feather(path: Path) -> Any:
    import pyarrow.feather

    return np.ascontiguousarray(pyarrow.feather.read_table(path).to_pandas().to_numpy())


def read_h5py(path: Path) -> Any:
    import h5py

    with h5py.File(path) as file:
        return file["X"][:]


def read_zarr(path: Path) -> Any:
    import zarr

    return zarr.open(path, mode="r")[:]


def sum_of_npy(path: Path) -> float:
    return float(np.load(path).sum())


def ours(path: Path, **options: Any) -> int:
    """Read a file as a run does, once."""
    rows = 0
    with lp.read(path, **options) as source:
        for block in Shard(source.pieces, source.columns, source.dtype).blocks():
            rows += block.shape[0]
    return rows


def ours_summed(path: Path) -> float:
    with lp.read(path) as source:
        shard = Shard(source.pieces, source.columns, source.dtype)
        return float(sum(block.sum() for block in shard.blocks()))


def ours_without_gaps(path: Path) -> int:
    return ours(path, missing="drop")


@contextmanager
def no_pyarrow() -> Iterator[None]:
    hidden = sys.modules.get("pyarrow")
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["pyarrow"]
        if hidden is not None:
            sys.modules["pyarrow"] = hidden


def ours_alone(path: Path) -> int:
    with no_pyarrow():
        return ours(path)


CASES: list[tuple[str, str, Write, Read, str, Read]] = [
    ("CSV", "x.csv", write_csv, ours, "pyarrow", read_pyarrow_csv),
    ("CSV", "x.csv", write_csv, ours, "pandas", read_pandas),
    ("CSV, exact", "x.csv", write_csv, ours, "pandas", read_pandas_exactly),
    ("CSV", "x.csv", write_csv, ours, "numpy", read_loadtxt),
    ("CSV, 10 gaps", "x.csv", write_gaps, ours_without_gaps, "pandas", read_pandas_without_gaps),
    ("CSV, no pyarrow", "x.csv", write_csv, ours_alone, "numpy", read_loadtxt),
    ("svmlight", "x.svm", write_svmlight, ours, "scikit-learn", read_sklearn),
    ("svmlight, no pyarrow", "x.svm", write_svmlight, ours_alone, "scikit-learn", read_sklearn),
    ("Parquet", "x.parquet", write_parquet, ours, "pyarrow", read_pyarrow_parquet),
    ("Feather", "x.feather", write_feather, ours, "pyarrow", read_pyarrow_feather),
    ("npy, summed", "x.npy", write_npy, ours_summed, "numpy", sum_of_npy),
    ("npz, CSR", "x.npz", write_npz, ours, "scipy", sparse.load_npz),
    ("HDF5", "x.h5", write_hdf5, ours, "h5py", read_h5py),
    ("HDF5, gzip", "x.h5", write_hdf5_gzip, ours, "h5py", read_h5py),
    ("Zarr", "x.zarr", write_zarr, ours, "zarr", read_zarr),
]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    format: str
    library: str
    library_version: str
    rows: int
    columns: int
    seed: int
    ours_seconds: float
    library_seconds: float
    ratio: float  # of times, ours to the library's
    version: str


def seconds(read: Read, path: Path) -> float:
    start = time.perf_counter()
    read(path)
    return time.perf_counter() - start


def measure(case: tuple[str, str, Write, Read, str, Read], folder: Path, repeats: int) -> Row:
    name, file, write, mine, library, plain = case
    path = folder / file
    rows, columns = write(path)
    times = [(seconds(mine, path), seconds(plain, path)) for _ in range(repeats)]
    best = [min(column) for column in zip(*times, strict=True)]
    shown = [round(t, 4) for t in best]
    ratio = round(best[0] / best[1], 2)
    known = version(library)
    return Row(name, library, known, rows, columns, SEED, *shown, ratio, lp.__version__)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the table is written")
    options = parser.parse_args(arguments)

    print(f"{'format':<21}{'library':<14}{'rows × columns':>16}{'ours':>9}{'library':>9}  ratio")
    found = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(case, Path(folder), options.repeats)
        found.append(row)
        shape = f"{row.rows} × {row.columns}"
        times = f"{row.ours_seconds:>9.3f}{row.library_seconds:>9.3f}{row.ratio:>7.2f}"
        print(f"{row.format:<21}{row.library:<14}{shape:>16}{times}", flush=True)
    with open(options.output, "w", encoding="utf-8", newline="") as stream:
        out = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
        out.writeheader()
        out.writerows(map(asdict, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
