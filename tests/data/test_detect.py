"""Formats are one table; a format from outside the package is read like those in it."""

import numpy as np
import pytest

import localpower as lp
from localpower.cli import main
from localpower.data import Block, detect, register

ROWS = np.random.default_rng(0).standard_normal((30, 4))


@pytest.fixture(autouse=True)
def _formats_are_put_back(monkeypatch):
    monkeypatch.setattr(detect, "FORMATS", dict(detect.FORMATS))


def read_slashes(path):
    """Rows of a file in which numbers are separated by slashes, a few at a time."""
    lines = path.read_text().splitlines()
    for start in range(0, len(lines), 7):
        yield np.array([line.split("/") for line in lines[start : start + 7]], dtype=float)


def write(path, rows=ROWS, mark=""):
    path.write_text(mark + "".join("/".join(map(repr, row)) + "\n" for row in rows.tolist()))
    return path


def test_a_format_from_outside_is_read_by_all_that_takes_paths(tmp_path, capsys):
    path = write(tmp_path / "rows.slashes")
    with pytest.raises(lp.DataError):
        lp.read(path)
    register("slashes", [".slashes"], read_slashes)
    expected = lp.svd(ROWS, 2, rng=0)
    for data in (path, str(path), tmp_path, tmp_path / "*.slashes", lp.read(path)):
        found = lp.svd(data, 2, workers=2, rng=0)
        np.testing.assert_allclose(found.singular_values, expected.singular_values)
    assert lp.read(path, drop=[0], label=1).columns == 2
    np.testing.assert_array_equal(lp.read(path, label=1).labels, ROWS[:, 1])
    assert main(["fit", str(path), "-k", "1", "-o", str(tmp_path / "model")]) == 0
    capsys.readouterr()


def test_a_format_from_outside_is_cached_like_others(tmp_path):
    calls = []

    def counting(path):
        calls.append(path)
        yield from read_slashes(path)

    register("slashes", [".slashes"], counting)
    path = write(tmp_path / "rows.slashes")
    for _ in range(2):
        with lp.read(path, cache=tmp_path / "cache") as rows:
            assert rows.rows == 30
    assert calls == [path]


def test_blocks_of_a_format_may_have_names_and_labels(tmp_path):
    def read(path):
        yield Block(ROWS[:10], np.arange(10), ("a", "b", "c", "d"))
        yield Block(ROWS[10:], np.arange(10, 30), ("a", "b", "c", "d"))

    register("named", [".named"], read)
    path = write(tmp_path / "rows.named")
    with lp.read(path, columns=["d", "a"]) as rows:
        assert rows.tables[0].names == ("d", "a")
        np.testing.assert_array_equal(np.concatenate(rows.pieces), ROWS[:, [3, 0]])
        np.testing.assert_array_equal(rows.labels, np.arange(30))
    with pytest.raises(lp.DataError, match="no column 'z'"):
        lp.read(path, columns=["z"])


def test_a_format_is_told_by_what_its_files_start_with(tmp_path):
    def read(path):
        yield ROWS

    register("marked", [".marked"], read, magic=[b"MARK"])
    assert lp.read(write(tmp_path / "rows", mark="MARK")).rows == 30
    with pytest.raises(lp.DataError, match=r"not a \.marked file, it starts with"):
        lp.read(write(tmp_path / "other.marked"))


@pytest.mark.parametrize(
    ("name", "suffixes", "part"),
    [
        ("csv", [".slashes"], "name='csv' is the name of a known format"),
        ("slashes", [".csv"], r"'\.csv', which is csv; take another"),
        ("slashes", ["slashes"], "give a dot and what follows"),
        ("slashes", [".gz"], "give a dot and what follows"),
    ],
)
def test_a_format_cannot_take_what_belongs_to_another(name, suffixes, part):
    with pytest.raises(ValueError, match=part):
        register(name, suffixes, read_slashes)


def test_a_format_can_be_registered_again(tmp_path):
    register("slashes", [".slashes"], lambda path: iter(()))
    register("slashes", [".slashes"], read_slashes)
    assert lp.read(write(tmp_path / "rows.slashes")).rows == 30
