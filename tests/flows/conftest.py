"""What the tests of whole runs share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tasks.servers import prefect_server
from tasks.state import State


@pytest.fixture(scope="session")
def shared_prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server for the runs of which the server is not what is tested."""
    state = State(tmp_path_factory.mktemp("prefect"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(state.folder))
        patch.delenv("PREFECT_API_URL", raising=False)
        with prefect_server(state) as wait:
            url = os.environ["PREFECT_API_URL"]
            wait()
            yield url
