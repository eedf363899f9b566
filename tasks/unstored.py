"""How every task here is wrapped for Prefect: nothing cached, nothing stored, nothing tried twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE

Args = ParamSpec("Args")
Result = TypeVar("Result")


def unstored_task(function: Callable[Args, Result], name: str, *, run_name: str | None = None) -> Task[Args, Result]:
    """A Prefect task around `function`.

    Ratings and fitted models pass through tasks: a cache key would hash them and a stored result would
    pickle them. A second attempt would be a second look at the ratings, or a second version of one release.
    """
    wrap = task(name=name, task_run_name=run_name, retries=0, cache_policy=NO_CACHE, persist_result=False)
    return wrap(function)
