from __future__ import annotations

import pytest

from models.errors import AnotherRun, EnvironmentFault
from tasks.state import State
from tasks.turns import one_at_a_time


def test_two_runs_of_one_source_are_never_under_way_at_once(state: State) -> None:
    refused = pytest.raises(AnotherRun, match="another run of films")
    with one_at_a_time("films"), one_at_a_time("books"), refused, one_at_a_time("films"):
        pass
    with one_at_a_time("films"):  # given back
        pass


def test_a_state_folder_that_cannot_be_written_is_one_sentence(state: State) -> None:
    (state.folder / "turns").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot be written"), one_at_a_time("films"):
        pass
