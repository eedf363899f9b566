from __future__ import annotations

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import inf
from pathlib import Path
from time import sleep

import pytest
import sqlalchemy as sa
from dp_accounting import NonPrivateDpEvent

from flows.ledger_view import totals
from models.errors import (
    BudgetExceeded,
    EnvironmentFault,
    InternalFault,
    JaliError,
    LedgerDoubted,
    NotReleasable,
    Refused,
    SpecError,
)
from models.index import make_recommender
from models.privacy.budget import Budget
from models.privacy.guarantee import Guarantee
from models.privacy.specification import Policy, PrivacySpecification
from models.private_metrics import PrivateMetrics
from tasks import ledger_witness
from tasks.ledger import Ledger, Reservation
from tasks.ledger_book import FORMAT, Head
from tasks.ledger_entries import Charge
from tasks.ledger_witness import remember
from tasks.state import State
from tests.postgres import new_database

HISTOGRAM = make_recommender("pdp-histogram", {})
DP_PMF = make_recommender("dp-pmf", {})


def charge(epsilon: float = 0.5, source: str = "films", **more: object) -> Charge:
    specification = PrivacySpecification(epsilon=epsilon)
    promise = HISTOGRAM.promise(specification)
    return Charge(source, HISTOGRAM.name, promise, HISTOGRAM.cost(specification), **more)  # type: ignore[arg-type]


def for_users(epsilon: float, delta: float = 1e-6) -> Charge:
    specification = PrivacySpecification(epsilon=epsilon, unit="user", delta=delta)
    return Charge("films", HISTOGRAM.name, HISTOGRAM.promise(specification), HISTOGRAM.cost(specification))


def unproven(accepted: str = "") -> Charge:
    specification = PrivacySpecification(epsilon=0.5, relation="replace_value")
    promise = DP_PMF.promise(specification)
    return Charge("films", DP_PMF.name, promise, DP_PMF.cost(specification), accepted=accepted)


def personalised(fraction: float) -> Charge:
    specification = PrivacySpecification(policy=Policy(), fraction=fraction)
    promise = HISTOGRAM.promise(specification)
    return Charge("films", HISTOGRAM.name, promise, HISTOGRAM.cost(specification), fraction)


@pytest.fixture(params=["sqlite", "postgres"])
def everywhere(request: pytest.FixtureRequest, state: State, monkeypatch: pytest.MonkeyPatch) -> State:
    """An empty ledger, in both kinds of database."""
    if request.param == "postgres":
        url = new_database(request.getfixturevalue("postgres"), "ledger")
        monkeypatch.setenv("JALI_LEDGER_URL", url)
    return state


@pytest.fixture
def ledger(everywhere: State) -> Ledger:
    return Ledger(everywhere)


def reserve(ledger: Ledger, *charges: Charge, **more: object) -> list[Reservation]:
    """Every charge a release of its own."""
    return ledger.reserve([[charged] for charged in charges], **more)  # type: ignore[arg-type]


def spend(ledger: Ledger, charged: Charge, version: str = "version 1") -> Reservation:
    (reservation,) = reserve(ledger, charged)
    reservation.commit(charged.recommender, charged.event)
    reservation.published(version)
    return reservation


def states(ledger: Ledger) -> list[str]:
    return [entry.state for entry in ledger.entries()]


def spent(ledger: Ledger, source: str = "films") -> float:
    return ledger.spent(source, unit="rating", relation="add_or_remove")[0]


def commit(reservation: Reservation, charged: Charge | None = None) -> None:
    charged = charged or charge()
    reservation.commit(charged.recommender, charged.event)


