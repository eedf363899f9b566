"""What a recommender claims about one pair of neighbours, in the terms that an audit can contradict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp

import numpy as np
from dp_accounting import GaussianDpEvent

from models.audit.bounds import epsilon_bound, gaussian_bound
from models.audit.neighbours import Neighbours
from models.errors import SpecError
from models.privacy.specification import PrivacySpecification, Relation
from models.ratings import RatingScale
from models.recommender import Recommender


@dataclass(frozen=True)
class Claim:
    """(epsilon, delta), and what was charged where that says more.

    Attributes:
      gaussian: mu, the L2 norm of the move over the noise's stddev, where Gaussian noise is what the ledger charges:
        then no test of one data set against the other does better than one of N(0, 1) against N(mu, 1).
    """

    epsilon: float
    delta: float = 0.0
    gaussian: float | None = None


def claim_of(
    recommender: Recommender,
    specification: PrivacySpecification,
    relation: Relation,
    neighbours: Neighbours,
    scale: RatingScale,
) -> Claim:
    """The least that the promise says for this unit: its own epsilon where everybody has their own.

    Under replace_value a promise for add_or_remove counts twice. Where nothing is promised for the relation, the claim
    is the promise as if it were.

    Raises:
      SpecError: nothing is promised, or not a finite epsilon.
    """
    promise, event = recommender.promise(specification), recommender.cost(specification)
    if promise.epsilon is None or not np.isfinite(promise.epsilon):
        raise SpecError(
            f"{recommender.name} promises no finite epsilon, and no audit can show more than infinity. "
            "Audit a recommender that promises one: see `jali recommenders`."
        )
    (first, *_), _ = replace(neighbours, history="one release").histories(specification, scale)
    own = float(specification.epsilon_of(first)[neighbours.before])
    epsilon = min(own, promise.epsilon)
    gaussian = None
    if isinstance(event, GaussianDpEvent) and own == promise.epsilon:
        gaussian = 1 / event.noise_multiplier
    if relation == "replace_value" and promise.relation == "add_or_remove":
        delta = min(promise.delta * (1 + exp(min(epsilon, 700.0))), 1.0)
        return Claim(2 * epsilon, delta, gaussian and 2 * gaussian)
    return Claim(epsilon, promise.delta, gaussian)


MOST_RUNS = 1_000_000
"""A quarter of an hour of pdp-histogram's; of dp-pmf's some hours."""


def runs_needed(claim: Claim, error: float) -> int | None:
    """How many runs it takes at the least to show that a release which hides nothing exceeds the claim.

    Args:
      error: what each of the two rates of an event may err with.
    Returns:
      Runs of both data sets, learning and testing; None if it is more than MOST_RUNS.
    """

    def shows(n: int) -> bool:
        book = (n, 0, n, error)
        if claim.gaussian is not None and gaussian_bound(*book) > claim.gaussian:
            return True
        return bool(epsilon_bound(*book, claim.delta) > claim.epsilon)

    if not shows(MOST_RUNS // 4):
        return None
    low, high = 0, MOST_RUNS // 4
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return 4 * high
