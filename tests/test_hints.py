"""A stranger's first calls: a wrong name is answered by the right one, before anything runs."""

import sys

import numpy as np
import pytest

import localpower as lp
from localpower.cli.commands import main

A = np.random.default_rng(0).standard_normal((60, 6)) * 0.7 ** np.arange(6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lp.pca(A, 3, random_state=0), r"^pca\(\) has no argument random_state: .* rng=0$"),
        (lambda: lp.svd(A, 3, seed=7), r"^svd\(\) has no argument seed: write rng=7$"),
        (lambda: lp.pca(A, n_components=3), r"^pca\(\) has no argument n_components: .* rank=3$"),
        (lambda: lp.svd(A, 3, n_iter=9), r"write max_rounds=9$"),
        (lambda: lp.plan((60, 6), 3, n_jobs=2), r"^plan\(\) has no .* n_jobs: write workers=2$"),
        (lambda: lp.pca(A, 3, svd_solver="full"), r"svd_solver: write method='tsqr'$"),
        (
            lambda: lp.svd(A, 3, algorithm="randomized"),
            r"algorithm: write method='block_krylov:start=random'$",
        ),
        (lambda: lp.pca(A, 3, verbose=1), r"write progress=True$"),
        (lambda: lp.pca(A, 3, n_jobs=-1), r"write workers=None$"),
        (lambda: lp.pca(A, 3, standardize=True), r"write scale='std'$"),
        (lambda: lp.pca(A, 3, whiten=True), r"whiten, which is a parameter of localpower\.PCA$"),
        (lambda: lp.pca(A, 3, ranks=4), r"^pca\(\) has no argument ranks: did you mean rank\?$"),
        (lambda: lp.pca(A, 3, wibble=4), r"^pca\(\) has no argument wibble: it has data, rank, "),
        (lambda: lp.svd(A, 3, steps=4), r"option of a method: write method='local_power:steps=4'$"),
        (lambda: lp.svd(A, 3, "dpi", width=5), r"write method='dpi:width=5'$"),
        (
            lambda: lp.svd(A, 3, method="dpi:wire=float32", width=5),
            r"write method='dpi:wire=float32,width=5'$",
        ),
        (
            lambda: lp.svd(A, 3, lp.LocalPower(steps=2), align="none"),
            r"write method='local_power:steps=2,align=none'$",
        ),
        (lambda: lp.svd(A, 3, "gram", steps=4), r"write method='local_power:steps=4'$"),
        (lambda: lp.compare(A, 3, steps=4), r"write methods='local_power:steps=4'$"),
        (lambda: lp.compare(A, 3, method="dpi"), r"did you mean methods\?$"),
        (lambda: lp.pca(A, 3, missing="drop"), r"pass read\(data, missing='drop'\) as data$"),
        (lambda: lp.plan(A, 3, label="y"), r"option of reading: pass read\(data, label='y'\) as "),
    ],
)
def test_an_unknown_argument_is_answered_by_the_right_one(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize("solver", ["full", "covariance_eigh", "arpack", "randomized", "auto"])
def test_solvers_of_scikit_learn_are_answered_by_a_method_that_there_is(solver):
    with pytest.raises(TypeError, match="svd_solver: write method=") as caught:
        lp.pca(A, 2, svd_solver=solver)
    advised = eval(str(caught.value).partition("write method=")[2])
    assert lp.pca(A, 2, advised, rng=0).run["rank"] == 2


@pytest.mark.parametrize(
    ("given", "advised"),
    [
        ({"deadline": 3}, "faults=localpower.Faults(deadline=3)"),
        ({"seconds": 60}, "budget=localpower.Budget(seconds=60)"),
        ({"resume": True}, "checkpoint=localpower.Checkpoint('run.ckpt', resume=True)"),
        ({"epsilon": 1.0}, "privacy=localpower.Privacy(epsilon=1.0)"),
    ],
)
def test_options_that_travel_together_are_answered_by_what_runs(
    given, advised, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=": write ") as caught:
        lp.pca(A, 3, **given)
    assert str(caught.value).partition(": write ")[2] == advised
    lp.pca(A, 3, rng=0, **eval(f"dict({advised})", {"localpower": lp}))


def test_what_is_advised_works():
    assert lp.svd(A, 3, method="dpi:wire=float32,width=5", max_rounds=2, rng=0).run["width"] == 5
    assert lp.svd(A, 3, "local_power:steps=2,align=none", max_rounds=2, rng=0).history[0].steps == 2


@pytest.mark.parametrize(
    "callback",
    [lambda record: None, lambda: None, lambda record, state, more: None, lambda *, record: None],
)
def test_a_callback_that_cannot_be_called_is_refused_before_the_run(callback):
    with pytest.raises(
        TypeError, match=r"callback=<lambda>\(.*two arguments, such as def callback"
    ):
        lp.svd("/nowhere/at/all.npy", 2, callback=callback)


@pytest.mark.parametrize("take", [lambda *both: both, lambda record, state, more=0: record])
def test_a_callback_that_can_be_called_is(take):
    assert lp.svd(A, 2, "dpi", max_rounds=2, rng=0, callback=take).reason == "callback"


def test_methods_may_have_names_of_the_users_own():
    named = {"p=2": {"method": "local_power", "steps": 2}, "p=4": "local_power:steps=4"}
    found = lp.compare(A, 2, methods=named | {"plain": lp.LocalPower()}, workers=3, max_rounds=3)
    assert {row.method for row in found} == {"p=2", "p=4", "plain"}
    assert found["p=2"].result.run["options"]["steps"] == "2"
    assert "p=2" in str(found)
    with pytest.raises(ValueError, match="does not say which method: write methods=") as caught:
        lp.compare(A, 2, methods={"p=2": {"steps": 2}})
    advised = eval(str(caught.value).partition("write methods=")[2])
    again = lp.compare(A, 2, methods=advised, workers=3, max_rounds=3)
    assert again["p=2"].result.run["options"]["steps"] == "2"
    with pytest.raises(ValueError, match=r"methods\['a'\]='local_power:steps=x'"):
        lp.compare(A, 2, methods={"a": "local_power:steps=x"})


def test_a_result_says_which_rounds_are_the_methods_and_which_are_all():
    result = lp.svd(A, 2, "dpi", max_rounds=3, workers=2, rng=0)
    assert len(result.history) == 3
    assert f"3 rounds of the method, {result.ledger.rounds} with set-up and factors" in str(result)
    one = lp.svd(A, 2, "gram", workers=1, rng=0)
    assert f"1 round of the method, {one.ledger.rounds} with set-up and factors" in str(one)
    assert "in 1 shard, seed" in str(one)


def test_a_name_of_a_column_alone_is_a_list_of_one(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,a,b\n7,1,2\n9,3,5\n8,4,4\n")
    assert lp.read(path, drop="id").columns == 2
    assert lp.read(path, columns="b").columns == 1


def test_a_warm_start_that_is_no_result_is_refused_by_name():
    with pytest.raises(TypeError, match=r"warm_start=3 must be a localpower\.Result, or None"):
        lp.pca(np.eye(5), 2, warm_start=3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metod", "dpi"], "(did you mean --method?); see localpower fit --help"),
        (["--method", "dpii"], "--method dpii is not known"),
        (["--tol", "2"], "--tol 2.0 must be the sine of an angle"),
        (["--resume"], "--resume needs --checkpoint FILE"),
    ],
)
def test_bad_options_of_fit_are_told_before_rows_are_read(words, said, tmp_path, capsys):
    missing = str(tmp_path / "no such file.csv")
    with pytest.raises(SystemExit) as end:
        sys.exit(main(["fit", missing, "-k", "2", *words]))
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_file_given_as_a_model_is_told_to_be_none(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1,2\n")
    with pytest.raises(
        lp.DataError, match=r"is not a model: .*run\.json is missing; give the folder"
    ):
        lp.Result.load(path)


def test_the_usage_of_site_project_names_the_whole_command(capsys):
    with pytest.raises(SystemExit):
        main(["site", "project", "--help"])
    assert capsys.readouterr().out.startswith("usage: localpower site project MODEL POLICY|DATA")
