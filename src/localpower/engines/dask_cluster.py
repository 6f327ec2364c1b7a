"""The workers of a Dask cluster: connecting, starting and ending our own, seeing who is there."""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import dask.config
import distributed
from distributed import Client, KilledWorker, Nanny, Scheduler
from distributed.core import Status
from distributed.system import MEMORY_LIMIT

from localpower.core.errors import EngineError, WorkerFailed, WorkerLost
from localpower.core.machine import cores
from localpower.engines.blas import BLAS_THREADS
from localpower.engines.cluster import ClusterEngine, late, lost
from localpower.engines.registry import endpoints
from localpower.engines.signals import to_its_end

TICK = 0.5  # seconds between looks at the workers
PATIENCE = 30.0  # seconds that workers may take to start, or to come back
ANSWER = 5.0  # seconds in which a worker that is well gets round to a small task
HOST = {"host": "127.0.0.1", "dashboard": False}
PRELOADED = "localpower.engines.dask"  # a worker counts as started when it has imported this
ENDED = (Status.closed, Status.failed)  # of a nanny
FAILED = ("cancelled", "error")  # of a future
CLOSED = (
    "the Client of this engine is closed or its scheduler gone: start the cluster if need be, and "
    "open another Client, or connect again"
)
_dask: Any = distributed  # most of it has no types


class Starter(Nanny):
    """A nanny that also ends a process that never became a worker, as Dask's own may not."""

    async def close(self, *args: Any, **options: Any) -> Any:
        process: Any = self.process
        if process is not None and process.status == Status.starting and process.pid:
            self.close_gracefully()  # nor shall it be started again
            os.kill(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.stopped.wait(), ANSWER)
        return await super().close(*args, **options)


