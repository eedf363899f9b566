"""Flow runs that were killed: Prefect shows them as running for ever, unless whoever comes next says that they are not.

`.jali/flow-runs/ID` is locked by the process of the flow run ID until it is gone, and with it the last chance to tell
Prefect how the run ended: the operating system lets go of the lock however the process dies. It holds the address of
the server that knows the run, empty for the folder's own. Whoever next asks that server removes the note.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Crashed

from tasks.prefect_access import server_asked
from tasks.state import State

UNDER_WAY = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
LONGEST_ADDRESS = 1 << 16


def note(state: State) -> None:
    """Let others know that this flow run is alive, while this process lives; before, mark those that are not."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None:
        return
    mark_killed(state, run.name)
    place = _folder(state) / str(run.id)
    part = place.with_name(f".{place.name}")
    lock = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # and never closed
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, server_asked(state).encode())
    part.rename(place)  # it is never seen without its lock


def mark_killed(state: State, taken_up_by: str) -> int:
    """Set the flow runs whose process is gone, and their tasks, to Crashed where Prefect knows them; returns how many.

    Where Prefect does not answer they are left to the next, and runs of another server to who asks that one.
    """
    n_marked, server = 0, server_asked(state)
    for place in sorted(_folder(state).glob("[!.]*")):
        lock = _take(place)
        if lock is None:
            continue
        try:
            if os.read(lock, LONGEST_ADDRESS).decode() != server:
                continue
            with suppress(HTTPError, PrefectException), get_client(sync_client=True) as client:
                n_marked += _mark(client, UUID(place.name), f"killed; taken up by {taken_up_by}")
                place.unlink(missing_ok=True)
        finally:
            os.close(lock)
    return n_marked


def is_alive(state: State, run: UUID) -> bool:
    """Whether a process is at work on it."""
    lock = _take(place := _folder(state) / str(run))
    if lock is None:
        return place.exists()
    os.close(lock)
    return False


def _mark(client: SyncPrefectClient, run: UUID, message: str) -> bool:
    try:
        state = client.read_flow_run(run).state
    except ObjectNotFound:  # deleted
        return False
    tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=list(UNDER_WAY)))),
    )
    for task in tasks:
        client.set_task_run_state(task.id, Crashed(message=message), force=True)
    if state is None or state.type not in UNDER_WAY:
        return False
    client.set_flow_run_state(run, Crashed(message=message), force=True)
    return True


def _folder(state: State) -> Path:
    folder = state.folder / "flow-runs"
    folder.mkdir(exist_ok=True)
    return folder


def _take(place: Path) -> int | None:
    """A descriptor that holds the note's lock; None where another process does, or the note is gone."""
    try:
        lock = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
