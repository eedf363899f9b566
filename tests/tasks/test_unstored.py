from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.states import Failed

from models.errors import EnvironmentFault, JaliError, SpecError
from tasks import unstored
from tasks.batches import open_batch_task
from tasks.kept_folds import evaluated_fold_task
from tasks.loading import load_task
from tasks.publishing import publish_task
from tasks.recovery import finish_interrupted_task
from tasks.registry import require_same_ledger_task
from tasks.tracking import log_evaluations_task, require_tracking_task
from tasks.training import deal_task, fit_and_keep_task
from tasks.unstored import may_be_tried_again
from tasks.validation import validate_task


def within(monkeypatch: pytest.MonkeyPatch, *, scheduled: bool) -> None:
    run = SimpleNamespace(flow_run=SimpleNamespace(deployment_id=uuid4() if scheduled else None))
    monkeypatch.setattr(unstored, "FlowRunContext", SimpleNamespace(get=lambda: run))


@pytest.mark.parametrize(
    ("scheduled", "error", "again"),
    [
        (True, EnvironmentFault("the server is away"), True),
        (False, EnvironmentFault("the server is away"), False),  # somebody waits for the answer
        (True, SpecError("it stays wrong"), False),
    ],
)
def test_a_scheduled_run_alone_tries_again_and_only_where_the_world_was_in_the_way(
    scheduled: bool, error: JaliError, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    within(monkeypatch, scheduled=scheduled)
    assert may_be_tried_again(load_task, None, Failed(data=error)) == again  # type: ignore[arg-type]


def test_outside_a_flow_nothing_is_tried_again() -> None:
    assert not may_be_tried_again(load_task, None, Failed(data=EnvironmentFault("away")))  # type: ignore[arg-type]


def test_what_spends_or_fits_or_publishes_is_never_tried_again() -> None:
    once = (
        open_batch_task,
        deal_task,
        evaluated_fold_task,
        fit_and_keep_task,
        publish_task,
        finish_interrupted_task,
        log_evaluations_task,
        validate_task,
    )
    assert {task.retries for task in once} == {0}
    assert {task.retries for task in (load_task, require_tracking_task, require_same_ledger_task)} == {2}
