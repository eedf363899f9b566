"""`dp-pmf`: matrix factorisation whose items are solved for with perturbed objective, the same epsilon for all.

Zhang et al., KBS 183 (2019), section 4 (and Hua, Xia and Zhong, IJCAI 2015, scenario 1): fit U and V without
privacy, keep U secret, and release the V that minimises
    1/2 sum (r - centre - u.v)^2 + precision/2 sum |v|^2 + sum_j eta_j.v_j
with U held constant and eta_j of the K-norm law with scale sensitivity / epsilon. The theorem's U is a
constant and the algorithm's is not; docs/guarantees.md says what is left of the guarantee.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from models.audit.neighbours import Neighbours
from models.errors import SpecError
from models.factorization.als import right_hand_sides, solve_factors_for
from models.factorization.gradient import Pace, descend, unit_of
from models.factorization.pmf import initial_factors, item_factors
from models.factorization.worst_cases import ratings_of_a_lone_user
from models.privacy.exact_sampler import WIDEST
from models.privacy.guarantee import Guarantee, shared_conditions
from models.privacy.noise import NoiseSource
from models.privacy.specification import PrivacySpecification, Relation
from models.ratings import Doubles, Ratings, RatingScale
from models.recommender import Fitted, Noise, PositiveSetting, Recommender

STEPS = 2**20
"""Grid steps per rating unit, on which noise and data meet."""

U_IS_NOT_CONSTANT = (
    "the proof holds U constant, and U was fitted to the same ratings: a changed rating also moves U, and "
    "through it every item of its user, which nothing pays for"
)


class ObjectivePerturbation(Recommender, frozen=True):
    """What dp-pmf and pdp-pmf share: both steps of the algorithm, at one epsilon."""

    relation: ClassVar[Relation] = "replace_value"

    solver: Literal["exact", "alg2"] = "exact"
    """exact: one noise vector per item and the closed form; alg2: as published, noise in every gradient step."""
    noise_per: Literal["batch_share", "batch", "epoch"] = "batch_share"
    """Of alg2: new noise in every batch, divided by their number or whole; or one full gradient step per epoch."""
    n_factors: PositiveInt = Field(default=20, le=500)
    """Columns of V."""
    n_iterations: PositiveInt = Field(default=50, le=100_000)
    """Epochs of the fit of U (k1)."""
    n_noisy_iterations: PositiveInt = Field(default=50, le=100_000)
    """Epochs of alg2 (k2)."""
    precision: PositiveSetting = 0.01
    """Ridge weight: per rating in gradient steps, per item in the closed form."""
    learning_rate: PositiveSetting = 50.0
    """Step, before it is divided by the size of a batch."""
    momentum: NonNegativeFloat = Field(default=0.8, lt=1)
    """Of the gradient steps."""
    n_batches: PositiveInt = Field(default=9, le=1000)
    """Per epoch."""
    sensitivity: Literal["range", "highest"] = "range"
    """What noise is scaled to: the scale's width (the paper's Remark 7) or its top (Theorem 4; default of alg2)."""
    local_refit: bool = False
    """Whether the paper's evaluation computes u from the released V and own ratings, or takes the fitted one."""
    fold_in_precision: PositiveSetting = 0.2
    """Ridge weight per rating when a user's u is computed from V."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_solver(cls, told: Any) -> Any:
        published = isinstance(told, dict) and told.get("solver") == "alg2"
        return {"sensitivity": "highest", **told} if published else told

    def cost(self, specification: PrivacySpecification) -> DpEvent:
        self._require(specification)
        return NonPrivateDpEvent()  # nothing is proven without a condition that does not hold

    def worst_neighbours(
        self, specification: PrivacySpecification, relation: Relation, scale: RatingScale
    ) -> tuple[Neighbours, ...]:
        threshold = self._epsilon_of_fit(specification)
        return (ratings_of_a_lone_user(specification, relation, scale, solver=self.solver, threshold=threshold),)

    @abstractmethod
    def _epsilon_of_fit(self, specification: PrivacySpecification) -> float:
        """What noise is made for, the same for all ratings that are left."""

    def _claim(
        self, specification: PrivacySpecification, *, epsilon: float, least_epsilon: float, own: str
    ) -> Guarantee:
        """The guarantee of one fit at `epsilon`, with the truth about it."""
        claim = Guarantee(
            unit="rating",
            relation=self.relation,
            epsilon=epsilon,
            least_epsilon=least_epsilon,
            verdict="proven",
            conditions=(
                *shared_conditions(specification),
                "who rated what is public",
                "noise and the solve after it are in exact arithmetic",
            ),
            sentence=f"A changed rating is claimed to be protected with {own}; it would be, if U did not depend on the "
            "ratings, and it does.",
            reference=f"docs/guarantees.md#{self.name}",
        ).weakened("conditional", U_IS_NOT_CONSTANT)
        if self.solver == "exact":
            return claim
        k = self.n_noisy_iterations
        return claim.model_copy(
            update={
                "sentence": f"A changed rating is claimed to be protected with {own}, and is not: noise is drawn anew "
                f"in each of {k} iterations, to which composition gives at least {k} times as much "
                f"({k * epsilon:g}), and the first starts from the V without privacy, to which nothing gives any."
            }
        ).weakened("broken", f"new noise in each of {k} iterations is charged once, and the start is the private V")

    def _fit_at(
        self,
        ratings: Ratings,
        specification: PrivacySpecification,
        epsilon: float,
        noise: Noise,
        n_threads: int,
    ) -> Fitted[Noise]:
        centre = ratings.scale.midpoint  # public; the mean would have to be paid for
        U, V = initial_factors(ratings.n_users, self.n_factors, 1), initial_factors(ratings.n_items, self.n_factors)
        descend(ratings, U, V, centre=centre, pace=self._pace, clips_U=True)
        scale = self._sensitivity(ratings.scale) / epsilon
        if self.solver == "exact":
            V = self._closed_form(ratings, U, centre, scale, noise, n_threads)
        else:
            V = self._published_descent(ratings, U, V, centre, scale, noise)
        if self.local_refit:
            own = right_hand_sides(ratings.by_user, V, centre=centre)
            U = solve_factors_for(ratings.by_user, own, V, precision=self.precision, n_threads=n_threads)
        return self._fitted(
            ratings, specification, noise, item_factors(V, centre, self.fold_in_precision), user_factors=U
        )

    def _closed_form(
        self, ratings: Ratings, U: Doubles, centre: float, scale: float, noise: NoiseSource, n_threads: int
    ) -> Doubles:
        """(A_j + precision I)^-1 (b_j - eta_j): the paper's equation for the minimiser, with one draw."""
        rounding = np.sqrt(self.n_factors) / STEPS  # each coordinate of b_j moves by up to a step when it is rounded
        exact = right_hand_sides(ratings.by_item, U, centre=centre)
        noisy = perturbed(exact, scale * (1 + rounding / self._sensitivity(ratings.scale)), noise)
        return solve_factors_for(ratings.by_item, noisy, U, precision=self.precision, n_threads=n_threads)

    def _published_descent(
        self, ratings: Ratings, U: Doubles, V: Doubles, centre: float, scale: float, noise: NoiseSource
    ) -> Doubles:
        """Algorithm 2 from line 14 on: from the private V, with new noise in every step."""
        unit = unit_of(ratings.scale)
        share = self.n_batches if self.noise_per == "batch_share" else 1
        descend(
            ratings,
            U,
            V,
            centre=centre,
            pace=self._noisy_pace,
            learns_U=False,
            perturb=lambda gradient: perturbed(gradient, scale / unit / share, noise),
        )
        return V * unit

    @property
    def _pace(self) -> Pace:
        n = self.n_batches
        return Pace(self.n_iterations, self.learning_rate, self.momentum, self.precision, n, n)

    @property
    def _noisy_pace(self) -> Pace:
        """With one noise vector per epoch, close to the printed update: the full gradient, and no momentum."""
        pace = replace(self._pace, n_epochs=self.n_noisy_iterations)
        return replace(pace, n_batches=1, momentum=0.0) if self.noise_per == "epoch" else pace

    def _sensitivity(self, scale: RatingScale) -> float:
        """How far one rating moves b_j in L2, U held constant with rows of norm at most 1; rating units."""
        return scale.width if self.sensitivity == "range" else max(scale.width, abs(scale.high))

    def _require(self, specification: PrivacySpecification) -> None:
        specification.require(units=self.units, relation=self.relation, recommender=self.name)


