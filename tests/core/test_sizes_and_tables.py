"""Sizes, times and tables: true to three digits, and no wider than a screen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpower.core.text import BYTES, SECONDS, duration, html_table, size, table


@pytest.mark.parametrize(("told", "units"), [(size, BYTES), (duration, SECONDS)])
@given(value=st.floats(1e-6, 1e15))
def test_what_is_told_is_the_value_to_three_digits(told, units, value):
    number, unit = told(value).split()
    assert len(number.replace(".", "").lstrip("0")) <= 3 or unit in ("TB", "h")
    least = 0.5 if told is size else 0.0  # whole bytes
    assert float(number) * units[unit] == pytest.approx(value, rel=0.006, abs=least)


LONG = "local_power:steps=8,schedule=halving:2,align=signs"
ROWS = [
    ("dpi", "31", "1.5 kB", "angle"),
    (LONG, "5", "22 kB", ""),
    ("gram", "needs " + 30 * "more "),
]


def test_a_table_is_aligned_and_fits():
    head, first, name, numbers, *missing = table(("method", "rounds", "moved", "end"), ROWS).split(
        "\n"
    )
    assert (head, first) == ("method rounds  moved end", "dpi        31 1.5 kB angle")
    assert (name, numbers) == (LONG, "            5  22 kB")
    assert len(missing) == 2
    assert max(map(len, missing)) <= 100
    assert missing[1].startswith(7 * " " + "more")


def test_a_table_of_html_has_the_same_cells_and_escapes_them():
    text = html_table(["what <it> is"], ("method", "rounds", "moved", "end"), ROWS)
    assert text.count("<tr>") == 4
    assert '<td class="text" style="text-align: left">dpi</td>' in text
    assert '<td style="text-align: right">31</td>' in text
    assert '<td colspan="3"' in text
    assert "what &lt;it&gt; is" in text
