"""Shards as partitions of a cached RDD: Spark on this machine, on a cluster, or the user's own.

A round is one Spark job. Spark hands a partition to some Python process in every job, and ends a
process that does not take all of it; so it is read as bytes, and thrown away where the process has
made a matrix of it before. Whatever is lost, Spark computes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any
from uuid import uuid4

import numpy as np
from pyspark import RDD, Broadcast, StorageLevel
from pyspark.serializers import CPickleSerializer, NoOpSerializer

from localpower.core.errors import DataError, EngineError, WorkerLost
from localpower.core.linalg import FAN_IN
from localpower.engines.blas import OneThreadHost
from localpower.engines.cluster import grouped, nbytes_of
from localpower.engines.spark_session import SparkJobs, tell
from localpower.worker.host import Failure, describe, result_of
from localpower.worker.shard import LoadedBlock, OpenBlock, Piece, cut, is_stored, nbytes
from localpower.worker.tasks import Task
from localpower.worker.vectors import BATCH, row_batches

CHUNK = 1 << 23  # bytes of rows that travel as one element: Spark takes no more than 2 GB
TOGETHER = 8  # of those in a task that brings rows to the executors
MOST = 64  # replies that may come to the coordinator at once, at least
KEPT = 1 << 29  # bytes of rows of which a Python process keeps the matrices
LARGE = 1 << 20  # bytes from which on a task is a broadcast variable of its own
HEALING = 60.0  # seconds that Spark may take to get over what was cancelled
LEVEL = StorageLevel.MEMORY_AND_DISK_DESER  # bytes as they are: nothing to unpack in a round
PICKLE: Any = CPickleSerializer()
NATIVE = ("RDD", "DataFrame", "RowMatrix", "IndexedRowMatrix")
WHERE = "on a Spark executor"
FIRST = itemgetter(0)


class Spark(SparkJobs):
    """Runs a job a round; shard i is partition i of an RDD that is cached on the executors."""

    latency = 0.1
    bandwidth = 1e8

    _rows: Any = None  # the RDD, as elements and as bytes
    _raw: Any = None

    def takes(self, data: Any) -> bool:
        return any(
            kind.__name__ in NATIVE and kind.__module__.partition(".")[0] == "pyspark"
            for kind in type(data).__mro__
        )

    def close(self) -> None:
        self._unpersist()
        super().close()
        self._context = None

    def _gather(self, count: int, adopted: bool) -> None:
        self._connect()
        self._run, self._mark = uuid4().hex, 0  # how many tasks that persist

    def _open(self, data: Any, open_block: OpenBlock) -> Iterator[tuple[Any, Any]]:
        self._connect()
        self._unpersist()
        elements, names = _elements(data)
        self._persist(lambda: elements.mapPartitions(partial(_opened, open_block)))
        for number, found in enumerate(self._collected(_measured)):
            yield (self._rows, number), replace(result_of(found), names=names or found.names)

    def _hold(self, numbers: Sequence[int]) -> None:
        """Send rows to the executors, or take those that are there, and have them kept."""
        try:
            self._bring()
        except WorkerLost as error:
            self._restart(error)

    def _exchange(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Any]:
        with self._job(task, numbers) as job:
            for some in grouped(numbers, max(MOST, 4 * self.size)):
                yield from self._collected(job, some)

    def _partial_sums(self, task: Task[Any]) -> list[Any]:
        levels = [len(self.rows)]
        while levels[-1] > FAN_IN:
            levels.append(-(-levels[-1] // FAN_IN))
        with self._job(task, self.numbers()) as job:
            return self._collected(job, range(levels[-1]), levels[1:])

    def _lost(self, numbers: Sequence[int]) -> Sequence[int]:
        """Wait until Spark works again; one that was started here is started anew if it died."""
        try:
            limit = max(self.deadline or 0.0, HEALING)
            self._within(lambda: self._context.parallelize([0], 1).count(), limit)
        except EngineError as error:
            self._restart(error)
        return ()

    def _check(self, numbers: Sequence[int]) -> None:
        super()._check(numbers)
        if self._rows is None:  # Spark died, and could not be started
            self._connect()
            self._bring()

    def _restart(self, error: Exception) -> None:
        """After an error, start what was started here anew; if it was not, raise that error."""
        if not self._ours or self._handle(0) is not None:
            raise error
        self._stack.close()
        self._context = self._rows = None
        self._check(())

    def _bring(self) -> None:
        handles = [self._handle(number) for number in range(len(self._shards))]
        rows = handles[0] and handles[0][0]  # an RDD, or None if they come from here
        if rows is not None and handles != [(rows, number) for number in range(len(handles))]:
            raise EngineError("shards of Spark's own data can only be placed all, in their order")
        if rows is None or rows is not self._rows:
            self._unpersist()
            self._persist(self._sent if rows is None else lambda: rows)

    def _sent(self) -> Any:
        """Rows of the coordinator, in the partitions of their shards.

        They are shuffled, as Spark would send parallelized ones anew with every task.
        """
        items = [
            (number, (place, LoadedBlock((chunk,))))
            for number, shard in enumerate(self._shards)
            for place, chunk in enumerate(_chunks(shard.pieces))
        ]
        slices = max(min(self.size, len(items)), -(-len(items) // TOGETHER))
        pairs = self._context.parallelize(items, slices)
        dealt = pairs.partitionBy(len(self._shards), _itself)
        return dealt.mapPartitions(lambda p: [c for _, c in sorted((c for _, c in p), key=FIRST)])

    def _persist(self, rows: Callable[[], Any]) -> None:
        def keep() -> None:
            self._rows = rows()._reserialize(PICKLE)  # one element, one frame of bytes
            self._rows.persist(LEVEL)
            self._raw = RDD(self._rows._jrdd, self._context, NoOpSerializer())

        self._within(keep)

    def _unpersist(self) -> None:
        rows, self._rows, self._raw = self._rows, None, None
        if rows is not None:
            tell(rows.unpersist)

    @contextmanager
    def _job(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Job]:
        """Yield what is to run on the executors for a task.

        Spark sends a job's function once to every executor. One task for each shard is sent so too:
        they share their arrays, and would be repeated with them otherwise.
        """
        self._mark += task.persists
        tasks = {n: (task.for_shard(n), self._persisting.get(n)) for n in numbers}
        unlike = {id(each): each for pair in tasks.values() for each in pair if each is not None}
        letter: Any = {n: (self._frame(n), *pair) for n, pair in tasks.items()}
        if sum(map(nbytes_of, unlike.values())) > LARGE:
            letter = self._within(partial(self._context.broadcast, letter))
        try:
            yield Job(self._run, letter, self._mark)
        finally:
            if isinstance(letter, Broadcast):
                tell(letter.destroy)

    def _collected(
        self, ask: Any, numbers: Sequence[int] | None = None, levels: Sequence[int] = ()
    ) -> list[Any]:
        """Run one job; return the replies of these partitions, in this order.

        `levels` says how many sums there are after every group of `FAN_IN` was added, and so on.
        """

        def run() -> list[Any]:
            pairs = self._raw.mapPartitionsWithIndex(partial(_answered, ask))
            for left in levels:
                groups = pairs.partitionBy(left, lambda number: number // FAN_IN)
                pairs = groups.mapPartitionsWithIndex(_fold)
            chosen = None if numbers is None else list(numbers)
            return [reply for _, reply in self._context.runJob(pairs, _itself, chosen)]

        return self._within(run)


# What runs on executors.


class Holder(OneThreadHost):
    """The host of a Python process during a `run`; `marks` name the tasks that prepared shards."""

    def __init__(self, run: str = "") -> None:
        super().__init__(WHERE)
        self.name = run
        self.marks: dict[int, int] = {}


_holder = Holder()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What a partition is asked, on the executor: called with its number and rows as bytes.

    The `letter` has each shard without its rows, its task, and the last one that persists, whose
    mark is `mark`.
    """

    run: str
    letter: Any
    mark: int

    def __call__(self, number: int, frames: Iterator[bytes]) -> Any:
        global _holder
        if _holder.name != self.run:
            _holder = Holder(self.run)
        letter = self.letter.value if isinstance(self.letter, Broadcast) else self.letter
        frame, task, persisting = letter[number]
        ready = number in _holder.marks and (task.persists or _holder.marks[number] == self.mark)
        if not ready:
            held = _holder.hold(number, frame, partial(_loaded, number, frames), persisting)
            if isinstance(held, Failure):
                return held
        reply = _holder.run(number, task)
        _holder.marks[number] = self.mark
        full = len(_holder.marks) > 1 and not ready and _holder.nbytes > KEPT
        if full or isinstance(reply, Failure):  # after which it may be prepared in part
            _holder.drop(number)
            del _holder.marks[number]
        return reply