class ClosingClient(Client):
    """A client that is closed also if it could not be opened: else Python waits for it at exit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        try:
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        except BaseException:
            self.close()  # type: ignore[no-untyped-call]
            raise


class DaskWorkers(ClusterEngine):
    """The part of the engine that knows workers: the user's, or `size` processes of our own.

    Each process has one thread, and a resource of its own that shards are pinned to. All of it
    listens on loopback only.
    """

    def __init__(self, address: str | Client | None = None, size: int | None = None) -> None:
        super().__init__()
        if isinstance(address, Client) and address.asynchronous:
            raise ValueError(
                f"engine={address!r} is asynchronous: give a Client that was opened without "
                "asynchronous=True, outside of coroutines, or its address as 'tcp://host:8786'"
            )
        if isinstance(address, str):
            endpoints(address, 8786)  # else there is no scheduler to look for
        if address is None and multiprocessing.current_process().daemon:
            raise EngineError(
                "engine='dask' starts processes, which is not allowed in a daemonic one as this "
                "(a Dask worker?): take 'threads', or in a Dask task distributed.get_client()"
            )
        self._address, self._wanted, self._ours = address, size or cores(), address is None
        self._client: Any = None
        self._cluster: Any = None
        self._bare: float | None = None  # since when no worker ever was there; forever, if one was
        self._silent: set[str] = set()  # workers of the user's that did not answer

    @property
    def client(self) -> Any:
        """The connection to the cluster, opened when it is first needed."""
        if self._client is None:
            self._client = self._connect()
        if self._client.status in ("closing", "closed"):
            raise EngineError(CLOSED)
        return self._client

    @property
    def size(self) -> int:
        if self._ours:
            return self._wanted
        return max(1, sum(int(worker["nthreads"]) for worker in self._workers().values()))

    def close(self) -> None:
        super().close()
        self._client = None

    def _connect(self) -> Any:
        if isinstance(self._address, Client):
            return self._address
        if self._address is None:
            try:
                self._start()
                client = ClosingClient(self._cluster, set_as_default=False, direct_to_workers=True)
            except BaseException as error:
                to_its_end(self._stack.pop_all().close)
                if not isinstance(error, RuntimeError | OSError):
                    raise
                raise lost("Dask workers could not be started", error.__cause__ or error) from error
        else:
            target = f"tcp://{urlsplit(self._address).netloc}"
            try:
                client = ClosingClient(target, set_as_default=False)
            except OSError as error:
                raise EngineError(f"no Dask scheduler answers at {target}: {error}") from error
        return self._stack.enter_context(client)

    def _start(self) -> None:
        """Start processes.

        Workers are named otherwise than in the specification: else Dask looks 15 seconds after a
        worker was lost whether one of its name is there, and ends for good what is just being
        started again after another loss.
        """
        files = tempfile.TemporaryDirectory(prefix="localpower-", ignore_cleanup_errors=True)
        folder = self._stack.enter_context(files)
        options = HOST | {
            "nthreads": 1,
            "memory_limit": MEMORY_LIMIT // self._wanted,
            "local_directory": folder,
            "death_timeout": PATIENCE,  # a process that has not started by then is given up
            "silence_logs": logging.ERROR,
            "env": dict.fromkeys(BLAS_THREADS, "1"),
            "preload": [PRELOADED],
        }
        to_its_end(partial(self._start_scheduler, folder))
        self._cluster.worker_spec = {
            i: {"cls": Starter, "options": options | {"name": f"{i}", "resources": resource(i)}}
            for i in range(self._wanted)
        }
        ready = _awaited(lambda: self._cluster)
        asyncio.run_coroutine_threadsafe(ready, self._cluster.loop.asyncio_loop).result()

    def _start_scheduler(self, folder: str) -> None:
        options = HOST | {"port": 0, "dashboard_address": "127.0.0.1:0"}
        scheduler = {"cls": Scheduler, "options": options}
        with dask.config.set({"temporary-directory": folder}):  # the scheduler's, too
            cluster = _dask.SpecCluster(scheduler=scheduler, silence_logs=logging.ERROR)
        self._cluster = self._stack.enter_context(cluster)

    def _call(
        self, function: Callable[[], Any], home: str = "", futures: Sequence[Any] = ()
    ) -> Any:
        """Wait for what a function promises, which brings `futures` if they are given.

        The deadline is for each of them. Nor is there anything to wait for if `home` is gone, if
        one of them failed, or if workers are missing for long.
        """
        loop, limit = self.client.loop.asyncio_loop, self.deadline or math.inf
        promise = asyncio.run_coroutine_threadsafe(_awaited(function), loop)
        progress = complete = monotonic()
        left = len(futures)
        try:
            while not wait([promise], max(0.0, min(TICK, progress + limit - monotonic()))).done:
                now, waiting = monotonic(), sum(f.status != "finished" for f in futures)
                if waiting < left:
                    progress, complete, left = now, now, waiting
                if now >= progress + limit:
                    raise late("Dask workers", self.deadline)
                if home and home not in self._workers():
                    raise self._gone(home)
                if not (futures and self._missing()):
                    complete = now
                elif now > complete + PATIENCE:
                    raise self._gone(f"no worker for more than {PATIENCE:g} s")
        finally:
            promise.cancel()
        try:
            return promise.result()
        except Exception as error:
            for future in (future for future in futures if future.status in FAILED):
                raise self._why(future) from None
            if not isinstance(error, CancelledError | OSError | RuntimeError):
                raise
            sleep(TICK)  # until scheduler and client know, too, who is gone
            raise self._gone(error) from error

    def _gone(self, error: object) -> EngineError:
        """Return the error for a worker that is; or if so is the scheduler, for that."""
        if self._client.status == "running":
            return lost("a Dask worker that held shards is gone", error)
        return EngineError(f"{CLOSED} ({error})")

    def _why(self, future: Any) -> EngineError:
        """Return the error for a future that failed."""
        if future.status == "cancelled":
            return self._gone("what it held cannot be made again by Dask")
        error = future.exception()
        if isinstance(error, KilledWorker):
            return self._gone(error)
        lines = traceback.format_exception(type(error), error, future.traceback())
        return WorkerFailed(f"a task failed on a Dask worker:\n{''.join(lines)}")

    def _workers(self) -> dict[str, Any]:
        """Tell what the scheduler knows of the workers that are there, by address."""
        known = self._call(partial(self.client.scheduler.identity, n_workers=-1))
        workers: dict[str, Any] = known["workers"]
        if workers or self._bare is None:
            self._bare = math.inf if workers else monotonic()
        return workers

    def _missing(self, ended: Collection[str] = ()) -> bool:
        """Whether workers are gone that tasks may be waiting for; some are `ended` already.

        Nannies of ours that ended are replaced: they do end where a worker cannot be started.
        """
        with suppress(WorkerLost):
            there = self._workers().keys() - set(ended)
            nannies = self._cluster.workers if self._ours else {}
            for name in [name for name, nanny in [*nannies.items()] if nanny.status in ENDED]:
                del nannies[name]
                self._cluster.scale(self._wanted)
            return len(there) < (self._wanted if self._ours else 1)
        return True

    def _await_workers(self, ended: Collection[str] = ()) -> None:
        self._client = self.client  # where it cannot be started, that is told
        end, first = monotonic() + PATIENCE, min(PATIENCE, self.deadline or PATIENCE)
        while self._missing(ended):
            if self._bare is not None and monotonic() > self._bare + first:
                raise EngineError(
                    "the cluster has no workers: start some, and wait for them with "
                    "client.wait_for_workers(1) before it is given as engine="
                )
            if monotonic() > end:
                raise lost("Dask workers did not come back", f"waited for {PATIENCE:g} s")
            sleep(0.1)

    def _unresponsive(self) -> set[str]:
        """Tell which workers do not get round to a small task: they hang, or are busy."""
        asked = {at: self.client.submit(int, workers=[at], pure=False) for at in self._workers()}
        end = monotonic() + ANSWER
        while waiting := {at for at, future in asked.items() if future.status != "finished"}:
            if monotonic() > end or waiting.isdisjoint(self._workers()):
                break
            sleep(0.1)
        return waiting

    def _set_aside(self, silent: Collection[str]) -> None:
        """Do without workers: ours are killed, and others started; of the user's, others asked."""
        if not self._ours:
            self._silent = set(silent)
        elif silent:
            for nanny in [*self._cluster.workers.values()]:
                if nanny.worker_address in silent and (pid := nanny.pid):
                    with suppress(ProcessLookupError):  # what the nanny does not know yet
                        os.kill(pid, signal.SIGKILL)
            self._await_workers(silent)

    def _homes(self) -> list[str]:
        """Workers that tasks may run on: all but those set aside, unless there are no others."""
        workers = self._workers()
        well = workers.keys() - self._silent or workers.keys()
        return sorted(well, key=lambda address: str(workers[address]["name"]).zfill(9))

    def _elsewhere(self) -> dict[str, Any]:
        """Where tasks run that have no home: Dask decides, unless workers were set aside."""
        return {"workers": self._homes()} if self._silent else {}


def resource(number: int) -> dict[str, int]:
    """Name what shards are pinned to a worker by."""
    return {f"localpower-{number}": 1}


async def _awaited(function: Callable[[], Any]) -> Any:
    return await function()
