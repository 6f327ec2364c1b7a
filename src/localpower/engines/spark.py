"""Shards as partitions of a cached RDD: Spark on this machine, on a cluster, or the user's own.

A round is one Spark job. Spark hands a partition to some Python process in every job, and ends a
process that does not take all of it; so it is read as bytes, and thrown away where the process has
made a matrix of it before. Whatever is lost, Spark computes again.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby, islice
from operator import iadd
from threading import Event
from typing import Any, TypeVar, cast
from uuid import uuid4

import numpy as np
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import RDD, Broadcast, InheritableThread, SparkConf, SparkContext, StorageLevel
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import CPickleSerializer, NoOpSerializer

from localpower.core.errors import DataError, EngineError, WorkerFailed, WorkerLate, WorkerLost
from localpower.core.linalg import FAN_IN, combined
from localpower.engines.base import Engine
from localpower.engines.blas import one_blas_thread
from localpower.engines.threads import cores
from localpower.engines.worker import Failure
from localpower.version import __version__
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import (
    EngineBlock,
    LoadedBlock,
    OpenBlock,
    Piece,
    Shard,
    cut,
    is_sparse,
    is_stored,
    share_names,
)
from localpower.worker.tasks import Task

R = TypeVar("R")
CHUNK = 1 << 23  # bytes of rows that travel as one element: Spark takes no more than 2 GB
TOGETHER = 8  # of those in a task that brings rows to the executors
BATCH = 1024  # rows that are made into one piece
MOST = 64  # replies that may come to the coordinator at once, at least
KEPT = 1 << 29  # bytes of rows of which a Python process keeps the matrices
LARGE = 1 << 20  # bytes from which on a task is a broadcast variable of its own
REACH = 5.0  # seconds that a master may take to accept a connection
HEALING = 60.0  # seconds that Spark may take to get over what was cancelled
LEVEL = StorageLevel.MEMORY_AND_DISK_DESER  # bytes as they are: nothing to unpack in a round
PICKLE: Any = CPickleSerializer()
NATIVE = ("RDD", "DataFrame", "RowMatrix", "IndexedRowMatrix")
MISSING = re.compile(r"No module named '(?:numpy|scipy|threadpoolctl|localpower[\w.]*)'")
PLACE = re.compile(r"(\[[\da-fA-F:.]+\]|[\w.-]+):\d+")
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.driver.maxResultSize": "0",
}
JAVA_FRAMES = re.compile(
    r"^\s+at .*\n?|^\s*\.\.\. \d+ more\n?|^Driver stacktrace:\n?"
    r"|^[\w.$/<>]+\((?:Native Method|Unknown Source|\w+\.(?:java|scala):\d+)\)\n?",
    re.M,
)


class Spark(Engine):
    """Runs a job a round; shard i is partition i of an RDD that is cached on the executors."""

    latency = 0.1
    bandwidth = 1e8

    def __init__(self, address: Any, size: int | None) -> None:
        self._address, self._wanted = address, size
        self._context: Any = None
        self._started: list[Any] = []
        weakref.finalize(self, _stop, self._started)
        self._rows: Any = None
        self._raw: Any = None
        self._shards: Sequence[Shard] = ()
        self._marks = count(1)
        self._broken: EngineError | None = None
        self._connect()

    @property
    def size(self) -> int:
        return self._size

    def place(self, shards: Sequence[Shard]) -> None:
        self._connect()
        super().place(shards)
        self._shards, self._broken = shards, None
        self._run = uuid4().hex
        self._frames = tuple(replace(shard, pieces=()) for shard in shards)
        self._lasting: tuple[int, Task[Any] | None] = (0, None)
        try:
            self._bring()
        except WorkerLost:
            self._restart()

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        numbers, most = self.numbers(order), max(MOST, 4 * self._size)
        with self._job(task, numbers) as job:
            for start in range(0, len(numbers), most):
                yield from self._collected(job, numbers[start : start + most])

    def sum(self, task: Task[R]) -> R:
        levels = [len(self.rows)]
        while levels[-1] > FAN_IN:
            levels.append(-(-levels[-1] // FAN_IN))
        with self._job(task, self.numbers()) as job:
            total: R = combined(iadd, self._collected(job, range(levels[-1]), levels[1:]))
        return total

    def takes(self, data: Any) -> bool:
        return any(
            kind.__name__ in NATIVE and kind.__module__.partition(".")[0] == "pyspark"
            for kind in type(data).__mro__
        )

    def adopt(self, data: Any, open_block: OpenBlock) -> Sequence[EngineBlock]:
        self._connect()
        self._release()
        try:
            elements, names = _elements(data)
            self._keep(lambda: elements.mapPartitions(partial(_opened, open_block)))
            found = self._collected(_measured)
        except BaseException:
            self._release()
            raise
        columns = max((held.shape[1] for held in found), default=0)
        parts = (
            replace(held, handle=(self._rows, number), names=names or held.names,
                    shape=(held.shape[0], held.shape[1] or columns))
            for number, held in enumerate(found)
        )  # fmt: skip
        return list(share_names(parts))

    def heal(self, numbers: Sequence[int]) -> None:
        """Wait until Spark works again; one that was started here is started anew if it died."""
        try:
            self._within(lambda: self._context.parallelize([0], 1).count(), HEALING)
        except EngineError:
            self._restart()

    def close(self) -> None:
        self._release()
        self._shards, self._broken = (), None
        self._disconnect()
        super().close()

    def _connect(self) -> None:
        """Use what was given or is open in this process already; else start Spark."""
        if self._context is not None and self._context._jsc is not None:
            return
        mine = self._address is None or isinstance(self._address, str)
        context = SparkContext._active_spark_context if mine else _context_of(self._address)
        if context is None:
            context = self._start()
        elif context._jsc is None:
            raise EngineError("this Spark session was stopped: open another one")
        elif mine and self._address not in (None, context.master):
            raise EngineError(
                f"this process has a Spark session on {context.master} open, and may have only "
                f"one: stop it, or give it as engine= instead of {self._address!r}"
            )
        self._context = context
        self._size = self._wanted or self._within(lambda: int(context.defaultParallelism))

    def _start(self) -> SparkContext:
        """Start Spark; its Java process is quiet, and ends with this one at the latest."""
        local = self._address is None
        if not local:
            _reach(self._address)
        master = f"local[{self._wanted or cores()},4]" if local else self._address
        conf = SparkConf().setMaster(master).setAppName("localpower")
        conf.set("spark.ui.enabled", "false").set("spark.log.level", "OFF")
        folder = tempfile.mkdtemp(prefix="localpower-spark-") if local else None
        self._started.append((None, None, folder))
        if folder is not None:
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 21
            conf.setAll([*LOCAL.items(), ("spark.driver.memory", f"{max(memory, 1024)}m")])
            conf.set("spark.local.dir", folder)
            conf.set("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder}")
        gateway = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about versions of pandas, which is not used
                if SparkContext._gateway is None:
                    gateway = self._launched(conf, folder)
                context = SparkContext(conf=conf, gateway=gateway)
        except (Py4JError, PySparkException, OSError) as error:
            told = _translated_errors(error)  # by Java, while it is there
            _stop(self._started)
            raise EngineError(
                f"Spark did not start ({told}): it needs Java 17 or later, on the PATH or "
                "in JAVA_HOME, and a master that can be reached"
            ) from None
        except (KeyboardInterrupt, SystemExit):
            _stop(self._started)
            raise
        self._started[:] = [(context, gateway, folder)]
        if local:
            context.pythonExec = sys.executable
            paths = [os.path.abspath(path) for path in sys.path]
            context.environment |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        return context

    def _launched(self, conf: SparkConf, folder: str | None) -> Any:
        """Start Java in a thread: a signal ends the wait for it, but only when it is known."""

        def launch() -> Any:
            gateway = cast(Any, launch_gateway)(conf, {"stderr": subprocess.DEVNULL})
            self._started[:] = [(None, gateway, folder)]
            _hang_up(gateway)
            return gateway

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(launch).result()

    def _disconnect(self) -> None:
        self._context = None
        _stop(self._started)

    def _restart(self) -> None:
        """After an error, start what was started here anew; if it was not, raise that error."""
        if not self._started or not self._shards or _handle(self._shards) is not None:
            raise
        try:
            self._disconnect()
            self._connect()
            self._bring()
        except EngineError as error:
            self._rows, self._broken = None, error
            raise

    def _bring(self) -> None:
        """Send rows to the executors, or take those that are there, and have them kept."""
        handle = _handle(self._shards)
        if handle is None or handle is not self._rows:
            self._release()
            self._keep(self._sent if handle is None else lambda: handle)

    def _sent(self) -> Any:
        """Rows of the coordinator, in the partitions of their shards.

        They are shuffled, as Spark would send parallelized ones anew with every task.
        """
        items = [
            (number, (place, chunk))
            for number, shard in enumerate(self._shards)
            for place, chunk in enumerate(_chunks(shard.pieces))
        ]
        slices = max(min(self._size, len(items)), -(-len(items) // TOGETHER))
        pairs = self._context.parallelize(items, slices)
        return pairs.partitionBy(len(self._shards), _itself).mapPartitions(_in_order)

    def _keep(self, rows: Callable[[], Any]) -> None:
        def keep() -> None:
            self._rows = rows()._reserialize(PICKLE)  # one element, one frame of bytes
            self._rows.persist(LEVEL)
            self._raw = RDD(self._rows._jrdd, self._context, NoOpSerializer())

        self._within(keep)

    def _release(self) -> None:
        rows, self._rows, self._raw = self._rows, None, None
        if rows is not None:
            _tell(rows.unpersist)

    @contextmanager
    def _job(self, task: Task[Any], numbers: Sequence[int]) -> Iterator[Job]:
        """Yield what is to run on the executors for a task.

        Spark sends a job's function once to every executor. One task for each shard is sent so too:
        they share their arrays, and would be repeated with them otherwise.
        """
        if self._rows is None:
            raise self._broken or EngineError("this engine holds no shards: place them first")
        tasks = {number: task.for_shard(number) for number in numbers}
        alike = all(mine is task for mine in tasks.values())
        mark, lasting = self._lasting
        after = next(self._marks) if task.persists else mark
        letter: Any = (task if alike else tasks, lasting)
        if _weight(letter) > LARGE:
            letter = self._within(partial(self._context.broadcast, letter))
        try:
            yield Job(self._run, self._frames, letter, mark, after)
            self._lasting = (after, task) if task.persists else self._lasting
        finally:
            if isinstance(letter, Broadcast):
                _tell(letter.destroy)

    def _collected(
        self, ask: Any, numbers: Sequence[int] | None = None, levels: Sequence[int] = ()
    ) -> list[Any]:
        """Run one job; return the replies of these partitions, in this order.

        `levels` says how many sums there are after every group of `FAN_IN` was added, and so on.
        """

        def run() -> list[tuple[int, Any]]:
            pairs = self._raw.mapPartitionsWithIndex(ask)
            for left in levels:
                pairs = pairs.partitionBy(left, _group).mapPartitionsWithIndex(_fold)
            chosen = None if numbers is None else list(numbers)
            return list(self._context.runJob(pairs, _itself, chosen))

        found = self._within(run)
        for _, reply in found:
            if isinstance(reply, Failure) and reply.complaint:
                raise DataError(reply.complaint)
            if isinstance(reply, Failure):
                raise WorkerFailed(f"a task failed on a Spark executor:\n{reply.traceback}")
        return [reply for _, reply in found]

    def _abandon(self, cancel: Callable[[], Any]) -> None:
        """Leave a job in its middle, and with it the connection it answers on: end Java if ours."""
        for _, gateway, _ in self._started:
            if gateway is not None and gateway.proc is not None:
                gateway.proc.kill()
                return
        _hang_up(SparkContext._gateway)
        thread = InheritableThread(target=cancel, daemon=True)
        thread.start()
        thread.join(5)

    def _within(self, job: Callable[[], R], patience: float = 0.0) -> R:
        """Run a job; cancel it if it is late, and say what went wrong in our own errors.

        It may take as long as the deadline, but `patience` seconds at least.
        """
        context, tag, done = self._context, f"localpower-{uuid4().hex}", Event()
        if context is None or context._jsc is None:
            raise WorkerLost("the Spark session was stopped: open another one, and run again")
        late, limit = Event(), max(self.deadline or 0.0, patience)

        def watch() -> None:
            wait = limit
            while not done.wait(wait):
                late.set()
                with suppress(Exception):
                    context.cancelJobsWithTag(tag)
                wait = 0.5  # it may have been submitted just after

        try:
            context.addJobTag(tag)
            if limit:
                InheritableThread(target=watch, daemon=True).start()
            return job()
        except (Py4JError, PySparkException, EOFError, OSError) as error:
            if late.is_set():
                raise WorkerLate(
                    f"a Spark job was cancelled after the deadline of {limit:g} seconds: "
                    "set a later one, or use more executors or smaller shards"
                ) from None
            raise _translated(error, context.master, bool(self._started)) from None
        except (KeyboardInterrupt, SystemExit):
            self._abandon(partial(context.cancelJobsWithTag, tag))
            raise
        finally:
            done.set()
            _tell(partial(context.removeJobTag, tag))


@dataclass(slots=True)
class Kept:
    """A matrix that a Python process keeps; `mark` names the lasting task it is prepared by."""

    matrix: LocalMatrix
    size: int
    mark: int = 0


_kept: dict[tuple[str, int], Kept] = {}  # of the current run, by shard


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What a partition is asked, on the executor: called with its number and rows as bytes.

    The `letter` holds the task, or one for each shard, and the last one that lasts: `before` is the
    mark of the latter, `after` the mark of what lasts from now on.
    """

    run: str
    frames: tuple[Shard, ...]
    letter: Any
    before: int
    after: int

    def __call__(self, number: int, frames: Iterator[bytes]) -> Iterator[tuple[int, Any]]:
        with _reported() as failures, one_blas_thread():
            reply = self._reply(number, frames)
        for _ in frames:  # else Spark ends this process, with all matrices it keeps
            pass
        yield number, failures[0] if failures else reply

    def _reply(self, number: int, frames: Iterator[bytes]) -> Any:
        letter = self.letter
        task, lasting = letter.value if isinstance(letter, Broadcast) else letter
        kept = self._find(number, frames, lasting)
        kept.mark = self.before if self.after == self.before else -1
        reply = (task[number] if isinstance(task, dict) else task)(kept.matrix)
        kept.mark = self.after
        return reply

    def _find(self, number: int, frames: Iterator[bytes], lasting: Task[Any] | None) -> Kept:
        for key in [key for key in _kept if key[0] != self.run]:
            del _kept[key]
        key = self.run, number
        kept = _kept.get(key)
        if kept is None or (kept.mark != self.before and lasting is None):
            pieces = tuple(_pieces(frames))
            size = sum(_size(piece) for piece in pieces)
            kept = Kept(LocalMatrix(replace(self.frames[number], pieces=pieces)), size)
            _kept.pop(key, None)
            if not _kept or sum(other.size for other in _kept.values()) + size <= KEPT:
                _kept[key] = kept
        if kept.mark != self.before and lasting is not None:
            lasting.for_shard(number)(kept.matrix)
            kept.mark = self.before
        return kept


