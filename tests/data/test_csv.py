"""CSV: values have the bits of `float`, layouts are found, what is malformed is told by line."""

import bz2
import csv as stdlib_csv
import gzip
import io
import lzma
import math
import sys

import numpy as np
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import localpower as lp
from localpower.core.errors import DataError
from localpower.data.blocks import Options
from localpower.data.readers import csv, text
from localpower.data.readers.csv import read_csv
from localpower.data.readers.text import Chunk, join_labels


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "data.csv"

    def write(content):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture(params=["arrow", "numpy"])
def parser(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setitem(sys.modules, "pyarrow", None)


def read(path, **options):
    blocks = list(read_csv(path, Options(**options)))
    assert len({(block.rows.dtype, block.names) for block in blocks}) == 1
    return np.concatenate([block.rows for block in blocks])


def labels(path, **options):
    return join_labels([block.labels for block in read_csv(path, Options(**options))])


def names(path, **options):
    return next(read_csv(path, Options(**options))).names


def same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.int64), np.asarray(b, float).view(np.int64))


FIXTURE = [HealthCheck.function_scoped_fixture]  # `parser` is the same for all examples
SPELLINGS = [
    repr,
    "{:.17e}".format,
    "{:+.25E}".format,
    "{:.3f}".format,
    lambda x: repr(x) if x < 0 else "+" + repr(x),
    lambda x: ("-" if math.copysign(1, x) < 0 else "") + "000" + repr(abs(x)),
    lambda x: repr(int(x)) if abs(x) < 1e18 else repr(x),
    lambda x: f"{int(x)}." if abs(x) < 1e18 else repr(x),
    lambda x: ".5",
]
finite = st.floats(allow_nan=False, allow_infinity=False)
spelled = st.builds(lambda x, spell: spell(x), finite, st.sampled_from(SPELLINGS))
tables = st.tuples(st.integers(1, 6), st.integers(1, 5)).flatmap(
    lambda shape: st.lists(
        st.lists(spelled, min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


@given(
    table=tables,
    delimiter=st.sampled_from([",", "\t", ";", "|", " ", ", ", "  "]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    header=st.booleans(),
    quotes=st.booleans(),
    chunk=st.sampled_from([1, 7, 30, text.CHUNK]),
)
@settings(max_examples=150, suppress_health_check=FIXTURE)
def test_numbers_read_as_float_reads_them_however_they_are_laid_out(
    write, parser, table, delimiter, end, header, quotes, chunk
):
    rows = [[f'"{word}"' for word in row] if quotes else row for row in table]
    head = [[f'"name {j}"' for j in range(len(table[0]))]] if header else []
    path = write(end.join(delimiter.join(row) for row in head + rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK", chunk)
        given = {} if len(table[0]) > 1 else {"delimiter": ","}
        X = read(path, header=header, **given)
    same_bits(X, [[float(word) for word in row] for row in table])


@given(st.lists(finite, min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_float32_is_the_float64_value_rounded(write, values, end):
    small = [x for x in values if abs(x) < 3e38] or [0.1]
    path = write(end.join(f"{x!r},{-x!r}" for x in small))
    X = read(path, dtype="float32", header=False)
    assert X.dtype == np.float32
    with np.errstate(under="ignore"):
        np.testing.assert_array_equal(X[:, 0], np.array(small).astype(np.float32))


def test_what_overflows_float32_is_refused_with_its_place(write, parser):
    with pytest.raises(DataError, match=r"line 2, column 1: '1e39' is not finite as float32"):
        read(write("1,2\n3,1e39\n"), dtype="float32")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_many_chunks_make_one_table(write, monkeypatch, pack):
    monkeypatch.setattr(text, "CHUNK", 5000)
    X = np.random.default_rng(0).standard_normal((2000, 7))
    body = "".join(",".join(map(repr, row)) + "\n" for row in X.tolist())
    path = write(pack(("a,b,c,d,e,f,g\n" + body).encode()))
    assert len(list(read_csv(path, Options()))) > 10
    same_bits(read(path), X)
    assert names(path) == tuple("abcdefg")


LAYOUTS = {
    "no header": "1,2\n3,4\n",
    "header": "a,b\n1,2\n3,4\n",
    "no newline at the end": "a,b\n1,2\n3,4",
    "semicolons": "a;b\n1;2\n3;4\n",
    "tabs": "a b\tc\n1\t2\n3\t4\n",
    "pipes": "a|b\n1|2\n3|4\n",
    "columns set in line": "  a   b\n  1   2 \n 3\t4\n",
    "blanks after commas": "a, b\n1, 2\n3, 4\n",
    "comments and blank lines": "# made by\n\na,b\n# x,y,z\n1,2\n\n \n3,4\n#\n",
    "quoted name with a comma": '"a,x",b\n1,2\n3,4\n',
    "quoted name with quotes": '"a ""x""",b\n1,2\n3,4\n',
    "quoted numbers": '"a","b"\n"1","2"\n3,"4"\n',
    "blanks before quotes": 'a, "b,c"\n1, "2"\n3, "4"\n',
    "name like a number": "a,2020\n1,2\n3,4\n",
    "names that start with digits": "400nm,500nm\n1,2\n3,4\n",
    "index column without a name": ",b\n1,2\n3,4\n",
    "counted names": "0,1\n1.0,2.0\n3.0,4.0\n",
    "mark of utf-8": "\ufeffa,b\n1,2\n3,4\n",
    "names that are not ascii": "größe,b\n1,2\n3,4\n",
    "names in latin-1": "größe,b\n1,2\n3,4\n".encode("latin-1"),
}


@pytest.mark.parametrize("content", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("chunk", [4, text.CHUNK])
def test_the_layout_is_found(write, parser, monkeypatch, content, chunk):
    monkeypatch.setattr(text, "CHUNK", chunk)
    np.testing.assert_array_equal(read(write(content)), [[1, 2], [3, 4]])


HASHED = {
    "ids": "id,a,b\nx,1,2\n#7,3,4\n",
    "ids only": "id,a,b\n#6,1,2\n#7,3,4\n",
    "names": "#id,a,b\nx,1,2\ny,3,4\n",
    "names of numbers": "# made by, me, now\n#id,a,b\n0,1,2\n5,3,4\n",
    "all, and comments": "# of a, run, x\n#id,a,b\nv,1,2\n# not, one\n\n#7,3,4\n#\n",
}


@pytest.mark.parametrize("content", HASHED.values(), ids=HASHED)
@pytest.mark.parametrize("chunk", [4, text.CHUNK])
def test_a_line_with_a_hash_is_a_row_where_its_first_field_may_be_text(
    write, parser, monkeypatch, content, chunk
):
    monkeypatch.setattr(text, "CHUNK", chunk)
    path = write(content)
    np.testing.assert_array_equal(read(path, columns=["a", "b"]), [[1, 2], [3, 4]])
    assert names(path, drop=[0]) == ("a", "b")
    labels = np.concatenate([block.labels for block in read_csv(path, Options(label=0))])
    assert len(labels) == 2
    if "#6" in content:
        assert labels.tolist() == ["#6", "#7"]


def test_rows_of_numbers_that_are_commented_out_are_no_rows(write, parser):
    np.testing.assert_array_equal(read(write("a,b\n1,2\n#5,6\n3,4\n")), [[1, 2], [3, 4]])
    same = write("#id,a\n1,2\n3,4\n")
    assert names(same) == ("#id", "a")
    assert names(same, header=True) == ("#id", "a")
    assert names(same, header=False) is None
    assert names(write("# made, by\n1,2\n3,4\n")) is None
    assert names(write("#made by\na,b\n3,4\n")) == ("a", "b")


def test_names_are_those_of_the_header(write):
    assert names(write('"a,x", b ,"c ""d"""\n1,2,3\n')) == ("a,x", "b", 'c "d"')
    assert names(write("1,2\n3,4\n")) is None


def test_what_is_given_goes_before_what_is_found(write):
    path = write("1,2;5\n3,4;6\n")
    np.testing.assert_array_equal(read(path, delimiter=";", columns=[1]), [[5], [6]])
    path = write("1,2\n3,4\n")
    np.testing.assert_array_equal(read(path, header=True), [[3, 4]])
    assert names(path, header=True) == ("1", "2")
    with pytest.raises(DataError, match="no numbers in column 0, 1, as 'a' in line 1"):
        read(write("a,b\n"), header=False)


TABLE = 'id,city,"x, m",y,class\n1,"Rome, It",0.5,-1,cat\n2,New York,1.5,-2,dog\n3,,2.5,-3,cat\n'


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"drop": ["city"], "label": "class"}, ["id", "x, m", "y"]),
        ({"columns": ["y", "id"]}, ["y", "id"]),
        ({"columns": [3, 2, 3]}, ["y", "x, m", "y"]),
        ({"columns": [-2, "0"]}, ["y", "id"]),
        ({"drop": [1, "id"], "label": -1}, ["x, m", "y"]),
    ],
)
def test_columns_are_taken_dropped_and_ordered_by_name_or_number(write, parser, options, taken):
    columns = {"id": [1, 2, 3], "x, m": [0.5, 1.5, 2.5], "y": [-1, -2, -3]}
    path = write(TABLE)
    np.testing.assert_array_equal(read(path, **options), np.transpose([columns[t] for t in taken]))
    assert names(path, **options) == tuple(taken)


@pytest.mark.parametrize("delimiter", [",", "\t", ";", " "])
def test_columns_of_the_same_name_are_refused_and_can_be_left_out(write, parser, delimiter):
    path = write("a,b,a,c\n1,2,3,4\n5,6,7,8\n".replace(",", delimiter))
    with pytest.raises(DataError, match=r"2 columns are named 'a'; rename them, .*drop=\[2\]"):
        read(path)
    for options in ({"columns": ["a"]}, {"drop": ["a"]}, {"label": "a"}):
        with pytest.raises(DataError, match=r"2 columns are named 'a'; say which by number.*0, 2"):
            read(path, **options)
    same_bits(read(path, drop=[2]), [[1, 2, 4], [5, 6, 8]])
    same_bits(read(path, columns=[2, "c"]), [[3, 4], [7, 8]])


def test_text_in_columns_that_are_left_out_does_no_harm(write, parser):
    lines = "".join(f'{j},5" pipe {"é" * (j % 3)},{j}.5\n' for j in range(40))
    X = read(write(lines.encode("latin-1")), columns=[0, 2])
    np.testing.assert_array_equal(X[:, 1] - X[:, 0], [0.5] * 40)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["1", "-2.5", "3e2"], [1, -2.5, 300]),
        (["1", "", "NA"], [1, np.nan, np.nan]),
        (["cat", '"dog, big"', "é"], ["cat", "dog, big", "é"]),
        (["1", "cat", ""], ["1", "cat", ""]),
    ],
)
@pytest.mark.parametrize("chunk", [8, text.CHUNK])
def test_labels_are_numbers_or_text(write, parser, monkeypatch, column, expected, chunk):
    monkeypatch.setattr(text, "CHUNK", chunk)
    path = write("y,a,b\n" + "".join(f"{y},1,2\n" for y in column))
    np.testing.assert_array_equal(labels(path, label="y"), expected)
    np.testing.assert_array_equal(read(path, label=0), [[1, 2]] * 3)


GAPS = "a,y,b\n1,p,2\n,q,3\n4,r,NA\n5,,6\n7,s,?\n8,t,9\n"


@pytest.mark.parametrize("chunk", [8, text.CHUNK])
def test_rows_with_gaps_are_left_out_if_asked_for_and_that_is_told(
    write, parser, monkeypatch, chunk
):
    monkeypatch.setattr(text, "CHUNK", chunk)
    path = write(GAPS)
    with pytest.warns(lp.DataHint, match="3 of 6 rows are left out because of missing values"):
        source = lp.read(path, label="y", missing="drop")
    np.testing.assert_array_equal(np.concatenate(source.pieces), [[1, 2], [5, 6], [8, 9]])
    np.testing.assert_array_equal(source.labels, ["p", "", "t"])
    np.testing.assert_array_equal(source.left_out, [1, 2, 4])
    with pytest.warns(lp.DataHint, match="1 of 6"):  # gaps in other columns do not matter
        assert lp.read(path, columns=["a"], missing="drop").rows == 5
    with pytest.raises(lp.DataError, match="'four' is not a number"):
        lp.read(write("a,b\n1,2\n,3\n3,four\n"), missing="drop")
    with pytest.raises(lp.DataError, match="missing in each of its 2 rows"):
        lp.read(write("a,b\n1,\n,3\n"), header=True, missing="drop")


def test_gaps_of_every_spelling_take_the_fast_path(write, monkeypatch):
    words = ["", "NA", "n/a", "#N/A", "NaN", "null", "None", "?", "-", '""', " ", " NA ", '"NA"']
    path = write("a,b\n1,2\n" + "".join(f"{word},3\n4,{word}\n" for word in words))
    monkeypatch.delattr(csv, "_parse_lines")
    found = read(path, missing="mean")
    expected = [[1, 2], *[[np.nan, 3], [4, np.nan]] * len(words)]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        read(path, columns=["b", "a"], missing="drop"), np.array(expected)[:, ::-1]
    )


def test_true_and_false_are_one_and_zero(write, parser):
    path = write("a,b,c\nTrue,FALSE,1.5\nfalse,true,-2\n")
    assert names(path) == ("a", "b", "c")
    np.testing.assert_array_equal(read(path), [[1, 0, 1.5], [0, 1, -2]])
    np.testing.assert_array_equal(read(path, columns=["c", "a"]), [[1.5, 1], [-2, 0]])
    assert labels(path, label="a").tolist() == ["True", "false"]  # as they are written
    assert names(write("True,1\nFalse,2\n")) is None
    with pytest.raises(DataError, match="line 3, column 'a': 'truth' is not a number"):
        read(write("a,b\ntrue,1\ntruth,2\n"))


BAD = {
    "ragged, short": ("3,4,5\n6,7\n", {}, "line 4: found 2 fields, expected 3"),
    "ragged, long": ("3,4,5\n6,7,8,9\n", {}, "line 4: found 4 fields, expected 3"),
    "ragged in all": ("3,4\n5,6\n", {"header": True}, "line 3: found 2 fields, expected 3"),
    "missing": ("3,,5\n", {}, r"line 3, column 'b': the value is missing \(''\); leave out such"),
    "missing, NA": ("3,4, NA\n", {}, r"line 3, column 'c': the value is missing \(' NA'\)"),
    "missing, nan": ("3,4,5\nnan,7,8\n", {}, r"line 4, column 'a': the value is missing"),
    "null": ("3,null,5\n", {}, r"line 3, column 'b': the value is missing"),
    "infinite": ("3,-inf,5\n", {}, r"line 3, column 'b': '-inf' is not finite as float64"),
    "overflow": ("3,4,1e999\n", {}, r"line 3, column 'c': '1e999' is not finite"),
    "word": ("3,four,5\n", {}, r"line 3, column 'b': 'four' is not a number; leave .*drop=\['b'\]"),
    "underscore": ("3,4_0,5\n", {}, "line 3, column 'b': '4_0' is not a number"),
    "hexadecimal": ("3,0x4,5\n", {}, "line 3, column 'b': '0x4' is not a number"),
    "other digits": ("3,\u0664,5\n", {}, "line 3, column 'b': '\u0664' is not a number"),
    "two numbers": ("3,4 4,5\n", {}, "line 3, column 'b': '4 4' is not a number"),
    "long word": ("3," + "x" * 99 + ",5\n", {}, f"'{'x' * 40}…' is not a number"),
    "open quote": ('3,"4,5\n', {}, "line 3: the quotes are not as expected"),
    "newline in quotes": ('3,"4\n4",5\n', {}, "line 3: the quotes are not as expected"),
    "nul": ("3,4\x00,5\n", {}, "line 3: there is a NUL byte"),
    "unknown column": ("", {"columns": ["d"]}, "no column 'd' among its 3 columns: a, b, c"),
    "number too large": ("", {"drop": [3]}, "no column 3 among its 3 columns"),
    "nothing left": ("", {"drop": ["a", "b", "c"]}, "none of the 3 columns is left"),
}


@pytest.mark.parametrize(("lines", "options", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("chunk", [8, text.CHUNK])
def test_what_is_malformed_is_told_with_its_place(
    write, parser, monkeypatch, lines, options, message, chunk
):
    monkeypatch.setattr(text, "CHUNK", chunk)
    path = write("a,b,c\n0,1,2\n" + lines + "6,7,8\n" * 50)
    with pytest.raises(DataError, match=message) as caught:
        read(path, **options)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < len(str(path)) + 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,c,d\nx,1,y,2\nz,3,,4\n", r"no numbers in column 'a', 'c', as 'x' in line 2; .*"
         r"drop=\['a', 'c'\] or columns="),
        ("x,1,y\nz,3,w\n", r"no numbers in column 0, 2, as 'x' in line 1; .*drop=\[0, 2\]"),
        ("a;b\n1,5;2,5\n", r"no numbers in column 'a', 'b', as '1,5' in line 2; write decimals"),
        ("a;b\nx;2,5\n", r"no numbers in column 'b', as '2,5' .* pandas\.read_csv\("),
        ("a;b\n1;2\n1,5;2\n", r"line 3, column 'a': '1,5' is not a number; write decimals with a"),
        ("a,b\n", r"no numbers in column"),
        ("# only\n\n", "the file is empty"),
        ("0,1,2,3,4\n5,6,7,8,9\n", "header=True if those are names, header=False if it is a row"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_used_is_explained_at_once(write, parser, content, message):
    with pytest.raises(DataError, match=message):
        read(write(content))


def test_a_slip_in_the_first_number_is_no_header(write, parser):
    with pytest.raises(DataError, match=r"line 1, column 0: '1.5x' is not a number"):
        read(write("1.5x,2\n3,4\n5,6\n"))


def test_a_header_alone_has_no_rows(write):
    with pytest.raises(DataError, match="no row below the header, line 2"):
        read(write("#\na,b\n# end\n"), header=True)


@pytest.mark.parametrize("delimiter", ["", ",,", "1", "\n", '"', "é", "."])
def test_a_delimiter_that_cannot_be_is_refused(write, delimiter):
    with pytest.raises(ValueError, match="give one character"):
        read(write("1,2\n"), delimiter=delimiter)


WORDS = """1 -2.5 +3 .5 5. 1e5 1E-400 007 -0 nan inf NA 1e999 0x1 1_0 a "1" "1,2" "a""b" 5" "" " """
WORDS += "True FALSE null -"
words = st.sampled_from([*WORDS.split(), "", " 1", "1 ", "\t1", '"1" ', ' "1"', "é", "١", "nan(a)"])
texts = st.lists(
    st.lists(words, min_size=1, max_size=4).map(",".join) | st.sampled_from(["#", " ", "# 1"]),
    min_size=1,
    max_size=5,
).map(lambda lines: "".join(f"{line}\n" for line in lines))


@given(content=texts, count=st.integers(1, 4), label=st.booleans(), narrow=st.booleans())
@example('1,"2\n3",4\n', 2, False, False)
@settings(max_examples=600)
def test_fast_and_slow_path_agree_wherever_the_fast_one_accepts(
    write, content, count, label, narrow
):
    chosen = list(range(count - label)) if count > 1 else [0]
    taken = count - 1 if label and count > 1 else None
    dtype = np.dtype(np.float32 if narrow else np.float64)
    layout = csv.layouts.Layout(write(""), ",", None, 0, count, chosen, taken, dtype, narrow)
    fast = csv._parse_fast(content.encode(), layout, pyarrow)
    if fast is not None:
        slow = csv._parse_lines(Chunk(1, content.encode()), layout)
        np.testing.assert_array_equal(fast[0].view(np.int32), slow[0].view(np.int32))
        assert fast[0].dtype == slow[0].dtype
        if taken is not None:
            assert fast[1].dtype == slow[1].dtype
            np.testing.assert_array_equal(fast[1], slow[1])


@given(content=texts, chunk=st.integers(1, 40))
@settings(max_examples=150)
def test_any_text_is_read_or_refused_the_same_however_it_is_cut(write, content, chunk):
    path = write(content)

    def outcome():
        try:
            return read(path).tolist()
        except DataError as error:
            return str(error)

    whole = outcome()
    assert isinstance(whole, list) or whole.startswith(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK", chunk)
        assert outcome() == whole


@pytest.mark.parametrize(
    "line", ["1.5,2,3\n", '"1.5",2,3\n', "1.5, 2, 3\n", "1.5,2,3\n\n", "1.5,2,3\n# x\n"]
)
def test_usual_lines_take_a_fast_path(write, monkeypatch, line):
    path = write("a,b,c\n" + line * 5)
    monkeypatch.delattr(csv, "_parse_lines")
    assert read(path).tolist() == [[1.5, 2, 3]] * 5


def test_what_the_standard_library_writes_is_read_back(write):
    X = np.random.default_rng(1).standard_normal((30, 3)) * 10.0 ** np.array([-200, 0, 200])
    stream = io.StringIO()
    writer = stdlib_csv.writer(stream, quoting=stdlib_csv.QUOTE_NONNUMERIC)
    writer.writerow(["a\tb", "c|d", 'e;"f"'])
    writer.writerows(X.tolist())
    path = write(stream.getvalue())
    same_bits(read(path), X)
    assert names(path) == ("a\tb", "c|d", 'e;"f"')
