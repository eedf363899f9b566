from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from models.privacy.noise import ExactNoise, SeededNoise
from models.privacy.sampling import keeping_probability, sample_ratings
from models.ratings import Ratings


@given(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3))
def test_probabilities_are_those_of_the_paper_and_never_overflow(epsilon: float, threshold: float) -> None:
    (probability,) = keeping_probability(np.array([epsilon]), threshold)
    assert 0 <= probability <= 1
    if threshold < 300:
        naive = np.expm1(epsilon) / np.expm1(threshold) if epsilon < threshold else 1.0
        assert probability == pytest.approx(naive, rel=1e-9)


def test_an_epsilon_of_nothing_is_never_kept_and_one_above_the_threshold_always() -> None:
    assert keeping_probability(np.array([0.0, 2.0, 1.0]), 1.0).tolist() == [0, 1, 1]


@pytest.mark.parametrize("noise", [ExactNoise(), SeededNoise(2)])
def test_so_many_are_kept_and_neither_more_nor_fewer(ratings: Ratings, noise) -> None:
    def plausible(claimed: float) -> bool:
        n_kept = sum(len(sample_ratings(ratings, np.full(len(ratings), 0.3), 1.0, noise)) for _ in range(10))
        return binomtest(n_kept, 10 * len(ratings), claimed).pvalue > 1e-5

    truth = float(np.expm1(0.3) / np.expm1(1.0))
    assert plausible(truth)
    assert not plausible(truth * 1.1)
    assert not plausible(truth * 0.9)


def test_before_a_private_fit_each_rating_has_its_own_epsilon_exactly() -> None:
    """SOUNDNESS 4: the ratio 1 - keep + keep e^t, at its largest, is e^epsilon."""
    for own in (0.1, 0.3, 0.9):
        keep = Fraction(float(keeping_probability(np.array([own]), 1.0)[0]))
        assert np.log(float(1 - keep + keep * Fraction(np.exp(1.0)))) == pytest.approx(own)
