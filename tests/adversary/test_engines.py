"""The most misleading matrices on every engine: no lie, and to the last bit what inline says.

MPI needs processes of its own: what ranks do is in `engines/mpi_cases.py`, `adversary`.
"""

from functools import cache

import numpy as np
import pytest
from constructions import CONSTRUCTIONS, Case, shared_weak
from helpers import ENGINES, METHODS, REMOTE, same_bits
from test_certificates_do_not_lie import factored, lies, truth

import localpower as lp

TOL = 1e-6
CASES = (
    "issue",
    "hidden_in_one_of_many_shards",
    "disjoint_supports",
    "start_orthogonal_to_the_answer",
    "start_blind_to_an_invariant_subspace",
    "tie_wider_than_the_block",
    "one_value_is_huge",
    "empty_and_one_row_shards",
    "single_precision_hidden_in_one_shard",
    "a_mean_that_is_far_away",
)
RUNS = (
    {"method": "local_ritz", "start": "merged"},
    {"method": "block_krylov", "start": "random"},
    {"method": "block_lanczos"},
    {"method": "dpi"},
    {"method": "local_power", "schedule": "constant"},
    {"method": "local_ritz", "start": "random", "proposal": "all+residual"},
    {"method": "gram"},
    {"method": "dpi", "wire": "float32"},
    {"method": "tsqr"},
    {"method": "local_power", "schedule": "adaptive", "wire": "bfloat16"},
    {"method": "one_shot"},
    {"method": "local_ritz", "start": "merged", "proposal": "anchor", "wire": "bfloat16"},
    {"method": "uda"},
    {"method": "block_krylov", "start": "merged", "wire": "float32"},
    {"method": "wda"},
    {"method": "local_power", "schedule": "halving", "align_at": "worker"},
    {"method": "aligned_average"},
    {"method": "dr_svd"},
    {"method": "auto"},
)
EVERY = {"ray": 3, "dask": 5, "spark": 9}  # rounds are slow: each run once at the least
LEFT_OUT = {("spark", "issue")}  # of 20 shards, each of which takes long there in each round


@cache
def case(name):
    rng = np.random.default_rng(3)
    return Case(name, *shared_weak(rng)) if name == "issue" else CONSTRUCTIONS[name](rng)


def runs(number, every):
    """All ways to run case `number`; or, where rounds are slow, one of so many, others for each."""
    return [run for i, run in enumerate(RUNS) if (i - number) % every == 0]


def run(name, how, engine):
    return factored(case(name), tol=TOL, max_rounds=10, engine=engine, **how)


@cache
def reference(name, number):
    result = run(name, RUNS[number], "inline")
    return result, truth(case(name), result)


def complaints(name, how, engine):
    """What is wrong with a result of an engine, and where it is not that of inline."""
    result, (expected, true) = run(name, how, engine), reference(name, RUNS.index(how))
    yield from lies(true, result, TOL)
    if how["method"] == "auto":  # which looks at the engine to choose
        return
    if not same_bits(expected, result):
        yield "other numbers than inline"
    if expected.run["certificate"] != result.run["certificate"]:
        yield "another certificate than inline"
    if expected.ledger != result.ledger:
        yield "another ledger than inline"
    ended = [(found.reason, found.converged, len(found.history)) for found in (expected, result)]
    if ended[0] != ended[1]:
        yield f"ended as {ended[1]}, inline as {ended[0]}"


def all_complaints(engine, number, every=1):
    found = {str(how): list(complaints(CASES[number], how, engine)) for how in runs(number, every)}
    return {how: wrong for how, wrong in found.items() if wrong}


@pytest.fixture(scope="module")
def engine(request, clusters):
    """An engine for all tests, and how few of the runs it takes."""
    with lp.connect(clusters(request.param)) as engine:
        yield engine, EVERY.get(request.param, 1)


def pairs():
    """Names of engines, and numbers of cases."""
    names = [name for name in (*ENGINES, *REMOTE) if name != "inline"]
    every = [(name, number) for name in names for number in range(len(CASES))]
    left = [pair for pair in every if (pair[0], CASES[pair[1]]) not in LEFT_OUT]
    return [pytest.param(*pair, id=f"{pair[0]}-{CASES[pair[1]]}") for pair in left]


def test_every_method_is_run_on_every_engine():
    assert {how["method"] for how in RUNS} == {*METHODS, "auto"}
    for name in REMOTE:
        numbers = [n for n, case in enumerate(CASES) if (name, case) not in LEFT_OUT]
        found = [how for number in numbers for how in runs(number, EVERY[name])]
        assert all(how in found for how in RUNS)


@pytest.mark.parametrize(("engine", "number"), pairs(), indirect=["engine"])
def test_no_engine_lies_or_says_other_than_inline(engine, number):
    assert not all_complaints(engine[0], number, engine[1])
