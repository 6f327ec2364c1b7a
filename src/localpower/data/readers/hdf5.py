"""HDF5 files: a plain dataset by its place in the file, all others a stretch of rows at a time.

Nothing outside of the file is opened: no external links or storage, no virtual datasets, and no
filter that would be loaded from a plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError
from localpower.data.blocks import Block, Options, block_rows, check_chunks, refusing_damage
from localpower.data.readers.matrix import MatrixColumns, columns_of, matrix_blocks
from localpower.worker.stored import Stored, check_compressed, stamp

MOST_OBJECTS = 100_000
MOST_LINKS = 16
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 6: "scaleoffset", 32000: "lzf"}
CSR = ("data", "indices", "indptr")


def place_hdf5(path: Path, options: Options, *_: Any) -> Stored | None:
    """Say where the one 2-D dataset, or that of `options.key`, stands; None if not plainly."""
    import h5py

    with refusing_damage(path, "HDF5", "h5py"), _open(path) as file:
        dataset = file[_pick(file, path, options.key)]
        if isinstance(dataset, h5py.Group):
            return None
        columns = _check_dense(dataset, options, f"{path}, dataset {dataset.name!r}")
        plain = {np.dtype("<f4"): h5py.h5t.IEEE_F32LE, np.dtype("<f8"): h5py.h5t.IEEE_F64LE}
        offset = dataset.id.get_offset()
        if (
            offset is None
            or columns.taken != list(range(dataset.shape[1]))
            or columns.dtype not in plain
            or not dataset.id.get_type().equal(plain[columns.dtype])
            or dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS
        ):
            return None
        shape = tuple(int(length) for length in dataset.shape)
        return Stored(str(path), int(offset), columns.dtype, shape, stamp(path))


def read_hdf5(path: Path, options: Options) -> Iterator[Block]:
    """Yield the rows of a dataset, or of a group that holds a CSR matrix as AnnData writes it."""
    import h5py

    with refusing_damage(path, "HDF5", "h5py"), _open(path) as file:
        item = file[_pick(file, path, options.key)]
        if isinstance(item, h5py.Group):
            yield from _csr_rows(item, options, f"{path}, group {item.name!r}")
        else:
            yield from _dense_rows(item, options, f"{path}, dataset {item.name!r}")


def _open(path: Path) -> Any:
    import h5py

    return h5py.File(path, "r", locking="best-effort")  # some shared file systems have no locks


def _dense_rows(dataset: Any, options: Options, where: str) -> Iterator[Block]:
    columns = _check_dense(dataset, options, where)
    chunk_rows = dataset.chunks[0] if dataset.chunks else 1
    step = block_rows(dataset.shape[1] * dataset.dtype.itemsize)
    step = max(1, step // chunk_rows) * chunk_rows
    for start in range(0, dataset.shape[0], step):
        yield from matrix_blocks(dataset[start : start + step], columns)
    if not dataset.shape[0]:
        yield columns.empty()


def _check_dense(dataset: Any, options: Options, where: str) -> MatrixColumns:
    if dataset.ndim != 2:
        raise DataError(
            f"{where}: has {dataset.ndim} dimension(s), not 2; write one row per sample"
        )
    _check_storage(dataset, where)
    return columns_of(dataset.shape[1], dataset.dtype, options, where)


def _check_storage(dataset: Any, where: str) -> None:
    """Refuse what is stored elsewhere or nowhere, needs a plugin, or does not fit in memory."""
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
    if dataset.chunks:
        check_chunks(dataset.shape, dataset.chunks, dataset.dtype, where)
    if dataset.size and not dataset.id.get_storage_size():  # would be zeros without end
        raise DataError(f"{where}: was declared but never written; write it again")


def _pick(file: Any, path: Path, key: str | None) -> str:
    if key is not None:
        return _resolve(file, path, key)
    found, skipped = _search(file)
    if len(found) != 1:
        listed = ", ".join(f"{name!r} {shape}" for name, shape in list(found.items())[:50])
        apart = f" (external links are not followed: {', '.join(skipped[:20])})" if skipped else ""
        if not found:
            raise DataError(f"{path}: holds no 2-D dataset of numbers{apart}; expected one")
        raise DataError(f"{path}: holds the 2-D datasets {listed}{apart}; say which with key=")
    return next(iter(found))


def _search(file: Any) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Names and shapes of matrices, and names of external links; soft links are other names."""
    import h5py

    found: dict[str, tuple[int, ...]] = {}
    skipped: list[str] = []
    groups, seen, count = [(file, "")], {_address(file)}, 0
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
            address = _address(item)
            if address in seen:
                continue
            seen.add(address)
            if isinstance(item, h5py.Dataset):
                if item.ndim == 2 and item.dtype.kind in "fiub":
                    found[full] = item.shape
            elif isinstance(item, h5py.Group):
                shape = _csr_shape(item)
                if shape is not None:
                    found[full] = shape
                else:
                    groups.append((item, full))
    return dict(sorted(found.items())), skipped


def _address(item: Any) -> int:
    import h5py

    return int(h5py.h5o.get_info(item.id).addr)


def _resolve(file: Any, path: Path, key: str) -> str:
    """Follow a name through hard and soft links, which stay in the file."""
    import h5py

    todo, done, links = _parts(key), list[str](), 0
    while todo:
        group, part = file["/" + "/".join(done)], todo.pop(0)
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if link is None:
            found, _ = _search(file)
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
    if not isinstance(item, h5py.Dataset) and _csr_shape(item) is None:
        raise DataError(f"{path}: {key!r} is not a dataset; give the name of one with key=")
    return name


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _csr_shape(group: Any) -> tuple[int, ...] | None:
    """Shape that a group declares if it holds a compressed matrix."""
    import h5py

    if not isinstance(group, h5py.Group) or not set(group) >= set(CSR):
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


def _csr_rows(group: Any, options: Options, where: str) -> Iterator[Block]:
    rows, width = _check_csr(group, where)
    columns = columns_of(width, group["data"].dtype, options, where)
    ends = _row_ends(group["indptr"], rows, len(group["data"]))
    each = group["data"].dtype.itemsize + group["indices"].dtype.itemsize
    start = 0
    while start < rows:
        limit = ends[start] + block_rows(each)
        stop = max(start + 1, int(np.searchsorted(ends, limit, "right")) - 1)
        stop = min(stop, start + block_rows(8))
        yield from matrix_blocks(_csr(group, ends[start : stop + 1], width), columns)
        start = stop
    if not rows:
        yield columns.empty()


def _check_csr(group: Any, where: str) -> tuple[int, int]:
    for part in CSR:
        _check_storage(group[part], f"{where}, dataset {part!r}")
        if group[part].ndim != 1:
            raise ValueError(f"{part} has {group[part].ndim} dimensions")
    shape = _csr_shape(group)
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
