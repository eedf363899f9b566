"""How a flow ends when the answer is no: in a state named for it, with our sentence and no other text."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar, cast

from prefect import State
from prefect.states import Completed, Failed

from models.errors import (
    AnotherRun,
    BudgetExceeded,
    EnvironmentFault,
    JaliError,
    NotPromoted,
    Refused,
    SpecError,
    ValidationFailed,
)
from tasks.flow_runs import note
from tasks.state import current_state

Args = ParamSpec("Args")
Result = TypeVar("Result")

NAMES: dict[type[JaliError], str] = {
    BudgetExceeded: "Refused: budget",
    ValidationFailed: "Refused: validation",
    AnotherRun: "Refused: another run",
    NotPromoted: "Refused: promotion",
    Refused: "Refused",
    SpecError: "Refused: settings",
    EnvironmentFault: "Failed: environment",
}
"""What a flow's last state is called; the first that fits. All are of Prefect's type FAILED."""


def named_refusals(flow_function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Under `@flow`: end in a named state what a JaliError ends. Whoever called the flow gets the error all the same.

    And before anything else mark the runs that were killed. A flow that comes to its end says so with the `sentence`
    of what it returns, if that has one: Prefect stores it, so public things alone.
    Of any other exception Prefect is told the kind alone, for its text may quote what it met. No state keeps the
    error itself: Prefect stores what a state holds only of flows that persist results, and none of ours does.
    """

    @wraps(flow_function)
    def named(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        try:
            note(current_state())
            returned = flow_function(*args, **kwargs)
        except Exception as error:
            failed: State[Result] = Failed(name=state_name(error), message=_sentence(error), data=error)
            return cast(Result, failed)  # Prefect raises what it holds
        if sentence := getattr(returned, "sentence", None):
            return cast(Result, Completed(message=sentence, data=returned))
        return returned

    # Prefect looks the parameters' types up by their names, and would look for them here.
    named.__signature__ = signature(flow_function, eval_str=True)  # type: ignore[attr-defined]
    return named


def state_name(error: Exception) -> str:
    """What the state is called that `error` ends a flow in."""
    return next((name for kind, name in NAMES.items() if isinstance(error, kind)), "Failed")


def _sentence(error: Exception) -> str:
    if isinstance(error, JaliError):
        return str(error)
    return f"something failed that should not ({type(error).__name__}); nothing more was published."
