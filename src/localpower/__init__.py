"""Truncated SVD and PCA of a matrix whose rows live on many workers, with little communication.

An implementation of LocalPower (Li, Wang, Chen and Zhang, ICML 2021), its baselines and measures.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from localpower import methods
from localpower.api import pca, svd
from localpower.comparison import Comparison, compare
from localpower.core.certificate import Certificate
from localpower.core.errors import (
    ConvergenceWarning,
    DataError,
    DataHint,
    DegradedWarning,
    EngineError,
    LocalPowerError,
    MissingExtra,
    SiteRefused,
    WorkerFailed,
    WorkerLate,
    WorkerLost,
)
from localpower.core.ledger import Ledger, Record
from localpower.core.share import Reach
from localpower.data.reading import read
from localpower.diagnostics.distance import principal_angles, subspace_distance
from localpower.diagnostics.heterogeneity import eta
from localpower.engines.registry import connect
from localpower.methods import LocalPower, LocalRitz
from localpower.options import Budget, Checkpoint, Faults, Privacy
from localpower.planning import Plan, plan
from localpower.result import Result
from localpower.version import __version__

if TYPE_CHECKING:
    from localpower.estimators import PCA, TruncatedSVD

__all__ = [
    "PCA",
    "Budget",
    "Certificate",
    "Checkpoint",
    "Comparison",
    "ConvergenceWarning",
    "DataError",
    "DataHint",
    "DegradedWarning",
    "EngineError",
    "Faults",
    "Ledger",
    "LocalPower",
    "LocalPowerError",
    "LocalRitz",
    "MissingExtra",
    "Plan",
    "Privacy",
    "Reach",
    "Record",
    "Result",
    "SiteRefused",
    "TruncatedSVD",
    "WorkerFailed",
    "WorkerLate",
    "WorkerLost",
    "__version__",
    "compare",
    "connect",
    "eta",
    "methods",
    "pca",
    "plan",
    "principal_angles",
    "read",
    "subspace_distance",
    "svd",
]


if find_spec("sklearn") is None:
    __all__ = [name for name in __all__ if name not in ("PCA", "TruncatedSVD")]


def __getattr__(name: str) -> Any:
    """Import the estimators, which need scikit-learn, when they are asked for."""
    if name in ("PCA", "TruncatedSVD"):
        try:
            import sklearn  # noqa: F401
        except ImportError as error:
            raise MissingExtra(f"localpower.{name}", "sklearn") from error
        from localpower import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'localpower' has no attribute {name!r}")
