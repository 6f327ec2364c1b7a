"""The documentation: every block of code runs as shown, every page builds and can be read."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browser import faint, opened, overflowing
from test_examples import EXAMPLES, PICTURES

import localpower as lp
from localpower.data.detect import FORMATS
from localpower.engines.registry import ROWS
from localpower.methods import REGISTRY
from localpower.stopping import REASONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
spec = spec_from_file_location("pictures", DOCS / "pictures.py")
pictures = module_from_spec(spec)
spec.loader.exec_module(pictures)
PAGES = sorted(page for page in DOCS.rglob("*.md") if "reproduction" not in page.parts)
FENCE = re.compile(r"(?:^% not run: (.+)\n)?^```(\S*).*\n((?:.*\n)*?)^```$", re.M)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
INCLUDED = re.compile(r"^```\{literalinclude\} \.\./examples/(\w+)\.py$", re.M)
SCRIPTS = {name for page in PAGES for name in INCLUDED.findall(page.read_text(encoding="utf-8"))}
DIRECTIVES = ("{toctree}", "{include}", "{literalinclude}", "{eval-rst}")
ELSEWHERE = {"on_mpi": "mpi_cases.py", "on_ray": "test_ray.py"}  # where ranks and a Ray are
NOT_RUN = {
    ("index.md", "$ pip install ."): "needs a copy of the project to install from",
    ("flare.md", "$ localpower federation start hospitals/server"): "each runs until Ctrl-C",
    (
        "flare.md",
        "$ localpower fit --engine flare:hospitals/lead -k 3 --center --seed 0 -o model",
    ): "needs the four processes above",
    ("flare.md", ">>> import localpower as lp"): "needs the four processes above",
    ("flare.md", "$ nvflare provision -p project.yml -w workspace"): "needs a project of NVFLARE",
    (
        "flare.md",
        "$ flower-superlink --ssl-ca-certfile ca.pem --ssl-certfile s.pem --ssl-keyfile s.key "
        "--enable-supernode-auth --host 127.0.0.1 --port 18000 --isolation process",
    ): "needs Flower, and certificates for it",
}


def blocks(page):
    """Why a block does not run, its language, its code, and its line."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        reason, language, code = found.groups()
        if not language.startswith("{"):  # directives are Sphinx's to check
            yield reason, language, code, text[: found.start()].count("\n") + 1


@pytest.fixture
def own_registries():
    """Methods, engines and formats that a page registers are gone afterwards."""
    tables = REGISTRY, ROWS, FORMATS
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


def runs(page):
    return any(reason is None for reason, *_ in blocks(page))


@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize("page", [*filter(runs, PAGES)], ids=lambda page: page.stem)
def test_the_code_of_a_page_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for script in DOCS.glob("*.py"):
        shutil.copy(script, tmp_path)
    names = {}
    for reason, language, code, line in blocks(page):
        if reason is None:
            names = {"python": in_python, "console": in_shell}[language](code, names, page, line)


def in_python(code, names, page, line):
    examples = doctest.DocTestParser().get_doctest(code, names, page.stem, str(page), line)
    assert examples.examples, f"{page}, line {line}: Python is written with >>>"
    said = []
    doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=said.append, clear_globs=False)
    assert not said, "".join(said)
    return examples.globs


def in_shell(code, names, page, line):
    assert code.startswith("$ "), f"{page}, line {line}: commands are written with $"
    for part in re.split(r"^\$ ", code, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "PATH": path, "PYTHONWARNINGS": "error", "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        same = doctest.OutputChecker().check_output(shown, done.stdout, FLAGS)
        assert not shown or same, f"{command}\n{done.stdout}"
    return names


def test_every_script_that_a_page_includes_is_run_by_a_test():
    assert SCRIPTS - {*PICTURES} == {"on_spark", *ELSEWHERE}
    for name, test in ELSEWHERE.items():
        assert f'"{name}.py"' in (ROOT / "tests" / "engines" / test).read_text(encoding="utf-8")


def test_the_script_of_the_page_on_spark_runs(tmp_path):
    pytest.importorskip("pyspark")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java, which Spark needs")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "on_spark.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"from numpy by \d\S*e-1[0-9]", done.stdout), done.stdout


