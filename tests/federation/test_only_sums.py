"""Runs on an engine that shows sums over all shards and nothing else."""

import re
from fractions import Fraction
from math import fsum

import numpy as np
import pytest
from scipy import sparse

import localpower as lp
from localpower.core.errors import DataError, EngineError
from localpower.engines.ring import InlineRing
from localpower.federation.questions import columns_of
from localpower.methods.base import method_from
from localpower.methods.scaling import summed
from localpower.shape_checks import method_for_sums
from localpower.stopping import REASONS, remedy_of
from localpower.worker.shard import Shard
from localpower.worker.tasks import Triangle

METHODS = ["auto", "gram", "block_krylov", "block_lanczos", "dpi", "local_ritz",
           "local_ritz:proposal=all", "local_ritz:proposal=residual",
           "local_power:schedule=halving"]  # fmt: skip
SEEN = {"Sums", "Spread", "Prepare", "PowerSteps", "Refine", "GramTriangle", "SmallGram"}


def rows(n=900, d=30, decay=0.85, mean=3.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * decay ** np.arange(d) + mean


def truth(X, k, center=True):
    _U, S, Vt = np.linalg.svd(X - X.mean(axis=0) if center else X, full_matrices=False)
    return S[:k], Vt[:k]


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_methods_find_what_they_find_elsewhere_and_only_sums_travel(method, center):
    X = rows()
    how = {"tol": 1e-8, "workers": 4, "max_rounds": 80, "rng": 0, "center": center}
    found = lp.svd(X, 3, method, engine="ring", **how)
    S, Vt = truth(X, 3, center)
    assert found.converged
    assert lp.subspace_distance(Vt.T, found.components.T) <= found.certificate.angle <= 1e-8
    np.testing.assert_allclose(found.singular_values, S, rtol=1e-12)
    assert {record.task for record in found.ledger.records} <= SEEN
    here = lp.svd(X, 3, method, engine="inline", **how)
    np.testing.assert_allclose(found.explained_variance, here.explained_variance, rtol=1e-9)
    np.testing.assert_allclose(
        found.explained_variance_ratio, here.explained_variance_ratio, rtol=1e-9
    )


@pytest.mark.parametrize("method", ["block_krylov:start=random", "block_lanczos", "dpi", "gram"])
def test_sixty_bits_cost_no_round(method):
    X = rows(decay=0.93)
    how = {"tol": 1e-8, "workers": 5, "max_rounds": 200, "rng": 0}
    ring, plain = (lp.pca(X, 3, method, engine=engine, **how) for engine in ("ring", "inline"))
    assert len(ring.history) == len(plain.history)
    assert ring.converged
    assert plain.converged


@pytest.mark.parametrize("bits", [22, 28, 32, 40, 48, 60])
@pytest.mark.parametrize("method", ["gram", "block_krylov", "local_ritz", "block_lanczos", "dpi"])
@pytest.mark.parametrize("decay", [0.7, 0.95])
@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_what_is_certified_holds_for_any_number_of_bits(method, bits, decay):
    X = rows(decay=decay, seed=bits)
    found = lp.pca(X, 3, method, tol=1e-9, workers=7, max_rounds=60, engine=InlineRing(bits), rng=1)
    angle = lp.subspace_distance(truth(X, 3)[1].T, found.components.T)
    if found.certificate.proven or found.converged:
        assert angle <= found.certificate.angle
    assert found.converged or bits < 48


@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_few_bits_are_not_called_converged():
    found = lp.pca(rows(decay=0.95), 3, "block_krylov", tol=1e-9, engine=InlineRing(22), rng=0)
    assert not found.converged
    assert found.reason == "rounding"


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e12, 1e30])
def test_columns_of_any_usual_size_are_fine(scale):
    X = rows() * scale
    found = lp.pca(X, 3, tol=1e-8, workers=3, engine="ring", rng=0)
    assert found.converged
    assert lp.subspace_distance(truth(X, 3)[1].T, found.components.T) < 1e-8
    np.testing.assert_allclose(found.singular_values, truth(X, 3)[0], rtol=1e-10)


def test_columns_that_are_too_large_are_refused_with_the_remedy():
    with pytest.raises(OverflowError, match="divide them by a number that all agree on"):
        lp.pca(rows() * 1e150, 3, workers=3, engine="ring")


@pytest.mark.parametrize("scale", [1e-37, 1e-39, 1e-60, 1e-170, 1e-310])
@pytest.mark.parametrize("parts", [1, 3, 33])
def test_columns_whose_squares_would_be_lost_are_refused_with_the_remedy(scale, parts):
    """Their trace was too small, and what it cannot hide was called proven."""
    X = np.zeros((33, 8))
    X[np.arange(33), np.arange(33) % 8] = scale
    with pytest.raises(OverflowError, match="multiply columns by a number that all agree on"):
        lp.svd(X, 2, "dpi", workers=parts, engine="ring", rng=0)


@pytest.mark.parametrize("value", [1.0, 1e-20, 1e-40, 1e-60])
def test_small_columns_that_do_not_vary_are_fine(value):
    X = np.pad(rows()[:, :9], ((0, 0), (0, 1)), constant_values=value)
    found = lp.pca(X, 3, tol=1e-8, workers=3, engine="ring", rng=0)
    assert found.converged
    assert lp.subspace_distance(truth(X, 3)[1].T, found.components.T) < 1e-8


def test_sums_tell_means_to_more_digits_than_float64_has():
    X, engine = rows(mean=1e7), InlineRing()
    parts = enumerate(np.array_split(X, 4))
    engine.place([Shard((part,), 30, np.dtype(float), number=i) for i, part in parts])
    found = summed(engine)
    unit = Fraction(2) ** int(found.exponent)
    for mean, rest, column in zip(found.mean, found.rest, X.T, strict=True):
        exact = sum(map(Fraction, column)) / len(X)
        lost = abs((Fraction(mean) + Fraction(rest)) * unit - exact)
        assert lost <= 1e-6 * np.spacing(1e7)


