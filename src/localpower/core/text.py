"""Numbers and tables for people: sizes, times, tables as text, as HTML and as data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from importlib import import_module
from textwrap import wrap
from typing import Any

from localpower.core.errors import MissingExtra

BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
SHORT = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}  # units of a time axis
LONGEST, WIDE = 28, 100  # characters of a table's first column, and of a line
MOST_LINES = 20  # of a table whose length is that of a run


def size(count: float) -> str:
    """Bytes with their unit of 1000.

    Examples
    --------
    >>> size(12), size(1536), size(2e12)
    ('12 B', '1.54 kB', '2 TB')
    """
    unit, factor = unit_of(count / 0.9995, BYTES)
    return f"{count:.0f} B" if unit == "B" else f"{count / factor:.3g} {unit}"


def duration(seconds: float) -> str:
    """A time with its unit, three digits of it.

    Examples
    --------
    >>> duration(0), duration(0.0123), duration(60), duration(115), duration(86400)
    ('0 s', '12.3 ms', '60 s', '1.92 min', '24 h')
    """
    enough = seconds / 1.5 if seconds >= 60 else seconds / 0.9995
    unit, factor = unit_of(enough, SECONDS) if seconds else ("s", 1.0)
    return f"{seconds / factor:.3g} {unit}"


def unit_of(most: float, units: Mapping[str, float]) -> tuple[str, float]:
    """The unit in which the largest of some values is best told, and its factor."""
    fitting = [(unit, factor) for unit, factor in units.items() if most >= factor]
    return fitting[-1] if fitting else next(iter(units.items()))


def counted(count: int | str, what: str) -> str:
    """So many things, one of which is called `what`.

    Examples
    --------
    >>> counted(1, "round"), counted(2000, "round"), counted("?", "row")
    ('1 round', '2,000 rounds', '? rows')
    """
    number = f"{count:,}" if isinstance(count, int) else count
    return f"{number} {what}{'s' * (count != 1)}"


def power(value: float) -> str:
    """A number such as a tolerance, as people write it: 1e-8."""
    return f"{value:.3g}".replace("e-0", "e-")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as text: words to the left, numbers to the right, within 100 characters.

    A long first cell has a line of its own. The last cell of a row that is too short takes the
    columns that are left.

    Examples
    --------
    >>> print(table(("name", "rounds", "note"), [("dpi", "31", ""), ("gram", "needs 4 GB")]))
    name rounds note
    dpi      31
    gram needs 4 GB
    """
    lines = [[cell.strip() for cell in row] for row in rows]
    full = [[*head], *(row for row in lines if len(row) == len(head))]
    left = _columns_of_words(len(head), full[1:])
    fitting = [row[0] for row in [[*head], *lines] if len(row[0]) <= LONGEST]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    widths[0] = max(map(len, fitting))
    text = []
    for name, *cells in [[*head], *lines]:
        indent = " " * (widths[0] + 1)
        if len(name) > widths[0]:
            text.append(name)
            name = ""
        if len(cells) < len(head) - 1:
            text += wrap(f"{name:<{widths[0]}} {cells[-1]}", WIDE, subsequent_indent=indent)
            continue
        sides = zip(cells, widths[1:], left[1:], strict=True)
        aligned = [cell.ljust(width) if word else cell.rjust(width) for cell, width, word in sides]
        text.append(" ".join([name.ljust(widths[0]), *aligned]).rstrip())
    return "\n".join(text)


def html_table(about: Sequence[str], head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for notebooks and pages; it has no colours, so it is light or dark as they are.

    The last cell of a row that is too short takes the columns that are left.
    """
    lines = [[cell.strip() for cell in row] for row in rows]
    words = _columns_of_words(len(head), [row for row in lines if len(row) == len(head)])

    def cells(tag: str, texts: Sequence[str]) -> str:
        wide = len(head) - len(texts) + 1
        spans = [""] * (len(texts) - 1) + [f' colspan="{wide}"' if wide > 1 else ""]
        return "".join(
            f"<{tag}{span}{LEFT if word or span else RIGHT}>{escape(text)}</{tag}>"
            for text, span, word in zip(texts, spans, words, strict=False)
        )

    caption = "<br/>".join(map(escape, about))
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in lines)
    return (
        f'<table style="color: inherit">{CAPTION.format(caption) if caption else ""}'
        f"<thead><tr>{cells('th', [text.strip() for text in head])}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def few(lines: Sequence[Sequence[str]], unit: str) -> list[Sequence[str]]:
    """The first and the last lines of a long table, and how many are left out between them.

    Examples
    --------
    >>> few([[str(n)] for n in range(30)], "rounds")[9:12]
    [['9'], ('…', 'and 10 more rounds'), ['20']]
    """
    left, half = len(lines) - MOST_LINES, MOST_LINES // 2
    if left <= 1:
        return [*lines]
    return [*lines[:half], ("…", f"and {left:,} more {unit}"), *lines[-half:]]


def frame(what: str, kind: type, records: Iterable[Any], without: Sequence[str] = ()) -> Any:
    """A pandas frame: a line for each record, a column for each field; `what` asks for it."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise MissingExtra(what, "pandas") from error
    names = [entry.name for entry in fields(kind) if entry.name not in without]
    return pandas.DataFrame([[getattr(r, name) for name in names] for r in records], columns=names)


LEFT, RIGHT = ' class="text" style="text-align: left"', ' style="text-align: right"'
CAPTION = '<caption style="caption-side: top; text-align: left; white-space: nowrap">{}</caption>'


def _columns_of_words(columns: int, rows: Sequence[Sequence[str]]) -> list[bool]:
    return [any(row[j][:1].isalpha() for row in rows) for j in range(columns)]
