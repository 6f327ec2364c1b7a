"""One factorisation, from rows to a result: open, choose, place, prepare, iterate, finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from localpower.checkpoint import CheckpointWriter, check_place, digest, generator_digest
from localpower.core.errors import DataError, WorkerLate, WorkerLost
from localpower.core.linalg import Array, orth
from localpower.core.share import Share
from localpower.data import partition as partitions
from localpower.data.hints import hint_units
from localpower.data.readers.clusters import has_columns
from localpower.data.reading import LazySource
from localpower.data.source import Source, held, load_block, open_source
from localpower.engines.base import Engine
from localpower.engines.ledgered import Ledgered
from localpower.engines.retrying import Retrying
from localpower.iteration import (
    ROUNDS,
    Callback,
    answer_of,
    doubt_of,
    follow,
    growth_of,
    plain,
    present,
    reach_of,
    relay_of,
)
from localpower.methods import Auto, Choice, Method, Start
from localpower.methods.factors import Factors, explained, factors, is_graded, summed_factors
from localpower.methods.growing import guessed, share_of
from localpower.methods.scaling import Columns, columns, describe, prepare
from localpower.methods.state import State
from localpower.options import Budget, Checkpoint, Faults, Privacy
from localpower.planning import problem_of, tolerance
from localpower.progress import Goal, Progress
from localpower.result import Result
from localpower.shape_checks import check_fit, check_rank, check_sums, method_for_sums, reuses
from localpower.show.history import History
from localpower.stopping import Outcome, StoppingRule, conclude, good_enough
from localpower.version import __version__
from localpower.worker.shard import EngineBlock

OWN_ROUNDS = 500  # of all methods that `auto` takes
MOST_NAMES = 100_000  # names of columns on record
IDENTITY = ("method", "tol", "certainty", "center", "scale", "partition", "seed", "dtype",
            "columns", "rank", "width")  # of a run, besides the options of its method  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What is asked of a run, checked; `given` has the arguments as the user wrote them."""

    data: Any
    rank: Callable[[int, int], float]
    method: Method
    tol: float | None
    certainty: float
    max_rounds: int | None
    budget: Budget
    center: bool
    scale: str | None
    workers: int | None
    partition: str
    memory: int | str | None
    faults: Faults
    checkpoint: Checkpoint | None
    warm_start: Result | None
    return_u: bool | str
    seed: int | None
    rng: np.random.Generator
    callback: Callback | None
    call: Callable[[dict[str, Any]], str]
    given_certainty: float | str
    given: Mapping[str, Any]
    privacy: Privacy | None = None

    @property
    def chosen(self) -> bool:
        """Whether the method is left to us."""
        return isinstance(self.method, Auto)


