"""`jali withdraw`: one person's ratings leave the released batches. No Prefect: nothing of it may be stored there."""

from __future__ import annotations

from typing import Any

from flows.batches import batch_bill
from models.batch import BatchKind
from models.candidate import Candidate
from models.errors import BudgetExceeded, SpecError, shown
from models.index import make_recommender
from models.privacy.specification import PrivacySpecification
from models.ratings import Ratings
from models.recommender import CATALOGUE_FROM_RATINGS
from models.release import Release
from tasks.batch_list import keep_out, recommenders_with_batches
from tasks.batches import open_withdrawal, release_before
from tasks.ledger import Ledger
from tasks.ledger_entries import Charge
from tasks.publishing import publish
from tasks.recovery import finish_interrupted
from tasks.registry import require_same_ledger
from tasks.runs import paying
from tasks.state import current_state
from tasks.training import fit_and_keep
from tasks.turns import one_at_a_time

WITHDRAWAL: BatchKind = "withdrawal"


def withdraw(user: str, source: str | None) -> list[str]:
    """Take what batches hold of `user` out of the newest release of each recommender; returns what to tell.

    Raises:
      SpecError: no user is named, or no such source.
      Refused: the list of what was released is not whole, or the budget has no room; later batches are without the
        user all the same.
    """
    if not user:
        raise SpecError("name the user whose ratings are to leave, as the ratings name them.")
    ledger = Ledger(current_state())
    source = _source(ledger, source)
    lines = [one.sentence for one in finish_interrupted(current_state())]
    names = recommenders_with_batches(ledger, source)
    if not names:
        return [
            *lines,
            f"{source} was never released in batches: every release is fitted to the ratings as they are. Delete the "
            "user's ratings from your data, and the next `jali run` is without them.",
        ]
    require_same_ledger(source, ledger)
    with one_at_a_time(source):
        keep_out(source, user)
        for name in names:
            before = release_before(source, name)
            assert before is not None  # batches were published, and the list was whole
            lines += _withdrawn(ledger, source, before, user)
    return lines


def _source(ledger: Ledger, named: str | None) -> str:
    known = list(dict.fromkeys(entry.source for entry in ledger.entries()))
    if named is None and len(known) == 1:
        return known[0]
    if named is None or named not in known:
        found = (
            f"nothing of {shown(named)} was ever released from here" if named else "say of which data, with --source"
        )
        raise SpecError(f"{found}. The ledger knows {', '.join(known) or 'no source yet'}.")
    return named


def _withdrawn(ledger: Ledger, source: str, before: Release, user: str) -> list[str]:
    candidate = _candidate(before.about)
    ratings = open_withdrawal(source, candidate.recommender, before, user)
    if ratings is None:
        return [
            f"No batch of {source} holds ratings of this user, and none will: nothing was released anew and nothing "
            "charged. Delete the user's ratings from your own data."
        ]
    try:
        version = _released(ledger, source, candidate, ratings)
    except BudgetExceeded as error:
        raise BudgetExceeded(
            f"{error} From now on no batch takes in ratings of this user; those released stay."
        ) from None
    return [
        f"{source}.{candidate.name} v{version} is without this user's ratings, up to noise, and no later batch takes "
        "them in.",
        f"It cost each of these ratings one more release (ε={candidate.guarantee.epsilon:g}); of all withdrawals a "
        "rating pays its own user's alone, so the ledger counts one.",
        "What cannot be undone: older versions still hold them, under their guarantee, and so does whoever has a copy. "
        "That somebody withdrew can be seen; who, cannot.",
        "What is left to you: delete the user's ratings from your own data, and older versions from the registry if "
        "nobody needs them.",
    ]


def _candidate(about: Any) -> Candidate:
    """What the newest batch was, as a withdrawal; whether the catalogue is public stays as it was."""
    recommender = make_recommender(about["recommender"], about["settings"])
    specification = PrivacySpecification.model_validate(about["privacy"])
    public = CATALOGUE_FROM_RATINGS not in about["guarantee"]["weaknesses"]
    guarantee = recommender.guarantee(specification, public_catalogue=public, batch=WITHDRAWAL)
    return Candidate(recommender, specification, guarantee)


def _released(ledger: Ledger, source: str, candidate: Candidate, ratings: Ratings) -> str:
    specification = candidate.specification
    event = candidate.recommender.cost(specification)
    fraction = specification.fraction if specification.personalised else None
    charge = Charge(source, candidate.name, candidate.guarantee, event, fraction)
    with paying(current_state(), ledger, [batch_bill(charge, specification, WITHDRAWAL)]) as (own, (reservation,)):
        release = fit_and_keep(candidate.recommender, ratings, specification, reservation, None, own)
        return publish(source, candidate, release, reservation)
