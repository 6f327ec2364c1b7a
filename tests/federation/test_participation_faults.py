"""Sites that are killed, late, heard twice or misheard, in every phase and mode.

A run must end with the bits of one without faults, or say what it is without, or stop with an error
that names the site.
"""

import importlib.util
import os
import re
import signal
import sys
import threading
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pytest
from faulty import (
    HOPS,
    PHASES,
    TASKS,
    VARIANTS,
    Fault,
    FaultyLink,
    fitted,
    judged,
    phase_of,
    same,
    stopped,
)
from federated import rows
from federated import sites as made
from helpers import LONG

import localpower as lp
from localpower.core.errors import WorkerLate, WorkerLost
from localpower.federation.engine import Federation
from localpower.federation.link import DirectLink
from localpower.federation.messages import from_frame

FILE = Path(__file__).parents[2] / "benchmarks" / "participation_faults.py"
MODES = {
    "strict": ("strict", "stop"),
    "recovery": ("recovery", "stop"),
    "plain": ("off", "stop"),
    "plain, degrade": ("off", "degrade"),
    "plain, reuse": ("off", "reuse"),
}
SITES = [f"site-{i}" for i in range(4)]
GOES_ON = ("recovery", "plain, degrade")  # without a site that is lost once the roster stands
ONCE = {
    f"{kind} {variant}": (kind, variant)
    for kind, variants in VARIANTS.items()
    for variant in variants
}
LASTING = {"kill": "before", "delay": "long", "corrupt": "reply"}
pytestmark = [
    pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::localpower.core.errors.DegradedWarning"),
]


@pytest.fixture(autouse=True)
def _no_power_is_lost(monkeypatch):
    """Processes die here, and machines do not: what is written is there."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda file: None)


def several(folder):
    parts = [rows(120 + 10 * i, d=40, seed=i) for i in range(len(SITES))]
    return made(folder, parts, SITES, secure_sum="optional", tasks=TASKS)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Runs without faults."""
    found = {}
    for mode, (secure, on_loss) in MODES.items():
        agents = several(tmp_path_factory.mktemp("usual") / "sites")
        found[mode] = fitted(Federation(DirectLink(agents), secure=secure), "dpi", on_loss)
    return found


def ended(folder, usual, mode, *faults):
    """Run with faults: how it ends, and the result or the error."""
    secure, on_loss = MODES[mode]
    link = FaultyLink(several(folder), faults)
    try:
        found = fitted(Federation(link, secure=secure), "dpi", on_loss)
    except Exception as error:
        return stopped(error, {fault.site for fault in faults}), error
    assert all(fault.done for fault in faults)
    return judged(usual[mode], found, {fault.site for fault in faults}), found


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", ["strict", "recovery", "plain"])
@pytest.mark.parametrize("what", ONCE)
def test_what_happens_once_leaves_the_bits_and_a_damaged_question_stops(
    tmp_path, usual, what, mode, phase
):
    how, found = ended(tmp_path, usual, mode, Fault(*ONCE[what], phase, "site-2"))
    if how == "stopped":
        assert what == "corrupt question", found  # which may be unreadable there
    else:
        assert how == "right"


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", LASTING)
def test_a_site_that_is_lost_for_good_is_named_by_the_label_or_by_the_error(
    tmp_path, usual, kind, mode, phase
):
    fault = Fault(kind, LASTING[kind], phase, "site-2", times=inf)
    how, found = ended(tmp_path, usual, mode, fault)
    if mode in GOES_ON and phase not in ("opening", "roster"):
        assert how == "labelled"
        assert found.run["participation"]["shards"] == [2]
    else:
        assert how == "stopped"
        assert isinstance(found, WorkerLost | WorkerLate)
        assert "site-2" in str(found)


@pytest.mark.parametrize(
    ("mode", "label"), [("plain, degrade", "without"), ("plain, reuse", "reused")]
)
def test_last_products_stand_in_for_a_site_that_is_lost_between_rounds(
    tmp_path, usual, mode, label
):
    fault = Fault("kill", "before", "iterate", "site-2", skip=1, times=inf)
    how, found = ended(tmp_path, usual, mode, fault)
    assert how == "labelled"
    assert found.run["participation"]["label"] == label
    assert "its last product was used" in [fault["then"] for fault in found.run["faults"]]


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("what", [name for name in ONCE if name != "corrupt question"])
def test_hops_that_open_a_sum_are_asked_again(tmp_path, usual, what, skip):
    """One site is gone, and all others must sign and reveal: one of these has a fault, too."""
    gone = Fault("kill", "before", "iterate", "site-1", times=inf)
    hop = Fault(*ONCE[what], "iterate", "site-2", skip=skip, hop=True)
    how, found = ended(tmp_path, usual, "recovery", gone, hop)
    assert how == "labelled", found
    assert found.run["participation"]["shards"] == [1]
    assert [fault["then"] for fault in found.run["faults"]] == ["left out"]  # nothing more is told


def test_a_list_that_too_few_have_signed_is_another_question(tmp_path, usual):
    gone = Fault("kill", "before", "iterate", "site-1", times=inf)
    hop = Fault("kill", "before", "iterate", "site-2", times=2, hop=True)
    how, found = ended(tmp_path, usual, "recovery", gone, hop)
    assert how == "labelled", found
    assert found.run["participation"]["shards"] == [1]
    assert [fault["then"] for fault in found.run["faults"]] == ["asked again", "left out"]


