"""Rows come in the same blocks wherever they are; a file that changes is an error, not a crash."""

import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers import ENGINES, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import localpower as lp
from localpower.core.errors import DataError
from localpower.data.readers.npy import place_npy
from localpower.data.source import open_source
from localpower.worker import shard as shards
from localpower.worker.shard import Shard
from localpower.worker.stored import Stored, StoredCSR, stamp
from localpower.worker.tasks import Measure, PowerSteps

DENSE = np.random.default_rng(0).standard_normal((1000, 6))
SPARSE = sparse.random_array((1000, 6), density=0.3, rng=np.random.default_rng(1), format="csr")
TINY = {
    "BLOCK_BYTES": 6 * 8 * 37,
    "LONG_BLOCK_ROWS": 1,
    "BLOCK_ENTRIES": 64,
}  # many blocks of few rows
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shard")


@pytest.fixture(scope="module")
def wholes(folder):
    """The same rows in memory and in files, dense and sparse."""
    np.save(folder / "c.npy", DENSE)
    np.save(folder / "f.npy", np.asfortranarray(DENSE))
    np.save(folder / "foreign.npy", DENSE.astype(">f8"))
    sparse.save_npz(folder / "s.npz", SPARSE, compressed=False)
    [stored] = open_source(folder / "s.npz").pieces
    return {
        "dense": [DENSE, np.asfortranarray(DENSE)]
        + [place_npy(folder / f"{name}.npy") for name in ("c", "f", "foreign")],
        "sparse": [SPARSE, stored],
    }


@pytest.fixture
def _small_blocks():
    with small_blocks():
        yield


@contextmanager
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TINY.items():
            patch.setattr(shards, name, value)
        yield


def bits(block):
    if isinstance(block, np.ndarray):
        assert block.flags.c_contiguous
        return block.dtype, block.shape, block.tobytes()
    parts = block.data, block.indices.astype(int), block.indptr.astype(int)
    return block.dtype, block.shape, *(part.tobytes() for part in parts)


def blocks(pieces, kind=float):
    return [bits(block) for block in Shard(tuple(pieces), 6, np.dtype(kind)).blocks()]


