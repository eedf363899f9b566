"""Copies of pdp-histogram, each wrong in one place, that claim what the right one does; and sources of bad noise."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from models.audit.neighbours import Neighbours
from models.batch import Moves, moves_of
from models.histogram import pdp_histogram
from models.histogram.pdp_histogram import RATING_STEPS, PDPHistogram, equal_shares, exact_histogram, user_norms
from models.privacy.noise import NoiseSource, SeededNoise, Steps
from models.privacy.specification import Policy, Preferences, PrivacySpecification
from models.ratings import Doubles, Mask, Ratings
from models.recommender import Fitted, Noise
from tests.recorder import Recorder

# ---- sources of bad noise ----


class Altered(NoiseSource):
    """The noise of `source`, but for what a subclass does in `noisy`."""

    def __init__(self, source: NoiseSource) -> None:
        self.source = source

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return getattr(self.source, law)(values, scale=scale)

    def noise(self, law: str, values: Steps, scale: float) -> Steps:
        return Altered.noisy(self, law, np.zeros_like(values), scale)

    def add_discrete_laplace(self, values: Steps, *, scale: float) -> Steps:
        return self.noisy("add_discrete_laplace", values, scale)

    def add_discrete_gaussian(self, values: Steps, *, scale: float) -> Steps:
        return self.noisy("add_discrete_gaussian", values, scale)

    def add_knorm(self, values: Steps, *, scale: float) -> Steps:
        return self.noisy("add_knorm", values, scale)

    def keep(self, probabilities: Doubles) -> Mask:
        return self.source.keep(probabilities)

    def _normals_and_radii(self, shape: tuple[int, ...]) -> tuple[Doubles, Doubles]:
        raise AssertionError("noisy is all that is asked for")


class AFifthTooSmall(Altered):
    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return super().noisy(law, values, 0.8 * scale)


class ForgottenSteps(Altered):
    """The scale of ratings taken for one of grid steps."""

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return super().noisy(law, values, scale / RATING_STEPS)


class UsedTwice(Altered):
    """Every other release has the noise of the one before it."""

    kept: Steps | None = None

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        noise = self.noise(law, values, scale) if self.kept is None else self.kept
        self.kept = noise if self.kept is None else None
        return values + noise


class Seeded(Altered):
    """A generator that is made anew, from `seed`, for every release."""

    n_releases = 0

    def seed(self, values: Steps) -> int:
        return 0

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        self.n_releases += 1
        return getattr(SeededNoise(self.seed(values)), law)(values, scale=scale)


class OfTwoWorkers(Seeded):
    """Two workers take turns, and were forked with the same state of one generator."""

    def seed(self, values: Steps) -> int:
        return (self.n_releases + 1) // 2


class SeededByTheClock(Seeded):
    """In seconds, of which each has time for three hundred releases."""

    def seed(self, values: Steps) -> int:
        return self.n_releases // 300


class SeededByTheRatings(Seeded):
    """A different seed for every data set, and always the same for the same."""

    def seed(self, values: Steps) -> int:
        return int(values.sum())


class SeedOfTwelveBits(Seeded):
    def seed(self, values: Steps) -> int:
        return int(np.random.SeedSequence(self.n_releases).generate_state(1)[0]) % 2**12


class Cut(Altered):
    """Noise of three scales at the most."""

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return values + np.clip(self.noise(law, values, scale), -int(3 * scale), int(3 * scale))


class InWholeRatings(Altered):
    """Noise on a grid coarser than that of the weights: what is left of a sum shows the weights that are not whole."""

    coarser = RATING_STEPS

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return values + self.coarser * self.noise(law, values, scale / self.coarser)


class InSixteens(InWholeRatings):
    coarser = 16


class InThrees(InWholeRatings):
    coarser = 3


class OneForAnItem(Altered):
    """The same noise in all cells of an item."""

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return values + self.noise(law, values, scale)[:, :1]


class UpAndDown(Altered):
    """Each level has the noise of the one at the other end, its sign turned: it cancels in the sum of all."""

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        noise = self.noise(law, values, scale)
        return values + noise - noise[:, ::-1]


class ByTheBell(Altered):
    """Gaussian noise of the same variance, where Laplace noise is claimed."""

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return super().noisy("add_discrete_gaussian", values, np.sqrt(2) * scale)


class LessWhereThereIsLess(Altered):
    """Noise as large as the cell's own ratings ask for: a sensitivity that was measured."""

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        noise = self.noise(law, values, scale)
        return values + np.where(values > 0, noise, noise // 2)


class NoneWhereThereIsNothing(Altered):
    """A sparse histogram: cells that hold nothing are left as they are."""

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return np.where(values > 0, super().noisy(law, values, scale), 0)


class NoneForItemsNobodyRated(Altered):
    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        return np.where(values.any(axis=1, keepdims=True), super().noisy(law, values, scale), 0)


class NoneForALevel(Altered):
    """The top one is forgotten."""

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        noisy = super().noisy(law, values, scale)
        noisy[:, -1] = values[:, -1]
        return noisy


class OftenNone(Altered):
    """Of twenty releases one has no noise: a delta that is not said."""

    n_releases = 0

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        self.n_releases += 1
        return values if self.n_releases % 19 == 0 else super().noisy(law, values, scale)


class OnlyAtFirst(Altered):
    """The first of two batches has noise, the second is added as it is."""

    n_called = 0

    def noisy(self, law: str, values: Steps, scale: float) -> Steps:
        self.n_called += 1
        return super().noisy(law, values, scale) if self.n_called % 2 else values


# ---- copies of the mechanism ----


MOVED = ("users", "items", "levels", "steps")


class InTwoCells(PDPHistogram, frozen=True):
    """A rating is counted in its own cell and in the one at the other end of the scale: a sensitivity of two."""

    def moves(self, ratings: Ratings, specification: PrivacySpecification) -> Moves:
        own = super().moves(ratings, specification)
        other_end = len(ratings.scale.levels) - 1 - own.levels
        return Moves(
            *(np.concatenate([a, b]) for a, b in ((own.users, own.users), (own.items, own.items))),
            np.concatenate([own.levels, other_end]),
            np.concatenate([own.steps, own.steps]),
        )


class Unclipped(PDPHistogram, frozen=True):
    """Weights of epsilon / threshold, without the least of it and 1."""

    def moves(self, ratings: Ratings, specification: PrivacySpecification) -> Moves:
        weights = specification.epsilon_of(ratings) / self._threshold(specification)
        return moves_of(ratings, np.floor(weights * RATING_STEPS).astype(np.int64))


class AllWeighOne(PDPHistogram, frozen=True):
    """The policy is forgotten."""

    def moves(self, ratings: Ratings, specification: PrivacySpecification) -> Moves:
        return moves_of(ratings, np.full(len(ratings), RATING_STEPS))


class MeasuredMean(PDPHistogram, frozen=True):
    """The threshold is the mean epsilon of the ratings that there are, as in the paper's experiments."""

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        mean = float(specification.epsilon_of(ratings).mean())
        return PDPHistogram(threshold=mean).fit(ratings, specification, noise)


class AllOfIt(PDPHistogram, frozen=True):
    """A batch takes in again what batches before it took in."""

    def moves(self, ratings: Ratings, specification: PrivacySpecification) -> Moves:
        return super().moves(replace(ratings, batch=None), specification)


class UserHistogram(PDPHistogram, frozen=True):
    """Unit user, with shares of a subclass's own."""

    def shares(self, norms: Steps, counts: Steps) -> Steps:
        return equal_shares(norms, counts)

    def _user_histogram(
        self, ratings: Ratings, specification: PrivacySpecification, noise: NoiseSource
    ) -> tuple[Steps, float]:
        counts = ratings.by_user.counts[ratings.users]
        norms = user_norms(specification.epsilon_of(ratings), specification)
        stddev = pdp_histogram._user_noise_multiplier(specification)
        exact = exact_histogram(ratings, self.shares(norms, counts))
        return noise.add_discrete_gaussian(exact, scale=stddev * pdp_histogram.USER_STEPS), stddev**2


class OneForEachRating(UserHistogram, frozen=True):
    """1 instead of 1 / sqrt(c)."""

    def shares(self, norms: Steps, counts: Steps) -> Steps:
        return norms


class WhatWasAskedForgotten(UserHistogram, frozen=True):
    """Whoever asked for less has the same norm as all others."""

    def shares(self, norms: Steps, counts: Steps) -> Steps:
        return equal_shares(np.full_like(norms, pdp_histogram.USER_STEPS), counts)


class TwiceTheNorm(UserHistogram, frozen=True):
    def shares(self, norms: Steps, counts: Steps) -> Steps:
        return equal_shares(2 * norms, counts)


class VFromTheExactHistogram(PDPHistogram, frozen=True):
    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        honest = super().fit(ratings, specification, noise)
        exact = super().fit(ratings, specification, Recorder())
        return replace(honest, factors=exact.factors)


class PopularityFromTheExactHistogram(PDPHistogram, frozen=True):
    """One column of V, and only of it."""

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        honest = super().fit(ratings, specification, noise)
        V = honest.factors.V.copy()
        V[:, 2] = super().fit(ratings, specification, Recorder()).factors.V[:, 2]
        return replace(honest, factors=replace(honest.factors, V=V))


class SaysHowManyRatings(PDPHistogram, frozen=True):
    """In what is said about the release."""

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        honest = super().fit(ratings, specification, noise)
        return replace(honest, about={**honest.about, "n_ratings": len(ratings)})


class OrderedByPopularity(PDPHistogram, frozen=True):
    """The rows are in the order of how often the items were rated."""

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        honest = super().fit(ratings, specification, noise)
        order = np.argsort(-ratings.by_item.counts, kind="stable")
        catalogue = honest.catalogue
        return replace(honest, catalogue=replace(catalogue, items=tuple(catalogue.items[row] for row in order)))


class WithoutItemsNobodyRated(PDPHistogram, frozen=True):
    """V has a row for each item that was rated."""

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        honest = super().fit(ratings, specification, noise)
        rated = ratings.by_item.counts > 0
        return replace(honest, factors=replace(honest.factors, V=honest.factors.V[rated]))


class Changed(PDPHistogram, frozen=True):
    """An honest release to which a subclass does something that it must not."""

    def fit(
        self, ratings: Ratings, specification: PrivacySpecification, noise: Noise, *, n_threads: int = 1
    ) -> Fitted[Noise]:
        return self.changed(super().fit(ratings, specification, noise), ratings)

    def changed(self, honest: Fitted[Noise], ratings: Ratings) -> Fitted[Noise]:
        raise NotImplementedError

    def with_offset(self, honest: Fitted[Noise], where: Mask, value: float) -> Fitted[Noise]:
        return replace(honest, factors=replace(honest.factors, offset=np.where(where, value, honest.factors.offset)))


class NoNumberForItemsNobodyRated(Changed, frozen=True):
    def changed(self, honest: Fitted[Noise], ratings: Ratings) -> Fitted[Noise]:
        return self.with_offset(honest, ratings.by_item.counts == 0, np.nan)


class SaysItsTrainingError(Changed, frozen=True):
    """An unpaid metric among what is said about the release."""

    def changed(self, honest: Fitted[Noise], ratings: Ratings) -> Fitted[Noise]:
        error = honest.factors.offset[ratings.items] - ratings.values
        return replace(honest, about={**honest.about, "rmse": float(np.sqrt(np.square(error).mean()))})


class SaysHowManyBesideAnId(Changed, frozen=True):
    """What is random in what is said must not hide what is not."""

    def changed(self, honest: Fitted[Noise], ratings: Ratings) -> Fitted[Noise]:
        return replace(honest, about={**honest.about, "id": secrets.token_hex(8), "n_ratings": len(ratings)})


class TheFirstRating(Changed, frozen=True):
    """It is released as it is."""

    def changed(self, honest: Fitted[Noise], ratings: Ratings) -> Fitted[Noise]:
        return self.with_offset(honest, np.arange(ratings.n_items) == 0, float(ratings.values[0]))


class HowManyFromTenUsersOn(Changed, frozen=True):
    def changed(self, honest: Fitted[Noise], ratings: Ratings) -> Fitted[Noise]:
        value = len(ratings) if ratings.n_users >= 10 else float(honest.factors.offset[0])
        return self.with_offset(honest, np.arange(ratings.n_items) == 0, value)


class ExactOnceInThirtyTimes(Changed, frozen=True):
    """One item's row of the histogram, by chance."""

    chance: ClassVar[np.random.Generator] = np.random.default_rng(0)

    def changed(self, honest: Fitted[Noise], ratings: Ratings) -> Fitted[Noise]:
        if self.chance.integers(30):
            return honest
        exact = PDPHistogram.fit(HONEST, ratings, RATING, Recorder()).statistics["histogram"]
        histogram = honest.statistics["histogram"].copy()
        histogram[2] = exact[2]
        return replace(honest, statistics={**honest.statistics, "histogram": histogram})


class UpToThreeRatings(UserHistogram, frozen=True):
    """Shares of 1 / sqrt(c) for c up to 3, and no less."""

    def shares(self, norms: Steps, counts: Steps) -> Steps:
        return equal_shares(norms, np.minimum(counts, 3))


# ---- what each is, and the neighbours that show it ----

RATING, USER = PrivacySpecification(epsilon=1), PrivacySpecification(epsilon=5, unit="user")
POLICY = PrivacySpecification(policy=Policy())
ASKED = PrivacySpecification(preferences=Preferences(default=0.1, levels={"little": 0.1, "much": 5}), unit="user")
LARGER = PrivacySpecification(epsilon=3)
"""For what takes many runs to be seen at 1."""

COMPANY = tuple((user, item, (user + item) % 5) for user in range(1, 5) for item in range(2))
A_RATING = Neighbours("a rating of an item that others rated", COMPANY, ((0, 0, 4),))
OF_NOBODYS = Neighbours("a rating of an item nobody else rated", COMPANY, ((0, 2, 4),))
OF_ANOTHER = Neighbours("a rating that makes an item the most rated", COMPANY, ((0, 1, 4),))
LIBERAL, CONSERVATIVE = (
    Neighbours(f"a rating of epsilon {epsilon}", COMPANY, ((user, 0, 4),)) for user, epsilon in ((60, 1), (1003, 0.1))
)
A_USER = Neighbours("a user of three ratings", COMPANY, tuple((0, item, 4) for item in range(3)))
LATER, COMES, STAYS = (
    replace(A_RATING, history=history)
    for history in ("released before", "in batches, as it comes", "in batches, as it stays")
)
A_USER_LATER = replace(A_USER, history="released before")
OF_MANY_USERS = replace(A_RATING, what="a rating beside ten users'", others=tuple((u, 0, u % 5) for u in range(1, 11)))
THE_FIRST = replace(A_RATING, what="the first rating", place=0)
A_BUSY_USER = replace(A_USER, what="a user of twenty", target=tuple((0, item, 4) for item in range(20)), n_items=20)


HONEST = PDPHistogram()


@dataclass(frozen=True)
class Copy:
    """A mechanism that is wrong.

    Attributes:
      n_runs: with which it is found out, given the pair.
    """

    what: str
    pair: Neighbours
    n_runs: int = 1000
    source: Callable[[NoiseSource], NoiseSource] = Altered
    recommender: PDPHistogram = HONEST
    specification: PrivacySpecification = RATING


COPIES = [
    Copy("noise a fifth too small", A_RATING, 20_000, AFifthTooSmall),
    Copy("scale in ratings, not in grid steps", A_RATING, source=ForgottenSteps),
    Copy("a rating in two cells (sensitivity 2)", A_RATING, 4000, recommender=InTwoCells()),
    Copy("noise used for two releases", LATER, source=UsedTwice),
    Copy("noise used for two batches", COMES, source=UsedTwice),
    Copy("one stream for two workers", LATER, source=OfTwoWorkers),
    Copy("a fixed seed", A_RATING, source=Seeded),
    Copy("a seed from the clock", A_RATING, 3000, SeededByTheClock),
    Copy("a seed from the ratings", A_RATING, source=SeededByTheRatings),
    Copy("a seed of twelve bits", A_RATING, 3000, SeedOfTwelveBits),
    Copy("noise of three scales at most", A_RATING, 6000, Cut),
    Copy("Gaussian noise of the same spread", A_RATING, 12_000, ByTheBell, specification=LARGER),
    Copy("one noise for all cells of an item", A_RATING, source=OneForAnItem),
    Copy("noise that cancels", A_RATING, source=UpAndDown),
    Copy("half the noise in empty cells", OF_NOBODYS, 3000, LessWhereThereIsLess),
    Copy("no noise in empty cells", OF_NOBODYS, source=NoneWhereThereIsNothing),
    Copy("no noise for items nobody rated", OF_NOBODYS, source=NoneForItemsNobodyRated),
    Copy("no noise for the top level", A_RATING, source=NoneForALevel),
    Copy("no noise once in nineteen times", A_RATING, 3000, OftenNone),
    Copy("no noise in the second batch", COMES, source=OnlyAtFirst),
    Copy("a batch that takes all in again", STAYS, 6000, recommender=AllOfIt()),
    Copy("V of the exact histogram", A_RATING, recommender=VFromTheExactHistogram()),
    Copy("one column of V of the exact histogram", A_RATING, recommender=PopularityFromTheExactHistogram()),
    Copy("says how many ratings there are", A_RATING, recommender=SaysHowManyRatings()),
    Copy("rows ordered by how often they were rated", OF_ANOTHER, recommender=OrderedByPopularity()),
    Copy("no rows for items nobody rated", OF_NOBODYS, recommender=WithoutItemsNobodyRated()),
    Copy("no number for items nobody rated", OF_NOBODYS, recommender=NoNumberForItemsNobodyRated()),
    Copy("says its error on the ratings", A_RATING, 3000, recommender=SaysItsTrainingError()),
    Copy("says how many ratings there are, and an id", A_RATING, recommender=SaysHowManyBesideAnId()),
    Copy("the first rating as it is", THE_FIRST, recommender=TheFirstRating()),
    Copy("how many ratings there are, from ten users on", OF_MANY_USERS, recommender=HowManyFromTenUsersOn()),
    Copy("an item without noise once in thirty times", OF_NOBODYS, 10_000, recommender=ExactOnceInThirtyTimes()),
    Copy("noise in three grid steps", A_RATING, source=InThrees),
    Copy("policy: weights not cut at 1", LIBERAL, 2000, recommender=Unclipped(threshold=0.3), specification=POLICY),
    Copy("policy: forgotten", CONSERVATIVE, recommender=AllWeighOne(), specification=POLICY),
    Copy("policy: a threshold that was measured", CONSERVATIVE, recommender=MeasuredMean(), specification=POLICY),
    Copy("policy: noise in whole ratings", CONSERVATIVE, source=InWholeRatings, specification=POLICY),
    Copy("policy: noise in sixteen grid steps", CONSERVATIVE, source=InSixteens, specification=POLICY),
    Copy("user: noise a fifth too small", A_USER, 12_000, AFifthTooSmall, specification=USER),
    Copy("user: a norm of 2", A_USER, recommender=TwiceTheNorm(), specification=USER),
    Copy(
        "user: 1/sqrt(c) for three ratings at most",
        A_BUSY_USER,
        2000,
        recommender=UpToThreeRatings(),
        specification=USER,
    ),
    Copy("user: 1 instead of 1/sqrt(c)", A_USER, 2000, recommender=OneForEachRating(), specification=USER),
    Copy("user: what was asked for is forgotten", A_USER, recommender=WhatWasAskedForgotten(), specification=ASKED),
    Copy("user: noise used for two releases", A_USER_LATER, source=UsedTwice, specification=USER),
    Copy("user: no noise in empty cells", A_USER, source=NoneWhereThereIsNothing, specification=USER),
]
