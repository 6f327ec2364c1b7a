"""Sites in this process, each with a folder, keys and rows of its own."""

import secrets
from dataclasses import replace

import numpy as np
from scipy import sparse

from localpower.federation.agent import SiteAgent
from localpower.federation.engine import Federation
from localpower.federation.journal import NAME, Journal
from localpower.federation.link import DirectLink
from localpower.federation.masks import SiteKeys
from localpower.federation.messages import Ask, OpenRun, Refusal, Roster, from_frame, to_frame
from localpower.federation.policy import Policy
from localpower.worker.replies import Done

NAMES = ("north", "south", "west")


def rows(n=900, d=12, decay=0.7, mean=3.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * decay ** np.arange(d) + mean


def thirds(n=900, **how):
    X = rows(n, **how)
    return [X[: n // 3], X[n // 3 : n // 2], X[n // 2 :]]


def sites(folder, parts, names=NAMES, **policy):
    """Agents of sites that hold these parts, with policies that allow much."""
    keys = {name: SiteKeys.generate() for name in names}
    how = {"max_columns": 10**6, "max_rounds": 1000} | policy
    pairs = zip(names, parts, strict=True)
    return [site(folder / name, part, name, keys, **how) for name, part in pairs]


def site(folder, part, name, keys, **how):
    folder.mkdir(parents=True)
    if sparse.issparse(part):
        sparse.save_npz(folder / "rows.npz", part, compressed=False)
    else:
        np.save(folder / "rows.npy", part)
    peers = {other: key.fingerprint for other, key in keys.items() if other != name}
    data = "rows.npz" if sparse.issparse(part) else "rows.npy"
    how = {"name": name, "data": data, "peers": peers, "folder": folder} | how
    return SiteAgent(Policy(**how), Journal(folder / NAME), keys[name])


def again(agent, **policy):
    """The same site, started again."""
    agent.close()
    folder = agent.policy.folder
    return SiteAgent(replace(agent.policy, **policy), Journal(folder / NAME), agent.keys)


def engine_of(agents, **how):
    return Federation(DirectLink(agents), **how)


def opened(agents, **how):
    """An engine whose run is open: ready to ask."""
    engine = engine_of(agents, **how)
    engine.adopt("sites", None)
    engine.columns, engine.rows = engine_columns(engine), [1] * len(agents)
    return engine


def engine_columns(engine):
    return next(iter(engine._offers.values())).columns


def said(raw):
    return from_frame(raw, len(raw))


def frames_of_opening(agents, secure="strict", bits=60, run=None, about="a test", privacy=None):
    """Frames that open a run, and its roster."""
    run = run or secrets.token_hex(16)
    names = tuple(agent.name for agent in agents)
    first = to_frame(OpenRun(run, "1", names, secure, bits, about, privacy))
    offers = [said(agent.answer(first)) for agent in agents]
    roster = Roster(run, tuple(replace(offer, names=None) for offer in offers))
    return run, first, to_frame(roster)


def begun(agents, **how):
    """Open a run at all agents; its name."""
    run, _first, roster = frames_of_opening(agents, **how)
    for agent in agents:
        assert isinstance(said(agent.answer(roster)), Done)
    return run


def ask(run, number, task, exponent=20, prepared="", bits=60):
    return to_frame(Ask(run, number, exponent, bits, prepared, task))


def refusal(raw):
    found = said(raw)
    assert isinstance(found, Refusal), found
    return found.reason
