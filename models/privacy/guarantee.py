"""A guarantee: what is promised, to whom, against whom, under which conditions, and what it is worth."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from models.privacy.specification import Level, PrivacySpecification, Relation, Unit

Verdict = Literal["proven", "conditional", "broken", "none"]

WORST_FIRST: tuple[Verdict, ...] = ("none", "broken", "conditional", "proven")

LEVELS_SHOWN = 10
"""A version's description holds 5,000 characters."""

DECLARED = (
    "the rating scale and the settings were declared without looking at these ratings "
    "(the defaults were chosen by hand on MovieLens 100K and 1M)"
)
RATED_ONCE = "a user rates an item at most once (validated)"
ASKED_BLINDLY = "what a person asked for does not depend on what they rated"


def shared_conditions(specification: PrivacySpecification) -> tuple[str, ...]:
    """What every guarantee rests on."""
    asked = (ASKED_BLINDLY,) if specification.preferences is not None else ()
    return (DECLARED, RATED_ONCE, *asked)


class Guarantee(BaseModel, frozen=True, extra="forbid"):
    """One differential-privacy statement about one release.

    Attributes:
      epsilon: the most that any one unit is charged; None where nothing is promised.
      least_epsilon: the least that one is charged, by declaration; as `epsilon` where all are alike, 0 where people
        may ask for any number up to it.
      levels: who is charged what in between, by declaration; empty where all are alike.
      delta: 0 for a pure guarantee.
      observers: who may see the release without the promise being broken.
      conditions: what must hold besides, in plain words.
      weaknesses: those of them for which the verdict is less than proven.
      reference: where the proof is.
    """

    unit: Unit | None
    relation: Relation | None
    epsilon: float | None
    least_epsilon: float | None = None
    levels: tuple[Level, ...] = ()
    delta: float = 0.0
    observers: str = "anybody who holds the release, with any other knowledge"
    verdict: Verdict
    conditions: tuple[str, ...] = ()
    weaknesses: tuple[str, ...] = ()
    sentence: str
    reference: str

    @classmethod
    def nothing(cls, reference: str) -> Guarantee:
        return cls(
            unit=None,
            relation=None,
            epsilon=None,
            observers="nobody",
            verdict="none",
            sentence="Nothing is promised: this is a baseline for comparison and is never published.",
            reference=reference,
        )

    @property
    def protects(self) -> str:
        """What is protected, in a few words for a table."""
        if self.unit is None or self.relation is None:
            return "nothing"
        return f"one {self.unit}, {self.relation.replace('_', ' ')}"

    @property
    def epsilon_summary(self) -> str:
        """What is charged in a few characters, for tables and names."""
        if self.epsilon is None:
            return "-"
        most = f"{self.epsilon:.4g}"
        if self.least_epsilon is None or self.least_epsilon == self.epsilon:
            return most
        return f"≤{most}" if self.least_epsilon == 0 else f"{self.least_epsilon:.3g}..{most}"

    @property
    def declared_levels(self) -> str:
        """The levels in a line, or the first of very many; empty where there are none."""
        rest = len(self.levels) - LEVELS_SHOWN
        more = [f"and {rest} more"] if rest > 0 else []
        return "; ".join([*map(str, self.levels[:LEVELS_SHOWN]), *more])

    @property
    def tags(self) -> dict[str, str]:
        """For the version of a release."""
        return {
            "privacy.epsilon": self.epsilon_summary,
            "privacy.delta": f"{self.delta:g}",
            "privacy.unit": str(self.unit),
            "privacy.relation": str(self.relation),
            "privacy.verdict": self.verdict,
            "privacy.guarantee": self.sentence,
            "privacy.conditions": "; ".join(self.conditions),
        }

    @property
    def proven_epsilon(self) -> float | None:
        """Epsilon where it is proven; None where it is only claimed, or not even that."""
        return self.epsilon if self.verdict == "proven" else None

    def weakened(self, verdict: Verdict, condition: str) -> Guarantee:
        """The same promise with one more condition, and no better verdict than `verdict`."""
        update = {
            "verdict": min(self.verdict, verdict, key=WORST_FIRST.index),
            "conditions": (*self.conditions, condition),
            "weaknesses": (*self.weaknesses, condition),
        }
        return self.model_copy(update=update)
