"""Reading back what was run, and the paper's own numbers to set beside it."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from localpower.paper import datasets as registry
from localpower.paper.problems import SYNTHETIC
from localpower.paper.runner import Item
from localpower.paper.trials import Trial


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial and its errors: at the start and after every round, or one for a one-shot method."""

    trial: Trial
    n: int
    d: int
    errors: tuple[float, ...]

    @property
    def final(self) -> float:
        """The error that tables show: where the authors stop, or after all rounds."""
        known = registry.DATA_SETS.get(self.trial.dataset)
        if self.trial.mode == "as-published" and known is not None:
            return self.errors[min(known.rounds, len(self.errors)) - 1]
        return self.errors[-1]


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and standard deviation over repeats."""

    mean: float
    deviation: float = math.nan


class Results:
    """Everything in a folder of results."""

    def __init__(self, folder: Path) -> None:
        self.outcomes = list(_outcomes(folder / "trials.csv"))
        self.rho = list(_rows(folder / "rho.csv"))
        etas = defaultdict(list)
        for row in _rows(folder / "eta.csv"):
            etas[row["mode"], row["dataset"], row["shards"]].append(float(row["eta"]))
        self.eta = {key: float(np.mean(values)) for key, values in etas.items()}

    def of(self, item: Item, mode: str) -> list[Outcome]:
        """Outcomes that belong to an item, in a mode."""
        wanted = item.trials([*registry.DATA_SETS, SYNTHETIC])
        return sorted(
            (o for o in self.outcomes if o.trial in wanted and o.trial.mode == mode),
            key=lambda outcome: outcome.trial,
        )

    def table(self, item: Item, mode: str) -> dict[tuple[str, str], Summary]:
        """Summary of final errors by data set and method."""
        finals = defaultdict(list)
        for outcome in self.of(item, mode):
            finals[outcome.trial.dataset, outcome.trial.method].append(outcome.final)
        return {key: Summary(float(np.mean(v)), float(np.std(v))) for key, v in finals.items()}


def paper_table(name: str) -> dict[tuple[str, str], Summary]:
    """The paper's table: by data set and method, or by data set and number of shards."""
    with (files("localpower.paper") / "paper.csv").open(encoding="utf-8") as stream:
        return {
            (row["dataset"], row["column"]): Summary(
                float(row["value"]), float(row["deviation"] or "nan")
            )
            for row in csv.DictReader(stream)
            if row["table"] == name
        }


def _outcomes(path: Path) -> Iterator[Outcome]:
    for row in _rows(path):
        trial = Trial(
            dataset=row["dataset"],
            mode=row["mode"],
            repeat=int(row["repeat"]),
            shards=int(row["shards"]),
            method=row["method"],
            steps=int(row["steps"]),
            schedule=row["schedule"],
            rounds=int(row["rounds"]),
        )
        errors = tuple(float(error) for error in row["errors"].split())
        yield Outcome(trial, int(row["n"]), int(row["d"]), errors)


def _rows(path: Path) -> Iterable[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))
