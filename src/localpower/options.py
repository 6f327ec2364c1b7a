"""Options that travel together, and the checks of those that stand alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache, wraps
from inspect import signature
from math import inf
from typing import Any, ParamSpec, TypeVar

import numpy as np

from localpower.core.checks import one_of, positive, real, whole
from localpower.data.partition import PARTITIONS
from localpower.data.reading import read
from localpower.methods import REGISTRY
from localpower.methods.base import written as option_text
from localpower.methods.solvers import SOLVERS

CERTAINTY = 1e-6
MOST_TIMES = 100  # entries of a set that are written out
ON_LOSS = ("stop", "degrade", "reuse")
RELEASES = ("auto", "matrix", "products", "fedpower")
OTHER_NAMES = {  # of arguments, as other libraries call them
    **dict.fromkeys(("random_state", "seed", "random_seed"), "rng"),
    **dict.fromkeys(("n_components", "k", "n", "r", "components", "n_eigenvectors"), "rank"),
    **dict.fromkeys(("n_iter", "max_iter", "iterations", "n_rounds", "rounds"), "max_rounds"),
    **dict.fromkeys(("n_workers", "n_jobs", "num_workers", "shards", "n_shards"), "workers"),
    **dict.fromkeys(("eps", "tolerance", "rtol", "atol"), "tol"),
    **dict.fromkeys(("solver", "svd_solver", "algorithm"), "method"),
    **dict.fromkeys(("X", "A", "path", "file", "filename"), "data"),
    **dict.fromkeys(("backend", "client", "cluster", "session", "comm"), "engine"),
    **{
        "standardize": "scale",
        "centre": "center",
        "centered": "center",
        "verbose": "progress",
        "callbacks": "callback",
    },
}
OF_ESTIMATORS = (
    "whiten", "copy", "iterated_power", "n_oversamples", "power_iteration_normalizer",
)  # fmt: skip
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend; it stops after the round in which it exceeds a limit.

    Parameters
    ----------
    bytes : float, optional
        Bytes moved, up and down.
    seconds : float, optional
        Seconds that the run takes.

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 20))
    >>> lp.svd(X, 3, "dpi", budget=lp.Budget(bytes=5000), workers=4, rng=0).reason
    'budget'
    """

    bytes: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            positive(f"Budget {entry.name}", getattr(self, entry.name))


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens when workers fail.

    Parameters
    ----------
    deadline : float, optional
        Seconds that a round may take. A worker that is late is asked again or restarted.
    retries : int
        How often a round is tried again if a reply is lost, late or wrong. Lost shards are
        placed again if the engine can do that.
    on_loss : {"stop", "degrade", "reuse"}
        What happens when all retries fail. ``"stop"`` raises an error. ``"degrade"`` leaves those
        shards out; the result says so in ``run["degraded"]`` and never counts as converged.
        ``"reuse"``, for power methods, uses the last products of those shards and asks them again
        in every round.
    participation : float
        The chance that a round of the method asks a shard. Power methods reuse the last products
        of the other shards, and certify only rounds without reused products. Other methods ask
        the other shards in further rounds, until all have answered.
    """

    deadline: float | None = None
    retries: int = 2
    on_loss: str = "stop"
    participation: float = 1.0

    def __post_init__(self) -> None:
        positive("Faults deadline", self.deadline)
        whole("Faults retries", self.retries, 0)
        one_of("Faults on_loss", self.on_loss, ON_LOSS)
        if not 0 < real("Faults participation", self.participation) <= 1:
            raise ValueError(
                f"Faults participation={self.participation!r} must be the chance that a round asks "
                "a shard: give a number above 0 and at most 1, such as 0.5"
            )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run writes its state, so that a later run can resume.

    Parameters
    ----------
    path : path
        The file; it is replaced at each checkpoint.
    every : int
        The number of rounds between checkpoints.
    resume : bool
        Resume from the file if it exists, with the same bits as if the run had never ended.
        Rows, start and options must be the same; `max_rounds` and budgets may differ.
    """

    path: str | os.PathLike[str]
    every: int = 1
    resume: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(f"checkpoint={self.path!r} must be the path of a file")
        whole("Checkpoint every", self.every)


