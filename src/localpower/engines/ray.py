"""Shards in actors of a Ray cluster: the user's own, or a local one that is started and stopped.

An actor holds shards for as long as they are placed. Rows that come from the coordinator, and
blocks of a Ray dataset, are in the object store of its node and used from there. Actors take no
CPUs from other work of the cluster. Ray does not restart an actor that was lost, as it would come
back empty: `heal` does.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from operator import add
from typing import Any, NoReturn, TypeVar

import numpy as np
import ray
from ray import exceptions

from localpower.core.errors import DataError, EngineError, WorkerFailed, WorkerLate, WorkerLost
from localpower.core.ledger import weigh
from localpower.core.linalg import FAN_IN, combined
from localpower.engines.base import Engine
from localpower.engines.blas import one_blas_thread
from localpower.engines.registry import leave
from localpower.engines.threads import cores
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import EngineBlock, LoadedBlock, OpenBlock, Piece, Shard, share_names
from localpower.worker.tasks import Measure, Task

R = TypeVar("R")
Call = tuple[Any, int]  # an object that is to come, and the number of the shard that it is about

INLINE = 100_000  # bytes of a task that goes along with every call; a larger one is put once
INLINE_ALL = 1 << 20  # bytes of all such calls in a round
START = 120.0  # seconds within which actors have to be there
LOOK = 2.0  # seconds after which the cluster is looked at meanwhile
PATIENCE = 10.0  # seconds for a sign of life, if there is no deadline
LONGEST = 27  # characters of a folder in which paths of Ray's sockets are short enough
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
CONSTANTS = {"ENABLE_RAY_CLUSTER": False, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": False}
LOST = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.ObjectLostError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
)

_lock = threading.RLock()
_ours: Local | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows of the user's in the object store, and what makes pieces of them."""

    ref: Any
    open_block: OpenBlock

    def opened(self) -> LoadedBlock:
        """Open the block, in the process that calls."""
        rows = _matrix(ray.get(self.ref))
        return LoadedBlock(()) if getattr(rows, "shape", None) == (0, 0) else self.open_block(rows)


class Holder:
    """An actor: shards by their numbers."""

    def __init__(self) -> None:
        self._limit = ExitStack()
        self._limit.enter_context(one_blas_thread())
        self._matrices: dict[int, LocalMatrix] = {}
        self._opened: dict[int, tuple[Piece, ...]] = {}

    def numbers(self) -> set[int]:
        """Tell which shards are here, and that the actor is."""
        return set(self._matrices)

    def clear(self, opened: bool) -> set[int]:
        """Forget the shards; and blocks that were only looked at, if `opened`."""
        self._matrices.clear()
        if opened:
            self._opened.clear()
        return self.numbers()

    def look(self, number: int, block: Block) -> EngineBlock:
        """Open a block that shall become a shard, and tell what it is."""
        rows = block.opened()
        pieces = self._opened[number] = rows.pieces
        columns = int(pieces[0].shape[1]) if pieces else 0
        narrow = all(piece.dtype.kind == "f" and piece.dtype.itemsize < 8 for piece in pieces)
        shard = Shard(pieces, columns, np.dtype(np.float32 if narrow else np.float64))
        return EngineBlock(
            None, (shard.rows, columns), shard.dtype, shard.entries, names=rows.names
        )

    def hold(self, number: int, shard: Shard, block: Block | None) -> None:
        """Take a shard in; if a `block` is given, with the rows of that."""
        if block is not None:
            shard = replace(shard, pieces=self._opened.pop(number, ()) or block.opened().pieces)
        self._matrices[number] = LocalMatrix(shard)

    def run(self, number: int, task: Task[Any]) -> Any:
        """Run a task on a shard."""
        return task(self._matrices[number])

    def keep(self, number: int, task: Task[Any]) -> list[Any]:
        """Run a task and leave the reply here; return where it is."""
        return [ray.put(task(self._matrices[number]))]

    def add(self, *parts: list[Any]) -> list[Any]:
        """Add replies that were left somewhere, and leave the sum here."""
        return [ray.put(combined(add, (ray.get(ref) for (ref,) in parts)))]


