"""Who is promised what: an epsilon for every rating, or one for everything a user rated.

A rating's epsilon is never a function of its value, nor of which items were rated: it is one
number for all, or drawn from a keyed hash of (user, item), or what its person asked for.
"""

from __future__ import annotations

from math import frexp
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator

from models.errors import InternalFault, SpecError, shown
from models.privacy.keyed_hash import label_uniforms, pair_uniforms
from models.ratings import Doubles, Ratings

Unit = Literal["rating", "user"]
Relation = Literal["add_or_remove", "replace_value", "local"]

LEAST_EPSILON, MOST_EPSILON = 1e-6, 1e3
"""Beyond these nobody means it, and the arithmetic of scales and weights would run into the ends of floats."""

Epsilon = Annotated[float, Field(ge=LEAST_EPSILON, le=MOST_EPSILON)]
Delta = Annotated[float, Field(ge=1e-30, lt=1)]
Amount = TypeVar("Amount", float, Doubles)
LEAST_FRACTION = 1e-3
Fraction = Annotated[float, Field(ge=LEAST_FRACTION, le=1)]


class Level(BaseModel, frozen=True, extra="forbid"):
    """One of the epsilons that were declared, as far as a release charges it: from `low` to `high`.

    Attributes:
      share: of the ratings that have it; None where that is private.
    """

    name: str
    share: float | None = None
    low: float
    high: float

    def __str__(self) -> str:
        amount = f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        return f"{shown(self.name)} ε={amount}" + ("" if self.share is None else f" ({self.share:.0%})")


class Policy(BaseModel, frozen=True, extra="forbid"):
    """Conservative, moderate and liberal ratings (Zhang et al., KBS 183 (2019), section 5).

    A share `conservative` of the ratings draws its epsilon uniformly from
    [epsilon_conservative, epsilon_moderate), a share `moderate` from
    [epsilon_moderate, epsilon_liberal), and the rest has epsilon_liberal. With `group_by` user or
    item, all ratings of a user, or of an item, share one draw.
    """

    conservative: float = Field(default=0.54, ge=0, le=1)
    moderate: float = Field(default=0.37, ge=0, le=1)
    epsilon_conservative: Epsilon = 0.1
    epsilon_moderate: Epsilon = 0.2
    epsilon_liberal: Epsilon = 1.0
    group_by: Literal["rating", "user", "item"] = "rating"
    key: str = "jali"

    @model_validator(mode="after")
    def _shares_and_levels_in_order(self) -> Policy:
        if self.conservative + self.moderate > 1 + 1e-12:
            raise ValueError(
                "the shares conservative and moderate must add up to at most 1 (the rest is liberal); "
                f"found {self.conservative:g} + {self.moderate:g}"
            )
        if not self.epsilon_conservative <= self.epsilon_moderate <= self.epsilon_liberal:
            raise ValueError(
                "the levels must not decrease from epsilon_conservative over epsilon_moderate to epsilon_liberal; "
                f"found {self.epsilon_conservative:g}, {self.epsilon_moderate:g}, {self.epsilon_liberal:g}"
            )
        return self

    @property
    def liberal(self) -> float:
        return max(0.0, 1 - self.conservative - self.moderate)

    @property
    def pieces(self) -> tuple[tuple[float, float, float], ...]:
        """The mixture as (share, from, to): epsilon is uniform on [from, to) within each piece."""
        return (
            (self.conservative, self.epsilon_conservative, self.epsilon_moderate),
            (self.moderate, self.epsilon_moderate, self.epsilon_liberal),
            (self.liberal, self.epsilon_liberal, self.epsilon_liberal),
        )

    @property
    def levels(self) -> tuple[Level, ...]:
        """The pieces that some rating may have, by name."""
        named = zip(("conservative", "moderate", "liberal"), self.pieces, strict=True)
        return tuple(Level(name=n, share=share, low=low, high=high) for n, (share, low, high) in named if share > 0)

    def epsilon_at(self, uniforms: Doubles) -> Doubles:
        """The quantile function of the mixture; shapes alike, `uniforms` in [0, 1)."""
        shares = np.cumsum([0.0] + [share for share, _, _ in self.pieces])
        values = np.array([(low, high) for _, low, high in self.pieces])
        piece = np.clip(np.searchsorted(shares, uniforms, side="right") - 1, 0, len(values) - 1)
        low, high = values[piece, 0], values[piece, 1]
        width = np.maximum(shares[piece + 1] - shares[piece], 1e-300)
        result: Doubles = np.minimum(low + (high - low) * (uniforms - shares[piece]) / width, high)
        return result

    def uniforms_for(self, ratings: Ratings) -> Doubles:
        users, items = ratings.user_labels, ratings.catalogue.items
        if self.group_by == "user":
            return label_uniforms(self.key, users)[ratings.users]
        if self.group_by == "item":
            return label_uniforms(self.key, items)[ratings.items]
        return pair_uniforms(self.key, users, items, ratings.users, ratings.items)


