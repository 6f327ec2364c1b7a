"""The coordinator of a federation: asks all sites, and sees the sum of what they say."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from operator import attrgetter
from time import perf_counter
from typing import Any, TypeVar, cast

import numpy as np

from localpower.core.checks import one_of
from localpower.core.errors import (
    DataError,
    EngineError,
    LocalPowerError,
    WireError,
    WorkerLate,
    WorkerLost,
)
from localpower.core.ledger import weigh
from localpower.core.linalg import fold
from localpower.core.ring import BITS, Grid, Words
from localpower.engines.ring import SumsOnly
from localpower.federation.card import card_of, stopped_card, to_json
from localpower.federation.link import Link
from localpower.federation.masks import is_signed, mask_info
from localpower.federation.messages import (
    SECURE,
    Answer,
    Ask,
    Bytes,
    CloseRun,
    Offer,
    OpenRun,
    Refusal,
    Reveal,
    Roster,
    Settle,
    Settled,
    Shares,
    digest_of,
    from_frame,
    names_digest,
    printable,
    signed_part,
    to_frame,
)
from localpower.federation.policy import PER_COLUMN
from localpower.federation.recovery import SEALED, list_text, no_signatures, opened, threshold
from localpower.result import Result
from localpower.run import Run
from localpower.version import __version__
from localpower.worker import wire
from localpower.worker.host import Failure
from localpower.worker.replies import Done, Kernel, MeasuredReply
from localpower.worker.shard import EngineBlock, OpenBlock, Shard
from localpower.worker.sums import WIDE, from_words, sum_words, word_shape
from localpower.worker.tasks import Measure, Prepare, R, Scatter, Task

Hop = TypeVar("Hop", Settled, Shares)
SITES = "sites"  # what users give as data
UNTOLD = 1  # stands for a number of rows that a private run does not tell
PATIENCE = 2  # times that sites are asked before a sum is opened without them
GOODBYE = 10.0  # seconds that sites have to answer when a run is over
NUMBER = attrgetter("number")


@dataclass(slots=True, eq=False)
class Question:
    """A question on its way: what came of it so far, so that only those missing are asked again."""

    task: Task[Any]
    number: int
    exponent: int
    frame: bytes
    digest: str
    came: dict[str, MeasuredReply[Any]] = field(default_factory=dict)
    sealed: dict[str, Bytes] = field(default_factory=dict)
    total: Words | None = None

    def add(self, words: Words) -> None:
        """Add the words of one more site."""
        if self.total is None:
            self.total = words
        elif isinstance(self.task, WIDE):
            self.total = sum_words(self.task, self.total, words)
        else:
            np.add(self.total, words, out=self.total)


class Federation(SumsOnly):
    """Sites that keep their rows, reached by a link; give ``"sites"`` as data.

    Parameters
    ----------
    link : Link
        What brings frames to the sites.
    secure : {"strict", "recovery", "off"}
        Whether replies are masked, so that only their sum can be seen: so that all sites must
        answer, or so that fewer than a third may be lost on the way, with one hop more in each
        round. Without masks only where the policy of every site allows that, too.
    bits : int
        Of the fraction of numbers that are added.
    """

    latency = 0.02
    bandwidth = 1e7

    def __init__(self, link: Link, *, secure: str = "strict", bits: int = BITS) -> None:
        one_of("secure", secure, SECURE)
        Grid(0, bits)
        self.link, self.secure, self.bits = link, secure, bits
        self.only_sums = secure != "off"
        self._about = ""
        self._privacy: tuple[float, float, float] | None = None
        self._forget()

    def _forget(self) -> None:
        """Be between two runs."""
        self._run = self._prepared = ""
        self._opening = self._roster = b""
        self._offers: dict[str, Offer] = {}
        self._round = 0
        self._question: Question | None = None
        self.absent = frozenset()
        self.trace = 0.0

    @property
    def size(self) -> int:
        return len(self.link.names)

    @property
    def rounding(self) -> float:
        return super().rounding if self.only_sums else 0.0

    @property
    def most_columns(self) -> float:  # type: ignore[override]
        """What policies allow at once, as long as rows are counted."""
        rows = [offer.rows for offer in self._offers.values() if offer.rows]
        return min(rows) // PER_COLUMN if rows else float("inf")

    def takes(self, data: Any) -> bool:
        return isinstance(data, str) and data == SITES

    def adopt(self, data: Any, open_block: OpenBlock) -> Sequence[EngineBlock]:
        """Open a run: have all sites offer what they have, and agree on who takes part."""
        if not self._opening:
            self._forget()
            self._run = secrets.token_hex(16)
            self._opening = to_frame(
                OpenRun(
                    *(self._run, __version__, self.link.names, self.secure, self.bits),
                    *(self._about, self._privacy),
                )
            )
        offers = self._gathered(self._opening, Offer)
        check_offers(offers)
        self._offers = {offer.site: offer for offer in offers}
        roster = to_frame(Roster(self._run, tuple(replace(each, names=None) for each in offers)))
        self._gathered(roster, Done)
        self._roster = sha256(roster).digest()
        self._opening = b""
        return [
            EngineBlock(
                *(o.site, (o.rows or UNTOLD, o.columns), np.dtype(o.dtype), o.entries),
                names=o.names,
            )
            for o in offers
        ]

    def _gathered(self, frame: bytes, kind: type[R]) -> list[R]:
        """What all sites reply to a frame, in order."""
        found: dict[str, R] = {}
        for site, raw in self.link.ask(frame, self.link.names, self.deadline):
            reply = self._taken(site, raw)
            if isinstance(reply, Offer) and not self._is_offered(site, reply):
                continue
            if isinstance(reply, kind):
                found[site] = reply
        self._check_all(found, self.link.names)
        return [found[site] for site in self.link.names]

    def _is_offered(self, site: str, offer: Offer) -> bool:
        """Whether this is an offer for this run, by this site, as it left there."""
        named = offer.names is None or names_digest(offer.names) == offer.digest
        about = site, self._run, digest_of(self._opening)
        whole = (offer.site, offer.run, offer.opened) == about and named
        return whole and _is_signed(offer, offer)

    def _taken(self, site: str, raw: bytes) -> Any:
        """Read what a site sent; None of what belongs to another question, or is damaged."""
        try:
            reply = from_frame(raw, len(raw), wire.MAX_HEADER)
        except WireError:
            return None
        if isinstance(reply, Refusal):
            here = self._run, self._round
            if (reply.run or self._run, reply.round or self._round) != here:
                return None
            raise replace(reply, site=site).error()
        if isinstance(reply, Failure):
            raise replace(reply, text=printable(str(reply.text))).error()
        return reply

    def _check_all(self, found: Mapping[str, Any], wanted: Iterable[str]) -> None:
        missing = [site for site in wanted if site not in found]
        if missing:
            raise WorkerLost(f"no right answer came from {', '.join(missing)}")

    def place(self, shards: Sequence[Shard]) -> None:
        handles = [getattr(piece, "handle", None) for shard in shards for piece in shard.pieces]
        if handles != list(self._offers):
            raise ValueError(f"rows stay at their sites, and none are sent: give {SITES!r} as data")
        super().place(shards)

    def map(self, task: Task[R], order: Iterable[int] | None = None) -> Iterator[R]:
        measured = isinstance(task, Measure)
        inner: Any = task.task if isinstance(task, Measure) else task
        if self.only_sums and not isinstance(inner, Prepare):
            self.check_summable(inner)
            raise EngineError(f"{type(inner).__name__} is summed here, and no single reply is seen")
        if isinstance(inner, Scatter):
            raise ValueError("sites are asked one question all together, and this is one for each")
        key = task.key if isinstance(task, Measure) else ""
        sites = [self.link.names[number] for number in self.numbers(order)]
        asked, fault = self._begun(inner), self._lacking(inner, sites)
        if inner.persists:
            self._prepared = asked.digest
        for site in sites:
            if site in asked.came:
                reply = replace(asked.came[site], key=key)
                yield cast(R, reply) if measured else reply.content
        if fault is not None:
            raise fault

    def _lacking(self, task: Task[Any], sites: Sequence[str]) -> EngineError | None:
        """Ask sites for replies of their own; why some are missing, if the run needs them."""
        try:
            if self.secure == "recovery":
                self._enough(self._begun(task))
                self._question = None
            else:
                self._exchange(task, sites)
        except (WorkerLost, WorkerLate) as error:
            return error
        return None

    def sum(self, task: Task[R]) -> R:
        if not self.only_sums:
            whole = list(self.map(task))  # of a part, nothing is added: it may be asked for again
            return fold(whole, len(whole), own=True)
        question: Task[Any] = task.task if isinstance(task, Measure) else task
        self.check_summable(question)
        asked = self._summed(question)
        assert asked.total is not None
        content: R = from_words(question, asked.total, self.columns, asked.exponent, self.bits)
        if not isinstance(task, Measure):
            return content
        replies = [replace(r, key=task.key) for r in sorted(asked.came.values(), key=NUMBER)]
        return cast(R, replace(self.measured(replies, content), number=0))

    def _summed(self, task: Task[Any]) -> Question:
        """Ask all sites that are there, and add what they say; in words without masks."""
        names = self.link.names
        if self.secure != "recovery":
            return self._exchange(task, names)
        asked = self._begun(task)
        answered = self._enough(asked)
        self._question = None  # its masks are opened for one list: a retry is another question
        assert asked.total is not None
        asked.total = opened(asked.total, names, answered, self._opening_of(asked, answered))
        return asked

    def _enough(self, asked: Question) -> list[str]:
        """Ask all sites that are there; who has answered, if those are enough to go on with."""
        names = self.link.names
        present = [site for place, site in enumerate(names) if place not in self.absent]
        for _ in range(PATIENCE):
            with suppress(WorkerLost, WorkerLate):
                self._collect(asked, present)
                break
        answered = [site for site in names if site in asked.came]
        if len(answered) < threshold(len(names)):
            self._check_all(asked.came, present)
        self.absent = frozenset(names.index(site) for site in names if site not in answered)
        return answered

    def _opening_of(self, asked: Question, answered: Sequence[str]) -> dict[str, Shares]:
        """What sites reveal of the masks of those that have answered."""
        names, about = self.link.names, (self._run, asked.number, asked.digest, tuple(answered))
        signatures = no_signatures(len(answered))
        if len(answered) < len(names):
            settled = self._hop(Settle(*about), Settled)
            if len(settled) < threshold(len(names)):
                self._check_all(settled, answered)
            for site, said in settled.items():
                signatures[answered.index(site)] = said.signature
        sealed = np.zeros((len(names), SEALED * len(names)), np.uint8)
        for site in answered:
            sealed[names.index(site)] = asked.sealed[site]
        return self._hop(Reveal(*about, signatures, sealed), Shares)

    def _hop(self, asked: Settle | Reveal, kind: type[Hop]) -> dict[str, Hop]:
        """What those sites of a list reply that are still there."""
        found: dict[str, Hop] = {}
        frame = to_frame(asked)
        for _ in range(PATIENCE):
            left = [site for site in asked.sites if site not in found]
            if not left:
                break
            with suppress(WorkerLost, WorkerLate):
                for site, raw in self.link.ask(frame, left, self.deadline):
                    reply = self._taken(site, raw)
                    if isinstance(reply, kind) and self._agrees(asked, site, reply):
                        found[site] = reply
        return found

    def _agrees(self, asked: Settle | Reveal, site: str, reply: Settled | Shares) -> bool:
        """Whether this is about this list and round, by this site, as it left there."""
        if (reply.run, reply.round, reply.site) != (self._run, asked.round, site):
            return False
        offer = self._offers[site]
        if isinstance(reply, Shares):
            return _is_signed(reply, offer)
        info = mask_info(self._roster, self._run, asked.round, self._prepared, asked.question)
        signature = reply.signature.tobytes()
        return is_signed(offer.identity.tobytes(), signature, list_text(info, asked.sites))

    def _exchange(self, task: Task[Any], sites: Sequence[str]) -> Question:
        """Ask those sites that have not answered this question yet, until all have."""
        asked = self._begun(task)
        self._collect(asked, sites)
        self._question = None
        return asked

    def _begun(self, task: Task[Any]) -> Question:
        """The question that this task is, the same as before if it is asked again."""
        asked = self._question
        if asked is None or asked.task is not task:
            self._round += 1
            how = self._round, self.exponent if self.only_sums else 0, self.bits, self._prepared
            frame = to_frame(Ask(self._run, *how, task))
            asked = Question(task, self._round, how[1], frame, digest_of(frame))
            self._question = asked
        return asked

    def _collect(self, asked: Question, sites: Sequence[str]) -> None:
        left = [site for site in sites if site not in asked.came]
        began = perf_counter()
        for site, raw in self.link.ask(asked.frame, left, self.deadline):
            answer = self._taken(site, raw)
            if site in left and site not in asked.came and self._fits(asked, site, answer):
                self._keep(asked, site, answer, perf_counter() - began)
        self._check_all(asked.came, sites)

    def _fits(self, asked: Question, site: str, answer: Any) -> bool:
        """Whether this is an answer to this question, by this site, as it left there."""
        if not isinstance(answer, Answer):
            return False
        named = answer.run, answer.round, answer.site, answer.question
        if named != (self._run, asked.number, site, asked.digest):
            return False
        plain = not self.only_sums or isinstance(asked.task, Prepare)
        wanted = (0,) if plain else word_shape(asked.task, self.columns)
        shares = SEALED * len(self.link.names) if self.secure == "recovery" and not plain else 0
        sized = answer.words.shape == wanted and answer.sealed.shape == (shares,)
        return sized and _is_signed(answer, self._offers[site])

    def _keep(self, asked: Question, site: str, answer: Answer, seconds: float) -> None:
        number = self.link.names.index(site)
        content, size = answer.reply, (answer.words.size, answer.words.nbytes)
        if isinstance(asked.task, Prepare):
            content = Kernel(answer.kernel, answer.noise)
        elif not self.only_sums:
            size = weigh(content)
        else:
            asked.add(answer.words)
            asked.sealed[site] = answer.sealed
        asked.came[site] = MeasuredReply(content, *size, 0, 1, "", number, seconds, 1)

    def run_on_coordinator(self, run: Callable[[], R], data: Any, open_block: OpenBlock) -> R:
        """Run a method; then tell the sites that it is over, and add the model card."""
        self._about = run.asked.call({}) if isinstance(run, Run) else ""
        asked = run.asked.privacy if isinstance(run, Run) else None
        self._privacy = None if asked is None else asked.numbers
        try:
            result = run()
        except BaseException as error:
            self._over(stopped_card(*self._who(), self._privacy, type(error).__name__))
            raise
        if not isinstance(result, Result):
            return result
        card = card_of(result, *self._who())
        self._over(card)
        return replace(result, run={**result.run, "federation": card})

    def _who(self) -> tuple[str, list[Offer], str]:
        return self._run, list(self._offers.values()), self.secure

    def _over(self, card: Mapping[str, Any]) -> None:
        """Have the sites forget the run; one that is gone will do so by itself."""
        if self._run:
            frame = to_frame(CloseRun(self._run, to_json(card)))
            limit = min(self.deadline or GOODBYE, GOODBYE)
            with suppress(LocalPowerError, OSError):
                for _ in self.link.ask(frame, self.link.names, limit):
                    pass
        self._forget()

    def close(self) -> None:
        self._over(stopped_card(*self._who(), self._privacy, "the engine was closed"))
        self.link.close()
        super().close()


def _is_signed(message: Offer | Answer | Shares, by: Offer) -> bool:
    public, signature = by.identity.tobytes(), message.signature.tobytes()
    return is_signed(public, signature, signed_part(message))


def check_offers(offers: Sequence[Offer]) -> None:
    """Raise `DataError` where sites have different columns, and say which."""
    first = offers[0]
    named = next((offer for offer in offers if offer.digest), first)
    for offer in offers:
        if offer.columns != first.columns:
            raise DataError(
                f"site {offer.site} has {offer.columns} columns where {first.site} has "
                f"{first.columns}; have all sites choose the same, with columns = […] in their "
                "policies"
            )
        if offer.digest not in ("", named.digest):
            raise DataError(
                f"site {offer.site} and {named.site} have columns of other names or in another "
                f"order{_first_difference(offer, named)}; have both give the same columns = […] in "
                "their policies"
            )


def _first_difference(a: Offer, b: Offer) -> str:
    pairs = enumerate(zip(a.names or (), b.names or (), strict=False))
    found = next(((n, x, y) for n, (x, y) in pairs if x != y), None)
    return "" if found is None else f", as column {found[0]}: {found[1]!r} and {found[2]!r}"