@contextmanager
def _reported() -> Iterator[list[Failure]]:
    """Take down what a task raises as a reply: Spark would try it again, and print it."""
    failures: list[Failure] = []
    try:
        yield failures
    except DataError as error:
        failures.append(Failure(traceback.format_exc(), str(error)))
    except Exception:
        failures.append(Failure(traceback.format_exc()))


def _pieces(frames: Iterable[bytes], names: set[Any] | None = None) -> Iterator[Piece]:
    """Yield pieces of rows; what their columns are called is collected if somebody wants it."""
    for frame in frames:
        piece = PICKLE.loads(frame)
        if isinstance(piece, Failure):
            raise DataError(piece.complaint) if piece.complaint else WorkerFailed(piece.traceback)
        if not isinstance(piece, LoadedBlock):
            yield piece
        elif names is not None:
            names.add(piece.names)


def _fold(number: int, pairs: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Add one group of replies, as `linalg.fold` does."""
    replies = [reply for _, reply in sorted(pairs, key=lambda pair: pair[0])]
    failures = [reply for reply in replies if isinstance(reply, Failure)]
    if not failures:
        with _reported() as failures, one_blas_thread():
            total = combined(iadd, replies)
    yield number, failures[0] if failures else total


def _group(number: int) -> int:
    return number // FAN_IN


def _itself(item: Any) -> Any:
    return item


def _in_order(pairs: Iterable[tuple[int, tuple[int, Any]]]) -> Iterator[Any]:
    return (chunk for _, (_, chunk) in sorted(pairs, key=lambda pair: pair[1][0]))


def _chunks(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Cut pieces into such as can travel; shards work alike however their rows are cut."""
    for piece in pieces:
        rows = piece.shape[0]
        step = max(1, rows if is_stored(piece) else CHUNK * rows // max(1, _size(piece)))
        for start in range(0, max(rows, 1), step):
            yield cut(piece, start, min(start + step, rows))


def _weight(letter: Any) -> int:
    """Bytes of arrays in what is to be sent, each once."""
    arrays: list[pickle.PickleBuffer] = []
    pickle.dumps(letter, protocol=5, buffer_callback=arrays.append)
    return sum(array.raw().nbytes for array in arrays)


def _size(piece: Piece) -> int:
    if isinstance(piece, np.ndarray) or is_stored(piece):
        return int(piece.nbytes)
    return int(piece.data.nbytes + piece.indices.nbytes + piece.indptr.nbytes)


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
    try:
        rows = data.rdd
    except PySparkException:
        raise DataError("a DataFrame of Spark Connect has no RDD; use a classic session") from None
    if len(kinds) == 1 and type(kinds[0]).__name__ in ("VectorUDT", "ArrayType"):
        return rows.map(_first), None
    words = [
        field.name for field in fields if not isinstance(field.dataType, NumericType | BooleanType)
    ]
    if words:
        raise DataError(
            f"column(s) {', '.join(words)} of the DataFrame hold no numbers: select those that do, "
            "or one column of vectors"
        )
    narrow = all(isinstance(kind, FloatType) for kind in kinds)
    numbers = rows.mapPartitions(partial(_arrays, "float32" if narrow else "float64"))
    return numbers, tuple(field.name for field in fields)


def _first(row: Any) -> Any:
    return row[0]


def _arrays(kind: str, rows: Iterator[Any]) -> Iterator[Any]:
    while batch := list(islice(rows, BATCH)):
        yield np.array(batch, dtype=kind)  # what is missing becomes NaN


def _opened(open_block: OpenBlock, elements: Iterable[Any]) -> Any:
    """Make pieces of a partition's elements; of vectors, many a piece.

    What columns are called, where they have names, comes before.
    """
    names = None
    with _reported() as failures:
        for kind, alike in groupby(map(_plain, elements), key=_kind):
            if kind == "block":
                for block in alike:
                    rows = open_block(block)
                    if rows.names not in (None, names):
                        names = rows.names
                        yield LoadedBlock((), names)
                    yield from _chunks(rows.pieces)
                continue
            while batch := list(islice(alike, BATCH)):
                block = _stacked(batch) if kind == "sparse" else [_row(row) for row in batch]
                yield from _chunks(open_block(block).pieces)
    yield from failures


def _plain(element: Any) -> Any:
    return element.vector if type(element).__name__ == "IndexedRow" else element


def _kind(element: Any) -> str:
    if type(element).__name__ == "SparseVector":
        return "sparse"
    if isinstance(element, list | tuple):
        return "row"
    return "block" if len(getattr(element, "shape", ())) == 2 else "row"


def _row(row: Any) -> Any:
    return row.toArray() if hasattr(row, "toArray") else row


def _stacked(vectors: Sequence[Any]) -> Any:
    from scipy.sparse import csr_array

    sizes = {vector.size for vector in vectors}
    if len(sizes) > 1:
        raise DataError(f"vectors of different lengths, {sorted(sizes)}; all need the same")
    ends = np.cumsum([0, *(len(vector.indices) for vector in vectors)])
    data = np.concatenate([vector.values for vector in vectors])
    indices = np.concatenate([vector.indices for vector in vectors])
    return csr_array((data, indices, ends), shape=(len(vectors), sizes.pop()))


def _measured(number: int, frames: Iterator[bytes]) -> Iterator[tuple[int, Any]]:
    """Tell what a partition is; its rows are kept on the way."""
    rows = entries = 0
    widths: set[int] = set()
    names: set[tuple[str, ...]] = set()
    kinds: set[np.dtype[Any]] = {np.dtype(np.float32)}
    with _reported() as failures:
        for piece in _pieces(frames, names):
            widths.add(int(piece.shape[1]))
            narrow = piece.dtype.kind == "f" and piece.dtype.itemsize < 8
            kinds.add(np.dtype(np.float32 if narrow else np.float64))
            rows += piece.shape[0]
            entries += piece.nnz if is_sparse(piece) else piece.shape[0] * piece.shape[1]
        if len(widths) > 1:
            raise DataError(f"partition {number} has rows of {sorted(widths)} columns")
        if len(names) > 1:
            raise DataError(
                f"partition {number} has frames with columns of other names or in another order; "
                "give them the same"
            )
    for _ in frames:
        pass
    shape = rows, max(widths, default=0)
    found = EngineBlock(None, shape, np.result_type(*kinds), entries, names=next(iter(names), None))
    yield number, failures[0] if failures else found


def _handle(shards: Sequence[Shard]) -> Any:
    """Return the RDD of shards that were adopted."""
    held = [
        piece.handle for shard in shards for piece in shard.pieces if isinstance(piece, EngineBlock)
    ]
    if held and [number for _, number in held] != list(range(len(shards))):
        raise EngineError("shards of Spark's own data can only be placed all, in their order")
    return held[0][0] if held else None


def _context_of(given: Any) -> Any:
    try:
        return getattr(given, "sparkContext", given)
    except PySparkException:
        raise EngineError(
            "Spark Connect has no RDDs; give a classic session, or a master"
        ) from None


def _reach(address: str) -> None:
    """Make sure that a master listens, before Java is started and tries for minutes."""
    places = address.removeprefix("spark://").split(",")
    wrong = [place for place in places if not PLACE.fullmatch(place)]
    if wrong:
        raise EngineError(
            f"engine={address!r} has no host and port in {wrong[0]!r}: give the address of a "
            "master that runs, as in 'spark://host:7077'"
        )
    reasons = []
    for place in places:
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH).close()
        except (OSError, ValueError, OverflowError) as error:
            reasons.append(f"{place}: {error}")
        else:
            return
    raise EngineError(
        f"engine={address!r} cannot be reached ({'; '.join(reasons)}): start a master there, or "
        "give the address of one that runs"
    )


def _translated_errors(error: BaseException) -> str:
    """Return what Spark says, without the frames of Java."""
    text = ""
    with suppress(Py4JError, OSError):  # where Java is asked for it, and is gone
        text = error._desc if hasattr(error, "_desc") else str(error)
    return JAVA_FRAMES.sub("", text or type(error).__name__).strip()


def _translated(error: BaseException, master: str, ours: bool) -> EngineError:
    text = _translated_errors(error)
    if "SparkContext has been shutdown" in text or "stopped SparkContext" in text:
        return EngineError(
            f"Spark has ended the session on {master}: see whether a master answers there and has "
            "not ended the application, and open another session"
        )
    if missing := MISSING.search(text):
        return EngineError(
            f"Python on the Spark executors cannot import localpower ({missing[0]}): install "
            f"version {__version__} there, and set PYSPARK_PYTHON to that Python before you open "
            "the session"
        )
    if "Traceback (most recent call last)" in text:
        return WorkerFailed(f"a task failed on a Spark executor:\n{text}")
    lost = ("exited unexpectedly", "ExecutorLost", "connect back", "shut down", "FetchFailed")
    if any(sign in text for sign in lost):
        return WorkerLost(
            f"a Spark worker was lost, also when its task was tried again; if memory ran out, use "
            f"more partitions or executors, else run again:\n{text}"
        )
    told = isinstance(error, PySparkException) or hasattr(error, "java_exception")
    if not told:
        then = "run again" if ours else "start Python anew, and open another session"
        return WorkerLost(f"the Java process of Spark is gone ({text}), and its session: {then}")
    return EngineError(f"Spark could not finish a job:\n{text}")


def _stop(started: list[Any]) -> None:
    """End what was started here: the session, and the Java process if it is ours."""
    while started:
        context, gateway, folder = started.pop()
        for _ in range(0 if context is None else 2):  # what a dead Java kept the first from doing
            with suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                context.stop()
        if gateway is not None and gateway.proc is not None:
            _end(gateway)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _tell(ask: Callable[[], Any]) -> None:
    """Ask Java for something that may fail, as it may be gone; a signal leaves no answer behind."""
    try:
        with suppress(Exception):
            ask()
    except (KeyboardInterrupt, SystemExit):
        _hang_up(SparkContext._gateway)
        raise


def _hang_up(gateway: Any) -> None:
    """Close this thread's connection to Java, if it keeps one; the next question opens another."""
    if isinstance(gateway, ClientServer):
        connection = gateway._gateway_client.get_thread_connection()
        if connection is not None:
            connection.close()


def _end(gateway: Any) -> None:
    """End the Java process: by itself when its input ends, or at last without asking."""
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        gateway.proc.stdin.close()
    try:
        gateway.proc.wait(10)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    if SparkContext._gateway is gateway:
        SparkContext._gateway = SparkContext._jvm = None
