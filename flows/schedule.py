"""`jali schedule`: what is to run again and again, and when, understood before Prefect hears of it."""

from __future__ import annotations

import re
from datetime import timedelta
from math import sqrt
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from pydantic import ValidationError

from flows.job import Job, candidates, make_job, read_config
from flows.run import bill, releasable
from flows.run_view import require_one_to_promote
from models.errors import BudgetExceeded, SpecError, quoted
from tasks.addresses import VARIABLE, is_web
from tasks.deployments import UNITS, Timing, next_times
from tasks.ledger import Ledger
from tasks.ledger_entries import COUNTED
from tasks.paths import home_path
from tasks.sources import TableSource

FIELDS = {"minute": 60, "hour": 24, "day of the month": 31, "month": 12, "day of the week": 7}
"""Of a cron line, with how many values each has."""
CRON_EXAMPLE = 'For example --cron "0 3 * * *", every day at three.'
EVERY_EXAMPLE = "A number and s, m, h or d, up to 366d, such as --every 5m."
LONGEST = timedelta(days=366)
MONTH, SOME_RUNS = timedelta(days=30), 8
"""For how long noise is added up, and over how many runs the time between them is averaged."""
MOST_RUNS = 200
"""How far ahead a budget is looked at."""


def timing_of(cron: str | None, timezone: str | None, every: str | None) -> Timing:
    """When to run.

    Raises:
      SpecError: it is said twice, or not at all, or cannot be understood.
    """
    if (cron is None) == (every is None):
        said = "and found both" if cron else "and found neither"
        raise SpecError(f"a schedule takes --cron or --every, {said}. {CRON_EXAMPLE} {EVERY_EXAMPLE}")
    if every is not None:
        if timezone is not None:
            raise SpecError("--timezone is of --cron; what comes again after --every needs none. Leave it out.")
        return _interval(every)
    assert cron is not None
    timing = CronSchedule(cron=_require_cron(cron), timezone=_require_timezone(timezone or "UTC"))
    next_times(timing, 1)  # what never comes is no schedule
    return timing


def _interval(every: str) -> IntervalSchedule:
    found = re.fullmatch(r"([1-9][0-9]{0,7})([smhd])", every)
    interval = timedelta(seconds=int(found[1]) * UNITS[found[2]]) if found else None
    if interval is None or interval > LONGEST:
        raise SpecError(f"--every takes {EVERY_EXAMPLE[0].lower()}{EVERY_EXAMPLE[1:-1]}; found {quoted(every)}.")
    return IntervalSchedule(interval=interval)


def _require_cron(cron: str) -> str:
    fields = cron.split()
    if len(fields) != len(FIELDS):
        raise SpecError(f"--cron takes five fields ({', '.join(FIELDS)}); found {quoted(cron)}. {CRON_EXAMPLE}")
    for at, (field, (name, n_values)) in enumerate(zip(fields, FIELDS.items(), strict=True)):
        alone = ["*"] * len(FIELDS)
        alone[at] = field
        if not (field.isascii() and _is_cron(" ".join(alone)) and _fires_as_it_reads(field, n_values)):
            raise SpecError(f"--cron has {quoted(field)} for the {name}, which is none. {CRON_EXAMPLE}")
    return " ".join(fields)


def _is_cron(text: str) -> bool:
    try:
        return bool(CronSchedule(cron=text))
    except ValidationError:
        return False


def _fires_as_it_reads(field: str, n_values: int) -> bool:
    """Whether no step is longer than the field, and no range goes backwards: Prefect takes `*/90` for `0`."""
    for part in field.split(","):
        first_to_last, _, step = part.partition("/")
        found = re.fullmatch("([0-9]+)-([0-9]+)", first_to_last)
        if int(step or 1) > n_values or (found and int(found[1]) > int(found[2])):
            return False
    return True


def _require_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
        every_minute = CronSchedule(cron="* * * * *", timezone=name)
        next_times(every_minute, 1)  # fewer timezones are known to what fires
        return str(every_minute.timezone)
    except (
        ValidationError,
        ValueError,
        OSError,
        KeyError,
    ):  # what ZoneInfo says of a name that is a folder, or is none
        fault = SpecError(
            f"--timezone {quoted(name)} is not known. For example --timezone Europe/Vienna; UTC is default."
        )
    raise fault


