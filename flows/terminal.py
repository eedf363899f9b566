"""What every command starts with: the state folder, and a console that minds pipes."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from tasks.state import State


def prepared() -> State:
    """The state folder, made where it is missing, with the libraries' settings in place."""
    from tasks.state import prepare

    return prepare()


def console(*, stderr: bool = False, pipe_width: int = 80) -> Console:
    """A console as wide as the terminal; in a pipe there is no width to ask for."""
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            os._exit(128 + signal.SIGPIPE)  # `jali ... | head`: nobody reads on, and nothing was refused

    stream = sys.stderr if stderr else sys.stdout
    return PipedConsole(file=stream, width=None if stream.isatty() or os.environ.get("COLUMNS") else pipe_width)


def login_line(state: State) -> str:
    """What the login page of this folder's Prefect servers wants to hear."""
    from tasks.prefect_access import password

    return f"Prefect's login page takes {password(state)}"
