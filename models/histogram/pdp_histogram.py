"""`pdp-histogram`: one noisy histogram of ratings per item; everything after it is post-processing.

A rating touches exactly one cell of one item's histogram, so the cost is exact: no user factors, no
clipped residuals, no composition over iterations. Whatever is personal stays on the user's own
machine (fold-in). The constants on a 1..5 scale were chosen by hand on ML-100K and ML-1M.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from models.batch import Moves, moves_of
from models.errors import SpecError
from models.privacy.gaussian import discrete_gaussian_multiplier, discrete_gaussian_reach
from models.privacy.guarantee import Guarantee, shared_conditions
from models.privacy.noise import NoiseSource, Steps
from models.privacy.specification import LEAST_EPSILON, Epsilon, PrivacySpecification, Unit
from models.ratings import Catalogue, Doubles, Ratings, RatingScale
from models.recommender import Fitted, Noise, PositiveSetting, Recommender
from models.release import ItemFactors, Release

RATING_STEPS = 2**10
"""Grid steps per unit of weight when a rating is protected; the weights are rounded down to this grid."""

USER_STEPS = 2**20
"""The same when a user is protected: finer, because the exact Gaussian calibration loses 1 / steps."""

N_OWN_COLUMNS = 4
"""Columns of V before those of public item features."""

MOST_ITEMS = 2**20
"""Largest catalogue with unit user: the calibration must know a bound before a rating is read."""


class PDPHistogram(Recommender, frozen=True):
    """One noisy histogram of ratings per item; the user's own part is computed at the user's side.

    V holds item biases, popularity, polarisation and public features; a ridge fold-in does the rest.

    Rating (u, j) enters its cell with weight min(1, epsilon_uj / threshold) and the cell gets discrete
    Laplace noise of scale 1 / threshold. With unit user, a user with c ratings enters each with weight
    w / sqrt(c) and the cells get discrete Gaussian noise; w is 1, or less for who asked for less than the most.
    """

    name: ClassVar[str] = "pdp-histogram"
    paper: ClassVar[str] = "Jali; docs/guarantees.md"
    units: ClassVar[tuple[Unit, ...]] = ("rating", "user")
    batches: ClassVar[bool] = True

    threshold: Literal["max", "mean"] | Epsilon = "max"
    """The epsilon that a rating of full weight pays: the largest or the mean declared one, or a number."""
    item_features: bool = True
    """Whether public item features become columns of V."""
    rating_variance: PositiveSetting = 1.1
    """Prior variance of a rating around its item's mean, on a 1..5 scale."""
    item_variance: PositiveSetting = 0.3
    """Prior variance of item means, on a 1..5 scale."""
    ratings_per_user: PositiveSetting = 100.0
    """A typical number of ratings, declared, for unit user only: it sets the shrinkage, not the guarantee."""

    def cost(self, specification: PrivacySpecification) -> DpEvent:
        self._require(specification)
        if specification.unit == "user":
            # The continuous Gaussian's event: the discrete one's epsilon exceeds what an accountant makes of it
            # by the lemma's sqrt(k) B / (2 s^2), once per release (2.7e-5 at epsilon 1).
            return GaussianDpEvent(_user_noise_multiplier(specification))
        return DiscreteLaplaceDpEvent(self._charged(specification), 1)

    def promise(self, specification: PrivacySpecification) -> Guarantee:
        self._require(specification)
        charged = self._charged(specification)
        conditions = shared_conditions(specification)
        asked = ", and for each the epsilon asked for where it is smaller" if specification.preferences else ""
        if specification.unit == "user":
            return Guarantee(
                unit="user",
                relation="add_or_remove",
                epsilon=charged,
                least_epsilon=specification.smallest_epsilon,
                levels=specification.levels(charged),
                delta=specification.delta,
                verdict="proven",
                conditions=conditions,
                sentence="What is released is nearly as likely with or without everything that any one user rated: "
                f"({charged:g}, {specification.delta:g})-differential privacy for users{asked}.",
                reference="docs/guarantees.md#pdp-histogram-unit-user",
            )
        own = f"epsilon {charged:g}"
        if specification.preferences is not None:
            own = f"the epsilon that its person asked for, {charged:g} at the most,"
        elif specification.policy is not None:
            own = f"its own epsilon of the declared policy, {charged:g} at the most,"
        return Guarantee(
            unit="rating",
            relation="add_or_remove",
            epsilon=charged,
            least_epsilon=min(specification.smallest_epsilon, charged),
            levels=specification.levels(charged),
            verdict="proven",
            conditions=conditions,
            sentence="What is released is nearly as likely with or without any one rating: pure differential privacy "
            f"with {own} for each rating. A changed rating counts twice, and a user's ratings add up.",
            reference="docs/guarantees.md#pdp-histogram-unit-rating",
        )

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        self._require(specification)
        if specification.unit == "user":
            noisy, variance = self._user_histogram(ratings, specification, noise)
            steps = USER_STEPS
            first, second = specification.weight_moments(specification.largest_epsilon)
            spread = second / first / np.sqrt(self.ratings_per_user)
        else:
            noisy, variance = self._rating_histogram(ratings, specification, noise)
            steps = RATING_STEPS
            first, second = specification.weight_moments(self._threshold(specification))
            spread = second / first
        cell_variance = np.full(ratings.n_items, variance)
        if ratings.batch is not None:
            noisy = noisy + ratings.batch.told.histogram
            cell_variance += ratings.batch.told.cell_variance
        features = ratings.catalogue.features if self.item_features else ratings.catalogue.features[:, :0]
        factors = self._factors(noisy / steps, cell_variance, spread, ratings.scale, features)
        statistics = {"histogram": noisy, "cell_variance": cell_variance}
        return self._fitted(ratings, specification, noise, factors, statistics=statistics)

    def require_batches(self, specification: PrivacySpecification) -> None:
        if specification.unit != "rating":
            raise SpecError(
                f"in batches {self.name} protects one rating, and unit user asks for all of a user's together, which "
                "come in many batches. Ask for unit rating, or leave --batch out."
            )
        threshold, largest = self._threshold(specification), specification.largest_epsilon
        if threshold > largest:
            raise SpecError(
                f"{self.name}: in batches a full rating weighs 1, whatever the batch; with a threshold of "
                f"{threshold:g} above the largest epsilon, {largest:g}, none would. Lower the threshold."
            )

    def moves(self, ratings: Ratings, specification: PrivacySpecification) -> Moves:
        return moves_of(ratings, weight_steps(specification.epsilon_of(ratings), self._threshold(specification)))

    def catalogue_of(self, release: Release) -> Catalogue:
        tags = (release.factors.V[:, N_OWN_COLUMNS:] > 0).astype(np.float32)
        return Catalogue(release.items, release.titles, tags, tuple(str(tag) for tag in range(tags.shape[1])))

    def _rating_histogram(
        self, ratings: Ratings, specification: PrivacySpecification, noise: NoiseSource
    ) -> tuple[Steps, float]:
        """The release of unit rating, in grid steps, and the variance of a cell's noise, in weights squared."""
        t = self._threshold(specification)
        exact = self.moves(ratings, specification).histogram(ratings.n_items, len(ratings.scale.levels))
        return noise.add_discrete_laplace(exact, scale=laplace_scale(t)), 2 / t**2

    def _user_histogram(
        self, ratings: Ratings, specification: PrivacySpecification, noise: NoiseSource
    ) -> tuple[Steps, float]:
        """The release of unit user, in grid steps, and the variance of a cell's noise, in weights squared."""
        if ratings.n_items > MOST_ITEMS:
            raise SpecError(f"with unit user a catalogue may hold at most {MOST_ITEMS} items; this one holds more.")
        counts = ratings.by_user.counts[ratings.users]
        norms = user_norms(specification.epsilon_of(ratings), specification)
        exact = exact_histogram(ratings, equal_shares(norms, counts))
        stddev = _user_noise_multiplier(specification)
        return noise.add_discrete_gaussian(exact, scale=stddev * USER_STEPS), stddev**2

    def _factors(
        self,
        histogram: Doubles,
        cell_variance: Doubles,
        spread: float,
        scale: RatingScale,
        features: np.ndarray,
    ) -> ItemFactors:
        """Post-processing of the noisy histogram, shape (n_items, n_levels); reads nothing private.

        `cell_variance`, shape (n_items,), is that of the noise in each cell of an item.
        `spread` is E[w^2] / E[w] of the weights: how many ratings' worth of scatter a unit of weight has.
        """
        unit = scale.width / 4  # the constants below are for a scale four wide
        levels, middle = scale.levels, scale.midpoint
        count = np.maximum(histogram.sum(axis=1), 1.0)
        pooled = np.maximum(histogram.sum(axis=0), 1.0)
        mean = float(pooled @ levels / pooled.sum())

        observed = np.clip(histogram @ (levels - mean) / count, -scale.width, scale.width)
        scatter = self.rating_variance * unit**2 * spread / count
        scatter += cell_variance * ((levels - middle) ** 2).sum() / count**2
        prior = self.item_variance * unit**2
        offset = scale.clip(mean + observed * prior / (prior + scatter))

        excess = (histogram * (levels - offset[:, None]) ** 2).sum(axis=1) / count / unit**2 - 1
        doubt = spread / count + cell_variance * ((levels - middle) ** 4).sum() / unit**4 / count**2
        polarisation = 1 + np.clip(excess, -1, 2) * 0.1 / (0.1 + doubt)
        popularity = np.log(np.maximum(count, 1 + np.sqrt(len(levels) * cell_variance)))

        tags = features / np.sqrt(np.maximum(1.0, features.sum(axis=1, keepdims=True)))
        V = np.column_stack(
            [
                np.ones(len(offset)),
                (offset - offset.mean()) / unit,
                0.3 * _standardised(popularity),
                0.3 * _standardised(polarisation),
                tags,
            ]
        )
        precision = np.array([5.0, 10.0, 10.0, 10.0] + [8.0] * tags.shape[1])
        return ItemFactors(V.astype(np.float32), offset.astype(np.float32), precision)

    def _charged(self, specification: PrivacySpecification) -> float:
        """The most that anybody pays: a rating pays the smaller of its own epsilon and the threshold."""
        if specification.unit == "user":
            return specification.largest_epsilon
        return min(specification.largest_epsilon, self._threshold(specification))

    def _threshold(self, specification: PrivacySpecification) -> float:
        return specification.threshold(self.threshold)

    def _require(self, specification: PrivacySpecification) -> None:
        specification.require(units=self.units, relation=self.relation, recommender=self.name)
        threshold, smallest = self._threshold(specification), specification.smallest_declared_epsilon
        if specification.unit == "rating" and smallest * RATING_STEPS < threshold:
            raise SpecError(
                f"{self.name}: with a threshold of {threshold:g} a rating of epsilon {smallest:g} would have no weight "
                f"(below 1/{RATING_STEPS}) and still be charged. Lower the threshold, or raise the smallest epsilon."
            )


