"""What a run returns, and its form on disk: arrays in ``.npz`` and a readable ``run.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np

from localpower.core.errors import DataError
from localpower.core.ledger import Ledger, Round
from localpower.core.linalg import Array
from localpower.core.local_matrix import LocalMatrix
from localpower.data.partition import contiguous
from localpower.data.source import open_source

FORMAT = 1
ARRAYS, RUN = "model.npz", "run.json"


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

    def transform(self, data: Any) -> Array:
        """Project rows on the components, (n, k); takes whatever `svd` takes as data."""
        d = self.components.shape[1]
        source = open_source(data, columns=d)
        if source.columns != d:
            raise DataError(f"data has {source.columns} columns where the model has {d}")
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
                    f"{folder}: a model of format {readable['format']}, this version reads {FORMAT}"
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
            raise DataError(f"{folder} is not a model: {error.filename} is missing") from error
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, EOFError, OSError, BadZipFile) as error:
            raise DataError(f"{folder} is not a readable model ({error}); fit it again") from error


def model_folder(path: str | os.PathLike[str]) -> Path:
    """Check that a model can be written to `path`."""
    folder = Path(path)
    if not os.fspath(path) or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"path={os.fspath(path)!r} is no directory; a model is written into one")
    return folder


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
