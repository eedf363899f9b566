from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from models.audit.neighbours import Neighbours, coarse, made_up, small_hostile, varied
from models.privacy.specification import Policy, Preferences, PrivacySpecification, Relation
from models.ratings import Ratings, RatingScale

SCALES = [RatingScale(low=1, high=5), RatingScale(low=0.5, high=5, step=0.5), RatingScale(low=0, high=1)]
UNIFORM = PrivacySpecification(epsilon=1)
USERS = PrivacySpecification(epsilon=1, unit="user")
ASKED = PrivacySpecification(preferences=Preferences(default=0.2, levels={"low": 0.1, "none of it": 0, "high": 1}))
RELATIONS: list[Relation] = ["add_or_remove", "replace_value"]


def listed(ratings: Ratings) -> Counter[tuple[str, str, float]]:
    items = ratings.catalogue.items
    pairs = zip(ratings.users, ratings.items, ratings.values, strict=True)
    return Counter((ratings.user_labels[user], items[item], float(value)) for user, item, value in pairs)


def require_neighbours(
    pair: Neighbours, specification: PrivacySpecification, relation: Relation, scale: RatingScale
) -> None:
    first, second = pair.histories(specification, scale)
    differing = [(listed(a), listed(b)) for a, b in zip(first, second, strict=True) if listed(a) != listed(b)]
    assert differing
    assert len(differing) == 1 or pair.history == "in batches, as it stays"
    for a, b in differing:
        gone, come = list((a - b).elements()), list((b - a).elements())
        owners = {user for user, _, _ in gone + come}
        assert len(owners) == 1
        if relation == "replace_value":
            ((_, item, before),), ((_, other, after),) = gone, come
            assert item == other
            assert before != after
        else:
            assert not come
            (owner,) = owners
            assert len(gone) == 1 if specification.unit == "rating" else owner not in {user for user, _, _ in b}
    for ratings in (*first, *second):
        pairs = list(zip(ratings.users, ratings.items, strict=True))
        assert len(set(pairs)) == len(pairs)  # rated once
        assert set(ratings.users) == set(range(ratings.n_users))
        assert np.isin(ratings.values, scale.levels.astype(np.float32)).all()


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("specification", [UNIFORM, USERS, ASKED], ids=["rating", "user", "asked"])
def test_every_pair_of_the_grid_and_around_it_differs_in_one_unit_and_nothing_else(
    specification: PrivacySpecification, scale: RatingScale
) -> None:
    dealer = np.random.default_rng(5)
    relations = RELATIONS if specification.unit == "rating" else RELATIONS[:1]
    for relation in relations:
        grid = list(small_hostile(specification, relation, scale, batches=True))
        assert len(grid) >= 13
        for pair in [*grid, *(varied(pair, specification, scale, dealer) for pair in grid for _ in range(5))]:
            require_neighbours(pair, specification, relation, scale)


def test_the_grid_has_a_newcomer_and_a_known_user_an_item_of_nobody_and_every_end_of_the_scale() -> None:
    pairs = list(small_hostile(UNIFORM, "add_or_remove", SCALES[0], batches=True))
    known = [{user for user, _, _ in pair.others} for pair in pairs]
    rated = [{item for _, item, _ in pair.others} for pair in pairs]
    targets = [pair.target[0] for pair in pairs]
    assert {user in others for (user, _, _), others in zip(targets, known, strict=True)} == {True, False}
    assert {item in others for (_, item, _), others in zip(targets, rated, strict=True)} == {True, False}
    assert {level for _, _, level in targets} == {0, 2, 4}
    assert len({pair.history for pair in pairs}) == 4


def test_people_who_choose_have_all_that_was_declared_and_nobody_asks_for_nothing() -> None:
    ratings = made_up([(user, item, 0) for user in range(4) for item in range(2)], range(3), ASKED, SCALES[0])
    assert ratings.own_epsilon is not None
    assert set(ratings.own_epsilon.tolist()) == {0.1, 0.2, 1.0}
    by_user = ASKED.model_copy(update={"unit": "user"})
    whole = made_up([(user, item, 0) for user in range(4) for item in range(2)], range(3), by_user, SCALES[0])
    assert whole.own_epsilon is not None
    assert all(len(set(whole.own_epsilon[whole.users == user].tolist())) == 1 for user in range(4))


def test_a_policy_gives_a_rating_the_same_epsilon_on_both_sides() -> None:
    policy = PrivacySpecification(policy=Policy())
    for pair in small_hostile(policy, "replace_value", SCALES[0], batches=True):
        for a, b in zip(*pair.histories(policy, SCALES[0]), strict=True):
            assert (policy.epsilon_of(a) == policy.epsilon_of(b)).all()


@pytest.mark.parametrize("specification", [PrivacySpecification(policy=Policy()), ASKED], ids=["policy", "asked"])
def test_where_each_has_their_own_epsilon_the_least_and_the_most_of_it_are_tried(
    specification: PrivacySpecification,
) -> None:
    own = []
    for pair in small_hostile(specification, "add_or_remove", SCALES[0], batches=True):
        first, _ = pair.histories(specification, SCALES[0])
        own.append(specification.epsilon_of(first[-1])[-1])
    assert min(own) < 0.11
    assert max(own) == 1


def test_a_scale_of_a_thousand_levels_is_audited_on_five_between_its_ends() -> None:
    assert coarse(SCALES[1]) is SCALES[1]
    five = coarse(RatingScale(low=0, high=10, step=0.01))
    assert five.levels.tolist() == [0, 2.5, 5, 7.5, 10]
