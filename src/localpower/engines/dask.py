"""Shards on the workers of a Dask cluster.

A shard is the result of a Dask task, and stays where that ran. Dask makes it again when its worker
is lost, if it knows how: from the graph of a Dask collection, or from files. Rows that came from
this process are placed again by `heal`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import signal
import tempfile
import traceback
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from operator import add
from time import monotonic, sleep
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import dask.config
import distributed
import numpy as np
from dask.array import blockwise
from dask.base import is_dask_collection
from dask.delayed import Delayed, delayed
from dask.sizeof import sizeof
from distributed import Client, Future, KilledWorker, Nanny, Scheduler
from distributed.core import Status
from distributed.system import MEMORY_LIMIT

from localpower.core.errors import (
    DataError,
    EngineError,
    LocalPowerError,
    WorkerFailed,
    WorkerLate,
    WorkerLost,
)
from localpower.core.ledger import regular
from localpower.core.linalg import FAN_IN, combined
from localpower.engines.base import Engine
from localpower.engines.blas import one_blas_thread
from localpower.engines.threads import cores
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import (
    EngineBlock,
    LoadedBlock,
    OpenBlock,
    Piece,
    Shard,
    is_stored,
    join_columns,
    share_names,
)
from localpower.worker.tasks import Task

R = TypeVar("R")
HOST = "127.0.0.1"
TICK = 0.5  # seconds between looks at the workers
PATIENCE = 30.0  # seconds that workers may take to start, or to come back
ANSWER = 5.0  # seconds in which a shard that is well replies
SHARE = 0.5  # of the workers' memory, that adopted rows may take
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # not on every system
ENDED = (Status.closed, Status.failed)
LATE = "set the engine's deadline higher if tasks take so long, or use smaller shards"
REMEDY = "if memory ran out, use smaller blocks or more workers, else run again"
State = tuple[LocalMatrix, Any]  # and the reply of the task that changed it last
_dask: Any = distributed  # most of it has no types
_sizeof: Any = sizeof
_blockwise: Any = blockwise


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What goes to shards: a task, and for rows that are not kept the last one that `persists`."""

    task: Task[Any]
    lasting: Task[Any] | None


@dataclass(slots=True, eq=False)
class Block:
    """One block of a Dask collection: how its rows are opened, and those if they are."""

    recipe: Delayed
    kept: bool = True
    rows: Future[Any] | None = None


class UncachedMatrix(LocalMatrix):
    """A matrix that lives for one task, too short for a Gram matrix to pay."""

    def _gram_pays(self, products: int, width: int) -> bool:
        return False

    def gram_is_small(self) -> bool:
        return False


class RowlessMatrix(UncachedMatrix):
    """A matrix whose rows are not at hand, for tasks that do not look at them."""

    class TouchedError(Exception):
        """The task did."""

    @property
    def shard(self) -> Shard:
        raise RowlessMatrix.TouchedError


def _hold(rows: LoadedBlock, shard: Shard) -> State:
    """Take rows in, aligned once: those that come over the network are not, nor may others be."""
    return LocalMatrix(replace(shard, pieces=regular(rows.pieces))), None


def _run(state: State, message: Message) -> Any:
    with _one_thread():
        return regular(message.task)(state[0])


def _change(state: State, message: Message) -> State:
    matrix = copy(state[0])  # rows are shared; Dask may need the old state once more
    return matrix, _run((matrix, None), message)


def _reply(state: State) -> Any:
    return state[1]


def _same(reply: Any) -> Any:
    return reply


def _pass(rows: LoadedBlock, message: Message, shard: Shard) -> Any:
    matrix = UncachedMatrix(replace(shard, pieces=rows.pieces))
    if message.lasting is not None:
        regular(message.lasting)(matrix)
    return _run((matrix, None), message)


def _added(replies: list[Any]) -> Any:
    with _one_thread():
        return combined(add, replies)


def _one_thread() -> AbstractContextManager[None]:
    """Keep BLAS at one thread; Dask starts most workers so, and asking BLAS takes time."""
    started_so = all(os.environ.get(name) == "1" for name in BLAS_THREADS)
    return nullcontext() if started_so else one_blas_thread()


