"""svmlight text: scikit-learn writes and reads the same, and what is malformed is told by line."""

import bz2
import gzip
import io
import lzma
import sys

import numpy as np
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from localpower.core.errors import DataError
from localpower.data.blocks import Options
from localpower.data.readers import svmlight, text
from localpower.data.readers.svmlight import read_svmlight
from localpower.data.readers.text import Chunk, join_labels

PACK = {".svm": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
FIXTURE = [HealthCheck.function_scoped_fixture]  # `parser` is the same for all examples
DOUBLE = np.dtype(np.float64)

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
    "label is a word": b"spam 1:2",
    "label ends with a comma": b"1, 1:2",
    "query id after entries": b"1 1:2 qid:3",
    "nul in a value": b"1 1:2\x00",
    "nul in an index": b"1 \x001:2",
    "nul alone": b"\x00",
    "binary junk": bytes(set(range(256)) - set(b"\r\n#")),
    "binary junk without blanks": bytes(range(128, 256)),
    "non-ascii digit": "1 \u0661:2".encode(),
    "non-ascii minus": "1 1:\u22122".encode(),
    "missing value before two numbers in one": b"1 4: 5:6-2",
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


@pytest.fixture(params=["arrow", "numpy"])
def parser(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setitem(sys.modules, "pyarrow", None)


def read(path, **options):
    """Rows of all blocks, column j for index j, and labels."""
    blocks = list(read_svmlight(path, Options(**options)))
    widest = max(block.rows.shape[1] for block in blocks)
    for block in blocks:
        assert block.rows.format == "csr"
        assert block.rows.indices.dtype == block.rows.indptr.dtype == np.int32
        assert block.rows.shape[1] == block.rows.indices.max(initial=-1) + 1
        parts = block.rows.data, block.rows.indices, block.rows.indptr
        assert csr_array(parts, shape=block.rows.shape).has_canonical_format
        block.rows.resize((block.rows.shape[0], widest))
    rows = np.concatenate([block.rows.toarray() for block in blocks])
    if any(block.labels is None for block in blocks):
        assert all(block.labels is None for block in blocks)
        return rows, None
    return rows, join_labels([block.labels for block in blocks])


def dense(path, columns=None):
    """Rows of a file whose indices count from one."""
    rows = read(path)[0]
    assert not rows[:, :1].any()
    width = rows.shape[1] - 1 if columns is None else columns
    assert rows.shape[1] <= width + 1
    return np.pad(rows, ((0, 0), (0, width + 1 - rows.shape[1])))[:, 1:]


@given(X=matrices, suffix=st.sampled_from([*PACK]))
@settings(max_examples=120, suppress_health_check=FIXTURE)
def test_one_based_files_read_as_scikit_learn_reads_them(write, parser, suffix, X):
    path = write(PACK[suffix](dumped(X, zero_based=False)), suffix)
    expected, y = load_svmlight_file(
        io.BytesIO(dumped(X, zero_based=False)), n_features=X.shape[1], zero_based=False
    )
    np.testing.assert_array_equal(dense(path, X.shape[1]), expected.toarray())
    np.testing.assert_array_equal(read(path)[1], y)
    np.testing.assert_allclose(expected.toarray(), X, rtol=1e-15)


def test_indices_are_as_written_in_each_block(write, monkeypatch):
    monkeypatch.setattr(text, "CHUNK", 6)
    blocks = read_svmlight(write(b"1 3:1\n1 0:2\n1\n1 5:1\n"), Options())
    assert [(b.rows.shape, b.rows.indices.tolist()) for b in blocks] == [
        ((1, 4), [3]),
        ((1, 1), [0]),
        ((1, 0), []),
        ((1, 6), [5]),
    ]


finite = st.floats(allow_nan=False, allow_infinity=False)
spell = st.sampled_from(
    [repr, "{:+.25E}".format, "{:.3f}".format, "00{:.17e}".format, "{:.0f}.".format]
)
spelled = st.builds(lambda spell, x: spell(x).replace("00-", "-00"), spell, finite)


@given(
    rows=st.lists(st.tuples(spelled, st.dictionaries(st.integers(0, 30), spelled)), min_size=1),
    end=st.sampled_from(["\n", "\r\n", "\r", "  \n", "\t# x\n"]),
    chunk=st.sampled_from([4, 40, text.CHUNK]),
)
@settings(max_examples=150, suppress_health_check=FIXTURE)
def test_labels_and_values_have_the_bits_of_float(write, parser, rows, end, chunk):
    lines = [" ".join([y, *(f"{i}:{x}" for i, x in row.items())]) for y, row in rows]
    path = write((end.join(lines) + end).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK", chunk)
        X, labels = read(path)
    expected = np.zeros(X.shape)
    for i, (_, row) in enumerate(rows):
        for j, x in row.items():
            expected[i, j] = float(x)
    expected += 0.0  # as `toarray` does: the sign of zeros is lost
    np.testing.assert_array_equal(X.view(np.int64), expected.view(np.int64))
    assert labels.tolist() == [float(y) for y, _ in rows]


@given(X=matrices, chunk=st.integers(1, 60))
@settings(max_examples=60)
def test_chunk_boundaries_change_nothing(write, X, chunk):
    path = write(dumped(X, zero_based=False).replace(b"\n", b" # end\n\n", 1))
    whole, labels = read(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK", chunk)
        cut, cut_labels = read(path)
    np.testing.assert_array_equal(cut, whole)
    np.testing.assert_array_equal(cut_labels, labels)


@pytest.mark.parametrize("chunk", [4, text.CHUNK])
def test_files_without_labels_are_told_by_their_first_line(write, parser, monkeypatch, chunk):
    monkeypatch.setattr(text, "CHUNK", chunk)
    X, labels = read(write(b"# head\n\n1:2 3:4\n 2:5 # x\n0:7\n"))
    np.testing.assert_array_equal(X, [[0, 2, 0, 4], [0, 0, 5, 0], [7, 0, 0, 0]])
    assert labels is None
    with pytest.raises(DataError, match=r"line 2: '1' is not index:value; expected 'index:value"):
        read(write(b"1:2\n1 3:4\n"))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("chunk", [4, text.CHUNK])
def test_rows_of_several_labels_or_none_read_as_scikit_learn_writes_them(
    write, parser, monkeypatch, first, chunk
):
    monkeypatch.setattr(text, "CHUNK", chunk)
    X = np.array([[1.0, 2.0], [0.0, 3.0], [4.0, 0.0]])
    Y = np.roll([[0, 0, 0], [1, 0, 1], [0, 1, 0]], first, axis=0)
    stream = io.BytesIO()
    dump_svmlight_file(X, Y, stream, zero_based=False, multilabel=True)
    rows, labels = read(write(stream.getvalue()))
    np.testing.assert_array_equal(rows[:, 1:], X)
    assert labels.tolist() == np.roll(["", "0,2", "1"], first).tolist()


def test_a_line_without_a_label_is_refused_where_others_have_one(write):
    with pytest.raises(DataError, match="line 2: '1:2' stands where the label should"):
        read(write(b"1 1:2\n1:2 3:4\n"))


def test_float32_is_the_float64_value_rounded(write, parser):
    path = write(b"1 1:0.1 2:-3e38\n")
    rows, labels = read(path, dtype="float32")
    assert rows.dtype == np.float32
    assert rows.tolist() == [[0, np.float32(0.1), np.float32(-3e38)]]
    assert labels.dtype == np.float64
    with pytest.raises(DataError, match="line 2: '2:1e39' is not finite as float32"):
        read(write(b"1 1:1\n1 2:1e39\n"), dtype="float32")


def test_comments_and_query_ids_are_passed_over(write):
    X = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    content = dumped(X, zero_based=False, comment="made: by hand é", query_id=[3, 4])
    assert b"qid:3" in content
    np.testing.assert_array_equal(dense(write(content)), X)


@pytest.mark.parametrize(
    "content",
    [
        b"1 1:1 3:2\n0 2:3\n",
        b"1 1:1 3:2\n0 2:3",
        b"1 1:1 3:2\r\n0 2:3\r\n",
        b"1 1:1 3:2\r0 2:3\r",
        b"\xef\xbb\xbf1 1:1 3:2\n0 2:3\n",
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
def test_the_same_rows_are_read_however_they_are_written(write, parser, content):
    np.testing.assert_array_equal(dense(write(content)), [[1, 0, 2], [0, 3, 0]])


@pytest.mark.parametrize("ending", [b"", b" # nothing"])
def test_lines_with_a_label_only_are_rows_of_zeros(write, ending):
    path = write(b"1" + ending + b"\n0 2:3\n1\n1 \n")
    np.testing.assert_array_equal(dense(path), [[0, 0], [0, 3], [0, 0], [0, 0]])


@given(X=matrices, random=st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_unsorted_indices_give_the_same_matrix(write, X, random):
    content = dumped(X, zero_based=False)
    sorted_rows = dense(write(content))
    lines = [line.split() for line in content.splitlines()]
    for words in lines:
        tail = words[1:]
        random.shuffle(tail)
        words[1:] = tail
    path = write(b"\n".join(b" ".join(words) for words in lines))
    np.testing.assert_array_equal(dense(path), sorted_rows)


def test_the_largest_index_is_accepted(write, parser):
    [block] = read_svmlight(write(b"1 0:1 2147483646:2\n"), Options())
    assert block.rows.shape == (1, 2**31 - 1)
    assert block.rows.indices.tolist() == [0, 2**31 - 2]


@pytest.mark.parametrize("line", [b"1 2:3 4:5\n", b"1 4:5 2:3 # x\n", b"0,1 qid:7 2:3 4:5\n\n"])
def test_usual_lines_take_a_fast_path(write, parser, monkeypatch, line):
    monkeypatch.delattr(svmlight, "_parse_lines")
    assert read(write(line * 5))[0].tolist() == [[0, 0, 3, 0, 5]] * 5


WORDS = """
1 -1 +1 0 3.5 1e2 1,2 nan inf nan(a) 1_0 a 0x1 . - 1+2 qid:1 # 1:1 2:2 3:-1e-3 3:1. 3:.5 01:1 0:5
1.0:2 1e0:2 +1:1 -0:2 -1:2 1:nan 1:inf 1:1e999 5:0x1 5:1_0 4: :4 : :: 1:2:3 4:1-2 :3-4 3:1d0 3:.5.5
2147483646:1 2147483647:1 99999999999:1
"""
words = st.sampled_from([*WORDS.split(), "\x00", "1:2\x00", "\u0661:1", "\r", "\f"])
lines = st.lists(words, max_size=4).map(" ".join)
texts = st.lists(lines, max_size=4).map(lambda lines: "".join(f"{line}\n" for line in lines))
noise = st.text("0123456789 :.eE+-_nafiqd,x#\t\r\n\v\x00", max_size=40).map(lambda s: s + "\n")


@given(content=texts | noise, labelled=st.booleans(), gaps=st.booleans())
@example("1 1.0:2\n", True, False)
@example("nan(a) 1:2\n", True, False)
@example("1 1:nan(a)\n", True, True)
@example("1 4: 5:6-2\n", True, False)
@settings(max_examples=600)
def test_fast_and_slow_path_agree_wherever_the_fast_one_accepts(content, labelled, gaps):
    numbers = svmlight.Numbers(DOUBLE, gaps)
    data = content.replace("\r", "").replace("\0", "").encode()
    fast = svmlight._parse_fast(data, labelled, numbers, pyarrow)
    words = svmlight._parse_words(data, labelled, numbers)
    for parsed in filter(None, (fast, words)):
        slow = svmlight._parse_lines(Chunk(1, data), labelled, numbers, "file")
        for a, b in zip(parsed[: 3 + labelled], slow, strict=False):
            assert a.dtype.kind == b.dtype.kind
            np.testing.assert_array_equal(a, b)


@given(content=texts | noise, chunk=st.integers(1, 50))
@settings(max_examples=150)
def test_any_text_is_read_or_refused_by_line_however_it_is_cut(write, content, chunk):
    path = write(content.encode())

    def outcome():
        try:
            rows, labels = read(path)
            return rows.tolist(), repr(labels)
        except DataError as error:
            return str(error)

    whole = outcome()
    assert isinstance(whole, tuple) or whole.startswith(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK", chunk)
        assert outcome() == whole


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize("chunk", [text.CHUNK, 16])
@pytest.mark.parametrize("before", [0, 7])
def test_a_malformed_line_is_told_by_its_number(write, parser, monkeypatch, line, chunk, before):
    monkeypatch.setattr(text, "CHUNK", chunk)
    path = write(b"1 1:2 3:4\n" * before + line + b"\n0 2:3\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, line {before + 1}: ")
    assert len(str(caught.value)) < len(str(path)) + 250


def test_line_numbers_count_blank_and_comment_lines(write):
    path = write(b"# head\n\n1 1:2\r\n\r\n1 1:x\n")
    with pytest.raises(DataError, match=r"line 5: '1:x' is not index:value"):
        read(path)


@pytest.mark.parametrize("content", [b"", b" ", b"\n\n", b"# nothing\n", b" # nothing"])
def test_a_file_without_rows_is_refused_by_name(write, content):
    path = write(content)
    with pytest.raises(DataError, match="the file is empty") as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
