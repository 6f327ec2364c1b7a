"""What a site answers: a TOML file that nobody but the site edits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from localpower.data.blocks import Options
from localpower.federation.identity import read_toml
from localpower.federation.messages import NAME, PIN
from localpower.federation.questions import NAMES, SUMS
from localpower.worker.private_tasks import Noised

SECURE_SUM = ("required", "optional", "off")
PER_COLUMN = 10  # rows that a site must have for each column that is asked for at once
LEAST_BYTES = 1 << 16
PLAIN = ("Describe", "Triangle")  # what all runs without masks ask for; these are no sums
READING = ("columns", "drop", "label", "missing", "header", "delimiter", "dtype", "key",
           "zero_based")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Private:
    """The privacy budget of a data set, and the norm that rows are clipped to."""

    epsilon: float
    delta: float
    clip: float


@dataclass(frozen=True, slots=True)
class Policy:
    """What a site answers, and what not.

    Parameters
    ----------
    name : str
        What the others call this site.
    data : str
        The file with its rows, or a folder or glob of several; relative to the policy.
    columns, drop, label, missing, header, delimiter, dtype, key, zero_based, n_features
        How it is read, as in `localpower.read`; the means of ``missing = "mean"`` are those of this
        site's own rows.
    tasks : tuple of str
        What may be asked. By default everything that is a sum over all sites.
    secure_sum : {"required", "optional", "off"}
        Whether replies leave masked: always, as the coordinator wants it, never.
    min_rows : int
        Rows that the site must have to answer at all; and ten for each column asked for at once.
        Private runs are answered whatever they are: to refuse would tell of them.
    min_sites : int
        Sites that a run must have.
    max_rounds : int
        Questions of one run.
    max_columns : int
        Columns of products that are answered in all runs together.
    max_bytes : int
        Of one message, in or out.
    privacy : Private, optional
        If set, only private runs are answered, up to this budget in all.
    peers : mapping
        The other sites' names, each with the SHA-256 of its identity key.
    coordinator : str
        Where the coordinator is, ``"host:port"``.
    keys : str
        The folder with the site's keys; relative to the policy.
    folder : Path
        Where the policy is. Journal and secrets of runs are there, too.
    """

    name: str
    data: str = ""
    columns: tuple[str | int, ...] | None = None
    drop: tuple[str | int, ...] | None = None
    label: str | int | None = None
    missing: str | None = None
    header: bool | None = None
    delimiter: str | None = None
    dtype: str | None = None
    key: str | None = None
    zero_based: bool | None = None
    n_features: int = 0
    tasks: tuple[str, ...] = tuple(kind.__name__ for kind in SUMS)
    secure_sum: str = "required"
    min_rows: int = 100
    min_sites: int = 3
    max_rounds: int = 100
    max_columns: int = 1000
    max_bytes: int = 1 << 28
    privacy: Private | None = None
    peers: Mapping[str, str] = field(default_factory=dict)
    coordinator: str = ""
    keys: str = "keys"
    folder: Path = Path()

    def __post_init__(self) -> None:
        for name, (check, remedy) in CHECKS.items():
            value = getattr(self, name)
            if not check(value):
                raise ValueError(f"{name} = {value!r} is not valid: {remedy}")
        self.options()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy; an error names the key, its value and the remedy."""
        path = Path(path)
        found = read_toml(path, "`localpower federation init` writes one for each site")
        known = [entry.name for entry in fields(cls) if entry.name != "folder"]
        for key in found:
            if key not in known:
                raise ValueError(
                    f"{path}: {key} is not a key of a policy: take some of {', '.join(known)}"
                )
        if "name" not in found:
            raise ValueError(f'{path}: name is missing: add name = "…", as the others call you')
        values: dict[str, Any]
        values = {key: tuple(v) if isinstance(v, list) else v for key, v in found.items()}
        try:
            if "privacy" in values:
                values["privacy"] = _private(values["privacy"])
            return cls(**values, folder=path.parent)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def options(self) -> Options:
        """How the file is read."""
        return Options(**{name: getattr(self, name) for name in READING})

    @property
    def path(self) -> str:
        """Where the rows are."""
        return str(self.folder / self.data)

    @property
    def answered(self) -> list[str]:
        """Those of its tasks that it answers: with noise in private runs, without it in others."""
        private = self.privacy is not None
        return [name for name in self.tasks if issubclass(NAMES[name], Noised) is private]

    @property
    def lacking(self) -> list[str]:
        """What it would have to allow, too, for a run without masks."""
        can = self.secure_sum != "required" and self.privacy is None
        return [name for name in PLAIN if name not in self.tasks] if can else []

    def explain(self) -> str:
        """Say in plain words what this site answers, and what not."""
        masks = {
            "required": "It answers only if all replies are masked: of its numbers, the "
            "coordinator sees their sum with those of all other sites.",
            "optional": "It answers with and without masks, as the coordinator asks. Without, the "
            "coordinator sees this site's own numbers.",
            "off": "It answers without masks only: the coordinator sees this site's own numbers.",
        }["required" if self.privacy else self.secure_sum]
        fewest = (
            f", and answers nothing with fewer than {self.min_rows} rows, or fewer than "
            f"{PER_COLUMN} rows for each column that is asked for at once"
        )
        peers = ", ".join(sorted(self.peers)) or 'nobody yet: add peers = {name = "sha256:…"}'
        data = self.data or 'no file yet: add data = "file"'
        lines = [
            f"Site {self.name}, with the rows of {data}.",
            masks,
            f"It answers: {', '.join(self.answered) or 'nothing'}. Everything else is refused; "
            "rows, and scores of rows, never leave.",
            f"It takes part with these sites, known by their keys: {peers}.",
            f"It refuses runs of fewer than {self.min_sites} sites"
            + ", and two sites see each other's numbers in their sum" * (self.min_sites < 3)
            + fewest * (self.privacy is None)
            + ".",
            f"It answers at most {self.max_rounds} questions of a run, {self.max_columns} columns "
            f"in all runs together, and messages up to {self.max_bytes} bytes.",
        ]
        if self.secure_sum != "off" and self.min_sites <= len(self.peers):
            lines.append(
                "A coordinator that asks once with all sites and once without one of them sees "
                f"that one's numbers as the difference: min_sites = {len(self.peers) + 1} would "
                "refuse the second."
            )
        if self.lacking and self.secure_sum == "optional":
            lines.append(
                f"Runs without masks are refused until tasks has {' and '.join(self.lacking)}, for "
                "which they all ask."
            )
        if self.secure_sum != "required" and not self.privacy:
            lines.append(
                "Without masks, it answers fewer columns in all than half of its rows, and than "
                "half of its columns."
            )
        lines.append(
            "Its replies have no noise: whoever sees sums of few rows may learn of single ones."
            if self.privacy is None
            else f"It answers private runs only: rows are clipped to the norm {self.privacy.clip:g}"
            f", and all runs together may spend epsilon = {self.privacy.epsilon:g} at delta = "
            f"{self.privacy.delta:g}. Few rows are no reason to refuse: that would tell of them."
        )
        return "\n".join(lines)


