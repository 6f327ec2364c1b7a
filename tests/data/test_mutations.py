"""Whatever is done to a file, it is read or refused properly; the long run is in benchmarks."""

import importlib.util
import random
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import localpower as lp

FILE = Path(__file__).parents[2] / "benchmarks" / "mutations.py"


@pytest.fixture(scope="module")
def mutations():
    spec = importlib.util.spec_from_file_location("mutations", FILE)
    module = sys.modules["mutations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutations"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mutations")


@pytest.fixture(autouse=True)
def _hints_are_no_failures():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.DataHint)
        yield


@pytest.mark.parametrize("batch", [0, 1], ids=["svmlight", "npy"])
def test_a_thousand_mutated_files_are_read_or_refused(batch, mutations, tmp_path):
    row = mutations.run_batch(0, batch, 1000, tmp_path, tmp_path / "failures")
    assert row.kind == ["svmlight", "npy"][batch]
    assert row.accepted + row.refused == row.inputs == 1000
    assert min(row.accepted, row.refused) > 50
    assert not (tmp_path / "failures").exists()


def test_what_is_no_proper_refusal_is_counted_and_saved(mutations, tmp_path, monkeypatch):
    def fail(path):
        raise OverflowError("made up")

    monkeypatch.setattr(mutations, "accepted", fail)
    row = mutations.run_batch(3, 0, 2, tmp_path, tmp_path / "failures")
    assert (row.accepted, row.refused, row.failures) == (0, 0, 2)
    saved = sorted(path.name for path in (tmp_path / "failures").iterdir())
    assert len(saved) == 4
    assert all(name.startswith(("svmlight-3-0-0", "svmlight-3-0-1")) for name in saved)
    why = [path for path in (tmp_path / "failures").iterdir() if path.suffix == ".txt"]
    assert all("made up" in path.read_text() for path in why)


def test_a_run_goes_on_where_it_stopped(mutations, tmp_path, monkeypatch):
    monkeypatch.setattr(mutations, "BATCH", 10)
    places = tmp_path / "rows.csv", tmp_path / "failures", tmp_path
    once = list(mutations.run(5, 40, tmp_path / "other.csv", *places[1:]))
    rows = mutations.run(5, 40, *places)
    first = next(rows)
    rows.close()
    again = list(mutations.run(5, 40, *places))
    assert [row.batch for row in (first, *again)] == [row.batch for row in once] == [0, 1, 2, 3]
    assert [row.accepted for row in (first, *again)] == [row.accepted for row in once]
    assert not list(mutations.run(5, 40, *places))
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 5


@settings(max_examples=200)
@given(data=st.binary(max_size=200), suffix=st.sampled_from(["", ".svm", ".csv", ".npy", ".npz"]))
@example(b"1 1:1\n", ".svm")
def test_any_bytes_are_read_or_refused(mutations, folder, data, suffix):
    path = folder / f"bytes{suffix}"
    path.write_bytes(data)
    assert mutations.accepted(path) in (True, False)


@settings(max_examples=200)
@given(text=st.text(alphabet="0123456789.:+-e#q id,_\n\t", max_size=60))
@example("1 1:1 2:2\n")
def test_any_text_like_svmlight_is_read_or_refused(mutations, folder, text):
    path = folder / "text.svm"
    path.write_text(text)
    assert mutations.accepted(path) in (True, False)


def test_a_file_without_mutation_is_accepted(mutations, folder):
    for number, seeds in enumerate((mutations.TEXTS, mutations.ARRAYS)):
        for data in seeds:
            path = folder / f"valid{('.svm', '.npy')[number]}"
            path.write_bytes(data)
            assert len(data) < 300
            assert mutations.accepted(path)


@pytest.mark.parametrize("kind", ["svmlight", "npy"])
def test_a_seed_makes_the_same_inputs_again(kind, mutations):
    first, second = (
        [mutations.mutated(kind, rng) for rng in map(random.Random, range(50))] for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 40