@given(data=st.data(), form=st.sampled_from(["dense", "sparse"]))
@settings(max_examples=80)
def test_blocks_are_the_same_however_rows_are_cut_and_wherever_they_are(wholes, data, form):
    with small_blocks():
        cuts = sorted(data.draw(st.sets(st.integers(1, 999), max_size=6)))
        ends = zip([0, *cuts], [*cuts, 1000], strict=True)
        choice = st.sampled_from(wholes[form])
        pieces = [shards.cut(data.draw(choice), start, stop) for start, stop in ends]
        expected = blocks([wholes[form][0]])
        assert len(expected) > 10
        assert blocks(pieces) == expected


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("kind", ["f2", "f4", ">f4", "i4", "u1", "?", "f8", ">i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_of_a_file_of_any_type_equal_those_of_the_array(tmp_path, kind, order):
    array = np.asarray(DENSE * 3, dtype=kind, order=order)
    np.save(tmp_path / "x.npy", array)
    for work in (np.float32, np.float64):
        assert blocks([place_npy(tmp_path / "x.npy")], work) == blocks([array], work)


@pytest.mark.usefixtures("_small_blocks")
def test_blocks_tell_what_was_read(wholes):
    for stored in (*wholes["dense"][2:], wholes["sparse"][1]):
        read = []
        count = len(list(Shard((stored,), 6, np.dtype(float)).blocks(read.append)))
        overlap = 0 if isinstance(stored, Stored) else (count - 1) * stored.indptr.dtype.itemsize
        assert sum(read) == stored.nbytes + overlap


def test_blocks_take_no_more_than_the_limit():
    shard = Shard((DENSE,), 6, np.dtype(float), limit=6 * 8 * 10)
    assert {block.shape[0] for block in shard.blocks()} == {10}
    assert {len(b) for b in Shard((DENSE,), 6, np.dtype(float), limit=1).blocks()} == {1}


@pytest.mark.usefixtures("_small_blocks")
def test_dense_and_sparse_pieces_do_not_share_blocks(wholes):
    pieces = wholes["dense"][2].cut(0, 50), wholes["sparse"][1].cut(0, 30), DENSE[:5]
    found = [block.shape[0] for block in Shard(pieces, 6, np.dtype(float)).blocks()]
    assert sum(found) == 85
    assert found[-1] == 5


@pytest.mark.usefixtures("_small_blocks")
def test_a_stored_shard_in_memory_is_the_same_shard(wholes):
    stored = Shard((wholes["dense"][3].cut(3, 99), wholes["sparse"][1]), 6, np.dtype(float))
    read = []
    loaded = stored.loaded(read.append)
    assert (loaded.stored, sum(read)) == (0, stored.stored)
    assert blocks(loaded.pieces) == blocks(stored.pieces)


def test_entries_and_sizes_are_known_without_reading(wholes):
    stored = wholes["sparse"][1]
    part = stored.cut(100, 700)
    assert (part.shape, part.nnz) == ((600, 6), SPARSE[100:700].nnz)
    np.testing.assert_array_equal(part.read().toarray(), SPARSE[100:700].toarray())
    np.testing.assert_array_equal(part.cut(5, 9).read().toarray(), SPARSE[105:109].toarray())
    assert Shard((stored, DENSE), 6, np.dtype(float)).entries == SPARSE.nnz + DENSE.size


def raw(path, array):
    array.tofile(path)
    return Stored(str(path), 0, array.dtype, array.shape, stamp(path))


def csr_files(folder, columns=3, base=0, **change):
    parts = {"data": [1.0, 2.0, 3.0], "indices": [0, 2, 1], "indptr": [0, 2, 3], **change}
    kinds = {"data": float, "indices": np.int32, "indptr": np.int64}
    stored = [raw(folder / name, np.array(parts[name], kinds[name])) for name in kinds]
    return StoredCSR(*stored, columns, 0, len(parts["data"]), base)


def test_unsorted_and_repeated_entries_in_files_are_brought_in_order(tmp_path):
    there = csr_files(tmp_path, indices=[2, 2, 1]).read()
    assert there.has_canonical_format
    np.testing.assert_array_equal(there.toarray(), [[0, 0, 3], [0, 3, 0]])


def test_columns_may_be_counted_from_one(tmp_path):
    there = csr_files(tmp_path, indices=[1, 3, 2], base=1).read()
    np.testing.assert_array_equal(there.toarray(), [[1, 0, 2], [0, 3, 0]])


@pytest.mark.parametrize(
    "change",
    [
        {"indices": [0, 3, 1]},
        {"indices": [0, -1, 1]},
        {"indptr": [0, 3, 2]},
        {"indptr": [1, 2, 3]},
        {"indptr": [0, -(2**40), 3]},
        {"indptr": [0, 2**40, 3]},
        {"indptr": [0, 2**32 + 2, 3]},
        {"indptr": [0, 2, 2**40]},
        {"indptr": [0, 2, 4]},
        {"indptr": [0, 2, -1]},
        {"base": 1},
    ],
    ids=str,
)
def test_files_that_are_no_csr_matrix_are_refused_block_by_block_too(tmp_path, change):
    stored = csr_files(tmp_path, **change)
    with pytest.raises(DataError, match=str(tmp_path)):
        stored.read()
    with pytest.raises(DataError, match=str(tmp_path)):
        [stored.cut(row, row + 1).read() for row in range(2)]


# A file that changes while it is in use


def shrink(path):
    os.truncate(path, os.path.getsize(path) // 2)


def rewrite(path):
    np.save(path, np.zeros((28 * MIB // 2048, 256)))
    os.utime(path, ns=(1, 1))


def replace_file(path):
    np.save(f"{path}.new.npy", np.zeros((28 * MIB // 2048, 256)))
    os.replace(f"{path}.new.npy", path)


def remove(path):
    os.unlink(path)


LARGE = np.random.default_rng(2).standard_normal((14336, 256)) * 0.9 ** np.arange(256)


@pytest.fixture
def large(tmp_path):
    """28 MiB of rows: more than the smallest budget holds."""
    np.save(tmp_path / "rows.npy", LARGE)
    return tmp_path / "rows.npy"


@pytest.mark.parametrize("spoil", [shrink, rewrite, replace_file, remove])
@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("workers", [1, 8])
def test_a_file_that_changes_in_the_middle_of_a_run_is_a_data_error_that_names_it(
    large, spoil, engine, workers
):
    def callback(record, state):
        if record.round == 2:
            spoil(large)

    with pytest.raises(DataError, match=r"rows\.npy"):
        lp.svd(
            large,
            2,
            method="local_power",
            engine=engine,
            workers=workers,
            memory="16MiB",
            callback=callback,
            rng=0,
        )


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_a_brought_engine_is_usable_after_a_file_has_changed(large, engine):
    reference = lp.svd(DENSE, 2, workers=3, engine="inline", rng=0)
    with pytest.raises(DataError, match=r"rows\.npy"):
        lp.svd(
            large,
            2,
            method="dpi",
            engine=engine,
            memory="16MiB",
            callback=lambda *_: shrink(large),
        )
    assert same_bits(lp.svd(DENSE, 2, workers=3, engine=engine, rng=0), reference)


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_a_file_that_is_kept_in_memory_may_change_after_it_was_read(large, engine):
    options = {"method": "dpi", "engine": engine, "workers": 3, "max_rounds": 2, "rng": 0}
    expected = lp.svd(large, 2, **options)
    assert expected.run["kept"] == "run"
    assert same_bits(lp.svd(large, 2, callback=lambda *_: shrink(large), **options), expected)


def test_a_file_that_shrinks_between_opening_and_running_is_a_data_error(large):
    with lp.read(large) as source:
        shrink(large)
        with pytest.raises(DataError, match=r"rows\.npy was changed while it was in use"):
            lp.svd(source, 2, rng=0)


def replaced(path):
    """Put another file of the same size and time of change in the place of one."""
    old = path.stat()
    other = path.with_name("other.npy")
    other.write_bytes(path.read_bytes()[:-8] + np.float64(1e6).tobytes())
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    os.replace(other, path)


def overwritten(path):
    """Write other content into the same file, and set its time of change back."""
    old = path.stat()
    with open(path, "r+b") as stream:
        stream.seek(-8, os.SEEK_END)
        stream.write(np.float64(1e6).tobytes())
    while path.stat().st_ctime_ns == old.st_ctime_ns:  # clocks of file systems tick slowly
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))


@pytest.mark.parametrize("change", [replaced, overwritten])
@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_other_content_of_the_same_size_and_time_of_change_is_noticed(large, change, engine):
    with lp.read(large) as source:
        old = large.stat()
        change(large)
        new = large.stat()
        assert (new.st_size, new.st_mtime_ns) == (old.st_size, old.st_mtime_ns)
        with pytest.raises(DataError, match=r"rows\.npy was changed while it was in use"):
            lp.svd(source, 2, engine=engine, rng=0)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("change", [replaced, overwritten, shrink])
@pytest.mark.parametrize("part", ["dense", "data", "indices", "indptr"])
def test_a_change_in_the_middle_of_a_pass_is_noticed_and_files_are_closed(tmp_path, part, change):
    dense = raw(tmp_path / "dense", DENSE)
    parts = {"data": SPARSE.data, "indices": SPARSE.indices, "indptr": SPARSE.indptr}
    piece = dense if part == "dense" else csr_files(tmp_path, 6, **parts)
    rows = Shard((piece,), 6, np.dtype(float)).blocks()
    next(rows)
    change(tmp_path / part)
    with pytest.raises(DataError, match=f"{part} was changed while it was in use"):
        list(rows)
    assert [file for file in psutil.Process().open_files() if str(tmp_path) in file.path] == []


@pytest.mark.usefixtures("_small_blocks")
def test_a_pass_that_is_left_closes_its_files(tmp_path):
    rows = Shard((raw(tmp_path / "dense", DENSE),), 6, np.dtype(float)).blocks()
    next(rows)
    assert [file.path for file in psutil.Process().open_files() if str(tmp_path) in file.path]
    rows.close()
    assert [file for file in psutil.Process().open_files() if str(tmp_path) in file.path] == []


def test_a_file_with_another_inode_number_alone_says_what_that_may_mean(tmp_path):
    stored = raw(tmp_path / "x.bin", np.arange(6.0))
    *same, inode = stored.stamp
    elsewhere = replace(stored, stamp=(*same, inode + 1))
    with pytest.raises(DataError, match=rf"its inode number is {inode} here and was {inode + 1}"):
        elsewhere.read()


# How long rows are kept


P, ROUNDS = 3, 2
BUDGETS = {"run": "40MiB", "task": "20MiB", "block": "16MiB"}  # 4 shards of 7 MiB, 2 at once


def run(path, memory, engine, workers=4):
    options = {"method": f"local_power:steps={P}", "max_rounds": ROUNDS, "rng": 0, "return_u": True}
    return lp.svd(path, 2, memory=memory, engine=engine, workers=workers, **options)


def reads(result):
    """Bytes read in each round, in files' sizes."""
    return {
        "all": result.ledger.bytes_read / (28 * MIB),
        "rounds": [record.bytes_read / (28 * MIB) for record in result.history],
    }


def expected_reads(kept, result):
    per_round = {"run": 0, "task": 1, "block": P}[kept]
    others = [r.task for r in result.ledger.records if r.phase != "iterate" and r.task != "Prepare"]
    passes = {"ProjectRows": 1 if kept == "task" else 2}
    outside = 1 if kept == "run" else sum(passes.get(task, 1) for task in others)
    return {"all": outside + ROUNDS * per_round, "rounds": [per_round] * ROUNDS}


@pytest.mark.parametrize("kept", BUDGETS)
@pytest.mark.parametrize("engine", ["threads:2", "processes:2"], indirect=True)
def test_the_ledger_tells_exactly_what_was_read(large, kept, engine):
    result = run(large, BUDGETS[kept], engine)
    assert result.run["kept"] == kept
    assert reads(result) == expected_reads(kept, result)
    assert [r.bytes_read for r in result.ledger.phase("iterate").records] == [
        record.bytes_read for record in result.history
    ]


def test_the_ledger_of_the_reference_engine_tells_exactly_what_was_read(large):
    for kept, memory, workers in (("run", "40MiB", 1), ("task", "16MiB", 4), ("block", "16MiB", 1)):
        result = run(large, memory, "inline", workers)
        assert result.run["kept"] == kept
        assert reads(result) == expected_reads(kept, result)


def test_rows_in_memory_are_not_read(large):
    assert run(np.load(large), "16MiB", "threads:2").ledger.bytes_read == 0


@pytest.mark.parametrize("engine", ["processes:2"], indirect=True)
def test_bits_do_not_depend_on_how_long_rows_are_kept_nor_on_the_engine(large, engine):
    reference = run(np.load(large), "1GiB", "inline")
    for where in ("inline", "threads:2", engine):
        for memory in BUDGETS.values():
            result = run(large, memory, where)
            assert set(result.run["kernels"]) == {"products"}
            assert same_bits(result, reference)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("engine", ["inline", "processes:2"], indirect=True)
def test_a_task_gives_the_same_bits_however_long_its_rows_are_kept(wholes, form, engine):
    Z = np.linalg.qr(np.random.default_rng(3).standard_normal((6, 2)))[0]
    whole = Shard((wholes[form][-1],), 6, np.dtype(float))
    found, read = [], []
    for keep in ("run", "task", "block"):
        engine.place([replace(whole, keep=keep)] * 2)
        found.append(engine.sum(PowerSteps(Z, P)).product.tobytes())
        read.append(engine.sum(Measure(PowerSteps(Z, P))).read / whole.stored / 2)
    engine.place([replace(whole, pieces=(wholes[form][0],))] * 2)
    found.append(engine.sum(PowerSteps(Z, P)).product.tobytes())
    assert len(set(found)) == 1
    assert read == [0, 1, P]  # in the second round


@pytest.mark.parametrize("method", ["gram", "dpi"])
@pytest.mark.parametrize("offset", [1, 4])
def test_rows_that_are_not_aligned_give_the_same_bits(method, offset):
    odd = np.empty(DENSE.nbytes + 8, np.uint8)[offset:][: DENSE.nbytes].view(float)
    odd = odd.reshape(DENSE.shape)
    odd[:] = DENSE
    assert not odd.flags.aligned
    options = {"method": method, "workers": 3, "engine": "inline", "rng": 0}
    assert same_bits(lp.svd(odd, 2, **options), lp.svd(DENSE, 2, **options))


@pytest.mark.parametrize("engine", ["processes:2"], indirect=True)
def test_files_of_the_other_byte_order_reach_worker_processes(wholes, engine):
    expected = lp.svd(DENSE, 2, workers=3, engine="inline", rng=0)
    foreign = Path(wholes["dense"][4].path)
    for data in (foreign, np.load(foreign, mmap_mode="r")):
        assert same_bits(lp.svd(data, 2, workers=3, engine=engine, rng=0), expected)
