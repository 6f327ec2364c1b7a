"""scikit-learn estimators: the same runs behind ``fit`` and ``transform``."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from localpower.api import svd
from localpower.data.source import is_ours
from localpower.engines.registry import is_shared, name_of
from localpower.methods import Method
from localpower.options import CERTAINTY, Faults
from localpower.run import MOST_NAMES
from localpower.scores.tables import is_table


class _Decomposition(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators do; they differ in centring alone."""

    _center: ClassVar[bool]

    def __init__(
        self,
        n_components: int | None = None,
        *,
        method: str | Method = "auto",
        tol: float | None = None,
        max_rounds: int | None = None,
        scale: str | None = None,
        workers: int | None = None,
        partition: str = "contiguous",
        engine: Any = "threads",
        memory: int | str | None = None,
        faults: Faults | None = None,
        certainty: float | str = CERTAINTY,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.tol = tol
        self.max_rounds = max_rounds
        self.scale = scale
        self.workers = workers
        self.partition = partition
        self.engine = engine
        self.memory = memory
        self.faults = faults
        self.certainty = certainty
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> _Decomposition:
        """Find the components of `X`: an array, sparse matrix, path, or list of shards."""
        X = self._validated(X, reset=True)
        options = self.get_params(deep=False)
        del options["n_components"], options["random_state"]
        how = {
            "center": self._center,
            "rng": self._seed(),
            "progress": bool(options.pop("verbose")),
        }
        result = svd(X, self._rank, **how, **options)
        names = getattr(self, "feature_names_in_", ())  # the array that was checked has none
        if 0 < len(names) <= MOST_NAMES:
            result = replace(result, run={**result.run, "names": [str(name) for name in names]})

        self.result_ = result
        self.components_ = result.components
        self.singular_values_ = result.singular_values
        self.explained_variance_ = result.explained_variance
        self.explained_variance_ratio_ = result.explained_variance_ratio
        self.mean_ = result.mean
        self.scale_ = result.scale
        self.n_components_ = result.run["rank"]
        self.n_samples_, self.n_features_in_ = result.run["rows"], result.run["columns"]
        self.n_rounds_ = len(result.history)
        self.history_ = result.history
        self.communication_ = result.ledger
        self.converged_ = result.converged
        self.residuals_ = result.residuals
        self.solver_ = result.run["method"]
        return self

    def transform(self, X: Any) -> Any:
        """Project rows on the components, (n_samples, n_components).

        Rows of a cluster stay there: scores are of the same kind, as of `Result.transform`.
        """
        check_is_fitted(self)
        named = self.result_.run.get("names") is not None and not hasattr(self, "feature_names_in_")
        if named and is_table(X):  # fitted on files: scikit-learn knows no names to compare
            return np.asarray(self.result_.transform(X))
        return self.result_.transform(self._validated(X, reset=False))

    def inverse_transform(self, X: Any) -> Any:
        """Bring scores back to rows in the units of the data."""
        check_is_fitted(self)
        rows = self.result_.inverse_transform(X)
        return np.asarray(rows) if is_table(X) else rows

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def _rank(self, rows: int, columns: int) -> int:
        most = min(rows, columns)
        rank = self._default_components(most) if self.n_components is None else self.n_components
        if not isinstance(rank, int | np.integer) or not 1 <= rank <= most:
            raise ValueError(
                f"n_components={rank!r} must be a whole number from 1 to {most}, as the data have "
                f"n_samples={rows} and n_features={columns}"
            )
        return int(rank)

    def _default_components(self, most: int) -> int:
        return most

    def _validated(self, X: Any, reset: bool) -> Any:
        """Let scikit-learn check arrays and frames; what else there is it does not know.

        Nor does it see all rows where other processes have the rest of them.
        """
        if is_ours(X) or (reset and is_shared(self.engine)):
            if reset and hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
            return X
        checked = validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32]
        )
        kept = isinstance(X, np.memmap) and checked.dtype == X.dtype
        return X if kept else checked  # a mapped file stays one: worker processes map it too

    def _seed(self) -> Any:
        if isinstance(self.random_state, np.random.RandomState):
            return self.random_state.randint(2**31)
        return self.random_state

    def __getstate__(self) -> dict[str, Any]:
        """What is saved: of a client or an engine that is open, only which kind it is."""
        return {**super().__getstate__(), "engine": name_of(self.engine)}

    def __sklearn_clone__(self) -> Any:
        """A copy that is not fitted; what is open, such as a client or an engine, is the same."""
        rest = copy(self)  # without it, as when it is saved
        again = super(_Decomposition, rest).__sklearn_clone__()
        again.engine = self.engine
        return again

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class PCA(_Decomposition):
    """Principal component analysis of rows that live on many workers.

    Parameters
    ----------
    n_components : int, optional
        By default ``min(n_samples, n_features)``.
    method : str or Method
        ``"auto"`` takes the cheapest for the engine; `localpower.svd` has all names.
    tol, max_rounds, certainty
        When to stop, as in `localpower.svd`.
    scale : {None, "max", "minmax", "std"}
        What columns are divided by, as in `localpower.svd`.
    workers, partition, engine, memory, faults
        How rows are cut, and where and how they are worked on, as in `localpower.svd`.
    random_state : int, numpy.random.RandomState, numpy.random.Generator or None
        Seed of the random start and of the shuffle.
    verbose : bool
        Whether to show where the fit stands.

    Attributes
    ----------
    components_ : (n_components, n_features) ndarray
        Principal axes as rows; the entry of largest magnitude of each is positive.
    singular_values_, explained_variance_, explained_variance_ratio_ : (n_components,) ndarray
        As of scikit-learn's PCA.
    mean_ : (n_features,) ndarray
        What is subtracted from each row.
    scale_ : (n_features,) ndarray or None
        What columns are divided by afterwards.
    n_components_, n_features_in_, n_samples_, n_rounds_ : int
        How many there were.
    history_ : tuple of Record
        One record per round of the method.
    communication_ : Ledger
        Everything that was communicated.
    converged_ : bool
        Whether the tolerance is certified, or the method is exact.
    residuals_ : (n_components,) ndarray or None
        Residual of each component, relative to the largest eigenvalue, where it is known.
    solver_ : str
        The method that was taken.
    result_ : Result
        All of the above, and how it came about.

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
    """

    _center = True


