"""Sites in private runs: noise before the mask, and a budget that is never exceeded."""

import re
from math import hypot, sqrt

import numpy as np
import pytest
from federated import again, ask, begun, engine_of, frames_of_opening, refusal, said, sites
from scipy.stats import chi2

import localpower as lp
from localpower.core.errors import SiteRefused
from localpower.core.gaussian import epsilon_of, mu_of, sigma_of
from localpower.federation.journal import NAME, verified
from localpower.federation.messages import Answer, Offer, OpenRun, to_frame
from localpower.federation.policy import Policy, Private
from localpower.federation.runs import noise_key
from localpower.worker.private_tasks import (
    SENSITIVITY,
    NoisedGram,
    NoisedProduct,
    NoisedSteps,
    on_diagonal,
)
from localpower.worker.sum_tasks import Sums
from localpower.worker.tasks import GramTriangle, Prepare

OWN = Private(1.0, 1e-6, 1.0)
ASKED = (1.0, 1e-6, 1.0)
HOW = {"privacy": OWN, "min_rows": 100}
ALLOWED = (*Policy(name="any").tasks, "NoisedSteps")


def parts(n=900, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = 0.3 * rng.standard_normal((n, d)) * 0.7 ** np.arange(d) + 0.05
    return [X[: n // 3], X[n // 3 : n // 2], X[n // 2 :]]


def enough(epsilon=1.0, delta=1e-6, releases=1, honest=3):
    return int(sigma_of(epsilon, delta, releases) * SENSITIVITY / sqrt(honest)) + 1


def matrix(sigma=None, clip=1.0, honest=3, center=True):
    return NoisedGram(clip, sigma or enough(), honest, center)


def steps(count=2, sigma=None, honest=1, center=False, basis=None):
    sigma = sigma or enough(releases=max(count, 1), honest=1)
    return NoisedSteps(1.0, sigma, honest, center, np.eye(6)[:, :2] if basis is None else basis,
                       count)  # fmt: skip


def fit(agents, epsilon=1.0, **how):
    privacy = lp.Privacy(epsilon, 1e-6, 1.0, **how)
    return lp.pca("sites", 2, privacy=privacy, engine=engine_of(agents), rng=0)


@pytest.mark.parametrize("release", ["matrix", "products"])
def test_a_private_federation_finds_the_components_and_tells_no_rows(tmp_path, release):
    agents = sites(tmp_path, parts(60_000), **HOW | {"privacy": Private(8.0, 1e-6, 1.0)})
    found = fit(agents, 8.0, release=release)
    X = np.vstack(parts(60_000))
    V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:2].T
    assert lp.subspace_distance(found.components.T, V) < 0.1
    card = found.run["federation"]
    assert card["privacy"].startswith("private: ε = 8, δ = 1e-06")
    assert card["rows"] is None
    assert [site["rows"] for site in card["sites"]] == ["not told"] * 3
    assert (card["ended"], card["participation"]) == ("private", "complete")
    assert "rows" not in found.run
    assert found.run["privacy"]["only_sums"]
    assert "privacy private" in str(found)
    for agent in agents:
        assert epsilon_of(agent.journal.mu, 1e-6) == pytest.approx(8.0, rel=1e-6)
        assert agent.journal.epsilon == pytest.approx(8.0, rel=1e-6)


def test_the_number_of_rows_is_not_offered(tmp_path):
    agents = sites(tmp_path, parts(30), **HOW)  # and 100 are too few without privacy
    _run, first, _roster = frames_of_opening(agents, privacy=ASKED)
    offer = said(agents[0].answer(first))
    assert isinstance(offer, Offer)
    assert (offer.rows, offer.entries, offer.columns) == (0, 0, 6)


def test_masks_cancel_and_the_noise_of_every_site_is_in_the_sum(tmp_path):
    agents = sites(tmp_path, parts(d=40), **HOW)
    engine = engine_of(agents)
    engine._privacy = ASKED
    engine.adopt("sites", None)
    engine.columns, engine.rows = 40, [1] * 3
    task = matrix(center=False)
    words = engine.sum(task).words
    own = [task.exact(agent._prepared(agent._run)) for agent in agents]
    noise = words.view(np.int64) - sum(own)
    digests = {agent.journal.seen(agent._run.id, 1).question for agent in agents}
    assert len(digests) == 1
    made = [agent._run.noise(*digests) for agent in agents]
    again = sum(task.noise(40, stream)[0] for stream in made)
    assert (noise == again).all()
    scaled = noise / (task.sigma * sqrt(3))
    scaled[~on_diagonal(40)] *= sqrt(2)
    assert 1e-6 < chi2.cdf(np.square(scaled).sum(), scaled.size) < 1 - 1e-6
    keys = {noise_key(agent._run.kept.seed, *digests) for agent in agents}
    assert len(keys) == 3


def test_a_repeated_question_gives_the_same_bytes_and_is_charged_once(tmp_path):
    agents = sites(tmp_path, parts(), **HOW)
    run = begun(agents, privacy=ASKED)
    question = ask(run, 1, matrix())
    first, other = (agents[n].answer(question) for n in (0, 1))
    assert isinstance(said(first), Answer)
    spent = agents[0].journal.mu
    assert spent == pytest.approx(mu_of(1.0, 1e-6), rel=1e-6)
    assert agents[0].answer(question) == first
    agents[0] = again(agents[0])
    assert agents[0].journal.mu == spent
    assert agents[0].answer(question) == first
    assert agents[0].journal.mu == spent
    assert other != first
    assert "another question" in refusal(agents[0].answer(ask(run, 1, matrix(enough() + 1))))


def test_another_run_has_other_noise(tmp_path):
    agents = sites(tmp_path, parts(), **HOW | {"privacy": Private(9.0, 1e-6, 1.0)})
    found = [fit(agents).singular_values for _ in range(2)]
    assert not (found[0] == found[1]).any()


def test_an_exhausted_budget_refuses_also_after_a_restart(tmp_path):
    agents = sites(tmp_path, parts(), **HOW)
    for _ in range(3):  # of ε = 0.5, three fit into ε = 1 and four do not
        fit(agents, 0.5)
    spent = epsilon_of(mu_of(0.5, 1e-6) * sqrt(3), 1e-6)
    for agent in agents:
        assert agent.journal.epsilon == pytest.approx(spent, rel=1e-6)
    for _ in range(2):
        with pytest.raises(SiteRefused, match=rf"budget is epsilon = 1 .* {spent:.3g} is spent"):
            fit(agents, 0.5)
        agents = [again(agent) for agent in agents]
    assert agents[0].journal.mu < mu_of(1.0, 1e-6)
    more = [again(agent, privacy=Private(1.1, 1e-6, 1.0)) for agent in agents]
    assert fit(more, 0.5).reason == "private"


def test_what_is_spent_is_on_the_disk_before_it_leaves(tmp_path, monkeypatch):
    agents = sites(tmp_path, parts(), **HOW)
    run = begun(agents, privacy=ASKED)
    seen = []
    write = type(agents[0].journal).write

    def failing(journal, entry):
        seen.append(entry)
        if entry.kind == "answered":
            raise OSError("the disk is full")
        write(journal, entry)

    monkeypatch.setattr(type(agents[0].journal), "write", failing)
    assert "nothing leaves" in refusal(agents[0].answer(ask(run, 1, matrix())))
    assert seen[0].mu == pytest.approx(mu_of(1.0, 1e-6), rel=1e-6)
    assert seen[0].sigma == pytest.approx(sigma_of(1.0, 1e-6) / sqrt(3), rel=1e-6)


def test_a_question_that_fails_is_charged_too(tmp_path):
    bad = parts()
    bad[0][3, 2] = np.nan
    agents = sites(tmp_path, bad, **HOW)
    run = begun(agents, privacy=ASKED)
    answer = said(agents[0].answer(ask(run, 1, matrix())))
    assert type(answer).__name__ == "Failure"
    assert "nan" not in str(answer.text).lower()
    lines = [entry for entry, _ in verified(tmp_path / "north" / NAME)]
    assert lines[-1].kind == "failed"
    assert agents[0].journal.mu == lines[-1].mu > 0
    agents[0] = again(agents[0])
    assert agents[0].journal.spent(run) == agents[0].journal.mu == lines[-1].mu
    assert "more than the run was opened for" in refusal(agents[0].answer(ask(run, 2, matrix())))


def test_a_question_that_failed_by_chance_spends_once_when_it_is_asked_again(tmp_path, monkeypatch):
    agents = sites(tmp_path, parts(), **HOW)
    question = ask(begun(agents, privacy=ASKED), 1, matrix())

    def fails(task, matrix):
        raise MemoryError

    with monkeypatch.context() as full:
        full.setattr(NoisedGram, "exact", fails)
        assert type(said(agents[0].answer(question))).__name__ == "Failure"
    assert isinstance(said(agents[0].answer(question)), Answer)
    assert agents[0].journal.mu == pytest.approx(mu_of(1.0, 1e-6), rel=1e-6)


def test_every_question_of_a_run_has_noise_of_its_own(tmp_path):
    """The same noise twice would cancel in a difference."""
    engine = engine_of(sites(tmp_path, parts(), **HOW))
    engine._privacy = ASKED
    engine.adopt("sites", None)
    engine.columns, engine.rows = 6, [1] * 3
    asked = [NoisedProduct(1.0, enough(releases=2), 3, True, BASIS) for _ in range(2)]
    first, second = (engine.sum(task).words for task in asked)
    assert (first != second).all()


def test_a_budget_that_was_cut_in_mid_run_is_kept(tmp_path):
    agents = sites(tmp_path, parts(), **HOW)
    run = begun(agents, privacy=ASKED)
    agents[0] = again(agents[0], privacy=Private(0.5, 1e-6, 1.0))
    assert "budget is epsilon = 0.5" in refusal(agents[0].answer(ask(run, 1, matrix())))
    assert agents[0].journal.mu == 0


REFUSED_RUNS = {
    "no budget": ({"privacy": None}, {}, "no privacy budget"),
    "not private": ({}, {"privacy": None}, "private runs only"),
    "clip": ({}, {"privacy": (1.0, 1e-6, 1.5)}, "clipped to 1"),
    "epsilon": (
        {},
        {"privacy": (1.01, 1e-6, 1.0)},
        r"= 1e-06 in all runs.*; ask for a smaller epsilon",
    ),
    "delta": ({}, {"privacy": (1.0, 1e-5, 1.0)}, "with this it would be 1.1"),
    "no delta": ({}, {"privacy": (1.0, 1.0, 1.0)}, "delta must be below 1"),
    "masks": ({"secure_sum": "optional"}, {"secure": "off"}, "a private run needs masks"),
    "recovery": ({}, {"secure": "recovery"}, "needs the noise of every site"),
    "gaps": ({"missing": "mean"}, {}, "fills gaps with means of other rows"),
}


@pytest.mark.parametrize("name", REFUSED_RUNS)
def test_runs_that_are_less_private_are_refused_before_rows_are_read(tmp_path, name):
    policy, how, reason = REFUSED_RUNS[name]
    agents = sites(tmp_path, parts(), **HOW | policy)
    run = "ab" * 16
    about = {"secure": "strict", "privacy": ASKED} | how
    names = tuple(agent.name for agent in agents)
    frame = to_frame(OpenRun(run, "1", names, about["secure"], 60, "", about["privacy"]))
    assert re.search(reason, refusal(agents[0].answer(frame)))
    assert agents[0].rows._source is None


BASIS = np.linalg.qr(np.random.default_rng(0).standard_normal((7, 3)))[0]
REFUSED_QUESTIONS = {
    "no noise": (GramTriangle(), "has no noise"),
    "sums": (Sums(), "has no noise"),
    "prepare": (Prepare(None, 1.0), "has no noise"),
    "less noise": (matrix(int(0.999 * enough())), "more than the run was opened for"),
    "fewer sites": (matrix(enough(honest=4), honest=4), "more sites are to be honest"),
    "another clip": (matrix(clip=0.5), "another clip"),
    "no sigma": (NoisedGram(1.0, 0, 3, True), "'sigma'"),
    "no clip": (NoisedGram(-1.0, 5, 3, True), "'clip'"),
    "no flag": (NoisedGram(1.0, 5, 3, 1), "'center'"),
    "long basis": (NoisedProduct(1.0, enough(), 3, True, 2 * BASIS), "'basis'"),
    "nan basis": (NoisedProduct(1.0, enough(), 3, True, np.nan * BASIS), "'basis'"),
    "no basis": (NoisedProduct(1.0, enough(), 3, True, BASIS[:4]), "'basis'"),
    "a baseline": (steps(), "does not allow NoisedSteps (tasks)"),
}
REFUSED_STEPS = {
    "noise of one step": (steps(sigma=enough(honest=1)), "more than the run was opened for"),
    "a share of the noise": (steps(sigma=enough(releases=2)), "more than the run was opened for"),
    "honest": (steps(honest=3), "'honest'"),
    "centred": (steps(center=True), "'center'"),
    "no steps": (steps(count=0), "'steps'"),
    "a basis of longer rows": (steps(basis=BASIS), "'basis'"),
}


@pytest.mark.parametrize("name", REFUSED_QUESTIONS)
def test_questions_with_too_little_noise_are_refused(tmp_path, name):
    task, reason = REFUSED_QUESTIONS[name]
    agents = sites(tmp_path, parts(), **HOW)
    run = begun(agents, privacy=ASKED)
    assert reason in refusal(agents[0].answer(ask(run, 1, task)))
    assert agents[0].journal.mu == 0
    assert isinstance(said(agents[0].answer(ask(run, 2, matrix()))), Answer)


@pytest.mark.parametrize("name", REFUSED_STEPS)
def test_local_steps_with_too_little_noise_are_refused_where_they_are_allowed(tmp_path, name):
    task, reason = REFUSED_STEPS[name]
    agents = sites(tmp_path, parts(), **HOW | {"tasks": ALLOWED})
    run = begun(agents, privacy=ASKED)
    assert reason in refusal(agents[0].answer(ask(run, 1, task)))
    assert agents[0].journal.mu == 0
    assert isinstance(said(agents[0].answer(ask(run, 2, steps()))), Answer)


def test_every_local_step_of_every_round_is_charged(tmp_path):
    own = {"privacy": Private(8.0, 1e-6, 1.0), "tasks": ALLOWED}
    agents = sites(tmp_path, parts(60_000), **HOW | own)
    privacy = lp.Privacy(8.0, 1e-6, 1.0, release="fedpower", steps=3)
    found = lp.svd("sites", 2, privacy=privacy, engine=engine_of(agents), rng=0)
    V = np.linalg.svd(np.vstack(parts(60_000)), full_matrices=False)[2][:2].T
    assert lp.subspace_distance(found.components.T, V) < 0.1
    assert "a baseline for comparison" in found.run["federation"]["privacy"]
    for agent in agents:
        lines = [entry for entry, _ in verified(agent.policy.folder / NAME) if entry.mu]
        assert [entry.task for entry in lines] == ["NoisedSteps"] * 5
        for entry in lines:  # each of three products has noise of this deviation
            assert entry.mu == pytest.approx(sqrt(3) / entry.sigma)
        assert agent.journal.epsilon == pytest.approx(8.0, rel=1e-6)
    with pytest.raises(SiteRefused, match="privacy budget is epsilon = 8"):
        lp.svd("sites", 2, privacy=privacy, engine=engine_of(agents), rng=0)


def test_a_run_cannot_ask_more_often_than_it_was_opened_for(tmp_path):
    agents = sites(tmp_path, parts(), **HOW | {"privacy": Private(5.0, 1e-6, 1.0)})
    run = begun(agents, privacy=ASKED)
    product = NoisedProduct(1.0, enough(releases=3), 3, True, BASIS)
    for number in (1, 2, 3):
        assert isinstance(said(agents[0].answer(ask(run, number, product))), Answer)
    assert "more than the run was opened for" in refusal(agents[0].answer(ask(run, 4, product)))
    assert agents[0].journal.spent(run) == pytest.approx(mu_of(1.0, 1e-6), rel=1e-6)


def test_noise_is_not_for_runs_that_are_not_private(tmp_path):
    agents = sites(tmp_path, parts())
    run = begun(agents)
    assert "not opened as a private one" in refusal(agents[0].answer(ask(run, 1, matrix())))


def test_a_site_that_restarts_in_mid_run_goes_on(tmp_path):
    agents = sites(tmp_path, parts(60_000), **HOW | {"privacy": Private(8.0, 1e-6, 1.0)})
    engine = engine_of(agents)
    plain = type(engine).sum
    link = engine.link

    def restarting(task):
        agents[1] = link.agents[agents[1].name] = again(agents[1])
        return plain(engine, task)

    engine.sum = restarting
    privacy = lp.Privacy(8.0, 1e-6, 1.0, release="products")
    found = lp.pca("sites", 2, privacy=privacy, engine=engine, rng=0)
    assert found.run["privacy"]["releases"] == 5
    assert epsilon_of(agents[1].journal.mu, 1e-6) == pytest.approx(8.0, rel=1e-6)


def test_squares_of_what_was_spent_add_up(tmp_path):
    agents = sites(tmp_path, parts(), **HOW | {"privacy": Private(9.0, 1e-6, 1.0)})
    fit(agents, 2.0)
    fit(agents, 1.0)
    total = hypot(mu_of(2.0, 1e-6), mu_of(1.0, 1e-6))
    assert agents[0].journal.mu == pytest.approx(total, rel=1e-6)
