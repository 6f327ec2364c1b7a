"""What the page and the pictures of a run show, and that it is true."""

import re
import resource
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from helpers import ENGINES, METHODS, same_bits, with_spectrum
from hypothesis import given
from hypothesis import strategies as st

import localpower as lp
from localpower.cli import commands as cli
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.engines.inline import Inline
from localpower.engines.ledgered import KEPT, Ledgered
from localpower.engines.retrying import Retrying
from localpower.show import report
from localpower.show import rows as rows_of_runs
from localpower.show import summary as overview
from localpower.show.chart import linear, logarithmic
from localpower.show.rows import look
from localpower.show.scatter import biplot, groups
from localpower.worker.replies import SLOWEST, Done, MeasuredReply, Product
from localpower.worker.tasks import Describe
from localpower.worker.wire import encode

A = with_spectrum(300, 0.7 ** np.arange(12), seed=3)
EVIL = '"><script>window.hacked = 1</script><img src=x onerror="hacked=1">&'


def norm(M):
    return np.abs(np.linalg.eigvalsh(M)).max()


def plain_etas(shards):
    """The definition, written out."""
    M = np.concatenate(shards).T @ np.concatenate(shards) / sum(map(len, shards))
    return [norm(shard.T @ shard / len(shard) - M) / norm(M) for shard in shards]


# Heterogeneity: the numbers, of the shards that the run had


@pytest.mark.parametrize("center", [False, True])
def test_differences_of_shards_are_those_of_the_definition(center):
    result = lp.svd(A, 3, workers=5, center=center, scale="max", rng=0)
    rows = (A - (A.mean(axis=0) if center else 0)) / np.abs(A).max(axis=0)
    found = look(result, A).unlike
    assert np.allclose(found.etas, plain_etas(np.array_split(rows, 5)), rtol=1e-8)
    assert found.error == 0
    assert found.farthest == np.argmax(found.etas)
    if not center:
        assert np.isclose(found.etas.max(), lp.eta(np.array_split(rows, 5)))


@pytest.mark.parametrize("how", ["shuffled", "dirichlet:0.4", "label"])
def test_rows_are_cut_as_the_run_cut_them(how):
    labels = np.arange(300) % 3
    data = lp.read(A, labels=labels)
    seen = []

    class Seen(Inline):
        def place(self, shards):
            super().place(shards)
            seen.extend(np.vstack(list(shard.blocks())) for shard in shards)

    result = lp.svd(data, 2, engine=Seen(), partition=how, workers=3, rng=7)
    assert np.allclose(look(result, data).unlike.etas, plain_etas(seen), rtol=1e-8)


def test_estimates_of_many_columns_are_as_near_as_they_say(monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 40)) * 0.6 ** np.arange(40)
    rows[350:] += 3 * rng.standard_normal(40)
    result = lp.pca(rows, 6, workers=8, rng=0)
    exact = look(result, rows).unlike.etas
    monkeypatch.setattr(rows_of_runs, "EXACT_COLUMNS", 10)
    found = look(result, rows).unlike
    assert 0 < found.error < 0.1
    assert np.abs(found.etas - exact).max() <= found.error + 0.02
    assert found.farthest == 7
    assert found.stands_out
    assert "off by" in report.page(result, rows)


def test_what_cannot_be_known_is_said():
    result = lp.svd(A, 2, workers=3, partition="shuffled", rng=np.random.default_rng(0))
    assert "generator" in look(result, A).unlike
    assert "the run had 300" in look(result, A[:99]).unlike
    assert "data=data" in look(result).unlike
    assert "return_u=True" in report.page(result)
    with pytest.raises(ValueError, match="data has 5 columns where the model has 12"):
        result.report("page.html", A[:, :5])


def test_rows_without_columns_to_spare_and_shards_without_rows_are_fine(tmp_path):
    shards = [A[:100], A[:0], A[100:]]
    result = lp.svd(shards, 12, rng=0, return_u=True)
    assert np.isnan(look(result, shards).unlike.etas[1])
    result.report(tmp_path / "page.html", shards)
    zero = lp.svd(np.zeros((20, 4)), 1, rng=0)
    zero.report(tmp_path / "page.html", np.zeros((20, 4)))


