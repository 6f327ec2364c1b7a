"""When a run is done, and what it may then claim: every reason, from certificates made by hand."""

import warnings
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import EPS, with_spectrum
from scipy import sparse
from scipy.sparse.linalg import svds

import localpower as lp
from localpower.checkpoint import CheckpointWriter, Snapshot
from localpower.core.certificate import ROUNDING, Certificate, Known
from localpower.core.ledger import Record
from localpower.data.source import open_source
from localpower.engines.inline import Inline
from localpower.engines.ledgered import Ledgered
from localpower.iteration import ROUNDS, Relay, answer_of, doubt_of, follow, relay_of
from localpower.methods import REGISTRY, Auto, Choice, Method, Start, costs, method_from
from localpower.methods.exact import FactoredState
from localpower.methods.factors import ZERO, is_graded
from localpower.methods.local_ritz import start_of
from localpower.methods.state import MOST_DRAWS, State
from localpower.options import certainty_of
from localpower.planning import problem_of
from localpower.progress import Progress
from localpower.run import Run
from localpower.show import summary
from localpower.stopping import (
    NEAR,
    REASONS,
    ROUGH,
    STALL,
    Outcome,
    StoppingRule,
    conclude,
    good_enough,
    on_course,
    returns_certified_basis,
    stalled,
)

TOL, SURE = 1e-6, 1e-4
STATE = State(np.eye(4, 2), round=1, steps=1)
FAR = Certificate(0.1, np.array([0.1]), True, 0.0, 0.5, False)
CLOSE = replace(FAR, angle=TOL)
TIE = replace(FAR, angle=1.0, gap=TOL, residuals=np.array([0.0, TOL]))


def rule(**other):
    options = {"max_rounds": 9, "max_bytes": 100.0, "max_seconds": 10.0} | other
    return StoppingRule(2, TOL, SURE, 1.0, EPS, **options)


def verdict(found, rule=rule(), state=STATE, history=(), spent=0.0, seconds=0.0):  # noqa: B008
    return rule.verdict(state, found, list(history), spent, seconds)


def records(*residuals, steps=4):
    return [Record(n, steps, 1, 1, 0.1, residual=x) for n, x in enumerate(residuals, start=1)]


def test_an_angle_within_the_tolerance_is_enough_if_it_is_sure():
    assert verdict(CLOSE) == "angle"
    assert verdict(replace(CLOSE, angle=1.01 * TOL)) is None
    probable = replace(CLOSE, proven=False, p=SURE)
    assert verdict(probable) == "angle"
    assert verdict(replace(probable, p=1.01 * SURE), rule(learns=True)) is None
    assert verdict(replace(CLOSE, gap=0.0, residuals=np.ones(1))) == "angle"
    assert verdict(replace(TIE, angle=TOL)) == "angle"


def test_a_tie_is_enough_if_residuals_are_small_and_it_is_sure():
    assert verdict(TIE) == "residual"
    assert verdict(replace(TIE, gap=1.01 * TOL)) is None
    assert verdict(replace(TIE, residuals=np.array([0.0, 1.01 * TOL]))) is None
    assert verdict(TIE, rule(ties=False)) is None
    assert verdict(replace(TIE, proven=False, p=1.0)) == "unsure"
    assert verdict(replace(TIE, proven=False, p=SURE)) == "residual"


def test_what_is_not_sure_goes_on_as_long_as_probes_may_tell_more():
    doubtful = replace(CLOSE, proven=False, p=0.5)
    assert verdict(doubtful, rule(learns=False)) == "unsure"
    learning = rule(learns=True)
    assert verdict(doubtful, learning, replace(STATE, draws=MOST_DRAWS)) is None
    assert verdict(doubtful, learning, replace(STATE, draws=MOST_DRAWS + 1)) == "unsure"
    assert verdict(doubtful, learning, spent=101.0) == "budget"
    assert verdict(CLOSE, learning, replace(STATE, draws=MOST_DRAWS + 1)) == "angle"


def test_only_a_proof_will_do_where_one_is_asked_for():
    strict = replace(rule(learns=True), certainty=0.0)
    assert verdict(CLOSE, strict) == "angle"
    assert verdict(replace(CLOSE, proven=False, p=1e-30), strict) is None


def test_residuals_as_small_as_rounding_end_a_run_whose_gap_is_seen():
    assert verdict(replace(FAR, rounded=True)) == "rounding"
    assert verdict(replace(FAR, rounded=True, gap=TOL)) is None  # a tie may still come
    assert verdict(replace(FAR, rounded=True, gap=1.01 * TOL)) == "rounding"
    assert verdict(replace(FAR, rounded=False)) is None
    assert verdict(replace(CLOSE, rounded=True)) == "angle"


def test_local_steps_without_progress_end_a_run():
    flat = records(*[0.1] * STALL)
    assert verdict(FAR, history=flat) == "stalled"
    assert verdict(CLOSE, history=flat) == "angle"
    assert verdict(replace(FAR, rounded=True), history=flat) == "rounding"
    assert verdict(FAR, history=records(*[0.1] * STALL, steps=1)) is None


def test_a_run_stalls_if_no_residual_of_some_rounds_is_a_tenth_smaller():
    assert stalled(records(*[0.1] * STALL))
    assert not stalled(records(*[0.1] * (STALL - 1)))
    assert not stalled(records(*[0.1] * (STALL - 1), 0.089))
    assert not stalled(records(0.1, 0.089, *[0.1] * (STALL - 2)))
    assert stalled(records(*[0.1] * (STALL - 1), 0.091))
    assert stalled(records(1.0, *[0.1] * STALL))  # what was before does not count
    assert not stalled(records(*[0.1] * (STALL - 1), None))
    assert not stalled(records(*[0.1] * STALL, steps=1))


