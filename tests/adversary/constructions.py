"""Matrices that are made to mislead: each hides something, or leaves rounding little room.

A construction is a function of a generator that returns a `Case`: shards, the rank to ask for, and
options of `svd` that belong to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from helpers import random_start

WIDTH = 5  # columns that are iterated beyond the rank, by default
SEED = 7  # of all runs, for constructions that know the random start


@dataclass(frozen=True)
class Case:
    name: str
    shards: list[Any]
    rank: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> np.ndarray:
        """All rows, as the oracle takes them."""
        parts = [part.toarray() if sp.issparse(part) else part for part in self.shards]
        return np.vstack(parts)


CONSTRUCTIONS: dict[str, Callable[[np.random.Generator], Case]] = {}


def construction(make):
    """List a function of a generator that returns shards, rank and, perhaps, options."""

    def named(rng: np.random.Generator) -> Case:
        return Case(make.__name__, *make(rng))

    CONSTRUCTIONS[make.__name__] = named
    return named


def orthonormal(rng, rows, columns):
    return np.linalg.qr(rng.standard_normal((rows, columns)))[0]


def with_values(rng, rows, values, columns=None):
    """Rows with these squared singular values and random vectors."""
    d = columns or len(values)
    U, V = orthonormal(rng, rows, len(values)), orthonormal(rng, d, len(values))
    return (U * np.sqrt(values)) @ V.T


def cut(A, shards):
    return [A[len(A) * i // shards : len(A) * (i + 1) // shards] for i in range(shards)]


def shared_weak(rng, shards=20, own=8, rows=60):
    """Every shard has strong directions of its own; one that is weak in each leads the sum."""
    parts = []
    for i in range(shards):
        A = np.zeros((rows, 1 + shards * own))
        values = np.r_[1, 5 * (0.8 + 0.4 * rng.random(own))]
        if i == 0:
            values[1:4] = 15, 16.5, 18
        mine = [0, *range(1 + i * own, 1 + i * own + own)]
        A[:, mine] = orthonormal(rng, rows, own + 1) * np.sqrt(values)
        parts.append(A)
    return parts, 3


# Hidden directions


@construction
def shared_by_all_and_weak_in_each(rng):
    return shared_weak(rng, shards=8, own=4, rows=6)


@construction
def hidden_in_one_of_many_shards(rng):
    parts = [rng.standard_normal((6, 30)) * np.r_[np.ones(29), 0.0] for _ in range(9)]
    parts[6][0, 29] = 60.0
    return parts, 2


@construction
def hidden_in_few_rows(rng):
    A = rng.standard_normal((150, 25)) * 0.9 ** np.arange(25)
    A[:, 24] = 0
    A[70:72, 24] = 30.0
    return cut(A, 5), 2


@construction
def disjoint_supports(rng):
    parts = []
    for i in range(6):
        A = np.zeros((5, 30))
        A[:, 5 * i : 5 * i + 5] = orthonormal(rng, 5, 5) * np.sqrt(10.0 - i - np.arange(5))
        parts.append(A)
    return parts, 4


@construction
def block_diagonal(rng):
    A = np.zeros((60, 30))
    for i in range(3):
        values = (3.0 - i) * 0.8 ** np.arange(10)
        A[20 * i : 20 * i + 20, 10 * i : 10 * i + 10] = with_values(rng, 20, values)
    return cut(A, 4), 3


@construction
def start_orthogonal_to_the_answer(rng):
    d, rank = 40, 2
    Z = random_start(d, rank + WIDTH, SEED)
    V = np.linalg.qr(np.hstack([Z, rng.standard_normal((d, d - Z.shape[1]))]))[0][:, ::-1]
    values = np.r_[9.0, 6.0, np.linspace(1, 0.5, d - 2)]
    return cut((orthonormal(rng, 90, d) * np.sqrt(values)) @ V.T, 5), rank


@construction
def start_blind_to_an_invariant_subspace(rng):
    d, rank = 30, 2  # the start and all its images lie in the first columns
    Z = random_start(d, rank + WIDTH, SEED)
    V = np.linalg.qr(np.hstack([Z, rng.standard_normal((d, d - Z.shape[1]))]))[0]
    values = np.r_[np.linspace(2, 1, Z.shape[1]), 5.0, 4.0, np.full(d - Z.shape[1] - 2, 0.1)]
    return cut((orthonormal(rng, 60, d) * np.sqrt(values)) @ V.T, 3), rank


@construction
def merged_start_loses_the_second(rng):
    parts = []
    for i in range(5):
        A = np.zeros((12, 27))
        A[:, :2] = rng.standard_normal((12, 2)) * (3.0, 0.3)
        A[:, 2 + 5 * i : 7 + 5 * i] = rng.standard_normal((12, 5)) * 0.8
        parts.append(A)
    return parts, 2, {"width": 2}


@construction
def sparse_with_a_hidden_dense_column(rng):
    A = sp.random_array((200, 40), density=0.05, rng=rng, format="lil")
    A[:, 33] = 0.4
    A = A.tocsr()
    return [A[a : a + 50] for a in range(0, 200, 50)], 1


@construction
def one_hot(rng):
    codes = rng.integers(0, 12, 90)
    codes[:4] = 13  # a rare one
    return cut(np.eye(14)[codes], 4), 3


@construction
def heavy_tails(rng):
    return cut(rng.standard_cauchy((80, 20)), 6), 3


@construction
def three_scales_of_hidden_values(rng):
    values = np.r_[1e4, 1e2, 1.0, np.full(27, 0.3)]
    A = (orthonormal(rng, 60, 30) * np.sqrt(values)) @ np.eye(30)[rng.permutation(30)]
    return cut(A, 4), 3


# Ties


@construction
def tie_wider_than_the_block(rng):
    return cut(with_values(rng, 60, np.r_[np.full(9, 4.0), np.linspace(1, 0.1, 16)]), 3), 3


@construction
def tie_wider_than_the_space(rng):
    return cut(np.vstack([np.eye(60), np.eye(60)]), 3), 2


@construction
def tie_inside_the_rank(rng):
    return cut(with_values(rng, 50, np.r_[np.full(6, 4.0), np.linspace(1, 0.1, 14)]), 3), 6


@construction
def near_ties_in_a_cluster(rng):
    values = np.r_[1 + 1e-7 * np.arange(10), np.full(15, 0.4)]
    return cut(with_values(rng, 60, np.sort(values)[::-1]), 3), 4


def _gap(size):
    def make(rng):
        values = np.r_[2.0, 1.0, 1.0 - size, np.linspace(0.8, 0.1, 17)]
        return cut(with_values(rng, 50, values), 3), 2

    make.__name__ = f"gap_of_1e{round(np.log10(size))}"
    return construction(make)


for _size in (1e-3, 1e-6, 1e-9, 1e-12):
    _gap(_size)


@construction
def all_values_are_nearly_equal(rng):
    return cut(rng.standard_normal((1500, 16)), 4), 3


# Shapes


@construction
def duplicated_shards(rng):
    A = rng.standard_normal((15, 20)) * 0.8 ** np.arange(20)
    return [A] * 6, 3


@construction
def empty_and_one_row_shards(rng):
    A = rng.standard_normal((30, 15)) * 0.7 ** np.arange(15)
    return [A[:0], A[:1], A[1:2], A[2:2], A[2:29], A[29:], A[:0]], 3


@construction
def as_many_columns_as_the_rank(rng):
    return cut(rng.standard_normal((40, 4)) * (5, 3, 2, 1), 3), 4


@construction
def fewer_rows_than_columns(rng):
    return cut(rng.standard_normal((12, 50)) * np.linspace(3, 1, 12)[:, None], 4), 3


@construction
def one_vector_asked_for(rng):
    return cut(with_values(rng, 60, np.r_[1.0, 0.98, np.full(18, 0.5)]), 5), 1


@construction
def one_row(rng):
    return [rng.standard_normal((1, 9))], 1


# Few digits


@construction
def lower_rank_than_asked_for(rng):
    return cut(with_values(rng, 50, [4.0, 1.0], columns=20), 3), 4


@construction
def all_rows_along_one_vector(rng):
    return cut(np.outer(rng.standard_normal(40), rng.standard_normal(15)), 3), 2


@construction
def constant_rows(rng):
    return cut(np.tile(rng.standard_normal(12), (30, 1)), 3), 2


@construction
def constant_rows_less_their_mean(rng):
    return cut(np.tile(rng.standard_normal(12), (30, 1)), 3), 2, {"center": True}


@construction
def nothing_but_zeros(rng):
    return cut(np.zeros((30, 10)), 3), 2


@construction
def graded_columns(rng):
    return cut(rng.standard_normal((60, 9)) * 10.0 ** np.linspace(8, -8, 9), 3), 3


@construction
def one_value_is_huge(rng):
    return cut(rng.standard_normal((90, 20)) * np.r_[1e5, 9, 7, np.ones(17)], 3), 3


@construction
def one_value_hides_all_others(rng):
    values = np.r_[1e18, 81.0, 49.0, np.linspace(1, 0.1, 17)]
    return cut(with_values(rng, 90, values), 3), 3


@construction
def scaled_by_2_to_500(rng):
    return cut(np.ldexp(rng.standard_normal((50, 15)) * 0.8 ** np.arange(15), 500), 3), 3


@construction
def scaled_by_2_to_minus_500(rng):
    return cut(np.ldexp(rng.standard_normal((50, 15)) * 0.8 ** np.arange(15), -500), 3), 3


@construction
def single_precision(rng):
    A = with_values(rng, 80, np.r_[3.0, 2.0, 1.0, np.linspace(0.9, 0.1, 17)])
    return cut(A.astype(np.float32), 4), 3


@construction
def single_precision_with_a_tiny_gap(rng):
    A = with_values(rng, 80, np.r_[3.0, 2.0, 2.0 - 1e-5, np.linspace(0.9, 0.1, 17)])
    return cut(A.astype(np.float32), 4), 2


@construction
def single_precision_hidden_in_one_shard(rng):
    parts = [rng.standard_normal((6, 24)).astype(np.float32) for _ in range(8)]
    for part in parts:
        part[:, 23] = 0
    parts[5][0, 23] = 40.0
    return parts, 2


@construction
def a_mean_that_is_far_away(rng):
    A = rng.standard_normal((60, 12)) * 0.8 ** np.arange(12) + 1e4
    return cut(A, 3), 3, {"center": True}
