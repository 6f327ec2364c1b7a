"""Sites that make their own identity keys: who ran `init` cannot speak for them any more."""

import re
import stat
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from threading import Thread

import numpy as np
import pytest
from federated import NAMES, ask, engine_of, frames_of_opening, refusal, said, thirds
from real_sites import PATIENCE, change, free_port

import localpower as lp
from localpower.cli import main
from localpower.core.errors import SiteRefused
from localpower.federation import masks
from localpower.federation.agent import SiteAgent
from localpower.federation.identity import CredentialError, make_federation
from localpower.federation.join import join
from localpower.federation.journal import NAME, verified
from localpower.federation.masks import SiteKeys
from localpower.federation.messages import (
    Answer,
    OpenRun,
    Roster,
    as_bytes,
    digest_of,
    signed_part,
    to_frame,
)
from localpower.worker.replies import Done
from localpower.worker.sum_tasks import Sums
from localpower.worker.sums import from_words

LINE = re.compile(r'\w+ = "sha256:[0-9a-f]{64}"')
RUN = "ab" * 16


@pytest.fixture
def folder(tmp_path):
    """What `init` made, with rows."""
    make_federation(tmp_path / "made", NAMES, port=free_port())
    for name, part in zip(NAMES, thirds(), strict=True):
        np.save(tmp_path / "made" / name / "rows.npy", part)
        change(tmp_path / "made" / name / "policy.toml", 'data = ""', 'data = "rows.npy"')
    return tmp_path / "made"


def policies(folder):
    return [folder / name / "policy.toml" for name in NAMES]


def write_line(path, line):
    """Put a line in the place of the one that begins as it does."""
    text, name = path.read_text(), line.partition(" ")[0]
    found = re.findall(rf'^{name} = "sha256:.*"', text, re.MULTILINE)
    assert len(found) == 1
    change(path, found[0], line)


def make_keys(folder, capsys):
    """Each site makes a key, and everybody else writes down what it is told to."""
    for name in NAMES:
        assert main(["site", "key", str(folder / name / "policy.toml")]) == 0
        for_sites, for_coordinator = LINE.findall(capsys.readouterr().out)
        for path in policies(folder):
            if path.parent.name != name:
                write_line(path, for_sites)
        head, rest = (folder / "federation.toml").read_text().split(f"[sites.{name}]")
        rest = re.sub('identity = "sha256:.*"', for_coordinator, rest, count=1)
        (folder / "federation.toml").write_text(f"{head}[sites.{name}]{rest}")


def agents_of(folder):
    return [SiteAgent.open(path) for path in policies(folder)]


def fit(folder):
    agents = agents_of(folder)
    try:
        return lp.pca("sites", 2, engine=engine_of(agents), rng=0)
    finally:
        for agent in agents:
            agent.close()


def forged_roster(north, keys):
    """A roster in which the coordinator speaks for south and west, and its own X25519 key there."""
    secret = masks.derived(b"the coordinator's own", b"")
    offer = said(north.answer(to_frame(OpenRun(RUN, "1", NAMES, "strict", 60))))
    offers, none = [replace(offer, names=None)], np.empty(0, np.uint8)
    for number, name in enumerate(NAMES[1:]):
        secrets = masks.derived(secret, bytes([number]))
        public = as_bytes(masks.public_key(secrets)), as_bytes(keys[name].public)
        mine = replace(offers[0], site=name, key=public[0], identity=public[1], signature=none)
        offers.append(replace(mine, signature=as_bytes(keys[name].sign(signed_part(mine)))))
    shared = [masks.shared_secret(masks.derived(secret, bytes([number])), offer.key.tobytes())
              for number in (0, 1)]  # fmt: skip
    return to_frame(Roster(RUN, tuple(offers))), shared


def identities(folder):
    return {name: SiteKeys.read(folder / name / "keys") for name in NAMES}


def test_who_keeps_the_keys_of_init_reads_what_one_site_sends(folder):
    keys = identities(folder)
    with closing(SiteAgent.open(policies(folder)[0])) as north:
        roster, shared = forged_roster(north, keys)
        assert isinstance(said(north.answer(roster)), Done)
        question = ask(RUN, 1, Sums())
        answer = said(north.answer(question))
        assert isinstance(answer, Answer)
        info = masks.mask_info(sha256(roster).digest(), RUN, 1, "", digest_of(question))
        seen = masks.masked(answer.words, [], [masks.derived(each, info) for each in shared])
        found = from_words(Sums(), seen, 12, 20)
        np.testing.assert_allclose(found.first, thirds()[0].sum(axis=0), rtol=1e-12)


