"""Results: on disk, continued, seeded, stopped."""

import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from xml.etree import ElementTree

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import METHODS, same_bits, with_spectrum

import localpower as lp
from localpower.show import summary as overview
from localpower.show.rows import look
from localpower.stopping import REASONS

A = with_spectrum(200, 0.6 ** np.arange(9), seed=3)


@pytest.mark.parametrize("options", [{}, {"center": True, "scale": "std", "return_u": True}])
def test_a_saved_result_is_read_back_whole(tmp_path, options):
    result = lp.svd(A, 3, workers=4, rng=0, **options)
    result.save(tmp_path / "model")
    again = lp.Result.load(tmp_path / "model")
    assert same_bits(result, again)
    assert again.history == result.history
    assert again.ledger == result.ledger
    assert again.run == result.run
    assert np.array_equal(again.transform(A), result.transform(A))
    readable = json.loads((tmp_path / "model" / "run.json").read_text())
    assert readable["run"]["seed"] == 0
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["model.npz", "run.json"]


def test_notebooks_get_small_tables_well_formed_and_escaped():
    result = lp.svd(A, 3, workers=4, rng=0)
    evil = "<script>&\"'"
    plan = replace(lp.plan((1000, 20), 2, workers=4), question=evil)
    found = lp.compare(A, 2, methods="uda,dpi:width=1")
    marked = [
        (result, None, ["component", "singular value", "explained"], 3),
        (replace(result, run=result.run | {"why": evil, "method": evil}), evil, None, 3),
        (plan, evil, ["method", "rounds", "hops", "up", "down", "flops", "seconds", "note"], 11),
        (replace(found, missing={evil: evil}), evil, None, 2),
    ]
    for thing, text, head, rows in marked:
        html = thing._repr_html_()
        table = ElementTree.fromstring(html)  # well formed
        assert table.tag == "table"
        assert len(table.findall("tbody/tr")) == rows
        assert head is None or [cell.text for cell in table.findall("thead/tr/th")] == head
        assert "<script" not in html
        assert html.count("color") == html.count("color: inherit") == 1  # light or dark, as it is
        assert text is None or text in "".join(table.itertext())
    wide = {sum(int(td.get("colspan", 1)) for td in tr) for tr in table.findall("tbody/tr")}
    assert wide == {len(table.findall("thead/tr/th"))}


def test_a_result_prints_as_a_table_that_says_what_is_known():
    text = str(lp.svd(A, 3, method="local_ritz", tol=1e-8, workers=4, rng=0))
    assert text.startswith("local_ritz: rank 3 of 200 x 9 float64 in 4 shards, ")
    assert "\nconverged: the sine of the angle to the answer is at most" in text
    assert f"\n{overview.PROVEN}\n" in text
    assert len(text.splitlines()) == 4 + 1 + 3
    many = str(lp.svd(np.eye(40), 30, method="tsqr", rng=0))
    assert f"\nexact, up to rounding\n{overview.NO_GAP}\n" in many
    exact = str(lp.svd(A, 3, method="tsqr", rng=0))
    assert "\nexact, up to rounding: the sine of the angle to the answer is at most" in exact
    assert f"\n{overview.PROVEN}\n" in exact
    assert many.endswith("and 10 more components")
    assert "Give tol=1e-8 for a certificate." in str(lp.svd(A, 3, method="dpi", rng=0))
    early = str(lp.svd(A, 3, method="block_lanczos", max_rounds=1, rng=0))
    assert "not certified: max_rounds was reached\nRaise max_rounds" in early


@pytest.mark.filterwarnings("ignore::localpower.ConvergenceWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tol", [0, 1e-8])
def test_lines_of_a_result_that_is_printed_are_short(method, tol):
    tail = with_spectrum(400, np.r_[3, 2.5, 2.2, np.linspace(1, 0.8, 97)], seed=5)
    for rows in (A, tail, np.eye(40)):
        text = str(lp.svd(rows, 3, method=method, tol=tol, max_rounds=7, workers=4, rng=0))
        assert max(map(len, text.splitlines())) <= 100, text


@pytest.mark.parametrize(("tol", "reason"), [(1e-6, "unsure"), (1e-14, "rounding")])
def test_numbers_are_blamed_only_where_more_digits_would_help(tol, reason):
    flat = np.random.default_rng(1).standard_normal((500, 60))
    how = {
        "method": "block_krylov",
        "certainty": "proven",
        "max_rounds": 60,
        "workers": 4,
        "rng": 0,
    }
    with pytest.warns(lp.ConvergenceWarning, match=reason):
        result = lp.svd(flat, 2, tol=tol, **how)
    assert (result.reason, result.converged) == (reason, False)
    assert REASONS[reason].meaning in overview.verdict(result).text


