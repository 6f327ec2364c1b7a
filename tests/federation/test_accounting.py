"""Accounting of Gaussian noise: the closed form is exact, and so are its inverses."""

from math import exp, inf, log

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from localpower.core.gaussian import epsilon_of, log_delta, mu_of, sigma_of

pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
TABLE = {0.1: 36.30, 0.5: 8.058, 1.0: 4.225, 2.0: 2.230, 4.0: 1.193, 8.0: 0.653}


@pytest.mark.parametrize("releases", [1, 3, 10])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-9])
def test_noise_is_what_an_accountant_of_loss_distributions_finds(epsilon, delta, releases):
    sigma = sigma_of(epsilon, delta, releases)
    loss = pld.from_gaussian_mechanism(
        sigma, value_discretization_interval=1e-4, log_mass_truncation_bound=-60
    ).self_compose(releases)
    assert loss.get_epsilon_for_delta(delta) == pytest.approx(epsilon, abs=1e-6)


@pytest.mark.parametrize(("epsilon", "mu"), [(0.1, 0.5), (1.0, 0.3), (1.0, 2.0), (0.0, 1.0)])
def test_delta_is_what_its_definition_gives(epsilon, mu):
    def excess(x):
        return max(norm.pdf(x, mu) - exp(epsilon) * norm.pdf(x), 0.0)

    wanted, _ = quad(excess, epsilon / mu + mu / 2, mu + 12, epsabs=0, epsrel=1e-11)
    assert exp(log_delta(epsilon, mu)) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-6, 0.1, 0.9])
def test_inverses_undo_each_other_and_err_on_the_safe_side(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert log_delta(epsilon, mu) <= log(delta)
    assert log_delta(epsilon, mu * (1 + 1e-9)) > log(delta)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-8)


def test_the_table_of_the_literature_is_met():
    for epsilon, sigma in TABLE.items():
        assert sigma_of(epsilon, 1e-6) == pytest.approx(sigma, abs=6e-3 if epsilon < 0.2 else 6e-4)
    assert sigma_of(1.0, 1e-6, 10) == pytest.approx(13.35961, abs=5e-6)


def test_tiny_and_huge_noise_have_their_limits():
    assert log_delta(1.0, 0.0) == -inf
    assert log_delta(1.0, 100.0) == pytest.approx(0.0, abs=1e-12)
    assert -2e5 < log_delta(0.5, 1e-3) < -1e5  # far below the least float
    assert epsilon_of(1e-3, 1e-2) == 0.0


def test_squares_of_mu_add_up_over_releases():
    once, four = mu_of(1.0, 1e-6), 1 / sigma_of(1.0, 1e-6, 4)
    assert 4 * four**2 == pytest.approx(once**2, rel=1e-12)
