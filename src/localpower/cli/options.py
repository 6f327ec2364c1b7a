"""The options of the command line, made from those of the functions that it calls."""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from inspect import signature
from shlex import quote
from textwrap import fill, indent
from typing import Any, NoReturn

from localpower.api import svd
from localpower.comparison import compare, shown
from localpower.core.checks import count_or_share
from localpower.data.blocks import Options
from localpower.data.partition import PARTITIONS
from localpower.methods import CERTIFIED, EXACT, EXAMPLE, REGISTRY
from localpower.methods.scaling import SCALES
from localpower.options import CERTAINTY, Budget, Faults, Privacy
from localpower.planning import FLOPS, NETWORKS, plan
from localpower.scores.writers import KINDS

WHERE = "folder to search for data sets, before LOCALPOWER_DATA and the user's cache"
READING = "columns", "drop", "label", "header", "delimiter", "key", "missing"  # a model has them
SPELT = {"rng": "seed", "out": "output"}  # names that are others on the command line
CALLED = svd, plan, compare  # whose arguments are options here
NAMES = sorted({name for function in CALLED for name in signature(function).parameters}
               | {entry.name for entry in fields(Options)} | {"cache", "keep", "out"},
               key=len, reverse=True)  # fmt: skip


def as_cli_wording(text: str) -> str:
    """Name options as they are given on the command line: ``drop=['id']`` is ``--drop id``."""
    text = re.sub(r" \(pass localpower\.read\([^()]*\) as data\)", "", text)

    def option(match: re.Match[str]) -> str:
        name = SPELT.get(match[1], match[1]).replace("_", "-")
        value = match[2] or ""
        if value in ("True", "False"):
            return f"--{'no-' * (value == 'False')}{name}"
        words = re.findall(r"'([^']*)'|\"([^\"]*)\"|([^\s,'\"\[\]]+)", value)
        parts = [next(filter(None, word), "") for word in words]
        listed = ",".join(f'"{part}"' if "," in part else part for part in parts)
        plain = listed and not set(listed) & set(' "')
        return f"--{name} {listed if plain else quote(listed)}" if words else f"--{name}"

    return re.sub(
        rf"(?<![\w:,.'])({'|'.join(NAMES)})=(\[[^]]*\]|'[^']*'|[^\s,;:()]+)?", option, text
    )


def methods_text() -> str:
    """All methods with their options, for the help."""
    lines = []
    for name, form in REGISTRY.items():
        lines.append(f"  {name:<16} {form.kind.about}")
        for option, entry in form.options().items():
            text = f"{option}={entry.default}: {entry.metadata['help']}"
            lines.append(indent(fill(text, 72, subsequent_indent="  "), "      "))
    return "\n".join(lines)


def group(kind: type[Any]) -> Callable[[str], Any]:
    """Read ``name=value,name=value`` as an object of a class of options."""
    known = {entry.name: str(entry.type) for entry in fields(kind)}

    def read(text: str) -> Any:
        given: dict[str, Any] = {}
        for part in text.split(","):
            name, equals, value = part.strip().partition("=")
            if name not in known or not equals:
                raise argparse.ArgumentTypeError(
                    f"{part!r}: give some of {', '.join(f'{each}=...' for each in known)}"
                )
            try:
                number = int if known[name].startswith("int") else float
                given[name] = value if known[name] == "str" else number(value)
            except ValueError:
                raise argparse.ArgumentTypeError(f"{part!r} needs a number") from None
        try:
            return kind(**given)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Names an option's value once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar or action.dest.upper()}"


