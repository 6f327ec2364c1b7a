"""A call of `svd` as plain data, there and back: what a job carries, and what it brings home."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localpower import options
from localpower.core import errors
from localpower.core.errors import EngineError
from localpower.run import Asked
from localpower.shape_checks import check_sums, method_for_sums

TRAVELS = ("rank", "method", "tol", "certainty", "max_rounds", "budget", "center", "scale",
           "faults", "privacy", "rng")  # fmt: skip
STAYS = ("data", "engine", "progress", "callback")  # with the caller
UNUSED = (None, False, "contiguous")  # what all other arguments may be
KINDS: dict[str, type[Any]] = {
    name: kind
    for name, kind in vars(options).items()
    if isinstance(kind, type)
    and is_dataclass(kind)
    and kind.__module__ == options.__name__
    and name != "Checkpoint"
}
ERRORS: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, errors.LocalPowerError)
    and name != "MissingExtra"
} | {kind.__name__: kind for kind in (ValueError, TypeError, OverflowError)}
WARNINGS = {
    kind.__name__: kind
    for kind in (errors.DataHint, errors.ConvergenceWarning, errors.DegradedWarning)
}
OUTCOME = "outcome.json"


@dataclass(frozen=True, slots=True)
class Call:
    """What a job is to do: arguments of `svd`, how sums are hidden, seconds for an answer."""

    options: Mapping[str, Any]
    secure: str = "strict"
    bits: int = 60
    deadline: float | None = None

    @classmethod
    def of(cls, asked: Asked, secure: str, deadline: float | None) -> Call:
        """What was asked, if all of it is plain data."""
        if secure != "off":
            sends_rows = bool(asked.return_u), bool(asked.checkpoint)
            check_sums(asked.scale, *sends_rows, asked.faults)
            method_for_sums(asked.method)
        given = dict(asked.given) | {"method": str(asked.method), "rng": asked.seed}
        if asked.seed is None or not asked.method.repeatable:
            raise ValueError(
                "a job carries no objects: give rng= a whole number, and no function as an option "
                "of method="
            )
        for name, value in given.items():
            if name not in TRAVELS + STAYS and value not in UNUSED:
                raise ValueError(
                    f"{name}={value!r} means nothing in a job at a server of NVFLARE: leave it out"
                )
        plain = {name: to_plain(name, given[name]) for name in TRAVELS if name in given}
        return cls(plain, secure, deadline=deadline)

    def text(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Call:
        """Read what `text` wrote; whatever else is in it is refused."""
        known = json.loads(text)
        strange = set(known["options"]) - set(TRAVELS)
        if strange:
            raise ValueError(f"a job cannot give {sorted(strange)} to svd")
        known["options"] = {name: from_plain(each) for name, each in known["options"].items()}
        return cls(**known)


def to_plain(name: str, value: Any) -> Any:
    """An argument as JSON has it."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value).__name__ in KINDS:
        return {type(value).__name__: asdict(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{name}={value!r} cannot travel in a job: give a number or a word")


def from_plain(value: Any) -> Any:
    """An argument of what `to_plain` made."""
    if not isinstance(value, dict):
        return value
    ((name, fields),) = value.items()
    return KINDS[name](**fields)


def write_outcome(
    folder: Path, error: Exception | None, caught: Iterable[warnings.WarningMessage]
) -> None:
    """Write how a run ended, beside its model."""
    folder.mkdir(exist_ok=True)
    told = [(each.category.__name__, str(each.message)) for each in caught]
    outcome = {
        "error": None if error is None else [type(error).__name__, str(error)],
        "warnings": [each for each in told if each[0] in WARNINGS],
    }
    (folder / OUTCOME).write_text(json.dumps(outcome))


def relive(folder: Path) -> None:
    """Raise the error of a run that was somewhere else, or warn as it did."""
    outcome = json.loads((folder / OUTCOME).read_text())
    if outcome["error"] is not None:
        name, message = outcome["error"]
        raise ERRORS.get(name, EngineError)(message if name in ERRORS else f"{name}: {message}")
    for name, message in outcome["warnings"]:
        errors.warn(message, WARNINGS[name])