# Scores


def test_scores_are_drawn_evenly_and_agree_with_the_left_vectors(monkeypatch):
    monkeypatch.setattr(rows_of_runs, "MOST_POINTS", 50)
    result = lp.pca(A, 3, workers=4, rng=0, return_u=True)
    some = np.round(np.linspace(0, 299, 50)).astype(int)
    from_data, from_left = look(result, A).scores, look(result).scores
    assert np.allclose(from_data.points, result.transform(A)[some, :2])
    assert np.allclose(from_data.points, from_left.points)
    assert "50, evenly drawn, of 300 rows" in report.page(result, A)


# Times


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_every_engine_tells_how_long_its_shards_took(engine):
    result = lp.svd(A, 3, method="local_ritz", workers=6, engine=engine, rng=0)
    rounds = result.run["timeline"]["rounds"]
    assert [(r["phase"], r["task"]) for r in rounds] == [
        (r.phase, r.task) for r in result.ledger.records
    ]
    for entry, bar in zip(rounds, overview.timeline(result), strict=True):
        assert entry["timed"] == entry["replies"]
        assert len(entry["slowest"]) == min(SLOWEST, entry["replies"])
        times = [seconds for seconds, _ in entry["slowest"]]
        assert times == sorted(times, reverse=True)
        assert sum(times) <= entry["work"] + 1e-5
        assert {shard for _, shard in entry["slowest"]} <= set(range(6))
        assert min(bar.compute, bar.wait, bar.rest) >= 0
        assert np.isclose(bar.compute + bar.wait + bar.rest, bar.seconds)


def test_times_add_up_in_any_grouping():
    replies = [MeasuredReply(Done(), 1, 8, 0, 1, "", n, n / 8, 1) for n in range(9)]
    one_by_one = sum(replies[1:], replies[0])
    halves = sum(replies[1:4], replies[0]) + sum(replies[5:], replies[4])
    for total in (one_by_one, halves):
        assert (total.count, total.timed, total.seconds) == (9, 9, 4.5)
        assert total.slowest == tuple((n / 8, n) for n in range(8, 8 - SLOWEST, -1))


def test_times_of_very_many_rounds_stay_bounded():
    with Ledgered(Retrying(Inline())) as engine:
        engine.place(contiguous(open_source(A), 2).shards)
        for _ in range(2 * KEPT + 10):
            engine.sum(Describe(extremes=False))
        assert len(engine.timeline["rounds"]) == 2 * KEPT
        assert engine.timeline["left_out"] == 10


def test_the_shard_that_holds_others_up_is_named():
    bars = [overview.Bar("iterate", "PowerSteps", 1.0, 0.3, 0.6, 0.1, 0.3, 3, 3, ((0.9, 2),))] * 4
    (worst,) = overview.stragglers(bars)
    assert (worst.shard, worst.rounds, worst.holds_up) == (2, 4, True)
    assert not overview.stragglers([replace(bar, timed=1) for bar in bars])


def test_all_that_is_sent_besides_numbers_is_small():
    reply = MeasuredReply(
        Product(np.ones((99, 9))), 891, 7128, 0, 1, "123.0", 4567, 0.1234567890123, 1
    )
    for message in (reply, sum([reply] * 9, reply)):
        assert sum(len(part) for part in encode(message)) - 99 * 9 * 8 < 500


# Words


LONG_TAIL = with_spectrum(400, np.r_[3, 2.5, 2.2, np.linspace(1, 0.8, 97)], seed=5)
VERDICTS = {
    "Certified": {"method": "local_ritz", "tol": 1e-8},
    "Exact, up to rounding": {"method": "tsqr"},
    "Nothing is certified": {"method": "uda"},
    "Ended with a known bound": {"method": "block_lanczos", "max_rounds": 3},
    "Nothing is certified yet": {"method": "block_krylov:start=random", "max_rounds": 1},
}


@pytest.mark.parametrize("title", VERDICTS)
def test_the_verdict_says_what_is_known(title):
    result = lp.svd(A, 3, workers=4, rng=0, **VERDICTS[title])
    found = overview.verdict(result)
    assert found.title == title
    if (result.history[-1].angle or 1) < 1:
        assert f"at most {result.history[-1].angle:.1e}" in found.text
    proven = bool(result.history[-1].proven)
    assert (overview.PROVEN in found.text) == proven == (title not in ("Nothing is certified",
        "Nothing is certified yet"))  # fmt: skip


