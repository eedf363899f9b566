"""The ledger's table: rows that are only ever added, each sealed with a keyed hash of itself and the row above.

Whoever lacks the key cannot change, drop or insert a row without it showing. That rows are missing at the end shows
against what stands elsewhere: the head of the chain is a tag of every released version.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from models.errors import EnvironmentFault, LedgerDoubted, SpecError
from tasks.private_key import private_key
from tasks.state import State

FORMAT = 1
LEAST_KEY = 32

_metadata = sa.MetaData()
_about = sa.Table(
    "about",
    _metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("value", sa.String, nullable=False),
)
_entries = sa.Table(
    "entries",
    _metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.String, nullable=False),
    sa.Column("reservation", sa.String, nullable=False, index=True),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("source", sa.String, nullable=False),
    sa.Column("recommender", sa.String, nullable=False),
    sa.Column("purpose", sa.String, nullable=False),
    sa.Column("unit", sa.String, nullable=False),
    sa.Column("relation", sa.String, nullable=False),
    sa.Column("verdict", sa.String, nullable=False),
    sa.Column("claimed_epsilon", sa.Double),
    sa.Column("proven_epsilon", sa.Double),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("rho", sa.Double),
    sa.Column("fraction", sa.Double),
    sa.Column("series", sa.String, nullable=False),
    sa.Column("accepted", sa.String, nullable=False),
    sa.Column("event", sa.String, nullable=False),
    sa.Column("note", sa.String, nullable=False),
    sa.Column("seal", sa.String, nullable=False),
    sa.UniqueConstraint("reservation", "purpose", "state"),
)
_SEALED = [column.name for column in _entries.columns if column.name != "seal"]

for _action in ("UPDATE", "DELETE"):
    for _table in ("entries", "about"):
        sa.event.listen(
            _metadata,
            "after_create",
            sa.DDL(  # type: ignore[no-untyped-call]
                f"CREATE TRIGGER IF NOT EXISTS append_only_{_table}_{_action} BEFORE {_action} ON {_table} "
                "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
            ).execute_if(dialect="sqlite"),
        )
for _statement in (
    "CREATE OR REPLACE FUNCTION jali_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$",
    "CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries "
    "FOR EACH STATEMENT EXECUTE FUNCTION jali_append_only()",
    "CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON about "
    "FOR EACH STATEMENT EXECUTE FUNCTION jali_append_only()",
):
    sa.event.listen(_metadata, "after_create", sa.DDL(_statement).execute_if(dialect="postgresql"))  # type: ignore[no-untyped-call]

_ONE_WRITER = 0x6A616C69  # a number that nobody else locks in the same database


class Head(NamedTuple):
    """The newest row, by which a ledger can be told from every other and from every shorter one."""

    ledger: str
    seq: int
    seal: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.seal}"


class Page:
    """All rows, verified, and the place below them, within one transaction that nobody else writes in."""

    def __init__(self, connection: sa.Connection, key: bytes, ledger: str, rows: list[dict[str, Any]]) -> None:
        self._connection, self._key, self._ledger, self.rows = connection, key, ledger, rows

    @property
    def head(self) -> Head:
        return Head(self._ledger, len(self.rows), self.rows[-1]["seal"] if self.rows else self._ledger)

    def append(self, rows: Sequence[Mapping[str, object]]) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for row in rows:
            new = {**row, "at": now, "seq": len(self.rows) + 1}
            new["seal"] = _seal(self._key, self.head.seal, new)
            self._connection.execute(_entries.insert(), new)
            self.rows.append(new)


class Book:
    """Opens the database, making the tables where they are missing.

    Raises:
      EnvironmentFault: the database cannot be opened or written; nothing was recorded.
      LedgerDoubted: another version of Jali wrote it.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        try:
            self._engine = sa.create_engine(state.ledger_url, poolclass=sa.NullPool)  # a fork shares none
        except (SQLAlchemyError, ImportError, ValueError) as error:
            raise _unreachable(error) from None
        if self._engine.dialect.name not in ("sqlite", "postgresql"):
            raise SpecError(
                "a ledger is kept in SQLite or PostgreSQL; JALI_LEDGER_URL names another kind of database. "
                "Write sqlite:////home/me/ledger.db, or postgresql+psycopg://host/name."
            )
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _wait_for_the_lock_and_the_disk)
            sa.event.listen(self._engine, "begin", _lock_from_the_start)
        with self._transaction(reading=True) as connection:
            found = self._found(connection)
        if not found:
            with self._transaction() as connection:
                self._make(connection)
                found = self._found(connection)
        self.id = found

    @contextmanager
    def writing(self) -> Iterator[Page]:
        """One transaction: what is appended within is on the disk when the block ends, or nothing of it is.

        Raises:
          LedgerDoubted: a row is missing or not as it was written.
        """
        with self._transaction() as connection:
            yield self._page(connection)

    def page(self) -> Page:
        """All rows as they are now, to read."""
        with self._transaction(reading=True) as connection:
            return self._page(connection)

    @contextmanager
    def beside(self) -> Iterator[sa.Connection]:
        """One transaction, which has to be short, on tables beside the ledger's: payments wait for it."""
        with self._transaction() as connection:
            yield connection

    @contextmanager
    def _transaction(self, *, reading: bool = False) -> Iterator[sa.Connection]:
        try:
            with self._engine.execution_options(reading=reading).begin() as connection:
                if connection.dialect.name == "postgresql" and not reading:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ONE_WRITER)))
                yield connection
        except SQLAlchemyError as error:
            fault = _unreachable(error)
        else:
            return
        raise fault  # outside the handler: the statement with its values is nobody's context

    def _found(self, connection: sa.Connection) -> str:
        """The ledger's own number; "" where there is no ledger yet."""
        tables = sa.inspect(connection).get_table_names()
        if "about" not in tables:
            if "entries" in tables:
                raise LedgerDoubted(
                    "this ledger was written by a Jali before its first release, which this one does not read. Keep "
                    "the file, and name a new ledger with JALI_LEDGER_URL."
                )
            return ""
        about = {row.name: row.value for row in connection.execute(sa.select(_about))}
        written = about.get("format", "")
        if not written.isdigit() or int(written) > FORMAT:
            raise LedgerDoubted(
                f"this ledger has format {written[:20]} and this program reads up to {FORMAT}: a newer Jali wrote it. "
                "Upgrade Jali to use it."
            )
        return str(about["id"])

    def _make(self, connection: sa.Connection) -> None:
        if not self._found(connection):
            _metadata.create_all(connection)
            new = {"format": str(FORMAT), "id": secrets.token_hex(16)}
            connection.execute(_about.insert(), [{"name": name, "value": value} for name, value in new.items()])

    def _page(self, connection: sa.Connection) -> Page:
        found = connection.execute(sa.select(_entries).order_by(_entries.c.seq)).mappings().all()
        rows = [dict(row) for row in found]
        key = self._key(is_new=not rows)
        _require_chain(key, self.id, rows)
        return Page(connection, key, self.id, rows)

    def _key(self, *, is_new: bool) -> bytes:
        told = os.environ.get("JALI_LEDGER_KEY")
        if told is not None:
            if len(told) < LEAST_KEY:
                raise SpecError(f"JALI_LEDGER_KEY seals the ledger and takes at least {LEAST_KEY} characters.")
            return told.encode()
        file = self._state.ledger_key_file
        if not is_new and not file.exists():
            raise LedgerDoubted(
                f"the ledger has rows and its key is not here, so nothing shows that they are as they were written. "
                f"Restore {file}, or set JALI_LEDGER_KEY as where they were written."
            )
        return private_key(file, "the ledger's rows are sealed with it, so restore it from where you keep a copy")


