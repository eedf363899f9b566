from __future__ import annotations

import numpy as np
import pytest

from models.metrics import ndcg, score
from tests.made_up import WHOLE_STARS


def test_scores_of_a_case_worked_by_hand() -> None:
    users = np.array([0, 0, 1], np.int32)
    scores = score(users, np.array([5, 3, 1], np.float32), np.array([4.0, 3.5, 3.0]), WHOLE_STARS)
    assert scores is not None
    assert scores.rmse == pytest.approx(np.sqrt((1 + 0.25 + 4) / 3))
    assert scores.mae == pytest.approx(3.5 / 3)
    assert scores.within == pytest.approx((1 / 3, 2 / 3, 2 / 3, 1))
    assert scores.cdf[0] == 0
    assert scores.cdf[-1] == 1
    assert scores.ndcg_10 == 1  # the one user with two test items has them in the right order


def test_nothing_to_compare_has_no_scores() -> None:
    nothing = np.zeros(0)
    assert score(nothing.astype(np.int32), nothing.astype(np.float32), nothing, WHOLE_STARS) is None


def test_ndcg_of_a_swapped_pair() -> None:
    users = np.array([0, 0], np.int32)
    best, worst = 2**5 - 1, 2**1 - 1
    swapped = (worst + best / np.log2(3)) / (best + worst / np.log2(3))
    assert ndcg(users, np.array([5, 1], np.float32), np.array([1.0, 2.0]), n=10) == pytest.approx(swapped)


def test_ndcg_counts_ten_items_and_users_with_two() -> None:
    users = np.array([0] * 12 + [1], np.int32)
    values = np.array([1.0] * 11 + [5] + [5], np.float32)
    ranked_last = np.array([*range(12, 0, -1), 1.0])
    ideal = 31 + sum(1 / np.log2(rank + 2) for rank in range(1, 10))
    reached = sum(1 / np.log2(rank + 2) for rank in range(10))
    assert ndcg(users, values, ranked_last, n=10) == pytest.approx(reached / ideal)
    assert np.isnan(ndcg(np.array([0, 1], np.int32), np.array([1.0, 2], np.float32), np.array([1.0, 2]), n=10))


def test_ndcg_of_tied_predictions_does_not_depend_on_the_order_of_the_ratings() -> None:
    users, same = np.zeros(3, np.int32), np.ones(3)
    figures = {
        round(ndcg(users, np.array(order, np.float32), same, n=10), 12) for order in ([1, 3, 5], [5, 3, 1], [3, 5, 1])
    }
    assert len(figures) == 1


@pytest.mark.filterwarnings("error")
def test_ndcg_skips_users_with_nothing_to_gain_and_takes_any_scale() -> None:
    users = np.array([0, 0, 1, 1], np.int32)
    values, predicted = np.array([0, 0, 3, 1], np.float32), np.array([1.0, 2, 2, 1])
    assert ndcg(users, values, predicted, n=10) == 1
    assert np.isnan(ndcg(users[:2], values[:2], predicted[:2], n=10))
    assert 0 < ndcg(users, values - 2, -predicted, n=10) <= 1
    assert 0 < ndcg(users, values * 300, -predicted, n=10) <= 1
