"""Rounds in which some shards take part: what is reused, what is collected, and what is claimed."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from helpers import same_bits, started, with_spectrum

import localpower as lp
from localpower.cli.commands import main
from localpower.engines.inline import Inline
from localpower.engines.ledgered import Ledgered
from localpower.engines.participation import LastProducts, Sampled
from localpower.engines.retrying import Retrying
from localpower.methods import local_power
from localpower.show import report
from localpower.worker.replies import Product
from localpower.worker.shard import Shard
from localpower.worker.tasks import PowerSteps, Triangle

A = with_spectrum(400, 0.8 ** np.arange(30), seed=3)
SHARDS, K = 5, 3
TRUTH = np.linalg.svd(A)[2][:K].T
POWER = ["dpi", "local_power:schedule=halving", "local_power:schedule=halving,align_at=worker"]
COLLECTED = ["block_krylov", "block_krylov:start=random", "local_ritz", "block_lanczos", "gram",
             "local_ritz:proposal=all+residual", "local_ritz:proposal=anchor", "tsqr", "uda",
             "dpi:wire=float32", "local_power:schedule=adaptive", "auto"]  # fmt: skip


class Lossy(Inline):
    """Does not hear of some products of a shard, by their number; notes whom it asks."""

    def __init__(self, lost=(), gone=range(0), raises=False):
        self.gone = gone if isinstance(gone, dict) else dict.fromkeys(lost, gone)
        self.raises = raises
        self.products, self.asked = 0, []

    def map(self, task, order=None):
        self.asked.append(list(self.numbers(order)))
        product = isinstance(task.task, PowerSteps)
        self.products += product and task.key.endswith(".0")
        for number in self.numbers(order):
            if not product or self.products not in self.gone.get(number, ()):
                yield from super().map(task, [number])
            elif self.raises:
                raise lp.WorkerLost(f"shard {number} is gone")


def fit(method="dpi", data=A, engine="inline", **options):
    options = {"max_rounds": 60, "workers": SHARDS, "rng": 0} | options
    faults = {k: options.pop(k) for k in ("retries", "on_loss", "participation") if k in options}
    return lp.svd(data, K, method, engine=engine, faults=lp.Faults(**faults), **options)


def error(result):
    return lp.subspace_distance(TRUTH, result.components.T)


def sampled(rate, last=None, engine=None):
    """The engine that methods see, on four uneven shards."""
    retrying = Retrying(engine or Inline(), keep=last is not None)
    retrying.last = last
    ledgered = Ledgered(retrying)
    cuts = np.split(A, [10, 200, 230])
    ledgered.place([Shard((part,), 30, part.dtype, number=n) for n, part in enumerate(cuts)])
    return Sampled(ledgered, rate, np.random.default_rng(1), last), ledgered


# Collect


@pytest.mark.parametrize("rate", [0.9, 0.3, 1e-9])
def test_a_block_that_is_closed_is_the_product_with_all_rows(rate):
    engine, ledgered = sampled(rate)
    Z = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 6)))[0]
    found = engine.sum(PowerSteps(Z, 1))
    np.testing.assert_allclose(found.product, A.T @ (A @ Z), rtol=1e-12, atol=1e-14)
    assert not found.stale
    assert ledgered.ledger.messages == 2 * 4
    assert rate > 0.5 or ledgered.hops > 1


@pytest.mark.parametrize("method", COLLECTED)
@pytest.mark.parametrize("rate", [0.5, 0.1])
@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_methods_that_collect_give_the_bits_and_claims_of_runs_with_everybody(method, rate):
    whole, part = (fit(method, tol=1e-8, participation=q) for q in (1.0, rate))
    assert same_bits(whole, part)
    assert (part.reason, part.converged) == (whole.reason, whole.converged)
    known = [None if r.certificate is None else r.certificate.angle for r in (whole, part)]
    assert known[0] == known[1]
    assert [record.round for record in part.history] == [record.round for record in whole.history]
    assert part.ledger.messages == whole.ledger.messages
    assert part.ledger.bytes_up == whole.ledger.bytes_up
    assert part.ledger.rounds > whole.ledger.rounds
    assert part.run["participation"]["label"] == "sampled"
    assert part.run["participation"]["reused"] == 0


def test_products_that_are_kept_for_lost_shards_are_not_reused_where_all_can_answer():
    whole, part = (fit("block_lanczos", participation=q, on_loss="degrade") for q in (1.0, 0.5))
    assert same_bits(whole, part)


def test_a_share_is_found_with_all_shards():
    whole, part = (
        lp.svd(A, 0.9, "dpi", tol=1e-6, workers=4, max_rounds=200, rng=0, faults=lp.Faults(
            participation=q)) for q in (1.0, 0.5)
    )  # fmt: skip
    assert whole.converged
    assert same_bits(whole, part)
    assert part.reach == whole.reach


# Reuse


@pytest.mark.parametrize("method", POWER)
@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_reused_products_converge(method, rate):
    found = fit(method, participation=rate, max_rounds=400)
    assert error(found) < 1e-8
    assert found.run["participation"]["reused"] > 0


@pytest.mark.parametrize("method", POWER)
def test_skipping_those_who_are_absent_stalls(method, monkeypatch):
    turned = LastProducts.turned

    def nothing(self, question, number):
        found = turned(self, question, number)
        return replace(found, product=0 * found.product)

    monkeypatch.setattr(LastProducts, "turned", nothing)
    errors = []

    def note(record, state):
        errors.append(lp.subspace_distance(TRUTH, state.basis[:, :K]))

    fit(method, participation=0.5, max_rounds=400, callback=note)
    assert min(errors) > 1e-4


def test_a_product_is_turned_to_the_new_basis():
    rng, last = np.random.default_rng(0), LastProducts()
    Z, W = (np.linalg.qr(rng.standard_normal((30, 4)))[0] for _ in range(2))
    B = A.T @ A
    last.keep(PowerSteps(Z, 1), 2, Product(B @ Z))
    found = last.turned(PowerSteps(W, 1), 2)
    np.testing.assert_allclose(found.product, B @ Z @ Z.T @ W, rtol=1e-12, atol=1e-14)
    assert found.stale
    assert found.basis is None
    assert last.turned(PowerSteps(W, 4, send_basis=True), 2).basis is not None
    local = np.linalg.qr(B @ Z)[0]  # a basis that the shard has come to
    last.keep(PowerSteps(Z, 4), 2, Product(B @ local, local))
    found = last.turned(PowerSteps(W, 1), 2)
    np.testing.assert_allclose(found.product, B @ local @ local.T @ W, rtol=1e-12, atol=1e-14)
    assert last.used == 3


def test_a_product_that_is_aligned_is_as_old_as_before():
    Z = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 4)))[0]
    replies = [Product(A.T @ A @ Z, Z), Product(Z, Z, stale=True)]
    assert [each.stale for each in local_power.aligned(replies, "procrustes")] == [False, True]


@pytest.mark.parametrize("method", POWER)
def test_everybody_answers_once_before_anything_is_reused(method):
    engine = Lossy()
    found = fit(method, engine=engine, participation=0.2, max_rounds=3)
    told, first = found.run["participation"], engine.asked[2:]  # after statistics and preparation
    rounds = next(t for t in range(1, 99) if set().union(*first[:t]) == set(range(SHARDS)))
    assert told["rounds"] == rounds + 2
    assert sum(len(set(asked)) for asked in first[:rounds]) == SHARDS
    assert sum(told["answered"]) + told["reused"] == 3 * SHARDS


# What was asked, and the same again


@pytest.mark.parametrize("method", ["dpi:width=4", "block_krylov:start=random,width=4"])
def test_the_ledger_has_what_was_asked_and_nothing_else(method):
    engine = Lossy()
    found = fit(method, engine=engine, participation=0.4, max_rounds=6)
    asked = engine.asked[2:-1]
    told, records = found.run["participation"], found.ledger.phase("iterate").records
    assert [record.messages for record in records] == [2 * len(numbers) for numbers in asked]
    assert all(record.words_up == record.words_down for record in records)
    if method.startswith("dpi"):
        assert [record.words_up for record in records] == [30 * 4 * len(n) for n in asked]
    assert all(1 <= len(numbers) <= SHARDS for numbers in asked)
    assert told["answered"] == [sum(n in numbers for numbers in asked) for n in range(SHARDS)]
    assert told["rounds"] == len(asked) == found.ledger.phase("iterate").rounds
    assert found.ledger.exchanges == 0
    assert len(engine.asked[-1]) == len(engine.asked[0]) == SHARDS


@pytest.mark.parametrize("method", ["dpi", "local_power:schedule=halving", "block_lanczos"])
def test_the_same_seed_gives_the_same_bits_on_every_engine(method):
    one, two = (
        fit(method, engine=e, participation=0.5, max_rounds=9) for e in ("inline", "threads")
    )
    assert same_bits(one, two)
    assert one.ledger == two.ledger
    assert one.run["participation"] == two.run["participation"]
    other = fit(method, participation=0.5, max_rounds=9, rng=1)
    assert other.ledger != one.ledger


def test_a_shard_is_asked_as_often_as_its_chance_says():
    counts = np.array(fit(participation=0.3, max_rounds=300).run["participation"]["answered"])
    assert (np.abs(counts - 0.3 * 300) < 5 * np.sqrt(300 * 0.3 * 0.7)).all()
    assert len(set(counts)) > 1


# What is claimed


def flat():
    """Rows of which the last part is as large in all directions: more than a basis has columns.

    If nothing is heard of that part but its first product, power iteration converges to a subspace
    that is invariant under another matrix. Residuals become small, and what the columns of the
    basis do not explain is so little that it would prove them to be all.
    """
    rng = np.random.default_rng(5)
    size = np.r_[np.full((320, 1), 1.0) * 0.5 ** np.arange(30), np.full((80, 30), 0.05)]
    return rng.standard_normal((400, 30)) * size


@pytest.mark.parametrize("method", POWER)
@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_images_with_earlier_products_would_lie_and_are_not_believed(method, monkeypatch):
    X = flat()
    truth = np.linalg.svd(X)[2][:K].T
    how = {"data": X, "tol": 3e-3, "retries": 0, "on_loss": "reuse", "max_rounds": 150}

    def found():
        result = fit(method, engine=Lossy([4], range(2, 999)), **how)
        return result, lp.subspace_distance(truth, result.components.T)

    result, off = found()
    assert off > 3e-3
    assert (result.reason, result.converged, result.certificate) == ("stale", False, None)
    assert all(record.angle is None for record in result.history[1:])
    monkeypatch.setattr(local_power, "image_of", lambda total, p: total.product)
    result, off = found()
    assert result.converged
    assert result.certificate.proven
    assert off > 3e-3 > result.certificate.angle


@pytest.mark.parametrize("method", POWER)
def test_a_sampled_run_that_reuses_warns_with_a_remedy_that_works(method):
    with pytest.warns(lp.ConvergenceWarning, match="take method='local_ritz', which waits for all"):
        found = fit(method, tol=1e-8, participation=0.5, workers=20)
    assert (found.reason, found.converged, found.certificate) == ("stale", False, None)
    assert fit("local_ritz", tol=1e-8, participation=0.5, workers=20).converged


@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_products_are_not_blamed_where_something_else_ended_the_run():
    def enough(record, state):
        return record.round == 5

    assert fit(participation=0.5).reason == "max_rounds"
    assert fit(participation=0.5, tol=1e-8, workers=20, callback=enough).reason == "callback"
    assert fit("uda", participation=0.5, tol=1e-8).reason == "end"


@pytest.mark.parametrize("method", POWER)
def test_a_round_in_which_all_answer_is_believed_again(method):
    engine = Lossy([1], range(3, 9))
    found = fit(method, engine=engine, tol=1e-8, on_loss="reuse", max_rounds=90)
    assert found.converged
    assert error(found) <= found.certificate.angle <= 1e-8
    angles = [record.angle for record in found.history]
    assert angles[2:8] == [None] * 6
    assert None not in angles[:2] + angles[8:]


@pytest.mark.parametrize("times", [range(8, 99, 3), range(30, 99, 9)])
@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_probes_do_not_outlive_the_image_that_they_are_of(times):
    seen, rests = [], []

    def look(record, state):
        seen.append((state.exact is None, state.probes is None, state.joined is None))
        rests.append(state.resting)

    X = with_spectrum(400, 0.93 ** np.arange(30), seed=3)
    fit(data=X, engine=Lossy([1], times), tol=1e-14, on_loss="reuse", callback=look, retries=0)
    assert (False, False, False) in seen  # there are probes
    assert any(rests) == (times[0] == 30)  # some of which are not sent in every round
    assert {without for absent, *without in seen if absent for without in without} == {True}


# Shards that come back


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("lost", [0, 2, 4])
def test_a_shard_that_is_lost_is_asked_again_and_may_come_back(lost, raises):
    engine = Lossy([lost], range(4, 9), raises)
    found = fit(engine=engine, on_loss="reuse", retries=1)
    assert error(found) < 1e-8
    told = found.run["participation"]
    assert told == {"label": "reused", "rounds": 60, "reused": 5,
                    "answered": [55 if n == lost else 60 for n in range(SHARDS)]}  # fmt: skip
    assert "degraded" not in found.run
    what = [(f["round"], f["shards"], f["then"]) for f in found.run["faults"]]
    assert what[-2:] == [(6, (lost,), "its last product was used"),
                         (11, (lost,), "its own products are used")]  # fmt: skip
    asked = [lost in numbers for numbers in engine.asked]
    assert (
        sum(asked) == 2 + 60 + 1 + 1
    )  # it was tried twice in the first of those rounds, then once
    messages = [record.messages for record in found.ledger.phase("iterate").records]
    assert messages == [9 if 4 <= t < 9 else 10 for t in range(1, 61)]


def test_a_shard_that_never_answered_stops_the_run():
    with pytest.raises(lp.WorkerLost, match=r"shards \[2\]"):
        fit(engine=Lossy([2], range(1, 99)), on_loss="reuse")


def test_a_shard_that_is_lost_at_the_end_stops_the_run_after_all_retries():
    class AtTheEnd(Lossy):
        def map(self, task, order=None):
            if not isinstance(task.task, Triangle):
                return super().map(task, order)
            self.at_the_end += 1 in self.numbers(order)
            return Inline.map(self, task, [n for n in self.numbers(order) if n != 1])

    engine = AtTheEnd([1], range(5, 99))
    engine.at_the_end = 0
    with pytest.raises(lp.WorkerLost, match=r"shards \[1\]"):
        fit(engine=engine, on_loss="reuse", retries=2, max_rounds=9)
    assert engine.at_the_end == 3


def test_a_shard_that_is_drawn_and_lost_stops_the_run_unless_told_otherwise():
    with pytest.raises(lp.WorkerLost, match=r"shards \[2\]"):
        fit(engine=Lossy([2], range(9, 99)), participation=0.5)
    found = fit(engine=Lossy([2], range(9, 40)), participation=0.5, on_loss="reuse", max_rounds=400)
    assert error(found) < 1e-8


def test_a_shard_is_brought_back_for_the_next_round():
    class Ill(Lossy):
        def heal(self, numbers):
            assert list(numbers) == [2]
            self.gone = {}

    found = fit(engine=Ill([2], range(4, 99)), on_loss="reuse", retries=0)
    assert found.run["participation"]["answered"] == [60, 60, 59, 60, 60]


def test_a_process_that_was_killed_is_back_in_the_next_round():
    class Killing(Lossy):
        def map(self, task, order=None):
            self.products += isinstance(task.task, PowerSteps)
            if self.products == 5:
                self.products += 1
                os.kill(started("localpower.engines.child")[0].pid, signal.SIGKILL)
            return self.engine.map(task, order)

        def place(self, shards):
            lp.engines.base.Engine.place(self, shards)
            self.engine.place(shards)

        def heal(self, numbers):
            self.engine.heal(numbers)

    with lp.connect("processes:2") as processes:
        engine = Killing()
        engine.engine = processes
        found = fit(engine=engine, on_loss="reuse", retries=0)
    assert error(found) < 1e-8
    told = found.run["participation"]
    assert told["label"] == "reused"
    assert min(told["answered"]) == 59


# Labels


def test_every_run_says_who_took_part(tmp_path):
    def told(**options):
        result = fit(max_rounds=12, **options)
        page = report.page(result, None)
        return result.run["participation"], str(result), page

    label, text, page = told()
    assert label == {"label": "complete"}
    label, text, page = told(engine=Lossy([3], [4], True), retries=2, on_loss="reuse")
    assert label["label"] == "reused"
    for shown in (text, page):
        assert "eused: shards answered 11 to 12 times in 12 rounds; 1 earlier product" in shown
    label, text, page = told(participation=0.5)
    assert label["label"] == "sampled"
    assert label["rate"] == 0.5
    few, many = min(label["answered"]), max(label["answered"])
    says = f"ampled: shards answered {few} to {many} times in {label['rounds']} rounds, asked with"
    assert says in text
    assert says in page
    with pytest.warns(lp.DegradedWarning):
        label, text, page = told(engine=Lossy([3], range(4, 99)), on_loss="degrade")
    assert label == {"label": "without", "shards": [3], "from_round": 6}
    with pytest.warns(lp.DegradedWarning):
        late, *_ = told(engine=Lossy(gone={1: range(8, 99), 3: range(4, 99)}), on_loss="degrade")
    assert late == {"label": "without", "shards": [1, 3], "from_round": 6}
    with pytest.warns(lp.DegradedWarning):
        both, *_ = told(engine=Lossy([3], range(4, 99)), on_loss="degrade", participation=0.5)
    assert both["shards"] == [3]
    assert both["rate"] == 0.5
    assert both["answered"][3] < min(both["answered"][:3])
    for shown in (text, page):
        assert "ithout shards [3] from round 6 of the run" in shown


def test_a_run_that_waited_says_so_and_has_the_same_bits():
    class Once(Lossy):
        def map(self, task, order=None):
            again = not task.key.endswith(".0")
            return Inline.map(self, task, order) if again else super().map(task, order)

    found = fit(engine=Once([3], [4]), max_rounds=9)
    assert found.run["participation"] == {"label": "waited", "shards": [3]}
    assert "waited: shards [3] were asked again, and answered" in str(found)
    assert same_bits(found, fit(max_rounds=9))


@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_a_result_without_shards_claims_no_angle():
    with pytest.warns(lp.DegradedWarning):
        found = fit(engine=Lossy([3], range(2, 99)), on_loss="degrade", tol=1e-8)
    assert found.certificate is None
    assert not found.converged


@pytest.mark.parametrize("gone", [{0: range(2, 99)}, {0: range(2, 99), 1: range(4, 99)}])
@pytest.mark.parametrize("method", ["dpi", "block_lanczos", "local_ritz:start=random"])
def test_a_run_that_loses_all_of_its_rows_says_so(method, gone):
    parts = [A, A[:0]] if len(gone) == 1 else [A[:200], A[200:]]
    with pytest.raises(lp.WorkerLost, match="all shards that have rows are lost; run it again"):
        fit(method, parts, Lossy(gone=gone, raises=True), workers=None, on_loss="degrade", tol=1e-8)


def test_a_round_in_which_nobody_answers_is_gone_through_with_earlier_products():
    gone = dict.fromkeys(range(SHARDS), range(6, 7))
    found = fit(engine=Lossy(gone=gone, raises=True), on_loss="reuse", retries=0, tol=1e-8)
    assert found.converged
    assert error(found) <= 1e-8


# Checkpoints


def test_collected_runs_go_on_from_a_checkpoint_with_the_same_bits(tmp_path):
    how = {"participation": 0.4, "tol": 1e-8}
    file = lp.Checkpoint(tmp_path / "run", resume=True)
    with pytest.warns(lp.ConvergenceWarning):
        fit("block_lanczos", checkpoint=file, max_rounds=3, **how)
    whole = fit("block_lanczos", checkpoint=file, **how)
    assert same_bits(whole, fit("block_lanczos", **how))


@pytest.mark.parametrize(("back", "kept"), [(99, 4), (7, 9)])
def test_nothing_is_written_while_an_earlier_product_stands_in(tmp_path, back, kept):
    file = lp.Checkpoint(tmp_path / "run", resume=True)
    how = {"on_loss": "reuse", "retries": 0}
    fit(engine=Lossy([1], range(5, back)), checkpoint=file, max_rounds=9, **how)
    assert len(fit(checkpoint=file, max_rounds=1, **how).history) == kept
    whole = fit(engine=Lossy([1], range(5, 7) if kept == 9 else ()), max_rounds=20, **how)
    assert same_bits(fit(checkpoint=file, max_rounds=20, **how), whole)


def test_products_that_are_reused_are_not_in_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint= does not keep .* take method='local_ritz'"):
        fit(participation=0.5, checkpoint=tmp_path / "run")


# Arguments


@pytest.mark.parametrize("bad", [0, -0.5, 1.5, float("nan")])
def test_a_chance_is_above_0_and_at_most_1(bad):
    with pytest.raises(ValueError, match=r"Faults participation=.* above 0 and at most 1"):
        lp.Faults(participation=bad)


@pytest.mark.parametrize("bad", ["half", None, True])
def test_a_chance_is_a_number(bad):
    with pytest.raises(TypeError, match="Faults participation="):
        lp.Faults(participation=bad)


@pytest.mark.parametrize(
    "method", ["auto", *COLLECTED[:4], "dpi:wire=bfloat16", "local_power:wire=float32"]
)
def test_methods_that_need_exact_products_do_not_reuse(method):
    with pytest.raises(ValueError, match=r"on_loss='reuse' .*'local_power' or 'dpi'.*more retries"):
        fit(method, on_loss="reuse")


def test_a_share_needs_exact_products():
    with pytest.raises(
        ValueError, match=r"rank=0\.9 needs exact ones: take a number of components"
    ):
        lp.svd(A, 0.9, "dpi", faults=lp.Faults(on_loss="reuse"))


@pytest.mark.parametrize(
    "how", [{"on_loss": "reuse"}, {"on_loss": "degrade"}, {"participation": 0.5}]
)
def test_engines_that_show_sums_alone_ask_everybody(how):
    ((name, value),) = how.items()
    with pytest.raises(
        ValueError, match=f"sums over all shards only, and {name}={value!r}.*leave it"
    ):
        fit(engine="ring", **how)


def test_the_command_takes_both(tmp_path, capsys):
    np.save(tmp_path / "A.npy", A)
    how = "--faults", "on_loss=reuse,participation=0.5", "--method", "dpi", "--max-rounds", "9"
    folder = tmp_path / "model"
    assert (
        main(["fit", str(tmp_path / "A.npy"), "-k", "3", "-m", "4", *how, "-o", str(folder)]) == 0
    )
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))["run"]
    assert run["participation"]["label"] == "sampled"
    assert run["participation"]["rate"] == 0.5
