"""Matrices and oracles that several tests share."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

ENGINES = ["inline", "threads:3", "processes:2"]
REMOTE = ["dask", "ray", "spark"]  # MPI has a process of its own that runs the contract
METHODS = ["local_power", "dpi", "one_shot", "uda", "wda", "aligned_average", "dr_svd"]
METHODS += ["local_ritz", "block_krylov", "block_lanczos", "gram", "tsqr"]
ITERATED = [*METHODS[:3], "local_ritz", "block_krylov", "block_lanczos"]  # these have a width
EPS = np.finfo(float).eps


def with_options(method, **options):
    """The text of a method with more options: of "dpi" and width=4, "dpi:width=4"."""
    text = ",".join(f"{name}={value}" for name, value in options.items())
    return f"{method}{',' if ':' in method else ':'}{text}" if text else method


OWN = ("steps", "schedule", "align", "align_at", "proposal", "start", "width", "wire")


def spelled(options):
    """Arguments of `svd`, from a dictionary in which options of the method stand among them."""
    own = {name: options[name] for name in OWN if name in options}
    rest = {name: value for name, value in options.items() if name not in OWN}
    return rest | {"method": with_options(rest.get("method", "auto"), **own)}


def with_spectrum(rows, singular_values, seed=0):
    """A dense matrix with the given singular values and random singular vectors."""
    rng = np.random.default_rng(seed)
    k = len(singular_values)
    U = np.linalg.qr(rng.standard_normal((rows, k)))[0]
    V = np.linalg.qr(rng.standard_normal((k, k)))[0]
    return (U * singular_values) @ V.T


LAPACK_SHAPES = [(1, 1), (1, 5), (5, 1), (8, 8), (30, 6), (4, 9)]
LAPACK_TYPES = {
    "zero": lambda j: 0.0 * j,
    "identity": lambda j: 1.0 + 0 * j,
    "clustered": lambda j: np.where(j < 2, 1.0, 1e-8),
    "graded": lambda j: 100.0**-j,
    "huge": lambda j: 0.7**j,
    "tiny": lambda j: 0.7**j,
}


def lapack_matrix(name, shape, dtype):
    """A matrix of the types and shapes above; the last two types near the limits of the format."""
    if name == "identity":
        return np.eye(*shape, dtype=dtype)
    values = LAPACK_TYPES[name](np.arange(min(shape)))
    A = (
        with_spectrum(shape[0], values)
        if shape[0] > shape[1]
        else with_spectrum(shape[1], values).T
    )
    limits = np.finfo(dtype)
    exponent = {"huge": limits.maxexp - 2, "tiny": limits.minexp + 2}.get(name, 0)
    return np.ldexp(A, exponent).astype(dtype)


def lapack_ratios(A, result):
    """LAPACK's test ratios: what is left of A, both sets of vectors, and singular values."""
    (n, d), k, eps = A.shape, min(A.shape), float(np.finfo(A.dtype).eps)
    exponent = -np.frexp(np.abs(A).max())[1]
    A = np.ldexp(A.astype(float), exponent)
    U, Vt = result.U.astype(float), result.components.astype(float)
    S = np.ldexp(result.singular_values.astype(float), exponent)
    exact = np.linalg.svd(A, compute_uv=False)
    top = exact[0] or 1.0
    return {
        "residual": np.linalg.norm(A - (U * S) @ Vt, 2) / (top * max(n, d) * eps),
        "left": np.linalg.norm(np.eye(k) - U.T @ U, 2) / (n * eps),
        "right": np.linalg.norm(np.eye(k) - Vt @ Vt.T, 2) / (d * eps),
        "values": np.abs(S - exact).max() / (top * eps),
    }


def orthogonal_iteration(A, start, rounds):
    """Centralised power iteration in one process: what p = 1 has to equal."""
    Z = start
    for _ in range(rounds):
        Z = np.linalg.qr(A.T @ (A @ Z))[0]
    return Z


def projector_gap(Z, W):
    """Spectral norm of the difference of two projectors."""
    return np.linalg.norm(Z @ Z.T - W @ W.T, 2)


def random_start(columns, width, seed):
    """The documented start of a run with an integer seed."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((columns, width)))[0]


def same_bits(a, b):
    """Equality of the numbers in two results, to the last bit."""
    pairs = [(a.components, b.components), (a.singular_values, b.singular_values)]
    pairs += [(a.basis, b.basis), (a.explained_variance, b.explained_variance)]
    pairs += [] if a.U is None else [(a.U, b.U)]
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs)


@contextmanager
def cluster(name):
    """A live cluster of two workers, as a user would have it open; or the name as it is."""
    if name not in REMOTE:
        yield name
        return
    library = {"dask": "distributed", "spark": "pyspark"}.get(name, name)
    pytest.importorskip(library, reason=f"the extra {name!r} is not installed")
    if name == "spark" and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java, which Spark needs")
    if name == "dask":
        from distributed import Client, LocalCluster

        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        with (
            LocalCluster(host="127.0.0.1", silence_logs=40, **options) as mine,
            Client(mine, set_as_default=False) as client,
        ):
            yield client
        return
    import localpower as lp

    with lp.connect(f"{name}:2"):  # what runs already is used and left open by the next
        yield name


LONG = 120  # seconds after which a test gives up what has to come; on no machine it takes so long
END = 25  # seconds in which a process ends that was told to; those that were not take longer


def until(event):
    """Wait for what a function returns, once that is true."""
    end = time.monotonic() + LONG
    while not (found := event()):
        assert time.monotonic() < end, f"{event} did not come to pass"
        time.sleep(0.02)
    return found


def look(process, method):
    """What a method of a process returns; None if it has ended meanwhile."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        return getattr(process, method)()
    return None


def ended(processes):
    """Whether all of these processes end."""
    import psutil

    return not psutil.wait_procs(processes, timeout=END)[1]


def busy(processes, seconds=0.5):
    """Wait until one of these processes is at work: it has used the processor for so long."""

    def used(process):
        times = look(process, "cpu_times")
        return times.user if times else 0.0

    before = {process: used(process) for process in processes}
    until(lambda: any(used(process) > start + seconds for process, start in before.items()))


def started(word=""):
    """Processes below this one that a run may have started.

    Neither the one that Python itself keeps for shared memory nor the browser and the federation
    of other tests are among them. With a `word`, those that have it in their command line.
    """
    import psutil

    def line(process):
        try:
            return " ".join(process.cmdline())
        except psutil.Error:  # it is ending
            return ""

    every = psutil.Process().children(recursive=True)
    others = ("resource_tracker", "chromium", "playwright", "localpower site join", "nvflare")
    lines = [(process, line(process)) for process in every]
    return [p for p, text in lines if word in text and not any(name in text for name in others)]
