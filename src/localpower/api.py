"""The public functions: where data, engines, methods and the account of a run meet."""

from __future__ import annotations

import inspect
import os
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from operator import index
from typing import Any

import numpy as np

from localpower.checkpoint import Checkpoint, check_place, digest, generator_digest, load, save
from localpower.core.alignment import ALIGNMENTS
from localpower.core.certificate import ROUNDING, Certificate, Known
from localpower.core.errors import (
    ConvergenceWarning,
    DataError,
    DataHint,
    DegradedWarning,
    WorkerLate,
    WorkerLost,
    warn,
)
from localpower.core.linalg import Array, orth, random_basis
from localpower.core.rounding import UNITS
from localpower.data import partition as partitions
from localpower.data.memory import budget
from localpower.data.partition import PARTITIONS, Partition
from localpower.data.source import Source, held, load_block, open_source
from localpower.engines.base import Engine
from localpower.engines.ledgered import Ledgered
from localpower.engines.registry import abort_peers, connect, terminable
from localpower.engines.retrying import Retrying
from localpower.methods.averaging import aligned_average, uda, wda
from localpower.methods.block_lanczos import BLOCK, block_lanczos
from localpower.methods.exact import gram, tsqr
from localpower.methods.factors import Factors, factors
from localpower.methods.local_power import MOST_DRAWS, Doubt, State, local_power
from localpower.methods.local_ritz import PROPOSALS, STARTS, local_ritz
from localpower.methods.randomized import dr_svd
from localpower.methods.rounding import WireRounding
from localpower.methods.scaling import SCALES, Columns, columns, describe, prepare
from localpower.methods.schedule import (
    Adaptive,
    At,
    Function,
    Schedule,
    can_be_compared,
    constant,
    parse,
    settled,
)
from localpower.planning import (
    AUTOMATIC,
    EXTRA,
    ONE_ROUND,
    Problem,
    bytes_per_pass,
    costs,
    exceeds_rows,
    shard_sizes,
    size,
    tolerance,
    workspace_bytes,
)
from localpower.progress import Goal, Progress
from localpower.result import Record, Result
from localpower.version import __version__
from localpower.worker.local_matrix import GRAM_COLUMNS
from localpower.worker.shard import EngineBlock, Shard, is_sparse

Callback = Callable[[Record, State], Any]
FORESEEN = 10_000  # rounds that the choice of the kernel looks ahead
IDENTITY = ("method", "schedule", "tol", "certainty", "wire", "center", "scale", "partition",
            "seed", "dtype", "columns")  # of a run, besides the options of its method  # fmt: skip
