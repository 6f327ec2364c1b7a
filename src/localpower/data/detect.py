"""The formats of files: one table, how files are told apart, and a way to add a format."""

from __future__ import annotations

import errno
import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpower.core.errors import DataError, MissingExtra
from localpower.data.blocks import Block, Options
from localpower.data.readers.arrow import read_arrow, read_parquet
from localpower.data.readers.csv import read_csv
from localpower.data.readers.foreign import refuse_file
from localpower.data.readers.hdf5 import place_hdf5, read_hdf5
from localpower.data.readers.npy import place_npy, place_npz
from localpower.data.readers.stream import stream_blocks
from localpower.data.readers.svmlight import read_svmlight
from localpower.data.readers.text import read_chunks
from localpower.data.readers.zarr import read_zarr
from localpower.data.spool import RowStorage

PACKED = {".gz", ".bz2", ".xz"}
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
SAMPLE = 20  # lines that tell what a text is
SVMLIGHT = re.compile(rb"^(\S+\s+)?(qid:\d+\s+)?\d+:\S")


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files, and how it is read.

    `read` yields blocks of rows. `place`, if there is one, is asked first: it says where the rows
    stand in the file as raw numbers, or None if they do not. Files are told by what they start
    with, `magic`; without it by their suffix, and `text` also by what is in it. A folder that has
    one of the files in `folder` is a single table. `library` is what `extra` installs.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Path, Options], Iterable[Block]] | None = None
    place: Callable[[Path, Options, RowStorage], Any] | None = None
    magic: tuple[bytes, ...] = ()
    folder: tuple[str, ...] = ()
    library: str = ""
    extra: str = ""
    text: bool = False

    def open(self, path: Path, options: Options, room: RowStorage) -> Any:
        """Return rows where they stand, as one piece, or an iterator of blocks."""
        try:
            importlib.import_module(self.library or "numpy")
        except ImportError as error:
            raise MissingExtra(f"reading {self.name}", self.extra) from error
        piece = None if self.place is None else self.place(path, options, room)
        if piece is not None or self.read is None:
            return piece
        return iter(self.read(path, options))


_TABLE = (
    Format("npy", (".npy",), place=place_npy, magic=(b"\x93NUMPY",)),
    Format("npz", (".npz",), place=place_npz, magic=ZIP),
    Format("parquet", (".parquet", ".pq"), read_parquet, magic=(b"PAR1",), library="pyarrow",
           extra="parquet"),
    Format("arrow", (".arrow", ".arrows", ".feather", ".ipc"), read_arrow,
           magic=(b"ARROW1", b"\xff\xff\xff\xff"), library="pyarrow", extra="parquet"),
    Format("hdf5", (".h5", ".hdf5", ".h5ad"), read_hdf5, place_hdf5, (b"\x89HDF\r\n\x1a\n",),
           library="h5py", extra="hdf5"),
    Format("zarr", (".zarr",), read_zarr, magic=ZIP, folder=("zarr.json", ".zarray", ".zgroup"),
           library="zarr", extra="zarr"),
    Format("csv", (".csv", ".tsv"), read_csv, text=True),
    Format("svmlight", (".svm", ".svmlight", ".libsvm"), read_svmlight, text=True),
)  # fmt: skip
FORMATS = {form.name: form for form in _TABLE}


