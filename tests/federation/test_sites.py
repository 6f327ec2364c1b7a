"""Sites in processes of their own, over mutual TLS on loopback."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
from helpers import projector_gap, same_bits
from real_sites import PATIENCE, SOURCE, Sites, change, is_free, localpower, told, until

import localpower as lp
from localpower.core.errors import EngineError, WireError, WorkerLate, WorkerLost
from localpower.federation.grpc_link import THREADS, GrpcLink
from localpower.federation.identity import CredentialError, FederationFile
from localpower.federation.join import answer_stream, credentials_of, is_far, serve
from localpower.federation.stream import HEADER, LARGEST_WHOLE, PIECE, Assembly, grpc, pieces

KRYLOV = {"method": "block_krylov:width=6", "tol": 1e-10, "rng": 0}


def alive(sites):
    return {name: process.poll() for name, process in sites.processes.items()}


def secrets_left(sites):
    return [path for name in sites.processes for path in (sites.folder / name / "runs").iterdir()]


@pytest.fixture(scope="module")
def reference(sites):
    """What the inline ring gives of the same shards."""
    return lp.pca(sites.parts, 5, engine="ring", **KRYLOV)


@pytest.fixture(scope="module")
def engine(sites):
    with lp.connect(sites.address) as found:
        yield found


def test_three_sites_give_the_bits_of_the_inline_ring(sites, engine, reference):
    found = lp.pca("sites", 5, engine=engine, **KRYLOV)
    assert same_bits(found, reference)
    assert found.certificate.angle == reference.certificate.angle


def test_three_sites_give_the_components_and_certificate_of_the_pooled_rows(sites, engine):
    pooled = np.vstack(sites.parts)
    found = lp.pca("sites", 5, engine=engine, rng=0)
    exact = np.linalg.svd(pooled - pooled.mean(axis=0))[2][:5].T
    assert found.converged
    assert found.run["rows"] == len(pooled)
    gap = projector_gap(found.components.T, exact)
    assert gap <= found.certificate.angle <= 1e-8


def test_a_site_killed_in_the_middle_of_a_question_comes_back_and_the_bits_are_equal(
    sites, engine, reference
):
    def replace_north(record, state):
        if record.round == 2:
            sites.processes["north"].send_signal(signal.SIGSTOP)  # it gets the next question
            threading.Timer(0.3, again).start()

    def again():
        sites.kill("north")
        sites.start("north")

    found = lp.pca("sites", 5, engine=engine, callback=replace_north, **KRYLOV)
    assert same_bits(found, reference)
    assert secrets_left(sites) == []


def test_nothing_listens_but_the_coordinator_and_it_on_loopback_only(sites, engine):
    def listening(process):
        every = process.net_connections("inet")
        return [(plain(at.laddr.ip), at.laddr.port) for at in every if at.status == "LISTEN"]

    def plain(address):
        return address.removeprefix("::ffff:")  # as it is written on a socket of both kinds

    own = [at for at in listening(psutil.Process()) if at[1] == sites.port]
    assert own == [("127.0.0.1", sites.port)]
    for process in sites.processes.values():
        assert listening(psutil.Process(process.pid)) == []
    every = psutil.net_connections("inet")
    ends = [at for at in every if sites.port in (at.laddr.port, at.raddr and at.raddr.port)]
    assert {plain(at.laddr.ip) for at in ends} == {"127.0.0.1"}


def test_a_second_process_of_a_site_never_takes_the_place_of_a_live_one(sites, engine):
    before = alive(sites)
    keys = sites.folder / "south" / "keys"
    address = f"127.0.0.1:{sites.port}"
    with grpc.secure_channel(address, credentials_of("south", keys)) as channel:
        said = answer_stream(channel, address, lambda frame: frame, 1 << 20, print)
    assert "another process answers as south and is alive" in said
    status, text = told("site", "join", sites.folder / "south" / "policy.toml")
    assert status == 1
    assert "in use by another agent" in text
    assert engine.link.connected == engine.link.names
    assert alive(sites) == before


def test_an_interrupted_run_leaves_no_secrets_and_the_sites_ready(sites, engine, reference):
    def interrupt(record, state):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lp.pca("sites", 5, engine=engine, callback=interrupt, **KRYLOV)
    assert secrets_left(sites) == []
    assert same_bits(lp.pca("sites", 5, engine=engine, **KRYLOV), reference)


def test_a_site_that_signs_with_another_key_than_the_file_pins_is_not_worked_with(sites, engine):
    engine.close()
    text = sites.file.read_text(encoding="utf-8")
    pin = FederationFile.read(sites.file).sites["south"].identity
    other = sites.file.with_name("other.toml")
    other.write_text(text.replace(pin, f"sha256:{'0' * 64}"), encoding="utf-8")
    with pytest.raises(CredentialError, match="south signs with another key"):
        lp.pca("sites", 5, engine=f"sites:{other}", **KRYLOV)
    assert secrets_left(sites) == []


def test_the_command_fits_without_data_and_leaves_nothing(sites, engine, tmp_path, reference):
    engine.close()  # the port is for the command now
    assert is_free(sites.port)
    until(lambda: not [each for each in threading.enumerate() if each.name == THREADS])
    how = "--center", "-k", 5, "--method", KRYLOV["method"], "--tol", KRYLOV["tol"], "--seed", 0
    command = "fit", "--engine", sites.address, *how, "-o", tmp_path / "model"
    status, text = told(*command)
    assert status == 0, text
    assert same_bits(lp.Result.load(tmp_path / "model"), reference)
    assert "converged" in text
    assert is_free(sites.port)
    assert set(alive(sites).values()) == {None}


@contextmanager
def waiting_for_nobody(folder, wait):
    """The command, whose sites never come."""
    lonely = Sites(folder)
    change(lonely.file, "wait = 120", f"wait = {wait}")
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = localpower("fit", "--engine", lonely.address, "-k", 2, **how)
    try:
        yield lonely, process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_ctrl_c_ends_the_wait_for_sites_and_frees_the_port(tmp_path):
    with waiting_for_nobody(tmp_path / "federation", 60) as (lonely, process):
        until(lambda: not is_free_quietly(lonely.port), "listening")
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, text
        assert is_free(lonely.port)


INTERRUPTED_START = """
import os, signal, sys
import grpc._server
from localpower.cli.commands import main

