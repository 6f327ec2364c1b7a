"""Whatever a site is sent, it replies, and takes little memory; the long run is in benchmarks."""

import csv
import importlib.util
import random
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from federated import ask, begun, refusal, sites, thirds
from hypothesis import given, settings
from hypothesis import strategies as st

from localpower.core.errors import WireError
from localpower.federation.journal import verified
from localpower.federation.messages import (
    Ask,
    CloseRun,
    Offer,
    OpenRun,
    Roster,
    as_bytes,
    from_frame,
    to_frame,
)
from localpower.worker import wire
from localpower.worker.shard import Shard
from localpower.worker.stored import Stored
from localpower.worker.sum_tasks import Spread, Sums
from localpower.worker.tasks import PowerSteps, Prepare, Refine

FILE = Path(__file__).parents[2] / "benchmarks" / "frames.py"
D = 12
Z = np.eye(D)[:, :2].copy()


@pytest.fixture(scope="module")
def frames():
    spec = importlib.util.spec_from_file_location("frames", FILE)
    module = sys.modules["frames"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["frames"]


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    return sites(tmp_path_factory.mktemp("frames"), thirds(), max_bytes=1 << 20)


@pytest.mark.parametrize("batch", range(2))
def test_a_thousand_mutated_frames_are_answered_or_refused(frames, tmp_path, batch):
    row = frames.run_batch(1, batch, 1000, tmp_path / "failures")
    assert row.answered + row.refused == row.inputs == 1000
    assert min(row.answered, row.refused) > 20
    assert row.peak < 2 * row.cap
    assert not (tmp_path / "failures").exists()


def test_what_is_no_reply_is_counted_and_saved(frames, tmp_path, monkeypatch):
    monkeypatch.setattr(frames.SiteAgent, "_refused", lambda *_: b"nothing")
    row = frames.run_batch(1, 0, 50, tmp_path / "failures")
    assert row.failures > 10
    assert len([*(tmp_path / "failures").iterdir()]) == 2 * row.failures


def test_a_run_goes_on_where_it_stopped(frames, tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "BATCH", 5)
    places = tmp_path / "rows.csv", tmp_path / "failures"
    rows = frames.run(5, 15, *places)
    first = next(rows)
    rows.close()
    again = [*frames.run(5, 15, *places)]
    assert [row.batch for row in (first, *again)] == [0, 1, 2]
    assert not [*frames.run(5, 15, *places)]


def test_the_long_run_that_is_committed_had_no_failure():
    with open(FILE.with_suffix(".csv"), encoding="utf-8", newline="") as stream:
        listed = [*csv.DictReader(stream)]
    assert sum(int(row["inputs"]) for row in listed) >= 1_000_000
    assert {row["failures"] for row in listed} == {"0"}
    assert all(int(row["peak"]) < 2 * int(row["cap"]) for row in listed)


def test_a_seed_makes_the_same_frames_again(frames):
    seeds = [to_frame(Sums()), to_frame(Spread(np.ones(3)))]
    first, second = (
        [frames.mutated(seeds, rng) for rng in map(random.Random, range(50))] for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 30


@settings(max_examples=200)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused(agents, data):
    assert refusal(agents[0].answer(data))
    assert refusal(agents[0].answer(wire.MAGIC + data))


@pytest.mark.parametrize("what", [None, "text", 7, bytearray(b"LPW3"), memoryview(b"LPW3")])
def test_what_is_no_frame_is_refused(agents, what):
    assert refusal(agents[0].answer(what)) == "a message that cannot be taken in"


BASIS = {
    "a row less": Z[1:],
    "no columns": Z[:, :0],
    "more columns than rows": np.ones((D, D + 1)),
    "a vector": np.ones(D),
    "not finite": np.where(Z == 1, np.nan, Z),
    "infinite": np.where(Z == 1, np.inf, Z),
    "whole numbers": np.ones((D, 2), np.int64),
    "text": "basis",
    "nothing": None,
}
HOSTILE = {
    **{f"basis: {name}": PowerSteps(value, 1) for name, value in BASIS.items()},
    "no steps": PowerSteps(Z, 0),
    "a million steps": PowerSteps(Z, 1_000_000),
    "half a step": PowerSteps(Z, 1.5),
    "true steps": PowerSteps(Z, True),
    "an alignment that is not known": PowerSteps(Z, 2, "__class__"),
    "flags that are none": PowerSteps(Z, 1, send_first="yes"),
    "a type that is not known": PowerSteps(Z, 1, reply="float8"),
    "probes of other rows": PowerSteps(Z, 1, probes=np.ones((D + 1, 1))),
    "a mean of other columns": Spread(np.ones(D + 1)),
    "a mean that is not finite": Spread(np.full(D, np.nan)),
    "a shift of other columns": Prepare(np.ones(3), 1.0),
    "a factor that is not finite": Prepare(None, float("inf")),
    "a factor of text": Prepare(None, "1"),
    "an exponent without end": Prepare(None, 1.0, 10**9),
    "exponents of other columns": Prepare(None, 1.0, np.zeros(3, np.int64)),
    "products of text": Prepare(None, 1.0, 0, "3"),
    "width of nothing": Prepare(None, 1.0, 0, 3, 0),
    "a loss that is not finite": Prepare(None, 1.0, loss=float("nan")),
    "an image of another basis": Refine(Z, Z, np.ones((D, 3)), 1, 900),
    "other rows in all": Refine(Z, Z, Z, 1, 901),
    "no rows in all": Refine(Z, Z, Z, 1, 0),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_values_that_no_coordinator_sends_are_refused_before_rows_are_touched(agents, kind):
    run = begun(agents)
    reason = refusal(agents[0].answer(ask(run, 1, HOSTILE[kind])))
    assert any(word in reason for word in ("that cannot be for", "image", "another number of rows"))
    assert agents[0]._matrix is None
    assert agents[0].journal.columns == 0


def test_a_question_about_files_is_refused(agents):
    piece = Stored("/etc/passwd", 0, np.dtype("<f8"), (1, 1), (8, 0, 0, 0))
    frame = to_frame(Shard((piece,), 1, np.dtype(float)))
    assert refusal(agents[0].answer(frame)) == "a message that cannot be taken in"
    entries = [entry for entry, _ in verified(agents[0].journal.path)]
    assert "files are not read for others" in entries[-1].text


MESSAGES = {
    "a run with another name": lambda: OpenRun("../../etc", "1", ("north",), "strict", 60),
    "a run in capitals": lambda: OpenRun("AB" * 16, "1", ("north",), "strict", 60),
    "no sites": lambda: OpenRun("ab" * 16, "1", (), "strict", 60),
    "a site twice": lambda: OpenRun("ab" * 16, "1", ("north", "north"), "strict", 60),
    "a site with a path": lambda: OpenRun("ab" * 16, "1", ("../north",), "strict", 60),
    "a mode that is not known": lambda: OpenRun("ab" * 16, "1", ("north",), "maybe", 60),
    "too many bits": lambda: OpenRun("ab" * 16, "1", ("north",), "strict", 63),
    "privacy of two": lambda: OpenRun("ab" * 16, "1", ("n",), "strict", 60, "", (1.0, 1.0)),
    "privacy of nothing": lambda: OpenRun("ab" * 16, "1", ("n",), "strict", 60, "", (0.0, 1, 1)),
    "an endless text": lambda: OpenRun("ab" * 16, "1", ("north",), "strict", 60, "a" * (1 << 17)),
    "a roster of text": lambda: Roster("ab" * 16, ("north",)),
    "round 0": lambda: Ask("ab" * 16, 0, 1, 60, "", Sums()),
    "an exponent of text": lambda: Ask("ab" * 16, 1, "1", 60, "", Sums()),
    "a hash that is none": lambda: Ask("ab" * 16, 1, 1, 60, "zz", Sums()),
    "a task that is none": lambda: Ask("ab" * 16, 1, 1, 60, "", "Sums"),
    "a card of numbers": lambda: CloseRun("ab" * 16, 7),
    "a key of 31 bytes": lambda: Offer(
        "north", "ab" * 16, "cd" * 32, as_bytes(bytes(31)), as_bytes(bytes(32)), 1, 1, "float64",
        1, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_checks_itself(kind):
    with pytest.raises(ValueError, match="values that it cannot have"):
        MESSAGES[kind]()


def prefixed(form, content, rest=b""):
    return struct.pack("<4sII", wire.MAGIC, len(form), len(content)) + form + content + rest


BOMBS = {
    "a header that is longer than the frame": struct.pack("<4sII", wire.MAGIC, 1 << 23, 1 << 23),
    "brackets": prefixed(b"[" * 30000, b"[]"),
    "lists": prefixed(b"[0]", b"[" + b"[]," * 9000 + b"[]]"),
    "many lists": prefixed(b'["CloseRun",0,0]', b"[" + b"[]," * 200_000 + b"[]]"),
    "an array that is not there": prefixed(b'["Spread",["array","<f8",1000000]]', b"[]"),
    "an array beyond all": prefixed(b'["Spread",["array","<f8",4611686018427387904,9]]', b"[]"),
    "more than it says": to_frame(Sums()) + b"more",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_little_that_means_much_takes_little(agents, kind):
    agents[0].answer(b"")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert refusal(agents[0].answer(BOMBS[kind])) == "a message that cannot be taken in"
        assert tracemalloc.get_traced_memory()[1] - before < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_is_read_to_its_end_and_no_further():
    frame = to_frame(Spread(np.ones(3)))
    assert isinstance(from_frame(frame, len(frame)), Spread)
    for torn in (frame[:-1], frame + b"x", frame[:5]):
        with pytest.raises(WireError):
            from_frame(torn, 1000)
    with pytest.raises(WireError, match="more than 10 bytes"):
        from_frame(frame, 10)