def register(
    name: str,
    suffixes: Sequence[str],
    read: Callable[[Path], Iterable[Any]],
    *,
    magic: Sequence[bytes] = (),
) -> None:
    r"""Add a format of files, for `read`, `svd` and all else that takes paths.

    Parameters
    ----------
    name : str
        What the format is called; one that was registered before is replaced.
    suffixes : sequence of str
        How names of its files end, such as ``[".toy"]``.
    read : callable
        A generator: called with the path, it yields the rows in blocks, each an array, a scipy
        sparse matrix, a data frame, or a `localpower.data.Block` with labels and names of columns.
    magic : sequence of bytes, optional
        What its files start with. By default the suffix alone tells.

    Examples
    --------
    >>> import localpower as lp, numpy as np, pathlib, tempfile
    >>> def read_toy(path):
    ...     for line in path.read_text().splitlines():
    ...         yield np.array([[float(word) for word in line.split("/")]])
    >>> lp.data.register("toy", [".toy"], read_toy)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "rows.toy")
    ...     _ = path.write_text("3/0\n0/4\n")
    ...     lp.svd(path, 1, rng=0).singular_values
    array([4.])
    """
    if name in _BUILT_IN:
        raise ValueError(f"name={name!r} is the name of a known format; take another name")
    given = tuple(suffix.lower() for suffix in suffixes)
    for suffix in given:
        if not re.fullmatch(r"\.[^./\\]+", suffix) or suffix in PACKED:
            raise ValueError(f"suffixes has {suffix!r}: give a dot and what follows, as '.toy'")
        if (taken := _by_suffix(suffix)) is not None and taken.name != name:
            raise ValueError(f"suffixes has {suffix!r}, which is {taken.name}; take another")

    def blocks(path: Path, options: Options) -> Iterator[Block]:
        return stream_blocks(read(path), str(path), options)

    FORMATS[name] = Format(name, given, blocks, magic=tuple(magic))


_BUILT_IN = frozenset(FORMATS)


def detect(path: Path) -> Format:
    """Tell what a file is by what it starts with; text, and what has no magic, by its name."""
    if path.is_dir():
        return next(form for form in FORMATS.values() if form.folder)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, _why_not_there(path), str(path))
    if not path.is_file():
        raise DataError(f"{path} is not a regular file; write its content to one first")
    suffix = suffix_of(path)
    named = _by_suffix(suffix)
    if named is not None and not named.magic and not named.text:
        return named
    with open(path, "rb") as stream:
        start = stream.read(4096)
    alike = [form for form in FORMATS.values() if start.startswith(form.magic)]
    if not alike or start.startswith(ZIP):  # spreadsheets are zip files, too
        refuse_file(path, suffix, start)
    if alike:
        return named if named in alike else alike[0]
    if named is not None and named.magic:
        raise DataError(
            f"{path}: not a {suffix} file, it starts with {start[:8]!r}; write it again, or "
            "give text another suffix"
        )
    return named or FORMATS[_kind_of_text(path)]


def suffix_of(path: Path) -> str:
    """How the name ends; of a packed file, before that."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


def known_suffixes() -> list[str]:
    """Suffixes of all formats."""
    return [suffix for form in FORMATS.values() for suffix in form.suffixes]


def is_single_table(folder: Path) -> bool:
    """Tell a folder that is one table, as of Zarr, from one that holds files."""
    return any((folder / name).exists() for form in FORMATS.values() for name in form.folder)


def _by_suffix(suffix: str) -> Format | None:
    return next((form for form in FORMATS.values() if suffix in form.suffixes), None)


def _why_not_there(path: Path) -> str:
    reason = os.strerror(errno.ENOENT)
    if path.parts[:1] and path.parts[0].startswith("~"):
        return f"{reason}; write out what ~ stands for, as with os.path.expanduser"
    start = "" if path.is_absolute() else f", which starts from {os.getcwd()}"
    return f"{reason}; check the path{start}"


def _kind_of_text(path: Path) -> str:
    """Tell svmlight text, which has colons or nothing but a label, from tables."""
    with closing(read_chunks(path)) as chunks:
        lines = next(chunks).data.split(b"\n", SAMPLE)[:SAMPLE]
    lines = [line for line in lines if line.strip() and not line.startswith(b"#")]
    if any(SVMLIGHT.match(line) for line in lines):
        return "svmlight"
    several = any(len(re.split(rb"[\s,;|]+", line.strip())) > 1 for line in lines)
    return "csv" if several else "svmlight"
