"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from shlex import join
from typing import Any, NoReturn

import numpy as np

from localpower.api import svd
from localpower.cli.federation import add_federation, check_at_sites
from localpower.cli.options import (
    READING,
    Parser,
    add_compare,
    add_fit,
    add_model,
    add_plan,
    as_cli_wording,
    read_as_before,
    reading_of,
)
from localpower.cli.paper import add_paper
from localpower.cli.ranks import RANK, by_one_rank, led, rank_and_size, take_own_files
from localpower.cli.table import Table, discard_output
from localpower.comparison import compare
from localpower.core.checks import sine
from localpower.core.errors import DataHint, LocalPowerError, warn
from localpower.core.files import check_writable
from localpower.data.source import Source, files, open_source
from localpower.engines.registry import connect, holds_rows
from localpower.engines.signals import terminable
from localpower.methods import method_from
from localpower.options import Checkpoint
from localpower.planning import plan
from localpower.progress import Progress, is_terminal
from localpower.result import ARRAYS, RUN, Result, model_folder
from localpower.scores import write_scores
from localpower.scores.writers import kind_of
from localpower.show.figures import picture_path
from localpower.show.report import page_path
from localpower.version import __version__

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = make_parser()
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
        discard_output()
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
    if holds_rows(options.engine):
        _fit_at_sites(options)
        return
    if not options.data:
        raise ValueError("DATA is missing: name files, or an --engine that has its own rows")
    number, size = rank_and_size()
    if number == "0" and size != "1":
        hint = "each rank of this MPI job fits all rows alone; to share the work, add --engine mpi"
        warn(f"{hint}, or give each rank its own file, as in rows-{RANK}.npy", DataHint)
    _check(options)
    with Progress() as display, _rows(options, display) as rows:
        result = _saved(_fit(options, rows, options.engine, display), options)
        if options.report is not None:
            display.stage("writing the page")
            shown = None if options.privacy else rows
            result.report(options.report, shown, grid=options.grid)
    _tell(result, options)


def _fit_at_sites(options: argparse.Namespace) -> None:
    """Fit rows that stay where they are, at the sites of a federation."""
    check_at_sites(options)
    _check(options)
    with connect(options.engine) as engine, Progress() as display:
        result = _saved(_fit(options, "sites", engine, display), options)
        if options.report is not None:
            result.report(options.report, grid=options.grid)
    _tell(result, options)


def _fit_on_ranks(options: argparse.Namespace) -> None:
    """Fit as one rank of an MPI job: with files of its own, or with those that rank 0 spreads."""
    paths = options.data
    own = any(RANK in path for path in paths)
    with connect("mpi" if own and options.engine == "threads" else options.engine) as engine:
        rank = getattr(engine, "rank", None)
        if own and (rank is None or engine.size == 1):
            raise ValueError(
                f"{RANK} in a path stands for the rank in an MPI job: start it with mpiexec -n 4 "
                "localpower fit, without another --engine"
            )
        if rank:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        else:
            _check(options)

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
        result = _saved(result, options)
        if options.report is not None:
            result.report(options.report, grid=options.grid)
        _tell(result, options)