def test_budgets_are_spent_when_more_was_moved_or_went_by():
    assert verdict(FAR, spent=100.0, seconds=10.0) is None
    assert verdict(FAR, spent=100.1) == "budget"
    assert verdict(FAR, seconds=10.1) == "budget"
    assert verdict(None, spent=100.1) == "budget"
    assert verdict(None) is None
    assert verdict(CLOSE, spent=100.1) == "angle"


def test_without_a_tolerance_no_certificate_ends_a_run():
    everything = replace(rule(), tol=0.0)
    for found in (replace(CLOSE, angle=0.0), replace(TIE, gap=0.0), replace(FAR, rounded=True)):
        assert verdict(found, everything) is None
    assert verdict(FAR, everything, history=records(*[0.1] * STALL)) is None


def test_a_rule_hands_on_what_it_knows():
    class Asked(State):
        def certificate(self, rank, known, tol, certainty):
            return rank, known, tol, certainty

    known = Known(4, 1.0, EPS, 0.25)
    assert rule(noise=0.25).certificate(Asked(np.eye(4, 2))) == (2, known, TOL, SURE)


def test_probes_are_drawn_where_they_may_tell_more():
    rng = np.random.default_rng(0)
    assert doubt_of(rule(learns=False), rng) is None
    doubt = doubt_of(rule(learns=True), rng)
    assert doubt.certainty == SURE
    assert doubt.seed != doubt_of(rule(learns=True), rng).seed
    assert rng.random() == np.random.default_rng(0).random()  # the start has its own numbers


# One method after another.


def leg(name, count, rounds=None, start=1):
    states = (State(np.eye(3, 1), round=start + n, steps=n) for n in range(count))
    return name, states, rounds


def test_a_relay_goes_on_counting_rounds_with_the_next_method():
    relay = Relay([leg("a", 2, 2), leg("b", 4, 2)], worth=7)
    seen = [(state.round, relay.method, relay.own, relay.late) for state in relay]
    assert seen == [
        *[(1, "a", 1, False), (2, "a", 2, True)],
        *[(3, "b", 1, False), (4, "b", 2, True), (5, "b", 3, True), (6, "b", 4, True)],
    ]
    assert relay.worth == 7
    relay = Relay([leg("a", 3, None)])
    assert [relay.late for _ in relay] == [False] * 3


def test_a_relay_skips_to_the_next_method_if_there_is_one():
    relay = Relay([leg("a", 5, 4), leg("b", 2, None), leg("c", 2, None)])
    seen = []
    for state in relay:
        seen.append((state.round, relay.method))
        if state.round in (2, 3):
            assert relay.skip()
        elif relay.method == "c":
            assert not relay.skip()
    assert seen == [(1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "c")]
    once = Relay([leg("a", 2, 2), leg("b", 2, 2), leg("c", 1, 1)])
    assert [(state.round, once.method) for state in once if state.round > 1 or once.skip()] == [
        (1, "a"),
        (2, "b"),
        (3, "b"),
        (4, "c"),
    ]
    alone = Relay([leg("a", 2, 1)])
    assert [state.round for state in alone if not alone.skip()] == [1, 2]


def test_a_relay_hands_on_states_as_they_are_until_the_method_changes():
    name, states, _ = leg("a", 2)
    states = list(states)
    assert list(Relay([(name, iter(states), 5)])) == states
    empty = Relay([leg("a", 0), leg("b", 1)])
    assert [state.round for state in empty] == [1]


def falling(*residuals):
    return [replace(RECORD, residual=residual) for residual in residuals]


RECORD = Record(1, 1, 0, 0, 0.0)
SEEN = replace(FAR, gap=0.1)  # of a value: residuals of 1e-4 are an angle of about 1e-3
EIGHT = falling(*0.5 ** np.arange(8.0))  # 14 rounds from 1e-4 at its pace, of which 7 are done


@pytest.mark.parametrize(
    ("history", "found", "tol", "worth", "stays"),
    [
        (EIGHT, SEEN, 1e-3, 6, True),  # 6.3 rounds more, where 8 were done
        (EIGHT, SEEN, 2e-4, 0, False),  # 8.6
        (EIGHT, SEEN, 2e-4, 9, True),
        (EIGHT, replace(SEEN, gap=0.02), 1e-3, 0, False),
        (EIGHT, replace(SEEN, gap=0.02), 1e-3, 9, True),
        (falling(*[1.0] * 4, *0.5 ** np.arange(8.0)), SEEN, 1e-3, 0, True),  # the latter half
        (falling(*0.5 ** np.arange(6.0), *[0.03] * 6), SEEN, 1e-3, 999, False),
        (falling(*2.0 ** -np.arange(6.0, 0, -1)), SEEN, 1e-3, 999, False),  # they grow
        (EIGHT[:5], SEEN, 1e-1, 999, False),  # too few to tell
        (EIGHT, None, 1e-3, 999, False),
        (EIGHT, SEEN, 0.0, 999, False),
        (falling(*[1.0] * 4, *[1e-4] * 4), SEEN, 1e-3, 0, True),  # evidence is missing
        (falling(*[1.0] * 4, *[1e-4] * 5), SEEN, 1e-3, 0, False),
        (falling(*[1.0] * 4, *[1e-4] * 5), SEEN, 1e-3, 10, True),
        (falling(*[1e-5] * 4, 1.0, 1.0, *[1e-4] * 3), SEEN, 1e-3, 0, True),  # since the last
    ],
)
def test_a_method_that_is_late_stays_if_it_soon_gets_there(history, found, tol, worth, stays):
    assert on_course(history, found, tol, worth) is stays


