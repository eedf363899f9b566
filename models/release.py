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

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

FORMAT = 1
ARRAYS_FILE, RELEASE_FILE = "items.safetensors", "release.json"
STATISTICS = "statistics."
"""What the names of the noisy statistics begin with in the file of arrays."""

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
        # Row n_items is all zero: users are padded with it to the same number of ratings.
        rows = np.vstack([self.V, np.zeros((1, d), self.V.dtype)]).astype(np.float32)
        todo = np.argsort(counts, kind="stable")
        todo = todo[counts[todo] > 0]
        while len(todo):
            n_fit = int(np.searchsorted(counts[todo] * np.arange(1, len(todo) + 1) * d, block, side="right"))
            batch, todo = todo[: max(n_fit, 1)], todo[max(n_fit, 1) :]
            at = np.arange(counts[batch[-1]])
            real = at < counts[batch, None]
            entry = np.where(real, start[batch, None] + at, 0)
            item = np.where(real, items[entry], len(self.V))
            left_over = np.where(real, values[entry] - np.append(self.offset, 0)[item], 0).astype(np.float32)
            x = rows[item]
            gram = (x.transpose(0, 2, 1) @ x).astype(np.float64)
            gram[:, np.arange(d), np.arange(d)] += self.precision + self.precision_per_rating * counts[batch, None]
            users[batch] = np.linalg.solve(gram, np.einsum("nkd,nk->nd", x, left_over)[:, :, None].astype(np.float64))[
                :, :, 0
            ]
        return users

    def predict(self, U: Array, users: Array, items: Array, *, low: float, high: float) -> Array:
        """Predicted ratings of the pairs; U has shape (n_users, d), users and items shape (n,)."""
        predicted: Array = np.clip(self.offset[items] + np.einsum("nd,nd->n", U[users], self.V[items]), low, high)
        return predicted


class ReleaseError(ValueError):
    """A release that cannot be read, or a request that it cannot answer. The text quotes no rating."""


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
        return self._predict_rows(own_ratings, rows)

    def recommend(self, own_ratings: Mapping[str, float], n: int = 10) -> list[tuple[str, str, float]]:
        """The n items with the highest predicted rating among those not rated yet: (item, title, rating)."""
        if n < 0:
            raise ReleaseError(f"n says how many items to recommend and is at least 0; found {n}.")
        predicted = self._predict_rows(own_ratings, np.arange(len(self.items)), clip=False)
        predicted[[self.row_of[item] for item in own_ratings if item in self.row_of]] = -np.inf
        best = [row for row in np.argsort(-predicted, kind="stable")[:n] if np.isfinite(predicted[row])]
        return [
            (self.items[row], self.titles[row], float(np.clip(predicted[row], self.low, self.high))) for row in best
        ]

    def _predict_rows(self, own_ratings: Mapping[str, float], rows: Array, *, clip: bool = True) -> Array:
        known = [(self.row_of[item], rating) for item, rating in own_ratings.items() if item in self.row_of]
        values = np.array([rating for _, rating in known], dtype=np.float64)
        if not ((values >= self.low) & (values <= self.high)).all():
            raise ReleaseError(
                f"every rating must be a number from {self.low:g} to {self.high:g}, the scale of this release."
            )
        own = np.array([row for row, _ in known], dtype=np.int64)
        u = self.factors.fold_in(np.array([0, len(own)]), own, values)
        low, high = (self.low, self.high) if clip else (-np.inf, np.inf)
        return self.factors.predict(u, np.zeros(len(rows), np.int64), rows, low=low, high=high)

    def save(self, folder: Path) -> None:
        """Write the two files into `folder`, which exists."""
        arrays = {"V": self.factors.V.astype(np.float32), "offset": self.factors.offset.astype(np.float32)}
        arrays |= {STATISTICS + name: np.ascontiguousarray(values) for name, values in self.statistics.items()}
        save_file(arrays, folder / ARRAYS_FILE)
        document = {
            "format": FORMAT,
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
            arrays = load_file(folder / ARRAYS_FILE)
            scale, fold_in = document["scale"], document["fold_in"]
            factors = ItemFactors(
                arrays["V"], arrays["offset"], np.array(fold_in["precision"]), fold_in["precision_per_rating"]
            )
            statistics = {
                name.removeprefix(STATISTICS): values for name, values in arrays.items() if name.startswith(STATISTICS)
            }
            of_items = (factors.V, factors.offset, document["titles"], *statistics.values())
            if any(len(rows) != len(document["items"]) for rows in of_items):
                raise KeyError("rows")
        except ReleaseError:
            raise
        except Exception as error:  # whatever a damaged file makes the parsers say, the reader needs one sentence
            raise ReleaseError(
                f"{RELEASE_FILE} and {ARRAYS_FILE} could not be read as a release ({type(error).__name__}). "
                "Fetch the two files again."
            ) from None
        return cls(
            factors,
            tuple(document["items"]),
            tuple(document["titles"]),
            scale["low"],
            scale["high"],
            scale["step"],
            document["about"],
            statistics,
        )
