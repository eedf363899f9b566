"""The main flow: validate, promise, cross-validate, pay, train, publish."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prefect import flow
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.batches import batch_bill, require_batches
from flows.exits import remember_termination
from flows.job import Job, candidates, promises_something
from flows.ledger_view import HEADINGS, rows_of, totals
from flows.refusals import named_refusals
from flows.run_view import offered, results_shown
from models.candidate import Candidate
from models.privacy.budget import Budget
from models.privacy.guarantee import Guarantee
from models.private_metrics import PaidMetrics
from models.ratings import Ratings
from tasks.artifacts import leave_ledger_task, leave_results_task
from tasks.batches import open_batch_task
from tasks.familiar import require_unfamiliar_task
from tasks.kept_folds import evaluated_fold_task, fold_places, forget_folds, forget_old_folds
from tasks.ledger import Ledger, Reservation
from tasks.ledger_entries import SPENT, Charge
from tasks.loading import load_task
from tasks.progress import go_on, stage, step
from tasks.publishing import publish_task
from tasks.recovery import Finished, finish_interrupted_task, receipt, something_was_interrupted
from tasks.registry import require_same_ledger_task
from tasks.runs import RunFolder, paying
from tasks.state import current_state
from tasks.tracking import log_evaluations_task, log_spending_task, require_tracking_task
from tasks.training import Deal, Evaluation, deal_task, fit_and_keep_task
from tasks.turns import one_at_a_time
from tasks.unstored import whole
from tasks.validation import validate_task


@dataclass(frozen=True)
class Result:
    """What became of one candidate; `version` is None when it was not published, `bill` is what this run paid."""

    candidate: Candidate
    evaluation: Evaluation
    version: str | None
    bill: tuple[Charge, ...] = ()
    metrics: PaidMetrics | None = None

    @property
    def epsilon_spent(self) -> float:
        """By addition, in each charge's own relation."""
        return sum(charge.guarantee.epsilon or 0.0 for charge in self.bill) if self.version else 0.0

    @property
    def is_paid_before(self) -> bool:
        """Whether it was fitted and paid for by a run that was interrupted."""
        return self.version is not None and not self.bill


@dataclass(frozen=True)
class Done:
    """What became of this run's candidates, and of what interrupted ones had left."""

    results: list[Result]
    finished: list[Finished]
    promotion: str = ""
    """What became of what was published, where it was offered for promotion."""

    @property
    def sentence(self) -> str:
        """For Prefect: what was published, and what became of what interrupted runs had left."""
        names = [f"{result.candidate.name} v{result.version}" for result in self.results if result.version]
        finished = [one.sentence for one in self.finished]
        return " ".join(filter(None, [f"Published: {', '.join(names) or 'nothing'}.", *finished, self.promotion]))


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
@named_refusals
def run(job: Job, promote: bool = False) -> Done:
    """Cross-validate the job's recommenders and publish the item matrices of those that promise something.

    Args:
      job: what `jali run` is told.
      promote: whether what was published is offered for promotion afterwards.
    """
    remember_termination()
    stage("Opening MLflow and the ledger")
    ledger = Ledger(current_state())
    require_batches(job, ledger)
    chosen = candidates(job, releases := releasable(job, ledger.budget(job.source)))
    require_tracking_task(current_state())
    require_same_ledger_task(job.source, ledger)
    finished = finish_interrupted_runs(job)
    before = paid_before(job, chosen, finished)
    to_release = [c for c in chosen if releases(c.guarantee) and c.name not in before]
    forget_old_folds(current_state())
    with one_at_a_time(job.source), reserved(ledger, job, to_release) as (own, reservations):
        stage("Reading the ratings")
        loaded = load_task(job.ratings, job.items, job.scale, job.privacy.preferences, job.privacy.unit)
        stage("Validating them")
        ratings = validate_task(whole(loaded), job.minimums)
        if reservations:
            require_unfamiliar_task(current_state(), job.source, whole(ratings))
        if job.batch:
            ratings = open_batch_task(job.source, chosen[0].recommender, whole(ratings), job.batch.kind)
        evaluations = cross_validate(job.source, ratings, chosen, job.folds)
        stage("Logging the comparison to MLflow")
        run_ids = log_evaluations_task(job.source, chosen, evaluations, job.folds, ratings.scale.width, job.batch_kind)
        stage("Fitting with exact noise and publishing", len(chosen))
        results = []
        for candidate in chosen:
            if earlier := before.get(candidate.name):
                result = Result(candidate, evaluations[candidate.name], earlier.version, metrics=earlier.metrics)
            else:
                version, metrics = release(job, candidate, ratings, reservations.get(candidate.name), own)
                result = Result(candidate, evaluations[candidate.name], version, bill(job, candidate), metrics)
            results.append(result)
            named = f"{job.source}.{candidate.name} v{result.version}" if result.version else None
            log_spending_task(run_ids[candidate.name], result.epsilon_spent, named)
            step()
        if any(result.version for result in results):
            entries = [entry for entry in ledger.entries(job.source) if entry.state in SPENT]
            leave_ledger_task(job.source, ledger, HEADINGS, rows_of(entries), totals(ledger, job.source))
        forget_folds(current_state(), job.source)
        leave_results_task(job.source, *results_shown(job.source, results, run_ids))
    return Done(results, finished, promotion=offered(job.source, results) if promote else "")


