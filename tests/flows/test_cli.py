"""The command in this process, where no server is needed."""

from __future__ import annotations

from typer.testing import CliRunner

from flows.cli import app
from tasks.state import State


def test_what_looks_like_markup_is_shown_as_it_is(state: State) -> None:
    outcome = CliRunner().invoke(app, ["ledger", "show", "--source", "[/red]"])
    assert (outcome.exit_code, outcome.stdout) == (0, "Nothing of [/red] was spent yet.\n")
