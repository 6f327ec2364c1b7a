"""A matplotlib figure that notebooks show by themselves; importing this needs matplotlib."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from matplotlib.figure import Figure

SHARP = 144  # dots per inch in a notebook, which shows two of them side by side as one


class Picture(Figure):
    """A figure; with or without ``%matplotlib inline``, it is shown at the end of a cell."""

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        stream = BytesIO()
        self.savefig(stream, format="png", dpi=SHARP)
        width, height = (round(SHARP / 2 * inches) for inches in self.get_size_inches())
        return stream.getvalue(), {"width": width, "height": height}
