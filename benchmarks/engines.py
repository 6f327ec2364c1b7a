"""What a round costs on each engine, against a bare round of the same engine.

    python benchmarks/engines.py                        # all engines, benchmarks/engines.csv
    python benchmarks/engines.py --engines dask ray

A round of ours sends a basis to the workers and brings products back, with the ledger, the checks
of replies and the sum in a fixed order. A bare round moves arrays of the same size with the own
means of the engine, in the way its manual shows: a pipe to every process, futures and `gather`, one
`put` and actors, a broadcast variable and a job, `Bcast` and `Gather`. Both are run in turns on the
same cluster, and the ratio is that of their medians.

With 2,000 rows a shard, bare workers multiply as ours do, with the same kernel: that is a round as
it is in use, and the ratio what a program of one's own would save. With one row there is nothing
but messages: bare workers send back what they get, and the ratio is of ours less the `work`, the
time that the slower shard took for its product. What is `added` to a bare round is a cost of the
round, not of its bytes.

The goal is a ratio of at most 1.3 in every row; those above it are named. It is missed by empty
rounds of 80 kB on processes and MPI, where a bare round takes less time than our headers, checks
and ledger do.

For Dask, the bytes of the ledger are compared with what went over the loopback interface: a basis
reaches every worker once, the first by way of the scheduler, which is a copy more than the ledger
has. (Dask itself counts only what workers send each other.)
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

import localpower as lp
from localpower.engines.ledgered import Ledgered
from localpower.engines.retrying import Retrying
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Shard
from localpower.worker.tasks import PowerSteps

# columns, width and rows of a shard; messages have 80 kB, 80 kB, 2.4 MB and 16 MB
SIZES = ((1000, 10, 2000), (1000, 10, 1), (20_000, 15, 1), (100_000, 20, 1))
GOAL = 1.3
WORKERS = (2, 4)
RUNS = {"mpi": 7, "processes": 5}  # where rounds are short; the one of median ratio is told
Round = Callable[[], Any]
FIELDS = ("engine", "d", "r", "rows", "workers", "rounds", "ours_ms", "work_ms", "bare_ms",
          "added_ms", "ratio", "ledger_bytes", "wire_bytes", "version")  # fmt: skip


def shard(number: int, d: int, rows: int) -> Shard:
    block = np.random.default_rng([0, number]).standard_normal((rows, d))
    return Shard((block,), d, block.dtype, number=number)


def bare_worker(number: int, d: int, rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """What a worker of a bare round does: multiply, or send back what it gets."""
    return np.copy if rows == 1 else LocalMatrix(shard(number, d, rows)).product


def placed(engine: Any, d: int, rows: int, workers: int) -> Ledgered:
    """Give every worker a shard."""
    metered = Ledgered(Retrying(engine))
    metered.place([shard(number, d, rows) for number in range(workers)])
    return metered


def our_round(engine: Ledgered, Z: np.ndarray) -> Round:
    return lambda: engine.sum(PowerSteps(Z, 1)).product


def work_of(engine: Ledgered) -> list[float]:
    """Seconds that the slowest shard took in each round."""
    rounds = engine.timeline["rounds"]
    return [entry["slowest"][0][0] for entry in rounds if entry["task"] == "PowerSteps"]


def answer(pipe: Any, shape: tuple[int, int], number: int, rows: int) -> None:
    work = bare_worker(number, shape[0], rows)
    while message := pipe.recv_bytes():
        reply = message if rows == 1 else work(np.frombuffer(message).reshape(shape)).data
        pipe.send_bytes(reply)


@contextmanager
def processes(Z: np.ndarray, rows: int, workers: int) -> Iterator[tuple[Ledgered, Round]]:
    spawn = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for number in range(workers):
        here, there = spawn.Pipe()
        job = there, Z.shape, number, rows
        children.append(spawn.Process(target=answer, args=job, daemon=True))
        children[-1].start()
        pipes.append(here)

    def bare() -> np.ndarray:
        for pipe in pipes:
            pipe.send_bytes(Z.tobytes())
        return sum(np.frombuffer(pipe.recv_bytes()).reshape(Z.shape) for pipe in pipes)

    with lp.connect(f"processes:{workers}") as engine:
        yield placed(engine, len(Z), rows, workers), bare
    for pipe, child in zip(pipes, children, strict=True):
        pipe.send_bytes(b"")
        child.join()


def called(work: Callable[[np.ndarray], np.ndarray], Z: np.ndarray) -> np.ndarray:
    return work(Z)


@contextmanager
def dask(Z: np.ndarray, rows: int, workers: int) -> Iterator[tuple[Ledgered, Round]]:
    with lp.connect(f"dask:{workers}") as engine:
        ours = placed(engine, len(Z), rows, workers)
        client = engine.client
        on = [{"resources": {f"localpower-{i}": 1}} for i in range(workers)]
        works = [client.submit(bare_worker, i, len(Z), rows, pure=False, **on[i])
                 for i in range(workers)]  # fmt: skip

        def bare() -> np.ndarray:
            sent = client.submit(np.copy, Z, pure=False)
            futures = [client.submit(called, works[i], sent, pure=False, **on[i])
                       for i in range(workers)]  # fmt: skip
            return sum(client.gather(futures))

        yield ours, bare


@contextmanager
def ray(Z: np.ndarray, rows: int, workers: int) -> Iterator[tuple[Ledgered, Round]]:
    import ray

    class Worker:
        def __init__(self, number: int) -> None:
            self.work = bare_worker(number, len(Z), rows)

        def answer(self, Z: np.ndarray) -> np.ndarray:
            return self.work(Z)

    with lp.connect(f"ray:{workers}") as engine:
        actors = [ray.remote(num_cpus=0)(Worker).remote(number) for number in range(workers)]

        def bare() -> np.ndarray:
            sent = ray.put(Z)
            return sum(ray.get([actor.answer.remote(sent) for actor in actors]))

        yield placed(engine, len(Z), rows, workers), bare


@contextmanager
def spark(Z: np.ndarray, rows: int, workers: int) -> Iterator[tuple[Ledgered, Round]]:
    with lp.connect(f"spark:{workers}") as engine:
        ours = placed(engine, len(Z), rows, workers)
        context = engine._context
        numbers = context.parallelize(range(workers), workers)
        works = numbers.map(lambda number: bare_worker(number, len(Z), rows)).cache()

        def bare() -> np.ndarray:
            sent = context.broadcast(Z)
            total = sum(works.map(lambda work: work(sent.value)).collect())
            sent.destroy()
            return total

        yield ours, bare


def turns(engine: Ledgered, Z: np.ndarray, bare: Round, count: int) -> list[float]:
    """Median milliseconds of ours, of the work in it, and of the bare round, run in turns."""
    ours, seconds = our_round(engine, Z), ([], [])
    for _ in range(3):
        ours(), bare()
    for _ in range(count):
        for taken, once in zip(seconds, (ours, bare), strict=True):
            start = time.perf_counter()
            once()
            taken.append(time.perf_counter() - start)
    return [1e3 * median(each) for each in (seconds[0], work_of(engine), seconds[1])]


def on_ranks() -> None:
    """Be a rank of an MPI job; rank 0 prints one line for each size."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    for d, r, rows in SIZES:
        Z, work = basis(d, r), bare_worker(rank, d, rows)
        parts = np.empty((size, d, r)) if rank == 0 else None
        count = rounds_for("mpi", d)
        taken: list[list[float]] = [[], [], []]

        def bare(Z: np.ndarray = Z, parts: Any = parts, work: Any = work) -> Any:
            comm.Bcast(Z)
            comm.Gather(work(Z), parts)
            return parts.sum(axis=0) if rank == 0 else None

        for batch in range(12):  # the ranks serve, or take part in bare rounds
            engine = lp.connect("mpi")
            if rank:
                engine.serve()
            else:
                metered = placed(engine, d, rows, size)
                once(our_round(metered, Z), count // 10, taken[0] if batch > 1 else [])
                taken[1] += work_of(metered)
            engine.close()
            comm.Barrier()
            once(bare, count // 10, taken[2] if batch > 1 else [])
        if rank == 0:
            times = (1e3 * median(each) for each in taken)
            print(d, r, rows, size, len(taken[0]), *times, flush=True)


def once(run: Round, count: int, taken: list[float]) -> None:
    for _ in range(count):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)


def basis(d: int, r: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((d, r))


def rounds_for(engine: str, d: int) -> int:
    return {"spark": 40, "mpi": 400}.get(engine, 100) // (4 if d > 20_000 else 1)


def measured(name: str, workers: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each size."""
    if name == "mpi":
        command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(workers),
                   sys.executable, __file__, "--rank"]  # fmt: skip
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for line in told.splitlines():
            counts, times = line.split()[:5], line.split()[5:]
            yield row(name, *map(int, counts), *map(float, times))
        return
    for d, r, rows in SIZES:
        Z, count = basis(d, r), rounds_for(name, d)
        with globals()[name](Z, rows, workers) as (engine, bare):
            yield row(name, d, r, rows, workers, count, *turns(engine, Z, bare, count))


def row(
    name: str, d: int, r: int, rows: int, workers: int, rounds: int, *times: float
) -> dict[str, Any]:
    ours, work, bare = times
    alike = ours - work if rows == 1 else ours
    return {"engine": name, "d": d, "r": r, "rows": rows, "workers": workers, "rounds": rounds,
            "ours_ms": round(ours, 3), "work_ms": round(work, 3), "bare_ms": round(bare, 3),
            "added_ms": round(alike - bare, 3), "ratio": round(alike / bare, 2)}  # fmt: skip


def moved(workers: int, rounds: int = 20) -> dict[str, Any]:
    """Compare the ledger's bytes with what went over the interface."""
    d, r, rows = SIZES[2]
    Z = basis(d, r)
    with lp.connect(f"dask:{workers}") as engine:
        metered = placed(engine, d, rows, workers)
        our_round(metered, Z)()

        def interface() -> int:
            return psutil.net_io_counters(pernic=True)["lo"].bytes_sent

        before = metered.ledger.bytes_up + metered.ledger.bytes_down, interface()
        for _ in range(rounds):
            our_round(metered, Z)()
        after = metered.ledger.bytes_up + metered.ledger.bytes_down, interface()
    return {"engine": "dask", "d": d, "r": r, "rows": rows, "workers": workers, "rounds": rounds,
            "ledger_bytes": after[0] - before[0], "wire_bytes": after[1] - before[1]}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = ["processes", "mpi", "dask", "ray", "spark"]  # Dask sets how this process frees memory
    parser.add_argument("--engines", nargs="+", default=names, choices=names)
    parser.add_argument("--workers", nargs="+", type=int, default=WORKERS)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help="CSV file to write")
    o = parser.parse_args(arguments)
    if o.rank:
        on_ranks()
        return
    found = []
    times = "".join(f"{name:>10}" for name in ("ours", "work", "bare", "added"))
    print(f"{'engine':<12} {'d':>6} {'r':>3} {'rows':>5}{times}  ratio")
    for name, workers in product(o.engines, o.workers):
        runs = [list(measured(name, workers)) for _ in range(RUNS.get(name, 1))]
        for several in zip(*runs, strict=True):
            each = sorted(several, key=lambda run: run["ratio"])[len(runs) // 2]
            found.append(each)
            times = "".join(f"{each[key]:>7.2f} ms" for key in FIELDS if key.endswith("_ms"))
            print(f"{f'{name}:{workers}':<12} {each['d']:>6} {each['r']:>3} {each['rows']:>5}"
                  f"{times} {each['ratio']:>6.2f}", flush=True)  # fmt: skip
    missed = [f"{each['engine']}:{each['workers']} with {each['d']:,} columns, {each['rows']:,} "
              "rows" for each in found if each["ratio"] > GOAL]  # fmt: skip
    print(f"ratios above {GOAL}: {', '.join(missed) or 'none'}")
    if "dask" in o.engines:
        found.append(bytes_of := moved(8))
        ledger = bytes_of["ledger_bytes"]
        print(f"bytes, Dask with 8 workers: ledger {ledger:,}; over the interface "
              f"{bytes_of['wire_bytes'] / ledger:.3f} of it")  # fmt: skip
    if o.output:
        with open(o.output, "w", newline="", encoding="utf-8") as stream:
            table = csv.DictWriter(stream, FIELDS, restval="")
            table.writeheader()
            table.writerows(each | {"version": lp.__version__} for each in found)


if __name__ == "__main__":
    main()
