"""The ledger: what was promised, what was paid, and what may be, in an append-only SQL table.

A release goes reserve -> commit -> publish. The cost of everything a run will release is reserved in one transaction
before a rating is read, if the budget has room for it; each bill is committed just before its fit, and from then on
counts as spent whatever happens. A reservation that is not used is cancelled. A committed one whose release failed
stays spent until somebody says, with `void`, why nothing can have left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from uuid import uuid4

from dp_accounting import DpEvent

from models.errors import (
    BudgetExceeded,
    EnvironmentFault,
    InternalFault,
    LedgerDoubted,
    NotReleasable,
    Refused,
    SpecError,
    quoted,
    shown,
)
from models.privacy.accounting import Spent, spending
from models.privacy.budget import Budget
from models.privacy.specification import Relation, Unit
from tasks.ledger_book import Book, Head, Page
from tasks.ledger_entries import (
    COUNTED,
    MAY_FOLLOW,
    SPENT,
    Charge,
    Entry,
    Events,
    Purpose,
    State,
    budget_in,
    budget_row,
    charge_row,
    entries_on,
    latest,
)
from tasks.ledger_witness import remember, require_remembered
from tasks.state import State as StateFolder


class Ledger:
    """The ledger of a state folder, or the one that JALI_LEDGER_URL names; made where it is missing.

    Raises:
      EnvironmentFault: the database cannot be opened or written.
      LedgerDoubted: it is not as it was written, or another version of Jali wrote it.
    """

    def __init__(self, state: StateFolder) -> None:
        self._state = state
        self._book = Book(state)

    def reserve(
        self, bills: Sequence[Sequence[Charge]], *, ids: Sequence[str] | None = None, require_budget: bool = False
    ) -> list[Reservation]:
        """Set aside the cost of all `bills`, each all that one release costs, or of none of them.

        Args:
          ids: what the reservations are to be called, each a name that was never used.
          require_budget: whether a source without a budget is refused.

        Raises:
          BudgetExceeded: there is no room for all of them.
          NotReleasable: a budget could not count one of them, or is required and missing.
          LedgerDoubted: the source has a budget in another ledger, or in a longer version of this one.
        """
        names = list(ids) if ids is not None else [uuid4().hex for _ in bills]
        with self._book.writing() as page:
            for source in dict.fromkeys(charge.source for bill in bills for charge in bill):
                charges = [charge for bill in bills for charge in bill if charge.source == source]
                self._require_room(page, source, charges, require_budget=require_budget)
            page.append(
                [
                    {**charge_row(charge), "reservation": name, "state": "reserve", "note": ""}
                    for name, bill in zip(names, bills, strict=True)
                    for charge in bill
                ]
            )
        made = zip(names, (bill[0] for bill in bills), strict=True)
        return [Reservation(self, name, charge.source, charge.recommender, "reserve") for name, charge in made]

    def _require_room(self, page: Page, source: str, charges: Sequence[Charge], *, require_budget: bool) -> None:
        require_remembered(self._state, source, page, self._state.ledger_url)
        rows = entries_on(page)
        budget = budget_in(rows, source)
        if budget is None:
            if require_budget:
                raise NotReleasable(
                    f"{shown(source)} has no budget, and this job releases nothing without one (require_budget). "
                    "Nothing was charged and no rating was read. Set a budget, for example with "
                    f"`jali ledger budget {shown(source)} --epsilon 1`."
                )
            return
        for charge in charges:
            budget.require(source, charge.amount, accepted=bool(charge.accepted))
        before = [entry.amount for entry in latest(rows) if entry.source == source and entry.state in COUNTED]
        budget.require_room(source, before, [charge.amount for charge in charges])

    def reservation(self, name: str) -> Reservation:
        """The reservation called `name`, or whose name alone begins so.

        Raises:
          SpecError: there is none, or there are several.
        """
        found = {entry.reservation: entry for entry in self.entries() if entry.reservation.startswith(name)}
        if len(found) != 1 or len(name) < LEAST_ID:
            what = "several charges begin" if len(found) > 1 and len(name) >= LEAST_ID else "no charge begins"
            raise SpecError(
                f"in this ledger {what} with {quoted(name)} (at least {LEAST_ID} characters). "
                "`jali ledger show` lists them."
            )
        (entry,) = found.values()
        return Reservation(self, entry.reservation, entry.source, entry.recommender, entry.state)

    def void(self, name: str, reason: str) -> Reservation:
        """Take a charge back whose release never left, saying why that is sure.

        Raises:
          SpecError: there is no such charge, or no reason is given.
          Refused: it was published, given back or voided.
        """
        require_reason(reason)
        reservation = self.reservation(name)
        if "void" not in MAY_FOLLOW[reservation.state]:
            how = {"publish": "published, and what was released cannot be taken back", "cancel": "given back already"}
            raise Refused(f"this charge was {how.get(reservation.state, 'voided already')}. Nothing was changed.")
        reservation._become("void", reason.strip())
        return reservation

    def entries(self, source: str | None = None) -> list[Entry]:
        """Every charge in its latest state, oldest change first; all sources when none is named."""
        return [entry for entry in latest(self.history(source)) if entry.state != "budget"]

    def history(self, source: str | None = None) -> list[Entry]:
        """Every row."""
        return [entry for entry in entries_on(self._book.page()) if source in (None, entry.source)]

    @property
    def head(self) -> Head:
        return self._book.page().head

    def require_holds(self, heads: Iterable[Head], reservations: Iterable[str]) -> None:
        """Raise LedgerDoubted unless this ledger has all these rows and reservations, and counts those as spent."""
        page = self._book.page()
        seals = {(page.head.ledger, row["seq"], row["seal"]) for row in page.rows}
        stands = {row["reservation"]: row["state"] for row in page.rows}
        names = list(reservations)
        if all(tuple(head) in seals for head in heads) and all(name in stands for name in names):
            for name in names:
                _require_spent(name, stands[name])
            return
        raise LedgerDoubted(
            "the registry has releases of this source that this ledger does not know or does not know so: it is empty, "
            "shorter than it was, or another one. What was spent is not in it. Restore the ledger that paid for them "
            "(JALI_LEDGER_URL, or .jali/ledger.db with .jali/ledger.key)."
        )

    def require_remembered(self, source: str) -> None:
        """Raise LedgerDoubted where another ledger, or a longer version of this one, keeps the source's budget."""
        require_remembered(self._state, source, self._book.page(), self._state.ledger_url)

    def budget(self, source: str) -> Budget | None:
        """What may ever be spent on it; None: nobody has said."""
        return budget_in(self.history(source), source)

    def set_budget(self, source: str, budget: Budget, reason: str = "") -> bool:
        """Say what may ever be spent on a source, from now on; False where this account cannot remember it.

        Raises:
          SpecError: the source has a budget of another kind.
          BudgetExceeded: more is spent or reserved already.
        """
        with self._book.writing() as page:
            require_remembered(self._state, source, page, self._state.ledger_url)
            rows = entries_on(page)
            before = budget_in(rows, source)
            if before is not None and not before.is_like(budget):
                raise SpecError(
                    f"{shown(source)} has a budget, {before}, and two budgets for one source are not kept. Raise or "
                    "lower the one it has, with the same unit and relation."
                )
            spent = budget.spent([e.amount for e in latest(rows) if e.source == source and e.state in COUNTED])
            if spent > budget.most:
                raise BudgetExceeded(
                    f"a budget of {budget} would be less than the {spent:.4g} that is spent or reserved on "
                    f"{shown(source)} already. Nothing was changed."
                )
            page.append([budget_row(source, budget, reason)])
            head = page.head
        return self._remember(source, head)

    def spent(self, source: str, *, unit: Unit, relation: Relation, delta: float | None = None) -> Spent:
        """What was committed so far on `source`, claimed.

        A release that protects a user protects each of the user's ratings as well: it counts for both units.
        """
        counted = [entry for entry in self.entries(source) if entry.state in SPENT and entry.unit in (unit, "user")]
        return spending([entry.amount for entry in counted], relation, delta)

    def _move(self, name: str, after: State, note: str, events: Events | None = None) -> bool:
        """Record it; False where this account cannot remember that the ledger has grown."""
        with self._book.writing() as page:
            rows = [entry for entry in latest(entries_on(page)) if entry.reservation == name]
            before = rows[0].state if rows else "void"
            if rows and before == "void":
                raise Refused("this charge was voided meanwhile: nothing of it is released. Nothing was recorded.")
            if after not in MAY_FOLLOW[before]:
                raise InternalFault(f"a reservation cannot go from {before} to {after}; nothing was recorded.")
            source = rows[0].source
            has_budget = budget_in(entries_on(page), source) is not None
            if events is not None:
                _require_reserved(rows, *events)
                if has_budget and not self._remember(source, page.head):  # found out before anything is spent
                    raise _forgetful(source, "Nothing was charged.")
            page.append([{**asdict(entry), "state": after, "note": note} for entry in rows])
            head = page.head
        return not has_budget or self._remember(source, head)

    def _remember(self, source: str, head: Head) -> bool:
        return remember(self._state, source, head, self._state.ledger_url)


