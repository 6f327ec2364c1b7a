"""Zarr arrays, version 2 and 3, in a folder or a zip file, a row of chunks at a time.

What an array declares is read and checked here first: zarr itself would run any codec it finds.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from localpower.core.errors import DataError, MissingExtra
from localpower.data.arrow import block_rows, refusing_damage
from localpower.data.blocks import Block, Options
from localpower.data.frames import Columns, columns_of, matrix_blocks

METADATA_BYTES = 1 << 20
CHUNK_BYTES = 1 << 30  # a chunk is decompressed whole
CHUNK_ROW_BYTES = 1 << 33
BLOCKS_AT_ONCE = 1
METADATA_FILES = (".zarray", "zarr.json")
COMPRESSORS = {"blosc", "zlib", "gzip", "bz2", "lzma", "lz4", "zstd"}
FILTERS = {"shuffle", "delta", "fixedscaleoffset", "bitround", "crc32", "adler32", "fletcher32"}
CODECS = {"bytes", "transpose", "blosc", "gzip", "zstd", "crc32c", "sharding_indexed"}
TYPES = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
WRITER = "zarr.save_array"


def read_zarr(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of the one 2-D array in a store, or of the one that `options.key` names."""
    os.stat(path)  # the system's own error if there is nothing
    with refusing_damage(path, "Zarr", WRITER):
        found = _find(path)
        name = _pick(path, found, options.key)
        where = f"{path}, array {name!r}" if name else str(path)
        layout = _layout(found[name], where)
        columns = columns_of(layout.shape[1], layout.dtype, options, where)
        _check_files(path, name)
        with _opened(path, name, layout) as array:
            if array.shape != layout.shape or array.dtype != layout.dtype:
                raise ValueError("the array changed while it was opened")
            yield from _rows(array, layout, columns)


@dataclass(frozen=True, slots=True)
class _Layout:
    version: Literal[2, 3]
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    chunk_rows: int


