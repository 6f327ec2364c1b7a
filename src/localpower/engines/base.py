"""The interface between methods and the places where shards live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import Any

import numpy as np

from localpower.core.errors import EngineError, WorkerLost
from localpower.core.linalg import fold
from localpower.engines.calibration import Speeds, recalled, remember, time_products
from localpower.worker.shard import EngineBlock, OpenBlock, Shard
from localpower.worker.tasks import R, Task


class Engine(ABC):
    """Holds shards and runs tasks on them.

    An adapter writes `place`, `map` and `close`; `sum` if it can add on the way, `takes` and
    `adopt` if it has data of its own kind, `heal` if it can bring back what was lost. After
    `place`, `rows` tells how many rows each shard has, `columns` and `dtype` what all have. Placing
    again replaces the shards. No call waits longer than `deadline` seconds for a reply, if that is
    set, and of adopted rows no more than `memory` bytes are kept, if that is. `latency` (seconds of
    a hop), `bandwidth` (bytes a second) and `flops` (operations a second of a worker) are what the
    automatic choice of a method reckons with: `measure` sets them, or you do. `address` is what the
    engine was connected by.
    """

    only_sums = False  # whether nothing but sums of replies over all shards can be seen
    most_columns = float("inf")  # of products, that every shard is willing to make at once
    absent: frozenset[int] = frozenset()  # shards that are lost, and that sums are without
    trace = 0.0  # of AᵀA of the rows as prepared, once it is known
    address = ""
    shared = False  # whether all processes of a job make the same calls, each with its own rows
    latency = 1e-4
    bandwidth = 5e9
    flops = 8e10
    deadline: float | None = None
    memory: float | None = None
    rows: Sequence[int] = ()
    columns: int = 0
    dtype: np.dtype[Any] = np.dtype(np.float64)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} engine>"

    @property
    @abstractmethod
    def size(self) -> int:
        """How many shards are worked on at the same time."""

    @property
    def rounding(self) -> float:
        """What adding in whole numbers may do to products, in the spectral norm."""
        return 0.0

    def place(self, shards: Sequence[Shard]) -> None:
        """Bring the shards to their workers, once."""
        self.rows = [shard.rows for shard in shards]
        self.columns = shards[0].columns
        self.dtype = shards[0].dtype

    @abstractmethod
    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        """Run a task on every shard; yield the replies in shard order, or in `order`.

        They are the caller's, to change if it likes.
        """

    def numbers(self, order: Iterable[int] | None = None) -> Sequence[int]:
        """Shard numbers in `order`, by default all of them."""
        return range(len(self.rows)) if order is None else list(order)

    def takes(self, data: Any) -> bool:
        """Tell data whose rows this engine can work on where they are."""
        return False

    def adopt(self, data: Any, open_block: OpenBlock) -> Sequence[EngineBlock]:
        """Keep such data where they are, as one shard per block, for `place`.

        `open_block` makes pieces of a block; it is called where the block is.
        """
        raise NotImplementedError

    def run_on_coordinator(self, run: Callable[[], R], data: Any, open_block: OpenBlock) -> R:
        """Run a method with this engine and return its result.

        Where every process runs the same program, one does so; all others open their part of the
        `data`, serve it, and return the same result.
        """
        return run()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other runs away meanwhile: they would place rows of their own."""
        lock: Lock = self.__dict__.setdefault("_in_use", Lock())
        if not lock.acquire(blocking=False):
            raise EngineError(
                "this engine is in use by another call: wait for it to end, or connect one for "
                "each thread"
            )
        try:
            yield
        finally:
            lock.release()

    def measure(self, again: bool = False) -> Speeds:
        """Time hops, messages and products, once, and reckon with that from now on.

        It takes about a second, and rows that the engine holds are gone. What is found is kept for
        the address that the engine was connected by, and is used by whoever connects it `again`.

        Parameters
        ----------
        again
            Measure even if that was done before.

        Returns
        -------
        Speeds
            Seconds of a hop, `latency`; bytes a second, `bandwidth`; operations a second, `flops`.
        """
        found = None if again else recalled(self.address)
        if found is None:
            with self.exclusive():
                found = time_products(self)
            remember(self.address, found)
        self.reckon_with(found)
        return found

    def reckon_with(self, speeds: Speeds | None) -> None:
        """Take over what was measured, if anything was."""
        if speeds is not None:
            self.latency, self.bandwidth = speeds.latency, speeds.bandwidth
            self.flops = speeds.flops

    def heal(self, numbers: Sequence[int]) -> None:
        """Make these shards usable after a round that failed: bring back those that were lost.

        They are prepared as they were by the last task that `persists`. Raises `EngineError` if
        that cannot be done.
        """
        raise WorkerLost(f"shards {list(numbers)} cannot be brought back by this engine")

    def anchor_first(self) -> list[int]:
        """All shard numbers, the anchor before the others: the one with the most rows."""
        anchor = max(range(len(self.rows)), key=lambda i: (self.rows[i], -i))
        return [anchor, *(i for i in range(len(self.rows)) if i != anchor)]

    def sum(self, task: Task[R]) -> R:
        """Run a task on every shard and add the replies, always in the same order."""
        return fold(self.map(task), len(self.rows), own=True)

    def close(self) -> None:
        """Release the shards and whatever was started for them."""
        self.rows = ()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
