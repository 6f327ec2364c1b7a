"""``FFᵀ ⪯ AᵀA ⪯ FFᵀ + rest·I``: for what a shard sends, for sums in any order, and after cuts."""

from functools import reduce
from operator import add

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import localpower as lp
from localpower.core.rounding import from_wire, shape_of
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.methods.scaling import columns, describe, prepare
from localpower.worker import local_matrix
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.replies import LowRank
from localpower.worker.tasks import LeadingFactor, Prepare

ROUNDING = 64.0  # units of eps·λ_1 that eigenvalues of the difference may be off


@st.composite
def shards(draw):
    """Rows of several shards, of one type: some empty, some with one row, tall or wide."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = draw(st.integers(1, 24))
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 5, 30, 60]), min_size=1, max_size=10))
    assume(any(counts))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    decay = draw(st.sampled_from([1.0, 0.8, 0.1]))
    size = draw(st.sampled_from([1.0, 1e-12, 1e12]))
    low = draw(st.integers(1, d))
    parts = []
    for rows in counts:
        A = rng.standard_normal((rows, low)) * decay ** np.arange(low)
        A = size * A @ rng.standard_normal((low, d))
        if draw(st.booleans()):
            A[rng.random(A.shape) < 0.7] = 0
        parts.append(A.astype(dtype))
    if draw(st.booleans()):
        parts = [sp.csr_array(part) for part in parts]
    return parts


def placed(parts, shift, factor):
    """Local matrices, and their rows as they enter, in float64."""
    found = contiguous(open_source(parts), len(parts)).shards
    matrices = [LocalMatrix(shard) for shard in found]
    for matrix in matrices:
        Prepare(shift, factor)(matrix)
    dense = [part.toarray() if sp.issparse(part) else part for part in parts]
    rows = [(A.astype(float) - (0.0 if shift is None else shift)) * factor for A in dense]
    return matrices, rows


def assert_bounds(total, rows, dtype):
    """Both differences have no negative eigenvalue, to rounding."""
    A = np.vstack(rows)
    B, F = A.T @ A, from_wire(total.factor)
    D = np.linalg.eigvalsh(B - F @ F.T)
    top = max(float(np.linalg.eigvalsh(B)[-1]), np.finfo(float).tiny)
    floor = ROUNDING * float(np.finfo(dtype).eps) * top
    assert total.rest >= 0
    assert D[0] >= -floor - total.over
    assert D[-1] <= total.rest + ROUNDING * np.finfo(float).eps * top


def grouped(items, sizes):
    """Add items in groups, then the groups likewise."""
    items = list(items)
    for size in sizes:
        items = [reduce(add, items[i : i + size]) for i in range(0, len(items), size)]
    return reduce(add, items)


@settings(max_examples=100)
@given(
    parts=shards(),
    width=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 4), max_size=3),
    centred=st.booleans(),
    scaled=st.booleans(),
    path=st.sampled_from(["gram", "dual", "iterated"]),
    loss=st.sampled_from([0.0, 0.0, 1e-12, 1e-6, 1e-3]),
    final=st.integers(1, 12),
)
def test_factors_bound_the_matrix_from_both_sides(
    parts, width, sizes, centred, scaled, path, loss, final
):
    d, dtype = parts[0].shape[1], parts[0].dtype
    rng = np.random.default_rng(0)
    shift = rng.standard_normal(d) * np.abs(parts[0]).max() if centred and parts[0].size else None
    factor = rng.uniform(0.5, 2, d) if scaled else 1.0
    with pytest.MonkeyPatch.context() as patch:
        if path != "gram":
            patch.setattr(local_matrix, "GRAM_COLUMNS", 3)
        if path == "iterated":
            patch.setattr(local_matrix, "DUAL_ENTRIES", 0)
        matrices, rows = placed(parts, shift, factor)
        task = LeadingFactor(width, 2 * width, loss)
        replies = [task(matrix) for matrix in matrices]
    for answer, A in zip(replies, rows, strict=True):
        assert shape_of(answer.factor)[1] <= width
        assert answer.over == 0 or loss
        assert_bounds(answer, [A], dtype)
    total = grouped(replies, sizes)
    assert shape_of(total.factor)[1] <= 2 * width
    assert_bounds(total, rows, dtype)
    assert_bounds(total.cut(final), rows, dtype)


@pytest.mark.parametrize("rows", [20, 1100])
def test_factors_of_more_columns_than_a_gram_matrix_may_have_bound_the_matrix(rows):
    rng = np.random.default_rng(rows)
    A = rng.standard_normal((rows, 1100)) * np.r_[5.0, 4.0, 3.0, np.full(1097, 0.5)]
    matrices, entered = placed([A], None, 1.0)
    assert_bounds(LeadingFactor(6, 12)(matrices[0]), entered, np.float64)


def test_a_sum_of_wide_factors_loses_no_more_than_it_says():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((9, 7)) for _ in range(40)]
    factors = [LowRank(part.T.copy(), 0.0, 3) for part in parts]
    assert_bounds(reduce(add, factors), parts, np.float64)


DATA = {
    "dense": [
        np.random.default_rng(i).standard_normal((n, 9)) for i, n in enumerate((30, 0, 1, 9))
    ],
    "sparse": sp.random_array((60, 9), density=0.3, rng=np.random.default_rng(0), format="csr"),
    "single": np.random.default_rng(5).standard_normal((60, 9)).astype(np.float32) + 3,
}


@pytest.mark.parametrize("engine", ["threads:2", "processes:2"], indirect=True)
@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("center", [False, True])
def test_sums_of_factors_have_the_same_bits_on_every_engine(engine, name, center):
    def total(engine):
        source = open_source(DATA[name])
        workers = len(DATA[name]) if isinstance(DATA[name], list) else 5
        engine.place(contiguous(source, workers).shards)
        prepare(engine, columns(describe(engine, "std"), center, "std", source.dtype))
        return engine.sum(LeadingFactor(2, 4))

    with lp.connect("inline") as inline:
        one, other = total(inline), total(engine)
    assert one.factor.tobytes() == other.factor.tobytes()
    assert one.rest == other.rest
