"""Positive controls: without protection, a curious coordinator learns what it wants."""

import numpy as np
import pytest
from curious import Curious, basis, membership, population
from inference import error, gram_of_few, gram_of_rounds, row_of

import localpower as lp


def product(A, Z):
    return A.T @ (A @ Z)


def test_one_message_of_a_site_with_one_row_is_the_row():
    row = population()[1](1)
    found = row_of(basis(), product(row, basis()))
    found *= np.sign(found @ row[0])
    assert error(found, row[0]) < 1e-12


@pytest.mark.parametrize("rows", [2, 5, 10])
def test_one_message_of_a_site_with_few_rows_is_its_gram_matrix(rows):
    A = population()[1](rows)
    assert error(gram_of_few(basis(), product(A, basis())), A.T @ A) < 1e-10


def test_one_message_of_a_site_with_many_rows_is_not():
    A = population()[1](500)
    assert error(gram_of_few(basis(), product(A, basis())), A.T @ A) > 0.1


@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_after_five_rounds_the_gram_matrix_of_a_site_is_known():
    draw = population(columns=123, decay=0.96)[1]
    parts = [draw(500) * scale for scale in (1.0, 0.5, 2.0)]
    engine = Curious()
    lp.svd(parts, 5, "block_krylov:start=random,width=10", tol=1e-12, max_rounds=5, certainty=1,
           engine=engine, rng=0)  # fmt: skip
    errors = [
        error(gram_of_rounds(engine.seen[i][:5]), part.T @ part) for i, part in enumerate(parts)
    ]
    assert len(engine.seen[0]) >= 5
    assert max(errors) < 5e-2


def test_membership_in_a_small_site_is_told_and_in_a_large_one_hardly():
    found = {rows: membership(rows, 400) for rows in (1, 5, 1000)}
    assert min(found[1], found[5]) > 0.95
    assert found[1000] < 0.75


def test_a_sum_over_sites_hides_members_of_each_only_in_the_crowd():
    assert membership(1, 400, sites=10) > 0.8  # masks protect sites, not rows
    assert membership(100, 400, sites=10) < 0.75
