"""How much discrete Gaussian noise an (epsilon, delta) promise takes, exactly.

The continuous Gaussian's delta(epsilon) (Balle and Wang, ICML 2018) is not quite the discrete one's.
The lemma below bounds the difference; docs/guarantees.md derives it.

Lemma. Let noise be discrete Gaussian with parameter s (grid steps) on every coordinate, and let one
unit move the data by an integer vector D with at most k non-zero coordinates and L2 norm at most B.
Then delta_discrete(epsilon) <= exp(k / (24 s^2)) * delta_continuous(epsilon - sqrt(k) B / (2 s^2)),
where delta_continuous belongs to the continuous Gaussian with the same s and B.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.optimize import brentq


@cache
def discrete_gaussian_multiplier(epsilon: float, delta: float, *, steps: int, cells: int) -> float:
    """The least noise multiplier (s / steps) that makes the discrete Gaussian (epsilon, delta)-DP.

    Args:
      epsilon, delta: the promise; positive, delta below 1.
      steps: L2 sensitivity in grid steps (B in the lemma).
      cells: most coordinates that one unit can touch (k in the lemma).
    Returns:
      Noise stddev over L2 sensitivity, dimensionless.
    """

    def excess(log_multiplier: float) -> float:
        multiplier = float(np.exp(log_multiplier))
        return float(np.log(discrete_gaussian_delta(epsilon, multiplier, steps=steps, cells=cells) / delta))

    root = brentq(excess, np.log(1e-3), np.log(1e13), xtol=1e-12)
    return float(np.exp(root)) * (1 + 1e-6)  # on the safe side of the root and of its rounding


@cache
def discrete_gaussian_reach(epsilon: float, delta: float, *, stddev: float, cells: int) -> float:
    """The largest L2 norm of a move that noise made for somebody else keeps (epsilon, delta)-DP.

    Not simply stddev over the multiplier that epsilon would take: that one is calibrated for a unit of full norm,
    whose noise would be larger, and the lemma's correction is smaller there.

    Args:
      epsilon, delta: the promise to this unit; positive, delta below 1.
      stddev: the noise, in grid steps (s in the lemma).
      cells: most coordinates that one unit can touch (k in the lemma).
    Returns:
      The norm in grid steps (B in the lemma), rounded down by a millionth.
    """

    def excess(log_norm: float) -> float:
        norm = float(np.exp(log_norm))
        return float(np.log(discrete_gaussian_delta(epsilon, stddev / norm, steps=norm, cells=cells) / delta))

    root = brentq(excess, np.log(stddev * 1e-9), np.log(stddev * 1e3), xtol=1e-12)
    return float(np.exp(root)) / (1 + 1e-6)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon that the continuous Gaussian keeps at `delta`; `mu` is the L2 norm of the move over the stddev."""
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    loss = GaussianPrivacyLoss(1 / mu)

    def excess(epsilon: float) -> float:
        return float(loss.get_delta_for_epsilon(epsilon)) - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, mu**2 / 2 + mu * np.sqrt(2 * np.log(1 / delta)) + 1, xtol=1e-9))


def discrete_gaussian_delta(epsilon: float, multiplier: float, *, steps: float, cells: int) -> float:
    """Upper bound on delta at `epsilon` by the lemma above."""
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    s_squared = (multiplier * steps) ** 2
    lost_epsilon = np.sqrt(cells) * steps / (2 * s_squared)
    if lost_epsilon >= epsilon:
        return 1.0
    continuous = GaussianPrivacyLoss(multiplier).get_delta_for_epsilon(epsilon - lost_epsilon)
    return float(min(1.0, np.exp(min(cells / (24 * s_squared), 700.0)) * max(continuous, 1e-300)))
