"""From an engine's address to the engine."""

from __future__ import annotations

from collections.abc import Callable

from localpower.core.engine import Engine


def _inline(size: int | None) -> Engine:
    from localpower.engines.inline import Inline

    return Inline()


def _threads(size: int | None) -> Engine:
    from localpower.engines.threads import Threads

    return Threads(size)


def _processes(size: int | None) -> Engine:
    from localpower.engines.processes import Processes

    return Processes(size)


ENGINES: dict[str, Callable[[int | None], Engine]] = {
    "inline": _inline,
    "threads": _threads,
    "processes": _processes,
}


def connect(address: str) -> Engine:
    """Open an engine, to be used for several calls and closed by the caller.

    It keeps the last data it worked on until it is closed; ``"threads"`` also keeps BLAS at one
    thread in this process until then.

    Parameters
    ----------
    address : str
        ``"inline"`` (one shard after the other), ``"threads"`` (the default of `svd`) or
        ``"processes"``; the latter two with a number of workers if wanted: ``"processes:4"``.

    Examples
    --------
    >>> import localpower as lp
    >>> with lp.connect("threads:2") as engine:
    ...     result = lp.svd([[1.0, 0.0], [0.0, 4.0]], 1, method="dpi", engine=engine, rng=0)
    >>> result.singular_values
    array([4.])
    """
    name, colon, size = address.partition(":") if isinstance(address, str) else ("", "", "")
    if name not in ENGINES or (colon and not (size.isdecimal() and int(size) > 0)):
        raise ValueError(
            f"engine={address!r} is not known: take one of {', '.join(ENGINES)}, with a number of "
            "workers as in 'processes:4' if wanted, or an open engine from localpower.connect"
        )
    return ENGINES[name](int(size) if size else None)
