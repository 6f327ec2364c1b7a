"""Functions and files are short, parameters few, and methods are named in one place."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import localpower as lp
from localpower.methods import REGISTRY

SOURCE = Path(lp.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MOST_CODE, MOST_LINES = 60, 450
OWN_ROOMS = ("methods", "paper")  # where the names of methods belong
DEFAULT = inspect.signature(lp.svd).parameters["method"].default  # part of public signatures
MATRIX, DOTS = "gram", "dpi"  # identifiers: a Gram matrix, and dots per inch of a picture
KERNELS = "worker/local_matrix.py"  # one of them is called "gram", in records of runs


def name_of(path):
    return path.relative_to(SOURCE).as_posix()


def definitions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef, ast.AsyncFunctionDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def docstring_of(node):
    """The statement that documents a module, class or function, if there is one."""
    first = node.body[0] if node.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first if is_text and isinstance(first.value.value, str) else None


def lines_of_code(node, text):
    """Lines of a function from its name to its end, without its docstring, blanks and comments."""
    lines = set(range(node.lineno, node.end_lineno + 1))
    told = docstring_of(node)
    if told is not None:
        lines -= set(range(told.lineno, told.end_lineno + 1))
    return sum(1 for n in lines if (line := text[n - 1].strip()) and not line.startswith("#"))


def words_of(path):
    """Identifiers and texts of a file that are not documentation, and whether they are texts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    told = {
        docstring.value
        for node in ast.walk(tree)
        if isinstance(node, documented) and (docstring := docstring_of(node)) is not None
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in told:
            yield node.lineno, node.value, True
        for field in ("id", "attr", "arg", "name", "module", "asname"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                yield getattr(node, "lineno", 0), word, False


def test_no_function_has_more_than_sixty_lines_of_code():
    found = {
        f"{name_of(path)}:{node.lineno} {node.name}": count
        for path in FILES
        for text in [path.read_text(encoding="utf-8").splitlines()]
        for node in definitions(path)
        if (count := lines_of_code(node, text)) > MOST_CODE
    }
    assert found == {}


def test_no_file_has_more_than_450_lines():
    sizes = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: size for name, size in sizes.items() if size > MOST_LINES} == {}


def test_svd_and_pca_have_few_parameters():
    shared = [name for name in inspect.signature(lp.svd).parameters if name != "privacy"]
    assert len(shared) <= 20  # and privacy, which changes what every other one may say
    assert (
        inspect.signature(lp.pca).parameters.keys() == inspect.signature(lp.svd).parameters.keys()
    )


@pytest.mark.parametrize("name", ["PCA", "TruncatedSVD"])
def test_the_estimators_have_few_parameters_beside_those_of_scikit_learn(name):
    decomposition = pytest.importorskip("sklearn.decomposition")
    ours = inspect.signature(getattr(lp, name)).parameters.keys()
    theirs = inspect.signature(getattr(decomposition, name)).parameters.keys()
    assert theirs <= ours
    assert len(ours - theirs) <= 11


def means_something_else(name, path, is_text):
    if is_text:
        return name == DEFAULT or (name == MATRIX and name_of(path) == KERNELS)
    return name in (MATRIX, DOTS)


def test_no_method_is_named_outside_of_its_room():
    names = re.compile(rf"(?<!\w)({'|'.join(REGISTRY)})(?!\w)")
    found = [
        f"{name_of(path)}:{line} {match[1]}"
        for path in FILES
        if path.relative_to(SOURCE).parts[0] not in OWN_ROOMS
        for line, word, is_text in words_of(path)
        for match in names.finditer(word)
        if not means_something_else(match[1], path, is_text)
    ]
    assert found == []
