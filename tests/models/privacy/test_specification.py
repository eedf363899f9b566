from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.errors import InternalFault
from models.privacy.specification import LEAST_EPSILON, MOST_EPSILON, Policy, Preferences, PrivacySpecification
from models.ratings import Ratings
from tests.made_up import made_up_ratings, ratings_of

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


NUMBERS = Preferences(default=0.2, cap=0.8)
LEVELS = Preferences(default=0.2, levels={"out": 0, "low": 0.1, "high": 1})
TENTHS = [0.0, 0.1, 0.3, 0.7, 0.8, 1.0, 5.0]


def asking(ratings: Ratings, asked: list[float]) -> Ratings:
    return replace(ratings, own_epsilon=np.resize(np.array(asked), len(ratings)))


def test_everybody_gets_what_they_asked_for_up_to_the_cap(ratings: Ratings) -> None:
    asked = asking(ratings, TENTHS)
    epsilon = PrivacySpecification(preferences=NUMBERS).epsilon_of(asked)
    assert epsilon[:7].tolist() == [0.0, 0.1, 0.3, 0.7, 0.8, 0.8, 0.8]
    keep = np.arange(len(ratings)) % 3 == 0
    assert (PrivacySpecification(preferences=NUMBERS).epsilon_of(asked.where(keep)) == epsilon[keep]).all()
    assert asked.own_epsilon is not None
    assert not asked.own_epsilon.flags.writeable


@given(fractions=st.integers(1, 60), epsilon=st.floats(LEAST_EPSILON, MOST_EPSILON))
def test_shares_of_an_epsilon_never_add_up_to_more_than_it(fractions: int, epsilon: float) -> None:
    specification = PrivacySpecification(preferences=Preferences(default=LEAST_EPSILON, cap=MOST_EPSILON))
    shared = specification.model_copy(update={"fraction": 1 / fractions})
    one = ratings_of([0], [0], [5.0], n_users=1, n_items=1)
    (share,) = shared.epsilon_of(replace(one, own_epsilon=np.array([epsilon])))
    assert fractions * Fraction(float(share)) <= Fraction(epsilon)
    assert share == pytest.approx(epsilon / fractions, rel=1e-12)
    assert fractions * Fraction(shared.largest_epsilon) <= Fraction(MOST_EPSILON)


def test_preferences_that_were_lost_on_the_way_are_no_default(ratings: Ratings) -> None:
    with pytest.raises(InternalFault, match="did not reach"):
        PrivacySpecification(preferences=NUMBERS).epsilon_of(ratings)


def test_everything_public_comes_from_what_is_declared() -> None:
    numbers, levels = PrivacySpecification(preferences=NUMBERS), PrivacySpecification(preferences=LEVELS)
    assert (numbers.largest_epsilon, numbers.mean_epsilon, numbers.smallest_epsilon) == (0.8, 0.4, 0)
    assert numbers.smallest_declared_epsilon == 0.2
    assert levels.largest_epsilon == 1
    assert levels.mean_epsilon == pytest.approx((0 + 0.1 + 1 + 0.2) / 4)
    assert levels.smallest_epsilon == levels.smallest_declared_epsilon == 0.1
    capped = PrivacySpecification(preferences=Preferences(default=0.2, cap=0.5, levels=LEVELS.levels))
    assert (capped.largest_epsilon, capped.mean_epsilon) == (0.5, pytest.approx(0.2))
    assert numbers.personalised
    assert not PrivacySpecification(epsilon=1).personalised


@pytest.mark.parametrize("threshold", [0.05, 0.4, 0.8, 2.0])
def test_weight_moments_are_those_of_the_declared_preferences(threshold: float) -> None:
    uniform = 0.8 * (np.arange(1_000_000) + 0.5) / 1_000_000
    for preferences, epsilon in ((NUMBERS, uniform), (LEVELS, np.array([0, 0.1, 1, 0.2]))):
        weights = np.minimum(1, epsilon / threshold)
        moments = PrivacySpecification(preferences=preferences).weight_moments(threshold)
        assert moments == pytest.approx((weights.mean(), (weights**2).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"default": 0.2}, "declare a cap"),
        ({"default": 0.2, "levels": {"out": 0}}, "declare a cap"),
        ({"default": 0.2, "cap": 1, "levels": {"None": 0}}, "stand for nothing"),
        ({"default": 2, "cap": 1}, "exceeds the cap of 1"),
        ({"default": 2, "levels": {"low": 0.1}}, "exceeds the cap of 0.1"),
        ({"default": 0, "cap": 1}, "greater than or equal"),
        ({"default": 0.2, "cap": 1001}, "less than or equal"),
        ({"default": 0.2, "levels": {"low": -1, "high": 1}}, "greater than or equal"),
        ({"default": 0.2, "levels": {"low": 1e-7, "high": 1}}, "one is between"),
        ({"cap": 1}, "default"),
    ],
)
def test_preferences_declared_without_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Preferences(**settings)


def test_preferences_stand_alone() -> None:
    for other in ({"epsilon": 1}, {"policy": Policy()}):
        with pytest.raises(ValidationError, match="one of them alone"):
            PrivacySpecification(preferences=NUMBERS, **other)  # type: ignore[arg-type]
    assert PrivacySpecification(preferences=NUMBERS, unit="user").largest_epsilon == 0.8


def test_declared_levels_are_what_is_charged_and_nothing_is_said_of_who_asked() -> None:
    policy = PrivacySpecification(policy=Policy(), fraction=0.5)
    levels = policy.levels(charged=0.4)
    assert [(level.name, level.share, level.low, level.high) for level in levels] == [
        ("conservative", 0.54, 0.05, 0.1),
        ("moderate", 0.37, 0.1, 0.4),
        ("liberal", pytest.approx(0.09), 0.4, 0.4),
    ]
    assert str(levels[0]) == "conservative ε=0.05 to 0.1 (54%)"
    named = PrivacySpecification(preferences=Preferences(default=0.2, levels={"none of it": 0, "much": 3}, cap=1))
    assert [str(level) for level in named.levels(charged=1)] == ["none of it ε=0", "much ε=1", "not asked ε=0.2"]
    free = PrivacySpecification(preferences=Preferences(default=0.2, cap=1))
    assert [str(level) for level in free.levels(charged=1)] == ["asked for ε=0 to 1", "not asked ε=0.2"]


@pytest.mark.parametrize(
    ("specification", "charged"),
    [
        (PrivacySpecification(epsilon=1), 1.0),
        (PrivacySpecification(policy=Policy()), 0.05),
        (PrivacySpecification(policy=Policy(conservative=0, moderate=0)), 1.0),
    ],
)
def test_where_all_are_charged_alike_there_are_no_levels(specification: PrivacySpecification, charged: float) -> None:
    assert specification.levels(charged) == ()