def test_what_is_late_is_followed_only_if_it_is_not_on_course():
    class Certified(State):
        def certificate(self, rank, known, tol, certainty):
            return replace(SEEN, residuals=np.array([pace ** float(self.round)]))

    class Earlier(State):
        def certificate(self, rank, known, tol, certainty):
            return replace(SEEN, residuals=np.array([1e3]))

    def run(worth, before=0):
        earlier = (Earlier(np.eye(4, 2), round=t + 1, steps=0) for t in range(before))
        states = (Certified(np.eye(4, 2), round=t + 1, steps=0) for t in range(20))
        one = State(np.eye(4, 2), round=1, steps=1)
        legs = [("before", earlier, None), ("a", states, 8), ("b", iter([one]), 8)]
        relay = Relay(legs, worth=worth)
        args = None, CheckpointWriter(None, {}), None, Progress.of(False)
        long = replace(rule(), max_rounds=99)
        return len(follow(relay, Ledgered(Inline()), long, *args).history) - 1

    pace = 0.3  # to 1e-7 in 14 rounds, and as many are waited for evidence
    assert run(0) == 20
    pace = 0.9
    assert run(0) == 8
    assert run(999) == 20
    pace = 0.999
    assert run(9999, before=10) == 18  # what was before is no part of its pace


def start(**options):
    return Start(1, 1, np.random.default_rng(0), **options)


def test_the_chosen_method_has_three_times_the_rounds_that_were_predicted():
    engine = Inline()
    engine.columns = 3
    dpi, tsqr = method_from("dpi"), method_from("tsqr")
    for predicted, patience in ((2, ROUNDS), (ROUNDS, 3 * ROUNDS)):
        relay = relay_of(Choice(dpi, "", predicted, (tsqr,)), engine, start())
        assert [(method, rounds) for method, _, rounds in relay._legs] == [
            (dpi, patience),
            (tsqr, patience),
        ]
    assert relay_of(Choice(dpi, "", 2, (tsqr,), 7), engine, start()).worth == 7


def test_a_method_that_follows_has_its_own_start_and_draws_of_other_numbers():
    given = []

    class Noted(Method):
        name = "noted"

        def states(self, engine, start):
            given.append(start)
            return iter(())

    doubt = doubt_of(rule(learns=True), np.random.default_rng(0))
    choice = Choice(Noted(), "", 1, (Noted(), Noted()))
    list(relay_of(choice, Inline(), start(state=STATE, doubt=doubt)))
    assert [each.state for each in given] == [STATE, None, None]
    assert len({id(each.rng) for each in given}) == 3
    numbers = [each.doubt.first + each.doubt.every * n for each in given for n in range(20)]
    assert sorted(numbers) == [*range(1, 61)]  # their shares of the chance to be misled add up to 1
    assert [each.doubt for each in given] == [
        replace(doubt, first=first, every=3) for first in (1, 2, 3)
    ]
    alone = Choice(Noted(), "", 1)
    list(relay_of(alone, Inline(), start(doubt=doubt)))
    assert given[-1].doubt == doubt
    list(relay_of(choice, Inline(), start()))
    assert given[-1].doubt is None


def chosen(rows, columns):
    source = open_source(np.ones((rows, columns)))
    return Auto().choose(problem_of(source, Inline(), 2, 2, 7, 1e-8, False, None))


def test_where_rows_are_few_all_their_eigenvectors_are_merged_in_the_end():
    for rows, columns in ((50, 2000), (1024, 1024), (1024, 1200)):
        choice = chosen(rows, columns)
        assert not choice.method.exact
        assert list(map(str, choice.others)) == [f"local_ritz:start=merged:{rows}"]
    for rows, columns in ((1025, 1200), (3000, 2000)):
        choice = chosen(rows, columns)
        assert not choice.method.exact
        assert list(map(str, choice.others)) == ["local_ritz", "tsqr"]
    exact = chosen(50, 50)
    assert list(map(str, (exact.method, *exact.others))) == ["gram", "tsqr"]
    assert list(map(str, chosen(50, 49).others)) == ["tsqr"]


MANY = {"sizes": (1500, 1500), "columns": 2000, "entries": 6_000_000}
SPARSE = {"sizes": (100_000, 100_000), "columns": 6000, "entries": 10_000_000}


def test_a_choice_tells_how_many_rounds_take_as_long_as_what_is_exact():
    problem = costs.Problem(
        **MANY, itemsize=8, rank=2, width=7, tol=1e-8, memory=1e11, center=False, scale=None,
        latency=1e-3, bandwidth=1e9, flops=1e10,
    )  # fmt: skip
    choice, rows = Auto().choose(problem), dict(costs.costs(problem))
    known = {str(method): cost for method, cost in rows.items()}
    taken, exact = known["block_lanczos"], known["tsqr"]
    assert choice.worth == int(exact.seconds / (taken.seconds / taken.rounds)) > ROUNDS
    assert Auto().choose(replace(problem, memory=5e7)).worth == 0  # nothing exact has room


def chosen_of(method=Auto(), **other):  # noqa: B008
    problem = costs.Problem(
        sizes=(25, 25), columns=50, entries=2500, itemsize=8, rank=2, width=7, tol=1e-8,
        memory=1e11, center=False, scale=None, latency=1e-3, bandwidth=1e9, flops=1e10,
    )  # fmt: skip
    choice = method.choose(replace(problem, **other))
    return str(choice.method), choice.rounds, list(map(str, choice.others))


def test_a_choice_is_followed_by_what_is_certified_and_then_by_what_is_exact():
    assert chosen_of() == ("gram", 1, ["tsqr"])
    assert chosen_of(**MANY) == ("block_lanczos", 9, ["local_ritz", "tsqr"])
    assert chosen_of(**MANY, latency=0.2) == ("local_ritz", 4, ["tsqr"])  # not by itself
    assert chosen_of(tol=1e-15) == ("tsqr", 1, [])  # there is nothing that is more exact


