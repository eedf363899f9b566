from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import planning
from models.errors import SpecError
from models.evaluation import client_scores, deal_ratings
from models.histogram.pdp_histogram import PDPHistogram, exact_histogram
from models.planning import Histogram, Plan, foretell, level_shares, make_up, projected
from models.privacy.noise import SeededNoise
from models.privacy.specification import MOST_EPSILON, PrivacySpecification
from models.ratings import Ratings, RatingScale
from tests.made_up import WHOLE_STARS, made_up_ratings
from tests.real_data import load_ml_100k

HALVES = RatingScale(low=0.5, high=5, step=0.5)
PLAIN = PDPHistogram(item_features=False)
EPSILONS = (0.1, 0.3, 1.0, 3.0)


def histogram_of(ratings: Ratings, epsilon: float | None = None, seed: int = 0) -> Histogram:
    """As a release at `epsilon` would hold it; without noise, exact."""
    if epsilon is None:
        cells = exact_histogram(ratings, np.ones(len(ratings), np.int64)).astype(np.float64)
        return Histogram(cells, np.zeros(len(cells)), ratings.scale)
    fitted = PLAIN.fit(ratings, PrivacySpecification(epsilon=epsilon), SeededNoise(seed))
    return Histogram(fitted.statistics["histogram"] / 2**10, fitted.statistics["cell_variance"], ratings.scale)


def made(histogram: Histogram, user_share: float = 0.3, n_ratings: int = 40_000, n_users: int = 400) -> Ratings:
    return make_up(histogram, n_ratings=n_ratings, n_users=n_users, user_share=user_share, rng=np.random.default_rng(3))


def planned(histogram: Histogram, n_users: int, user_share: float = 0.26, **more: int) -> Plan:
    n = histogram.n_ratings
    return foretell(histogram, EPSILONS, n_ratings=n, n_users=n_users, user_share=user_share, recommender=PLAIN, **more)


def measured(ratings: Ratings, epsilon: float) -> float:
    """What `jali run` measures without item features: mean RMSE over ten folds."""
    dealt = deal_ratings(ratings, 10)
    errors = []
    for fold in range(10):
        train, test = ratings.where(dealt != fold), ratings.where(dealt == fold)
        scores = client_scores(PLAIN.fit(train, PrivacySpecification(epsilon=epsilon), SeededNoise(fold)), train, test)
        assert scores is not None
        errors.append(scores.rmse)
    return float(np.mean(errors))


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30), st.floats(0.1, 1e5))
def test_projected_counts_are_not_negative_and_add_up_and_none_is_nearer(noisy: list[float], total: float) -> None:
    found = projected(np.array(noisy), total)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(total)
    other = np.random.default_rng(0).dirichlet(np.ones(len(noisy))) * total
    assert ((found - noisy) ** 2).sum() <= ((other - noisy) ** 2).sum() * (1 + 1e-9)


def test_counts_that_are_right_already_are_left_alone() -> None:
    assert projected(np.array([3.0, 0.0, 5.0]), 8) == pytest.approx([3, 0, 5])


@pytest.mark.parametrize("scale", [WHOLE_STARS, HALVES, RatingScale(low=0, high=1), RatingScale(low=-10, high=10)])
def test_levels_have_the_wanted_means_and_the_pooled_spread(scale: RatingScale) -> None:
    rng = np.random.default_rng(0)
    n_levels = len(scale.levels)
    shares = rng.dirichlet(2 * np.linspace(1, 3, n_levels), size=300)
    cells = 1000 * shares / shares.sum()
    histogram = Histogram(cells, np.zeros(300), scale)
    counts, means = cells.sum(axis=1), cells @ scale.levels / cells.sum(axis=1)
    found = level_shares(histogram, counts, means)
    assert found.min() >= 0
    assert found.sum(axis=1) == pytest.approx(1)
    assert found @ scale.levels == pytest.approx(means, abs=0.01 * scale.width)
    pooled = cells.sum(axis=0) / cells.sum()
    of_found = counts @ found / counts.sum()
    variance = [shares @ scale.levels**2 - (shares @ scale.levels) ** 2 for shares in (pooled, of_found)]
    assert variance[1] == pytest.approx(variance[0], rel=0.02)


def test_made_up_ratings_have_the_counts_the_levels_and_nothing_else_of_the_histogram(ratings: Ratings) -> None:
    histogram = histogram_of(ratings)
    found = made(histogram, n_ratings=2 * len(ratings))
    assert len(found) == 2 * len(ratings)
    assert np.bincount(found.items, minlength=found.n_items).tolist() == (2 * histogram.cells.sum(axis=1)).tolist()
    assert set(np.unique(found.values)) <= set(ratings.scale.levels)
    assert found.n_users == 400
    assert set(found.user_labels).isdisjoint(ratings.user_labels)
    pooled = histogram.cells.sum(axis=0) / len(ratings)
    levels = np.bincount(found.scale.level_of(found.values), minlength=5) / len(found)
    assert levels == pytest.approx(pooled, abs=0.03)


