"""Running experiments: from items to rows of CSV, resumable, on all cores.

An item (``items/*.toml``) says which trials it needs. Trials that several items share are run once,
grouped so that rows, shuffle, start and Gram matrices are shared too. Every finished trial is
written at once; a second run finds it done.
"""

from __future__ import annotations

import csv
import threading
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, fields
from functools import partial
from importlib.resources import files
from itertools import groupby, product, zip_longest
from pathlib import Path
from typing import Any

from localpower.core.machine import cores
from localpower.engines.blas import one_blas_thread
from localpower.paper import datasets as registry
from localpower.paper import theory
from localpower.paper.grams import Grams
from localpower.paper.problems import MODES, SYNTHETIC, Problem, load
from localpower.paper.trials import ONE_SHOT, SEED, Trial, run_group, shuffled
from localpower.version import __version__

Progress = Callable[[str], None]

TRIALS = [*(entry.name for entry in fields(Trial)), "n", "d", "seed", "version", "sha256", "errors"]
ETAS = ["dataset", "mode", "repeat", "shards", "n", "d", "seed", "version", "sha256", "eta"]


@dataclass(frozen=True, slots=True)
class Item:
    """A table or figure: what it shows, and the trials that it is made of."""

    name: str
    title: str
    paper: str
    kind: str
    methods: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    schedules: tuple[str, ...] = ("constant",)
    shards: tuple[int, ...] = (0,)
    repeats: int = 1
    datasets: tuple[str, ...] = tuple(registry.DATA_SETS)
    lines: str = ""
    panels: str = ""

    def trials(self, available: Iterable[str]) -> set[Trial]:
        """Every trial of the item on those of its data sets that are at hand."""
        wanted = [name for name in self.datasets if name in (*available, SYNTHETIC)]
        grid = product(wanted, MODES, range(self.repeats), self.shards, self.methods, self.steps,
                       self.schedules)  # fmt: skip
        return {
            Trial(d, mode, repeat, m, method, 0, "constant", 0)
            if method in ONE_SHOT
            else Trial(d, mode, repeat, m, method, p, schedule, rounds(d, mode))
            for d, mode, repeat, m, method, p, schedule in grid
        }


def items() -> dict[str, Item]:
    """All items, read from their TOML files."""
    found = {}
    folder = files("localpower.paper") / "items"
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if "schedule" in content:
            content["schedules"] = [content.pop("schedule")]
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in content.items()
        }
        name = path.name.removesuffix(".toml")
        found[name] = Item(name=name, **values)
    return found


def rounds(dataset: str, mode: str) -> int:
    """As many rounds as the authors run; in the uniform mode enough to see the final level."""
    if dataset == SYNTHETIC:
        return 40
    known = registry.DATA_SETS[dataset]
    if mode == "as-published":
        return max(known.rounds, known.figure_rounds) - 1
    if known.columns > 500:
        return 30
    return 60 if known.columns > 100 or known.rows > 100_000 else 100


class Store:
    """A CSV file that rows are added to as they come, keyed by its leading columns."""

    def __init__(self, path: Path, columns: list[str], key: int) -> None:
        self.path, self.columns, self.key = path, columns, key
        self.rows: dict[tuple[str, ...], dict[str, str]] = {}
        self._lock = threading.Lock()
        if path.exists():
            with open(path, newline="", encoding="utf-8") as stream:
                for row in csv.DictReader(stream):
                    if None not in row and all(row.get(name) for name in columns):
                        self.rows[self._key_of(row)] = row  # a torn last line is left out
        self.write()

    def __contains__(self, key: Iterable[Any]) -> bool:
        return tuple(map(str, key)) in self.rows

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, in memory and on disk."""
        text = {name: str(row[name]) for name in self.columns}
        with self._lock:
            self.rows[self._key_of(text)] = text
            with open(self.path, "a", newline="", encoding="utf-8") as stream:
                csv.DictWriter(stream, self.columns, lineterminator="\n").writerow(text)

    def write(self) -> None:
        """Write all rows anew, in order, in place of the old file."""
        part = self.path.with_name(self.path.name + ".part")
        with open(part, "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows[key] for key in sorted(self.rows))
        part.replace(self.path)

    def _key_of(self, row: dict[str, str]) -> tuple[str, ...]:
        return tuple(row[name] for name in self.columns[: self.key])


def run(names: Iterable[str], folder: Path, data_dir: str | None, progress: Progress) -> bool:
    """Run what the named items still miss; results go to CSV files in `folder`.

    Tells whether there was anything to run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [items()[name] for name in names]
    available = [name for name in registry.DATA_SETS if registry.find(name, data_dir) is not None]
    for name in registry.DATA_SETS:
        if name not in available:
            progress(f"left out: {registry.how_to_get(name)}")

    jobs = [
        *_trial_jobs(chosen, available, Store(folder / "trials.csv", TRIALS, 8), data_dir),
        *_eta_jobs(chosen, available, Store(folder / "eta.csv", ETAS, 4), data_dir),
    ]
    jobs += _rho_jobs(chosen, folder / "rho.csv")
    if not jobs:
        progress("everything is done")
        return False
    with one_blas_thread(), ThreadPoolExecutor(cores()) as pool:
        futures = {pool.submit(job): name for name, job in jobs}
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            progress(f"{done}/{len(futures)} {futures[future]}")
    for name, columns, key in (("trials", TRIALS, 8), ("eta", ETAS, 4)):
        Store(folder / f"{name}.csv", columns, key).write()
    return True


