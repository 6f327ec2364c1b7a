"""A private run: sums with noise in them, and nothing else that was learned from rows.

It takes a short way of its own. Column statistics, row counts, traces and certificates of the usual
one are exact, and would tell of single rows. What is told here is either public, as shapes and
options, or was made from noised sums only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, sqrt
from typing import Any

import numpy as np

from localpower.core.gaussian import MOST_SIGMA, sigma_of, spread
from localpower.core.ledger import Ledger, Record
from localpower.core.linalg import Array, orth
from localpower.methods.factors import largest_positive
from localpower.options import Privacy
from localpower.result import Result
from localpower.run import Run, names_of
from localpower.show.history import History
from localpower.version import __version__
from localpower.worker.private_tasks import (
    CONSTANT,
    SENSITIVITY,
    Noised,
    NoisedGram,
    NoisedProduct,
    NoisedSteps,
    longest,
    matrix_of,
)

MOST_BYTES = 1e8  # of a noised matrix; above that, products with few columns are sent
FEW, MORE, WIDE = 3, 5, 2.0  # rounds of products up to this epsilon, and above it
LOCAL_STEPS = 2  # of a round of the baseline
METHODS = {"matrix": "matrix", "products": "power", "fedpower": "fedpower"}
BASELINE = (
    "a baseline for comparison, in the style of FedPower (Guo et al. 2021) with the noise of this "
    "library"
)
REFUSED = {
    "tol": "the error that noise makes cannot be certified: leave it out, and read the label",
    "return_u": "left vectors tell of single rows: leave it out",
    "checkpoint": "it would keep what was learned without noise: leave it out",
    "warm_start": "the earlier result is not known to be private: leave it out",
    "scale": "it is learned from the rows: divide columns by public numbers before the fit",
    "max_rounds": "how often noised sums are told follows from epsilon: leave it out",
    "budget": "how often noised sums are told follows from epsilon: leave it out",
    "callback": "there are no states to show: leave it out",
}


def check_private(given: Mapping[str, Any]) -> None:
    """Refuse arguments of `svd` that do not go together with ``privacy=``."""
    if not isinstance(given["privacy"], Privacy):
        raise TypeError(f"privacy={given['privacy']!r} must be localpower.Privacy(...), or None")
    for name, why in REFUSED.items():
        if given[name] is not None and given[name] is not False:
            raise ValueError(f"{name}={given[name]!r} with privacy=: {why}")
    if given["privacy"].release == "fedpower" and given["center"]:
        raise ValueError(
            "center=True with Privacy release='fedpower': the baseline learns no mean; subtract "
            "public means before and take center=False, or take release='matrix'"
        )
    rank = given["rank"]
    if callable(rank) or isinstance(rank, float | np.floating):
        raise ValueError(
            f"rank={rank!r} with privacy=: how many that are would be learned from the rows; give "
            "a whole number"
        )
    if given["method"] != "auto":
        raise ValueError(
            f"method={given['method']!r} with privacy=: leave it out; Privacy(release=...) says "
            "what is told"
        )
    if given["partition"] != "contiguous":
        raise ValueError(
            f"partition={given['partition']!r} with privacy=: it moves rows by what is in them, or "
            "at random; leave it out"
        )
    faults = given["faults"]
    if faults is not None and faults.on_loss != "stop":
        raise ValueError(
            f"Faults on_loss={faults.on_loss!r} with privacy=: the noise of a lost shard would be "
            "missing; take 'stop'"
        )
    if faults is not None and faults.participation < 1:
        raise ValueError(
            f"Faults participation={faults.participation:g} with privacy=: every sum needs the "
            "noise of every shard; leave it out"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What noised sums tell: eigenvalues in descending order, vectors, and what they are of.

    `noise` bounds the spectral norm of what is wrong about the matrix, in 99 of 100 runs; None if
    nothing is known. `total` is the sum of all eigenvalues, if known; `rows` and `mean` are
    estimates, if rows are centred.
    """

    values: Array
    V: Array
    noise: float | None
    total: float | None
    rows: float | None
    mean: Array | None


