"""What it takes to make scores of rows that do not fit in memory, beside what others take.

    python benchmarks/transform.py --output benchmarks/transform.csv   # 12 GB in files
    python benchmarks/transform.py --rows 150000                       # a tenth of that
    python benchmarks/transform.py --cluster 20 --output benchmarks/transform.csv

`--cluster` makes a Dask array of 20 GB while it is read, fits it, and writes its scores as Zarr.
What the output has already, of as many rows, is not measured again: a run that was interrupted goes
on with its next case.

Rows are written by this script, in a temporary directory, and deleted afterwards; with `--folder`
they stay there for the next run. Every measurement
is a process of its own: its peak memory is that of the whole process, Python included. Those that
are compared take turns, `--repeats` times, and the median counts. All make 20 scores of 1000
centred columns. A peer that is not installed is named as missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

COLUMNS, RANK, CHUNK, FILES = 1000, 20, 8192, 12
FIELDS = ("case", "who", "rows", "seconds", "times_best", "peak_bytes", "limit_bytes", "outcome",
          "version")  # fmt: skip
LIMITS = {"npy": 1.6e9, "parquet": 1.6e9, "cluster": 6e8}
PEERS = {"dask_ml": ("dask_ml", "dask"), "spark_ml": ("pyspark", "spark")}
CASES = {
    "npy": ("ours", "numpy"),
    "parquet": ("ours", "numpy"),
    "dask": ("ours", "dask_ml", "numpy"),
    "spark": ("ours", "spark_ml"),
}


def block(rows: int, seed: int) -> np.ndarray:
    """Some rows; the same noise is used again, as drawing it would take longer than all else."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((rows, 30)) * 0.8 ** np.arange(30)
    axes = np.random.default_rng(0).standard_normal((30, COLUMNS))
    return scores @ axes + 3.0


def write_rows(folder: Path, rows: int, form: str) -> None:
    """Write the rows as one ``.npy`` file, or as Parquet files."""
    if form == "npy":
        header = {"descr": "<f8", "fortran_order": False, "shape": (rows, COLUMNS)}
        with open(folder / "rows.npy", "wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for start in range(0, rows, CHUNK):
                stream.write(block(min(CHUNK, rows - start), start).data)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f"x{i}" for i in range(COLUMNS)]
    starts = list(range(0, rows, CHUNK))
    (folder / "rows").mkdir()
    for number, mine in enumerate(np.array_split(starts, FILES)):
        writer = None
        for start in mine:
            table = pa.table(list(block(min(CHUNK, rows - start), int(start)).T), names=names)
            path = folder / "rows" / f"{number:02}.parquet"
            writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def model(named: bool):
    """A model of some of the rows."""
    import localpower as lp

    rows = block(4 * CHUNK, 0)
    if not named:
        return lp.pca(rows, RANK, "gram", rng=0)
    import pandas as pd

    return lp.pca(pd.DataFrame(rows, columns=[f"x{i}" for i in range(COLUMNS)]), RANK, "gram")


# What is measured: each returns a function, which is timed.


def files_ours(folder: Path, form: str):
    fitted = model(form == "parquet")
    data = folder / ("rows.npy" if form == "npy" else "rows")
    return lambda: fitted.transform(data, out=folder / "scores.npy", memory="1GB")


def files_numpy(folder: Path, form: str):
    """What one would write by hand: read a chunk, centre it, multiply it, write it."""
    fitted = model(form == "parquet")
    V, mean = np.ascontiguousarray(fitted.components.T), fitted.mean

    def chunks():
        if form == "npy":
            rows = np.load(folder / "rows.npy", mmap_mode="r")
            for start in range(0, len(rows), CHUNK):
                yield np.asarray(rows[start : start + CHUNK])
            return
        import pyarrow.parquet as pq

        for path in sorted((folder / "rows").iterdir()):
            for batch in pq.ParquetFile(path).iter_batches(CHUNK):
                yield np.stack([column.to_numpy() for column in batch.columns], axis=1)

    def run():
        with open(folder / "bare.raw", "wb") as out:
            for rows in chunks():
                out.write(((rows - mean) @ V).data)
            out.flush()
            os.fsync(out.fileno())

    return run


