"""What a run leans on breaks in the middle: one sentence, exit code 3, nothing half-published; the next run works."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest

from tasks.ledger import Ledger
from tasks.state import State
from tests.command import clean, disturbed, environment, jali, outcomes, processes_of, write_ratings
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow

SECONDS = 60
"""A run that cannot go on says so within a minute."""


QUICK = ("--folds", "2", "--recommenders", "pdp-histogram")


def broken_run(
    folder: Path, stage: str, breaks: Callable[[int], None], program: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run in `folder`, and when `stage` begins call `breaks` with the run's process id."""
    arguments = ["run", *write_ratings(folder, made_up_ratings(n_users=30)), *QUICK]
    outcome, seconds = disturbed(arguments, folder, stage, breaks, program, **variables)
    assert seconds < SECONDS
    return clean(outcome)


def the_only_sentence(outcome: subprocess.CompletedProcess[str]) -> str:
    assert outcome.returncode == 3, outcome.stderr
    (sentence,) = [line for line in outcome.stderr.splitlines() if "s  " not in line]
    assert sentence.startswith("jali: ")
    assert sentence.endswith(".")
    return sentence


def works_again(folder: Path, **variables: str) -> None:
    arguments = ["--ratings", "films.csv", "--items", "items.csv", "--scale", "1:5:1", *QUICK]
    again = clean(jali(folder, "run", *arguments, **variables))
    assert again.returncode == 0, again.stderr


def test_a_ledger_that_is_locked_in_the_middle_stops_the_run_before_the_fit(
    tmp_path: Path, shared_prefect: str
) -> None:
    others: list[sqlite3.Connection] = []

    def lock(_: int) -> None:
        others.append(sqlite3.connect(tmp_path / ".jali" / "ledger.db", isolation_level=None))
        others[0].execute("BEGIN EXCLUSIVE")

    outcome = broken_run(tmp_path, "Cross-validating", lock, PREFECT_API_URL=shared_prefect)
    others[0].close()
    assert "database is locked" in the_only_sentence(outcome)
    assert outcomes(tmp_path) == ["reserved"]
    works_again(tmp_path, PREFECT_API_URL=shared_prefect)
    assert outcomes(tmp_path) == ["given back", "version 1"]


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("mlflow")), "server", "--workers", "1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/m.db", "--artifacts-destination", str(tmp_path / "art")]
    with (tmp_path / "mlflow.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            env=environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (tmp_path / "mlflow.log").read_text()
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}", server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(timeout=20)


