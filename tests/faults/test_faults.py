"""Every fault ends in the fault-free bits, a labelled result or a clear error, in its time."""

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import fields, replace
from itertools import product
from operator import add

import numpy as np
import pytest
from helpers import look, same_bits, started, until, with_spectrum

import localpower as lp
from localpower.core.errors import WireError
from localpower.core.linalg import combined
from localpower.engines.base import Engine
from localpower.engines.retrying import sound
from localpower.worker.replies import Eigenvectors
from localpower.worker.tasks import PowerSteps, TopVectors, Triangle

A = with_spectrum(400, 0.9 ** np.arange(30), seed=3)
SHARDS, K = 5, 3
MOMENTS = ("placement", "first", "middle", "factors")
PATIENT = lp.Faults(deadline=4.0, retries=10)  # what is started again may be late, too


class Disturbed(Engine):
    """Does something at one moment of a run, once; else it is the engine that it is made of."""

    def __init__(self, engine, moment, before=None, replies=None):
        self.engine, self.moment, self.left = engine, moment, 1
        self.before, self.replies = before, replies
        self.calls = self.products = 0

    @property
    def size(self):
        return self.engine.size

    def place(self, shards):
        super().place(shards)
        self.engine.deadline = self.deadline
        self.engine.place(shards)
        if self.before and self.now("placement"):
            self.before(self.engine)

    def now(self, moment):
        hit = self.left and moment == self.moment
        self.left -= hit
        return hit

    def map(self, task, order=None):
        inner = getattr(task, "task", task)
        self.calls += 1
        self.products += isinstance(inner, PowerSteps)
        moment = "placement" if self.calls == 1 else ""  # wrong replies come from the first task on
        if isinstance(inner, PowerSteps):
            moment = {1: "first", 3: "middle"}.get(self.products, "")
        if isinstance(inner, Triangle):
            moment = "factors"
        if self.now(moment):
            if self.before:
                self.before(self.engine)
            if self.replies:
                yield from self.replies(list(self.engine.map(task, order)))
                return
        yield from self.engine.map(task, order)

    def heal(self, numbers):
        self.engine.heal(numbers)

    def close(self):
        self.engine.close()
        super().close()


def workers():
    return started("localpower.engines.child") or started("spawn_main")  # the latter are Dask's


def sent(sign):
    def to_one(engine):
        os.kill(workers()[0].pid, sign)
        time.sleep(0.1)

    return to_one


def all_killed(engine):
    for worker in workers():
        look(worker, "kill")


def with_product(change):
    def of(replies):
        first = replies[0]
        arrays = {field.name: getattr(first.content, field.name) for field in fields(first.content)}
        name = next(name for name, value in arrays.items() if isinstance(value, np.ndarray))
        content = replace(first.content, **{name: change(arrays[name])})
        return [replace(first, content=content), *replies[1:]]

    return of


def broken_wire(replies):
    yield replies[0]
    raise WireError("not a frame of this version")


def transient(replies):
    yield from replies[:2]
    raise lp.WorkerFailed("a task failed: MemoryError")


KILLS = {
    "killed": sent(signal.SIGKILL),
    "segfault": sent(signal.SIGSEGV),
    "stopped": sent(signal.SIGSTOP),
    "all killed": all_killed,
}
DEATHS = [
    *(("killed", moment) for moment in MOMENTS),
    *(("stopped", "placement"), ("stopped", "middle")),  # each takes as long as the deadline
    *(("segfault", "first"), ("all killed", "placement"), ("all killed", "factors")),
]
REPLIES = {
    "lost": lambda replies: replies[1:],
    "last lost": lambda replies: replies[:-1],
    "none": lambda replies: [],
    "twice": lambda replies: [replies[0], *replies],
    "swapped": lambda replies: [replies[1], replies[0], *replies[2:]],
    "reversed": lambda replies: replies[::-1],
    "of another round": lambda replies: [replace(replies[0], key="0.0"), *replies[1:]],
    "of no shard": lambda replies: [replace(replies[0], number=99), *replies[1:]],
    "not finite": with_product(lambda x: np.where(x == x.flat[0], np.nan, x)),
    "infinite": with_product(lambda x: np.where(x == x.flat[0], np.inf, x)),
    "of one row": with_product(lambda x: x[:1]),
    "too narrow": with_product(lambda x: x[..., :-1]),
    "too long": with_product(lambda x: np.concatenate([x, x])),
    "torn frame": broken_wire,
    "a failure that passes": transient,
}


