"""What leaves: item factors and how to use them. The one implementation of fold-in, predict and recommend.

Imports numpy and safetensors only, and nothing of Jali, because a copy of this single file is shipped
with every published model. A release is two files: `items.safetensors` (V, offsets, and the noisy statistics
behind them, where there are such) and `release.json` (catalogue, scale, fold-in weights, guarantee, settings).
No pickle.

Prediction: rating of (u, j) = offset_j + u.V_j, clipped to the scale. Fold-in computes u from V and
that user's own ratings alone: the ridge solution of
    sum over own ratings of (r - offset_j - u.V_j)^2 + u' (diag(precision) + precision_per_rating n I) u.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

FORMAT = 1
ARRAYS_FILE, RELEASE_FILE = "items.safetensors", "release.json"
STATISTICS = "statistics."
"""What the names of the noisy statistics begin with in the file of arrays."""

DEFAULT_N, MOST_N = 10, 1_000
"""How many items a request is answered with, if it does not say, and at most."""
MOST_RATINGS = MOST_ITEMS = 10_000
"""In one request: own ratings, and items to predict."""
LARGEST = 1e15
"""Of V and the offsets, in magnitude: sums of squares beyond do not fit a float32, and no recommender comes near."""

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ItemFactors:
    """All that prediction needs to know of the items.

    Args:
      V: shape (n_items, d), float32.
      offset: shape (n_items,), float32, rating units: the prediction for a user with u = 0.
      precision: shape (d,), the ridge weight of each coordinate of u, dimensionless.
      precision_per_rating: added to every coordinate once per own rating.
    """

    V: Array
    offset: Array
    precision: Array
    precision_per_rating: float = 0.0

    def fold_in(self, start: Array, items: Array, values: Array, *, block: int = 1 << 22) -> Array:
        """Each user's u from V and that user's own ratings.

        Args:
          start: shape (n_users + 1,); user r owns the entries start[r]:start[r + 1].
          items, values: shape (n,), rows of V and rating units.
          block: how many numbers of V may be gathered at a time; changes only time and memory.
        Returns:
          Shape (n_users, d); zero for a user without ratings.
        """
        counts = np.diff(start)
        d = self.V.shape[1]
        users = np.zeros((len(counts), d))
        todo = np.argsort(counts, kind="stable")
        todo = todo[counts[todo] > 0]
        while len(todo):
            n_fit = int(np.searchsorted(counts[todo] * np.arange(1, len(todo) + 1) * d, block, side="right"))
            batch, todo = todo[: max(n_fit, 1)], todo[max(n_fit, 1) :]
            at = np.arange(counts[batch[-1]])
            real = at < counts[batch, None]
            entry = np.where(real, start[batch, None] + at, 0)
            item = np.where(real, items[entry], len(self.V))
            left_over = np.where(real, values[entry] - self._padded_offset[item], 0).astype(np.float32)
            x = self._padded_rows[item]
            gram = (x.transpose(0, 2, 1) @ x).astype(np.float64)
            gram[:, np.arange(d), np.arange(d)] += self.precision + self.precision_per_rating * counts[batch, None]
            users[batch] = np.linalg.solve(gram, np.einsum("nkd,nk->nd", x, left_over)[:, :, None].astype(np.float64))[
                :, :, 0
            ]
        return users

    @cached_property
    def _padded_rows(self) -> Array:
        """V and a row of zeros, number n_items: users are padded with it to the same number of ratings."""
        return np.vstack([self.V, np.zeros((1, self.V.shape[1]), self.V.dtype)]).astype(np.float32)

    @cached_property
    def _padded_offset(self) -> Array:
        return np.append(self.offset, 0)

    def predict(self, U: Array, users: Array, items: Array, *, low: float, high: float) -> Array:
        """Predicted ratings of the pairs; U has shape (n_users, d), users and items shape (n,)."""
        predicted: Array = np.clip(self.offset[items] + np.einsum("nd,nd->n", U[users], self.V[items]), low, high)
        return predicted


class ReleaseError(ValueError):
    """A release that cannot be read, or a request that it cannot answer. The text quotes no rating."""


class Answer(NamedTuple):
    """To one request.

    Args:
      items: (item, title, predicted rating), best first or as asked.
      ignored: how many own ratings were of items outside the catalogue.
      unknown: which of the items asked for are outside it.
    """

    items: list[tuple[str, str, float]]
    ignored: int
    unknown: list[str]


@dataclass(frozen=True, eq=False)
class Release:
    """Item factors with the names of the items, the scale and the guarantee under which they left.

    Args:
      items, titles: one label and one title (maybe empty) per row of V.
      low, high, step: the rating scale.
      about: recommender, settings, privacy specification and guarantee, all JSON.
      statistics: what the mechanism itself gave out, of which V is post-processing: arrays with one row per item,
        public like V. Prediction needs none of it; another release may build on it.
    """

    factors: ItemFactors
    items: tuple[str, ...]
    titles: tuple[str, ...]
    low: float
    high: float
    step: float
    about: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {item: row for row, item in enumerate(self.items)}

    def predict(self, own_ratings: Mapping[str, float], items: Sequence[str]) -> Array:
        """Predicted ratings of `items` for whoever gave `own_ratings`; shape (len(items),).

        Own ratings of items outside the catalogue are ignored.

        Raises:
          ReleaseError: a rating is no number on the scale, or an item asked for is not in the catalogue.
        """
        unknown = sum(item not in self.row_of for item in items)
        if unknown:
            raise ReleaseError(f"{unknown} of the items asked for are not in the catalogue of this release.")
        rows = np.array([self.row_of[item] for item in items], dtype=np.int64)
        predicted: Array = np.clip(self._predict_rows(own_ratings, rows), self.low, self.high)
        return predicted

    def recommend(self, own_ratings: Mapping[str, float], n: int = 10) -> list[tuple[str, str, float]]:
        """The n items with the highest predicted rating among those not rated yet: (item, title, rating)."""
        if n < 0:
            raise ReleaseError(f"n says how many items to recommend and is at least 0; found {n}.")
        predicted = self._predict_rows(own_ratings, slice(None))
        predicted[[self.row_of[item] for item in own_ratings if item in self.row_of]] = -np.inf
        best = [row for row in _largest(predicted, n) if np.isfinite(predicted[row])]
        ratings = np.clip(predicted[best], self.low, self.high).tolist()
        return [(self.items[row], self.titles[row], rating) for row, rating in zip(best, ratings, strict=True)]

    def answer(self, ratings: Any, *, n: Any = DEFAULT_N, items: Any = None) -> Answer:
        """Answer a request as it came in: predict `items` where they are given, else recommend n.

        What is not in the catalogue is left out, and said.

        Args:
          ratings: a list of {"item": ..., "rating": a number}; an item is a text or a whole number.
        Raises:
          ReleaseError: something is of another kind, off the scale, told twice or too much.
        """
        own = own_ratings(ratings)
        ignored = sum(item not in self.row_of for item in own)
        if items is None:
            return Answer(self.recommend(own, _how_many(n)), ignored, [])
        asked = _items_asked_for(items)
        known = [item for item in asked if item in self.row_of]
        predicted = self.predict(own, known).tolist()
        return Answer(
            [(item, self.titles[self.row_of[item]], rating) for item, rating in zip(known, predicted, strict=True)],
            ignored,
            [item for item in asked if item not in self.row_of],
        )

    def _predict_rows(self, own_ratings: Mapping[str, float], rows: Array | slice) -> Array:
        """Predicted ratings, not yet clipped to the scale."""
        ratings = np.array(list(own_ratings.values()), dtype=np.float64)
        if not ((ratings >= self.low) & (ratings <= self.high)).all():
            raise ReleaseError(
                f"every rating must be a number from {self.low:g} to {self.high:g}, the scale of this release."
            )
        known = [(self.row_of[item], rating) for item, rating in own_ratings.items() if item in self.row_of]
        own = np.array([row for row, _ in known], dtype=np.int64)
        values = np.array([rating for _, rating in known], dtype=np.float64)
        u = self.factors.fold_in(np.array([0, len(own)]), own, values)[0]
        predicted: Array = self.factors.offset[rows] + np.einsum("nd,d->n", self.factors.V[rows], u)
        return predicted

    def save(self, folder: Path) -> None:
        """Write the two files into `folder`, which exists."""
        arrays = {"V": self.factors.V.astype(np.float32), "offset": self.factors.offset.astype(np.float32)}
        arrays |= {STATISTICS + name: np.ascontiguousarray(values) for name, values in self.statistics.items()}
        save_file(arrays, folder / ARRAYS_FILE)
        document = {
            "format": FORMAT,
            "arrays_sha256": _sha256(folder / ARRAYS_FILE),
            "items": list(self.items),
            "titles": list(self.titles),
            "scale": {"low": self.low, "high": self.high, "step": self.step},
            "fold_in": {
                "precision": [float(p) for p in self.factors.precision],
                "precision_per_rating": self.factors.precision_per_rating,
            },
            "about": dict(self.about),
        }
        (folder / RELEASE_FILE).write_text(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Release:
        """Read the two files.

        Raises:
          ReleaseError: a file is missing or damaged, or a newer Jali wrote it.
        """
        try:
            document = json.loads((folder / RELEASE_FILE).read_text())
            if document["format"] > FORMAT:
                raise ReleaseError(
                    f"this release has format {document['format']} and this program reads up to {FORMAT}: "
                    "a newer Jali wrote it. Upgrade Jali to load it."
                )
            return cls._of(document, folder / ARRAYS_FILE)
        except ReleaseError:
            raise
        except Exception as error:  # whatever a damaged file makes the parsers say, the reader needs one sentence
            raise ReleaseError(
                f"{RELEASE_FILE} and {ARRAYS_FILE} could not be read as a release ({type(error).__name__}). "
                "Fetch the two files again."
            ) from None

    @classmethod
    def _of(cls, document: Mapping[str, Any], arrays_file: Path) -> Release:
        """What the two files say, if they belong together and everything is of its kind; any exception if not."""
        _require(document.get("arrays_sha256") in (None, _sha256(arrays_file)))  # the first releases do not say it
        arrays = load_file(arrays_file)
        scale, fold_in = document["scale"], document["fold_in"]
        statistics = {
            name.removeprefix(STATISTICS): values for name, values in arrays.items() if name.startswith(STATISTICS)
        }
        factors = ItemFactors(
            arrays["V"], arrays["offset"], np.array(fold_in["precision"]), fold_in["precision_per_rating"]
        )
        _require_usable(factors)
        items, titles, about = document["items"], document["titles"], document["about"]
        of_items = (factors.V, factors.offset, titles, *statistics.values())
        _require(isinstance(items, list) and isinstance(titles, list) and isinstance(about, dict))
        _require(all(len(rows) == len(items) for rows in of_items))
        _require(all(isinstance(text, str) for text in (*items, *titles)) and len(set(items)) == len(items))
        "".join((*items, *titles)).encode()  # half a surrogate pair could be given to nobody
        low, high, step = (scale[name] for name in ("low", "high", "step"))
        _require(all(_is_number(bound) for bound in (low, high, step)) and low < high and step > 0)
        return cls(factors, tuple(items), tuple(titles), low, high, step, about, statistics)


def own_ratings(entries: Any) -> dict[str, float]:
    """A user's own ratings by item, from a list of {"item": ..., "rating": ...}.

    Raises:
      ReleaseError: it is no such list, holds an item twice, or more than MOST_RATINGS. Whether a rating is on the scale
        is the release's to say.
    """
    own: dict[str, float] = {}
    entries = _listed(entries, MOST_RATINGS, 'ratings is a list of {"item": ..., "rating": a number}')
    for entry in entries:
        if not isinstance(entry, Mapping) or not _is_number(entry.get("rating")):
            raise ReleaseError('ratings is a list of {"item": ..., "rating": a number}.')
        own[_label(entry.get("item"))] = float(entry["rating"])
    if len(own) < len(entries):
        raise ReleaseError("an item is rated at most once; leave out all but one of its ratings.")
    return own


def _items_asked_for(items: Any) -> list[str]:
    return [_label(item) for item in _listed(items, MOST_ITEMS, "items is a list of the items to predict")]


def _how_many(n: Any) -> int:
    if not _is_number(n) or n != int(n):
        raise ReleaseError("n says how many items to recommend and is a whole number.")
    if not 0 <= n <= MOST_N:
        raise ReleaseError(f"n says how many items to recommend and is at least 0 and at most {MOST_N:,}.")
    return int(n)


def _listed(entries: Any, most: int, what: str) -> list[Any]:
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Iterable):
        raise ReleaseError(f"{what}.")
    listed = list(entries)
    if len(listed) > most:
        raise ReleaseError(f"{what}, at most {most:,} of them. Send fewer.")
    return listed


def _label(item: Any) -> str:
    if isinstance(item, bool) or not isinstance(item, str | int | np.integer):
        raise ReleaseError("an item is named by a text or a whole number.")
    return str(item)


def _is_number(value: Any) -> bool:
    """Whether it is a number that a double can hold; NaN and infinity are none."""
    if isinstance(value, int | np.integer):
        return not isinstance(value, bool) and abs(int(value)) < 10**300
    return isinstance(value, float | np.floating) and bool(-np.inf < value < np.inf)


def _largest(values: Array, n: int) -> Array:
    """Where the n largest values are, the largest first, and the first of equals first."""
    if not 0 < n < len(values):
        return np.argsort(-values, kind="stable")[:n]
    least = np.partition(values, len(values) - n)[len(values) - n]
    among = np.flatnonzero(values >= least)
    return among[np.argsort(-values[among], kind="stable")[:n]]


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _require(holds: bool) -> None:
    """Raise unless it holds; `Release.load` makes one sentence of whatever is wrong with the files."""
    if not holds:
        raise ValueError


def _require_usable(factors: ItemFactors) -> None:
    """Raise unless fold-in and prediction work: shapes fit, all is finite, and the ridge makes the solution unique."""
    V, offset, precision, per_rating = factors.V, factors.offset, factors.precision, factors.precision_per_rating
    _require((V.ndim, offset.ndim, precision.ndim) == (2, 1, 1) and precision.shape == V.shape[1:])
    _require(V.dtype == offset.dtype == np.float32 and np.issubdtype(precision.dtype, np.number))
    _require(all(bool((np.abs(values) < LARGEST).all()) for values in (V, offset, precision)))
    _require(
        _is_number(per_rating) and per_rating >= 0 and bool(((precision >= 0) & (precision + per_rating > 0)).all())
    )