class PrivateRun(Run):
    """A run that tells only what ``privacy=`` allows; the steps are those of `Run`."""

    def choose(self) -> None:
        """Decide what is released, how often, and with how much noise."""
        privacy, source = self.privacy, self.source
        self.refuse_means()
        self.rank = int(self.asked.rank(0, source.columns))
        d = source.columns
        if self.rank > d:
            raise ValueError(f"rank={self.rank} is more than n_features={d}; take 1 to {d}")
        self.width = min(2 * self.rank, d)
        self.release = privacy.release
        if self.release == "auto":
            self.release = "matrix" if 4 * d * d <= MOST_BYTES else "products"
        self.steps = (privacy.steps or LOCAL_STEPS) if self.release == "fedpower" else 1
        few = FEW if privacy.epsilon <= WIDE else MORE
        self.rounds = 1 if self.release == "matrix" else few

    @property
    def privacy(self) -> Privacy:
        """What was asked for."""
        assert self.asked.privacy is not None
        return self.asked.privacy

    def refuse_means(self) -> None:
        """Refuse rows whose gaps were filled with what is in other rows."""
        if self.source.options.missing == "mean" or "values_filled" in self.source.missing:
            raise ValueError(
                "missing='mean' with privacy=: means of columns are learned from other rows; take "
                "missing='drop', or fill in public values before"
            )

    def place(self) -> None:
        """Bring shards to their workers; how many does not depend on how many rows there are."""
        own = len(self.source.tables) if self.source.separate else self.home.size
        self.asked = replace(self.asked, workers=self.asked.workers or own)
        super().place()

    def prepare(self) -> None:
        """Decide the noise of each shard."""
        privacy, shards = self.privacy, len(self.shards.shards)
        self.honest = 1 if self.release == "fedpower" else privacy.honest or shards
        if self.honest > shards:
            raise ValueError(
                f"Privacy honest={self.honest} is more than there are shards, {shards}; take at "
                "most that"
            )
        self.sigma_all = sigma_of(privacy.epsilon, privacy.delta, self.rounds * self.steps)
        self.sigma = ceil(self.sigma_all * SENSITIVITY / sqrt(self.honest))
        if self.sigma > MOST_SIGMA:
            raise ValueError(
                f"Privacy epsilon={privacy.epsilon}, delta={privacy.delta}: that is more noise "
                "than there are numbers for; take larger ones"
            )

    def iterate(self) -> None:
        """Ask for the noised sums."""
        self.engine.phase = "iterate"
        self.records: list[Record] = []
        self.display.stage("noised sums")
        self.found = self.from_matrix() if self.release == "matrix" else self.from_products()

    def released(self, task: Noised) -> Any:
        """Words of a noised sum over all shards; keeps the account, without times."""
        hops = self.engine.hops
        words = self.engine.sum(task).words
        moved = self.engine.since(hops)
        number = len(self.records) + 1
        self.records.append(Record(number, 1, moved.bytes_up, moved.bytes_down, seconds=0.0))
        return words

    @property
    def how(self) -> tuple[float, int, int, bool]:
        """Arguments of tasks."""
        return float(self.privacy.clip), self.sigma, self.honest, self.asked.center

    @property
    def unit(self) -> float:
        """What 1 is in the whole numbers that rows are made of."""
        return float(self.privacy.clip) / longest(self.asked.center)

    @property
    def deviation(self) -> float:
        """That of the noise that all shards add, in units of squares of the data."""
        return self.sigma * sqrt(len(self.shards.shards)) * self.unit**2

    def from_matrix(self) -> Found:
        """Eigenvectors of the noised matrix, less the mean if rows are centred."""
        d, center = self.source.columns, self.asked.center
        G = matrix_of(self.released(NoisedGram(*self.how)), d + center)
        S, rows, mean = np.square(self.unit) * G[:d, :d], None, None
        noise = self.deviation * spread(d + center)
        if center:
            rows, mean = self.center_of(G[:, d])
            S = S - rows * np.outer(mean, mean)
            noise = self.centred(noise, G[:, d], mean)
        values, V = np.linalg.eigh(S)
        return Found(values[::-1], V[:, ::-1], noise, float(np.trace(S)), rows, mean)

    def centred(self, noise: float, column: Array, mean: Array) -> float:
        """Bound what is wrong about a centred matrix, if noise in the whole one is bounded so.

        Of G = [B b; bᵀ c] it is X'ᵀG'X' with X' = [I; -w'ᵀ] and w' = b'/c'. Without noise in G it
        would be that of w = b/c, and more by c(w - w')(w - w')ᵀ, where ‖c(w - w')‖ ≤ noise·‖X'‖. Of
        a mean that was too long, and was shortened, nothing is known.
        """
        count, told = float(column[-1]) * self.unit**2, float(np.linalg.norm(mean))
        if count <= noise:
            return inf
        own = column[:-1] / column[-1]
        if float(np.linalg.norm(own)) * CONSTANT * self.unit > told * (1 + 1e-9):
            return inf
        return (1 + float(np.square(own).sum())) * noise * count / (count - noise)

    def from_products(self) -> Found:
        """Noisy power iterations; the last product has the answer."""
        d, center = self.source.columns, self.asked.center
        Z = orth(self.asked.rng.standard_normal((d, self.width)))
        last = np.zeros((d + center, 1))
        last[d:] = 1.0  # the product with it is the column that all rows share
        columns, rows, mean = [], None, None
        for _ in range(self.rounds):
            basis = np.hstack([last, np.pad(Z, ((0, 1), (0, 0)))]) if center else Z
            words = self.released(self.product_with(np.ascontiguousarray(basis)))
            Y = words.view(np.int64).astype(np.float64).reshape(basis.shape)
            if center:
                columns.append(Y[:, 0])
                rows, mean = self.center_of(np.mean(columns, axis=0))
                Y = Y[:d, 1:] - np.outer(rows * mean, mean @ Z) / np.square(self.unit)
            Z = orth(Y)
        V, values, _ = np.linalg.svd(Y, full_matrices=False)
        return Found(np.square(self.unit) * values, V, None, None, rows, mean)

    def product_with(self, basis: Array) -> Noised:
        """What is asked of a basis."""
        if self.release == "fedpower":
            return NoisedSteps(*self.how, basis, self.steps)
        return NoisedProduct(*self.how, basis)

    def center_of(self, column: Array) -> tuple[float, Array]:
        """The number of rows and their mean, from the column that all rows share."""
        rows = max(float(column[-1]) / CONSTANT**2, 1.0)
        mean = column[:-1] * (self.unit / CONSTANT / rows)
        return rows, mean * min(1.0, self.privacy.clip / max(float(np.linalg.norm(mean)), 1e-300))

    def bound(self) -> float | None:
        """The sine of the angle to the true components at most, in 99 of 100 runs; or None."""
        values, noise, k = self.found.values, self.found.noise, self.rank
        if noise is None:
            return None
        if k == len(values):
            return 0.0
        gap = float(values[k - 1] - values[k])
        return noise / (gap - noise) if gap > 2 * noise else None

    def finish(self) -> Result:
        """Make a result of what was found."""
        found, k, dtype = self.found, self.rank, self.source.dtype
        V = found.V[:, :k] * largest_positive(found.V[:, :k])
        squares = np.maximum(found.values[:k], 0.0)
        unknown = np.full(k, np.nan)
        variance, ratio = unknown, unknown
        if found.rows is not None:
            variance = squares / max(found.rows - 1, 1.0)
        if found.total is not None:
            ratio = squares / max(found.total, float(squares.sum()), 1e-300)
        return Result(
            components=V.T.astype(dtype),
            singular_values=np.sqrt(squares).astype(dtype),
            U=None,
            basis=np.ascontiguousarray(V),
            mean=found.mean,
            scale=None,
            explained_variance=variance.astype(dtype),
            explained_variance_ratio=ratio.astype(dtype),
            history=History(self.records),
            ledger=Ledger(tuple(replace(r, bytes_read=0) for r in self.engine.ledger.records)),
            run=self.account(),
        )

    def account(self) -> dict[str, Any]:
        """What was asked and on what, without anything that was learned from rows."""
        asked, source, workers = self.asked, self.source, len(self.shards.shards)
        told = {"rank": self.rank} | ({} if self.held else {"workers": workers})
        return {
            "version": __version__,
            "method": f"private_{METHODS[self.release]}",
            "why": "asked for",
            "rank": self.rank,
            "width": self.rank if self.release == "matrix" else self.width,
            "tol": 0.0,
            "workers": workers,
            "partition": asked.partition,
            "engine": type(self.home).__name__.lower(),
            "center": asked.center,
            "scale": None,
            "seed": asked.seed,
            "columns": source.columns,
            "dtype": source.dtype.name,
            "held": self.held,
            "names": names_of(source),
            "call": asked.call(told),
            "faults": [asdict(fault) for fault in self.retrying.faults],
            "reason": "private",
            "certificate": None,
            "privacy": self.label(),
        }

    def label(self) -> dict[str, Any]:
        """What is promised of rows, and what is known of the error."""
        privacy, found = self.privacy, self.found
        return {
            "epsilon": float(privacy.epsilon),
            "delta": float(privacy.delta),
            "unit": "row",
            "neighbours": "one row added or removed",
            "clip": float(privacy.clip),
            "sigma": self.sigma * sqrt(self.honest) * self.unit**2,
            "release": self.release,
            "releases": self.rounds * self.steps,
            "sites": len(self.shards.shards),
            "honest": self.honest,
            "only_sums": self.home.only_sums,
            "angle": self.bound(),
            "rows": None if found.rows is None else round(found.rows),
        } | ({"baseline": BASELINE} if self.release == "fedpower" else {})