class DPPMF(ObjectivePerturbation, frozen=True):
    """Matrix factorisation with one noise vector per item in the objective; the same epsilon for all.

    With a policy everybody has the least epsilon of the policy, as in the paper's comparison.
    """

    name: ClassVar[str] = "dp-pmf"
    paper: ClassVar[str] = "Zhang et al. 2019; Hua et al. 2015"

    def promise(self, specification: PrivacySpecification) -> Guarantee:
        self._require(specification)
        epsilon = self._epsilon_of_fit(specification)
        return self._claim(specification, epsilon=epsilon, least_epsilon=epsilon, own=f"epsilon {epsilon:g}")

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        self._require(specification)
        if specification.preferences is not None:  # who asked for an epsilon of 0 is left out
            ratings = ratings.where(specification.epsilon_of(ratings) > 0)
        return self._fit_at(ratings, specification, self._epsilon_of_fit(specification), noise, n_threads)

    def _epsilon_of_fit(self, specification: PrivacySpecification) -> float:
        return specification.smallest_epsilon

    def _require(self, specification: PrivacySpecification) -> None:
        super()._require(specification)
        if not specification.smallest_epsilon > 0:
            raise SpecError(
                f"{self.name} gives everybody the least epsilon, and these preferences declare none. Declare levels, "
                f"or leave {self.name} out."
            )


def perturbed(exact: Doubles, scale: float, noise: NoiseSource) -> Doubles:
    """`exact`, shape (n, d), rounded to the grid, with K-norm noise of this scale on every row; the same units."""
    steps = np.clip(np.rint(exact * STEPS), -WIDEST, WIDEST).astype(np.int64)
    return noise.add_knorm(steps, scale=scale * STEPS) / STEPS
