"""Ratings as read and not yet validated: codes, labels and whatever stood in the rating column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from models.ratings import Private

NULLS = ("", "NaN", "nan", "NA", "null", "NULL", "None")
TEXT = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, eq=False, repr=False)
class RatingTable(Private):
    """Three columns of the same length, private like the ratings they may become.

    Args:
      users, items: shape (n,), int32 rows into the labels, -1 where there was none.
      user_labels, item_labels: distinct, in a canonical order (numbers by size, then text).
      ratings: shape (n,), float32 with NaN where there was none; of dtype object when a value is no number.
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
        """From three columns of single values of any type."""
        user_codes, user_labels = codes_and_labels(users)
        item_codes, item_labels = codes_and_labels(items)
        return cls(user_codes, item_codes, user_labels, item_labels, numbers(ratings, np.float32))


def as_text(column: Any) -> Any:
    """An array, chunked or not, as dictionary-encoded text; whole numbers are written as such, whatever their type.

    Only distinct values become text.
    """
    if column.type == TEXT:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([as_text(chunk) for chunk in column.chunks], TEXT)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(pa.int32()), _texts(encoded.dictionary))


def _texts(values: pa.Array) -> pa.Array:
    """As text; a whole number like an integer, for ids that pandas made floats of because of a null."""
    if not pa.types.is_floating(values.type):
        return values.cast(pa.string())
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    is_whole = (numbers == np.rint(numbers)) & (np.abs(numbers) < 2**53)
    whole = pa.array(np.where(is_whole, numbers, 0).astype(np.int64)).cast(pa.string())
    return pa.compute.if_else(pa.array(is_whole), whole, values.cast(pa.string()))


def codes_and_labels(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Codes (-1 where there is none) into labels that are distinct and in canonical order."""
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


def numbers(column: pa.ChunkedArray, precision: type[np.floating]) -> NDArray[Any]:
    """The values as numbers with NaN where there is none; as text, of dtype object, when one is no number."""
    codes, labels = _dictionary(column)
    try:
        values = np.array([*map(_number, labels), np.nan])
    except ValueError:
        return np.array([*labels, None], dtype=object)[codes]
    with np.errstate(over="ignore"):  # what is beyond every scale may as well be infinite
        return values.astype(precision)[codes]


def _number(label: str) -> float:
    """As programs write numbers. Raises ValueError also for `1_0` and for digits of other scripts."""
    if "_" in label or not label.isascii():
        raise ValueError
    return float(label)


def _dictionary(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], list[str]]:
    """Codes (-1 for null) of a column and the labels that occur; a dictionary may hold more, and what means null."""
    array = as_text(column).unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        return np.zeros(0, np.int32), []
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    labels = array.dictionary.to_pylist()
    occurs = np.zeros(len(labels) + 1, bool)
    occurs[codes] = True
    keep = [at for at, label in enumerate(labels) if occurs[at] and label is not None and label not in NULLS]
    if len(keep) == len(labels):
        return codes, labels
    rank = np.full(len(labels) + 1, -1, np.int32)
    rank[keep] = np.arange(len(keep))
    return rank[codes], [labels[at] for at in keep]