SURE = {
    overview.PROVEN: {"method": "local_ritz", "tol": 1e-6},
    overview.TESTED: {"method": "block_lanczos", "tol": 1e-6},
    overview.DOUBTED: {"method": "block_lanczos", "max_rounds": 5},
    overview.UNTESTED: {"method": "block_lanczos", "tol": 1e-6, "certainty": "proven"},
}


@pytest.mark.filterwarnings("ignore::localpower.ConvergenceWarning")
@pytest.mark.parametrize("words", SURE, ids=["proven", "tested", "doubted", "untested"])
def test_a_bound_is_stated_as_surely_as_it_is_known_and_no_more(words):
    result = lp.svd(LONG_TAIL, 3, workers=4, rng=0, **SURE[words])
    last, known = result.history[-1], result.certificate
    sure = known.sure(1e-6) and words != overview.UNTESTED
    assert last.angle < 1
    assert (last.proven, last.p) == (known.proven, known.p)
    said = words.format(overview.odds(known.p)) if "{}" in words else words
    texts = overview.verdict(result).text, str(result), report.page(result)
    if result.run["tol"]:
        asked = ", proven" if words == overview.UNTESTED else ", proven or with p ≤ 1e−6"
        assert f"to a sine of 1e−6{asked}<" in texts[-1]
    assert all(said in text for text in texts)
    assert all(("if nothing was missed" in text.lower()) == (not sure) for text in texts)
    assert result.converged == (sure and result.run["tol"] > 0)
    exact = np.linalg.svd(LONG_TAIL)[2][:3].T
    assert lp.subspace_distance(exact, result.components.T) <= 10 * last.angle


def test_odds_are_rounded_down_to_two_digits_and_never_promise_more_than_p():
    for p in (0.9, 0.5, 0.031, 1e-3, 8.2e-7, 3e-12):
        times = int(overview.odds(p).removeprefix("at most once in ").split()[0].replace(",", ""))
        assert 0.9 / p <= times * 1.1 <= 1.1 / p


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page(method):
    result = lp.pca(A, 2, method=method, workers=3, rng=0)
    tags = Tags(report.page(result))
    assert tags.found.count("section") == 9
    assert "shards on threads" in report.page(result)


def test_a_run_that_did_not_converge_says_what_to_change():
    with pytest.warns(lp.ConvergenceWarning):
        result = lp.svd(
            A, 3, method="local_power:steps=4", tol=1e-12, max_rounds=3, workers=4, rng=0
        )
    found = overview.verdict(result)
    assert (found.mood, found.title) == ("poor", "Not converged")
    assert "max_rounds" in found.advice


# The page is text of ours, and nothing of others becomes markup


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found, self.attributes = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_nothing_in_names_or_paths_becomes_markup(tmp_path):
    folder = tmp_path / "a'&<b>"
    folder.mkdir()
    names = [f"{EVIL}{number}" for number in range(12)]
    for number, part in enumerate(np.array_split(A, 2)):
        pd.DataFrame(part, columns=names).to_parquet(folder / f"{number}<i>.parquet")
    result = lp.svd(str(folder), 2, rng=0)
    result = replace(result, run={**result.run, "command": [EVIL], "why": EVIL, "engine": EVIL})
    fault = {"round": 1, "shards": [0], "what": EVIL, "then": EVIL}
    result = replace(result, run={**result.run, "faults": [fault]})
    tags = Tags(report.page(result, str(folder)))
    assert tags.found.count("script") == 1
    assert not {"img", "b>"} & set(tags.found)
    assert not [name for name in tags.attributes if name.startswith("on")]


def test_the_page_asks_for_nothing_from_elsewhere():
    page = report.page(lp.pca(A, 3, rng=0), A)
    assert not re.findall(r"(?:src|href)=\"(?!data:)|url\(|@import|https?:", page)


# Options


