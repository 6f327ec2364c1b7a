"""Check what certificates say against the truth, on generated matrices of all kinds.

    python benchmarks/certificates.py --count 10000 --adversarial 2000

Each matrix, its shards and the options of the run come from a generator with the number of the
matrix as its seed. The truth is LAPACK's singular value decomposition, in float64, of the matrix as
the run sees it. Adversarial ones, numbered from a million, hide something that the start is likely
to miss, and have few rounds. Of each run are checked:

- that the reported angle is not below the sine of the true one by more than 10 times, where the gap
  after the rank is above what rounding moves eigenvalues by (`NOISE`);
- that the reported residual is not below the true backward error by more than 10 times;
- that it is not said to have converged with a true angle above 10 tol, where the gap is above tol,
  or else with a last value that is too small by more than 10 tol;
- that what is proven is true to rounding, without the 10;
- that it ends without an exception or a warning, other than that it has not converged.

What is not proven may be wrong as often as its p says: of results with a p of at most α, a share of
α. The summary counts them.

Matrices that the output lists are not run again, so a run can be stopped and started at any time.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

import localpower as lp

BATCH = 100
SLACK = 10.0
NOISE = 8.0  # units of eps·√(n + d) that a relative gap is above to mean anything
ADVERSARIAL = 1_000_000  # the first number of an adversarial matrix
CERTAINTIES = (0.3, 0.1, 0.01, 0.001, 1e-6)
LEVELS = (0.1, 0.01, 0.001)
HERE = Path(__file__).parent

KINDS = ("generic", "falling", "tie", "near tie", "cluster", "flat", "low rank", "graded", "one",
         "zero")  # fmt: skip
HIDDEN = ("shared", "one shard", "few rows", "blocks", "blind", "blind tie")
ARRANGED = ("alike", "sorted", "apart")
SCALES = {"float32": (1.0, 1e30, 1e-30), "float64": (1.0, 1e100, 1e-100, 1e150, 1e-150)}
METHODS = (
    {"method": "local_ritz", "proposal": "model"},
    {"method": "local_ritz", "proposal": "model"},
    {"method": "local_ritz", "proposal": "model", "start": "merged:3"},
    {"method": "local_ritz", "proposal": "anchor+residual"},
    {"method": "local_ritz", "proposal": "all+residual"},
    {"method": "local_ritz", "proposal": "anchor"},
    {"method": "local_ritz", "proposal": "all"},
    {"method": "block_krylov"},
    {"method": "block_krylov"},
    {"method": "block_lanczos"},
    {"method": "block_lanczos"},
    {"method": "block_lanczos"},
    {"method": "dpi"},
    {"method": "dpi"},
    {"method": "local_power", "schedule": "constant"},
    {"method": "local_power", "schedule": "halving"},
    {"method": "local_power", "schedule": "adaptive"},
)


OPTIONS = ("proposal", "schedule", "start", "width")  # of methods
STARTED = ("local_ritz", "block_krylov")

# Matrices


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A matrix in shards, what it is like, and how it is to be factored."""

    kind: str
    arranged: str
    scale: float
    blocks: list[np.ndarray]
    rank: int
    options: dict[str, Any]

    @property
    def rows(self) -> np.ndarray:
        """All rows."""
        return np.vstack(self.blocks)


def draw(number: int) -> Case:
    """Make the matrix of that number, and draw options."""
    if number >= ADVERSARIAL:
        return draw_adversarial(number)
    rng = np.random.default_rng(number)
    rows = int(rng.integers(1, 61) if rng.random() < 0.8 else rng.integers(61, 301))
    columns = int(rng.integers(1, 41))
    most = min(rows, columns)
    rank = int(rng.integers(1, (most if rng.random() < 0.3 else min(most, 6)) + 1))
    kind, arranged = str(rng.choice(KINDS)), str(rng.choice(ARRANGED))
    dtype = str(rng.choice(list(SCALES)))
    scale = float(rng.choice(SCALES[dtype]) if rng.random() < 0.6 else 1.0)
    center = bool(rng.random() < 0.3)
    cuts = _cuts(rng, rows, int(rng.choice([1, 2, 3, 7])))
    values = spectrum(rng, kind, min(rows - center, columns), rank)
    A = _left(rng, cuts, len(values), center, arranged == "apart") * values
    V = _orthonormal(rng, columns, len(values))
    A = A @ V.T
    if arranged == "sorted":
        A = A[np.argsort(A @ V[:, :1].sum(axis=1))]
    if center:
        A += rng.choice([0.0, 1.0, 100.0]) * rng.standard_normal(columns)
    A = (A * scale).astype(dtype)
    width = None if rng.random() < 0.75 else int(rng.integers(rank, columns + 1))
    options = rng.choice(METHODS) | {
        "tol": float(10.0 ** rng.uniform(-10, -2)),
        "max_rounds": int(rng.choice([3, 10, 30, 100])),
        "width": width,
        "center": center,
        "rng": number,
        "certainty": float(rng.choice(CERTAINTIES)),
    }
    return Case(kind, arranged, scale, [A[a:b] for a, b in pairwise(cuts)], rank, options)


