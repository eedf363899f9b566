"""The main flow: validate, promise, cross-validate, pay, train, publish."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from prefect import flow
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.batches import batch_bill
from flows.job import Job, candidates
from models.candidate import Candidate
from models.ratings import Ratings
from tasks.batch_list import one_at_a_time
from tasks.batches import open_batch_task
from tasks.ledger import Charge, Ledger, Reservation
from tasks.loading import load_task
from tasks.progress import go_on, stage, step
from tasks.publishing import publish_task
from tasks.state import current_state
from tasks.tracking import log_evaluations_task, log_spending_task, require_tracking_task
from tasks.training import Deal, Evaluation, deal_task, evaluate_fold_task, fit_private_task
from tasks.unstored import whole
from tasks.validation import validate_task


@dataclass(frozen=True)
class Result:
    """What became of one candidate; `version` is None when it was not published."""

    candidate: Candidate
    evaluation: Evaluation
    version: str | None
    bill: tuple[Charge, ...] = ()

    @property
    def epsilon_spent(self) -> float:
        """By addition, in each charge's own relation."""
        return sum(charge.guarantee.epsilon or 0.0 for charge in self.bill) if self.version else 0.0


class PromptThreads(ThreadPoolTaskRunner):
    """Threads that are not waited for when the flow ends by an error: Ctrl-C answers at once."""

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if exc_type is not None and self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        super().__exit__(exc_type, exc_value, traceback)


@flow(
    name="jali run",
    flow_run_name="{job.source}",
    task_runner=PromptThreads(max_workers=os.cpu_count() or 1),  # type: ignore[arg-type]
    persist_result=False,
)
def run(job: Job) -> list[Result]:
    """Cross-validate the job's recommenders and publish the item matrices of those that promise something."""
    stage("Opening MLflow and the ledger")
    chosen = candidates(job)
    require_tracking_task(current_state())
    with one_at_a_time(job.source) if job.batch else nullcontext(), reserved(job, chosen) as reservations:
        stage("Reading the ratings")
        loaded = load_task(job.ratings, job.items, job.scale, job.privacy.preferences, job.privacy.unit)
        stage("Validating them")
        ratings = validate_task(whole(loaded), job.minimums)
        if job.batch:
            ratings = open_batch_task(job.source, chosen[0].recommender, whole(ratings), job.batch.kind)
        evaluations = cross_validate(ratings, chosen, job.folds)
        stage("Logging the comparison to MLflow")
        run_ids = log_evaluations_task(job.source, chosen, evaluations, job.folds, ratings.scale.width)
        stage("Fitting with exact noise and publishing", len(chosen))
        results = []
        for candidate in chosen:
            version = release(job, candidate, ratings, reservations.get(candidate.name))
            results.append(Result(candidate, evaluations[candidate.name], version, bill(job, candidate)))
            named = f"{job.source}.{candidate.name} v{version}" if version else None
            log_spending_task(run_ids[candidate.name], results[-1].epsilon_spent, named)
            step()
    return results


@contextmanager
def reserved(job: Job, chosen: list[Candidate]) -> Iterator[dict[str, Reservation]]:
    """Reserve the cost of everything to be released, before a rating is read; give back what is not spent."""
    to_publish = [c for c in chosen if job.publish and c.guarantee.verdict != "none"]
    reservations = Ledger(current_state()).reserve([bill(job, candidate) for candidate in to_publish])
    try:
        yield {reservation.recommender: reservation for reservation in reservations}
    finally:
        for reservation in reservations:
            reservation.close()


def bill(job: Job, candidate: Candidate) -> tuple[Charge, ...]:
    """All that the release of a candidate will cost; nothing where it promises nothing and is not released."""
    if candidate.guarantee.verdict == "none":
        return ()
    specification = candidate.specification
    event = candidate.recommender.cost(specification)
    fraction = specification.fraction if specification.personalised else None
    if job.batch:
        return batch_bill(job.source, candidate, job.batch.kind, event, fraction)
    return (Charge(job.source, candidate.name, candidate.guarantee, event, fraction),)


def cross_validate(ratings: Ratings, chosen: list[Candidate], n_folds: int) -> dict[str, Evaluation]:
    """One task per recommender and fold, in parallel."""
    stage("Cross-validating", n_folds * len(chosen))
    dealt: Deal = deal_task(whole(ratings), n_folds)
    futures = {
        evaluate_fold_task.submit(c.recommender, whole(ratings), c.specification, whole(dealt), fold): c.name
        for fold in range(n_folds)
        for c in chosen
    }
    for _ in as_completed(list(futures)):
        step()
    folds = {c.name: tuple(f.result() for f, name in futures.items() if name == c.name) for c in chosen}
    return {name: Evaluation(scores) for name, scores in folds.items()}


def release(job: Job, candidate: Candidate, ratings: Ratings, reservation: Reservation | None) -> str | None:
    """Pay, fit, publish; nothing of it without a reservation."""
    if reservation is None:
        return None
    go_on()
    fitted = fit_private_task(candidate.recommender, whole(ratings), candidate.specification, reservation)
    return publish_task(job.source, candidate, whole(fitted), reservation)