def execute(state: State, *statements: str) -> None:
    engine = sa.create_engine(state.ledger_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def without_triggers(state: State) -> None:
    """What whoever owns the database may do."""
    if state.ledger_url.startswith("sqlite"):
        execute(state, "DROP TRIGGER append_only_entries_UPDATE", "DROP TRIGGER append_only_entries_DELETE")
    else:
        execute(state, "DROP TRIGGER append_only ON entries")


# One release after the other


def test_a_reservation_is_not_spent_and_a_commitment_is(ledger: Ledger) -> None:
    (reservation,) = reserve(ledger, charge())
    assert (states(ledger), spent(ledger)) == (["reserve"], 0)
    commit(reservation)
    assert (states(ledger), spent(ledger)) == (["commit"], 0.5)
    reservation.published("version 1")
    assert (states(ledger), spent(ledger)) == (["publish"], 0.5)
    assert ledger.entries()[0].outcome == "version 1"


def test_closing_gives_back_what_was_not_spent_and_keeps_what_was(ledger: Ledger) -> None:
    unused, failed, done = reserve(ledger, charge(), charge(), charge())
    commit(failed)
    commit(done)
    done.published("version 1")
    for reservation in (unused, failed, done):
        reservation.close()
        reservation.close()
    assert states(ledger) == ["publish", "cancel", "fail"]
    assert spent(ledger) == 1.0


def test_another_process_sees_the_same_and_can_go_on_with_it(ledger: Ledger, everywhere: State) -> None:
    (reservation,) = reserve(ledger, charge())
    commit(reservation)
    again = Ledger(everywhere)
    assert spent(again) == 0.5
    (entry,) = again.entries("films")
    assert (entry.unit, entry.relation, entry.verdict) == ("rating", "add_or_remove", "proven")
    assert entry.proven_epsilon == entry.claimed_epsilon == 0.5
    assert entry.rho == 0.125
    assert "DiscreteLaplace" in entry.event
    assert again.entries("other") == []
    assert (ledger.head, ledger.head.seq) == (again.head, 2)
    same = again.reservation(reservation.id[:8])
    assert (same.id, same.state, same.source) == (reservation.id, "commit", "films")
    same.published("version 1")
    assert states(ledger) == ["publish"]


def test_a_bill_of_several_charges_moves_as_one(ledger: Ledger) -> None:
    release, metrics = charge(0.5), charge(0.1, purpose="private metrics")
    (reservation,) = ledger.reserve([[release, metrics]])
    reservation.commit(HISTOGRAM.name, release.event, metrics.event)
    assert spent(ledger) == 0.6
    assert states(ledger) == ["commit", "commit"]
    assert [entry.purpose for entry in ledger.entries()] == ["release", "private metrics"]
    reservation.published("version 1")
    assert states(ledger) == ["publish", "publish"]


def test_sources_are_counted_apart_and_a_user_release_counts_for_ratings_too(ledger: Ledger) -> None:
    for charged in (charge(), charge(source="books"), for_users(2, 1e-4)):
        spend(ledger, charged)
    assert spent(ledger, "books") == 0.5
    assert ledger.spent("films", unit="rating", relation="add_or_remove")[:3] == (2.5, 1e-4, True)
    assert ledger.spent("films", unit="user", relation="add_or_remove")[:3] == (2, 1e-4, True)


@pytest.mark.parametrize("other", [unproven(), charge(5)])
def test_a_reservation_pays_for_what_was_reserved_and_nothing_else(ledger: Ledger, other: Charge) -> None:
    (reservation,) = reserve(ledger, charge())
    with pytest.raises(NotReleasable, match="not what was reserved"):
        commit(reservation, other)
    assert states(ledger) == ["reserve"]


@pytest.mark.parametrize(("reserved", "fitted"), [(None, 0.1), (0.1, None), (0.1, 0.2)])
def test_metrics_that_were_not_reserved_are_not_measured(
    ledger: Ledger, reserved: float | None, fitted: float | None
) -> None:
    price = [PrivateMetrics(epsilon=epsilon) if epsilon else None for epsilon in (reserved, fitted)]
    bill = [charge()]
    if price[0]:
        promise = price[0].promise(PrivacySpecification(epsilon=0.5), public_catalogue=True)
        bill.append(Charge("films", HISTOGRAM.name, promise, price[0].cost(), purpose="private metrics"))
    (reservation,) = ledger.reserve([bill])
    with pytest.raises(NotReleasable, match="not what was reserved"):
        reservation.commit(HISTOGRAM.name, charge().event, price[1].cost() if price[1] else None)
    assert {entry.state for entry in ledger.entries()} == {"reserve"}
    reservation.commit(HISTOGRAM.name, charge().event, price[0].cost() if price[0] else None)
    assert {entry.state for entry in ledger.entries()} == {"commit"}
    assert ledger.spent("films", unit="rating", relation="add_or_remove").epsilon == 0.5 + (reserved or 0)


def test_only_a_committed_reservation_of_the_same_release_publishes(ledger: Ledger) -> None:
    (reservation,) = reserve(ledger, charge())
    with pytest.raises(NotReleasable, match="state: reserve"):
        reservation.require_committed("films", HISTOGRAM.name)
    commit(reservation)
    reservation.require_committed("films", HISTOGRAM.name)
    for source, name in (("books", HISTOGRAM.name), ("films", "pmf")):
        with pytest.raises(NotReleasable, match="no fit of"):
            reservation.require_committed(source, name)
    reservation.published("version 1")
    with pytest.raises(NotReleasable, match="state: publish"):
        reservation.require_committed("films", HISTOGRAM.name)


def test_steps_cannot_be_skipped_or_repeated(ledger: Ledger) -> None:
    (reservation,) = reserve(ledger, charge())
    with pytest.raises(InternalFault, match="from reserve to publish"):
        reservation.published("version 1")
    commit(reservation)
    with pytest.raises(InternalFault, match="from commit to commit"):
        commit(reservation)
    assert spent(ledger) == 0.5


def test_a_reservation_is_committed_once_even_by_two_holders(ledger: Ledger, everywhere: State) -> None:
    """The database, not our memory, lets one of them through."""
    (reservation,) = reserve(ledger, charge())
    twin = Ledger(everywhere).reservation(reservation.id)
    commit(reservation)
    with pytest.raises(InternalFault, match="from commit to commit"):
        commit(twin)
    assert spent(ledger) == 0.5


def test_a_failed_charge_stays_until_somebody_says_why_nothing_can_have_left(ledger: Ledger) -> None:
    (reservation,) = reserve(ledger, charge())
    commit(reservation)
    reservation.failed("spent; nothing was published")
    assert spent(ledger) == 0.5
    with pytest.raises(SpecError, match="--reason"):
        ledger.void(reservation.id[:8], "  ")
    ledger.void(reservation.id[:8], "the machine burned")
    assert spent(ledger) == 0
    assert ledger.entries()[0].outcome == "void: the machine burned"
    with pytest.raises(Refused, match="voided already"):
        ledger.void(reservation.id[:8], "again")


def test_what_was_published_or_given_back_is_not_voided(ledger: Ledger) -> None:
    published, unused = spend(ledger, charge()), reserve(ledger, charge())[0]
    unused.close()
    for reservation, word in ((published, "published"), (unused, "given back")):
        with pytest.raises(Refused, match=word):
            ledger.void(reservation.id, "please")
    assert states(ledger) == ["publish", "cancel"]


@pytest.mark.parametrize("name", ["", "zzzzzz", "abc"])
def test_a_charge_is_named_by_the_beginning_of_its_name(ledger: Ledger, name: str) -> None:
    reserve(ledger, charge(), charge())
    with pytest.raises(SpecError, match="ledger show"):
        ledger.void(name, "reason")


# Budgets


def test_a_budget_is_kept_to_the_last_tenth(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=1))
    for version in ("version 1", "version 2"):
        spend(ledger, charge(0.4), version)
    before = ledger.head
    with pytest.raises(
        BudgetExceeded, match=r"to ε=1\.2; its budget is ε=1 for each rating \(add or remove\).*ε=0\.2 is left"
    ):
        reserve(ledger, charge(0.4))
    assert ledger.head == before, "a refusal records nothing"
    spend(ledger, charge(0.2))
    with pytest.raises(BudgetExceeded, match="ε=0 is left"):
        reserve(ledger, charge(1e-6))


