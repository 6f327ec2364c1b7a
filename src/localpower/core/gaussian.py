"""Gaussian noise for differential privacy: exact accounting, and exact samples in whole numbers.

A release with sensitivity Δ and noise of deviation σ has ``μ = Δ/σ``; squares of μ add up over
releases, whatever is asked later. Together they are (ε, δ)-private with
``δ = Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2)`` and with no smaller δ (Balle and Wang 2018; Dong, Roth
and Su 2022).

Samples are of the discrete Gaussian, ``P(y) ∝ exp(-y²/2σ²)`` over whole numbers, by rejection as in
Canonne, Kamath and Steinke (2020). A comparison of a uniform number with ``exp(-γ)`` is made in
floating point where that is far from a tie, and else in as many digits as it takes: no sample is
rounded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from math import erfc, exp, inf, isqrt, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx

Stream = Callable[[int], bytes]  # gives so many fresh random bytes
Integers = NDArray[np.int64]
MOST_SIGMA = 1 << 50  # larger ones would lose digits where γ is computed
TIE = 2.0**-44  # distance from a tie below which floating point does not decide; it errs by 2**-49
WORD = 8  # bytes
AT_ONCE = 1 << 18  # proposals, so that little memory is taken


def log_delta(epsilon: float, mu: float) -> float:
    """Logarithm of the least δ with which releases of that μ are (ε, δ)-private.

    Examples
    --------
    >>> round(log_delta(1.0, 1 / 4.2246), 4), round(log(1e-6), 4)
    (-13.8155, -13.8155)
    """
    if mu == 0:
        return -inf
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    density = -low * low / 2 - log(2 * pi) / 2  # logarithm of φ(low), which is e^ε φ(high)
    if low > 0:
        return density + log(_mills(low) - _mills(high))
    return log(erfc(low / sqrt(2)) / 2 - exp(density) * _mills(high))


def _mills(x: float) -> float:
    """``Φ(-x)/φ(x)``."""
    return sqrt(pi / 2) * float(erfcx(x / sqrt(2)))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-private.

    Examples
    --------
    >>> [round(1 / mu_of(epsilon, 1e-6), 3) for epsilon in (0.1, 1, 8)]
    [36.304, 4.225, 0.653]
    """
    wanted = log(delta)
    most = 1.0
    while log_delta(epsilon, most) < wanted:
        most *= 2
    least = most / 2
    while log_delta(epsilon, least) > wanted:
        least /= 2
    found = brentq(lambda mu: log_delta(epsilon, mu) - wanted, least, most, xtol=1e-15, rtol=1e-14)
    return float(found) * (1 - 1e-12)  # what is rounded is on the safe side


def epsilon_of(mu: float, delta: float) -> float:
    """The least ε with which releases of that μ are (ε, δ)-private.

    Examples
    --------
    >>> round(epsilon_of(mu_of(2.0, 1e-9), 1e-9), 9)
    2.0
    """
    wanted = log(delta)
    if log_delta(0.0, mu) <= wanted:
        return 0.0
    most = 1.0
    while log_delta(most, mu) > wanted:
        most *= 2
    found = brentq(lambda epsilon: log_delta(epsilon, mu) - wanted, 0.0, most, rtol=1e-14)
    return float(found) * (1 + 1e-12)


def sigma_of(epsilon: float, delta: float, releases: int = 1) -> float:
    """Deviation of the noise, in units of the sensitivity, of each of so many releases.

    Examples
    --------
    >>> round(sigma_of(1.0, 1e-6, 10), 5)
    13.35961
    """
    return sqrt(releases) / mu_of(epsilon, delta)


