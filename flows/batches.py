"""What a batch costs, and what is said about it."""

from __future__ import annotations

from dp_accounting import DpEvent
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from flows.job import Job
from models.batch import BatchKind
from models.candidate import Candidate
from tasks.batch_list import series_of
from tasks.ledger import Charge


def batch_bill(
    source: str, candidate: Candidate, kind: BatchKind, event: DpEvent, fraction: float | None
) -> tuple[Charge, ...]:
    """What a batch costs, whatever is in it: of all batches of its source a rating pays one, and corrections on top.

    Args:
      event: of one release of the recommender.
      fraction: the share of everybody's own epsilon that such a release takes, where each has one.
    """
    promise = candidate.guarantee
    if kind == "withdrawal":
        return (Charge(source, candidate.name, promise, event, fraction, purpose="corrections"),)
    series = series_of(candidate.name)
    if kind == "fresh":
        return (Charge(source, candidate.name, promise, event, fraction, series),)
    assert promise.epsilon is not None
    entering = promise.model_copy(update={"epsilon": promise.epsilon / 2})  # a correction moves in two cells
    twice = DiscreteLaplaceDpEvent(promise.epsilon, 1)
    share = None if fraction is None else 2 * fraction
    return (
        Charge(source, candidate.name, entering, event, fraction, series),
        Charge(source, candidate.name, promise, twice, share, purpose="corrections"),
    )


def batch_lines(job: Job) -> list[str]:
    """What a batch does about ratings that changed, whether or not there are such."""
    if job.batch is None:
        return []
    if job.batch.corrections:
        return ["Ratings that changed since they were released were corrected, at 2 epsilon more for each."]
    return ["Ratings that changed since they were released stay as they were; --corrections would correct them."]
