"""TruncatedSVD with the parameters, attributes and methods of scikit-learn's."""

from __future__ import annotations

from typing import Any, ClassVar

from localpower.estimators.decomposition import OVERSAMPLES, Decomposition, keep_arguments
from localpower.methods import Method
from localpower.options import CERTAINTY, Faults


class TruncatedSVD(Decomposition):
    """Truncated SVD of rows that live on many workers, not centred.

    It replaces ``sklearn.decomposition.TruncatedSVD``: it has all of its parameters, attributes
    and methods, with the same meaning.

    Parameters
    ----------
    n_components : int, optional
        The number of components; by default 2, or 1 if the data have no more.
    algorithm : {"auto", "arpack", "randomized", "full", "covariance_eigh"}
        A solver of scikit-learn, as `svd_solver` of `PCA`; ``"auto"``, the default, is `method`.
    n_iter : int
        Power iterations of ``algorithm="randomized"``. Other solvers have none.
    n_oversamples : int
        Random vectors beyond `n_components` of ``algorithm="randomized"``.
    power_iteration_normalizer : {"auto", "QR", "LU", "none"}
        Has no effect: bases are orthonormal after every round, as with ``"QR"``.
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
        Right singular vectors as rows; the entry of largest magnitude of each is positive.
    singular_values_, explained_variance_, explained_variance_ratio_ : (n_components,) ndarray
        As in scikit-learn's TruncatedSVD.
    mean_, scale_ : (n_features,) ndarray or None
        What is subtracted from each row, if scaled by min-max, and what columns are divided by.
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
    >>> lp.TruncatedSVD(2, random_state=0).fit(load_iris().data).singular_values_.round(2)
    array([95.96, 17.76])
    """

    _center: ClassVar[bool] = False
    _solver: ClassVar[str] = "algorithm"
    _powers: ClassVar[str] = "n_iter"

    def __init__(
        self,
        n_components: int | None = None,
        *,
        algorithm: str = "auto",
        n_iter: int = 5,
        n_oversamples: int = OVERSAMPLES,
        power_iteration_normalizer: str = "auto",
        random_state: Any = None,
        tol: float | None = None,
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

    def _default_rank(self, rows: int, columns: int) -> int:
        return min(2, self._most(rows, columns))
