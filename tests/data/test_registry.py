"""The paper's data sets are found where they should be, and downloaded whole or not at all."""

import contextlib
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from localpower.core.errors import DataError
from localpower.data.source import open_source
from localpower.paper import datasets as registry
from localpower.paper.datasets import (
    DATA_SETS,
    cache_folder,
    download,
    find,
    how_to_get,
    search_path,
    sha256,
    verify,
)
from localpower.paper.datasets import (
    data_set as look_up,
)

CONTENT = np.random.default_rng(0).bytes(300_001)
CUT = 120_000
LONG_AGO = formatdate(86400, usegmt=True)

PAPER = {  # rows, columns, rounds of the tables, rounds of the figures
    "a9a": (32561, 123, 30, 30),
    "abalone": (2114, 8, 15, 20),
    "acoustic": (78823, 50, 30, 30),
    "aloi": (108000, 128, 30, 40),
    "combined": (78823, 100, 40, 40),
    "connect-4": (7990, 125, 40, 40),
    "covtype": (581012, 54, 30, 30),
    "housing": (506, 13, 15, 20),
    "ijcnn1": (49990, 22, 70, 100),
    "mnist": (60000, 780, 30, 30),
    "poker": (25010, 10, 20, 20),
    "space_ga": (3107, 6, 15, 20),
    "splice": (1000, 24, 30, 40),
    "w8a": (49749, 300, 20, 20),
    "msd": (463715, 90, 20, 20),
}
AT_HAND = {
    "a9a": (32561, 123),
    "abalone": (4177, 8),
    "connect-4": (67557, 126),
    "covtype": (581012, 54),
    "housing": (506, 13),
    "ijcnn1": (49990, 22),
    "mnist": (60000, 780),
    "poker": (25010, 10),
    "space_ga": (3107, 6),
    "splice": (1000, 60),
    "w8a": (49749, 300),
}


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; each request is answered in the next of the server's `moods`."""

    def do_GET(self):
        self.server.seen.append(dict(self.headers))
        mood = self.server.moods.pop(0) if self.server.moods else "good"
        if isinstance(mood, int):
            self.send_error(mood)
        elif mood.startswith("to "):
            self.head(302, 0, {"Location": mood[3:]})
        else:
            self.serve(mood)

    def serve(self, mood):
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked is None or mood == "no ranges":
            return self.body(200, CONTENT, mood, {})
        start = int(asked[1])
        if start >= len(CONTENT):
            return self.send_error(416)
        if self.headers["If-Unmodified-Since"] and mood == "changed":
            return self.send_error(412)
        told = 0 if mood == "lies" else start
        end = start + 1000 if mood == "stingy" else len(CONTENT)
        size = "*" if mood == "secretive" else len(CONTENT)
        where = {"Content-Range": f"bytes {told}-{end - 1}/{size}"}
        return self.body(206, CONTENT[start:end], mood, where)

    def body(self, status, body, mood, headers):
        if mood == "no length":
            self.head(status, None, headers)
        else:
            self.head(status, len(body), headers)
        if mood not in ("ends", "resets", "stalls"):
            self.wfile.write(body)
            return
        self.wfile.write(body[:CUT])
        if mood == "stalls":
            self.server.over.wait(10)
        if mood == "resets":
            self.server.read.wait(10)  # a reset throws away what the client has not read
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def head(self, status, length, headers):
        self.send_response(status)
        self.send_header("Last-Modified", LONG_AGO)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def finish(self):
        with contextlib.suppress(OSError):  # we may have closed the connection on purpose
            super().finish()

    def log_message(self, *words):
        pass


class Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/a9a"
        self.moods = []
        self.seen = []
        self.over = threading.Event()
        self.read = threading.Event()

    def shutdown_request(self, request):
        if request.fileno() >= 0:
            super().shutdown_request(request)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache, and nothing else that is searched."""
    monkeypatch.delenv("LOCALPOWER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "localpower"


def touch(path, content=b"0 1:1\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def cut_off(server, folder):
    """Download until the connection is cut; return the part that is left."""
    server.moods = ["ends"]
    with pytest.raises(DataError):
        download("a9a", folder, url=server.url)
    part = folder / "a9a.part"
    assert part.stat().st_size == CUT
    return part


def assert_complete(path):
    assert path.read_bytes() == CONTENT
    assert sorted(file.name for file in path.parent.iterdir()) == ["a9a", "a9a.sha256"]
    assert verify(path) == path


# what the registry says


def test_the_registry_lists_the_papers_sizes_and_rounds_in_the_papers_order():
    facts = {
        name: (entry.rows, entry.columns, entry.rounds, entry.figure_rounds)
        for name, entry in DATA_SETS.items()
    }
    assert list(facts.items()) == list(PAPER.items())
    assert all(entry.name == name for name, entry in DATA_SETS.items())
    assert [DATA_SETS[name].title for name in ("mnist", "space_ga", "msd")] == [
        "MNIST",
        "Space-ga",
        "MSD",
    ]


def test_a_note_says_where_the_published_file_differs_from_the_paper():
    noted = {name: entry.note for name, entry in DATA_SETS.items() if entry.note}
    assert list(noted) == ["abalone", "connect-4", "splice"]
    assert "4177" in noted["abalone"]
    assert "67557" in noted["connect-4"]
    assert "60" in noted["splice"]


@pytest.mark.parametrize("name", PAPER)
def test_a_downloaded_file_has_a_name_that_is_found(name):
    entry = DATA_SETS[name]
    assert entry.url.startswith("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/")
    assert entry.url.endswith("/" + entry.file)
    assert entry.file in entry.files
    assert entry.files[0] == f"{name}.npz"


def test_sensit_vehicle_has_a_folder_of_its_own_and_ijcnn1_includes_its_validation_part():
    paths = [DATA_SETS[name].url.split("/datasets/")[1] for name in ("acoustic", "combined")]
    assert paths == ["multiclass/vehicle/acoustic.bz2", "multiclass/vehicle/combined.bz2"]
    assert DATA_SETS["ijcnn1"].file == "ijcnn1.bz2"  # ijcnn1.tr.bz2 has 35,000 of 49,990 rows


def test_no_file_name_stands_for_two_sets():
    names = [file for entry in DATA_SETS.values() for file in entry.files]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("ask", [look_up, find, how_to_get, download])
def test_an_unknown_name_is_refused_with_the_known_ones(ask):
    with pytest.raises(
        ValueError, match=r"'MNIST'; the known ones are a9a, abalone, .*, mnist, .*, msd"
    ):
        ask("MNIST")


def test_how_to_get_is_one_line_with_address_command_and_variable():
    line = how_to_get("msd")
    assert "\n" not in line
    assert DATA_SETS["msd"].url in line
    assert "`localpower data get msd`" in line
    assert "put YearPredictionMSD.bz2 into a folder named by LOCALPOWER_DATA" in line


# where files are searched


def test_the_search_path_is_the_folder_given_then_the_variable_then_the_cache(
    cache, monkeypatch, tmp_path
):
    assert search_path() == [cache]
    monkeypatch.setenv("LOCALPOWER_DATA", os.pathsep.join(["/one", "", "/two"]))
    assert [str(folder) for folder in search_path("/given")] == [
        "/given",
        "/one",
        "/two",
        str(cache),
    ]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert search_path("~/data")[0] == tmp_path / "data"


@pytest.mark.parametrize("base", [None, "", "not/absolute"])
def test_without_a_proper_xdg_cache_home_the_cache_is_in_the_home(base, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    if base is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", base)
    assert cache_folder() == tmp_path / ".cache" / "localpower"


def test_an_earlier_folder_wins_over_a_later_one(cache, monkeypatch, tmp_path):
    assert find("a9a") is None
    last = touch(cache / "a9a.npz")
    assert find("a9a") == last
    monkeypatch.setenv("LOCALPOWER_DATA", str(tmp_path / "variable"))
    middle = touch(tmp_path / "variable" / "a9a.txt")
    assert find("a9a") == middle
    first = touch(tmp_path / "given" / "a9a.bz2")
    assert find("a9a", tmp_path / "given") == first
    assert find("a9a", str(tmp_path / "missing")) == middle


@pytest.mark.parametrize(
    ("name", "stem"),
    [("a9a", "a9a"), ("covtype", "covtype.libsvm.binary"), ("msd", "YearPredictionMSD")],
)
def test_within_a_folder_npz_wins_over_libsvms_file_plain_or_packed(name, stem, cache):
    wanted = [f"{name}.npz", stem, f"{stem}.bz2", f"{stem}.gz", f"{stem}.txt"]
    assert list(DATA_SETS[name].files[:5]) == wanted
    for file in reversed(wanted):
        touch(cache / file)
        assert find(name) == cache / file


def test_neither_a_folder_nor_a_part_is_taken_for_a_file(cache):
    (cache / "a9a").mkdir(parents=True)
    touch(cache / "a9a.part")
    touch(cache / "a9a.sha256")
    assert find("a9a") is None


@pytest.mark.parametrize("name", AT_HAND)
def test_sets_at_hand_are_found_and_have_the_published_size(name, data_set):
    path = data_set(name)
    assert find(name) == path
    source = open_source(verify(path))
    assert (source.rows, source.columns) == AT_HAND[name]


# sums


def test_sha256_is_that_of_the_standard(tmp_path):
    path = touch(tmp_path / "x", b"abc")
    assert sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_file_without_a_note_has_nothing_to_check(tmp_path):
    path = touch(tmp_path / "x")
    assert verify(path) == path


@pytest.mark.parametrize("noted", ["", "0" * 64 + "  a9a\n"])
def test_a_file_unlike_its_note_is_refused_with_both_sums_and_the_remedy(noted, tmp_path):
    path = touch(tmp_path / "a9a")
    touch(tmp_path / "a9a.sha256", noted.encode())
    with pytest.raises(DataError) as caught:
        verify(path)
    for words in (str(path), sha256(path), noted[:64], "`localpower data get`", "a9a.sha256"):
        assert words in str(caught.value)


# downloads


def test_a_download_leaves_the_file_and_its_note_and_nothing_else(server, tmp_path):
    path = download("a9a", tmp_path / "new" / "folder", url=server.url)
    assert path == tmp_path / "new" / "folder" / "a9a"
    assert_complete(path)
    assert (path.parent / "a9a.sha256").read_text() == f"{sha256(path)}  a9a\n"
    assert "Range" not in server.seen[0]
    assert server.seen[0]["User-Agent"].startswith("localpower/")


def test_a_download_goes_to_the_cache_and_is_found_there(server, cache):
    path = download("a9a", url=server.url)
    assert path == cache / "a9a"
    assert find("a9a") == path


def test_a_downloaded_file_that_is_changed_is_found_out_and_downloaded_again(server, tmp_path):
    path = download("a9a", tmp_path, url=server.url)
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    with pytest.raises(DataError, match="changed since it was downloaded"):
        verify(path)
    download("a9a", tmp_path, url=server.url)
    assert_complete(path)


def test_a_file_that_is_there_is_not_downloaded_again(server, tmp_path):
    download("a9a", tmp_path, url=server.url)
    download("a9a", tmp_path, url=server.url)
    own = touch(tmp_path / "own" / "a9a", b"the user's own")
    assert download("a9a", tmp_path / "own", url=server.url) == own
    assert own.read_bytes() == b"the user's own"
    assert len(server.seen) == 1


@pytest.mark.parametrize(("mood", "total"), [("good", len(CONTENT)), ("no length", None)])
def test_progress_rises_to_the_length_of_the_file(mood, total, server, tmp_path):
    server.moods = [mood]
    calls = []
    path = download("a9a", tmp_path, lambda *call: calls.append(call), server.url)
    assert_complete(path)
    done = [call[0] for call in calls]
    assert done == sorted(set(done))
    assert len(done) > 2
    assert done[-1] == len(CONTENT)
    assert {call[1] for call in calls} == {total}


@pytest.mark.parametrize("mood", ["good", "secretive"])
def test_a_cut_download_resumes_where_it_stopped(mood, server, tmp_path):
    part = cut_off(server, tmp_path)
    assert part.read_bytes() == CONTENT[:CUT]
    server.moods = [mood]
    calls = []
    path = download("a9a", tmp_path, lambda *call: calls.append(call), server.url)
    assert server.seen[1]["Range"] == f"bytes={CUT}-"
    assert calls[0][0] > CUT
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert_complete(path)


def test_a_download_may_be_cut_again_and_again(server, tmp_path):
    cut_off(server, tmp_path)
    server.moods = ["ends"]
    with pytest.raises(DataError, match=f"after {2 * CUT} of {len(CONTENT)} bytes"):
        download("a9a", tmp_path, url=server.url)
    assert_complete(download("a9a", tmp_path, url=server.url))
    assert [seen.get("Range") for seen in server.seen] == [
        None,
        f"bytes={CUT}-",
        f"bytes={2 * CUT}-",
    ]


def test_a_cut_names_the_address_and_says_that_the_part_is_kept_and_resumed(server, tmp_path):
    server.moods = ["ends"]
    with pytest.raises(DataError) as caught:
        download("a9a", tmp_path, url=server.url)
    assert str(caught.value) == (
        f"{server.url}: the connection ended after {CUT} of {len(CONTENT)} bytes; what arrived is "
        f"kept in {tmp_path / 'a9a.part'}, and running the same again resumes"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["a9a.part"]
    assert find("a9a", tmp_path) != tmp_path / "a9a.part"


def test_a_reset_connection_keeps_the_part(server, tmp_path):
    server.moods = ["resets"]
    with pytest.raises(DataError, match=r"reset by peer; what arrived is kept in .*a9a\.part"):
        download("a9a", tmp_path, lambda *call: server.read.set(), server.url)
    assert_complete(download("a9a", tmp_path, url=server.url))


def test_a_server_that_falls_silent_is_not_waited_for(server, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "TIMEOUT", 0.3)
    server.moods = ["stalls"]
    started = time.perf_counter()
    with pytest.raises(DataError, match="timed out; what arrived is kept"):
        download("a9a", tmp_path, url=server.url)
    assert time.perf_counter() - started < 5
    assert_complete(download("a9a", tmp_path, url=server.url))


def test_an_interrupted_caller_keeps_the_part(server, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("a9a", tmp_path, interrupt, server.url)
    assert (tmp_path / "a9a.part").stat().st_size > 0
    assert_complete(download("a9a", tmp_path, url=server.url))
    assert "Range" in server.seen[1]


@pytest.mark.parametrize(("mood", "requests"), [("no ranges", 2), ("lies", 3), ("changed", 3)])
def test_a_server_that_cannot_continue_is_asked_for_the_whole_file(
    mood, requests, server, tmp_path
):
    cut_off(server, tmp_path)
    server.moods = [mood]
    assert_complete(download("a9a", tmp_path, url=server.url))
    assert server.seen[1]["Range"] == f"bytes={CUT}-"
    assert len(server.seen) == requests
    assert "Range" not in server.seen[-1] or mood == "no ranges"


def test_a_part_of_something_longer_is_thrown_away(server, tmp_path):
    touch(tmp_path / "a9a.part", CONTENT + b"more")
    assert_complete(download("a9a", tmp_path, url=server.url))


def test_a_server_that_sends_less_than_the_rest_is_found_out(server, tmp_path):
    cut_off(server, tmp_path)
    server.moods = ["stingy"]
    with pytest.raises(DataError, match=f"after {CUT + 1000} of {len(CONTENT)} bytes"):
        download("a9a", tmp_path, url=server.url)
    assert_complete(download("a9a", tmp_path, url=server.url))


def test_a_missing_file_is_reported_with_the_address_and_leaves_nothing(server, tmp_path):
    server.moods = [404]
    with pytest.raises(DataError, match="/a9a: the server answered 404 Not Found; nothing arrived"):
        download("a9a", tmp_path, url=server.url)
    assert not list(tmp_path.iterdir())


def test_a_server_in_trouble_does_not_cost_the_part(server, tmp_path):
    part = cut_off(server, tmp_path)
    server.moods = [503]
    with pytest.raises(DataError, match=r"503 Service Unavailable; what arrived is kept"):
        download("a9a", tmp_path, url=server.url)
    assert part.read_bytes() == CONTENT[:CUT]


def test_a_server_that_is_not_there_is_reported_with_the_address(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/a9a"
        with pytest.raises(DataError, match=f"{url}: .*refused; nothing arrived; try again"):
            download("a9a", tmp_path, url=url)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/a9a", "data:,x", "a9a"])
def test_only_web_addresses_are_downloaded_from(url, tmp_path):
    with pytest.raises(ValueError, match=f"{url}.*only http:// and https://"):
        download("a9a", tmp_path, url=url)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "reason"),
    [("file:///etc/hostname", "not allowed"), ("ftp://127.0.0.1/a9a", "unknown url type: ftp")],
)
def test_nothing_else_is_reached_by_redirection_either(url, reason, server, tmp_path):
    server.moods = [f"to {url}"]
    with pytest.raises(DataError, match=f"{reason}.*; nothing arrived"):
        download("a9a", tmp_path, url=server.url)
    assert not list(tmp_path.iterdir())


def test_a_redirection_on_the_web_is_followed(server, tmp_path):
    server.moods = [f"to {server.url}?elsewhere"]
    assert_complete(download("a9a", tmp_path, url=server.url))


def test_the_network_is_not_even_imported_unless_asked_for():
    code = (
        "import sys, localpower.paper.datasets as registry; registry.find('a9a')\n"
        "print([m for m in ('urllib.request', 'http.client', 'ssl') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
