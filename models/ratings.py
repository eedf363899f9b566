"""Ratings and the public things around them: the scale and the catalogue.

The scale and the catalogue are declared by somebody, never measured: one scale object bounds the
validation, the noise and the predictions, and one catalogue says which items exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from models.errors import NotReleasable, SpecError, quoted

if TYPE_CHECKING:
    from models.batch import Batch

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]


class RatingScale(BaseModel, frozen=True, extra="forbid"):
    """The public scale of the ratings: `low`, `low + step`, ..., `high`, in rating units."""

    low: float = Field(ge=-1000, le=1000)
    high: float = Field(ge=-1000, le=1000)
    step: float = Field(default=1.0, ge=1e-3)

    @model_validator(mode="after")
    def _whole_number_of_steps(self) -> RatingScale:
        steps = (self.high - self.low) / self.step
        if self.high <= self.low or steps > 1000 or abs(steps - round(steps)) > 1e-9:
            raise ValueError(
                f"a scale is LOW:HIGH:STEP with HIGH a whole number of steps (at most 1000) above LOW, "
                f"such as 1:5:1 or 0.5:5:0.5; this one is {self}"
            )
        return self

    @classmethod
    def parse(cls, text: str) -> RatingScale:
        """Read `LOW:HIGH:STEP` (step 1 when left out).

        Raises:
          SpecError: the text is not of that form.
        """
        try:
            low, high, step = (float(part) for part in (text if text.count(":") > 1 else f"{text}:1").split(":"))
            return cls(low=low, high=high, step=step)
        except ValueError:
            raise SpecError(
                f"the scale is written LOW:HIGH:STEP with HIGH a whole number of steps above LOW; "
                f"found {quoted(text)}. Try --scale 1:5:1, or 0.5:5:0.5 for half stars."
            ) from None

    @property
    def levels(self) -> Doubles:
        """Every value a rating can have; shape (n_levels,)."""
        # Rounded, so that 0.1 steps give 0.3 as a file has it and not 0.1 * 3.
        return np.round(self.low + self.step * np.arange(round(self.width / self.step) + 1, dtype=np.float64), 9)

    @property
    def midpoint(self) -> float:
        return (self.low + self.high) / 2

    @property
    def width(self) -> float:
        return self.high - self.low

    def level_of(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Index into `levels` of each value; shape as `values`. Values off the scale go to the nearest end."""
        nearest = np.rint((np.asarray(values, dtype=np.float64) - self.low) / self.step)
        return np.clip(nearest, 0, len(self.levels) - 1).astype(np.int64)

    def clip(self, values: NDArray[Any]) -> Doubles:
        return np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}:{self.step:g}"


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The list of items, in the order of V's rows, with titles and features.

    Args:
      items: shape (n_items,), unique labels.
      titles: shape (n_items,), empty strings where unknown.
      features: shape (n_items, n_features), zero or one for a tag; no columns when there are none.
      feature_names: one per column of `features`.
      public: whether the list is known without the ratings. When it had to be read off the ratings
        it is private information, and every guarantee that relies on it becomes conditional.
    """

    items: tuple[str, ...]
    titles: tuple[str, ...]
    features: Floats
    feature_names: tuple[str, ...] = ()
    public: bool = True

    @classmethod
    def of_items(cls, items: list[str], *, public: bool) -> Catalogue:
        return cls(tuple(items), ("",) * len(items), np.zeros((len(items), 0), np.float32), public=public)

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {item: row for row, item in enumerate(self.items)}


@dataclass(frozen=True)
class Grouped:
    """Ratings sorted by user or by item: row r owns the entries start[r]:start[r + 1].

    Args:
      start: shape (n_rows + 1,).
      other: shape (n,), the index on the other side (item for a user's row, user for an item's).
      values: shape (n,), rating units.
    """

    start: NDArray[np.int64]
    other: Ints
    values: Floats

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.start)


class Private:
    """What cannot be pickled, so that nothing can store it in passing."""

    def __reduce__(self) -> NoReturn:
        raise NotReleasable("ratings are private and are not pickled, so that nothing can store them in passing.")


@dataclass(frozen=True, eq=False, repr=False)
class Ratings(Private):
    """Private ratings in coordinate form; immutable, 12 bytes a rating besides the labels and preferences.

    Args:
      users: shape (n,), int32 rows into `user_labels`.
      items: shape (n,), int32 rows into `catalogue`.
      values: shape (n,), float32, rating units.
      user_labels: one per user.
      catalogue: the items, public or not (see Catalogue).
      scale: the declared scale.
      own_epsilon: shape (n,), what each rating's person asked for, not yet capped; None without preferences.
        Private like the ratings: `PrivacySpecification.epsilon_of` is the one reader.
      batch: what a release of these ratings adds to which releases before; None where it stands alone.
    """

    users: Ints
    items: Ints
    values: Floats
    user_labels: tuple[str, ...]
    catalogue: Catalogue
    scale: RatingScale
    own_epsilon: Doubles | None = None
    batch: Batch | None = None

    def __post_init__(self) -> None:
        for column in (self.users, self.items, self.values, self.own_epsilon):
            if column is not None:
                column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<private ratings on the scale {self.scale}>"

    @property
    def n_users(self) -> int:
        return len(self.user_labels)

    @property
    def n_items(self) -> int:
        return len(self.catalogue)

    @cached_property
    def by_user(self) -> Grouped:
        return _grouped(self.users, self.items, self.values, self.n_users)

    @cached_property
    def by_item(self) -> Grouped:
        return _grouped(self.items, self.users, self.values, self.n_items)

    def where(self, keep: Mask) -> Ratings:
        """The ratings marked in `keep` (shape (n,)), among the same users and items."""
        return replace(
            self,
            users=self.users[keep],
            items=self.items[keep],
            values=self.values[keep],
            own_epsilon=None if self.own_epsilon is None else self.own_epsilon[keep],
            batch=None if self.batch is None else self.batch.where(keep),
        )


def _grouped(rows: Ints, other: Ints, values: Floats, n_rows: int) -> Grouped:
    order = np.argsort(rows, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))])
    return Grouped(start, other[order], values[order])
