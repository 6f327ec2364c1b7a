"""When a run is done, why it ended, and what helps where that is not what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import log

from localpower.core.certificate import TINY, Certificate, Known
from localpower.core.errors import ConvergenceWarning, warn
from localpower.core.ledger import Record
from localpower.core.share import Reach, Share
from localpower.methods import CERTIFIED, EXACT, SUMMED, Method
from localpower.methods.state import MOST_DRAWS, State

ROUGH = 1e-2  # angle that will do where no tolerance was asked for and rounding allows no less
NEAR = 1e-2  # residual below which the certified basis is returned
STALL = 6  # rounds without progress that end a run with local steps


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run ended: what that means, and what to do about it.

    `final` says that more rounds would change nothing, `given_up` that another method may do
    better, and `converged` that the run did what was asked.
    """

    meaning: str
    remedy: str = ""
    converged: bool = False
    final: bool = False
    given_up: bool = False


_OTHER = f"take method='{CERTIFIED.name}'"
REASONS: dict[str, Reason] = {
    "angle": Reason("the angle is within the tolerance", converged=True, final=True),
    "residual": Reason(
        "residuals are within the tolerance, and there is no gap", converged=True, final=True
    ),
    "exact": Reason("the method computes the answer at once", converged=True),
    "max_rounds": Reason("max_rounds was reached", "raise max_rounds"),
    "budget": Reason("the budget was used up", "raise the bytes or seconds of the budget"),
    "stalled": Reason(
        "rounds no longer helped: with several local steps, shards that differ keep the error up",
        f"take schedule='halving', or {_OTHER}",
        final=True,
        given_up=True,
    ),
    "unsure": Reason(
        "the components are exact to the tolerance, but it is not certain that they are the "
        "largest",
        f"take method='{CERTIFIED.name}:start=random', or a larger start, as "
        f"method='{CERTIFIED.name}:start=merged:200'; a larger certainty; or method='{EXACT.name}'",
        final=True,
        given_up=True,
    ),
    "rounding": Reason(
        "rounding allows this method no smaller angle",
        "give a larger tol, or dtype='float64' if rows are float32; scale='std' if columns have "
        f"different units; or take method='{EXACT.name}'",
        final=True,
        given_up=True,
    ),
    "callback": Reason("the callback asked for it", "let it run on"),
    "end": Reason(
        "the method does no more rounds",
        f"take a method that iterates, as method='{CERTIFIED.name}'",
    ),
    "private": Reason("it tells what privacy= allows, with noise", "read the label of the result"),
    "degraded": Reason("some shards were lost", "run it again when they are back"),
    "stale": Reason(
        "earlier products of shards that were absent were reused, with which nothing is certified",
        f"{_OTHER}, which waits for all",
    ),
}

OF_SUMS = {  # remedies where sums over all shards are all that may be seen
    "unsure": f"take method='{CERTIFIED.name}:start=random' or method='{SUMMED.name}'; or a larger "
    "certainty",
    "rounding": "give a larger tol; or scale='std' if columns have different units",
}


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Decides when a run is done: what was asked for, and what may be spent.

    `certainty` is the largest p that will do. `ties` says that small residuals are enough where no
    gap is seen after the leading columns, and `learns` that further rounds may tell more of p.
    `noise` is what cancellation may have done to products, and `eps_of_sums` the rounding of
    ``AᵀA``, which is summed in float64, where rows enter it as they are. Where a `share` is asked
    for, the rank is that of a state, and must be certain as well. `latest` has the state that was
    judged last, and its certificate.
    """

    rank: int
    tol: float
    certainty: float
    trace: float
    eps: float
    max_rounds: int
    max_bytes: float
    max_seconds: float
    noise: float = 0.0
    eps_of_sums: float = float("inf")
    ties: bool = True
    learns: bool = False
    share: Share | None = None
    latest: list[tuple[State, Certificate | None]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def certificate(self, state: State) -> Certificate | None:
        """What the state tells of the basis whose residuals it knows."""
        if not self.latest or self.latest[0][0] is not state:
            known, rank = self._known(state), state.rank or self.rank
            found = state.certificate(rank, known, self.tol, self.certainty)
            self.latest[:] = [(state, found)]
        return self.latest[0][1]

    def reach(self, state: State) -> Reach | None:
        """What the state tells of the share that is asked for, if one is."""
        if self.share is None:
            return None
        known, rank = self._known(state), state.rank or self.rank
        return state.reach(self.share, rank, known, self.certainty)

    def _known(self, state: State) -> Known:
        """What is known of the matrix, whatever the state."""
        known = Known(len(state.basis), self.trace, self.eps, self.noise)
        return replace(known, eps_of_sums=self.eps_of_sums)

    def verdict(
        self,
        state: State,
        found: Certificate | None,
        history: Sequence[Record],
        spent: float,
        seconds: float,
    ) -> str | None:
        """Why to stop, if there is a reason; so many bytes and seconds were `spent` so far."""
        if found is not None and self.tol:
            near = found.angle <= self.tol
            tie = self.ties and found.gap <= self.tol and found.residual <= self.tol
            if near or tie:
                if found.sure(self.certainty):
                    reach = self.reach(state)
                    if reach is None or reach.settled:
                        return "angle" if near else "residual"
                elif not self.learns or state.draws > MOST_DRAWS:
                    return "unsure"
            elif found.rounded and found.gap > self.tol:
                return "rounding"
            elif stalled(history):
                return "stalled"
        return "budget" if spent > self.max_bytes or seconds > self.max_seconds else None


def stalled(history: Sequence[Record]) -> bool:
    """Whether residuals of rounds with local steps have not fallen for some time."""
    recent = [record.residual for record in history[-STALL:] if record.steps > 1]
    known = [residual for residual in recent if residual is not None]
    return len(known) == STALL and min(known[1:]) > 0.9 * known[0]


def on_course(history: Sequence[Record], found: Certificate | None, tol: float, worth: int) -> bool:
    """Whether a method that is slow gets there soon enough to be left at it, as far as one can see.

    That is within as many rounds as it has taken, or within those that are `worth` it: residuals go
    on to fall as in the latter half of its `history`. Where they are small enough for the gap that
    there seems to be, evidence is what is missing, and as many rounds are waited for that.
    """
    residuals = [record.residual for record in history if record.residual is not None]
    if found is None or not tol or len(residuals) < STALL:
        return False
    goal, last = max(tol * found.gap, TINY), residuals[-1]
    within = max(len(history), worth)
    if last <= goal:
        near = sum(1 for _ in takewhile(lambda residual: residual <= goal, reversed(residuals)))
        return 2 * near <= within
    recent = residuals[len(residuals) // 2 :]
    fall = log(recent[0] / last) / (len(recent) - 1)
    return log(last / goal) <= fall * within


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a method ended with, and why."""

    state: State
    history: tuple[Record, ...]
    reason: str
    certificate: Certificate | None


