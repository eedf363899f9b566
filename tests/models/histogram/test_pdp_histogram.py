from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import dlaplace

from models.errors import SpecError
from models.evaluation import client_scores, deal_ratings
from models.histogram import pdp_histogram
from models.histogram.pdp_histogram import (
    MOST_ITEMS,
    RATING_STEPS,
    USER_STEPS,
    PDPHistogram,
    equal_shares,
    exact_histogram,
    laplace_scale,
    two_digits_down,
    weight_steps,
)
from models.privacy.gaussian import discrete_gaussian_delta
from models.privacy.noise import SeededNoise, Steps
from models.privacy.specification import LEAST_EPSILON, MOST_EPSILON, Policy, Preferences, PrivacySpecification
from models.ratings import Catalogue, Ratings
from tests.made_up import made_up_ratings, ratings_of
from tests.models.contract import UNIFORM, RecommenderContract
from tests.real_data import load_ml_100k
from tests.recorder import Recorder

DEFAULT = PrivacySpecification(policy=Policy())
USER = PrivacySpecification(epsilon=1, unit="user")


class TestPDPHistogram(RecommenderContract):
    recommender = PDPHistogram()
    specifications = (UNIFORM, DEFAULT, USER, PrivacySpecification(policy=Policy(), fraction=0.5))


class TestPDPHistogramAtTheMean(RecommenderContract):
    recommender = PDPHistogram(threshold="mean", item_features=False)

    def test_nobody_pays_more_than_the_threshold(self) -> None:
        assert self.recommender.promise(DEFAULT).epsilon == pytest.approx(0.393, abs=1e-3)


class Canceller(Recorder):
    """Returns the same whatever the data: one outcome of the noise that any data can have."""

    def add_discrete_laplace(self, values: Steps, *, scale: float) -> Steps:
        return np.random.default_rng(0).integers(-2000, 50_000, values.shape)

    add_discrete_gaussian = add_discrete_laplace


def measured(ratings: Ratings, specification: PrivacySpecification, recommender: PDPHistogram) -> tuple[Steps, float]:
    """The integers to which noise is added, and its scale; the only ones."""
    recorder = Recorder()
    recommender.fit(ratings, specification, recorder)
    ((_, values, scale),) = recorder.given
    return values, scale


@pytest.mark.parametrize("specification", [UNIFORM, DEFAULT, PrivacySpecification(epsilon=0.1)])
@pytest.mark.parametrize("threshold", ["max", "mean", 0.3])
def test_leaving_out_any_rating_costs_at_most_its_own_epsilon(
    ratings: Ratings, specification: PrivacySpecification, threshold: Any
) -> None:
    recommender = PDPHistogram(threshold=threshold)
    whole, scale = measured(ratings, specification, recommender)
    promised = recommender.promise(specification).epsilon
    assert promised is not None
    epsilon = np.minimum(specification.epsilon_of(ratings), promised)
    losses = []
    for left_out in range(0, len(ratings), 97):
        without, _ = measured(ratings.where(np.arange(len(ratings)) != left_out), specification, recommender)
        moved = np.abs(whole - without)
        assert (moved > 0).sum() <= 1
        losses.append(moved.sum() / scale / epsilon[left_out])
    assert max(losses) <= 1 + 1e-12
    assert max(losses) > 0.99  # and the bound is reached, or noise is wasted


@pytest.mark.parametrize("newcomer", [1.0, 3.0, 5.0])
def test_the_loss_of_the_released_cell_is_epsilon_exactly(newcomer: float) -> None:
    """Density ratio of the noisy cell with and without the rating, over all outputs that matter."""
    steps = weight_steps(np.array([1.0]), 1.0)
    ratings = ratings_of([0], [0], [newcomer], n_users=1, n_items=1)
    moved = exact_histogram(ratings, steps).max()
    law = dlaplace(1 / laplace_scale(1.0))
    outputs = np.arange(-5000, 5000)
    loss = np.abs(law.logpmf(outputs - moved) - law.logpmf(outputs))
    assert loss.max() == pytest.approx(1.0, abs=1e-9)
    assert loss.max() <= 1 + 1e-9