def test_saving_replaces_a_model(tmp_path):
    lp.svd(A, 2, rng=0).save(tmp_path)
    lp.svd(A, 3, rng=0).save(tmp_path)
    assert lp.Result.load(tmp_path).components.shape == (3, 9)


def rewrite_run(path, **changes):
    content = json.loads((path / "run.json").read_text()) | changes
    (path / "run.json").write_text(json.dumps(content))


def rewrite_arrays(path, **changes):
    with np.load(path / "model.npz") as content:
        arrays = {name: content[name] for name in content} | changes
    np.savez(path / "model.npz", **{n: a for n, a in arrays.items() if a is not None})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "run.json").unlink(), r"run\.json is missing"),
        (lambda p: (p / "model.npz").unlink(), r"model\.npz is missing"),
        (lambda p: (p / "run.json").write_text("{"), "not a readable model"),
        (lambda p: (p / "run.json").write_text('{"format": 99}'), "format 99"),
        (lambda p: (p / "run.json").write_text("[]"), "not a readable model"),
        (lambda p: rewrite_run(p, run=None), "not a readable model"),
        (lambda p: rewrite_arrays(p, singular_values=None), "not a readable model"),
        (lambda p: rewrite_arrays(p, components=np.array("text")), "not a readable model"),
        (lambda p: rewrite_arrays(p, basis=np.eye(3)), "not a readable model"),
        (lambda p: (p / "model.npz").write_bytes(b"junk"), "not a readable model"),
        (lambda p: (p / "model.npz").write_bytes((p / "model.npz").read_bytes()[:99]), "readable"),
    ],
)
def test_a_damaged_model_is_refused_by_name(tmp_path, damage, message):
    lp.svd(A, 2, rng=0).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(lp.DataError, match=message):
        lp.Result.load(tmp_path)


def packed(path):
    with np.load(path / "model.npz") as content:
        arrays = {name: content[name] for name in content}
    arrays["basis"] = np.zeros((9, 100_000))
    np.savez_compressed(path / "model.npz", **arrays)


def not_an_archive(path):
    with open(path / "model.npz", "wb") as stream:
        np.save(stream, np.eye(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (packed, "is packed, as no model is"),
        (not_an_archive, "not a readable model"),
        (lambda p: rewrite_arrays(p, components=np.full((2, 9), np.nan)), "components has numbers"),
        (lambda p: rewrite_arrays(p, basis=np.full((9, 2), np.inf)), "basis has numbers"),
        (lambda p: rewrite_arrays(p, mean=np.full(9, np.inf)), "mean has numbers"),
        (lambda p: rewrite_arrays(p, scale=np.full(9, np.nan)), "scale has numbers"),
        (lambda p: rewrite_arrays(p, basis=np.eye(3)), "basis is float64 of shape"),
        (lambda p: rewrite_arrays(p, components=np.array("text")), "not a readable model"),
        (lambda p: (p / "run.json").write_text("[" * 100_000), "not a readable model"),
    ],
)
def test_a_model_of_somebody_hostile_is_refused_by_name(tmp_path, change, message):
    """It may say nothing of its arrays, as models of old versions do."""
    lp.svd(A, 2, rng=0).save(tmp_path)
    rewrite_run(tmp_path, arrays=None)
    change(tmp_path)
    with pytest.raises(lp.DataError, match=message):
        lp.Result.load(tmp_path)


def test_a_model_with_a_pickle_in_it_is_refused(tmp_path):
    lp.svd(A, 2, rng=0).save(tmp_path)
    np.savez(tmp_path / "model.npz", components=np.array([{"a": 1}], dtype=object))
    with pytest.raises(lp.DataError, match="not a readable model"):
        lp.Result.load(tmp_path)


def test_a_model_is_not_written_over_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is not a folder"):
        lp.svd(A, 2, rng=0).save(tmp_path / "file")


def test_the_same_seed_gives_the_same_bits_and_is_recorded():
    a, b = (lp.svd(A, 3, workers=5, partition="shuffled", rng=7) for _ in range(2))
    assert same_bits(a, b)
    fresh = lp.svd(A, 3, workers=5, partition="shuffled")
    assert same_bits(fresh, lp.svd(A, 3, workers=5, partition="shuffled", rng=fresh.run["seed"]))
    generator = lp.svd(A, 3, workers=5, partition="shuffled", rng=np.random.default_rng(7))
    assert same_bits(a, generator)


