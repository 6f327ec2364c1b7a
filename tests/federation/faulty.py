"""A link that does things to frames of a chosen phase, and how a run must end then.

Nothing is waited for: a frame that is late is one that comes with a later question. Whatever is
late here reaches the coordinator, although links of the library would not take it any more.
"""

import os
from dataclasses import dataclass
from math import inf

import numpy as np
from federated import again

import localpower as lp
from localpower.core.errors import WorkerLate, WorkerLost
from localpower.federation.link import DirectLink
from localpower.federation.messages import CloseRun, OpenRun, Reveal, Roster, Settle, from_frame
from localpower.worker.sum_tasks import SmallGram
from localpower.worker.tasks import PowerSteps, Refine, Triangle

PHASES = ("opening", "roster", "prepare", "iterate", "close")
VARIANTS = {
    "kill": ("before", "unwritten", "torn", "written", "after"),
    "delay": ("question", "reply", "last reply", "long", "order"),
    "duplicate": ("question", "late question", "reply", "late reply"),
    "corrupt": ("question", "reply"),
}
TASKS = ("Sums", "Spread", "Describe", "Prepare", "PowerSteps", "SmallGram", "Triangle", "Refine")
HOPS = (Settle, Reveal)
ITERATES, ENDS = (PowerSteps, Refine), (SmallGram, Triangle)


class Killed(BaseException):
    """A process has ended."""


@dataclass(slots=True)
class Fault:
    """What is done to messages with a site: after `skip` of them in a phase, so many `times`.

    With `hop`, only messages count that open sums.
    """

    kind: str
    variant: str
    phase: str
    site: str
    skip: int = 0
    times: float = 1
    hop: bool = False
    met: int = 0
    done: int = 0

    def __str__(self):
        where = f"{self.phase}{' hop' * self.hop} {self.skip}"
        often = "" if self.times == 1 else " always" if self.times == inf else f" {self.times}x"
        return f"{self.kind} ({self.variant}) {self.site} in {where}{often}"

    def meets(self, phase, site, message):
        if (phase, site) != (self.phase, self.site) or self.hop > isinstance(message, HOPS):
            return False
        self.met += 1
        met = self.skip < self.met <= self.skip + self.times
        self.done += met
        return met


def phase_of(message, before):
    """The phase that a message belongs to; hops belong to the question before them."""
    if isinstance(message, OpenRun | Roster | CloseRun):
        return {OpenRun: "opening", Roster: "roster", CloseRun: "close"}[type(message)]
    if isinstance(message, HOPS):
        return before
    return "iterate" if isinstance(message.task, ITERATES) else (
        "close" if isinstance(message.task, ENDS) else "prepare")  # fmt: skip


def damaged(raw, rng):
    """Some bits turned, or bytes cut off, added or emptied."""
    at, torn = int(rng.integers(len(raw))), bytearray(raw)
    how = rng.integers(6)
    if how == 0:
        return raw[:at]
    if how == 1:
        return raw + rng.bytes(at % 50 + 1)
    if how == 2:
        torn[at : at + 16] = bytes(len(torn[at : at + 16]))
        torn[-1] ^= 1
    else:
        torn[at] ^= 1 << int(rng.integers(8))
    return bytes(torn)


