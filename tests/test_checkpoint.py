"""A run that was killed goes on with the bits of one that was not."""

import errno
import io
import json
import os
import subprocess
import sys
import warnings
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import same_bits, with_options, with_spectrum
from scipy import sparse

import localpower as lp
from localpower import checkpoint
from localpower.checkpoint import CheckpointWriter, Snapshot
from localpower.core.evidence import draw
from localpower.core.files import replacing
from localpower.core.ledger import Round
from localpower.engines.inline import Inline
from localpower.iteration import relay_of
from localpower.methods import REGISTRY, Choice, Start, method_from
from localpower.methods.auto import Auto
from localpower.methods.block_lanczos import LanczosState
from localpower.methods.exact import FactoredState
from localpower.methods.local_ritz import RitzState
from localpower.methods.schedule import Adaptive
from localpower.methods.state import State
from localpower.worker.tasks import LeadingFactor, PowerSteps, Refine

RUNS = {
    "local_ritz": {"method": "local_ritz", "tol": 1e-9},
    "all": {"method": "local_ritz:proposal=all+residual", "tol": 1e-9},
    "local_power": {"method": "local_power:steps=4,schedule=halving", "max_rounds": 7},
    "adaptive": {"method": "local_power:steps=4,schedule=adaptive", "max_rounds": 9},
    "certified local_power": {
        "method": "local_power:steps=3,schedule=halving",
        "max_rounds": 9,
        "tol": 1e-3,
    },
}


def rows(dtype=float):
    rng = np.random.default_rng(0)
    return (rng.standard_normal((400, 25)) * 0.8 ** np.arange(25)).astype(dtype)


def fit(path, X=None, *, every=1, resume=False, **options):
    where = None if path is None else lp.Checkpoint(path, every=every, resume=resume)
    return lp.svd(rows() if X is None else X, 3, workers=4, rng=0, checkpoint=where, **options)


def same_run(a, b):
    """The same numbers, rounds and bytes; only seconds may differ."""
    histories = [[replace(record, seconds=0.0) for record in r.history] for r in (a, b)]
    return same_bits(a, b) and histories[0] == histories[1] and a.ledger == b.ledger


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_ended_after_any_round_goes_on_with_the_same_bits(name, tmp_path):
    whole = fit(None, **RUNS[name])
    for end in range(1, len(whole.history) + 1):
        path = tmp_path / f"{end}"
        fit(path, **RUNS[name], callback=lambda record, state, end=end: record.round == end)
        assert same_run(fit(path, resume=True, **RUNS[name]), whole)


