"""What the proofs say about our own code, in closed form; and that each of these tests sees a code that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import exp, inf, sqrt
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from scipy.optimize import brentq
from scipy.stats import gamma

from models.factorization.dp_pmf import DPPMF, STEPS
from models.factorization.gradient import LEAST_BATCH, Pace, descend
from models.histogram.pdp_histogram import RATING_STEPS, laplace_scale, weight_steps
from models.privacy.accounting import Amount, spending, zcdp_of
from models.privacy.gaussian import discrete_gaussian_multiplier
from models.privacy.guarantee import Guarantee
from models.privacy.noise import ExactNoise, SeededNoise
from models.privacy.sampling import keeping_probability
from models.ratings import Doubles, Ratings
from tests.made_up import ratings_of
from tests.models.privacy.test_gaussian import continuous_delta
from tests.recorder import Recorder

# ---- sampling by one's own epsilon: SOUNDNESS 4 and T4 ----

Keep = Callable[[float, float], float]
"""The probability with which a rating of some epsilon is kept before a mechanism of some threshold."""


def ours(epsilon: float, t: float) -> float:
    return float(keeping_probability(np.array([epsilon]), t)[0])


WRONG_SAMPLING: list[Keep] = [
    lambda epsilon, t: epsilon / t,
    lambda epsilon, t: (1 - exp(-epsilon)) / (1 - exp(-t)),  # the sign of the exponent
    lambda epsilon, t: (exp(epsilon) - 1) / exp(t),  # a forgotten 1: too few are kept
    lambda epsilon, t: min(1.0, 1.02 * ours(epsilon, t)),
    lambda epsilon, t: 0.98 * ours(epsilon, t),
]
CHANCES = [(epsilon, t) for t in (0.2, 1.0, 4.0) for epsilon in (0.05 * t, 0.3 * t, 0.9 * t)]


def loss_of_a_rating_that_comes(keep: float, t: float) -> float:
    """Over all ratios e^-t..e^t of the mechanism after it, both ways round."""
    ratios = np.exp(np.linspace(-t, t, 401))
    return float(np.abs(np.log(1 - keep + keep * ratios)).max())


def loss_of_a_rating_that_changes(keep: float, t: float, changed: float = inf, farthest: float | None = None) -> float:
    """Over all pairs of such ratios that are within e^changed of each other."""
    farthest = t if farthest is None else farthest
    a, b = np.meshgrid(*[np.linspace(-farthest, farthest, 401)] * 2)
    possible = np.abs(a - b) <= changed + 1e-9
    losses = np.log((1 - keep + keep * np.exp(a)) / (1 - keep + keep * np.exp(b)))
    return float(np.abs(losses[possible]).max())


def is_its_own_epsilon(keep: Keep) -> bool:
    return all(
        loss_of_a_rating_that_comes(keep(epsilon, t), t) == pytest.approx(epsilon, rel=1e-9)
        and loss_of_a_rating_that_changes(keep(epsilon, t), t, changed=t) == pytest.approx(epsilon, rel=1e-9)
        for epsilon, t in CHANCES
    )


def test_sampled_a_rating_that_comes_or_changes_costs_its_own_epsilon_exactly() -> None:
    """A changed one where the mechanism is as private for a change as for an addition: Remark 7's "pity" is none."""
    assert is_its_own_epsilon(ours)


@pytest.mark.parametrize("keep", WRONG_SAMPLING)
def test_another_probability_costs_another_epsilon(keep: Keep) -> None:
    assert not is_its_own_epsilon(keep)


def test_golden_suprema_of_a_changed_rating() -> None:
    keep = ours(0.3, 1.0)
    found = [loss_of_a_rating_that_changes(keep, 1.0, changed=1.0 * factor) for factor in (1, 1.5, 2)]
    assert found == pytest.approx([0.3, 0.384, 0.438], abs=5e-4)


def test_where_the_mechanism_shows_who_was_sampled_or_holds_for_changes_alone_a_rating_has_the_threshold() -> None:
    """Why pdp-pmf is broken: sampling gives nothing before a mechanism that an added rating can move at will."""
    assert loss_of_a_rating_that_changes(1.0, 1.0, changed=1.0) == pytest.approx(1.0)  # given that it was sampled
    without_bound = loss_of_a_rating_that_changes(ours(0.3, 1.0), 1.0, changed=1.0, farthest=20.0)
    assert without_bound == pytest.approx(1.0, abs=1e-4)


# ---- the accountant against the exact Gaussian: T10 ----

