"""The coordinator's engine: the bits of the inline ring, and what happens when sites fail."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from federated import NAMES, again, ask, engine_of, opened, rows, said, sites, thirds
from scipy import sparse

import localpower as lp
from localpower.core.errors import (
    DataError,
    EngineError,
    SiteRefused,
    WorkerFailed,
    WorkerLate,
    WorkerLost,
)
from localpower.engines.inline import Inline
from localpower.federation.engine import Federation
from localpower.federation.link import DirectLink
from localpower.federation.messages import Answer, Ask, OpenRun, Refusal, Reveal, Roster, to_frame
from localpower.federation.policy import PLAIN, Policy
from localpower.worker.host import Failure
from localpower.worker.tasks import Measure, PowerSteps, Triangle

METHODS = ["auto", "gram", "block_krylov", "block_lanczos", "dpi", "local_ritz",
           "local_ritz:proposal=all", "local_ritz:proposal=residual",
           "local_power:schedule=halving", "local_power:steps=2,align=procrustes"]  # fmt: skip
BASIS = np.eye(12)[:, :2].copy()


@pytest.mark.parametrize("count", [130, 200, 230])
def test_auto_takes_a_method_whose_questions_sites_answer(tmp_path, count):
    rng = np.random.default_rng(1)
    parts = [rng.standard_normal((count, 60)) for _ in NAMES]
    result = lp.svd("sites", 2, engine=engine_of(sites(tmp_path, parts)), tol=1e-6, rng=0)
    assert result.converged


def same(a, b):
    for name in ("components", "singular_values", "basis", "mean", "explained_variance"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert a.ledger == b.ledger
    assert a.run["certificate"] == b.run["certificate"]
    assert a.run["reason"] == b.run["reason"]


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::localpower.core.errors.ConvergenceWarning")
def test_the_bits_are_those_of_the_inline_ring(tmp_path, method, center):
    parts = thirds(n=1800)
    how = {"tol": 1e-8, "max_rounds": 60, "rng": 0, "center": center}
    here = lp.svd(parts, 3, method, engine="ring", **how)
    found = lp.svd("sites", 3, here.run["method"] if method == "auto" else method,
                   engine=engine_of(sites(tmp_path, parts)), **how)  # fmt: skip
    same(found, here)
    assert found.run["engine"] == "federation"
    assert found.run["held"]


def kinds(folder):
    """Three files of different formats: text with names, sparse, and a folder of arrays."""
    parts = [np.where(part > 3.2, part, 0.0) for part in thirds(d=6)]
    table = [",".join("abcdef"), *(",".join(map(repr, row)) for row in parts[0].tolist())]
    (folder / "north.csv").write_text("\n".join(table))
    sparse.save_npz(folder / "south.npz", sparse.csr_array(parts[1]))
    (folder / "west").mkdir()
    np.save(folder / "west" / "a.npy", parts[2][:200])
    np.save(folder / "west" / "b.npy", parts[2][200:])
    return [folder / "north.csv", folder / "south.npz", folder / "west"], parts


def test_files_may_be_of_any_format(tmp_path):
    (tmp_path / "data").mkdir()
    paths, parts = kinds(tmp_path / "data")
    agents = [
        again(agent, data=str(path))
        for agent, path in zip(sites(tmp_path, parts), paths, strict=True)
    ]
    found = lp.pca("sites", 2, "block_krylov", engine=engine_of(agents), tol=1e-8, rng=0)
    pooled = np.vstack(parts)
    S, Vt = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)[1:]
    assert lp.subspace_distance(Vt[:2].T, found.components.T) <= found.certificate.angle <= 1e-8
    np.testing.assert_allclose(found.singular_values, S[:2], rtol=1e-12)
    assert found.run["names"] == [*"abcdef"]


def test_rows_are_read_as_the_policies_say(tmp_path):
    parts = thirds(d=5)
    agents = sites(tmp_path, parts)
    agents = [again(agents[0], columns=(0, 1, 2)), again(agents[1], drop=(3, 4)),
              again(agents[2], columns=(0, 1, 2, 3), label=3)]  # fmt: skip
    found = lp.pca("sites", 2, "gram", engine=engine_of(agents), rng=0)
    here = lp.pca([np.ascontiguousarray(part[:, :3]) for part in parts], 2, "gram", engine="ring",
                  rng=0)  # fmt: skip
    same(found, here)


def test_float32_stays_only_if_all_sites_have_it(tmp_path):
    parts = [part.astype(np.float32) for part in thirds()]
    found = lp.pca("sites", 2, "dpi", engine=engine_of(sites(tmp_path / "a", parts)), rng=0)
    same(found, lp.pca(parts, 2, "dpi", engine="ring", rng=0))
    assert found.components.dtype == np.float32
    mixed = [parts[0].astype(np.float64), *parts[1:]]
    found = lp.pca("sites", 2, "dpi", engine=engine_of(sites(tmp_path / "b", mixed)), rng=0)
    assert found.components.dtype == np.float64
    same(found, lp.pca(mixed, 2, "dpi", engine="ring", rng=0))


REFUSED = {
    "tsqr": ({}, "needs replies of single shards"),
    "uda": ({}, "needs replies of single shards"),
    "local_ritz:proposal=anchor": ({}, "needs replies of single shards"),
    "gram": ({"scale": "max"}, "take scale='std'"),
    "dpi": ({"return_u": True}, "project rows where they are"),
    "block_krylov": ({"checkpoint": "never"}, "leave it out"),
    "auto": ({"faults": lp.Faults(on_loss="degrade")}, "would show a lost shard"),
    "block_lanczos": ({"workers": 4}, "leave both out"),
}


class Counting(DirectLink):
    asked = 0

    def ask(self, frame, sites, deadline):
        self.asked += 1
        return super().ask(frame, sites, deadline)


@pytest.mark.parametrize("method", REFUSED)
def test_what_shows_more_than_sums_is_refused_before_anything_is_asked(tmp_path, method):
    how, text = REFUSED[method]
    link = Counting(sites(tmp_path, thirds()))
    with pytest.raises(ValueError, match=text):
        lp.svd("sites", 3, method, engine=Federation(link), **how)
    assert link.asked == 0


def test_scores_of_sites_are_refused_with_the_command_that_makes_them(tmp_path, monkeypatch):
    found = lp.pca("sites", 3, "gram", engine=Federation(DirectLink(sites(tmp_path, thirds()))))
    with pytest.raises(ValueError, match=r"stay at the sites; .* `localpower site project`"):
        found.transform("sites")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()  # a folder of that name is one
    np.save(tmp_path / "sites" / "rows.npy", rows(9))
    assert found.transform("sites").shape == (9, 3)


def test_an_estimator_asks_nothing_of_sites_for_scores_that_stay_there():
    pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match="take fit; scores stay at the sites"):
        lp.PCA(3, engine="sites:no/federation.toml").fit_transform("sites")


def test_rows_of_this_process_are_not_sent(tmp_path):
    link = Counting(sites(tmp_path, thirds()))
    with pytest.raises(ValueError, match="give 'sites' as data"):
        lp.svd(rows(), 3, engine=Federation(link))
    assert link.asked == 0


def test_a_refusal_names_the_site_and_is_never_asked_again(tmp_path):
    agents = sites(tmp_path, thirds())
    agents[1] = again(agents[1], tasks=("Sums", "Spread", "Prepare"))
    link = Counting(agents)
    text = r"site south refused: its policy does not allow PowerSteps \(tasks\)"
    with pytest.raises(SiteRefused, match=text):
        lp.pca("sites", 3, "dpi", engine=Federation(link))
    assert link.asked == 2 + 4 + 1  # opening and roster, questions, and the end of the run


def test_columns_that_differ_are_told_with_the_names_of_the_sites(tmp_path):
    agents = sites(tmp_path, [rows(200), rows(200), rows(200, d=11)])
    with pytest.raises(DataError, match="site west has 11 columns where north has 12; have all"):
        lp.pca("sites", 2, engine=engine_of(agents))
    for name, head in zip(NAMES, ("a,b,c", "a,b,c", "a,c,b"), strict=True):
        table = [head, *(",".join(map(repr, row)) for row in rows(120, d=3).tolist())]
        (tmp_path / f"{name}.csv").write_text("\n".join(table))
    agents = [again(agent, data=str(tmp_path / f"{agent.name}.csv")) for agent in agents]
    text = "site west and north have columns of other names or .* as column 1: 'c' and 'b'"
    with pytest.raises(DataError, match=text):
        lp.pca("sites", 2, engine=engine_of(agents))


def test_an_engine_does_one_run_after_the_other(tmp_path):
    agents = sites(tmp_path, thirds())
    with engine_of(agents) as engine:
        runs = [lp.pca("sites", 2, "dpi", engine=engine, rng=0) for _ in range(2)]
    np.testing.assert_array_equal(runs[0].components, runs[1].components)
    assert runs[0].run["federation"]["run"] != runs[1].run["federation"]["run"]


def test_an_engine_that_is_closed_ends_its_run_at_the_sites(tmp_path):
    agents = sites(tmp_path, thirds())
    opened(agents).close()
    assert not [*(tmp_path / "north" / "runs").iterdir()]


def test_the_engine_itself_shows_no_single_reply(tmp_path):
    engine = opened(sites(tmp_path, thirds()))
    with pytest.raises(EngineError, match="Triangle would show more than a sum"):
        engine.sum(Triangle(BASIS))
    with pytest.raises(EngineError, match="Triangle would show more than a sum"):
        next(engine.map(Triangle(BASIS)))
    with pytest.raises(EngineError, match="no single reply is seen"):
        next(engine.map(PowerSteps(BASIS, 1)))


def test_without_masks_everything_is_as_on_other_engines(tmp_path):
    parts = thirds(n=2700, d=40)
    tasks = ("Describe", "Prepare", "PowerSteps", "Triangle", "TopVectors")
    for method in ("dpi", "uda"):
        (tmp_path / method).mkdir()
        agents = sites(tmp_path / method, parts, secure_sum="optional", tasks=tasks)
        engine = engine_of(agents, secure="off")
        found = lp.pca("sites", 2, method, engine=engine, max_rounds=3, rng=0)
        here = lp.pca(parts, 2, method, engine="inline", max_rounds=3, rng=0)
        np.testing.assert_array_equal(found.components, here.components)
        assert found.run["federation"]["secure_sum"].startswith("off")
        with pytest.raises(SiteRefused, match="without masks would be half of its rows or columns"):
            lp.pca("sites", 2, "dpi", engine=engine, max_rounds=9, rng=0)


@pytest.mark.parametrize("method", ["dpi", "block_lanczos", "local_ritz:start=random"])
def test_without_masks_two_more_tasks_are_enough(tmp_path, method):
    usual, parts = Policy("n").tasks, thirds(n=6000, d=60)
    plain = {"secure_sum": "off", "max_columns": 10**6}
    engine = engine_of(sites(tmp_path / "few", parts, **plain), secure="off")
    with pytest.raises(SiteRefused, match=r"Describe \(tasks\): ask for a run with masks, or have"):
        lp.pca("sites", 1, method, engine=engine, max_rounds=2, rng=0)
    agents = sites(tmp_path / "all", parts, **plain, tasks=(*usual, *PLAIN))
    engine = engine_of(agents, secure="off")
    found = lp.pca("sites", 1, method, engine=engine, max_rounds=2, rng=0)
    assert found.run["federation"]["secure_sum"].startswith("off")


def test_auto_asks_sites_for_no_more_columns_at_once_than_they_answer(tmp_path):
    X = np.random.default_rng(0).standard_normal((405, 60)) * np.arange(1, 61) ** -0.3
    engine = engine_of(sites(tmp_path, np.split(X, 3)))
    engine.latency = 1.0  # `block_krylov` takes the fewest rounds, but asks for 14 columns
    found = lp.svd("sites", 5, engine=engine, tol=1e-6, rng=0)
    assert found.converged
    assert found.run["method"] == "block_lanczos"


def test_auto_asks_sites_without_masks_for_no_more_eigenpairs_at_once_than_they_answer(tmp_path):
    tasks = ("Describe", "Prepare", "PowerSteps", "Triangle", "LeadingFactor")
    parts = thirds(n=1500, d=300, decay=0.97)
    agents = sites(tmp_path, parts, secure_sum="optional", tasks=tasks)
    found = lp.pca("sites", 5, engine=engine_of(agents, secure="off"), tol=1e-8, rng=0)
    assert found.converged
    assert found.run["options"]["start"] == "merged:20"  # `merged` asks for 80 columns


def test_masks_are_off_only_if_every_site_agrees(tmp_path):
    agents = sites(tmp_path, thirds(), secure_sum="optional")
    agents[2] = again(agents[2], secure_sum="required")
    with pytest.raises(SiteRefused, match="site west refused: it sends only masked replies"):
        lp.pca("sites", 2, "dpi", engine=engine_of(agents, secure="off"))


def test_a_mode_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="secure"):
        Federation(DirectLink(()), secure="maybe")


# Links that do not bring what was sent.


class Unsteady(DirectLink):
    """Does something to messages: `does` is called with site and reply, and says what comes."""

    def __init__(self, agents, does):
        super().__init__(agents)
        self.does, self.count, self.asked = does, 0, []

    def ask(self, frame, sites, deadline):
        message = said(frame)
        for site in sites:
            self.asked.append((type(message).__name__, getattr(message, "round", 0), site))
            self.count += 1
            yield from self.does(self, site, self.agents[site].answer(frame), message)


def flipped(raw):
    torn = bytearray(raw)
    torn[-3] ^= 4  # in the signature, or in the words
    return bytes(torn)


def on(kind, site, change, times=1):
    left = [times]

    def does(link, name, raw, message):
        if name == site and isinstance(message, kind) and left[0]:
            left[0] -= 1
            yield from change(link, name, raw)
        else:
            yield name, raw

    return does


def lost(link, name, raw):
    raise WorkerLost(f"{name} is gone")
    yield


def late(link, name, raw):
    raise WorkerLate(f"{name} is late")
    yield


CHANGES = {
    "lost": lost,
    "late": late,
    "silent": lambda link, name, raw: iter(()),
    "twice": lambda link, name, raw: iter([(name, raw)] * 2),
    "torn": lambda link, name, raw: iter([(name, raw[:-5])]),
    "flipped": lambda link, name, raw: iter([(name, flipped(raw))]),
    "with other shares": lambda link, name, raw: iter(
        [(name, to_frame(replace(said(raw), shares=said(raw).shares ^ np.uint8(1))))]
    ),
    "of another site": lambda link, name, raw: iter([("north", raw)]),
    "a stale refusal first": lambda link, name, raw: iter(
        [(name, to_frame(Refusal(name, "old", "ab" * 16, 1))), (name, raw)]
    ),
}


FAULTS = [
    *((change, "strict", phase) for change in CHANGES if "with" not in change
      for phase in (OpenRun, Roster, Ask)),
    ("with other shares", "recovery", Reveal),
    *((change, "off", phase) for change in ("lost", "flipped") for phase in (OpenRun, Ask)),
    *((change, "recovery", phase) for change in ("lost", "twice") for phase in (Ask, Reveal)),
    ("flipped", "recovery", Ask), ("flipped", "recovery", Reveal),
]  # fmt: skip
ALL_TASKS = ("Sums", "Spread", "Describe", "Prepare", "PowerSteps", "SmallGram", "Triangle")


@pytest.mark.parametrize(
    ("change", "secure", "phase"), FAULTS, ids=lambda each: getattr(each, "__name__", each)
)
def test_faults_on_the_way_cost_nothing_but_another_question(tmp_path, change, secure, phase):
    agents = sites(tmp_path, thirds(d=40), secure_sum="optional", tasks=ALL_TASKS)
    how = {"max_rounds": 1, "rng": 0}
    usual = lp.pca("sites", 2, "dpi", engine=engine_of(agents, secure=secure), **how)
    link = Unsteady(agents, on(phase, "south", CHANGES[change]))
    found = lp.pca("sites", 2, "dpi", engine=Federation(link, secure=secure), **how)
    np.testing.assert_array_equal(found.components, usual.components)
    assert found.run["participation"]["label"] in ("complete", "waited")
    if phase is not Reveal:
        assert {agent.journal.columns for agent in agents} == {agents[0].journal.columns}


def test_only_those_missing_are_asked_again(tmp_path):
    link = Unsteady(sites(tmp_path, thirds()), on(Ask, "west", lost, times=2))
    lp.pca("sites", 2, "dpi", engine=Federation(link), max_rounds=1, rng=0)
    first = [site for kind, number, site in link.asked if (kind, number) == ("Ask", 1)]
    assert first == ["north", "south", "west", "west", "west"]


def test_an_answer_to_a_damaged_question_is_not_added(tmp_path):
    """A bit of the question was turned on the way: the site's masks would not cancel."""
    agents = sites(tmp_path, thirds())
    engine = opened(agents)
    engine.trace = 1e6
    real, done = agents[1].answer, []

    def damaged(frame):
        if isinstance(said(frame), Ask) and not done:
            done.append(1)
            frame = ask(engine._run, 1, PowerSteps(BASIS[:, ::-1].copy(), 1))
        return real(frame)

    agents[1].answer = damaged
    task = PowerSteps(BASIS, 1)
    with pytest.raises(WorkerLost, match="no right answer came from south"):
        engine.sum(task)
    with pytest.raises(SiteRefused, match="another question was answered in this round"):
        engine.sum(task)


