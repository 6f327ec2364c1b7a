"""The machinery of the reproduction, and small replicas of its items."""

import csv
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers import projector_gap, with_spectrum

import localpower as lp
from localpower.core.linalg import random_basis
from localpower.data.partition import Partition
from localpower.engines.inline import Inline
from localpower.methods.local_power import State, local_power
from localpower.methods.schedule import constant, parse
from localpower.paper import bounds, runner, theory
from localpower.paper import datasets as registry
from localpower.paper.bounds import coherence, kappa, rho
from localpower.paper.claims import judge, theorem_2
from localpower.paper.grams import GramEngine, Grams, in_step
from localpower.paper.problems import MODES, load
from localpower.paper.reproduce import reproduce
from localpower.paper.results import Results, paper_table
from localpower.paper.trials import ALIGNMENTS, Trial, run_group
from localpower.worker.shard import Shard

X = with_spectrum(400, 0.8 ** np.arange(9), seed=4)[np.random.default_rng(1).permutation(400)]
CUT = np.array_split(np.arange(400), 7)


def rows_engine():
    engine = Inline()
    shards = tuple(Shard((X[part],), 9, np.dtype(float)) for part in CUT)
    engine.place(Partition(shards).shards)
    return engine


def last_basis(engine, align, steps=3, rounds=5):
    states = local_power(
        engine,
        State(random_basis(9, 4, np.random.default_rng(0))),
        schedule=constant(steps),
        align=align,
    )
    return [next(states) for _ in range(rounds)][-1].basis


@pytest.mark.parametrize("align", ALIGNMENTS)
def test_gram_matrices_give_what_rows_give(align):
    from_rows = last_basis(rows_engine(), align)
    assert projector_gap(last_basis(GramEngine(Grams(X, CUT)), align), from_rows) < 1e-10


def test_runs_in_step_give_what_they_give_alone():
    grams = Grams(X, CUT)
    together = in_step(grams, [lambda e, a=align: last_basis(e, a) for align in ALIGNMENTS])
    for align, basis in zip(ALIGNMENTS, together, strict=True):
        assert projector_gap(basis, last_basis(GramEngine(grams), align)) < 1e-12


def test_a_run_in_step_that_fails_does_not_leave_the_others_waiting():
    def fail(engine):
        raise KeyError("mine")

    with pytest.raises((KeyError, RuntimeError)):
        in_step(Grams(X, CUT), [lambda e: last_basis(e, "signs"), fail])


def test_eta_of_gram_matrices_is_that_of_rows():
    assert Grams(X, CUT).eta() == pytest.approx(lp.eta([X[part] for part in CUT]), rel=1e-10)


# The authors' procedure, written out plainly, for one small data set.