def test_columns_are_images_only_where_nothing_speaks_against_it():
    def of(columns, grid=None, **run):
        result = lp.svd(np.eye(columns), 1, method="tsqr", rng=0)
        return overview.grid_of(replace(result, run={**result.run, **run}), grid)

    assert of(64) == (8, 8)
    assert of(36) is None
    assert of(65) is None
    assert of(64, names=[f"gene {n}" for n in range(64)]) is None
    assert of(64, names=[f"pixel_{n}" for n in range(64)]) == (8, 8)
    assert of(65, (5, 13)) == (5, 13)
    with pytest.raises(ValueError, match="grid=5x5 has 25 places, and there are 64 columns"):
        of(64, (5, 5))
    for grid in ("8x8", 8, (6.4, 10)):
        with pytest.raises(TypeError, match=r"grid=.* must be two whole numbers, as \(8, 8\)"):
            of(64, grid)


def test_pages_are_written_where_they_can_be(tmp_path):
    result = lp.svd(A, 2, rng=0)
    with pytest.raises(ValueError, match=r"\.html or \.htm; give such a name"):
        result.report(tmp_path / "page.pdf")
    with pytest.raises(ValueError, match="make it first"):
        result.report(tmp_path / "none" / "page.html")
    with pytest.raises(TypeError, match="path is of type ndarray: give a name; rows are data="):
        result.report(A)


