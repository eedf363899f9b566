"""Ratings as read and not yet validated: codes, labels and whatever stood in the rating column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from models.ratings import Private

NULLS = ("", "NaN", "nan", "NA", "null", "NULL", "None")


@dataclass(frozen=True, eq=False, repr=False)
class RatingTable(Private):
    """Three columns of the same length, private like the ratings they may become.

    Args:
      users, items: shape (n,), int32 rows into the labels, -1 where there was none.
      user_labels, item_labels: distinct, in a canonical order (numbers by size, then text).
      ratings: shape (n,), float64 with NaN where there was none; of dtype object when a value is no number.
    """

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    user_labels: tuple[str, ...]
    item_labels: tuple[str, ...]
    ratings: NDArray[Any]

    def __repr__(self) -> str:
        return "<private ratings, not validated>"

    @classmethod
    def of_columns(cls, users: pa.ChunkedArray, items: pa.ChunkedArray, ratings: pa.ChunkedArray) -> RatingTable:
        """From three columns of text, each dictionary-encoded."""
        user_codes, user_labels = _codes(users)
        item_codes, item_labels = _codes(items)
        return cls(user_codes, item_codes, user_labels, item_labels, _numbers(ratings))


def _codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    codes, labels = _dictionary(column)
    order = sorted(range(len(labels)), key=lambda at: canonical_order(labels[at]))
    rank = np.empty(len(labels) + 1, np.int32)
    rank[order] = np.arange(len(labels))
    rank[-1] = -1  # where code -1, no label, lands
    return rank[codes], tuple(labels[at] for at in order)


def canonical_order(label: str) -> tuple[int, int, str]:
    """Sort key: whole numbers by size first, other text after them."""
    is_number = label.isascii() and label.isdigit()
    return (0, int(label), label) if is_number and len(label) < 20 else (1, 0, label)


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    codes, labels = _dictionary(column)
    try:
        values = np.array([float(label) for label in labels] + [np.nan])
    except ValueError:
        return np.array([*labels, None], dtype=object)[codes]
    return values[codes]


def _dictionary(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], list[str]]:
    """Codes (-1 for null) and labels of a dictionary-encoded column of text."""
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        return np.zeros(0, np.int32), []
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return codes, array.dictionary.to_pylist()
