"""`pdp-pmf`: ratings are sampled by their own epsilon, and `dp-pmf` is fitted to the sample.

Zhang et al., KBS 183 (2019), section 4, Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from models.factorization.dp_pmf import ObjectivePerturbation
from models.privacy.guarantee import Guarantee
from models.privacy.sampling import sample_ratings
from models.privacy.specification import Epsilon, PrivacySpecification
from models.ratings import Ratings
from models.recommender import Fitted, Noise


class PDPPMF(ObjectivePerturbation, frozen=True):
    """dp-pmf on a sample in which a rating of small epsilon is less likely to be.

    Every rating is kept with probability (e^epsilon - 1) / (e^threshold - 1), or surely where its epsilon
    reaches the threshold; then dp-pmf is fitted to what was kept, with epsilon = threshold.
    """

    name: ClassVar[str] = "pdp-pmf"
    paper: ClassVar[str] = "Zhang et al. 2019"

    threshold: Literal["max", "mean"] | Epsilon = "mean"
    """The epsilon of the fit after sampling: the mean or the largest declared one, or a number."""

    def promise(self, specification: PrivacySpecification) -> Guarantee:
        self._require(specification)
        threshold = self._epsilon_of_fit(specification)
        charged = min(specification.largest_epsilon, threshold)
        least = min(specification.smallest_epsilon, charged)
        own = f"epsilon {charged:g}" if least == charged else f"its own epsilon, {charged:g} at the most"
        claim = self._claim(specification, epsilon=charged, least_epsilon=least, own=own)
        claim = claim.model_copy(update={"levels": specification.levels(charged)})
        if least == threshold:
            return claim
        return claim.weakened(
            "broken",
            f"sampling protects a rating of small epsilon only before a fit that is private under add_or_remove, and "
            f"this one is not: the best that holds for each is the threshold, {threshold:g}",
        )

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        self._require(specification)
        threshold = self._epsilon_of_fit(specification)
        kept = sample_ratings(ratings, specification.epsilon_of(ratings), threshold, noise)
        return self._fit_at(kept, specification, threshold, noise, n_threads)

    def _epsilon_of_fit(self, specification: PrivacySpecification) -> float:
        return specification.threshold(self.threshold)
