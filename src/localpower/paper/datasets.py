"""The fifteen LIBSVM data sets of the LocalPower paper: what they are, and where their files are.

Nothing is ever downloaded but by :func:`download`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from localpower.core.errors import DataError
from localpower.core.machine import cache_folder
from localpower.version import __version__

if TYPE_CHECKING:
    import urllib.request
    from http.client import HTTPResponse

LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
VARIABLE = "LOCALPOWER_DATA"
TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 16
CHANGED, BEYOND_END = 412, 416  # answers that mean: a part cannot be continued

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class DataSet:
    """One of the paper's data sets.

    Attributes
    ----------
    name : str
        Our key, as in ``localpower data get NAME``.
    title : str
        The paper's name.
    rows, columns : int
        The size that the paper lists; `note` says where the published file differs.
    url : str
        Where LIBSVM publishes the file.
    files : tuple of str
        File names under which a folder may hold it, the first of them first.
    rounds, figure_rounds : int
        Iterations in the paper's tables of final errors, and in its figures.
    note : str
        How the published file deviates from the paper's listing; empty if it does not.
    """

    name: str
    title: str
    rows: int
    columns: int
    url: str
    files: tuple[str, ...]
    rounds: int
    figure_rounds: int
    note: str

    @property
    def file(self) -> str:
        """Name of LIBSVM's file, which is what a download is saved as."""
        return self.url.rpartition("/")[2]


def _entry(
    name: str,
    title: str,
    shape: tuple[int, int],
    path: str,
    rounds: tuple[int, int],
    note: str = "",
) -> DataSet:
    stem = path.rpartition("/")[2].removesuffix(".bz2")
    texts = (stem, f"{stem}.bz2", f"{stem}.gz", f"{stem}.txt", f"{name}.txt")
    files = tuple(dict.fromkeys((f"{name}.npz", *texts)))  # dict: each once, in order
    return DataSet(name, title, *shape, f"{LIBSVM}/{path}", files, *rounds, note)


_ENTRIES = (
    _entry("a9a", "A9a", (32561, 123), "binary/a9a", (30, 30)),
    _entry("abalone", "Abalone", (2114, 8), "regression/abalone", (15, 20),
           note="the full set has 4177 rows, the paper lists 2114"),
    _entry("acoustic", "Acoustic", (78823, 50), "multiclass/vehicle/acoustic.bz2", (30, 30)),
    _entry("aloi", "Aloi", (108000, 128), "multiclass/aloi.bz2", (30, 40)),
    _entry("combined", "Combined", (78823, 100), "multiclass/vehicle/combined.bz2", (40, 40)),
    _entry("connect-4", "Connect-4", (7990, 125), "multiclass/connect-4", (40, 40),
           note="the full set has 67557 rows and 126 columns, the paper lists 7990 and 125"),
    _entry("covtype", "Covtype", (581012, 54), "binary/covtype.libsvm.binary.bz2", (30, 30)),
    _entry("housing", "Housing", (506, 13), "regression/housing", (15, 20)),
    _entry("ijcnn1", "Ijcnn1", (49990, 22), "binary/ijcnn1.bz2", (70, 100)),
    _entry("mnist", "MNIST", (60000, 780), "multiclass/mnist.bz2", (30, 30)),
    _entry("poker", "Poker", (25010, 10), "multiclass/poker.bz2", (20, 20)),
    _entry("space_ga", "Space-ga", (3107, 6), "regression/space_ga", (15, 20)),
    _entry("splice", "Splice", (1000, 24), "binary/splice", (30, 40),
           note="the set has 60 columns, the paper lists 24"),
    _entry("w8a", "W8a", (49749, 300), "binary/w8a", (20, 20)),
    _entry("msd", "MSD", (463715, 90), "regression/YearPredictionMSD.bz2", (20, 20)),
)  # fmt: skip
DATA_SETS: dict[str, DataSet] = {entry.name: entry for entry in _ENTRIES}


def data_set(name: str) -> DataSet:
    """Look a data set up.

    Examples
    --------
    >>> data_set("abalone").note
    'the full set has 4177 rows, the paper lists 2114'
    """
    if name not in DATA_SETS:
        raise ValueError(f"unknown data set {name!r}; the known ones are {', '.join(DATA_SETS)}")
    return DATA_SETS[name]


