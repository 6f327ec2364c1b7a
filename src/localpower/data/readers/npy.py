"""numpy's own files: ``.npy`` and ``.npz``, read where they stand. Never unpickled.

Headers are checked against the size of the file before anything is allocated.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from localpower.core.errors import DataError
from localpower.data.blocks import Options
from localpower.data.spool import RowStorage
from localpower.worker.stored import Stored, StoredCSR, check_compressed, stamp

MAX_HEADER = 10_000
CHUNK = 1 << 22
BOMB_BYTES, BOMB_RATIO = 1 << 26, 200
SPARSE = {"data", "shape", "format"}


def place_npy(path: Path, *_: Any) -> Stored:
    """Describe the array in a ``.npy`` file."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        kind, shape, fortran = read_header(stream, size, str(path))
        offset = stream.tell()
    return _stored(path, offset, kind, shape, fortran)


def _stored(
    path: Path,
    offset: int,
    kind: np.dtype[Any],
    shape: tuple[int, ...],
    fortran: bool,
    origin: str = "",
) -> Stored:
    height = shape[0] if fortran and len(shape) == 2 else 0
    return Stored(str(path), offset, kind, shape, stamp(path), height, origin)


def read_header(
    stream: IO[bytes], size: int, name: str, kinds: str = "fiubc"
) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Read and check the header of an array that, header and all, has `size` bytes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is only warned of is harmless, or raises after
            version = np.lib.format.read_magic(stream)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                raise ValueError(f"format version {version}")
            shape, fortran, kind = read(stream, max_header_size=MAX_HEADER)
    except (zipfile.BadZipFile, zlib.error):  # damage to what the header is packed in
        raise
    except Exception as error:  # a header is Python source; what its parser raises is not bounded
        raise DataError(
            f"{name}: not a complete .npy file of numbers ({error!s:.200}); write it again with "
            "numpy.save"
        ) from error
    if kind.hasobject or kind.kind not in kinds or kind.subdtype is not None:
        raise DataError(
            f"{name} has dtype {kind!s:.100}, not real numbers: leave out or encode the columns "
            "that are not numbers"
        )
    count = 1
    for length in shape:
        count *= length
    if min(shape, default=0) < 0 or stream.tell() + count * kind.itemsize > size:
        raise DataError(
            f"{name}: not a complete .npy file, for its header declares {shape!s:.200} of {kind} "
            f"where there are {size} bytes; write it again"
        )
    return kind, shape, fortran


