"""The paper's claims, each with the evidence from our runs and a verdict that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from localpower.paper import datasets as registry
from localpower.paper.problems import MODES
from localpower.paper.results import Results, Summary
from localpower.paper.runner import items
from localpower.paper.trials import ALIGNMENTS, ONE_SHOT

T = TypeVar("T")
Curves = dict[tuple[str, str, int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim, what was seen in each way of measuring, and what follows."""

    claim: str
    evidence: Mapping[str, str]
    verdict: str


@dataclass(frozen=True, slots=True)
class Finding:
    """On how many data sets a claim holds, and which ones it fails on."""

    holds: list[str]
    fails: list[str]
    remark: str = ""

    def __str__(self) -> str:
        total = len(self.holds) + len(self.fails)
        text = f"holds on {len(self.holds)} of {total} sets"
        if self.fails:
            text += f", not on {', '.join(map(_title, self.fails))}"
        return f"{text}. {self.remark}".strip()

    @property
    def share(self) -> float:
        """Share of the data sets on which the claim holds."""
        total = len(self.holds) + len(self.fails)
        return len(self.holds) / total if total else float("nan")


def judge(results: Results) -> list[Verdict]:
    """Judge every claim; one that the data do not support says so."""
    verdicts = []
    for claim, examine in CLAIMS.items():
        findings = {mode: examine(results, mode) for mode in MODES}
        shares = [f.share for f in findings.values() if not np.isnan(f.share)]
        evidence = {mode: str(finding) for mode, finding in findings.items()}
        verdicts.append(Verdict(claim, evidence, _word(shares)))
    return verdicts


def _word(shares: list[float]) -> str:
    """Judge by the weaker of the two ways of measuring."""
    if not shares:
        return "not run"
    if min(shares) >= 0.8:
        return "supported"
    return "supported in part" if min(shares) >= 0.5 else "not supported"


def _table(results: Results, mode: str, item: str) -> dict[tuple[str, str], Summary]:
    return results.table(items()[item], mode)


def _curves(results: Results, mode: str, item: str) -> Curves:
    return {
        (o.trial.dataset, o.trial.method, o.trial.steps): o.errors
        for o in results.of(items()[item], mode)
    }


def _finals(results: Results, mode: str, item: str) -> dict[tuple[str, int, int], float]:
    return {
        (o.trial.dataset, o.trial.shards, o.trial.steps): o.final
        for o in results.of(items()[item], mode)
    }


def saturates(results: Results, mode: str) -> Finding:
    """Compare final errors of p = 20 and p = 8."""
    finals = _finals(results, mode, "figure-p-m")
    ratio = _known(
        _sets(finals), lambda name: finals[name, 50, 20] / max(finals[name, 50, 8], 1e-300)
    )
    remark = f"Median of error(p = 20)/error(p = 8) at m = 50: {_median(ratio.values()):.2f}."
    return _sort(ratio, lambda name: ratio[name] < 1.5, remark)


def eta_grows(results: Results, mode: str) -> Finding:
    """Look whether η rises with every m."""
    names = sorted({name for m, name, _ in results.eta if m == mode}, key=_place)

    def holds(name: str) -> bool:
        etas = [results.eta[mode, name, str(m)] for m in (20, 40, 60, 80, 100)]
        return etas == sorted(etas)

    return _sort(names, holds, "Mean over three shuffles rises at every step from m = 20 to 100.")