def test_what_has_no_room_does_not_follow_a_choice():
    assert chosen_of(**MANY, memory=5e7) == ("block_lanczos", 9, ["local_ritz"])
    assert chosen_of(**SPARSE) == ("block_lanczos", 10, ["local_ritz"])  # far more than the rows
    rounds, others = chosen_of(**SPARSE | {"entries": 50_000_000})[1:]
    assert (rounds, others) == (10, ["local_ritz", "tsqr"])
    assert chosen_of(entries=100) == ("gram", 1, ["tsqr"])  # what is little has room anyway


def test_options_of_a_choice_are_those_of_what_is_chosen_and_of_what_follows():
    narrow = Auto(width=9, wire="float32")
    assert chosen_of(narrow, **MANY) == ("local_ritz:start=merged:8,width=9,wire=float32", 9, [])
    few = chosen_of(narrow, sizes=(25, 25), columns=2000, entries=100_000)
    assert few[2] == ["local_ritz:start=merged:50,width=9,wire=float32"]
    alone = chosen_of(Auto(wire="float32"), columns=49)  # what can be rounded; rows are not few
    assert alone == ("local_ritz:wire=float32", 1, [])  # shards send all that they have
    huge = {"sizes": (1000, 1000), "columns": 3_000_000, "entries": 4000}
    assert chosen_of(**huge) == ("local_power", 0, [])
    assert chosen_of(narrow, **huge) == ("local_power:width=9,wire=float32", 0, [])


def test_a_choice_without_room_for_certificates_makes_none_unless_asked_for(monkeypatch):
    monkeypatch.setattr(costs, "LEAN", 0)
    few = np.zeros((20, 300))
    few[np.arange(12), 7 * np.arange(12)] = 0.8 ** np.arange(12)
    thin = sparse.csr_array(few)
    result = lp.svd(thin, 2, workers=2, rng=0)
    assert (result.run["method"], result.run["tol"]) == ("local_power", 0.0)
    assert (result.reason, len(result.history)) == ("max_rounds", ROUNDS)
    assert result.certificate is None
    asked = lp.svd(thin, 2, tol=1e-3, workers=2, rng=0)
    assert (asked.run["method"], asked.run["tol"], asked.reason) == ("local_power", 1e-3, "angle")
    assert asked.run["max_rounds"] > ROUNDS
    assert lp.svd(thin, 2, "dpi", tol=0.9, workers=2, rng=0).run["max_rounds"] == ROUNDS


@pytest.mark.parametrize(
    ("start", "read"),
    [("merged", ("merged", 0)), ("merged:200", ("merged", 200)), ("random", ("random", 0))],
)
def test_a_start_is_read_with_how_many_are_merged(start, read):
    assert start_of(start) == read


@pytest.mark.parametrize("start", ["random:5", "merged:", "merged:-1", "merged:x", "warm", 3, None])
def test_a_start_that_is_not_known_is_refused(start):
    with pytest.raises(ValueError, match="start="):
        start_of(start)


def test_what_rounding_allows_is_good_enough_if_it_is_sure():
    def good(reason="rounding", found=FAR, certainty=SURE):
        return good_enough(outcome(reason, found), certainty)

    near = replace(FAR, angle=ROUGH)
    assert good(found=near)
    assert not good(found=replace(near, angle=1.01 * ROUGH))
    assert not good("max_rounds", near)
    assert not good("unsure", near)
    assert not good(found=None)
    assert good(found=replace(near, proven=False, p=SURE))
    assert not good(found=replace(near, proven=False, p=1.01 * SURE))


# What is said at the end.


def outcome(reason, found=None):
    return Outcome(STATE, (Record(1, 1, 1, 1, 0.1, angle=0.5),), reason, found)


def concluded(method, reason, found=None, tol=TOL):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said = conclude(method_from(method), outcome(reason, found), tol)
    return said, [str(each.message) for each in caught]


def test_reasons_say_what_was_asked_for_and_what_more_rounds_would_not_change():
    assert {name for name, reason in REASONS.items() if reason.converged} == {
        "angle",
        "residual",
        "exact",
    }
    assert {name for name, reason in REASONS.items() if reason.final} == {
        "angle",
        "residual",
        "stalled",
        "unsure",
        "rounding",
    }


@pytest.mark.parametrize("reason", ["angle", "residual", "callback"])
def test_what_was_asked_for_is_concluded_without_a_warning(reason):
    assert concluded("local_ritz", reason, CLOSE) == (reason, [])


@pytest.mark.parametrize("reason", ["max_rounds", "budget", "stalled", "unsure", "rounding"])
def test_what_was_not_reached_is_warned_of_with_the_remedy(reason):
    said, warned = concluded("dpi", reason, FAR)
    assert said == reason
    (text,) = warned
    assert f"({reason})" in text
    other = ", or take method='local_ritz'" if reason == "max_rounds" else ""
    assert text.endswith(f"after 1 round; {REASONS[reason].remedy}{other}")
    assert "proven" in text
    assert "p = " not in text
    (doubted,) = concluded("dpi", reason, replace(FAR, proven=False, p=0.5))[1]
    assert "if nothing was missed (p = 0.5)" in doubted
    assert "proven" not in doubted
    (own,) = concluded("local_ritz", reason, FAR)[1]
    assert own.endswith(f"; {REASONS[reason].remedy}")
    assert concluded("dpi", reason, FAR, tol=0.0) == (reason, [])


def test_a_method_that_rounding_stopped_is_not_advised_and_what_is_advised_helps():
    X = with_spectrum(60, [4, 3, 2, 1]).astype(np.float32)
    with pytest.warns(lp.ConvergenceWarning, match="no smaller angle") as warned:
        found = lp.svd(X, 2, "tsqr", tol=1e-9, workers=2, rng=0)
    text = str(warned[0].message)
    assert "method=" not in text
    assert "give a larger tol, or dtype='float64' if rows are float32" in text
    assert "method=" not in summary.verdict(found).advice
    with lp.read(X, dtype="float64") as rows:
        assert lp.svd(rows, 2, "tsqr", tol=1e-9, workers=2, rng=0).reason == "exact"
    larger = 2 * found.certificate.angle
    assert lp.svd(X, 2, "tsqr", tol=larger, workers=2, rng=0).reason == "exact"


