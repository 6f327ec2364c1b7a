"""How fast each format is read, against the plain call of the library for it on the same file.

    python benchmarks/formats.py

Both go over all rows of a file of 50 to 100 MB, in turn, several times; the best time counts.
A pandas frame holds columns one after the other. Where "in rows" stands, the plain call also puts
its numbers in the order of rows, as readers here do and as products with rows need.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import localpower as lp
from localpower.worker.shard import Shard

LIMIT = 1.2  # times the plain call
Write = Callable[[Path], tuple[int, int]]
Read = Callable[[Path], Any]


def dense(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, columns))


def write_npy(path: Path) -> tuple[int, int]:
    X = dense(100_000, 100)
    np.save(path, X)
    return X.shape


def write_csv(path: Path) -> tuple[int, int]:
    import pyarrow as pa
    import pyarrow.csv

    X = dense(40_000, 100)
    pyarrow.csv.write_csv(pa.table({f"c{j}": column.copy() for j, column in enumerate(X.T)}), path)
    return X.shape


def write_svmlight(path: Path) -> tuple[int, int]:
    X = sparse.random_array((60_000, 1000), density=0.05, rng=0, format="csr")
    words = [
        f" {i}:{x:.12g}" for i, x in zip((X.indices + 1).tolist(), X.data.tolist(), strict=True)
    ]
    with open(path, "w", encoding="ascii") as stream:
        for a, b in zip(X.indptr, X.indptr[1:], strict=False):
            stream.write("1" + "".join(words[a:b]) + "\n")
    return X.shape


def write_parquet(path: Path) -> tuple[int, int]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    X = dense(100_000, 100)
    pq.write_table(pa.table({f"c{j}": column.copy() for j, column in enumerate(X.T)}), path)
    return X.shape


def write_feather(path: Path) -> tuple[int, int]:
    import pyarrow as pa
    import pyarrow.feather

    X = dense(100_000, 100)
    table = pa.table({f"c{j}": column.copy() for j, column in enumerate(X.T)})
    pyarrow.feather.write_feather(table, path)
    return X.shape


def write_npz(path: Path) -> tuple[int, int]:
    X = sparse.random_array((100_000, 1000), density=0.06, rng=0, format="csr")
    sparse.save_npz(path, X)
    return X.shape


def write_hdf5(path: Path) -> tuple[int, int]:
    import h5py

    X = dense(100_000, 100)
    with h5py.File(path, "w") as file:
        file["X"] = X
    return X.shape


def write_hdf5_chunks(path: Path) -> tuple[int, int]:
    import h5py

    X = np.round(dense(100_000, 100), 2)
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(1000, 100), compression="gzip", compression_opts=1)
    return X.shape


def write_zarr(path: Path) -> tuple[int, int]:
    import zarr

    X = dense(100_000, 100)
    zarr.create_array(path, shape=X.shape, chunks=(5000, 100), dtype=X.dtype)[:] = X
    return X.shape


def plain_npy(path: Path) -> float:
    return float(np.load(path).sum())


def plain_csv(path: Path) -> Any:
    import pandas as pd

    return pd.read_csv(path).to_numpy()


def plain_svmlight(path: Path) -> Any:
    from sklearn.datasets import load_svmlight_file

    return load_svmlight_file(str(path))


def plain_parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pandas().to_numpy()


def plain_feather(path: Path) -> Any:
    import pyarrow.feather

    return pyarrow.feather.read_table(path).to_pandas().to_numpy()


def rows_of_parquet(path: Path) -> Any:
    return np.ascontiguousarray(plain_parquet(path))


def rows_of_feather(path: Path) -> Any:
    return np.ascontiguousarray(plain_feather(path))


def plain_hdf5(path: Path) -> Any:
    import h5py

    with h5py.File(path) as file:
        return file["X"][:]


def plain_zarr(path: Path) -> Any:
    import zarr

    return zarr.open(path, mode="r")[:]


def blocks(path: Path) -> int:
    """Read a file as a run does, once."""
    rows = 0
    with lp.read(path) as source:
        for block in Shard(source.pieces, source.columns, source.dtype).blocks():
            rows += block.shape[0]
    return rows


def sum_of_blocks(path: Path) -> float:
    with lp.read(path) as source:
        shard = Shard(source.pieces, source.columns, source.dtype)
        return float(sum(block.sum() for block in shard.blocks()))


FORMATS: dict[str, tuple[str, Write, Read, Read]] = {
    "CSV": ("x.csv", write_csv, blocks, plain_csv),
    "svmlight": ("x.svm", write_svmlight, blocks, plain_svmlight),
    "Parquet": ("x.parquet", write_parquet, blocks, plain_parquet),
    "Parquet, in rows": ("x.parquet", write_parquet, blocks, rows_of_parquet),
    "Feather": ("x.feather", write_feather, blocks, plain_feather),
    "Feather, in rows": ("x.feather", write_feather, blocks, rows_of_feather),
    "npy, summed": ("x.npy", write_npy, sum_of_blocks, plain_npy),
    "npz, CSR": ("x.npz", write_npz, blocks, sparse.load_npz),
    "HDF5": ("x.h5", write_hdf5, blocks, plain_hdf5),
    "HDF5, gzip": ("y.h5", write_hdf5_chunks, blocks, plain_hdf5),
    "Zarr": ("x.zarr", write_zarr, blocks, plain_zarr),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    format: str
    rows: int
    columns: int
    ours: float  # rows a second
    plain: float
    ratio: float  # of times, ours to plain
    version: str


def seconds(read: Read, path: Path) -> float:
    start = time.perf_counter()
    read(path)
    return time.perf_counter() - start


def measure(name: str, folder: Path, repeats: int) -> Row:
    file, write, ours, plain = FORMATS[name]
    path = folder / file
    rows, columns = write(path)
    times = [(seconds(ours, path), seconds(plain, path)) for _ in range(repeats)]
    best = [min(column) for column in zip(*times, strict=True)]
    rates = [round(rows / t) for t in best]
    return Row(name, rows, columns, *rates, round(best[0] / best[1], 2), lp.__version__)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=FORMATS, action="append", help="some formats only")
    parser.add_argument("--output", type=Path, help="also write the table to this CSV file")
    options = parser.parse_args(arguments)

    print(f"{'format':<17}{'rows × columns':>18}{'ours, rows/s':>14}{'plain, rows/s':>15}  ratio")
    table = []
    for name in options.only or FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, Path(folder), options.repeats)
        table.append(row)
        shape = f"{row.rows} × {row.columns}"
        print(f"{name:<17}{shape:>18}{row.ours:>14}{row.plain:>15}{row.ratio:>7.2f}", flush=True)
    slow = [row.format for row in table if row.ratio > LIMIT]
    print(f"above {LIMIT} times the plain call: {', '.join(slow) or 'none'}")
    if options.output:
        with open(options.output, "w", encoding="utf-8", newline="") as stream:
            out = csv.DictWriter(stream, [field.name for field in fields(Row)])
            out.writeheader()
            out.writerows(map(asdict, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
