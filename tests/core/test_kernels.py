"""Compiled kernels and their numpy stand-ins compute what they say, at every size and type."""

import itertools
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from localpower.core import linalg
from localpower.worker import grams, kernels, products
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Shard

TYPES = [np.float32, np.float64]


@pytest.fixture(params=["wide", "narrow", "numpy"])
def which(request, monkeypatch):
    """Run a test with each; the compiled ones are built wherever there is a compiler."""
    take(request.param, monkeypatch)
    return request.param


def take(which, monkeypatch):
    if which == "numpy":
        monkeypatch.setattr(kernels, "LIBRARY", None)
        return
    if kernels.LIBRARY is None:
        pytest.skip("the kernels were not compiled: no C compiler when the package was built")
    if which == "narrow":
        monkeypatch.setattr(kernels.LIBRARY, "bytes_each", kernels.NARROW)
    elif kernels.LIBRARY.bytes_each == kernels.NARROW:
        pytest.skip("this machine has no wide vectors")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [1, 4, 9, 10, 15, 32])
def test_wide_vectors_do_not_change_a_bit(monkeypatch, dtype, width):
    rng = np.random.default_rng(width)
    X = rng.standard_normal((1100, 300)).astype(dtype)
    Z, shift = rng.standard_normal((300, width)).astype(dtype), X.mean(axis=0)
    blocks = [X, sparse.csr_array(np.where(X > 1, X, 0))]
    take("wide", monkeypatch)
    wide = [product(Z, less, block) for block in blocks for less in (None, shift)]
    take("narrow", monkeypatch)
    narrow = [product(Z, less, block) for block in blocks for less in (None, shift)]
    np.testing.assert_array_equal(wide, narrow)


def test_the_kernels_are_compiled_where_there_is_a_compiler():
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    assert kernels.LIBRARY is not None


def product(Z, shift, *blocks):
    kernel = products.GramProduct(Z)
    for block in blocks:
        kernel.add(block, shift)
    return kernel.result()


@pytest.mark.parametrize("r", range(26))
@pytest.mark.parametrize("columns", [0, 100, 43_000, 44_000, 60_000, 70_000, 10**7])
def test_panels_have_every_column_once_and_up_to_twelve(r, columns):
    for cuts in (products.panels(r, columns), products.sweeps(r, columns)):
        assert [column for start, stop in cuts for column in range(start, stop)] == list(range(r))
    widths = [stop - start for start, stop in products.panels(r, columns)]
    widest = 12 if columns < 43_691 else 8 if columns <= 65_536 else 4
    assert max(widths) <= widest
    assert len(widths) <= r // 4 + 1


@pytest.mark.parametrize("r", [1, 8, 11, 16, 21])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_panels_and_sweeps_change_no_bit(monkeypatch, r, center, dtype):
    rng = np.random.default_rng(r)
    X = sparse.random_array((3000, 50), density=0.2, format="csr", rng=rng, dtype=dtype)
    Z, shift = rng.standard_normal((50, r)).astype(dtype), rng.random(50).astype(dtype)
    found = []
    for cache, staying in ((8 << 20, 5 << 20), (1 << 12, 0), (0, 0), (1 << 13, 1 << 30)):
        monkeypatch.setattr(products, "CACHE", cache)
        monkeypatch.setattr(products, "STAYING", staying)
        matrix = LocalMatrix(Shard((X,), 50, X.dtype))
        matrix.prepare(shift if center else None, 1.0)
        found.append(matrix.product(Z))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def expected(Z, shift, *blocks):
    """The definition, in float64."""
    rows = np.vstack([b if isinstance(b, np.ndarray) else b.toarray() for b in blocks])
    rows = rows.astype(float) - (0.0 if shift is None else shift.astype(float))
    T = rows @ Z.astype(float)
    # what the sums would be without cancellation: the yardstick of rounding errors
    size = np.abs(rows).T @ (np.abs(rows) @ np.abs(Z.astype(float)))
    return rows.T @ T, size


def close(found, exact, size, dtype):
    """Within a few roundings, of sums of the magnitudes that were summed."""
    eps = np.finfo(dtype).eps
    return (np.abs(found - exact) <= 40 * eps * np.maximum(size, np.finfo(dtype).tiny)).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [1, 3, 100, 255, 256, 257, 600])
@pytest.mark.parametrize("width", [1, 3, 4, 5, 8, 10, 12, 13, 16, 17, 24, 25, 40])
@pytest.mark.parametrize("centred", [False, True])
def test_products_are_those_of_the_definition_at_every_width(which, dtype, columns, width, centred):
    rng = np.random.default_rng([columns, width])
    rows = [1, 2, 7, 13, 48, 49, 101][width % 7]
    X = rng.standard_normal((rows, columns)).astype(dtype)
    Z = rng.standard_normal((columns, width)).astype(dtype)
    shift = rng.standard_normal(columns).astype(dtype) if centred else None
    sparse_X = sparse.csr_array(np.where(rng.random(X.shape) < 0.3, X, 0))
    for blocks in ([X], [sparse_X], [X, sparse_X, X[:1]]):
        assert close(product(Z, shift, *blocks), *expected(Z, shift, *blocks), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [1, 7, 8, 9, 16, 17, 23, 24, 25, 47, 49, 73, 100])
