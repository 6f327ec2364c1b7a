"""Runs that survive the loss of sites, and what can be opened in them."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from federated import again, ask, begun, engine_of, opened, refusal, rows, said, sites
from test_agent import lines

import localpower as lp
from localpower.core.errors import DegradedWarning, SiteRefused, WorkerLost
from localpower.core.linalg import orth
from localpower.engines.ring import InlineRing
from localpower.federation import masks, recovery
from localpower.federation.engine import Federation
from localpower.federation.link import DirectLink
from localpower.federation.messages import (
    Answer,
    Ask,
    Reveal,
    Settle,
    Settled,
    Shares,
    as_bytes,
    digest_of,
    to_frame,
)
from localpower.worker.shard import Shard
from localpower.worker.sum_tasks import Sums
from localpower.worker.tasks import PowerSteps

D = 6
BASIS = orth(np.random.default_rng(3).standard_normal((D, 2)))


def several(folder, m, **how):
    parts = [rows(120 + 10 * i, d=D, seed=i) for i in range(m)]
    agents = sites(folder, parts, [f"site-{i}" for i in range(m)], **how)
    return agents, parts


def test_shamir_is_that_of_the_library_and_its_field():
    """Shares of a secret and a line through it: f(x) = secret + a·x, x ≠ 0, over GF(2^128)."""
    secret, slope = bytes(15) + b"\x07", bytes(15) + b"\x03"  # 7 + 3x: 4 at 1, 7 ^ 6 = 1 at 2
    assert slope
    shares = [(1, bytes(15) + b"\x04"), (2, bytes(15) + b"\x01")]
    assert recovery.Shamir.combine(shares) == secret


@pytest.mark.parametrize("m", [3, 4, 5, 10])
def test_any_two_thirds_open_a_secret_and_fewer_do_not(m):
    secret = bytes(range(32))
    shares = recovery.split(secret, m)
    t = recovery.threshold(m)
    assert 3 * t > 2 * m >= 3 * (t - 1)
    for places in [*combinations(range(m), t)][:20]:
        assert recovery.joined({place: shares[place] for place in places}, m) == secret
    few = {place: shares[place] for place in range(t - 1)}
    with pytest.raises(WorkerLost, match="too few to open"):
        recovery.joined(few, m)
    halves = [(place + 1, share[:16]) for place, share in few.items()]
    assert recovery.Shamir.combine(halves) != secret[:16]


def test_a_sealed_share_is_for_one_site_and_one_question():
    sealed = recovery.seal(b"s" * 32, b"info", 1, 2, b"x" * 32)
    assert len(sealed) == recovery.SEALED
    assert recovery.unseal(b"s" * 32, b"info", 1, 2, sealed) == b"x" * 32
    for other in (
        (b"t" * 32, b"info", 1, 2),
        (b"s" * 32, b"else", 1, 2),
        (b"s" * 32, b"info", 2, 1),
    ):
        with pytest.raises(SiteRefused, match="changed on its way"):
            recovery.unseal(*other, sealed)


class Without(DirectLink):
    """Loses sites for good: in the hops of some kinds, from a round on."""

    def __init__(self, agents, gone, kinds=(Ask,), start=1):
        super().__init__(agents)
        self.gone, self.kinds, self.start, self.asked = {*gone}, kinds, start, []

    def ask(self, frame, sites, deadline):
        message = said(frame)
        number = getattr(message, "round", 0)
        lost = isinstance(message, self.kinds) and number >= self.start
        self.asked.append((type(message).__name__, number, tuple(sites)))
        for site in sites:
            if not (lost and site in self.gone):
                yield site, self.agents[site].answer(frame)
        if lost and self.gone & {*sites}:
            raise WorkerLost(f"{sorted(self.gone & {*sites})} are gone")


def plain_sum(parts, task, exponent_trace):
    ring = InlineRing()
    ring.place([Shard((part,), D, np.dtype(float), number=i) for i, part in enumerate(parts)])
    ring.trace = exponent_trace
    return ring.sum(task)


@pytest.mark.parametrize("m", [3, 4, 7])
def test_sums_are_those_of_the_inline_ring_with_every_number_of_losses(tmp_path, m):
    most = m - recovery.threshold(m)
    for lost in range(most + 1):
        agents, parts = several(tmp_path / str(lost), m)
        gone = [f"site-{i}" for i in np.random.default_rng(lost).permutation(m)[:lost]]
        engine = opened(agents, secure="recovery")
        engine.link = Without(agents, gone)
        engine.trace = 1e6
        left = [part for i, part in enumerate(parts) if f"site-{i}" not in gone]
        for task in (PowerSteps(BASIS, 1), Sums()):
            found, exact = engine.sum(task), plain_sum(left, task, 1e6)
            for name in type(found).__slots__:
                np.testing.assert_array_equal(getattr(found, name), getattr(exact, name))
        assert engine.absent == {int(name[5:]) for name in gone}


def test_one_more_loss_stops_the_sum(tmp_path):
    agents, _ = several(tmp_path, 5)
    engine = opened(agents, secure="recovery")
    engine.link = Without(agents, ["site-1", "site-3"])
    engine.trace = 1e6
    with pytest.raises(WorkerLost, match="no right answer came from site-1, site-3"):
        engine.sum(PowerSteps(BASIS, 1))


def test_two_hops_where_all_answer_and_three_where_some_are_lost(tmp_path):
    agents, _ = several(tmp_path, 5)
    engine = opened(agents, secure="recovery")
    engine.link = Without(agents, ["site-4"], start=2)
    engine.trace = 1e6
    engine.sum(PowerSteps(BASIS, 1))
    assert [kind for kind, *_ in engine.link.asked] == ["Ask", "Reveal"]
    engine.sum(PowerSteps(BASIS, 1))
    kinds = [kind for kind, number, _ in engine.link.asked if number == 2]
    assert kinds == ["Ask", "Ask", "Settle", "Reveal"]  # asked again before it is given up
    engine.sum(PowerSteps(BASIS, 1))
    assert engine.link.asked[-3] == ("Ask", 3, tuple(f"site-{i}" for i in range(4)))


def test_a_run_without_losses_has_the_bits_of_the_strict_one(tmp_path):
    agents, _ = several(tmp_path, 4)
    how = {"tol": 1e-8, "rng": 0}
    strict = lp.pca("sites", 2, "block_krylov", engine=engine_of(agents), **how)
    found = lp.pca("sites", 2, "block_krylov", engine=engine_of(agents, secure="recovery"), **how)
    np.testing.assert_array_equal(found.components, strict.components)
    assert found.ledger == strict.ledger
    assert found.converged
    assert found.run["federation"]["participation"] == "complete"
    assert found.run["participation"] == {"label": "complete"}
    assert "with recovery" in found.run["federation"]["secure_sum"]


@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_a_run_that_lost_a_site_says_so_and_is_not_called_converged(tmp_path):
    agents, _ = several(tmp_path, 5)
    engine = Federation(Without(agents, ["site-2"], start=5), secure="recovery")
    with pytest.warns(DegradedWarning, match="140 of 700 rows"):
        found = lp.pca("sites", 2, "dpi", engine=engine, max_rounds=4, rng=0)
    assert not found.converged
    assert found.reason == "degraded"
    assert found.run["federation"]["participation"] == "without site-2 from round 5"
    assert "without site-2 from round 5" in str(found)
    assert [part["shard"] for part in found.run["degraded"]] == [2]


@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::localpower.core.errors.DegradedWarning")
def test_a_site_lost_from_the_start_leaves_the_result_of_the_others(tmp_path):
    agents, parts = several(tmp_path, 5)
    engine = Federation(Without(agents, ["site-0"]), secure="recovery")
    found = lp.svd("sites", 2, "gram", engine=engine, rng=0)
    V = np.linalg.svd(np.vstack(parts[1:]))[2][:2]
    assert lp.subspace_distance(V.T, found.components.T) < 1e-8


def test_a_site_lost_between_the_hops_costs_another_round_at_most(tmp_path):
    agents, parts = several(tmp_path, 5)
    engine = opened(agents, secure="recovery")
    engine.trace = 1e6
    engine.link = Without(agents, ["site-2"], kinds=(Reveal,))  # answered, and is gone
    found = engine.sum(PowerSteps(BASIS, 1)).product
    exact = plain_sum(parts, PowerSteps(BASIS, 1), 1e6).product
    np.testing.assert_array_equal(found, exact)  # four shares open the sum of all five
    assert engine.absent == frozenset()


def test_sites_that_are_lost_between_the_hops_are_named_where_too_few_are_left(tmp_path):
    agents, _ = several(tmp_path, 5)
    engine = opened(agents, secure="recovery")
    engine.trace = 1e6
    engine.link = Without(agents, ["site-2", "site-4"], kinds=(Reveal,))
    with pytest.raises(WorkerLost, match="site-2, site-4 left before the sum was opened"):
        engine.sum(PowerSteps(BASIS, 1))


def test_a_second_loss_between_the_hops_is_another_question(tmp_path):
    agents, parts = several(tmp_path, 7)
    engine = opened(agents, secure="recovery")
    engine.trace = 1e6
    one, two = Without(agents, ["site-1"]), Without(agents, ["site-2"], kinds=(Reveal,))

    class Both(DirectLink):
        def ask(self, frame, sites, deadline):
            return (two if isinstance(said(frame), Reveal) else one).ask(frame, sites, deadline)

    engine.link = Both(agents)
    task = PowerSteps(BASIS, 1)
    with pytest.raises(WorkerLost, match="site-2 left before the sum was opened"):
        engine.sum(task)
    engine.link = Without(agents, ["site-2"])  # the other is back, and is not asked any more
    found = engine.sum(task).product
    left = [part for i, part in enumerate(parts) if i not in (1, 2)]
    np.testing.assert_array_equal(found, plain_sum(left, task, 1e6).product)


class Repeating(Without):
    """Brings each reply, and after it once more what came in the round before."""

    def __init__(self, agents, gone):
        super().__init__(agents, gone)
        self.before = {}

    def ask(self, frame, sites, deadline):
        kind = type(said(frame))
        for site, raw in super().ask(frame, sites, deadline):
            yield site, raw
            yield site, self.before.get((kind, site), raw)
            self.before[kind, site] = raw


def test_what_was_revealed_in_an_earlier_round_opens_no_later_one(tmp_path):
    agents, parts = several(tmp_path, 5)
    engine = opened(agents, secure="recovery")
    engine.trace = 1e6
    engine.link = Repeating(agents, ["site-3"])
    for width in (1, 2):
        task = PowerSteps(BASIS[:, :width].copy(), 1)
        exact = plain_sum([*parts[:3], parts[4]], task, 1e6)
        np.testing.assert_array_equal(engine.sum(task).product, exact.product)


# A coordinator that wants more than one sum.


def answered(agents, number=1):
    run = begun(agents, secure="recovery")
    frame = ask(run, number, PowerSteps(BASIS, 1))
    answers = {agent.name: said(agent.answer(frame)) for agent in agents}
    assert all(isinstance(each, Answer) for each in answers.values())
    return run, digest_of(frame), answers


def reveal(run, question, agents, names, answers, signatures=None):
    sealed = np.zeros((len(agents), recovery.SEALED * len(agents)), np.uint8)
    for place, agent in enumerate(agents):
        sealed[place] = answers[agent.name].sealed
    signatures = recovery.no_signatures(len(names)) if signatures is None else signatures
    return to_frame(Reveal(run, 1, question, tuple(names), signatures, sealed))


def signed(agents, run, question, names):
    found = recovery.no_signatures(len(names))
    frame = to_frame(Settle(run, 1, question, tuple(names)))
    for place, name in enumerate(names):
        reply = said({agent.name: agent for agent in agents}[name].answer(frame))
        if isinstance(reply, Settled):
            found[place] = reply.signature
    return found


def test_a_site_reveals_for_one_list_in_a_round(tmp_path):
    agents, _ = several(tmp_path, 5)
    run, question, answers = answered(agents)
    names = [agent.name for agent in agents]
    whole = reveal(run, question, agents, names, answers)
    first = agents[0].answer(whole)
    assert isinstance(said(first), Shares)
    assert agents[0].answer(whole) == first
    signatures = signed(agents, run, question, names[:4])
    part = reveal(run, question, agents, names[:4], answers, signatures)
    assert "another list in this round" in refusal(agents[0].answer(part))
    north = again(agents[0])
    assert "another list in this round" in refusal(north.answer(part))
    assert north.answer(whole) == first  # also by a new process


def test_a_list_that_is_not_of_all_needs_signatures(tmp_path):
    agents, _ = several(tmp_path, 5)
    run, question, answers = answered(agents)
    names = [agent.name for agent in agents][:4]
    bare = reveal(run, question, agents, names, answers)
    assert "only 0 of 5 sites have signed" in refusal(agents[0].answer(bare))
    signatures = signed(agents, run, question, names)
    some = signatures.copy()
    some[2] = 0
    assert "only 3 of 5" in refusal(
        agents[0].answer(reveal(run, question, agents, names, answers, some))
    )
    turned = np.roll(signatures, 1, axis=0)
    assert "only 0 of 5" in refusal(
        agents[0].answer(reveal(run, question, agents, names, answers, turned))
    )
    reply = said(agents[0].answer(reveal(run, question, agents, names, answers, signatures)))
    assert (reply.shares.shape, reply.keys.shape) == ((4, 32), (1, 32))


def test_whoever_has_signed_reveals_nothing_for_another_list(tmp_path):
    agents, _ = several(tmp_path, 5)
    run, question, answers = answered(agents)
    names = [agent.name for agent in agents]
    signed(agents, run, question, names[:4])
    assert "another list" in refusal(
        agents[1].answer(reveal(run, question, agents, names, answers))
    )
    other = to_frame(Settle(run, 1, question, tuple(names[1:])))
    assert "another list" in refusal(agents[1].answer(other))
    assert "is not on the list" in refusal(
        agents[4].answer(to_frame(Settle(run, 1, question, tuple(names[:4]))))
    )


def test_no_coordinator_gets_share_and_key_of_a_site_that_answered(tmp_path):
    """Half of the sites are told that a site is missing, half that it is there."""
    agents, _ = several(tmp_path, 6)
    run, question, answers = answered(agents)
    names = [agent.name for agent in agents]
    without = names[:5]  # site-5 has answered
    signatures = recovery.no_signatures(5)
    for place in range(3):
        frame = to_frame(Settle(run, 1, question, tuple(without)))
        signatures[place] = said(agents[place].answer(frame)).signature
    part = reveal(run, question, agents, without, answers, signatures)
    assert all("only 3 of 6" in refusal(agent.answer(part)) for agent in agents[:3])
    whole = reveal(run, question, agents, names, answers)
    shares = [said(agent.answer(whole)) for agent in agents[3:]]
    assert all(isinstance(each, Shares) and not each.keys.size for each in shares)
    with pytest.raises(WorkerLost, match="3 of 6 sites are too few"):
        recovery.joined({3 + i: bytes(each.shares[5]) for i, each in enumerate(shares)}, 6)


def test_lists_only_get_shorter_and_never_too_short(tmp_path):
    agents, _ = several(tmp_path, 7, min_sites=6)
    run, question, _answers = answered(agents)
    names = [agent.name for agent in agents]
    for wrong in (names[::-1], [*names[:6], "stranger"], [names[0], *names]):
        frame = to_frame(Settle(run, 1, question, tuple(wrong)))
        assert "not of this run" in refusal(agents[0].answer(frame))
    short = to_frame(Settle(run, 1, question, tuple(names[:5])))
    assert "5 of 7 sites are too few" in refusal(agents[0].answer(short))
    assert isinstance(
        said(agents[0].answer(to_frame(Settle(run, 1, question, tuple(names[:6]))))), Settled
    )
    second = ask(run, 2, PowerSteps(BASIS, 1))
    agents[0].answer(second)
    back = to_frame(Settle(run, 2, digest_of(second), tuple(names)))
    assert "back that was left out before" in refusal(agents[0].answer(back))
    north = again(agents[0])
    assert "back that was left out before" in refusal(north.answer(back))
    assert [json.loads(entry.text) for entry in lines(north, "settled")] == [names[:6]]


def test_a_site_that_was_left_out_later_stays_out(tmp_path):
    agents, _ = several(tmp_path, 7)
    run, question, _answers = answered(agents)
    names = tuple(agent.name for agent in agents)
    four = to_frame(Settle(run, 1, question, names[:4]))
    assert "4 of 7 sites are too few" in refusal(agents[0].answer(four))
    wanted = (names, Settled), (names[:6], Settled), (names, None)
    for number, (sites_then, kind) in enumerate(wanted, start=1):
        frame = ask(run, number, PowerSteps(BASIS, 1))
        agents[0].answer(frame)
        reply = agents[0].answer(to_frame(Settle(run, number, digest_of(frame), sites_then)))
        if kind is None:
            assert "back that was left out before" in refusal(reply)
        else:
            assert isinstance(said(reply), kind)


def test_signatures_count_for_one_list_of_one_question(tmp_path):
    agents, _ = several(tmp_path, 7)
    run, question, answers = answered(agents)
    names = [agent.name for agent in agents]
    one, two = [*names[:5], names[5]], [*names[:5], names[6]]
    signatures = signed(agents[:5] + agents[5:6], run, question, one)
    signatures[5] = 0  # five of seven have signed the first list
    other = reveal(run, question, agents, two, answers, signatures)
    assert "only 0 of 7 sites have signed" in refusal(agents[6].answer(other))
    few = reveal(run, question, agents, one, answers, signatures[:5])
    assert "a list without its signatures" in refusal(agents[0].answer(few))
    right = reveal(run, question, agents, one, answers, signatures)
    assert isinstance(said(agents[0].answer(right)), Shares)
    frame = ask(run, 2, PowerSteps(BASIS, 1))
    sealed = [said(agent.answer(frame)).sealed for agent in agents]
    later = Reveal(run, 2, digest_of(frame), tuple(one), signatures, np.stack(sealed))
    assert "only 0 of 7 sites have signed" in refusal(agents[0].answer(to_frame(later)))


def test_a_question_that_failed_cannot_be_opened(tmp_path, monkeypatch):
    agents, _ = several(tmp_path, 5)
    run = begun(agents, secure="recovery")
    frame = ask(run, 1, PowerSteps(BASIS, 1))

    def fails(task, matrix):
        raise MemoryError

    monkeypatch.setattr(PowerSteps, "__call__", fails)
    agents[0].answer(frame)
    names = tuple(agent.name for agent in agents)
    settle = to_frame(Settle(run, 1, digest_of(frame), names))
    assert "has not answered this question" in refusal(agents[0].answer(settle))


def test_too_few_agreements_are_a_loss_that_is_named(tmp_path):
    agents, _ = several(tmp_path, 5)
    engine = opened(agents, secure="recovery")
    engine.trace = 1e6
    lost, silent = Without(agents, ["site-4"]), Without(agents, ["site-1"], kinds=(Settle,))

    class Both(DirectLink):
        def ask(self, frame, sites, deadline):
            return (silent if isinstance(said(frame), Settle) else lost).ask(frame, sites, deadline)

    engine.link = Both(agents)
    with pytest.raises(WorkerLost, match="no right answer came from site-1"):
        engine.sum(PowerSteps(BASIS, 1))


def test_an_agreement_that_was_changed_on_its_way_is_asked_for_again(tmp_path):
    agents, parts = several(tmp_path, 5)
    engine = opened(agents, secure="recovery")
    engine.trace = 1e6
    left = ["site-1"]

    class Turned(Without):
        def ask(self, frame, sites, deadline):
            for site, raw in super().ask(frame, sites, deadline):
                reply = said(raw)
                if isinstance(reply, Settled) and site in left:
                    left.remove(site)
                    raw = to_frame(replace(reply, signature=reply.signature ^ np.uint8(1)))
                yield site, raw

    engine.link = Turned(agents, ["site-4"])
    task = PowerSteps(BASIS, 1)
    exact = plain_sum(parts[:4], task, 1e6)
    np.testing.assert_array_equal(engine.sum(task).product, exact.product)
    assert not left


def test_only_what_was_answered_can_be_opened_and_only_with_recovery(tmp_path):
    agents, _ = several(tmp_path / "a", 5)
    run, question, answers = answered(agents)
    names = tuple(agent.name for agent in agents)
    assert "has not answered" in refusal(
        agents[0].answer(to_frame(Settle(run, 2, question, names)))
    )
    assert "has not answered" in refusal(
        agents[0].answer(to_frame(Settle(run, 1, "ab" * 32, names)))
    )
    torn = replace(answers["site-1"], sealed=as_bytes(bytes(answers["site-1"].sealed.size)))
    changed = reveal(run, question, agents, names, answers | {"site-1": torn})
    assert "a share was changed" in refusal(agents[0].answer(changed))
    few = said(reveal(run, question, agents, names, answers))
    short = to_frame(replace(few, sealed=few.sealed[:4].copy()))
    assert "shares that are not of all sites" in refusal(agents[0].answer(short))
    strict, _ = several(tmp_path / "b", 5)
    other = begun(strict)
    frame = ask(other, 1, PowerSteps(BASIS, 1))
    assert said(strict[0].answer(frame)).sealed.size == 0
    assert "no recovery" in refusal(
        strict[0].answer(to_frame(Settle(other, 1, digest_of(frame), names)))
    )


def test_a_site_started_again_deals_the_same_shares(tmp_path):
    agents, _ = several(tmp_path, 4)
    run = begun(agents, secure="recovery")
    frame = ask(run, 1, PowerSteps(BASIS, 1))
    first = agents[0].answer(frame)
    north = again(agents[0])
    assert north.answer(frame) == first
    later = ask(run, 2, PowerSteps(BASIS, 1))
    assert isinstance(said(north.answer(later)), Answer)
    assert "later round" in refusal(north.answer(frame))


def test_the_own_mask_hides_an_answer_even_if_all_keys_with_others_are_known(tmp_path):
    agents, parts = several(tmp_path, 4)
    _run, question, answers = answered(agents)
    site = agents[0]._run
    info = site.info(1, question)
    added, taken = site.mask_keys(info)
    bare = masks.masked(answers["site-0"].words, taken, added)
    open_words = masks.masked(bare, [], [site.own_key(info)])
    exact = np.rint(parts[0].T @ (parts[0] @ BASIS) * 2.0 ** (60 - 21)).ravel()
    assert np.abs(open_words.view(np.int64) - exact).max() < 1e6
    assert np.abs(bare.view(np.int64).astype(float) - exact).min() > 1e12
