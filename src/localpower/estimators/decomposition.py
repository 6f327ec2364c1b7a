"""What both estimators do: check arguments and rows as scikit-learn does, run, keep the result."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from localpower.api import svd
from localpower.core.certificate import Certificate, Known
from localpower.core.checks import one_of, whole
from localpower.data.readers.foreign import is_remote
from localpower.data.reading import LazySource
from localpower.data.source import is_ours
from localpower.engines.registry import holds_rows, is_shared, name_of
from localpower.iteration import plain
from localpower.methods import Auto, Method, method_from
from localpower.methods.exact import FactoredState
from localpower.methods.solvers import SOLVERS
from localpower.planning import tolerance
from localpower.result import STAY, Result
from localpower.run import MOST_NAMES, OWN_ROUNDS
from localpower.scores.tables import is_table
from localpower.show.history import History
from localpower.worker.shard import work_type

PASSED_ON = ("scale", "workers", "partition", "engine", "memory", "faults", "certainty")
NORMALIZERS = ("auto", "QR", "LU", "none")
OVERSAMPLES, POWERS = 10, 7  # of a randomized solver, where nothing is said
NESTED = "method__"


def keep_arguments(estimator: Any, arguments: dict[str, Any]) -> None:
    """Keep the arguments of ``__init__`` under their own names, as scikit-learn wants it."""
    for name in estimator._get_param_names():
        setattr(estimator, name, arguments[name])


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank of a run, and how many of its components are kept, if not all.

    `needs_all` says that this is told by all eigenvalues.
    """

    of: Callable[[int, int], int | float]
    kept: Callable[[Result], int] | None = None
    needs_all: bool = False