def _require_chain(key: bytes, ledger: str, rows: Sequence[Mapping[str, Any]]) -> None:
    above = ledger
    for at, row in enumerate(rows, start=1):
        if row["seq"] != at:
            raise LedgerDoubted(
                f"row {at} of the ledger is missing, and what it held cannot be known. Restore it from a backup."
            )
        if not hmac.compare_digest(row["seal"], _seal(key, above, row)):
            raise LedgerDoubted(
                f"row {at} of the ledger is not as it was written"
                + (", or was sealed with another key (.jali/ledger.key, JALI_LEDGER_KEY)" if at == 1 else "")
                + ". Nothing is released on its word. Restore the ledger, with its key, from a backup."
            )
        above = row["seal"]


def _seal(key: bytes, above: str, row: Mapping[str, Any]) -> str:
    values = json.dumps([row[name] for name in _SEALED])
    return hmac.new(key, f"{above}\n{values}".encode(), "sha256").hexdigest()


def _unreachable(error: Exception) -> EnvironmentFault:
    reason = str(getattr(error, "orig", None) or type(error).__name__).split("\n", maxsplit=1)[0]
    return EnvironmentFault(
        f"the ledger cannot be used ({reason}). This step was not recorded, and nothing is released without it. "
        "Check JALI_LEDGER_URL (such as sqlite:////home/me/ledger.db), or the folder .jali."
    )


def _wait_for_the_lock_and_the_disk(connection: object, _: object) -> None:
    """Another process may be writing: wait for it. A commit returns once it is on the disk."""
    connection.isolation_level = None  # type: ignore[attr-defined]  # we begin transactions, not the driver
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA busy_timeout = 10000")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _lock_from_the_start(connection: sa.Connection) -> None:
    """What a transaction has read still holds when it writes. To read takes no lock, and no right to write."""
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get("reading") else "BEGIN IMMEDIATE")
