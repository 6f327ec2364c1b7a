"""Bad credentials are refused, one by one, by a coordinator that waits for its last site.

That the true site is then taken in, and the fit comes to its end, shows that no other was.
"""

import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from real_sites import PATIENCE, SOURCE, Sites, free_port, localpower, told, until

import localpower as lp
from localpower.federation.engine import Federation
from localpower.federation.grpc_link import GrpcLink
from localpower.federation.identity import (
    Credential,
    CredentialError,
    FederationFile,
    authority,
    issue,
    make_federation,
)
from localpower.federation.join import answer_stream, credentials_of, serve
from localpower.federation.messages import Ask, Refusal, from_frame, to_frame
from localpower.federation.stream import METHOD, SERVICE, grpc
from localpower.worker.sum_tasks import Sums


def plain(server):
    """The socket as it is."""
    return server


class Relay:
    """Passes a connection on, and records what the client sends."""

    def __init__(self, port, wrap):
        self.target, self.wrap, self.sent = port, wrap, b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                client, _ = self.socket.accept()
                server = self.wrap(socket.create_connection(("127.0.0.1", self.target), PATIENCE))
                threading.Thread(target=self.copy, args=(client, server), daemon=True).start()
        except OSError:
            return

    def copy(self, client, server):
        """Both ways in one thread: two must not use a TLS socket at the same time."""
        other = {client: server, server: client}
        with client, server:
            while True:
                unread = [server] if self.wrap is not plain and server.pending() else None
                for source in unread or select.select([*other], [], [])[0]:
                    try:
                        source.setblocking(False)
                        data = source.recv(1 << 16)
                        other[source].setblocking(True)
                        other[source].sendall(data)
                    except ssl.SSLWantReadError:  # not a whole record yet, or none with data
                        continue
                    except OSError:
                        return
                    if not data:
                        return
                    self.sent += data * (source is client)


@contextmanager
def relayed(port, wrap=plain):
    relay = Relay(port, wrap)
    try:
        yield relay
    finally:
        relay.socket.close()


def ca_of(sites):
    key = load_pem_private_key((sites.folder / "ca.key").read_bytes(), None)
    return Credential(key, x509.load_pem_x509_certificate((sites.folder / "ca.pem").read_bytes()))


