from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from models.privacy.gaussian import discrete_gaussian_delta, discrete_gaussian_multiplier, discrete_gaussian_reach


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


GRID = 2**20


@pytest.mark.parametrize(("most", "own"), [(1.0, 0.1), (1.0, 0.99), (8.0, 0.5), (0.3, 1e-6), (1e3, 1.0), (1e3, 1e-6)])
@pytest.mark.parametrize("delta", [1e-6, 1e-12])
def test_a_smaller_move_is_kept_to_a_smaller_epsilon_and_hardly_a_larger_one_is(
    most: float, own: float, delta: float
) -> None:
    stddev = discrete_gaussian_multiplier(most, delta, steps=GRID, cells=GRID) * GRID
    norm = discrete_gaussian_reach(own, delta, stddev=stddev, cells=GRID)
    assert discrete_gaussian_delta(own, stddev / norm, steps=norm, cells=GRID) <= delta
    larger = norm * (1 + 1e-5)
    assert discrete_gaussian_delta(own, stddev / larger, steps=larger, cells=GRID) > delta


def test_the_ratio_of_multipliers_would_be_too_large_a_move() -> None:
    """It calibrates each epsilon as if it had its own, larger noise."""
    most, own, delta, grid = 1.0, 0.1, 1e-6, 2**12
    multiplier = discrete_gaussian_multiplier(most, delta, steps=grid, cells=GRID)
    ratio = multiplier / discrete_gaussian_multiplier(own, delta, steps=grid, cells=GRID) * grid
    assert discrete_gaussian_delta(own, multiplier * grid / ratio, steps=ratio, cells=GRID) > delta
    assert discrete_gaussian_reach(own, delta, stddev=multiplier * grid, cells=GRID) < ratio


def test_one_with_the_largest_epsilon_may_move_by_all_that_was_calibrated() -> None:
    stddev = discrete_gaussian_multiplier(1.0, 1e-6, steps=GRID, cells=GRID) * GRID
    assert discrete_gaussian_reach(1.0, 1e-6, stddev=stddev, cells=GRID) == pytest.approx(GRID, rel=1e-5)


@pytest.mark.parametrize(("s", "own"), [(6.0, 0.3), (12.0, 0.2), (40.0, 0.05)])
def test_the_true_delta_of_a_move_within_reach_is_as_promised(s: float, own: float) -> None:
    shift = int(discrete_gaussian_reach(own, 1e-2, stddev=s, cells=1))
    assert shift >= 1
    assert true_discrete_delta(own, s, shift) <= 1e-2
