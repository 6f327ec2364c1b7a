"""HDF5 files: a plain dataset by its place in the file, all others a stretch of rows at a time.

Nothing outside of the file is opened: no external links or storage, no virtual datasets, and no
filter that would be loaded from a plugin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError, MissingExtra
from localpower.data.arrow import block_rows, refusing_damage
from localpower.data.blocks import BLOCK_BYTES, Block, Options
from localpower.data.frames import Columns, columns_of, matrix_blocks
from localpower.worker.shard import check_compressed

CHUNK_BYTES = 1 << 30  # a chunk is decompressed whole
CHUNK_ROW_BYTES = 1 << 33
MOST_OBJECTS = 100_000
MOST_LINKS = 16
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 6: "scaleoffset", 32000: "lzf"}
CSR = {"data", "indices", "indptr"}
MAGIC = b"\x89HDF\r\n\x1a\n"


class Raw(NamedTuple):
    """Where a (rows, columns) array of plain native floats lies in its file, in C order."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, int]


def open_hdf5(path: Path, options: Options) -> Raw | Iterator[Block]:
    """Tell where the one 2-D dataset lies, or yield its rows where it is not stored plainly.

    `options.key` names a dataset, or a group that holds a CSR matrix as AnnData writes it.
    """
    with open(path, "rb") as stream:  # the system's own error if there is none to open
        size = stream.seek(0, 2)
    if not size:
        raise DataError(f"{path}: is empty, 0 bytes; write it again")
    h5py = _h5py()
    with refusing_damage(path, "HDF5", "h5py"), _open(h5py, path) as file:
        name = _pick(h5py, file, path, options.key)
        if isinstance(file[name], h5py.Group):
            return _csr_rows(path, name, options)
        columns = _check_dense(h5py, file[name], options, f"{path}, dataset {name!r}")
        raw = _raw(h5py, file[name], columns, size)
        return _dense_rows(path, name, options) if raw is None else raw


def _h5py() -> ModuleType:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra("reading HDF5", "hdf5") from error
    return h5py  # type: ignore[no-any-return]


def _open(h5py: ModuleType, path: Path) -> Any:
    return h5py.File(path, "r", locking="best-effort")  # some shared file systems have no locks


def _raw(h5py: ModuleType, dataset: Any, columns: Columns, size: int) -> Raw | None:
    rows, width = dataset.shape
    plain = {np.dtype("<f4"): h5py.h5t.IEEE_F32LE, np.dtype("<f8"): h5py.h5t.IEEE_F64LE}
    offset = dataset.id.get_offset()
    if (
        offset is None
        or columns.taken != list(range(width))
        or columns.dtype not in plain
        or not dataset.id.get_type().equal(plain[columns.dtype])
        or dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS
    ):
        return None
    if offset + dataset.nbytes > size:
        raise ValueError(f"{dataset.name} ends after byte {offset + dataset.nbytes} of {size}")
    return Raw(offset, columns.dtype, (rows, width))