def place_npz(path: Path, options: Options, room: RowStorage) -> Stored | StoredCSR | Any:
    """Describe the dense matrix or the scipy sparse matrix in a ``.npz`` file.

    What is compressed is unpacked into a file of the room first. Sparse matrices that are not CSR
    are loaded into memory.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = {n.removesuffix(".npy") for n in archive.namelist()}
            if names and all(Path(n).suffix not in ("", ".npy") for n in archive.namelist()):
                raise DataError(
                    f"{path}: a zip file with {', '.join(sorted(names))[:200]}; unpack it, and "
                    "give what is in it"
                )
            key = options.key or ("X" if "X" in names else None)
            if key is None and names >= SPARSE:
                return _open_sparse(archive, path, room)
            if key is None and len(names) == 1:
                key = next(iter(names))
            if key not in names:
                raise DataError(
                    f"{path}: holds {', '.join(sorted(names)) or 'nothing'}; expected a dense "
                    "matrix under the key X (or key=…), or one saved by scipy.sparse.save_npz"
                )
            return _member(archive, path, key, room)
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, OSError,
            RuntimeError, UnicodeError, ValueError, struct.error) as error:  # fmt: skip
        raise DataError(
            f"{path}: not a complete .npz file ({error!s:.200}); write it again with numpy.savez "
            "or scipy.sparse.save_npz"
        ) from error


def _open_sparse(archive: zipfile.ZipFile, path: Path, room: RowStorage) -> Any:
    name = str(_small(archive, path, "format", "SU").astype("U"))
    shape = tuple(int(length) for length in _small(archive, path, "shape", "iu").reshape(-1))
    if name != "csr":
        return _convert(archive, path, room, shape)
    data, indices, indptr = (_member(archive, path, k, room) for k in ("data", "indices", "indptr"))
    if (
        len(shape) != 2
        or min(shape) < 0
        or indptr.shape != (shape[0] + 1,)
        or data.shape != indices.shape
        or len(data.shape) != 1
        or {indices.dtype.kind, indptr.dtype.kind} != {"i"}
    ):
        raise DataError(
            f"{path}: the parts of its sparse matrix do not belong together; write it again with "
            "scipy.sparse.save_npz"
        )
    last = int(indptr.cut(shape[0], shape[0] + 1).read()[0])
    if not 0 <= last <= data.shape[0]:
        raise DataError(f"{path}: index pointers outside of the entries; write it again")
    return StoredCSR(data, indices, indptr, shape[1], 0, last)


def _convert(archive: zipfile.ZipFile, path: Path, room: RowStorage, shape: tuple[int, ...]) -> Any:
    """Load a sparse matrix of another format, which cannot be cut by rows as it stands."""
    from scipy.sparse import load_npz

    for info in archive.infolist():
        with archive.open(info) as stream:
            refuse_bomb(info, f"{path}[{info.filename}]")
            read_header(stream, info.file_size, f"{path}[{info.filename}]", kinds="fiubcSU")
    if sum(info.file_size for info in archive.infolist()) + 8 * sum(shape[:1]) > room.limit // 3:
        raise DataError(f"{path}: a large sparse matrix that is not CSR; save it as X.tocsr()")
    matrix: Any = load_npz(path)
    if hasattr(matrix, "indptr"):
        check_compressed(matrix)
    return matrix


def _small(archive: zipfile.ZipFile, path: Path, key: str, kinds: str) -> Any:
    """Read an array of a few bytes."""
    info = archive.getinfo(f"{key}.npy")
    if info.file_size > MAX_HEADER:
        raise DataError(f"{path}[{key}] is {info.file_size} bytes long; write it again")
    content = io.BytesIO(archive.read(info))
    read_header(content, info.file_size, f"{path}[{key}]", kinds)
    content.seek(0)
    return np.lib.format.read_array(content, allow_pickle=False)


def _member(archive: zipfile.ZipFile, path: Path, key: str, room: RowStorage) -> Stored:
    """Describe an array of the archive where it stands, or where it was unpacked to."""
    info = archive.getinfo(f"{key}.npy" if f"{key}.npy" in archive.namelist() else key)
    name = f"{path}[{key}]"
    with archive.open(info) as stream:
        kind, shape, fortran = read_header(stream, info.file_size, name)
        header = stream.tell()
        if info.compress_type == zipfile.ZIP_STORED:
            return _stored(path, _data_offset(path, info) + header, kind, shape, fortran)
        refuse_bomb(info, name)
        target = room.file(info.file_size - header)
        with open(target, "wb") as out:
            shutil.copyfileobj(stream, out, CHUNK)
    if os.path.getsize(target) < info.file_size - header:
        raise DataError(f"{name} ends too early; write it again")
    return _stored(target, 0, kind, shape, fortran, name)


def refuse_bomb(info: zipfile.ZipInfo, name: str) -> None:
    """Refuse a member of a zip file that unpacks to very many times its size."""
    if info.file_size > max(BOMB_BYTES, BOMB_RATIO * info.compress_size):
        raise DataError(
            f"{name}: {info.compress_size} bytes would unpack to {info.file_size}; if that is "
            "meant, save it again uncompressed"
        )


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where the bytes of an uncompressed member begin."""
    with open(path, "rb") as stream:
        stream.seek(info.header_offset)
        header = stream.read(30)
    name, extra = struct.unpack("<HH", header[26:30])
    return info.header_offset + 30 + int(name) + int(extra)
