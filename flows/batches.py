"""What a batch costs, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from flows.job import Job
from models.batch import BatchKind
from models.errors import Refused
from models.privacy.specification import PrivacySpecification
from tasks.batch_list import series_of, somebody_is_kept_out
from tasks.ledger import Ledger
from tasks.ledger_entries import Charge
from tasks.state import current_state


def batch_bill(charge: Charge, specification: PrivacySpecification, kind: BatchKind) -> tuple[Charge, ...]:
    """What a batch costs, whatever is in it: of all batches of its source a rating pays one, of all
    withdrawals one, its own user's, and corrections on top.

    Args:
      charge: what a release of its own would cost, under the guarantee of such a batch.
    """
    if kind == "withdrawal":
        series = f"{charge.recommender} withdrawals"
        return (replace(charge, purpose="withdrawal", series=series, fraction=moved_again(charge, specification, 1)),)
    entering = replace(charge, series=series_of(charge.recommender))
    if kind == "fresh":
        return (entering,)
    promise = charge.guarantee
    assert promise.epsilon is not None
    once = promise.model_copy(update={"epsilon": promise.epsilon / 2})  # a correction moves in two cells
    twice = DiscreteLaplaceDpEvent(promise.epsilon, 1)
    share = moved_again(replace(charge, guarantee=once), specification, 2)
    corrections = replace(charge, event=twice, fraction=share, purpose="corrections")
    return (replace(entering, guarantee=once), corrections)


def moved_again(charge: Charge, specification: PrivacySpecification, n_cells: int) -> float | None:
    """The largest share of anybody's own epsilon that moving a released rating in so many cells may take.

    The rating may have entered with full weight, under a threshold as small as its own epsilon, and pays the present
    threshold for it. None where some may own nothing, and where not everybody has an epsilon of their own.
    """
    smallest = specification.model_copy(update={"fraction": 1.0}).smallest_epsilon
    if charge.fraction is None or not smallest > 0:
        return None
    assert charge.guarantee.epsilon is not None
    return n_cells * charge.guarantee.epsilon / smallest


def require_batches(job: Job, ledger: Ledger) -> None:
    """Raise Refused if a run that is no batch would release the ratings of people who withdrew from the batches."""
    if job.batch or not job.publish:
        return
    withdrawn = any(entry.purpose == "withdrawal" for entry in ledger.entries(job.source))
    if withdrawn or somebody_is_kept_out(current_state(), job.source):
        raise Refused(
            f"{job.source} is released in batches, and people have withdrawn from it: a run without --batch would "
            "release their ratings again. Nothing was charged. Add --batch, or delete their ratings and release the "
            "rest under another --source."
        )


def batch_lines(job: Job) -> list[str]:
    """What a batch does about ratings that changed, whether or not there are such."""
    if job.batch is None:
        return []
    if job.batch.corrections:
        return ["Ratings that changed since they were released were corrected, at 2 epsilon more for each."]
    return ["Ratings that changed since they were released stay as they were; --corrections would correct them."]
