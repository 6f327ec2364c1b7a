"""What readers of file formats share: the options of a read, and the blocks of rows they yield."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from localpower.core.checks import flag
from localpower.core.errors import DataError, DataHint, MissingExtra, warn
from localpower.worker.shard import work_type

BLOCK_BYTES = 1 << 26  # rows that a reader yields at once
LABEL_BYTES = 1 << 28
CHUNK_BYTES, CHUNK_ROW_BYTES = 1 << 30, 1 << 33
MOST_LISTED = 20  # names in a message


@dataclass(frozen=True, slots=True)
class Options:
    """How data are read, as `localpower.read` documents it; a format takes what applies to it.

    `like` are names of the columns of a model. Where the data have names, these are taken, in this
    order. Where they have none, `width` tells how many there are, to see whether labels are there.
    `means` are those of its columns, for values that are missing.
    """

    columns: Sequence[str | int] | None = None
    drop: Sequence[str | int] | None = None
    label: str | int | None = None
    header: bool | None = None
    delimiter: str | None = None
    dtype: str | None = None
    key: str | None = None
    zero_based: bool | None = None
    missing: str | None = None
    like: Sequence[str] | None = None
    width: int = 0
    means: Any = None

    def __post_init__(self) -> None:
        """Refuse what no format knows."""
        for name in ("header", "zero_based"):
            if (value := getattr(self, name)) is not None:
                flag(name, value)
        if self.dtype not in (None, "float32", "float64"):
            raise ValueError(f"dtype={self.dtype!r} is not known: take 'float32' or 'float64'")
        if self.missing not in (None, "drop", "mean", "error"):
            raise ValueError(
                f"missing={self.missing!r} is not known: take 'drop', 'mean' or 'error'"
            )

    @property
    def gaps(self) -> bool:
        """Whether values may be missing; readers write nan in their places."""
        return self.missing in ("drop", "mean")

    def told(self) -> str:
        """The options that matter for what rows are, for a line about them."""
        given = {name: getattr(self, name) for name in ("label", "missing")}
        return "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)

    def work_type(self, kinds: Iterable[DTypeLike] = (np.float64,)) -> np.dtype[Any]:
        """What rows of these types are read as: the type asked for, or `shard.work_type`."""
        return work_type(kinds) if self.dtype is None else np.dtype(self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some consecutive rows: a (rows, d) array, or CSR with sorted and unique indices.

    `labels`, (rows,), where the format or `Options.label` tells one. Readers yield float32 or
    float64, all blocks of a file the same; `names` are the columns' where the format has them.
    """

    rows: Any
    labels: NDArray[Any] | None = None
    names: tuple[str, ...] | None = None


def choose(
    names: Sequence[str] | None,
    count: int,
    options: Options,
    where: Path | str,
    index: Collection[int] = (),
) -> tuple[list[int], int | None]:
    """Numbers of the columns to take, in order, and of the label column.

    `index` are columns that the format calls no data, as the index of a data frame: they are taken
    only if `Options.columns` asks for them.
    """
    if names is not None and options.like is not None:
        order = _of_model(names, options, where, index)
        if order is not None:
            return order, _label_beside(order, names, count, options.label, where)
    if count == options.width and options.columns is None:  # no others could be left out
        return list(range(count)), None
    if options.columns is not None:
        chosen = [_number(column, names, count, where) for column in options.columns]
        if not chosen:
            raise DataError(f"{where}: columns=[] selects no column; name at least one")
    else:
        chosen = [number for number in range(count) if number not in index]
    dropped = {_number(column, names, count, where) for column in options.drop or ()}
    left = [number for number in chosen if number not in dropped]
    if len(left) == options.width:
        return left, _label_beside(left, names or (), count, options.label, where)
    label = None if options.label is None else _number(options.label, names, count, where)
    return [number for number in left if number != label], label


def refuse_twins(names: Sequence[str], taken: Iterable[int], where: Path | str) -> None:
    """Refuse columns of the same name: one could be meant, and another be taken."""
    numbers = list(dict.fromkeys(taken))
    counts = Counter(names[number] for number in numbers)
    twins = [f"{count} columns are named {name!r}" for name, count in counts.items() if count > 1]
    if twins:
        first = {names[number]: number for number in reversed(numbers)}
        rest = [number for number in numbers if first[names[number]] != number]
        raise DataError(
            f"{where}: {', '.join(twins[:MOST_LISTED])}; rename them, or leave out all but one of "
            f"each with drop={rest}"
        )


def listed(names: Sequence[str]) -> str:
    """Names for a message; the first of them where there are many."""
    return ", ".join(map(repr, names[:MOST_LISTED])) + ", …" * (len(names) > MOST_LISTED)


def other_names(name: str, known: str) -> DataError:
    """Say that one part of the data has other columns than another."""
    return DataError(
        f"{name} and {known} have columns of other names or in another order; give them the same, "
        "or choose with columns=[…]"
    )


