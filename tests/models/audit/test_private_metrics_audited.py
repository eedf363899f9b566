"""The other thing that is paid for and leaves: noisy errors of left-out ratings, audited like a release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.audit.audit import Shown, shown_by
from models.audit.claim import Claim
from models.audit.neighbours import Neighbours
from models.audit.runs import Mechanism
from models.audit.statistics import LEARNERS
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.noise import ExactNoise, NoiseSource
from models.privacy.specification import PrivacySpecification, Unit
from models.private_metrics import PrivateMetrics, divided
from models.ratings import Ratings, RatingScale
from models.recommender import Fitted

STARS = RatingScale(low=1, high=5)
RELEASE = PrivacySpecification(epsilon=0.5)


class Raw(PrivateMetrics, frozen=True):
    """The two noisy numbers as they are, before they become an interval; nobody sees more."""

    def read(self, noisy_sum: int, noisy_count: int, unit: Unit, scale: RatingScale) -> Any:
        return np.array([[noisy_sum, noisy_count]])


METRICS = Raw(epsilon=1.0, ratings_per_user=2)


def is_left_out(user: int, item: int) -> bool:
    pair = Neighbours("", (), ((user, item, 0),))
    ((ratings,), _) = pair.histories(RELEASE, STARS)
    return len(divided(ratings, RELEASE, 2)[1]) == 1


def shown(pair: Neighbours, claim: float, metrics: Raw = METRICS) -> Shown:
    """A release and its metrics; `metrics` may be a broken copy of METRICS, which is what is claimed."""
    histogram = PDPHistogram(item_features=False)

    def fit(ratings: Ratings, specification: PrivacySpecification, noise: NoiseSource) -> Fitted[Any]:
        own, left_out = divided(ratings, specification, METRICS.ratings_per_user)
        fitted = histogram.fit(own, specification, noise)
        paid = metrics.measure(fitted.factors, own, left_out, "rating", noise)
        return replace(fitted, statistics={**fitted.statistics, "paid": paid})

    mechanism = Mechanism(histogram, RELEASE, STARS, ExactNoise(), fit, lambda n: None)
    learners = {name: LEARNERS[name] for name in ("one number of the release", "boosted trees")}
    return shown_by(Claim(claim), *mechanism.outputs(pair, 1000), learners, 0.9999)


def pair_around(left_out: bool) -> Neighbours:
    """One user, whose ratings of two items are left out and of one is not; the target is one of these."""
    for user in range(10_000):
        which = [is_left_out(user, item) for item in range(3)]
        if which == [False, True, True]:
            ratings = {0: 4, 1: 0, 2: 4}
            target = 1 if left_out else 0
            others = tuple((user, item, level) for item, level in ratings.items() if item != target)
            return Neighbours("", others, ((user, target, ratings[target]),))
    raise AssertionError("no such user")


@pytest.mark.slow
@pytest.mark.parametrize(("left_out", "claim"), [(True, 1.0), (False, 1.5)], ids=["left out", "fitted"])
def test_a_release_with_its_metrics_shows_no_more_than_both_cost(left_out: bool, claim: float) -> None:
    assert shown(pair_around(left_out), claim).epsilon <= claim


@pytest.mark.slow
def test_metrics_with_too_little_noise_are_found_out() -> None:
    assert shown(pair_around(True), 1.0, Raw(epsilon=8.0, ratings_per_user=2)).epsilon > 1.0
