"""A method, an engine and a format from outside, by public names alone, work like all others."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from helpers import ENGINES, same_bits, with_spectrum

import localpower as lp
import localpower.data
import localpower.engines
from localpower.cli import main
from localpower.methods import Estimate, Method, PowerSteps, Start, State, option, register

A = with_spectrum(240, 0.6 ** np.arange(12), seed=3)
K = 3
TRUTH = np.linalg.svd(A)[2][:K].T


def positive(name, value):
    if value < 1:
        raise ValueError(f"{name}={value} must be 1 or more: turn every so many rounds")
    return value


@dataclass(frozen=True, slots=True, eq=False)
class ToyState(State):
    """A state with something of its own, which a checkpoint has to keep."""

    turned: int = 0


@dataclass(frozen=True, slots=True)
class Toy(Method):
    """Orthogonal iteration, with a Rayleigh-Ritz step every so many rounds."""

    every: int = option(1, "rounds from one Rayleigh-Ritz step to the next", positive, int)

    about: ClassVar[str] = "orthogonal iteration of a test"
    iterates: ClassVar[bool] = True
    state_type: ClassVar[type[State]] = ToyState
    planned: ClassVar[dict] = {"every": 2}
    compared: ClassVar[tuple[dict, ...]] = ({}, {"every": 3})

    def states(self, engine, start: Start) -> Iterator[State]:
        state = start.begin(engine)
        if not isinstance(state, ToyState):
            state = ToyState(state.basis)
        while True:
            Z = state.basis
            G = engine.sum(PowerSteps(np.ascontiguousarray(Z), 1)).product
            number, turned = state.round + 1, state.turned
            if number % self.every == 0:
                turn = np.linalg.eigh(Z.T @ G)[1]
                Z, G, turned = Z @ turn[:, ::-1], G @ turn[:, ::-1], turned + 1
            basis = np.linalg.qr(G)[0].astype(engine.dtype)
            state = replace(
                state, basis=basis, round=number, steps=number, exact=(Z, G), turned=turned
            )
            yield state

    def estimate(self, problem, decay) -> Estimate:
        rounds, block = decay.power(), problem.columns * problem.width
        records = [problem.round("PowerSteps", block, block)] * rounds
        return Estimate(records, rounds * problem.product(problem.width))


class ToyEngine(localpower.engines.ClusterEngine):
    """Two hosts in this process."""

    def __init__(self):
        super().__init__()
        self.hosts = [localpower.engines.ShardHost(f"on host {at}") for at in range(2)]

    @property
    def size(self):
        return 2

    def _gather(self, count, adopted):
        for host in self.hosts:
            host.forget()

    def _hold(self, numbers):
        for n in numbers:
            self.hosts[n % 2].hold(n, self._shards[n], persisting=self._persisting.get(n))

    def _exchange(self, task, numbers):
        return (self.hosts[n % 2].run(n, task.for_shard(n)) for n in numbers)


def read_toys(path):
    """Numbers separated by slashes, a row a line."""
    lines = path.read_text().splitlines()
    for start in range(0, len(lines), 100):
        yield np.array([line.split("/") for line in lines[start : start + 100]], dtype=float)


@pytest.fixture(autouse=True, scope="module")
def _registered():
    register("toy", Toy)
    localpower.engines.register("toys", ToyEngine)
    localpower.data.register("toy rows", [".toy"], read_toys)
    yield
    del lp.methods.REGISTRY["toy"]
    del localpower.engines.registry.ROWS["toys"]
    del localpower.data.detect.FORMATS["toy rows"]


@pytest.fixture
def toy_file(tmp_path):
    path = tmp_path / "rows.toy"
    path.write_text("".join("/".join(map(repr, row)) + "\n" for row in A.tolist()))
    return path


@pytest.mark.parametrize("method", ["toy", "auto", "local_ritz", "local_power:schedule=halving"])
def test_engine_and_format_from_outside_give_the_bits_of_our_own(toy_file, method):
    options = {"tol": 1e-8, "workers": 5, "max_rounds": 200, "rng": 0}
    own = lp.svd(A, K, method, engine="inline", **options)
    toys = lp.svd(toy_file, K, method, engine="toys", **options)
    assert same_bits(own, toys)
    assert toys.ledger == own.ledger
    assert toys.run["engine"] == "toyengine"


def test_all_three_together_are_planned_compared_resumed_and_reported(toy_file, capsys):
    folder = toy_file.parent
    assert "toy:every=2" in str(lp.plan(toy_file, K, workers=4))
    found = lp.compare(toy_file, K, methods="toy,dpi", engine="toys", workers=4, rng=0)
    assert same_bits(found["toy"].result, fit("toy", tol=1e-6, max_rounds=100))
    run = ["fit", str(toy_file), "-k", "3", "-m", "4", "--seed", "0", "--method", "toy"]
    run += ["--engine", "toys", "--checkpoint", str(folder / "ck"), "-o", str(folder / "model")]
    assert main([*run, "--max-rounds", "3"]) == 0
    page = folder / "run.html"
    assert main([*run, "--max-rounds", "7", "--resume", "--report", str(page)]) == 0
    assert same_bits(lp.Result.load(folder / "model"), fit("toy", max_rounds=7))
    assert "rows.toy" in page.read_text(encoding="utf-8")
    assert main(["compare", str(toy_file), "-k", "3", "--methods", "toy", "--engine", "toys"]) == 0
    assert "toy" in capsys.readouterr().out


def fit(method="toy:every=2", **options):
    return lp.svd(A, K, method, **{"workers": 4, "rng": 0, "max_rounds": 200} | options)


@pytest.mark.parametrize("name", ENGINES)
def test_svd_runs_it_on_every_engine_with_the_same_bits(name):
    result = fit(tol=1e-8, engine=name)
    assert (result.converged, result.reason) == (True, "angle")
    assert lp.subspace_distance(TRUTH, result.components.T) <= 1e-8
    assert same_bits(result, fit(Toy(every=2), tol=1e-8, engine="inline"))
    assert result.run["method"] == "toy"
    assert result.run["options"] == {"every": "2"}
    assert "method='toy:every=2'" in result.run["call"]
    up = 8 * 4 * A.shape[1] * (K + 5)  # of 4 shards, with 5 columns more for the certificate
    assert [record.bytes_up for record in result.history] == [up] * len(result.history)


def test_its_options_are_checked_and_told_like_those_of_others():
    for text, message in (
        ("toy:every=0", r"method='toy:every=0': every=0 must be 1 or more"),
        ("toy:every=x", r"'every=x' must be a whole number"),
        ("toy:steps=3", r"'steps=3' is not an option of it: take some of every; steps is one of"),
        ("gram:every=3", r"it takes none; every is one of toy"),
        ("toys", r"method='toys' is not known: take one of .*\btoy\b"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(text)


def test_pca_and_the_estimators_take_it():
    result = lp.pca(A, K, "toy", workers=4, rng=0, max_rounds=200)
    model = lp.PCA(K, method=Toy(), workers=4, random_state=0, max_rounds=200).fit(A)
    np.testing.assert_array_equal(model.components_, result.components)
    assert lp.PCA(K, method="toy:every=3").fit(A).n_rounds_ == 30


def test_it_can_begin_with_what_an_earlier_run_found():
    before = fit(tol=1e-10)
    again = fit("toy", tol=1e-8, warm_start=before)
    assert again.converged
    assert len(again.history) < len(before.history) / 2
    with pytest.raises(
        ValueError, match="method='gram' cannot use warm_start, because it does not"
    ):
        fit("gram", warm_start=before)


def test_a_plan_predicts_it_and_it_may_be_looked_up():
    plan = lp.plan(A, K, workers=4, tol=1e-8)
    assert plan["toy"].method == "toy:every=2"
    assert plan["toy"].rounds == plan["dpi"].rounds
    with pytest.warns(lp.ConvergenceWarning):
        moved = fit(tol=1e-30, max_rounds=plan["toy"].rounds).ledger
    planned = 4 * plan["toy"].bytes_up, 4 * plan["toy"].bytes_down
    assert planned == (moved.bytes_up, moved.bytes_down)
    assert re.search(r"^toy:every=2 +\d+ ", str(plan), re.MULTILINE)


def test_a_comparison_shows_it_with_its_options():
    shown = lp.compare(A, K, workers=4, max_rounds=60)
    assert {"toy", "toy:every=3"} <= {row.method for row in shown}
    named = lp.compare(A, K, methods="toy:every=2,dpi", workers=4, max_rounds=60, rng=0)
    row = named["toy:every=2"]
    assert row.angle <= row.bound <= 1e-6
    assert same_bits(row.result, fit(tol=1e-6, max_rounds=60))


@pytest.mark.parametrize("end", [1, 2, 5])
def test_a_checkpoint_keeps_its_state_and_a_later_run_goes_on_with_the_same_bits(tmp_path, end):
    path = tmp_path / "run.ck"
    whole = fit(max_rounds=8)
    fit(max_rounds=8, checkpoint=path, callback=lambda record, state: record.round == end)
    seen = []
    again = fit(
        max_rounds=8,
        checkpoint=lp.Checkpoint(path, resume=True),
        callback=lambda record, state: seen.append((type(state), state.turned)),
    )
    assert same_bits(whole, again)
    assert whole.ledger == again.ledger
    assert seen == [(ToyState, number // 2) for number in range(end + 1, 9)]
    with pytest.raises(lp.DataError, match="with other every;"):
        fit("toy:every=3", max_rounds=8, checkpoint=lp.Checkpoint(path, resume=True))


def test_the_command_line_takes_it_everywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", A)
    run = ["fit", "rows.npy", "-k", "3", "-m", "4", "--seed", "0", "--method", "toy:every=2"]
    run += ["--tol", "1e-8", "--max-rounds", "200"]
    assert main([*run, "-o", "model", "--report", "run.html", "--checkpoint", "run.ck"]) == 0
    assert "toy" in capsys.readouterr().out
    assert same_bits(lp.Result.load("model"), fit(tol=1e-8))
    assert "toy:every=2" in (tmp_path / "run.html").read_text(encoding="utf-8")
    assert main([*run, "--checkpoint", "run.ck", "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["options"] == {"every": "2"}
    assert main(["inspect", "model"]) == 0
    assert "toy" in capsys.readouterr().out
    assert main(["plan", "rows.npy", "-k", "3", "-m", "4"]) == 0
    assert "toy:every=2" in capsys.readouterr().out
    assert main(["compare", "rows.npy", "-k", "3", "--methods", "toy:every=3,dpi"]) == 0
    assert "toy:every=3" in capsys.readouterr().out
    assert main([*run[:-5], "toy:every=0"]) == 2
    assert "every=0 must be 1 or more" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--help-all"])
    help_ = capsys.readouterr().out
    assert re.search(
        r"^  toy +orthogonal iteration of a test\n +every=1: rounds from one", help_, re.M
    )


def test_the_report_is_about_it(tmp_path):
    result = fit(tol=1e-8)
    assert result.report(tmp_path / "run.html", A)
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "toy" in page
    assert "toy" in str(result)
    assert "method='toy'" in repr(result)
