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
from localpower.core.shard import Shard
from localpower.data.source import open_source

FORMAT = 1
ARRAYS, RUN = "model.npz", "run.json"


@dataclass(frozen=True, slots=True)
class Record:
    """One round of the method: its number, local steps, bytes over all shards, and seconds."""

    round: int
    steps: int
    bytes_up: int
    bytes_down: int
    seconds: float


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
        matrix = LocalMatrix(Shard(source.pieces, d, source.dtype))
        matrix.prepare(self.mean, 1.0 if self.scale is None else 1.0 / self.scale)
        return matrix.apply(self.components.T)

    def inverse_transform(self, scores: Array) -> Array:
        """Bring (n, k) scores back to (n, d) rows in the units of the data."""
        rows = np.asarray(scores) @ self.components
        if self.scale is not None:
            rows = rows * self.scale
        return rows if self.mean is None else rows + self.mean

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the directory `path`: ``model.npz`` and ``run.json``, each replaced at once."""
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"path={str(path)!r} is a file; a model is a directory")
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in ARRAY_FIELDS}
        readable = {
            "format": FORMAT,
            "run": dict(self.run),
            "history": [asdict(record) for record in self.history],
            "ledger": [asdict(record) for record in self.ledger.records],
        }
        with _replacing(folder / ARRAYS) as stream:
            np.savez(stream, **{n: a for n, a in arrays.items() if a is not None})
        with _replacing(folder / RUN) as stream:
            stream.write((json.dumps(readable, indent=1) + "\n").encode())

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
            return cls(
                **{name: arrays.get(name) for name in ARRAY_FIELDS},  # type: ignore[arg-type]
                history=tuple(Record(**record) for record in readable["history"]),
                ledger=Ledger(tuple(Round(**record) for record in readable["ledger"])),
                run=readable["run"],
            )
        except FileNotFoundError as error:
            raise DataError(f"{folder} is not a model: {error.filename} is missing") from error
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, EOFError, OSError, BadZipFile) as error:
            raise DataError(f"{folder} is not a readable model ({error}); fit it again") from error


ARRAY_FIELDS = tuple(entry.name for entry in fields(Result))[:8]


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside `path` and put it in place when it is complete."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