CHILD = """
import os, signal, sys
import numpy as np
import localpower as lp
from localpower import result
rng = np.random.default_rng(0)
X = rng.standard_normal((400, 25)) * 0.8 ** np.arange(25)
replace = os.replace

def run(path, rounds, inside):
    count = 0

    def counted(a, b):
        nonlocal count
        count += 1
        if inside and count > rounds:  # the new file is written, but not in place
            os.kill(os.getpid(), signal.SIGKILL)
        replace(a, b)

    def kill(record, state):
        if not inside and record.round > rounds:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = counted
    lp.svd(X, 3, workers=4, rng=0, checkpoint=path, callback=kill, method="block_lanczos", tol=1e-9)
    os._exit(0)

for path in sys.argv[1:]:  # each run has a process of its own
    rounds, where = os.path.basename(path).split("-")
    child = os.fork()
    if not child:
        run(path, int(rounds), where == "inside")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def killed(*paths):
    """Kill a run after so many rounds, as the name of its checkpoint says."""
    subprocess.run([sys.executable, "-c", CHILD, *map(str, paths)], check=True)


def test_a_killed_process_leaves_a_checkpoint_to_go_on_from(tmp_path):
    paths = {
        tmp_path / f"{rounds}-{where}": rounds
        for rounds in range(4)
        for where in ("between", "inside")
    }
    killed(*paths)
    whole = fit(None, method="block_lanczos", tol=1e-9)
    for path, rounds in paths.items():
        assert path.exists() == (rounds > 0)
        assert same_run(fit(path, resume=True, method="block_lanczos", tol=1e-9), whole)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"X": rows() + 1}, "data"),
        ({"X": rows()[:399]}, "shards, data"),
        ({"X": rows(np.float32)}, "dtype"),
        ({"tol": 1e-5}, "tol"),
        ({"method": "local_ritz:width=7"}, "width"),
        ({"center": True}, "center"),
        ({"method": "block_krylov"}, "method"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_of_another_run_is_refused_with_the_reason(tmp_path, change, named):
    path = tmp_path / "run.ck"
    options = {"method": "local_ritz", "tol": 1e-9}
    fit(path, **options)
    with pytest.raises(lp.DataError, match=named):
        fit(path, resume=True, **options | change)


def test_torn_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "run.ck"
    fit(path, **RUNS["local_ritz"])
    content = path.read_bytes()
    for torn in (content[:-1], content[: len(content) // 2], content[:50] + b"x" + content[51:]):
        path.write_bytes(torn)
        with pytest.raises(lp.DataError, match="torn or damaged checkpoint"):
            fit(path, resume=True, **RUNS["local_ritz"])
    for foreign in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        path.write_bytes(foreign)
        with pytest.raises(lp.DataError, match="not a checkpoint of this version"):
            fit(path, resume=True, **RUNS["local_ritz"])


def test_auto_goes_on_with_the_method_that_it_had_come_to(tmp_path, monkeypatch):
    monkeypatch.setattr("localpower.iteration.ROUNDS", 3)
    monkeypatch.setattr("localpower.iteration.PATIENCE", 0)
    X = np.random.default_rng(0).standard_normal((700, 600))
    path, options = tmp_path / "run.ck", {"engine": "inline", "tol": 1e-8}
    whole = fit(None, X, **options)
    assert "tsqr followed" in whole.run["why"]
    assert [record.round for record in whole.history] == list(range(1, 8))
    assert all(record.steps >= 0 for record in whole.history)
    for rounds in (3, 4, 5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lp.ConvergenceWarning)
            fit(path, X, callback=after(rounds), **options)
            again = fit(path, X, resume=True, callback=after(rounds + 2), **options)
        assert len(again.history) == rounds + 2
        again = fit(path, X, resume=True, **options)
        assert same_run(again, whole)
        assert again.run["method"] == "tsqr"
        path.unlink()


@pytest.mark.parametrize("rounds", [10, 13])
def test_auto_goes_on_with_a_method_that_is_late_and_soon_there(tmp_path, monkeypatch, rounds):
    monkeypatch.setattr("localpower.iteration.ROUNDS", 11)
    monkeypatch.setattr("localpower.iteration.PATIENCE", 0)
    monkeypatch.setattr(Auto, "choose", lambda self, problem: choice)
    flat = np.random.default_rng(0).standard_normal((700, 600)) * np.arange(1.0, 601) ** -0.1
    path, options = tmp_path / "run.ck", {"engine": "inline", "tol": 1e-8}
    choice = Choice(method_from("block_lanczos"), "", 1, (method_from("tsqr"),), worth=200)
    whole = fit(None, flat, **options)
    assert whole.run["method"] == "block_lanczos"
    assert len(whole.history) > 30
    fit(path, flat, callback=after(rounds), **options)
    assert same_run(fit(path, flat, resume=True, **options), whole)


class Leg:
    """A method that does nothing but count rounds."""

    iterates = True

    def states(self, engine, begin):
        first = 0 if begin.state is None else begin.state.round
        for number in range(first + 1, first + 3):
            yield State(np.eye(4)[:, :2], round=number, rank=2)


@pytest.mark.parametrize(
    ("leg", "over", "comes"), [(0, False, (0, 2, 6)), (0, True, (1, 1, 6)), (1, True, (2, 1, 6))]
)
def test_a_relay_goes_on_from_the_leg_that_it_had_come_to(leg, over, comes):
    legs = [Leg(), Leg(), Leg()]
    choice = Choice(legs[0], "", 1, tuple(legs[1:]))
    state = State(np.eye(4)[:, :2], round=5, rank=2)
    past = SimpleNamespace(leg=leg, before=(4, 4), over=over, state=state)
    relay = relay_of(choice, None, Start(2, 2, np.random.default_rng(0)), None, past)
    found = next(iter(relay))
    own = found.round - relay.before[0]
    assert (relay.leg, own, found.round) == comes
    assert relay.method is legs[comes[0]]


@pytest.mark.parametrize("columns", [4, 600], ids=["exact", "iterated"])
def test_auto_resumes_with_the_next_method_where_one_had_given_up(tmp_path, columns):
    values = np.r_[1, 1e-9, 1e-10, 1e-11, np.full(columns - 4, 1e-14)]
    graded, path = with_spectrum(columns + 100, values), tmp_path / "run.ck"
    whole = fit(None, graded)
    assert "tsqr followed" in whole.run["why"]
    for rounds in {1, len(whole.history) - 1}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lp.ConvergenceWarning)
            fit(path, graded, callback=after(rounds))
        assert same_run(fit(path, graded, resume=True), whole)
        path.unlink()


@pytest.mark.parametrize(
    ("methods", "rank", "options"),
    [
        pytest.param(("block_krylov", "tsqr"), 4, {}, id="the last round of a method is enough"),
        pytest.param(("dpi", "tsqr"), 3, {"max_rounds": 2}, id="no round is left"),
        pytest.param(("local_power", "local_ritz"), 0.9, {}, id="a share"),
        pytest.param(("dpi", "local_power", "block_lanczos"), 3, {"max_rounds": 9}, id="three"),
    ],
)
@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_a_relay_goes_on_from_each_round_to_the_same_end(
    tmp_path, monkeypatch, methods, rank, options
):
    first, *others = (REGISTRY[name].build() for name in methods)
    choice = Choice(first, "asked for", 1, tuple(others))
    monkeypatch.setattr(Auto, "choose", lambda self, problem: choice)
    monkeypatch.setattr("localpower.iteration.PATIENCE", 0)
    how = {"engine": "inline", "workers": 2, "tol": 1e-8, "rng": 5, "center": True} | options
    X = np.random.default_rng(5).standard_normal((60, 16)) * 0.9 ** np.arange(16)
    for patience in (1, 2, 3):
        monkeypatch.setattr("localpower.iteration.ROUNDS", patience)
        whole = lp.svd(X, rank, **how)
        for last in range(1, len(whole.history) + 1):
            path = tmp_path / f"{patience}-{last}.ck"
            stop = {"callback": lambda record, _, last=last: record.round == last}
            lp.svd(X, rank, checkpoint=path, **stop, **how)
            again = lp.svd(X, rank, checkpoint=lp.Checkpoint(path, resume=True), **how)
            np.testing.assert_array_equal(again.components, whole.components)
            for told in ("method", "why", "reason", "certificate"):
                assert str(again.run[told]) == str(whole.run[told])


def test_a_missing_checkpoint_starts_anew_and_every_says_how_often_it_is_written(
    tmp_path, monkeypatch
):
    written = []
    save = checkpoint.save

    def noting(path, point, identity):
        written.append(point.state.round)
        save(path, point, identity)

    monkeypatch.setattr("localpower.checkpoint.save", noting)
    fit(tmp_path / "run.ck", resume=True, every=3, method="dpi", max_rounds=8)
    assert written == [3, 6]
    assert os.listdir(tmp_path) == ["run.ck"]
    with pytest.raises(TypeError, match="path"):
        lp.Checkpoint(resume=True)


def test_a_path_alone_stands_for_a_checkpoint_after_every_round(tmp_path):
    paths = [tmp_path / "a.ck", tmp_path / "b.ck"]
    for path, where in zip(paths, (str(paths[0]), lp.Checkpoint(paths[1])), strict=True):
        lp.svd(rows(), 3, "dpi", workers=4, rng=0, checkpoint=where, max_rounds=3)
        assert len(fit(path, method="dpi", max_rounds=3, resume=True).history) == 3
    with pytest.raises(TypeError, match="checkpoint=3 must be the path of a file"):
        lp.svd(rows(), 3, checkpoint=3)
    with pytest.raises(ValueError, match="Checkpoint every=0 must be 1 or more"):
        lp.Checkpoint(paths[0], every=0)


def test_a_warm_start_saves_rounds():
    cold = lp.svd(rows(), 3, method="dpi", tol=1e-8, max_rounds=200, rng=0)
    near = rows() + 1e-6
    again = lp.svd(near, 3, method="dpi", tol=1e-8, max_rounds=200, rng=1)
    warm = lp.svd(near, 3, method="dpi", tol=1e-8, max_rounds=200, rng=1, warm_start=cold)
    assert len(warm.history) < len(again.history)
    with pytest.raises(ValueError, match="warm_start has 25 columns where the data have 24"):
        lp.svd(rows()[:, :24], 3, warm_start=cold)


def after(rounds):
    return lambda record, state: record.round == rounds


def with_the_same_statistics(X, rng):
    """Whole numbers in other orders within the shards.

    Of 32 of them, sums, means and squares are the same to the last bit.
    """
    shards = np.split(X, 4)
    yield np.vstack([rng.permuted(shard, axis=0) for shard in shards])
    yield np.vstack([rng.permutation(shard) for shard in shards])


@pytest.mark.parametrize("kind", [np.asarray, np.float32, sparse.csr_array])
def test_a_checkpoint_of_other_rows_with_the_same_sums_and_squares_is_refused(tmp_path, kind):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((128, 3)) @ rng.standard_normal((3, 25)) * 9).round()
    path = tmp_path / "run.ck"
    options = {"method": "local_ritz", "tol": 1e-3}
    fit(path, kind(X), **options)
    for other in with_the_same_statistics(X, rng):
        assert (other.sum(axis=0) == X.sum(axis=0)).all()
        with pytest.raises(lp.DataError, match="with other data;"):
            fit(path, kind(other), resume=True, **options)
    assert fit(path, kind(X), resume=True, **options).converged


def test_a_checkpoint_belongs_to_numbers_and_not_to_the_file_that_has_them(tmp_path):
    X = (rows() * 8).round()
    np.save(tmp_path / "rows.npy", X)
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",")
    path = tmp_path / "run.ck"
    whole = fit(None, X, **RUNS["local_power"])
    stored = [tmp_path / "rows.npy", tmp_path / "rows.csv", np.asfortranarray(X), X.astype(int)]
    for number, data in enumerate(stored):
        fit(path, stored[number - 1], callback=after(3), **RUNS["local_power"])
        again = fit(path, data, resume=True, memory="64MB", **RUNS["local_power"])
        assert same_bits(again, whole)
    again = fit(path, sparse.csr_array(X), resume=True, **RUNS["local_power"])
    assert np.allclose(again.singular_values, whole.singular_values)


def test_entries_that_are_zero_or_there_twice_make_no_other_data(tmp_path):
    X = (rows() * 8).round()
    row, column = np.indices(X.shape).reshape(2, -1)
    ones = np.ones(X.size)
    twice = sparse.coo_array(
        (np.r_[X.ravel() - 1, ones], (np.r_[row, row], np.r_[column, column])), X.shape
    )
    kinds = [sparse.csr_array(X), sparse.csr_array((X.ravel(), (row, column)), X.shape), twice]
    indices, starts = np.r_[column, column].reshape(2, *X.shape), np.arange(401) * 50
    both = np.stack([X - 1, np.ones_like(X)], axis=1).reshape(400, -1)
    places = indices.transpose(1, 0, 2).reshape(400, -1)
    kinds.append(sparse.csr_array((both.ravel(), places.ravel(), starts), X.shape))
    assert not kinds[-1].has_canonical_format
    path = tmp_path / "run.ck"
    how = RUNS["local_power"]
    for number, data in enumerate(kinds):
        fit(path, kinds[number - 1], callback=after(3), **how)
        assert len(fit(path, data, resume=True, **how).history) == how["max_rounds"]


STARTS = {
    "seed": lambda: {"rng": 7},
    "rng": lambda: {"rng": np.random.default_rng(7)},
    "a generator that spawned": lambda: {"rng": np.random.default_rng(7), "partition": "shuffled"},
    "MT19937": lambda: {"rng": np.random.Generator(np.random.MT19937(7))},
    "SFC64": lambda: {"rng": np.random.Generator(np.random.SFC64(7))},
    "warm_start": lambda: {"warm_start": lp.svd(rows(), 3, method="dpi", max_rounds=2, rng=7)},
}


def drawn():
    generator = np.random.default_rng(7)
    generator.standard_normal()
    return {"rng": generator}


def with_children():
    generator = np.random.default_rng(7)
    generator.spawn(1)
    return {"rng": generator, "partition": "shuffled"}


@pytest.mark.parametrize(
    ("name", "other", "named"),
    [
        ("seed", lambda: {"rng": 8}, r"other seed; .*\(rng=7\)"),
        ("seed", dict, r"other seed; .*\(rng=7\)"),
        ("seed", STARTS["rng"], "other seed, rng;"),
        ("rng", drawn, "other rng;"),
        ("rng", lambda: {"rng": np.random.default_rng(8)}, "other rng;"),
        ("a generator that spawned", with_children, "other rng, data;"),
        ("MT19937", lambda: {"rng": np.random.Generator(np.random.MT19937(8))}, "other rng;"),
        ("SFC64", lambda: {"rng": np.random.Generator(np.random.SFC64(8))}, "other rng;"),
        ("warm_start", dict, "other warm_start;"),
        (
            "warm_start",
            lambda: {"warm_start": lp.svd(rows(), 3, method="dpi", max_rounds=3, rng=7)},
            "other warm_start;",
        ),
    ],
)
def test_a_checkpoint_of_another_start_is_refused_and_the_same_goes_on(
    tmp_path, name, other, named
):
    how = {"rng": 0} if name == "warm_start" else {}
    how |= {"workers": 4, "method": "dpi", "max_rounds": 4}
    path = tmp_path / "run.ck"
    resumed = {"checkpoint": lp.Checkpoint(path, resume=True)}
    whole = lp.svd(rows(), 3, **how | STARTS[name]())
    lp.svd(rows(), 3, callback=after(2), checkpoint=path, **how | STARTS[name]())
    with pytest.raises(lp.DataError, match=named):
        lp.svd(rows(), 3, **how | other() | resumed)
    assert same_run(lp.svd(rows(), 3, **how | STARTS[name]() | resumed), whole)


OTHER_OPTIONS = {"tol": 1e-3, "center": True, "scale": "std", "partition": "shuffled"}
OTHER_METHODS = {
    "local_power": {
        "steps": 5,
        "schedule": "linear",
        "align": "signs",
        "align_at": "worker",
        "width": 6,
        "wire": "float32",
    },
    "local_ritz": {
        "proposal": "anchor",
        "steps": 3,
        "start": "random",
        "width": 6,
        "wire": "float32",
    },
}


@pytest.mark.parametrize(
    ("method", "name"),
    [("local_power", name) for name in OTHER_OPTIONS]
    + [(method, name) for method, options in OTHER_METHODS.items() for name in options],
)
def test_a_checkpoint_of_other_options_is_refused_by_their_names(tmp_path, method, name):
    how = {"method": method, "max_rounds": 2}
    change = {name: OTHER_OPTIONS.get(name)}
    if name in OTHER_METHODS[method]:
        change = {"method": with_options(method, **{name: OTHER_METHODS[method][name]})}
    fit(tmp_path / "run.ck", **how)
    with pytest.raises(lp.DataError, match=rf"with other .*\b{name}\b"):
        fit(tmp_path / "run.ck", resume=True, **how | change)


def test_every_option_of_these_methods_is_compared():
    for method, options in OTHER_METHODS.items():
        assert set(options) == set(lp.methods.method_from(method).options())


def no_data(number):
    raise AssertionError("the rows were asked for")


@pytest.mark.parametrize(
    "schedule",
    [lambda t: 4, Adaptive(4)],
    ids=["function", "object"],
)
def test_a_schedule_that_cannot_be_compared_is_refused_before_any_work(tmp_path, schedule):
    with pytest.raises(ValueError, match=r"checkpoint= does not work with .* give a name such as"):
        lp.svd(
            no_data,
            3,
            workers=2,
            method=lp.LocalPower(schedule=schedule),
            checkpoint=tmp_path / "run.ck",
        )
    assert os.listdir(tmp_path) == []


def test_times_are_compared_as_the_set_that_they_are(tmp_path):
    path = tmp_path / "run.ck"
    times = [{0, 2, 4, 6, 8}, [8, 6, 4, 2], range(0, 10, 2), np.arange(0, 10, 2)]
    times += [iter([0, 2, 4, 6, 8]), (2 * t for t in range(5))]
    methods = [lp.LocalPower(schedule=given) for given in times]
    methods.append("local_power:schedule={0,2,4,6,8}")
    whole = fit(None, method=methods[0])
    assert len(whole.history) == 4
    for number, method in enumerate(methods):
        fit(path, method=methods[number - 1], callback=after(2))
        assert same_run(fit(path, method=method, resume=True), whole)
    fit(path, method=methods[0], max_rounds=2)
    with pytest.raises(lp.DataError, match="with other schedule;"):
        fit(path, method=lp.LocalPower(schedule={0, 2, 4, 6, 9}), resume=True)


@pytest.mark.parametrize("rounds", [5, 4, 1])
def test_a_run_that_is_resumed_with_no_more_rounds_than_it_did_returns_what_it_has(
    tmp_path, rounds
):
    path = tmp_path / "run.ck"
    whole = fit(path, method="dpi", max_rounds=5)
    before = path.read_bytes()
    again = fit(path, method="dpi", max_rounds=rounds, resume=True)
    assert same_run(again, whole)
    assert again.reason == "max_rounds"
    assert path.read_bytes() == before
    assert len(fit(path, method="dpi", max_rounds=7, resume=True).history) == 7


TWO = """
import sys
import numpy as np
import localpower as lp
rng = np.random.default_rng(0)
X = rng.standard_normal((400, 25)) * 0.8 ** np.arange(25)
for _ in range(3):
    lp.svd(X, 3, workers=4, rng=0, checkpoint=sys.argv[1], method="dpi", max_rounds=60)
