"""Made-up data sets that differ in one unit: what an audit lets a recommender loose on.

They are public, small and hostile. A pair is written down as the ratings that both hold and those of the unit that
one of them holds otherwise, so that it can be varied at random as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from models.privacy.specification import PrivacySpecification, Relation
from models.ratings import Catalogue, Doubles, Ratings, RatingScale

Rating = tuple[int, int, int]
"""User, item, and the index of its level in the scale's."""

History = Literal["one release", "released before", "in batches, as it comes", "in batches, as it stays"]
"""One release; or two, the unit being in the second alone, or (in batches, where it pays once) in both."""

N_ITEMS = 3

N_CROWD, MANY_ITEMS = 30, 20
"""What begins to depend on many users, or many ratings of one, mostly does with so many."""

N_NEWCOMERS = 1000
"""Among so many somebody has about the least epsilon of a policy, and about the most."""

NO_NEWCOMER = 10 * N_NEWCOMERS
"""From this number on users are the others."""

MOST_LEVELS = 20
"""A histogram of a thousand levels says no more about a mechanism, and takes a thousand times as long."""


@dataclass(frozen=True)
class Neighbours:
    """Two data sets, or histories of them, that differ in one unit.

    Attributes:
      what: in a few words, for a table.
      others: the ratings that both hold.
      target: the ratings of the unit: one, or all of a user's. The first data set holds them.
      changed: the level that the target's rating has in the second data set; None where it is not there.
      n_items: size of the catalogue, which is public and the same for both.
      labels: number of each item's label, on which a policy's epsilons depend; counted from 0 if left out.
      place: how many of the others stand before the target's ratings; all of them if left out.
    """

    what: str
    others: tuple[Rating, ...]
    target: tuple[Rating, ...]
    changed: int | None = None
    n_items: int = N_ITEMS
    history: History = "one release"
    labels: tuple[int, ...] | None = None
    place: int | None = None

    @property
    def before(self) -> int:
        """Ratings before the target's."""
        return len(self.others) if self.place is None else min(self.place, len(self.others))

    @property
    def first(self) -> tuple[Rating, ...]:
        return (*self.others[: self.before], *self.target, *self.others[self.before :])

    @property
    def second(self) -> tuple[Rating, ...]:
        if self.changed is None:
            return self.others
        ((user, item, _),) = self.target
        return (*self.others[: self.before], (user, item, self.changed), *self.others[self.before :])

    def histories(
        self, specification: PrivacySpecification, scale: RatingScale
    ) -> tuple[tuple[Ratings, ...], tuple[Ratings, ...]]:
        """Both sides: one data set for each release, oldest first."""

        def ratings(listed: Sequence[Rating]) -> Ratings:
            return made_up(listed, self.labels or range(self.n_items), specification, scale)

        first, second, before = ratings(self.first), ratings(self.second), ratings(self.others)
        if self.history == "one release":
            return (first,), (second,)
        if self.history == "in batches, as it stays":
            return (first, first), (second, second)
        return (before, first), (before, second)


def made_up(
    listed: Sequence[Rating], labels: Sequence[int], specification: PrivacySpecification, scale: RatingScale
) -> Ratings:
    """Ratings as they are read from a file: the users are those who rated something; the items, one for each label."""
    users, items, levels = np.array(listed, np.int64).reshape(-1, 3).T
    present, rows = np.unique(users, return_inverse=True)
    return Ratings(
        rows.astype(np.int32),
        items.astype(np.int32),
        scale.levels[levels].astype(np.float32),
        tuple(f"u{user}" for user in present),
        Catalogue.of_items([f"i{label}" for label in labels], public=True),
        scale,
        own_epsilon=_asked_for(users, np.asarray(labels, np.int64)[items], specification),
    )


def _asked_for(users: np.ndarray, items: np.ndarray, specification: PrivacySpecification) -> Doubles | None:
    """Where people choose: everything that was declared, dealt by user, or by user and item; shape (n,)."""
    told = specification.preferences
    if told is None:
        return None
    choices = np.array(sorted({told.largest, told.default, *told.levels.values()} - {0.0}))
    dealt: Doubles = choices[(users if specification.unit == "user" else users + items) % len(choices)]
    return dealt


def coarse(scale: RatingScale) -> RatingScale:
    """`scale`, or five levels between the same ends where it has very many."""
    if len(scale.levels) <= MOST_LEVELS:
        return scale
    return RatingScale(low=scale.low, high=scale.high, step=scale.width / 4)