def search_path(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders that are searched, the first of them first.

    These are `data_dir`, the folders that the variable ``LOCALPOWER_DATA`` lists, and the cache.
    """
    listed = [folder for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    given = [] if data_dir is None else [data_dir]
    return [Path(folder).expanduser() for folder in (*given, *listed)] + [cache_folder()]


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Find the file of a data set in the search path; None if there is none.

    Open what was found through :func:`verify`.
    """
    files = data_set(name).files
    paths = (folder / file for folder in search_path(data_dir) for file in files)
    return next((path for path in paths if path.is_file()), None)


def how_to_get(name: str) -> str:
    """Say in one line where a data set comes from and how to get it.

    Examples
    --------
    >>> how_to_get("w8a")
    '... `localpower data get w8a` downloads it, or put w8a into a folder named by LOCALPOWER_DATA'
    """
    entry = data_set(name)
    return (
        f"LIBSVM publishes {name} at {entry.url}; `localpower data get {name}` downloads it, "
        f"or put {entry.file} into a folder named by {VARIABLE}"
    )


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify(path: Path) -> Path:
    """Check a file against the sum noted when it was downloaded; return its path.

    A file without a note, ``FILE.sha256``, is not checked.

    Raises
    ------
    DataError
        The file is not what was downloaded.
    """
    noted = _noted_sum(path)
    if noted is not None and (found := sha256(path)) != noted:
        raise DataError(
            f"{path}: changed since it was downloaded, its SHA-256 is {found} and not {noted}; "
            "delete it and run `localpower data get` again, or delete "
            f"{_sidecar(path).name} if the change was meant"
        )
    return path


def download(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    url: str | None = None,
) -> Path:
    """Download a data set, or the rest of it if an earlier download was cut off.

    A file that is already there is kept, unless it changed since it was downloaded.

    Parameters
    ----------
    name : str
        A key of `DATA_SETS`.
    folder : path, optional
        Where to put the file; the cache by default.
    progress : callable, optional
        Called as ``progress(bytes_done, total)``; `total` is None if the server does not tell.
    url : str, optional
        A mirror that has LIBSVM's very file, instead of LIBSVM; http or https.

    Returns
    -------
    Path
        The file. Next to it is ``FILE.sha256``, which ``sha256sum -c`` understands.

    Raises
    ------
    DataError
        The server could not be reached, does not have the file, or stopped in the middle. What
        arrived is kept as ``FILE.part``.
    """
    entry = data_set(name)
    url = entry.url if url is None else url
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"url {url!r}: only http:// and https:// addresses are downloaded from")
    target = (cache_folder() if folder is None else Path(folder).expanduser()) / entry.file
    if target.is_file() and _noted_sum(target) in (None, sha256(target)):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    _fetch(url, part, progress)
    _install(part, target)
    return target


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _noted_sum(path: Path) -> str | None:
    try:
        words = _sidecar(path).read_text(encoding="utf-8", errors="replace").split()
    except FileNotFoundError:
        return None
    return words[0].lower() if words else ""


def _install(part: Path, target: Path) -> None:
    """Give a complete part its name. The old note goes first: none is better than a wrong one."""
    digest = sha256(part)
    _sidecar(target).unlink(missing_ok=True)
    os.replace(part, target)
    _sidecar(target).write_text(f"{digest}  {target.name}\n", encoding="utf-8")


def _fetch(url: str, part: Path, progress: Progress | None) -> None:
    """Download into a part file until it is complete and on the disk."""
    response, done = _connect(url, part)
    with response, open(part, "ab" if done else "wb") as stream:
        total = _total(response, done)
        while block := _read(response, url, part):
            stream.write(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
        stream.flush()
        os.fsync(stream.fileno())
    if total is not None and done != total:
        raise _failure(url, part, f"the connection ended after {done} of {total} bytes")


def _connect(url: str, part: Path) -> tuple[HTTPResponse, int]:
    """Ask for what is missing. Return the answer and where it starts: at the part's end, or at 0.

    Servers that cannot continue where the part ends are asked for the whole file.
    """
    done = part.stat().st_size if part.is_file() else 0
    response = _ask(url, part, done)
    if done and _range(response)[0] == done:
        return response, done
    if done and response.status != 200:
        response.close()
        response = _ask(url, part, 0)
    if response.status != 200:
        response.close()
        raise _failure(url, part, f"the server answered {response.status} and not with a file")
    return response, 0


def _ask(url: str, part: Path, start: int) -> HTTPResponse:
    from email.utils import formatdate
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request

    headers = {"User-Agent": f"localpower/{__version__}"}
    if start:
        since = formatdate(part.stat().st_mtime, usegmt=True)
        headers |= {"Range": f"bytes={start}-", "If-Unmodified-Since": since}
    try:
        request = Request(url, headers=headers)  # noqa: S310 - the opener knows http(s) only
        return _open(request)
    except HTTPError as error:
        error.close()
        if start and error.code in (CHANGED, BEYOND_END):
            return _ask(url, part, 0)
        reason = f"the server answered {error.code} {error.reason}"
        raise _failure(url, part, reason) from error
    except (OSError, HTTPException) as error:
        raise _failure(url, part, _say(error)) from error


def _open(request: urllib.request.Request) -> HTTPResponse:
    """Open a web address; unlike urlopen, follow no redirection to ftp, file or data."""
    import urllib.request as web

    opener = web.OpenerDirector()
    for handler in (
        web.ProxyHandler,
        web.HTTPHandler,
        web.HTTPSHandler,
        web.HTTPRedirectHandler,
        web.HTTPDefaultErrorHandler,
        web.HTTPErrorProcessor,
        web.UnknownHandler,
    ):
        opener.add_handler(handler())
    response: HTTPResponse = opener.open(request, timeout=TIMEOUT)
    return response


def _read(response: HTTPResponse, url: str, part: Path) -> bytes:
    from http.client import HTTPException

    try:
        return response.read(BLOCK)
    except (OSError, HTTPException) as error:
        raise _failure(url, part, _say(error)) from error


def _range(response: HTTPResponse) -> tuple[int | None, int | None]:
    """First byte of a partial answer and length of the whole file; None where not told."""
    told = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if response.status != 206 or told is None:
        return None, None
    return int(told[1]), None if told[2] == "*" else int(told[2])


def _total(response: HTTPResponse, start: int) -> int | None:
    """Length of the whole file, of which the answer may hold less than it was asked for."""
    whole = _range(response)[1]
    if whole is None and response.length is not None:
        return start + response.length
    return whole


def _say(error: Exception) -> str:
    return str(getattr(error, "reason", error)) or type(error).__name__


def _failure(url: str, part: Path, reason: str) -> DataError:
    kept = (
        f"what arrived is kept in {part}, and running the same again resumes"
        if part.exists()
        else f"nothing arrived; try again, or put the file into a folder named by {VARIABLE}"
    )
    return DataError(f"{url}: {reason}; {kept}")
