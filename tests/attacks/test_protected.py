"""The same attacks where something protects: secure sums, privacy, and the default policy."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from curious import basis, membership_in_releases, population
from inference import error, gram_of_few, gram_of_rounds, row_of

import localpower as lp

sys.path.insert(0, str(Path(__file__).parents[1] / "federation"))
pytest.importorskip("cryptography", reason="the extra 'federation' is not installed")

from federated import NAMES, again, engine_of, opened, said, sites

from localpower.core.errors import SiteRefused
from localpower.core.gaussian import mu_of
from localpower.federation.identity import make_federation
from localpower.federation.link import DirectLink
from localpower.federation.messages import Answer, from_frame, to_frame
from localpower.federation.policy import Policy
from localpower.worker.sums import from_words
from localpower.worker.tasks import PowerSteps


class Listening(DirectLink):
    """Keeps every question and answer that passes; may put other questions in their place."""

    def __init__(self, agents, change=lambda site, frame: frame):
        super().__init__(agents)
        self.heard, self._change = [], change

    def ask(self, frame, sites, deadline):
        for site in sites:
            sent = self._change(site, frame)
            reply = self.agents[site].answer(sent)
            self.heard.append((site, from_frame(frame, len(frame)), said(reply)))
            yield site, reply


def products(link, site, columns):
    """What the words of one site say, read as if they were not masked."""
    for who, asked, answer in link.heard:
        task = getattr(asked, "task", None)
        if who == site and isinstance(answer, Answer) and isinstance(task, PowerSteps):
            read = from_words(task, answer.words, columns, asked.exponent, asked.bits)
            yield task.basis, read.product


def listened(tmp_path, parts, rank=3, **how):
    agents = sites(tmp_path, parts, min_rows=1)
    link = Listening(agents)
    engine = engine_of(agents)
    engine.link = link
    result = lp.svd("sites", rank, "block_krylov", engine=engine, rng=0, **how)
    return link, result


def test_what_a_site_sends_is_noise_to_whoever_is_no_site(tmp_path):
    draw = population(columns=40, decay=0.96)[1]
    parts = [draw(500) * scale for scale in (1.0, 0.5, 2.0)]
    link, result = listened(tmp_path, parts, tol=1e-8)
    assert result.converged
    for site, part in zip(NAMES, parts, strict=True):
        pairs = list(products(link, site, 40))
        assert len(pairs) >= 5
        true = part.T @ part
        for found in (gram_of_few(*pairs[0]), gram_of_rounds(pairs[:3])):
            best = found * (found * true).sum() / (found * found).sum()  # whatever its scale
            assert error(best, true) > 0.9
        words = np.concatenate(
            [a.words.ravel() for who, _, a in link.heard if who == site and isinstance(a, Answer)]
        )
        bits = np.unpackbits(words.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


def test_a_site_without_masks_stops_before_half_of_its_columns_are_told(tmp_path):
    draw = population(columns=40, decay=0.96)[1]
    parts = [draw(500) * scale for scale in (1.0, 0.5, 2.0)]
    tasks = ("Describe", "Prepare", "PowerSteps", "Triangle")
    agents = sites(tmp_path, parts, secure_sum="off", tasks=tasks)
    link = Listening(agents)
    engine = engine_of(agents, secure="off")
    engine.link = link
    with pytest.raises(SiteRefused, match="half of its rows or columns"):
        lp.svd("sites", 3, "block_krylov:start=random,width=8", tol=1e-12, engine=engine, rng=0)
    told = [task.basis for who, task in plain_questions(link) if who == "north"]
    assert 0 < sum(Z.shape[1] for Z in told) < 20


def plain_questions(link):
    for who, asked, answer in link.heard:
        if isinstance(answer, Answer) and isinstance(asked.task, PowerSteps):
            yield who, asked.task


def test_a_site_that_is_asked_something_else_gives_noise_to_the_sum(tmp_path):
    parts = [population(columns=12)[1](300) for _ in NAMES]
    agents = sites(tmp_path, parts)

    def change(site, frame):
        asked = from_frame(frame, len(frame))
        if site == "north" or not isinstance(getattr(asked, "task", None), PowerSteps):
            return frame
        nothing = np.zeros_like(asked.task.basis)  # so that the sum would be north's alone
        return to_frame(replace(asked, task=replace(asked.task, basis=nothing)))

    link = Listening(agents, change)
    engine = engine_of(agents)
    engine.link = link
    with pytest.raises(Exception, match="no right answer came from south, west"):
        lp.svd("sites", 2, "block_krylov", engine=engine, rng=0, faults=lp.Faults(retries=0))
    answers = {
        who: answer
        for who, asked, answer in link.heard
        if isinstance(answer, Answer) and isinstance(asked.task, PowerSteps)
    }
    asked = next(a for _, a, r in link.heard if isinstance(getattr(a, "task", None), PowerSteps))
    total = sum(answer.words for answer in answers.values())
    found = from_words(asked.task, total, 12, asked.exponent, asked.bits).product
    exact = parts[0].T @ (parts[0] @ asked.task.basis)
    best = found * (found * exact).sum() / (found * found).sum()
    assert error(best, exact) > 0.5


@pytest.mark.parametrize("rows", [1, 5])
def test_the_default_policy_refuses_small_sites_before_rows_are_used(tmp_path, rows):
    draw = population(columns=12)[1]
    agents = sites(tmp_path, [draw(rows), draw(300), draw(400)])
    with pytest.raises(SiteRefused, match=r"site north refused: .*min_rows"):
        lp.svd("sites", 2, "block_krylov", engine=engine_of(agents), rng=0)


def test_the_default_policy_refuses_two_sites_and_plain_messages(tmp_path):
    draw = population(columns=12)[1]
    two = sites(tmp_path / "two", [draw(300), draw(400)], names=NAMES[:2])
    with pytest.raises(SiteRefused, match="min_sites"):
        lp.svd("sites", 2, "block_krylov", engine=engine_of(two), rng=0)
    three = sites(tmp_path / "three", [draw(300)] * 3)
    with pytest.raises(SiteRefused, match="secure_sum"):
        lp.svd("sites", 2, "block_krylov", engine=engine_of(three, secure="off"), rng=0)


FOUR = (*NAMES, "east")


def asked_of(agents, Z):
    """What a coordinator reads that opens a run with these sites and asks one question."""
    engine = opened(agents)
    engine.trace = 1e6
    return engine.sum(PowerSteps(Z, 1)).product


def test_a_coordinator_that_may_leave_a_site_out_reads_its_part_as_a_difference(tmp_path):
    draw = population()[1]
    parts = [draw(200) for _ in FOUR]
    agents = sites(tmp_path, parts, names=FOUR)
    Z = basis(parts[0].shape[1], 3)
    seen = asked_of(agents, Z) - asked_of(agents[:3], Z)
    assert error(seen, parts[3].T @ (parts[3] @ Z)) < 1e-9


def test_policies_that_init_writes_ask_for_all_sites(tmp_path):
    make_federation(tmp_path / "fed", FOUR)
    written = Policy.read(tmp_path / "fed" / "north" / "policy.toml")
    assert written.min_sites == 4
    assert "once without one of them" not in written.explain()
    assert "once without one of them" in replace(written, min_sites=3).explain()
    draw = population()[1]
    parts = [draw(200) for _ in FOUR]
    agents = sites(tmp_path, parts, names=FOUR, min_sites=written.min_sites)
    with pytest.raises(SiteRefused, match="3 sites are fewer"):
        opened(agents[:3])


def test_columns_are_counted_over_all_runs_also_after_a_restart(tmp_path):
    draw = population(columns=12)[1]
    agents = sites(tmp_path, [draw(300)] * 3, max_columns=60)
    for _ in range(2):
        lp.svd("sites", 2, "dpi", engine=engine_of(agents), max_rounds=3, rng=0)
        agents = [again(agent) for agent in agents]
    with pytest.raises(SiteRefused, match="max_columns"):
        lp.svd("sites", 20 // 4, "dpi", engine=engine_of(agents), max_rounds=30, rng=0)


def test_one_row_tells_nothing_of_itself_through_a_mask(tmp_path):
    draw = population(columns=12)[1]
    parts = [draw(1), draw(200), draw(200)]
    agents = sites(tmp_path, parts, min_rows=1)
    link = Listening(agents)
    engine = engine_of(agents)
    engine.link = link
    with pytest.raises(SiteRefused, match="10 times as many rows"):
        lp.svd("sites", 1, "dpi", engine=engine, max_rounds=2, rng=0)
    assert not list(products(link, "north", 12))
    found = row_of(basis(12, 2), np.random.default_rng(0).standard_normal((12, 2)))
    assert error(np.abs(found), np.abs(parts[0][0])) > 0.1


def test_with_privacy_membership_is_guessed_no_better_than_promised():
    from scipy.special import ndtr

    found, trials = membership_in_releases(epsilon=1.0, delta=1e-6, trials=3000), 3000
    limit = ndtr(mu_of(1.0, 1e-6) / np.sqrt(2))
    interval = 3 * np.sqrt(1 / (6 * trials))  # of an AUC near one half
    assert limit < 0.5665
    assert found <= limit + interval
    assert membership_in_releases(epsilon=50.0, delta=1e-6, trials=300) > 0.95  # the control
