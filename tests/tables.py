"""MLflow's empty tables, made once in a process and copied from then on: making them anew takes over a second."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine

MLFLOWS = "mlflow.store.db.utils"
made: list[bytes] = []
"""The database as MLflow leaves it before anything is in it; at most one."""


def copy_tables_from_now_on() -> None:
    """Where MLflow is not imported yet nothing is done: whoever does not need it should not wait for it."""
    if MLFLOWS not in sys.modules or hasattr(sys.modules[MLFLOWS]._initialize_tables, "makes"):
        return
    makes = sys.modules[MLFLOWS]._initialize_tables

    def copies(engine: Engine) -> None:
        if engine.url.get_backend_name() != "sqlite" or not engine.url.database:
            makes(engine)
            return
        if not made:
            makes(engine)
            with closing(sqlite3.connect(engine.url.database)) as database:
                made.append(database.serialize())
            return
        with closing(sqlite3.connect(":memory:")) as empty, closing(sqlite3.connect(engine.url.database)) as database:
            empty.deserialize(made[0])
            empty.backup(database)

    copies.makes = makes  # type: ignore[attr-defined]
    sys.modules[MLFLOWS]._initialize_tables = copies