def test_what_is_reserved_counts_and_what_is_given_back_or_void_does_not(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=1))
    first, second = reserve(ledger, charge(0.5), charge(0.5))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, charge(0.1))
    first.close()
    commit(second)
    second.failed("spent; nothing was published")
    reserve(ledger, charge(0.5))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, charge(0.1))
    ledger.void(second.id, "it was never written")
    reserve(ledger, charge(0.5))


def test_all_bills_of_a_run_or_none(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=1))
    with pytest.raises(BudgetExceeded, match=r"ε=1\.2"):
        reserve(ledger, charge(0.6), charge(0.6))
    assert ledger.entries() == []


def test_other_sources_have_budgets_of_their_own(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=0.5))
    spend(ledger, charge(9, "books"))
    spend(ledger, charge(0.5))
    assert (ledger.budget("books"), ledger.budget("films")) == (None, Budget(epsilon=0.5))


def test_a_budget_is_raised_and_lowered_but_not_below_what_is_spent(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=1))
    spend(ledger, charge(0.8))
    with pytest.raises(BudgetExceeded, match=r"less than the 0\.8"):
        ledger.set_budget("films", Budget(epsilon=0.7))
    ledger.set_budget("films", Budget(epsilon=0.8))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, charge(0.1))
    ledger.set_budget("films", Budget(epsilon=2))
    spend(ledger, charge(1.2))
    assert spent(ledger) == 2