class Preferences(BaseModel, frozen=True, extra="forbid"):
    """What is declared, and public, about a private table of what each person asked for.

    Nothing is ever computed from the table but the ratings' own epsilons: thresholds, shrinkage and labels
    come from what stands here.
    """

    default: Epsilon
    """The epsilon of whoever is not in the table."""
    cap: Epsilon | None = None
    """No epsilon exceeds it; larger ones count as the cap. Left out, it is the largest level."""
    levels: dict[str, Annotated[float, Field(ge=0, le=MOST_EPSILON)]] = Field(default_factory=dict)
    """Name to epsilon, where the table holds names and not numbers; 0 leaves a rating out."""

    @model_validator(mode="after")
    def _a_cap_above_the_default(self) -> Preferences:
        if any(name.strip().lower() in ("", "nan", "na", "null", "none") for name in self.levels):
            raise ValueError("a level may not be called none, null, na or nan, which stand for nothing in a table")
        if any(0 < epsilon < LEAST_EPSILON for epsilon in self.levels.values()):
            raise ValueError(f"a level is 0 (leave my ratings out) or at least {LEAST_EPSILON:g}; one is between")
        if self.cap is None and not any(self.levels.values()):
            raise ValueError(
                "declare a cap, the most that anybody's epsilon may be; or levels, where the table has such"
            )
        if self.default > self.largest:
            raise ValueError(
                f"the default epsilon, {self.default:g}, exceeds the cap of {self.largest:g} (the largest level where "
                "none is given); lower the default or raise the cap"
            )
        return self

    @property
    def largest(self) -> float:
        return max(self.levels.values()) if self.cap is None else self.cap

    @property
    def pieces(self) -> tuple[tuple[float, float, float], ...]:
        """What is assumed of the table: all levels and the default equally likely, or numbers uniform up to the cap."""
        if not self.levels:
            return ((1.0, 0.0, self.largest),)
        levels = [min(epsilon, self.largest) for epsilon in (*self.levels.values(), self.default)]
        return tuple((1 / len(levels), epsilon, epsilon) for epsilon in levels)

    @property
    def named_levels(self) -> tuple[Level, ...]:
        """What a person may have asked for, and what whoever did not has; how many did is private."""
        asked = [Level(name=name, low=epsilon, high=epsilon) for name, epsilon in self.levels.items()]
        if not asked:
            asked = [Level(name="asked for", low=0, high=self.largest)]
        return (*asked, Level(name="not asked", low=self.default, high=self.default))


