"""Options of reading for frames of Spark and datasets of Ray, seen to where the rows are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from localpower.core.errors import DataError
from localpower.data.blocks import Options, check_columns, choose, refuse_empty, refuse_twins
from localpower.data.readers.foreign import engine_of
from localpower.data.readers.frames import is_lazy_frame, rows_in_place

NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal", "boolean")  # of Spark
WORDS = ("string", "large_string", "object", "str")  # types of a Ray dataset
Closed = tuple[Any, dict[str, int]]  # rows, and how many gaps were closed in which way


def is_lazy(data: Any) -> bool:
    """Tell what a cluster makes when it is needed."""
    return is_lazy_frame(data) or engine_of(data) is not None


def has_columns(data: Any) -> bool:
    """Tell what a cluster can choose columns of, and close the gaps in them."""
    if is_lazy_frame(data):
        return True
    by = {"spark": "schema", "ray": "select_columns"}.get(engine_of(data) or "")
    return by is not None and hasattr(data, by)


def in_place(data: Any, options: Options) -> Closed:
    """The same kind of data with the columns that are wanted, and what was done about gaps."""
    if is_lazy_frame(data):
        return rows_in_place(data, options)
    if options == Options():
        return data, {}
    if has_columns(data):
        return {"spark": _spark_rows, "ray": _ray_rows}[str(engine_of(data))](data, options)
    kind = type(data[0] if isinstance(data, list | tuple) else data).__name__
    raise DataError(
        f"data is {kind}, whose columns are not known: choose columns and see to gaps where it is "
        "made, and leave out columns=, drop=, label=, dtype= and missing="
    )


def width(data: Any, options: Options) -> int | None:
    """How many columns are wanted; None where only the rows themselves tell."""
    rows, _ = in_place(data, replace(options, missing=None))
    if is_lazy_frame(rows):
        return int(rows.shape[1])
    if hasattr(rows, "select_columns"):  # of Ray
        first: Any = [value for row in rows.take(1) for value in row.values()]
    else:
        first = rows.first() if hasattr(rows, "schema") else None
    return sum(getattr(value, "size", np.size(value)) for value in first) if first else None


def _taken(names: list[str], options: Options) -> list[str]:
    taken, _ = choose(names, len(names), options, "data")
    refuse_twins(names, taken, "data")
    return [names[number] for number in taken]


def _refuse_vectors(vectors: list[str], options: Options, remedy: str) -> None:
    if vectors and (options.gaps or options.dtype is not None):
        raise DataError(
            f"data: missing= and dtype= are not for columns of vectors, as {vectors[0]!r}; {remedy}"
        )


def quoted(name: str) -> str:
    """A name with dots, as Spark reads it as one name."""
    return "`" + name.replace("`", "``") + "`"


def _spark_rows(frame: Any, options: Options) -> Closed:
    """Columns of a frame, lazily. Gaps are counted by Spark."""
    from pyspark.sql import functions

    taken = _taken(list(frame.columns), options)
    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    vectors = [name for name in taken if kinds[name] in ("vectorudt", "array")]
    numbers = [name for name in taken if kinds[name] in NUMBERS]
    bad = [(name, kinds[name]) for name in taken if name not in vectors and name not in numbers]
    check_columns(bad, len(taken), "data")
    _refuse_vectors(vectors, options, "VectorAssembler(handleInvalid='skip') leaves out such rows")

    def column(name: str) -> Any:
        plain = functions.col(quoted(name))
        if options.dtype is None and not options.gaps:
            return plain
        narrow = options.dtype == "float32" or (options.dtype is None and kinds[name] == "float")
        number = plain.cast("float" if narrow else "double")
        known = functions.when(~functions.isnan(number), number) if options.gaps else number
        return known.alias(name)

    rows = frame.select(*map(column, taken))
    if not options.gaps:
        return rows, {}
    if options.missing == "drop":
        safe = rows.toDF(*(f"c{i}" for i in range(len(taken))))  # names are not quoted there
        whole = safe.dropna().toDF(*taken)
        left = rows.count() - whole.count()
        return (whole, {"rows_left_out": left}) if left else (rows, {})
    columns = [rows[quoted(name)] for name in taken]
    found = rows.agg(
        functions.count(functions.lit(1)),
        *map(functions.count, columns),
        *map(functions.avg, columns),
    ).first()
    present, means = found[1 : 1 + len(taken)], found[1 + len(taken) :]
    filled = found[0] * len(taken) - sum(present)
    if not filled:
        return rows, {}
    refuse_empty(np.array(present), taken)
    pairs = zip(columns, means, taken, strict=True)
    whole = [functions.coalesce(c, functions.lit(mean)).alias(name) for c, mean, name in pairs]
    return rows.select(*whole), {"values_filled": filled}


def _ray_rows(dataset: Any, options: Options) -> Closed:
    """Columns of a dataset, lazily. Gaps are counted by Ray."""
    schema = dataset.schema()
    kinds = dict(zip(schema.names, map(str, schema.types), strict=True))
    taken = _taken(list(kinds), options)
    check_columns(
        [(name, kinds[name]) for name in taken if kinds[name] in WORDS], len(taken), "data"
    )
    vectors = [name for name in taken if "ensor" in kinds[name] or "list" in kinds[name]]
    _refuse_vectors(vectors, options, "leave out such rows with data.filter, or fill them in")
    rows = dataset if taken == list(kinds) else dataset.select_columns(taken)
    if options.dtype is not None or options.gaps:
        rows = rows.map_batches(_numbers, batch_format="pandas", fn_args=(options.dtype,))
    if not options.gaps:
        return rows, {}
    found = rows.map_batches(_counted, batch_format="pandas").take_all()
    count, whole = (sum(part[name] for part in found) for name in ("rows", "whole"))
    if options.missing == "drop":
        left = int(count - whole)
        return (
            (rows.map_batches(_whole, batch_format="pandas"), {"rows_left_out": left})
            if left
            else (rows, {})
        )
    present = np.sum([part["present"] for part in found], axis=0)
    filled = int(count * len(taken) - present.sum())
    if not filled:
        return rows, {}
    refuse_empty(present, taken)
    means = np.sum([part["sums"] for part in found], axis=0) / present
    pairs = dict(zip(taken, means.tolist(), strict=True))
    return rows.map_batches(_filled, batch_format="pandas", fn_args=(pairs,)), {
        "values_filled": filled
    }


# What runs on workers of Ray, on some rows as a data frame.


def _numbers(rows: Any, dtype: str | None) -> Any:
    kinds = {
        n: dtype or ("float32" if str(k) == "float32" else "float64")
        for n, k in rows.dtypes.items()
    }
    return rows.astype(kinds)


def _counted(rows: Any) -> dict[str, Any]:
    holes = rows.isna().to_numpy()
    return {
        "rows": np.array([len(rows)]),
        "whole": np.array([int((~holes.any(axis=1)).sum())]),
        "present": (~holes).sum(axis=0)[None],
        "sums": rows.to_numpy(np.float64, na_value=0.0).sum(axis=0)[None],
    }


def _whole(rows: Any) -> Any:
    return rows.dropna()


def _filled(rows: Any, means: dict[str, float]) -> Any:
    return rows.fillna(means)
