"""Random sampling of ratings by their own epsilon (RSM)."""

from __future__ import annotations

import numpy as np

from models.privacy.noise import NoiseSource
from models.ratings import Doubles, Ratings


def sample_ratings(ratings: Ratings, epsilon: Doubles, threshold: float, noise: NoiseSource) -> Ratings:
    """Keep each rating independently with probability min(1, (e^epsilon - 1) / (e^threshold - 1)).

    Zhang et al., KBS 183 (2019), Algorithm 1; Jorgensen, Yu and Cormode, ICDE 2015.

    Args:
      epsilon: shape (n,), each rating's own.
      threshold: what the mechanism that follows costs; positive.
    Guarantee:
      After a mechanism that is threshold-DP under add_or_remove, a rating has its own epsilon or the
      threshold, whichever is less. After one that is so under replace_value alone, it has the threshold.
    """
    return ratings.where(noise.keep(keeping_probability(epsilon, threshold)))


def keeping_probability(epsilon: Doubles, threshold: float) -> Doubles:
    """min(1, (e^epsilon - 1) / (e^threshold - 1)), without overflow; shape as `epsilon`."""
    own = np.minimum(epsilon, threshold)
    # e^a - 1 = e^a (1 - e^-a): the factor e^(own - threshold) cannot overflow.
    result: Doubles = np.exp(own - threshold) * np.expm1(-own) / np.expm1(-threshold)
    return result
