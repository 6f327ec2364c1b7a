"""What a new user reads first: the README, whose commands run, and the help of every command."""

import re
import shlex
from argparse import _SubParsersAction
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from localpower.cli.commands import main, make_parser
from localpower.methods import REGISTRY

README = Path(__file__).parents[1] / "README.md"


def shell_lines():
    """The commands of the README, with what their comments and continuations are taken off."""
    lines = re.findall(r"^    (localpower .*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_every_command_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    arrow, parquet = (pytest.importorskip(f"pyarrow{part}") for part in ("", ".parquet"))
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((400, 12)) * 0.7 ** np.arange(12) + 1
    np.save("rows.npy", X)
    names = [f"x{j}" for j in range(12)]
    np.savetxt("rows.csv", X, delimiter=",", header=",".join(names), comments="")
    Path("rows").mkdir()
    for part in range(3):
        columns = dict(zip(names, X[part::3].T, strict=True))
        table = arrow.table(
            {"id": range(len(X[part::3])), "label": ["a"] * len(X[part::3])} | columns
        )
        parquet.write_table(table, f"rows/{part}.parquet")
    commands = shell_lines()
    assert len(commands) >= 5
    for command in commands:
        assert main(command) == 0, (command, capsys.readouterr().err)
    assert Path("model/run.json").exists()


def test_the_readme_is_read_in_a_minute_and_its_links_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert "://" in target or (README.parent / target).exists(), target
    picture = ElementTree.parse(README.parent / "docs" / "rounds.svg").getroot()
    assert picture.tag.endswith("svg")


def parsers(parser, name="localpower"):
    yield name, parser
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for word, inner in action.choices.items():
                yield from parsers(inner, f"{name} {word}")


@pytest.mark.parametrize(
    ("name", "parser"), [*parsers(make_parser())], ids=lambda it: it if isinstance(it, str) else ""
)
def test_the_help_of_every_command_fits_a_screen_and_starts_with_an_example(
    name, parser, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    lines = parser.format_help().splitlines()
    assert len(lines) <= (24 if name == "localpower" else 40)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("example: localpower ") for line in lines[:4])


def test_all_options_are_explained_on_request(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for word, rare in (("fit", "--certainty"), ("plan", "--width"), ("transform", "--delimiter")):
        for option, explained in (("--help", False), ("--help-all", True)):
            with pytest.raises(SystemExit) as end:
                main([word, option])
            text = capsys.readouterr().out
            assert end.value.code == 0
            assert rare in text
            assert bool(re.search(rf"^  {rare} [A-Z]+ ", text, re.MULTILINE)) is explained


def test_the_help_of_fit_lists_every_method_with_its_options(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help-all"])
    text = capsys.readouterr().out.partition("methods and their options:\n")[2]
    listed = re.split(r"^  (?=\w)", text, flags=re.MULTILINE)[1:]
    assert [part.split()[0] for part in listed] == [*REGISTRY]
    for part, form in zip(listed, REGISTRY.values(), strict=True):
        assert re.findall(r"^      (\w+)=", part, re.MULTILINE) == [*form.options()]


@pytest.mark.filterwarnings("default")
def test_a_model_remembers_how_its_rows_were_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [
        f"{i};n{i};{x:.3f};{y:.3f};{z:.3f}" for i, (x, y, z) in enumerate(rng.normal(size=(30, 3)))
    ]
    Path("my.csv").write_text("\n".join(["user_id;name;a;b;c", *lines]))
    how = ["--drop", "name", "--drop", "user_id", "--delimiter", ";"]
    assert main(["fit", "my.csv", "-k", "2", "--center", *how, "-o", "model"]) == 0
    assert main(["transform", "model", "my.csv", "-o", "scores.csv"]) == 0
    assert np.loadtxt("scores.csv", delimiter=",", skiprows=1).shape == (30, 2)
    assert main(["report", "model", "--data", "my.csv", "-o", "run.html"]) == 0
    assert main(["transform", "model", "my.csv", "--drop", "a", "-o", "scores.csv"]) == 1
    assert "--drop" in capsys.readouterr().err


def test_without_a_command_there_is_the_help_and_mistakes_say_where_it_is(capsys):
    assert main([]) == 2
    assert "example: localpower fit" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["fit", "rows.csv"])
    assert "required: -k/--rank; see localpower fit --help" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_errors_name_options_as_the_command_takes_them(tmp_path, capsys):
    text = "id,name of it,height,kind\n" + "".join(f"{i},n{i},{i / 3},b\n" for i in range(9))
    (tmp_path / "my.csv").write_text(text)
    assert main(["fit", str(tmp_path / "my.csv"), "-k", "1"]) == 1
    error = capsys.readouterr().err
    assert "--drop 'name of it,kind'" in error
    assert "localpower.read" not in error
    drop = ["--drop", "name of it,kind"]
    assert main(["fit", str(tmp_path / "my.csv"), "-k", "1", *drop]) == 0
    assert "--drop id" in capsys.readouterr().err
    assert main(["fit", str(tmp_path / "my.csv"), "-k", "9", *drop]) == 2
    assert "--rank 9 is more than" in capsys.readouterr().err
    compare = ["compare", str(tmp_path / "my.csv"), "-k", "1", *drop]
    assert main([*compare, "--methods", "dpi:steps=x"]) == 2
    assert "'steps=x' is not an option of it: take some of width, wire" in capsys.readouterr().err
