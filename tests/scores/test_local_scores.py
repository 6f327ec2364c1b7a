"""Scores of rows on this machine: the same kind out, files a stretch at a time, ids beside them."""

import io
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import with_spectrum

import localpower as lp
from localpower.data import single_pass
from localpower.data.blocks import Options
from localpower.scores import write_scores
from localpower.scores.steps import ToScores

NAMES = list("abcdef")
A = with_spectrum(500, 0.7 ** np.arange(6), seed=1) * 10 + 50
FRAME = pd.DataFrame(A, columns=NAMES, index=[f"i{n}" for n in range(500)])
MODEL = lp.pca(FRAME, 3, scale="std", rng=0)
PLAIN = lp.pca(A, 3, scale="std", rng=0)
WANTED = ((A - A.mean(axis=0)) / MODEL.scale) @ MODEL.components.T
PC = ["pc1", "pc2", "pc3"]


def close(found, wanted=WANTED):
    return np.asarray(found).shape == wanted.shape and np.abs(found - wanted).max() <= 1e-12


def as_frame(kind, frame):
    if kind == "pandas":
        return frame
    if kind == "polars":
        return pytest.importorskip("polars").from_pandas(frame)
    return pytest.importorskip("pyarrow").Table.from_pandas(frame, preserve_index=False)


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_frames_give_frames_of_the_same_kind(kind):
    table = as_frame(kind, FRAME.assign(id=np.arange(500))[["id", *NAMES[::-1]]])
    scores = MODEL.transform(table, keep=["id"])
    assert type(scores) is type(table)
    names = scores.schema.names if kind == "pyarrow" else list(scores.columns)
    assert names == ["id", *PC]
    plain = scores.to_pandas() if kind != "pandas" else scores
    assert close(plain[PC].to_numpy())
    assert plain["id"].tolist() == list(range(500))
    back = MODEL.inverse_transform(MODEL.transform(as_frame(kind, FRAME)))
    assert type(back) is type(table)
    assert np.allclose(
        np.asarray(back.to_pandas() if kind != "pandas" else back), MODEL.inverse_transform(WANTED)
    )


def test_a_pandas_frame_keeps_its_index():
    assert MODEL.transform(FRAME).index.equals(FRAME.index)
    assert list(MODEL.inverse_transform(MODEL.transform(FRAME)).columns) == NAMES


@pytest.mark.parametrize(
    "rows", [A, sp.csr_array(A), A.tolist(), [A[:100], A[100:]], A.astype("f4")]
)
def test_all_else_gives_an_array(rows):
    scores = PLAIN.transform(rows)
    assert isinstance(scores, np.ndarray)
    narrow = getattr(rows, "dtype", None) == np.float32
    assert scores.dtype == (np.float32 if narrow else np.float64)
    assert np.abs(scores - WANTED).max() <= (1e-3 if narrow else 1e-12)


def test_rows_that_are_cut_into_stretches_have_the_same_scores(monkeypatch, tmp_path):
    np.save(tmp_path / "rows.npy", A)
    monkeypatch.setattr(single_pass, "STRETCH", 1)
    monkeypatch.setattr("localpower.worker.shard.BLOCK_BYTES", 1)  # a block is 128 rows then
    with single_pass.read_once(tmp_path / "rows.npy", ToScores.of(PLAIN).options()) as opened:
        assert len(list(opened.stretches)) == 4
    assert close(PLAIN.transform(tmp_path / "rows.npy"))
    assert close(PLAIN.transform(A))


