from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from flows.ledger_view import totals
from models.errors import EnvironmentFault, InternalFault, NotReleasable
from models.index import make_recommender
from models.privacy.guarantee import Guarantee
from models.privacy.specification import PrivacySpecification
from tasks.ledger import Charge, Ledger, spending

HISTOGRAM = make_recommender("pdp-histogram", {})


def charge(epsilon: float = 0.5, source: str = "films") -> Charge:
    specification = PrivacySpecification(epsilon=epsilon)
    return Charge(source, HISTOGRAM.name, HISTOGRAM.promise(specification), str(HISTOGRAM.cost(specification)))


PAID = charge().recommender, charge().event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(f"sqlite:///{path}")


def states(ledger: Ledger) -> list[str]:
    return [entry.state for entry in ledger.entries()]


def spent(ledger: Ledger, source: str = "films") -> float:
    return ledger.spent(source, unit="rating", relation="add_or_remove")[0]


def test_a_reservation_is_not_spent_and_a_commitment_is(ledger: Ledger) -> None:
    (reservation,) = ledger.reserve([charge()])
    assert (states(ledger), spent(ledger)) == (["reserve"], 0)
    reservation.commit(*PAID)
    assert (states(ledger), spent(ledger)) == (["commit"], 0.5)
    reservation.published("version 1")
    assert (states(ledger), spent(ledger)) == (["publish"], 0.5)
    assert ledger.entries()[0].outcome == "version 1"


def test_closing_gives_back_what_was_not_spent_and_keeps_what_was(ledger: Ledger) -> None:
    unused, failed, done = ledger.reserve([charge(), charge(), charge()])
    failed.commit(*PAID)
    done.commit(*PAID)
    done.published("version 1")
    for reservation in (unused, failed, done):
        reservation.close()
        reservation.close()
    assert states(ledger) == ["publish", "cancel", "fail"]
    assert spent(ledger) == 1.0


def test_another_process_sees_the_same(ledger: Ledger, path: Path) -> None:
    ledger.reserve([charge()])[0].commit(*PAID)
    again = Ledger(f"sqlite:///{path}")
    assert spent(again) == 0.5
    (entry,) = again.entries("films")
    assert (entry.unit, entry.relation, entry.verdict) == ("rating", "add_or_remove", "proven")
    assert entry.proven_epsilon == entry.claimed_epsilon == 0.5
    assert "DiscreteLaplace" in entry.event
    assert again.entries("other") == []


def test_sources_are_counted_apart_and_a_user_release_counts_for_ratings_too(ledger: Ledger) -> None:
    for_users = PrivacySpecification(epsilon=2, unit="user", delta=1e-4)
    user_charge = Charge("films", HISTOGRAM.name, HISTOGRAM.promise(for_users), str(HISTOGRAM.cost(for_users)))
    for charged in (charge(), charge(source="books"), user_charge):
        ledger.reserve([charged])[0].commit(charged.recommender, charged.event)
    assert spent(ledger, "books") == 0.5
    assert ledger.spent("films", unit="rating", relation="add_or_remove") == (2.5, 1e-4, True, ())
    assert ledger.spent("films", unit="user", relation="add_or_remove") == (2, 1e-4, True, ())


@pytest.mark.parametrize("other", [("pmf", charge().event), (HISTOGRAM.name, charge(5).event)])
def test_a_reservation_pays_for_what_was_reserved_and_nothing_else(ledger: Ledger, other: tuple[str, str]) -> None:
    (reservation,) = ledger.reserve([charge()])
    with pytest.raises(NotReleasable, match="not what was reserved"):
        reservation.commit(*other)
    assert states(ledger) == ["reserve"]


def test_only_a_committed_reservation_of_the_same_release_publishes(ledger: Ledger) -> None:
    (reservation,) = ledger.reserve([charge()])
    with pytest.raises(NotReleasable, match="state: reserve"):
        reservation.require_committed("films", HISTOGRAM.name)
    reservation.commit(*PAID)
    reservation.require_committed("films", HISTOGRAM.name)
    for source, name in (("books", HISTOGRAM.name), ("films", "pmf")):
        with pytest.raises(NotReleasable, match="no fit of"):
            reservation.require_committed(source, name)
    reservation.published("version 1")
    with pytest.raises(NotReleasable, match="state: publish"):
        reservation.require_committed("films", HISTOGRAM.name)


