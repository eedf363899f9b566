"""How the command ends: one sentence and the right exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from models.errors import InternalFault, JaliError
from tasks.progress import interrupt, is_interrupted


@contextmanager
def exit_codes() -> Iterator[None]:
    """End with one sentence and the right exit code, never with a traceback."""

    def remember(number: int, frame: object) -> None:
        interrupt()
        raise KeyboardInterrupt

    def report_unless_interrupted(lost: sys.UnraisableHookArgs) -> None:
        # In a destructor or a callback Python prints the interrupt and forgets it; the next step raises it again.
        if not isinstance(lost.exc_value, KeyboardInterrupt):
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
        sentence = "interrupted. Nothing is half-published; what was charged by then stays charged (jali ledger show)."
        typer.echo(f"jali: {sentence}", err=True)
        sys.stdout.flush()
        os._exit(130)  # a fold under way cannot be stopped, and nobody should have to wait for it
    except (typer.Exit, typer.Abort, SystemExit):
        raise
    except Exception as error:
        if os.environ.get("JALI_DEBUG"):
            traceback.print_exc()
        fault = InternalFault(
            f"something failed that should not ({type(error).__name__}); nothing more was published. "
            "JALI_DEBUG=1 shows the details."
        )
        typer.echo(f"jali: {fault}", err=True)
        raise typer.Exit(fault.exit_code) from None
