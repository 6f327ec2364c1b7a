"""The public functions: signatures, documentation, and the checks of arguments."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

from localpower.core.checks import count_or_share, flag, one_of, sine, whole
from localpower.data.memory import budget as memory_budget
from localpower.data.readers.foreign import engine_of, is_stream
from localpower.data.reading import LazySource
from localpower.data.source import load_block
from localpower.engines.base import Engine
from localpower.engines.registry import abort_peers, at_hand, connect
from localpower.engines.signals import terminable
from localpower.iteration import Callback
from localpower.methods import Method, method_from
from localpower.methods.scaling import SCALES
from localpower.options import (
    CERTAINTY,
    Budget,
    Checkpoint,
    Faults,
    Privacy,
    certainty_of,
    check_callback,
    checkpoint_of,
    generator_of,
    hinting,
    one_object,
    partition_of,
    written,
)
from localpower.private import PrivateRun, check_private
from localpower.progress import Progress
from localpower.result import Result
from localpower.run import Asked, Run
from localpower.scores import left_vectors
from localpower.worker.shard import is_function


@hinting
def svd(
    data: Any,
    rank: float | Callable[[int, int], float],
    method: str | Method = "auto",
    *,
    tol: float | None = None,
    certainty: float | str = CERTAINTY,
    max_rounds: int | None = None,
    budget: Budget | None = None,
    center: bool = False,
    scale: str | None = None,
    privacy: Privacy | None = None,
    workers: int | None = None,
    partition: str = "contiguous",
    engine: Any = "threads",
    memory: int | str | None = None,
    faults: Faults | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    warm_start: Result | None = None,
    return_u: bool | str = False,
    rng: Any = None,
    callback: Callback | None = None,
    progress: bool | Progress | None = None,
) -> Result:
    """Truncated singular value decomposition of a matrix whose rows live on many workers.

    Parameters
    ----------
    data
        The rows: an array, ``memmap``, sparse matrix, pandas or polars frame, Dask array or frame,
        an iterable of blocks, or a path to ``.npy``, ``.npz``, CSV or TSV, svmlight, Parquet, Arrow
        or Feather, Zarr or HDF5; text also as gz, bz2 or xz. A list of these, a directory, a glob,
        or a function from the number of a shard to its rows gives your own shards. Integers
        become float64, float32 stays, sparse stays sparse. `read` has options for files.
    rank : int or float
        The number of singular triplets, k. Or a share such as 0.95: the fewest triplets that
        explain more than this share of the total variance if rows are centred, else of the sum of
        all squares (``result.reach`` says how certain that is). Or a function that computes either
        from the numbers of rows and columns, such as ``min``.
    method : str or Method
        ``"auto"`` takes the method that `plan` finds cheapest for the engine;
        ``result.run["why"]`` says why. Otherwise a name, optionally with options, as in
        ``"local_power:steps=4,schedule=halving"``, or an object such as ``LocalPower(steps=4)``.
        From the paper: ``"local_power"`` is its Algorithm 1, ``"dpi"`` takes one step a round,
        ``"one_shot"`` does one round of many steps, ``"uda"``, ``"wda"``, ``"aligned_average"`` and
        ``"dr_svd"`` are the one-shot baselines. Beyond the paper: ``"local_ritz"`` reaches a
        certified tolerance in a handful of rounds, ``"block_krylov"`` does the same with blocks of
        plain residuals, ``"block_lanczos"`` has narrow blocks, less work and more rounds.
        ``"tsqr"`` and ``"gram"`` are exact in one round of d(d+1)/2 words, the latter with half the
        digits.
    tol : float, optional
        Stop when the sine of the angle between the leading `rank` columns and the true ones is
        certified to be at most this. If there is no gap after them, the residuals must be at most
        this instead. With several local steps, each upload needs dr more words. 0 does all rounds.
        By default 1e-8 (3e-4 for float32) if the method is chosen automatically, else 0.
    certainty : float or "proven"
        How sure the certificate must be. With ``"proven"`` it holds for every matrix. With a
        number, it is proven, or the chance that something large is hidden is at most this
        (`Certificate.p`).
    max_rounds : int, optional
        The largest number of rounds of the method; 30 by default. ``"auto"`` takes as many as it
        needs, up to 500, and switches to another method if its own is too slow.
    budget : Budget, optional
        Limits on bytes and seconds.
    center : bool
        Subtract the mean of all rows.
    scale : {None, "max", "minmax", "std"}
        Divide columns by their largest magnitude (as in the paper), by their range after
        subtracting the minimum, or by their standard deviation, each over all rows.
    privacy : Privacy, optional
        Protect single rows: compute components from noised sums. The result then has a label of
        what that protects (``result.run["privacy"]``) instead of a certificate.
    workers : int, optional
        Cut the rows into this many shards. By default as many as the engine works on at once, more
        if they would not fit in memory, or your own shards.
    partition : str
        How rows are cut: ``"contiguous"``, ``"shuffled"``, by ``"label"`` (see `read`), or
        ``"dirichlet:0.5"``, which divides the rows of each label unequally.
    engine : str, Engine, or an open client, session or communicator
        ``"threads"``, ``"processes"``, ``"inline"``, with a number as in ``"processes:4"``;
        ``"dask"``, ``"ray"``, ``"spark"``, ``"mpi"``, or an address of one as in
        ``"dask://host:8786"``; a Dask client, Spark session or MPI communicator, which is used as
        it is; or an engine from `connect`, which is left open. Data of an engine's own kind stay
        where they are.
    memory : int or str, optional
        How much memory rows may use, such as ``"2GB"``; half of the free memory by default. Files
        that do not fit are read again in every round; a shard that fits is read once a round,
        however many steps it takes. For Dask's own blocks, it limits what workers keep of them.
    faults : Faults, optional
        Deadline, retries, and what happens when shards are lost.
    checkpoint : Checkpoint or path, optional
        Where to write the state, so that a later run can resume. Not available with a function as
        schedule; nothing is written while shards are missing.
    warm_start : Result, optional
        Start from the components of an earlier result; all other columns are random.
    return_u : bool or "engine"
        Also fetch the left singular vectors. ``"engine"`` leaves them with the rows, as
        `Result.transform` does with scores, and computes them as scores divided by singular
        values. Vectors of small singular values then have fewer correct digits.
    rng : int, numpy.random.Generator or None
        Seed of the random start, the probes and the shuffle. The chance p is valid only if whoever
        chose the data did not know the seed.
    callback : callable, optional
        Called as ``callback(record, state)`` after every round; a true value ends the run.
    progress : bool, optional
        Whether to show progress: round, certified angle, time left, bytes. By default terminals
        and notebooks show it after a second and remove it at the end. ``True`` shows it at once,
        and also writes plain lines to standard error if that is not a terminal.

    Returns
    -------
    Result

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 20)) * np.arange(20, 0, -1)
    >>> result = lp.svd(X, 3, "local_power:steps=4,schedule=halving", workers=4, rng=0)
    >>> bool(np.allclose(result.singular_values, np.linalg.svd(X)[1][:3], rtol=1e-3))
    True
    >>> len(result.history), result.ledger.phase("iterate").bytes_up
    (30, 61440)
    """
    given = dict(locals())
    try:
        asked = _asked(given)
        display = Progress.of(progress)
        limit = None if memory is None else memory_budget(memory)
    except Exception as error:
        abort_peers(engine, error)
        raise
    engine = at_hand(engine, engine_of(data.data if isinstance(data, LazySource) else data))
    with ExitStack() as around:
        around.enter_context(terminable())
        around.enter_context(display)
        home = engine if isinstance(engine, Engine) else around.enter_context(connect(engine))
        around.enter_context(home.exclusive())
        if asked.faults.deadline is not None:
            around.callback(setattr, home, "deadline", home.deadline)
            home.deadline = float(asked.faults.deadline)
        if memory is not None:
            around.callback(setattr, home, "memory", home.memory)
            home.memory = limit
        kind = Run if privacy is None else PrivateRun
        result = home.run_on_coordinator(kind(asked, home, display), data, load_block)
    if asked.return_u != "engine":
        return result
    if is_function(data) and not hasattr(home, "rank"):
        data = [data(number) for number in range(result.run["workers"])]
    return replace(result, U=left_vectors(result, data))


@hinting
def pca(
    data: Any,
    rank: float | Callable[[int, int], float],
    method: str | Method = "auto",
    *,
    center: bool = True,
    **options: Any,
) -> Result:
    """Principal component analysis: `svd` of the rows less their mean.

    It takes the parameters of `svd` and returns the same `Result`. The principal axes are its
    `components`, and `Result.transform` gives the scores of rows.

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 4)) * [9, 3, 1, 1] + 100
    >>> lp.pca(X, 2, "dpi", rng=0).explained_variance_ratio.round(2)
    array([0.89, 0.08])
    """
    return svd(data, rank, method, center=center, **options)


pca.__signature__ = inspect.signature(svd).replace(  # type: ignore[attr-defined]
    parameters=[
        p.replace(default=True) if p.name == "center" else p
        for p in inspect.signature(svd).parameters.values()
    ]
)


def _asked(given: dict[str, Any]) -> Asked:
    """Check the arguments of `svd`, and put them together."""
    method = method_from(given["method"])
    rank, callback, workers = given["rank"], given["callback"], given["workers"]
    if not callable(rank):
        method.check_rank(count_or_share("rank", rank))
    if given["scale"] is not None:
        one_of("scale", given["scale"], SCALES)
    if callback is not None:
        check_callback(callback)
    checkpoint = checkpoint_of(given["checkpoint"])
    if checkpoint is not None and not method.repeatable:
        raise ValueError(
            f"checkpoint= does not work with the function in method={method}, because functions of "
            "two runs cannot be compared: give a name such as schedule='halving:3', or the set of "
            "times"
        )
    if not isinstance(given["warm_start"], Result | None):
        raise TypeError(f"warm_start={given['warm_start']!r} must be a localpower.Result, or None")
    if given["warm_start"] is not None and not method.has_width:
        raise ValueError(
            f"method='{method.name}' cannot use warm_start, because it does not iterate: leave "
            "warm_start out, or take a method that iterates"
        )
    if given["privacy"] is not None:
        check_private(given)
    most = given["max_rounds"]
    seed, rng = generator_of(given["rng"])
    return Asked(
        data=given["data"],
        rank=lambda n, d: count_or_share("rank", rank(n, d) if callable(rank) else rank),
        method=method,
        tol=None if given["tol"] is None else sine(given["tol"]),
        certainty=certainty_of(given["certainty"]),
        max_rounds=None if most is None else min(whole("max_rounds", most), sys.maxsize),
        budget=one_object("budget", given["budget"], Budget),
        center=flag("center", given["center"]),
        scale=given["scale"],
        workers=None if workers is None else whole("workers", workers),
        partition=partition_of(given["partition"]),
        memory=given["memory"],
        faults=one_object("faults", given["faults"], Faults),
        checkpoint=checkpoint,
        warm_start=given["warm_start"],
        return_u=_return_u(given),
        seed=seed,
        rng=rng,
        callback=callback,
        call=lambda more: _call(given, more | ({} if seed is None else {"rng": seed})),
        given_certainty=given["certainty"],
        given=given,
        privacy=given["privacy"],
    )


def _return_u(given: dict[str, Any]) -> bool | str:
    asked = given["return_u"]
    if isinstance(asked, str):
        if asked != "engine":
            raise ValueError(f"return_u={asked!r} is not valid: give True, False or 'engine'")
        if is_stream(given["data"]) and engine_of(given["data"]) is None:
            raise ValueError(
                "return_u='engine' needs the rows twice, but a generator yields them once: give a "
                "list, or return_u=True"
            )
        return asked
    return bool(asked)


@cache
def _defaults() -> dict[str, Any]:
    """The parameters of `svd`, in order."""
    return {name: p.default for name, p in inspect.signature(svd).parameters.items()}


def _call(given: dict[str, Any], more: dict[str, Any]) -> str:
    """Write the call that does the same again; dots stand for what cannot be written."""
    told = given | more | {"workers": given["workers"] or more.get("workers")}
    told["method"] = str(method_from(given["method"]))
    defaults = _defaults()
    data, rank, *options = (name for name in defaults if name not in ("callback", "progress"))
    texts = {name: written(told[name]) for name in options if told[name] is not defaults[name]}
    parts = [f"{name}={text}" for name, text in texts.items() if text != written(defaults[name])]
    rows = written(told[data]) if isinstance(told[data], str | os.PathLike) else "data"
    return f"localpower.svd({', '.join([rows, written(told[rank]), *parts])})"