def dask_array(folder: Path):
    import dask.array as da
    import distributed  # noqa: F401 (Dask imports it in its first computation; dask-ml did so before)

    return da.from_array(np.load(folder / "rows.npy", mmap_mode="r"), chunks=(CHUNK, COLUMNS))


def dask_ours(folder: Path, form: str):
    fitted, rows = model(False), dask_array(folder)
    return lambda: fitted.transform(rows).compute(scheduler="threads")


def dask_dask_ml(folder: Path, form: str):
    import dask.array as da
    from dask_ml.decomposition import PCA

    sample = da.from_array(block(4 * CHUNK, 0), chunks=(CHUNK, COLUMNS))
    fitted, rows = (
        PCA(RANK, svd_solver="full").fit(sample),
        dask_array(folder),
    )
    return lambda: fitted.transform(rows).compute(scheduler="threads")


def dask_numpy(folder: Path, form: str):
    return files_numpy(folder, "npy")


def session():
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {"driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1"}
    settings |= {"driver.memory": "4g", "ui.enabled": "false", "log.level": "ERROR"}
    build = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        build = build.config(f"spark.{name}", value)
    return build.getOrCreate()


def spark_frame(folder: Path, spark):
    """The rows as vectors in Parquet of Spark's own, written once."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql.functions import array, col

    path = folder / "vectors"
    if not path.exists():
        rows = spark.read.parquet(str(folder / "rows"))
        vectors = array_to_vector(array(*(col(name) for name in rows.columns)))
        rows.select(vectors.alias("features")).write.parquet(str(path))
    return spark.read.parquet(str(path))


def finish(frame):
    frame.write.format("noop").mode("overwrite").save()


def spark_ours(folder: Path, form: str):
    fitted, frame = model(False), spark_frame(folder, session())
    finish(fitted.transform(frame, keep=()))  # Python workers are started
    return lambda: finish(fitted.transform(frame, keep=()))


def spark_spark_ml(folder: Path, form: str):
    from pyspark.ml.feature import PCA

    frame = spark_frame(folder, session())
    fitted = PCA(k=RANK, inputCol="features", outputCol="scores").fit(frame.limit(4 * CHUNK))
    finish(fitted.transform(frame).select("scores"))
    return lambda: finish(fitted.transform(frame).select("scores"))


def child(case: str, who: str, folder: Path) -> None:
    """Measure one, and print what it took."""
    start = "files" if case in ("npy", "parquet") else case
    run = globals()[f"{start}_{who}"](folder, case)
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps({"seconds": seconds, "peak_bytes": peak}))


def cluster(folder: Path, gigabytes: float) -> None:
    """Fit and transform a lazy Dask array that fits nowhere, and write its scores as Zarr."""
    import dask.array as da
    from distributed import Client, LocalCluster

    import localpower as lp

    rows = int(gigabytes * 1e9 / 8 / COLUMNS) // CHUNK * CHUNK
    lines = da.arange(rows, chunks=CHUNK)
    X = lines.map_blocks(
        lambda part: block(len(part), int(part[0])), new_axis=1, chunks=(lines.chunks[0], COLUMNS),
        dtype=float, meta=np.empty((0, 0)),
    )  # fmt: skip
    limit = 2_000_000_000
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": limit}
    begin = time.perf_counter()
    with (
        LocalCluster(host="127.0.0.1", dashboard_address=":0", **options) as own,
        Client(own) as client,
    ):
        result = lp.pca(X, RANK, engine=client, rng=0, memory="1GB")
        fitted = time.perf_counter() - begin
        scores = result.transform(X)
        layers = [name for name in scores.dask.layers if name not in X.dask.layers]
        scores.to_zarr(str(folder / "scores.zarr"))
        seconds = time.perf_counter() - begin - fitted
        first = scores[:CHUNK].compute()
        worst = max(client.run(peak).values())
    same = float(np.abs(first - result.transform(block(CHUNK, 0))).max())
    what = f"fit {fitted:.0f} s, {len(layers)} layer, off by {same:.0e}, a worker {worst / 1e6:.0f}"
    done = {
        "rows": rows,
        "seconds": seconds,
        "peak_bytes": peak(),
        "limit_bytes": LIMITS["cluster"],
    }
    print(json.dumps(done | {"outcome": f"{what} of {limit / 1e6:.0f} MB"}))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measure(*arguments: object) -> dict[str, object]:
    """Run a child and return what it printed last."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def compared(case: str, folder: Path, rows: int, repeats: int) -> list[dict[str, object]]:
    """Have all of a case take turns."""
    there, missing = [], []
    for who in CASES[case]:
        needed = (*PEERS.get(who, ()), "pyspark" if case == "spark" else "numpy")
        library = next((name for name in needed[:1] + needed[-1:] if not find_spec(name)), "")
        (missing if library else there).append(who)
    found = {who: [] for who in there}
    for _ in range(repeats):
        for who in there:
            found[who].append(measure(case, who, folder))
    middle = {who: median(run["seconds"] for run in runs) for who, runs in found.items()}
    best = min(middle.values(), default=0.0)
    lines = [
        {"case": case, "who": who, "rows": rows, "seconds": round(middle[who], 2),
         "times_best": round(middle[who] / best, 2),
         "peak_bytes": max(run["peak_bytes"] for run in runs),
         "limit_bytes": LIMITS.get(case, "") if who == "ours" else "", "outcome": ""}
        for who, runs in found.items()
    ]  # fmt: skip
    return [*lines, *({"case": case, "who": who, "outcome": "not installed"} for who in missing)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_500_000, help="of the files")
    parser.add_argument("--peer-rows", type=int, default=131_072, help="for Dask and Spark")
    parser.add_argument("--repeats", type=int, default=3, help="0 only writes rows to --folder")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--folder", help="where rows are, or are written and stay")
    parser.add_argument("--cluster", type=float, metavar="GB", help="only the lazy Dask array")
    parser.add_argument("--output", metavar="CSV")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        case, who, folder = options.child
        if case == "cluster":
            cluster(Path(folder), float(who))
        else:
            child(case, who, Path(folder))
        return
    cases = ["cluster"] if options.cluster else options.cases.split(",")
    with tempfile.TemporaryDirectory() as name:
        for case in cases:
            if options.cluster:
                rows = int(options.cluster * 1e9 / 8 / COLUMNS) // CHUNK * CHUNK
            else:
                rows = options.rows if case in ("npy", "parquet") else options.peer_rows
            if not known(options.output, case, rows):
                inside = Path(options.folder or name) / case
                inside.mkdir(exist_ok=True)
                lines = measured(case, inside, rows, options)
                if not options.folder:
                    shutil.rmtree(inside)
                enter(options.output, case, lines)