@pytest.mark.parametrize("kind", [Refusal, Failure])
def test_texts_of_a_site_cannot_steer_the_terminal_of_the_coordinator(tmp_path, kind):
    evil = "no\x1b[2J\rall is well\n\ud800é"

    def refuses(link, name, raw):
        yield name, to_frame(Refusal(name, evil) if kind is Refusal else Failure(evil, "DataError"))

    link = Unsteady(sites(tmp_path, thirds()), on(Ask, "north", refuses))
    with pytest.raises((SiteRefused, DataError)) as caught:
        lp.pca("sites", 2, "dpi", engine=Federation(link), max_rounds=1)
    text = str(caught.value)
    assert text.isprintable()
    assert text.endswith(r"no\x1b[2J\rall is well\n\ud800é")


def test_names_of_columns_that_were_changed_on_their_way_are_asked_for_again(tmp_path):
    def changed(link, name, raw):
        yield name, to_frame(replace(said(raw), names=tuple("abcdefghijkl")))

    link = Unsteady(sites(tmp_path, thirds()), on(OpenRun, "north", changed))
    found = lp.pca("sites", 2, "dpi", engine=Federation(link), max_rounds=1, rng=0)
    assert found.run["names"] is None  # its file has none
    assert [site for kind, _, site in link.asked if kind == "OpenRun"].count("north") == 2


