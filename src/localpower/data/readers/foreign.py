"""What kind of thing is given as data; what is none, and how to make some of it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.data.readers.frames import is_frame

ROWS = "give an array, a data frame, the path of a file, or a list of such"
EXCEL = "open it with pandas.read_excel, and give the frame; or save it as CSV"
FRAME = "open it with pandas.{}, and give the frame"
FILES = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), ("a spreadsheet", EXCEL)),
    ".json": ("JSON", FRAME.format("read_json")),
    **dict.fromkeys((".jsonl", ".ndjson"), ("JSON", FRAME.format("read_json(…, lines=True)"))),
    ".xml": ("XML", FRAME.format("read_xml")),
    **dict.fromkeys((".html", ".htm"), ("HTML", FRAME.format("read_html"))),
    ".dta": ("a file of Stata", FRAME.format("read_stata")),
    **dict.fromkeys((".sas7bdat", ".xpt"), ("a file of SAS", FRAME.format("read_sas"))),
    ".sav": ("a file of SPSS", FRAME.format("read_spss")),
    ".orc": ("ORC", FRAME.format("read_orc")),
    ".avro": ("Avro", "read it with its own library, and give the rows as a data frame"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), ("a data base", FRAME.format("read_sql"))),
    ".mat": ("a file of MATLAB", "open it with scipy.io.loadmat, and give the matrix in it"),
    **dict.fromkeys(
        (".pkl", ".pickle", ".joblib", ".pt", ".pth"),
        ("a pickle", "it can run code when it is opened: do so yourself if you know who wrote it, "
         "and give the array or frame in it"),
    ),
    **dict.fromkeys((".rds", ".rdata"), ("a file of R", "save it from R as CSV or Parquet")),
    ".mtx": ("a file of Matrix Market", "open it with scipy.io.mmread, and give the matrix"),
    ".pdf": ("a PDF", "give the file that its tables are from"),
}  # fmt: skip
CLUSTERS = {
    "dask": "dask",
    "dask_expr": "dask",
    "distributed": "dask",
    "ray": "ray",
    "pyspark": "spark",
}  # packages whose data an engine can work on where they are
ALWAYS = {".pkl", ".pickle", ".joblib"}  # also where they are text
MARKUP = b"{", b"[", b"<", b"%%MatrixMarket"


def is_list_of_blocks(data: Any) -> bool:
    """Tell a list of matrices or paths from a matrix written as a list of rows."""
    return isinstance(data, list | tuple) and any(
        is_path(block) or is_frame(block) or getattr(block, "ndim", 0) == 2 for block in data
    )


def is_path(data: Any) -> bool:
    """Tell a path from data."""
    return isinstance(data, str | os.PathLike)


def is_stream(data: Any) -> bool:
    """Tell a generator or another iterable of blocks from a matrix."""
    known = isinstance(data, list | tuple | np.ndarray | Mapping | bytes) or is_path(data)
    array = any(hasattr(data, name) for name in ("__array__", "tocsr", "__array_interface__"))
    return not known and not array and not is_frame(data) and isinstance(data, Iterable)


def is_remote(data: Any) -> bool:
    """Tell what belongs to a cluster, or a list that begins with such."""
    return engine_of(data) is not None


def engine_of(data: Any) -> str | None:
    """Name the engine that data belong to, or a list that begins with such; None if to none."""
    parts = data[:1] if isinstance(data, list | tuple) else [data]
    return next((CLUSTERS.get(_package(part)) for part in parts), None)


def _package(part: Any) -> str:
    return type(part).__module__.partition(".")[0]


def refuse_remote(data: Any) -> None:
    """Refuse what cannot be read here, but where it is."""
    for part in data if isinstance(data, list | tuple) else [data]:
        if (package := _package(part)) in CLUSTERS and not is_frame(part):
            raise DataError(
                f"data has a {type(part).__name__} of {package}, which is read where it is: give "
                f"engine={CLUSTERS[package]!r} or what it belongs to, and in a list all of one "
                "kind. What takes no engine= takes some rows, as an array or a frame of pandas"
            )


def refuse_file(path: Path, suffix: str, start: bytes) -> None:
    """Refuse a file of a kind that others read, by its name, unless its start is plain text."""
    if suffix not in FILES:
        return
    binary = b"\0" in start or start.startswith((b"PK", b"\x80", b"\xd0\xcf", b"%PDF", b"ORC"))
    if binary or suffix in ALWAYS or start.lstrip().startswith(MARKUP):
        what, remedy = FILES[suffix]
        raise DataError(f"{path} is {what}, which cannot be read; {remedy}")


def refuse_object(data: Any, name: str) -> None:
    """Refuse what holds no rows, or not in a form in which they can be told."""
    if (reason := _reason(data)) is not None:
        raise DataError(f"{name} {reason}")


def _reason(data: Any) -> str | None:
    kind = type(data).__name__
    if data is None:
        return f"is None, not rows; {ROWS}"
    if isinstance(data, str):
        return _text(data)
    if isinstance(data, Mapping) and not hasattr(data, "tocsr"):
        keys = ", ".join(repr(key) for key in list(data)[:5]) + ", …" * (len(data) > 5)
        if kind in ("NpzFile", "File", "Group"):
            return f"is a {kind} with {keys or 'nothing'}; give one array of it, as data[name]"
        return (
            f"is a {kind} of {keys or 'nothing'}, not rows; give pandas.DataFrame(data) if it "
            "holds columns, or list(data.values()) if it holds shards"
        )
    if isinstance(data, bytes | bytearray):
        return (
            f"is {kind}, not rows; write them to a file and give its path, or make an array of "
            "them, as with numpy.frombuffer"
        )
    if isinstance(data, set | frozenset):
        return f"is a {kind}, which has no order; give a list"
    if any(isinstance(stream, io.IOBase) for stream in (data, getattr(data, "file", None))):
        return f"is an open file ({kind}); give its path, or the data frame that pandas reads of it"
    if isinstance(data, list | tuple) and data and all(isinstance(row, Mapping) for row in data):
        return f"is a {kind} of {type(data[0]).__name__}; give pandas.DataFrame(data)"
    if hasattr(type(data), "to_frame"):
        return f"is a single column ({kind}); give data.to_frame()"
    return None


def _text(path: str) -> str | None:
    if not path:
        return f"is an empty text, not a path; {ROWS}"
    if "\n" in path:
        return "is text of several lines, not a path; write it to a file and give its path"
    if "://" in path:
        return f"is an address, {path:.200}, and files are read here only; download it first"
    return None
