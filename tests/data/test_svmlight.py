"""svmlight text: scikit-learn writes and reads the same, and what is malformed is told by line."""

import bz2
import gzip
import io
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from localpower.core.errors import DataError
from localpower.data import svmlight
from localpower.data.source import open_source
from localpower.data.svmlight import read_svmlight

PACK = {".svm": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}

values = st.just(0.0) | st.floats(-1e300, 1e300)
matrices = st.tuples(st.integers(1, 8), st.integers(1, 6)).flatmap(
    lambda shape: arrays(float, shape, elements=values)
)

BAD_LINES = {
    "value alone": b"1 2",
    "index is a word": b"1 a:1",
    "value is a word": b"1 1:x",
    "two colons": b"1 1:2:3 4",
    "no index": b"1 :3",
    "no value": b"1 3:",
    "nan": b"1 1:nan",
    "inf": b"1 1:inf",
    "value overflows": b"1 1:1e999",
    "negative index": b"1 -1:2",
    "index too large": b"1 99999999999:1",
    "index of many digits": b"1 " + b"9" * 5000 + b":1",
    "index twice": b"1 1:1 1:2",
    "index twice, apart": b"1 3:1 1:2 3:4",
    "underscore in index": b"1 1_0:2",
    "underscore in value": b"1 1:2_0",
    "index with a point": b"1 1.0:2",
    "index with an exponent": b"1 1e0:2",
    "hexadecimal": b"1 0x1:2",
    "two numbers in one": b"1 1:2-3",
    "no label": b"1:2 3:4",
    "label is a word": b"spam 1:2",
    "label ends with a comma": b"1, 1:2",
    "carriage return inside": b"1 1:2\r1 1:2",
    "nul in a value": b"1 1:2\x00",
    "nul in an index": b"1 \x001:2",
    "nul alone": b"\x00",
    "binary junk": bytes(set(range(256)) - set(b"\n#")),
    "binary junk without blanks": bytes(range(128, 256)),
    "non-ascii digit": "1 \u0661:2".encode(),
    "non-ascii minus": "1 1:\u22122".encode(),
    "byte order mark": b"\xef\xbb\xbf1 1:2",
}


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    folder = tmp_path_factory.mktemp("svmlight")

    def write(content, suffix=".svm"):
        path = folder / f"data{suffix}"
        path.write_bytes(content)
        return path

    return write


def dumped(X, **options):
    stream = io.BytesIO()
    dump_svmlight_file(X, np.arange(len(X)), stream, **options)
    return stream.getvalue()


def dense(path, columns=None):
    [matrix] = read_svmlight(path)
    assert matrix.format == "csr"
    assert matrix.has_canonical_format
    if columns is not None:
        assert matrix.shape[1] <= columns
        matrix.resize((matrix.shape[0], columns))
    return matrix.toarray()


@pytest.mark.parametrize("suffix", PACK)
@given(X=matrices)
@settings(max_examples=60)
def test_one_based_files_read_as_scikit_learn_reads_them(write, suffix, X):
    path = write(PACK[suffix](dumped(X, zero_based=False)), suffix)
    expected, _ = load_svmlight_file(str(path), n_features=X.shape[1], zero_based=False)
    np.testing.assert_array_equal(dense(path, X.shape[1]), expected.toarray())
    np.testing.assert_allclose(expected.toarray(), X, rtol=1e-15)


@given(X=matrices)
@settings(max_examples=60)
def test_zero_based_files_read_as_scikit_learn_reads_them(write, X):
    X[0, 0] = 1.0
    path = write(dumped(X, zero_based=True))
    expected, _ = load_svmlight_file(str(path), n_features=X.shape[1], zero_based=True)
    np.testing.assert_array_equal(dense(path, X.shape[1]), expected.toarray())


@given(X=matrices, chunk=st.integers(1, 60))
@settings(max_examples=60)
def test_chunk_boundaries_change_nothing(write, X, chunk):
    path = write(dumped(X, zero_based=False).replace(b"\n", b" # end\n\n", 1))
    whole = dense(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svmlight, "CHUNK", chunk)
        np.testing.assert_array_equal(dense(path), whole)


def test_comments_and_query_ids_are_passed_over(write):
    X = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    text = dumped(X, zero_based=False, comment="made: by hand é", query_id=[3, 4])
    assert b"qid:3" in text
    np.testing.assert_array_equal(dense(write(text)), X)


@pytest.mark.parametrize(
    "text",
    [
        b"1 1:1 3:2\n0 2:3\n",
        b"1 1:1 3:2\n0 2:3",
        b"1 1:1 3:2\r\n0 2:3\r\n",
        b"1\t1:1\t3:2\n0\t2:3\n",
        b"  1   1:1  3:2  \n0 2:3 \n",
        b"\n\n1 1:1 3:2\n \t\n\n0 2:3\n\n  ",
        b"# head\n1 1:1 3:2 # 7:7\n0 2:3#4:4\n# tail",
        b"1 qid:3 1:1 3:2\n0 qid:4 2:3\n",
        b"1 3:2 1:1\n0 2:3\n",
        b"1,2 1:1 3:2\n3,0.5,-1e2 2:3\n",
        b"nan 1:1 3:2\n-inf 2:3\n",
        b"+1 +1:+1. 03:.2e1\n-1.5e-3 2:0.3E1\n",
    ],
)
def test_the_same_rows_are_read_however_they_are_written(write, text):
    np.testing.assert_array_equal(dense(write(text)), [[1, 0, 2], [0, 3, 0]])


