"""A run as a site knows it: its secrets and what was agreed on, kept until the run is over.

One file for each run, that only its owner can read: a site that is started again in mid-run goes on
with the same masks.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from localpower.core.errors import SiteRefused, WireError
from localpower.core.gaussian import Stream
from localpower.federation import masks
from localpower.federation.messages import (
    Bytes,
    OpenRun,
    Reveal,
    Roster,
    Shares,
    as_bytes,
    digest_of,
    from_frame,
)
from localpower.federation.recovery import SEALED, seal, split, unseal
from localpower.worker.shard import work_type

RUNS, SUFFIX = "runs", ".json"  # the folder of a site with its open runs, and the files in it
STALE = 7 * 24 * 3600.0  # seconds after which a run that was never closed is forgotten


@dataclass(frozen=True, slots=True)
class Kept:
    """What is in the file of a run: a seed, frames, and the stamp of the data."""

    seed: bytes = field(repr=False)
    opened: bytes
    offer: bytes
    stamp: list[list[Any]]
    roster: bytes = b""
    prepare: bytes = b""
    dealt: bytes = b""

    def write(self, path: Path) -> None:
        """Put it on the disk."""
        told = {
            name: b64encode(value).decode()
            for name in ("seed", "opened", "offer", "roster", "prepare", "dealt")
            if (value := getattr(self, name))
        }
        path.parent.mkdir(mode=0o700, exist_ok=True)
        masks.write_secret(path, json.dumps(told | {"stamp": self.stamp}).encode())

    @classmethod
    def read(cls, path: Path) -> Kept:
        """Read what `write` has written."""
        told = json.loads(path.read_bytes())
        stamp = told.pop("stamp")
        return cls(stamp=stamp, **{name: b64decode(value) for name, value in told.items()})


class SiteRun:
    """An open run at a site."""

    def __init__(self, folder: Path, kept: Kept) -> None:
        self.opened: OpenRun = _read(kept.opened)
        self._path = folder / f"{self.opened.run}{SUFFIX}"
        self.kept = kept
        self.roster: Roster | None = _read(kept.roster) if kept.roster else None

    @property
    def id(self) -> str:
        """What the run is called."""
        return self.opened.run

    def keep(self) -> None:
        """Have all of it on the disk."""
        self.kept.write(self._path)

    def join(self, frame: bytes, roster: Roster) -> None:
        """Agree to who takes part."""
        self.kept, self.roster = replace(self.kept, roster=frame), roster
        self.keep()

    def prepare(self, frame: bytes) -> None:
        """Take down how rows enter the factorisation from now on."""
        if self.kept.prepare != frame:
            self.kept = replace(self.kept, prepare=frame)
            self.keep()

    def forget(self) -> None:
        """Remove all secrets of the run."""
        self._path.unlink(missing_ok=True)

    @property
    def prepared(self) -> str:
        """SHA-256 of the last frame with a `Prepare`; nothing before there is one."""
        return digest_of(self.kept.prepare) if self.kept.prepare else ""

    @property
    def dtype(self) -> str:
        """What all sites work with."""
        assert self.roster is not None
        return work_type(offer.dtype for offer in self.roster.offers).name

    @property
    def rows(self) -> int:
        """Rows of all sites; 0 in a private run."""
        assert self.roster is not None
        return sum(offer.rows for offer in self.roster.offers)

    @cached_property
    def _secrets(self) -> tuple[int, list[bytes]]:
        """The site's own place, and what it has in common with each of the others in order."""
        assert self.roster is not None
        private = mask_private(self.kept.seed)
        own = masks.public_key(private)
        keys = [offer.key.tobytes() for offer in self.roster.offers]
        place = keys.index(own)
        return place, [b"" if key == own else masks.shared_secret(private, key) for key in keys]

    def noise(self, question: str) -> Stream:
        """Random bytes for the noise in the answer to a question, which nobody else knows."""
        return masks.random_bytes(noise_key(self.kept.seed, question))

    @property
    def place(self) -> int:
        """The site's own place in the roster."""
        return self._secrets[0]

    def info(self, number: int, question: str) -> bytes:
        """All that sites agree on when they answer a question."""
        roster = sha256(self.kept.roster).digest()
        return masks.mask_info(roster, self.id, number, self.prepared, question)

    def mask_keys(self, info: bytes) -> tuple[list[bytes], list[bytes]]:
        """Keys of the streams that are added in a round, and of those that are subtracted."""
        place, secrets = self._secrets
        return (
            [masks.derived(secret, info) for secret in secrets[place + 1 :]],
            [masks.derived(secret, info) for secret in secrets[:place]],
        )

    def own_key(self, info: bytes) -> bytes:
        """Key of the site's own mask in a run with recovery."""
        return masks.derived(self.kept.seed, b"own" + info)

    def dealt(self, number: int, info: bytes) -> list[bytes]:
        """Shares of the own key for all sites, the same ones however often they are asked for."""
        assert self.roster is not None
        last: list[Any] = json.loads(self.kept.dealt) if self.kept.dealt else [0, "", []]
        if number < last[0]:
            raise SiteRefused("a later round was answered already")
        if last[:2] != [number, sha256(info).hexdigest()]:
            shares = split(self.own_key(info), len(self.roster.offers))
            last = [number, sha256(info).hexdigest(), [share.hex() for share in shares]]
            self.kept = replace(self.kept, dealt=json.dumps(last).encode())
            self.keep()
        return [bytes.fromhex(share) for share in last[2]]

    def sealed(self, number: int, info: bytes) -> bytes:
        """A share for each of the others, which only that one can open; zeros for itself."""
        place, secrets = self._secrets
        shares = self.dealt(number, info)
        return b"".join(
            seal(secret, info, place, other, share) if other != place else bytes(SEALED)
            for other, (secret, share) in enumerate(zip(secrets, shares, strict=True))
        )

    def revealed(self, asked: Reveal, info: bytes) -> Shares:
        """Shares of the own masks of all on a list, and keys with all that are not."""
        place, secrets = self._secrets
        count = len(secrets)
        if asked.sealed.shape != (count, SEALED * count):
            raise SiteRefused("shares that are not of all sites")
        shares, keys = [], []
        for other, (name, secret) in enumerate(zip(self.opened.sites, secrets, strict=True)):
            if other == place:
                shares.append(self.dealt(asked.round, info)[place])
            elif name in asked.sites:
                own = asked.sealed[other, SEALED * place : SEALED * (place + 1)].tobytes()
                shares.append(unseal(secret, info, other, place, own))
            else:
                keys.append(masks.derived(secret, info))
        site = self.opened.sites[place]
        return Shares(self.id, asked.round, site, _rows(shares), _rows(keys))


def _rows(parts: Sequence[bytes]) -> Bytes:
    return as_bytes(b"".join(parts)).reshape(len(parts), 32)


def noise_key(seed: bytes, question: str) -> bytes:
    """The key of the noise that belongs to a question: the same if it is asked again."""
    return masks.derived(seed, b"localpower federation 1 noise" + bytes.fromhex(question))


def mask_private(seed: bytes) -> bytes:
    """The X25519 key of a run."""
    return masks.derived(seed, b"localpower federation 1 x25519")


def open_runs(folder: Path) -> Sequence[SiteRun]:
    """Runs that were open when the site ended, the latest last; what is too old is removed."""
    found = []
    for part in folder.glob(f"*{masks.PART}"):  # of a site that was killed as it wrote
        part.unlink()
    for path in sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime):
        if time.time() - path.stat().st_mtime > STALE:
            path.unlink()
            continue
        try:
            found.append(SiteRun(folder, Kept.read(path)))
        except (KeyError, TypeError, ValueError, WireError):  # damaged: the run is over
            path.unlink()
    return found


def _read(frame: bytes) -> Any:
    return from_frame(frame, len(frame))
