"""What a method and a rank need of the shape of the data."""

from __future__ import annotations

from localpower.core.errors import DataError, DataHint, warn
from localpower.data.source import Source
from localpower.methods import Auto, Method
from localpower.methods.base import REGISTRY
from localpower.worker.shard import is_sparse

WIDE = 10, 1000  # columns per row, and columns, from which a transposed matrix is suspected


def check_rank(rank: int, source: Source) -> None:
    """Refuse a rank that the data do not have."""
    n, d = source.rows, source.columns
    if rank > min(n, d):
        raise ValueError(
            f"rank={rank} is more than data with n_samples={n} and n_features={d} has; "
            f"take 1 to {min(n, d)}"
        )


def check_fit(method: Method, width: int, source: Source) -> None:
    """Check the method and its width against the shape of the data."""
    n, d = source.rows, source.columns
    if width > d:
        raise ValueError(f"width={width} is more than n_features={d}; take at most that")
    need = method.workspace(d, width)
    if need > source.memory:
        raise DataError(
            f"{source.names[0]} has {d} columns: the work of {method.name} with {width} vectors "
            f"takes {need / 1e9:.1f} GB, and memory is {source.memory / 1e9:.1f} GB; check that so "
            "many columns are meant (svmlight takes them from the largest index), take another "
            "method, or raise memory="
        )
    per_row, least = WIDE
    dense = all(not is_sparse(piece) for piece in source.pieces)
    if dense and d >= max(least, per_row * n):
        warn(
            f"{n} rows of {d} columns: if the samples are in columns, give the transpose",
            DataHint,
        )


def check_sums(scale: str | None, return_u: bool, checkpoint: bool, degrade: bool) -> None:
    """Refuse what takes more than sums over all shards, where nothing else may be seen."""
    refused = {
        f"scale={scale!r} needs extremes of columns: take scale='std', or scale the rows before": (
            scale in ("max", "minmax")
        ),
        "return_u needs one row for each row of the data: project rows where they are": return_u,
        "checkpoint= needs a checksum of the rows: leave it out": checkpoint,
        "on_loss='degrade' would show a lost shard as a difference: leave it out": degrade,
    }
    for what, applies in refused.items():
        if applies:
            raise ValueError(f"this engine shows sums over all shards only, and {what}")


def method_for_sums(method: Method) -> Method:
    """The form of a method that works with sums."""
    if isinstance(method, Auto):
        return method
    found = method.for_sums()
    if found is None:
        known = [name for name, form in REGISTRY.items() if form.build().for_sums() is not None]
        raise ValueError(
            f"method='{method}' needs replies of single shards, and this engine shows sums over "
            f"all shards only: take 'auto', {', '.join(map(repr, known))}, in float64"
        )
    return found
