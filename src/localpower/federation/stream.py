"""What both ends of a stream between a site and its coordinator have in common.

A frame travels as pieces, so that one is encrypted while another is on its way and no limit of gRPC
is met. Before them comes a message with the number of the question and the length of the frame.
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
KEEP_ALIVE = 20.0  # seconds until the other end is asked whether it lives, and until it must say so
LARGEST_WHOLE = 1 << 22  # bytes of a frame that travels as one message
PIECE = 1 << 20  # bytes of a piece of a larger one
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
        ("grpc.max_receive_message_length", LARGEST_WHOLE),
        ("grpc.max_send_message_length", LARGEST_WHOLE),
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
    """A frame as messages; where one is enough, it is the frame itself, which is not copied."""
    header = HEADER.pack(number, len(frame))
    if len(frame) <= LARGEST_WHOLE:
        return [header, frame]
    return [header, *(frame[start : start + PIECE] for start in range(0, len(frame), PIECE))]


class Assembly:
    """Makes frames of messages; of one with more than `most` bytes nothing is kept: it is empty."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._number: int | None = None
        self._size = self._left = 0
        self._parts: list[bytes] = []

    def add(self, message: bytes) -> tuple[int, bytes] | None:
        """Take the next message; with the last one, return the number and the whole frame."""
        if self._number is None:
            if len(message) != HEADER.size:
                raise WireError(f"{len(message)} bytes where the header of a frame belongs")
            self._number, self._size = HEADER.unpack(message)
            self._left, self._parts = self._size, []
            return None
        if len(message) > self._left or not (message or not self._size):
            raise WireError("the pieces of a frame do not add up")
        self._left -= len(message)
        if self._size <= self._most:
            self._parts.append(message)
        if self._left:
            return None
        number, parts, self._number, self._parts = self._number, self._parts, None, []
        return number, parts[0] if len(parts) == 1 else b"".join(parts)