@pytest.mark.parametrize(
    "second",
    [Budget(epsilon=None), Budget(epsilon=1, unit="user"), Budget(epsilon=1, relation="replace_value")],
)
def test_a_source_has_one_budget(ledger: Ledger, second: Budget) -> None:
    ledger.set_budget("films", Budget(epsilon=1))
    with pytest.raises(SpecError, match="two budgets"):
        ledger.set_budget("films", second)
    assert ledger.budget("films") == Budget(epsilon=1)


def test_a_budget_that_is_required_and_missing_refuses(ledger: Ledger) -> None:
    with pytest.raises(NotReleasable, match="jali ledger budget films --epsilon"):
        reserve(ledger, charge(), require_budget=True)
    ledger.set_budget("films", Budget(epsilon=1))
    reserve(ledger, charge(), require_budget=True)


@pytest.mark.parametrize(
    ("budget", "charged", "sentence"),
    [
        (Budget(epsilon=9, unit="user"), charge(), "Release with --unit user"),
        (Budget(epsilon=9), unproven("a reason"), "promises nothing under add_or_remove"),
        (Budget(epsilon=9, relation="replace_value"), unproven(), "--accept-unproven"),
        (Budget(epsilon=None), charge(), "would take the same from all"),
    ],
)
def test_what_a_budget_cannot_count_is_refused(ledger: Ledger, budget: Budget, charged: Charge, sentence: str) -> None:
    ledger.set_budget("films", budget)
    with pytest.raises(NotReleasable, match=sentence):
        reserve(ledger, charged)
    assert ledger.entries() == []


def test_what_is_not_proven_is_released_with_a_reason_that_stays(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=1, relation="replace_value"))
    spend(ledger, unproven("a study of its weakness"))
    assert ledger.entries()[0].accepted == "a study of its weakness"
    with pytest.raises(BudgetExceeded, match=r"ε=0\.5 is spent"):
        reserve(ledger, charge(0.5))  # a changed rating pays it twice