def draw_adversarial(number: int) -> Case:
    """Make a matrix that hides something, and draw options."""
    rng = np.random.default_rng(number)
    kind, seed = str(rng.choice(HIDDEN)), number + ADVERSARIAL
    options = dict(rng.choice(METHODS))
    if kind.startswith("blind") or rng.random() < 0.7:
        options |= {"start": "random"} if options["method"] in STARTED else {}
    rank, width = int(rng.integers(1, 4)), None
    if kind.startswith("blind"):
        width = rank + int(rng.integers(0, 3))
    blocks = hidden(rng, kind, rank, width or 0, seed)
    options |= {
        "tol": float(10.0 ** rng.uniform(-8, -1)),
        "max_rounds": int(rng.choice([2, 3, 4, 6, 8, 12, 30])),
        "width": width,
        "center": False,
        "rng": seed,
        "certainty": float(rng.choice(CERTAINTIES[:3] if rng.random() < 0.7 else CERTAINTIES)),
    }
    if rng.random() < 0.2:
        blocks = [block.astype(np.float32) for block in blocks]
    return Case(kind, "hidden", 1.0, blocks, rank, options)


def hidden(
    rng: np.random.Generator, kind: str, rank: int, width: int, seed: int
) -> list[np.ndarray]:
    """Shards with a direction that a start is likely to miss."""
    shards, lead = int(rng.integers(2, 9)), 1 + 10.0 ** rng.uniform(-2, 0.5)
    if kind == "shared":  # weak in every shard, and strong in their sum
        own = int(rng.integers(1, 9))
        blocks = []
        for i in range(shards):
            A = np.zeros((own + 1, 1 + shards * own))
            mine = [0, *range(1 + i * own, 1 + i * own + own)]
            sizes = np.sqrt(np.r_[lead / shards, rng.uniform(0.5, 1, own)])
            A[:, mine] = _orthonormal(rng, own + 1, own + 1) * sizes
            blocks.append(A)
        return blocks
    d = int(rng.integers(12 + width, 81))
    if kind == "blocks":  # each shard has columns of its own
        columns = np.array_split(rng.permutation(d), shards)
        blocks = [np.zeros((len(mine), d)) for mine in columns]
        for block, mine in zip(blocks, columns, strict=True):
            block[:, mine] = _orthonormal(rng, len(mine), len(mine))
            block *= np.sqrt(rng.uniform(0.1, 1, len(mine)))[:, None]
        return blocks
    if kind.startswith("blind"):  # the random start lies in an invariant subspace
        Z = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, width)))[0]
        V = np.linalg.qr(np.hstack([Z, rng.standard_normal((d, d - width))]))[0]
        values = np.r_[np.sort(rng.uniform(0.5, 1, width))[::-1], rng.uniform(0, 0.4, d - width)]
        if kind == "blind tie":
            values[:width] = values[rank - 1]
        values[width : width + int(rng.integers(1, rank + 1))] = lead * values[rank - 1]
        A = (_orthonormal(rng, d, d) * np.sqrt(values)) @ V.T
        return np.array_split(A, shards)
    A = rng.standard_normal((shards * int(rng.integers(3, 12)), d)) * np.r_[np.ones(d - 1), 0.0]
    row = int(rng.integers(len(A)))
    A[row : row + (1 if kind == "one shard" else 3), -1] = lead * np.linalg.norm(A, 2)
    return np.array_split(A, shards)


def spectrum(rng: np.random.Generator, kind: str, count: int, rank: int) -> np.ndarray:
    """Singular values of a kind, descending; ties and gaps are after the first `rank`."""
    j = np.arange(count)
    values = np.sort(rng.uniform(0, 1, count))[::-1]
    first, last = max(rank - 1 - int(rng.integers(0, 3)), 0), rank + 1 + int(rng.integers(0, 8))
    gap = 10.0 ** rng.uniform(-12, -3)
    middle = values[first : first + 1].sum()
    match kind:
        case "falling":
            values = rng.uniform(0.2, 1.0) ** j
        case "tie":
            values[first:last] = middle
        case "near tie":
            values[rank : rank + 1] = (1 - gap) * values[rank - 1 : rank].sum()
        case "cluster":
            values[first:last] = middle * (1 - gap * np.sort(rng.random(len(values[first:last]))))
        case "flat":
            level = max(count - int(rng.integers(1, 6)), 0)
            values[:level] = 1 - gap * rng.random(level)
            values[level:] *= 0.7
        case "low rank":
            values[int(rng.integers(0, rank)) :] = 0
        case "graded":
            values = 10.0 ** -np.linspace(0, rng.uniform(2, 16), count)
        case "zero":
            values = np.zeros(count)
        case "one":
            values[:1] = 10.0 ** rng.uniform(1, 8)
    return np.sort(values)[::-1]


