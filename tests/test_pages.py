"""Pages of runs in a real browser: nothing is wrong, faint or cut off, and they answer."""

import browser
import numpy as np
import pandas as pd
import pytest
from helpers import with_spectrum

import localpower as lp
from localpower.core.errors import WorkerLost
from localpower.core.text import duration, size
from localpower.engines.inline import Inline

A = with_spectrum(300, 0.8 ** np.arange(12), seed=3)
TAIL = with_spectrum(400, np.r_[3, 2.5, 2.2, np.linspace(1, 0.8, 97)], seed=5)
PIXELS = with_spectrum(200, 0.8 ** np.arange(64), seed=4)
LONG = [f"a_very_long_name_of_a_measured_quantity_{'x' * 60}_<b>{n}</b>" for n in range(12)]
MARK = ".panel.{} [data-tip]"


class Broken(Inline):
    """Shard 1 never answers once the method has begun."""

    def map(self, task, order=None):
        asked = self.numbers(order)
        lost = 1 in asked and "PowerSteps" in type(task.task).__name__
        yield from super().map(task, [number for number in asked if not (lost and number == 1)])
        if lost:
            raise WorkerLost("it is gone")


def degraded():
    with pytest.warns(lp.DegradedWarning):
        return lp.svd(
            A,
            3,
            method="dpi",
            workers=4,
            engine=Broken(),
            faults=lp.Faults(on_loss="degrade"),
            rng=0,
        )


def stopped():
    with pytest.warns(lp.ConvergenceWarning):
        return lp.svd(A, 3, method="local_power:steps=4", tol=1e-12, max_rounds=6, workers=4, rng=0)


def unsure():
    with pytest.warns(lp.ConvergenceWarning, match="unsure"):
        return lp.svd(TAIL, 3, method="dpi", tol=1e-8, certainty="proven", workers=4, rng=0)


def named():
    return lp.pca(pd.DataFrame(A, columns=LONG), 3, workers=4, rng=0)


MANY = with_spectrum(500, np.linspace(2, 1, 400), seed=6)
KINDS = [f"kind {number % 30}" for number in range(500)]
TREES = pd.DataFrame(A, columns=[f"x{n}" for n in range(12)]).assign(
    kind=np.array(["oak", "elm", "ash"])[np.arange(300) % 3]
)


def labelled():
    return lp.pca(TREES.drop(columns="kind"), 3, workers=4, rng=0)


