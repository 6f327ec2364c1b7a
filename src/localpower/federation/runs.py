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

from localpower.core.errors import WireError
from localpower.core.gaussian import Stream
from localpower.federation import masks
from localpower.federation.messages import OpenRun, Roster, digest_of, from_frame

SUFFIX = ".json"
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

    def write(self, path: Path) -> None:
        """Put it on the disk."""
        told = {
            name: b64encode(value).decode()
            for name in ("seed", "opened", "offer", "roster", "prepare")
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
        narrow = all(offer.dtype == "float32" for offer in self.roster.offers)
        return "float32" if narrow else "float64"

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

    def mask_keys(self, number: int, prepared: str, question: str) -> tuple[list[bytes], ...]:
        """Keys of the streams that are added in a round, and of those that are subtracted."""
        place, secrets = self._secrets
        roster = sha256(self.kept.roster).digest()
        info = masks.mask_info(roster, self.id, number, prepared, question)
        return (
            [masks.derived(secret, info) for secret in secrets[place + 1 :]],
            [masks.derived(secret, info) for secret in secrets[:place]],
        )


def noise_key(seed: bytes, question: str) -> bytes:
    """The key of the noise that belongs to a question: the same if it is asked again."""
    return masks.derived(seed, b"localpower federation 1 noise" + bytes.fromhex(question))


def mask_private(seed: bytes) -> bytes:
    """The X25519 key of a run."""
    return masks.derived(seed, b"localpower federation 1 x25519")


def open_runs(folder: Path) -> Sequence[SiteRun]:
    """Runs that were open when the site ended, the latest last; what is too old is removed."""
    found = []
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