def test_exact_methods_are_exact_unless_rounding_keeps_them_from_the_tolerance():
    assert concluded("tsqr", "end", CLOSE) == ("exact", [])
    assert concluded("tsqr", "angle", CLOSE)[0] == "exact"
    assert concluded("tsqr", "end", FAR)[0] == "rounding"
    assert concluded("tsqr", "end", replace(TIE, gap=TOL)) == ("exact", [])
    assert concluded("tsqr", "end", replace(FAR, gap=TOL))[0] == "rounding"
    assert concluded("tsqr", "end", replace(FAR, gap=1.01 * TOL))[0] == "rounding"
    assert concluded("tsqr", "end", replace(FAR, angle=0.0)) == ("exact", [])  # by its angle alone
    assert concluded("tsqr", "end", replace(CLOSE, residuals=np.ones(1))) == ("exact", [])
    assert concluded("tsqr", "rounding", replace(TIE, gap=0.0)) == ("exact", [])
    assert concluded("tsqr", "end", FAR, tol=0.0) == ("exact", [])
    assert concluded("tsqr", "end", None) == ("exact", [])
    assert concluded("gram", "angle", CLOSE) == ("angle", [])
    assert concluded("gram", "residual", TIE) == ("residual", [])
    assert concluded("gram", "rounding", FAR)[0] == "rounding"
    lost = replace(TIE, gap=0.0, vanishing=True)
    assert concluded("gram", "rounding", lost)[0] == "rounding"
    assert concluded("gram", "end", lost) == ("exact", [])
    assert concluded("gram", "end", CLOSE) == ("exact", [])


@pytest.mark.parametrize("method", ["local_ritz", "block_krylov", "block_lanczos"])
def test_a_search_that_finds_nothing_new_is_unsure_or_rounded(method):
    assert concluded(method, "end", CLOSE)[0] == "unsure"
    assert concluded(method, "end", FAR)[0] == "unsure"
    assert concluded(method, "end", replace(FAR, rounded=True))[0] == "rounding"
    assert concluded(method, "end", None)[0] == "end"
    assert concluded(method, "end", FAR, tol=0.0) == ("end", [])
    assert concluded("local_power", "end", FAR)[0] == "end"


def test_a_last_value_between_zero_and_its_square_root_is_graded():
    rows, columns = 50, 20

    def graded(last, top=3.0):
        return is_graded(np.array([top, last]), (rows, columns), np.dtype(float))

    zero, square = ZERO * np.sqrt(rows) * EPS, 2 * np.sqrt(ROUNDING * EPS)
    assert not graded(0.99 * zero * 3)
    assert graded(1.01 * zero * 3)
    assert graded(0.99 * square * 3)
    assert not graded(1.01 * square * 3)
    assert is_graded(np.array([3.0, 0.5 * square, 0.0]), (rows, columns), np.dtype(float))
    assert not graded(0.0, 0.0)


@pytest.mark.parametrize("method", ["gram", "local_ritz", "block_lanczos", "dpi"])
def test_values_that_their_squares_cannot_tell_from_zero_are_not_converged(method):
    graded = with_spectrum(60, [1, 1e-9, 1e-10, 1e-11])
    with pytest.warns(lp.ConvergenceWarning, match="rounding allows this method no smaller angle"):
        lost = lp.svd(graded, 2, method=method, tol=1e-8, max_rounds=90, workers=2, rng=0)
    assert (lost.reason, lost.converged) == ("rounding", False)
    zero = with_spectrum(60, [1, 0, 0, 0])
    none = lp.svd(zero, 2, method=method, tol=1e-8, max_rounds=90, workers=2, rng=0)
    assert none.converged
    found = lp.svd(graded, 2, method="tsqr", workers=2)
    assert lp.subspace_distance(np.linalg.svd(graded)[2][:2].T, found.components.T) < 1e-5


def test_a_gram_matrix_that_was_chosen_is_followed_by_a_factor_where_it_shows_no_gap():
    result = lp.svd(with_spectrum(200, [5, 2, 2, 2, 1]), 2, workers=2, rng=0)
    assert (result.reason, result.run["method"], len(result.history)) == ("exact", "tsqr", 2)
    asked = lp.svd(with_spectrum(200, [5, 2, 2, 2, 1]), 2, method="gram", tol=1e-8, rng=0)
    assert asked.reason == "residual"


@pytest.mark.parametrize("method", ["dpi", "local_power:steps=1"])
def test_nothing_is_learnt_from_probes_where_only_a_proof_counts(method):
    flat = with_spectrum(80, np.r_[3, 2, np.ones(30)])  # the trace cannot prove it

    def run(certainty):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lp.ConvergenceWarning)
            return lp.svd(flat, 2, method=method, tol=1e-3, certainty=certainty, max_rounds=99,
                          workers=2, rng=0)  # fmt: skip

    strict, lenient = run("proven"), run(1e-6)
    assert (strict.reason, strict.certificate.proven, strict.certificate.p) == ("unsure", False, 1)
    assert len({record.bytes_up for record in strict.history}) == 1
    assert (lenient.reason, lenient.certificate.proven) == ("angle", False)
    assert lenient.certificate.p <= 1e-6
    assert len({record.bytes_up for record in lenient.history}) == 2  # with probes, and without


