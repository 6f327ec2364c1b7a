"""Rows are cut as asked, without copies where that can be; a change of order can be undone."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import localpower as lp
from localpower.core.errors import DataError
from localpower.data.partition import by_label, contiguous, dirichlet, shuffled
from localpower.data.source import open_source
from localpower.worker.shard import is_stored
from localpower.worker.stored import Stored

KINDS = {"dense": np.asarray, "sparse": sparse.csr_array}

sizes = st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any)


def matrix(rows, columns=3):
    """Rows that differ from each other, with some zeros."""
    return np.arange(rows * columns, dtype=float).reshape(rows, columns) % 7 + np.eye(rows, columns)


def numbered(rows):
    """Rows that tell their own number, from 1."""
    return np.arange(1.0, rows + 1)[:, None] * [1.0, 0.0, 2.0]


def dense(shard):
    pieces = [p.read() if is_stored(p) else p for p in shard.pieces]
    pieces = [p if isinstance(p, np.ndarray) else p.toarray() for p in pieces]
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


def test_cuts_of_files_stay_in_the_file(tmp_path):
    np.save(tmp_path / "x.npy", matrix(10))
    shards = contiguous(open_source(tmp_path / "x.npy"), 3).shards
    for shard in shards:
        [piece] = shard.pieces
        assert isinstance(piece, Stored)
        assert piece.path == str(tmp_path / "x.npy")
    np.testing.assert_array_equal(np.concatenate([dense(s) for s in shards]), matrix(10))


def test_a_cut_across_blocks_has_one_piece_for_each():
    source = open_source([matrix(2), matrix(2), matrix(2)])
    assert [len(shard.pieces) for shard in contiguous(source, 2).shards] == [2, 2]
    assert [len(shard.pieces) for shard in contiguous(source, 1).shards] == [3]


def test_cuts_of_a_matrix_with_int64_indices_are_right():
    X = sparse.csr_array(matrix(9))
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    shards = contiguous(open_source(X), 4).shards
    np.testing.assert_array_equal(np.concatenate([dense(s) for s in shards]), X.toarray())


# Rows that do not fit in memory


LARGE = 200_000  # rows of 12 numbers: 18 MiB, where 12 are left for rows
SMALL_BUDGET = "16MiB"


def large_rows(kind):
    X = np.arange(1.0, LARGE + 1)[:, None] * np.arange(1, 13) % 1009
    if kind == "sparse":
        X[:, 1:] *= (np.arange(LARGE)[:, None] + np.arange(11)) % 5 > 0
    return X


@pytest.fixture(scope="module", params=["C", "F", "sparse"])
def large(request, tmp_path_factory):
    """Rows, and a file of them that does not fit."""
    X, folder = large_rows(request.param), tmp_path_factory.mktemp("large")
    if request.param == "sparse":
        sparse.save_npz(folder / "x.npz", sparse.csr_array(X), compressed=False)
        return X, folder / "x.npz"
    np.save(folder / "x.npy", np.asarray(X, order=request.param))
    return X, folder / "x.npy"


LABELS = np.arange(LARGE) * 7919 % 5


@pytest.fixture
def source(large):
    with lp.read(large[1], labels=LABELS, memory=SMALL_BUDGET) as source:
        assert source.stored > 12 << 20
        yield source


def check(cut, X):
    """Every row is there once, and where the partition says it is."""
    assert sorted(cut.order) == list(range(len(X)))
    ends = np.cumsum([shard.rows for shard in cut.shards])[:-1]
    for shard, numbers in zip(cut.shards, np.split(cut.order, ends), strict=True):
        np.testing.assert_array_equal(dense(shard), X[numbers])


def same_partition(a, b):
    np.testing.assert_array_equal(a.order, b.order)
    for one, other in zip(a.shards, b.shards, strict=True):
        np.testing.assert_array_equal(dense(one), dense(other))


def test_a_shuffle_of_files_is_a_permutation_in_stretches(large, source):
    X, path = large
    cut = shuffled(source, 4, np.random.default_rng(0))
    check(cut, X)
    pieces = [piece for shard in cut.shards for piece in shard.pieces]
    assert all(is_stored(piece) for piece in pieces)  # nothing is copied
    assert {p.path if isinstance(p, Stored) else p.data.path for p in pieces} == {str(path)}
    breaks = np.count_nonzero(np.diff(cut.order) != 1)
    assert 50 < breaks <= len(pieces)
    for shard in cut.shards:
        assert len(shard.pieces) > 10
        assert 0.8 < 4 * shard.rows / LARGE < 1.2


def test_a_shuffle_of_files_is_seeded(source):
    first, again, other = (shuffled(source, 3, np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.order, again.order)
    assert not np.array_equal(first.order, other.order)


def test_a_shuffle_takes_files_and_rows_in_memory_together(large):
    X, path = large
    blocks = [sparse.csr_array(X[:500]), path, X[:700]]
    with lp.read(blocks, memory=SMALL_BUDGET) as source:
        cut = shuffled(source, 3, np.random.default_rng(0))
        check(cut, np.concatenate([X[:500], X, X[:700]]))


def test_labels_of_files_make_the_shards_that_they_make_in_memory(large, source):
    X, path = large
    with lp.read(path, labels=LABELS, memory="1GiB") as roomy:
        for workers in (None, 2):
            cut = by_label(source, workers)
            check(cut, X)
            same_partition(cut, by_label(roomy, workers))
            assert all(is_stored(piece) for shard in cut.shards for piece in shard.pieces)


def test_a_dirichlet_deal_of_files_is_the_one_in_memory(large, source):
    X, path = large
    with lp.read(path, labels=LABELS, memory="1GiB") as roomy:
        cut = dirichlet(source, 3, np.random.default_rng(4), 0.5)
        check(cut, X)
        same_partition(cut, dirichlet(roomy, 3, np.random.default_rng(4), 0.5))


def test_temporary_files_of_a_partition_are_gone_with_it(source):
    cut = by_label(source, None)
    [piece, *_] = cut.shards[0].pieces
    folder = Path(piece.path if isinstance(piece, Stored) else piece.data.path).parent
    assert folder.exists()
    del cut
    gc.collect()
    assert not folder.exists()
    cut = by_label(source, None)
    [piece, *_] = cut.shards[0].pieces
    source.close()
    assert not os.path.exists(piece.path if isinstance(piece, Stored) else piece.data.path)


@pytest.mark.parametrize("engine", ["inline", "processes:2"], indirect=True)
@pytest.mark.parametrize("how", ["contiguous", "shuffled", "label", "dirichlet:0.3"])
def test_left_vectors_of_files_are_in_the_order_of_the_file(large, source, how, engine):
    X, _ = large
    options = {"partition": how, "workers": 4, "engine": engine, "max_rounds": 3, "rng": 0}
    result = lp.svd(source, 2, return_u=True, **options)
    residual = X @ result.components.T - result.U * result.singular_values
    assert np.linalg.norm(residual) <= 1e-9 * result.singular_values[0]


# By label


def labelled(rows, labels):
    return lp.read(numbered(rows), labels=labels)


@pytest.mark.parametrize("labels", [[3, 1, 3, 2, 1, 1], list("cacbaa"), [0.5, -1, 0.5, 0, -1, -1]])
def test_there_is_one_shard_per_label_in_order(labels):
    cut = by_label(labelled(6, labels), None)
    check(cut, numbered(6))
    assert [shard.rows for shard in cut.shards] == [3, 1, 2]
    assert cut.order.tolist() == [1, 4, 5, 3, 0, 2]


@given(labels=st.lists(st.integers(0, 6), min_size=1, max_size=30), workers=st.integers(1, 7))
def test_labels_are_grouped_in_order_for_fewer_workers(labels, workers):
    kinds = sorted(set(labels))
    source = labelled(len(labels), labels)
    if workers > len(kinds):
        with pytest.raises(ValueError, match=f"workers={workers} is more than there are labels"):
            by_label(source, workers)
        return
    cut = by_label(source, workers)
    check(cut, numbered(len(labels)))
    groups = [set(group) for group in np.array_split(kinds, workers)]
    ends = np.cumsum([shard.rows for shard in cut.shards])[:-1]
    for group, numbers in zip(groups, np.split(cut.order, ends), strict=True):
        assert {labels[number] for number in numbers} == group
        assert np.all(np.diff(numbers) > 0)


def test_data_without_labels_are_not_cut_by_label():
    with pytest.raises(DataError, match=r"the data have no labels; .*label=.*labels="):
        by_label(open_source(numbered(4)), None)


def test_labels_of_another_length_are_refused():
    with pytest.raises(DataError, match="labels has 3 entries for 4 rows"):
        labelled(4, [1, 2, 3])


def test_labels_may_be_of_all_rows_where_some_are_left_out():
    rows = numbered(5).astype(float)
    gaps = [rows[:3].copy(), rows[3:].copy()]
    gaps[0][1, 0] = gaps[1][0, 1] = np.nan
    for labels in ([0, 1, 2, 3, 4], [0, 2, 4]):
        with pytest.warns(lp.DataHint):
            source = lp.read(gaps, labels=labels, missing="drop")
        assert source.labels.tolist() == [0, 2, 4]
    with pytest.warns(lp.DataHint), pytest.raises(DataError, match="4 entries for 3 rows"):
        lp.read(gaps, labels=[0, 1, 2, 3], missing="drop")


# Dirichlet


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    workers=st.integers(1, 6),
    concentration=st.sampled_from([1e-6, 0.1, 1.0, 1e3, 1e9]),
    seed=st.integers(0, 9),
)
def test_a_dirichlet_deal_gives_every_row_once(labels, workers, concentration, seed):
    cut = dirichlet(
        labelled(len(labels), labels), workers, np.random.default_rng(seed), concentration
    )
    assert len(cut.shards) == workers
    check(cut, numbered(len(labels)))


def shares(concentration, seed=0):
    """Share of each label, in rows, among the rows of each of 5 shards, in columns."""
    labels = np.repeat(np.arange(4), 500)
    cut = dirichlet(labelled(2000, labels), 5, np.random.default_rng(seed), concentration)
    ends = np.cumsum([shard.rows for shard in cut.shards])[:-1]
    counts = [np.bincount(labels[part], minlength=4) for part in np.split(cut.order, ends)]
    return np.array(counts).T / 500


def test_rows_without_a_label_are_dealt_as_those_of_one_label():
    labels = np.where(np.arange(300) % 3, np.nan, 1.0)
    told = dirichlet(labelled(300, labels), 4, np.random.default_rng(3), 0.5)
    same = dirichlet(
        labelled(300, np.nan_to_num(labels, nan=2.0)), 4, np.random.default_rng(3), 0.5
    )
    same_partition(told, same)


def test_a_dirichlet_deal_is_seeded():
    assert np.array_equal(shares(0.5, 3), shares(0.5, 3))
    assert not np.array_equal(shares(0.5, 3), shares(0.5, 4))


def test_the_smaller_the_concentration_the_more_shards_differ():
    spread = [np.mean([shares(c, seed).std(axis=1) for seed in range(20)]) for c in (0.05, 1, 100)]
    assert spread[0] > 1.3 * spread[1] > 5 * spread[2]
    assert np.abs(shares(1e6) - 0.2).max() < 0.02


def test_without_labels_shards_differ_in_size_only():
    cut = dirichlet(open_source(numbered(3000)), 4, np.random.default_rng(1), 0.3)
    check(cut, numbered(3000))
    sizes = [shard.rows for shard in cut.shards]
    assert max(sizes) > 2 * min(sizes)
    means = [dense(shard)[:, 0].mean() for shard in cut.shards if shard.rows > 200]
    assert np.ptp(means) < 300  # rows of each are from all over


@pytest.mark.parametrize("how", ["contiguous", "shuffled", "label", "dirichlet", "dirichlet:0.1"])
@pytest.mark.parametrize("kind", KINDS)
def test_left_vectors_are_in_the_order_of_the_data(how, kind):
    X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(1, 9)
    with lp.read(KINDS[kind](X), labels=np.arange(300) * 7 % 6) as source:
        result = lp.svd(source, 3, partition=how, workers=4, return_u=True, center=True, rng=0)
    scores = (X - X.mean(axis=0)) @ result.components.T
    np.testing.assert_allclose(result.U * result.singular_values, scores, atol=1e-10)


def test_shards_without_rows_do_no_harm():
    X = np.random.default_rng(0).standard_normal((12, 3))
    source = open_source(X)
    assert 0 in [s.rows for s in dirichlet(source, 9, np.random.default_rng(0), 0.1).shards]
    options = {"partition": "dirichlet:0.1", "method": "dpi", "max_rounds": 200, "return_u": True}
    result = lp.svd(source, 2, workers=9, rng=0, **options)
    np.testing.assert_allclose(result.singular_values, np.linalg.svd(X)[1][:2], rtol=1e-9)
    np.testing.assert_allclose(result.U * result.singular_values, X @ result.components.T)
