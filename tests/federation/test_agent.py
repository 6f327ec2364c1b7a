"""A site alone with its coordinator: what it refuses, what it repeats, what it never tells."""

import json
import os
import stat
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from federated import (
    NAMES,
    again,
    ask,
    begun,
    frames_of_opening,
    refusal,
    rows,
    said,
    site,
    sites,
    thirds,
)

from localpower.core.errors import DataError
from localpower.core.linalg import orth
from localpower.federation import masks
from localpower.federation.journal import LONGEST, Journal, verified
from localpower.federation.masks import SiteKeys
from localpower.federation.messages import (
    MOST_TEXT,
    Answer,
    CloseRun,
    Offer,
    OpenRun,
    Refusal,
    Roster,
    as_bytes,
    digest_of,
    signed_part,
    to_frame,
)
from localpower.federation.policy import Private
from localpower.federation.runs import SiteRun
from localpower.worker.host import Failure
from localpower.worker.replies import Done, Product
from localpower.worker.sum_tasks import SmallGram, Spread, Sums
from localpower.worker.tasks import (
    Describe,
    GramTriangle,
    LeftVectors,
    PowerSteps,
    Prepare,
    Refine,
    TopVectors,
)

D = 12
BASIS = orth(np.random.default_rng(5).standard_normal((D, 2)))
PREPARE = Prepare(np.full(D, 3.0), 1.0, 0, 3, 2, False, 0.0)


def untouched(agent):
    """Nothing was computed on the rows: none was ever made a matrix."""
    return agent._matrix is None


def lines(agent, kind):
    return [entry for entry, _ in verified(agent.journal.path) if entry.kind == kind]


# One refusal for each line of a policy, each before rows are touched.

OPENING = {
    "name": ({"name": "other"}, {}, "is between north, south, west, without other"),
    "data": ({"data": ""}, {}, "does not name its rows (data): the site has to"),
    "data missing": ({"data": "gone.npy"}, {}, "its data cannot be read; its journal says why"),
    "columns": ({"columns": ("age",)}, {}, "its data cannot be read"),
    "drop": ({"drop": ("age",)}, {}, "its data cannot be read"),
    "label": ({"label": "age"}, {}, "its data cannot be read"),
    "secure_sum": ({}, {"secure": "off"}, "= 'required'): ask for a run with masks"),
    "secure_sum off": ({"secure_sum": "off"}, {}, "it does not use masks"),
    "min_rows": ({"min_rows": 5000}, {}, "(min_rows): have it lower that, or leave it out"),
    "min_sites": ({"min_sites": 4}, {}, "(min_sites = 4): ask more sites, or have it lower"),
    "privacy": (
        {"privacy": Private(1.0, 1e-6, 1.0)},
        {},
        "private runs only (privacy): ask for one",
    ),
    "no privacy": (
        {},
        {"privacy": (1.0, 1e-6, 1.0)},
        "no privacy budget (privacy): leave privacy= out",
    ),
    "one site alone": ({"min_sites": 1}, {"sites": ("north",)}, "one site alone hides nothing"),
    "recovery of noise": (
        {},
        {"privacy": (1.0, 1e-6, 1.0), "secure": "recovery"},
        "needs the noise of every site",
    ),
    "peers": ({"peers": {}}, {}, "does not know south, west: add their keys"),
}


@pytest.mark.parametrize("line", OPENING)
def test_a_run_that_a_line_of_the_policy_forbids_is_refused(tmp_path, line):
    how, asked, text = OPENING[line]
    agents = sites(tmp_path, thirds())
    north = again(agents[0], **how)
    run = OpenRun("ab" * 16, "1", NAMES, *{"secure": "strict", "bits": 60, "about": ""}.values())
    reason = refusal(north.answer(to_frame(replace(run, **asked))))
    assert text in reason
    assert str(tmp_path) not in reason
    assert untouched(north)
    assert not (tmp_path / "north" / "runs").exists()
    assert lines(north, "refused")[-1].text.startswith(reason)


READING = {
    "key": ({"data": "two.npz", "key": "third"}, "holds first, second"),
    "zero_based": ({"data": "rows.svm", "zero_based": False}, "an index 0 occurs"),
    "delimiter": ({"data": "rows.csv", "delimiter": ";"}, "no numbers in column 0"),
}