@pytest.mark.parametrize("centred", [False, True])
def test_gram_matrices_are_exact_in_float64_at_every_width(which, dtype, columns, centred):
    rng = np.random.default_rng(columns)
    shift = rng.standard_normal(columns).astype(dtype) if centred else None
    blocks = [rng.standard_normal((rows, columns)).astype(dtype) for rows in (1, 255, 257, 520)]
    total = grams.GramSum(columns, np.dtype(dtype))
    for block in blocks:
        total.add(block, shift)
    X = np.vstack(blocks).astype(float) - (0.0 if shift is None else shift)
    assert close(total.result(), X.T @ X, np.abs(X).T @ np.abs(X), np.float64)


@given(rows=st.integers(1, 120), columns=st.integers(1, 40), width=st.integers(1, 33),
       seed=st.integers(0, 2**32 - 1))  # fmt: skip
def test_nothing_outside_of_the_arrays_is_touched(rows, columns, width, seed):
    """The arrays stand in the middle of larger ones, whose rest is NaN and stays so."""
    rng = np.random.default_rng(seed)

    def embedded(values):
        room = np.full(values.size + 128, np.nan)
        room[64 : 64 + values.size] = values.ravel()
        return room[64 : 64 + values.size].reshape(values.shape)

    X, Z = embedded(rng.standard_normal((rows, columns))), rng.standard_normal((columns, width))
    found = product(embedded(Z), None, X)
    assert close(found, *expected(Z, None, X), float)
    found = product(embedded(Z), None, sparse.csr_array(X))
    assert close(found, *expected(Z, None, X), float)


def test_matrices_with_long_indices_and_empty_rows_are_multiplied(which):
    X = sparse.csr_array(np.diag([0.0, 2.0, 0.0, 3.0]))
    X.indptr, X.indices = X.indptr.astype(np.int64), X.indices.astype(np.int64)
    np.testing.assert_array_equal(product(np.eye(4), None, X), np.diag([0.0, 4.0, 0.0, 9.0]))
    none = sparse.csr_array((3, 4))
    assert not product(np.eye(4), None, none).any()


def test_blocks_of_another_type_or_width_are_refused():
    with pytest.raises(TypeError, match="float32"):
        product(np.eye(3), None, np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match=r"\(2, 4\)"):
        product(np.eye(3), None, np.ones((2, 4)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_deviations_do_not_drown_in_a_large_mean(which, dtype, offset):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((1000, 7)) + offset).astype(dtype)
    exact = X.astype(np.longdouble)
    _, _, mean, m2 = kernels.statistics(X, 0.5)
    np.testing.assert_allclose(mean, exact.mean(axis=0) / 2, rtol=1e-14)
    spread = np.square(exact - exact.mean(axis=0)).sum(axis=0) / 4
    np.testing.assert_allclose(m2, spread.astype(float), rtol=1e-9)


@pytest.mark.parametrize("dtype", TYPES)
def test_extremes_are_exact_and_refuse_what_is_not_finite(which, dtype):
    X = np.random.default_rng(0).standard_normal((50, 9)).astype(dtype)
    low, high, _, _ = kernels.statistics(X, 1.0)
    np.testing.assert_array_equal(low, X.min(axis=0))
    np.testing.assert_array_equal(high, X.max(axis=0))
    for value in (np.nan, np.inf, -np.inf):
        for at in ((0, 0), (49, 8), (20, 3)):
            bad = X.copy()
            bad[at] = value
            assert kernels.statistics(bad, 1.0) is None


@pytest.mark.parametrize("dtype", TYPES)
def test_a_shard_forms_its_gram_matrix_only_where_that_is_cheaper(dtype):
    def choice(rows, columns, products, width=5):
        matrix = LocalMatrix(Shard((np.ones((rows, columns), dtype),), columns, np.dtype(dtype)))
        matrix.prepare(None, 1.0, products=products, width=width)
        return matrix.kernel

    assert choice(1000, 50, products=100) == "gram"
    assert choice(1000, 50, products=1) == "products"
    assert choice(1000, 500, products=10) == "products"
    assert choice(40, 50, products=1000) == "products"  # larger than the rows themselves


@pytest.mark.parametrize("dtype", TYPES)
def test_both_kernels_of_a_shard_agree(dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 20)).astype(dtype) + 3
    Z = np.linalg.qr(rng.standard_normal((20, 4)))[0].astype(dtype)
    matrix = LocalMatrix(Shard((X,), 20, np.dtype(dtype)))
    found = []
    for count in (0, 1000):
        matrix.prepare(X.mean(axis=0), rng.random(20) * 0 + 0.5, products=count, width=4)
        found.append(matrix.product(Z))
    assert matrix.kernel == "gram"
    assert np.abs(found[0] - found[1]).max() <= 100 * np.finfo(dtype).eps * np.abs(found[0]).max()


