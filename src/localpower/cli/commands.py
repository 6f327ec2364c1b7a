"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path
from shlex import join, quote
from textwrap import fill
from typing import Any, NoReturn, TextIO

import numpy as np

from localpower.api import CERTAINTY, METHODS, svd
from localpower.comparison import METHODS_SHOWN, compare, picture_path
from localpower.core.alignment import ALIGNMENTS
from localpower.core.errors import DataError, DataHint, LocalPowerError, warn
from localpower.data.blocks import Options
from localpower.data.partition import PARTITIONS
from localpower.data.source import Source, files, open_source
from localpower.engines.registry import connect, terminable
from localpower.methods.local_power import State
from localpower.methods.local_ritz import PROPOSALS
from localpower.methods.scaling import SCALES
from localpower.paper import datasets as registry
from localpower.planning import FLOPS, NETWORKS, plan, size
from localpower.progress import PERIOD, Line, Progress, is_terminal, width
from localpower.result import ARRAYS, RUN, Record, Result, model_folder
from localpower.show.report import page_path
from localpower.show.summary import in_short
from localpower.version import __version__

WHERE = "folder of data sets, before LOCALPOWER_DATA and the user's cache"
FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130
SPELT = {"rng": "seed"}  # names that are others on the command line
OPTIONS = (
    *("align_at", "align", "bandwidth", "cache", "certainty", "checkpoint", "columns", "deadline"),
    *("delimiter",),
    *("drop", "dtype", "engine", "flops", "header", "key", "label", "latency", "max_bytes"),
    *("max_rounds", "max_seconds", "memory", "method", "missing", "on_loss", "partition"),
    *("proposal", "rank"),
    *("resume", "rng", "scale", "schedule", "start", "steps", "tol", "width", "workers"),
)
READING = "columns", "drop", "label", "header", "delimiter", "key", "missing"  # a model has them
RANK = "{rank}"  # in a path: the number of this process in an MPI job
JOBS = ("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = _parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help(sys.stderr)
        return BAD_USAGE
    options = parser.parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with terminable(), warnings.catch_warnings():
            warnings.showwarning = _warn
            options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough
        _discard_output()
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except (LocalPowerError, OSError, MemoryError, RuntimeError, np.linalg.LinAlgError) as error:
        return _complain(_reason(error), FAILED)
    except (ValueError, TypeError) as error:
        return _complain(_reason(error), BAD_USAGE)
    return 0


def fit(options: argparse.Namespace) -> None:
    """``localpower fit``."""
    if options.engine.partition(":")[0] == "mpi" or any(RANK in path for path in options.data):
        _fit_on_ranks(options)
        return
    if any(os.environ.get(rank) == "0" and os.environ.get(size) != "1" for rank, size in JOBS):
        hint = "each rank of this MPI job fits all rows; to do so together, add --engine mpi"
        warn(f"{hint}, or give each its own file, as in rows-{RANK}.npy", DataHint)
    _check_outputs(options)
    with Progress() as display, _rows(options, display) as rows:
        result = _fit(options, rows, options.engine, display)
        if options.report is not None:
            display.stage("writing the page")
            result.report(options.report, rows, grid=options.grid)
    _keep(result, options)


def _fit_on_ranks(options: argparse.Namespace) -> None:
    """Fit as one rank of an MPI job: with files of its own, or with those that rank 0 spreads."""
    paths = options.data
    own = any(RANK in path for path in paths)
    with connect("mpi" if own and options.engine == "threads" else options.engine) as engine:
        rank = getattr(engine, "rank", None)
        if own and (rank is None or engine.size == 1):
            raise ValueError(
                f"{RANK} in a path is for the ranks of an MPI job: start it as mpiexec -n 4 "
                "localpower fit, without another --engine"
            )
        if rank:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        else:
            _check_outputs(options)

        def mine(rank: int) -> Source:
            options.data = [path.replace(RANK, str(rank)) for path in paths]
            return _rows(options, Progress(False))

        if own:
            result = _fit(options, mine, engine, None)
        elif rank:
            engine.serve()  # type: ignore[attr-defined]
            return
        else:
            with Progress() as display, _rows(options, display) as rows:
                result = _fit(options, rows, engine, display)
    if not rank:
        if options.report is not None:
            result.report(options.report, grid=options.grid)
        _keep(result, options)


def _fit(options: argparse.Namespace, rows: Any, engine: Any, progress: Progress | None) -> Result:
    progress = progress or Progress()
    table = Table(sys.stderr if options.json else sys.stdout, options.json, progress)
    result = svd(
        rows,
        options.rank,
        method=options.method,
        steps=options.steps,
        schedule=options.schedule,
        align=options.align,
        align_at=options.align_at,
        proposal=options.proposal,
        start=options.start,
        width=options.width,
        max_rounds=options.max_rounds,
        max_bytes=options.max_bytes,
        max_seconds=options.max_seconds,
        tol=options.tol,
        certainty=options.certainty,
        checkpoint=options.checkpoint,
        resume=options.resume,
        workers=options.workers,
        partition="shuffled" if options.shuffle else options.partition,
        engine=engine,
        deadline=options.deadline,
        on_loss=options.on_loss,
        center=options.center,
        scale=options.scale,
        rng=options.seed,
        callback=table,
        progress=progress,
    )
    table.show()
    return replace(result, run={**result.run, "command": _repeated(options, result)})


def _repeated(options: argparse.Namespace, result: Result) -> list[str]:
    """The command that does the same again: with the seed and the number of shards."""
    more = []
    if options.seed is None:
        more += ["--seed", str(result.run["seed"])]
    if options.workers is None and not result.run["held"]:
        more += ["--workers", str(result.run["workers"])]
    return ["localpower", *options.arguments, *more]


def _check_outputs(options: argparse.Namespace) -> None:
    """Refuse what cannot be written to before the work, not after it."""
    if options.output is not None:
        folder = model_folder(options.output)
        for name in (ARRAYS, RUN):
            _refuse_as_data(folder / name, options.data)
    if options.report is not None:
        _refuse_as_data(page_path(options.report), options.data, "--report")
    if options.checkpoint is not None:
        _refuse_as_data(Path(options.checkpoint), options.data, "--checkpoint")


def _refuse_as_data(output: Path, data: Sequence[str], option: str = "-o") -> None:
    """Refuse to write over a file that is read.

    What a glob or folder finds may be of an earlier run, or rows. Nobody knows, so it is neither
    read nor written over.
    """
    for given in data if output.exists() else ():
        found = None if RANK in given else files(given)
        if found is None and os.path.exists(given) and output.samefile(given):
            raise ValueError(f"{option} {output} is also DATA; give another name")
        if any(path.exists() and output.samefile(path) for path in found or ()):
            raise ValueError(
                f"{option} {output} is there already, and {given} has it as DATA; delete it if an "
                "earlier run wrote it, or give a name that DATA does not have"
            )


def _keep(result: Result, options: argparse.Namespace) -> None:
    if options.output is not None:
        how = {name: getattr(options, name) for name in READING}
        how = {name: given for name, given in how.items() if given is not None}
        result = replace(result, run={**result.run, "reading": how} if how else result.run)
        result.save(options.output)
    _show(result, options.json, options.output)
    shown = options.json or options.report is not None or not is_terminal(sys.stdout)
    if options.output is not None and not shown:
        names = join([options.output, "--data", *options.data, "-o", "run.html"])
        print(f"see it: localpower report {names}")


def transform(options: argparse.Namespace) -> None:
    """``localpower transform``."""
    output = Path(options.output)
    if output.suffix not in (".npy", ".csv"):
        raise ValueError(f"-o {output}: scores are written as .npy or .csv; give such a name")
    _refuse_as_data(output, options.data)
    model = _model(options)
    with Progress() as display, _rows(options, display, model) as rows:
        display.stage("projecting rows")
        scores = model.transform(rows)
    if output.suffix == ".npy":
        np.save(output, scores)
    else:
        np.savetxt(output, scores, delimiter=",", fmt="%.17g")
    print(f"{scores.shape[0]} rows on {scores.shape[1]} components -> {output}")


def _model(options: argparse.Namespace) -> Result:
    """Read a model; rows are read as they were for it, where nothing else is asked for."""
    model = Result.load(options.model)
    if all(getattr(options, name) is None for name in READING):
        vars(options).update(model.run.get("reading", {}))
    return model


def _rows(options: argparse.Namespace, display: Progress, model: Result | None = None) -> Source:
    """Open the files that were named, with the options of reading; of a model, its columns."""
    display.stage(f"reading {Path(options.data[0]).name}{' ...' * (len(options.data) > 1)}")
    how = Options(
        columns=options.columns,
        drop=options.drop,
        label=options.label,
        header=options.header,
        delimiter=options.delimiter,
        dtype=options.dtype,
        key=options.key,
        missing=options.missing,
    )
    return open_source(
        options.data[0] if len(options.data) == 1 else options.data,
        0 if model is None else model.components.shape[1],
        how,
        options.memory,
        options.cache,
        like=None if model is None else model.run.get("names"),
    )


def plan_(options: argparse.Namespace) -> None:
    """``localpower plan``."""
    shape = re.fullmatch(r"(\d+)x(\d+)", options.data[0]) if len(options.data) == 1 else None
    how = {
        "workers": options.workers,
        "tol": options.tol,
        "width": options.width,
        "latency": options.latency,
        "bandwidth": options.bandwidth,
        "flops": options.flops,
        "center": options.center,
        "scale": options.scale,
    }
    if shape is not None:
        for name in (*READING, "cache"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"--{name} is for reading files, and {shape[0]} is a shape; leave it out"
                )
        how |= {"dtype": options.dtype, "memory": options.memory}
        print(plan((int(shape[1]), int(shape[2])), options.rank, **how))
        return
    with Progress() as display, _rows(options, display) as rows:
        display.stage("planning")
        found = plan(rows, options.rank, **how)
    print(found)


def compare_(options: argparse.Namespace) -> None:
    """``localpower compare``."""
    if options.engine.partition(":")[0] == "mpi":
        raise ValueError(
            "--engine mpi: all ranks would read the same rows; compare in one process, or call "
            "localpower.compare on the ranks, each with rows of its own"
        )
    if options.output is not None:
        _refuse_as_data(picture_path(options.output), options.data)
    with Progress() as display, _rows(options, display) as rows:
        found = compare(
            rows,
            options.rank,
            methods=options.methods,
            tol=options.tol,
            max_rounds=options.max_rounds,
            workers=options.workers,
            center=options.center,
            scale=options.scale,
            partition=options.partition,
            engine=options.engine,
            rng=options.seed,
            progress=display,
        )
    as_json = {"picture": options.output} | found.as_dict() if options.json else None
    print(found if as_json is None else json.dumps(as_json, indent=1))
    if options.output is not None:
        found.plot(options.output)
        if as_json is None:
            print(f"-> {options.output}")


def report(options: argparse.Namespace) -> None:
    """``localpower report``."""
    target = page_path(options.output)
    _refuse_as_data(target, options.data or ())
    model = _model(options)
    with ExitStack() as stack:
        rows = None
        if options.data:
            display = stack.enter_context(Progress())
            rows = stack.enter_context(_rows(options, display, model))
            display.stage("writing the page")
        model.report(target, rows, grid=options.grid)
    print(f"-> {target}")


def inspect(options: argparse.Namespace) -> None:
    """``localpower inspect``."""
    _show(Result.load(options.model), options.json, None)


def reproduce(options: argparse.Namespace) -> None:
    """``localpower reproduce``."""
    from localpower.paper.reproduce import reproduce as run
    from localpower.paper.runner import items

    if options.list:
        for name, item in items().items():
            print(f"{name:<24} {item.title}")
        return
    run(options.items, Path(options.output), options.data_dir, Line(sys.stdout).show)


def data_list(options: argparse.Namespace) -> None:
    """``localpower data list``."""
    print(f"{'name':<10} {'rows':>7} {'columns':>7}  where")
    for name, known in registry.DATA_SETS.items():
        path = registry.find(name, options.data_dir)
        where = path or f"missing: localpower data get {name}"
        print(f"{name:<10} {known.rows:>7} {known.columns:>7}  {where}")


def data_info(options: argparse.Namespace) -> None:
    """``localpower data info``."""
    known = registry.data_set(options.name)
    path = registry.find(options.name, options.data_dir)
    print(f"{known.title}: {known.rows} x {known.columns} in the paper")
    print(f"published at {known.url}")
    if known.note:
        print(f"note: {known.note}")
    if path is None:
        print(f"missing; looked in {', '.join(map(str, registry.search_path(options.data_dir)))}")
    else:
        print(f"found at {path}, {size(path.stat().st_size)}, sha256 {registry.sha256(path)}")


def data_path(options: argparse.Namespace) -> None:
    """``localpower data path``."""
    path = registry.find(options.name, options.data_dir)
    if path is None:
        raise DataError(registry.how_to_get(options.name))
    print(registry.verify(path))


def data_get(options: argparse.Namespace) -> None:
    """``localpower data get``."""
    line = Line(sys.stderr)

    def progress(done: int, total: int | None) -> None:
        if line.live:
            line.show(f"{size(done)} of {size(total) if total else 'unknown size'}")

    folder = None if options.data_dir is None else Path(options.data_dir)
    path = registry.download(options.name, folder, progress)
    line.erase()
    print(path)


class Table:
    """The rounds of a run, as they come: in place on a terminal, a line each elsewhere."""

    COLUMNS = (
        f"{'round':>6} {'steps':>5} {'up':>10} {'down':>10} {'seconds':>8} {'angle':>8} {'sure':>9}"
    )
    WINDOW = 12
    silent = True  # hides the line of progress itself, and only where it draws

    def __init__(self, stream: TextIO, quiet: bool, progress: Progress) -> None:
        self.stream = stream
        self.seen = is_terminal(stream)
        self.live = self.seen and width(stream) >= len(self.COLUMNS)
        self.quiet = quiet and not self.live
        self.progress = progress
        self.rows: deque[str] = deque([self.COLUMNS], 1 + self.WINDOW)
        self.new = len(self.rows)
        self.drawn = 0
        self.last = -inf

    def __call__(self, record: Record, state: State | None = None) -> None:
        """Add a round; the callback of `svd`."""
        self.rows.append(
            f"{record.round:>6} {record.steps:>5} {size(record.bytes_up):>10} "
            f"{size(record.bytes_down):>10} {record.seconds:>8.3f} {_angle(record):>8} "
            f"{in_short(record) if record.angle is not None else '':>9}".rstrip()
        )
        self.new += 1
        if not self.live or time.monotonic() - self.last > PERIOD:
            self.show()

    def show(self) -> None:
        """Print what is new; on a terminal, the last rows in the place of those before."""
        if self.quiet or not self.new:
            return
        try:
            with self.progress.hidden(again=self.live) if self.seen else nullcontext():
                self._print()
        except BrokenPipeError:  # nobody looks any more; the fit goes on
            self.quiet = True
            _discard_output()
        self.new, self.last = 0, time.monotonic()

    def _print(self) -> None:
        rows = list(self.rows)
        if not self.live:
            print("\n".join(rows[-self.new :]), file=self.stream, flush=True)
            return
        rows[0] = self.COLUMNS
        up = f"\x1b[{self.drawn}A" if self.drawn else ""
        print(up + "\n".join(f"\x1b[K{row}" for row in rows), file=self.stream, flush=True)
        self.drawn = len(rows)


def _show(result: Result, as_json: bool, path: str | None) -> None:
    if as_json:
        print(json.dumps(_summary(result, path), indent=1))
        return
    print(as_cli_wording(str(result)))
    if path is not None:
        print(f"-> {path}")


def _summary(result: Result, path: str | None) -> dict[str, Any]:
    ledger = result.ledger
    return {
        "model": path,
        "run": dict(result.run),
        "singular_values": result.singular_values.tolist(),
        "explained_variance_ratio": result.explained_variance_ratio.tolist(),
        "history": [asdict(record) for record in result.history],
        "ledger": {
            "rounds": ledger.rounds,
            "messages": ledger.messages,
            "bytes_up": ledger.bytes_up,
            "bytes_down": ledger.bytes_down,
        },
        "converged": result.converged,
        "reason": result.reason,
    }


def _angle(record: Record) -> str:
    return "" if record.angle is None else f"{record.angle:.1e}"


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); use more and smaller shards, or fewer workers"
    return as_cli_wording(str(error))