def test_blocks_that_do_not_run_are_these():
    found = {
        (page.name, code.partition("\n")[0]): reason
        for page in PAGES
        for reason, _, code, _ in blocks(page)
        if reason is not None
    }
    assert found == NOT_RUN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_is_nowhere_but_in_blocks_that_are_run(page):
    text = page.read_text(encoding="utf-8")
    assert {found[1] for found in FENCE.findall(text)} <= {"python", "console", *DIRECTIVES}
    assert not re.search(r"```|~~~|^ {4}\S|>>>", FENCE.sub("", text), re.M)


def test_the_table_of_reasons_says_what_a_run_says():
    text = (DOCS / "certificate.md").read_text(encoding="utf-8").replace("`", "")
    lines = [line.split("|") for line in text.splitlines() if line.startswith('| "')]
    rows = {line[1].strip().strip('"'): line[2:] for line in lines}
    assert list(rows) == list(REASONS)
    for name, reason in REASONS.items():
        converged, meaning, remedy, *_ = rows[name]
        assert (converged.strip() == "yes") is reason.converged
        assert reason.meaning in meaning
        assert reason.remedy in remedy


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages, built as ``make docs`` does."""
    pytest.importorskip("sphinx", reason="Sphinx is not installed: pages are not built")
    target = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "--quiet", "--doctree-dir", str(target / ".doctrees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(target)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target


def test_every_public_name_is_in_the_reference(site):
    text = "".join(page.read_text("utf-8") for page in (site / "reference").glob("*.html"))
    names = {name for name in lp.__all__ if not name.startswith("__")}
    targets = set(re.findall(r'id="(?:module-)?localpower\.(\w+)"', text))
    assert names - targets == set()


def test_pages_read_well_without_a_network(site, chromium):
    pages = [page for page in site.rglob("*.html") if page.name != "reproduction.html"]
    assert len(pages) > len(PAGES)
    found = {}
    with opened(chromium, pages[0]) as page:
        for path in pages:
            page.goto(path.as_uri())
            wrong = [
                fault for look in ((375, "light"), (1440, "dark")) for fault in seen(page, *look)
            ]
            if wrong := page.problems + wrong:
                found[path.name] = wrong
            page.problems.clear()
        page.goto(f"{(site / 'search.html').as_uri()}?q=certificate")
        page.wait_for_selector("ul.search li")
        found |= {"search": page.problems} if page.problems else {}
        page.goto(f"{(site / 'search.html').as_uri()}?q=explained+variance")
        page.wait_for_selector("ul.search li a[href^='reference/results']")
    assert found == {}


def seen(page, width, scheme):
    """What is wrong with a page at this width and in these colours."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    small = [f"a formula {high} high" for high in page.evaluate(FORMULAS) if high < 5]
    small += [f"a formula is cut: {text}" for text in page.evaluate(CUT)]
    wrong = [*overflowing(page), *faint(page), *small]
    return [f"{width} pixels, {scheme}: {fault}" for fault in wrong]


FORMULAS = "[...document.querySelectorAll('math')].map(m => m.getBoundingClientRect().height)"
CUT = """[...document.querySelectorAll('.formula')]
    .filter(f => f.scrollWidth > f.clientWidth + 1 || getComputedStyle(f).overflowX !== 'auto')
    .map(f => f.textContent)"""


def test_the_page_about_the_page_of_a_run_shows_one(site, chromium):
    for width in (375, 1440):
        with opened(chromium, site / "report.html", width) as page:
            frame = page.frame_locator("iframe.page")
            assert "Certified" in frame.locator("#verdict").inner_text()
            assert frame.locator("#scores .key li").count() == 10  # the digits
            assert overflowing(page) == []


def words(path):
    """What a picture says, without its numbers."""
    text = ElementTree.parse(path).getroot().itertext()
    return {word for part in text for word in re.findall(r"[^\W\d_]{3,}", part)}


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_of_pages_are_those_of_their_runs(name, tmp_path):
    shown = DOCS / "pictures" / f"{name}.svg"
    if name != "cluster":  # which takes Dask
        assert words(pictures.draw(name, tmp_path)) == words(shown)
    uses = [page.name for page in PAGES if f"(pictures/{name}.svg)" in page.read_text("utf-8")]
    assert uses


def test_how_to_pages_that_a_new_user_reads_have_a_picture():
    for name in ("tutorial", "report", "methods", "data", "dask", "ray", "spark", "mpi"):
        assert "](pictures/" in (DOCS / f"{name}.md").read_text(encoding="utf-8"), name
