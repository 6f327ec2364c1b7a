"""Options that a method does not have are refused; choices of ours do not fail; words are true."""

import warnings

import numpy as np
import pytest
from helpers import METHODS, with_options, with_spectrum

import localpower as lp
from localpower.methods import REGISTRY

A = with_spectrum(60, [5, 4, 3, 2, 1, 0.5])
UNUSED = [
    ("gram", {"steps": 2}),
    ("tsqr", {"schedule": "halving"}),
    ("uda", {"width": 4}),
    ("dr_svd", {"wire": "float32"}),
    ("dpi", {"steps": 4}),
    ("dpi", {"align": "signs"}),
    ("one_shot", {"proposal": "anchor"}),
    ("local_power", {"start": "merged"}),
    ("block_krylov", {"proposal": "residual"}),
    ("block_lanczos", {"start": "random"}),
    ("local_ritz", {"align_at": "worker"}),
]


@pytest.mark.parametrize(("method", "options"), UNUSED, ids=str)
def test_options_that_a_method_does_not_have_are_refused_with_those_that_do(method, options):
    ((name, _),) = options.items()
    text = with_options(method, **options)
    own = ", ".join(REGISTRY[method].options())
    with pytest.raises(ValueError, match=rf"method='{text}': '{name}=.* is not an option") as seen:
        lp.svd(A, 2, text)
    assert (f"take some of {own}" if own else "it takes none") in str(seen.value)
    others = str(seen.value).rpartition(f"{name} is one of ")[2].split(", ")
    assert others == [m for m in REGISTRY if name in REGISTRY[m].options()] != []
    with pytest.raises(TypeError, match=name):
        REGISTRY[method].build(**options)


def test_options_that_no_method_has_are_refused_by_all():
    for method in ["auto", *METHODS]:
        with pytest.raises(ValueError, match=r"'speed=3' is not an option of it: (take|it takes)"):
            lp.svd(A, 2, f"{method}:speed=3")
    for name in ("steps", "schedule", "align", "align_at", "width", "wire", "proposal", "start"):
        with pytest.raises(TypeError, match=name):
            lp.svd(A, 2, **{name: 3})


def test_a_method_is_what_its_text_says():
    for method in (
        lp.LocalPower(steps=8, schedule="halving:3", align="signs", align_at="worker", width=5),
        lp.LocalPower(schedule={8, 0, 4}),
        lp.LocalRitz(proposal="all+residual", steps=2, start="merged:200", wire="bfloat16"),
        lp.methods.Auto(width=7, wire="float32"),
        *(REGISTRY[name].build() for name in REGISTRY),
    ):
        assert lp.methods.method_from(str(method)) == method
    assert str(lp.LocalPower(schedule={8, 0, 4})) == "local_power:schedule={0,4,8}"


def test_a_warm_start_that_would_be_ignored_is_refused():
    earlier = lp.svd(A, 2, method="tsqr")
    with pytest.raises(ValueError, match=r"method='gram' cannot use warm_start"):
        lp.svd(A, 2, method="gram", warm_start=earlier)


@pytest.mark.parametrize("certainty", [0, -1e-3, 2, "sure", None, True])
def test_a_certainty_that_is_none_is_named(certainty):
    with pytest.raises(ValueError, match=r"certainty=.*above 0 and at most 1.*\"proven\""):
        lp.svd(A, 2, certainty=certainty)


@pytest.mark.parametrize("start", ["warm", "random:5", "merged:", "merged:x", 3])
def test_a_start_that_is_none_is_named(start):
    with pytest.raises(ValueError, match=r"start=.* is not known: take one of merged, random"):
        lp.svd(A, 2, method=f"local_ritz:start={start}")


def test_a_wider_merged_start_sends_more_and_proves_more():
    X = np.random.default_rng(0).standard_normal((600, 200))
    options = {"tol": 1e-6, "workers": 4, "rng": 0, "max_rounds": 100}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        narrow = lp.svd(X, 3, "local_ritz", certainty="proven", **options)
    wide = lp.svd(X, 3, "local_ritz:start=merged:190", certainty="proven", **options)
    words = [r.ledger.phase("iterate").records[0].words_up for r in (narrow, wide)]
    assert words == [4 * 200 * 48, 4 * 200 * 150]  # of a shard with 150 rows
    assert (narrow.converged, wide.converged, wide.certificate.proven) == (False, True, True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_auto_takes_as_many_rounds_and_methods_as_it_needs(dtype):
    X = np.random.default_rng(0).standard_normal((150, 3000)).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lp.ConvergenceWarning)
        warnings.simplefilter("ignore", lp.DataHint)
        result = lp.svd(X, 5, rng=0)
    assert result.converged
    truth = np.linalg.svd(X.astype(float), full_matrices=False)[2][:5].T
    assert lp.subspace_distance(truth, result.components.T) <= result.certificate.angle
    first = result.run["why"].partition(":")[0]
    assert result.run["method"] == first or "followed" in result.run["why"]


def test_auto_leaves_no_component_to_rounding_that_a_triangular_factor_can_tell():
    X = np.random.default_rng(0).standard_normal((300, 60)) * np.r_[1e7, 9, 7, np.ones(57)]
    result = lp.pca(X, 3, rng=0)
    S = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:3]
    np.testing.assert_allclose(result.singular_values, S, rtol=1e-6)
    assert result.converged


def test_words_of_an_exact_method_are_those_of_its_certificate():
    result = lp.svd(A, 2, method="gram", tol=1e-6)
    assert result.history[-1].proven
    assert result.certificate.proven
    assert "proven" in str(result).lower()
    wide = lp.svd(with_spectrum(400, 0.99 ** np.arange(300)), 3, method="gram", tol=1e-6)
    assert wide.certificate.proven  # where few eigenvectors are found by iteration


def test_a_leading_eigenvector_that_iteration_misses_is_found_by_the_proof(monkeypatch):
    from localpower.methods import exact

    def blind(multiply, d, rank, which="LA"):  # as from a start that is orthogonal to the first
        values, vectors = np.linalg.eigh(multiply(np.eye(d)))
        return values[::-1][1 : rank + 1], vectors[:, ::-1][:, 1 : rank + 1]

    monkeypatch.setattr(exact, "lanczos", blind)
    X = with_spectrum(400, 0.97 ** np.arange(300))
    result = lp.svd(X, 3, method="gram", tol=1e-6)
    np.testing.assert_allclose(result.singular_values, 0.97 ** np.arange(3), rtol=1e-8)


def test_a_warning_calls_an_angle_proven_only_where_it_is():
    flat = np.random.default_rng(1).standard_normal((500, 60))
    with pytest.warns(lp.ConvergenceWarning, match=r"if nothing was missed \(p = 1\)") as seen:
        lp.svd(flat, 2, method="block_lanczos", tol=1e-6, certainty="proven", rng=0)
    assert not any(word in str(seen[0].message) for word in ("certified", "proven"))


@pytest.mark.parametrize("method", ["uda", "wda", "aligned_average", "dr_svd"])
def test_a_method_that_certifies_nothing_is_not_told_to_be_given_a_tolerance(method):
    with pytest.warns(lp.ConvergenceWarning, match="no angle was certified.*iterates"):
        result = lp.svd(A, 2, method=method, tol=1e-6)
    assert not result.converged
    assert "tol" not in str(result)
    assert "local_ritz" in str(result)
