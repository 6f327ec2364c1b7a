"""The model card of a federated run: in the result, on its page, and at the sites."""

import json

import numpy as np
import pytest
from federated import again, engine_of, said, sites, thirds
from test_agent import lines

import localpower as lp
from localpower.core.errors import SiteRefused, WorkerLost
from localpower.federation.engine import Federation
from localpower.federation.link import DirectLink
from localpower.federation.messages import Ask
from localpower.federation.policy import Private

EXPECTED = {"run", "time", "sites", "columns", "columns_hash", "secure_sum", "privacy", "versions",
            "rows", "method", "rank", "rounds", "questions", "bytes_up", "bytes_down", "ended",
            "certificate", "participation"}  # fmt: skip


class Losing(DirectLink):
    """Loses the site `who` when some questions were asked, so many times."""

    def __init__(self, agents, who, after, times):
        super().__init__(agents)
        self.who, self.after, self.times = who, after, times

    def ask(self, frame, sites, deadline):
        asks = isinstance(said(frame), Ask)
        self.after -= asks
        for site in sites:
            if asks and site == self.who and self.after < 0 and self.times > 0:
                self.times -= 1
                raise WorkerLost(f"{site} is gone")
            yield from super().ask(frame, [site], deadline)


@pytest.fixture
def agents(tmp_path):
    return sites(tmp_path, thirds())


def test_the_card_tells_what_was_done(agents, tmp_path):
    found = lp.pca("sites", 2, "block_krylov", engine=engine_of(agents), tol=1e-8, rng=0)
    card = found.run["federation"]
    assert {*card} == EXPECTED
    assert [(site["name"], site["rows"]) for site in card["sites"]] == [
        ("north", 300),
        ("south", 150),
        ("west", 450),
    ]
    assert card["sites"][0]["key"] == agents[0].keys.fingerprint
    assert (card["rows"], card["columns"], card["rank"]) == (900, 12, 2)
    assert (card["method"], card["participation"]) == ("block_krylov", "complete")
    assert card["rounds"] == len(found.history)
    assert card["questions"] == len(found.ledger.records)
    assert card["bytes_up"] == found.ledger.bytes_up
    assert card["certificate"]["angle"] == found.certificate.angle
    assert card["secure_sum"].startswith("on")
    assert card["privacy"].startswith("none")
    assert found.run["participation"] == {"label": "complete"}
    for agent in agents:
        assert json.loads(lines(agent, "closed")[0].text) == card


def test_it_is_in_the_text_on_the_page_and_in_the_file(agents, tmp_path):
    found = lp.pca("sites", 2, "gram", engine=engine_of(agents), rng=0)
    line = "federation of 3 sites (north, south, west): participation complete, secure sum on, "
    assert line + "privacy none" in str(found)
    page = found.report().html
    assert '<section id="federation">' in page
    assert agents[0].keys.fingerprint in page
    assert f">localpower {lp.__version__}, numpy {np.__version__}, python" in page
    assert f">angle {found.certificate.angle}, proven True, p 0.0<" in page
    found.save(tmp_path / "model")
    assert lp.Result.load(tmp_path / "model").run["federation"] == found.run["federation"]


def test_other_runs_have_none():
    found = lp.pca(np.vstack(thirds()), 2, "gram", rng=0)
    assert "federation" not in found.run
    assert "federation" not in str(found)
    assert 'id="federation"' not in found.report().html


def test_a_site_that_had_to_be_asked_again_is_told(agents):
    usual = lp.pca("sites", 2, "dpi", engine=engine_of(agents), max_rounds=3, rng=0)
    engine = Federation(Losing(agents, "south", 4, 2))
    found = lp.pca("sites", 2, "dpi", engine=engine, max_rounds=3, rng=0)
    assert (
        found.run["participation"]["label"] == found.run["federation"]["participation"] == "waited"
    )
    np.testing.assert_array_equal(found.components, usual.components)
    assert found.ledger == usual.ledger
    assert [fault["then"] for fault in found.run["faults"]] == ["asked again"] * 2


def test_a_run_that_was_given_up_is_told_to_the_sites(agents):
    engine = Federation(Losing(agents, "south", 4, 3))
    with pytest.raises(WorkerLost, match="south is gone"):
        lp.pca("sites", 2, "dpi", engine=engine, max_rounds=3, rng=0)
    card = json.loads(lines(agents[0], "closed")[0].text)
    assert (card["participation"], card["ended"]) == ("stopped", "stopped: WorkerLost")
    assert not [*(agents[0].policy.folder / "runs").iterdir()]


def test_a_private_run_that_was_given_up_is_not_told_to_have_no_noise(tmp_path):
    privacy = Private(1.0, 1e-6, 2.0)
    agents = sites(tmp_path, thirds(), privacy=privacy, tasks=("Sums",))
    with pytest.raises(SiteRefused, match="does not allow NoisedGram"):
        lp.pca("sites", 2, engine=engine_of(agents), privacy=lp.Privacy(1, 1e-6, 2))
    card = json.loads(lines(agents[0], "closed")[0].text)
    assert card["ended"] == "stopped: SiteRefused"
    noise = "sums have noise: at most ε = 1, δ = 1e-06 for one row, clipped to 2"
    assert card["privacy"] == noise


def test_names_of_columns_are_told_by_their_hash(tmp_path):
    for name, part in zip(("north", "south", "west"), thirds(d=3), strict=True):
        table = "\n".join(["a,b,c", *(",".join(map(repr, row)) for row in part.tolist())])
        (tmp_path / f"{name}.csv").write_text(table)
    agents = sites(tmp_path, thirds(d=3))
    agents = [again(agent, data=str(tmp_path / f"{agent.name}.csv")) for agent in agents]
    found = lp.pca("sites", 1, "gram", engine=engine_of(agents), rng=0)
    assert found.run["names"] == ["a", "b", "c"]
    assert len(found.run["federation"]["columns_hash"]) == 64