def test_steps_cannot_be_skipped_or_repeated(ledger: Ledger) -> None:
    (reservation,) = ledger.reserve([charge()])
    with pytest.raises(InternalFault, match="from reserve to publish"):
        reservation.published("version 1")
    reservation.commit(*PAID)
    with pytest.raises(InternalFault, match="from commit to commit"):
        reservation.commit(*PAID)
    assert spent(ledger) == 0.5


def test_nobody_rewrites_or_deletes_an_entry(ledger: Ledger, path: Path) -> None:
    ledger.reserve([charge()])[0].commit(*PAID)
    database = sqlite3.connect(path)
    for statement in ("UPDATE entries SET claimed_epsilon = 0", "DELETE FROM entries"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
    database.close()
    assert spent(ledger) == 0.5


def test_a_reservation_is_committed_once_even_by_two_processes(ledger: Ledger, path: Path) -> None:
    """Two holders of one reservation: the database, not our memory, lets one of them through."""
    (reservation,) = ledger.reserve([charge()])
    twin = type(reservation)(Ledger(f"sqlite:///{path}"), dict(reservation._row))
    reservation.commit(*PAID)
    with pytest.raises(EnvironmentFault, match="UNIQUE"):
        twin.commit(*PAID)
    assert spent(ledger) == 0.5


def test_many_writers_lose_nothing(path: Path) -> None:
    def work() -> None:
        own = Ledger(f"sqlite:///{path}")
        for reservation in own.reserve([charge() for _ in range(5)]):
            reservation.commit(*PAID)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spent(Ledger(f"sqlite:///{path}")) == pytest.approx(20.0)


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/at/all/ledger.db", "postgresql+nodriver://x/y", "postgresql://h:port/x", "no url"]
)
def test_a_ledger_that_cannot_be_opened_is_one_sentence(url: str) -> None:
    with pytest.raises(EnvironmentFault, match="nothing is released without it"):
        Ledger(url)


def test_a_file_that_is_no_database_is_one_sentence(path: Path) -> None:
    path.write_bytes(b"this is not a database, not even a little " * 100)
    with pytest.raises(EnvironmentFault, match="not a database"):
        Ledger(f"sqlite:///{path}")


def guarantee(relation: str, verdict: str = "proven", epsilon: float = 1.0, delta: float = 0.0) -> Guarantee:
    return Guarantee(
        unit="rating", relation=relation, epsilon=epsilon, delta=delta, verdict=verdict, sentence="", reference=""
    )


def test_sums_never_mix_relations() -> None:
    """A changed rating pays an add_or_remove release twice; an added one is promised nothing by replace_value."""
    added, changed = guarantee("add_or_remove"), guarantee("replace_value", "conditional", 3.0)
    both = [("pdp-histogram", added), ("dp-pmf", changed)]
    assert spending(both, "add_or_remove") == (1.0, 0.0, False, ("dp-pmf",))
    assert spending(both, "replace_value") == (5.0, 0.0, False, ())
    assert spending(both[:1], "add_or_remove") == (1.0, 0.0, True, ())
    assert spending(both[:1], "replace_value") == (2.0, 0.0, True, ())
    assert spending([("a", guarantee("add_or_remove", delta=1e-6))], "replace_value").delta == pytest.approx(
        1e-6 * (1 + np.e)
    )
    assert spending([], "add_or_remove") == (0.0, 0.0, True, ())


def test_a_release_that_promises_nothing_of_the_kind_leaves_no_total(ledger: Ledger) -> None:
    charges = [
        Charge("films", name, guarantee(relation, verdict), "event")
        for name, relation, verdict in (
            ("pdp-histogram", "add_or_remove", "proven"),
            ("dp-pmf", "replace_value", "conditional"),
        )
    ]
    for reservation in ledger.reserve(charges):
        reservation.commit(reservation.recommender, "event")
    total = ledger.spent("films", unit="rating", relation="add_or_remove")
    assert (total.is_proven, total.without_promise) == (False, ("dp-pmf",))
    first, second = totals(ledger, "films")
    assert "claimed, and not proven, for each rating (add or remove)" in first
    assert "dp-pmf promised nothing of it, so that nothing bounds the whole" in first
    assert "ε=3, δ=0 claimed, and not proven, for each rating (replace value)" in second
