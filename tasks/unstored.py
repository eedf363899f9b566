"""How every task here is wrapped for Prefect: nothing cached, nothing stored, nothing tried twice that spends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.context import FlowRunContext
from prefect.utilities.annotations import opaque

from models.errors import EnvironmentFault

Args = ParamSpec("Args")
Result = TypeVar("Result")


def whole(value: Result) -> Result:
    """Pass `value` to a task as it is: Prefect would walk through all its labels, looking for futures."""
    return cast(Result, opaque(value))


RETRY_SECONDS = (5, 30)
"""Before a second and a third attempt at a step that spends nothing."""


def unstored_task(
    function: Callable[Args, Result], name: str, *, run_name: str | None = None, spends_nothing: bool = False
) -> Task[Args, Result]:
    """A Prefect task around `function`.

    Ratings and fitted models pass through tasks: a cache key would hash them and a stored result would
    pickle them. A second attempt would be a second look at the ratings, or a second version of one release.

    Args:
      spends_nothing: whether it comes before anything is paid or published, so that a scheduled run may try it again
        where the world was in the way.
    """
    wrap = task(
        name=name,
        task_run_name=run_name,
        retries=len(RETRY_SECONDS) if spends_nothing else 0,
        retry_delay_seconds=[*RETRY_SECONDS] if spends_nothing else None,
        retry_condition_fn=may_be_tried_again,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
    return wrap(function)


def may_be_tried_again(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Whether a server or a disk was in the way that may be back soon, and nobody sits and waits for the answer."""
    context = FlowRunContext.get()
    is_scheduled = context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None
    return is_scheduled and isinstance(state.data, EnvironmentFault)
