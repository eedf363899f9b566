from __future__ import annotations

import numpy as np
import pytest

from models.evaluation import client_scores, deal_ratings, deal_users, summarise, visitor_scores
from models.index import make_recommender
from models.privacy.noise import SeededNoise
from models.privacy.specification import PrivacySpecification
from models.ratings import Ratings
from tests.made_up import ratings_of

SPECIFICATION = PrivacySpecification(epsilon=1)


def test_folds_are_equal_in_size_and_do_not_depend_on_order_or_values(ratings: Ratings) -> None:
    folds = deal_ratings(ratings, 7)
    sizes = np.bincount(folds, minlength=7)
    assert sizes.max() - sizes.min() <= 1
    shuffle = np.random.default_rng(0).permutation(len(ratings))
    other = Ratings(
        ratings.users[shuffle],
        ratings.items[shuffle],
        (6 - ratings.values)[shuffle],
        ratings.user_labels,
        ratings.catalogue,
        ratings.scale,
    )
    assert (deal_ratings(other, 7) == folds[shuffle]).all()


def test_users_are_dealt_evenly(ratings: Ratings) -> None:
    sizes = np.bincount(deal_users(ratings, 10), minlength=10)
    assert sizes.tolist() == [12] * 10


def test_client_evaluation_uses_training_ratings_of_the_user_alone(ratings: Ratings) -> None:
    is_test = deal_ratings(ratings, 5) == 0
    train, test = ratings.where(~is_test), ratings.where(is_test)
    fitted = make_recommender("pdp-histogram", {}).fit(train, PrivacySpecification(epsilon=100), SeededNoise(0))
    scores = client_scores(fitted, train, test)
    row_of_first = int(test.users[0])
    own = (train.users == row_of_first).nonzero()[0]
    release_like = fitted.factors
    u = release_like.fold_in(np.array([0, len(own)]), train.items[own], train.values[own])
    predicted = release_like.predict(u, np.zeros(1, int), test.items[:1], low=1, high=5)
    all_u = release_like.fold_in(train.by_user.start, train.by_user.other, train.by_user.values)
    assert predicted[0] == pytest.approx(
        release_like.predict(all_u, test.users[:1], test.items[:1], low=1, high=5)[0], abs=1e-5
    )
    assert scores is not None
    assert scores.rmse < np.std(test.values)


def test_a_visitor_is_judged_on_ratings_that_were_not_brought() -> None:
    ratings = ratings_of([0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [5, 5, 1, 2, 2], n_users=2, n_items=3)
    fitted = make_recommender("pdp-histogram", {}).fit(ratings, PrivacySpecification(epsilon=100), SeededNoise(0))
    visitors = ratings.where(ratings.users == 0)
    scores = visitor_scores(fitted, visitors, np.array([False, False, True]))
    assert scores is not None
    assert visitor_scores(fitted, visitors, np.array([False] * 3)) is None


def test_a_summary_has_mean_and_spread_and_skips_empty_folds(ratings: Ratings) -> None:
    fitted = make_recommender("pdp-histogram", {}).fit(ratings, SPECIFICATION, SeededNoise(0))
    first = client_scores(fitted, ratings, ratings.where(np.arange(len(ratings)) < 500))
    second = client_scores(fitted, ratings, ratings.where(np.arange(len(ratings)) >= 500))
    assert first is not None
    assert second is not None
    summary = summarise([first, None, second])
    assert summary is not None
    assert summary["rmse"] == pytest.approx((first.rmse + second.rmse) / 2)
    assert summary["rmse_sd"] == pytest.approx(abs(first.rmse - second.rmse) / np.sqrt(2))
    assert summarise([None]) is None
