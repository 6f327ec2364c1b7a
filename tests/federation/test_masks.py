"""Masks: published vectors of each part, and what they add up to."""

import os
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from federated import opened, rows, sites

from localpower.core.linalg import orth
from localpower.core.ring import Grid, wide_add, wide_decode, wide_encode
from localpower.engines.ring import InlineRing
from localpower.federation import masks
from localpower.worker.shard import Shard
from localpower.worker.sum_tasks import SmallGram, Spread, Sums
from localpower.worker.tasks import GramTriangle, PowerSteps


def test_x25519_is_that_of_rfc_7748():
    a = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    b = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    A = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    B = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert (masks.public_key(a).hex(), masks.public_key(b).hex()) == (A, B)
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert masks.shared_secret(a, bytes.fromhex(B)).hex() == secret
    assert masks.shared_secret(b, bytes.fromhex(A)).hex() == secret


def test_hkdf_is_that_of_rfc_5869():
    found = masks.derived(b"\x0b" * 22, b"")
    assert found.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_streams_are_chacha20_of_rfc_8439():
    (words,) = masks.stream(bytes(32), 16)
    assert words.astype("<u8").tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def test_a_long_stream_is_one_stream_in_pieces(monkeypatch):
    (whole,) = masks.stream(bytes(32), 1000)
    monkeypatch.setattr(masks, "CHUNK", 64)
    parts = [*masks.stream(bytes(32), 1000)]
    assert len(parts) == 16
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_signatures_are_those_of_rfc_8032():
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    keys = masks.SiteKeys(secret)
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert keys.public.hex() == public
    assert keys.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9"
        "b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert masks.is_signed(keys.public, keys.sign(b"a"), b"a")
    assert not masks.is_signed(keys.public, keys.sign(b"a"), b"b")
    assert not masks.is_signed(keys.public, b"", b"a")
    assert not masks.is_signed(b"", keys.sign(b"a"), b"a")


def test_a_key_of_small_order_is_no_key():
    with pytest.raises(ValueError, match="shared"):
        masks.shared_secret(b"\x01" * 32, bytes(32))


def test_keys_are_kept_in_a_file_that_only_the_owner_reads(tmp_path):
    keys = masks.SiteKeys.generate()
    path = keys.write(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert masks.SiteKeys.read(tmp_path) == keys
    assert [part.name for part in tmp_path.iterdir()] == [masks.IDENTITY]
    assert keys.private.hex() not in repr(keys)


def test_a_key_of_another_kind_is_no_identity(tmp_path):
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other = X25519PrivateKey.generate().private_bytes(*form, serialization.NoEncryption())
    locked = Ed25519PrivateKey.generate().private_bytes(
        *form, serialization.BestAvailableEncryption(b"secret")
    )
    for content in (other, locked, b"", b"no key"):
        (tmp_path / masks.IDENTITY).write_bytes(content)
        with pytest.raises(
            ValueError, match=r"identity\.pem: not an Ed25519 key without a password"
        ):
            masks.SiteKeys.read(tmp_path)


def test_a_secret_that_does_not_get_to_the_disk_leaves_the_old_one_and_no_other(
    tmp_path, monkeypatch
):
    path = tmp_path / "secret"
    masks.write_secret(path, b"old")

    def full(file):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        masks.write_secret(path, b"new")
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_bytes() == b"old"


def test_every_word_of_a_message_of_many_pieces_is_masked(monkeypatch):
    monkeypatch.setattr(masks, "CHUNK", 64)
    keys = [bytes([number]) * 32 for number in range(3)]
    first, second, third = (np.concatenate([*masks.stream(key, 200)]) for key in keys)
    found = masks.masked(np.arange(200, dtype=np.uint64), keys[:2], keys[2:])
    np.testing.assert_array_equal(found, np.arange(200, dtype=np.uint64) + first + second - third)


def pairwise(m, seed=0):
    """Keys that each of m sites adds, and those that it subtracts."""
    rng = np.random.default_rng(seed)
    table = [[rng.bytes(32) for _ in range(m)] for _ in range(m)]
    return [
        ([table[i][j] for j in range(i + 1, m)], [table[j][i] for j in range(i)]) for i in range(m)
    ]


@pytest.mark.parametrize("m", range(3, 51))
def test_masks_of_any_number_of_sites_cancel(m):
    rng = np.random.default_rng(m)
    words = [Grid(3).encode(rng.uniform(-1, 1, 40)) for _ in range(m)]
    wide = [wide_encode(rng.standard_normal(5) * 1e30) for _ in range(m)]
    total, wide_total = np.zeros(40, np.uint64), np.zeros((8, 5), np.uint64)
    for own, own_wide, keys in zip(words, wide, pairwise(m), strict=True):
        hidden = masks.masked(own, *keys)
        assert not (hidden == own).any()
        total += hidden
        wide_total = wide_add(wide_total, masks.masked(own_wide, *keys))
    np.testing.assert_array_equal(total, np.sum(words, axis=0, dtype=np.uint64))
    exact = np.zeros((8, 5), np.uint64)
    for own_wide in wide:
        exact = wide_add(exact, own_wide)
    np.testing.assert_array_equal(wide_total, exact)
    assert np.isfinite(wide_decode(wide_total)).all()


def test_masked_words_look_random():
    words = np.zeros(1 << 14, np.uint64)
    ((added, taken), *_) = pairwise(3)
    bits = np.unpackbits(masks.masked(words, added, taken).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 / (2 * np.sqrt(bits.size))


def test_everything_that_sites_must_agree_on_is_in_the_key():
    same = (b"r" * 32, "ab" * 16, 7, "cd" * 32, "ef" * 32)
    others = (b"s" * 32, "ac" * 16, 8, "", "ee" * 32)
    infos = {masks.mask_info(*same)}
    for at, other in enumerate(others):
        infos.add(masks.mask_info(*same[:at], other, *same[at + 1 :]))
    assert len({masks.derived(b"secret", info) for info in infos}) == len(others) + 1


@pytest.mark.parametrize("m", [3, 6, 20])
def test_sums_of_sites_are_those_of_the_inline_ring_bit_for_bit(tmp_path, m):
    parts = [rows(60 + i, d=4, seed=i) for i in range(m)]
    names = [f"site-{i}" for i in range(m)]
    engine = opened(sites(tmp_path, parts, names, min_rows=1))
    ring = InlineRing()
    ring.place([Shard((part,), 4, np.dtype(float), number=i) for i, part in enumerate(parts)])
    engine.trace = ring.trace = float(sum(np.square(part).sum() for part in parts))
    basis = orth(np.random.default_rng(1).standard_normal((4, 2)))
    asked = Sums(), Spread(np.full(4, 3.0)), PowerSteps(basis, 1), SmallGram(basis), GramTriangle()
    for task in asked:
        own, plain = engine.sum(task), ring.sum(task)
        for name in type(own).__slots__:
            np.testing.assert_array_equal(getattr(own, name), getattr(plain, name))