def _opened(parts: list[Any], open_block: OpenBlock) -> LoadedBlock:
    """Open a block, whose columns may be in several parts."""
    return open_block(parts[0] if len(parts) == 1 else join_columns(parts))


def _checked(rows: LoadedBlock, declared: tuple[int, int]) -> LoadedBlock:
    shape = sum(piece.shape[0] for piece in rows.pieces), rows.pieces[0].shape[1]
    if shape != declared:
        raise DataError(
            f"a chunk of data has shape {shape} where {declared} is declared; declare what it has, "
            "or call .compute_chunk_sizes()"
        )
    return rows


def _measure(rows: LoadedBlock) -> tuple[EngineBlock, int]:
    """Tell what a block is, and how many bytes it takes."""
    kind = _work_type(*(piece.dtype for piece in rows.pieces))
    shard = Shard(rows.pieces, rows.pieces[0].shape[1], kind)
    held = EngineBlock(None, (shard.rows, shard.columns), kind, shard.entries, names=rows.names)
    return held, _size(shard)


def _work_type(*kinds: np.dtype[Any]) -> np.dtype[Any]:
    narrow = all(kind.kind == "f" and kind.itemsize < 8 for kind in kinds)
    return np.dtype(np.float32 if narrow else np.float64)


def _size(rows: Shard | LoadedBlock) -> int:
    """Bytes of the rows, so that Dask knows what it takes to move them, or to keep them."""
    parts = [
        part
        for piece in rows.pieces
        for part in ((piece.data, piece.indices, piece.indptr) if _is_csr(piece) else (piece,))
    ]
    return sum(part.nbytes for part in parts)


def _is_csr(piece: Piece) -> bool:
    return hasattr(piece, "indptr")


_sizeof.register(LocalMatrix, lambda matrix: _size(matrix._shard))
_sizeof.register(LoadedBlock, _size)


class Starter(Nanny):
    """A nanny that also ends a process which never got as far as to be a worker.

    Dask's own waits for such a one until it is up, or leaves it behind.
    """

    async def close(self, *args: Any, **options: Any) -> Any:
        process: Any = self.process
        if process is not None and process.status == Status.starting and process.pid:
            self.close_gracefully()  # nor shall it be started again
            os.kill(process.pid, KILL)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.stopped.wait(), ANSWER)
        return await super().close(*args, **options)


