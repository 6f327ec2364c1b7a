"""What a run returns, and its form on disk: arrays in ``.npz`` and a readable ``run.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from hashlib import file_digest
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from localpower.core.certificate import Certificate
from localpower.core.errors import DataError
from localpower.core.files import locked, replacing, synchronise
from localpower.core.ledger import Ledger, Record, Round
from localpower.core.linalg import Array
from localpower.core.text import html_table, size
from localpower.data.missing import TOLD
from localpower.data.partition import contiguous
from localpower.data.source import open_source
from localpower.methods.scaling import dividing
from localpower.show import figures, report, summary
from localpower.stopping import REASONS
from localpower.worker import wire
from localpower.worker.local_matrix import LocalMatrix

FORMAT = 1
ARRAYS, RUN = "model.npz", "run.json"
NEW = "model.new.npz"  # the arrays of a model that is being saved, until they are ARRAYS
MOST_SHOWN = 20  # components in a table
LARGE = 2.0**1000  # a scale whose multiples may leave the number format


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
        min-max alone. It is in float64 where the type of the data would round it.
    scale : (d,) ndarray or None
        What columns were divided by afterwards, in float64 likewise. A range beyond the largest
        number counts as that.
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
        """Residual of each component, relative to its own eigenvalue; None if not known."""
        return None if self.certificate is None else self.certificate.residuals

    @property
    def certificate(self) -> Certificate | None:
        """What is known of the components, and how sure it is; None if the method does not tell."""
        known = self.run.get("certificate")
        if known is None:
            return None
        return Certificate(**known | {"residuals": np.asarray(known["residuals"])})

    @property
    def converged(self) -> bool:
        """Whether the tolerance that was asked for is certified, or the method is exact."""
        return REASONS[self.reason].converged

    @property
    def reason(self) -> str:
        """Why the run ended.

        ``"angle"`` or ``"residual"`` (converged), ``"exact"`` (a method that does not iterate to a
        tolerance), ``"max_rounds"``, ``"stalled"``, ``"unsure"`` (what was found may not be the
        largest), ``"rounding"`` (numbers have too few digits), ``"budget"``, ``"callback"``,
        ``"end"`` (of the schedule, or of a one-shot baseline) or ``"degraded"`` (without shards
        that were lost).
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
            *self._certificate(),
            *(f"{count} {TOLD[name]}" for name, count in run.get("missing", {}).items()),
        ]
        chosen = run.get("why", "asked for")
        return what if chosen == "asked for" else [*what, f"chosen: {chosen}"]

    def _certificate(self) -> list[str]:
        """Say how good the answer is known to be, and how sure that is, as the page of the run."""
        last = self.history[-1] if self.history else None
        if self.reason == "degraded":
            lost = self.run["degraded"]
            rows = sum(part["rows"] for part in lost)
            return [f"without {rows} rows: shards {[part['shard'] for part in lost]} were lost"]
        if self.reason == "exact" and last is not None and (last.angle or 1.0) >= 1:
            return ["exact, up to rounding", summary.NO_GAP]
        if last is None or last.angle is None or self.certificate is None:
            return [f"not certified: {REASONS[self.reason].meaning}", summary.verdict(self).advice]
        state = (
            f"not converged ({self.reason})" if self.run.get("tol") else "no tolerance asked for"
        )
        if self.converged:
            state = "exact, up to rounding" if self.reason == "exact" else "converged"
        if self.reason == "residual":
            known = f"no gap after the last component; residuals are at most {last.residual:.1e}"
        elif last.angle >= 1:
            return [f"{state}: no angle is certified; residuals are at most {last.residual:.1e}"]
        elif not summary.is_sure(last, self.run):
            known = f"if nothing was missed, the sine of the angle is at most {last.angle:.1e}"
        else:
            known = f"the sine of the angle to the answer is at most {last.angle:.1e}"
        return [f"{state}: {known}", summary.how_sure(last, self.run)]

    def transform(self, data: Any) -> Array:
        """Project rows on the components, (n, k); takes whatever `svd` takes as data.

        Columns are found by name, in whatever order they are, where the data and the rows that were
        fitted have names; other columns are left out, with a `DataHint`. Without names on either
        side, columns must be those of the fit in the same order.
        """
        d = self.components.shape[1]
        source = open_source(data, columns=d, like=self.run.get("names"))
        if source.columns != d:
            raise DataError(
                f"data has {source.columns} columns where the model has {d}; give those that it "
                "was fitted on, with columns= or drop="
            )
        matrix = LocalMatrix(contiguous(source, 1).shards[0])
        matrix.prepare(self.mean, *dividing(self.scale))
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
        rows: Array = scores @ self.components
        if self.scale is None and self.mean is None:
            return rows
        scale = np.ones(1) if self.scale is None else self.scale.astype(np.float64)
        mean = np.zeros(1) if self.mean is None else self.mean.astype(np.float64)
        half = np.where(scale > LARGE, 2.0, 1.0)  # out of range, maybe, until the mean is there
        whole: Array = rows * (scale / half) + mean / half
        with np.errstate(over="ignore"):
            return (half * whole).astype(rows.dtype, copy=False)

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
        return figures.plot(self, kind, data, grid)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the directory `path`: ``model.npz`` and ``run.json``.

        A model that is there is replaced at once: whenever this ends, the whole old one or the
        whole new one can be loaded.
        """
        folder = model_folder(path)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in ARRAY_FIELDS}
        readable = {
            "format": FORMAT,
            "run": dict(self.run),
            "history": [asdict(record) for record in self.history],
            "ledger": [asdict(record) for record in self.ledger.records],
        }
        with locked(folder):
            new = folder / NEW
            _finish(folder)
            try:
                with replacing(new) as stream:
                    np.savez(stream, **{n: a for n, a in arrays.items() if a is not None})
                readable["arrays"] = _digest(new)
                with replacing(folder / RUN) as stream:  # from here on, the new model counts
                    stream.write((json.dumps(readable, indent=1) + "\n").encode())
                os.replace(new, folder / ARRAYS)
            finally:
                _finish(folder)
            synchronise(folder)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a model that `save` wrote; nothing is unpickled."""
        folder = Path(path)
        try:
            with locked(folder):
                readable = json.loads((folder / RUN).read_bytes())
                if readable["format"] != FORMAT:
                    raise DataError(
                        f"{folder}: a model of format {readable['format']}, this version reads "
                        f"{FORMAT}; fit it again, or use the version that wrote it"
                    )
                with (
                    open(_arrays_of(folder, readable), "rb") as stream,
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


ARRAY_FIELDS = tuple(entry.name for entry in fields(Result))[:8]


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def _arrays_of(folder: Path, readable: Mapping[str, Any]) -> Path:
    """Find the arrays that ``run.json`` belongs to; models of old versions do not tell."""
    wanted, usual = readable.get("arrays"), folder / ARRAYS
    for path in (usual, folder / NEW):  # the latter if `save` was ended early
        if wanted is not None and path.exists() and _digest(path) == wanted:
            return path
    if wanted is not None and usual.exists():
        raise ValueError(f"{ARRAYS} is not the one that {RUN} was written with")
    return usual


def _finish(folder: Path) -> None:
    """Do what a `save` that was ended early did not: put new arrays in place, or remove them."""
    new, counts = folder / NEW, False
    if not new.exists():
        return
    with suppress(FileNotFoundError, ValueError, AttributeError):  # no model is there yet
        counts = _arrays_of(folder, json.loads((folder / RUN).read_bytes())) == new
    if counts:
        os.replace(new, folder / ARRAYS)
    else:
        new.unlink()


def _check_arrays(arrays: Mapping[str, Array]) -> None:
    """Refuse a model whose arrays are not those of one."""
    k, d = arrays["components"].shape
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("singular_values", *ARRAY_FIELDS[6:]), (k,))
    shapes |= {"components": (k, d), "basis": (d, arrays["basis"].shape[-1])}
    shapes |= {name: (d,) for name in ("mean", "scale") if name in arrays}
    for name, shape in shapes.items():
        if arrays[name].shape != shape or arrays[name].dtype.kind != "f":
            raise ValueError(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
