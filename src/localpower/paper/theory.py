"""Theorem 2 measured: residual errors of local iterations beside both of its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from localpower.core.linalg import Array, random_basis
from localpower.diagnostics.distance import principal_angles
from localpower.methods.local_power import local_power
from localpower.methods.schedule import constant
from localpower.methods.state import State
from localpower.paper.bounds import (
    kappa,
    rho,
    rho_bound_aligned,
    rho_bound_vanilla,
    theorem_2_applies,
)
from localpower.paper.grams import GramEngine, Grams
from localpower.version import __version__
from localpower.worker.tasks import PowerSteps

COLUMNS = ["case", "steps", "applies", "eta", "kappa", "rho_aligned", "bound_aligned"]
COLUMNS += ["rho_vanilla", "bound_vanilla", "seed", "version"]
SEED, RANK, SHARDS = 7, 3, 6
# Case: rows, and the singular values of the population, mild enough for the assumption to hold.
CASES = {
    "mild": (60_000, [1.0, 0.95, 0.9, 0.6, 0.55, 0.5]),
    "steep": (60_000, [1.0, 0.7, 0.5, 0.2, 0.1, 0.05]),
}


def measure(steps: Sequence[int], store: Any) -> None:
    """Measure ρ_t after p local steps, aligned and not, and the right-hand sides of Theorem 2."""
    for case, (rows, spectrum) in CASES.items():
        rng = np.random.default_rng(SEED)
        X = rng.standard_normal((rows, len(spectrum))) * spectrum
        grams = Grams(X, np.array_split(np.arange(rows), SHARDS))
        start = random_basis(len(spectrum), RANK, rng)
        states = local_power(
            GramEngine(grams), State(start), schedule=constant(4), align="procrustes"
        )
        Z = [next(states) for _ in range(10)][-1].basis  # a basis in mid-run, as τ(t) has
        for p in steps:
            if (case, p) not in store:
                store.add({"case": case, "steps": p, **residuals(grams, Z, p)})
    store.write()


def residuals(grams: Grams, Z: Array, p: int) -> dict[str, Any]:
    """ρ_t and its bounds when every shard has taken p local steps from the common basis Z."""
    n, k = sum(grams.rows), Z.shape[1]
    local = [np.linalg.eigh(G / s) for G, s in zip(grams.stack, grams.rows, strict=True)]
    sigma = np.linalg.eigvalsh(grams.stack.sum(axis=0) / n)[::-1]
    spectra = [values[::-1] for values, _ in local]
    gap = min(np.abs(sigma[k - 1] - values[k:]).min() for values in spectra)
    ratio = max(values[k] / values[k - 1] for values in [sigma, *spectra])
    angles = [principal_angles(Z, vectors[:, ::-1][:, :k])[-1] for _, vectors in local]
    condition, eta = kappa(sigma), grams.eta()
    task = PowerSteps(Z, steps=p + 1, send_basis=True)  # its basis has had p steps
    bases = [reply.pair()[1] for reply in grams.power_steps([task])[0]]
    C = max(np.tan(angles))
    return {
        "applies": theorem_2_applies(condition, p, eta),
        "eta": f"{eta:.6g}",
        "kappa": f"{condition:.6g}",
        "rho_aligned": f"{rho(bases):.6g}",
        "bound_aligned": f"{rho_bound_aligned(condition, p, eta, sigma[0], gap, ratio, C):.6g}",
        "rho_vanilla": f"{rho(bases, aligned=False):.6g}",
        "bound_vanilla": f"{rho_bound_vanilla(condition, p, eta, k):.6g}",
        "seed": SEED,
        "version": __version__,
    }
