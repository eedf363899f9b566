"""A lock that many machines share and that nobody has to unlock: a row in the ledger's database, with an end.

Whoever holds it may be killed: then it ends by itself. By the database's clock, so that no two machines disagree. It
takes no longer transaction than two statements: payments go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import sqlalchemy as sa

from models.errors import AnotherRun, JaliError
from tasks.ledger_book import Book
from tasks.state import State

SECONDS = 60.0
"""Longer than any step between two renewals takes, and as long as everybody waits for one who was killed."""

_leases = sa.Table(
    "leases",
    sa.MetaData(),  # not the ledger's: its rows are never changed, and these are
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("holder", sa.String, nullable=False),
    sa.Column("who", sa.String, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
)
_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
}


@dataclass(frozen=True)
class Lease:
    """The right to do what `name` says, for a while."""

    book: Book
    name: str
    holder: str
    seconds: float

    def renew(self) -> None:
        """For as long again, from now.

        Raises:
          AnotherRun: it had ended, and somebody else has it or had it since.
        """
        with self.book.beside() as connection:
            extended = (
                sa.update(_leases)
                .where(_leases.c.name == self.name, _leases.c.holder == self.holder)
                .values(until=_now(connection) + self.seconds)
            )
            is_ours = connection.execute(extended).rowcount == 1
        if not is_ours:
            raise AnotherRun(f"{self.name} took too long, and somebody else began it meanwhile. Look, and do it again.")

    def give_back(self) -> None:
        with self.book.beside() as connection:
            connection.execute(sa.delete(_leases).where(_leases.c.name == self.name, _leases.c.holder == self.holder))


@contextmanager
def lease(state: State, name: str, who: str, seconds: float = SECONDS) -> Iterator[Lease]:
    """Hold the lease called `name` until the block ends, or not at all.

    Args:
      name: what is done under it, as a sentence may begin.
      who: is told to whoever is refused meanwhile.
      seconds: from now, or from when it is renewed.

    Raises:
      AnotherRun: somebody else holds it.
      EnvironmentFault: the ledger's database does not answer.
    """
    own = Lease(Book(state), name, uuid4().hex, seconds)
    _take(own, who)
    try:
        yield own
    finally:
        with suppress(JaliError):  # it ends by itself
            own.give_back()


def _take(own: Lease, who: str) -> None:
    with own.book.beside() as connection:
        _leases.create(connection, checkfirst=True)
        now = _now(connection)
        held = connection.execute(sa.select(_leases).where(_leases.c.name == own.name)).one_or_none()
        # An end further away than any is: the clock was put back since, and nobody should wait until it catches up.
        is_free = held is None or not now < held.until <= now + max(own.seconds, SECONDS)
        if is_free:
            connection.execute(sa.delete(_leases).where(_leases.c.name == own.name))
            new = {"name": own.name, "holder": own.holder, "who": who, "since": now, "until": now + own.seconds}
            connection.execute(_leases.insert(), new)
    if held is not None and not is_free:
        since = datetime.fromtimestamp(held.since, UTC)
        raise AnotherRun(
            f"{own.name} is under way already: {held.who} began it at {since:%H:%M:%S} UTC. Nothing was changed. Wait "
            f"until it is done, {held.until - now:.0f} seconds at the most if it was killed, and look what came of it."
        )


def _now(connection: sa.Connection) -> float:
    """Seconds, by the database's clock."""
    return float(connection.execute(sa.select(sa.literal_column(_NOW[connection.dialect.name]))).scalar_one())