def require_reason(reason: str) -> None:
    """Raise SpecError where no reason is given for voiding a charge."""
    if not reason.strip():
        raise SpecError("a charge is voided with a reason: say with --reason why nothing of the release can have left.")


LEAST_ID = 6


class Reservation:
    """The right to one fit. What was not reserved cannot be fitted."""

    def __init__(self, ledger: Ledger, name: str, source: str, recommender: str, state: State) -> None:
        self.ledger = ledger
        self.id, self.source, self.recommender, self.state = name, source, recommender, state

    @property
    def head(self) -> Head:
        """The ledger's newest row."""
        return self.ledger.head

    def commit(self, recommender: str, event: DpEvent, metrics: DpEvent | None = None) -> None:
        """Spend it on this fit, and on its metrics. From here on it stays spent.

        Raises:
          NotReleasable: something else was reserved; nothing was recorded.
          EnvironmentFault: the source has a budget, and this account cannot remember what is spent of it.
        """
        events: dict[Purpose, str] = {"release": str(event)}
        if metrics is not None:
            events["private metrics"] = str(metrics)
        if not self._become("commit", events=(recommender, events)):
            self.failed("spent; nothing was fitted")
            raise _forgetful(self.source, "It was charged and nothing was fitted: `jali ledger void` takes it back.")

    def require_committed(self, source: str, recommender: str) -> None:
        """Raise NotReleasable unless this paid for a fit of `recommender` on `source` that is not yet published."""
        if (self.state, self.source, self.recommender) != ("commit", source, recommender):
            raise NotReleasable(
                f"no fit of {recommender} on {source} was paid for with this reservation (state: {self.state}). "
                "A release is published with the reservation that was committed for it."
            )

    def published(self, as_what: str) -> None:
        self._become("publish", as_what)

    def close(self) -> None:
        """Give back what was not spent; mark as failed what was spent and not published."""
        if self.state == "reserve":
            self._become("cancel")
        elif self.state == "commit":
            self.failed("spent; nothing was published")

    def failed(self, note: str) -> None:
        self._become("fail", note)

    def _become(self, after: State, note: str = "", *, events: Events | None = None) -> bool:
        is_remembered = self.ledger._move(self.id, after, note, events)
        self.state = after
        return is_remembered