RUNS = {
    "certified": (lambda: lp.pca(A, 3, method="block_lanczos", tol=1e-8, workers=4, rng=0), A),
    "unsure": (unsure, TAIL),
    "tested": (lambda: lp.svd(TAIL, 3, method="dpi", tol=1e-8, workers=4, rng=0), TAIL),
    "not converged": (stopped, A),
    "one shot": (lambda: lp.svd(A, 3, method="uda", workers=4, rng=0), A),
    "exact": (lambda: lp.pca(A, 3, method="gram", workers=100, rng=0), A),
    "degraded": (degraded, A),
    "rank 1": (lambda: lp.svd(A, 1, workers=1, rng=0, return_u=True), None),
    "long names": (named, pd.DataFrame(A, columns=LONG)),
    "images": (lambda: lp.pca(PIXELS, 10, workers=3, rng=0), PIXELS),
    "labels": (labelled, lp.read(TREES, label="kind")),
    "many": (lambda: lp.pca(MANY, 300, "gram", rng=0), lp.read(MANY, labels=KINDS)),
    "no data": (lambda: lp.svd(A, 12, method="dpi", tol=1e-8, max_rounds=500, rng=0), None),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of the runs, each made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def page(name):
        if name not in made:
            run, data = RUNS[name]
            result = run()
            made[name] = result, result.report(folder / f"{name}.html", data)
        return made[name]

    return page


@pytest.mark.parametrize("name", RUNS)
def test_a_page_has_no_faults_in_light_or_dark_wide_or_narrow(chromium, pages, name):
    assert browser.faults(chromium, pages(name)[1], labels=(".chart", ".x, .y, .across, .up")) == []


def test_curves_are_drawn_and_hovering_tells_their_values(chromium, pages):
    result, path = pages("certified")
    known = [record for record in result.history if record.angle is not None]
    with browser.opened(chromium, path) as page:
        marks = page.locator(MARK.format("rounds"))
        assert marks.count() == len(known) > 1
        assert page.locator(".panel.rounds path.line").count() == 2
        for mark, record in zip(marks.all(), known, strict=True):
            mark.hover()
            said = page.locator("#tip").inner_text()
            assert f"round {record.round}," in said
            assert f"at most {record.angle:.2e}" in said
            assert f"residual {record.residual:.2e}" in said
            assert ("(proven)" in said) == (record.proven and record.angle < 1)
        page.mouse.move(5, 5)
        assert not page.locator("#tip").is_visible()


def test_points_stand_where_their_values_belong(chromium, pages):
    result, path = pages("not converged")
    angles = [np.log10(record.angle) for record in result.history]
    with browser.opened(chromium, path) as page:
        tops = page.locator(MARK.format("rounds")).evaluate_all(
            "marks => marks.map(mark => parseFloat(mark.style.top))"
        )
        labels = page.locator(".panel.rounds .y").evaluate_all(
            "marks => marks.map(mark => [mark.textContent, parseFloat(mark.style.top)])"
        )
    ticks = [(np.log10(float(text.replace("−", "-"))), top) for text, top in labels]
    (low, bottom), (high, top) = ticks[0], ticks[-1]
    expected = [bottom + (angle - low) / (high - low) * (top - bottom) for angle in angles]
    assert np.allclose(tops, expected, atol=0.01)


def test_the_keyboard_reaches_every_point(chromium, pages):
    result, path = pages("certified")
    with browser.opened(chromium, path) as page:
        page.locator("#by-rounds").focus()
        page.keyboard.press("Tab")
        first = page.locator("#tip").inner_text()
        page.keyboard.press("End")
        assert f"round {result.history[-1].round}," in page.locator("#tip").inner_text() != first
        page.keyboard.press("Home")
        page.keyboard.press("ArrowLeft")
        assert page.locator("#tip").inner_text() == first
        page.keyboard.press("Escape")
        assert not page.locator("#tip").is_visible()


def test_the_switch_changes_what_errors_are_drawn_against(chromium, pages):
    result, path = pages("certified")
    moved = sum(record.bytes_up + record.bytes_down for record in result.history)
    spent = sum(record.seconds for record in result.history)
    with browser.opened(chromium, path, 375) as page:
        for name in ("bytes", "seconds", "rounds"):
            page.locator(f"label[for=by-{name}]").click()
            for other in ("bytes", "seconds", "rounds"):
                assert page.locator(f".panel.{other}").is_visible() == (other == name)
            page.locator(MARK.format(name)).last.hover()
            said = page.locator("#tip").inner_text()
            assert f"{size(moved)} moved, {duration(spent)}" in said
        assert browser.overflowing(page) == []
        assert page.problems == []


def test_names_are_text_and_the_page_runs_no_script_but_its_own(chromium, pages):
    with browser.opened(chromium, pages("long names")[1]) as page:
        assert page.locator("script").count() == 1
        assert page.locator(".heavy span b b").count() == 0
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<b onclick=\"x=1\">go</b>')")
        page.locator("b", has_text="go").last.click()
        assert page.evaluate("typeof x") == "undefined"
        assert any("Content Security Policy" in problem for problem in page.problems)


def test_a_page_prints_in_dark_ink_on_one_width_of_paper(chromium, pages):
    with browser.opened(chromium, pages("certified")[1], 720, dark=True) as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        assert browser.overflowing(page) == []
        assert browser.faint(page) == []


@pytest.mark.parametrize("name", ["tested", "unsure"])
def test_points_tell_how_sure_they_are(chromium, pages, name):
    result, path = pages(name)
    last = result.history[-1]
    with browser.opened(chromium, path) as page:
        page.locator(MARK.format("rounds")).last.hover()
        said = page.locator("#tip").inner_text()
    assert (
        f"at most {last.angle:.2e} ({f'p = {last.p:.0e}' if last.p < 1 else 'not certain'})" in said
    )