def returns_certified_basis(record: Record) -> bool:
    """Whether a certified run that ends here returns what the certificate is about.

    What came of it in the round may be worse: after local steps, or where values are nearly equal.
    Far from the answer it is better all the same.
    """
    after_local_steps = record.steps > 1 and (record.angle or 1.0) < 1.0
    return after_local_steps or (record.residual or 1.0) < NEAR


def conclude(
    method: Method, outcome: Outcome, tol: float, stale: bool = False, only_sums: bool = False
) -> str:
    """Say why the run ended, and warn if that is not what was asked for.

    With `stale` products there is no certificate, however many rounds there are.
    """
    reason, found = outcome.reason, outcome.certificate
    if tol and stale and found is None and reason != "callback":
        reason = "stale"
    if method.exact and not (method.squares and reason in ("angle", "residual", "rounding")):
        reason = "exact"
        if tol and found is not None:  # at a tie no angle is asked for, but small residuals are
            error = found.angle if found.gap > tol else found.residual
            reason = "rounding" if error > tol else "exact"
    if tol and reason == "end" and method.certifies and found is not None:  # nothing new was left
        reason = "rounding" if found.rounded else "unsure"
    if tol and not REASONS[reason].converged and reason != "callback":
        warn_not_converged(reason, outcome, tol, method, only_sums)
    return reason


def remedy_of(reason: str, method: str, only_sums: bool = False) -> str:
    """What to do about a reason; a method that ended for it, or shows more than sums, is none."""
    if only_sums and reason in OF_SUMS:
        return OF_SUMS[reason]
    return REASONS[reason].remedy.removesuffix(f"; or take method='{method}'")


def good_enough(outcome: Outcome, certainty: float) -> bool:
    """Whether nobody asked for more than rounding allows, and that is known to be good."""
    found = outcome.certificate
    if found is None or outcome.reason != "rounding":
        return False
    return found.angle <= ROUGH and found.sure(certainty)


def warn_not_converged(
    reason: str, outcome: Outcome, tol: float, method: Method, only_sums: bool = False
) -> None:
    """Warn of a tolerance that was not reached, with what was, and with the remedy."""
    found, reached = outcome.certificate, "no angle was certified"
    if found is not None:
        known = "proven" if found.proven else f"if nothing was missed (p = {found.p:.1g})"
        reached = f"the angle is at most {found.angle:.1e}, {known},"
    remedy = remedy_of(reason, method.name, only_sums)
    if reason == "max_rounds" and method.name != CERTIFIED.name:
        remedy += f", or {_OTHER}"
    rounds = len(outcome.history)
    warn(
        f"tol={tol:g} was not reached ({reason}), as {REASONS[reason].meaning}: {reached} after "
        f"{rounds} round{'s' * (rounds != 1)}; {remedy}",
        ConvergenceWarning,
    )
