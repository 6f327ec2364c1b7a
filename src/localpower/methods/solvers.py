"""The method that does here what each solver of scikit-learn does there, by their names."""

from localpower.methods.base import Method
from localpower.methods.block_lanczos import BlockLanczos
from localpower.methods.exact import TSQR, Gram
from localpower.methods.local_ritz import BlockKrylov

SOLVERS: dict[str, Method] = {
    "full": TSQR(),
    "covariance_eigh": Gram(),
    "arpack": BlockLanczos(),
    "randomized": BlockKrylov(start="random"),
}
