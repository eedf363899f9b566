from __future__ import annotations

from typing import Any, cast

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.utilities.callables import parameter_schema

from flows.refusals import named_refusals
from flows.run import run
from models.errors import (
    AnotherRun,
    BudgetExceeded,
    EnvironmentFault,
    InternalFault,
    JaliError,
    LedgerDoubted,
    NotPromoted,
    SpecError,
    ValidationFailed,
)


def ended_by(error: BaseException) -> State[Any]:
    @named_refusals
    def flow_function() -> None:
        raise error

    return cast("State[Any]", flow_function())


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (BudgetExceeded("why"), "Refused: budget"),
        (ValidationFailed(["why"]), "Refused: validation"),
        (AnotherRun("why"), "Refused: another run"),
        (NotPromoted("why"), "Refused: promotion"),
        (LedgerDoubted("why"), "Refused"),
        (SpecError("why"), "Refused: settings"),
        (EnvironmentFault("why"), "Failed: environment"),
        (InternalFault("why"), "Failed"),
    ],
)
def test_a_refusal_is_a_failed_state_with_its_name_and_our_sentence(error: JaliError, name: str) -> None:
    state = ended_by(error)
    assert (state.type, state.name, state.message) == (StateType.FAILED, name, "why")
    with pytest.raises(type(error), match="why"):
        state.result(_sync=True)


def test_a_state_says_nothing_of_what_another_exception_says() -> None:
    state = ended_by(ValueError("a rating of 4"))
    assert state.name == "Failed"
    assert state.message == "something failed that should not (ValueError); nothing more was published."


def test_an_interrupt_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        ended_by(KeyboardInterrupt())


def test_what_is_returned_is_returned() -> None:
    assert named_refusals(lambda number: number + 1)(1) == 2


def test_prefect_knows_the_types_of_the_parameters() -> None:
    schema = parameter_schema(run).model_dump_for_openapi()
    assert schema["properties"]["promote"]["type"] == "boolean"
    assert "Job" in schema["definitions"]
    run.validate_parameters({"job": {"source": "films"}, "promote": True})
