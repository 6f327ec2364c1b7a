"""The checksum of rows tells whether they are the same, however they are cut and stored."""

import io
from functools import reduce

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from localpower.core.checksum import LINE, NOTHING, checksum, file_checksum, joined
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.engines.inline import Inline
from localpower.worker.moments import moments
from localpower.worker.shard import Shard
from localpower.worker.tasks import Describe

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 7)) * (RNG.random((60, 7)) < 0.6)
KINDS = {
    "floats": X,
    "single": X.astype(np.float32),
    "integers": RNG.integers(-3, 4, (60, 7)).astype(float),
    "zeros and ones": RNG.integers(0, 2, (60, 7)).astype(float),
    "single integers": RNG.integers(-3, 4, (60, 7)).astype(np.float32),
}


def of_parts(parts):
    pairs = [(checksum(part), part.shape[0]) for part in parts]
    return reduce(lambda a, b: (joined(a[0], b[0], b[1]), a[1] + b[1]), pairs, (NOTHING, 0))[0]


@given(cuts=st.sets(st.integers(0, 60), max_size=6).map(sorted), kind=st.sampled_from(list(KINDS)))
def test_how_rows_are_cut_does_not_matter(cuts, kind):
    rows = KINDS[kind]
    assert of_parts(np.split(rows, cuts)) == checksum(rows)
    assert of_parts(map(sp.csr_array, np.split(rows, cuts))) == checksum(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_count_for_nothing_stored_or_not_and_whatever_their_sign(kind):
    rows = KINDS[kind].copy()
    csr = sp.csr_array(rows)
    assert checksum(csr) == checksum(rows)
    full = sp.csr_array((rows.ravel(), np.tile(np.arange(7), 60), np.arange(61) * 7), rows.shape)
    assert full.nnz == rows.size
    assert checksum(full) == checksum(rows)
    rows[rows == 0] = -0.0
    full.data[full.data == 0] = -0.0
    assert checksum(full) == checksum(rows) == checksum(csr)


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_of_every_number_counts(kind):
    rows = KINDS[kind]
    bits = rows.itemsize * 8
    seen = {checksum(rows)}
    for entry in range(0, rows.size, 5):
        for bit in range(bits):
            other = rows.copy()
            other.view(f"u{rows.itemsize}").flat[entry] ^= np.array(1 << bit, f"u{rows.itemsize}")
            if other.flat[entry] != rows.flat[entry]:  # else it is the sign of a zero
                seen.add(checksum(other))
    zeros = np.count_nonzero(rows.ravel()[::5] == 0)
    assert len(seen) == 1 + bits * len(range(0, rows.size, 5)) - zeros


@pytest.mark.parametrize("kind", KINDS)
def test_changes_that_sums_would_not_show_are_seen(kind):
    rows = KINDS[kind]
    changed = [rows[::-1], rows[:, ::-1], rows[RNG.permutation(60)], np.roll(rows, 1, axis=1)]
    changed += [RNG.permuted(rows, axis=axis) for axis in (0, 1)]
    for i, j in ((0, 1), (2, 6), (3, 4)):
        negated = rows.copy()
        negated[:, [i, j]] *= -1
        changed.append(negated)
        swapped = rows.copy()
        swapped[:, [i, j]] = rows[:, [j, i]]
        changed.append(swapped)
        swapped = rows.copy()
        swapped[[i, j]] = rows[[j, i]]
        changed.append(swapped)
    found = {checksum(np.ascontiguousarray(other)) for other in changed}
    different = {other.tobytes() for other in changed if not np.array_equal(other, rows)}
    assert len(different) == len(changed)
    assert len(found) == len(changed)
    assert checksum(rows) not in found


def test_no_two_rows_of_signs_have_the_same():
    rows = np.array([[1.0 if n >> j & 1 else -1.0 for j in range(16)] for n in range(1 << 16)])
    assert len({checksum(row[None]) for row in rows[::16]}) == 1 << 12


def test_rows_of_zeros_count_as_rows():
    assert checksum(np.zeros((3, 2))) != checksum(np.zeros((4, 2)))
    assert checksum(np.zeros((0, 2))) == checksum(sp.csr_array((0, 2))) == NOTHING


def test_long_rows_and_many_rows_are_taken_in_parts_that_do_not_matter():
    for shape in ((3, 70_001), (70_001, 3)):
        rows = RNG.standard_normal(shape)
        assert of_parts(np.split(rows, [1, 2])) == checksum(rows)
        assert checksum(sp.csr_array(rows)) == checksum(rows)


@pytest.mark.parametrize("limit", [1, 1000, 1 << 40])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_it_is_made_in_the_pass_over_blocks_only_where_it_is_asked_for(limit, kind):
    pieces = tuple(map(kind, np.split(X, [13, 14, 40])))
    shard = Shard(pieces, 7, X.dtype, limit=limit)
    assert moments(shard).checksum is None
    assert moments(shard, with_checksum=True).checksum == checksum(X)


def test_it_is_asked_for_after_statistics_without_it_were_kept():
    with Inline() as engine:
        engine.place(contiguous(open_source(X), 4).shards)
        assert engine.sum(Describe(extremes=False)).checksum is None
        assert engine.sum(Describe(extremes=False, checksum=True)).checksum == checksum(X)


@pytest.mark.parametrize("size", [1, 8, 100, 8 * LINE, 8 * LINE + 1, 3 * 8 * LINE - 7])
def test_every_bit_of_a_file_counts(size):
    content = RNG.bytes(size)
    seen = {file_checksum(io.BytesIO(content))}
    places = sorted({*RNG.integers(0, size, 20).tolist(), 0, size - 1})
    for place in places:
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            seen.add(file_checksum(io.BytesIO(changed)))
    assert len(seen) == 1 + 8 * len(places)


def test_a_file_that_is_read_in_parts_has_the_checksum_of_its_bytes_in_order():
    content = RNG.bytes(1_000_003)
    assert file_checksum(io.BytesIO(content)) == file_checksum(io.BytesIO(content))
    half = len(content) // 2
    assert file_checksum(io.BytesIO(content[half:] + content[:half])) != file_checksum(
        io.BytesIO(content)
    )
