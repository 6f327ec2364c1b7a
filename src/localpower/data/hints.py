"""Columns that look as if they were no features, or as if their units differed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from localpower.core.errors import DataHint, warn
from localpower.core.linalg import Array
from localpower.data.spool import Table
from localpower.worker.shard import cut, is_stored

IDENTITY = re.compile(r"(?i:(^|[\W_])(id|uuid|index))\W*$|[a-z]I[Dd]$")  # customer_id, userID
NOT_FEATURES = {"label", "labels", "target", "class", "y", "outcome", "id", "index", "unnamed: 0"}
SAMPLE_ROWS, MOST_LABELS = 1000, 20  # rows that are looked at for a label without a name
SPAN = 5e7  # of standard deviations: eight orders of magnitude, as rows tell them
SAMPLE_ENTRIES, FEW_ROWS = 1 << 20, 20  # at most, and rows from which counting is no accident


def table_hint(table: Table) -> str | None:
    """Say what looks as if it were no feature: by its name, or by its values if it has none."""
    if not table.pieces or (table.names is None and not table.text):
        return None
    piece = table.pieces[0]
    most = min(SAMPLE_ROWS, SAMPLE_ENTRIES // max(table.columns, 1))
    sample = cut(piece, 0, min(most, piece.shape[0]))
    rows = sample.read() if is_stored(sample) else sample
    if table.names is not None:
        dense = isinstance(rows, np.ndarray) and len(rows) >= FEW_ROWS
        with np.errstate(invalid="ignore", over="ignore"):
            counting = (np.diff(rows, axis=0) == 1).all(axis=0) if dense else np.empty(0)
        return label_hint(table.names, np.flatnonzero(counting).tolist())
    whole = (rows == np.round(rows)).all(axis=0)
    for number in (0, rows.shape[1] - 1):
        kinds = len(np.unique(rows[:, number]))
        if whole[number] and not whole.all() and 1 < kinds <= min(MOST_LABELS, len(rows) // 4):
            return (
                f"column {number} holds {kinds} different whole numbers where others have "
                f"fractions, like a label; if it is not a feature, leave it out with "
                f"drop=[{number}]"
            )
    return None


def units_hint(names: Sequence[str] | None, deviations: Any) -> str | None:
    """Say that columns vary by very different amounts, if they have names and so may have units."""
    varying = np.flatnonzero(deviations > 0)
    if names is None or len(varying) < 2:
        return None
    least, most = (int(varying[find(deviations[varying])]) for find in (np.argmin, np.argmax))
    if deviations[most] < SPAN * deviations[least]:
        return None
    return (
        f"standard deviations of columns differ very much, from {deviations[least]:.1e} of "
        f"{names[least]!r} to {deviations[most]:.1e} of {names[most]!r}, so small columns hardly "
        "count; if columns are in different units, give scale='std'"
    )


def label_hint(names: Sequence[str] | None, counting: Sequence[int] = ()) -> str | None:
    """Say which columns look as if they were no features: by their names, or as they count rows."""
    found = [
        name
        for number, name in enumerate(names or ())
        if name.strip().lower() in NOT_FEATURES or IDENTITY.search(name) or number in counting
    ]
    if not found:
        return None
    named = ", ".join(map(repr, found))
    look = "looks like a label or a row number, not a feature; leave it"
    if len(found) > 1:
        look = "look like labels or row numbers, not features; leave them"
    return (
        f"column{'s' * (len(found) > 1)} {named} {look} out with drop=[{named}], or with "
        f"label={found[-1]!r} if that is one"
    )


def hint_units(names: Sequence[str] | None, ratio: Array, V: Array, deviations: Array) -> None:
    """Warn if the first component is one column, or columns differ much, maybe in their units."""
    column = int(np.abs(V[:, 0]).argmax())
    if names is not None and len(names) > 2 and ratio[0] > 0.9 and abs(V[column, 0]) > 0.99:
        warn(
            f"the first component is column {names[column]!r} and little else, with {ratio[0]:.0%} "
            "of the variance; if columns are in different units, give scale='std'",
            DataHint,
        )
    elif (hint := units_hint(names, deviations)) is not None:
        warn(hint, DataHint)
