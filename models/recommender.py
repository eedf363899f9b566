"""The contract that every recommender keeps: what it costs, what it promises, and fitting.

A recommender is a frozen set of choices that shape the released V and its guarantee. It answers
`cost` and `guarantee` before a rating is read; `fit` takes the noise as an argument, and only a fit
with ExactNoise has a release.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, NoReturn, TypeVar

from dp_accounting import DpEvent
from pydantic import BaseModel, Field

from models.audit.neighbours import Neighbours
from models.batch import BatchKind, Moves, in_batches
from models.errors import InternalFault, NotReleasable, SpecError
from models.privacy.guarantee import Guarantee
from models.privacy.noise import ExactNoise, NoiseSource
from models.privacy.specification import PrivacySpecification, Relation, Unit
from models.ratings import Catalogue, Doubles, Ratings, RatingScale
from models.release import Array, ItemFactors, Release

Noise = TypeVar("Noise", bound=NoiseSource)

PositiveSetting = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A positive number within which the arithmetic stays finite; nobody means one beyond."""

CATALOGUE_FROM_RATINGS = (
    "the catalogue was taken from the ratings, so which items occur at all is revealed; give --items to cure this"
)


@dataclass(frozen=True, eq=False, repr=False)
class Fitted(Generic[Noise]):
    """What a fit made. `release` is public where it exists; everything else is private.

    Args:
      factors: for evaluation inside the house.
      noise: the source that was used; its type decides whether there is a release.
      user_factors: shape (n_users, d), the recommender's own U where it has one.
      statistics: what the mechanism gave out and the factors were computed from; leaves with the release.
    """

    factors: ItemFactors
    noise: Noise
    guarantee: Guarantee
    catalogue: Catalogue
    scale: tuple[float, float, float]
    about: Mapping[str, Any]
    user_factors: Doubles | None = field(default=None)
    statistics: Mapping[str, Array] = field(default_factory=dict)

    @property
    def release(self: Fitted[ExactNoise]) -> Release:
        """What may leave.

        Raises:
          NotReleasable: the noise was not exact, or the recommender promises nothing.
        """
        if type(self.noise) is not ExactNoise:  # this guards against mistakes; intent writes its own Release
            raise NotReleasable(
                f"a release takes ExactNoise; this fit used {type(self.noise).__name__}, which is for "
                "cross-validation. Fit again with ExactNoise()."
            )
        if self.guarantee.verdict == "none":
            raise NotReleasable(
                f"{self.about['recommender']} promises nothing about privacy: it is evaluated and never published."
            )
        about = {**self.about, "guarantee": self.guarantee.model_dump(mode="json")}
        return Release(self.factors, self.catalogue.items, self.catalogue.titles, *self.scale, about, self.statistics)

    def __repr__(self) -> str:
        return f"<fitted {self.about['recommender']}>"

    def __reduce__(self) -> NoReturn:
        raise NotReleasable("a fitted recommender holds private values and is not pickled; save its release instead.")


class Recommender(BaseModel, ABC, frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True):
    """Base of all recommenders. Subclasses add their settings as fields, with a docstring each."""

    name: ClassVar[str]
    paper: ClassVar[str]
    units: ClassVar[tuple[Unit, ...]] = ("rating",)
    """What it can protect."""
    relation: ClassVar[Relation] = "add_or_remove"
    """Which data sets its guarantee compares."""
    batches: ClassVar[bool] = False
    """Whether a release can add what is new to the one before it."""

    @abstractmethod
    def cost(self, specification: PrivacySpecification) -> DpEvent:
        """What one release costs, as an event for an accountant; answered before a rating is read.

        Raises:
          SpecError: this recommender cannot keep such a specification.
        """

    @abstractmethod
    def promise(self, specification: PrivacySpecification) -> Guarantee:
        """The guarantee of one release, given a public catalogue."""

    @abstractmethod
    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        """Learn V. `n_threads` changes only the time it takes."""

    def require_batches(self, specification: PrivacySpecification) -> None:
        """Raise SpecError unless releases of this recommender can be batches: each adds to the one before."""
        raise SpecError(
            f"{self.name} is fitted to all ratings at once and cannot be released in batches. Leave it out with "
            "--recommenders, or leave --batch out."
        )

    def moves(self, ratings: Ratings, specification: PrivacySpecification) -> Moves:
        """What a release of `ratings` moves in the histogram among its statistics."""
        raise InternalFault(f"{self.name} has no batches; nothing was fitted.")

    def catalogue_of(self, release: Release) -> Catalogue:
        """The public items of a release of this recommender, with the features that it was fitted with."""
        raise InternalFault(f"{self.name} has no batches; nothing was fitted.")

    def worst_neighbours(
        self, specification: PrivacySpecification, relation: Relation, scale: RatingScale
    ) -> Iterable[Neighbours]:
        """Pairs of made-up data sets that this recommender should find hardest to hide the difference of."""
        return ()

    def guarantee(
        self, specification: PrivacySpecification, *, public_catalogue: bool, batch: BatchKind | None = None
    ) -> Guarantee:
        """`promise`, as a batch keeps it, weakened where the list of items was not public."""
        promise = self.promise(specification)
        if batch is not None:
            self.require_batches(specification)
            promise = in_batches(promise, batch)
        return promise if public_catalogue else promise.weakened("conditional", CATALOGUE_FROM_RATINGS)

    def _fitted(
        self,
        ratings: Ratings,
        specification: PrivacySpecification,
        noise: Noise,
        factors: ItemFactors,
        user_factors: Doubles | None = None,
        statistics: Mapping[str, Array] | None = None,
    ) -> Fitted[Noise]:
        scale = ratings.scale
        return Fitted(
            factors,
            noise,
            self.guarantee(
                specification,
                public_catalogue=ratings.catalogue.public,
                batch=ratings.batch.kind if ratings.batch else None,
            ),
            ratings.catalogue,
            (scale.low, scale.high, scale.step),
            {
                "recommender": self.name,
                "settings": self.model_dump(mode="json"),
                "privacy": specification.model_dump(mode="json"),
            },
            user_factors,
            statistics or {},
        )
