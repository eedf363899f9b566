"""Many runs of the real fit, and each release as a row of numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.audit.neighbours import Neighbours
from models.batch import Hashes, Record, Told, next_batch
from models.privacy.noise import NoiseSource
from models.privacy.specification import PrivacySpecification
from models.ratings import Doubles, Ratings, RatingScale
from models.recommender import Fitted, Recommender

Fit = Callable[[Ratings, PrivacySpecification, NoiseSource], Fitted[Any]]
Count = Callable[[int], None]
"""Told of every so many runs that were done."""

GOLDEN = (5**0.5 - 1) / 2
"""Whose multiples are spread evenly over [0, 1), modulo 1."""

A_FEW = 100
"""Runs between two words about them."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """Releases as numbers.

    Args:
      numbers: shape (n_runs, k).
      items: shape (k,), the row of the item that each of them belongs to, -1 for none.
    """

    numbers: Doubles
    items: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, start: float, stop: float) -> Outputs:
        """The runs between two shares of them, dealt so that each part has runs of all times."""
        order = np.argsort(np.arange(len(self)) * GOLDEN % 1, kind="stable")
        chosen = np.sort(order[int(start * len(self)) : int(stop * len(self))])
        return Outputs(self.numbers[chosen], self.items)

    def columns(self, chosen: NDArray[np.bool_]) -> Outputs:
        return Outputs(self.numbers[:, chosen], self.items[chosen])


@dataclass(frozen=True)
class Mechanism:
    """What is audited: a recommender, or a stand-in for its fit, under a specification.

    Attributes:
      count: is told how many runs were done since it was told last.
    """

    recommender: Recommender
    specification: PrivacySpecification
    scale: RatingScale
    noise: NoiseSource
    fit: Fit
    count: Count

    def outputs(self, neighbours: Neighbours, n_runs: int) -> tuple[Outputs, Outputs]:
        """All that is released in each of `n_runs` runs of either side, which take turns: the time tells no side."""
        histories: Sequence[Sequence[Ratings]] = neighbours.histories(self.specification, self.scale)
        if neighbours.history.startswith("in batches"):
            histories = [self._batches(history) for history in histories]
        sides: tuple[list[Doubles], list[Doubles]] = ([], [])
        items, counted = np.zeros(0, np.int64), 0
        for run in range(1, n_runs + 1):
            for rows, history in zip(sides, histories, strict=True):
                releases = self._run(history)
                rows.append(np.concatenate([_numbers(release) for release in releases]))
                if len(rows[-1]) > len(items):
                    items = np.concatenate([_items(release) for release in releases])
            if run % A_FEW == 0 or run == n_runs:
                self.count(2 * (run - counted))
                counted = run
        return Outputs(_table(sides[0], len(items)), items), Outputs(_table(sides[1], len(items)), items)

    def _run(self, history: Sequence[Ratings]) -> list[Fitted[Any]]:
        releases: list[Fitted[Any]] = []
        for ratings in history:
            if ratings.batch is not None and releases:
                told = Told(releases[-1].statistics["histogram"], releases[-1].statistics["cell_variance"])
                ratings = replace(ratings, batch=replace(ratings.batch, told=told))
            releases.append(self.fit(ratings, self.specification, self.noise))
        return releases

    def _batches(self, history: Sequence[Ratings]) -> list[Ratings]:
        """The data sets as batches: each is what it adds to those before it, as the private list knows it."""
        batches: list[Ratings] = []
        for ratings in history:
            items = _hashes(ratings.catalogue.items)
            record = self._record(batches, items)
            batches.append(next_batch(ratings, _hashes(ratings.user_labels), items, record, None, "fresh"))
        return batches

    def _record(self, batches: Sequence[Ratings], items: Hashes) -> Record:
        moves = [(_hashes(b.user_labels), self.recommender.moves(b, self.specification)) for b in batches]
        nobody, nothing = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        levels = np.concatenate([nothing, *(move.levels for _, move in moves)])
        return Record(
            np.concatenate([nobody, *(users[move.users] for users, move in moves)]),
            np.concatenate([nobody, *(items[move.items] for _, move in moves)]),
            levels,
            np.concatenate([nothing, *(move.steps for _, move in moves)]),
            np.ones(len(levels), np.bool_),
            nobody,
            nobody,
            np.zeros(0, np.bool_),
        )


def _hashes(labels: Sequence[str]) -> Hashes:
    """Of made-up labels, which are a letter and a number, the number."""
    return np.array([int(label[1:]) for label in labels], np.uint64)


def _numbers(fitted: Fitted[Any]) -> Doubles:
    """Everything that a release holds, in a row."""
    factors = fitted.factors
    arrays = (factors.V, factors.offset, *fitted.statistics.values(), factors.precision)
    others = np.array([factors.precision_per_rating, _checksum(fitted)])
    return np.concatenate([*(np.asarray(array, np.float64).ravel() for array in arrays), others])


def _checksum(fitted: Fitted[Any]) -> int:
    """Of what is said in words, of which none may depend on the ratings: whatever differs tells."""
    catalogue, promise = fitted.catalogue, fitted.guarantee.model_dump_json()
    words = (fitted.about, promise, fitted.scale, catalogue.items, catalogue.titles, catalogue.feature_names)
    return zlib.crc32(repr(words).encode())


def _items(fitted: Fitted[Any]) -> NDArray[np.int64]:
    """Which item each of these numbers belongs to; -1 where to none."""
    of_items = (fitted.factors.V, fitted.factors.offset, *fitted.statistics.values())
    owners = [np.repeat(np.arange(len(array)), array.size // len(array)) for array in of_items]
    return np.concatenate([*owners, np.full(fitted.factors.precision.size + 2, -1)])


def _table(rows: Sequence[Doubles], width: int) -> Doubles:
    """`rows`, of which one may be longer than another, filled with zeros to the same length."""
    table = np.zeros((len(rows), width))
    for filled, row in zip(table, rows, strict=True):
        filled[: len(row)] = row
    return table
