"""Finishing what a run left that ended in the middle: nothing is charged twice, nothing that was paid for is lost."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from models.candidate import Candidate
from models.errors import JaliError, LedgerDoubted, SpecError
from models.private_metrics import PaidMetrics
from tasks.guard import guarded
from tasks.ledger import Ledger, Reservation
from tasks.ledger_entries import Charge, Entry
from tasks.publishing import publish, published_version, take_back
from tasks.runs import Pending, RunFolder, abandoned_runs
from tasks.state import State
from tasks.tracking import open_tracking
from tasks.unstored import unstored_task

if TYPE_CHECKING:
    from mlflow import MlflowClient


Receipt = frozenset[tuple[str, str, float | None, str]]


def receipt(bill: Iterable[Charge | Entry]) -> Receipt:
    """What a bill was for: releases with one recommender, specification and receipt are alike."""
    return frozenset((charge.purpose, str(charge.event), charge.fraction, charge.series) for charge in bill)


@dataclass(frozen=True)
class Finished:
    """What became of a reservation whose run was interrupted.

    Args:
      at: when the ledger last heard of it, UTC.
      paid: what for.
      data: what the run was told of the ratings.
      version: of the release, where that was kept or even published.
      kept: the release.
    """

    reservation_id: str
    source: str
    recommender: str
    at: str
    paid: Receipt
    gave_back: bool = False
    version: str | None = None
    kept: Pending | None = None
    data: str = ""

    @property
    def candidate(self) -> Candidate | None:
        return self.kept.candidate if self.kept else None

    @property
    def metrics(self) -> PaidMetrics | None:
        """Of the release, where they were paid for."""
        return PaidMetrics.of(self.kept.release) if self.kept else None

    @property
    def when(self) -> str:
        return f"the run that was interrupted on {self.at[:16].replace('T', ' at ')} UTC"

    @property
    def sentence(self) -> str:
        """What became of it, for the end of the run that finished it."""
        if self.gave_back:
            return f"{self.recommender} of {self.source}: what {self.when} had reserved was given back."
        if self.version:
            return (
                f"{self.source}.{self.recommender} v{self.version} is published from {self.when}; "
                "nothing was charged again."
            )
        return (
            f"{self.recommender} of {self.source} was paid for by {self.when}, and nothing of it was kept. It stays "
            f"charged; `jali ledger void {self.reservation_id} --reason ...` is for when nothing can have left."
        )


def something_was_interrupted(state: State) -> bool:
    """Whether `finish_interrupted` has anything to do."""
    with closing(abandoned_runs(state)) as runs:
        return next(runs, None) is not None


@guarded("Finishing an interrupted run")
def finish_interrupted(state: State) -> list[Finished]:
    """Settle what dead runs reserved: give back, or publish what was kept, with the noise that was paid for.

    What was spent and of which nothing was kept stays spent.

    Raises:
      JaliError: it cannot be published now; everything is as it was, for the next run.
    """
    ledger = Ledger(state)
    finished = []
    with closing(abandoned_runs(state)) as runs:
        for run in runs:
            entries = ledger.entries()
            for name in run.reservation_ids:
                bill = [entry for entry in entries if entry.reservation == name]
                if bill:
                    finished += _finish(ledger.reservation(name), run, bill, state)
                elif run.keeps(name):  # otherwise the run ended before it reserved
                    raise LedgerDoubted(
                        "an interrupted run has kept a release of which this ledger does not know that it was paid "
                        "for: the ledger is another one, or shorter than it was. Restore it (JALI_LEDGER_URL, or "
                        ".jali/ledger.db with .jali/ledger.key)."
                    )
            run.remove()
    return finished


def _finish(reservation: Reservation, run: RunFolder, bill: list[Entry], state: State) -> list[Finished]:
    one = Finished(
        reservation.id, reservation.source, reservation.recommender, bill[0].at, receipt(bill), data=run.data
    )
    if reservation.state == "reserve":
        reservation.close()
        return [replace(one, gave_back=True)]
    if reservation.state == "commit":
        try:
            return [_published(one, reservation, run, open_tracking(state))]
        except JaliError as error:
            what = f"{one.recommender} of {one.source}, which {one.when} had paid for, cannot be published yet."
            error.args = (f"{what} {error} `jali ledger void {one.reservation_id} --reason ...` gives it up.",)
            raise
    kept = _readable(run, reservation.id)
    if kept is None:
        return []
    client = open_tracking(state)
    if reservation.state == "publish":
        version = published_version(client, one.source, one.recommender, one.reservation_id)
        return [replace(one, version=version, kept=kept)] if version else []
    take_back(client, one.source, one.recommender, one.reservation_id)  # somebody gave it up
    return []


def _published(one: Finished, reservation: Reservation, run: RunFolder, client: MlflowClient) -> Finished:
    """What was paid for: found in the registry, published now, or lost."""
    kept = _readable(run, one.reservation_id)
    version = published_version(client, one.source, one.recommender, one.reservation_id)
    if version is not None:
        reservation.published(f"version {version}")
        return replace(one, version=version, kept=kept)
    take_back(client, one.source, one.recommender, one.reservation_id)
    if kept is None:
        reservation.failed("spent; the run ended before anything was kept")
        return one
    version = publish(kept.source, kept.candidate, kept.release, reservation)
    return replace(one, version=version, kept=kept)


def _readable(run: RunFolder, reservation_id: str) -> Pending | None:
    """What was kept, if it was and can be read."""
    try:
        kept = run.kept(reservation_id)
        assert kept.candidate
        return kept
    except (FileNotFoundError, ValueError, KeyError, TypeError, SpecError):
        return None


finish_interrupted_task = unstored_task(finish_interrupted, "finish an interrupted run")
