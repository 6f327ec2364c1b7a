"""The model card of a federated run: who took part, what was asked, and what is known of it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from localpower.federation.masks import fingerprint
from localpower.federation.messages import Offer
from localpower.result import Result
from localpower.show.summary import privacy_lines
from localpower.version import __version__

SECURE_SUMS = {
    "strict": "on: pairwise masks; the coordinator saw sums over all sites only",
    "recovery": "on: pairwise masks with recovery; the coordinator saw sums over sites only",
    "off": "off: the coordinator saw the replies of single sites",
}
AT_MOST = "sums have noise: at most ε = {:g}, δ = {:g} for one row, clipped to {:g}"
NOT_PRIVATE = "none: sums have no noise, and may tell of single rows"


def card_of(result: Result, run: str, offers: Sequence[Offer], secure: str) -> dict[str, Any]:
    """Write the card of a run that has ended with a result; plain JSON."""
    told, certificate = result.run, result.run.get("certificate")
    label = told.get("privacy")
    privacy = NOT_PRIVATE
    if label is not None:
        first, *more = privacy_lines(label)
        privacy = f"{first}. {' '.join(more)}"
    return _head(run, offers, secure, privacy) | {
        "rows": told.get("rows"),
        "method": told.get("method"),
        "rank": told.get("rank"),
        "rounds": len(result.history),
        "questions": result.ledger.hops,
        "bytes_up": result.ledger.bytes_up,
        "bytes_down": result.ledger.bytes_down,
        "ended": result.reason,
        "certificate": None
        if certificate is None
        else {name: certificate.get(name) for name in ("angle", "proven", "p")},
        "participation": participation(told, [offer.site for offer in offers]),
    }


def stopped_card(
    run: str,
    offers: Sequence[Offer],
    secure: str,
    privacy: tuple[float, float, float] | None,
    why: str,
) -> dict[str, Any]:
    """Write the card of a run that has ended without one."""
    told = NOT_PRIVATE if privacy is None else AT_MOST.format(*privacy)
    return _head(run, offers, secure, told) | {
        "ended": f"stopped: {why}",
        "participation": "stopped",
    }


def participation(run: Mapping[str, Any], sites: Sequence[str]) -> str:
    """Who took part: ``"complete"``, or in which way not."""
    known = run.get("participation") or {"label": "complete"}
    if known["label"] != "without":
        return str(known["label"])
    lost = ", ".join(sites[shard] for shard in known["shards"])
    return f"without {lost} from round {known['from_round']}"


def _head(run: str, offers: Sequence[Offer], secure: str, privacy: str) -> dict[str, Any]:
    digests = [offer.digest for offer in offers if offer.digest]
    return {
        "run": run,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "sites": [
            {
                "name": offer.site,
                "rows": offer.rows or "not told",
                "key": fingerprint(offer.identity.tobytes()),
            }
            for offer in offers
        ],
        "columns": offers[0].columns if offers else None,
        "columns_hash": digests[0] if digests else None,
        "secure_sum": SECURE_SUMS[secure],
        "privacy": privacy,
        "versions": {
            "localpower": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def to_json(card: Mapping[str, Any]) -> str:
    """A card as text."""
    return json.dumps(card, allow_nan=False, default=float)
