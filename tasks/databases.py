"""Read columns of a table, or of a query's answer, from any database that SQLAlchemy knows.

What a driver says may quote the query, the data or the password: none of it leaves. PostgreSQL and SQLite are asked
to refuse every change; elsewhere it is rolled back, where the database can.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, TypeVar

import pyarrow as pa
import sqlalchemy as sa

from models.errors import EnvironmentFault, JaliError, SpecError
from tasks.addresses import database_url
from tasks.sources import TableSource
from tasks.table import TEXT, as_text

ROWS_AT_ONCE = 10_000
ANSWER_SECONDS = 10

Answer = TypeVar("Answer")
Chooser = Callable[[list[str]], Mapping[str, int]]


def read_database(source: TableSource, choose: Chooser) -> tuple[list[str], dict[str, pa.ChunkedArray]]:
    """The names of all columns, and those that `choose` takes, as dictionary-encoded text; nothing is changed.

    Args:
      choose: from the names to the places of those wanted, under our names; may raise SpecError.

    Raises:
      SpecError: there is no such driver, table or column, or the query fails.
      EnvironmentFault: the database does not answer, or lets nobody in.
    """
    source.require("database")
    with _connected(source) as connection:
        fails = SpecError(
            f"the {'query' if source.query else 'table'} fails in the database {source.path}. What the database says "
            "may quote data and is not shown: try it in a client of the database, as the same user."
        )
        return _attempt(lambda: _read(connection, source, choose), fails)


@contextmanager
def _connected(source: TableSource) -> Iterator[sa.Connection]:
    url = database_url(source.path)
    no_driver = SpecError(
        f"no driver is installed for {source.path}. Jali comes with those for postgresql+psycopg and sqlite."
    )
    engine = _attempt(lambda: _engine(url), no_driver)
    no_answer = EnvironmentFault(
        f"the database {source.path} does not answer, or does not let this user in. Check the address, the user, the "
        "password's variable and that the server runs."
    )
    try:
        with _attempt(engine.connect, no_answer) as connection:
            yield connection.execution_options(postgresql_readonly=True)
    finally:
        engine.dispose()


def _engine(url: sa.URL) -> sa.Engine:
    patience = {"connect_timeout": ANSWER_SECONDS} if url.get_backend_name() == "postgresql" else {}
    patience = {name: value for name, value in patience.items() if name not in url.query}
    engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True, connect_args=patience)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _only_to_be_read)
    return engine


def _only_to_be_read(connection: sqlite3.Connection, _: object) -> None:
    """No query changes the file, and none makes another: to attach one that is missing makes it."""
    connection.execute("PRAGMA query_only = ON")
    connection.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK
    )


def _attempt(action: Callable[[], Answer], fault: JaliError) -> Answer:
    """What `action` gives, or `fault`: raised outside the handler, so that nothing foreign hangs on it."""
    try:
        return action()
    except JaliError:
        raise
    except Exception as error:
        if os.environ.get("JALI_DEBUG"):
            traceback.print_exception(error, file=sys.stderr)
    raise fault


def _read(
    connection: sa.Connection, source: TableSource, choose: Chooser
) -> tuple[list[str], dict[str, pa.ChunkedArray]]:
    streamed = connection.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE)
    if source.query:
        # As it stands: a colon or a percent sign in it is the database's and not ours.
        with streamed.exec_driver_sql(source.query, execution_options={"no_parameters": True}) as result:
            if not result.returns_rows:
                raise SpecError("the query gives no rows back. It should select the columns of a table.")
            names = list(result.keys())
            places = choose(names)
            return names, _columns(result, places)
    schema, _, table = str(source.table).rpartition(".")
    names = _column_names(connection, table, schema or None)
    if not names:
        raise SpecError(f"the database {source.path} has no table {source.table}. Check its name, and its schema.")
    places = choose(names)
    columns: list[sa.ColumnClause[Any]] = [sa.column(names[at]) for at in places.values()]
    with streamed.execute(sa.select(*columns).select_from(sa.table(table, schema=schema or None))) as result:
        return names, _columns(result, {name: at for at, name in enumerate(places)})


def _column_names(connection: sa.Connection, table: str, schema: str | None) -> list[str]:
    """Names of the columns of a table or view; none where there is no such table."""
    try:
        return [column["name"] for column in sa.inspect(connection).get_columns(table, schema=schema)]
    except sa.exc.NoSuchTableError:
        return []


def _columns(result: sa.CursorResult[Any], places: Mapping[str, int]) -> dict[str, pa.ChunkedArray]:
    """Column by column, a portion at a time."""
    chunks: dict[str, list[pa.Array]] = {name: [] for name in places}
    for rows in result.partitions(ROWS_AT_ONCE):
        for name, at in places.items():
            chunks[name].append(as_text(_array(list(map(itemgetter(at), rows)))))
    return {name: pa.chunked_array(arrays, TEXT) for name, arrays in chunks.items()}


def _array(values: Sequence[Any]) -> pa.Array:
    """The values as Arrow types them; where they are of several kinds, or of one it does not know, as text."""
    try:
        array = pa.array(values)
        return array if not pa.types.is_binary(array.type) else pa.array(map(_text, values), pa.string())
    except (pa.ArrowException, OverflowError):
        return pa.array(map(_text, values), pa.string())


def _text(value: Any) -> str | None:
    return None if value is None else value.hex() if isinstance(value, bytes) else str(value)