@settings(deadline=None)  # how long an example takes is not what is tested
@given(
    threshold=st.floats(LEAST_EPSILON, MOST_EPSILON),
    steps=st.integers(1, RATING_STEPS),
    nudge=st.integers(-3, 3),
)
def test_weights_never_exceed_an_epsilon_by_a_rounding_error(threshold: float, steps: int, nudge: int) -> None:
    """In exact fractions, for epsilons on the edge of a grid step and a few floats to either side of it."""
    epsilon = threshold * steps / RATING_STEPS
    for _ in range(abs(nudge)):
        epsilon = float(np.nextafter(epsilon, np.inf if nudge > 0 else 0))
    (weight,) = weight_steps(np.array([epsilon]), threshold)
    assert 0 <= weight <= RATING_STEPS
    assert int(weight) * Fraction(threshold) / RATING_STEPS <= Fraction(epsilon)
    assert weight >= steps - 1


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1 / 3, 2.7])
def test_the_noise_scale_is_never_below_what_was_claimed(epsilon: float) -> None:
    assert RATING_STEPS / Fraction(laplace_scale(epsilon)) <= Fraction(epsilon)
    assert laplace_scale(epsilon) == pytest.approx(RATING_STEPS / epsilon, rel=1e-12)


@pytest.mark.parametrize(("claimed", "fits"), [(1.0, True), (0.85, False), (1.18, False)])
def test_the_released_cells_carry_the_claimed_noise(claimed: float, fits: bool) -> None:
    """Cells without ratings, as a reader of the release could compute them: mean absolute value over its law's."""
    recommender = PDPHistogram()
    empty = ratings_of([], [], [], n_users=1, n_items=400)
    noisy, variance = recommender._rating_histogram(empty, UNIFORM, SeededNoise(5))
    assert variance == 2.0
    ratio = np.abs(noisy).mean() / RATING_STEPS * claimed
    assert (abs(ratio - 1) < 4 / np.sqrt(noisy.size)) == fits


def test_a_user_moves_the_histogram_by_at_most_one_in_l2_and_reaches_it() -> None:
    """Users with 1 to 57 ratings: rounding a weight up instead of down would break it for some."""
    counts = range(1, 58)
    users = np.repeat(np.arange(57), counts)
    items = np.concatenate([np.arange(count) for count in counts])
    ratings = ratings_of(users, items, 1 + (users + items) % 5, n_users=57, n_items=60)
    whole, _ = measured(ratings, USER, PDPHistogram())
    for user in range(57):
        without, _ = measured(ratings.where(ratings.users != user), USER, PDPHistogram())
        squared = int(((whole - without) ** 2).sum())
        assert squared <= USER_STEPS**2
        assert squared > 0.9999 * USER_STEPS**2


def test_unit_user_takes_the_gaussian_calibrated_for_its_grid(ratings: Ratings) -> None:
    recorder = Recorder()
    PDPHistogram().fit(ratings, USER, recorder)
    ((kind, values, scale),) = recorder.given
    assert (kind, values.shape) == ("gaussian", (ratings.n_items, 5))
    assert scale / USER_STEPS == pytest.approx(1 / 0.2367, rel=2e-3)  # SYSTEMS H2, mu at epsilon 1
    multiplier = scale / USER_STEPS
    assert discrete_gaussian_delta(1.0, multiplier, steps=USER_STEPS, cells=MOST_ITEMS) <= 1e-6


def test_items_nobody_rated_get_noise_like_all_others(ratings: Ratings) -> None:
    """Otherwise their silence would say that nobody did."""
    noisy, _ = PDPHistogram()._rating_histogram(ratings, UNIFORM, SeededNoise(0))
    assert (noisy[-3:] != 0).all()