@pytest.mark.parametrize("line", READING)
def test_data_that_are_not_as_a_line_of_the_policy_says_are_refused(tmp_path, line):
    how, why = READING[line]
    north = again(sites(tmp_path, thirds())[0], **how)
    table = rows(120, d=3)
    np.savez(tmp_path / "north" / "two.npz", first=table, second=table)
    text = "\n".join("1 " + " ".join(f"{j}:{x}" for j, x in enumerate(row)) for row in table)
    (tmp_path / "north" / "rows.svm").write_text(text)
    np.savetxt(tmp_path / "north" / "rows.csv", table, delimiter=",")
    run = OpenRun("ab" * 16, "1", NAMES, "strict", 60)
    assert "its data cannot be read" in refusal(north.answer(to_frame(run)))
    assert why in lines(north, "refused")[-1].text


NARROW = PowerSteps(BASIS, 1)
ASKING = {
    "tasks": ({"tasks": ("Sums",)}, NARROW, "allow PowerSteps (tasks): take another method"),
    "max_rounds": ({"max_rounds": 1}, NARROW, "(max_rounds): take a method of fewer rounds, or"),
    "max_columns": ({"max_columns": 2}, NARROW, "allows 2 columns in all runs"),
    "max_columns of a Gram matrix": (
        {"max_columns": D},
        GramTriangle(),
        "asks for 12; only the site can raise",
    ),
    "10 rows for each column": ({"min_rows": 1}, PowerSteps(np.eye(D), 1), "12 columns at once"),
}


@pytest.mark.parametrize("line", ASKING)
def test_a_question_that_a_line_of_the_policy_forbids_is_refused(tmp_path, line):
    how, task, text = ASKING[line]
    few = [rows(110, seed=i) for i in range(3)] if line.startswith("10") else thirds()
    agents = sites(tmp_path, few, **how)
    run = begun(agents)
    first = said(agents[0].answer(ask(run, 1, Sums())))
    assert isinstance(first, Answer)
    agents[0] = again(agents[0])
    reply = agents[0].answer(ask(run, 2, task))
    assert text in refusal(reply)
    assert untouched(agents[0])


def test_messages_beyond_the_largest_are_refused_in_and_out(tmp_path):
    agents = sites(tmp_path, [rows(6000, d=150, seed=i) for i in range(3)], max_bytes=1 << 16)
    run = begun(agents)
    large = PowerSteps(np.zeros((150, 100)), 1)
    assert refusal(agents[0].answer(ask(run, 1, large))) == "a message that cannot be taken in"
    assert "bytes at most (max_bytes): take a smaller rank" in refusal(
        agents[0].answer(ask(run, 1, GramTriangle()))
    )
    assert untouched(agents[0])


def test_columns_are_charged_over_all_runs_and_restarts_before_a_reply_leaves(tmp_path):
    agents = sites(tmp_path, thirds(), max_columns=7)
    run = begun(agents)
    assert isinstance(said(agents[0].answer(ask(run, 1, Sums()))), Answer)  # 1
    assert isinstance(said(agents[0].answer(ask(run, 2, NARROW))), Answer)  # 3
    assert agents[0].journal.columns == 3
    agents[0] = again(agents[0])
    assert agents[0].journal.columns == 3
    agents[0].answer(to_frame(CloseRun(run, "{}")))
    run = begun(agents)
    assert isinstance(said(agents[0].answer(ask(run, 1, SmallGram(BASIS)))), Answer)  # 5
    probed = PowerSteps(BASIS, 1, probes=np.ones((D, 1)))
    assert "5 were answered, and this asks for 3" in refusal(agents[0].answer(ask(run, 2, probed)))
    assert isinstance(said(agents[0].answer(ask(run, 2, NARROW))), Answer)  # 7
    assert refusal(agents[0].answer(ask(run, 3, Sums())))
    assert agents[0].journal.columns == 7


def test_a_repeated_question_is_charged_once(tmp_path):
    agents = sites(tmp_path, thirds())
    frame = ask(begun(agents), 1, NARROW)
    first = agents[0].answer(frame)
    assert agents[0].answer(frame) == first
    assert (agents[0].journal.columns, len(lines(agents[0], "answered"))) == (2, 1)


COSTS = [
    (Sums(), 1),
    (Spread(np.zeros(D)), 2),
    (PREPARE, 0),
    (NARROW, 2),
    (PowerSteps(BASIS, 3, "procrustes", send_first=True, probes=np.ones((D, 3))), 7),
    (SmallGram(BASIS), 2),
    (GramTriangle(), D),
    (Refine(np.ones((D, 1)), BASIS, BASIS, 1, 900, probes=np.ones((D, 2))), 6),
]


