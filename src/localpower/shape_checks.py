"""What a method and a rank need of the shape of the data."""

from __future__ import annotations

from localpower.core.errors import DataError, DataHint, warn
from localpower.data.source import Source
from localpower.methods import Method
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