class PrivacySpecification(BaseModel, frozen=True, extra="forbid"):
    """What one release may cost each rating (unit `rating`) or each user (unit `user`).

    Exactly one of `epsilon` (for everybody), `policy` and `preferences` (personalised) is given. `fraction` is
    the share of everybody's own epsilon that the release takes: all epsilons are multiplied by it.
    `delta` matters to Gaussian mechanisms alone.
    """

    epsilon: Epsilon | None = None
    policy: Policy | None = None
    preferences: Preferences | None = None
    unit: Unit = "rating"
    relation: Relation = "add_or_remove"
    delta: Delta = 1e-6
    fraction: Fraction = 1.0

    @model_validator(mode="after")
    def _one_source_of_epsilon(self) -> PrivacySpecification:
        if sum(given is not None for given in (self.epsilon, self.policy, self.preferences)) != 1:
            raise ValueError("give either one epsilon for all or a policy or a table of preferences, one of them alone")
        if self.unit == "user" and self.policy is not None:
            raise ValueError("a policy speaks of single ratings; with unit user give one epsilon for all")
        return self

    @property
    def personalised(self) -> bool:
        return self.epsilon is None

    @property
    def pieces(self) -> tuple[tuple[float, float, float], ...]:
        """The declared distribution of epsilon as (share, from, to), uniform within each piece."""
        if self.preferences is not None:
            return tuple((s, self._share(low), self._share(high)) for s, low, high in self.preferences.pieces)
        if self.policy is None:
            assert self.epsilon is not None
            return ((1.0, self._share(self.epsilon), self._share(self.epsilon)),)
        return tuple((s, self._share(low), self._share(high)) for s, low, high in self.policy.pieces if s > 0)

    def levels(self, charged: float) -> tuple[Level, ...]:
        """The declared levels as a release that charges at most `charged` charges them; none where all pay alike."""
        declared = self.policy.levels if self.policy else self.preferences.named_levels if self.preferences else ()

        def paid(epsilon: float) -> float:
            return min(self._share(epsilon), charged)

        levels = [level.model_copy(update={"low": paid(level.low), "high": paid(level.high)}) for level in declared]
        return tuple(levels) if len({bound for level in levels for bound in (level.low, level.high)}) > 1 else ()

    @property
    def largest_epsilon(self) -> float:
        """The most that any rating can be charged: declared, whatever the ratings are."""
        return max(high for _, _, high in self.pieces)

    @property
    def smallest_epsilon(self) -> float:
        """The least that a rating which takes part may be charged; 0 where people may ask for any number."""
        if self.preferences is not None and self.preferences.levels:
            return min(low for _, low, _ in self.pieces if low > 0)
        return min(low for _, low, _ in self.pieces)

    @property
    def smallest_declared_epsilon(self) -> float:
        """The same of the epsilons that somebody declared: among free numbers, the default."""
        if self.preferences is not None and not self.preferences.levels:
            return self._share(self.preferences.default)
        return self.smallest_epsilon

    @property
    def mean_epsilon(self) -> float:
        """Expectation over the declared distribution, in closed form; no rated pair and no preference is looked at."""
        return sum(share * (low + high) / 2 for share, low, high in self.pieces)

    def threshold(self, choice: Literal["max", "mean"] | float) -> float:
        """The epsilon of a mechanism that follows weighting or sampling: from what is declared, or a number."""
        if choice == "max":
            return self.largest_epsilon
        if choice == "mean":
            return self.mean_epsilon
        return self._share(choice)

    def epsilon_of(self, ratings: Ratings) -> Doubles:
        """Each rating's own epsilon for this release; shape (n,).

        Raises:
          InternalFault: preferences were declared, and the ratings were not joined with them.
        """
        if self.preferences is not None:
            if ratings.own_epsilon is None:
                raise InternalFault("preferences were declared and did not reach the ratings; nothing was fitted.")
            return self._share(np.minimum(ratings.own_epsilon, self.preferences.largest))
        if self.policy is None:
            return np.full(len(ratings), self.largest_epsilon)
        return self._share(self.policy.epsilon_at(self.policy.uniforms_for(ratings)))

    def _share(self, epsilon: Amount) -> Amount:
        """The fraction of an epsilon that somebody asked for, lowered by more than it may have been rounded up."""
        is_exact = frexp(self.fraction)[0] == 0.5  # a power of two
        return epsilon * self.fraction * (1 if is_exact else 1 - 2**-51)

    def weight_moments(self, threshold: float) -> tuple[float, float]:
        """E[w] and E[w^2] of w = min(1, epsilon / threshold) over the declared distribution."""
        first = second = 0.0
        for share, low, high in self.pieces:
            below = min(high, threshold)  # where the weight still grows
            if high == low:
                first += share * below / threshold
                second += share * (below / threshold) ** 2
                continue
            growing = max(below - low, 0.0) / (high - low)
            flat = share * (1 - growing)
            first += share * growing * (low + below) / (2 * threshold) + flat
            second += share * growing * (low**2 + low * below + below**2) / (3 * threshold**2) + flat
        return first, second

    def require(self, *, units: tuple[Unit, ...], relation: Relation, recommender: str) -> None:
        """Raise SpecError unless this specification is one that `recommender` can keep."""
        if self.unit not in units or self.relation != relation:
            raise SpecError(
                f"{recommender} protects one {' or one '.join(units)} under {relation}; the specification asks for "
                f"unit {self.unit} under {self.relation}. Change the specification or leave {recommender} out."
            )