@pytest.mark.parametrize("specification", [UNIFORM, DEFAULT, USER])
@pytest.mark.parametrize("threshold", ["max", "mean"])
def test_nothing_but_the_noisy_histogram_is_read(
    ratings: Ratings, specification: PrivacySpecification, threshold: Any
) -> None:
    """Two unrelated data sets whose noisy histograms came out alike have the same release, to the bit."""
    other = made_up_ratings(n_users=7, per_user=3, seed=9)
    recommender = PDPHistogram(threshold=threshold)
    one, two = (recommender.fit(data, specification, Canceller()).factors for data in (ratings, other))
    for name in ("V", "offset", "precision", "precision_per_rating"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


@pytest.mark.parametrize(("specification", "steps"), [(UNIFORM, RATING_STEPS), (USER, USER_STEPS)])
def test_a_release_carries_the_noisy_histogram_that_it_was_computed_from(
    ratings: Ratings, specification: PrivacySpecification, steps: int
) -> None:
    recorder = Recorder()
    fitted = PDPHistogram().fit(ratings, specification, recorder)
    ((_, values, scale),) = recorder.given
    assert np.array_equal(fitted.statistics["histogram"], values)
    assert fitted.statistics["histogram"].dtype == np.int64
    variance = (scale / steps) ** 2 * (2 if specification == UNIFORM else 1)
    assert fitted.statistics["cell_variance"].tolist() == pytest.approx([variance] * ratings.n_items)


def test_offsets_follow_the_items_means_and_shrink_under_noise() -> None:
    users, items = np.divmod(np.arange(400), 2)
    liked = ratings_of(users, items, np.where(items == 0, 5.0, 1.0), n_users=200, n_items=2)
    clear = PDPHistogram().fit(liked, PrivacySpecification(epsilon=100), SeededNoise(0)).factors.offset
    assert clear.tolist() == pytest.approx([5, 1], abs=0.1)
    noisy = PDPHistogram().fit(liked, PrivacySpecification(epsilon=0.003), SeededNoise(0)).factors.offset
    assert abs(noisy[0] - noisy[1]) < 1


def test_features_can_be_left_out(ratings: Ratings) -> None:
    assert PDPHistogram(item_features=False).fit(ratings, UNIFORM, SeededNoise(0)).factors.V.shape[1] == 4
    assert PDPHistogram().fit(ratings, UNIFORM, SeededNoise(0)).factors.V.shape[1] == 6


def test_a_threshold_that_leaves_some_without_weight_is_refused_before_it_is_charged() -> None:
    with pytest.raises(SpecError, match="no weight"):
        PDPHistogram(threshold=500).cost(DEFAULT)
    assert PDPHistogram(threshold=50).promise(DEFAULT).epsilon == 1


def test_labels_say_what_is_charged() -> None:
    assert PDPHistogram().promise(DEFAULT).epsilon_summary == "0.1..1"
    assert PDPHistogram(threshold=0.25).promise(DEFAULT).epsilon_summary == "0.1..0.25"
    assert PDPHistogram(threshold=0.25).promise(UNIFORM).epsilon_summary == "0.25"
    assert PDPHistogram().promise(USER).epsilon_summary == "1"


def test_unit_user_refuses_a_catalogue_beyond_its_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdp_histogram, "MOST_ITEMS", 50)
    with pytest.raises(SpecError, match="at most 50 items"):
        PDPHistogram().fit(made_up_ratings(), USER, SeededNoise(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("specification", "features", "published"),
    [
        (PrivacySpecification(epsilon=0.1), False, 0.9753),
        (PrivacySpecification(epsilon=1), False, 0.9281),
        (PrivacySpecification(epsilon=1), True, 0.9154),
        (DEFAULT, False, 0.9427),
        (DEFAULT, True, 0.9297),
    ],
)
def test_the_rmse_on_ml_100k_is_that_of_systems_g(
    ml_100k: Path, specification: PrivacySpecification, features: bool, published: float
) -> None:
    """All ten folds; the table's items are the rated ones, as here (every item of ML-100K is rated)."""
    ratings = load_ml_100k(ml_100k)
    folds = deal_ratings(ratings, 10)
    recommender = PDPHistogram(item_features=features)
    rmse = []
    for fold in range(10):
        train, test = ratings.where(folds != fold), ratings.where(folds == fold)
        scores = client_scores(recommender.fit(train, specification, SeededNoise(fold)), train, test)
        assert scores is not None
        rmse.append(scores.rmse)
    assert np.mean(rmse) == pytest.approx(published, abs=0.0035)


def test_the_catalogue_may_be_larger_than_what_was_rated() -> None:
    ratings = ratings_of([0, 1], [0, 0], [5, 4], n_users=2, n_items=1)
    larger = Catalogue.of_items([str(item) for item in range(50)], public=True)
    more = Ratings(ratings.users, ratings.items, ratings.values, ratings.user_labels, larger, ratings.scale)
    assert PDPHistogram().fit(more, UNIFORM, SeededNoise(0)).factors.V.shape == (50, 4)


ASKED = [0.0, 0.013, 0.1, 0.29, 1 / 3, 0.5, 0.77, 0.8, 0.81, 400.0]
NUMBERS = Preferences(default=0.2, cap=0.8)
LEVELS = Preferences(default=0.5, levels={"low": 0.1, "high": 0.8})


def with_preferences(ratings: Ratings, asked: list[float], *, per_user: bool = False) -> Ratings:
    which = ratings.users if per_user else np.arange(len(ratings))
    return replace(ratings, own_epsilon=np.array(asked)[which % len(asked)])


@pytest.mark.parametrize("preferences", [NUMBERS, LEVELS])
@pytest.mark.parametrize("fraction", [1.0, 1 / 3])
@pytest.mark.parametrize("threshold", ["max", "mean", 0.3])
def test_leaving_out_any_rating_costs_at_most_what_its_person_asked_for(
    ratings: Ratings, preferences: Preferences, fraction: float, threshold: Any
) -> None:
    """In exact fractions; and somebody's bound is reached."""
    specification = PrivacySpecification(preferences=preferences, fraction=fraction)
    ratings, recommender = with_preferences(ratings, ASKED), PDPHistogram(threshold=threshold)
    whole, scale = measured(ratings, specification, recommender)
    shares = []
    for left_out in range(0, len(ratings), 97):
        without, _ = measured(ratings.where(np.arange(len(ratings)) != left_out), specification, recommender)
        loss = int(np.abs(whole - without).sum()) / Fraction(scale)
        assert ratings.own_epsilon is not None
        asked = min(Fraction(float(ratings.own_epsilon[left_out])), Fraction(preferences.largest))
        assert loss <= asked * Fraction(fraction)
        assert loss <= Fraction(recommender.promise(specification).epsilon or 0)
        shares.append(float(loss / (asked * Fraction(fraction))) if asked else 0.0)
    assert max(shares) > 0.99


@pytest.mark.parametrize("preferences", [NUMBERS, LEVELS])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_leaving_out_any_user_costs_at_most_what_the_user_asked_for(preferences: Preferences, fraction: float) -> None:
    """Users with 1 to 40 ratings; delta by the lemma at the move that was really made."""
    counts = range(1, 41)
    users = np.repeat(np.arange(40), counts)
    items = np.concatenate([np.arange(count) for count in counts])
    asked = ratings_of(users, items, 1 + (users + items) % 5, n_users=40, n_items=60)
    ratings = with_preferences(asked, ASKED, per_user=True)
    specification = PrivacySpecification(preferences=preferences, unit="user", fraction=fraction)
    whole, stddev = measured(ratings, specification, PDPHistogram())
    for user in range(40):
        own = min(ASKED[user % len(ASKED)], preferences.largest) * fraction
        without, _ = measured(ratings.where(ratings.users != user), specification, PDPHistogram())
        norm = float(np.sqrt(((whole - without) ** 2).sum()))
        if own == 0:
            assert norm == 0
            continue
        assert discrete_gaussian_delta(own, stddev / norm, steps=norm, cells=MOST_ITEMS) <= 1e-6
        kept = own if own == specification.largest_epsilon else two_digits_down(np.array([own]))[0]
        more = norm * 1.001
        assert discrete_gaussian_delta(kept, stddev / more, steps=more, cells=MOST_ITEMS) > 1e-6


@settings(deadline=None)
@given(epsilon=st.floats(LEAST_EPSILON, MOST_EPSILON), nudge=st.integers(-2, 2))
def test_two_digits_never_exceed_the_epsilon(epsilon: float, nudge: int) -> None:
    for start in (epsilon, float(f"{epsilon:.1e}")):
        for _ in range(abs(nudge)):
            start = float(np.nextafter(start, np.inf if nudge > 0 else 0))
        (rounded,) = two_digits_down(np.array([start]))
        assert rounded <= start
        assert rounded > start * 0.89
        assert rounded == float(f"{rounded:.1e}")
    assert two_digits_down(np.array([0.013, 0.29, 0.8, 130.0])).tolist() == [0.013, 0.29, 0.8, 130]
    assert two_digits_down(np.array([0.0]))[0] == 0


@given(norm=st.integers(0, USER_STEPS), count=st.integers(1, MOST_ITEMS))
def test_equal_shares_keep_to_the_norm_in_exact_integers(norm: int, count: int) -> None:
    (share,) = equal_shares(np.array([norm]), np.array([count]))
    assert count * int(share) ** 2 <= norm**2
    assert count * (int(share) + 2) ** 2 > norm**2


@pytest.mark.parametrize("unit", ["rating", "user"])
@pytest.mark.parametrize("threshold", ["max", "mean"])
def test_nothing_of_the_table_of_preferences_is_read_but_through_the_noise(
    ratings: Ratings, unit: Any, threshold: Any
) -> None:
    specification = PrivacySpecification(preferences=NUMBERS, unit=unit)
    recommender = PDPHistogram(threshold=threshold)
    one, two = (
        recommender.fit(with_preferences(ratings, asked, per_user=True), specification, Canceller()).factors
        for asked in ([0.0, 1e-6], [0.7, 900.0])
    )
    for name in ("V", "offset", "precision", "precision_per_rating"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


def test_one_who_asks_for_nothing_leaves_no_trace(ratings: Ratings) -> None:
    asked = np.where(ratings.users == 3, 0.0, 0.5)
    for unit in ("rating", "user"):
        specification = PrivacySpecification(preferences=NUMBERS, unit=unit)
        everybody = replace(ratings, own_epsilon=asked)
        whole, _ = measured(everybody, specification, PDPHistogram())
        without, _ = measured(everybody.where(ratings.users != 3), specification, PDPHistogram())
        assert (whole == without).all()


def test_what_is_promised_to_those_who_were_asked() -> None:
    numbers, levels = PrivacySpecification(preferences=NUMBERS), PrivacySpecification(preferences=LEVELS)
    for unit in ("rating", "user"):
        for specification, summary in ((numbers, "≤0.8"), (levels, "0.1..0.8")):
            promise = PDPHistogram().promise(specification.model_copy(update={"unit": unit}))
            assert promise.epsilon_summary == summary
            assert promise.verdict == "proven"
            assert "asked for" in promise.sentence
            assert "does not depend on what they rated" in promise.conditions[-1]
    with pytest.raises(SpecError, match=r"epsilon 0\.2 would have no weight"):
        PDPHistogram(threshold=500).cost(numbers)
