"""How every task here is wrapped for Prefect: nothing cached, nothing stored, nothing tried twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import opaque

Args = ParamSpec("Args")
Result = TypeVar("Result")


def whole(value: Result) -> Result:
    """Pass `value` to a task as it is: Prefect would walk through all its labels, looking for futures."""
    return cast(Result, opaque(value))


def unstored_task(function: Callable[Args, Result], name: str, *, run_name: str | None = None) -> Task[Args, Result]:
    """A Prefect task around `function`.

    Ratings and fitted models pass through tasks: a cache key would hash them and a stored result would
    pickle them. A second attempt would be a second look at the ratings, or a second version of one release.
    """
    wrap = task(name=name, task_run_name=run_name, retries=0, cache_policy=NO_CACHE, persist_result=False)
    return wrap(function)
