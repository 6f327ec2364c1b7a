"""From rows to shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import DataError
from localpower.core.machine import ROWS_SHARE
from localpower.data.blocks import Block
from localpower.data.source import Source
from localpower.data.spool import RowStorage, Spool
from localpower.worker.kernels import BLOCK_BYTES
from localpower.worker.shard import Shard, cut, is_stored, nbytes

Numbers = NDArray[np.intp]
STRETCHES = 64  # per shard, that rows in files are shuffled by
MIN_STRETCH = 1 << 18  # bytes
LEAST = 1 << 16  # entries of a shard: fewer are worked on sooner than handed out
KEPT_SHARE = 0.5  # of memory, for what is computed from rows in files and kept


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Shards, and the original number of each of their rows if their order was changed.

    `room` has the temporary files of rows that were brought together for it.
    """

    shards: tuple[Shard, ...]
    order: Numbers | None = None
    room: RowStorage | None = None

    def original_row(self, number: int) -> int:
        """Return the number, in the data as given, of a row counted in shard order."""
        return number if self.order is None else int(self.order[number])

    def in_original_order(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Undo the change of order for one row per sample."""
        if self.order is None:
            return rows
        out = np.empty_like(rows)
        out[self.order] = rows
        return out


def contiguous(source: Source, workers: int, at_once: int = 1) -> Partition:
    """Cut rows into `workers` nearly equal shards.

    The user's own shards are kept unless another number of them is asked for.
    """
    if source.separate and workers == len(source.tables):
        return _of([table.pieces for table in source.tables], source, at_once)
    size, longer = divmod(source.rows, workers)
    cuts = [number * size + min(number, longer) for number in range(workers + 1)]
    return _of([_between(source, *ends) for ends in pairwise(cuts)], source, at_once)


def shuffled(source: Source, workers: int, rng: np.random.Generator, at_once: int = 1) -> Partition:
    """Cut rows into `workers` nearly equal shards at random.

    Rows in files that do not fit in memory are not copied: stretches of them, many to a shard, are
    dealt out at random.
    """
    if _fits(source):
        return _gathered(source, np.array_split(rng.permutation(source.rows), workers), at_once)
    stretches = _stretches(source, workers)
    deal = np.array_split(rng.permutation(len(stretches)), workers)
    shards = [tuple(_one(source, *stretches[i]) for i in part) for part in deal]
    rows = [np.arange(*stretches[i]) for part in deal for i in part]
    return replace(_of(shards, source, at_once), order=np.concatenate(rows))


def by_label(source: Source, workers: int | None, at_once: int = 1) -> Partition:
    """Make one shard per label; or deal the labels, in order, to `workers` shards."""
    kinds, label = np.unique(_labels(source), return_inverse=True)
    workers = workers or len(kinds)
    if workers > len(kinds):
        raise ValueError(
            f"workers={workers} is more than there are labels, {len(kinds)}; take at most that many"
        )
    shard = np.repeat(np.arange(workers), [len(p) for p in np.array_split(kinds, workers)])[label]
    return _assigned(source, shard, workers, at_once)


def dirichlet(
    source: Source,
    workers: int,
    rng: np.random.Generator,
    concentration: float,
    at_once: int = 1,
) -> Partition:
    """Deal the rows of each label to `workers` shards in Dirichlet-distributed shares.

    The smaller the concentration, the more the shards differ; without labels, in size only.
    """
    label = np.zeros(source.rows, int) if source.labels is None else _labels(source)
    kinds, label = np.unique(label, return_inverse=True)  # those that are nan are one kind
    shard = np.empty(source.rows, np.intp)
    for kind in range(len(kinds)):
        rows = rng.permutation(np.flatnonzero(label == kind))
        shares = rng.dirichlet(np.full(workers, concentration))
        ends = np.round(np.cumsum(shares) * len(rows)).astype(int)
        for number, part in enumerate(np.split(rows, ends[:-1])):
            shard[part] = number
    return _assigned(source, shard, workers, at_once)


PARTITIONS = ("contiguous", "shuffled", "label", "dirichlet")


def partition(
    source: Source,
    workers: int | None,
    how: str,
    rng: np.random.Generator,
    at_once: int,
) -> Partition:
    """Cut rows as `how` names it, ``"dirichlet:0.5"`` with its concentration.

    `at_once` shards are worked on at the same time, so many must fit in memory together.
    """
    name, _, text = how.partition(":")
    count = workers or _default_workers(source, at_once)
    ways: dict[str, Callable[[], Partition]] = {
        "contiguous": lambda: contiguous(source, count, at_once),
        "shuffled": lambda: shuffled(source, count, rng, at_once),
        "label": lambda: by_label(source, workers, at_once),
        "dirichlet": lambda: dirichlet(source, count, rng, float(text or 1.0), at_once),
    }
    return ways[name]()


def _default_workers(source: Source, at_once: int) -> int:
    """As many as work at once; more where shards must be small to be held in memory."""
    if source.separate:
        return len(source.tables)
    count = at_once
    if not _fits(source):
        room = _room_for_rows(source) * 9 // 10  # rows of sparse data are not equally long
        held = max(1, room // at_once * source.rows // source.stored)
        count = -(-source.rows // held)
        count = -(-count // at_once) * at_once
    return max(1, min(count, source.rows))


def _room_for_rows(source: Source) -> int:
    taken = source.room.limit - source.room.left  # rows that were read into memory already
    return max(int(ROWS_SHARE * source.memory) - taken, 1)


def _fits(source: Source) -> bool:
    return source.stored <= _room_for_rows(source)


def _of(shards: Sequence[tuple[Any, ...]], source: Source, at_once: int) -> Partition:
    """Make shards of pieces, and decide how long they keep what they read.

    Blocks do not depend on the engine; nor on memory, unless rows are very wide.
    """
    limit = max(source.memory // 32, BLOCK_BYTES)
    plain = [Shard(pieces, source.columns, source.dtype, limit=limit) for pieces in shards]
    room, largest = _room_for_rows(source), max(shard.stored for shard in plain)
    if sum(shard.stored for shard in plain) <= room:
        keep = "run"
    else:
        keep = "task" if largest * min(at_once, len(plain)) <= room else "block"
    spare = int(KEPT_SHARE * source.memory) // len(plain) if keep != "run" else plain[0].spare
    return Partition(
        tuple(
            replace(shard, keep=keep, number=number, spare=spare)
            for number, shard in enumerate(plain)
        )
    )


def _between(source: Source, start: int, stop: int) -> tuple[Any, ...]:
    """Views of the rows from `start` to `stop`, one for each piece that has some."""
    views, first = [], 0
    for piece in source.pieces:
        low, high = max(start - first, 0), min(stop - first, piece.shape[0])
        if low < high:
            views.append(cut(piece, low, high))
        first += piece.shape[0]
    return tuple(views)


def _one(source: Source, start: int, stop: int) -> Any:
    (piece,) = _between(source, start, stop)
    return piece


def _stretches(source: Source, workers: int) -> list[tuple[int, int]]:
    """Cut all pieces into stretches of rows, many for each shard but not too small to read."""
    found: list[tuple[int, int]] = []
    first = 0
    for piece in source.pieces:
        rows = piece.shape[0]
        least = -(-MIN_STRETCH * rows // max(nbytes(piece), 1))
        step = max(1, least, source.rows // (workers * STRETCHES))
        found += [(first + i, first + min(i + step, rows)) for i in range(0, rows, step)]
        first += rows
    return found


def _assigned(source: Source, shard: Numbers, workers: int, at_once: int) -> Partition:
    """Bring each row to the shard it is assigned to; rows of a shard stay in order."""
    parts = [np.flatnonzero(shard == number) for number in range(workers)]
    if _fits(source):
        return _gathered(source, parts, at_once)
    room = source.room.files_within()
    spools = [Spool(room) for _ in range(workers)]
    whole = Shard(source.pieces, source.columns, source.dtype)
    first = 0
    try:
        for block in whole.blocks():
            to = shard[first : (first := first + block.shape[0])]
            for number in np.unique(to):
                spools[number].add(Block(block[to == number]), "data")
    finally:
        for spool in spools:
            spool.close()
    tables = [spool.table() for spool in spools]
    cut_up = _of([table.pieces for table in tables], source, at_once)
    return replace(cut_up, order=np.concatenate(parts), room=room)


def _gathered(source: Source, parts: Sequence[Numbers], at_once: int) -> Partition:
    """Copy rows by number; all of them are in memory."""
    whole = _stacked(source)
    shards = _of([(whole[part],) for part in parts], source, at_once)
    return replace(shards, order=np.concatenate(parts))


def _stacked(source: Source) -> Any:
    pieces = [piece.read() if is_stored(piece) else piece for piece in source.pieces]
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        return np.concatenate(pieces)
    from scipy.sparse import csr_array, vstack

    known = [piece.astype(source.dtype, copy=False) for piece in pieces]
    return csr_array(vstack([csr_array(piece) for piece in known]))


def _labels(source: Source) -> NDArray[Any]:
    if source.labels is None:
        raise DataError(
            "partition by label: the data have no labels; name their column with "
            "localpower.read(data, label=…), or give them as localpower.read(data, labels=…)"
        )
    return source.labels


def useful(workers: int, source: Source, width: int) -> int:
    """How many shards are worth it: each holds more numbers than it sends in a round, and many."""
    entries = Shard(source.pieces, source.columns, source.dtype).entries
    return max(1, min(workers, entries // max(source.columns * width, LEAST), source.rows))
