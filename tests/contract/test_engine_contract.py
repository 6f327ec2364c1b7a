"""What every engine promises; a new engine is one more row in `helpers.ENGINES` or `REMOTE`."""

from contextlib import ExitStack
from functools import cache
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import ENGINES, METHODS, REMOTE, same_bits, with_spectrum

import localpower as lp
from localpower.core.checksum import checksum
from localpower.core.errors import EngineError
from localpower.core.ledger import arrays
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.worker.tasks import Describe, PowerSteps, Scatter, TopVectors, Triangle

DENSE = with_spectrum(203, 0.7 ** np.arange(17), seed=1) * 10
SPARSE = sp.random_array((203, 17), density=0.2, rng=np.random.default_rng(2), format="csr")
UNEQUAL = [DENSE[:150], DENSE[150:151], DENSE[:0], DENSE[151:]]
LARGER = np.array_split(with_spectrum(1500, 0.95 ** np.arange(100), seed=3) + 0.1, 9)

METHODS_ASKED = ("local_power", "local_ritz", "tsqr", "uda", "wda", "dr_svd")
DATA = {
    "float64": DENSE,
    "float32": DENSE.astype(np.float32),
    "integers": (DENSE * 1000).astype(np.int32),
    "sparse": SPARSE,
    "unequal shards": UNEQUAL,
    "Fortran order": np.asfortranarray(DENSE),
    "larger": LARGER,  # BLAS has other routines for small matrices
}
LISTS = ("unequal shards", "larger")
RANKS = {"larger": 20}


@pytest.fixture(params=[*ENGINES, *REMOTE])
def address(request, clusters):
    """What `connect` is given: a name, or a cluster that is open."""
    return clusters(request.param)


@pytest.fixture(scope="module")
def engines():
    """Engines that stay open, as starting their workers takes long."""
    found = {}
    with ExitStack() as stack:

        def connected(address):
            if address not in found:
                found[address] = stack.enter_context(lp.connect(address))
            return found[address]

        yield connected


@pytest.fixture
def engine(address, engines):
    if address != "mpi":
        yield engines(address)
        return
    with lp.connect(address) as engine:  # other ranks go on with the next test
        yield engine


@cache
def reference(method, name):
    return lp.svd(DATA[name], RANKS.get(name, 4), engine="inline", **options(method, name))


def options(method, name):
    workers = None if isinstance(DATA[name], list) else 7
    how = {"max_rounds": 3, "return_u": True, "center": True, "rng": 5}
    return {"method": method, "workers": workers} | how


def place(engine, data, workers):
    engine.place(contiguous(open_source(data), workers).shards)
    return engine


def combinations():
    """Engines, methods and data; where processes are to be waited for, those that differ most."""
    for name in ENGINES:
        others = ["local_ritz"] if "processes" in name else METHODS
        yield from product([name], METHODS, LISTS)
        yield from product([name], others, [kind for kind in DATA if kind not in LISTS])
    for name in REMOTE:
        yield from product([name], METHODS_ASKED, ["larger"])
        yield from product([name], ["local_ritz"], ["unequal shards", "float32", "sparse"])


@pytest.mark.parametrize(("address", "method", "name"), list(combinations()), indirect=["address"])
def test_every_engine_gives_the_bits_of_the_reference(engine, method, name):
    result = lp.svd(DATA[name], RANKS.get(name, 4), engine=engine, **options(method, name))
    assert same_bits(reference(method, name), result)
    assert reference(method, name).ledger == result.ledger


def test_replies_have_arrays_that_are_contiguous_and_aligned(engine):
    place(engine, LARGER, len(LARGER))
    for task in (TopVectors(20, values=True), Triangle(np.eye(100)), PowerSteps(np.eye(100), 2)):
        for reply in engine.map(task):
            for name, A in arrays(reply):
                assert A.flags.c_contiguous, name
                assert A.flags.aligned, name


def test_files_give_the_bits_of_arrays_in_memory(engine, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, DENSE)
    mapped = np.load(path, mmap_mode="r")
    for data, rows in ((mapped[3:], DENSE[3:]), (path, DENSE), ([path, path], [DENSE, DENSE])):
        how = {"method": "tsqr", "workers": 3, "rng": 5}
        reference = lp.svd(rows, 4, engine="inline", **how)
        assert same_bits(reference, lp.svd(data, 4, engine=engine, **how))


def test_replies_come_in_shard_order_or_in_the_order_asked_for(engine):
    place(engine, DENSE, 9)
    rows = [reply.rows for reply in engine.map(Describe(extremes=False))]
    assert rows == list(engine.rows)
    order = [4, 0, 8, 2]
    replies = list(engine.map(Triangle(np.eye(17)), order))
    expected = [np.linalg.qr(block, mode="r") for block in np.array_split(DENSE, 9)]
    for number, reply in zip(order, replies, strict=True):
        assert np.allclose(np.abs(reply.R), np.abs(expected[number]))


def test_scattered_tasks_reach_their_own_shard_only(engine):
    place(engine, DENSE, 5)
    replies = engine.map(Scatter([TopVectors(rank) for rank in range(1, 6)]))
    assert [reply.vectors.shape[1] for reply in replies] == [1, 2, 3, 4, 5]


def test_sums_equal_the_product_with_all_rows(engine):
    Z = np.linalg.qr(np.random.default_rng(0).standard_normal((17, 3)))[0]
    total = place(engine, DENSE, 20).sum(PowerSteps(Z, steps=1)).product
    assert np.allclose(total, DENSE.T @ (DENSE @ Z), rtol=1e-12)


def test_sums_have_the_checksum_of_all_rows_in_order(engine):
    for data in (DENSE, SPARSE):
        total = place(engine, data, 11).sum(Describe(extremes=True, checksum=True))
        assert total.checksum == checksum(data)


def test_an_engine_can_be_used_again_with_other_data(engine):
    options = {"engine": engine, "max_rounds": 2, "center": True, "rng": 0}
    first = lp.svd(DENSE, 3, method="local_power", workers=4, **options)
    lp.svd(SPARSE, 2, method="local_ritz", workers=9, **options)
    again = lp.svd(DENSE, 3, method="local_power", workers=4, **options)
    assert same_bits(first, again)


def test_a_second_run_on_an_engine_in_use_is_refused(engine):
    def again(record, state):
        with pytest.raises(EngineError, match="in use by another call"):
            lp.svd(SPARSE, 2, engine=engine, rng=0)

    options = {"method": "dpi", "max_rounds": 2, "workers": 4, "rng": 0}
    result = lp.svd(DENSE, 3, engine=engine, callback=again, **options)
    assert same_bits(result, lp.svd(DENSE, 3, engine=engine, **options))


def test_a_reply_that_is_not_taken_leaves_the_engine_usable(engine):
    place(engine, DENSE, 20)
    next(iter(engine.map(Describe(extremes=True))))
    place(engine, DENSE, 3)
    assert engine.sum(Describe(extremes=True)).rows == 203


def test_an_exception_in_a_task_is_raised_and_the_engine_stays_usable(engine):
    place(engine, DENSE, 3)
    with pytest.raises((EngineError, TypeError), match=r"a block of float64 \(6[78], 17\)"):
        list(engine.map(PowerSteps(np.eye(3), steps=1)))  # a basis of the wrong height
    place(engine, DENSE, 3)
    assert engine.sum(Describe(extremes=False)).rows == 203


def test_closing_twice_is_fine(address):
    engine = lp.connect(address)
    place(engine, DENSE, 2)
    engine.close()
    engine.close()
