"""A site: answers frames on its own rows, as its policy allows, and journals all of it.

It knows no transport. Whatever it is sent, it replies; what it does not do is a `Refusal`.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from localpower.core.errors import DataError, LocalPowerError, SiteRefused
from localpower.federation import masks
from localpower.federation.budget import charged
from localpower.federation.checks import check_ask, check_open, check_roster, check_settled
from localpower.federation.journal import NAME as JOURNAL
from localpower.federation.journal import Entry, Journal
from localpower.federation.messages import (
    MOST_HEADER,
    MOST_TEXT,
    Answer,
    Ask,
    CloseRun,
    Offer,
    OpenRun,
    Refusal,
    Reveal,
    Roster,
    Settle,
    Settled,
    Shares,
    as_bytes,
    digest_of,
    from_frame,
    names_digest,
    signed_part,
    to_frame,
)
from localpower.federation.policy import Policy
from localpower.federation.questions import columns_of
from localpower.federation.recovery import check_signed, list_text
from localpower.federation.rows import Shape, SiteRows
from localpower.federation.runs import RUNS, Kept, SiteRun, mask_private, open_runs
from localpower.worker.host import Failure
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.private_tasks import Noised
from localpower.worker.replies import Done
from localpower.worker.sums import to_words
from localpower.worker.tasks import Prepare

T = TypeVar("T")
Signed = TypeVar("Signed", Offer, Answer, Shares)
MOST_NAMES = 10_000  # names of columns that are told
MOST_RUN = 64  # characters of the name of a run that is refused
FAILURES = 10  # that use up all columns: that this site alone has failed tells of its rows
NO_WORDS = np.empty(0, np.uint64)


class SiteAgent:
    """Answers for one site; `close` lets go of its rows and its journal."""

    def __init__(self, policy: Policy, journal: Journal, keys: masks.SiteKeys) -> None:
        self.policy, self.journal, self.keys = policy, journal, keys
        self.rows = SiteRows(policy)
        self._folder = policy.folder / RUNS
        self._lock = Lock()
        self._matrix: LocalMatrix | None = None
        self._run: SiteRun | None = None
        for run in open_runs(self._folder):
            if journal.is_over(run.id):
                run.forget()
                continue
            self._end("another run was opened")
            self._run = run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SiteAgent:
        """Make the agent of a policy file, with the keys and the journal beside it."""
        policy = Policy.read(path)
        keys = masks.SiteKeys.read(policy.folder / policy.keys)
        return cls(policy, Journal(policy.folder / JOURNAL), keys)

    @property
    def name(self) -> str:
        """What the others call this site."""
        return self.policy.name

    @property
    def run(self) -> str:
        """The run that is open here; nothing if none is."""
        return "" if self._run is None else self._run.id

    def close(self) -> None:
        """Let go of rows and journal; a run that is open can be gone on with later."""
        self._matrix = None
        self.rows.close()
        self.journal.close()

    def answer(self, frame: bytes) -> bytes:
        """Reply to a frame, whatever it is."""
        with self._lock:
            about: Any = None
            try:
                most = self.policy.max_bytes
                about = from_frame(frame, most, min(MOST_HEADER, most // 32))
                act: Callable[[Any, bytes], Any] | None = self._actions.get(type(about))
                if act is None:
                    raise SiteRefused(
                        f"{type(about).__name__} is not a question that a site answers"
                    )
                reply = act(about, frame)
                return reply if isinstance(reply, bytes) else to_frame(reply)
            except SiteRefused as no:
                why = "" if no.__cause__ is None else f" ({no.__cause__})"
                return self._refused(str(no), f"{no}{why}", about)
            except Exception as error:  # whatever a frame does, the site goes on
                return self._refused("a message that cannot be taken in", _told(error), about)

    @property
    def _actions(self) -> dict[type, Callable[[Any, bytes], Any]]:
        return {
            **{OpenRun: self._open, Roster: self._join, Ask: self._ask, CloseRun: self._close},
            **{Settle: self._settle, Reveal: self._reveal},
        }

    def _refused(self, reason: str, own: str, about: Any) -> bytes:
        run, number = getattr(about, "run", ""), getattr(about, "round", 0)
        run = run[:MOST_RUN] if isinstance(run, str) else ""
        number = number if type(number) is int and 0 <= number < 1 << 53 else 0
        asked = about.task if isinstance(about, Ask) else about
        task = "" if about is None else type(asked).__name__
        with suppress(OSError):  # a full disk: nothing left, and nothing can be written
            self.journal.write(Entry("refused", run, number, task, text=own[:MOST_TEXT]))
        return to_frame(Refusal(self.name, reason, run, number))

    def _open(self, asked: OpenRun, frame: bytes) -> Any:
        run = self._run
        if run is not None and run.id == asked.run:
            if run.kept.opened != frame:
                raise SiteRefused("this run was opened with other options")
            return run.kept.offer
        if self.journal.knows(asked.run):
            raise SiteRefused("this run is over: begin another")
        check_open(self.policy, self.journal, asked)
        stamp, shape = self._of_data(self.rows.stamp), self._of_data(self.rows.shape)
        if not asked.privacy and shape.rows < self.policy.min_rows:  # that would tell of them
            raise SiteRefused(
                "it has fewer rows than its policy asks for (min_rows): have it lower that, or "
                "leave it out"
            )
        self._end("another run was opened")
        seed = secrets.token_bytes(32)
        reply = to_frame(self._offer(asked, digest_of(frame), seed, shape))
        self._run = SiteRun(self._folder, Kept(seed, frame, reply, stamp))
        self._run.keep()
        text = f"{asked.about}; {asked.secure}; sites {', '.join(asked.sites)}"
        text += f"; version {asked.coordinator_version}"
        hashes = digest_of(frame), digest_of(reply)
        self._note(Entry("opened", asked.run, 0, "OpenRun", *hashes, text=text[:MOST_TEXT]))
        return reply

    def _offer(self, asked: OpenRun, opened: str, seed: bytes, shape: Shape) -> Offer:
        offer = Offer(
            site=self.name,
            run=asked.run,
            opened=opened,
            key=as_bytes(masks.public_key(mask_private(seed))),
            identity=as_bytes(self.keys.public),
            rows=0 if asked.privacy else shape.rows,
            columns=shape.columns,
            dtype=shape.dtype,
            entries=0 if asked.privacy else shape.entries,
            digest=names_digest(shape.names),
        )
        told = shape.names if len(shape.names or ()) <= MOST_NAMES else None
        return replace(self._signed(offer), names=told)

    def _signed(self, message: Signed) -> Signed:
        return replace(message, signature=as_bytes(self.keys.sign(signed_part(message))))

    def _join(self, asked: Roster, frame: bytes) -> Any:
        run = self._known(asked.run)
        if run.roster is not None:
            if run.kept.roster != frame:
                raise SiteRefused("the run has another roster already")
            return Done()
        check_roster(self.policy, run, asked)
        run.join(frame, asked)
        self._note(Entry("joined", run.id, 0, "Roster", digest_of(frame)))
        return Done()

    def _ask(self, asked: Ask, frame: bytes) -> Any:
        run, question = self._known(asked.run), digest_of(frame)
        if run.roster is None:
            raise SiteRefused("the run has no roster yet")
        earlier = self.journal.seen(run.id, asked.round)
        if earlier is not None and earlier.question != question:
            raise SiteRefused("another question was answered in this round")
        if earlier is None and asked.round <= self.journal.rounds(run.id):
            raise SiteRefused("a later round was answered already")
        if asked.prepared != run.prepared and run.kept.prepare != frame:
            raise SiteRefused("its rows were prepared with other options")
        if earlier is None:
            check_ask(self.policy, self.journal, run, asked)
        if self._of_data(self.rows.stamp) != run.kept.stamp:
            raise SiteRefused("its data have changed since the run was opened (data)")
        return self._worked(run, asked, frame, question, earlier)

    def _worked(
        self, run: SiteRun, asked: Ask, frame: bytes, question: str, earlier: Entry | None
    ) -> bytes:
        """Do the work, and take down what leaves before it does."""
        task, masked = asked.task, run.opened.secure != "off"
        charge = 0 if earlier else columns_of(task, self._columns(run))
        entry = Entry("answered", run.id, asked.round, type(task).__name__, question, masked=masked)
        if earlier is None:
            entry = charged(entry, task, self.policy, self.journal)
        try:
            with np.errstate(all="ignore"):
                answer = self._answer(run, asked, frame, question)
        except SiteRefused:
            raise
        except Exception as error:
            return self._failed(replace(entry, columns=charge), error)
        reply = to_frame(self._signed(answer))
        left = replace(entry, answer=digest_of(reply), words=answer.words.size, columns=charge)
        if earlier is None or earlier.kind == "failed":
            self._note(left)
        elif earlier.answer != left.answer:  # the same mask over other numbers would show both
            raise SiteRefused("its numbers are no longer what they were in this round")
        return reply

    def _failed(self, entry: Entry, error: Exception) -> bytes:
        """Say that a task failed. Where numbers may be why, that ends the run, and costs more.

        A coordinator could else find them out, failure by failure.
        """
        failure = to_frame(Failure(self._excuse(error), _kind(error)))
        by_chance = isinstance(error, OSError | MemoryError | DataError)  # no question's doing
        columns = entry.columns if by_chance else -(-self.policy.max_columns // FAILURES)
        told = replace(entry, kind="failed", answer=digest_of(failure), text=_told(error))
        self._note(replace(told, columns=max(entry.columns, columns)))
        if not by_chance:
            self._end("a task failed")
        return failure

    def _answer(self, run: SiteRun, asked: Ask, frame: bytes, question: str) -> Answer:
        task, matrix = asked.task, self._prepared(run)
        answer = Answer(run.id, asked.round, self.name, question, NO_WORDS)
        if isinstance(task, Prepare):
            kernel = task(matrix)
            run.prepare(frame)
            return replace(answer, kernel=kernel.name, noise=float(kernel.noise))
        if isinstance(task, Noised):
            reply: Any = task.noised(matrix, run.noise(question))
        else:
            reply = task(matrix)
        if run.opened.secure == "off":
            return replace(answer, reply=reply)
        words = to_words(task, reply, asked.exponent, asked.bits)
        info = run.info(asked.round, question)
        added, subtracted = run.mask_keys(info)
        if run.opened.secure == "recovery":
            answer = replace(answer, sealed=as_bytes(run.sealed(asked.round, info)))
            added = [*added, run.own_key(info)]
        return replace(answer, words=masks.masked(words, added, subtracted))

    def _prepared(self, run: SiteRun) -> LocalMatrix:
        """The rows as they enter the factorisation, also if the site was started again."""
        if self._matrix is None:
            assert run.roster is not None
            self._matrix = self.rows.matrix(run.dtype, run.opened.sites.index(self.name))
            if run.kept.prepare:
                asked: Ask = from_frame(run.kept.prepare, len(run.kept.prepare))
                asked.task(self._matrix)
        return self._matrix

    def _settle(self, asked: Settle, frame: bytes) -> Any:
        """Agree to a list of sites whose sum is to be opened, before anything is revealed."""
        run = self._known(asked.run)
        self._bind(run, asked, frame)
        text = list_text(run.info(asked.round, asked.question), asked.sites)
        return Settled(run.id, asked.round, self.name, as_bytes(self.keys.sign(text)))

    def _reveal(self, asked: Reveal, frame: bytes) -> Any:
        """Help to open the sum of a list: of all sites, or one that enough have signed."""
        run = self._known(asked.run)
        check_settled(self.policy, self.journal, run, asked)
        info = run.info(asked.round, asked.question)
        if asked.sites != run.opened.sites:
            assert run.roster is not None
            check_signed(asked.sites, asked.signatures, run.roster, list_text(info, asked.sites))
        told = run.revealed(asked, info)
        self._bind(run, asked, frame)
        return self._signed(told)

    def _bind(self, run: SiteRun, asked: Settle | Reveal, frame: bytes) -> None:
        if check_settled(self.policy, self.journal, run, asked) is None:
            kind, hashed = type(asked).__name__, digest_of(frame)
            sites = json.dumps(list(asked.sites))
            self._note(Entry("settled", run.id, asked.round, kind, hashed, text=sites))

    def _of_data(self, look: Callable[[], T]) -> T:
        try:
            return look()
        except (LocalPowerError, OSError, ValueError) as error:
            raise SiteRefused("its data cannot be read; its journal says why (data)") from error

    def _close(self, asked: CloseRun, frame: bytes) -> Any:
        if self._run is not None and self._run.id == asked.run:
            self._end(asked.card[:MOST_TEXT])
        elif not self.journal.is_over(asked.run):
            raise SiteRefused("this run was not opened here")
        return Done()

    def _known(self, name: str) -> SiteRun:
        if self._run is None or self._run.id != name:
            raise SiteRefused("this run is not open here: it is over, or was never begun")
        return self._run

    def _end(self, text: str) -> None:
        """Forget the secrets of the run that is open, if one is."""
        if self._run is not None:
            self._note(Entry("closed", self._run.id, text=text))
            self._run.forget()
        self._run = self._matrix = None

    def _note(self, entry: Entry) -> None:
        try:
            self.journal.write(entry)
        except OSError:
            raise SiteRefused("its journal cannot be written, and so nothing leaves") from None

    def _columns(self, run: SiteRun) -> int:
        assert run.roster is not None
        return run.roster.offers[0].columns

    def _excuse(self, error: Exception) -> str:
        """What the coordinator may know of an error: nothing of rows, values or files."""
        if isinstance(error, OverflowError):
            return (
                f"site {self.name} has numbers that are too large for the sum, or too small: "
                "divide columns by a number that all sites agree on"
            )
        if isinstance(error, DataError):
            return f"site {self.name} has rows that cannot be used; its journal says which"
        return f"a task failed at site {self.name}; its journal says why"


def _kind(error: Exception) -> str:
    return "DataError" if isinstance(error, DataError | OverflowError) else "WorkerFailed"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MOST_TEXT]