@pytest.mark.parametrize(("task", "cost"), COSTS, ids=lambda each: type(each).__name__)
def test_what_a_question_costs(tmp_path, task, cost):
    agents = sites(tmp_path, thirds())
    assert isinstance(said(agents[0].answer(ask(begun(agents), 1, task))), Answer)
    assert agents[0].journal.columns == cost


def test_without_masks_policy_and_coordinator_must_agree_and_few_columns_are_told(tmp_path):
    agents = sites(tmp_path, thirds(), secure_sum="optional", tasks=("PowerSteps", "TopVectors"))
    run = begun(agents, secure="off")
    first = said(agents[0].answer(ask(run, 1, NARROW)))
    assert isinstance(first.reply, Product)
    part = thirds()[0]
    np.testing.assert_allclose(first.reply.product, part.T @ (part @ BASIS), rtol=1e-12)
    assert first.words.size == 0
    agents[0] = again(agents[0])
    more = PowerSteps(BASIS, 1, send_first=True)
    reason = refusal(agents[0].answer(ask(run, 2, more)))  # 2 + 4 of 12
    assert "half of its rows or columns: ask for a run with masks" in reason
    assert untouched(agents[0])
    assert isinstance(said(agents[0].answer(ask(run, 2, NARROW))), Answer)
    assert refusal(agents[0].answer(ask(run, 3, TopVectors(3))))


def test_without_masks_few_rows_count_as_few_columns_do(tmp_path):
    parts = [rows(24, d=40, seed=i) for i in range(3)]
    agents = sites(tmp_path, parts, secure_sum="off", min_rows=1)
    run = begun(agents, secure="off")
    two = PowerSteps(np.eye(40)[:, :2].copy(), 1)
    for number in range(1, 6):
        assert isinstance(said(agents[0].answer(ask(run, number, two))), Answer)
    assert "half of its rows or columns" in refusal(agents[0].answer(ask(run, 6, two)))


def test_columns_that_left_masked_are_not_counted_as_plain_ones(tmp_path):
    agents = sites(tmp_path, thirds(), secure_sum="optional")
    for secure in ("strict", "off"):
        run = begun(agents, secure=secure)
        for number in (1, 2):
            assert isinstance(said(agents[0].answer(ask(run, number, NARROW))), Answer)
    assert (agents[0].journal.columns, agents[0].journal.plain_columns) == (8, 4)


def test_as_many_rows_as_the_policy_asks_for_are_enough(tmp_path):
    agents = sites(tmp_path, thirds(), min_rows=150)
    assert min(len(part) for part in thirds()) == 150
    begun(agents)


def test_a_checksum_of_rows_is_not_told(tmp_path):
    agents = sites(tmp_path, thirds(), secure_sum="off", tasks=("Describe",))
    run = begun(agents, secure="off")
    assert "'checksum'" in refusal(agents[0].answer(ask(run, 1, Describe(False, True))))
    assert isinstance(said(agents[0].answer(ask(run, 1, Describe(False)))), Answer)


def test_nobody_can_ask_for_rows(tmp_path):
    agents = sites(tmp_path, thirds(), secure_sum="off")
    run = begun(agents, secure="off")
    task = LeftVectors(BASIS, np.eye(2))
    assert "does not allow LeftVectors" in refusal(agents[0].answer(ask(run, 1, task)))


def test_what_is_no_sum_is_refused_where_replies_are_masked(tmp_path):
    agents = sites(tmp_path, thirds(), tasks=("PowerSteps", "TopVectors"))
    run = begun(agents)
    for task in (PowerSteps(BASIS, 2, send_basis=True), TopVectors(2)):
        assert "but replies are masked: take another method" in refusal(
            agents[0].answer(ask(run, 1, task))
        )
    assert untouched(agents[0])


# A site that lost its file, or has another one.


def test_data_that_changed_in_mid_run_are_refused_and_those_that_vanished(tmp_path):
    agents = sites(tmp_path, thirds())
    frame = ask(begun(agents), 1, NARROW)
    assert isinstance(said(agents[0].answer(frame)), Answer)
    path = tmp_path / "north" / "rows.npy"
    np.save(path, rows(300, seed=9))
    assert "have changed since the run was opened" in refusal(agents[0].answer(frame))
    path.unlink()
    assert "its data cannot be read" in refusal(agents[0].answer(frame))


def test_other_numbers_never_leave_under_the_same_mask(tmp_path):
    agents = sites(tmp_path, thirds())
    frame = ask(begun(agents), 1, NARROW)
    assert isinstance(said(agents[0].answer(frame)), Answer)
    path = tmp_path / "north" / "rows.npy"
    before = path.stat()
    np.save(path, rows(300, seed=9))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # looks the same from outside
    north = again(agents[0])
    assert "no longer what they were" in refusal(north.answer(frame))


