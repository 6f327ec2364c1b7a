"""One trial: a method on a problem with a seed. All tables and figures are made of trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice

import numpy as np
from numpy.typing import NDArray

from localpower.core.linalg import Array, random_basis
from localpower.engines.base import Engine
from localpower.engines.inline import Inline
from localpower.methods.averaging import uda, wda
from localpower.methods.local_power import local_power
from localpower.methods.randomized import dr_svd
from localpower.methods.schedule import parse
from localpower.methods.state import State
from localpower.paper.grams import GramEngine, Grams, in_step
from localpower.paper.problems import RANK, Problem
from localpower.worker.shard import Shard

SEED = 2021
ALIGNMENTS = ("procrustes", "signs", "none")
ONE_SHOT = ("dr_svd", "uda", "wda")
TITLES = {"procrustes": "OPT", "signs": "sign-fixing", "none": "vanilla"}
TITLES |= {"dr_svd": "DR-SVD", "uda": "UDA", "wda": "WDA"}


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """What is run; `shards` 0 means the mode's own number, one-shot methods have 0 rounds."""

    dataset: str
    mode: str
    repeat: int
    shards: int
    method: str
    steps: int
    schedule: str
    rounds: int

    @property
    def group(self) -> tuple[str, str, int]:
        """Trials of a group share rows, shuffle and start."""
        return self.dataset, self.mode, self.repeat


def run_group(trials: Iterable[Trial], problem: Problem) -> Iterator[tuple[Trial, list[float]]]:
    """Run trials of one group; yield each with its errors: at the start and after every round.

    Trials that differ in alignment alone are run in step.
    """
    first, *_ = trials = sorted(trials, key=_alike)
    order, rng = shuffled(problem, first.repeat)
    start = random_basis(problem.X.shape[1], RANK, rng)
    grams: Grams | None = None
    cut_for = -1
    for (shards, *_), alike in groupby(trials, key=_alike):
        if grams is None or shards != cut_for:
            cut_for = shards
            grams = Grams(problem.X, problem.cut(order, shards or problem.default_shards()))
        batch = list(alike)
        if batch[0].method in ONE_SHOT:
            for trial in batch:
                yield trial, [_one_shot_error(trial, problem, grams, rng)]
        else:
            yield from zip(batch, _curves(batch, problem, grams, start), strict=True)


def _alike(trial: Trial) -> tuple[int, int, str, int]:
    return trial.shards, trial.steps, trial.schedule, trial.rounds


def shuffled(problem: Problem, repeat: int) -> tuple[NDArray[np.intp], np.random.Generator]:
    """Row numbers in the random order of a repeat, and the generator that goes on from there."""
    rng = np.random.default_rng([SEED, repeat])
    return rng.permutation(len(problem.X)), rng


def _curves(trials: list[Trial], problem: Problem, grams: Grams, start: Array) -> list[list[float]]:
    """Errors of LocalPower at the start and after every round, for each alignment."""

    def run(trial: Trial) -> Callable[[Engine], list[float]]:
        def follow(engine: Engine) -> list[float]:
            schedule = parse(trial.schedule, trial.steps)
            states = local_power(engine, State(start), schedule=schedule, align=trial.method)
            bases = (state.basis for state in islice(states, trial.rounds))
            return [problem.score_basis(basis) for basis in chain([start], bases)]

        return follow

    return in_step(grams, [run(trial) for trial in trials])


def _one_shot_error(
    trial: Trial, problem: Problem, grams: Grams, rng: np.random.Generator
) -> float:
    if trial.method == "dr_svd":
        return _dr_svd_error(problem, rng.spawn(1)[0])
    method = uda if trial.method == "uda" else wda
    return problem.score_one_shot(next(method(GramEngine(grams), RANK)).basis)


def _dr_svd_error(problem: Problem, rng: np.random.Generator) -> float:
    """DR-SVD does not depend on how rows are cut: they are one shard here."""
    d = problem.X.shape[1]
    width = RANK - 1 + (d - RANK + 1) // 4 if problem.mode == "as-published" else None
    engine = Inline()
    engine.place([Shard((problem.X,), d, problem.X.dtype)])
    *_, last = dr_svd(engine, RANK, rng, width)
    return problem.score_one_shot(last.basis)