class Ray(Engine):
    """Runs tasks in `size` actors; shard i lives in actor i modulo `size`.

    `address` is that of a cluster, as ``ray.init`` takes it. Without one, the cluster is that which
    this process is connected to, and left alone in the end; or else a local one of our own.
    """

    latency = 4e-3
    bandwidth = 4e8

    def __init__(self, address: str | None = None, size: int | None = None) -> None:
        self._address, self._asked = address, size
        self._actors: list[Any] = []
        self._shards: Sequence[Shard] = ()
        self._lasting: dict[int, Task[Any]] = {}
        self._node = ""
        self._open = ExitStack()
        weakref.finalize(self, self._open.close)
        self._connect()

    @property
    def size(self) -> int:
        return self._size

    def place(self, shards: Sequence[Shard]) -> None:
        adopted = any(isinstance(piece, EngineBlock) for shard in shards for piece in shard.pieces)
        self._gather(len(shards), opened=not adopted)
        super().place(shards)
        self._shards = shards
        self._hold(range(len(shards)))

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        return self._replies(self._calls("run", task, self.numbers(order)), self._size)

    def sum(self, task: Task[R]) -> R:
        count = len(self.rows)
        if count <= FAN_IN:
            return super().sum(task)
        parts, step = self._calls("keep", task, range(count)), 1
        while count > FAN_IN:
            parts, count, step = self._groups(parts), -(-count // FAN_IN), step * FAN_IN
        kept = enumerate(list(self._replies(parts, FAN_IN)))
        total: R = combined(add, (self._reply(ref, at * step) for at, (ref,) in kept))
        return total

    def takes(self, data: Any) -> bool:
        if isinstance(data, list | tuple):
            return bool(data) and all(isinstance(block, ray.ObjectRef) for block in data)
        if isinstance(data, ray.ObjectRef):
            return True
        datasets = sys.modules.get("ray.data")
        return datasets is not None and isinstance(data, datasets.Dataset)

    def adopt(self, data: Any, open_block: OpenBlock) -> Sequence[EngineBlock]:
        data = [data] if isinstance(data, ray.ObjectRef) else data
        refs = list(data) if isinstance(data, list | tuple) else _refs(data)
        blocks = [Block(ref, open_block) for ref in refs]
        self._gather(len(blocks), opened=True)
        calls = ((self._actor(n).look.remote(n, block), n) for n, block in enumerate(blocks))
        found = list(share_names(self._replies(calls, len(blocks))))
        columns = max((held.shape[1] for held in found), default=0)
        return [
            replace(held, handle=block, shape=held.shape if any(held.shape) else (0, columns))
            for block, held in zip(blocks, found, strict=True)
        ]

    def heal(self, numbers: Sequence[int]) -> None:
        self._check()
        try:
            self._restore(numbers)
        except WorkerLost:
            if _alive():
                raise
            self._connect()
            self._staff(len(self._shards))
            self._restore(range(len(self._shards)))

    def _restore(self, numbers: Sequence[int]) -> None:
        """Have the actors of these shards answer, with all shards that are theirs."""
        count, missing = len(self._actors), set[int]()
        concerned = sorted({number % count for number in numbers})
        for at, there in zip(concerned, self._answers("numbers", concerned), strict=True):
            missing |= set(range(at, len(self._shards), count)) - there
        self._hold(sorted(missing))
        again = sorted(missing & self._lasting.keys())
        calls = ((self._actor(n).run.remote(n, self._lasting[n]), n) for n in again)
        for _ in self._replies(calls, self._size):
            pass

    def close(self) -> None:
        self._forget()
        self._open.close()
        self._node = ""
        super().close()

    def _connect(self) -> None:
        """Be part of a cluster; again, if this process has left it since, or if it has died."""
        if self._node and self._node == _node() and _alive():
            return
        self._open.close()
        if self._address is None:
            self._open.enter_context(_at_hand(self._asked or cores()))
        else:
            self._open.enter_context(_connected(self._address))
        self._open.callback(_dismiss, self._actors)
        self._node = _node()
        resources: Any = ray.cluster_resources
        self._size = self._asked or max(1, int(resources().get("CPU", 1)))

    def _gather(self, shards: int, opened: bool) -> None:
        """Have actors for so many shards, all of them there and empty."""
        self._forget()
        self._connect()
        self._answers("clear", range(len(self._actors)), opened)
        self._staff(shards)

    def _staff(self, shards: int) -> None:
        """Start the actors that are missing for so many shards."""
        missing = range(len(self._actors), min(self._size, shards))
        self._actors += [ACTOR.remote() for _ in missing]
        for at in missing:
            self._await(at)

    def _await(self, at: int) -> None:
        """Wait until an actor has started; the deadline is for those that have."""
        call, until = self._actors[at].numbers.remote(), time.monotonic() + START
        while not ray.wait([call], timeout=LOOK)[0]:
            if not _alive():
                raise WorkerLost("no node of the Ray cluster is alive: start it again")
            if time.monotonic() > until:
                raise WorkerLate(
                    f"an actor did not start within {START:.0f} s; see that a node of the cluster "
                    "has a free CPU"
                )
        try:
            ray.get(call)
        except exceptions.RayError as error:
            raise WorkerLost(
                f"an actor did not start; all nodes need localpower in the same version:\n{error}"
            ) from error

    def _forget(self) -> None:
        self._shards, self._lasting, self.rows = (), {}, ()

    def _check(self) -> None:
        if not self._shards:
            raise EngineError("this engine holds no shards: place them first")
        if not ray.is_initialized():  # Ray would start a cluster of its own accord
            raise WorkerLost("this process has left the Ray cluster; place the shards again")

    def _actor(self, number: int) -> Any:
        return self._actors[number % len(self._actors)]

    def _hold(self, numbers: Sequence[int]) -> None:
        calls = (self._held(number) for number in numbers)
        for _ in self._replies(calls, len(numbers)):
            pass

    def _held(self, number: int) -> Call:
        shard, block = self._shards[number], None
        if shard.pieces and isinstance(shard.pieces[0], EngineBlock):
            block, shard = shard.pieces[0].handle, replace(shard, pieces=())
        return self._actor(number).hold.remote(number, shard, block), number

    def _calls(self, method: str, task: Task[Any], numbers: Sequence[int]) -> Iterator[Call]:
        """Call a method of each shard's actor with the task; a large one is sent out once."""
        self._check()
        size = weigh(task.task if isinstance(task, Measure) else task)[1]
        large = size > INLINE or size * len(numbers) > INLINE_ALL
        shared = ray.put(task) if large else task
        for number in numbers:
            mine = task.for_shard(number)
            if mine.persists:
                self._lasting[number] = mine
            argument = shared if mine is task else mine
            yield getattr(self._actor(number), method).remote(number, argument), number

    def _groups(self, parts: Iterator[Call]) -> Iterator[Call]:
        """Have groups of replies added by the actors, a few groups at the same time."""
        waiting: deque[tuple[list[Call], Call]] = deque()
        try:
            for at, first in enumerate(parts):
                group = [first, *islice(parts, FAN_IN - 1)]
                total = self._actor(at).add.remote(*(ref for ref, _ in group))
                waiting.append((group, (total, first[1])))
                if len(waiting) > self._size // FAN_IN + 1:
                    yield self._finished(waiting)
            while waiting:
                yield self._finished(waiting)
        finally:
            _hush([ref for group, total in waiting for ref, _ in (*group, total)])

    def _finished(self, waiting: deque[tuple[list[Call], Call]]) -> Call:
        """Wait for the first group; its replies are not held any longer than that."""
        for call in waiting[0][0]:
            self._reply(*call)
        return waiting.popleft()[1]

    def _replies(self, calls: Iterable[Call], ahead: int) -> Iterator[Any]:
        """Yield what calls return; at most `ahead` of them are under way or not yet taken."""
        waiting: deque[Call] = deque()
        try:
            for call in calls:
                waiting.append(call)
                if len(waiting) > ahead:
                    yield self._reply(*waiting.popleft())
            while waiting:
                yield self._reply(*waiting.popleft())
        finally:
            _hush([ref for ref, _ in waiting])

    def _answers(self, method: str, places: Sequence[int], *arguments: Any) -> list[set[int]]:
        """Which shards some actors have, by a method of theirs; new actors where there are none."""
        calls = [getattr(self._actors[at], method).remote(*arguments) for at in places]
        answers: list[set[int]] = []
        limit = time.monotonic() + (self.deadline or PATIENCE)
        for at, call in zip(places, calls, strict=True):
            try:
                answers.append(ray.get(call, timeout=max(0.0, limit - time.monotonic())))
            except exceptions.RayError:
                _dismiss([self._actors[at]])
                self._actors[at] = ACTOR.remote()
                answers.append(set())
        for at in places:
            self._await(at)
        return answers

    def _reply(self, ref: Any, number: int) -> Any:
        try:
            return ray.get(ref, timeout=self.deadline)
        except exceptions.GetTimeoutError as error:
            raise WorkerLate(
                f"shard {number}: no reply within {self.deadline} s; set the engine's deadline "
                "higher if tasks take so long, or use smaller shards"
            ) from error
        except exceptions.RayError as error:
            _raise(error, f"shard {number}")


class Local:
    """A cluster of our own on this machine; it ends with the last engine that uses it."""

    def __init__(self, size: int) -> None:
        self.users = 0
        self.node: str | None = None  # until it is there
        self._signal = signal.getsignal(signal.SIGTERM)
        self._debugger = os.environ.get("PYTHONBREAKPOINT")
        self._started: list[Any] = []
        self._folder = tempfile.mkdtemp(prefix="lp-ray-", dir=_short_folder())
        handler = leave if self._signal is signal.SIG_DFL else self._signal
        try:
            _on_termination(handler)
            with _settings(self._started):
                ray.init(
                    address="local",
                    num_cpus=size,
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    _temp_dir=self._folder,
                )
            _on_termination(handler)  # again, as Ray's C++ has set one that prints a stack
            self.node = _node()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the cluster, unless the user has done so, and remove its files."""
        _on_termination(self._signal)
        os.environ.pop("PYTHONBREAKPOINT", None)  # which Ray has set
        if self._debugger is not None:
            os.environ["PYTHONBREAKPOINT"] = self._debugger
        with _undisturbed():
            try:
                if self.node is None or self.node == _node():
                    ray.shutdown()
                    _end(self._started)
            finally:
                shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _at_hand(size: int) -> Iterator[None]:
    """Use the cluster that this process is connected to; if there is none, start a local one."""
    global _ours
    with _lock:
        if not ray.is_initialized():
            _ours = Local(size)
        mine = _ours if _ours is not None and _ours.node == _node() else None
        if mine is not None:
            mine.users += 1
    try:
        yield
    finally:
        with _lock:
            if mine is not None:
                mine.users -= 1
                if not mine.users:
                    mine.stop()


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster, and leave it running."""
    if ray.is_initialized():
        raise EngineError(
            "this process is connected to a Ray cluster already; engine='ray' works on that one, "
            "or call ray.shutdown() first"
        )
    try:
        ray.init(address)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise EngineError(f"{address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _settings(started: list[Any]) -> Iterator[None]:
    """Settings for a cluster of our own, while it starts: no file in the home, loopback only.

    The user's variables of the environment are left as they are. Ray has no option for loopback on
    Linux; what it does so on other systems is a constant of its own. Nor has it one for processes
    that signals to this one's group do not reach (it could not end them then, only abort), or for
    leaving SIGTERM alone.
    """
    new = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    parts: Any = ray._private
    changes: list[tuple[Any, str, Any]] = [
        *((parts.ray_constants, name, value) for name, value in CONSTANTS.items()),
        (parts.services, "ConsolePopen", _apart(started)),
        (parts.utils, "set_sigterm_handler", lambda handler: None),
    ]
    changes = [(part, name, value) for part, name, value in changes if hasattr(part, name)]
    old = [(part, name, getattr(part, name)) for part, name, _ in changes]
    os.environ.update(new)
    try:
        for change in changes:
            setattr(*change)
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
        for change in old:
            setattr(*change)


def _apart(started: list[Any]) -> Any:
    """Return what starts processes in sessions of their own, and notes them."""
    usual: Any = getattr(ray._private.services, "ConsolePopen", subprocess.Popen)

    def start(*args: Any, **options: Any) -> Any:
        process = usual.__new__(usual)
        started.append(process)  # before a signal can come
        process.__init__(*args, start_new_session=True, **options)
        return process

    return start


def _end(processes: Iterable[Any]) -> None:
    """Kill processes and what they have started."""
    for process in processes:
        if getattr(process, "pid", None):
            with suppress(ProcessLookupError, AttributeError):  # no group, or no system with groups
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back until the end, such as a second one while the first is heeded."""
    came = set[int]()
    main = threading.current_thread() is threading.main_thread()
    signs = (signal.SIGINT, signal.SIGTERM) if main else ()
    usual = {sign: signal.signal(sign, lambda number, _: came.add(number)) for sign in signs}
    try:
        yield
    finally:
        for sign, handler in usual.items():
            signal.signal(sign, handler)
        for number in came:
            signal.raise_signal(number)


def _on_termination(handler: Any) -> None:
    """Say what SIGTERM does, where that can be said."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _short_folder() -> str:
    """Where temporary files of Ray can be: paths of sockets must be short."""
    usual, short = tempfile.gettempdir(), os.path.join(os.sep, "tmp")
    return short if len(usual) > LONGEST and os.path.isdir(short) else usual


def _node() -> str:
    """Name the node that this process is connected to: another one in every cluster."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _alive() -> bool:
    """Whether the cluster that this process is connected to has a node left."""
    nodes: Any = ray.nodes
    return any(node["Alive"] for node in nodes())


def _dismiss(actors: list[Any]) -> None:
    while actors:
        actor = actors.pop()
        if ray.is_initialized():  # else they are gone, and Ray would start a cluster to look
            with suppress(Exception):
                ray.kill(actor)


def _hush(refs: list[Any]) -> None:
    """Look at errors that nobody will ask for any more; Ray prints those that nobody has seen."""
    if refs and ray.is_initialized():
        for ref in ray.wait(refs, num_returns=len(refs), timeout=0)[0]:
            with suppress(Exception):
                ray.get(ref, timeout=0)


def _refs(dataset: Any) -> list[Any]:
    """Have a dataset computed and kept by the cluster; its blocks, in order."""
    options = dataset.context.execution_options
    usual, options.preserve_order = options.preserve_order, True
    try:
        bundles = dataset.materialize().iter_internal_ref_bundles()
        return [ref for bundle in bundles for ref in bundle.block_refs]
    except exceptions.RayError as error:
        _raise(error, "the dataset")
    finally:
        options.preserve_order = usual


def _matrix(block: Any) -> Any:
    """Make an array of a table with one column of vectors; other blocks stay what they are."""
    kind = type(block).__module__.partition(".")[0]
    if kind not in ("pandas", "pyarrow") or len(block.columns) != 1:
        return block
    from ray.data.block import BlockAccessor

    table: Any = BlockAccessor.for_block(block)
    (column,) = table.to_numpy(table.column_names()).values()
    if column.dtype != object:
        return block if column.ndim == 1 else column
    if not len(column):
        return np.empty((0, 0))  # nothing tells how long vectors would be
    try:
        rows = np.stack([np.asarray(vector) for vector in column])
        return rows if rows.ndim > 1 else block
    except ValueError as error:
        raise DataError(
            "a block has vectors of different lengths; all need the same columns"
        ) from error


def _raise(error: Any, what: str) -> NoReturn:
    """Say in our own words what Ray has raised."""
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
    if isinstance(cause, DataError):
        raise DataError(str(cause)) from error
    if isinstance(cause, LOST):
        raise WorkerLost(
            f"{what} is lost, as its worker was killed or crashed; if memory ran out, use smaller "
            f"shards or more nodes, else run again:\n{cause}"
        ) from error
    if cause is not error:
        text = re.sub(r"\x1b\[\d+m", "", str(error))  # which Ray has coloured
        raise WorkerFailed(f"{what}: a task failed in an actor:\n{text}") from error
    raise EngineError(f"{what}: {error}") from error


ACTOR: Any = ray.remote(max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Holder)
