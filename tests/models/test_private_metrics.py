from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import isfinite

import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import dlaplace

from models.errors import SpecError
from models.evaluation import client_scores
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.noise import ExactNoise, NoiseSource, SeededNoise
from models.privacy.specification import LEAST_EPSILON, MOST_EPSILON, Policy, Preferences, PrivacySpecification, Unit
from models.private_metrics import (
    COUNT_TAIL,
    ERROR_STEPS,
    SHARE,
    SUM_TAIL,
    PaidMetrics,
    PrivateMetrics,
    divided,
    exact_sums,
    largest_mean,
)
from models.ratings import Ratings
from models.release import ItemFactors
from tests.made_up import WHOLE_STARS, made_up_ratings, ratings_of
from tests.recorder import Recorder

UNIFORM = PrivacySpecification(epsilon=1)
UNITS: list[Unit] = ["rating", "user"]
FULL = ERROR_STEPS


def sums(factors: ItemFactors, ratings: Ratings, m: int) -> np.ndarray:
    """The two numbers to which noise is added."""
    return np.array(exact_sums(factors, *divided(ratings, UNIFORM, m)))


def hostile_factors(n_items: int) -> ItemFactors:
    """Whoever gave a single 5 is predicted to give 5s everywhere, and 1s without it."""
    V = np.full((n_items, 1), 1e4, np.float32)
    return ItemFactors(V, np.ones(n_items, np.float32), np.array([1e-3]))


USERS = [([5], [1] * 7), ([5], [1]), ([], [1, 1]), ([5] * 9, [1, 5] * 3), ([1, 5, 1], [5, 1] * 3), ([], [5] * 7)]
"""For each user, the values to be folded in and those to be left out: one rating that decides all, none, some."""


def hostile_ratings() -> Ratings:
    n_users, n_items = len(USERS), 120
    users, items = np.divmod(np.arange(n_users * n_items), n_items)
    everything = ratings_of(users, items, np.ones(n_users * n_items), n_users, n_items)
    rows = []
    for part, values_of in zip(divided(everything, UNIFORM, n_items), zip(*USERS, strict=True), strict=True):
        for user, values in enumerate(values_of):
            mine = part.by_user.other[part.by_user.start[user] :][: len(values)]
            rows += [(user, item, value) for item, value in zip(mine, values, strict=True)]
    users, items, values = np.array(rows).T
    return ratings_of(users, items, values, n_users, n_items)


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.1, 1 / 3, 2.0])
def test_leaving_out_any_rating_costs_at_most_epsilon(m: int, epsilon: float) -> None:
    """In exact fractions, whatever V is; and the bound is reached by either kind of rating."""
    ratings, told = hostile_ratings(), PrivateMetrics(epsilon=epsilon, ratings_per_user=m)
    factors = hostile_factors(ratings.n_items)
    whole = sums(factors, ratings, m)
    of_sum, of_count = map(Fraction, told.noise_scales("rating"))
    moves = {
        tuple(np.abs(whole - sums(factors, ratings.where(row != np.arange(len(ratings))), m)).tolist())
        for row in range(len(ratings))
    }
    losses = {move: move[0] / of_sum + move[1] / of_count for move in moves}
    assert max(losses.values()) <= Fraction(epsilon)
    assert (m * FULL, 0) in moves  # a rating that is folded in
    assert (FULL, 1) in moves  # one that is left out
    assert (FULL, 0) in moves  # one that makes room for another
    assert losses[(FULL, 1)] > Fraction(epsilon) * Fraction("0.999999")
    if m > 1:
        assert losses[(m * FULL, 0)] > Fraction(epsilon) * Fraction("0.999999")


