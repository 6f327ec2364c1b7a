"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

from localpower.api import METHODS, svd
from localpower.comparison import METHODS_SHOWN, compare, picture_path
from localpower.core.alignment import ALIGNMENTS
from localpower.core.errors import DataError, LocalPowerError
from localpower.core.local_power import State
from localpower.core.local_ritz import PROPOSALS
from localpower.core.scaling import SCALES
from localpower.data import registry
from localpower.data.partition import PARTITIONS
from localpower.data.source import Source, read
from localpower.engines.registry import connect
from localpower.planning import FLOPS, NETWORKS, plan, size
from localpower.result import Record, Result, model_folder
from localpower.version import __version__

WHERE = "folder of data sets, before LOCALPOWER_DATA and the user's cache"
FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130
RANK = "{rank}"  # in a path: the number of this process in an MPI job


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
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
    if options.output is not None:
        model_folder(options.output)
    with _rows(options) as rows:
        _keep(_fit(options, rows, options.engine), options)


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
        elif options.output is not None:
            model_folder(options.output)

        def mine(rank: int) -> Source:
            options.data = [path.replace(RANK, str(rank)) for path in paths]
            return _rows(options)

        if own:
            result = _fit(options, mine, engine)
        elif rank:
            engine.serve()  # type: ignore[attr-defined]
            return
        else:
            with _rows(options) as rows:
                result = _fit(options, rows, engine)
    if not rank:
        _keep(result, options)


def _fit(options: argparse.Namespace, rows: Any, engine: Any) -> Result:
    table = Table(sys.stderr if options.json else sys.stdout, quiet=options.json)
    return svd(
        rows,
        options.rank,
        method=options.method,
        steps=options.steps,
        schedule=options.schedule,
        align=options.align,
        align_at=options.align_at,
        proposal=options.proposal,
        width=options.width,
        max_rounds=options.max_rounds,
        max_bytes=options.max_bytes,
        max_seconds=options.max_seconds,
        tol=options.tol,
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
        callback=table.row,
    )


def _keep(result: Result, options: argparse.Namespace) -> None:
    if options.output is not None:
        result.save(options.output)
    _show(result, options.json, options.output)


def transform(options: argparse.Namespace) -> None:
    """``localpower transform``."""
    output = Path(options.output)
    if output.suffix not in (".npy", ".csv"):
        raise ValueError(f"-o {output}: scores are written as .npy or .csv; give such a name")
    if any(output.exists() and output.samefile(path) for path in options.data):
        raise ValueError(f"-o {output} is also DATA; give another name")
    model = Result.load(options.model)
    with _rows(options, n_features=model.components.shape[1]) as rows:
        scores = model.transform(rows)
    if output.suffix == ".npy":
        np.save(output, scores)
    else:
        np.savetxt(output, scores, delimiter=",", fmt="%.17g")
    print(f"{scores.shape[0]} rows on {scores.shape[1]} components -> {output}")


def _rows(options: argparse.Namespace, n_features: int = 0) -> Source:
    """Open the files that were named, with the options of reading."""
    return read(
        options.data[0] if len(options.data) == 1 else options.data,
        columns=options.columns,
        drop=options.drop,
        label=options.label,
        dtype=options.dtype,
        key=options.key,
        n_features=n_features,
        memory=options.memory,
        cache=options.cache,
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
        print(plan((int(shape[1]), int(shape[2])), options.rank, **how))
        return
    with _rows(options) as rows:
        print(plan(rows, options.rank, **how))


def compare_(options: argparse.Namespace) -> None:
    """``localpower compare``."""
    if options.output is not None:
        picture_path(options.output)
    line = Line(sys.stderr)
    try:
        with _rows(options) as rows:
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
                progress=line.show if line.live else None,
            )
    finally:
        if line.live:
            line.show("")
    as_json = {"picture": options.output} | found.as_dict() if options.json else None
    print(found if as_json is None else json.dumps(as_json, indent=1))
    if options.output is not None:
        found.plot(options.output)
        if as_json is None:
            print(f"-> {options.output}")


def inspect(options: argparse.Namespace) -> None:
    """``localpower inspect``."""
    _show(Result.load(options.model), options.json, None)


def reproduce(options: argparse.Namespace) -> None:
    """``localpower reproduce``."""
    from localpower.experiments.reproduce import reproduce as run
    from localpower.experiments.runner import items

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
    line.end()
    print(path)


