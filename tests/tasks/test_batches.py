"""The private list against a real ledger. With a real registry as well: tests/flows/test_batch_commands.py."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tasks.batches
from flows.batches import batch_bill, require_batches
from flows.job import make_job
from flows.withdraw import withdraw
from models.batch import Batch, BatchKind, Record, moves_of, told_by
from models.candidate import Candidate
from models.errors import Refused, SpecError
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.specification import Policy, Preferences, PrivacySpecification
from models.ratings import Ratings
from models.recommender import CATALOGUE_FROM_RATINGS
from models.release import ItemFactors, Release
from tasks.batch_list import keep_moves, keep_out, read_record, require_whole
from tasks.batches import open_batch, open_withdrawal
from tasks.ledger import Ledger, Reservation
from tasks.ledger_entries import Charge
from tasks.state import State
from tasks.training import fit_private
from tasks.turns import one_at_a_time
from tests.made_up import made_up_ratings

SPECIFICATION = PrivacySpecification(epsilon=1)
HISTOGRAM = PDPHistogram()
EVENT = HISTOGRAM.cost(SPECIFICATION)


def candidate(kind: BatchKind = "fresh") -> Candidate:
    return Candidate(HISTOGRAM, SPECIFICATION, HISTOGRAM.guarantee(SPECIFICATION, public_catalogue=True, batch=kind))


def reserved(state: State, kind: BatchKind = "fresh") -> Reservation:
    charge = Charge("films", HISTOGRAM.name, candidate(kind).guarantee, EVENT)
    return Ledger(state).reserve([batch_bill(charge, SPECIFICATION, kind)])[0]


def listed(ratings: Ratings, state: State) -> tuple[Reservation, Ratings]:
    """A batch that is on the list and not yet paid for."""
    batch = open_batch("films", HISTOGRAM, ratings, "fresh")
    reservation = reserved(state)
    keep_moves(reservation, batch, HISTOGRAM.moves(batch, SPECIFICATION))
    return reservation, batch


def paid_for(ratings: Ratings, state: State, *, becomes: str) -> Reservation:
    reservation, _ = listed(ratings, state)
    reservation.commit(HISTOGRAM.name, EVENT)
    if becomes == "publish":
        reservation.published("version 1")
    if becomes == "fail":
        reservation.failed("spent; nothing was published")
    return reservation


def record(state: State) -> Record:
    return read_record(state, "films", HISTOGRAM.name)


def list_file(state: State, reservation: Reservation) -> Path:
    return state.folder / "batches" / "films" / f"{reservation.id}.moves"


def half(ratings: Ratings) -> Ratings:
    return ratings.where(np.arange(len(ratings)) % 2 == 0)


@pytest.fixture
def state(state: State) -> State:
    with one_at_a_time("films"):
        return state


def test_a_crash_between_list_and_ledger_leaves_the_ratings_as_new_as_they_were(ratings: Ratings, state: State) -> None:
    reservation, _ = listed(ratings, state)
    assert list_file(state, reservation).exists()
    assert len(record(state).users) == 0
    assert open_batch("films", HISTOGRAM, ratings, "fresh").batch.enters.all()  # type: ignore[union-attr]


@pytest.mark.parametrize(("becomes", "is_published"), [("publish", True), ("fail", False)])
def test_what_was_paid_for_is_on_the_list_whether_or_not_it_left(
    ratings: Ratings, state: State, becomes: str, is_published: bool
) -> None:
    paid_for(half(ratings), state, becomes=becomes)
    assert len(record(state).users) == len(half(ratings))
    assert (record(state).is_published == is_published).all()


def test_a_charge_that_is_void_makes_its_ratings_new_again(ratings: Ratings, state: State) -> None:
    reservation = paid_for(ratings, state, becomes="fail")
    Ledger(state).void(reservation.id, "the machine burnt down")
    assert len(record(state).users) == 0


def test_a_batch_that_is_paid_for_and_not_yet_out_is_waited_for(ratings: Ratings, state: State) -> None:
    paid_for(ratings, state, becomes="commit")
    with pytest.raises(Refused, match=r"not published yet.*jali ledger void"):
        record(state)


@pytest.mark.parametrize("damage", ["missing", "another's", "truncated", "key"])
def test_a_list_that_is_not_whole_is_refused(ratings: Ratings, state: State, damage: str) -> None:
    reservation, other = (paid_for(part, state, becomes="fail") for part in (half(ratings), ratings))
    file = list_file(state, reservation)
    if damage == "missing":
        file.unlink()
    elif damage == "another's":
        shutil.copy(list_file(state, other), file)
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        (state.folder / "batches.key").write_bytes(bytes(32))
    with pytest.raises(Refused, match="a backup"):
        record(state)


def test_a_batch_of_another_machine_is_found_after_the_commit_and_before_the_fit(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = open_batch("films", HISTOGRAM, ratings, "fresh")
    reservation = reserved(state)
    reserved(state).commit(HISTOGRAM.name, EVENT)  # whose list is elsewhere
    fits: list[object] = []
    monkeypatch.setattr(PDPHistogram, "fit", lambda *_, **__: fits.append(1))
    with pytest.raises(Refused, match="a second time"):
        fit_private(HISTOGRAM, batch, SPECIFICATION, reservation)
    assert not fits
    assert reservation.state == "commit"


def test_what_a_batch_releases_is_on_the_list_before_it_is_paid_for(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = open_batch("films", HISTOGRAM, ratings, "fresh")
    reservation = reserved(state)
    was_listed: list[bool] = []
    commit = Reservation.commit

    def look(self: Reservation, *paid: object) -> None:
        was_listed.append(list_file(state, self).exists())
        commit(self, *paid)  # type: ignore[arg-type]

    monkeypatch.setattr(Reservation, "commit", look)
    fit_private(HISTOGRAM, batch, SPECIFICATION, reservation)
    assert was_listed == [True]


def test_the_list_names_nobody_and_is_its_owners_alone(state: State) -> None:
    ratings = made_up_ratings()
    file = list_file(state, paid_for(ratings, state, becomes="publish"))
    content = file.read_bytes()
    assert not any(label.encode() in content for label in ratings.user_labels)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["fresh", "corrected"])
def test_the_ledgers_total_does_not_grow_with_the_batches_and_corrections_are_extra(
    state: State, kind: BatchKind
) -> None:
    for night in range(1, 4):
        reserved(state, kind).commit(HISTOGRAM.name, EVENT)
        spent = Ledger(state).spent("films", unit="rating", relation="add_or_remove")
        assert spent.epsilon == (1 if kind == "fresh" else 1 + 2 * night)
        assert spent.is_proven


def test_a_withdrawal_needs_a_user_and_a_source_that_is_known(state: State, ratings: Ratings) -> None:
    with pytest.raises(SpecError, match="name the user"):
        withdraw("", None)
    with pytest.raises(SpecError, match="no source yet"):
        withdraw("7", None)
    paid_for(ratings, state, becomes="fail")
    with pytest.raises(SpecError, match=r"nothing of books.*knows films"):
        withdraw("7", "books")
    (told,) = withdraw("7", None)
    assert "never released in batches" in told


@pytest.mark.parametrize("kind", ["fresh", "withdrawal"])
def test_of_all_withdrawals_a_rating_pays_one_beside_its_batch(state: State, kind: BatchKind) -> None:
    """Users withdraw once: another's withdrawal moves none of its cells."""
    reserved(state).commit(HISTOGRAM.name, EVENT)
    for _ in range(3):
        reserved(state, kind).commit(HISTOGRAM.name, EVENT)
    spent = Ledger(state).spent("films", unit="rating", relation="add_or_remove")
    assert spent.epsilon == (1 if kind == "fresh" else 2)