DELTA = 1e-6


def exact_epsilon(multiplier: float, n_releases: int, delta: float) -> float:
    """Of so many continuous Gaussians together, which are one whose noise is sqrt(n) times smaller."""
    together = multiplier / sqrt(n_releases)
    return float(brentq(lambda epsilon: continuous_delta(epsilon, together) / delta - 1, 1e-9, 400.0))


def our_epsilon(multiplier: float, n_releases: int, delta: float, *, share_of_rho: float = 1.0) -> float:
    """Of so many releases, none of which could be paid for by addition."""
    promise = Guarantee(
        unit="user", relation="add_or_remove", epsilon=1e9, delta=delta, verdict="proven", sentence="", reference=""
    )
    rho = zcdp_of(GaussianDpEvent(multiplier))
    assert rho is not None
    return spending([Amount("a", promise, share_of_rho * rho)] * n_releases, "add_or_remove", delta).epsilon


GAUSSIANS = [(m, k, delta) for m in (0.7, 4.0, 40.0) for k in (1, 4, 100) for delta in (1e-9, 1e-6, 1e-3)]


def ratios_to_the_exact_gaussian(share_of_rho: float = 1.0) -> list[float]:
    return [our_epsilon(m, k, d, share_of_rho=share_of_rho) / exact_epsilon(m, k, d) for m, k, d in GAUSSIANS]


def test_many_releases_are_never_said_to_cost_less_than_they_do_and_hardly_more() -> None:
    ratios = ratios_to_the_exact_gaussian()
    assert min(ratios) >= 1
    assert max(ratios) < 1.42, "at epsilon 0.03 and delta 1e-3; 1.03 to 1.16 where epsilon is above 0.1"


def test_with_half_of_rho_all_would_be() -> None:
    assert max(ratios_to_the_exact_gaussian(share_of_rho=0.5)) < 1


def discrete_delta(epsilon: float, stddev: float, move: int, n_releases: int) -> float:
    """Of the same move seen so many times: the loss is linear in the noise, so the sum of the noises is enough."""
    reach = int(12 * stddev)
    steps = np.arange(-reach, reach + 1)
    law = np.exp(-(steps**2) / (2 * stddev**2))
    law /= law.sum()
    total = np.ones(1)
    for _ in range(n_releases):
        total = np.convolve(total, law)
    sums = np.arange(len(total)) - len(total) // 2
    losses = n_releases * (move / stddev) ** 2 / 2 - move / stddev**2 * sums
    return float((total * np.maximum(1 - np.exp(epsilon - losses), 0)).sum())