def test_fractions_of_everybodys_own_add_up_to_the_whole(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=None))
    spend(ledger, personalised(0.4))
    spend(ledger, personalised(0.4))
    with pytest.raises(BudgetExceeded, match=r"1\.2 times the whole.*everybody's own epsilon, of which 0\.8 times"):
        reserve(ledger, personalised(0.4))
    spend(ledger, personalised(0.2))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, personalised(0.001))


def test_three_thirds_are_the_whole(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=None))
    reserve(ledger, *[personalised(1 / 3) for _ in range(3)])


def test_batches_of_one_series_cost_a_rating_once(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=1))
    for _ in range(5):
        spend(ledger, charge(1, series="batches"))
    assert spent(ledger) == 1
    with pytest.raises(BudgetExceeded):
        reserve(ledger, charge(0.1))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, charge(1.5, series="batches"))


def test_with_a_delta_many_releases_cost_less_than_their_sum(ledger: Ledger) -> None:
    ledger.set_budget("films", Budget(epsilon=2, delta=1e-6, unit="user"))
    for _ in range(2):
        spend(ledger, for_users(1))
    left = Budget(epsilon=2, delta=1e-6, unit="user").left([entry.amount for entry in ledger.entries()])
    assert 0 < left < 1
    spend(ledger, for_users(0.5))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, for_users(2))


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("spent_before", [[], [0.3], [0.1] * 9])
def test_what_is_left_can_be_spent_and_hardly_more(delta: float, spent_before: list[float]) -> None:
    budget = Budget(epsilon=1, delta=delta)
    amounts = [charge(epsilon).amount for epsilon in spent_before]
    left = budget.left(amounts)
    assert left == pytest.approx(1 - sum(spent_before), abs=0.05)
    assert budget.spent([*amounts, charge(left * 0.999).amount]) <= 1
    assert budget.spent([*amounts, charge(left * 1.01).amount]) > 1


def test_no_epsilon_at_so_small_a_delta_is_said_in_words() -> None:
    budget = Budget(epsilon=1)
    with pytest.raises(BudgetExceeded, match=r"has none.*--delta 1e-6 --unit rating"):
        budget.require_room("films", [], [for_users(0.5).amount])
    assert budget.spent([for_users(0.5).amount]) == inf
    assert budget.left([for_users(0.5).amount]) == 0


# Several at once


def test_many_writers_lose_nothing(everywhere: State) -> None:
    def work(_: int) -> None:
        own = Ledger(everywhere)
        for reservation in reserve(own, *[charge() for _ in range(3)]):
            commit(reservation)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert spent(Ledger(everywhere)) == 12
    assert Ledger(everywhere).head.seq == 48


def test_twenty_at_once_and_exactly_ten_are_accepted(everywhere: State) -> None:
    Ledger(everywhere).set_budget("films", Budget(epsilon=1))
    start = threading.Barrier(20)

    def work(_: int) -> bool:
        own = Ledger(everywhere)
        start.wait()
        try:
            (reservation,) = reserve(own, charge(0.1))
        except BudgetExceeded:
            return False
        commit(reservation, charge(0.1))
        return True

    with ThreadPoolExecutor(20) as threads:
        accepted = list(threads.map(work, range(20)))
    assert sum(accepted) == 10
    assert spent(Ledger(everywhere)) == 1.0


# Nobody rewrites it


@pytest.mark.parametrize(
    "statement", ["UPDATE entries SET claimed_epsilon = 0", "DELETE FROM entries", "DELETE FROM about"]
)
def test_the_database_takes_no_change_and_no_removal(ledger: Ledger, everywhere: State, statement: str) -> None:
    spend(ledger, charge())
    with pytest.raises(sa.exc.DatabaseError, match="append-only"):
        execute(everywhere, statement)
    assert spent(ledger) == 0.5


