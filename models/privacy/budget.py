"""What may ever be spent on one source, and whether there is room for more."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from models.errors import BudgetExceeded, NotReleasable
from models.privacy.accounting import Amount, fractions_spent, spending
from models.privacy.guarantee import Guarantee
from models.privacy.specification import Epsilon, Relation, Unit


class Budget(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A bound on all releases of a source together, for each unit under the relation.

    Attributes:
      epsilon: None: everybody's own epsilon, of which all releases together take at most the whole.
    """

    epsilon: Epsilon | None
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    unit: Unit = "rating"
    relation: Literal["add_or_remove", "replace_value"] = "add_or_remove"

    @model_validator(mode="after")
    def _own_epsilons_are_of_ratings_that_come_or_go(self) -> Budget:
        if self.epsilon is None and self.relation != "add_or_remove":
            raise ValueError(
                "everybody's own epsilon is kept for ratings that are added or removed, as a changed one pays its own "
                "twice; leave --relation out"
            )
        return self

    def __str__(self) -> str:
        if self.epsilon is None:
            return "everybody's own epsilon"
        at = f" at δ={self.delta:g}" if self.delta else ""
        return f"ε={self.epsilon:g}{at} for each {self.unit} ({self.relation.replace('_', ' ')})"

    def is_like(self, other: Budget) -> bool:
        """Whether the two differ in how much they allow alone."""
        kinds = ((b.epsilon is None, b.unit, b.relation) for b in (self, other))
        return len(set(kinds)) == 1

    def counted(self, amounts: Sequence[Amount]) -> list[Amount]:
        """Those of which the budget keeps count: what protects a user protects each of the user's ratings as well."""
        return [amount for amount in amounts if amount.guarantee.unit in (self.unit, "user")]

    def spent(self, amounts: Sequence[Amount]) -> float:
        """How much of it these take: an epsilon, or a share of everybody's own."""
        counted = self.counted(amounts)
        if self.epsilon is None:
            return fractions_spent([amount for amount in counted if amount.fraction is not None])
        return spending(counted, self.relation, self.delta).epsilon

    @property
    def most(self) -> float:
        return 1.0 if self.epsilon is None else self.epsilon

    def left(self, amounts: Sequence[Amount]) -> float:
        """The largest that one more pure release, or one more share, may be; 0 where there is no room at all."""
        if self.epsilon is None:
            return max(1 - self.spent(amounts), 0.0)
        counted = self.counted(amounts)

        def with_one_more(epsilon: float) -> float:
            return spending([*counted, _pure(epsilon, self.unit, self.relation)], self.relation, self.delta).epsilon

        by_addition = spending(counted, self.relation, self.delta)
        low = max(self.epsilon - by_addition.epsilon, 0.0) if by_addition.by == "addition" else 0.0
        if not self.delta:
            return low
        high = self.epsilon
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if with_one_more(middle) <= self.epsilon else (low, middle)
        return low

    def require(self, source: str, amount: Amount, *, accepted: bool) -> None:
        """Raise NotReleasable unless the budget can count this amount, and it is proven or `accepted`."""
        promise = amount.guarantee
        if promise.unit not in (self.unit, "user"):
            raise NotReleasable(
                f"{amount.name} protects one {promise.unit}, and the budget of {source} is kept for each {self.unit}: "
                f"it cannot count this. Release with --unit {self.unit}, or leave {amount.name} out."
            )
        if promise.relation != self.relation and (promise.relation, self.relation) != (
            "add_or_remove",
            "replace_value",
        ):
            raise NotReleasable(
                f"{amount.name} promises nothing under {self.relation}, which the budget of {source} is kept in. "
                f"Leave {amount.name} out."
            )
        if promise.verdict != "proven" and not accepted:
            raise NotReleasable(
                f"{amount.name} is {promise.verdict}, and {source} has a budget: it counts what is proven. Leave "
                f"{amount.name} out, or say why it may be released all the same with --accept-unproven REASON, "
                "which is recorded."
            )
        if self.epsilon is None and amount.fraction is None:
            raise NotReleasable(
                f"the budget of {source} is everybody's own epsilon, and {amount.name} would take the same from all. "
                "Say what everybody's own is, with --policy or --preferences."
            )

    def require_room(self, source: str, before: Sequence[Amount], more: Sequence[Amount]) -> None:
        """Raise BudgetExceeded unless `more` fits beside what was spent or reserved before."""
        after = self.spent([*before, *more])
        if after <= self.most:
            return
        names = ", ".join(dict.fromkeys(amount.name for amount in more))
        option = "--fraction" if self.epsilon is None else "--epsilon"
        if after == inf:
            raise BudgetExceeded(
                f"{names} would cost a delta, of which the budget of {source}, {self}, has "
                f"{'less' if self.delta else 'none'}. Nothing was charged and no rating was read. Give it one, for "
                f"example with `jali ledger budget {source} --epsilon {self.most:g} --delta 1e-6 --unit {self.unit}`."
            )
        raise BudgetExceeded(
            f"{names} would bring {source} to {self.amount(after)}; its budget is {self}, of which "
            f"{self.amount(self.spent(before))} is spent or reserved and {self.amount(self.left(before))} is left. "
            f"Nothing was charged and no rating was read. Take a smaller {option}, or ask whoever keeps the budget."
        )

    def amount(self, number: float) -> str:
        """So much of it, in words."""
        return f"{number:.4g} times the whole" if self.epsilon is None else f"ε={number:.4g}"


def _pure(epsilon: float, unit: Unit, relation: Relation) -> Amount:
    promise = Guarantee(
        unit=unit, relation=relation, epsilon=epsilon, verdict="proven", sentence="", reference="docs/guarantees.md"
    )
    return Amount("one more", promise, epsilon**2 / 2)
