"""The list of mutations fits the sources, and what is listed of them is complete."""

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "mutants.py"


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", FILE)
    module = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def test_every_snippet_occurs_once_and_its_mutation_can_be_compiled(mutants):
    every = mutants.mutants()
    assert len({mutant.id for mutant in every}) == len(every) >= 700
    assert set(mutants.STRICT) <= {mutant.file for mutant in every}
    for mutant in every:
        source = (mutants.ROOT / mutants.PACKAGE / mutant.file).read_text(encoding="utf-8")
        changed = mutant.applied(source)
        assert changed != source
        compile(changed, mutant.file, "exec", dont_inherit=True)
        assert (mutants.ROOT / mutant.tests[0]).is_file()


def test_a_snippet_that_is_not_there_once_is_refused(mutants):
    mutant = mutants.mutants()[0]
    with pytest.raises(LookupError, match="0 times"):
        mutant.applied("")
    with pytest.raises(LookupError, match="2 times"):
        mutant.applied(2 * (mutant.original + "\n"))


def test_what_is_listed_has_no_survivor_that_is_not_explained(mutants):
    with open(FILE.with_suffix(".csv"), encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    survived = [row for row in rows if row["outcome"] == "survived"]
    assert {row["id"] for row in rows} == {mutant.id for mutant in mutants.mutants()}
    assert not [row for row in survived if row["file"] in mutants.STRICT]
    assert all(row["equivalent"] for row in survived)
    assert len(survived) <= mutants.MOST * len(rows)