"""


def test_several_runs_may_write_one_checkpoint(tmp_path):
    path = tmp_path / "run.ck"
    command = [sys.executable, "-c", TWO, str(path)]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [run.communicate()[1] for run in runs] == ["", "", ""]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert os.listdir(tmp_path) == ["run.ck"]
    assert len(fit(path, method="dpi", max_rounds=60, resume=True).history) == 60


def test_a_checkpoint_that_is_a_link_is_written_through_it(tmp_path):
    (tmp_path / "disk").mkdir()
    path = tmp_path / "run.ck"
    for target in ("disk/there.ck", str(tmp_path / "disk" / "elsewhere.ck")):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        for rounds in (2, 4):
            fit(path, method="dpi", max_rounds=rounds, resume=True)
        assert path.is_symlink()
        assert len(fit(tmp_path / target, method="dpi", max_rounds=4, resume=True).history) == 4
    assert sorted(os.listdir(tmp_path / "disk")) == ["elsewhere.ck", "there.ck"]


def test_a_checkpoint_has_the_permissions_of_a_new_file_or_of_the_one_before(tmp_path):
    path = tmp_path / "run.ck"
    before = os.umask(0o027)
    try:
        fit(path, method="dpi", max_rounds=2)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    fit(path, method="dpi", max_rounds=2)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_a_killed_run_left_behind_is_removed_by_the_next(tmp_path):
    path, mine = tmp_path / "1-inside", tmp_path / "1-inside.notes.part"
    mine.write_text("of the user")
    killed(path)
    assert len(os.listdir(tmp_path)) == 3
    fit(path, resume=True, method="block_lanczos", tol=1e-9)
    assert sorted(os.listdir(tmp_path)) == ["1-inside", "1-inside.notes.part"]


def test_an_unfinished_file_of_a_run_that_goes_on_is_left_alone(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as slow:
        slow.write(b"slow")
        with replacing(path) as fast:
            fast.write(b"fast")
        assert path.read_bytes() == b"fast"
    assert path.read_bytes() == b"slow"
    assert os.listdir(tmp_path) == ["file"]


def a_folder(folder):
    (folder / "run.ck").mkdir()
    return folder / "run.ck"


def under_a_file(folder):
    (folder / "file").write_text("mine")
    return folder / "file" / "run.ck"


def a_pipe(folder):
    os.mkfifo(folder / "run.ck")
    return folder / "run.ck"


def into_nothing(folder):
    (folder / "run.ck").symlink_to(folder / "gone" / "run.ck")
    return folder / "run.ck"


def read_only(folder):
    if os.geteuid() == 0:
        return Path("/proc/run.ck")  # where even root may not write
    folder.chmod(0o500)
    return folder / "run.ck"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (lambda folder: folder / "gone" / "run.ck", "No such file or directory; create the folder"),
        (into_nothing, "No such file or directory; create the folder"),
        (under_a_file, "Not a directory; name another file"),
        (a_folder, "it is not a file; name another file"),
        (a_pipe, "it is not a file; name another file"),
        (lambda folder: Path("/dev/full"), "it is not a file; name another file"),
        (read_only, "name another file"),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_a_place_that_cannot_be_written_to_is_refused_before_any_work(
    tmp_path, place, message, resume
):
    path = place(tmp_path)
    with pytest.raises(lp.DataError, match=message) as caught:
        lp.svd(no_data, 3, workers=2, checkpoint=lp.Checkpoint(path, resume=resume))
    assert f"checkpoint={os.fspath(path)!r} cannot be used" in str(caught.value)


LIMITED = """
import os, resource, sys
import numpy as np
import localpower as lp
X = np.random.default_rng(0).standard_normal((400, 250))

