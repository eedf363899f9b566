from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from models.errors import EnvironmentFault
from tasks import servers
from tasks.prefect_access import asks_own_server, password, server_asked
from tasks.servers import address_of_schedules, prefect_server
from tasks.state import State


@pytest.mark.parametrize("url", ["http://127.0.0.1:port/api", "http://a b/api", "http://[::1/api", "nonsense", "\n"])
def test_an_address_that_is_none_is_one_sentence(url: str, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    with prefect_server(state) as wait, pytest.raises(EnvironmentFault, match="does not answer"):
        wait()


def test_the_server_of_the_schedules_is_found_by_others_while_it_is_announced_and_answers(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:my-own")
    monkeypatch.setattr(servers, "_answers", lambda url: url == "http://127.0.0.1:7/api/health")
    assert address_of_schedules(state) is None
    with servers._announced(state) as file:
        assert not isinstance(file, str)
        assert address_of_schedules(state) is None  # it starts
        file.write("http://127.0.0.1:7/api")
        file.flush()
        assert address_of_schedules(state) == "http://127.0.0.1:7/api"
        with prefect_server(state) as wait:
            wait()
            assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:7/api"
            assert asks_own_server(state)
        assert "PREFECT_API_URL" not in os.environ
        assert os.environ["PREFECT_API_AUTH_STRING"] == "me:my-own"
        with servers._announced(state) as found:
            assert found == "http://127.0.0.1:7/api"
        monkeypatch.setattr(servers, "_answers", lambda url: False)
        assert address_of_schedules(state) is None
    (state.folder / "schedule-server").write_text("http://127.0.0.1:7/api")  # as a killed one leaves it
    monkeypatch.setattr(servers, "_answers", lambda url: True)
    assert address_of_schedules(state) is None


def test_the_password_of_our_servers_is_its_owners_alone_and_another_in_every_folder(
    state: State, tmp_path: Path
) -> None:
    assert re.fullmatch("jali:[0-9a-f]{64}", password(state))
    assert password(state) == password(state)
    assert (state.folder / "prefect.key").stat().st_mode & 0o777 == 0o600
    assert password(State(tmp_path)) != password(state)


def test_a_server_of_somebody_else_is_told_what_the_user_says_and_never_our_password(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "https://me:secret@prefect.example/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:my-own")
    with prefect_server(state):
        assert os.environ["PREFECT_API_AUTH_STRING"] == "me:my-own"
        assert server_asked(state) == "https://prefect.example/api"
    monkeypatch.delenv("PREFECT_API_AUTH_STRING")
    with prefect_server(state):
        assert "PREFECT_API_AUTH_STRING" not in os.environ