FORGERIES = {
    "an amount": ("UPDATE entries SET claimed_epsilon = 0.1 WHERE seq = 2", "row 2 of the ledger is not as it was"),
    "a state": ("UPDATE entries SET state = 'cancel' WHERE seq = 3", "row 3 of the ledger is not as it was"),
    "a name": ("UPDATE entries SET source = 'books'", "row 1 of the ledger is not as it was written, or was sealed"),
    "a row in the middle": ("DELETE FROM entries WHERE seq = 2", "row 2 of the ledger is missing"),
    "a row and its number": (
        "DELETE FROM entries WHERE seq = 2; UPDATE entries SET seq = seq - 1 WHERE seq > 2",
        "row 2 of the ledger is not as it was",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_whoever_changes_a_row_without_the_key_is_found_out(ledger: Ledger, everywhere: State, forgery: str) -> None:
    spend(ledger, charge())
    statements, sentence = FORGERIES[forgery]
    without_triggers(everywhere)
    execute(everywhere, *statements.split("; "))
    for use in (lambda: ledger.entries(), lambda: reserve(ledger, charge()), lambda: Ledger(everywhere).head):
        with pytest.raises(LedgerDoubted, match=sentence):
            use()


def test_rows_that_are_missing_at_the_end_are_found_by_what_a_version_says(ledger: Ledger, everywhere: State) -> None:
    reservation = spend(ledger, charge())
    head = ledger.head
    spend(ledger, charge())
    ledger.require_holds([head, ledger.head], [reservation.id])
    without_triggers(everywhere)
    execute(everywhere, "DELETE FROM entries WHERE seq >= 3")
    assert spent(Ledger(everywhere)) == 0.5, "the chain alone does not show it"
    with pytest.raises(LedgerDoubted, match="shorter than it was"):
        ledger.require_holds([head], [])
    for stranger in (Head("another", 1, "x"), Head(head.ledger, 1, "x")):
        with pytest.raises(LedgerDoubted):
            ledger.require_holds([stranger], [])
    with pytest.raises(LedgerDoubted):
        ledger.require_holds([], ["never seen"])


@pytest.mark.parametrize(("given_up", "sentence"), [(True, "was voided"), (False, "was given back")])
def test_a_version_whose_charge_does_not_count_is_found(ledger: Ledger, given_up: bool, sentence: str) -> None:
    (reservation,) = reserve(ledger, charge())
    if given_up:
        commit(reservation)
        ledger.require_holds([], [reservation.id])
        ledger.void(reservation.id, "another folder")
    else:
        reservation.close()
    with pytest.raises(LedgerDoubted, match=f"whose charge {sentence}.*Delete that version"):
        ledger.require_holds([], [reservation.id])


def test_another_key_or_none_is_refused(ledger: Ledger, everywhere: State, monkeypatch: pytest.MonkeyPatch) -> None:
    spend(ledger, charge())
    monkeypatch.setenv("JALI_LEDGER_KEY", "k" * 32)
    with pytest.raises(LedgerDoubted, match="sealed with another key"):
        ledger.entries()
    monkeypatch.setenv("JALI_LEDGER_KEY", "short")
    with pytest.raises(SpecError, match="at least 32 characters"):
        ledger.entries()
    monkeypatch.delenv("JALI_LEDGER_KEY")
    everywhere.ledger_key_file.unlink()
    with pytest.raises(LedgerDoubted, match="its key is not here"):
        Ledger(everywhere).entries()
    assert not everywhere.ledger_key_file.exists(), "no new key for old rows"


def test_a_key_of_the_environments_serves_every_working_folder(
    everywhere: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JALI_LEDGER_KEY", "k" * 40)
    monkeypatch.setenv("JALI_LEDGER_URL", everywhere.ledger_url)
    spend(Ledger(everywhere), charge())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert spent(Ledger(State(elsewhere))) == 0.5
    assert list(elsewhere.iterdir()) == []


def test_removing_the_ledger_does_not_reset_a_budget(state: State) -> None:
    ledger = Ledger(state)
    ledger.set_budget("films", Budget(epsilon=1))
    spend(ledger, charge(0.9))
    (state.folder / "ledger.db").rename(state.folder / "kept.db")
    empty = Ledger(state)
    for use in (
        lambda: reserve(empty, charge()),
        lambda: empty.set_budget("films", Budget(epsilon=1)),
    ):
        with pytest.raises(LedgerDoubted, match=r"has a budget, kept in the ledger at sqlite.*ledger\.db.*--source"):
            use()
    spend(empty, charge(source="books"))
    (state.folder / "ledger.db").unlink()
    (state.folder / "kept.db").rename(state.folder / "ledger.db")
    with pytest.raises(BudgetExceeded):
        reserve(Ledger(state), charge(0.2))


def test_another_working_folder_does_not_reset_a_budget(state: State, tmp_path: Path) -> None:
    Ledger(state).set_budget("films", Budget(epsilon=1))
    elsewhere = State(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    with pytest.raises(LedgerDoubted, match="is another one"):
        reserve(Ledger(elsewhere), charge())


def test_a_ledger_put_back_from_an_old_copy_is_found_out(state: State) -> None:
    ledger = Ledger(state)
    ledger.set_budget("films", Budget(epsilon=1))
    old = (state.folder / "ledger.db").read_bytes()
    spend(ledger, charge(0.9))
    (state.folder / "ledger.db").write_bytes(old)
    with pytest.raises(LedgerDoubted, match="has lost rows since"):
        reserve(Ledger(state), charge(0.9))


def noted(state: State) -> int:
    (note,) = (state.own_folder / "budgets").iterdir()
    return int(json.loads(note.read_text())["seq"])


def test_the_newest_row_stays_noted_in_whatever_order_two_commits_note_it(state: State) -> None:
    ledger = Ledger(state)
    ledger.set_budget("films", Budget(epsilon=9))
    older = ledger.head
    spend(ledger, charge())
    assert remember(state, "films", older, state.ledger_url)
    assert noted(state) == ledger.head.seq == 4
    assert remember(state, "films", Head("another", 1, "x"), state.ledger_url)
    assert noted(state) == 1, "what another ledger counts is not to be compared"


def test_two_processes_never_note_at_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(state)
    ledger.set_budget("films", Budget(epsilon=9))
    inside, n_at_once = [], []
    write = ledger_witness.write_whole

    def slowly(*arguments: object) -> None:
        inside.append(1)
        sleep(0.02)
        n_at_once.append(len(inside))
        write(*arguments)  # type: ignore[arg-type]
        inside.pop()

    monkeypatch.setattr(ledger_witness, "write_whole", slowly)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: remember(state, "films", ledger.head, state.ledger_url), range(4)))
    assert n_at_once == [1] * 4


def test_what_this_account_cannot_remember_is_neither_charged_nor_fitted(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(state)
    ledger.set_budget("films", Budget(epsilon=9))
    free, early, late = reserve(ledger, charge(source="books"), charge(), charge())
    write = ledger_witness.write_whole

    def fill_the_disk(n_writes_before: int) -> None:
        left = iter(range(n_writes_before))

        def writing(*arguments: object) -> None:
            if next(left, None) is None:
                raise OSError(28, "No space left on device")
            write(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ledger_witness, "write_whole", writing)

    fill_the_disk(0)
    commit(free)
    with pytest.raises(EnvironmentFault, match="Nothing was charged"):
        commit(early)
    assert (early.state, ledger.reservation(early.id).state) == ("reserve", "reserve")
    fill_the_disk(1)
    with pytest.raises(EnvironmentFault, match="nothing was fitted"):
        commit(late)
    assert (late.state, ledger.entries()[-1].outcome) == ("fail", "spent; nothing was fitted")
    assert not ledger.set_budget("films", Budget(epsilon=8))


def test_a_note_of_a_budget_that_cannot_be_read_is_no_licence(state: State) -> None:
    Ledger(state).set_budget("films", Budget(epsilon=1))
    (note,) = (state.own_folder / "budgets").iterdir()
    assert note.stat().st_mode & 0o077 == 0
    note.write_text("{")
    with pytest.raises(LedgerDoubted, match="cannot be read"):
        reserve(Ledger(state), charge())


def test_a_commit_returns_once_it_is_on_the_disk(state: State) -> None:
    with Ledger(state)._book._transaction(reading=True) as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2, "FULL"


# What cannot be used


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/at/all/ledger.db", "postgresql+nodriver://x/y", "postgresql://h:port/x", "no url"]
)
def test_a_ledger_that_cannot_be_opened_is_one_sentence(
    state: State, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("JALI_LEDGER_URL", url)
    with pytest.raises(EnvironmentFault, match="nothing is released without it"):
        Ledger(state)


def test_another_kind_of_database_is_refused(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_LEDGER_URL", "mysql+mysqldb://x/y")
    with pytest.raises(JaliError, match=r"SQLite or PostgreSQL|ModuleNotFound"):
        Ledger(state)


def test_a_file_that_is_no_database_is_one_sentence(state: State) -> None:
    (state.folder / "ledger.db").write_bytes(b"this is not a database, not even a little " * 100)
    with pytest.raises(EnvironmentFault, match="not a database"):
        Ledger(state)


def test_a_ledger_of_a_newer_jali_is_left_alone(state: State) -> None:
    Ledger(state)
    execute(
        state, "DROP TRIGGER append_only_about_UPDATE", f"UPDATE about SET value = '{FORMAT + 1}' WHERE name = 'format'"
    )
    with pytest.raises(LedgerDoubted, match="a newer Jali wrote it"):
        Ledger(state)


def test_a_ledger_from_before_the_first_release_is_left_alone(state: State) -> None:
    with closing(sqlite3.connect(state.folder / "ledger.db")) as old:
        old.execute("CREATE TABLE entries (id INTEGER)")
    with pytest.raises(LedgerDoubted, match="before its first release"):
        Ledger(state)


def test_a_database_that_may_only_be_read_is_shown_and_takes_no_charge(state: State) -> None:
    spend(Ledger(state), charge())
    with closing(sqlite3.connect(state.folder / "ledger.db")) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    url = f"sqlite:///file:{state.folder}/ledger.db?mode=ro&uri=true"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JALI_LEDGER_URL", url)
        ledger = Ledger(state)
        assert spent(ledger) == 0.5
        with pytest.raises(EnvironmentFault, match="readonly"):
            reserve(ledger, charge())
    assert states(Ledger(state)) == ["publish"]


# What is shown of it


def guarantee(relation: str, verdict: str = "proven", epsilon: float = 1.0) -> Guarantee:
    return Guarantee(unit="rating", relation=relation, epsilon=epsilon, verdict=verdict, sentence="", reference="")


def test_a_release_that_promises_nothing_of_the_kind_leaves_no_total(state: State) -> None:
    ledger = Ledger(state)
    for name, relation, verdict in (
        ("pdp-histogram", "add_or_remove", "proven"),
        ("dp-pmf", "replace_value", "conditional"),
    ):
        spend(ledger, Charge("films", name, guarantee(relation, verdict), NonPrivateDpEvent()))
    total = ledger.spent("films", unit="rating", relation="add_or_remove")
    assert (total.is_proven, total.without_promise) == (False, ("dp-pmf",))
    first, second = totals(ledger, "films")
    assert "claimed, and not proven as a whole, for each rating (add or remove)" in first
    assert "dp-pmf promised nothing of it, so that nothing bounds the whole" in first
    assert "ε=3, δ=0 claimed, and not proven as a whole, for each rating (replace value)" in second