def test_tol_stops_when_the_subspace_is_still():
    result = lp.svd(A, 3, method="dpi", workers=3, tol=1e-9, max_rounds=500, rng=0)
    assert len(result.history) < 100
    exact = np.linalg.svd(A)[2][:3].T
    assert lp.subspace_distance(result.components.T, exact) < 1e-8


def test_the_callback_sees_every_round_and_can_end_the_run():
    seen = []

    def callback(record, state):
        seen.append((record.round, record.steps, state.steps, state.basis.shape))
        return record.round == 4

    result = lp.svd(A, 3, method="local_power:steps=2,width=5", workers=3, rng=0, callback=callback)
    assert seen == [(t, 2, 2 * t, (9, 5)) for t in range(1, 5)]
    assert len(result.history) == 4


def test_options_that_are_numpy_scalars_are_recorded_as_plain_numbers(tmp_path):
    result = lp.svd(
        A,
        np.int64(2),
        max_rounds=np.int64(3),
        workers=np.int64(3),
        tol=np.float32(1e-3),
        center=np.True_,
        partition="shuffled",
        method=lp.LocalPower(schedule=lambda t: np.int64(2)),
        rng=np.int64(4),
    )
    result.save(tmp_path)
    assert lp.Result.load(tmp_path).run == result.run


def test_transform_refuses_nan_and_names_the_row(tmp_path):
    model, rows = lp.svd(A, 2, rng=0), A.copy()
    rows[7, 3] = np.nan
    with pytest.raises(lp.DataError, match=r"NaN or infinity in data\[1\], row 7"):
        model.transform([A[:5], rows])


def test_inverse_transform_refuses_scores_of_another_width():
    with pytest.raises(ValueError, match=r"scores must be \(n, 2\)"):
        lp.svd(A, 2, rng=0).inverse_transform(np.ones((4, 3)))


def test_transform_refuses_other_columns():
    with pytest.raises(lp.DataError, match="8 columns where the model has 9"):
        lp.svd(A, 2, rng=0).transform(A[:, :8])


def test_transform_takes_text_that_happens_to_be_narrower(tmp_path):
    (tmp_path / "rows.svm").write_text("1 1:2 3:1\n-1 2:5\n")
    model = lp.svd(A, 2, rng=0)
    expected = np.zeros((2, 9))
    expected[0, [0, 2]], expected[1, 1] = [2, 1], 5
    assert np.allclose(model.transform(tmp_path / "rows.svm"), expected @ model.components.T)


NAMES = [f"c{j}" for j in range(9)]
MIXED = [4, 0, 8, 1, 7, 2, 6, 3, 5]


def in_files(suffix, write):
    """Rows in two files, each with its columns in an order of its own."""

    def data(frame, folder):
        for name, part in (("1", frame[:90]), ("2", frame[90:][frame.columns[::-1]])):
            write(part, folder / f"{name}{suffix}")
        return folder

    return data


def opened(frame, folder):
    frame.to_csv(folder / "rows.csv", index=False)
    return lp.read(folder / "rows.csv")


DATA = {
    "pandas": lambda frame, folder: frame,
    "polars": lambda frame, folder: pl.from_pandas(frame),
    "arrow": lambda frame, folder: pa.Table.from_pandas(frame),
    "dask": lambda frame, folder: dd.from_pandas(frame, npartitions=3),
    "frames": lambda frame, folder: [frame[:50], frame[50:][frame.columns[::-1]]],
    "stream": lambda frame, folder: iter([frame[:50], frame[50:][frame.columns[::-1]]]),
    "csv": in_files(".csv", lambda frame, path: frame.to_csv(path, index=False)),
    "parquet": in_files(".parquet", lambda frame, path: frame.to_parquet(path)),
    "feather": in_files(
        ".feather", lambda frame, path: frame.reset_index(drop=True).to_feather(path)
    ),
    "read": opened,
}


@pytest.fixture(scope="module")
def named():
    """A model of rows with names."""
    return lp.pca(pd.DataFrame(A, columns=NAMES), 3, scale="std", workers=2, rng=0)


