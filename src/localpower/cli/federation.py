"""The commands `federation` and `site`: make a federation, take part in one, look what was told."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from math import isnan
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from localpower.cli.flare import add_flare
from localpower.cli.options import (
    READING,
    add_command,
    add_output,
    add_reading,
    read_as_before,
    reading_of,
)
from localpower.core.errors import DataError, LocalPowerError, MissingExtra
from localpower.core.text import counted
from localpower.data.source import open_source
from localpower.progress import Progress
from localpower.result import Result
from localpower.scores import write_scores
from localpower.scores.writers import kind_of

if TYPE_CHECKING:
    from localpower.federation.policy import Policy

TEXT = 120  # characters of a text of the journal that are shown; the file has all
UNUSUAL = 0.8  # of the share that is explained of all rows; less is remarked on


@contextmanager
def _extra(what: str) -> Iterator[None]:
    """Name the extra where an optional library is missing."""
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingExtra) or (error.name or "").startswith("localpower"):
            raise
        raise MissingExtra(what, "federation") from error


def init(options: argparse.Namespace) -> None:
    """``localpower federation init``."""
    with _extra("localpower federation"):
        from localpower.federation.identity import LEAST_SITES, make_federation
    file = make_federation(options.folder, options.site, options.host, options.port)
    folder = file.parent
    names = ", ".join(str(folder / name) for name in options.site)
    print(f"1. bring each site its own folder ({names}) by a safe route, and delete it here; "
          f"{folder / 'ca.key'} is secret and stays here")  # fmt: skip
    policy = shlex.quote(str(Path(options.site[0]) / "policy.toml"))
    print(f"2. each site writes data = into its policy.toml, then runs: localpower site check "
          f"{policy} && localpower site join {policy}")  # fmt: skip
    engine = shlex.quote(f"sites:{file}")
    print(f"3. here, run: localpower fit --engine {engine} -k 5 --center -o model")
    if len(options.site) < LEAST_SITES:
        print(f"REFUSED UNTIL ALL SITES LOWER min_sites: policies ask for {LEAST_SITES} sites, as "
              "two read each other's part in the sum")  # fmt: skip


def check_at_sites(options: argparse.Namespace) -> None:
    """Refuse what is about rows in a fit of those that sites have."""
    if options.data:
        raise ValueError(
            f"{options.data[0]}: with --engine {options.engine} the sites use the rows that "
            "their policies name; leave DATA out"
        )
    for name in (*READING, "dtype", "memory", "cache"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"{name}={getattr(options, name)!r}: with --engine {options.engine} the sites read "
                f"their rows as their policies say; leave --{name} out"
            )


def check(options: argparse.Namespace) -> None:
    """``localpower site check``."""
    with _extra("localpower site"):
        from localpower.federation.join import (
            checked_policy,
            credentials_of,
            policy_file,
            valid_until,
        )
        from localpower.federation.masks import SiteKeys
        from localpower.federation.policy import Policy
    path = policy_file(options.policy)
    print(Policy.read(path).explain())
    policy = checked_policy(path)
    keys = policy.folder / policy.keys
    credentials_of(policy.name, keys)
    pin = SiteKeys.read(keys).fingerprint
    print(f'The others know it by its identity key, in their [peers]: {policy.name} = "{pin}"')
    print(f"It connects to {policy.coordinator}; its certificate is valid until "
          f"{valid_until(keys):%Y-%m-%d}.")  # fmt: skip
    with Progress() as display, _as_lines_of(path):
        display.stage(f"reading {Path(policy.path).name}")
        with open_source(policy.path, policy.n_features, policy.options()) as rows:
            shape, kind = (rows.rows, rows.columns), rows.dtype.name
    print(f"{policy.data}: {counted(shape[0], 'row')} of {counted(shape[1], 'column')}, {kind}.")
    print("\n".join(_left(policy, shape[0])))
    if why := [*_reasons(policy, shape[0])]:  # so that `check && join` ends here
        raise DataError(f"{path}: EVERYTHING WILL BE REFUSED: {'; and '.join(why)}")


def _reasons(policy: Policy, rows: int) -> Iterator[str]:
    """Why a site can never answer."""
    if len(policy.peers) + 1 < policy.min_sites:
        others = counted(len(policy.peers), "other")
        yield f"min_sites = {policy.min_sites}, and peers has {others}; add some, or lower it"
    if not policy.answered:
        yield "of its tasks, private runs ask for none, or only they do; leave tasks out"
    if policy.lacking and policy.secure_sum == "off":
        yield f"runs without masks ask for {' and '.join(policy.lacking)}; add that to tasks"
    if policy.privacy is None:
        if rows < policy.min_rows:
            yield f"min_rows = {policy.min_rows}, and there are only {rows} rows"
    elif policy.secure_sum == "off":
        yield "private runs have masks, and secure_sum = 'off'; take 'required'"
    elif policy.missing == "mean":
        yield "missing = 'mean' makes private rows depend on others; take 'drop'"


def _left(policy: Policy, rows: int) -> Iterator[str]:
    """What a site can still answer."""
    from localpower.federation.journal import NAME
    from localpower.federation.policy import PER_COLUMN

    _lines, columns, epsilon = _totals(policy.folder / NAME)
    if policy.privacy is not None:
        yield f"It has spent epsilon = {epsilon:.3g} of {policy.privacy.epsilon:g} so far."
        return
    most = rows // PER_COLUMN
    yield f"With this many rows, it refuses questions for more than {most} columns at once."
    yield f"It has answered {columns} of max_columns = {policy.max_columns} columns so far."


@contextmanager
def _as_lines_of(path: Path) -> Iterator[None]:
    """Have errors about data name lines of a policy, and not options of a command."""
    from localpower.federation.policy import as_policy_wording

    try:
        yield
    except (LocalPowerError, ValueError) as error:
        text = as_policy_wording(str(error))
        if text == str(error):
            raise
        raise type(error)(f"{text}; such lines belong into {path}") from error


def key(options: argparse.Namespace) -> None:
    """``localpower site key``."""
    with _extra("localpower site"):
        from localpower.federation.join import new_identity, policy_file
        from localpower.federation.policy import Policy
    path = policy_file(options.policy)
    policy = Policy.read(path)
    pin = new_identity(policy).fingerprint
    print(f"{policy.folder / policy.keys} has a new identity key, which nobody else has ever had.")
    print("1. tell every other site this line, in a way that the coordinator cannot change, as by "
          "telephone; each writes it under [peers] of its own policy, in the place of the old one:"
          f'\n   {policy.name} = "{pin}"')  # fmt: skip
    print(f"2. tell the coordinator this line; it belongs under [sites.{policy.name}] of its "
          f'federation.toml, in the place of the old one:\n   identity = "{pin}"')  # fmt: skip
    print(f"3. write the lines that the other sites tell you under [peers] of {path}")


def join(options: argparse.Namespace) -> None:
    """``localpower site join``."""
    with _extra("localpower site"):
        from localpower.federation.join import join as take_part

    def say(text: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {text}", flush=True)

    try:
        take_part(options.policy, say, options.once)
    except KeyboardInterrupt:
        say("left")


def journal(options: argparse.Namespace) -> None:
    """``localpower site journal``."""
    with _extra("localpower site"):
        from localpower.federation.join import policy_file
        from localpower.federation.journal import NAME, verified
        from localpower.federation.messages import printable
        from localpower.federation.policy import Policy
    file = Policy.read(policy_file(options.policy)).folder / NAME
    if not file.exists():
        print(f"{file} does not exist yet: this site has answered and refused nothing")
        return
    for entry, _ in verified(file):
        what = f"{entry.round}. {entry.task}" if entry.round else entry.task
        told = [f"{entry.words} words"] * bool(entry.words)
        told += [f"{entry.columns} columns"] * bool(entry.columns)
        told += [("masked" if entry.masked else "NOT masked")] * bool(entry.words)
        told += [f"epsilon {entry.epsilon:g}"] * bool(entry.epsilon)
        told += [printable(shorten(entry.text, TEXT, placeholder=" ..."))] * bool(entry.text)
        when = entry.time[:19].replace("T", " ")
        run = printable(entry.run[:8])
        print(f"{when} {entry.kind:<8} {run:<8} {what:<16} {', '.join(told)}".rstrip())
    lines, columns, epsilon = _totals(file)
    spent = f", epsilon {epsilon:g} spent" * (epsilon > 0)
    print(f"{counted(lines, 'line')}, the hash of each is right; {columns} columns answered{spent}")


def _totals(file: Path) -> tuple[int, int, float]:
    """Lines of a journal, columns answered and epsilon spent."""
    from localpower.federation.journal import verified

    entries = [entry for entry, _ in verified(file)] if file.exists() else []
    return len(entries), sum(e.columns for e in entries), sum(e.epsilon for e in entries)


def project(options: argparse.Namespace) -> None:
    """``localpower site project``."""
    output = Path(options.output)
    kind_of(output)
    model = Result.load(options.model)
    data: Any = options.data[0] if len(options.data) == 1 else options.data
    wording: AbstractContextManager[None] = nullcontext()
    if str(options.data[0]).endswith(".toml"):
        with _extra("localpower site"):
            from localpower.federation.join import checked_policy
        for name in READING:
            if getattr(options, name) is not None:
                raise ValueError(
                    f"{name}={getattr(options, name)!r}: rows are read as {data} says; write "
                    f"{name} = there, or name the file of rows in its place"
                )
        policy = checked_policy(options.data[0])
        data, reading = policy.path, policy.options()
        wording = _as_lines_of(options.data[0])
    else:
        read_as_before(model.run.get("reading", {}), options)
        reading = reading_of(options)
    from localpower.federation.outlier import explained_here

    with Progress() as display, wording:
        display.stage("projecting rows")
        done = write_scores(
            model, data, output, reading, keep=options.keep or (), memory=options.memory
        )
        here = explained_here(model, data, reading, options.memory, options.keep or ())
    everywhere = float(model.explained_variance_ratio.sum())
    whole = "" if isnan(everywhere) else f", and {everywhere:.1%} of all sites'"
    print(done.told(len(model.components)))
    print(f"the model explains {here:.1%} of the variance here{whole}")
    if here < UNUSUAL * everywhere:
        print("these rows are unusual: they vary in directions that the model does not contain")


def add_federation(commands: Any) -> None:
    """Add ``federation`` and ``site``."""
    made = add_command(
        commands,
        "federation",
        None,
        "make keys and files for sites that keep their rows",
        "federation init FOLDER --site north --site south --site west",
    )
    actions = made.add_subparsers(required=True, metavar="ACTION", prog="localpower federation")
    command = add_command(
        actions,
        "init",
        init,
        "make keys, certificates, the coordinator's file and a policy for each site",
        "federation init FOLDER --site north --site south --site west",
    )
    add = command.add_argument
    add("folder", metavar="FOLDER", help="a new folder")
    add("--site", action="append", required=True, metavar="NAME", help="once for each site")
    add(
        "--host",
        default="127.0.0.1",
        metavar="NAME",
        help="address of the coordinator, on which it listens (127.0.0.1, this machine only)",
    )
    add("--port", type=int, default=8443, metavar="N", help="port of the coordinator (8443)")
    add_flare(actions)

    site = add_command(commands, "site", None, "take part in a federation with rows that stay here",
                       "site join policy.toml")  # fmt: skip
    actions = site.add_subparsers(required=True, metavar="ACTION", prog="localpower site")
    for name, function, what in (
        ("check", check, "read this site's data, and explain what it answers and refuses"),
        ("key", key, "make an identity key that the coordinator never had; say who must know it"),
        ("join", join, "connect to the coordinator and answer, until Ctrl-C"),
        ("journal", journal, "show what left this site and what it refused; verify the record"),
    ):
        command = add_command(actions, name, function, what, f"site {name} policy.toml")
        command.add_argument("policy", metavar="POLICY", help="this site's policy.toml")
        if function is join:
            command.add_argument("--once", action="store_true", help="leave after one run")
    command = add_command(
        actions,
        "project",
        project,
        "write scores of this site's rows, and say how much variance a model explains",
        "site project model policy.toml -o scores.parquet",
        "site project model cohort.csv -o scores.csv --keep id",
        usage="MODEL POLICY|DATA [DATA ...] -o FILE [options]",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    add_output(command)
    add_reading(command)