def test_a_large_mean_does_not_drown_the_deviations():
    X = rows(mean=1e7)
    found = lp.pca(X, 3, "block_krylov", tol=1e-6, workers=4, engine="ring", rng=0)
    assert lp.subspace_distance(truth(X, 3)[1].T, found.components.T) < 1e-6
    exact = [fsum(column) / len(X) for column in X.T]
    np.testing.assert_allclose(found.mean, exact, rtol=3e-16)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([rows(500), rows(1, seed=1), rows(200, seed=2)], id="one row"),
        pytest.param([np.empty((0, 30)), rows(300), rows(40, seed=3)], id="no rows"),
        pytest.param([rows(300).astype(np.float32), rows(200).astype(np.float32)], id="float32"),
        pytest.param(
            [np.pad(rows(300)[:, :29], ((0, 0), (0, 1)), constant_values=4.0)], id="const"
        ),
        pytest.param([sparse.csr_array(np.where(rows(400) > 3.5, rows(400), 0.0))], id="sparse"),
    ],
)
def test_unusual_shards(parts):
    whole = np.vstack([p.toarray() if sparse.issparse(p) else p for p in parts])
    found = lp.pca(parts, 2, "block_krylov", tol=1e-4, engine="ring", rng=0)
    exact = truth(whole.astype(np.float64), 2)[1]
    assert lp.subspace_distance(exact.T, found.components.T.astype(float)) < 1e-4
    assert found.converged


REFUSED = {
    "tsqr": ({}, "needs replies of single shards"),
    "uda": ({}, "needs replies of single shards"),
    "local_ritz:proposal=anchor": ({}, "needs replies of single shards"),
    "dpi:wire=float32": ({}, "in float64"),
    "auto:wire=float32": ({}, "take one of 'auto', .* in float64"),
    "local_ritz:start=merged:20": ({}, "needs replies of single shards"),
    "gram": ({"scale": "max"}, "take scale='std'"),
    "dpi": ({"return_u": True}, "project rows where they are"),
    "block_krylov": ({"checkpoint": "never"}, "leave it out"),
    "auto": ({"faults": lp.Faults(on_loss="degrade")}, "would show a lost shard"),
}


@pytest.mark.parametrize("method", REFUSED)
def test_what_shows_more_than_sums_is_refused_before_anything_is_asked(method):
    how, text = REFUSED[method]
    engine = InlineRing()
    with pytest.raises(ValueError, match=text):
        lp.svd(rows(), 3, method, engine=engine, workers=3, **how)
    assert not engine.rows


def test_remedies_name_methods_that_work_with_sums():
    """One that ended for rounding was to be tried with tsqr, which is refused."""
    for reason in REASONS:
        for method in re.findall("method='([^']+)'", remedy_of(reason, "dpi", only_sums=True)):
            assert method_for_sums(method_from(method))
    with pytest.warns(lp.ConvergenceWarning, match="rounding") as told:
        found = lp.svd(rows(), 3, "dpi", tol=1e-30, engine="ring", workers=3, rng=0)
    assert "tsqr" not in str(told[0].message)
    assert "tsqr" not in found.report()._repr_html_()


def test_a_plan_has_what_works_with_sums():
    plan = lp.plan((900, 30), 3, workers=3, engine="ring")
    assert {"gram", "dpi", "block_lanczos"} < {row.method.partition(":")[0] for row in plan}
    for row in plan:
        assert lp.svd(rows(), 3, row.method, engine="ring", workers=3, max_rounds=1, tol=0, rng=0)


class Noted(InlineRing):
    """Notes how many columns of products it is asked for at once."""

    asked = 0

    def sum(self, task):
        self.asked = max(self.asked, columns_of(task.task, self.columns))
        return super().sum(task)


@pytest.mark.parametrize(
    "method",
    ["dpi", "block_lanczos", "block_lanczos:block=8", "block_krylov", "local_ritz",
     "local_ritz:proposal=all", "local_ritz:proposal=residual"],
)  # fmt: skip
def test_a_method_says_how_many_columns_it_asks_for_at_once(method):
    X = np.random.default_rng(0).standard_normal((3000, 120)) * np.arange(1, 121) ** -0.3
    engine = Noted()
    how = {"tol": 1e-8, "workers": 4, "max_rounds": 60, "rng": 0}
    assert lp.svd(X, 5, method, engine=engine, **how).converged
    assert engine.asked == method_from(method).for_sums().widest(120, 5, 10)


def test_the_engine_itself_shows_no_single_reply():
    engine = InlineRing()
    engine.place([Shard((rows(),), 30, np.dtype(float))])
    with pytest.raises(EngineError, match="Triangle would show more than a sum"):
        engine.map(Triangle(np.eye(30)[:, :2]))
    with pytest.raises(EngineError, match="Triangle would show more than a sum"):
        engine.sum(Triangle(np.eye(30)[:, :2]))


def test_what_is_not_finite_is_an_error_that_names_the_place():
    X = rows()
    X[700, 4] = np.nan
    with pytest.raises(DataError, match="NaN or infinity in row 250, column 4 of shard 1"):
        lp.pca(X, 3, workers=2, engine="ring")


@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_small_values_that_squares_cannot_tell_are_labelled():
    X = rows(200, 10, mean=0.0) * 10.0 ** -np.arange(0, 20, 2)
    found = lp.svd(X, 8, "gram", tol=1e-8, engine="ring", rng=0)
    assert not found.converged
    assert found.reason == "rounding"