class TruncatedSVD(_Decomposition):
    """Truncated SVD of rows that live on many workers, not centred.

    Parameters
    ----------
    n_components : int, optional
        By default 2, or 1 where the data have no more.
    method : str or Method
        ``"auto"`` takes the cheapest for the engine; `localpower.svd` has all names.
    tol, max_rounds, certainty
        When to stop, as in `localpower.svd`.
    scale : {None, "max", "minmax", "std"}
        What columns are divided by, as in `localpower.svd`.
    workers, partition, engine, memory, faults
        How rows are cut, and where and how they are worked on, as in `localpower.svd`.
    random_state : int, numpy.random.RandomState, numpy.random.Generator or None
        Seed of the random start and of the shuffle.
    verbose : bool
        Whether to show where the fit stands.

    Attributes
    ----------
    components_ : (n_components, n_features) ndarray
        Right singular vectors as rows; the entry of largest magnitude of each is positive.
    singular_values_, explained_variance_, explained_variance_ratio_ : (n_components,) ndarray
        As of scikit-learn's TruncatedSVD.
    mean_, scale_ : (n_features,) ndarray or None
        What is subtracted from each row, if scaled by min-max, and what columns are divided by.
    n_components_, n_features_in_, n_samples_, n_rounds_ : int
        How many there were.
    history_ : tuple of Record
        One record per round of the method.
    communication_ : Ledger
        Everything that was communicated.
    converged_ : bool
        Whether the tolerance is certified, or the method is exact.
    residuals_ : (n_components,) ndarray or None
        Residual of each component, relative to the largest eigenvalue, where it is known.
    solver_ : str
        The method that was taken.
    result_ : Result
        All of the above, and how it came about.

    Examples
    --------
    >>> import localpower as lp
    >>> from sklearn.datasets import load_iris
    >>> lp.TruncatedSVD(2, random_state=0).fit(load_iris().data).singular_values_.round(2)
    array([95.96, 17.76])
    """

    _center = False

    def _default_components(self, most: int) -> int:
        return min(2, most)
