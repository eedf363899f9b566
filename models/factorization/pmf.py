"""`pmf`: probabilistic matrix factorisation without privacy, the baseline of the first paper."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent
from pydantic import Field, PositiveInt

from models.factorization.als import solve_factors
from models.privacy.guarantee import Guarantee
from models.privacy.specification import PrivacySpecification
from models.ratings import Doubles, Ratings
from models.recommender import Fitted, Noise, PositiveSetting, Recommender
from models.release import ItemFactors


class PMF(Recommender, frozen=True):
    """Matrix factorisation without privacy, by alternating least squares.

    Minimises sum (r - mean - u.v)^2 + precision (sum_u c_u |u|^2 + sum_j n_j |v|^2): Salakhutdinov and
    Mnih, NIPS 2007, with the regulariser weighted by the counts of ratings (Zhou et al., AAIM 2008).
    Zhang et al., KBS 183 (2019), section 3, minimise the unweighted form by gradient descent.
    """

    name: ClassVar[str] = "pmf"
    paper: ClassVar[str] = "Salakhutdinov & Mnih 2007; Zhang et al. 2019"

    solver: Literal["als"] = "als"
    """How the minimum is sought."""
    n_factors: PositiveInt = Field(default=20, le=500)
    """Columns of V."""
    n_sweeps: PositiveInt = 15
    """How often users, then items are solved for."""
    precision: PositiveSetting = 0.06
    """Ridge weight per rating (lambda over c_u, or over n_j); the fold-in uses the same."""

    def cost(self, specification: PrivacySpecification) -> DpEvent:
        return NonPrivateDpEvent()

    def promise(self, specification: PrivacySpecification) -> Guarantee:
        return Guarantee.nothing(self.paper)

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        mean = float(ratings.values.mean(dtype=np.float64)) if len(ratings) else ratings.scale.midpoint
        V = initial_items(ratings.n_items, self.n_factors)
        for _ in range(self.n_sweeps):
            U = solve_factors(ratings.by_user, V, centre=mean, precision=self.precision, n_threads=n_threads)
            V = solve_factors(ratings.by_item, U, centre=mean, precision=self.precision, n_threads=n_threads)
        factors = ItemFactors(
            V.astype(np.float32),
            np.full(ratings.n_items, mean, np.float32),
            precision=np.zeros(self.n_factors),
            precision_per_rating=self.precision,
        )
        return self._fitted(ratings, specification, noise, factors, user_factors=U)


def initial_items(n_items: int, n_factors: int) -> Doubles:
    """A start that depends on no rating: shape (n_items, n_factors), small and always the same."""
    return 0.1 * np.random.default_rng(0).standard_normal((n_items, n_factors))
