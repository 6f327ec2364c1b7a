"""Sums over shards: one order, and nothing overwritten that somebody else holds."""

from functools import reduce
from operator import add

import numpy as np
import pytest

from localpower.core import linalg
from localpower.core.linalg import FAN_IN, fold
from localpower.worker.replies import PackedSum, Product, Proposal

KINDS = {
    "arrays": lambda A: A,
    "Product": lambda A: Product(A, first=A + 1),
    "Proposal": lambda A: Proposal(A, 2 * A),
    "PackedSum": PackedSum,
}


def by_groups(items):
    """What `fold` is to compute, without overwriting anything."""
    while len(items) > 1:
        groups = (items[at : at + FAN_IN] for at in range(0, len(items), FAN_IN))
        items = [reduce(add, group) for group in groups]
    return items[0]


def content(item):
    arrays = [item] if isinstance(item, np.ndarray) else [
        value for name in item.__slots__ if (value := getattr(item, name)) is not None
    ]  # fmt: skip
    return [np.asarray(array).tobytes() for array in arrays]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 16, 17, 64, 65, 73, 520])
@pytest.mark.parametrize("own", [False, True])
def test_a_sum_has_one_order_and_overwrites_only_what_is_its_own(kind, count, own):
    drawn = np.random.default_rng(count).standard_normal((count, 4, 3))
    items = [KINDS[kind](A.copy()) for A in drawn]
    expected = content(by_groups([KINDS[kind](A.copy()) for A in drawn]))
    assert content(fold(iter(items), count, own)) == expected
    if not own:
        untouched = [content(KINDS[kind](A.copy())) for A in drawn]
        assert [content(item) for item in items] == untouched


def test_all_of_the_replies_are_taken():
    """What comes after the last of them, in the generator of an engine, must be run too."""
    for count in (1, 7, 8, 9, 64, 65):
        ended = []

        def replies(count=count, ended=ended):
            yield from np.ones((count, 2))
            ended.append(True)

        assert fold(replies(), count).tolist() == [count, count]
        assert ended


def test_replies_that_cannot_be_overwritten_are_added_all_the_same():
    frozen = np.ones((2, 3))
    frozen.flags.writeable = False
    rounded = np.ones((2, 3), np.float32)
    for first in (frozen, rounded):
        total = fold(iter([Product(first), Product(rounded)]), 2, own=True).product
        assert total.dtype == np.float64
        assert (total == 2).all()
        assert (first == 1).all()


def test_a_decomposition_that_divide_and_conquer_fails_at_is_made_by_iteration(monkeypatch):
    A = np.random.default_rng(0).standard_normal((9, 5))
    expected = np.linalg.svd(A, full_matrices=False)

    def failing(*args, **options):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "svd", failing)
    U, sizes, Vt = linalg.svd(A)
    np.testing.assert_allclose(sizes, expected[1])
    np.testing.assert_allclose((U * sizes) @ Vt, A, atol=1e-14)
    assert (U.shape, Vt.shape) == ((9, 5), (5, 5))
    with pytest.raises(np.linalg.LinAlgError):
        linalg.svd(np.full((3, 2), np.nan))


def test_eigenvectors_of_the_same_matrix_are_remembered_and_cannot_be_changed():
    from localpower.core.linalg import eigen

    A = np.random.default_rng(0).standard_normal((6, 6))
    H = A + A.T
    _, vectors = eigen(H)
    np.testing.assert_array_equal(vectors, np.linalg.eigh(H)[1])
    assert eigen(H.T.copy())[1] is vectors
    with pytest.raises(ValueError, match="read-only"):
        vectors[0, 0] = 1.0
    H[5, 5] += 1.0  # the same array, another matrix
    assert eigen(H)[1] is not vectors
    upper = np.triu(np.full((6, 6), 7.0), 1)
    np.testing.assert_array_equal(eigen(np.tril(H) + upper)[0], np.linalg.eigh(H, "L")[0])


ACCURATE = {
    "a mean": lambda rng: rng.standard_normal((40, 4)) + 100 * rng.standard_normal(4),
    "tall": lambda rng: rng.standard_normal((60, 5)) * 0.5 ** np.arange(5),
    "wide": lambda rng: rng.standard_normal((3, 7)),
    "graded": lambda rng: rng.standard_normal((6, 6)) * 10.0 ** -np.arange(0, 18, 3),
    "low rank": lambda rng: np.outer(rng.standard_normal(6), rng.standard_normal(4)),
    "tie": lambda rng: np.linalg.qr(rng.standard_normal((9, 4)))[0],
    "zero": lambda rng: np.zeros((5, 3)),
    "no rows": lambda rng: np.zeros((0, 3)),
}


@pytest.mark.parametrize("name", ACCURATE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_vectors_of_the_accurate_svd_make_a_matrix_diagonal_to_rounding(name, dtype):
    eps = np.finfo(dtype).eps
    for seed in range(40):
        A = ACCURATE[name](np.random.default_rng(seed)).astype(dtype)
        U, sizes, Vt = linalg.accurate_svd(A)
        top, eye = sizes.max(initial=0.0), np.eye(len(sizes))
        assert U.dtype == sizes.dtype == Vt.dtype == dtype
        assert np.abs(U.T @ U - eye).max(initial=0.0) <= 8 * eps
        assert np.abs(Vt @ Vt.T - eye).max(initial=0.0) <= 8 * eps
        assert np.abs(U.T @ A @ Vt.T - np.diag(sizes)).max(initial=0.0) <= 12 * eps * top
        expected = np.linalg.svd(A.astype(float), compute_uv=False)
        np.testing.assert_allclose(sizes, expected, rtol=0, atol=20 * eps * top)