def vanilla_unstable(results: Results, mode: str) -> Finding:
    """Compare late errors of vanilla and OPT on the sets that the paper names."""
    vanilla = _curves(results, mode, "figure-p-none")
    aligned = _curves(results, mode, "figure-p-procrustes")

    def trouble(name: str) -> float:
        late = np.array(vanilla[name, "none", 8][len(vanilla[name, "none", 8]) // 2 :])
        reference = np.median(aligned[name, "procrustes", 8][-5:])
        return float(late.max() / max(reference, 1e-300))

    named = ("a9a", "abalone", "ijcnn1", "poker")
    seen = _known(_sets(vanilla), trouble)
    others = [name for name in seen if name not in named and seen[name] > 2]
    remark = (
        "Largest late error of vanilla above twice that of OPT, p = 8; Combined is not at hand."
    )
    if others:
        remark += f" Also on {', '.join(map(_title, others))}, which the paper does not name."
    return _sort(named, lambda name: trouble(name) > 2, remark)


def p_times_fewer(results: Results, mode: str) -> Finding:
    """Compare communications that DPI and p = 4 take to a fixed error."""
    curves = _curves(results, mode, "figure-p-procrustes")
    level = 0.1

    def rounds(name: str, p: int) -> float:
        below = np.flatnonzero(np.array(curves[name, "procrustes", p]) < level)
        return float(below[0]) if below.size else math.nan

    ratios = _known(_sets(curves), lambda name: rounds(name, 1) / rounds(name, 4))
    speed = {name: ratio for name, ratio in ratios.items() if math.isfinite(ratio)}
    remark = (
        f"Communications of DPI over those of p = 4 until error {level}: median "
        f"{_median(speed.values()):.1f}; at least 2 counts as holding."
    )
    return _sort(speed, lambda name: speed[name] >= 2, remark)


def _alike(
    found: Callable[[Results, str, str], dict[Any, Any]],
    item: str,
    holds: Callable[[dict[Any, Any], str], bool],
    remark: str,
) -> Callable[[Results, str], Finding]:
    """A claim that is seen on every data set of one item."""

    def examine(results: Results, mode: str) -> Finding:
        seen = found(results, mode, item)
        return _sort(_sets(seen), lambda name: holds(seen, name), remark)

    return examine


CLAIMS: dict[str, Callable[[Results, str], Finding]] = {
    "LocalPower has the smallest error on most sets (the paper: 12 of 15)": _alike(
        _table,
        "table-final",
        lambda table, name: (
            min(table[name, method].mean for method in ALIGNMENTS)
            < min(table[name, method].mean for method in ONE_SHOT)
        ),
        "",
    ),
    "LocalPower with OPT is more stable than without": _alike(
        _table,
        "table-final",
        lambda table, name: table[name, "procrustes"].deviation <= table[name, "none"].deviation,
        "Standard deviation of ten final errors, OPT against vanilla.",
    ),
    "Larger p converges faster at first": _alike(
        _curves,
        "figure-p-procrustes",
        lambda seen, name: seen[name, "procrustes", 8][2] < seen[name, "procrustes", 1][2],
        "Error after two communications, p = 8 against p = 1, OPT.",
    ),
    "Larger p ends at a higher error": _alike(
        _curves,
        "figure-p-procrustes",
        lambda seen, name: seen[name, "procrustes", 8][-1] > seen[name, "procrustes", 1][-1],
        "Last error, p = 8 against p = 1, OPT; p = 1 may still be on its way down.",
    ),
    "The final error saturates as p grows": saturates,
    "A smaller m gives a smaller error": _alike(
        _finals,
        "figure-m-procrustes",
        lambda finals, name: finals[name, 20, 4] < finals[name, 80, 4],
        "Final error with m = 20 against m = 80, p = 4, OPT.",
    ),
    "η grows with m": eta_grows,
    "Vanilla fluctuates or diverges on A9a, Abalone, Combined, Ijcnn1 and Poker": vanilla_unstable,
    "Halving p reaches the precision of DPI": _alike(
        _curves,
        "figure-decay-procrustes",
        lambda seen, name: (
            seen[name, "procrustes", 8][-1] <= max(2 * seen[name, "procrustes", 1][-1], 1e-12)
        ),
        "Last error with p = 8 halved every round against DPI's, at most twice as large.",
    ),
    "p times fewer communications to constant accuracy": p_times_fewer,
}


def theorem_2(results: Results) -> Verdict:
    """Compare measured residual errors with Theorem 2 wherever its assumption holds."""
    checked = [row for row in results.rho if row["applies"] == "True"]
    broken = [
        f"{row['case']}, p = {row['steps']}"
        for row in checked
        if float(row["rho_aligned"]) > float(row["bound_aligned"])
        or float(row["rho_vanilla"]) > float(row["bound_vanilla"])
    ]
    text = f"η ≤ min(1/3κ, 1/p) holds in {len(checked)} of {len(results.rho)} measurements; "
    text += f"both bounds hold in {len(checked) - len(broken)} of those."
    word = "not run" if not checked else "not supported" if broken else "supported"
    return Verdict("Measured ρ_t stays below both bounds of Theorem 2", {"synthetic": text}, word)


def _sets(found: Iterable[tuple[str, object] | tuple[str, object, object]]) -> list[str]:
    return sorted({key[0] for key in found}, key=_place)


def _sort(names: Iterable[str], holds: Callable[[str], bool], remark: str = "") -> Finding:
    truth = _known(names, holds)
    return Finding([n for n in truth if truth[n]], [n for n in truth if not truth[n]], remark)


def _known(names: Iterable[str], look: Callable[[str], T]) -> dict[str, T]:
    """What is seen on each data set; those that not all was run on are left out."""
    seen = {}
    for name in names:
        with suppress(KeyError):
            seen[name] = look(name)
    return seen


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values) or [float("nan")]))


def _place(name: str) -> int:
    return list(registry.DATA_SETS).index(name)


def _title(name: str) -> str:
    return registry.DATA_SETS[name].title
