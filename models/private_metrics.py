"""The RMSE of a release, paid for: measured on a tenth of the ratings that the release was not fitted to.

The tenth is chosen by a keyed hash of (user, item), at most m = `ratings_per_user` ratings of a user are used, and
each is predicted from V and its user's own ratings among the other nine tenths. The sum of the squared errors and
their count get discrete Laplace noise; RMSE and interval are post-processing of these two numbers.
docs/guarantees.md#private-metrics has the proof.

Every user's predictions are computed apart, one at a time: so that no rounding of floating point carries a rating
over to somebody else's error, where nothing would pay for it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import log
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from pydantic import BaseModel, Field

from models.errors import SpecError
from models.privacy.accounting import as_written
from models.privacy.guarantee import Guarantee, shared_conditions
from models.privacy.keyed_hash import pair_uniforms
from models.privacy.noise import NoiseSource
from models.privacy.specification import Epsilon, PrivacySpecification, Unit
from models.ratings import Doubles, Floats, Ints, Mask, Ratings, RatingScale
from models.recommender import CATALOGUE_FROM_RATINGS
from models.release import ItemFactors, Release

KEY, SHARE = "private metrics", 0.1
"""Of the hash that chooses the ratings to be left out, and how many it chooses. Declared: the same for all data."""

ERROR_STEPS = 2**20
"""Grid steps of the largest squared error there can be: the square of the scale's width."""

SUM_TAIL, COUNT_TAIL = 0.02, 0.005
"""How likely each end of the interval is to fail because of the sum, and of the count: 2 (.02 + .005) = 5%."""

USERS_SUM_SHARE = Fraction(4, 5)
"""Share of epsilon that the sum takes with unit user. Its noise weighs more in the quotient than the count's."""

KEPT_AS = "private_metrics"
"""Where a release keeps them, in `about`."""


@dataclass(frozen=True)
class PaidMetrics:
    """What was bought: public.

    Attributes:
      rmse: the estimate, rating units.
      low, high: the interval that holds the true one with 95%, noise and sampling included.
      says_nothing: whether the ratings were too few for this epsilon, so that the interval is all there can be.
      epsilon, ratings_per_user: what it cost, and the bound m under which it was measured.
    """

    rmse: float
    low: float
    high: float
    says_nothing: bool
    epsilon: float
    ratings_per_user: int

    @property
    def interval(self) -> str:
        return f"{self.low:.3g}..{self.high:.3g}"

    @property
    def summary(self) -> str:
        if self.says_nothing:
            return f"{self.interval}: too few ratings to say more for ε={self.epsilon:g}"
        return f"{self.rmse:.3g} (95% interval {self.interval})"

    @property
    def sentence(self) -> str:
        return (
            f"RMSE {self.summary}. Measured on a tenth of the ratings, left out of the fit, at most "
            f"{self.ratings_per_user} of a user; the interval includes noise and sampling. It was paid for with "
            f"ε={self.epsilon:g}, besides what the release cost."
        )

    @property
    def tags(self) -> dict[str, str]:
        """For the version of a release."""
        return {
            "metrics.rmse": f"{self.rmse:.4g}",
            "metrics.rmse_95": self.interval,
            "metrics.epsilon": f"{self.epsilon:g}",
        }

    @property
    def price(self) -> PrivateMetrics:
        """What was asked for."""
        return PrivateMetrics(epsilon=self.epsilon, ratings_per_user=self.ratings_per_user)

    def added_to(self, release: Release) -> Release:
        return replace(release, about={**release.about, KEPT_AS: asdict(self)})

    @classmethod
    def of(cls, release: Release) -> PaidMetrics | None:
        """Those that `release` came with; None where none were paid for."""
        kept = release.about.get(KEPT_AS)
        return None if kept is None else cls(**kept)


