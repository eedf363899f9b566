from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from models.privacy.gaussian import discrete_gaussian_delta, discrete_gaussian_multiplier


def continuous_delta(epsilon: float, multiplier: float) -> float:
    mu = 1 / multiplier
    return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def true_discrete_delta(epsilon: float, s: float, shift: int) -> float:
    """Delta of one coordinate shifted by `shift` steps, summed over the integers."""
    k = np.arange(-int(12 * s) - shift, int(12 * s) + shift + 1, dtype=float)
    p, q = np.exp(-(k**2) / (2 * s**2)), np.exp(-((k - shift) ** 2) / (2 * s**2))
    return float(np.maximum(p - np.exp(epsilon) * q, 0).sum() / p.sum())


@pytest.mark.parametrize(("epsilon", "mu"), [(0.25, 0.0649), (1, 0.2367), (4, 0.8379), (8, 1.5315)])
def test_the_golden_values_of_systems_h2(epsilon: float, mu: float) -> None:
    """1 / multiplier at delta 1e-6, where the grid is fine enough not to matter."""
    multiplier = discrete_gaussian_multiplier(epsilon, 1e-6, steps=2**20, cells=2**20)
    assert 1 / multiplier == pytest.approx(mu, rel=2e-3)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 5.0])
def test_the_multiplier_meets_the_promise_and_hardly_more(epsilon: float) -> None:
    multiplier = discrete_gaussian_multiplier(epsilon, 1e-6, steps=2**20, cells=2**20)
    assert continuous_delta(epsilon, multiplier) <= 1e-6
    assert continuous_delta(epsilon, multiplier * 0.99) > 1e-6


@pytest.mark.parametrize(("s", "shift"), [(3.0, 1), (3.0, 3), (8.0, 5), (40.0, 20), (2.0, 2)])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_the_lemma_bounds_the_discrete_gaussian_even_on_a_coarse_grid(s: float, shift: int, epsilon: float) -> None:
    bound = discrete_gaussian_delta(epsilon, s / shift, steps=shift, cells=1)
    assert true_discrete_delta(epsilon, s, shift) <= bound


def test_without_the_lemma_the_continuous_formula_would_be_wrong_on_a_coarse_grid() -> None:
    """The correction is needed: somewhere the discrete delta exceeds the continuous one."""
    excess = max(
        true_discrete_delta(epsilon, s, shift) / continuous_delta(epsilon, s / shift)
        for s in (1.5, 2.0, 3.0)
        for shift in (1, 2, 3)
        for epsilon in np.linspace(0.1, 3, 30)
    )
    assert excess > 1.01


def test_several_cells_are_covered_too() -> None:
    """Two coordinates moved by one step each, summed over the plane."""
    s, epsilon = 2.0, 0.5
    k = np.arange(-40, 41, dtype=float)
    x, y = np.meshgrid(k, k)
    p = np.exp(-(x**2 + y**2) / (2 * s**2))
    q = np.exp(-((x - 1) ** 2 + (y - 1) ** 2) / (2 * s**2))
    delta = np.maximum(p - np.exp(epsilon) * q, 0).sum() / p.sum()
    steps = np.sqrt(2)  # the L2 norm of the move; the lemma does not need an integer
    bound = discrete_gaussian_delta(epsilon, s / steps, steps=steps, cells=2)
    assert delta <= bound
    lost = np.sqrt(2) * steps / (2 * s**2)
    assert bound == pytest.approx(np.exp(2 / (24 * s**2)) * continuous_delta(epsilon - lost, s / steps), rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("delta", [1e-30, 1e-6, 0.5])
def test_every_promise_that_can_be_declared_can_be_calibrated(epsilon: float, delta: float) -> None:
    multiplier = discrete_gaussian_multiplier(epsilon, delta, steps=2**20, cells=2**20)
    assert 0 < multiplier < 1e9
    assert discrete_gaussian_delta(epsilon, multiplier, steps=2**20, cells=2**20) <= delta


def test_a_coarse_grid_takes_visibly_more_noise() -> None:
    """So that a calibration for another grid than the one used cannot pass unnoticed."""
    fine = discrete_gaussian_multiplier(1.0, 1e-6, steps=2**20, cells=2**20)
    coarse = discrete_gaussian_multiplier(1.0, 1e-6, steps=2**10, cells=2**20)
    assert coarse > 1.02 * fine