def test_offers_that_come_in_the_names_of_others_are_not_taken(tmp_path):
    other = {"north": "south", "south": "north"}

    def exchanged(link, name, raw, message):
        yield other.get(name, name) if isinstance(message, OpenRun) else name, raw

    link = Unsteady(sites(tmp_path, thirds()), exchanged)
    with pytest.raises(WorkerLost, match="no right answer came from north, south"):
        lp.pca("sites", 2, "dpi", engine=Federation(link), max_rounds=1)


def test_a_site_that_was_asked_for_another_run_is_named(tmp_path):
    """A bit of the opening was turned on the way."""
    agents = sites(tmp_path, thirds())
    real = agents[2].answer

    def damaged(frame):
        message = said(frame)
        other = isinstance(message, OpenRun)
        return real(to_frame(replace(message, about="something else")) if other else frame)

    agents[2].answer = damaged
    with pytest.raises(WorkerLost, match="no right answer came from west"):
        lp.pca("sites", 2, "dpi", engine=engine_of(agents))


def test_an_answer_that_another_has_signed_is_not_taken(tmp_path):
    agents = sites(tmp_path, thirds())
    engine = opened(agents)
    engine.trace = 1e6
    agents[1].keys = agents[2].keys
    with pytest.raises(WorkerLost, match="south"):
        engine.sum(PowerSteps(BASIS, 1))