def _answered(ask: Any, number: int, frames: Iterator[bytes]) -> Iterator[tuple[int, Any]]:
    """Have a partition answer, and take all of it: else Spark ends this process."""
    reply = ask(number, frames)
    for _ in frames:
        pass
    yield number, reply


def _fold(number: int, pairs: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    yield number, OneThreadHost(WHERE).add([reply for _, reply in sorted(pairs, key=FIRST)])


def _itself(item: Any) -> Any:
    return item


def _chunks(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Cut pieces into such as can travel; shards work alike however their rows are cut."""
    for piece in pieces:
        rows = piece.shape[0]
        step = max(1, rows if is_stored(piece) else CHUNK * rows // max(1, nbytes(piece)))
        for start in range(0, max(rows, 1), step):
            yield cut(piece, start, min(start + step, rows))


# Data of Spark's own kinds.


def _elements(data: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Return the RDD whose elements are rows, vectors or blocks, and names of columns if known."""
    if isinstance(data, RDD):
        return data, None
    if type(data).__name__.endswith("RowMatrix"):
        return data.rows, None
    data = data.to_spark() if type(data).__module__.startswith("pyspark.pandas") else data
    from pyspark.sql.types import BooleanType, FloatType, NumericType

    fields = data.schema.fields
    kinds = [field.dataType for field in fields]
    if len(kinds) == 1 and type(kinds[0]).__name__ in ("VectorUDT", "ArrayType"):
        return data.rdd.map(FIRST), None
    numeric = NumericType, BooleanType
    if words := [field.name for field in fields if not isinstance(field.dataType, numeric)]:
        raise DataError(
            f"column(s) {', '.join(words)} of the DataFrame hold no numbers: select those that do, "
            "or one column of vectors"
        )
    narrow = all(isinstance(kind, FloatType) for kind in kinds)
    numbers = data.rdd.mapPartitions(partial(_arrays, "float32" if narrow else "float64"))
    return numbers, tuple(field.name for field in fields)


def _arrays(kind: str, rows: Iterator[Any]) -> Iterator[Any]:
    while batch := list(islice(rows, BATCH)):
        yield np.array(batch, dtype=kind)  # what is missing becomes NaN


def _opened(open_block: OpenBlock, elements: Iterable[Any]) -> Any:
    """Make blocks of a partition's elements, that can travel; of vectors, many a block."""
    try:
        for _, _, given in row_batches(elements):
            rows = open_block(given)
            yield from (replace(rows, pieces=(chunk,)) for chunk in _chunks(rows.pieces))
    except Exception as error:  # Spark would try it again, and print it
        yield Failure.of(error, WHERE)


def _loaded(number: int, frames: Iterable[bytes]) -> LoadedBlock:
    """Rows of a partition, of which all have the same columns."""
    where = f"partition {number} of the data"
    parts = [result_of(PICKLE.loads(frame)) for frame in frames]
    names = {part.names for part in parts} - {None}
    pieces = tuple(piece for part in parts for piece in part.pieces)
    widths = {int(piece.shape[1]) for piece in pieces}
    if len(widths) > 1:
        raise DataError(f"{where} has rows of {sorted(widths)} columns; give all the same")
    if len(names) > 1:
        raise DataError(
            f"{where} has frames with columns of other names or in another order; give all the same"
        )
    return LoadedBlock(pieces, next(iter(names), None))


def _measured(number: int, frames: Iterator[bytes]) -> Any:
    """Tell what a partition is; its rows are kept on the way."""
    return OneThreadHost(WHERE).attempt(lambda: describe(_loaded(number, frames)))