@pytest.mark.parametrize("kind", DATA)
def test_transform_finds_columns_by_name_in_whatever_order(named, tmp_path, kind):
    frame = pd.DataFrame(A, columns=NAMES)
    data = DATA[kind](frame.iloc[:, MIXED], tmp_path)
    assert np.allclose(named.transform(data), named.transform(A), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", DATA)
def test_transform_refuses_missing_columns_by_name(named, tmp_path, kind):
    frame = pd.DataFrame(A, columns=NAMES).rename(columns={"c3": "c33", "c5": "x"})
    data = DATA[kind](frame, tmp_path)
    with pytest.raises(lp.DataError, match=r"columns of the model are missing: 'c3', 'c5'; it has"):
        named.transform(data)


@pytest.mark.parametrize("kind", DATA)
def test_transform_leaves_out_columns_that_the_model_does_not_have_and_says_so(
    named, tmp_path, kind
):
    frame = pd.DataFrame(A, columns=NAMES)
    frame.insert(2, "more", np.nan if kind not in ("csv", "read") else 1e300)
    if kind != "read":  # which takes all columns that are not left out
        frame.insert(0, "who", "ann")
    data = DATA[kind](frame, tmp_path)
    extra = "'more'" if kind == "read" else "'who', 'more'|'more', 'who'"
    with pytest.warns(lp.DataHint, match=rf"the model does not have are left out: ({extra})"):
        scores = named.transform(data)
    assert np.allclose(scores, named.transform(A), rtol=0, atol=1e-12)


def test_an_open_source_is_not_changed_by_transform(named, tmp_path):
    frame = pd.DataFrame(A, columns=NAMES).iloc[:, MIXED]
    with opened(frame, tmp_path) as rows:
        for _ in range(2):
            assert np.allclose(named.transform(rows), named.transform(A), rtol=0, atol=1e-12)
        assert rows.tables[0].names == tuple(frame.columns)
        assert np.array_equal(np.concatenate(rows.pieces), A[:, MIXED])


def test_a_shard_without_rows_may_have_its_columns_in_another_order(named):
    frame = pd.DataFrame(A, columns=NAMES).iloc[:, MIXED]
    for data in ([frame[:0], frame], lp.read([frame[:0], frame])):
        assert np.allclose(named.transform(data), named.transform(A), rtol=0, atol=1e-12)


def test_columns_in_another_order_stay_in_files_where_memory_is_short(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((200_000, 16)), columns=[f"c{j}" for j in range(16)])
    frame.iloc[:, ::-1].to_parquet(tmp_path / "rows.parquet")
    model = lp.svd(frame[:1000], 2, rng=0)
    with lp.read(tmp_path / "rows.parquet", memory="16MiB") as rows:
        assert rows.stored == frame.size * 8
        scores = model.transform(rows)
    assert np.allclose(scores, frame.to_numpy() @ model.components.T)


def test_columns_that_the_model_does_not_have_are_not_even_read(named, tmp_path):
    frame = pd.DataFrame(A, columns=NAMES).assign(more=np.arange(200.0)).iloc[:, ::-1]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pandas(frame), path, write_page_checksum=True)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.path_in_schema == "more"
    with open(path, "r+b") as stream:
        stream.seek(column.data_page_offset + 40)
        stream.write(bytes(200))
    with pytest.raises(lp.DataError, match="not a complete Parquet file"):
        lp.svd(path, 2)
    with pytest.warns(lp.DataHint, match="left out: 'more'"):
        scores = named.transform(path)
    assert np.allclose(scores, named.transform(A), rtol=0, atol=1e-12)


def test_positions_count_where_either_side_has_no_names(named):
    nameless = lp.pca(A, 3, scale="std", workers=2, rng=0)
    mixed = pd.DataFrame(A, columns=[NAMES[j] for j in MIXED])
    assert np.array_equal(nameless.transform(mixed), nameless.transform(A))
    assert np.array_equal(named.transform(pd.DataFrame(A)), named.transform(A))
    counted = lp.pca(pd.DataFrame(A), 3, scale="std", workers=2, rng=0)
    assert np.array_equal(counted.transform(mixed), nameless.transform(A))
    assert np.allclose(counted.transform(pd.DataFrame(A)[MIXED]), nameless.transform(A))
    with pytest.raises(lp.DataError, match="8 columns where the model has 9"):
        named.transform(pd.DataFrame(A[:, :8]))


def test_a_page_of_rows_with_columns_in_another_order_shows_the_same_scores(named):
    frame = pd.DataFrame(A, columns=NAMES)
    same, mixed = (look(named, rows).scores.points for rows in (frame, frame.iloc[:, MIXED]))
    assert np.allclose(same, mixed)