def fit(engine, **options):
    options = {"method": "dpi", "max_rounds": 5, "workers": SHARDS, "rng": 0} | options
    return lp.svd(A, K, engine=engine, **options)


@pytest.fixture(scope="module")
def undisturbed():
    return fit("inline")


@pytest.fixture(scope="module")
def clusters():
    """Engines that live for all tests of this module."""
    with ExitStack() as stack:
        yield {n: stack.enter_context(lp.connect(n)) for n in ("inline", "processes:2", "dask:2")}


@pytest.mark.parametrize(("kind", "moment"), DEATHS)
def test_processes_that_die_or_hang_are_started_again(kind, moment, undisturbed, clusters):
    result = fit(Disturbed(clusters["processes:2"], moment, before=KILLS[kind]), faults=PATIENT)
    assert same_bits(undisturbed, result)
    assert result.ledger == undisturbed.ledger
    assert result.run["faults"]
    until(lambda: len(workers()) == 2)


@pytest.mark.parametrize("method", ["local_power", "local_ritz", "block_lanczos", "tsqr", "uda"])
def test_every_method_survives_a_killed_process(method, clusters):
    options = {"method": method, "max_rounds": 4}
    engine = Disturbed(clusters["processes:2"], "factors", before=all_killed)
    assert same_bits(fit(engine, **options), fit("inline", **options))


def test_of_processes_that_were_started_again_none_is_left(clusters):
    fit(Disturbed(clusters["processes:2"], "factors", before=KILLS["killed"]))
    clusters["processes:2"].close()
    assert not workers()


WRONG = [*product(REPLIES, ["inline", "processes:2"], MOMENTS)]
WRONG += [
    (kind, "dask:2", "middle")  # which sees no more than what it is asked again
    for kind in ("lost", "none", "not finite", "torn frame", "a failure that passes")
]


@pytest.mark.parametrize(("kind", "address", "moment"), WRONG)
def test_replies_that_are_wrong_are_asked_for_again(kind, moment, address, undisturbed, clusters):
    result = fit(Disturbed(clusters[address], moment, replies=REPLIES[kind]))
    assert same_bits(undisturbed, result)
    assert result.run["faults"] or kind in ("swapped", "reversed")


class Adding(Disturbed):
    """Like engines that add on the way: nobody sees single replies."""

    def sum(self, task):
        return combined(add, self.map(task))


@pytest.mark.parametrize("moment", ["first", "middle"])
@pytest.mark.parametrize("kind", [kind for kind in REPLIES if kind != "none"])
def test_sums_of_replies_that_are_wrong_are_asked_for_again(kind, moment, undisturbed):
    result = fit(Adding(lp.connect("inline"), moment, replies=REPLIES[kind]))
    assert same_bits(undisturbed, result)
    assert result.run["faults"]


@pytest.mark.parametrize(
    ("vectors", "values", "right"),
    [
        ((4, 2), 2, True),
        ((4, 0), 0, True),
        ((3, 2), 2, False),
        ((4,), 2, False),
        ((4, 2), (2, 1), False),
    ],
)
def test_where_a_shard_decides_how_much_it_sends_the_rest_of_the_shape_counts(
    vectors, values, right
):
    reply = Eigenvectors(np.zeros(vectors), np.zeros(values))
    assert sound(reply, TopVectors(3).shapes(5, 4)) == right


@pytest.mark.parametrize(("kind", "moment"), DEATHS)
def test_dask_workers_that_die_or_hang_are_made_good(kind, moment, undisturbed, clusters):
    clusters["processes:2"].close()  # the only processes are Dask's
    result = fit(Disturbed(clusters["dask:2"], moment, before=KILLS[kind]), faults=PATIENT)
    assert same_bits(undisturbed, result)
    assert result.ledger == undisturbed.ledger


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with lp.connect("ray:2") as engine:
        yield engine


