from __future__ import annotations

import pickle

import numpy as np
import pytest

from models.errors import NotReleasable, SpecError
from models.ratings import RatingScale
from tests.made_up import made_up_ratings, ratings_of


def test_a_scale_knows_its_levels() -> None:
    assert RatingScale.parse("0.5:5:0.5").levels.tolist() == [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5]
    assert RatingScale.parse("1:5").levels.tolist() == [1, 2, 3, 4, 5]
    assert RatingScale.parse("0:1:0.1").level_of(np.array([0.3, 0.7])).tolist() == [3, 7]


@pytest.mark.parametrize(
    "text", ["", "1", "1:5:0", "5:1:1", "1:5:3", "nan:5:1", "1:inf:1", "a:b:c", "1:5:1:1", "0:1:1e-9"]
)
def test_a_scale_that_makes_no_sense_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(SpecError, match=r"LOW:HIGH:STEP.*Try"):
        RatingScale.parse(text)


def test_ratings_are_immutable_twelve_bytes_each_and_say_nothing() -> None:
    ratings = made_up_ratings()
    assert ratings.users.nbytes + ratings.items.nbytes + ratings.values.nbytes == 12 * len(ratings)
    with pytest.raises(ValueError, match="read-only"):
        ratings.values[0] = 1
    assert repr(ratings) == "<private ratings on the scale 1:5:1>"
    with pytest.raises(NotReleasable):
        pickle.dumps(ratings)


def test_views_by_user_and_by_item_hold_the_same_ratings() -> None:
    ratings = made_up_ratings()
    triples = set(zip(ratings.users.tolist(), ratings.items.tolist(), ratings.values.tolist(), strict=True))
    by_user, by_item = ratings.by_user, ratings.by_item
    rows = np.repeat(np.arange(ratings.n_users), by_user.counts)
    assert set(zip(rows.tolist(), by_user.other.tolist(), by_user.values.tolist(), strict=True)) == triples
    rows = np.repeat(np.arange(ratings.n_items), by_item.counts)
    assert set(zip(by_item.other.tolist(), rows.tolist(), by_item.values.tolist(), strict=True)) == triples


def test_a_view_has_a_row_for_users_and_items_without_ratings() -> None:
    ratings = ratings_of([1], [2], [3.0], n_users=3, n_items=4)
    assert ratings.by_user.counts.tolist() == [0, 1, 0]
    assert ratings.by_item.counts.tolist() == [0, 0, 1, 0]