def loaded(path):
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".csv":
        return pd.read_csv(path)[PC].to_numpy()
    if path.suffix == ".parquet":
        return pd.read_parquet(path)[PC].to_numpy()
    if path.suffix == ".h5":
        with pytest.importorskip("h5py").File(path) as file:
            return file["X"][:]
    return pytest.importorskip("zarr").open(str(path))[:]


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet", ".h5", ".zarr"])
@pytest.mark.parametrize("kind", ["array", "npy", "csv", "parquet", "folder"])
def test_scores_are_written_in_every_format(suffix, kind, tmp_path):
    data = tmp_path / f"rows.{kind}"
    if kind == "array":
        data = A
    elif kind == "npy":
        np.save(data, A)
    elif kind == "csv":
        FRAME.to_csv(data, index=False)
    elif kind == "parquet":
        FRAME.to_parquet(data, index=False)
    else:
        data.mkdir()
        for number, part in enumerate(np.array_split(np.arange(500), 3)):
            FRAME.iloc[part].to_parquet(data / f"{number}.parquet", index=False)
    out = tmp_path / f"scores{suffix}"
    for _ in range(2):  # what is there is replaced
        assert MODEL.transform(data, out=out, memory="64MB") == out
        assert close(loaded(out))
    rows = {str(path.name) for path in tmp_path.iterdir()} - {f"rows.{kind}"}
    assert rows == {out.name}  # nothing unfinished is left


def test_zarr_has_all_rows_where_they_are_more_than_a_chunk(monkeypatch, tmp_path):
    pytest.importorskip("zarr")
    monkeypatch.setattr("localpower.scores.writers.chunk_rows", lambda width: 7)
    monkeypatch.setattr(single_pass, "STRETCH", 1)
    assert close(loaded(PLAIN.transform(A, out=tmp_path / "scores.zarr")))
    assert close(loaded(PLAIN.transform(A, out=tmp_path / "scores.h5")))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".feather"])
