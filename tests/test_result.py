"""Results: on disk, continued, seeded, stopped."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers import same_bits, with_spectrum

import localpower as lp

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
    assert "converged: sine of the angle to the answer at most" in text
    assert len(text.splitlines()) == 3 + 1 + 3
    many = str(lp.svd(np.eye(40), 30, method="tsqr", rng=0))
    assert "exact, up to rounding" in many
    assert many.endswith("and 10 components more")
    assert "give tol=" in str(lp.svd(A, 3, method="dpi", rng=0))


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


def test_a_model_with_a_pickle_in_it_is_refused(tmp_path):
    lp.svd(A, 2, rng=0).save(tmp_path)
    np.savez(tmp_path / "model.npz", components=np.array([{"a": 1}], dtype=object))
    with pytest.raises(lp.DataError, match="not a readable model"):
        lp.Result.load(tmp_path)


def test_a_model_is_not_written_over_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is no directory"):
        lp.svd(A, 2, rng=0).save(tmp_path / "file")


def test_the_same_seed_gives_the_same_bits_and_is_recorded():
    a, b = (lp.svd(A, 3, workers=5, shuffle=True, rng=7) for _ in range(2))
    assert same_bits(a, b)
    fresh = lp.svd(A, 3, workers=5, shuffle=True)
    assert same_bits(fresh, lp.svd(A, 3, workers=5, shuffle=True, rng=fresh.run["seed"]))
    generator = lp.svd(A, 3, workers=5, shuffle=True, rng=np.random.default_rng(7))
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

    result = lp.svd(A, 3, width=5, steps=2, workers=3, rng=0, callback=callback)
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
        shuffle=np.True_,
        schedule=lambda t: np.int64(2),
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


def test_a_result_shows_itself_in_a_line():
    text = repr(lp.svd(A, 2, steps=4, rng=0))
    assert text.startswith("Result(rank=2, columns=9, method='local_power'")


def test_components_of_a_shuffled_fit_are_those_of_the_rows():
    a = lp.svd(A, 3, method="dpi", workers=4, max_rounds=100, shuffle=True, rng=0)
    b = lp.svd(A, 3, method="dpi", workers=4, max_rounds=100, rng=0)
    assert lp.subspace_distance(a.components.T, b.components.T) < 1e-12
