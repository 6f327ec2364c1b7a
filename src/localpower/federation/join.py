"""A site's end: it connects to the coordinator, and answers until it is ended."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from localpower.core.errors import WireError
from localpower.data.paths import files
from localpower.federation.agent import SiteAgent
from localpower.federation.identity import (
    POLICY_FILE,
    SERVER_CERTIFICATE,
    TLS_CERTIFICATE,
    TLS_KEY,
    CredentialError,
    name_of,
    read_certificate,
    read_pair,
)
from localpower.federation.journal import NAME as JOURNAL
from localpower.federation.journal import Entry, Journal
from localpower.federation.masks import SiteKeys
from localpower.federation.messages import printable
from localpower.federation.policy import Policy
from localpower.federation.runs import RUNS, open_runs
from localpower.federation.stream import (
    KEEP_ALIVE,
    METHOD,
    SERVICE,
    Assembly,
    grpc,
    options,
    pieces,
)

HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # a name or an address, no URL
CLOSED = "Socket closed", "Handshake read failed", "reset by peer"  # by a server that is there
SHORTEST, LONGEST = 0.1, 1.0  # seconds between two attempts to connect
INSIDE = (
    "`localpower federation init` wrote it into this site's folder; take the whole folder, and "
    "keep keys = as it was"
)

Answer = Callable[[bytes], bytes]
Say = Callable[[str], None]


def serve(
    address: str,
    credentials: Any,
    answer: Answer,
    most: int,
    say: Say,
    keep_alive: float = KEEP_ALIVE,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Connect, answer, and connect again, until something is raised or all `is_over`.

    Of frames of more than `most` bytes nothing is kept; they are answered as if they were empty.
    """
    waits = {"initial": SHORTEST, "min": SHORTEST, "max": LONGEST}
    patience = [(f"grpc.{which}_reconnect_backoff_ms", int(1000 * s)) for which, s in waits.items()]
    more = [*options(keep_alive), *patience, ("grpc.enable_http_proxy", int(is_far(address)))]
    pause, said = SHORTEST, ""
    with grpc.secure_channel(address, credentials, more) as channel:
        while True:
            reason = answer_stream(channel, address, answer, most, say)
            if reason is None and is_over():
                return
            if reason is None:
                pause, said = SHORTEST, waiting(address)
                say("the coordinator has left; waiting for the next run")
            elif reason != said:
                said = reason
                say(reason)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)


def is_far(address: str) -> bool:
    """Whether an address may be on another machine, where a proxy can be on the way."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def credentials_of(name: str, keys: Path) -> Any:
    """The site's key and certificate, and the one certificate that the coordinator must have."""
    key, own, certificate = read_pair(keys, TLS_KEY, TLS_CERTIFICATE, INSIDE)
    server, _ = read_certificate(keys / SERVER_CERTIFICATE, INSIDE)
    if name_of(certificate) != name:
        raise CredentialError(
            f"name = {name!r} in the policy, but {keys / TLS_CERTIFICATE} is of "
            f"{name_of(certificate)!r}: each site uses the folder that was made for it"
        )
    return grpc.ssl_channel_credentials(server, key, own)


def valid_until(keys: Path) -> datetime:
    """When the site's certificate, or the coordinator's, expires."""
    found = [read_certificate(keys / file, INSIDE)[1]
             for file in (TLS_CERTIFICATE, SERVER_CERTIFICATE)]  # fmt: skip
    return min(certificate.not_valid_after_utc for certificate in found)


def answer_stream(channel: Any, address: str, answer: Answer, most: int, say: Say) -> str | None:
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
    except WireError as error:
        return f"{address} sent what is no frame ({error}); connecting again"
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
    if "errors resolving" in details:
        return (
            f"the name in {address} is not known here; waiting until it is. If it is wrong, write "
            "coordinator = in the policy as the coordinator says"
        )
    if "handshake failed" in details:
        return (
            f"another program listens on {address}, and no coordinator; waiting until one does. If "
            "the address is wrong, write coordinator = in the policy as the coordinator says"
        )
    if any(text in details for text in CLOSED):
        return (
            f"what listens on {address} ends the connection at once; trying again. If this stays, "
            "the certificate in this site's folder is of another federation, or another program "
            "has the port: ask the coordinator for a new folder, and where it listens"
        )
    return waiting(address)


def waiting(address: str) -> str:
    """What is said while there is no coordinator."""
    return (
        f"nobody listens on {address} yet; waiting until the coordinator runs localpower fit "
        "--engine sites:federation.toml"
    )


class SpokenJournal(Journal):
    """A journal that also says aloud, in a line for each run, what left and what was refused."""

    def __init__(self, path: Path, say: Say) -> None:
        self._say = say
        self.runs = 0  # that have ended since
        super().__init__(path)

    def write(self, entry: Entry) -> None:
        """Add a line."""
        answers = self.asked(entry.run)
        super().write(entry)
        run = f"run {entry.run[:8]}" if entry.run else "a message"
        if entry.kind == "opened":
            self._say(f"{run} opened: {printable(entry.text)}")
        elif entry.kind == "closed":
            self.runs += 1
            self._say(f"{run} closed: {answers} answers; {self.columns} columns in all runs so far")
        elif entry.kind == "refused":
            self._say(f"{printable(run)} refused: {printable(entry.text)}")


def join(path: str | os.PathLike[str], say: Say, once: bool = False) -> None:
    """Take part in a federation as a policy says, until Ctrl-C; or in one run, if `once`."""
    policy = checked_policy(path)
    keys = policy.folder / policy.keys
    credentials = credentials_of(policy.name, keys)
    identity = SiteKeys.read(keys)
    with closing(SpokenJournal(policy.folder / JOURNAL, say)) as journal:
        agent = SiteAgent(policy, journal, identity)
        try:
            how = policy.coordinator, credentials, agent.answer, policy.max_bytes, say
            serve(*how, is_over=lambda: once and journal.runs > 0)
        finally:
            agent.close()


def new_identity(policy: Policy) -> SiteKeys:
    """Make another identity key in the place of the old one; runs that are open here are over.

    Raises `EngineError` while the site takes part: it would go on with the old key.
    """
    folder, keys = policy.folder / policy.keys, SiteKeys.generate()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not there: keys = {policy.keys!r} must be the folder of this site's keys"
        )
    if (file := policy.folder / JOURNAL).exists():
        with closing(Journal(file)) as journal:
            for run in open_runs(policy.folder / RUNS):
                if not journal.is_over(run.id):
                    journal.write(Entry("closed", run.id, text="the site has a new identity key"))
                run.forget()
    keys.write(folder)
    return keys


def policy_file(path: str | os.PathLike[str]) -> Path:
    """The file of a policy, also where its folder is named."""
    path = Path(path)
    path = path / POLICY_FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: name the policy.toml in the folder that the coordinator gave you"
        )
    return path


def checked_policy(path: str | os.PathLike[str]) -> Policy:
    """Read a policy that a site can take part with; errors say what to write."""
    path = policy_file(path)
    policy = Policy.read(path)
    if not policy.data:
        raise ValueError(f'{path}: data is not set: write data = "your-file.csv" into it')
    found = files(policy.path)
    if not (Path(policy.path).exists() if found is None else found):
        raise FileNotFoundError(
            f"{path}: data = {policy.data!r} is not there; write the path of your rows, relative "
            f"to {path.parent.resolve()}"
        )
    host, _, port = policy.coordinator.rpartition(":")
    if not (HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(
            f'{path}: coordinator = {policy.coordinator!r} must be as "host:8443"; ask the '
            "coordinator where it listens"
        )
    return policy
