"""A Gram matrix of rows whose shift is not known yet: one pass over them, and no digits lost."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import EPS, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

import localpower as lp
from localpower.data.partition import partition
from localpower.data.source import open_source
from localpower.worker import shard as shards
from localpower.worker.host import ShardHost
from localpower.worker.local_matrix import LocalMatrix
from localpower.worker.shard import Shard
from localpower.worker.stored import Stored, stamp
from localpower.worker.tasks import Describe, GramTriangle, Prepare

ROWS, COLUMNS = 40_000, 100  # 30.5 MiB, more than the smallest memory holds
DRIFTS = {
    "alike": np.zeros,
    "a ramp": lambda n: np.linspace(0, 3, n),
    "two halves": lambda n: np.where(np.arange(n) < n // 2, 0.0, 1e3),
    "first rows far away": lambda n: np.where(np.arange(n) < n // 50, 1e6, 0.0),
    "last rows far away": lambda n: np.where(np.arange(n) < n - n // 50, 0.0, 1e6),
}


def drifting(kind, rows, columns, offset=0.0, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns)) * 0.95 ** np.arange(columns)
    X += offset * rng.standard_normal(columns)
    return (X + np.outer(DRIFTS[kind](rows), rng.random(columns))).astype(dtype)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return tmp_path_factory.mktemp("raw") / "rows"


def prepared(raw, X, shift, factor=1.0, ahead="", exponent=0):
    raw.write_bytes(X.tobytes())
    stored = Stored(str(raw), 0, X.dtype, X.shape, stamp(raw))
    matrix = LocalMatrix(Shard((stored,), X.shape[1], X.dtype, keep="block"))
    Describe(extremes=False, ahead=ahead)(matrix)
    Prepare(shift, factor, exponent)(matrix)
    return matrix


@pytest.fixture
def _small_blocks(monkeypatch):
    monkeypatch.setattr(shards, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(shards, "LONG_BLOCK_ROWS", 1)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("kind", DRIFTS)
@pytest.mark.parametrize("offset", [0.0, 3.0, 1e7])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scaled", [False, True])
def test_it_is_as_exact_as_one_of_rows_that_are_shifted_first(raw, kind, offset, dtype, scaled):
    X = drifting(kind, 3000, 12, offset, dtype)
    exact = X.astype(np.longdouble)
    shift = exact.mean(axis=0).astype(np.float64)
    factor = 1 / X.std(axis=0, dtype=float) if scaled else 1.0
    B = (exact - shift) * factor
    G = B.T @ B
    for ahead in ("", "centred"):
        found = prepared(raw, X, shift, factor, ahead).gram()
        assert np.abs(found - G).max() <= 2e-13 * np.linalg.norm(G.astype(float), 2) or (
            dtype == np.float32 and np.abs(found - G).max() <= 1e-6 * np.abs(G).max()
        )


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("scaled", [False, True])
def test_an_origin_far_from_the_mean_costs_no_digits_but_another_pass(raw, scaled):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200_000, 2))
    X[:256] += 1e6  # the first block
    shift, factor = X.mean(axis=0), 1 / X.std(axis=0) if scaled else 1.0
    B = (X.astype(np.longdouble) - shift) * factor
    G = (B.T @ B).astype(float)
    matrix = prepared(raw, X, shift, factor, "centred")
    assert np.abs(matrix.gram() - G).max() <= 16 * EPS * np.linalg.norm(G, 2)
    assert matrix.bytes_read == 2 * X.nbytes


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("units", [1.0, 10.0 ** np.arange(12)], ids=["one unit", "many"])
def test_columns_that_drift_together_take_no_other_pass(raw, units):
    X = (drifting("a ramp", 3000, 12) + np.linspace(0, 30, 3000)[:, None]) * units
    matrix = prepared(raw, X, X.mean(axis=0), 1 / X.std(axis=0), ahead="centred")
    matrix.gram()
    assert matrix.bytes_read == X.nbytes


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("kind", DRIFTS)
@pytest.mark.parametrize("ahead", ["centred", "plain"])
@pytest.mark.parametrize("center", [False, True])
def test_bits_do_not_depend_on_whether_it_was_formed_ahead(raw, kind, ahead, center):
    X = drifting(kind, 2000, 7, offset=2.0)
    shift = X.mean(axis=0) if center else None
    for factor in (1.0, 1 / X.std(axis=0)):
        early = prepared(raw, X, shift, factor, ahead).gram()
        assert early.tobytes() == prepared(raw, X, shift, factor).gram().tobytes()


@pytest.mark.usefixtures("_small_blocks")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(powers=st.lists(st.integers(-900, 900), min_size=3, max_size=3), center=st.booleans())
def test_units_of_columns_change_no_bit_of_it(raw, powers, center):
    A = np.random.default_rng(0).standard_normal((600, 3)) + 2
    grams = []
    for X, exponent in ((A, 0), (np.ldexp(A, powers), np.array(powers))):
        shift = np.ldexp(A.mean(axis=0), exponent) if center else None
        grams.append(prepared(raw, X, shift, ahead="centred", exponent=exponent).gram())
    assert grams[0].tobytes() == grams[1].tobytes()


def test_it_is_taken_once_and_formed_again_for_another_shift(raw):
    X = drifting("alike", 2000, 7, offset=2.0)
    matrix = prepared(raw, X, X.mean(axis=0), ahead="centred")
    first = matrix.gram()
    assert matrix.gram().tobytes() == first.tobytes()
    Prepare(None, 1.0)(matrix)
    np.testing.assert_allclose(matrix.gram(), X.T @ X, rtol=1e-12, atol=1e-9)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("early") / "rows.npy"
    np.save(path, drifting("alike", ROWS, COLUMNS, offset=0.5))
    return path


def passes(result):
    return result.ledger.bytes_read / (8 * ROWS * COLUMNS)


@pytest.mark.parametrize("how", [{}, {"center": True}, {"center": True, "scale": "std"}])
def test_gram_reads_a_file_once_and_a_merged_start_spares_a_pass(file, how):
    for method in ("gram", "auto", "local_ritz"):
        result = lp.svd(file, 3, method, memory="16MiB", tol=1e-6, rng=0, **how)
        assert result.run["kept"] != "run"
        assert result.history[0].bytes_read == 0
        assert passes(result) == (1 + len(result.history) if method == "local_ritz" else 1)


def test_a_start_that_was_given_forms_no_gram_matrix(file):
    first = lp.svd(file, 3, "local_ritz", memory="16MiB", tol=1e-6, rng=0)
    again = lp.svd(file, 3, "local_ritz", memory="16MiB", tol=1e-6, rng=0, warm_start=first)
    assert again.ledger.phase("iterate").bytes_read > 0


def test_plans_count_the_passes_that_runs_take(file):
    plan = lp.plan(file, 3, memory="16MiB", workers=4)
    for method in ("gram", "tsqr", "local_ritz", "block_lanczos", "dpi"):
        cost = plan[method]
        options = {"memory": "16MiB", "tol": 1e-6, "workers": 4, "rng": 0}
        result = lp.svd(file, 3, cost.method, max_rounds=200, **options)
        assert cost.passes - cost.rounds == passes(result) - len(result.history)


@pytest.mark.parametrize("method", ["gram", "local_ritz", "block_krylov"])
@pytest.mark.parametrize("center", [False, True])
def test_bits_do_not_depend_on_memory_nor_on_the_engine(file, method, center):
    options = {"workers": 4, "center": center, "tol": 1e-6, "rng": 0}
    whole = lp.svd(np.load(file), 3, method, engine="inline", **options)
    for engine in ("inline", "threads:2"):
        for memory in ("16MiB", "1GiB"):
            found = lp.svd(file, 3, method, memory=memory, engine=engine, **options)
            assert same_bits(found, whole)


def test_what_is_kept_of_rows_in_files_has_its_part_of_memory(file):
    with open_source(file, memory="16MiB") as source:
        cut = partition(source, 50, "contiguous", np.random.default_rng(0), 2).shards
    assert cut[0].spare == 8 * (1 << 20) // 50
    for spare, times in ((80_000, 1), (79_999, 3)):  # statistics, and every time it is needed
        matrix = LocalMatrix(replace(cut[0], spare=spare))
        matrix.moments(ahead="plain")
        matrix.kept_gram()
        matrix.kept_gram()
        assert matrix.bytes_read == times * cut[0].stored


@pytest.mark.parametrize(("kind", "times"), [("float32", 1), ("sparse", 2)])
def test_plans_count_the_passes_over_other_rows(tmp_path, kind, times):
    X = drifting("alike", 60_000, 80, dtype=np.float32)
    path, size = tmp_path / "rows.npy", X.nbytes
    np.save(path, X)
    if kind == "sparse":
        rows = sparse.csr_array(np.where(X > 0, X, 0).astype(float))
        path, size = tmp_path / "rows.npz", 12 * rows.nnz
        sparse.save_npz(path, rows, compressed=False)
    found = lp.svd(path, 3, "gram", memory="16MiB", workers=2, rng=0)
    assert found.run["kept"] != "run"
    assert round(found.ledger.bytes_read / size) == times
    assert lp.plan(path, 3, memory="16MiB", workers=2)["gram"].passes == times


@pytest.mark.parametrize("method", ["gram", "local_ritz"])
@pytest.mark.parametrize("center", [False, True])
def test_neither_bits_nor_plans_are_wrong_where_too_much_would_be_kept(tmp_path, method, center):
    X = drifting("alike", 28_800, 150, offset=0.5)  # 48 times 180 kB are more than 8 MiB
    np.save(tmp_path / "rows.npy", X)
    options = {"workers": 48, "center": center, "tol": 1e-6, "rng": 0, "engine": "inline"}
    whole = lp.svd(X, 3, method, **options)
    for memory, times in (("16MiB", 3), ("20MiB", 1)):
        found = lp.svd(tmp_path / "rows.npy", 3, method, memory=memory, **options)
        assert same_bits(found, whole)
        if method == "gram":
            assert found.run["kept"] != "run"
            assert found.ledger.bytes_read == times * X.nbytes
            plan = lp.plan(tmp_path / "rows.npy", 3, memory=memory, workers=48, center=center)
            assert plan["gram"].passes == times


@pytest.mark.usefixtures("_small_blocks")
def test_copies_of_a_shard_have_their_own(raw):
    X = drifting("alike", 3000, 8, offset=2.0)
    raw.write_bytes(X.tobytes())
    host, stored = ShardHost(), Stored(str(raw), 0, X.dtype, X.shape, stamp(raw))
    host.hold(0, Shard((stored,), 8, X.dtype, keep="block"))
    host.run(0, Describe(extremes=False, ahead="centred"))
    host.run(0, Prepare(X.mean(axis=0), 1 / X.std(axis=0)))
    first, second = (host.copy().run(0, GramTriangle()).packed for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("off", [0.3, 1.0, 10.0])
def test_shards_with_other_means_than_all_rows_take_no_other_pass(tmp_path, scale, off):
    rng = np.random.default_rng(0)
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", rng.standard_normal((8000, 80)) + off * rng.random(80))
    result = lp.svd(tmp_path, 3, "gram", center=True, scale=scale, memory="16MiB", rng=0)
    assert result.run["kept"] != "run"
    assert result.ledger.bytes_read == 4 * 8000 * 80 * 8


@pytest.mark.parametrize("value", [1999.3, 12345.678, 2024.1, 0.1])
def test_a_constant_column_takes_no_other_pass(raw, value):
    X = np.random.default_rng(0).standard_normal((3000, 12))
    X[:, 5] = value
    matrix = prepared(raw, X, X.mean(axis=0), ahead="centred")
    B = X - X.mean(axis=0)
    np.testing.assert_allclose(matrix.gram(), B.T @ B, rtol=0, atol=1e-9)
    assert matrix.bytes_read == X.nbytes


def test_the_trace_has_the_same_bits_in_memory_and_in_files(raw):
    X = drifting("a ramp", 2000, 7, offset=2.0)
    shift, factor = X.mean(axis=0), 1 / X.std(axis=0)
    whole = LocalMatrix(Shard((X,), 7, X.dtype))
    Prepare(shift, factor)(whole)
    stored = prepared(raw, X, shift, factor, "centred")
    stored.kept_gram()
    assert stored.trace() == prepared(raw, X, shift, factor).trace() == whole.trace()
    assert whole.trace() == pytest.approx(np.square((X - shift) * factor).sum(), rel=1e-13)
