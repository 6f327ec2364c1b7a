"""The account equals the closed formula of every method."""

import sys
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import ENGINES, METHODS, with_options, with_spectrum

import localpower as lp
from localpower.checkpoint import Snapshot
from localpower.core.ledger import arrays, regular
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.engines.inline import Inline
from localpower.engines.ledgered import KEPT, Ledgered
from localpower.worker.replies import Eigenvectors, MeasuredReply
from localpower.worker.tasks import Describe

SIZES = [40, 1, 0, 30, 29]  # one shard with a row, one without
N, D, M, K, R = 100, 13, 5, 3, 4
A = with_spectrum(N, 0.8 ** np.arange(D))
BLOCKS = np.split(A, np.cumsum(SIZES)[:-1])


def words(ledger, phase):
    part = ledger.phase(phase)
    return part.words_down, part.words_up


def triangles(width, sizes=SIZES):
    return sum(min(s, width) * width for s in sizes)


def spreads(width, shards=M):
    """Means of rows along a basis, and the triangles of their deviations, if not centred."""
    return shards * (width + width * (width + 1) // 2)


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize(
    ("method", "up_per_round"),
    [
        ("local_power:steps=4,align=procrustes,align_at=server", 2 * D * R),
        ("local_power:steps=4,align=signs,align_at=server", 2 * D * R),
        ("local_power:steps=4,align=none,align_at=server", D * R),
        ("local_power:steps=4,align=procrustes,align_at=worker", D * R),
        ("local_power:steps=4,align=signs,align_at=worker", D * R),
        ("dpi", D * R),
    ],
)
def test_rounds_of_local_power(engine, itemsize, method, up_per_round):
    blocks = [block.astype(f"f{itemsize}") for block in BLOCKS]
    method = with_options(method, width=R)
    ledger = lp.svd(blocks, K, method, max_rounds=6, engine=engine, rng=0).ledger
    iterate = ledger.phase("iterate")
    assert iterate.rounds == 6
    assert iterate.messages == 6 * 2 * M
    assert (iterate.words_down, iterate.words_up) == (6 * M * D * R, 6 * M * up_per_round)
    assert iterate.bytes_down == itemsize * iterate.words_down
    assert iterate.bytes_up == itemsize * iterate.words_up
    for record in iterate.records:
        assert (record.messages, record.words_up) == (2 * M, M * up_per_round)
    factors = ledger.phase("factors")
    assert (factors.words_down, factors.words_up) == (M * D * R, triangles(R) + spreads(R))


def test_aligning_at_the_worker_uploads_half():
    uploads = {
        where: lp.svd(BLOCKS, K, method=f"local_power:align_at={where}", rng=0)
        .ledger.phase("iterate")
        .bytes_up
        for where in ("server", "worker")
    }
    assert 2 * uploads["worker"] == uploads["server"]


def test_decayed_rounds_of_one_step_send_no_basis():
    result = lp.svd(BLOCKS, K, method="local_power:steps=4,schedule=halving", max_rounds=5, rng=0)
    per_round = [record.bytes_up for record in result.history]
    assert per_round == [8 * M * D * K * copies for copies in (2, 2, 1, 1, 1)]


def test_one_shot_moves_one_round():
    ledger = lp.svd(BLOCKS, K, method="one_shot:steps=50", rng=0).ledger
    assert words(ledger, "iterate") == (M * D * K, 2 * M * D * K)


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_one_shot_baselines_send_the_vectors_that_a_shard_has(engine):
    vectors = sum(min(s, K) for s in SIZES)
    for method, extra in (("uda", 0), ("aligned_average", 0), ("wda", vectors)):
        for itemsize in (4, 8):
            blocks = [block.astype(f"f{itemsize}") for block in BLOCKS]
            result = lp.svd(blocks, K, method=method, engine=engine, rng=0)
            ledger = result.ledger
            assert words(ledger, "iterate") == (0, D * vectors + extra)
            assert words(ledger, "factors") == (M * D * K, triangles(K) + spreads(K))
            for part in (ledger.phase("iterate"), ledger.phase("factors")):
                assert part.bytes_up == itemsize * part.words_up
                assert part.bytes_down == itemsize * part.words_down
            assert result.basis.itemsize == itemsize


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_randomised_svd(engine):
    result = lp.svd(BLOCKS, K, method="dr_svd", engine=engine, rng=0)
    ledger = result.ledger
    r = K + (D - K) // 4
    assert ledger.phase("iterate").rounds == 3
    assert len(result.history) == 3
    down, up = words(ledger, "iterate")
    assert down == M * D * r * 3 + triangles(r)
    assert up == M * D * r * 2 + triangles(r)


@pytest.mark.parametrize(
    ("options", "down", "up"),
    [
        ({}, 0, 2 * D),
        ({"center": True}, D, 2 * D),
        ({"scale": "std"}, D, 2 * D),
        ({"scale": "max"}, D, 4 * D),
        ({"scale": "minmax"}, 2 * D, 4 * D),
        ({"center": True, "scale": "max"}, 2 * D, 4 * D),
    ],
)
def test_set_up_is_two_small_rounds(options, down, up):
    ledger = lp.svd(BLOCKS, K, rng=0, **options).ledger
    assert ledger.phase("setup").rounds == 2
    assert words(ledger, "setup") == (M * down, M * up)


def test_left_vectors_are_one_more_round():
    ledger = lp.svd(BLOCKS, K, method=f"dpi:width={R}", return_u=True, rng=0).ledger.phase(
        "factors"
    )
    assert ledger.rounds == 2
    left = ledger.records[1]
    assert left.words_down == M * D * R + sum(min(s, R) for s in SIZES) * K
    assert left.words_up == N * K


def test_totals_are_the_sums_of_all_rounds_and_history_agrees():
    result = lp.svd(sp.csr_array(A), K, method="dpi", max_rounds=4, workers=M, return_u=True, rng=0)
    ledger = result.ledger
    for name in ("messages", "words_up", "words_down", "bytes_up", "bytes_down"):
        total = sum(getattr(record, name) for record in ledger.records)
        parts = (ledger.phase(phase) for phase in ("setup", "iterate", "factors"))
        assert getattr(ledger, name) == total == sum(getattr(part, name) for part in parts)
    assert sum(r.bytes_up for r in result.history) == ledger.phase("iterate").bytes_up
    assert sum(r.bytes_down for r in result.history) == ledger.phase("iterate").bytes_down


ROUNDED = ["local_power", "dpi", "local_ritz", "block_krylov"]


@pytest.mark.parametrize(
    ("method", "wire"), [*product(METHODS, ["float64"]), *product(ROUNDED, ["bfloat16"])]
)
def test_methods_send_and_get_arrays_that_are_contiguous(method, wire):
    class Strict(Inline):
        def map(self, task, order=None):
            for number in self.numbers(order):
                asked = task.for_shard(number)
                (reply,) = super().map(task, [number])
                for message in (asked.task, reply.content):
                    assert all(array.flags.c_contiguous for _, array in arrays(message)), message
                yield reply

    method = method if wire == "float64" else with_options(method, wire=wire)
    lp.pca(BLOCKS, K, method, engine=Strict(), max_rounds=3, return_u=True, rng=5)


def test_a_regular_message_has_the_same_numbers_in_arrays_that_blas_takes_as_they_are():
    raw = np.zeros(8 * 12 + 1, np.uint8)[1:].view(np.float64).reshape(4, 3)
    assert not raw.flags.aligned
    raw[:] = np.arange(12).reshape(4, 3)
    reply = MeasuredReply(Eigenvectors(raw, np.arange(6.0)[::2]), 12, 96, 0, 1, "2.0", 3)
    found = regular((reply, 5))[0]
    for name, found_array in arrays(found.content):
        assert found_array.flags.c_contiguous, name
        assert found_array.flags.aligned, name
        assert np.array_equal(found_array, getattr(reply.content, name))
    assert (found.words, found.key, found.number) == (12, "2.0", 3)


class Counted(list):
    """Counts the entries that are looked at."""

    looks = 0

    def __iter__(self):
        for entry in super().__iter__():
            self.looks += 1
            yield entry

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.looks += len(found) if isinstance(place, slice) else 1
        return found


def calls_and_looks(rounds, monkeypatch, tmp_path):
    """Function calls and entries of the account that a run of so many rounds takes."""
    accounts = []

    class Watched(Ledgered):
        def __init__(self, engine):
            super().__init__(engine)
            self._rounds = Counted()
            accounts.append(self._rounds)

    class Written(Snapshot):
        count = 0

        def __init__(self, *parts):
            Written.count += 1
            super().__init__(*parts)

    monkeypatch.setattr("localpower.run.Ledgered", Watched)
    monkeypatch.setattr("localpower.iteration.Snapshot", Written)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    options = {"method": "dpi", "max_rounds": rounds, "engine": "inline", "rng": 0}
    options |= {"checkpoint": lp.Checkpoint(tmp_path / str(rounds), every=10**6)}
    options |= {"budget": lp.Budget(bytes=1e18)}
    sys.setprofile(count)
    try:
        result = lp.svd(A[:20, :5], 1, workers=1, **options)
    finally:
        sys.setprofile(None)
    assert len(result.history) == rounds
    assert Written.count == 0
    return calls, accounts[0].looks


def test_a_round_costs_the_same_however_many_went_before(monkeypatch, tmp_path):
    calls_and_looks(2, monkeypatch, tmp_path)  # the first run does what is done once
    rounds = 2 * KEPT, 4 * KEPT, 8 * KEPT  # up to KEPT at either end, times are kept
    found = [calls_and_looks(n, monkeypatch, tmp_path) for n in rounds]
    calls, looks = (np.diff(counts) / np.diff(rounds) for counts in zip(*found, strict=True))
    assert abs(calls[1] - calls[0]) < 1
    assert (looks <= 3).all()


def test_the_account_since_a_round_is_the_rest_of_it():
    with Ledgered(Inline()) as engine:
        engine.place(contiguous(open_source(A), 3).shards)
        for _ in range(5):
            engine.sum(Describe(extremes=False))
        assert engine.hops == 5
        assert engine.since(0) == engine.ledger
        assert engine.since(3).records == engine.ledger.records[3:]
        assert engine.since(5).records == ()