class PrivateMetrics(BaseModel, frozen=True, extra="forbid"):
    """What is to be spent on the RMSE of each release, by everybody alike."""

    epsilon: Epsilon
    """On top of what the release costs."""
    ratings_per_user: int = Field(default=5, ge=1, le=1000)
    """The most ratings of one user that are used (m): more ratings, and more noise."""

    def cost(self) -> DpEvent:
        return DiscreteLaplaceDpEvent(self.epsilon, 1)

    def promise(self, specification: PrivacySpecification, *, public_catalogue: bool) -> Guarantee:
        """What the metrics of one release cost. They are private under add_or_remove and replace_value alike."""
        promise = Guarantee(
            unit=specification.unit,
            relation=specification.relation,
            epsilon=self.epsilon,
            verdict="proven",
            conditions=shared_conditions(specification),
            sentence=f"Whatever the release is, its RMSE is nearly as likely with or without {_ONE[specification.unit]}"
            f": pure differential privacy with epsilon {self.epsilon:g}, which everybody pays besides the release.",
            reference="docs/guarantees.md#private-metrics",
        )
        return promise if public_catalogue else promise.weakened("conditional", CATALOGUE_FROM_RATINGS)

    def share_of_own(self, specification: PrivacySpecification) -> float | None:
        """The largest share of anybody's own epsilon, where epsilons are personal, that this takes; else None.

        Raises:
          SpecError: people may ask for any epsilon, of which this could be more than all.
        """
        if not specification.personalised:
            return None
        smallest = specification.model_copy(update={"fraction": 1.0}).smallest_epsilon
        if not smallest > 0:
            raise SpecError(
                "private metrics cost everybody the same, and these preferences may ask for less than any such cost. "
                "Declare levels, or leave --private-metrics out."
            )
        share = as_written(self.epsilon) / as_written(smallest)
        return float(share) if Fraction(float(share)) >= share else float(np.nextafter(float(share), np.inf))

    def noise_scales(self, unit: Unit) -> tuple[float, float]:
        """Of the sum of squared errors, in grid steps, and of their count.

        Guarantee: a move of (m ERROR_STEPS, 0), and one of (ERROR_STEPS, 1) with unit rating or (m ERROR_STEPS, m) with
        unit user, costs at most epsilon. In exact fractions; each scale is then rounded up.
        """
        epsilon, m = Fraction(self.epsilon), self.ratings_per_user
        at_once = 1 if unit == "rating" else m  # how many of the ratings left out one unit adds
        share = Fraction(1, max(m, 2)) if unit == "rating" else USERS_SUM_SHARE
        of_sum = _rounded_up(at_once * ERROR_STEPS / (share * epsilon))
        left = epsilon - at_once * ERROR_STEPS / Fraction(of_sum)
        return of_sum, _rounded_up(at_once / left)

    def measure(
        self, factors: ItemFactors, own: Ratings, left_out: Ratings, unit: Unit, noise: NoiseSource
    ) -> PaidMetrics:
        """Predict `left_out` from V and `own` (both from `divided`), and tell how well with noise."""
        of_sum, of_count = self.noise_scales(unit)
        exact_sum, exact_count = exact_sums(factors, own, left_out)
        (noisy_sum,) = noise.add_discrete_laplace(np.array([exact_sum]), scale=of_sum)
        (noisy_count,) = noise.add_discrete_laplace(np.array([exact_count]), scale=of_count)
        return self.read(int(noisy_sum), int(noisy_count), unit, left_out.scale)

    def read(self, noisy_sum: int, noisy_count: int, unit: Unit, scale: RatingScale) -> PaidMetrics:
        """Post-processing: the estimate and its interval, in rating units."""
        of_sum, of_count = self.noise_scales(unit)
        total, doubt = noisy_sum / ERROR_STEPS, of_count * log(1 / COUNT_TAIL)
        fewest, most = noisy_count - doubt, noisy_count + doubt
        low, high, says_nothing = 0.0, 1.0, fewest < 1
        if not says_nothing:
            high = largest_mean(total, fewest, of_sum / ERROR_STEPS)
            low = 1 - largest_mean(most - total, most, of_sum / ERROR_STEPS)
        mean = np.clip(total / max(noisy_count, 1), low, high)
        rmse, low, high = (float(scale.width * np.sqrt(x)) for x in (mean, low, high))
        return PaidMetrics(rmse, low, high, says_nothing, self.epsilon, self.ratings_per_user)


_ONE: dict[Unit, str] = {"rating": "any one rating", "user": "everything that any one user rated"}