def run(path, size):
    rounds = []
    note = lambda record, state: rounds.append(record.round)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        lp.svd(X, 3, workers=4, rng=0, checkpoint=path, method="dpi", max_rounds=40, callback=note)
    except lp.DataError as error:
        print(len(rounds), error, flush=True)

for path in sys.argv[1:]:  # each run has a process of its own, as a limit stays
    if not os.fork():
        run(path, int(os.path.basename(os.path.dirname(path))))
        os._exit(0)
    os.wait()
"""


def test_a_place_without_room_is_refused_at_the_start_or_with_the_old_file_intact(tmp_path):
    sizes = {100: True, 4000: True, 12000: False}  # whether there is no room for any file
    paths = [tmp_path / str(size) / "run.ck" for size in sizes]
    for path in paths:
        path.parent.mkdir()
    command = [sys.executable, "-c", LIMITED, *map(str, paths)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    for path, none, line in zip(paths, sizes.values(), told.splitlines(), strict=True):
        rounds, _, message = line.partition(" ")
        assert message.startswith(
            f"checkpoint='{path}' cannot be used: File too large; raise the limit"
        )
        assert (int(rounds) == 0) == none
        assert os.listdir(path.parent) == ([] if none else ["run.ck"])
    X = np.random.default_rng(0).standard_normal((400, 250))
    left = lp.Checkpoint(path, resume=True)
    assert len(lp.svd(X, 3, workers=4, rng=0, checkpoint=left, method="dpi").history) == 30


def test_a_full_disk_is_told_with_what_to_do(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_up(record, state):
        if record.round == 3:
            monkeypatch.setattr(os, "fsync", full)

    path = tmp_path / "run.ck"
    with pytest.raises(lp.DataError, match=rf"No space left on device; free .*{tmp_path}"):
        fit(path, method="dpi", callback=fill_up)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["run.ck"]
    assert checkpoint_of(path)["reason"] is None
    assert len(fit(path, method="dpi", resume=True, max_rounds=2).history) == 2


def checkpoint_of(path):
    with np.load(io.BytesIO(path.read_bytes()[40:])) as content:
        return json.loads(bytes(content["description"]))


def reasons(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fit(path, **options)
    return result.reason, checkpoint_of(path)["reason"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "block_krylov", "tol": 1e-9, "max_rounds": 2}, "max_rounds"),
        ({"method": "block_krylov", "tol": 1e-9, "budget": lp.Budget(bytes=1)}, "budget"),
        ({"method": "block_krylov", "tol": 1e-9, "budget": lp.Budget(seconds=1e-9)}, "budget"),
        ({"method": "block_krylov", "tol": 1e-9, "callback": lambda *_: True}, "callback"),
        ({"method": "local_power:schedule={0,4,8}"}, "end"),
    ],
)
def test_an_end_that_more_rounds_would_change_is_not_kept_as_one(tmp_path, options, reason):
    path = tmp_path / "run.ck"
    assert reasons(path, **options) == (reason, None)
    if reason != "end":
        again = fit(path, method="block_krylov", tol=1e-9, resume=True)
        assert same_run(again, fit(None, method="block_krylov", tol=1e-9))


@pytest.mark.parametrize("reason", ["angle", "residual", "stalled"])
def test_an_end_that_more_rounds_would_not_change_is_kept(tmp_path, reason):
    path = tmp_path / "run.ck"
    options = {
        "angle": {"method": "local_ritz", "tol": 1e-9},
        "residual": {"X": np.eye(50), "method": "local_ritz", "tol": 1e-9},
        "stalled": {"method": "local_power:steps=40", "tol": 1e-12, "max_rounds": 60},
    }[reason]
    assert reasons(path, **options) == (reason, reason)
    before = path.read_bytes()
    assert reasons(path, resume=True, **options | {"max_rounds": 90}) == (reason, reason)
    assert path.read_bytes() == before


@pytest.mark.parametrize("reason", [None, "angle", "budget", "callback", "max_rounds", "degraded"])
def test_a_writer_keeps_final_reasons_only(tmp_path, reason):
    where = lp.Checkpoint(tmp_path / "run.ck", every=3, resume=True)
    writer = CheckpointWriter(where, {"seed": 1})
    point = Snapshot(State(np.eye(4, 2), 2), (), (), reason)
    assert [writer.due(replace(point.state, round=t), ends=False) for t in (2, 3, 6)] == [0, 1, 1]
    assert writer.due(point.state, ends=True)
    writer.keep(point)
    assert writer.found([lp.LocalPower()]).reason == ("angle" if reason == "angle" else None)
    unwanted = replace(writer, where=replace(where, resume=False))
    assert unwanted.found([lp.LocalPower()]) is None
    assert not CheckpointWriter(None, {}).due(point.state, ends=True)
    assert not replace(writer, missing={2}).due(point.state, ends=True)


@pytest.mark.parametrize(
    ("rounds", "how"),
    [
        (0, {"method": "local_ritz", "tol": 1e-6}),
        (3, {"method": "dpi", "tol": 1e-3, "max_rounds": 200}),
    ],
)
def test_a_run_that_lost_a_shard_is_never_kept_and_a_later_one_does_not_rest_on_it(
    tmp_path, rounds, how
):
    class Losing(Inline):
        products = 0

        def map(self, task, order=None):
            self.products += isinstance(task.task, (LeadingFactor, PowerSteps, Refine))
            here = [n for n in self.numbers(order) if n != 1 or self.products <= rounds]
            yield from super().map(task, here)

    path = tmp_path / "run.ck"
    with pytest.warns(lp.DegradedWarning):
        lost = fit(path, engine=Losing(), faults=lp.Faults(retries=0, on_loss="degrade"), **how)
    assert (lost.reason, lost.converged) == ("degraded", False)
    assert lost.history[-1].angle <= how["tol"]  # of what is left
    assert path.exists() == (rounds > 0)
    if rounds:
        kept = checkpoint_of(path)
        assert (kept["reason"], len(kept["history"])) == (None, rounds)
    again = fit(path, resume=True, **how)
    assert again.converged
    assert same_run(again, fit(None, **how))


def full_state(kind, **more):
    """A state of each kind in which nothing has its default."""
    rng = np.random.default_rng(0)
    Z = np.linalg.qr(rng.standard_normal((9, 2)))[0]
    probes = draw(Z, (3, 2), 2, 1e-7)
    probes = probes.learn(probes.following, 2 * probes.following + 1)
    pairs = {name: (rng.random((9, 2)), rng.random((9, 2)))
             for name in ("exact", "reference", "base")}  # fmt: skip
    pairs["joined"] = (rng.random((9, 3)), rng.random((9, 3)), rng.random(3))
    return kind(Z, 3, 5, pace=2, noises=rng.random(2), hidden=1.5, probes=probes, lacking=0.125,
                draws=2, resting=True, **pairs, **more)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (State, {}),
        (RitzState, {"space": np.eye(9, 4), "rank": 2, "block": 3, "values": np.arange(4.0)}),
        (LanczosState, {"space": np.eye(9, 4), "block": 3, "whole": True, "spread": 0.5}),
        (FactoredState, {"sizes": np.arange(3.0)}),
    ],
    ids=["State", "RitzState", "LanczosState", "FactoredState"],
)
def test_a_state_is_read_as_it_was_written_to_the_last_bit(tmp_path, kind, more):
    def same(a, b):
        if is_dataclass(a):
            names = [entry.name for entry in fields(a)]
            return type(a) is type(b) and all(same(getattr(a, n), getattr(b, n)) for n in names)
        if isinstance(a, tuple):
            return len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, np.ndarray):
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return type(a) is type(b) and a == b

    path, identity = tmp_path / "run.ck", {"seed": 1, "tol": 1e-3}
    history = (lp.Record(1, 4, 5, 6, 0.5, 7, 0.25, 0.125, False, 0.75),)
    records = (Round("iterate", "PowerSteps", 1, 2, 3, 4, 5, 6, True),)
    point = Snapshot(full_state(kind, **more), history, records, "angle")
    checkpoint.save(path, point, identity)
    methods = map(method_from, ("local_power", "local_ritz", "block_lanczos", "tsqr"))
    whose = [method for method in methods if method.state_type is kind]
    again = checkpoint.load(path, identity, whose)
    assert same(point.state, again.state)
    assert (again.history, again.records, again.reason) == (history, records, "angle")
    checkpoint.save(path, replace(point, leg=1, before=(2, 3), over=True), identity)
    again = checkpoint.load(path, identity, [lp.LocalPower(), *whose])
    assert (again.leg, again.before, again.over) == (1, (2, 3), True)
    assert same(point.state, again.state)
    content = path.read_bytes()
    for name in identity:
        with pytest.raises(lp.DataError, match=f"another run, with other {name}"):
            checkpoint.load(path, identity | {name: 2}, whose)
    for wrong, message in (
        (content[:-1] + bytes([content[-1] ^ 1]), "torn or damaged"),
        (b"LPCK0001" + content[8:], "not a checkpoint of this version"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(lp.DataError, match=message):
            checkpoint.load(path, identity, whose)


def test_a_digest_tells_shapes_and_types_apart_not_only_to_the_last_bit():
    A = np.arange(6.0)
    assert checkpoint.digest(A) == checkpoint.digest(A.copy())
    others = (A.reshape(2, 3), A.reshape(3, 2), A.view(np.int64), A[:5], -A)
    assert len({checkpoint.digest(each) for each in (A, *others)}) == 6
