"""From an engine's address, or from what the user has open already, to the engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn

from localpower.core.errors import MissingExtra
from localpower.engines.base import Engine

LOCAL = ("inline", "threads", "processes")  # with a number of workers, but for the first
REMOTE = ("dask", "ray", "spark", "mpi")  # with an address, or a local one is started
OBJECTS = {  # what users have open, by the package and name of its type
    ("distributed", "Client"): "dask",
    ("mpi4py", "Comm"): "mpi",
    ("mpi4py", "Intracomm"): "mpi",
    ("pyspark", "SparkSession"): "spark",
    ("pyspark", "SparkContext"): "spark",
}
NEEDED = {"dask": "distributed", "ray": "ray", "spark": "pyspark", "mpi": "mpi4py"}


def connect(address: Any) -> Engine:
    """Open an engine, to be used for several calls and closed by the caller.

    It keeps the last data it worked on until it is closed, and does one run at a time: threads need
    one each. ``"threads"`` also keeps BLAS at one thread in this process until then.

    Parameters
    ----------
    address
        ``"inline"`` (one shard after the other), ``"threads"`` (the default of `svd`) or
        ``"processes"``; the latter two with a number of workers if wanted: ``"processes:4"``.
        ``"dask"``, ``"ray"`` or ``"spark"`` start a local cluster, also with a number of workers,
        and stop it when they are closed; ``"dask://host:8786"``, ``"ray://host:10001"`` and
        ``"spark://host:7077"`` are clusters that run already, and ``"mpi"`` is the job that this
        process is part of. A `distributed.Client`, a `SparkSession` or an MPI communicator is used
        as it is, and never closed.

    Examples
    --------
    >>> import localpower as lp
    >>> with lp.connect("threads:2") as engine:
    ...     result = lp.svd([[1.0, 0.0], [0.0, 4.0]], 1, method="dpi", engine=engine, rng=0)
    >>> result.singular_values
    array([4.])
    """
    if isinstance(address, Engine):
        return address
    if isinstance(address, str):
        name, colon, rest = address.partition(":")
        size = int(rest) if rest.isdecimal() else 0
        if name in LOCAL and (not colon or size):
            return _engine(name)(size) if name != "inline" else _engine(name)()
        if name in REMOTE and (not colon or size or rest.startswith("//")):
            return _engine(name)(address if rest.startswith("//") else None, size or None)
    if (opened := _open(address)) is not None:
        return _engine(opened)(address, None)
    raise ValueError(
        f"engine={address!r} is not known: take one of {', '.join((*LOCAL, *REMOTE))}, with a "
        "number of workers as in 'processes:4' or an address as in 'dask://host:8786' if wanted; "
        "an open Client, SparkSession or communicator; or an engine from localpower.connect"
    )


def name_of(address: Any) -> str:
    """Name an engine for a process that cannot have what is open here."""
    if isinstance(address, str):
        return address
    name = _open(address) or type(address).__name__.lower()
    return name if name in (*LOCAL, *REMOTE) else "threads"


def is_shared(address: Any) -> bool:
    """Tell what all processes of a job call together, each with rows of its own."""
    if isinstance(address, Engine):
        return address.shared
    name = address.partition(":")[0] if isinstance(address, str) else _open(address)
    return name == "mpi"


def abort_peers(address: Any, error: Exception) -> None:
    """Tell of an error to those that make the same call in other processes: they would wait."""

    def fail(*_: Any) -> NoReturn:
        raise error

    if is_shared(address):
        with suppress(Exception):
            connect(address).run_on_coordinator(fail, fail, fail)


def _open(given: Any) -> str | None:
    """Name the engine of what the user has open."""
    kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(given).__mro__)
    return next((OBJECTS[kind] for kind in kinds if kind in OBJECTS), None)


def _engine(name: str) -> Callable[..., Engine]:
    try:
        module = import_module(f"localpower.engines.{name}")
    except ImportError as error:
        if name in LOCAL or (error.name or "").partition(".")[0] == "localpower":
            raise
        raise MissingExtra(f"engine={name!r}", name) from error
    kind: Callable[..., Engine] = getattr(module, name.title())
    return kind


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit` meanwhile, so that whatever was started or written is ended.

    Only in the main thread, and where nobody else has said what is to happen.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave(number: int, frame: Any) -> NoReturn:
    """End the process as a shell expects it of a signal, by way of all that is to be ended."""
    raise SystemExit(128 + number)