@pytest.mark.parametrize("secure", ["strict", "recovery"])
@pytest.mark.parametrize("part", ["words", "sealed"])
def test_an_answer_of_another_size_is_not_added(tmp_path, monkeypatch, secure, part):
    """Its site has signed it: one word would be added to all, one byte of a share to each."""
    agents = sites(tmp_path, thirds())
    engine = opened(agents, secure=secure)
    engine.trace = 1e6
    real = agents[1]._answer

    def changed(*given):
        answer = real(*given)
        size = 1 if part == "words" or secure == "recovery" else 7
        return replace(answer, **{part: np.ones(size, getattr(answer, part).dtype)})

    monkeypatch.setattr(agents[1], "_answer", changed)
    with pytest.raises(WorkerLost, match="no right answer came from south"):
        engine.sum(PowerSteps(BASIS, 1))


def test_a_site_that_fails_at_work_is_told_by_its_name(tmp_path):
    parts = thirds()
    parts[2][0, 0] = np.inf
    with pytest.raises(DataError, match="site west has rows that cannot be used; its journal"):
        lp.pca("sites", 2, "dpi", engine=engine_of(sites(tmp_path, parts)))


def test_a_task_that_raises_is_tried_again_and_then_given_up(tmp_path, monkeypatch):
    agents = sites(tmp_path, thirds())

    def fails(task, matrix):
        raise MemoryError

    monkeypatch.setattr(PowerSteps, "__call__", fails)
    with pytest.raises(WorkerFailed, match="a task failed at site north; its journal says why"):
        lp.pca("sites", 2, "dpi", engine=engine_of(agents))
    assert agents[0].journal.columns == 1 + 2 + 2  # charged once, although tried three times


