"""Broken and hostile files are refused with a message that helps, and with little memory.

All are read in one process with 256 MB of address space more than it had after it read a good file
of each format. (Of a plain 512 MB, numpy, scipy, pyarrow, h5py, zarr and their threads take nearly
all; with what is left pyarrow aborts the process on good files, too.) What asks for more ends in a
MemoryError, which is no refusal.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import struct
import subprocess
import sys
import zipfile
import zlib

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy import sparse

LIMIT = 256 << 20
X = np.arange(12.0).reshape(4, 3)

CHILD = """
import json, os, resource, sys, time, traceback
import localpower as lp

def run(path, options, shrink):
    source = lp.read(path, **options)
    if shrink:
        os.truncate(path, os.path.getsize(path) // 2)
    lp.svd(source, 2, max_rounds=1, rng=0)

good, bad = json.load(sys.stdin)
for path in good * 2:  # arenas and threads of all are there then
    lp.svd(path, 2, max_rounds=1, rng=0)
with open("/proc/self/statm") as stream:
    mapped = int(stream.read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (mapped + int(sys.argv[1]),) * 2)
for name, path, options, shrink in bad:
    print(json.dumps([name, None, None, 0]), flush=True)
    start = time.perf_counter()
    try:
        run(path, options, shrink)
        found = "no error", ""
    except Exception as error:
        known = isinstance(error, ValueError)
        found = type(error).__name__, str(error) if known else traceback.format_exc()
    print(json.dumps([name, *found, time.perf_counter() - start]), flush=True)
"""

CASES = {}


def case(suffix, *parts, options=None, shrink=False, named=True):
    """Register a function that writes a bad file, and what the message says."""

    def register(write):
        CASES[write.__name__] = write, suffix, parts, options or {}, shrink, named
        return write

    return register


# npy


def npy(array, allow_pickle=False):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def npy_header(shape, descr="'<f8'", version=1):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()


@case(".npy", "declares (1000000000, 1000000)", "write it again")
def npy_of_10_to_the_15_entries(path):
    path.write_bytes(npy_header((10**9, 10**6)) + bytes(64))


@case(".npy", "declares", "write it again")
def npy_whose_size_overflows(path):
    path.write_bytes(npy_header((2**62, 4)) + bytes(64))


@case(".npy", "declares (4, 3)", "write it again")
def npy_truncated(path):
    path.write_bytes(npy(X)[:-10])


@case(".npy", "write it again with numpy.save")
def npy_truncated_in_its_header(path):
    path.write_bytes(npy(X)[:40])


@case(".npy", "dtype object", "leave out or encode")
def npy_of_pickled_objects(path):
    path.write_bytes(npy(np.array([[Bomb(path.parent), 1], [2, 3]], object), True))


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder / "exploded"),)


@case(".npy", "dtype", "leave out or encode the columns")
def npy_of_structures(path):
    path.write_bytes(npy(np.zeros((3, 3), [("a", "f8"), ("b", "i4")])))


@case(".npy", "complex128", "take the real part")
def npy_of_complex_numbers(path):
    path.write_bytes(npy(X + 1j))


@case(".npy", "leave out or encode")
def npy_of_text(path):
    path.write_bytes(npy(np.array([["a", "b"], ["c", "d"]])))


@case(".npy", "Header info length", "write it again with numpy.save")
def npy_with_a_header_of_1_mb(path):
    path.write_bytes(npy_header((4, 3), "'<f8'" + " " * 10**6, version=2) + bytes(96))


@case(".npy", "write it again with numpy.save")
def npy_with_a_header_that_nests(path):
    path.write_bytes(npy_header("-" * 9000 + "1", version=2) + bytes(96))


@case(".npy", "(9, 0)", "write it again with numpy.save")
def npy_of_version_9(path):
    path.write_bytes(b"\x93NUMPY\x09\x00" + npy(X)[8:])


@case(".npy", "3 dimension(s)", "give one row per sample")
def npy_of_three_dimensions(path):
    path.write_bytes(npy(np.zeros((2, 2, 2))))


@case(".npy", "was changed while it was in use", "run again", shrink=True)
def npy_that_shrinks(path):
    path.write_bytes(npy(np.ones((1000, 10))))


# npz


def zip_of(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def packed_zeros(total):
    """The deflate stream of so many zeros, quickly: one stretch again and again."""
    size = 1 << 24
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    stretch = squeeze.compress(bytes(size)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    return stretch * (total // size) + zlib.compressobj(9, zlib.DEFLATED, -15).flush()


def raw_zip(path, name, packed, size):
    """A zip file with one deflated member that declares `size`."""
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(packed), size, len(name), 0)
    local = b"PK\x03\x04" + fields + name + packed
    central = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0)
    central += name
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    path.write_bytes(local + central + b"PK\x05\x06" + end)


def deflated(data):
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(data) + squeeze.flush(zlib.Z_FULL_FLUSH)


@case(".zip", "a zip file with rows.csv; unpack it, and give what is in it")
def zip_of_text(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rows.csv", "a,b\n1,2\n3,4\n")


@case(".npz", "would unpack to 4", "save it again uncompressed")
def npz_that_unpacks_to_4_gb(path):
    total = 250 << 24
    header = npy_header((total // 8, 1))
    raw_zip(path, b"X.npy", deflated(header) + packed_zeros(total), len(header) + total)


@case(".npz", "write it again")
def npz_that_hides_what_it_unpacks_to(path):
    total = 250 << 24
    raw_zip(path, b"X.npy", deflated(npy_header((total // 8, 1))) + packed_zeros(total), 1000)


@case(".npz", "declares (1000000000000, 3)", "write it again")
def npz_whose_member_lies_about_its_shape(path):
    zip_of(path, X=npy_header((10**12, 3)) + bytes(96))


@case(".npz", "write it again with numpy.savez")
def npz_truncated(path):
    zip_of(path, X=npy(X))
    path.write_bytes(path.read_bytes()[:-30])


@case(".npz", "write it again with numpy.savez")
def npz_with_damaged_rows(path):
    zip_of(path, X=npy(np.random.default_rng(0).random((100, 10))))
    data = bytearray(path.read_bytes())
    data[2000] ^= 255
    path.write_bytes(bytes(data))


@case(".npz", "holds a, b", "expected", "key=")
def npz_with_other_keys(path):
    np.savez(path, a=X, b=X)


@case(".npz", "leave out or encode")
def npz_of_pickled_objects(path):
    zip_of(path, X=npy(np.array([[Bomb(path.parent)]], object), True))


@case(".npz", "not a CSR matrix", "indices must be < 3")
def npz_sparse_with_an_index_out_of_range(path):
    sparse.save_npz(path, sparse.csr_array(X), compressed=False)
    parts = dict(np.load(path))
    parts["indices"][3] = 10**9
    np.savez(path, **parts)


@case(".npz", "the parts of its sparse matrix do not belong together")
def npz_sparse_with_pointers_that_are_too_few(path):
    sparse.save_npz(path, sparse.csr_array(X))
    parts = dict(np.load(path))
    parts["indptr"] = parts["indptr"][:-1]
    np.savez(path, **parts)


# Archives of text

LINE = b"1 1:1 2:1 3:1 4:1 5:1\n"


@case(".csv.gz", "over 200 times", "unpack it first")
def csv_gz_that_unpacks_to_a_thousand_times_its_size(path):
    path.write_bytes(gzip.compress(b"0,0\n" * (1 << 18)) * 500)


@case(".svm.gz", "over 200 times", "unpack it first")
def svmlight_gz_that_unpacks_to_a_thousand_times_its_size(path):
    path.write_bytes(gzip.compress(LINE * (1 << 16)) * 500)


@case(".svm.bz2", "over 200 times", "unpack it first")
def svmlight_bz2_that_unpacks_to_many_times_its_size(path):
    path.write_bytes(bz2.compress(LINE * (1 << 16)) * 500)


@case(".svm.xz", "over 200 times", "unpack it first")
def svmlight_xz_that_unpacks_to_many_times_its_size(path):
    path.write_bytes(lzma.compress(LINE * (1 << 16)) * 500)


@case(".csv.gz", "cannot be unpacked", "get the file again")
def gz_truncated(path):
    rows = np.random.default_rng(0).random((5000, 3))
    text = "\n".join(",".join(map(repr, row)) for row in rows.tolist())
    path.write_bytes(gzip.compress(text.encode())[:-1000])


@case(".csv.xz", "cannot be unpacked", "get the file again")
def xz_corrupt(path):
    data = bytearray(lzma.compress(b"1,2\n3,4\n" * 1000))
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))


@case(".svm.bz2", "cannot be unpacked", "get the file again")
def bz2_corrupt(path):
    data = bytearray(bz2.compress(b"1 1:1\n" * 1000))
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))


# svmlight


def svmlight_case(line, *parts):
    """Register a file of two good lines and this one."""

    def register(name):
        def write(path):
            path.write_bytes(b"1 1:1 2:2\n1 1:2 2:1\n" + line + b"\n")

        write.__name__ = f"svmlight_{name}"
        case(".svm", *parts)(write)

    return register


LINE_3 = "line 3", "expected 'label index:value"
svmlight_case(b"1 -1:1", "index -1 ", *LINE_3)("with_a_negative_index")
svmlight_case(b"1 99999999999999999999:1", "index 9999", *LINE_3)("with_an_index_of_20_digits")
svmlight_case(b"1 1:nan", "'1:nan' is not finite", *LINE_3)("with_nan")
svmlight_case(b"1 1:inf", "'1:inf' is not finite", *LINE_3)("with_infinity")
svmlight_case(b"1 1:1e999", "is not finite", *LINE_3)("with_a_number_too_large")
svmlight_case(b"1 2:1 2:2", "index 2 occurs twice", *LINE_3)("with_an_index_twice")
svmlight_case(b"cat 1:1", "'cat' stands where the label", *LINE_3)("with_a_word_as_label")
svmlight_case(b"1 1:1_0", "'1:1_0' is not index:value", *LINE_3)("with_an_underscore")
svmlight_case(b"1 1:1\0 2:1", "line 3", "NUL byte", "convert the file")("with_a_nul_byte")


@case(".svm", "index 2147483647", "expected 'label index:value")
def svmlight_of_15_bytes_that_needs_2_to_the_31_columns(path):
    path.write_bytes(b"1 2147483647:1\n")


@case(".svm", "columns", "raise memory=", "check that so many columns are meant")
def svmlight_that_needs_almost_2_to_the_31_columns(path):
    path.write_bytes(b"1 2147483646:1\n1 1:1\n")


# CSV


@case(".csv", "line 3", "found 2 fields, expected 3", "fill in or quote")
def csv_ragged(path):
    path.write_text("1,2,3\n4,5,6\n7,8\n")


@case(".csv", "'name', 'town'", "drop=['name', 'town']")
def csv_with_text_columns(path):
    path.write_text("name,a,b,town\nann,1,2,x\nbob,3,4,y\n")


@case(".csv", "line 3", "column 'b'", "is missing", "missing='drop'", "fill it in")
def csv_with_a_missing_value(path):
    path.write_text("a,b\n1,2\n3,\n")


@case(".csv", "line 3", "column 'b'", "not finite", "fill in a number")
def csv_with_infinity(path):
    path.write_text("a,b\n1,2\n3,inf\n5,6\n")


@case(".csv", "line 1", "longer than", "check that this is text")
def csv_of_one_line_of_100_mb(path):
    path.write_bytes(b"1," * (50 << 20))


@case(".csv", "line 2", "NUL byte", "convert the file")
def csv_with_nul_bytes(path):
    path.write_bytes(b"1,2\n3,\x00\n")


@case(".csv", "UTF-16", "save it as UTF-8")
def csv_in_utf_16(path):
    path.write_text("1,2\n3,4\n", encoding="utf-16")


@case(".csv", "no numbers in column 0, 1", "header=True if the first line is names")
def csv_with_one_line_of_words(path):
    path.write_text("# comment\na,b\n\n")


@case(".csv", "no row below the header, line 1", "say header=False", options={"header": True})
def csv_with_a_header_only(path):
    path.write_text("a,b\n\n")


# Empty


def empty_case(suffix, *parts):
    def write(path):
        path.write_bytes(b"")

    write.__name__ = f"empty{suffix.replace('.', '_')}"
    case(suffix, *parts)(write)


for suffix in (".npy", ".npz", ".parquet", ".h5"):
    empty_case(suffix, "write it again")
empty_case(".arrow", "write it again")
for suffix in (".csv", ".svm", ".csv.gz", ""):
    empty_case(suffix, "the file is empty", "one")


@case("", "no file in this directory", "give a list of files")
def directory_with_nothing_in_it(path):
    path.mkdir()


@case("-*.npy", "no file matches", "check the folder and the pattern")
def glob_without_match(path):
    pass


@case(".csv", "not a regular file", "write its content to one")
def fifo(path):
    os.mkfifo(path)


# Parquet, Arrow


def write_parquet(path, **columns):
    pq.write_table(pa.table(columns), path)


@case(".parquet", "write it again with pyarrow.parquet.write_table")
def parquet_truncated(path):
    write_parquet(path, a=[1.0, 2.0], b=[3.0, 4.0])
    path.write_bytes(path.read_bytes()[:-20])


@case(".parquet", "write it again with pyarrow.parquet.write_table")
def parquet_with_damaged_pages(path):
    write_parquet(path, a=np.arange(1000.0), b=np.ones(1000))
    data = path.read_bytes()
    path.write_bytes(data[:8] + bytes(200) + data[208:])


@case(".parquet", "'s' (string), 't' (string)", "drop=['s', 't']")
def parquet_with_text_columns(path):
    write_parquet(path, s=["x", "y"], a=[1.0, 2.0], t=["x", "y"])


@case(".parquet", "row 1", "column 'b'", "null", "missing='drop'", "missing='mean'")
def parquet_with_a_null(path):
    write_parquet(path, a=[1.0, 2.0], b=[1.0, None])


@case(".arrow", "write it again")
def arrow_of_garbage_after_the_magic(path):
    path.write_bytes(b"ARROW1\0\0" + np.random.default_rng(0).bytes(5000))


@case(".arrow", "write it again")
def arrow_stream_without_its_end(path):
    table = pa.table({"a": np.arange(1000.0), "b": np.ones(1000)})
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)
    path.write_bytes(path.read_bytes()[:-500])


# HDF5


@case(".h5", "external links are not followed: /X", "expected")
def hdf5_of_an_external_link(path):
    with h5py.File(path.with_name("elsewhere.hdf"), "w") as file:
        file["X"] = X
    with h5py.File(path, "w") as file:
        file["X"] = h5py.ExternalLink("elsewhere.hdf", "/X")


@case(".h5", "external link", "give that file itself", options={"key": "X"})
def hdf5_of_an_external_link_by_name(path):
    hdf5_of_an_external_link(path)


@case(".h5", "in other files", "copy them into one file")
def hdf5_with_rows_in_another_file(path):
    path.with_suffix(".raw").write_bytes(X.tobytes())
    with h5py.File(path, "w") as file:
        file.create_dataset("X", X.shape, "f8", external=[(str(path.with_suffix(".raw")), 0, 96)])


@case(".h5", "no 2-D dataset of numbers", "expected one")
def hdf5_of_pickled_objects(path):
    with h5py.File(path, "w") as file:
        content = np.frombuffer(pickle.dumps(Bomb(path.parent)), np.uint8)
        cells = file.create_dataset("X", (2, 2), h5py.vlen_dtype(np.uint8))
        cells[0, 0] = content


@case(".h5", "not one of numbers", "write floats", options={"key": "X"})
def hdf5_of_text(path):
    with h5py.File(path, "w") as file:
        file["X"] = np.array([[b"a", b"b"], [b"c", b"d"]])


@case(".h5", "'/X' (4, 3), '/Y' (4, 3)", "key=")
def hdf5_with_two_data_sets(path):
    with h5py.File(path, "w") as file:
        file["X"] = file["Y"] = X
        del file["Y"]
        file["Y"] = X + 1


@case(".h5", "over 1 GB", "write smaller ones")
def hdf5_with_huge_chunks(path):
    with h5py.File(path, "w") as file:
        shape = (1 << 20, 200)
        file.create_dataset("X", shape, "f8", chunks=shape, compression="gzip")


@case(".h5", "never written", "write it again")
def hdf5_that_declares_without_rows(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (10**12, 100), "f8", chunks=(1000, 100))


@case(".h5", "write it again with h5py")
def hdf5_truncated(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=np.ones((1000, 10)), chunks=(100, 10), compression="gzip")
    path.write_bytes(path.read_bytes()[:-3000])


# Zarr


def zarr_with(path, **metadata):
    zarr.create_array(path, shape=(4, 3), chunks=(2, 3), dtype="f8", zarr_format=2)[:] = X
    file = path / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | metadata))


@case(".zarr", "'pickle'", "write it again with")
def zarr_with_a_pickle_codec(path):
    zarr_with(path, filters=[{"id": "pickle", "protocol": 5}])


@case(".zarr", "over 1 GB", "write smaller ones")
def zarr_with_a_huge_chunk(path):
    zarr_with(path, shape=[10**9, 3], chunks=[10**9, 3])


@case(".zarr", "'|O'", "write it again with")
def zarr_of_objects(path):
    zarr_with(path, dtype="|O")


@case(".zarr", "write it again with zarr")
def zarr_with_a_chunk_of_0_bytes(path):
    zarr_with(path)
    (path / "0.0").write_bytes(b"")


@case(".zarr", "write it again with zarr")
def zarr_with_a_damaged_chunk(path):
    zarr_with(path)
    (path / "0.0").write_bytes(bytes(range(40)))


@case(".zarr", "write it again with zarr")
def zarr_with_metadata_that_is_no_json(path):
    zarr_with(path)
    (path / ".zarray").write_bytes(b"{")


# Devices


@case("", "not a regular file", "write its content to one", named=False)
def dev_zero(path):
    return "/dev/zero"


def run_child(good, cases):
    """Report all cases; a case that ends the process is reported as such, and the rest go on."""
    reports = {}
    while left := [known for known in cases if known[0] not in reports]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", CHILD, str(LIMIT)],
            input=json.dumps([good, left]),
            capture_output=True,
            text=True,
            timeout=250,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, done.stderr
        for name, error, message, seconds in lines:
            ended = f"the process ended with {done.returncode}: {done.stderr}"
            reports[name] = (error, message, seconds) if error else ("crash", ended, 0.0)
    return reports


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """One file of each format that nothing is wrong with."""
    folder = tmp_path_factory.mktemp("good")
    np.save(folder / "x.npy", X)
    np.savez_compressed(folder / "x.npz", X=X)
    (folder / "x.csv").write_text("1,2\n3,4\n5,6\n")
    (folder / "x.svm.gz").write_bytes(gzip.compress(b"1 1:1 2:2\n0 1:3\n" * (1 << 20)))
    write_parquet(folder / "x.parquet", a=[1.0, 2.0], b=[2.0, 1.0])
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(2, 3), compression="gzip")
    zarr_with(folder / "x.zarr")
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def reports(good, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    cases = []
    for name, (write, suffix, _, options, shrink, _) in CASES.items():
        path = folder / f"{name}{suffix}"
        cases.append((name, write(path) or str(path), options, shrink))
    found = run_child(good, [*((path, path, {}, False) for path in good), *cases])
    name, (_, _, seconds) = max(found.items(), key=lambda report: report[1][2])
    print(f"slowest: {name}, {seconds:.2f} s")
    yield found
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("name", CASES)
def test_a_bad_file_is_refused_with_its_name_and_a_remedy(name, reports):
    _, suffix, parts, _, _, named = CASES[name]
    error, message, _ = reports[name]
    assert error == "DataError", message
    assert (f"{name}{suffix}" if named else "/dev/zero") in message
    for part in parts:
        assert part in message


def test_good_files_are_read_under_the_same_limit(good, reports):
    assert {reports[path][0] for path in good} == {"no error"}


ALONE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (512 << 20,) * 2)
import json
import sys
import localpower as lp
for path in sys.argv[1:]:
    try:
        lp.svd(path, 2, rng=0)
    except lp.DataError as error:
        print(json.dumps(str(error)), flush=True)
"""


def test_the_largest_lies_are_refused_by_a_process_of_512_mb(tmp_path):
    lies = [n for n in CASES if "unpacks_to" in n or "2_to_the_31" in n or "declares" in n]
    paths = []
    for write, suffix, _, options, shrink, _ in map(CASES.get, lies):
        assert not shrink
        assert not options
        paths.append(tmp_path / f"{len(paths)}{suffix}")
        write(paths[-1])
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(lies) > 5, done.stderr
    for name, path, message in zip(lies, paths, told, strict=True):
        assert all(part in message for part in (str(path), *CASES[name][2])), name
