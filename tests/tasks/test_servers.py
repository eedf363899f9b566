from __future__ import annotations

import pytest

from models.errors import EnvironmentFault
from tasks.servers import prefect_server
from tasks.state import State


@pytest.mark.parametrize("url", ["http://127.0.0.1:port/api", "http://a b/api", "http://[::1/api", "nonsense", "\n"])
def test_an_address_that_is_none_is_one_sentence(url: str, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    with prefect_server(state) as wait, pytest.raises(EnvironmentFault, match="does not answer"):
        wait()