def weight_steps(epsilon: Doubles, threshold: float) -> Steps:
    """min(1, epsilon / threshold) in grid steps, rounded down; shape as `epsilon`.

    Guarantee: steps * threshold / RATING_STEPS <= epsilon, in spite of floating point: the quotient is
    lowered by more than its rounding error before the floor.
    """
    partial = np.floor(epsilon / threshold * RATING_STEPS * (1 - 2**-50))
    return np.where(epsilon >= threshold, RATING_STEPS, partial).astype(np.int64)


def user_norms(epsilon: Doubles, specification: PrivacySpecification) -> Steps:
    """The L2 norm, in grid steps, that a user of each epsilon may move the histogram by; shape as `epsilon`.

    Guarantee: the noise made for the largest epsilon keeps a move of that norm (epsilon, delta)-DP. An epsilon below
    the largest is first rounded down to two digits, so that there are few norms to find.
    """
    largest = specification.largest_epsilon
    stddev = _user_noise_multiplier(specification) * USER_STEPS
    distinct, which = np.unique(np.where(epsilon >= largest, largest, two_digits_down(epsilon)), return_inverse=True)
    norms = [_norm(own, specification.delta, stddev) if own < largest else USER_STEPS for own in distinct.tolist()]
    return np.array(norms, np.int64)[which]


