"""Zarr arrays, version 2 and 3, in a folder or a zip file, a row of chunks at a time.

zarr opens and checks what an array declares; its codecs must be in a closed list before any is run.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.data.blocks import Block, Options, block_rows, check_chunks, refusing_damage
from localpower.data.readers.matrix import columns_of, matrix_blocks
from localpower.data.readers.npy import refuse_bomb

CODECS = {
    "bytes", "transpose", "crc32c", "sharding_indexed", "blosc", "zlib", "gzip", "bz2", "lzma",
    "lz4", "zstd", "shuffle", "delta", "fixedscaleoffset", "bitround", "crc32", "adler32",
    "fletcher32",
}  # fmt: skip
WRITER = "zarr.save_array"


def read_zarr(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of the one 2-D array in a store, or of the one that `options.key` names."""
    from zarr.storage import LocalStore, ZipStore

    os.stat(path)  # the system's own error if there is nothing
    with refusing_damage(path, "Zarr", WRITER):
        if path.is_dir():
            store: Any = LocalStore(path, read_only=True)
        else:
            _check_zip(path)
            store = ZipStore(path, mode="r")
        try:
            array = _pick(path, store, options.key)
            yield from _rows(array, options, f"{path}, array {array.path!r}")
        finally:
            store.close()


def _pick(path: Path, store: Any, key: str | None) -> Any:
    """Open an array by its own path: metadata that a group has of it may say something else."""
    import zarr

    found: dict[str, Any] = {}
    with suppress(FileNotFoundError):
        top = zarr.open(store, mode="r", use_consolidated=False)
        nodes = [("", top)] if isinstance(top, zarr.Array) else top.members(max_depth=None)
        found = {name: node for name, node in sorted(nodes) if isinstance(node, zarr.Array)}
    names = [name for name, array in found.items() if array.ndim == 2]
    if key is not None:
        names = [key.strip("/")]
    if len(names) != 1 or names[0] not in found:
        shown = found if key is not None or not names else names
        arrays = [f"{name!r} {list(found[name].shape)}" for name in shown]
        listed = f"the arrays {', '.join(arrays[:50])}" if arrays else "no array"
        if key is not None:
            raise DataError(f"{path}: holds no array {key!r}, but {listed}")
        remedy = "say which with key=" if names else "expected one with 2 dimensions"
        raise DataError(f"{path}: holds {listed}; {remedy}")
    _check_files(path, names[0])
    return zarr.open_array(store, path=names[0], mode="r")


def _rows(array: Any, options: Options, where: str) -> Iterator[Block]:
    _check_codecs(array.metadata.to_dict(), where)
    if array.ndim != 2:
        raise DataError(f"{where}: has {array.ndim} dimension(s), not 2; reshape it")
    check_chunks(array.shape, array.chunks, array.dtype, where)
    columns = columns_of(array.shape[1], array.dtype, options, where)
    step = block_rows(array.shape[1] * array.dtype.itemsize)
    step = max(1, step // array.chunks[0]) * array.chunks[0]
    for start in range(0, array.shape[0], step):
        yield from matrix_blocks(np.asarray(array[start : start + step]), columns)
    if not array.shape[0]:
        yield columns.empty()


def _check_codecs(metadata: Any, where: str) -> None:
    """Refuse codecs that are not known to be harmless, also those inside of others."""
    codecs = [*(metadata.get("filters") or ()), metadata.get("compressor")]
    codecs += [*metadata.get("codecs", ()), *metadata.get("index_codecs", ())]
    for codec in filter(None, codecs):
        name = codec.get("id", codec.get("name"))
        if name not in CODECS:
            raise DataError(
                f"{where}: uses the codec {name!r}, which is not run on files; write it again "
                f"with one of {', '.join(sorted(CODECS))}"
            )
        _check_codecs(codec.get("configuration", {}), where)


def _check_zip(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            refuse_bomb(info, f"{path}, {info.filename}")
            if not info.file_size and not info.is_dir():
                raise ValueError(f"{info.filename} has 0 bytes")


def _check_files(path: Path, name: str) -> None:
    """Refuse files of 0 bytes, which a full disk leaves: zarr takes an empty shard for zeros."""
    for folder, _, files in os.walk(path / name):
        for file in files:
            if not os.path.getsize(os.path.join(folder, file)):
                raise ValueError(f"{file} has 0 bytes")
