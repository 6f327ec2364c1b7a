"""Masks that cancel in a sum over all sites, and the keys behind them.

Two sites have a secret in common (X25519), from which each question gets a key of its own
(HKDF-SHA256) and that a stream of words (ChaCha20). The first of the two adds the stream, the other
subtracts it. The key depends on everything that both must agree on: sites that were told different
things have different masks, which do not cancel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np

from localpower.core.errors import MissingExtra
from localpower.core.ring import Words, wide_add, wide_negative

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise MissingExtra("localpower.federation", "federation") from error

IDENTITY = "identity.pem"  # the file of a site's identity key, in the folder of its keys
PART = ".part"  # ends the name of a file that is being written
CHUNK = 1 << 16  # words of a stream that are made at once
WORD = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class SiteKeys:
    """The identity of a site: its Ed25519 key, by which the other sites know it."""

    private: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> SiteKeys:
        """Make a new identity."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> SiteKeys:
        """Read the identity that `write` has left in a folder."""
        path = Path(folder, IDENTITY)
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: `localpower site key` makes one")
        try:
            key: object = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (TypeError, ValueError, UnsupportedAlgorithm):  # TypeError: it has a password
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(
                f"{path}: not an Ed25519 key without a password; `localpower site key` makes one"
            )
        return cls(key.private_bytes_raw())

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Keep the identity in a file that only its owner can read."""
        path = Path(folder, IDENTITY)
        write_secret(path, self.pem)
        return path

    @property
    def pem(self) -> bytes:
        """The private key as text, not encrypted: the file's permissions protect it."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.private)

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @property
    def fingerprint(self) -> str:
        """What other sites write into their policies, as ``peers``."""
        return fingerprint(self.public)

    def sign(self, message: bytes) -> bytes:
        """Sign some bytes."""
        return self._key.sign(message)


def fingerprint(public: bytes) -> str:
    """SHA-256 of a public key, as policies have it."""
    return f"sha256:{sha256(public).hexdigest()}"


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the holder of this key has signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def write_secret(path: Path, content: bytes) -> None:
    """Write a file at once that nobody else can read, and have it on the disk."""
    part = path.with_name(f"{path.name}.{os.urandom(4).hex()}{PART}")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(file, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def derived(secret: bytes, info: bytes) -> bytes:
    """32 bytes that nobody knows without the secret, others for each `info`: HKDF-SHA256."""
    return HKDF(SHA256(), 32, salt=None, info=info).derive(secret)


def public_key(private: bytes) -> bytes:
    """The X25519 public key of 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared_secret(private: bytes, public: bytes) -> bytes:
    """What two sites have in common: the same from either side. Raises `ValueError` of no key."""
    other = X25519PublicKey.from_public_bytes(public)
    return X25519PrivateKey.from_private_bytes(private).exchange(other)


def mask_info(roster: bytes, run: str, number: int, prepared: str, question: str) -> bytes:
    """All that two sites must agree on for their masks to cancel; each part has one length."""
    parts = roster, bytes.fromhex(run), number.to_bytes(8, "big"), bytes.fromhex(prepared.zfill(64))
    return b"localpower federation 1 mask" + b"".join(parts) + bytes.fromhex(question)


def stream(key: bytes, count: int) -> Iterator[Words]:
    """So many words that look random without the key, in pieces; a key is for one use."""
    pad = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    nothing = memoryview(bytes(WORD.itemsize * min(CHUNK, count)))
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        words = np.frombuffer(pad.update(nothing[: WORD.itemsize * size]), WORD)
        yield words.astype(np.uint64, copy=False)


def random_bytes(key: bytes) -> Callable[[int], bytes]:
    """What gives so many bytes more, which look random without the key; a key is for one use."""
    pad = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda count: pad.update(bytes(count))


def masked(words: Words, added: Sequence[bytes], subtracted: Sequence[bytes]) -> Words:
    """Add the streams of some keys to words, and subtract those of others.

    Words of column sums, (8, n), are numbers of 512 bits: they are masked as such.
    """
    if words.ndim == 2:
        return _masked_wide(words, added, subtracted)
    total = words.copy()
    for keys, change in ((added, np.add), (subtracted, np.subtract)):
        for key in keys:
            at = 0
            for part in stream(key, total.size):
                here = total[at : (at := at + part.size)]
                change(here, part, out=here)
    return total


def _masked_wide(words: Words, added: Sequence[bytes], subtracted: Sequence[bytes]) -> Words:
    total = words
    for keys, sign in ((added, 1), (subtracted, -1)):
        for key in keys:
            pad = np.concatenate([*stream(key, words.size)]).reshape(words.shape)
            total = wide_add(total, pad if sign > 0 else wide_negative(pad))
    return total
