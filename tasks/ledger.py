"""The ledger: what was paid, for which release of which data, in an append-only SQL table.

A release goes reserve -> commit -> publish. The cost of everything a run will release is reserved in
one transaction before a rating is read; each reservation is committed just before its fit, and from
then on it counts as spent whatever happens. A reservation that is not used is cancelled; a committed
one whose release failed is marked so, and stays spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp
from typing import Literal, NamedTuple
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from models.errors import EnvironmentFault, InternalFault, NotReleasable
from models.privacy.guarantee import Guarantee, Verdict
from models.privacy.specification import Relation, Unit

State = Literal["reserve", "commit", "publish", "cancel", "fail"]

MAY_FOLLOW: dict[State, tuple[State, ...]] = {
    "reserve": ("commit", "cancel"),
    "commit": ("publish", "fail"),
    "publish": (),
    "cancel": (),
    "fail": (),
}
SPENT: tuple[State, ...] = ("commit", "publish", "fail")

_metadata = sa.MetaData()
_entries = sa.Table(
    "entries",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.String, nullable=False),
    sa.Column("reservation", sa.String, nullable=False, index=True),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("source", sa.String, nullable=False),
    sa.Column("recommender", sa.String, nullable=False),
    sa.Column("unit", sa.String, nullable=False),
    sa.Column("relation", sa.String, nullable=False),
    sa.Column("verdict", sa.String, nullable=False),
    sa.Column("claimed_epsilon", sa.Float, nullable=False),
    sa.Column("proven_epsilon", sa.Float),
    sa.Column("delta", sa.Float, nullable=False),
    sa.Column("event", sa.String, nullable=False),
    sa.Column("note", sa.String, nullable=False),
    sa.UniqueConstraint("reservation", "state"),
)
for _action in ("UPDATE", "DELETE"):
    sa.event.listen(
        _metadata,
        "after_create",
        sa.DDL(  # type: ignore[no-untyped-call]
            f"CREATE TRIGGER IF NOT EXISTS append_only_{_action} BEFORE {_action} ON entries "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        ).execute_if(dialect="sqlite"),
    )


@dataclass(frozen=True)
class Charge:
    """What one release will cost: `event` describes it to an accountant, `guarantee` in words."""

    source: str
    recommender: str
    guarantee: Guarantee
    event: str


@dataclass(frozen=True)
class Entry:
    """The latest state of one reservation."""

    at: str
    reservation: str
    state: State
    source: str
    recommender: str
    unit: Unit
    relation: Relation
    verdict: Verdict
    claimed_epsilon: float
    proven_epsilon: float | None
    delta: float
    event: str
    note: str

    @property
    def guarantee(self) -> Guarantee:
        """What the ledger remembers of it."""
        return Guarantee(
            unit=self.unit,
            relation=self.relation,
            epsilon=self.claimed_epsilon,
            delta=self.delta,
            verdict=self.verdict,
            sentence="",
            reference="",
        )

    @property
    def outcome(self) -> str:
        """What became of it, in a word or two."""
        words = {"reserve": "reserved", "commit": "spent", "cancel": "given back"}
        return words.get(self.state, self.note)


class Spent(NamedTuple):
    """What releases cost by addition, each in its own relation, and whether that is all there is to say."""

    epsilon: float
    delta: float
    is_proven: bool
    """Whether it is, for every release; never where one promises nothing in this relation."""
    without_promise: tuple[str, ...] = ()
    """Recommenders released besides that promise nothing in this relation, so that nothing bounds the whole."""


def spending(releases: Iterable[tuple[str, Guarantee]], relation: Relation) -> Spent:
    """Add up (recommender, guarantee) under one relation.

    A changed rating is one removed and one added: what is private under add_or_remove costs it twice (group privacy).
    What is private under replace_value alone promises nothing to a rating that is added or removed.
    """
    epsilon = delta = 0.0
    is_proven, without = True, []
    for name, promise in releases:
        assert promise.epsilon is not None
        if promise.relation == relation:
            epsilon, delta = epsilon + promise.epsilon, delta + promise.delta
        elif relation == "replace_value" and promise.relation == "add_or_remove":
            twice = promise.delta * (1 + exp(promise.epsilon)) if promise.delta else 0.0
            epsilon, delta = epsilon + 2 * promise.epsilon, delta + twice
        else:
            without.append(name)
        is_proven &= promise.verdict == "proven"
    return Spent(epsilon, delta, is_proven and not without, tuple(dict.fromkeys(without)))


class Ledger:
    """Opens the database at `url`, making the table where it is missing.

    Raises:
      EnvironmentFault: the database cannot be opened or written; nothing was recorded.
    """

    def __init__(self, url: str) -> None:
        try:
            self._engine = sa.create_engine(url)
            if self._engine.dialect.name == "sqlite":
                sa.event.listen(self._engine, "connect", _wait_for_the_lock_and_the_disk)
                sa.event.listen(self._engine, "begin", _lock_from_the_start)
            _metadata.create_all(self._engine)
        except (SQLAlchemyError, ImportError, ValueError) as error:
            raise self._unreachable(error) from None

    def reserve(self, charges: Sequence[Charge]) -> list[Reservation]:
        """Set aside the cost of all `charges`, or of none of them. A budget is to be checked here, before writing."""
        rows: list[dict[str, object]] = [
            {
                "reservation": uuid4().hex,
                "source": charge.source,
                "recommender": charge.recommender,
                "unit": charge.guarantee.unit,
                "relation": charge.guarantee.relation,
                "verdict": charge.guarantee.verdict,
                "claimed_epsilon": charge.guarantee.epsilon,
                "proven_epsilon": charge.guarantee.proven_epsilon,
                "delta": charge.guarantee.delta,
                "event": charge.event,
            }
            for charge in charges
        ]
        self._append([{**row, "state": "reserve", "note": ""} for row in rows])
        return [Reservation(self, row) for row in rows]

    def entries(self, source: str | None = None) -> list[Entry]:
        """The latest state of every reservation, oldest first; all sources when none is named."""
        newest = sa.select(sa.func.max(_entries.c.id)).group_by(_entries.c.reservation)
        query = sa.select(_entries).where(_entries.c.id.in_(newest)).order_by(_entries.c.id)
        if source is not None:
            query = query.where(_entries.c.source == source)
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(query).mappings().all()
        except SQLAlchemyError as error:
            raise self._unreachable(error) from None
        return [Entry(**{name: value for name, value in row.items() if name != "id"}) for row in rows]

    def spent(self, source: str, *, unit: str, relation: Relation) -> Spent:
        """Epsilon and delta claimed and committed so far on `source`, by addition.

        A release that protects a user protects each of the user's ratings as well: it counts for both units.
        """
        counted = [entry for entry in self.entries(source) if entry.state in SPENT and entry.unit in (unit, "user")]
        return spending([(entry.recommender, entry.guarantee) for entry in counted], relation)

    def _append(self, rows: list[dict[str, object]]) -> None:
        if not rows:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            with self._engine.begin() as connection:
                connection.execute(_entries.insert(), [{**row, "at": now} for row in rows])
        except SQLAlchemyError as error:
            raise self._unreachable(error) from None

    def _move(self, row: dict[str, object], before: State, after: State, note: str) -> None:
        if after not in MAY_FOLLOW[before]:
            raise InternalFault(f"a reservation cannot go from {before} to {after}; nothing was recorded.")
        self._append([{**row, "state": after, "note": note}])

    def _unreachable(self, error: Exception) -> EnvironmentFault:
        reason = str(getattr(error, "orig", None) or type(error).__name__)
        return EnvironmentFault(
            f"the ledger cannot be used ({reason}). Nothing was recorded and nothing is released without it. "
            "Check JALI_LEDGER_URL (such as sqlite:////home/me/ledger.db), or the folder .jali."
        )


class Reservation:
    """The right to one fit. What was not reserved cannot be fitted."""

    def __init__(self, ledger: Ledger, row: dict[str, object]) -> None:
        self._ledger, self._row = ledger, row
        self.state: State = "reserve"

    @property
    def id(self) -> str:
        return str(self._row["reservation"])

    @property
    def recommender(self) -> str:
        return str(self._row["recommender"])

    def commit(self, recommender: str, event: str) -> None:
        """Spend it on this fit. From here on it stays spent.

        Raises:
          NotReleasable: something else was reserved; nothing was recorded.
        """
        reserved = self._row["recommender"], self._row["event"]
        if (recommender, event) != reserved:
            raise NotReleasable(
                f"{recommender} at {event} is not what was reserved: {reserved[0]} at {reserved[1]}. "
                "Reserve what is to be fitted."
            )
        self._become("commit")

    def require_committed(self, source: str, recommender: str) -> None:
        """Raise NotReleasable unless this paid for a fit of `recommender` on `source` that is not yet published."""
        if (self.state, self._row["source"], self._row["recommender"]) != ("commit", source, recommender):
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

    def _become(self, after: State, note: str = "") -> None:
        self._ledger._move(self._row, self.state, after, note)
        self.state = after


def _wait_for_the_lock_and_the_disk(connection: object, _: object) -> None:
    """Another process may be writing: wait for it. A commit returns once it is on the disk."""
    connection.isolation_level = None  # type: ignore[attr-defined]  # we begin transactions, not the driver
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA busy_timeout = 10000")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _lock_from_the_start(connection: sa.Connection) -> None:
    """What a transaction has read, such as whether the table exists, still holds when it writes."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")