def test_a_page_that_finds_no_room_leaves_the_one_before_and_is_named(tmp_path):
    result, path = lp.svd(A, 2, rng=0), tmp_path / "page.html"
    before = result.report(path).read_bytes()
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, usual[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*page\.html"):
            result.report(path, A)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_pictures_are_drawn_of_what_is_known(tmp_path):
    result = lp.pca(A, 3, method="dpi", tol=1e-8, max_rounds=99, workers=4, rng=0)
    for kind in ("convergence", "variance", "components", "scores", "shards", "timeline"):
        figure = result.plot(kind, A)
        assert len(figure.axes) == 1 + (kind == "components")  # and its colour bar
    result.plot(data=A, grid=(3, 4)).savefig(tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match=r"kind='scores': give data=, or run with return_u"):
        result.plot("scores")
    with pytest.raises(ValueError, match="kind='pie' is not known"):
        result.plot("pie")
    with pytest.raises(ValueError, match=r"kind of type ndarray is not known: .* rows are data="):
        result.plot(A)


def test_a_legend_lies_on_no_part_of_a_picture():
    result = lp.pca(A, 3, method="dpi", tol=1e-8, max_rounds=99, workers=4, rng=0)
    for kind in ("convergence", "variance", "scores", "timeline"):
        figure = result.plot(kind, lp.read(A, labels=np.arange(300) % 3))
        figure.draw_without_rendering()
        (part,) = figure.subfigs
        (legend,) = part.legends
        whole, drawn = figure.bbox, legend.get_window_extent()
        assert drawn.y1 <= part.axes[0].get_tightbbox().y0 + 1
        assert whole.x0 <= drawn.x0
        assert drawn.x1 <= whole.x1


def test_a_biplot_has_an_arrow_for_each_heavy_column_and_names_that_keep_apart():
    result = lp.pca(A, 3, workers=4, rng=0)
    for data in (None, A):
        chart = biplot(result, look(result, data))
        arrows, names = chart.series[-1], chart.names
        weights = result.components[:2] * np.sqrt(result.explained_variance[:2])[:, None]
        first = np.argsort(-np.hypot(*weights))[:8]
        assert [name.tip for name in names] == [f"column {j}" for j in first]
        assert np.allclose(arrows.x[0] * weights[1, first], arrows.y * weights[0, first[0]])
        for left in (True, False):
            high = sorted(name.y for name in names if (name.x < 0) is left)
            assert min(np.diff(high), default=1) >= 0.06 * (chart.y.high - chart.y.low)
    assert "fit with rank=2" in biplot(lp.pca(A, 1, rng=0), look(result))
    with pytest.raises(ValueError, match=r"kind='biplot': .* fit with rank=2"):
        lp.pca(A, 1, rng=0).plot("biplot")


def test_rows_are_grouped_by_labels_or_by_ranges_and_every_row_once():
    def labels(values):
        found = groups(np.asarray(values))
        assert (sum(group.rows.astype(int) for group in found) == 1).all()
        return [(group.label, int(group.rows.sum())) for group in found]

    assert labels(["b", "a", "b", ""]) == [("a", 1), ("b", 2), ("no label", 1)]
    assert labels([1, 0, 1]) == [("0", 1), ("1", 2)]
    assert labels([True, False]) == [("False", 1), ("True", 1)]
    assert labels([None, "x"]) == [("x", 1), ("no label", 1)]
    many = [f"{n:02d}" for n in range(15)] + ["14"] * 3 + [""]
    assert labels(many)[-2:] == [("14", 4), ("5 other labels", 6)]
    ranges = labels(np.r_[np.arange(100.0), np.nan, np.inf])
    assert [label for label, _ in ranges][::4] == ["0 to 19.8", "79.2 to 99"]
    assert [count for _, count in ranges] == [20, 20, 20, 20, 20, 2]
    assert labels([np.nan]) == [("no label", 1)]


@given(
    st.lists(st.text("ab_", min_size=1, max_size=40), unique=True, max_size=30), st.integers(12, 30)
)
def test_short_names_are_short_and_differ(names, most):
    short = overview.distinct(names, most)
    assert len(set(short)) == len(short)
    assert max(map(len, short), default=0) <= most
    assert all(new == old for new, old in zip(short, names, strict=True) if len(old) <= most)


# The command line, and doing it again


def test_fit_and_report_write_pages(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", A)
    rows, model = str(tmp_path / "rows.npy"), str(tmp_path / "model")
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    asked = ["fit", rows, "-k", "2", "--center", "-o", model, "--report", str(first)]
    assert cli.main([*asked, "--grid", "3x4"]) == 0
    assert cli.main(["report", model, "-o", str(second), "--data", rows, "--grid", "3x4"]) == 0
    assert first.read_text() == second.read_text()
    assert "3 × 4 pixels" in first.read_text()
    result = lp.Result.load(model)
    command = result.run["command"]
    assert command[:-4] == ["localpower", *asked, "--grid", "3x4"]
    seed, workers = (str(result.run[name]) for name in ("seed", "workers"))
    assert command[-4:] == ["--seed", seed, "--workers", workers]
    assert cli.main(command[1:]) == 0
    assert same_bits(result, lp.Result.load(model))
    assert cli.main([*asked[:-1], "page.txt"]) == 2
    assert cli.main(["report", model, "-o", str(second), "--grid", "5x5"]) == 2
    assert "product" in capsys.readouterr().err


def test_the_call_on_record_gives_the_same_bits(tmp_path):
    np.save(tmp_path / "rows.npy", A)
    for options in (
        {"method": "dpi", "partition": "shuffled", "center": True, "return_u": True},
        {
            "method": "local_power:schedule={0,2,5}",
            "max_rounds": 2,
            "workers": 3,
            "rng": np.int64(4),
        },
    ):
        result = lp.svd(tmp_path / "rows.npy", 2, **options)
        again = eval(result.run["call"], {"localpower": lp})
        assert same_bits(result, again)


def test_help_starts_with_an_example_and_fits_a_screen(capsys):
    with pytest.raises(SystemExit):
        cli.main(["report", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert any("localpower report model -o run.html" in line for line in lines[:4])
    assert len(lines) <= 24


# Axes


@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=5), st.booleans())
def test_a_logarithmic_axis_has_room_for_its_values_and_a_few_true_labels(values, tight):
    axis = logarithmic(values, "", tight=tight)
    assert axis.low <= min(values) * (1 + 1e-6)
    assert axis.high * 1.13 >= max(values)
    assert 2 <= len(axis.ticks) <= 10
    for place, label in axis.ticks:
        assert axis.low <= place <= axis.high
        assert float(label) == pytest.approx(place)


@given(st.floats(-1e6, 1e6), st.floats(1, 1e9))
def test_a_linear_axis_has_round_numbers_within_its_limits(low, span):
    axis = linear(low, low + span, "")
    places = [place for place, _ in axis.ticks]
    assert len(places) <= 6
    room = 1e-6 * (axis.high - axis.low)
    assert all(axis.low - room <= place <= axis.high + room for place in places)
    assert np.allclose(np.diff(places, 2), 0, atol=room)