def test_a_result_shows_itself_in_a_line():
    text = repr(lp.svd(A, 2, method="local_power:steps=4", rng=0))
    assert text.startswith("Result(rank=2, columns=9, method='local_power'")


def test_components_of_a_shuffled_fit_are_those_of_the_rows():
    a = lp.svd(A, 3, method="dpi", workers=4, max_rounds=100, partition="shuffled", rng=0)
    b = lp.svd(A, 3, method="dpi", workers=4, max_rounds=100, rng=0)
    assert lp.subspace_distance(a.components.T, b.components.T) < 1e-12


SAVING = """
import json, os, signal, sys
import numpy as np
import localpower as lp
A = np.random.default_rng(0).standard_normal((50, 6))
model = lp.svd(A, 3, rng=0)
replace = os.replace

def save(folder, calls, when):
    done = 0

    def counted(a, b):
        nonlocal done
        done += 1
        if done == calls and when == "full":
            raise OSError(28, "No space left on device")
        if done == calls and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(a, b)

    os.replace = counted
    try:
        model.save(folder)
    except OSError:
        os._exit(3)
    os._exit(100 + done)

for line in sys.stdin:  # each save has a process of its own
    child = os.fork()
    if not child:
        save(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def saved():
    """Have a process save a model, perhaps be killed or without room; returns how it ended."""
    command = [sys.executable, "-c", SAVING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as run:

        def save(*how):
            print(json.dumps([str(how[0]), *how[1:]]), file=run.stdin, flush=True)
            return int(run.stdout.readline())

        yield save
        run.stdin.close()
        assert run.wait() == 0


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("when", ["before", "full"])
def test_a_save_that_is_killed_at_any_step_leaves_the_old_model_or_the_new(
    tmp_path, saved, when, old
):
    B = np.random.default_rng(0).standard_normal((50, 6))
    models = {k: lp.svd(B, k, rng=0) for k in (2, 3)}
    steps = saved(tmp_path / "count", 0, "never") - 100
    assert steps >= 2
    ranks = []
    for step in range(1, steps + 1):
        folder = tmp_path / str(step)
        if old:
            models[2].save(folder)
        assert saved(folder, step, when) == (3 if when == "full" else -signal.SIGKILL)
        if old or (folder / "run.json").exists():
            found = lp.Result.load(folder)
            ranks.append(found.run["rank"])
            assert same_bits(found, models[ranks[-1]])
            assert len(found.history) == len(models[ranks[-1]].history)
        else:
            ranks.append(0)  # there was no model before, and is none yet
        if when == "full" and step < steps:
            left = ["model.npz", "run.json"] if old else []
            assert sorted(p.name for p in folder.iterdir()) == left
        saved(folder, step, when)  # and once more, over what that left
        assert not old or lp.Result.load(folder).run["rank"] in (2, 3)
        models[2].save(folder)
        assert same_bits(lp.Result.load(folder), models[2])
        assert sorted(p.name for p in folder.iterdir()) == ["model.npz", "run.json"]
    assert ranks == sorted(ranks)
    assert ranks[-1] == 3


def test_a_model_with_the_arrays_of_another_is_refused(tmp_path):
    for k in (2, 3):
        lp.svd(A, k, rng=0).save(tmp_path / str(k))
    shutil.copy(tmp_path / "2" / "model.npz", tmp_path / "3" / "model.npz")
    with pytest.raises(lp.DataError, match=r"model\.npz is not the one that run\.json was written"):
        lp.Result.load(tmp_path / "3")


def test_a_model_of_a_version_that_kept_no_digest_is_read(tmp_path):
    model = lp.svd(A, 2, rng=0)
    model.save(tmp_path)
    content = json.loads((tmp_path / "run.json").read_text())
    assert content.pop("arrays")
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert same_bits(lp.Result.load(tmp_path), model)
    model.save(tmp_path)
    assert "arrays" in json.loads((tmp_path / "run.json").read_text())


def test_models_may_be_saved_and_loaded_at_once(tmp_path):
    models = [lp.svd(A, k, rng=0) for k in (1, 2, 3, 4)]
    models[0].save(tmp_path)

    def work(model):
        for _ in range(20):
            model.save(tmp_path)
            found = lp.Result.load(tmp_path)
            assert len(found.components) == found.run["rank"]
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, models))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.npz", "run.json"]
