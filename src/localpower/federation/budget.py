"""The privacy budget of a site: one for all runs, charged in its journal before anything leaves.

What counts is μ, sensitivity over the deviation of the noise: squares of it add up. The ε of all of
them, at the δ of the policy, must not exceed that of the policy.
"""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from typing import Any

from localpower.core.errors import SiteRefused
from localpower.core.gaussian import epsilon_of, mu_of
from localpower.federation.journal import Entry, Journal
from localpower.federation.messages import OpenRun
from localpower.federation.policy import Policy
from localpower.federation.runs import SiteRun
from localpower.worker.private_tasks import SENSITIVITY, Noised
from localpower.worker.tasks import Task

ROUNDING = 1 + 1e-9


def check_budget(policy: Policy, journal: Journal, asked: OpenRun) -> None:
    """Refuse a run that is less private than the policy asks for, or spends more than is left."""
    own = policy.privacy
    if asked.privacy is None:
        if own is not None:
            raise SiteRefused("it answers private runs only (privacy): ask for one with privacy=")
        return
    if own is None:
        raise SiteRefused(
            "it has no privacy budget (privacy): leave privacy= out, or have it set one"
        )
    epsilon, delta, clip = asked.privacy
    if asked.secure == "off":
        raise SiteRefused("a private run needs masks: what a site adds is a share of the noise")
    if clip > own.clip:
        raise SiteRefused(f"its rows are clipped to {own.clip:g} (privacy): ask for at most that")
    if delta >= 1:
        raise SiteRefused("delta must be below 1")
    if policy.missing == "mean":
        raise SiteRefused("it fills gaps with means of other rows (missing): take 'drop'")
    _check_left(policy, journal, mu_of(epsilon, delta))


def check_noise(policy: Policy, journal: Journal, run: SiteRun, task: Task[Any]) -> None:
    """Refuse sums without noise in a private run, and noise that is less than was agreed on."""
    agreed = run.opened.privacy
    if not isinstance(task, Noised):
        if agreed is not None:
            raise SiteRefused(f"{type(task).__name__} has no noise, and the run is private")
        return
    if agreed is None:
        raise SiteRefused("the run was not opened as a private one")
    epsilon, delta, clip = agreed
    if task.clip != clip:
        raise SiteRefused("the run was opened with another clip")
    if task.honest > len(run.opened.sites):
        raise SiteRefused("more sites are to be honest than there are")
    if hypot(journal.spent(run.id), task.mu) > ROUNDING * mu_of(epsilon, delta):
        raise SiteRefused("that would tell more than the run was opened for: ask for more noise")
    _check_left(policy, journal, task.mu)


def charged(entry: Entry, task: Task[Any], policy: Policy, journal: Journal) -> Entry:
    """The line of an answer, with what it spends of the budget."""
    if not isinstance(task, Noised):
        return entry
    assert policy.privacy is not None
    delta = policy.privacy.delta
    grown = epsilon_of(hypot(journal.mu, task.mu), delta) - epsilon_of(journal.mu, delta)
    sigma = task.sigma / SENSITIVITY * task.clip**2
    return replace(entry, mu=task.mu, epsilon=grown, sigma=sigma)


def _check_left(policy: Policy, journal: Journal, mu: float) -> None:
    own = policy.privacy
    assert own is not None
    if hypot(journal.mu, mu) > ROUNDING * mu_of(own.epsilon, own.delta):
        spent = epsilon_of(journal.mu, own.delta)
        after = epsilon_of(hypot(journal.mu, mu), own.delta)
        raise SiteRefused(
            f"its privacy budget is epsilon = {own.epsilon:g} at delta = {own.delta:g} in all runs "
            f"(privacy): {spent:.3g} is spent, and with this it would be {after:.3g}; ask for a "
            "smaller epsilon, if that leaves some; only the site can raise its own"
        )