FINAL = ("angle", "residual", "stalled", "unsure", "rounding")  # more rounds would change nothing
GIVEN_UP = ("stalled", "unsure", "rounding")  # another method may do better
CERTAINTY = 1e-6
ROUNDS, OWN_ROUNDS = 30, 500  # at most by default: of a method asked for, of all that `auto` takes
CONVERGED = ("angle", "residual", "exact")
REMEDIES = {
    "max_rounds": "raise max_rounds",
    "budget": "raise max_bytes or max_seconds",
    "stalled": "take schedule='halving', or method='local_ritz'",
    "unsure": "take method='local_ritz' with start='random' or a larger one, as 'merged:200'; a "
    "larger certainty; or method='tsqr'",
    "rounding": "numbers have too few digits: give scale='std' if columns have different units, or "
    "take method='tsqr'",
}
ROUGH = 1e-2  # angle that will do where no tolerance was asked for and rounding allows no less
ZERO = 32  # units of eps·√n of the largest singular value, up to which one is zero
PATIENCE = 3  # times the predicted rounds after which `auto` takes another method
USES = {  # options of svd that are a method's own
    "local_power": {"steps", "schedule", "align", "align_at", "width", "wire", "warm_start"},
    "dpi": {"width", "wire", "warm_start"},
    "one_shot": {"steps", "align", "align_at", "width", "warm_start"},
    "local_ritz": {"steps", "proposal", "start", "width", "wire", "warm_start"},
    "block_krylov": {"start", "width", "wire", "warm_start"},
    "block_lanczos": {"width", "warm_start"},
}
NEAR = 1e-2  # residual from which on a result is what its certificate is about
STALL = 6  # rounds without progress that end a run with local steps
RITZ = ("local_ritz", "block_krylov", "block_lanczos")  # these certify, tolerance or not
ITERATIVE = ("local_ritz", "block_krylov", "dpi", "local_power")
MOST_NAMES, MOST_TIMES = 10_000, 100  # names of columns, and entries of a schedule, on record
TINY = 1e-14  # tolerance that is planned for where all rounds are to be done
WIDE = 10, 1000  # columns per row, and columns, from which a transposed matrix is suspected


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a method, checked."""

    rank: int
    width: int
    schedule: Schedule
    align: str
    align_at: str
    steps: int
    proposal: str
    start: str = "merged"
    merged: int = 0
    certify: bool = False
    narrow: WireRounding | None = None
    begin: State | None = None
    doubt: Doubt | None = None


def _start(engine: Engine, rng: np.random.Generator, o: Options) -> State:
    if o.begin is not None:
        return o.begin
    return State(random_basis(engine.columns, o.width, rng).astype(engine.dtype, copy=False))


def _iterate(
    engine: Engine, rng: np.random.Generator, o: Options, schedule: Schedule
) -> Iterator[State]:
    start = _start(engine, rng, o)
    return local_power(
        engine,
        start,
        schedule=schedule,
        align=o.align,
        align_at=o.align_at,
        exact=o.certify,
        rank=o.rank,
        doubt=o.doubt,
        rounding=o.narrow,
    )


def _ritz(engine: Engine, rng: np.random.Generator, o: Options, proposal: str) -> Iterator[State]:
    start = _start(engine, rng, o)
    return local_ritz(
        engine,
        start,
        o.rank,
        proposal=proposal,
        steps=2 * o.steps,
        start=o.start if o.begin is None else "random",
        wide=o.merged,
        doubt=o.doubt,
        rounding=o.narrow,
    )


METHODS: dict[str, Callable[[Engine, np.random.Generator, Options], Iterator[State]]] = {
    "local_power": lambda e, rng, o: _iterate(e, rng, o, o.schedule),
    "dpi": lambda e, rng, o: _iterate(e, rng, o, constant(1)),
    "one_shot": lambda e, rng, o: islice(_iterate(e, rng, o, constant(o.steps)), 1),
    "local_ritz": lambda e, rng, o: _ritz(e, rng, o, o.proposal),
    "block_krylov": lambda e, rng, o: _ritz(e, rng, o, "residual"),
    "block_lanczos": lambda e, rng, o: block_lanczos(
        e, _start(e, rng, o), o.rank, min(BLOCK, o.width) if o.begin is None else o.width, o.doubt
    ),
    "gram": lambda e, rng, o: gram(e, o.rank),
    "tsqr": lambda e, rng, o: tsqr(e, o.rank),
    "uda": lambda e, rng, o: uda(e, o.rank),
    "wda": lambda e, rng, o: wda(e, o.rank),
    "aligned_average": lambda e, rng, o: aligned_average(e, o.rank),
    "dr_svd": lambda e, rng, o: dr_svd(e, o.rank, rng),
}


def svd(
    data: Any,
    rank: int | Callable[[int, int], int],
    *,
    method: str = "auto",
    steps: int | None = None,
    schedule: str | Iterable[int] | Schedule | None = None,
    align: str | None = None,
    align_at: str | None = None,
    proposal: str | None = None,
    start: str | None = None,
    width: int | None = None,
    max_rounds: int | None = None,
    max_bytes: float | None = None,
    max_seconds: float | None = None,
    tol: float | None = None,
    certainty: float | str = CERTAINTY,
    wire: str = "float64",
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 1,
    resume: bool = False,
    warm_start: Result | None = None,
    workers: int | None = None,
    partition: str = "contiguous",
    shuffle: bool = False,
    memory: int | str | None = None,
    cache: str | os.PathLike[str] | None = None,
    engine: Any = "threads",
    deadline: float | None = None,
    retries: int = 2,
    on_loss: str = "stop",
    center: bool = False,
    scale: str | None = None,
    return_u: bool = False,
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
        or Feather, Zarr or HDF5; text also as gz, bz2 or xz. A list of such, a directory, a glob,
        or a function from the number of a shard to its rows are the user's own shards. Integers
        become float64, float32 stays, sparse stays sparse. `read` has options for files.
    rank : int
        How many singular triplets, k; or a function that tells so from the numbers of rows and
        columns, such as ``min``.
    method : str
        ``"auto"`` takes the one that `plan` finds cheapest for the engine; ``result.run["why"]``
        tells. ``"local_power"`` is Algorithm 1 of the paper. ``"dpi"`` takes one step a round,
        ``"one_shot"`` one round of `steps` steps (give it many). ``"uda"``, ``"wda"``,
        ``"aligned_average"`` and ``"dr_svd"`` are the one-shot baselines. Beyond the paper:
        ``"local_ritz"`` reaches a certified tolerance in a handful of rounds, ``"block_krylov"`` is
        the same without local work, and ``"block_lanczos"`` with narrow blocks: less work in more
        rounds. ``"tsqr"`` and ``"gram"`` are exact in one round of d(d+1)/2 words, the latter with
        half the digits.
    steps : int
        Local power iterations per round, p; 4 by default. With this or one of the next three, and
        no `method`, ``"local_power"`` is meant.
    schedule : str, set of int, or callable
        How p changes: ``"constant"`` (the default), ``"halving"``, ``"linear"`` (these two also as
        ``"halving:3"``, to decay every third round), ``"adaptive"`` (halved when a round achieves
        little; takes dr words more in uploads), the set of communication times, or a function
        from the number of the round to its steps, which is called when the round begins.
    align : {"procrustes", "signs", "none"}
        How local bases are aligned before averaging; the first by default.
    align_at : {"server", "worker"}
        ``"server"``, the default, aligns to the largest shard's basis, as the paper; ``"worker"``
        to the broadcast basis, which halves the upload.
    proposal : str
        What ``"local_ritz"`` makes its next block from: ``"residual"`` (the default), local work
        of one shard or all, ``"anchor"`` or ``"all"``, or both, as in ``"anchor+residual"``.
    start : {"merged", "random"}
        How ``"local_ritz"`` and ``"block_krylov"`` begin: with the leading eigenvectors of all
        shards, merged, which saves rounds and often proves that nothing is missed; or at random.
        ``"merged:200"`` takes 200 of each shard, where 8 times the rank do not prove enough.
    width : int, optional
        Columns that are iterated, r, at least `rank`. By default that, or 5 more where the angle
        to the answer is certified: by ``"local_ritz"``, ``"block_krylov"``, ``"block_lanczos"``,
        and if `tol` is given.
    max_rounds : int, optional
        Rounds of the method at most; 30 by default. ``"auto"`` takes as many as it needs, and
        changes its method where that is too slow.
    max_bytes, max_seconds : float, optional
        Stop after the round in which more was moved, up and down, or more time went by.
    tol : float, optional
        Stop when the sine of the angle between the leading `rank` columns and the true ones is
        certified to be at most this; or, where there is no gap after them, their residuals. With
        p > 1 that takes dr words more in each upload. 0 does all rounds. By default 1e-8 (3e-4 for
        float32) if the method is chosen automatically, else 0.
    certainty : float or "proven"
        How sure that must be: with ``"proven"`` it holds for every matrix; with a number, it is
        proven, or the chance that something large is hidden is at most this (`Certificate.p`).
    wire : {"float64", "float32", "bfloat16"}
        What numbers are rounded to in messages of methods that iterate, wherever that does not
        limit what is reached; sums are in float64, and data in float32 never send more than that.
    checkpoint : path, optional
        File that the state is written to after every `every` rounds; it is replaced at once. Not
        with a function or iterator as `schedule`, and not while shards are missing.
    resume : bool
        Go on from the checkpoint, if the file is there, with the same bits as if the run had never
        ended. Rows, start and options must be the same; `max_rounds` and budgets may be others.
    warm_start : Result, optional
        Start from the basis of an earlier result instead of a random one.
    workers : int, optional
        Cut the rows into so many shards. By default as many as the engine works on at once, more
        if they would not fit in memory, or the user's own shards.
    partition : str
        How rows are cut: ``"contiguous"``, ``"shuffled"``, by ``"label"`` (see `read`), or
        ``"dirichlet:0.5"``, which deals the rows of each label unequally.
    shuffle : bool
        Short for ``partition="shuffled"``.
    memory : int or str, optional
        What rows may take in memory, such as ``"2GB"``; half of what is free by default. Files
        that do not fit are read again in every round; a shard that fits is read once in a round,
        however many steps it takes. Of Dask's own blocks, it is what workers keep of them.
    cache : path, optional
        Folder that keeps what was parsed of text and packed files, for the next run, which checks
        it. By default it is kept in memory, or in temporary files if that is too small.
    engine : str, Engine, or an open client, session or communicator
        ``"threads"``, ``"processes"``, ``"inline"``, with a number as in ``"processes:4"``;
        ``"dask"``, ``"ray"``, ``"spark"``, ``"mpi"``, or an address of one as in
        ``"dask://host:8786"``; a Dask client, Spark session or MPI communicator, which is used as
        it is; or an engine from `connect`, which is left open. Data of an engine's own kind stay
        where they are.
    deadline : float, optional
        Seconds that a round may take; a worker that is later is asked again, or started again.
    retries : int
        How often a round is tried again where a reply is lost, late or wrong. Lost shards are
        placed again where the engine can do that.
    on_loss : {"stop", "degrade"}
        What follows when that was in vain: an error; or a result without those shards, which says
        so in ``run["degraded"]`` and never counts as converged.
    center : bool
        Subtract the mean of all rows.
    scale : {None, "max", "minmax", "std"}
        Divide columns by their largest magnitude (as the paper), by their range after
        subtracting the minimum, or by their standard deviation; over all rows.
    return_u : bool
        Also fetch the left singular vectors.
    rng : int, numpy.random.Generator or None
        Seed of the random start, of probes and of the shuffle. That p holds rests on it: whoever
        chose the data must not have known it.
    callback : callable, optional
        Called as ``callback(record, state)`` after every round; a true value ends the run.
    progress : bool, optional
        Whether to show where the run stands, on standard error: round, certified angle, time left,
        bytes. By default on a terminal, if it takes more than a second; the line is gone at the
        end. ``True`` also writes plain lines to pipes and notebooks, ``False`` nothing.

    Returns
    -------
    Result

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 20)) * np.arange(20, 0, -1)
    >>> result = lp.svd(X, 3, steps=4, schedule="halving", workers=4, rng=0)
    >>> bool(np.allclose(result.singular_values, np.linalg.svd(X)[1][:3], rtol=1e-3))
    True
    >>> len(result.history), result.ledger.phase("iterate").bytes_up
    (30, 61440)
    """
    given = dict(locals())
    try:
        method, why = _infer_method(method, steps, schedule, align, align_at, proposal, start)
        how_many = rank if callable(rank) else lambda rows, columns: rank
        if checkpoint is not None and not can_be_compared(schedule):
            raise ValueError(
                f"schedule={schedule!r} cannot be compared with that of a later run, which "
                "checkpoint= needs: give a name such as 'halving:3', or the set of times"
            )
        schedule = given["schedule"] = settled(schedule)
        wanted = method, steps, schedule, align, align_at, proposal, start, width
        options = _options(1 if callable(rank) else rank, *wanted)
        most, workers = _run_options(max_rounds, tol, workers, scale, callback)
        chance = _certainty(certainty)
        _check_used(method, given)
        limits = _limits(max_bytes, max_seconds)
        every = _positive("every", every)
        _one_of("on_loss", on_loss, ("stop", "degrade"))
        if deadline is not None and (not isinstance(deadline, int | float) or not deadline > 0):
            raise ValueError(f"deadline={deadline!r} must be a number of seconds above 0, or None")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ValueError(f"retries={retries!r} must be a whole number, 0 or more")
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=, the file to go on from")
        display = Progress.of(progress)
        center = bool(center)
        how = "shuffled" if shuffle and partition == "contiguous" else _partition(partition)
        seed, generator = _random(rng)
        origin = {} if checkpoint is None else _origin(seed, generator, warm_start)
        limit = None if memory is None else budget(memory)
    except Exception as error:
        abort_peers(engine, error)
        raise

    def run(engine: Engine) -> Result:
        nonlocal method, options, why
        with ExitStack() as stack:
            if checkpoint is not None:
                check_place(checkpoint)
            display.stage("reading data")
            takes = engine.takes(data)
            if takes:
                if workers is not None or how != "contiguous":
                    raise ValueError(
                        "workers= and partition= cut rows anew, and these stay where they are: "
                        "leave them out, or cut the data before"
                    )
                source = held(_adopted(engine, data, retries), "data", memory)
            else:
                source = open_source(data, memory=memory, cache=cache, shards=workers)
            if source is not data:
                stack.callback(source.close)
            chosen = method == "auto"
            goal = (tolerance(source.dtype) if chosen else 0.0) if tol is None else float(tol)
            options = _options(how_many(source.rows, source.columns), *wanted)
            _check_rank(options.rank, source)
            wide = min(options.rank + EXTRA, source.columns) if width is None else options.width
            if chosen:
                choice = _choose(source, engine, workers, replace(options, width=wide),
                                 goal, center, scale, wire)  # fmt: skip
                method, why = choice.method, choice.why
                if method == "local_power":  # not certified, unless asked for
                    goal = 0.0 if tol is None else goal
            rounds = most or (OWN_ROUNDS if chosen and goal else ROUNDS)
            if goal or method in RITZ:
                options = replace(options, width=wide)
            rounded = _narrow(wire, method, options.rank, goal, source.dtype)
            certified = goal > 0 or isinstance(options.schedule, Adaptive) or rounded is not None
            options = replace(options, certify=certified, narrow=rounded)
            _check_fit(method, options, source)
            shuffler = generator if how == "contiguous" else generator.spawn(1)[0]
            at_once = engine.size if workers else _useful(engine.size, source, options.width)
            shards = partitions.partition(source, workers, how, shuffler, at_once)
            display.stage("placing shards")
            tolerant = Retrying(engine, retries, on_loss)
            metered = Ledgered(tolerant)
            metered.place(shards.shards)

            display.stage("column statistics")
            checked = checkpoint is not None
            columns_, rows_ = _describe(metered, source, shards, center, scale, checked)
            ready = prepare(metered, columns_, _products(method, options, rounds), options.width)
            run = {
                "version": __version__,
                "method": method,
                "why": why,
                "rank": options.rank,
                "width": options.width,
                "steps": options.steps,
                "schedule": _named(schedule),
                "align": options.align,
                "align_at": options.align_at,
                "proposal": options.proposal,
                "start": options.start,
                "max_rounds": rounds,
                "tol": goal,
                "certainty": certainty,
                "wire": wire,
                "workers": len(shards.shards),
                "partition": how,
                "memory": source.memory,
                "kept": shards.shards[0].keep,
                "kernels": dict(ready.kernels),
                "engine": type(engine).__name__.lower(),
                "center": center,
                "scale": scale,
                "seed": seed,
                "rows": source.rows,
                "columns": source.columns,
                "dtype": source.dtype.name,
                "held": takes,
                "names": _names(source),
                "call": _call(
                    given | {"rank": options.rank}, seed, None if takes else len(shards.shards)
                ),
            }
            metered.phase = "iterate"
            identity = _identity(run, options, metered.rows, origin, rows_)
            keeper = CheckpointWriter(checkpoint, every, identity, tolerant.missing)
            keeper.check(source.columns * options.width * source.dtype.itemsize)
            past = keeper.found() if resume else None
            begin = _warm(warm_start, metered, options, generator) if past is None else past.state
            judge = StoppingRule(
                rank=options.rank,
                tol=goal,
                certainty=chance,
                trace=columns_.trace(source.rows),
                eps=float(np.finfo(source.dtype).eps),
                noise=ready.noise,
                max_rounds=rounds,
                max_bytes=limits[0],
                max_seconds=limits[1],
                ties=not (chosen and method == "gram"),
                learns=chance > 0 and method in (*ITERATIVE, "block_lanczos"),
            )
            options = replace(options, begin=begin, doubt=_doubt(judge, generator))
            if not chosen or checkpoint is not None:
                choice = Choice(method, why, rounds, ())
            states = _relay(metered, generator, options, choice)
            display.stage(method, _goal(method, judge))
            outcome = _iterate_until(states, metered, judge, callback, keeper, past, display)
            if states.method not in ("", method):
                run["why"] = f"{why}; that did not reach the tolerance, so {states.method} followed"
                method = run["method"] = states.method
            if tol is None and chosen and _good_enough(outcome, chance):
                assert outcome.certificate is not None
                goal = run["tol"] = outcome.certificate.angle
                outcome = replace(outcome, reason="angle")
            reason = _conclude(method, outcome, goal)
            run["reason"] = reason
            basis = outcome.state.answer().basis
            known = outcome.state.told
            joined = outcome.state.joined is not None  # which the certificate is about
            told = reason in FINAL or (
                goal > 0 and (joined or returns_certified_basis(outcome.history[-1]))
            )
            if told and known is not None:
                basis = np.ascontiguousarray(known[0][:, : basis.shape[1]], dtype=source.dtype)
            run["certificate"] = _told(outcome.certificate)
            display.stage("singular values")
            metered.phase = "factors"
            found = factors(
                metered, basis, options.rank, gram=method == "gram", variance=not center
            )
            if reason == "residual" and _is_graded(found, source):
                reason = run["reason"] = _conclude(
                    method, replace(outcome, reason="rounding"), goal
                )
            U = shards.in_original_order(found.left_vectors(metered)) if return_u else None
            run["faults"] = [asdict(fault) for fault in tolerant.faults]
            run["timeline"] = metered.timeline
            if tolerant.missing:
                run |= {"reason": "degraded", "degraded": _lost_rows(tolerant, source)}

        ratio, variance = _explained(found, columns_, source.rows, center)
        if center and scale is None:
            _hint_units(source, ratio, found.V)

        def narrow(x: Array, exponent: int = 0) -> Array:
            with np.errstate(over="ignore"):  # variances of huge data may be infinite
                return np.ldexp(x, exponent).astype(source.dtype, copy=False)

        def exactly(
            x: Array | None,
        ) -> Array | None:  # in float64 where the type of the data rounds it
            return x if x is None or (narrow(x) != x).any() else narrow(x)

        return Result(
            components=narrow(found.V.T),
            singular_values=narrow(found.singular_values.astype(float), columns_.exponent),
            U=U,
            basis=basis,
            mean=exactly(columns_.shift),
            scale=exactly(columns_.scale),
            explained_variance=narrow(variance),
            explained_variance_ratio=narrow(ratio),
            history=outcome.history,
            ledger=metered.ledger,
            run=run,
        )

    with ExitStack() as around:
        around.enter_context(terminable())
        around.enter_context(display)
        home = engine if isinstance(engine, Engine) else around.enter_context(connect(engine))
        around.enter_context(home.exclusive())
        if deadline is not None:
            around.callback(setattr, home, "deadline", home.deadline)
            home.deadline = float(deadline)
        if memory is not None:
            around.callback(setattr, home, "memory", home.memory)
            home.memory = limit
        return home.run_on_coordinator(lambda: run(home), data, load_block)