def test_a_new_run_is_on_the_rows_as_they_are_then(tmp_path):
    agents = sites(tmp_path, thirds(), secure_sum="off")
    run = begun(agents, secure="off")
    prepare = ask(run, 1, PREPARE)
    assert isinstance(said(agents[0].answer(prepare)), Answer)
    shifted = said(agents[0].answer(ask(run, 2, NARROW, prepared=digest_of(prepare))))
    part = thirds()[0] - 3.0
    np.testing.assert_allclose(shifted.reply.product, part.T @ (part @ BASIS), rtol=1e-9)
    other = rows(300, seed=9)
    np.save(tmp_path / "north" / "rows.npy", other)
    plain = said(agents[0].answer(ask(begun(agents, secure="off"), 1, NARROW)))
    np.testing.assert_allclose(plain.reply.product, other.T @ (other @ BASIS), rtol=1e-12)


def test_a_question_that_failed_by_chance_is_answered_later_and_charged_once(tmp_path, monkeypatch):
    agents = sites(tmp_path, thirds())
    frame = ask(begun(agents), 1, NARROW)

    def fails(task, matrix):
        raise MemoryError

    with monkeypatch.context() as full:
        full.setattr(PowerSteps, "__call__", fails)
        assert isinstance(said(agents[0].answer(frame)), Failure)
    reply = agents[0].answer(frame)
    assert isinstance(said(reply), Answer)
    assert agents[0].answer(frame) == reply
    assert agents[0].journal.columns == 2
    assert [len(lines(agents[0], kind)) for kind in ("failed", "answered")] == [1, 1]


def test_errors_tell_nothing_of_rows_values_or_files(tmp_path):
    parts = thirds()
    parts[0][7, 3] = np.nan
    parts[1][5, 2] = 1e200
    agents = sites(tmp_path, parts)
    run = begun(agents)
    for agent, word in zip(agents, ("rows that cannot be used", "too large"), strict=False):
        found = said(agent.answer(ask(run, 1, Sums())))
        assert isinstance(found, Failure)
        assert isinstance(found.error(), DataError)
        assert word in found.text
        assert found.text.startswith(f"site {agent.name} has")
        for secret in (str(tmp_path), "rows.npy", "row 7", "1e+200", "Traceback"):
            assert secret not in found.text
    assert "row 7, column 3" in lines(agents[0], "failed")[0].text


def squares(exponent):
    """A preparation after which entries are finite, and two local steps fail."""
    return Prepare(None, np.ones(D), np.array([exponent] + [0] * (D - 1)))


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("too large for the words", 1000),
        ("too large for the words", 991),
        ("too large for local steps", 1000),
    ],
)
def test_numbers_too_large_for_a_question_end_the_run_and_cost_a_tenth_of_all(tmp_path, kind, most):
    """How large they are would else be found out, question by question and run by run."""
    agents = sites(tmp_path, thirds(), max_columns=most)
    told = 0
    for _ in range(20):
        run = begun(agents)
        question = ask(run, 1, NARROW, exponent=-9)
        if kind == "too large for local steps":
            prepare = ask(run, 1, squares(-1023))
            assert isinstance(said(agents[0].answer(prepare)), Answer)
            twice = PowerSteps(BASIS, 2)
            question = ask(run, 2, twice, exponent=2200, prepared=digest_of(prepare))
        if not isinstance(said(agents[0].answer(question)), Failure):
            break
        told += 1
        assert agents[0].journal.columns == 100 * told
        assert "is over" in refusal(agents[0].answer(ask(run, 3, NARROW)))
        assert not [*(tmp_path / "north" / "runs").iterdir()]
    assert told == 10
    assert "max_columns" in refusal(agents[0].answer(question))


def test_lines_of_the_journal_stay_short_whatever_is_said(tmp_path):
    """A line that was not finished is looked for in the last bytes only."""
    agents = sites(tmp_path, thirds())
    agents[0].answer(to_frame(Refusal("a", "b", "\u1234" * 100_000, 10**4000)))
    frames_of_opening(agents, about="\U0001f600" * MOST_TEXT)
    refused, opening = verified(agents[0].policy.folder / "journal.jsonl")
    assert (len(refused[0].run), refused[0].round) == (64, 0)
    assert len(opening[0].text) == MOST_TEXT
    sizes = map(len, (agents[0].policy.folder / "journal.jsonl").read_bytes().splitlines())
    assert max(sizes) < LONGEST


