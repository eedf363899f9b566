"""How the command ends: one sentence and the right exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from models.errors import EnvironmentFault, InternalFault, JaliError
from tasks.prefect_access import fault_of_a_stranger
from tasks.progress import interrupt, is_interrupted

OF_PREFECTS_CLIENT = ("httpx", "httpcore", "prefect")
"""Whose exceptions say that the Prefect server is lost: tasks let none out but ours."""


INTERRUPTED = (
    "interrupted. Nothing is half-published; what was charged by then stays charged (jali ledger show), and what was "
    "fitted by then is published by the next run."
)


@contextmanager
def exit_codes(interrupted: str = INTERRUPTED) -> Iterator[None]:
    """End with one sentence and the right exit code, never with a traceback.

    Args:
      interrupted: what to say to whoever interrupts.
    """

    def remember(number: int, frame: object) -> None:
        interrupt()
        raise KeyboardInterrupt

    def report_unless_interrupted(lost: sys.UnraisableHookArgs) -> None:
        # In a destructor or a callback Python prints the interrupt and forgets it; the next step raises it again.
        if isinstance(lost.exc_value, Exception):
            sys.__unraisablehook__(lost)

    signal.signal(signal.SIGINT, remember)
    sys.unraisablehook = report_unless_interrupted
    try:
        try:
            yield
        except Exception:
            if is_interrupted():  # whatever it became on its way through a library
                raise KeyboardInterrupt from None
            raise
    except JaliError as error:
        typer.echo(f"jali: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo(f"jali: {interrupted}", err=True)
        sys.stdout.flush()
        os._exit(130)  # a fold under way cannot be stopped, and nobody should have to wait for it
    except (typer.Exit, typer.Abort, SystemExit):
        raise
    except Exception as error:
        if os.environ.get("JALI_DEBUG"):
            traceback.print_exc()
        if type(error).__module__.partition(".")[0] in OF_PREFECTS_CLIENT:
            _leave_prefect(error)
        fault = InternalFault(
            f"something failed that should not ({type(error).__name__}); nothing more was published. "
            "JALI_DEBUG=1 shows the details."
        )
        typer.echo(f"jali: {fault}", err=True)
        raise typer.Exit(fault.exit_code) from None


def remember_termination() -> None:
    """In a flow: note a SIGTERM, because Python may lose the exception that Prefect then raises as it may any other."""
    if threading.current_thread() is not threading.main_thread():
        return
    prefects = signal.getsignal(signal.SIGTERM)

    def remember(number: int, frame: FrameType | None) -> None:
        interrupt()
        if callable(prefects):
            prefects(number, frame)

    signal.signal(signal.SIGTERM, remember)


def _leave_prefect(error: Exception) -> NoReturn:
    """Say what is wrong and go at once: Prefect would stay for minutes to deliver its events to a server in vain."""
    fault = fault_of_a_stranger(error) or EnvironmentFault(
        "the Prefect server was lost during the run. What was published and charged by then stays "
        "(jali ledger show). Start it, or unset PREFECT_API_URL to let Jali run its own, and look before you run again."
    )
    typer.echo(f"jali: {fault}", err=True)
    sys.stdout.flush()
    os._exit(fault.exit_code)