@pytest.mark.parametrize("m", [1, 2, 5])
def test_leaving_out_any_user_costs_at_most_epsilon(m: int) -> None:
    ratings, told = hostile_ratings(), PrivateMetrics(epsilon=0.3, ratings_per_user=m)
    factors = hostile_factors(ratings.n_items)
    whole = sums(factors, ratings, m)
    of_sum, of_count = map(Fraction, told.noise_scales("user"))
    losses = []
    for user in range(ratings.n_users):
        moved = np.abs(whole - sums(factors, ratings.where(ratings.users != user), m)).tolist()
        losses.append(moved[0] / of_sum + moved[1] / of_count)
    assert max(losses) <= Fraction(0.3)
    assert max(losses) > Fraction(0.3) * Fraction("0.999999")


@pytest.mark.parametrize("m", [1, 5])
def test_another_value_costs_at_most_epsilon_and_leaves_the_count_alone(m: int) -> None:
    """What a release under replace_value needs."""
    ratings, told = hostile_ratings(), PrivateMetrics(epsilon=0.3, ratings_per_user=m)
    factors = hostile_factors(ratings.n_items)
    whole = sums(factors, ratings, m)
    of_sum, _ = map(Fraction, told.noise_scales("rating"))
    for row in range(len(ratings)):
        values = ratings.values.copy()
        values[row] = 6 - values[row]
        moved = np.abs(whole - sums(factors, replace(ratings, values=values), m)).tolist()
        assert moved[0] / of_sum <= Fraction(0.3)
        assert moved[1] == 0


def test_nobodys_errors_depend_on_what_others_rated_to_the_bit(ratings: Ratings) -> None:
    """Padding and blocks of a joint computation would, in the last digit, and so carry a rating to unpaid places."""
    factors = PDPHistogram().fit(ratings, UNIFORM, SeededNoise(0)).factors
    each = [sums(factors, ratings.where(ratings.users == user), 5) for user in range(ratings.n_users)]
    assert sums(factors, ratings, 5).tolist() == np.sum(each, axis=0).tolist()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("V", [np.nan, np.inf, 1e30, 1e18, 0.0])
@pytest.mark.parametrize("offset", [np.nan, -np.inf, 1e30, 3.0])
def test_an_error_that_is_no_number_counts_as_the_largest(V: float, offset: float) -> None:
    ratings = hostile_ratings()
    factors = ItemFactors(
        np.full((ratings.n_items, 2), V, np.float32), np.full(ratings.n_items, offset, np.float32), np.array([1.0, 0.0])
    )
    total, count = sums(factors, ratings, 5).tolist()
    assert 0 <= total <= FULL * count
    if np.isnan(offset):
        assert total == FULL * count


@settings(deadline=None)
@given(epsilon=st.floats(LEAST_EPSILON, MOST_EPSILON), m=st.integers(1, 1000))
def test_the_noise_scales_are_never_below_what_was_claimed_nor_wasteful(epsilon: float, m: int) -> None:
    told = PrivateMetrics(epsilon=epsilon, ratings_per_user=m)
    paid = Fraction(epsilon)
    of_sum, of_count = map(Fraction, told.noise_scales("rating"))
    assert m * FULL / of_sum <= paid
    assert FULL / of_sum + 1 / of_count <= paid
    assert FULL / of_sum + 1 / of_count > paid * Fraction("0.999999")
    of_sum, of_count = map(Fraction, told.noise_scales("user"))
    assert m * FULL / of_sum + m / of_count <= paid
    assert m * FULL / of_sum + m / of_count > paid * Fraction("0.999999")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("claimed", "fits"), [(1.0, True), (0.9, False), (1.1, False)])
