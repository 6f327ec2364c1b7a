"""What a run returns, and its form on disk: arrays in ``.npz`` and a readable ``run.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from hashlib import file_digest
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from localpower import scores
from localpower.core.certificate import Certificate
from localpower.core.errors import DataError
from localpower.core.files import locked, replacing, synchronise
from localpower.core.ledger import Ledger, Record, Round
from localpower.core.linalg import Array
from localpower.core.share import Reach
from localpower.core.text import counted, html_table, size
from localpower.data.missing import told
from localpower.show import figures, report, shares, summary
from localpower.show.history import History
from localpower.stopping import REASONS
from localpower.worker import wire

FORMAT = 1
ARRAYS, RUN = "model.npz", "run.json"
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, BadZipFile,
              MemoryError, RecursionError)  # fmt: skip
NEW = "model.new.npz"  # the arrays of a model that is being saved, until they are ARRAYS
MOST_SHOWN = 20  # components in a table
AT_SITES = "sites"  # given as data for rows that stay at their sites
STAY = "scores stay at the sites; save the result, and run `localpower site project` at each"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """A truncated SVD of the data, ``(A - 1 meanᵀ) diag(1/scale) ≈ U diag(S) components``.

    Attributes
    ----------
    components : (k, d) ndarray
        Right singular vectors as rows; the entry of largest magnitude of each is positive.
    singular_values : (k,) ndarray
        In descending order.
    U : (n, k) ndarray, or of the kind of the data, or None
        Left singular vectors, if ``return_u=True``. With ``return_u="engine"`` they stay where the
        rows are, and a saved model contains them only if they are an array.
    basis : (d, r) ndarray
        The orthonormal basis that the method ended with.
    mean : (d,) ndarray or None
        What was subtracted from each row: column means if centred; column minima if scaled by
        min-max alone. It is in float64 where the type of the data would round it.
    scale : (d,) ndarray or None
        What columns were then divided by, also in float64 where needed. A range that overflows is
        replaced by the largest number.
    explained_variance, explained_variance_ratio : (k,) ndarray
        The variance along each component, and its share of the total variance. Divided by n - 1
        if centred (as in scikit-learn's PCA), else by n (as in its TruncatedSVD).
    history : tuple of Record
        One record per round of the method; prints as a table, and has `to_frame`.
    ledger : Ledger
        Everything that was sent, in all phases; prints as a table, and has `to_frame`.
    run : dict
        What you asked for and what it ran on: options, seed, shape, versions.
    """

    components: Array
    singular_values: Array
    U: Any
    basis: Array
    mean: Array | None
    scale: Array | None
    explained_variance: Array
    explained_variance_ratio: Array
    history: History
    ledger: Ledger
    run: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.history) is tuple:  # as it comes from another process
            object.__setattr__(self, "history", History(self.history))

    @property
    def residuals(self) -> Array | None:
        """Residual of each component, relative to its own eigenvalue; None if not known."""
        return None if self.certificate is None else self.certificate.residuals

    @property
    def certificate(self) -> Certificate | None:
        """What is known about the components, and how sure it is; None if nothing is known."""
        known = self.run.get("certificate")
        if known is None:
            return None
        return Certificate(**known | {"residuals": np.asarray(known["residuals"])})

    @property
    def reach(self) -> Reach | None:
        """What is known about the number of components, if you asked for a share; else None."""
        known = self.run.get("reach")
        return None if known is None else Reach(**known)

    @property
    def converged(self) -> bool:
        """Whether the tolerance that you asked for is certified, or the method is exact."""
        return REASONS[self.reason].converged

    @property
    def reason(self) -> str:
        """Why the run ended.

        ``"angle"`` or ``"residual"`` (converged), ``"exact"`` (a method that does not iterate to a
        tolerance), ``"max_rounds"``, ``"stalled"``, ``"unsure"`` (larger components may exist),
        ``"rounding"`` (numbers have too few digits), ``"budget"``, ``"callback"``,
        ``"end"`` (of the schedule, or of a one-shot baseline), ``"private"`` (with noise, as
        ``privacy=`` asks for), ``"degraded"`` (without shards that were lost) or ``"stale"`` (with
        earlier products of shards that were absent).
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
        rows = [
            (str(n), f"{value:.8g}", "?" if np.isnan(r) else f"{r:.2%}")
            for n, (value, r) in enumerate(pairs, start=1)
        ]
        return rows[:MOST_SHOWN]

    def _more(self) -> list[str]:
        more = len(self.singular_values) - MOST_SHOWN
        return [f"and {counted(more, 'more component')}"] if more > 0 else []

    def _about(self) -> list[str]:
        """What was run on what, what that moved, and what is known of the answer."""
        run, ledger, rounds = self.run, self.ledger, len(self.history)
        k, d = self.components.shape
        shards = counted(run.get("workers", "?"), "shard")
        what = [
            f"{run.get('method', 'svd')}: rank {k} of {run.get('rows', '?')} x {d} "
            f"{self.components.dtype} in "
            f"{shards}, seed {run.get('seed')}",
            f"{counted(rounds, 'round')} of the method, {ledger.rounds} with set-up and "
            f"factors: {size(ledger.bytes_up)} up and {size(ledger.bytes_down)} down in "
            f"{ledger.messages} messages",
            *filter(None, [summary.federation(run), shares.reach_text(self)]),
            *self._certificate(),
            *filter(None, [summary.participation(run)]),
            *(told(name, count) for name, count in run.get("missing", {}).items()),
        ]
        chosen = run.get("why", "asked for")
        return what if chosen == "asked for" else [*what, f"chosen: {chosen}"]

    def _certificate(self) -> list[str]:
        """Say how good the answer is known to be, and how sure that is, as the page of the run."""
        last = self.history[-1] if self.history else None
        if self.reason == "private":
            return summary.privacy_lines(self.run["privacy"])
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

    def transform(
        self,
        data: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        keep: Sequence[str] | None = None,
        memory: int | str | None = None,
    ) -> Any:
        """Project rows onto the components; takes the same data as `svd`.

        Scores stay where the rows are, and are of the same kind. Arrays, sparse matrices and files
        give an array, (n, k); data frames give data frames with columns ``pc1``, ``pc2``, …. A
        Dask array, Dask frame, list of Dask futures or delayed blocks, Spark frame (which gets a
        column ``scores`` of vectors), RDD, ``RowMatrix``, Ray dataset and list of Ray object
        references each give the same kind, lazily: nothing is computed before you ask for it.

        If both the data and the fitted rows have column names, columns are found by name, in any
        order; other columns are left out, with a `DataHint`. Otherwise the columns must be those of
        the fit, in the same order.

        Parameters
        ----------
        data
            The rows.
        out : path, optional
            Write the scores to this file instead, as ``.parquet``, ``.csv``, ``.npy``, ``.zarr`` or
            ``.h5``, and return the path. Each core holds one stretch of rows in memory.
        keep : sequence of str, optional
            Names of columns of a table to copy next to the scores, such as an id.
        memory : int or str, optional
            How much memory rows may use, such as ``"2GB"``; half of the free memory by default.

        Examples
        --------
        >>> import localpower as lp, numpy as np
        >>> X = np.random.default_rng(0).standard_normal((500, 4)) * [9, 3, 1, 1]
        >>> lp.pca(X, 2, rng=0).transform(X[:3]).shape
        (3, 2)
        """
        at_sites = isinstance(data, str) and data == AT_SITES and "federation" in self.run
        if at_sites and not os.path.exists(data):
            raise ValueError(f"data={data!r}: {STAY}")
        return scores.mapped(scores.ToScores.of(self), data, out, keep, memory)

    def inverse_transform(
        self,
        data: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        keep: Sequence[str] | None = None,
        memory: int | str | None = None,
    ) -> Any:
        """Turn (n, k) scores back into (n, d) rows in the units of the data.

        Takes and returns what `transform` does, with rows and scores exchanged.
        """
        return scores.mapped(scores.ToRows.of(self), data, out, keep, memory)

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        data: Any = None,
        *,
        grid: tuple[int, int] | None = None,
        color: Any = None,
        ids: Any = None,
    ) -> Any:
        """Write the page of the run to `path`: one HTML file that needs no network.

        The page says what you asked for and what came out, what the certificate means, how the run
        converged, variance, components, where the time went, faults, and how to repeat the run.
        Without a `path`, the method returns the page, and a notebook shows it.

        Parameters
        ----------
        path : path, optional
            An ``.html`` file.
        data : optional
            The rows that were fitted. They add scores, and how much shards differ.
        grid : (int, int), optional
            Rows and columns of images, if columns of the data are pixels. By default, a square
            number of columns without names is laid out as a square.
        color : str, int or array_like, optional
            What to colour scores by: the name of a column of the data, fitted or not, or one
            value for each row. By default the labels that `read` set aside.
        ids : str, int or array_like, optional
            What to show when you point at a row; given like `color`. By default the index of a
            pandas frame, or the number of the row.

        Examples
        --------
        >>> import localpower as lp, numpy as np, pathlib, tempfile
        >>> X = np.random.default_rng(0).standard_normal((500, 4)) * [9, 3, 1, 1]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lp.pca(X, 2, rng=0).report(pathlib.Path(folder, "run.html"), X).name
        'run.html'
        """
        return report.write(self, path, data, grid, color, ids)

    def plot(
        self,
        kind: str | None = None,
        data: Any = None,
        *,
        grid: tuple[int, int] | None = None,
        color: Any = None,
        ids: Any = None,
    ) -> Any:
        """Draw pictures of the page as a matplotlib ``Figure``, which has `savefig`.

        `kind` is ``"convergence"``, ``"variance"``, ``"components"``, ``"scores"``, ``"biplot"``,
        ``"shards"`` or ``"timeline"``; by default all that have data to draw. The other arguments
        are those of `report`. A notebook shows the figure by itself.
        """
        return figures.plot(self, kind, data, grid, color, ids)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the directory `path`: ``model.npz`` and ``run.json``.

        An existing model is replaced in one step: even if this is interrupted, either the whole
        old model or the whole new one can be loaded.
        """
        folder = model_folder(path)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in ARRAY_FIELDS}
        arrays["U"] = self.U if isinstance(self.U, np.ndarray) else None
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
                    if any(entry.compress_type for entry in content.zip.infolist()):
                        raise ValueError(f"{ARRAYS} is packed, as no model is")
                    arrays = {name: content[name] for name in content}
            _check_arrays(arrays)
            return cls(
                **{name: arrays.get(name) for name in ARRAY_FIELDS},  # type: ignore[arg-type]
                history=History(Record(**record) for record in readable["history"]),
                ledger=Ledger(tuple(Round(**record) for record in readable["ledger"])),
                run=dict(readable["run"]),
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{folder} is not a model: {error.filename} is missing; give the folder of a model"
            ) from error
        except DataError:
            raise
        except UNREADABLE as error:
            raise DataError(f"{folder} is not a readable model ({error}); fit it again") from error


for kind in (Record, Result):  # ranks of an MPI job send each other what came out
    wire.register(kind)


def model_folder(path: str | os.PathLike[str]) -> Path:
    """Check that a model can be written to `path`."""
    folder = Path(path)
    if not os.fspath(path) or (folder.exists() and not folder.is_dir()):
        raise ValueError(
            f"path={os.fspath(path)!r} is not a folder; a model is written into a folder"
        )
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
        if name in ("components", "basis", "mean", "scale") and not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} has numbers that are not finite")