class Run:
    """A run of a method on an engine. Calling it does the six steps, and returns the result."""

    source: Source
    method: Method
    choice: Choice
    rank: int
    width: int
    tol: float
    rounds: int
    shards: partitions.Partition
    engine: Ledgered
    columns: Columns
    deviations: Array
    rule: StoppingRule
    outcome: Outcome
    share: Share | None

    def __init__(self, asked: Asked, engine: Engine, display: Progress) -> None:
        self.asked, self.home, self.display = asked, engine, display
        checked = asked.checkpoint is not None
        self.origin: dict[str, Any] = origin_of(asked) if checked else {}
        self.run: dict[str, Any] = {}

    def __call__(self) -> Result:
        """Do all six steps."""
        with ExitStack() as stack:
            self.open(stack)
            self.choose()
            self.place()
            self.prepare()
            self.iterate()
            return self.finish()

    def open(self, stack: ExitStack) -> None:
        """Open the rows, where they are."""
        asked = self.asked
        if self.home.only_sums:
            sends_rows = bool(asked.return_u), bool(asked.checkpoint)
            check_sums(asked.scale, *sends_rows, asked.faults)
            method_for_sums(asked.method)
        if asked.checkpoint is not None:
            check_place(asked.checkpoint.path)
        self.display.stage("reading data")
        lazy = asked.data if isinstance(asked.data, LazySource) else None
        self.held = self.home.takes(asked.data if lazy is None else lazy.data)
        if self.held:
            if asked.workers is not None or asked.partition != "contiguous":
                raise ValueError(
                    "workers= and partition= cut rows into new shards, but these rows stay where "
                    "they are: leave both out, or cut the data before"
                )
            data, missing = (
                (asked.data, {})
                if lazy is None
                else lazy.in_place(getattr(self.home, "client", None))
            )
            blocks = adopted(self.home, data, asked.faults.retries)
            self.source = held(blocks, "data", asked.memory, missing)
        else:
            self.source = open_source(asked.data, memory=asked.memory, shards=asked.workers)
        if self.source is not asked.data:
            stack.callback(self.source.close)

    def choose(self) -> None:
        """Decide rank, tolerance, method, width and rounds."""
        asked, source = self.asked, self.source
        self.tol = asked.tol or 0.0
        if asked.tol is None and asked.chosen:
            self.tol = tolerance(source.dtype)
        self.wanted = asked.rank(source.rows, source.columns)
        method = asked.method
        if self.home.only_sums:
            method = method_for_sums(method)
        method.check_rank(self.wanted)
        self.rank = guessed(self.wanted, source.rows, source.columns)
        check_rank(self.rank, source)
        if isinstance(method, Auto):
            width = method.columns(self.rank, source.columns, True)
            how = asked.workers, self.rank, width, self.tol, asked.center, asked.scale
            self.choice = method.choose(problem_of(source, self.home, *how))
            if not self.choice.rounds and asked.tol is None:  # not certified, unless asked for
                self.tol = 0.0
        else:
            self.choice = Choice(method, "asked for", ROUNDS)
        self.method = self.choice.method
        own = OWN_ROUNDS if asked.chosen and self.tol else ROUNDS
        self.rounds = asked.max_rounds or own
        self.width = self.method.columns(self.rank, source.columns, self.tol > 0)
        check_fit(self.method, self.width, source)
        checked = asked.checkpoint is not None
        self.reuses = reuses(self.method, self.wanted, asked.faults, checked)

    def place(self) -> None:
        """Cut the rows into shards, and bring these to their workers."""
        asked, source = self.asked, self.source
        shuffler = asked.rng if asked.partition == "contiguous" else asked.rng.spawn(1)[0]
        at_once = self.home.size
        if not asked.workers:
            at_once = partitions.useful(at_once, source, self.width)
        self.shards = partitions.partition(
            source, asked.workers, asked.partition, shuffler, at_once
        )
        self.display.stage("placing shards")
        how, sampled = asked.faults, asked.faults.participation < 1
        self.retrying = Retrying(self.home, how.retries, how.on_loss, sampled and self.reuses)
        self.engine = Ledgered(self.retrying)
        self.engine.sampled = sampled
        self.engine.place(self.shards.shards)

    def prepare(self) -> None:
        """Collect column statistics, decide shift and scale, and hand these out."""
        asked, source = self.asked, self.source
        self.display.stage("column statistics")
        checked = asked.checkpoint is not None
        self.columns, self.checksum = described(self, checked)
        foreseen = self.method.products(self.rounds)
        self.home.trace = self.columns.trace(source.rows)
        ready = prepare(self.engine, self.columns, foreseen, self.width)
        noise = ready.noise + self.home.rounding
        eps = float(np.finfo(source.dtype).eps)
        self.share = share_of(self.wanted, self.columns, source.rows, eps, noise)
        if self.share is not None:
            self.rank = self.method.first_rank(source.columns, self.share.limit)
            self.width = self.method.columns(self.rank, source.columns, True)
        self.rule = StoppingRule(
            rank=self.rank,
            share=self.share,
            tol=self.tol,
            certainty=asked.certainty,
            trace=self.columns.trace(source.rows),
            eps=eps,
            noise=noise,
            eps_of_sums=self.columns.eps_of_sums(source.dtype),
            max_rounds=self.rounds,
            max_bytes=asked.budget.bytes or float("inf"),
            max_seconds=asked.budget.seconds or float("inf"),
            ties=not (asked.chosen and self.method.squares),
            learns=asked.certainty > 0 and self.method.sends_probes,
        )
        self.run = self.record(dict(ready.kernels))

    def record(self, kernels: dict[str, int]) -> dict[str, Any]:
        """What was asked and on what, for the result."""
        asked, source, method = self.asked, self.source, self.method
        workers = len(self.shards.shards)
        return {
            "version": __version__,
            **described_method(method),
            "why": self.choice.why,
            "rank": self.rank,
            "width": self.width,
            "max_rounds": self.rounds,
            "tol": self.tol,
            "certainty": asked.given_certainty,
            "workers": workers,
            "partition": asked.partition,
            "memory": source.memory,
            "kept": self.shards.shards[0].keep,
            "kernels": kernels,
            "engine": type(self.home).__name__.lower(),
            "center": asked.center,
            "scale": asked.scale,
            "seed": asked.seed,
            "rows": source.rows,
            "columns": source.columns,
            "dtype": source.dtype.name,
            "held": self.held,
            "names": names_of(source),
            "only_sums": self.home.only_sums,
            "call": asked.call({"rank": self.wanted} | ({} if self.held else {"workers": workers})),
        } | ({"missing": dict(source.missing)} if source.missing else {})

    def iterate(self) -> None:
        """Run the method, and the next one where it does not get there, until it is done."""
        asked, source = self.asked, self.source
        self.engine.phase = "iterate"
        writer = CheckpointWriter(asked.checkpoint, self.identity(), self.retrying.missing)
        writer.check(source.columns * self.width * source.dtype.itemsize)
        past = writer.found([self.method, *self.choice.others])
        begin = past.state if past is not None else self.warm_state()
        doubt = doubt_of(self.rule, asked.rng)
        start = Start(self.rank, self.width, asked.rng, self.tol, doubt, begin)
        growth = growth_of(self.share, asked.rng)
        rate, last = asked.faults.participation, self.retrying.last if self.reuses else None
        engine = present(self.engine, rate, asked.rng, last)
        relay = relay_of(self.choice, engine, start, growth, past)
        limits = self.rule.max_rounds, self.rule.max_bytes, self.rule.max_seconds
        goal = Goal(self.tol, *limits) if self.method.iterates else Goal()
        self.display.stage(self.method.name, goal)
        self.retrying.answered.clear()
        self.outcome = follow(
            relay, self.engine, self.rule, asked.callback, writer, past, self.display
        )
        rounds = self.engine.ledger.phase("iterate").rounds
        self.took_part = rate, rounds, self.retrying.answered.copy()
        if self.share is not None:
            self.rank, self.width = self.outcome.state.rank, self.outcome.state.basis.shape[1]
            self.run |= {"rank": self.rank, "width": self.width}
        if relay.method != self.method:
            self.method = relay.method
            why = f"{self.choice.why}; that did not reach the tolerance, so {self.method} followed"
            self.run |= described_method(self.method) | {"why": why}

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on from a checkpoint."""
        known = {name: self.run[name] for name in IDENTITY} | self.method.identity()
        known |= {} if self.share is None else {"share": self.share.part}
        if self.choice.others:
            known["methods that follow"] = [str(method) for method in self.choice.others]
        return known | self.origin | {"shards": list(self.engine.rows), "data": self.checksum}

    def warm_state(self) -> State | None:
        """Start from what an earlier run found; all other columns are random, to find the new."""
        earlier = self.asked.warm_start
        if earlier is None:
            return None
        d = self.engine.columns
        if earlier.basis.shape[0] != d:
            raise ValueError(
                f"warm_start has {earlier.basis.shape[0]} columns where the data have {d}; give a "
                "result of the same columns"
            )
        V = earlier.components.T.astype(np.float64)[:, : self.rank]
        more = self.asked.rng.standard_normal((d, self.width - V.shape[1]))
        basis = orth(np.hstack([V, more])).astype(self.engine.dtype, copy=False)
        return State(basis, rank=self.rank)

    def finish(self) -> Result:
        """Make singular values and vectors of the basis, and say what is known of them."""
        asked, outcome, source = self.asked, self.outcome, self.source
        if asked.tol is None and asked.chosen and good_enough(outcome, asked.certainty):
            assert outcome.certificate is not None
            self.tol = self.run["tol"] = outcome.certificate.angle
            outcome = replace(outcome, reason="angle")
        stale, sums = self.retrying.reused > 0, self.home.only_sums
        reason = self.run["reason"] = conclude(self.method, outcome, self.tol, stale, sums)
        basis, certified = answer_of(outcome, reason, self.tol, source.dtype)
        about = certified or self.tol > 0 or self.method.certifies or self.method.exact
        self.run["certificate"] = plain(outcome.certificate) if about else None
        self.display.stage("singular values")
        self.engine.phase = "factors"
        found = self.factors(basis)
        shape, squares = (source.rows, source.columns), self.method.squares and self.tol
        squared = sums or reason == "residual" or (reason == "exact" and squares)
        if squared and is_graded(found.singular_values, shape, source.dtype):
            outcome = replace(outcome, reason="rounding")
            self.run["reason"] = conclude(self.method, outcome, self.tol, only_sums=sums)
        self.run["reach"] = reach_of(self.rule, outcome.state, found.singular_values)
        U = None
        if asked.return_u is True:
            U = self.shards.in_original_order(found.left_vectors(self.engine))
        self.run["faults"] = [asdict(fault) for fault in self.retrying.faults]
        self.run["participation"] = self.retrying.participation(*self.took_part)
        self.run["timeline"] = self.engine.timeline
        if self.retrying.missing:
            self.run |= {"reason": "degraded", "degraded": self.retrying.lost_rows()}
            self.run |= {"reach": None, "certificate": None}
        return self.result(found, basis, U)

    def factors(self, basis: Array) -> Factors:
        """Singular values and vectors within the span of a basis."""
        variance, rows = not self.asked.center, self.source.rows
        if self.home.only_sums:
            return summed_factors(self.engine, basis, self.rank, self.columns, rows, variance)
        gram, far = self.method.squares, self.columns.is_far(rows)
        return factors(self.engine, basis, self.rank, gram=gram, variance=variance, far=far)

    def result(self, found: Factors, basis: Array, U: Array | None) -> Result:
        """Put everything together, in the type of the data."""
        how, dtype, center = self.columns, self.source.dtype, self.asked.center
        ratio, variance = explained(found, how, self.source.rows, center)
        self.run["variance"] = float(variance[0] / ratio[0]) if ratio[0] > 0 else 0.0  # the total
        if center and self.asked.scale is None:
            hint_units(self.source.tables[0].names, ratio, found.V, self.deviations)

        def cast(x: Array, exponent: int = 0) -> Array:
            with np.errstate(over="ignore"):  # variances of huge data may be infinite
                return np.ldexp(x, exponent).astype(dtype, copy=False)

        def exactly(x: Array | None) -> Array | None:  # in float64 where that type rounds it
            return x if x is None or (cast(x) != x).any() else cast(x)

        return Result(
            components=cast(found.V.T),
            singular_values=cast(found.singular_values.astype(float), how.exponent),
            U=U,
            basis=basis,
            mean=exactly(how.shift),
            scale=exactly(how.scale),
            explained_variance=cast(variance),
            explained_variance_ratio=cast(ratio),
            history=History(self.outcome.history),
            ledger=self.engine.ledger,
            run=self.run,
        )


def described_method(method: Method) -> dict[str, Any]:
    """What a record of a run says of its method."""
    return {
        "method": method.name,
        "options": method.identity(),
        "iterates": method.iterates,
        "certifies": method.certifies,
        "exact": method.exact,
        "squares": method.squares,
    }


def adopted(engine: Engine, data: Any, retries: int) -> Sequence[EngineBlock]:
    """Have the engine keep its own data; again, if a worker is lost over it."""
    for _ in range(retries):
        with suppress(WorkerLost, WorkerLate):
            return engine.adopt(data, load_block)
    return engine.adopt(data, load_block)


LEAVING_OUT = (
    "; missing='drop' leaves out rows with NaN (pass localpower.read(data, missing=…) as data)"
)


def described(run: Run, checksum: bool) -> tuple[Columns, tuple[int, int] | None]:
    """Collect column statistics, refuse what is not finite, and decide shift and scale.

    Also returns the checksum of all rows, if it is asked for.
    """
    asked, source = run.asked, run.source
    grams = run.method.forms_grams and asked.warm_start is None
    stats = describe(run.engine, asked.scale, checksum, asked.center if grams else None)
    if stats.bad is not None:
        row, column = run.shards.original_row(stats.bad[0]), stats.bad[1]
        names = source.tables[0].names
        data = asked.data.data if isinstance(asked.data, LazySource) else asked.data
        remedy = LEAVING_OUT if has_columns(data) or not run.held else ""
        called = f"{column} (counted from 0)" if names is None else repr(names[column])
        raise DataError(
            f"NaN or infinity in {source.where(row)}, column {called}; remove such rows or fill in "
            f"values before the fit{remedy}"
        )
    with np.errstate(over="ignore"):
        run.deviations = np.ldexp(np.sqrt(stats.m2 / max(stats.rows, 1)), stats.exponent)
    how = columns(stats, asked.center, asked.scale, run.engine.dtype)
    return how, stats.checksum


def names_of(source: Source) -> list[str] | None:
    """Names of the columns, if they have such and are not too many to be kept."""
    names = source.tables[0].names
    return None if names is None or len(names) > MOST_NAMES else [str(name) for name in names]


def origin_of(asked: Asked) -> dict[str, Any]:
    """What a run starts from, besides its seed."""
    earlier = asked.warm_start
    return {
        "rng": generator_digest(asked.rng) if asked.seed is None else None,
        "warm_start": None if earlier is None else digest(earlier.basis),
    }
