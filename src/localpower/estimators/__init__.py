"""scikit-learn estimators: the same runs behind ``fit`` and ``transform``."""

from localpower.estimators.pca import PCA
from localpower.estimators.truncated_svd import TruncatedSVD

__all__ = ["PCA", "TruncatedSVD"]
