"""The methods: one file each, and a registry that everything else reads.

To add one, subclass `Method` as a frozen dataclass whose fields are options, and `register` it.
"""

from localpower.methods.auto import Auto, Choice
from localpower.methods.averaging import Averaging
from localpower.methods.base import (
    REGISTRY,
    Method,
    Start,
    choice,
    method_from,
    methods_from,
    option,
    register,
)
from localpower.methods.block_lanczos import BlockLanczos
from localpower.methods.costs import Decay, Estimate, Problem
from localpower.methods.exact import TSQR, Gram
from localpower.methods.local_power import LocalPower, OneShot, PowerIteration
from localpower.methods.local_ritz import BlockKrylov, LocalRitz, leading_values
from localpower.methods.randomized import RandomizedSVD
from localpower.methods.state import State
from localpower.worker.tasks import PowerSteps

__all__ = [
    "REGISTRY",
    "TSQR",
    "Auto",
    "Averaging",
    "BlockKrylov",
    "BlockLanczos",
    "Choice",
    "Decay",
    "Estimate",
    "Gram",
    "LocalPower",
    "LocalRitz",
    "Method",
    "OneShot",
    "PowerIteration",
    "PowerSteps",
    "Problem",
    "RandomizedSVD",
    "Start",
    "State",
    "choice",
    "leading_values",
    "method_from",
    "methods_from",
    "option",
    "register",
]

EXAMPLE = LocalPower(steps=8, schedule="halving")  # how options are written, for help
EXACT, CERTIFIED = TSQR(), LocalRitz()  # what is recommended where another method failed
SUMMED = Gram()  # what is exact where sums over all shards are all that may be seen

# One row for each short name; the order is that of help and tables.
register("auto", Auto)
register("local_power", LocalPower)
register("dpi", PowerIteration)
register("one_shot", OneShot)
register("local_ritz", LocalRitz)
register("block_krylov", BlockKrylov)
register("block_lanczos", BlockLanczos)
register("gram", Gram)
register("tsqr", TSQR)
register("uda", Averaging, kind="uda")
register("wda", Averaging, kind="wda")
register("aligned_average", Averaging, kind="aligned")
register("dr_svd", RandomizedSVD)
