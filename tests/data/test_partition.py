"""Rows are cut evenly, in order and without copies; a shuffle can be undone."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from localpower.data.partition import contiguous, shuffled
from localpower.data.source import open_source

KINDS = {"dense": np.asarray, "sparse": sparse.csr_array}

sizes = st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any)


def matrix(rows, columns=3):
    """Rows that differ from each other, with some zeros."""
    return np.arange(rows * columns, dtype=float).reshape(rows, columns) % 7 + np.eye(rows, columns)


def numbered(rows):
    """Rows that tell their own number, from 1."""
    return np.arange(1.0, rows + 1)[:, None] * [1.0, 0.0, 2.0]


def dense(shard):
    pieces = [p if isinstance(p, np.ndarray) else p.toarray() for p in shard.pieces]
    return np.concatenate([np.empty((0, shard.columns)), *pieces])


def blocks(X, sizes, kinds):
    cuts = np.cumsum(sizes)[:-1]
    return [KINDS[kind](part) for part, kind in zip(np.split(X, cuts), kinds, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.integers(1, 30), workers=st.integers(1, 40))
def test_cuts_are_those_of_array_split(kind, rows, workers):
    X = matrix(rows)
    shards = contiguous(open_source(KINDS[kind](X)), workers).shards
    for shard, part in zip(shards, np.array_split(X, workers), strict=True):
        assert shard.rows == len(part)
        assert (shard.columns, shard.dtype) == (3, np.float64)
        np.testing.assert_array_equal(dense(shard), part)


def test_more_workers_than_rows_leave_some_without():
    shards = contiguous(open_source(matrix(2)), 5).shards
    assert [shard.rows for shard in shards] == [1, 1, 0, 0, 0]
    assert shards[4].pieces == ()


@given(sizes=sizes, workers=st.integers(1, 9), data=st.data())
def test_recutting_a_list_of_blocks_keeps_the_order_of_rows(sizes, workers, data):
    X = numbered(sum(sizes))
    kinds = data.draw(st.tuples(*[st.sampled_from(sorted(KINDS))] * len(sizes)))
    shards = contiguous(open_source(blocks(X, sizes, kinds)), workers).shards
    expected = sizes if workers == len(sizes) else [len(x) for x in np.array_split(X, workers)]
    assert [shard.rows for shard in shards] == expected
    np.testing.assert_array_equal(np.concatenate([dense(shard) for shard in shards]), X)


def test_the_users_own_shards_are_kept():
    given = [matrix(1), matrix(6), matrix(2)]
    shards = contiguous(open_source(given), 3).shards
    assert all(shard.pieces[0] is block for shard, block in zip(shards, given, strict=True))


@given(sizes=sizes, workers=st.integers(1, 9), seed=st.integers(0, 5), data=st.data())
def test_a_shuffle_is_a_permutation_that_can_be_undone(sizes, workers, seed, data):
    X = numbered(sum(sizes))
    kinds = data.draw(st.tuples(*[st.sampled_from(sorted(KINDS))] * len(sizes)))
    source = open_source(blocks(X, sizes, kinds))
    cut = shuffled(source, workers, np.random.default_rng(seed))
    assert [s.rows for s in cut.shards] == [len(part) for part in np.array_split(X, workers)]
    rows = np.concatenate([dense(shard) for shard in cut.shards])
    assert sorted(cut.order) == list(range(len(X)))
    np.testing.assert_array_equal(rows, X[cut.order])
    np.testing.assert_array_equal(cut.in_original_order(rows), X)
    assert [cut.original_row(i) for i in range(len(X))] == (rows[:, 0] - 1).tolist()


def test_without_a_shuffle_rows_are_in_their_original_order():
    X = matrix(5)
    cut = contiguous(open_source(X), 2)
    assert cut.in_original_order(X) is X
    assert cut.original_row(3) == 3


def test_a_shuffle_moves_rows_and_leaves_the_users_array_alone():
    X = numbered(100)
    before = X.copy()
    cut = shuffled(open_source(X), 4, np.random.default_rng(0))
    assert not np.array_equal(np.concatenate([dense(shard) for shard in cut.shards]), X)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("narrow", ["f2", "f4", ">f4"])
def test_dense_and_sparse_shards_of_narrow_floats_are_shuffled_together(narrow):
    X = numbered(6)
    source = open_source([sparse.csr_array(X[:3].astype("f4")), X[3:].astype(narrow)])
    cut = shuffled(source, 2, np.random.default_rng(0))
    assert all(shard.dtype == np.float32 for shard in cut.shards)
    rows = np.concatenate([dense(shard) for shard in cut.shards])
    np.testing.assert_array_equal(cut.in_original_order(rows), X)


def test_dense_cuts_are_views():
    X = matrix(10)
    for shard in contiguous(open_source(X), 3).shards:
        assert np.shares_memory(shard.pieces[0], X)


@pytest.mark.parametrize("separate", [False, True])
def test_csr_cuts_are_views(separate):
    X = sparse.csr_array(matrix(10))
    for shard in contiguous(open_source([X] if separate else X), 3).shards:
        assert np.shares_memory(shard.pieces[0].data, X.data)
        assert np.shares_memory(shard.pieces[0].indices, X.indices)
        assert np.shares_memory(shard.pieces[0].T.data, X.data)
        assert np.shares_memory(shard.pieces[0].T.indices, X.indices)


def test_csr_cuts_outlive_the_matrix_they_were_cut_from():
    shards = contiguous(open_source(sparse.csr_array(matrix(10))), 3).shards
    gc.collect()
    np.testing.assert_array_equal(np.concatenate([dense(s) for s in shards]), matrix(10))


def test_mapped_files_stay_mapped(tmp_path):
    np.save(tmp_path / "x.npy", matrix(10))
    for shard in contiguous(open_source(tmp_path / "x.npy"), 3).shards:
        assert isinstance(shard.pieces[0], np.memmap)
        assert shard.pieces[0].filename == tmp_path / "x.npy"


def test_a_cut_across_blocks_has_one_piece_for_each():
    source = open_source([matrix(2), matrix(2), matrix(2)])
    assert [len(shard.pieces) for shard in contiguous(source, 2).shards] == [2, 2]
    assert [len(shard.pieces) for shard in contiguous(source, 1).shards] == [3]


def test_cuts_of_a_matrix_with_int64_indices_are_right():
    X = sparse.csr_array(matrix(9))
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    shards = contiguous(open_source(X), 4).shards
    np.testing.assert_array_equal(np.concatenate([dense(s) for s in shards]), X.toarray())
