"""Keep what an exception says inside: Prefect stores exception texts, and a library's text may quote a value."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from models.errors import EnvironmentFault, InternalFault, JaliError

LOST = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")
"""MLflow's codes for a server that does not answer and a database that does not write; others are our mistakes.

While it opens its database MLflow passes on what SQLAlchemy says. Our own databases speak for themselves.
"""

Args = ParamSpec("Args")
Result = TypeVar("Result")


def guarded(stage: str) -> Callable[[Callable[Args, Result]], Callable[Args, Result]]:
    """Let only JaliErrors out of a function; anything else becomes a sentence that names `stage`.

    With JALI_DEBUG set, the original traceback is shown on the terminal and goes nowhere else.
    """

    def wrap(function: Callable[Args, Result]) -> Callable[Args, Result]:
        @wraps(function)
        def guarded_function(*args: Args.args, **kwargs: Args.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except JaliError:
                raise
            except Exception as error:
                if os.environ.get("JALI_DEBUG"):
                    traceback.print_exc(file=sys.stderr)
                fault = _fault(stage, error)
            raise fault  # outside the handler: no context for anybody to print

        return guarded_function

    return wrap


def _fault(stage: str, error: Exception) -> JaliError:
    if isinstance(error, OSError) and error.errno and error.errno in errno.errorcode:
        # The system's own words for the number: what the exception says, a library may have written.
        return EnvironmentFault(f"{stage} failed: {os.strerror(error.errno)}. Mend that and run again.")
    if isinstance(error, SQLAlchemyError) or getattr(error, "error_code", None) in LOST:
        return EnvironmentFault(
            f"{stage} failed: MLflow, or the disk or database behind it, no longer does its work. "
            "Look after it and run again; `jali ledger show` says what was spent."
        )
    return InternalFault(
        f"{stage} failed ({type(error).__name__}); this is a mistake of Jali's. Run again with JALI_DEBUG=1 to see "
        "the details on your terminal, and mind that they may quote ratings."
    )