def block_rows(row_bytes: int) -> int:
    """Rows of a block of `BLOCK_BYTES`, one at least."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def check_chunks(shape: Sequence[int], chunks: Sequence[int], dtype: DTypeLike, where: str) -> None:
    """Refuse chunks that do not fit in memory: they are unpacked whole, and side by side."""
    each = np.dtype(dtype).itemsize
    if math.prod(chunks) * each > CHUNK_BYTES:
        raise DataError(f"{where}: its chunks {tuple(chunks)} are over 1 GB; write smaller ones")
    width = math.ceil(shape[1] / chunks[1]) * chunks[1] if len(shape) == 2 else 1
    if min(chunks[0], shape[0]) * width * each > CHUNK_ROW_BYTES:
        raise DataError(
            f"{where}: chunks {tuple(chunks)} of {shape[1]} columns are over 8 GB side by side; "
            "write chunks of fewer rows"
        )


def check_columns(bad: Sequence[tuple[str, str]], taken: int, where: Path | str) -> None:
    """Refuse (name, type) columns that are not numbers, and to take no column."""
    if bad:
        listed = ", ".join(f"{name!r} ({kind})" for name, kind in bad)
        raise DataError(
            f"{where}: columns that are not numbers: {listed}; leave them out with "
            f"drop={[name for name, _ in bad]}, or encode them as numbers"
        )
    if not taken:
        raise DataError(f"{where}: no column is left; drop fewer columns, or give another label")


def no_label(where: Path | str, name: str, kind: Any) -> DataError:
    """Say that a column cannot be a label."""
    return DataError(
        f"{where}: column {name!r} ({kind}) cannot be a label; give a column of text or numbers"
    )


def missing_value(where: Path | str, row: int, name: str) -> DataError:
    """Say that there is a null."""
    return DataError(
        f"{where}, row {row}, column {name!r}: the value is missing (null); leave out such rows "
        f"with missing='drop', fill it in with missing='mean', or fit without the column, with "
        f"drop=[{name!r}]"
    )


def refuse_empty(present: NDArray[Any], names: Sequence[str] | None, fitted: bool = False) -> None:
    """Refuse columns of which no value is `present`: they have no mean.

    A `fitted` model that needs them has none either where this is asked.
    """
    if not present.all():
        called = names or [*map(str, range(len(present)))]
        empty = listed([called[number] for number in np.flatnonzero(present == 0).tolist()])
        remedy = f"leave it out with drop=[{empty}]"
        if fitted:
            remedy = (
                "the model needs it: write values into it, or fit with center=True, so that the "
                "model knows its mean"
            )
        raise DataError(
            f"column {empty} has no value in any row, so there is no mean to fill in; {remedy}"
        )


def text_labels(values: Sequence[Any], where: Path | str) -> NDArray[Any]:
    """Text as an array that is saved and joined without pickle."""
    longest = max(map(len, values), default=0)
    if 4 * longest * len(values) > LABEL_BYTES:
        raise DataError(
            f"{where}: the label column has texts of up to {longest} characters; give a column "
            "of short labels"
        )
    return np.array(values, dtype=str)


@contextmanager
def refusing_damage(path: Path, kind: str, writer: str) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into one error."""
    try:
        yield
    except (DataError, MissingExtra, FileNotFoundError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path}: not a complete {kind} file that can be read ({reason:.200}); "
            f"write it again with {writer}"
        ) from error


def _of_model(
    names: Sequence[str], options: Options, where: Path | str, index: Collection[int]
) -> list[int] | None:
    """Numbers of a model's columns by their names; None where positions count.

    They do where names on one side are 0, 1, 2, …, as of a data frame without any, and nothing else
    is known of which is which. Numbers in `columns` and `drop` do not matter for names.
    """
    like = options.like or ()
    places = {name: number for number, name in enumerate(names)}
    there = set(places)
    if options.columns is not None and all(column in places for column in options.columns):
        there = {str(column) for column in options.columns}
    there -= {column for column in options.drop or () if isinstance(column, str)}
    missing = [name for name in like if name not in there]
    if len(set(like)) < len(like) or (missing and (_only_count(like) or _only_count(names))):
        return None
    if left := [name for name in missing if name in places]:
        raise DataError(
            f"{where}: the model needs columns that are left out: {listed(left)}; take them off "
            "drop=, or name them in columns="
        )
    if missing:
        raise DataError(
            f"{where}: columns of the model are missing: {listed(missing)}; it has "
            f"{listed(names)}. Rename or add what is missing; or give rows without names, as an "
            "array, with columns in the order of the fit"
        )
    wanted = set(like)
    refuse_twins(names, [i for i, name in enumerate(names) if name in wanted], where)
    apart = [*(options.drop or ()), *([] if options.label is None else [options.label])]
    dropped = [_place(column, len(names)) for column in apart]
    passed = (*index, *(number for number in dropped if number is not None))
    known = {*wanted, options.label, *(names[number] for number in passed)}
    extra = [name for name in names if name in there and name not in known]
    if extra and options.columns is None:
        warn(f"columns that the model does not have are left out: {listed(extra)}", DataHint)
    return [places[name] for name in like]


def _only_count(names: Sequence[str]) -> bool:
    return list(names) == [str(number) for number in range(len(names))]


def _label_beside(
    order: Sequence[int],
    names: Sequence[str],
    count: int,
    label: str | int | None,
    where: Path | str,
) -> int | None:
    """Number of the label column if the data have one: new rows of a model do not need it."""
    if label is None or (label not in names and _place(label, count) is None):
        return None
    number = _number(label, names, count, where)
    return None if number in order else number


def _number(column: str | int, names: Sequence[str] | None, count: int, where: Path | str) -> int:
    if isinstance(column, str) and names is not None and column in names:
        same = [number for number, name in enumerate(names) if name == column]
        if len(same) > 1:
            raise DataError(
                f"{where}: {len(same)} columns are named {column!r}; say which by number, of {same}"
            )
        return same[0]
    if (number := _place(column, count)) is not None:
        return number
    known = "" if names is None else f": {', '.join(names[:20])}{', …' if count > 20 else ''}"
    raise DataError(f"{where}: there is no column {column!r} among its {count} columns{known}")


def _place(column: str | int, count: int) -> int | None:
    """The number that is meant, counted from the end if it is below 0; None if there is none."""
    number: Any = column
    if isinstance(column, str) and column.lstrip("-").isdecimal():
        number = int(column)
    if isinstance(number, int | np.integer) and -count <= number < count:
        return int(number) % count
    return None
