"""A private table of what each person asked for: reading it, and giving every rating its own epsilon.

| columns | an epsilon for |
| --- | --- |
| user, epsilon | each rating of the user; with unit user, all of them together |
| user, level | the same, by the name of a declared level |
| user, item, epsilon | one rating |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from models.errors import SpecError
from models.privacy.specification import Unit
from models.ratings import Doubles, Private
from tasks.columns import Choose, missing_columns, named_places, read_columns
from tasks.preferences_source import PreferencesSource
from tasks.rating_files import ALIASES
from tasks.table import RatingTable, codes_and_labels, numbers


@dataclass(frozen=True, eq=False, repr=False)
class PreferenceTable(Private):
    """Preferences as read and not yet validated.

    Args:
      users: shape (n,), int32 rows into `user_labels`, -1 where there was none.
      items: the same of items; None where a user's preference is for all of them.
      asked: shape (n,), as it stood: numbers with NaN where there was none, or text.
      epsilon: shape (n,), float64; NaN where what stood there is no number, or no declared level.
      default: of the ratings that have no line.
    """

    users: NDArray[np.int32]
    user_labels: tuple[str, ...]
    items: NDArray[np.int32] | None
    item_labels: tuple[str, ...]
    asked: NDArray[Any]
    epsilon: Doubles
    default: float

    def __repr__(self) -> str:
        return "<private preferences, not validated>"

    def concerns(self, ratings: RatingTable) -> NDArray[np.bool_]:
        """Whether the user of each line, and its item where one is named, occur in the ratings; shape (n,)."""
        users = _rows_among(self.user_labels, ratings.user_labels)
        occurs = np.append(users, -1)[self.users] >= 0
        if self.items is not None:
            occurs &= np.append(_rows_among(self.item_labels, ratings.item_labels), -1)[self.items] >= 0
        return occurs

    def own_epsilon(self, ratings: RatingTable) -> Doubles:
        """What the person of each rating asked for, or the default; shape (n_ratings,). Both tables are valid."""
        users = _rows_among(self.user_labels, ratings.user_labels)[self.users]
        if self.items is None:
            of_user = np.full(len(ratings.user_labels), self.default)
            of_user[users[users >= 0]] = self.epsilon[users >= 0]
            return of_user[ratings.users]
        items = _rows_among(self.item_labels, ratings.item_labels)[self.items]
        is_known = (users >= 0) & (items >= 0)
        n_items = len(ratings.item_labels)
        pairs = users[is_known].astype(np.int64) * n_items + items[is_known]
        order = np.argsort(pairs)
        pairs, epsilon = np.append(pairs[order], -1), np.append(self.epsilon[is_known][order], self.default)
        rated = ratings.users.astype(np.int64) * n_items + ratings.items
        place = np.searchsorted(pairs[:-1], rated)
        return np.where(pairs[place] == rated, epsilon[place], self.default)


def _rows_among(labels: tuple[str, ...], others: tuple[str, ...]) -> NDArray[np.int64]:
    """Where each label is among `others`, -1 where it is not."""
    return np.asarray(pd.Index(others, dtype=object).get_indexer(pd.Index(labels, dtype=object)), np.int64)


def read_preferences(source: PreferencesSource, unit: Unit) -> PreferenceTable:
    """Read the table; what is in it is validation's business.

    Raises:
      SpecError: there is no such table, or it has none of the three shapes, or not one for this unit.
      EnvironmentFault: it cannot be read.
    """
    columns = read_columns(source, _chooser(source, unit), "preferences", source.known_format).columns
    users, user_labels = codes_and_labels(columns["user"])
    items, item_labels = codes_and_labels(columns["item"]) if "item" in columns else (None, ())
    if "level" in columns:
        codes, names = codes_and_labels(columns["level"])
        asked = np.array([*names, None], dtype=object)[codes]
        epsilon = np.array([source.levels.get(name, np.nan) for name in names] + [np.nan])[codes]
    else:
        asked = numbers(columns["epsilon"], np.float64)
        epsilon = pd.to_numeric(pd.Series(asked), errors="coerce").to_numpy(np.float64)
    return PreferenceTable(users, user_labels, items, item_labels, asked, epsilon, source.default)


def _chooser(source: PreferencesSource, unit: Unit) -> Choose:
    declared = {str(name): value for name, value in source.columns.items()}
    value = "level" if source.levels else "epsilon"
    other = "epsilon" if source.levels else "level"

    def choose(header: list[str], where: str) -> Mapping[str, int]:
        places, missing = named_places(header, {"user": ALIASES["user"], value: (value,)}, declared)
        if missing == [value] and other in named_places(header, {other: (other,)}, declared)[0]:
            raise SpecError(
                f"{where} names levels, and none is declared: say what they stand for with --levels low=0.1,high=1."
                if other == "level"
                else f"{where} has numbers, and levels are declared: leave --levels out and declare a --cap."
            )
        if missing:
            raise missing_columns(where, len(header), missing, "privacy.preferences.columns")
        item, _ = named_places(header, {"item": ALIASES["item"]}, declared)
        if item and (source.levels or unit == "user"):
            raise SpecError(
                f"{where} names items, and a table of {'levels' if source.levels else 'unit user'} has one line a user."
                " Leave the items out, or give numbers with unit rating."
            )
        return {**places, **item}

    return choose