@pytest.mark.parametrize(("stddev", "move", "n_releases"), [(1.0, 1, 3), (4.0, 3, 10), (20.0, 3, 30)])
def test_discrete_gaussians_together_keep_to_what_the_accountant_says(
    stddev: float, move: int, n_releases: int
) -> None:
    said = our_epsilon(stddev / move, n_releases, DELTA)
    assert discrete_delta(said, stddev, move, n_releases) <= DELTA
    assert (
        discrete_delta(our_epsilon(stddev / move, n_releases, DELTA, share_of_rho=0.5), stddev, move, n_releases)
        > DELTA
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_one_gaussian_release_costs_exactly_what_it_says(epsilon: float) -> None:
    multiplier = discrete_gaussian_multiplier(epsilon, DELTA, steps=2**20, cells=2**20)
    assert exact_epsilon(multiplier, 1, DELTA) == pytest.approx(epsilon, rel=5e-3)
    assert exact_epsilon(multiplier, 1, DELTA) <= epsilon
    assert exact_epsilon(0.98 * multiplier, 1, DELTA) > epsilon


# ---- noise drawn anew in every step: SOUNDNESS 3 and T3 ----

N_STEPS = 50
CLAIMED = 0.1


def one_rating(value: float) -> Ratings:
    return ratings_of([0], [0], [value], n_users=1, n_items=1)


def descended(value: float, pace: Pace, noise: Doubles | None = None) -> float:
    """The one number of V after our descent with u = 1 and this noise beside its gradient, 2(v - r)."""
    rest = iter(np.zeros(pace.n_epochs * pace.n_batches) if noise is None else noise)
    U, V = np.ones((1, 1)), np.zeros((1, 1))
    descend(one_rating(value), U, V, centre=3.0, pace=pace, learns_U=False, perturb=lambda g: g + next(rest))
    return float(V[0, 0])


def moved_and_weights(pace: Pace) -> tuple[float, Doubles]:
    """How far a change from 1 to 5 moves the outcome, and what the noise of each of 50 steps weighs in it."""
    still, n_steps = descended(1.0, pace), pace.n_epochs * pace.n_batches
    weights = [descended(1.0, pace, noise) - still for noise in np.eye(n_steps)[:: n_steps // N_STEPS]]
    return descended(5.0, pace) - still, np.abs(weights)


def steps_of(g_times_h: float) -> Pace:
    return Pace(N_STEPS, g_times_h / 2 * LEAST_BATCH, momentum=0.0, precision=0.0, n_batches=1, batch_share=1)


SCALE = 2 * 4 / CLAIMED
"""Of the Laplace noise in one step, whose gradient a changed rating moves by 2 * 4: for that one step as claimed."""


def largest_loss(moved: float, scales: Doubles) -> float:
    """Of a sum of Laplace variables of these scales that is moved so far, from its density by Fourier transform.

    The supremum lies far in the tail, so it is e^(tilt x) times the density that is computed, which has no such tail.
    """
    scales = scales[scales > 1e-9 * scales.max()]
    tilt, n, width = 0.98 / scales.max(), 2**16, 3000 * scales.max()
    frequency = 2 * np.pi * np.fft.fftfreq(n, width / n)
    transform = 1 / (1 - np.outer(scales, tilt - 1j * frequency) ** 2).prod(axis=0)
    tail = slice(200 + int(moved * n / width), n // 2)  # beyond the kinks, at which the grid is too coarse
    here, there = (np.fft.ifft(transform * np.exp(-1j * frequency * by)).real[tail] for by in (0.0, moved))
    known = np.minimum(here, there) > 1e-3 * here.max()
    return float(np.log(there[known] / here[known]).max()) + tilt * moved


@pytest.mark.parametrize(("g_times_h", "published"), [(0.02, 3.18), (0.2, 0.50), (0.5, 0.20), (1.0, 0.10)])
def test_noise_drawn_anew_costs_the_sum_of_a_geometric_series(g_times_h: float, published: float) -> None:
    moved, weights = moved_and_weights(steps_of(g_times_h))
    rho = 1 - g_times_h
    assert weights == pytest.approx(g_times_h / 2 * rho ** np.arange(N_STEPS)[::-1], abs=1e-12)
    by_code = moved / (SCALE * weights.max())
    assert by_code == pytest.approx(CLAIMED * (1 - rho**N_STEPS) / g_times_h)
    assert by_code == pytest.approx(published, abs=5e-3)
    assert largest_loss(moved, SCALE * weights) == pytest.approx(by_code, rel=5e-3)


@pytest.mark.parametrize("g_times_h", [0.02, 0.2, 0.5, 1.0])
def test_one_draw_used_in_every_step_would_cost_what_is_claimed(g_times_h: float) -> None:
    """So the test above does not find fault with every descent."""
    moved, weights = moved_and_weights(steps_of(g_times_h))
    reused = descended(1.0, steps_of(g_times_h), np.ones(N_STEPS)) - descended(1.0, steps_of(g_times_h))
    assert abs(reused) == pytest.approx(weights.sum())
    assert largest_loss(moved, np.array([SCALE * abs(reused)])) == pytest.approx(CLAIMED, rel=5e-3)


@pytest.mark.parametrize(("noise_per", "times"), [("batch_share", 279.3), ("epoch", 63.13)])
def test_as_published_the_only_rating_of_an_item_costs_many_times_its_epsilon(noise_per: Any, times: float) -> None:
    """In one dimension, even if U were constant and the start public; composition bounds it by 720 and by 80."""
    recommender = DPPMF(solver="alg2", n_factors=1, noise_per=noise_per)
    moved, weights = moved_and_weights(recommender._noisy_pace)
    share = recommender.n_batches if noise_per == "batch_share" else 1
    sensitivity = recommender._sensitivity(one_rating(1.0).scale)
    assert moved / (sensitivity / share * weights.max()) == pytest.approx(times, rel=1e-2)


# ---- the K-norm: its law, its scale, and the closed form after it ----


def every_uniform(n: int, d: int) -> Doubles:
    """All of a grid of (0, 1)^d; shape (n^d, d)."""
    along = (np.arange(n) + 0.5) / n
    return np.stack(np.meshgrid(*[along] * d, indexing="ij"), axis=-1).reshape(-1, d)


def norms_and_radii(monkeypatch: pytest.MonkeyPatch, d: int) -> tuple[Doubles, Doubles]:
    """What ExactNoise makes of all uniforms there are, in place of some of them."""
    monkeypatch.setattr("models.privacy.noise._unpredictable_uniforms", lambda shape: every_uniform(400, d))
    return ExactNoise()._normals_and_radii((400**d, d))


def is_law_of_radius(radii: Doubles, d: int) -> bool:
    """Within what a grid of 400 can show; no sample, so nothing is left to chance."""
    seen = np.arange(len(radii)) / len(radii)
    return bool(np.abs(gamma(d).cdf(np.sort(radii)) - seen).max() < 0.004)


@pytest.mark.parametrize("d", [1, 2])
def test_the_radius_has_the_law_of_a_sum_of_d_exponential_variables(monkeypatch: pytest.MonkeyPatch, d: int) -> None:
    _, radii = norms_and_radii(monkeypatch, d)
    assert is_law_of_radius(radii, d)
    assert not is_law_of_radius(radii * 0.97, d)
    assert not is_law_of_radius(radii * 1.03, d)
    assert not is_law_of_radius(radii, 3 - d), "of another number of dimensions"


def favours_no_direction(vectors: Doubles) -> bool:
    """Of the plane: every twelfth of the circle is as likely as any other."""
    angle = np.arctan2(vectors[:, 1], vectors[:, 0])
    share = np.histogram(angle, bins=12, range=(-np.pi, np.pi))[0] / len(vectors)
    return bool(np.abs(12 * share - 1).max() < 0.02)


def test_the_direction_is_any(monkeypatch: pytest.MonkeyPatch) -> None:
    normals, _ = norms_and_radii(monkeypatch, 2)
    assert favours_no_direction(normals)
    assert not favours_no_direction(2 * every_uniform(400, 2) - 1)  # a direction from the square


EPSILON = 0.7


def closed_form_inputs(directions: Doubles, values: Doubles, others: Doubles) -> tuple[np.ndarray, float]:
    """What dp-pmf adds noise to, in steps, and the noise's scale: item j has a friend's rating and the changed one.

    Args:
      directions: shape (n, 2), rows of U that rate one item each, of norm at most 1.
      values: shape (n,), the changing ratings.
      others: shape (n, 2), rows of U of those who rated the same items before.
    """
    n = len(directions)
    users, items = np.arange(2 * n), np.tile(np.arange(n), 2)
    ratings = ratings_of(users, items, np.concatenate([values, np.full(n, 4.0)]), n_users=2 * n, n_items=n)
    recorder = Recorder()
    recommender = DPPMF(n_factors=2)
    scale = recommender._sensitivity(ratings.scale) / EPSILON
    recommender._closed_form(ratings, np.vstack([directions, others]), 3.0, scale, recorder, 1)
    ((_, steps, noise_scale),) = recorder.given
    return steps, noise_scale


def hostile_pairs() -> tuple[np.ndarray, np.ndarray, float]:
    """Both right-hand sides of many items that one rating, changed from 1 to 5, moves as far as it can."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, np.pi / 2, 20_000)
    directions, others = np.stack([np.cos(angle), np.sin(angle)], axis=1), rng.uniform(0, 0.5, (20_000, 2))
    directions *= 1 - 1e-15  # of norm at most 1 in floating point too
    low, scale = closed_form_inputs(directions, np.full(20_000, 1.0), others)
    high, _ = closed_form_inputs(directions, np.full(20_000, 5.0), others)
    return low, high, scale


def exceeds(moved: np.ndarray, scale: float) -> bool:
    """Whether a move of so many steps costs more than epsilon, in exact fractions."""
    farthest = max(int(x) ** 2 + int(y) ** 2 for x, y in moved)
    return Fraction(farthest) > (Fraction(EPSILON) * Fraction(scale)) ** 2


def test_rounding_to_the_grid_is_paid_for() -> None:
    """A changed rating moves the rounded right-hand side by more than the scale's width, and the noise knows it."""
    low, high, scale = hostile_pairs()
    assert not exceeds(high - low, scale)
    assert exceeds(high - low, 4 / EPSILON * STEPS), "without the allowance"
    reached = np.linalg.norm((high - low).astype(float), axis=1).max() / scale
    assert EPSILON * (1 - 1e-6) < reached <= EPSILON


N_DRAWS = 20_000


def releases(U: Doubles, values: list[float]) -> Doubles:
    """So many draws of dp-pmf's closed form, U held constant: rows of V whose ratings are alike; shape (N_DRAWS, 2)."""
    n_raters = len(values)
    users, items = np.tile(np.arange(n_raters), N_DRAWS), np.repeat(np.arange(N_DRAWS), n_raters)
    ratings = ratings_of(users, items, np.tile(values, N_DRAWS), n_users=len(U), n_items=N_DRAWS)
    return DPPMF(n_factors=2)._closed_form(ratings, U, 3.0, 4 / EPSILON, SeededNoise(1), 1)


def log_density(V: Doubles, U: Doubles, values: list[float]) -> Doubles:
    """Of the closed form's rows: the K-norm's law, seen through v = (A + precision I)^-1 (b - eta)."""
    own = U[: len(values)]
    A = own.T @ own + DPPMF().precision * np.eye(2)
    noise = own.T @ (np.array(values) - 3.0) - V @ A
    log_density: Doubles = np.linalg.slogdet(A)[1] - np.linalg.norm(noise, axis=1) / (4 / EPSILON)
    return log_density


def losses(one: list[float], other: list[float]) -> Doubles:
    """Of releases of `one`, set beside `other`."""
    U = np.array([[0.6, 0.8], [0.0, 0.5], [1.0, 0.0]])  # the last to rate has a row of norm 1
    V = releases(U, one)
    result: Doubles = log_density(V, U, one) - log_density(V, U, other)
    return result


def test_with_U_constant_no_release_tells_more_than_epsilon_about_a_value_and_some_tell_all_of_it() -> None:
    changed = np.concatenate([losses([4.0, 2.0, 1.0], [4.0, 2.0, 5.0]), losses([4.0, 2.0, 5.0], [4.0, 2.0, 1.0])])
    assert np.abs(changed).max() <= EPSILON * (1 + 1e-5)
    assert np.abs(changed).max() > 0.99 * EPSILON


def test_whether_there_is_a_rating_costs_more_than_epsilon_even_with_U_constant() -> None:
    """SOUNDNESS 2: the determinant changes, and the noise seen through A by as much as V is long."""
    for one, other in (([4.0, 2.0], [4.0, 2.0, 5.0]), ([4.0, 2.0, 5.0], [4.0, 2.0]), ([4.0], [4.0, 2.0])):
        assert np.mean(np.abs(losses(one, other)) > EPSILON) > 0.5


# ---- the grid of pdp-histogram ----

Weigh = Callable[[Doubles, float], np.ndarray]
WRONG_WEIGHTS: list[Weigh] = [
    lambda epsilon, t: np.rint(np.minimum(1, epsilon / t) * RATING_STEPS).astype(np.int64),
    lambda epsilon, t: np.floor(np.minimum(1, epsilon / t) * RATING_STEPS).astype(np.int64),  # floating point forgotten
    lambda epsilon, t: np.floor(epsilon / t * RATING_STEPS * (1 - 2**-50)).astype(np.int64),  # not cut at 1
]


def edges_of_the_grid() -> list[tuple[Doubles, float]]:
    """Thresholds, each with epsilons that are, but for rounding, whole steps of it, and some beyond it."""
    thresholds = [0.1, 0.393, 1 / 3, 1.0, 2.7, 49.0]
    whole = np.arange(1, RATING_STEPS + 1) / RATING_STEPS
    return [(np.concatenate([t * whole, np.nextafter(t * whole, 0), [1.5 * t]]), t) for t in thresholds]


def costs_too_much(weigh: Weigh, scale: Callable[[float], float]) -> bool:
    """Whether some rating's steps over the noise's scale are more than its epsilon or the threshold, in fractions."""
    return any(
        Fraction(int(weight)) / Fraction(scale(t)) > min(Fraction(own), Fraction(t))
        for epsilon, t in edges_of_the_grid()
        for own, weight in zip(epsilon.tolist(), weigh(epsilon, t), strict=True)
    )


def test_no_rating_costs_more_than_its_epsilon_by_rounding() -> None:
    assert not costs_too_much(weight_steps, laplace_scale)


@pytest.mark.parametrize("weigh", WRONG_WEIGHTS)
def test_weights_rounded_otherwise_would_cost_more(weigh: Weigh) -> None:
    assert costs_too_much(weigh, laplace_scale)


def test_a_scale_rounded_otherwise_would_cost_more() -> None:
    assert costs_too_much(weight_steps, lambda t: RATING_STEPS / t)
    assert costs_too_much(weight_steps, lambda t: float(np.nextafter(RATING_STEPS / t, 0)))
