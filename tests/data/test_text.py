"""Text as chunks of lines: line ends and archives make no difference, hostile files are refused."""

import bz2
import gzip
import lzma
import resource
import tracemalloc
import zlib
from contextlib import suppress
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localpower.core.errors import DataError
from localpower.data.readers import text
from localpower.data.readers.text import join_labels, parse_in_order, read_chunks

PACK = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("text") / "file.txt"


def content(path, chunk=text.CHUNK):
    """All lines; each chunk says rightly where it starts, and ends with a newline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK", chunk)
        whole = b""
        for line, data in read_chunks(path):
            assert line == whole.count(b"\n") + 1
            assert data.endswith(b"\n")
            whole += data
        return whole


@pytest.mark.parametrize("pack", PACK.values(), ids=PACK)
@given(
    words=st.lists(st.sampled_from([b"a", b"bb", b"\r", b"\n", b"\r\n", b" "]), min_size=1),
    mark=st.booleans(),
    chunk=st.integers(1, 9),
)
@settings(max_examples=60)
def test_lines_are_the_same_however_they_end_are_packed_and_cut(path, pack, words, mark, chunk):
    data = b"".join(words)
    path.write_bytes(pack(b"\xef\xbb\xbf" * mark + data))
    unix = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    unix += b"" if unix.endswith(b"\n") else b"\n"
    assert content(path) == content(path, chunk) == unix


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_archives_of_several_parts_are_read_to_the_end(path, pack):
    path.write_bytes(pack(b"1\n2") + pack(b"3\n4\n"))
    assert content(path) == b"1\n23\n4\n"


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_torn_archives_are_refused_by_name(path, pack):
    packed = pack(np.random.default_rng(0).bytes(5000).hex().encode())
    for size in (7, 20, len(packed) // 2, len(packed) - 1):
        path.write_bytes(packed[:size])
        with pytest.raises(DataError, match=r"cannot be unpacked .*; get the file again") as caught:
            content(path)
        assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_flipped_byte_never_gives_other_lines(path, pack):
    packed = pack(b"1 2 3\n4 5 6\n" * 5)
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        with suppress(DataError):
            assert content(path) == b"1 2 3\n4 5 6\n" * 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        ("1,2\n".encode("utf-16"), "UTF-16; save it as UTF-8"),
        (b"\xfe\xff\x001", "UTF-16; save it as UTF-8"),
        (b"1\n\n2\x00\n", "line 3: there is a NUL byte"),
        ("1,2\n".encode("utf-16-le"), "line 1: there is a NUL byte"),
    ],
)
@pytest.mark.parametrize("pack", PACK.values(), ids=PACK)
@pytest.mark.parametrize("chunk", [1, text.CHUNK])
def test_what_is_not_text_is_refused(path, data, message, pack, chunk):
    path.write_bytes(pack(data))
    with pytest.raises(DataError, match=message) as caught:
        content(path, chunk)
    assert str(caught.value).startswith(str(path))


def test_lines_before_a_nul_byte_are_yielded_first(path):
    path.write_bytes(b"1\n2\n3\x004\n5\n")
    chunks = read_chunks(path)
    assert next(chunks).data == b"1\n2\n"
    with pytest.raises(DataError, match="line 3"):
        next(chunks)


def traced_peak(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack", [gzip.compress, lambda b: bz2.compress(b, 1), lzma.compress])
def test_bombs_are_refused_before_they_fill_memory(path, monkeypatch, pack):
    monkeypatch.setattr(text, "FREE_BYTES", 1 << 20)
    monkeypatch.setattr(text, "CHUNK", 1 << 18)
    path.write_bytes(pack(b"0 1:1\n" * 400_000) * 10)

    def read():
        with pytest.raises(DataError, match=r"over 200 times .*; unpack it first if that is meant"):
            for _ in read_chunks(path):
                pass

    assert traced_peak(read) < 1 << 24  # of 24 MB that it would be


def test_small_archives_may_unpack_to_many_times_their_size(path):
    data = b"0 1:1\n" * 1_000_000
    path.write_bytes(gzip.compress(data))
    assert path.stat().st_size < len(data) / text.MAX_RATIO
    assert sum(len(chunk.data) for chunk in read_chunks(path)) == len(data)


def test_an_archive_cannot_ask_for_a_huge_dictionary(path):
    packed = bytearray(lzma.compress(b"1 2 3\n"))
    header = packed[12 : 12 + 4 * (packed[12] + 1)]
    header[4] = 40  # a dictionary of 4 GiB
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    packed[12 : 12 + len(header)] = header
    path.write_bytes(packed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="cannot be unpacked"):
        content(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 16])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end_is_refused_with_its_number_in_bounded_memory(
    path, monkeypatch, chunk, end
):
    monkeypatch.setattr(text, "CHUNK", chunk)
    monkeypatch.setattr(text, "MAX_LINE", 1 << 20)
    path.write_bytes(b"1\n2\n" + b"7" * (1 << 24) + end)

    def read():
        with pytest.raises(DataError, match="line 3: the line is longer than 1048576 bytes"):
            for _ in read_chunks(path):
                pass

    assert traced_peak(read) < (1 << 20) + (1 << 19)


def test_long_lines_are_put_together(path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK", 1000)
    path.write_bytes(b"1" * 100_000 + b"\n2\n" + b"3" * 50_000)
    assert [len(line) for line in content(path).split(b"\n")] == [100_000, 1, 50_000, 0]


@given(bad=st.integers(0, 8), torn=st.integers(0, 8))
def test_parsing_in_threads_keeps_the_order_of_results_and_of_errors(bad, torn):
    def chunks():
        for line in range(8):
            if line == torn:
                raise DataError(f"torn at {line}")
            yield text.Chunk(line, b"")

    def parse(chunk):
        if chunk.line == bad:
            raise DataError(f"bad at {chunk.line}")
        return chunk.line

    results = parse_in_order(parse, chunks())
    first = min(bad, torn)
    assert list(islice(results, first)) == list(range(first))
    if first < 8:
        with pytest.raises(DataError, match=f"bad at {bad}" if bad < torn else f"torn at {torn}"):
            next(results)


def test_labels_of_blocks_join_as_numbers_or_else_as_text():
    numbers, words = np.array([1.0, -2.5, np.nan]), np.array(["a", ""])
    assert join_labels([numbers, numbers]).dtype == float
    assert join_labels([numbers, words]).tolist() == ["1", "-2.5", "", "a", ""]
