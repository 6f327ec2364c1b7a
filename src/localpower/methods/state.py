"""Where a method stands after a round, what that proves, and when it is put to the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import ClassVar, Self

import numpy as np

from localpower.core.certificate import (
    Certificate,
    Known,
    Ritz,
    certify,
    ritz_turn,
)
from localpower.core.evidence import Probes, draw
from localpower.core.linalg import Array, orth
from localpower.core.share import Reach, Share

RIPE = 0.1  # residual of the last vector, of its value, from which on probes are drawn
BETTER, LONG = 3, 1  # how much larger a base is better, where probes of this degree told nothing
MOST_DRAWS = 8  # probes that follow others which told nothing, as their base was poor
RESTING = 0.5  # of the chance that is allowed: with so little, probes need not be sent
SPARE = 2  # times the columns that a rank needs: more are dropped where it turns out to be smaller
LARGER = 1e-3  # how much larger than what is known a direction is that was missed


@dataclass(frozen=True, slots=True)
class Doubt:
    """When probes are drawn, and from which seed: where a state does not prove what it claims.

    They rest as long as a state's certificate is more certain than `certainty`. Draws have numbers,
    `first` and from there on `every` so many; no other method of the run has one of these.
    """

    seed: int
    certainty: float
    certificate: Callable[[State], Certificate | None]
    first: int = 1
    every: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a method stands: its basis after so many rounds and power steps.

    `exact` is a basis X, this one or the one before, and its exact image ``AᵀA X``, where the
    method has both: what a certificate is made from. `pace` is how many steps the next round takes,
    where that is adapted to what the rounds before achieved. `noises` bounds the norms of what
    rounding for the wire did to the columns of the image; without any, it did nothing. `reference`
    is a basis with an image that was not rounded.

    `hidden` bounds the eigenvalues outside of the search space. `probes` tell the chance of there
    being a large one outside of their `base`, a basis and its image. `joined` is `exact` with that,
    and with its own noises: it has all of the base but for a little, in which as much as `lacking`
    may hide. `draws` counts probes; while they are `resting` they are not sent. `rank` is how many
    vectors are asked for now, where a share is what the run wants; else it may be 0. `summed` tells
    that the image is of ``AᵀA`` itself, which is summed in float64.
    """

    basis: Array
    round: int = 0
    steps: int = 0
    exact: tuple[Array, Array] | None = None
    pace: int = 0
    noises: Array = field(default_factory=lambda: np.zeros(0))
    reference: tuple[Array, Array] | None = None
    hidden: float = float("inf")
    probes: Probes | None = None
    base: tuple[Array, Array] | None = None
    joined: tuple[Array, Array, Array] | None = None
    lacking: float = 0.0
    draws: int = 0
    resting: bool = False
    rank: int = 0
    summed: bool = False
    PROBES: ClassVar[int] = 2  # columns: few, where there are many rounds
    ordered: ClassVar[bool] = False  # whether `basis` has Ritz vectors, the leading ones first

    def ritz(self) -> Ritz | None:
        """Ritz pairs, where they are known."""
        return None if self.told is None else Ritz.of(*self.told)

    def seen(self) -> Ritz | None:
        """The same where they are too few for a certificate, to count how many are needed."""
        return self.ritz()

    @property
    def told(self) -> tuple[Array, Array] | None:
        """What a certificate is about: an orthonormal basis and its exact image."""
        return self.exact if self.joined is None else self.joined[:2]

    def certificate(
        self, rank: int, known: Known, tol: float, certainty: float
    ) -> Certificate | None:
        """What is known of the leading vectors, for one who wants `tol` with that `certainty`."""
        found = self.ritz()
        if found is None or found.residuals.shape[1] < rank:
            return None
        more = self._more(found, known, rank)
        coarse = certify(found, rank, more, tol, certainty)
        if not self.summed or known.eps_of_sums >= known.eps:
            return coarse
        fine = certify(found, rank, replace(more, eps=known.eps_of_sums), tol, certainty)
        cast = known.eps * sqrt(rank)  # vectors are rounded to the type of the rows
        return replace(fine, angle=min(1.0, fine.angle + cast), residuals=coarse.residuals)

    def reach(self, share: Share, rank: int, known: Known, certainty: float) -> Reach | None:
        """What is known of the share that `rank` vectors reach, and of one vector fewer."""
        found = self.ritz()
        if found is None or len(found.values) < rank:
            return None
        return share.judge(found, rank, self._more(found, known, rank), certainty)

    def _more(self, found: Ritz, known: Known, rank: int) -> Known:
        """What the state knows of the matrix besides."""
        passing, blur = self.rounding_errors(rank)
        chance = None if self.probes is None else self.chance
        return replace(
            known,
            passing=float(passing),
            blur=blur,
            hidden=self.hidden,
            chance=chance,
            covered=() if chance is None else tuple(self.covered(found)),
        )

    def grown(self, rank: int, width: int, rng: np.random.Generator) -> Self:
        """Go on with another `rank`, and with random columns besides if a basis needs them."""
        more = width - self.basis.shape[1]
        if more <= 0 and self.basis.shape[1] <= SPARE * width:
            return replace(self, rank=rank)
        known, noises = None, self.noises[:0]
        if more > 0:
            basis = widened(self.basis, more, rng)
        else:
            basis = np.ascontiguousarray(self.basis[:, : SPARE * width])
            if self.told is not None:
                turn = self.turn()[1]
                known = self.told[0] @ turn, self.told[1] @ turn
                noises = self._noises @ np.abs(turn) if self._noises.size else noises
        again = replace(self, basis=basis, rank=rank, exact=known, noises=noises)
        return replace(again, reference=None, joined=None)

    def turn(self) -> tuple[Array, Array]:
        """All Ritz values, and what turns the basis that is told of to the Ritz vectors."""
        assert self.told is not None
        X, image = self.told
        return ritz_turn(X.T @ image)

    @property
    def _noises(self) -> Array:
        return self.noises if self.joined is None else self.joined[2]

    def rounding_errors(self, rank: int) -> tuple[float, float]:
        """What rounding for the wire did to the image of the leading vectors, and to B for all.

        The image of all is the exact one of a symmetric matrix that is so far from B, at most, in
        the Frobenius norm: each entry of the projected matrix counts twice.
        """
        noises = self._noises
        if not noises.any():
            return 0.0, 0.0
        lead = turned_noises(noises, self.turn()[1][:, :rank])
        return float(np.linalg.norm(lead)), float(np.sqrt(2) * np.linalg.norm(noises))

    def chance(self, value: float) -> float:
        """The p of an eigenvalue of this `value` or more outside of the search space."""
        return 1.0 if self.probes is None else self.probes.chance(value)

    def covered(self, found: Ritz) -> Iterator[tuple[int, float]]:
        """How many leading Ritz vectors cover the base of the probes, but for how much."""
        yield len(found.values), self.lacking

    @property
    def probe_block(self) -> Array | None:
        """What probes want to have multiplied next."""
        if self.probes is None or self.resting or not self.probes.following.shape[1]:
            return None
        return self.probes.following

    def learnt(self, sent: Array | None, product: Array | None) -> Probes | None:
        """The probes after a round; without a reply to all of them there are none."""
        if sent is None or self.probes is None:
            return self.probes
        return None if product is None else self.probes.learn(sent, product)

    def doubted(
        self, doubt: Doubt | None, rank: int, base: Array, eps: float, turn: Array | None = None
    ) -> Self:
        """Draw probes of what is outside of `base` if that is worth it; drop them if not needed.

        With `turn`, the base is ``base @ turn``, which is formed only then.
        """
        columns = base.shape[1] if turn is None else turn.shape[1]
        found, known = self.ritz(), None if doubt is None else doubt.certificate(self)
        if doubt is None or found is None or known is None:
            return self
        if known.proven:
            return replace(self, probes=None)
        if self.probes is not None:
            ended = not self.probes.following.shape[1] and not known.sure(doubt.certainty)
            poor = columns >= BETTER * self.probes.base.shape[1]
            ended |= poor and known.p >= 1 and self.probes.degree >= LONG
            if not ended or self.draws >= MOST_DRAWS:
                enough = known.p <= RESTING * doubt.certainty and not known.sharper
                return replace(self, resting=enough)
        ripe = np.linalg.norm(found.residuals[:, rank - 1]) <= RIPE * found.values[rank - 1]
        if not (ripe and columns < len(base)):
            return self
        return self.probed(doubt, base if turn is None else base @ turn, eps)

    def missed(self, rank: int) -> Array:
        """Directions that probes have found to be larger than vector number `rank` of the space."""
        found = self.ritz()
        if self.probes is None or found is None:
            return self.basis[:, :0]
        value = float(found.values[min(rank, len(found.values)) - 1])
        return self.probes.above((1 + LARGER) * value)

    def probed(self, doubt: Doubt, base: Array, eps: float) -> Self:
        """Draw probes of what is outside of `base`."""
        number = doubt.first + doubt.every * self.draws
        probes = draw(base, (doubt.seed, number), number, eps, self.PROBES)
        return replace(self, probes=probes, draws=self.draws + 1, resting=False)

    def giving_up(self, value: float, coupling: float) -> Self:
        """Drop vectors from the search space: their largest Ritz value, and their residual."""
        hidden = self.hidden
        if hidden < np.inf:
            hidden = (value + hidden) / 2 + float(np.hypot((value - hidden) / 2, coupling))
        return replace(self, hidden=hidden)

    def answer(self) -> State:
        """The state as those outside of the method see it: its basis is what was found so far."""
        return self


def turned_noises(noises: Array, turn: Array) -> Array:
    """Bound what is wrong with the image of a basis that is turned, for each column.

    Of the projected matrix only the lower half counts (`ritz_turn`): what is wrong with a column
    is also wrong with its row, which later columns see.
    """
    squares = np.square(noises)
    mirrored: Array = np.sqrt((np.cumsum(squares) - squares).clip(0.0) @ np.square(turn))
    return np.abs(turn).T @ noises + mirrored


def widened(basis: Array, more: int, rng: np.random.Generator) -> Array:
    """A basis with random columns behind its own."""
    random = rng.standard_normal((len(basis), more))
    wide: Array = orth(np.hstack([basis.astype(np.float64), random]))
    return np.ascontiguousarray(wide).astype(basis.dtype, copy=False)