def recorded_session(sites):
    """What the true north sends when it connects and answers: recorded between the two."""
    link = GrpcLink(FederationFile.read(sites.file))
    with closing(link), relayed(sites.port) as relay:
        address = f"127.0.0.1:{relay.port}"
        credentials = credentials_of("north", sites.folder / "north" / "keys")
        with grpc.secure_channel(address, credentials) as channel:
            how = channel, address, lambda frame: frame, 1 << 20, lambda text: None
            thread = threading.Thread(target=answer_stream, args=how)
            thread.start()
            assert dict(link.ask(b"question", ("north",), PATIENCE)) == {"north": b"question"}
            link.close()
            thread.join(PATIENCE)
        return relay.sent


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A fit that waits for the north alone; at the end the true north comes, and the fit is done.

    A site of the same authority, east, is not in the coordinator's file.
    """
    folder = tmp_path_factory.mktemp("credentials")
    sites = Sites(folder / "federation")
    sites.session = recorded_session(sites)
    sites.start("south", "west")
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = localpower("fit", "--engine", sites.address, "-k", 2, "-o", folder / "model", **how)
    try:
        for name in ("south", "west"):
            until(lambda name=name: "connected" in sites.log(name), f"{name} connects")
        yield sites
        assert process.poll() is None, process.stdout.read()
        sites.start("north")
        text, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, text
        assert lp.Result.load(folder / "model").run["rows"] == sum(map(len, sites.parts))
        assert set(sites.stop().values()) == {0}
    finally:
        process.kill()
        process.communicate()
        for name in tuple(sites.processes):
            sites.kill(name)


def server_pem(sites):
    return (sites.folder / "coordinator.pem").read_bytes()


def refused(sites, credentials):
    """Try to connect with some credentials; the status and what was said."""
    address = f"127.0.0.1:{sites.port}"
    with grpc.secure_channel(address, credentials) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(()), timeout=PATIENCE)
        with pytest.raises(grpc.RpcError) as error:
            list(call)
    return error.value.code(), error.value.details()


def signed_by(ca, sites, name="north", **how):
    own = issue(ca, name, **how)
    return grpc.ssl_channel_credentials(server_pem(sites), own.secret, own.pem)


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
DENIED = grpc.StatusCode.PERMISSION_DENIED


def test_no_certificate(waiting):
    code, _ = refused(waiting, grpc.ssl_channel_credentials(server_pem(waiting)))
    assert code is UNAVAILABLE


def test_a_certificate_of_a_foreign_authority(waiting):
    code, _ = refused(waiting, signed_by(authority(), waiting))
    assert code is UNAVAILABLE


def test_an_expired_certificate(waiting):
    code, _ = refused(waiting, signed_by(ca_of(waiting), waiting, days=-1))
    assert code is UNAVAILABLE


def test_a_site_that_was_removed_from_the_file(waiting):
    code, said = refused(waiting, signed_by(ca_of(waiting), waiting, "east"))
    assert code is DENIED
    assert "east is not in the coordinator's file" in said


def test_the_name_of_another_site(waiting):
    code, said = refused(waiting, signed_by(ca_of(waiting), waiting, "north"))
    assert code is DENIED
    assert "not the one that is pinned for north" in said


def test_a_server_certificate_is_none_of_a_site(waiting):
    keys = [(waiting.folder / f"coordinator.{kind}").read_bytes() for kind in ("key", "pem")]
    code, _ = refused(waiting, grpc.ssl_channel_credentials(server_pem(waiting), *keys))
    assert code is UNAVAILABLE


def test_the_wrong_host(waiting, tmp_path):
    """A site connects only to the name that the coordinator's certificate is for."""
    address = f"localhost:{waiting.port}"
    credentials = credentials_of("north", waiting.folder / "north" / "keys")
    with pytest.raises(CredentialError, match=f"certificate is not for {address}"):
        serve(address, credentials, lambda frame: frame, 1, lambda text: None)


class Said(Exception):
    """What a site says first."""


def first_words(port, credentials):
    def say(text):
        raise Said(text)

    with pytest.raises(Said) as found:
        serve(f"127.0.0.1:{port}", credentials, lambda frame: frame, 1, say)
    return str(found.value)


def test_a_site_does_not_say_that_nobody_listens_where_somebody_does(waiting, tmp_path):
    make_federation(tmp_path, ["north", "south"])
    keys = tmp_path / "north" / "keys"
    (keys / "coordinator.pem").write_bytes(server_pem(waiting))
    said = first_words(waiting.port, credentials_of("north", keys))
    assert "ends the connection at once" in said
    assert "is of another federation" in said

    def answer(server):
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(1)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    own = credentials_of("north", waiting.folder / "north" / "keys")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        said = first_words(server.getsockname()[1], own)
    assert "another program listens on 127.0.0.1" in said
    assert "nobody listens" in first_words(free_port(), own)


def test_another_server_of_the_same_authority(waiting):
    """The coordinator's own certificate is pinned: another of the same authority is refused."""
    other = issue(ca_of(waiting), "coordinator", "127.0.0.1")
    server = grpc.server(None)
    pair = [(other.secret, other.pem)]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    server.start()
    credentials = credentials_of("north", waiting.folder / "north" / "keys")
    try:
        with pytest.raises(CredentialError, match=r"does not show the certificate in coordinator"):
            serve(f"127.0.0.1:{port}", credentials, lambda frame: frame, 1, lambda text: None)
    finally:
        server.stop(0).wait(PATIENCE)


