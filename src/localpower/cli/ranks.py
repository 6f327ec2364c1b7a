"""Commands in an MPI job: which rank this process is, and the files that are its own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from localpower.core.errors import DataHint, warn
from localpower.engines.registry import connect

RANK = "{rank}"  # in a path: the number of this process in an MPI job
JOBS = ("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def led(command: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Open ``--engine mpi`` on all ranks: rank 0 runs the command, and the others serve it."""

    @wraps(command)
    def run(options: argparse.Namespace) -> None:
        if options.engine != "mpi":
            command(options)
            return
        engine: Any = connect("mpi")
        with engine:
            if engine.rank:
                engine.serve()
                return
            options.engine = engine
            command(options)

    return run


def rank_and_size() -> tuple[str, str | None]:
    """The number of this process in its MPI job, and how many there are."""
    found = [(os.environ[rank], os.environ.get(size)) for rank, size in JOBS if rank in os.environ]
    return found[0] if found else ("0", "1")


def by_one_rank(command: Callable[[argparse.Namespace], None]) -> Callable[..., None]:
    """Have rank 0 run a command that writes one file, where an MPI job starts it on all ranks."""

    @wraps(command)
    def run(options: argparse.Namespace) -> None:
        number, size = rank_and_size()
        if number == "0":
            if size != "1":
                warn("rank 0 of this MPI job does this alone; leave mpiexec out", DataHint)
            command(options)

    return run


def take_own_files(options: argparse.Namespace) -> bool:
    """Put the number of this process into paths; tell whether it has anything to write."""
    paths = [*options.data, options.output]
    own = any(RANK in path for path in options.data)
    number, size = rank_and_size()
    if any(RANK in path for path in paths) and size == "1":
        raise ValueError(
            f"{RANK} in a path is for the ranks of an MPI job: start it as mpiexec -n 4 localpower "
            "transform"
        )
    if own and RANK not in options.output:
        raise ValueError(
            f"-o {options.output}: all ranks would write to it; give each its own file, as in "
            f"scores-{RANK}.npy"
        )
    if size != "1" and not own:
        if number == "0":
            hint = f"rank 0 of this MPI job projects all rows; give each its own, rows-{RANK}.npy"
            warn(f"{hint}, to share the work", DataHint)
        options.output = options.output.replace(RANK, "0")
        return number == "0"
    options.data = [path.replace(RANK, number) for path in options.data]
    options.output = options.output.replace(RANK, number)
    return True