class Link(Client):
    """A client that is closed also if it could not be opened: else Python waits for it at exit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        try:
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        except BaseException:
            self.close()  # type: ignore[no-untyped-call]
            raise


class Dask(Engine):
    """Runs tasks on a Dask cluster: the user's, or one of `size` processes on this machine.

    Blocks of Dask arrays and frames become shards where Dask makes them. As many as take no more
    than `memory` bytes together (by default half of what the workers have) are kept; the others are
    made again for every task, from their graph.
    """

    latency = 3e-2
    bandwidth = 3e8

    def __init__(self, address: str | Client | None = None, size: int | None = None) -> None:
        if isinstance(address, Client) and address.asynchronous:
            raise ValueError("engine= is a Client with asynchronous=True: open it without that")
        if isinstance(address, str) and not _has_port(address):
            raise ValueError(
                f"engine={address!r} is no host and port of a scheduler: write it as in "
                "'dask://host:8786'"
            )
        if address is None and multiprocessing.current_process().daemon:
            raise EngineError(
                "engine='dask' starts processes, which is not allowed in a daemonic one as this "
                "(a Dask worker?): take 'threads', or in a Dask task distributed.get_client()"
            )
        self._address, self._wanted = address, size or cores()
        self._client: Any = None
        self._cluster: Any = None
        self._bare: float | None = None  # since when no worker ever was there; forever, if one was
        self._stack = ExitStack()
        self._shards: list[Shard] = []
        self._states: dict[int, Future[Any]] = {}
        self._lasting: dict[int, Task[Any]] = {}
        self._messages: list[dict[int, Future[Any]]] = [{}, {}]  # of the last task, of what lasts
        weakref.finalize(self, self._stack.close)

    @property
    def client(self) -> Any:
        """The connection to the cluster, opened when it is first needed."""
        if self._client is None:
            self._client = self._connect()
        if self._client.status == "closed":
            raise EngineError("the Client of this engine was closed: connect again")
        return self._client

    @property
    def size(self) -> int:
        if self._address is None:
            return self._wanted
        return max(1, sum(int(worker["nthreads"]) for worker in self._workers().values()))

    def takes(self, data: Any) -> bool:
        if isinstance(data, list | tuple | Future | Delayed):
            parts = _listed(data)
            return bool(parts) and all(isinstance(part, Future | Delayed) for part in parts)
        of_dask = type(data).__module__.partition(".")[0] in ("dask", "dask_expr")
        return of_dask and is_dask_collection(data) and getattr(data, "ndim", 0) == 2

    def adopt(self, data: Any, open_block: OpenBlock) -> Sequence[EngineBlock]:
        self._release()
        recipes, known = _recipes(data, open_block)
        blocks = [Block(recipe) for recipe in recipes]
        with _translated_errors():
            return list(share_names(self._kept_or_not(blocks, known or self._measured(blocks))))

    def _kept_or_not(
        self, blocks: Sequence[Block], facts: Iterable[tuple[EngineBlock, int]]
    ) -> Iterator[EngineBlock]:
        """Keep as many blocks as there is room for."""
        room = self._room()
        for block, (held, size) in zip(blocks, facts, strict=True):
            room -= size
            if room < 0:
                block.kept, block.rows = False, None
            yield replace(held, handle=block, kept=block.kept)

    def place(self, shards: Sequence[Shard]) -> None:
        self._release()
        super().place(shards)
        self._shards = list(shards)
        with _translated_errors():
            try:
                self._place_on(range(len(shards)))
            except WorkerLate:
                if self._address is None:
                    self._end(
                        self._unresponsive()
                    )  # whoever tries again finds others in their place
                raise

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        with _translated_errors():
            replies, step = self._ask(task, self.numbers(order)), max(self.size, FAN_IN)
            while replies:
                batch, replies = replies[:step], replies[step:]
                yield from self._taken(batch)

    def sum(self, task: Task[R]) -> R:
        if len(self.rows) <= FAN_IN:
            return super().sum(task)
        with _translated_errors():
            level = self._ask(task, self.numbers())
            while len(level) > FAN_IN:
                groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
                level = self.client.map(_added, groups, pure=False)
            total: R = combined(add, self._taken(level))
            return total

    def heal(self, numbers: Sequence[int]) -> None:
        if not set(numbers) <= set(range(len(self._shards))):
            raise EngineError("this engine does not know these shards: place them first")
        with _translated_errors():
            self._await_workers()
            lost = {n for n in numbers if self._kept(n)} - self._responsive(numbers)
            there = {n: future for n, future in self._states.items() if not _ended(future)}
            held = self.client.who_has([*there.values()]) if there else {}
            homes = {n: set(held.get(future.key, ())) for n, future in there.items()}
            silent = self._unresponsive() if lost else set[str]()
            silent = silent.union(*(homes[n] for n in lost & homes.keys()))
            if silent and self._address is None:
                lost |= {n for n, home in homes.items() if home & silent}
                self._end(silent)
            self._place_on(sorted(lost), silent)

    def close(self) -> None:
        self._release()
        self._client = None
        self._stack.close()
        super().close()

    def _release(self) -> None:
        self._shards, self._states, self._lasting, self._messages = [], {}, {}, [{}, {}]

    def _connect(self) -> Any:
        if isinstance(self._address, Client):
            return self._address
        if self._address is None:
            try:
                self._start()
                client = Link(self._cluster, set_as_default=False, direct_to_workers=True)
            except BaseException as error:
                _to_its_end(self._stack.pop_all().close)
                if not isinstance(error, RuntimeError | OSError):
                    raise
                cause = error.__cause__ or error
                raise WorkerLost(f"Dask workers could not be started: {cause}; {REMEDY}") from error
        else:
            target = f"tcp://{urlsplit(self._address).netloc}"
            try:
                client = Link(target, set_as_default=False)
            except OSError as error:
                raise EngineError(f"no Dask scheduler answers at {target}: {error}") from error
        return self._stack.enter_context(client)

    def _start(self) -> None:
        """Start processes of one thread, each with a resource of its own that shards are pinned to.

        All of it listens on loopback only. Workers are named otherwise than in the specification:
        else Dask looks 15 seconds after a worker was lost whether one of its name is there, and
        ends for good what is just being started again after another loss.
        """
        files = tempfile.TemporaryDirectory(prefix="localpower-", ignore_cleanup_errors=True)
        folder = self._stack.enter_context(files)
        common = {"host": HOST, "dashboard": False}
        options = common | {
            "nthreads": 1,
            "memory_limit": MEMORY_LIMIT // self._wanted,
            "local_directory": folder,
            "death_timeout": PATIENCE,  # a process that has not started by then is given up
            "silence_logs": logging.ERROR,
            "env": dict.fromkeys(BLAS_THREADS, "1"),
        }
        workers = {
            i: {
                "cls": Starter,
                "options": options | {"name": f"{i}", "resources": {_resource(i): 1}},
            }
            for i in range(self._wanted)
        }
        _to_its_end(partial(self._serve, folder, common))
        self._cluster.worker_spec = workers
        ready = _awaited(lambda: self._cluster)
        asyncio.run_coroutine_threadsafe(ready, self._cluster.loop.asyncio_loop).result()

    def _serve(self, folder: str, common: dict[str, Any]) -> None:
        """Start a scheduler; the workers are its cluster's."""
        options = common | {"port": 0, "dashboard_address": f"{HOST}:0"}
        scheduler = {"cls": Scheduler, "options": options}
        with dask.config.set({"temporary-directory": folder}):  # the scheduler's, too
            cluster = _dask.SpecCluster(scheduler=scheduler, silence_logs=logging.ERROR)
        self._cluster = self._stack.enter_context(cluster)

    def _call(self, function: Callable[[], Any], home: str = "") -> Any:
        """Wait for what a function promises: not beyond the deadline, nor if `home` is gone."""
        end = math.inf if self.deadline is None else monotonic() + self.deadline
        promise = asyncio.run_coroutine_threadsafe(_awaited(function), self._loop)
        try:
            while True:
                with suppress(TimeoutError):
                    return promise.result(max(0.0, min(TICK, end - monotonic())))
                if promise.done():
                    return promise.result()
                if monotonic() >= end:
                    raise WorkerLate(f"Dask did not answer within {self.deadline:g} s; {LATE}")
                if home and home not in self._workers():
                    raise WorkerLost(f"Dask worker {home} is gone; {REMEDY}")
        except OSError:
            self._let_notice(home)
            raise
        finally:
            promise.cancel()

    def _let_notice(self, home: str) -> None:
        """Wait until the scheduler knows that a worker is gone, too: it would be taken again."""
        end = monotonic() + ANSWER
        with suppress(OSError):
            while home and home in self._workers() and monotonic() < end:
                sleep(0.05)

    @property
    def _loop(self) -> Any:
        return self.client.loop.asyncio_loop

    def _workers(self) -> dict[str, Any]:
        """Tell what the scheduler knows of the workers that are there, by address."""
        known = self._call(partial(self.client.scheduler.identity, n_workers=-1))
        workers: dict[str, Any] = known["workers"]
        if workers or self._bare is None:
            self._bare = math.inf if workers else monotonic()
        return workers

    def _missing(self, ended: Collection[str] = ()) -> bool:
        """Whether workers are gone that tasks may be waiting for; some are `ended` already."""
        with suppress(OSError):
            there = self._workers().keys() - set(ended)
            self._replace_nannies()
            return len(there) < (self._wanted if self._address is None else 1)
        return True

    def _unresponsive(self) -> set[str]:
        """Workers that do not even answer."""
        workers = set(self._workers())

        async def answers(address: str) -> set[str]:
            with suppress(Exception):
                asked = self.client.run(int, workers=[address], asynchronous=True)
                await asyncio.wait_for(asked, ANSWER)
                return {address}
            return set()

        async def all_answers() -> list[set[str]]:
            return await asyncio.gather(*map(answers, workers))

        return workers.difference(
            *asyncio.run_coroutine_threadsafe(all_answers(), self._loop).result()
        )

    def _end(self, workers: Collection[str]) -> None:
        """Kill workers of ours; their nannies start them anew."""
        if workers:
            for nanny in [*self._cluster.workers.values()]:
                if nanny.worker_address in workers and (pid := nanny.pid):
                    os.kill(pid, KILL)
            self._await_workers(workers)

    def _replace_nannies(self) -> None:
        """Start others for nannies of ours that ended: they do where a worker cannot be started."""
        if self._address is None:
            nannies = self._cluster.workers
            for name in [name for name, nanny in [*nannies.items()] if nanny.status in ENDED]:
                del nannies[name]
                self._cluster.scale(self._wanted)

    def _await_workers(self, ended: Collection[str] = ()) -> None:
        end, first = monotonic() + PATIENCE, min(PATIENCE, self.deadline or PATIENCE)
        while self._missing(ended):
            if self._bare is not None and monotonic() > self._bare + first:
                raise EngineError(
                    "the cluster has no workers: start some, and wait for them with "
                    "client.wait_for_workers(1) before it is given as engine="
                )
            if monotonic() > end:
                raise WorkerLost(f"Dask workers did not come back in {PATIENCE:g} s; {REMEDY}")
            sleep(0.1)

    def _room(self) -> float:
        self._await_workers()
        if self.memory is not None:
            return self.memory
        limits = [worker["memory_limit"] or math.inf for worker in self._workers().values()]
        return SHARE * float(sum(limits))

    def _measured(self, blocks: Sequence[Block]) -> Iterator[tuple[EngineBlock, int]]:
        """Make the blocks, and tell what they are."""
        for block, rows in zip(blocks, self._compute([b.recipe for b in blocks]), strict=True):
            block.rows = rows
        facts = self.client.map(_measure, [block.rows for block in blocks], pure=False)
        for start in range(0, len(facts), FAN_IN):
            yield from self._taken(facts[start : start + FAN_IN])

    def _compute(self, recipes: list[Delayed]) -> list[Future[Any]]:
        futures: list[Future[Any]] = self.client.compute(recipes) if recipes else []
        return futures

    def _block(self, number: int) -> Block | None:
        """Return what a shard is made of, if that is Dask's own."""
        first = next(iter(self._shards[number].pieces), None)
        return first.handle if isinstance(first, EngineBlock) else None

    def _kept(self, number: int) -> bool:
        block = self._block(number)
        return block is None or block.kept

    def _place_on(self, numbers: Iterable[int], without: Collection[str] = ()) -> None:
        """Bring shards to workers, and repeat what lasts."""
        kept = [number for number in numbers if self._kept(number)]
        self._await_workers()
        workers = self._workers()
        homes = sorted(workers, key=lambda address: str(workers[address]["name"]).zfill(9))
        homes = [address for address in homes if address not in without] or homes
        shards = {n: replace(self._shards[n], pieces=()) for n in kept}
        self._states |= self._each(_hold, self._rows(kept, homes), shards, homes=homes)
        again = {n: self._lasting[n] for n in kept if n in self._lasting}
        self._last(again, self._send(again))
        self._finish([self._states[n] for n in kept])

    def _rows(self, numbers: Sequence[int], homes: Sequence[str]) -> dict[int, Any]:
        """Rows of shards: sent to their homes, named if they are files, made if they are Dask's.

        Dask holds them for as long as the shards need them.
        """
        blocks = {n: block for n in numbers if (block := self._block(n)) is not None}
        unmade = [n for n, block in blocks.items() if block.rows is None]
        made = self._compute([blocks[n].recipe for n in unmade])
        rows: dict[int, Any] = dict(zip(unmade, made, strict=True))
        for n, block in blocks.items():
            rows[n], block.rows = block.rows or rows[n], None
        for n in numbers:
            if n not in blocks and all(map(is_stored, self._shards[n].pieces)):
                rows[n] = LoadedBlock(self._shards[n].pieces)
        for i, home in enumerate(homes):
            mine = [n for n in numbers if n not in rows and n % len(homes) == i]
            opened = [LoadedBlock(self._shards[n].pieces) for n in mine]
            send = partial(self.client.scatter, opened, workers=[home], hash=False)
            if mine:
                sent = self._call(partial(send, asynchronous=True), home)
                rows |= zip(mine, sent, strict=True)
        return rows

    def _each(
        self, function: Callable[..., Any], *columns: dict[int, Any], homes: Sequence[str] = ()
    ) -> dict[int, Future[Any]]:
        """Call a function for every shard: pinned to a worker of ours, else where its rows are.

        On the user's cluster rows from here are dealt to `homes`, but may move.
        """
        left, found = set(columns[0]), dict[int, Future[Any]]()
        ways: list[dict[str, Any]] = [
            {"workers": [home], "allow_other_workers": True} for home in homes
        ]
        if self._address is None:
            ways = [{"resources": {_resource(i): 1}} for i in range(self._wanted)]
        for i, way in enumerate([*ways, {}]):
            mine = sorted(left)
            if way:
                mine = [n for n in mine if n % len(ways) == i and self._block(n) is None]
            values = [[column[n] for n in mine] for column in columns]
            futures = self.client.map(function, *values, pure=False, **way) if mine else []
            found |= dict(zip(mine, futures, strict=True))
            left -= set(mine)
        return found

    def _send(self, tasks: dict[int, Task[Any]]) -> dict[int, Future[Any]]:
        """Send tasks to workers; one that is the same for several shards goes out once.

        They are results of Dask tasks, too, which workers hand on to each other: what is scattered
        cannot be made again, and waits for workers that are gone.
        """
        passing = not all(map(self._kept, tasks))
        pairs = {n: (task, self._lasting.get(n) if passing else None) for n, task in tasks.items()}
        names = {n: (id(task), id(lasting)) for n, (task, lasting) in pairs.items()}
        messages = {names[n]: Message(*pair) for n, pair in pairs.items()}
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            sent = self.client.map(_same, [*messages.values()], pure=False) if messages else []
        found = dict(zip(messages, sent, strict=True))
        return {n: found[name] for n, name in names.items()}

    def _last(self, tasks: dict[int, Task[Any]], messages: dict[int, Future[Any]]) -> None:
        """Make new states of shards; the messages stay, should Dask have to do so again."""
        kept = {n: self._states[n] for n in tasks if self._kept(n)}
        if kept:
            self._states |= self._each(_change, kept, messages)
        self._lasting |= tasks
        self._messages[1] |= messages

    def _ask(self, task: Task[Any], numbers: Sequence[int]) -> list[Future[Any]]:
        """Send a task to shards, and return the futures of their replies."""
        known = range(len(self._shards))
        if not all(n in known and (n in self._states or not self._kept(n)) for n in numbers):
            raise EngineError("this engine does not hold these shards: place them first")
        tasks = {n: task.for_shard(n) for n in numbers}
        self._messages[0] = messages = self._send(tasks)
        replies = self._passed({n: tasks[n] for n in numbers if not self._kept(n)}, messages)
        if task.persists:
            self._last(tasks, messages)
        states = {n: self._states[n] for n in numbers if n not in replies}
        if states:
            replies |= self._each(
                *((_reply, states) if task.persists else (_run, states, messages))
            )
        return [replies[n] for n in numbers]

    def _passed(
        self, tasks: dict[int, Task[Any]], messages: dict[int, Future[Any]]
    ) -> dict[int, Future[Any]]:
        """Ask shards whose rows are not kept; these are made again, if the task looks at them."""
        replies, recipes = {}, {}
        for n, task in tasks.items():
            try:
                if not task.persists:
                    raise RowlessMatrix.TouchedError
                replies[n] = self.client.submit(
                    _same, task(RowlessMatrix(self._shards[n])), pure=False
                )
            except RowlessMatrix.TouchedError:
                block, shard = self._block(n), replace(self._shards[n], pieces=())
                assert block is not None
                recipes[n] = delayed(_pass, pure=False)(block.recipe, messages[n], shard)
        return replies | dict(zip(recipes, self._compute([*recipes.values()]), strict=True))

    def _taken(self, futures: Sequence[Future[Any]]) -> list[Any]:
        """Wait for results and bring them here."""
        self._finish(futures)
        bring = partial(self.client.gather, list(futures), asynchronous=True)
        return [regular(result) for result in self._call(bring)]

    def _finish(self, futures: Sequence[Future[Any]]) -> None:
        """Wait until all are done; raise if one has failed, is late, or cannot come."""
        progress = complete = monotonic()
        left = len(futures)
        while True:
            for future in futures:
                if _ended(future):
                    raise _why(future)
            waiting = [future for future in futures if future.status != "finished"]
            if not waiting:
                return
            now = monotonic()
            progress, left = now if len(waiting) < left else progress, len(waiting)
            if self.deadline is not None and now - progress > self.deadline:
                raise WorkerLate(f"no reply from Dask workers within {self.deadline:g} s; {LATE}")
            if now - complete > PATIENCE:
                raise WorkerLost(f"Dask workers are gone since {PATIENCE:g} s; {REMEDY}")
            if self._any(waiting, min(TICK, self.deadline or TICK)) or not self._missing():
                complete = monotonic()

    def _any(self, futures: Sequence[Future[Any]], seconds: float) -> bool:
        """Wait for one of the futures, and say whether it came."""
        with suppress(TimeoutError, CancelledError), self.client.as_current():
            _dask.wait(futures, timeout=seconds, return_when="FIRST_COMPLETED")
            return True
        return False

    def _responsive(self, numbers: Iterable[int]) -> set[int]:
        """Shards that reply."""
        asked = [n for n in numbers if n in self._states and not _ended(self._states[n])]
        replies = self._each(_reply, {n: self._states[n] for n in asked}) if asked else {}
        end = monotonic() + ANSWER
        while monotonic() < end:
            waiting = [f for f in replies.values() if not _ended(f) and f.status != "finished"]
            if not waiting:
                break
            self._any(waiting, 0.1)
        return {n for n, future in replies.items() if future.status == "finished"}