def finish_interrupted_runs(job: Job) -> list[Finished]:
    """Publish what runs had paid for that ended in the middle, and give back what they had only reserved.

    Unless this run is one that publishes nothing: then the next one does it.
    """
    if not (job.publish and something_was_interrupted(current_state())):
        return []
    stage("Finishing what an interrupted run had paid for")
    return finish_interrupted_task(current_state())


def paid_before(job: Job, chosen: list[Candidate], finished: list[Finished]) -> dict[str, Finished]:
    """What an interrupted run has paid for and published alike, by recommender; no batch: each is another."""
    if job.batch:
        return {}
    wanted = {candidate.name: (candidate, receipt(bill(job, candidate))) for candidate in chosen}
    return {
        one.recommender: one
        for one in sorted(finished, key=lambda one: one.at)  # the newest of each
        if one.version
        and (one.source, one.data) == (job.source, job.data)
        and wanted.get(one.recommender) == (one.candidate, one.paid)
    }


def releasable(job: Job, budget: Budget | None) -> Callable[[Guarantee], bool]:
    """Which promises the job is to release: none of those that nobody named and a budget would refuse."""

    def releases(promise: Guarantee) -> bool:
        unasked = budget is not None and not job.named and not job.accept_unproven
        return job.publish and promises_something(promise) and (promise.verdict == "proven" or not unasked)

    return releases


@contextmanager
def reserved(
    ledger: Ledger, job: Job, to_release: list[Candidate]
) -> Iterator[tuple[RunFolder, dict[str, Reservation]]]:
    """Reserve the cost of everything to be released, before a rating is read; give back what is not spent."""
    bills = [bill(job, candidate) for candidate in to_release]
    begun = paying(current_state(), ledger, bills, require_budget=job.require_budget, data=job.data)
    with begun as (own, reservations):
        yield own, {reservation.recommender: reservation for reservation in reservations}


def bill(job: Job, candidate: Candidate) -> tuple[Charge, ...]:
    """All that the release of a candidate will cost; nothing where it promises nothing and is not released."""
    if candidate.guarantee.verdict == "none":
        return ()
    specification = candidate.specification
    event = candidate.recommender.cost(specification)
    fraction = specification.fraction if specification.personalised else None
    accepted = "" if candidate.guarantee.verdict == "proven" else job.accept_unproven or ""
    charge = Charge(job.source, candidate.name, candidate.guarantee, event, fraction, accepted=accepted)
    charges = [*batch_bill(charge, specification, job.batch.kind)] if job.batch else [charge]
    if candidate.metrics and candidate.metrics_guarantee:
        promise, event, share = candidate.metrics_guarantee, candidate.metrics.cost(), candidate.metrics.share_of_own
        charges.append(
            Charge(
                job.source,
                candidate.name,
                promise,
                event,
                share(specification),
                purpose="private metrics",
                accepted="" if promise.verdict == "proven" else accepted,
            )
        )
    return tuple(charges)


def cross_validate(source: str, ratings: Ratings, chosen: list[Candidate], n_folds: int) -> dict[str, Evaluation]:
    """One task per recommender and fold, in parallel; folds that a run before had finished are taken as they are."""
    stage("Cross-validating", n_folds * len(chosen))
    dealt: Deal = deal_task(whole(ratings), n_folds)
    fits = [(c.recommender, c.specification) for c in chosen]
    places = fold_places(current_state(), source, ratings, fits, n_folds)
    futures = {
        evaluated_fold_task.submit(
            c.recommender, whole(ratings), c.specification, whole(dealt), fold, kept[fold]
        ): c.name
        for fold in range(n_folds)
        for c, kept in zip(chosen, places, strict=True)
    }
    for _ in as_completed(list(futures)):
        step()
    folds = {c.name: tuple(f.result() for f, name in futures.items() if name == c.name) for c in chosen}
    return {name: Evaluation(scores) for name, scores in folds.items()}


def release(
    job: Job, candidate: Candidate, ratings: Ratings, reservation: Reservation | None, own: RunFolder
) -> tuple[str | None, PaidMetrics | None]:
    """Pay, fit, keep, publish; nothing of it without a reservation. The version, and its metrics where paid for."""
    if reservation is None:
        return None, None
    go_on()
    fitted = fit_and_keep_task(
        candidate.recommender, whole(ratings), candidate.specification, reservation, candidate.metrics, own
    )
    return publish_task(job.source, candidate, whole(fitted), reservation), PaidMetrics.of(fitted)
