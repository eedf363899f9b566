"""Who may ask the Prefect servers that Jali starts: whoever can read `.jali/prefect.key`.

Who may ask them may have any command run by a worker, and without a password every account of this machine could, and
every web page that is open on it. All servers of a folder share a database, so they share the password too.
"""

from __future__ import annotations

import os
from http import HTTPStatus

from models.errors import EnvironmentFault
from tasks.private_key import private_key
from tasks.state import State, without_credentials


def password(state: State) -> str:
    """What the servers of this folder ask for, as Prefect's login page takes it."""
    key = private_key(state.folder / "prefect.key", "remove it, and start again what runs in this folder")
    return f"jali:{key.hex()}"


def asks_own_server(state: State) -> bool:
    """Whether the Prefect server that is asked is this folder's, whatever its port is today."""
    return os.environ.get("PREFECT_API_AUTH_STRING") == password(state)


def server_asked(state: State) -> str:
    """The Prefect server that is asked, as it may be stored; empty for this folder's own, whose port changes."""
    return "" if asks_own_server(state) else without_credentials(os.environ.get("PREFECT_API_URL", ""))


def address_asked() -> str:
    """The same as it is told."""
    return without_credentials(os.environ.get("PREFECT_API_URL", "an unknown address"))


def fault_of_a_stranger(error: BaseException) -> EnvironmentFault | None:
    """What to say where the Prefect server that is asked does not know us; None where something else is wrong."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return None
    return EnvironmentFault(
        f"the Prefect server at {address_asked()} does not know us. Set PREFECT_API_AUTH_STRING to its USER:PASSWORD, "
        "or PREFECT_API_KEY for Prefect Cloud, and try again."
    )