@pytest.mark.parametrize("method", ["local_ritz:start=random", "block_lanczos"])
def test_a_search_learns_from_probes_what_nothing_proves(method):
    flat = with_spectrum(80, np.r_[3, 2, np.ones(30)])
    result = lp.svd(flat, 2, method, tol=1e-3, max_rounds=99, workers=2, rng=0)
    assert (result.reason, result.certificate.proven) == ("angle", False)
    assert 0 < result.certificate.p <= 1e-6


def test_a_result_is_what_is_certified_near_the_answer_or_after_local_steps():
    def told(steps, angle, residual):
        return returns_certified_basis(Record(1, steps, 1, 1, 0.1, angle=angle, residual=residual))

    assert told(1, 1.0, 0.9 * NEAR)
    assert not told(1, 0.5, 1.1 * NEAR)
    assert told(2, 0.5, 1.1 * NEAR)
    assert not told(2, 1.0, 1.1 * NEAR)
    assert not told(2, None, None)


def test_the_answer_is_the_certified_basis_where_that_is_no_worse():
    X, Z = np.eye(4)[:, [2, 3, 0]], np.eye(4, 2)
    state = State(Z, round=1, steps=1, exact=(X, X))

    def answer(reason, tol=TOL, state=state, residual=0.5):
        last = Record(1, 1, 1, 1, 0.1, angle=0.5, residual=residual)
        basis, certified = answer_of(
            Outcome(state, (last,), reason, FAR), reason, tol, np.dtype(np.float32)
        )
        if not certified:
            assert basis is Z
            return False
        np.testing.assert_array_equal(basis, X[:, :2])  # as many columns as were iterated
        assert basis.dtype == np.float32
        assert basis.flags.c_contiguous
        return True

    assert not answer("max_rounds")
    assert answer("max_rounds", residual=0.9 * NEAR)
    assert not answer("max_rounds", 0.0, residual=0.9 * NEAR)
    assert answer("angle")
    assert answer("rounding", 0.0)
    joined = replace(state, joined=(X, X), exact=(Z, Z))
    assert answer("max_rounds", state=joined)
    assert not answer("max_rounds", 0.0, state=joined)
    assert not answer("angle", state=replace(state, exact=None))


def test_a_certificate_is_given_where_a_tolerance_is_or_the_method_has_one_anyway():
    assert fit(method="dpi", tol=None).certificate is None
    assert fit(method="local_power:schedule=adaptive", tol=None).certificate is None
    assert fit(max_rounds=1).certificate.angle == 1.0
    for method in ("local_ritz", "tsqr", "gram"):
        assert fit(method=method, tol=None).certificate.angle < 1e-10


def test_what_rounding_allows_is_taken_for_the_tolerance_unless_one_was_given():
    rounded = with_spectrum(60, [1, 1e-8, 0.5e-8, 1e-9])
    free = lp.svd(rounded, 2, workers=2, rng=0)
    assert (free.reason, free.converged) == ("exact", True)
    assert free.run["tol"] == free.certificate.angle
    assert 1e-8 < free.certificate.angle < 1e-6
    with pytest.warns(lp.ConvergenceWarning, match="rounding allows this method no smaller"):
        strict = lp.svd(rounded, 2, tol=1e-8, workers=2, rng=0)
    assert (strict.reason, strict.run["tol"]) == ("rounding", 1e-8)


def test_a_run_with_a_checkpoint_takes_the_methods_of_one_without(tmp_path):
    tie = with_spectrum(200, [5, 2, 2, 2, 1])
    graded = with_spectrum(60, [1, 1e-9, 1e-10, 1e-11])
    for X in (tie, graded):
        plain = lp.svd(X, 2, workers=2, rng=0)
        kept = lp.svd(X, 2, workers=2, rng=0, checkpoint=tmp_path / "run")
        assert plain.run["method"] == kept.run["method"] == "tsqr"
        assert (kept.reason, len(kept.history)) == (plain.reason, len(plain.history))


def test_values_that_are_exact_or_that_nobody_asked_to_be_are_not_graded():
    graded = with_spectrum(60, [1, 1e-9, 1e-10, 1e-11])
    assert lp.svd(graded, 2, "tsqr", tol=1e-4, workers=2).reason == "exact"
    assert lp.svd(graded, 2, "gram", workers=2).reason == "exact"


def test_a_tie_ends_what_was_chosen_unless_it_sees_squares_only():
    tie = with_spectrum(200, [5, 2, 2, 2, 1])
    result = lp.svd(tie, 2, Auto(wire="float32"), workers=2, rng=0)
    assert (result.reason, result.run["method"]) == ("residual", "local_ritz")


def test_a_method_without_probes_cannot_learn_more():
    flat = with_spectrum(80, np.r_[3, 2, np.ones(30)])
    known = lp.svd(flat, 2, "tsqr", workers=2)
    with pytest.warns(lp.ConvergenceWarning, match="unsure"):
        result = lp.svd(flat, 2, "one_shot", tol=0.1, warm_start=known, workers=2, rng=0)
    assert (result.reason, len(result.history)) == ("unsure", 1)


def test_a_mean_that_cancels_is_known_to_cost_digits():
    near, far = (lp.svd(A + x, 3, "tsqr", center=True, workers=2).certificate for x in (0, 1e9))
    assert near.angle < 1e-12 < 1e-11 < far.angle < 1e-9
    assert far.residual > 100 * near.residual


# Bookkeeping.


A = with_spectrum(80, 0.9 ** np.arange(20))
LOUD = {"method": "dpi:width=4", "tol": 1e-13, "workers": 2, "rng": 0}