@dataclass(frozen=True, slots=True)
class Privacy:
    """How little a result may reveal about any single row: (ε, δ)-differential privacy.

    Any result would be almost as likely if any one row were left out: no probability grows by
    more than the factor exp(ε), except for δ.

    Parameters
    ----------
    epsilon : float
        About 1 protects well; more than 10 promises little.
    delta : float
        A probability, far below one over the number of rows.
    clip : float
        Longer rows are shortened to this norm. Choose it without looking at the rows: it is public.
    honest : int, optional
        How many shards can be trusted to add their share of the noise and to keep it secret;
        all of them by default.
    release : {"auto", "matrix", "products", "fedpower"}
        What is released: ``AᵀA`` with noise, once; or noised products with a few vectors, three to
        five times. ``"auto"`` takes the first up to 5,000 columns. ``"fedpower"`` is a baseline to
        compare with: local steps, and all of the noise in each, at every shard.
    steps : int, optional
        Local steps of a round of ``"fedpower"``; 2 by default.

    Examples
    --------
    >>> import localpower as lp, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((50_000, 4)) * [0.4, 0.2, 0.1, 0.1]
    >>> result = lp.pca(X, 1, privacy=lp.Privacy(epsilon=1, delta=1e-6, clip=1.0), workers=3)
    >>> result.reason, result.run["privacy"]["epsilon"], bool(abs(result.components[0, 0]) > 0.99)
    ('private', 1.0, True)
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    clip: float = 1.0
    honest: int | None = None
    release: str = "auto"
    steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "clip"):
            value = real(f"Privacy {name}", getattr(self, name))
            if not 0 < value < inf or (name == "delta" and value >= 1):
                most = ", below 1, such as 1e-6" if name == "delta" else ", such as 1"
                raise ValueError(f"Privacy {name}={value} must be a finite number above 0{most}")
        if self.honest is not None:
            whole("Privacy honest", self.honest)
        one_of("Privacy release", self.release, RELEASES)
        if self.steps is not None:
            whole("Privacy steps", self.steps)
        if self.release == "fedpower" and self.honest is not None:
            raise ValueError(
                f"Privacy honest={self.honest} with release='fedpower': every shard adds all of "
                "the noise to each of its own products; leave it out"
            )
        if self.release != "fedpower" and self.steps is not None:
            raise ValueError(
                f"Privacy steps={self.steps} is for release='fedpower' alone; leave it out"
            )

    @property
    def numbers(self) -> tuple[float, float, float]:
        """What sites agree on: epsilon, delta and clip."""
        return float(self.epsilon), float(self.delta), float(self.clip)


def one_object(name: str, value: Any, kind: type[Any]) -> Any:
    """An object of a class of options; None is one with defaults."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r} must be localpower.{kind.__name__}(...), or None")
    return value


def checkpoint_of(value: Any) -> Checkpoint | None:
    """A path alone stands for ``Checkpoint(path)``."""
    return value if value is None or isinstance(value, Checkpoint) else Checkpoint(value)


def certainty_of(value: Any) -> float:
    """The largest p that will do; 0 where only a proof will."""
    if isinstance(value, str) and value == "proven":
        return 0.0
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:
        raise ValueError(
            f"certainty={value!r} must be a chance of error: give a number above 0 and at most 1, "
            'such as 1e-6, or "proven"'
        )
    return float(value)


def partition_of(name: Any) -> str:
    """The name of a partition, with a concentration if it takes one."""
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