def _has_port(address: str) -> bool:
    with suppress(ValueError):
        parts = urlsplit(address)
        return bool(parts.hostname and parts.port)
    return False


def _to_its_end(function: Callable[[], object]) -> None:
    """Call a function in a thread, where signals do not interrupt it, only the wait for it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


def _resource(number: int) -> str:
    return f"localpower-{number}"


def _recipes(
    data: Any, open_block: OpenBlock
) -> tuple[list[Delayed], list[tuple[EngineBlock, int]] | None]:
    """How blocks are opened; and what they are, where that is declared."""
    make = delayed(_opened, pure=False)
    if isinstance(data, list | tuple | Future | Delayed):
        return [make([part], open_block) for part in _listed(data)], None
    if not hasattr(data, "chunks"):
        return [make([part], open_block) for part in data.to_delayed()], None
    name = f"localpower-{uuid4().hex}"  # Dask is confused if keys of the user's mean two things
    opened = _blockwise(
        _opened, "i", data, "ij", open_block=open_block, concatenate=False, name=name,
        dtype=object, meta=np.empty(0, object),
    )  # fmt: skip
    recipes = list(opened.to_delayed())
    if not isinstance(data._meta, np.ndarray) or any(map(math.isnan, data.shape)):
        return recipes, None
    kind, columns = _work_type(data.dtype), int(data.shape[1])
    known = [
        EngineBlock(None, (int(rows), columns), kind, int(rows) * columns)
        for rows in data.chunks[0]
    ]
    check = delayed(_checked, pure=False)
    recipes = [check(recipe, held.shape) for recipe, held in zip(recipes, known, strict=True)]
    return recipes, [(held, held.nnz * data.dtype.itemsize) for held in known]


def _listed(data: Any) -> list[Any]:
    return list(data) if isinstance(data, list | tuple) else [data]


def _ended(future: Future[Any]) -> bool:
    return future.status in ("error", "cancelled")


def _why(future: Any) -> Exception:
    """Say why there is no result."""
    if future.status == "cancelled":
        return _lost("what it held cannot be made again by Dask")
    error = future.exception()
    if isinstance(error, KilledWorker):
        return _lost(error)
    if isinstance(error, LocalPowerError):  # not itself: Dask has it, and it would have our frames
        return type(error)(str(error))
    lines = traceback.format_exception(type(error), error, future.traceback())
    return WorkerFailed(f"a task failed on a Dask worker:\n{''.join(lines)}")


def _lost(error: object) -> WorkerLost:
    return WorkerLost(f"a Dask worker that held shards is gone ({error}); {REMEDY}")


async def _awaited(function: Callable[[], Any]) -> Any:
    return await function()


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn what Dask raises where workers are gone into our own exception."""
    try:
        yield
    except (CancelledError, OSError) as error:
        raise _lost(error) from error