@pytest.mark.parametrize("user_share", [0.0, 0.15, 0.3])
def test_so_much_of_the_spread_within_an_item_is_between_users(user_share: float) -> None:
    found = made(histogram_of(made_up_ratings(per_user=50)), user_share, n_ratings=100_000, n_users=2000)
    mean = np.bincount(found.items, found.values) / np.maximum(np.bincount(found.items), 1)
    residual = found.values - mean[found.items]
    first, second = np.bincount(found.users, residual), np.bincount(found.users, residual**2)
    n = np.bincount(found.users)
    pairs = (first**2 - second).sum() / (n * (n - 1)).sum()  # the mean product of two residuals of one user
    assert pairs / (residual**2).mean() == pytest.approx(user_share, abs=0.06)


def test_the_most_rated_items_are_kept_and_copies_share_their_ratings() -> None:
    histogram = Histogram(np.array([[1.0, 1], [5, 5], [3, 3]]), np.array([1.0, 2, 3]), RatingScale(low=0, high=1))
    assert histogram.spread_over(2).cells.tolist() == [[5, 5], [3, 3]]
    more = histogram.spread_over(4)
    assert more.cells.tolist() == [[2.5, 2.5], [3, 3], [1, 1], [2.5, 2.5]]
    assert more.cell_variance.tolist() == [1, 3, 1, 1]
    with pytest.raises(SpecError, match="Plan for fewer items"):
        histogram.spread_over(10**9)


def test_levels_go_to_the_nearest_of_another_scale() -> None:
    cells = np.arange(10.0)[None]
    mapped = Histogram(cells, np.zeros(1), HALVES).on(RatingScale(low=0, high=1)).cells
    assert mapped.tolist() == [[0 + 1 + 2 + 3 + 4, 5 + 6 + 7 + 8 + 9]]
    assert Histogram(cells, np.zeros(1), HALVES).on(HALVES).cells.tolist() == cells.tolist()


def test_less_noise_is_foretold_to_be_better_and_a_plan_can_be_repeated(ratings: Ratings) -> None:
    histogram = histogram_of(ratings, epsilon=1)
    plan = planned(histogram, ratings.n_users, repetitions=4)
    rmse = [foretold.rmse for foretold in (plan.alone, *plan.foretold, plan.without_noise)]
    assert rmse[1:] == sorted(rmse[1:], reverse=True)
    assert [plan.kept(foretold) for foretold in (plan.alone, plan.without_noise)] == [0, 1]
    assert plan.foretold[0].loss > 5 * plan.foretold[3].loss > 0
    again = planned(histogram, ratings.n_users, repetitions=4)
    assert again.foretold == plan.foretold


def test_what_is_foretold_from_noisy_counts_is_what_is_measured_on_the_ratings_behind_them() -> None:
    """Where ratings are as the plan makes them: everything but what a plan has to assume is right."""
    truth = made(histogram_of(made_up_ratings(n_items=200, per_user=100)), 0.26, n_ratings=20_000, n_users=200)
    plan = planned(histogram_of(truth, epsilon=1), truth.n_users)
    without = measured(truth, MOST_EPSILON)
    assert plan.without_noise.rmse == pytest.approx(without, rel=0.03)
    for epsilon, foretold in zip(EPSILONS, plan.foretold, strict=True):
        assert foretold.loss == pytest.approx(measured(truth, epsilon) / without - 1, abs=0.012)


def test_of_many_ratings_a_part_is_made_up_and_foretells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    histogram = histogram_of(made_up_ratings(n_users=800, n_items=200, per_user=100))
    whole = planned(histogram, 800)
    monkeypatch.setattr(planning, "MOST_RATINGS", 20_000)
    monkeypatch.setattr(planning, "LEAST_ITEMS", 1)
    part = planned(histogram, 800)
    for one, other in zip(whole.foretold, part.foretold, strict=True):
        assert other.loss == pytest.approx(one.loss, abs=0.012)


@pytest.mark.parametrize(("n_ratings", "n_users", "n_items"), [(1, 1, 1), (2, 1, 2), (5, 5, 1), (3, 2, 50)])
def test_there_is_a_plan_for_next_to_nothing(n_ratings: int, n_users: int, n_items: int) -> None:
    histogram = Histogram(np.zeros((n_items, 5)), np.full(n_items, 200.0), WHOLE_STARS)
    plan = foretell(histogram, (1.0,), n_ratings=n_ratings, n_users=n_users, user_share=0.3, recommender=PLAIN)
    assert np.isfinite([plan.foretold[0].rmse, plan.without_noise.rmse, plan.alone.rmse]).all()


@pytest.mark.slow
def test_ml_100k_is_foretold_as_well_as_the_documentation_says(ml_100k) -> None:
    truth = load_ml_100k(ml_100k)
    plan = planned(histogram_of(truth, epsilon=1, seed=1), 1000)
    without = measured(truth, MOST_EPSILON)
    assert plan.without_noise.rmse == pytest.approx(without, abs=0.025)
    for epsilon, foretold in zip(EPSILONS, plan.foretold, strict=True):
        assert foretold.loss == pytest.approx(measured(truth, epsilon) / without - 1, abs=0.011)