def pca(
    data: Any, rank: int | Callable[[int, int], int], *, center: bool = True, **options: Any
) -> Result:
    """Principal component analysis: `svd` of the rows less their mean.

    Takes the parameters of `svd` and returns the same `Result`; principal axes are its
    `components`, and `Result.transform` gives the scores of rows.

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 4)) * [9, 3, 1, 1] + 100
    >>> lp.pca(X, 2, method="dpi", rng=0).explained_variance_ratio.round(2)
    array([0.89, 0.08])
    """
    return svd(data, rank, center=center, **options)


pca.__signature__ = inspect.signature(svd).replace(  # type: ignore[attr-defined]
    parameters=[
        p.replace(default=True) if p.name == "center" else p
        for p in inspect.signature(svd).parameters.values()
    ]
)


def _adopted(engine: Engine, data: Any, retries: int) -> Sequence[EngineBlock]:
    """Have the engine keep its own data; again, if a worker is lost over it."""
    for _ in range(retries):
        with suppress(WorkerLost, WorkerLate):
            return engine.adopt(data, load_block)
    return engine.adopt(data, load_block)


def _describe(
    engine: Engine,
    source: Source,
    shards: Partition,
    center: bool,
    scale: str | None,
    checksum: bool,
) -> tuple[Columns, tuple[int, int] | None]:
    """Collect column statistics, refuse what is not finite, and decide shift and scale.

    Also returns the checksum of all rows, if it is asked for.
    """
    stats = describe(engine, scale, checksum)
    if stats.bad is not None:
        row, column = shards.original_row(stats.bad[0]), stats.bad[1]
        names = source.tables[0].names
        called = f"{column} (counted from 0)" if names is None else repr(names[column])
        raise DataError(
            f"NaN or infinity in {source.where(row)}, column {called}; remove such rows or fill in "
            "values before the fit"
        )
    return columns(stats, center, scale, engine.dtype), stats.checksum


