"""Rows out of vectors, without a cluster that holds them."""

from dataclasses import dataclass

import numpy as np
import pytest

import localpower as lp
from localpower.worker.vectors import BATCH, row_batches, stack_dense, stack_sparse


@dataclass
class SparseVector:
    """As Spark has them."""

    size: int
    indices: np.ndarray
    values: np.ndarray


@dataclass
class IndexedRow:
    """As in a matrix of Spark."""

    index: int
    vector: object


def sparse(row):
    (places,) = np.nonzero(row)
    return SparseVector(len(row), places, row[places])


ROWS = np.random.default_rng(0).poisson(0.5, (BATCH + 5, 6)).astype(float)


def test_elements_of_one_kind_are_taken_together_and_blocks_by_themselves():
    elements = [ROWS[:2], ROWS[2:4], *map(list, ROWS[4:9]), *map(sparse, ROWS)]
    found = list(row_batches([*elements, IndexedRow(3, sparse(ROWS[0]))]))
    kinds = [(kind, len(batch)) for kind, batch, _ in found]
    rest = [("row", 5), ("sparse", BATCH), ("sparse", 5), ("sparse", 1)]
    assert kinds == [("block", 1), ("block", 1), *rest]
    rows = [rows.toarray() if kind == "sparse" else np.array(rows) for kind, _, rows in found]
    assert np.array_equal(np.concatenate(rows), np.concatenate([ROWS[:9], ROWS, ROWS[:1]]))
    assert found[-1][1][0].index == 3


def test_vectors_of_different_lengths_are_refused():
    with pytest.raises(lp.DataError, match="different lengths"):
        stack_dense([[1.0, 2.0], [3.0]])
    with pytest.raises(lp.DataError, match=r"different lengths, \[2, 3\]"):
        stack_sparse([3, 2, 3], [[0]] * 3, [[1.0]] * 3)