class Parser(argparse.ArgumentParser):
    """A parser whose help fits a screen: what is rarely needed is explained by ``--help-all``."""

    def __init__(self, **how: Any) -> None:
        super().__init__(formatter_class=Formatter, **how)
        self.rarely: list[argparse.Action] = []

    def rare(self, group: Any, *names: str, **how: Any) -> None:
        """Add an option that is rarely needed."""
        self.rarely.append(group.add_argument(*names, **how))

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where the options are explained."""
        super().error(f"{message}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Let the command whose arguments they are refuse those that it does not know."""
        found, others = super().parse_known_args(args, namespace)
        if others and " " in self.prog:
            near = get_close_matches(others[0].partition("=")[0], self._option_string_actions, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            self.error(f"unrecognized arguments: {' '.join(others)}{hint}")
        return found, others

    def format_help(self) -> str:
        """Leave out what is rare, but for the names."""
        if not self.rarely:
            return super().format_help()
        texts = [action.help for action in self.rarely]
        names = ", ".join(action.option_strings[0] for action in self.rarely)
        try:
            for action in self.rarely:
                action.help = argparse.SUPPRESS
            short = super().format_help()
        finally:
            for action, text in zip(self.rarely, texts, strict=True):
                action.help = text
        return f"{short}\n{fill(f'more in --help-all: {names}', 79)}\n"


def names_in(text: str) -> list[str]:
    """Names between commas; one that has a comma itself is in double quotes, as in CSV."""
    return next(csv.reader([text])) or [""]


class Extend(argparse.Action):
    """Adds to a list: ``--drop a --drop b`` is ``--drop a,b``."""

    def __call__(self, parser: Any, options: Any, values: Any, option: Any = None) -> None:
        """Add what was given now to what was given before."""
        setattr(options, self.dest, [*(getattr(options, self.dest) or ()), *values])


class HelpAll(argparse.Action):
    """``--help-all``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the help with all options, and the methods with theirs."""
        print(argparse.ArgumentParser.format_help(parser), end="")
        if any("--method" in action.option_strings for action in parser._actions):
            print(f"\nmethods and their options:\n{methods_text()}")
        parser.exit()


def add_command(
    commands: Any, name: str, run: Any, summary: str, *examples: str, usage: str | None = None
) -> Parser:
    """Add a subcommand; its help starts with examples."""
    first, *more = [f"localpower {example}" for example in examples]
    text = "\n".join([f"example: {first}", *(f"         {example}" for example in more)])
    command: Parser = commands.add_parser(name, help=summary, description=text)
    command.usage = None if usage is None else f"{command.prog} {usage}"
    command.set_defaults(command=run)
    return command


def add_fit(commands: Any, run: Any) -> None:
    """Add ``fit``."""
    command = add_command(
        commands,
        "fit",
        run,
        "find the components of rows and write a model",
        "fit rows.csv -k 5 --center -o model",
        "fit 'rows/*.parquet' -k 5 --drop id,name -o model",
        usage="DATA [DATA ...] -k K [-o MODEL] [options]",
    )
    add, rare = command.add_argument, command.rare
    _add_rank(command)
    add("-o", "--output", metavar="MODEL", help="directory to write the model to")
    add("--report", metavar="PAGE", help="write the page of the run, an .html file")
    _add_columns(command)
    add("--seed", type=int, metavar="N", help="seed for the random start and shuffle")
    add("--json", action="store_true", help="print JSON instead of tables")
    add_reading(command, least="*")

    shards = command.add_argument_group("shards and workers")
    _add_shards(command, shards)
    shards.add_argument("--engine", default="threads", metavar="NAME",
        help="threads, processes:4, dask, ray, spark, mpi, sites:FILE")  # fmt: skip
    rare(shards, "--faults", type=group(Faults), metavar="A=B,...",
         help="deadline=SECONDS, retries=N, on_loss=stop, degrade or reuse, "
              "participation=SHARE")  # fmt: skip

    method = command.add_argument_group("method")
    method.add_argument("--method", default="auto", metavar="NAME",
        help="auto (cheapest, see plan) or a name from --help-all, with options as in "
        f"{EXAMPLE}")  # fmt: skip
    method.add_argument("--tol", type=float, metavar="SINE",
        help="certified angle to reach (1e-8 for auto, else 0)")  # fmt: skip
    rare(method, "--certainty", type=_certainty, default=CERTAINTY, metavar="P",
         help=f"largest chance of error ({CERTAINTY:g}), or proven")  # fmt: skip
    method.add_argument("--max-rounds", type=int, metavar="N",
        help="most rounds to run (30; auto takes what it needs)")  # fmt: skip
    rare(method, "--privacy", type=group(Privacy), metavar="A=B,...",
         help="epsilon=1,delta=1e-6,clip=1: protect single rows with noise")  # fmt: skip
    end = command.add_argument_group("stopping and resuming")
    rare(end, "--budget", type=group(Budget), metavar="A=B,...", help="bytes=N, seconds=S")
    rare(end, "--checkpoint", metavar="FILE", help="write the state to this file after every round")
    rare(
        end, "--every", type=_number, default=1, metavar="N", help="rounds between checkpoints (1)"
    )
    rare(end, "--resume", action="store_true", help="resume from the checkpoint if it exists")
    add_grid(partial(rare, command))


def add_model(commands: Any, transform: Any, inspect: Any, report: Any) -> None:
    """Add what is done with a model: ``transform``, ``inspect`` and ``report``."""
    command = add_command(
        commands,
        "transform",
        transform,
        "project rows onto the components of a model",
        "transform model rows.csv -o scores.csv",
        "transform model 'rows/*.parquet' -o scores.parquet --keep id",
        usage="MODEL DATA [DATA ...] -o FILE [options]",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    add_output(command)
    add_reading(command)

    command = add_command(
        commands,
        "inspect",
        inspect,
        "show what a model contains and how it was made",
        "inspect model",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    command.add_argument("--json", action="store_true", help="print JSON")

    command = add_command(
        commands,
        "report",
        report,
        "write an HTML page about a run",
        "report model -o run.html --data rows.csv",
        usage="MODEL -o PAGE [--data DATA [DATA ...]] [options]",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    command.add_argument("-o", "--output", required=True, metavar="PAGE", help="an .html file")
    add_grid(command.add_argument)
    add_reading(command, "--data")


def add_plan(commands: Any, run: Any) -> None:
    """Add ``plan``."""
    command = add_command(
        commands,
        "plan",
        run,
        "predict what each method would cost",
        "plan rows.npy -k 10 -m 100",
        "plan 1000000x5000 -k 10 -m 100 --latency 'wide area'",
        usage="DATA|NxD -k K [options]",
    )
    add = command.add_argument
    _add_rank(command)
    add("-m", "--workers", type=_number, metavar="M", help="number of shards")
    add("--tol", type=float, metavar="SINE", help="angle to reach (1e-8)")
    add("--latency", type=_latency, default="data centre", metavar="SECONDS",
        help=f"seconds per hop, or one of {_names(NETWORKS)}")  # fmt: skip
    add("--bandwidth", type=float, metavar="RATE", help="bytes per second")
    add("--flops", type=float, default=FLOPS, metavar="RATE",
        help=f"operations per second of one worker ({FLOPS:.0e})")  # fmt: skip
    add("--measure", action="store_true", help="measure these three on the engine, once")
    add("--engine", metavar="NAME", help="engine to plan for, as in fit (threads)")
    _add_columns(command)
    command.rare(command, "--width", type=int, metavar="R",
                 help="number of columns to iterate (K + 5)")  # fmt: skip
    add_reading(command)


def add_compare(commands: Any, run: Any) -> None:
    """Add ``compare``."""
    command = add_command(
        commands,
        "compare",
        run,
        "run methods on the same rows; print a table, draw a picture",
        f"compare rows.npy -k 5 --methods {CERTIFIED.name},{EXACT.name} -o it.png",
        usage="DATA [DATA ...] -k K [-o FILE] [options]",
    )
    add = command.add_argument
    _add_rank(command)
    add("-o", "--output", metavar="FILE", help="draw the angles, as .png or .svg")
    usual = f"methods to run, with options as in {EXAMPLE}; by default {_names(shown())}"
    add("--methods", metavar="A,B", help=usual)
    add("--tol", type=float, default=1e-6, metavar="SINE", help="angle to reach (1e-6)")
    add("--max-rounds", type=int, default=100, metavar="N", help="most rounds to run (100)")
    _add_columns(command)
    _add_shards(command, command)
    command.rare(command, "--engine", default="threads", metavar="NAME",
                 help="threads, processes:4, inline")  # fmt: skip
    command.rare(command, "--seed", type=int, default=0, metavar="N",
                 help="seed for the random start and shuffle (0)")  # fmt: skip
    add("--json", action="store_true", help="print JSON instead of a table")
    add_reading(command)


def _certainty(text: str) -> float | str:
    try:
        return text if text == "proven" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a chance of error, such as 1e-6, or proven"
        ) from None


def _latency(text: str) -> float | str:
    try:
        return text if text in NETWORKS else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give seconds, or one of {_names(map(repr, NETWORKS))}"
        ) from None


def _add_rank(command: Any) -> None:
    add = command.add_argument
    help = "number of components, or the share to explain, e.g. 0.95"
    add("-k", "--rank", type=_rank, required=True, metavar="K", help=help)


def _add_columns(command: Any) -> None:
    """Add what is done to columns before all else."""
    add = command.add_argument
    add("--center", action="store_true", help="subtract the mean of each column: PCA")
    add("--scale", choices=list(SCALES), metavar="NAME",
        help=f"divide columns by one of {_names(SCALES)}")  # fmt: skip


def _add_shards(command: Parser, group: Any) -> None:
    add = group.add_argument
    add("-m", "--workers", type=_number, metavar="M", help="cut the rows into M shards")
    command.rare(group, "--partition", default="contiguous", metavar="HOW",
                 help=f"how rows are cut: {_names(PARTITIONS)}:0.5")  # fmt: skip


def add_grid(add: Any) -> None:
    """Add the shape of pictures."""
    add("--grid", type=_grid, metavar="RxC", help="columns are pixels of images of this shape: 8x8")


def add_output(command: Parser) -> None:
    """Add where scores are written to, and what beside them."""
    add = command.add_argument
    add("-o", "--output", required=True, metavar="FILE", help=f"one of {_names(KINDS)}")
    add("--keep", type=names_in, metavar="A,B", action=Extend,
        help="columns of DATA to copy next to the scores, such as an id")  # fmt: skip


def add_reading(command: Parser, data: str = "data", least: str = "+") -> None:
    """Add the files, and the options of reading them."""
    command.add_argument("--help-all", action=HelpAll, nargs=0, help="show all options and exit")
    group = command.add_argument_group("reading")
    add, rare = group.add_argument, command.rare
    add(
        data,
        metavar="DATA",
        nargs=least,
        help="csv, tsv, npy, npz, svmlight, parquet, arrow, zarr, hdf5; each file of a folder or "
        "glob is a shard"
        if data == "data"
        else "the rows that were fitted, as given to fit",
    )
    names: Any = {"type": names_in, "metavar": "A,B", "action": Extend}
    add("--drop", help="columns to leave out, by name or number (from 0)", **names)
    add("--columns", help="columns to use, by name or number", **names)
    add("--label", metavar="A", help="column of labels: not fitted, colours pictures")
    add("--missing", choices=["drop", "mean", "error"], metavar="HOW",
        help="at a gap: drop its row, fill in the mean, or error (default)")  # fmt: skip
    add("--memory", metavar="SIZE", help="memory for rows, e.g. 2GB (half of what is free)")
    rare(group, "--header", action=argparse.BooleanOptionalAction,
         help="whether the first line of text has column names (detected)")  # fmt: skip
    rare(group, "--delimiter", metavar="C", help="character between fields of text (detected)")
    rare(group, "--key", metavar="NAME", help="which array of an HDF5, Zarr or npz file")
    rare(group, "--dtype", choices=["float32", "float64"], metavar="T", help="float32 or float64")
    rare(group, "--cache", metavar="FOLDER", help="keep parsed files here for the next run")


def reading_of(options: argparse.Namespace) -> Options:
    """The options of reading that were given."""
    return Options(
        columns=options.columns,
        drop=options.drop,
        label=options.label,
        header=options.header,
        delimiter=options.delimiter,
        dtype=options.dtype,
        key=options.key,
        missing=options.missing,
    )


def read_as_before(known: dict[str, Any], options: argparse.Namespace) -> None:
    """Read rows as those of a model were read, in whatever is not asked for."""
    chosen = ("columns", "drop") if options.columns or options.drop else ()
    left = [name for name in known if name not in chosen and getattr(options, name) is None]
    vars(options).update({name: known[name] for name in left})


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 1 or more")
    return int(text)


def _rank(text: str) -> int | float:
    try:
        return count_or_share("K", int(text) if text.isdecimal() else float(text))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a whole number, 1 or more, or a share between 0 and 1"
        ) from None


def _grid(text: str) -> tuple[int, int]:
    shape = re.fullmatch(r"(\d+)x(\d+)", text)
    if shape is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give rows and columns of a picture, as 8x8")
    return int(shape[1]), int(shape[2])


def _names(known: Any) -> str:
    return ", ".join(known)