Job = tuple[str, Callable[[], None]]


def _trial_jobs(
    chosen: list[Item], available: list[str], store: Store, data_dir: str | None
) -> list[Job]:
    wanted = {trial for item in chosen for trial in item.trials(available)}
    missing = sorted(trial for trial in wanted if _key(trial) not in store)
    groups = [list(group) for _, group in groupby(missing, key=lambda trial: trial.group)]
    return [
        ("trials of {}, {}, repeat {}".format(*g[0].group), partial(_trials, g, store, data_dir))
        for g in _mixed(groups)
    ]


def _trials(group: list[Trial], store: Store, data_dir: str | None) -> None:
    problem = _load(group[0].dataset, group[0].mode, data_dir)
    for trial, errors in run_group(group, problem):
        values = dict(zip(TRIALS, _key(trial), strict=False))
        curve = " ".join(f"{error:.4g}" for error in errors)
        store.add({**values, **_origin(problem), "errors": curve})


def _eta_jobs(
    chosen: list[Item], available: list[str], store: Store, data_dir: str | None
) -> list[Job]:
    jobs: list[Job] = []
    for item in (item for item in chosen if item.kind == "eta"):
        for name, mode, repeat in product(item.datasets, MODES, range(item.repeats)):
            missing = [m for m in item.shards if (name, mode, repeat, m) not in store]
            if name in available and missing:
                work = partial(_etas, name, mode, repeat, missing, store, data_dir)
                jobs.append((f"η of {name}, {mode}, repeat {repeat}", work))
    return jobs


def _etas(
    name: str, mode: str, repeat: int, shards: list[int], store: Store, data_dir: str | None
) -> None:
    problem = _load(name, mode, data_dir)
    order, _ = shuffled(problem, repeat)
    for m in shards:
        eta = Grams(problem.X, problem.cut(order, m)).eta()
        row = {"dataset": name, "mode": mode, "repeat": repeat, "shards": m}
        store.add({**row, **_origin(problem), "eta": f"{eta:.5g}"})


def _rho_jobs(chosen: list[Item], path: Path) -> list[Job]:
    steps = sorted({p for item in chosen if item.kind == "rho" for p in item.steps})
    if not steps:
        return []
    store = Store(path, theory.COLUMNS, 2)
    if all((case, p) in store for case in theory.CASES for p in steps):
        return []
    return [("theorem 2", lambda: theory.measure(steps, store))]


_loading = threading.Lock()


def _load(name: str, mode: str, data_dir: str | None) -> Problem:
    with _loading:  # two threads that need the same rows read them once
        return load(name, mode, data_dir)


def _origin(problem: Problem) -> dict[str, Any]:
    n, d = problem.X.shape
    return {"n": n, "d": d, "seed": SEED, "version": __version__, "sha256": problem.sha256}


def _key(trial: Trial) -> tuple[Any, ...]:
    return tuple(getattr(trial, entry.name) for entry in fields(Trial))


def _mixed(groups: list[list[Trial]]) -> list[list[Trial]]:
    """Put wide data, which memory holds up, next to narrow data, which Python does."""

    def width(group: list[Trial]) -> int:
        known = registry.DATA_SETS.get(group[0].dataset)
        return known.columns if known else 0

    ranked = sorted(groups, key=lambda group: (-width(group), group[0].group))
    half = len(ranked) // 2
    pairs = zip_longest(ranked[:half], reversed(ranked[half:]))
    return [group for pair in pairs for group in pair if group]
