"""One call for everything: run what is missing, draw it, write the page."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from localpower.core.errors import MissingExtra
from localpower.paper import figures, page, runner
from localpower.paper.results import Results

PAGE = "reproduction.html"


def reproduce(
    names: Iterable[str], folder: Path, data_dir: str | None, progress: runner.Progress
) -> Path:
    """Bring the named items, or all, up to date in `folder`; return the path of the page."""
    known = runner.items()
    chosen = list(names) or list(known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"item {unknown[0]!r} is not known: take any of {', '.join(known)}")
    if find_spec("matplotlib") is None:  # said before the work, not after it
        raise MissingExtra("localpower reproduce", "plot")
    path = folder / PAGE
    if not runner.run(chosen, folder, data_dir, progress) and path.exists():
        return path
    results = Results(folder)
    drawn = {name: figures.draw(known[name], results, folder / "figures") for name in known}
    path.write_text(page.build(known.values(), results, drawn), encoding="utf-8")
    progress(f"-> {path}")
    return path
