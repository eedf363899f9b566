from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from models.errors import EnvironmentFault, InternalFault, JaliError, SpecError, ValidationFailed
from tasks.guard import guarded
from tasks.state import State, current_state, prepare


def test_a_foreign_exception_leaves_as_a_sentence_without_its_text() -> None:
    @guarded("Reading")
    def fails() -> None:
        raise ValueError("user 4711 rated 5")

    with pytest.raises(InternalFault, match=r"Reading failed \(ValueError\)") as fault:
        fails()
    assert "4711" not in str(fault.value)
    assert fault.value.__cause__ is None
    assert fault.value.__context__ is None


def test_our_own_exceptions_pass() -> None:
    @guarded("Reading")
    def fails() -> None:
        raise SpecError("say more")

    with pytest.raises(SpecError, match="say more"):
        fails()


def test_a_full_disk_is_the_environments_fault() -> None:
    @guarded("Publication")
    def fails() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(EnvironmentFault, match="No space left"):
        fails()


def test_what_mlflow_passes_on_of_its_database_is_the_environments_fault() -> None:
    @guarded("Opening MLflow")
    def fails() -> None:
        raise OperationalError("INSERT 4711", {}, sqlite3.OperationalError("database or disk is full"))

    with pytest.raises(EnvironmentFault, match="the disk or database behind it") as fault:
        fails()
    assert "4711" not in str(fault.value)


def test_a_system_error_is_told_in_the_systems_words_and_not_in_the_librarys() -> None:
    @guarded("Reading")
    def fails() -> None:
        raise OSError(5, "user 4711 rated 5", "user 4711")

    with pytest.raises(EnvironmentFault, match=r"^Reading failed: Input/output error\.") as fault:
        fails()
    assert "4711" not in str(fault.value)


def test_exit_codes_are_those_of_the_design() -> None:
    codes = {kind.__name__: kind.exit_code for kind in (SpecError, ValidationFailed, EnvironmentFault, JaliError)}
    assert codes == {"SpecError": 2, "ValidationFailed": 1, "EnvironmentFault": 3, "JaliError": 4}


def test_state_is_private_to_its_owner(state: State) -> None:
    assert stat.S_IMODE(state.folder.stat().st_mode) == 0o700
    (state.folder / "file").touch()
    assert stat.S_IMODE((state.folder / "file").stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc")
    with pytest.raises(EnvironmentFault, match="cannot write there"):
        prepare()


def test_every_location_can_be_pointed_elsewhere(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state.tracks_locally
    assert current_state().ledger_url == f"sqlite:///{Path.cwd()}/.jali/ledger.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("JALI_LEDGER_URL", "sqlite:////elsewhere.db")
    assert current_state().tracking_uri == "http://127.0.0.1:1"
    assert current_state().ledger_url == "sqlite:////elsewhere.db"
    assert not current_state().tracks_locally


def test_a_location_left_empty_is_the_usual_one(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = current_state().tracking_uri, current_state().ledger_url
    for name in ("MLFLOW_TRACKING_URI", "JALI_LEDGER_URL"):
        monkeypatch.setenv(name, "")
    assert (current_state().tracking_uri, current_state().ledger_url) == usual


def test_libraries_are_told_to_keep_quiet(state: State) -> None:
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"
    assert os.environ["DO_NOT_TRACK"] == "true"
    assert os.environ["PREFECT_LOGGING_TO_API_ENABLED"] == "false"