def _forgetful(source: str, charged: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"{shown(source)} has a budget, and this account could not remember what is spent of it: its own folder, "
        f"~/.local/state/jali or what XDG_STATE_HOME says, cannot be written. {charged} Mend that and run again."
    )


def _require_spent(name: str, stands: State) -> None:
    if stands not in SPENT:
        what = {"void": "voided", "cancel": "given back"}.get(stands, "never spent")
        raise LedgerDoubted(
            f"the registry has a version whose charge was {what} (its tag ledger.reservation says {name}): what it "
            "cost is not in this ledger's sums. Delete that version if nobody can have seen it; otherwise restore the "
            "ledger as it was when the version was made."
        )


def _require_reserved(rows: Sequence[Entry], recommender: str, events: Mapping[Purpose, str]) -> None:
    reserved: dict[Purpose, str] = {"release": rows[0].event}  # a bill begins with what the fit itself costs
    reserved |= {entry.purpose: entry.event for entry in rows if entry.purpose == "private metrics"}
    if (recommender, events) != (rows[0].recommender, reserved):
        wanted, found = (" with metrics at ".join(each.values()) for each in (events, reserved))
        raise NotReleasable(
            f"{recommender} at {wanted} is not what was reserved: {rows[0].recommender} at {found}. "
            "Reserve what is to be fitted."
        )
