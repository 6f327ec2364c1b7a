"""The coordinator's end: a gRPC server that sites connect to, each with one long stream.

Mutual TLS 1.3: a site is who its certificate says, and its public key is the one that the
coordinator's file pins. A site that comes back in the middle of a question is asked it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Condition, Thread, current_thread
from typing import Any

from cryptography import x509

from localpower.core.errors import EngineError, WireError, WorkerLate, WorkerLost
from localpower.federation.identity import (
    CA_CERTIFICATE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    CredentialError,
    FederationFile,
    certificate_pin,
    name_of,
    read_certificate,
    read_pair,
)
from localpower.federation.link import Link
from localpower.federation.stream import (
    KEEP_ALIVE,
    METHOD,
    ONLY_TLS13,
    SERVICE,
    TLS,
    Assembly,
    grpc,
    options,
    pieces,
)

LARGEST = 1 << 32  # bytes of an answer
ENDING = 5.0  # seconds for streams and threads to end
THREADS = "localpower sites"
BESIDE = "it belongs beside the coordinator's file, where `localpower federation init` wrote it"


@dataclass(eq=False, slots=True)
class Stream:
    """A connected site: what is to be sent to it, until None."""

    outbox: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)


@dataclass(eq=False, slots=True)
class PendingQuestion:
    """What is being asked, and of whom there is no answer yet."""

    number: int
    messages: list[bytes]
    waiting: set[str]
    since: float
    answers: list[tuple[str, bytes]] = field(default_factory=list)


class DaemonThreads(Executor):
    """A thread for each call, which does not keep the process from ending."""

    def submit(self, call: Callable[..., Any], /, *given: Any) -> Future[Any]:  # type: ignore[override]
        """Run in a new thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(call(*given))
            except BaseException as error:
                future.set_exception(error)

        Thread(target=run, name=THREADS, daemon=True).start()
        return future