def test_numpy_does_the_work_when_told_to():
    code = "from localpower.worker import kernels; print(kernels.LIBRARY)"
    environment = {**os.environ, "LOCALPOWER_KERNELS": "numpy"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "None"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (63, 9), (200, 8), (1000, 300), (3, 0)])
def test_columns_become_rows(which, dtype, shape):
    X = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    columns = [np.ascontiguousarray(column) for column in X.T]
    for _ in range(20):
        out = np.full(shape, np.nan, dtype)
        kernels.interleave(columns, out)
        np.testing.assert_array_equal(out, X)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 8159, 8160, 8161, 100_000])
def test_bytes_are_counted(which, size):
    rng = np.random.default_rng(size)
    for text in (bytes(size), b"\n" * size, rng.integers(9, 12, size, np.uint8).tobytes()):
        assert kernels.occurrences(text, 10) == text.count(b"\n")


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("lines", [1, 2, 50])
def test_fields_are_found(which, count, lines):
    rng = np.random.default_rng(count * lines)
    words = [["1" * n for n in rng.integers(0, 20, count)] for _ in range(lines)]
    text = "".join(",".join(line) + "\n" for line in words).encode()
    offsets = kernels.fields(text, ord(","), count).tolist()
    parts = [text[a:b].decode() for a, b in itertools.pairwise(offsets)]
    assert parts[::2] == [word for line in words for word in line]
    assert set("".join(parts[1::2])) <= {",", "\n"}
    assert kernels.fields(text, ord(","), count + 1) is None


@pytest.mark.parametrize(
    "text",
    [b" 1,2\n", b"1 ,2\n", b"1, 2\n", b"1,2 \n", b"1,2\n 3,4\n", b"1,2", b"", b"1,2\n3\n4,5,6\n"],
)
def test_unusual_lines_are_not_cut_into_fields(which, text):
    assert kernels.fields(text, ord(","), 2) is None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("places", [np.int32, np.int64])
def test_statistics_of_entries_are_those_of_each_column(which, dtype, places):
    X = sparse.csr_array(np.array([[0, -2, 0, 5], [3, -1, 0, 0], [4, 0, 0, 0]], dtype))
    X.indices, X.indptr = X.indices.astype(places), X.indptr.astype(places)
    low, high, count, total = kernels.entries(X.indices, X.data, 4)
    np.testing.assert_array_equal(low, [3, -2, np.inf, 5])
    np.testing.assert_array_equal(high, [4, -1, -np.inf, 5])
    np.testing.assert_array_equal(count, [2, 2, 0, 1])
    np.testing.assert_array_equal(total, [7, -3, 0, 5])
    squares = kernels.deviations(X.indices, X.data, np.array([1.0, -2.0, 9.0, 3.0]))
    np.testing.assert_array_equal(squares, [13, 1, 0, 4])
    for bad in (np.nan, np.inf, -np.inf):
        X.data[2] = bad
        assert kernels.entries(X.indices, X.data, 4) is None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("way", ["product", "gram", "triangle"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_equal_rows_do_not_round_long_sums_one_way(which, dtype, way, kind):
    """Each addition of the same number loses the same digits: errors grow with their count."""
    rng = np.random.default_rng(3)
    count, rows = 50_000, rng.standard_normal((2, 3)).astype(dtype)
    X = np.repeat(rows, count, axis=0)
    matrix = LocalMatrix(Shard((X if kind == "dense" else sparse.csr_array(X),), 3, X.dtype))
    if way == "product":
        found = matrix.product(np.eye(3, dtype=dtype)).astype(float)
    else:
        found = matrix.gram() if way == "gram" else matrix.triangle()
        found = found.T @ found if way == "triangle" else found
    exact = rows.astype(np.longdouble)
    exact = (count * exact.T @ exact).astype(float)
    error = np.linalg.norm(found - exact, 2) / np.linalg.norm(exact, 2)
    assert error <= (40 if kind == "dense" else 500) * np.finfo(dtype).eps


@pytest.mark.parametrize("shape", [(256, 3), (300, 32), (8292, 5), (65_539, 33)])
def test_triangles_of_blocks_are_those_of_the_factorisation(shape):
    Y = np.random.default_rng(0).standard_normal(shape)
    Q, R = linalg.qr(Y)
    np.testing.assert_array_equal(R, linalg.triangular(Y))
    np.testing.assert_allclose(Q @ R, Y, atol=1e-12)
    np.testing.assert_allclose(Q.T @ Q, np.eye(shape[1]), atol=1e-13)


def test_a_library_of_other_sources_is_not_called(monkeypatch):
    if kernels.LIBRARY is None:
        pytest.skip("no kernels were compiled")
    monkeypatch.setattr(kernels, "INTERFACE", kernels.INTERFACE + 1)
    with pytest.warns(
        RuntimeWarning, match="compiled from other sources.*install localpower again"
    ):
        assert kernels._library() is None