def tls(folder, version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(folder / "tls.pem", folder / "tls.key")
    context.set_alpn_protocols(["h2"])
    return context


def test_tls_1_2(waiting):
    keys = waiting.folder / "north" / "keys"

    def handshake(version):
        plain = socket.create_connection(("127.0.0.1", waiting.port), PATIENCE)
        with tls(keys, version).wrap_socket(plain) as secured:
            return secured.version()

    assert handshake(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"  # the same keys are good for this
    with pytest.raises(ssl.SSLError):
        handshake(ssl.TLSVersion.TLSv1_2)


def test_tls_1_2_is_refused_where_somebody_else_imported_grpc_first(tmp_path):
    """Then gRPC shakes hands, but no stream is taken in."""
    script = """
import ssl, sys
import grpc
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from test_credentials import (FederationFile, GrpcLink, METHOD, PATIENCE, SERVICE, closing, relayed,
                              tls)
from localpower.federation.stream import ONLY_TLS13
assert not ONLY_TLS13
file = FederationFile.read(sys.argv[1])
keys = file.path.parent / "north" / "keys"
for version in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
    wrap = tls(keys, version).wrap_socket
    with closing(GrpcLink(file)), relayed(file.port, wrap) as relay:
        with grpc.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(()), timeout=PATIENCE)
            call.initial_metadata()
            print(version.name, call.code(), call.details())
"""
    file = make_federation(tmp_path / "federation", ["north", "south"], port=free_port())
    how = [str(Path(__file__).parent), str(Path(__file__).parents[1]), SOURCE]
    command = [sys.executable, "-c", script, str(file), *how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    first, second = done.stdout.splitlines() or [done.stderr, ""]
    assert first.startswith(
        "TLSv1_2 StatusCode.PERMISSION_DENIED this connection is not TLS 1.3"
    ), done.stderr
    assert second.startswith("TLSv1_3 StatusCode.OK")


def test_plaintext(waiting):
    with grpc.insecure_channel(f"127.0.0.1:{waiting.port}") as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(()), timeout=PATIENCE)
        with pytest.raises(grpc.RpcError) as error:
            list(call)
    assert error.value.code() is UNAVAILABLE
    with socket.create_connection(("127.0.0.1", waiting.port), PATIENCE) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in plain.recv(100)


def test_a_recorded_session_that_is_played_again(waiting):
    """It was good once; the server's part of the handshake is another each time."""
    assert len(waiting.session) > 1000
    with socket.create_connection(("127.0.0.1", waiting.port), PATIENCE) as again:
        again.sendall(waiting.session)
        until(lambda: closed(again), "the connection ends")


def closed(connection):
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


def test_frames_of_a_run_that_is_over_and_of_one_that_never_was(sites):
    """Played again by the coordinator itself, which has all keys."""
    kept = []

    class Recording(GrpcLink):
        def ask(self, frame, names, deadline=None):
            kept.append(frame)
            return super().ask(frame, names, deadline)

    link = Recording(FederationFile.read(sites.file))
    with closing(Federation(link)) as engine:
        assert link.await_sites(PATIENCE, lambda missing: None) == []
        lp.pca("sites", 2, engine=engine)
        *frames, _close = list(kept)
        assert len(frames) > 5
        for frame in [*frames, to_frame(Ask("0" * 32, 1, 0, 60, "", Sums()))]:
            for _site, raw in link.ask(frame, link.names, PATIENCE):
                assert isinstance(from_frame(raw, len(raw)), Refusal)


def test_a_site_with_the_folder_of_another(waiting, tmp_path):
    folder = tmp_path / "north"
    shutil.copytree(waiting.folder / "north", folder)
    shutil.rmtree(folder / "keys")
    shutil.copytree(waiting.folder / "south" / "keys", folder / "keys")
    status, text = told("site", "join", folder / "policy.toml")
    assert status == 1
    assert "name = 'north' in the policy" in text
    assert "is of 'south'" in text
