"""What can go wrong, besides a plain ``ValueError`` or ``TypeError`` for a bad argument.

::

    LocalPowerError
    ├── DataError (ValueError)        rows that cannot be used: not finite, torn file, bad line
    ├── EngineError (RuntimeError)
    │   ├── WorkerLost                a worker is gone: killed, crashed, out of memory
    │   ├── WorkerLate                a worker did not reply within the deadline
    │   └── WorkerFailed              a worker is there, but its task raised
    ├── WireError                     a message that does not follow the format
    ├── SiteRefused                   a site's policy does not allow what was asked of it
    └── MissingExtra (ImportError)    an optional library is not installed

    DataHint (UserWarning)            rows that may not be what was meant: a label as a feature
    ConvergenceWarning (UserWarning)  the tolerance was not reached
    DegradedWarning (UserWarning)     shards were lost, and the result is without them
"""

import sys
import warnings


class LocalPowerError(Exception):
    """Base of all exceptions of this package."""


class DataError(LocalPowerError, ValueError):
    """The rows given cannot be used; the message says where and what to do."""


class DataHint(UserWarning):
    """The rows can be used, but may not be what was meant."""


class ConvergenceWarning(UserWarning):
    """The tolerance was not reached; the message says what to change."""


class DegradedWarning(UserWarning):
    """Shards were lost, and the result is without them, as ``on_loss="degrade"`` asked for."""


class EngineError(LocalPowerError, RuntimeError):
    """An engine could not finish a round."""


class WorkerLost(EngineError):
    """A worker ended before it replied."""


class WorkerLate(EngineError):
    """A worker did not reply within the deadline."""


class WorkerFailed(EngineError):
    """A task raised on a worker; the message carries the worker's traceback."""


class WireError(LocalPowerError):
    """A message does not follow the wire format."""


class SiteRefused(LocalPowerError):
    """A site does not answer a question; the message names the site, its reason and the remedy."""


class MissingExtra(LocalPowerError, ImportError):
    """An optional library is missing; the message names the extra to install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'localpower[{extra}]'")


def warn(message: str, category: type[Warning]) -> None:
    """Warn, and name the line of the user's that called this package."""
    frame, level = sys._getframe(), 1
    ours = __name__.partition(".")[0], "contextlib"
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(ours):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
