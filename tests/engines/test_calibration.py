"""What is measured on an engine is what it does, is kept, and is what plans reckon with."""

import json
from dataclasses import replace

import numpy as np
import pytest

import localpower as lp
from localpower.cli.commands import main
from localpower.core.ledger import weigh
from localpower.data.source import open_source
from localpower.engines import calibration
from localpower.engines.calibration import Speeds, operations, time_products
from localpower.engines.inline import Inline
from localpower.engines.registry import ROWS, register
from localpower.planning import problem_of


class Clock:
    """Time passes only where it is said to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Slow(Inline):
    """Works as it should, in seconds that are known beforehand."""

    def __init__(self, clock, shards, latency, bandwidth, rate):
        self.clock, self.shards = clock, shards
        self.put_in = latency, bandwidth, rate
        self.calls = 0

    @property
    def size(self):
        return self.shards

    def sum(self, task):
        self.calls += 1
        latency, bandwidth, rate = self.put_in
        found = super().sum(task)
        basis = task.task.basis
        work = operations(self.rows[0] * self.columns, basis.shape[1]) / rate
        moved = self.shards * (weigh(task.task)[1] + basis.nbytes)
        self.clock.now += latency + moved / bandwidth + work
        return replace(found, slowest=((work, 0),))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty cache, and a process that has measured nothing."""
    monkeypatch.setattr(calibration, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(calibration, "_known", {})
    return tmp_path / "cache" / "speeds"


@pytest.fixture
def _few_rows(monkeypatch):
    """Where seconds are made up they do not depend on what is really computed."""
    monkeypatch.setattr(calibration, "MANY", calibration.FEW)
    monkeypatch.setattr(calibration, "MOST", 10)


@pytest.fixture
def toy(kept, monkeypatch, _few_rows):
    """An engine by the name of toy, whose seconds are known."""
    clock, made = Clock(), []

    def make():
        made.append(Slow(clock, 3, 0.02, 1e8, 4e10))
        return made[-1]

    monkeypatch.setattr(calibration.time_products, "__defaults__", (clock,))
    register("toy", make)
    yield made
    del ROWS["toy"]


@pytest.mark.usefixtures("_few_rows")
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("put_in", [(0.02, 1e8, 4e10), (1e-4, 5e9, 1e11), (0.3, 1e6, 1e9)])
def test_what_is_measured_is_what_was_put_in(shards, put_in):
    clock = Clock()
    found = time_products(Slow(clock, shards, *put_in), clock)
    assert (found.latency, found.bandwidth, found.flops) == pytest.approx(put_in, rel=1e-6)


@pytest.mark.usefixtures("_few_rows")
def test_links_that_take_no_time_have_a_finite_speed():
    clock = Clock()
    found = time_products(Slow(clock, 2, 1e-3, float("inf"), 1e10), clock)
    assert found.bandwidth == calibration.FASTEST
    assert found.latency == pytest.approx(1e-3, rel=1e-4)


@pytest.mark.usefixtures("_few_rows")
def test_slow_engines_are_asked_a_few_times_only():
    clock = Clock()
    engine = Slow(clock, 2, 0.5, 1e8, 1e10)
    time_products(engine, clock)
    assert engine.calls == 6


@pytest.mark.parametrize("address", ["inline", "threads:2", "processes:2"])
def test_real_engines_are_measured_and_work_as_before(address, kept):
    X = np.random.default_rng(0).standard_normal((50, 8)) * 0.5 ** np.arange(8)
    with lp.connect(address) as engine:
        found = engine.measure()
        assert (engine.latency, engine.bandwidth, engine.flops) == (
            found.latency, found.bandwidth, found.flops)  # fmt: skip
        assert all(0 < x < np.inf for x in (found.latency, found.bandwidth, found.flops))
        result = lp.svd(X, 2, engine=engine, rng=0)
    assert np.allclose(result.singular_values, np.linalg.svd(X)[1][:2])


def test_an_engine_is_measured_once_for_each_address(toy, kept):
    with lp.connect("toy") as engine:
        first = engine.measure()
        calls = engine.calls
        assert engine.measure() == first
        assert engine.calls == calls
        assert engine.measure(again=True).flops == pytest.approx(4e10)
        assert engine.calls == 2 * calls
    (path,) = kept.glob("toy-*.json")
    assert set(json.loads(path.read_text())) == {"format", "identity", "speeds"}
    assert "toy" not in json.loads(path.read_text())["identity"]


def test_an_earlier_process_has_measured_it(toy, kept):
    found = lp.connect("toy").measure()
    calibration._known.clear()
    engine = lp.connect("toy")
    assert (engine.latency, engine.bandwidth, engine.flops) == (
        found.latency, found.bandwidth, found.flops)  # fmt: skip
    assert engine.measure() == found
    assert engine.calls == 0


def test_a_file_that_is_gone_is_forgotten_by_the_next_process(toy, kept):
    lp.connect("toy").measure()
    for path in kept.iterdir():
        path.unlink()
    calibration._known.clear()
    assert lp.connect("toy").latency == Inline.latency


GOOD = {"latency": 1.0, "bandwidth": 1.0, "flops": 1.0, "measured": "now"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:40],
        lambda text: "[" * 100_000,
        lambda text: "[]",
        lambda text: "\udcff",
        lambda text: json.dumps(json.loads(text) | {"format": 0}),
        lambda text: json.dumps(json.loads(text) | {"identity": "of another host"}),
        *(
            lambda text, bad=bad: json.dumps(json.loads(text) | {"speeds": bad})
            for bad in (
                None, {}, GOOD | {"latency": -1.0}, GOOD | {"flops": 0.0}, GOOD | {"more": 1},
                GOOD | {"bandwidth": float("nan")}, GOOD | {"bandwidth": float("inf")},
                GOOD | {"flops": "fast"}, GOOD | {"flops": True}, GOOD | {"measured": 3},
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_counts_as_none(toy, kept, damage):
    found = lp.connect("toy").measure()
    (path,) = kept.iterdir()
    path.write_bytes(damage(path.read_text()).encode("utf-8", "surrogateescape"))
    calibration._known.clear()
    engine = lp.connect("toy")
    assert (engine.latency, engine.flops) == (Inline.latency, Inline.flops)
    assert engine.measure().latency == pytest.approx(found.latency)
    calibration._known.clear()
    assert lp.connect("toy").latency == pytest.approx(found.latency)


def test_where_the_cache_cannot_be_written_the_process_remembers(toy, kept):
    kept.parent.write_text("a file where a folder should be")
    found = lp.connect("toy").measure()
    assert lp.connect("toy").latency == found.latency


def test_another_number_of_cores_is_another_machine(toy, monkeypatch):
    lp.connect("toy").measure()
    monkeypatch.setattr(calibration, "cores", lambda: 1234)
    assert lp.connect("toy").latency == Inline.latency


def test_an_engine_without_an_address_keeps_it_to_itself(kept):
    engine = Inline()
    found = engine.measure()
    assert engine.flops == found.flops
    assert Inline().flops != found.flops
    assert not kept.exists()


def test_an_engine_in_use_is_not_measured(kept):
    engine = Inline()
    with engine.exclusive(), pytest.raises(lp.EngineError, match="in use by another call"):
        engine.measure()


def test_plans_reckon_with_what_was_measured(toy):
    usual = lp.plan((10_000, 50), 5, engine="toy")
    assert "not measured" in usual.speeds
    found = lp.plan((10_000, 50), 5, measure=True, engine="toy")
    same = lp.plan((10_000, 50), 5, workers=3, latency=0.02, bandwidth=1e8, flops=4e10)
    assert [row.method for row in found] == [row.method for row in same]
    assert [row.seconds for row in found] == pytest.approx([row.seconds for row in same], rel=1e-5)
    assert "on toy a hop takes 20 ms, links carry 100 MB/s" in str(found)
    assert found.speeds in found._repr_html_()
    assert lp.plan((10_000, 50), 5, engine="toy").rows == found.rows  # also without being asked to


def test_auto_reckons_with_what_was_measured(toy):
    lp.connect("toy").measure()
    with open_source(np.ones((20, 3))) as source:
        problem = problem_of(source, lp.connect("toy"), None, 2, 3, 1e-8, False, None)
    assert (problem.latency, problem.bandwidth, problem.flops) == pytest.approx((0.02, 1e8, 4e10))
    assert problem.at_once == 3


def test_more_shards_than_workers_take_turns(toy):
    two, one = (lp.plan((600_000, 50), 5, engine="toy", workers=m)["gram"] for m in (6, 3))
    assert two.flops == pytest.approx(one.flops, rel=0.01)
    assert two.seconds == pytest.approx(one.seconds, rel=0.1)


@pytest.mark.parametrize("given", [{"latency": 0.1}, {"bandwidth": 1e9}, {"flops": 1e9}])
def test_figures_are_given_or_measured(given):
    (name,) = given
    with pytest.raises(ValueError, match=rf"{name}=.* leave one of them out"):
        lp.plan((100, 10), 2, measure=True, **given)


def test_the_command_measures_and_says_so(toy, capsys):
    assert main(["plan", "1000x20", "-k", "3", "--engine", "toy"]) == 0
    assert "as is usual; not measured" in capsys.readouterr().out
    assert main(["plan", "1000x20", "-k", "3", "--measure", "--engine", "toy"]) == 0
    assert "on toy a hop takes 20 ms" in capsys.readouterr().out
    assert main(["plan", "1000x20", "-k", "3", "--measure", "--latency", "1"]) == 2
    assert "--latency 1.0 is what --engine and --measure stand for" in capsys.readouterr().err
    assert main(["plan", "1000x20", "-k", "3", "--engine", "nothing"]) == 2
    assert "--engine nothing is not known" in capsys.readouterr().err


def test_speeds_are_told_in_words():
    text = str(Speeds(2e-3, 1e9, 5e10, "2020-01-02T03:04:05+00:00"))
    assert text == (
        "a hop takes 2 ms, links carry 1 GB/s, a worker does 5.0e+10 operations/s, measured on "
        "2020-01-02T03:04:05+00:00"
    )