ask_for_a_call = grpc._server._request_call

def interrupted(state):  # in the middle of starting the server
    ask_for_a_call(state)
    os.kill(os.getpid(), signal.SIGINT)

grpc._server._request_call = interrupted
sys.exit(main(["fit", "--engine", sys.argv[1], "-k", "2"]))
"""


def test_ctrl_c_while_the_server_starts_ends_the_command(tmp_path):
    lonely = Sites(tmp_path / "federation")
    command = [sys.executable, "-c", INTERRUPTED_START, lonely.address]
    how = {"env": os.environ | {"PYTHONPATH": SOURCE}, "capture_output": True, "text": True}
    ended = subprocess.run(command, timeout=PATIENCE, **how)
    assert ended.returncode == 130, ended.stderr
    assert is_free(lonely.port)


def is_free_quietly(port):
    try:
        return is_free(port)
    except OSError:
        return False


def test_missing_sites_are_named_with_what_to_run_there(tmp_path):
    with waiting_for_nobody(tmp_path / "federation", 0.2) as (lonely, process):
        text, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert "north, south, west did not connect" in text
        assert "localpower site join north/policy.toml" in text
        assert is_free(lonely.port)


def test_a_port_in_use_is_an_error_that_says_so(tmp_path):
    file = FederationFile.read(Sites(tmp_path / "federation").file)
    link = GrpcLink(file)
    try:
        with pytest.raises(EngineError, match=rf"cannot listen on {file.address}: another program"):
            GrpcLink(file)
    finally:
        link.close()
    GrpcLink(file).close()  # and it is given back at once


@pytest.fixture
def echo(tmp_path):
    """A link, and a function that connects a site in a thread; it echoes what it is sent."""
    sites = Sites(tmp_path / "federation")
    change(sites.file, "wait = 120", "wait = 0.5")
    link = GrpcLink(FederationFile.read(sites.file), keep_alive=1.0)
    stops = []

    class Stop(Exception):
        pass

    def connect(name, answer=lambda frame: frame):
        stopped, said = threading.Event(), []

        def say(text):
            said.append(text)
            if stopped.is_set():
                raise Stop

        credentials = credentials_of(name, sites.folder / name / "keys")
        address = f"127.0.0.1:{sites.port}"

        def run():
            try:
                serve(address, credentials, answer, 1 << 25, say)
            except Stop:
                return

        thread = threading.Thread(target=run)
        thread.start()
        stops.append((stopped, thread))
        until(lambda: name in link.connected, f"{name} connects")
        return said

    yield link, connect
    for stopped, _ in stops:
        stopped.set()
    link.close()
    for _, thread in stops:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_replies_come_as_they_are_ready_and_large_frames_in_pieces(echo):
    link, connect = echo
    slow = threading.Event()
    connect("north", lambda frame: slow.wait(PATIENCE) and frame)
    connect("south")
    frame = os.urandom(LARGEST_WHOLE + 7)
    replies = link.ask(frame, ("north", "south"), PATIENCE)
    assert next(replies) == ("south", frame)
    slow.set()
    assert next(replies) == ("north", frame)
    assert list(replies) == []


def test_a_late_site_is_named_after_the_replies_of_the_others_and_its_late_reply_is_not_taken(echo):
    link, connect = echo
    slow = threading.Event()

    def answer(frame):
        assert frame != b"first" or slow.wait(PATIENCE)
        return frame

    connect("north", answer)
    connect("south")
    replies = link.ask(b"first", ("north", "south"), 0.5)
    assert next(replies) == ("south", b"first")
    with pytest.raises(WorkerLate, match="north: no answer within the deadline"):
        next(replies)
    slow.set()
    assert dict(link.ask(b"second", ("north", "south"), PATIENCE))["north"] == b"second"


def test_a_site_that_is_not_there_is_lost_after_the_wait_of_the_file(echo):
    link, connect = echo
    connect("south")
    replies = link.ask(b"frame", ("west", "south"), None)
    assert next(replies) == ("south", b"frame")
    with pytest.raises(WorkerLost, match=r"west: no answer.*localpower site join policy\.toml"):
        next(replies)


def test_the_proxy_of_a_machine_is_not_asked_for_itself(echo, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody is
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    link, connect = echo
    connect("north")
    assert dict(link.ask(b"frame", ("north",), PATIENCE)) == {"north": b"frame"}
    far = [
        "127.0.0.1:1",
        "localhost:1",
        "[::1]:1",
        "fed.example.org:1",
        "10.0.0.1:1",
        "[fe80::1]:1",
    ]
    assert [is_far(address) for address in far] == [False] * 3 + [True] * 3


def test_a_frame_that_is_too_large_for_a_site_reaches_it_empty(echo):
    link, connect = echo
    connect("north", lambda frame: b"%d" % len(frame))
    assert dict(link.ask(bytes((1 << 25) + 1), ("north",), PATIENCE)) == {"north": b"0"}
    assert dict(link.ask(bytes(1 << 25), ("north",), PATIENCE)) == {"north": b"%d" % (1 << 25)}


def test_a_site_that_no_longer_says_that_it_lives_is_replaced(sites, tmp_path):
    link = GrpcLink(FederationFile.read(sites.file), keep_alive=1.0)
    stopped = sites.processes["north"]
    try:
        assert link.await_sites(PATIENCE, lambda missing: None) == []
        stopped.send_signal(signal.SIGSTOP)
        until(lambda: "north" not in link.connected, "the silent site is given up")
        address, keys = f"127.0.0.1:{sites.port}", sites.folder / "north" / "keys"
        with grpc.secure_channel(address, credentials_of("north", keys)) as channel:

            def answer(frame):
                return b"the new one"

            how = {"args": (channel, address, answer, 1 << 20, lambda text: None)}
            thread = threading.Thread(target=answer_stream, **how)
            thread.start()
            assert dict(link.ask(b"who?", ("north",), PATIENCE)) == {"north": b"the new one"}
            link.close()
            thread.join(PATIENCE)
            assert not thread.is_alive()
    finally:
        stopped.send_signal(signal.SIGCONT)
        link.close()


@pytest.mark.parametrize("size", [0, 1, LARGEST_WHOLE, LARGEST_WHOLE + 1, 5 * PIECE, 5 * PIECE - 1])
def test_pieces_make_the_frame_again(size):
    frame, assembly = os.urandom(size), Assembly(size)
    *early, last = [assembly.add(message) for message in pieces(7, frame)]
    assert set(early) <= {None}
    assert last == (7, frame)


def test_one_frame_comes_after_the_other_and_messages_that_do_not_fit_are_refused():
    assembly = Assembly(1 << 30)
    messages = [*pieces(1, bytes(LARGEST_WHOLE + 1)), *pieces(2, b"x"), *pieces(3, b"")]
    found = [done for message in messages if (done := assembly.add(message)) is not None]
    assert found == [(1, bytes(LARGEST_WHOLE + 1)), (2, b"x"), (3, b"")]
    header = HEADER.pack(3, 2)
    for bad in ([b"short"], [header, b"more"], [header, b""], [header, b"a", b"bc"]):
        assembly = Assembly(100)
        for message in bad[:-1]:
            assert assembly.add(message) is None
        with pytest.raises(WireError):
            assembly.add(bad[-1])


def test_a_frame_of_one_piece_is_not_copied():
    frame, assembly = os.urandom(LARGEST_WHOLE), Assembly(LARGEST_WHOLE)
    assert [assembly.add(message) for message in pieces(1, frame)][-1][1] is frame


def test_pieces_that_are_none_do_not_end_a_site(echo):
    link, connect = echo
    said = connect("north")
    until(lambda: said, "it says that it is connected")
    for broken in (b"short", HEADER.pack(7, 1) + b"longer than it says"):
        before = said.count(said[0])
        link._streams["north"].outbox.put(broken)
        until(lambda before=before: said.count(said[0]) > before, "it connects again")
        until(lambda: "north" in link.connected, "it is taken in")
        assert dict(link.ask(b"frame", ("north",), PATIENCE)) == {"north": b"frame"}
    assert sum("sent what is no frame" in each for each in said) == 2
