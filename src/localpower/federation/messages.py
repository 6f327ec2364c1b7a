"""What coordinator and sites say to each other, as frames of `worker.wire`.

Every question is one frame that goes to all sites: that all have seen the same bytes is what masks
rest on. A message checks itself when it is made, also of what came over a wire.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localpower.core.errors import SiteRefused, WireError
from localpower.core.ring import MOST_BITS
from localpower.worker import wire
from localpower.worker.tasks import Task

PROTOCOL = "localpower federation 1"
SECURE = ("strict", "recovery", "off")
MOST_SITES = 1000
MOST_TEXT = 1 << 16  # characters
MOST_HEADER = 1 << 20  # bytes of a frame that are no arrays
RUN = re.compile(r"[0-9a-f]{32}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
DIGEST = re.compile(r"[0-9a-f]{64}")
PIN = re.compile(r"sha256:[0-9a-f]{64}")  # of a public key
Bytes = NDArray[np.uint8]


def _none() -> Bytes:
    return np.empty(0, np.uint8)


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class OpenRun:
    """A run is to begin: between which sites, and how.

    `secure` is ``"strict"``, ``"recovery"`` or ``"off"``, `bits` are those of `core.ring`. `about`
    says what the run is for, in the words of the coordinator. `privacy` is (epsilon, delta, clip)
    if the run is private. The reply is an `Offer`.
    """

    run: str
    coordinator_version: str
    sites: tuple[str, ...]
    secure: str
    bits: int
    about: str = ""
    privacy: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        _check(
            _is(self.run, RUN),
            _is_text(self.coordinator_version),
            isinstance(self.sites, tuple) and 1 <= len(self.sites) <= MOST_SITES,
            all(_is(site, NAME) for site in self.sites) and len({*self.sites}) == len(self.sites),
            self.secure in SECURE,
            type(self.bits) is int and 1 <= self.bits <= MOST_BITS,
            _is_text(self.about),
            self.privacy is None or _positive(self.privacy, 3),
        )


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What a site brings into a run: a key for masks, and the shape of its rows.

    `opened` is the SHA-256 of the frame that opened the run, `identity` the site's Ed25519 key and
    `signature` that of all but itself and `names`; `digest` is that of the names of the columns,
    nothing where they have none. In a private run `rows` is 0.
    """

    site: str
    run: str
    opened: str
    key: Bytes
    identity: Bytes
    rows: int
    columns: int
    dtype: str
    entries: int
    digest: str
    signature: Bytes = field(default_factory=_none)
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check(
            _is(self.site, NAME) and _is(self.run, RUN) and _is(self.opened, DIGEST),
            _are_bytes(self.key, 32) and _are_bytes(self.identity, 32),
            _are_bytes(self.signature, 64) or _are_bytes(self.signature, 0),
            _is_count(self.rows) and _is_count(self.columns) and _is_count(self.entries),
            self.dtype in ("float32", "float64"),
            self.digest == "" or _is(self.digest, DIGEST),
            self.names is None
            or (
                isinstance(self.names, tuple) and all(isinstance(name, str) for name in self.names)
            ),
        )


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """All offers, in the order of the sites of `OpenRun`, without names; the reply is `Done`."""

    run: str
    offers: tuple[Offer, ...]

    def __post_init__(self) -> None:
        _check(
            _is(self.run, RUN),
            isinstance(self.offers, tuple) and all(isinstance(each, Offer) for each in self.offers),
        )


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A question of a run. `round` counts them; repeating one repeats the frame.

    Words are written for sums up to ``2**exponent`` with so many `bits`. `prepared` is the SHA-256
    of the last frame that had a `Prepare` in it, nothing before that.
    """

    run: str
    round: int
    exponent: int
    bits: int
    prepared: str
    task: Task[Any]

    def __post_init__(self) -> None:
        _check(
            _is(self.run, RUN),
            _is_count(self.round) and self.round > 0,
            type(self.exponent) is int and abs(self.exponent) <= 2200,
            type(self.bits) is int and 1 <= self.bits <= MOST_BITS,
            self.prepared == "" or _is(self.prepared, DIGEST),
            isinstance(self.task, Task),
        )


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a site says to an `Ask`: words of a sum, masked unless the run is not.

    `question` is the SHA-256 of the frame that is answered. Of a `Prepare`, `kernel` and `noise`
    are told. Where nothing is masked, the plain `reply` stands in the place of words. In a run with
    recovery, `sealed` has a share of the site's own mask for each of the others, which only that
    one can open. `signature` is of all but itself: nobody between site and coordinator can change
    a bit unnoticed.
    """

    run: str
    round: int
    site: str
    question: str
    words: NDArray[np.uint64]
    kernel: str = ""
    noise: float = 0.0
    reply: Any = None
    sealed: Bytes = field(default_factory=_none)
    signature: Bytes = field(default_factory=_none)

    def __post_init__(self) -> None:
        _check(
            _is(self.run, RUN) and _is_count(self.round) and _is(self.site, NAME),
            _is(self.question, DIGEST),
            isinstance(self.sealed, np.ndarray) and self.sealed.dtype == np.uint8,
            isinstance(self.words, np.ndarray) and self.words.dtype == np.uint64,
            _is_text(self.kernel) and type(self.noise) is float and self.noise >= 0,
            _are_bytes(self.signature, 64) or _are_bytes(self.signature, 0),
        )


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Settle:
    """These sites have answered a question, and its sum is to be theirs; the reply is `Settled`."""

    run: str
    round: int
    question: str
    sites: tuple[str, ...]

    def __post_init__(self) -> None:
        _check(
            _is(self.run, RUN) and _is_count(self.round) and _is(self.question, DIGEST),
            isinstance(self.sites, tuple) and all(_is(site, NAME) for site in self.sites),
        )


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A site agrees, and will reveal what belongs to this list in this round, and nothing else."""

    run: str
    round: int
    site: str
    signature: Bytes

    def __post_init__(self) -> None:
        _check(_is(self.run, RUN), _is_count(self.round), _is(self.site, NAME))
        _check(_are_bytes(self.signature, 64))


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Reveal:
    """Open the sum of the sites of a list; the reply is `Shares`.

    `signatures`, (n, 64), are those of `Settled` in the order of the list, zeros where there is
    none; a list of all sites needs none. `sealed` has those of all answers, (m, 48 m), in the order
    of the roster.
    """

    run: str
    round: int
    question: str
    sites: tuple[str, ...]
    signatures: Bytes
    sealed: Bytes

    def __post_init__(self) -> None:
        Settle(self.run, self.round, self.question, self.sites)
        _check(*(_are_rows(each) for each in (self.signatures, self.sealed)))


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """A site's shares of the own masks of sites on the list, and its keys with all others."""

    run: str
    round: int
    site: str
    shares: Bytes
    keys: Bytes
    signature: Bytes = field(default_factory=_none)

    def __post_init__(self) -> None:
        _check(
            _is(self.run, RUN) and _is_count(self.round) and _is(self.site, NAME),
            all(_are_rows(each) and each.shape[1] == 32 for each in (self.shares, self.keys)),
            _are_bytes(self.signature, 64) or _are_bytes(self.signature, 0),
        )


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class CloseRun:
    """A run is over, and its secrets are to be forgotten; `card` is JSON, the account of it."""

    run: str
    card: str

    def __post_init__(self) -> None:
        _check(_is(self.run, RUN), isinstance(self.card, str) and len(self.card) <= MOST_HEADER)


