"""Many runs of the real fit, and each release as a row of numbers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.audit.neighbours import Neighbours
from models.batch import Hashes, Record, Told, next_batch
from models.errors import SpecError
from models.privacy.noise import NoiseSource
from models.privacy.specification import PrivacySpecification
from models.ratings import Doubles, Ratings, RatingScale
from models.recommender import Fitted, Recommender

Fit = Callable[[Ratings, PrivacySpecification, NoiseSource], Fitted[Any]]
Count = Callable[[int], None]
"""Told of every so many runs that were done."""

GOLDEN = (5**0.5 - 1) / 2
"""Whose multiples are spread evenly over [0, 1), modulo 1."""

EXACT, HUGE = 2.0**53, 1e100
"""Below the one every integer is a float; the other stands for infinity."""

N_ODDITIES = 4
PRECISION = "precision"

MOST_NUMBERS = 200_000_000
"""Of all runs together, kept while statistics are learned: 1.6 GB, and a few times as much for a moment."""

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
                    _require_memory(n_runs, len(items))
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


def _require_memory(n_runs: int, width: int) -> None:
    if 2 * n_runs * width > MOST_NUMBERS:
        raise SpecError(
            f"{2 * n_runs:,} runs of releases of {width:,} numbers are more than is kept in memory at once "
            f"({MOST_NUMBERS:,} numbers). Ask for at most {MOST_NUMBERS // width:,} runs."
        )


def _hashes(labels: Sequence[str]) -> Hashes:
    """Of made-up labels, which are a letter and a number, the number."""
    return np.array([int(label[1:]) for label in labels], np.uint64)


def _numbers(fitted: Fitted[Any]) -> Doubles:
    """Everything that a release holds, in a row; whatever is no number becomes one."""
    arrays = _arrays(fitted)
    row = np.concatenate([array.ravel() for array in arrays.values()], dtype=np.float64, casting="unsafe")
    odd = ~np.isfinite(row) | (np.abs(row) >= EXACT) | ((row == 0) & np.signbit(row))
    n_items = len(fitted.factors.V)
    oddities = _oddities(row, arrays, n_items) if odd.any() else np.zeros(N_ODDITIES * (n_items + 1))
    finite = np.nan_to_num(row, nan=0.0, posinf=HUGE, neginf=-HUGE)
    return np.concatenate([finite, oddities, _said(_words(fitted, arrays))])


def _items(fitted: Fitted[Any]) -> NDArray[np.int64]:
    """Which item each of these numbers belongs to; -1 where to none."""
    arrays, n_items = _arrays(fitted), len(fitted.factors.V)
    said = len(_said(_words(fitted, arrays)))
    of_oddities = np.repeat([*range(n_items), -1], N_ODDITIES)
    return np.concatenate([_owners(arrays, n_items), of_oddities, np.full(said, -1)])


def _arrays(fitted: Fitted[Any]) -> dict[str, np.ndarray]:
    """By name; those that have a row for each item, and then what has none."""
    factors = fitted.factors
    return {"V": factors.V, "offset": factors.offset, **fitted.statistics, PRECISION: factors.precision}


def _owners(arrays: Mapping[str, np.ndarray], n_items: int) -> NDArray[np.int64]:
    """The item that each number of the arrays belongs to, one after another."""

    def of(name: str, array: np.ndarray) -> NDArray[np.int64]:
        if name == PRECISION or array.ndim == 0 or len(array) != n_items:
            return np.full(array.size, -1)
        return np.repeat(np.arange(n_items), array.size // n_items)

    return np.concatenate([of(name, array) for name, array in arrays.items()])


def _oddities(row: Doubles, arrays: Mapping[str, np.ndarray], n_items: int) -> Doubles:
    """What the numbers do not show: how many are none, infinite, a negative zero; what integers end in.

    Shape (N_ODDITIES * (n_items + 1),): of each item, and last of what belongs to none.
    """
    owners = _owners(arrays, n_items) % (n_items + 1)
    masks = (np.isnan(row), np.isinf(row), (row == 0) & np.signbit(row))
    counts = [np.bincount(owners[mask], minlength=n_items + 1) for mask in masks]
    ends = [np.ravel(array) % 2**26 if array.dtype.kind in "iu" else np.zeros(array.size) for array in arrays.values()]
    all_ends = np.concatenate(ends, dtype=np.float64, casting="unsafe")
    return np.stack([*counts, np.bincount(owners, all_ends, n_items + 1)], axis=1).ravel().astype(np.float64)


def _words(fitted: Fitted[Any], arrays: Mapping[str, np.ndarray]) -> str:
    """What is said in words, and names, kinds and shapes, as JSON."""
    catalogue = fitted.catalogue
    kinds = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    weight = fitted.factors.precision_per_rating
    lists = (catalogue.items, catalogue.titles, catalogue.feature_names, kinds, weight, fitted.scale, fitted.about)
    return f"[{json.dumps(lists, default=repr)}, {fitted.guarantee.model_dump_json()}]"


@lru_cache(maxsize=64)  # honest ones say the same every time
def _said(words: str) -> tuple[float, ...]:
    """One number for each thing said, so that what varies from run to run hides nothing beside it."""
    return tuple(_leaves(json.loads(words)))


def _leaves(said: Any) -> Iterator[float]:
    """Numbers as they are, and everything else as a checksum, with its name where it has one."""
    if isinstance(said, dict):
        for name in sorted(said):
            yield zlib.crc32(name.encode())
            yield from _leaves(said[name])
    elif isinstance(said, list):
        yield len(said)
        for part in said:
            yield from _leaves(part)
    elif isinstance(said, int | float) and abs(said) < EXACT:
        yield float(said)
    else:
        yield zlib.crc32(repr(said).encode())


def _table(rows: Sequence[Doubles], width: int) -> Doubles:
    """`rows`, of which one may be longer than another, filled with zeros to the same length."""
    table = np.zeros((len(rows), width))
    for filled, row in zip(table, rows, strict=True):
        filled[: len(row)] = row
    return table
