"""What all tests share: a private working folder, made-up ratings, and the way to the real data."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from flows.cli import RARELY
from tasks.state import State, prepare
from tests import given_tables
from tests.command import shared_prefect  # noqa: F401 - a fixture, one server for all modules
from tests.made_up import made_up_ratings
from tests.postgres import postgres  # noqa: F401 - likewise
from tests.tables import copy_tables_from_now_on

DATA = Path(os.environ.get("JALI_DATA", Path(__file__).parents[2] / "shared" / "data"))
MEMORY = Path("/dev/shm")
ROOM = 2 << 30
"""Bytes, of which the tests take a part."""


def pytest_configure() -> None:
    """What tests write is kept in memory where there is room: databases wait for a disk tens of thousands of times."""
    gc.set_threshold(*RARELY)  # as the command does
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None


@pytest.fixture(autouse=True, scope="session")
def _working_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Before Prefect or MLflow is imported, so that they keep their things there."""
    base = tmp_path_factory.getbasetemp()
    given_tables.place[:] = [base.parent if "PYTEST_XDIST_WORKER" in os.environ else base]
    os.chdir(tmp_path_factory.mktemp("work"))
    for name in ("MLFLOW_TRACKING_URI", "JALI_LEDGER_URL", "JALI_LEDGER_KEY", "PREFECT_API_URL", "JALI_DEBUG"):
        os.environ.pop(name, None)
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("account"))
    prepare()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """An empty state folder of this test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow itself sets it when told where to track
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "account"))
    copy_tables_from_now_on()
    return prepare()


@pytest.fixture(scope="session")
def ratings():
    return made_up_ratings()


@pytest.fixture(scope="session")
def ml_100k() -> Path:
    return _data("ml-100k")


@pytest.fixture(scope="session")
def ml_1m() -> Path:
    return _data("ml-1m")


def _data(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"{name} is not here: put it under {DATA}, or set JALI_DATA to the folder that holds it")
    return DATA / name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases the campaigns of bad input tried, and how they ended."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    said = {text for report in reports for name, text in getattr(report, "user_properties", ()) if name == "cases"}
    if said - {""}:
        terminalreporter.section("bad input")
        for text in sorted(said - {""}):
            terminalreporter.write_line(text)