@pytest.mark.parametrize("threshold", [1.0, "mean", 0.15])
def test_moving_a_released_rating_again_is_charged_as_the_largest_share_it_can_be_of_anybodys_own(
    threshold: float | str,
) -> None:
    """Of a rating that entered with full weight under a threshold as small as its own epsilon."""
    recommender = PDPHistogram(threshold=threshold)
    specification = PrivacySpecification(policy=Policy(), fraction=0.5)
    pays = specification.threshold(recommender.threshold)  # whoever has full weight
    for kind, purposes in (("withdrawal", ["withdrawal"]), ("corrected", ["release", "corrections"])):
        promise = recommender.guarantee(specification, public_catalogue=True, batch=kind)
        event = recommender.cost(specification)
        bill = batch_bill(Charge("films", recommender.name, promise, event, 0.5), specification, kind)
        assert [charge.purpose for charge in bill] == purposes
        share, n_moves = bill[-1].fraction, 2 if kind == "corrected" else 1
        assert share is not None
        assert share * Policy().epsilon_conservative >= n_moves * pays * (1 - 1e-9)
        assert bill[-1].guarantee.epsilon == pytest.approx(n_moves * pays)
        assert [level.high for level in promise.levels] == pytest.approx(
            [n_moves * level.high for level in recommender.promise(specification).levels]
        )


