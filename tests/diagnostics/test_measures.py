"""Distances and heterogeneity against their definitions."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from helpers import with_spectrum
from hypothesis import given
from hypothesis import strategies as st

import localpower as lp


def basis(d, k, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))[0]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_angles_agree_with_scipy(k, r, seed):
    U, V = basis(9, k, seed), basis(9, r, seed + 1)
    theirs = np.sort(scipy.linalg.subspace_angles(U, V))
    assert np.allclose(lp.principal_angles(U, V), theirs, atol=1e-7)  # theirs lose half the digits


@given(st.integers(1, 6), st.integers(0, 1000))
def test_distance_is_the_norm_of_the_difference_of_projectors(k, seed):
    U, V = basis(8, k, seed), basis(8, k, seed + 1)
    expected = np.linalg.norm(U @ U.T - V @ V.T, 2)
    assert lp.subspace_distance(U, V) == pytest.approx(expected, abs=1e-14)
    assert lp.subspace_distance(V, U) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("angle", [1e-12, 1e-9, 1e-4, 0.3, 1.2])
def test_small_angles_keep_their_digits(angle):
    U, V = np.eye(5)[:, :2], np.eye(5)[:, :2].copy()
    V[:, 1] = [0, np.cos(angle), 0, np.sin(angle), 0]
    assert lp.subspace_distance(U, V) == pytest.approx(np.sin(angle), rel=1e-12)
    assert lp.principal_angles(U, V)[-1] == pytest.approx(angle, rel=1e-12)


def test_a_wider_basis_that_contains_the_other_is_at_distance_zero():
    V = basis(10, 6, 0)
    assert lp.subspace_distance(V[:, :3] @ basis(3, 3, 1), V) < 1e-15
    assert lp.subspace_distance(V, V[:, :3]) < 1e-15


def test_bases_need_not_be_orthonormal():
    U = basis(7, 3, 0)
    skewed = U @ np.array([[1.0, 5, 2], [0, 1e-3, 1], [0, 0, 100]])
    assert lp.subspace_distance(U, skewed) < 1e-10


@pytest.mark.parametrize(
    ("U", "V", "message"),
    [
        (np.eye(3), np.eye(4), r"shapes \(3, 3\) and \(4, 4\)"),
        (np.ones(3), np.eye(3), "matrices"),
        (np.eye(3), np.eye(3)[:, :1] * np.nan, "V has entries"),
        (np.ones((2, 3)), np.ones((2, 1)), r"X\.T"),
    ],
)
def test_wrong_bases_are_refused(U, V, message):
    with pytest.raises(ValueError, match=message):
        lp.subspace_distance(U, V)


def plain_eta(blocks):
    M = sum(B.T @ B for B in blocks) / sum(map(len, blocks))
    return max(np.linalg.norm(B.T @ B / len(B) - M, 2) for B in blocks) / np.linalg.norm(M, 2)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_eta_is_definition_two_at_any_scale(scale):
    blocks = np.split(with_spectrum(100, 0.8 ** np.arange(7), seed=1), [20, 70])
    expected = plain_eta(blocks)
    scaled = [block * scale for block in blocks]
    assert lp.eta(scaled) == pytest.approx(expected, rel=1e-12)
    assert lp.eta([sp.csr_matrix(block) for block in scaled]) == pytest.approx(expected, rel=1e-12)
    assert lp.eta([*scaled, np.empty((0, 7))]) == pytest.approx(expected, rel=1e-12)


def test_eta_without_a_square_matrix_agrees(monkeypatch):
    blocks = np.split(with_spectrum(120, 0.9 ** np.arange(30), seed=2), [50])
    monkeypatch.setattr("localpower.diagnostics.heterogeneity.GRAM_COLUMNS", 5)
    assert lp.eta(blocks) == pytest.approx(plain_eta(blocks), rel=1e-5)


def test_eta_of_equal_orthogonal_and_zero_shards():
    A = with_spectrum(30, [3.0, 2, 1])
    assert lp.eta([A, A]) < 1e-14
    assert lp.eta([np.eye(4)[:2], np.eye(4)[2:]]) == pytest.approx(1.0)
    assert lp.eta([np.zeros((3, 2)), np.zeros((1, 2))]) == 0.0


def test_eta_refuses_nan():
    with pytest.raises(lp.DataError, match="NaN or infinity"):
        lp.eta([np.eye(2), np.full((1, 2), np.nan)])


@pytest.mark.parametrize("shards", [[], [np.ones((2, 3)), np.ones((2, 4))], [np.ones(3)]])
def test_wrong_shards_are_refused(shards):
    with pytest.raises(ValueError, match="shards"):
        lp.eta(shards)