def test_measured_sums_tell_what_they_are_made_of(tmp_path):
    engine = opened(sites(tmp_path, thirds()))
    engine.trace = 1e6
    found = engine.sum(Measure(PowerSteps(BASIS, 1), "7.0"))
    assert (found.key, found.number, found.count, found.words) == ("7.0", 0, 3, 72)
    assert (found.size, found.timed, len(found.slowest)) == (576, 3, 3)


def test_an_answer_is_its_own_message(tmp_path):
    agents = sites(tmp_path, thirds())
    engine = opened(agents)
    answer = said(agents[0].answer(ask(engine._run, 1, PowerSteps(BASIS, 1))))
    assert isinstance(answer, Answer)
    assert (answer.site, answer.round, answer.words.shape) == ("north", 1, (24,))


# The data sets of the paper.


class FloatSums(Inline):
    """The same sums, in float64."""

    only_sums = True


@pytest.mark.parametrize("method", ["block_krylov", "local_ritz:proposal=all"])
@pytest.mark.parametrize("name", ["a9a", "mnist", "w8a"])
def test_masks_cost_no_round_on_data_of_the_paper(tmp_path, data_set, name, method):
    with lp.read(data_set(name)) as source:
        X = sparse.csr_array(source.pieces[0].read())[:12000:2]
    parts = [X[a:b] for a, b in pairwise([0, 1500, 3500, 6000])]
    how = {"tol": 1e-8, "rng": 0, "max_rounds": 60}
    found = lp.pca("sites", 5, method, engine=engine_of(sites(tmp_path, parts)), **how)
    plain = lp.pca(parts, 5, method, engine=FloatSums(), **how)
    assert found.converged
    assert plain.converged
    assert len(found.history) == len(plain.history)
    assert found.certificate.angle <= 1e-8
