"""`jali schedule` on the terminal: what is registered, when it runs next, and how each run ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from flows.terminal import login_line
from models.errors import EnvironmentFault, SpecError
from tasks.prefect_access import address_asked, asks_own_server
from tasks.servers import schedule_server, schedule_worker
from tasks.state import State

if TYPE_CHECKING:
    from flows.job import Job
    from tasks.deployments import Scheduled, Timing

LOOKS_SECONDS = 1.0
"""Between two looks at what ended."""
MOST_UNANSWERED = 30
"""In a row; then Prefect's server is lost."""
AT_WORK = "The `jali schedule` that is at work in this folder runs what is due."


@dataclass(frozen=True)
class Asked:
    """What `jali schedule` was told."""

    config: str | None = None
    cron: str | None = None
    timezone: str | None = None
    every: str | None = None
    source: str | None = None
    promote: bool = False
    pause: str | None = None
    resume: str | None = None
    remove: str | None = None
    listing: bool = False
    work: bool = False

    @property
    def changes(self) -> dict[str, str]:
        """What is to be done to schedules that are there, and to which."""
        told = {"pause": self.pause, "resume": self.resume, "remove": self.remove}
        return {name: source for name, source in told.items() if source is not None}

    def require_sense(self) -> None:
        """Raise SpecError where two things are asked that do not go together."""
        if self.config is None and (self.cron or self.every or self.timezone or self.source or self.promote):
            raise SpecError("name the configuration that is to run, as in `jali schedule CONFIG.yaml --every 1d`.")
        n_asked = (self.config is not None) + len(self.changes) + self.listing
        if n_asked > 1 or (self.work and (self.changes or self.listing)):
            raise SpecError("give one at a time: a CONFIG.yaml, --list, --pause, --resume, or --remove.")


def schedule(asked: Asked, state: State) -> None:
    """Do what was asked; where Prefect's server is ours, or with --work, go on until Ctrl-C.

    Raises:
      SpecError: something is wrong with what was asked, and nothing was registered.
      EnvironmentFault: Prefect does not answer.
    """
    asked.require_sense()
    with schedule_server(state) as (wait, is_ours):
        new = _understood(asked)
        wait()
        _changed(asked, state)
        if new:
            _registered(*new, promote=asked.promote, state=state)
        is_anything = _tell()
        looks_only = bool(asked.changes) or asked.listing
        if asked.work or (is_ours and is_anything and not looks_only):
            _work(state, is_ours=is_ours)
        elif new and not is_ours:
            _say_who_works(new[0], state)
        elif is_anything and is_ours:
            typer.echo("Nobody is at work here: `jali schedule` runs what is due.")
        elif is_anything and asks_own_server(state):
            typer.echo(AT_WORK)


def _understood(asked: Asked) -> tuple[Job, Timing] | None:
    if asked.config is None:
        return None
    from flows.schedule import scheduled_job, timing_of

    timing = timing_of(asked.cron, asked.timezone, asked.every)
    return scheduled_job(asked.config, asked.source, promote=asked.promote), timing


def _changed(asked: Asked, state: State) -> None:
    from tasks import deployments
    from tasks.kept_folds import forget_folds_of_nobody

    do: dict[str, Callable[[str], None]] = {
        "pause": deployments.pause,
        "resume": deployments.resume,
        "remove": deployments.remove,
    }
    for what, source in asked.changes.items():
        do[what](source)
        if what == "remove":
            forget_folds_of_nobody(state, source)
        typer.echo(f"{source}: {what}d.")


def _registered(job: Job, timing: Timing, *, promote: bool, state: State) -> None:
    from flows.run import run
    from flows.schedule import budget_lines, noise_lines, parameters_of
    from tasks.deployments import register
    from tasks.ledger import Ledger

    register(run, job.source, parameters_of(job, promote=promote), timing, state)
    for line in [*budget_lines(job, Ledger(state)), *noise_lines(job, timing)]:
        typer.echo(line)


def _tell() -> bool:
    """Print the schedules; returns whether there are any."""
    from tasks.deployments import scheduled

    found = scheduled()
    for one in found:
        typer.echo(schedule_line(one))
    if not found:
        typer.echo('Nothing is scheduled. For example: jali schedule CONFIG.yaml --cron "0 3 * * *"')
    return bool(found)


def schedule_line(one: Scheduled) -> str:
    """A schedule on a line of its own."""
    then = " and promotion" if one.promotes else ""
    moments = [f"{moment:%a %d %b %H:%M:%S %Z}" for moment in one.next_times]
    times = "paused" if one.is_paused else f"next {', '.join(moments) or 'never'}"
    return f"{one.source}: {one.when}{then}; {times}"


def _say_who_works(job: Job, state: State) -> None:
    from flows.schedule import variables_of
    from tasks.deployments import POOL, worker_environment

    if asks_own_server(state):
        typer.echo(AT_WORK)
        return
    _, missing = worker_environment(state)
    secret = [name for name in ("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY", "JALI_LEDGER_KEY") if name in os.environ]
    needed = ["PREFECT_API_URL", *missing, *secret, *variables_of(job)]
    typer.echo(f"It runs where a worker is: prefect worker start --pool {POOL}    (or jali schedule --work)")
    typer.echo(f"with {', '.join(needed)} in its environment" + (_why(missing) if missing else "") + ".")


def _why(missing: list[str]) -> str:
    return f" ({' and '.join(missing)} hold a password, which Prefect would store)"


@contextmanager
def _said(line: str) -> Iterator[None]:
    """Say it when Ctrl-C comes: what follows takes seconds."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(line)
        raise


def _work(state: State, *, is_ours: bool) -> None:
    """Keep a worker, and say how each run ends, until Ctrl-C."""
    from tasks.deployments import POOL, ended_since, take_over
    from tasks.flow_runs import mark_killed

    if is_ours and (n_missed := take_over(state)):
        typer.echo(f"{n_missed} runs were missed while nobody worked; they are not made up for.")
    address = address_asked().removesuffix("/api")
    known: set[str] = set()
    waiting: set[str] = set()
    n_unanswered = 0
    began = datetime.now(UTC)
    with suppress(KeyboardInterrupt), schedule_worker(state, POOL) as is_there, _said("Stopping ..."):
        typer.echo(f"Prefect {address}   Press Ctrl-C to stop; the schedules stay, and wait.")
        if asks_own_server(state):
            is_log = not sys.stdout.isatty()  # which others may read
            typer.echo("`jali ui` says what Prefect's login page takes." if is_log else login_line(state))
        while is_there():
            mark_killed(state, "the next run")
            try:
                ended, n_unanswered = ended_since(began, known), 0
            except EnvironmentFault:  # a busy machine; the runs go on without us
                ended, n_unanswered = [], n_unanswered + 1
                if n_unanswered > MOST_UNANSWERED:
                    raise
            for one in ended:
                known.add(one.id)
                if not (one.was_skipped and one.source in waiting):  # said once, until the run that is at work ends
                    typer.echo(f"{one.at:%H:%M:%S} {one.source}: {one.state}. {one.sentence}".rstrip())
                (waiting.add if one.was_skipped else waiting.discard)(one.source)
            time.sleep(LOOKS_SECONDS)
        raise EnvironmentFault(f"the worker ended; its output is in {state.folder / 'prefect-worker.log'}.")