@pytest.mark.parametrize(("mode", "skip"), [("recovery", 4), ("plain, degrade", 1)])
def test_a_site_that_is_lost_as_rows_are_prepared_is_left_out(tmp_path, usual, mode, skip):
    """All before is answered: sums and what opens them, or statistics."""
    fault = Fault("kill", "before", "prepare", "site-2", skip=skip, times=inf)
    how, found = ended(tmp_path, usual, mode, fault)
    assert how == "labelled", found
    assert found.run["participation"]["shards"] == [2]


@pytest.mark.parametrize("phase", ["prepare", "iterate"])
def test_one_site_too_many_stops_with_the_names_of_those_that_are_missing(tmp_path, usual, phase):
    first = Fault("kill", "before", "prepare", "site-1", times=inf)
    gone = Fault("delay", "long", phase, "site-3", times=inf)
    how, found = ended(tmp_path, usual, "recovery", first, gone)
    assert how == "stopped"
    assert "site-3" in str(found)


# The campaign of random schedules.


@pytest.fixture(scope="module")
def campaign():
    spec = importlib.util.spec_from_file_location("participation_faults", FILE)
    module = sys.modules["participation_faults"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_random_schedules_end_as_they_must_and_are_not_run_twice(campaign, tmp_path):
    output = tmp_path / "some.csv"
    rows = [*campaign.campaign(12, 1, output)]
    assert [row.number for row in rows] == [*range(12)]
    assert {row.ended for row in rows} <= {*campaign.GOOD}
    assert {row.after for row in rows} == {"right"}
    assert [*campaign.campaign(12, 1, output)] == []


def test_the_listed_campaign_is_whole_and_nothing_in_it_is_wrong_unlabelled_or_hangs(campaign):
    rows = campaign.listed(FILE.with_suffix(".csv"), 0)
    assert sorted(int(row["number"]) for row in rows) == [*range(1000)]
    assert {row["ended"] for row in rows} == {*campaign.GOOD}
    assert {row["after"] for row in rows} == {"right"}
    assert sum(row["link"] == "gRPC" for row in rows) == 20
    for secure in campaign.MODES:
        told = "\n".join(row["faults"] for row in rows if row["secure"] == secure)
        for kind in VARIANTS:
            for phase in PHASES:
                assert re.search(rf"{kind} \([^;]* in {phase}\b", told)


# Processes of their own, over gRPC.

VICTIMS = dict(zip(PHASES, ("north", "south", "west", "north", "south"), strict=True))


@contextmanager
def watched(address, act):
    """Connect, and call `act` with phase and message before each frame that is sent.

    If it returns a number, that is the deadline of this frame.
    """
    with lp.connect(address) as engine:
        ask, phases = engine.link.ask, ["opening"]

        def asking(frame, names, deadline=None):
            message = from_frame(frame, len(frame))
            phases.append(phase_of(message, phases[-1]))
            return ask(frame, names, act(phases[-1], message) or deadline)

        engine.link.ask = asking
        yield engine


def replaced(sites, name):
    """Have a site not answer any more, die, and be started again."""

    def again():
        sites.kill(name)
        sites.start(name)

    sites.processes[name].send_signal(signal.SIGSTOP)
    timer = threading.Timer(0.1, again)
    timer.start()
    return timer


@pytest.fixture(scope="module")
def reference(sites):
    return lp.pca(sites.parts, 2, "dpi", engine="ring", max_rounds=2, rng=0)


def test_a_site_killed_in_each_phase_comes_back_and_the_bits_are_equal(sites, reference):
    timers = {}

    def act(phase, message):
        if phase not in timers:
            timers[phase] = replaced(sites, VICTIMS[phase])

    with watched(sites.address, act) as engine:
        found = lp.pca("sites", 2, "dpi", engine=engine, max_rounds=2, rng=0)
    assert tuple(timers) == PHASES
    assert judged(reference, found, set()) == "right"


def test_a_site_killed_between_the_hops_of_recovery_comes_back(sites, reference):
    timers, file = [], sites.file.with_name("recovery.toml")
    text = sites.file.read_text(encoding="utf-8")
    file.write_text(text.replace('secure_sum = "strict"', 'secure_sum = "recovery"'))

    def act(phase, message):
        if isinstance(message, HOPS) and phase == "iterate" and not timers:
            timers.append(replaced(sites, "west"))

    with watched(f"sites:{file}", act) as engine:
        found = lp.pca("sites", 2, "dpi", engine=engine, max_rounds=2, rng=0)
    assert timers
    assert "with recovery" in found.run["federation"]["secure_sum"]
    assert same(found, reference)


def test_a_silent_site_ends_the_run_by_its_deadline_and_the_next_one_is_right(sites, reference):
    wanted, silent = [], sites.processes["south"]

    def act(phase, message):
        if wanted == [phase]:
            silent.send_signal(signal.SIGSTOP)
            wanted[:] = ["silent"]
        return 0.5 if wanted == ["silent"] else None  # before, all may be late on a busy machine

    with watched(sites.address, act) as engine:
        try:
            for phase in ("opening", "prepare", "iterate", "close"):
                wanted[:] = [phase]
                with pytest.raises(WorkerLate, match=r"south.*: no answer within the deadline"):
                    lp.pca("sites", 2, "dpi", engine=engine, max_rounds=2, rng=0,
                           faults=lp.Faults(deadline=LONG, retries=0))  # fmt: skip
                wanted.clear()
                silent.send_signal(signal.SIGCONT)
                found = lp.pca("sites", 2, "dpi", engine=engine, max_rounds=2, rng=0)
                assert judged(reference, found, set()) == "right"
        finally:
            silent.send_signal(signal.SIGCONT)