def _norm(epsilon: float, delta: float, stddev: float) -> int:
    if epsilon < LEAST_EPSILON:
        return 0
    return min(int(discrete_gaussian_reach(epsilon, delta, stddev=stddev, cells=MOST_ITEMS)), USER_STEPS)


def two_digits_down(epsilon: Doubles) -> Doubles:
    """The largest number of two digits that is not above it; shape as `epsilon`, not negative."""
    exponent = np.floor(np.log10(np.maximum(epsilon, LEAST_EPSILON))) - 1
    power = 10.0 ** np.abs(exponent)

    def number(digits: Doubles) -> Doubles:
        """As it is written: 13 / 1000 is 0.013, and 13 times 0.001 may not be."""
        result: Doubles = np.where(exponent < 0, digits / power, digits * power)
        return result

    digits = np.floor(np.where(exponent < 0, epsilon * power, epsilon / power))
    digits += number(digits + 1) <= epsilon
    digits -= number(digits) > epsilon
    return number(digits)


def equal_shares(norms: Steps, counts: Steps) -> Steps:
    """What each of `counts` alike coordinates may have so that their L2 norm is at most `norms`; exact in integers."""
    shares = np.floor(norms / np.sqrt(counts)).astype(np.int64)
    return shares - (counts * shares**2 > norms**2)


def laplace_scale(threshold: float) -> float:
    """Noise scale in grid steps at which RATING_STEPS steps cost at most `threshold`; rounded up."""
    return float(np.nextafter(RATING_STEPS / threshold, np.inf))


def exact_histogram(ratings: Ratings, steps: Steps) -> Steps:
    """Sum of `steps` over the ratings in each (item, level) cell; shape (n_items, n_levels), exact integers."""
    return moves_of(ratings, steps).histogram(ratings.n_items, len(ratings.scale.levels))


def _user_noise_multiplier(specification: PrivacySpecification) -> float:
    return discrete_gaussian_multiplier(
        specification.largest_epsilon, specification.delta, steps=USER_STEPS, cells=MOST_ITEMS
    )


def _standardised(x: Doubles) -> Doubles:
    deviation = x.std()
    return (x - x.mean()) / deviation if deviation > 0 else np.zeros_like(x)
