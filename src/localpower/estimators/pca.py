"""PCA with the parameters, attributes and methods of scikit-learn's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from localpower.core.errors import DataError
from localpower.core.linalg import Array
from localpower.data.source import open_source
from localpower.estimators.decomposition import (
    OVERSAMPLES,
    Decomposition,
    Rank,
    keep_arguments,
)
from localpower.estimators.dimension import most_probable
from localpower.estimators.gaussian import Gaussian
from localpower.methods import Method
from localpower.options import CERTAINTY, Faults
from localpower.result import Result
from localpower.worker.shard import Shard, is_sparse

SKETCHES = ("arpack", "randomized")  # which take whole numbers of components alone
REST = 4  # units of rounding of the total variance: what is left below them is nothing


class PCA(Decomposition):
    """Principal component analysis of rows that live on many workers.

    It replaces ``sklearn.decomposition.PCA``: it has all of its parameters, attributes and
    methods, with the same meaning.

    Parameters
    ----------
    n_components : int, float, "mle" or None
        The number of components. A number between 0 and 1 asks for the fewest that explain more
        than that share of the variance, and ``"mle"`` for the most probable number by Minka's rule.
        By default ``min(n_samples, n_features)``. ``"mle"`` needs all eigenvalues, which
        ``svd_solver="full"`` finds; a share does not.
    whiten : bool
        Divide scores by their standard deviation. As in scikit-learn, `get_covariance` and
        `score` then multiply each component by its variance once more.
    svd_solver : {"auto", "full", "covariance_eigh", "arpack", "randomized"}
        Each solver of scikit-learn selects the method that does the same here: in this order
        `method`, ``"tsqr"``, ``"gram"``, ``"block_lanczos"`` until `tol` is certified, and
        ``"block_krylov"`` from a random start. ``result_.run["method"]`` has the name.
    iterated_power : int or "auto"
        Power iterations of ``svd_solver="randomized"``; 7 by default. Other solvers have none.
    n_oversamples : int
        Random vectors beyond `n_components` of ``svd_solver="randomized"``.
    power_iteration_normalizer : {"auto", "QR", "LU", "none"}
        Has no effect: bases are orthonormal after every round, as with ``"QR"``.
    copy : bool
        Has no effect: rows are never changed.
    method : str or Method
        ``"auto"`` chooses the cheapest for the engine; `localpower.svd` lists all names. Options of
        a method are parameters, too, such as ``method__steps``.
    tol, max_rounds, certainty
        When to stop, as in `localpower.svd`.
    scale : {None, "max", "minmax", "std"}
        What columns are divided by, as in `localpower.svd`.
    workers, partition, engine, memory, faults
        How rows are cut, and where and how they are worked on, as in `localpower.svd`.
    random_state : int, numpy.random.RandomState, numpy.random.Generator or None
        Seed of the random start and of the shuffle.
    verbose : bool
        Whether to show progress.

    Attributes
    ----------
    components_ : (n_components, n_features) ndarray
        Principal axes as rows; the entry of largest magnitude of each is positive.
    singular_values_, explained_variance_, explained_variance_ratio_ : (n_components,) ndarray
        As in scikit-learn's PCA.
    noise_variance_ : float
        Mean variance of all directions but the components, computed from the total variance.
    mean_ : (n_features,) ndarray
        What is subtracted from each row.
    scale_ : (n_features,) ndarray or None
        What columns are then divided by.
    n_components_, n_features_in_, n_samples_, n_rounds_ : int
        The number of components, columns, rows and rounds.
    feature_names_in_ : (n_features,) ndarray
        Names of the columns, if a frame was fitted.
    history_ : tuple of Record
        One record per round of the method.
    communication_ : Ledger
        Everything that was sent.
    converged_ : bool
        Whether the tolerance is certified, or the method is exact.
    residuals_ : (n_components,) ndarray or None
        Residual of each component, relative to its own eigenvalue, if it is known.
    solver_ : str
        The method that was used.
    result_ : Result
        The result of the run, with all of the above.

    Examples
    --------
    >>> import localpower as lp
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> model = lp.PCA(n_components=2, method="dpi", random_state=0).fit(X)
    >>> model.explained_variance_ratio_.round(3)
    array([0.925, 0.053])
    >>> model.transform(X).shape
    (150, 2)
    >>> lp.PCA(n_components=0.95, whiten=True).fit_transform(X).std(axis=0, ddof=1).round(6)
    array([1., 1.])
    """

    _center: ClassVar[bool] = True
    _solver: ClassVar[str] = "svd_solver"
    _powers: ClassVar[str] = "iterated_power"

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        copy: bool = True,
        whiten: bool = False,
        svd_solver: str = "auto",
        tol: float | None = None,
        iterated_power: int | str = "auto",
        n_oversamples: int = OVERSAMPLES,
        power_iteration_normalizer: str = "auto",
        random_state: Any = None,
        method: str | Method = "auto",
        max_rounds: int | None = None,
        scale: str | None = None,
        workers: int | None = None,
        partition: str = "contiguous",
        engine: Any = "threads",
        memory: int | str | None = None,
        faults: Faults | None = None,
        certainty: float | str = CERTAINTY,
        verbose: bool = False,
    ) -> None:
        keep_arguments(self, locals())

    @property
    def noise_variance_(self) -> Any:
        """Mean variance of the directions that are no components; 0 if there are none."""
        check_is_fitted(self)
        variances, run = self.explained_variance_, self.result_.run
        directions = min(self.n_samples_, self.n_features_in_) - self.n_components_
        rest = run["variance"] - float(variances.sum(dtype=np.float64))
        rounding = REST * float(np.finfo(variances.dtype).eps) * run["variance"]
        is_left = directions > 0 and rest > rounding
        return variances.dtype.type(rest / directions if is_left else 0.0)

    def get_covariance(self) -> Array:
        """Covariance of the data by the model, (n_features, n_features)."""
        return self._model().covariance().astype(self.components_.dtype, copy=False)

    def get_precision(self) -> Array:
        """Inverse of `get_covariance`; a generalised one where `noise_variance_` is 0."""
        return self._model().precision().astype(self.components_.dtype, copy=False)

    def score_samples(self, X: Any) -> Array:
        """Log-likelihood of each row under the model, (n_samples,), block by block.

        Where `noise_variance_` is 0 it is the density within the span of the components.
        """
        model = self._model()
        d = len(model.mean)
        source = open_source(self._to_project(X), columns=d, like=self.result_.run.get("names"))
        if source.columns != d:
            raise DataError(f"X has {source.columns} columns where the model has {d}; give those")
        blocks = Shard(source.pieces, d, source.dtype).blocks()
        dense = (block.toarray() if is_sparse(block) else block for block in blocks)
        found = np.concatenate([model.log_density(block) for block in dense])
        if source is not X:
            source.close()
        bad = np.flatnonzero(np.isnan(found))
        if bad.size:
            where = source.where(int(bad[0]))
            raise DataError(f"NaN or infinity in {where}; remove such rows or fill in values")
        return found.astype(source.dtype, copy=False)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows under the model."""
        return float(self.score_samples(X).mean())

    def _model(self) -> Gaussian:
        """The distribution of the rows by probabilistic PCA."""
        noise, d = float(self.noise_variance_), self.n_features_in_
        variances = np.maximum(self.explained_variance_.astype(np.float64), noise)
        if self.whiten:  # as in scikit-learn, whose axes are scaled here
            variances = noise + self.explained_variance_ * (variances - noise)
        scale = np.ones(d) if self.scale_ is None else self.scale_
        mean = np.zeros(d) if self.mean_ is None else self.mean_
        return Gaussian(self.components_, variances, noise, mean, scale)

    def _rank_for(self, wanted: Any) -> Rank:
        exact = self.svd_solver not in SKETCHES
        if isinstance(wanted, str) and (wanted != "mle" or not exact):
            raise ValueError(
                f"n_components={wanted!r} cannot be a string with svd_solver={self.svd_solver!r}: "
                "take a number; 'mle' goes with 'full', 'covariance_eigh' and 'auto'"
            )
        if isinstance(wanted, str):
            return Rank(
                _all_columns,
                lambda result: most_probable(result.explained_variance, result.run["rows"]),
                needs_all=True,
            )
        if exact and isinstance(wanted, float | np.floating) and 0 < wanted < 1:
            return Rank(lambda rows, columns: float(wanted))
        if exact and wanted == 0 and not isinstance(wanted, bool):
            return Rank(lambda rows, columns: 1, lambda result: 0)  # the mean alone
        return super()._rank_for(wanted)

    def _least(self) -> int:
        return 0 if self.svd_solver not in SKETCHES else 1

    def _projecting(self) -> Result:
        return self._scaled(-1.0) if self.whiten else self.result_

    def _restoring(self) -> Result:
        return self._scaled(1.0) if self.whiten else self.result_

    def _scaled(self, power: float) -> Result:
        """The result with components times a power of the standard deviation of their scores."""
        variances = self.explained_variance_
        least = np.finfo(variances.dtype).eps  # as in scikit-learn, where there is no variance
        deviations = np.maximum(np.sqrt(variances), least)[:, None]
        return replace(self.result_, components=self.components_ * deviations**power)


def _all_columns(rows: int, columns: int) -> int:
    if rows < columns:
        raise ValueError(
            "n_components='mle' is only supported if n_samples >= n_features, and the data have "
            f"n_samples={rows} and n_features={columns}: give a number or a share"
        )
    return columns
