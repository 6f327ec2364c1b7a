"""Rows that come in blocks are kept in memory, then in files; a cache saves the next parse."""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import localpower as lp
from localpower.core.errors import DataError
from localpower.data import detect
from localpower.data.blocks import Block
from localpower.data.cache import _seal
from localpower.data.source import open_source
from localpower.data.spool import RowStorage, keep
from localpower.worker.shard import is_stored
from localpower.worker.stored import Stored, StoredCSR

X = np.random.default_rng(0).standard_normal((600, 7)) * (np.arange(7) % 3 > 0)
KINDS = {"dense": np.asarray, "sparse": sparse.csr_array}
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _collections_look_at_new_objects_only():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory, monkeypatch):
    """Where temporary files go; none is left after a test."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    gc.collect()
    assert list(folder.iterdir()) == []


def blocks(kind, ends=(100, 250, 251, 400), dtype=float):
    for part in np.split(X.astype(dtype), ends):
        yield Block(KINDS[kind](part), part[:, 1] > 0)


def dense(piece):
    piece = piece.read() if is_stored(piece) else piece
    return piece if isinstance(piece, np.ndarray) else piece.toarray()


def rows(pieces):
    return np.concatenate([dense(piece) for piece in pieces])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_kept_in_memory_as_long_as_there_is_room(kind, dtype, scratch):
    for limit in (0, 100, 10_000, 20_000, 30_000, 1 << 20):
        room = RowStorage(limit)
        table = keep(blocks(kind, dtype=dtype), room, "x")
        stored = [is_stored(piece) for piece in table.pieces]
        assert stored in ([True], [False])  # small blocks are joined
        assert stored[0] == any(scratch.iterdir()) == (limit < 1 << 20 and room.left == limit)
        assert (table.columns, table.pieces[0].dtype) == (7, dtype)
        np.testing.assert_array_equal(rows(table.pieces), X.astype(dtype))
        np.testing.assert_array_equal(table.labels, X.astype(dtype)[:, 1] > 0)
        room.close()
        assert not any(scratch.iterdir())


@given(
    ends=st.sets(st.integers(0, 600), max_size=6).map(sorted),
    kind=st.sampled_from(sorted(KINDS)),
    limit=st.integers(0, 50_000),
)
def test_the_same_rows_are_kept_wherever_they_go(ends, kind, limit):
    room = RowStorage(limit)
    table = keep(blocks(kind, ends), room, "x")
    np.testing.assert_array_equal(rows(table.pieces), X)
    room.close()


def test_the_room_is_shared_by_tables():
    size = X.nbytes
    room = RowStorage(2 * size + 100)
    first, second, third = (keep(blocks("dense"), room, "x") for _ in range(3))
    assert [is_stored(table.pieces[0]) for table in (first, second, third)] == [False, False, True]
    assert room.left == 100
    room.close()


def test_a_sparse_table_in_files_is_a_stored_csr_matrix():
    room = RowStorage(0)
    [piece] = keep(blocks("sparse"), room, "x").pieces
    assert isinstance(piece, StoredCSR)
    assert piece.nnz == np.count_nonzero(X)
    np.testing.assert_array_equal(piece.cut(240, 260).read().toarray(), X[240:260])
    room.close()


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_blocks_that_do_not_go_together_are_refused(limit):
    room = RowStorage(limit)
    with pytest.raises(DataError, match="x: has dense and sparse blocks"):
        keep([*blocks("dense"), *blocks("sparse")], room, "x")
    for kind, wrap in KINDS.items():
        with pytest.raises(DataError, match="x: a block of 2 columns after 7 in the first"):
            keep([*blocks(kind), Block(wrap(X[:, :2]))], room, "x")
    room.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [0, 20_000, 1 << 20])
@pytest.mark.parametrize("types", [(np.float32, float), (float, np.float32), (float, "f4", float)])
def test_blocks_of_several_types_keep_their_numbers(kind, limit, types):
    room = RowStorage(limit)
    given = [block for dtype in types for block in blocks(kind, dtype=dtype)]
    table = keep(given, room, "x")
    expected = np.concatenate([X.astype(dtype).astype(float) for dtype in types])
    np.testing.assert_array_equal(rows(table.pieces), expected)
    assert np.result_type(*(piece.dtype for piece in table.pieces)) == np.float64
    room.close()


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_reader_that_fails_leaves_no_open_file(limit):
    def failing():
        yield from blocks("sparse")
        raise DataError("bad line")

    room = RowStorage(limit)
    with pytest.raises(DataError, match="bad line"):
        keep(failing(), room, "x")
    room.close()
    gc.collect()  # an open file would warn


def test_a_full_disk_is_an_error_before_it_is_full(monkeypatch):
    monkeypatch.setattr("localpower.data.spool.SPARE_DISK", 1 << 60)
    room = RowStorage(0)
    with pytest.raises(DataError, match=r"too little for .*free some, set TMPDIR or cache="):
        keep(blocks("dense"), room, "x")
    room.close()


# Temporary files


def stream(kind="dense", count=20):
    """Blocks of 1 MiB each."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield KINDS[kind](rng.standard_normal((4096, 32)))