class AsAsked(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scores as `set_output` asks for them, which scikit-learn makes of what a method returns."""

    def transform(self, X: Any) -> Any:
        """Project rows on the components."""
        return self._scores(X)


class Decomposition(AsAsked, auto_wrap_output_keys=None):  # type: ignore[call-arg]
    """What both estimators do; they differ in centring, and in the names of scikit-learn's options.

    `_solver` and `_powers` are those of the solver and of the number of its power iterations.
    """

    _center: ClassVar[bool]
    _solver: ClassVar[str]
    _powers: ClassVar[str]

    n_components: Any
    method: str | Method
    tol: float | None
    max_rounds: int | None
    engine: Any
    n_oversamples: int
    power_iteration_normalizer: str
    random_state: Any
    verbose: bool

    def fit(self, X: Any, y: Any = None) -> Any:
        """Find the components of `X`: an array, sparse matrix, path, or list of shards."""
        self._check_arguments()
        rank = self._rank_for(self.n_components)
        X = self._validated(X, reset=True)
        solver = getattr(self, self._solver)
        result = svd(
            X,
            rank.of,
            center=self._center,
            rng=self._seed(),
            progress=bool(self.verbose),
            **self._solved_by(solver, X, all_values=rank.needs_all),
            **{name: getattr(self, name) for name in PASSED_ON},
        )
        if rank.kept is not None and (count := rank.kept(result)) < result.run["rank"]:
            result = leading(result, count)
        run = dict(result.run)
        if rank.needs_all:
            run["why"] = f"n_components={self.n_components!r} needs all eigenvalues"
        elif solver != "auto":
            run["why"] = f"{self._solver}={solver!r}"
        names = getattr(self, "feature_names_in_", ())  # the array that was checked has none
        if 0 < len(names) <= MOST_NAMES:
            run["names"] = [str(name) for name in names]
        self._keep(replace(result, run=run))
        return self

    def _keep(self, result: Result) -> None:
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

    def transform(self, X: Any) -> Any:
        """Project rows on the components, (n_samples, n_components).

        Rows of a cluster stay there: scores are of the same kind, as of `Result.transform`,
        whatever `set_output` asks for.
        """
        in_place = is_remote(X) or isinstance(X, LazySource)
        return self._scores(X) if in_place else super().transform(X)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Find the components of rows, and project these rows on them."""
        if holds_rows(self.engine):  # before anything is asked: sites count what they answer
            raise ValueError(f"fit_transform with engine={self.engine!r}: take fit; {STAY}")
        return self.fit(X, y, **fit_params).transform(X)

    def _scores(self, X: Any) -> Any:
        check_is_fitted(self)
        scores = self._projecting().transform(self._to_project(X))
        return np.asarray(scores) if is_table(X) else scores

    def inverse_transform(self, X: Any) -> Any:
        """Bring scores back to rows in the units of the data; frames may have any names."""
        check_is_fitted(self)
        return self._restoring().inverse_transform(np.asarray(X) if is_table(X) else X)

    def _projecting(self) -> Result:
        """The result whose components rows are projected on."""
        return self.result_

    def _restoring(self) -> Result:
        """The result whose components make rows of scores."""
        return self.result_

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; `deep` adds the options of a method object, as ``method__steps``."""
        found: dict[str, Any] = super().get_params(deep)
        if deep and isinstance(self.method, Method):
            found |= {NESTED + name: value for name, value in self.method.options().items()}
        return found

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name; ``method__steps=4`` sets an option of the method."""
        given = {name: params.pop(name) for name in [*params] if name.startswith(NESTED)}
        super().set_params(**params)
        if given:
            method = method_from(self.method)
            options = {name.removeprefix(NESTED): value for name, value in given.items()}
            for name in options:
                if name not in method.options():
                    known = ", ".join(method.options()) or "none"
                    raise ValueError(
                        f"{name!r} is not an option of method={method}: it has {known}"
                    )
            self.method = replace(method, **options)  # type: ignore[type-var]
        return self

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def _check_arguments(self) -> None:
        """Refuse what scikit-learn refuses, and its options beside a method that has its own."""
        solver, powers = getattr(self, self._solver), getattr(self, self._powers)
        one_of(self._solver, solver, ("auto", *SOLVERS))
        one_of("power_iteration_normalizer", self.power_iteration_normalizer, NORMALIZERS)
        whole("n_oversamples", self.n_oversamples)
        if powers != "auto":
            whole(self._powers, powers, least=0)
        method = method_from(self.method)
        if isinstance(method, Auto):
            return
        arguments = signature(type(self)).parameters
        remedies = {
            self._solver: "leave one of the two out",
            self._powers: "give max_rounds= instead",
            "n_oversamples": "give the method its width instead, as in 'name:width=20'",
        }
        for name, remedy in remedies.items():
            if getattr(self, name) != arguments[name].default:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} means nothing beside method={method}: {remedy}"
                )

    def _solved_by(self, solver: str, X: Any, all_values: bool) -> dict[str, Any]:
        """The method, tolerance and rounds that stand for a solver of scikit-learn."""
        plain = {"method": self.method, "tol": self.tol, "max_rounds": self.max_rounds}
        if all_values:
            if not isinstance(method_from(self.method), Auto):
                raise ValueError(
                    f"n_components={self.n_components!r} needs all eigenvalues, for which a method "
                    f"is chosen: leave out method={self.method}, or give a number of components"
                )
            solver = "full"
        if solver == "auto":
            return plain
        method = SOLVERS[solver]
        if method.exact:
            return plain | {"method": method}
        if solver == "arpack":  # runs until it is there
            tol = self.tol or tolerance(work_type([getattr(X, "dtype", np.float64)]))
            return {"method": method, "tol": tol, "max_rounds": self.max_rounds or OWN_ROUNDS}
        return plain | {
            "method": replace(method, width=self._width(X)),  # type: ignore[type-var]
            "max_rounds": self.max_rounds or self._rounds(),
        }

    def _rounds(self) -> int:
        """Products with the data, of which the first is none of the power iterations."""
        powers = getattr(self, self._powers)
        return 1 + (POWERS if powers == "auto" else int(powers))

    def _width(self, X: Any) -> int | None:
        """Columns of the random start, where they can be told before the data are opened."""
        if not isinstance(self.n_components, int | np.integer):
            return None
        shape = getattr(X, "shape", None)
        if shape is None and self.n_oversamples == OVERSAMPLES:
            return None
        width = int(self.n_components) + self.n_oversamples
        return width if shape is None else min(width, int(shape[1]))

    def _rank_for(self, wanted: Any) -> Rank:
        """How many components are asked for, as a rank and what is kept of it."""
        if wanted is None:
            return Rank(self._default_rank)
        return Rank(lambda rows, columns: self._checked_rank(wanted, rows, columns))

    def _default_rank(self, rows: int, columns: int) -> int:
        return self._most(rows, columns)

    def _most(self, rows: int, columns: int) -> int:
        """The most components that a solver finds: all, or all but one."""
        but_one = getattr(self, self._solver) == "arpack"
        return max(1, min(rows, columns) - int(but_one))

    def _least(self) -> int:
        """The fewest components that may be asked for."""
        return 1

    def _checked_rank(self, wanted: Any, rows: int, columns: int) -> int:
        solver, least, most = getattr(self, self._solver), self._least(), min(rows, columns)
        limit = f"min(n_samples, n_features)={most} with {self._solver}={solver!r}"
        shape = f"the data have n_samples={rows} and n_features={columns}"
        is_whole = isinstance(wanted, int | np.integer) and not isinstance(wanted, bool | np.bool_)
        if not is_whole or not least <= wanted <= most:
            raise ValueError(
                f"n_components={wanted!r} must be between {least} and {limit}: {shape}"
                + ("" if is_whole else f", and {wanted!r} is not a whole number")
            )
        if wanted > self._most(rows, columns):
            raise ValueError(
                f"n_components={wanted!r} must be strictly less than {limit}: {shape}; another "
                "solver finds all"
            )
        return int(wanted)

    def _to_project(self, X: Any) -> Any:
        """Rows to use the model on, checked by scikit-learn where it knows the names."""
        named = self.result_.run.get("names") is not None and not hasattr(self, "feature_names_in_")
        if named and is_table(X):  # fitted on files: scikit-learn knows no names to compare
            return X
        return self._validated(X, reset=False)

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
        again = super(Decomposition, rest).__sklearn_clone__()
        again.engine = self.engine
        return again

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def leading(result: Result, count: int) -> Result:
    """The first components of a result that has all of them, and what is certified of these."""
    run = {**result.run, "rank": count}
    if count:
        found = _certificate(result, count)
        run["certificate"] = plain(found)
        before, comma, after = run["call"].rpartition(f", {result.run['rank']},")
        run["call"] = f"{before}, {count},{after}" if comma else run["call"]
        known = {name: getattr(found, name) for name in ("angle", "residual", "proven", "p")}
    else:
        known = {}
    return replace(
        result,
        components=result.components[:count],
        singular_values=result.singular_values[:count],
        explained_variance=result.explained_variance[:count],
        explained_variance_ratio=result.explained_variance_ratio[:count],
        history=History(replace(record, **known) for record in result.history),
        run=run,
    )


def _certificate(result: Result, count: int) -> Certificate:
    """What all singular values, and the noise that the residuals of all tell of, say of some."""
    sizes = result.singular_values.astype(np.float64)
    eps = float(np.finfo(result.singular_values.dtype).eps)
    state = FactoredState(result.basis, sizes=sizes)
    exact = state.certificate(len(sizes), Known(len(sizes), 0.0, eps), 0.0, 0.0)
    assert exact is not None
    assert result.residuals is not None
    noise = float(result.residuals[0] - exact.residuals[0]) * float(sizes[0]) ** 2
    found = state.certificate(count, Known(len(sizes), 0.0, eps, max(noise, 0.0)), 0.0, 0.0)
    assert found is not None
    return found
