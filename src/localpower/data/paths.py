"""The files that a folder or a glob stands for."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from localpower.core.errors import DataError
from localpower.data.detect import is_single_table, known_suffixes, suffix_of

MODEL = {"model.npz", "run.json"}  # a folder with these is what a fit wrote, and no rows


def files(path: str) -> list[Path] | None:
    """List the files that a directory or a glob stands for, each once; None if it is a file."""
    if os.path.isdir(path) and not is_single_table(Path(path)):
        suffixes = known_suffixes()
        walk = [(folder, names) for folder, _, names in os.walk(path) if not {*names} >= MODEL]
        found = [Path(folder, name) for folder, names in walk for name in names]
        known = [p for p in found if p.name[0] not in "._" and suffix_of(p) in suffixes]
        if not known:
            raise DataError(
                f"{path}: no file in this directory has a known suffix "
                f"({', '.join(suffixes)}); give a list of files, or a glob"
            )
        return _once(known)
    if glob.has_magic(path) and not os.path.exists(path):
        found = [Path(name) for name in _matches(path)]
        if not found:
            raise DataError(f"{path}: no file matches; check the folder and the pattern")
        return _once(found)
    return None


def _once(paths: Iterable[Path]) -> list[Path]:
    """Sort paths, and leave out links to what is there already.

    Hard links are kept: what stores the files may have joined those of the same content.
    """
    found: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (path.is_symlink(), len(path.parts), path)):
        found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _matches(pattern: str) -> Iterator[str]:
    """What a glob stands for. Unlike in `glob`, ``**`` goes into a folder once, so loops end."""
    parts = pattern.replace(os.altsep or os.sep, os.sep).split(os.sep)
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    at = parts.index("**")
    head, tail = os.sep.join(parts[:at]), os.sep.join(parts[at + 1 :])
    for folder in _folders(sorted(glob.glob(head or os.sep)) if at else [os.curdir]):
        inside = glob.escape(folder) if at else glob.escape(folder)[2:]  # without ./
        found = _matches(os.path.join(inside, tail or "*"))
        yield from found if tail else filter(os.path.isfile, found)


def _folders(starts: list[str]) -> Iterator[str]:
    """Folders and all below them that are not hidden; then those behind links, if not seen yet."""
    seen: set[str] = set()
    for top in starts:
        for folder, below, _ in os.walk(top):
            place = os.path.realpath(folder)
            if place in seen:
                below.clear()
                continue
            seen.add(place)
            below[:] = sorted(name for name in below if not name.startswith("."))
            inside = [os.path.join(folder, name) for name in below]
            starts += filter(os.path.islink, inside)
            yield folder
