"""The driver and the hosts, without a cluster; and engines that others register."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from helpers import same_bits, with_spectrum
from threadpoolctl import threadpool_info, threadpool_limits

import localpower as lp
from localpower.core.errors import EngineError, LocalPowerError
from localpower.engines import ClusterEngine, Failure, ShardHost, register
from localpower.engines.blas import BLAS_THREADS, OneThreadHost, one_blas_thread
from localpower.engines.registry import ROWS, is_shared, name_of
from localpower.engines.signals import to_its_end
from localpower.worker.host import result_of
from localpower.worker.tasks import Describe, PowerSteps

A = with_spectrum(300, 0.8 ** np.arange(9), seed=1)


class Cluster:
    """What users have open: hosts, which may lose what they hold."""

    def __init__(self, size=3):
        self.hosts = [ShardHost(f"on host {at}") for at in range(size)]


class Toy(ClusterEngine):
    """An engine as somebody else would write it: four hooks, one way to add, one to heal."""

    def __init__(self, address=None, size=2):
        super().__init__()
        self.cluster = address if isinstance(address, Cluster) else Cluster(size)

    @property
    def size(self):
        return len(self.cluster.hosts)

    def host(self, number):
        return self.cluster.hosts[number % self.size]

    def _gather(self, count, adopted):
        for host in self.cluster.hosts:
            host.forget()

    def _hold(self, numbers):
        for n in numbers:
            held = self.host(n).hold(n, self._shards[n], persisting=self._persisting.get(n))
            result_of(held)

    def _exchange(self, task, numbers):
        for n in numbers:
            if n not in self.host(n).numbers():
                raise lp.WorkerLost(f"shard {n} is lost")
            yield self.host(n).run(n, task.for_shard(n))

    def _partial_sums(self, task):
        parts = list(self._exchange(task, self.numbers()))
        while len(parts) > 8:
            groups = [parts[at : at + 8] for at in range(0, len(parts), 8)]
            parts = [self.host(at).add(group) for at, group in enumerate(groups)]
        return parts

    def _lost(self, numbers):
        return [n for n in numbers if n not in self.host(n).numbers()]


@contextmanager
def registered(name, *args, **options):
    register(name, *args, **options)
    try:
        yield
    finally:
        del ROWS[name]


OPTIONS = {"method": "dpi", "max_rounds": 3, "center": True, "rng": 0, "workers": 20}


@pytest.fixture(scope="module")
def reference():
    return lp.svd(A, 3, engine="inline", **OPTIONS)


def test_an_engine_of_somebody_else_is_found_by_its_name_or_by_what_is_open(reference):
    with registered("toy", Toy, objects=[Cluster], takes_address=True, takes_workers=True):
        for engine in ("toy", "toy:4", "toy://somewhere", Cluster(5)):
            result = lp.svd(A, 3, engine=engine, **OPTIONS)
            assert same_bits(reference, result)
            assert result.ledger == reference.ledger
            assert result.run["engine"] == "toy"
        assert lp.connect("toy:4").size == 4
        assert name_of(Cluster()) == "toy"
        assert not is_shared("toy")
    with pytest.raises(ValueError, match="engine='toy' is not known"):
        lp.connect("toy")


def test_an_address_that_an_engine_does_not_take_is_refused():
    with registered("toy", Toy):
        for address in ("toy:4", "toy://somewhere", "toy:", "inline:2"):
            with pytest.raises(ValueError, match=f"engine='{address}' is not known"):
                lp.connect(address)
    with pytest.raises(ValueError, match="name='a:b' cannot name an engine"):
        register("a:b", Toy)


def test_shards_that_hosts_have_lost_come_back_prepared_as_they_were(reference):
    engine = Toy()

    def callback(record, state):
        if record.round == 2:
            engine.cluster.hosts[1].forget()

    result = lp.svd(A, 3, engine=engine, callback=callback, **OPTIONS)
    assert same_bits(reference, result)
    assert "is lost" in result.run["faults"][0]["what"]


def test_a_failure_in_a_group_is_that_of_the_sum():
    engine = Toy()
    lp.svd(A, 3, engine=engine, **OPTIONS)
    for ask in (engine.sum, lambda task: list(engine.map(task))):
        with pytest.raises(
            lp.WorkerFailed, match=r"(?s)a task failed on host 0:\nTraceback.*mismatch"
        ):
            ask(PowerSteps(np.eye(3), 1))
    engine.close()
    with pytest.raises(EngineError, match="place them first"):
        list(engine.map(Describe(extremes=False)))


@pytest.mark.parametrize("kind", [lp.DataError, lp.WorkerLost, lp.WorkerLate, lp.EngineError])
def test_failures_become_the_exceptions_that_they_were(kind):
    failure = Failure.of(kind("what it says"), "here")
    assert type(failure.error()) is kind
    assert str(failure.error()) == "what it says"


class RefusedError(LocalPowerError):
    """What somebody's host says no with."""


@dataclass(frozen=True, slots=True, eq=False)
class Refusal(Failure):
    """A reply of such a host."""

    def error(self):
        return RefusedError(self.text)


def test_a_host_that_refuses_is_asked_once():
    asked = []

    class Careful(Toy):
        def _exchange(self, task, numbers):
            asked.append(task)
            yield Refusal("too few rows")

    with pytest.raises(RefusedError, match="too few rows"):
        lp.svd(A, 3, engine=Careful(), **OPTIONS)
    assert len(asked) == 1


def test_a_host_on_a_worker_of_others_has_one_blas_thread_while_it_works(monkeypatch):
    for name in BLAS_THREADS:
        monkeypatch.delenv(name, raising=False)

    with threadpool_limits(2, user_api="blas"):
        host = OneThreadHost("here")
        assert blas_threads() == {2}
        assert host.attempt(blas_threads) == host.copy().attempt(blas_threads) == {1}
        assert blas_threads() == {2}


def blas_threads():
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }


def test_blas_has_one_thread_whichever_threads_of_a_worker_are_at_work():
    first, second = one_blas_thread(), one_blas_thread()
    with (
        threadpool_limits(2, user_api="blas"),  # as a user may have said in the main thread
        ThreadPoolExecutor(1) as one,
        ThreadPoolExecutor(1) as other,
    ):
        one.submit(first.__enter__).result()
        assert blas_threads() == one.submit(blas_threads).result() == {1}
        other.submit(second.__enter__).result()
        one.submit(first.__exit__, None, None, None).result()
        assert blas_threads() == {1}
        other.submit(second.__exit__, None, None, None).result()
        assert blas_threads() == {2}
    assert blas_threads() == {1}  # as all tests have it


def test_several_signals_do_not_end_the_wait_for_what_is_being_started():
    complete = []

    def start():
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        complete.append(True)

    with pytest.raises(KeyboardInterrupt):
        to_its_end(start)
    assert complete