@wire.register
@dataclass(frozen=True, slots=True, eq=False)
class Refusal:
    """A site does not do what was asked of it, in a `round` of a `run` if that could be read."""

    site: str
    reason: str
    run: str = ""
    round: int = 0

    def error(self) -> SiteRefused:
        """Return the exception that the coordinator raises."""
        return SiteRefused(f"site {self.site} refused: {printable(str(self.reason))}")


def printable(text: str) -> str:
    """Text of others that cannot move a cursor, end a line or clear a screen."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def to_frame(message: Any) -> bytes:
    """A message as bytes."""
    return b"".join(wire.encode(message))


def from_frame(frame: bytes, most: int, header: int = MOST_HEADER) -> Any:
    """Read one message of at most so many bytes; takes no more memory than its frame, or little."""
    if not isinstance(frame, bytes) or not wire.PREFIX.size <= len(frame) <= most:
        raise WireError(f"a frame of more than {most} bytes, or none")
    _magic, form, content = wire.PREFIX.unpack_from(frame)
    if form + content > min(len(frame), header):
        raise WireError("a frame with more names and numbers than any has")
    view, at = memoryview(frame), 0

    def fill(part: memoryview) -> None:
        nonlocal at
        if len(part) > len(view) - at:
            raise WireError("a frame that ends too soon")
        part[:] = view[at : (at := at + len(part))]

    message = wire.read(wire.reading(len(frame)), fill)
    if at != len(frame):
        raise WireError("a frame with more after its end")
    return message


def signed_part(message: Offer | Answer | Shares) -> bytes:
    """What a site signs: a hash of all but the signature, and names, whose hash is there."""
    bare = replace(message, signature=_none())
    whole = to_frame(replace(bare, names=None) if isinstance(bare, Offer) else bare)
    return f"{PROTOCOL} {type(message).__name__} ".encode() + sha256(whole).digest()


def names_digest(names: tuple[str, ...] | None) -> str:
    """SHA-256 of the names of columns; nothing where they have none."""
    return "" if names is None else digest_of(json.dumps(names).encode())


def digest_of(frame: bytes) -> str:
    """SHA-256 of some bytes, as text."""
    return sha256(frame).hexdigest()


def as_bytes(raw: bytes) -> Bytes:
    """Bytes as an array, for a message."""
    return np.frombuffer(raw, np.uint8)


def _check(*conditions: bool) -> None:
    if not all(conditions):
        raise ValueError("a message with values that it cannot have")


def _is(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MOST_TEXT


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _are_bytes(value: Any, count: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape == (count,)


def _are_rows(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 2


def _positive(values: Any, count: int) -> bool:
    known = isinstance(values, tuple) and len(values) == count
    return known and all(type(v) in (int, float) and 0 < v < float("inf") for v in values)
