"""What a policy allows: every check that a site makes before its rows are touched.

Each raises `SiteRefused` with a reason that the coordinator may read: it tells of the policy and of
the question, and of the data no more than what was offered.
"""

from __future__ import annotations

from dataclasses import replace

from localpower.core.errors import SiteRefused
from localpower.federation import masks
from localpower.federation.budget import check_budget, check_noise
from localpower.federation.journal import Journal
from localpower.federation.messages import (
    Ask,
    Offer,
    OpenRun,
    Reveal,
    Roster,
    Settle,
    from_frame,
    signed_part,
    to_frame,
)
from localpower.federation.policy import PER_COLUMN, PLAIN, Policy
from localpower.federation.questions import check_understood, columns_of, reply_size
from localpower.federation.recovery import check_list
from localpower.federation.runs import SiteRun
from localpower.worker.sums import is_summable
from localpower.worker.tasks import Prepare, Refine


def check_open(policy: Policy, journal: Journal, asked: OpenRun) -> None:
    """Refuse a run that the policy does not allow."""
    if policy.name not in asked.sites:
        raise SiteRefused(f"the run is between {', '.join(asked.sites)}, without {policy.name}")
    strangers = sorted({*asked.sites} - {policy.name, *policy.peers})
    if strangers:
        raise SiteRefused(
            f"it does not know {', '.join(strangers)}: add their keys to its policy (peers)"
        )
    if len(asked.sites) < policy.min_sites:
        raise SiteRefused(
            f"{len(asked.sites)} sites are fewer than its policy asks for (min_sites = "
            f"{policy.min_sites}): ask more sites, or have it lower min_sites"
        )
    if asked.secure == "off" and policy.secure_sum == "required":
        raise SiteRefused(
            "it sends only masked replies (secure_sum = 'required'): ask for a run with masks"
        )
    if asked.secure != "off" and policy.secure_sum == "off":
        raise SiteRefused("it does not use masks (secure_sum = 'off'): ask for a run without masks")
    if asked.secure != "off" and len(asked.sites) < 2:
        raise SiteRefused("the sum of one site alone hides nothing: ask for a run without masks")
    if asked.privacy is not None and asked.secure == "recovery":
        raise SiteRefused("a private run needs the noise of every site: ask for a strict one")
    check_budget(policy, journal, asked)
    if not policy.data:
        raise SiteRefused("its policy does not name its rows (data): the site has to")


def check_roster(policy: Policy, run: SiteRun, roster: Roster) -> None:
    """Refuse other sites than were named, other keys than are pinned, other columns than ours."""
    own: Offer = replace(from_frame(run.kept.offer, len(run.kept.offer)), names=None)
    if tuple(offer.site for offer in roster.offers) != run.opened.sites:
        raise SiteRefused("the roster is not of the sites that the run was opened for")
    for offer in roster.offers:
        if offer.site == policy.name:
            if to_frame(offer) != to_frame(own):
                raise SiteRefused("its own offer was changed")
            continue
        public = offer.identity.tobytes()
        if masks.fingerprint(public) != policy.peers[offer.site]:
            raise SiteRefused(
                f"{offer.site} has another key than its policy says (peers): what `localpower site "
                f"check` says of the key at {offer.site} belongs there"
            )
        if not masks.is_signed(public, offer.signature.tobytes(), signed_part(offer)):
            raise SiteRefused(f"the offer of {offer.site} is not signed by it")
        if offer.opened != own.opened:
            raise SiteRefused(f"{offer.site} was asked for another run")
        if offer.columns != own.columns or (own.digest and offer.digest not in ("", own.digest)):
            raise SiteRefused(f"{offer.site} has other columns")
    keys = {offer.key.tobytes() for offer in roster.offers}
    if len(keys) < len(roster.offers):
        raise SiteRefused("two sites have the same key")


def check_ask(policy: Policy, journal: Journal, run: SiteRun, asked: Ask) -> None:
    """Refuse a question that the policy does not allow, or no longer."""
    task, plain = asked.task, run.opened.secure == "off"
    name = type(task).__name__
    own: Offer = from_frame(run.kept.offer, len(run.kept.offer))
    d = own.columns
    if name not in policy.tasks:
        raise SiteRefused(
            f"its policy does not allow {name} (tasks): "
            + ("ask for a run with masks" if plain and name in PLAIN else "take another method")
            + ", or have it add that"
        )
    check_understood(task, d)
    if not plain and not isinstance(task, Prepare) and not is_summable(task):
        raise SiteRefused(
            f"this {name} is not a sum over all sites, but replies are masked: take another method"
        )
    if asked.bits != run.opened.bits:
        raise SiteRefused("the run was opened with another number of bits")
    if journal.asked(run.id) >= policy.max_rounds:
        raise SiteRefused(
            f"its policy allows {policy.max_rounds} questions of a run (max_rounds): take a method "
            "of fewer rounds, or have it raise max_rounds"
        )
    if isinstance(task, Refine) and run.opened.privacy is None and task.rows != run.rows:
        raise SiteRefused("Refine is for another number of rows")
    if reply_size(task, d, plain) > policy.max_bytes:
        raise SiteRefused(
            f"its policy allows replies of {policy.max_bytes} bytes at most (max_bytes): take a "
            "smaller rank or width, a method that iterates, or have it raise max_bytes"
        )
    check_noise(policy, journal, run, task)
    columns = columns_of(task, d)
    _check_columns(policy, journal, columns, min(d, own.rows) if plain else 0)
    if run.opened.privacy is None and own.rows < PER_COLUMN * columns:
        raise SiteRefused(
            f"{columns} columns at once need {PER_COLUMN} times as many rows, and it has "
            f"{own.rows}: take a smaller rank or width, or a "
            "method that iterates"
        )


def _check_columns(policy: Policy, journal: Journal, columns: int, least: int) -> None:
    """Refuse what would tell too much together with all that was told before."""
    if journal.columns + columns > policy.max_columns:
        raise SiteRefused(
            f"its policy allows {policy.max_columns} columns in all runs (max_columns): "
            f"{journal.columns} were answered, and this asks for {columns}; only the site can "
            "raise max_columns"
        )
    if least and columns and not 2 * (journal.plain_columns + columns) < least:
        raise SiteRefused(
            f"{columns} columns more without masks would be half of its rows or columns: ask for a "
            "run with masks"
        )


def check_settled(
    policy: Policy, journal: Journal, run: SiteRun, asked: Settle | Reveal
) -> list[str] | None:
    """Refuse to open a sum that was not answered, or for other sites than agreed on before.

    Returns the list that the site is bound to in this round, if it is.
    """
    if run.roster is None or run.opened.secure != "recovery":
        raise SiteRefused("the run has no recovery")
    seen = journal.seen(run.id, asked.round)
    if seen is None or seen.kind != "answered" or seen.question != asked.question:
        raise SiteRefused("it has not answered this question")
    if policy.name not in asked.sites:
        raise SiteRefused("it has answered, and is not on the list")
    lists = journal.lists(run.id)
    bound = lists.get(asked.round)
    if bound is not None and bound != list(asked.sites):
        raise SiteRefused("it has agreed to another list in this round")
    earlier = lists[max(lists)] if lists else run.opened.sites
    if bound is None:
        check_list(asked.sites, run.roster, policy.min_sites, earlier)
    return bound