class Line:
    """Progress: one line that is written over on a terminal, a line each elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self._open = False

    def show(self, text: str) -> None:
        """Show where a long job stands; what is left out or written stays on the screen."""
        lasting = text.startswith(("left out", "->")) or not self.live
        text = text if lasting else text[: shutil.get_terminal_size().columns - 1]
        end = "\n" if lasting else ""
        start = "\r\x1b[K" if self.live else ""
        print(f"{start}{text}", end=end, file=self.stream, flush=True)
        self._open = not lasting

    def end(self) -> None:
        """Leave what is shown and go on to a new line."""
        if self._open:
            print(file=self.stream)
            self._open = False


class Table:
    """The rounds of a run, as they come: in place on a terminal, a line each elsewhere."""

    COLUMNS = f"{'round':>6} {'p':>5} {'up':>10} {'down':>10} {'seconds':>8} {'angle':>8}"
    WINDOW = 12

    def __init__(self, stream: TextIO, quiet: bool) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self.silent = quiet and not self.live
        self.rows: list[str] = []

    def row(self, record: Record, state: State) -> None:
        """Add a round; the callback of `svd`."""
        try:
            if not self.silent:
                self._print(record)
        except BrokenPipeError:  # nobody looks any more; the fit goes on
            self.silent = True
            _discard_output()

    def _print(self, record: Record) -> None:
        if not self.rows:
            print(self.COLUMNS, file=self.stream)
        drawn = min(len(self.rows), self.WINDOW)
        self.rows.append(
            f"{record.round:>6} {record.steps:>5} {size(record.bytes_up):>10} "
            f"{size(record.bytes_down):>10} {record.seconds:>8.3f} {_angle(record):>8}"
        )
        if self.live and drawn == self.WINDOW:  # redraw the window one row further on
            window = "\n".join(f"\x1b[K{row}" for row in self.rows[-self.WINDOW :])
            print(f"\x1b[{drawn}A{window}", file=self.stream, flush=True)
        else:
            print(self.rows[-1], file=self.stream, flush=True)


def _show(result: Result, as_json: bool, path: str | None) -> None:
    if as_json:
        print(json.dumps(_summary(result, path), indent=1))
        return
    run, ledger = result.run, result.ledger
    print(
        f"{run['method']}: rank {run['rank']} of {run['rows']} x {run['columns']} {run['dtype']} "
        f"in {run['workers']} shards, {len(result.history)} rounds, seed {run['seed']}"
    )
    print(
        f"moved {size(ledger.bytes_up)} up and {size(ledger.bytes_down)} down in "
        f"{ledger.messages} messages, set-up and factors included"
    )
    print(_certificate(result))
    if run.get("why", "asked for") != "asked for":
        print(f"chosen: {run['why']}")
    print(f"{'component':>9} {'singular value':>16} {'explained':>10}")
    pairs = zip(result.singular_values, result.explained_variance_ratio, strict=True)
    for number, (value, ratio) in enumerate(pairs, start=1):
        print(f"{number:>9} {value:>16.8g} {ratio:>10.2%}")
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


def _certificate(result: Result) -> str:
    """Say what is known of the answer."""
    last = result.history[-1]
    if result.reason == "exact":
        return "exact, up to rounding"
    if result.reason == "degraded":
        lost = result.run["degraded"]
        rows = sum(part["rows"] for part in lost)
        return f"without {rows} rows: shards {[part['shard'] for part in lost]} were lost"
    if last.angle is None:
        return f"not certified (ended by {result.reason}); give --tol"
    sure = "proven" if last.rigorous else "unless the random start missed something"
    state = "converged" if result.converged else f"not converged ({result.reason})"
    return f"{state}: sine of the angle to the answer at most {last.angle:.1e}, {sure}"


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); use more and smaller shards, or fewer workers"
    return str(error)


def _warn(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    print(f"localpower: note: {message}", file=sys.stderr)


def _complain(reason: str, status: int) -> int:
    print(f"localpower: {reason}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="localpower",
        description="Truncated SVD and PCA of rows on many workers, with little communication.",
        epilog="example: localpower fit rows.npy -k 5 --center -o model",
    )
    parser.add_argument("--version", action="version", version=f"localpower {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_fit(commands)
    _add_plan(commands)
    _add_compare(commands)
    _add_study(commands)

    command = commands.add_parser(
        "transform",
        help="project rows on the components of a model",
        usage="localpower transform MODEL DATA [DATA ...] -o FILE [options]",
        description="example: localpower transform model rows.npy -o scores.npy",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    _add_reading(command)
    command.add_argument("-o", "--output", required=True, metavar="FILE", help=".npy or .csv")
    command.set_defaults(command=transform)

    command = commands.add_parser(
        "inspect",
        help="show what a model is and how it came about",
        description="example: localpower inspect model",
    )
    command.add_argument("model", metavar="MODEL", help="directory that fit wrote")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(command=inspect)
    return parser


def _add_fit(commands: Any) -> None:
    command = commands.add_parser(
        "fit",
        help="factorise rows and write a model",
        usage="localpower fit DATA [DATA ...] -k K [-o MODEL] [options]",
        description="example: localpower fit rows.npy -k 5 --workers 20 -o model",
    )
    _add_reading(command)
    add = command.add_argument
    add("-k", "--rank", type=int, required=True, metavar="K", help="number of components")
    add("-o", "--output", metavar="MODEL", help="directory to write the model to")
    add(
        "--method",
        default="auto",
        choices=["auto", *METHODS],
        metavar="NAME",
        help=f"auto (the cheapest, see plan), {_names(METHODS)}",
    )
    add("-p", "--steps", type=int, metavar="P", help="local steps per round of local_power (4)")
    add("--schedule", type=_schedule, metavar="NAME",
        help="constant, halving, linear, halving:3, adaptive, or times: 0,4,8")  # fmt: skip
    add(
        "--align",
        choices=list(ALIGNMENTS),
        metavar="NAME",
        help=_names(ALIGNMENTS),
    )
    add("--align-at", choices=["server", "worker"], metavar="WHERE",
        help="server, or worker (half the upload)")  # fmt: skip
    add("--proposal", choices=list(PROPOSALS), metavar="NAME",
        help=f"of local_ritz: {_names(PROPOSALS)}")  # fmt: skip
    add("--width", type=int, metavar="R", help="columns that are iterated (K, or K + 5)")
    add("--max-rounds", type=int, default=30, metavar="N", help="rounds at most (30)")
    add("--max-bytes", type=float, metavar="N", help="stop after so many were moved")
    add("--max-seconds", type=float, metavar="S", help="stop after so long")
    add("--tol", type=float, metavar="SINE",
        help="stop when the angle is certified to be less (auto 1e-8, else 0)")  # fmt: skip
    add("--checkpoint", metavar="FILE", help="write the state here after every round")
    add("--resume", action="store_true", help="go on from the checkpoint if it is there")
    add("-m", "--workers", type=int, metavar="M", help="cut the rows into M shards")
    add("--partition", default="contiguous", metavar="HOW",
        help=f"{_names(PARTITIONS)}:0.5")  # fmt: skip
    add("--shuffle", action="store_true", help="short for --partition shuffled")
    add("--engine", default="threads", metavar="NAME",
        help="threads, processes:4, dask, ray, spark, mpi")  # fmt: skip
    add("--deadline", type=float, metavar="SECONDS", help="that a round may take")
    add("--on-loss", choices=("stop", "degrade"), default="stop", metavar="HOW",
        help="of shards: stop (default), degrade")  # fmt: skip
    add("--center", action="store_true", help="subtract the mean: PCA")
    add("--scale", choices=list(SCALES), metavar="NAME", help=_names(SCALES))
    add("--seed", type=int, metavar="N", help="seed of the random start and shuffle")
    add("--json", action="store_true", help="print JSON instead of tables")
    command.set_defaults(command=fit)


def _add_plan(commands: Any) -> None:
    command = commands.add_parser(
        "plan",
        help="what each method would cost, before anything is run",
        usage="localpower plan DATA|NxD -k K [options]",
        description="example: localpower plan 1000000x5000 -k 10 -m 100 --latency 'wide area'",
    )
    _add_reading(command)
    add = command.add_argument
    add("-k", "--rank", type=int, required=True, metavar="K", help="number of components")
    add("-m", "--workers", type=int, metavar="M", help="in how many shards the rows are")
    add("--tol", type=float, metavar="SINE", help="angle to reach (1e-8)")
    add("--width", type=int, metavar="R", help="columns that are iterated (K + 5)")
    add("--latency", type=_latency, default="data centre", metavar="SECONDS",
        help=f"of a hop; or {_names(NETWORKS)}")  # fmt: skip
    add("--bandwidth", type=float, metavar="RATE", help="bytes a second")
    add("--flops", type=float, default=FLOPS, metavar="RATE", help=f"of one worker ({FLOPS:.0e})")
    add("--center", action="store_true", help="subtract the mean: PCA")
    add("--scale", choices=list(SCALES), metavar="NAME", help=_names(SCALES))
    command.set_defaults(command=plan_)


def _add_compare(commands: Any) -> None:
    command = commands.add_parser(
        "compare",
        help="run the methods on the same rows: a table and a picture",
        usage="localpower compare DATA [DATA ...] -k K [-o FILE] [options]",
        description="example: localpower compare rows.npy -k 5 --methods local_ritz,dpi -o c.png",
    )
    _add_reading(command)
    add = command.add_argument
    add("-k", "--rank", type=int, required=True, metavar="K", help="number of components")
    add("-m", "--workers", type=int, metavar="M", help="cut the rows into M shards")
    add("--methods", default=METHODS_SHOWN, metavar="A,B",
        help="also with options, as local_power:steps=8,schedule=halving; by default "
        f"{_names(METHODS_SHOWN)}")  # fmt: skip
    add("--tol", type=float, default=1e-6, metavar="SINE", help="angle to reach (1e-6)")
    add("--max-rounds", type=int, default=100, metavar="N", help="rounds at most (100)")
    add("--center", action="store_true", help="subtract the mean: PCA")
    add("--scale", choices=list(SCALES), metavar="NAME", help=_names(SCALES))
    add("--partition", default="contiguous", metavar="HOW",
        help=f"{_names(PARTITIONS)}:0.5")  # fmt: skip
    add("--engine", default="threads", metavar="NAME", help="threads, processes:4, inline")
    add("--seed", type=int, default=0, metavar="N", help="of random start and shuffle (0)")
    add("-o", "--output", metavar="FILE", help="draw the angles, as .png or .svg")
    add("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(command=compare_)


def _latency(text: str) -> float | str:
    return text if text in NETWORKS else float(text)


def _add_study(commands: Any) -> None:
    command = commands.add_parser(
        "reproduce",
        help="run the paper's evaluation: every table and figure",
        description="example: localpower reproduce table-final figure-2a --data-dir ~/libsvm",
    )
    command.add_argument("items", metavar="ITEM", nargs="*", help="tables and figures (all)")
    command.add_argument("-o", "--output", default="build/paper", metavar="FOLDER",
        help="where results, figures and page go (build/paper); what is there is kept")  # fmt: skip
    command.add_argument("--data-dir", metavar="FOLDER", help=WHERE)
    command.add_argument("--list", action="store_true", help="list the items")
    command.set_defaults(command=reproduce)

    data = commands.add_parser(
        "data",
        help="the paper's data sets: which are here, where to get the others",
        description="example: localpower data list",
    )
    actions = data.add_subparsers(required=True, metavar="ACTION")
    for name, function, what in (
        ("list", data_list, "all sets, and where they are"),
        ("info", data_info, "one set: size, address, checksum, deviations"),
        ("path", data_path, "the path of a set, for scripts"),
        ("get", data_get, "download a set from where LIBSVM publishes it"),
    ):
        example = f"example: localpower data {name}{'' if name == 'list' else ' a9a'}"
        action = actions.add_parser(name, help=what, description=example)
        if name != "list":
            action.add_argument("name", metavar="NAME", help="a name that `data list` shows")
        action.add_argument("--data-dir", metavar="FOLDER", help=WHERE)
        action.set_defaults(command=function)


def _add_reading(command: Any) -> None:
    """Add the files, and the options of reading them."""
    add = command.add_argument
    add(
        "data",
        metavar="DATA",
        nargs="+",
        help="npy, npz, csv, tsv, svmlight, parquet, arrow, zarr or hdf5; several files, a "
        "directory or a glob are one shard per file",
    )
    names = {"type": lambda text: text.split(","), "metavar": "A,B"}
    add("--columns", help="names or numbers (from 0) of the columns to take", **names)
    add("--drop", help="columns to leave out", **names)
    add("--label", metavar="A", help="column that is no feature but a label")
    add("--key", metavar="NAME", help="which array of an HDF5, Zarr or npz file")
    add("--dtype", choices=["float32", "float64"], metavar="T", help="float32 or float64")
    add("--memory", metavar="SIZE", help="what rows may take, as 2GB (half of what is free)")
    add("--cache", metavar="FOLDER", help="keep what was parsed here for the next time")


def _names(known: Any) -> str:
    return ", ".join(known)


def _schedule(text: str) -> str | set[int]:
    return {int(time) for time in text.split(",")} if "," in text else text


def entry() -> NoReturn:
    """Run as a program."""
    sys.exit(main())