def _cuts(rng: np.random.Generator, rows: int, shards: int) -> list[int]:
    """Where shards begin and end: equal or not; some may have no rows."""
    if rng.random() < 0.5:
        return [rows * i // shards for i in range(shards + 1)]
    return [0, *sorted(rng.integers(0, rows + 1, shards - 1).tolist()), rows]


def _orthonormal(rng: np.random.Generator, rows: int, count: int, center: bool = False) -> Any:
    """Random orthonormal columns, of mean 0 if `center`; or unit vectors now and then."""
    if not center and rng.random() < 0.25:
        return np.eye(rows)[:, rng.permutation(rows)[:count]]
    G = rng.standard_normal((rows, count))
    return np.linalg.qr(G - G.mean(axis=0) if center and rows else G)[0]


def _left(
    rng: np.random.Generator, cuts: list[int], count: int, center: bool, apart: bool
) -> np.ndarray:
    """Left singular vectors; if `apart`, each is nonzero in one shard only, as far as they fit."""
    if not apart:
        return _orthonormal(rng, cuts[-1], count, center)
    U = np.zeros((cuts[-1], count))
    for i, (a, b) in enumerate(pairwise(cuts)):
        mine = np.arange(i, count, len(cuts) - 1)[: max(b - a - center, 0)]
        U[a:b, mine] = _orthonormal(rng, b - a, len(mine), center)
    return U


# Runs


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one matrix: what was reported, what is true, and whether that is fair.

    `gap` is relative, of squared singular values; `sine` and `backward` are the true errors of what
    was reported as `angle` and `residual`. A `width` of 0 is the default.
    """

    seed: int
    kind: str
    rows: int
    columns: int
    rank: int
    dtype: str
    scale: float
    shards: int
    arranged: str
    center: bool
    method: str
    width: int
    tol: float
    certainty: float
    rounds: int = 0
    reason: str = ""
    converged: bool = False
    proven: bool = False
    p: float = 1.0
    gap: float = 0.0
    angle: float = 1.0
    sine: float = 0.0
    residual: float = 1.0
    backward: float = 0.0
    angle_too_small: bool = False
    residual_too_small: bool = False
    falsely_converged: bool = False
    proven_wrong: bool = False
    crashed: str = ""
    version: str = lp.__version__


VERDICTS = (
    "angle_too_small",
    "residual_too_small",
    "falsely_converged",
    "proven_wrong",
    "crashed",
)


def examine(number: int) -> Row:
    """Factor the matrix of that number, and compare with the truth."""
    case = draw(number)
    A, o = case.rows, case.options
    name = " ".join(o[key] for key in ("method", "proposal", "schedule", "start") if key in o)
    like = (case.kind, *A.shape, case.rank, A.dtype.name, case.scale, len(case.blocks))
    like += (case.arranged, o["center"], name, o["width"] or 0, _short(o["tol"]), o["certainty"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", lp.ConvergenceWarning)
            warnings.simplefilter("ignore", lp.DataHint)
            result = lp.svd(case.blocks, case.rank, engine="inline", **arguments(o))
        return Row(number, *like, **judged(A, result, o["tol"]))
    except Exception as error:
        return Row(number, *like, crashed=f"{type(error).__name__}: {error}")


def arguments(drawn: dict[str, Any]) -> dict[str, Any]:
    """Options as `svd` takes them: those of the method go into its text."""
    mine = {key: drawn[key] for key in OPTIONS if drawn.get(key) is not None}
    text = ",".join(f"{key}={value}" for key, value in mine.items())
    others = {key: value for key, value in drawn.items() if key not in OPTIONS}
    return others | {"method": f"{drawn['method']}:{text}"}


def judged(A: np.ndarray, result: lp.Result, tol: float) -> dict[str, Any]:
    """What was reported, what is true, and whether that is fair."""
    gap, sine, backward, short = truth(A, result)
    last = result.history[-1]
    angle = 1.0 if last.angle is None else last.angle
    residual = 1.0 if last.residual is None else last.residual
    noise = NOISE * float(np.finfo(A.dtype).eps) * np.sqrt(sum(A.shape))
    tie = gap <= tol and short > SLACK * (tol + noise)
    far = gap > tol and sine > SLACK * tol
    return {
        "rounds": len(result.history),
        "reason": result.reason,
        "converged": result.converged,
        "proven": bool(last.proven),
        "p": _short(1.0 if last.p is None else last.p),
        "gap": _short(gap),
        "angle": _short(angle),
        "sine": _short(sine),
        "residual": _short(residual),
        "backward": _short(backward),
        "angle_too_small": bool(gap > noise and sine > SLACK * angle),
        "residual_too_small": bool(backward > SLACK * residual),
        "falsely_converged": bool(result.converged and (far or tie)),
        "proven_wrong": bool(last.proven and gap > noise and sine > angle + noise / gap),
    }


def truth(A: np.ndarray, result: lp.Result) -> tuple[float, float, float, float]:
    """Relative gap after the rank, sine, largest backward error, and what the last value lacks.

    The matrix is A, less the mean that the run subtracted.
    """
    seen = (A if result.mean is None else A - result.mean).astype(float)
    exponent = int(np.frexp(np.abs(seen).max())[1])
    seen = np.ldexp(seen, -exponent)
    values, Vt = np.linalg.svd(seen)[1:]
    V, k = result.components.T.astype(float), len(result.singular_values)
    squares = np.zeros(A.shape[1] + 1)
    squares[: len(values)] = values**2
    top = squares[0] or 1.0
    theta = np.ldexp(result.singular_values.astype(float), -exponent) ** 2
    R = seen.T @ (seen @ V) - V * theta
    sine = lp.subspace_distance(Vt[:k].T, V)
    backward = float(np.linalg.norm(R, axis=0).max() / top)
    return (squares[k - 1] - squares[k]) / top, sine, backward, (squares[k - 1] - theta[-1]) / top


def _short(x: float) -> float:
    return float(f"{x:.3g}")


# The campaign


def run(count: int, output: Path, adversarial: int = 0) -> Iterator[Row]:
    """Examine the matrices that the output does not list, and list them."""
    done = {row["seed"] for row in listed(output)}
    numbers = chain(range(count), range(ADVERSARIAL, ADVERSARIAL + adversarial))
    left = (number for number in numbers if str(number) not in done)
    with open(output, "a", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [field.name for field in fields(Row)])
        if not stream.tell():
            table.writeheader()
        while found := [examine(number) for number in islice(left, BATCH)]:
            table.writerows(map(asdict, found))
            stream.flush()
            yield from found


def listed(output: Path) -> list[dict[str, str]]:
    """Rows of this version."""
    if not output.exists():
        return []
    with open(output, encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["version"] == lp.__version__]


def bad(row: dict[str, str], verdict: str) -> bool:
    """Whether a listed row has that verdict."""
    return row[verdict] not in ("", "False")


def wrong(row: dict[str, str]) -> bool:
    """Whether what a listed row claims is not true."""
    return bad(row, "angle_too_small") or bad(row, "falsely_converged")


def allowed(chance: float, count: int) -> float:
    """How many of so many may be wrong: as many as the chance says, and three deviations more."""
    return chance * count + 3 * float(np.sqrt(chance * count))


def levels(rows: list[dict[str, str]]) -> Iterator[tuple[float, int, int]]:
    """For each α: results not proven with a p of at most α, and how many of them are wrong."""
    for alpha in LEVELS:
        sure = [row for row in rows if row["proven"] == "False" and float(row["p"]) <= alpha]
        yield alpha, len(sure), sum(map(wrong, sure))


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; the exit code is 1 if more of it was judged badly than may be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--adversarial", type=int, default=2_000)
    parser.add_argument("--output", type=Path, default=HERE / "certificates.csv")
    options = parser.parse_args(arguments)

    for done, _ in enumerate(run(options.count, options.output, options.adversarial), 1):
        if sys.stderr.isatty():
            print(f"\r{done} matrices  ", end="", file=sys.stderr, flush=True)
    rows = listed(options.output)
    ended = sum(row["converged"] == "True" for row in rows)
    counts = {verdict: sum(bad(row, verdict) for row in rows) for verdict in VERDICTS}
    print(f"{len(rows)} matrices, {ended} converged; " + ", ".join(
        f"{name.replace('_', ' ')}: {number}" for name, number in counts.items()
    ))  # fmt: skip
    failed = any(counts[name] for name in ("residual_too_small", "proven_wrong", "crashed"))
    for alpha, count, false in levels(rows):
        print(f"p <= {alpha}: {count} results, {false} wrong, {alpha * len(rows):.0f} allowed")
        failed |= false > allowed(alpha, len(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
