"""The ledger's lines: what a release will cost, and what a row says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from dp_accounting import DpEvent

from models.privacy.accounting import Amount, zcdp_of
from models.privacy.budget import Budget
from models.privacy.guarantee import Guarantee, Verdict
from models.privacy.specification import Relation, Unit
from tasks.ledger_book import Page

State = Literal["reserve", "commit", "publish", "cancel", "fail", "void", "budget"]
Purpose = Literal["release", "private metrics", "corrections", "withdrawal", "budget"]
Events = tuple[str, Mapping[Purpose, str]]
"""A recommender, and the events that a fit of it is paid for with."""

MAY_FOLLOW: dict[State, tuple[State, ...]] = {
    "reserve": ("commit", "cancel", "void"),
    "commit": ("publish", "fail", "void"),
    "publish": (),
    "cancel": (),
    "fail": ("void",),
    "void": (),
    "budget": (),
}
SPENT: tuple[State, ...] = ("commit", "publish", "fail")
COUNTED: tuple[State, ...] = ("reserve", *SPENT)
"""What a budget counts: nothing that is reserved may be promised twice."""


@dataclass(frozen=True)
class Charge:
    """One line of a bill: what a release will cost.

    Attributes:
      guarantee: of this amount; its epsilon, delta, unit and relation are what is charged.
      event: the same for an accountant.
      fraction: the share of everybody's own epsilon, where each has one.
      series: see Amount.
      accepted: why it may be released under a budget although it is not proven.
    """

    source: str
    recommender: str
    guarantee: Guarantee
    event: DpEvent
    fraction: float | None = None
    series: str = ""
    purpose: Purpose = "release"
    accepted: str = ""

    @property
    def amount(self) -> Amount:
        return Amount(self.recommender, self.guarantee, zcdp_of(self.event), self.fraction, self.series)


@dataclass(frozen=True)
class Entry:
    """A row: one charge, or one budget, in one state."""

    seq: int
    at: str
    reservation: str
    state: State
    source: str
    recommender: str
    purpose: Purpose
    unit: Unit
    relation: Relation
    verdict: Verdict
    claimed_epsilon: float | None
    proven_epsilon: float | None
    delta: float
    rho: float | None
    fraction: float | None
    series: str
    accepted: str
    event: str
    note: str

    @property
    def amount(self) -> Amount:
        """What the ledger remembers of it."""
        promise = Guarantee(
            unit=self.unit,
            relation=self.relation,
            epsilon=self.claimed_epsilon,
            delta=self.delta,
            verdict=self.verdict,
            sentence="",
            reference="",
        )
        return Amount(self.recommender, promise, self.rho, self.fraction, self.series)

    @property
    def budget(self) -> Budget:
        return Budget(epsilon=self.claimed_epsilon, delta=self.delta, unit=self.unit, relation=self.relation)

    @property
    def outcome(self) -> str:
        """What became of it, in a word or two."""
        words = {"reserve": "reserved", "commit": "spent"}
        if self.state == "cancel":
            return self.note or "given back"
        return words.get(self.state, f"void: {self.note}" if self.state == "void" else self.note)


def entries_on(page: Page) -> list[Entry]:
    """Every row, in its order."""
    return [Entry(**{name: value for name, value in row.items() if name != "seal"}) for row in page.rows]


def latest(rows: Iterable[Entry]) -> list[Entry]:
    """Of every charge the newest row, oldest change first."""
    newest = {(entry.reservation, entry.purpose): entry for entry in rows}
    return sorted(newest.values(), key=lambda entry: entry.seq)


def budget_in(rows: Iterable[Entry], source: str) -> Budget | None:
    """The one in force: what was said last."""
    told = [entry.budget for entry in rows if entry.state == "budget" and entry.source == source]
    return told[-1] if told else None


def charge_row(charge: Charge) -> dict[str, Any]:
    """The columns that say what a charge is for."""
    promise = charge.guarantee
    return {
        "source": charge.source,
        "recommender": charge.recommender,
        "purpose": charge.purpose,
        "unit": promise.unit,
        "relation": promise.relation,
        "verdict": promise.verdict,
        "claimed_epsilon": promise.epsilon,
        "proven_epsilon": promise.proven_epsilon,
        "delta": promise.delta,
        "rho": zcdp_of(charge.event),
        "fraction": charge.fraction,
        "series": charge.series,
        "accepted": charge.accepted,
        "event": str(charge.event),
    }


def budget_row(source: str, budget: Budget, reason: str) -> Mapping[str, object]:
    """A whole row."""
    return {
        "reservation": uuid4().hex,
        "state": "budget",
        "source": source,
        "recommender": "",
        "purpose": "budget",
        "unit": budget.unit,
        "relation": budget.relation,
        "verdict": "none",
        "claimed_epsilon": budget.epsilon,
        "proven_epsilon": None,
        "delta": budget.delta,
        "rho": None,
        "fraction": None,
        "series": "",
        "accepted": "",
        "event": "",
        "note": reason.strip(),
    }
