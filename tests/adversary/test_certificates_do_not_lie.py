"""What is said to have converged has, on matrices that were made to mislead."""

import warnings
from itertools import product

import numpy as np
import pytest
from constructions import CONSTRUCTIONS, SEED
from helpers import spelled

import localpower as lp

SLACK = 10.0
EPS = np.finfo(float).eps
TOLERANCES = (1e-3, 1e-6, 1e-10)
PROPOSALS = ("residual", "anchor", "all", "anchor+residual", "all+residual")
STARTS = ("merged", "random")
RITZ = [
    *({"method": "local_ritz", "proposal": p, "start": s} for p, s in product(PROPOSALS, STARTS)),
    *({"method": "block_krylov", "start": s} for s in STARTS),
]
POWER = [
    {"method": "dpi"},
    {"method": "local_power", "schedule": "constant"},
    {"method": "local_power", "schedule": "halving"},
    {"method": "local_power", "schedule": "adaptive"},
]
OTHERS = [{"method": name} for name in ("block_lanczos", "gram", "tsqr", "auto")]
RUNS = [
    *product((1e-3, 1e-10), RITZ),
    *product((1e-6,), RITZ[::3]),
    *product(TOLERANCES, POWER + OTHERS),
]
ROUNDED = ((1e-3, "bfloat16"), (1e-6, "float32"), (1e-10, "bfloat16"))


def spectrum(A):
    """Squared singular values and right vectors, and the exponent that A was scaled by."""
    exponent = int(np.frexp(np.abs(A).max(initial=0.0))[1])
    A = np.ldexp(A, -exponent)
    _, sizes, Vt = np.linalg.svd(A, full_matrices=True)
    values = np.zeros(A.shape[1] + 1)
    values[: len(sizes)] = sizes**2
    return A, values, Vt, exponent


def factored(case, seed=SEED, **options):
    """The result; all warnings are errors but for those that say what was not reached."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        warnings.simplefilter("ignore", lp.DataHint)
        given = {"engine": "inline", "max_rounds": 20, "rng": seed} | case.options | options
        if given["method"] in ("gram", "tsqr"):
            given.pop("width", None)
        return lp.svd(case.shards, case.rank, **spelled(given))


def truth(case, result):
    A = case.rows.astype(float)
    return spectrum(A if result.mean is None else A - result.mean.astype(float))


def lies(truth, result, tol):
    """What is wrong with what is said of a result, in words."""
    A, values, Vt, exponent = truth
    k = len(result.singular_values)
    eps = float(np.finfo(result.components.dtype).eps)
    V = result.components.T.astype(float)
    S = np.ldexp(result.singular_values.astype(float), -exponent)
    top, last, gap = values[0], values[k - 1], values[k - 1] - values[k]
    sine = lp.subspace_distance(Vt[:k].T, V) if k < A.shape[1] else 0.0
    rounding = 64 * EPS * top / gap if gap > 0 else 1.0
    found = result.certificate
    if found is not None:
        if not 0 <= found.p <= 1 or (found.proven and found.p):
            yield f"p = {found.p}"
        about = result.reason in ("angle", "residual", "exact")
        if found.proven and about and gap > 0 and sine > found.angle + rounding:
            yield f"proven to be {found.angle:.1e}, and is {sine:.1e}"
    if np.abs(V.T @ V - np.eye(k)).max() > 1e3 * eps:
        yield "components are not orthonormal"
    if not result.converged:
        return
    if last > 64 * EPS * top and gap > tol * last:
        if sine > SLACK * tol + rounding:
            yield f"converged with a sine of {sine:.1e}"
        return
    true = np.sqrt(values[:k])
    floor = 64 * eps * np.sqrt(sum(A.shape) * top)
    if (np.abs(S - true) > SLACK * tol * true + floor).any():
        yield f"singular values are {S} instead of {true}"
    R = np.linalg.norm(A.T @ (A @ V) - V * S**2, axis=0)
    if (SLACK * (tol + 64 * eps) * np.where(64 * eps * top < S**2, S**2, top) < R).any():
        yield f"backward errors are {R}, of {S**2}"


def complaints(case, runs):
    """Run all of them, and tell of each what is wrong."""
    known = None
    for tol, options in runs:
        result = factored(case, tol=tol, **options)
        known = truth(case, result) if known is None else known
        yield from (f"{options}, tol={tol:g}: {lie}" for lie in lies(known, result, tol))


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_no_certificate_of_any_method_lies(name):
    case = CONSTRUCTIONS[name](np.random.default_rng(0))
    assert not list(complaints(case, RUNS))


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_no_certificate_lies_where_messages_are_rounded(name):
    case = CONSTRUCTIONS[name](np.random.default_rng(1))
    runs = [
        (tol, options | {"wire": wire})
        for (tol, wire), options in product(ROUNDED, RITZ[::4] + POWER[::2])
    ]
    assert not list(complaints(case, runs))