def _fit(options: argparse.Namespace, rows: Any, engine: Any, progress: Progress | None) -> Result:
    progress = progress or Progress()
    table = Table(sys.stderr if options.json else sys.stdout, options.json, progress)
    checkpoint = None
    if options.checkpoint is not None:
        checkpoint = Checkpoint(options.checkpoint, options.every, options.resume)
    result = svd(
        rows,
        options.rank,
        options.method,
        tol=options.tol,
        certainty=options.certainty,
        max_rounds=options.max_rounds,
        budget=options.budget,
        center=options.center,
        scale=options.scale,
        privacy=options.privacy,
        workers=options.workers,
        partition=options.partition,
        engine=engine,
        faults=options.faults,
        checkpoint=checkpoint,
        rng=options.seed,
        callback=table if options.privacy is None else None,
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


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot be done, or written to, before rows are read."""
    method_from(options.method)
    if options.tol is not None:
        sine(options.tol)
    if options.resume and options.checkpoint is None:
        raise ValueError("--resume needs --checkpoint FILE, the file to resume from")
    if options.output is not None:
        folder = model_folder(options.output)
        for name in (ARRAYS, RUN):
            _refuse_as_data(folder / name, options.data)
        check_writable(folder / ARRAYS, f"-o {folder}")
    if options.report is not None:
        page = page_path(options.report)
        _refuse_as_data(page, options.data, "--report")
        check_writable(page, f"--report {page}")
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
            raise ValueError(f"{option} {output} is also DATA; give it another name")
        if any(path.exists() and output.samefile(path) for path in found or ()):
            raise ValueError(
                f"{option} {output} exists already, and {given} includes it as DATA; delete it if "
                "an earlier run wrote it, or give a name that DATA does not include"
            )


def _saved(result: Result, options: argparse.Namespace) -> Result:
    """Write the model at once: what comes after it, such as the page, may fail."""
    if options.output is not None:
        how = {name: getattr(options, name) for name in READING}
        how = {name: given for name, given in how.items() if given is not None}
        result = replace(result, run={**result.run, "reading": how} if how else result.run)
        result.save(options.output)
    return result


def _tell(result: Result, options: argparse.Namespace) -> None:
    _show(result, options.json, options.output)
    shown = options.json or options.report is not None or not is_terminal(sys.stdout)
    if options.output is not None and not shown:
        data = ["--data", *options.data] if options.data else []
        names = join([options.output, *data, "-o", "run.html"])
        print(f"see it: localpower report {names}")


def transform(options: argparse.Namespace) -> None:
    """``localpower transform``."""
    if not take_own_files(options):
        return
    output = Path(options.output)
    kind_of(output)
    _refuse_as_data(output, options.data)
    model = _model(options)
    with ExitStack() as stack:
        display = stack.enter_context(Progress())
        data: Any = options.data[0] if len(options.data) == 1 else options.data
        if options.cache is not None:
            data = stack.enter_context(_rows(options, display, model))
        display.stage("projecting rows")
        keep, memory = options.keep or (), options.memory
        done = write_scores(model, data, output, reading_of(options), keep=keep, memory=memory)
    print(done.told(len(model.components)))


def _model(options: argparse.Namespace) -> Result:
    """Read a model; rows are read as they were for it, where nothing else is asked for."""
    model = Result.load(options.model)
    read_as_before(model.run.get("reading", {}), options)
    return model


def _rows(options: argparse.Namespace, display: Progress, model: Result | None = None) -> Source:
    """Open the files that were named, with the options of reading; of a model, its columns."""
    display.stage(f"reading {Path(options.data[0]).name}{' ...' * (len(options.data) > 1)}")
    reading, width = reading_of(options), 0
    if model is not None:
        width = model.components.shape[1]
        reading = replace(reading, width=width, means=model.mean)
    return open_source(
        options.data[0] if len(options.data) == 1 else options.data,
        width,
        reading,
        options.memory,
        options.cache,
        like=None if model is None else model.run.get("names"),
    )


@led
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
        "engine": options.engine,
        "measure": options.measure,
    }
    if shape is not None:
        for name in (*READING, "cache"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"--{name} is for reading files, but {shape[0]} is a shape; leave it out"
                )
        how |= {"dtype": options.dtype, "memory": options.memory}
        print(plan((int(shape[1]), int(shape[2])), options.rank, **how))
        return
    with Progress() as display, _rows(options, display) as rows:
        display.stage("planning")
        found = plan(rows, options.rank, **how)
    print(found)


@by_one_rank
def compare_(options: argparse.Namespace) -> None:
    """``localpower compare``."""
    if options.engine.partition(":")[0] == "mpi":
        raise ValueError(
            "--engine mpi: all ranks would read the same rows; compare in one process, or call "
            "localpower.compare on the ranks, each with its own rows"
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


@by_one_rank
def report(options: argparse.Namespace) -> None:
    """``localpower report``."""
    target = page_path(options.output)
    _refuse_as_data(target, options.data or ())
    label, model = options.label, _model(options)
    with ExitStack() as stack:
        rows = None
        if options.data:
            display = stack.enter_context(Progress())
            rows = stack.enter_context(_rows(options, display, model))
            if label is not None and rows.labels is None:
                raise ValueError(f"label={label!r}: DATA has no such column; name one that it has")
            display.stage("writing the page")
        model.report(target, rows, grid=options.grid)
    print(f"-> {target}")


def inspect(options: argparse.Namespace) -> None:
    """``localpower inspect``."""
    _show(Result.load(options.model), options.json, None)


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


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); use more and smaller shards, or fewer workers"
    return as_cli_wording(str(error))


def _warn(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    start = "\r\x1b[K" if is_terminal(sys.stderr) else ""  # where a line of progress may stand
    print(f"{start}localpower: note: {as_cli_wording(str(message))}", file=sys.stderr)


def _complain(reason: str, status: int) -> int:
    print(f"localpower: {reason}", file=sys.stderr)
    return status


def make_parser() -> Parser:
    """Make the parser of all commands."""
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
    add_fit(commands, fit)
    add_model(commands, transform, inspect, report)
    add_plan(commands, plan_)
    add_compare(commands, compare_)
    add_paper(commands)
    add_federation(commands)
    return parser


def entry() -> NoReturn:
    """Run as a program."""
    sys.exit(main())
