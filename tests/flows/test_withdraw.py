"""What `jali withdraw` makes sure of before it begins, without MLflow; with it: test_batch_commands.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import withdraw as withdrawing
from flows.batches import batch_bill
from flows.withdraw import withdraw
from models.errors import LedgerDoubted, Refused
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.specification import PrivacySpecification
from tasks.ledger import Ledger
from tasks.ledger_entries import Charge
from tasks.state import State
from tasks.turns import one_at_a_time


@pytest.fixture
def batches(state: State) -> State:
    """A source whose first batch was published."""
    told, histogram = PrivacySpecification(epsilon=1), PDPHistogram()
    promise = histogram.guarantee(told, public_catalogue=True, batch="fresh")
    charge = Charge("films", histogram.name, promise, histogram.cost(told))
    (reservation,) = Ledger(state).reserve([batch_bill(charge, told, "fresh")])
    reservation.commit(histogram.name, charge.event)
    reservation.published("version 1")
    return state


def left_out(state: State) -> list[Path]:
    return list((state.folder / "batches").rglob("kept-out"))


def test_nobody_withdraws_while_a_batch_is_under_way(batches: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(withdrawing, "require_same_ledger", lambda *_: None)
    with one_at_a_time("films"), pytest.raises(Refused, match="another run of films is under way"):
        withdraw("7", "films")
    assert left_out(batches) == []


def test_a_withdrawal_is_paid_from_the_ledger_that_paid_for_the_batches(
    batches: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubted(source: str, ledger: Ledger) -> None:
        assert (source, ledger.entries()) == ("films", Ledger(batches).entries())
        raise LedgerDoubted("It is another one.")

    monkeypatch.setattr(withdrawing, "require_same_ledger", doubted)
    with pytest.raises(LedgerDoubted, match="It is another one"):
        withdraw("7", "films")
    assert left_out(batches) == []