def generator_of(rng: Any) -> tuple[int | None, np.random.Generator]:
    """Return the seed, where there is one to record, and the generator."""
    seed = secrets.randbits(63) if rng is None else rng
    try:
        generator = np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"rng={rng!r} must be a non-negative whole number, a numpy.random.Generator or None"
        ) from None
    if not hasattr(generator.bit_generator.seed_seq, "spawn"):  # as that of a RandomState
        generator = np.random.default_rng(generator.integers(1 << 63, size=2))
    return int(seed) if isinstance(seed, int | np.integer) else None, generator


def written(value: Any) -> str:
    """An argument as one writes it in a call; dots stand for what cannot be written."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, Budget | Faults | Checkpoint | Privacy):
        given = ((e.name, getattr(value, e.name), e.default) for e in fields(value))
        parts = [f"{name}={written(each)}" for name, each, default in given if each != default]
        return f"localpower.{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, set | frozenset | list | tuple) and len(value) <= MOST_TIMES:
        return repr(type(value)(sorted(value)))
    return repr(value) if value is None or isinstance(value, str | int | float) else "..."


def hinting(function: Callable[P, R]) -> Callable[P, R]:
    """Name the right argument where a wrong one is given; a decorator of public functions."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        known = _parameters(call)
        for name, value in options.items():
            if name not in known:
                rest = {key: each for key, each in options.items() if key in known}
                told = signature(call).bind_partial(*args, **rest).arguments
                hint = _hint(name, value, told, list(known))
                raise TypeError(f"{call.__name__}() has no argument {name}{hint}")
        return function(*args, **options)

    return call


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Its parameters by name; asked once, as that takes longer than some of a small run's steps."""
    return signature(function).parameters


def _hint(name: str, value: Any, told: Mapping[str, Any], known: list[str]) -> str:
    """What to write instead: another name, an option of a method, or a name that is similar."""
    other = OTHER_NAMES.get(name)
    if other in known:
        return f": write {other}={written(_meant(other, value))}"
    if name in OF_ESTIMATORS:
        return ", which is a parameter of localpower.PCA"
    if "data" in known and name in signature(read).parameters:
        return f", which is an option of reading: pass read(data, {name}={written(value)}) as data"
    homes = [method for method, form in REGISTRY.items() if name in form.options()]
    place = next((argument for argument in ("method", "methods") if argument in known), None)
    if homes and place is not None:
        method = str(told.get(place, ""))
        if method.partition(":")[0] not in homes:
            method = homes[0]
        joint = "," if ":" in method else ":"
        text = f"{method}{joint}{name}={option_text(value)}"
        return f", which is an option of a method: write {place}={text!r}"
    for kind in (Budget, Faults, Checkpoint, Privacy):
        if kind.__name__.lower() in known and name in (entry.name for entry in fields(kind)):
            first = "'run.ckpt', " if kind is Checkpoint else ""
            made = f"localpower.{kind.__name__}({first}{name}={written(value)})"
            return f": write {kind.__name__.lower()}={made}"
    near = get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else f": it has {', '.join(known)}"


def _meant(name: str, value: Any) -> Any:
    """The value of an argument that does what another value does in other libraries."""
    if name == "method" and isinstance(value, str):
        return str(SOLVERS.get(value, value))
    if name == "progress" and isinstance(value, int):
        return bool(value)
    if name == "scale" and isinstance(value, bool):
        return "std" if value else None
    return None if isinstance(value, int | str) and value in (-1, "auto") else value


def check_callback(callback: Any) -> None:
    """Refuse what cannot be called with a record and a state, before the run begins."""
    remedy = "give a function of two arguments, such as def callback(record, state)"
    if not callable(callback):
        raise TypeError(f"callback={callback!r} must be a function: {remedy}")
    try:
        takes = signature(callback)
    except (TypeError, ValueError):  # of a function in C that does not tell
        return
    try:
        takes.bind(None, None)
    except TypeError:
        name = getattr(callback, "__name__", type(callback).__name__)
        raise TypeError(
            f"callback={name}{takes} cannot take a record and a state: {remedy}"
        ) from None
