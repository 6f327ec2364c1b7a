"""What a run returns, and its form on disk: arrays in ``.npz`` and a readable ``run.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np

from localpower import pictures, report
from localpower.core import wire
from localpower.core.errors import DataError
from localpower.core.ledger import Ledger, Round, size
from localpower.core.linalg import Array
from localpower.core.local_matrix import LocalMatrix
from localpower.data.partition import contiguous
from localpower.data.source import open_source

FORMAT = 1
ARRAYS, RUN = "model.npz", "run.json"
MOST_SHOWN = 20  # components in a table


@dataclass(frozen=True, slots=True)
class Record:
    """One round of the method.

    Attributes
    ----------
    round, steps : int
        Its number, from 1, and the local steps of a shard in it.
    bytes_up, bytes_down : int
        What all shards sent, and what was sent to them.
    seconds : float
        What it took.
    bytes_read : int
        What workers read from files, where rows are not kept in memory.
    angle : float or None
        Certified bound of the sine of the angle to the answer; None where the method does not tell.
    residual : float or None
        The largest residual of a component, relative to the largest eigenvalue.
    rigorous : bool or None
        Whether the bound of the angle is proven, up to a factor of ten.
    """

    round: int
    steps: int
    bytes_up: int
    bytes_down: int
    seconds: float
    bytes_read: int = 0
    angle: float | None = None
    residual: float | None = None
    rigorous: bool | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """A truncated SVD of the data, ``(A - 1 meanᵀ) diag(1/scale) ≈ U diag(S) components``.

    Attributes
    ----------
    components : (k, d) ndarray
        Right singular vectors as rows; the entry of largest magnitude of each is positive.
    singular_values : (k,) ndarray
        In descending order.
    U : (n, k) ndarray or None
        Left singular vectors, if ``return_u=True``.
    basis : (d, r) ndarray
        The orthonormal basis that the method ended with.
    mean : (d,) ndarray or None
        What was subtracted from each row: column means if centred; column minima if scaled by
        min-max alone.
    scale : (d,) ndarray or None
        What columns were divided by afterwards.
    explained_variance, explained_variance_ratio : (k,) ndarray
        Variance of the data along each component, and as a share of the total variance. Divided
        by n - 1 if centred (as scikit-learn's PCA), else by n (as its TruncatedSVD).
    history : tuple of Record
        One record per round of the method.
    ledger : Ledger
        Everything that was communicated, in all phases.
    run : dict
        What was asked and on what: options, seed, shape, versions.
    """

    components: Array
    singular_values: Array
    U: Array | None
    basis: Array
    mean: Array | None
    scale: Array | None
    explained_variance: Array
    explained_variance_ratio: Array
    history: tuple[Record, ...]
    ledger: Ledger
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def residuals(self) -> Array | None:
        """Residual of each component, relative to the largest eigenvalue; None if not known."""
        known = self.run.get("residuals")
        return None if known is None else np.asarray(known)

    @property
    def converged(self) -> bool:
        """Whether the tolerance that was asked for is certified, or the method is exact."""
        return self.reason in ("angle", "residual", "exact")

    @property
    def reason(self) -> str:
        """Why the run ended.

        ``"angle"`` or ``"residual"`` (converged), ``"exact"`` (a method that does not iterate to a
        tolerance), ``"max_rounds"``, ``"stalled"``, ``"budget"``, ``"callback"``, ``"end"`` (of the
        schedule, or of a one-shot baseline) or ``"degraded"`` (without shards that were lost).
        """
        return str(self.run.get("reason", "end"))

    def __repr__(self) -> str:
        k, d = self.components.shape
        asked = f"method={self.run.get('method')!r}, " if "method" in self.run else ""
        up, down = self.ledger.bytes_up, self.ledger.bytes_down
        return (
            f"Result(rank={k}, columns={d}, {asked}rounds={len(self.history)}, "
            f"bytes_up={up}, bytes_down={down})"
        )

    def __str__(self) -> str:
        head, *rows = [("component", "singular value", "explained"), *self._rows()]
        lines = [*self._about(), "{:>9} {:>16} {:>10}".format(*head)]
        lines += [f"{number:>9} {value:>16} {ratio:>10}" for number, value, ratio in rows]
        return "\n".join(lines + self._more())

    def _repr_html_(self) -> str:
        head = ("component", "singular value", "explained")
        return html_table([*self._about(), *self._more()], head, self._rows())

    def _rows(self) -> list[tuple[str, str, str]]:
        pairs = zip(self.singular_values, self.explained_variance_ratio, strict=True)
        rows = [(str(n), f"{value:.8g}", f"{r:.2%}") for n, (value, r) in enumerate(pairs, start=1)]
        return rows[:MOST_SHOWN]

    def _more(self) -> list[str]:
        more = len(self.singular_values) - MOST_SHOWN
        return [f"and {more} components more"] if more > 0 else []

    def _about(self) -> list[str]:
        """What was run on what, what that moved, and what is known of the answer."""
        run, ledger, rounds = self.run, self.ledger, len(self.history)
        k, d = self.components.shape
        what = [
            f"{run.get('method', 'svd')}: rank {k} of {run.get('rows', '?')} x {d} "
            f"{self.components.dtype} in {run.get('workers', '?')} shards, {rounds} "
            f"round{'s' * (rounds != 1)}, seed {run.get('seed')}",
            f"moved {size(ledger.bytes_up)} up and {size(ledger.bytes_down)} down in "
            f"{ledger.messages} messages, set-up and factors included",
            self._certificate(),
        ]
        chosen = run.get("why", "asked for")
        return what if chosen == "asked for" else [*what, f"chosen: {chosen}"]

    def _certificate(self) -> str:
        if self.reason == "exact":
            return "exact, up to rounding"
        if self.reason == "degraded":
            lost = self.run["degraded"]
            rows = sum(part["rows"] for part in lost)
            return f"without {rows} rows: shards {[part['shard'] for part in lost]} were lost"
        last = self.history[-1] if self.history else None
        if last is None or last.angle is None:
            return f"not certified (ended by {self.reason}); give tol=1e-8 for a certificate"
        whole = self.run.get("method") in ("gram", "tsqr")  # nothing can have been missed
        sure = "proven" if last.rigorous or whole else "unless the random start missed something"
        state = "converged" if self.converged else f"not converged ({self.reason})"
        return f"{state}: sine of the angle to the answer at most {last.angle:.1e}, {sure}"

    def transform(self, data: Any) -> Array:
        """Project rows on the components, (n, k); takes whatever `svd` takes as data."""
        d = self.components.shape[1]
        source = open_source(data, columns=d)
        if source.columns != d:
            raise DataError(
                f"data has {source.columns} columns where the model has {d}; give those that it "
                "was fitted on, with columns= or drop="
            )
        matrix = LocalMatrix(contiguous(source, 1).shards[0])
        matrix.prepare(self.mean, 1.0 if self.scale is None else 1.0 / self.scale)
        with np.errstate(invalid="ignore"):
            scores = matrix.apply(self.components.T)
        if source is not data:
            source.close()
        bad = np.flatnonzero(~np.isfinite(scores).all(axis=1))
        if bad.size:
            where = source.where(int(bad[0]))
            raise DataError(f"NaN or infinity in {where}; remove such rows or fill in values")
        return scores

    def inverse_transform(self, scores: Array) -> Array:
        """Bring (n, k) scores back to (n, d) rows in the units of the data."""
        scores = np.asarray(scores)
        k = self.components.shape[0]
        if scores.ndim != 2 or scores.shape[1] != k:
            raise ValueError(f"scores must be (n, {k}), got shape {scores.shape}")
        rows = scores @ self.components
        if self.scale is not None:
            rows = rows * self.scale
        return rows if self.mean is None else rows + self.mean

    def report(
        self,
        path: str | os.PathLike[str],
        data: Any = None,
        *,
        grid: tuple[int, int] | None = None,
    ) -> Path:
        """Write the page of the run to `path`: one HTML file that needs no network.

        It tells what was asked and what came out, what the certificate means, how the run
        converged, variance, components, where the time went, faults, and how to do it again. The
        `data` that were fitted, if given, add scores and how much shards differ; `grid` lays
        columns out as images, (rows, columns), which a square number of them is by default.

        Examples
        --------
        >>> import localpower as lp, numpy as np, pathlib, tempfile
        >>> X = np.random.default_rng(0).standard_normal((500, 4)) * [9, 3, 1, 1]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lp.pca(X, 2, rng=0).report(pathlib.Path(folder, "run.html"), X).name
        'run.html'
        """
        return report.write(self, path, data, grid)

    def plot(
        self, kind: str | None = None, data: Any = None, *, grid: tuple[int, int] | None = None
    ) -> Any:
        """Draw pictures of the page as a matplotlib ``Figure``, which has `savefig`.

        `kind` is ``"convergence"``, ``"variance"``, ``"components"``, ``"scores"``, ``"shards"``
        or ``"timeline"``; by default all for which there is something to draw. `data` and `grid`
        are those of `report`.
        """
        return pictures.plot(self, kind, data, grid)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the directory `path`: ``model.npz`` and ``run.json``, each replaced at once."""
        folder = model_folder(path)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in ARRAY_FIELDS}
        readable = {
            "format": FORMAT,
            "run": dict(self.run),
            "history": [asdict(record) for record in self.history],
            "ledger": [asdict(record) for record in self.ledger.records],
        }
        text = json.dumps(readable, indent=1) + "\n"
        with replacing(folder / ARRAYS) as stream:
            np.savez(stream, **{n: a for n, a in arrays.items() if a is not None})
        with replacing(folder / RUN) as stream:
            stream.write(text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a model that `save` wrote; nothing is unpickled."""
        folder = Path(path)
        try:
            readable = json.loads((folder / RUN).read_bytes())
            if readable["format"] != FORMAT:
                raise DataError(
                    f"{folder}: a model of format {readable['format']}, this version reads "
                    f"{FORMAT}; fit it again, or use the version that wrote it"
                )
            with (
                open(folder / ARRAYS, "rb") as stream,
                np.load(stream, allow_pickle=False) as content,
            ):
                arrays = {name: content[name] for name in content}
            _check_arrays(arrays)
            return cls(
                **{name: arrays.get(name) for name in ARRAY_FIELDS},  # type: ignore[arg-type]
                history=tuple(Record(**record) for record in readable["history"]),
                ledger=Ledger(tuple(Round(**record) for record in readable["ledger"])),
                run=dict(readable["run"]),
            )
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} is not a model: {error.filename} is missing; give what fit wrote"
            ) from error
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, EOFError, OSError, BadZipFile) as error:
            raise DataError(f"{folder} is not a readable model ({error}); fit it again") from error


for kind in (Record, Result):  # ranks of an MPI job send each other what came out
    wire.register(kind)


def model_folder(path: str | os.PathLike[str]) -> Path:
    """Check that a model can be written to `path`."""
    folder = Path(path)
    if not os.fspath(path) or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"path={os.fspath(path)!r} is no directory; a model is written into one")
    return folder


def html_table(about: Sequence[str], head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table for notebooks; it has no colours of its own, so it is light or dark as they are.

    The last cell of a row that is too short takes the columns that are left.
    """
    lines = [[text.strip() for text in row] for row in rows]
    full = [row for row in lines if len(row) == len(head)]
    words = [any(row[j][:1].isalpha() for row in full) for j in range(len(head))]

    def cells(kind: str, texts: Sequence[str]) -> str:
        wide = len(head) - len(texts) + 1
        spans = [""] * (len(texts) - 1) + [f' colspan="{wide}"' if wide > 1 else ""]
        sides = [
            "left" if word or span else "right" for word, span in zip(words, spans, strict=False)
        ]
        return "".join(
            f'<{kind}{span} style="text-align: {side}">{escape(part)}</{kind}>'
            for part, span, side in zip(texts, spans, sides, strict=False)
        )

    caption = "<br/>".join(map(escape, about))
    names = cells("th", [text.strip() for text in head])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in lines)
    look = "caption-side: top; text-align: left; white-space: nowrap"
    return (
        f'<table style="color: inherit"><caption style="{look}">{caption}</caption>'
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
    )


ARRAY_FIELDS = tuple(entry.name for entry in fields(Result))[:8]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside `path` and put it in place when it is complete and on the disk."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _check_arrays(arrays: Mapping[str, Array]) -> None:
    """Refuse a model whose arrays are not those of one."""
    k, d = arrays["components"].shape
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("singular_values", *ARRAY_FIELDS[6:]), (k,))
    shapes |= {"components": (k, d), "basis": (d, arrays["basis"].shape[-1])}
    shapes |= {name: (d,) for name in ("mean", "scale") if name in arrays}
    for name, shape in shapes.items():
        if arrays[name].shape != shape or arrays[name].dtype.kind != "f":
            raise ValueError(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