def as_cli_wording(text: str) -> str:
    """Name options as they are given on the command line: ``drop=['id']`` is ``--drop id``."""
    text = re.sub(r" \(give [^()]* to localpower\.read, and what it returns as data\)", "", text)

    def option(match: re.Match[str]) -> str:
        name = SPELT.get(match[1], match[1]).replace("_", "-")
        value = match[2] or ""
        if value in ("True", "False"):
            return f"--{'no-' * (value == 'False')}{name}"
        listed = ",".join(re.findall(r"[^\s,'\"\[\]][^,'\"\[\]]*", value))
        return f"--{name}{' ' * bool(listed)}{quote(listed) if ' ' in listed else listed}"

    return re.sub(
        rf"(?<![\w:,.'])({'|'.join(OPTIONS)})=(\[[^]]*\]|'[^']*'|[^\s,;:()]+)?", option, text
    )


def _warn(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    start = "\r\x1b[K" if is_terminal(sys.stderr) else ""  # where a line of progress may stand
    print(f"{start}localpower: note: {as_cli_wording(str(message))}", file=sys.stderr)


def _complain(reason: str, status: int) -> int:
    print(f"localpower: {reason}", file=sys.stderr)
    return status


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

    def format_help(self) -> str:
        """Leave out what is rare, but for the names."""
        if not self.rarely:
            return super().format_help()
        texts = [action.help for action in self.rarely]
        names = ", ".join(action.option_strings[-1] for action in self.rarely)
        try:
            for action in self.rarely:
                action.help = argparse.SUPPRESS
            short = super().format_help()
        finally:
            for action, text in zip(self.rarely, texts, strict=True):
                action.help = text
        return f"{short}\n{fill(f'more in --help-all: {names}', 79)}\n"


class Extend(argparse.Action):
    """Adds to a list: ``--drop a --drop b`` is ``--drop a,b``."""

    def __call__(self, parser: Any, options: Any, values: Any, option: Any = None) -> None:
        """Add what was given now to what was given before."""
        setattr(options, self.dest, [*(getattr(options, self.dest) or ()), *values])


class HelpAll(argparse.Action):
    """``--help-all``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the help with all options."""
        print(argparse.ArgumentParser.format_help(parser), end="")
        parser.exit()


def _command(
    commands: Any, name: str, run: Any, summary: str, *examples: str, usage: str | None = None
) -> Parser:
    """Add a subcommand; its help starts with examples."""
    first, *more = [f"localpower {example}" for example in examples]
    text = "\n".join([f"example: {first}", *(f"         {example}" for example in more)])
    usage = None if usage is None else f"localpower {name} {usage}"
    command: Parser = commands.add_parser(name, help=summary, usage=usage, description=text)
    command.set_defaults(command=run)
    return command


def _parser() -> Parser:
    parser = Parser(
        prog="localpower",
        usage="localpower COMMAND ...",
        description="example: localpower fit rows.csv -k 5 --center -o model\n\n"
        "Truncated SVD and PCA of rows on many workers, with little communication.\n"
        "`localpower COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"localpower {__version__}")
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND ...", title="commands", prog="localpower"
    )
    _add_fit(commands)

    command = _command(
        commands,
        "transform",
        transform,
        "project rows on the components of a model",
        "transform model rows.csv -o scores.csv",
        usage="MODEL DATA [DATA ...] -o FILE [options]",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    command.add_argument("-o", "--output", required=True, metavar="FILE", help=".npy or .csv")
    _add_reading(command)

    command = _command(
        commands,
        "inspect",
        inspect,
        "show what a model is and how it came about",
        "inspect model",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    command.add_argument("--json", action="store_true", help="print JSON")

    command = _command(
        commands,
        "report",
        report,
        "write the page of a run: one HTML file",
        "report model -o run.html --data rows.csv",
        usage="MODEL -o PAGE [--data DATA [DATA ...]] [options]",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    command.add_argument("-o", "--output", required=True, metavar="PAGE", help="an .html file")
    _add_grid(command.add_argument)
    _add_reading(command, "--data")
    _add_plan(commands)
    _add_compare(commands)
    _add_study(commands)
    return parser


def _add_fit(commands: Any) -> None:
    command = _command(
        commands,
        "fit",
        fit,
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
    add("--seed", type=int, metavar="N", help="seed of the random start and shuffle")
    add("--json", action="store_true", help="print JSON instead of tables")
    _add_reading(command)

    shards = command.add_argument_group("shards and workers")
    _add_shards(command, shards)
    shards.add_argument("--engine", default="threads", metavar="NAME",
        help="threads, processes:4, dask, ray, spark, mpi")  # fmt: skip
    rare(shards, "--shuffle", action="store_true", help="short for --partition shuffled")
    rare(shards, "--deadline", type=float, metavar="SECONDS", help="that a round may take")
    rare(shards, "--on-loss", choices=("stop", "degrade"), default="stop", metavar="HOW",
         help="of shards: stop (default), degrade")  # fmt: skip

    method = command.add_argument_group("method")
    method.add_argument("--method", default="auto", choices=["auto", *METHODS], metavar="NAME",
        help=f"auto (the cheapest, see plan), {_names(METHODS)}")  # fmt: skip
    method.add_argument("-p", "--steps", type=int, metavar="P",
        help="local steps per round of local_power (4)")  # fmt: skip
    rare(method, "--schedule", type=_schedule, metavar="NAME",
         help="of P: constant, halving, linear, halving:3, adaptive, or times: 0,4,8")  # fmt: skip
    rare(method, "--align", choices=list(ALIGNMENTS), metavar="NAME", help=_names(ALIGNMENTS))
    rare(method, "--align-at", choices=["server", "worker"], metavar="WHERE",
         help="server, or worker (half the upload)")  # fmt: skip
    rare(method, "--proposal", choices=list(PROPOSALS), metavar="NAME",
         help=f"of local_ritz: {_names(PROPOSALS)}")  # fmt: skip
    rare(method, "--start", metavar="NAME",
         help="of local_ritz and block_krylov: merged, merged:200, random")  # fmt: skip
    rare(method, "--width", type=int, metavar="R", help="columns that are iterated (K, or K + 5)")

    method.add_argument("--tol", type=float, metavar="SINE",
        help="certified angle to reach (auto 1e-8, else 0)")  # fmt: skip
    rare(method, "--certainty", type=_certainty, default=CERTAINTY, metavar="P",
         help=f"how sure: a chance to be wrong ({CERTAINTY:g}), or proven")  # fmt: skip
    method.add_argument("--max-rounds", type=int, metavar="N",
        help="rounds at most (30; auto takes what it needs)")  # fmt: skip
    end = command.add_argument_group("when to stop and go on")
    rare(end, "--max-bytes", type=float, metavar="N", help="stop after so many were moved")
    rare(end, "--max-seconds", type=float, metavar="S", help="stop after so long")
    rare(end, "--checkpoint", metavar="FILE", help="write the state here after every round")
    rare(end, "--resume", action="store_true", help="go on from the checkpoint if it is there")
    _add_grid(partial(rare, command))


def _add_plan(commands: Any) -> None:
    command = _command(
        commands,
        "plan",
        plan_,
        "what each method would cost, before anything is run",
        "plan rows.npy -k 10 -m 100",
        "plan 1000000x5000 -k 10 -m 100 --latency 'wide area'",
        usage="DATA|NxD -k K [options]",
    )
    add = command.add_argument
    _add_rank(command)
    add("-m", "--workers", type=_number, metavar="M", help="in how many shards the rows are")
    add("--tol", type=float, metavar="SINE", help="angle to reach (1e-8)")
    add("--latency", type=_latency, default="data centre", metavar="SECONDS",
        help=f"of a hop; or {_names(NETWORKS)}")  # fmt: skip
    add("--bandwidth", type=float, metavar="RATE", help="bytes a second")
    add("--flops", type=float, default=FLOPS, metavar="RATE", help=f"of one worker ({FLOPS:.0e})")
    _add_columns(command)
    command.rare(command, "--width", type=int, metavar="R",
                 help="columns that are iterated (K + 5)")  # fmt: skip
    _add_reading(command)


def _add_compare(commands: Any) -> None:
    command = _command(
        commands,
        "compare",
        compare_,
        "run the methods on the same rows: a table and a picture",
        "compare rows.npy -k 5 --methods local_ritz,dpi -o it.png",
        usage="DATA [DATA ...] -k K [-o FILE] [options]",
    )
    add = command.add_argument
    _add_rank(command)
    add("-o", "--output", metavar="FILE", help="draw the angles, as .png or .svg")
    add("--methods", default=METHODS_SHOWN, metavar="A,B",
        help="also with options, as local_power:steps=8,schedule=halving; by default "
        f"{_names(METHODS_SHOWN)}")  # fmt: skip
    add("--tol", type=float, default=1e-6, metavar="SINE", help="angle to reach (1e-6)")
    add("--max-rounds", type=int, default=100, metavar="N", help="rounds at most (100)")
    _add_columns(command)
    _add_shards(command, command)
    command.rare(command, "--engine", default="threads", metavar="NAME",
                 help="threads, processes:4, inline")  # fmt: skip
    command.rare(command, "--seed", type=int, default=0, metavar="N",
                 help="of random start and shuffle (0)")  # fmt: skip
    add("--json", action="store_true", help="print JSON instead of a table")
    _add_reading(command)


def _certainty(text: str) -> float | str:
    try:
        return text if text == "proven" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is a chance to be wrong, such as 1e-6, or proven"
        ) from None


def _latency(text: str) -> float | str:
    try:
        return text if text in NETWORKS else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give seconds, or one of {_names(map(repr, NETWORKS))}"
        ) from None


def _add_study(commands: Any) -> None:
    command = _command(
        commands,
        "reproduce",
        reproduce,
        "run the paper's evaluation: every table and figure",
        "reproduce table-final figure-2a --data-dir ~/libsvm",
        usage="[ITEM ...] [options]",
    )
    command.add_argument("items", metavar="ITEM", nargs="*", help="tables and figures (all)")
    command.add_argument("-o", "--output", default="build/paper", metavar="FOLDER",
        help="where results, figures and page go (build/paper); what is there is kept")  # fmt: skip
    command.add_argument("--data-dir", metavar="FOLDER", help=WHERE)
    command.add_argument("--list", action="store_true", help="list the items")

    data = _command(
        commands,
        "data",
        None,
        "the paper's data sets: which are here, where to get the others",
        "data list",
    )
    actions = data.add_subparsers(required=True, metavar="ACTION", prog="localpower data")
    for name, function, what in (
        ("list", data_list, "all sets, and where they are"),
        ("info", data_info, "one set: size, address, checksum, deviations"),
        ("path", data_path, "the path of a set, for scripts"),
        ("get", data_get, "download a set from where LIBSVM publishes it"),
    ):
        example = f"data {name}{'' if name == 'list' else ' a9a'}"
        action = _command(actions, name, function, what, example)
        if name != "list":
            action.add_argument("name", metavar="NAME", help="a name that `data list` shows")
        action.add_argument("--data-dir", metavar="FOLDER", help=WHERE)


def _add_rank(command: Any) -> None:
    add = command.add_argument
    add("-k", "--rank", type=_number, required=True, metavar="K", help="number of components")


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


def _add_grid(add: Any) -> None:
    add("--grid", type=_grid, metavar="RxC", help="columns are pixels of images, as 8x8")


def _add_reading(command: Parser, data: str = "data") -> None:
    """Add the files, and the options of reading them."""
    command.add_argument("--help-all", action=HelpAll, nargs=0, help="show all options and exit")
    group = command.add_argument_group("reading")
    add, rare = group.add_argument, command.rare
    add(
        data,
        metavar="DATA",
        nargs="+",
        help="csv, tsv, npy, npz, svmlight, parquet, arrow, zarr, hdf5; of a folder or a glob each "
        "file is a shard"
        if data == "data"
        else "the rows that were fitted, as fit takes them",
    )
    names: Any = {"type": lambda text: text.split(","), "metavar": "A,B", "action": Extend}
    add("--drop", help="columns to leave out, by names or numbers (from 0)", **names)
    add("--columns", help="columns to take", **names)
    add("--label", metavar="A", help="column that is no feature but a label")
    add("--memory", metavar="SIZE", help="what rows may take, as 2GB (half of what is free)")
    rare(group, "--header", action=argparse.BooleanOptionalAction,
         help="whether the first line of text is names (found out)")  # fmt: skip
    rare(group, "--delimiter", metavar="C", help="what separates fields of text (found out)")
    rare(group, "--missing", choices=["drop"], metavar="HOW",
         help="drop: leave out rows of text in which a value is missing")  # fmt: skip
    rare(group, "--key", metavar="NAME", help="which array of an HDF5, Zarr or npz file")
    rare(group, "--dtype", choices=["float32", "float64"], metavar="T", help="float32 or float64")
    rare(group, "--cache", metavar="FOLDER", help="keep what was parsed here for the next time")


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 1 or more")
    return int(text)


def _grid(text: str) -> tuple[int, int]:
    shape = re.fullmatch(r"(\d+)x(\d+)", text)
    if shape is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give rows and columns of a picture, as 8x8")
    return int(shape[1]), int(shape[2])


def _names(known: Any) -> str:
    return ", ".join(known)


def _schedule(text: str) -> str | set[int]:
    return {int(time) for time in text.split(",")} if "," in text else text


def entry() -> NoReturn:
    """Run as a program."""
    sys.exit(main())