def measured(
    case: str, folder: Path, rows: int, options: argparse.Namespace
) -> list[dict[str, object]]:
    """Measure all of a case, and print it."""
    if case == "cluster":
        found = measure("cluster", options.cluster, folder)
        found["seconds"] = round(found["seconds"], 2)
        lines = [{"case": "cluster", "who": "ours"} | found]
    else:
        form = "npy" if case in ("npy", "dask") else "parquet"
        if not (folder / ("rows.npy" if form == "npy" else "rows")).exists():
            write_rows(folder, rows, form)
        if not options.repeats:
            return []
        lines = compared(case, folder, rows, options.repeats)
    import localpower as lp

    for line in lines:
        line["version"] = lp.__version__
        print(
            ", ".join(f"{key} {line[key]}" for key in FIELDS[:-1] if line.get(key, "") != ""),
            flush=True,
        )
    return lines


def entered(output: str | None) -> list[dict[str, str]]:
    if output is None or not Path(output).exists():
        return []
    with open(output, newline="") as stream:
        return list(csv.DictReader(stream))


def known(output: str | None, case: str, rows: int) -> bool:
    """Whether the file has this case, of as many rows, so that it need not be measured again."""
    lines = [line for line in entered(output) if line["case"] == case]
    done = any(line["rows"] == str(rows) for line in lines)
    if done:
        print(f"{case}: {rows} rows are in {output} already; take them out to measure again")
    return done


def enter(output: str | None, case: str, lines: list[dict[str, object]]) -> None:
    """Write a case in the place of what the file had of it."""
    if output is None or not lines:
        return
    others = [line for line in entered(output) if line["case"] != case]
    with open(output, "w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        writer.writeheader()
        writer.writerows([*others, *lines])


if __name__ == "__main__":
    main()