def published(X, order, start, p, rounds):
    """Final error of OPT as the published procedure scores it: four columns against five."""
    X = (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))
    target = np.linalg.svd(X, full_matrices=False)[2][:5]
    m = max(-(-len(X) // 1000), 3)
    size = -(-len(X) // m)
    X = X[order]
    blocks = [X[i * size : (i + 1) * size] for i in range(m)]
    Q = start
    for _ in range(rounds):
        total = 0
        for i, B in enumerate(blocks):
            Z = Q
            for _ in range(p - 1):
                Z = np.linalg.qr(B.T @ B @ Z)[0]
            if i == 0:
                first = Z
            W1, _, W2 = np.linalg.svd(Z.T @ first)
            total = total + B.T @ B @ Z @ W1 @ W2
        Q = np.linalg.qr(total)[0]
    outside = (np.eye(X.shape[1]) - target.T @ target) @ Q[:, :4]
    return np.linalg.norm(outside, 2)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder with stand-ins for two sets, so that nothing needs the real ones."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("housing", "splice")):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((4000, 9)) * 0.75 ** np.arange(9)
        np.savez(folder / f"{name}.npz", X=rows @ random_basis(9, 9, rng))
    load.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOCALPOWER_DATA", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


COMPARED = {  # what claims compare, of items that take long
    "figure-p-m": {"steps": (8, 20), "shards": (50,)},
    "figure-m-procrustes": {"shards": (20, 80)},
}


@pytest.fixture(scope="module")
def replicas(data_dir, tmp_path_factory):
    """A folder with the results of small replicas of the items that claims rest on."""
    folder = tmp_path_factory.mktemp("replicas")
    names = ["table-final", "figure-p-procrustes", "figure-p-none", "figure-decay-procrustes"]
    names += ["figure-m-procrustes", "figure-p-m", "table-eta", "theorem-2"]
    known = runner.items()
    small = {name: replace(known[name], **part) for name, part in COMPARED.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "items", lambda: known | small)
        runner.run(names, folder, str(data_dir), lambda text: None)
    return folder


def test_as_published_is_the_published_procedure(data_dir):
    problem = load("housing", "as-published", str(data_dir))
    trial = Trial("housing", "as-published", 3, 0, "procrustes", 4, "constant", 6)
    (_, errors), *_ = run_group([trial], problem)
    rows = np.load(data_dir / "housing.npz")["X"]
    rng = np.random.default_rng([2021, 3])
    order = rng.permutation(len(rows))
    expected = published(rows, order, random_basis(9, 5, rng), 4, 6)
    assert errors[-1] == pytest.approx(expected, rel=1e-8)
    assert len(errors) == 7


def test_all_methods_of_a_repeat_share_the_start(data_dir):
    problem = load("housing", "uniform", str(data_dir))
    trials = [
        Trial("housing", "uniform", 0, 0, method, p, "constant", 2)
        for method in ALIGNMENTS
        for p in (1, 4)
    ]
    starts = {errors[0] for _, errors in run_group(trials, problem)}
    assert len(starts) == 1


def test_the_items_cover_the_papers_tables_and_figures():
    known = runner.items()
    assert {"table-final", "table-decay", "table-eta", "table-datasets"} <= set(known)
    assert {f"figure-{n}" for n in ("2a", "2b", "3a", "3b", "3c", "box", "p-m")} <= set(known)
    for align in ALIGNMENTS:
        assert {f"figure-{kind}-{align}" for kind in ("p", "decay", "m")} <= set(known)
    assert {"regime-n-near-d", "theorem-2", "corollary"} <= set(known)
    assert len(paper_table("table-final")) == 15 * 6
    assert len(paper_table("table-decay")) == 15 * 3
    assert len(paper_table("table-eta")) == 15 * 5


def test_a_run_resumes_where_it_stopped(data_dir, tmp_path):
    folder, said = tmp_path / "out", []
    runner.run(["table-eta"], folder, str(data_dir), said.append)
    assert sum("left out" in line for line in said) == 13
    whole = (folder / "eta.csv").read_bytes()
    lines = whole.splitlines(keepends=True)
    (folder / "eta.csv").write_bytes(b"".join(lines[:20]) + lines[20][:15])  # torn in mid-line
    said.clear()
    runner.run(["table-eta"], folder, str(data_dir), said.append)
    assert (folder / "eta.csv").read_bytes() == whole
    assert said[-1] != "everything is done"
    said.clear()
    runner.run(["table-eta"], folder, str(data_dir), said.append)
    assert said[-1] == "everything is done"
    with open(folder / "eta.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert all(row["sha256"] and row["version"] and row["seed"] == "2021" for row in rows)


def test_small_replicas_show_the_direction_of_each_claim(replicas):
    results = Results(replicas)
    verdicts = {v.claim: v for v in judge(results)}
    expected = [
        "LocalPower has the smallest error",
        "Larger p converges faster",
        "Larger p ends at a higher error",
        "The final error saturates",
        "A smaller m gives a smaller error",
        "η grows with m",
        "Halving p reaches",
    ]
    for start in expected:
        verdict = next(v for claim, v in verdicts.items() if claim.startswith(start))
        assert verdict.verdict == "supported", verdict
    assert theorem_2(results).verdict == "supported"


def test_the_command_runs_what_is_missing_writes_the_page_and_is_done(data_dir, replicas, tmp_path):
    head, *rows = (replicas / "trials.csv").read_text().splitlines()
    table = [o for mode in MODES for o in Results(replicas).of(runner.items()["table-final"], mode)]
    kept = [row for row in rows if re.match(r"\w+,[\w-]+,[0-8],0,\w+,[04],constant", row)]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trials.csv").write_text("\n".join([head, *kept, ""]))

    def run():
        command = [sys.executable, "-W", "error", "-m", "localpower", "reproduce", "table-final"]
        command += ["-o", str(tmp_path / "out"), "--data-dir", str(data_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    first = run()
    assert "left out: LIBSVM publishes mnist" in first
    page = (tmp_path / "out" / "reproduction.html").read_text()
    for text in ("The paper's claims", "As published, beside the paper", "Uniform", "Housing"):
        assert text in page
    assert "http-equiv" not in page
    assert "<script" not in page
    assert len(kept) < len(table)
    assert sorted(map(repr, Results(tmp_path / "out").outcomes)) == sorted(map(repr, table))
    assert "everything is done" in run()


def test_a_missing_plot_library_is_said_before_the_work(tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from localpower.cli import main; "
    code += f"sys.exit(main(['reproduce', '-o', {str(tmp_path / 'out')!r}]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "pip install 'localpower[plot]'" in run.stderr
    assert not (tmp_path / "out").exists()


def test_an_unknown_item_is_refused(tmp_path):
    with pytest.raises(ValueError, match="item 'table-nine' is not known"):
        reproduce(["table-nine"], tmp_path, None, print)


# The theory.


@pytest.mark.parametrize("p", [1, 2, 4, 8, 16])
def test_measured_residuals_stay_below_theorem_2_where_its_assumption_holds(p):
    rng = np.random.default_rng(p)
    rows = rng.standard_normal((40_000, 6)) * [1.0, 0.95, 0.9, 0.6, 0.55, 0.5]
    grams = Grams(rows, np.array_split(np.arange(40_000), 4))
    states = local_power(
        GramEngine(grams),
        State(random_basis(6, 3, rng)),
        schedule=parse("constant", 4),
        align="procrustes",
    )
    Z = [next(states) for _ in range(8)][-1].basis
    found = theory.residuals(grams, Z, p)
    assert found["applies"]
    assert float(found["rho_aligned"]) <= float(found["bound_aligned"])
    assert float(found["rho_vanilla"]) <= float(found["bound_vanilla"])


def test_the_row_count_of_lemma_2_achieves_its_eta():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((20_000, 4))
    mu, epsilon, shards = coherence(A), 0.5, 3
    needed = int(np.ceil(bounds.rows_for_eta(epsilon, 4, mu, shards, failure=0.1)))
    assert needed < len(A)
    M = A.T @ A / len(A)
    for _ in range(20):
        samples = [A[rng.integers(0, len(A), needed)] for _ in range(shards)]
        eta = max(np.linalg.norm(B.T @ B / needed - M, 2) for B in samples) / np.linalg.norm(M, 2)
        assert eta <= epsilon


def test_measures_are_their_definitions():
    sigma = np.array([4.0, 2.0, 1.0, 0.0])
    assert kappa(sigma) == 4.0
    assert bounds.dpi_rounds(sigma, 1, 0.1) == pytest.approx(2 * np.log(40))
    assert bounds.dpi_rounds([1.0, 1.0], 1, 0.1) == np.inf
    assert bounds.steps_with_intermediate_gap(sigma, 1, 2, 0.1) == pytest.approx(4 / 3 * np.log(40))
    assert bounds.rho_bound_vanilla(2.0, 3, 0.01, 4) == pytest.approx(4 * np.e * 2 * 3 * 8 * 0.01)
    assert bounds.rho_bound_aligned(2.0, 1, 0.01, 1.0, 0.1, 0.5, 0.0) == pytest.approx(0.1)
    assert bounds.rho_bound_aligned(1e300, 9, 0.01, 1.0, 0.1, 0.5, 0.0) == pytest.approx(0.1)
    assert not bounds.theorem_2_applies(2.0, 3, 0.2)
    assert bounds.final_error_rate(4, 100) == 0.2
    assert bounds.statistical_error(1.0, 0.5, 10, 100, 0.1) == pytest.approx(
        0.8 * np.log(100) ** 0.5
    )
    assert bounds.assumption_left_side(0.1, 0.2, 0.3, 0.5, communicates=False) == pytest.approx(
        0.35
    )
    assert bounds.assumption_left_side(0.1, 0.0, 0.3, 0.5, communicates=True) == 0.0
    full = bounds.residual_allowance(sigma[:3], 1, 2, 0.1)
    assert full == pytest.approx(2 / 16 * 0.1)
    between = bounds.residual_allowance_with_intermediate_gap(sigma[:3], 1, 2, 3, 0.1)
    assert between == pytest.approx((3**0.5 - 1) / 3**0.5 * 0.075)


def test_rho_is_the_smallest_distance_up_to_rotation():
    Z = random_basis(8, 3, np.random.default_rng(0))
    W = random_basis(8, 3, np.random.default_rng(1))
    angle = lp.principal_angles(Z, W)[-1]
    assert rho([Z, W]) == pytest.approx(2 * np.sin(angle / 2))
    assert rho([Z, W], aligned=False) == pytest.approx(np.linalg.norm(W - Z, 2))


def test_modes_differ_as_they_say(data_dir):
    published, uniform = (load("splice", mode, str(data_dir)) for mode in MODES)
    assert published.X.min() == 0.0
    assert np.abs(uniform.X).max() == 1.0
    assert (published.default_shards(), uniform.default_shards()) == (4, 4)
    assert registry.DATA_SETS["splice"].columns == 24
