from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from models.privacy.specification import Policy, PrivacySpecification
from models.ratings import Ratings
from tests.made_up import made_up_ratings

DEFAULT = PrivacySpecification(policy=Policy())


def test_the_default_policy_has_the_papers_mean() -> None:
    """SYSTEMS A4: .393 at the defaults, .445 for the setting of Table 4, which the paper prints."""
    assert DEFAULT.mean_epsilon == pytest.approx(0.393, abs=5e-4)
    table_4 = Policy(conservative=0.60, moderate=0.35, epsilon_moderate=0.4)
    assert PrivacySpecification(policy=table_4).mean_epsilon == pytest.approx(0.445, abs=5e-4)


def test_drawn_epsilons_follow_the_declared_shares() -> None:
    ratings = made_up_ratings(n_users=800, n_items=120, per_user=100)
    epsilon = DEFAULT.epsilon_of(ratings)
    shares = [np.mean(epsilon < 0.2), np.mean((epsilon >= 0.2) & (epsilon < 1)), np.mean(epsilon == 1)]
    assert shares == pytest.approx([0.54, 0.37, 0.09], abs=0.01)
    assert epsilon.min() >= 0.1
    assert epsilon.max() == 1.0
    assert epsilon.mean() == pytest.approx(DEFAULT.mean_epsilon, abs=0.005)


@pytest.mark.parametrize("group_by", ["rating", "user", "item"])
def test_an_epsilon_depends_on_no_rating(ratings: Ratings, group_by: str) -> None:
    specification = PrivacySpecification(policy=Policy(group_by=group_by))
    epsilon = specification.epsilon_of(ratings)
    changed = Ratings(
        ratings.users, ratings.items, 6 - ratings.values, ratings.user_labels, ratings.catalogue, ratings.scale
    )
    assert (specification.epsilon_of(changed) == epsilon).all()
    keep = np.arange(len(ratings)) % 3 == 0
    assert (specification.epsilon_of(ratings.where(keep)) == epsilon[keep]).all()


def test_a_group_shares_one_epsilon(ratings: Ratings) -> None:
    by_user = PrivacySpecification(policy=Policy(group_by="user")).epsilon_of(ratings)
    assert all(len(set(by_user[ratings.users == user])) == 1 for user in range(10))
    assert len(set(by_user)) > 20


@pytest.mark.parametrize("threshold", [0.05, 0.15, 0.393, 0.7, 1.0, 3.0])
def test_weight_moments_are_those_of_the_draw(threshold: float) -> None:
    uniforms = (np.arange(1_000_000) + 0.5) / 1_000_000
    weights = np.minimum(1, Policy().epsilon_at(uniforms) / threshold)
    assert DEFAULT.weight_moments(threshold) == pytest.approx((weights.mean(), (weights**2).mean()), rel=1e-5)


def test_a_fraction_scales_everybody(ratings: Ratings) -> None:
    third = PrivacySpecification(policy=Policy(), fraction=1 / 3)
    assert third.epsilon_of(ratings) == pytest.approx(DEFAULT.epsilon_of(ratings) / 3)
    assert third.largest_epsilon == pytest.approx(1 / 3)
    assert third.mean_epsilon == pytest.approx(DEFAULT.mean_epsilon / 3)


@pytest.mark.parametrize("epsilon", [0, -1, float("nan"), float("inf")])
def test_epsilon_is_positive_and_finite(epsilon: float) -> None:
    with pytest.raises(ValidationError):
        PrivacySpecification(epsilon=epsilon)


@pytest.mark.parametrize(
    "settings",
    [
        {"conservative": 0.7, "moderate": 0.4},
        {"epsilon_moderate": 0.05},
        {"epsilon_liberal": 0.15},
        {"epsilon_conservative": 0},
        {"conservative": -0.1},
        {"strict": 1},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Policy(**settings)


def test_exactly_one_of_epsilon_and_policy_is_given() -> None:
    for both_or_neither in ({}, {"epsilon": 1, "policy": Policy()}):
        with pytest.raises(ValidationError, match="either one epsilon"):
            PrivacySpecification(**both_or_neither)
    with pytest.raises(ValidationError, match="single ratings"):
        PrivacySpecification(policy=Policy(), unit="user")