def fit(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        return lp.svd(A, 3, **LOUD | options)


def test_rounds_bytes_and_steps_of_the_history_are_those_of_the_ledger():
    result = fit(method="local_power:steps=3,width=4", max_rounds=5)
    assert [record.round for record in result.history] == [1, 2, 3, 4, 5]
    assert [record.steps for record in result.history] == [3] * 5
    iterate = result.ledger.phase("iterate")
    assert [r.bytes_up for r in result.history] == [r.bytes_up for r in iterate.records]
    assert [r.bytes_down for r in result.history] == [r.bytes_down for r in iterate.records]
    assert result.reason == "max_rounds"
    assert not result.converged


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_budget_of_bytes_ends_after_the_round_that_exceeds_it(rounds):
    each = fit(max_rounds=1).history[0]
    size = each.bytes_up + each.bytes_down
    for spare, count in ((0, rounds + 1), (-1, rounds)):
        result = fit(max_rounds=9, budget=lp.Budget(bytes=rounds * size + spare))
        assert (result.reason, len(result.history)) == ("budget", count)


def test_a_run_that_goes_on_counts_what_was_spent_before(tmp_path):
    path = tmp_path / "run"
    first = fit(max_rounds=3, checkpoint=path)
    size = first.history[0].bytes_up + first.history[0].bytes_down
    more = fit(
        max_rounds=9,
        checkpoint=lp.Checkpoint(path, resume=True),
        budget=lp.Budget(bytes=5 * size - 1),
    )
    assert (more.reason, len(more.history)) == ("budget", 5)
    assert [record.round for record in more.history] == [1, 2, 3, 4, 5]
    assert [record.steps for record in more.history] == [1] * 5
    assert more.ledger.phase("iterate").rounds == 5
    again = fit(max_rounds=5, checkpoint=lp.Checkpoint(path, resume=True))
    assert (again.reason, len(again.history)) == ("max_rounds", 5)
    assert again.ledger.phase("iterate").rounds == 5
    fewer = fit(max_rounds=2, checkpoint=lp.Checkpoint(path, resume=True))
    assert (fewer.reason, len(fewer.history)) == ("max_rounds", 5)


def test_seconds_of_earlier_rounds_count(tmp_path):
    short = fit(max_rounds=9, budget=lp.Budget(seconds=1e-9))
    assert (short.reason, len(short.history)) == ("budget", 1)
    path = tmp_path / "run"
    fit(max_rounds=3, checkpoint=path)
    assert (
        fit(
            max_rounds=9,
            checkpoint=lp.Checkpoint(path, resume=True),
            budget=lp.Budget(seconds=1e-9),
        ).reason
        == "budget"
    )


def test_a_callback_that_ends_a_run_is_its_reason_and_what_was_reached_is_kept(tmp_path):
    path = tmp_path / "run"
    rare = lp.Checkpoint(path, every=100)  # it is written at the end all the same
    result = fit(max_rounds=9, checkpoint=rare, callback=lambda record, state: record.round == 4)
    assert (result.reason, len(result.history), result.converged) == ("callback", 4, False)
    more = fit(
        max_rounds=6,
        checkpoint=replace(rare, resume=True),
        callback=lambda record, state: record.round < 5,
    )
    assert (more.history[3], len(more.history)) == (result.history[3], 6)
    sure = {"tol": 0.02, "max_rounds": 90}  # ends as it would without a callback
    both = fit(**sure, callback=lambda record, state: record.angle <= 0.02 and record.p <= 1e-6)
    assert len(both.history) == len(fit(**sure).history)
    assert (both.reason, both.converged) == ("callback", False)


def test_a_run_that_is_done_does_nothing_more(tmp_path):
    path = tmp_path / "run"
    easy = {"tol": 0.02, "max_rounds": 90}
    first = fit(**easy, checkpoint=path)
    assert first.reason == "angle"
    again = fit(**easy, checkpoint=lp.Checkpoint(path, resume=True))
    assert again.reason == "angle"
    assert len(again.history) == len(first.history)
    assert again.certificate.angle == first.certificate.angle == first.history[-1].angle


def test_what_a_round_certifies_is_in_its_record():
    result = fit(max_rounds=25, tol=1e-3)
    last, known = result.history[-1], result.certificate
    assert (last.angle, last.residual) == (known.angle, known.residual)
    assert (last.proven, last.p) == (known.proven, known.p)
    assert known.angle < 1


def test_a_schedule_that_ends_is_an_end():
    result = fit(method=lp.LocalPower(schedule={0, 2, 3}, width=4), max_rounds=9)
    assert (result.reason, len(result.history)) == ("end", 2)
    with pytest.raises(ValueError, match="schedule ends before the first round"):
        fit(method=lp.LocalPower(schedule=lambda t: 0, width=4))


def test_a_degraded_run_is_not_converged():
    class Losing(Inline):
        def map(self, task, order=None):
            yield from super().map(task, [n for n in self.numbers(order) if n != 1])

    with pytest.warns(lp.DegradedWarning):
        result = fit(
            tol=0.02, max_rounds=90, engine=Losing(), faults=lp.Faults(retries=0, on_loss="degrade")
        )
    assert result.history[-1].angle <= 0.02
    assert (result.reason, result.converged) == ("degraded", False)
    assert result.run["degraded"]


def test_another_method_follows_one_that_gives_up_and_not_one_that_is_done():
    doubtful = [replace(FAR, rounded=True), CLOSE]

    class Certified(State):
        def certificate(self, rank, known, tol, certainty):
            return doubtful[self.steps]

    def states(n):
        yield from (Certified(np.eye(4, 2), round=t + 1, steps=n) for t in range(3))

    def followed(*legs):
        relay = Relay([(str(n), states(n), 3) for n in legs])
        args = None, CheckpointWriter(None, {}), None, Progress.of(False)
        found = follow(relay, Ledgered(Inline()), rule(), *args)
        return found.reason, [record.round for record in found.history], relay.method

    assert followed(0) == ("rounding", [1], "0")
    assert followed(1, 0) == ("angle", [1], "1")
    assert followed(0, 1) == ("angle", [1, 2], "1")
    assert followed(0, 0) == ("rounding", [1, 2], "0")
    doubtful[0] = replace(TIE, vanishing=True)
    assert followed(0, 1) == ("angle", [1, 2], "1")
    assert followed(0) == ("residual", [1], "0")
    doubtful[0] = TIE
    assert followed(0, 1) == ("residual", [1], "0")
    doubtful[0] = replace(CLOSE, vanishing=True)
    assert followed(0, 1) == ("angle", [1], "0")
    doubtful[0] = FAR
    assert followed(0) == ("end", [1, 2, 3], "0")
    assert {name for name, reason in REASONS.items() if reason.given_up} == {
        "stalled",
        "unsure",
        "rounding",
    }


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("angle", True),
        ("residual", True),
        ("stalled", True),
        ("unsure", True),
        ("rounding", True),
        ("budget", False),
        ("max_rounds", False),
        ("callback", False),
        ("end", False),
    ],
)
def test_a_writer_knows_which_reasons_more_rounds_would_not_change(tmp_path, reason, kept):
    where = lp.Checkpoint(tmp_path / "run", every=2, resume=True)
    writer, method = CheckpointWriter(where, {"seed": 1}), [method_from("dpi")]
    assert writer.found(method) is None
    writer.keep(Snapshot(STATE, (), (), reason))
    assert writer.found(method).reason == (reason if kept else None)
    assert replace(writer, where=replace(where, resume=False)).found(method) is None
    writer.keep(Snapshot(FactoredState(np.eye(4, 2), sizes=np.ones(4)), (), (), reason))
    assert type(writer.found([method_from("tsqr")]).state) is FactoredState


