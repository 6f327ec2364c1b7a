"""Every example runs as it stands, warnings being errors, and draws what it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {"on_dask": "distributed", "three_hospitals": "grpc"}
PICTURES = ["digits", "text", "larger_than_memory", "unlike_shards", "on_dask", "three_hospitals"]
PLAIN = PICTURES[:4]  # these start no processes
RUN = """
import os, runpy, sys
examples = sys.argv[1]
for folder in sys.argv[2:]:
    os.chdir(folder)
    sys.argv = [f"{examples}/{os.path.basename(folder)}.py", f"{folder}/pictures/it.png"]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*command, cwd):
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, command)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """What the plain ones print, one after another in one process, each in a folder of its own."""
    folders = [tmp_path_factory.mktemp("examples") / name for name in PLAIN]
    for folder in folders:
        folder.mkdir()
    return folders, run("-c", RUN, EXAMPLES, *folders, cwd=folders[0])


@pytest.mark.parametrize("name", PICTURES)
def test_an_example_runs_and_draws(name, tmp_path, request):
    for library in ("matplotlib", "sklearn", NEEDS.get(name, "numpy")):
        pytest.importorskip(library)
    if name in PLAIN:
        folders, printed = request.getfixturevalue("drawn")
        tmp_path = folders[PLAIN.index(name)]
        picture = tmp_path / "pictures" / "it.png"
        assert printed.count(f"-> {picture}\n") == 1
    else:
        picture = tmp_path / "pictures" / "it.png"
        printed = run(EXAMPLES / f"{name}.py", picture, cwd=tmp_path)
        assert printed.endswith(f"-> {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]  # nothing else is left


def test_every_example_is_known_to_the_readme_or_to_a_page():
    root = EXAMPLES.parent
    pages = [root / "README.md", root / "Makefile", *(root / "docs").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert not [path.name for path in EXAMPLES.glob("*.py") if path.name not in text]
