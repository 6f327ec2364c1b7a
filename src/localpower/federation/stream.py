"""What both ends of a stream between a site and its coordinator have in common.

A frame travels as pieces, so that one is encrypted while another is on its way and no limit of gRPC
is met. A piece is the number of the question, the length of the whole frame, and some of its bytes.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from localpower.core.errors import WireError

SERVICE, METHOD = "localpower.Federation", "Serve"
PIECE = 1 << 20  # bytes of a frame in one message
HEADER = struct.Struct("<QQ")
TLS = b"TLSv1.3"
SUITES = "ECDHE-RSA-AES256-GCM-SHA384"  # needs an RSA key in TLS 1.2, and ours are not


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _load() -> tuple[Any, bool]:
    """Import gRPC so that it refuses TLS 1.2, and tell whether that was possible.

    gRPC for Python cannot be told the least version of TLS. It reads a list of ciphers of TLS 1.2
    when it is imported: with one that none of our certificates can use, only TLS 1.3 is left.
    """
    first = "grpc" not in sys.modules
    with _environment({"GRPC_SSL_CIPHER_SUITES": SUITES, "GRPC_VERBOSITY": "NONE"}):
        import grpc
    return grpc, first


grpc, ONLY_TLS13 = _load()


def options(keep_alive: float) -> list[tuple[str, int]]:
    """Options of a channel or server: pings tell whether the other end lives, idle or not."""
    period = int(1000 * keep_alive)
    return [
        ("grpc.max_receive_message_length", PIECE + HEADER.size),
        ("grpc.max_send_message_length", PIECE + HEADER.size),
        ("grpc.keepalive_time_ms", period),
        ("grpc.keepalive_timeout_ms", period),
        ("grpc.http2.ping_timeout_ms", period),  # without it, a minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", period // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),  # a port belongs to one coordinator
    ]


def pieces(number: int, frame: bytes) -> list[bytes]:
    """A frame as messages."""
    view, header = memoryview(frame), HEADER.pack(number, len(frame))
    return [
        b"".join((header, view[start : start + PIECE]))
        for start in range(0, max(1, len(frame)), PIECE)
    ]


class Assembly:
    """Makes frames of pieces; those of another question are dropped.

    Of a frame that is larger than `most` bytes nothing is kept: it comes out empty.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._number = self._size = self._left = 0
        self._parts: list[memoryview] = []

    def add(self, message: bytes) -> tuple[int, bytes] | None:
        """Take the next piece; with the last one, return the number and the whole frame."""
        if len(message) < HEADER.size:
            raise WireError(f"a piece of {len(message)} bytes is too short")
        number, size = HEADER.unpack_from(message)
        if not self._left or (number, size) != (self._number, self._size):
            self._number, self._size, self._left, self._parts = number, size, size, []
        part = memoryview(message)[HEADER.size :]
        if len(part) > self._left or (not part and size):
            raise WireError("the pieces of a frame do not add up")
        self._left -= len(part)
        if size <= self._most:
            self._parts.append(part)
        if self._left:
            return None
        frame, self._parts = b"".join(self._parts), []
        return number, frame