def divided(ratings: Ratings, specification: PrivacySpecification, ratings_per_user: int) -> tuple[Ratings, Ratings]:
    """What the release is fitted to, and what its RMSE is measured on: at most so many ratings of a user.

    Who is in which depends on who rated what, each pair by itself, and never on a value; of the pairs of a user that
    are left out the first by the hash are used. Who asked for an epsilon of 0 is in neither.
    """
    if specification.preferences is not None:
        ratings = ratings.where(specification.epsilon_of(ratings) > 0)
    labels = ratings.user_labels, ratings.catalogue.items
    draw = pair_uniforms(KEY, *labels, ratings.users, ratings.items)
    is_left_out = draw < SHARE
    return ratings.where(~is_left_out), ratings.where(_first(ratings.users, draw, is_left_out, ratings_per_user))


def _first(users: Ints, draw: Doubles, among: Mask, n: int) -> Mask:
    """The n of every user with the least draw; shapes alike."""
    rows = np.flatnonzero(among)
    rows = rows[np.lexsort((draw[rows], users[rows]))]
    rank = np.arange(len(rows)) - np.searchsorted(users[rows], users[rows], side="left")
    chosen = np.zeros(len(users), np.bool_)
    chosen[rows[rank < n]] = True
    return chosen


def exact_sums(factors: ItemFactors, own: Ratings, left_out: Ratings) -> tuple[int, int]:
    """The sum of squared errors, in grid steps, and how many there are: private.

    Guarantee: another set of own ratings of one user moves the sum by at most ERROR_STEPS for each of the user's
    ratings in `left_out`, and one rating more in `left_out` by at most ERROR_STEPS; whatever V is.
    """
    known, asked = own.by_user, left_out.by_user
    total = 0
    for user in np.flatnonzero(asked.counts):
        mine, wanted = (slice(*rows.start[user : user + 2]) for rows in (known, asked))
        u = _folded_in(factors, known.other[mine], known.values[mine])
        for item, value in zip(asked.other[wanted], asked.values[wanted], strict=True):
            total += _error_steps(_predicted(factors, u, item, left_out.scale) - float(value), left_out.scale)
    return total, len(left_out)


def _folded_in(factors: ItemFactors, items: Ints, values: Floats) -> Doubles:
    """One user's u, shape (1, d); NaN where V is such that there is none."""
    known = replace(factors, V=factors.V[items], offset=factors.offset[items])
    try:
        with np.errstate(all="ignore"):
            return known.fold_in(np.array([0, len(items)]), np.arange(len(items)), values)
    except np.linalg.LinAlgError:
        return np.full((1, factors.V.shape[1]), np.nan)


def _predicted(factors: ItemFactors, u: Doubles, item: Any, scale: RatingScale) -> float:
    return float(factors.predict(u, np.array([0]), np.array([item]), low=scale.low, high=scale.high)[0])


def _error_steps(error: float, scale: RatingScale) -> int:
    """A squared error on the grid; the largest where there is no number, so that none voids the bound."""
    part = (error / scale.width) ** 2
    return round(part * ERROR_STEPS) if part < 1 else ERROR_STEPS


def largest_mean(noisy_sum: float, n: float, scale: float) -> float:
    """The largest mean of n independent variables in [0, 1] for which their noisy sum is not too small.

    For all a in (0, 1], noise of that scale exceeds x with probability at most K(a) exp(-a x / scale), where
    K(a) = (2 a / (1 + a))^a / (1 + a): Chernoff's bound for the variables, the Laplace law's own for the noise, and a
    bound for their sum. docs/guarantees.md#private-metrics derives it.

    Args:
      noisy_sum: in units of the largest squared error, as is `scale`.
      n: at least 1.
      scale: of the discrete Laplace noise; at least a grid step.
    Returns:
      An upper bound on the mean, at most 1, that fails with probability SUM_TAIL at the most.
    """
    a = np.geomspace(1e-9, 1, 4000)
    rate, log_k = a / scale, a * np.log(2 * a / (1 + a)) - np.log1p(a)
    at_least = max(noisy_sum, 0.0) + 1 / ERROR_STEPS  # a step, by which the discrete law may exceed the continuous one
    exponent = (log(SUM_TAIL) - log_k - rate * at_least) / n
    bound = np.min(np.expm1(exponent) / np.expm1(-rate))
    return float(min(bound + 0.5 / ERROR_STEPS, 1.0))  # errors were rounded to the grid by half a step at the most


def _rounded_up(scale: Fraction) -> float:
    return float(np.nextafter(float(scale), np.inf))
