"""A site's end: it connects to the coordinator, and answers until it is ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cryptography import x509

from localpower.federation.identity import (
    SERVER_CERTIFICATE,
    TLS_CERTIFICATE,
    TLS_KEY,
    CredentialError,
    check_valid,
    name_of,
)
from localpower.federation.stream import METHOD, SERVICE, Assembly, grpc, options, pieces

KEEP_ALIVE = 20.0  # seconds, as of the coordinator
SHORTEST, LONGEST = 0.1, 5.0  # seconds between two attempts to connect

Answer = Callable[[bytes], bytes]
Say = Callable[[str], None]


def serve(
    address: str,
    name: str,
    keys: Path,
    answer: Answer,
    most: int,
    say: Say,
    keep_alive: float = KEEP_ALIVE,
) -> None:
    """Connect as the site `name`, answer, and connect again, until something is raised.

    Frames of more than `most` bytes end the stream before they are kept.
    """
    credentials = credentials_of(name, keys)
    patience = [(f"grpc.{which}_reconnect_backoff_ms", int(1000 * seconds))
                for which, seconds in (("initial", SHORTEST), ("min", SHORTEST), ("max", LONGEST))]
    more = [*options(keep_alive), *patience]  # fmt: skip
    pause, said = SHORTEST, ""
    with grpc.secure_channel(address, credentials, more) as channel:
        while True:
            reason = answer_stream(channel, address, answer, most, say)
            if reason is None:
                pause, reason = SHORTEST, "the coordinator has left; waiting for the next run"
            if reason != said:
                say(reason)
            said = reason
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)


def credentials_of(name: str, keys: Path) -> Any:
    """The site's key and certificate, and the one certificate that the coordinator must have."""
    key, own, server = (
        read_key(keys / file) for file in (TLS_KEY, TLS_CERTIFICATE, SERVER_CERTIFICATE)
    )
    certificate = x509.load_pem_x509_certificate(own)
    check_valid(certificate, f"{keys / TLS_CERTIFICATE}")
    check_valid(x509.load_pem_x509_certificate(server), f"{keys / SERVER_CERTIFICATE}")
    if name_of(certificate) != name:
        raise CredentialError(
            f"name = {name!r} in the policy, but {keys / TLS_CERTIFICATE} is of "
            f"{name_of(certificate)!r}: each site uses the folder that was made for it"
        )
    return grpc.ssl_channel_credentials(server, key, own)


def read_key(path: Path) -> bytes:
    """Read a file of keys; say where it comes from if it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CredentialError(
            f"{path} is missing: `localpower federation init` wrote it into this site's folder; "
            "take the whole folder, and keep keys = as it was"
        ) from None


def answer_stream(
    channel: Any, address: str, answer: Answer, most: int, say: Say
) -> str | None:
    """Answer as long as a stream lasts.

    Returns why there is none, or None if the coordinator has ended it. Raises what cannot get
    better by itself.
    """
    outbox: SimpleQueue[bytes | None] = SimpleQueue()
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outbox.get, None))
    connected = False
    try:
        call.initial_metadata()  # waits until this site is taken in, or refused
        if call.is_active():
            connected = True
            say(f"connected to {address}")
        assembly = Assembly(most)
        for message in call:
            if (done := assembly.add(message)) is not None:
                number, frame = done
                for piece in pieces(number, answer(frame)):
                    outbox.put(piece)
    except grpc.RpcError as error:
        reason = explained(error, address)
        return None if connected else reason
    finally:
        outbox.put(None)
        call.cancel()
    return None


def explained(error: Any, address: str) -> str:
    """Say why a stream has ended; raise if it is for the user to mend."""
    code, details = error.code(), str(error.details())
    if code is grpc.StatusCode.PERMISSION_DENIED:
        raise CredentialError(f"the coordinator refuses this site: {details}")
    if "CERTIFICATE_VERIFY_FAILED" in details:
        raise CredentialError(
            f"{address} does not show the certificate in {SERVER_CERTIFICATE}: it is another "
            "server, or an expired certificate; ask the coordinator for a new folder"
        )
    if "not in peer certificate" in details or "Hostname Verification" in details:
        raise CredentialError(
            f"the coordinator's certificate is not for {address}: write coordinator = in the "
            "policy as it was made, or ask for `localpower federation init --host` with this name"
        )
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return details
    return (
        f"nobody listens on {address} yet; waiting until the coordinator runs localpower fit "
        "--engine sites:federation.toml"
    )