def test_columns_are_kept_beside_scores_as_they_are(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("localpower.scores.kept.BATCH", 64)
    ids = [f"{n:04}" for n in range(500)]
    sites = [f"x,\n{n % 3}" if suffix != ".csv" else f"x,{n % 3}" for n in range(500)]
    frame = FRAME.reset_index(drop=True).assign(id=ids, site=sites)[
        ["b", "id", "a", "site", *"fedc"]
    ]
    paths = []
    for number, part in enumerate((frame[:200], frame[200:])):
        paths.append(tmp_path / f"{number}{suffix}")
        part = part.reset_index(drop=True)
        if suffix == ".csv":
            part.to_csv(paths[-1], index=False)
        else:
            (part.to_parquet if suffix == ".parquet" else part.to_feather)(paths[-1])
    for out in (tmp_path / "scores.csv", tmp_path / "scores.parquet"):
        MODEL.transform(paths, out=out, keep=("id", "site"))
        kinds = {"id": str, "site": str}
        found = pd.read_csv(out, dtype=kinds) if out.suffix == ".csv" else pd.read_parquet(out)
        assert list(found.columns) == ["id", "site", *PC]
        assert found["id"].tolist() == ids
        assert found["site"].tolist() == sites
        assert close(found[PC].to_numpy())


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_a_frame_is_written_with_its_ids(kind, tmp_path):
    table = as_frame(kind, FRAME.reset_index(drop=True).assign(id=np.arange(500)))
    MODEL.transform(table, out=tmp_path / "scores.parquet", keep="id")
    found = pd.read_parquet(tmp_path / "scores.parquet")
    assert found["id"].tolist() == list(range(500))
    assert close(found[PC].to_numpy())


@pytest.mark.parametrize("arrow", [True, False])
@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_what_is_kept_of_a_frame_has_its_gaps_and_its_type(kind, arrow, tmp_path, monkeypatch):
    text = [None, "a,b", "", "nan"]
    when = pd.Series(pd.to_datetime([1, None, 3, 4]), dtype="datetime64[ns]")
    frame = FRAME[:4].reset_index(drop=True).assign(text=text, when=when)
    frame["count"] = pd.array([1, None, 3, 4], dtype="Int64")
    table = as_frame(kind, frame)
    if not arrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    keep = ["text", "when", "count"]
    MODEL.transform(table, out=tmp_path / "scores.csv", keep=keep)
    lines = (tmp_path / "scores.csv").read_text().splitlines()[1:]
    assert [line.split(",")[-4] for line in lines] == ["1", "", "3", "4"]
    assert lines[0].startswith(",1970-01-01 00:00:00")
    assert lines[1].startswith('"a,b",,,')
    if arrow:
        MODEL.transform(table, out=tmp_path / "scores.parquet", keep=keep)
        found = pd.read_parquet(tmp_path / "scores.parquet")
        assert found["text"].isna().tolist() == [True, False, False, False]
        assert found["text"].tolist()[1:] == text[1:]
        pd.testing.assert_series_equal(found["when"], when, check_names=False)
        assert found["count"].tolist()[::2] == [1, 3]


def test_kept_columns_of_other_types_in_other_files_are_joined_or_refused_with_the_remedy(tmp_path):
    out, ids = tmp_path / "scores.parquet", ([1, 2], [None, None], [0.5, 1.5], ["x", "y"])
    for number, some in enumerate(ids):
        FRAME[:2].reset_index(drop=True).assign(id=some).to_parquet(tmp_path / f"{number}.parquet")
    one, none, half, word = (tmp_path / f"{number}.parquet" for number in range(4))
    MODEL.transform([none, word], out=out, keep="id")
    assert pd.read_parquet(out)["id"].tolist()[2:] == ["x", "y"]
    MODEL.transform([one, half], out=out, keep="id")
    assert pd.read_parquet(out)["id"].tolist() == [1, 2, 0.5, 1.5]
    with pytest.raises(lp.DataError, match=r"several types .*string.* or write \.csv") as caught:
        MODEL.transform([one, word], out=out, keep="id")
    assert "\n" not in str(caught.value)
    MODEL.transform([one, word], out=tmp_path / "scores.csv", keep="id")
    mixed = FRAME[:2].assign(id=[1, "x"])
    with pytest.raises(lp.DataError, match=r"several types .* write \.csv"):
        MODEL.transform(mixed, out=out, keep="id")
    MODEL.transform(mixed, out=tmp_path / "scores.csv", keep="id")


def gappy(tmp_path):
    """Two files in which every third value of a column is missing, the last row's, too."""
    paths = []
    for number in range(2):
        frame = FRAME[:7].reset_index(drop=True).assign(id=[f"{number}{n}" for n in range(7)])
        frame.loc[::3, "b"] = np.nan
        paths.append(tmp_path / f"{number}.csv")
        frame.to_csv(paths[-1], index=False)
    return paths


def test_rows_with_gaps_can_be_told_by_their_numbers(tmp_path, monkeypatch):
    paths, kept = gappy(tmp_path), [1, 2, 4, 5]
    how = Options(missing="drop")
    for chunk in (1 << 21, 80):  # all at once, or a line or two at a time
        monkeypatch.setattr("localpower.data.readers.text.CHUNK", chunk)
        with pytest.warns(lp.DataHint, match="left out"):
            table = write_scores(MODEL, paths, tmp_path / "s.csv", how, keep=["id"])
        with pytest.warns(lp.DataHint, match="the scores of 6 rows that are left out are NaN"):
            array = write_scores(MODEL, paths, tmp_path / "s.npy", replace(how, drop=["id"]))
        assert (table.rows, table.left_out) == (array.rows, array.left_out) == (14, 6)
        table = pd.read_csv(tmp_path / "s.csv", dtype={"id": str})
        assert list(table.columns) == ["row", "id", *PC]
        assert table["row"].tolist() == [*kept, *(7 + n for n in kept)]
        assert table["id"].tolist() == [f"{number}{n}" for number in range(2) for n in kept]
        assert close(table[PC].to_numpy(), np.vstack([WANTED[kept]] * 2))
        array = np.load(tmp_path / "s.npy")
        assert array.shape == (14, 3)
        assert np.isnan(array).all(axis=1).tolist() == [n % 7 % 3 == 0 for n in range(14)]
        assert close(array[kept], WANTED[kept])


def test_files_of_float32_before_float64_are_read_in_the_wider_type(tmp_path):
    np.save(tmp_path / "0.npy", A[:100].astype(np.float32))
    np.save(tmp_path / "1.npy", A[100:])
    paths = [tmp_path / "0.npy", tmp_path / "1.npy"]
    scores = PLAIN.transform(paths)
    assert scores.dtype == np.float64
    exact = (
        (A[:100].astype(np.float32).astype(float) - PLAIN.mean) / PLAIN.scale
    ) @ PLAIN.components.T
    assert np.abs(scores[:100] - exact).max() <= 1e-12
    assert close(np.load(PLAIN.transform(paths, out=tmp_path / "s.npy")), scores)


def test_memory_does_not_grow_with_the_rows(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", shape=(200_000, 100))
    rows[:] = 1.0
    rows.flush()
    model = lp.svd(np.eye(100), 2, rng=0)
    tracemalloc.start()
    try:
        model.transform(tmp_path / "rows.npy", out=tmp_path / "s.npy", memory="16MiB")
        assert tracemalloc.get_traced_memory()[1] < 60 << 20  # of 160 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("several", [False, True])
def test_scores_of_a_source_without_rows_with_gaps_can_be_joined(tmp_path, kind, several):
    pytest.importorskip("pyarrow")
    holes = FRAME.assign(id=[f"{n:03}" for n in range(500)], kind=np.arange(500) % 3)
    holes.iloc[[0, 7, 300, 499], 2] = np.nan
    for number, part in enumerate(np.split(np.arange(500), [200] if several else [])):
        table = holes.iloc[part].reset_index(drop=True)
        getattr(table, f"to_{kind}")(tmp_path / f"rows{number}.{kind}", index=False)
    with pytest.warns(lp.DataHint, match="4 of 500 rows are left out"):
        rows = lp.read([*sorted(tmp_path.glob("rows*"))], drop=["id"], label="kind", missing="drop")
    for name in ("s.csv", "s.parquet"):
        with pytest.warns(lp.DataHint, match="4 of 500 rows are left out"):
            MODEL.transform(rows, out=tmp_path / name, keep=["id", "kind"])
    for found in (
        pd.read_csv(tmp_path / "s.csv", dtype={"id": str}),
        pd.read_parquet(tmp_path / "s.parquet"),
    ):
        assert found["id"].astype(int).tolist() == found["row"].tolist()
        assert close(found[PC].to_numpy(), np.delete(WANTED, [0, 7, 300, 499], axis=0))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_kept_of_a_csv_file_has_its_spaces(tmp_path, end):
    texts = [",".join(map(repr, row)) for row in A[:2].tolist()]
    rows = [f" p ,{texts[0]}, q ", f'"",{texts[1]},"r "']
    for number in (1, 2):  # with quotes, another reader cuts the lines
        text = end.join([f"id,{','.join(NAMES)},z", *rows[:number], ""])
        (tmp_path / "rows.csv").write_bytes(text.encode())
        MODEL.transform(tmp_path / "rows.csv", out=tmp_path / "s.parquet", keep=["id", "z"])
        found = pd.read_parquet(tmp_path / "s.parquet")
        assert found["id"].tolist() == [" p ", ""][:number]
        assert found["z"].tolist() == [" q ", "r "][:number]


def test_hints_name_the_line_of_the_user_and_come_once(tmp_path):
    path = tmp_path / "rows.csv"
    FRAME.assign(id=np.arange(500), more=1.5).to_csv(path, index=False)
    with pytest.warns(lp.DataHint, match="left out: 'more'") as told:
        MODEL.transform(path, out=tmp_path / "s.csv", keep="id")
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize("out", ["s.csv", "s.parquet", "s.npy"])
def test_a_file_of_no_scores_is_not_written(tmp_path, out):
    pytest.importorskip("pyarrow")
    FRAME.assign(a=np.nan).to_csv(tmp_path / "gaps.csv", index=False)
    FRAME[:0].to_parquet(tmp_path / "none.parquet", index=False)
    with pytest.raises(lp.DataError, match=r"missing in each of the 500 rows, .* missing='mean'"):
        write_scores(MODEL, tmp_path / "gaps.csv", tmp_path / out, Options(missing="drop"))
    with pytest.raises(lp.DataError, match=r"no rows to write to .*; give at least one"):
        MODEL.transform(tmp_path / "none.parquet", out=tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gaps.csv", "none.parquet"]


def test_what_cannot_be_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    FRAME.to_csv(path, index=False)
    cases = [
        (ValueError, "scores are written as .npy, .csv", {"out": tmp_path / "s.txt"}),
        (ValueError, "holds numbers only; write a table", {"out": tmp_path / "s.npy", "keep": "a"}),
        (ValueError, "is also data; give another name", {"out": path}),
        (ValueError, "would be there twice", {"out": tmp_path / "s.csv", "keep": ["a", "a"]}),
        (lp.DataError, "columns that are not there: 'z'", {"out": tmp_path / "s.csv", "keep": "z"}),
        (ValueError, "no place for other columns; give out=", {"keep": "a"}),
        (FileNotFoundError, "does not exist; make it", {"out": tmp_path / "no" / "s.csv"}),
        (ValueError, "is a folder", {"out": tmp_path.with_suffix(".npy")}),
    ]
    tmp_path.with_suffix(".npy").mkdir()
    for error, match, how in cases:
        with pytest.raises(error, match=match):
            MODEL.transform(path, **how)
    assert path.read_text() == FRAME.to_csv(index=False)
    assert not (tmp_path / "s.csv").exists()
    np.save(tmp_path / "rows.npy", A)
    with pytest.raises(lp.DataError, match="needs columns with names, as CSV"):
        MODEL.transform(tmp_path / "rows.npy", out=tmp_path / "s.csv", keep="a")
    with pytest.raises(lp.DataError, match="needs columns with names; give a data frame"):
        MODEL.transform(A, out=tmp_path / "s.csv", keep="a")
    with pytest.raises(ValueError, match="is a function, which tells the rows of a rank"):
        MODEL.transform(lambda rank: A)
    with pytest.raises(lp.DataError, match="has 5 columns where the model has 6"):
        MODEL.transform(A[:, :5])
    with pytest.raises(ValueError, match=r"scores must be \(n, 3\)"):
        MODEL.inverse_transform(A)


def test_a_row_that_is_not_finite_is_named(tmp_path):
    bad = A.copy()
    bad[317, 2] = np.nan
    np.save(tmp_path / "rows.npy", bad)
    for rows, where in ((tmp_path / "rows.npy", r"rows\.npy, row 317"), (bad, "data, row 317")):
        with pytest.raises(lp.DataError, match=f"NaN or infinity in .*{where}"):
            PLAIN.transform(rows)
    frame = pd.DataFrame(bad, columns=NAMES)
    for out in (None, tmp_path / "scores.csv"):
        with pytest.raises(lp.DataError, match="NaN or infinity in data, row 317") as refused:
            MODEL.transform(frame, out=out)
        assert str(refused.value).count("localpower.read(data, missing=…) as data") == 1
    with pytest.warns(lp.DataHint):
        assert np.isfinite(MODEL.transform(lp.read(frame, missing="mean"))).all(axis=None)


def test_a_column_that_is_empty_is_filled_with_the_mean_of_a_centred_model(tmp_path, capsys):
    from localpower.cli import main

    rows = A[:5].copy()
    rows[:, 1] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    command = [str(tmp_path / "rows.npy"), "-o", str(tmp_path / "s.npy"), "--missing", "mean"]
    lp.svd(A, 3, rng=0).save(tmp_path / "plain")
    assert main(["transform", str(tmp_path / "plain"), *command])
    told = capsys.readouterr().err
    assert "the model needs it" in told
    assert "--center" in told
    assert "--drop" not in told
    lp.pca(A, 3, rng=0).save(tmp_path / "centred")
    assert not main(["transform", str(tmp_path / "centred"), *command])


def test_names_with_commas_are_kept_in_quotes(tmp_path):
    from localpower.cli import main

    frame = pd.DataFrame(A, columns=NAMES).assign(**{"id, old": range(len(A)), "x": 1})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    MODEL.save(tmp_path / "model")
    where = [str(tmp_path / name) for name in ("model", "rows.csv", "s.csv")]
    assert not main(["transform", *where[:2], "-o", where[2], "--keep", 'x,"id, old"'])
    assert pd.read_csv(where[2])["id, old"].tolist() == list(range(len(A)))


@pytest.mark.parametrize("label", ["target", 6, "6"])
def test_new_rows_need_no_label(label, tmp_path):
    FRAME.assign(target=1).to_csv(tmp_path / "old.csv", index=False)
    FRAME.to_csv(tmp_path / "new.csv", index=False)
    how = Options(label=label)
    for name in ("old.csv", "new.csv"):
        if name == "old.csv" and label == "target":
            write_scores(MODEL, tmp_path / name, tmp_path / "s.npy", how)
        else:
            write_scores(MODEL, tmp_path / "new.csv", tmp_path / "s.npy", how)
        assert close(np.load(tmp_path / "s.npy"))
    np.save(tmp_path / "new.npy", A)
    write_scores(PLAIN, tmp_path / "new.npy", tmp_path / "s.npy", Options(label=label, drop=["id"]))
    assert close(np.load(tmp_path / "s.npy"))


def test_left_vectors_are_of_the_kind_of_the_data():
    given = lp.pca(FRAME, 3, rng=0, return_u=True)
    found = lp.pca(FRAME, 3, rng=0, return_u="engine")
    assert list(found.U.columns) == ["u1", "u2", "u3"]
    assert np.abs(found.U.to_numpy() - given.U).max() <= 1e-12
    assert isinstance(lp.pca(A, 3, rng=0, return_u="engine").U, np.ndarray)
    parts = lp.pca(lambda number: A[250 * number :][:250], 3, rng=0, workers=2, return_u="engine")
    assert np.abs(parts.U - given.U).max() <= 1e-12
    with pytest.raises(ValueError, match="a generator yields them once"):
        lp.pca(iter([A]), 3, return_u="engine")
    with pytest.raises(ValueError, match=r"return_u='cluster' .* give True, False or 'engine'"):
        lp.pca(A, 3, return_u="cluster")


def test_left_vectors_that_stay_with_rows_are_not_saved(tmp_path):
    lp.pca(FRAME, 3, rng=0, return_u="engine").save(tmp_path / "model")
    assert lp.Result.load(tmp_path / "model").U is None


def test_a_left_vector_of_a_singular_value_of_zero_is_zero():
    rows = np.outer(np.arange(1.0, 9.0), [1.0, 2.0, 4.0])
    found = lp.svd(rows, 2, "tsqr", return_u="engine")
    assert np.isfinite(found.U).all()


def test_text_that_is_kept_is_what_was_written(tmp_path):
    text = io.StringIO()
    FRAME[:3].assign(id=['a"b', " c ", ""]).to_csv(text, index=False)
    (tmp_path / "rows.csv").write_text(text.getvalue())
    out = MODEL.transform(tmp_path / "rows.csv", out=tmp_path / "s.parquet", keep="id")
    assert pd.read_parquet(out)["id"].tolist() == ['a"b', " c ", ""]


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_gaps_of_new_rows_are_left_out_or_filled_with_the_means_of_the_model(tmp_path, kind):
    rows, places = FRAME[:40].reset_index(drop=True), [0, 7, 8, 39]
    rows.loc[places, "b"] = np.nan
    path = tmp_path / f"rows.{kind}"
    if kind == "npy":
        np.save(path, rows[list("abcdef"[: MODEL.components.shape[1]])].to_numpy())
    else:
        getattr(rows, f"to_{kind}")(path, index=False)
    with pytest.warns(lp.DataHint, match="4 rows that are left out are NaN"):
        done = write_scores(MODEL, path, tmp_path / "s.npy", Options(missing="drop"))
    assert (done.rows, done.left_out) == (40, 4)
    found = np.load(tmp_path / "s.npy")
    full = np.setdiff1d(np.arange(40), places)
    assert np.isnan(found[places]).all()
    assert close(found[full], WANTED[full])
    write_scores(MODEL, path, tmp_path / "s.npy", Options(missing="mean"))
    names = list(MODEL.run["names"])
    whole = rows[names].fillna({"b": MODEL.mean[names.index("b")]})
    assert close(np.load(tmp_path / "s.npy"), MODEL.transform(whole.to_numpy()))
