"""The commands `reproduce` and `data`: the paper's evaluation and its data sets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from localpower.cli.options import WHERE, add_command
from localpower.core.errors import DataError
from localpower.core.text import size
from localpower.paper import datasets
from localpower.progress import Line


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
    for name, known in datasets.DATA_SETS.items():
        path = datasets.find(name, options.data_dir)
        where = path or f"missing: localpower data get {name}"
        print(f"{name:<10} {known.rows:>7} {known.columns:>7}  {where}")


def data_info(options: argparse.Namespace) -> None:
    """``localpower data info``."""
    known = datasets.data_set(options.name)
    path = datasets.find(options.name, options.data_dir)
    print(f"{known.title}: {known.rows} x {known.columns} in the paper")
    print(f"published at {known.url}")
    if known.note:
        print(f"note: {known.note}")
    if path is None:
        print(f"missing; looked in {', '.join(map(str, datasets.search_path(options.data_dir)))}")
    else:
        print(f"found at {path}, {size(path.stat().st_size)}, sha256 {datasets.sha256(path)}")


def data_path(options: argparse.Namespace) -> None:
    """``localpower data path``."""
    path = datasets.find(options.name, options.data_dir)
    if path is None:
        raise DataError(datasets.how_to_get(options.name))
    print(datasets.verify(path))


def data_get(options: argparse.Namespace) -> None:
    """``localpower data get``."""
    line = Line(sys.stderr)

    def progress(done: int, total: int | None) -> None:
        if line.live:
            line.show(f"{size(done)} of {size(total) if total else 'unknown size'}")

    folder = None if options.data_dir is None else Path(options.data_dir)
    path = datasets.download(options.name, folder, progress)
    line.erase()
    print(path)


def add_paper(commands: Any) -> None:
    """Add ``reproduce`` and ``data``."""
    command = add_command(
        commands,
        "reproduce",
        reproduce,
        "run the paper's evaluation: every table and figure",
        "reproduce table-final figure-2a --data-dir ~/libsvm",
        usage="[ITEM ...] [options]",
    )
    command.add_argument("items", metavar="ITEM", nargs="*", help="tables and figures (all)")
    command.add_argument("-o", "--output", default="build/paper", metavar="FOLDER",
        help="folder for results and figures (build/paper); earlier ones are kept")  # fmt: skip
    command.add_argument("--data-dir", metavar="FOLDER", help=WHERE)
    command.add_argument("--list", action="store_true", help="list the items")

    data = add_command(
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
        ("path", data_path, "print the path of a set, for scripts"),
        ("get", data_get, "download a set from LIBSVM"),
    ):
        example = f"data {name}{'' if name == 'list' else ' a9a'}"
        action = add_command(actions, name, function, what, example)
        if name != "list":
            action.add_argument("name", metavar="NAME", help="a name that `data list` shows")
        action.add_argument("--data-dir", metavar="FOLDER", help=WHERE)
