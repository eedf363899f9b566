"""Of several who want to do the same at once one does it; of one who is killed nobody waits for ever."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from models.errors import EnvironmentFault, Refused
from models.privacy.budget import Budget
from tasks import lease as leases
from tasks.lease import lease
from tasks.ledger import Ledger
from tasks.ledger_book import Book
from tasks.state import State
from tests.postgres import new_database

NAME = "changing what films serves"
FORK = get_context("fork")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, state: State, monkeypatch: pytest.MonkeyPatch) -> State:
    """A state whose ledger is of either kind."""
    if request.param == "postgres":
        url = new_database(request.getfixturevalue("postgres"), "leases")
        monkeypatch.setenv("JALI_LEDGER_URL", url)
    return state


def tried(place: State, begin: Any, told: Any, end: Any) -> None:
    begin.wait()
    try:
        with lease(place, NAME, f"process {os.getpid()}"):
            told.put("won")
            end.wait()
    except Refused as refusal:
        told.put(str(refusal))


def test_of_eight_at_once_exactly_one_wins_and_the_others_are_told_who(place: State) -> None:
    begin, told, end = FORK.Barrier(8), FORK.Queue(), FORK.Event()
    processes = [FORK.Process(target=tried, args=(place, begin, told, end)) for _ in range(8)]
    for process in processes:
        process.start()
    answers = [told.get(timeout=30) for _ in processes]
    end.set()
    for process in processes:
        process.join(timeout=30)
    refusals = [answer for answer in answers if answer != "won"]
    assert len(refusals) == 7
    assert len({refusal.split("process ")[1].split()[0] for refusal in refusals}) == 1
    assert all(refusal.startswith(f"{NAME} is under way already: process ") for refusal in refusals)
    with lease(place, NAME, "the next"):
        pass


def patient(place: State, notes: Path) -> None:
    for _ in range(3):
        while True:
            try:
                with lease(place, NAME, "one of four"), notes.open("ab", buffering=0) as file:
                    file.write(b"(")
                    time.sleep(0.005)
                    file.write(b")")
                break
            except Refused:
                time.sleep(0.002)


def test_no_two_ever_interleave(place: State, tmp_path: Path) -> None:
    Book(place)
    processes = [FORK.Process(target=patient, args=(place, tmp_path / "notes")) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert (tmp_path / "notes").read_bytes() == b"()" * 12


def held_until_killed(place: State, told: Any) -> None:
    with lease(place, NAME, "the dead", seconds=0.6):
        told.put(time.monotonic())
        time.sleep(60)


def test_who_is_killed_keeps_others_waiting_for_the_lease_and_no_longer(place: State) -> None:
    told = FORK.Queue()
    process = FORK.Process(target=held_until_killed, args=(place, told))
    process.start()
    began = told.get(timeout=30)
    os.kill(process.pid, signal.SIGKILL)
    process.join(timeout=30)
    with pytest.raises(Refused, match="the dead began it at"), lease(place, NAME, "the next"):
        pass
    while True:
        try:
            with lease(place, NAME, "the next"):
                break
        except Refused:
            time.sleep(0.05)
    assert 0.5 < time.monotonic() - began < 5


def test_who_outlives_the_lease_does_nothing_once_somebody_else_has_had_it(place: State) -> None:
    with lease(place, NAME, "the slow", seconds=0.01) as slow:
        time.sleep(0.02)
        slow.renew()  # nobody came meanwhile
        time.sleep(0.02)
        with lease(place, NAME, "the quick"), pytest.raises(Refused, match="somebody else began it meanwhile"):
            slow.renew()
        with pytest.raises(Refused, match="somebody else began it meanwhile"):
            slow.renew()


def test_a_lease_that_is_renewed_is_held_for_as_long_again(place: State) -> None:
    with lease(place, NAME, "the first", seconds=0.3) as first:
        for _ in range(3):
            time.sleep(0.15)
            first.renew()
            with pytest.raises(Refused, match="the first"), lease(place, NAME, "the second"):
                pass


def test_who_was_slow_does_not_give_back_what_is_another_s(place: State) -> None:
    with ExitStack() as stack:
        with lease(place, NAME, "the slow", seconds=0.01):
            time.sleep(0.02)
            stack.enter_context(lease(place, NAME, "the quick"))
        with pytest.raises(Refused, match="the quick"), lease(place, NAME, "the third"):
            pass


def test_another_source_is_not_waited_for(place: State) -> None:
    with lease(place, NAME, "one"), lease(place, "changing what books serves", "another"):
        pass


def test_an_error_under_the_lease_gives_it_back(place: State) -> None:
    with pytest.raises(KeyboardInterrupt), lease(place, NAME, "one"):
        raise KeyboardInterrupt
    with lease(place, NAME, "another"):
        pass


def test_a_clock_that_was_put_back_keeps_nobody_waiting(place: State, monkeypatch: pytest.MonkeyPatch) -> None:
    now = leases._now
    with lease(place, NAME, "one"):
        monkeypatch.setattr(leases, "_now", lambda connection: now(connection) - 86_400)
        with lease(place, NAME, "another"):
            pass


def test_payments_go_on_while_a_lease_is_held_and_the_ledger_stays_as_it_is(place: State) -> None:
    ledger = Ledger(place)
    with lease(place, NAME, "one"):
        began = time.monotonic()
        assert ledger.set_budget("films", Budget(epsilon=1))
        assert time.monotonic() - began < 2
    assert [entry.state for entry in Ledger(place).history()] == ["budget"]


def test_a_ledger_that_cannot_be_written_is_one_sentence(state: State) -> None:
    Book(state)
    engine = sa.create_engine(state.ledger_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE leases (name TEXT)")  # somebody else's
    engine.dispose()
    with pytest.raises(EnvironmentFault, match="the ledger cannot be used"), lease(state, NAME, "one"):
        pass
