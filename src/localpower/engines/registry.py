"""From an engine's address, or from what the user has open already, to the engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import urlsplit

from localpower.core.errors import DataHint, MissingExtra, warn
from localpower.engines.base import Engine
from localpower.engines.calibration import recalled

Kind = type | tuple[str, str]  # of what users have open: a class, or its package and name


@dataclass(frozen=True, slots=True)
class Row:
    """What `connect` knows of an engine: how it is made, and what its address may say.

    `factory` is a class, or where one is found, as ``"module:Class"``, so that libraries are
    imported when they are asked for. `extra` is what to install where that fails. An address may
    begin with a `scheme` of the library's own instead of the name. An engine that `takes_path`
    works on rows of its own: those of the federation that a file describes.
    """

    factory: Callable[..., Engine] | str
    objects: tuple[Kind, ...] = ()
    extra: str = ""
    takes_address: bool = False
    takes_workers: bool = False
    shared: bool = False
    scheme: str = ""
    takes_path: bool = False


DEFAULT = "threads"  # the engine where none is asked for
_ENGINES = "localpower.engines"
ROWS = {
    "inline": Row(f"{_ENGINES}.inline:Inline"),
    "threads": Row(f"{_ENGINES}.threads:Threads", takes_workers=True),
    "ring": Row(f"{_ENGINES}.ring:InlineRing"),
    "processes": Row(f"{_ENGINES}.processes:Processes", takes_workers=True),
    "dask": Row(
        f"{_ENGINES}.dask:Dask",
        (("distributed", "Client"),),
        "dask", True, True, scheme="tcp",
    ),
    "ray": Row(f"{_ENGINES}.ray:Ray", (), "ray", True, True),
    "spark": Row(
        f"{_ENGINES}.spark:Spark",
        (("pyspark", "SparkSession"), ("pyspark", "SparkContext")),
        "spark", True, True,
    ),
    "mpi": Row(
        f"{_ENGINES}.mpi:Mpi",
        (("mpi4py", "Comm"), ("mpi4py", "Intracomm")),
        "mpi", True, True, shared=True,
    ),
    "sites": Row("localpower.federation.sites:Sites", extra="federation", takes_path=True),
    "flare": Row("localpower.federation.flare:Flare", extra="flare", takes_path=True),
}  # fmt: skip


def register(
    name: str,
    factory: Callable[..., Engine],
    *,
    objects: Iterable[Kind] = (),
    takes_address: bool = False,
    takes_workers: bool = False,
    shared: bool = False,
) -> None:
    """Let `connect`, and so ``engine=``, know an engine of your own.

    Parameters
    ----------
    name
        What users write: ``engine="name"``.
    factory
        A subclass of `localpower.engines.Engine`, or what returns one. It is called without
        arguments, with ``size=4`` for ``"name:4"`` if `takes_workers`, and with
        ``address="name://host"`` for that if `takes_address`.
    objects
        Classes of what users may have open and give as ``engine=`` instead; the factory is called
        with ``address=`` the object. A class may be named as ``("package", "Class")``.
    shared
        Whether all processes of a job make the same calls, each with its own rows.

    Examples
    --------
    >>> import localpower as lp
    >>> from localpower.engines.threads import Threads
    >>> lp.engines.register("pair", lambda: Threads(2))
    >>> lp.connect("pair").size
    2
    """
    if not name.isidentifier():
        raise ValueError(f"name={name!r} cannot name an engine: take letters, digits and _")
    ROWS[name] = Row(factory, tuple(objects), "", takes_address, takes_workers, shared)


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
        and stop it when they are closed; ``"dask://host:8786"`` (or ``"tcp://host:8786"``, as Dask
        says it), ``"ray://host:10001"`` and ``"spark://host:7077"`` are clusters that run already,
        and ``"mpi"`` is the job that this process is part of. ``"sites:federation.toml"`` is a
        federation, whose rows stay at its sites, and ``"flare:KIT"`` one that NVFLARE connects. A
        `distributed.Client`, a `SparkSession` or an MPI communicator is used as it is, and never
        closed.

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
    if isinstance(address, str) and (engine := _connected(address)) is not None:
        engine.address = address
        engine.reckon_with(recalled(address))
        return engine
    if opened := _open(address):
        return _factory(opened)(address=address)
    raise ValueError(
        f"engine={address!r} is not known: take one of {', '.join(ROWS)}, with a number of workers "
        "as in 'processes:4' or an address as in 'dask://host:8786' if wanted; an open Client, "
        "SparkSession or communicator; or an engine from localpower.connect"
    )


def _connected(address: str) -> Engine | None:
    """Make the engine of an address; None if there is none."""
    name, colon, rest = address.partition(":")
    if rest.startswith("//"):
        name = next((known for known, row in ROWS.items() if row.scheme == name), name)
    row, size = ROWS.get(name), int(rest) if rest.isdecimal() else 0
    if row and row.takes_path:
        return _factory(name)(address=address)
    if row and not colon:
        return _factory(name)()
    if row and row.takes_workers and size:
        return _factory(name)(size=size)
    if row and row.takes_address and rest.startswith("//"):
        return _factory(name)(address=address)
    return None


def endpoints(address: str, usual: int) -> list[tuple[str, int]]:
    """Host and port of each place in an address, such as ``"spark://one:7077,two:7077"``."""
    scheme, _, rest = address.partition("://")
    parts = [urlsplit(f"//{place}") for place in rest.split(",")]
    with suppress(ValueError):  # of a port that is no number
        found = [(part.hostname or "", part.port or 0) for part in parts]
        if all(all(place) for place in found) and not any(part.path for part in parts):
            return found
    raise ValueError(
        f"engine={address!r} is not the address of a cluster, as it has no host and port: write it "
        f"as in '{scheme}://host:{usual}'"
    )


def at_hand(engine: Any, owner: str | None) -> Any:
    """What works on data of an `owner`: the engine asked for, or what is open of theirs if none is.

    ``"threads"`` is what is taken where nothing is asked for. It would bring rows here.
    """
    if owner is None or engine != DEFAULT:
        return engine
    found: Any = owner
    if owner == "dask":
        try:
            found = sys.modules["distributed"].Client.current()
        except (KeyError, ValueError):  # none is open
            return engine
    warn(
        f"data belong to {owner}: its cluster that is open works on them where they are; give that "
        "as engine= to do without this note",
        DataHint,
    )
    return found


def name_of(address: Any) -> str:
    """Name an engine for a process that cannot have what is open here."""
    if isinstance(address, str):
        return address
    name = _open(address) or type(address).__name__.lower()
    return name if name in ROWS else DEFAULT


def is_shared(address: Any) -> bool:
    """Tell what all processes of a job call together, each with rows of its own."""
    if isinstance(address, Engine):
        return address.shared
    name = address.partition(":")[0] if isinstance(address, str) else _open(address)
    return name in ROWS and ROWS[name].shared


def holds_rows(address: Any) -> bool:
    """Tell what works on rows of its own, which nobody brings to it."""
    name = address.partition(":")[0] if isinstance(address, str) else ""
    return name in ROWS and ROWS[name].takes_path


def abort_peers(address: Any, error: Exception) -> None:
    """Tell of an error to those that make the same call in other processes: they would wait."""

    def fail(*_: Any) -> NoReturn:
        raise error

    if is_shared(address):
        with suppress(Exception):
            connect(address).run_on_coordinator(fail, fail, fail)


def _open(given: Any) -> str:
    """Name the engine of what the user has open; nothing if there is none."""
    kinds: set[Kind] = set(type(given).__mro__)
    kinds |= {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(given).__mro__}
    return next((name for name, row in ROWS.items() if not kinds.isdisjoint(row.objects)), "")


def _factory(name: str) -> Callable[..., Engine]:
    factory, extra = ROWS[name].factory, ROWS[name].extra
    if not isinstance(factory, str):
        return factory
    module, _, kind = factory.partition(":")
    try:
        found: Callable[..., Engine] = getattr(import_module(module), kind)
    except ImportError as error:
        if not extra or (error.name or "").partition(".")[0] == "localpower":
            raise
        raise MissingExtra(f"engine={name!r}", extra) from error
    return found
