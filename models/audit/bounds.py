"""From counts to a privacy loss that is shown: confidence bounds on two rates, and what they imply.

An event has probability p under one data set and q under its neighbour. Whatever is (epsilon, delta)-private has
p <= e^epsilon q + delta; whatever is no easier to tell apart than N(0, 1) and N(mu, 1) has
Phi^-1(p) - Phi^-1(q) <= mu (Dong, Roth and Su, JRSS B 2022). A lower bound of p and an upper bound of q therefore
bound epsilon and mu from below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from models.ratings import Doubles

Counts = int | NDArray[np.int64]


def share_of_error(confidence: float, n_tests: int) -> float:
    """What each of the two rates of each of `n_tests` events may err with (Bonferroni)."""
    return (1 - confidence) / (2 * n_tests)


def rate_bounds(hits: Counts, misses: Counts, n: int, error: float) -> tuple[Doubles, Doubles]:
    """Of `hits` of `n` from below and of `misses` of `n` from above, each failing with probability `error` at most.

    Clopper and Pearson, Biometrika 26 (1934).
    """
    h, m = np.asarray(hits), np.asarray(misses)
    low = np.where(h > 0, betaincinv(np.maximum(h, 1), n - h + 1, error), 0.0)
    high = np.where(m < n, 1 - betaincinv(np.maximum(n - m, 1), m + 1, error), 1.0)
    return low, high


def epsilon_bound(hits: Counts, misses: Counts, n: int, error: float, delta: float = 0.0) -> Doubles:
    """The epsilon that an event shows at `delta`, seen `hits` times of `n` under one and `misses` under the other."""
    low, high = rate_bounds(hits, misses, n, error)
    shown: Doubles = np.log(np.maximum((low - delta) / high, 1.0))
    return shown


def gaussian_bound(hits: Counts, misses: Counts, n: int, error: float) -> Doubles:
    """The mu that an event shows; as `epsilon_bound`."""
    low, high = rate_bounds(hits, misses, n, error)
    inside = (low > 0) & (high < 1)
    mu = ndtri(np.where(inside, low, 0.5)) - ndtri(np.where(inside, high, 0.5))
    shown: Doubles = np.maximum(mu, 0.0)
    return shown
