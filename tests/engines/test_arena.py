"""Memory that processes share: what passes through it, and what goes through the pipe instead."""

import os
import resource

import numpy as np
import pytest
from helpers import same_bits

import localpower as lp
from localpower.engines.arena import LARGE, SMALL, Arena
from localpower.worker.shard import Shard
from localpower.worker.tasks import PowerSteps

nameless = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="this system has no files without a name"
)


def parts_of(*arrays):
    return [array.data.cast("B") for array in arrays]


def read(arena, *likes):
    fill, copies = arena.reader(), [np.empty_like(like) for like in likes]
    for view in parts_of(*copies):
        fill(view)
    return copies


@pytest.fixture
def ends():
    """Both ends of an arena: of who writes, and of who reads."""
    here = Arena()
    there = Arena(os.dup(here.file))
    yield here, there
    here.close()
    there.close()


@nameless
def test_arrays_are_read_as_they_were_put_also_when_later_ones_are_larger(ends):
    here, there = ends
    for size in (SMALL // 8, SMALL, 10 * SMALL, SMALL // 8):
        arrays = np.random.default_rng(size).standard_normal(size), np.arange(7, dtype=np.int32)
        assert here.put(parts_of(*arrays))
        for sent, got in zip(arrays, read(there, *arrays), strict=True):
            np.testing.assert_array_equal(sent, got)
        there.empty()


@nameless
def test_nothing_is_overwritten_before_it_was_read(ends):
    here, there = ends
    first, second = np.zeros(SMALL), np.ones(2 * SMALL)
    assert here.put(parts_of(first))
    assert not here.put(parts_of(second))
    assert (read(there, first)[0] == 0).all()
    there.empty()
    assert here.put(parts_of(second))


@nameless
@pytest.mark.parametrize("size", [0, SMALL - 1, LARGE + 1])
def test_what_is_small_or_too_large_is_refused(ends, size):
    assert not ends[0].put([memoryview(bytes(size))])


@nameless
def test_a_limit_of_the_process_is_no_error(ends, monkeypatch):
    """Where files may not be so large, or there may be none, arrays go through pipes."""
    here = ends[0]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * SMALL, before[1]))
    try:
        assert not here.put([memoryview(bytes(5 * SMALL))])
        assert here.put([memoryview(bytes(SMALL))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def refused(name):
        raise PermissionError(name)

    monkeypatch.setattr(os, "memfd_create", refused)
    assert not Arena().put([memoryview(bytes(SMALL))])


@nameless
def test_an_arena_that_is_closed_or_forgotten_leaves_no_file_open():
    before = os.listdir("/proc/self/fd")
    for close in (True, False):
        arena = Arena()
        arena.put([memoryview(bytes(SMALL))])
        if close:
            arena.close()
        del arena
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("d", [10, 3000, 600_000])  # 640 bytes a message, 192 kB, 38 MB
def test_products_are_the_same_whichever_way_they_come(monkeypatch, shared, d):
    """Five shards in two processes: while the first reply is not read, others take the pipe."""
    if not shared:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    rng = np.random.default_rng(0)
    shards = [Shard((rng.standard_normal((2, d)),), d, np.dtype(float), number=i) for i in range(5)]
    tasks = [PowerSteps(rng.standard_normal((d, 8)), 1) for _ in range(2)]

    def products(name):
        with lp.connect(name) as engine:
            engine.place(shards)
            return [reply.product for task in tasks for reply in engine.map(task)]

    for one, other in zip(products("inline"), products("processes:2"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_many_small_replies_of_one_worker_are_all_read():
    A = np.random.default_rng(1).standard_normal((400, 6))
    reference = lp.svd(A, 2, engine="inline", workers=100, rng=0)
    assert same_bits(reference, lp.svd(A, 2, engine="processes:2", workers=100, rng=0))
