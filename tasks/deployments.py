"""Schedules, as Prefect keeps them: one deployment per source, run by workers of the pool `jali`.

What is stored there is shown to whoever opens Prefect: paths, names and settings, and no address with a password.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from httpx import HTTPError
from prefect import Flow, State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import (
    TERMINAL_STATES,
    ConcurrencyLimitStrategy,
    ConcurrencyOptions,
    FlowRun,
    StateType,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.server.schemas import schedules as served
from prefect.states import Crashed
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from models.errors import EnvironmentFault, SpecError, shown
from tasks.flow_runs import UNDER_WAY, is_alive, mark_killed
from tasks.prefect_access import address_asked, fault_of_a_stranger
from tasks.state import State as StateFolder
from tasks.state import without_credentials

POOL = "jali"
ADDRESSES = ("MLFLOW_TRACKING_URI", "JALI_LEDGER_URL")
NOT_MADE_UP_FOR = 100
"""How many missed runs are looked for at once."""

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
"""Of an interval, in seconds; the largest first."""

Timing = CronSchedule | IntervalSchedule


@dataclass(frozen=True)
class Scheduled:
    """A deployment, as people are told of it."""

    source: str
    when: str
    is_paused: bool
    promotes: bool
    next_times: tuple[datetime, ...]


@dataclass(frozen=True)
class Ended:
    """A run that came to its end."""

    id: str
    source: str
    at: datetime
    state: str
    sentence: str
    was_skipped: bool = False


@contextmanager
def _prefect() -> Iterator[SyncPrefectClient]:
    """A client of Prefect's API.

    Raises:
      EnvironmentFault: it does not do what it is asked.
    """
    fault = None
    try:
        with get_client(sync_client=True) as client:
            yield client
    except (HTTPError, PrefectException) as error:
        fault = fault_of_a_stranger(error) or EnvironmentFault(
            f"the Prefect server at {address_asked()} did not do what it was asked ({type(error).__name__}). Look "
            "after it and try again."
        )
    if fault:
        raise fault


def register(
    flow: Flow[..., Any], source: str, parameters: Mapping[str, Any], timing: Timing, state: StateFolder
) -> None:
    """Make the deployment of a source, or put this one in its place.

    Args:
      parameters: of the flow, as JSON.

    Raises:
      SpecError: another folder has one.
    """
    environment, _ = worker_environment(state)
    with _prefect() as client:
        _require_pool(client)
        _require_of_this_folder(client, source, state)
        client.create_deployment(
            client.create_flow(flow),
            source,
            description=f"Batches of {source}, released by Jali.",
            entrypoint=f"{flow.fn.__module__}.{flow.fn.__name__}",
            parameters=dict(parameters),
            parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
            enforce_parameter_schema=True,
            schedules=[DeploymentScheduleCreate(schedule=timing, active=True)],
            concurrency_limit=1,
            concurrency_options=ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
            work_pool_name=POOL,
            job_variables={
                "command": shlex.join([sys.executable, "-P", "-m", "flows.in_worker"]),
                "working_dir": _working_folder(state),
                "env": environment,
            },
            paused=False,
        )


def _working_folder(state: StateFolder) -> str:
    """Where runs that are registered here will run."""
    return str(state.folder.parent)


def _require_of_this_folder(client: SyncPrefectClient, source: str, state: StateFolder) -> None:
    """Two ledgers must not take turns under one name: whoever registered first would lose the schedule unheard."""
    found = _named(_deployments(client), source)
    if found and found.job_variables.get("working_dir") not in (None, _working_folder(state)):
        raise SpecError(
            f"{source} is scheduled on this Prefect server already, for runs in another folder. Give this one another "
            "name with --source; or, if it is to take that one's place, remove that first, with "
            f"jali schedule --remove {source}"
        )


def _require_pool(client: SyncPrefectClient) -> None:
    try:
        kind = client.read_work_pool(POOL).type
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=POOL, type=ProcessWorker.type, base_job_template=template))
        return
    if kind != ProcessWorker.type:
        raise EnvironmentFault(
            f"the work pool {POOL} of this Prefect server is of type {kind}, and Jali's runs need one of type "
            f"{ProcessWorker.type}. Remove it, and it is made anew."
        )


def worker_environment(state: StateFolder) -> tuple[dict[str, str], list[str]]:
    """Where a scheduled run finds what is there now, whatever its own environment says; and which addresses hold a
    password: these stay out, and the worker's environment must have them.
    """
    addresses = dict(zip(ADDRESSES, map(absolute, (state.tracking_uri, state.ledger_url)), strict=True))
    secret = [name for name, address in addresses.items() if without_credentials(address) != address]
    shared = {name: address for name, address in addresses.items() if name not in secret}
    return {**shared, "PREFECT_HOME": str(state.prefect_home), "XDG_STATE_HOME": str(state.own_folder.parent)}, secret


def absolute(address: str) -> str:
    """An address that means the same in every folder."""
    try:
        url = sa.make_url(address)
    except sa.exc.ArgumentError:  # a path, which MLflow takes too, and `file:` before it
        return address if "://" in address else str(Path(address.removeprefix("file:")).absolute())
    if url.get_backend_name() != "sqlite" or not url.database:
        return address
    return str(url.set(database=str(Path(url.database).absolute())))


def scheduled(sources: Sequence[str] | None = None) -> list[Scheduled]:
    """The deployments of the pool, by source; those named, or all."""
    with _prefect() as client:
        return [_told(one) for one in _deployments(client) if sources is None or one.name in sources]


def pause(source: str) -> None:
    with _prefect() as client:
        client.pause_deployment(_deployment(client, source).id)


def resume(source: str) -> None:
    with _prefect() as client:
        client.resume_deployment(_deployment(client, source).id)


def remove(source: str) -> None:
    """Remove it, and the runs that were still to come."""
    with _prefect() as client:
        found = _deployment(client, source)
        _give_up(client, _of([found], StateType.SCHEDULED))
        client.delete_deployment(found.id)


def take_over(state: StateFolder) -> int:
    """Mark the runs that the worker before left under way, remove those whose time passed while there was none, and
    say how many these are: they are not made up for.

    Only where no other worker is at work: a run that waits for its process looks like one that never got any. And of
    this folder alone: of another's runs one cannot see here whether they are alive.
    """
    mark_killed(state, "the next worker")
    with _prefect() as client:
        found = [one for one in _deployments(client) if one.job_variables.get("working_dir") == _working_folder(state)]
        if not found:
            return 0
        for run in client.read_flow_runs(flow_run_filter=_of(found, *UNDER_WAY)):
            if not is_alive(state, run.id):  # it would keep its turn, and none could begin
                client.set_flow_run_state(run.id, Crashed(message="its worker ended before it began"), force=True)
        missed = _of(found, StateType.SCHEDULED)
        missed.expected_start_time = FlowRunFilterExpectedStartTime(before_=datetime.now(UTC))
        return _give_up(client, missed)


def _give_up(client: SyncPrefectClient, which: FlowRunFilter) -> int:
    n_removed = 0
    while runs := client.read_flow_runs(flow_run_filter=which, limit=NOT_MADE_UP_FOR):
        for run in runs:
            client.delete_flow_run(run.id)
        n_removed += len(runs)
    return n_removed


def ended_since(moment: datetime, known: set[str]) -> list[Ended]:
    """Scheduled runs that came to their end since then, but for those known; oldest first."""
    with _prefect() as client:
        names = {one.id: one.name for one in _deployments(client)}
        if not names:
            return []
        which = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=list(names)),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(TERMINAL_STATES))),
        )
        runs = client.read_flow_runs(flow_run_filter=which, sort=FlowRunSort.END_TIME_DESC, limit=NOT_MADE_UP_FOR)
    return [
        _ended(names[run.deployment_id], run, run.state)
        for run in reversed(runs)
        if run.state and run.deployment_id and run.state.timestamp >= moment and str(run.id) not in known
    ]


def _ended(source: str, run: FlowRun, state: State[Any]) -> Ended:
    one = Ended(str(run.id), source, state.timestamp, str(state.name), state.message or "")
    if state.type == StateType.CRASHED:
        return replace(one, sentence="Its process was killed or lost; the next run takes up what it left.")
    if state.type == StateType.CANCELLED and "concurrency" in one.sentence:
        return replace(one, sentence="Skipped: the run before was still at work.", was_skipped=True)
    return one


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    return sorted(client.read_deployments(work_pool_filter=pool), key=lambda one: one.name)


def _named(deployments: Sequence[DeploymentResponse], source: str) -> DeploymentResponse | None:
    return next((one for one in deployments if one.name == source), None)


def _deployment(client: SyncPrefectClient, source: str) -> DeploymentResponse:
    found = _deployments(client)
    if one := _named(found, source):
        return one
    there_are = f"There are {', '.join(one.name for one in found)}." if found else "There are none."
    raise SpecError(f"no schedule of {shown(source)} is known. {there_are}")


def _of(deployments: Sequence[DeploymentResponse], *kinds: StateType) -> FlowRunFilter:
    return FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[one.id for one in deployments]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(kinds))),
    )


def _told(one: DeploymentResponse) -> Scheduled:
    timings = [schedule.schedule for schedule in one.schedules if schedule.active]
    known = [timing for timing in timings if isinstance(timing, CronSchedule | IntervalSchedule)]
    times = []
    for timing in known:
        with suppress(SpecError, LookupError):  # somebody changed it in Prefect, and the others are told all the same
            times += next_times(timing)
    when = ", ".join(in_words(timing) for timing in known) or "at no time of its own"
    return Scheduled(one.name, when, one.paused, bool(one.parameters.get("promote")), tuple(sorted(times)[:3]))


def in_words(timing: Timing) -> str:
    """The timing as it was written."""
    if isinstance(timing, CronSchedule):
        return f"{timing.cron} ({timing.timezone or 'UTC'})"
    seconds = int(timing.interval.total_seconds())
    unit, length = next((unit, length) for unit, length in UNITS.items() if seconds % length == 0)
    return f"every {seconds // length}{unit}"


def next_times(timing: Timing, n: int = 3) -> list[datetime]:
    """When it fires next.

    Raises:
      SpecError: never.
      LookupError: its timezone is not known.
    """
    kind = served.CronSchedule if isinstance(timing, CronSchedule) else served.IntervalSchedule
    try:
        return list(asyncio.run(kind.model_validate(timing.model_dump()).get_dates(n)))
    except (ValueError, OverflowError):  # croniter's, which looks fifty years ahead; of an interval of centuries
        raise SpecError(f"{in_words(timing)} never comes. Name a day that there is.") from None
