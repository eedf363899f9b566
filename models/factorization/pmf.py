"""`pmf`: probabilistic matrix factorisation without privacy, the baseline of the first paper."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from models.factorization.als import solve_factors
from models.factorization.gradient import Pace, clip_rows, descend, descend_literally, unit_of
from models.privacy.guarantee import Guarantee
from models.privacy.specification import PrivacySpecification, Unit
from models.ratings import Doubles, Ratings
from models.recommender import Fitted, Noise, PositiveSetting, Recommender
from models.release import ItemFactors

OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "sm08": {"n_iterations": 50, "precision": 0.01},
    "gd": {"n_iterations": 50, "precision": 0.01, "learning_rate": 5e-4},
}
"""Where a solver's default differs from that of `als`."""


class PMF(Recommender, frozen=True):
    """Matrix factorisation without privacy, by alternating least squares or gradient descent.

    `als` minimises sum (r - mean - u.v)^2 + precision (sum_u c_u |u|^2 + sum_j n_j |v|^2), the regulariser
    weighted by the counts of ratings (Zhou et al., AAIM 2008). `sm08` is the program that Salakhutdinov
    published with the model (NIPS 2007), whose constants Zhang et al., KBS 183 (2019), print in section 5.
    `gd` is the literal formula of their section 3.1 with a step that does not diverge.
    """

    name: ClassVar[str] = "pmf"
    paper: ClassVar[str] = "Salakhutdinov & Mnih 2007; Zhang et al. 2019"
    units: ClassVar[tuple[Unit, ...]] = ("rating", "user")

    solver: Literal["als", "sm08", "gd"] = "als"
    """How the minimum is sought."""
    n_factors: PositiveInt = Field(default=20, le=500)
    """Columns of V."""
    n_iterations: PositiveInt = Field(default=15, le=100_000)
    """How often users, then items are solved for; with sm08 and gd, epochs (50)."""
    precision: PositiveSetting = 0.06
    """Ridge weight: per rating (lambda over c_u, or n_j) with als and sm08 (0.01), per user and item with gd (0.01)."""
    learning_rate: PositiveSetting = 50.0
    """Step of sm08, before it is divided by the size of a batch; of gd as it is (0.0005)."""
    momentum: NonNegativeFloat = Field(default=0.8, lt=1)
    """Of sm08."""
    n_batches: PositiveInt = Field(default=9, le=1000)
    """Of sm08, per epoch."""
    clip_users: Literal["none", "each_iteration", "end"] = "none"
    """When the rows of U are shrunk to norm 1, which the paper supposes; for sm08 and gd."""
    fold_in_precision: PositiveSetting = 0.06
    """Ridge weight per rating when a user's u is computed from V."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_solver(cls, told: Any) -> Any:
        return {**OWN_DEFAULTS.get(told.get("solver", "als"), {}), **told} if isinstance(told, dict) else told

    def cost(self, specification: PrivacySpecification) -> DpEvent:
        return NonPrivateDpEvent()

    def promise(self, specification: PrivacySpecification) -> Guarantee:
        return Guarantee.nothing(self.paper)

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        mean = float(ratings.values.mean(dtype=np.float64)) if len(ratings) else ratings.scale.midpoint
        if self.solver == "als":
            U, V = self._by_least_squares(ratings, mean, n_threads)
        else:
            U, V = self._by_gradients(ratings, mean)
        factors = item_factors(V, mean, self.fold_in_precision)
        return self._fitted(ratings, specification, noise, factors, user_factors=U)

    def _by_least_squares(self, ratings: Ratings, mean: float, n_threads: int) -> tuple[Doubles, Doubles]:
        V = initial_factors(ratings.n_items, self.n_factors)
        for _ in range(self.n_iterations):
            U = solve_factors(ratings.by_user, V, centre=mean, precision=self.precision, n_threads=n_threads)
            V = solve_factors(ratings.by_item, U, centre=mean, precision=self.precision, n_threads=n_threads)
        return U, V

    def _by_gradients(self, ratings: Ratings, mean: float) -> tuple[Doubles, Doubles]:
        U, V = initial_factors(ratings.n_users, self.n_factors, 1), initial_factors(ratings.n_items, self.n_factors)
        clips = self.clip_users == "each_iteration"
        if self.solver == "sm08":
            pace = Pace(
                self.n_iterations, self.learning_rate, self.momentum, self.precision, self.n_batches, self.n_batches
            )
            descend(ratings, U, V, centre=mean, pace=pace, clips_U=clips)
        else:
            for factors in (U, V):
                factors /= np.linalg.norm(factors, axis=1, keepdims=True)
            descend_literally(
                ratings,
                U,
                V,
                centre=mean,
                n_epochs=self.n_iterations,
                learning_rate=self.learning_rate,
                precision=self.precision,
                clips_U=clips,
            )
        if self.clip_users == "end":
            clip_rows(U)
        return U, V * unit_of(ratings.scale)


def initial_factors(n_rows: int, n_factors: int, seed: int = 0) -> Doubles:
    """A start that depends on no rating: shape (n_rows, n_factors), small and always the same."""
    return 0.1 * np.random.default_rng(seed).standard_normal((n_rows, n_factors))


def item_factors(V: Doubles, centre: float, fold_in_precision: float) -> ItemFactors:
    """V with the same offset for every item and a ridge weight per own rating."""
    return ItemFactors(
        V.astype(np.float32),
        np.full(len(V), centre, np.float32),
        precision=np.zeros(V.shape[1]),
        precision_per_rating=fold_in_precision,
    )
