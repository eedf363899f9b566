"""Opening a batch: what the private list and the release before it say about today's ratings."""

from __future__ import annotations

from models.batch import BatchKind, catalogue_after, next_batch, withdrawal
from models.errors import Refused
from models.privacy.keyed_hash import label_hashes
from models.ratings import Ratings
from models.recommender import CATALOGUE_FROM_RATINGS, Recommender
from models.release import Release
from tasks.batch_list import batches_of, list_key, read_record
from tasks.guard import guarded
from tasks.released import release_of
from tasks.state import current_state
from tasks.tracking import open_tracking
from tasks.unstored import unstored_task

STAGE = "Reading the list of what was released"


@guarded(STAGE)
def open_batch(source: str, recommender: Recommender, ratings: Ratings, kind: BatchKind) -> Ratings:
    """The ratings as the next batch of their source.

    Raises:
      Refused: the list is not whole, the release before cannot be found, or one that was paid for is not out yet.
      SpecError: the release before is on another scale.
    """
    state = current_state()
    record = read_record(state, source, recommender.name)
    before = release_before(source, recommender.name)
    if before is not None and ratings.catalogue.public and CATALOGUE_FROM_RATINGS in _weaknesses(before):
        raise Refused(
            f"the batches of {source} before took their catalogue from the ratings, and its items stay in the release: "
            "with a public catalogue it would be called proven, and is not. Nothing was spent. Go on without --items, "
            "or begin anew under another --source."
        )
    key = list_key(state)
    items = label_hashes(key, "item", catalogue_after(ratings.catalogue, before).items)
    return next_batch(ratings, label_hashes(key, "user", ratings.user_labels), items, record, before, kind)


@guarded(STAGE)
def open_withdrawal(source: str, recommender: Recommender, before: Release, user: str) -> Ratings | None:
    """What takes a user's ratings out of the batches; None where no batch took in any, or they are out already.

    Raises:
      Refused: the list is not whole, a batch that was paid for is not out yet, or a withdrawal of the user failed.
    """
    state = current_state()
    record = read_record(state, source, recommender.name)
    key = list_key(state)
    (code,) = label_hashes(key, "user", [user])
    if code in record.taken_out[~record.is_out]:
        raise Refused(
            f"a withdrawal from {source} of this very user was paid for and failed. If nothing of it can have left, "
            "take it back with `jali ledger void ID --reason ...` (`jali ledger show` has the ID), and withdraw again."
        )
    if code not in record.users or code in record.taken_out:
        return None
    items = label_hashes(key, "item", before.items)
    return withdrawal(code, user, items, recommender.catalogue_of(before), record, before)


@guarded(STAGE)
def release_before(source: str, recommender: str) -> Release | None:
    """The release that the next batch adds to: of the newest published one; None before the first.

    Raises:
      Refused: the registry does not have it, or it is older than batches are.
    """
    state = current_state()
    published = [name for name, stands in batches_of(state, source, recommender).items() if stands == "publish"]
    if not published:
        return None
    client, name = open_tracking(state), f"{source}.{recommender}"
    found = client.search_model_versions(f"name = '{name}' and tags.`ledger.reservation` = '{published[-1]}'")
    if not found:
        raise Refused(
            f"the next batch adds to the release of the newest one, and the registry has no version of {name} with the "
            f"tag ledger.reservation {published[-1]}. Nothing was charged. Restore it, or point MLFLOW_TRACKING_URI to "
            "where it is."
        )
    return release_of(name, str(found[0].version))


def _weaknesses(release: Release) -> list[str]:
    return list(release.about.get("guarantee", {}).get("weaknesses", []))


open_batch_task = unstored_task(open_batch, "open the batch")
