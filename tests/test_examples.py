"""Every example runs as it stands, warnings being errors, and draws what it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {"on_dask": "distributed", "three_hospitals": "grpc"}
PICTURES = ["digits", "text", "larger_than_memory", "unlike_shards", "on_dask", "three_hospitals"]


@pytest.mark.parametrize("name", PICTURES)
def test_an_example_runs_and_draws(name, tmp_path):
    for library in ("matplotlib", "sklearn", NEEDS.get(name, "numpy")):
        pytest.importorskip(library)
    picture = tmp_path / "pictures" / "it.png"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), str(picture)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"-> {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]  # nothing else is left


def test_every_example_is_known_to_the_readme_or_to_a_page():
    root = EXAMPLES.parent
    pages = [root / "README.md", root / "Makefile", *(root / "docs").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert not [path.name for path in EXAMPLES.glob("*.py") if path.name not in text]
