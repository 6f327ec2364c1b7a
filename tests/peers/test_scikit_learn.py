"""scikit-learn's own tests of PCA and TruncatedSVD, run on the estimators of this package.

They are read from the scikit-learn that is installed, and nothing in them is changed but the import
of the estimator. `python tests/peers/test_scikit_learn.py` runs them and prints what comes out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

FILES = {"test_pca.py": 400, "test_truncated_svd.py": 40}  # how many pass at least
THEIRS, OURS = "from sklearn.decomposition import", "from localpower import"
FIXTURES = "from sklearn.conftest import *\n"
MORE = {"SKLEARN_RUN_FLOAT32_TESTS": "1", "SCIPY_ARRAY_API": "1"}  # what they skip by default
WARNINGS = ["-W", "error", "-W", "ignore::pytest.PytestRemovedIn10Warning"]  # of their own files

# Tests that fail, all of them, and why nobody will miss it.
DIFFERENT = {
    r"test_sparse_pca_solver_error\[.*": "sparse rows are taken with every solver: no error",
    r"test_pca_svd_solver_auto\[.*": "asks a private attribute which solver of theirs was taken; "
    "here the plan chooses, and result_.run tells what and why",
    r"test_pca_validation\[auto-3-.*": "the error names the solver that the user gave, which is "
    "'auto', and not one that was chosen from it",
}
OTHER_ARRAYS = re.compile(r"test_\w*array_api\w*(?!.*-numpy-).*")  # torch and others: not taken
ABSENT = re.compile(r"\w+ is not installed|No module named '\w+'")


def outcomes(folder: Path, name: str) -> dict[str, list[tuple[str, str]]]:
    """Run one of their files on our estimators: tests that passed, failed or were skipped."""
    found = find_spec("sklearn.decomposition.tests")
    source = Path(found.submodule_search_locations[0], name) if found else None
    if source is None or not source.exists():
        pytest.skip(f"this scikit-learn was installed without {name}")
    text = source.read_text(encoding="utf-8")
    assert text.count(THEIRS) == 1
    (folder / name).write_text(text.replace(THEIRS, OURS), encoding="utf-8")
    (folder / "conftest.py").write_text(FIXTURES)
    (folder / "pytest.ini").write_text("[pytest]\n")  # none of our own settings
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [*WARNINGS, f"--junitxml={folder}/out.xml", name]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | MORE, capture_output=True, text=True, check=False
    )
    assert (folder / "out.xml").exists(), done.stdout + done.stderr
    kinds: dict[str, list[tuple[str, str]]] = {"passed": [], "failure": [], "skipped": []}
    for case in ElementTree.parse(folder / "out.xml").iter("testcase"):
        kind, message = "passed", ""
        for child in case:
            kind, message = child.tag, child.get("message", "")
        kinds.setdefault(kind, []).append((case.get("name", ""), message))
    return kinds


def is_different(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in DIFFERENT)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FILES)
def test_their_tests_pass_but_for_those_that_are_listed(name, tmp_path):
    found = outcomes(tmp_path, name)
    assert found.keys() == {"passed", "failure", "skipped"}  # no errors
    failed = [case for case in found["failure"] if not OTHER_ARRAYS.fullmatch(case[0])]
    assert [case for case in failed if not is_different(case[0])] == []
    assert [case for case in found["passed"] if is_different(case[0])] == []  # the list is short
    assert [case for case in found["skipped"] if not ABSENT.search(case[1])] == []
    assert len(found["passed"]) >= FILES[name]


if __name__ == "__main__":
    for file in FILES:
        with tempfile.TemporaryDirectory() as place:
            for kind, cases in outcomes(Path(place), file).items():
                print(f"{file}: {len(cases)} {kind}")
                for case, message in cases if kind in ("failure", "error") else ():
                    print(f"  {case}\n    {message.splitlines()[0]}")