# A coordinator that tells sites different things.


def summed(agents, run, frames):
    total = np.zeros(D * 2, np.uint64)
    for agent, frame in zip(agents, frames, strict=True):
        answer = said(agent.answer(frame))
        assert isinstance(answer, Answer), answer
        total += answer.words
    return total


def ring_sum(parts, exponent=20):
    step = 2.0 ** (exponent + 1 - 60)
    exact = sum(np.rint(part.T @ (part @ BASIS) / step) for part in parts)
    return exact.ravel(), step


def is_right(total, parts):
    exact, _step = ring_sum(parts)
    got = total.view(np.int64).astype(float)
    return np.abs(got - exact) <= 1e-6 * np.abs(exact).max()


def test_the_same_question_to_all_gives_the_sum(tmp_path):
    parts = thirds()
    agents = sites(tmp_path, parts)
    run = begun(agents)
    assert is_right(summed(agents, run, [ask(run, 1, NARROW)] * 3), parts).all()


OTHERS = {
    "question": lambda run: ask(run, 1, PowerSteps(BASIS[:, ::-1].copy(), 1)),
    "no question": lambda run: ask(run, 1, PowerSteps(np.zeros((D, 2)), 1)),
    "exponent": lambda run: ask(run, 1, NARROW, exponent=21),
    "round": lambda run: ask(run, 2, NARROW),
    "steps": lambda run: ask(run, 1, PowerSteps(BASIS, 2, "procrustes")),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_question_to_one_site_gives_noise(tmp_path, kind):
    parts = thirds()
    agents = sites(tmp_path, parts)
    run = begun(agents)
    total = summed(agents, run, [ask(run, 1, NARROW)] * 2 + [OTHERS[kind](run)])
    assert not is_right(total, parts).any()
    assert not is_right(total, parts[:2]).any()
    assert not is_right(total, parts[2:]).any()


def test_another_preparation_of_one_site_gives_noise_or_a_refusal(tmp_path):
    parts = thirds()
    agents = sites(tmp_path, parts)
    run = begun(agents)
    usual, other = ask(run, 1, PREPARE), ask(run, 1, replace(PREPARE, shift=np.zeros(D)))
    frames = [usual, usual, other]
    for agent, frame in zip(agents, frames, strict=True):
        assert isinstance(said(agent.answer(frame)), Answer)
    one = ask(run, 2, NARROW, prepared=digest_of(usual))
    assert "prepared with other options" in refusal(agents[2].answer(one))
    each = [ask(run, 2, NARROW, prepared=digest_of(frame)) for frame in frames]
    shifted = [part - 3.0 for part in parts]
    total = summed(agents, run, each)
    assert not is_right(total, [*shifted[:2], parts[2]]).any()


def test_bits_other_than_those_of_the_run_are_refused(tmp_path):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    assert "number of bits" in refusal(agents[0].answer(ask(run, 1, NARROW, bits=20)))


def test_another_question_in_the_same_round_is_refused(tmp_path):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    frame = ask(run, 1, NARROW)
    first = agents[0].answer(frame)
    other = PowerSteps(BASIS[:, ::-1].copy(), 1)
    assert "another question" in refusal(agents[0].answer(ask(run, 1, other)))
    north = again(agents[0])
    assert "another question" in refusal(north.answer(ask(run, 1, other)))
    assert north.answer(frame) == first


def test_an_earlier_round_that_was_left_out_is_refused(tmp_path):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    assert isinstance(said(agents[0].answer(ask(run, 5, NARROW))), Answer)
    assert "a later round" in refusal(agents[0].answer(ask(run, 4, NARROW)))


def test_a_question_from_before_another_preparation_is_not_answered_again(tmp_path):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    old = ask(run, 1, NARROW)
    agents[0].answer(old)
    agents[0].answer(ask(run, 2, PREPARE))
    assert "prepared with other options" in refusal(agents[0].answer(old))


def test_questions_of_a_run_that_is_over_or_was_never_begun_are_refused(tmp_path):
    agents = sites(tmp_path, thirds())
    run, first, roster = frames_of_opening(agents)
    agents[0].answer(roster)
    frame = ask(run, 1, NARROW)
    assert isinstance(said(agents[0].answer(frame)), Answer)
    assert isinstance(said(agents[0].answer(to_frame(CloseRun(run, "{}")))), Done)
    assert isinstance(said(agents[0].answer(to_frame(CloseRun(run, "{}")))), Done)
    replays = (first, roster, frame, ask("cd" * 16, 1, NARROW))
    assert all("over" in refusal(agents[0].answer(each)) for each in replays)
    north = again(agents[0])
    assert all("over" in refusal(north.answer(each)) for each in replays)
    assert "not opened here" in refusal(north.answer(to_frame(CloseRun("cd" * 16, "{}"))))


def test_a_question_before_the_roster_is_refused(tmp_path):
    agents = sites(tmp_path, thirds())
    run, _first, _roster = frames_of_opening(agents)
    assert "no roster yet" in refusal(agents[0].answer(ask(run, 1, NARROW)))


def test_a_new_run_ends_the_one_before(tmp_path):
    agents = sites(tmp_path, thirds())
    first, second = begun(agents), begun(agents)
    assert "over" in refusal(agents[0].answer(ask(first, 1, NARROW)))
    assert isinstance(said(agents[0].answer(ask(second, 1, NARROW))), Answer)
    assert len([*(tmp_path / "north" / "runs").iterdir()]) == 1


def test_a_run_that_is_refused_leaves_the_open_one_alone(tmp_path):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    other = OpenRun("ab" * 16, "1", (*NAMES, "stranger"), "strict", 60)
    assert refusal(agents[0].answer(to_frame(other)))
    assert isinstance(said(agents[0].answer(ask(run, 1, NARROW))), Answer)


def test_a_run_cannot_be_opened_in_two_ways(tmp_path):
    agents = sites(tmp_path, thirds())
    run, first, _ = frames_of_opening(agents)
    offer = agents[0].answer(first)
    assert agents[0].answer(first) == offer
    other = to_frame(OpenRun(run, "1", NAMES, "strict", 60, "something else"))
    assert "opened with other options" in refusal(agents[0].answer(other))


# The roster.


def changed_roster(agents, change):
    run, _first, roster = frames_of_opening(agents)
    offers = list(said(roster).offers)
    return to_frame(Roster(run, tuple(change(offers))))


def impostor(offers):
    """An offer of somebody with the name of south, who signs well, with a key of its own."""
    keys = SiteKeys.generate()
    none = np.empty(0, np.uint8)
    mine = replace(offers[1], identity=as_bytes(keys.public), signature=none)
    return replace(mine, signature=as_bytes(keys.sign(signed_part(mine))))


ROSTERS = {
    "one less": (lambda o: o[:2], "not of the sites"),
    "another order": (lambda o: o[::-1], "not of the sites"),
    "twice": (lambda o: [o[0], o[1], o[1]], "not of the sites"),
    "own rows": (lambda o: [replace(o[0], rows=7), *o[1:]], "its own offer was changed"),
    "own key": (lambda o: [replace(o[0], key=o[1].key), *o[1:]], "its own offer was changed"),
    "key of another": (
        lambda o: [o[0], replace(o[1], key=as_bytes(b"\x09" * 32)), o[2]],
        "south is not signed by it",
    ),
    "rows of another": (lambda o: [o[0], replace(o[1], rows=1), o[2]], "south is not signed by it"),
    "no signature": (
        lambda o: [o[0], replace(o[1], signature=np.empty(0, np.uint8)), o[2]],
        "south is not signed by it",
    ),
    "impostor": (lambda o: [o[0], impostor(o), o[2]], "south has another key than"),
}


@pytest.mark.parametrize("kind", ROSTERS)
def test_a_roster_that_was_changed_is_refused(tmp_path, kind):
    agents = sites(tmp_path, thirds())
    change, text = ROSTERS[kind]
    assert text in refusal(agents[0].answer(changed_roster(agents, change)))
    assert agents[0]._run.roster is None


def test_two_sites_with_one_key_do_not_join(tmp_path):
    agents = sites(tmp_path, thirds())

    def twins(offers):
        bare = replace(offers[2], key=offers[1].key)
        signature = agents[2].keys.sign(signed_part(bare))
        return [*offers[:2], replace(bare, signature=as_bytes(signature))]

    assert "the same key" in refusal(agents[0].answer(changed_roster(agents, twins)))


def test_masks_depend_on_the_roster_and_on_how_rows_were_prepared(tmp_path):
    """Also where a coordinator says the same in its questions."""
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    question = "ab" * 32
    first = agents[0]._run.info(2, question)
    agents[0].answer(ask(run, 1, PREPARE))
    second = agents[0]._run.info(2, question)
    other = SiteRun(tmp_path, replace(agents[0]._run.kept, roster=agents[0]._run.kept.offer))
    assert len({first, second, other.info(2, question)}) == 3


def test_sites_that_were_asked_in_different_ways_do_not_join(tmp_path):
    agents = sites(tmp_path, thirds())
    run = "ab" * 16
    offers = [
        said(agent.answer(to_frame(OpenRun(run, "1", NAMES, "strict", 60, about))))
        for agent, about in zip(agents, ("a", "a", "b"), strict=True)
    ]
    roster = to_frame(Roster(run, tuple(offers)))
    assert "west was asked for another run" in refusal(agents[0].answer(roster))


def test_an_offer_of_another_run_does_not_join(tmp_path):
    agents = sites(tmp_path, thirds())
    _, _, before = frames_of_opening(agents)
    change = lambda o: [o[0], said(before).offers[1], o[2]]  # noqa: E731
    assert "south was asked for another run" in refusal(
        agents[0].answer(changed_roster(agents, change))
    )


def test_a_second_roster_is_refused_and_the_same_is_done(tmp_path):
    agents = sites(tmp_path, thirds())
    run, _first, roster = frames_of_opening(agents)
    assert isinstance(said(agents[0].answer(roster)), Done)
    assert isinstance(said(agents[0].answer(roster)), Done)
    other = to_frame(Roster(run, said(roster).offers[:2]))
    assert "another roster already" in refusal(agents[0].answer(other))


def test_other_columns_do_not_join(tmp_path):
    agents = sites(tmp_path, [rows(200), rows(200), rows(200, d=11)])
    _, _, roster = frames_of_opening(agents)
    assert "west has other columns" in refusal(agents[0].answer(roster))


def test_names_of_columns_must_agree_where_there_are_any(tmp_path):
    keys = {name: SiteKeys.generate() for name in NAMES}
    heads = ["a,b,c", "a,b,d"]
    agents = []
    for name, head in zip(NAMES, heads, strict=False):
        (tmp_path / name).mkdir()
        table = "\n".join([head, *(",".join(map(str, row)) for row in rows(120, d=3))])
        (tmp_path / f"{name}.csv").write_text(table)
        (tmp_path / name).rmdir()
        path = str(tmp_path / f"{name}.csv")
        agents.append(site(tmp_path / name, rows(1), name, keys, data=path))
    agents.append(site(tmp_path / "west", rows(120, d=3), "west", keys))
    _, _, roster = frames_of_opening(agents)
    assert said(roster).offers[0].names is None
    assert "south has other columns" in refusal(agents[0].answer(roster))
    assert isinstance(said(agents[2].answer(roster)), Done)  # it has no names to compare


# The same again, also by a new process.


def questions(run):
    prepare = ask(run, 3, PREPARE)
    how = {"prepared": digest_of(prepare)}
    return [
        ask(run, 1, Sums()),
        ask(run, 2, Spread(np.full(D, 3.0))),
        prepare,
        ask(run, 4, NARROW, **how),
        ask(run, 5, Refine(BASIS, BASIS, BASIS, 1, 900), **how),
        ask(run, 6, SmallGram(BASIS), **how),
    ]


def test_a_site_started_again_in_mid_run_goes_on_with_the_same_bytes(tmp_path):
    agents = sites(tmp_path, thirds())
    run, first, roster = frames_of_opening(agents)
    offer = agents[0].answer(first)
    north = again(agents[0])
    assert north.answer(first) == offer
    north.answer(roster)
    for frame in questions(run):
        reply = north.answer(frame)
        assert isinstance(said(reply), Answer)
        assert north.answer(frame) == reply
        north = again(north)
        assert isinstance(said(north.answer(roster)), Done)
        assert north.answer(frame) == reply
    assert north.journal.verify() == len(questions(run)) + 2


@pytest.mark.parametrize("secure", ["strict", "recovery"])
def test_no_stream_is_ever_used_for_two_messages(tmp_path, monkeypatch, secure):
    """Over rounds, repeats, restarts and runs: a key belongs to one pair of sites and question."""
    used = {}
    real = masks.masked

    def watched(words, added, taken):
        for key in (*added, *taken):
            used.setdefault(key, set()).add(words.tobytes())
        return real(words, added, taken)

    monkeypatch.setattr(masks, "masked", watched)
    agents, runs = sites(tmp_path, thirds()), 2
    for _ in range(runs):
        run, _first, roster = frames_of_opening(agents, secure=secure)
        for agent in agents:
            agent.answer(roster)
        again_later = ask(run, 9, NARROW, prepared=digest_of(questions(run)[2]))
        for frame in (*questions(run), again_later):
            for number, agent in enumerate(agents):
                agent.answer(frame)
                agents[number] = again(agent)
                agents[number].answer(frame)
    count = Counter(len(messages) for messages in used.values())
    asked = runs * 6  # questions that are masked
    own = {1: 3 * asked} if secure == "recovery" else {}
    assert count == {2: 3 * asked} | own  # a pair has the messages of its two sites


def test_secrets_are_kept_for_the_owner_and_removed_with_the_run(tmp_path):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    (path,) = (tmp_path / "north" / "runs").iterdir()
    assert path.name == f"{run}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(agents[0].journal.path.stat().st_mode) == 0o600
    agents[0].answer(to_frame(CloseRun(run, json.dumps({"ended": "well"}))))
    assert not path.exists()
    assert json.loads(lines(agents[0], "closed")[0].text) == {"ended": "well"}


def test_secrets_of_a_stale_or_damaged_run_are_removed(tmp_path):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    path = tmp_path / "north" / "runs" / f"{run}.json"
    os.utime(path, (0, 0))
    north = again(agents[0])
    assert not path.exists()
    assert "over" in refusal(north.answer(ask(run, 1, NARROW)))
    other = tmp_path / "south" / "runs" / f"{run}.json"
    other.write_text("{")
    south = again(agents[1])
    assert not other.exists()
    assert "over" in refusal(south.answer(ask(run, 1, NARROW)))


def test_a_run_that_was_closed_stays_so_where_its_secrets_were_left(tmp_path):
    """As by a site that was killed between the line of its journal and the removal."""
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    path = tmp_path / "north" / "runs" / f"{run}.json"
    kept = path.read_bytes()
    agents[0].answer(to_frame(CloseRun(run, "{}")))
    path.write_bytes(kept)
    north = again(agents[0])
    assert not path.exists()
    assert "over" in refusal(north.answer(ask(run, 1, NARROW)))


def test_secrets_that_a_killed_site_had_half_written_are_removed(tmp_path):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    path = tmp_path / "north" / "runs" / f"{run}.json"
    path.with_name(f"{path.name}.0a1b2c3d.part").write_bytes(path.read_bytes()[:90])
    north = again(agents[0])
    assert [*path.parent.iterdir()] == [path]
    assert isinstance(said(north.answer(ask(run, 1, NARROW))), Answer)


def test_nothing_leaves_that_the_journal_cannot_take(tmp_path, monkeypatch):
    agents = sites(tmp_path, thirds())
    run = begun(agents)
    before = agents[0].journal.verify()
    with monkeypatch.context() as full:
        full.setattr(os, "fdatasync", lambda file: (_ for _ in ()).throw(OSError("no space left")))
        assert "journal cannot be written" in refusal(agents[0].answer(ask(run, 1, NARROW)))
    assert agents[0].journal.columns == 0
    assert isinstance(said(agents[0].answer(ask(run, 1, NARROW))), Answer)
    assert agents[0].journal.verify() == before + 2  # the refusal, too, and no half line


def test_all_that_left_is_in_the_journal(tmp_path):
    agents = sites(tmp_path, thirds())
    run, _first, roster = frames_of_opening(agents)
    agents[0].answer(roster)
    replies = [agents[0].answer(frame) for frame in questions(run)]
    entries = [entry for entry, _ in verified(agents[0].journal.path)]
    assert [entry.kind for entry in entries] == ["opened", "joined"] + ["answered"] * 6
    assert [entry.answer for entry in entries[2:]] == [digest_of(reply) for reply in replies]
    assert [entry.question for entry in entries[2:]] == [digest_of(f) for f in questions(run)]
    assert Counter(entry.masked for entry in entries[2:]) == {True: 6}
    assert entries[5].words == 2 * D
    assert "a test; strict; sites north, south, west" in entries[0].text


def test_a_private_run_does_not_tell_the_number_of_rows():
    offer = Offer("north", "ab" * 16, "cd" * 32, as_bytes(bytes(32)), as_bytes(bytes(32)), 0, 3,
                  "float64", 0, "")  # fmt: skip
    assert said(to_frame(offer)).rows == 0


def test_an_agent_is_made_of_a_policy_file(tmp_path):
    from localpower.federation.agent import SiteAgent

    (tmp_path / "keys").mkdir()
    SiteKeys.generate().write(tmp_path / "keys")
    (tmp_path / "policy.toml").write_text('name = "north"')
    agent = SiteAgent.open(tmp_path / "policy.toml")
    assert agent.name == "north"
    assert isinstance(agent.journal, Journal)
    assert isinstance(said(agent.answer(b"")), Refusal)
    agent.close()