def _dense_rows(path: Path, name: str, options: Options) -> Iterator[Block]:
    h5py = _h5py()
    with refusing_damage(path, "HDF5", "h5py"), _open(h5py, path) as file:
        dataset = file[name]
        columns = _check_dense(h5py, dataset, options, f"{path}, dataset {name!r}")
        chunk_rows = dataset.chunks[0] if dataset.chunks else 1
        step = block_rows(dataset.shape[1], dataset.dtype)
        step = max(1, step // chunk_rows) * chunk_rows
        for start in range(0, dataset.shape[0], step):
            yield from matrix_blocks(dataset[start : start + step], columns)
        if not dataset.shape[0]:
            yield columns.empty()


def _check_dense(h5py: ModuleType, dataset: Any, options: Options, where: str) -> Columns:
    _check_storage(h5py, dataset, where)
    if dataset.ndim != 2:
        raise DataError(
            f"{where}: has {dataset.ndim} dimension(s), not 2; write one row per sample"
        )
    if dataset.chunks:
        width = math.ceil(dataset.shape[1] / dataset.chunks[1]) * dataset.chunks[1]
        rows = min(dataset.chunks[0], dataset.shape[0])
        if rows * width * dataset.dtype.itemsize > CHUNK_ROW_BYTES:
            raise DataError(
                f"{where}: chunks {dataset.chunks} of {dataset.shape[1]} columns are over 8 GB "
                "side by side; write chunks of fewer rows"
            )
    _check_written(dataset, where)
    return columns_of(dataset.shape[1], dataset.dtype, options, where)


def _check_storage(h5py: ModuleType, dataset: Any, where: str) -> None:
    """Refuse what is stored elsewhere, needs a plugin, or does not fit in memory."""
    if dataset.is_virtual or dataset.external:
        raise DataError(
            f"{where}: its rows are in other files, which are not opened; copy them into one file"
        )
    if dataset.dtype.kind not in "fiub":
        raise DataError(f"{where}: its type {dataset.dtype} is not one of numbers; write floats")
    properties = dataset.id.get_create_plist()
    used = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    for code, _, _, name in used:
        if code not in FILTERS:
            raise DataError(
                f"{where}: uses filter {code} ({name.decode(errors='replace')}), which needs a "
                f"plugin; write it again with one of {', '.join(FILTERS.values())}"
            )
    if dataset.chunks and math.prod(dataset.chunks) * dataset.dtype.itemsize > CHUNK_BYTES:
        raise DataError(f"{where}: its chunks {dataset.chunks} are over 1 GB; write smaller ones")


def _check_written(dataset: Any, where: str) -> None:
    """Refuse a shape without rows behind it, which would be read as zeros without end."""
    if dataset.size and not dataset.id.get_storage_size():
        raise DataError(f"{where}: was declared but never written; write it again")


def _pick(h5py: ModuleType, file: Any, path: Path, key: str | None) -> str:
    if key is not None:
        return _resolve(h5py, file, path, key)
    found, skipped = _search(h5py, file)
    if len(found) != 1:
        listed = ", ".join(f"{name!r} {shape}" for name, shape in list(found.items())[:50])
        apart = f" (external links are not followed: {', '.join(skipped[:20])})" if skipped else ""
        if not found:
            raise DataError(f"{path}: holds no 2-D dataset of numbers{apart}; expected one")
        raise DataError(f"{path}: holds the 2-D datasets {listed}{apart}; say which with key=")
    return next(iter(found))


def _search(h5py: ModuleType, file: Any) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Names and shapes of matrices, and names of external links; soft links are other names."""
    found: dict[str, tuple[int, ...]] = {}
    skipped: list[str] = []
    groups, seen, count = [(file, "")], {_address(h5py, file)}, 0
    while groups:
        group, prefix = groups.pop()
        for name in group:
            link, full = group.get(name, getlink=True), f"{prefix}/{name}"
            count += 1
            if count > MOST_OBJECTS:
                raise DataError(f"{file.filename}: holds over {MOST_OBJECTS} objects; give key=")
            if isinstance(link, h5py.ExternalLink):
                skipped.append(full)
            if not isinstance(link, h5py.HardLink):
                continue
            item = group[name]
            address = _address(h5py, item)
            if address in seen:
                continue
            seen.add(address)
            if isinstance(item, h5py.Dataset):
                if item.ndim == 2 and item.dtype.kind in "fiub":
                    found[full] = item.shape
            elif isinstance(item, h5py.Group):
                shape = _csr_shape(h5py, item)
                if shape is not None:
                    found[full] = shape
                else:
                    groups.append((item, full))
    return dict(sorted(found.items())), skipped


def _address(h5py: ModuleType, item: Any) -> int:
    return int(h5py.h5o.get_info(item.id).addr)


def _resolve(h5py: ModuleType, file: Any, path: Path, key: str) -> str:
    """Follow a name through hard and soft links, which stay in the file."""
    todo, done, links = _parts(key), list[str](), 0
    while todo:
        group, part = file["/" + "/".join(done)], todo.pop(0)
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if link is None:
            found, _ = _search(h5py, file)
            raise DataError(f"{path}: holds no {key!r}, but {', '.join(found) or 'no matrix'}")
        if isinstance(link, h5py.SoftLink):
            links += 1
            if links > MOST_LINKS:
                raise DataError(f"{path}: {key!r} is a link to itself; give the dataset's name")
            done = [] if link.path.startswith("/") else done
            todo = _parts(link.path) + todo
        elif isinstance(link, h5py.HardLink):
            done.append(part)
        else:
            raise DataError(
                f"{path}: {key!r} is an external link, to {getattr(link, 'filename', 'elsewhere')},"
                " which is not followed; give that file itself"
            )
    name = "/" + "/".join(done)
    item = file[name]
    if not isinstance(item, h5py.Dataset) and _csr_shape(h5py, item) is None:
        raise DataError(f"{path}: {key!r} is not a dataset; give the name of one with key=")
    return name


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _csr_shape(h5py: ModuleType, group: Any) -> tuple[int, ...] | None:
    """Shape that a group declares if it holds a compressed matrix."""
    if not isinstance(group, h5py.Group) or not set(group) >= CSR:
        return None
    links = [group.get(name, getlink=True) for name in (*CSR, "shape") if name in group]
    if not all(isinstance(link, h5py.HardLink) for link in links):
        return None
    if not all(isinstance(group[name], h5py.Dataset) for name in CSR):
        return None
    shape = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    if shape is None and isinstance(group.get("shape"), h5py.Dataset):
        shape = group["shape"][:2]
    return None if shape is None else tuple(int(n) for n in shape)


def _csr_rows(path: Path, name: str, options: Options) -> Iterator[Block]:
    h5py = _h5py()
    with refusing_damage(path, "HDF5", "h5py"), _open(h5py, path) as file:
        group, where = file[name], f"{path}, group {name!r}"
        shape = _check_csr(h5py, group, where)
        columns = columns_of(shape[1], group["data"].dtype, options, where)
        ends = _row_ends(group["indptr"], shape[0], len(group["data"]))
        each = group["data"].dtype.itemsize + group["indices"].dtype.itemsize
        start = 0
        while start < shape[0]:
            limit = ends[start] + max(1, BLOCK_BYTES // each)
            stop = max(start + 1, int(np.searchsorted(ends, limit, "right")) - 1)
            stop = min(stop, start + BLOCK_BYTES // 8)
            yield from matrix_blocks(_csr(group, ends[start : stop + 1], shape[1]), columns)
            start = stop
        if not shape[0]:
            yield columns.empty()


def _check_csr(h5py: ModuleType, group: Any, where: str) -> tuple[int, int]:
    for part in sorted(CSR):
        _check_storage(h5py, group[part], f"{where}, dataset {part!r}")
        _check_written(group[part], f"{where}, dataset {part!r}")
        if group[part].ndim != 1:
            raise ValueError(f"{part} has {group[part].ndim} dimensions")
    shape = _csr_shape(h5py, group)
    if shape is None or len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"{where} declares the shape {shape}")
    declared = group.attrs.get("encoding-type", group.attrs.get("h5sparse_format", "csr"))
    text = declared.decode() if isinstance(declared, bytes) else str(declared)
    if not text.startswith("csr") or len(group["indptr"]) != shape[0] + 1:
        raise DataError(
            f"{where}: holds a {text} matrix of shape {shape} with {len(group['indptr'])} pointers,"
            " which is not by rows; write it as CSR, one row per sample"
        )
    return shape[0], shape[1]


def _row_ends(indptr: Any, rows: int, entries: int) -> NDArray[np.int64]:
    ends = np.asarray(indptr[:], dtype=np.int64)
    if len(ends) != rows + 1 or ends[0] != 0 or ends[-1] != entries or (np.diff(ends) < 0).any():
        raise ValueError("index pointers do not lead through the entries in order")
    return ends


def _csr(group: Any, ends: NDArray[np.int64], width: int) -> Any:
    from scipy.sparse import csr_array

    first, last = int(ends[0]), int(ends[-1])
    indices = group["indices"][first:last]
    if indices.size and (indices.min() < 0 or indices.max() >= width):
        raise ValueError(f"column indices are not between 0 and {width - 1}")
    entries = np.asarray(group["data"][first:last])
    entries = entries.astype(entries.dtype.newbyteorder("="), copy=False)
    if entries.dtype == np.float16:
        entries = entries.astype(np.float32)  # scipy has no sparse kernels for half precision
    matrix = csr_array((entries, indices, ends - first), shape=(len(ends) - 1, width))
    check_compressed(matrix)
    return matrix
