"""What text formats share: files, plain or compressed, as chunks of whole lines.

What is broken or hostile (torn archives, decompression bombs, endless lines, binary content) is
refused here, with the file, the line and what to do about it.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from localpower.core.ahead import ahead
from localpower.core.errors import DataError
from localpower.core.machine import available, cores
from localpower.worker.kernels import occurrences

CHUNK = 1 << 21  # bytes of text that are parsed at once
MAX_THREADS = 4
MAX_LINE = 1 << 26
FREE_BYTES, MAX_RATIO = 1 << 26, 200  # what an archive may unpack to, and how many times its size
LITTLE = 1 << 29  # bytes; a thread or a large library may reserve a good part of it
TRUSTED = 1 << 20  # packed bytes that are looked at before anything is parsed
XZ_MEMORY = 1 << 28  # dictionary of xz; its largest preset takes 2**26

T = TypeVar("T")
UNPACK_ERRORS = (EOFError, OSError, MemoryError, zlib.error, lzma.LZMAError)


class Chunk(NamedTuple):
    """Whole lines that all end with a newline, and the number of the first, counted from 1."""

    line: int
    data: bytes


def read_chunks(path: Path) -> Generator[Chunk, None, None]:
    """Yield the lines of a file a few megabytes at a time, with line ends made newlines."""
    lines = 0
    for data in _whole_lines(_unix(_without_mark(_pieces(path), path))):
        if data is None:
            raise DataError(
                f"{path}, line {lines + 1}: the line is longer than {MAX_LINE} bytes; check that "
                "this is text with a row a line"
            )
        nul = data.find(0)
        good = data if nul < 0 else data[: data.rfind(b"\n", 0, nul) + 1]
        if good:
            yield Chunk(lines + 1, good)
        lines += count_lines(good)
        if nul >= 0:
            raise DataError(
                f"{path}, line {lines + 1}: there is a NUL byte, so this is not text in UTF-8; "
                "convert the file, or give its format"
            )
    if not lines:
        raise DataError(f"{path}: the file is empty; give one with at least one row")


def count_lines(data: bytes) -> int:
    """Count newlines."""
    return occurrences(data, ord("\n"))


def parse_in_order(parse: Callable[[Chunk], T], chunks: Iterator[Chunk]) -> Iterator[T]:
    """Parse chunks in a few threads, so many at a time, and yield or raise in the file's order."""
    threads = min(MAX_THREADS, cores()) if arrow() is not None else 1  # else Python does the work
    pool = ThreadPoolExecutor(threads)
    try:
        for future in ahead(map(pool.submit, _jobs(parse, chunks)), threads):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _jobs(parse: Callable[[Chunk], T], chunks: Iterator[Chunk]) -> Iterator[Callable[[], T]]:
    try:
        for chunk in chunks:
            yield partial(parse, chunk)
    except Exception as error:  # takes its turn: an earlier chunk may be what is wrong
        yield partial(_fail, error)


def _fail(error: Exception) -> NoReturn:
    raise error


def show(word: bytes | str) -> str:
    """Quote what was found for a message, cut to 40 characters."""
    text = word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else word
    return repr(text[:40] + ("…" if len(text) > 40 else ""))


def arrow() -> Any:
    """Return pyarrow with its parser of text, which rounds as `float` does, or None.

    Where there is little memory it is not loaded: it would take most of that.
    """
    if "pyarrow" not in sys.modules and available() < LITTLE:
        return None
    try:
        import pyarrow.csv
    except ImportError:
        return None
    return pyarrow


def join_labels(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join the labels of blocks: numbers if all are, else text."""
    if any(part.dtype.kind == "U" for part in parts):
        parts = [_as_text(part) for part in parts]
    return np.concatenate(parts)


def _as_text(labels: NDArray[Any]) -> NDArray[Any]:
    if labels.dtype.kind == "U":
        return labels
    spelled = ["" if x != x else repr(x).removesuffix(".0") for x in labels.tolist()]
    return np.array(spelled, dtype=np.str_)


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield what the file holds, unpacked."""
    with open(path, "rb") as packed:
        start = packed.read(1 << 12)
        packed.seek(0)
        unpack = _unpacker(start)
        if unpack is None:
            while piece := packed.read(max(CHUNK, 4)):
                yield piece
            return
        try:
            if unpack is lzma.open:  # asks for the dictionary before it is there
                lzma.LZMADecompressor(memlimit=XZ_MEMORY).decompress(start, max_length=1)
            for _ in _unpacked(unpack, packed, path):  # a bomb is not worth parsing
                if packed.tell() > TRUSTED:
                    break
            packed.seek(0)
            yield from _unpacked(unpack, packed, path)
        except UNPACK_ERRORS as error:
            raise DataError(f"{path}: cannot be unpacked ({error}); get the file again") from error


def _unpacked(unpack: Callable[[BinaryIO], Any], packed: BinaryIO, path: Path) -> Iterator[bytes]:
    size = 0
    with unpack(packed) as stream:
        while piece := stream.read(max(CHUNK, 4)):
            size += len(piece)
            _check_ratio(size, packed.tell(), path)
            yield piece


def _unpacker(start: bytes) -> Callable[[BinaryIO], Any] | None:
    if start.startswith(b"\x1f\x8b"):
        return gzip.open
    if start.startswith(b"BZh"):
        return bz2.open
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.open
    return None


def _check_ratio(unpacked: int, packed: int, path: Path) -> None:
    if unpacked > max(FREE_BYTES, MAX_RATIO * packed):
        raise DataError(
            f"{path}: {packed} bytes unpack to {unpacked} and more, over {MAX_RATIO} times as "
            "many; unpack it first if that is meant"
        )


def _without_mark(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Leave out the byte order mark of UTF-8, refuse that of UTF-16."""
    first = next(pieces, b"")
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}: the text is UTF-16; save it as UTF-8")
    yield first.removeprefix(b"\xef\xbb\xbf")
    yield from pieces


def _unix(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Turn CR LF, and CR alone, into newlines."""
    kept = b""
    for piece in pieces:
        if kept or b"\r" in piece:
            piece = kept + piece
            kept = b"\r" if piece.endswith(b"\r") else b""  # LF may follow
            piece = piece.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield piece
    if kept:
        yield b"\n"


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes | None]:
    """Cut after newlines; None where a line is too long."""
    held: list[memoryview] = []  # the start of a line that has not ended
    size = 0
    for piece in pieces:
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*held, memoryview(piece)[:cut]])
            held, size = [], 0
        held.append(memoryview(piece)[cut:])
        size += len(held[-1])
        if size > MAX_LINE:
            yield None
    if size:
        yield b"".join([*held, b"\n"])