class GrpcLink(Link):
    """Brings frames to the sites of a federation that have connected.

    Parameters
    ----------
    file
        The coordinator's file, with its keys beside it.
    keep_alive
        Seconds after which a silent site is asked whether it lives, and after which it is not.
    """

    def __init__(self, file: FederationFile, keep_alive: float = KEEP_ALIVE) -> None:
        self.file, self.names = file, tuple(file.sites)
        self._changed = Condition()
        self._streams: dict[str, Stream] = {}
        self._left: dict[str, float] = {}
        self._question: PendingQuestion | None = None
        self._number = 0
        self._threads: set[Thread] = set()
        # An interrupt inside of gRPC would leave a server that nothing can end: a thread starts it.
        starting = DaemonThreads().submit(self._listen, keep_alive)
        try:
            self._server = starting.result()
        except KeyboardInterrupt:
            starting.result(ENDING).stop(0)
            raise

    def _listen(self, keep_alive: float) -> Any:
        folder, file = self.file.path.parent, self.file
        key, chain, _ = read_pair(folder, SERVER_KEY, SERVER_CERTIFICATE, BESIDE)
        ca, _ = read_certificate(folder / CA_CERTIFICATE, BESIDE)
        most = 4 * len(self.names) + 16
        server = grpc.server(
            DaemonThreads(), options=options(keep_alive), maximum_concurrent_rpcs=most
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        handlers = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
        server.add_generic_rpc_handlers((handlers,))
        try:
            server.add_secure_port(
                file.address, grpc.ssl_server_credentials([(key, chain)], ca, True)
            )
        except RuntimeError:
            raise EngineError(
                f"cannot listen on {file.address}: another program has this port, or it is no "
                f"address of this machine; end that program, or change host and port in "
                f"{file.path} and in the policies of the sites"
            ) from None
        server.start()
        return server

    @property
    def connected(self) -> tuple[str, ...]:
        """The sites that are connected now."""
        with self._changed:
            return tuple(name for name in self.names if name in self._streams)

    def await_sites(self, seconds: float, show: Callable[[Sequence[str]], None]) -> list[str]:
        """Wait until all sites are connected; return those that are not by then."""
        end = time.monotonic() + seconds
        with self._changed:
            while missing := [name for name in self.names if name not in self._streams]:
                show(missing)
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    break
            return missing

    def ask(
        self, frame: bytes, sites: Sequence[str], deadline: float | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Bring one frame to these sites at the same time; yield replies as they come."""
        end = time.monotonic() + (self.file.answer if deadline is None else deadline)
        question = self._put(frame, sites)
        try:
            while question.waiting or question.answers:
                with self._changed:
                    if not question.answers:
                        self._changed.wait(self._patience(question, end))
                    answers, question.answers = question.answers, []
                yield from answers
        finally:
            with self._changed:
                if self._question is question:
                    self._question = None

    def _put(self, frame: bytes, sites: Sequence[str]) -> PendingQuestion:
        messages = pieces(self._number + 1, frame)
        with self._changed:
            self._number += 1
            question = PendingQuestion(self._number, messages, set(sites), time.monotonic())
            self._question = question
            for name in sites:
                if name in self._streams:
                    self._send(self._streams[name], question)
        return question

    def _send(self, stream: Stream, question: PendingQuestion) -> None:
        for message in question.messages:
            stream.outbox.put(message)

    def _patience(self, question: PendingQuestion, end: float) -> float:
        """Seconds to wait for the next answer; raises if nothing can come any more."""
        now = time.monotonic()
        away = [max(self._left.get(name, 0.0), question.since) + self.file.wait
                for name in question.waiting if name not in self._streams]  # fmt: skip
        if len(away) == len(question.waiting):
            end = min(end, max(away))
        if now < end:
            return end - now
        names = ", ".join(name for name in self.names if name in question.waiting)
        if away:
            raise WorkerLost(
                f"{names}: no answer, and {len(away)} not connected; there, run localpower site "
                "join policy.toml"
            )
        raise WorkerLate(f"{names}: no answer within the deadline")

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Take in a site that connects, and send it what there is to send."""
        try:
            name = self._admitted(context.auth_context())
        except CredentialError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        stream = Stream()
        with self._changed:
            if name in self._streams:
                context.abort(
                    grpc.StatusCode.ALREADY_EXISTS,
                    f"another process answers as {name} and is alive: end that one",
                )
            if not context.add_callback(lambda: self._leave(name, stream)):
                return iter(())
            self._streams[name] = stream
            if self._question is not None and name in self._question.waiting:
                self._send(stream, self._question)
            reader = Thread(
                target=self._receive, args=(name, stream, requests), name=THREADS, daemon=True
            )
            self._threads.add(reader)
            reader.start()
            self._changed.notify_all()
        context.send_initial_metadata(())  # it is accepted
        return iter(stream.outbox.get, None)

    def _admitted(self, auth: Any) -> str:
        """Name the site that has connected, if it is one of ours."""
        if auth.get("ssl_tls_version", [TLS] if ONLY_TLS13 else []) != [TLS]:
            raise CredentialError("this connection is not TLS 1.3, which is required")
        certificate = x509.load_pem_x509_certificate(auth["x509_pem_cert"][0])
        name = name_of(certificate)
        member = self.file.sites.get(name)
        if member is None:
            raise CredentialError(f"{name} is not in the coordinator's file: ask to be added")
        if certificate_pin(certificate) != member.certificate:
            raise CredentialError(
                f"the key of this certificate is not the one that is pinned for {name}: take the "
                "keys that `localpower federation init` made for it"
            )
        return name

    def _receive(self, name: str, stream: Stream, requests: Iterator[bytes]) -> None:
        """Collect the answers of a site until it leaves."""
        assembly = Assembly(LARGEST)
        try:
            for message in requests:
                if (done := assembly.add(message)) is not None:
                    self._answered(name, *done)
        except (WireError, grpc.RpcError, ValueError):  # torn, or gone
            pass
        finally:
            self._leave(name, stream)
            with self._changed:
                self._threads.discard(current_thread())

    def _answered(self, name: str, number: int, reply: bytes) -> None:
        with self._changed:
            question = self._question
            if question is not None and number == question.number and name in question.waiting:
                question.waiting.discard(name)
                question.answers.append((name, reply))
                self._changed.notify_all()

    def _leave(self, name: str, stream: Stream) -> None:
        """A stream has ended."""
        with self._changed:
            if self._streams.get(name) is stream:
                del self._streams[name]
                self._left[name] = time.monotonic()
                self._changed.notify_all()
        stream.outbox.put(None)

    def close(self) -> None:
        """End all streams, and give back the port."""
        with self._changed:
            streams, threads = list(self._streams.values()), list(self._threads)
        for stream in streams:
            stream.outbox.put(None)
        self._server.stop(ENDING / 5).wait(ENDING)
        for thread in threads:
            thread.join(ENDING)