def test_both_numbers_carry_the_claimed_noise(
    unit: Unit, claimed: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean absolute value over its law's, for data without ratings."""
    read: list[tuple[int, int]] = []
    keep = lambda _, total, count, *__: read.append((total, count))  # noqa: E731
    monkeypatch.setattr(PrivateMetrics, "read", keep)
    told, nobody = PrivateMetrics(epsilon=0.01), ratings_of([], [], [], n_users=1, n_items=1)
    noise = SeededNoise(3)
    for _ in range(4000):
        told.measure(hostile_factors(1), nobody, nobody, unit, noise)
    for column, scale in enumerate(told.noise_scales(unit)):
        ratio = np.abs([numbers[column] for numbers in read]).mean() / scale * claimed
        assert (abs(ratio - 1) < 4 / np.sqrt(4000)) == fits


@pytest.mark.parametrize("unit", UNITS)
def test_noise_is_asked_for_both_numbers_and_nothing_else_is_read(ratings: Ratings, unit: Unit) -> None:
    told, recorder = PrivateMetrics(epsilon=0.1), Recorder()
    factors = PDPHistogram().fit(ratings, UNIFORM, SeededNoise(0)).factors
    own, left_out = divided(ratings, UNIFORM, 5)
    told.measure(factors, own, left_out, unit, recorder)
    assert [kind for kind, _, _ in recorder.given] == ["laplace"] * 2
    assert [scale for _, _, scale in recorder.given] == list(told.noise_scales(unit))
    assert [value for _, (value,), _ in recorder.given] == list(exact_sums(factors, own, left_out))


def test_without_noise_it_is_the_rmse_of_the_clients(ratings: Ratings) -> None:
    """Golden: the figure that cross-validation computes from the same predictions, all users at once."""
    own, left_out = divided(ratings, UNIFORM, 1000)
    fitted = PDPHistogram().fit(own, UNIFORM, SeededNoise(0))
    metrics = PrivateMetrics(epsilon=1000, ratings_per_user=1000).measure(
        fitted.factors, own, left_out, "rating", Recorder()
    )
    scores = client_scores(fitted, own, left_out)
    assert scores is not None
    assert metrics.rmse == pytest.approx(scores.rmse, abs=1e-5)
    assert metrics.low < metrics.rmse < metrics.high


def test_with_exact_noise_it_is_another_number_every_time(ratings: Ratings) -> None:
    own, left_out = divided(ratings, UNIFORM, 5)
    factors = PDPHistogram().fit(own, UNIFORM, SeededNoise(0)).factors
    told = PrivateMetrics(epsilon=50)
    first, second = (told.measure(factors, own, left_out, "rating", ExactNoise()) for _ in range(2))
    assert first.rmse != second.rmse
    assert abs(first.rmse - second.rmse) < 0.3


def covered(mean: float, n: int, epsilon: float, unit: Unit, law: str, repetitions: int = 800) -> tuple[float, float]:
    """How often the interval holds the true RMSE, and that of the very ratings it was measured on."""
    told, scale = PrivateMetrics(epsilon=epsilon), WHOLE_STARS
    of_sum, of_count = told.noise_scales(unit)
    rng, noise = np.random.default_rng(n), SeededNoise(n)
    if law == "worst":  # all errors are the largest or none
        exact = rng.binomial(n, mean, repetitions) * FULL
    else:
        exact = np.rint(rng.exponential(mean, (repetitions, n)).clip(max=1) * FULL).sum(axis=1).astype(np.int64)
        mean = -mean * np.expm1(-1 / mean)  # of the clipped one
    totals = noise.add_discrete_laplace(exact, scale=of_sum)
    counts = noise.add_discrete_laplace(np.full(repetitions, n), scale=of_count)
    true, hits, own_hits = scale.width * np.sqrt(mean), 0, 0
    for total, count, own in zip(totals.tolist(), counts.tolist(), exact.tolist(), strict=True):
        metrics = told.read(total, count, unit, scale)
        assert metrics.low <= metrics.rmse <= metrics.high
        hits += metrics.low <= true <= metrics.high
        own_hits += metrics.low <= scale.width * np.sqrt(own / FULL / n) <= metrics.high
    return hits / repetitions, own_hits / repetitions


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("law", ["worst", "usual"])
@pytest.mark.parametrize(
    ("mean", "n", "epsilon"), [(0.05, 400, 0.5), (0.05, 4000, 0.1), (0.5, 100, 3.0), (0.01, 50, 30.0)]
)
def test_the_interval_holds_the_true_rmse_as_often_as_it_says(
    mean: float, n: int, epsilon: float, unit: Unit, law: str
) -> None:
    assert pytest.approx(0.05) == 2 * (SUM_TAIL + COUNT_TAIL)
    true, own = covered(mean, n, epsilon, unit, law)
    assert true >= 0.95
    assert own >= 0.95


@pytest.mark.parametrize("scale", [0.25, 1.0, 7.3, 1000.0])
def test_the_discrete_law_is_no_worse_than_the_bound_a_step_earlier(scale: float) -> None:
    x = np.arange(-int(20 * scale) - 20, int(20 * scale) + 20)
    tail = dlaplace(1 / scale).sf(x - 1)
    for a in (1e-6, 0.01, 0.3, 0.5, 0.9, 1.0):
        k = (2 * a / (1 + a)) ** a / (1 + a)
        assert (tail <= k * np.exp(-a * (x - 1) / scale) * (1 + 1e-9)).all()


def test_an_interval_that_leaves_out_the_noise_or_the_sampling_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above is one."""
    module = "models.private_metrics.largest_mean"
    monkeypatch.setattr(module, lambda total, n, scale: largest_mean(total, n, scale / 20))
    assert covered(0.05, 4000, 0.1, "rating", "worst")[0] < 0.9
    monkeypatch.setattr(module, lambda total, n, scale: largest_mean(100 * total, 100 * n, scale * 100))
    assert covered(0.05, 400, 30, "rating", "worst")[0] < 0.9


def test_the_interval_is_worth_its_price() -> None:
    """28,000 ratings left out, as on ML-1M, at an RMSE of .88."""
    n = 28_000
    for epsilon, width in ((0.1, 0.12), (0.5, 0.065), (50.0, 0.066)):
        metrics = PrivateMetrics(epsilon=epsilon).read(int(n * 0.88**2 / 16 * FULL), n, "rating", WHOLE_STARS)
        assert metrics.rmse == pytest.approx(0.88, abs=1e-3)
        assert metrics.high - metrics.low < width


@settings(deadline=None)
@given(
    total=st.integers(-(2**62), 2**62),
    count=st.integers(-(2**62), 2**62) | st.integers(-100, 100),
    epsilon=st.floats(LEAST_EPSILON, MOST_EPSILON),
    m=st.integers(1, 1000),
    unit=st.sampled_from(UNITS),
)
def test_whatever_the_noise_the_figures_are_numbers_on_the_scale(
    total: int, count: int, epsilon: float, m: int, unit: Unit
) -> None:
    metrics = PrivateMetrics(epsilon=epsilon, ratings_per_user=m).read(total, count, unit, WHOLE_STARS)
    assert all(isfinite(number) for number in (metrics.rmse, metrics.low, metrics.high))
    assert 0 <= metrics.low <= metrics.rmse <= metrics.high <= 4
    if count < 1:
        assert metrics.says_nothing
        assert (metrics.low, metrics.high) == (0, 4)


@pytest.mark.parametrize("noise", [SeededNoise(0), ExactNoise()])
def test_too_few_ratings_are_said_to_say_nothing(noise: NoiseSource) -> None:
    nobody = ratings_of([], [], [], n_users=1, n_items=3)
    metrics = PrivateMetrics(epsilon=1).measure(hostile_factors(3), nobody, nobody, "rating", noise)
    assert metrics.says_nothing
    assert "too few ratings to say more" in metrics.sentence
    assert "0..4" in metrics.sentence


def test_a_tenth_is_left_out_and_a_few_of_each_user_are_used() -> None:
    ratings = made_up_ratings(n_users=300, n_items=200, per_user=150)
    own, left_out = divided(ratings, UNIFORM, 5)
    _, all_left_out = divided(ratings, UNIFORM, 1000)
    assert len(own) + len(all_left_out) == len(ratings)
    assert len(all_left_out) / len(ratings) == pytest.approx(SHARE, abs=0.01)
    assert set(np.bincount(left_out.users)) <= {*range(6)}
    assert (np.bincount(left_out.users, minlength=300) == np.minimum(np.bincount(all_left_out.users), 5)).all()


def pairs(ratings: Ratings) -> set[tuple[int, int]]:
    return set(zip(ratings.users.tolist(), ratings.items.tolist(), strict=True))


def test_who_is_left_out_depends_on_no_value_and_on_no_other_rating(ratings: Ratings) -> None:
    own, left_out = map(pairs, divided(ratings, UNIFORM, 1000))
    other = replace(ratings, values=(6 - ratings.values).astype(np.float32))
    assert (own, left_out) == tuple(map(pairs, divided(other, UNIFORM, 1000)))
    half = ratings.where(np.arange(len(ratings)) % 2 == 0)
    assert (own & pairs(half), left_out & pairs(half)) == tuple(map(pairs, divided(half, UNIFORM, 1000)))
    backwards = ratings.where(np.arange(len(ratings))[::-1])
    assert pairs(divided(backwards, UNIFORM, 2)[1]) == pairs(divided(ratings, UNIFORM, 2)[1])


def test_one_who_asked_for_nothing_is_neither_fitted_nor_measured(ratings: Ratings) -> None:
    specification = PrivacySpecification(preferences=Preferences(default=0.5, levels={"none of it": 0, "some": 0.5}))
    asked = np.where(ratings.users % 2 == 0, 0.0, 0.5)
    own, left_out = divided(replace(ratings, own_epsilon=asked), specification, 5)
    odd = ratings.where(ratings.users % 2 == 1)
    assert (pairs(own), pairs(left_out)) == tuple(map(pairs, divided(odd, UNIFORM, 5)))


@pytest.mark.parametrize("epsilon", [0, -1, float("nan"), float("inf"), 1001, "much", None])
def test_an_epsilon_must_be_one(epsilon: object) -> None:
    with pytest.raises(ValidationError):
        PrivateMetrics(epsilon=epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize("m", [0, -1, 1001, 2.5])
def test_a_user_has_one_to_a_thousand_ratings_measured(m: int) -> None:
    with pytest.raises(ValidationError):
        PrivateMetrics(epsilon=1, ratings_per_user=m)


@pytest.mark.parametrize("specification", [UNIFORM, PrivacySpecification(epsilon=3, unit="user")])
def test_the_promise_is_the_price(specification: PrivacySpecification) -> None:
    told = PrivateMetrics(epsilon=0.1)
    promise = told.promise(specification, public_catalogue=True)
    assert (promise.unit, promise.relation) == (specification.unit, "add_or_remove")
    assert (promise.epsilon, promise.delta, promise.verdict) == (0.1, 0, "proven")
    weaker = told.promise(specification, public_catalogue=False)
    assert weaker.verdict == "conditional"
    assert told.cost() == DiscreteLaplaceDpEvent(0.1, 1)


def test_of_own_epsilons_they_take_the_share_of_who_has_the_least() -> None:
    told = PrivateMetrics(epsilon=0.02)
    policy = PrivacySpecification(policy=Policy(), fraction=0.25)
    assert told.share_of_own(policy) == pytest.approx(0.2)
    assert Fraction(told.share_of_own(policy) or 0) * Fraction(0.1) >= Fraction(0.02)
    levels = PrivacySpecification(preferences=Preferences(default=0.5, levels={"no": 0, "low": 0.04, "high": 1}))
    assert told.share_of_own(levels) == pytest.approx(0.5)
    assert told.share_of_own(UNIFORM) is None
    with pytest.raises(SpecError, match="may ask for less than any such cost"):
        told.share_of_own(PrivacySpecification(preferences=Preferences(default=0.5, cap=1)))


def test_a_release_keeps_what_was_paid_for(ratings: Ratings) -> None:
    release = PDPHistogram().fit(ratings, UNIFORM, ExactNoise()).release
    assert PaidMetrics.of(release) is None
    metrics = PaidMetrics(0.93, 0.91, 0.95, False, 0.1, 5)
    assert PaidMetrics.of(metrics.added_to(release)) == metrics
    assert metrics.interval == "0.91..0.95"
    assert "ε=0.1" in metrics.sentence