def test_a_degraded_run_names_the_rows_that_are_missing(chromium, pages):
    with browser.opened(chromium, pages("degraded")[1]) as page:
        assert "rows 75 to 149" in page.locator("#verdict").inner_text()
        assert "it is gone" in page.locator("#faults").inner_text()


def test_images_are_shown_pixel_by_pixel(chromium, pages):
    with browser.opened(chromium, pages("images")[1]) as page:
        sizes = page.locator(".images img").evaluate_all(
            "all => all.map(one => [one.naturalWidth, one.naturalHeight])"
        )
        assert sizes == 10 * [[8, 8]]


def test_a_row_tells_its_number_and_label_where_the_pointer_is(chromium, pages):
    result, path = pages("labels")
    with browser.opened(chromium, path, 375) as page:
        dots = page.locator("#scores path.cloud")
        assert dots.count() == 300
        assert page.locator("#scores .key li").all_inner_texts() == ["ash", "elm", "oak"]
        colours = dots.evaluate_all("all => new Set(all.map(d => getComputedStyle(d).stroke)).size")
        assert colours == 3
        told = dots.evaluate_all("all => all.map(dot => dot.dataset.tip)")
        assert sorted(told)[:2] == ["row 0\nlabel: oak", "row 1\nlabel: elm"]
        far = int(np.argmax(result.transform(TREES.drop(columns="kind"))["pc1"]))
        dot = dots.nth(told.index(f"row {far}\nlabel: {TREES.kind[far]}"))
        page.locator("#scores .area").scroll_into_view_if_needed()
        box = dot.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
        assert page.locator("#tip").inner_text() == f"row {far}\nlabel: {TREES.kind[far]}"
        page.mouse.move(5, 5)
        assert not page.locator("#tip").is_visible()


def test_a_row_tells_its_number_without_the_script(chromium, pages):
    with browser.opened(chromium, pages("labels")[1], java_script_enabled=False) as page:
        assert page.locator("#scores path.cloud title").count() == 300


def test_many_labels_and_components_are_counted_not_listed(chromium, pages):
    with browser.opened(chromium, pages("many")[1], 375) as page:
        assert page.locator("#scores .key li").last.inner_text() == "20 other labels"
        assert "and 280 more components" in page.locator("#variance").inner_text()
        assert page.locator("#variance tbody tr").count() == 20
        assert page.locator("#variance path.line").count() == 2  # not bars below a pixel
        listed = page.locator("#repeat tbody tr").all_text_contents()
        assert max(map(len, listed)) < 450


def test_the_arrows_of_a_biplot_have_names_that_differ(chromium, pages):
    _, path = pages("long names")
    with browser.opened(chromium, path) as page:
        names = page.locator("#biplot .name").all_text_contents()
        assert len(set(names)) == len(names) == 8
        assert max(map(len, names)) <= 18
        page.set_viewport_size({"width": 375, "height": 900})
        ends = page.locator("#biplot .name b:last-child")
        assert len(set(ends.all_text_contents())) == 8
        assert not any(ends.evaluate_all("all => all.map(e => e.scrollWidth > e.clientWidth)"))
        heavy = page.locator("#components .heavy li").first.locator("span")
        shown = heavy.evaluate_all("all => all.map(s => s.firstChild.textContent)")
        assert len(set(shown)) == len(shown) == 5
        full = heavy.evaluate_all("all => all.map(s => s.title)")
        assert set(full) <= set(LONG)


def test_a_page_below_a_cell_answers_as_one_in_a_file(chromium, pages, tmp_path):
    result, _ = pages("labels")
    shown = result.report(data=RUNS["labels"][1])._repr_html_()
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{shown}", encoding="utf-8")
    with browser.opened(chromium, tmp_path / "cell.html", 800) as page:
        frame = page.frame_locator("iframe")
        frame.locator("#variance [data-tip]").first.hover()
        assert "component 1" in frame.locator("#tip").inner_text()
        assert page.problems == []