def discrete_gaussian(sigma: int, count: int, stream: Stream = os.urandom) -> Integers:
    """Draw whole numbers y with ``P(y) ∝ exp(-y²/2σ²)``, exactly.

    Proposed is ``v·σ + u`` with v geometric, of ratio 1/e, and u uniform below σ; it is taken with
    the chance ``exp(-γ)``, where ``γ = (v + u/σ)²/2 - v + 1/2``.

    Parameters
    ----------
    sigma
        A whole number from 1 to 2**50.
    count
        How many.
    stream
        Gives random bytes; those of the operating system by default.

    Examples
    --------
    >>> y = discrete_gaussian(1000, 10_000)
    >>> y.dtype, bool(950 < y.std() < 1050)
    (dtype('int64'), True)
    """
    if not 1 <= sigma <= MOST_SIGMA:
        raise ValueError(f"sigma={sigma} must be a whole number from 1 to {MOST_SIGMA}")
    drawn = np.empty(count, np.int64)
    done = 0
    while done < count:
        proposals = min(int(2.2 * (count - done)) + 16, AT_ONCE)
        y = _accepted(sigma, proposals, stream)[: count - done]
        drawn[done : (done := done + len(y))] = y
    return drawn


def _accepted(sigma: int, proposals: int, stream: Stream) -> Integers:
    """What is left of so many proposals: 0.48 of them."""
    v, u = _geometric(proposals, stream), _below(sigma, proposals, stream)
    x = u / sigma
    gamma = (np.square(v - 1.0) + 2 * v * x + x * x) / 2

    def exactly(at: int) -> Fraction:
        return ((int(v[at]) + Fraction(int(u[at]), sigma)) ** 2 + 1) / 2 - int(v[at])

    taken = _bernoulli_exp(gamma, exactly, stream)
    negative = (np.frombuffer(stream(proposals), np.uint8) & 1).astype(bool)
    y: Integers = v * sigma + u
    y[negative] *= -1
    kept: Integers = y[taken & ~(negative & (y == 0))]
    return kept


def _words(count: int, stream: Stream) -> NDArray[np.uint64]:
    return np.frombuffer(stream(WORD * count), "<u8").astype(np.uint64, copy=False)


def _below(limit: int, count: int, stream: Stream) -> Integers:
    """Uniform whole numbers below a limit."""
    words = _words(count, stream).copy()
    whole = (1 << 64) // limit * limit  # from here on, remainders would not be equally frequent
    while whole < 1 << 64 and (late := np.flatnonzero(words >= np.uint64(whole))).size:
        words[late] = _words(late.size, stream)
    return (words % np.uint64(limit)).astype(np.int64)


def _geometric(count: int, stream: Stream) -> Integers:
    """Whole numbers v with ``P(v) ∝ exp(-v)``."""
    v, going, one = np.zeros(count, np.int64), np.arange(count), np.ones(count)
    while going.size:
        going = going[_bernoulli_exp(one[: going.size], lambda at: Fraction(1), stream)]
        v[going] += 1
    return v


def _bernoulli_exp(
    gamma: NDArray[np.float64], exactly: Callable[[int], Fraction], stream: Stream
) -> NDArray[np.bool_]:
    """True with the chance ``exp(-γ)``; `exactly` tells each γ without rounding."""
    words = _words(len(gamma), stream)
    ahead = np.exp(-gamma) - words * 2.0**-64
    taken: NDArray[np.bool_] = ahead > 0
    for at in np.flatnonzero(np.abs(ahead) < TIE):
        taken[at] = _is_below_exp(int(words[at]), exactly(int(at)), stream)
    return taken


def _is_below_exp(word: int, gamma: Fraction, stream: Stream) -> bool:
    """Whether a uniform number that begins with `word` is below ``exp(-γ)``, with more digits."""
    bits = 8 * WORD
    while True:
        word = word << 8 * WORD | int.from_bytes(stream(WORD), "little")
        bits += 8 * WORD
        with localcontext() as context:
            context.prec = bits  # decimal digits: three times what is needed
            limit = (-Decimal(gamma.numerator) / gamma.denominator).exp() * (1 << bits)
            if word + 1 < limit:
                return True
            if word > limit:
                return False


def halved(sigma: int) -> int:
    """A whole number that is at least ``sigma/√2``, and at most one more."""
    return isqrt((sigma * sigma + 1) // 2) + 1


def spread(dimension: int) -> float:
    """What ``‖N‖₂/σ`` is below in 99 of 100 cases, of a symmetric N with ``N_jk ~ N(0, σ²/2)``.

    Entries of the diagonal have deviation σ. The mean is at most √(2d), and no entry of the noise
    can move the norm by more than itself.
    """
    return sqrt(2 * dimension) + sqrt(2 * log(2 / 0.01))