def test_the_share_of_who_may_own_nothing_is_no_number() -> None:
    specification = PrivacySpecification(preferences=Preferences(default=0.5, cap=1))
    charge = Charge("films", HISTOGRAM.name, HISTOGRAM.promise(specification), EVENT, 1.0)
    (bill,) = batch_bill(charge, specification, "withdrawal")
    assert bill.fraction is None


def test_items_that_ratings_revealed_are_not_called_public_later(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = candidate().guarantee.weakened("conditional", CATALOGUE_FROM_RATINGS).model_dump(mode="json")
    factors = ItemFactors(*[np.zeros((1, 1))] * 2, np.zeros(1))
    statistics = {"histogram": np.zeros((1, 5), np.int64), "cell_variance": np.zeros(1)}
    before = Release(factors, ("i0",), ("",), 1, 5, 1, {"guarantee": weak}, statistics)
    monkeypatch.setattr(tasks.batches, "release_before", lambda *_: before)
    with pytest.raises(Refused, match="would be called proven"):
        open_batch("films", HISTOGRAM, ratings, "fresh")
    private = replace(ratings, catalogue=replace(ratings.catalogue, public=False))
    assert open_batch("films", HISTOGRAM, private, "fresh").batch is not None


def test_who_asked_to_be_kept_out_is_in_no_later_batch_and_pays_nothing(ratings: Ratings, state: State) -> None:
    keep_out("films", ratings.user_labels[3])
    keep_out("films", "never seen")
    batch = open_batch("films", HISTOGRAM, ratings, "fresh")
    assert 3 not in batch.users
    assert set(batch.users) == set(range(ratings.n_users)) - {3}
    assert Ledger(state).entries() == []
    file = state.folder / "batches" / "films" / "kept-out"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Refused, match="not as it was written"):
        open_batch("films", HISTOGRAM, ratings, "fresh")


def test_a_withdrawal_that_failed_is_voided_before_it_is_tried_again(ratings: Ratings, state: State) -> None:
    paid_for(ratings, state, becomes="publish")
    user = ratings.user_labels[3]
    whole = record(state)
    before = Release(ItemFactors(*[np.zeros((1, 1))] * 2, np.zeros(1)), ("i0",), ("",), 1, 5, 1)
    alone = replace(ratings.where(ratings.users == -1), user_labels=(user,))
    failed = reserved(state, "withdrawal")
    batch = Batch("withdrawal", told_by(None, ratings.catalogue, ratings.scale), *[np.zeros(0, np.int64)] * 3)
    keep_moves(failed, replace(alone, batch=batch), moves_of(alone, np.zeros(0, np.int64)))
    failed.commit(HISTOGRAM.name, EVENT)
    failed.failed("spent; nothing was published")
    assert len(record(state).left) == len(whole.left) + 1
    with pytest.raises(Refused, match="paid for and failed"):
        open_withdrawal("films", HISTOGRAM, before, user)
    Ledger(state).void(failed.id, "it was never written")
    assert user not in record(state).left
    assert open_withdrawal("films", HISTOGRAM, before, "a stranger") is None


def test_after_a_withdrawal_a_run_that_is_no_batch_is_refused(ratings: Ratings, state: State) -> None:
    job = make_job({"source": "films"})
    paid_for(ratings, state, becomes="publish")
    require_batches(job, Ledger(state))
    keep_out("films", "7")
    for publish, batch in ((False, False), (True, True)):
        require_batches(make_job({"source": "films", "publish": publish, "batch": batch}), Ledger(state))
    with pytest.raises(Refused, match="Add --batch"):
        require_batches(job, Ledger(state))


def test_require_whole_is_silent_where_all_is_there(ratings: Ratings, state: State) -> None:
    paid_for(ratings, state, becomes="publish")
    require_whole("films", HISTOGRAM.name)