def test_an_mlflow_server_that_dies_before_the_publication_stays_paid_for_and_publishes_nothing(
    tmp_path: Path, shared_prefect: str, mlflow_server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    address, server = mlflow_server
    servers = {"PREFECT_API_URL": shared_prefect, "MLFLOW_TRACKING_URI": address}
    outcome = broken_run(
        tmp_path, "Fitting with exact noise and publishing", lambda _: os.killpg(server.pid, signal.SIGKILL), **servers
    )
    assert "MLflow" in the_only_sentence(outcome)
    assert set(outcomes(tmp_path)) <= {"spent", "given back"}
    works_again(tmp_path, PREFECT_API_URL=shared_prefect)
    assert outcomes(tmp_path)[-1] == "version 1", "what was kept for the other MLflow waits for it"


def test_a_prefect_server_that_is_killed_ends_the_run_within_a_minute_and_loses_no_charge(tmp_path: Path) -> None:
    def kill_servers(run: int) -> None:
        for process in processes_of(tmp_path):
            if int(process.name) != run:
                with suppress(OSError):
                    os.kill(int(process.name), signal.SIGKILL)

    outcome = broken_run(tmp_path, "Cross-validating", kill_servers)
    assert "Prefect server was lost" in the_only_sentence(outcome)
    (left,) = outcomes(tmp_path)
    assert left in ("version 1", "given back")
    works_again(tmp_path)


REFUSES = """
CREATE TRIGGER closed BEFORE INSERT ON entries WHEN {when} BEGIN SELECT RAISE(ABORT, 'attempt to write'); END
"""


def test_a_ledger_that_takes_no_more_lines_publishes_nothing_that_is_not_in_it(
    tmp_path: Path, shared_prefect: str
) -> None:
    def in_ledger(statement: str) -> None:
        with closing(sqlite3.connect(tmp_path / ".jali" / "ledger.db")) as ledger, ledger:
            ledger.execute(statement)

    for when, left in (("1", "reserved"), ("NEW.state = 'publish'", "spent")):
        close = REFUSES.format(when=when)
        outcome = broken_run(tmp_path, "Cross-validating", lambda _: in_ledger(close), PREFECT_API_URL=shared_prefect)  # noqa: B023
        assert "the ledger cannot be used" in the_only_sentence(outcome)
        assert outcomes(tmp_path)[-1] == left
        assert published_versions(tmp_path) == 0
        in_ledger("DROP TRIGGER closed")
    works_again(tmp_path, PREFECT_API_URL=shared_prefect)
    assert outcomes(tmp_path) == ["given back", "version 2"]  # MLflow gives the number of one taken back to no other
    assert published_versions(tmp_path) == 1


def published_versions(folder: Path) -> int:
    """How many versions MLflow's own database has that were not deleted."""
    with closing(sqlite3.connect(folder / ".jali" / "mlflow.db")) as tracked:
        (number,) = tracked.execute(
            "SELECT count(*) FROM model_versions WHERE current_stage != 'Deleted_Internal'"
        ).fetchone()
    return int(number)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own for the state of `tmp_path`."""
    disk = tmp_path / ".jali"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk takes root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


WHILE_IT_FILLS = (
    ("Opening MLflow and the ledger", "."),
    ("Logging the comparison to MLflow", "."),
    ("Fitting with exact noise and publishing", "artifacts/films.csv.releases"),
)
"""The disk is full when this is said and this is there."""


def test_a_disk_that_fills_is_one_sentence(tmp_path: Path, small_disk: Path, shared_prefect: str) -> None:
    for stage, until in WHILE_IT_FILLS:
        outcome = broken_run(tmp_path, stage, filling(small_disk, until), PREFECT_API_URL=shared_prefect)
        (small_disk / "filler").unlink()
        the_only_sentence(outcome)
        if stage != WHILE_IT_FILLS[0][0]:
            assert set(outcomes(tmp_path)) <= {"reserved", "given back", "spent", "spent; nothing was published"}
            assert published_versions(tmp_path) == 0
    works_again(tmp_path, PREFECT_API_URL=shared_prefect)
    assert published_versions(tmp_path) == 1


def filling(disk: Path, until: str) -> Callable[[int], None]:
    def fill(_: int) -> None:
        deadline = time.monotonic() + SECONDS
        while not (disk / until).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass

    return fill


JUMPING = """
import datetime, pathlib, sys, threading, time

real = time.time


class Jumped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(seconds={jump})


def jump():
    while not pathlib.Path({signal!r}).exists():
        time.sleep(0.05)
    time.time = lambda: real() + {jump}
    if "tasks.ledger_book" in sys.modules:
        sys.modules["tasks.ledger_book"].datetime = Jumped


threading.Thread(target=jump, daemon=True).start()

from flows.cli import main

main()
"""


def test_a_clock_that_jumps_does_not_matter(tmp_path: Path, shared_prefect: str) -> None:
    jumping, at_the_stage = tmp_path / "jumping.py", tmp_path / "jump"
    for days, version in ((365, "version 1"), (-1, "version 2")):
        jumping.write_text(JUMPING.format(jump=days * 86_400, signal=str(at_the_stage)))
        outcome = broken_run(
            tmp_path,
            "Cross-validating",
            lambda _: at_the_stage.touch(),
            str(jumping),
            PREFECT_API_URL=shared_prefect,
        )
        at_the_stage.unlink()
        assert outcome.returncode == 0, outcome.stderr
        entry = Ledger(State(tmp_path / ".jali")).entries()[-1]
        assert entry.outcome == version
        moved = datetime.fromisoformat(entry.at) - datetime.now(UTC)
        assert abs(moved - timedelta(days=days)) < timedelta(hours=1), "the ledger has not seen the jump"