@pytest.mark.parametrize("engine", ["inline", "processes:2"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_larger_than_memory_goes_through_files_that_are_gone_after_the_run(
    scratch, engine, kind
):
    seen = []
    options = {"max_rounds": 2, "rng": 0, "engine": engine, "workers": 4}
    result = lp.svd(
        stream(kind),
        2,
        memory="16MiB",
        callback=lambda *_: seen.extend(scratch.iterdir()),
        **options,
    )
    assert seen
    assert list(scratch.iterdir()) == []
    assert result.ledger.bytes_read > 0
    expected = lp.svd(stream(kind), 2, memory="1GiB", **options)
    assert expected.ledger.bytes_read == 0
    np.testing.assert_allclose(result.singular_values, expected.singular_values, rtol=1e-12)


def test_a_stream_in_files_gives_the_bits_of_the_stream_in_memory():
    options = {"max_rounds": 2, "rng": 0, "workers": 4, "method": "local_power:steps=1"}
    small, large = (lp.svd(stream(), 1, memory=m, **options) for m in ("16MiB", "1GiB"))
    assert small.run["kernels"] == large.run["kernels"] == {"products": 4}
    assert small.components.tobytes() == large.components.tobytes()


def test_temporary_files_are_gone_after_a_run_that_fails(scratch):
    def callback(record, state):
        assert any(scratch.iterdir())
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lp.svd(stream(), 2, memory="16MiB", callback=callback)
    assert list(scratch.iterdir()) == []


def test_temporary_files_are_gone_after_a_stream_that_fails(scratch):
    def failing():
        yield from stream()
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        lp.svd(failing(), 2, memory="16MiB")
    assert list(scratch.iterdir()) == []


def test_temporary_files_are_gone_when_the_source_is_closed(scratch):
    with lp.read(stream(), memory="16MiB") as source:
        assert source.stored == 20 * MIB
        first, again = (lp.svd(source, 1, max_rounds=1, rng=0) for _ in range(2))
        assert first.components.tobytes() == again.components.tobytes()
        assert any(scratch.iterdir())
    assert list(scratch.iterdir()) == []
    source.close()
    with pytest.raises(DataError, match=r"\.raw: No such file"):
        lp.svd(source, 1)


def test_temporary_files_are_gone_when_the_source_is_garbage(scratch):
    source = lp.read(stream(), memory="16MiB")
    assert any(scratch.iterdir())
    del source
    gc.collect()
    assert list(scratch.iterdir()) == []


# The cache


CSV = "".join(
    f"{a!r},{b!r},{c!r},{'xyz'[i % 3]}\n" for i, (a, b, c) in enumerate(X[:50, :3].tolist())
)
SVM = "".join(f"{i % 3} 1:{a!r} 3:{b!r}\n" for i, (a, b) in enumerate(X[:50, 1:3].tolist()))
TEXTS = {"csv": (CSV, {"label": 3, "header": False}), "svmlight": (SVM, {})}
SUFFIX = {"csv": "csv", "svmlight": "svm"}


@pytest.fixture(params=TEXTS)
def case(request, tmp_path):
    """A file, a function that opens it with the cache, and how often it was parsed."""
    content, options = TEXTS[request.param]
    path, cache = tmp_path / f"rows.{SUFFIX[request.param]}", tmp_path / "cache" / "deep"
    path.write_text(content)
    parses, form = [], detect.FORMATS[request.param]

    def counting(*arguments):
        parses.append(arguments)
        yield from form.read(*arguments)

    def take(**more):
        return lp.read(path, cache=cache, **options, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(detect.FORMATS, request.param, replace(form, read=counting))
        yield path, cache, take, parses


def entry(cache):
    [folder] = cache.iterdir()
    return folder


def test_the_second_time_is_not_parsed(case):
    _, cache, take, parses = case
    first, second = take(), take()
    assert len(parses) == 1
    assert all(is_stored(piece) for piece in second.pieces)
    assert all(str(cache) in str(piece) for piece in map(repr, second.pieces))
    np.testing.assert_array_equal(rows(first.pieces), rows(second.pieces))
    np.testing.assert_array_equal(first.labels, second.labels)
    assert first.tables[0].names == second.tables[0].names
    with lp.read(case[0], **({"label": 3, "header": False} if "csv" in str(case[0]) else {})) as x:
        np.testing.assert_array_equal(rows(x.pieces), rows(second.pieces))
        np.testing.assert_array_equal(x.labels, second.labels)
        assert len(parses) == 2


def test_a_run_takes_its_rows_from_the_cache(case):
    path, cache, _, parses = case
    if path.suffix == ".csv":
        path.write_text("".join(line.rsplit(",", 1)[0] + "\n" for line in CSV.splitlines()))
    results = [lp.svd(lp.read(path, cache=cache), 1, rng=0) for _ in range(2)]
    assert len(parses) == 1
    assert results[0].components.tobytes() == results[1].components.tobytes()
    assert results[0].components.tobytes() == lp.svd(path, 1, rng=0).components.tobytes()


def test_a_changed_file_or_other_options_are_parsed_anew(case):
    path, _, take, parses = case
    take()
    os.utime(path, ns=(1, 1))
    take()
    assert len(parses) == 2
    path.write_text(path.read_text().replace("\n", "\n\n", 1))
    os.utime(path, ns=(1, 1))
    take()
    assert len(parses) == 3
    take(dtype="float32")
    assert len(parses) == 4
    assert take(dtype="float32").dtype == np.float32
    assert len(parses) == 4


def test_the_memory_is_no_part_of_the_key(case):
    _, _, take, parses = case
    take()
    take(memory="16MiB")
    assert len(parses) == 1


def cut_off(name):
    def damage(folder):
        os.truncate(folder / name, os.path.getsize(folder / name) // 2)

    return damage


def described(**change):
    def damage(folder):
        path = folder / "table.json"
        content = {**json.loads(path.read_text()), **change}
        path.write_text(json.dumps(content | {"sha256": _seal(content)}))

    return damage


def as_text(content):
    return lambda folder: (folder / "table.json").write_bytes(content)


DAMAGES = {
    "data cut off": cut_off("data.raw"),
    "labels cut off": cut_off("labels.npy"),
    "labels empty": lambda folder: (folder / "labels.npy").write_bytes(b""),
    "labels too few": lambda folder: np.save(folder / "labels.npy", np.zeros(3)),
    "labels a pickle": lambda folder: np.save(
        folder / "labels.npy", np.array([None] * 50), allow_pickle=True
    ),
    "description changed": lambda folder: (folder / "table.json").write_text(
        (folder / "table.json").read_text().replace("50", "49", 1)
    ),
    "data gone": lambda folder: (folder / "data.raw").unlink(),
    "description empty": as_text(b""),
    "description not text": as_text(b"\xff\xfe"),
    "description a list": as_text(b"[]"),
    "description a number": as_text(b"3"),
    "description without content": as_text(b"{}"),
    "shape huge": described(shape=[10**30, 3, None]),
    "shape large": described(shape=[2**40, 3, None]),
    "shape negative": described(shape=[-50, -3, None]),
    "shape of floats": described(shape=[50.0, 3, None]),
    "shape missing": described(shape=None),
    "entries too many": described(shape=[50, 3, 10**9]),
    "type of objects": described(dtype="|O"),
    "type unknown": described(dtype="zz"),
    "names a number": described(names=3),
    "lowest a text": described(lowest="x"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cache_is_made_anew_with_a_warning_that_names_the_folder(case, damage):
    _, cache, take, parses = case
    first = take()
    good, labels = rows(first.pieces), first.labels
    folder = entry(cache)
    damage(folder)
    with pytest.warns(RuntimeWarning, match=r"this cache cannot be used .*written again") as caught:
        again = take()
    assert str(folder) in str(caught[0].message)
    assert len(parses) == 2
    for source in (again, take()):  # the last without a warning, and from the cache
        np.testing.assert_array_equal(rows(source.pieces), good)
        np.testing.assert_array_equal(source.labels, labels)
    assert len(parses) == 2
    assert entry(cache) == folder


def test_every_flipped_bit_in_a_cache_is_seen(case):
    _, cache, take, parses = case
    good = rows(take().pieces)
    folder = entry(cache)
    rng = np.random.default_rng(0)
    for count, name in enumerate(sorted(path.name for path in folder.iterdir())):
        path = folder / name
        content = bytearray(path.read_bytes())
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        with pytest.warns(RuntimeWarning, match="this cache cannot be used"):
            again = take()
        np.testing.assert_array_equal(rows(again.pieces), good)
        assert len(parses) == count + 2


def test_a_cache_of_another_version_is_made_anew(case, monkeypatch):
    _, _, take, parses = case
    monkeypatch.setattr("localpower.data.cache.__version__", "0.0.1")
    take()
    monkeypatch.undo()
    with pytest.warns(RuntimeWarning, match=r"\(of version 0\.0\.1, and this is "):
        take()
    take()
    assert len(parses) == 2


PARSING = """
import os, signal, sys, time, warnings
import numpy as np
import localpower as lp
from localpower.data import cache as caching
path, cache, start = sys.argv[1], sys.argv[2], float(sys.argv[3])
if len(sys.argv) > 4:
    publish = caching._write_description
    def killed(folder, table):
        os.kill(os.getpid(), signal.SIGKILL)
    caching._write_description = killed
warnings.simplefilter("ignore", RuntimeWarning)
time.sleep(max(0.0, start - time.time()))
for _ in range(10):
    source = lp.read(path, cache=cache)
    print(sum(float(piece.read().sum()) for piece in source.pieces))
"""


def test_several_runs_may_fill_and_use_one_cache_at_once_also_a_damaged_one(tmp_path):
    path, caches = tmp_path / "rows.svm", [tmp_path / "damaged", tmp_path / "new"]
    path.write_text(SVM * 40)
    total = float(lp.read(path, cache=caches[0]).pieces[0].read().sum())
    damaged = entry(caches[0]) / "data.raw"
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    command, start = [sys.executable, "-c", PARSING, str(path)], str(time.time() + 2)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    commands = [[*command, str(cache), start] for cache in caches for _ in range(4)]
    runs = [subprocess.Popen(command, **pipes) for command in commands]
    told = [run.communicate() for run in runs]
    assert [error for _, error in told] == [""] * 8
    assert [run.returncode for run in runs] == [0] * 8
    assert {float(line) for text, _ in told for line in text.split()} == {total}
    assert [len(list(cache.iterdir())) for cache in caches] == [1, 1]


def test_a_run_that_parsed_what_another_did_meanwhile_leaves_it_to_that_one(case):
    path, cache, take, parses = case
    kind = "csv" if path.suffix == ".csv" else "svmlight"
    form, faster = detect.FORMATS[kind], []

    def slow(*arguments):
        yield from form.read(*arguments)
        if not faster:
            faster.append(None)
            faster[0] = take()

    with pytest.MonkeyPatch.context() as patch:  # undone before `case` undoes its own
        patch.setitem(detect.FORMATS, kind, replace(form, read=slow))
        slower = take()
    assert len(parses) == 2
    np.testing.assert_array_equal(rows(faster[0].pieces), rows(slower.pieces))
    assert len(list(cache.iterdir())) == 1


def test_what_a_killed_run_left_in_a_cache_is_removed_by_the_next(tmp_path):
    path, cache = tmp_path / "rows.svm", tmp_path / "cache"
    path.write_text(SVM)
    (cache / "mine.part").mkdir(parents=True)
    command = [sys.executable, "-c", PARSING, str(path), str(cache), "0", "killed"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(list(cache.iterdir())) == 2
    lp.read(path, cache=cache)
    assert sorted(p.name == "mine.part" for p in cache.iterdir()) == [False, True]
    assert not [p for p in cache.iterdir() if p.name.endswith(".part") and p.name != "mine.part"]


@pytest.mark.parametrize("name", ["indices.raw", "indptr.raw"])
def test_damage_inside_a_sparse_cache_after_it_was_opened_is_a_data_error(tmp_path, name):
    (tmp_path / "x.svm").write_text(SVM)
    source = lp.read(tmp_path / "x.svm", cache=tmp_path / "cache")
    path = entry(tmp_path / "cache") / name
    before = path.stat()
    path.write_bytes(b"\x7f" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # size and time are as before
    with pytest.raises(DataError, match=r"\.raw was changed while it was in use"):
        lp.svd(source, 1)


def test_a_cache_that_is_deleted_is_written_again(case):
    _, cache, take, parses = case
    take()
    for file in entry(cache).iterdir():
        file.unlink()
    take()
    assert len(parses) == 2
    assert len(rows(take().pieces)) == 50
    assert len(parses) == 2


def test_a_parse_that_fails_leaves_nothing_behind(case):
    path, cache, take, _ = case
    good = path.read_text()
    path.write_text(good + "1,2\n" if path.suffix == ".csv" else good + "1 oops\n")
    with pytest.raises(DataError, match=str(path)):
        take()
    assert list(cache.iterdir()) == []
    path.write_text(good)
    assert take().rows == 50


def test_a_file_without_rows_leaves_nothing_behind(case):
    path, cache, take, _ = case
    path.write_text("")
    with pytest.raises(DataError, match=r"empty|no "):
        take()
    assert not cache.exists() or list(cache.iterdir()) == []


def test_files_of_raw_numbers_are_not_cached(tmp_path):
    np.save(tmp_path / "x.npy", X)
    [piece] = open_source(tmp_path / "x.npy", cache=tmp_path / "cache").pieces
    assert isinstance(piece, Stored)
    assert piece.path == str(tmp_path / "x.npy")
    assert not (tmp_path / "cache").exists()