def _products(method: str, options: Options, max_rounds: int) -> int:
    """How many local products the method will ask of a shard, if it does all of its rounds."""
    if method == "dpi":
        return max_rounds
    if method == "one_shot":
        return options.steps
    if method != "local_power":
        return 0
    rounds = min(max_rounds, FORESEEN)
    if isinstance(options.schedule, Function):  # a user's, which is not called before its time
        return options.steps * rounds
    return sum(options.schedule(t) for t in range(rounds))


def _useful(workers: int, source: Source, width: int) -> int:
    """How many shards are worth it: each should hold more numbers than it sends in a round."""
    entries = Shard(source.pieces, source.columns, source.dtype).entries
    return max(1, min(workers, entries // (source.columns * width), source.rows))


def _infer_method(method: str, *given: Any) -> tuple[str, str]:
    """Return the method that is meant, and why."""
    *of_local_power, proposal, start = given
    if method != "auto":
        return method, "asked for"
    if any(option is not None for option in of_local_power):
        return "local_power", "an option of it was given: steps, schedule, align or align_at"
    if proposal is not None or start is not None:
        return "local_ritz", "an option of it was given: proposal or start"
    return "auto", ""


def _check_used(method: str, given: dict[str, Any]) -> None:
    """Refuse options that the method has no use for: to ignore them would surprise."""
    if method == "auto" or method not in METHODS:
        return
    own = sorted(set().union(*USES.values()))
    unset = {name: p.default for name, p in inspect.signature(svd).parameters.items()}
    for name in own:
        value = given[name]
        if value is not unset[name] and not (isinstance(value, str) and value == unset[name]):
            users = [other for other, uses in USES.items() if name in uses]
            if method not in users:
                raise ValueError(
                    f"{name}={_written(given[name])} means nothing to method={method!r}: leave it "
                    f"out, or take one of {', '.join(users)}"
                )


def _certainty(value: Any) -> float:
    """The largest p that will do; 0 where only a proof will."""
    if isinstance(value, str) and value == "proven":
        return 0.0
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:
        raise ValueError(
            f"certainty={value!r} is a chance to be wrong: take a number above 0 and at most 1, "
            'such as 1e-6, or "proven"'
        )
    return float(value)


def _doubt(judge: StoppingRule, generator: np.random.Generator) -> Doubt | None:
    """When probes are sent; never where only a proof counts."""
    if not judge.learns:
        return None
    seed = int(generator.spawn(1)[0].integers(1 << 63))

    return Doubt(seed, judge.certainty, judge.certificate)


@dataclass(frozen=True, slots=True)
class Choice:
    """The method that is taken, why, its predicted rounds, and what follows if it is too slow.

    `merged` is how many eigenvectors of a shard are merged then; 0 is the default.
    """

    method: str
    why: str
    rounds: int
    others: tuple[str, ...]
    merged: int = 0


def _choose(
    source: Source,
    engine: Engine,
    workers: int | None,
    options: Options,
    tol: float,
    center: bool,
    scale: str | None,
    wire: str,
) -> Choice:
    """Take the cheapest way to the tolerance, and say why it is."""
    problem = Problem(
        sizes=shard_sizes(source, workers, engine.size),
        columns=source.columns,
        entries=Shard(source.pieces, source.columns, source.dtype).entries,
        itemsize=source.dtype.itemsize,
        rank=options.rank,
        width=options.width,
        tol=tol or TINY,
        memory=source.memory,
        center=center,
        scale=scale,
        latency=engine.latency,
        bandwidth=engine.bandwidth,
        flops=engine.flops,
        stored=bytes_per_pass(source),
    )
    known = [name for name in AUTOMATIC if wire == "float64" or name in ITERATIVE]
    plan = costs(problem, None, known)
    method = plan.choice.method

    def heavy(name: str) -> bool:
        return exceeds_rows(name, problem.columns, problem.width, problem.entries)

    if heavy(method):
        need = size(workspace_bytes(method, problem.columns, problem.width))
        why = f"local_power: {method} would hold {need} besides the rows"
        return Choice("local_power", why, ROUNDS, ())
    others = tuple(
        name
        for name in ("local_ritz", "tsqr")
        if name in known and plan[name].feasible and not heavy(name)
        and (name == "tsqr" or method not in ONE_ROUND) and name != method
    )  # fmt: skip
    few = source.rows if source.rows <= min(GRAM_COLUMNS, source.columns) else 0
    if few and method not in ONE_ROUND:  # all eigenvectors of so few rows can be merged
        others = ("local_ritz",)
    return Choice(method, plan.why, plan.choice.rounds, () if method == "tsqr" else others, few)


def _relay(
    engine: Engine, generator: np.random.Generator, options: Options, choice: Choice
) -> Relay:
    """The method that was chosen, and what follows where it is too slow or not exact enough."""
    patience = max(ROUNDS, PATIENCE * choice.rounds)
    doubt = options.doubt  # later probes share the chance to be misled with earlier ones
    doubt = None if doubt is None else replace(doubt, before=MOST_DRAWS + 1)
    later = replace(options, merged=choice.merged, begin=None, doubt=doubt)
    legs = [(choice.method, options), *((name, later) for name in choice.others)]
    return Relay([(name, METHODS[name](engine, generator, o), patience) for name, o in legs])


def _narrow(
    wire: str, method: str, rank: int, tol: float, kind: np.dtype[Any]
) -> WireRounding | None:
    """How messages are rounded, where they are."""
    _one_of("wire", wire, UNITS)
    eps = float(np.finfo(kind).eps)
    if 2 * UNITS[wire] <= eps:
        return None
    if method not in ITERATIVE:
        raise ValueError(
            f"wire={wire!r} is for methods that iterate, not for {method}: take one of "
            f"{', '.join(ITERATIVE)}"
        )
    return WireRounding(wire, rank, tol, eps)


def _names(source: Source) -> list[str] | None:
    """Names of the columns, if they have such and are not too many to be kept."""
    names = source.tables[0].names
    return None if names is None or len(names) > MOST_NAMES else [str(name) for name in names]


def _call(given: dict[str, Any], seed: int | None, workers: int | None) -> str:
    """Write the call that does the same again; dots stand for what cannot be written."""
    told = given | {"workers": given["workers"] or workers}
    told |= {} if seed is None else {"rng": seed}
    defaults = {name: p.default for name, p in inspect.signature(svd).parameters.items()}
    data, rank, *options = (name for name in defaults if name not in ("callback", "progress"))
    written = {name: _written(told[name]) for name in options}
    parts = [f"{name}={text}" for name, text in written.items() if text != _written(defaults[name])]
    rows = _written(told[data]) if isinstance(told[data], str | os.PathLike) else "data"
    return f"localpower.svd({', '.join([rows, _written(told[rank]), *parts])})"


def _written(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, set | frozenset | list | tuple) and len(value) <= MOST_TIMES:
        return repr(type(value)(sorted(value)))
    return repr(value) if value is None or isinstance(value, str | int | float) else "..."


def _named(schedule: Any) -> str:
    if schedule is None:
        return "constant"
    return schedule if isinstance(schedule, str) else repr(schedule)


def _partition(name: Any) -> str:
    how, colon, concentration = name.partition(":") if isinstance(name, str) else ("", "", "")
    try:
        good = not colon or (how == "dirichlet" and float(concentration) > 0)
    except ValueError:
        good = False
    if how not in PARTITIONS or not good:
        raise ValueError(
            f"partition={name!r} is not known: take one of {', '.join(PARTITIONS)}, the last also "
            "with a concentration above 0, as in 'dirichlet:0.5'"
        )
    return str(name)


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Decides when a run is done: what was asked for, and what may be spent.

    `certainty` is the largest p that will do. `ties` says that small residuals are enough where no
    gap is seen after the leading columns, and `learns` that further rounds may tell more of p.
    `noise` is what cancellation may have done to products.
    """

    rank: int
    tol: float
    certainty: float
    trace: float
    eps: float
    max_rounds: int
    max_bytes: float
    max_seconds: float
    noise: float = 0.0
    ties: bool = True
    learns: bool = False

    def certificate(self, state: State) -> Certificate | None:
        """What the state tells of the basis whose residuals it knows."""
        known = Known(len(state.basis), self.trace, self.eps, self.noise)
        return state.certificate(self.rank, known, self.tol, self.certainty)

    def verdict(
        self,
        state: State,
        found: Certificate | None,
        history: Sequence[Record],
        spent: float,
        seconds: float,
    ) -> str | None:
        """Why to stop, if there is a reason; so many bytes and seconds were `spent` so far."""
        if found is not None and self.tol:
            near = found.angle <= self.tol
            tie = self.ties and found.gap <= self.tol and found.residual <= self.tol
            if near or tie:
                if found.sure(self.certainty):
                    return "angle" if near else "residual"
                if not self.learns or state.draws > MOST_DRAWS:
                    return "unsure"
            elif found.rounded and found.gap > self.tol:
                return "rounding"
            elif _stalled(history):
                return "stalled"
        return "budget" if spent > self.max_bytes or seconds > self.max_seconds else None


class Relay:
    """The states of a method, and of the next one where the first does not get there.

    A leg is the name of a method, its states, and how many rounds it has; None is any number.
    """

    def __init__(self, legs: Sequence[tuple[str, Iterator[State], int | None]]) -> None:
        self._legs = list(legs)
        self._skipped = False
        self.method = ""

    def __iter__(self) -> Iterator[State]:
        before = 0
        while self._legs:
            self.method, states, rounds = self._legs.pop(0)
            self._skipped = False
            done = before
            for state in islice(states, rounds if self._legs else None):
                done = before + state.round
                yield replace(state, round=done) if before else state
                if self._skipped:
                    break
            before = done

    def skip(self) -> bool:
        """Go on with the next method, if there is one."""
        self._skipped = bool(self._legs)
        return self._skipped


def _goal(method: str, judge: StoppingRule) -> Goal:
    """What ends the run, as far as the time left can be told from it."""
    if method not in (*ITERATIVE, "block_lanczos"):
        return Goal()
    return Goal(judge.tol, judge.max_rounds, judge.max_bytes, judge.max_seconds)


@dataclass(frozen=True, slots=True)
class CheckpointWriter:
    """Writes a checkpoint after every so many rounds, and finds the last one.

    Nothing is written from when shards are `missing`: what a state says of all rows would not be
    true of it, and a later run, which may have them all, would go on from that.
    """

    path: str | os.PathLike[str] | None
    every: int
    identity: dict[str, Any]
    missing: Collection[int] = ()

    def check(self, size: int) -> None:
        """Refuse a place that has no room for a state of `size` bytes."""
        if self.path is not None:
            check_place(self.path, size)

    def found(self) -> Checkpoint | None:
        """Read the checkpoint, if there is one."""
        if self.path is None or not os.path.exists(self.path):
            return None
        return load(self.path, self.identity)

    def due(self, state: State, ends: bool) -> bool:
        """Whether to write the state: it is time, or the run ends."""
        if self.path is None or self.missing:
            return False
        return state.round % self.every == 0 or ends

    def keep(self, point: Checkpoint) -> None:
        """Write a checkpoint that is due."""
        assert self.path is not None
        final = point.reason if point.reason in FINAL else None  # else it may go on
        save(self.path, replace(point, reason=final), self.identity)


def _warm(
    earlier: Result | None, engine: Engine, options: Options, generator: np.random.Generator
) -> State | None:
    """Start from what an earlier run found; all other columns are random, to find what is new."""
    if earlier is None:
        return None
    if earlier.basis.shape[0] != engine.columns:
        raise ValueError(
            f"warm_start has {earlier.basis.shape[0]} columns where the data have "
            f"{engine.columns}; give a result of the same columns"
        )
    V = earlier.components.T.astype(np.float64)[:, : options.rank]
    more = generator.standard_normal((engine.columns, options.width - V.shape[1]))
    return State(orth(np.hstack([V, more])).astype(engine.dtype, copy=False))


def _stalled(history: Sequence[Record]) -> bool:
    """Whether residuals of rounds with local steps have not fallen for some time."""
    recent = [record.residual for record in history[-STALL:] if record.steps > 1]
    known = [residual for residual in recent if residual is not None]
    return len(known) == STALL and min(known[1:]) > 0.9 * known[0]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a method ended with, and why."""

    state: State
    history: tuple[Record, ...]
    reason: str
    certificate: Certificate | None


def _iterate_until(
    states: Relay,
    engine: Ledgered,
    judge: StoppingRule,
    callback: Callback | None,
    keeper: CheckpointWriter,
    past: Checkpoint | None,
    display: Progress,
) -> Outcome:
    """Run a method until there is a reason to stop, after what it did in the `past`."""
    state = None if past is None else past.state
    found = None if state is None else judge.certificate(state)
    history = [] if past is None else list(past.history)
    reason = None if past is None else past.reason
    if past is not None:
        engine.restore(past.records)
    left = 0 if reason is not None else max(0, judge.max_rounds - len(history))
    steps = 0 if state is None else state.steps
    spent = sum(record.bytes_up + record.bytes_down for record in history)
    seconds = sum(record.seconds for record in history)
    seen, before = engine.hops, time.perf_counter()
    for state in islice(states, left):
        traffic = engine.since(seen)
        found = judge.certificate(state)
        now = time.perf_counter()
        record = Record(
            round=state.round,
            steps=state.steps - steps,
            bytes_up=traffic.bytes_up,
            bytes_down=traffic.bytes_down,
            seconds=now - before,
            bytes_read=traffic.bytes_read,
            angle=None if found is None else found.angle,
            residual=None if found is None else found.residual,
            proven=None if found is None else found.proven,
            p=None if found is None else found.p,
        )
        steps, seen, before = state.steps, seen + traffic.hops, now
        history.append(record)
        spent += record.bytes_up + record.bytes_down
        seconds += record.seconds
        reason = judge.verdict(state, found, history, spent, seconds)
        doubtful = reason in GIVEN_UP or (reason == "residual" and found and found.vanishing)
        if doubtful and states.skip():
            reason = None
        display.round(history)
        ended = False
        if callback is not None:
            with nullcontext() if getattr(callback, "silent", False) else display.hidden():
                ended = bool(callback(record, state.answer()))
        if keeper.due(state, ended or reason is not None):
            records = engine.ledger.phase("iterate").records
            keeper.keep(Checkpoint(state, tuple(history), records, reason))
        if ended or reason is not None:
            reason = "callback" if ended else reason
            break
    if state is None:
        raise ValueError("schedule gives no round: its first number of steps is 0; give 1 or more")
    reason = reason or ("max_rounds" if len(history) >= judge.max_rounds else "end")
    return Outcome(state, tuple(history), reason, found)


def _lost_rows(engine: Retrying, source: Source) -> list[dict[str, Any]]:
    """Name the rows that a result does not rest on, and warn."""
    starts = np.cumsum([0, *engine.rows])
    lost = [
        {"shard": n, "first_row": int(starts[n]), "rows": int(engine.rows[n])}
        for n in sorted(engine.missing)
    ]
    count = sum(part["rows"] for part in lost)
    warn(
        f"{count} of {source.rows} rows are not in this result: shards {sorted(engine.missing)} "
        'were lost; run["degraded"] names them, run["faults"] tells why',
        DegradedWarning,
    )
    return lost


def returns_certified_basis(record: Record) -> bool:
    """Whether a certified run that ends here returns what the certificate is about.

    What came of it in the round may be worse: after local steps, or where values are nearly equal.
    Far from the answer it is better all the same.
    """
    after_local_steps = record.steps > 1 and (record.angle or 1.0) < 1.0
    return after_local_steps or (record.residual or 1.0) < NEAR


def _conclude(method: str, outcome: Outcome, tol: float) -> str:
    """Say why the run ended, and warn if that is not what was asked for."""
    reason, found = outcome.reason, outcome.certificate
    if method == "tsqr" or (method == "gram" and reason not in ("angle", "residual", "rounding")):
        limited = tol and found is not None and found.angle > tol and found.gap > tol
        reason = "rounding" if limited else "exact"
    if tol and reason == "end" and method in RITZ and found is not None:  # nothing new was left
        reason = "rounding" if found.rounded else "unsure"
    if tol and reason not in (*CONVERGED, "callback"):
        _warn_not_converged(reason, outcome, tol, method)
    return reason


def _good_enough(outcome: Outcome, certainty: float) -> bool:
    """Whether nobody asked for more than rounding allows, and that is known to be good."""
    found = outcome.certificate
    if found is None or outcome.reason != "rounding":
        return False
    return found.angle <= ROUGH and found.sure(certainty)


def _told(found: Certificate | None) -> dict[str, Any] | None:
    """A certificate as it is kept in the record of a run."""
    return None if found is None else asdict(found) | {"residuals": found.residuals.tolist()}


def _is_graded(found: Factors, source: Source) -> bool:
    """Whether the last singular value, which its square could not tell from zero, is none."""
    S, eps = found.singular_values, float(np.finfo(source.dtype).eps)
    zero = ZERO * np.sqrt(max(source.rows, source.columns)) * eps
    return bool(zero * S[0] < S[-1] <= 2 * np.sqrt(ROUNDING * eps) * S[0])


def _origin(
    seed: int | None, generator: np.random.Generator, earlier: Result | None
) -> dict[str, str | None]:
    """What a run starts from, besides its seed."""
    return {
        "rng": generator_digest(generator) if seed is None else None,
        "warm_start": None if earlier is None else digest(earlier.basis),
    }


def _identity(
    run: dict[str, Any],
    options: Options,
    shards: Sequence[int],
    origin: dict[str, str | None],
    checksum: tuple[int, int] | None,
) -> dict[str, Any]:
    """What must be the same for a run to go on from a checkpoint."""
    known = {name: run[name] for name in IDENTITY} | origin
    if isinstance(options.schedule, At):
        known["schedule"] = digest(options.schedule.times)
    every = ((entry.name, getattr(options, entry.name)) for entry in fields(options))
    plain = {name: value for name, value in every if isinstance(value, str | int | float)}
    return known | plain | {"shards": list(shards), "data": checksum}


def _warn_not_converged(reason: str, outcome: Outcome, tol: float, method: str) -> None:
    found, reached = outcome.certificate, "no angle was certified"
    if found is not None:
        known = "proven" if found.proven else f"if nothing was missed (p = {found.p:.1g})"
        reached = f"the angle is at most {found.angle:.1e}, {known},"
    remedy = REMEDIES.get(reason, "take a method that iterates")
    if reason == "max_rounds" and method != "local_ritz":
        remedy += ", or take method='local_ritz'"
    warn(
        f"tol={tol:g} was not reached ({reason}): {reached} after {len(outcome.history)} rounds; "
        f"{remedy}",
        ConvergenceWarning,
    )


def _limits(max_bytes: Any, max_seconds: Any) -> tuple[float, float]:
    limits = []
    for name, value in (("max_bytes", max_bytes), ("max_seconds", max_seconds)):
        if value is not None and (not isinstance(value, int | float) or not value > 0):
            raise ValueError(f"{name}={value!r} must be a number above 0, or None")
        limits.append(float("inf") if value is None else float(value))
    return limits[0], limits[1]


def _explained(found: Factors, how: Columns, rows: int, center: bool) -> tuple[Array, Array]:
    """Share of the total variance along each component, and the variance itself."""
    freedom = max(rows - 1, 1) if center else rows
    total = how.squares / freedom
    if found.variance is None:
        variance = np.square(found.singular_values.astype(np.float64)) / freedom
    else:  # no direction has more than all of it
        variance = np.minimum(found.variance, total)
    with np.errstate(over="ignore"):
        ratio = variance / total if total else np.zeros_like(variance)
        return ratio, np.ldexp(variance, 2 * how.exponent)


def _hint_units(source: Source, ratio: Array, V: Array) -> None:
    """Warn if the first component is one column, which may be due to its unit."""
    names = source.tables[0].names
    column = int(np.abs(V[:, 0]).argmax())
    if names is not None and len(names) > 2 and ratio[0] > 0.9 and abs(V[column, 0]) > 0.99:
        warn(
            f"the first component is column {names[column]!r} and little else, with {ratio[0]:.0%} "
            "of the variance; if columns are in different units, give scale='std'",
            DataHint,
        )


def _options(
    rank: int,
    method: str,
    steps: int | None,
    schedule: str | Iterable[int] | Schedule | None,
    align: str | None,
    align_at: str | None,
    proposal: str | None,
    start: str | None,
    width: int | None,
) -> Options:
    rank, steps = _positive("rank", rank), _positive("steps", 4 if steps is None else steps)
    align = "procrustes" if align is None else align
    align_at = "server" if align_at is None else align_at
    proposal = "residual" if proposal is None else proposal
    start = "merged" if start is None else start
    width = rank if width is None else _positive("width", width)
    if width < rank:
        raise ValueError(f"width={width} is below rank={rank}; iterate at least that many columns")
    _one_of("method", method, ("auto", *METHODS))
    _one_of("align", align, ALIGNMENTS)
    _one_of("align_at", align_at, ("server", "worker"))
    _one_of("proposal", proposal, PROPOSALS)
    start, merged = _start_of(start)
    parsed = parse("constant" if schedule is None else schedule, steps)
    return Options(rank, width, parsed, align, align_at, steps, proposal, start, merged)


def _start_of(start: Any) -> tuple[str, int]:
    """Read ``"merged"``, ``"merged:200"`` or ``"random"``."""
    name, colon, count = start.partition(":") if isinstance(start, str) else (start, "", "")
    if name not in STARTS or (colon and (name != "merged" or not count.isdecimal())):
        raise ValueError(
            f"start={start!r} is not known: take one of {', '.join(STARTS)}, or 'merged:200' for "
            "so many eigenvectors of every shard"
        )
    return name, int(count or 0)


def _run_options(
    max_rounds: Any, tol: Any, workers: Any, scale: Any, callback: Any
) -> tuple[int | None, int | None]:
    if tol is not None and (not isinstance(tol, int | float | np.number) or not 0 <= tol < 1):
        raise ValueError(f"tol={tol!r} is the sine of an angle: take 0 <= tol < 1")
    if scale is not None:
        _one_of("scale", scale, SCALES)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback={callback!r} must be a function of a record and a state")
    rounds = None if max_rounds is None else min(_positive("max_rounds", max_rounds), sys.maxsize)
    return rounds, None if workers is None else _positive("workers", workers)


def _random(rng: Any) -> tuple[int | None, np.random.Generator]:
    """Return the seed, where there is one to record, and the generator."""
    seed = secrets.randbits(63) if rng is None else rng
    try:
        generator = np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"rng={rng!r} must be a non-negative whole number, a numpy.random.Generator or None"
        ) from None
    return int(seed) if isinstance(seed, int | np.integer) else None, generator


def _check_rank(rank: int, source: Source) -> None:
    n, d = source.rows, source.columns
    if rank > min(n, d):
        raise ValueError(
            f"rank={rank} is more than data with n_samples={n} and n_features={d} has; "
            f"take 1 to {min(n, d)}"
        )


def _check_fit(method: str, options: Options, source: Source) -> None:
    """Check the options against the shape of the data."""
    n, d = source.rows, source.columns
    if options.width > d:
        raise ValueError(f"width={options.width} is more than n_features={d}; take at most that")
    need = workspace_bytes(method, d, options.width)
    if need > source.memory:
        raise DataError(
            f"{source.names[0]} has {d} columns: the work of {method} with {options.width} vectors "
            f"takes {need / 1e9:.1f} GB, and memory is {source.memory / 1e9:.1f} GB; check that so "
            "many columns are meant (svmlight takes them from the largest index), take another "
            "method, or raise memory="
        )
    per_row, least = WIDE
    dense = all(not is_sparse(piece) for piece in source.pieces)
    if dense and d >= max(least, per_row * n):
        warn(
            f"{n} rows of {d} columns: if the samples are in columns, give the transpose",
            DataHint,
        )


def _positive(name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} must be a whole number") from None
    if isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a whole number")
    if number < 1:
        raise ValueError(f"{name}={value!r} must be 1 or more")
    return number


def _one_of(name: str, value: Any, known: Iterable[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={value!r} is not known: take one of {', '.join(known)}")