class FaultyLink(DirectLink):
    """Sites in this process; what comes too late is brought with the next question."""

    def __init__(self, agents, faults, seed=0):
        super().__init__(agents)
        self.faults, self.phase = faults, "opening"
        self.late_questions, self.late_replies, self.last_replies = [], [], []
        self._rng = np.random.default_rng(seed)

    def ask(self, frame, sites, deadline):
        message = from_frame(frame, len(frame))
        self.phase = phase_of(message, self.phase)
        questions, self.late_questions = self.late_questions, []
        replies = [reply for asked, *reply in self.late_replies if asked != frame]
        self.late_replies = [held for held in self.late_replies if held[0] == frame]
        last, self.last_replies = self.last_replies, []
        yield from replies
        for site, old in questions:
            yield site, self.agents[site].answer(old)
        lost, late = [], []
        for site in sites:
            met = [fault for fault in self.faults if fault.meets(self.phase, site, message)]
            if met:
                how = self._kill if met[0].kind == "kill" else self._deliver
                yield from how(met[0], site, frame, lost, late, last)
            else:
                yield site, self.agents[site].answer(frame)
        yield from last
        if lost:
            raise WorkerLost(f"{', '.join(lost + late)}: no answer, and not connected")
        if late:
            raise WorkerLate(f"{', '.join(late)}: no answer within the deadline")

    def _deliver(self, fault, site, frame, lost, late, last):
        answer = self.agents[site].answer
        match fault.kind, fault.variant:
            case "delay", "order":
                last.append((site, answer(frame)))
            case "delay", "question":
                self.late_questions.append((site, frame))
                late.append(site)
            case "delay", where:
                reply = site, answer(frame)
                late.append(site)
                if where == "last reply":
                    self.last_replies.append(reply)
                else:  # with the next question, or the next other one
                    self.late_replies.append((frame if where == "long" else b"", *reply))
            case "corrupt", "question":
                yield site, answer(damaged(frame, self._rng))
            case "corrupt", _:
                yield site, damaged(answer(frame), self._rng)
            case _, where:
                yield site, (first := answer(frame))
                if where == "late question":
                    self.late_questions.append((site, frame))
                elif where == "late reply":
                    self.last_replies.append((site, first))
                else:
                    yield site, answer(frame) if where == "question" else first

    def _kill(self, fault, site, frame, lost, late, last):
        """End a site where the fault says, and start it again."""
        lost.append(site)
        if fault.done > 1:
            return iter(())  # it has not come back yet
        agent = self.agents[site]
        if fault.variant in ("unwritten", "torn", "written"):
            dies_at_its_journal(agent.journal, fault.variant)
        try:
            if fault.variant != "before":
                agent.answer(frame)
        except Killed:
            pass
        self.agents[site] = again(agent)
        return iter(())


def dies_at_its_journal(journal, when):
    """Have the process end before, in the middle of, or after the next line."""
    write = journal._append

    def append(line, sync):
        if when == "torn":
            os.write(journal._file, line[: len(line) // 2])
        elif when == "written":
            write(line, sync)
        raise Killed

    journal._append = append


def fitted(engine, method, on_loss="stop", rounds=2, deadline=None):
    """One run, in which a method has so many rounds."""
    faults = lp.Faults(deadline=deadline, on_loss=on_loss)
    return lp.pca("sites", 2, method, engine=engine, max_rounds=rounds, rng=0, faults=faults)


def same(a, b):
    pairs = ((getattr(r, name) for r in (a, b)) for name in ("components", "singular_values"))
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


def judged(usual, result, faulty):
    """How a run has ended that gave a result: right, labelled, wrong or unlabelled."""
    label, card = result.run["participation"], result.run["federation"]["participation"]
    names = [site["name"] for site in result.run["federation"]["sites"]]
    if result.reason == "degraded":
        lost = {names[shard] for shard in label.get("shards", ())}
        told = all(name in card for name in lost) and card.startswith("without ")
        plain = label["label"] == "without" and not result.converged and result.certificate is None
        if not (told and plain and lost):
            return "unlabelled"
        return "labelled" if lost <= faulty else "wrong"  # nobody else is left out
    if label["label"] == "reused":
        return "labelled" if not result.converged else "unlabelled"
    if card != label["label"] or card not in ("complete", "waited"):
        return "unlabelled"
    return "right" if same(usual, result) and usual.reason == result.reason else "wrong"


def stopped(error, names):
    """How a run has ended that gave an error: one that a user can read, and that names a site."""
    known = isinstance(error, lp.LocalPowerError)
    return "stopped" if known and any(name in str(error) for name in names) else "crash"
