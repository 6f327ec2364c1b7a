"""What a method and a rank need of the shape of the data."""

from __future__ import annotations

from localpower.core.errors import DataError, DataHint, warn
from localpower.core.text import size
from localpower.data.source import Source
from localpower.methods import CERTIFIED, Method
from localpower.methods.base import REGISTRY
from localpower.options import Faults
from localpower.worker.shard import is_sparse

WIDE = 10, 1000  # columns per row, and columns, from which a transposed matrix is suspected


def check_rank(rank: int, source: Source) -> None:
    """Refuse a rank that the data do not have."""
    n, d = source.rows, source.columns
    if rank > min(n, d):
        raise ValueError(
            f"rank={rank} is more than data with n_samples={n} and n_features={d} have; "
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
            f"takes {size(need)}, and memory is {size(source.memory)}; check that so many columns "
            "are meant (svmlight takes them from the largest index), take another method, or raise "
            "memory="
        )
    per_row, least = WIDE
    dense = all(not is_sparse(piece) for piece in source.pieces)
    if dense and d >= max(least, per_row * n):
        warn(
            f"{n} rows of {d} columns: if the samples are in columns, give the transpose",
            DataHint,
        )


def check_sums(scale: str | None, return_u: bool, checkpoint: bool, faults: Faults) -> None:
    """Refuse what takes more than sums over all shards, where nothing else may be seen."""
    on_loss, part = faults.on_loss, faults.participation
    refused = {
        f"scale={scale!r} needs extremes of columns: take scale='std', or scale the rows before": (
            scale in ("max", "minmax")
        ),
        "return_u needs one row for each row of the data: project rows where they are, with "
        "`localpower site project` or transform": return_u,
        "checkpoint= needs a checksum of the rows: leave it out": checkpoint,
        f"on_loss={on_loss!r} would show a lost shard as a difference: leave it out": (
            on_loss != "stop"
        ),
        f"participation={part:g} would show single shards as differences: leave it out": part < 1,
    }
    for what, applies in refused.items():
        if applies:
            raise ValueError(f"this engine shows sums over all shards only, and {what}")


def reuses(method: Method, rank: float, faults: Faults, checkpoint: bool) -> bool:
    """Whether products of shards that are absent are reused; refuse what that cannot be."""
    shares = isinstance(rank, float)
    if faults.on_loss == "reuse" and (shares or not method.reuses):
        known = [repr(name) for name, form in REGISTRY.items() if form.build().reuses]
        what = f"rank={rank!r} needs exact ones" if shares else f"method='{method}' needs all anew"
        raise ValueError(
            f"on_loss='reuse' goes on with earlier products of shards, and {what}: take a number "
            f"of components and method={' or '.join(known)}; or on_loss='stop' and more retries"
        )
    found = method.reuses and not shares
    if found and checkpoint and faults.participation < 1:
        raise ValueError(
            f"checkpoint= does not keep the products that participation={faults.participation:g} "
            f"reuses: leave one of them out, or take method='{CERTIFIED.name}'"
        )
    return found


def method_for_sums(method: Method) -> Method:
    """The form of a method that works with sums."""
    found = method.for_sums()
    if found is None:
        known = [name for name, form in REGISTRY.items() if form.build().for_sums() is not None]
        raise ValueError(
            f"method='{method}' needs replies of single shards, and this engine shows sums over "
            f"all shards only: take one of {', '.join(map(repr, known))}, in float64"
        )
    return found
