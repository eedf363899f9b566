"""What a batch costs, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from flows.job import Job
from models.batch import BatchKind
from tasks.batch_list import series_of
from tasks.ledger import Charge


def batch_bill(charge: Charge, kind: BatchKind) -> tuple[Charge, ...]:
    """What a batch costs, whatever is in it: of all batches of its source a rating pays one, and corrections on top.

    Args:
      charge: what a release of its own would cost, under the guarantee of such a batch.
    """
    if kind == "withdrawal":
        return (replace(charge, purpose="corrections"),)
    entering = replace(charge, series=series_of(charge.recommender))
    if kind == "fresh":
        return (entering,)
    promise, share = charge.guarantee, charge.fraction
    assert promise.epsilon is not None
    once = promise.model_copy(update={"epsilon": promise.epsilon / 2})  # a correction moves in two cells
    twice = DiscreteLaplaceDpEvent(promise.epsilon, 1)
    corrections = replace(charge, event=twice, fraction=None if share is None else 2 * share, purpose="corrections")
    return (replace(entering, guarantee=once), corrections)


def batch_lines(job: Job) -> list[str]:
    """What a batch does about ratings that changed, whether or not there are such."""
    if job.batch is None:
        return []
    if job.batch.corrections:
        return ["Ratings that changed since they were released were corrected, at 2 epsilon more for each."]
    return ["Ratings that changed since they were released stay as they were; --corrections would correct them."]