def _rows(array: Any, layout: _Layout, columns: Columns) -> Iterator[Block]:
    step = BLOCKS_AT_ONCE * block_rows(layout.shape[1], layout.dtype)
    step = max(1, step // layout.chunk_rows) * layout.chunk_rows
    for start in range(0, layout.shape[0], step):
        yield from matrix_blocks(np.asarray(array[start : start + step]), columns)
    if not layout.shape[0]:
        yield columns.empty()


@contextmanager
def _opened(path: Path, name: str, layout: _Layout) -> Iterator[Any]:
    try:
        import zarr
        from zarr.storage import LocalStore, ZipStore
    except ImportError as error:
        raise MissingExtra("reading Zarr", "zarr") from error
    if path.is_dir():
        store: Any = LocalStore(path, read_only=True)
    else:
        store = ZipStore(path, mode="r")
    try:
        # opened by its own path: metadata consolidated in a group is another copy, not checked
        yield zarr.open_array(store, path=name, mode="r", zarr_format=layout.version)
    finally:
        store.close()


def _find(path: Path) -> dict[str, dict[str, Any]]:
    """Metadata of all arrays, by their names in the store."""
    entries = _folder_entries(path) if path.is_dir() else _zip_entries(path)
    found: dict[str, dict[str, Any]] = {}
    for entry, content in entries:
        name, _, file = entry.rpartition("/")
        if len(content) > METADATA_BYTES:
            raise DataError(f"{path}: {entry} is larger than 1 MB, too large for metadata")
        metadata = json.loads(content)
        if not isinstance(metadata, dict):
            raise ValueError(f"{entry} is not an object")
        if file == ".zarray" or metadata.get("node_type") == "array":
            if name in found:
                raise DataError(f"{path}: {name!r} has metadata of versions 2 and 3; delete one")
            found[name] = metadata
    return found


def _folder_entries(path: Path) -> Iterator[tuple[str, bytes]]:
    for folder, folders, files in os.walk(path):
        inside = Path(folder).relative_to(path).as_posix()
        for file in METADATA_FILES:
            if file in files:
                with open(os.path.join(folder, file), "rb") as stream:
                    content = stream.read(METADATA_BYTES + 1)
                yield file if inside == "." else f"{inside}/{file}", content
                if file == ".zarray" or _node(content) == "array":
                    folders.clear()  # chunks, of which there may be many
        folders.sort()


def _node(content: bytes) -> Any:
    metadata = json.loads(content) if len(content) <= METADATA_BYTES else None
    return metadata.get("node_type") if isinstance(metadata, dict) else None


def _zip_entries(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.file_size > 2 * CHUNK_BYTES:
                raise DataError(f"{path}: {info.filename} has {info.file_size} bytes, over 2 GB")
            if info.filename.rpartition("/")[2] in METADATA_FILES:
                with archive.open(info) as stream:
                    yield info.filename, stream.read(METADATA_BYTES + 1)


def _check_files(path: Path, name: str) -> None:
    """Refuse files of 0 bytes, which a full disk leaves: zarr takes an empty shard for zeros."""
    if path.is_dir():
        walk = os.walk(path / name)
        files = (os.path.join(folder, file) for folder, _, files in walk for file in files)
        empty = next((file for file in files if not os.path.getsize(file)), None)
    else:
        with zipfile.ZipFile(path) as archive:
            inside = (info for info in archive.infolist() if info.filename.startswith(name))
            empty = next((i.filename for i in inside if not (i.file_size or i.is_dir())), None)
    if empty is not None:
        raise ValueError(f"{empty} has 0 bytes")


def _pick(path: Path, found: dict[str, dict[str, Any]], key: str | None) -> str:
    if key is not None:
        if key.strip("/") not in found:
            raise DataError(f"{path}: holds no array {key!r}, but {_listed(found)}")
        return key.strip("/")
    flat = {name: metadata for name, metadata in found.items() if _rank(metadata) == 2}
    if len(flat) != 1:
        remedy = "say which with key=" if flat else "expected one with 2 dimensions"
        raise DataError(f"{path}: holds {_listed(flat or found)}; {remedy}")
    return next(iter(flat))


def _listed(found: dict[str, dict[str, Any]]) -> str:
    arrays = [f"{name!r} {metadata.get('shape')}" for name, metadata in found.items()]
    return f"the arrays {', '.join(arrays[:50])}" if arrays else "no array"


def _rank(metadata: dict[str, Any]) -> int:
    shape = metadata.get("shape")
    return len(shape) if isinstance(shape, list) else -1


def _layout(metadata: dict[str, Any], where: str) -> _Layout:
    """Check all that an array declares."""
    version: Literal[2, 3]
    if metadata.get("zarr_format") == 2:
        version, dtype, chunks = 2, _check_version_2(metadata, where), metadata["chunks"]
    elif metadata.get("zarr_format") == 3:
        version, (dtype, chunks) = 3, _check_version_3(metadata, where)
    else:
        found = metadata.get("zarr_format")
        raise DataError(f"{where}: its Zarr version is {found!r}, not 2 or 3; write it again")
    shape = metadata["shape"]
    for sizes, least in ((shape, 0), (chunks, 1)):
        if not isinstance(sizes, list) or not all(type(n) is int and n >= least for n in sizes):
            raise ValueError(f"shape {shape} or chunks {chunks} are not sizes")
    if len(shape) != 2 or len(chunks) != 2:
        raise DataError(f"{where}: has {len(shape)} dimension(s), not 2; reshape it")
    _check_sizes(shape, chunks, dtype.itemsize, where)
    return _Layout(version, (shape[0], shape[1]), dtype, chunks[0])


def _check_sizes(shape: list[int], chunks: list[int], itemsize: int, where: str) -> None:
    if math.prod(chunks) * itemsize > CHUNK_BYTES:
        raise DataError(f"{where}: its chunks {tuple(chunks)} are over 1 GB; write smaller ones")
    width = math.ceil(shape[1] / chunks[1]) * chunks[1]
    if min(chunks[0], shape[0]) * width * itemsize > CHUNK_ROW_BYTES:
        raise DataError(
            f"{where}: chunks {tuple(chunks)} of {shape[1]} columns are over 8 GB side by side; "
            "write chunks of fewer rows"
        )


def _check_version_2(metadata: dict[str, Any], where: str) -> np.dtype[Any]:
    compressor, filters = metadata.get("compressor"), metadata.get("filters") or []
    _check_codecs([compressor] if compressor else [], "id", COMPRESSORS, where)
    _check_codecs(filters, "id", FILTERS, where)
    for codec in filters:
        for key in ("dtype", "astype"):
            if key in codec:
                _number(codec[key], where)
    return _number(metadata.get("dtype"), where)


def _number(declared: Any, where: str) -> np.dtype[Any]:
    dtype = np.dtype(declared) if isinstance(declared, str) and len(declared) <= 8 else None
    if dtype is None or dtype.kind not in "fiub":
        raise DataError(f"{where}: its type {declared!r} is not one of numbers; write it as float")
    return dtype


def _check_version_3(metadata: dict[str, Any], where: str) -> tuple[np.dtype[Any], list[int]]:
    declared, grid = metadata.get("data_type"), metadata["chunk_grid"]
    if not isinstance(declared, str) or declared not in TYPES:
        raise DataError(f"{where}: its type {declared!r} is not one of numbers; write it as float")
    if grid["name"] != "regular" or metadata.get("storage_transformers"):
        raise DataError(f"{where}: only regular chunks are read; write it again with {WRITER}")
    codecs = metadata["codecs"]
    chunks: list[int] = grid["configuration"]["chunk_shape"]
    while True:
        _check_codecs(codecs, "name", CODECS, where)
        inner = [codec["configuration"] for codec in codecs if codec["name"] == "sharding_indexed"]
        if not inner:
            return np.dtype(declared), chunks
        _check_codecs(inner[0]["index_codecs"], "name", CODECS - {"sharding_indexed"}, where)
        if len(codecs) == 1:
            chunks = inner[0]["chunk_shape"]  # what is decompressed whole
        codecs = inner[0]["codecs"]


def _check_codecs(codecs: Any, key: str, allowed: set[str], where: str) -> None:
    if not isinstance(codecs, list):
        raise ValueError(f"its codecs are {codecs!r:.100}")
    for codec in codecs:
        name = codec.get(key) if isinstance(codec, dict) else codec
        if not isinstance(codec, dict) or name not in allowed:
            raise DataError(
                f"{where}: uses the codec {name!r}, which is not run on files; write it again "
                f"with one of {', '.join(sorted(allowed))}"
            )