@pytest.mark.parametrize(
    ("kind", "moment"), [death for death in DEATHS if death[0] in ("killed", "all killed")]
)
def test_actors_of_ray_that_die_are_started_again(kind, moment, undisturbed, ray, monkeypatch):
    monkeypatch.setitem(globals(), "workers", lambda: started("ray::Holder"))
    result = fit(Disturbed(ray, moment, before=KILLS[kind]), faults=lp.Faults(deadline=40.0))
    assert same_bits(undisturbed, result)
    assert result.ledger == undisturbed.ledger
    assert result.run["faults"]


def always(kind):
    class Always(Disturbed):
        def map(self, task, order=None):
            replies = self.engine.map(task, order)
            inner = getattr(task, "task", task)
            self.products += isinstance(inner, PowerSteps)
            bad = self.products > 2 and isinstance(inner, PowerSteps)
            yield from REPLIES[kind](list(replies)) if bad else replies

    return Always


@pytest.mark.parametrize("kind", ["last lost", "not finite", "torn frame", "of another round"])
def test_a_fault_that_stays_is_an_error_by_default(kind):
    with always(kind)(lp.connect("inline"), "") as engine, pytest.raises(lp.LocalPowerError):
        fit(engine)


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("rounds", [2, 40])
def test_a_lost_shard_is_told_where_the_user_asks_to_go_on(rounds, lost):
    class Without(Disturbed):
        """A shard is gone after some rounds."""

        def map(self, task, order=None):
            inner = getattr(task, "task", task)
            self.products += isinstance(inner, PowerSteps)
            here = [n for n in self.engine.numbers(order) if n != lost or self.products <= rounds]
            yield from self.engine.map(task, here)

    with (
        Without(lp.connect("inline"), "") as engine,
        pytest.warns(lp.DegradedWarning, match="80 of 400"),
    ):
        result = fit(engine, faults=lp.Faults(on_loss="degrade"), max_rounds=60, return_u=True)
    first = 80 * lost
    assert result.run["degraded"] == [{"shard": lost, "first_row": first, "rows": 80}]
    assert not result.converged
    assert result.reason == "degraded"
    gone = np.s_[first : first + 80]
    assert np.isnan(result.U[gone]).all()
    assert np.isfinite(np.delete(result.U, gone, axis=0)).all()
    truth = np.linalg.svd(A)[2][:K].T
    limit = 1e-3 if rounds == 40 else 0.9
    assert lp.subspace_distance(truth, result.components.T) < limit


@pytest.mark.parametrize("first", [0, 1, 4])
def test_products_of_the_round_in_which_a_shard_was_lost_stand_in_for_later_ones(first):
    class Without(Disturbed):
        """A shard is gone from the first product on, and shard 2 from the second on."""

        def map(self, task, order=None):
            inner = getattr(task, "task", task)
            self.products += isinstance(inner, PowerSteps)
            gone = {first} if self.products else set()
            gone |= {2} if self.products > 1 else set()
            here = [n for n in self.engine.numbers(order) if n not in gone]
            yield from self.engine.map(task, here)

    with (
        Without(lp.connect("inline"), "") as engine,
        pytest.warns(lp.DegradedWarning, match="160 of 400"),
    ):
        result = fit(engine, faults=lp.Faults(retries=0, on_loss="degrade"), max_rounds=40)
    told = {f["shards"]: f["then"] for f in result.run["faults"] if f["what"] == "lost"}
    assert told == {(first,): "left out", (2,): "its last product was used"}


def test_bad_options_are_refused():
    for bad in ({"deadline": 0}, {"deadline": "soon"}, {"retries": -1}, {"retries": True}):
        with pytest.raises((TypeError, ValueError), match=f"Faults {next(iter(bad))}="):
            fit("inline", faults=lp.Faults(**bad))
    with pytest.raises(ValueError, match="on_loss"):
        fit("inline", faults=lp.Faults(on_loss="hope"))
