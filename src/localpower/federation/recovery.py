"""Sums that survive the loss of sites (Bonawitz et al., CCS 2017, with keys for each round).

Each answer is masked once more, with a mask of the site's own, of which every site gets a share. A
first hop collects answers; a second has the sites reveal, for every site, either their share of its
own mask (it has answered) or the key that they have in common with it in this round (it has not).
Never both: then its answer would lie open. So a site reveals for one list of sites in a round, and
where that is not all of them, only if more than two thirds have signed it, which takes a hop more.
Lists of a run only get shorter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from localpower.core.errors import MissingExtra, SiteRefused, WorkerLost
from localpower.core.ring import Words
from localpower.federation import masks
from localpower.federation.messages import Bytes, Roster, Shares

try:
    from Crypto.Protocol.SecretSharing import Shamir
except ImportError as error:
    raise MissingExtra("a run with recovery", "federation") from error

HALF = 16  # bytes that Shamir's scheme shares at once
SEALED = 2 * HALF + 16  # a share and its tag


def threshold(sites: int) -> int:
    """How many sites must be there: more than two thirds."""
    return 2 * sites // 3 + 1


def split(secret: bytes, sites: int) -> list[bytes]:
    """A share of 32 secret bytes for each site; `threshold` of them give it back, fewer nothing."""
    halves = [Shamir.split(threshold(sites), sites, secret[at : at + HALF]) for at in (0, HALF)]
    return [first + second for (_, first), (_, second) in zip(*halves, strict=True)]


def joined(shares: Mapping[int, bytes], sites: int) -> bytes:
    """The secret of some shares, by the places of the sites that held them."""
    if len(shares) < threshold(sites):
        raise WorkerLost(f"{len(shares)} of {sites} sites are too few to open a sum")
    few = sorted(shares.items())[: threshold(sites)]
    halves = [[(place + 1, share[at : at + HALF]) for place, share in few] for at in (0, HALF)]
    return b"".join(Shamir.combine(half) for half in halves)


def seal(secret: bytes, info: bytes, sender: int, receiver: int, share: bytes) -> bytes:
    """A share for one site alone; `secret` is what both have in common."""
    key = masks.derived(secret, info + _direction(sender, receiver))
    return ChaCha20Poly1305(key).encrypt(bytes(12), share, None)


def unseal(secret: bytes, info: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
    """Open what another site has sealed for this one."""
    key = masks.derived(secret, info + _direction(sender, receiver))
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        raise SiteRefused("a share was changed on its way") from None


def _direction(sender: int, receiver: int) -> bytes:
    return b" share" + sender.to_bytes(2, "big") + receiver.to_bytes(2, "big")


def list_text(info: bytes, sites: Sequence[str]) -> bytes:
    """What a site signs of a list, for one question."""
    return b"localpower federation 1 list" + info + json.dumps(list(sites)).encode()


def check_list(sites: Sequence[str], roster: Roster, least: int, earlier: Sequence[str]) -> None:
    """Refuse a list that is too short, or has sites that were left out before."""
    known = [offer.site for offer in roster.offers]
    if list(sites) != [site for site in known if site in sites]:
        raise SiteRefused("a list of sites that is not of this run")
    if len(sites) < max(threshold(len(known)), least):
        raise SiteRefused(f"{len(sites)} of {len(known)} sites are too few to open a sum")
    if not {*sites} <= {*earlier}:
        raise SiteRefused("a site is back that was left out before")


def check_signed(sites: Sequence[str], signatures: Bytes, roster: Roster, text: bytes) -> None:
    """Refuse a list that too few of its sites have signed."""
    if len(signatures) != len(sites) or signatures.shape[1] != 64:
        raise SiteRefused("a list without its signatures")
    keys = {offer.site: offer.identity.tobytes() for offer in roster.offers}
    signed = sum(
        masks.is_signed(keys[site], signature.tobytes(), text)
        for site, signature in zip(sites, signatures, strict=True)
    )
    if signed < threshold(len(keys)):
        raise SiteRefused(f"only {signed} of {len(keys)} sites have signed the list")


def opened(
    total: Words, names: Sequence[str], answered: Sequence[str], told: Mapping[str, Shares]
) -> Words:
    """Take the masks off a sum of the words of those that `answered`."""
    places = {name: place for place, name in enumerate(names)}
    missing = [name for name in names if name not in answered]
    gone = [name for name in answered if name not in told]
    if gone and (missing or len(told) < threshold(len(names))):
        raise WorkerLost(f"{', '.join(gone)} left before the sum was opened")
    own = [
        joined({places[by]: bytes(shares.shares[at]) for by, shares in told.items()}, len(names))
        for at in range(len(answered))
    ]
    added: list[bytes] = []
    subtracted = own
    for name in answered if missing else ():
        for other, key in zip(missing, told[name].keys, strict=True):
            (subtracted if places[other] > places[name] else added).append(bytes(key))
    return masks.masked(total, added, subtracted)


def no_signatures(count: int) -> Bytes:
    """Room for signatures that are not there."""
    return np.zeros((count, 64), np.uint8)
