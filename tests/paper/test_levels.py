"""The paper's settings on its own data: where each variant ends."""

import numpy as np
import pytest

import localpower as lp
from localpower.data.source import open_source

VARIANTS = {
    "procrustes": "local_power:steps=4",
    "signs": "local_power:steps=4,align=signs",
    "none": "local_power:steps=4,align=none",
    "halving": "local_power:steps=4,schedule=halving",
    "dpi": "dpi",
}
ROUNDS = {"poker": 150, "w8a": 50}  # poker has a small gap after column-maximum scaling
STALL = {"poker": 150}  # rounds after which the variants with p = 4 are where they stay
# Final error of procrustes and signs with p = 4 in the paper. It scores the leading four columns
# after min-max scaling; that makes poker another problem, so it is left out here.
PAPER = {
    "a9a": {"procrustes": 4.1e-3, "signs": 5.8e-3},
    "w8a": {"procrustes": 1.9e-2, "signs": 1.8e-2},
    "space_ga": {"procrustes": 2.8e-4, "signs": 5.1e-4},
    "abalone": {"procrustes": 3.2e-3, "signs": 3.9e-3},
}


def four_columns(basis, target):
    return np.linalg.norm(basis[:, :4] - target @ (target.T @ basis[:, :4]), 2)


@pytest.fixture(scope="module", params=["a9a", "w8a", "poker", "space_ga", "abalone"])
def errors(request, data_set):
    """Per variant: error on all five columns after each round, and on four at the end."""
    path = data_set(request.param)
    with open_source(path) as source:
        piece = source.pieces[0].read()
    A = piece.toarray() if hasattr(piece, "toarray") else piece.astype(float)
    peak = np.abs(A).max(axis=0)
    target = np.linalg.svd(np.linalg.qr(A / np.where(peak, peak, 1), mode="r"))[2][:5].T
    found = {"name": request.param}
    for variant, method in VARIANTS.items():
        curve, goes_on = [], variant in ("halving", "dpi")
        most = ROUNDS.get(request.param, 40) if goes_on else STALL.get(request.param, 30)
        result = lp.svd(
            path,
            5,
            method,
            workers=max(len(A) // 1000, 3),
            partition="shuffled",
            scale="max",
            max_rounds=most,
            rng=1,
            callback=lambda _, state, to=curve: to.append(
                lp.subspace_distance(target, state.basis)
            ),
        )
        found[variant] = curve
        found[variant, "four"] = four_columns(result.basis, target)
    return found


def test_aligned_variants_stall_at_a_level_that_more_rounds_do_not_lower(errors):
    for variant in ("procrustes", "signs"):
        curve = errors[variant]
        assert curve[-1] > 1e-4
        assert 0.7 < curve[-1] / curve[-10] < 1.4


def test_the_level_is_the_papers(errors):
    for variant, paper in PAPER.get(errors["name"], {}).items():
        assert 0.15 < errors[variant, "four"] / paper < 3


def test_halving_goes_on_to_the_precision_of_dpi(errors):
    assert errors["halving"][-1] < 1.5 * errors["dpi"][-1]
    if errors["name"] != "poker":  # its gap is too small for this many rounds
        assert errors["halving"][-1] < 0.5 * errors["procrustes"][-1]


def test_no_alignment_is_never_better_and_worse_where_the_paper_says(errors):
    late = {variant: np.mean(errors[variant][-10:]) for variant in ("procrustes", "none")}
    assert late["none"] > 0.8 * late["procrustes"]
    if errors["name"] == "a9a":
        assert late["none"] > 2 * late["procrustes"]


def test_larger_p_is_faster_at_first(errors):
    rounds = {v: int(np.argmax(np.array(errors[v]) < 0.3)) for v in ("procrustes", "dpi")}
    assert rounds["procrustes"] <= rounds["dpi"]
    if errors["name"] in ("a9a", "w8a", "poker"):
        assert rounds["procrustes"] < 0.6 * rounds["dpi"]
