"""Mutations of what decides: each line is made wrong in turn, and a test has to notice.

    python benchmarks/mutants.py [--only WORD] [--jobs 2] [--output benchmarks/mutants.csv]

`MUTANTS` lists, by file, snippets that occur once, what takes their place, and the tests that are
to fail then. They are run on a copy of the sources; one that takes too long has failed as well.
Mutations that the output lists as killed, of this version and the same source line, are not run
again. A survivor that changes no decision says why; all others should have a test.
"""

# ruff: noqa: E501
from __future__ import annotations

import argparse
import compileall
import csv
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import hypothesis  # noqa: F401 (children have it)
import pytest
import scipy.stats  # noqa: F401

import localpower.federation.agent  # noqa: F401 (of what that imports, children have the rest)
from localpower.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src", "localpower")
LIMIT = 120.0  # seconds of the tests of one mutation
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout")
MOST = 0.1  # share of mutations that may survive
STRICT = ("core/certificate.py", "stopping.py")  # files without survivors

CERTIFY = ("tests/core/test_certify.py",)
EVIDENCE = ("tests/core/test_evidence.py",)
SHARE = ("tests/core/test_share.py", "-k", "judged or sums or boundary or claimed or reach_tells")
GROWN = ("tests/core/test_share.py", "-k", "narrow_blocks or dropped_of")
STOPPING = ("tests/core/test_stopping.py",)
LANCZOS = ("tests/core/test_block_lanczos.py", "-k", "restart or ripe or missed or sees")
SEARCH = (
    "tests/core/test_evidence.py",
    "tests/core/test_local_ritz.py",
    "-k",
    "search or merged or cover or couplings or lacks or cut or no_number or probes_find or left_out",
)
MODEL = ("tests/core/test_model.py",)
STATES = (
    "tests/core/test_evidence.py",
    "-k",
    "drawn or dropped or rest_ or missed or reply or "
    "given_up or certificate or joined or several_methods or power_iteration or rounded or own_numbers",
)
ROUNDED = (
    "tests/core/test_evidence.py",
    "tests/core/test_precision.py",
    "-k",
    "rounded or never_more or rounding or products",
)
PRECISION = ("tests/core/test_precision.py",)
CHOICE = ("tests/core/test_stopping.py", "-k", "rows_are_few or chosen or follow or choice")
FACTORS = ("tests/core/test_factors.py",)
MOMENTS = ("tests/core/test_moments.py",)
EXACT = ("tests/core/test_certify.py", "-k", "gram_matrix or believed or factored or is_zero_for")
EARLY = ("tests/core/test_early_gram.py",)
GRADED = (
    "tests/adversary/test_found_by_campaigns.py",
    "tests/core/test_stopping.py",
    "-k",
    "square_root or residual or rounding or exact",
)
MERGED = ("tests/core/test_certify.py", "-k", "sum_of or a_cut or shard or trace_is or of_a_factor")
CHECKPOINT = ("tests/test_checkpoint.py", "-k", "to_the_last_bit")
RELAYED = ("tests/test_checkpoint.py", "-k", "had_come_to or had_given_up")
PARTICIPATION = ("tests/faults/test_participation.py",)
FEDERATION = "tests/federation/test_{}.py".format
ANY_FORMAT = FEDERATION("engine") + "::test_files_may_be_of_any_format"
AGENT = (FEDERATION("agent"), ANY_FORMAT)
AT_ONCE = (FEDERATION("only_sums"), FEDERATION("engine"), "-k", "at_once")
REFUSING = (FEDERATION("only_sums"), "-k", "shows_more_than_sums")
HOSTILE = (
    FEDERATION("damaged_frames"),
    "-k",
    "no_coordinator_sends or little_that_means or checks_itself or to_its_end or no_frame",
)
BUDGET = (FEDERATION("budget"), "-k", "not finds_the_components and not goes_on")
RECOVERY = (FEDERATION("recovery"),)
MASKS = (FEDERATION("masks"), "-k", "not cancel or cancel[3] or cancel[7]")
JOURNAL = (FEDERATION("journal"), FEDERATION("agent"))
FLOAT32 = (FEDERATION("engine"), "-k", "float32")
ENGINE = (
    FEDERATION("engine"),
    "-k",
    "not bits and not paper and not float32 and not without_masks_everything",
)
CERTIFIED = (FEDERATION("engine"), "-k", "bits and block_krylov")
ONLY_SUMS = (
    FEDERATION("only_sums"),
    "-k",
    "few_bits or lost_are or not_vary or large_mean or (elsewhere and gram) or itself or not_finite "
    "or usual_size or more_digits",
)
IDENTITY = (FEDERATION("identity"),)
CREDENTIALS = (FEDERATION("credentials"), "-k", "not somebody_else and not never_was")
TLS12 = (FEDERATION("credentials"), "-k", "somebody_else")
LINK = (FEDERATION("sites"), "-k", "pieces or late_site or one_frame or too_large_for_a_site")
PINNED = (FEDERATION("sites"), "-k", "bits_of_the_inline or second_process or signs_with_another")
POLICY = (FEDERATION("policy"),)
RING = ("tests/core/test_ring.py",)
ACCOUNTING = (FEDERATION("accounting"), "-k", "not accountant")
NOISE = (FEDERATION("noise"),)
PRIVATE = (
    FEDERATION("private"),
    "-k",
    "not attacker and not committed and not processes and not 99_of_100 and not command_line",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A snippet of a file, what takes its place, and the tests that are to fail.

    `equivalent` says why nothing can be noticed, where that is so.
    """

    file: str
    original: str
    replacement: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def id(self) -> str:
        """The same as long as the mutation is."""
        text = "\0".join((self.file, self.original, self.replacement))
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def line(self, source: str) -> tuple[int, str]:
        """Number and text of the line that is changed."""
        start = source.index(self.original)
        number = source.count("\n", 0, start) + 1
        return number, source.splitlines()[number - 1]

    def applied(self, source: str) -> str:
        """The source with the mutation; a snippet that is not there once is refused."""
        count = source.count(self.original)
        if count != 1:
            raise LookupError(f"{self.file}: {count} times {self.original!r}, which must be once")
        return source.replace(self.original, self.replacement)


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a mutation."""

    id: str
    file: str
    line: int
    original: str
    replacement: str
    outcome: str
    seconds: float
    version: str
    source: str
    equivalent: str


# fmt: off
MUTANTS: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = [
    ("core/certificate.py", CERTIFY, [
        ("ROUNDING = 8.0", "ROUNDING = 0.0"),
        ("self.residuals.max(initial=0.0)", "self.residuals.min(initial=0.0)"),
        ("self.proven or self.p <= certainty", "self.proven and self.p <= certainty"),
        ("self.proven or self.p <= certainty", "self.proven or self.p < certainty"),
        ("self.residuals[:, :count], self.gram[:count", "self.residuals[:, :count], self.gram[count"),
        ("np.linalg.eigvalsh(self.gram)[-1]", "np.diagonal(self.gram).max()"),
        ("R = G - X * values", "R = G + X * values"),
        ("return values[::-1], turn[:, ::-1]", "return values, turn"),
        ("top = max(float(values[0]), TINY)", "top = max(float(values[-1]), TINY)"),
        ("last = float(values[rank - 1])\n", "last = float(values[0])\n"),
        ("least_floor = ROUNDING * known.eps * top + known.noise", "least_floor = known.noise"),
        ("least_floor = ROUNDING * known.eps * top + known.noise",
         "least_floor = ROUNDING * known.eps * top"),
        ("floor = least_floor + known.passing", "floor = least_floor"),
        ("norms = np.sqrt(np.square(R).sum(axis=0))", "norms = np.abs(R).max(axis=0)"),
        ("zero = last + known.passing <= least_floor", "zero = last + known.passing < least_floor"),
        ("zero = last + known.passing <= least_floor", "zero = last <= least_floor"),
        ("zero = last + known.passing <= least_floor", "zero = last <= floor"),
        ("gap = 0.0 if zero else 1.0", "gap = 0.0"),
        ("    if last > floor:\n", "    if last > least_floor:\n"),
        ("    if last > floor:\n", "    if last >= floor:\n"),
        ("least = float(values[rank]) if len(values) > rank else 0.0", "least = 0.0"),
        ("least = float(values[rank]) if len(values) > rank else 0.0",
         "least = float(values[rank]) if len(values) > rank else last"),
        ("max(known.trace - float(values.sum()), 0.0)", "known.trace - float(values.sum())"),
        ("max(known.trace - float(values.sum()), 0.0)",
         "max(known.trace - float(values[:rank].sum()), 0.0)"),
        ("hidden = min(known.hidden + floor,", "hidden = max(known.hidden + floor,"),
        ("hidden = min(known.hidden + floor,", "hidden = min(known.hidden,"),
        ("wrong = max(ROUNDING * known.eps, TRACED) * known.trace + known.noise", "wrong = known.noise"),
        ("* known.trace + known.noise", "* known.trace"),
        ("max(ROUNDING * known.eps, TRACED)", "ROUNDING * known.eps"),
        ("max(ROUNDING * known.eps, TRACED)", "TRACED"),
        ("wrong += float(np.sqrt(len(values))) * known.blur", "wrong += 0.0"),
        ("wrong += float(np.sqrt(len(values))) * known.blur", "wrong += known.blur"),
        ("min(known.hidden + floor, left + wrong)", "min(known.hidden + floor, left)"),
        ("limit -= known.blur", "limit -= 0.0"),
        ("min(ps[:-1], default=1.0) < 1", "min(ps[:-1], default=1.0) <= 1"),
        ("min(ps[:-1], default=1.0) < 1", "min(ps, default=1.0) < 1"),
        ("min(ps[:-1], default=1.0) < 1", "max(ps[:-1], default=1.0) < 1"),
        ("        sharper=sharper,\n", ""),
        ("*_couplings(found, rank, last), known.blur)", "*_couplings(found, rank, last))"),
        ("part = Bound(last, error, floor, *couplings, known.blur)", "part = Bound(last, error, floor, *couplings)"),
        ("sharp = 1 - self.blur * inverse", "sharp = 1 - self.blur"),
        ("sharp = 1 - self.blur * inverse", "sharp = 1"),
        ("if sharp <= 0:", "if sharp < 0:"),
        ("if sharp <= 0:", "if False:"),
        ("            return 1.0\n        bound", "            return 0.0\n        bound"),
        ("bound / sharp)", "bound)"),
        ("if len(values) >= known.columns:", "if len(values) > known.columns:"),
        ("if len(values) >= known.columns:", "if len(values) >= known.columns - 1:"),
        ("gap = 0.0 if zero else", "gap = 0.0 if False else"),
        ("float(np.linalg.norm(R[:, :rank], 2)) - least", "float(norms[:rank].max()) - least"),
        ("float(np.linalg.norm(R[:, :rank], 2)) - least", "0.0 - least"),
        ("(R[:, :rank], 2)) - least) / last", "(R[:, :rank], 2)) - least) / top"),
        ("if gap <= tol:", "if gap < tol:"),
        ("max(last * (1 + SLACK * tol), last + SLACK * floor)", "last"),
        ("max(last * (1 + SLACK * tol), last + SLACK * floor)", "last + SLACK * floor"),
        ("max(last * (1 + SLACK * tol), last + SLACK * floor)", "last * (1 + SLACK * tol)"),
        ("max(last * (1 + SLACK * tol), last + SLACK * floor)",
         "max(last * (1 + tol), last + SLACK * floor)"),
        ("max(last * (1 + SLACK * tol), last + SLACK * floor)",
         "max(last * (1 + SLACK * tol), last + floor)"),
        ("max(last * (1 + SLACK * tol), last + SLACK * floor)",
         "max(last * (1 + SLACK * tol), last + SLACK * least_floor)"),
        ("max(last * (1 + SLACK * tol), last + SLACK * floor)",
         "last * (1 + SLACK * tol) + SLACK * floor"),
        ("        hopeless = sharper = False\n", "        hopeless, sharper = True, False\n"),
        ("Bound(last, 0.0, least_floor, *", "Bound(last, error, least_floor, *"),
        ("Bound(last, 0.0, least_floor, *", "Bound(last, 0.0, floor, *"),
        ("*_couplings(found, rank, last)) if least < last else None", "0.0, 0.0, last) if least < last else None"),
        ("if least < last else None", "if False else None"),
        ("hopeless = best is None or 3 * best.at(outside) > tol", "hopeless = True"),
        ("hopeless = best is None or 3 * best.at(outside) > tol",
         "hopeless = best is not None and 3 * best.at(outside) > tol"),
        ("3 * best.at(outside) > tol", "best.at(outside) > tol"),
        ("3 * best.at(outside) > tol", "3 * best.at(0.0) > tol"),
        ("3 * best.at(outside) > tol", "3 * best.at(hidden) > tol"),
        ("settled and known.passing <= least_floor", "settled"),
        ("settled and known.passing <= least_floor", "settled and known.passing < least_floor"),
        ("settled and known.passing <= least_floor", "settled and known.passing <= 0"),
        ("if zero:\n            limit", "if not zero:\n            limit"),
        ("limit = max(limit, zeros, SLACK * (floor", "limit = min(limit, SLACK * (floor"),
        ("SLACK * (floor + known.eps * known.trace), TINY)", "SLACK * floor, TINY)"),
        ("SLACK * (floor + known.eps * known.trace), TINY)", "SLACK * known.eps * known.trace, TINY)"),
        ("SLACK * (floor + known.eps * known.trace), TINY)",
         "floor + known.eps * known.trace, TINY)"),
        ("max(limit, zeros, SLACK * (floor", "max(zeros, SLACK * (floor"),
        ("zeros = 2 * wrong", "zeros = 0.0"),
        ("angle, proven, p = 1.0, *_sure(", "angle, proven, p = 0.0, *_sure("),
        ("error = float(np.linalg.norm(norms[:rank]))", "error = float(norms[:rank].max())"),
        ("error = float(np.linalg.norm(norms[:rank]))", "error = float(np.linalg.norm(norms))"),
        ("outside = left / max(known.columns - len(values), 1)", "outside = left"),
        ("outside = left / max(known.columns - len(values), 1)", "outside = 0.0"),
        ("float(norms[rank : rank + 1].sum()), floor", "float(norms[rank - 1 : rank].sum()), floor"),
        ("float(norms[rank : rank + 1].sum()), floor", "float(norms[rank : rank + 1].sum()), 0.0"),
        ("outsides = hidden, outside\n", "outsides = outside, outside\n"),
        ("values[:rank] + known.passing > least_floor, floor, top)",
         "values[:rank] + known.passing >= least_floor, floor, top)"),
        ("values[:rank] + known.passing > least_floor, floor, top)",
         "values[:rank] > least_floor, floor, top)"),
        ("values[:rank] + known.passing > least_floor, floor, top)",
         "values[:rank] + known.passing > floor, floor, top)"),
        ("units = np.where(values[:rank] > floor, values[:rank], units)",
         "units = np.where(values[:rank] > least_floor, values[:rank], units)"),
        ("    units = np.where(values[:rank] > floor, values[:rank], units)\n", ""),
        ("units = np.where(values[:rank] > floor, values[:rank], units)", "units = values[:rank]"),
        ("turned = norms * (floor / np.maximum(distances, floor))", "turned = norms[:rank, None]"),
        ("turned = norms * (floor / np.maximum(distances, floor))",
         "turned = norms * (distances <= floor)"),
        ("residuals=np.maximum(turned.max(axis=1), floor) / units",
         "residuals=turned.max(axis=1) / units"),
        ("residuals=np.maximum(turned.max(axis=1), floor) / units",
         "residuals=np.minimum(turned.max(axis=1), floor) / units"),
        ("proven=proven,", "proven=True,"),
        ("        p=p,", "        p=0.0,"),
        ("settled = len(values) >= known.columns or", "settled = len(values) >= known.columns and"),
        ("settled = len(values) >= known.columns or", "settled = "),
        ("(norms[:rank] <= 2 * least_floor).all()", "(norms[:rank] <= least_floor).all()"),
        ("(norms[:rank] <= 2 * least_floor).all()", "(norms[:rank] < 2 * least_floor).all()"),
        ("(norms[:rank] <= 2 * least_floor).all()", "(norms[:rank] <= 2 * least_floor).any()"),
        ("(norms[:rank] <= 2 * least_floor).all()", "(norms[:rank] <= 2 * floor).all()"),
        ("rounded=settled and hopeless", "rounded=settled"),
        ("rounded=settled and hopeless", "rounded=hopeless"),
        ("rounded=settled and hopeless", "rounded=False"),
        ("vanishing=zero,\n        sharper", "vanishing=False,\n        sharper"),
        ("top, last = float(sizes[0]), float(sizes[rank - 1])",
         "top, last = float(sizes[rank - 1]), float(sizes[rank - 1])"),
        ("top, last = float(sizes[0]), float(sizes[rank - 1])",
         "top, last = float(sizes[0]), float(sizes[0])"),
        ("error = ROUNDING * eps * top", "error = ROUNDING * eps * last"),
        ("following = float(sizes[rank]) if rank < len(sizes) else 0.0",
         "following = float(sizes[-1])"),
        ("apart = last - following if rank < len(sizes) else float(\"inf\")",
         "apart = last - following"),
        ("apart = last - following if rank < len(sizes) else float(\"inf\")", "apart = last"),
        ("zero = last <= error", "zero = last < error"),
        ("zero = last <= error", "zero = False"),
        ("min(1.0, error / apart) if apart > 0 else 1.0", "error / apart if apart > 0 else 1.0"),
        ("min(1.0, error / apart) if apart > 0 else 1.0",
         "min(1.0, error / apart) if apart > 0 else 0.0"),
        ("min(1.0, error / apart) if apart > 0", "min(1.0, error / apart) if apart >= 0"),
        ("residuals=2 * error /", "residuals=error /"),
        ("np.where(sizes[:rank] > error, sizes[:rank], max(top, error, TINY))",
         "max(top, error, TINY)"),
        ("np.where(sizes[:rank] > error,", "np.where(sizes[:rank] >= error,"),
        ("max(top, error, TINY)", "top"),
        ("proven=True,\n        p=0.0,", "proven=False,\n        p=0.0,"),
        ("1 - (following / last) ** 2", "1 - following / last"),
        ("gap=0.0 if zero else 1", "gap=0.0 if not zero else 1"),
        ("rounded=apart <= 0 or error / apart > 0", "rounded=False"),
        ("rounded=apart <= 0 or error / apart > 0", "rounded=apart <= 0"),
        ("rounded=apart <= 0 or error / apart > 0", "rounded=apart > 0 and error / apart > 0"),
        ("rounded=apart <= 0 or error / apart > 0", "rounded=True"),
        ("        vanishing=zero,\n    )\n\n\ndef _couplings", "    )\n\n\ndef _couplings"),
        ("rest = found.values[rank:]\n", "rest = found.values[rank + 1 :]\n"),
        ("return 0.0, 0.0, float(\"inf\")", "return 0.0, 0.0, 0.0"),
        ("D = value - rest", "D = value + rest"),
        ("K = found.gram[rank:, rank:]", "K = found.gram[:-rank, :-rank]"),
        ("largest_eigenvalue(K / np.sqrt(D) / np.sqrt(D)[:, None])",
         "np.diagonal(K / np.sqrt(D) / np.sqrt(D)[:, None]).max()"),
        ("K / np.sqrt(D) / np.sqrt(D)[:, None]", "K / np.sqrt(D)"),
        ("largest_eigenvalue(K / D / D[:, None])", "np.diagonal(K / D / D[:, None]).max()"),
        ("largest_eigenvalue(K / D / D[:, None])", "largest_eigenvalue(K / D.max() ** 2)"),
        ("return max(kappa, 0.0), ", "return 0.0, "),
        ("float(np.sqrt(max(tau, 0.0))), float(D.min())", "0.0, float(D.min())"),
        ("float(np.sqrt(max(tau, 0.0))), float(D.min())",
         "float(np.sqrt(max(tau, 0.0))), float(D.max())"),
        ("float(np.sqrt(max(tau, 0.0))), float(D.min())", "float(max(tau, 0.0)), float(D.min())"),
        ("limit <= found.values[rank]:\n", "limit < found.values[rank]:\n"),
        ("        return False, 1.0\n    if hidden", "        return True, 0.0\n    if hidden"),
        ("if hidden <= limit - _couplings(found, rank, limit)[0]:", "if hidden <= limit:"),
        ("if hidden <= limit - _couplings(found, rank, limit)[0]:",
         "if hidden < limit - _couplings(found, rank, limit)[0]:"),
        ("if hidden <= limit - _couplings(found, rank, limit)[0]:", "if hidden < np.inf:"),
        ("        return False, 1.0\n    rooms", "        return False, 0.0\n    rooms"),
        ("limit - _couplings(found.leading(count), rank, limit)[0] - lacking",
         "limit - _couplings(found.leading(count), rank, limit)[0]"),
        ("limit - _couplings(found.leading(count), rank, limit)[0] - lacking", "limit - lacking"),
        ("limit - _couplings(found.leading(count), rank, limit)[0] - lacking",
         "limit - _couplings(found, rank, limit)[0] - lacking"),
        ("max(rooms, default=0.0) - floor", "min(rooms, default=0.0) - floor"),
        ("max(rooms, default=0.0) - floor", "max(rooms, default=0.0)"),
        ("max(rooms, default=0.0) - floor", "max(rooms, default=limit) - floor"),
        ("return False, known.chance(", "return True, known.chance("),
        ("found.values[rank] >= last:", "found.values[rank] > last:"),
        ("        return 1.0, False, 1.0, False\n    whole", "        return 0.0, True, 0.0, False\n    whole"),
        ("whole = Bound(last, error, floor,", "whole = Bound(last, error, 0.0,"),
        ("proven, seen = whole.at(hidden),", "proven, seen = whole.at(mean),"),
        ("whole.claim(SHARES[0], mean)", "whole.claim(SHARES[-1], mean)"),
        ("if proven < 1 and (proven <= tol or", "if proven <= 1 and (proven <= tol or"),
        ("(proven <= tol or proven <= SLACK * seen)", "proven <= SLACK * seen"),
        ("(proven <= tol or proven <= SLACK * seen)", "(proven <= tol)"),
        ("(proven <= tol or proven <= SLACK * seen)", "(proven <= tol or proven <= seen)"),
        ("part = Bound(last, error, floor, *couplings, known.blur)", "part = whole"),
        ("part = Bound(last, error, floor,", "part = Bound(last, error, 0.0,"),
        ("for share in SHARES:", "for share in SHARES[::-1]:"),
        ("h = part.claim(share, mean)", "h = part.claim(share, 0.0)"),
        ("if part.at(h) < 1:", "if part.at(h) <= 1:"),
        ("ps[0] if ps else 1.0", "min(ps, default=1.0)"),
        ("ps[0] if ps else 1.0", "ps[-1] if ps else 1.0"),
        ("ps[0] if ps else 1.0", "ps[0] if ps else 0.0"),
        ("known.chance(h - floor - lacking)", "known.chance(h - lacking)"),
        ("known.chance(h - floor - lacking)", "known.chance(h - floor)"),
        ("if ps[-1] <= certainty:", "if ps[-1] < certainty:"),
        ("if ps[-1] <= certainty:", "if ps[0] <= certainty:"),
        ("return part.at(h), False, ps[-1]", "return part.at(h), True, ps[-1]"),
        ("return part.at(h), False, ps[-1]", "return seen, False, ps[-1]"),
        ("return part.at(h), False, ps[-1]", "return part.at(h), False, ps[0]"),
        ("    if proven < 1:\n", "    if proven < 0:\n"),
        ("doubtful = len(found.values) > rank and last", "doubtful = len(found.values) < rank and last"),
        ("<= SLACK * following", "< SLACK * following"),
        ("<= SLACK * following", "<= following"),
        ("return 1.0 if doubtful else seen, False, p", "return seen, False, p"),
        ("return 1.0 if doubtful else seen, False, p", "return 1.0 if doubtful else seen, True, p"),
        ("return 1.0 if doubtful else seen, False, ps[0] if ps else 1.0",
         "return 1.0 if doubtful else seen, False, 0.0"),
        ("room = self.last - self.kappa - h", "room = self.last - h"),
        ("room = self.last - self.kappa - h", "room = self.last - self.kappa"),
        ("if room <= 0:", "if room < 0:"),
        ("            return 1.0\n        spread", "            return 0.0\n        spread"),
        ("spread = (1 + self.tau**2) / room", "spread = 1 / room"),
        ("inverse = 1 / self.distance + spread", "inverse = spread"),
        ("inverse = 1 / self.distance + spread", "inverse = 1 / self.distance"),
        ("np.sqrt(spread / room)) + self.floor * inverse", "np.sqrt(spread / room))"),
        ("np.sqrt(spread / room)) + self.floor * inverse", "np.sqrt(spread)) + self.floor * inverse"),
        ("return min(1.0, bound", "return max(1.0, bound"),
        ("return min(1.0, bound", "return (bound"),
        ("return self.last - self.kappa - share * (", "return self.last - share * ("),
        ("share * (self.last - self.kappa - least)", "share * (self.last - self.kappa)"),
    ]),
    ("core/evidence.py", EVIDENCE, [
        ("error = max(self.error, ", "error = min(self.error, "),
        ("H[: c - b, : c - b] = self.projected", "H[: c - b, : c - b] = self.projected.T * 0"),
        ("H[c - b :] = W.T @ space", "H[c - b :, c - b :] = W.T @ Q"),
        ("        H[: c - b, c - b :] = H[c - b :, : c - b].T\n", ""),
        ("_outside(W, (self.base, space),", "_outside(W, (space,),"),
        ("_outside(W, (self.base, space),", "_outside(W, (self.base,),"),
        ("room = len(W) - self.base.shape[1] - c", "room = len(W) - c",
         "what is left of a product by a space that is all is rounding, which VANISHED leaves out"),
        ("MOST_BLOCKS * self.weights.shape[1] - c", "MOST_BLOCKS * len(W)"),
        ("((0, c - len(self.weights)), (0, 0))", "((c - len(self.weights), 0), (0, 0))"),
        ("self.degree + 1 if left.shape[1] and room else c", "self.degree + 1"),
        ("self.degree + 1 if left.shape[1] and room else c",
         "self.degree + 1 if following.shape[1] and room else c"),
        ("self.degree + 1 if left.shape[1] and room else c",
         "self.degree + 2 if left.shape[1] and room else c"),
        ("if self.degree < 0:\n            return 1.0", "if self.degree < 0:\n            return 0.0"),
        ("if self.degree < 0:", "if self.degree <= 0:"),
        ("np.square(Y.T @ self.weights)", "np.square(self.weights)"),
        ("value -= ROUNDING * self.error", "value += ROUNDING * self.error"),
        ("value -= ROUNDING * self.error", "value -= 0 * self.error"),
        ("size = least + self.error * float(np.sqrt(weights.sum()))", "size = least"),
        ("share = 1 / (self.draws * (self.draws + 1))", "share = 1.0"),
        ("share = 1 / (self.draws * (self.draws + 1))", "share = 0.5"),
        ("share = 1 / (self.draws * (self.draws + 1))", "share = 1 / self.draws"),
        ("share = 1 / (self.draws * (self.draws + 1))", "share = 1 / self.draws**2"),
        ("self.weights.shape[1]) / share)", "self.weights.shape[1]) * share)"),
        ("chi_square(size**2,", "chi_square(size,"),
        ("chi_square(size**2, self.weights.shape[1])", "chi_square(size**2, len(self.weights))"),
        ("return min(1.0, chi_square(", "return (chi_square("),
        ("standard_normal((d, count))", "standard_normal((d, 2))"),
        ("if not self.projected.size:", "if False:",
         "an empty matrix has no eigenpairs either: the same empty space is returned"),
        ("Y[:, theta > value]", "Y[:, theta < value]"),
        ("Omega -= base @ (base.T @ Omega)", "Omega = Omega",
         "Q is outside of the base, so what Omega has inside does not count in their product"),
        ("_outside(Omega, (base,), 0.0)[:, : d - c]", "_outside(Omega, (base,), 0.0)"),
        ("Q.T @ Omega, Q, -1, draws, eps)", "Q.T @ Omega, Q, 0, draws, eps)"),
        ("Q.T @ Omega, Q, -1, draws, eps)", "Q.T @ Omega, Q, -1, 1, eps)"),
        ("Q.T @ Omega, Q, -1, draws, eps)", "Q.T @ Omega, Q, -1, draws, 0.0)"),
        ("np.random.default_rng(seed)", "np.random.default_rng(0)"),
        ("            W = W - S @ (S.T @ W)", "            W = W"),
        ("Q = U[:, sizes > floor]", "Q = U[:, sizes >= 0]"),
        ("points[weights > 0], weights[weights > 0]", "points, weights"),
        ("if not value > points.max():", "if not value >= points.max():"),
        ("return float(\"inf\")", "return 0.0"),
        ("basis = [np.sqrt(weights) / total]", "basis = [weights / np.linalg.norm(weights)]"),
        ("before, now, beta, squares = 0.0, 1.0, 0.0, 1.0",
         "before, now, beta, squares = 0.0, 1.0, 0.0, 0.0"),
        ("for _ in range(degree):", "for _ in range(degree + 1):"),
        ("(value - alpha) * now - beta * before", "(value - alpha) * now"),
        ("(value - alpha) * now - beta * before", "(value - alpha) * now + beta * before"),
        ("u = (points - alpha) * v", "u = points * v",
         "what of it is along the vector before is taken out again below"),
        ("or len(basis) == len(points):", "or len(basis) > len(points):"),
        ("now / size, size", "now, size"),
        ("squares += now**2", "squares = now**2"),
        ("return total / float(np.sqrt(squares))", "return 1 / float(np.sqrt(squares))"),
        ("if q == 2:", "if q >= 2:"),
        ("-np.expm1(-x / 2)", "-np.expm1(-x)"),
        ("gammainc(q / 2, x / 2)", "gammainc(q, x / 2)"),
        ("left = _outside(W, (self.base, space), VANISHED * size)", "left = _outside(W, (self.base, space), 0.0)"),
        ("reach=max(self.reach, size),", "reach=size,"),
        ("reach=max(self.reach, size),", "reach=max(self.reach, float(np.abs(W).max())),"),
        ("            reach=max(self.reach, size),\n", ""),
        ("* max(self.reach, float(np.abs(theta).max()))", "* float(np.abs(theta).max())"),
        ("* max(self.reach, float(np.abs(theta).max()))",
         "* self.reach"),
    ]),
    ("core/share.py", SHARE, [
        ("room = level - _kappa(found, level, floor) - hidden", "room = level - hidden"),
        ("room = level - _kappa(found, level, floor) - hidden", "room = level - _kappa(found, level, floor)"),
        ("float(norms.sum()) ** 2 / room", "0.0"),
        ("np.maximum(values[:count], level).sum()", "values[:count].sum()"),
        ("(sums - errors > self.part * self.trace)", "(sums + errors > self.part * self.trace)"),
        ("full = before + left ", "full = before "),
        ("q = found.values, rank - 1", "q = found.values, max(rank - 2, 1)"),
        ("self.fewer <= self.part and (", "self.fewer <= self.part or ("),
    ]),
    ("stopping.py", STOPPING, [
        ("if not self.latest or self.latest[0][0] is not state:", "if not self.latest:"),
        ("Known(len(state.basis), self.trace, self.eps, self.noise)",
         "Known(len(state.basis), self.trace, self.eps)"),
        ("Known(len(state.basis), self.trace, self.eps, self.noise)",
         "Known(state.basis.shape[1], self.trace, self.eps, self.noise)"),
        ("state.certificate(rank, known, self.tol, self.certainty)",
         "state.certificate(rank, known, self.tol, 1.0)"),
        ("if found is not None and self.tol:", "if found is not None:"),
        ("near = found.angle <= self.tol", "near = found.angle < self.tol"),
        ("near = found.angle <= self.tol", "near = found.residual <= self.tol"),
        ("tie = self.ties and found.gap", "tie = found.gap"),
        ("found.gap <= self.tol and found.residual <= self.tol", "found.residual <= self.tol"),
        ("found.gap <= self.tol and found.residual <= self.tol", "found.gap <= self.tol"),
        ("found.gap <= self.tol and found.residual <= self.tol",
         "found.gap < self.tol and found.residual <= self.tol"),
        ("found.gap <= self.tol and found.residual <= self.tol",
         "found.gap <= self.tol and found.residual < self.tol"),
        ("if near or tie:", "if near and tie:"),
        ("if near or tie:", "if near:"),
        ("if found.sure(self.certainty):", "if True:"),
        ("if found.sure(self.certainty):", "if found.proven:"),
        ("return \"angle\" if near else \"residual\"", "return \"angle\""),
        ("return \"angle\" if near else \"residual\"", "return \"residual\" if tie else \"angle\""),
        ("if not self.learns or state.draws > MOST_DRAWS:", "if not self.learns:"),
        ("if not self.learns or state.draws > MOST_DRAWS:", "if state.draws > MOST_DRAWS:"),
        ("if not self.learns or state.draws > MOST_DRAWS:",
         "if not self.learns or state.draws >= MOST_DRAWS:"),
        ("return \"unsure\"\n", "return \"angle\"\n"),
        ("elif found.rounded and found.gap > self.tol:", "elif found.rounded:"),
        ("elif found.rounded and found.gap > self.tol:", "elif found.gap > self.tol:"),
        ("elif found.rounded and found.gap > self.tol:",
         "elif found.rounded and found.gap >= self.tol:"),
        ("return \"budget\" if spent > self.max_bytes or", "return \"budget\" if spent >= self.max_bytes or"),
        ("spent > self.max_bytes or seconds > self.max_seconds",
         "spent > self.max_bytes and seconds > self.max_seconds"),
        ("seconds > self.max_seconds else None", "seconds >= self.max_seconds else None"),
        ("for record in history[-STALL:] if record.steps > 1", "for record in history[-STALL:]"),
        ("for record in history[-STALL:] if", "for record in history[:STALL] if"),
        ("return len(known) == STALL and", "return"),
        ("min(known[1:]) > 0.9 * known[0]", "max(known[1:]) > 0.9 * known[0]"),
        ("min(known[1:]) > 0.9 * known[0]", "known[-1] > 0.9 * known[0]"),
        ("min(known[1:]) > 0.9 * known[0]", "min(known[1:]) > known[0]"),
        ("if found is None or not tol or len(residuals) < STALL:", "if not tol or len(residuals) < STALL:"),
        ("if found is None or not tol or len(residuals) < STALL:", "if found is None or len(residuals) < STALL:"),
        ("if found is None or not tol or len(residuals) < STALL:", "if found is None or not tol:"),
        ("goal, last = max(tol * found.gap, TINY)", "goal, last = max(tol, TINY)"),
        ("within = max(len(history), worth)", "within = len(history)"),
        ("within = max(len(history), worth)", "within = worth"),
        ("    if last <= goal:\n", "    if False:\n"),
        ("return 2 * near <= within", "return near <= within"),
        ("return 2 * near <= within", "return True"),
        ("takewhile(lambda residual: residual <= goal, reversed(residuals))",
         "filter(lambda residual: residual <= goal, residuals)"),
        ("recent = residuals[len(residuals) // 2 :]", "recent = residuals"),
        ("(len(recent) - 1)\n", "len(recent)\n"),
        ("return log(last / goal) <= fall * within", "return fall > 0"),
        ("after_local_steps = record.steps > 1 and", "after_local_steps = record.steps > 0 and"),
        ("(record.angle or 1.0) < 1.0", "(record.angle or 1.0) <= 1.0"),
        ("return after_local_steps or (record.residual or 1.0) < NEAR", "return after_local_steps"),
        ("\"rounding\" if found.rounded else \"unsure\"", "\"rounding\""),
        ("\"rounding\" if found.rounded else \"unsure\"", "\"unsure\""),
        ("\"rounding\" if found.rounded else \"unsure\"", "\"unsure\" if found.rounded else \"rounding\""),
        ("if found is None or outcome.reason != \"rounding\":", "if found is None:"),
        ("if found is None or outcome.reason != \"rounding\":", "if outcome.reason != \"rounding\":"),
        ("return found.angle <= ROUGH and found.sure(certainty)", "return found.angle < ROUGH and found.sure(certainty)"),
        ("return found.angle <= ROUGH and found.sure(certainty)", "return found.angle <= ROUGH"),
        ("return found.angle <= ROUGH and found.sure(certainty)", "return found.sure(certainty)"),
        ("return found.angle <= ROUGH and found.sure(certainty)", "return found.angle <= ROUGH and found.proven"),
        ("Reason(\"the angle is within the tolerance\", converged=True, final=True)",
         "Reason(\"the angle is within the tolerance\", final=True)"),
        ("Reason(\"the angle is within the tolerance\", converged=True, final=True)",
         "Reason(\"the angle is within the tolerance\", converged=True)"),
        ("there is no gap\", converged=True, final=True", "there is no gap\", final=True"),
        ("there is no gap\", converged=True, final=True", "there is no gap\", converged=True"),
        ("there is no gap\", converged=True, final=True",
         "there is no gap\", converged=True, final=True, given_up=True"),
        ("computes the answer at once\", converged=True)", "computes the answer at once\")"),
        ("\"raise max_rounds\"),", "\"raise max_rounds\", converged=True),"),
        ("\"raise max_rounds\"),", "\"raise max_rounds\", final=True),"),
        ("\"raise the bytes or seconds of the budget\"),",
         "\"raise the bytes or seconds of the budget\", converged=True),"),
        ("\"raise the bytes or seconds of the budget\"),",
         "\"raise the bytes or seconds of the budget\", final=True),"),
        ("\"raise the bytes or seconds of the budget\"),",
         "\"raise the bytes or seconds of the budget\", given_up=True),"),
        ("or {_OTHER}\",\n        final=True,\n        given_up=True,", "or {_OTHER}\",\n        given_up=True,"),
        ("or {_OTHER}\",\n        final=True,\n        given_up=True,", "or {_OTHER}\",\n        final=True,"),
        ("or {_OTHER}\",\n        final=True,\n", "or {_OTHER}\",\n        converged=True,\n        final=True,\n"),
        ("a larger certainty; or method='{EXACT.name}'\",\n        final=True,\n        given_up=True,",
         "a larger certainty; or method='{EXACT.name}'\",\n        given_up=True,"),
        ("a larger certainty; or method='{EXACT.name}'\",\n        final=True,\n        given_up=True,",
         "a larger certainty; or method='{EXACT.name}'\",\n        final=True,"),
        ("a larger certainty; or method='{EXACT.name}'\",\n        final=True,\n",
         "a larger certainty; or method='{EXACT.name}'\",\n        converged=True,\n        final=True,\n"),
        ("or take method='{EXACT.name}'\",\n        final=True,\n        given_up=True,",
         "or take method='{EXACT.name}'\",\n        given_up=True,"),
        ("or take method='{EXACT.name}'\",\n        final=True,\n        given_up=True,",
         "or take method='{EXACT.name}'\",\n        final=True,"),
        ("or take method='{EXACT.name}'\",\n        final=True,\n",
         "or take method='{EXACT.name}'\",\n        converged=True,\n        final=True,\n"),
        ("\"let it run on\"),", "\"let it run on\", converged=True),"),
        ("\"let it run on\"),", "\"let it run on\", final=True),"),
        ("f\"take a method that iterates, as method='{CERTIFIED.name}'\",",
         "f\"take a method that iterates, as method='{CERTIFIED.name}'\", converged=True,"),
        ("f\"take a method that iterates, as method='{CERTIFIED.name}'\",",
         "f\"take a method that iterates, as method='{CERTIFIED.name}'\", final=True,"),
        ("\"run it again when they are back\"),", "\"run it again when they are back\", converged=True),"),
        ("elif stalled(history):", "elif False:"),
        ("if method.exact and not (method.squares and reason in (\"angle\", \"residual\", \"rounding\")):",
         "if not (method.squares and reason in (\"angle\", \"residual\", \"rounding\")):"),
        ("if method.exact and not (method.squares and reason in (\"angle\", \"residual\", \"rounding\")):",
         "if method.exact and reason not in (\"angle\", \"residual\", \"rounding\"):"),
        ("if method.exact and not (method.squares and reason in (\"angle\", \"residual\", \"rounding\")):",
         "if method.exact and not method.squares:"),
        ("if method.exact and not (method.squares and reason in (\"angle\", \"residual\", \"rounding\")):",
         "if method.exact:"),
        ("(\"angle\", \"residual\", \"rounding\")", "(\"angle\", \"rounding\")"),
        ("(\"angle\", \"residual\", \"rounding\")", "(\"angle\", \"residual\")"),
        ("(\"angle\", \"residual\", \"rounding\")", "(\"residual\", \"rounding\")"),
        ("if tol and found is not None:  # at a tie", "if found is not None:  # at a tie"),
        ("if tol and found is not None:  # at a tie", "if tol:  # at a tie"),
        ("error = found.angle if found.gap > tol else found.residual", "error = found.angle"),
        ("error = found.angle if found.gap > tol else found.residual", "error = found.residual"),
        ("error = found.angle if found.gap > tol else found.residual",
         "error = found.angle if found.gap >= tol else found.residual"),
        ("reason = \"rounding\" if error > tol else \"exact\"", "reason = \"exact\""),
        ("reason = \"rounding\" if error > tol else \"exact\"", "reason = \"rounding\""),
        ("reason = \"rounding\" if error > tol else \"exact\"",
         "reason = \"rounding\" if error >= tol else \"exact\""),
        ("if tol and reason == \"end\" and method.certifies and found is not None:",
         "if reason == \"end\" and method.certifies and found is not None:"),
        ("if tol and reason == \"end\" and method.certifies and found is not None:",
         "if tol and method.certifies and found is not None:"),
        ("if tol and reason == \"end\" and method.certifies and found is not None:",
         "if tol and reason == \"end\" and found is not None:"),
        ("if tol and reason == \"end\" and method.certifies and found is not None:",
         "if tol and reason == \"end\" and method.certifies:"),
        ("if tol and not REASONS[reason].converged and reason != \"callback\":",
         "if not REASONS[reason].converged and reason != \"callback\":"),
        ("if tol and not REASONS[reason].converged and reason != \"callback\":", "if tol and reason != \"callback\":"),
        ("if tol and not REASONS[reason].converged and reason != \"callback\":",
         "if tol and not REASONS[reason].converged:"),
        ("known = \"proven\" if found.proven else", "known = \"proven\" if not found.proven else"),
        ("if reason == \"max_rounds\" and method.name != CERTIFIED.name:", "if reason == \"max_rounds\":"),
        ("if reason == \"max_rounds\" and method.name != CERTIFIED.name:", "if method.name != CERTIFIED.name:"),
        ("round{'s' * (rounds != 1)}", "round{'s' * (rounds == 1)}"),
    ]),
    ("iteration.py", STOPPING, [
        ("PATIENCE * choice.rounds)", "choice.rounds)"),
        ("patience = max(ROUNDS,", "patience = min(ROUNDS,"),
        ("rounds is not None and state.round >= rounds", "rounds is not None and state.round > rounds"),
        ("rounds is not None and state.round >= rounds", "False"),
        ("own = history[-states.own :]", "own = history"),
        ("if reason is None and states.late and not on_course(own, found, rule.tol, states.worth):",
         "if reason is None and states.late:"),
        ("if reason is None and states.late and not on_course(own, found, rule.tol, states.worth):",
         "if reason is None and not on_course(own, found, rule.tol, states.worth):"),
        ("not on_course(own, found, rule.tol, states.worth)", "not on_course(own, found, rule.tol, 0)"),
        ("Relay(legs_of_states, before, first, choice.worth)", "Relay(legs_of_states, before, first)"),
        ("done = before[0] + state.round, before[1]", "done = state.round, before[1]"),
        ("yield replace(state, round=done[0], steps=done[1]) if before[0] else state", "yield state"),
        ("if self.over:\n                    break", "if self.over:\n                    continue"),
        ("self.before = before = done", "before = self.before"),
        ("self.over = bool(self._legs)", "self.over = True"),
        ("            self.over = False\n            self.before", "            self.before"),
        ("reason = None if past is None else past.reason", "reason = None"),
        ("        engine.restore(past.records)\n", "        engine.restore(past.records[:0])\n"),
        ("seconds = sum(record.seconds for record in history)", "seconds = 0.0 - 9e9 * len(history)"),
        ("reason = \"callback\" if ended else reason", "reason = reason or \"callback\""),
        ("return Outcome(state, tuple(history), reason, found)",
         "return Outcome(state, tuple(history), reason, None)"),
        ("replace(doubt, first=1 + n, every=len(methods))", "doubt"),
        ("replace(doubt, first=1 + n, every=len(methods))", "replace(doubt, first=1 + n)"),
        ("if not rule.learns:", "if rule.learns:"),
        ("int(rng.spawn(1)[0].integers(1 << 63))", "int(rng.integers(1 << 63))"),
        ("int(rng.spawn(1)[0].integers(1 << 63))", "0"),
        ("replace(start, state=None, rng=rng)", "replace(start, rng=rng)"),
        ("replace(start, state=None, rng=rng)", "replace(start, state=None)"),
        ("begins = [start]\n", "begins = [replace(start, state=None)]\n"),
        ("begins = [replace(begin, doubt=own) for begin,", "[replace(begin, doubt=own) for begin,"),
        ("left = 0 if reason is not None else max(0, rule.max_rounds - len(history))",
         "left = max(0, rule.max_rounds - len(history))"),
        ("max(0, rule.max_rounds - len(history))", "rule.max_rounds"),
        ("max(0, rule.max_rounds - len(history))", "rule.max_rounds - len(history)"),
        ("0 if state is None else state.steps)", "0)"),
        ("tie = reason == \"residual\" and found is not None and found.vanishing", "tie = False"),
        ("tie = reason == \"residual\" and found is not None and found.vanishing", "tie = reason == \"residual\""),
        ("tie = reason == \"residual\" and found is not None and found.vanishing",
         "tie = found is not None and found.vanishing"),
        ("and (tie or REASONS[reason].given_up) and states.skip():", "and states.skip():"),
        ("and (tie or REASONS[reason].given_up) and states.skip():", "and tie and states.skip():"),
        ("and (tie or REASONS[reason].given_up) and states.skip():",
         "and (tie or REASONS[reason].final) and states.skip():"),
        ("and (tie or REASONS[reason].given_up) and states.skip():",
         "and (tie or REASONS[reason].given_up) and not states.skip():"),
        ("writer.due(state, ended or reason is not None)", "writer.due(state, False)"),
        ("writer.due(state, ended or reason is not None)", "writer.due(state, reason is not None)"),
        ("\"max_rounds\" if len(history) >= rule.max_rounds else \"end\"", "\"max_rounds\""),
        ("\"max_rounds\" if len(history) >= rule.max_rounds else \"end\"",
         "\"max_rounds\" if len(history) > rule.max_rounds else \"end\""),
        ("self.spent = sum(record.bytes_up + record.bytes_down for record in history)", "self.spent = 0"),
        ("self.seen, self.before = engine.hops, time.perf_counter()",
         "self.seen, self.before = 0, time.perf_counter()"),
        ("steps=state.steps - self.steps,", "steps=state.steps,"),
        ("self.spent += record.bytes_up + record.bytes_down", "self.spent += record.bytes_up"),
        ("        self.seconds += record.seconds\n", ""),
        ("self.steps, self.seen, self.before = state.steps, self.seen + traffic.hops, now",
         "self.steps, self.seen, self.before = state.steps, traffic.hops, now"),
        ("certified = outcome.state.joined is not None or returns_certified_basis",
         "certified = returns_certified_basis"),
        ("certified = outcome.state.joined is not None or returns_certified_basis",
         "certified = outcome.state.joined is not None and returns_certified_basis"),
        ("if known is not None and (REASONS[reason].final or (tol > 0 and certified)):",
         "if known is not None and tol > 0 and certified:"),
        ("if known is not None and (REASONS[reason].final or (tol > 0 and certified)):",
         "if known is not None and REASONS[reason].final:"),
        ("if known is not None and (REASONS[reason].final or (tol > 0 and certified)):",
         "if known is not None and (REASONS[reason].final or certified):"),
        ("if known is not None and (REASONS[reason].final or (tol > 0 and certified)):",
         "if known is not None and (REASONS[reason].final or tol > 0):"),
        ("if known is not None and (REASONS[reason].final or (tol > 0 and certified)):", "if known is not None:"),
        ("known[0][:, : basis.shape[1]], dtype=dtype), True", "known[0], dtype=dtype), True"),
        ("known[0][:, : basis.shape[1]], dtype=dtype), True", "known[0][:, : basis.shape[1]]), True"),
        ("known[0][:, : basis.shape[1]], dtype=dtype), True", "known[0][:, : basis.shape[1]], dtype=dtype), False"),
        ("    return basis, False\n", "    return basis, True\n"),
    ]),
    ("run.py", STOPPING, [
        ("np.hstack([V, more])", "np.hstack([more, V])"),
        ("run |= {\"reason\": \"degraded\", ", "run |= {"),
        ("if not self.choice.rounds and asked.tol is None:", "if not self.choice.rounds:"),
        ("if not self.choice.rounds and asked.tol is None:", "if False:"),
        ("own = OWN_ROUNDS if asked.chosen and self.tol else ROUNDS", "own = OWN_ROUNDS if asked.chosen else ROUNDS"),
        ("own = OWN_ROUNDS if asked.chosen and self.tol else ROUNDS", "own = OWN_ROUNDS"),
        ("trace=self.columns.trace(source.rows),", "trace=0.0,"),
        ("noise = ready.noise + self.home.rounding", "noise = self.home.rounding"),
        ("ties=not (asked.chosen and self.method.squares)", "ties=True"),
        ("ties=not (asked.chosen and self.method.squares)", "ties=not self.method.squares"),
        ("ties=not (asked.chosen and self.method.squares)", "ties=not asked.chosen"),
        ("learns=asked.certainty > 0 and self.method.sends_probes", "learns=self.method.sends_probes"),
        ("learns=asked.certainty > 0 and self.method.sends_probes", "learns=asked.certainty > 0"),
        ("astype(np.float64)[:, : self.rank]", "astype(np.float64)"),
        ("if earlier.basis.shape[0] != d:", "if earlier.basis.shape[0] > d:"),
        ("more = self.asked.rng.standard_normal(", "more = np.ones("),
        ("if asked.tol is None and asked.chosen and good_enough(", "if asked.chosen and good_enough("),
        ("if asked.tol is None and asked.chosen and good_enough(",
         "if asked.tol is None and good_enough(",
         "a method that was asked for without a tolerance has tolerance 0, and rounding ends no such run"),
        ("if asked.tol is None and asked.chosen and good_enough(", "if False and good_enough("),
        ("about = certified or self.tol > 0 or self.method.certifies or self.method.exact",
         "about = self.tol > 0 or self.method.certifies or self.method.exact",
         "a basis is the certified one only where there is a tolerance"),
        ("about = certified or self.tol > 0 or self.method.certifies or self.method.exact",
         "about = certified or self.method.certifies or self.method.exact"),
        ("about = certified or self.tol > 0 or self.method.certifies or self.method.exact",
         "about = certified or self.tol > 0 or self.method.exact"),
        ("about = certified or self.tol > 0 or self.method.certifies or self.method.exact",
         "about = certified or self.tol > 0 or self.method.certifies"),
        ("about = certified or self.tol > 0 or self.method.certifies or self.method.exact", "about = True"),
    ]),
    ("run.py", GRADED, [
        ("squared = sums or reason == \"residual\" or (reason == \"exact\" and squares)",
         "squared = sums or (reason == \"exact\" and squares)"),
        ("squared = sums or reason == \"residual\" or (reason == \"exact\" and squares)",
         "squared = sums or reason == \"residual\""),
        ("squared = sums or reason == \"residual\" or (reason == \"exact\" and squares)",
         "squared = sums or reason == \"residual\" or reason == \"exact\""),
        ("squares = (source.rows, source.columns), self.method.squares and self.tol",
         "squares = (source.rows, source.columns), self.method.squares"),
    ]),
    ("options.py", STOPPING, [
        ("if isinstance(value, str) and value == \"proven\":\n        return 0.0",
         "if isinstance(value, str) and value == \"proven\":\n        return 1.0"),
        ("not isinstance(value, bool)\n", "True\n"),
        ("if not number or not 0 < value <= 1:", "if not number or not 0 <= value <= 1:"),
        ("if not number or not 0 < value <= 1:", "if not number or not 0 < value < 1:"),
        ("if not number or not 0 < value <= 1:", "if not number or value <= 0 or value > 1:"),
    ]),
    ("methods/auto.py", CHOICE, [
        ("rounds = self.wire != \"float64\"", "rounds = False"),
        ("if not rounds or \"wire\" in form.options()", "if \"wire\" in form.options()"),
        ("if problem.exceeds_rows(method):", "if False:"),
        ("for way, other in ranked if way.exact and way in others", "for way, other in ranked if way.exact"),
        ("each = cost.seconds / max(cost.rounds, 1)", "each = cost.seconds"),
        ("return Choice(fallback, why, 0)", "return Choice(fallback, why, cost.rounds)"),
        ("return Choice(fallback, why, 0)", "return Choice(method, why, 0)"),
        ("fallback = LocalPower(width=self.width, wire=self.wire)", "fallback = LocalPower()"),
        ("if isinstance(method, TSQR):", "if False:",
         "tsqr is exact and does not follow itself, so that nothing follows it in either way"),
        ("for other, cost in ranked if cost.feasible", "for other, cost in ranked"),
        ("for kind in ((TSQR,) if method.exact else (LocalRitz, TSQR))",
         "for kind in ((TSQR,) if method.exact else (TSQR, LocalRitz))"),
        ("for kind in ((TSQR,) if method.exact else (LocalRitz, TSQR))", "for kind in (LocalRitz, TSQR)"),
        ("for kind in ((TSQR,) if method.exact else (LocalRitz, TSQR))", "for kind in (TSQR,)"),
        ("if kind in possible and kind is not type(method)\n", "if kind in possible\n"),
        ("            and not problem.exceeds_rows(possible[kind])\n", ""),
        ("few = problem.rows <= min(GRAM_COLUMNS, problem.columns)", "few = False"),
        ("few = problem.rows <= min(GRAM_COLUMNS, problem.columns)", "few = problem.rows <= GRAM_COLUMNS"),
        ("few = problem.rows <= min(GRAM_COLUMNS, problem.columns)", "few = problem.rows <= problem.columns"),
        ("few = problem.rows <= min(GRAM_COLUMNS, problem.columns)",
         "few = problem.rows < min(GRAM_COLUMNS, problem.columns)"),
        ("if few and not method.exact and", "if few and"),
        ("if few and not method.exact and", "if not method.exact and"),
        ("start=f\"merged:{problem.rows}\", width", "start=\"merged\", width"),
        ("start=f\"merged:{problem.rows}\", width=self.width, wire=self.wire)", "start=f\"merged:{problem.rows}\")"),
        ("others = [merged]", "others = [*others, merged]"),
        ("return Choice(method, why, cost.rounds, tuple(others), int(max(exact, default=0)))", "return Choice(method, why, cost.rounds)"),
        ("return Choice(method, why, cost.rounds, tuple(others), int(max(exact, default=0)))",
         "return Choice(method, why, 1, tuple(others), int(max(exact, default=0)))"),
        ("tuple(others), int(max(exact, default=0)))", "tuple(others))"),
    ]),
    ("methods/costs.py", CHOICE, [
        ("return need > max(LEAN, 3 * 12", "return need > min(LEAN, 3 * 12"),
        ("return need > max(LEAN, 3 * 12", "return need > max(0, 3 * 12"),
        ("return need > max(LEAN, 3 * 12 * self.entries", "return need > max(LEAN, 3 * 12"),
    ]),
    ("methods/factors.py", FACTORS, [
        ("freedom = max(rows - 1, 1) if center else rows", "freedom = rows"),
        ("freedom = max(rows - 1, 1) if center else rows", "freedom = max(rows - 1, 1)"),
        ("variance = np.minimum(found.variance, total)", "variance = found.variance"),
        ("between = (total - reply.rows) * share * np.square(delta)", "between = 0.0"),
        ("share = reply.rows / max(total, 1)", "share = 1.0"),
    ]),
    ("methods/factors.py", STOPPING, [
        ("zero = ZERO * np.sqrt(max(shape)) * eps", "zero = ZERO * np.sqrt(min(shape)) * eps"),
        ("zero = ZERO * np.sqrt(max(shape)) * eps", "zero = 0.0"),
        ("((zero * S[0] < S) & (", "((S >= 0) & ("),
        ("((zero * S[0] < S) & (", "((zero < S) & ("),
        ("& (2 * np.sqrt(ROUNDING * eps) * S[0] >= S)).any())", "& (np.sqrt(ROUNDING * eps) * S[0] >= S)).any())"),
        ("& (2 * np.sqrt(ROUNDING * eps) * S[0] >= S)).any())", "& (2 * np.sqrt(ROUNDING * eps) >= S)).any())"),
        ("& (2 * np.sqrt(ROUNDING * eps) * S[0] >= S)).any())", "& (2 * np.sqrt(ROUNDING * eps) * S[0] >= S)).all())"),
    ]),
    ("methods/state.py", STATES, [
        ("passing, blur = self.rounding_errors(rank)", "passing, blur = self.rounding_errors(1)"),
        ("            passing=float(passing),\n", ""),
        ("            blur=blur,\n", ""),
        ("RESTING * doubt.certainty and not known.sharper", "RESTING * doubt.certainty"),
        ("return self.noises if self.joined is None else self.joined[2]", "return self.noises"),
        ("float(np.sqrt(2) * np.linalg.norm(noises))", "float(np.linalg.norm(noises))"),
        ("float(np.sqrt(2) * np.linalg.norm(noises))", "0.0"),
        ("lead = turned_noises(noises, self.turn()[1][:, :rank])", "lead = noises[:rank]"),
        ("return np.abs(turn).T @ noises + mirrored", "return np.abs(turn).T @ noises"),
        ("return np.abs(turn).T @ noises + mirrored", "return turn.T @ noises + mirrored"),
        ("(np.cumsum(squares) - squares).clip(0.0)", "np.cumsum(squares)"),
        ("(np.cumsum(squares) - squares).clip(0.0) @ np.square(turn)", "(np.cumsum(squares) - squares).clip(0.0) @ turn"),
        ("            hidden=self.hidden,\n", ""),
        ("covered=() if chance is None else tuple(self.covered(found)),", "covered=(),"),
        ("return self.exact if self.joined is None else self.joined[:2]", "return self.exact"),
        ("yield len(found.values), self.lacking", "yield len(found.values), 0.0"),
        ("if self.probes is None or self.resting or not", "if self.probes is None or not"),
        ("return None if product is None else self.probes.learn(sent, product)",
         "return self.probes if product is None else self.probes.learn(sent, product)"),
        ("if known.proven:\n            return replace(self, probes=None)", "if known.proven:\n            return self"),
        ("and not known.sure(doubt.certainty)", "and True"),
        ("columns >= BETTER * self.probes.base.shape[1]", "columns > BETTER * self.probes.base.shape[1]"),
        ("ended |= poor and known.p >= 1 and self.probes.degree >= LONG", "ended |= poor and known.p >= 1"),
        ("ended |= poor and known.p >= 1 and self.probes.degree >= LONG", "ended |= poor and self.probes.degree >= LONG"),
        ("ended |= poor and known.p >= 1 and self.probes.degree >= LONG", "ended |= known.p >= 1 and self.probes.degree >= LONG"),
        ("if not ended or self.draws >= MOST_DRAWS:", "if not ended:"),
        ("if not ended or self.draws >= MOST_DRAWS:", "if not ended or self.draws > MOST_DRAWS:"),
        ("enough = known.p <= RESTING * doubt.certainty and", "enough = known.p <= 1 and"),
        ("<= RIPE * found.values[rank - 1]", "<= RIPE * found.values[0]"),
        ("found.residuals[:, rank - 1]", "found.residuals[:, 0]"),
        ("<= RIPE * found.values[rank - 1]", "<= found.values[rank - 1]"),
        ("if not (ripe and columns < len(base)):", "if not (ripe and columns <= len(base)):"),
        ("found.values[min(rank, len(found.values)) - 1]", "found.values[0]"),
        ("self.probes.above((1 + LARGER) * value)", "self.probes.above(value)"),
        ("draws=self.draws + 1", "draws=1"),
        ("number = doubt.first + doubt.every * self.draws", "number = doubt.first + self.draws"),
        ("number = doubt.first + doubt.every * self.draws", "number = 1 + doubt.every * self.draws"),
        ("draw(base, (doubt.seed, number), number, eps, self.PROBES)",
         "draw(base, (doubt.seed, 1), number, eps, self.PROBES)"),
        ("draw(base, (doubt.seed, number), number, eps, self.PROBES)",
         "draw(base, (doubt.seed, draws), number, eps, self.PROBES)"),
        ("draw(base, (doubt.seed, number), number, eps, self.PROBES)",
         "draw(base, (doubt.seed, number), draws, eps, self.PROBES)"),
        ("draw(base, (doubt.seed, number), number, eps, self.PROBES)",
         "draw(base, (doubt.seed, number), 1, eps, self.PROBES)"),
        ("probes=probes, draws=self.draws + 1, resting", "probes=probes, draws=number, resting"),
        ("draws=self.draws + 1, resting=False)", "draws=self.draws + 1)"),
        ("if hidden < np.inf:", "if hidden > np.inf:"),
        ("hidden = (value + hidden) / 2 + float(", "hidden = max(value, hidden) + 0 * float("),
        ("np.hypot((value - hidden) / 2, coupling)", "np.hypot((value - hidden) / 2, 0.0)"),
        ("np.hypot((value - hidden) / 2, coupling)", "np.hypot(value - hidden, coupling)"),
    ]),
    ("methods/search.py", SEARCH, [
        ("coordinates = self.turn()[1][: len(self.inside)].T @ self.inside", "coordinates = self.inside"),
        ("compute_uv=False)[-1] if most >= count else 0.0", "compute_uv=False)[0] if most >= count else 0.0"),
        ("compute_uv=False)[-1] if most >= count else 0.0", "compute_uv=False)[-1]"),
        ("max(1 - min(least, 1.0) ** 2, 0.0)", "max(1 - min(least, 1.0), 0.0)"),
        ("if least < 1 - 1e-12 else 0.0", "if least < 0.5 else 0.0"),
        ("2 * self.spread * less + float(found.values[0]) * less**2", "2 * self.spread * less"),
        ("2 * self.spread * less + float(found.values[0]) * less**2", "float(found.values[0]) * less**2"),
        ("2 * self.spread * less + float(found.values[0]) * less**2",
         "self.spread * less + float(found.values[0]) * less**2"),
        ("min(x for _, x in self.covered(found)) > LACKING * last", "min(x for _, x in self.covered(found)) < 0"),
        ("min(x for _, x in self.covered(found)) > LACKING * last", "max(x for _, x in self.covered(found)) >= 0"),
        ("near.min() > 0 and np.diagonal(found.gram)[rank:]", "np.diagonal(found.gram)[rank:]"),
        ("@ (1 / near) <= TIGHT * last", "@ (1 / near) > TIGHT * last"),
        ("small = sizes <= GOOD * found.values", "small = sizes <= found.values"),
        ("count = max(rank, int(np.argmin(small))", "count = max(1, int(np.argmin(small))"),
        ("leading = None if tight else turn[:, :count]", "leading = turn[:, :count]",
         "all columns of the turn leave the span as it is"),
        ("leading = None if tight else turn[:, :count]", "leading = None"),
        ("if after.draws == self.draws:", "if after.draws != self.draws:"),
        ("inside = np.eye(len(values)) if leading is None else leading", "inside = np.eye(len(values))[:, :count]"),
        ("spread=found.leading(count).coupling())", "spread=0.0)"),
        ("    PROBES: ClassVar[int] = 4\n", "    PROBES: ClassVar[int] = 2\n"),
        ("            yield len(found.values), 0.0\n            return\n",
         "            yield len(found.values), float(\"inf\")\n            return\n"),
        ("Q = U[:, sizes > smallest]", "Q = U[:, sizes >= 0]"),
        ("        P = P - S @ (S.T @ P)", "        P = P"),
    ]),
    ("methods/ritz.py", ROUNDED, [
        ("noises = noises if answer.lost is None else answer.lost", "noises = noises"),
        ("            return self.hidden, self.over", "            return 0.0, self.over"),
        ("return self.hidden, self.over * float(np.sqrt(len(self.values)))", "return self.hidden, 0.0"),
        ("return self.hidden, self.over * float(np.sqrt(len(self.values)))", "return self.hidden, self.over"),
        ("        over=total.over,\n", ""),
        ("if len(self.values) <= self.rank:", "if len(self.values) < self.rank:"),
        ("gap = float(last - following)", "gap = float(last)"),
        ("replace(found, gap=gap, blur=blur)", "replace(found, blur=blur)"),
        ("replace(found, gap=gap, blur=blur)", "replace(found, gap=gap)"),
        ("rounding.for_block(standing) * float(state.values[:1].sum())", "rounding.for_block(standing)"),
        ("self.rounding_errors(self.rank)[0])", "0.0)"),
        ("giving_up(float(values[most]) + blur, float(outer) + blur)", "giving_up(float(values[most]), float(outer) + blur)"),
        ("giving_up(float(values[most]) + blur, float(outer) + blur)", "giving_up(float(values[most]) + blur, float(outer))"),
        ("state = state if state.space.shape[1] else _as_sent(state, Q)", "state = state"),
        ("state = state if state.space.shape[1] else _as_sent(state, Q)", "state = _as_sent(state, Q)"),
        ("    return replace(state, inside=inside)\n", "    return state\n"),
        ("noises, blur = turned_noises(state.noises, turn), state", "noises, blur = state.noises, state"),
        ("noises = noises + turned_noises(state.noises, inside)", "noises = noises + 0"),
        ("return Q, product, noises @ np.abs(turn)", "return Q, product, noises"),
        ("return Q, product, noises @ np.abs(turn)", "return Q, product, noises @ turn"),
        ("product - state.space @ (state.projected @ inside) - state", "product - state"),
        ("np.maximum(ROUNDING * eps * state.values[0], noises[: R.shape[1]])", "ROUNDING * eps * state.values[0]"),
    ]),
    ("methods/ritz.py", SEARCH, [
        ("wide = min(max(wide, width), d)", "wide = min(width, d)"),
        ("wide = min(max(wide, width), d)", "wide = min(wide, d)"),
        ("kept = int((sizes > VANISHED * float(np.finfo(engine.dtype).eps) * sizes[:1].sum()).sum())",
         "kept = len(sizes)"),
        ("total.rest + float(np.square(sizes[kept:]).max(initial=0.0))",
         "float(np.square(sizes[kept:]).max(initial=0.0))"),
        ("missing = max(0, width - F.shape[1])", "missing = 0"),
        ("hidden if 0 <= hidden < np.inf else float(\"inf\")", "hidden"),
        ("hidden if 0 <= hidden < np.inf else float(\"inf\")", "0.0"),
        ("F.shape[1] * (hidden < np.inf)", "F.shape[1]"),
        ("np.pad(squares, (0, missing))[:count]", "np.pad(sizes[:kept], (0, missing))[:count]"),
        ("np.pad(squares, (0, missing))[:count]", "squares[:count]"),
        ("        hidden=hidden,\n        values=values,", "        values=values,"),
        ("if doubt is not None and hidden > kth / 2", "if doubt is not None and hidden < kth / 2"),
        ("kth = float(sizes[rank - 1] ** 2) if", "kth = float(sizes[0] ** 2) if"),
        ("and F.shape[1] < d:", "and F.shape[1] <= d:",
         "of a start that is all, what is hidden is rounding, far below any value"),
        ("return replace(state, inside=np.eye(F.shape[1]))", "return state"),
        ("H, noises[:rank] = state.projected.copy(), 0.0", "H, noises[:0] = state.projected.copy(), 0.0"),
        ("outer[:, :rank] = G - S @ inside", "outer[:, :rank] = G"),
        ("        if missed.shape[1]:  # they", "        if False:  # they"),
        ("if not Q.shape[1] and state.probe_block is None:", "if not Q.shape[1]:"),
        ("(most if state.probes is None else PROBED * most)", "most"),
        ("inside = Q.T @ state.outer", "inside = 0 * (Q.T @ state.outer)"),
        ("outer = np.hstack([state.outer - Q @ inside, outer])", "outer = np.hstack([state.outer, outer])"),
        ("    outer -= S @ (S.T @ outer)\n", "",
         "a second pass is for spaces that have lost orthogonality"),
        ("exact=(X, X * values[:width] + R)", "exact=(X, X * values[:width])"),
        ("gram=turn.T @ (outer.T @ outer) @ turn", "gram=outer.T @ outer"),
        ("if len(values) > most:", "if False:"),
        ("np.linalg.eigvalsh(state.gram[most:, most:])[-1]", "np.linalg.eigvalsh(state.gram[:most, :most])[-1]"),
        ("state.giving_up(float(values[most]) + blur,", "state.giving_up(float(values[-1]) + blur,"),
        ("    turn = turn[:, :most]\n", "    turn = turn[:, -most:]\n"),
        ("inside = turn[: len(state.inside)].T @ state.inside", "inside = turn[-len(state.inside) :].T @ state.inside"),
        ("- state.outer @ inside\n", "\n"),
        ("wide, model = wide or MERGED * rank,", "wide, model = MERGED * rank,"),
        ("wide, model = wide or MERGED * rank,", "wide, model = wide or rank,"),
        ("state = _turned(state, most // 2)", "state = _turned(state, most)"),
    ]),
    ("methods/ritz.py", MODEL, [
        ("min(before, state.rest + largest_outside(state.factor, S))", "min(before, state.rest)"),
        ("min(before, state.rest + largest_outside(state.factor, S))", "state.rest + largest_outside(state.factor, S)",
         "both are bounds; the one from before is the smaller one at most where columns were given up"),
        ("before = state.hidden if state.space.shape[1] else float(\"inf\")", "before = state.hidden"),
        ("factor = F * sizes[:kept] if hidden < np.inf else F[:, :0]", "factor = F * sizes[:kept]"),
        ("new = norms > np.maximum(floor, spared)", "new = norms > floor"),
        ("R = state.residuals[:, : state.block] if more else state.residuals",
         "R = state.residuals[:, : state.block]"),
        ("R = state.residuals[:, : state.block] if more else state.residuals", "R = state.residuals"),
        ("state.hidden if state.hidden < values[k - 1] else following", "following"),
        ("parts.append(corrected(R[:, new], values, state.factor, state.space))", "parts.append(R[:, new])"),
    ]),
    ("methods/model.py", MODEL, [
        ("if columns <= wide + 2 * width + 4 * rank", "if columns < wide + 2 * width + 4 * rank"),
        ("else max(wide, width)", "else wide"),
        ("(squares > LARGE * squares[rank - 1])", "(squares > squares[rank - 1])"),
        ("min(max(large, width), most, len(squares))", "min(max(large, width), len(squares))"),
        ("min(max(large, width), most, len(squares))", "min(large, most, len(squares))"),
        ("values - squares[:, None], LEAST * values)", "values - squares[:, None], 0.0)"),
        ("    apart[apart <= 0] = np.inf", "    apart[apart < 0] = np.inf"),
        ("found: Array = residuals + factor @ inside", "found: Array = residuals"),
        ("- inside.T @ inside\n", "\n"),
    ]),
    ("methods/local_ritz.py", MODEL, [
        ("if self.models:\n            return pairs", "if False:\n            return pairs"),
        ("whole = found == problem.rows <= kept", "whole = wide >= max(problem.sizes)"),
        ("whole = found == problem.rows <= kept", "whole = problem.rows <= kept"),
        ("kept = 2 * wide if self.models else wide", "kept = 2 * wide"),
        ("kept = 2 * wide if self.models else wide", "kept = wide"),
        ("if self.start != \"merged\" or not self.models:", "if not self.models:"),
        ("if self.start != \"merged\" or not self.models:", "if self.start != \"merged\":"),
        ("return self.proposal == \"model\"", "return False"),
    ]),
    ("methods/local_ritz.py", AT_ONCE, [
        ("first = self.wide(rank, width, columns) if merged else width", "first = width"),
        ("max(first, later)", "first"),
        ("later = blocks * width + (", "later = width + ("),
        ("(steps > 0) * (width + 1)", "(steps > 0) * width"),
    ]),
    ("methods/local_ritz.py", ("tests/test_planning.py", "-k", "random_start"), [
        ("(blocks + 2 * (steps > 0)) * block", "blocks * block"),
        ("(blocks + (steps > 0)) * block", "blocks * block"),
        ("if steps and not problem.only_sums:", "if False:"),
        ("if steps and not problem.only_sums:", "if steps:"),
    ]),
    ("methods/base.py", AT_ONCE, [
        ("return width + self.state_type.PROBES * self.sends_probes", "return width"),
        ("return width + self.state_type.PROBES * self.sends_probes",
         "return width + 2 * self.sends_probes"),
    ]),
    ("methods/block_lanczos.py", AT_ONCE, [
        ("return max(width, self._block(width) + self.state_type.PROBES)",
         "return width + self.state_type.PROBES"),
    ]),
    ("methods/block_lanczos.py", ("tests/core/test_block_lanczos.py", "-k", "wider"), [
        ("return (self,) if self.block else (self, replace(", "return (self,) if 1 else (replace("),
        ("return min(self.block or BLOCK, most)", "return min(BLOCK, most)"),
        ("return min(self.block or BLOCK, most)", "return self.block or BLOCK"),
    ]),
    ("methods/local_power.py", ("tests/test_planning.py", "-k", "no_method_asks"), [
        (".widest(columns, rank, width) + width", ".widest(columns, rank, width)"),
        ("return 2 * width  #", "return width  #"),
    ]),
    ("methods/randomized.py", ("tests/test_planning.py", "-k", "no_method_asks"), [
        ("return 2 * sketch_width(", "return sketch_width("),
    ]),
    ("methods/costs.py", (FEDERATION("only_sums"), "-k", "a_plan_has"), [
        ("    if problem.only_sums:\n        methods", "    if False:\n        methods"),
    ]),
    ("planning.py", (FEDERATION("only_sums"), "-k", "a_plan_has"), [
        ("only_sums=place.only_sums,", "only_sums=False,"),
    ]),
    ("methods/auto.py", REFUSING, [
        ("return True", "return False"),
    ]),
    ("methods/scaling.py", ("tests/test_planning.py", "-k", "not_finite"), [
        ("if stats.bad is not None:", "if False:"),
    ]),
    ("methods/local_ritz.py", STOPPING, [
        ("certifies: ClassVar[bool] = True", "certifies: ClassVar[bool] = False"),
        ("sends_probes: ClassVar[bool] = True", "sends_probes: ClassVar[bool] = False"),
        ("if name not in STARTS or (colon", "if (colon"),
        ("(colon and (name != \"merged\" or not count.isdecimal()))", "(colon and not count.isdecimal())"),
        ("(colon and (name != \"merged\" or not count.isdecimal()))", "(colon and name != \"merged\")"),
        ("(colon and (name != \"merged\" or not count.isdecimal()))",
         "(name != \"merged\" or not count.isdecimal())"),
        ("return name, int(count or 0)", "return name, 0"),
    ]),
    ("methods/block_lanczos.py", STOPPING, [
        ("certifies: ClassVar[bool] = True", "certifies: ClassVar[bool] = False"),
        ("sends_probes: ClassVar[bool] = True", "sends_probes: ClassVar[bool] = False"),
    ]),
    ("methods/ritz_grown.py", GROWN, [
        ("hidden = state.hidden + float(state.values[enough])", "hidden = state.hidden"),
        ("complete = state.hidden <= COMPLETE", "complete = state.hidden < 0 * COMPLETE"),
    ]),
    ("methods/growing.py", GROWN, [
        ("found = state.seen()", "found = state.ritz()"),
    ]),
    ("methods/block_lanczos.py", LANCZOS, [
        ("None if self.space.shape[1] < self.basis.shape[1] else",
         "None if self.space.shape[1] <= self.basis.shape[1] else"),
        ("        R = self.joint @ turn[-self.joint.shape[1] :]\n        return",
         "        R = self.joint @ turn[: self.joint.shape[1]]\n        return"),
        ("return Ritz(values, R[:, : self.basis.shape[1]], R.T @ R)",
         "return Ritz(values, R[:, -self.basis.shape[1] :], R.T @ R)"),
        ("return Ritz(values, R[:, : self.basis.shape[1]], R.T @ R)",
         "return Ritz(values, R[:, : self.basis.shape[1]], np.diag(np.square(R).sum(axis=0)))"),
        ("if not Q.shape[1] and probes is None:", "if not Q.shape[1]:"),
        ("PowerSteps(Q, 1, probes=probes)", "PowerSteps(Q, 1)"),
        ("        for _ in range(2):\n            inside", "        for _ in range(1):\n            inside"),
        ("H[:, c - b :] += inside", "H[:, c - b :] = inside"),
        ("ROUNDING * eps * float(values[0]), eps)", "0.0, eps)",
         "columns of the size of rounding are multiplied for nothing, and their residuals are small"),
        ("probes=learnt,\n            space=S", "probes=state.probes,\n            space=S"),
        ("ended = not left.shape[1] and c < width", "ended = False"),
        ("and (ended or _repeated(state, rank, eps)):", "and (ended):"),
        ("np.hstack([left, start[:, state.block :]])", "left"),
        ("RESTART * width * (1 if state.probes is None else PROBED)", "RESTART * width"),
        ("if c + state.following.shape[1] > most:", "if False:"),
        ("turn[:, : RESTART * width // 2])", "turn[:, -(RESTART * width // 2) :])"),
        ("turn[:, : RESTART * width // 2])", "turn[:, :width])"),
        ("state.missed(rank + 1), state.space, MISSED)", "state.missed(rank + 1)[:, :0], state.space, MISSED)"),
        ("np.hstack([state.following, missed])", "missed"),
        ("following=wider, probes=None)", "following=wider)"),
        ("min(int((sizes > floor).sum()), S.shape[0] - S.shape[1])", "int((sizes > floor).sum())",
         "what is left of a product by a space that is all is below the floor"),
        ("return U[:, :count], sizes[:, None] * Vt", "return U[:, :count], sizes[:, None] * Vt * 0.1"),
        ("apart = state.block - 1", "apart = state.block"),
        ("<= RIPE * values", "<= 0 * values"),
        ("(last >= (1 - SAME) * first)", "(last >= first)"),
        ("(1 - SAME) * first) & (first > ROUNDING * eps * values[0])", "(1 - SAME) * first)"),
        ("return bool((same & ripe[apart:][:rank]).any())", "return bool((same & ripe[apart:][:rank]).all())"),
        ("if found is not None and len(values) > kept:", "if False:"),
        ("found.gram[kept:, kept:]", "found.gram[:kept, :kept]"),
        ("state.giving_up(float(values[kept]), float(coupling))", "state.giving_up(float(values[-1]), float(coupling))"),
        ("state.giving_up(float(values[kept]), float(coupling))", "state.giving_up(float(values[kept]), 0.0)"),
        ("inside=turn[: len(state.inside)].T @ state.inside", "inside=turn[-len(state.inside) :].T @ state.inside"),
        ("joint=state.joint @ turn[-state.joint.shape[1] :],", "joint=state.joint @ turn[: state.joint.shape[1]],"),
        ("projected=np.diag(values),", "projected=np.diag(values[::-1]),"),
    ]),
    ("methods/local_power.py", STATES, [
        ("if exact is None or (state.noises.any() and state.probes is None):", "if exact is None:"),
        ("if state.missed(rank).shape[1]:", "if False:"),
        ("return replace(after, base=exact) if after.draws > state.draws else after", "return after"),
        ("if state.probes is None or state.base is None or state.exact is None:\n        return replace(state, base=None, joined=None, lacking=0.0)",
         "if state.probes is None or state.base is None or state.exact is None:\n        return state"),
        ("apart = min(int((sizes > APART).sum()), len(X) - X.shape[1])", "apart = min(len(sizes), len(X) - X.shape[1])"),
        ("apart = min(int((sizes > APART).sum()), len(X) - X.shape[1])", "apart = 0"),
        ("np.hstack([G, (image - G @ inside) @ more])", "np.hstack([G, image @ more])"),
        ("more = Vt[:apart].T / sizes[:apart]", "more = Vt[:apart].T"),
        ("less = float(sizes[apart:].max(initial=0.0))", "less = float(sizes[apart:].min(initial=0.0))"),
        ("np.linalg.norm(image - Z @ (Z.T @ image), 2)", "np.linalg.norm(image - Z @ (Z.T @ image), axis=0).min()"),
        ("lacking = 2 * coupling * less + float(values[0]) * less**2", "lacking = 2 * coupling * less"),
        ("lacking = 2 * coupling * less + float(values[0]) * less**2", "lacking = float(values[0]) * less**2"),
        ("lacking = 2 * coupling * less + float(values[0]) * less**2", "lacking = 0.0"),
        ("added = noises @ np.abs(inside @ more)", "added = 0 * sizes[:apart]"),
        ("added += ROUNDING * eps * float(values[0]) / sizes[:apart]", "added += 0.0"),
        ("added += ROUNDING * eps * float(values[0]) / sizes[:apart]", "added += ROUNDING * eps / sizes[:apart]"),
        ("noises = np.append(noises, added) @ np.abs(turn)", "noises = np.append(noises, added)"),
        ("noises = np.append(noises, added) @ np.abs(turn)", "noises = np.append(noises, added) @ turn"),
        ("np.linalg.solve(R.T, image.T).T", "np.linalg.solve(R, image.T).T"),
        ("if noise > tolerable and reference is not None:", "if reference is not None:"),
        ("noise *= float(np.linalg.norm(Z[:, :k], 2))", "noise *= 0.0"),
        ("noise *= float(np.linalg.norm(Z[:, :k], 2))", "noise *= 1.0"),
        ("    if noise > tolerable:\n", "    if False:\n"),
        ("from_wire(answer.product) + image)", "from_wire(answer.product))"),
        ("reference=reference if name else (X, Y),", "reference=(X, Y),"),
        ("noises=lost_of(answer, turn @ ritz)", "noises=np.zeros(0)"),
        ("noises=lost_of(answer, turn @ ritz)", "noises=lost_of(answer, turn)"),
        ("noises=lost_of(answer, turn @ ritz)", "noises=lost_of(answer, ritz)",
         "what was sent is orthonormal but for rounding, so that the turn changes signs alone"),
        ("answer.lost @ np.abs(turn)", "answer.lost @ turn"),
        ("replace(reply, product=product, basis=None)", "replace(reply, product=product, basis=None, lost=None)"),
        ("known, noises = (Q, image), lost_of(total, turn)", "known, noises = (Z, first), lost_of(total, turn)"),
        ("known, noises = (Q, image), lost_of(total, turn)", "known = Q, image"),
        ("noise = UNITS[name]\n", "noise = 0.0\n"),
        ("rounding.standing(state.exact, state.rounding_errors(k)[0])", "rounding.standing(state.exact, 0.0)",
         "it is more exact by then: only the type of a message is chosen, and what that does is measured"),
    ]),
    ("methods/local_power.py", STOPPING, [
        ("    sends_probes: ClassVar[bool] = True\n    planned", "    planned"),
        ("    sends_probes: ClassVar[bool] = True\n    compared", "    compared"),
    ]),
    ("methods/rounding.py", PRECISION, [
        ("found.residuals[:, : self.rank]", "found.residuals"),
        ("floor = max(ROUNDING * self.eps, noise / top)", "floor = ROUNDING * self.eps"),
        ("floor = max(ROUNDING * self.eps, noise / top)", "floor = noise / top"),
        ("least = float(values[self.rank]) if len(values) > self.rank else 0.0", "least = 0.0"),
        ("float(np.linalg.norm(R, 2)) - least) / top", "0.0 - least) / top"),
        ("float(np.linalg.norm(R, 2)) - least) / top", "float(np.linalg.norm(R, 2)) - least)"),
        ("np.linalg.norm(R, axis=0).max()) / top", "np.linalg.norm(R, axis=0).min()) / top"),
        ("Standing(max(largest, floor), gap, noise / top)", "Standing(largest, gap, noise / top)"),
        ("Standing(max(largest, floor), gap, noise / top)", "Standing(max(largest, floor), gap, noise)"),
        ("        if found is None:\n            return 1.0\n", "        if found is None:\n            return 0.0\n"),
        ("max(found.residual / SAFETY, self.tol", "max(found.residual, self.tol"),
        ("max(found.residual / SAFETY, self.tol", "min(found.residual / SAFETY, self.tol"),
        ("self.tol * found.gap / (2 * self.spread))", "self.tol / (2 * self.spread))"),
        ("self.tol * found.gap / (2 * self.spread))", "self.tol * found.gap / self.spread)"),
        ("self.tol * found.gap / (2 * self.spread))", "self.tol * found.gap / 2)"),
        ("found.noise > 0 and found.residual <= 2 * found.noise", "found.noise > 0 and found.residual <= found.noise"),
        ("found.noise > 0 and found.residual <= 2 * found.noise", "found.residual <= 2 * found.noise"),
        ("min(1.0, self.residual / self.gap)", "self.residual / self.gap"),
        ("min(1.0, self.residual / self.gap)", "min(1.0, self.residual)"),
        ("max(self.tol * found.gap, ROUNDING * self.eps) / (2 * found.part)", "max(self.tol, ROUNDING * self.eps) / (2 * found.part)"),
        ("max(self.tol * found.gap, ROUNDING * self.eps) / (2 * found.part)", "self.tol * found.gap / (2 * found.part)"),
        ("max(self.tol * found.gap, ROUNDING * self.eps) / (2 * found.part)", "max(self.tol * found.gap, ROUNDING * self.eps) / found.part"),
        ("max(self.tol * found.gap, ROUNDING * self.eps) / (2 * found.part)", "max(self.tol * found.gap, ROUNDING * self.eps) / 2"),
        ("most = min(self.wanted(found), SHARP * found.gap)", "most = self.wanted(found)"),
        ("most = min(self.wanted(found), SHARP * found.gap)", "most = SHARP * found.gap"),
        ("most / (2 * math.sqrt(self.rank) * self.shards)", "most / (2 * math.sqrt(self.rank))"),
        ("most / (2 * math.sqrt(self.rank) * self.shards)", "most / (2 * self.shards)"),
        ("most / (2 * math.sqrt(self.rank) * self.shards)", "most / (math.sqrt(self.rank) * self.shards)"),
        ("max(WHOLE * self.tol, self.eps) / 2 if whole else COARSE[self.name]", "COARSE[self.name]"),
        ("max(WHOLE * self.tol, self.eps) / 2 if whole else COARSE[self.name]", "self.tol / 2 if whole else COARSE[self.name]"),
        ("max(coarse, min(self.wanted(found), 1.0) / SAFETY**2)", "coarse"),
        ("max(coarse, min(self.wanted(found), 1.0) / SAFETY**2)", "max(coarse, self.wanted(found) / SAFETY**2)"),
        ("found.residual / SAFETY**3", "found.residual"),
        ("found.residual <= self.tol * found.gap and BLURRED * found.blur > found.gap", "False"),
        ("found.residual <= self.tol * found.gap and BLURRED * found.blur > found.gap", "BLURRED * found.blur > found.gap"),
        ("found.residual <= self.tol * found.gap and BLURRED * found.blur > found.gap", "found.residual <= self.tol * found.gap"),
        ("return self.rank if self.limits(found) else 0", "return 0"),
        ("return math.sqrt(self.shards * self.rank)", "return math.sqrt(self.rank)"),
        ("return math.sqrt(self.shards * self.rank)", "return math.sqrt(self.shards)"),
    ]),
    ("core/rounding.py", PRECISION, [
        ("    if sent.dtype == A.dtype:\n        return sent, None\n", ""),
        ("bits + 0x7FFF + ((bits >> 16) & 1)", "bits"),
        ("bits + 0x7FFF + ((bits >> 16) & 1)", "bits + 0x8000"),
        ("\"float32\": 2.0**-24", "\"float32\": 2.0**-23"),
        ("math.isfinite(np.einsum(\"i->\", A.reshape(-1))) or", "math.isfinite(np.einsum(\"i->\", A.reshape(-1))) and"),
        ("or bool(np.isfinite(A).all())", "or bool(np.isfinite(A).any())"),
        ("unit = 2 * np.minimum(", "unit = 8 * np.minimum("),
        ("unit = 2 * np.minimum(", "unit = 2**-8 * np.minimum("),
        ("most) / math.sqrt(max(d, 1))", "most)"),
        ("np.maximum(-(-(high - low + 1) // 8), 1), 1)", "np.maximum((high - low + 1) // 8, 1), 1)"),
        ("fits = np.isfinite(most).all() and", "fits ="),
        ("and (widths <= WIDEST).all()\n", "\n"),
        ("np.minimum(whole, (np.int64(1) << (8 * widths - 1)) - 1)", "whole"),
        ("np.rint(np.ldexp(wide, -exponents))", "np.floor(np.ldexp(wide, -exponents))"),
        ("    if A.ndim != 1 or len(A) < 2 * HEAD.itemsize:\n", "    if A.ndim != 1:\n"),
        ("    if A.ndim != 1 or len(A) < 2 * HEAD.itemsize:\n", "    if len(A) < 2 * HEAD.itemsize:\n"),
        ("known = ((widths > 0) & (widths <= WIDEST)).all()", "known = (widths > 0).all()"),
        ("known = ((widths > 0) & (widths <= WIDEST)).all()", "known = (widths <= WIDEST).all()"),
        ("known and len(A) == start", "len(A) == start"),
        ("    if not shape_of(A):\n", "    if False:\n"),
        (">> (64 - 8 * width)", ">> (56 - 8 * width)"),
    ]),
    ("methods/base.py", PRECISION, [
        ("if 2 * UNITS[wire] <= eps:", "if 2 * UNITS[wire] < eps:"),
        ("WireRounding(wire, self.rank, self.tol, eps, len(engine.rows))",
         "WireRounding(wire, self.rank, self.tol, eps)"),
        ("WireRounding(wire, self.rank, self.tol, eps, len(engine.rows))",
         "WireRounding(wire, self.rank, 0.0, eps, len(engine.rows))"),
        ("min(rank + EXTRA, most) if certified or self.certifies else rank",
         "min(rank + EXTRA, most) if certified else rank"),
    ]),
    ("methods/exact.py", EXACT, [
        ("count = min(rank + 1, len(G))", "count = rank"),
        ("hidden=hidden, summed=True)", "summed=True)"),
        ("limit = (1 + NEARLY) * least + rounding", "limit = (1 - NEARLY) * least + rounding"),
        ("limit = (1 + NEARLY) * least + rounding", "limit = 2 * least + rounding"),
        ("(image - X @ (X.T @ image) / 2) @ X.T", "(image - X @ (X.T @ image)) @ X.T"),
        ("E += E.T - G", "E += E.T + G"),
        ("E[np.diag_indices_from(E)] += limit", "E[np.diag_indices_from(E)] += 1e9"),
        ("return X, limit + rounding", "return X, 0.0"),
        ("float(values[::-1][count]) if count < len(G) else 0.0", "0.0"),
        ("float(values[::-1][count]) if count < len(G) else 0.0", "float(values[::-1][-1])"),
        ("certify_factor(self.sizes, rank, known.eps), known.noise",
         "certify_factor(self.sizes, rank, 0.0), known.noise"),
        ("certify_factor(self.sizes, rank, known.eps), known.noise",
         "certify_factor(self.sizes, rank, known.eps), 0.0"),
        ("        if not noise:\n            return found\n",
         "",
         "without noise nothing is added to what was found: the same certificate is made"),
        ("squares = np.square(self.sizes)", "squares = self.sizes"),
        ("last = float(squares[rank - 1])", "last = float(squares[0])"),
        ("last - float(squares[rank]) if rank < len(squares) else float(\"inf\")",
         "last if rank < len(squares) else float(\"inf\")"),
        ("last - float(squares[rank]) if rank < len(squares) else float(\"inf\")",
         "last - float(squares[rank]) if rank < len(squares) else last"),
        ("rounding = ROUNDING * known.eps * self.sizes[0]", "rounding = 0.0"),
        ("(squares[:rank] <= noise) |", "(squares[:rank] < noise) |"),
        ("(squares[:rank] <= noise) |", "False |"),
        ("(self.sizes[:rank] <= rounding)", "(self.sizes[:rank] < rounding)"),
        ("(self.sizes[:rank] <= rounding)", "False"),
        ("np.where(zeros, max(float(squares[0]), noise), squares[:rank])", "squares[:rank]"),
        ("np.where(zeros, max(float(squares[0]), noise), squares[:rank])",
         "max(float(squares[0]), noise)"),
        ("max(float(squares[0]), noise), squares", "float(squares[0]), squares"),
        ("np.where(zeros, found.residuals[0], found.residuals)", "found.residuals"),
        ("np.where(zeros, found.residuals[0], found.residuals)", "found.residuals[0]"),
        ("angle=min(1.0, found.angle + noise / apart) if apart > 0 else 1.0", "angle=found.angle"),
        ("angle=min(1.0, found.angle + noise / apart) if apart > 0 else 1.0",
         "angle=found.angle + noise / apart if apart > 0 else 1.0"),
        ("angle=min(1.0, found.angle + noise / apart) if apart > 0 else 1.0",
         "angle=min(1.0, noise / apart) if apart > 0 else 1.0"),
        ("if apart > 0 else 1.0", "if apart > 0 else found.angle", "values that are equal have an angle of 1 already"),
        ("residuals=errors + noise / units", "residuals=errors"),
        ("residuals=errors + noise / units", "residuals=noise / units"),
        ("gap=0.0 if zeros[-1] else found.gap", "gap=found.gap"),
        ("vanishing=bool(zeros[-1])", "vanishing=False"),
        ("vanishing=bool(zeros[-1])", "vanishing=found.vanishing"),
        ("pad_basis(vectors[:, ::-1][:, :count], count)", "pad_basis(vectors[:, :count], count)"),
    ]),
    ("methods/exact.py", STOPPING, [
        ("exact: ClassVar[bool] = True", "exact: ClassVar[bool] = False"),
        ("squares: ClassVar[bool] = True", "squares: ClassVar[bool] = False"),
    ]),
    ("worker/replies.py", MERGED, [
        ("self.rest + other.rest, self.over", "max(self.rest, other.rest), self.over"),
        ("self.rest + other.rest, self.over", "self.rest, self.over"),
        ("for F in (self.factor, other.factor)]", "for F in (self.factor, self.factor)]"),
        ("self.rest + other.rest, self.over + other.over", "self.rest + other.rest, self.over"),
        ("lost, self.width, self.over)", "lost, self.width)"),
        ("return both if both.factor.shape[1] <= self.width else both.cut(self.width)",
         "return both if both.factor.shape[1] < self.width else both.cut(self.width)"),
        ("return both if both.factor.shape[1] <= self.width else both.cut(self.width)", "return both"),
        ("max(float(squares[left - 1]), 0.0) if left > 0", "max(float(squares[left - 1]), 0.0) ** 0.5 if left > 0"),
        ("max(float(squares[left - 1]), 0.0) if left > 0", "max(float(squares[0]), 0.0) if left > 0"),
        ("if left > 0 else 0.0", "if left > 1 else 0.0"),
        ("lost = ROUNDING * np.finfo(np.float64).eps * float(squares[-1:].sum())", "lost = 0.0"),
        ("F @ V[:, ::-1][:, :width]", "F @ V[:, :width]"),
        ("self.rest + dropped + lost", "dropped + lost"),
        ("self.rest + dropped + lost", "self.rest + lost"),
        ("self.rest + dropped + lost", "max(self.rest, dropped) + lost"),
    ]),
    ("worker/tasks.py", MERGED, [
        ("rest + changed, self.most, changed)", "rest + changed, self.width, changed)"),
        ("rest + changed, self.most, changed)", "rest, self.most, changed)"),
        ("rest + changed, self.most, changed)", "rest + changed, self.most)"),
        ("self.loss * top**2 / np.maximum(sizes,", "self.loss * top / np.maximum(1.0,"),
        ("half + half.T + D @ D.T)[[0, -1]]", "half + half.T)[[0, -1]]"),
        ("half + half.T + D @ D.T)[[0, -1]]", "half + half.T + D @ D.T)[[-1, -1]]"),
        ("half + half.T + D @ D.T)[[0, -1]]", "half + half.T + D @ D.T)[[0, 0]]"),
        ("float(np.abs(ends).max()) + rounding", "float(np.abs(ends).max())"),
    ]),
    ("worker/local_matrix.py", MERGED, [
        ("count = min(width, rows, d)\n        if d", "count = min(width, d)\n        if d"),
        ("rounding = ROUNDING * self.rounding * top\n", "rounding = 0.0\n"),
        ("kept = values[:count] > rounding", "kept = values[:count] > -1"),
        ("rest = float(values[count:][:1].sum()) if kept.all() else rounding", "rest = 0.0"),
        ("rest = float(values[count:][:1].sum()) if kept.all() else rounding", "rest = float(values[-1:].sum())"),
        ("vectors[:, :count][:, kept] * np.sqrt(values[:count][kept])", "vectors[:, :count][:, kept]"),
        ("max(rest, 0.0) + rounding", "max(rest, 0.0)"),
        ("vectors = A.T @ (left[:, :count] / sizes[:count])", "vectors = A.T @ left[:, :count]"),
        ("rounding = ROUNDING * self.rounding * float(values[:1].sum())\n        kept", "rounding = 0.0\n        kept"),
        ("image @ (turn[:, kept] / np.sqrt(values[kept]))", "image @ turn[:, kept]"),
        ("F = P[:, :count] * sizes[:count]", "F = P[:, :count]"),
        ("max(self.trace() - float(np.square(sizes[:count]).sum()), 0.0)", "0.0"),
        ("max(self.trace() - float(np.square(sizes[:count]).sum()), 0.0)",
         "max(self.trace() - float(values.sum()), 0.0)"),
        ("max(self.trace() - float(np.square(sizes[:count]).sum()), 0.0)",
         "max(self.trace() - float(np.square(sizes).sum()), 0.0)"),
        ("max(self.trace() - float(np.square(sizes[:count]).sum()), 0.0)",
         "self.trace() - float(np.square(sizes[:count]).sum())"),
        ("self.dtype), left + rounding", "self.dtype), left"),
        ("squares += shift * (block.shape[0] * shift - 2 * sums)", "squares += shift * (block.shape[0] * shift - sums)"),
        ("for rows in shifted(block, shift, self.dtype):\n                    squares", "for rows in shifted(block, None, self.dtype):\n                    squares"),
        ("return float((squares * np.square(self.factor)).sum())", "return float(squares.sum())"),
    ]),
    ("worker/shifting.py", EARLY, [
        ("NEAR = 4.0", "NEAR = 1e12"),
        ("NEAR = 4.0", "NEAR = 1e-9"),
        ("least = max(least, float(u @ G @ u))", "pass"),
        ("for vector in (mean * factor, (mean - shift) * factor):", "for vector in (mean * factor,):"),
        ("for vector in (mean * factor, (mean - shift) * factor):",
         "for vector in (mean, (mean - shift) * factor):"),
        ("for vector in (mean * factor, (mean - shift) * factor):",
         "for vector in ((mean - shift) * factor,):"),
        ("cross = rows * np.outer(mean - shift / 2, shift)", "cross = rows * np.outer(mean, shift)"),
    ]),
    ("worker/grams.py", EARLY, [
        ("variance = np.maximum(square - mean**2, 0.0)", "variance = square - mean**2"),
        ("near = (mean**2 / variance).sum() <= 1", "near = True"),
    ]),
    ("worker/local_matrix.py", EARLY, [
        ("origin, dtype=np.float64) + rest", "origin, dtype=np.float64)"),
        ("ahead is None or np.any(self.exponent) or", "ahead is None or"),
        ("or (ahead[0] is None) != (self.shift is None):", ":"),
        ("origin, G = ahead[0], ahead[1].copy()", "origin, G = ahead"),
        ("self._streamed and self._shifts_later and self._may_keep_gram",
         "self._streamed and self._shifts_later"),
        ("self._streamed and self._shifts_later and self._may_keep_gram", "False"),
        ("self._gram = G if self._gram_wanted or self._may_keep_gram else None", "self._gram = G"),
        ("return G if keeps_digits(G, self.shape[0], mean, shift, self.factor) else None", "return G"),
        ("return G if keeps_digits(G, self.shape[0], mean, shift, self.factor) else None", "return None"),
        ("and 8 * self.shape[1] ** 2 <= self._shard.spare", ""),
    ]),
    ("worker/moments.py", MOMENTS, [
        ("if not self.rows:  # a sum", "if False:  # a sum"),
        ("checksum=joined(self.checksum, other.checksum, other.rows))\n        a, b",
         "checksum=self.checksum)\n        a, b"),
        ("checksum=joined(self.checksum, other.checksum, other.rows))\n        a, b",
         "checksum=other.checksum)\n        a, b",
         "what has no rows adds nothing to a checksum, and all or none of the statistics have one"),
        ("b.mean - a.mean + (b.rest - a.rest)", "b.mean - a.mean"),
        ("step = share * delta + a.rest", "step = share * delta"),
        ("rest=step - (mean - a.mean) if", "rest=0.0 * step if"),
        ("m2 = a.m2 + b.m2 + self.rows * share * delta**2", "m2 = a.m2 + b.m2"),
        ("bad=(self.rows + other.bad[0], other.bad[1])", "bad=other.bad"),
    ]),
    ("checkpoint.py", CHECKPOINT, [
        ("stream.write(MAGIC + hashlib.sha256(body).digest())", "stream.write(MAGIC + hashlib.sha256(b\"\").digest())"),
        ("if not start.startswith(MAGIC):", "if False:"),
        ("if hashlib.sha256(body).digest() != start[len(MAGIC) :]:", "if False:"),
        ("other = [k for k in known if known[k] != description[\"identity\"].get(k)]", "other = []"),
        ("\"reason\": point.reason,", "\"reason\": None,"),
        ("\"history\": [asdict(record) for record in point.history],", "\"history\": [],"),
        ("\"records\": [asdict(record) for record in point.records],", "\"records\": [],"),
        ("if isinstance(value, int | float):", "if isinstance(value, float):"),
        ("        elif isinstance(value, Probes):\n            _flatten(value, f\"{name}.\", arrays, numbers)\n", ""),
        ("tuple(map(inner.get, sorted(inner)))", "tuple(map(inner.get, sorted(inner)[::-1]))"),
        ("inner |= {key.partition(\".\")[2]: x for", "inner |= {key.partition(\".\")[2]: 0 for"),
        ("found.update(repr((part.dtype.str, part.shape)).encode())", "found.update(b\"\")"),
    ]),
    ("checkpoint.py", RELAYED, [
        ("state=methods[leg].state_type(", "state=methods[0].state_type("),
    ]),
    ("iteration.py", RELAYED, [
        ("del legs[: past.leg]", "pass"),
        ("(past.over or not method.iterates) and", "(not method.iterates) and"),
        ("(past.over or not method.iterates) and", "past.over and"),
        ("first = 1 + len(choice.others) - len(legs)", "first = 0"),
    ]),
    ("checkpoint.py", STOPPING, [
        ("if self.where is None or self.missing:", "if self.where is None:"),
        ("state.round % self.where.every == 0 or ends", "state.round % self.where.every == 0"),
        ("state.round % self.where.every == 0 or ends", "state.round % self.where.every == 1 or ends"),
        ("final = point.reason is not None and REASONS[point.reason].final", "final = point.reason is not None"),
        ("final = point.reason is not None and REASONS[point.reason].final", "final = False"),
        ("if self.where is None or not self.where.resume or not", "if self.where is None or not"),
    ]),
    ("engines/participation.py", PARTICIPATION, [
        ("question.basis if reply.basis is None else reply.basis", "question.basis"),
        ("np.array(from_wire(reply.product))", "from_wire(reply.product)"),
        ("isinstance(question, PowerSteps) and self._pairs.keys() >= set(numbers)", "isinstance(question, PowerSteps)"),
        ("isinstance(question, PowerSteps) and self._pairs.keys() >= set(numbers)", "self._pairs.keys() >= set(numbers)"),
        ("Y_old @ (Z_old.T @ Z)", "Y_old"),
        ("Y_old @ (Z_old.T @ Z)", "Y_old @ (Z.T @ Z_old)"),
        ("Z if question.send_basis else None, stale=True", "Z if question.send_basis else None, stale=False"),
        ("        self.used += 1\n", ""),
        ("            if self._last is not None and self._last.covers(task, owing):\n                break\n", ""),
        ("            if self._last is not None and self._last.covers(task, owing):\n", "            if self._last is not None:\n"),
        ("owing = [n for n in owing if n not in replies]", "owing = []"),
        ("drawn = self._rng.random(len(numbers)) < self._rate", "drawn = self._rng.random(len(numbers)) < 0.9"),
        ("drawn = self._rng.random(len(numbers)) < self._rate", "drawn = np.arange(len(numbers)) < self._rate * len(numbers)"),
        ("        drawn[self._rng.integers(len(numbers))] |= not drawn.any()\n", ""),
        ("drawn[self._rng.integers(len(numbers))] |= not drawn.any()", "drawn[self._rng.integers(len(numbers))] = True"),
    ]),
    ("engines/retrying.py", PARTICIPATION, [
        ("LastProducts() if keep or on_loss != \"stop\" else None", "LastProducts() if on_loss != \"stop\" else None"),
        ("gone = frozenset() if self._on_loss == \"reuse\" else self.missing", "gone = self.missing"),
        ("key=self.missing.__contains__)", "key=abs)"),
        ("            if not self._again(left, fault, attempt, task):\n                break\n", "            self._again(left, fault, attempt, task)\n"),
        ("left = left[1:] + left[:1]", "left = left"),
        ("reuse = self._on_loss == \"reuse\" and self._covered(task, shards)", "reuse = self._on_loss == \"reuse\""),
        ("reuse = self._on_loss == \"reuse\" and self._covered(task, shards)", "reuse = self._covered(task, shards)"),
        ("known = reuse and self.missing.issuperset(shards)", "known = self.missing.issuperset(shards)"),
        ("known = reuse and self.missing.issuperset(shards)", "known = False"),
        ("if not last or reuse:", "if not last:"),
        ("self.answered[number] += 1", "self.answered[number] = 1"),
        ("            self.missing.remove(number)\n", ""),
        ("replace(stand_in, stale=self._on_loss == \"reuse\")", "replace(stand_in, stale=False)"),
        ("first = min(fault.round for fault in lost)", "first = max(fault.round for fault in self.faults)"),
    ]),
    ("methods/local_power.py", PARTICIPATION, [
        ("    if total.stale:\n        return None\n", ""),
        ("probes=None if total.stale else state.learnt(probes, total.probes)", "probes=state.learnt(probes, total.probes)"),
        ("replace(reply, product=product, basis=None)", "replace(reply, product=product, basis=None, stale=False)"),
        ("return self.wire == \"float64\" and self.schedule != \"adaptive\"", "return self.wire == \"float64\""),
        ("return self.wire == \"float64\" and self.schedule != \"adaptive\"", "return self.schedule != \"adaptive\""),
        ("        return self.wire == \"float64\"\n", "        return True\n"),
    ]),
    ("worker/replies.py", PARTICIPATION, [
        ("stale=self.stale or other.stale,", "stale=self.stale,"),
        ("stale=self.stale or other.stale,", "stale=other.stale,"),
    ]),
    ("engines/ledgered.py", PARTICIPATION, [
        ("exchange=count < len(self.rows) and not self.sampled,", "exchange=count < len(self.rows),"),
    ]),
    ("shape_checks.py", PARTICIPATION, [
        ("on_loss != \"stop\"\n", "on_loss == \"degrade\"\n"),
        ("leave it out\": part < 1,", "leave it out\": False,"),
        ("(shares or not method.reuses)", "not method.reuses"),
        ("(shares or not method.reuses)", "shares"),
        ("found = method.reuses and not shares", "found = method.reuses"),
        ("if found and checkpoint and faults.participation < 1:", "if found and checkpoint:"),
        ("if found and checkpoint and faults.participation < 1:", "if checkpoint and faults.participation < 1:"),
    ]),
    ("stopping.py", PARTICIPATION, [
        ("if tol and stale and found is None and reason != \"callback\":", "if False:"),
        ("if tol and stale and found is None and reason != \"callback\":", "if tol and stale and reason != \"callback\":"),
        ("if tol and stale and found is None and reason != \"callback\":", "if tol and stale and found is None:"),
        ("if tol and stale and found is None and reason != \"callback\":", "if stale and found is None and reason != \"callback\":"),
        ("if tol and stale and found is None and reason != \"callback\":", "if tol and found is None and reason != \"callback\":"),
    ]),
    ("run.py", PARTICIPATION, [
        ("self.retrying.last if self.reuses else None", "self.retrying.last"),
        ("        self.retrying.answered.clear()\n", ""),
        ("\"reach\": None, \"certificate\": None", "\"reach\": None"),
    ]),
    ("federation/checks.py", AGENT, [
        ("if policy.name not in asked.sites:\n        raise SiteRefused(f\"the run", "if False:\n        raise SiteRefused(f\"the run"),
        ("    if strangers:\n", "    if False:\n"),
        ("if len(asked.sites) < policy.min_sites:", "if len(asked.sites) <= policy.min_sites:"),
        ("if len(asked.sites) < policy.min_sites:", "if len(asked.sites) < 3:"),
        ("asked.secure == \"off\" and policy.secure_sum == \"required\"", "False"),
        ("asked.secure == \"off\" and policy.secure_sum == \"required\"", "asked.secure == \"off\""),
        ("asked.secure != \"off\" and policy.secure_sum == \"off\"", "False"),
        ("asked.secure != \"off\" and len(asked.sites) < 2", "False"),
        ("asked.privacy is not None and asked.secure == \"recovery\"", "False"),
        ("    check_budget(policy, journal, asked)\n", ""),
        ("    if not policy.data:\n", "    if False:\n"),
        ("if tuple(offer.site for offer in roster.offers) != run.opened.sites:", "if False:"),
        ("if tuple(offer.site for offer in roster.offers) != run.opened.sites:",
         "if {offer.site for offer in roster.offers} != {*run.opened.sites}:"),
        ("if to_frame(offer) != to_frame(own):", "if offer.key.tobytes() != own.key.tobytes():"),
        ("if to_frame(offer) != to_frame(own):", "if offer.rows != own.rows:"),
        ("if masks.fingerprint(public) != policy.peers[offer.site]:", "if False:"),
        ("if not masks.is_signed(public, offer.signature.tobytes(), signed_part(offer)):", "if False:"),
        ("if offer.opened != own.opened:", "if False:"),
        ("if offer.columns != own.columns or (own.digest", "if (own.digest"),
        ("(own.digest and offer.digest not in (\"\", own.digest))", "False"),
        ("offer.digest not in (\"\", own.digest)", "offer.digest != own.digest"),
        ("if len(keys) < len(roster.offers):", "if False:"),
        ("if name not in policy.tasks:", "if False:"),
        ("    check_understood(task, d)\n", ""),
        ("not plain and not isinstance(task, Prepare) and not is_summable(task)", "False"),
        ("if asked.bits != run.opened.bits:", "if False:"),
        ("if journal.asked(run.id) >= policy.max_rounds:", "if journal.asked(run.id) > policy.max_rounds:"),
        ("if reply_size(task, d, plain) > policy.max_bytes:", "if False:"),
        ("min(d, own.rows) if plain else 0", "0"),
        ("min(d, own.rows) if plain else 0", "d if plain else 0"),
        ("min(d, own.rows) if plain else 0", "own.rows if plain else 0"),
        ("own.rows < PER_COLUMN * columns:", "own.rows < columns:"),
        ("if journal.columns + columns > policy.max_columns:", "if journal.columns + columns >= policy.max_columns:"),
        ("if journal.columns + columns > policy.max_columns:", "if columns > policy.max_columns:"),
        ("not 2 * (journal.plain_columns + columns) < least", "not 2 * columns < least"),
        ("not 2 * (journal.plain_columns + columns) < least", "not 2 * (journal.plain_columns + columns) <= least"),
        ("not 2 * (journal.plain_columns + columns) < least", "not 2 * (journal.columns + columns) < least"),
    ]),
    ("federation/checks.py", HOSTILE, [
        ("task.rows != run.rows:", "task.rows < run.rows:"),
    ]),
    ("federation/checks.py", BUDGET, [
        ("    check_noise(policy, journal, run, task)\n", ""),
    ]),
    ("federation/checks.py", RECOVERY, [
        ("if run.roster is None or run.opened.secure != \"recovery\":", "if run.roster is None:"),
        ("or seen.question != asked.question:", "or False:"),
        ("or seen.kind != \"answered\" or", "or"),
        ("if policy.name not in asked.sites:\n        raise SiteRefused(\"it has answered", "if False:\n        raise SiteRefused(\"it has answered"),
        ("if bound is not None and bound != list(asked.sites):", "if False:"),
        ("lists[max(lists)] if lists else run.opened.sites", "lists[min(lists)] if lists else run.opened.sites"),
        ("lists[max(lists)] if lists else run.opened.sites", "run.opened.sites"),
        ("    if bound is None:\n        check_list", "    if False:\n        check_list"),
    ]),
    ("federation/masks.py", MASKS, [
        ("if not isinstance(key, Ed25519PrivateKey):", "if False:"),
        ("os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)"),
        ("            os.fsync(stream.fileno())\n", ""),
        ("        part.unlink(missing_ok=True)\n", "        pass\n"),
        ("salt=None, info=info)", "salt=None, info=b\"\")"),
        ("parts = roster, bytes.fromhex(run), number", "parts = bytes(32), bytes.fromhex(run), number"),
        ("parts = roster, bytes.fromhex(run), number", "parts = roster, bytes(16), number"),
        ("number.to_bytes(8, \"big\")", "bytes(8)"),
        ("bytes.fromhex(prepared.zfill(64))", "bytes(32)"),
        ("b\"\".join(parts) + bytes.fromhex(question)", "b\"\".join(parts)"),
        ("(subtracted, np.subtract)", "(subtracted, np.add)"),
        ("total = words.copy()", "total = words"),
        ("here = total[at : (at := at + part.size)]", "here = total[: part.size]"),
        ("pad if sign > 0 else wide_negative(pad)", "pad"),
        ("    except (InvalidSignature, ValueError):\n        return False\n", "    except (InvalidSignature, ValueError):\n        return True\n"),
    ]),
    ("federation/runs.py", AGENT, [
        ("\"offer\", \"roster\", \"prepare\", \"dealt\")", "\"offer\", \"prepare\", \"dealt\")"),
        ("\"offer\", \"roster\", \"prepare\", \"dealt\")", "\"offer\", \"roster\", \"dealt\")"),
        ("path.parent.mkdir(mode=0o700, exist_ok=True)", "path.parent.mkdir(mode=0o755, exist_ok=True)"),
        ("replace(self.kept, roster=frame), roster\n        self.keep()\n", "replace(self.kept, roster=frame), roster\n"),
        ("replace(self.kept, prepare=frame)\n            self.keep()\n", "replace(self.kept, prepare=frame)\n"),
        ("        self._path.unlink(missing_ok=True)\n", "        pass\n"),
        ("roster = sha256(self.kept.roster).digest()", "roster = bytes(32)"),
        ("self.id, number, self.prepared, question)", "self.id, number, \"\", question)"),
        ("            [masks.derived(secret, info) for secret in secrets[place + 1 :]],\n"
         "            [masks.derived(secret, info) for secret in secrets[:place]],\n",
         "            secrets[place + 1 :],\n            secrets[:place],\n"),
        ("masks.derived(self.kept.seed, b\"own\" + info)", "masks.derived(self.kept.seed, b\"own\")"),
        ("path.stat().st_mtime > STALE:", "path.stat().st_mtime > STALE**2:"),
        ("        except (KeyError, TypeError, ValueError, WireError):  # damaged: the run is over\n            path.unlink()\n",
         "        except (KeyError, TypeError, ValueError, WireError):  # damaged: the run is over\n            pass\n"),
        ("        part.unlink()\n", "        pass\n"),
    ]),
    ("federation/runs.py", BUDGET, [
        ("b\"localpower federation 1 noise\" + bytes.fromhex(question)", "b\"localpower federation 1 noise\""),
        ("masks.derived(seed, b\"localpower federation 1 noise\"", "masks.derived(bytes(32), b\"localpower federation 1 noise\""),
    ]),
    ("federation/runs.py", FLOAT32, [
        ("for offer in self.roster.offers).name", "for offer in self.roster.offers[1:]).name"),
    ]),
    ("federation/runs.py", RECOVERY, [
        ("\"offer\", \"roster\", \"prepare\", \"dealt\")", "\"offer\", \"roster\", \"prepare\")"),
        ("        if number < last[0]:\n", "        if False:\n"),
        ("replace(self.kept, dealt=json.dumps(last).encode())\n            self.keep()\n", "replace(self.kept, dealt=json.dumps(last).encode())\n"),
        ("if asked.sealed.shape != (count, SEALED * count):", "if False:"),
        ("            else:\n                keys.append(masks.derived(secret, info))", "            if other != place:\n                keys.append(masks.derived(secret, info))"),
        ("keys.append(masks.derived(secret, info))", "keys.append(secret)"),
    ]),
    ("federation/recovery.py", RECOVERY, [
        ("return 2 * sites // 3 + 1", "return 2 * sites // 3"),
        ("return 2 * sites // 3 + 1", "return sites // 2 + 1"),
        ("if len(shares) < threshold(sites):", "if False:"),
        ("b\" share\" + sender.to_bytes(2, \"big\") + receiver.to_bytes(2, \"big\")", "b\" share\""),
        ("b\"localpower federation 1 list\" + info + json", "b\"localpower federation 1 list\" + json"),
        ("+ info + json.dumps(list(sites)).encode()", "+ info"),
        ("if list(sites) != [site for site in known if site in sites]:", "if not {*sites} <= {*known}:"),
        ("if len(sites) < max(threshold(len(known)), least):", "if len(sites) < threshold(len(known)):"),
        ("if len(sites) < max(threshold(len(known)), least):", "if len(sites) < least:"),
        ("if not {*sites} <= {*earlier}:", "if False:"),
        ("if len(signatures) != len(sites) or signatures.shape[1] != 64:", "if False:"),
        ("if signed < threshold(len(keys)):", "if signed < 1:"),
        ("if signed < threshold(len(keys)):", "if signed < threshold(len(keys)) - 1:"),
        ("masks.is_signed(keys[site], signature.tobytes(), text)\n", "signature.any()\n"),
        ("if gone and (missing or len(told) < threshold(len(names))):", "if gone and len(told) < threshold(len(names)):"),
        ("(subtracted if places[other] > places[name] else added)", "(added if places[other] > places[name] else subtracted)"),
    ]),
    ("federation/journal.py", JOURNAL, [
        ("                flock(self._file, LOCK_EX | LOCK_NB)\n", "                pass\n"),
        ("            self._finish()\n", ""),
        ("if self.refused > MOST_REFUSED:", "if False:"),
        ("            self.refused = 0\n", "            pass\n"),
        ("chain = chained(self._last, told)", "chain = chained(BEGIN, told)"),
        ("{\"chain\": chain}), entry.kind != \"refused\")\n        self._last = chain\n", "{\"chain\": chain}), entry.kind != \"refused\")\n"),
        ("{\"chain\": chain}), entry.kind != \"refused\")", "{\"chain\": chain}), False)"),
        ("            os.ftruncate(self._file, before)\n", ""),
        ("        self._last = chain\n        self._count(entry)\n", "        self._last = chain\n"),
        ("                self._count(entry)\n                self._last = chain\n", "                self._last = chain\n"),
        ("0 if entry.masked else entry.columns", "entry.columns"),
        ("in (\"answered\", \"failed\"):", "in (\"answered\",):"),
        ("            self._over.add(entry.run)\n", ""),
        ("            self._seen.pop(entry.run, None)\n", ""),
        ("return run in self._over or run in self._seen", "return run in self._seen"),
        ("right = chain == chained(last, told) and _line", "right = _line"),
        ("and _line(told | {\"chain\": chain}) == line", "and True"),
        ("            last = chain\n", ""),
    ]),
    ("federation/journal.py", BUDGET, [
        ("self.mu = hypot(self.mu, entry.mu)", "self.mu = max(self.mu, entry.mu)"),
        ("self.mu = hypot(self.mu, entry.mu)", "self.mu += entry.mu"),
        ("self._spent[entry.run] = hypot(self.spent(entry.run), entry.mu)", "self._spent[entry.run] = entry.mu"),
        ("        self.epsilon += entry.epsilon\n", "        self.epsilon = entry.epsilon\n"),
    ]),
    ("federation/budget.py", BUDGET, [
        ("ROUNDING = 1 + 1e-9", "ROUNDING = 1 + 1e-2"),
        ("        if own is not None:\n", "        if False:\n"),
        ("    if own is None:\n", "    if False:\n"),
        ("    if asked.secure == \"off\":\n", "    if False:\n"),
        ("    if clip > own.clip:\n", "    if False:\n"),
        ("    if clip > own.clip:\n", "    if clip >= own.clip:\n"),
        ("    if policy.missing == \"mean\":\n", "    if False:\n"),
        ("    _check_left(policy, journal, mu_of(epsilon, delta))\n", ""),
        ("        if agreed is not None:\n", "        if False:\n"),
        ("    if agreed is None:\n        raise", "    if False:\n        raise"),
        ("    if task.clip != clip:\n", "    if task.clip > clip:\n"),
        ("    if task.honest > len(run.opened.sites):\n", "    if False:\n"),
        ("hypot(journal.spent(run.id), task.mu) > ROUNDING", "task.mu > ROUNDING"),
        ("hypot(journal.spent(run.id), task.mu) > ROUNDING", "hypot(journal.spent(run.id), task.mu) > 1.01"),
        ("    _check_left(policy, journal, task.mu)\n", ""),
        ("grown = epsilon_of(hypot(journal.mu, task.mu), delta) - epsilon_of(journal.mu, delta)", "grown = epsilon_of(task.mu, delta)"),
        ("mu=task.mu, epsilon=grown", "epsilon=grown"),
        ("if hypot(journal.mu, mu) > ROUNDING", "if mu > ROUNDING"),
    ]),
    ("federation/agent.py", AGENT, [
        ("                most = self.policy.max_bytes\n", "                most = len(frame)\n"),
        ("            self.journal.write(Entry(\"refused\"", "            str(Entry(\"refused\""),
        ("run = run[:MOST_RUN] if isinstance(run, str) else \"\"", "run = run if isinstance(run, str) else \"\""),
        ("            if run.kept.opened != frame:\n", "            if False:\n"),
        ("        if self.journal.knows(asked.run):\n", "        if False:\n"),
        ("        check_open(self.policy, self.journal, asked)\n", ""),
        ("if not asked.privacy and shape.rows < self.policy.min_rows:", "if False:"),
        ("if not asked.privacy and shape.rows < self.policy.min_rows:", "if not asked.privacy and shape.rows <= self.policy.min_rows:"),
        ("        self._end(\"another run was opened\")\n        seed", "        seed"),
        ("seed = secrets.token_bytes(32)", "seed = digest_of(frame)[:32].encode()"),
        ("        self._run.keep()\n", ""),
        ("            if run.kept.roster != frame:\n", "            if False:\n"),
        ("        check_roster(self.policy, run, asked)\n", ""),
        ("        if run.roster is None:\n            raise", "        if False:\n            raise"),
        ("if earlier is not None and earlier.question != question:", "if False:"),
        ("if earlier is None and asked.round <= self.journal.rounds(run.id):", "if False:"),
        ("if asked.prepared != run.prepared and run.kept.prepare != frame:", "if False:"),
        ("if asked.prepared != run.prepared and run.kept.prepare != frame:", "if asked.prepared != run.prepared:"),
        ("            check_ask(self.policy, self.journal, run, asked)\n", "            pass\n"),
        ("if self._of_data(self.rows.stamp) != run.kept.stamp:", "if False:"),
        ("charge = 0 if earlier else columns_of(task, self._columns(run))", "charge = 0"),
        ("            self._note(left)\n", "            pass\n"),
        ("if earlier is None or earlier.kind == \"failed\":", "if earlier is None:"),
        ("elif earlier.answer != left.answer:", "elif False:"),
        ("failure = to_frame(Failure(self._excuse(error), _kind(error)))", "failure = to_frame(Failure(str(error), _kind(error)))"),
        ("by_chance = isinstance(error, OSError | MemoryError | DataError)", "by_chance = True"),
        ("by_chance = isinstance(error, OSError | MemoryError | DataError)", "by_chance = False"),
        ("-(-self.policy.max_columns // FAILURES)", "0"),
        ("-(-self.policy.max_columns // FAILURES)", "self.policy.max_columns // FAILURES"),
        ("            self._end(\"a task failed\")\n", "            pass\n"),
        ("return replace(answer, words=masks.masked(words, added, subtracted))", "return replace(answer, words=words)"),
        ("            if run.kept.prepare:\n", "            if False:\n"),
        ("        elif not self.journal.is_over(asked.run):\n", "        elif False:\n"),
        ("if self._run is None or self._run.id != name:", "if self._run is None:"),
        ("            self._note(Entry(\"closed\", self._run.id, text=text))\n", ""),
        ("            self._run.forget()\n", ""),
        ("self._run = self._matrix = None", "self._run = None"),
        ("            if journal.is_over(run.id):\n", "            if False:\n"),
        ("        except OSError:\n            raise SiteRefused(\"its journal", "        except KeyError:\n            raise SiteRefused(\"its journal"),
    ]),
    ("federation/agent.py", HOSTILE, [
        ("most, min(MOST_HEADER, most // 32))", "most)"),
        ("except Exception as error:  # whatever a frame does", "except OSError as error:  # whatever a frame does"),
    ]),
    ("federation/agent.py", BUDGET, [
        ("        check_open(self.policy, self.journal, asked)\n        stamp, shape = self._of_data(self.rows.stamp), self._of_data(self.rows.shape)\n",
         "        stamp, shape = self._of_data(self.rows.stamp), self._of_data(self.rows.shape)\n        check_open(self.policy, self.journal, asked)\n"),
        ("if not asked.privacy and shape.rows < self.policy.min_rows:", "if shape.rows < self.policy.min_rows:"),
        ("rows=0 if asked.privacy else shape.rows,", "rows=shape.rows,"),
        ("entries=0 if asked.privacy else shape.entries,", "entries=shape.entries,"),
        ("        if earlier is None:\n            check_ask", "        if True:\n            check_ask"),
        ("        if earlier is None:\n            entry = charged", "        if True:\n            entry = charged"),
        ("            entry = charged(entry, task, self.policy, self.journal)\n", "            pass\n"),
        ("        if isinstance(task, Noised):\n", "        if False:\n"),
    ]),
    ("federation/agent.py", RECOVERY, [
        ("        except SiteRefused:\n            raise\n", ""),
        ("            added = [*added, run.own_key(info)]\n", ""),
        ("        if asked.sites != run.opened.sites:\n", "        if False:\n"),
        ("        told = run.revealed(asked, info)\n        self._bind(run, asked, frame)\n", "        told = run.revealed(asked, info)\n"),
        ("        self._bind(run, asked, frame)\n        text", "        text"),
    ]),
    ("federation/agent.py", ENGINE, [
        ("charge = 0 if earlier else columns_of(task, self._columns(run))", "charge = columns_of(task, self._columns(run))"),
    ]),
    ("federation/engine.py", ENGINE, [
        ("named = offer.names is None or names_digest(offer.names) == offer.digest", "named = True"),
        ("whole = (offer.site, offer.run, offer.opened) == about and named", "whole = (site, offer.run, offer.opened) == about and named"),
        ("whole = (offer.site, offer.run, offer.opened) == about and named", "whole = (offer.site, offer.run) == about[:2] and named"),
        ("return whole and _is_signed(offer, offer)", "return whole"),
        ("if (reply.run or self._run, reply.round or self._round) != here:", "if False:"),
        ("            raise replace(reply, site=site).error()\n", "            return None\n"),
        ("        if missing:\n            raise WorkerLost(f\"no right", "        if False:\n            raise WorkerLost(f\"no right"),
        ("        if handles != list(self._offers):\n", "        if False:\n"),
        ("if self.only_sums and not isinstance(inner, Prepare):", "if False:"),
        ("question: Task[Any] = task.task if isinstance(task, Measure) else task\n        self.check_summable(question)\n", "question: Task[Any] = task.task if isinstance(task, Measure) else task\n"),
        ("site in left and site not in asked.came and self._fits", "site in left and self._fits"),
        ("self._fits(asked, site, answer):", "isinstance(answer, Answer):"),
        ("if named != (self._run, asked.number, site, asked.digest):", "if named[:3] != (self._run, asked.number, site):"),
        ("if named != (self._run, asked.number, site, asked.digest):", "if named[3] != asked.digest:",
         "run and round are in the frame whose hash this is, and the signature is that of the site"),
        ("sized = answer.words.shape == wanted and answer.sealed.shape == (shares,)", "sized = answer.sealed.shape == (shares,)"),
        ("sized = answer.words.shape == wanted and answer.sealed.shape == (shares,)", "sized = answer.words.shape == wanted"),
        ("return sized and _is_signed(answer, self._offers[site])", "return sized"),
        ("return _is_signed(reply, offer)", "return True"),
        ("            self._over(stopped_card(*self._who(), self._privacy, type(error).__name__))\n", ""),
        ("text=printable(str(reply.text))", "text=reply.text"),
        ("if offer.columns != first.columns:", "if False:"),
        ("if offer.digest not in (\"\", named.digest):", "if False:"),
    ]),
    ("federation/engine.py", RECOVERY, [
        ("PATIENCE = 2 ", "PATIENCE = 1 "),
        ("if len(answered) < threshold(len(names)):", "if False:"),
        ("self.absent = frozenset(names.index(site) for site in names if site not in answered)", "self.absent = frozenset()"),
        ("        if len(answered) < len(names):\n", "        if True:\n"),
        ("if len(settled) < threshold(len(names)):", "if False:"),
        ("if (reply.run, reply.round, reply.site) != (self._run, asked.round, site):", "if False:"),
        ("return is_signed(offer.identity.tobytes(), signature, list_text(info, asked.sites))", "return True"),
        ("        self._question = None  # its masks are opened for one list: a retry is another question\n", ""),
    ]),
    ("federation/engine.py", CERTIFIED, [
        ("return super().rounding if self.only_sums else 0.0", "return 0.0"),
    ]),
    ("engines/ring.py", ONLY_SUMS, [
        ("return 2 * self.columns * grid.rounding(len(self.rows))", "return 0.0"),
        ("        if not is_summable(task):\n", "        if False:\n"),
    ]),
    ("federation/identity.py", IDENTITY, [
        ("            if name not in known:\n", "            if False:\n"),
        ("or isinstance(value, bool):", "or False:"),
        ("        if missing:\n", "        if False:\n"),
        ("        if secure not in SECURE:\n", "        if False:\n"),
        ("        if not sites:\n", "        if False:\n"),
        ("if not 0 < seconds < float(\"inf\"):", "if not 0 <= seconds < float(\"inf\"):"),
        ("if not 0 < seconds < float(\"inf\"):", "if not 0 < seconds:"),
        ("if not 0 < port < 65536:\n            raise ValueError(f\"{path}", "if not 0 < port:\n            raise ValueError(f\"{path}"),
        ("found.get(\"listen\", host)", "found.get(\"listen\", \"0.0.0.0\")"),
        ("sorted(entry) != sorted(pins)", "\"certificate\" not in entry"),
        ("PIN.fullmatch(str(entry[pin]))", "entry[pin]"),
        ("        if len(found) == 1:\n", "        if found:\n"),
        ("    if now > certificate.not_valid_after_utc:\n", "    if False:\n"),
        ("    if now < certificate.not_valid_before_utc:\n", "    if False:\n"),
        ("x509.BasicConstraints(True, 0)", "x509.BasicConstraints(True, None)"),
        ("(x509.BasicConstraints(False, None), True)", "(x509.BasicConstraints(True, None), True)"),
        ("use = ExtendedKeyUsageOID.SERVER_AUTH if host else ExtendedKeyUsageOID.CLIENT_AUTH", "use = ExtendedKeyUsageOID.SERVER_AUTH"),
        ("for peer in sites if peer != name)", "for peer in sites)"),
        ("least = max(len(sites), LEAST_SITES)", "least = LEAST_SITES"),
        ("least = max(len(sites), LEAST_SITES)", "least = len(sites)"),
        ("if not NAME.fullmatch(name) or name == COORDINATOR:", "if not NAME.fullmatch(name):"),
        ("        if sites.count(name) > 1:\n", "        if False:\n"),
        ("    if len(sites) < 2:\n", "    if False:\n"),
        ("or host in (\"0.0.0.0\", \"::\"):", "or False:"),
        ("    if there:\n", "    if False:\n"),
        ("os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)"),
        ("            path.unlink(missing_ok=True)\n", "            pass\n"),
    ]),
    ("federation/join.py", IDENTITY, [
        ("    if name_of(certificate) != name:\n", "    if False:\n"),
        ("    server, _ = read_certificate(keys / SERVER_CERTIFICATE, INSIDE)\n", "    server = (keys / SERVER_CERTIFICATE).read_bytes()\n"),
    ]),
    ("federation/identity.py", IDENTITY, [
        ("    check_valid(found, f\"{path}\")\n", ""),
        ("    if public != found.public_key():\n", "    if False:\n"),
    ]),
    ("federation/grpc_link.py", CREDENTIALS, [
        ("grpc.ssl_server_credentials([(key, chain)], ca, True)", "grpc.ssl_server_credentials([(key, chain)], ca, False)"),
        ("        if member is None:\n", "        if False:\n"),
        ("        if certificate_pin(certificate) != member.certificate:\n", "        if False:\n"),
    ]),
    ("federation/grpc_link.py", TLS12, [
        ("if auth.get(\"ssl_tls_version\", [TLS] if ONLY_TLS13 else []) != [TLS]:", "if False:"),
    ]),
    ("federation/stream.py", CREDENTIALS, [
        ("{\"GRPC_SSL_CIPHER_SUITES\": SUITES, ", "{"),
    ]),
    ("federation/grpc_link.py", LINK, [
        ("if question is not None and number == question.number and", "if question is not None and"),
    ]),
    ("federation/grpc_link.py", PINNED, [
        ("            if name in self._streams:\n                context.abort", "            if False:\n                context.abort"),
    ]),
    ("federation/stream.py", LINK, [
        ("            if len(message) != HEADER.size:\n", "            if False:\n"),
        ("if len(message) > self._left or not", "if not"),
        ("or not (message or not self._size):", "or False:"),
        ("        if self._size <= self._most:\n", "        if True:\n"),
    ]),
    ("federation/sites.py", PINNED, [
        ("if fingerprint(offer.identity.tobytes()) != self._file.sites[name].identity:", "if False:"),
    ]),
    ("federation/policy.py", POLICY, [
        ("secure_sum: str = \"required\"", "secure_sum: str = \"optional\""),
        ("min_sites: int = 3", "min_sites: int = 2"),
        ("            if key not in known:\n", "            if False:\n"),
        ("return known and value.delta < 1", "return known"),
        ("all(each in list(NAMES) for each in value)", "True"),
        ("NAME.fullmatch(k) and PIN.fullmatch(v)", "NAME.fullmatch(k)"),
    ]),
    ("federation/questions.py", AGENT, [
        ("(1 + task.send_first) * _of(task.basis) + _of(task.probes)", "_of(task.basis) + _of(task.probes)"),
        ("(1 + task.send_first) * _of(task.basis) + _of(task.probes)", "(1 + task.send_first) * _of(task.basis)"),
        ("Refine: lambda task, d: _of(task.block) + _of(task.basis) + 1 + _of(task.probes)", "Refine: lambda task, d: _of(task.block)"),
        ("GramTriangle: lambda task, d: d,", "GramTriangle: lambda task, d: 1,"),
        ("Describe: (_is_flag, _is_false,", "Describe: (_is_flag, _is_flag,"),
    ]),
    ("federation/questions.py", HOSTILE, [
        ("value.shape[0] == d >= value.shape[1] and finite(value)", "value.shape[0] == d >= value.shape[1]"),
        ("value.shape[0] == d >= value.shape[1] and finite(value)", "value.shape[0] == d and finite(value)"),
        ("_within(1, MOST_STEPS)", "_within(1, 1 << 53)"),
        ("if isinstance(task, Refine) and not task.basis.shape == task.image.shape:", "if False:"),
        ("return abs(value) <= MOST_EXPONENT", "return True"),
    ]),
    ("federation/messages.py", HOSTILE, [
        ("len({*self.sites}) == len(self.sites)", "True"),
        ("_is_count(self.round) and self.round > 0,", "_is_count(self.round),"),
        ("wire.PREFIX.size <= len(frame) <= most:", "wire.PREFIX.size <= len(frame):"),
        ("    if form + content > min(len(frame), header):\n", "    if False:\n"),
        ("    if at != len(frame):\n", "    if False:\n"),
    ]),
    ("core/ring.py", RING, [
        ("MOST_BITS = 62 ", "MOST_BITS = 63 "),
        ("if not 1 <= self.bits <= MOST_BITS:", "if not 0 <= self.bits <= MOST_BITS:"),
        ("if not (np.abs(scaled) <= 2.0**self.bits).all():", "if not (np.abs(scaled) <= 2.0 ** (self.bits + 1)).all():"),
        ("if not (np.abs(scaled) <= 2.0**self.bits).all():", "if not (np.abs(scaled) < 2.0**self.bits).all():"),
        ("if not (np.abs(scaled) <= 2.0**self.bits).all():", "if (np.abs(scaled) > 2.0**self.bits).any():"),
        ("np.rint(scaled)", "np.trunc(scaled)"),
        ("words.view(np.int64).astype(np.float64)", "words.astype(np.float64)"),
        ("return count / 2 * self.step", "return count / 4 * self.step"),
        ("if not (np.abs(x) <= 2.0**WIDE_EXPONENT).all():", "if (np.abs(x) > 2.0**WIDE_EXPONENT).any():"),
        ("WIDE_EXPONENT = UNIT_BITS - 12", "WIDE_EXPONENT = UNIT_BITS - 2"),
        ("np.where(x < 0, wide_negative(words), words)", "words"),
        ("((part < a[limb]) | (total[limb] < part))", "(part < a[limb])"),
        ("((part < a[limb]) | (total[limb] < part))", "(total[limb] < part)"),
        ("\"little\", signed=True)", "\"little\")"),
    ]),
    ("core/gaussian.py", ACCOUNTING, [
        ("log(_mills(low) - _mills(high))", "log(_mills(low))"),
        ("log(erfc(low / sqrt(2)) / 2 - exp(density) * _mills(high))", "log(erfc(low / sqrt(2)) / 2)"),
        ("return found * (1 - 1e-12)", "return found * (1 + 1e-10)"),
        ("return found * (1 + 1e-12)", "return found * (1 - 1e-6)"),
        ("return sqrt(releases) / mu_of(epsilon, delta)", "return 1 / mu_of(epsilon, delta)"),
        ("return sqrt(releases) / mu_of(epsilon, delta)", "return releases / mu_of(epsilon, delta)"),
    ]),
    ("core/gaussian.py", NOISE, [
        ("TIE = 2.0**-44", "TIE = 0.0"),
        ("if not 1 <= sigma <= MOST_SIGMA:", "if not 1 <= sigma:"),
        ("if not 1 <= sigma <= MOST_SIGMA:", "if not -1 <= sigma <= MOST_SIGMA:"),
        ("(np.square(v - 1.0) + 2 * v * x + x * x) / 2", "(np.square(v - 1.0) + v * x + x * x) / 2"),
        (" + 1) / 2 - int(v[at])", " + 1) / 2"),
        ("    y[negative] *= -1\n", ""),
        ("y[taken & ~(negative & (y == 0))]", "y[taken]"),
        ("whole = (1 << 64) // limit * limit", "whole = 1 << 64"),
        ("            if word + 1 < limit:\n", "            if word < limit:\n"),
        ("isqrt((sigma * sigma + 1) // 2) + 1", "isqrt((sigma * sigma + 1) // 2)"),
        ("sqrt(2 * dimension) + sqrt(2 * log(2 / 0.01))", "sqrt(dimension) + sqrt(2 * log(2 / 0.01))"),
        ("sqrt(2 * dimension) + sqrt(2 * log(2 / 0.01))", "sqrt(2 * dimension)"),
    ]),
    ("worker/private_tasks.py", PRIVATE, [
        ("SENSITIVITY = LONGEST**2 ", "SENSITIVITY = LONGEST**2 // 2 "),
        ("CONSTANT = isqrt(SENSITIVITY // 5)", "CONSTANT = isqrt(SENSITIVITY // 3)"),
        ("return SENSITIVITY / (self.sigma * sqrt(self.honest))", "return SENSITIVITY / self.sigma"),
        ("return NoisedSum(exact.view(np.uint64) + noise.view(np.uint64))", "return NoisedSum(exact.view(np.uint64))"),
        ("if matrix.shape[0] * self.honest > MOST_ROWS or", "if matrix.shape[0] > MOST_ROWS or"),
        ("MOST_ROWS or matrix.shape[1] > EXACT_ROWS:", "MOST_ROWS:"),
        ("            if rows + q.shape[0] > EXACT_ROWS:\n", "            if False:\n"),
        ("(~diagonal, halved(self.sigma))", "(~diagonal, self.sigma)"),
        ("(~diagonal, halved(self.sigma))", "(~diagonal, halved(halved(self.sigma)))"),
        ("if self.basis.shape[0] != d + self.center or not", "if not"),
        ("or not (np.abs(self.basis) <= 1).all():", "or False:"),
        ("T = whole(np.ldexp(T, -BASIS_BITS), LONGEST, LONGEST)", "T = np.rint(np.ldexp(T, -BASIS_BITS))"),
        ("return isqrt(SENSITIVITY - CONSTANT**2) if center else LONGEST", "return LONGEST"),
        ("        block.sum_duplicates()\n", ""),
        ("        _check_finite(block.data)\n", ""),
        ("    _check_finite(block)\n", ""),
        ("np.maximum(largest, clip)[row]", "np.full_like(largest, clip)[row]"),
        ("np.where(squares > most**2,", "np.where(squares > 2 * most**2,"),
        ("np.trunc(x * factor)", "np.rint(x * factor)"),
        ("found[np.cumsum([0, *range(columns, 1, -1)])] = True", "found[:columns] = True"),
    ]),
    ("worker/sum_tasks.py", ONLY_SUMS, [
        ("LEAST_SPREAD = 2.0 ** (10 - UNIT_BITS // 2)", "LEAST_SPREAD = 2.0 ** (-UNIT_BITS // 2)"),
        ("np.ldexp(stats.mean + stats.rest, stats.exponent)", "np.ldexp(stats.mean, stats.exponent)",
         "the rest is less than the last digit of the mean, and `Spread` tells what is missing"),
        ("delta = own + np.ldexp(stats.rest, stats.exponent)", "delta = own"),
        ("        _check_spread(stats, mean, delta)\n", ""),
        ("squares + stats.rows * np.square(delta))", "squares)"),
        ("return ColumnSums(stats.rows, stats.rows * delta, squares", "return ColumnSums(stats.rows, 0 * delta, squares"),
        ("((sizes > rounding) & (sizes < LEAST_SPREAD)).any()", "(sizes < LEAST_SPREAD).any()"),
        ("    if stats.bad is not None:\n", "    if False:\n"),
    ]),
    ("private.py", PRIVATE, [
        ("if given[name] is not None and given[name] is not False:", "if False:"),
        ("if callable(rank) or isinstance(rank, float | np.floating):", "if isinstance(rank, float | np.floating):"),
        ("if callable(rank) or isinstance(rank, float | np.floating):", "if callable(rank):"),
        ("    if given[\"method\"] != \"auto\":\n", "    if False:\n"),
        ("    if given[\"partition\"] != \"contiguous\":\n", "    if False:\n"),
        ("    if faults is not None and faults.on_loss != \"stop\":\n", "    if False:\n"),
        ("    if faults is not None and faults.participation < 1:\n", "    if False:\n"),
        ("        if self.rank > d:\n", "        if False:\n"),
        ("\"matrix\" if 4 * d * d <= MOST_BYTES else \"products\"", "\"matrix\""),
        ("FEW if privacy.epsilon <= WIDE else MORE", "FEW"),
        ("        self.refuse_means()\n", ""),
        ("        self.asked = replace(self.asked, workers=self.asked.workers or own)\n", ""),
        ("        if self.honest > shards:\n", "        if False:\n"),
        ("sigma_of(privacy.epsilon, privacy.delta, self.rounds * self.steps)", "sigma_of(privacy.epsilon, privacy.delta)"),
        ("sigma_of(privacy.epsilon, privacy.delta, self.rounds * self.steps)", "sigma_of(privacy.epsilon, privacy.delta, self.rounds)"),
        ("ceil(self.sigma_all * SENSITIVITY / sqrt(self.honest))", "int(self.sigma_all * SENSITIVITY / sqrt(self.honest))"),
        ("ceil(self.sigma_all * SENSITIVITY / sqrt(self.honest))", "ceil(self.sigma_all * SENSITIVITY / self.honest)"),
        ("        if self.sigma > MOST_SIGMA:\n", "        if False:\n"),
        ("return self.sigma * sqrt(len(self.shards.shards)) * self.unit**2", "return self.sigma * self.unit**2"),
        ("return self.sigma * sqrt(len(self.shards.shards)) * self.unit**2", "return self.sigma * sqrt(self.honest) * self.unit**2"),
        ("return (1 + float(np.square(own).sum())) * noise", "return noise"),
        ("* noise * count / (count - noise)", "* noise"),
        ("> told * (1 + 1e-9):", "> inf:"),
        ("        if count <= noise:\n            return inf\n", ""),
        ("noise = self.deviation * spread(d + center)", "noise = self.deviation"),
        ("return noise / (gap - noise) if gap > 2 * noise else None", "return noise / (gap - noise) if gap > noise else None"),
        ("return noise / (gap - noise) if gap > 2 * noise else None", "return noise / gap if gap > 2 * noise else None"),
        ("Ledger(tuple(replace(r, bytes_read=0) for r in self.engine.ledger.records))", "self.engine.ledger"),
        ("moved.bytes_down, seconds=0.0)", "moved.bytes_down, seconds=1.0)"),
    ]),
]
# fmt: on


def mutants() -> list[Mutant]:
    """All of them."""
    return [
        Mutant(file, original, replacement, tests, *why)
        for file, tests, changes in MUTANTS
        for original, replacement, *why in changes
    ]


def digest(text: str) -> str:
    """A short name of a source line."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:10]


def copied(folder: Path) -> Path:
    """A copy of sources and tests, which may change in the meantime."""
    for name in ("src", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    compileall.compile_dir(folder / "src", quiet=2)
    return folder


def begun(folder: Path, tests: tuple[str, ...]) -> int:
    """Run tests on a copy, in a child that has all libraries already but for our own."""
    child = os.fork()
    if child:
        return child
    try:
        os.chdir(folder)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        for name in [name for name in sys.modules if name.split(".")[0] == "localpower"]:
            del sys.modules[name]
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(folder / "src"), str(folder / "tests")]
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        os._exit(pytest.main([*OPTIONS, *tests]))
    finally:
        os._exit(3)


def ended(child: int, began: float) -> str:
    """How the tests of a child ended; nothing if they go on."""
    done, status = os.waitpid(child, os.WNOHANG)
    if not done and time.monotonic() - began > LIMIT:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "killed (timeout)"
    if not done:
        return ""
    killed = dict.fromkeys((1, 2, 4), "killed")  # a test failed, or nothing could be imported
    return ({0: "survived"} | killed).get(os.waitstatus_to_exitcode(status), "lost")


@contextmanager
def mutated(mutant: Mutant, folder: Path) -> Iterator[tuple[int, str]]:
    """Apply a mutation to a copy for a while; tell the number and text of its line."""
    target = folder / PACKAGE / mutant.file
    source = target.read_text(encoding="utf-8")
    for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
        compiled.unlink()  # it may be taken for that of a mutation of the same size and second
    target.write_text(mutant.applied(source), encoding="utf-8")
    try:
        yield mutant.line(source)
    finally:
        target.write_text(source, encoding="utf-8")


def examined(mutant: Mutant, folder: Path) -> Iterator[Row | None]:
    """Run the tests of a mutation: nothing as long as they run, then what became of it."""
    with mutated(mutant, folder) as (number, line):
        began = time.monotonic()
        child = begun(folder, mutant.tests)
        while not (outcome := ended(child, began)):
            yield None
        seconds = time.monotonic() - began
    if outcome == "lost":
        raise RuntimeError(f"tests of {mutant} ended in a way that tells nothing")
    yield Row(mutant.id, mutant.file, number, mutant.original, mutant.replacement, outcome,
              round(seconds, 1), __version__, digest(line), mutant.equivalent)  # fmt: skip


def listed(output: Path) -> list[dict[str, str]]:
    """Rows of this version."""
    if not output.exists():
        return []
    with open(output, encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["version"] == __version__]


def known(every: list[Mutant], output: Path) -> dict[str, dict[str, str]]:
    """Mutations that were killed before, of the same source lines."""
    texts = {file: (ROOT / PACKAGE / file).read_text(encoding="utf-8") for file, *_ in MUTANTS}
    lines = {mutant.id: digest(mutant.line(texts[mutant.file])[1]) for mutant in every}
    return {
        row["id"]: row
        for row in listed(output)
        if row["outcome"] != "survived" and lines.get(row["id"]) == row["source"]
    }


def campaign(every: list[Mutant], jobs: int, done: set[str]) -> Iterator[Row]:
    """Check that the tests pass on the sources as they are; then change what is not done."""
    left = [mutant for mutant in every if mutant.id not in done]
    if not left:
        return
    with tempfile.TemporaryDirectory() as name:
        free = [copied(Path(name, str(job))) for job in range(jobs)]
        for tests in sorted({mutant.tests for mutant in left}):
            if os.waitpid(begun(free[0], tests), 0)[1]:
                raise RuntimeError(f"these do not pass on the sources as they are: {tests}")
        running: dict[Path, Iterator[Row | None]] = {}
        while left or running:
            while left and free:
                folder = free.pop()
                running[folder] = examined(left.pop(0), folder)
            for folder, states in list(running.items()):
                if (row := next(states)) is not None:
                    del running[folder]
                    states.close()  # type: ignore[attr-defined]
                    free.append(folder)
                    yield row
            time.sleep(0.02)


def write(every: list[Mutant], rows: dict[str, dict[str, str]], output: Path) -> None:
    """Write all rows, in the order of the list."""
    new = output.with_suffix(".new")
    with open(new, "w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [field.name for field in fields(Row)])
        table.writeheader()
        table.writerows(rows[mutant.id] for mutant in every if mutant.id in rows)
    new.replace(output)


def main() -> int:
    """Run the campaign; the exit code is 1 if too many survive, or one that must not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="mutations of files with this in their names")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    every = mutants()
    for mutant in every:
        mutant.applied((ROOT / PACKAGE / mutant.file).read_text(encoding="utf-8"))
    rows = known(every, options.output)
    chosen = [mutant for mutant in every if options.only in mutant.file]
    for row in campaign(chosen, options.jobs, set(rows)):
        rows[row.id] = {name: str(value) for name, value in asdict(row).items()}
        write(every, rows, options.output)
        if row.outcome == "survived" or sys.stderr.isatty():
            print(f"{len(rows)}/{len(every)} {row.outcome}: {row.file}:{row.line} "
                  f"{row.original!r} -> {row.replacement!r}", file=sys.stderr)  # fmt: skip
    write(every, rows, options.output)
    survived = [row for row in rows.values() if row["outcome"] == "survived"]
    wrong = [row for row in survived if row["file"] in STRICT]
    print(f"{len(rows)} of {len(every)} mutations: {len(rows) - len(survived)} killed, "
          f"{len(survived)} survived, {len(wrong)} of these where none may")  # fmt: skip
    return 1 if wrong or len(survived) > MOST * len(rows) or len(rows) < len(every) else 0


if __name__ == "__main__":
    sys.exit(main())