def test_with_keys_of_their_own_sites_refuse_a_roster_of_the_keys_of_init(folder, capsys):
    keys = identities(folder)
    make_keys(folder, capsys)
    with closing(SiteAgent.open(policies(folder)[0])) as north:
        roster, _ = forged_roster(north, keys)
        assert "south has another key than its policy says (peers)" in refusal(north.answer(roster))
        assert "has no roster yet" in refusal(north.answer(ask(RUN, 1, Sums())))
    assert fit(folder).converged


def test_a_key_is_new_readable_by_its_owner_alone_and_the_only_one(folder, capsys):
    path, before = folder / "north" / "keys" / "identity.pem", identities(folder)
    others = {file: file.read_bytes() for file in path.parent.iterdir() if file != path}
    assert main(["site", "key", str(folder / "north")]) == 0
    out = capsys.readouterr().out
    own = SiteKeys.read(path.parent)
    assert own.private != before["north"].private
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {file: file.read_bytes() for file in path.parent.iterdir() if file != path} == others
    assert LINE.findall(out) == [f'north = "{own.fingerprint}"', f'identity = "{own.fingerprint}"']
    assert "[sites.north] of its federation.toml" in out
    assert own.private.hex() not in out


def test_a_pin_that_is_wrong_is_mended_by_what_the_error_says(folder, capsys):
    main(["site", "key", str(folder / "south")])
    capsys.readouterr()
    for path in (policies(folder)[0], policies(folder)[2]):
        with pytest.raises(SiteRefused, match=r"`localpower site check` says of the key at south"):
            fit(folder)
        assert main(["site", "check", str(folder / "south")]) == 0
        write_line(path, *LINE.findall(capsys.readouterr().out))
    assert fit(folder).converged


def test_a_site_that_takes_part_keeps_its_key(folder, capsys):
    before = identities(folder)["north"]
    with closing(SiteAgent.open(policies(folder)[0])):
        assert main(["site", "key", str(folder / "north")]) == 1
        assert "in use by another agent of this site: end that one first" in capsys.readouterr().err
    assert identities(folder)["north"] == before


def test_a_run_that_is_open_is_over_with_the_key_that_it_began_with(folder, capsys):
    agents = agents_of(folder)
    run, _first, roster = frames_of_opening(agents)
    assert isinstance(said(agents[0].answer(roster)), Done)
    for agent in agents:
        agent.close()
    assert [*(folder / "north" / "runs").iterdir()]
    assert main(["site", "key", str(folder / "north")]) == 0
    capsys.readouterr()
    assert not [*(folder / "north" / "runs").iterdir()]
    with closing(SiteAgent.open(policies(folder)[0])) as north:
        assert "it is over" in refusal(north.answer(ask(run, 1, Sums())))
    closed = [entry.text for entry, _ in verified(folder / "north" / NAME)][-2]
    assert closed == "the site has a new identity key"


@pytest.mark.parametrize("command", ["check", "join"])
def test_a_site_without_an_identity_is_told_how_to_make_one(folder, capsys, command):
    (folder / "north" / "keys" / "identity.pem").unlink()
    assert main(["site", command, str(folder / "north")]) == 1
    assert "identity.pem is missing: `localpower site key` makes one" in capsys.readouterr().err
    assert main(["site", "key", str(folder / "north")]) == 0
    assert main(["site", "check", str(folder / "north")]) == 0


def test_mistakes_have_a_remedy(folder, capsys):
    assert main(["site", "key", str(folder / "nowhere")]) == 1
    assert "name the policy.toml in the folder" in capsys.readouterr().err
    change(policies(folder)[0], 'keys = "keys"', 'keys = "kees"')
    assert main(["site", "key", str(folder / "north")]) == 1
    assert "keys = 'kees' must be the folder of this site's keys" in capsys.readouterr().err


def taking_part(folder):
    """Sites that connect, and leave after one run."""
    how = [(path, lambda text: None, True) for path in policies(folder)]
    threads = [Thread(target=join, args=each, daemon=True) for each in how]
    for thread in threads:
        thread.start()
    return threads


def test_over_tls_sites_with_keys_of_their_own_work_once_the_coordinator_knows_them(folder, capsys):
    file = folder / "federation.toml"
    before = file.read_text()
    make_keys(folder, capsys)
    known = file.read_text()
    file.write_text(before)
    threads = taking_part(folder)
    with pytest.raises(CredentialError, match=r"north signs with another key .* site check"):
        lp.pca("sites", 2, engine=f"sites:{file}", rng=0)
    for thread in threads:
        thread.join(PATIENCE)
    file.write_text(known)
    threads = taking_part(folder)
    found = lp.pca("sites", 2, engine=f"sites:{file}", rng=0)
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert found.converged
    pins = {site["name"]: site["key"] for site in found.run["federation"]["sites"]}
    own = {name: key.fingerprint for name, key in identities(folder).items()}
    assert pins == own
