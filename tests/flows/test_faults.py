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
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.command import JALI, SECRET, clean, environment, jali, outcomes, write_ratings
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow

SECONDS = 60
"""A run that cannot go on says so within a minute."""


def broken_run(
    folder: Path, stage: str, breaks: Callable[[int], None], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run in `folder`, and when `stage` begins call `breaks` with the run's process id."""
    command = [JALI, "run", *write_ratings(folder, made_up_ratings(n_users=30)), "--folds", "2"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(**variables), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said, broken = [], time.monotonic()
        for line in process.stderr:
            said.append(line)
            if line.rstrip().endswith(stage):
                breaks(process.pid)
                broken = time.monotonic()
        out, _ = process.communicate(timeout=2 * SECONDS)
    assert time.monotonic() - broken < SECONDS
    return clean(subprocess.CompletedProcess(command, process.returncode, out, "".join(said)))


def the_only_sentence(outcome: subprocess.CompletedProcess[str]) -> str:
    assert outcome.returncode == 3, outcome.stderr
    (sentence,) = [line for line in outcome.stderr.splitlines() if "s  " not in line]
    assert sentence.startswith("jali: ")
    assert sentence.endswith(".")
    return sentence


def works_again(folder: Path, **variables: str) -> None:
    arguments = ["--ratings", "films.csv", "--items", "items.csv", "--scale", "1:5:1", "--folds", "2"]
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
    assert outcomes(tmp_path) == ["reserved", "version 1"]


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
    assert set(outcomes(tmp_path)) <= {"spent; nothing was published", "given back"}
    works_again(tmp_path, PREFECT_API_URL=shared_prefect)


def test_a_prefect_server_that_is_killed_ends_the_run_within_a_minute_and_loses_no_charge(tmp_path: Path) -> None:
    def kill_servers(run: int) -> None:
        mark = f"PREFECT_HOME={tmp_path / '.jali' / 'prefect'}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if int(process.name) != run and mark in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue

    outcome = broken_run(tmp_path, "Cross-validating", kill_servers)
    assert "Prefect server was lost" in the_only_sentence(outcome)
    (left,) = outcomes(tmp_path)
    assert left in ("version 1", "given back")
    works_again(tmp_path)


@pytest.mark.parametrize("kilobytes", [1000, 1600])
def test_a_full_disk_is_one_sentence(kilobytes: int, tmp_path: Path, shared_prefect: str) -> None:
    small = tmp_path / ".jali"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk takes root")
    try:
        outcome = broken_run(tmp_path, "Starting Prefect", lambda _: None, PREFECT_API_URL=shared_prefect)
        if outcome.returncode:  # what fits depends on the libraries' own files
            the_only_sentence(outcome)
        else:
            assert outcomes(tmp_path) == ["version 1"]
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
    assert SECRET not in outcome.stderr
    works_again(tmp_path, PREFECT_API_URL=shared_prefect)


JUMPING = """
import time
real, began = time.time, time.monotonic()
def jumped():
    seconds = time.monotonic() - began
    return real() + ({jump} if seconds > {after} else 0)
time.time = jumped
"""


@pytest.mark.parametrize("jump", [-86_400, 365 * 86_400])
def test_a_clock_that_jumps_does_not_matter(jump: int, tmp_path: Path, shared_prefect: str) -> None:
    (tmp_path / "wrapped").mkdir()
    (tmp_path / "wrapped" / "sitecustomize.py").write_text(JUMPING.format(jump=jump, after=6))
    outcome = broken_run(
        tmp_path,
        "Starting Prefect",
        lambda _: None,
        PREFECT_API_URL=shared_prefect,
        PYTHONPATH=str(tmp_path / "wrapped"),
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcomes(tmp_path) == ["version 1"]