def small_hostile(
    specification: PrivacySpecification, relation: Relation, scale: RatingScale, *, batches: bool
) -> Iterator[Neighbours]:
    """A grid over the smallest data sets: who differs, where, at which level, and beside whom.

    Args:
      batches: whether the recommender releases in batches as well.
    """
    n_levels = len(scale.levels)
    low, middle, high = 0, n_levels // 2, n_levels - 1
    company = tuple((user, item, (user + item) % n_levels) for user in range(1, 5) for item in range(2))
    company_of = {"one other rating": ((1, 0, middle),), "four other users": company}
    crowd = tuple((NO_NEWCOMER + number, 0, number % n_levels) for number in range(N_CROWD))
    newcomers = _newcomers(specification, scale)
    targets = dict.fromkeys(each for user in newcomers for each in _targets(specification, user, low, middle, high))
    for beside, others in company_of.items():
        for what, target in targets:
            for changed in _changes(relation, target, low, high):
                yield Neighbours(f"{what}, beside {beside}", others, target, changed)
    what, target = next(_targets(specification, newcomers[-1], high, middle, low))
    (changed, *_) = _changes(relation, target, low, high)
    whole = Neighbours(f"{what}, beside four other users", company, target, changed)
    yield replace(whole, what=f"{what}, the first of all", place=0)
    yield replace(whole, what=f"{what}, beside {N_CROWD} other users of one item", others=crowd)
    if specification.unit == "user":
        many = tuple((target[0][0], item, item % n_levels) for item in range(MANY_ITEMS))
        yield replace(whole, what=f"a user who rated {MANY_ITEMS} items", target=many, n_items=MANY_ITEMS)
    else:
        of_one = tuple((target[0][0], 0, level) for _, _, level in target)
        yield replace(whole, what=f"one more of {N_CROWD} ratings of an item", others=crowd, target=of_one)
    histories: list[History] = ["released before"]
    if batches and specification.unit == "rating":
        histories += ["in batches, as it comes", "in batches, as it stays"]
    for history in histories:
        yield replace(whole, what=f"{whole.what}; {history}", history=history)


def _newcomers(specification: PrivacySpecification, scale: RatingScale) -> tuple[int, ...]:
    """Who rates nothing else: the one with the least epsilon of many, and the one with the most, where they differ."""
    if not specification.personalised:
        return (0,)
    many = [0, *range(5, 5 + N_NEWCOMERS)]
    both = [(user, item, 0) for user in many for item in (0, 2)]  # whichever of these it is that they rate
    own = specification.epsilon_of(made_up(both, range(N_ITEMS), specification, scale)).reshape(-1, 2)
    ends = int(np.argmin(own.max(axis=1))), int(np.argmax(own.min(axis=1)))
    return tuple(many[at] for at in dict.fromkeys(ends))


def _targets(
    specification: PrivacySpecification, newcomer: int, low: int, middle: int, high: int
) -> Iterator[tuple[str, tuple[Rating, ...]]]:
    if specification.unit == "user":
        for n_ratings in range(1, N_ITEMS + 1):
            for level in (low, high):
                yield (
                    f"a user who rated {n_ratings} of {N_ITEMS} items",
                    tuple((newcomer, item, level) for item in range(n_ratings)),
                )
        return
    for level in (low, middle, high):
        yield "a newcomer's rating of an item nobody else rated", ((newcomer, 2, level),)
        yield "a newcomer's rating of a rated item", ((newcomer, 0, level),)
        yield "a user's further rating", ((1, 2, level),)


def _changes(relation: Relation, target: tuple[Rating, ...], low: int, high: int) -> tuple[int | None, ...]:
    if relation == "add_or_remove":
        return (None,)
    ((_, _, level),) = target
    return (high if level != high else low,)


def varied(
    neighbours: Neighbours, specification: PrivacySpecification, scale: RatingScale, dealer: np.random.Generator
) -> Neighbours:
    """The same pair with one to four random changes to the ratings that both hold."""
    n_levels = len(scale.levels)
    others = {(user, item): level for user, item, level in neighbours.others}
    taken = {(user, item) for user, item, _ in neighbours.target}
    owner = neighbours.target[0][0]
    users = sorted({user for user, _ in others} | {owner})
    users.append(users[-1] + 1)
    for _ in range(dealer.integers(1, 5)):
        if len(others) > 1 and dealer.random() < 0.4:
            del others[list(others)[dealer.integers(len(others))]]
            continue
        user, item = users[dealer.integers(len(users))], int(dealer.integers(neighbours.n_items))
        is_of_the_unit = user == owner if specification.unit == "user" else (user, item) in taken
        if not is_of_the_unit:
            others[user, item] = int(dealer.integers(n_levels))
    varied_others = tuple((user, item, level) for (user, item), level in others.items())
    name = neighbours.what.removesuffix(VARIED) + VARIED
    return replace(neighbours, what=name, others=varied_others, place=int(dealer.integers(len(varied_others) + 1)))


VARIED = ", varied at random"