def scheduled_job(config: str, source: str | None, *, promote: bool = False) -> Job:
    """The job of a configuration file, for runs that nobody watches: batches unless it says `batch: false`, and paths
    that mean the same in every folder.

    Raises:
      SpecError: a setting is wrong, or cannot be kept run after run.
    """
    told = read_config(config)
    if source is not None:
        told["source"] = source
    job = _in_batches(told) if "batch" not in told else make_job(told)
    if promote:
        require_one_to_promote(job.recommenders, publishes=job.publish)
    for table in (job.ratings, job.privacy.preferences):
        if table is not None and table.checksum is not None:
            raise SpecError(
                "a checksum is of one file as it is now, and a schedule reads what comes after it too. Leave it out."
            )
    return _anywhere(job)


def _in_batches(told: dict[str, Any]) -> Job:
    try:
        return make_job({**told, "batch": {}})
    except SpecError as error:
        fault = error
    make_job(told)  # what is wrong with it in any case is said as it is
    raise SpecError(
        f"a schedule releases batches, so that no rating pays twice, and this configuration cannot: {fault} Or say "
        "`batch: false` in it: every run is then paid for anew."
    )


def _anywhere(job: Job) -> Job:
    """The job with absolute paths, and the name it has."""
    privacy = job.privacy
    if privacy.preferences:
        privacy = privacy.model_copy(update={"preferences": _table_anywhere(privacy.preferences)})
    return job.model_copy(
        update={
            "ratings": _table_anywhere(job.ratings) if job.ratings else None,
            "items": _absolute(job.items) if job.items else None,
            "report": _absolute(job.report) if job.report else None,
            "privacy": privacy,
        }
    )


def _table_anywhere(table: TableSource) -> TableSource:
    if table.is_database or is_web(table.path):
        return table
    return table.model_copy(update={"path": _absolute(table.path)})


def _absolute(path: str) -> str:
    return str(Path(home_path(path)).absolute())


def variables_of(job: Job) -> list[str]:
    """The environment variables that stand for something in its addresses."""
    tables = [table for table in (job.ratings, job.privacy.preferences) if table is not None]
    return list(dict.fromkeys(name for table in tables for name in VARIABLE.findall(table.path)))


def parameters_of(job: Job, *, promote: bool) -> dict[str, Any]:
    """The flow's parameters as Prefect stores them."""
    return {"job": job.model_dump(mode="json"), "promote": promote}


def budget_lines(job: Job, ledger: Ledger) -> list[str]:
    """After how many runs the budget is used up, where every run is paid for anew; nothing is reserved."""
    budget = ledger.budget(job.source)
    if budget is None or not job.publish:
        return []
    paid = [entry.amount for entry in ledger.entries(job.source) if entry.state in COUNTED]
    releases = releasable(job, budget)
    chosen = [candidate for candidate in candidates(job, releases) if releases(candidate.guarantee)]
    each = [charge.amount for candidate in chosen for charge in bill(job, candidate)]
    for n_runs in range(MOST_RUNS):
        try:
            budget.require_room(job.source, paid, each)
        except BudgetExceeded:
            return [f"The budget of {job.source}, {budget}, has room for {_runs(n_runs)}; then runs are refused."]
        paid += each
    return []


def noise_lines(job: Job, timing: Timing) -> list[str]:
    """How much noisier V is after a month of batches; they are released whether or not anything is new."""
    if not job.batch or not job.publish:
        return []
    try:
        times = next_times(timing, SOME_RUNS)
    except SpecError:  # so rare that the calendar ends before
        return []
    n_batches = round(MONTH * (SOME_RUNS - 1) / (times[-1] - times[0]))
    if n_batches < 2:
        return []
    return [
        f"About {n_batches:,} batches in {MONTH.days} days, each with noise of its own, also where nothing is new: "
        f"what V is made from then has {sqrt(n_batches):.1f} times the noise of one."
    ]


def _runs(n_runs: int) -> str:
    return {0: "no run", 1: "one run"}.get(n_runs, f"{n_runs} runs")