def test_a_writer_writes_when_it_is_time_or_the_run_ends(tmp_path):
    writer = CheckpointWriter(lp.Checkpoint(tmp_path / "run", every=2), {})
    due = [writer.due(replace(STATE, round=n), ends=False) for n in (1, 2, 3, 4)]
    assert due == [False, True, False, True]
    assert writer.due(replace(STATE, round=3), ends=True)
    for none in (replace(writer, where=None), replace(writer, missing=[0])):
        assert not none.due(replace(STATE, round=2), ends=True)


# Arguments.


@pytest.mark.parametrize("value", [1e-12, 0.5, 1, 1.0, np.float32(0.5)])
def test_a_certainty_is_a_chance(value):
    assert certainty_of(value) == float(value)


@pytest.mark.parametrize("value", [0, -0.1, 1.01, True, "likely", None, float("nan")])
def test_what_is_no_chance_is_refused(value):
    with pytest.raises(ValueError, match="certainty="):
        certainty_of(value)


def test_a_proof_is_a_certainty_that_no_chance_reaches():
    assert certainty_of("proven") == 0.0


VALUES = {"steps": 3, "schedule": "halving", "align": "signs", "align_at": "worker", "width": 7,
          "wire": "float32", "proposal": "all", "start": "random"}  # fmt: skip
USES = {
    "local_power": {"steps", "schedule", "align", "align_at", "width", "wire"},
    "dpi": {"width", "wire"},
    "one_shot": {"steps", "align", "align_at", "width"},
    "local_ritz": {"steps", "proposal", "start", "width", "wire"},
    "block_krylov": {"start", "width", "wire"},
    "block_lanczos": {"width"},
    "auto": {"width", "wire"},
}


@pytest.mark.parametrize("method", REGISTRY)
def test_options_that_a_method_has_no_use_for_are_refused(method):
    for name, value in VALUES.items():
        text = f"{method}:{name}={value}"
        if name in USES.get(method, ()):
            assert str(method_from(text)) == text
            continue
        with pytest.raises(ValueError, match=f"{text}': '{name}={value}' is not an option of it"):
            method_from(text)
    with (
        pytest.raises(ValueError, match="cannot use warm_start")
        if method not in USES
        else ExitStack()
    ):
        lp.svd(A, 3, method, warm_start=lp.svd(A, 3, "tsqr"), workers=2, rng=0)


def warm_state(earlier, columns, seed):
    engine = Inline()
    engine.columns = columns
    asked = SimpleNamespace(warm_start=earlier, rng=np.random.default_rng(seed), checkpoint=None)
    run = Run(asked, engine, Progress.of(False))
    run.engine, run.rank, run.width = engine, 2, 5
    return run.warm_state()


def test_a_warm_start_has_what_was_found_first_and_random_columns_behind():
    earlier = lp.svd(A, 3, method="tsqr")
    Z = warm_state(earlier, 20, 0).basis
    assert Z.shape == (20, 5)
    np.testing.assert_allclose(Z.T @ Z, np.eye(5), atol=1e-13)
    first, rest = earlier.components[:2].T, earlier.components[2:].T
    assert lp.subspace_distance(first, Z[:, :2]) < 1e-13
    assert 0.01 < np.linalg.norm(rest.T @ Z) < 0.99  # what is beyond the rank is random
    other = warm_state(earlier, 20, 1).basis
    assert np.linalg.norm(Z[:, 2:].T @ other[:, 2:], 2) < 0.999
    assert warm_state(None, 20, 0) is None
    with pytest.raises(ValueError, match="warm_start has 20 columns where the data have 21"):
        warm_state(earlier, 21, 0)


def test_auto_leaves_a_method_at_a_flat_spectrum_that_it_gets_through():
    X = np.random.default_rng(0).standard_normal((1300, 1100)) * np.arange(1.0, 1101) ** -0.05
    result = lp.svd(X, 5, tol=1e-6, rng=0)
    assert result.run["why"].startswith(result.run["method"])  # no other one followed
    assert (result.reason, len(result.history) > ROUNDS) == ("angle", True)
    true = svds(X, 5, tol=0, rng=0)[2]
    assert lp.subspace_distance(result.components.T, true.T) <= 1e-6
