"""Databases of Prefect and MLflow with nothing in them, made once and copied: a first run takes eight seconds for them.

As a program: make them in the working folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from pathlib import Path

from tests.warm import run_warm

PREFECTS, MLFLOWS = Path("prefect", "prefect.db"), Path("mlflow.db")
"""In a state folder."""
place: list[Path] = []
"""A folder that all workers of pytest share; one, once they have begun."""


def give_tables(folder: Path) -> None:
    """To the working folder `folder` what a first run makes there; nothing where one has been, or none can write."""
    state = folder / ".jali"
    try:
        state.mkdir(mode=0o700)
    except OSError:
        return
    give_prefects_tables(state / PREFECTS.parent)
    shutil.copyfile(_made() / MLFLOWS, state / MLFLOWS)


def give_prefects_tables(home: Path) -> None:
    """To a Prefect server whose home is `home`."""
    home.mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(_made() / PREFECTS, home / PREFECTS.name)


def _made() -> Path:
    """A state folder with empty tables."""
    (shared,) = place
    with (shared / "tables.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = shared / "tables"
        if not made.exists():
            part = shared / "tables.part"
            part.mkdir()
            settings = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
            done = run_warm([], part, settings, 120, __file__)
            assert done.returncode == 0, done.stderr
            part.rename(made)
        return made / ".jali"


def _make() -> None:
    from tasks.state import prepare

    state = prepare()  # before Prefect and MLflow read their settings
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    _initialize_tables(create_sqlalchemy_engine(state.tracking_uri))


if __name__ == "__main__":
    _make()