def as_policy_wording(text: str) -> str:
    """Name options of reading as lines of a policy have them."""
    return re.sub(
        rf"(?<![\w.])({'|'.join((*READING, 'n_features'))})=(True|False)?",
        lambda match: f"{match[1]} = {(match[2] or '').lower()}",
        text,
    )


def _private(found: Any) -> Private:
    wanted = [entry.name for entry in fields(Private)]
    if not isinstance(found, dict) or sorted(found) != sorted(wanted):
        raise ValueError(
            f"privacy = {found!r} is not valid: give "
            "privacy = {epsilon = 1.0, delta = 1e-6, clip = 1.0}"
        )
    return Private(**found)


def _whole(low: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value < 1 << 53


def _words(value: Any) -> bool:
    entries = isinstance(value, tuple) and all(type(each) in (str, int) for each in value)
    return value is None or entries


def _is_private(value: Any) -> bool:
    if value is None:
        return True
    numbers = value.epsilon, value.delta, value.clip
    known = all(type(each) in (int, float) and 0 < each < float("inf") for each in numbers)
    return known and value.delta < 1


def _are_peers(value: Any) -> bool:
    known = isinstance(value, Mapping) and all(isinstance(v, str) for v in value.values())
    return known and all(NAME.fullmatch(k) and PIN.fullmatch(v) for k, v in value.items())


def _kind(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


_NOTHING = type(None)
CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (
        lambda value: isinstance(value, str) and NAME.fullmatch(value) is not None,
        "take letters, digits, dots and dashes",
    ),
    "data": (_kind(str), 'give the path of a file, as data = "cohort.parquet"'),
    "columns": (_words, 'list names or numbers, as columns = ["age", "dose"]'),
    "drop": (_words, 'list names or numbers, as drop = ["id"]'),
    "label": (_kind(str, int, _NOTHING), 'name one column, as label = "group"'),
    "missing": (_kind(str, _NOTHING), 'take "drop", "mean" or "error"'),
    "header": (_kind(bool, _NOTHING), "take true or false"),
    "delimiter": (_kind(str, _NOTHING), 'give one character, as delimiter = ";"'),
    "dtype": (_kind(str, _NOTHING), 'take "float32" or "float64"'),
    "key": (_kind(str, _NOTHING), 'name an array of the file, as key = "rows"'),
    "zero_based": (_kind(bool, _NOTHING), "take true or false"),
    "n_features": (_whole(0), "take a whole number"),
    "tasks": (
        lambda value: isinstance(value, tuple) and all(each in list(NAMES) for each in value),
        f"list some of {', '.join(NAMES)}",
    ),
    "secure_sum": (
        lambda value: value in SECURE_SUM,
        f"take {', '.join(map(repr, SECURE_SUM))}",
    ),
    "min_rows": (_whole(1), "take a whole number from 1 on"),
    "min_sites": (_whole(1), "take a whole number from 1 on; 3 or more with masks"),
    "max_rounds": (_whole(1), "take a whole number from 1 on"),
    "max_columns": (_whole(0), "take a whole number"),
    "max_bytes": (_whole(LEAST_BYTES), f"take a whole number from {LEAST_BYTES} on"),
    "privacy": (_is_private, "take numbers above 0, and delta below 1"),
    "peers": (_are_peers, 'give peers = {name = "sha256:…"}, with 64 digits'),
    "coordinator": (_kind(str), 'give coordinator = "host:port"'),
    "keys": (_kind(str), "give the path of a folder"),
}