@pytest.mark.parametrize("ending", [b"", b" # nothing"])
def test_lines_with_a_label_only_are_rows_of_zeros(write, ending):
    path = write(b"1" + ending + b"\n0 2:3\n1\n1 \n")
    np.testing.assert_array_equal(dense(path), [[0, 0], [0, 3], [0, 0], [0, 0]])


@given(X=matrices, random=st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_unsorted_indices_give_the_same_matrix(write, X, random):
    text = dumped(X, zero_based=False)
    sorted_rows = dense(write(text))
    lines = [line.split() for line in text.splitlines()]
    for words in lines:
        tail = words[1:]
        random.shuffle(tail)
        words[1:] = tail
    path = write(b"\n".join(b" ".join(words) for words in lines))
    np.testing.assert_array_equal(dense(path), sorted_rows)


def test_the_largest_index_is_accepted(write):
    [matrix] = read_svmlight(write(b"1 0:1 2147483646:2\n"))
    assert matrix.shape == (1, 2**31 - 1)
    assert matrix.indices.tolist() == [0, 2**31 - 2]


def test_plain_text_takes_the_fast_path():
    X = np.random.default_rng(0).standard_normal((50, 7)) * (10.0 ** np.arange(-3, 4))
    chunk = dumped(X, zero_based=False)
    counts, index, value = svmlight._parse_fast(chunk)
    assert counts.tolist() == [7] * 50
    assert index.tolist() == list(range(1, 8)) * 50
    np.testing.assert_allclose(value, X.ravel(), rtol=1e-15)


WORDS = """
1 -1 +1 0 3.5 1e2 1,2 nan inf nan(a) 1_0 a 0x1 . - 1+2 qid:1 # 1:1 2:2 3:-1e-3 3:1. 3:.5 01:1 0:5
1.0:2 1e0:2 +1:1 -0:2 -1:2 1:nan 1:inf 1:1e999 5:0x1 5:1_0 4: :4 : :: 1:2:3 4:1-2 :3-4 3:1d0 3:.5.5
2147483646:1 2147483647:1 99999999999:1
"""
words = st.sampled_from([*WORDS.split(), "\x00", "1:2\x00", "\u0661:1", "\r", "\f"])
lines = st.lists(words, max_size=4).map(" ".join)
texts = st.lists(lines, max_size=4).map(lambda lines: "".join(f"{line}\n" for line in lines))
noise = st.text("0123456789 :.eE+-_nafiqd,x#\t\r\n\v\x00", max_size=40).map(lambda s: s + "\n")


@given(text=texts | noise)
@example("1 1.0:2\n")
@example("nan(a) 1:2\n")
@settings(max_examples=1500)
def test_fast_and_slow_path_agree_wherever_the_fast_one_accepts(text):
    chunk = text.encode()
    fast = svmlight._parse_fast(chunk)
    if fast is not None:
        slow = svmlight._parse_lines(chunk, "file", 0)
        for a, b in zip(fast, slow, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@given(text=texts | noise, chunk=st.integers(1, 50))
@settings(max_examples=300)
def test_any_text_is_read_or_refused_by_line_however_it_is_cut(write, text, chunk):
    path = write(text.encode())

    def outcome():
        try:
            return dense(path).tolist()
        except DataError as error:
            return str(error)

    whole = outcome()
    assert isinstance(whole, list) or whole.startswith(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svmlight, "CHUNK", chunk)
        assert outcome() == whole


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize("chunk", [svmlight.CHUNK, 16])
@pytest.mark.parametrize("before", [0, 7])
def test_a_malformed_line_is_told_by_its_number(write, monkeypatch, line, chunk, before):
    monkeypatch.setattr(svmlight, "CHUNK", chunk)
    path = write(b"1 1:2 3:4\n" * before + line + b"\n0 2:3\n")
    with pytest.raises(DataError) as caught:
        read_svmlight(path)
    assert str(caught.value).startswith(f"{path}, line {before + 1}: ")
    assert len(str(caught.value)) < len(str(path)) + 250


def test_line_numbers_count_blank_and_comment_lines(write):
    path = write(b"# head\n\n1 1:2\r\n\r\n1 1:x\n")
    with pytest.raises(DataError, match=r"line 5: '1:x' is not index:value"):
        read_svmlight(path)


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("text", [b"", b" ", b"\n\n", b"# nothing\n", b"1\n0\n"])
def test_a_file_without_entries_is_refused_by_name(write, suffix, text):
    path = write(PACK[suffix](text), suffix)
    with pytest.raises(DataError, match="empty") as caught:
        open_source(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_truncated_compressed_files_are_refused(write, suffix):
    packed = PACK[suffix](dumped(np.random.default_rng(0).standard_normal((40, 5))))
    for size in (3, 11, len(packed) // 2, len(packed) - 9, len(packed) - 1):
        path = write(packed[:size], suffix)
        with pytest.raises(DataError, match="cannot be unpacked") as caught:
            read_svmlight(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_a_flipped_byte_in_a_compressed_file_never_gives_wrong_rows(write, suffix):
    text = dumped(np.arange(40.0).reshape(8, 5), zero_based=False)
    whole = dense(write(text))
    packed = PACK[suffix](text)
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 0xFF
        with suppress(DataError):
            np.testing.assert_array_equal(dense(write(bytes(damaged), suffix)), whole)


def test_compression_is_told_by_content_not_by_name(write):
    text = b"1 1:1 2:2\n"
    np.testing.assert_array_equal(dense(write(gzip.compress(text), ".txt")), [[1, 2]])
    np.testing.assert_array_equal(dense(write(text, ".gz")), [[1, 2]])


def test_no_path_gives_no_matrix():
    assert read_svmlight() == []
