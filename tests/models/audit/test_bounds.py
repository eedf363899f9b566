from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from models.audit.bounds import epsilon_bound, gaussian_bound, rate_bounds, share_of_error


@pytest.mark.parametrize("n", [1, 7, 50, 400])
@pytest.mark.parametrize("error", [0.2, 0.01])
def test_either_bound_of_a_rate_fails_as_seldom_as_it_says_and_hardly_less_often(n: int, error: float) -> None:
    """Summed over all outcomes, for every rate; nothing is simulated."""
    counts = np.arange(n + 1)
    low, high = rate_bounds(counts, counts, n, error)
    rates = np.linspace(0, 1, 501)
    above = np.array([binom.pmf(counts, n, rate)[low > rate].sum() for rate in rates])
    below = np.array([binom.pmf(counts, n, rate)[high < rate].sum() for rate in rates])
    assert max(above.max(), below.max()) <= error * (1 + 1e-9)
    assert min(above.max(), below.max()) >= 0.8 * error


@pytest.mark.parametrize(("hits", "misses", "n"), [(0, 0, 10), (7, 2, 10), (10, 10, 10), (4321, 1234, 5000)])
def test_the_bounds_are_scipys(hits: int, misses: int, n: int) -> None:
    low, high = rate_bounds(hits, misses, n, 0.01)
    assert float(low) == pytest.approx(binomtest(hits, n).proportion_ci(0.98, "exact").low)
    assert float(high) == pytest.approx(binomtest(misses, n).proportion_ci(0.98, "exact").high)


def test_a_bound_of_the_normal_approximation_would_fail_too_often() -> None:
    """So that the test above can fail: of rare events the textbook interval says too much."""
    n, error, counts = 400, 0.01, np.arange(401)
    rate = counts / n
    high = rate + norm.ppf(1 - error) * np.sqrt(rate * (1 - rate) / n)
    assert binom.pmf(counts, n, 0.003)[high < 0.003].sum() > 0.3


def test_an_event_that_always_and_never_happens_shows_as_much_as_the_runs_allow() -> None:
    n, error = 100, 0.01
    least = error ** (1 / n)
    assert epsilon_bound(n, 0, n, error) == pytest.approx(np.log(least / (1 - least)))
    assert gaussian_bound(n, 0, n, error) == pytest.approx(2 * norm.ppf(least))


@pytest.mark.parametrize("delta", [0.0, 0.01, 0.2])
def test_delta_is_given_away_before_the_ratio_is_taken(delta: float) -> None:
    (low,), (high,) = rate_bounds(np.array([900]), np.array([300]), 1000, 0.01)
    shown = epsilon_bound(np.array([900]), np.array([300]), 1000, 0.01, delta)
    assert shown == pytest.approx(np.log((low - delta) / high))


def test_events_that_are_no_likelier_show_nothing_and_never_less() -> None:
    counts = np.array([0, 5, 50, 100])
    assert (epsilon_bound(counts, counts, 100, 0.05) == 0).all()
    assert (gaussian_bound(counts, counts, 100, 0.05) == 0).all()
    assert (epsilon_bound(0 * counts, counts, 100, 0.05, 0.1) == 0).all()


def test_the_error_is_shared_among_all_rates_of_all_events() -> None:
    assert 2 * 7 * share_of_error(0.95, 7) == pytest.approx(0.05)
